"""`export-best --out` and `show run` on the shipped results: a launch that is complete, sources that come from hashes."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import struct
from pathlib import Path

import pytest
from screen import Run

from gemmsweep.report.export import directory

SHIPPED = Path(__file__).parents[2] / "results.db"
pytestmark = pytest.mark.skipif(not SHIPPED.exists(), reason="not a checkout")


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    return Path(shutil.copy(SHIPPED, tmp_path / "shipped.db"))


def kernels(gemmsweep: Run, db: Path, out: Path, *more: str) -> list[dict[str, object]]:
    assert gemmsweep("export-best", "--db", str(db), "--out", str(out), *more).code == 0
    return json.loads((out / "launch.json").read_text())["kernels"]


def test_the_launch_table_has_what_the_host_must_fill_in(gemmsweep: Run, shipped: Path, tmp_path: Path) -> None:
    only = ("--template", "wgmma", "--shape", "4096x4096x512", "--dtype", "bf16")
    plain, fused = sorted(
        kernels(gemmsweep, shipped, tmp_path / "out", *only), key=lambda k: k["problem"]["epilogue"] != "none"
    )
    maps = {entry["operand"]: entry for entry in plain["tensor_maps"]}
    assert (maps["A"]["data_type"], maps["A"]["dims"], maps["A"]["row_bytes"]) == ("BFLOAT16", [512, 4096], 1024)
    assert maps["C"]["dims"] == [4096, 4096]
    alpha, beta, bias, slope = struct.unpack("<ffQf", bytes.fromhex(fused["epilogue"]["bytes"])[:20])
    assert (alpha, beta, bias, round(slope, 6), fused["epilogue"]["bias"]) == (1.0, 0.0, 0, 0.01, "n")
    assert plain["build_arch"] == "sm_90a"


def keys(value: object) -> set[str]:
    """Every key at any depth, but those of a config and the names of libraries."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    if not isinstance(value, dict):
        return set()
    free = {"config": {}, "references": [*value.get("references", {}).values()]}
    return set(value).union(*(keys(free.get(name, inner)) for name, inner in value.items()))


