"""How often the verdicts are wrong: thousands of simulated sweeps per case, minutes. The short version is tests/unit/test_race.py.

Run: python tests/benchmarks/bench_error_rates.py [SWEEPS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))
from simulated import outcome, simulate

from gemmsweep.analysis.binomial import upper_bound

CASES = {
    "six identical": [0.0] * 6,
    "two tied, four +2%": [0.0, 0.0] + [0.02] * 4,
    "one faster by 1%": [0.0] + [0.01] * 5,
    "one faster by 2%": [0.0] + [0.02] * 5,
    "one faster by 0.5%": [0.0] + [0.005] * 5,
}


def main(sweeps: int) -> None:
    """One line per case and noise."""
    print(f"{'case':<20} {'sd':>5} {'wrong':>7} {'<95%':>7} {'winner is right':>16} {'rounds':>7}")
    for name, slower in CASES.items():
        for sd in (0.003, 0.005, 0.01):
            rng = np.random.default_rng(1)
            found = [outcome(simulate(rng, slower, sd)) for _ in range(sweeps)]
            wrong = sum(any(slower[a] <= slower[b] for a, b in v.different) for v, _ in found)
            right = sum(v.kind == "winner" and slower[v.leader] == 0 and slower.count(0.0) == 1 for v, _ in found)
            rounds = sum(r for _, r in found) / sweeps
            bound = upper_bound(wrong, sweeps)
            print(f"{name:<20} {sd:>5.1%} {wrong / sweeps:>7.2%} {bound:>7.2%} {right / sweeps:>16.1%} {rounds:>7.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
