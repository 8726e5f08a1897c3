"""The expression language: what it refuses, what it computes, and that its C computes the same."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmsweep.template.emission import emit
from gemmsweep.template.expressions import INT64_MAX, INT64_MIN, Expression, ExpressionError, parse

NAMES = ("x0", "x1", "x2", "x3")
VALUES = (0, 1, 2, 3, 7, 8, 128, 4096, -1, -2, -7, 2**31, 2**62, -(2**62), INT64_MAX, INT64_MIN)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')", "a.b", "a[0]", "lambda: 1", "a < b < c", "a // 2",
        "a / 2", "2 ** 9", "a if b else c", "1.5", "'a'",
        "True", "not a", "a and b", "1 + (a < b)", "(a < b) == (c < d)", "min(a)", "min(a, b, c)", "abs(a)", "min",
        "a & b", "~a", "+a", "a is b", "(x := 3)", "", "a b", "9223372036854775808", "[1]", "min(*a, b)", "max(a, b=1)",
        "a\0b", "(" * 300, "-" * 499 + "a", "1+" * 60 + "1", "a" * 501,
    ],
)  # fmt: skip
def test_anything_outside_the_language_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text)


@given(st.text(max_size=60) | st.text(alphabet="ab01()+-*%/<=>! ,minaxotrd_", max_size=60))
def test_any_text_parses_or_is_refused(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        parse(text, allow_division=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("not 1 == 2", True),
        ("-7 % 3", 2),
        ("7 % -3", -2),
        ("floor_div(-7, 2)", -4),
        ("ceil_div(-7, 2)", -3),
        ("ceil_div(7, 2)", 4),
        ("max(3, 9) - min(3, 9)", 6),
        ("1 == 1 or 1 % 0 == 0", True),
        ("2 + 3 * 4 % 5", 4),
    ],
)
def test_values(text: str, value: int) -> None:
    assert parse(text).evaluate({}) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x * x", "64-bit overflow in 'x \\* x'"),
        ("1 % (x - x)", "division by zero"),
        ("floor_div(-x - 1 - x - x, 0)", "overflow|zero"),
        ("y + 1", "no value for 'y'"),
    ],
)
def test_what_has_no_value_says_why(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        parse(text).evaluate({"x": 2**62})


def test_user_settings_may_divide_exactly() -> None:
    assert parse("BM / 2", allow_division=True).evaluate({"BM": 64}) == 32
    with pytest.raises(ExpressionError, match=r"65 / 2 is not a whole number"):
        parse("BM / 2", allow_division=True).evaluate({"BM": 65})


def test_names_are_those_a_value_is_needed_for() -> None:
    assert parse("min(BM, 2) * BK == BM").names == {"BM", "BK"}


def _random_text(rng: random.Random, depth: int, boolean: bool) -> str:
    if boolean:
        if depth > 1 and rng.random() < 0.5:
            left, right = (_random_text(rng, depth - 1, True) for _ in range(2))
            return rng.choice([f"({left} and {right})", f"({left} or {right})", f"not {left}"])
        left, right = (_random_text(rng, depth - 1, False) for _ in range(2))
        return f"{left} {rng.choice(['==', '!=', '<', '<=', '>', '>='])} {right}"
    if depth <= 0 or rng.random() < 0.2:
        return rng.choice([*NAMES, "0", "1", "3", "16"])
    left, right = (_random_text(rng, depth - 1, False) for _ in range(2))
    operation = rng.choice(["+", "-", "*", "%", "neg", "min", "max", "floor_div", "ceil_div"])
    if operation == "neg":
        return f"-({left})"
    return f"{operation}({left}, {right})" if len(operation) > 1 else f"({left} {operation} {right})"


def _random_cases(count: int, write: Callable[[Expression, dict[str, int]], str]) -> list[str]:
    """`count` texts of random expressions that have a value."""
    rng = random.Random(7)
    cases: list[str] = []
    while len(cases) < count:
        boolean = rng.random() < 0.5
        text = _random_text(rng, rng.randint(1, 4), boolean)
        env = {name: rng.choice(VALUES) for name in NAMES}
        try:
            cases.append(write(parse(text), env))
        except ExpressionError:
            continue
    return cases


def _assertion(keyword: str) -> Callable[[Expression, dict[str, int]], str]:
    def write(expression: Expression, env: dict[str, int]) -> str:
        spelled = {name: _literal(value) for name, value in env.items()}
        text = emit(expression, spelled, [name for name, value in env.items() if value >= 0])
        return f'{keyword}({text} == {_literal(int(expression.evaluate(env)))}, "");'

    return write


def _literal(value: int) -> str:
    return f"({value}LL)" if value > INT64_MIN else "(-9223372036854775807LL - 1LL)"


def _runtime_check(expression: Expression, env: dict[str, int]) -> str:
    values = " ".join(f"long long {name} = opaque({_literal(value)});" for name, value in env.items())
    text = emit(expression, {name: name for name in NAMES}, [name for name, value in env.items() if value >= 0])
    unused = " ".join(f"(void){name};" for name in NAMES)
    return f"{{ {values} {unused} failed += ({text}) != {_literal(int(expression.evaluate(env)))}; }}"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_emitted_c_computes_the_same(tmp_path: Path) -> None:
    program = "\n".join(
        [
            "static long long opaque(long long x) { volatile long long y = x; return y; }",
            *_random_cases(300, _assertion("_Static_assert")),
            "int main(void) {", "int failed = 0;", *_random_cases(300, _runtime_check), "return failed != 0;", "}",
        ]
    )  # fmt: skip
    (tmp_path / "t.c").write_text(program)
    built = subprocess.run(
        ["cc", "-std=c11", "-w", "-O0", "-fsanitize=undefined", "-fno-sanitize-recover", "-o",
         tmp_path / "t", tmp_path / "t.c"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[:2000]
    assert subprocess.run([tmp_path / "t"], check=False).returncode == 0


def test_emitted_cpp_computes_the_same() -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no NVRTC")
    program = nvrtc.createProgram("\n".join(_random_cases(300, _assertion("static_assert"))), "t.cu", (), ())
    nvrtc.compileProgram(program, ("-arch=sm_80",))
    nvrtc.destroyProgram(program)


def test_text_that_would_explode_is_refused() -> None:
    deep = "a"
    for _ in range(30):
        deep = f"min({deep}, b)"
    with pytest.raises(ExpressionError, match=r"name parts of it under \[derived\]"):
        emit(parse(deep), {"a": "a", "b": "b"})
