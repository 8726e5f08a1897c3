"""What the CUDA device computes before it reaches a GPU: arguments, BLAS operands, clocks, failures, helper kernels."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from gemmsweep.device.cuda.api import check, failure
from gemmsweep.device.cuda.clock import SLOTS, median_mhz
from gemmsweep.device.cuda.cublas import gemm_arguments, rows_per_thread, vector_width, version_text
from gemmsweep.device.cuda.launch import Parameters, operand_extent, pack_argument, pointer, real
from gemmsweep.model import Problem
from gemmsweep.protocol import DeviceFailure


def test_arguments_are_packed_as_the_kernel_declares_them() -> None:
    values = {"A": pointer(1 << 40), "alpha": real(1.5), "epilogue": b"x" * 32, "workspace:W": pointer(7)}
    assert pack_argument("i32:-5", values) == struct.pack("<i", -5)
    assert pack_argument("i64:8589934592", values) == struct.pack("<q", 2**33)
    assert pack_argument("A", values) == struct.pack("<Q", 1 << 40)
    assert pack_argument("alpha", values) == struct.pack("<f", 1.5)
    assert len(pack_argument("epilogue", values)) == 32
    assert pack_argument("workspace:W", values) == pointer(7)


@pytest.mark.parametrize("word", ["i32:2147483648", "i64:9223372036854775808", "workspace:X", "gamma"])
def test_arguments_that_cannot_be_passed(word: str) -> None:
    with pytest.raises(DeviceFailure) as caught:
        pack_argument(word, {})
    assert caught.value.status == "launch"
    assert not caught.value.fatal


def test_parameters_live_as_long_as_their_array() -> None:
    import ctypes

    parameters = Parameters([b"\x01\x02", struct.pack("<q", -9)])
    table = (ctypes.c_void_p * 2).from_address(parameters.address)
    assert ctypes.string_at(table[0], 2) == b"\x01\x02"
    assert ctypes.c_int64.from_address(table[1]).value == -9


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_column_major_blas_computes_the_row_major_product(layout: str) -> None:
    p = Problem.of(5, 3, 4, "fp32", layout, lda=6, ldb=7, ldd=8)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((p.m, p.lda)), rng.standard_normal((p.b_rows, p.ldb))
    op_first, op_second, m, n, k, ld_first, ld_second, ld_c = gemm_arguments(p)

    def column_major(memory: np.ndarray, op: int, rows: int, columns: int, leading: int) -> np.ndarray:
        stored_rows, stored_columns = (rows, columns) if op == 0 else (columns, rows)
        stored = np.lib.stride_tricks.as_strided(
            memory.ravel(), (stored_rows, stored_columns), (memory.itemsize, leading * memory.itemsize)
        )
        return stored if op == 0 else stored.T

    # The library gets B first: its result, column-major with leading dimension ldd, is C.
    result = column_major(b, op_first, m, k, ld_first) @ column_major(a, op_second, k, n, ld_second)
    expected = a[:, : p.k] @ (b[:, : p.n] if layout == "nn" else b[:, : p.k].T)
    assert ld_c == p.ldd
    np.testing.assert_allclose(result.T, expected)


def test_tensor_maps_see_operands_as_stored() -> None:
    nt = Problem.of(10, 20, 30, "bf16", "nt", ldb=32)
    assert operand_extent("A", nt) == (30, 10, 30, "bf16")
    assert operand_extent("B", nt) == (30, 20, 32, "bf16")
    assert operand_extent("B", Problem.of(10, 20, 30)) == (20, 30, 20, "fp32")
    assert operand_extent("C", nt) == (20, 10, 20, "bf16")
    tf32 = Problem.of(10, 20, 32, "tf32", "nt")
    assert operand_extent("A", tf32) == (32, 10, 32, "tf32")  # rounded by TMA
    assert operand_extent("C", tf32) == (20, 10, 20, "fp32")  # and what is stored is not


def test_epilogue_kernel_reads_as_wide_as_rows_allow() -> None:
    widths = [vector_width(Problem.of(4, n, 4, "bf16")) for n in (64, 66, 65)]
    assert widths == [8, 2, 1]
    assert [rows_per_thread(Problem.of(4, n, 4, "bf16")) for n in (64, 66, 65)] == [4, 16, 16]


def test_version_text() -> None:
    assert version_text(130100) == "cuBLAS 13.1.0"
    assert version_text(120503) == "cuBLAS 12.5.3"


def stamps(mhz: float, elapsed_ns: int, sms: int) -> tuple[np.ndarray, np.ndarray]:
    start = np.zeros((SLOTS, 2), dtype=np.uint64)
    end = start.copy()
    start[:sms] = (10**6, 10**15)
    end[:sms] = (10**6 + round(mhz * elapsed_ns / 1000), 10**15 + elapsed_ns)
    return start, end


def test_effective_clock_ignores_multiprocessors_that_missed_a_stamp() -> None:
    start, end = stamps(1410.0, 2_000_000, 132)
    start[3] = (5, 10**14)  # of an earlier burst
    end[7] = (0, 0)
    assert median_mhz(start, end) == 1410


def test_effective_clock_is_not_measured_over_too_short_a_time() -> None:
    assert median_mhz(*stamps(1980.0, 50_000, 132)) is None
    assert median_mhz(*stamps(1980.0, 2_000_000, 0)) is None


@pytest.mark.parametrize(
    ("code", "status", "fatal"),
    [(700, "runtime", True), (716, "runtime", True), (710, "runtime", True), (719, "runtime", True),
     (1, "launch", False), (701, "launch", False), (2, "launch", False), (12345, "launch", False)],
)  # fmt: skip
def test_failures_say_whether_the_context_is_lost(code: int, status: str, fatal: bool) -> None:
    found = failure(code, "CUDA_ERROR_X")
    assert (found.status, found.fatal) == (status, fatal)
    assert "CUDA_ERROR_X" in found.reason


def test_check_unpacks_results() -> None:
    assert check((0, "value")) == "value"
    assert check((0, 1, 2)) == (1, 2)
    with pytest.raises(DeviceFailure):
        check((700, None))


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_helper_kernels_compile(arch: str) -> None:
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc")
    from gemmsweep.device.cuda import jit

    assert jit.compile_cubin(jit.source("helpers.cu"), arch, {})
    for element, vector in (("bf16", 8), ("float", 1)):
        options = (f"-DOUT={element}", f"-DVEC={vector}", "-DROWS=4", "-DOPS=Chain<Bias, LeakyRelu>")
        assert jit.compile_cubin(jit.source("elementwise.cu"), arch, jit.shared_headers(), options)
