"""Operands at the edges of their formats, made so that the right answer is exact in any order of summation.

Beyond the planted NaN and Inf of every check: several of them at corners, -0, subnormals, the largest finite numbers, sums that
must overflow the output, and sums that fp32 holds on the way where fp16 would overflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gemmsweep.check import Incorrect, run_once, where_wrong
from gemmsweep.elements import from_float, to_float
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.model import DTYPES, Accuracy, Checked, Problem
from gemmsweep.oracle import Matrices, padded
from gemmsweep.protocol import Device
from gemmsweep.ranking import is_ranked

# The largest and the smallest number that the multiplier takes as it is; of tf32, of those with 10 bits of mantissa.
LARGEST = {"fp32": 2.0**128 - 2.0**104, "tf32": 2.0**128 - 2.0**117, "fp16": 65504.0, "bf16": 2.0**128 - 2.0**120}
SMALLEST = {"fp32": 2.0**-149, "tf32": 2.0**-136, "fp16": 2.0**-24, "bf16": 2.0**-133}
EXACT_EPILOGUES = ("none", "relu")  # what they do to an exact number is exact, NaN and Inf included
OVERFLOW_K = 512  # products of 16 by 16 whose sum passes 65504


@dataclass(frozen=True, slots=True)
class Pattern:
    """A and B in fp64, (m, k) and (k, n), every value representable in the inputs' type."""

    name: str
    a: Any
    b: Any
    may_flush: bool = False  # a result of 0 is right too


@dataclass(frozen=True, slots=True)
class Outcome:
    """A pattern's result beside what it must be: fp64 (m, n), and where they disagree."""

    name: str
    matrices: Matrices
    raw: Any  # as stored
    got: Any
    expected: Any
    bad: Any


def applies(problem: Problem) -> bool:
    """Whether the right answers are exact for such a problem."""
    return problem.epilogue in EXACT_EPILOGUES and not problem.beta


def patterns(xp: Any, problem: Problem, acc: str) -> Iterator[Pattern]:
    """Those that say something for this problem, and for kernels that accumulate in `acc`."""
    m, n, k, dtype = problem.m, problem.n, problem.k, problem.dtype
    i, j, depth = xp.arange(m)[:, None], xp.arange(n)[None, :], xp.arange(k)
    a = ((3 * i + depth[None, :]) % 5 - 2).astype(xp.float64)
    b = ((2 * depth[:, None] + j) % 5 - 2).astype(xp.float64)
    pick = xp.where((7 * j + 3) % k == depth[:, None], 1.0 - 2.0 * (j % 2), 0.0)  # one +1 or -1 in every column
    sign = 1.0 - 2.0 * ((i + depth[None, :]) % 2)
    yield Pattern("infinities and NaN", *plant(xp, a, b))
    yield Pattern("negative zero", xp.full((m, k), -0.0), b)
    yield Pattern("subnormals", (1 + (i + depth[None, :]) % 7) * SMALLEST[dtype], pick, may_flush=dtype == "tf32")
    yield Pattern("largest finite", LARGEST[dtype] * sign, pick)
    # Tensor cores round sums toward zero, so that beyond fp32's largest they need not give Inf: only where fp32 is the
    # sum of single roundings, or far wider than the output, is there one right answer.
    if k >= 2 and dtype in ("fp32", "fp16") and is_ranked(acc):
        two = xp.where(depth[:, None] < 2, 1.0, 0.0) + xp.zeros((k, n))
        yield Pattern("overflow of the output", LARGEST[dtype] * (1.0 - 2.0 * (i % 2)) + xp.zeros((m, k)), two)
    if k >= 2 * OVERFLOW_K and is_ranked(acc):
        half = k // 2
        up_down = xp.where(depth < half, 16.0, xp.where(depth < 2 * half, -16.0, 1.0))
        yield Pattern(
            "sums beyond fp16 on the way", 16.0 * (1.0 - 2.0 * (i % 2)) + xp.zeros((m, k)), up_down[:, None] + 0 * b
        )


def plant(xp: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """NaN and both infinities at corners and in the middle of A and B, as far as there is room."""
    a, b = a.copy(), b.copy()
    (m, k), n = a.shape, b.shape[1]
    a[0, 0], a[m - 1, k - 1] = xp.inf, -xp.inf
    if m > 2:
        a[m // 2, k // 2] = xp.nan
    if n > 1:
        b[k - 1, n - 1] = xp.inf
    if n > 2:
        b[0, n // 2] = xp.nan
    return a, b


def stored(xp: Any, problem: Problem, pattern: Pattern) -> Matrices:
    """The pattern as a kernel reads it; C is only a place to write to."""
    a_type, c_type = DTYPES[problem.dtype][:2]
    b = pattern.b if problem.layout == "nn" else pattern.b.T
    return Matrices(
        padded(xp, pattern.a, problem.lda, a_type),
        padded(xp, b, problem.ldb, a_type),
        padded(xp, xp.zeros((problem.m, problem.n)), problem.ldd, c_type),
    )


def outcomes(device: Device, label: str, problem: Problem, accuracy: Accuracy, *, finite: bool) -> Iterator[Outcome]:
    """Every pattern run once on a loaded label. Raises Incorrect where it writes outside C."""
    xp, out = device.xp, DTYPES[problem.dtype][1]
    for pattern in patterns(xp, problem, accuracy.acc):
        matrices = stored(xp, problem, pattern)
        raw = run_once(device, label, matrices, problem, finite=finite)
        got = to_float(xp, raw, out)
        exact = parse_epilogue(problem.epilogue).apply(xp, pattern.a @ pattern.b)
        expected = to_float(xp, from_float(xp, exact, out), out)
        yield Outcome(pattern.name, matrices, raw, got, expected, disagree(xp, pattern, got, expected, accuracy))


def disagree(xp: Any, pattern: Pattern, got: Any, expected: Any, accuracy: Accuracy) -> Any:
    """Where a result is not the right one; -0 and +0 are the same, and a NaN is like any other."""
    right = (got == expected) | (xp.isnan(got) & xp.isnan(expected))
    if pattern.may_flush:
        right |= got == 0
    if accuracy.unit:  # of a coarser class: each product may be off by 1/unit of itself, and more than once
        allowed = accuracy.per_product * (abs(pattern.a) @ abs(pattern.b))
        right |= xp.isfinite(expected) & (abs(got - expected) <= allowed)
    return ~right


def check_special_values(device: Device, label: str, problem: Problem, accuracy: Accuracy, *, finite: bool) -> Checked:
    """All patterns; the first that comes out wrong is the reason."""
    try:
        for outcome in outcomes(device, label, problem, accuracy, finite=finite):
            if bool(outcome.bad.any()):
                xp = device.xp
                raise Incorrect(f"{outcome.name}: " + where_wrong(xp, outcome.bad, outcome.got, outcome.expected))
    except Incorrect as failure:
        return failure.checked
    return Checked("ok")
