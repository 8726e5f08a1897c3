"""Rules on the runs of a race, for whoever holds them: which may win, which count, and how they are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemmsweep.model import PROBLEM_ACC


def is_ranked(acc: str) -> bool:
    """The one rule: a config that sums otherwise than the problem asks for never wins, ties, starts or is exported."""
    return acc == PROBLEM_ACC


def is_timed(run: Mapping[str, Any]) -> bool:
    """Whether a RUN object was found right and raced; in SQL, of those that rank, `store.schema.RACED`."""
    return run["status"] == "ok" and bool(run.get("median_us"))


def family_labels(raced: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    """`simt BK=32`: of each template and config of a race the template, and what differs among its configs there."""
    labels = []
    for template, config in raced:
        family = [other for name, other in raced if name == template]
        differing = [name for name, value in config.items() if any(other.get(name) != value for other in family)]
        labels.append(" ".join([template, *(f"{name}={config[name]}" for name in differing)]))
    return labels
