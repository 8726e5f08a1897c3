"""Where A, B and a guarded C lie inside one buffer set, and how many sets a burst needs. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gemmsweep.analysis.account import round_up
from gemmsweep.elements import STORAGE
from gemmsweep.model import DTYPES, Problem

ALIGNMENT = 256  # of A, B and C, in bytes: what vendor libraries ask for their fastest kernels
GUARD_BYTES = 4096  # before and after C
COLD_FACTOR = 4  # cached data of a set this many times the cache's size is 2% of it: cold by itself


def storage(dtype: str) -> tuple[str, str]:
    """NumPy's names of the types that hold A and B, and C, of one of `model.DTYPES`."""
    inputs, output = DTYPES[dtype][:2]
    return STORAGE[inputs], STORAGE[output]


@dataclass(frozen=True, slots=True)
class SetLayout:
    """Byte offsets of one buffer set: A, B, guard band, C, guard band."""

    a_shape: tuple[int, int]
    b_shape: tuple[int, int]
    c_shape: tuple[int, int]
    in_type: str
    out_type: str
    b_offset: int
    guard_offset: int
    c_offset: int
    guarded_elements: int
    stride_bytes: int

    @staticmethod
    def of(problem: Problem) -> SetLayout:
        in_type, out_type = storage(problem.dtype)
        c_elements = problem.m * problem.ldd
        b_offset = round_up(problem.m * problem.lda * problem.sizeof_in, ALIGNMENT)
        guard_offset = b_offset + round_up(problem.b_rows * problem.ldb * problem.sizeof_in, ALIGNMENT)
        guarded_bytes = 2 * GUARD_BYTES + c_elements * problem.sizeof_out
        return SetLayout(
            a_shape=(problem.m, problem.lda),
            b_shape=(problem.b_rows, problem.ldb),
            c_shape=(problem.m, problem.ldd),
            in_type=in_type,
            out_type=out_type,
            b_offset=b_offset,
            guard_offset=guard_offset,
            c_offset=guard_offset + GUARD_BYTES,
            guarded_elements=guarded_bytes // problem.sizeof_out,
            stride_bytes=guard_offset + round_up(guarded_bytes, ALIGNMENT),
        )


class SetViews:
    """A, B, C and guarded C of one buffer set as arrays, each made when first asked for: a burst needs only addresses."""

    def __init__(self, base: int, layout: SetLayout) -> None:
        self._layout = layout
        self.addresses = {"A": base, "B": base + layout.b_offset, "C": base + layout.c_offset}

    def _view(self, offset: int, shape: tuple[int, ...], kind: str) -> Any:
        raise NotImplementedError

    @cached_property
    def a(self) -> Any:
        return self._view(0, self._layout.a_shape, self._layout.in_type)

    @cached_property
    def b(self) -> Any:
        return self._view(self._layout.b_offset, self._layout.b_shape, self._layout.in_type)

    @cached_property
    def c(self) -> Any:
        return self._view(self._layout.c_offset, self._layout.c_shape, self._layout.out_type)

    @cached_property
    def guarded_c(self) -> Any:
        return self._view(self._layout.guard_offset, (self._layout.guarded_elements,), self._layout.out_type)


@dataclass(frozen=True)
class Stack:
    """C of several sets as one array: `c` is (sets, rows, leading dimension), `guarded_c` (sets, elements)."""

    c: Any
    guarded_c: Any


@dataclass(frozen=True, slots=True)
class RingPlan:
    """How many buffer sets a burst takes, and whether the cache is scrubbed before it."""

    set_bytes: int
    cache_bytes: int
    budget_bytes: int
    hot: bool

    @property
    def one_set(self) -> bool:
        """One set serves every launch: the caller wants it hot, or it is far larger than the cache."""
        return self.hot or self.set_bytes >= COLD_FACTOR * self.cache_bytes

    @property
    def scrubs(self) -> bool:
        return not self.one_set

    @property
    def scrub_bytes(self) -> int:
        return COLD_FACTOR * self.cache_bytes

    def launches(self, wanted: int) -> int:
        """Launches of one burst: as many as wanted, but never more than there is memory for untouched sets."""
        if self.one_set:
            return max(1, wanted)
        return max(1, min(wanted, self.budget_bytes // self.set_bytes))

    def sets(self, launches: int) -> int:
        return 1 if self.one_set else launches
