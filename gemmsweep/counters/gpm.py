"""GPM: how busy the units of a Hopper (or later) GPU were under one load, through the handles of an `Nvml`.

The driver renews its counters about every 105 ms, not all at once, and a sample is what it has: one taken soon after a load began
is of what ran before. Measured on an H200 after a load of another kind: 110 ms later a sample still held up to 20% of that, 160 ms
later nothing. So the load runs for LEAD_S before the first sample, and past the second.
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

# Counter → (NVML metric, unit).
METRICS = {
    "gpm_sm_util_pct": ("NVML_GPM_METRIC_SM_UTIL", "%"),
    "gpm_sm_occupancy_pct": ("NVML_GPM_METRIC_SM_OCCUPANCY", "%"),
    "gpm_any_tensor_util_pct": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", "%"),
    "gpm_hmma_tensor_util_pct": ("NVML_GPM_METRIC_HMMA_TENSOR_UTIL", "%"),
    "gpm_dram_bw_util_pct": ("NVML_GPM_METRIC_DRAM_BW_UTIL", "%"),
    "gpm_fp16_util_pct": ("NVML_GPM_METRIC_FP16_UTIL", "%"),
    "gpm_fp32_util_pct": ("NVML_GPM_METRIC_FP32_UTIL", "%"),
    "gpm_integer_util_pct": ("NVML_GPM_METRIC_INTEGER_UTIL", "%"),
}
# More than one renewal of the counters: after a change of load readings were right in 5 of 5 trials at 0.16 s, in 3 of 5 at 0.11.
LEAD_S = 0.165
WINDOW_S = 0.115
MOMENT_S = 0.006  # of load, without GPM

Load = Callable[[Callable[[], bool]], None]  # runs until it is told that it is enough


def window(nvml: Nvml, run_load: Load) -> tuple[Counter, ...]:
    """What a race's own bursts do not give (they have clock and power), read while `run_load` runs."""
    values, sample = sample_under_load(nvml, run_load)
    return (
        Counter("mem_clock_mhz", sample.mem_clock_mhz, "MHz", "nvml"),
        Counter("temperature_c", sample.temperature_c, "°C", "nvml"),
        *(Counter(name, values.get(name), unit, "gpm") for name, (_, unit) in METRICS.items()),
    )


def sample_under_load(nvml: Nvml, run_load: Load) -> tuple[dict[str, float | None], Sample]:
    """The load runs in this thread, to which the GPU's context belongs; the sampling runs beside it."""
    results: list[tuple[dict[str, float | None], Sample]] = []
    begun, enough = threading.Event(), threading.Event()

    def sampler() -> None:
        try:
            begun.wait()  # starting a thread may take a busy host longer than the counters' renewal
            if is_supported(nvml):
                results.append(read_over(nvml))
            else:
                time.sleep(MOMENT_S)
                results.append(({}, nvml.sample()))
        finally:
            enough.set()

    thread = threading.Thread(target=sampler, daemon=True)
    thread.start()
    try:
        begun.set()
        run_load(enough.is_set)
    finally:
        thread.join()
    return results[0] if results else ({}, Sample())


def is_supported(nvml: Nvml) -> bool:
    support = nvml.read("nvmlGpmQueryDeviceSupport")
    return support is not None and bool(support.isSupportedDevice)


def read_over(nvml: Nvml) -> tuple[dict[str, float | None], Sample]:
    """Metrics between two samples WINDOW_S apart, and what NVML shows meanwhile (reading it takes tens of ms)."""
    n = nvml.module
    samples = [sample for sample in (attempt(n.nvmlGpmSampleAlloc) for _ in range(2)) if sample is not None]
    try:
        time.sleep(LEAD_S)
        if len(samples) < 2 or not take(nvml, samples[0]):
            return {}, nvml.sample()
        end = time.monotonic() + WINDOW_S
        shown = nvml.sample()
        time.sleep(max(0.0, end - time.monotonic()))
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
    known = {name: getattr(n, metric) for name, (metric, _) in METRICS.items() if hasattr(n, metric)}
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
