"""Sentences and numbers of reports."""

from __future__ import annotations

import math
from typing import Any

import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from gemmsweep.report import against, families, figures, verdicts, words
from gemmsweep.report.columns import sweep_grid


@given(st.floats(1e-6, 1e12))
def test_four_significant_digits_and_never_an_exponent(value: float) -> None:
    text = figures.significant(value)
    assert "e" not in text
    assert math.isclose(float(text), value, rel_tol=5.1e-4)
    if value < 9999:
        assert len(text.replace(".", "").lstrip("0")) == 4


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_was_not_measured_is_a_dash_and_never_zero(value: float | None) -> None:
    for show in (figures.significant, figures.percent, figures.whole, figures.trimmed, figures.kilobytes):
        assert show(value) == "–"
    assert figures.registers(None) == figures.registers({"registers": None, "spill_bytes": None}) == "–"


def test_spills_stand_beside_the_registers() -> None:
    assert figures.registers({"registers": 168, "spill_bytes": 24}) == "168 +24B"
    assert figures.registers({"registers": 168, "spill_bytes": 0}) == "168"


@given(st.text())
def test_cleaned_names_are_one_line_without_controls(text: str) -> None:
    assert figures.clean(text).isprintable()


def test_colours_of_a_compiler_do_not_reach_the_terminal() -> None:
    assert figures.first_line("\n \x1b[1;31merror:\x1b[0m no\x00pe\r\nnext") == "error: no?pe"
    assert figures.clean("a\u202eb\nc") == "a?b c"


@pytest.mark.parametrize(
    ("ratio", "interval", "phrase"),
    [
        (1.0312, [1.03, 1.032], "1.03× cuBLAS (faster)"),
        (0.97, [0.96, 0.98], "0.97× cuBLAS (slower)"),
        (1.0004, [0.999, 1.002], "1.00× cuBLAS (not told apart)"),
        (0.9962, [0.995, 0.997], "0.996× cuBLAS (within 0.5%)"),
        (1.0046, [1.0044, 1.0048], "1.005× cuBLAS (within 0.5%)"),
        (1.0054, [1.005, 1.006], "1.01× cuBLAS (faster)"),
        (0.0521, [0.052, 0.0522], "0.052× cuBLAS (slower)"),
        (2.5, None, "2.50× cuBLAS (not told apart)"),
        (9.48, [1.9, 64.0], "1.9–64× cuBLAS (unstable)"),
        (2.48, [0.4, 6.0], "0.40–6.0× cuBLAS (not told apart)"),
        (9.48, [1.9, 96.0], "no figure against cuBLAS (unstable)"),
        (9.48, [3.6e-10, 25312178722.0], "no figure against cuBLAS (not told apart)"),
        (0.5, [0.1, 0.9], "0.10–0.90× cuBLAS (slower)"),
    ],
)
def test_a_ratio_is_never_bare(ratio: float, interval: list[float] | None, phrase: str) -> None:
    assert against.ratio_phrase({"ratio": ratio, "ci95": interval}, "cublas") == phrase


def test_a_reference_that_stumbles_is_no_praise() -> None:
    steady = {"ratio": 21.0, "ci95": [20.0, 22.0], "median_us": 300.0, "ci95_us": [290.0, 310.0]}
    assert against.ratio_phrase(steady, "numpy") == "21.00× NumPy (faster)"
    stumbled = {**steady, "ci95_us": [40.0, 2000.0]}
    assert against.ratio_phrase(stumbled, "numpy") == "21.00× NumPy (unstable: NumPy's own time varies)"
    assert against.ratio_phrase({**stumbled, "ratio": 0.5, "ci95": [0.4, 0.6]}, "numpy") == "0.50× NumPy (slower)"


def test_an_interval_too_wide_for_a_figure_is_shown_by_its_ends() -> None:
    sweep, runs = samples.cpu_sweep()
    wide = {**runs[0]["references"]["numpy"], "ratio": 9.48, "ci95": [1.9, 64.0]}
    _, rows = sweep_grid(sweep, [{**runs[0], "references": {"numpy": wide}}, runs[1]], 80)
    assert ["1.9–64" in row.cells for row in rows] == [True, False]
    kept = [{**run, "references": {"numpy": wide}} for run in runs]
    assert "It runs at anything from 1.9 to 64× NumPy (unstable)." in verdicts.conclusion(sweep, kept)


def test_an_interval_over_orders_of_magnitude_is_no_figure() -> None:
    sweep, runs = samples.cpu_sweep()
    absurd = {**runs[0]["references"]["numpy"], "ratio": 9.48, "ci95": [3.6e-10, 25312178722.0]}
    kept = [{**run, "references": {"numpy": absurd}} for run in runs]
    _, rows = sweep_grid(sweep, kept, 80)
    assert all("no figure" in row.cells for row in rows)
    said = verdicts.conclusion(sweep, kept)
    assert "There is no figure against NumPy (not told apart)" in said
    assert "25312178722" not in said


def test_a_verdict_tells_who_has_been_found_wrong_since() -> None:
    sweep, runs = samples.bk_sweep()
    assert "Found wrong" not in verdicts.conclusion(sweep, runs)
    since = {run["run_id"]: "2026-11-30T21:13:00Z" for run in runs if run["config"] and run["config"]["BK"] in (16, 32)}
    said = verdicts.conclusion({**sweep, "wrong_since": since}, runs)
    assert said.endswith("Found wrong since: BK=16 (on 2026-11-30) and BK=32 (on 2026-11-30).")


