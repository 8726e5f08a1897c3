"""The verdicts: error rates on simulated and on recorded noise, and the decisions built on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from simulated import look, simulate

from gemmsweep import race
from gemmsweep.analysis.binomial import upper_bound

DATA = Path(__file__).parent.parent / "data"
SHAPES = ("bf16_8192", "bf16_4096", "bf16_2048", "bf16_1x4096", "fp32_4096")


@pytest.mark.parametrize(("p", "df", "expected"), [
    (0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 5, 2.570582), (0.9995, 5, 6.868827), (0.999, 11, 4.024701),
    (0.995, 3, 5.840909), (0.975, 100, 1.983972),
])  # fmt: skip
def test_t_quantiles_are_those_of_the_tables(p: float, df: int, expected: float) -> None:
    assert race.t_quantile(p, df) == pytest.approx(expected, rel=1e-4)


def called_different(slower: list[float], sd: float, sweeps: int, seed: int) -> int:
    """Sweeps with any pair of equal labels told apart."""
    rng = np.random.default_rng(seed)
    verdicts = (look(simulate(rng, slower, sd)) for _ in range(sweeps))
    return sum(any(slower[a] <= slower[b] for a, b in verdict.different) for verdict in verdicts)


@pytest.mark.parametrize("sd", [0.003, 0.01])
def test_identical_labels_are_hardly_ever_called_different(sd: float) -> None:
    assert (
        called_different([0.0] * 6, sd, sweeps=1000, seed=7) <= 30
    )  # 3%; the rules share 5% among all pairs and looks


def test_tied_leaders_are_hardly_ever_called_different() -> None:
    assert called_different([0.0, 0.0] + [0.02] * 4, 0.005, sweeps=600, seed=17) <= 24


@pytest.mark.parametrize(("percent", "least"), [(1, 0.97), (2, 0.99)])
def test_a_true_difference_is_found(percent: int, least: float) -> None:
    rng = np.random.default_rng(8)
    found = [look(simulate(rng, [0.0] + [percent / 100] * 5, 0.005)) for _ in range(300)]
    right = sum(v.kind == "winner" and v.leader == 0 for v in found)
    assert right >= least * len(found)
    assert not any(v.kind == "winner" and v.leader != 0 for v in found)


def test_eight_blocks_of_own_power_keep_the_error_rate() -> None:
    """Two finalists, one look, eight block ratios in forward-backward order under a drift that goes on."""
    rng = np.random.default_rng(12)
    wrong = right = 0
    for _ in range(2000):
        order = np.arange(16).reshape(8, 2)
        order[1::2] = order[1::2, ::-1]
        drift = rng.uniform(-0.001, 0.001) * order
        times = np.exp(rng.normal(0, 0.002, (8, 2)) + drift)
        wrong += bool(race.decide(times, min_effect=0.005, looks=1).different)
        verdict = race.decide(times * np.array([1.0, 1.04]), min_effect=0.005, looks=1)
        right += (verdict.kind, verdict.leader) == ("winner", 0)
    assert wrong <= 40
    assert right == 2000


def test_bounds_of_a_rate_are_those_of_clopper_and_pearson() -> None:
    assert upper_bound(0, 20) == pytest.approx(0.1391, abs=1e-4)
    assert upper_bound(0, 60) == pytest.approx(0.0487, abs=1e-4)
    assert upper_bound(1, 10) == pytest.approx(0.3942, abs=1e-4)
    assert upper_bound(3, 3) == 1.0


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


def test_one_percent_on_recorded_noise_is_found_in_nine_of_ten() -> None:
    found = trials = 0
    for shape in SHAPES:
        for index, sweep in enumerate(np.load(DATA / "aa_rounds.npz")[f"{shape}_ms"][:, :, :6]):
            fastest = index % 6
            verdict = look(np.where(np.arange(6) == fastest, sweep, sweep * 1.01))
            found += (verdict.kind, verdict.leader) == ("winner", fastest)
            trials += 1
    assert trials >= 46
    assert found >= 0.9 * trials


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
