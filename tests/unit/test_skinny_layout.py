"""The index arithmetic of kernel_templates/skinny.cu and gemv.cu, mirrored in plain Python and checked by enumeration.

Nothing is imported from the package: the formulas here are a second opinion on those in the kernels.
"""

import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

TEMPLATES = Path(__file__).parents[2] / "kernel_templates"
LANES = range(32)
SIZES = (2, 4)  # bytes of an element: fp16 and bf16 are laid out alike
LAYOUTS = ("nn", "nt")
H200_SMEM, SMALLEST_SMEM = 232_448, 101_376
FUNCTIONS = {"min": min, "max": max, "ceil_div": lambda a, b: -(-a // b), "floor_div": lambda a, b: a // b}


@cache
def header(kernel: str) -> dict:
    match = re.match(r"// /// gemmsweep\n(.*?)// ///\n", (TEMPLATES / f"{kernel}.cu").read_text(), re.DOTALL)
    assert match is not None
    return tomllib.loads("\n".join(line.removeprefix("//")[1:] for line in match[1].splitlines()))


def values(kernel: str, name: str) -> range | list[int]:
    """The declared values as the kernel sees them: names are their index."""
    declared = header(kernel)["parameters"][name]["values"]
    return range(len(declared)) if isinstance(declared[0], str) else declared


def names(kernel: str, size: int, layout: str, smem: int = H200_SMEM, **config: int) -> dict:
    """Every name that an expression of the header may use; M, N and K may be among `config`."""
    parameters = header(kernel)["parameters"].items()
    defaults = {
        name: p["values"].index(p["default"]) if isinstance(p["default"], str) else p["default"]
        for name, p in parameters
    }
    words = {word: i for _, p in parameters for i, word in enumerate(p["values"]) if isinstance(word, str)}
    problem = {"M": 3, "N": 200, "K": 1000, "sizeof_in": size, "is_nt": int(layout == "nt"), "is_fp32": int(size == 4)}
    device = {"max_smem_bytes": smem, "compute_capability": 90}
    scope = {**FUNCTIONS, **words, **problem, **device, **defaults, **config}
    for name, expression in header(kernel)["derived"].items():
        scope[name] = eval(expression, {}, scope)
    return scope


def feasible(kernel: str, scope: dict) -> bool:
    return all(eval(constraint["expr"], {}, scope) for constraint in header(kernel)["constraints"])


def configs(kernel: str, *varied: str, smallest: dict[str, int] | None = None) -> Iterator[tuple[str, dict]]:
    """Every feasible combination of the named parameters on an H200, in each size and layout."""
    for size, layout in itertools.product(SIZES, header(kernel)["layouts"]):
        for combination in itertools.product(*(values(kernel, name) for name in varied)):
            config = {**(smallest or {}), **dict(zip(varied, combination, strict=True))}
            scope = names(kernel, size, layout, **config)
            if feasible(kernel, scope):
                yield layout, scope


# ---- skinny


@dataclass(frozen=True)
class Tile:
    """A tile in shared memory; offsets in bytes."""

    rows: int
    cols: int
    size: int  # of an element

    @property
    def chunks(self) -> int:
        return self.cols * self.size // 16

    @property
    def stride(self) -> int:
        return self.cols * self.size

    def offset(self, row: int, chunk: int) -> int:
        period = min(8, self.chunks & -self.chunks)
        return row * self.stride + (chunk ^ row // (8 // period) % period) * 16


def tiles(layout: str, scope: dict) -> tuple[Tile, Tile]:
    size = scope["sizeof_in"]
    b = (scope["BN"], scope["BK"]) if layout == "nt" else (scope["BK"], scope["BN"])
    return Tile(scope["BM"], scope["BK"], size), Tile(*b, size)


@cache
def all_tiles() -> frozenset[tuple[Tile, bool]]:
    """Every tile of any feasible config, and whether it is B of layout nn in fp32, which is read by single words."""
    return frozenset(
        (tile, layout == "nn" and is_b and tile.size == 4)
        for warps in values("skinny", "WARPS")
        for layout, scope in configs("skinny", "BM", "BN", "BK", smallest={"STAGES": 2, "WARPS": warps})
        for is_b, tile in enumerate(tiles(layout, scope))
    )


def ways(addresses: list[int], width: int) -> int:
    """Cycles that 32 banks of 4 bytes need for one access of `width` bytes at each address; 1 is conflict-free."""
    words = {(address + i) // 4 for address in addresses for i in range(0, width, 4)}
    return max(Counter(word % 32 for word in words).values())


def lane_place(lane: int, size: int) -> tuple[int, int]:
    """lane_m and lane_n."""
    return (lane >> 1 & 3, (lane & 1) + (lane >> 3 << 1)) if size == 4 else (lane % 4, lane // 4)


def test_the_swizzle_is_a_bijection() -> None:
    for tile, _ in all_tiles():
        offsets = {tile.offset(row, chunk) for row in range(tile.rows) for chunk in range(tile.chunks)}
        assert len(offsets) == tile.rows * tile.chunks, tile
        assert all(offset % 16 == 0 for offset in offsets) and max(offsets) < tile.rows * tile.stride, tile


def test_chunks_of_eight_consecutive_rows_lie_in_different_banks() -> None:
    """What ldmatrix reads of a tile, and what lanes with different weights read on FFMA."""
    for tile, _ in all_tiles():
        for row, chunk in itertools.product(range(0, tile.rows, 8), range(tile.chunks)):
            assert ways([tile.offset(row + i, chunk) for i in range(8)], 16) == 1, tile


def test_fp32_reads_have_no_conflict() -> None:
    for tile, by_word in all_tiles():
        if tile.size == 4 and by_word:
            for row, col in itertools.product(range(min(8, tile.rows)), range(0, tile.cols, 8)):
                places = {(col + lane_place(lane, 4)[1]) for lane in LANES}
                assert ways([tile.offset(row, c // 4) + c % 4 * 4 for c in places], 4) == 1, tile
        elif tile.size == 4:
            for odd in (0, 1):  # tokens: every second row
                rows = {2 * lane_place(lane, 4)[0] + odd for lane in LANES}
                assert ways([tile.offset(row, 1) for row in rows], 16) == 1, tile


def test_rows_eight_apart_have_the_same_swizzle() -> None:
    """The kernel adds 8 or 16 rows to an address whose chunk has been permuted already."""
    for tile, _ in all_tiles():
        for row, chunk in itertools.product(range(tile.rows - 8), range(tile.chunks)):
            assert tile.offset(row + 8, chunk) == tile.offset(row, chunk) + 8 * tile.stride


def test_copies_have_no_conflict() -> None:
    for tile, _ in all_tiles():
        order = [tile.offset(i // tile.chunks, i % tile.chunks) for i in range(min(tile.rows * tile.chunks, 512))]
        assert max(ways(order[i : i + 8], 16) for i in range(0, len(order), 8)) == 1, tile


def test_threads_copy_every_unit_of_a_tile_once() -> None:
    shapes = {
        (tile.rows, tile.cols, tile.size, scope["THREADS"])
        for layout, scope in configs("skinny", "BM", "BN", "BK", "WARPS", smallest={"STAGES": 2})
        for tile in tiles(layout, scope)
    }
    for (rows, cols, size, threads), unit in itertools.product(shapes, (16, 4)):
        width = unit // size
        across = min(cols // width, threads & -threads)
        down = threads // across
        # Rows and columns are independent: each must be reached once, and by one thread of those that share the other.
        reached_cols = Counter(
            thread * width + col for thread in range(across) for col in range(0, cols, across * width)
        )
        reached_rows = Counter(row0 + row for row0 in range(down) for row in range(0, rows, down) if row0 + row < rows)
        assert reached_cols == Counter(range(0, cols, width)), (rows, cols, size, threads, unit)
        assert reached_rows == Counter(range(rows)), (rows, cols, size, threads, unit)


def told(size: int, wn: int, row: int, column: int) -> tuple[int, int]:
    """The warp and lane that the header names for an element; see `verify --explain`."""
    scope = {"is_fp32": int(size == 4), "row": row, "column": column, "WN": wn, "floor_div": lambda a, b: a // b}
    scope |= {"ALONE": 0, "ROWS_DOWN": 1, "PAIRS_ACROSS": 1}  # blocks that share K store what they have summed
    account = header("skinny")["account"]
    return eval(account["warp"], {}, scope), eval(account["lane"], {}, scope)


def test_warps_and_lanes_cover_the_block_tile_once() -> None:
    shapes = {(s["BM"], s["BN"], s["WARPS"]) for _, s in configs("skinny", "BM", "BN", "WARPS")}
    for (bm, bn, warps), size in itertools.product(shapes, SIZES):
        wn = bn // warps
        covered = Counter()
        for warp, lane, i, j in itertools.product(range(warps), LANES, range(wn // 16), range(bm // 8)):
            lane_m, lane_n = lane_place(lane, size)
            row, col = 8 * j + 2 * lane_m, warp * wn + 16 * i + lane_n
            if bm == 16:  # the rows of a fragment repeat
                assert told(size, wn, row, col) == told(size, wn, row + 1, col + 8) == (warp, lane)
            covered.update([(row, col), (row + 1, col), (row, col + 8), (row + 1, col + 8)])
        assert covered == Counter(itertools.product(range(bm), range(bn))), (bm, bn, warps)


def test_ffma_lanes_share_in_the_pairs_the_hardware_merges() -> None:
    places = [lane_place(lane, 4) for lane in LANES]
    assert len(set(places)) == 32
    for lane in LANES:
        assert places[lane][0] == places[lane ^ 1][0]
        assert places[lane][1] == places[lane ^ 2][1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ldmatrix_fetches_what_mma_multiplies(layout: str) -> None:
    """Matrix q of the four: weights 8 * (q % 2) and K 8 * (q / 2); of the tokens the other way round."""
    for q, i in itertools.product(range(4), range(8)):
        lane = 8 * q + i
        if layout == "nt":  # a row of the matrix is a weight
            row, k_chunk = lane % 16, lane // 16
            assert (row, k_chunk) == (8 * (q % 2) + i, q // 2)
        else:  # a row is one of K, transposed on the way
            k, chunk = lane // 16 * 8 + lane % 8, lane // 8 % 2
            assert (k, chunk) == (8 * (q // 2) + i, q % 2)
        for m_tiles in (1, 2):
            row, k_chunk = lane // 16 % m_tiles * 8 + lane % 8, lane // 8 % 2
            assert (row, k_chunk) == (8 * (q // 2 % m_tiles) + i, q % 2)


@pytest.mark.parametrize("split_k", values("skinny", "SPLIT_K"))
@pytest.mark.parametrize("bk", values("skinny", "BK"))
def test_the_splits_partition_k(split_k: int, bk: int) -> None:
    for k in (1, bk - 1, bk, bk + 1, split_k * bk - 1, split_k * bk, 3 * split_k * bk + 5, 14336, 2**40 + 1):
        slabs = -(-k // bk)
        parts = [(slabs * s // split_k * bk, min(slabs * (s + 1) // split_k * bk, k)) for s in range(split_k)]
        assert all(first % bk == 0 and first - bk < last for first, last in parts)  # none has a negative length
        ends = [0, *(last for first, last in parts if last > first)]
        assert [first for first, last in parts if last > first] == ends[:-1] and ends[-1] == k
        lengths = [-(-(last - first) // bk) for first, last in parts]
        assert max(lengths) - max(0, min(lengths)) <= 1


@pytest.mark.parametrize("reduce", header("skinny")["parameters"]["REDUCE"]["values"])
def test_blocks_visit_every_part_of_every_tile_once_and_earlier_parts_first(reduce: str) -> None:
    for tiles_m, tiles_n, split_k in itertools.product((1, 2, 5), (1, 3, 7), values("skinny", "SPLIT_K")):
        size = split_names(reduce, split_k)["CLUSTER_SIZE"]
        if split_k % size:
            continue
        count = tiles_m * tiles_n
        visited = [
            (b // size % count % tiles_m, b // size % count // tiles_m, b // size // count * size + b % size)
            for b in range(count * split_k)
        ]
        assert sorted(visited) == sorted(itertools.product(range(tiles_m), range(tiles_n), range(split_k)))
        for first in range(0, count * split_k, size):  # a cluster has neighbouring parts of one tile, in the order of K
            assert {place[:2] for place in visited[first : first + size]} == {visited[first][:2]}
            assert [part for *_, part in visited[first : first + size]] == [visited[first][2] + i for i in range(size)]
        if reduce == "serial":  # or the turnstile hangs
            assert [split for *_, split in visited] == sorted(split for *_, split in visited)


def split_names(reduce: str, split_k: int, **config: int) -> dict:
    choices = header("skinny")["parameters"]["REDUCE"]["values"]
    return names("skinny", 2, "nt", REDUCE=choices.index(reduce), SPLIT_K=split_k, **config)


def slices(reduce: str, split_k: int) -> int:
    """Slices of a tile that a reduction keeps in memory: the kernel's SLICES."""
    return {"serial": 1, "atomic": 1, "cluster": max(1, split_k // 8)}.get(reduce, split_k)


@pytest.mark.parametrize("reduce", header("skinny")["parameters"]["REDUCE"]["values"])
def test_the_sums_of_every_block_have_a_place_of_their_own(reduce: str) -> None:
    partials, counters = header("skinny")["workspace"]
    assert (partials["zero"], counters["zero"]) == ("once", "once")
    for split_k, bm, bn, warps in itertools.product((3, 4, 16), (8, 16), (64, 128), (2, 4)):
        scope = split_names(reduce, split_k, BM=bm, BN=bn, WARPS=warps, M=20, N=130)
        assert feasible("skinny", scope)
        fragments, threads = bn // warps // 16 * (bm // 8), 32 * warps
        piece = fragments * threads  # float4
        places = [
            (tile * slices(reduce, split_k) + s) * piece + fragment * threads + thread
            for tile, s in itertools.product(range(scope["TILES"]), range(slices(reduce, split_k)))
            for fragment, thread in itertools.product(range(fragments), range(threads))
        ]
        assert sorted(places) == list(range(eval(partials["bytes"], {}, scope) // 16))
        assert eval(partials["when"], {}, scope) == (reduce != "cluster" or split_k > 8)
        size = min(split_k, 8) if reduce == "cluster" else 1
        assert eval(counters["bytes"], {}, scope) == 4 * scope["TILES"] * size
        first, second = header("skinny")["step"]
        assert eval(first["grid"][0], {}, scope) == scope["TILES"] * split_k
        assert eval(second["grid"][0], {}, scope) * threads == scope["TILES"] * piece
        assert eval(second["when"], {}, scope) == (reduce == "workspace")


def test_one_block_per_tile_needs_no_workspace() -> None:
    for reduce in header("skinny")["parameters"]["REDUCE"]["values"]:
        scope = split_names(reduce, 1)
        assert not any(eval(w["when"], {}, scope) for w in header("skinny")["workspace"])
        assert not eval(header("skinny")["step"][1]["when"], {}, scope)


def test_a_cluster_shares_out_every_place_once() -> None:
    for size, piece, threads in itertools.product(range(2, 9), (32, 96, 128, 4096), (32, 128, 256)):
        share = -(-piece // size)
        taken = [
            place
            for rank, thread in itertools.product(range(size), range(threads))
            for place in range(rank * share + thread, min((rank + 1) * share, piece), threads)
        ]
        assert sorted(taken) == list(range(piece))


def test_clusters_need_hopper_and_room_for_their_sums() -> None:
    assert not feasible("skinny", {**split_names("cluster", 4), "compute_capability": 89})
    assert feasible("skinny", {**split_names("arrival", 4), "compute_capability": 80})
    assert not feasible("skinny", split_names("cluster", 12))
    full = {
        "BM": 128,
        "BN": 128,
        "BK": 128,
        "STAGES": 3,
        "WARPS": 8,
    }  # the ring leaves no room for three quarters of the sums
    assert feasible("skinny", split_names("arrival", 4, **full))
    assert not feasible("skinny", split_names("cluster", 4, **full))
    assert feasible("skinny", split_names("cluster", 4, BM=128, BN=128, BK=32, STAGES=2, WARPS=8))


@pytest.mark.parametrize("stages", values("skinny", "STAGES"))
def test_the_ring_keeps_a_slab_until_it_has_been_multiplied(stages: int) -> None:
    ring: list[int | None] = [*range(stages - 1), None]
    stage = 0
    for slab in range(3 * stages):
        ring[stage - 1 if stage else stages - 1] = slab + stages - 1
        assert ring[stage] == slab
        # Commits so far, less the stages - 2 that may be in flight, had landed before the refill.
        assert slab < slab + stages - 1 - (stages - 2)
        stage = 0 if stage + 1 == stages else stage + 1


def test_the_launch_asks_for_the_memory_of_its_tiles() -> None:
    for layout, scope in configs("skinny", "BM", "BN", "BK", "STAGES"):
        stage = sum(tile.rows * tile.stride for tile in tiles(layout, scope))
        assert eval(header("skinny")["step"][0]["smem_bytes"], {}, scope) == scope["STAGES"] * stage
        assert eval(header("skinny")["account"]["stage_bytes"], {}, scope) == stage


@pytest.mark.parametrize("kernel", ["skinny", "gemv"])
def test_the_default_fits_the_smallest_shared_memory(kernel: str) -> None:
    for size, layout in itertools.product(SIZES, header(kernel)["layouts"]):
        for m in range(1, 5):
            assert feasible(kernel, names(kernel, size, layout, SMALLEST_SMEM, M=m))


def test_only_atomic_adds_depend_on_which_block_comes_first() -> None:
    """Two sums added to zero make the same total in either order."""
    assert header("gemv").get("deterministic", True) is True
    for reduce, split_k in itertools.product(header("skinny")["parameters"]["REDUCE"]["values"], (1, 2, 3, 8)):
        depends = reduce == "atomic" and split_k > 2
        assert eval(header("skinny")["deterministic"], {}, split_names(reduce, split_k)) != depends


# ---- gemv


def lane_elements(width: int, split_k: int, unroll: int, part: int, lane: int, k_all: int) -> Iterator[int]:
    """The elements of K that one lane multiplies, in its order."""
    stride = split_k * 32 * width
    whole = k_all // width * width
    k = (part * 32 + lane) * width
    while k + (unroll - 1) * stride < whole:
        for u in range(unroll):
            yield from range(k + u * stride, k + u * stride + width)
        k += unroll * stride
    while k < whole:
        yield from range(k, k + width)
        k += stride
    if width > 1 and part == 0 and whole + lane < k_all:
        yield whole + lane


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("unroll", [1, 4, 16])
def test_lanes_and_parts_cover_k_once(width: int, unroll: int) -> None:
    for split_k in (1, 2, 8):
        span = 32 * width * split_k
        for k in (1, 17, span - 1, span, span * unroll, span * unroll + width + 1, 2 * span * unroll + span + 7):
            taken = Counter(
                itertools.chain.from_iterable(
                    lane_elements(width, split_k, unroll, part, lane, k) for part in range(split_k) for lane in LANES
                )
            )
            assert taken == Counter(range(k)), (width, split_k, unroll, k)


def test_the_sums_that_a_thread_adds_are_those_of_its_row() -> None:
    for _, scope in configs("gemv", "ROWS", "WARPS", "SPLIT_K"):
        rows, warps, split_k = scope["ROWS"], scope["WARPS"], scope["SPLIT_K"]
        written = {
            (warp // split_k * rows + r, warp % split_k): (warp, r) for warp in range(warps) for r in range(rows)
        }
        assert len(written) == warps * rows == scope["BLOCK_ROWS"] * split_k
        for row, part in itertools.product(range(scope["BLOCK_ROWS"]), range(split_k)):
            assert written[row, part] == (row // rows * split_k + part, row % rows)


def test_every_vector_width_divides_what_a_load_takes() -> None:
    for _, scope in configs("gemv", "VEC", "UNROLL", "ROWS"):
        assert scope["VEC"] % scope["sizeof_in"] == 0 and scope["VEC"] // scope["sizeof_in"] in (1, 2, 4, 8)
