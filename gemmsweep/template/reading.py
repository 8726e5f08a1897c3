"""From the TOML of a header to declarations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gemmsweep.errors import TemplateError
from gemmsweep.model import DTYPES, LAYOUTS
from gemmsweep.template.declaration import (
    BODY_KEYS,
    DEVICE_NAMES,
    SHAPE_NAMES,
    TYPE_NAMES,
    Account,
    Argument,
    Constraint,
    DeclaredStep,
    DeclaredTensorMap,
    DeclaredWorkspace,
    KernelTable,
    Parameter,
)
from gemmsweep.template.expressions import FUNCTIONS, Expression
from gemmsweep.template.table import Table

TOP_KEYS = (
    "summary", "backend", "arch", "dtypes", "layouts", "deterministic", "requires", "reads_c", "parameters", "derived",
    "constraints", "launch", "step", "workspace", "tensor_map", "account", "kernel",
)  # fmt: skip
STEP_KEYS = ("kernel", "args", "grid", "block", "smem_bytes")
ARGUMENT_WORDS = ("A", "B", "C", "D", "alpha", "beta", "epilogue")
ARGUMENT_HELP = f"{', '.join(ARGUMENT_WORDS)}, i32:EXPR, i64:EXPR, workspace:NAME, tensor_map:NAME"
BINDS = ("substitute", "define", "template")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ARCH = re.compile(r"sm_[0-9]+(\+|[af])?")
C_WORDS = {"and", "or", "not", "True", "False", "None", "if", "else", "for", "in", "is", "lambda", "while", "return"}
RESERVED = {
    *SHAPE_NAMES,
    *TYPE_NAMES,
    *DEVICE_NAMES["cuda"],
    *DEVICE_NAMES["cpu"],
    *BODY_KEYS["cuda"],
    *FUNCTIONS,
    *C_WORDS,
}


def read_declarations(file: str, raw: Mapping[str, object]) -> dict[str, Any]:
    """The fields of a Template that come from its header. Raises TemplateError naming `file`."""
    top = Table.of(f"{file}: the header", raw, TOP_KEYS)
    backend = top.one_of("backend", ("cuda", "cpu"))
    parameters = _parameters(file, top.values.get("parameters", {}))
    known = [*(parameter.name for parameter in parameters), *_constants(file, parameters)]
    known += [*SHAPE_NAMES, *TYPE_NAMES, *DEVICE_NAMES[backend]]
    derived = _derived(file, top.values.get("derived", {}), known)
    known += derived
    kernel = _kernel(Table.of(f"{file}: [kernel]", top.values.get("kernel", {}), KernelTable.__slots__))
    fields: dict[str, Any] = {
        "summary": top.text("summary"),
        "backend": backend,
        "arch": _arch(top, backend),
        "dtypes": _dtypes(top, backend),
        "layouts": _layouts(top),
        "deterministic": top.flag("deterministic", True),
        "reads_c": top.flag("reads_c", False),
        "requires": top.expressions("requires", known, boolean=True),
        "parameters": parameters,
        "derived": derived,
        "constraints": tuple(_constraint(file, i, item, known) for i, item in enumerate(top.tables("constraints"), 1)),
        "workspaces": tuple(_workspace(file, i, item, known) for i, item in enumerate(top.tables("workspace"), 1)),
        "tensor_maps": tuple(_tensor_map(file, i, item, known) for i, item in enumerate(top.tables("tensor_map"), 1)),
        "account": _account(Table.of(f"{file}: [account]", top.values.get("account", {}), Account.__slots__), known),
        "kernel": kernel,
    }
    fields["steps"] = _steps(file, top, fields, known)
    return fields


def _arch(top: Table, backend: str) -> str:
    if backend == "cpu":
        if "arch" in top:
            raise top.error("arch", "belongs to backend cuda; leave it out")
        return ""
    arch = top.text("arch")
    if not ARCH.fullmatch(arch):
        raise top.error("arch", f'{arch!r} is neither like "sm_80+" (and later) nor like "sm_90a" (exactly)')
    return arch


def _dtypes(top: Table, backend: str) -> tuple[str, ...]:
    allowed = tuple(DTYPES) if backend == "cuda" else ("fp32",)
    dtypes = top.texts("dtypes")
    for dtype in dtypes:
        if dtype not in allowed:
            raise top.error("dtypes", f"unknown dtype {dtype!r} for {backend}. Choose among: {', '.join(allowed)}")
    if not dtypes:
        raise top.error("dtypes", f"is empty. Choose among: {', '.join(allowed)}")
    return dtypes


def _layouts(top: Table) -> tuple[str, ...]:
    layouts = top.texts("layouts")
    for layout in layouts:
        if layout not in LAYOUTS:
            raise top.error(
                "layouts",
                f"unknown layout {layout!r}. Choose among: nn (A row, B row), nt (A row, B col; BLAS calls it tn)",
            )
    if not layouts:
        raise top.error("layouts", f"is empty. Choose among: {', '.join(LAYOUTS)}")
    return layouts


def _check_name(where: str, name: str) -> None:
    if not IDENTIFIER.fullmatch(name):
        raise TemplateError(f"{where}: {name!r} is not a name. Use letters, digits and underscores.")
    if name in RESERVED:
        raise TemplateError(f"{where}: the name {name!r} is reserved. Choose another.")


def _parameters(file: str, raw: object) -> tuple[Parameter, ...]:
    if not isinstance(raw, dict):
        raise TemplateError(f"{file}: [parameters] must be a table, not {raw!r}.")
    return tuple(_parameter(f"{file}: [parameters] {name}", name, item) for name, item in raw.items())


def _parameter(where: str, name: str, raw: object) -> Parameter:
    table = Table.of(where, raw, Parameter.__slots__[1:])
    _check_name(where, name)
    values, default = table.values.get("values"), table.values.get("default")
    if not isinstance(values, list) or not values:
        raise table.error("values", f"must be a list of what to sweep (values = [8, 16]), not {values!r}")
    integers = all(type(value) is int and 0 <= value < 2**31 for value in values)
    if not integers and not all(isinstance(value, str) for value in values):
        raise table.error("values", f"must be integers from 0 to 2147483647, or names, and not a mixture: {values!r}")
    if len(set(values)) < len(values):
        raise table.error("values", f"names a value twice: {values!r}")
    if type(default) is not type(values[0]) or default not in values:
        raise table.error("default", f"{default!r} is not among the values {values!r}")
    assert isinstance(default, int | str)
    return Parameter(name, default, tuple(values), table.text("meaning", ""))


def _constants(file: str, parameters: tuple[Parameter, ...]) -> list[str]:
    """The names of enumerated values; each must mean one thing."""
    taken = {parameter.name for parameter in parameters}
    constants: dict[str, int] = {}
    for parameter in parameters:
        for index, value in enumerate(parameter.values if parameter.is_named else ()):
            where = f"{file}: [parameters] {parameter.name}"
            _check_name(where, str(value))
            if str(value) in taken or constants.setdefault(str(value), index) != index:
                raise TemplateError(f"{where}: the name {value!r} already means something else. Choose another.")
    return list(constants)


def _derived(file: str, raw: object, known: list[str]) -> dict[str, Expression]:
    if not isinstance(raw, dict):
        raise TemplateError(f"{file}: [derived] must be a table, not {raw!r}.")
    table = Table(f"{file}: [derived]", raw)
    derived: dict[str, Expression] = {}
    for name in raw:
        _check_name(f"{file}: [derived]", name)
        if name in known:
            raise table.error(name, "the name is already taken by a parameter or a value")
        derived[name] = table.expression(name, [*known, *derived])
    return derived


def _constraint(file: str, number: int, raw: object, known: list[str]) -> Constraint:
    table = Table.of(f"{file}: [[constraints]] {number}", raw, ("expr", "why"))
    return Constraint(table.expression("expr", known, boolean=True), table.text("why"))


def _workspace(file: str, number: int, raw: object, known: list[str]) -> DeclaredWorkspace:
    table = Table.of(f"{file}: [[workspace]] {number}", raw, DeclaredWorkspace.__slots__)
    zero = table.one_of("zero", ("never", "once", "each"), "never")
    return DeclaredWorkspace(table.text("name"), table.expression("bytes", known), zero)


def _tensor_map(file: str, number: int, raw: object, known: list[str]) -> DeclaredTensorMap:
    table = Table.of(f"{file}: [[tensor_map]] {number}", raw, DeclaredTensorMap.__slots__)
    box = table.expressions("box", known)
    if not 1 <= len(box) <= 5:
        raise table.error("box", "must have 1 to 5 extents in elements, the innermost first")
    return DeclaredTensorMap(
        table.text("name"),
        table.one_of("operand", ("A", "B", "C", "D")),
        box,
        table.expression("swizzle", known, default="0"),
        table.expression("promotion", known, default="0"),
    )


def _account(table: Table, known: list[str]) -> Account:
    unit = table.one_of("unit", ("ffma", "tensor")) if "unit" in table else ""
    figures = {key: table.expression(key, known) for key in ("accumulators", "stage_bytes") if key in table}
    return Account(unit, **figures)


def _kernel(table: Table) -> KernelTable:
    return KernelTable(
        table.text("name", "gemm"),
        table.one_of("bind", BINDS, "substitute"),
        table.texts("include_dirs", ()),
        table.texts("defines", ()),
    )


def _steps(file: str, top: Table, fields: Mapping[str, Any], known: list[str]) -> tuple[DeclaredStep, ...]:
    if ("launch" in top) == ("step" in top):
        raise TemplateError(f"{file}: the header needs either [launch] or [[step]] entries.")
    if "launch" in top:
        return (_step(Table.of(f"{file}: [launch]", top.values["launch"], STEP_KEYS), fields, known),)
    steps = enumerate(top.tables("step"), 1)
    return tuple(_step(Table.of(f"{file}: [[step]] {i}", item, STEP_KEYS), fields, known) for i, item in steps)


def _step(table: Table, fields: Mapping[str, Any], known: list[str]) -> DeclaredStep:
    args = tuple(_argument(table, word, fields, known) for word in table.texts("args"))
    kernel = table.text("kernel", fields["kernel"].name)
    if fields["backend"] == "cpu":
        for key in ("grid", "block", "smem_bytes"):
            if key in table:
                raise table.error(key, "belongs to backend cuda; leave it out")
        return DeclaredStep(kernel, args)
    grid, block = table.expressions("grid", known), table.expressions("block", known)
    for key, extents in (("grid", grid), ("block", block)):
        if not 1 <= len(extents) <= 3:
            raise table.error(key, "must have 1 to 3 extents: x, y, z")
    return DeclaredStep(kernel, args, grid, block, table.expression("smem_bytes", known, default="0"))


def _argument(table: Table, word: str, fields: Mapping[str, Any], known: list[str]) -> Argument:
    kind, colon, rest = word.partition(":")
    if not colon and word in ARGUMENT_WORDS:
        return Argument(word)
    if kind in ("i32", "i64") and rest:
        return Argument(kind, expression=table.parse("args", rest, known))
    if kind in ("workspace", "tensor_map"):
        declared = [item.name for item in fields[f"{kind}s"]]
        if rest not in declared:
            raise table.error("args", f"no [[{kind}]] is named {rest!r}. Declared: {', '.join(declared) or 'none'}")
        return Argument(kind, rest)
    raise table.error("args", f"unknown argument {word!r}. Choose among: {ARGUMENT_HELP}")
