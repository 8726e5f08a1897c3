"""One rule: what sums otherwise than its problem asks for is measured and shown, and never wins anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_samples as samples
from store_samples import CUBLAS, ENVIRONMENT, GPU, PROBLEM, attempt, measurement, outcome, start

from gemmsweep import check, regimes, verdict
from gemmsweep.claim_terms import parse_claim
from gemmsweep.claims import evaluate
from gemmsweep.contest import NARROWED_BY, Contest
from gemmsweep.elements import from_float
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.model import DTYPES, Accuracy, Inputs, Problem
from gemmsweep.oracle import logical, make_oracle
from gemmsweep.protocol import Burst
from gemmsweep.report import charts, tables, verdicts
from gemmsweep.store.runs import open_store

HALF = Accuracy("fp16", 2048, 4096)
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered")  # NaN and Inf are planted on purpose


def contest(times_us: dict[str, float], guests: set[str], rounds: int = 20) -> Contest:
    """A race whose bursts scatter by a thousandth."""
    rng = np.random.default_rng(3)
    held = Contest(list(times_us), ["cublas"], guests=frozenset(guests))
    for _ in range(rounds):
        noise = dict(zip([*times_us, "cublas"], rng.normal(1, 1e-3, len(times_us) + 1), strict=True))
        every = {**times_us, "cublas": 100.0}
        held.rounds.append({x: Burst(x, round(1e6 * every[x] * noise[x]), 1000) for x in every if x not in held.left})
        if len(held.rounds) >= 5:
            held.update_left()
    held.verdict = held.decide(0.005)
    return held


def test_a_guest_is_measured_and_takes_no_part_in_the_verdict() -> None:
    held = contest({"ACC=fp16": 40.0, "ACC=fp32": 80.0, "ACC=slow": 90.0}, {"ACC=fp16"})
    found = verdict.outcome(held, present="ACC=slow", foreign="")
    assert (found.verdict, found.winner, found.adopted) == ("winner", "ACC=fp32", True)
    assert found.margin_pct == pytest.approx(12.5, abs=0.5)
    assert found.measurements["ACC=fp16"].relations["cublas"].ratio == pytest.approx(2.5, rel=0.01)


def test_no_guest_drives_a_ranked_label_out_of_the_race() -> None:
    held = contest(
        {"fast guest": 40.0, "a": 80.0, "b": 81.0, "slow": 200.0, "slow guest": 90.0}, {"fast guest", "slow guest"}
    )
    assert held.left == {"slow", "slow guest"}
    assert held.stop_reason(0.005) == "decided"


def test_a_race_goes_on_until_its_guests_are_known_too() -> None:
    held = contest({"a": 80.0, "guest": 80.1}, {"guest"}, rounds=3)
    assert held.decide(0.005) is not None
    assert held.stop_reason(0.005) is None


@pytest.mark.parametrize(("rounds", "reason"), [(NARROWED_BY // 2, None), (NARROWED_BY, "decided")])
def test_a_decided_race_waits_for_a_narrow_ratio_up_to_a_round(rounds: int, reason: str | None) -> None:
    held = contest({"a": 80.0, "b": 90.0}, set(), rounds)
    assert held.stop_reason(0.005) == "decided"
    held.known_within = 1e-9  # nothing is known so well
    assert held.stop_reason(0.005) == reason


@pytest.mark.parametrize("regime", ["equal-clock", "own-power", "alone"])
def test_only_guests_leave_times_and_no_winner(regime: str) -> None:
    held = contest({"a": 80.0, "b": 90.0}, {"a", "b"})
    if regime == "own-power":
        held.stopped = None
        regimes.conclude(held, regimes.Rules())
        assert held.stopped == "time"
    found = regimes.naive(held, 0.005) if regime == "alone" else verdict.outcome(held, present="a", foreign="")
    assert (found.verdict, found.winner, found.adopted) == ("none", None, False)
    assert set(found.measurements) == {"a", "b", "cublas"}


def fp16_sums(a: Any, b: Any) -> Any:
    """A·B with every running sum rounded to fp16."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float16)
    for k in range(a.shape[1]):
        total = (total + np.outer(a[:, k], b[k]).astype(np.float32)).astype(np.float16)
    return total


