"""GPM: how busy the units of a Hopper (or later) GPU were under one load, through the handles of an `Nvml`.

The driver takes a snapshot of its counters about every 105 ms, and a sample is the latest one: two samples too close to each other
are equal, and one taken soon after a load began is of what ran before. So the load goes on until two snapshots were taken in it.
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

MARGIN_S = 0.006  # of load before it is looked at
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
BUSY = "gpm_sm_util_pct"  # 0 or nothing between equal snapshots, never under a load
POLL_S = 0.003
PATIENCE_S = 0.5  # for two snapshots; whoever takes them more seldom has no GPM here

Load = Callable[[Callable[[], bool]], None]  # runs until it is told that it is enough


def window(nvml: Nvml, run_load: Load) -> tuple[Counter, ...]:
    """What a race's own bursts do not give (they have clock and power), read while `run_load` runs."""
    values, sample = sample_under_load(nvml, run_load)
    return (
        Counter("mem_clock_mhz", sample.mem_clock_mhz, "MHz", "nvml"),
        Counter("temperature_c", sample.temperature_c, "°C", "nvml"),
        *(Counter(name, values.get(name), "%", "gpm") for name in METRICS),
    )


def sample_under_load(nvml: Nvml, run_load: Load) -> tuple[dict[str, float | None], Sample]:
    """The load runs in this thread, to which the GPU's context belongs; the sampling runs beside it."""
    results: list[tuple[dict[str, float | None], Sample]] = []
    enough = threading.Event()

    def sampler() -> None:
        try:
            time.sleep(MARGIN_S)
            sample = nvml.sample()
            results.append((between_snapshots(nvml) if is_supported(nvml) else {}, sample))
        finally:
            enough.set()

    thread = threading.Thread(target=sampler, daemon=True)
    thread.start()
    try:
        run_load(enough.is_set)
    finally:
        thread.join()
    return results[0] if results else ({}, Sample())


def is_supported(nvml: Nvml) -> bool:
    support = nvml.read("nvmlGpmQueryDeviceSupport")
    return support is not None and bool(support.isSupportedDevice)


def between_snapshots(nvml: Nvml) -> dict[str, float | None]:
    """Metrics from the first snapshot after now to the next; nothing where they do not come."""
    n = nvml.module
    samples = [sample for sample in (attempt(n.nvmlGpmSampleAlloc) for _ in range(3)) if sample is not None]
    deadline = time.monotonic() + PATIENCE_S
    try:
        if len(samples) < 3 or not take(nvml, samples[0]):
            return {}
        before, first, second = samples
        return until_next(nvml, first, second, deadline) if until_next(nvml, before, first, deadline) else {}
    finally:
        for sample in samples:
            attempt(n.nvmlGpmSampleFree, sample)


def until_next(nvml: Nvml, since: Any, sample: Any, deadline: float) -> dict[str, float | None]:
    """Fill `sample` with the first snapshot after `since`; metrics between the two, nothing where none came in time."""
    while time.monotonic() < deadline and take(nvml, sample):
        values = metrics_between(nvml.module, since, sample)
        if values.get(BUSY):
            return values
        time.sleep(POLL_S)
    return {}


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
