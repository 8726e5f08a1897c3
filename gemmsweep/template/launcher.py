"""The `<<<grid, block>>>` of a user's own host code, and its C arithmetic in gemmsweep's expressions."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gemmsweep.template.expressions import ExpressionError, parse
from gemmsweep.template.kernels import COMMENT, split
from gemmsweep.template.scanner import Token, past_angles, past_group, scan, word_at

VARIABLE = re.compile(
    r"\b(?:(?:const|constexpr|static|unsigned|signed|int|long|uint|size_t|auto|u?int(?:32|64)_t|dim3)\s+)+"
    r"(\w+)\s*(?:=\s*([^;{}]+)|([({][^;]*[)}]))\s*;|^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n]+)$",
    re.MULTILINE,
)
CEILINGS = re.compile(r"(?i)(ceil|div)_?(div|ceil|up)|cdiv|div_?round_?up|ceil_?div(ide)?")
BINARY: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Mod: "%"}


@dataclass(frozen=True, slots=True)
class Launcher:
    """One launch as it is written; extents and arguments are C expressions."""

    template: tuple[str, ...]
    grid: tuple[str, ...]
    block: tuple[str, ...]
    smem_bytes: str
    arguments: tuple[str, ...]
    variables: dict[str, str]  # what is defined before it: name → C expression


def find_launcher(text: str, kernel: str) -> Launcher | None:
    """The first launch of the kernel in its own file; None where there is none."""
    tokens = scan(text)
    for at, token in enumerate(tokens):
        if token.text != kernel:
            continue
        template: list[str] = []
        opening = at + 1
        if word_at(tokens, opening) == "<":
            past = past_angles(tokens, opening)
            template = split(text, tokens[opening + 1 : past - 1]) if past > 0 else []
            opening = past
        if opening > 0 and word_at(tokens, opening) == "<<<":
            return _read(text, tokens, template, opening + 1)
    return None


def _closes(tokens: Sequence[Token], at: int) -> bool:
    """Whether `>>>` stands here; single tokens, since `>>` closes two template argument lists as well."""
    return [token.text for token in tokens[at : at + 3]] == [">"] * 3


def _read(text: str, tokens: Sequence[Token], template: list[str], begin: int) -> Launcher | None:
    end = begin
    while end < len(tokens) and not _closes(tokens, end):
        past = past_group(tokens, end) if tokens[end].text == "(" else end + 1
        end = past if past > 0 else len(tokens)
    configuration = split(text, tokens[begin:end])
    past = past_group(tokens, end + 3) if word_at(tokens, end + 3) == "(" else -1
    if len(configuration) < 2 or past < 0:
        return None
    variables = _variables(COMMENT.sub(" ", text[: tokens[begin].start]))
    grid, block = (_extents(part, variables) for part in configuration[:2])
    smem = configuration[2] if len(configuration) > 2 else ""
    return Launcher(tuple(template), grid, block, smem, tuple(split(text, tokens[end + 4 : past - 1])), variables)


def _variables(before: str) -> dict[str, str]:
    found = {}
    for name, value, constructed, macro, body in VARIABLE.findall(before):
        found[name or macro] = (value or constructed or body).strip()
    return found


def _extents(text: str, variables: dict[str, str]) -> tuple[str, ...]:
    """The extents of `grid`, `dim3(a, b)` or a plain number of blocks."""
    text = variables.get(text, text) if text.isidentifier() else text
    listed = re.fullmatch(r"(?:dim3\s*)?[({](.*)[)}]", text, re.DOTALL)
    inner = listed[1] if listed and (text.startswith("dim3") or "," in text) else text
    return tuple(split(inner, scan(inner)))


def converted(text: str, meaning: Callable[[str], str | None]) -> str | None:
    """A C expression in gemmsweep's language, `meaning` giving each name's text; None where it is beyond the language."""
    text = re.sub(r"\bsizeof\s*\(\s*\w+\s*\)", "sizeof_in", text)
    text = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text)
    text = re.sub(r"\(\s*(?:unsigned|int|size_t|uint)\s*\)|\bstatic_cast\s*<[^<>]*>", "", text)
    try:
        written = _bare(ast.parse(text.strip(), mode="eval").body, meaning)
        return written if parse(written) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError, ExpressionError):
        return None


def number(text: str, variables: dict[str, str]) -> int | None:
    """The value of a C expression of literals and constants; None where it has none."""

    def meaning(name: str, depth: int = 0) -> str | None:
        if name not in variables or depth > 8:
            return None
        return converted(variables[name], lambda inner: meaning(inner, depth + 1))

    written = converted(text, meaning)
    try:
        return None if written is None else int(parse(written).evaluate({}))
    except ExpressionError:
        return None


def _convert(node: ast.expr, meaning: Callable[[str], str | None]) -> str:
    """Raises ValueError for what is beyond the language."""
    match node:
        case ast.Constant(value=int(value)):
            return str(value)
        case ast.Name(id="sizeof_in"):
            return "sizeof_in"
        case ast.Name(id=name) if (known := meaning(name)) is not None:
            return known if known.isalnum() or known.isidentifier() else f"({known})"
        case ast.BinOp(left, ast.Div(), right):
            if (total := _rounded_up(left, right)) is not None:
                return f"ceil_div({_bare(total, meaning)}, {_bare(right, meaning)})"
            return f"floor_div({_bare(left, meaning)}, {_bare(right, meaning)})"
        case ast.BinOp(left, operation, right) if type(operation) in BINARY:
            return f"({_bare(left, meaning, operation)} {BINARY[type(operation)]} {_convert(right, meaning)})"
        case ast.BinOp(left, ast.LShift(), ast.Constant(value=int(bits))) if 0 <= bits < 32:
            return f"({_bare(left, meaning, ast.Mult())} * {1 << bits})"
        case ast.BinOp(left, ast.RShift(), ast.Constant(value=int(bits))) if 0 <= bits < 32:
            return f"floor_div({_bare(left, meaning)}, {1 << bits})"
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if CEILINGS.fullmatch(name):
            return f"ceil_div({_bare(left, meaning)}, {_bare(right, meaning)})"
    raise ValueError


def _bare(node: ast.expr, meaning: Callable[[str], str | None], inside: ast.operator | None = None) -> str:
    """Without parentheses where they say nothing: between commas, and `a * b * c`."""
    if isinstance(node, ast.Name) and inside is None:
        return meaning(node.id) or _convert(node, meaning)
    text = _convert(node, meaning)
    binds = isinstance(node, ast.BinOp) and type(node.op) in BINARY
    same = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(inside, ast.Mult)
    return text[1:-1] if binds and (inside is None or same) else text


def _rounded_up(left: ast.expr, right: ast.expr) -> ast.expr | None:
    """`x` where `left` is `x + right - 1`."""
    by = ast.dump(right)
    match left:
        case ast.BinOp(ast.BinOp(total, ast.Add(), more), ast.Sub(), ast.Constant(value=1)) if ast.dump(more) == by:
            return total
        case ast.BinOp(total, ast.Add(), ast.BinOp(more, ast.Sub(), ast.Constant(value=1))) if ast.dump(more) == by:
            return total
    return None
