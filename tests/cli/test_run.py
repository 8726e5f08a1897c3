"""`gemmsweep run` as a user sees it, on a scripted GPU (kernels are really compiled) and on the CPU."""

from __future__ import annotations

import re
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from screen import Result, Run

from gemmsweep.build import toolchain
from gemmsweep.cli import run as cli_run
from gemmsweep.errors import UnderWay
from gemmsweep.model import DeviceInfo
from gemmsweep.session import Request
from gemmsweep.store import runs
from gemmsweep.template import library
from gemmsweep.template.library import find_template

pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")

NAIVE = ("run", "--template", "naive", "--shape", "96x64x48", "--start", "defaults")
QUIET = """
[[rule]]
match = "cublas"
time_us = 100
noise_pct = 0.1
"""

PERSISTENT = """// /// gemmsweep
// summary = "As many blocks as the card holds, however little there is to do."
// backend = "cuda"
// arch = "sm_75+"
// dtypes = ["fp32"]
// layouts = ["nn"]
// [parameters]
// THREADS = { default = 1024, values = [512, 1024], meaning = "per block" }
// [account]
// unit = "ffma"
ACCOUNT
// [launch]
// args = ["C"]
// grid = ["sm_count * floor_div(2048, THREADS)", "1", "1"]
// block = "THREADS"
// ///
$STATIC_ASSERTS
extern "C" __global__ void gemm(float* C) { C[0] = $THREADS; }
"""


def rule(match: str, **keys: object) -> str:
    lines = [
        f"{key} = {value!r}" if not isinstance(value, str) else f'{key} = "{value}"' for key, value in keys.items()
    ]
    return f'[[rule]]\nmatch = "{match}"\n' + "\n".join(lines) + "\n"


SPEEDS = (
    rule("UNROLL=2$", time_us=90, noise_pct=0.1)
    + rule("UNROLL=4$|naive$", time_us=110, noise_pct=0.1)
    + rule("UNROLL", time_us=120, noise_pct=0.1)
    + QUIET
)


def statuses(result: Result) -> dict[int, str]:
    return {run["config"]["UNROLL"]: run["status"] for run in result.json["runs"] if not run["finals"]}


def test_a_sweep_ends_with_a_winner_that_can_be_reported_and_exported(
    gemmsweep: Run, scripted: Callable[[str], str], tmp_path: Path
) -> None:
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL", "--device", scripted(SPEEDS))
    assert ran.code == 0
    assert "UNROLL (7): 7 configs, about" in ran.err
    assert "(template defaults)" in ran.err
    assert "UNROLL=2 wins: 22" in ran.text
    assert "1.11× cuBLAS (faster)" in ran.text
    assert all(len(line) <= 80 for line in ran.out.splitlines() if not line.startswith("gemmsweep run"))

    report = gemmsweep("report", "--last", "--format", "json").json
    axis, finals = report["sweeps"]
    assert (axis["varied"], axis["verdict"], axis["stopped"]) == ("UNROLL", "winner", "decided")
    winner = next(run for run in report["runs"] if run["run_id"] == axis["winner_run_id"])
    assert winner["config"]["UNROLL"] == 2
    assert winner["references"]["cublas"]["ratio"] == pytest.approx(100 / 90, rel=2e-3)
    assert winner["error"]["max_scaled"] <= 1
    assert [run["finals"] for run in report["runs"]].count(True) == 2

    best = gemmsweep("export-best", "--format", "json").json["best"]
    assert [(b["config"]["UNROLL"], b["decision"], b["finals"]) for b in best] == [(2, "winner", True)]
    assert finals["winner_run_id"] == best[0]["run_id"]
    assert gemmsweep("export-best", "--out", "kernels").code == 0
    source = (tmp_path / "kernels" / "naive_96x64x48_fp32_nn.cu").read_text()
    assert "constexpr int UNROLL = 2;" in source
    assert '#include "' not in source


