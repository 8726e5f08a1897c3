"""What every backend of the build speaks: a compiler that was found, and what one compile gave."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

IDENTIFY_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler found on this machine. `identity` holds everything about it that may change a binary."""

    kind: str  # "nvrtc", "nvcc" or "cc"
    name: str  # as reports show it: "nvrtc 13.0"
    identity: str
    command: tuple[str, ...] = ()
    include_dirs: tuple[str, ...] = ()  # of the CUDA toolkit, for NVRTC


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one compile gave: `binary` is None when the compiler refused, then `reason` is its first complaint."""

    binary: bytes | None
    log: str
    reason: str = ""
    symbols: Mapping[str, str] = field(default_factory=dict)


def describe_executable(command: Sequence[str], version: Sequence[str]) -> str | None:
    """What `command version` prints, with the size and date of the executable; None where it cannot be run."""
    path = shutil.which(command[0])
    if path is None:
        return None
    try:
        told = subprocess.run(
            [*command, *version], capture_output=True, text=True, errors="replace", timeout=IDENTIFY_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if told.returncode != 0:
        return None
    return f"{told.stdout.strip()}\n{stamp(Path(path))}"


def stamp(path: Path) -> str:
    """Name, size and date of a file: enough to notice that it was replaced."""
    facts = path.stat()
    return f"{path} {facts.st_size} {facts.st_mtime_ns}"


def environment(names: Sequence[str]) -> str:
    """The environment variables of `names` that are set, as text for a compiler's identity."""
    return "\n".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)


def died(returncode: int) -> str:
    """One clause for a process that a signal ended (negative `returncode`) or that left without a result."""
    if returncode == -9:
        return "compiler was killed (signal 9); the machine may be short of memory"
    if returncode < 0:
        return f"compiler crashed with signal {-returncode}"
    return f"compiler process ended with exit status {returncode}"
