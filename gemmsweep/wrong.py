"""Where a config that failed its check is wrong: element by element, of the first layer that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gemmsweep import check, special
from gemmsweep.elements import to_float
from gemmsweep.model import DTYPES, Launch, Problem
from gemmsweep.oracle import Matrices, Oracle, logical
from gemmsweep.protocol import Device

# Bits of 1.4: what a kernel adds to it shows, which beside a large number may be lost in rounding.
NUMBER = {"fp16": 0x3DA5, "bf16": 0x3FB5, "fp32": 0x3FB5A5A5}
MOST = 16384  # positions looked at, row by row: enough to see a pattern


@dataclass(frozen=True, slots=True)
class Element:
    """One wrong element of C."""

    row: int
    column: int
    got: float
    expected: float
    untouched: bool  # it still holds what was there before the launch
    nan_read: bool  # NaN because the kernel read what C and the bands around it were filled with


@dataclass(frozen=True, slots=True)
class Layer:
    """One launch of the check: stored result, fp64 expectation, mask of wrong elements."""

    name: str
    matrices: Matrices
    raw: Any
    expected: Any
    bad: Any


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
    try:
        for layer in layers(device, label, oracle, launch, patterns=patterns):
            total = int(layer.bad.sum())
            if total:
                masks = fates(device, label, layer, problem, finite=launch.reads_c)
                found = elements(xp, to_float(xp, layer.raw, out), layer.expected, layer.bad, *masks)
                return Findings(layer.name, total, found)
    except check.Incorrect as failure:
        return Findings(failure.checked.reason)
    return Findings("a single launch on the same data was right")


def fates(device: Device, label: str, layer: Layer, problem: Problem, *, finite: bool) -> tuple[Any, Any]:
    """Which elements were not written, and which are NaN because the kernel read what C and its bands were filled with.

    Bits do not tell: a CPU's arithmetic hands those of a NaN on. Filled with numbers, what was read changes with them.
    """
    xp, out = device.xp, DTYPES[problem.dtype][1]
    filled = check.bits_of(xp, layer.raw) == check.poison_bits(problem, finite=finite)
    filled &= problem.beta == 0  # with beta, C had been given values
    nan = layer.bad & xp.isnan(to_float(xp, layer.raw, out))
    if finite or not bool(nan.any()):
        return filled, xp.zeros_like(filled)
    with suppress(check.Incorrect):  # what it finds outside C now is not what the first launch showed
        again = check.run_once(device, label, layer.matrices, problem, finite=True, pattern=NUMBER[out])
        untouched = filled & (check.bits_of(xp, again) == NUMBER[out])
        # And NaN once more with NaN there: not one that comes and goes.
        third = check.run_once(device, label, layer.matrices, problem, finite=False)
        steady = nan & xp.isnan(to_float(xp, third, out))
        return untouched, steady & ~untouched & ~xp.isnan(to_float(xp, again, out))
    return xp.zeros_like(filled), xp.zeros_like(filled)


def elements(xp: Any, got: Any, expected: Any, bad: Any, untouched: Any, nan_read: Any) -> tuple[Element, ...]:
    """The first wrong ones, row by row, fetched from the device in few copies."""
    flat = xp.flatnonzero(bad.ravel())[:MOST]
    columns = (array.ravel()[flat].tolist() for array in (got, expected, untouched, nan_read))
    width = bad.shape[1]
    return tuple(Element(*divmod(int(i), width), *rest) for i, *rest in zip(flat.tolist(), *columns, strict=True))


def layers(device: Device, label: str, oracle: Oracle, launch: Launch, *, patterns: bool) -> Iterator[Layer]:
    """One launch after the other."""
    xp, problem, finite = device.xp, oracle.problem, launch.reads_c
    out = DTYPES[problem.dtype][1]
    if oracle.integers is not None and oracle.holds_integers(xp, launch.accuracy):
        raw = check.run_once(device, label, oracle.integers, problem, finite=finite)
        exact = to_float(xp, oracle.exact, out)
        yield Layer("small integers", oracle.integers, raw, exact, to_float(xp, raw, out) != exact)
    raw = check.run_once(device, label, oracle.random, problem, finite=finite)
    bad = check.out_of_bounds(xp, to_float(xp, raw, out), oracle, launch.accuracy)
    yield Layer("random data", oracle.random, raw, oracle.expected, bad)
    if problem.is_plain:
        raw = check.run_once(device, label, oracle.special, problem, finite=finite)
        a, b = logical(xp, problem, oracle.special, "float64")
        expected = a @ b
        bad = check.differ_beyond_finite(xp, to_float(xp, raw, out), expected)
        yield Layer("planted NaN and Inf", oracle.special, raw, expected, bad)
    if patterns and special.applies(problem):
        for outcome in special.outcomes(device, label, problem, launch.accuracy, finite=finite):
            yield Layer(outcome.name, outcome.matrices, outcome.raw, outcome.expected, outcome.bad)
