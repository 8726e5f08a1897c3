"""Exports of the best configs, the directory of sources above all: it writes where it was told and nowhere else."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import golden
import pytest
import report_samples as samples

from gemmsweep.errors import NothingToShow, UsageError
from gemmsweep.report import export
from gemmsweep.report.export import directory
from gemmsweep.report.export.directory import ExportedKernel, slug, write

LAUNCH = {"kernel": "gemm", "grid": [32, 32, 1], "block": [128, 1, 1], "smem_bytes": 33792, "args": ["A", "B", "C"]}
FILES = [
    "simt_4096x4096x4096_fp32_nn.cu",
    "mma_512x4096x4096_fp16_nt_bias+leaky_relu.cu",
    "cpu_blocked_1024x1024x1024_fp32_nn.c",
]


def render(best: samples.Record) -> ExportedKernel:
    return ExportedKernel(f"// {best['template']}\n", LAUNCH)


def text(name: str) -> str:
    out = io.StringIO()
    export.write(name, samples.best(), out)
    return out.getvalue()


def test_json_and_jsonl_carry_every_key() -> None:
    assert json.loads(text("json")) == {"schema": "gemmsweep/best/1", "best": samples.best()}
    assert [json.loads(line) for line in text("jsonl").splitlines()] == samples.best()


def test_csv_and_markdown() -> None:
    rows = list(csv.DictReader(io.StringIO(text("csv"))))
    assert [row["decision"] for row in rows] == ["winner", "tie", "undecided"]
    golden.check("best.md", text("md"))


def test_cpus_of_one_name_have_a_table_each() -> None:
    cpu, out = samples.best()[2], io.StringIO()
    export.write("md", [{**cpu, "device": {**cpu["device"], "uuid": uuid}} for uuid in ("one", "two")], out)
    assert out.getvalue().count("### ") == 2


def test_an_unknown_format_names_the_choices() -> None:
    with pytest.raises(UsageError, match=r"unknown format 'directory'. Choose one of: csv, json, jsonl, md\."):
        text("directory")


def test_a_directory_has_sources_a_launch_table_and_a_readme(tmp_path: Path) -> None:
    written, _, _ = write(samples.best(), tmp_path / "new" / "kernels", render)
    assert sorted(path.name for path in written) == sorted([*FILES, "launch.json", "README.md"])
    assert sorted(written) == sorted((tmp_path / "new" / "kernels").iterdir())
    table = json.loads((tmp_path / "new" / "kernels" / "launch.json").read_text())
    assert table["schema"] == "gemmsweep/kernels/1"
    first = table["kernels"][0]
    assert first["file"] == FILES[0]
    assert {name: first[name] for name in LAUNCH} == LAUNCH
    assert first["config"]["BK"] == 16
    assert first["figures"]["references"]["cublas"]["ratio"] > 1
    assert "1.03× cuBLAS (faster, ±0.05%)" in (tmp_path / "new" / "kernels" / "README.md").read_text()


def test_a_second_export_replaces_the_first_and_keeps_other_files(tmp_path: Path) -> None:
    write(samples.best(), tmp_path, render)
    (tmp_path / "notes.txt").write_text("mine")
    write(samples.best()[:1], tmp_path, render)
    assert {path.name for path in tmp_path.iterdir()} == {FILES[0], "launch.json", "README.md", "notes.txt"}


def test_a_kernel_edited_since_its_export_is_neither_removed_nor_overwritten(tmp_path: Path) -> None:
    write(samples.best(), tmp_path, render)
    (tmp_path / FILES[1]).write_text("mine now")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for asked in (samples.best(), samples.best()[:1]):
        with pytest.raises(UsageError, match=re.escape(FILES[1]) + " is not as an export here left it"):
            write(asked, tmp_path, render)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_of_yours_is_not_overwritten_by_a_kernel_or_readme_of_that_name(tmp_path: Path) -> None:
    write(samples.best()[:1], tmp_path, render)
    (tmp_path / FILES[1]).write_text("mine")
    with pytest.raises(UsageError, match=re.escape(FILES[1]) + " is not what an export here left"):
        write(samples.best(), tmp_path, render)
    assert (tmp_path / FILES[1]).read_text() == "mine"
    (tmp_path / FILES[1]).unlink()
    (tmp_path / "README.md").rename(tmp_path / "written.md")
    (tmp_path / "README.md").mkdir()
    with pytest.raises(UsageError, match=r"README\.md is a folder"):
        write(samples.best(), tmp_path, render)
    (tmp_path / "README.md").rmdir()
    (tmp_path / "README.md").write_text("my notes")
    with pytest.raises(UsageError, match=r"README\.md is not as an export here left it"):
        write(samples.best(), tmp_path, render)


def test_an_export_that_was_cut_short_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(samples.best(), tmp_path, render)

    def newer(best: samples.Record) -> ExportedKernel:
        return replace(render(best), text="// newer\n")

    replaced: list[str] = []

    def cut(path: Path, content: str) -> None:
        if replaced:
            raise KeyboardInterrupt
        replaced.append(path.name)
        path.write_text(content)

    with monkeypatch.context() as patched:
        patched.setattr(directory, "_replace", cut)
        with pytest.raises(KeyboardInterrupt):
            write(samples.best(), tmp_path, newer)
    write(samples.best(), tmp_path, newer)
    assert {(tmp_path / name).read_text() for name in FILES} == {"// newer\n"}


@pytest.mark.parametrize("content", [None, "{}", "[]", "nonsense", "[" * 200_000, '{"schema": "other", "kernels": []}'])
def test_a_directory_with_anything_else_is_refused(tmp_path: Path, content: str | None) -> None:
    (tmp_path / ("thesis.txt" if content is None else "launch.json")).write_text(content or "mine")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match="not empty and holds no earlier export"):
        write(samples.best(), tmp_path, render)
    assert sorted(tmp_path.iterdir()) == before


def test_nothing_is_written_or_removed_through_a_link_or_a_hostile_table(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    (outside / "precious.cu").write_text("precious")
    write(samples.best(), inside, render)
    (inside / FILES[0]).unlink()
    (inside / FILES[0]).symlink_to(outside / "precious.cu")
    table = json.loads((inside / "launch.json").read_text())
    table["kernels"] += [{"file": "../outside/precious.cu"}, {"file": str(outside / "precious.cu")}, {"file": 7}]
    (inside / "launch.json").write_text(json.dumps(table))
    write(samples.best(), inside, render)
    assert (outside / "precious.cu").read_text() == "precious"
    assert not (inside / FILES[0]).is_symlink()
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(UsageError, match="symbolic link"):
        write(samples.best(), tmp_path / "link", render)


def test_names_from_users_stay_in_the_directory_and_apart(tmp_path: Path) -> None:
    evil = {**samples.best()[0], "template": "../../etc/pass\x00wd"}
    written, _, _ = write([evil, evil, {**evil, "template": "../../ETC/pass\x00wd"}], tmp_path, render)
    assert all(path.parent == tmp_path for path in written)
    assert len({path.name.lower() for path in written}) == 5
    assert slug("..") == slug("") == "kernel"


def test_a_kernel_whose_source_is_not_to_be_had_is_left_out_and_told(tmp_path: Path) -> None:
    def some(best: samples.Record) -> ExportedKernel:
        if best["template"] == "mma":
            raise NothingToShow("run 12345678: its source is not on record")
        return render(best)

    written, gone, refused = write(samples.best(), tmp_path / "kernels", some)
    assert {path.name for path in written} == {FILES[0], FILES[2], "launch.json", "README.md"}
    assert gone == 0
    assert write(samples.best()[:1], tmp_path / "kernels", some)[1:] == (1, [])
    assert refused == ["run 12345678: its source is not on record"]
    with pytest.raises(NothingToShow, match="not on record"):
        write([b for b in samples.best() if b["template"] == "mma"], tmp_path / "none", some)
    assert not (tmp_path / "none").exists()


def test_a_failed_rendering_leaves_no_trace(tmp_path: Path) -> None:
    def fail(best: samples.Record) -> ExportedKernel:
        raise UsageError("template 'mma' is gone")

    with pytest.raises(UsageError, match="is gone"):
        write(samples.best(), tmp_path / "kernels", fail)
    assert not (tmp_path / "kernels").exists()


def test_a_place_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*file.*Name another directory"):
        write(samples.best(), tmp_path / "file" / "kernels", render)
    with pytest.raises(UsageError, match=r"cannot write .*file"):
        write(samples.best(), tmp_path / "file", render)
