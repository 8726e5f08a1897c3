"""The columns of one sweep's table, and what its marks mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gemmsweep.references import is_wide
from gemmsweep.report import against, figures, verdicts, words
from gemmsweep.report.figures import ABSENT, Record, clean
from gemmsweep.report.grid import Column, Row
from gemmsweep.report.words import kept_run_id

WINNER, TIED, START = "*", "≈", "○"
Measure = tuple[int, Column, Callable[[Record], str]]  # terminal width it appears from, heading, cell


def _ratio(run: Record, reference: str | None) -> str:
    relation = (run.get("references") or {}).get(reference) or {}
    if not relation.get("ratio"):
        return ABSENT
    ratio = relation["ratio"]
    digits = f"{ratio:.3f}" if 0.1 <= ratio < 10 else figures.significant(ratio, 3)
    interval = relation.get("ci95")
    if interval and is_wide(ratio, interval):
        return figures.NO_FIGURE if figures.says_nothing(ratio, interval) else figures.span(interval)
    return f"{digits} {figures.uncertainty(ratio, interval)}".strip()


def _smem(run: Record) -> str:
    return figures.kilobytes((run.get("build") or {}).get("smem_bytes"))


def _speed(runs: Sequence[Record]) -> Measure:
    """TFLOP/s, or GFLOP/s where no run reaches one."""
    slow = all((run.get("tflops") or 0.0) < 1 for run in runs)
    scale = 1e3 if slow else 1.0
    title = "GFLOP/s" if slow else "TFLOP/s"
    return (
        0,
        Column(title, right=True),
        lambda run: figures.significant(None if run.get("tflops") is None else scale * run["tflops"]),
    )


def _measures(reference: str | None, runs: Sequence[Record]) -> list[Measure]:
    vendor = f"× {against.vendor_name(reference)}" if reference else "× vendor"
    return [
        (0, Column("µs", right=True), lambda run: figures.significant(run.get("median_us"))),
        _speed(runs),
        (100, Column("% peak", right=True), lambda run: figures.percent(run.get("pct_peak"))),
        (0, Column(vendor, right=True), lambda run: _ratio(run, reference)),
        *_rivals(reference, runs),
        (0, Column("regs", right=True), lambda run: figures.registers(run.get("build"))),
        (120, Column("shared", right=True), _smem),
        (100, Column("occ %", right=True), lambda run: figures.trimmed(run.get("occupancy_pct"))),
        (120, Column("SM MHz", right=True), lambda run: figures.whole(figures.counter(run, "sm_clock_mhz"))),
        *_accuracy(runs),
        (160, Column("tensor %", right=True), lambda run: _gpm(run, "gpm_any_tensor_util_pct")),
        (160, Column("DRAM %", right=True), lambda run: _gpm(run, "gpm_dram_bw_util_pct")),
        (0, Column("limiter"), lambda run: clean(run.get("limiter")) or ABSENT),
    ]


def _rivals(reference: str | None, runs: Sequence[Record]) -> list[Measure]:
    """A column per further reference that raced, where there is room; the line under the table names them anywhere."""
    names = dict.fromkeys(name for run in runs for name in run.get("references") or {} if name != reference)

    def measure(name: str) -> Measure:
        return 140, Column(f"× {against.vendor_name(name)}", right=True), lambda run: _ratio(run, name)

    return [measure(name) for name in names]


def _accuracy(runs: Sequence[Record]) -> list[Measure]:
    """How each sums products and how far off it is: at any width where they are of different accuracy classes."""
    error = Column("error", right=True)
    if all(words.ranks(run) for run in runs):
        return [(160, error, words.error_text)]
    return [(0, Column("accuracy"), lambda run: clean(run["problem"]["acc"])), (0, error, words.error_text)]


def _gpm(run: Record, name: str) -> str:
    return figures.percent(figures.counter(run, name))


def _marks(sweep: Record, run: Record) -> str:
    varied = sweep.get("varied")
    start = sweep.get("start") or {}
    lead = sweep.get("verdict") if kept_run_id(sweep) == run["run_id"] else None
    mark = WINNER if lead else TIED if run["run_id"] in (sweep.get("ties") or ()) else ""
    is_start = varied and varied in start and str(start[varied]) == str((run.get("config") or {}).get(varied))
    return mark + (START if is_start else "")


def sweep_grid(sweep: Record, runs: Sequence[Record], width: int) -> tuple[list[Column], list[Row]]:
    """Columns that belong on a terminal of `width`, and a row per run in the order given, which is the axis's."""
    shown = [measure for measure in _measures(against.main_reference(runs), runs) if width >= measure[0]]
    varied = sweep.get("varied")
    numeric = bool(varied) and all(isinstance((run.get("config") or {}).get(str(varied)), int) for run in runs)
    ok = [run for run in runs if run["status"] == "ok"]
    shown = [measure for measure in shown if any(measure[2](run) != ABSENT for run in ok)]
    first = Column(clean(varied) if varied else "config", right=numeric)
    columns = [Column(""), first, Column("status"), *(column for _, column, _ in shown)]
    rows = []
    for label, run in zip(words.labels(runs, varied), runs, strict=True):
        leading = [_marks(sweep, run), label, clean(run["status"])]
        if run["status"] != "ok":
            rows.append(Row(leading, "red", figures.first_line(run.get("reason")) or ABSENT))
            continue
        style = "bold green" if WINNER in leading[0] else "yellow" if figures.spills(run) else ""
        rows.append(Row([*leading, *(cell(run) for _, _, cell in shown)], style))
    return columns, rows


def legend(sweep: Record, runs: Sequence[Record]) -> str:
    """What the marks of this table mean; nothing where it has none."""
    marks = "".join(_marks(sweep, run) for run in runs)
    verdict = sweep.get("verdict")
    known = {
        WINNER: words.verdict_word(sweep) if verdict == "winner" else verdicts.kept_word(sweep, runs),
        TIED: "tied" if verdict == "tie" else "not told apart",
        START: "start",
    }
    parts = [f"{mark} {meaning}" for mark, meaning in known.items() if mark in marks]
    if any(run["status"] == "ok" and figures.spills(run) for run in runs):
        parts.append("+…B spilled, bytes per thread")
    reference = against.main_reference(runs)
    version = next(
        (v for run in runs if (v := ((run.get("references") or {}).get(reference) or {}).get("version"))), None
    )
    if reference and version:
        parts.append(f"{against.vendor_name(reference)}: {clean(version)}")
    return ", ".join(parts)
