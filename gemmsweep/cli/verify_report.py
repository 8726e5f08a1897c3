"""What a verification says: a table, a line per failure, where its wrong elements lie, and why problems were left out."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gemmsweep.cli.offline import draw, say
from gemmsweep.cli.request import asked_again
from gemmsweep.errors import counted

if TYPE_CHECKING:
    from gemmsweep.model import DeviceInfo, Problem
    from gemmsweep.template.declaration import Template
    from gemmsweep.verify import Case, Failure, Result
    from gemmsweep.wrong import Element

SCHEMA = "gemmsweep/verify/1"
SHOWN = 12  # wrong elements of one failure
LISTED = 8  # tiles, warps, lanes
MAP_ROWS, MAP_COLUMNS = 32, 64
NAN_READ = "nan, read"
WHY_READ = (
    "no NaN once C and the bands around it are filled with numbers, so the kernel reads there: beyond an operand, or C."
)


def intent(template: Template, cases: Sequence[Case]) -> str:
    """`mma: 300 checks on 150 problems, 204 builds`."""
    candidates = [c for case in cases for c in case.candidates]
    builds = len({(c.source.text, c.source.options) for c in candidates if c.source is not None})
    parts = ((len(candidates), "check"), (len(cases), "problem"), (builds, "build"))
    checks, problems, built = (counted(*part) for part in parts)
    return f"{template.name}: {checks} on {problems}, {built}"


def write(format_: str, results: Sequence[Result], device: DeviceInfo, named: str | None) -> None:
    """On stdout."""
    if format_ == "json":
        sys.stdout.write(json.dumps(document(results, device, named), indent=1, allow_nan=False) + "\n")
        return
    from gemmsweep.report.grid import Column, Row

    heads = ("checks", "right", "wrong", "left out")
    rows = [
        Row([r.template.name, *(f"{n:,}" for n in (r.checks, r.right, len(r.failures), r.left_out)), verdict(r)])
        for r in results
    ]
    draw([Column("template"), *(Column(head, right=True) for head in heads), Column("")], rows)
    for result in results:
        for failure in result.failures:
            attempt = failure.candidate.attempt
            say(
                f"{result.template.name} {described(failure.problem)} {attempt.label}: {attempt.status}: {attempt.reason}"
            )
            say(f"  again: {command(failure, named)}")
            print_elements(failure)
        for one in result.unchecked:
            reason = one.reason.removeprefix(f"{one.problem} ")
            say(f"{result.template.name} {described(one.problem)}: left out: {reason}")


def verdict(result: Result) -> str:
    if result.failures:
        return "wrong"
    if not result.right:
        return "nothing checked: out of time" if result.late else "nothing checked"
    if result.unchecked:
        return "right, but for what is left out"
    return "right, as far as time went" if result.late else "right"


def described(problem: Problem) -> str:
    """With what `str` leaves out: leading dimensions that are not tight, beta."""
    strides = [f"{name}={value}" for name, value in loose_strides(problem).items()]
    return " ".join([str(problem), *strides, *([f"beta={problem.beta:g}"] if problem.beta else [])])


def loose_strides(problem: Problem) -> dict[str, int]:
    return {name: getattr(problem, name) for name, least in problem.tight.items() if getattr(problem, name) != least}


def command(failure: Failure, named: str | None) -> str:
    """The line that repeats one check."""
    template = failure.candidate.template
    words = ["gemmsweep", "verify", named or template.name, *asked_again(template, failure.problem)]
    defaults = template.defaults()
    for name, chosen in failure.candidate.attempt.config.items():
        words += ["--set", f"{name}={chosen}"] if defaults[name] != chosen else []
    return shlex.join([*words, *(["--special-values"] if failure.special else []), "--explain"])


def print_elements(failure: Failure) -> None:
    """The first wrong elements as a table, and what all of them have in common."""
    from gemmsweep.report.grid import Column, Row

    found = failure.findings
    if found is None:
        return
    if not failure.elements:
        say(f"  seen again: {found.check}")
        return
    some = f", of the first {len(failure.elements):,}" if is_cut(failure) else ""
    say(f"  {found.check}: {found.total:,} wrong element{'s' if found.total != 1 else ''}{some}; {common(failure)}")
    heads = ("row", "column", "got", "expected", "tile", "in tile", "warp", "lane")
    rows = [
        Row([
            str(e.row), str(e.column), got(e), f"{e.expected:.7g}",
            pair(p.tile), pair(None if p.row is None or p.column is None else (p.row, p.column)),
            dash(p.warp), dash(p.lane),
        ])
        for e, p in failure.elements[:SHOWN]
    ]  # fmt: skip
    draw([Column(head, right=True) for head in heads], rows)
    if any(e.nan_read for e, _ in failure.elements[:SHOWN]):
        say(f"  {NAN_READ}: {WHY_READ}")
    for line in tile_map(failure):
        say(f"  {line}")


def got(element: Element) -> str:
    """What an element of C holds, or why that is nothing that was computed."""
    return "not written" if element.untouched else NAN_READ if element.nan_read else f"{element.got:.7g}"


def is_cut(failure: Failure) -> bool:
    """Whether more elements are wrong than were looked at."""
    return failure.findings is not None and failure.findings.total > len(failure.elements)


def tile_map(failure: Failure) -> list[str]:
    """The block tile of the first wrong element, a character for a few elements: . right, x wrong, o not written.

    Rows from the last one looked at on are ? where not all wrong elements were.
    """
    first, (bm, bn) = failure.elements[0][1].tile, failure.tile
    if first is None:
        return []
    top, left = first[0] * bm, first[1] * bn
    rows, columns = min(bm, failure.problem.m - top), min(bn, failure.problem.n - left)
    down, across = -(-rows // MAP_ROWS), -(-columns // MAP_COLUMNS)
    cells = [["."] * -(-columns // across) for _ in range(-(-rows // down))]
    if is_cut(failure):
        known = max(0, failure.elements[-1][0].row - top) // down
        cells[known:] = [["?"] * len(row) for row in cells[known:]]
    for element, where in failure.elements:
        if where.tile == first:
            mark = "o" if element.untouched else "x"
            cells[(element.row - top) // down][(element.column - left) // across] = mark
    each = f", a character for {down} x {across} elements" if down * across > 1 else ""
    title = f"tile {pair(first)}: {rows} x {columns} elements from ({top}, {left}) on{each}; x wrong, o not written"
    title += ", ? not looked at" if any("?" in row for row in cells) else ""
    return [title, *("".join(row) for row in cells)]


def common(failure: Failure) -> str:
    """`tiles (0, 1); warps 0, 2; lanes 0, 4, 8, …` of the elements looked at."""
    places = [p for _, p in failure.elements]
    parts = [
        f"{noun} {few(sorted({v for v in values if v is not None}))}"
        for noun, values in (
            ("tiles", [p.tile for p in places]), ("warps", [p.warp for p in places]), ("lanes", [p.lane for p in places]),
        )
    ]  # fmt: skip
    return "; ".join(parts)


def few(values: Sequence[Any]) -> str:
    listed = ", ".join(map(str, values[:LISTED]))
    return (listed + (f", … ({len(values)} in all)" if len(values) > LISTED else "")) or "–"


def pair(values: tuple[int, int] | None) -> str:
    return "–" if values is None else f"{values[0]}, {values[1]}"


def dash(value: int | None) -> str:
    return "–" if value is None else str(value)


def document(results: Sequence[Result], device: DeviceInfo, named: str | None) -> dict[str, Any]:
    """The same for machines; figures that JSON has no words for are text."""
    return {
        "schema": SCHEMA,
        "device": {"name": device.name, "uuid": device.uuid, "arch": device.arch},
        "templates": [
            {
                "name": r.template.name,
                "source_sha256": r.template.source_sha256,
                "checks": r.checks,
                "right": r.right,
                "wrong": len(r.failures),
                "left_out": r.left_out,
            }
            for r in results
        ],
        "failures": [failure_record(failure, named) for r in results for failure in r.failures],
        "left_out": [
            {
                "template": r.template.name,
                "problem": problem_record(one.problem),
                "checks": one.configs,
                "reason": one.reason,
            }
            for r in results
            for one in r.unchecked
        ],
    }


def problem_record(problem: Problem) -> dict[str, Any]:
    names = ("m", "n", "k", "dtype", "layout", "lda", "ldb", "ldd", "beta", "epilogue")
    return {name: getattr(problem, name) for name in names}


def failure_record(failure: Failure, named: str | None) -> dict[str, Any]:
    problem, attempt = failure.problem, failure.candidate.attempt
    return {
        "template": attempt.template,
        "label": attempt.label,
        "status": attempt.status,
        "reason": attempt.reason,
        "problem": problem_record(problem),
        "config": dict(attempt.config),
        "command": command(failure, named),
        "wrong_elements": None if failure.findings is None else failure.findings.total,
        "elements": list(element_records(failure)),
    }


def element_records(failure: Failure) -> Iterable[dict[str, Any]]:
    for e, p in failure.elements[:SHOWN]:
        yield {
            "row": e.row, "column": e.column, "got": figure(e.got), "expected": figure(e.expected),
            "untouched": e.untouched, "nan_read": e.nan_read, "tile": None if p.tile is None else list(p.tile),
            "warp": p.warp, "lane": p.lane,
        }  # fmt: skip


def figure(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
