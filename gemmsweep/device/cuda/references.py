"""The references of a GPU by name, and the quick race that picks the best of several."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gemmsweep.device.cuda.api import check
from gemmsweep.device.cuda.cublas import Cublas
from gemmsweep.device.cuda.cublaslt import CublasLt, LtProduct
from gemmsweep.device.cuda.graph import BurstGraph
from gemmsweep.device.cuda.labels import Product
from gemmsweep.device.cuda.padcopy import PadCopyCublas, pad_kernel
from gemmsweep.errors import UsageError, choices
from gemmsweep.model import Problem
from gemmsweep.protocol import DeviceFailure
from gemmsweep.references import FP32_SUMS, LIBRARY

T = TypeVar("T")
FIRST_TRIALS = 3  # single launches, the fastest of which decides who stays
HOPELESS = 1.5  # times the fastest: out of the quick race
MOST_RACED = 8
BURST_US, BURSTS = 2000.0, 7


class Library:
    """NVIDIA's libraries on one stream, each opened when first asked for."""

    def __init__(self, stream: Any, arch: str) -> None:
        self._stream, self._arch = stream, arch
        self._cublas: dict[bool, Cublas] = {}  # by whether partial sums are kept in fp32
        self._lt: CublasLt | None = None
        self._pad_kernels: dict[int, tuple[Any, Any]] = {}  # bytes of an element → module and function

    def products(self, name: str, problem: Problem, like: str = "") -> list[tuple[Product, str]]:
        """What goes by this name, each with its version: one product, or several to be raced; `like` as in `Device`.

        Raises UsageError for a reference there is none of, DeviceFailure for one that cannot be of this problem.
        """
        if name not in LIBRARY:
            raise UsageError(choices("reference", name, LIBRARY))
        if name == "cublaslt_best":
            if self._lt is None:
                self._lt = CublasLt(self._stream)
            found = self._lt.products(problem)
            return [(product, lt_version(self._lt.version, product, len(found))) for product in found]
        strict = name == "cublas" and FP32_SUMS in like
        if strict not in self._cublas:
            self._cublas[strict] = Cublas(self._stream, strict=strict)
        cublas = self._cublas[strict]
        if name == "cublas":
            return [(cublas, cublas.version)]
        size = problem.sizeof_in
        if size not in self._pad_kernels:
            self._pad_kernels[size] = pad_kernel(self._arch, size)
        copied = PadCopyCublas(cublas, problem, self._pad_kernels[size][1])
        return [(copied, copied.version)]

    def close(self) -> None:
        from cuda.bindings import driver

        for cublas in self._cublas.values():
            cublas.close()
        if self._lt is not None:
            self._lt.close()
        for module, _ in self._pad_kernels.values():
            check((*driver.cuModuleUnload(module), None))
        self._cublas, self._lt, self._pad_kernels = {}, None, {}


def lt_version(version: str, product: LtProduct, count: int) -> str:
    return f"{version}: {product.text}, best of {count}"


def quickest(items: Sequence[T], graph_of: Callable[[T, int], BurstGraph], time_us: Callable[[BurstGraph], float]) -> T:
    """The fastest by a short interleaved race; `time_us` runs a burst once. Raises DeviceFailure where none can run."""
    estimates: dict[int, float] = {}
    refusal = DeviceFailure("launch", "there is nothing to race")
    for index, item in enumerate(items):
        try:
            estimates[index] = estimate(graph_of(item, 1), time_us)
        except DeviceFailure as failure:
            if failure.fatal:
                raise
            refusal = failure  # what the heuristics propose the library may still refuse
    if not estimates:
        raise refusal
    fastest = min(estimates.values())
    hopeful = [
        index for index in sorted(estimates, key=estimates.__getitem__) if estimates[index] <= HOPELESS * fastest
    ]
    if len(hopeful) == 1:
        return items[hopeful[0]]
    launches = max(1, round(BURST_US / max(fastest, 0.1)))
    return items[raced({index: graph_of(items[index], launches) for index in hopeful[:MOST_RACED]}, time_us)]


def estimate(graph: BurstGraph, time_us: Callable[[BurstGraph], float]) -> float:
    """µs of the fastest of a few bursts; the graph is closed."""
    try:
        return min(time_us(graph) for _ in range(FIRST_TRIALS))
    finally:
        graph.close()


def raced(graphs: dict[int, BurstGraph], time_us: Callable[[BurstGraph], float]) -> int:
    """The key of the smallest median over bursts taken in turn, forward and backward; the graphs are closed."""
    times: dict[int, list[float]] = {key: [] for key in graphs}
    try:
        for turn in range(BURSTS):
            for key in list(graphs) if turn % 2 == 0 else reversed(list(graphs)):
                times[key].append(time_us(graphs[key]))
    finally:
        for graph in graphs.values():
            graph.close()
    return min(times, key=lambda key: statistics.median(times[key]))
