"""An NVIDIA GPU as a `Device`: prepares a problem, loads labels, runs their bursts."""

from __future__ import annotations

import math
from typing import Any

from gemmsweep.device.cuda.api import check, translated
from gemmsweep.device.cuda.clock import Clock
from gemmsweep.device.cuda.cublas import elementwise_of
from gemmsweep.device.cuda.graph import BurstGraph, captured_once
from gemmsweep.device.cuda.labels import Alias, Config, Launchable, UserFunction, Vendor
from gemmsweep.device.cuda.launch import pointer, real
from gemmsweep.device.cuda.references import Library, quickest
from gemmsweep.device.cuda.ring import BufferSet, allocate, copy_sets, fill, free_bytes, stack
from gemmsweep.device.cuda.select import describe, select
from gemmsweep.device.function import imported, version_of
from gemmsweep.device.layout import RingPlan, SetLayout, Stack
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.model import Build, Launch, Problem
from gemmsweep.protocol import Burst, DeviceFailure, DeviceSpec, Operands
from gemmsweep.references import Function

RING_SHARE = 4  # the ring may take one part in so many of the free memory
TRIAL_LAUNCHES = 128
RESERVE = 1.1  # more launches than the trial asks for, so that a burst is not too short
SLOW_US = 50_000.0
FUNCTION_CALLS = 3  # of a user's function before it is captured: it compiles, tunes itself and fills its caches


