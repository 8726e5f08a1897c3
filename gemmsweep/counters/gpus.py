"""NVML itself, and what it knows of GPUs before anything is measured: which there are, by what handle, and what does not change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not change while a command runs."""

    uuid: str
    index: int | None = None  # NVML's numbering, not CUDA's
    name: str | None = None
    memory_bytes: int | None = None
    power_limit_mw: int | None = None
    clock_max_mhz: int | None = None
    driver: str | None = None


class NvmlMissingError(Exception):
    """NVML cannot be used at all; the message says why."""


def start() -> Any:
    """The initialised pynvml module. Raises NvmlMissingError."""
    try:
        import pynvml
    except ImportError as error:
        raise NvmlMissingError(f"nvidia-ml-py is not installed ({error})") from error
    try:
        pynvml.nvmlInit()
    except Exception as error:
        raise NvmlMissingError(reason(error)) from error
    return pynvml


def reason(error: Exception) -> str:
    """NVML's own words for an error, in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def attempt(read: Callable[..., Any], *arguments: Any) -> Any:
    """The value, or None where NVML (or an old driver, or a container) refuses."""
    try:
        return read(*arguments)
    except Exception:
        return None


def text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def find_handle(nvml: Any, uuid: str) -> Any:
    """Handle of a GPU or MIG slice by UUID, with or without its prefix; None where NVML has none of it."""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    for candidate in (f"GPU-{bare}", f"MIG-{bare}"):
        handle = attempt(nvml.nvmlDeviceGetHandleByUUID, candidate)
        if handle is not None:
            return handle
    return None


def board_of(nvml: Any, handle: Any) -> Any:
    """The card a MIG slice lies on, or the card itself: clocks and power belong to it."""
    if attempt(lambda: nvml.nvmlDeviceIsMigDeviceHandle(handle)):
        return attempt(lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)) or handle
    return handle


def read_facts(nvml: Any, handle: Any, uuid: str) -> Facts:
    board = board_of(nvml, handle)
    return Facts(
        uuid=text(attempt(lambda: nvml.nvmlDeviceGetUUID(handle))) or uuid,
        index=attempt(lambda: nvml.nvmlDeviceGetIndex(board)),
        name=text(attempt(lambda: nvml.nvmlDeviceGetName(handle))),
        memory_bytes=attempt(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
        power_limit_mw=attempt(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(board)),
        clock_max_mhz=attempt(lambda: nvml.nvmlDeviceGetMaxClockInfo(board, nvml.NVML_CLOCK_SM)),
        driver=text(attempt(nvml.nvmlSystemGetDriverVersion)),
    )


def facts_of(uuid: str) -> Facts:
    """Facts of one GPU; without NVML or for a UUID unknown to it, only the UUID with CUDA's usual prefix."""
    prefixed = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    try:
        nvml = start()
    except NvmlMissingError:
        return Facts(prefixed)
    handle = find_handle(nvml, uuid)
    if handle is None:
        return Facts(prefixed, driver=text(attempt(nvml.nvmlSystemGetDriverVersion)))
    return read_facts(nvml, handle, prefixed)


def list_gpus() -> list[Facts]:
    """All GPUs (of a card split by MIG: its slices), in NVML's order; no CUDA context. Raises NvmlMissingError."""
    nvml = start()
    found: list[Facts] = []
    for index in range(attempt(nvml.nvmlDeviceGetCount) or 0):
        handle = attempt(nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            continue
        slots = range(attempt(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
        slices = [attempt(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot) for slot in slots]
        for device in [s for s in slices if s is not None] or [handle]:
            found.append(read_facts(nvml, device, ""))
    return found


def driver_version() -> str | None:
    """Version of the NVIDIA driver, None where there is none."""
    try:
        return str(text(attempt(start().nvmlSystemGetDriverVersion)) or "") or None
    except NvmlMissingError:
        return None
