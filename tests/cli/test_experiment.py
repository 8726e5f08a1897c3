"""An experiment file of two parts: planned, raced, and its claims judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from screen import Run

pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")

TABLE = """
summary  = "Two axes, each from the defaults."
template = "naive"
problems = ["96x64x48"]
start    = "defaults"
set      = { BM = 4 }
[[part]]
vary = "UNROLL=2,4"
[[part]]
vary = "ORDER"
set  = { BN = 16 }
[[claim]]
id      = "U"
claim   = "Two steps are a fifth faster than four."
measure = "speed"
of      = "UNROLL=2"
to      = "UNROLL=4"
where   = "varied=UNROLL"
expect  = ">= 1.15"
[[claim]]
id      = "O"
claim   = "Strided threads are as fast."
measure = "speed"
of      = "ORDER=strided"
to      = "ORDER=coalesced"
expect  = ">= 1"
[[claim]]
id      = "N"
claim   = "A value nobody raced."
measure = "registers"
of      = "UNROLL=16"
expect  = "<= 64"
"""
SCRIPT = "".join(
    f'[[rule]]\nmatch = "{match}"\ntime_us = {us}\nnoise_pct = 0.1\n'
    for match, us in (("UNROLL=4", 120), ("ORDER=strided", 300), ("cublas|UNROLL|ORDER|naive", 100))
)


def test_parts_are_planned_raced_and_judged(gemmsweep: Run, scripted: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(TABLE)
    plan = gemmsweep("run", "--experiment", str(path), "--dry-run", "--arch", "sm_90a")
    assert plan.code == 0
    assert "UNROLL=4" in plan.out and "ORDER=strided" in plan.out

    assert gemmsweep("run", "--experiment", str(path), "--device", scripted(SCRIPT)).code == 0
    sweeps = gemmsweep("report", "--experiment", "two", "--format", "json").json["sweeps"]
    assert [s["varied"] for s in sweeps if s["kind"] == "axis"] == ["UNROLL", "ORDER"]

    claims = {
        c["id"]: c
        for c in gemmsweep("report", "--claims", "--experiment", str(path), "--format", "json").json["claims"]
    }
    assert {name: c["verdict"] for name, c in claims.items()} == {"U": "holds", "O": "does not", "N": "not measured"}
    assert claims["U"]["measured"] == pytest.approx(1.2, rel=0.01)
    assert claims["U"]["ci95"][0] < claims["U"]["measured"] < claims["U"]["ci95"][1]
    shown = gemmsweep("report", "--claims", "--experiment", str(path))
    assert shown.code == 0 and "does not" in shown.out


def test_claims_want_a_known_experiment_and_no_columns(gemmsweep: Run, tmp_path: Path) -> None:
    silent = tmp_path / "silent.toml"
    silent.write_text('vary = "BK"')
    for arguments, message in (
        (("--experiment", str(silent)), "states no claims"),
        (("--experiment", "nothing"), "unknown experiment"),
        (("--columns", "status"), "fixed columns"),
        (("--format", "csv"), "unknown format 'csv'. Choose one of: table, json, md."),
    ):
        ran = gemmsweep("report", "--claims", *arguments)
        assert (ran.code, message in ran.err) == (2, True)