def test_each_class_is_held_to_its_own_bound() -> None:
    problem = Problem.of(24, 20, 4096, "fp16")
    oracle = make_oracle(np, problem, Inputs())
    got = fp16_sums(oracle.random.a.astype(np.float32), oracle.random.b.astype(np.float32))
    errors = check.compare(np, got, oracle, "fp16", HALF)
    assert errors.max_scaled <= 1
    with pytest.raises(check.Incorrect):
        check.compare(np, got, oracle, "fp16")
    # Worse than declared: what 4096 roundings do is not what 16 may.
    with pytest.raises(check.Incorrect, match=r"twice what fp16 must cost"):
        check.compare(np, got, oracle, "fp16", replace(HALF, terms=16))
    with pytest.raises(check.Incorrect):
        check.compare(np, np.zeros_like(got), oracle, "fp16", HALF)


@pytest.mark.parametrize(
    ("k", "terms", "exact"), [(4096, 4096, False), (4096, 128, False), (200, 200, True), (4096, 1, True)]
)
def test_integers_are_checked_where_the_accumulator_holds_them(k: int, terms: int, exact: bool) -> None:
    oracle = make_oracle(np, Problem.of(8, 8, k, "fp16"), Inputs())
    assert oracle.holds_integers(np, Accuracy("fp16", 2048, terms)) == exact
    assert oracle.holds_integers(np, Accuracy())


def test_no_view_of_the_lab_book_takes_a_row_of_another_class(tmp_path: Path) -> None:
    with open_store(tmp_path / "results.db") as store:
        for kind in ("axis", "finals"):
            key = store.begin_sweep(start(kind=kind), ENVIRONMENT)
            store.save_attempt(key, attempt("BK=16"))
            store.save_attempt(key, attempt("BK=8", acc="fp16"))
            store.save_attempt(key, CUBLAS)
            times = {
                "BK=16": measurement(1900.0, 1.05),
                "BK=8": measurement(1000.0, 2.0),
                "cublas": measurement(2000.0),
            }
            store.finish_sweep(key, outcome(times))
        runs = list(store.runs())
        assert [run["problem"]["acc"] for run in runs] == ["fp32", "fp16"] * 2
        assert [best["config"]["BK"] for best in store.best()] == [16]
        assert [known.config["BK"] for known in store.known(PROBLEM, GPU.device_class)] == [16]
        near = store.nearest(Problem.of(4096, 4096, 2048), GPU.device_class)
        assert near is not None and near.config["BK"] == 16
        key = store.begin_sweep(start(kind="finals", session_id=None), ENVIRONMENT)
        store.save_attempt(key, attempt("BK=8", acc="fp16"))
        store.finish_sweep(key, outcome({"BK=8": measurement(1000.0)}, verdict="none", winner=None))
        assert [best["config"]["BK"] for best in store.best()] == [16]


def accumulators() -> tuple[samples.Record, list[samples.Record]]:
    """fp32 wins; fp16 is faster and worse."""
    sweep, runs = samples.bk_sweep()
    sweep = {**sweep, "varied": "ACC", "kind": "axis"}
    exact, half = (
        {**run, "config": {**run["config"], "ACC": acc}} for run, acc in ((runs[2], "fp32"), (runs[1], "fp16"))
    )
    half = samples.measured({**half, "problem": {**half["problem"], "acc": "fp16"}}, 1500.0, 2681.2)
    half["error"] = {"max_scaled": 0.2, "rel_fro": 1.3e-3, "rel_fro_vendor": 2.0e-7}
    return {**sweep, "winner_run_id": exact["run_id"]}, [exact, half]


