"""Expressions as C: parenthesised 64-bit constant expressions with the values that `Expression.evaluate` gives.

The header's text itself would not do: C reads `not a == b`, negative `%`, 32-bit products and `max` otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gemmsweep.template.expressions import LOGIC, Binary, Expression, ExpressionError, Integer, Name, Node, Unary

MAX_EMITTED = 4000  # characters; min, max and divisions repeat their operands


def emit(expression: Expression, spelled: Mapping[str, str], nonnegative: Collection[str] = ()) -> str:
    """The expression as valid C11 and C++.

    `spelled` gives each name's text (a `long long`); names in `nonnegative` allow the plain `/` and `%` of C. Raises
    ExpressionError where the text would be unreasonably long.
    """
    return _emit(expression.root, spelled, nonnegative)


def is_nonnegative(expression: Expression, names: Collection[str]) -> bool:
    """Whether the expression is >= 0 wherever `names` are, as far as its form tells."""
    return _nonnegative_node(expression.root, names)


def _emit(node: Node, spelled: Mapping[str, str], nonnegative: Collection[str]) -> str:
    match node:
        case Integer(value=value):
            return f"{value}LL"
        case Name(name=name):
            return spelled[name]
        case Unary(operator=sign, operand=operand):
            return f"({'!' if sign == 'not' else '-'}{_emit(operand, spelled, nonnegative)})"
        case Binary(operator=sign, left=left, right=right):
            a, b = (_emit(side, spelled, nonnegative) for side in (left, right))
            plain = _nonnegative_node(left, nonnegative) and _nonnegative_node(right, nonnegative)
            text = _emit_binary(sign, a, b, plain)
            if len(text) > MAX_EMITTED:
                raise ExpressionError(
                    "the expression is too long to write as a static_assert; name parts of it under [derived]"
                )
            return text


def _emit_binary(sign: str, a: str, b: str, plain: bool) -> str:
    """`plain`: both operands are known to be >= 0, where C's truncation is the floor."""
    # C truncates towards zero: the remainder has the sign of `a`, so floor and ceiling differ by one on one side.
    inexact = f"({a} % {b}) != 0LL"
    signs_differ = f"(({a} < 0LL) != ({b} < 0LL))"
    match sign:
        case "min" | "max":
            return f"({a} {'<' if sign == 'min' else '>'} {b} ? {a} : {b})"
        case "%" if not plain:
            return f"(({a} % {b}) + ({inexact} && {signs_differ} ? {b} : 0LL))"
        case "floor_div" if not plain:
            return f"(({a} / {b}) - ({inexact} && {signs_differ} ? 1LL : 0LL))"
        case "ceil_div" if not plain:
            return f"(({a} / {b}) + ({inexact} && !{signs_differ} ? 1LL : 0LL))"
        case "ceil_div":
            return f"(({a} / {b}) + ({inexact} ? 1LL : 0LL))"
        case "floor_div":
            return f"({a} / {b})"
    return f"({a} {LOGIC.get(sign, sign)} {b})"


def _nonnegative_node(node: Node, names: Collection[str]) -> bool:
    match node:
        case Integer():
            return True
        case Name(name=name):
            return name in names
        case Binary(operator="+" | "*" | "%" | "min" | "max" | "floor_div" | "ceil_div", left=left, right=right):
            return _nonnegative_node(left, names) and _nonnegative_node(right, names)
    return False
