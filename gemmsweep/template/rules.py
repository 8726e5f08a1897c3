"""Which rules a config breaks, each with the values involved: those of the template and those of every launch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gemmsweep.template.declaration import DeclaredStep, DeclaredTensorMap, Template
from gemmsweep.template.expressions import Expression, ExpressionError, parse
from gemmsweep.template.resolve import Resolved

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Limit:
    """What a launch allows: `holds` judges the value of `expression`."""

    expression: Expression
    holds: Callable[[int], bool]
    why: str


def broken_rules(template: Template, resolved: Resolved) -> list[str]:
    """One sentence per rule the config breaks, in the header's order; empty where it may be built and launched.

    Rules that need a device are passed over where `resolve` was given none.
    """
    broken = [
        f"{name} has no value: {reason}{_with(template, resolved, template.derived[name])}"
        for name, reason in resolved.failures.items()
    ]
    rules = [(rule.expression, rule.why) for rule in template.constraints]
    rules += [(expression, "the kernel takes only some shapes") for expression in template.requires]
    for expression, why in rules:
        broken += _judge(template, resolved, _Limit(expression, bool, why), expression.text)
    for limit in _limits(template, resolved):
        broken += _judge(template, resolved, limit, f"{limit.expression.text} = {{value}}")
    return broken


def _judge(template: Template, resolved: Resolved, limit: _Limit, shown: str) -> Iterator[str]:
    if not limit.expression.names <= resolved.env.keys():
        return  # needs a device that is not known, or a derived value whose failure is told already
    try:
        value = resolved.value(limit.expression)
    except ExpressionError as error:
        yield f"{limit.why} ({error}{_with(template, resolved, limit.expression)})"
        return
    if not limit.holds(value):
        yield f"{limit.why} ({shown.replace('{value}', str(value))}{_with(template, resolved, limit.expression)})"


def _with(template: Template, resolved: Resolved, expression: Expression) -> str:
    """ " with BM=128, VEC=4": the names in the order of the text, then the parameters behind derived ones."""
    constants = template.constants
    named = [word for word in re.findall(r"[A-Za-z_]\w*", expression.text) if word in expression.names]
    behind = template.behind(expression.names)
    named += [parameter.name for parameter in template.parameters if parameter.name in behind]
    shown = [name for name in dict.fromkeys(named) if name in resolved.env and name not in constants]
    shown = [name for name in shown if name != expression.text]  # its value is told already
    values = ", ".join(f"{name}={resolved.config.get(name, resolved.env[name])}" for name in shown)
    return f" with {values}" if values else ""


def _limits(template: Template, resolved: Resolved) -> Iterator[_Limit]:
    for step in template.steps:
        if template.backend == "cuda":
            yield from _launch_limits(template, resolved, step)
        for argument in step.args:
            if argument.word == "i32" and argument.expression is not None:
                yield _Limit(
                    argument.expression, range(-INT32_MAX - 1, INT32_MAX + 1).__contains__, "an i32 argument overflows"
                )
    for workspace in template.workspaces:
        yield _Limit(workspace.bytes, (0).__lt__, f"workspace {workspace.name} is empty")
    for tensor_map in template.tensor_maps:
        yield from _tensor_map_limits(resolved, tensor_map)


def _launch_limits(template: Template, resolved: Resolved, step: DeclaredStep) -> Iterator[_Limit]:
    where = "" if len(template.steps) == 1 else f"{step.kernel}: "
    for axis, extent, most in zip("xyz", step.grid, (INT32_MAX, 65535, 65535), strict=False):
        yield _Limit(extent, range(1, most + 1).__contains__, f"{where}grid {axis} must be 1 to {most}")
    for axis, extent, most in zip("xyz", step.block, (1024, 1024, 64), strict=False):
        yield _Limit(extent, range(1, most + 1).__contains__, f"{where}block {axis} must be 1 to {most}")
    if len(step.block) > 1:
        yield _Limit(_product(step.block), (1024).__ge__, f"{where}a block holds at most 1024 threads")
    if step.smem_bytes is not None:
        most = resolved.env.get("max_smem_bytes", INT32_MAX)
        why = f"{where}shared memory of a block must be 0 to {most} bytes"
        yield _Limit(step.smem_bytes, range(most + 1).__contains__, why)


def _product(factors: tuple[Expression, ...]) -> Expression:
    return parse(" * ".join(factor.text if factor.text.isalnum() else f"({factor.text})" for factor in factors))


def _tensor_map_limits(resolved: Resolved, declared: DeclaredTensorMap) -> Iterator[_Limit]:
    """What cuTensorMapEncodeTiled accepts."""
    where = f"tensor map {declared.name}:"
    for extent in declared.box:
        yield _Limit(extent, range(1, 257).__contains__, f"{where} a box has 1 to 256 elements along each dimension")
    size = "sizeof_in" if declared.operand in "AB" else "sizeof_out"
    inner_bytes = _product((declared.box[0], parse(size)))
    yield _Limit(inner_bytes, lambda v: v % 16 == 0, f"{where} a row of the box is a multiple of 16 bytes")
    yield _Limit(declared.swizzle, (0, 32, 64, 128).__contains__, f"{where} swizzle is 0, 32, 64 or 128 bytes")
    if declared.swizzle.names <= resolved.env.keys() and (swizzle := resolved.value(declared.swizzle)):
        yield _Limit(
            inner_bytes, lambda v: v <= swizzle, f"{where} a row of the box fits the swizzle of {swizzle} bytes"
        )
    yield _Limit(declared.promotion, (0, 64, 128, 256).__contains__, f"{where} promotion is 0, 64, 128 or 256 bytes")
