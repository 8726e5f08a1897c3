"""Counters through Nsight Compute: its command line, what it prints, and what to do where it may not count."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

from gemmsweep.errors import UsageError
from gemmsweep.protocol import Counter

PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
MOST_BYTES = 64 << 20  # of a file to import; ncu writes a few KB a kernel
TIME = "gpu__time_duration.sum"


@dataclass(frozen=True, slots=True)
class Metric:
    """A counter of ours and the ncu metric it is read from. Over several kernels counts add up; shares are weighted by time."""

    name: str
    metric: str
    unit: str
    adds: bool = False


_STALL = "smsp__warp_issue_stalled_{}_per_warp_active.pct"
STALLS = (
    "long_scoreboard", "short_scoreboard", "barrier", "mio_throttle", "math_pipe_throttle", "lg_throttle", "wait", "membar",
    "not_selected", "selected",
)  # fmt: skip
METRICS: tuple[Metric, ...] = (
    Metric("ncu_time_ns", TIME, "ns", adds=True),
    Metric("ncu_cycles", "sm__cycles_elapsed.max", "cycles", adds=True),
    Metric("smem_ld_conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", "conflicts", adds=True),
    Metric("smem_st_conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum", "conflicts", adds=True),
    Metric("local_ld_bytes", "l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum", "B", adds=True),
    Metric("local_st_bytes", "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum", "B", adds=True),
    Metric("smem_throughput_pct", "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed", "%"),
    Metric("l2_throughput_pct", "lts__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    Metric("l2_hit_pct", "lts__t_sector_hit_rate.pct", "%"),
    Metric("dram_throughput_pct", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "%"),
    Metric("dram_bytes", "dram__bytes.sum", "B", adds=True),
    Metric("tensor_pipe_pct", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "%"),
    Metric("fma_pipe_pct", "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed", "%"),
    *(Metric(f"stall_{name}_pct", _STALL.format(name), "%") for name in STALLS),
)


def find() -> str | None:
    """Path of ncu: on PATH, else where its installers put it."""
    on_path = shutil.which("ncu")
    return on_path or next((path for place in PLACES for path in sorted(glob(place), reverse=True)), None)


def command(
    ncu: str, program: Sequence[str], kernels: Sequence[str], *, hot: bool, metrics: Iterable[str]
) -> list[str]:
    """The line that profiles the second run of `program`'s kernels (mangled names), clocks left as they are."""
    names = "|".join(sorted({re.escape(kernel) for kernel in kernels}))
    return [
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--cache-control", "none" if hot else "all", "--kernel-name-base", "mangled", "--kernel-name", f"regex:^({names})$",
        "--launch-skip", str(len(kernels)), "--launch-count", str(len(kernels)), "--metrics", ",".join(metrics), *program,
    ]  # fmt: skip


def run(
    ncu: str, program: Sequence[str], kernels: Sequence[str], *, hot: bool, timeout_s: float = 300.0
) -> tuple[int, str]:
    """Exit code and all output. A metric this chip or version does not know is left out and the rest tried again."""
    wanted = [metric.metric for metric in METRICS]
    for _ in range(2):
        line = command(ncu, program, kernels, hot=hot, metrics=wanted)
        try:
            result = subprocess.run(line, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            return 1, f"ncu took longer than {timeout_s:.0f} s"
        output = result.stdout + result.stderr
        unknown = set(re.findall(r"[Ff]ailed to find metric (?:regex:)?\W*([\w.]+)", output))
        if not unknown & set(wanted):
            break
        wanted = [metric for metric in wanted if metric not in unknown]
    return result.returncode, output


def parse(text: str) -> tuple[Counter, ...]:
    """Counters from what `ncu --csv` printed, in either of its layouts (`--page raw`, or a row per metric).

    Empty where no kernel was profiled, or none of the metrics is in it. A metric without a number is not measured (None).
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return ()
    try:
        rows = list(csv.DictReader(line for line in lines[start:] if line.startswith('"')))
    except csv.Error:  # a field of more than 128 KB
        return ()
    return combine(by_metric(rows) if rows and "Metric Name" in rows[0] else by_kernel(rows))


def by_metric(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, float | None]]:
    """Kernels' metrics from a row per metric."""
    kernels: dict[str, dict[str, float | None]] = {}
    for row in rows:
        kernels.setdefault(str(row["ID"]), {})[str(row["Metric Name"])] = number(row.get("Metric Value"))
    return list(kernels.values())


def by_kernel(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, float | None]]:
    """Kernels' metrics from a row per kernel; the first row, without an ID, holds the units."""
    return [{str(name): number(value) for name, value in row.items()} for row in rows if row["ID"]]


