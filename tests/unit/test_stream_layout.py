"""The index arithmetic of kernel_templates/stream.cu, mirrored in plain Python and checked by enumeration."""

import itertools
from collections import Counter

import pytest

LANES = range(32)
RUN, WIDTH = 32, 8  # elements of K that a warp takes at a time, and a lane of them


def fragment(lane: int, register: int) -> tuple[int, int]:
    """Row and first of two K that PTX gives a register of the 16 x 16 operand of m16n8k16, elements of 2 bytes."""
    return lane // 4 + register % 2 * 8, lane % 4 * 2 + register // 2 * 8


def taken(lane: int, pair: int, register: int) -> tuple[int, int]:
    """Row of B and first of two elements of a run that the kernel puts into that register in the multiply `pair`."""
    half, word = register % 2, pair + register // 2
    return lane // 4 + 8 * half, lane % 4 * WIDTH + 2 * word


@pytest.mark.parametrize("pair", [0, 2])
def test_both_operands_have_the_same_order_of_k(pair: int) -> None:
    """Where PTX wants the same K of a row of B and of a token, the kernel gives the same element of both."""
    place_of: dict[int, int] = {}
    for lane, register in itertools.product(LANES, range(4)):
        row, k = fragment(lane, register)
        kernel_row, element = taken(lane, pair, register)
        assert kernel_row == row
        assert place_of.setdefault(k, element) == element
    for lane, register in itertools.product(LANES, range(2)):  # the 8 wide operand: token lane / 4
        assert place_of[lane % 4 * 2 + register * 8] == lane % 4 * WIDTH + 2 * (pair + register)


def test_two_multiplies_take_every_element_of_a_run_once() -> None:
    elements = Counter(
        (row, first + i)
        for pair, lane, register, i in itertools.product((0, 2), LANES, range(4), range(2))
        for row, first in [taken(lane, pair, register)]
    )
    assert elements == Counter(itertools.product(range(16), range(RUN)))


@pytest.mark.parametrize("unroll", [1, 2, 8])
@pytest.mark.parametrize("split_k", [1, 4, 16])
@pytest.mark.parametrize("aligned", [True, False])
def test_warps_and_lanes_cover_k_once(unroll: int, split_k: int, aligned: bool) -> None:
    for k_all in (1, 17, 31, 32, 33, 4096, 32 * unroll * split_k + 40, 3 * 32 * unroll * split_k - 1):
        runs = k_all // RUN if aligned else 0
        batches = runs // unroll
        found: Counter[int] = Counter()
        for part in range(split_k):
            mine = [b * unroll + u for b in range(part, batches, split_k) for u in range(unroll)]
            mine += range(batches * unroll + part, runs, split_k)
            mine += range(runs + part, -(-k_all // RUN), split_k)
            found.update(k for run in mine for k in range(run * RUN, min(run * RUN + RUN, k_all)))
        assert found == Counter(range(k_all))


def test_every_element_of_a_block_is_stored_once() -> None:
    for warps, split_k, n_tiles, m_tiles in itertools.product((2, 8), (1, 2), (1, 2, 4), (1, 3, 8)):
        rows, places = 16 * n_tiles, n_tiles * m_tiles * 32
        stored: Counter[tuple[int, int]] = Counter()
        for i in range(warps // split_k * places):
            group, place = divmod(i, places)
            row = group * rows + place // 32 // m_tiles * 16 + place % 32 // 4
            token = place // 32 % m_tiles * 8 + place % 4 * 2
            stored.update([(row, token), (row, token + 1), (row + 8, token), (row + 8, token + 1)])
        assert stored == Counter(itertools.product(range(rows * warps // split_k), range(8 * m_tiles)))
