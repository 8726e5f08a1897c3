"""The index arithmetic of kernel_templates/mma.cu, mirrored in plain Python and checked by enumeration.

Nothing is imported from the package: the formulas here are a second opinion on those in the kernel.
"""

import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType

import pytest

TEMPLATE = Path(__file__).parents[2] / "kernel_templates" / "mma.cu"
LANES = range(32)
DTYPES = ("fp16", "tf32", "fp32")  # bf16 is laid out as fp16 is; fp32 is copied as it is and multiplied as fp16
H200, SMALLEST = 232448, 101376  # shared memory of a block, bytes


def header() -> dict:
    match = re.match(r"// /// gemmsweep\n(.*?)// ///\n", TEMPLATE.read_text(), re.DOTALL)
    assert match is not None
    return tomllib.loads("\n".join(line.removeprefix("//")[1:] for line in match[1].splitlines()))


HEADER = header()
VALUES = {name: parameter["values"] for name, parameter in HEADER["parameters"].items()}
DEFAULTS = {name: parameter["default"] for name, parameter in HEADER["parameters"].items()}


@cache
def compiled(expression: str) -> CodeType:
    return compile(expression, expression, "eval")


def names(dtype: str, layout: str, smem: int, **config: int | str) -> dict:
    """Every name that an expression of the header may use."""
    scope: dict = {"is_nt": int(layout == "nt"), "max_smem_bytes": smem, "M": 1000, "N": 1000, "K": 1000}
    scope.update({f"is_{name}": int(name == dtype) for name in ("fp32", "tf32", "fp16", "bf16")})
    scope["sizeof_in"] = 4 if dtype in ("fp32", "tf32") else 2
    for name, values in VALUES.items():
        scope.update({value: number for number, value in enumerate(values) if isinstance(value, str)})
        value = config.get(name, DEFAULTS[name])
        scope[name] = values.index(value) if isinstance(value, str) else value
    scope.update(floor_div=lambda a, b: a // b, ceil_div=lambda a, b: -(-a // b), min=min, max=max)
    for name, expression in HEADER["derived"].items():
        scope[name] = eval(compiled(expression), {}, scope)
    return scope


def feasible(scope: dict) -> bool:
    return all(eval(compiled(constraint["expr"]), {}, scope) for constraint in HEADER["constraints"])


@dataclass(frozen=True)
class Tile:
    """A tile in shared memory; offsets in bytes."""

    rows: int
    cols: int
    size: int  # of an element
    pad: int
    swizzle: int
    by_word: bool = False

    @property
    def chunks(self) -> int:
        return self.cols * self.size // 16

    @property
    def stride(self) -> int:
        return (self.cols + self.pad) * self.size

    def offset(self, row: int, chunk: int) -> int:
        if self.swizzle:
            period = min(8, self.chunks & -self.chunks)
            key = row // (8 // period) * (2 if self.by_word else 1)
            chunk ^= key % period
        return row * self.stride + chunk * 16


def tiles(layout: str, scope: dict, size: int) -> tuple[Tile, Tile]:
    """The tiles of A and B with elements of `size` bytes."""
    pad, swizzle = scope["PAD"], scope["SWIZZLE"]
    a = Tile(scope["BM"], scope["BK"], size, pad, swizzle)
    if layout == "nt":
        return a, Tile(scope["BN"], scope["BK"], size, pad, swizzle)
    return a, Tile(scope["BK"], scope["BN"], size, pad, swizzle, by_word=scope["ELEMENT_BYTES"] == 4)


def as_multiplied(layout: str, scope: dict) -> tuple[Tile, Tile]:
    """As ldmatrix reads them."""
    return tiles(layout, scope, scope["ELEMENT_BYTES"])


def as_copied(layout: str, scope: dict) -> tuple[Tile, Tile]:
    """As cp.async writes them."""
    return tiles(layout, scope, scope["sizeof_in"])


def configs(*varied: str) -> Iterator[tuple[str, dict]]:
    """Every feasible combination of the named parameters on an H200, the others at their defaults."""
    for dtype, layout in itertools.product(DTYPES, ("nn", "nt")):
        for values in itertools.product(*(VALUES[name] for name in varied)):
            scope = names(dtype, layout, H200, **dict(zip(varied, values, strict=True)))
            if feasible(scope):
                yield layout, scope


@cache
def all_tiles() -> set[Tile]:
    """Every tile of any feasible config: the smallest warps and one stage exclude the least."""
    found = set()
    for dtype, layout in itertools.product(DTYPES, ("nn", "nt")):
        for bm, bn, bk, pad, swizzle in itertools.product(*(VALUES[n] for n in ("BM", "BN", "BK", "PAD", "SWIZZLE"))):
            scope = names(dtype, layout, H200, BM=bm, BN=bn, BK=bk, PAD=pad, SWIZZLE=swizzle, STAGES=1, WM=32, WN=32)
            if feasible(scope):
                found.update(as_multiplied(layout, scope))
    return found


def ways(addresses: list[int], width: int) -> int:
    """Cycles that 32 banks of 4 bytes need for one access of `width` bytes at each address; 1 is conflict-free."""
    words = {(address + i) // 4 for address in addresses for i in range(0, width, 4)}
    return max(Counter(word % 32 for word in words).values())


def read_ways(tile: Tile) -> int:
    """The worst conflict when a warp reads fragments."""
    if tile.by_word:  # lane i reads the word in row i % 4, column i / 4
        return max(
            ways([tile.offset(row + i % 4, (col + i // 4) // 4) + (col + i // 4) % 4 * 4 for i in LANES], 4)
            for row in range(0, tile.rows, 4)
            for col in range(0, tile.cols, 8)
        )
    # ldmatrix reads one chunk in each of eight consecutive rows at a time
    return max(
        ways([tile.offset(row + i, chunk) for i in range(8)], 16)
        for row in range(0, tile.rows, 8)
        for chunk in range(tile.chunks)
    )


def write_ways(tile: Tile) -> int:
    """The worst conflict when eight lanes at a time write 16 bytes each, along the rows."""
    order = [tile.offset(i // tile.chunks, i % tile.chunks) for i in range(tile.rows * tile.chunks)]
    return max(ways(order[i : i + 8], 16) for i in range(0, len(order), 8))


def test_the_layout_is_a_bijection_whatever_the_padding_and_swizzle() -> None:
    found = all_tiles()
    assert {(t.pad, t.swizzle) for t in found} == set(itertools.product(VALUES["PAD"], VALUES["SWIZZLE"]))
    for tile in found:
        offsets = {tile.offset(row, chunk) for row in range(tile.rows) for chunk in range(tile.chunks)}
        assert len(offsets) == tile.rows * tile.chunks, tile
        assert all(offset % 16 == 0 and offset % tile.stride < tile.cols * tile.size for offset in offsets), tile
        assert max(offsets) < tile.rows * tile.stride, tile


def test_the_launch_asks_for_the_memory_of_its_tiles() -> None:
    for layout, scope in configs("BM", "BN", "BK", "STAGES", "PAD"):
        stage = sum(tile.rows * tile.stride for tile in as_copied(layout, scope))
        for step in HEADER["step"][1:]:
            assert eval(compiled(step["smem_bytes"]), {}, scope) == scope["STAGES"] * stage
        assert eval(compiled(HEADER["account"]["stage_bytes"]), {}, scope) == stage


def test_swizzle_alone_removes_every_bank_conflict() -> None:
    swizzled = [tile for tile in all_tiles() if tile.swizzle and not tile.pad]
    assert any(tile.by_word for tile in swizzled)
    for tile in swizzled:
        assert (read_ways(tile), write_ways(tile)) == (1, 1), tile


def test_padding_by_an_odd_number_of_chunks_removes_every_read_conflict() -> None:
    for tile in all_tiles():
        if not tile.swizzle and not tile.by_word and tile.pad * tile.size == 16:
            assert read_ways(tile) == 1, tile


def test_tf32_read_by_word_wants_twice_that_padding() -> None:
    for tile in all_tiles():
        if not tile.swizzle and tile.by_word:
            assert read_ways(tile) == {0: 4, 4: 2, 8: 1, 16: 2}[tile.pad], tile


@pytest.mark.parametrize(
    ("rows", "cols", "pad", "expected"),
    [(128, 16, 0, 2), (128, 32, 0, 4), (128, 64, 0, 8), (32, 128, 0, 8), (128, 64, 8, 1), (128, 64, 16, 2)],
)
def test_conflicts_of_plain_fp16_rows(rows: int, cols: int, pad: int, expected: int) -> None:
    """The claim of the article: rows of 128 bytes or more collide 8 ways, a few elements of padding end that."""
    assert read_ways(Tile(rows, cols, 2, pad, swizzle=0)) == expected


def test_swizzle_and_padding_together_undo_each_other() -> None:
    assert read_ways(Tile(128, 64, 2, pad=8, swizzle=0)) == 1
    assert read_ways(Tile(128, 64, 2, pad=8, swizzle=1)) > 1


def test_threads_copy_every_unit_of_a_tile_once() -> None:
    shapes = {
        (tile.rows, tile.cols, tile.size, scope["THREADS"])
        for layout, scope in configs("BM", "BN", "BK", "WM", "WN")
        for tile in as_copied(layout, scope)
    }
    for (rows, cols, size, threads), unit in itertools.product(shapes, (16, 4, 2)):
        if unit < size:
            continue
        width = unit // size
        across = min(cols // width, threads & -threads)
        down = threads // across
        copied = Counter(
            (row0 + row, col0 + col)
            for row0, col0 in ((thread // across, thread % across * width) for thread in range(threads))
            for col in range(0, cols, across * width)
            for row in range(0, rows, down)
            if row0 + row < rows
        )
        assert len(copied) == rows * (cols // width) and set(copied.values()) == {1}, (rows, cols, size, threads, unit)


def test_warps_and_lanes_cover_the_block_tile_once() -> None:
    for bm, bn, wm, wn in {(s["BM"], s["BN"], s["WM"], s["WN"]) for _, s in configs("BM", "BN", "WM", "WN")}:
        assert wm % 16 == 0 and wn % 16 == 0  # ldmatrix fetches two n8 tiles of B at once
        warps = bm // wm * (bn // wn)
        pairs = Counter(
            (warp // (bn // wn) * wm + 16 * i + 8 * half + lane // 4, warp % (bn // wn) * wn + 8 * j + lane % 4 * 2)
            for warp, lane, i, half, j in itertools.product(
                range(warps), LANES, range(wm // 16), (0, 1), range(wn // 8)
            )
        )
        assert len(pairs) == bm * bn // 2 and set(pairs.values()) == {1}, (bm, bn, wm, wn)


@pytest.mark.parametrize("group", VALUES["GROUP_M"])
def test_rasterisation_visits_every_tile_once(group: int) -> None:
    for tiles_m, tiles_n in itertools.product((1, 2, 3, 7, 8, 17, 33), (1, 2, 5, 12)):
        group_m = min(group, tiles_m)
        visited = set()
        for block in range(tiles_m * tiles_n):
            first, in_group = block // (group_m * tiles_n) * group_m, block % (group_m * tiles_n)
            height = min(group_m, tiles_m - first)
            visited.add((first + in_group % height, in_group // height))
        assert visited == set(itertools.product(range(tiles_m), range(tiles_n)))


def test_the_default_fits_the_smallest_shared_memory() -> None:
    for dtype, layout in itertools.product(DTYPES, ("nn", "nt")):
        assert feasible(names(dtype, layout, SMALLEST))


def test_fp32_becomes_fp16_within_its_own_stage() -> None:
    """Threads read a whole tile of fp32 by vectors, then write it as fp16 at the same place, each element once."""
    for layout, scope in configs("BM", "BN", "BK", "STAGES", "PAD"):
        if not scope["is_fp32"]:
            continue
        for wide, narrow in zip(as_copied(layout, scope), as_multiplied(layout, scope), strict=True):
            assert narrow.rows * narrow.stride <= wide.rows * wide.stride
            across = wide.cols // 4
            written = {
                narrow.offset(vector // across, vector % across * 4 // 8) + vector % across * 4 % 8 * 2
                for vector in range(wide.rows * across)
            }
            assert len(written) == wide.rows * across and all(offset % 8 == 0 for offset in written)


@pytest.mark.parametrize("bk", VALUES["BK"])
def test_sums_in_fp16_of_a_scaled_slab_stay_in_range(bk: int) -> None:
    top = 4 if bk <= 32 else 3  # factors are below 2^(top + 1)
    assert bk * 2 ** (2 * (top + 1)) <= 2**15


@pytest.mark.parametrize("size", [2, 4])
def test_the_padded_copy_writes_every_vector_once(size: int) -> None:
    """Blocks of 1024 vectors over rows of any number of vectors; the mirror of pad_copy in include/pad_copy.cuh."""
    for rows, width in ((1, 1), (7, 2), (130, 5), (3, 1024), (65, 513), (2, 3000)):
        blocks = -(-rows * width * 16 // 16384)  # pad_blocks, whatever the size of an element
        written = Counter()
        for block in range(blocks):
            first_row, first_col = divmod(block * 1024, width)
            for vector in range(first_col, first_col + 1024):
                row, col = first_row + vector // width, vector % width
                if row < rows:
                    written[row, col * 16 // size] += 1
        assert len(written) == rows * width and set(written.values()) == {1}


@pytest.mark.parametrize("shift", range(16))
def test_the_padded_copy_shifts_two_vectors_into_one(shift: int) -> None:
    data = bytes(range(32))
    w = [int.from_bytes(data[i : i + 4], "little") for i in range(0, 32, 4)]
    for bit, words in ((8, 2), (4, 1)):
        w = [w[i + words] if shift & bit else w[i] for i in range(len(w) - words)]
    out = [(w[i] | w[i + 1] << 32) >> (shift & 3) * 8 & 0xFFFFFFFF for i in range(4)]
    assert b"".join(word.to_bytes(4, "little") for word in out) == data[shift : shift + 16]
