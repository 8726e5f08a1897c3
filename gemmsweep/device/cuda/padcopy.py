"""Strides that are not whole 16 bytes: copies into padded workspaces, cuBLAS on those, and C copied back. All timed."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any

from gemmsweep.analysis.account import round_up
from gemmsweep.device.cuda import jit
from gemmsweep.device.cuda.cublas import Cublas
from gemmsweep.device.cuda.launch import Kernel, Parameters, function_of, load_module
from gemmsweep.device.cuda.ring import BufferSet
from gemmsweep.model import Problem, Step
from gemmsweep.protocol import DeviceFailure
from gemmsweep.references import WHOLE_BYTES

THREADS, PER_THREAD = 256, 4
MOST_CHUNKS = 1 << 31
JOB = struct.Struct("<QQqqIIIII4x")  # struct Job of pad_copy.cu
ELEMENT = {2: "unsigned short", 4: "unsigned int"}


@dataclass(frozen=True, slots=True)
class Padded:
    """The problem as cuBLAS gets it, and which operands it gets as padded copies."""

    problem: Problem
    a: bool
    b: bool
    c: bool


def padded(problem: Problem) -> Padded:
    """N and K in whole 16 bytes too: kernels ask it of the extents that are contiguous, not only of strides."""
    whole = WHOLE_BYTES // problem.sizeof_in
    n, k = round_up(problem.n, whole), round_up(problem.k, whole)
    longer_k, wider = k != problem.k, n != problem.n
    a = longer_k or problem.lda % whole != 0
    b = longer_k or wider or problem.ldb % whole != 0
    c = wider or problem.ldd % whole != 0
    bigger = replace(problem, n=n, k=k)
    lda, ldb, ldd = bigger.tight.values()
    bigger = replace(
        bigger, lda=lda if a else problem.lda, ldb=ldb if b else problem.ldb, ldd=ldd if c else problem.ldd
    )
    return Padded(bigger, a, b, c)


@dataclass(frozen=True, slots=True)
class Copy:
    """One matrix to copy: addresses, strides and rows in bytes."""

    source: int
    target: int
    source_stride: int
    target_stride: int
    rows: int
    source_bytes: int
    target_bytes: int

    @property
    def chunks(self) -> int:
        """Aligned 16 bytes that a row of the target touches, wherever it starts."""
        aligned = self.target % WHOLE_BYTES == 0 and self.target_stride % WHOLE_BYTES == 0
        return -(-(self.target_bytes + (0 if aligned else WHOLE_BYTES - 1)) // WHOLE_BYTES)

    @property
    def blocks(self) -> int:
        return -(-self.rows * self.chunks // (THREADS * PER_THREAD))

    def pack(self) -> bytes:
        return JOB.pack(
            self.source, self.target, self.source_stride, self.target_stride, self.rows, self.source_bytes,
            self.target_bytes, self.chunks, self.blocks,
        )  # fmt: skip


NOTHING = JOB.pack(0, 0, 0, 0, 0, 0, 0, 1, 0)


def pad_kernel(arch: str, element_bytes: int) -> tuple[Any, Any]:
    """The copying kernel for elements of 2 or 4 bytes: its module, to be unloaded at the end, and the function."""
    options = (f"-DELEMENT={ELEMENT[element_bytes]}", f"-DPER_THREAD={PER_THREAD}")
    module = load_module(jit.compile_cubin(jit.source("pad_copy.cu"), arch, jit.shared_headers(), options))
    return module, function_of(module, "gemmsweep_pad_copy")


class PadCopyCublas:
    """A product through padded copies. One launch copies all that is read, one more copies C back."""

    def __init__(self, cublas: Cublas, problem: Problem, kernel: Any) -> None:
        """`kernel` is `pad_kernel`'s function. Raises DeviceFailure where there is nothing to pad, or too much."""
        import cupy

        plan = padded(problem)
        if not (plan.a or plan.b or plan.c):
            raise DeviceFailure("launch", "every row is whole 16 bytes: there is nothing to pad")
        self._cublas, self._problem, self._plan = cublas, problem, plan
        bigger, size = plan.problem, problem.sizeof_in
        # Zeroed once: rows of B beyond the problem's stay as they are.
        shapes = {"A": bigger.m * bigger.lda, "B": bigger.b_rows * bigger.ldb, "C": bigger.m * bigger.ldd}
        wanted = {"A": plan.a, "B": plan.b, "C": plan.c}
        self._spaces = {n: cupy.zeros(count * size, dtype=cupy.uint8) for n, count in shapes.items() if wanted[n]}
        self._kernel = kernel

    @property
    def version(self) -> str:
        """Which operands are copied, and the library."""
        return f"{self._cublas.version}, {''.join(sorted(self._spaces))} padded"

    def enqueue(self, stream: Any, problem: Problem, operands: BufferSet) -> None:
        """Copies in, the product, and C back."""
        inside = {name: int(space.data.ptr) for name, space in self._spaces.items()}
        self._copy(stream, [copy for name in inside if (copy := self._into(name, operands, inside[name]))])
        self._cublas.enqueue_at(self._plan.problem, {**operands.addresses, **inside})
        if "C" in inside:
            self._copy(stream, [self._back(operands, inside["C"])])

    def _into(self, name: str, operands: BufferSet, target: int) -> Copy | None:
        p, bigger, size = self._problem, self._plan.problem, self._problem.sizeof_in
        rows, columns, leading, wide = {
            "A": (p.m, p.k, p.lda, bigger.lda),
            "B": (p.b_rows, p.b_columns, p.ldb, bigger.ldb),
            "C": (p.m, p.n, p.ldd, bigger.ldd),
        }[name]
        if name == "C" and not p.beta:
            return None  # nothing of it is read
        return Copy(operands.addresses[name], target, leading * size, wide * size, rows, columns * size, wide * size)

    def _back(self, operands: BufferSet, source: int) -> Copy:
        p, size = self._problem, self._problem.sizeof_out
        wide = self._plan.problem.ldd * size
        return Copy(source, operands.addresses["C"], wide, p.ldd * size, p.m, p.n * size, p.n * size)

    def _copy(self, stream: Any, copies: list[Copy]) -> None:
        if not copies:
            return
        if any(copy.rows * copy.chunks >= MOST_CHUNKS for copy in copies):
            raise DeviceFailure("launch", "a matrix is too large for the padding kernel")
        step = Step("gemmsweep_pad_copy", (), (sum(copy.blocks for copy in copies), 1, 1), (THREADS, 1, 1))
        jobs = [copy.pack() for copy in copies] + [NOTHING] * (3 - len(copies))
        Kernel(self._kernel, step).enqueue(stream, Parameters(jobs))
