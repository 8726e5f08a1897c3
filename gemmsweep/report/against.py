"""How a run stands against the vendor library and its other ways, in words and ratios."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gemmsweep.references import (
    VENDOR,
    WORTH_NAMING,
    certainly_faster,
    is_level,
    is_wide,
    library_ahead,
    library_ways,
    stronger_way,
    winner,
    yardstick,
)
from gemmsweep.report.figures import NO_FIGURE, Record, clean, says_nothing, significant, span, times, uncertainty

VENDOR_NAMES = {
    "cublas": "cuBLAS",
    "cublaslt_best": "cuBLASLt best",
    "pad_copy_cublas": "pad + cuBLAS",
    "numpy": "NumPy",
}
UNSTABLE, NOT_TOLD_APART, LEVEL = "unstable", "not told apart", f"within {100 * WORTH_NAMING:.1f}%"
THREADS = re.compile(r", (\d+ threads?)$")  # at the end of a CPU library's version


def vendor_name(reference: str) -> str:
    return VENDOR_NAMES.get(reference, clean(reference))


def main_reference(runs: Sequence[Record]) -> str | None:
    """The reference that tables compare with: the vendor library where it raced, else the first on record."""
    return yardstick(name for run in runs for name in run.get("references") or {})


def standing(relation: Record) -> str:
    """The one word for a kernel against a reference: faster, slower, `not told apart` where the 95% interval holds 1, or
    there is none, as of two rounds.

    `within 0.5%` where it does not, but the difference is no larger than between two races of the same configs.
    `unstable` where it would be faster, but the ratio or the reference's own time is anybody's guess: a library that
    stumbles is no praise for the kernel.
    """
    ratio, ci95 = relation["ratio"], relation.get("ci95")
    if not ci95 or ci95[0] <= 1 <= ci95[1]:
        return NOT_TOLD_APART
    if is_level(ratio):
        return LEVEL
    if ratio < 1:
        return "slower"
    return UNSTABLE if is_wide(ratio, ci95) or reference_stumbled(relation) else "faster"


def reference_stumbled(relation: Record) -> bool:
    """Whether the reference's own rounds are too far apart for a yardstick."""
    return is_wide(relation.get("median_us"), relation.get("ci95_us"))


def ratio_phrase(relation: Record, reference: str, on: str = "", *, sure: bool = False) -> str:
    """`1.03× cuBLAS (faster)`, with the word of `standing` and, where the figure does not show it, why it is unstable.
    `on`: `1 thread`, as in `1.07× NumPy on 1 thread (faster)`. `sure`: how sure, as in `1.03× cuBLAS (faster, ±0.20%)`.

    A ratio that is too wide for a figure as its interval, `1.9–64× NumPy`, or where that says nothing, as `no figure`.
    """
    ratio, ci95 = relation["ratio"], relation.get("ci95")
    name, word = vendor_name(reference), standing(relation)
    what = f"{name} on {on}" if on else name
    if not ci95 or not is_wide(ratio, ci95):
        why = f": {name}'s own time varies" if word == UNSTABLE else ""
        how = f", {uncertainty(ratio, ci95)}" if sure and ci95 and word != UNSTABLE else ""
        return f"{times(ratio)}× {what} ({word}{how}{why})"
    if says_nothing(ratio, ci95):
        return f"{NO_FIGURE} against {what} ({word})"
    return f"{span(ci95)}× {what} ({word})"


def vendor_relation(run: Record) -> tuple[str | None, Record]:
    """The run's main reference and how it stands to that; None and nothing where none raced."""
    name = main_reference([run])
    return name, (run.get("references") or {}).get(name) or {}


def vendor_phrase(run: Record) -> str:
    """The run against its main reference, or nothing where none raced. On a CPU with the library's threads: `tune` gives it
    all there are, a race as many as its kernels have at most, and one table may hold both.
    """
    name, relation = vendor_relation(run)
    if not relation.get("ratio"):
        return ""
    threads = THREADS.search(clean(relation.get("version")))
    return ratio_phrase(relation, str(name), threads[1] if threads else "", sure=True)


def vendor_phrases(run: Record) -> str:
    """The same; another way of the vendor's, too, where only it is certainly faster than the run or it beats the usual one; and
    a regime that is not the usual one.
    """
    relations = run.get("references") or {}
    usual, relation = vendor_relation(run)
    other = None if certainly_faster(relation) else library_ahead(relations)
    other = other or stronger_way(relations, str(usual))
    parts = [vendor_phrase(run)]
    if other is not None:
        parts.append(ratio_phrase(relations[other], other, sure=True))
    if run.get("regime") not in (None, "equal-clock"):
        parts.append(clean(run["regime"]))
    return ", ".join(part for part in parts if part)


def vendor_sentence(run: Record) -> str:
    """The run against its main reference, as a sentence; nothing where none raced."""
    name, relation = vendor_relation(run)
    ratio, ci95 = relation.get("ratio"), relation.get("ci95")
    if not ratio:
        return ""
    if not ci95 or not is_wide(ratio, ci95):
        return f"It runs at {ratio_phrase(relation, str(name))}."
    if says_nothing(ratio, ci95):
        return f"There is {ratio_phrase(relation, str(name))}: the rounds lie orders of magnitude apart."
    low, high = (significant(edge, 2) for edge in ci95)
    return f"It runs at anything from {low} to {high}× {vendor_name(str(name))} ({standing(relation)})."


def hardest_reference(run: Record) -> tuple[str | None, Record]:
    """The vendor's way that is certainly faster than the run, else the one that beats its usual one, else that."""
    relations = run.get("references") or {}
    usual, relation = vendor_relation(run)
    hardest = library_ahead(relations) or stronger_way(relations, str(usual))
    return (hardest, relations[hardest]) if hardest is not None else (usual, relation)


def fastest(best: Record) -> str:
    """Who is certainly the fastest on a problem: `vendor` or the family; else `unstable` or `not told apart`."""
    relations = best.get("references") or {}
    taken = winner(clean(best["template"]), relations)
    if taken == VENDOR:
        return taken
    ways = [relations[name] for name in library_ways(relations)] or [vendor_relation(best)[1]]
    found = {standing(relation) if relation else NOT_TOLD_APART for relation in ways} - {"faster"}
    return taken if not found else UNSTABLE if found == {UNSTABLE} else NOT_TOLD_APART
