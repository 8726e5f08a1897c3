"""What a header says of launches: steps and their arguments, workspaces, tensor maps, accuracy classes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gemmsweep.errors import TemplateError
from gemmsweep.model import OPERANDS, PROBLEM_ACC
from gemmsweep.template.declaration import (
    Argument,
    DeclaredAccuracy,
    DeclaredStep,
    DeclaredTensorMap,
    DeclaredWorkspace,
)
from gemmsweep.template.expressions import Expression
from gemmsweep.template.table import Table

LAUNCH_KEYS = ("kernel", "args", "grid", "block", "smem_bytes")
STEP_KEYS = (*LAUNCH_KEYS, "when")
ARGUMENT_WORDS = ("A", "B", "C", "D", "alpha", "beta", "epilogue")
ARGUMENT_HELP = f"{', '.join(ARGUMENT_WORDS)}, i32:EXPR, i64:EXPR, workspace:NAME, tensor_map:NAME"


def read_launching(file: str, top: Table, backend: str, kernel: str, known: Sequence[str]) -> dict[str, Any]:
    """The fields of a Template for its launches; `kernel` is the name of a step that gives none."""
    workspaces = tuple(
        _workspace(Table.of(f"{file}: [[workspace]] {i}", item, DeclaredWorkspace.__slots__), known)
        for i, item in enumerate(top.tables("workspace"), 1)
    )
    names = [workspace.name for workspace in workspaces]
    tensor_maps = tuple(
        _tensor_map(Table.of(f"{file}: [[tensor_map]] {i}", item, DeclaredTensorMap.__slots__), names, known)
        for i, item in enumerate(top.tables("tensor_map"), 1)
    )
    accuracies = tuple(
        _accuracy(Table.of(f"{file}: [[accuracy]] {i}", item, DeclaredAccuracy.__slots__), known)
        for i, item in enumerate(top.tables("accuracy"), 1)
    )
    declared = {"workspace": names, "tensor_map": [tensor_map.name for tensor_map in tensor_maps]}
    steps = tuple(_step(table, backend, kernel, declared, known) for table in _step_tables(file, top))
    return {"workspaces": workspaces, "tensor_maps": tensor_maps, "accuracies": accuracies, "steps": steps}


def _when(table: Table, known: Collection[str]) -> Expression | None:
    return table.expression("when", known, boolean=True) if "when" in table else None


def _workspace(table: Table, known: Sequence[str]) -> DeclaredWorkspace:
    zero = table.one_of("zero", ("never", "once", "each"), "never")
    return DeclaredWorkspace(table.text("name"), table.expression("bytes", known), zero, _when(table, known))


def _tensor_map(table: Table, workspaces: Sequence[str], known: Sequence[str]) -> DeclaredTensorMap:
    box = table.expressions("box", known)
    if not 1 <= len(box) <= 5:
        raise table.error("box", "must have 1 to 5 extents in elements, the innermost first")
    operand = table.one_of("operand", (*OPERANDS, *(f"workspace:{name}" for name in workspaces)))
    extent, ld = table.expressions("extent", known), None
    if operand in OPERANDS:
        for key in ("extent", "ld"):
            if key in table:
                raise table.error(key, f"belongs to a map of a workspace; that of {operand} is known. Leave it out")
    else:
        ld = table.expression("ld", known)
        if len(extent) != 2:
            raise table.error("extent", 'must be the columns and rows of the workspace: extent = ["K", "M"]')
    return DeclaredTensorMap(
        table.text("name"),
        operand,
        box,
        table.expression("swizzle", known, default="0"),
        table.expression("promotion", known, default="0"),
        extent,
        ld,
        _when(table, known),
    )


def _accuracy(table: Table, known: Sequence[str]) -> DeclaredAccuracy:
    acc = table.text("acc")
    if not acc.isidentifier():
        raise table.error("acc", f"{acc!r} is not a word of letters, digits and underscores")
    if acc == PROBLEM_ACC:
        raise table.error(
            "acc", f"{acc!r} is the class of the problem, which needs no [[accuracy]]. Choose another word"
        )
    return DeclaredAccuracy(
        acc, table.expression("unit", known), table.expression("terms", known, default="1"), _when(table, known)
    )


def _step_tables(file: str, top: Table) -> list[Table]:
    if ("launch" in top) == ("step" in top):
        raise TemplateError(f"{file}: the header needs either [launch] or [[step]] entries.")
    if "launch" in top:
        return [Table.of(f"{file}: [launch]", top.values["launch"], LAUNCH_KEYS)]
    return [Table.of(f"{file}: [[step]] {i}", item, STEP_KEYS) for i, item in enumerate(top.tables("step"), 1)]


def _step(
    table: Table, backend: str, kernel: str, declared: Mapping[str, Sequence[str]], known: Sequence[str]
) -> DeclaredStep:
    args = tuple(_argument(table, word, declared, known) for word in table.texts("args"))
    kernel, when = table.text("kernel", kernel), _when(table, known)
    if backend == "cpu":
        for key in ("grid", "block", "smem_bytes"):
            if key in table:
                raise table.error(key, "belongs to backend cuda; leave it out")
        return DeclaredStep(kernel, args, when=when)
    grid, block = table.expressions("grid", known), table.expressions("block", known)
    for key, extents in (("grid", grid), ("block", block)):
        if not 1 <= len(extents) <= 3:
            raise table.error(key, "must have 1 to 3 extents: x, y, z")
    return DeclaredStep(kernel, args, grid, block, table.expression("smem_bytes", known, default="0"), when)


def _argument(table: Table, word: str, declared: Mapping[str, Sequence[str]], known: Sequence[str]) -> Argument:
    kind, colon, rest = word.partition(":")
    if not colon and word in ARGUMENT_WORDS:
        return Argument(word)
    if kind in ("i32", "i64") and rest:
        return Argument(kind, expression=table.parse("args", rest, known))
    if kind in declared:
        if rest not in declared[kind]:
            names = ", ".join(declared[kind]) or "none"
            raise table.error("args", f"no [[{kind}]] is named {rest!r}. Declared: {names}")
        return Argument(kind, rest)
    raise table.error("args", f"unknown argument {word!r}. Choose among: {ARGUMENT_HELP}")
