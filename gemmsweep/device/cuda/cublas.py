"""The vendor's product, cublasGemmEx with its default algorithm, and the separate epilogue kernel after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmsweep.device.cuda import jit
from gemmsweep.device.cuda.api import check
from gemmsweep.device.cuda.launch import Kernel, Parameters, function_of, load_module, pointer
from gemmsweep.device.cuda.ring import BufferSet
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.errors import EnvironmentProblem
from gemmsweep.model import Problem, Step
from gemmsweep.protocol import DeviceFailure
from gemmsweep.references import stricter

# What the library asks for on Hopper; without a caller's, capture records allocations.
WORKSPACE_BYTES = 32 * 1024 * 1024
CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF = 0, 2, 14
OP_N, OP_T = 0, 1
DEFAULT_ALGORITHM = -1
DATA_TYPES = {"fp32": CUDA_R_32F, "tf32": CUDA_R_32F, "fp16": CUDA_R_16F, "bf16": CUDA_R_16BF}
ELEMENT = {"fp32": "float", "tf32": "float", "fp16": "fp16", "bf16": "bf16"}
BYTES_PER_THREAD, MOST_ROWS, MOST_THREADS = 64, 16, 256


def gemm_arguments(problem: Problem) -> tuple[int, ...]:
    """opA, opB, m, n, k, ldA, ldB, ldC as column-major BLAS sees row-major C = A·B: Cᵀ (n×m) = Bᵀ (n×k) · Aᵀ (k×m)."""
    op_b = OP_N if problem.layout == "nn" else OP_T
    return op_b, OP_N, problem.n, problem.m, problem.k, problem.ldb, problem.lda, problem.ldd


def version_text(number: int, library: str = "cuBLAS") -> str:
    """`cuBLAS 13.0.2` of 130002 (older: 12 05 03 of 120503)."""
    return f"{library} {number // 10000}.{number // 100 % 100}.{number % 100}"


class Cublas:
    """A cuBLAS handle on one stream with a workspace of its own."""

    def __init__(self, stream: Any, *, strict: bool = False) -> None:
        """`strict`: parts of K that it sums by themselves stay in fp32. By default they may be rounded to C's type before
        they are added, which where they cancel is an error of any size (seen with bf16, layout nn, odd N and few rows).
        """
        import cupy

        try:
            from nvmath.bindings import cublas
        except ImportError as error:
            raise EnvironmentProblem(
                f"the cuBLAS reference needs nvmath-python ({error}). Install it: pip install 'gemmsweep[cuda13]'"
            ) from error
        self._cublas = cublas
        self._handle = cublas.create()
        self._workspace = cupy.empty(WORKSPACE_BYTES, dtype=cupy.uint8)
        # Setting a stream resets the workspace, so this order.
        cublas.set_stream(self._handle, int(stream))
        cublas.set_workspace(self._handle, self._workspace.data.ptr, WORKSPACE_BYTES)
        modes = cublas.Math
        cublas.set_math_mode(self._handle, modes.DISALLOW_REDUCED_PRECISION_REDUCTION if strict else modes.DEFAULT_MATH)
        version = version_text(cublas.get_version(self._handle))
        self.version = stricter("cublas", version) if strict else version

    def enqueue(self, stream: Any, problem: Problem, operands: BufferSet) -> None:
        """One product on one buffer set, on the stream the handle was made for. Raises DeviceFailure."""
        self.enqueue_at(problem, operands.addresses)

    def enqueue_at(self, problem: Problem, at: Mapping[str, int]) -> None:
        """The same for operands at any addresses, by name."""
        import numpy as np

        opb, opa, n, m, k, ldb, lda, ldc = gemm_arguments(problem)
        alpha, beta = np.float32(1.0).reshape(1), np.float32(problem.beta).reshape(1)
        kind = DATA_TYPES[problem.dtype]
        types = self._cublas.ComputeType
        compute = types.COMPUTE_32F_FAST_TF32 if problem.dtype == "tf32" else types.COMPUTE_32F
        scalars = alpha.ctypes.data, beta.ctypes.data
        try:
            self._cublas.gemm_ex(
                self._handle, opb, opa, n, m, k, scalars[0], at["B"], kind, ldb, at["A"], kind, lda,
                scalars[1], at["C"], kind, ldc, compute, DEFAULT_ALGORITHM,
            )  # fmt: skip
        except self._cublas.cuBLASError as error:
            raise DeviceFailure("launch", f"cuBLAS refused the problem: {error}") from error

    def close(self) -> None:
        self._cublas.destroy(self._handle)


class Elementwise:
    """The epilogue as a kernel of its own, in place on C."""

    def __init__(self, problem: Problem, image: bytes, epilogue: bytes) -> None:
        self._module = load_module(image)
        self._problem, self._epilogue = problem, epilogue
        packs = -(-problem.n // vector_width(problem))
        threads = min(MOST_THREADS, -(-packs // 32) * 32)
        grid = (-(-problem.m // rows_per_thread(problem)), -(-packs // threads), 1)
        step = Step("gemmsweep_elementwise", (), grid, (threads, 1, 1))
        self._kernel = Kernel(function_of(self._module, step.kernel), step)

    def enqueue(self, stream: Any, operands: BufferSet) -> None:
        p = self._problem
        sizes = [size.to_bytes(8, "little") for size in (p.m, p.n, p.ldd)]
        self._kernel.enqueue(stream, Parameters([pointer(operands.addresses["C"]), *sizes, self._epilogue]))

    def close(self) -> None:
        from cuda.bindings import driver

        check((*driver.cuModuleUnload(self._module), None))


def elementwise_of(problem: Problem, arch: str, epilogue: bytes) -> Elementwise | None:
    """The kernel of a problem's epilogue; None where it has none. `epilogue` is its packed struct."""
    if problem.epilogue == "none":
        return None
    options = (
        f"-DOUT={ELEMENT[problem.dtype]}",
        f"-DVEC={vector_width(problem)}",
        f"-DROWS={rows_per_thread(problem)}",
        f"-DOPS={parse_epilogue(problem.epilogue).cpp_type}",
    )
    return Elementwise(
        problem, jit.compile_cubin(jit.source("elementwise.cu"), arch, jit.shared_headers(), options), epilogue
    )


def vector_width(problem: Problem) -> int:
    """Elements of one access: 16 bytes where every row of C starts on 16 bytes, else the widest that fits the rows."""
    wide = 16 // problem.sizeof_out
    while problem.ldd % wide:
        wide //= 2
    return wide


def rows_per_thread(problem: Problem) -> int:
    """Rows of one thread of the epilogue kernel: narrow accesses need more of them in flight."""
    return min(MOST_ROWS, BYTES_PER_THREAD // (vector_width(problem) * problem.sizeof_out))
