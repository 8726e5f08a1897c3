"""Where a difference is the clock's rather than the kernel's, said in a sentence from the stored figures."""

from __future__ import annotations

from collections.abc import Sequence

from gemmsweep.ranking import is_timed
from gemmsweep.report import words
from gemmsweep.report.figures import Record, counter, percent

CLOCK_PCT = 1.0  # clocks further apart than this are not equal
NAMED_PCT = 0.5  # differences of time from here on are worth naming


def notes(grouped: Sequence[tuple[Record, Sequence[Record]]]) -> dict[str, str]:
    """A sentence by sweep_id, for the sweeps that need one; `grouped` is in the order the sweeps were raced."""
    found = {}
    for place, (sweep, runs) in enumerate(grouped):
        equal = [runs_ for other, runs_ in grouped[:place] if other.get("regime") == "equal-clock"]
        text = note(sweep, runs, equal)
        if text:
            found[sweep["sweep_id"]] = text
    return found


def note(sweep: Record, runs: Sequence[Record], equal: Sequence[Sequence[Record]] = ()) -> str:
    """About the leader and the next of one sweep; `equal` are the runs of earlier sweeps at equal clock."""
    raced = [run for run in runs if is_timed(run)]
    if len(raced) < 2:
        return ""
    raced.sort(key=lambda run: float(run["median_us"]))
    fast, slow = raced[:2]
    named = dict(zip((run["run_id"] for run in runs), words.labels(runs, sweep.get("varied")), strict=True))
    names = named[fast["run_id"]], named[slow["run_id"]]
    if sweep.get("regime") == "equal-clock":
        return _unequal(fast, slow, names)
    if sweep.get("regime") != "own-power" or _gap_pct(fast, slow) < NAMED_PCT:
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


def _tied_before(fast: Record, slow: Record, equal: Sequence[Sequence[Record]]) -> str:
    """Own power tells two apart that tied at equal clock."""
    for runs in reversed(equal):
        before = [next((r for r in runs if _same(r, run) and r.get("median_us")), None) for run in (fast, slow)]
        if before[0] and before[1]:
            if abs(_gap_pct(before[0], before[1])) >= NAMED_PCT:
                return ""
            gap = percent(_gap_pct(fast, slow))
            return (
                f"At equal clock the two tie: the {gap}% are clock rather than kernel, and hold under this power limit."
            )
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
