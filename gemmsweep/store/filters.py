"""Which sweeps and runs a command is about."""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gemmsweep.errors import UsageError, choices
from gemmsweep.model import STATUSES
from gemmsweep.store.ids import resolve


@dataclass(frozen=True, slots=True)
class Filter:
    """What the options of `report` and `export-best` ask for; None asks for nothing."""

    experiment: str | None = None
    template: str | None = None
    shape: tuple[str, ...] | None = None  # any of ("512x4096x4096", …)
    dtype: str | None = None
    layout: str | None = None
    epilogue: str | None = None  # in its canonical text; "none" asks for plain products
    device: str | None = None  # part of a name, UUID or device class
    status: str | None = None
    regime: str | None = None
    l2: str | None = None
    sweep: str | None = None  # a piece of an id
    run: str | None = None  # a piece of an id
    session: str | None = None  # a whole id: what one command raced
    kind: str | None = None  # "axis", "finals", "selftest", "verify"
    # Of what the others leave, what the latest command raced; a selftest only where there is no other.
    last: bool = False


EVERYTHING = Filter()  # that was raced
CHECKS = Filter(experiment="verify")


@dataclass(frozen=True, slots=True)
class Conditions:
    """A filter as SQL over `sweeps s JOIN environments e`, and over view `results r` within those sweeps."""

    sweeps: str
    runs: str
    parameters: dict[str, Any] = field(default_factory=dict)


_OF_SHAPES = """(s.m, s.n, s.k) IN
(SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(:shape))"""
# field → (noun for people, condition on sweeps, condition on runs)
_CONDITIONS = {
    "experiment": ("experiment", "s.experiment = :experiment", None),
    "template": ("template", None, "r.template = :template"),
    "shape": ("shape", _OF_SHAPES, None),
    "dtype": ("dtype", "s.dtype = :dtype", None),
    "layout": ("layout", "s.layout = :layout", None),
    "epilogue": ("epilogue", "s.epilogue = :epilogue", None),
    "device": ("device", "instr(lower(e.name || '\n' || e.uuid || '\n' || e.device_class), lower(:device)) > 0", None),
    "status": ("status", None, "r.status = :status"),
    "regime": ("regime", "s.regime = :regime", None),
    "l2": ("L2 state", "s.l2 = :l2", None),
    "sweep": ("sweep", "s.sweep_id = :sweep", None),
    "run": ("run", "s.key = :run_sweep", "r.run_id = :run"),
    "session": ("session", "s.session_id = :session", None),
    "kind": ("kind", "s.kind = :kind", None),
}
# field → what to list when nothing matches it
_ON_RECORD = {
    "experiment": "s.experiment",
    "template": "r.template",
    "shape": "s.m || 'x' || s.n || 'x' || s.k",
    "dtype": "s.dtype",
    "layout": "s.layout",
    "epilogue": "s.epilogue",
    "device": "e.name",
    "status": "r.status",
    "regime": "s.regime",
    "l2": "s.l2",
}
_FROM = """sweeps s JOIN environments e ON e.key = s.environment_key
JOIN results r ON r.sweep_key = s.key AND r.role = 'config'"""
_LISTED = 12
# Checks without a race fill pages and have no times: they are shown to who asks for them.
_RACED = "s.kind <> 'verify'"


def conditions(connection: sqlite3.Connection, wanted: Filter) -> Conditions:
    """The filter as SQL. Raises UsageError for a malformed shape or status, an unknown or ambiguous id."""
    named = wanted.experiment == CHECKS.experiment or wanted.sweep or wanted.run or wanted.session
    on_sweeps, on_runs = ["1" if named else _RACED], ["r.role = 'config'"]
    for name, (_, on_sweep, on_run) in _CONDITIONS.items():
        if getattr(wanted, name) is not None:
            on_sweeps += [on_sweep] if on_sweep else []
            on_runs += [on_run] if on_run else []
    found = Conditions(" AND ".join(on_sweeps), " AND ".join(on_runs), _parameters(connection, wanted))
    if len(on_runs) > 1:
        exists = f"EXISTS (SELECT 1 FROM results r WHERE r.sweep_key = s.key AND {found.runs})"
        found = replace(found, sweeps=f"{found.sweeps} AND {exists}")
    return _latest_command(connection, found) if wanted.last else found


