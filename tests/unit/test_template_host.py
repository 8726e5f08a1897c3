"""A user's own file, host code and all: what is left of it compiles, on the lines it had."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmsweep.template.host import device_only
from gemmsweep.template.includes import STUB_HEADERS

SEVERAL = (Path(__file__).parent.parent / "data" / "template" / "several.cu").read_text()
PIECES = st.sampled_from(
    ["int main() {", "}", "{", "(", ")", "<", ">", "template <", "struct a", "::", ":", ";", "=", "operator", '"', "'",
     "//", "/*", "*/", 'R"(', ')"', "\n", "\\\n", "#if 0\n", "\n#else\n", "\n#endif\n", "\n#define A {", "extern \"C\"",
     "namespace", "__global__ void k(", "constexpr int f() {", "catch", "try", "<<<", ">>>", "[", "]", "$", "x", "1'0",
     "\r\n", "\u2028", "using std::", "enum class E", "public:", "typedef"]
)  # fmt: skip


@given(st.text(max_size=200) | st.lists(PIECES, max_size=60).map(" ".join))
def test_any_text_is_taken_and_keeps_its_lines(text: str) -> None:
    assert device_only(text).count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "host",
    [
        "int main() { return 0; }",
        "int main()\n{\n  if (x) { }\n}",
        "void launch(dim3 g = {1, 2}, int n = f(3)) { k<8><<<g, 32>>>(p); }",
        "template <typename T, int N = (3 > 2)> void launch(const std::vector<T>& v) { k<N><<<1, 2, 0, s>>>(v.data()); }",
        "static inline __host__ int f() { return 1; }",
        "std::function<void(int)> make() { return [](int) {}; }",
        "auto f() -> std::vector<int> { return {}; }",
        "std::ostream& operator<<(std::ostream& o, const X& x) { return o; }",
        "bool operator()(int, int) { return true; }",
        "Timer::Timer(int n) : a(n), b{n} { go(); }",
        "void f() try { g(); } catch (int) { } catch (...) { }",
        "struct Point middle(struct Point a) { return a; }",
        "double now();",
        "void (*pointer)(float*);",
        "int verbose = 0;",
        "extern int shared_elsewhere;",
        'const char* names[] = {"a", "b"};',
        "const std::string name = \"x\";",
        "auto go = [](int x) { return x; };",
        "cublasHandle_t handle;",
        "using std::vector;",
        "namespace fs = std::filesystem;",
        "typedef std::vector<float> floats;",
        "template void launch<float>(const std::vector<float>&);",
        'TEST(Gemm, Works) { EXPECT_EQ(1, 1); }',
        "struct Failure : std::runtime_error { int code; };",
    ],
)  # fmt: skip
def test_host_code_goes(host: str) -> None:
    kernel = "__global__ void k(float* x) { x[0] = 1; }"
    for text in (f"{host}\n{kernel}\n{host}\n", f'namespace a {{ extern "C" {{\n{host}\n}}\n{kernel}\n}}\n'):
        left = device_only(text)
        assert kernel in left
        assert left.replace(kernel, "").replace('namespace a { extern "C" {', "").split() in ([], ["}", "}"])


@pytest.mark.parametrize(
    "device",
    [
        "template <int N> __global__ void __launch_bounds__(N * (2 + N), 2) k(float* x, int n = (N > 2)) { if (n) { } }",
        "__launch_bounds__(256) __global__ void k(float* x) { auto f = [=](int i) { return i; }; f(1); }",
        "LAUNCH_BOUNDS(256)\n__global__ void k(float* x) { }",
        "__host__ __device__ int f(int a) { return a; }",
        "CUTLASS_HOST_DEVICE int f(int a) { return a; }",
        "#define HD __host__ __device__\n#define INLINE HD inline\nINLINE int f(int a) { return a; }",
        "#define KERNEL_OF(N) __global__ void k##N() { }\nKERNEL_OF(3)\nKERNEL_OF(4);",
        "[[nodiscard]] __device__ inline float f(float4 v = {1, 2, 3, 4}) { return v.x; }",
        "struct __align__(16) V { float x[4]; __device__ V operator+(V o) const { return o; } V() = default; };",
        "typedef struct { int a; } T;",
        "enum class E : int { a, b };",
        "union U { float4 v; float f[4]; };",
        "const int N = 3, M = 4;",
        "constexpr int table[] = {1, 2};",
        "__constant__ float weights[16] = {1};",
        "extern __shared__ float slab[];",
        "__device__ int counter = 0;",
        "using namespace nvcuda;",
        "using half8 = float4;",
        "typedef void (*kernel_t)(float*);",
        "template __global__ void k<64>(float*);",
        "template <typename T> struct Traits; template <> struct Traits<float> { static constexpr int n = 4; };",
        'static_assert(sizeof(int) == 4, "}");',
        "#if 0\nint main() {\n#endif\n__global__ void k() { }",
    ],
)
def test_device_code_stays(device: str) -> None:
    assert device_only(device + "\n") == device + "\n"


def test_constexpr_functions_serve_both_sides() -> None:
    assert device_only("static constexpr int f(int a) { return a; }") == (
        "static __host__ __device__ constexpr int f(int a) { return a; }"
    )


def test_methods_for_the_host_leave_their_class() -> None:
    left = device_only("struct T { T(int n) : x{n} { } ~T() { } __device__ int get() { return x; } int x = {3}; };")
    assert " ".join(left.split()) == "struct T { __device__ int get() { return x; } int x = {3}; };"


def test_macros_of_a_removed_function_stay_and_branches_are_matched() -> None:
    text = "int main() {\n#ifdef A\n  if (a) {\n#else\n  if (b) {\n#endif\n  }\n#define LATER 3\n#pragma unroll\n}\n"
    left = "\n#ifdef A\n\n#else\n\n#endif\n\n#define LATER 3\n\n\n"
    assert device_only(text) == left


def test_macros_of_other_files_count() -> None:
    text = "API int f() { return 1; }"
    assert device_only(text) == ""
    assert device_only(text, {"API": " __device__"}) == text


def test_an_unfinished_function_is_left_to_the_compiler() -> None:
    text = "int main() { if (x) {\n}\n__global__ void k() { }\n"
    assert device_only(text) == text


def test_what_is_left_of_a_whole_file_compiles() -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no NVRTC")
    from gemmsweep.build.nvrtc import find

    names = [name for name in STUB_HEADERS if f"<{name}>" in SEVERAL]
    headers = [STUB_HEADERS[name].encode() for name in names]
    program = nvrtc.createProgram(device_only(SEVERAL), "several.cu", headers, [name.encode() for name in names])
    nvrtc.addNameExpression(program, "mine::sgemm<64, 64, 8, 8, 8>")
    try:
        nvrtc.compileProgram(program, ("-arch=sm_80", "--std=c++17", *(f"-I{path}" for path in find().include_dirs)))
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program)[:2000])
    finally:
        nvrtc.destroyProgram(program)
