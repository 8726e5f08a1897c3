"""How far launches of a kernel that is not deterministic lie apart: measured, stored, and never asked of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemmsweep import check, oracle
from gemmsweep.analysis.readings import from_check
from gemmsweep.model import Errors, Inputs, Problem

PROBLEM = Problem.of(8, 8, 16, "fp32", "nn", beta=1.0)


@pytest.fixture
def right() -> oracle.Oracle:
    return oracle.make_oracle(np, PROBLEM, Inputs())


def launches(monkeypatch: pytest.MonkeyPatch, *results: Any) -> None:
    """Each launch leaves the next of these in C."""
    left = list(results)
    monkeypatch.setattr(check, "run_once", lambda *_, **__: left.pop(0))


def test_the_largest_difference_is_in_units_of_the_bound(right: oracle.Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    first = right.expected.astype(np.float32)
    second = first.copy()
    second[3, 5] += np.float32(0.25 * right.allowed[3, 5])
    second[1, 1] += np.float32(0.125 * right.allowed[1, 1])
    device: Any = type("Device", (), {"xp": np})
    launches(monkeypatch, first, second)
    errors = check.check_twice(device, "k", right, deterministic=False, finite=False)
    assert errors.between_launches == pytest.approx(0.25, rel=0.1)
    (counter,) = from_check(errors)
    assert (counter.name, counter.basis) == ("between_launches", "check")
    launches(monkeypatch, first, first)
    assert check.check_twice(device, "k", right, deterministic=False, finite=False).between_launches == 0
    launches(monkeypatch, first, second)
    with pytest.raises(check.Incorrect, match="two launches on equal data differ"):
        check.check_twice(device, "k", right, deterministic=True, finite=False)


def test_nothing_is_said_where_bits_must_agree(right: oracle.Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = type("Device", (), {"xp": np})
    launches(monkeypatch, *[right.expected.astype(np.float32)] * 2)
    assert from_check(check.check_twice(device, "k", right, deterministic=True, finite=False)) == ()
    assert from_check(None) == from_check(Errors(0.0, 0.0)) == ()
