"""The answers of `tune`: a row per problem, then who is fastest where, then what time left out."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Sequence
from typing import TextIO

from gemmsweep.errors import UsageError, choices
from gemmsweep.report import against, families, figures, jsontext, words
from gemmsweep.report.figures import ABSENT, Record, clean
from gemmsweep.report.grid import Column, Row, draw, markdown, plain

FORMATS = ("table", "csv", "json", "md")
TIMES = 4  # columns up to the times, which a narrow terminal holds
BESIDE = 150  # a terminal that holds all of them
CSV_COLUMNS = (
    "m", "n", "k", "dtype", "layout", "epilogue", "winner", "family", "config", "median_us", "tflops", "reference", "ratio",
    "ratio_low", "ratio_high", "verdict", "run_id", "cut", "note", "seconds", "vendor_us", "fastest", "finalists",
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
    """For a terminal of `width`; who, when and how it stands; the rest below its row where there is no room beside it."""
    shown = len(heads()) if width >= BESIDE else TIMES
    rows = []
    for answer in answers:
        row = cells(answer)
        rows.append(Row(row[:shown]))
        if shown == TIMES and answer["best"] is not None:
            against, among, config = row[TIMES:]
            rows.append(Row([], note=f"  {config}: {against}; among finalists: {among}"))
    out.write(f"{draw(heads()[:shown], rows, width)}\n")
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
        reference, relation = against.vendor_relation(best)
        low, high = relation.get("ci95") or (None, None)
        values = [
            *(problem[name] for name in CSV_COLUMNS[:6]), answer["winner"], best.get("template"),
            words.config_text(best.get("config")), best.get("median_us"), best.get("tflops"), reference,
            relation.get("ratio"), low, high, best.get("decision"), best.get("run_id"), answer["cut"], answer["note"],
            answer["seconds"], against.hardest_reference(best)[1].get("median_us"), against.fastest(best) if best else None,
            best.get("finalists"),
        ]  # fmt: skip
        writer.writerow(["" if value is None else clean(value) for value in values])


def bests(answers: Sequence[Record]) -> list[Record]:
    return [answer["best"] for answer in answers if answer["best"] is not None]


def heads() -> list[Column]:
    return [
        Column("problem"), Column("fastest"), Column("kernel µs", right=True), Column("vendor µs", right=True),
        Column("against vendor"), Column("among finalists"), Column("best kernel"),
    ]  # fmt: skip


def cells(answer: Record) -> list[str]:
    """Problem, who is fastest, both times, the best kernel against the vendor and among the finalists, and its config."""
    best = answer["best"]
    problem = words.problem_text(answer["problem"])
    if best is None:
        return [problem, *[ABSENT] * 6]
    vendor_us = against.hardest_reference(best)[1].get("median_us")
    return [
        problem, against.fastest(best), figures.significant(best["median_us"]), figures.significant(vendor_us),
        against.vendor_phrases(best) or ABSENT, words.decision_text(best), config_cell(answer),
    ]  # fmt: skip


def summary(answer: Record, finals: Sequence[Record]) -> str:
    """One line for a problem that is done; the best kernel by the name that announced it in its `finals`, then by what changed."""
    best = answer["best"]
    if best is None:
        return clean(answer["note"])
    _, _, kernel_us, vendor_us, against, _, _ = cells(answer)
    names = {run["run_id"]: label for run, label in zip(finals, words.labels(finals, None), strict=True)}
    changes = words.config_text(answer["changes"]) or "nothing"
    told = f"{names[best['run_id']]} (changed from its defaults: {changes})"
    return f"{told}: {kernel_us} µs, vendor {vendor_us} µs: {against}"


def config_cell(answer: Record) -> str:
    """`mma BK=64 STAGES=4`: the family and what differs from its defaults; then why it is not of today, or not exported."""
    changes = words.config_text(answer["changes"]) or "defaults"
    note = f" ({clean(answer['note'])})" if answer["note"] else ""
    return f"{clean(answer['best']['template'])} {changes}{note}"


def remarks(answers: Sequence[Record]) -> list[str]:
    """Why a problem has no answer, whose times are none to compare with, and what time left out, a line per problem."""
    none = [(words.problem_text(a["problem"]), clean(a["note"])) for a in answers if a["best"] is None]
    cut = [(words.problem_text(a["problem"]), clean(a["cut"])) for a in answers if a["cut"]]
    lines = [f"No verified result for {problem}: {why}" for problem, why in none]
    lines += [unstable_line(a) for a in answers if a["best"] and against.fastest(a["best"]) == against.UNSTABLE]
    if cut:
        lines += [
            "Cut for time (the same command goes on, given more and no --remeasure):",
            *(f"  {problem}: {what}" for problem, what in cut),
        ]
    return lines


def unstable_line(answer: Record) -> str:
    """Whose rounds they were; the version of a CPU's library ends in its threads. What was cut for time is raced again anyway."""
    best = answer["best"]
    way_out = "" if answer["cut"] else " Repeat it with --remeasure on an idle machine."
    name, relation = against.hardest_reference(best)
    took = [figures.span(one["ci95_us"]) if one.get("ci95_us") else ABSENT for one in (relation, best)]
    return (
        f"Unstable: {words.problem_text(best['problem'])}: {against.vendor_name(str(name))} ({clean(relation.get('version'))}) "
        f"took {took[0]} µs, the kernel {took[1]} µs.{way_out}"
    )
