"""An NVIDIA GPU as a `Device`: prepares a problem, loads labels, runs their bursts."""

from __future__ import annotations

import math
from typing import Any

from gemmsweep.device.cuda import jit
from gemmsweep.device.cuda.api import check, translated
from gemmsweep.device.cuda.clock import Clock
from gemmsweep.device.cuda.cublas import ELEMENT, Cublas, Elementwise, rows_per_thread, vector_width
from gemmsweep.device.cuda.graph import BurstGraph, capture, kernel_names, nodes_of
from gemmsweep.device.cuda.labels import Alias, Config, Launchable, Vendor
from gemmsweep.device.cuda.launch import pointer, real
from gemmsweep.device.cuda.ring import BufferSet, allocate, copy_sets, fill, free_bytes, stack
from gemmsweep.device.cuda.select import describe, select
from gemmsweep.device.layout import RingPlan, SetLayout, Stack
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.errors import UsageError, choices
from gemmsweep.model import Build, Launch, Problem
from gemmsweep.protocol import Burst, DeviceFailure, DeviceSpec, Operands

RING_SHARE = 4  # the ring may take one part in so many of the free memory
TRIAL_LAUNCHES = 128
RESERVE = 1.1  # more launches than the trial asks for, so that a burst is not too short
SLOW_US = 50_000.0


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
        self._cublas: Cublas | None = None
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
    def load_reference(self, name: str, threads: int) -> tuple[str, tuple[str, ...]]:
        """See Device.load_reference. Raises UsageError for a reference there is none of."""
        if name != "cublas":
            raise UsageError(choices("reference", name, ("cublas",)))
        self.unload(name)
        if self._cublas is None:
            self._cublas = Cublas(self._stream)
        vendor = Vendor(self._cublas, self._problem, self._elementwise())
        # Once outside a capture: the library loads its kernels and settles its choice on a first call.
        vendor.enqueue(self._stream, self.ring[0])
        self._synchronize()
        with capture(self._stream) as graphs:
            vendor.enqueue(self._stream, self.ring[0])
        names, vendor.nodes = kernel_names(graphs[0]), len(nodes_of(graphs[0]))
        self._labels[name] = vendor
        return self._cublas.version, names

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
        if self._cublas is not None:
            self._cublas.close()
            self._cublas = None

    def _fill(self, operands: BufferSet, a: Any, b: Any, c: Any) -> None:
        for target, source in ((operands.a, a), (operands.b, b), (operands.c, c)):
            fill(target, source)

    def _separate_c(self) -> int:
        """Address of a C that is only read, for kernels that write to a D of their own."""
        if self._c_input is None:
            self._c_input = self.xp.array(self._c_given)
        return int(self._c_input.data.ptr)

    def _elementwise(self) -> Elementwise | None:
        if self._problem.epilogue == "none":
            return None
        options = (
            f"-DOUT={ELEMENT[self._problem.dtype]}",
            f"-DVEC={vector_width(self._problem)}",
            f"-DROWS={rows_per_thread(self._problem)}",
            f"-DOPS={parse_epilogue(self._problem.epilogue).cpp_type}",
        )
        text = jit.source("elementwise.cu")
        image = jit.compile_cubin(text, self.info.arch, jit.shared_headers(), options)
        return Elementwise(self._problem, image, self._epilogue)

    def _grow(self, count: int) -> None:
        """Have at least `count` sets, all with the contents of the first."""
        if count > len(self.ring):
            more = allocate(self._layout, count - len(self.ring))
            copy_sets(self.ring[0], more, self._layout.stride_bytes)
            self.ring += more

    def _build(self, label: str, wanted: int) -> BurstGraph:
        launches = self._plan.launches(wanted)
        sets = self._plan.sets(launches)
        self._grow(sets)
        item = self._labels[label]
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
