"""Machine balance against arithmetic intensity: compute- or memory-bound before any code is run.

Peaks come from the matrix units' width, FLOP per clock and SM (vendor architecture whitepapers), times SMs times the clock that the
nameplate figure is quoted at: 132 SMs x 4096 x 1.83 GHz = 989 TFLOP/s for fp16 on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmsweep.analysis.account import arch_number
from gemmsweep.errors import UsageError
from gemmsweep.model import DeviceInfo, Problem

# FLOP per clock and SM, dense, fp32 accumulation: (fp16 and bf16, tf32, fp32 FFMA).
FLOP_PER_CLOCK: dict[int, tuple[int, int, int]] = {
    75: (1024, 0, 128),
    80: (2048, 1024, 128),
    86: (512, 256, 256),
    87: (512, 256, 256),
    89: (512, 256, 256),
    90: (4096, 2048, 256),
    100: (8192, 4096, 256),
    103: (8192, 4096, 256),
    120: (512, 256, 256),
    121: (512, 256, 256),
}
# Card → (clock of the tensor nameplate figure in MHz, DRAM bandwidth of the data sheet in GB/s).
CARDS: dict[str, tuple[int | None, float]] = {
    "H200": (1830, 4800.0),
    "H100 80GB HBM3": (1830, 3350.0),
    "H100 PCIe": (1755, 2039.0),
    "A100-SXM4-80GB": (1410, 2039.0),
    "A100": (1410, 1555.0),
    "L40S": (2520, 864.0),
    "L4": (2040, 300.0),
    "RTX 4090": (2520, 1008.0),
    "RTX 3090": (1695, 936.0),
    "T4": (1590, 320.0),
}


@dataclass(frozen=True, slots=True)
class Peaks:
    """The roofs of one device for one dtype; None where unknown. `clock_mhz` is the clock `tflops` is quoted at."""

    tflops: float | None
    clock_mhz: int | None
    gbps: float | None

    @property
    def balance(self) -> float | None:
        """FLOP per byte at which the two roofs meet."""
        return None if self.tflops is None or self.gbps is None else 1e3 * self.tflops / self.gbps


def peaks(device: DeviceInfo, dtype: str) -> Peaks:
    """Nameplate roofs of a GPU; a CPU has none here (they depend on what its vector units may clock at)."""
    if device.kind == "cpu":
        return Peaks(None, None, None)
    card = next((CARDS[name] for name in CARDS if name in device.name), None)
    try:
        widths = FLOP_PER_CLOCK[arch_number(device.arch)]
    except UsageError:
        return Peaks(None, None, card[1] if card else None)
    tensor_clock = card[0] if card else device.clock_max_mhz
    clock = device.clock_max_mhz or tensor_clock if dtype == "fp32" else tensor_clock
    width = widths[{"fp16": 0, "bf16": 0, "tf32": 1, "fp32": 2}[dtype]]
    tflops = width * device.sm_count * clock / 1e6 if clock and width else None
    return Peaks(tflops, clock, card[1] if card else None)


def intensity(problem: Problem) -> float:
    """FLOP per compulsory byte."""
    return problem.flops / problem.compulsory_bytes


def bound(problem: Problem, roofs: Peaks) -> str | None:
    """ "compute" or "memory", or None where the roofs are unknown."""
    if roofs.balance is None:
        return None
    return "compute" if intensity(problem) >= roofs.balance else "memory"


def floor_us(problem: Problem, roofs: Peaks) -> float | None:
    """No kernel is faster than the larger of its compute and its memory time at nameplate."""
    if roofs.tflops is None or roofs.gbps is None:
        return None
    return max(problem.flops / roofs.tflops / 1e6, problem.compulsory_bytes / roofs.gbps / 1e3)