def test_a_report_marks_the_class_and_says_why_the_faster_row_is_no_winner() -> None:
    sweep, runs = accumulators()
    text = tables.sweep_table(sweep, runs, 80).plain
    assert " accuracy " in text.splitlines()[0] and "error" in text.splitlines()[0]
    assert "1.3e-03" in text and "2.1e-07" in text
    said = verdicts.conclusion(sweep, runs)
    assert "ACC=fp32 is the only config of the problem's accuracy class that raced." in said
    assert (
        "ACC=fp16 (error 1.3e-03) is faster but of another accuracy class, which never wins (kept: error 2.1e-07)."
        in said
    )
    assert "error 1.3e-03" in charts.axis_bars(sweep, runs, 80).plain
    _, usual = samples.bk_sweep()
    assert "error" not in tables.sweep_table(sweep, usual, 80).plain.splitlines()[0]


def test_a_claim_speaks_of_another_class_only_by_name() -> None:
    def judged(**claim: str) -> tuple[str, float | None]:
        text = {"id": "A20", "claim": "tens of times worse", "measure": "error", "expect": ">= 10", **claim}
        found = evaluate("e", parse_claim("e", text), [accumulators()])
        return found.verdict, found.figure.value if found.figure else None

    assert judged(of="acc=fp16", to="acc=fp32") == ("holds", pytest.approx(1.3e-3 / 2.1e-7))
    assert judged(of="acc=fp16", to="others") == ("holds", pytest.approx(1.3e-3 / 2.1e-7))
    assert judged(of="ACC=fp16", to="ACC=fp32") == ("not measured", None)
    assert judged(measure="speed", of="acc=fp16", to="acc=fp32", expect=">= 1.5")[0] == "holds"
    assert judged(measure="speed", of="template=simt", to="vendor", expect="> 1.5")[0] == "does not"


@pytest.mark.parametrize(("beta", "epilogue"), [(0.5, "none"), (0.0, "bias+leaky_relu")])
def test_a_library_may_round_its_product_before_it_adds(beta: float, epilogue: str) -> None:
    """cuBLAS did at fp16, odd strides and beta = 0.5: where the two terms cancel, that is 40 times our own bound."""
    problem = Problem.of(130, 66, 17, "fp16", beta=beta, epilogue=epilogue)
    oracle = make_oracle(np, problem, Inputs())
    a, b = (x.astype(np.float64) for x in (oracle.random.a, oracle.random.b))
    added = beta * oracle.random.c.astype(np.float64) if beta else oracle.bias.astype(np.float64)
    once, twice = a @ b + added, (a @ b).astype(np.float16).astype(np.float64) + added
    if epilogue != "none":
        once, twice = (np.where(x > 0, x, 0.01 * x) for x in (once, twice))
    assert np.allclose(once, oracle.expected, rtol=1e-6)
    got = twice.astype(np.float16).astype(np.float64)
    assert check.measure_errors(np, got, oracle).max_scaled > 10
    assert check.measure_errors(np, got, oracle.for_references()).max_scaled <= 1
    assert check.measure_errors(np, 1.1 * got, oracle.for_references()).max_scaled > 1


@pytest.mark.parametrize(("dtype", "epilogue"), [
    ("fp32", "leaky_relu(10000)"), ("fp32", "leaky_relu(1e38)"), ("fp16", "leaky_relu(1e5)"), ("fp16", "clamp(1e5,1e6)"),
    ("bf16", "gelu+gelu"),
])  # fmt: skip
def test_a_right_result_is_right_after_any_epilogue(dtype: str, epilogue: str) -> None:
    """A steep one enlarges what the sum is off by; what overflows the output's format is infinity, and only with its sign."""
    problem = Problem.of(33, 17, 512, dtype, epilogue=epilogue)
    oracle, out = make_oracle(np, problem, Inputs()), DTYPES[dtype][1]
    a, b = logical(np, problem, oracle.random, "float32")
    with np.errstate(over="ignore"):
        sums = parse_epilogue(epilogue).apply(np, (a @ b).astype(np.float64))
        got = from_float(np, sums, out)
        errors = check.compare(np, got, oracle, out)
        assert errors.max_scaled <= 1
        with pytest.raises(check.Incorrect):
            check.compare(np, from_float(np, -sums, out), oracle, out)
