"""Where a config that failed its check is wrong: element by element, of the first layer that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gemmsweep import check, special
from gemmsweep.elements import to_float
from gemmsweep.model import DTYPES, Launch
from gemmsweep.oracle import Oracle, logical
from gemmsweep.protocol import Device

MOST = 16384  # positions looked at, row by row: enough to see a pattern


@dataclass(frozen=True, slots=True)
class Element:
    """One wrong element of C."""

    row: int
    column: int
    got: float
    expected: float
    untouched: bool  # it still holds what was there before the launch


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong. No elements: wrong only now and then, or only outside C; `check` says what was seen."""

    check: str
    total: int = 0
    elements: tuple[Element, ...] = ()


def find(device: Device, label: str, oracle: Oracle, launch: Launch, *, patterns: bool) -> Findings:
    """Run the layers of the check once more on a loaded label, up to the first with a wrong element."""
    xp, problem = device.xp, oracle.problem
    out = DTYPES[problem.dtype][1]
    poison = check.poison_bits(problem, finite=launch.reads_c)
    try:
        for name, raw, expected, bad in layers(device, label, oracle, launch, patterns=patterns):
            total = int(bad.sum())
            if total:
                untouched = (check.bits_of(xp, raw) == poison) & (problem.beta == 0)  # with beta, C had been filled
                return Findings(name, total, elements(xp, to_float(xp, raw, out), expected, bad, untouched))
    except check.Incorrect as failure:
        return Findings(failure.checked.reason)
    return Findings("a single launch on the same data was right")


def elements(xp: Any, got: Any, expected: Any, bad: Any, untouched: Any) -> tuple[Element, ...]:
    """The first wrong ones, row by row, fetched from the device in few copies."""
    flat = xp.flatnonzero(bad.ravel())[:MOST]
    columns = (array.ravel()[flat].tolist() for array in (got, expected, untouched))
    width = bad.shape[1]
    return tuple(Element(*divmod(int(i), width), *rest) for i, *rest in zip(flat.tolist(), *columns, strict=True))


def layers(
    device: Device, label: str, oracle: Oracle, launch: Launch, *, patterns: bool
) -> Iterator[tuple[str, Any, Any, Any]]:
    """(name, stored result, fp64 expectation, mask of wrong elements) of one launch after the other."""
    xp, problem, finite = device.xp, oracle.problem, launch.reads_c
    out = DTYPES[problem.dtype][1]
    if oracle.integers is not None and oracle.holds_integers(xp, launch.accuracy):
        raw = check.run_once(device, label, oracle.integers, problem, finite=finite)
        exact = to_float(xp, oracle.exact, out)
        yield "small integers", raw, exact, to_float(xp, raw, out) != exact
    raw = check.run_once(device, label, oracle.random, problem, finite=finite)
    bad = check.out_of_bounds(to_float(xp, raw, out), oracle, launch.accuracy)
    yield "random data", raw, oracle.expected, bad
    if problem.is_plain:
        raw = check.run_once(device, label, oracle.special, problem, finite=finite)
        a, b = logical(xp, problem, oracle.special, "float64")
        expected = a @ b
        yield "planted NaN and Inf", raw, expected, check.differ_beyond_finite(xp, to_float(xp, raw, out), expected)
    if patterns and special.applies(problem):
        for outcome in special.outcomes(device, label, problem, launch.accuracy, finite=finite):
            yield outcome.name, outcome.raw, outcome.expected, outcome.bad
