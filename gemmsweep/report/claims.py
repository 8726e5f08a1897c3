"""Claims beside what was measured: on a terminal, as JSON, and as the page docs/articles.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from gemmsweep.claims import Finding, Race, evaluate, newest_device
from gemmsweep.report.charts import axis_bars
from gemmsweep.report.figures import ABSENT, Record, day, significant
from gemmsweep.report.grid import GAP, Column, Row, draw, markdown, plain
from gemmsweep.report.grouping import by_sweep
from gemmsweep.report.jsontext import write_array

if TYPE_CHECKING:
    from gemmsweep.experiment import Experiment

SCHEMA = "gemmsweep/claims/1"
FORMATS = ("table", "json", "md")
CHART_WIDTH = 100
UNITS = {"pct_peak": "% of peak", "occupancy_pct": "% occupied", "tflops": " TFLOP/s"}
FIGURES = (Column("source"), Column("expected"), Column("measured"), Column("95%"), Column("verdict"))
STYLES = {"holds": "green", "does not": "red", "undecided": "yellow"}


class Records(Protocol):
    """What is read of a store; `wanted` is its filter, a dataclass with a field `experiment`."""

    def sweeps(self, wanted: Any) -> Iterable[Record]: ...

    def runs(self, wanted: Any) -> Iterable[Record]: ...


@dataclass(frozen=True, slots=True)
class Chapter:
    """An experiment, its claims judged on one device, and that device's races of it."""

    experiment: Experiment
    device: str | None
    findings: tuple[Finding, ...]
    races: tuple[Race, ...]

    @property
    def evidence(self) -> list[Race]:
        """The races that a figure was taken from, oldest first."""
        used = {sweep_id for finding in self.findings for sweep_id in finding.races}
        return [race for race in self.races if race[0]["sweep_id"] in used]


def collect(store: Records, wanted: Any, experiments: Sequence[Experiment]) -> list[Chapter]:
    """Every claim of these experiments, judged on the device last raced among those that the filter leaves."""
    raced: dict[str, list[Race]] = {}
    for experiment in experiments:
        own = replace(wanted, experiment=experiment.name)
        raced[experiment.name] = list(by_sweep(store.sweeps(own), store.runs(own)))
    device = newest_device([race for races in raced.values() for race in races])
    chapters = []
    for experiment in experiments:
        races = tuple(r for r in raced[experiment.name] if r[1] and r[1][0]["device"]["name"] == device)
        findings = tuple(evaluate(experiment.name, claim, races) for claim in experiment.claims)
        chapters.append(Chapter(experiment, device, findings, races))
    return chapters


def write(format_: str, chapters: Sequence[Chapter], out: TextIO, width: int) -> None:
    """The chapters in one of FORMATS."""
    if format_ == "json":
        out.write(f'{{"schema": "{SCHEMA}",\n')
        write_array("claims", (as_json(c, f) for c in chapters for f in c.findings), out)
        out.write("}\n")
    elif format_ == "md":
        out.write(page(chapters))
    else:
        _write_table(chapters, out, width)


def as_json(chapter: Chapter, finding: Finding) -> Record:
    """One claim of the contract; `measured` and `ci95` are null where there is nothing, or no interval."""
    claim, figure = finding.claim, finding.figure
    return {
        "id": claim.id,
        "experiment": finding.experiment,
        "claim": claim.text,
        "measure": claim.measure,
        "expected": claim.expect.text,
        "claimed": claim.claimed or None,
        "measured": figure.value if figure else None,
        "ci95": list(figure.ci95) if figure and figure.ci95 else None,
        "verdict": finding.verdict,
        "device": chapter.device if figure else None,
        "run_ids": list(finding.run_ids),
    }


def _write_table(chapters: Sequence[Chapter], out: TextIO, width: int) -> None:
    from rich.console import Console

    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    for position, chapter in enumerate(chapters):
        head = "" if position == 0 else "\n"
        console.print(f"{head}{chapter.experiment.name}: {_where(chapter)}", soft_wrap=True)
        console.print(draw((Column("id"), *FIGURES), _rows(chapter.findings, width), width), soft_wrap=True)


def _rows(findings: Sequence[Finding], width: int) -> list[Row]:
    """Of each claim its figures, and below them its words."""
    room = width - max(len(finding.claim.id) for finding in findings) - len(GAP)
    rows = []
    for finding in findings:
        rows.append(Row([finding.claim.id, *_cells(finding)], STYLES.get(finding.verdict, "dim")))
        rows += [Row([""], note=line) for line in wrap(finding.claim.text, room)]
    return rows


def _where(chapter: Chapter) -> str:
    if not chapter.races:
        return f"not measured yet, gemmsweep run --experiment {chapter.experiment.name}"
    return f"{chapter.device}, {day(str(chapter.races[-1][0]['started_at']))}"


def _cells(finding: Finding) -> list[str]:
    claimed = finding.claim.claimed or ABSENT
    return [claimed, expected(finding), measured(finding), interval(finding), finding.verdict]


def expected(finding: Finding) -> str:
    """The bound, with the figure it bounds."""
    return f"{finding.claim.expect.text}{_unit(finding)}"


def measured(finding: Finding) -> str:
    """The figure with its unit, or a dash."""
    return f"{significant(finding.figure.value, 4)}{_unit(finding)}" if finding.figure else ABSENT


def interval(finding: Finding) -> str:
    """Its 95% interval; a count has none."""
    if not finding.figure or not finding.figure.ci95:
        return ABSENT
    low, high = finding.figure.ci95
    return f"{significant(low, 4)}–{significant(high, 4)}"


def _unit(finding: Finding) -> str:
    claim = finding.claim
    if claim.to is not None:
        return "×"
    return UNITS.get(claim.measure, "")


def page(chapters: Sequence[Chapter]) -> str:
    """Markdown: per experiment its claims as a table, remarks, and a chart of every race that a figure was taken from."""
    return "\n".join(_section(chapter) for chapter in chapters)


def _section(chapter: Chapter) -> str:
    rows = [Row([finding.claim.id, finding.claim.text, *_cells(finding)]) for finding in chapter.findings]
    remarks = [f"- {f.claim.id}: {markdown(f.claim.remark)}" for f in chapter.findings if f.claim.remark]
    parts = [
        f"## {chapter.experiment.name}",
        markdown(chapter.experiment.summary),
        f"`gemmsweep run --experiment {chapter.experiment.name}`: "
        + (markdown(_where(chapter)) if chapter.races else "not measured yet."),
        plain((Column("id"), Column("claim"), *FIGURES), rows).rstrip(),
        *(["\n".join(remarks)] if remarks else []),
        *(_chart(*race) for race in chapter.evidence if len(race[1]) > 1),
    ]
    return "\n\n".join(parts) + "\n"


def _chart(sweep: Record, runs: Sequence[Record]) -> str:
    problem = runs[0]["problem"]
    about = f"{problem['m']}x{problem['n']}x{problem['k']} {problem['dtype']} {problem['layout']}"
    kernel = "finals" if sweep["varied"] is None else runs[0]["template"]
    bars = "\n".join(line.rstrip() for line in axis_bars(sweep, runs, CHART_WIDTH).plain.splitlines())
    return f"```text\n{kernel}, {about}\n{bars}\n```"
