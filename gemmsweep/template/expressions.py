"""The expressions of a template header: parsed once against a whitelist, evaluated on the host.

Integers have 64 bits; `%`, `floor_div` and `ceil_div` round as in mathematics (floor and ceiling).
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from gemmsweep.errors import TemplateError

MAX_LENGTH = 500  # characters of an expression
MAX_DEPTH = 40
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
GRAMMAR = "integers, names, + - * %, one comparison, and/or/not, and min max ceil_div floor_div of two"


class ExpressionError(TemplateError):
    """An expression that is not of the language, or has no value (overflow, division by zero, an unknown name)."""


@dataclass(frozen=True, slots=True)
class Integer:
    value: int


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Unary:
    operator: str  # "-" or "not"
    operand: Node


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: Node
    right: Node


Node = Integer | Name | Unary | Binary
Run = Callable[[Mapping[str, int]], int | bool]


def _exact_div(left: int, right: int) -> int:
    if left % right:
        raise ExpressionError(f"{left} / {right} is not a whole number")
    return left // right


DIVISIONS: dict[str, Callable[[int, int], int]] = {
    "%": operator.mod,
    "floor_div": operator.floordiv,
    "ceil_div": lambda left, right: -(-left // right),
    "/": _exact_div,
}
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "min": min,
    "max": max,
    **DIVISIONS,
}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
LOGIC = {"and": "&&", "or": "||"}
FUNCTIONS = ("min", "max", "ceil_div", "floor_div")
_SPELLING: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Mod: "%", ast.Div: "/",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.And: "and", ast.Or: "or",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression; `names` are the names it uses."""

    text: str
    root: Node
    names: frozenset[str]
    run: Run = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", _compiled(self.root))

    @property
    def is_boolean(self) -> bool:
        return _is_boolean(self.root)

    def evaluate(self, env: Mapping[str, int]) -> int | bool:
        """The value with the names' values from `env`.

        Raises ExpressionError on 64-bit overflow, division by zero, an inexact `/`, or a name without a value.
        """
        try:
            return self.run(env)
        except ExpressionError as error:
            raise ExpressionError(f"{error} in '{self.text}'") from None


def parse(text: str, *, allow_division: bool = False) -> Expression:
    """Parse `text`; `allow_division` permits `a / b` where b divides a. Raises ExpressionError."""
    text = text.strip()
    if len(text) > MAX_LENGTH:
        raise ExpressionError(
            f"an expression of {len(text)} characters; at most {MAX_LENGTH} are read, so name parts of it"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # Python's opinion of `1and 2` is nothing to print
            tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ExpressionError(f"'{text}' is not an expression. Allowed: {GRAMMAR}") from None
    try:
        root = _build(tree.body, 1, allow_division)
    except ExpressionError as error:
        raise ExpressionError(f"{error} in '{text}'") from None
    names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)) - set(FUNCTIONS)
    return Expression(text, root, names)


def _build(node: ast.expr, depth: int, division: bool) -> Node:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"more than {MAX_DEPTH} levels of nesting")
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            if value > INT64_MAX:
                raise ExpressionError(f"{value} does not fit 64 bits")
            return Integer(value)
        case ast.Name(id=name) if name.isascii() and name not in FUNCTIONS:
            return Name(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Unary("-", _typed(_build(operand, depth + 1, division), boolean=False))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Unary("not", _typed(_build(operand, depth + 1, division), boolean=True))
        case ast.BinOp(left=left, op=op, right=right):
            return _binary(_arithmetic_sign(op, division), left, right, depth, division)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _SPELLING:
            return _binary(_SPELLING[type(op)], left, right, depth, division)
        case ast.Compare(ops=[_, _, *_]):
            raise ExpressionError("a chained comparison; write 'a < b and b < c'")
        case ast.BoolOp(op=op, values=[first, *others]):
            whole = _typed(_build(first, depth + 1, division), boolean=True)
            for other in others:
                whole = Binary(_SPELLING[type(op)], whole, _typed(_build(other, depth + 1, division), boolean=True))
            return whole
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in FUNCTIONS:
            return _binary(name, left, right, depth, division)
    raise ExpressionError(f"column {node.col_offset + 1} is none of what is allowed ({GRAMMAR})")


def _arithmetic_sign(op: ast.operator, division: bool) -> str:
    sign = _SPELLING.get(type(op))
    if sign is None or (sign == "/" and not division):
        way_out = "write floor_div(a, b) or ceil_div(a, b)" if isinstance(op, ast.Div | ast.FloorDiv) else GRAMMAR
        raise ExpressionError(f"an operator that is not allowed ({way_out})")
    return sign


def _binary(sign: str, left: ast.expr, right: ast.expr, depth: int, division: bool) -> Binary:
    operands = (_typed(_build(side, depth + 1, division), boolean=False) for side in (left, right))
    return Binary(sign, *operands)


def _is_boolean(node: Node) -> bool:
    match node:
        case Unary(operator=sign) | Binary(operator=sign):
            return sign == "not" or sign in LOGIC or sign in COMPARISONS
    return False


def _typed(node: Node, *, boolean: bool) -> Node:
    if _is_boolean(node) != boolean:
        wanted, found = ("a comparison", "an integer") if boolean else ("an integer", "a comparison")
        raise ExpressionError(f"{found} where {wanted} is needed (integers and comparisons are kept apart)")
    return node


def _compiled(node: Node) -> Run:
    """The node as a function of the names' values: a plan evaluates each expression some thousand times."""
    match node:
        case Integer(value=value):
            return lambda env: value
        case Name(name=name):
            return partial(_named, name)
        case Unary(operator=sign, operand=inner):
            operand = _compiled(inner)
            return (lambda env: not operand(env)) if sign == "not" else (lambda env: _checked(-operand(env)))
        case Binary(operator=sign):
            left, right = _compiled(node.left), _compiled(node.right)
    if sign in LOGIC:
        return (lambda env: left(env) and right(env)) if sign == "and" else (lambda env: left(env) or right(env))
    if sign in COMPARISONS:
        compare = COMPARISONS[sign]
        return lambda env: compare(left(env), right(env))
    combine = partial(_divided, DIVISIONS[sign]) if sign in DIVISIONS else ARITHMETIC[sign]
    return lambda env: _checked(combine(left(env), right(env)))


def _named(name: str, env: Mapping[str, int]) -> int:
    try:
        return env[name]
    except KeyError:
        raise ExpressionError(f"no value for '{name}'") from None


def _divided(division: Callable[[int, int], int], left: int, right: int) -> int:
    if right == 0:
        raise ExpressionError("division by zero")
    _checked(left // right)  # C has no remainder either where the quotient overflows
    return division(left, right)


def _checked(value: int) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise ExpressionError("64-bit overflow")
    return value