def test_the_folder_explains_every_key_and_names_every_argument(gemmsweep: Run, shipped: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    exported = kernels(gemmsweep, shipped, out)
    readme = (out / "README.md").read_text()
    explained = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", readme.partition("## Figures")[0]))))
    assert keys(exported) - explained == set()
    assert directory.rules() in readme
    assert directory.rules() in (SHIPPED.parent / "docs" / "export.md").read_text()
    steps = {(k["template"], s["kernel"], *s["args"]): s["arg_names"] for k in exported for s in k["steps"]}
    assert None not in steps.values()
    by_kernel = {key[:2]: names for key, names in steps.items()}
    assert by_kernel["naive", "gemm"] == ["A", "B", "C", "M", "N", "K", "lda", "ldb", "ldc", "epilogue"]
    assert by_kernel["cpu_blocked", "gemm"][3:] == ["M", "N", "K", "lda", "ldb", "ldc", "alpha", "beta"]
    assert by_kernel["wgmma", "gemm"][4:8] == ["M", "N", "K", "ldc"]
    assert by_kernel["wgmma", "pad"][2:6] == ["A_rows", "A_cols", "lda", "padded_lda"]


def test_a_fused_kernel_and_the_plain_one_of_the_same_sizes_are_told_apart(gemmsweep: Run, shipped: Path) -> None:
    only = ("--db", str(shipped), "--shape", "16x4096x4096", "--dtype", "bf16", "--format", "json")
    for asked, epilogue in (("none", "none"), ("Bias + leaky_relu(0.01)", "bias+leaky_relu")):
        (best,) = gemmsweep("export-best", *only, "--epilogue", asked).json["best"]
        assert best["problem"]["epilogue"] == epilogue
    runs = gemmsweep("report", *only, "--epilogue", "none").json["runs"]
    assert {run["problem"]["epilogue"] for run in runs} == {"none"}
    lacking = gemmsweep("export-best", *only, "--epilogue", "silu")
    assert (
        lacking.code == 1
        and "no run has epilogue 'silu' among those with shape 16x4096x4096, dtype bf16." in lacking.err
    )


def test_a_list_of_shapes_is_one_folder_and_what_it_lacks_is_told_in_one_line(
    gemmsweep: Run, shipped: Path, tmp_path: Path
) -> None:
    shapes, out = tmp_path / "shapes.csv", tmp_path / "kernels"
    shapes.write_text("m,n,k,dtype,layout\n16,4096,4096,bf16,nt\n8,4096,4096\n7,7,7,bf16,nt\n16,4096,4096,fp16,nn\n")
    ask = ("export-best", "--db", str(shipped), "--shapes", str(shapes), "--epilogue", "none")
    ran = gemmsweep(*ask, "--out", str(out))
    written = [kernel["problem"] for kernel in json.loads((out / "launch.json").read_text())["kernels"]]
    assert {(p["m"], p["dtype"], p["layout"]) for p in written} == {
        (16, "bf16", "nt"), (8, "bf16", "nt"), (8, "fp16", "nt"), (8, "fp32", "nt"),
    }  # fmt: skip
    (told,) = [line for line in ran.err.splitlines() if line.startswith("Left out: ")]
    assert ran.code == 1 and "no verified finals match 2 of 4 problems: 7x7x7 bf16 nt, 16x4096x4096 fp16 nn. " in told
    assert told.endswith(f"gemmsweep tune --shapes {shapes} --epilogue none")
    some = gemmsweep(*ask, "--dtype", "bf16", "--shape", "1x4096x4096", "--format", "json")
    assert [run["problem"]["m"] for run in some.json["best"]] == [1, 1, 8, 16]
    assert some.code == 1 and "1 of 4 problems: 7x7x7 bf16 nt. " in some.err


def test_a_list_of_which_all_or_nothing_is_on_record(gemmsweep: Run, shipped: Path, tmp_path: Path) -> None:
    shapes, ask = tmp_path / "shapes.csv", ("export-best", "--db", str(shipped), "--format", "json", "--shapes")
    shapes.write_text("16,4096,4096,bf16,nt\n")
    assert (gemmsweep(*ask, str(shapes)).code, gemmsweep(*ask, str(shapes)).err) == (0, "")
    other = gemmsweep(*ask, str(shapes), "--dtype", "fp16")
    assert (other.code, other.out) == (1, "") and "no line of --shapes is of that --dtype" in other.err
    shapes.write_text("".join(f"7,7,{k}\n" for k in range(1, 21)))
    none = gemmsweep(*ask, str(shapes))
    assert (none.code, none.out, len(none.err.splitlines())) == (1, "", 1)
    assert "7x7x12 and 8 more. Measure: gemmsweep tune --shapes" in none.err
    assert gemmsweep(*ask, str(tmp_path / "none.csv")).code == 2
    assert "--shapes takes one value and has 2" in gemmsweep(*ask, str(shapes), "--shapes", str(shapes)).err


@pytest.mark.parametrize("filter_", ["--device", "--template"])
def test_a_filter_that_names_nothing_on_record_is_told_with_a_list_too(
    gemmsweep: Run, shipped: Path, tmp_path: Path, filter_: str
) -> None:
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("16,4096,4096,bf16,nt\n7,7,7,fp16,nt\n")
    ran = gemmsweep("export-best", "--db", str(shipped), "--shapes", str(shapes), filter_, "nosuch")
    assert ran.code == 1 and f"{filter_.strip('-')} 'nosuch'" in ran.err and "On record: " in ran.err


def test_of_several_shapes_the_one_without_finals_is_told(gemmsweep: Run, shipped: Path) -> None:
    ask = ("export-best", "--db", str(shipped), "--shape", "7x7x7", "--shape", "16x4096x4096", "--dtype", "bf16")
    ran = gemmsweep(*ask)
    assert ran.code == 1 and "16x4096x4096 bf16 nt" in ran.out
    assert ran.err.endswith("7x7x7 bf16. Measure: gemmsweep tune --shape 7x7x7 --dtype bf16\n")


def test_what_other_filters_leave_out_is_not_said_to_be_unmeasured(
    gemmsweep: Run, shipped: Path, tmp_path: Path
) -> None:
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("16,4096,4096,bf16,nt\n7,7,7,fp16,nt\n")
    ask = ("export-best", "--db", str(shipped), "--shapes", str(shapes), "--template", "simt")
    (told,) = gemmsweep(*ask).err.splitlines()
    assert told.endswith(
        f"no verified finals match 1 of 2 problems: 7x7x7 fp16 nt. Measure: gemmsweep tune --shapes {shapes}"
    )
    assert "what won the finals of 16x4096x4096 bf16 nt is not what the other filters ask for; " in told
    both = gemmsweep(*ask[:5], "--shape", "7x7x7", "--dtype", "bf16")
    assert both.err.endswith("7x7x7 bf16. Measure: gemmsweep tune --shape 7x7x7 --dtype bf16\n"), (
        "the list has it in fp16"
    )


def test_a_source_of_which_only_the_hash_is_left_is_rendered_again(
    gemmsweep: Run, shipped: Path, tmp_path: Path
) -> None:
    """Of the present template only: others are left out, told, and the exit code is 1."""
    before = kernels(gemmsweep, shipped, tmp_path / "before", "--template", "simt")
    with sqlite3.connect(shipped) as raw:
        raw.execute("UPDATE sources SET text_zlib = NULL, dictionary_key = NULL")
        of_an_older_template = "key = (SELECT rendered_key FROM runs WHERE run_id = ?)"
        raw.execute(f"UPDATE sources SET sha256 = ? WHERE {of_an_older_template}", ("0" * 64, before[0]["run_id"]))
    ran = gemmsweep("export-best", "--db", str(shipped), "--template", "simt", "--out", str(tmp_path / "after"))
    assert ran.code == 1 and ran.err.count("Left out: run ") == 1
    assert f"{len(before) - 1} kernel" in ran.err and "no shipped template renders to it" in " ".join(ran.err.split())
    for kernel in json.loads((tmp_path / "after" / "launch.json").read_text())["kernels"]:
        twin = next(k for k in before if k["run_id"] == kernel["run_id"])
        assert (tmp_path / "after" / kernel["file"]).read_text() == (tmp_path / "before" / twin["file"]).read_text()


def test_show_run_says_how_it_is_launched(gemmsweep: Run, shipped: Path) -> None:
    best = gemmsweep("export-best", "--db", str(shipped), "--template", "wgmma", "--format", "json").json["best"][0]
    lines = gemmsweep("show", "run", best["run_id"], "--db", str(shipped)).out.splitlines()
    launch = [line for line in lines if line.startswith("launch")]
    assert any("gemm grid " in line and "B of dynamic shared memory" in line for line in launch)
    assert any("tensor_map:A_MAP" in line for line in launch)
    assert any("of A, box 64x" in line for line in launch)


RESTORE = "Restore a copy, or name another file with --db."


def test_tensor_maps_from_before_they_had_an_extent_are_exported_as_those_of_operands(
    gemmsweep: Run, shipped: Path, tmp_path: Path
) -> None:
    only = ("--template", "wgmma", "--shape", "4096x4096x512", "--dtype", "bf16")
    now = kernels(gemmsweep, shipped, tmp_path / "now", *only)
    with sqlite3.connect(shipped) as raw:
        for key, text in raw.execute("SELECT key, launch FROM runs WHERE launch LIKE '%A_MAP%'").fetchall():
            launch = json.loads(text)
            for entry in launch["tensor_maps"]:
                del entry["extent"], entry["ld"]
            raw.execute("UPDATE runs SET launch = ? WHERE key = ?", (json.dumps(launch), key))
    assert kernels(gemmsweep, shipped, tmp_path / "before", *only) == now


@pytest.mark.parametrize(("path", "value"), [
    ("$", {}), ("$.steps", [{}]), ("$.steps", 5), ("$.steps", None), ("$.steps[0].grid", "1"), ("$.steps[0].smem_bytes", True),
    ("$.workspaces", [{"name": "W"}]), ("$.tensor_maps", [1]), ("$.tensor_maps[0].operand", "Z"),
    ("$.tensor_maps[0].extent", [1]), ("$.tensor_maps[0].operand", "workspace:W"),
])  # fmt: skip
def test_a_damaged_launch_is_a_sentence(
    gemmsweep: Run, shipped: Path, tmp_path: Path, path: str, value: object
) -> None:
    best = gemmsweep("export-best", "--db", str(shipped), "--template", "wgmma", "--format", "json").json["best"][0]
    with sqlite3.connect(shipped) as raw:
        raw.execute(
            "UPDATE runs SET launch = json_set(launch, ?, json(?)) WHERE run_id = ?",
            (path, json.dumps(value), best["run_id"]),
        )
    out = tmp_path / "out"
    for ask in (("show", "run", best["run_id"]), ("export-best", "--out", str(out))):
        ran = gemmsweep(*ask, "--db", str(shipped))
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1), ask
        assert f"is damaged (the launch of run {best['run_id'][-8:]}). {RESTORE}" in ran.err
    assert not out.exists()


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, 1.5, True])
def test_a_config_whose_values_are_neither_integers_nor_names_is_damage(
    gemmsweep: Run, shipped: Path, tmp_path: Path, value: object
) -> None:
    with sqlite3.connect(shipped) as raw:
        raw.execute("UPDATE sources SET text_zlib = NULL, dictionary_key = NULL")
        run_id = raw.execute("SELECT run_id FROM runs WHERE template = 'simt' AND rendered_key IS NOT NULL").fetchone()[
            0
        ]
        damaged = "UPDATE runs SET config = json_set(config, '$.BN', json(?)) WHERE template = 'simt'"
        raw.execute(damaged, (json.dumps(value),))
    for ask in (("show", "run", run_id, "--source"), ("export-best", "--out", str(tmp_path / "out"))):
        ran = gemmsweep(*ask, "--db", str(shipped))
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1), ask
        assert "is damaged" in ran.err and RESTORE in ran.err


def test_a_source_that_no_config_could_give_is_left_out(gemmsweep: Run, shipped: Path, tmp_path: Path) -> None:
    """An integer as any other, of which a derived name of the template has no value."""
    with sqlite3.connect(shipped) as raw:
        raw.execute("UPDATE sources SET text_zlib = NULL, dictionary_key = NULL")
        raw.execute("UPDATE runs SET config = json_set(config, '$.WN', 0) WHERE template = 'simt'")
    ran = gemmsweep("export-best", "--db", str(shipped), "--template", "simt", "--out", str(tmp_path / "out"))
    assert ran.code == 1 and "no shipped template renders to it" in " ".join(ran.err.split())
