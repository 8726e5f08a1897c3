"""The CUDA device on a real GPU: references, bursts, clocks, faults."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmsweep.model import Build, Launch, Problem, Step, TensorMap, Workspace
from gemmsweep.protocol import DeviceFailure, DeviceSpec

pytestmark = pytest.mark.gpu

SOURCE = """
typedef long long i64;
extern "C" __global__ void gemm(const float* A, const float* B, float* C, i64 M, i64 N, i64 K) {
    i64 row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
    float x = 0;
    for (i64 k = 0; k < K; ++k) x = fmaf(A[row * K + k], B[k * N + col], x);
    C[row * N + col] = x;
}
extern "C" __global__ void count(int* w, float* C) { if (threadIdx.x == 0) C[0] = (float)++w[0]; }
extern "C" __global__ void stray(float* C) { C[(1ll << 40) + threadIdx.x] = 1; }
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void absent(const float* w, const __grid_constant__ Map map, float* C) {
    bool zero = true;
    for (int i = 0; i < 16; ++i) zero = zero && map.words[i] == 0;
    C[0] = w == nullptr && zero;
}
extern "C" __global__ void both(const float* C, float* D) { D[threadIdx.x] = C[threadIdx.x]; }
"""
BLOCK = (16, 16, 1)


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    from gemmsweep.device import open_device

    opened = open_device(DeviceSpec("cuda"))
    yield opened
    opened.close()


def built(folder: Path, arch: str) -> Build:
    from gemmsweep.device.cuda import jit

    path = folder / "k.cubin"
    path.write_bytes(jit.compile_cubin(SOURCE, arch, {}))
    return Build(True, "k", "nvrtc", arch, (), path=str(path))


def prepare(device: Any, p: Problem, l2: str = "cold", bias: Any = None) -> tuple[Any, ...]:
    from gemmsweep.device.layout import SetLayout

    xp, layout = device.xp, SetLayout.of(p)
    draw = xp.random.default_rng(0).standard_normal

    def matrix(shape: tuple[int, int], kind: str) -> Any:
        values = draw(shape, dtype=xp.float32)
        return (values.view(xp.uint32) >> 16).astype(xp.uint16) if kind == "uint16" else values.astype(kind)

    shapes = ((layout.a_shape, layout.in_type), (layout.b_shape, layout.in_type), (layout.c_shape, layout.out_type))
    matrices = tuple(matrix(shape, kind) for shape, kind in shapes)
    device.prepare(p, *matrices, l2, bias)
    return matrices


def expected(xp: Any, p: Problem, a: Any, b: Any, c: Any) -> Any:
    a, b, c = (as_float(xp, x) for x in (a, b, c))
    return a[:, : p.k] @ (b[:, : p.n] if p.layout == "nn" else b[:, : p.k].T) + p.beta * c[:, : p.n]


def as_float(xp: Any, raw: Any) -> Any:
    values = (raw.astype(xp.uint32) << 16).view(xp.float32) if raw.dtype == xp.uint16 else raw
    return values.astype(xp.float64)


def gemm(p: Problem, block: tuple[int, int, int] = BLOCK, smem: int = 0) -> Launch:
    sizes = tuple(f"i64:{size}" for size in (p.m, p.n, p.k))
    return Launch((Step("gemm", ("A", "B", "C", *sizes), (-(-p.n // 16), -(-p.m // 16), 1), block, smem),))


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("extra", [{}, {"lda": 24, "ldd": 72, "beta": 0.5}, {"ldd": 70, "epilogue": "bias+relu"}])
def test_cublas_computes_our_layouts(device: Any, dtype: str, layout: str, extra: dict[str, Any]) -> None:
    xp, p = device.xp, Problem.of(130, 66, 17, dtype, layout, **extra)
    bias = xp.zeros(p.n, dtype={"bf16": xp.uint16, "fp16": xp.float16}.get(dtype, xp.float32))
    a, b, c = prepare(device, p, bias=bias)
    version, kernels = device.load_reference("cublas", 1)
    assert version.startswith("cuBLAS ")
    assert kernels
    operands = device.operands(a, b, c)
    device.launch("cublas", operands)
    wanted = expected(xp, p, a, b, c)
    if p.epilogue != "none":
        wanted = xp.maximum(wanted, 0)
        assert "gemmsweep_elementwise" in kernels
    difference = float(xp.linalg.norm(as_float(xp, operands.c)[:, : p.n] - wanted) / xp.linalg.norm(wanted))
    assert difference < {"fp32": 1e-6, "tf32": 1e-3, "fp16": 1e-3, "bf16": 1e-2}[dtype]
    assert bool((operands.c[:, p.n :] == c[:, p.n :]).all())


def test_a_cold_burst_touches_each_set_once(device: Any, tmp_path: Path) -> None:
    p = Problem.of(128, 128, 128)
    a, b, c = prepare(device, p)
    device.load("x", built(tmp_path, device.info.arch), gemm(p))
    device.calibrate("x", 2.0)
    for stack in device.stacks(len(device.ring)):
        stack.guarded_c.fill(7)
    device.replay("x")
    burst = device.burst("x")
    assert device.touched("x") == burst.launches
    assert burst.burst_ns > 1_500_000
    assert burst.sm_clock_mhz is None or 200 < burst.sm_clock_mhz < 4000
    stacks = device.stacks(device.touched("x"))
    assert sum(stack.c.shape[0] for stack in stacks) == burst.launches
    wanted = expected(device.xp, p, a, b, c)
    for stack in stacks:
        assert float(abs(stack.c - wanted).max()) < 1e-3
        assert bool((stack.guarded_c[:, :1024] == 7).all())
        assert bool((stack.guarded_c[:, -1024:] == 7).all())


def test_hot_is_faster_than_cold_for_memory_bound_shapes(device: Any) -> None:
    p = Problem.of(1, 4096, 4096, "fp16", "nt")
    times = {}
    for l2 in ("cold", "hot"):
        prepare(device, p, l2)
        device.load_reference("cublas", 1)
        device.calibrate("cublas", 4.0)
        bursts = [device.burst("cublas") for _ in range(10)]
        times[l2] = min(b.burst_ns / b.launches for b in bursts)
    assert times["cold"] > 1.1 * times["hot"]


@pytest.mark.parametrize(("zero", "second"), [("each", 1), ("once", 2)])
def test_workspaces_are_zeroed_as_declared(device: Any, tmp_path: Path, zero: str, second: int) -> None:
    prepare(device, Problem.of(32, 32, 32))
    step = Step("count", ("workspace:W", "C"), block=(32, 1, 1))
    device.load("x", built(tmp_path, device.info.arch), Launch((step,), workspaces=(Workspace("W", 4, zero),)))
    for _ in range(2):
        device.launch("x", device.ring[0])
    assert float(device.ring[0].c[0, 0]) == second
    device.calibrate("x", 0.5)


def test_a_separate_output_reads_the_given_c(device: Any, tmp_path: Path) -> None:
    _, _, c = prepare(device, Problem.of(32, 32, 32))
    device.ring[0].c.fill(9)
    device.load("x", built(tmp_path, device.info.arch), Launch((Step("both", ("C", "D"), block=(32, 1, 1)),)))
    device.launch("x", device.ring[0])
    assert bool((device.ring[0].c[0] == c[0]).all())


def test_launches_beyond_the_device_fail_without_losing_it(device: Any, tmp_path: Path) -> None:
    p = Problem.of(64, 64, 64)
    prepare(device, p)
    build = built(tmp_path, device.info.arch)
    for launch in (gemm(p, block=(64, 32, 1)), gemm(p, smem=device.info.max_smem_bytes + 1)):
        with pytest.raises(DeviceFailure) as caught:
            run(device, build, launch)
        assert (caught.value.status, caught.value.fatal) == ("launch", False)
    run(device, build, gemm(p, smem=min(device.info.max_smem_bytes, 60 * 1024)))


def run(device: Any, build: Build, launch: Launch) -> None:
    device.load("x", build, launch)
    device.launch("x", device.ring[0])


def test_too_large_a_problem_says_what_is_needed_and_free(device: Any) -> None:
    with pytest.raises(DeviceFailure, match=r"needed, .* free"):
        device.prepare(Problem.of(1 << 20, 1 << 20, 1), None, None, None, "cold")


def test_tensor_maps(device: Any) -> None:
    from gemmsweep.device.cuda.launch import encode_tensor_map

    if int(device.info.arch.removeprefix("sm_")) < 90:
        pytest.skip("tensor maps are Hopper's and later")
    p = Problem.of(64, 64, 64)
    prepare(device, p)
    address = device.ring[0].addresses["A"]
    assert len(encode_tensor_map(TensorMap("T", "A", (32, 64), 128, 128), p, address)) == 128
    for box, swizzle in (((64, 64), 128), ((32, 300), 0), ((32, 64), 99)):
        with pytest.raises(DeviceFailure, match="tensor map T"):
            encode_tensor_map(TensorMap("T", "A", box, swizzle), p, address)
    odd = Problem.of(64, 64, 63)
    with pytest.raises(DeviceFailure, match="whole 16 bytes"):
        encode_tensor_map(TensorMap("T", "A", (32, 64)), odd, address)


def test_what_a_config_leaves_out_is_null(device: Any, tmp_path: Path) -> None:
    prepare(device, Problem.of(32, 32, 32))
    steps = (Step("absent", ("null", "null_map", "C")),)
    device.load("x", built(tmp_path, device.info.arch), Launch(steps))
    device.launch("x", device.ring[0])
    assert float(device.ring[0].c[0, 0]) == 1


def test_a_map_of_a_workspace_is_of_the_labels_own(device: Any, tmp_path: Path) -> None:
    if int(device.info.arch.removeprefix("sm_")) < 90:
        pytest.skip("tensor maps are Hopper's and later")
    prepare(device, Problem.of(32, 32, 31))  # rows that TMA cannot address, unlike the workspace's
    maps = (TensorMap("T", "workspace:W", (32, 32), 128, 0, (31, 32), 32),)
    step = Step("absent", ("null", "tensor_map:T", "C"))
    launch = Launch((step,), workspaces=(Workspace("W", 4096),), tensor_maps=maps)
    for label in ("x", "y"):
        device.load(label, built(tmp_path, device.info.arch), launch)
        device.launch(label, device.ring[0])
        assert float(device.ring[0].c[0, 0]) == 0
    assert not device.ring[0].tensor_maps  # another label's map of its own workspace is not this one's


def stray(folder: str, arch: str, answers: Any) -> None:
    """In a process of its own: its context does not survive."""
    import numpy as np

    from gemmsweep.device import open_device

    device = open_device(DeviceSpec("cuda"))
    zeros = np.zeros((32, 32), np.float32)
    device.prepare(Problem.of(32, 32, 32), zeros, zeros, zeros, "cold")
    try:
        run(device, built(Path(folder), arch), Launch((Step("stray", ("C",), block=(32, 1, 1)),)))
    except DeviceFailure as failure:
        answers.put((failure.status, failure.fatal, failure.reason))


def test_an_illegal_address_is_fatal(device: Any, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    process = context.Process(target=stray, args=(str(tmp_path), device.info.arch, answers))
    process.start()
    status, fatal, reason = answers.get(timeout=120)
    process.join()
    assert (status, fatal) == ("runtime", True)
    assert "illegal memory access" in reason


def test_memory_is_given_back_between_problems(device: Any, tmp_path: Path) -> None:
    prepare(device, Problem.of(64, 64, 64))
    free = device.memory_free_bytes()
    for size in (2048, 1536):  # of other sizes, so that nothing fits where the one before lay
        p = Problem.of(size, size, size)
        prepare(device, p)
        step = Step("gemm", ("A", "B", "C", *[f"i64:{size}"] * 3), (size // 16, size // 16, 1), BLOCK)
        device.load("big", built(tmp_path, device.info.arch), Launch((step,), (Workspace("W", 1 << 28),)))
        device.calibrate("big", 2.0)
        assert device.memory_free_bytes() < free - (1 << 28)
    prepare(device, Problem.of(64, 64, 64))
    assert device.memory_free_bytes() >= free - (16 << 20)


def test_a_healthy_gpu_passes_its_probe(device: Any) -> None:
    device.probe()
