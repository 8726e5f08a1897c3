"""References beside cuBLAS on a real GPU: the best of cuBLASLt, padded copies, functions of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cuda_device import as_float, expected, prepare

from gemmsweep.model import Problem
from gemmsweep.protocol import DeviceFailure, DeviceSpec
from gemmsweep.references import parse_function

pytestmark = pytest.mark.gpu

FUNCTIONS = """
import cupy
def kernel(a, b, c, task):
    cupy.add(c, 1, out=c)
def waits(a, b, c, task):
    cupy.cuda.get_current_stream().synchronize()
def nothing(a, b, c, task):
    pass
"""


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    from gemmsweep.device import open_device

    opened = open_device(DeviceSpec("cuda"))
    yield opened
    opened.close()


@pytest.fixture
def functions(tmp_path: Path) -> str:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return f"py:{path}"


@pytest.mark.parametrize("name", ["cublaslt_best", "pad_copy_cublas"])
@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("extra", [{}, {"lda": 23, "ldd": 73, "beta": 0.5}, {"ldb": 81, "epilogue": "bias+relu"}])
def test_they_compute_our_layouts(device: Any, name: str, dtype: str, layout: str, extra: dict[str, Any]) -> None:
    xp, p = device.xp, Problem.of(131, 67, 19, dtype, layout, **extra)
    bias = xp.zeros(p.n, dtype={"bf16": xp.uint16, "fp16": xp.float16}.get(dtype, xp.float32))
    a, b, c = prepare(device, p, bias=bias)
    version, kernels = device.load_reference(name, 1)
    assert version.startswith("cuBLAS")
    assert kernels
    operands = device.operands(a, b, c)
    device.launch(name, operands)
    wanted = expected(xp, p, a, b, c)
    if p.epilogue != "none":
        wanted = xp.maximum(wanted, 0)
    difference = float(xp.linalg.norm(as_float(xp, operands.c)[:, : p.n] - wanted) / xp.linalg.norm(wanted))
    assert difference < {"fp32": 1e-6, "tf32": 1e-3, "fp16": 1e-3, "bf16": 1e-2}[dtype]
    assert bool((operands.c[:, p.n :] == c[:, p.n :]).all())
    device.calibrate(name, 0.5)  # the whole burst can be captured


def time_us(device: Any, name: str) -> float:
    device.load_reference(name, 1)
    device.calibrate(name, 4.0)
    return min(burst.burst_ns / burst.launches / 1e3 for burst in (device.burst(name) for _ in range(10)))


def test_the_best_of_cublaslt_is_named_and_no_slower_than_cublas(device: Any) -> None:
    prepare(device, Problem.of(64, 4096, 4096, "fp16", "nt"))
    best, default = time_us(device, "cublaslt_best"), time_us(device, "cublas")
    assert best < 1.05 * default
    version, _ = device.load_reference("cublaslt_best", 1)
    assert "algorithm " in version
    assert " tile " in version
    assert device.load_reference("cublaslt_best", 1, version)[0] == version


def test_padded_copies_pay_off_where_strides_are_odd(device: Any) -> None:
    prepare(device, Problem.of(2047, 2049, 2051, "fp16", "nn"))
    assert time_us(device, "pad_copy_cublas") < 0.7 * time_us(device, "cublas")
    prepare(device, Problem.of(256, 256, 256, "fp16", "nn"))
    with pytest.raises(DeviceFailure, match="nothing to pad"):
        device.load_reference("pad_copy_cublas", 1)


def test_a_function_is_captured_on_our_stream(device: Any, functions: str) -> None:
    prepare(device, Problem.of(64, 64, 64))
    before = float(device.ring[0].c[0, 0])
    version, kernels = device.load_function("f", parse_function(f"{functions}:kernel"))
    assert version.startswith("functions.py ")
    assert len(kernels) == 1
    calls = round(float(device.ring[0].c[0, 0]) - before)
    device.launch("f", device.ring[0])
    assert round(float(device.ring[0].c[0, 0]) - before) == calls + 1
    device.calibrate("f", 1.0)
    assert device.burst("f").burst_ns > 0


def test_what_cannot_be_captured_says_why_and_leaves_the_device_healthy(device: Any, functions: str) -> None:
    a, b, c = prepare(device, Problem.of(64, 64, 64))
    with pytest.raises(DeviceFailure, match="cannot be captured in a CUDA graph") as caught:
        device.load_function("f", parse_function(f"{functions}:waits"))
    assert not caught.value.fatal
    with pytest.raises(DeviceFailure, match="enqueued nothing"):
        device.load_function("f", parse_function(f"{functions}:nothing"))
    device.load_reference("cublas", 1)
    operands = device.operands(a, b, c)
    device.launch("cublas", operands)
    assert float(abs(operands.c - expected(device.xp, Problem.of(64, 64, 64), a, b, c)).max()) < 1e-3
