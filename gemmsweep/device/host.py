"""Buffer sets in host memory: page-aligned arenas with guard bands around C."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmsweep.device.layout import SetLayout, SetViews, Stack

PAGE = 4096


class HostSet(SetViews):
    """One set of operands inside a page-aligned arena."""

    def __init__(self, arena: Any, layout: SetLayout) -> None:
        super().__init__(int(arena.ctypes.data), layout)
        self._arena = arena

    def _view(self, offset: int, shape: tuple[int, ...], kind: str) -> Any:
        return np.ndarray(shape, dtype=kind, buffer=self._arena, offset=offset)

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
