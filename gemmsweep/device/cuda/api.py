"""Calls of the CUDA driver, its result codes turned into DeviceFailure. CuPy holds the memory; the driver launches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from gemmsweep.protocol import DeviceFailure

P = ParamSpec("P")
R = TypeVar("R")

OUT_OF_MEMORY = 2
# After these the context is lost. The runtime's cudaError_t has the same numbers as the driver's CUresult.
FATAL = {
    214: "an uncorrectable memory error of the GPU (ECC)",
    700: "an illegal memory access",
    702: "the launch timed out (a display's watchdog)",
    709: "the context was destroyed",
    710: "a device-side assertion",
    714: "a stack error",
    715: "an illegal instruction",
    716: "a misaligned address",
    717: "an instruction on the wrong address space",
    718: "an invalid program counter",
    719: "the kernel failed while running",
}
LAUNCH = {
    1: "an invalid launch: grid, block or shared memory beyond what the device allows",
    9: "an invalid launch configuration",
    200: "the binary is not for this device",
    209: "the binary holds no code for this device",
    218: "the binary's PTX was refused",
    500: "the kernel's symbol is not in the binary",
    701: "too many resources for one block (registers, threads or shared memory)",
    720: "a cooperative launch too large for the device",
    912: "an invalid cluster size",
}


def failure(code: int, name: str) -> DeviceFailure:
    """What a result code of the driver or the runtime means for the config that caused it."""
    if code in FATAL:
        return DeviceFailure("runtime", f"{FATAL[code]} ({name})", fatal=True)
    if code == OUT_OF_MEMORY:
        return DeviceFailure("launch", f"out of device memory ({name})")
    return DeviceFailure("launch", f"{LAUNCH[code]} ({name})" if code in LAUNCH else name)


def check(result: tuple[Any, ...]) -> Any:
    """The values of a driver call without its code. Raises DeviceFailure where the code is not success."""
    code = int(result[0])
    if code:
        raise failure(code, getattr(result[0], "name", str(code)))
    return result[1] if len(result) == 2 else result[1:]


def translated(function: Callable[P, R]) -> Callable[P, R]:
    """Turns CuPy's and cuBLAS's exceptions of a method into DeviceFailure."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        from cupy.cuda.memory import OutOfMemoryError
        from cupy_backends.cuda.api.driver import CUDADriverError
        from cupy_backends.cuda.api.runtime import CUDARuntimeError

        try:
            return function(*args, **kwargs)
        except OutOfMemoryError as e:
            raise DeviceFailure("launch", f"out of device memory: {e}") from e
        except (CUDARuntimeError, CUDADriverError) as e:
            raise failure(int(e.status), str(e).split(":")[0]) from e

    return call


def gibibytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
