"""This machine's CPU as a `Device`: one problem, its buffers, its bursts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from gemmsweep.device.cpu_library import Library
from gemmsweep.device.cpu_references import Blas, UserFunction, stumbles
from gemmsweep.device.function import imported, version_of
from gemmsweep.device.host import HostRing, HostSet, make_set, page_aligned
from gemmsweep.device.layout import RingPlan, SetLayout, Stack
from gemmsweep.device.machine import available_bytes, describe, require_memory
from gemmsweep.errors import UsageError, choices, counted
from gemmsweep.model import Build, Launch, Problem
from gemmsweep.protocol import Burst, DeviceFailure, DeviceSpec, Operands
from gemmsweep.references import CPU_LIBRARY, Function

RING_SHARE = 8  # the ring may take one part in so many of the free memory
MOST_RING_BYTES = 1 << 30
MOST_SCRUB_BYTES = 1 << 28  # a server's last-level cache can be so large that scrubbing it would dwarf the bursts
SLOW_US = 50_000.0
TRIALS = 5  # calls per number of threads


class CpuDevice:
    """One problem at a time; a burst is a loop of calls."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.info = describe()
        self.xp: Any = np
        self.ring: list[Any] = []
        self._labels: dict[str, Library | Blas | UserFunction] = {}
        self._bursts: dict[str, list[Callable[[], None]]] = {}
        self._reported: dict[str, int] = {}
        self._scrub: Any = None

    def prepare(self, problem: Problem, a: Any, b: Any, c: Any, l2: str, bias: Any = None) -> None:
        """See Device.prepare. Raises DeviceFailure where one set does not fit."""
        self._labels, self._bursts, self._reported, self.ring = {}, {}, {}, []
        self._problem, self._bias, self._threads = problem, bias, 1
        self._layout = SetLayout.of(problem)
        free = require_memory(self._layout.stride_bytes)
        budget = min(free // RING_SHARE, MOST_RING_BYTES)
        self._plan = RingPlan(self._layout.stride_bytes, self.info.l2_bytes, budget, hot=l2 == "hot")
        self._host_ring = HostRing(self._layout, make_set(self._layout, a, b, c))
        self.ring = self._host_ring.sets

    def operands(self, a: Any, b: Any, c: Any) -> Operands:
        """See Device.operands."""
        return make_set(self._layout, a, b, c)

    def load(self, label: str, build: Build, launch: Launch) -> None:
        """See Device.load."""
        self.unload(label)
        self._labels[label] = Library(build, launch, self._problem.beta)

    def load_reference(self, name: str, threads: int, like: str = "") -> tuple[str, tuple[str, ...]]:
        """See Device.load_reference. Raises UsageError for a reference there is none of."""
        if name not in CPU_LIBRARY:
            raise UsageError(choices("reference", name, CPU_LIBRARY))
        blas = Blas(self._problem, threads, self._bias)
        one = blas.on(1)
        if like == one.version or (
            like != blas.version and stumbles(lambda count: self._call_us(blas.on(count)), threads)
        ):
            blas = one
        self.unload(name)
        self._labels[name], self._threads = blas, blas.threads
        return blas.version, ()

    def _call_us(self, blas: Blas) -> float:
        call = blas.bind(self.ring[0])
        with blas.limits:
            timed_us(call)
            return median(timed_us(call) for _ in range(TRIALS))

    def load_function(self, label: str, function: Function) -> tuple[str, tuple[str, ...]]:
        """See Device.load_function."""
        self.unload(label)
        call = imported(function)
        item = UserFunction(call, label, self._problem, self._bias, self._threads)
        with item.limits:
            item.bind(self.ring[0])()
        self._labels[label] = item
        return f"{version_of(call, function)}, {counted(self._threads, 'thread')}", ()

    def unload(self, label: str) -> None:
        """See Device.unload; a label that is not loaded is no error."""
        for known in (self._bursts, self._reported, self._labels):
            known.pop(label, None)

    def launch(self, label: str, operands: Operands) -> None:
        """See Device.launch."""
        assert isinstance(operands, HostSet)
        item = self._labels[label]
        with item.limits:
            item.bind(operands)()

    def calibrate(self, label: str, burst_ms: float) -> float:
        """See Device.calibrate."""
        item = self._labels[label]
        call = item.bind(self.ring[0])
        with item.limits:
            estimate_us = timed_us(call)
            repeats = 1 if estimate_us > SLOW_US else 3
            estimate_us = min(timed_us(call) for _ in range(repeats))
        launches = self._plan.launches(math.ceil(burst_ms * 1000 / max(estimate_us, 0.1)))
        self._make_burst(label, launches)
        return estimate_us

    def repeat(self, label: str, of: str, launches: int, reported: int) -> None:
        """See Device.repeat."""
        most = self._plan.launches(launches)
        if most < launches:
            raise DeviceFailure("launch", f"memory holds cold buffers for {most} launches, {launches} are needed")
        self._labels[label] = self._labels[of]
        self._make_burst(label, launches)
        self._reported[label] = reported

    def _make_burst(self, label: str, launches: int) -> None:
        sets = self._plan.sets(launches)
        self._host_ring.grow(sets)
        bound = [self._labels[label].bind(operands) for operands in self.ring[:sets]]
        self._bursts[label] = [bound[i % sets] for i in range(launches)]

    def touched(self, label: str) -> int:
        """See Device.touched."""
        return self._plan.sets(len(self._bursts[label]))

    def replay(self, label: str) -> None:
        """See Device.replay."""
        self._run(label)

    def burst(self, label: str) -> Burst:
        """See Device.burst."""
        if self._plan.scrubs:
            self._scrub_cache()
        elapsed_ns = self._run(label)
        return Burst(label, elapsed_ns, self._reported.get(label, len(self._bursts[label])))

    def _run(self, label: str) -> int:
        """The label's burst; returns its time in ns."""
        calls = self._bursts[label]
        with self._labels[label].limits:
            begun = time.perf_counter_ns()
            for call in calls:
                call()
            return time.perf_counter_ns() - begun

    def _scrub_cache(self) -> None:
        """Write more memory than the last-level cache holds, up to a limit."""
        if self._scrub is None:
            self._scrub = page_aligned(min(self._plan.scrub_bytes, MOST_SCRUB_BYTES))
        self._scrub.view(np.int64).fill(1)

    def stacks(self, count: int) -> list[Stack]:
        """See Device.stacks."""
        return self._host_ring.stacks(count)

    def memory_free_bytes(self) -> int:
        """See Device.memory_free_bytes."""
        return available_bytes()

    def probe(self) -> None:
        """See Device.probe: a host that runs this process has no other state to lose."""

    def close(self) -> None:
        """See Device.close."""
        self._labels, self._bursts, self.ring, self._scrub = {}, {}, [], None


def timed_us(call: Callable[[], None]) -> float:
    begun = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begun) / 1000
