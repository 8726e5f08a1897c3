"""Which configs, in which order: axes, values, couplings, adoption. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from gemmsweep.errors import UsageError, counted, did_you_mean
from gemmsweep.model import Config, Value
from gemmsweep.race import Verdict
from gemmsweep.template.declaration import Parameter, Template
from gemmsweep.template.expressions import Expression, ExpressionError, parse
from gemmsweep.template.reading import MOST_VALUES

AXIS = re.compile(r"^([A-Za-z_]\w*)(?:=(.+))?$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Axis:
    """A parameter to vary and the values asked for; None means all the template declares."""

    name: str
    values: tuple[Value, ...] | None = None
    is_range: bool = False


def parse_axis(text: str) -> Axis:
    """`BK`, `BK=8,16`, `BK=8:64:8` or `BK=8:64:*2`; raises UsageError."""
    match = AXIS.match(text.strip())
    if match is None:
        raise UsageError(f"--vary {text!r} is not P, P=v1,v2, P=lo:hi:step or P=lo:hi:*factor.")
    name, values = match.groups()
    if values is None:
        return Axis(name)
    if ":" in values:
        return Axis(name, expand_range(values), is_range=True)
    parsed = tuple(parse_value(part) for part in values.split(","))
    if len(set(parsed)) < len(parsed):
        raise UsageError(f"--vary {text!r} names a value twice.")
    return Axis(name, parsed)


def parse_value(text: str) -> Value:
    text = text.strip()
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch(r"[A-Za-z_]\w*", text, re.ASCII):
        return text
    raise UsageError(f"{text!r} is not a parameter value: values are integers or names.")


def expand_range(text: str) -> tuple[int, ...]:
    """`8:64:8`, `8:64:*2` or `1:4` (step 1), both ends included; raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})(?::(\*?)([0-9]{1,9}))?", text.strip())
    if match is None:
        raise UsageError(f"range {text!r} is not lo:hi:step or lo:hi:*factor.")
    low, high, step = int(match[1]), int(match[2]), int(match[4] or 1)
    factor = match[3] == "*"
    if low > high or step < (2 if factor else 1) or (factor and low == 0):
        raise UsageError(
            f"range {text!r} is empty or never ends: it needs lo <= hi and a step of 1, or a factor of 2, or more."
        )
    values: list[int] = []
    for i in count():
        value = low * step**i if factor else low + step * i
        if value > high:
            return tuple(values)
        if len(values) == MOST_VALUES:
            raise UsageError(f"range {text!r} has more than {MOST_VALUES:,} values.")
        values.append(value)
    raise AssertionError


def parameter(template: Template, name: str) -> Parameter:
    """The parameter of that name; raises UsageError naming those there are."""
    for candidate in template.parameters:
        if candidate.name == name:
            return candidate
    have = [p.name for p in template.parameters]
    if not have:
        raise UsageError(
            f"template '{template.name}' has no parameters, so no '{name}'. Race it without: leave it out."
        )
    raise UsageError(
        f"template '{template.name}' has no parameter '{name}'.{did_you_mean(name, have)} It has: {', '.join(have)}."
    )


def axis_values(template: Template, axis: Axis) -> tuple[Value, ...]:
    """The values an axis races; a list must be declared values, a range takes the declared ones it meets."""
    declared = parameter(template, axis.name).values
    if axis.values is None:
        return declared
    if axis.is_range:
        met = tuple(v for v in axis.values if v in declared)
        if met:
            return met
    for value in axis.values:
        check_value(template, axis.name, value)
    return axis.values


def undeclared_of_range(template: Template, axis: Axis) -> str:
    """What of a range the template does not declare, as a sentence; "" where it declares all."""
    declared = parameter(template, axis.name).values
    left_out = ", ".join(str(v) for v in axis.values or () if v not in declared) if axis.is_range else ""
    return f"{axis.name}: the template does not declare {left_out}; left out." if left_out else ""


def _meant(value: Value, declared: Sequence[Value]) -> str:
    return did_you_mean(value, map(str, declared)) if isinstance(value, str) else ""


def check_value(template: Template, name: str, value: Value) -> None:
    """Raises UsageError for a value the template does not declare."""
    declared = parameter(template, name).values
    if value not in declared:
        raise UsageError(
            f"{name}={value} is not a value of template '{template.name}'.{_meant(value, declared)} "
            f"{name} takes: {', '.join(map(str, declared))} "
            f"(declare it in the template's header to try it)."
        )


@dataclass(frozen=True, slots=True)
class Held:
    """`--set P=V`: a value, or an expression of the varied parameter (`WM=BM/2`), evaluated for each config."""

    name: str
    value: Value | Expression


