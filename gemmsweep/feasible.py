"""Which configs of a template a problem admits on a device: the one nearest to the defaults, and the starts it proposes. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from gemmsweep.errors import UsageError
from gemmsweep.model import Config, DeviceInfo, Problem, Value
from gemmsweep.ranking import is_ranked
from gemmsweep.template import render
from gemmsweep.template.declaration import Template
from gemmsweep.template.expressions import Expression, ExpressionError
from gemmsweep.template.resolve import Resolved

MOST_TRIED = 1000  # configs looked at, half a second at most, for one that breaks no rule
MOST_CHANGES = 3  # parameters moved away from the defaults at once, in that search

Broken = Callable[[Template, Problem, DeviceInfo, Config], Sequence[str]]


def first_feasible(template: Template, problem: Problem, device: DeviceInfo) -> dict[str, Value]:
    """The defaults, else the config nearest to them that breaks no rule. Raises UsageError where there is none."""
    config, _ = search(template, problem, device)
    if config is None:
        raise UsageError(reasons_against(template, problem, device, template.defaults())[0])
    return config


def search(
    template: Template, problem: Problem, device: DeviceInfo, broken_by: Broken | None = None
) -> tuple[dict[str, Value] | None, int]:
    """The same, or None; and how many configs beside the defaults were looked at. `broken_by` says what is wrong with one."""
    broken_by = broken_by or reasons_against
    defaults, tried = template.defaults(), 0
    if not broken_by(template, problem, device, defaults):
        return defaults, tried
    blamed = parameters_to_blame(template, problem, device, defaults)
    for config in itertools.islice(nearby(template, blamed), MOST_TRIED) if blamed is not None else ():
        tried += 1
        if not broken_by(template, problem, device, config):
            return config, tried
    return None, tried


def declared_starts(template: Template, problem: Problem, device: DeviceInfo) -> list[dict[str, Value]]:
    """What the header says a search may start from here, as far as it breaks no rule."""
    found = []
    for start in template.starts:
        config = {**template.defaults(), **start.values}
        resolved = render.resolve(template, problem, render.device_env(device), config)
        try:
            meant = resolved.holds(start.when)
        except ExpressionError:
            meant = False
        if meant and not reasons_against(template, problem, device, config):
            found.append(config)
    return found


def rules_broken(template: Template, problem: Problem, device: DeviceInfo, config: Config) -> list[str]:
    """Why a config cannot run, in words."""
    return render.broken_rules(template, render.resolve(template, problem, render.device_env(device), config))


def reasons_against(template: Template, problem: Problem, device: DeviceInfo, config: Config) -> list[str]:
    """Why a config cannot win, in words: the rules it breaks, or that it sums otherwise than the problem asks for."""
    resolved = render.resolve(template, problem, render.device_env(device), config)
    broken = render.broken_rules(template, resolved)
    acc = problem.acc if broken else render.plan_launch(template, resolved).accuracy.acc
    return broken if is_ranked(acc) else [f"its accuracy class is {acc}, the problem asks for {problem.acc}"]


def parameters_to_blame(
    template: Template, problem: Problem, device: DeviceInfo, config: Config
) -> tuple[str, ...] | None:
    """Parameters, first those behind the rules that a config breaks and behind how it sums; None where one has none behind it."""
    resolved = render.resolve(template, problem, render.device_env(device), config)
    names = [p.name for p in template.parameters]
    culprits = [rule.names for rule in broken_expressions(template, resolved)]
    with suppress(ExpressionError):
        ways = resolved.present(template.accuracies)[:1]
        culprits += [way.when.names if way.when is not None else frozenset() for way in ways]
    behind = [template.behind(culprit) & set(names) for culprit in culprits]
    if not all(behind):
        return None
    guilty = frozenset().union(*behind)
    return tuple(sorted(names, key=lambda name: (name not in guilty, names.index(name))))


def broken_expressions(template: Template, resolved: Resolved) -> Iterator[Expression]:
    """Rules that do not hold; one without a value follows from another."""
    for rule in (*(c.expression for c in template.constraints), *template.requires):
        with suppress(ExpressionError):
            if rule.names <= resolved.env.keys() and not resolved.value(rule):
                yield rule


def nearby(template: Template, names: Sequence[str]) -> Iterator[dict[str, Value]]:
    """Configs in the order of how many parameters they move away from the defaults."""
    defaults = template.defaults()
    others = {p.name: [v for v in p.values if v != p.default] for p in template.parameters}
    for count in range(1, MOST_CHANGES + 1):
        for moved in itertools.combinations(names, count):
            for values in itertools.product(*(others[name] for name in moved)):
                yield {**defaults, **dict(zip(moved, values, strict=True))}
