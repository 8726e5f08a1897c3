"""The CUDA templates themselves, run on the host: right results, and swizzles and fragments as bijections of their own source.

tests/unit/test_*_layout.py enumerate the formulas as Python states them; here the text that NVRTC gets is compiled for this
machine, with ldmatrix, mma, TMA and wgmma carried out by definition (tests/unit/emulated/). Integers: a single wrong place shows.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_cuda import Emulated, emulate

from gemmsweep import oracle
from gemmsweep.elements import to_float
from gemmsweep.model import DTYPES, Config, Inputs, Problem
from gemmsweep.template.library import find_template
from gemmsweep.verify.place import fragment_lane, place

ONE_CTA = {"CLUSTER_M": 1, "CLUSTER_N": 1, "TAIL": 1}
DIRECT = {**ONE_CTA, "STORE": "direct"}
SHARED_TILE = {"SCHEDULE": "cooperative", "BN": 256, "STAGES": 4}
SMALL = {**ONE_CTA, "BM": 64, "BN": 64, "STAGES": 4}
ONE_CONSUMER = {**ONE_CTA, "BM": 64, "CONSUMERS": 1, "SCHEDULE": "cooperative", "REG_CONSUMER": 208, "PERSISTENT": 0}
HALVES = {"SCHEDULE": "cooperative", "SPLIT_K": 2, "CLUSTER_M": 1, "PERSISTENT": 0, "TAIL": 1, "STAGES": 5}
SENT = {**HALVES, "BM": 64, "BN": 64, "CONSUMER_SPLIT": "n"}
PAIRS = {**ONE_CONSUMER, "STAGES": 3, "CLUSTER_M": 2}
NO_OVERLAP = {**PAIRS, "MMA_INFLIGHT": 0}
RESULTS: list[tuple[str, tuple[int, int, int, str, str], Config]] = [
    ("naive", (13, 66, 17, "bf16", "nt"), {}),
    ("naive", (13, 66, 17, "fp16", "nn"), {"UNROLL": 32}),  # K is one part of a batch
    ("naive", (9, 35, 96, "fp32", "nn"), {"UNROLL": 32}),  # and whole batches only
    ("simt", (130, 66, 17, "fp32", "nn"), {}),
    ("simt", (70, 135, 37, "fp32", "nt"), {"SWIZZLE": 0, "PAD": 4}),
    ("mma", (130, 66, 17, "fp16", "nn"), {}),
    ("mma", (65, 131, 70, "tf32", "nn"), {"PAD": 8, "SWIZZLE": 0}),
    ("mma", (131, 67, 77, "fp16", "nn"), {"EDGE": "pad"}),
    ("mma", (131, 67, 77, "bf16", "nt"), {"EDGE": "tail"}),
    ("simt", (131, 67, 77, "fp32", "nn"), {"EDGE": "pad", "COPY": "async"}),
    ("skinny", (17, 72, 145, "bf16", "nt"), {"REDUCE": "serial"}),
    ("skinny", (9, 66, 144, "fp32", "nn"), {"SPLIT_K": 1}),
    ("gemv", (3, 66, 145, "fp16", "nt"), {}),
    ("wgmma", (136, 264, 144, "bf16", "nt"), ONE_CTA),
    ("wgmma", (72, 72, 200, "fp16", "nn"), DIRECT),
    ("wgmma", (136, 264, 144, "bf16", "nt"), {**ONE_CTA, **SHARED_TILE, "STAGGER": 2}),
    ("wgmma", (136, 264, 400, "fp16", "nn"), {**ONE_CTA, **SHARED_TILE, "STAGGER": 3, "TAIL": 4}),
    ("wgmma", (131, 67, 77, "fp16", "nn"), {**ONE_CTA, "EDGE": "pad", "STORE": "rows"}),
    ("wgmma", (72, 72, 200, "tf32", "nt"), {**ONE_CTA, "STORE": "rows", "TAIL": 8}),
    ("wgmma", (768, 704, 64, "bf16", "nt"), {**SMALL, "TAIL": 2}),  # one whole wave of 132 CTAs and nothing left over
    ("wgmma", (776, 704, 200, "fp16", "nt"), {**SMALL, "TAIL": 2}),  # a wave and a twelfth: equal parts
    ("wgmma", (640, 640, 136, "fp16", "nt"), {**SMALL, "TAIL": 2}),  # most of a wave: pieces that end anywhere
    ("wgmma", (16, 224, 200, "bf16", "nt"), {**ONE_CONSUMER, "BN": 112, "BK": 128, "STAGES": 3, "STORE": "direct"}),
    ("wgmma", (64, 72, 200, "fp16", "nt"), {**ONE_CONSUMER, "BN": 32, "STAGES": 8}),
    ("wgmma", (264, 136, 200, "bf16", "nt"), {"CLUSTER_M": 2, "TAIL": 1}),
    ("wgmma", (200, 136, 520, "fp16", "nn"), PAIRS),  # the ring goes round
    ("wgmma", (100, 304, 64, "fp16", "nt"), {**PAIRS, "CLUSTER_N": 2}),  # and most of it is not used
    ("wgmma", (136, 264, 264, "fp16", "nn"), {**HALVES, "CLUSTER_N": 2}),
    ("wgmma", (50, 136, 648, "fp16", "nt"), {**SENT, "STAGES": 4}),
    ("wgmma", (64, 72, 64, "bf16", "nt"), SENT),  # a half has no K
]
CLUSTER: Config = {"REDUCE": "cluster", "SPLIT_K": 3}
ROWS: Config = {"BM": 32, "K_WARPS": 2, "SPLIT_K": 2, "STAGES": 3}
PLACES: list[tuple[str, str, str, Config]] = [
    ("naive", "fp32", "nn", {}),
    ("naive", "fp32", "nn", {"ORDER": "strided"}),
    ("simt", "fp32", "nn", {}),
    (
        "simt",
        "fp32",
        "nt",
        {"BM": 128, "BN": 64, "BK": 16, "WM": 64, "WN": 32, "TM": 2, "TN": 4, "VEC": 2, "REGISTERS": 128},
    ),
    ("mma", "fp16", "nt", {}),
    ("skinny", "bf16", "nt", {"SPLIT_K": 1}),
    ("skinny", "fp32", "nn", {"SPLIT_K": 1, "K_WARPS": 2}),
    ("wgmma", "bf16", "nt", DIRECT),
    ("wgmma", "bf16", "nt", {**DIRECT, **SHARED_TILE}),
    ("wgmma", "bf16", "nt", {**DIRECT, **SHARED_TILE, "CONSUMER_SPLIT": "n"}),
]


def operands(problem: Problem) -> oracle.Matrices:
    """Small integers, whose sums are exact in any order."""
    return oracle.random_matrices(np, problem, Inputs("integers", 3))


def wrong(emulated: Emulated) -> int:
    """Elements of C that are not the product (plus beta times what C was), or lie between its rows and have changed."""
    problem = emulated.problem
    matrices = operands(problem)
    before = matrices.c.copy()
    emulated.run(matrices)
    a, b = oracle.logical(np, problem, matrices, "float64")
    got, old = (to_float(np, c[:, : problem.n], DTYPES[problem.dtype][1]) for c in (matrices.c, before))
    bits = f"u{before.itemsize}"  # NaNs lie there
    between = matrices.c[:, problem.n :].view(bits) != before[:, problem.n :].view(bits)
    return int((got != a @ b + problem.beta * old).sum()) + int(between.sum())


@pytest.mark.parametrize(("name", "shape", "moved"), RESULTS)
def test_a_template_computes_the_product_on_the_host(name: str, shape: Any, moved: Config, tmp_path: Path) -> None:
    assert wrong(emulate(name, Problem.of(*shape), moved, tmp_path)) == 0


@pytest.mark.parametrize(
    ("name", "shape", "moved", "pattern", "instead"),
    [
        ("mma", (128, 128, 64, "fp16", "nt"), {}, r"chunk \^ ", "chunk | "),  # a swizzle that is no bijection
        ("simt", (128, 128, 32, "fp32", "nn"), {}, r"lane >> 1 & 3", "lane >> 1 & 1"),  # two lanes in one place
        ("wgmma", (128, 64, 64, "bf16", "nt"), DIRECT, r"\(u64\)1 << 62", "(u64)2 << 62"),  # another swizzle than TMA's
        ("wgmma", (128, 64, 640, "fp16", "nn"), PAIRS, r"stage < STAGES; \+\+stage", "stage < 0; ++stage"),  # a CTA leaves early
        ("wgmma", (128, 64, 640, "fp16", "nn"), NO_OVERLAP, r"stage < STAGES; \+\+stage", "stage < STAGES - 1; ++stage"),
        ("wgmma", (64, 64, 128, "fp16", "nt"), SENT, r"if \(SHARERS == 1\) cluster_wait\(\);", ""),  # before it has begun
        ("wgmma", (64, 64, 128, "fp16", "nt"), SENT, r"mbarrier_wait_for_cluster\(ring.sums\(\), 0\);", ""),
        ("skinny", (9, 66, 700, "fp16", "nt"), {}, "wait_for_copies<STAGES - 2>", "wait_for_copies<STAGES - 1>"),
        ("skinny", (9, 66, 700, "fp16", "nt"), {}, r"(STAGES - 2>\(\);)\s+__syncthreads\(\);", r"\1"),  # others' copies
        ("skinny", (17, 70, 700, "fp16", "nt"), ROWS, r"__syncthreads\(\);(\s+each_place\(acc)", r"\1"),  # others' sums
        ("skinny", (9, 66, 700, "fp16", "nt"), CLUSTER, r"of\(0\)", "of(rank)"),  # one block's sums twice
        ("mma", (128, 128, 256, "fp16", "nt"), {}, "1 [?] 0 : STAGES - 2>", "1 ? 0 : STAGES - 1>"),
    ],
)  # fmt: skip
def test_a_broken_layout_or_order_is_noticed(
    name: str, shape: Any, moved: Config, pattern: str, instead: str, tmp_path: Path
) -> None:
    def edit(text: str) -> str:
        broken, count = re.subn(pattern, instead, text)
        assert count, "the source no longer has this expression: break another"
        return broken

    if name == "wgmma":
        code = emulated_exit(name, shape, moved, edit, tmp_path)
        assert code == 3  # the emulation knows no such descriptor
    else:
        assert wrong(emulate(name, Problem.of(*shape), moved, tmp_path, edit)) > 0


def emulated_exit(name: str, shape: Any, moved: Config, edit: Any, folder: Path) -> int:
    """The exit code of a child process that runs it: what the emulation does not know ends the process."""
    import os

    emulated = emulate(name, Problem.of(*shape), moved, folder, edit)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        wrong(emulated)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def stated(rows: int, columns: int, size: int, pad: int, swizzle: int, *, by_word: bool) -> dict[int, int]:
    """Chunk of 16 bytes of a tile, counted along its rows → its address: what mma.cu says its tiles look like."""
    chunks, stride = columns * size // 16, (columns + pad) * size
    period = min(8, chunks & -chunks)
    flip = [row // (8 // period) * (2 if by_word else 1) % period if swizzle else 0 for row in range(rows)]
    return {
        row * chunks + chunk: row * stride + (chunk ^ flip[row]) * 16 for row in range(rows) for chunk in range(chunks)
    }


@pytest.mark.parametrize(("dtype", "layout"), [("fp16", "nn"), ("bf16", "nt"), ("tf32", "nn")])
@pytest.mark.parametrize("moved", [{}, {"SWIZZLE": 0, "PAD": 8}])
def test_every_element_of_a_slab_has_a_place_of_its_own_and_it_is_the_one_stated(
    dtype: str, layout: str, moved: Config, tmp_path: Path
) -> None:
    """Addresses of the template's own cp.async: a bijection, and equal to the one stated above."""
    bm, bn, bk = (int(find_template("mma").defaults()[name]) for name in ("BM", "BN", "BK"))
    problem = Problem.of(bm, bn, bk, dtype, layout)
    emulated, matrices = emulate("mma", problem, moved, tmp_path), operands(problem)
    emulated.run(matrices)
    copies, env, size = emulated.copies(), emulated.resolved.env, problem.sizeof_in
    assert sum(count for _, _, count in copies) == matrices.a.nbytes + matrices.b.nbytes
    b_shape = (bn, bk) if layout == "nt" else (bk, bn)
    start = 0
    for (rows, columns), matrix in (((bm, bk), matrices.a), (b_shape, matrices.b)):
        offsets = {source - matrix.ctypes.data: to for to, source, _ in copies}
        found = {offset // 16: to - start for offset, to in offsets.items() if 0 <= offset < matrix.nbytes}
        by_word = matrix is matrices.b and size == 4 and layout == "nn"
        assert found == stated(rows, columns, size, env["PAD"], env["SWIZZLE"], by_word=by_word)
        assert len(set(found.values())) == rows * columns * size // 16
        start += rows * (columns + env["PAD"]) * size


@pytest.mark.parametrize(("name", "dtype", "layout", "moved"), PLACES)
def test_the_header_says_which_thread_stores_an_element(
    name: str, dtype: str, layout: str, moved: Config, tmp_path: Path
) -> None:
    """`verify --explain` names warps and lanes by it: every element of the block tile has one owner, the one named."""
    config = {**find_template(name).defaults(), **moved}
    problem = Problem.of(int(config["BM"]), int(config["BN"]), 64, dtype, layout)
    emulated = emulate(name, problem, moved, tmp_path)
    owners = emulated.owners(operands(problem))
    for row, column in np.ndindex(owners.shape):
        said = place(emulated.template, emulated.resolved, emulated.launch, row, column)
        assert said.warp is not None and said.lane is not None
        assert 32 * said.warp + said.lane == owners[row, column], (row, column)


def test_a_fragment_of_accumulators_has_every_element_once() -> None:
    lanes = [fragment_lane(row, column) for row in range(16) for column in range(8)]
    assert sorted(lanes) == sorted([*range(32)] * 4)
