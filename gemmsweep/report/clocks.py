"""Where a difference is the clock's rather than the kernel's, said in a sentence from the stored figures."""

from __future__ import annotations

from collections.abc import Sequence

from gemmsweep.ranking import is_timed
from gemmsweep.references import WORTH_NAMING
from gemmsweep.report import words
from gemmsweep.report.figures import Record, counter, percent

Raced = tuple[Record, Sequence[Record]]  # a sweep and its runs
CLOCK_PCT = 1.0  # clocks further apart than this are not equal


def notes(grouped: Sequence[Raced]) -> dict[str, str]:
    """A sentence by sweep_id, for the sweeps that need one; `grouped` is in the order the sweeps were raced."""
    found = {}
    for place, (sweep, runs) in enumerate(grouped):
        equal = [one for one in grouped[:place] if one[0].get("regime") == "equal-clock"]
        text = note(sweep, runs, equal)
        if text:
            found[sweep["sweep_id"]] = text
    return found


def note(sweep: Record, runs: Sequence[Record], equal: Sequence[Raced] = ()) -> str:
    """About the leader and the next of one sweep; `equal` are earlier sweeps at equal clock."""
    raced = [run for run in runs if is_timed(run)]
    if len(raced) < 2:
        return ""
    raced.sort(key=lambda run: float(run["median_us"]))
    fast, slow = raced[:2]
    named = dict(zip((run["run_id"] for run in runs), words.labels(runs, sweep.get("varied")), strict=True))
    names = named[fast["run_id"]], named[slow["run_id"]]
    if sweep.get("regime") == "equal-clock":
        return _unequal(fast, slow, names)
    if sweep.get("regime") != "own-power" or _gap_pct(fast, slow) < 100 * WORTH_NAMING:
        return ""
    parts = [_by_clock(fast, slow, names) or _tied_before(fast, slow, equal), _energy(fast, slow, names)]
    return " ".join(part for part in parts if part)


def _unequal(fast: Record, slow: Record, names: tuple[str, str]) -> str:
    clocks = counter(fast, "sm_clock_mhz"), counter(slow, "sm_clock_mhz")
    if not clocks[0] or not clocks[1] or abs(clocks[0] / clocks[1] - 1) < CLOCK_PCT / 100:
        return ""
    return (
        f"Their clocks were not equal: {names[0]} ran at {clocks[0]:.0f} MHz, {names[1]} at {clocks[1]:.0f}; "
        f"in cycles {names[0]} needs {_more(100 * (clocks[0] / clocks[1] / (1 + _gap_pct(fast, slow) / 100) - 1))}."
    )


def _by_clock(fast: Record, slow: Record, names: tuple[str, str]) -> str:
    """Own power: time = cycles / clock, so compare both."""
    clocks = counter(fast, "sm_clock_mhz"), counter(slow, "sm_clock_mhz")
    gap = _gap_pct(fast, slow)
    if not clocks[0] or not clocks[1]:
        return ""
    by_clock = 100 * (clocks[0] / clocks[1] - 1)
    if by_clock < gap / 3:
        return ""
    what = (
        "The difference is clock rather than kernel" if by_clock >= 2 * gap / 3 else "Part of the difference is clock"
    )
    return (
        f"{what}: under the power limit {names[0]} ran at {clocks[0]:.0f} MHz and {names[1]} at {clocks[1]:.0f}, "
        f"{percent(by_clock)}% of the {percent(gap)}%."
    )


def _tied_before(fast: Record, slow: Record, equal: Sequence[Raced]) -> str:
    """Own power tells two apart that the last race of both at equal clock called a tie."""
    for sweep, runs in reversed(equal):
        before = [next((r for r in runs if _same(r, run) and is_timed(r)), None) for run in (fast, slow)]
        if before[0] and before[1]:
            tied = sweep.get("verdict") == "tie" and {r["run_id"] for r in before if r} <= set(sweep.get("ties") or ())
            gap = percent(_gap_pct(fast, slow))
            told = (
                f"At equal clock the two tie: the {gap}% are clock rather than kernel, and hold under this power limit."
            )
            return told if tied else ""
    return ""


def _energy(fast: Record, slow: Record, names: tuple[str, str]) -> str:
    if not fast.get("joules") or not slow.get("joules"):
        return ""
    return f"Energy per product: {names[1]} needs {_more(100 * (slow['joules'] / fast['joules'] - 1))}."


def _more(by_pct: float) -> str:
    return f"{percent(abs(by_pct))}% {'more' if by_pct >= 0 else 'less'}"


def _same(one: Record, other: Record) -> bool:
    keys = ("problem", "device", "template", "source_sha256", "config")
    return all(one.get(key) == other.get(key) for key in keys)


def _gap_pct(fast: Record, slow: Record) -> float:
    return 100 * (float(slow["median_us"]) / float(fast["median_us"]) - 1)
