"""This machine's CPU as a `Device`: shared libraries through ctypes, NumPy's BLAS as the reference."""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

import numpy as np

from gemmsweep.device.function import called, imported, task_of, version_of
from gemmsweep.device.host import HostRing, HostSet, make_set, page_aligned
from gemmsweep.device.layout import RingPlan, SetLayout, Stack
from gemmsweep.device.machine import available_bytes, describe
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.errors import UsageError, choices
from gemmsweep.model import Build, Launch, Problem, Step
from gemmsweep.protocol import Burst, DeviceFailure, DeviceSpec, Operands
from gemmsweep.references import CPU_LIBRARY, Function

RING_SHARE = 8  # the ring may take one part in so many of the free memory
MOST_RING_BYTES = 1 << 30
MOST_SCRUB_BYTES = 1 << 28  # a server's last-level cache can be so large that scrubbing it would dwarf the bursts
SLOW_US = 50_000.0
TRIALS = 5  # calls per number of threads
STUMBLING = 1.5  # times slower than one thread: beyond what noise does to a call
INTEGERS: dict[str, tuple[Callable[[int], Any], int]] = {"i32": (ctypes.c_int32, 32), "i64": (ctypes.c_int64, 64)}


def pack_argument(word: str, addresses: dict[str, int], reals: dict[str, float]) -> Any:
    """One C argument of a word of docs/templates.md. Raises DeviceFailure for one a C kernel cannot take."""
    kind, _, text = word.partition(":")
    if kind in INTEGERS:
        make, bits = INTEGERS[kind]
        value = int(text)
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise DeviceFailure("launch", f"argument {word} does not fit {bits} bits")
        return make(value)
    if word in addresses:
        return ctypes.c_void_p(addresses[word])
    if word in reals:
        return ctypes.c_float(reals[word])
    raise DeviceFailure("launch", f"argument {word!r} is not one a CPU kernel can take")


def require_memory(needed: int) -> int:
    """Bytes free. Raises DeviceFailure where they are fewer: Linux promises more, and kills whoever uses it."""
    free = available_bytes()
    if needed > free:
        raise DeviceFailure("launch", f"out of memory: {needed / 2**30:.1f} GiB needed, {free / 2**30:.1f} GiB free")
    return free


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


class Blas:
    """NumPy's matmul on `threads` threads; alpha, beta and the epilogue afterwards in NumPy."""

    def __init__(self, problem: Problem, threads: int, bias: Any) -> None:
        from threadpoolctl import ThreadpoolController

        self._problem, self._bias = problem, bias
        self._epilogue = parse_epilogue(problem.epilogue)
        self._controller = ThreadpoolController().select(user_api="blas")
        self._threads = threads
        self.version = self._describe()

    @property
    def limits(self) -> AbstractContextManager[Any]:
        limiter: AbstractContextManager[Any] = self._controller.limit(limits=self._threads)
        return limiter

    def on(self, threads: int) -> Blas:
        """The same on so many threads."""
        return Blas(self._problem, threads, self._bias)

    def _describe(self) -> str:
        threads = f"{self._threads} thread{'s' if self._threads > 1 else ''}"
        for library in self._controller.info():
            names = {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS"}
            name = names.get(library["internal_api"], library["internal_api"])
            parts = (name, library.get("version"), library.get("architecture"))
            return f"{' '.join(p for p in parts if p)}, {threads}"
        return f"NumPy {np.__version__}, {threads}"

    def bind(self, operands: HostSet) -> Callable[[], None]:
        p = self._problem
        a, c = operands.a[:, : p.k], operands.c[:, : p.n]
        stored_b = operands.b[:, : p.b_columns]
        b = stored_b if p.layout == "nn" else stored_b.T
        if not self._epilogue.operations and not p.beta:
            return lambda: void(np.matmul(a, b, out=c))

        def call() -> None:
            product = np.matmul(a, b)
            if p.beta:
                product += np.float32(p.beta) * c
            c[...] = self._epilogue.apply(np, product, self._bias)

        return call


class UserFunction:
    """A Python function of the user's, with as many threads as the reference."""

    def __init__(self, call: Callable[..., Any], label: str, problem: Problem, bias: Any, threads: int) -> None:
        self._call, self._label, self._problem, self._threads = call, label, problem, threads
        self._task = task_of(problem, bias)

    @property
    def limits(self) -> AbstractContextManager[Any]:
        from threadpoolctl import threadpool_limits

        limiter: AbstractContextManager[Any] = threadpool_limits(self._threads)
        return limiter

    def bind(self, operands: HostSet) -> Callable[[], None]:
        return lambda: called(self._call, self._label, self._problem, operands, self._task)


def void(_: Any) -> None:
    """Drop a result."""


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
        self._problem, self._bias = problem, bias
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
        self._labels[name] = blas
        return blas.version, ()

    def _call_us(self, blas: Blas) -> float:
        call = blas.bind(self.ring[0])
        with blas.limits:
            timed_us(call)
            return median(timed_us(call) for _ in range(TRIALS))

    def load_function(self, label: str, function: Function, threads: int) -> tuple[str, tuple[str, ...]]:
        """See Device.load_function."""
        self.unload(label)
        call = imported(function)
        item = UserFunction(call, label, self._problem, self._bias, threads)
        with item.limits:
            item.bind(self.ring[0])()
        self._labels[label] = item
        return f"{version_of(call, function)}, {threads} thread{'s' if threads > 1 else ''}", ()

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


def stumbles(call_us: Callable[[int], float], threads: int) -> bool:
    """Whether a library waits for its own threads: cores that others use make many of them slower than one."""
    if threads == 1:
        return False
    many_us = call_us(threads)
    return many_us < SLOW_US and call_us(1) * STUMBLING < many_us


def timed_us(call: Callable[[], None]) -> float:
    begun = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begun) / 1000
