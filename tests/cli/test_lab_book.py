"""`report`, `export-best`, `show`, `init`, `merge` and `doctor` over results that a sweep left."""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from screen import Run

from gemmsweep.report import export, formats
from gemmsweep.store import open_store
from gemmsweep.template.locations import templates_folder

KERNELS = Path(__file__).parent.parent / "data" / "template"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Path:
    """A results file with one CPU sweep, raced once for all tests here."""
    path = tmp_path_factory.mktemp("swept") / "results.db"
    command = ("run", "--device", "cpu", "--shape", "64x64x64", "--vary", "UNROLL=1,2", "--race-limit", "2s")
    environment = {**os.environ, "GEMMSWEEP_DB": str(path), "GEMMSWEEP_CACHE": str(shared_cache)}
    subprocess.run([sys.executable, "-m", "gemmsweep", *command], env=environment, check=True, capture_output=True)
    return path


@pytest.fixture
def swept(gemmsweep: Run, sweep: Path, tmp_path: Path) -> Run:
    """A command line whose results file, a copy, holds that sweep."""
    shutil.copy(sweep, tmp_path / "results.db")
    return gemmsweep


def test_the_report_of_a_command_ends_with_a_row_per_problem(swept: Run) -> None:
    shown = swept("report").out
    _, closing = shown.split("The best on record of each problem (all: gemmsweep export-best)\n")
    assert re.search(r"^64x64x64 fp32 nn +cpu_blocked ", closing, re.MULTILINE)
    for plain in (("--shape", "64x64x64"), ("--last", "--columns", "status"), ("--last", "--format", "md")):
        assert "best on record" not in swept("report", *plain).out


def test_the_best_of_each_problem_is_that_on_record_whichever_command_found_it(swept: Run) -> None:
    small = ("--shape", "64x64x64", "--shape", "32x32x32", "--vary", "UNROLL=1,2", "--time-limit", "20s")
    assert swept("run", "--device", "cpu", "--protocol", "alone", *small).code == 0, "without finals of its own"
    _, closing = swept("report").out.split("The best on record of each problem (all: gemmsweep export-best)\n")
    assert closing == swept("export-best").out


def test_families_say_where_nothing_is_on_record_and_what_is_missing(swept: Run, tmp_path: Path) -> None:
    assert "no N and K have finals at two or more M" in swept("report", "--families").err
    assert "of what the filters leave, no N and K" in swept("report", "--families", "--dtype", "fp32").err
    assert "--columns ',' names none" in swept("report", "--columns", ",").err
    empty = tmp_path / "empty.db"
    with open_store(empty):
        pass
    ran = swept("report", "--families", "--db", str(empty))
    assert (ran.code, "no runs yet" in ran.err) == (1, True)


def test_report_in_every_format(swept: Run) -> None:
    assert "UNROLL" in swept("report").out
    rows = list(csv.DictReader(io.StringIO(swept("report", "--format", "csv").out)))
    assert {row["status"] for row in rows} == {"ok"}
    assert "| UNROLL |" in swept("report", "--last", "--format", "md").out
    columns = swept("report", "--columns", "config.UNROLL,status,median_us").out
    assert "config.UNROLL" in columns
    assert "unknown column" in swept("report", "--columns", "colour").err
    assert swept("report", "--format", "xml").code == 2


@pytest.mark.parametrize("filters", [
    ("--shape", "1x1x1"), ("--dtype", "fp16"), ("--template", "mma"), ("--device", "H200"), ("--experiment", "x"),
    ("--status", "compile"),
])  # fmt: skip
def test_a_filter_that_matches_nothing_is_exit_1_with_the_reason(swept: Run, filters: tuple[str, str]) -> None:
    ran = swept("report", *filters)
    assert ran.code == 1
    assert filters[1] in ran.err


def test_help_lists_the_formats_that_there_are(gemmsweep: Run) -> None:
    for command, there in (("report", formats.names()), ("export-best", export.names())):
        assert f"--format {'|'.join(there)}" in gemmsweep(command, "--help").out


def test_any_of_several_shapes_is_shown_and_of_the_other_filters_a_second_value_is_an_error(swept: Run) -> None:
    sweeps = {row["sweep_id"] for row in swept("report", "--format", "json").json["runs"]}
    for shapes in (("--shape", "7x7x7", "--shape", "64x64x64"), ("--shape", "64x64x64", "--shape", "7x7x7")):
        assert {row["sweep_id"] for row in swept("report", *shapes, "--format", "json").json["runs"]} == sweeps
    for option in ("--sweep", "--experiment", "--template", "--dtype", "--layout", "--device", "--status"):
        ran = swept("report", option, "fp32", option, "fp32")
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
        assert f"{option} takes one value and has 2" in ran.err


