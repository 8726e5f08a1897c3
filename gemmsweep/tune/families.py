"""Which template families a problem has here, and where each of them starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gemmsweep.entry import Candidate, enlist, require_feasible_here
from gemmsweep.errors import UsageError
from gemmsweep.feasible import declared_starts, first_feasible, reasons_against
from gemmsweep.finals import final_label
from gemmsweep.model import Config, DeviceInfo, Problem, Value
from gemmsweep.plan import labelled_configs
from gemmsweep.ranking import is_ranked
from gemmsweep.session import Request
from gemmsweep.start import find_start
from gemmsweep.store import Store
from gemmsweep.template.declaration import Template


@dataclass
class Family:
    """A template under way on one problem: `present` is its best config so far, `ratio` how that stands to the vendor."""

    template: Template
    starts: Mapping[str, Config]  # by label: the best known config, the defaults, and what the header proposes
    present: dict[str, Value]
    axes: tuple[str, ...]  # parameters with a choice, in the header's order
    ratio: float = 0.0
    raced: int = 0  # axes so far, repeats counted
    seen: int = 0  # likewise, those counted that had no choice here
    turn: int = 0  # of `axes`: which is next
    still: int = 0  # axes in a row that moved nothing
    moves: list[str] = field(default_factory=list)  # "BK=32": steps taken, in order
    out: str = ""  # why it is out of the race

    @property
    def settled(self) -> bool:
        """A full pass has moved nothing."""
        return self.still >= len(self.axes)

    def step(self, moved: str) -> None:
        """On to the next axis, having moved (or not, ""). A step leaves its own axis with nothing to move."""
        self.turn = (self.turn + 1) % max(1, len(self.axes))
        self.seen += 1
        self.still = 1 if moved else self.still + 1
        if moved:
            self.moves.append(moved)


def find_families(
    request: Request, templates: Sequence[Template], store: Store, device: DeviceInfo
) -> tuple[list[Family], dict[str, str]]:
    """Families that can run the problem here, each with its starts; and by name, why the others cannot."""
    families: list[Family] = []
    refused: dict[str, str] = {}
    for template in templates:
        try:
            require_feasible_here(template, request.problem, device)
            families.append(make_family(replace(request, template=template), store, device))
        except UsageError as error:
            refused[template.name] = str(error)
    return families, refused


def make_family(request: Request, store: Store, device: DeviceInfo) -> Family:
    """Raises UsageError where no config of the template may run the problem."""
    template, problem = request.template, request.problem
    safe = first_feasible(template, problem, device)
    start = find_start(request, store, device, None).config
    if reasons_against(template, problem, device, start):
        start = safe
    declared = declared_starts(template, problem, device)
    starts = {final_label(template, config): config for config in (start, safe, *declared)}
    axes = tuple(p.name for p in template.parameters if len(p.values) > 1)
    return Family(template, starts, dict(start), axes)


def axis_candidates(family: Family, axis: str, problem: Problem, device: DeviceInfo) -> list[Candidate]:
    """The values of an axis that break no rule from the present config, and sum as the problem asks for."""
    (values,) = (p.values for p in family.template.parameters if p.name == axis)
    listed = enlist(family.template, problem, device, labelled_configs(family.present, axis, values, ()))
    return [c for c in listed if c.alive and is_ranked(c.attempt.acc)]
