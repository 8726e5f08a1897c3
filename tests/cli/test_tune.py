"""`gemmsweep tune` as a user sees it: several families on a scripted GPU (kernels are really compiled), one on the CPU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from screen import Run

from gemmsweep.cli.tuning import Tuning
from gemmsweep.errors import DatabaseError, EnvironmentProblem, UnderWay
from gemmsweep.session import Request
from gemmsweep.store import Store, open_store
from gemmsweep.template.library import find_template
from gemmsweep.tune import Answer

pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")

KERNEL = """// /// gemmsweep
// summary = "A pretend kernel: the scripted device computes its results."
// backend = "cuda"
// arch = "sm_75+"
// dtypes = ["fp32"]
// layouts = ["nn"]
// [parameters]
// {X} = {{ default = {default}, values = [1, 2, 3], meaning = "first axis" }}
// {Y} = {{ default = 1, values = [1, 2], meaning = "second axis" }}
// [[constraints]]
// expr = "{X} <= {most}"
// why = "the first axis ends there"
// [launch]
// args = ["C"]
// grid = ["1", "1", "1"]
// block = "32"
// ///
$STATIC_ASSERTS
extern "C" __global__ void gemm(float* C) {{ C[0] = ${X} + ${Y}; }}
"""
SHAPES = "m,n,k\n16,24,32\n48,24,32\n"


def rule(match: str, time_us: float, **keys: object) -> str:
    more = "".join(f"{key} = {value!r}\n".replace("'", '"') for key, value in keys.items())
    return f'[[rule]]\nmatch = "{match}"\ntime_us = {time_us}\nnoise_pct = 0.05\n{more}'


# Red gains by its second and then again by its first axis; blue stands still; gray is hopeless; black fails.
SPEEDS = (
    rule("RED_Y=2$", 70) + rule("RED_X=2$", 80) + rule("RED|^red$", 90) + rule("BLUE|^blue", 95) + rule("GRAY|^gray", 900)
    + rule("BLACK|^black", 10, launch="illegal") + rule("cublas", 85)
)  # fmt: skip


@pytest.fixture
def families(tmp_path: Path) -> Callable[..., list[str]]:
    """`--template` options for pretend families of these names."""

    def make(*names: str, default: int = 1, most: int = 3) -> list[str]:
        options = []
        for name in names:
            path = tmp_path / f"{name}.cu"
            text = KERNEL.format(X=f"{name.upper()}_X", Y=f"{name.upper()}_Y", default=default, most=most)
            path.write_text(text)
            options += ["--template", str(path)]
        (tmp_path / "shapes.csv").write_text(SHAPES)
        return [*options, "--shapes", str(tmp_path / "shapes.csv"), "--regime", "equal-clock"]

    return make


def test_every_problem_gets_the_best_config_of_the_best_family(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]]
) -> None:
    given = families("red", "blue", "gray", "black")
    ran = gemmsweep("tune", *given, "--device", scripted(SPEEDS), "--time-limit", "5m", "--format", "json")
    assert ran.code == 0
    assert ran.json["schema"] == "gemmsweep/tune/1"
    assert [(a["problem"]["m"], a["winner"], a["cut"]) for a in ran.json["answers"]] == [
        (16, "red", None),
        (48, "red", None),
    ]
    # The second problem starts from the best of the nearest shape, which is the first.
    for answer, moves in zip(ran.json["answers"], (["RED_X=2", "RED_Y=2"], []), strict=True):
        found = {f["template"]: f for f in answer["families"]}
        assert (found["red"]["state"], found["red"]["moves"]) == ("settled", moves)
        assert found["blue"]["moves"] == []
        assert (found["gray"]["state"], found["gray"]["races"]) == ("out", 0)
        assert "times slower" in found["gray"]["note"]
        assert (found["black"]["state"], found["black"]["races"]) == ("out", 0)
        assert "illegal memory access" in found["black"]["note"]
    best = gemmsweep("export-best", "--format", "json").json["best"]
    assert [b["run_id"] for b in best] == [a["best"]["run_id"] for a in ran.json["answers"]]
    assert all(b["finals"] and b["config"] == {"RED_X": 2, "RED_Y": 2} for b in best)
    assert all(b["references"]["cublas"]["ratio"] == pytest.approx(85 / 70, rel=0.01) for b in best)
    last = gemmsweep("report", "--last", "--format", "json").json["runs"]
    assert {run["problem"]["m"] for run in last} == {16, 48}


def test_only_one_parameter_moves_at_a_time_until_a_pass_moves_nothing(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]]
) -> None:
    assert gemmsweep("tune", *families("red"), "--device", scripted(SPEEDS)).code == 0
    runs = gemmsweep("report", "--shape", "16x24x32", "--format", "json").json
    axes = [sweep for sweep in runs["sweeps"] if sweep["varied"]]
    assert [sweep["varied"] for sweep in axes] == ["RED_X", "RED_Y", "RED_X"], (
        "the last move is followed by a still pass"
    )
    for sweep in axes:
        configs = [run["config"] for run in runs["runs"] if run["sweep_id"] == sweep["sweep_id"]]
        assert all(c[name] == sweep["start"][name] for c in configs for name in c if name != sweep["varied"])


def test_without_a_gpu_what_the_cpu_cannot_run_is_planned_for_one(
    gemmsweep: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemmsweep.device.resolve.detect", list)
    ask = ("tune", "--shape", "16x512x512", "--dtype", "bf16", "--dry-run")
    for more in ((), ("--template", "skinny")):
        ran = gemmsweep(*ask, *more)
        assert (ran.code, len(ran.err.splitlines())) == (0, 1)
        assert "planned for a GPU, --arch sm_90a." in ran.err
        assert "on a typical sm_90a card" in ran.out and "  skinny: " in ran.out
    ran = gemmsweep(*ask, "--device", "cpu")
    assert (ran.code, ran.err) == (1, "")
    assert "no family can run it. For a GPU: --arch sm_90a." in ran.out


def test_finals_race_what_is_exported_though_its_family_fell_behind(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]]
) -> None:
    given = families("red", "blue")
    assert gemmsweep("tune", *given, "--device", scripted(SPEEDS)).code == 0
    slow = rule("RED|^red", 900) + SPEEDS  # hopeless in the screening, and out
    assert gemmsweep("tune", *given, "--remeasure", "--device", scripted(slow)).code == 0
    runs = gemmsweep("report", "--last", "--format", "json").json["runs"]
    finals = [run for run in runs if run["finals"]]
    assert {run["problem"]["m"] for run in finals if run["config"] == {"RED_X": 2, "RED_Y": 2}} == {16, 48}


def test_an_answer_that_export_best_does_not_name_says_so(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]]
) -> None:
    given = families("red", "blue")
    assert gemmsweep("tune", *given, "--device", scripted(SPEEDS)).code == 0
    named = {b["problem"]["m"]: b["run_id"] for b in gemmsweep("export-best", "--format", "json").json["best"]}
    noisy = '[[rule]]\nmatch = "RED|BLUE|^red|^blue"\ntime_us = 500\nnoise_pct = 15\n' + SPEEDS
    ran = gemmsweep("tune", *given, "--remeasure", "--device", scripted(noisy), "--format", "json")
    answers = {a["problem"]["m"]: a for a in ran.json["answers"]}
    still = {b["problem"]["m"]: b["run_id"] for b in gemmsweep("export-best", "--format", "json").json["best"]}
    for m, answer in answers.items():
        if still[m] == named[m]:
            assert f"export-best still names run {named[m][-8:]}" in answer["note"]
        else:
            assert answer["note"] is None
    assert any(still[m] == named[m] for m in named), "what was 5 times faster is not forgotten"


NAIVE = ("tune", "--template", "naive", "--shape", "16x24x32", "--shape", "48x24x32", "--regime", "equal-clock")


def test_the_same_command_again_names_the_same_winner_whichever_family_has_it(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]]
) -> None:
    device = scripted(rule("naive|UNROLL|BM|BN|ORDER", 60) + SPEEDS)
    assert gemmsweep(*NAIVE, "--device", device).code == 0
    ask = ("tune", *families("blue"), "--device", device, "--format", "json")
    first, again = gemmsweep(*ask), gemmsweep(*ask)
    assert (first.code, again.code) == (0, 0)
    assert {a["best"]["template"] for a in first.json["answers"]} == {"naive"}, (
        "export-best names it: it is in the finals"
    )
    shown = [[(a["best"]["run_id"], a["changes"]) for a in ran.json["answers"]] for ran in (first, again)]
    assert shown[0] == shown[1]


def test_no_finals_are_held_where_nothing_asked_for_has_raced(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]]
) -> None:
    device = scripted(rule("naive|UNROLL|BM|BN|ORDER", 60) + SPEEDS)
    assert gemmsweep(*NAIVE, "--device", device).code == 0
    for names in (("black",), ("black", "black2")):
        ran = gemmsweep("tune", *families(*names), "--device", device)
        assert ran.code == 1 and ran.err.count("every family failed: black: ") == 2 and "Finals" not in ran.err
        runs = gemmsweep("report", "--last", "--format", "json").json["runs"]
        assert {run["template"] for run in runs} == set(names)


def test_what_another_process_is_at_is_answered_when_it_is_done(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]], tmp_path: Path
) -> None:
    ask = ("tune", *families("red"), "--device", scripted(SPEEDS), "--time-limit", "60")
    book, env = tmp_path / "results.db", dict(os.environ)
    with subprocess.Popen(
        [sys.executable, "-m", "gemmsweep", *ask], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    ) as other:
        end = time.monotonic() + 60
        while time.monotonic() < end and axes_on_record(book) < 1:
            time.sleep(0.05)
        ran = gemmsweep(*ask, "--format", "json")
        assert other.wait(60) == 0
    assert ran.code == 0 and all(answer["best"] is not None for answer in ran.json["answers"])
    with open_store(book, readonly=True) as store:
        assert len({sweep.start.session_id for sweep in store.stored_sweeps()}) == 2, "one session per problem"


def test_what_another_process_is_at_until_the_time_is_over_is_told(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object) -> None:
        raise UnderWay("the same sweep into this results file is under way already, in process 7.")

    monkeypatch.setattr("gemmsweep.cli.run.locked", locked)
    ran = gemmsweep("tune", *families("red"), "--device", scripted(SPEEDS), "--time-limit", "4", "--format", "json")
    assert ran.code == 1
    assert all("under way already, in process 7" in answer["note"] for answer in ran.json["answers"])


def test_a_damaged_results_file_is_no_reason_against_a_kernel(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise DatabaseError("results.db is damaged: restore it.")

    monkeypatch.setattr(Store, "starts", broken)
    ran = gemmsweep("tune", *families("red"), "--device", scripted(SPEEDS), "--time-limit", "4")
    assert (ran.code, ran.err.splitlines()[-1]) == (2, "Error: results.db is damaged: restore it.")


def test_a_device_that_fails_on_a_second_visit_leaves_what_the_first_found(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    search, seen = Tuning._search, Counter[str]()

    def failing(self: Tuning, request: Request, *rest: Any) -> Answer:
        seen[request.key] += 1
        if seen[request.key] > 1:
            raise EnvironmentProblem("the device is gone")
        return replace(search(self, request, *rest), complete=False)

    monkeypatch.setattr(Tuning, "_search", failing)
    monkeypatch.setattr(Store, "finish_session", lambda *_: None)
    ran = gemmsweep("tune", *families("red"), "--device", scripted(SPEEDS), "--time-limit", "60", "--format", "json")
    assert (ran.code, "the device is gone" in ran.err, max(seen.values())) == (0, True, 2)
    assert all(answer["best"] is not None for answer in ran.json["answers"])


def test_what_won_is_named_as_its_finals_were_announced(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]]
) -> None:
    ran = gemmsweep("tune", *families("red"), "--device", scripted(SPEEDS))
    announced = re.findall(r"Finals: (.*)", ran.err)
    answers = re.findall(r"  (\S.*) \(changed from its defaults: RED_X=2 RED_Y=2\): ", ran.err)
    assert len(announced) == len(answers) == 2
    assert all(answer in names.split(", ") for answer, names in zip(answers, announced, strict=True))


def test_where_we_lose_the_winner_is_the_vendor(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]]
) -> None:
    given = families("blue")
    ran = gemmsweep("tune", *given, "--device", scripted(SPEEDS))
    assert ran.code == 0
    assert "16x24x32 fp32 nn  vendor" in ran.out
    assert "cuBLAS (slower, ±" in ran.out
    assert "N=24 K=32: vendor throughout" in ran.out
    sweeps = len(gemmsweep("report", "--format", "json").json["sweeps"])
    again = gemmsweep("tune", *given, "--device", scripted(SPEEDS), "--format", "md")
    assert "| vendor |" in again.out
    assert "finished before; on record since" in again.out
    assert len(gemmsweep("report", "--format", "json").json["sweeps"]) == sweeps, "asked again, nothing is raced"
    table = gemmsweep("tune", *given, "--device", scripted(SPEEDS), "--format", "csv").out.splitlines()
    assert [line.split(",")[6:8] for line in table] == [["winner", "family"], ["vendor", "blue"], ["vendor", "blue"]]


def test_a_start_that_breaks_a_rule_gives_way_to_the_nearest_that_does_not(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]]
) -> None:
    ran = gemmsweep("tune", *families("blue", default=3, most=2), "--device", scripted(SPEEDS), "--format", "json")
    assert [a["best"]["config"]["BLUE_X"] <= 2 for a in ran.json["answers"]] == [True, True]
    given = families("blue", default=3, most=0)
    nothing = gemmsweep("tune", *given, "--device", scripted(SPEEDS), "--db", "other.db")
    assert nothing.code == 1
    assert "the first axis ends there" in nothing.text


def test_it_ends_on_time_with_every_problem_answered_and_goes_on_later(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]], tmp_path: Path
) -> None:
    given = families("red", "blue")
    (tmp_path / "shapes.csv").write_text("m,n,k\n" + "".join(f"{m},24,32\n" for m in range(1, 6)))
    began = time.monotonic()
    ran = gemmsweep("tune", *given, "--device", scripted(SPEEDS), "--time-limit", "11s", "--format", "json")
    assert time.monotonic() - began < 22
    assert ran.code == 0
    assert all(a["best"] is not None for a in ran.json["answers"])
    assert "no time to search: each family's start was raced" in {a["cut"] for a in ran.json["answers"]}
    later = gemmsweep("tune", *given, "--device", scripted(SPEEDS), "--time-limit", "10m", "--format", "json")
    assert [(a["best"]["config"]["RED_Y"], a["cut"]) for a in later.json["answers"]] == [(2, None)] * 5
    best = gemmsweep("export-best", "--format", "json").json["best"]
    assert all(b["config"] == {"RED_X": 2, "RED_Y": 2} for b in best)


def test_time_that_is_left_goes_to_the_problems_it_was_cut_for(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]], tmp_path: Path
) -> None:
    given = families("red", "blue")
    (tmp_path / "shapes.csv").write_text("m,n,k\n" + "".join(f"{m},24,32\n" for m in range(1, 6)))
    ran = gemmsweep("tune", *given, "--device", scripted(SPEEDS), "--time-limit", "40s", "--format", "json")
    assert {a["cut"] for a in ran.json["answers"]} == {None}, "8 s each are too short to search, yet all 40 are enough"
    assert all(a["best"]["config"] == {"RED_X": 2, "RED_Y": 2} for a in ran.json["answers"])


def test_a_config_that_hangs_does_not_cost_the_others_their_time(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]]
) -> None:
    script = rule("^blue$", 95, launch="hang") + SPEEDS
    began = time.monotonic()
    ran = gemmsweep(
        "tune", *families("red", "blue"), "--device", scripted(script), "--config-limit", "2s", "--format", "json"
    )
    assert time.monotonic() - began < 40
    assert [a["winner"] for a in ran.json["answers"]] == ["red", "red"]


@pytest.mark.parametrize("names", [("red", "blue"), ("red",)])
def test_killed_it_resumes_and_races_nothing_twice(
    scripted: Callable[[str], str], families: Callable[..., list[str]], tmp_path: Path, names: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "gemmsweep", "tune", *families(*names), "--device", scripted(SPEEDS)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    book = tmp_path / "results.db"
    end = time.monotonic() + 60
    while time.monotonic() < end and axes_on_record(book) < 2:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert axes_on_record(book) >= 2
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    with open_store(book, readonly=True) as store:
        sweeps = list(store.stored_sweeps())
    assert len({sweep.start.session_id for sweep in sweeps}) == 2, "one session per problem"
    assert all(sweep.outcome is not None for sweep in sweeps)
    asked = Counter(
        (s.start.problem, s.start.kind, s.start.template, s.start.varied, repr(sorted(s.start.start.items())))
        for s in sweeps
    )
    assert set(asked.values()) == {1}


def axes_on_record(book: Path) -> int:
    """Finished axes so far."""
    if not book.exists():
        return 0
    with open_store(book, readonly=True) as store:
        return sum(s.start.kind == "axis" and s.outcome is not None for s in store.stored_sweeps())


def test_a_problem_that_cannot_be_run_does_not_stop_the_next(gemmsweep: Run) -> None:
    shapes = ("--shape", "400000x400000x400000", "--shape", "48x32x24")
    ran = gemmsweep("tune", *shapes, "--device", "cpu", "--time-limit", "9s", "--format", "json")
    assert ran.code == 1
    large, small = ran.json["answers"]
    assert "GB" in large["note"]
    assert small["winner"] in ("cpu_blocked", "vendor")


def test_on_the_cpu_it_tunes_for_real(gemmsweep: Run) -> None:
    ran = gemmsweep("tune", "--shape", "96x64x48", "--device", "cpu", "--time-limit", "10s", "--format", "json")
    assert ran.code == 0
    (answer,) = ran.json["answers"]
    assert answer["best"]["template"] == "cpu_blocked"
    assert answer["best"]["finals"]
    (family,) = answer["families"]
    assert family["axes"] == 7


def test_the_plan_says_what_can_run_and_measures_nothing(gemmsweep: Run, tmp_path: Path) -> None:
    ran = gemmsweep(
        "tune", "--shape", "8x4096x4096", "--dtype", "tf32", "--arch", "sm_90a", "--dry-run", "--time-limit", "60s"
    )
    assert ran.code == 0
    assert re.search(r"1 min 00 s, time for about \d\d configs\n", ran.out)
    assert re.search(r"  mma: \d+ axes, \d+ configs a pass, from the best on record or defaults\n", ran.out)
    assert "simt: not here: template 'simt' has no dtype 'tf32'" in ran.out
    assert "wgmma: not here: wgmma reads B across its rows only for 2-byte elements" in ran.text
    assert not (tmp_path / "results.db").exists()


def test_a_problem_without_a_family_takes_no_time_from_the_others(gemmsweep: Run, tmp_path: Path) -> None:
    (tmp_path / "shapes.csv").write_text("M,N,K,dtype\n96,64,48,fp32\n96,64,48,bf16\n")
    plan = gemmsweep(
        "tune", "--shapes", str(tmp_path / "shapes.csv"), "--device", "cpu", "--time-limit", "14s", "--dry-run"
    )
    assert re.search(r"96x64x48 fp32 nn on .*: 14 s, time for", plan.out)


def test_what_no_family_can_run_is_announced_without_a_time(gemmsweep: Run, tmp_path: Path) -> None:
    (tmp_path / "shapes.csv").write_text("M,N,K,dtype\n96,64,48,fp32\n96,64,48,bf16\n")
    asked = ("tune", "--shapes", str(tmp_path / "shapes.csv"), "--device", "cpu", "--time-limit", "8s")
    ran = gemmsweep(*asked)
    said = " ".join(ran.err.split())
    assert ran.code == 1
    assert "2 problems, about 8 s each but for 1 that no family can run; families: " in said
    assert "96x64x48 bf16 nn (no family can run it)" in said
    assert re.search(r"96x64x48 fp32 nn \(\d+ s\)", said)


def test_nothing_is_announced_where_no_family_can_run_anything(gemmsweep: Run) -> None:
    ran = gemmsweep("tune", "--shape", "16x16x16", "--dtype", "bf16", "--device", "cpu", "--time-limit", "8s")
    assert "1 problem, no family can run it; families: " in " ".join(ran.err.split())


def test_a_plan_without_a_family_promises_nothing(gemmsweep: Run) -> None:
    ran = gemmsweep("tune", "--shape", "16x16x16", "--dtype", "bf16", "--device", "cpu", "--dry-run")
    assert "no family can run it. For a GPU: --arch sm_90a.\n" in ran.out
    assert "configs" not in ran.out


@pytest.mark.parametrize(("arguments", "error"), [
    ((), "tune needs problems"),
    (("--shape", "8x8x8", "--format", "html"), "unknown format 'html'"),
    (("--shape", "8x8x8", "--time-limit", "soon"), "is not a time"),
    (("--shape", "8x8x8", "--template", "nosuch"), "unknown template 'nosuch'"),
])  # fmt: skip
def test_bad_usage_is_told_before_anything_is_measured(gemmsweep: Run, arguments: tuple[str, ...], error: str) -> None:
    ran = gemmsweep("tune", *arguments, "--device", "cpu")
    assert ran.code == 2
    assert error in ran.err


def test_a_family_of_another_accuracy_class_is_refused_with_the_reason(
    gemmsweep: Run, scripted: Callable[[str], str], families: Callable[..., list[str]], tmp_path: Path
) -> None:
    given = families("red")
    (path,) = (Path(one) for one in given if one.endswith("red.cu"))
    path.write_text(
        path.read_text().replace("// [launch]", '// [[accuracy]]\n// acc = "half"\n// unit = 9\n// [launch]')
    )
    ran = gemmsweep("tune", *given, "--device", scripted(SPEEDS))
    assert ran.code == 1
    assert "its accuracy class is half, the problem asks for fp32" in " ".join(ran.out.split())


def test_two_kernels_of_one_name_are_refused(gemmsweep: Run, tmp_path: Path) -> None:
    given = []
    for folder, text in (("one", ""), ("two", "// another\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "naive.cu").write_text(find_template("naive").text + text)
        given += ["--template", str(tmp_path / folder / "naive.cu")]
    ran = gemmsweep("tune", *given, "--shape", "8x8x8", "--dry-run", "--arch", "sm_90a")
    assert ran.code == 2 and "--template names two kernels 'naive'" in ran.err


def test_a_plan_names_a_results_file_that_cannot_be_read(gemmsweep: Run, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("hello")
    ran = gemmsweep("tune", "--shape", "8x8x8", "--dry-run", "--arch", "sm_90a", "--db", str(tmp_path / "text.db"))
    assert ran.code == 2
    assert "is not an SQLite database" in ran.err


def test_a_plan_names_the_families_of_other_architectures(gemmsweep: Run) -> None:
    ask = ("tune", "--shape", "16x512x512", "--dtype", "bf16", "--dry-run", "--arch")
    assert "Not on a typical sm_80 card: wgmma (needs sm_90a).\n" in gemmsweep(*ask, "sm_80").out
    assert "Not on" not in gemmsweep(*ask, "sm_90a").out
    assert "Not on" not in gemmsweep(*ask, "sm_80", "--template", "skinny").out