def test_show_run_has_every_part(swept: Run) -> None:
    run = swept("report", "--last", "--format", "json").json["runs"][0]["run_id"]
    shown = swept("show", "run", run[-8:]).out
    assert "median_us" in shown
    assert shown.endswith("More: --source, --rounds\n")
    assert "enum" in swept("show", "run", run[-8:], "--source").out
    rounds = list(csv.DictReader(io.StringIO(swept("show", "run", run[-8:], "--rounds").out)))
    assert len(rounds) == swept("report", "--last", "--format", "json").json["sweeps"][0]["rounds"]
    assert all(int(row["burst_ns"]) > 0 for row in rounds)
    assert all(float(row["numpy_us"]) > 0 for row in rounds)  # of the same round: only those are compared
    assert swept("show", "run", run, "--format", "json").json["run_id"] == run
    assert swept("show", "run", "0000000f").code == 2
    assert swept("show", "run").code == 2
    assert "CUDA kernels" in swept("show", "run", run, "--ptx").err


@pytest.mark.parametrize(("arguments", "message"), [
    (("--ptx", "--log"), "--ptx and --log are parts of their own: ask for one at a time."),
    (("--source", "--format", "json"), "--source is no JSON: leave out --format json"),
])  # fmt: skip
def test_a_run_is_shown_one_part_at_a_time(gemmsweep: Run, arguments: tuple[str, ...], message: str) -> None:
    shown = gemmsweep("show", "run", "0000000f", *arguments)
    assert (shown.code, shown.out, len(shown.err.splitlines())) == (2, "", 1)
    assert message in shown.err


def test_show_lists_templates_with_when_they_were_checked(swept: Run) -> None:
    listed = swept("show").out
    assert "never checked" in listed
    shown = {t["name"]: t for t in swept("show", "--format", "json").json["templates"]}
    assert {"naive", "simt", "mma", "cpu_blocked"} <= set(shown)
    assert shown["simt"]["stale"] is True
    assert shown["cpu_blocked"]["checked"][0]["source_sha256"]
    assert {"name", "default", "values", "meaning"} == set(shown["simt"]["parameters"][0])


def test_show_template_prints_its_account(gemmsweep: Run) -> None:
    pytest.importorskip("cupy_backends")
    out = gemmsweep("show", "simt", "--shape", "4096x4096x4096", "--arch", "sm_90a").out
    for words in ("bytes per stage", "accumulators/thread", "registers/thread", "CTAs per SM", "waves", "FLOP/byte"):
        assert words in out
    assert "no parameter 'BQ'" in gemmsweep("show", "simt", "--set", "BQ=1").err
    assert gemmsweep("show", "nothing").code == 2


@pytest.mark.parametrize("wrong", [
    ("--dtype", "fp17"), ("--set", "BK=7"), ("--set", "BQ=1"), ("--layout", "tt"), ("--shape", "8x8"), ("--arch", "sm_x"),
])  # fmt: skip
def test_what_cannot_be_accounted_for_is_told_before_anything_is_shown(gemmsweep: Run, wrong: tuple[str, str]) -> None:
    shown = gemmsweep("show", "simt", *wrong)
    assert (shown.code, shown.out, len(shown.err.splitlines())) == (2, "", 1)


@pytest.mark.parametrize(("arguments", "option"), [
    (("--set", "BK=1"), "--set"), (("--format", "json", "--arch", "sm_90a"), "--arch"),
    (("run", "0000000f", "--shape", "8x8x8"), "--shape"), (("simt", "--format", "json", "--dtype", "fp32"), "--dtype"),
])  # fmt: skip
def test_what_asks_for_an_account_is_refused_where_there_is_none(
    gemmsweep: Run, arguments: tuple[str, ...], option: str
) -> None:
    shown = gemmsweep("show", *arguments)
    assert (shown.code, shown.out, len(shown.err.splitlines())) == (2, "", 1)
    assert f"gemmsweep show TEMPLATE {option}" in shown.err


