"""What `tune` decides without a device: shares of time, whose turn it is, where a family may start, and the charts."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmsweep.analysis.account import offline_device
from gemmsweep.cli.tuning import Tuning, each_share_s
from gemmsweep.errors import UsageError
from gemmsweep.feasible import declared_starts, first_feasible, reasons_against, search
from gemmsweep.finals import beyond_equal_clock_s
from gemmsweep.model import Problem
from gemmsweep.report import against, tuned, words
from gemmsweep.report import families as charts
from gemmsweep.session import Request
from gemmsweep.store import open_store
from gemmsweep.template.declaration import Template
from gemmsweep.template.header import load_template
from gemmsweep.template.library import find_template, list_templates
from gemmsweep.tune import budget
from gemmsweep.tune.answer import Answer, cut_text, winner_of
from gemmsweep.tune.families import Family, make_family
from gemmsweep.tune.search import Hunt, builder_ahead, next_family

MMA = find_template("mma")
GPU = offline_device("sm_90a")
PROBLEM = Problem.of(512, 4096, 4096, "bf16", "nt")
LARGE = Problem.of(4096, 4096, 4096, "bf16", "nt")


def request(problem: Problem = PROBLEM) -> Request:
    return Request(MMA, problem, ())


def test_how_a_kernel_sums_whatever_its_parameters_is_not_searched_for() -> None:
    assert search(MMA, Problem.of(512, 4096, 4096, "fp32", "nt"), GPU) == (None, 0)


@given(st.lists(st.floats(0.2, 3.0), min_size=1, max_size=30), st.floats(1.0, 5000.0))
def test_shares_add_up_to_the_time_there_is_however_long_each_problem_takes(used: list[float], limit_s: float) -> None:
    now = 0.0
    for i, share_of_share in enumerate(used):
        part = budget.share(now, limit_s, len(used) - i, request(), GPU)
        assert now <= part.search_ends <= part.ends <= max(limit_s, now) + 1e-6
        assert part.seconds >= 0
        now += part.seconds * min(share_of_share, 1.0)
    assert now <= limit_s * (1 + 1e-9)


def test_finals_have_their_time_and_those_of_own_power_where_they_are_affordable() -> None:
    short = budget.share(0, 24, 1, request(), GPU)
    assert short.ends - short.search_ends == budget.FINALS_S
    long, own_s = budget.share(0, 600, 1, request(LARGE), GPU), beyond_equal_clock_s(request(LARGE), GPU)
    assert own_s > 30
    assert long.ends - long.search_ends == pytest.approx(budget.FINALS_S + own_s)
    assert budget.share(0, 24, 1, request(LARGE), GPU).search_ends == 24 - budget.FINALS_S
    assert budget.share(0, 5, 1, request(), GPU).hurried
    assert not short.hurried


def test_what_nothing_can_run_is_answered_before_it_could_have_a_share(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    class Listening(Tuning):
        def answer(self, request: Request, problems: int) -> Answer:
            asked.append((request.problem.dtype, problems))
            return Answer(request.problem, None, {})

    mine = replace(request(), key="one"), replace(request(Problem.of(64, 64, 64, "fp64")), key="two")
    worker: Any = SimpleNamespace(info=GPU)
    with open_store(tmp_path / "r.db") as store:
        tuning = Listening(store, worker, Any, [MMA], deadline=0.0)
        assert [answer.problem for answer in tuning.answers(mine)] == [one.problem for one in mine]
    assert asked == [("fp64", 2), ("bf16", 1)]
    assert each_share_s(24.0, mine, [MMA], GPU) == 24.0, "and what is announced is what the other gets"


def test_the_pace_follows_what_is_seen() -> None:
    pace = budget.Pace(0.6)
    assert pace.fits(5, 3.0)
    for _ in range(6):
        pace.saw(5, 10.0)
    assert pace.config_s == pytest.approx(2.0, rel=0.05)
    assert not pace.fits(5, 9.0)


def family(name: str, ratio: float, axes: int) -> Family:
    return Family(find_template(name), {}, {}, tuple(f"P{i}" for i in range(axes)), ratio)


def test_the_leader_goes_first_and_those_near_it_get_their_turns() -> None:
    racing = [family("mma", 0.9, 3), family("wgmma", 1.0, 3), family("simt", 0.5, 3)]
    turns = []
    while (chosen := next_family(racing)) is not None:
        turns.append(chosen.template.name)
        chosen.raced += 1
        chosen.step("")
    assert turns == ["wgmma"] * 3 + ["mma"] * 3 + ["simt"] * 3
    near = [family("mma", 0.97, 3), family("wgmma", 1.0, 3)]
    first = next_family(near)
    assert first is near[1]
    first.raced += 1
    first.step("P0=2")
    assert next_family(near) is near[0], "5% per axis: the one 3% behind is next"


def test_a_family_is_settled_when_every_other_axis_stood_still_after_the_last_move() -> None:
    one = family("mma", 1.0, 3)
    for moved, settled in (("", False), ("P1=2", False), ("", False), ("", True)):
        one.step(moved)
        assert one.settled is settled
    assert one.moves == ["P1=2"]


def test_the_axes_after_the_one_raced_are_built_from_its_leader() -> None:
    template = find_template("simt")
    problem = Problem.of(512, 512, 512, "fp32", "nn")
    session: Any = SimpleNamespace(request=Request(template, problem, ()), worker=SimpleNamespace(info=GPU))
    one = Family(template, {}, template.defaults(), ("STAGES", "BK", "PAD"), 1.0)
    hunt = Hunt(session, [one], {}, budget.share(0, 60, 1, request(), GPU), {}, budget.Pace(0.6))
    asked: list[list[list[Any]]] = []
    ahead: Any = SimpleNamespace(build=lambda turns: asked.append([[c.attempt.config for c in turn] for turn in turns]))
    led = builder_ahead(hunt, ahead, one, "STAGES")
    stages = next(v for p in template.parameters if p.name == "STAGES" for v in p.values if v != one.present["STAGES"])
    led(one.present)
    led({**one.present, "STAGES": stages})
    for turns, value in zip(asked, (one.present["STAGES"], stages), strict=True):
        assert len(turns) == 2
        assert {config["STAGES"] for turn in turns for config in turn} == {value}
        assert len({config["BK"] for config in turns[0]}) > 1 and len({config["BK"] for config in turns[1]}) == 1
    assert (one.present, one.raced, one.turn, one.moves) == (template.defaults(), 0, 0, [])


def test_what_time_left_out_is_told_the_finals_of_other_regimes_too() -> None:
    device: Any = None  # asked for nothing here
    hunt = Hunt(device, [family("mma", 1.0, 3)], {}, budget.share(0, 60, 1, request(), GPU), {}, budget.Pace(0.6))
    assert cut_text(hunt) == "finals beyond equal clock"
    hunt.complete = True
    assert cut_text(hunt) == ""
    hunt.cut, hunt.searched = True, True
    assert cut_text(hunt) == "mma 0 of 3 axes"


@pytest.mark.parametrize(("name", "problem"), [
    ("mma", PROBLEM),
    ("skinny", Problem.of(64, 4096, 4096, "fp32", "nt")),
    ("wgmma", Problem.of(4096, 4096, 4096, "tf32", "nt")),
])  # fmt: skip
def test_where_the_defaults_are_feasible_a_family_starts_there(name: str, problem: Problem) -> None:
    template = find_template(name)
    assert first_feasible(template, problem, GPU) == template.defaults()


@pytest.mark.parametrize(("name", "problem", "rule"), [
    ("gemv", PROBLEM, "M <= 4"),
    ("wgmma", Problem.of(64, 64, 64, "tf32", "nn"), "takes layout nt here"),
])  # fmt: skip
def test_a_rule_about_the_problem_alone_is_told_at_once(name: str, problem: Problem, rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        first_feasible(find_template(name), problem, GPU)


def test_a_family_starts_from_what_its_header_proposes_as_well(tmp_path: Path) -> None:
    template = find_template("wgmma")
    small, wide = Problem.of(64, 4096, 4096, "bf16", "nt"), Problem.of(4096, 4096, 4096, "bf16", "nt")
    with open_store(tmp_path / "results.db") as store:
        starts = {
            p: make_family(replace(request(), template=template, problem=p), store, GPU).starts for p in (small, wide)
        }
    assert len(starts[small]) > 1 and len(starts[wide]) > 1
    assert {(c["BN"], c["SPLIT_K"]) for c in starts[small].values()} == {(128, 1), (32, 1), (64, 2)}
    assert {c["BN"] for c in starts[wide].values()} == {128, 256}
    for problem, configs in starts.items():
        assert all(not reasons_against(template, problem, GPU, config) for config in configs.values())


@pytest.mark.parametrize("template", list_templates().templates, ids=lambda t: t.name)
def test_every_proposed_start_is_feasible_somewhere(template: Template) -> None:
    shapes = (
        (1, 4096, 4096),
        (16, 4096, 4096),
        (48, 4096, 4096),
        (64, 128, 32768),
        (512, 4096, 4096),
        (500, 1001, 1003),
        (1000, 1000, 1000),
        (4096, 4096, 4096),
        (4095, 4097, 4099),
        (130, 66, 17),
    )
    problems = [Problem.of(*s, d, way) for s in shapes for d in template.dtypes for way in template.layouts]
    found = [c for p in problems for c in declared_starts(template, p, GPU)] if template.backend == "cuda" else []
    for start in template.starts if template.backend == "cuda" else ():
        assert {**template.defaults(), **start.values} in found, start


HEADER = """// /// gemmsweep
// summary = "Whole tiles only."
// backend = "cuda"
// arch = "sm_75+"
// dtypes = ["fp32"]
// layouts = ["nn"]
// requires = ["M % BM == 0", "N % BN == 0"]
// [parameters]
// BM = { default = 128, values = [16, 32, 64, 128], meaning = "rows" }
// BN = { default = 128, values = [16, 32, 64, 128], meaning = "columns" }
// BK = { default = 8, values = [8, 16], meaning = "depth" }
// [[constraints]]
// expr = "BM + BK <= 72"
// why = "it fits"
// [launch]
// args = ["C"]
// grid = ["1", "1", "1"]
// block = "32"
// ///
$STATIC_ASSERTS
extern "C" __global__ void gemm(float* C) { C[0] = $BM + $BN + $BK; }
"""


def test_the_first_feasible_config_is_the_one_nearest_to_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "whole.cu"
    path.write_text(HEADER)
    template = load_template(path)
    assert first_feasible(template, Problem.of(128, 128, 8), GPU) == {"BM": 16, "BN": 128, "BK": 8}
    assert first_feasible(template, Problem.of(64, 48, 8), GPU) == {"BM": 16, "BN": 16, "BK": 8}
    with pytest.raises(UsageError, match="it fits"):
        first_feasible(template, Problem.of(50, 48, 8), GPU)


def best(m: int, template: str, ratio: float, n: int = 4096, k: int = 4096, **problem: Any) -> dict[str, Any]:
    given = {
        "m": m, "n": n, "k": k, "batch": 1, "dtype": "bf16", "layout": "nt", "lda": k, "ldb": k, "ldd": n, "beta": 0.0,
        "epilogue": "none",
    }  # fmt: skip
    relation = {"median_us": 10.0 * ratio, "ratio": ratio, "ci95": [ratio * 0.998, ratio * 1.002]}
    return {
        "problem": given | problem, "template": template, "config": {"BK": 64, "STAGES": 4}, "median_us": 10.0, "tflops": 1.0,
        "device": {"name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132, "power_limit_w": 700.0}, "run_id": "0192a3b4",
        "references": {"cublas": relation}, "decision": "winner", "finalists": 3, "started_at": "2026-11-29T00:00:00Z",
    }  # fmt: skip


DECODE = [
    best(1, "gemv", 1.36), best(4, "gemv", 1.2), best(8, "skinny", 1.1), best(64, "skinny", 1.001),
    best(128, "mma", 0.8), best(4096, "wgmma", 1.02), best(1, "gemv", 1.3, n=11008),
]  # fmt: skip


def test_the_chart_names_the_winner_of_each_cell_and_where_it_changes() -> None:
    (chart,) = charts.charts([*DECODE, best(1, "gemv", 9.0, beta=0.5), best(2, "gemv", 9.0, lda=4104)])
    assert [chart.cells[m, 4096, 4096].winner for m in chart.sizes_m] == [
        "gemv",
        "gemv",
        "skinny",
        "skinny",
        "vendor",
        "wgmma",
    ]
    assert charts.crossovers(chart) == [
        "N=4096 K=4096: gemv → skinny between M=4 and 8, skinny → vendor between M=8 and 128, "
        "vendor → wgmma between M=128 and 4096"
    ]
    text = charts.text(chart, 40)
    assert all(len(line) <= 40 for line in text.splitlines())
    assert "gemv 1.36" in text
    assert "vendor 0.80" in text
    assert "| 8 | skinny 1.10 |\n" in charts.section(chart)
    assert chart.columns == ((4096, 4096),), "an (N, K) with a single M has nothing to cross"
    assert ": 1x11008x4096" in charts.text(chart, 200) and ": 1x11008x4096" in charts.section(chart), "and is told"


@pytest.mark.parametrize(("ratios", "told"), [
    ((1.2, 1.001, 0.8), "gemv → vendor between M=1 and 4"),
    ((1.2, 1.001, 1.2), "gemv wherever it is certain"),
    ((1.001, 1.001, 0.999), "nobody is certainly the fastest"),
])  # fmt: skip
def test_a_cell_that_is_not_told_apart_makes_no_change(ratios: tuple[float, ...], told: str) -> None:
    (chart,) = charts.charts(best(m, "gemv", ratio) for m, ratio in zip((1, 2, 4), ratios, strict=True))
    assert charts.crossovers(chart) == [f"N=4096 K=4096: {told}"]
    assert "≈1.00" in charts.text(chart, 80)


def test_cpus_of_one_name_do_not_share_a_chart() -> None:
    def on(uuid: str, m: int, ratio: float) -> dict[str, Any]:
        run = best(m, "cpu_blocked", ratio)
        return {**run, "device": {**run["device"], "arch": "x86_64", "uuid": uuid}}

    found = charts.charts([on(uuid, m, ratio) for uuid, ratio in (("one", 1.1), ("two", 0.5)) for m in (1, 2)])
    assert [{cell.ratio for cell in chart.cells.values()} for chart in found] == [{1.1}, {0.5}]


def test_problems_that_share_no_n_and_k_have_no_chart() -> None:
    assert charts.charts([best(1, "gemv", 1.3), best(2, "gemv", 1.3, n=64)]) == []


@given(st.dictionaries(st.integers(1, 9999), st.sampled_from(["gemv", "mma", "wgmma"]), min_size=2, max_size=12))
def test_every_change_along_m_is_told_once(winners: dict[int, str]) -> None:
    (chart,) = charts.charts(best(m, name, 1.1) for m, name in winners.items())
    (line,) = charts.crossovers(chart)
    names = [winners[m] for m in sorted(winners)]
    assert line.count("→") == sum(a != b for a, b in pairwise(names))


def answer(run: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    problem = DECODE[0]["problem"] if run is None else run["problem"]
    blank = {"families": [], "cut": None, "note": None, "seconds": 24.0, "changes": {"BK": 64}}
    return {"problem": problem, "winner": winner_of(run), "best": run} | blank | more


def test_each_format_has_a_row_per_problem() -> None:
    answers = [answer(run) for run in DECODE] + [answer(None, note="no time left for it", cut="mma 3 of 11 axes")]
    shown = {}
    for name in tuned.FORMATS:
        out = io.StringIO()
        tuned.write(name, answers, out, 80)
        shown[name] = out.getvalue()
    assert [a["winner"] for a in json.loads(shown["json"])["answers"]] == [a["winner"] for a in answers]
    assert shown["csv"].count("\n") == len(answers) + 1
    assert "128,4096,4096,bf16,nt,none,vendor,mma,BK=64 STAGES=4,10.0,1.0,cublas,0.8," in shown["csv"]
    assert (
        "| 128x4096x4096 bf16 nt | vendor | 10.00 | 8.000 | 0.80× cuBLAS (slower, ±0.20%) | winner of 3 | mma BK=64 |"
        in shown["md"]
    )
    assert (
        "| 64x4096x4096 bf16 nt | not told apart | 10.00 | 10.01 | 1.001× cuBLAS (not told apart, ±0.20%) "
        in shown["md"]
    )
    assert "\n  mma BK=64: 0.80× cuBLAS (slower, ±0.20%); among finalists: winner of 3\n" in shown["table"]
    assert all(len(line) <= 80 for line in shown["table"].splitlines())
    for name in ("table", "md"):
        assert "No verified result for 1x4096x4096 bf16 nt: no time left for it" in shown[name]
        assert "1x4096x4096 bf16 nt: mma 3 of 11 axes" in shown[name]
        assert "gemv → skinny between M=4 and 8" in " ".join(shown[name].split())


def test_a_lone_finalist_has_won_against_nobody() -> None:
    alone = {**best(1, "gemv", 1.3), "finalists": 1}
    assert tuned.cells(answer(alone))[1:6] == ["gemv", "10.00", "13.00", "1.30× cuBLAS (faster, ±0.20%)", "only one"]
    assert words.decision_text({**alone, "finalists": 2, "margin_pct": 3.0}, margin=True) == "winner of 2, by 3.0%"
    open_ = {**alone, "finalists": 2, "decision": "undecided"}
    told = [words.decision_text({**open_, "margin_pct": margin}, margin=True) for margin in (3.0, 521.6)]
    assert told == ["undecided ±3.0%", "undecided"], "what is wider than any difference is no figure"
    assert words.verdict_word({"verdict": "winner", "raced": 1}) == "only one"
    assert words.verdict_word({"verdict": "winner", "raced": 2}) == "winner"


def test_a_vendor_that_stumbled_is_told_and_makes_nobody_the_fastest() -> None:
    run = best(1, "gemv", 21.0)
    stumbled = {**run["references"]["cublas"], "version": "OpenBLAS, 2 threads", "ci95_us": [9.0, 6400.0]}
    out = io.StringIO()
    tuned.write("table", [answer({**run, "references": {"cublas": stumbled}, "ci95_us": [9.9, 10.1]})], out, 200)
    assert " unstable " in out.getvalue()
    assert "21.00× cuBLAS on 2 threads (unstable: cuBLAS's own time varies)" in out.getvalue()
    assert "(OpenBLAS, 2 threads) took 9.0–6400 µs, the kernel 9.9–10 µs. Repeat it" in out.getvalue()
    again = {**answer({**run, "references": {"cublas": stumbled}, "ci95_us": [9.9, 10.1]}), "cut": "gemv 4 of 7 axes"}
    tuned.write("table", [again], out := io.StringIO(), 200)
    assert "--remeasure on an idle" not in out.getvalue(), "the same command races it again without"


@pytest.mark.parametrize(("relation", "who", "taken"), [
    ({"ratio": 1.2, "ci95": [1.1, 1.3]}, "gemv", "gemv"),
    ({"ratio": 0.8, "ci95": [0.7, 0.9]}, "vendor", "vendor"),
    ({"ratio": 0.5, "ci95": [0.1, 0.9]}, "vendor", "vendor"),  # wide, and all of it below 1
    ({"ratio": 1.0, "ci95": [0.9, 1.1]}, "not told apart", "gemv"),
    ({"ratio": 30.0, "ci95": [1.9, 640.0]}, "unstable", "gemv"),
    ({"ratio": 0.8, "ci95": None}, "not told apart", "gemv"),  # without an interval nothing is certain
    ({}, "not told apart", "gemv"),
])  # fmt: skip
def test_who_is_fastest_is_one_answer_everywhere(relation: dict[str, Any], who: str, taken: str) -> None:
    run = {**best(1, "gemv", 1.0), "references": {"cublas": relation} if relation else {}}
    assert (against.fastest(run), winner_of(run)) == (who, taken)
    cell = charts.cell_of(run)
    assert (cell.winner, cell.certain) == (taken, who == taken)
    assert any("Unstable:" in line for line in tuned.remarks([answer(run)])) == (who == "unstable")


@pytest.mark.parametrize(("cublas", "lt", "who"), [
    ([1.01, 1.03, 1.05], [0.97, 0.99, 1.01], "not told apart"),  # their intervals touch: no stronger way, and not beaten
    ([1.02, 1.03, 1.04], [1.0028, 1.0049, 1.007], "not told apart"),
    ([1.02, 1.03, 1.04], [1.01, 1.02, 1.03], "gemv"),
    ([1.02, 1.03, 1.04], [0.98, 0.985, 0.99], "vendor"),
])  # fmt: skip
def test_nobody_is_fastest_who_has_not_beaten_each_way_of_the_vendors(
    cublas: list[float], lt: list[float], who: str
) -> None:
    ways = {"cublas": cublas, "cublaslt_best": lt}
    told = {name: {"ratio": ratio, "ci95": [low, high]} for name, (low, ratio, high) in ways.items()}
    assert against.fastest({**best(1, "gemv", 1.0), "references": told}) == who
