"""`gemmsweep profile` where ncu is missing, and with a file made elsewhere."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from screen import Run

from gemmsweep.counters import ncu

pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")
DATA = Path(__file__).parent.parent / "data" / "ncu"


@pytest.fixture
def swept(gemmsweep: Run, scripted: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(ncu, "find", lambda: None)
    device = scripted('[[rule]]\nmatch = "UNROLL|naive"\ntime_us = 90\n[[rule]]\ntime_us = 100\n')
    ran = gemmsweep("run", "--template", "naive", "--shape", "96x64x48", "--vary", "UNROLL=1,2", "--device", device)
    assert ran.code == 0
    return gemmsweep


def test_without_ncu_there_is_advice_and_the_account_remains(swept: Run) -> None:
    ran = swept("profile", "best")
    assert ran.code == 1
    assert re.match(r"[0-9a-f]{8} naive BM=.* UNROLL=\d .*, 96x64x48 fp32 nn\n", ran.out)
    assert "ncu is not installed" in ran.err
    assert "ctas_per_sm" in ran.out
    assert "account" in ran.out


def test_counters_made_elsewhere_join_the_run(swept: Run) -> None:
    run_id = swept("report", "--last", "--format", "json").json["runs"][0]["run_id"]
    ran = swept("profile", run_id, "--import", str(DATA / "raw.csv"))
    assert ran.code == 0
    assert "57344" in ran.out
    counters = swept("show", "run", run_id, "--format", "json").json["counters"]
    assert counters["smem_ld_conflicts"] == {"value": 57344, "unit": "conflicts", "basis": "ncu"}
    assert counters["stall_wait_pct"]["value"] is None
    assert counters["waves"]["basis"] == "account"


def test_what_cannot_be_profiled_so_is_refused(swept: Run, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "results.db") as book:
        (reference,) = book.execute("SELECT run_id FROM runs WHERE role = 'reference'").fetchone()
    book.close()
    ran = swept("profile", reference, "--import", str(DATA / "raw.csv"))
    assert (ran.code, "is of the reference cublas" in ran.err) == (2, True)
    plan = ("--dry-run", "--arch", "sm_90a")
    assert "is of the reference" in swept("run", "--template", "naive", "--vary", "BM", "--start", reference, *plan).err
    run_id = swept("report", "--last", "--format", "json").json["runs"][0]["run_id"]
    ran = swept("profile", run_id, "--dtype", "bf16", "--template", "nope", "--import", str(DATA / "raw.csv"))
    assert (ran.code, "--dtype, --template choose among the best" in ran.err) == (2, True)


def test_files_without_counters_and_unknown_runs(swept: Run, tmp_path: Path) -> None:
    empty = tmp_path / "x.csv"
    empty.write_text("==PROF== No kernels were profiled.\n")
    assert "holds no counters" in swept("profile", "best", "--import", str(empty)).err
    for text in (
        '"ID"\n"\n0', '"IDX","Metric Name"\n"0"', '"ID","Metric Name","Metric Value"\n"0","x","' + "9" * 200_000 + '"\n',
    ):  # fmt: skip
        empty.write_text(text)
        ran = swept("profile", "best", "--import", str(empty))
        assert (ran.code, "holds no counters" in ran.err) == (1, True)
    assert swept("profile", "best", "--import", "/dev/zero").code == 2
    report = tmp_path / "x.ncu-rep"
    report.write_bytes(b"NVR")
    assert "--page raw" in swept("profile", "best", "--import", str(report)).err
    assert swept("profile", "best", "--import", "nowhere.csv").code == 2
    assert swept("profile", "ffffffff").code == 2
    assert swept("profile", "best", "--shape", "1x1x1").code == 1
    assert swept("profile", "best", "--layout", "nt").code == 1
