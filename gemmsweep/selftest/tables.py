"""The selftests' figures as a table and a sentence."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TextIO

from gemmsweep.analysis.binomial import upper_bound
from gemmsweep.report.figures import ABSENT, clean, percent, significant
from gemmsweep.report.grid import Column, Row, draw, markdown, plain
from gemmsweep.selftest.summary import Record, Summary

FORMATS = ("table", "md")
HEADS = ("test", "problem", "sweeps", "spread p90", "max", "told apart", "right", "s/config")


def write(name: str, records: Sequence[Record], out: TextIO, width: int) -> None:
    """The records in one of FORMATS, an empty line between them."""
    out.write("\n".join(section(record) if name == "md" else text(record, width) for record in records))


def text(record: Record, width: int) -> str:
    """For a terminal."""
    said = textwrap.fill(clean(sentence(record.device, record.protocol, record.summaries)), width)
    return f"{clean(heading(record))}\n{draw(*grid(record.summaries), width)}\n{said}\n"


def section(record: Record) -> str:
    """The same in Markdown."""
    said = markdown(sentence(record.device, record.protocol, record.summaries))
    return f"**{markdown(heading(record))}**\n\n{plain(*grid(record.summaries))}\n{said}\n"


def heading(record: Record) -> str:
    how = "in rounds" if record.protocol == "rounds" else "each config timed alone"
    machines = f", {record.machines} machines" if record.machines > 1 else ""
    return f"{record.subject} under six names, {how}. {record.device}{machines}"


def grid(summaries: Sequence[Summary]) -> tuple[list[Column], list[Row]]:
    """A row per test and problem."""
    columns = [Column(title, right=place > 1) for place, title in enumerate(HEADS)]
    return columns, [Row(cells(summary)) for summary in summaries]


def cells(summary: Summary) -> list[str]:
    """One row of the table. "told apart": sweeps that call equals different, and the 95% bound of their share."""
    spreads = [f"{percent(100 * quantile(summary.spreads, q))}%" if summary.spreads else ABSENT for q in (0.9, 1.0)]
    bound = 100 * upper_bound(summary.wrong, summary.sweeps)
    return [
        summary.kind.name,
        str(summary.problem),
        str(summary.sweeps),
        *spreads,
        f"{summary.wrong} (≤{significant(bound, 2 if bound < 99.5 else 3)}%)",
        ABSENT if summary.kind.name == "aa" else f"{summary.found}/{summary.sweeps}",
        significant(summary.seconds_per_config, 2),
    ]


def quantile(ordered: tuple[float, ...], q: float) -> float:
    """The smallest value that a share `q` of them does not exceed."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def sentence(where: str, protocol: str, summaries: Sequence[Summary]) -> str:
    """What can be told apart there ("this machine"), and how often a sweep of any test calls equal labels different."""
    how = "in rounds" if protocol == "rounds" else "timing each config alone"
    parts = []
    for name, difference in (("known05", "0.5%"), ("known1", "1%"), ("known2", "2%")):
        sweeps = sum(s.sweeps for s in summaries if s.kind.name == name)
        found = sum(s.found for s in summaries if s.kind.name == name)
        if sweeps:
            parts.append(f"a true difference of {difference} was found in {found} of {sweeps} sweeps")
    wrong, sweeps = sum(s.wrong for s in summaries), sum(s.sweeps for s in summaries)
    bound = percent(100 * upper_bound(wrong, sweeps))
    parts.append(f"identical kernels were called different in {wrong} of {sweeps} (95% sure: below {bound}%)")
    return f"On {where}, {how}: " + "; ".join(parts) + "."