def test_verdicts_say_who_and_by_how_much() -> None:
    assert verdicts.verdict_sentence(*samples.bk_sweep()) == "BK=16 wins: 1.8% faster than BK=32 (next)."
    tie = "STAGES=3 and STAGES=2 tie within 0.31%; STAGES=2 is kept."
    assert verdicts.verdict_sentence(*samples.stages_sweep()) == tie
    undecided = "Undecided after 40 rounds, out of time: BK=256 and BK=128 may differ by up to 0.82%; BK=256 is kept."
    assert verdicts.verdict_sentence(*samples.cpu_sweep()) == undecided
    winner = "simt BK=16 wins: 1.8% faster than simt BK=32 (next)."
    assert verdicts.verdict_sentence(*samples.finals()) == winner


def test_the_next_is_the_next_by_ratios_of_the_same_rounds() -> None:
    sweep, runs = samples.finals()
    runs[1]["references"]["cublas"]["ratio"], runs[2]["references"]["cublas"]["ratio"] = 0.90, 0.95
    assert verdicts.verdict_sentence(sweep, runs) == "simt BK=16 wins: 1.8% faster than naive (next)."
    del runs[2]["references"]["cublas"]
    assert verdicts.verdict_sentence(sweep, runs) == "simt BK=16 wins: 1.8% faster than simt BK=32 (next)."


def test_verdicts_need_no_more_than_the_contract_has() -> None:
    for sample, start in (
        (samples.bk_sweep, "BK=16 wins: 1.8%"),
        (samples.stages_sweep, "A tie: no value is certainly"),
    ):
        sweep, runs = sample()
        for key in ("ties", "margin_pct", "environment", "command", "start"):
            del sweep[key]
        assert verdicts.verdict_sentence(sweep, runs).startswith(start)
        assert words.reproduce_line(runs[0], sweep).startswith("NVIDIA H200, 132 SMs, 700 W, cold L2")


def test_sweeps_without_an_answer() -> None:
    sweep, runs = samples.bk_sweep()
    assert (
        verdicts.verdict_sentence({**sweep, "verdict": None}, runs)
        == "The race is unfinished, 40 rounds stored: the same command resumes it."
    )
    none = {**sweep, "verdict": None, "winner_run_id": None}
    failed = [run for run in runs if run["status"] != "ok"]
    assert verdicts.verdict_sentence(none, failed) == "No value of BK raced: 1 constraint, 1 compile."
    loser = verdicts.verdict_sentence(sweep, [runs[1], runs[3]])
    assert loser == "The winner, run 00000002, is not among the runs shown."
    assert verdicts.verdict_sentence(sweep, runs[2:3]) == "BK=16 is the only config that raced."


def test_a_contended_sweep_says_that_nothing_is_adopted() -> None:
    assert "Contended: other work ran on the device, so nothing is adopted" in verdicts.conclusion(*samples.cpu_sweep())


def test_the_line_that_reproduces_a_run() -> None:
    sweep, runs = samples.stages_sweep()
    assert words.reproduce_line(runs[0], sweep) == (
        "gemmsweep run --template mma --dtype fp16 --vary STAGES"
        " | NVIDIA H200, 132 SMs, 700 W, driver 580.159.03, cold L2, fp16, A row, B col (nt)"
        " | gemmsweep 0.1.0 (3f2a91bc0)"
    )
    dirty = {**sweep, "environment": {**samples.ENVIRONMENT, "commit": "3f2a91bc0d1e2f3a-dirty"}}
    assert words.reproduce_line(runs[0], dirty).endswith("(3f2a91bc0-dirty)")


def test_ids_of_one_minute_look_different() -> None:
    _, runs = samples.everything()
    assert len({figures.short_id(run["run_id"]) for run in runs}) == len(runs)


def test_durations() -> None:
    assert [figures.duration(s) for s in (-1, 8.4, 125, 4200)] == ["0 s", "8 s", "2 min 05 s", "1 h 10 min"]


def test_the_vendors_faster_way_is_named_beside_the_usual_one() -> None:
    def run(**references: tuple[float, float, float]) -> dict[str, Any]:
        told = {name: {"ratio": ratio, "ci95": [low, high]} for name, (ratio, low, high) in references.items()}
        return {"references": told, "regime": "equal-clock"}

    usual, padded = (3.41, 3.33, 3.49), (0.94, 0.93, 0.95)
    assert against.vendor_phrases(run(cublas=usual)) == "3.41× cuBLAS (faster, ±2.3%)"
    threaded = run(numpy=usual)
    threaded["references"]["numpy"]["version"] = "OpenBLAS 0.3.31 SkylakeX, 2 threads"
    assert against.vendor_phrases(threaded) == "3.41× NumPy on 2 threads (faster, ±2.3%)"
    both = run(cublas=usual, pad_copy_cublas=padded, cublaslt_best=(0.99, 0.98, 1.02))
    assert against.vendor_phrases(both) == "3.41× cuBLAS (faster, ±2.3%), 0.94× pad + cuBLAS (slower, ±1.1%)"
    assert against.vendor_phrases({**both, "regime": "own-power"}).endswith("(slower, ±1.1%), own-power")
    assert against.vendor_phrases(run(cublas=padded)) == "0.94× cuBLAS (slower, ±1.1%)"
    beaten = run(cublas=usual, pad_copy_cublas=(1.11, 1.10, 1.12), cublaslt_best=(3.35, 3.3, 3.4))
    assert against.vendor_phrases(beaten) == "3.41× cuBLAS (faster, ±2.3%), 1.11× pad + cuBLAS (faster, ±0.90%)"
    assert families.cell_of({**both, "template": "wgmma"}).text == "vendor 0.94"
    assert families.cell_of({**run(cublas=usual), "template": "wgmma"}).text == "wgmma 3.41"
    assert families.cell_of({**run(cublas=(1.01, 0.98, 1.04)), "template": "wgmma"}).text == "wgmma ≈1.01"
