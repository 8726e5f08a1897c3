"""The answers of `tune`: a row per problem, then which family wins where, then what time left out."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Sequence
from typing import TextIO

from gemmsweep.errors import UsageError, choices
from gemmsweep.report import families, figures, jsontext, words
from gemmsweep.report.figures import ABSENT, Record, clean
from gemmsweep.report.grid import Column, Row, draw, markdown, plain

FORMATS = ("table", "csv", "json", "md")
CSV_COLUMNS = (
    "m", "n", "k", "dtype", "layout", "epilogue", "winner", "family", "config", "median_us", "tflops", "reference", "ratio",
    "ratio_low", "ratio_high", "verdict", "run_id", "cut", "note", "seconds",
)  # fmt: skip


def require_format(name: str) -> None:
    """Raises UsageError: before an hour of racing, not after it."""
    if name not in FORMATS:
        raise UsageError(choices("format", name, FORMATS))


def write(name: str, answers: Sequence[Record], out: TextIO, width: int) -> None:
    """The answers (objects of `gemmsweep/tune/1`) in one of FORMATS."""
    if name == "json":
        out.write(f'{{"schema": "gemmsweep/tune/1", {jsontext.text("answers")}: {jsontext.text(list(answers))}}}\n')
    elif name == "csv":
        write_csv(answers, out)
    elif name == "md":
        write_md(answers, out)
    else:
        write_table(answers, out, width)


def write_table(answers: Sequence[Record], out: TextIO, width: int) -> None:
    """For a terminal of `width`; the config stands below its row where there is no room beside it."""
    beside = width >= 120
    rows = []
    for answer in answers:
        row = cells(answer)
        rows.append(Row(row if beside else row[:-1]))
        if not beside and answer["best"] is not None:
            rows.append(Row([], note=f"  {row[-1]}"))
    columns = heads()
    out.write(f"{draw(columns if beside else columns[:-1], rows, width)}\n")
    for line in remarks(answers):
        out.write(textwrap.fill(line, width, subsequent_indent="    ") + "\n")
    for chart in families.charts(bests(answers)):
        out.write("\n" + families.text(chart, width))


def write_md(answers: Sequence[Record], out: TextIO) -> None:
    """To paste into a chat, an issue or a review."""
    out.write(plain(heads(), [Row(cells(answer)) for answer in answers]))
    out.writelines(f"\n{markdown(line)}\n" for line in remarks(answers))
    out.writelines("\n" + families.section(chart) for chart in families.charts(bests(answers)))


def write_csv(answers: Sequence[Record], out: TextIO) -> None:
    """A line per problem, empty where nothing was measured."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for answer in answers:
        problem, best = answer["problem"], answer["best"] or {}
        reference, relation = words.vendor_relation(best)
        low, high = relation.get("ci95") or (None, None)
        values = [
            *(problem[name] for name in CSV_COLUMNS[:6]), answer["winner"], best.get("template"),
            words.config_text(best.get("config")), best.get("median_us"), best.get("tflops"), reference,
            relation.get("ratio"), low, high, best.get("decision"), best.get("run_id"), answer["cut"], answer["note"],
            answer["seconds"],
        ]  # fmt: skip
        writer.writerow(["" if value is None else clean(value) for value in values])


def bests(answers: Sequence[Record]) -> list[Record]:
    return [answer["best"] for answer in answers if answer["best"] is not None]


def heads() -> list[Column]:
    return [
        Column("problem"), Column("winner"), Column("µs", right=True), Column("against vendor"), Column("verdict"),
        Column("best of the families"),
    ]  # fmt: skip


def cells(answer: Record) -> list[str]:
    """Problem, who wins, time, against the vendor, verdict among the families, and the best config of theirs."""
    best = answer["best"]
    problem = words.problem_text(answer["problem"])
    if best is None:
        return [problem, *[ABSENT] * 5]
    _, relation = words.vendor_relation(best)
    sure = figures.uncertainty(relation.get("ratio"), relation.get("ci95"))
    return [
        problem, clean(answer["winner"]), figures.significant(best["median_us"]),
        f"{words.vendor_phrases(best) or ABSENT} {sure}".rstrip(), clean(best["decision"]), config_cell(answer),
    ]  # fmt: skip


def config_cell(answer: Record) -> str:
    """`mma BK=64 STAGES=4`: the family and what differs from its defaults; then why the row is not of today."""
    changes = words.config_text(answer["changes"]) or "defaults"
    note = f" ({clean(answer['note'])})" if answer["note"] else ""
    return f"{clean(answer['best']['template'])} {changes}{note}"


def remarks(answers: Sequence[Record]) -> list[str]:
    """Why a problem has no answer, and what time left out, a line per problem."""
    none = [(words.problem_text(a["problem"]), clean(a["note"])) for a in answers if a["best"] is None]
    cut = [(words.problem_text(a["problem"]), clean(a["cut"])) for a in answers if a["cut"]]
    lines = [f"No verified result for {problem}: {why}" for problem, why in none]
    if cut:
        lines += ["Cut for time (the same command goes on):", *(f"  {problem}: {what}" for problem, what in cut)]
    return lines
