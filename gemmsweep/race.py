"""What the rounds of a race say: intervals, pairs, the verdict, and when to stop. Pure.

In every round each label runs one burst, in fresh random order, so a clock that falls slows all of them alike: only ratios within
a round are compared. A pair's statistic is the 20% trimmed mean of its log ratios with Yuen's standard error (Yuen 1974), widened
by sqrt((1 + r1) / (1 - r1)) for the lag-1 autocorrelation r1. The error rate is shared by all ordered pairs and looks (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

LOOKS = (10, 20, 40, 80, 160)
ALPHA = 0.05
TRIM = 0.2
NARROW = 0.0025  # a half-width at which more rounds would not change anyone's mind
LEAVE_AFTER, LEAVE_RATIO = 5, 1.5


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: int) -> float:
    """Quantile p > 0.5 of Student's t, by G. W. Hill's algorithm 396 (CACM 13, 1970); within 1e-4 of tables for df >= 3."""
    tail = 2 * (1 - p)
    if df == 1:
        return 1 / math.tan(tail * math.pi / 2)
    if df == 2:
        return math.sqrt(2 / (tail * (2 - tail)) - 2)
    a = 1 / (df - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * df
    y = (d * tail) ** (2 / df)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(tail / 2)
        y = x * x
        if df < 5:
            c += 0.3 * (df - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1 / (((df + 6) / (df * y) - 0.089 * d - 0.822) * (df + 2) * 3) + 0.5 / (df + 4)) * y - 1) * (df + 1) / (
            df + 2
        ) + 1 / y
    return math.sqrt(df * y)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A trimmed mean of log ratios with its standard error and degrees of freedom."""

    mean: float
    se: float
    df: int

    def half_width(self, alpha: float) -> float:
        """Of a one-sided interval at level alpha."""
        return t_quantile(1 - alpha, self.df) * self.se


