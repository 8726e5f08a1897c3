"""Which finals of a problem stand where there are several: the latest that decided and left out no faster one."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemmsweep.model import PROBLEM_FIELDS
from gemmsweep.references import yardstick
from gemmsweep.store.read import cursor_by_name
from gemmsweep.store.schema import DECIDED, RACED

# Undisturbed finals with a verified config, in SQL over `sweeps s`.
ELIGIBLE = f"""s.kind = 'finals' AND s.protocol = 'rounds' AND s.finished_at IS NOT NULL AND s.contended = 0
AND s.verdict <> 'none' AND EXISTS (SELECT 1 FROM runs r WHERE r.sweep_key = s.key AND {RACED})"""
# When each config of a problem was last found wrong on such a device, in whatever race or check, beside other load or not.
_FOUND_WRONG = f"""SELECT r.template, r.source_key, r.config, max(r.started_at) AS at FROM runs r
JOIN sweeps s ON s.key = r.sweep_key JOIN environments e ON e.key = s.environment_key
WHERE r.role = 'config' AND r.status IN ('incorrect', 'unstable') AND e.device_class = :device_class
AND {" AND ".join(f"s.{name} = :{name}" for name in PROBLEM_FIELDS)} GROUP BY 1, 2, 3"""
# Under a power cap energy is speed, and only blocks long enough to settle show it.
CAPPED_PCT = 50.0
# How far ratios of two races must be apart to say anything: those of the same two configs differ by more in one of ten
# (docs/measuring.md), whatever the intervals of one race say.
BETWEEN_RACES = 0.012
Ratio = tuple[float, float, float]  # and its 95% interval
Identity = tuple[str, int | None, str]  # template, key of its text, config
Reference = tuple[str, str]  # name and version: another version of a library is another yardstick


@dataclass(frozen=True, slots=True)
class Entry:
    """A config of finals: what it is, and how it stood to each reference, as reference time / its own."""

    label: str
    template: str
    source: int | None  # key of the template's text
    config: str
    ratios: Mapping[Reference, Ratio]

    @property
    def identity(self) -> Identity:
        return self.template, self.source, self.config


@dataclass(frozen=True, slots=True)
class Finals:
    """One deciding race: its row, who took part and has not been found wrong since, and which of them is the one to take."""

    row: sqlite3.Row
    entries: Sequence[Entry]
    winner: Entry
    reduced: bool  # its own winner has been found wrong since

    @property
    def behind(self) -> list[Entry]:
        """Who is certainly slower than another; of whom nothing was said is not."""
        level = {self.row["winner"], *json.loads(self.row["ties"])} - {None}
        return [one for one in self.entries if level and one.label not in level]

    @property
    def verdict(self) -> str:
        """What it says of the one to take."""
        return "undecided" if self.reduced else str(self.row["verdict"])

    @property
    def decided(self) -> bool:
        """Whether it says which config to take; one that raced alone had nobody to win against, and there is no margin."""
        alone = self.row["verdict"] == "winner" and self.row["margin_pct"] is None
        return self.verdict in DECIDED and not alone


def standing(
    connection: sqlite3.Connection, rows: Sequence[sqlite3.Row], key: str, regime: str | None = None
) -> Finals | None:
    """Of all undisturbed finals of one problem on one class of devices, latest first; `key` is the column with the sweep's.

    Finals are told by the regime that decides, or by the `regime` asked for. From the earliest on, each replace what stood
    before them or do not, see `replaces`. None where none are of a regime that decides, with a config that has not been found
    wrong since.
    """
    if not rows:
        return None
    wrong = found_wrong(connection, rows[0])
    stands: Finals | None = None
    for races in each_finals(rows):
        told = decide(races) if regime is None else races[0]
        if told is not None:
            later = read(connection, told, told[key], wrong)
            stands = later if later is not None and (stands is None or replaces(later, stands)) else stands
    return stands


def each_finals(rows: Sequence[sqlite3.Row]) -> list[list[sqlite3.Row]]:
    """Races of one problem, latest first, as the finals that they are: by regime, of one session, the earliest finals first.

    Finals begin at equal clock. A session that went on, given more time, held them again: those are finals of their own.
    """
    found: list[list[sqlite3.Row]] = []
    latest: dict[str, list[sqlite3.Row]] = {}  # of each session
    for row in reversed(rows):
        session = row["session_id"]
        if session not in latest or row["regime"] == "equal-clock":
            latest[session] = []
            found.append(latest[session])
        latest[session].insert(0, row)
    return found


def found_wrong(connection: sqlite3.Connection, problem: Mapping[str, Any] | sqlite3.Row) -> dict[Identity, str]:
    """When each config of a problem (a row with its fields and `device_class`) was last found wrong."""
    parameters = {name: problem[name] for name in (*PROBLEM_FIELDS, "device_class")}
    rows = connection.execute(_FOUND_WRONG, parameters)
    return {(template, source, config): at for template, source, config, at in rows}


def replaces(later: Finals, earlier: Finals) -> bool:
    """Whether later finals take the place of those that stood.

    They do where the kernel of the earlier winner has changed since. Equal clock under a cap does not replace own power, which
    decides there. Where the winner was not raced again (results of several files were merged, or a family was left out) they do
    not if it is certainly faster. Else they do if they decided who wins, or the earlier ones had not either, or the winner is
    certainly slower now; and what was left open replaces a decision only where it is certainly faster.
    """
    was = earlier.winner
    if any(one.template == was.template and one.source != was.source for one in later.entries):
        return True
    if (earlier.row["regime"], later.row["regime"]) == ("own-power", "equal-clock") and is_capped(later.row):
        return False
    if all(one.identity != was.identity for one in later.entries) and certainly_faster(earlier, later):
        return False
    beaten = any(one.identity == was.identity for one in later.behind)
    return later.decided or not earlier.decided or beaten or certainly_faster(later, earlier)


def kept(winner: str | None, fastest_first: Sequence[str]) -> str:
    """The label of the config to take from finals, of those that raced, at least one: their winner, else the fastest."""
    return winner if winner is not None and winner in fastest_first else fastest_first[0]


def decide(races: list[sqlite3.Row]) -> sqlite3.Row | None:
    """Of finals in several regimes, latest first, those of the regime that decides; None where there are none.

    A burst after a rest is faster than anything in use: its regime decides nothing. Own power does under a power cap alone:
    without one, and with the finals at equal clock disturbed, nothing is decided.
    """
    by_regime = {row["regime"]: row for row in reversed(races)}
    equal, own = by_regime.get("equal-clock"), by_regime.get("own-power")
    measured = [row for row in (equal, own) if row is not None and row["power_capped_pct"] is not None]
    return own if own is not None and measured and is_capped(measured[0]) else equal


def is_capped(row: sqlite3.Row) -> bool:
    """Whether the software power cap held in enough of the bursts for own power to decide."""
    return row["power_capped_pct"] is not None and bool(row["power_capped_pct"] >= CAPPED_PCT)


def certainly_faster(one: Finals, other: Finals) -> bool:
    """Whether one's winner is, by the yardstick that both raced against, in the same version and by the same regime.

    That is intervals that do not touch, and by more than BETWEEN_RACES.
    """
    if one.row["regime"] != other.row["regime"]:
        return False
    ratios, others = one.winner.ratios, other.winner.ratios
    common = {name: (name, version) for name, version in ratios if (name, version) in others}
    first = yardstick(common)
    if first is None:
        return False
    (mine, low, _), (its, _, high) = ratios[common[first]], others[common[first]]
    return low > high and math.log(mine / its) >= math.log1p(BETWEEN_RACES)


def read(
    connection: sqlite3.Connection, row: sqlite3.Row, sweep_key: int, wrong: Mapping[Identity, str]
) -> Finals | None:
    """What a row of `sweeps` with a verified config says; None where all of them have been found wrong since."""
    query = f"""SELECT r.label, r.template, r.source_key, r.config, r.relations, r.started_at FROM runs r
    JOIN sweeps s ON s.key = r.sweep_key WHERE r.sweep_key = ? AND {RACED} ORDER BY r.median_ns, r.label"""
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
        entry = Entry(run["label"], run["template"], run["source_key"], run["config"], ratios)
        if wrong.get(entry.identity, "") <= run["started_at"]:
            entries[entry.label] = entry
    if not entries:
        return None
    winner = entries[kept(row["winner"], list(entries))]
    return Finals(row, list(entries.values()), winner, row["winner"] not in (None, winner.label))
