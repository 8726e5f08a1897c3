"""How far launches of a kernel that is not deterministic lie apart: measured, stored, and never asked of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_kernel

from gemmsweep import aftermath, check, lineup, oracle
from gemmsweep.analysis.readings import from_check
from gemmsweep.entry import Candidate
from gemmsweep.model import Checked, Errors, Inputs, Launch, Problem
from gemmsweep.record import Attempt
from gemmsweep.template.header import load_template

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


class Worker:
    """Finds the same whenever it is asked, and counts how often."""

    def __init__(self, apart: float | None) -> None:
        self.found, self.checks, self.entered = Checked("ok", errors=Errors(0.5, 1e-7, between_launches=apart)), 0, 0

    def check(self, *_: Any) -> Checked:
        self.checks += 1
        return self.found

    def recheck(self, *_: Any) -> Checked:
        return self.found

    def enter(self, *_: Any) -> None:
        self.entered += 1


def session_of(worker: Worker) -> Any:
    return SimpleNamespace(worker=worker, verified={}, burst_ms=1.0)


def candidate(path: Path, *, deterministic: bool, errors: Errors | None) -> Candidate:
    template = load_template(small_kernel.write(path / "k.cu", "", ""))
    attempt = Attempt("k", "config", "ok", template.name, template.source_sha256, {}, errors=errors)
    return Candidate(template, attempt, launch=Launch((), deterministic=deterministic))


@pytest.mark.parametrize(
    ("before", "after", "kept"), [(0.25, 0.5, 0.5), (0.5, 0.25, 0.5), (None, 0.25, 0.25), (None, None, None)]
)
def test_the_race_is_followed_by_the_larger_of_both_checks(
    tmp_path: Path, before: float | None, after: float | None, kept: float | None
) -> None:
    raced = candidate(tmp_path, deterministic=False, errors=Errors(0.125, 2e-7, 3e-7, before))
    again = aftermath.recheck(session_of(Worker(after)), raced)
    assert again.attempt.errors == Errors(0.125, 2e-7, 3e-7, kept)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_resumed_race_checks_again_what_may_differ(tmp_path: Path, deterministic: bool) -> None:
    stored = candidate(tmp_path, deterministic=deterministic, errors=Errors(0.5, 1e-7))
    fresh = replace(stored, attempt=replace(stored.attempt, errors=None))
    session, earlier = session_of(worker := Worker(0.25)), SimpleNamespace(attempts={"k": stored.attempt})
    found: Any = [lineup.enter(session, fresh, earlier) for _ in range(2)]
    assert (worker.checks, worker.entered) == ((0, 2) if deterministic else (1, 1))
    apart = None if deterministic else 0.25
    assert [one.attempt.errors.between_launches for one in found] == [apart, apart]