def estimate(d: Array) -> Estimate:
    """Yuen's trimmed mean of a series in time order (NaN = the label was not in that round)."""
    import numpy as np

    d = d[~np.isnan(d)]
    n = len(d)
    if n < 3:
        return Estimate(float(d.mean()) if n else math.nan, math.inf, 1)
    cut = int(TRIM * n)
    kept = n - 2 * cut
    ordered = np.sort(d)
    low, high = ordered[cut], ordered[n - cut - 1]
    winsorized = np.clip(d, low, high)
    centred = winsorized - winsorized.mean()
    square = float(centred @ centred)
    mean = float(ordered[cut : n - cut].mean())
    if square == 0.0:
        return Estimate(mean, 0.0, kept - 1)
    r1 = float(centred[1:] @ centred[:-1]) / square
    # The sample autocorrelation of a short series is too low by about (1 + 3 r1) / n (Marriott and Pope 1954).
    r1 = min(max(r1 + (1 + 3 * r1) / n, 0.0), 0.9)
    se = math.sqrt(square / (kept * (kept - 1))) * math.sqrt((1 + r1) / (1 - r1))
    return Estimate(mean, se, kept - 1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Winner: every other is worse. Tie: the others are worse or within `min_effect`. Else undecided.

    `ties` are labels not told apart from the leader; `margin` is, for a winner, its lead over the next (log ratio), else the widest
    upper bound among `ties`; `half_width` the widest pair interval with the leader; `different` the ordered pairs (worse, better).
    """

    kind: str
    leader: int
    ties: tuple[int, ...]
    margin: float
    half_width: float
    different: tuple[tuple[int, int], ...]


def decide(times: Array, *, min_effect: float, left: Collection[int] = (), looks: int = len(LOOKS)) -> Verdict:
    """The verdict on `times` (rounds, labels), ns per launch, NaN where a label had left the race.

    Labels in `left` were found certainly slow (see `leavers`); they count as different from the leader and take no part otherwise.
    """
    import numpy as np

    racing = [i for i in range(times.shape[1]) if i not in left] or list(range(times.shape[1]))
    left = [i for i in left if i not in racing]
    if len(racing) == 1:
        lone = racing[0]
        margin = min((estimate(np.log(times[:, i]) - np.log(times[:, lone])).mean for i in left), default=math.inf)
        return Verdict("winner", lone, (), margin, 0.0, tuple((i, lone) for i in left))
    found = decide_racing(np.log(times[:, racing]), min_effect=min_effect, looks=looks)
    leader = racing[found.leader]
    different = tuple((racing[i], racing[j]) for i, j in found.different) + tuple((i, leader) for i in left)
    return replace(found, leader=leader, ties=tuple(racing[i] for i in found.ties), different=different)


def decide_racing(logs: Array, *, min_effect: float, looks: int) -> Verdict:
    """`decide` for labels that ran in every round; `logs` are log times (rounds, labels)."""
    k = logs.shape[1]
    alpha = ALPHA / (k * (k - 1) * looks)
    worse_by = math.log1p(min_effect)
    pairs = {(i, j): estimate(logs[:, i] - logs[:, j]) for i in range(k) for j in range(i + 1, k)}

    def versus(i: int, j: int) -> Estimate:
        """log(t_i / t_j): above 0, i is slower."""
        if i < j:
            return pairs[i, j]
        p = pairs[j, i]
        return Estimate(-p.mean, p.se, p.df)

    def worse(i: int, j: int) -> bool:
        e = versus(i, j)
        return e.mean - e.half_width(alpha) > 0 and e.mean >= worse_by

    leader = min(range(k), key=lambda i: sum(versus(i, j).mean for j in range(k) if j != i))
    others = [i for i in range(k) if i != leader]
    different = tuple((i, j) for i in range(k) for j in range(k) if i != j and worse(i, j))
    half_width = max(versus(i, leader).half_width(alpha) for i in others)
    ties = tuple(i for i in others if (i, leader) not in different)
    if not ties:
        return Verdict("winner", leader, (), min(versus(i, leader).mean for i in others), half_width, different)
    upper = max(versus(i, leader).mean + versus(i, leader).half_width(alpha) for i in ties)
    return Verdict("tie" if upper < worse_by else "undecided", leader, ties, upper, half_width, different)


def stop_reason(verdict: Verdict) -> str | None:
    """At a look: "decided", "narrow", or None to go on."""
    if verdict.kind != "undecided":
        return "decided"
    return "narrow" if verdict.half_width <= NARROW else None


def leavers(times: Array) -> tuple[int, ...]:
    """Labels certainly more than 1.5x slower than the leader after five rounds: their row is kept, their bursts are not."""
    import numpy as np

    logs = np.log(times)
    racing = [i for i in range(logs.shape[1]) if not np.isnan(logs[-1, i])]
    if len(logs) < LEAVE_AFTER or len(racing) < 2:
        return ()
    leader = min(racing, key=lambda i: float(np.nanmedian(logs[:, i])))
    alpha = ALPHA / (len(racing) - 1)
    gone = []
    for i in racing:
        e = estimate(logs[:, i] - logs[:, leader])
        if i != leader and e.mean - e.half_width(alpha) > math.log(LEAVE_RATIO):
            gone.append(i)
    return tuple(gone)


def ratio_ci(reference: Array, times: Array) -> tuple[float, tuple[float, float]]:
    """Reference time / kernel time from the rounds both ran, with its two-sided 95% interval."""
    import numpy as np

    e = estimate(np.log(reference) - np.log(times))
    half = e.half_width(0.025)
    return math.exp(e.mean), (math.exp(e.mean - half), math.exp(e.mean + half))


def median_ci(times: Sequence[float] | Array) -> tuple[float, tuple[float, float]]:
    """Median of a label's times with a 95% interval whose width is that of their trimmed mean; an open one of two rounds."""
    import numpy as np

    values = np.asarray(times, dtype=np.float64)
    values = values[~np.isnan(values)]
    median = float(np.median(values))
    if len(values) < 3:
        return median, (0.0, math.inf)
    half = estimate(np.log(values)).half_width(0.025)
    return median, (median * math.exp(-half), median * math.exp(half))


def spread(times: Array) -> float:
    """Max / min of the labels' ratios, minus 1: what an A/A race should find to be nothing."""
    import numpy as np

    logs = np.log(times)
    common = logs.mean(axis=1, keepdims=True)
    means = [estimate(logs[:, i] - common[:, 0]).mean for i in range(logs.shape[1])]
    return math.expm1(max(means) - min(means))
