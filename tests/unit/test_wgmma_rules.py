"""kernel_templates/wgmma.cu without a GPU: which configs its rules admit, that those compile, where its bytes lie.

The layout formulas are a second opinion on those of the kernel: only the header is taken from it.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gemmsweep.analysis.account import offline_device
from gemmsweep.build import build_all
from gemmsweep.build.log import findings
from gemmsweep.model import Problem
from gemmsweep.template import render
from gemmsweep.template.library import find_template
from gemmsweep.template.resolve import Resolved

TEMPLATE = find_template("wgmma")
DEVICE = offline_device("sm_90a")
KINDS = [("bf16", "nt"), ("bf16", "nn"), ("fp16", "nt"), ("fp16", "nn"), ("tf32", "nt")]
SHARED = {"SCHEDULE": "cooperative", "BN": 256, "STAGES": 4, "TAIL": 1}  # what most rules are about
PINGPONG = {"SCHEDULE": "pingpong", "BN": 128, "STAGES": 6}
SPLIT = {"SPLIT_K": 2, "BN": 128, "STAGES": 5, "PERSISTENT": 0}
THREE = {"CONSUMERS": 3, "BM": 192, "BN": 160, "REG_PRODUCER": 32, "REG_CONSUMER": 160}
ONE = {"CONSUMERS": 1, "BM": 64, "BN": 128, "STAGES": 3, "REG_CONSUMER": 160}


def resolved(problem: Problem | None = None, **config: Any) -> Resolved:
    problem = problem or Problem.of(4096, 4096, 4096, "bf16", "nt")
    return render.resolve(TEMPLATE, problem, render.device_env(DEVICE), {**TEMPLATE.defaults(), **SHARED, **config})


def resolved_default(problem: Problem) -> Resolved:
    return render.resolve(TEMPLATE, problem, render.device_env(DEVICE), TEMPLATE.defaults())


def broken(problem: Problem | None = None, **config: Any) -> list[str]:
    return render.broken_rules(TEMPLATE, resolved(problem, **config))


@pytest.mark.parametrize(("dtype", "layout"), KINDS)
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (1, 8, 8), (8, 4104, 24), (2**30, 8, 8)])
def test_the_default_is_feasible(dtype: str, layout: str, shape: tuple[int, int, int]) -> None:
    assert render.broken_rules(TEMPLATE, resolved_default(Problem.of(*shape, dtype, layout))) == []


@pytest.mark.parametrize(
    "config",
    [
        {"STORE": "direct"},
        {"REG_PRODUCER": 24, "REG_CONSUMER": 240},
        {"BK": 128, "STAGES": 2},
        {"MMA_INFLIGHT": 0, "PERSISTENT": 0},
        {"CLUSTER_M": 1, "CLUSTER_N": 1},
        {"CLUSTER_M": 4, "CLUSTER_N": 2, "PERSISTENT": 0},
        {"BM": 256, "BN": 128},
        {"BM": 256, "BN": 192, "STAGES": 3},
        {"BN": 104, "CLUSTER_M": 1, "STORE": "direct"},
        {**ONE, "BN": 112, "BK": 128, "STAGES": 5, "CLUSTER_M": 1, "STORE": "direct"},
        {**ONE, "BN": 32, "STAGES": 8, "CLUSTER_M": 1, "CLUSTER_N": 4, "PERSISTENT": 0},
        {"CONSUMER_SPLIT": "n"},
        {"CONSUMER_SPLIT": "n", "BM": 192, "BN": 192},
        {"CONSUMER_SPLIT": "n", "BM": 320, "BN": 128, "STAGES": 3, "CLUSTER_M": 1, "CLUSTER_N": 2},
        PINGPONG,
        {"SCHEDULE": "pingpong", "BM": 64},
        {**PINGPONG, "TAIL": 2},
        {"STAGGER": 3},
        {"STAGGER": 3, "MMA_INFLIGHT": 0, "TAIL": 8, "C_HINT": "evict_first"},
        {**THREE, "STAGGER": 1, "TAIL": 4},
        {"EDGE": "pad", "STORE": "rows"},
        {"STORE": "rows", "BN": 96},
        SPLIT,
        {**SPLIT, "CLUSTER_M": 1, "CLUSTER_N": 2, "EDGE": "pad", "STORE": "rows"},
        THREE,
        ONE,
    ],
)
def test_configs_that_are_valid(config: dict[str, Any]) -> None:
    assert broken(**config) == []


@pytest.mark.parametrize(
    ("rule", "config"),
    [
        ("consumers that ask for more wait for ever", {"REG_PRODUCER": 48}),
        ("consumers that ask for more wait for ever", {"REG_CONSUMER": 240}),
        ("consumers that ask for more wait for ever", {"REG_PRODUCER": 32, "REG_CONSUMER": 240}),
        ("consumers that ask for more wait for ever", {**THREE, "REG_PRODUCER": 40}),
        ("consumers that ask for more wait for ever", {**ONE, "REG_CONSUMER": 224}),
        ("setmaxnreg takes multiples of 8", {"REG_PRODUCER": 36}),
        ("setmaxnreg takes multiples of 8", {"REG_CONSUMER": 228}),
        ("the producer gives registers away", {"REG_PRODUCER": 16}),
        ("the producer gives registers away", {"REG_PRODUCER": 176, "REG_CONSUMER": 160}),
        ("they cannot have fewer than at entry", {"REG_CONSUMER": 160, "BN": 128}),
        ("the accumulators and 32 more", {"BM": 256, "BN": 208, "STAGES": 3, "STORE": "direct"}),
        ("the accumulators and 32 more", {"BM": 256, "STAGES": 2}),
        ("the accumulators and 32 more", {**PINGPONG, "BN": 256, "STAGES": 4}),
        ("one wgmma and 26 more", {**THREE, "BN": 208, "STORE": "direct", "STAGES": 3, "CLUSTER_M": 1}),
        ("wait for ever", {"STAGES": 1}),
        ("at most one stage late", {"MMA_INFLIGHT": 2}),
        ("must fit the shared memory", {"STAGES": 5}),
        ("must fit the shared memory", {"BK": 128, "STAGES": 3}),
        ("wgmma takes 64 rows", {"BM": 64}),
        ("wgmma takes 64 rows", {"BM": 192, "BN": 192}),
        ("wgmma takes columns by eight", {"BN": 100, "CLUSTER_M": 1, "STORE": "direct"}),
        ("wgmma takes at most 256 columns", {"BN": 264, "CLUSTER_M": 1, "STORE": "direct", "STAGES": 3}),
        ("a box has 1 to 256 elements", {**THREE, "BM": 384, "BN": 128, "STAGES": 2}),
        ("in groups of eight rows", {"BN": 104, "STORE": "direct"}),
        ("a cluster has 1, 2, 4 or 8 CTAs", {"CLUSTER_M": 3, "BN": 192}),
        ("a cluster has 1, 2, 4 or 8 CTAs", {"CLUSTER_M": 4, "CLUSTER_N": 4}),
        ("those of a persistent grid left over", {"CLUSTER_N": 2}),
        ("a swizzled row of shared memory is 128 bytes", {"BK": 32}),
        ("C leaves shared memory in rows", {"BN": 104, "CLUSTER_M": 1}),
        ("a game for two consumers", {**PINGPONG, **ONE}),
        ("needs a next tile", {**PINGPONG, "PERSISTENT": 0}),
        ("there is nothing to split", {**PINGPONG, "CONSUMER_SPLIT": "n"}),
        ("come to its end together", {**PINGPONG, "STAGGER": 1}),
        ("come to its end together", {**ONE, "STAGGER": 1}),
        ("with all of them, both wait for ever", {"STAGES": 3, "STAGGER": 3}),
        ("with all of them, both wait for ever", {**THREE, "STAGGER": 2}),
        ("the share of one of its two consumers", {**SPLIT, **ONE}),
        ("the share of one of its two consumers", {**SPLIT, **PINGPONG, "PERSISTENT": 1}),
        ("the share of one of its two consumers", {**SPLIT, "SPLIT_K": 4}),
        ("a CTA with SPLIT_K has one tile", {**SPLIT, "PERSISTENT": 1}),
        ("must fit the shared memory", {**SPLIT, "STAGES": 6}),
        ("a cluster has 1, 2, 4 or 8 CTAs", {**SPLIT, "CLUSTER_M": 4, "CLUSTER_N": 2}),
        ("no last wave to divide", {"TAIL": 2, "PERSISTENT": 0}),
        ("at least one part", {"TAIL": 0}),
        ("goes with TMA's stores", {"C_HINT": "evict_first", "STORE": "rows"}),
        ("in rows of 64 or 128 bytes", {"STORE": "rows", "BN": 104, "CLUSTER_M": 1}),
        ("somebody has to multiply", {"CONSUMERS": 0}),
    ],
)
def test_configs_that_break_a_rule(rule: str, config: dict[str, Any]) -> None:
    assert any(rule in reason for reason in broken(**config)), broken(**config)


@pytest.mark.parametrize(
    ("rule", "problem", "config"),
    [
        ("rows of A that start", Problem.of(64, 64, 100, "bf16", "nn"), {}),
        ("rows of B that start", Problem.of(64, 100, 64, "fp16", "nn"), {}),
        ("rows of B that start", Problem.of(64, 64, 66, "tf32", "nt"), {}),
        ("TMA stores whole 16 bytes", Problem.of(64, 100, 64, "bf16", "nt"), {}),
        ("TMA stores whole 16 bytes", Problem.of(64, 100, 64, "bf16", "nt"), {"EDGE": "pad"}),
        ("tf32 takes layout nt here", Problem.of(64, 64, 64, "tf32", "nn"), {}),
        ("panels of 64 columns", Problem.of(64, 64, 64, "bf16", "nn"), {"BN": 160, "STAGES": 3}),
        ("panels of 64 columns", Problem.of(64, 64, 64, "bf16", "nn"), {"CONSUMER_SPLIT": "n", "BN": 192}),
        ("31 bits", Problem.of(2**31, 8, 8, "bf16", "nt"), {}),
    ],
)
def test_problems_that_break_a_rule(rule: str, problem: Problem, config: dict[str, Any]) -> None:
    assert any(rule in reason for reason in broken(problem, **config)), broken(problem, **config)


def test_padded_rows_make_odd_shapes_feasible_but_for_stores_by_tma() -> None:
    padded = Problem.of(33, 35, 37, "bf16", "nt", lda=40, ldb=48, ldd=40)
    assert broken(padded, STORE="rows") == broken(padded, STORE="direct") == []
    assert "what follows C's last column" in broken(padded)[0]


@pytest.mark.parametrize(("dtype", "layout"), KINDS)
@pytest.mark.parametrize("store", ["rows", "direct"])
def test_any_stride_is_feasible_through_padded_copies(dtype: str, layout: str, store: str) -> None:
    for shape in ((1, 1, 1), (130, 66, 17), (4095, 4097, 4099)):
        found = resolved(Problem.of(*shape, dtype, layout), EDGE="pad", STORE=store)
        assert render.broken_rules(TEMPLATE, found) == []
        launch = render.plan_launch(TEMPLATE, found)
        assert [step.kernel for step in launch.steps] == ["pad", "gemm"]
        for tensor_map in launch.tensor_maps:
            columns, rows = tensor_map.extent
            held = next(w.bytes for w in launch.workspaces if f"workspace:{w.name}" == tensor_map.operand)
            assert tensor_map.ld * found.env["sizeof_in"] % 16 == 0
            assert columns <= tensor_map.ld
            assert held == rows * tensor_map.ld * found.env["sizeof_in"]


def admitted(kind: tuple[str, str], draw: random.Random) -> Iterator[Resolved]:
    """Random configs of the declared values which break no rule."""
    problem = Problem.of(4096, 4096, 4096, *kind)
    while True:
        found = resolved(problem, **{p.name: draw.choice(p.values) for p in TEMPLATE.parameters})
        if not render.broken_rules(TEMPLATE, found):
            yield found


def test_random_configs_that_pass_the_rules_compile_as_meant() -> None:
    pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")
    draw = random.Random(4)
    sample = [next(admitted(kind, draw)) for kind in [*KINDS, ("bf16", "nt")]]
    builds = build_all([render.render(TEMPLATE, config) for config in sample], "sm_90a")
    for config, build in zip(sample, builds, strict=True):
        assert build.ok, (config.config, build.reason)
        assert not [found for found in findings(build.log) if "C75" in found], config.config
        assert build.registers == config.env["ENTRY_REGS"], config.config  # what the split of registers rests on


def test_the_default_compiles_without_findings() -> None:
    pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")
    sources = [render.render(TEMPLATE, resolved_default(Problem.of(4096, 4096, 4096, *kind))) for kind in KINDS]
    assert [findings(build.log) for build in build_all(sources, "sm_90a")] == [[]] * len(KINDS)


# ---- where the bytes lie


def swizzled(address: int, row_bytes: int = 128) -> int:
    """TMA's swizzle and wgmma's: the 16-byte chunk of a row of 128 bytes is XORed with the row's number modulo 8."""
    return address ^ (address >> 3 & (0x70 if row_bytes == 128 else 0x30))


