"""Steps along an axis and clock notes: what is said, and that nothing is said where nothing was measured."""

from __future__ import annotations

from typing import Any

import pytest

from gemmsweep.analysis.steps import Side, explain
from gemmsweep.report import clocks
from gemmsweep.report.steps import step_lines

BEFORE = {
    "smem_bytes": 32768.0,
    "ctas_per_sm": 2.0,
    "occupancy_pct": 25.0,
    "gpm_any_tensor_util_pct": 61.0,
    "registers": 96.0,
}
AFTER = {**BEFORE, "smem_bytes": 65536.0, "ctas_per_sm": 1.0, "occupancy_pct": 12.5, "gpm_any_tensor_util_pct": 54.0}


def test_a_step_is_joined_to_what_changed_with_it() -> None:
    line = explain("BK", Side("32", BEFORE, "tensor"), Side("64", AFTER, "tensor"), -4.8)
    assert line == "BK 32→64: shared memory 32→64 KB, CTAs/SM 2→1, tensor 61→54%, −4.8%"


def test_small_changes_and_unmeasured_figures_say_nothing() -> None:
    after = {**BEFORE, "registers": 100.0, "gpm_any_tensor_util_pct": None, "smem_bytes": 32896.0}
    assert explain("BK", Side("32", BEFORE), Side("64", after), 0.2) == "BK 32→64: no difference (+0.2%)"
    assert "nothing that is counted" in explain("BK", Side("32", BEFORE), Side("64", after), 3.0)


def run(name: int, us: float, clock: float, joules: float | None = None, **more: Any) -> dict[str, Any]:
    return {
        "run_id": f"{name}", "status": "ok", "median_us": us, "config": {"BK": name}, "template": "mma", "joules": joules,
        "counters": {"sm_clock_mhz": {"value": clock}}, "problem": {}, "device": {}, "source_sha256": "x",
        "references": {}, **more,
    }  # fmt: skip


def test_only_neighbours_that_raced_are_compared() -> None:
    runs = [
        run(8, 100, 1980),
        {**run(16, 0, 0), "status": "compile", "median_us": None},
        run(32, 90, 1980),
        run(64, 99, 1980),
    ]
    (line,) = step_lines({"varied": "BK"}, runs)
    assert line.startswith("BK 32→64:")
    assert "−9.1%" in line
    assert step_lines({"varied": None}, runs) == []


OWN = {"sweep_id": "own", "varied": "BK", "regime": "own-power"}
EQUAL = {"sweep_id": "equal", "varied": "BK", "regime": "equal-clock"}


@pytest.mark.parametrize(("runs", "said"), [
    ([run(1, 100, 1485, 0.070), run(2, 104, 1428, 0.073)], "The difference is clock rather than kernel"),
    ([run(1, 100, 1485), run(2, 104, 1455)], "Part of the difference is clock"),
    ([run(1, 100, 1485), run(2, 104, 1485)], ""), ([run(1, 100, 1485), run(2, 100.2, 1400)], ""), ([run(1, 100, 1485)], ""),
])  # fmt: skip
def test_own_power_says_what_is_clock(runs: list[dict[str, Any]], said: str) -> None:
    text = clocks.note(OWN, runs)
    assert text.startswith(said)
    assert bool(text) == bool(said)


def test_energy_is_said_where_it_is_known() -> None:
    text = clocks.note(OWN, [run(1, 100, 1485, 0.070), run(2, 104, 1428, 0.0735)])
    assert "2 needs 5.0% more" in text


def test_a_tie_at_equal_clock_that_own_power_tells_apart_is_called_clock() -> None:
    no_clock = [run(1, 100, 0), run(2, 104, 0)]
    told = {}
    for verdict, ties in (("tie", ["1", "2"]), ("tie", ["1", "3"]), ("winner", []), ("undecided", ["1", "2"])):
        equal = {**EQUAL, "verdict": verdict, "ties": ties}
        told[verdict, *ties] = clocks.notes([(equal, [run(1, 100, 0), run(2, 100.1, 0)]), (OWN, no_clock)]).get(
            "own", ""
        )
    assert "At equal clock the two tie" in told.pop(("tie", "1", "2"))
    assert set(told.values()) == {""}


def test_unequal_clocks_in_an_equal_clock_race_are_named() -> None:
    assert "clocks were not equal" in clocks.note(EQUAL, [run(1, 100, 1485), run(2, 104, 1400)])
    assert clocks.note(EQUAL, [run(1, 100, 1485), run(2, 104, 1484)]) == ""