class CudaDevice:
    """One GPU, one stream, one problem at a time. Not for use from several threads."""

    @translated
    def __init__(self, spec: DeviceSpec) -> None:
        """Raises UsageError for a GPU that is not there, EnvironmentProblem for missing packages."""
        index = select(spec)
        import cupy
        from cuda.bindings import driver

        self.xp: Any = cupy
        cupy.cuda.Device(index).use()
        self.info = describe(index)
        # A blocking stream is ordered with the default stream, on which CuPy's own operations of the checks run.
        self._cupy_stream = cupy.cuda.Stream(non_blocking=False)
        self._stream = driver.CUstream(self._cupy_stream.ptr)
        scrub_bytes = RingPlan(1, self.info.l2_bytes, 0, hot=False).scrub_bytes
        self._clock = Clock(self.info.arch, self.info.sm_count, scrub_bytes)
        self._library = Library(self._stream, self.info.arch)
        self._labels: dict[str, Launchable] = {}
        self._graphs: dict[str, BurstGraph] = {}
        self._reported: dict[str, int] = {}
        self.ring: list[Any] = []
        self._fixed: dict[str, bytes] = {}

    @translated
    def prepare(self, problem: Problem, a: Any, b: Any, c: Any, l2: str, bias: Any = None) -> None:
        """See Device.prepare. Raises DeviceFailure with needed and free bytes where one set does not fit."""
        self._release()
        self._problem = problem
        self._layout = SetLayout.of(problem)
        budget = free_bytes() // RING_SHARE
        self._plan = RingPlan(self._layout.stride_bytes, self.info.l2_bytes, budget, hot=l2 == "hot")
        self.ring = allocate(self._layout, 1)
        self._fill(self.ring[0], a, b, c)
        self._bias, self._c_given = bias, c
        self._c_input: Any = None
        address = 0 if bias is None else int(bias.data.ptr)
        self._epilogue = parse_epilogue(problem.epilogue).pack(1.0, problem.beta, address)
        self._fixed = {"alpha": real(1.0), "beta": real(problem.beta), "epilogue": self._epilogue}

    @translated
    def operands(self, a: Any, b: Any, c: Any) -> Operands:
        """See Device.operands."""
        made = allocate(self._layout, 1)[0]
        self._fill(made, a, b, c)
        return made

    @translated
    def load(self, label: str, build: Build, launch: Launch) -> None:
        """See Device.load. Raises DeviceFailure for a binary the device cannot take."""
        self.unload(label)
        if any("D" in step.args for step in launch.steps):
            if self._problem.beta:
                # Its C would be one buffer for all launches, in cache, while everyone else reads theirs from memory.
                raise DeviceFailure("launch", "a kernel with a separate C and D is only raced with beta = 0")
            self._fixed["C"] = pointer(self._separate_c())
        self._labels[label] = Config(build, launch, self._problem, self._fixed)

    @translated
    def load_reference(self, name: str, threads: int, like: str = "") -> tuple[str, tuple[str, ...]]:
        """See Device.load_reference. Raises UsageError for a reference there is none of."""
        self.unload(name)
        found = self._library.products(name, self._problem, like)
        found = [one for one in found if one[1] == like] or found
        product, version = found[0]
        if len(found) > 1:
            product, version = quickest(
                found, lambda one, n: self._trial(Vendor(one[0], self._problem, None), n), self._us
            )
        vendor = Vendor(product, self._problem, elementwise_of(self._problem, self.info.arch, self._epilogue))
        names, vendor.nodes = self._captured_once(vendor)
        self._labels[name] = vendor
        return version, names

    @translated
    def load_function(self, label: str, function: Function) -> tuple[str, tuple[str, ...]]:
        """See Device.load_function."""
        self.unload(label)
        call = imported(function)
        item = UserFunction(call, label, self._problem, self._bias, self._cupy_stream)
        for _ in range(FUNCTION_CALLS):
            item.enqueue(self._stream, self.ring[0])
            self._synchronize()
        try:
            names, item.nodes = self._captured_once(item)
        except DeviceFailure as failure:
            reason = f"{label} cannot be captured in a CUDA graph ({failure.reason})"
            raise DeviceFailure(failure.status, reason, fatal=failure.fatal) from failure
        if not item.nodes:
            raise DeviceFailure("launch", f"{label} enqueued nothing on the current stream: launch on task.stream")
        self._labels[label] = item
        return version_of(call, function), names

    def _captured_once(self, item: Launchable) -> tuple[tuple[str, ...], int]:
        return captured_once(self._stream, lambda: item.enqueue(self._stream, self.ring[0]))

    def _trial(self, item: Vendor, launches: int) -> BurstGraph:
        """A burst of a label-to-be."""
        _, item.nodes = self._captured_once(item)
        return self._graph_of(item, launches)

    def _us(self, graph: BurstGraph) -> float:
        """µs per launch of one burst."""
        if self._plan.scrubs:
            self._clock.scrub(self._stream)
        graph.launch()
        self._synchronize()
        return graph.elapsed_ns() / graph.launches / 1000

    def unload(self, label: str) -> None:
        """See Device.unload; a label that is not loaded is no error."""
        self._drop_graph(label)
        self._reported.pop(label, None)
        if label in self._labels:
            self._labels.pop(label).close()

    @translated
    def launch(self, label: str, operands: Operands) -> None:
        """See Device.launch."""
        assert isinstance(operands, BufferSet)
        self._labels[label].enqueue(self._stream, operands)
        self._synchronize()

    @translated
    def calibrate(self, label: str, burst_ms: float) -> float:
        """See Device.calibrate."""
        self._drop_graph(label)
        wanted_us = burst_ms * 1000
        estimate_us = self._measure_us(label, 1)
        if estimate_us <= SLOW_US:
            estimate_us = self._measure_us(label, max(1, min(TRIAL_LAUNCHES, math.ceil(wanted_us / estimate_us))))
        self._graphs[label] = self._build(label, math.ceil(RESERVE * wanted_us / max(estimate_us, 0.1)))
        return estimate_us

    @translated
    def repeat(self, label: str, of: str, launches: int, reported: int) -> None:
        """See Device.repeat."""
        most = self._plan.launches(launches)
        if most < launches:
            raise DeviceFailure("launch", f"memory holds cold buffers for {most} launches, {launches} are needed")
        self.unload(label)
        self._labels[label] = Alias(self._labels[of])
        self._graphs[label] = self._build(label, launches)
        self._reported[label] = reported

    def touched(self, label: str) -> int:
        """See Device.touched."""
        return self._plan.sets(self._graphs[label].launches)

    @translated
    def replay(self, label: str) -> None:
        """See Device.replay."""
        self._graphs[label].launch()
        self._synchronize()

    @translated
    def burst(self, label: str) -> Burst:
        """See Device.burst."""
        graph = self._graphs[label]
        if self._plan.scrubs:
            self._clock.scrub(self._stream)
        graph.launch()
        self._synchronize()
        launches = self._reported.get(label, graph.launches)
        return Burst(label, graph.elapsed_ns(), launches, self._clock.read_mhz())

    def stacks(self, count: int) -> list[Stack]:
        """See Device.stacks: one per arena."""
        return stack(self.ring[:count])

    @translated
    def memory_free_bytes(self) -> int:
        """See Device.memory_free_bytes."""
        return free_bytes()

    @translated
    def probe(self) -> None:
        """See Device.probe: the kernel that stamps clocks."""
        self._clock.probe(self._stream)

    def close(self) -> None:
        """See Device.close."""
        self._release()
        self._library.close()

    def _fill(self, operands: BufferSet, a: Any, b: Any, c: Any) -> None:
        for target, source in ((operands.a, a), (operands.b, b), (operands.c, c)):
            fill(target, source)

    def _separate_c(self) -> int:
        """Address of a C that is only read, for kernels that write to a D of their own."""
        if self._c_input is None:
            self._c_input = self.xp.array(self._c_given)
        return int(self._c_input.data.ptr)

    def _grow(self, count: int) -> None:
        """Have at least `count` sets, all with the contents of the first."""
        if count > len(self.ring):
            more = allocate(self._layout, count - len(self.ring))
            copy_sets(self.ring[0], more, self._layout.stride_bytes)
            self.ring += more

    def _build(self, label: str, wanted: int) -> BurstGraph:
        return self._graph_of(self._labels[label], wanted)

    def _graph_of(self, item: Launchable, wanted: int) -> BurstGraph:
        launches = self._plan.launches(wanted)
        sets = self._plan.sets(launches)
        self._grow(sets)
        return BurstGraph(
            self._stream,
            self._clock,
            lambda i: item.enqueue(self._stream, self.ring[i % sets]),
            launches,
            item.nodes,
        )

    def _measure_us(self, label: str, launches: int) -> float:
        """µs per launch of a short burst that is thrown away."""
        graph = self._build(label, launches)
        try:
            graph.launch()
            self._synchronize()
            return graph.elapsed_ns() / graph.launches / 1000
        finally:
            graph.close()

    def _synchronize(self) -> None:
        from cuda.bindings import driver

        check((*driver.cuStreamSynchronize(self._stream), None))

    def _drop_graph(self, label: str) -> None:
        if label in self._graphs:
            self._graphs.pop(label).close()

    def _release(self) -> None:
        """Give back everything of the problem before."""
        for label in list(self._labels):
            self.unload(label)
        self.ring, self._fixed, self._c_input, self._bias, self._c_given = [], {}, None, None, None
        self.xp.get_default_memory_pool().free_all_blocks()
