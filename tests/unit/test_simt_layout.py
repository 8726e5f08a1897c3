"""Who touches what in kernel_templates/simt.cu: its index arithmetic, mirrored here and enumerated (no GPU needed)."""

import itertools
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

Config = dict[str, int]

TEMPLATE = Path(__file__).parents[2] / "kernel_templates" / "simt.cu"
FUNCTIONS = {"min": min, "max": max, "ceil_div": lambda a, b: -(-a // b), "floor_div": lambda a, b: a // b}
PLACES = {"sizeof_in": 4, "max_smem_bytes": 232_448, "compute_capability": 90}
ENUMERATED = {"registers": 0, "async": 1, "predicate": 0, "pad": 1, "tail": 2}
SHAPE = dict.fromkeys(("M", "N", "K", "lda", "ldb"), 1)
LAYOUT = ("BM", "BN", "BK", "WM", "WN", "TM", "TN", "PAD", "SWIZZLE", "VEC", "COPY")
"""The parameters that decide where an element lies; REGISTERS takes the most a block can have, the others one value."""


@cache
def header() -> dict:
    text = TEMPLATE.read_text().split("// ///")[1].split("gemmsweep", 1)[1]
    return tomllib.loads("\n".join(line.removeprefix("//") for line in text.splitlines()))


@cache
def rules() -> tuple[list, list]:
    derived = [(name, compile(text, name, "eval")) for name, text in header()["derived"].items()]
    return derived, [compile(rule["expr"], rule["why"], "eval") for rule in header()["constraints"]]


@cache
def stages(names: tuple[str, ...]) -> list[tuple[list, list]]:
    """The derived values and the rules that can be told once each of `names` is known, in that order."""
    derived, constraints = (list(part) for part in rules())
    known, found = {*FUNCTIONS, *PLACES, *ENUMERATED, *SHAPE}, []
    for name in names:
        known.add(name)
        values = []
        for one in derived[:]:
            if set(one[1].co_names) <= known:
                values.append(one)
                known.add(one[0])
                derived.remove(one)
        told = [rule for rule in constraints if set(rule.co_names) <= known]
        constraints = [rule for rule in constraints if rule not in told]
        found.append((values, told))
    assert not derived and not constraints
    return found


def grown(config: Config, name: str, value: int, derived: list, told: list) -> Config | None:
    """The config with one value more and what follows from it; None where that breaks a rule."""
    config = {**config, name: value}
    for derived_name, expression in derived:
        config[derived_name] = eval(expression, FUNCTIONS, config)
    return config if all(eval(rule, FUNCTIONS, config) for rule in told) else None


@cache
def feasible_configs() -> tuple[Config, ...]:
    """Value by value, so that whatever breaks a rule is left at once."""
    values = {name: header()["parameters"][name]["values"] for name in LAYOUT} | {"STAGES": [1], "UNROLL": [1]}
    found: list[Config] = [PLACES | ENUMERATED | SHAPE]
    names = ("STAGES", "UNROLL", *LAYOUT, "REGISTERS")
    for name, (derived, told) in zip(names, stages(names), strict=True):
        most = name == "REGISTERS"
        found = [
            kept
            for config in found
            for value in ([min(255, 65_536 // max(config["THREADS"], 1))] if most else values[name])
            if (kept := grown(config, name, value, derived, told)) is not None
        ]
    return tuple(found)


def distinct(*names: str) -> Iterator[Config]:
    """One feasible config for each combination of these values."""
    seen = set()
    for config in feasible_configs():
        key = tuple(config[name] for name in names)
        if key not in seen:
            seen.add(key)
            yield config


@dataclass(frozen=True)
class Slab:
    """Who copies what: Slab of the template, for one operand."""

    c: Config
    side: str
    transpose: bool

    @property
    def width(self) -> int:
        return 1 if self.transpose and self.c["COPY"] == ENUMERATED["async"] else self.c["VEC"]

    @property
    def run(self) -> int:
        return min(self.c["BK"] // self.width, 8) if self.transpose else self.c[self.side] // self.width

    def k_x(self, i: int) -> tuple[int, int]:
        """Where copy number i of the block's begins."""
        rows = self.c[self.side] if self.transpose else self.c["BK"]
        row, column = i // self.run % rows, (i % self.run + i // (self.run * rows) * self.run) * self.width
        return (column, row) if self.transpose else (row, column)

    @property
    def copies(self) -> int:
        """Of the block; thread t takes t, t + THREADS, ..."""
        return self.c[self.side] * self.c["BK"] // self.width


def swizzle(c: Config, k: int) -> int:
    slab = Slab(c, "BM", True)
    return k // slab.width * (32 // slab.run) % 32 if c["SWIZZLE"] else 0


def spread(i: int, t: int, lanes: int) -> int:
    return i // t * (t * lanes) + i % t


def lane_place(c: Config, lane: int) -> tuple[int, int]:
    half = lane >> 4 << 2
    lane_m = (lane >> 1 & 3) + (half if c["LANES_M"] == 8 else 0)
    lane_n = (lane & 1) + (lane >> 3 & 1) * 2 + (half if c["LANES_N"] == 8 else 0)
    return lane_m, lane_n


def thread_place(c: Config, thread: int) -> tuple[int, int]:
    lane_m, lane_n = lane_place(c, thread % 32)
    warps_n = c["BN"] // c["WN"]
    warp = thread // 32
    return warp // warps_n * c["WM"] + lane_m * c["TM"], warp % warps_n * c["WN"] + lane_n * c["TN"]


def test_the_declared_values_allow_many_configs() -> None:
    assert len(feasible_configs()) > 1000
    defaults = {name: p["default"] for name, p in header()["parameters"].items()}
    names = tuple(defaults)
    config: Config | None = PLACES | ENUMERATED | SHAPE
    for name, (derived, told) in zip(names, stages(names), strict=True):
        assert config is not None
        config = grown(config, name, ENUMERATED.get(defaults[name], defaults[name]), derived, told)
    assert config is not None


@pytest.mark.parametrize("side", ["BM", "BN"])
def test_the_swizzle_is_a_bijection_of_the_slab(side: str) -> None:
    for c in distinct(side, "BK", "PAD", "SWIZZLE", "VEC", "COPY"):
        width = c[side]
        places = {k * (width + c["PAD"]) + (x ^ swizzle(c, k)) for k in range(c["BK"]) for x in range(width)}
        assert len(places) == c["BK"] * width
        assert max(places) < c["BK"] * (width + c["PAD"])
        assert all(place % (width + c["PAD"]) < width for place in places), "an element lies in the padding"


def test_the_swizzle_keeps_vectors_whole() -> None:
    for c in distinct("BK", "SWIZZLE", "VEC", "COPY"):
        assert all(swizzle(c, k) % c["VEC"] == 0 and swizzle(c, k) < 32 for k in range(c["BK"]))


def test_a_transposing_store_of_a_warp_has_no_bank_conflict() -> None:
    """Swizzled; or one float at a time, padded by four."""
    for c in distinct("BM", "BK", "SWIZZLE", "VEC", "PAD", "COPY"):
        slab = Slab(c, "BM", True)
        if (c["SWIZZLE"], c["PAD"]) != (1, 0) and (c["SWIZZLE"], c["PAD"], slab.width) != (0, 4, 1):
            continue
        for j in range(slab.width):
            places = [slab.k_x(lane) for lane in range(32)]
            banks = {((k + j) * (c["BM"] + c["PAD"]) + (x ^ swizzle(c, k + j))) % 32 for k, x in places}
            assert len(banks) == 32 // (1 if slab.run == 8 or c["SWIZZLE"] else 8 // slab.run)


@pytest.mark.parametrize(("axis", "side", "warp", "t"), [(0, "BM", "WM", "TM"), (1, "BN", "WN", "TN")])
def test_split_addresses_equal_the_definition(axis: int, side: str, warp: str, t: str) -> None:
    """Slab::at() computes (x ^ low) + high; that holds because x and c share no bit."""
    for c in distinct(side, warp, t, "LANES_M", "VEC"):
        lanes, count = (c["LANES_M"], c["THREAD_M"]) if axis == 0 else (c["LANES_N"], c["THREAD_N"])
        offsets = [spread(i, c[t], lanes) for i in range(0, count, c["VEC"])]
        for x in {thread_place(c, thread)[axis] for thread in range(c["THREADS"])}:
            for offset, flipped in itertools.product(offsets, range(0, 32, c["VEC"])):
                flip = offset ^ flipped
                assert (x ^ flip % 32) + flip // 32 * 32 == (x + offset) ^ flipped


def test_every_element_of_a_slab_is_copied_once() -> None:
    for side, transpose in (("BM", True), ("BN", False), ("BN", True)):
        for c in distinct(side, "BK", "VEC", "COPY"):
            slab = Slab(c, side, transpose)
            places = [slab.k_x(i) for i in range(slab.copies)]
            assert len(set(places)) == slab.copies
            assert max(k for k, _ in places) + (slab.width if slab.transpose else 1) == c["BK"]
            assert max(x for _, x in places) + (1 if slab.transpose else slab.width) == c[slab.side]


def test_a_thread_finds_its_later_copies_by_adding() -> None:
    for c in distinct("BM", "BN", "BK", "THREADS", "VEC", "COPY"):
        for slab in (Slab(c, "BM", True), Slab(c, "BN", False), Slab(c, "BN", True)):
            for first, thread in itertools.product(range(0, slab.copies, c["THREADS"]), (1, 7, c["THREADS"] - 1)):
                added = tuple(map(sum, zip(slab.k_x(first), slab.k_x(thread), strict=True)))
                assert slab.k_x(first + thread) == added


def test_warps_and_threads_cover_the_block_tile_once() -> None:
    for c in distinct("BM", "BN", "WM", "WN", "TM", "TN"):
        rows = [spread(i, c["TM"], c["LANES_M"]) for i in range(c["THREAD_M"])]
        columns = [spread(j, c["TN"], c["LANES_N"]) for j in range(c["THREAD_N"])]
        # Rows and columns are independent, so each thread's part is a product: places must be distinct, parts disjoint.
        parts = [thread_place(c, thread) for thread in range(c["THREADS"])]
        row_sets = {m: frozenset(m + r for r in rows) for m, _ in parts}
        column_sets = {n: frozenset(n + s for s in columns) for _, n in parts}
        assert len(set(parts)) == c["THREADS"] == len(row_sets) * len(column_sets)
        for sets, width in ((row_sets, c["BM"]), (column_sets, c["BN"])):
            assert sorted(itertools.chain(*sets.values())) == list(range(width))


def test_fragment_reads_share_vectors_in_the_pairs_the_hardware_merges() -> None:
    for c in distinct("LANES_M", "LANES_N"):
        places = [lane_place(c, lane) for lane in range(32)]
        assert len(set(places)) == 32
        for lane in range(32):
            assert places[lane][0] == places[lane ^ 1][0]
            assert places[lane][1] == places[lane ^ 2][1]
        assert math.prod(1 + max(axis) for axis in zip(*places, strict=True)) == 32
