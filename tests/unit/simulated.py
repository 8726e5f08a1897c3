"""Simulated races with what real ones have: a settling, stepping clock, noise that remembers, outliers, mid-round throttling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemmsweep import race

MEMORY = 0.5  # lag-1 autocorrelation of a label's own noise


def simulate(rng: np.random.Generator, slower: Sequence[float], sd: float, rounds: int = 160) -> np.ndarray:
    """ns per launch (rounds, labels); `slower` are true relative differences, `sd` the log standard deviation of a burst."""
    k = len(slower)
    own = rng.normal(0, sd, (rounds, k))
    for r in range(1, rounds):
        own[r] = MEMORY * own[r - 1] + np.sqrt(1 - MEMORY**2) * own[r]
    clock = 0.02 * np.exp(-np.arange(rounds) / 15) + rng.choice([0, 0.03], rounds, p=[0.9, 0.1])
    outliers = 0.05 * (rng.random((rounds, k)) < 0.01)
    # The clock falls while a round is under way: the labels after that point run slower in it, in random order.
    falls = rng.random(rounds) < 0.05
    place = rng.permuted(np.tile(np.arange(k), (rounds, 1)), axis=1)
    fall = (
        falls[:, None] * (place >= rng.integers(1, k + 1, rounds)[:, None]) * rng.uniform(0.01, 0.05, rounds)[:, None]
    )
    return 1e6 * np.exp(own + clock[:, None] + outliers + fall) * (1 + np.array(slower))


def outcome(times: np.ndarray, min_effect: float = 0.005) -> tuple[race.Verdict, int]:
    """The verdict of a race that stops by the rules, and its rounds."""
    for rounds in (r for r in race.LOOKS if r <= len(times)):
        verdict = race.decide(times[:rounds], min_effect=min_effect)
        if race.stop_reason(verdict):
            break
    return verdict, rounds


def look(times: np.ndarray, min_effect: float = 0.005) -> race.Verdict:
    """The verdict alone."""
    return outcome(times, min_effect)[0]
