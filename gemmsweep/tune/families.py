"""Which template families a problem has here, and where each of them starts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gemmsweep.entry import Candidate, enlist, require_feasible_here
from gemmsweep.errors import UsageError
from gemmsweep.finals import final_label
from gemmsweep.model import Config, DeviceInfo, Problem, Value, is_ranked
from gemmsweep.plan import axis_configs, label_of
from gemmsweep.session import Request
from gemmsweep.start import find_start
from gemmsweep.store import Store
from gemmsweep.template import render
from gemmsweep.template.declaration import Template
from gemmsweep.template.expressions import ExpressionError

MOST_TRIED = 1000  # configs looked at, half a second at most, for one that breaks no rule
MOST_CHANGES = 3  # parameters moved away from the defaults at once, in that search


@dataclass
class Family:
    """A template under way on one problem: `present` is its best config so far, `ratio` how that stands to the vendor."""

    template: Template
    starts: Mapping[str, Config]  # by label: the best known config and, where they differ, the defaults
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
    if broken_by(template, problem, device, start):
        start = safe
    starts = {final_label(template, config): config for config in (start, safe)}
    axes = tuple(p.name for p in template.parameters if len(p.values) > 1)
    return Family(template, starts, dict(start), axes)


def first_feasible(template: Template, problem: Problem, device: DeviceInfo) -> dict[str, Value]:
    """The defaults, else the config nearest to them that breaks no rule. Raises UsageError where there is none."""
    defaults = template.defaults()
    broken = broken_by(template, problem, device, defaults)
    if not broken:
        return defaults
    blamed = parameters_to_blame(template, problem, device, defaults)
    if blamed is not None:
        for config in itertools.islice(nearby(template, blamed), MOST_TRIED):
            if not broken_by(template, problem, device, config):
                return config
    raise UsageError(broken[0])


def broken_by(template: Template, problem: Problem, device: DeviceInfo, config: Config) -> list[str]:
    """Why a config cannot win, in words: the rules it breaks, or that it sums otherwise than the problem asks for."""
    resolved = render.resolve(template, problem, render.device_env(device), config)
    broken = render.broken_rules(template, resolved)
    acc = problem.acc if broken else render.plan_launch(template, resolved).accuracy.acc
    return broken if is_ranked(acc) else [f"it sums products in {acc}, the problem asks for {problem.acc}"]


def parameters_to_blame(
    template: Template, problem: Problem, device: DeviceInfo, config: Config
) -> tuple[str, ...] | None:
    """Parameters, first those behind the rules that a config breaks; None where one of these has no parameter behind it."""
    resolved = render.resolve(template, problem, render.device_env(device), config)
    names = [p.name for p in template.parameters]
    guilty: set[str] = set()
    for rule in (*(c.expression for c in template.constraints), *template.requires):
        try:
            if not rule.names <= resolved.env.keys() or resolved.value(rule):
                continue
        except ExpressionError:
            continue
        behind = template.behind(rule.names) & set(names)
        if not behind:
            return None
        guilty |= behind
    return tuple(sorted(names, key=lambda name: (name not in guilty, names.index(name))))


def nearby(template: Template, names: Sequence[str]) -> Iterator[dict[str, Value]]:
    """Configs in the order of how many parameters they move away from the defaults."""
    defaults = template.defaults()
    others = {p.name: [v for v in p.values if v != p.default] for p in template.parameters}
    for count in range(1, MOST_CHANGES + 1):
        for moved in itertools.combinations(names, count):
            for values in itertools.product(*(others[name] for name in moved)):
                yield {**defaults, **dict(zip(moved, values, strict=True))}


def axis_candidates(family: Family, axis: str, problem: Problem, device: DeviceInfo) -> list[Candidate]:
    """The values of an axis that break no rule from the present config, and sum as the problem asks for."""
    (values,) = (p.values for p in family.template.parameters if p.name == axis)
    configs = {label_of(axis, c): c for c in axis_configs(family.present, axis, values, ())}
    listed = enlist(family.template, problem, device, configs)
    return [c for c in listed if c.alive and is_ranked(c.attempt.acc)]