def parse_held(text: str, template: Template) -> Held:
    """Raises UsageError for an unknown parameter, value or expression."""
    name, equals, rest = (part.strip() for part in text.partition("="))
    if not equals or not rest:
        raise UsageError(f"--set {text!r} is not P=VALUE or P=EXPRESSION, as in --set BK=16 or --set WM=BM/2.")
    declared = parameter(template, name).values
    named = all(isinstance(value, str) for value in declared)  # no expression has a name for a value
    if named or re.fullmatch(r"-?[0-9]{1,18}", rest) or rest in declared:
        value = rest if named else parse_value(rest)
        check_value(template, name, value)
        return Held(name, value)
    if "," in rest and "(" not in rest:
        raise UsageError(f"--set {text} names several values, and holds one. To race them: --vary {text}.")
    expression = parse(rest, allow_division=True)
    unknown = expression.names - {p.name for p in template.parameters}
    if unknown:
        parameter(template, sorted(unknown)[0])
    if name in expression.names:
        raise UsageError(f"--set {text!r} defines {name} by itself.")
    return Held(name, expression)


def distinct_axes(axes: Sequence[Axis], held: Sequence[str]) -> None:
    """Raises UsageError for a parameter that is varied twice, or varied and held."""
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--vary {name} is given twice. Repeat a sweep of all axes with --passes 2.")
        if name in map(held_name, held):
            raise UsageError(f"{name} is both varied and held: leave out --vary {name} or --set {name}.")


def held_name(text: str) -> str:
    return text.partition("=")[0].strip()


def distinct_held(texts: Sequence[str]) -> None:
    """Raises UsageError for a parameter that one command line holds twice; what an experiment holds may be held otherwise."""
    names = [held_name(text) for text in texts]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--set {name} is given twice. Leave one of them out, or vary {name}.")


def in_order(held: Sequence[Held]) -> tuple[Held, ...]:
    """Each after those that it reads, so that putting them in twice is putting them in once. Raises UsageError for a circle."""
    waiting, found = list(held), []
    while waiting:
        open_ = {item.name for item in waiting}
        ready = [item for item in waiting if not isinstance(item.value, Expression) or not item.value.names & open_]
        if not ready:
            circle = " and ".join(
                f"--set {one.name}={one.value.text}" for one in waiting if isinstance(one.value, Expression)
            )
            raise UsageError(f"{circle} need each other: give one of them a value.")
        found += ready
        waiting = [item for item in waiting if item not in ready]
    return tuple(found)


def apply_held(config: Config, held: Sequence[Held]) -> dict[str, Value]:
    """The config with every held value put in, in the order of `in_order`.

    Where an expression has no value for it, its text stands there, which no parameter takes: see `entry.undeclared`.
    """
    result = dict(config)
    for item in held:
        if isinstance(item.value, (int, str)):
            result[item.name] = item.value
        else:
            try:
                value = item.value.evaluate({k: v for k, v in result.items() if isinstance(v, int)})
            except ExpressionError:
                result[item.name] = item.value.text
            else:
                result[item.name] = int(value)
    return result


def axis_configs(start: Config, name: str, values: Sequence[Value], held: Sequence[Held]) -> list[dict[str, Value]]:
    """One config per value: only the varied parameter moves, and what the user coupled to it."""
    return [apply_held({**start, name: value}, held) for value in values]


def completed(template: Template, config: Config) -> dict[str, Value] | None:
    """A stored config with defaults for parameters it did not know; None where a value, or its name, is declared no more."""
    declared = {p.name: p.values for p in template.parameters}
    if any(name not in declared or value not in declared[name] for name, value in config.items()):
        return None
    return {**template.defaults(), **config}


def differences(start: Config, config: Config) -> dict[str, Value]:
    """What a config changes against another."""
    return {name: value for name, value in config.items() if start.get(name) != value}


@dataclass(frozen=True, slots=True)
class Adoption:
    """The value a sweep leaves behind: `label` is None where nothing was raced."""

    label: str | None
    adopted: bool


def adopt(verdict: Verdict | None, labels: Sequence[str], present: str | None, *, contended: bool) -> Adoption:
    """A clear step forward is taken, everything else is rolled back.

    The present value (`present`, None when it was not raced) stays unless it is certainly worse than the leader: a tie or
    an undecided race, and any race beside foreign load, changes nothing.
    """
    if verdict is None:
        return Adoption(None, False)
    leader = labels[verdict.leader]
    if contended and present is not None:
        return Adoption(present, False)
    if present is None:
        return Adoption(leader, not contended)
    beaten = (labels.index(present), verdict.leader) in verdict.different
    return Adoption(leader, True) if beaten else Adoption(present, False)


def labelled_configs(
    start: Config, varied: str | None, values: Sequence[Value], held: Sequence[Held]
) -> dict[str, dict[str, Value]]:
    """The configs of an axis from `start`, as its sweep calls them; without an axis, the start alone."""
    configs = axis_configs(start, varied, values, held) if varied is not None else [apply_held(start, held)]
    return {label_of(varied, config): config for config in configs}


def label_of(varied: str | None, config: Mapping[str, Value]) -> str:
    """How a config is called within its sweep."""
    return f"{varied}={config[varied]}" if varied is not None else "start"


def summary(axes: Sequence[tuple[str, int]]) -> str:
    """`BK (4), then PAD (3): 7 configs`."""
    total = sum(n for _, n in axes)
    return ", then ".join(f"{name} ({n})" for name, n in axes) + f": {counted(total, 'config')}"
