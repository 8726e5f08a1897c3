"""What `tune` answers for one problem: its best verified config, how far each family was searched, and what was left out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gemmsweep.finals import renderable
from gemmsweep.model import DeviceInfo, Problem
from gemmsweep.plan import differences
from gemmsweep.references import winner
from gemmsweep.store import Filter, Store, problem_of
from gemmsweep.template.declaration import Template
from gemmsweep.tune.families import Family
from gemmsweep.tune.search import Hunt

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """`best` is as `export-best` prints it; `families` one entry per template that was considered; `cut` what time left out."""

    problem: Problem
    best: Json | None
    changes: Json  # of the best config, against its template's defaults
    families: tuple[Json, ...] = ()
    cut: str = ""
    note: str = ""
    seconds: float = 0.0
    complete: bool = True  # more time would change nothing
    elsewhere: bool = False  # another process is at it, into the same results file

    def to_json(self) -> Json:
        return {
            "problem": asdict(self.problem), "winner": winner_of(self.best), "best": self.best, "changes": self.changes,
            "families": list(self.families), "cut": self.cut or None, "note": self.note or None,
            "seconds": round(self.seconds, 1),
        }  # fmt: skip


def winner_of(best: Json | None) -> str | None:
    """None without a verified result."""
    return None if best is None else winner(str(best["template"]), best["references"] or {})


def answer_of(hunt: Hunt, seconds: float) -> Answer:
    """Of a search that has come to its end, or to that of its time."""
    session = hunt.session
    best = next(session.store.best(Filter(session=session.id)), None)
    refused = [{"template": name, "state": "refused", "note": why} for name, why in hunt.refused.items()]
    note = "" if best is not None else "no verified result in undisturbed finals"
    if best is not None:
        note = still_named(session.store, session.request.problem, session.worker.info, best)
    if best is None and not hunt.racing:
        note = "every family failed: " + " | ".join(f"{f.template.name}: {f.out}" for f in hunt.families)
    return Answer(
        session.request.problem, best, changes_of(best, [f.template for f in hunt.families]),
        (*(family_json(hunt, family) for family in hunt.families), *refused), cut_text(hunt), note, seconds,
        hunt.complete,
    )  # fmt: skip


def still_named(store: Store, problem: Problem, device: DeviceInfo, best: Json) -> str:
    """What `export-best` names for the problem, where that is not what these finals came to; "" where it is."""
    named = next((one for one in store.known(problem, device.device_class) if one.exported), None)
    if named is None or named.run_id == best["run_id"]:
        return ""
    run = f"run {named.run_id[-8:]} of {named.started_at[:10]}"
    same = (named.template, named.config) == (best["template"], best["config"])
    return f"export-best still names {run}: {'the same config' if same else named.template}, {named.median_ns / 1e3:.4g} µs"


def family_json(hunt: Hunt, family: Family) -> Json:
    """How far a family was searched."""
    state = "out" if family.out else "settled" if hunt.searched and family.settled else "cut"
    return {
        "template": family.template.name, "state": state, "note": family.out or None, "ratio": family.ratio or None,
        "axes": len(family.axes), "axes_seen": min(family.seen, len(family.axes)), "races": family.raced,
        "moves": family.moves,
    }  # fmt: skip


def cut_text(hunt: Hunt) -> str:
    """What time left out, in words."""
    if not hunt.cut:
        return "" if hunt.complete else "finals beyond equal clock"
    if not hunt.searched:
        return "no time to search: each family's start was raced"
    parts = []
    for family in (f for f in hunt.racing if not f.settled):
        passed = family.seen >= len(family.axes)
        parts.append(
            f"{family.template.name} {'still moved' if passed else f'{family.seen} of {len(family.axes)} axes'}"
        )
    return ", ".join(parts)


def changes_of(best: Json | None, templates: list[Template]) -> Json:
    """How the best config differs from its template's defaults."""
    if best is None:
        return {}
    template = renderable(templates).get(best["template"])
    return {} if template is None else differences(template.defaults(), best["config"])


def on_record(
    store: Store, problem: Problem, device: DeviceInfo, templates: list[Template], note: str, session: str | None = None
) -> Answer:
    """The answer of earlier finals on this device, won by one of the templates; of one session, where it is named, by
    whichever it raced: what `export-best` names is among its finals.

    `note` says why it is not a new one.
    """
    wanted = Filter(shape=(problem.shape,), dtype=problem.dtype, device=device.uuid, session=session)
    names = {template.name for template in templates}
    same = (b for b in store.best(wanted) if problem_of(b["problem"]) == problem)
    best = next((b for b in same if session is not None or b["template"] in names), None)
    if best is not None:
        other = still_named(store, problem, device, best)
        note += f"; on record since {best['started_at'][:10]}" + (f"; {other}" if other else "")
    return Answer(problem, best, changes_of(best, templates), note=note)
