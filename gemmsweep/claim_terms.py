"""The closed vocabulary of an experiment's `[[claim]]` tables: which runs, which figure, what is expected of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gemmsweep.errors import UsageError, choices
from gemmsweep.ranking import is_ranked

Record = Mapping[str, Any]  # a SWEEP or RUN of the JSON contract
Verdict = Literal["holds", "does not", "undecided", "not measured"]

KEYS = ("id", "claim", "measure", "where", "of", "to", "expect", "claimed", "remark")
REQUIRED = ("id", "claim", "measure", "of", "expect")
FIGURES: dict[str, tuple[str, ...]] = {  # measure → where a RUN has it
    "tflops": ("tflops",),
    "pct_peak": ("pct_peak",),
    "occupancy_pct": ("occupancy_pct",),
    "registers": ("build", "registers"),
    "spill_bytes": ("build", "spill_bytes"),
    "error": ("error", "rel_fro"),
}
PROPERTIES = ("template", "dtype", "layout", "shape", "varied", "acc", "epilogue")
VENDOR, OTHERS = "vendor", "others"
NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?"


@dataclass(frozen=True, slots=True)
class Selector:
    """Runs by properties and parameter values, all of which must match: `template=mma PAD=0 STAGES=2,3`.

    Runs of another accuracy class than the problem's only where it names one: `acc=fp16`.
    """

    text: str
    terms: tuple[tuple[str, frozenset[str]], ...]

    def matches(self, run: Record) -> bool:
        named = any(name == "acc" for name, _ in self.terms)
        return (named or is_ranked(run["problem"]["acc"])) and self.fits(run)

    def fits(self, run: Record) -> bool:
        """`matches`, whatever the class."""
        return all(_property(run, name) in wanted for name, wanted in self.terms)


@dataclass(frozen=True, slots=True)
class Expectation:
    """The figures for which a claim is true: an interval, its ends included unless it is open."""

    text: str
    low: float = -math.inf
    high: float = math.inf
    is_open: bool = False

    def judge(self, low: float, high: float) -> Verdict:
        """Holds where all of the measured interval lies within, does not where none of it does."""
        if self._has(low) and self._has(high):
            return "holds"
        beyond = (high <= self.low or low >= self.high) if self.is_open else (high < self.low or low > self.high)
        return "does not" if beyond else "undecided"

    def _has(self, value: float) -> bool:
        return self.low < value < self.high if self.is_open else self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Claim:
    """One relation or figure of a source. `claimed` is the source's own figure, shown beside ours."""

    id: str
    text: str
    measure: str
    where: Selector
    of: Selector
    to: Selector | Literal["vendor", "others"] | None
    expect: Expectation
    claimed: str = ""
    remark: str = ""


def parse_claim(experiment: str, table: Mapping[str, Any]) -> Claim:
    """A `[[claim]]` table; raises UsageError for what the vocabulary lacks."""
    where = f"experiment '{experiment}', claim {table.get('id', '?')!r}: "
    for key, value in table.items():
        if key not in KEYS:
            raise UsageError(where + choices("key", key, KEYS))
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{where}{key} must be text.")
    missing = [key for key in REQUIRED if key not in table]
    if missing:
        raise UsageError(f"{where}it lacks {', '.join(missing)}.")
    measure = table["measure"]
    if measure != "speed" and measure not in FIGURES and not re.fullmatch(r"counter\.\w+", measure):
        raise UsageError(where + choices("measure", measure, ("speed", *FIGURES, "counter.NAME")))
    to = table.get("to")
    if measure == "speed" and to is None:
        raise UsageError(f'{where}speed is relative: say to what, as in to = "vendor", "others" or "STAGES=2".')
    if measure != "speed" and to == VENDOR:
        raise UsageError(f'{where}of the vendor only the speed is compared: measure = "speed".')
    return Claim(
        table["id"], table["claim"], measure, parse_selector(where, table.get("where", "")),
        parse_selector(where, table["of"]), _opposite(where, to), parse_expectation(where, table["expect"]),
        table.get("claimed", ""), table.get("remark", ""),
    )  # fmt: skip


def _opposite(where: str, to: str | None) -> Selector | Literal["vendor", "others"] | None:
    if to is None:
        return None
    known: dict[str, Literal["vendor", "others"]] = {VENDOR: "vendor", OTHERS: "others"}
    return known.get(to) or parse_selector(where, to)


def parse_selector(where: str, text: str) -> Selector:
    """Raises UsageError, its message beginning with `where`."""
    terms = []
    for word in text.split():
        name, _, values = word.partition("=")
        wanted = frozenset(values.split(","))
        if "" in wanted or not (name in PROPERTIES or re.fullmatch(r"[A-Z][A-Z0-9_]*", name)):
            known = ", ".join(PROPERTIES)
            raise UsageError(f"{where}{word!r} is not NAME=VALUE[,VALUE…]; a name is a parameter or one of: {known}.")
        terms.append((name, wanted))
    return Selector(text, tuple(terms))


def parse_expectation(where: str, text: str) -> Expectation:
    """`>= 1.03`, `> 1`, `<= 2`, `< 1` or `0.9..1.1`; raises UsageError, its message beginning with `where`."""
    if match := re.fullmatch(rf"(>=|>|<=|<) *({NUMBER})", text):
        sign, bound = match[1], float(match[2])
        is_open = len(sign) == 1
        return (
            Expectation(text, bound, is_open=is_open)
            if sign[0] == ">"
            else Expectation(text, high=bound, is_open=is_open)
        )
    if (match := re.fullmatch(rf"({NUMBER})\.\.({NUMBER})", text)) and float(match[1]) <= float(match[2]):
        return Expectation(text, float(match[1]), float(match[2]))
    raise UsageError(f'{where}expect {text!r} is not a bound or a range, as in ">= 1.03", "< 1" or "0.9..1.1".')


def _property(run: Record, name: str) -> str:
    problem = run["problem"]
    if name == "shape":
        return f"{problem['m']}x{problem['n']}x{problem['k']}"
    if name in ("dtype", "layout", "acc", "epilogue"):
        return str(problem[name])
    return str(run[name] if name in PROPERTIES else run["config"].get(name))
