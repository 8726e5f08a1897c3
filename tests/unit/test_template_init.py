"""`gemmsweep init`: the drafted sidecar loads, and guesses the usual kernel right."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gemmsweep.errors import TemplateError
from gemmsweep.model import Problem
from gemmsweep.template.found import read
from gemmsweep.template.header import Template, load_template
from gemmsweep.template.init import draft_sidecar
from gemmsweep.template.kernels import parameter_names
from gemmsweep.template.render import flatten, plan_launch, render, resolve

DATA = Path(__file__).parent.parent / "data" / "template"


def drafted(folder: Path, name: str, text: str | None = None) -> Template:
    path = folder / name
    if text is None:
        shutil.copy(DATA / name, path)
    else:
        path.write_text(text)
    path.with_suffix(".toml").write_text(draft_sidecar(path))
    return load_template(path)


def test_a_kernel_with_template_parameters(tmp_path: Path) -> None:
    template = drafted(tmp_path, "public.cu")
    assert template.kernel.name == "sgemm::tiled<BM, BN, BK, TM>"
    assert template.kernel.bind == "template"
    assert template.reads_c
    assert [rule.text for rule in template.requires] == ["M % BM == 0", "N % BN == 0", "K % BK == 0"]
    resolved = resolve(template, Problem.of(256, 384, 64), {}, template.defaults())
    (step,) = plan_launch(template, resolved).steps
    assert step.args == ("i32:256", "i32:384", "i32:64", "alpha", "A", "B", "beta", "C")
    assert (step.grid, step.block) == ((3, 4, 1), (1024, 1, 1))
    assert render(template, resolved).kernels == ("sgemm::tiled<64, 128, 16, 8>",)


def test_a_kernel_with_macros(tmp_path: Path) -> None:
    template = drafted(tmp_path, "macros.cu")
    assert (template.kernel.name, template.kernel.bind) == ("square", "define")
    assert template.defaults() == {"TILE": 16, "UNROLL": 4}
    assert [rule.text for rule in template.requires] == ["M == N", "K == N"]
    assert template.parameter("TILE").values == (8, 16, 32)
    (step,) = plan_launch(template, resolve(template, Problem.of(64, 64, 64), {}, template.defaults())).steps
    assert step.args == ("A", "B", "C", "i32:64")
    assert step.block == (16, 16, 1)


def test_types_long_sizes_and_the_unknown_are_marked(tmp_path: Path) -> None:
    text = """#include <cuda_fp16.h>
    /* __global__ void not_this(int x) */
    template <typename T, int BM = 64, bool FAST = true>
    __global__ void k(const half *__restrict__ dA, const half *__restrict__ dB, half *out, size_t m, long n, int K,
                      int *flag) {}
    """
    template = drafted(tmp_path, "k.cu", text)
    assert template.kernel.name == "k<half, BM, true>"
    assert template.dtypes == ("fp16",)
    words = [(a.word, a.expression.text if a.expression else "") for a in template.steps[0].args]
    assert words == [("A", ""), ("B", ""), ("C", ""), ("i64", "M"), ("i64", "N"), ("i32", "K"), ("i32", "0")]
    assert '"i32:0",  # UNKNOWN, replace: int *flag' in (tmp_path / "k.toml").read_text()


def test_a_file_without_a_kernel_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "host.cu"
    path.write_text("int main() { return 0; } // __global__ void k()")
    with pytest.raises(TemplateError, match=r"has no '__global__ void' function"):
        draft_sidecar(path)


def test_of_several_kernels_the_gemm_is_drafted_as_it_is_launched(tmp_path: Path) -> None:
    template = drafted(tmp_path, "several.cu")
    text = (tmp_path / "several.toml").read_text()
    assert template.kernel.name == "mine::sgemm<BM, BN, BK, TM, TN>"
    assert "mine::sgemm, whose arguments look most like a GEMM's" in text
    assert "# has fill, copy." in text
    assert template.summary == "kernel sgemm of several.cu"
    assert template.defaults() == {"BM": 64, "BN": 64, "BK": 8, "TM": 8, "TN": 8}
    assert template.parameter("BM").meaning == "rows of C per block"
    resolved = resolve(template, Problem.of(256, 512, 64), {}, template.defaults())
    (step,) = plan_launch(template, resolved).steps
    assert (step.grid, step.block) == ((8, 4, 1), (64, 1, 1))
    source = render(template, resolved)
    assert source.name == "several.cu"
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no NVRTC")
    assert nvrtc
    from gemmsweep.build.nvrtc import compile_cuda, find

    for candidate in (source, replace(source, text=flatten(source))):
        built = compile_cuda(candidate, "sm_80", find())
        assert built.binary, built.log
    missing = replace(source, text=source.text.replace("twice(sum.x)", "thrice(sum.x)"))
    assert compile_cuda(missing, "sm_80", find()).reason.startswith("several.cu(55): error")


def test_defaults_that_no_launch_takes_are_moved_or_told(tmp_path: Path) -> None:
    kernel = "__global__ void k(const float *A, const float *B, float *C, int M, int N, int K) {}"
    template = drafted(tmp_path, "k.cu", f"template <int BM = 256, int BN = 256, int TM = 16>\n{kernel}")
    assert template.defaults() == {"BM": 128, "BN": 128, "TM": 16}
    path = tmp_path / "wide.cu"
    path.write_text(
        f"#define THREADS 8192\ntemplate <int THREADS_X = 8192>\n{kernel}\nvoid f() {{ k<8192><<<1, 8192>>>(a); }}"
    )
    assert "# No defaults near these values keep every rule" in draft_sidecar(path).splitlines()[1]


TYPED = """#include <cuda_fp16.h>
template <typename T, int BM, int BN, int BK>
__global__ void gemm_t(const T *A, const T *B, T *C, int M, int N, int K) {}
"""


@pytest.mark.parametrize(
    ("element", "dtype"), [("__half", "fp16"), ("half", "fp16"), ("__nv_bfloat16", "bf16"), ("float", "fp32")]
)
def test_a_type_is_the_one_that_is_launched(tmp_path: Path, element: str, dtype: str) -> None:
    launch = f"void f() {{ gemm_t<{element}, 16, 16, 8><<<g, 256>>>(a, b, c, M, N, K); }}"
    template = drafted(tmp_path, "k.cu", TYPED + launch)
    assert template.kernel.name == f"gemm_t<{element}, BM, BN, BK>"
    assert template.dtypes == (dtype,)
    assert not re.search("^(dtypes|name).*guess", (tmp_path / "k.toml").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("head", "name", "dtype", "guessed"),
    [
        ("template <typename T>", "k<float>", "fp32", {"name", "dtypes"}),
        ("template <typename T = __half>", "k<__half>", "fp16", set()),
        ("template <typename Acc = float, typename T = __half>", "k<float, __half>", "fp16", set()),
        ("typedef double T;", "k", "fp32", {"dtypes"}),
    ],
)
def test_a_type_that_no_line_says_is_a_guess(
    tmp_path: Path, head: str, name: str, dtype: str, guessed: set[str]
) -> None:
    text = f"{head}\n__global__ void k(const T *A, const T *B, T *C, int M, int N, int K) {{}}"
    template = drafted(tmp_path, "k.cu", text)
    assert (template.kernel.name, template.dtypes) == (name, (dtype,))
    written = (tmp_path / "k.toml").read_text()
    assert set(re.findall("^(dtypes|name).*guess", written, re.MULTILINE)) == guessed


@pytest.mark.parametrize(
    ("parameters", "arguments", "grid"),
    [
        (
            "int M, int N, int K, int lda, int ldb, int ldc",
            "M, N, K, K, N, N",
            ("floor_div(N, BN)", "floor_div(M, BM)"),
        ),
        (
            "int lda, int ldb, int ldc, int M, int N, int K",
            "K, N, N, M, N, K",
            ("floor_div(N, BN)", "floor_div(M, BM)"),
        ),
        ("int M, int N, int K", "N, N, N", ("floor_div(N, BN)", "floor_div(M, BM)")),
    ],
)
def test_a_grid_counts_sizes_not_leading_dimensions(
    tmp_path: Path, parameters: str, arguments: str, grid: tuple[str, str]
) -> None:
    rows = arguments.split(", ")[[p.split()[-1] for p in parameters.split(", ")].index("M")]
    text = f"""#define BM 64
    #define BN 64
    __global__ void sgemm_tiled(const float *A, const float *B, float *C, {parameters}) {{ int t = BM * BN; }}
    void f() {{ dim3 g(N / BN, {rows} / BM); sgemm_tiled<<<g, 256>>>(A, B, C, {arguments}); }}"""
    (step,) = drafted(tmp_path, "k.cu", text).steps
    assert tuple(extent.text for extent in step.grid) == grid


@pytest.mark.parametrize(("declared", "defaults"), [
    ("int BM=1<<4", {"BM": 16}), ("int BM = 1 << 4, int BN = (64>>1)", {"BM": 16, "BN": 32}),
    ("class T = std::array<int, (2>1)>, int BN = 8", {"BN": 8}), ("bool B = 3<=4, int BN = 8", {"BN": 8}),
    ("int BN = 8, bool B = (3>=2)", {"BN": 8}), ("int BN = 8, class T = std::array<std::array<int, 2>,1<<1>>", {"BN": 8}),
])  # fmt: skip
def test_shifts_and_comparisons_are_no_brackets(tmp_path: Path, declared: str, defaults: dict[str, int]) -> None:
    text = f"template<{declared}> __global__ void k(float *A, float *B, float *C, int M, int N, int K){{ }}"
    found = read("k.cu", text)
    assert (found.kernel.name, found.parameters) == ("k", defaults)


def test_a_launch_that_shifts_its_sizes(tmp_path: Path) -> None:
    text = """template<int BM = 1 << 4> __global__ void k(float *A, float *B, float *C, int M, int N, int K) { }
    void launch(float *A, float *B, float *C, int M, int N, int K) {
        k<1 << 5><<<dim3(N >> 5, (M + 31) >> 5), 1 << 8>>>(A, B, C, M, N, K);
    }
    """
    template = drafted(tmp_path, "k.cu", text)
    assert template.parameter("BM").values == (16, 32, 64)
    (step,) = plan_launch(template, resolve(template, Problem.of(64, 96, 64), {}, template.defaults())).steps
    assert (step.grid, step.block) == ((3, 2, 1), (256, 1, 1))


def test_parameters_are_named_as_where_the_function_is_defined() -> None:
    text = """namespace ns { template <int BM> __global__ void k(const float* A, int, i64 ldc); }
        template <int BM> __global__ void __launch_bounds__(64) ns::k(const float* __restrict__ A, /* n */ int n, i64 ldc) { f(A); }
        int f(const float*) { return 0; }"""
    assert parameter_names(text, "ns::k<64>") == {("A", "n", "ldc")}
    assert parameter_names(text, "g") == set()
    assert parameter_names(text + " void k(int M, int N, int K) {}", "k") == {("A", "n", "ldc"), ("M", "N", "K")}
