"""`--device auto|cuda:N|UUID|cpu` → DeviceSpec, without a CUDA context in this process: NVML only."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from gemmsweep.counters import gpus
from gemmsweep.errors import EnvironmentProblem, UsageError
from gemmsweep.protocol import DeviceSpec

CUDA13_DRIVER, CUDA12_DRIVER = 580, 525


@dataclass(frozen=True, slots=True)
class Found:
    """A GPU of this machine as NVML sees it (its numbering need not be CUDA's), whether or not CuPy is installed."""

    name: str
    uuid: str
    memory_bytes: int | None
    power_limit_w: float | None


def detect() -> list[Found]:
    """GPUs of this machine that CUDA_VISIBLE_DEVICES leaves, in NVML's order; empty without a driver."""
    try:
        facts = gpus.list_gpus()
    except gpus.NvmlMissingError:
        return []
    found = [
        Found(f.name or "GPU", f.uuid, f.memory_bytes, None if f.power_limit_mw is None else f.power_limit_mw / 1000)
        for f in facts
    ]
    return visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(found: list[Found], mask: str | None) -> list[Found]:
    """What CUDA_VISIBLE_DEVICES leaves. Its numbers follow CUDA's order, unknown here: they only limit how many."""
    if mask is None:
        return found
    entries: list[str] = []
    for entry in (e.strip() for e in mask.split(",")):
        if not entry or entry.startswith("-"):
            break  # CUDA stops at the first invalid entry
        entries.append(entry)
    if all(entry.isdecimal() for entry in entries):
        return found[: len(entries)] if len(entries) < len(found) else found
    return [f for entry in entries for f in found if f.uuid.lower().startswith(entry.lower())]


def install_line(driver: str | None) -> str:
    """The pip line that fits a driver version. Raises EnvironmentProblem for one too old."""
    major = int((driver or "0").split(".")[0] or 0)
    if major >= CUDA13_DRIVER or not driver:
        return "pip install 'gemmsweep[cuda13]'"
    if major >= CUDA12_DRIVER:
        return "pip install 'gemmsweep[cuda12]'"
    raise EnvironmentProblem(
        f"NVIDIA driver {driver} is too old for CUDA 12. Update it to {CUDA12_DRIVER} or later, or use --device cpu."
    )


def has_cupy() -> bool:
    return importlib.util.find_spec("cupy") is not None


def resolve_device(text: str) -> DeviceSpec:
    """The spec of a `--device` value. Raises UsageError for an unknown one, EnvironmentProblem without CuPy."""
    if text == "cpu":
        return DeviceSpec("cpu")
    if text.startswith("scripted:"):
        return scripted(text.removeprefix("scripted:"))
    found = detect()
    if text == "auto":
        if not found:
            return DeviceSpec("cpu")
        require_cupy(found[0].name)
        return DeviceSpec("cuda")
    spec = named(text, found)
    if spec is None:
        raise UsageError(f"no device {text!r} here. Choose one of: {', '.join(names(found))}.")
    require_cupy(text)
    return spec


def scripted(path: str) -> DeviceSpec:
    if not Path(path).is_file():
        raise UsageError(f"no device script {path!r}. Name a TOML or JSON file.")
    return DeviceSpec("scripted", script=str(Path(path).resolve()))


def named(text: str, found: list[Found]) -> DeviceSpec | None:
    """`cuda`, `cuda:N` (CUDA's numbering) or a UUID that is here."""
    kind, _, number = text.partition(":")
    if kind == "cuda" and (number.isdecimal() or text == "cuda"):
        index = int(number or 0)
        return DeviceSpec("cuda", index=index) if index < len(found) else None
    matches = [f.uuid for f in found if f.uuid and f.uuid.lower() == text.lower()]
    return DeviceSpec("cuda", uuid=matches[0]) if matches else None


def names(found: list[Found]) -> list[str]:
    """What `--device` takes here."""
    named = [f"cuda:{i} or {f.uuid} ({f.name})" for i, f in enumerate(found)] if len(found) == 1 else []
    if len(found) > 1:
        named = [f"cuda:0 to cuda:{len(found) - 1}", *(f"{f.uuid} ({f.name})" for f in found)]
    return ["auto", *named, "cpu"]


def require_cupy(what: str) -> None:
    """Timing the CPU instead of the GPU that is here would be a quiet lie: stop and say what to install."""
    if not has_cupy():
        line = install_line(gpus.driver_version())
        raise EnvironmentProblem(f"{what} needs CuPy, which is not installed. Install it: {line}, or use --device cpu.")
