"""A built C kernel, called through ctypes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gemmsweep.device.host import HostSet, page_aligned
from gemmsweep.device.machine import require_memory
from gemmsweep.device.words import integer
from gemmsweep.model import Build, Launch, Step
from gemmsweep.protocol import DeviceFailure

INTEGERS: dict[str, Callable[[int], Any]] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}


def pack_argument(word: str, addresses: dict[str, int], reals: dict[str, float]) -> Any:
    """One C argument of a word of docs/templates.md. Raises DeviceFailure for one a C kernel cannot take."""
    found = integer(word)
    if found is not None:
        kind, value = found
        return INTEGERS[kind](value)
    if word in addresses:
        return ctypes.c_void_p(addresses[word])
    if word in reals:
        return ctypes.c_float(reals[word])
    raise DeviceFailure("launch", f"argument {word!r} is not one a CPU kernel can take")


class Library:
    """A built kernel: its steps are C functions that return 0, or why not."""

    def __init__(self, build: Build, launch: Launch, beta: float) -> None:
        try:
            self._library = ctypes.CDLL(build.path)
            self._functions = [getattr(self._library, build.symbols.get(s.kernel, s.kernel)) for s in launch.steps]
        except (OSError, AttributeError) as error:
            raise DeviceFailure("launch", f"the built library cannot be loaded: {error}") from error
        self._steps: tuple[Step, ...] = launch.steps
        self._reals = {"alpha": 1.0, "beta": beta}
        require_memory(sum(w.bytes for w in launch.workspaces))
        self._workspaces = {w.name: page_aligned(max(w.bytes, 1)) for w in launch.workspaces}
        self._zeroed = [self._workspaces[w.name] for w in launch.workspaces if w.zero == "each"]
        self.limits: AbstractContextManager[Any] = nullcontext()

    def bind(self, operands: HostSet) -> Callable[[], None]:
        """A call of all steps on one set, arguments converted beforehand."""
        workspaces = {f"workspace:{name}": int(w.ctypes.data) for name, w in self._workspaces.items()}
        addresses = {"null": 0, **workspaces, **operands.addresses}
        calls = [
            (function, step.kernel, [pack_argument(word, addresses, self._reals) for word in step.args])
            for function, step in zip(self._functions, self._steps, strict=True)
        ]

        def call() -> None:
            for memory in self._zeroed:
                memory.fill(0)
            for function, name, arguments in calls:
                code = function(*arguments)
                if code:
                    raise DeviceFailure("runtime", f"{name} returned {code} ({os.strerror(code)})")

        return call