def number(text: Any) -> float | None:
    """ncu groups digits by the locale: `57,344`; what it could not read is `n/a` or empty."""
    try:
        return float(str(text).replace(",", ""))
    except ValueError:
        return None


def combine(kernels: Sequence[Mapping[str, float | None]]) -> tuple[Counter, ...]:
    """One launch's kernels as one reading each; None where a kernel's is missing."""
    if not kernels:
        return ()
    weights = [weight if (weight := kernel.get(TIME)) is not None and weight > 0 else 1.0 for kernel in kernels]
    found = []
    for metric in METRICS:
        values = [kernel.get(metric.metric) for kernel in kernels]
        present = [value for value in values if value is not None]
        total: float | None = None
        if len(present) == len(values):
            weighted = sum(v * w for v, w in zip(present, weights, strict=True)) / sum(weights)
            total = sum(present) if metric.adds else weighted
        found.append(Counter(metric.name, total, metric.unit, "ncu"))
    return tuple(found) if any(counter.value is not None for counter in found) else ()


def read_file(path: Path) -> tuple[Counter, ...]:
    """Counters of an `ncu --csv` file, or of a .ncu-rep where its `ncu_report` module can be imported (else ImportError)."""
    if path.suffix != ".ncu-rep":
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UsageError(f"{path} is no ncu --csv output: it has more than {MOST_BYTES >> 20} MB.")
        return parse(content.decode("utf-8", errors="replace"))
    import importlib

    context = importlib.import_module("ncu_report").load_report(str(path))
    names = {metric.metric for metric in METRICS}
    kernels = []
    for section in context:
        for action in section:
            kernels.append({name: action[name].as_double() for name in names if name in set(action.metric_names())})
    return combine(kernels)


def advice(output: str) -> str:
    """What to do about a run that counted nothing, for the case at hand."""
    if "ERR_NVGPUCTRPERM" in output or "permission" in output.lower():
        return FORBIDDEN[surroundings()]
    if "driver resource" in output.lower() or "resource unavailable" in output.lower():
        return "another profiler holds the counters, often DCGM: pause it (dcgmi profdm --pause) or ask who runs it."
    if "not supported" in output.lower():
        return "ncu does not support this GPU or MIG slice: take a newer Nsight Compute, or a whole GPU."
    if "No kernels were profiled" in output:
        return "the kernel did not run under ncu; run it without: gemmsweep run --remeasure."
    said = next((line for line in output.splitlines() if "ERROR" in line or "rror:" in line), "").strip()
    return f"ncu gave no counters ({said or 'it said nothing'}). See: gemmsweep doctor"


MISSING = (
    "ncu is not installed: it is part of the CUDA toolkit (package nsight-compute). Or profile elsewhere with ncu --csv, and "
    "import the file: gemmsweep profile RUN --import FILE."
)
FORBIDDEN = {
    "wsl": "this WSL2 may not read counters: on Windows, NVIDIA Control Panel, Developer, Manage GPU Performance Counters, "
    "allow all users; then restart WSL.",
    "container": "this container may not read counters: its host must start it with --cap-add=SYS_ADMIN, or load the driver "
    "with NVreg_RestrictProfilingToAdminUsers=0. Rented machines often cannot.",
    "host": "this user may not read counters: run with sudo, or let an administrator put 'options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0' into /etc/modprobe.d and reboot.",
}


def surroundings() -> str:
    """ "wsl", "container" or "host"."""
    try:
        if "microsoft" in Path("/proc/version").read_text().lower():
            return "wsl"
    except OSError:
        pass
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return "container" if any(m.exists() for m in marks) or "KUBERNETES_SERVICE_HOST" in os.environ else "host"
