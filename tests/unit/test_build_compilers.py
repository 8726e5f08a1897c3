"""The real compilers: NVRTC and nvcc without a GPU, gcc and zig run through ctypes. Each skips where it is absent."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from gemmsweep.build import build_all, build_one, describe, findings, nvcc, nvrtc, toolkit
from gemmsweep.errors import EnvironmentProblem
from gemmsweep.model import Source

KERNELS = """#include "one.cuh"
namespace ns {
template <int N, class T> __global__ void reverse(T* p) {
    __shared__ T s[64];
    s[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = s[63 - threadIdx.x] * N;
}
}
extern "C" __global__ void gemm(float* p) { p[0] = ONE; }
__global__ void plain(float* p) { p[0] = ONE; }
"""
NAMES = ("gemm", "plain", "ns::reverse<3, float>")
THREADED = """#include <pthread.h>
#include "answer.h"
static void *work(void *p) { *(int *)p = ANSWER; return 0; }
int answer(void) { int x = 0; pthread_t t; pthread_create(&t, 0, work, &x); pthread_join(t, 0); return x; }
int wraps(int x) { return x + 2147483647; }
"""


def cuda(text: str = KERNELS, names: tuple[str, ...] = NAMES, compiler: str = "auto") -> Source:
    return Source("cuda", text, names, {"one.cuh": "#define ONE 1.0f\n"}, compiler=compiler)


@pytest.fixture(scope="session")
def zig_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zig")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, zig_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMSWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(zig_cache))
    monkeypatch.delenv("CC", raising=False)


@pytest.fixture
def nvrtc_here() -> None:
    try:
        nvrtc.nvrtc_version()
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))


@pytest.fixture
def nvcc_here() -> None:
    try:
        nvcc.find()
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))


@pytest.mark.usefixtures("nvrtc_here")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "sm_120"])
def test_nvrtc_compiles_for_an_architecture_that_is_not_here(arch: str) -> None:
    build = build_one(cuda(), arch)
    assert build.ok, build.log
    assert Path(build.path).read_bytes().startswith(b"\x7fELF")
    assert build.symbols["gemm"] == "gemm"
    assert build.symbols["plain"].startswith("_Z")
    assert build.symbols["ns::reverse<3, float>"].startswith("_ZN2ns")
    assert build.registers is not None
    assert build.registers >= 8
    assert (build.spill_bytes, build.smem_bytes) == (0, 256)
    assert build.options[0] == f"-arch={arch}"
    assert build.compiler.startswith("nvrtc ")
    assert "\0" not in build.log
    assert not any(option.startswith("-I") for option in build.options)


@pytest.mark.usefixtures("nvrtc_here")
def test_nvrtc_names_what_is_wrong_and_where() -> None:
    builds = build_all(
        [
            cuda('extern "C" __global__ void gemm(float* p) {\n    p[0] = y;\n}\n', ("gemm",)),
            cuda('#include "absent.cuh"\n', ("gemm",)),
            cuda(KERNELS, ("gemv",)),
            cuda(
                'extern "C" __global__ void big(float* p) { __shared__ float s[99999]; s[*p > 0] = 1; *p = s[0]; }',
                ("big",),
            ),
        ],
        "sm_80",
    )
    assert not any(build.ok for build in builds)
    assert builds[0].reason == 'kernel.cu(2): error: identifier "y" is undefined'
    assert builds[1].reason.startswith("kernel.cu(1): ")
    assert "absent.cuh" in builds[1].reason
    assert builds[2].reason == "the source has no kernel 'gemv'"
    assert "too much shared data" in builds[3].reason


@pytest.mark.usefixtures("nvrtc_here")
def test_an_architecture_nvrtc_does_not_know_fails_the_build() -> None:
    assert "arch" in build_one(cuda(), "sm_12").reason


@pytest.mark.usefixtures("nvrtc_here")
def test_a_users_language_standard_replaces_ours_and_warnings_are_kept() -> None:
    text = 'extern "C" __global__ void k(int* p) { int unused; p[0] = __cplusplus >= 202002L ? 1 : 0; }'
    build = build_one(Source("cuda", text, ("k",), options=("--std=c++20",)), "sm_80")
    assert build.ok
    assert "--std=c++17" not in build.options
    assert any("never referenced" in finding for finding in findings(build.log))


@pytest.mark.usefixtures("nvrtc_here")
def test_the_toolkits_headers_are_found() -> None:
    if not toolkit.include_dirs(nvrtc.nvrtc_version()[0]):
        pytest.skip("no CUDA headers of NVRTC's version here")
    text = '#include <cuda_fp16.h>\nextern "C" __global__ void k(__half* p) { p[0] = __float2half(1.0f); }'
    build = build_one(Source("cuda", text, ("k",)), "sm_90a")
    assert build.ok, build.log


@pytest.mark.usefixtures("nvrtc_here")
def test_editing_a_header_in_an_include_dir_rebuilds(tmp_path: Path) -> None:
    header = tmp_path / "value.cuh"
    header.write_text("#define VALUE 1\n")
    text = '#include "value.cuh"\nextern "C" __global__ void k(int* p) { p[0] = VALUE; }'
    source = Source("cuda", text, ("k",), include_dirs=(str(tmp_path),))
    first, again = build_one(source, "sm_80"), build_one(source, "sm_80")
    header.write_text("#define VALUE 2\n")
    edited = build_one(source, "sm_80")
    assert (first.cached, again.cached, edited.cached) == (False, True, False)
    assert edited.key != first.key
    assert Path(edited.path).read_bytes() != Path(first.path).read_bytes()


@pytest.mark.usefixtures("nvcc_here")
def test_nvcc_finds_the_kernels_a_source_instantiates() -> None:
    instance = "namespace ns { template __global__ void reverse<3, float>(float*); }\n"
    there, absent, wrong = build_all(
        [cuda(KERNELS + instance, compiler="nvcc"), cuda(compiler="nvcc"), cuda("oops\n", ("k",), "nvcc")], "sm_90a"
    )
    assert there.ok, there.log
    assert there.symbols["ns::reverse<3, float>"].startswith("_ZN2ns")
    assert there.smem_bytes == 256
    assert there.compiler.startswith("nvcc ")
    assert not absent.ok
    assert "instantiate it" in absent.reason
    assert wrong.reason.startswith("kernel.cu(1): error")


@pytest.mark.parametrize("name", ["gcc", "zig"])
def test_a_c_compiler_builds_what_ctypes_runs(name: str) -> None:
    if not shutil.which(name) and not (name == "zig" and importlib.util.find_spec("ziglang")):
        pytest.skip(f"{name} is not here")
    build = build_one(Source("cpu", THREADED, ("answer",), {"answer.h": "#define ANSWER 42\n"}, compiler=name), "")
    assert build.ok, build.log
    assert build.compiler.startswith(f"{name} ")
    library = ctypes.CDLL(build.path)
    assert library.answer() == 42
    assert library.wraps(1) == -2147483648  # no trap: zig's sanitizers are off


def test_a_c_error_names_file_and_line() -> None:
    if not shutil.which("cc"):
        pytest.skip("cc is not here")
    build = build_one(Source("cpu", "int f(void) {\n    return x;\n}\n", ("f",)), "")
    assert build.reason.startswith("kernel.c:2:12: error:")


def test_without_cupy_every_way_to_a_cuda_build_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs.nvrtc", None)
    source = Source("cuda", "", ("k",))
    for build in (build_one, nvrtc.compile_ptx):
        with pytest.raises(EnvironmentProblem, match=r"cannot compile CUDA: CuPy is not installed\. pip install"):
            build(source, "sm_80")


def test_doctor_says_what_is_here_and_how_to_get_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name, _, _ in describe()]
    assert names == ["NVRTC", "CUDA headers", "nvcc", "C compiler", "build cache"]

    def absent() -> None:
        raise ImportError("cupy_backends")

    monkeypatch.setattr(nvrtc, "_binding", absent)
    what, found, detail = describe()[0]
    assert (what, found) == ("NVRTC", False)
    assert "pip install" in detail