def why_empty(connection: sqlite3.Connection, wanted: Filter, *, finals: bool = False) -> str:
    """A sentence that names the filter nothing passes, and what is on record for it.

    With `finals`, nothing passed to `export-best`: only finished, undisturbed finals count there.
    """
    if not _count(connection, EVERYTHING):
        if _count(connection, CHECKS):
            return "the results file holds checks, no races. Show them: gemmsweep report --experiment verify."
        return "the results file holds no runs yet. Measure some: gemmsweep run --vary BK."
    narrowed = EVERYTHING
    for one in fields(Filter):
        value = getattr(wanted, one.name)
        if value in (None, False):
            continue
        wider, narrowed = narrowed, replace(narrowed, **{one.name: value})
        if not _count(connection, narrowed):
            return _nothing_has(connection, one.name, value, wider)
    if finals:
        return (
            "no verified finals match: contended ones, unfinished ones and those with a hot L2 don't count. "
            "Race some: gemmsweep run --vary BK."
        )
    return "nothing matches."


def _nothing_has(connection: sqlite3.Connection, name: str, value: str | tuple[str, ...], wider: Filter) -> str:
    given = [(noun, getattr(wider, one)) for one, (noun, _, _) in _CONDITIONS.items()]
    with_ = ", ".join(f"{noun} {' or '.join(_texts(one))}" for noun, one in given if one is not None)
    among = f" among those with {with_}" if with_ else ""
    lacking = f"{_CONDITIONS[name][0]} {' or '.join(map(repr, _texts(value)))}{among}"
    if name not in _ON_RECORD:
        return f"no run belongs to {lacking}."
    found = conditions(connection, wider)
    query = f"""SELECT DISTINCT {_ON_RECORD[name]} FROM {_FROM} WHERE {found.sweeps} AND {found.runs}
    AND {_ON_RECORD[name]} IS NOT NULL ORDER BY 1 LIMIT {_LISTED + 1}"""
    there = [str(row[0]) for row in connection.execute(query, found.parameters)]
    listed = ", ".join(there[:_LISTED]) + (", …" if len(there) > _LISTED else "")
    return f"no run has {lacking}. On record: {listed or 'none'}."


def _texts(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def any_runs(connection: sqlite3.Connection, wanted: Filter) -> bool:
    """Whether a run passes."""
    return bool(_count(connection, wanted))


def newest_kind(connection: sqlite3.Connection, wanted: Filter) -> str | None:
    """Of the sweep begun last."""
    found = conditions(connection, wanted)
    query = f"""SELECT s.kind FROM sweeps s JOIN environments e ON e.key = s.environment_key
    WHERE {found.sweeps} ORDER BY s.started_at DESC, s.key DESC LIMIT 1"""
    row = connection.execute(query, found.parameters).fetchone()
    return None if row is None else str(row[0])


def _count(connection: sqlite3.Connection, wanted: Filter) -> int:
    found = conditions(connection, wanted)
    query = f"SELECT EXISTS (SELECT 1 FROM {_FROM} WHERE {found.sweeps} AND {found.runs})"
    count: int = connection.execute(query, found.parameters).fetchone()[0]
    return count


def _parameters(connection: sqlite3.Connection, wanted: Filter) -> dict[str, Any]:
    given = {name: getattr(wanted, name) for name in _CONDITIONS if getattr(wanted, name) is not None}
    if wanted.status is not None and wanted.status not in STATUSES:
        raise UsageError(choices("status", wanted.status, STATUSES))
    if wanted.shape is not None:
        given["shape"] = json.dumps([_sizes(shape) for shape in wanted.shape])
    if wanted.sweep is not None:
        given["sweep"] = resolve(connection, "sweep", wanted.sweep)
    if wanted.run is not None:
        given["run"] = resolve(connection, "run", wanted.run)
        query = "SELECT sweep_key FROM runs WHERE run_id = ?"
        given["run_sweep"] = connection.execute(query, (given["run"],)).fetchone()[0]
    return given


def _sizes(shape: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"([0-9]{1,18})x([0-9]{1,18})x([0-9]{1,18})", shape.strip().lower())
    if not match:
        raise UsageError(f"{shape!r} is not a shape. Write MxNxK, for example 512x4096x4096.")
    m, n, k = (int(size) for size in match.groups())
    return m, n, k


def _latest_command(connection: sqlite3.Connection, found: Conditions) -> Conditions:
    """A command has a session for each of its problems or parts; no two of them were asked the same.

    Labels of a selftest are equal kernels under several names: not what one looks for, unless there is nothing else.
    """
    query = f"""SELECT s.session_id, s.request_key, s.command FROM sweeps s JOIN environments e ON e.key = s.environment_key
    WHERE {found.sweeps} ORDER BY s.kind = 'selftest', s.started_at DESC, s.key DESC"""
    sessions: dict[str, str] = {}
    latest = None
    for session, request, command in connection.execute(query, found.parameters):
        latest = command if latest is None else latest
        if command != latest or (session not in sessions and request in sessions.values()):
            break
        sessions[session] = request
    parameters = {**found.parameters, "sessions": json.dumps(list(sessions))}
    among = "s.session_id IN (SELECT value FROM json_each(:sessions))"
    return Conditions(f"{among} AND {found.sweeps}", found.runs, parameters)
