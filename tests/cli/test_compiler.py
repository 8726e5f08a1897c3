"""`--compiler nvcc`: which compiler made a build is part of its key and its row; one that is not there is said at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from screen import Run

from gemmsweep.build import nvcc
from gemmsweep.errors import EnvironmentProblem

FAKE = f"""#!{sys.executable}
import sys
if "--version" in sys.argv:
    print("Cuda compilation tools, release 99.0, V99.0.1")
else:
    open(sys.argv[sys.argv.index("-o") + 1], "wb").write(b"ELF")
    print("ptxas info    : Compiling entry function 'gemm' for 'sm_90'")
    print("ptxas info    : Used 40 registers, 380 bytes cmem[0]")
"""
NAIVE = ("run", "--template", "naive", "--shape", "96x64x48", "--vary", "UNROLL=2,4")
OWN = """#include "cuda_runtime.h"
#include <iostream>
#include <vector>
template <int U> __global__ void gemm(const float* A, const float* B, float* C, int M, int N, int K) {
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
    float x = 0;
#pragma unroll U
    for (int k = 0; k < K; ++k) x = fmaf(A[row * K + k], B[k * N + col], x);
    C[row * N + col] = x;
}
int main() { std::vector<float> v(1); std::cout << v.size(); gemm<4><<<1, 1>>>(0, 0, 0, 1, 1, 1); }
"""
SIDECAR = """summary = "A kernel with its host code."
backend = "cuda"
arch = "sm_75+"
dtypes = ["fp32"]
layouts = ["nn"]
[parameters]
U = { default = 4, values = [1, 4], meaning = "unroll" }
[kernel]
name = "gemm<U>"
bind = "template"
[launch]
args = ["A", "B", "C", "i32:M", "i32:N", "i32:K"]
grid = ["ceil_div(N, 16)", "ceil_div(M, 16)", "1"]
block = ["16", "16", "1"]
"""


@pytest.fixture
def fake_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "nvcc"
    path.write_text(FAKE)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return path


@pytest.mark.usefixtures("fake_nvcc")
def test_a_sweep_is_built_by_the_compiler_asked_for(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    device = scripted('[[rule]]\nmatch = "UNROLL=2"\ntime_us = 90\n')
    assert gemmsweep(*NAIVE, "--compiler", "nvcc", "--device", device).code == 0
    report = gemmsweep("report", "--last", "--format", "json").json
    assert {run["build"]["compiler"] for run in report["runs"]} == {"nvcc 99.0.1"}
    assert {run["build"]["registers"] for run in report["runs"]} == {40}
    assert "99.0.1" in gemmsweep("doctor").out


@pytest.mark.usefixtures("fake_nvcc")
def test_another_compiler_is_another_request_and_another_build(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")
    command = (*NAIVE, "--device", scripted(""))
    gemmsweep(*command)
    again = gemmsweep(*command, "--compiler", "nvcc")
    assert "On record since" not in again.err
    report = gemmsweep("report", "--last", "--format", "json").json
    assert {run["build"]["compiler"] for run in report["runs"] if not run["finals"]} == {"nvcc 99.0.1"}


def test_a_compiler_that_is_not_one_or_not_here_is_said_before_anything_runs(
    gemmsweep: Run, scripted: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = gemmsweep(*NAIVE, "--compiler", "clang", "--device", scripted(""))
    assert (wrong.code, "auto, nvrtc, nvcc" in wrong.err) == (2, True)
    monkeypatch.setattr("gemmsweep.build.toolkit.find_nvcc", lambda: None)
    absent = gemmsweep(*NAIVE, "--compiler", "nvcc", "--device", scripted(""))
    assert absent.code == 2
    assert "Install the CUDA toolkit" in absent.err


@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc", "/usr/local/cuda/bin/nvcc"])
def test_a_compiler_of_cuda_is_refused_for_a_cpu_kernel(gemmsweep: Run, compiler: str) -> None:
    for more in ((), ("--compile-only",), ("--dry-run",)):
        ran = gemmsweep("run", "--device", "cpu", "--vary", "BK", "--compiler", compiler, *more)
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
        assert f"{compiler} compiles CUDA only" in ran.err


def test_without_nvrtc_a_build_names_the_nvcc_that_is_here(
    gemmsweep: Run, fake_nvcc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs.nvrtc", None)
    build = (*NAIVE, "--compile-only", "--arch", "sm_90a")
    ran = gemmsweep(*build)
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert "CuPy is not installed" in ran.err
    assert ran.err.endswith(f"or --compiler nvcc: {fake_nvcc}\n")
    assert gemmsweep(*build, "--compiler", "nvcc").code == 0
    monkeypatch.setattr("gemmsweep.build.toolkit.find_nvcc", lambda: None)
    assert "nvcc" not in gemmsweep(*build).err


def test_nvcc_takes_a_kernel_with_its_host_headers_and_instantiates_it(gemmsweep: Run, tmp_path: Path) -> None:
    try:
        nvcc.find()
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
    (tmp_path / "own.cu").write_text(OWN)
    (tmp_path / "own.toml").write_text(SIDECAR)
    own = ("run", "--template", str(tmp_path / "own.cu"), "--vary", "U", "--compile-only", "--arch", "sm_90a")
    ran = gemmsweep(*own, "--compiler", "nvcc")
    assert ran.code == 0, ran.out
    assert "U, by nvcc " in ran.out
    assert ran.out.count(" ok ") == 2


def test_a_name_that_only_nvcc_knows_is_told_with_its_header(gemmsweep: Run, tmp_path: Path) -> None:
    own = tmp_path / "own.cu"
    kernel = """#define BM 16
    __global__ void k(const float *A, const float *B, float *C, int M, int N, int K) { const NAME x = BM; C[x] = 0; }
    """
    headers = {"uint": "cuda_runtime.h", "ushort": "cuda_runtime.h", "uint32_t": "cstdint"}
    for name, header in headers.items():
        own.write_text(kernel.replace("NAME", name))
        assert gemmsweep("init", str(own), "--force").code == 0
        command = ("run", "--template", str(own), "--vary", "BM", "--compile-only", "--arch", "sm_80")
        ran = gemmsweep(*command)
        way_out = f'"{name}" is undefined (#include <{header}> in the file, or --compiler nvcc)'
        assert (ran.code, way_out in ran.out) == (1, True), ran.text
        own.write_text(f"#include <{header}>\n{own.read_text()}")
        assert gemmsweep(*command).code == 0
    own.write_text(kernel.replace("NAME", "nonsense"))
    assert "--compiler nvcc" not in gemmsweep(*command).text


BROKEN = """// /// gemmsweep
// summary = "Uses what is not there."
// backend = "cpu"
// dtypes = ["fp32"]
// layouts = ["nn"]
// [parameters]
// U = { default = 1, values = [1, 2], meaning = "nothing" }
// [[constraints]]
// expr = "U <= 2"
// why = "one line"
// [[constraints]]
// expr = "U >= 1"
// why = "and another"
// [launch]
// args = ["C"]
// ///
enum { U = $U };
$STATIC_ASSERTS
int gemm(float* C) {
    int a = oops;
    return 0;
}
"""


def test_a_complaint_about_ones_own_kernel_names_its_file_and_line(gemmsweep: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.c").write_text(BROKEN)
    told = gemmsweep("run", "--compile-only", "--device", "cpu", "--template", "broken.c", "--shape", "8x8x8").text
    assert "broken.c:20:" in told
    cuda = BROKEN.replace('"cpu"', '"cuda"\n// arch = "sm_75+"').replace(
        "// ///\ne", '// grid = "1"\n// block = "1"\n// ///\ne'
    )
    cuda = cuda.replace("int gemm", 'extern "C" __global__ void gemm').replace("return 0", "return")
    (tmp_path / "broken.cu").write_text(cuda)
    told = gemmsweep("run", "--compile-only", "--arch", "sm_90a", "--template", "broken.cu", "--shape", "8x8x8").text
    assert "broken.cu(23): error" in told
