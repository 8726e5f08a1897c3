"""Which finals of a problem stand where several sessions held some: the latest that decided, unless they left out a faster one."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmsweep.references import yardstick
from gemmsweep.store.read import cursor_by_name
from gemmsweep.store.schema import DECIDED, RACED

# Undisturbed finals with a verified config, in SQL over `sweeps s`.
ELIGIBLE = f"""s.kind = 'finals' AND s.protocol = 'rounds' AND s.finished_at IS NOT NULL AND s.contended = 0
AND s.verdict <> 'none' AND EXISTS (SELECT 1 FROM runs r WHERE r.sweep_key = s.key AND {RACED})"""
# A burst after a rest is faster than anything in use: its regime decides nothing, and is told only where it is asked for.
DECIDING = "s.regime <> 'burst'"
# Under a power cap energy is speed, and only blocks long enough to settle show it.
CAPPED_PCT = 50.0
# How far ratios of two races must be apart to say anything: those of the same two configs differ by more in one of ten
# (docs/measuring.md), whatever the intervals of one race say.
BETWEEN_RACES = 0.012
Ratio = tuple[float, float, float]  # and its 95% interval
Reference = tuple[str, str]  # name and version: another version of a library is another yardstick


@dataclass(frozen=True, slots=True)
class Entry:
    """A verified config of finals: what it is, and how it stood to each reference, as reference time / its own."""

    template: str
    source: int | None  # key of the template's text
    config: str
    ratios: Mapping[Reference, Ratio]

    @property
    def identity(self) -> tuple[str, int | None, str]:
        return self.template, self.source, self.config


@dataclass(frozen=True, slots=True)
class Finals:
    """One deciding race: its row, who took part, and who won (None: nobody that is known)."""

    row: sqlite3.Row
    entries: Sequence[Entry]
    winner: Entry | None


def standing(connection: sqlite3.Connection, rows: Sequence[sqlite3.Row], key: str) -> sqlite3.Row:
    """Of all undisturbed finals of one problem, latest first; `key` is the column with the sweep's.

    One session's finals are told by the regime that decides. One that left it open replaces one that did not only where what
    it kept is certainly faster by the same reference, or the earlier winner's kernel has changed since. One that never raced
    the winner of an earlier one replaces it unless that winner is certainly faster by the same reference: results of several
    files were merged, or a family was left out. A config that raced alone has decided nothing: whatever comes later replaces it.
    """
    sessions: dict[str, list[sqlite3.Row]] = {}
    for row in rows:
        sessions.setdefault(row["session_id"], []).append(row)
    candidates = [decide(races) for races in sessions.values()]
    decided = [row for row in candidates if row["verdict"] in DECIDED]
    stands = decided_last(connection, decided, key) if decided else candidates[0]
    left_open = [
        row for row in itertools.takewhile(lambda row: row is not stands, candidates) if row["verdict"] not in DECIDED
    ]
    if left_open and not lone(stands):
        was = read(connection, stands, stands[key])
        left_open = [row for row in left_open if overtakes(read(connection, row, row[key]), was)]
    return left_open[0] if left_open else stands


def decided_last(connection: sqlite3.Connection, decided: Sequence[sqlite3.Row], key: str) -> sqlite3.Row:
    """Of finals that decided, latest first, the latest that does not leave out a faster one."""
    latest, *earlier = (read(connection, row, row[key]) for row in decided)
    since = list(latest.entries)
    for one in earlier:
        if holds_against(one, latest, since):
            latest = one
        since += one.entries
    return latest.row


def lone(row: sqlite3.Row) -> bool:
    """Whether the winner had nobody to win against: there is no margin."""
    return row["verdict"] == "winner" and row["margin_pct"] is None


def kept(winner: str | None, fastest_first: Sequence[str]) -> str:
    """The label of the config to take from finals, of those that raced, at least one: their winner, else the fastest."""
    return winner if winner is not None and winner in fastest_first else fastest_first[0]


def decide(races: list[sqlite3.Row]) -> sqlite3.Row:
    """Of one session's finals of a problem, latest first, the regime that decides."""
    # Finals begin at equal clock; a session that went on may have had no time to repeat those of own power.
    first = next((i for i, row in enumerate(races) if row["regime"] == "equal-clock"), len(races))
    races = races[: first + 1]
    by_regime = {row["regime"]: row for row in reversed(races)}
    equal, own = by_regime.get("equal-clock"), by_regime.get("own-power")
    if equal is None or own is None:
        return equal or own or races[0]
    capped = equal["power_capped_pct"] if equal["power_capped_pct"] is not None else own["power_capped_pct"]
    return own if capped is not None and capped >= CAPPED_PCT else equal


def overtakes(later: Finals, earlier: Finals) -> bool:
    """Whether what later finals kept, though they left open who wins, is to be taken: certainly faster, or of a changed kernel."""
    now, was = later.winner, earlier.winner
    if now is None or was is None or later.row["regime"] != earlier.row["regime"]:
        return False
    return changed(was, later.entries) or faster_between_races(now, was)


def changed(one: Entry, since: Sequence[Entry]) -> bool:
    """Whether its kernel was raced with another text since."""
    return any(entry.template == one.template and entry.source != one.source for entry in since)


def faster_between_races(one: Entry, other: Entry) -> bool:
    """By the yardstick that both raced against, in the same version: intervals that do not touch, and BETWEEN_RACES."""
    common = {name: (name, version) for name, version in one.ratios if (name, version) in other.ratios}
    first = yardstick(common)
    if first is None:
        return False
    (ratio, low, _), (others, _, high) = one.ratios[common[first]], other.ratios[common[first]]
    return low > high and math.log(ratio / others) >= math.log1p(BETWEEN_RACES)


def holds_against(earlier: Finals, later: Finals, since: Sequence[Entry]) -> bool:
    """Whether the earlier winner is the one to take: not raced `since`, of a kernel that is still the same, certainly faster."""
    was, now = earlier.winner, later.winner
    if was is None or now is None or earlier.row["regime"] != later.row["regime"]:
        return False
    if any(entry.identity == was.identity for entry in since):
        return False
    return not changed(was, since) and faster_between_races(was, now)


def read(connection: sqlite3.Connection, row: sqlite3.Row, sweep_key: int) -> Finals:
    query = f"""SELECT r.label, r.template, r.source_key, r.config, r.relations FROM runs r
    JOIN sweeps s ON s.key = r.sweep_key
    WHERE r.sweep_key = ? AND {RACED}"""
    versions = dict(
        connection.execute("SELECT label, version FROM runs WHERE sweep_key = ? AND role = 'reference'", (sweep_key,))
    )
    entries: dict[str, Entry] = {}
    for run in cursor_by_name(connection).execute(query, (sweep_key,)):
        relations = json.loads(run["relations"] or "{}")
        ratios = {
            (name, versions.get(name) or ""): (ratio, low, high)
            for name, (ratio, low, high) in relations.items()
            if low is not None and high is not None
        }
        entries[run["label"]] = Entry(run["template"], run["source_key"], run["config"], ratios)
    return Finals(row, list(entries.values()), entries.get(row["winner"]))
