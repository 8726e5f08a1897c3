"""GPM: how busy the units of a Hopper (or later) GPU were over a window, through the handles of an `Nvml`.

The window must be at least 100 ms (10–50 ms return 0 or NaN). The load must run before its first sample and past
its second.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from gemmsweep.counters.gpus import attempt
from gemmsweep.counters.nvml import Nvml, Sample
from gemmsweep.protocol import Counter

METRICS = {
    "gpm_sm_util_pct": "NVML_GPM_METRIC_SM_UTIL",
    "gpm_sm_occupancy_pct": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "gpm_any_tensor_util_pct": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "gpm_hmma_tensor_util_pct": "NVML_GPM_METRIC_HMMA_TENSOR_UTIL",
    "gpm_dram_bw_util_pct": "NVML_GPM_METRIC_DRAM_BW_UTIL",
    "gpm_fp16_util_pct": "NVML_GPM_METRIC_FP16_UTIL",
    "gpm_fp32_util_pct": "NVML_GPM_METRIC_FP32_UTIL",
    "gpm_integer_util_pct": "NVML_GPM_METRIC_INTEGER_UTIL",
}
SHORTEST_S = 0.105
MARGIN_S = 0.006  # of load before the first sample and after the second
ENERGY_SHORTEST_S = 0.5  # the energy counter moves in steps; over less it says nothing

Load = Callable[[float], None]


def window(nvml: Nvml, run_load: Load, seconds: float) -> tuple[Counter, ...]:
    """What a race's own bursts do not give (they have clock and power), read while `run_load(duration_s)` runs.

    A window shorter than SHORTEST_S is made as long.
    """
    duration_s = max(seconds, SHORTEST_S)
    with_energy = duration_s >= ENERGY_SHORTEST_S
    before, begun = nvml.energy_mj() if with_energy else None, time.monotonic()
    values, sample = sample_under_load(nvml, run_load, duration_s, always=with_energy)
    after, elapsed_s = nvml.energy_mj() if with_energy else None, time.monotonic() - begun
    mean_w = None
    if before is not None and after is not None and after > before:
        mean_w = (after - before) / 1000 / elapsed_s
    return (
        Counter("mem_clock_mhz", sample.mem_clock_mhz, "MHz", "nvml"),
        Counter("energy_power_w", mean_w, "W", "nvml"),
        Counter("temperature_c", sample.temperature_c, "°C", "nvml"),
        *(Counter(name, values.get(name), "%", "gpm") for name in METRICS),
    )


def sample_under_load(
    nvml: Nvml, run_load: Load, seconds: float, *, always: bool
) -> tuple[dict[str, float | None], Sample]:
    """The load runs in this thread, to which the GPU's context belongs; the sampling runs beside it.

    Without GPM a moment of load is enough, unless it is to go on `always`.
    """
    results: list[tuple[dict[str, float | None], Sample]] = []
    supported = is_supported(nvml)
    load_s = 2 * MARGIN_S + (seconds if supported or always else 0.0)
    load_ends = time.monotonic() + load_s

    def sampler() -> None:
        time.sleep(MARGIN_S)
        results.append(read_over(nvml, seconds, load_ends) if supported else ({}, nvml.sample()))

    thread = threading.Thread(target=sampler, daemon=True)
    thread.start()
    try:
        run_load(load_s)
    finally:
        thread.join()
    return results[0] if results else ({}, Sample())


def is_supported(nvml: Nvml) -> bool:
    support = nvml.read("nvmlGpmQueryDeviceSupport")
    return support is not None and bool(support.isSupportedDevice)


def read_over(nvml: Nvml, seconds: float, load_ends: float) -> tuple[dict[str, float | None], Sample]:
    """Metrics between two samples `seconds` apart, and what NVML shows meanwhile (reading it takes tens of ms)."""
    n = nvml.module
    samples = [sample for sample in (attempt(n.nvmlGpmSampleAlloc) for _ in range(2)) if sample is not None]
    try:
        if len(samples) < 2 or not take(nvml, samples[0]):
            return {}, nvml.sample()
        end = time.monotonic() + seconds
        shown = nvml.sample()
        time.sleep(max(0.0, end - time.monotonic()))
        if time.monotonic() > load_ends:  # idle time would count
            return {}, shown
        return metrics_between(n, *samples) if take(nvml, samples[1]) else {}, shown
    finally:
        for sample in samples:
            attempt(n.nvmlGpmSampleFree, sample)


def take(nvml: Nvml, sample: Any) -> bool:
    """Fill one sample; a MIG slice is sampled through its card."""
    n = nvml.module
    if nvml.board is nvml.handle:
        return attempt(lambda: n.nvmlGpmSampleGet(nvml.handle, sample)) is not None
    instance = attempt(lambda: n.nvmlDeviceGetGpuInstanceId(nvml.handle))
    return attempt(lambda: n.nvmlGpmMigSampleGet(nvml.board, instance, sample)) is not None


def metrics_between(n: Any, first: Any, second: Any) -> dict[str, float | None]:
    known = {name: getattr(n, metric) for name, metric in METRICS.items() if hasattr(n, metric)}
    request = n.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = n.NVML_GPM_METRICS_GET_VERSION, len(known)
    request.sample1, request.sample2 = first, second
    for slot, metric in enumerate(known.values()):
        request.metrics[slot].metricId = metric
    answer = attempt(lambda: n.nvmlGpmMetricsGet(request))
    if answer is None:
        return {}
    return {name: metric_value(answer.metrics[slot], n.NVML_SUCCESS) for slot, name in enumerate(known)}


def metric_value(metric: Any, success: int) -> float | None:
    """None where the metric's own return code says so, or its value is not a number."""
    value = float(metric.value)
    return value if metric.nvmlReturn == success and math.isfinite(value) else None
