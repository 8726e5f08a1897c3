"""Buffer sets on the GPU: equal contents, guard bands around C, grown on demand inside contiguous arenas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmsweep.device.cuda.api import check, gibibytes
from gemmsweep.device.layout import SetLayout, SetViews, Stack
from gemmsweep.model import TensorMap
from gemmsweep.protocol import DeviceFailure


class BufferSet(SetViews):
    """One set of operands inside an arena."""

    def __init__(self, arena: Any, offset: int, layout: SetLayout) -> None:
        super().__init__(arena.data.ptr + offset, layout)
        self.arena, self._offset = arena, offset
        self.base = arena.data.ptr + offset
        self.tensor_maps: dict[TensorMap, bytes] = {}

    def _view(self, offset: int, shape: tuple[int, ...], kind: str) -> Any:
        import cupy

        return cupy.ndarray(shape, dtype=kind, memptr=self.arena.data + (self._offset + offset))


def allocate(layout: SetLayout, count: int) -> list[BufferSet]:
    """`count` adjacent sets, contents undefined. Raises DeviceFailure with needed and free bytes."""
    import cupy
    from cupy.cuda.memory import OutOfMemoryError

    needed = layout.stride_bytes * count
    try:
        arena = cupy.empty(needed, dtype=cupy.uint8)
    except OutOfMemoryError as error:
        free = free_bytes()
        reason = f"out of device memory: {gibibytes(needed)} needed, {gibibytes(free)} free"
        raise DeviceFailure("launch", reason) from error
    return [BufferSet(arena, i * layout.stride_bytes, layout) for i in range(count)]


def stack(sets: Sequence[BufferSet]) -> list[Stack]:
    """Runs of sets in one arena, each as one strided array."""
    runs: list[list[BufferSet]] = []
    for one in sets:
        if runs and runs[-1][0].arena is one.arena:
            runs[-1].append(one)
        else:
            runs.append([one])
    return [Stack(across(run, "c"), across(run, "guarded_c")) for run in runs]


def across(run: Sequence[BufferSet], name: str) -> Any:
    """One view of every set of a run, on a new first axis."""
    import cupy

    first = getattr(run[0], name)
    step = run[1].base - run[0].base if len(run) > 1 else first.nbytes
    return cupy.ndarray((len(run), *first.shape), first.dtype, first.data, (step, *first.strides))


def free_bytes() -> int:
    """Memory of the GPU that an allocation may use: free, or held by CuPy's pool and unused."""
    import cupy

    return int(cupy.cuda.runtime.memGetInfo()[0]) + int(cupy.get_default_memory_pool().free_bytes())


def fill(target: Any, source: Any) -> None:
    """Copy a NumPy or CuPy array of the same shape and type. Raises ValueError for any other."""
    import cupy
    import numpy as np

    if source.shape != target.shape or source.dtype != target.dtype:
        raise ValueError(f"operand is {source.dtype}{source.shape}, expected {target.dtype}{target.shape}")
    if isinstance(source, np.ndarray):
        target.set(source)
    else:
        target.data.copy_from_device(cupy.ascontiguousarray(source).data, target.nbytes)


def copy_sets(first: BufferSet, sets: list[BufferSet], stride_bytes: int) -> None:
    """Give adjacent `sets` the contents of `first`, doubling what is copied each time."""
    from cuda.bindings import driver

    if not sets:
        return
    base = sets[0].base
    check((*driver.cuMemcpyDtoD(base, first.base, stride_bytes), None))
    done = 1
    while done < len(sets):
        count = min(done, len(sets) - done)
        check((*driver.cuMemcpyDtoD(base + done * stride_bytes, base, count * stride_bytes), None))
        done += count
