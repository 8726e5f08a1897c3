"""The CPU device: C libraries through ctypes, NumPy's BLAS as the reference."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gemmsweep.device import open_device
from gemmsweep.device.cpu_references import stumbles
from gemmsweep.device.machine import describe, last_level_cache_bytes
from gemmsweep.errors import UsageError
from gemmsweep.model import Build, Launch, Problem, Step, Workspace
from gemmsweep.protocol import Device, DeviceFailure, DeviceSpec
from gemmsweep.references import parse_function

SOURCE = """
#include <stdint.h>
int gemm(const float* A, const float* B, float* C, int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb,
         int64_t ldc, float alpha, float beta) {
    for (int64_t i = 0; i < M; ++i)
        for (int64_t j = 0; j < N; ++j) {
            float x = 0;
            for (int64_t k = 0; k < K; ++k) x += A[i * lda + k] * B[k * ldb + j];
            C[i * ldc + j] = alpha * x + (beta != 0 ? beta * C[i * ldc + j] : 0);
        }
    return 0;
}
int refuse(void) { return 12; }
int count(int32_t* w, float* C) { C[0] = (float)++w[0]; return 0; }
"""
SIZES = ("i64:{m}", "i64:{n}", "i64:{k}", "i64:{lda}", "i64:{ldb}", "i64:{ldd}")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Build:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on PATH")
    folder = tmp_path_factory.mktemp("library")
    (folder / "k.c").write_text(SOURCE)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", folder / "k.so", folder / "k.c"], check=True)
    return Build(True, "k", "cc", "x", (), path=str(folder / "k.so"))


def prepared(problem: Problem, l2: str = "cold") -> tuple[Device, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    shapes = ((problem.m, problem.lda), (problem.b_rows, problem.ldb), (problem.m, problem.ldd))
    matrices = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    device = open_device(DeviceSpec("cpu"))
    device.prepare(problem, *matrices, l2)
    return device, matrices


def expected(p: Problem, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    right = b[:, : p.n] if p.layout == "nn" else b[:, : p.k].T
    return a[:, : p.k].astype(float) @ right.astype(float) + p.beta * c[:, : p.n]


def gemm(p: Problem) -> Launch:
    sizes = (word.format(m=p.m, n=p.n, k=p.k, lda=p.lda, ldb=p.ldb, ldd=p.ldd) for word in SIZES)
    return Launch((Step("gemm", ("A", "B", "C", *sizes, "alpha", "beta")),))


def test_a_library_computes_and_is_timed(library: Build) -> None:
    p = Problem.of(13, 6, 7, ldd=9, beta=0.5)
    device, matrices = prepared(p)
    device.load("x", library, gemm(p))
    operands = device.operands(*matrices)
    device.launch("x", operands)
    np.testing.assert_allclose(operands.c[:, : p.n], expected(p, *matrices), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(operands.c[:, p.n :], matrices[2][:, p.n :])
    assert operands.c.ctypes.data % 256 == 0
    assert np.shares_memory(operands.guarded_c, operands.c)
    assert device.calibrate("x", 0.5) > 0
    burst = device.burst("x")
    assert burst.burst_ns > 0
    assert device.touched("x") == burst.launches <= len(device.ring)


def test_replay_runs_every_set_it_says(library: Build) -> None:
    p = Problem.of(8, 8, 8)
    device, matrices = prepared(p)
    device.load("x", library, gemm(p))
    device.calibrate("x", 0.05)
    for operands in device.ring:
        operands.c.fill(np.nan)
    device.replay("x")
    for operands in device.ring[: device.touched("x")]:
        np.testing.assert_allclose(operands.c, expected(p, *matrices), rtol=1e-5, atol=1e-5)


def test_hot_uses_one_set(library: Build) -> None:
    p = Problem.of(8, 8, 8)
    device, _ = prepared(p, "hot")
    device.load("x", library, gemm(p))
    device.calibrate("x", 0.5)
    assert (device.touched("x"), len(device.ring)) == (1, 1)
    assert device.burst("x").launches > 1


def test_a_kernel_that_returns_non_zero_failed(library: Build) -> None:
    device, _ = prepared(Problem.of(2, 2, 2))
    device.load("x", library, Launch((Step("refuse", ()),)))
    with pytest.raises(DeviceFailure, match="refuse returned 12") as caught:
        device.launch("x", device.ring[0])
    assert (caught.value.status, caught.value.fatal) == ("runtime", False)


@pytest.mark.parametrize(("zero", "second"), [("each", 1), ("once", 2)])
def test_workspace_zeroing(library: Build, zero: str, second: int) -> None:
    device, _ = prepared(Problem.of(2, 2, 2))
    device.load("x", library, Launch((Step("count", ("workspace:W", "C")),), workspaces=(Workspace("W", 4, zero),)))
    device.launch("x", device.ring[0])
    device.launch("x", device.ring[0])
    assert device.ring[0].c[0, 0] == second


@pytest.mark.parametrize(
    "launch",
    [
        Launch((Step("missing", ()),)),
        Launch((Step("gemm", ("tensor_map:A",)),)),
        Launch((Step("gemm", ("i32:4294967296",)),)),
    ],
)
def test_what_cannot_be_launched(library: Build, launch: Launch) -> None:
    device, _ = prepared(Problem.of(2, 2, 2))

    def run() -> None:
        device.load("x", library, launch)
        device.launch("x", device.ring[0])

    with pytest.raises(DeviceFailure) as caught:
        run()
    assert caught.value.status == "launch"


@pytest.mark.parametrize(
    "p",
    [Problem.of(13, 6, 7), Problem.of(13, 6, 7, layout="nt", ldb=11, ldd=8), Problem.of(5, 6, 7, beta=2.0),
     Problem.of(13, 6, 7, epilogue="relu")],
    ids=str,
)  # fmt: skip
def test_the_numpy_reference(p: Problem) -> None:
    device, matrices = prepared(p)
    version, kernels = device.load_reference("numpy", 1)
    assert "1 thread" in version
    assert kernels == ()
    operands = device.operands(*matrices)
    device.launch("numpy", operands)
    wanted = expected(p, *matrices)
    np.testing.assert_allclose(
        operands.c[:, : p.n], np.maximum(wanted, 0) if p.epilogue == "relu" else wanted, rtol=1e-4
    )
    device.calibrate("numpy", 0.1)
    assert device.burst("numpy").burst_ns > 0


def test_a_workspace_beyond_memory_is_refused_before_anything_is_allocated(library: Build) -> None:
    device, _ = prepared(Problem.of(2, 2, 2))
    for size in (1 << 50, 2**63 - 1):
        launch = Launch((Step("count", ("workspace:w", "C")),), (Workspace("w", size, "each"),))
        with pytest.raises(DeviceFailure, match=r"out of memory: .* GiB needed"):
            device.load("k", library, launch)


def test_other_references_are_named() -> None:
    device, _ = prepared(Problem.of(2, 2, 2))
    with pytest.raises(UsageError, match="Choose one of: numpy"):
        device.load_reference("cublas", 1)


def test_the_machine_is_named_without_giving_it_away() -> None:
    info = describe()
    identity = Path("/etc/machine-id")
    assert info.uuid.startswith("CPU-")
    if identity.exists():
        assert identity.read_text().strip() not in repr(info)
    assert info == describe()
    assert info.sm_count >= 1
    assert info.device_class.endswith(info.uuid)


def test_last_level_cache(tmp_path: Path) -> None:
    for index, size in enumerate(("32K", "1024K", "36M", "odd")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert last_level_cache_bytes(tmp_path) == 36 << 20
    assert last_level_cache_bytes(tmp_path / "none") == 32 << 20


@pytest.mark.parametrize(
    ("many_us", "one_us", "wanted"), [(14_500, 390, True), (205, 390, False), (400, 390, False), (900_000, 390, False)]
)
def test_a_library_whose_threads_wait_for_each_other_stumbles(many_us: float, one_us: float, wanted: bool) -> None:
    """Beyond a scheduler's slice the wait is a small part, and not worth further calls."""
    assert stumbles({2: many_us, 1: one_us}.__getitem__, 2) is wanted


def test_where_threads_stumble_numpy_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmsweep.device.cpu.stumbles", lambda call_us, threads: call_us(threads) > 0)
    device, _ = prepared(Problem.of(13, 6, 7))
    version, _ = device.load_reference("numpy", 2)
    assert version.endswith(", 1 thread")


def test_a_function_has_the_threads_that_numpy_came_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom threadpoolctl import threadpool_info\ndef f(a, b, c, task):\n"
        "    np.matmul(a, b, out=c)\n"
        "    c[0, 0] = max(one['num_threads'] for one in threadpool_info())\n"
    )
    function = parse_function(f"py:{tmp_path / 'mine.py'}:f")
    monkeypatch.setattr("gemmsweep.device.cpu.stumbles", lambda call_us, threads: True)
    device, matrices = prepared(Problem.of(13, 6, 7))
    device.load_reference("numpy", 2)
    version, _ = device.load_function("mine.f", function)
    assert version.endswith(", 1 thread")
    operands = device.operands(*matrices)
    device.launch("mine.f", operands)
    assert operands.c[0, 0] == 1
