"""Words of docs/templates.md (`A`, `i64:4096`, `workspace:W`) → bytes of a kernel's parameters → a launch."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from gemmsweep.device.cuda.api import check
from gemmsweep.device.words import integer
from gemmsweep.model import Problem, Step, TensorMap
from gemmsweep.protocol import DeviceFailure

INTEGERS = {"i32": "<i", "i64": "<q"}
TENSOR_MAP_BYTES = 128
ABSENT = {"null": bytes(8), "null_map": bytes(TENSOR_MAP_BYTES)}  # what a config leaves out
PROMOTIONS = (0, 64, 128, 256)


def pack_argument(word: str, values: Mapping[str, bytes]) -> bytes:
    """One parameter. `values` holds the bytes of every word that is not an integer. Raises DeviceFailure."""
    found = integer(word)
    if found is not None:
        kind, value = found
        return struct.pack(INTEGERS[kind], value)
    if word not in values:
        raise DeviceFailure("launch", f"argument {word!r} is not one this device can pass")
    return values[word]


def pointer(address: int) -> bytes:
    return struct.pack("<Q", address)


def real(value: float) -> bytes:
    return struct.pack("<f", value)


class Parameters:
    """The parameters of one launch, laid out as cuLaunchKernel reads them: an array of addresses of values."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self._buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
        self._array = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(b) for b in self._buffers))

    @property
    def address(self) -> int:
        return ctypes.addressof(self._array)


class Kernel:
    """One launchable function of a loaded module, with its grid, block and shared memory."""

    def __init__(self, function: Any, step: Step) -> None:
        from cuda.bindings import driver

        self._function, self._step = function, step
        self._launch = driver.cuLaunchKernel
        if step.smem_bytes:  # more than 48 KB, static included, must be asked for; asking for less does no harm
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check((*driver.cuFuncSetAttribute(function, attribute, step.smem_bytes), None))

    def enqueue(self, stream: Any, parameters: Parameters) -> None:
        """Add one launch to the stream, or to the graph it captures. Raises DeviceFailure."""
        s = self._step
        check((*self._launch(self._function, *s.grid, *s.block, s.smem_bytes, stream, parameters.address, 0), None))


def load_module(image: bytes) -> Any:
    """A module of a cubin's bytes. Raises DeviceFailure where it is not for this device."""
    from cuda.bindings import driver

    return check(driver.cuModuleLoadData(image))


def function_of(module: Any, symbol: str) -> Any:
    from cuda.bindings import driver

    return check(driver.cuModuleGetFunction(module, symbol.encode()))


def operand_extent(operand: str, problem: Problem) -> tuple[int, int, int, str]:
    """Columns, rows, leading dimension in elements, and dtype of an operand as stored."""
    if operand == "A":
        return problem.k, problem.m, problem.lda, problem.dtype
    if operand == "B":
        return problem.b_columns, problem.b_rows, problem.ldb, problem.dtype
    stored = "fp32" if problem.dtype == "tf32" else problem.dtype
    return problem.n, problem.m, problem.ldd, stored


def map_extent(wanted: TensorMap, problem: Problem) -> tuple[int, int, int, str]:
    """The same of a tensor map; the elements of a workspace are as the inputs'."""
    if not wanted.extent:
        return operand_extent(wanted.operand, problem)
    columns, rows = wanted.extent
    return columns, rows, wanted.ld, problem.dtype


def map_data_type(dtype: str) -> str:
    """As the driver names it; TFLOAT32 is rounded on the way to shared memory."""
    return {"fp16": "FLOAT16", "bf16": "BFLOAT16", "tf32": "TFLOAT32"}.get(dtype, "FLOAT32")


def encode_tensor_map(wanted: TensorMap, problem: Problem, address: int) -> bytes:
    """The 128 bytes of a TMA descriptor of what lies at `address`. Raises DeviceFailure for what TMA cannot do."""
    from cuda.bindings import driver

    columns, rows, leading, dtype = map_extent(wanted, problem)
    failed = f"tensor map {wanted.name}:"
    if leading * problem.sizeof_in % 16:
        raise DeviceFailure("launch", f"{failed} rows of {leading} × {problem.sizeof_in} bytes are not whole 16 bytes")
    data_type = getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{map_data_type(dtype)}")
    swizzles, promotions = driver.CUtensorMapSwizzle, driver.CUtensorMapL2promotion
    swizzle = f"CU_TENSOR_MAP_SWIZZLE_{wanted.swizzle}B" if wanted.swizzle else "CU_TENSOR_MAP_SWIZZLE_NONE"
    promotion = f"CU_TENSOR_MAP_L2_PROMOTION_L2_{wanted.promotion}B"
    if len(wanted.box) != 2 or not hasattr(swizzles, swizzle) or wanted.promotion not in PROMOTIONS:
        raise DeviceFailure("launch", f"{failed} box {wanted.box}, swizzle {wanted.swizzle} cannot be")
    result = driver.cuTensorMapEncodeTiled(
        data_type,
        2,
        address,
        [driver.cuuint64_t(columns), driver.cuuint64_t(rows)],
        [driver.cuuint64_t(leading * problem.sizeof_in)],
        [driver.cuuint32_t(side) for side in wanted.box],
        [driver.cuuint32_t(1), driver.cuuint32_t(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(swizzles, swizzle),
        getattr(promotions, promotion if wanted.promotion else "CU_TENSOR_MAP_L2_PROMOTION_NONE"),
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(result[0]):
        box = " × ".join(map(str, wanted.box))
        raise DeviceFailure("launch", f"{failed} the driver refused box {box}, swizzle {wanted.swizzle}")
    return ctypes.string_at(result[1].getPtr(), TENSOR_MAP_BYTES)
