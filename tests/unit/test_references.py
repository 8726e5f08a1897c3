"""What is raced against: names, functions, which race calls for what, padding, and how the best of several is found."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmsweep import references
from gemmsweep.device.cuda import jit
from gemmsweep.device.cuda import references as race
from gemmsweep.device.cuda.padcopy import JOB, NOTHING, PER_THREAD, THREADS, Copy, padded
from gemmsweep.errors import UsageError
from gemmsweep.model import Problem
from gemmsweep.protocol import DeviceFailure
from gemmsweep.template.locations import shared_include_folder

ALIGNED, ODD = Problem.of(4096, 4096, 4096, "fp16", "nt"), Problem.of(4095, 4097, 4099, "fp16", "nn")


def test_each_race_calls_for_what_it_needs() -> None:
    def chosen(problem: Problem, finals: bool) -> tuple[str, ...]:
        return references.further((), problem, "cuda", finals=finals)

    assert chosen(ALIGNED, False) == ()
    assert chosen(ALIGNED, True) == ("cublaslt_best",)
    assert chosen(ODD, False) == ("pad_copy_cublas",)
    assert chosen(ODD, True) == ("cublaslt_best", "pad_copy_cublas")
    assert references.further((), ODD, "cpu", finals=True) == ()
    asked = references.parse_names("pad_copy_cublas,cublas,pad_copy_cublas", "cuda")
    assert references.further(asked, ALIGNED, "cuda", finals=True) == ("pad_copy_cublas",)
    with pytest.raises(UsageError, match="numpy"):
        references.parse_names("cublas", "cpu")


def test_ratios_are_told_of_the_vendor_library_whatever_else_raced() -> None:
    assert references.yardstick(["a.function", "numpy"]) == "numpy"
    assert references.yardstick(["a.function", "cublaslt_best", "cublas"]) == "cublas"
    assert references.yardstick(["a.function"]) == "a.function" and references.yardstick([]) is None


def test_functions_are_named_by_module_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fast.py"
    path.write_text("def mm(): ...\n")
    functions = references.parse_functions(["py:importlib.resources.files", f"py:{path}:mm"])
    assert [f.label for f in functions] == ["resources.files", "fast.mm"]
    assert [(f.module, f.path, f.name) for f in functions] == [
        ("importlib.resources", "", "files"), ("", str(path), "mm"),
    ]  # fmt: skip
    before = functions[1].fingerprint
    path.write_text("def mm(): pass\n")
    assert functions[1].fingerprint != before
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="twice"):
        references.parse_functions([f"py:{path}:mm", "py:fast.mm"])


def test_a_file_that_is_no_python_is_told_with_the_line_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    for text, where in (("def f(:\n", "bad.py, line 1: "), ("def f(a): ...\0", "bad.py: source code")):
        path.write_text(text)
        with pytest.raises(UsageError, match=f"{where}.*Correct it"):
            references.parse_function(f"py:{path}:f")


@given(st.text())
def test_any_other_text_is_a_usage_error_or_a_function(text: str) -> None:
    try:
        function = references.parse_function(text)
    except (UsageError, ValueError):  # ValueError: a path with a NUL
        return
    assert text.startswith("py:")
    assert function.name.isidentifier()


sizes = st.integers(1, 300)


@given(sizes, sizes, sizes, st.sampled_from(["fp32", "fp16", "bf16"]), st.sampled_from(["nn", "nt"]), st.integers(0, 9))
def test_what_is_padded_is_aligned_and_nothing_else_is_copied(
    m: int, n: int, k: int, dtype: str, layout: str, extra: int
) -> None:
    tight = Problem.of(m, n, k, dtype, layout)
    p = Problem.of(m, n, k, dtype, layout, lda=tight.lda + extra, ldb=tight.ldb + extra, ldd=tight.ldd + extra)
    plan = padded(p)
    bigger, whole = plan.problem, 16 // p.sizeof_in
    contiguous = (bigger.k, bigger.lda, bigger.ldb, bigger.ldd, bigger.n)
    assert all(count % whole == 0 for count in contiguous)
    assert bigger.m == m
    assert 0 <= bigger.n - n < whole
    assert 0 <= bigger.k - k < whole
    assert (plan.a or plan.b or plan.c) == (references.odd_strides(p) or k % whole > 0 or n % whole > 0)
    # An operand that is not copied must already have the rows and columns the bigger product reads.
    assert plan.a or bigger.k == k
    assert plan.b or (bigger.k, bigger.n) == (k, n)
    assert plan.c or bigger.n == n


SHIM = """
#include <cstddef>
#include <cstring>
#include <algorithm>
#define __device__
#define __forceinline__ inline
#define __global__
#define ELEMENT {element}
#define PER_THREAD {per_thread}
using std::min;
struct uint4 {{ unsigned x, y, z, w; }};
struct Place {{ unsigned x; }};
static Place blockIdx, threadIdx, blockDim;
static unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {{
    return (unsigned)((((unsigned long long)hi << 32) | lo) >> (shift & 31));
}}
{source}
extern "C" void run(const char* jobs, unsigned blocks, unsigned threads) {{
    Job j[3];
    std::memcpy(j, jobs, sizeof j);
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) gemmsweep_pad_copy(j[0], j[1], j[2]);
}}
extern "C" unsigned job_bytes() {{ return sizeof(Job); }}
"""


@pytest.fixture(scope="module")
def on_host(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Any]:
    """The padding kernel for elements of 2 or 4 bytes, compiled for this CPU, thread after thread."""
    if not shutil.which("g++"):
        pytest.skip("g++ is not here")

    def build(size: int) -> Any:
        folder = tmp_path_factory.mktemp("host")
        element = {2: "unsigned short", 4: "unsigned int"}[size]
        text = SHIM.format(element=element, per_thread=PER_THREAD, source=jit.source("pad_copy.cu"))
        (folder / "k.cc").write_text(text)
        options = [
            f"-I{shared_include_folder()}",
            "-O1",
            "-fPIC",
            "-shared",
            "-fno-strict-aliasing",
            "-w",
            "-o",
            "k.so",
            "k.cc",
        ]
        subprocess.run(["g++", *options], cwd=folder, check=True)
        return ctypes.CDLL(str(folder / "k.so"))

    return build


@pytest.mark.parametrize("size", [2, 4])
def test_the_padding_kernel_copies_every_element_once_and_zeroes_the_rest(
    on_host: Callable[[int], Any], size: int
) -> None:
    library, kind = on_host(size), {2: np.uint16, 4: np.uint32}[size]
    assert library.job_bytes() == JOB.size
    rng = random.Random(size)
    for _ in range(150):
        rows, columns, loose = rng.randrange(1, 40), rng.randrange(1, 90), rng.randrange(0, 7)
        wide = -(-columns // (16 // size)) * (16 // size) + rng.choice([0, 16 // size])
        source = aligned(rows * (columns + loose) * size + 16).view(kind)
        source[:] = np.random.default_rng(1).integers(1, 60000, source.size)
        matrix = source[: rows * (columns + loose)].reshape(rows, columns + loose)[:, :columns]
        inside = aligned(rows * wide * size).view(kind)
        inside[:] = 7
        into = Copy(
            int(source.ctypes.data), int(inside.ctypes.data), (columns + loose) * size, wide * size, rows,
            columns * size, wide * size,
        )  # fmt: skip
        launch(library, [into])
        padded_matrix = inside.reshape(rows, wide)
        assert (padded_matrix[:, :columns] == matrix).all()
        assert (padded_matrix[:, columns:] == 0).all()

        back = aligned(rows * (columns + loose) * size + 16).view(kind)
        back[:] = 9
        launch(library, [Copy(
            int(inside.ctypes.data), int(back.ctypes.data), wide * size, (columns + loose) * size, rows,
            columns * size, columns * size,
        ), into])  # fmt: skip
        returned = back[: rows * (columns + loose)].reshape(rows, columns + loose)
        assert (returned[:, :columns] == matrix).all()
        assert (returned[:, columns:] == 9).all()  # nothing outside the matrix is written
        assert (back[rows * (columns + loose) :] == 9).all()


def aligned(size: int) -> Any:
    raw = np.zeros(size + 32, np.uint8)
    start = -int(raw.ctypes.data) % 16
    return raw[start : start + -(-size // 16) * 16]


def launch(library: Any, copies: list[Copy]) -> None:
    jobs = b"".join([copy.pack() for copy in copies] + [NOTHING] * (3 - len(copies)))
    library.run(jobs, sum(copy.blocks for copy in copies), THREADS)


class FakeGraph:
    """A burst whose time is known; counts how many are open."""

    opened = 0

    def __init__(self, us: float) -> None:
        self.us = us
        FakeGraph.opened += 1

    def close(self) -> None:
        FakeGraph.opened -= 1


def test_the_fastest_wins_and_refused_ones_are_left_out() -> None:
    rng = random.Random(0)

    def graph_of(us: float, launches: int) -> Any:
        if us < 0:
            raise DeviceFailure("launch", "refused")
        return FakeGraph(us)

    def time_us(graph: Any) -> float:
        return float(graph.us * rng.gauss(1.0, 0.01))

    assert race.quickest([30.0, -1.0, 10.0, 11.0, 10.9, 12.0], graph_of, time_us) == 10.0
    assert race.quickest([5.0], graph_of, time_us) == 5.0
    with pytest.raises(DeviceFailure, match="refused"):
        race.quickest([-1.0, -2.0], graph_of, time_us)
    assert FakeGraph.opened == 0
