"""Which rules a config breaks, each with the values involved: those of the template and those of every launch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from gemmsweep.model import Problem
from gemmsweep.template.declaration import DeclaredStep, DeclaredTensorMap, DeclaredWorkspace, Template
from gemmsweep.template.expressions import Binary, Expression, ExpressionError, parse
from gemmsweep.template.resolve import Conditional, Resolved

INT32_MAX = 2**31 - 1
_THREADS, _SIZEOF = parse("THREADS"), {name: parse(name) for name in ("sizeof_in", "sizeof_out")}
MOST_THREADS = 1024  # of a CPU kernel, and so of its reference


@dataclass(frozen=True, slots=True)
class _Limit:
    """What a launch allows: `holds` judges the value of `expression`."""

    expression: Expression
    holds: Callable[[int], bool]
    why: str


@dataclass(frozen=True, slots=True)
class _Broken:
    """A sentence on a rule. `value` is that of its `expression`, None where it has none."""

    text: str
    expression: Expression
    value: int | None


def broken_rules(template: Template, resolved: Resolved) -> list[str]:
    """One sentence per rule the config breaks, in the header's order; empty where it may be built and launched.

    Rules that need a device are passed over where `resolve` was given none, and so is what follows from one that is told.
    """
    valueless = [
        _Broken(f"{name} has no value: {reason}{_with(template, resolved, expression)}", expression, None)
        for name, reason in resolved.failures.items()
        for expression in [template.derived[name]]
    ]
    rules = [(rule.expression, rule.why) for rule in template.constraints]
    rules += [(expression, "the kernel takes only some shapes") for expression in template.requires]
    declared: list[_Broken] = []
    for expression, why in rules:
        declared += _judge(template, resolved, _Limit(expression, bool, why), expression.text)
    limits: list[_Broken] = []
    for what, expression in _read_anyhow(template):
        always = _Limit(expression, lambda _: True, f"{what} has no value")
        limits += _judge(template, resolved, always, expression.text)
    for limit in _limits(template, resolved):
        limits += _judge(template, resolved, limit, f"{limit.expression.text} = {{value}}")
    told = _without_consequences(template, valueless, declared, limits)
    return told + list(_missing(template, resolved)) + _padded(template, resolved.problem)


def _without_consequences(
    template: Template, valueless: Sequence[_Broken], declared: Sequence[_Broken], limits: Sequence[_Broken]
) -> list[str]:
    """The sentences, without those on no value, or on a size below 1, of parameters that break a declared rule anyway.

    Such a rule has the way out; a division by the zero threads of a block that is smaller than a warp's tile has none.
    """
    blamed = [template.behind(one.expression.names) for one in declared if one.value is not None]
    guilty = frozenset[str]().union(*blamed) & {parameter.name for parameter in template.parameters}

    def follows(one: _Broken, least: int | None) -> bool:
        nonsense = one.value is None or (least is not None and one.value < least)
        return nonsense and bool(guilty & template.behind(one.expression.names))

    told = [one.text for one in (*valueless, *declared) if not follows(one, None)]
    return told + [one.text for one in limits if not follows(one, 1)]


def _padded(template: Template, problem: Problem) -> list[str]:
    """Rows of a matrix that lie further apart than a kernel can know."""
    tight = problem.tight
    apart = (("lda", problem.lda, tight["lda"]), ("ldb", problem.ldb, tight["ldb"]), ("ldc", problem.ldd, tight["ldd"]))
    return [
        f"the kernel is given no {name}, so it takes rows {least} apart, not {value} (give it {name} in args)"
        for name, value, least in apart
        if value != least and name not in template.leading_dimensions
    ]


def _read_anyhow(template: Template) -> Iterator[tuple[str, Expression]]:
    """What has no limits, but must have a value in every config."""
    yield from (("a `when`", when) for when in _whens(template))
    if isinstance(template.deterministic, Expression):
        yield "`deterministic`", template.deterministic


def _whens(template: Template) -> list[Expression]:
    """Every condition of the header, each once."""
    whens = [step.when for step in template.steps]
    whens += [workspace.when for workspace in template.workspaces]
    whens += [tensor_map.when for tensor_map in template.tensor_maps]
    whens += [accuracy.when for accuracy in template.accuracies]
    return list(dict.fromkeys(when for when in whens if when is not None))


def _there(resolved: Resolved, declared: Iterable[Conditional]) -> Iterator[Conditional]:
    """Those that are there, as far as it can be told."""
    for item in declared:
        try:
            if item.when is None or (item.when.names <= resolved.env.keys() and resolved.holds(item.when)):
                yield item
        except ExpressionError:
            continue  # told by its `when`


def _missing(template: Template, resolved: Resolved) -> Iterator[str]:
    """What no config may leave out. Passed over where a `when` cannot be told."""
    for when in _whens(template):
        try:
            if not when.names <= resolved.env.keys():
                return
            resolved.holds(when)
        except ExpressionError:
            return
    if not resolved.present(template.steps):
        whens = [step.when for step in template.steps if step.when is not None]
        either = _joined(" or ", "or", list(dict.fromkeys(whens)))
        yield f"no step is left to launch ({either.text}{_with(template, resolved, either)})"
    workspaces = [item.name for item in resolved.present(template.workspaces)]
    tensor_maps = resolved.present(template.tensor_maps)
    for what, names in (("workspace", workspaces), ("tensor map", [item.name for item in tensor_maps])):
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        yield from (f"{what} {name} is declared twice, and both are there" for name in twice)
    for item in tensor_maps:
        if item.workspace and item.workspace not in workspaces:
            yield f"tensor map {item.name} is of workspace {item.workspace}, which is not there"


def _judge(template: Template, resolved: Resolved, limit: _Limit, shown: str) -> Iterator[_Broken]:
    if not limit.expression.names <= resolved.env.keys():
        return  # needs a device that is not known, or a derived value whose failure is told already
    try:
        value = resolved.value(limit.expression)
    except ExpressionError as error:
        text = f"{limit.why} ({error}{_with(template, resolved, limit.expression)})"
        yield _Broken(text, limit.expression, None)
        return
    if not limit.holds(value):
        text = f"{limit.why} ({shown.replace('{value}', str(value))}{_with(template, resolved, limit.expression)})"
        yield _Broken(text, limit.expression, value)


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
    for step in _there(resolved, template.steps):
        if template.backend == "cuda":
            yield from _launch_limits(template, resolved, step)
        for argument in step.args:
            if argument.expression is not None:
                holds = range(-INT32_MAX - 1, INT32_MAX + 1).__contains__ if argument.word == "i32" else lambda _: True
                yield _Limit(argument.expression, holds, f"an {argument.word} argument overflows")
    if template.backend == "cpu" and "THREADS" in resolved.env:
        yield _Limit(_THREADS, range(1, MOST_THREADS + 1).__contains__, f"THREADS must be 1 to {MOST_THREADS}")
    workspaces = {item.name: item for item in _there(resolved, template.workspaces)}
    for workspace in workspaces.values():
        yield _Limit(workspace.bytes, (0).__lt__, f"workspace {workspace.name} must have at least 1 byte")
    for tensor_map in _there(resolved, template.tensor_maps):
        yield from _tensor_map_limits(resolved, tensor_map)
        if tensor_map.workspace in workspaces:
            yield from _workspace_map_limits(tensor_map, workspaces[tensor_map.workspace])
    for accuracy in list(_there(resolved, template.accuracies))[:1]:
        for key, figure in (("unit", accuracy.unit), ("terms", accuracy.terms)):
            yield _Limit(figure, (0).__lt__, f"accuracy {accuracy.acc}: {key} must be at least 1")


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


def _product(factors: Sequence[Expression]) -> Expression:
    return _joined(" * ", "*", factors)


def _joined(between: str, operator: str, parts: Sequence[Expression]) -> Expression:
    """One expression of several, whatever their lengths: no user has to read its text back in."""
    first, *others = parts
    plain = [operator == "or" or re.fullmatch(r"\w+", part.text) for part in parts]
    text = between.join(p.text if whole else f"({p.text})" for p, whole in zip(parts, plain, strict=True))
    root = reduce(lambda whole, part: Binary(operator, whole, part.root), others, first.root)
    return Expression(text, root, frozenset[str]().union(*(part.names for part in parts)))


def _value(resolved: Resolved, expression: Expression) -> int:
    """0 where it has none, which another limit tells."""
    try:
        return resolved.value(expression) if expression.names <= resolved.env.keys() else 0
    except ExpressionError:
        return 0


def _tensor_map_limits(resolved: Resolved, declared: DeclaredTensorMap) -> Iterator[_Limit]:
    """What cuTensorMapEncodeTiled accepts."""
    where = f"tensor map {declared.name}:"
    for extent in declared.box:
        yield _Limit(extent, range(1, 257).__contains__, f"{where} a box has 1 to 256 elements along each dimension")
    size = "sizeof_out" if declared.operand in ("C", "D") else "sizeof_in"
    inner_bytes = _product((declared.box[0], _SIZEOF[size]))
    yield _Limit(inner_bytes, lambda v: v % 16 == 0, f"{where} a row of the box is a multiple of 16 bytes")
    yield _Limit(declared.swizzle, (0, 32, 64, 128).__contains__, f"{where} swizzle is 0, 32, 64 or 128 bytes")
    swizzle = _value(resolved, declared.swizzle)
    if swizzle:
        yield _Limit(
            inner_bytes, lambda v: v <= swizzle, f"{where} a row of the box fits the swizzle of {swizzle} bytes"
        )
    yield _Limit(declared.promotion, (0, 64, 128, 256).__contains__, f"{where} promotion is 0, 64, 128 or 256 bytes")


def _workspace_map_limits(declared: DeclaredTensorMap, workspace: DeclaredWorkspace) -> Iterator[_Limit]:
    """A map of a workspace stays inside it, in rows that TMA can address."""
    where = f"tensor map {declared.name}:"
    columns, rows = declared.extent
    ld = declared.ld
    assert ld is not None
    for extent in declared.extent:
        yield _Limit(extent, range(1, 2**32 + 1).__contains__, f"{where} an extent is 1 to 2^32 elements")
    row_bytes = _product((ld, _SIZEOF["sizeof_in"]))
    yield _Limit(row_bytes, lambda v: v % 16 == 0, f"{where} a row of a workspace is a multiple of 16 bytes")
    yield _Limit(_joined(" - ", "-", (ld, columns)), (0).__le__, f"{where} ld is at least the columns")
    spare = _joined(" - ", "-", (workspace.bytes, _product((rows, ld, _SIZEOF["sizeof_in"]))))
    yield _Limit(spare, (0).__le__, f"{where} workspace {declared.workspace} holds all its rows")