def test_axes_go_one_after_the_other_and_only_the_axis_moves(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    script = rule("ORDER=strided", time_us=200, noise_pct=0.1) + SPEEDS.replace(
        "UNROLL=4$|naive$", "UNROLL=4$|ORDER|naive$"
    )
    assert gemmsweep(*NAIVE, "--vary", "UNROLL", "--vary", "ORDER", "--device", scripted(script)).code == 0
    report = gemmsweep("report", "--last", "--format", "json").json
    assert [sweep["varied"] for sweep in report["sweeps"]] == ["UNROLL", "ORDER", None]
    order = [run["config"] for run in report["runs"] if run["varied"] == "ORDER"]
    assert [config["UNROLL"] for config in order] == [2, 2]  # adopted by the first axis
    assert [config["ORDER"] for config in order] == ["coalesced", "strided"]


def test_a_tie_keeps_the_present_value(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    ran = gemmsweep(
        *NAIVE, "--vary", "UNROLL", "--device", scripted(rule("UNROLL|naive", time_us=50, noise_pct=0.05) + QUIET)
    )
    assert "tie within" in ran.text
    assert "UNROLL=4 is kept" in ran.text
    assert "tie within" in ran.text.rpartition("finals, cold L2")[2]
    (best,) = gemmsweep("export-best", "--format", "json").json["best"]
    assert best["config"]["UNROLL"] == 4
    for what in ("--dry-run", "--compile-only"):
        plan = gemmsweep(*NAIVE[:-2], "--vary", "ORDER", what, "--device", scripted(QUIET))
        assert "UNROLL=4 ORDER=coalesced (best known: run" in plan.text


def test_finals_that_decide_nothing_do_not_replace_those_that_did(
    gemmsweep: Run, scripted: Callable[[str], str]
) -> None:
    assert gemmsweep(*NAIVE, "--vary", "UNROLL", "--device", scripted(SPEEDS)).code == 0
    (certain,) = gemmsweep("export-best", "--format", "json").json["best"]
    noisy = rule("UNROLL|naive", time_us=100, noise_pct=12) + rule("cublas", time_us=100, noise_pct=1)
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL=1,2,4", "--time-limit", "20s", "--device", scripted(noisy))
    last = gemmsweep("report", "--last", "--format", "json").json["sweeps"][-1]
    assert (last["kind"], last["verdict"]) == ("finals", "undecided"), ran.text
    (still,) = gemmsweep("export-best", "--format", "json").json["best"]
    assert (still["run_id"], still["decision"]) == (certain["run_id"], "winner")


def test_a_sweep_starts_from_what_is_exported_even_where_nothing_is_decided(
    gemmsweep: Run, scripted: Callable[[str], str]
) -> None:
    noisy = scripted(rule("UNROLL|naive", time_us=100, noise_pct=12) + rule("cublas", time_us=100, noise_pct=1))
    sweep = (*NAIVE, "--vary", "UNROLL=1,2,4", "--race-limit", "2s", "--device", noisy)
    assert gemmsweep(*sweep).code == 0
    # The library stumbles: whatever raced against it looks many times faster than it is.
    stumbling = scripted(
        rule("UNROLL|naive|ORDER", time_us=100, noise_pct=12) + rule("cublas", time_us=5000, noise_pct=25)
    )
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=8,16", "--race-limit", "2s", "--device", stumbling).code == 0
    (best,) = gemmsweep("export-best", "--format", "json").json["best"]
    plan = gemmsweep(*NAIVE[:-2], "--vary", "ORDER", "--dry-run", "--device", stumbling)
    assert f"(best known: run {best['run_id'][-8:]} of" in plan.text


def test_finals_race_what_is_exported_whatever_an_axis_saw(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=1,2,4", "--device", scripted(SPEEDS)).code == 0
    (before,) = gemmsweep("export-best", "--format", "json").json["best"]
    assert before["config"]["UNROLL"] == 2
    # Two other values seem far ahead on their axis, and the winner of before does not race there.
    lucky = rule("UNROLL=(8|16)$", time_us=50, noise_pct=0.1) + SPEEDS
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=8,16", "--device", scripted(lucky)).code == 0
    runs = gemmsweep("report", "--last", "--format", "json").json["runs"]
    assert {run["config"]["UNROLL"] for run in runs if run["finals"]} == {2, 8, 16}, "and keeps neither of them out"


FAULTS = {
    1: ("launch", "illegal", "runtime"),
    2: ("launch", "crash", "runtime"),
    8: ("launch", "exception", "runtime"),
    16: ("result", "wrong", "incorrect"),
}


def test_each_failing_config_is_a_row_and_the_sweep_goes_on(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    script = "".join(rule(f"UNROLL={value}$", **{stage: fault}) for value, (stage, fault, _) in FAULTS.items()) + QUIET
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=1,2,4,8,16", "--device", scripted(script)).code == 0
    report = gemmsweep("report", "--last", "--format", "json")
    assert statuses(report) == {value: status for value, (_, _, status) in FAULTS.items()} | {4: "ok"}
    assert all(run["reason"] for run in report.json["runs"] if run["status"] != "ok")
    best = gemmsweep("export-best", "--format", "json").json["best"]
    assert [b["config"]["UNROLL"] for b in best] == [4]


def test_what_was_found_wrong_after_its_race_is_told_wherever_the_race_is(
    gemmsweep: Run, scripted: Callable[[str], str]
) -> None:
    command = (*NAIVE, "--vary", "UNROLL=1,2", "--device", scripted(SPEEDS))
    assert gemmsweep(*command).code == 0
    runs = gemmsweep("report", "--last", "--format", "json").json["runs"]
    (won,) = {run["run_id"] for run in runs if run["config"]["UNROLL"] == 2 and run["varied"]}
    later = scripted(rule("UNROLL=2$", result="wrong") + SPEEDS)
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", later).code == 0
    again = gemmsweep(*command)
    assert "On record since" in again.err
    assert re.search(r"Found wrong since: UNROLL=2 \(on \d{4}-\d\d-\d\d\)", " ".join(again.out.split()))
    assert re.search(r"wrong_since +\d{4}-", gemmsweep("show", "run", won).out)
    started = gemmsweep(*NAIVE[:-2], "--vary", "UNROLL=1,8", "--start", won, "--dry-run", "--arch", "sm_90a")
    assert re.search(r"run \w{8} of \d{4}-\d\d-\d\d, found wrong on \d{4}", started.out), started.out


@pytest.mark.parametrize("twice", [("--start", "best"), ("--dtype", "fp32"), ("--seed", "1"), ("--l2", "cold")])
def test_an_option_of_one_value_refuses_a_second(gemmsweep: Run, twice: tuple[str, str]) -> None:
    ran = gemmsweep(*NAIVE[:-2], "--vary", "UNROLL", *twice, *twice, "--device", "cpu")
    assert ran.code == 2
    assert f"{twice[0]} takes one value and has 2" in ran.err


def test_of_several_problems_one_that_another_process_is_at_leaves_the_others(
    gemmsweep: Run, scripted: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(request: Request, device: DeviceInfo, path: Path) -> ExitStack:
        if request.problem.m == 96:
            raise UnderWay("the same sweep into this results file is under way already, in process 7.")
        return ExitStack()

    monkeypatch.setattr(cli_run, "locked", locked)
    ask = (*NAIVE, "--vary", "UNROLL=1,2", "--device", scripted(SPEEDS))
    ran = gemmsweep(*ask, "--shape", "64x64x48")
    assert (ran.code, "96x64x48 fp32 nn: the same sweep" in ran.err, "64x64x48" in ran.out) == (1, True, True)
    assert gemmsweep(*ask).code == 2


def test_finals_in_which_every_config_failed_are_no_result(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    device = scripted(rule("naive", burst="illegal", after=2) + SPEEDS)
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL=1,2", "--device", device)
    assert "No config raced: 2 runtime" in ran.out
    assert (ran.code, gemmsweep("export-best").code) == (1, 1)


@pytest.mark.parametrize("command", [("run", "--vary", "BK", "--dry-run"), ("run", "--vary", "BK", "--compile-only"),
                                     ("tune", "--dry-run")])  # fmt: skip
def test_a_plan_is_for_a_device_here_or_for_an_architecture(gemmsweep: Run, command: tuple[str, ...]) -> None:
    ran = gemmsweep(*command, "--shape", "512x512x512", "--device", "cpu", "--arch", "sm_90a")
    assert (ran.code, "leave one of them out" in ran.err) == (2, True)


def test_configs_timed_alone_have_no_finals_to_ask_for(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    command = (*NAIVE, "--vary", "UNROLL=1,2", "--device", scripted(SPEEDS), "--protocol", "alone", "--regime")
    assert "--protocol alone holds none" in gemmsweep(*command, "all").err
    assert gemmsweep(*command, "equal-clock").code == 0
    plan = 'summary = "x"\ntemplate = "naive"\nproblems = ["64x64x64"]\nregime = "own-power"\nvary = ["BM=8,16"]\n'
    Path("e.toml").write_text(plan)
    ran = gemmsweep("run", "--experiment", "e.toml", "--protocol", "alone", "--device", scripted(SPEEDS))
    assert "--protocol alone holds none" in ran.err


@pytest.mark.parametrize(("fault", "status"), [
    ({"result": "nan"}, "incorrect"), ({"result": "skip"}, "incorrect"), ({"result": "outside"}, "incorrect"),
    ({"result": "zero"}, "incorrect"), ({"result": "unstable"}, "unstable"), ({"load": "refuse"}, "launch"),
    ({"launch": "hang"}, "timeout"), ({"burst": "hang", "after": 3}, "timeout"), ({"burst": "crash", "after": 4}, "runtime"),
])  # fmt: skip
def test_every_kind_of_fault_has_its_status(
    gemmsweep: Run, scripted: Callable[[str], str], fault: dict[str, object], status: str
) -> None:
    device = scripted(rule("UNROLL=1$", time_us=10, **fault) + SPEEDS)
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL=1,2,4", "--device", device, "--config-limit", "2s")
    assert ran.code == 0
    report = gemmsweep("report", "--last", "--format", "json")
    assert statuses(report) == {1: status, 2: "ok", 4: "ok"}


def test_nothing_verified_is_exit_1_and_never_exported(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL=1,2", "--device", scripted(rule("UNROLL", result="nan") + QUIET))
    assert ran.code == 1
    assert gemmsweep("export-best").code == 1


@pytest.mark.parametrize("fault", [{"result": "nan"}, {"load": "refuse"}])
def test_where_nothing_asked_for_raced_there_are_no_finals_of_what_is_on_record(
    gemmsweep: Run, scripted: Callable[[str], str], fault: dict[str, object]
) -> None:
    device = scripted(rule("UNROLL=[12]$", **fault) + SPEEDS)
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=4,8", "--device", device).code == 0
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL=1,2", "--device", device)
    assert ran.code == 1 and "Finals" not in ran.out + ran.err
    sweeps = gemmsweep("report", "--last", "--format", "json").json["sweeps"]
    assert [sweep["kind"] for sweep in sweeps] == ["axis"]


def test_a_report_of_several_shapes_names_those_without_runs(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=4,8", "--device", scripted(SPEEDS)).code == 0
    shape = NAIVE[NAIVE.index("--shape") + 1]
    ran = gemmsweep("report", "--shape", shape, "--shape", "7x7x7", "--shape", "8x8x8")
    assert (ran.code, ran.err) == (0, "No runs of 7x7x7, 8x8x8 match.\n")
    other = [word if word != shape else "32x16x16" for word in NAIVE]
    assert gemmsweep(*other, "--vary", "UNROLL=4,8", "--device", scripted(SPEEDS)).code == 0
    ran = gemmsweep("report", "--last", "--shape", shape, "--shape", "32x16x16", "--shape", shape)
    assert (ran.code, ran.err) == (0, f"No runs of {shape} match.\n"), (
        "the latest command has none, whatever others have"
    )


def test_a_second_template_is_not_dropped_in_silence(gemmsweep: Run) -> None:
    ran = gemmsweep(
        "run", "--vary", "UNROLL", "--template", "naive", "--kernel", "simt", "--arch", "sm_90a", "--dry-run"
    )
    assert (ran.code, ran.out) == (2, "") and "--template takes one value and has 2" in ran.err


def test_asked_again_it_shows_and_remeasure_races(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    device = scripted(SPEEDS)
    for extra, note, sweeps in (((), "UNROLL (2)", 2), ((), "On record since", 2), (("--remeasure",), "UNROLL (2)", 4)):
        ran = gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", device, *extra)
        assert ran.code == 0
        assert note in ran.err
        assert "UNROLL=2 wins" in ran.text
        assert len(gemmsweep("report", "--format", "json").json["sweeps"]) == sweeps


def test_an_axis_that_time_left_out_is_raced_by_the_same_command(
    gemmsweep: Run, scripted: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = (*NAIVE, "--vary", "UNROLL=2,4", "--vary", "ORDER", "--device", scripted(SPEEDS))
    with monkeypatch.context() as patch:
        patch.setattr("gemmsweep.sweep.FINALS_RESERVE_S", 3600.0)
        cut = gemmsweep(*command, "--time-limit", "10m")  # less than the finals' reserve: one axis, then the finals
        assert "Time limit reached: the same command goes on" in cut.err
        gemmsweep(*command, "--time-limit", "10m")  # the axis on record is none of this command's
    report = gemmsweep("report", "--format", "json").json
    assert [sweep["varied"] for sweep in report["sweeps"]] == ["UNROLL", None, "ORDER", None]
    assert "On record since" in gemmsweep(*command).err
    with sqlite3.connect(tmp_path / "results.db") as raw:  # as if time had ended with the last race
        raw.execute("UPDATE sweeps SET session_finished_at = NULL")
    ran = gemmsweep(*command)
    assert "On record since" not in ran.err
    assert "UNROLL=2 wins" in ran.text, "where nothing is left to race, the answer is what there is"


def test_the_best_known_config_is_where_the_next_sweep_starts(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    device = scripted(SPEEDS)
    gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", device)
    again = gemmsweep(*NAIVE[:-2], "--vary", "ORDER", "--device", device)
    assert "UNROLL=2" in again.err
    assert "best known: run" in again.err
    near = gemmsweep("run", "--template", "naive", "--shape", "96x64x64", "--vary", "ORDER", "--device", device)
    assert "best of the nearest shape 96x64x48" in near.err


def test_what_was_best_before_a_parameter_was_added_is_in_the_finals(
    gemmsweep: Run, scripted: Callable[[str], str], tmp_path: Path
) -> None:
    text = find_template("naive").path.read_text()
    own = tmp_path / "own.cu"
    own.write_text(text)
    command = ("run", "--template", str(own), "--shape", "96x64x48", "--device", scripted(SPEEDS))
    assert gemmsweep(*command, "--vary", "UNROLL=1,2,4").code == 0
    added = '// EXTRA = { default = 0, values = [0, 1], meaning = "of no effect" }\n'
    text = text.replace("// [parameters]\n", f"// [parameters]\n{added}", 1)
    own.write_text(text.replace("constexpr int UNROLL", "constexpr int EXTRA = $EXTRA;\nconstexpr int UNROLL", 1))
    assert gemmsweep(*command, "--vary", "EXTRA", "--start", "defaults").code == 0
    runs = gemmsweep("report", "--last", "--format", "json").json["runs"]
    finals = [run["config"] for run in runs if run["finals"]]
    assert any(config["UNROLL"] == 2 and config["EXTRA"] == 0 for config in finals)


def test_without_a_gpu_a_plan_starts_from_the_record_of_one_of_that_architecture(
    gemmsweep: Run, scripted: Callable[[str], str]
) -> None:
    gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", scripted(SPEEDS))
    (device,) = {run["device"]["name"] for run in gemmsweep("report", "--last", "--format", "json").json["runs"]}
    plan = (*NAIVE[:-2], "--vary", "ORDER", "--dry-run")
    real = gemmsweep(*plan, "--device", scripted(SPEEDS))
    start = next(line for line in real.out.splitlines() if line.startswith("Start: "))
    assert "UNROLL=2" in start and "best known: run" in start
    assert start.replace(")", f", on {device})") in gemmsweep(*plan, "--arch", "sm_90a").out.splitlines()
    assert "(template defaults)" in gemmsweep(*plan, "--arch", "sm_80").out
    assert "(template defaults)" in gemmsweep(*plan, "--arch", "sm_90a", "--start", "defaults").out


def test_without_a_template_the_family_is_that_of_the_best_on_record(
    gemmsweep: Run, scripted: Callable[[str], str]
) -> None:
    shape, device = ("--shape", "96x64x48"), scripted(SPEEDS)
    ask = ("run", "--dry-run", *shape, "--device", device)
    usual = gemmsweep(*ask).out
    assert not usual.startswith("naive ")
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", device).code == 0
    for more in ((), ("--vary", "UNROLL"), ("--set", "UNROLL=4")):
        assert gemmsweep(*ask, *more).out.startswith("naive 96x64x48 fp32 nn on "), more
    assert gemmsweep("run", "--dry-run", *shape, "--arch", "sm_90a").out.startswith("naive ")
    for more in (("--vary", "BK"), ("--set", "BK=16"), ("--layout", "nt"), ("--epilogue", "relu")):
        assert not gemmsweep(*ask, *more).out.startswith("naive "), more
    assert gemmsweep("run", "--dry-run", "--shape", "96x64x64", "--device", device).out.startswith(usual.split()[0])


@pytest.mark.parametrize("arguments", [
    ("run", "--template", "nosuch"), ("run", "--vary", "QQ"), ("verify", "wgmma"), ("tune", "--shape", "8x8"),
    ("selftest", "--shape", "8x8"), ("profile", "best"),
])  # fmt: skip
def test_a_command_that_asks_for_nothing_possible_leaves_no_results_file(
    gemmsweep: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    device = () if arguments[0] == "profile" else ("--device", "cpu")
    assert gemmsweep(*arguments, *device).code != 0
    assert not (tmp_path / "results.db").exists()


@pytest.mark.parametrize("arguments", [
    ("--shape", "2147483648x2147483648x2147483648"), ("--shape", "8x8x8", "--start", "deadbeef"),
])  # fmt: skip
def test_a_request_that_is_refused_leaves_no_results_file(
    gemmsweep: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ran = gemmsweep("run", "--device", "cpu", "--vary", "BK", *arguments)
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert ("GB are on" in ran.err) or ("--start deadbeef: there is no results file" in ran.err)
    assert not (tmp_path / "results.db").exists()


def test_a_list_of_problems_reads_templates_and_results_once(
    gemmsweep: Run, scripted: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = scripted(SPEEDS)
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", device).code == 0
    (tmp_path / "list.csv").write_text("m,n,k\n" + "".join(f"{m},64,48\n" for m in (96, 97, 98, 99)))
    read: list[Path] = []
    for module, name in ((library, "load_template"), (runs, "open_for_reading")):
        original = getattr(module, name)

        def counted(path: Path, *more: object, original: Callable[..., object] = original) -> object:
            read.append(path)
            return original(path, *more)

        monkeypatch.setattr(module, name, counted)
    for more in ((), ("--template", "naive")):
        read.clear()
        assert gemmsweep("run", "--dry-run", "--shapes", "list.csv", "--device", device, *more).code == 0
        named = len(more) // 2  # is looked at for its backend
        assert max(read.count(path) for path in read) == 1 + named
        assert read.count(tmp_path / "results.db") == 1


def test_dry_run_stores_and_compiles_nothing(gemmsweep: Run, scripted: Callable[[str], str], tmp_path: Path) -> None:
    ran = gemmsweep(*NAIVE, "--vary", "BM", "--device", scripted(QUIET), "--dry-run")
    assert ran.code == 0
    assert "BM (7): 7 configs, about" in ran.text
    assert "a block holds at most 1024 threads (THREADS <= 1024 with THREADS=2048" in ran.text
    assert not (tmp_path / "results.db").exists()


@pytest.mark.parametrize("command", ["run", "tune"])
@pytest.mark.parametrize(("option", "value"), [
    ("--time-limit", "-1m"), ("--time-limit", "1h30m"), ("--config-limit", "0s"), ("--config-limit", "nan"),
])  # fmt: skip
def test_a_time_that_is_none_is_told_in_a_dry_run_as_well(
    gemmsweep: Run, command: str, option: str, value: str
) -> None:
    ran = gemmsweep(command, "--shape", "8x8x8", "--device", "cpu", "--dry-run", option, value)
    message = f"Error: {option} {value!r} is not a time, as in 90s, 8m or 1h; a bare number is seconds.\n"
    assert (ran.code, ran.out, ran.err) == (2, "", message)


def test_compile_only_needs_no_gpu(gemmsweep: Run) -> None:
    ran = gemmsweep("run", "--compile-only", "--arch", "sm_80", "--template", "naive", "--vary", "UNROLL=1,4")
    assert ran.code == 0
    assert "compiled for sm_80" in ran.text
    assert "CTAs/SM" in ran.text
    assert [line.split()[:2] for line in ran.out.splitlines() if " ok " in line] == [["1", "ok"], ["4", "ok"]]


def test_waves_are_counted_in_ctas_that_have_work(gemmsweep: Run, tmp_path: Path) -> None:
    kernel = tmp_path / "persistent.cu"
    for more, waves in (("", "waves 1.00 on 132 SMs"), ('// tiles = "ceil_div(M, 16)"\n', "waves 0.02 on 132 SMs")):
        kernel.write_text(PERSISTENT.replace("ACCOUNT\n", more))
        assert waves in gemmsweep("show", str(kernel), "--arch", "sm_90a", "--shape", "64x16x16").text


def test_an_architecture_is_the_one_that_is_compiled_for_or_refused(gemmsweep: Run) -> None:
    ran = gemmsweep("run", "--compile-only", "--arch", "sm_90", "--template", "wgmma", "--vary", "BM=128")
    assert ran.code == 0
    assert "compiled for sm_90a, 132 SMs" in ran.text
    shown = gemmsweep("show", "wgmma", "--arch", "sm_80")
    assert "not feasible: template 'wgmma' needs sm_90a, the device is sm_80" in shown.out


@pytest.mark.parametrize(
    ("template", "shape"), [("gemv", "4x4096x4096"), ("stream", "16x4096x4096"), ("mma", "4096x4096x4096")]
)
def test_the_shape_that_is_picked_is_one_that_the_kernel_takes(gemmsweep: Run, template: str, shape: str) -> None:
    ran = gemmsweep("run", "--dry-run", "--arch", "sm_90a", "--template", template)
    assert ran.code == 0
    assert ran.out.startswith(f"{template} {shape} ")


def test_the_cpu_kernel_races_numpy(gemmsweep: Run) -> None:
    ran = gemmsweep("run", "--device", "cpu", "--shape", "160x160x160", "--vary", "BK=64,128", "--race-limit", "2s")
    assert ran.code == 0
    runs = gemmsweep("report", "--last", "--format", "json").json["runs"]
    assert all(run["status"] == "ok" and run["template"] == "cpu_blocked" for run in runs)
    assert "thread" in runs[0]["references"]["numpy"]["version"]
    again = "gemmsweep run --template cpu_blocked --shape 160x160x160 --dtype fp32 --layout nn --device cpu --vary BM"
    assert f"Next axis worth varying: {again}" in " ".join(ran.err.split())


def test_the_next_axis_is_told_with_the_compiler_and_only_after_a_verified_run(gemmsweep: Run, tmp_path: Path) -> None:
    compiler = shlex.join(toolchain.find("cpu", "auto").command)
    ask = (
        "run",
        "--device",
        "cpu",
        "--shape",
        "64x64x64",
        "--vary",
        "BK=64",
        "--compiler",
        compiler,
        "--race-limit",
        "1s",
    )
    assert f" {shlex.join(('--compiler', compiler))} --vary " in " ".join(gemmsweep(*ask).err.split())
    (tmp_path / "broken.c").write_text(find_template("cpu_blocked").text + "oops")
    ran = gemmsweep(*ask, "--template", "broken.c")
    assert "Finals" not in ran.err
    assert "Next axis" not in ran.err


def test_more_time_for_a_race_is_another_request(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    argv = (*NAIVE, "--vary", "UNROLL=1,2", "--device", scripted(QUIET))
    assert gemmsweep(*argv).code == 0
    assert "On record since" in gemmsweep(*argv, "--race-limit", "30s").err  # the limit there is
    assert "On record since" not in gemmsweep(*argv, "--race-limit", "12s").err


def test_finals_go_on_until_the_ratio_to_the_vendor_is_known(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    rules = rule("UNROLL=2$", time_us=50, noise_pct=0.1) + rule("cublas$", time_us=100, noise_pct=2.5) + QUIET
    command = (*NAIVE, "--vary", "UNROLL=1,2", "--device", scripted(rules), "--reference", "cublas")
    assert gemmsweep(*command).code == 0
    axis, finals = gemmsweep("report", "--last", "--format", "json").json["sweeps"]
    assert (axis["rounds"], finals["rounds"] > 10) == (10, True)
    best = gemmsweep("export-best", "--format", "json").json["best"][0]["references"]["cublas"]
    assert best["ci95"][1] - best["ci95"][0] < 2 * 0.005 * best["ratio"] or finals["rounds"] == 80


BAD = [
    (("--vary", "BQ"), "no parameter 'BQ'. It has: BM"),
    (("--vary", "UNROLL=3"), "UNROLL takes: 1, 2, 4, 8, 16"),
    (("--vary", "UNROLL", "--dtype", "fp17"), "unknown dtype 'fp17'. Did you mean 'fp16'? Choose one of: fp32"),
    (("--vary", "UNROLL", "--dtype", "tf32"), "no dtype 'tf32'"),
    (("--vary", "UNROLL", "--layout", "tn"), "Say --layout nt"),
    (("--vary", "UNROLL", "--shape", "1x2"), "not three positive integers"),
    (("--vary", "UNROLL", "--lda", "3"), "--lda 3 is smaller than a row of 48 elements"),
    (("--vary", "UNROLL", "--lda", "9223372036854775808"), "is not in the range 1<=x<=2147483648"),
    (("--vary", "UNROLL", "--min-effect", "nan"), "'nan' is not a number"),
    (("--vary", "UNROLL", "--race-limit", "soon"), "is not a time"),
    (("--vary", "UNROLL", "--set", "BM=7"), "BM takes: 1, 2, 4"),
    (("--vary", "BM=64", "--set", "BN=64"), "no value of BM is feasible here. BM=64: a block holds at most 1024 threads"),
    (("--vary", "UNROLL", "--time-limit", "soon"), "--time-limit 'soon' is not a time"),
    (("--vary", "UNROLL", "--epilogue", "tanh"), "unknown epilogue 'tanh'"),
    (("--vary", "UNROLL", "--start", "ffffffff"), "ffffffff"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_exit_2(
    gemmsweep: Run, scripted: Callable[[str], str], arguments: tuple[str, ...], message: str
) -> None:
    ran = gemmsweep("run", "--template", "naive", "--shape", "96x64x48", *arguments, "--device", scripted(QUIET))
    assert ran.code == 2
    errors = [line for line in ran.err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert message in errors[0]


@pytest.mark.parametrize(("option", "arguments"), [
    ("--template", ("run", "--template", "")), ("--compiler", ("run", "--compiler=")),
    ("--start", ("run", "--dry-run", "--start", "", "--vary", "BK")), ("--columns", ("report", "--columns", "")),
])  # fmt: skip
def test_an_empty_value_is_not_one_left_out(gemmsweep: Run, option: str, arguments: tuple[str, ...]) -> None:
    ran = gemmsweep(*arguments)
    assert (ran.code, ran.err) == (2, f"Error: {option} has an empty value: give it one, or leave {option} out.\n")


@pytest.mark.parametrize("key", ["template", "start", "epilogue"])
def test_an_empty_value_of_an_experiment_likewise(gemmsweep: Run, tmp_path: Path, key: str) -> None:
    (tmp_path / "own.toml").write_text(f'summary = ""\nvary = "BK"\n[[part]]\n{key} = ""\n')
    ran = gemmsweep("run", "--dry-run", "--device", "cpu", "--experiment", "own.toml")
    assert (ran.code, f"experiment 'own': {key} has an empty value" in ran.err) == (2, True)


@pytest.mark.parametrize(("name", "value", "message"), [
    ("CC", '"', "has an open quotation mark"), ("GEMMSWEEP_CACHE", "~nobody.of.that.name/c", "names no home directory"),
])  # fmt: skip
def test_garbage_in_the_environment_is_one_line(
    gemmsweep: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    ran = gemmsweep("run", "--device", "cpu", "--shape", "8x8x8", "--vary", "BK=64")
    assert ran.code == 2
    assert message in ran.err
    assert gemmsweep("doctor").code in (0, 2)


@pytest.mark.parametrize(("arguments", "message"), [
    (("--template", "nothing"), "unknown template 'nothing'. Choose one of: cpu_blocked"),
    (("--device", "cuda:7"), "no device 'cuda:7' here"),
    (("--template", "simt", "--device", "cpu"), "is for cuda"),
    (("--template", "wgmma", "--device", "cpu"), "is for cuda"),  # without a shape, of which its defaults take few
    (("--template", "simt", "--compile-only", "--arch", "sm_99"), "Choose one of: sm_75"),
    (("--shap", "8x8x8"), "No such option '--shap'. (Did you mean one of: '--help', '--shape'"),
    (("--experiment", "nothing"), "unknown experiment"),
    (("--shapes", "nowhere.csv"), "cannot be read"),
])  # fmt: skip
def test_names_that_do_not_exist(gemmsweep: Run, arguments: tuple[str, ...], message: str) -> None:
    ran = gemmsweep("run", "--vary", "BK", *arguments)
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(("arguments", "message"), [
    (("run", "--vary", "BK", "--arch", "sm_90a"), "--arch sm_90a is for --dry-run and --compile-only"),
    (("tune", "--shape", "8x8x8", "--arch", "sm_90a"), "--arch sm_90a is for --dry-run"),
    (("run", "--vary", "BK", "--dry-run", "--compile-only"), "--dry-run compiles nothing, --compile-only builds"),
    (("tune", "--shape", "8x8x8", "--vary", "BK"), "tune varies every parameter by itself"),
    (("tune", "--shape", "8x8x8", "--set", "BK=8"), "gemmsweep run --vary"),
])  # fmt: skip
def test_options_that_the_command_would_not_heed_are_refused(
    gemmsweep: Run, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    ran = gemmsweep(*arguments, "--device", "cpu")
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert message in ran.err
    assert not (tmp_path / "results.db").exists()


@pytest.mark.parametrize(("arguments", "meant"), [
    (("--template", "wgma"), "wgmma"), (("--template", "naive", "--vary", "unrol"), "UNROLL"),
    (("--experiment", "unrolls"), "unroll"), (("--epilogue", "bias+rleu"), "relu"), (("--dtype", "fp61"), "fp16"),
    (("--vary", "bk"), "BK"), (("--vary", "BKK"), "BK"), (("--vary", "BK", "--vary", "pda"), "PAD"),
])  # fmt: skip
def test_a_slip_of_the_keys_is_answered_with_what_was_meant(
    gemmsweep: Run, arguments: tuple[str, ...], meant: str
) -> None:
    ran = gemmsweep("run", "--dry-run", "--arch", "sm_90a", *arguments)
    assert ran.code == 2
    assert f"Did you mean '{meant}'?" in ran.err


@pytest.mark.parametrize("command", ["run", "tune", "verify"])
def test_help_names_every_epilogue(gemmsweep: Run, command: str) -> None:
    from gemmsweep.epilogue import OPERATIONS

    shown = gemmsweep(command, "--help").text
    assert all(re.search(rf"\b{name}\b", shown) for name in OPERATIONS)


@pytest.mark.parametrize("fault", [
    {"launch": "crash"}, {"load": "refuse"}, {"result": "wrong"}, {"burst": "illegal", "after": 7}, {"burst": "crash", "after": 0},
])  # fmt: skip
def test_a_start_value_that_fails_is_a_row_like_any_other(
    gemmsweep: Run, scripted: Callable[[str], str], fault: dict[str, object]
) -> None:
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL=1,2,4", "--device", scripted(rule("UNROLL=4$", **fault) + SPEEDS))
    assert ran.code == 0
    report = gemmsweep("report", "--last", "--format", "json")
    found = statuses(report)
    assert found.pop(4) in ("runtime", "launch", "incorrect")
    assert found == {1: "ok", 2: "ok"}


def test_when_the_leader_fails_those_that_left_are_let_back_in(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    script = (
        rule("UNROLL=2$", time_us=50, noise_pct=0.1, burst="illegal", after=8) + rule("UNROLL=8", time_us=190) + SPEEDS
    )
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=1,2,4,8", "--device", scripted(script)).code == 0
    report = gemmsweep("report", "--last", "--format", "json")
    assert statuses(report) == {1: "ok", 2: "runtime", 4: "ok", 8: "ok"}
    rounds = {
        run["config"]["UNROLL"]: run["rounds"] for run in report.json["runs"] if not run["finals"] and run["rounds"]
    }
    assert rounds[4] > 5  # it had left after five
    assert report.json["sweeps"][0]["verdict"] == "winner"


@pytest.mark.parametrize("fault", [
    {"burst": "illegal", "after": 5}, {"burst": "refuse", "after": 5}, {"load": "crash"}, {"launch": "refuse"}, {"result": "wrong"},
])  # fmt: skip
def test_a_reference_that_fails_ends_the_sweep_with_a_sentence(
    gemmsweep: Run, scripted: Callable[[str], str], fault: dict[str, object]
) -> None:
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", scripted(rule("cublas", **fault) + SPEEDS))
    assert ran.code == 2
    assert "the reference cublas" in ran.err.splitlines()[-1]


@pytest.mark.parametrize("result", ["outside", "wrong", "unstable", "skip"])
def test_beta_does_not_weaken_the_checks(gemmsweep: Run, scripted: Callable[[str], str], result: str) -> None:
    device = scripted(rule("UNROLL=1$", time_us=10, result=result) + SPEEDS)
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=1,2", "--beta", "0.5", "--device", device).code == 0
    assert statuses(gemmsweep("report", "--last", "--format", "json"))[1] in ("incorrect", "unstable")
    for beta in ("nan", "inf", "1e300", "2"):
        assert "--beta" in gemmsweep(*NAIVE, "--vary", "UNROLL", "--beta", beta, "--device", device).err


def test_a_time_of_zero_is_no_time(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    device = scripted(rule("UNROLL=1$", time_us=0) + SPEEDS)
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=1,2", "--device", device).code == 0
    assert statuses(gemmsweep("report", "--last", "--format", "json")) == {1: "runtime", 2: "ok"}


def test_a_resumed_race_remembers_who_left(
    gemmsweep: Run, scripted: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmsweep.store import Store

    device = scripted(rule("UNROLL=16", time_us=300, noise_pct=0.1) + SPEEDS)
    arguments = (*NAIVE, "--vary", "UNROLL=2,4,16", "--device", device)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "save_counters", interrupted)
        assert gemmsweep(*arguments).code == 130
    resumed = gemmsweep(*arguments)
    assert resumed.code == 0
    assert "Resuming: of UNROLL 10 rounds stored, goes on from round 11." in resumed.err
    runs = gemmsweep("report", "--last", "--format", "json").json["runs"]
    slow = next(run for run in runs if run["config"]["UNROLL"] == 16 and not run["finals"])
    assert slow["rounds"] == 5
    assert len({run["sweep_id"] for run in runs}) == 2


@pytest.mark.parametrize(("now", "us"), [(["1 thread", "2 threads"], 100), (["1 thread"], 400)])
def test_a_resumed_race_is_of_one_version_of_the_library(
    gemmsweep: Run, scripted: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, now: list[str], us: int
) -> None:
    """The version it began with goes on where it can be had; else what was raced against it is raced anew."""
    from gemmsweep.store import Store

    speeds = rule("UNROLL=2$", time_us=90, noise_pct=0.1) + rule("UNROLL|naive", time_us=110, noise_pct=0.1)
    asked = (*NAIVE, "--vary", "UNROLL=2,4", "--device")
    began = scripted(speeds + rule("cublas", time_us=100, versions=["2 threads", "1 thread"]))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "save_counters", interrupted)
        assert gemmsweep(*asked, began).code == 130
    ran = gemmsweep(*asked, scripted(speeds + rule("cublas", time_us=us, versions=now)))
    assert ran.code == 0
    assert ("cublas was 2 threads before the interruption and is 1 thread: raced anew." in ran.err) == (us == 400)
    for run in gemmsweep("report", "--last", "--format", "json").json["runs"]:
        reference = run["references"]["cublas"]
        assert reference["version"] == ("2 threads" if us == 100 else "1 thread")
        assert reference["ratio"] == pytest.approx(us / run["median_us"], rel=0.01)


def test_an_infeasible_later_axis_is_rows_and_the_finals_still_come(
    gemmsweep: Run, scripted: Callable[[str], str]
) -> None:
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--vary", "BM=64", "--set", "BN=32", "--device", scripted(SPEEDS))
    assert ran.code == 0
    report = gemmsweep("report", "--last", "--format", "json").json
    assert [sweep["varied"] for sweep in report["sweeps"]] == ["UNROLL", "BM", None]
    assert [run["status"] for run in report["runs"] if run["varied"] == "BM"] == ["constraint"]


def test_a_plan_says_what_memory_is_too_small_for(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    plan = (*NAIVE[:3], "--shape", "90000x90000x90000", "--vary", "UNROLL=2,4", "--dry-run")
    here = gemmsweep(*plan, "--device", scripted(SPEEDS))
    assert here.code == 2
    assert "GB with its checks, 17.2 GB are on the device: take a smaller shape" in " ".join(here.err.split())
    typical = gemmsweep(*plan, "--arch", "sm_90a")  # yours may have more
    assert typical.code == 0
    assert "needs 1,393.2 GB with its checks, 80.0 GB are on a typical sm_90a card" in typical.out
    assert "needs" not in gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--dry-run", "--arch", "sm_90a").out


def test_a_kernel_without_parameters_is_planned_without_a_start(gemmsweep: Run, tmp_path: Path) -> None:
    own = tmp_path / "own.cu"
    arguments = "const float *A, const float *B, float *C, int M, int N, int K"
    own.write_text(f"__global__ void k({arguments}) {{ C[0] = 0; }}")
    assert gemmsweep("init", str(own)).code == 0
    where = ("--template", str(own), "--shape", "64x64x64", "--arch", "sm_90a", "--dry-run")
    plan = gemmsweep("run", *where)
    assert (plan.code, "Start:" in plan.out) == (0, False), plan.text
    assert "  own: nothing to vary" in gemmsweep("tune", *where).out


def test_one_bad_shape_does_not_take_the_others_along(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    shapes = ("--shape", "90000x90000x90000", "--shape", "32x32x32")
    ran = gemmsweep(*NAIVE[:3], *shapes, "--vary", "UNROLL=2,4", "--device", scripted(SPEEDS))
    assert ran.code == 1
    assert "GB are on the device: take a smaller shape" in " ".join(ran.err.split())
    assert "1 of 2 problems could not be run" in ran.err
    alone = gemmsweep(*NAIVE[:3], *shapes[:2], "--vary", "UNROLL=2,4", "--device", scripted(SPEEDS))
    assert alone.code == 2
    assert {run["problem"]["m"] for run in gemmsweep("report", "--format", "json").json["runs"]} == {32}


def test_a_shape_that_a_kernel_does_not_take_is_told_and_the_others_are_planned(gemmsweep: Run) -> None:
    skinny = ("run", "--dry-run", "--arch", "sm_90a", "--template", "skinny", "--vary", "K_WARPS", "--dtype", "bf16")
    ran = gemmsweep(*skinny, "--shape", "129x4096x4096", "--shape", "16x4096x4096")
    assert ran.code == 1
    assert ran.out.startswith("skinny 16x4096x4096 bf16")
    told, end = ran.err.splitlines()
    assert told.startswith("Error: skinny 129x4096x4096 bf16 nt: no value of K_WARPS is feasible here")
    assert end.startswith("1 of 2 problems could not be run")
    ran = gemmsweep(*skinny, "--shape", "129x4096x4096", "--shape", "130x4096x4096")
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 3)
    built = gemmsweep(*("--compile-only" if word == "--dry-run" else word for word in skinny),
                      "--shape", "129x4096x4096", "--shape", "130x4096x4096")  # fmt: skip
    assert (built.code, built.out, len(built.err.splitlines())) == (2, "", 3)


def test_lines_of_a_list_that_no_kernel_here_takes_leave_the_others_to_be_run(gemmsweep: Run, tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("m,n,k,dtype\n32,32,32,fp32\n32,32,32,bf16\n")
    arguments = ("run", "--device", "cpu", "--vary", "BK=64,128", "--shapes", "two.csv", "--race-limit", "1s")
    ran = gemmsweep(*arguments)
    assert ran.code == 1
    assert "Error: 32x32x32 bf16: no template for" in " ".join(ran.err.split())
    assert {run["problem"]["dtype"] for run in gemmsweep("report", "--format", "json").json["runs"]} == {"fp32"}
    (tmp_path / "two.csv").write_text("m,n,k,dtype\n32,32,32,fp16\n32,32,32,bf16\n")
    ran = gemmsweep(*arguments)
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert "32x32x32 fp16: no template" in ran.err
    assert "32x32x32 bf16: no template" in ran.err


def test_a_results_file_that_disappears_is_noticed(
    gemmsweep: Run, scripted: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmsweep.worker import Worker

    before = Worker.warm_up, Worker.foreign

    def deleted(self: Worker) -> str:
        (tmp_path / "results.db").unlink(missing_ok=True)
        return before[1](self)

    monkeypatch.setattr(Worker, "foreign", deleted)
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", scripted(SPEEDS))
    assert ran.code == 2
    assert "was moved, deleted or replaced" in ran.err


def test_nothing_but_the_name_shows_the_help(gemmsweep: Run) -> None:
    bare = gemmsweep()
    assert bare.code == 2
    assert "Error" not in bare.text
    assert any(line.strip().startswith("export-best") for line in bare.err.splitlines())


def test_a_finished_race_beside_others_is_raced_again_where_an_idle_device_is_asked_for(
    gemmsweep: Run, scripted: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmsweep.worker import Worker

    looks = ["", "python 41% of the SMs"]
    monkeypatch.setattr(Worker, "foreign", lambda self: looks.pop(0) if looks else "")
    command = (*NAIVE, "--vary", "UNROLL=2,4", "--device", scripted(SPEEDS))
    assert gemmsweep(*command).code == 0
    assert "On record" in gemmsweep(*command).err
    assert "On record" not in gemmsweep(*command, "--require-idle").err
    assert not gemmsweep("report", "--last", "--format", "json").json["sweeps"][-1]["contended"]
    assert "for GPUs" in gemmsweep("run", "--vary", "BK", "--device", "cpu", "--require-idle").err


@pytest.mark.parametrize("looks", [("python 41% of the SMs",), ("", "python 41% of the SMs")])
def test_an_idle_device_can_be_asked_for(
    gemmsweep: Run, scripted: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, looks: tuple[str, ...]
) -> None:
    from gemmsweep.worker import Worker

    seen = list(looks)
    monkeypatch.setattr(Worker, "foreign", lambda self: seen.pop(0) if seen else "")
    device = scripted(SPEEDS)
    refused = gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--require-idle", "--device", device)
    assert (refused.code, refused.err.splitlines()[-1].count("--require-idle")) == (1, 1)
    assert gemmsweep("export-best", "--format", "json").code == 1
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--require-idle", "--device", device).code == 0
    *_, axis, finals = gemmsweep("report", "--last", "--format", "json").json["sweeps"]
    assert (axis["kind"], finals["kind"]) == ("axis", "finals")
    assert not axis["contended"] and not finals["contended"]


@pytest.mark.parametrize(
    "arguments", [("--vary", "UNROLL", "--vary", "UNROLL"), ("--vary", "UNROLL", "--set", "UNROLL=2")]
)
def test_a_parameter_is_varied_once_and_not_held_as_well(
    gemmsweep: Run, scripted: Callable[[str], str], arguments: tuple[str, ...]
) -> None:
    assert gemmsweep(*NAIVE, *arguments, "--device", scripted(QUIET)).code == 2


def test_a_coupled_value_that_is_not_declared_is_a_constraint(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    device = scripted(SPEEDS)
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=2,8", "--set", "BM=UNROLL*4", "--device", device).code == 0
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=2,1", "--set", "BM=UNROLL*3+2", "--device", device).code == 0
    runs = gemmsweep("report", "--last", "--format", "json").json["runs"]
    assert {run["config"]["UNROLL"]: run["status"] for run in runs if not run["finals"]} == {2: "ok", 1: "constraint"}


def test_the_same_sweep_twice_at_once_is_refused(
    gemmsweep: Run, scripted: Callable[[str], str], tmp_path: Path
) -> None:
    from gemmsweep.locks import hold

    with hold("x", "the sweep"), pytest.raises(Exception, match="under way already"), hold("x", "the sweep"):
        pass
    with hold("x", "the sweep"):
        pass


def test_a_stored_run_shows_its_ptx(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", scripted(SPEEDS))
    run = gemmsweep("report", "--last", "--format", "json").json["runs"][0]["run_id"]
    assert ".visible .entry gemm(" in gemmsweep("show", "run", run, "--ptx").out.splitlines()


def test_finals_are_announced_by_the_names_that_their_table_has(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    ran = gemmsweep(*NAIVE, "--set", "ORDER=strided", "--vary", "UNROLL=2,4", "--device", scripted(SPEEDS))
    announced = next(line for line in ran.err.splitlines() if line.startswith("Finals: "))
    assert announced == "Finals: naive UNROLL=2, naive UNROLL=4"
    table = ran.text.split("naive UNROLL=2", 1)
    assert len(table) == 2 and "naive UNROLL=4" in table[1]


def test_a_plan_tells_what_of_a_range_is_not_declared(gemmsweep: Run) -> None:
    ran = gemmsweep("run", "--template", "cpu_blocked", "--device", "cpu", "--vary", "BK=64:512:96", "--dry-run")
    assert "BK: the template does not declare 160, 352, 448; left out." in ran.text


def test_what_the_axes_came_to_is_in_the_finals(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    # The library is slower while the last axis is raced: what came before looks faster beside it than it is.
    lucky = rule("UNROLL=(8|16)$", time_us=100, noise_pct=0.1) + rule("UNROLL|naive|ORDER", time_us=110, noise_pct=0.1)
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=4,8,16", "--device", scripted(lucky + QUIET)).code == 0
    slow = rule("UNROLL|naive|ORDER", time_us=130, noise_pct=0.1) + QUIET
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=2", "--device", scripted(slow)).code == 0
    runs = gemmsweep("report", "--last", "--format", "json").json["runs"]
    assert 2 in {run["config"]["UNROLL"] for run in runs if run["finals"]}
