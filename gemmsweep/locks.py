"""Locks between processes: held by an open file, so they end with the process, however it ends."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from gemmsweep.errors import EnvironmentProblem
from gemmsweep.model import DeviceInfo


@contextmanager
def hold(name: str, what: str, refusal: type[EnvironmentProblem] = EnvironmentProblem) -> Iterator[None]:
    """Hold the lock `name` on this machine. Raises `refusal` where another process does `what` already."""
    folder = Path(tempfile.gettempdir()) / f"gemmsweep-locks-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:32]
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise refusal(f"{what} is under way already, in process {owner}: wait for it to end.") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def alone_on(device: DeviceInfo) -> AbstractContextManager[None]:
    """A GPU races for one command at a time; a CPU is never ours alone."""
    return hold(f"gpu-{device.uuid}", f"a race on {device.name}") if device.kind == "cuda" else nullcontext()
