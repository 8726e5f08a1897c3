"""cuBLASLt's product by one algorithm of its heuristics, each a product of its own to be raced against the others."""

from __future__ import annotations

from typing import Any

from gemmsweep.device.cuda.cublas import DATA_TYPES, OP_N, WORKSPACE_BYTES, gemm_arguments, version_text
from gemmsweep.device.cuda.ring import BufferSet
from gemmsweep.errors import EnvironmentProblem
from gemmsweep.model import Problem
from gemmsweep.protocol import DeviceFailure

REQUESTED = 16  # algorithms; the library returns fewer where it knows no more
CUDA_R_32F = 0
# Attribute of an algorithm → how its description calls it. Tiles, stages and clusters are told by the library's names.
ATTRIBUTES = (
    ("ID", "algorithm"), ("TILE_ID", "tile"), ("STAGES_ID", "stages"), ("CLUSTER_SHAPE_ID", "cluster"),
    ("SPLITK_NUM", "split-K"), ("REDUCTION_SCHEME", "reduction"), ("CTA_SWIZZLING", "swizzle"),
    ("CUSTOM_OPTION", "option"), ("INNER_SHAPE_ID", "inner"),
)  # fmt: skip
NAMED = {
    "TILE_ID": ("MatmulTile", "TILE_"), "STAGES_ID": ("MatmulStages", "STAGES_"), "CLUSTER_SHAPE_ID": ("ClusterShape", "SHAPE_"),
}  # fmt: skip


class CublasLt:
    """A cuBLASLt handle with a workspace of its own."""

    def __init__(self, stream: Any) -> None:
        import cupy

        try:
            from nvmath.bindings import cublasLt
        except ImportError as error:
            raise EnvironmentProblem(
                f"the cuBLASLt reference needs nvmath-python ({error}). Install it: pip install 'gemmsweep[cuda13]'"
            ) from error
        self.api = cublasLt
        self.stream = int(stream)
        self.handle = cublasLt.create()
        self.workspace = cupy.empty(WORKSPACE_BYTES, dtype=cupy.uint8)
        self.version = version_text(cublasLt.get_version(), "cuBLASLt")
        self._shape: LtShape | None = None

    def products(self, problem: Problem) -> list[LtProduct]:
        """What the heuristics propose, best guess first, each once; those of the problem before are gone.

        Raises DeviceFailure where that is nothing.
        """
        self._forget()
        self._shape = shape = LtShape(self.api, problem)
        found: dict[bytes, LtProduct] = {}
        for algorithm in heuristics(self.api, self.handle, shape):
            found.setdefault(algorithm.tobytes(), LtProduct(self, shape, algorithm))
        if not found:
            raise DeviceFailure("launch", "cuBLASLt's heuristics propose nothing for this problem")
        return list(found.values())

    def _forget(self) -> None:
        if self._shape is not None:
            self._shape.close()
            self._shape = None

    def close(self) -> None:
        self._forget()
        self.api.destroy(self.handle)


class LtShape:
    """The descriptors of one problem, shared by its algorithms."""

    def __init__(self, api: Any, problem: Problem) -> None:
        import numpy as np
        from nvmath.bindings import cublas

        self._api, kind = api, DATA_TYPES[problem.dtype]
        types = cublas.ComputeType
        compute = types.COMPUTE_32F_FAST_TF32 if problem.dtype == "tf32" else types.COMPUTE_32F
        op_b, _, n, m, k, ldb, lda, ldc = gemm_arguments(problem)
        self.operation = api.matmul_desc_create(compute, CUDA_R_32F)
        transposed = np.array([op_b], dtype=np.int32)
        attribute = api.MatmulDescAttribute.TRANSA
        api.matmul_desc_set_attribute(self.operation, attribute, transposed.ctypes.data, transposed.nbytes)
        rows, columns = (n, k) if op_b == OP_N else (k, n)
        self.b = api.matrix_layout_create(kind, rows, columns, ldb)
        self.a = api.matrix_layout_create(kind, k, m, lda)
        self.c = api.matrix_layout_create(kind, n, m, ldc)

    def close(self) -> None:
        for layout in (self.a, self.b, self.c):
            self._api.matrix_layout_destroy(layout)
        self._api.matmul_desc_destroy(self.operation)


