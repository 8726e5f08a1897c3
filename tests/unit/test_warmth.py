"""What loads a device between the bursts that are asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gemmsweep import warmth
from gemmsweep.bench import Bench
from gemmsweep.protocol import Burst
from gemmsweep.warmth import Warmth

HOT_MHZ, WARM_MS = 1400, 8.0


class Card:
    """Time passes by its bursts alone. `slow`: label → ms of a burst, and its clock; others load the card fully."""

    info = SimpleNamespace(power_limit_w=700.0)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slow: dict[str, tuple[float, int | None]]) -> None:
        self.now, self.slow = 100.0, slow
        self.log: list[str] = []
        monkeypatch.setattr(warmth.time, "monotonic", lambda: self.now)

    def burst(self, label: str) -> Burst:
        burst_ms, clock_mhz = self.slow.get(label, (WARM_MS, HOT_MHZ))
        self.now += burst_ms / 1e3
        self.log.append(label)
        return Burst(label, round(burst_ms * 1e6), 1, sm_clock_mhz=clock_mhz)


@pytest.mark.parametrize(
    ("burst_ms", "clock_mhz", "loads_ms"),
    [
        (400, 1900, 400),  # one launch of a kernel that hardly loads the card
        (60, 1900, 60),
        (60, HOT_MHZ, 0),  # as long, and as heavy
        (8, 1900, 0),  # over before the clock has moved
        (60, None, 0),  # no clock to judge by
    ],
)
def test_a_long_light_burst_is_made_up_for_before_the_next(
    monkeypatch: pytest.MonkeyPatch, burst_ms: float, clock_mhz: int | None, loads_ms: float
) -> None:
    card: Any = Card(monkeypatch, {"naive": (burst_ms, clock_mhz)})
    bench: Any = object.__new__(Bench)
    bench.device, bench.nvml, bench.warmth = card, None, Warmth(card, None)
    bench.keep_warm("cublas")
    bench.warm_up("cublas", 0.1)
    card.log.clear()
    bursts = [burst.label for burst in bench.round(["a", "naive", "b"])]
    assert bursts == ["a", "naive", "b"]
    between = card.log[card.log.index("naive") + 1 : card.log.index("b")]
    assert set(between) <= {"cublas"}
    assert len(between) * WARM_MS == pytest.approx(loads_ms, abs=WARM_MS)


def test_a_card_that_is_not_kept_warm_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    card: Any = Card(monkeypatch, {})
    Warmth(card, None).make_up(Burst("naive", 60_000_000, 1, sm_clock_mhz=1900))
    assert card.log == []


def test_a_card_at_rest_is_loaded_for_as_long_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    card: Any = Card(monkeypatch, {})
    Warmth(card, None).warm_up("cublas", 3.0)
    assert len(card.log) * WARM_MS == pytest.approx(3000, abs=2 * WARM_MS)
