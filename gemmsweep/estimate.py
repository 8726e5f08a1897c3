"""About how long a run will take: figures good to a factor of two, for the first line a user sees."""

from __future__ import annotations

from gemmsweep.analysis import roofline
from gemmsweep.model import DeviceInfo, Problem

START_S = 6.0  # worker, data, reference, warm-up
CONFIG_S = 0.5  # build, check and counters of one config
ROUNDS, FINALS_ROUNDS = 20, 60  # that a race commonly takes
FINALISTS = 4  # the reference among them
GPU_BURST_S, CPU_BURST_S = 0.004, 0.03  # at least
GUESSED_SHARE = 0.3  # of a GPU's peak that configs in a sweep reach
CPU_FLOPS_PER_CORE = 4e10


def run_seconds(problem: Problem, device: DeviceInfo, configs: int) -> float:
    """Seconds for `configs` configs of a problem, finals included."""
    bursts = ROUNDS * (configs + 1) + FINALS_ROUNDS * FINALISTS
    return START_S + configs * CONFIG_S + bursts * burst_seconds(problem, device)


def burst_seconds(problem: Problem, device: DeviceInfo) -> float:
    """Seconds of one timed burst of one config."""
    peak = roofline.peaks(device, problem.dtype).tflops
    rate = CPU_FLOPS_PER_CORE if device.kind == "cpu" or peak is None else GUESSED_SHARE * peak * 1e12
    return max(problem.flops / rate, CPU_BURST_S if device.kind == "cpu" else GPU_BURST_S)
