"""Speed along an axis as bars of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmsweep.report import against, figures, words
from gemmsweep.report.figures import Record, clean
from gemmsweep.report.grid import shorten
from gemmsweep.report.words import kept_run_id

if TYPE_CHECKING:
    from rich.text import Text

EIGHTHS = " ▏▎▍▌▋▊▉"
SHORTEST_BAR = 10
Speed = tuple[float, float, float]  # TFLOP/s: median, and the ends of its 95% interval


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    text: str  # beside the bar, or instead of one
    speed: Speed | None
    style: str = ""


def axis_bars(sweep: Record, runs: Sequence[Record], width: int) -> Text:
    """A bar of TFLOP/s per run and one per reference; `├─┤` spans a 95% interval wider than a character.

    Beside the bars of different accuracy classes stand their errors.
    """
    from rich.text import Text

    names = words.labels(runs, sweep.get("varied"))
    with_error = not all(map(words.ranks, runs))
    bars = [_run_bar(sweep, run, name, with_error) for run, name in zip(runs, names, strict=True)]
    bars += _reference_bars(runs)
    margin = min(max((len(bar.name) for bar in bars), default=0), width // 3)
    figure = max((len(bar.text) for bar in bars if bar.speed), default=0)
    room = max(width - margin - figure - 2, SHORTEST_BAR)
    longest = max((bar.speed[2] for bar in bars if bar.speed), default=1.0)
    lines = [Text(f"{clean(sweep.get('varied')) or 'config'}, TFLOP/s, bars from 0", style="bold")]
    for bar in bars:
        drawn = _drawn(bar.speed, longest, room) + " " if bar.speed else ""
        line = f"{shorten(bar.name, margin):>{margin}} {drawn}{bar.text}"
        lines.append(Text(shorten(line, width), style=bar.style))
    return Text("\n", no_wrap=True, overflow="ignore").join(lines)


def _run_bar(sweep: Record, run: Record, name: str, with_error: bool) -> Bar:
    speed = _speed(run)
    if not speed:
        return Bar(name, f"{clean(run['status'])}: {figures.first_line(run.get('reason'))}".rstrip(": "), None, "red")
    text = f"{figures.significant(speed[0])} {figures.uncertainty(run['median_us'], run.get('ci95_us'))}".rstrip()
    if with_error:
        text += f", error {words.error_text(run)}"
    return Bar(name, text, speed, "bold green" if run["run_id"] == kept_run_id(sweep) else "")


def _reference_bars(runs: Sequence[Record]) -> list[Bar]:
    found: dict[str, Bar] = {}
    for run in runs:
        for name, relation in (run.get("references") or {}).items():
            if relation.get("median_us") and _speed(run) and name not in found:
                speed = run["tflops"] * run["median_us"] / relation["median_us"]
                found[name] = Bar(against.vendor_name(name), figures.significant(speed), (speed, speed, speed))
    return list(found.values())


def _speed(run: Record) -> Speed | None:
    if run["status"] != "ok" or not run.get("tflops") or not run.get("median_us"):
        return None
    median_us = run["median_us"]
    fastest_us, slowest_us = run.get("ci95_us") or (median_us, median_us)
    return run["tflops"], run["tflops"] * median_us / slowest_us, run["tflops"] * median_us / fastest_us


def _drawn(speed: Speed, longest: float, room: int) -> str:
    median, low, high = (max(0, round(8 * room * value / longest)) for value in speed)
    bar = "█" * (median // 8) + EIGHTHS[median % 8].strip()
    left, right = low // 8, min(high // 8, room - 1)
    if right - left < 2:
        return bar.ljust(room)
    return (bar[:left].ljust(left) + "├" + "─" * (right - left - 1) + "┤").ljust(room)
