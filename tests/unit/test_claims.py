"""Claims: what their words mean, how they are judged, and that every shipped experiment can answer its own."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from report_samples import Record, build, measured, problem, run, sweep

from gemmsweep.analysis.account import offline_device
from gemmsweep.claim_terms import parse_claim, parse_expectation, parse_selector
from gemmsweep.claims import Finding, Race, evaluate
from gemmsweep.entry import Candidate, enlist
from gemmsweep.errors import UsageError
from gemmsweep.experiment import Experiment, find_experiment, from_table, names, with_claims
from gemmsweep.model import Problem
from gemmsweep.plan import apply_held, axis_configs, axis_values, label_of, parse_axis, parse_held
from gemmsweep.report import claims as report
from gemmsweep.template.library import find_template

STAGES = {
    "id": "A16",
    "claim": "three beat two",
    "measure": "speed",
    "of": "STAGES=3",
    "to": "STAGES=2",
    "expect": ">= 1.03",
}
HALF = problem(4096, 4096, 4096, "fp16", "nt")


def race(number: int, times_us: dict[str, float], half_pct: float = 0.1, **given: Any) -> Race:
    """An axis race of `mma` whose labels are `NAME=VALUE`."""
    held = sweep(number, "STAGES", "winner", **{"kind": "axis", **given})
    runs = [
        measured(
            run(100 * number + i, held, HALF, {k: int(v)}, template="mma", build=build(200 + i)), us, 300.0, half_pct
        )
        for i, ((k, v), us) in enumerate((tuple(label.split("=")), us) for label, us in times_us.items())
    ]
    return held, [{**r, "occupancy_pct": 25.0 * (i + 1)} for i, r in enumerate(runs)]


def judged(races: list[Race], **claim: str) -> Finding:
    return evaluate("e", parse_claim("e", {**STAGES, **claim}), races)


@pytest.mark.parametrize(("text", "low", "high", "verdict"), [
    (">= 1.03", 1.03, 1.05, "holds"), (">= 1.03", 1.02, 1.05, "undecided"), (">= 1.03", 1.0, 1.02, "does not"),
    ("> 1", 1.0, 1.0, "does not"), ("> 1", 1.0, 1.1, "undecided"), ("< 1", 0.9, 0.99, "holds"), ("<= 1", 1.0, 1.0, "holds"),
    ("50..75", 50.0, 75.0, "holds"), ("50..75", 76.0, 80.0, "does not"), ("50..75", 70.0, 80.0, "undecided"),
])  # fmt: skip
def test_an_expectation_judges_an_interval(text: str, low: float, high: float, verdict: str) -> None:
    assert parse_expectation("", text).judge(low, high) == verdict


@pytest.mark.parametrize("text", ["", "1", "= 1", ">= x", "2..1", "about 3", ">= 1 ", "nan..1"])
def test_other_expectations_are_errors(text: str) -> None:
    with pytest.raises(UsageError, match="is not a bound or a range"):
        parse_expectation("", text)


def test_a_selector_needs_all_of_its_terms_and_one_of_their_values() -> None:
    (_, (two, three)) = race(1, {"STAGES=2": 210.0, "STAGES=3": 200.0})
    chosen = parse_selector("", "template=mma shape=4096x4096x4096 dtype=fp16 layout=nt varied=STAGES STAGES=3,4")
    assert [chosen.matches(two), chosen.matches(three)] == [False, True]
    assert parse_selector("", "").matches(two)
    for text in ("STAGES", "STAGES=", "STAGES=1,,2", "colour=3", "=3"):
        with pytest.raises(UsageError, match="is not NAME=VALUE"):
            parse_selector("", text)


@pytest.mark.parametrize(("change", "message"), [
    ({"measure": "beauty"}, "unknown measure"), ({"colour": "red"}, "unknown key"), ({"to": None}, "must be text"),
    ({"measure": "error", "to": "vendor"}, "only the speed"), ({"claim": " "}, "must be text"),
])  # fmt: skip
def test_a_claim_outside_the_vocabulary_is_an_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_claim("e", {**STAGES, **change})


def test_a_speed_without_an_opponent_and_a_claim_without_words_are_errors() -> None:
    with pytest.raises(UsageError, match="speed is relative"):
        parse_claim("e", {key: value for key, value in STAGES.items() if key != "to"})
    with pytest.raises(UsageError, match="lacks claim, expect"):
        parse_claim("e", {key: value for key, value in STAGES.items() if key not in ("claim", "expect")})
    with pytest.raises(UsageError, match="there twice"):
        from_table("e", {"claim": [STAGES, STAGES]})


def test_two_values_of_one_race_are_compared_through_the_reference() -> None:
    found = judged([race(1, {"STAGES=2": 210.0, "STAGES=3": 200.0}, half_pct=0.1)])
    assert (found.verdict, found.claim.id, len(found.run_ids), len(found.races)) == ("holds", "A16", 2, 1)
    assert found.figure is not None and found.figure.ci95 is not None
    assert found.figure.value == pytest.approx(1.05)
    low, high = found.figure.ci95
    assert (high - low) / 2 / 1.05 == pytest.approx(0.001 * 2**0.5, rel=0.01)  # independent errors
    assert judged([race(1, {"STAGES=2": 206.0, "STAGES=3": 200.0}, half_pct=1.0)]).verdict == "undecided"
    assert judged([race(1, {"STAGES=2": 200.0, "STAGES=3": 210.0})]).verdict == "does not"


def test_the_latest_race_that_can_answer_does() -> None:
    races = [
        race(1, {"STAGES=2": 200.0, "STAGES=3": 210.0}),
        race(2, {"STAGES=2": 210.0, "STAGES=3": 200.0}),
        race(3, {"STAGES=3": 1.0}),
        race(4, {"STAGES=2": 1.0, "STAGES=3": 2.0}, contended=True),
        race(5, {"STAGES=2": 1.0, "STAGES=3": 2.0}, protocol="alone"),
        race(6, {"STAGES=2": 1.0, "STAGES=3": 2.0}, regime="own-power"),
    ]
    assert judged(races).races == (races[1][0]["sweep_id"],)


def test_values_of_different_races_of_one_kernel_are_not_compared() -> None:
    assert judged([race(1, {"STAGES=2": 210.0}), race(2, {"STAGES=3": 200.0})]).verdict == "not measured"


def test_a_failed_value_is_not_measured() -> None:
    held, runs = race(1, {"STAGES=2": 210.0, "STAGES=3": 200.0})
    assert judged([(held, [runs[0], {**runs[1], "status": "incorrect"}])]).verdict == "not measured"
    assert judged([]).verdict == "not measured"


def test_others_are_the_fastest_of_the_rest() -> None:
    races = [race(1, {"STAGES=1": 400.0, "STAGES=2": 190.0, "STAGES=3": 200.0})]
    found = judged(races, to="others", expect="> 1")
    assert found.figure is not None and found.figure.value == pytest.approx(0.95)
    assert found.verdict == "does not"
    assert judged(races, of="STAGES=2,3", to="others", expect="> 1").verdict == "holds"


def test_the_vendor_is_met_in_the_finals() -> None:
    axis, finals = race(1, {"STAGES=3": 200.0}), race(2, {"STAGES=3": 320.0}, kind="finals")
    found = judged([axis, finals, race(3, {"STAGES=3": 100.0})], to="vendor", expect=">= 0.9")
    assert found.races == (finals[0]["sweep_id"],)
    assert found.figure is not None and found.figure.value == pytest.approx(300 / 320)


def test_kernels_of_different_races_meet_through_the_reference_and_dtypes_through_their_rate() -> None:
    naive_sweep, naive = race(1, {"STAGES=2": 3000.0})
    naive = [{**naive[0], "template": "naive"}]
    tuned = race(2, {"STAGES=3": 200.0})
    found = judged([(naive_sweep, naive), tuned], of="template=mma", to="template=naive", expect=">= 10")
    assert found.figure is not None and found.figure.value == pytest.approx(15)
    bf16 = [{**tuned[1][0], "problem": {**HALF, "dtype": "bf16"}, "tflops": 2 * tuned[1][0]["tflops"]}]
    found = judged([(naive_sweep, bf16), tuned], of="dtype=bf16", to="dtype=fp16", expect=">= 1.9")
    assert found.figure is not None and found.figure.value == pytest.approx(2)


def test_counted_figures_have_no_interval() -> None:
    races = [race(1, {"STAGES=2": 210.0, "STAGES=3": 200.0})]
    found = judged(races, measure="occupancy_pct", expect="2..2")
    assert found.figure is not None and (found.figure.value, found.figure.ci95, found.verdict) == (2.0, None, "holds")
    assert judged(races, measure="registers", expect="> 1").verdict == "holds"
    assert judged(races, measure="counter.smem_ld_conflicts").verdict == "not measured"


def test_an_older_race_that_was_profiled_answers_for_its_counters() -> None:
    held, runs = race(1, {"STAGES=2": 210.0, "STAGES=3": 200.0})
    counted = [{**r, "counters": {"conflicts": {"value": v}}} for r, v in zip(runs, (800.0, 100.0), strict=True)]
    found = judged(
        [(held, counted), race(2, {"STAGES=2": 210.0, "STAGES=3": 200.0})],
        measure="counter.conflicts",
        expect="<= 0.125",
    )
    assert (found.verdict, found.races) == ("holds", (held["sweep_id"],))


def test_a_part_takes_the_rest_from_the_top() -> None:
    table = {
        "template": "mma",
        "dtype": "fp16",
        "set": {"BK": 32},
        "part": [{"vary": "BM", "set": {"BN": 64}}, {"set": {"BK": 64}}],
    }
    whole = from_table("e", table)
    assert [(p.name, p.template, p.vary, p.held) for p in whole.each] == [
        ("e", "mma", ("BM",), ("BK=32", "BN=64")),
        ("e", "mma", (), ("BK=64",)),
    ]
    assert from_table("e", {"vary": "BK"}).each[0].vary == ("BK",)
    for broken in ({"part": 3}, {"part": [{"claim": []}]}, {"part": [{"set": 3}]}, {"part": [{"l2": "warm"}]}):
        with pytest.raises(UsageError):
            from_table("e", broken)


class Book:
    """Races in place of a store."""

    def __init__(self, races: list[Race]) -> None:
        self.races = races

    def sweeps(self, wanted: Any) -> list[Record]:
        return [dict(held) for held, _ in self.races]

    def runs(self, wanted: Any) -> list[Record]:
        return [dict(one) for _, runs in self.races for one in runs]


def chapters(races: list[Race], **claim: str) -> list[report.Chapter]:
    from gemmsweep.store import Filter

    return report.collect(
        Book(races), Filter(), [from_table("stages", {"summary": "Depth.", "claim": [{**STAGES, **claim}]})]
    )


def text(format_: str, found: list[report.Chapter]) -> str:
    out = io.StringIO()
    report.write(format_, found, out, 80)
    return out.getvalue()


def test_the_report_shows_claim_measured_interval_and_verdict() -> None:
    found = chapters([race(1, {"STAGES=2": 210.0, "STAGES=3": 200.0})], remark="They <differ>.", claimed="1.05×")
    shown = text("table", found)
    for piece in ("A16", "three beat two", ">= 1.03×", "1.05×", "1.049–1.051", "holds", "NVIDIA H200, 2026-11-11"):
        assert piece in shown
    page = text("md", found)
    for piece in ("## stages", "| A16 | three beat two |", r"They \<differ\>.", "STAGES, TFLOP/s", "█"):
        assert piece in page
    (claim,) = json.loads(text("json", found))["claims"]
    assert {"id", "experiment", "claim", "measured", "ci95", "verdict"} <= set(claim)
    assert claim["verdict"] == "holds" and claim["measured"] == pytest.approx(1.05) and len(claim["ci95"]) == 2


def test_the_report_of_nothing_says_how_to_measure_it() -> None:
    assert "gemmsweep run --experiment stages" in text("table", chapters([]))
    assert "not measured yet" in text("md", chapters([]))
    (claim,) = json.loads(text("json", chapters([])))["claims"]
    assert (claim["measured"], claim["ci95"], claim["verdict"]) == (None, None, "not measured")


def test_claims_are_judged_on_the_device_last_raced() -> None:
    here, there = race(1, {"STAGES=2": 210.0, "STAGES=3": 200.0}), race(2, {"STAGES=2": 1.0, "STAGES=3": 2.0})
    other = there[0], [{**one, "device": {**one["device"], "name": "NVIDIA L4"}} for one in there[1]]
    (chapter,) = chapters([here, other])
    assert (chapter.device, chapter.findings[0].verdict) == ("NVIDIA L4", "does not")


def planned(part: Experiment, shape: tuple[int, int, int]) -> list[tuple[str | None, list[Candidate]]]:
    """What a part would race for one of its problems on Hopper: (axis, candidates)."""
    device = offline_device("sm_90a")
    assert part.template is not None
    template = find_template(part.template)
    dtype, layout = part.dtype or template.dtypes[0], part.layout or template.layouts[0]
    about = Problem.of(*shape, dtype, layout, epilogue=part.epilogue)
    held = [parse_held(one, template) for one in part.held]
    start = apply_held(template.defaults(), held)
    if not part.vary:
        return [(None, enlist(template, about, device, {"start": start}))]
    found: list[tuple[str | None, list[Candidate]]] = []
    for axis in map(parse_axis, part.vary):
        configs = axis_configs(start, axis.name, axis_values(template, axis), held)
        found.append((axis.name, enlist(template, about, device, {label_of(axis.name, c): c for c in configs})))
    return found


def rehearsed(experiment: Experiment) -> list[Race]:
    """The races it would run, with made-up figures."""
    races: list[Race] = []
    for part in experiment.each:
        for shape in part.problems:
            for varied, candidates in planned(part, shape):
                alive = [c for c in candidates if c.alive]
                assert len(alive) > (varied is not None), f"{experiment.name}: nothing to compare along {varied}"
                held = sweep(1 + len(races), varied, "winner", kind="axis", started_at=f"{len(races):04d}")
                about = problem(*shape, part.dtype or "fp32", part.layout or "nn", part.epilogue)
                counters = {"smem_ld_conflicts": {"value": 9.0, "unit": "conflicts", "basis": "ncu"}}
                rows = [
                    run(i, held, {**about, "acc": c.attempt.acc}, dict(c.attempt.config), template=part.template, counters=counters,
                        occupancy_pct=50.0, build=build(128))
                    for i, c in enumerate(alive)
                ]  # fmt: skip
                races.append((held, [measured(row, 200.0, 200.0) for row in rows]))
    return races


@pytest.mark.parametrize("name", names())
def test_every_shipped_experiment_can_be_raced_and_answers_its_claims(name: str) -> None:
    experiment = find_experiment(name)
    assert experiment.summary and experiment.claims
    races = rehearsed(experiment)
    unanswered = [c.id for c in experiment.claims if evaluate(name, c, races).verdict == "not measured"]
    assert not unanswered


def test_an_experiment_without_claims_is_told() -> None:
    assert {"stages", "vendor"} <= {experiment.name for experiment in with_claims(None)}
    with pytest.raises(UsageError, match="unknown experiment"):
        with_claims("nothing")


def test_no_two_claims_share_an_id() -> None:
    ids = [claim.id for experiment in with_claims(None) for claim in experiment.claims]
    assert len(ids) == len(set(ids))
