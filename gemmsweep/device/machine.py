"""What is known of this machine's CPU and memory."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from gemmsweep.model import DeviceInfo
from gemmsweep.protocol import DeviceFailure


def model_name() -> str:
    """The CPU's name as the kernel reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine_id() -> str:
    """A name of this machine that says nothing about it: a hash of its id and CPU."""
    try:
        seed = Path("/etc/machine-id").read_text().strip()
    except OSError:
        seed = ""
    return "CPU-" + hashlib.sha256(f"{seed or platform.node()}\n{model_name()}".encode()).hexdigest()[:16]


def last_level_cache_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Of one core's view; 32 MiB where the system does not say."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = [0]
    for index in sorted(root.glob("index*")):
        try:
            text = (index / "size").read_text().strip()
            sizes.append(int(text[:-1]) * units[text[-1]])
        except (OSError, KeyError, ValueError):
            continue
    return max(sizes) or 32 << 20


def available_bytes() -> int:
    """Memory that may be taken now; where only the total is known, half of it."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return total_bytes() // 2


def total_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> DeviceInfo:
    return DeviceInfo(
        kind="cpu",
        name=model_name(),
        uuid=machine_id(),
        arch=platform.machine(),
        sm_count=cores(),
        memory_bytes=total_bytes(),
        l2_bytes=last_level_cache_bytes(),
        runtime=platform.release(),
    )


def require_memory(needed: int) -> int:
    """Bytes free. Raises DeviceFailure where they are fewer: Linux promises more, and kills whoever uses it."""
    free = available_bytes()
    if needed > free:
        raise DeviceFailure("launch", f"out of memory: {needed / 2**30:.1f} GiB needed, {free / 2**30:.1f} GiB free")
    return free
