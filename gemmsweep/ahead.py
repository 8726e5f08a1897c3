"""Builds of later axes, made while the first one is raced: an axis then finds most of its configs in the build cache."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from queue import SimpleQueue

from gemmsweep.build import Builders
from gemmsweep.entry import Candidate, Unwatched, compile_all
from gemmsweep.errors import GemmsweepError
from gemmsweep.model import DeviceInfo


class Ahead:
    """A context manager that builds candidates in the background until it ends. Nobody waits for it, nothing depends on it.

    Only beside a GPU: on a CPU device the compilers would disturb the race.
    """

    def __init__(
        self, candidates: Sequence[Candidate], device: DeviceInfo, limit_s: float, compiler: str = "auto"
    ) -> None:
        self._builders = Builders(compiler=compiler)
        self._device, self._limit_s = device, limit_s
        self._asked: SimpleQueue[Sequence[Candidate] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._build, daemon=True)
        self.build(candidates)

    def build(self, candidates: Sequence[Candidate]) -> None:
        """These next; what was asked for before and is not under way is forgotten."""
        self._asked.put(candidates)

    def __enter__(self) -> Ahead:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._builders.close()
        self._asked.put(None)
        self._thread.join()

    def _build(self) -> None:
        while (candidates := self._latest()) is not None:
            # What goes wrong here goes wrong again, and is told, when the axis itself asks for the build.
            with contextlib.suppress(GemmsweepError, OSError):
                compile_all(candidates, self._device, Unwatched(), self._builders, timeout_s=self._limit_s)

    def _latest(self) -> Sequence[Candidate] | None:
        """What was asked for last; waits until something is. None: the end."""
        asked = self._asked.get()
        while not self._asked.empty():
            asked = self._asked.get()
        return asked
