"""Buffer sets: alignment, guard bands, and how many a cold burst needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gemmsweep.device.layout import ALIGNMENT, GUARD_BYTES, RingPlan, SetLayout
from gemmsweep.model import Problem

sizes = st.integers(1, 5000)


@given(sizes, sizes, sizes, st.sampled_from(["fp32", "tf32", "fp16", "bf16"]), st.sampled_from(["nn", "nt"]), sizes)
def test_operands_are_aligned_apart_and_guarded(m: int, n: int, k: int, dtype: str, layout: str, pad: int) -> None:
    problem = Problem.of(m, n, k, dtype, layout, ldd=n + pad)
    places = SetLayout.of(problem)
    assert places.b_offset >= m * problem.lda * problem.sizeof_in
    assert places.guard_offset >= places.b_offset + problem.b_rows * problem.ldb * problem.sizeof_in
    assert places.c_offset - places.guard_offset == GUARD_BYTES
    c_end = places.c_offset + m * problem.ldd * problem.sizeof_out
    assert places.guard_offset + places.guarded_elements * problem.sizeof_out == c_end + GUARD_BYTES
    assert places.stride_bytes >= c_end + GUARD_BYTES
    for offset in (places.b_offset, places.guard_offset, places.c_offset, places.stride_bytes):
        assert offset % ALIGNMENT == 0


def test_sizes_beyond_32_bits() -> None:
    places = SetLayout.of(Problem.of(65536, 65536, 65536, "fp16"))
    assert places.stride_bytes > 3 * 2**33


def test_cold_bursts_touch_a_set_once() -> None:
    plan = RingPlan(set_bytes=2**20, cache_bytes=50 * 2**20, budget_bytes=2**30, hot=False)
    assert plan.scrubs
    assert (plan.launches(100), plan.sets(100)) == (100, 100)
    assert plan.launches(5000) == 1024  # memory ends: a shorter burst, never a set touched twice


def test_one_set_serves_hot_and_large_problems() -> None:
    for plan in (RingPlan(2**20, 2**20, 2**30, hot=True), RingPlan(2**28, 2**26, 2**30, hot=False)):
        assert not plan.scrubs
        assert (plan.launches(1000), plan.sets(1000)) == (1000, 1)


def test_a_set_larger_than_the_budget_still_launches() -> None:
    assert RingPlan(2**20, 2**20, 2**10, hot=False).launches(7) == 1