def tma_box(base: int, rows: int, row_bytes: int = 128) -> dict[tuple[int, int], int]:
    """(row, byte in the row) → address of each 16-byte chunk of a box that TMA writes at `base`."""
    chunks = itertools.product(range(rows), range(0, row_bytes, 16))
    return {(row, byte): swizzled(base + row * row_bytes + byte, row_bytes) for row, byte in chunks}


def operand(base: int, rows: int, panels: int, sharers: int) -> dict[tuple[int, int], int]:
    """(row, byte along the row) → address, for an operand of `panels` side by side, each loaded in parts."""
    part = rows // sharers
    return {
        (index * part + row, panel * 128 + byte): address
        for panel, index in itertools.product(range(panels), range(sharers))
        for (row, byte), address in tma_box(base + panel * rows * 128 + index * part * 128, part).items()
    }


def k_major(start: int, rows: int) -> Iterator[tuple[tuple[int, int], int]]:
    """What wgmma reads of `rows` rows by 32 bytes of K: groups of eight rows lie 1024 bytes apart."""
    for row, byte in itertools.product(range(rows), (0, 16)):
        yield (row, byte), swizzled(start + row // 8 * 1024 + row % 8 * 128 + byte)


def n_major(start: int, columns: int, panel_bytes: int) -> Iterator[tuple[tuple[int, int], int]]:
    """What wgmma reads of 16 rows of K by `columns` 2-byte columns, as (k, byte along the row)."""
    for k, column in itertools.product(range(16), range(0, columns, 8)):
        address = start + column // 64 * panel_bytes + k // 8 * 1024 + k % 8 * 128 + column % 64 * 2
        yield (k, column * 2), swizzled(address)


def shapes() -> list[Resolved]:
    found = [
        resolved(Problem.of(512, 512, 512, *kind), **config)
        for kind in KINDS
        for config in (
            {},
            {"CLUSTER_M": 4, "PERSISTENT": 0},
            {"CLUSTER_N": 2, "PERSISTENT": 0},
            {"BK": 128, "STAGES": 2},
            {"CONSUMER_SPLIT": "n"},
            {"CONSUMER_SPLIT": "n", "BM": 320, "BN": 128, "STAGES": 3, "CLUSTER_M": 1, "CLUSTER_N": 2},
            {"BM": 256, "BN": 192, "STAGES": 3},
            {"BN": 104, "CLUSTER_M": 1, "STORE": "direct"},
            PINGPONG,
            THREE,
            ONE,
        )
    ]
    return [config for config in found if not render.broken_rules(TEMPLATE, config)]


def test_swizzles_permute_the_chunks_of_their_period() -> None:
    for row_bytes, period in ((128, 1024), (64, 512)):
        addresses = [swizzled(address, row_bytes) for address in range(period)]
        assert sorted(addresses) == list(range(period))
        assert all(address // row_bytes == i // row_bytes for i, address in enumerate(addresses))


@pytest.mark.parametrize("config", shapes(), ids=lambda config: "")
def test_descriptors_read_what_tma_wrote(config: Resolved) -> None:
    e = config.env
    base = 1024 * 5
    a_bytes, size = e["BM"] * 2 * e["BK"], e["sizeof_in"]
    a = operand(base, e["BM"], 2 * e["BK"] // 128, e["CLUSTER_N"])
    rows, panels = (e["BN"], 2 * e["BK"] // 128) if e["is_nt"] else (e["DEPTH"], e["BN"] * size // 128)
    b = operand(base + a_bytes, rows, panels, e["CLUSTER_M"])
    assert sorted([*a.values(), *b.values()]) == list(range(base, base + e["STAGE_BYTES"], 16))

    consumers = 1 if config.config["SCHEDULE"] == "pingpong" else e["CONSUMERS"]
    read: Counter[tuple[str, int, int]] = Counter()
    for consumer, step in itertools.product(range(consumers), range(2 * e["BK"] // 32)):
        split_n = config.config["CONSUMER_SPLIT"] == "n"
        m, n = (0, consumer * e["WN"]) if split_n else (consumer * e["WM"], 0)
        for tile in range(e["WM"] // 64):
            start = base + m * 128 + step // 4 * e["BM"] * 128 + step % 4 * 32 + tile * 64 * 128
            for (row, byte), address in k_major(start, 64):
                assert a[m + tile * 64 + row, step * 32 + byte] == address
                read["A", m + tile * 64 + row, step * 32 + byte] += 1
        if e["is_nt"]:
            start = base + a_bytes + n * 128 + step // 4 * e["BN"] * 128 + step % 4 * 32
            for (row, byte), address in k_major(start, e["WN"]):
                assert b[n + row, step * 32 + byte] == address
                read["B", n + row, step * 32 + byte] += 1
        else:
            panel = e["DEPTH"] * 128
            for (k, byte), address in n_major(base + a_bytes + n // 64 * panel + step * 2048, e["WN"], panel):
                assert b[step * 16 + k, n * 2 + byte] == address
                read["B", step * 16 + k, n * 2 + byte] += 1
    assert len(read) == len(a) + len(b)  # every chunk of the stage is multiplied
    assert base + e["STAGE_BYTES"] <= 1 << 18  # 14 bits of 16-byte units in a descriptor


def stored(size: int, c_row: int) -> Iterator[tuple[int, int, int]]:
    """(row, column, address) of every element as the warps write a box: stmatrix for 2 bytes, pairs of floats for 4."""

    def chunk(row: int, chunk: int) -> int:
        return row * c_row + (chunk ^ (row % 8 if c_row == 128 else row // 2 % 4)) * 16

    for warp_row, lane in itertools.product(range(0, 64, 16), range(32)):
        for pair, element in itertools.product(range(c_row // size // 4), range(2)):
            row, column = warp_row + lane // 4 + pair % 2 * 8, pair // 2 * 8 + lane % 4 * 2 + element
            if size == 4:
                yield row, column, chunk(row, pair // 2 * 2 + lane % 4 // 2) + lane % 2 * 8 + element * 4
                continue
            # Register `pair % 4` of an stmatrix is that matrix; lane 8 · matrix + row says where its row lies.
            teller = pair % 4 * 8 + lane // 4
            told = chunk(warp_row + teller % 16, pair // 4 * 2 + teller // 16)
            yield row, column, told + lane % 4 * 4 + element * 2


@pytest.mark.parametrize(("size", "c_row"), [(2, 128), (2, 64), (4, 128), (4, 64)])
def test_the_store_writes_boxes_as_tma_reads_them(size: int, c_row: int) -> None:
    box = tma_box(0, 64, c_row)
    seen = set()
    for row, column, address in stored(size, c_row):
        byte = column * size
        assert address == box[row, byte // 16 * 16] + byte % 16
        seen.add((row, column))
    assert len(seen) == 64 * c_row // size


@pytest.mark.parametrize("raster", ["m", "n"])
def test_rasterisation_and_clusters_visit_every_tile_once(raster: str) -> None:
    for rows, cols, group, cluster_m, cluster_n in itertools.product(
        (1, 3, 8, 17), (1, 2, 5), (1, 4, 16), (1, 2), (1, 4)
    ):
        along, across = (cols, rows) if raster == "n" else (rows, cols)
        visited = Counter()
        for index, rank in itertools.product(range(rows * cols), range(cluster_m * cluster_n)):
            width_of = min(group, along)
            start, inside = index // (width_of * across) * width_of, index % (width_of * across)
            width = min(width_of, along - start)
            x, y = start + inside % width, inside // width
            m, n = (y, x) if raster == "n" else (x, y)
            visited[m * cluster_m + rank % cluster_m, n * cluster_n + rank // cluster_m] += 1
        assert visited == Counter(itertools.product(range(rows * cluster_m), range(cols * cluster_n)))


@pytest.mark.parametrize(("cluster_m", "cluster_n"), [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2)])
def test_multicast_reaches_the_ctas_of_one_row_or_column(cluster_m: int, cluster_n: int) -> None:
    column = (1 << cluster_m) - 1
    row = ((1 << cluster_m * cluster_n) - 1) // column
    for m, n in itertools.product(range(cluster_m), range(cluster_n)):
        ranks = {(r % cluster_m, r // cluster_m) for r in range(8) if column << n * cluster_m >> r & 1}
        assert ranks == {(i, n) for i in range(cluster_m)}
        ranks = {(r % cluster_m, r // cluster_m) for r in range(8) if row << m >> r & 1}
        assert ranks == {(m, i) for i in range(cluster_n)}


def test_the_grid_is_whole_clusters_and_no_more_than_run_at_once() -> None:
    for shape, config, expected in (
        ((4096, 4096, 4096), {}, 132),
        ((129, 257, 64), {"TAIL": 2}, 132),
        ((1024, 1024, 1024), SPLIT, 128),
        ((4096, 4096, 4096), {**ONE, "TAIL": 2}, 264),
        ((4096, 4096, 4096), {"PERSISTENT": 0}, 512),
        ((129, 257, 64), {}, 4),
        ((129, 257, 64), {"CLUSTER_M": 4, "PERSISTENT": 0}, 8),
        ((4096, 4096, 4096), ONE, 264),
    ):
        problem = Problem.of(*shape, "bf16", "nt", ldd=shape[1] + -shape[1] % 8)
        launch = render.plan_launch(TEMPLATE, resolved(problem, **config))
        assert launch.steps[0].grid == (expected, 1, 1), (shape, config)


# ---- how the last wave is divided


def divided(tiles: int, clusters: int, k_blocks: int, tail: int) -> list[list[tuple[int, int, int]]]:
    """(tile, first block, past the last) of each share of each cluster, as Tiles hands them out with TAIL > 1."""
    whole, rest = divmod(tiles, clusters)
    shares = [[(cluster + index * clusters, 0, k_blocks) for index in range(whole)] for cluster in range(clusters)]
    if rest:
        parts = min(clusters // rest, tail, k_blocks)
        piece = -(-k_blocks // parts) if parts > 1 else -(-rest * k_blocks // clusters)
        pitch = parts * piece if parts > 1 else k_blocks
        for cluster in range(clusters):
            left_over, start = divmod(cluster * piece, pitch)
            if left_over < rest and start < k_blocks:
                if start + piece > pitch and left_over + 1 < rest:
                    shares[cluster].append((whole * clusters + left_over + 1, 0, start + piece - pitch))
                shares[cluster].append((whole * clusters + left_over, start, min(start + piece, k_blocks)))
    return shares


@pytest.mark.parametrize("k_blocks", [1, 2, 3, 8, 65])
def test_a_split_tile_has_every_block_once_and_no_empty_half(k_blocks: int) -> None:
    half = -(-k_blocks // 2)
    halves = [(rank * half, max(rank * half + 1, min((rank + 1) * half, k_blocks))) for rank in (0, 1)]
    blocks = [block for first, past in halves for block in range(first, past)]
    assert all(first < past for first, past in halves)
    assert blocks[:k_blocks] == list(range(k_blocks))
    assert blocks[k_blocks:] == ([1] if k_blocks == 1 else [])  # beyond K, where TMA reads zeros


@pytest.mark.parametrize("clusters", [1, 2, 5, 66, 132, 264])
@pytest.mark.parametrize("tail", [2, 4, 8])
def test_a_divided_tail_multiplies_every_block_once_and_nobody_waits_in_a_circle(clusters: int, tail: int) -> None:
    around = (1, clusters // 2, clusters - 1, clusters, clusters + 1, clusters + clusters // 5, clusters * 31 // 8)
    for tiles, k_blocks in itertools.product((t for t in around if t), (1, 2, 3, 5, 8, 63, 64)):
        shares = divided(tiles, clusters, k_blocks, tail)
        parts_of: dict[int, list[tuple[int, int, int]]] = {}
        for cluster, mine in enumerate(shares):
            for tile, first, past in mine:
                assert 0 <= first < past <= k_blocks
                parts_of.setdefault(tile, []).append((first, past, cluster))
            unfinished = [i for i, (_, _, past) in enumerate(mine) if past < k_blocks]
            waiting = [i for i, (_, first, past) in enumerate(mine) if past == k_blocks and first > 0]
            assert len(unfinished) <= 1  # there is one place for its sums
            assert all(i < j for i in unfinished for j in waiting)  # what others wait for comes before any wait
        assert sorted(parts_of) == list(range(tiles))
        for parts in parts_of.values():
            parts.sort()
            assert [first for first, _, _ in parts] == [0, *(past for _, past, _ in parts[:-1])]
            last_first, last_past, last = parts[-1]
            assert last_past == k_blocks
            if len(parts) > 1:  # the last finds the others by counting back from itself
                piece = parts[0][1] if len(parts) == 2 and parts[0][0] == 0 else parts[1][1] - parts[1][0]
                assert [cluster for _, _, cluster in parts[:-1]] == list(range(last - len(parts) + 1, last))
                assert piece >= 1 and last_first > 0
