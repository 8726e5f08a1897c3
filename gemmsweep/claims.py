"""What a source claims beside what was measured, judged over SWEEP and RUN records. Pure.

Two runs are compared through their ratios to the reference of their race, so that a moving clock cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gemmsweep.claim_terms import FIGURES, OTHERS, VENDOR, Claim, Record, Selector, Verdict
from gemmsweep.ranking import is_ranked, is_timed
from gemmsweep.references import yardstick

Race = tuple[Record, Sequence[Record]]  # a sweep and its runs
TIMED = ("tflops", "pct_peak")  # these are as uncertain as the time they are made of


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with its 95% interval; counted figures have none."""

    value: float
    ci95: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim beside what was measured; `races` are the sweep_ids the figure comes from."""

    experiment: str
    claim: Claim
    verdict: Verdict
    figure: Figure | None = None
    run_ids: tuple[str, ...] = ()
    races: tuple[str, ...] = ()


def evaluate(experiment: str, claim: Claim, races: Sequence[Race]) -> Finding:
    """The claim judged by the latest of its experiment's races (oldest first) that hold what it speaks of."""
    latest_first = [race for race in map(_usable(claim), reversed(races)) if race[1]]
    pair = _pair(claim, latest_first)
    figure = None if pair is None else _figure(claim, *pair)
    if pair is None or figure is None:
        return Finding(experiment, claim, "not measured")
    runs = [run for run in pair if run is not None]
    low, high = figure.ci95 or (figure.value, figure.value)
    return Finding(
        experiment, claim, claim.expect.judge(low, high), figure, tuple(str(run["run_id"]) for run in runs),
        tuple(dict.fromkeys(str(run["sweep_id"]) for run in runs)),
    )  # fmt: skip


def _usable(claim: Claim) -> Callable[[Race], Race]:
    """What may be judged by: finished, undisturbed rounds at equal clock; the rest of a race is left out."""

    def narrowed(race: Race) -> Race:
        sweep, runs = race
        counts = sweep["protocol"] == "rounds" and sweep["regime"] == "equal-clock" and sweep["contended"] is False
        wanted = [r for r in runs if is_timed(r) and claim.where.fits(r)]
        if claim.measure != "speed":
            wanted = [r for r in wanted if _own(claim.measure, r) is not None]
        return sweep, wanted if counts else []

    return narrowed


def _pair(claim: Claim, races: Sequence[Race]) -> tuple[Record, Record | None] | None:
    """The run the claim is about, and the one it is compared with (none: with the vendor, or with a bare figure)."""
    axes = [runs for sweep, runs in races if sweep["kind"] == "axis"]
    finals = [runs for sweep, runs in races if sweep["kind"] == "finals"]
    if claim.to is None or claim.to == VENDOR:
        # Finals are fresh rounds: the figure that selected a config flatters it.
        order = finals + axes if claim.to == VENDOR or claim.measure in TIMED else axes + finals
        one = _first(_fastest(runs, claim.of.matches) for runs in order)
        return None if one is None else (one, None)
    for runs in axes + finals:
        one, other = _fastest(runs, claim.of.matches), _fastest(runs, _opponent(claim))
        if one is not None and other is not None:
            return one, other
    one = _first(_fastest(runs, claim.of.matches) for runs in axes + finals)
    other = _first(_fastest(runs, _opponent(claim)) for runs in axes + finals) if claim.to != OTHERS else None
    # Configs of one kernel are compared within a race or not at all.
    return (one, other) if one is not None and other is not None and _kind(one) != _kind(other) else None


def _opponent(claim: Claim) -> Callable[[Record], bool]:
    if isinstance(claim.to, Selector):
        return claim.to.matches
    return lambda run: is_ranked(run["problem"]["acc"]) and not claim.of.matches(run)


def _first(found: Iterator[Record | None]) -> Record | None:
    return next((run for run in found if run is not None), None)


def _fastest(runs: Sequence[Record], wanted: Callable[[Record], bool]) -> Record | None:
    return min(filter(wanted, runs), key=lambda run: float(run["median_us"]), default=None)


def _kind(run: Record) -> tuple[Any, Any]:
    return run["template"], _task(run)


def _task(run: Record) -> Record:
    """The problem but for how the run sums it: kernels of two accuracy classes are two ways to the same C."""
    return {name: value for name, value in run["problem"].items() if name != "acc"}


def _figure(claim: Claim, one: Record, other: Record | None) -> Figure | None:
    if claim.measure == "speed":
        return _to_vendor(one) if other is None else _speed(one, other)
    mine = _own(claim.measure, one)
    if claim.to is None:
        return mine
    theirs = None if other is None else _own(claim.measure, other)
    return _ratio(mine, theirs)


def _own(measure: str, run: Record) -> Figure | None:
    path = ("counters", measure.partition(".")[2], "value") if measure not in FIGURES else FIGURES[measure]
    found: Any = run
    for key in path:
        found = (found or {}).get(key)
    if found is None:
        return None
    interval = run["ci95_us"] if measure in TIMED else None
    scale = found * run["median_us"]
    return Figure(float(found), (scale / interval[1], scale / interval[0]) if interval else None)


def _to_vendor(run: Record, name: str | None = None) -> Figure | None:
    relation = run["references"].get(name or yardstick(sorted(run["references"])) or "")
    if not relation or relation["ratio"] is None:
        return None
    return Figure(relation["ratio"], tuple(relation["ci95"]) if relation["ci95"] else None)


def _speed(one: Record, other: Record) -> Figure | None:
    """How many times as fast `one` is; across problems, by TFLOP/s."""
    shared = yardstick(sorted(set(one["references"]) & set(other["references"])))
    if _task(one) != _task(other) or shared is None:
        return _ratio(_own("tflops", one), _own("tflops", other))
    return _ratio(_to_vendor(one, shared), _to_vendor(other, shared))


def _ratio(one: Figure | None, other: Figure | None) -> Figure | None:
    """The quotient; relative errors add up as if independent. A shared reference makes that wider than need be."""
    if one is None or other is None or not other.value:
        return None
    value = one.value / other.value
    if one.ci95 is None and other.ci95 is None:
        return Figure(value)
    half = math.hypot(*(math.log(f.ci95[1] / f.ci95[0]) / 2 for f in (one, other) if f.ci95))
    return Figure(value, (value * math.exp(-half), value * math.exp(half)))


def newest_device(races: Sequence[Race]) -> str | None:
    """The name of the device of the latest race that has runs."""
    dated = [(sweep["started_at"], runs[0]["device"]["name"]) for sweep, runs in races if runs]
    return max(dated)[1] if dated else None
