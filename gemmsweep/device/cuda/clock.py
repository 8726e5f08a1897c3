"""Effective SM clock between two points of a stream, from stamps that every SM writes, and the L2 scrub."""

from __future__ import annotations

from typing import Any

from gemmsweep.device.cuda import jit
from gemmsweep.device.cuda.launch import Kernel, Parameters, function_of, load_module, pointer
from gemmsweep.model import Step
from gemmsweep.protocol import DeviceFailure

SLOTS = 1024  # SM numbers may have holes
WORDS = 2 * SLOTS
SHORTEST_NS = 200_000  # the wall clock of some GPUs steps by 1 µs: below this, 1% and more is unknown
SCRUB_BLOCKS_PER_SM, SCRUB_THREADS = 8, 256


def median_mhz(start: Any, end: Any) -> int | None:
    """Median over SMs of cycles per time; `start`, `end` are (SLOTS, 2) integers: cycles, ns. None: not measured."""
    import numpy as np

    seen = (start[:, 1] > 0) & (end[:, 1] > start[:, 1]) & (end[:, 0] > start[:, 0])
    elapsed = (end[seen, 1] - start[seen, 1]).astype(np.float64)
    cycles = (end[seen, 0] - start[seen, 0]).astype(np.float64)
    if not elapsed.size or np.median(elapsed) < SHORTEST_NS:
        return None
    # An SM that took no block in one of the two stamps keeps an old time: it lies far from the others.
    current = abs(elapsed - np.median(elapsed)) < 0.5 * np.median(elapsed)
    return round(float(np.median(cycles[current] / elapsed[current])) * 1000)


class Clock:
    """Two stamp kernels, the memory they write to, and the scrub kernel: loaded once per device."""

    def __init__(self, arch: str, sm_count: int, scrub_bytes: int) -> None:
        import cupy

        self._module = load_module(jit.compile_cubin(jit.source("helpers.cu"), arch, {}))
        self._slots = cupy.zeros(2 * WORDS, dtype=cupy.uint64)
        self._never = cupy.zeros(1, dtype=cupy.uint32)
        self._scrub_bytes = scrub_bytes
        self._scrubber: tuple[Kernel, Parameters, Any] | None = None
        self._sm_count = sm_count
        stamp = Step("gemmsweep_stamp", (), (sm_count, 1, 1), (1024, 1, 1))  # two such blocks barely fit one SM
        self._stamp = Kernel(function_of(self._module, stamp.kernel), stamp)
        limit = SLOTS.to_bytes(4, "little")
        base = self._slots.data.ptr
        self._stamps = [Parameters([pointer(base + 8 * WORDS * i), limit]) for i in range(2)]

    def enqueue(self, stream: Any, which: int) -> None:
        """Stamp 0 before, stamp 1 after what is measured."""
        self._stamp.enqueue(stream, self._stamps[which])

    def read_mhz(self) -> int | None:
        """Mean SM clock between the last two stamps; call after a synchronisation."""
        slots = self._slots.get().reshape(2, SLOTS, 2)
        return median_mhz(slots[0], slots[1])

    def probe(self, stream: Any) -> None:
        """Stamp once and look at what was written. Raises DeviceFailure where no SM has."""
        self._slots.fill(0)
        self.enqueue(stream, 0)
        if not self._slots.get().any():
            raise DeviceFailure("runtime", "a kernel that only writes the time wrote nothing", fatal=True)

    def scrub(self, stream: Any) -> None:
        """Enqueue a read of more memory than the L2 holds."""
        if self._scrubber is None:
            self._scrubber = self._prepare_scrub()
        kernel, parameters, _ = self._scrubber
        kernel.enqueue(stream, parameters)

    def _prepare_scrub(self) -> tuple[Kernel, Parameters, Any]:
        import cupy

        memory = cupy.zeros(-(-self._scrub_bytes // 16) * 16, dtype=cupy.uint8)
        grid = (self._sm_count * SCRUB_BLOCKS_PER_SM, 1, 1)
        step = Step("gemmsweep_scrub", (), grid, (SCRUB_THREADS, 1, 1))
        chunks = (memory.size // 16).to_bytes(8, "little")
        parameters = Parameters([pointer(memory.data.ptr), chunks, pointer(self._never.data.ptr)])
        return Kernel(function_of(self._module, step.kernel), step), parameters, memory
