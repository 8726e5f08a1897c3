"""What loads a device between the bursts that are asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gemmsweep.protocol import Burst
from gemmsweep.warmth import Warmth

HOT_MHZ = 1400


class Card:
    """Counts its bursts; every one takes no time, at the clock of a card at its power limit."""

    info = SimpleNamespace(power_limit_w=700.0)

    def __init__(self) -> None:
        self.bursts = 0

    def burst(self, label: str) -> Burst:
        self.bursts += 1
        return Burst(label, 8_000_000, 1, sm_clock_mhz=HOT_MHZ)


@pytest.mark.parametrize(
    ("burst_ms", "clock_mhz", "loads"),
    [
        (60, 1900, True),  # one launch of a kernel that hardly loads the card
        (60, HOT_MHZ, False),  # as long, and as heavy
        (8, 1900, False),  # over before the clock has moved
        (60, None, False),  # no clock to judge by
    ],
)
def test_a_long_light_burst_is_made_up_for(burst_ms: int, clock_mhz: int | None, loads: bool) -> None:
    card: Any = Card()
    warmth = Warmth(card, None)
    warmth.label = "cublas"
    warmth.warm_up("cublas", 0.0)
    seen = iter([False, True])
    warmth.keep(lambda: next(seen))
    before = card.bursts
    warmth.make_up(Burst("naive", burst_ms * 1_000_000, 1, sm_clock_mhz=clock_mhz))
    assert (card.bursts > before) is loads


def test_a_card_that_is_not_kept_warm_is_left_alone() -> None:
    card: Any = Card()
    Warmth(card, None).make_up(Burst("naive", 60_000_000, 1, sm_clock_mhz=1900))
    assert card.bursts == 0
