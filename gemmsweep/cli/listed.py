"""The problems that somebody names, against those on record: which of the best are asked for, and which lack finals."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmsweep.errors import NothingToShow, counted

if TYPE_CHECKING:
    from gemmsweep.report.figures import Record
    from gemmsweep.shapes import Wanted
    from gemmsweep.store import Filter

TOLD = 12  # problems by name


def read_listed(shapes: Sequence[str], file: Path | None) -> list[Wanted]:
    """The problems of --shape and --shapes, as `tune` reads them."""
    from gemmsweep.experiment import parse_shape
    from gemmsweep.shapes import read_csv

    listed: list[Wanted] = [(parse_shape(text), None, None) for text in shapes]
    return list(dict.fromkeys(listed + (read_csv(file) if file else [])))


def passing(listed: Sequence[Wanted], wanted: Filter) -> list[Wanted]:
    """Those that --dtype and --layout leave, which also hold for a line that says neither. Raises NothingToShow."""
    left = [
        (shape, dtype or wanted.dtype, layout or wanted.layout)
        for shape, dtype, layout in listed
        if wanted.dtype in (None, dtype or wanted.dtype) and wanted.layout in (None, layout or wanted.layout)
    ]
    if listed and not left:
        raise NothingToShow(
            "no line of --shapes is of that --dtype and --layout: leave them out, or take another list."
        )
    return list(dict.fromkeys(left))


def chosen(best: Iterable[Record], asked: Sequence[Wanted]) -> tuple[list[Record], list[Wanted]]:
    """Of the best those that are asked for, all where nothing is; and what is asked for without one."""
    some, wanted = [], set(asked)
    met: set[Wanted] = set()
    for run in best:
        names = _names(run["problem"])
        met |= names
        if not asked or names & wanted:
            some.append(run)
    return some, [one for one in asked if one not in met]


def _names(problem: Mapping[str, Any]) -> set[Wanted]:
    """A problem as a list may name it: a line need not say dtype and layout."""
    shape = problem["m"], problem["n"], problem["k"]
    return {(shape, dtype, layout) for dtype in (problem["dtype"], None) for layout in (problem["layout"], None)}


def lacking(
    missing: Sequence[Wanted], barred: Sequence[Wanted], asked: Sequence[Wanted], file: Path | None, wanted: Filter
) -> str:
    """What has no best among what was asked for, and the command that measures it; `barred` has one that the filters leave out."""
    nothing = [one for one in missing if one not in barred]
    of_all = "" if len(asked) == 1 else f"{len(nothing)} of {counted(len(asked), 'problem')}: "
    told = []
    if barred:
        told.append(f"what won the finals of {texts(barred)} is not what the other filters ask for")
    if nothing:
        told.append(f"no verified finals match {of_all}{texts(nothing)}. Measure: {measuring(nothing, file, wanted)}")
    return "; ".join(told) + ("" if nothing else ".")


def texts(problems: Sequence[Wanted]) -> str:
    """A few by name, how many more there are."""
    from gemmsweep.shapes import in_words

    named = [in_words(*one) for one in problems]
    return ", ".join(named[:TOLD]) + (f" and {len(named) - TOLD} more" if len(named) > TOLD else "")


def measuring(problems: Sequence[Wanted], file: Path | None, wanted: Filter) -> str:
    """The command that races all of them: the whole list where it holds them, else each by its shape."""
    from gemmsweep.shapes import size

    of_file = passing(read_listed((), file), wanted) if file else []
    words = ["gemmsweep", "tune"]
    for shape in dict.fromkeys(one[0] for one in problems if one not in of_file):
        words += ["--shape", size(shape)]
    words += ["--shapes", str(file)] if any(one in of_file for one in problems) else []
    for option in ("dtype", "layout", "epilogue"):
        words += [f"--{option}", getattr(wanted, option)] if getattr(wanted, option) else []
    return shlex.join(words)
