"""Builds of later axes, made while the first one is raced: an axis then finds most of its configs in the build cache."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from gemmsweep.build import Builders
from gemmsweep.entry import Candidate, Unwatched, compile_all
from gemmsweep.errors import GemmsweepError
from gemmsweep.model import DeviceInfo


class Ahead:
    """A context manager that builds candidates in the background until it ends. Nobody waits for it, nothing depends on it.

    Only beside a GPU: on a CPU device the compilers would disturb the race.
    """

    def __init__(self, candidates: Sequence[Candidate], device: DeviceInfo, limit_s: float) -> None:
        self._builders = Builders()
        self._work = (candidates, device, limit_s)
        self._thread = threading.Thread(target=self._build, daemon=True)

    def __enter__(self) -> Ahead:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._builders.close()
        self._thread.join()

    def _build(self) -> None:
        candidates, device, limit_s = self._work
        # What goes wrong here goes wrong again, and is told, when the axis itself asks for the build.
        with contextlib.suppress(GemmsweepError, OSError):
            compile_all(candidates, device, Unwatched(), self._builders, timeout_s=limit_s)
