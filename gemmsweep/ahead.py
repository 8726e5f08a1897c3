"""Builds of axes to come, made while one is checked and raced: an axis then finds most of its configs in the build cache."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from queue import SimpleQueue

from gemmsweep.build import Builders
from gemmsweep.entry import Candidate, sources_of
from gemmsweep.errors import GemmsweepError
from gemmsweep.model import DeviceInfo

Turns = Iterable[Sequence[Candidate]]


class Ahead:
    """A context manager that has candidates built in the background until it ends. Nobody waits for it, nothing depends on it.

    It uses the processes of `builders` that are idle otherwise. Only beside a GPU: on a CPU device the compilers would
    disturb the race.
    """

    def __init__(self, builders: Builders, device: DeviceInfo, limit_s: float) -> None:
        self._builders, self._device, self._limit_s = builders, device, limit_s
        self._asked: SimpleQueue[Turns | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._offer, daemon=True)

    def build(self, turns: Turns) -> None:
        """These next, in this order; what was asked for before is forgotten.

        An iterator is asked for its next candidates in another thread, and only while nothing else is asked for.
        """
        self._asked.put(turns)

    def __enter__(self) -> Ahead:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._asked.put(None)
        self._thread.join()
        self._builders.forget()
        self._builders.settle()  # what is under way makes room as soon as something is asked for

    def _offer(self) -> None:
        while (turns := self._asked.get()) is not None:
            self._builders.forget()
            # What goes wrong here goes wrong again, and is told, when the axis itself asks for the build.
            with contextlib.suppress(GemmsweepError, OSError):
                for candidates in turns:
                    if not self._asked.empty():
                        break
                    for arch, sources in sources_of(candidates, self._device).items():
                        self._builders.offer(sources, arch, self._limit_s)
                else:
                    self._builders.settle()