def heuristics(api: Any, handle: int, shape: LtShape) -> list[Any]:
    """Algorithms that fit the workspace and accumulate in fp32 to the end, as the library ranks them."""
    import numpy as np

    scheme = api.ReductionScheme
    limits: dict[Any, Any] = {
        api.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES: np.array([WORKSPACE_BYTES], dtype=np.uint64),
        # Partial sums of a split K are not rounded to C's type.
        api.MatmulPreferenceAttribute.REDUCTION_SCHEME_MASK: np.array(
            [scheme.INPLACE | scheme.COMPUTE_TYPE], dtype=np.uint32
        ),
    }
    results = np.zeros(REQUESTED, dtype=api.matmul_heuristic_result_dtype)
    count = np.zeros(1, dtype=np.int32)
    preference = api.matmul_preference_create()
    try:
        for attribute, value in limits.items():
            api.matmul_preference_set_attribute(preference, attribute, value.ctypes.data, value.nbytes)
        api.matmul_algo_get_heuristic(
            handle, shape.operation, shape.b, shape.a, shape.c, shape.c, preference, REQUESTED, results.ctypes.data,
            count.ctypes.data,
        )  # fmt: skip
    except api.cuBLASLtError as error:
        raise DeviceFailure("launch", f"cuBLASLt's heuristics refused the problem: {error}") from error
    finally:
        api.matmul_preference_destroy(preference)
    return [results["algo"][i : i + 1].copy() for i in range(int(count[0])) if results["state"][i] == 0]


class LtProduct:
    """One algorithm on one problem."""

    def __init__(self, library: CublasLt, shape: LtShape, algorithm: Any) -> None:
        self._library, self._shape, self._algorithm = library, shape, algorithm
        self.text = describe(library.api, algorithm)

    def enqueue(self, stream: Any, problem: Problem, operands: BufferSet) -> None:
        """One product on one buffer set. Raises DeviceFailure."""
        import numpy as np

        library, shape, at = self._library, self._shape, operands.addresses
        alpha, beta = np.float32(1.0).reshape(1), np.float32(problem.beta).reshape(1)
        try:
            library.api.matmul(
                library.handle, shape.operation, alpha.ctypes.data, at["B"], shape.b, at["A"], shape.a,
                beta.ctypes.data, at["C"], shape.c, at["C"], shape.c, self._algorithm.ctypes.data,
                library.workspace.data.ptr, WORKSPACE_BYTES, library.stream,
            )  # fmt: skip
        except library.api.cuBLASLtError as error:
            raise DeviceFailure("launch", f"cuBLASLt refused the problem: {error}") from error


def describe(api: Any, algorithm: Any) -> str:
    """`algorithm 66 tile 128x256 stages 64xAUTO cluster 2x1x1 split-K 1`; what is 0 or unknown is left out."""
    import numpy as np

    words = []
    for name, word in ATTRIBUTES:
        attribute = api.MatmulAlgoConfigAttribute[name]
        value = np.zeros(1, dtype=api.get_matmul_algo_config_attribute_dtype(attribute))
        written = np.zeros(1, dtype=np.uint64)
        try:
            api.matmul_algo_config_get_attribute(
                algorithm.ctypes.data, attribute, value.ctypes.data, value.nbytes, written.ctypes.data
            )
        except api.cuBLASLtError:
            continue
        if number := int(value[0]):
            words.append(f"{word} {named(api, name, number)}")
    return " ".join(words)


def named(api: Any, attribute: str, number: int) -> str:
    """The library's name of a tile, of stages or of a cluster; any other value as it is."""
    enumeration, prefix = NAMED.get(attribute, ("", ""))
    try:
        return str(getattr(api, enumeration)(number).name).removeprefix(prefix) if enumeration else str(number)
    except ValueError:  # newer than the bindings
        return str(number)
