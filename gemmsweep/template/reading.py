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
    PLACE_NAMES,
    SHAPE_NAMES,
    TYPE_NAMES,
    Account,
    Constraint,
    DeclaredStart,
    KernelTable,
    Parameter,
)
from gemmsweep.template.expressions import FUNCTIONS, Expression
from gemmsweep.template.launching import read_launching
from gemmsweep.template.table import Table

TOP_KEYS = (
    "summary", "backend", "arch", "dtypes", "layouts", "deterministic", "requires", "reads_c", "parameters", "derived",
    "constraints", "launch", "step", "workspace", "tensor_map", "accuracy", "start", "account", "kernel",
)  # fmt: skip
MOST_PARAMETERS, MOST_VALUES = 1000, 10_000  # more is no kernel that anybody tunes, and takes minutes to plan
BINDS = ("substitute", "define", "template")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
START_TABLE = re.compile(r"\s*\[\[\s*start\s*\]\]")
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


def read_declarations(file: str, raw: Mapping[str, object], text: str = "") -> dict[str, Any]:
    """The fields of a Template that come from its header. Raises TemplateError naming `file`, where `text` tells it the line."""
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
        "deterministic": _deterministic(top, known),
        "reads_c": top.flag("reads_c", False),
        "requires": top.expressions("requires", known, boolean=True),
        "parameters": parameters,
        "derived": derived,
        "constraints": tuple(_constraint(file, i, item, known) for i, item in enumerate(top.tables("constraints"), 1)),
        "starts": tuple(
            _start(f"{file}{_line_of_start(text, i)}", i, item, parameters, known)
            for i, item in enumerate(top.tables("start"), 1)
        ),
        "account": _account(Table.of(f"{file}: [account]", top.values.get("account", {}), Account.__slots__), known),
        "kernel": kernel,
    }
    return {**fields, **read_launching(file, top, backend, kernel.name, known)}


def _deterministic(top: Table, known: list[str]) -> bool | Expression:
    if isinstance(top.values.get("deterministic"), str):
        return top.expression("deterministic", known, boolean=True)
    return top.flag("deterministic", True)


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
    if len(raw) > MOST_PARAMETERS:
        raise TemplateError(
            f"{file}: [parameters] has {len(raw)} of them, more than {MOST_PARAMETERS}. Leave some out."
        )
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
    if len(values) > MOST_VALUES:
        raise table.error("values", f"has {len(values)} of them, more than {MOST_VALUES}")
    if len(set(values)) < len(values):
        raise table.error("values", f"names a value twice: {values!r}")
    if type(default) is not type(values[0]) or default not in values:
        raise table.error("default", f"{default!r} is not among the values {values!r}")
    assert isinstance(default, int | str)
    return Parameter(name, default, tuple(values), table.text("meaning", ""))


def _line_of_start(text: str, number: int) -> str:
    lines = [at for at, line in enumerate(text.splitlines(), 1) if START_TABLE.match(line)]
    return f", line {lines[number - 1]}" if number <= len(lines) else ""


def _start(file: str, number: int, raw: object, parameters: tuple[Parameter, ...], known: list[str]) -> DeclaredStart:
    table = Table.of(f"{file}: [[start]] {number}", raw, ("set", "when"))
    given = table.values.get("set")
    if not isinstance(given, dict) or not given:
        raise table.error("set", "must be a table of values (set = { BM = 64, BN = 32 })")
    declared = {parameter.name: parameter for parameter in parameters}
    for name, value in given.items():
        if name not in declared:
            raise table.error("set", f"there is no parameter {name!r}. It has: {', '.join(declared)}")
        if type(value) is not type(declared[name].default) or value not in declared[name].values:
            raise table.error(
                "set",
                f"{name} takes: {', '.join(map(str, declared[name].values))}; not {value!r}. Change or delete this [[start]]",
            )
    when = table.expression("when", known, boolean=True) if "when" in table else None
    return DeclaredStart(dict(given), when)


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


def _account(table: Table, known: list[str]) -> Account:
    unit = table.one_of("unit", ("ffma", "tensor")) if "unit" in table else ""
    figures = {key: table.expression(key, known) for key in ("accumulators", "stage_bytes", "tiles") if key in table}
    places = {key: table.expression(key, [*known, *PLACE_NAMES]) for key in ("warp", "lane") if key in table}
    return Account(unit, **figures, **places)


def _kernel(table: Table) -> KernelTable:
    return KernelTable(
        table.text("name", "gemm"),
        table.one_of("bind", BINDS, "substitute"),
        table.texts("include_dirs", ()),
        table.texts("defines", ()),
    )
