"""Occupancy and roofline against figures of the vendor's calculator and data sheets."""

from __future__ import annotations

import pytest

from gemmsweep.analysis import roofline
from gemmsweep.analysis.account import account, arch_number, offline_device
from gemmsweep.errors import UsageError
from gemmsweep.model import DeviceInfo, Problem

H200 = DeviceInfo("cuda", "NVIDIA H200", "GPU-1", "sm_90", 132, 141 << 30, 60 << 20, 232448, 1980, 700.0)


@pytest.mark.parametrize(("threads", "registers", "smem_bytes", "ctas", "occupancy", "bound_by"), [
    (256, 128, 33792, 2, 25.0, "registers"),
    (128, 168, 20480, 3, 18.75, "registers"),
    (1024, 32, 0, 2, 100.0, "threads"),
    (256, 32, 120 * 1024, 1, 12.5, "shared memory"),
    (32, 16, 0, 32, 50.0, "blocks"),
])  # fmt: skip
def test_occupancy_on_sm_90(
    threads: int, registers: int, smem_bytes: int, ctas: int, occupancy: float, bound_by: str
) -> None:
    found = account("sm_90", 132, threads=threads, registers=registers, smem_bytes=smem_bytes, ctas=1024)
    assert (found.ctas_per_sm, found.occupancy_pct, found.bound_by) == (ctas, occupancy, bound_by)


def test_waves_and_tail() -> None:
    found = account("sm_90a", 132, threads=1024, registers=32, smem_bytes=0, ctas=265)
    assert found.waves == pytest.approx(265 / 264)
    assert found.tail_pct == pytest.approx(100 * (1 - 265 / 528))


def test_a_block_that_cannot_fit_is_no_division_by_zero() -> None:
    assert account("sm_75", 72, threads=1024, registers=255, smem_bytes=0, ctas=1).ctas_per_sm == 0


def test_nameplate_peaks_of_an_h200() -> None:
    assert roofline.peaks(H200, "fp16").tflops == pytest.approx(989, rel=1e-2)
    assert roofline.peaks(H200, "tf32").tflops == pytest.approx(494, rel=1e-2)
    assert roofline.peaks(H200, "fp32").tflops == pytest.approx(67, rel=1e-2)
    assert roofline.peaks(H200, "fp16").gbps == 4800


def test_one_row_is_memory_bound_and_a_cube_is_not() -> None:
    roofs = roofline.peaks(H200, "fp16")
    assert roofline.bound(Problem.of(1, 4096, 4096, "fp16"), roofs) == "memory"
    assert roofline.bound(Problem.of(4096, 4096, 4096, "fp16"), roofs) == "compute"


def test_an_unknown_architecture_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="sm_90"):
        offline_device("sm_42")
    assert arch_number("sm_90a") == 90
