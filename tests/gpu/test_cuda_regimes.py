"""Known differences are exact on a real GPU, and own-power blocks have a clock and a power."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gemmsweep.bench import Entrant
from gemmsweep.model import Inputs, Problem
from gemmsweep.protocol import DeviceSpec
from gemmsweep.worker import Worker

pytestmark = pytest.mark.gpu
PROBLEM = Problem.of(1024, 1024, 1024, "fp16", "nt")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(DeviceSpec("cuda")) as opened:
        opened.prepare(PROBLEM, Inputs(), "cold")
        opened.enter_reference(Entrant("cublas"), 4.0)
        yield opened


def test_further_names_report_fewer_launches_than_they_make(worker: Worker) -> None:
    reported = worker.repeat("cublas", {"true": 0, "slow": 100}, 4.0)
    assert reported % 10 == 0
    worker.warm_up("cublas", 1.0)
    ratios = []
    for _ in range(20):
        worker.start_round(["true", "slow"])
        true, slow = worker.finish_round(["true", "slow"])
        assert true.launches == slow.launches == reported
        ratios.append(slow.burst_ns / true.burst_ns)
    assert sorted(ratios)[10] == pytest.approx(1.1, abs=0.02)


def test_a_block_keeps_what_follows_its_first_part(worker: Worker) -> None:
    worker.recalibrate("cublas", 20.0)
    block = worker.block("cublas", 1.0, 0.4)
    assert 0.5e9 < block.burst_ns < 0.75e9
    assert block.sm_clock_mhz is not None
    assert block.power_mw is None or 50_000 < block.power_mw < 1_500_000


def test_a_rested_burst_is_short(worker: Worker) -> None:
    worker.recalibrate("cublas", 1.0)
    assert worker.rested("cublas", 0.2).burst_ns < 3e6
