"""Buffer sets in host memory: page-aligned arenas with guard bands around C."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from gemmsweep.device.layout import SetLayout, Stack

PAGE = 4096


class HostSet:
    """One set of operands inside a page-aligned arena."""

    def __init__(self, arena: Any, layout: SetLayout) -> None:
        self._arena, self._layout = arena, layout
        base = int(arena.ctypes.data)
        self.addresses = {"A": base, "B": base + layout.b_offset, "C": base + layout.c_offset}

    def _view(self, offset: int, shape: tuple[int, ...], kind: str) -> Any:
        return np.ndarray(shape, dtype=kind, buffer=self._arena, offset=offset)

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

    def copy_from(self, other: HostSet) -> None:
        """Take the contents of a set of the same layout."""
        self._arena[...] = other._arena


def page_aligned(size: int) -> Any:
    """`size` zero bytes that start on a page."""
    raw = np.zeros(size + PAGE, dtype=np.uint8)
    start = -int(raw.ctypes.data) % PAGE
    return raw[start : start + size]


def make_set(layout: SetLayout, a: Any, b: Any, c: Any) -> HostSet:
    """A filled set. Raises ValueError for operands of other shapes or types."""
    made = HostSet(page_aligned(layout.stride_bytes), layout)
    for target, source in ((made.a, a), (made.b, b), (made.c, c)):
        if source.shape != target.shape or source.dtype != target.dtype:
            raise ValueError(f"operand is {source.dtype}{source.shape}, expected {target.dtype}{target.shape}")
        target[...] = source
    return made


class HostRing:
    """Equal sets that grow on demand, the first one filled by the caller."""

    def __init__(self, layout: SetLayout, first: HostSet) -> None:
        self.sets: list[Any] = [first]
        self._layout = layout

    def grow(self, count: int) -> None:
        while len(self.sets) < count:
            more = HostSet(page_aligned(self._layout.stride_bytes), self._layout)
            more.copy_from(self.sets[0])
            self.sets.append(more)

    def stacks(self, count: int) -> list[Stack]:
        """One per set: host arrays cost little each."""
        return [Stack(one.c[None], one.guarded_c[None]) for one in self.sets[:count]]