def test_an_account_names_the_best_on_record_and_how_to_account_for_that(
    gemmsweep: Run, scripted: Callable[[str], str]
) -> None:
    pytest.importorskip("cupy_backends")
    device = scripted('[[rule]]\nmatch = "UNROLL=2"\ntime_us = 50\n')
    ran = gemmsweep("run", "--template", "naive", "--shape", "96x64x48", "--vary", "UNROLL=2,4", "--device", device)
    assert ran.code == 0
    asked = ("show", "naive", "--arch", "sm_90a", "--shape")
    told = next(line for line in gemmsweep(*asked, "96x64x48").out.splitlines() if "best known: run" in line)
    again = gemmsweep(*shlex.split(told.partition("Its account: gemmsweep ")[2]))
    assert again.code == 0
    assert "UNROLL=2" in again.out and "best known" not in again.out
    assert "best known" not in gemmsweep(*asked, "96x64x64").out


def test_merging_twice_adds_once(swept: Run, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "results.db", tmp_path / "other.db")
    first = swept("merge", "other.db", "--db", "target.db")
    again = swept("merge", "other.db", "--db", "target.db")
    assert "2 sweeps added" in first.err
    assert "0 sweeps added" in again.err
    assert swept("report", "--db", "target.db", "--format", "csv").out == swept("report", "--format", "csv").out
    assert swept("merge").code == 2
    assert "--driver names its files" in swept("merge", "--driver", "a.db", "b.db", "c.db", "other.db").err
    assert "--driver names its files" in swept("merge", "--driver", "a.db", "b.db", "c.db", "--db", "other.db").err
    assert swept("merge", "nowhere.db").code == 2


def test_init_drafts_a_sidecar_that_can_be_dry_run(gemmsweep: Run, tmp_path: Path) -> None:
    shutil.copy(KERNELS / "public.cu", tmp_path / "mine.cu")
    before = (tmp_path / "mine.cu").read_bytes()
    assert gemmsweep("init", "mine.cu").code == 0
    assert (tmp_path / "mine.cu").read_bytes() == before
    assert gemmsweep("show", "mine.cu", "--format", "json").code == 0
    assert "--force" in gemmsweep("init", "mine.cu").err
    assert gemmsweep("init", "nowhere.cu").code == 2


def test_init_refuses_a_kernel_that_describes_itself(gemmsweep: Run, tmp_path: Path) -> None:
    shutil.copy(templates_folder() / "naive.cu", tmp_path / "mine.cu")
    for force in ((), ("--force",)):
        refused = gemmsweep("init", "mine.cu", *force)
        assert refused.code == 2
        assert "header of its own" in refused.err and "gemmsweep run --template mine.cu" in refused.err
    assert gemmsweep("show", "mine.cu").code == 0


def test_commands_to_copy_are_quoted(gemmsweep: Run, tmp_path: Path) -> None:
    (tmp_path / "my kernels").mkdir()
    shutil.copy(KERNELS / "public.cu", tmp_path / "my kernels" / "a b.cu")
    named = "my kernels/a b.cu"
    assert f"gemmsweep init '{named}'" in gemmsweep("show", named).err
    assert f"--template '{named}' --vary P" in gemmsweep("init", named).err


def test_doctor_says_what_is_there_and_what_to_install(gemmsweep: Run) -> None:
    out = gemmsweep("doctor").out
    for name in ("NVIDIA driver", "NVRTC", "C compiler"):
        assert name in out


def spoil_foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()


@pytest.mark.parametrize("spoil", [
    lambda path: path.write_bytes(b"not a database at all, just text" * 100), spoil_foreign, lambda path: path.mkdir(),
])  # fmt: skip
@pytest.mark.parametrize("command", [("report",), ("export-best",), ("run", "--device", "cpu", "--vary", "BK")])
def test_a_file_that_is_no_results_file_is_left_alone(
    gemmsweep: Run, tmp_path: Path, spoil: Callable[[Path], None], command: tuple[str, ...]
) -> None:
    spoil(tmp_path / "bad.db")
    before = (tmp_path / "bad.db").read_bytes() if (tmp_path / "bad.db").is_file() else b""
    ran = gemmsweep(*command, "--db", "bad.db")
    assert ran.code == 2
    assert ran.err.startswith("Error: ")
    assert before == ((tmp_path / "bad.db").read_bytes() if (tmp_path / "bad.db").is_file() else b"")


def test_no_results_yet(gemmsweep: Run) -> None:
    assert gemmsweep("report").code == 2
    assert gemmsweep("export-best").code == 2


def test_in_a_pipe_columns_says_how_wide_a_table_is(gemmsweep: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = max(map(len, gemmsweep("show").out.splitlines()))
    monkeypatch.setenv("COLUMNS", "70")
    assert max(map(len, gemmsweep("show").out.splitlines())) <= 70 < whole
    assert max(map(len, gemmsweep("doctor").out.splitlines())) <= 70
