"""From a finished contest to its stored outcome."""

from __future__ import annotations

import math
from dataclasses import replace

from gemmsweep import contest
from gemmsweep.contest import Contest
from gemmsweep.plan import adopt
from gemmsweep.record import Outcome


def nothing_raced(stopped: str | None = None, *, contended: bool = False) -> Outcome:
    """Every config failed, before the race or in it."""
    return Outcome("none", None, (), None, 0, contended, stopped, False, {})


def nothing_ranked(held: Contest, *, contended: bool) -> Outcome:
    """Nothing that raced sums as the problem asks for: times without a winner."""
    return replace(nothing_raced(held.stopped, contended=contended), measurements=contest.measurements(held))


def outcome(held: Contest, *, present: str | None, foreign: str) -> Outcome:
    """Verdict and adoption of a contest; `present` is the label the sweep started from, `foreign` other load, in words."""
    found, labels, contended = held.verdict, held.ranked, bool(foreign)
    if found is None and held.raced:
        return nothing_ranked(held, contended=contended)
    if found is None:
        return nothing_raced(held.stopped, contended=contended)
    # The start itself may have failed, before the race or in it.
    adoption = adopt(found, labels, present if present in labels else None, contended=contended)
    margin = None if math.isinf(found.margin) else 100.0 * math.expm1(found.margin)
    return Outcome(
        verdict=found.kind,
        winner=labels[found.leader] if found.kind == "winner" else adoption.label,
        ties=tuple(labels[i] for i in (found.leader, *found.ties)) if found.ties else (),
        margin_pct=margin,
        pairs_different=len(found.different),
        contended=contended,
        stopped=held.stopped,
        adopted=adoption.adopted,
        measurements=contest.measurements(held),
    )
