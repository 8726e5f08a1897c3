"""`$STATIC_ASSERTS`: a template's rules as C or C++: an exported kernel keeps them when its constants are edited."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gemmsweep.template.declaration import DEVICE_NAMES, SHAPE_NAMES, Template
from gemmsweep.template.emission import emit, is_nonnegative
from gemmsweep.template.expressions import Expression


def static_asserts(template: Template, env: Mapping[str, int]) -> str:
    """One line per rule that needs neither shape nor device, and per derived value which the body declares.

    Names refer to the body's constants (`BM = $BM`), so the lines are the same along an axis; a name that the body does
    not declare stands as its expression, or as its value in `env`.
    """
    spelled = _Spelling(template, env)
    keyword = "static_assert" if template.backend == "cuda" else "_Static_assert"
    rules = [
        (spelled.text(rule.expression), rule.why) for rule in template.constraints if spelled.is_static(rule.expression)
    ]
    for name, expression in template.derived.items():
        if name in spelled.declared and spelled.is_static(expression):
            rules.append((f"({spelled.declared[name]} == {spelled.text(expression)})", f"{name} = {expression.text}"))
    return "\n".join(f'{keyword}({_unwrapped(text)}, "{_quoted(why)}");' for text, why in rules)


class _Spelling:
    """How each name of the header is written in the body."""

    def __init__(self, template: Template, env: Mapping[str, int]) -> None:
        self.template = template
        self.moving = {*SHAPE_NAMES, *DEVICE_NAMES[template.backend]}
        declared = _declared(template.body)
        names = [*template.defaults(), *template.derived]
        self.declared = {name: f"(long long){name}" for name in names if name in declared}
        self.nonnegative = set(env) - set(template.derived)  # parameters, sizes and switches
        self.spelled = {name: f"{env[name]}LL" for name in self.nonnegative}
        self.spelled.update(self.declared)
        for name, expression in template.derived.items():
            if is_nonnegative(expression, self.nonnegative):
                self.nonnegative.add(name)
            if name not in self.declared and self.is_static(expression):
                self.spelled[name] = self.text(expression)

    def is_static(self, expression: Expression) -> bool:
        return not self.template.behind(expression.names) & self.moving

    def text(self, expression: Expression) -> str:
        return emit(expression, self.spelled, self.nonnegative)


_DECLARATION = re.compile(r"(?:\b(\w+)\s*=|#\s*define\s+(\w+))\s*\(?\$(?:(\w+)|\{(\w+)\})")


def _declared(body: str) -> set[str]:
    """Names that the body declares as what the header gives for them: `BM = $BM`, `#define BM ($BM)`."""
    found = ((m[1] or m[2], m[3] or m[4]) for m in _DECLARATION.finditer(body))
    return {name for name, key in found if name == key}


def _unwrapped(text: str) -> str:
    """Without the outermost parentheses, where one pair encloses the whole."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and position < len(text) - 1:
            return text
    return text[1:-1]


def _quoted(why: str) -> str:
    return " ".join(why.split()).replace("\\", "\\\\").replace('"', '\\"')
