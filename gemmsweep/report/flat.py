"""RUN as flat columns named by dotted paths: `build.registers`, `config.BK`, `counters.sm_clock_mhz`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gemmsweep.errors import UsageError, choices, did_you_mean
from gemmsweep.report.figures import Record
from gemmsweep.report.words import config_text, device_text, problem_text

FIXED: tuple[str, ...] = (
    *("run_id", "sweep_id", "started_at", "status", "reason"),
    *(f"problem.{name}" for name in ("m", "n", "k", "batch", "a_dtype", "b_dtype", "d_dtype", "acc", "dtype")),
    *(f"problem.{name}" for name in ("layout", "lda", "ldb", "ldd", "beta", "epilogue")),
    *(f"device.{name}" for name in ("name", "uuid", "arch", "sm_count", "power_limit_w")),
    *("template", "source_sha256", "varied", "regime", "l2", "protocol", "rounds", "finals", "inputs"),
    *("median_us", "ci95_us.lo", "ci95_us.hi", "tflops", "pct_peak", "pct_peak_at_clock", "gbps", "pct_bandwidth"),
    *("joules", "error.max_scaled", "error.rel_fro", "error.rel_fro_vendor"),
    *(f"build.{name}" for name in ("compiler", "registers", "spill_bytes", "smem_bytes", "compile_ms")),
    *("occupancy_pct", "limiter"),
)
GROUPS = ("problem", "device", "config", "ci95_us", "references", "error", "build", "counters")
COMPOSED = ("problem", "device", "config")  # also columns of their own, in words


def flatten(run: Record) -> dict[str, Any]:
    """Every leaf of the run by its path. A counter's path without a field is its value; intervals are .lo and .hi."""
    flat: dict[str, Any] = {}
    for name, value in run.items():
        if name == "counters":
            for counter, reading in (value or {}).items():
                flat[f"counters.{counter}"] = reading["value"]
        elif value is not None or name not in GROUPS:
            _leaves(name, value, flat)
    return flat


def _leaves(path: str, value: Any, flat: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _leaves(f"{path}.{name}", inner, flat)
    elif path.rpartition(".")[2].startswith("ci95"):
        flat[f"{path}.lo"], flat[f"{path}.hi"] = value or (None, None)
    elif isinstance(value, list):
        flat[path] = ";".join(str(item) for item in value)
    else:
        flat[path] = value


def compose(run: Record) -> dict[str, Any]:
    """`flatten`, with problem, device and config in words besides."""
    words = {
        "problem": problem_text(run["problem"]),
        "device": device_text(run["device"]),
        "config": config_text(run.get("config")),
    }
    return words | flatten(run)


def all_columns(seen: Iterable[str]) -> list[str]:
    """The fixed columns and whatever else was seen, families together, in the contract's order."""
    order = dict.fromkeys(path.partition(".")[0] for path in FIXED)
    roots = list(order)
    roots[roots.index("varied") : roots.index("varied")] = ["config"]
    roots[roots.index("error") : roots.index("error")] = ["references"]
    rank = {root: position for position, root in enumerate(roots)}
    paths = [path for path in dict.fromkeys((*FIXED, *seen)) if path not in COMPOSED]
    return sorted(paths, key=lambda path: rank.get(path.partition(".")[0], len(rank)))


def check_columns(columns: Sequence[str], seen: Iterable[str]) -> None:
    """Raise UsageError with the choices for a column that is neither in the contract nor in any of the runs."""
    allowed = list(dict.fromkeys((*COMPOSED, *all_columns(seen))))
    for column in columns:
        if column not in allowed:
            # Of some seventy, the one that was meant is enough.
            meant = did_you_mean(column, allowed)
            told = f"unknown column {column!r}.{meant} --format csv names all."
            raise UsageError(told if meant else choices("column", column, allowed))
