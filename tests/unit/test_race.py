"""The verdicts: error rates on simulated and on recorded noise, and the decisions built on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemmsweep import race

DATA = Path(__file__).parent.parent / "data"
SHAPES = ("bf16_8192", "bf16_4096", "bf16_2048", "bf16_1x4096", "fp32_4096")


def look(times: np.ndarray, min_effect: float = 0.005) -> race.Verdict:
    """The verdict of a race that stops by the rules."""
    for rounds in (r for r in race.LOOKS if r <= len(times)):
        verdict = race.decide(times[:rounds], min_effect=min_effect)
        if race.stop_reason(verdict):
            break
    return verdict


def simulate(rng: np.random.Generator, slower: list[float], sd: float, rounds: int = 160) -> np.ndarray:
    """Times of labels with a common drifting, stepping clock, autocorrelated own noise and outliers."""
    k = len(slower)
    own = rng.normal(0, sd, (rounds, k))
    for r in range(1, rounds):
        own[r] = 0.5 * own[r - 1] + np.sqrt(0.75) * own[r]
    clock = 0.02 * np.exp(-np.arange(rounds) / 15) + rng.choice([0, 0.03], rounds, p=[0.9, 0.1])
    outliers = rng.random((rounds, k)) < 0.01
    return 1e6 * np.exp(own + clock[:, None] + outliers * 0.05) * (1 + np.array(slower))


@pytest.mark.parametrize(("p", "df", "expected"), [
    (0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 5, 2.570582), (0.9995, 5, 6.868827), (0.999, 11, 4.024701),
    (0.995, 3, 5.840909), (0.975, 100, 1.983972),
])  # fmt: skip
def test_t_quantiles_are_those_of_the_tables(p: float, df: int, expected: float) -> None:
    assert race.t_quantile(p, df) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("sd", [0.003, 0.01])
def test_identical_labels_are_hardly_ever_called_different(sd: float) -> None:
    rng = np.random.default_rng(7)
    wrong = sum(bool(look(simulate(rng, [0.0] * 6, sd)).different) for _ in range(300))
    assert wrong <= 9  # 3%; the documented rate at sd 1% is 2%


def test_a_true_percent_is_found() -> None:
    rng = np.random.default_rng(8)
    found = [look(simulate(rng, [0.0] + [0.01] * 5, 0.005)) for _ in range(100)]
    assert sum(v.kind == "winner" and v.leader == 0 for v in found) >= 95


@pytest.mark.parametrize("shape", SHAPES)
def test_recorded_noise_of_identical_kernels_gives_no_false_difference(shape: str) -> None:
    recorded = np.load(DATA / "aa_rounds.npz")[f"{shape}_ms"][:, :, :6]
    assert not any(look(sweep).different for sweep in recorded)


@pytest.mark.parametrize("shape", SHAPES)
def test_two_percent_on_recorded_noise_is_always_found(shape: str) -> None:
    recorded = np.load(DATA / "aa_rounds.npz")[f"{shape}_ms"][:, :, :6]
    for index, sweep in enumerate(recorded):
        fastest = index % 6
        verdict = look(np.where(np.arange(6) == fastest, sweep, sweep * 1.02))
        assert (verdict.kind, verdict.leader) == ("winner", fastest)


def test_tied_leaders_are_told_from_the_rest_but_not_from_each_other() -> None:
    rng = np.random.default_rng(9)
    verdict = look(simulate(rng, [0.0, 0.0, 0.02, 0.02, 0.02, 0.02], 0.002))
    assert verdict.kind == "tie"
    assert {verdict.leader, *verdict.ties} == {0, 1}
    assert {slow for slow, _ in verdict.different} == {2, 3, 4, 5}


def test_a_label_far_behind_leaves_after_five_rounds_and_still_counts_as_worse() -> None:
    rng = np.random.default_rng(10)
    times = simulate(rng, [0.0, 0.0, 1.0], 0.001, rounds=20)
    assert race.leavers(times[:4]) == ()
    assert race.leavers(times[:5]) == (2,)
    times[5:, 2] = np.nan
    verdict = race.decide(times, left=[2], min_effect=0.005)
    assert verdict.kind == "tie"
    assert verdict.different == ((2, verdict.leader),)


def test_one_label_left_wins() -> None:
    times = np.array([[1.0, 2.0]] * 5)
    verdict = race.decide(times, left=[1], min_effect=0.005)
    assert (verdict.kind, verdict.leader) == ("winner", 0)
    assert verdict.margin == pytest.approx(np.log(2))


def test_ratio_and_median_intervals_cover_the_truth() -> None:
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(200):
        times = simulate(rng, [0.0, 0.05], 0.005, rounds=40)
        ratio, (low, high) = race.ratio_ci(times[:, 1], times[:, 0])
        assert low <= ratio <= high
        hits += low <= 1.05 <= high
    assert hits >= 172  # 95% is nominal; with 40 autocorrelated rounds about 91% are reached


def test_constant_times_have_no_width() -> None:
    assert race.median_ci([5.0] * 10) == (5.0, (5.0, 5.0))
    assert race.decide(np.array([[1.0, 1.0]] * 10), min_effect=0.005).kind == "tie"
