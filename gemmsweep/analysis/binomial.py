"""What a count of events among trials says of their rate."""

from __future__ import annotations

import math


def at_most(events: int, trials: int, rate: float) -> float:
    """Probability of no more than `events` in `trials` independent trials."""
    return sum(math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(events + 1))


def upper_bound(events: int, trials: int, confidence: float = 0.95) -> float:
    """One-sided Clopper-Pearson bound: the highest rate at which so few events are not yet improbable (1 without trials)."""
    if events >= trials:
        return 1.0
    low, high = events / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(events, trials, middle) > 1 - confidence else (low, middle)
    return high
