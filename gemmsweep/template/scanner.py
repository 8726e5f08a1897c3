"""C++ as tokens with their places: enough to match brackets past comments, strings and the preprocessor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

TOKEN = re.compile(
    r"""
      (?P<directive>(?m:^)[ \t]*\#(?:/\*.*?\*/|//(?:\\\r?\n|[^\n])*|\\\r?\n|[^\n])*)
    | (?P<blank>[^\S\n]+|\n|\\\r?\n|//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))
    | (?P<string>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?(?:\)(?P=mark)"|\Z)
                |(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"?
                |(?:u8|[uUL])?'(?:\\.|[^'\\\n])*'?)
    | (?P<number>\.?[0-9](?:[eEpP][+-]|'\w|[\w.])*)
    | (?P<word>\$\{\w+\}|\$*[^\W\d]\w*)
    | (?P<long_mark>::|->|==|<<<?|<=|>=)
    | (?P<mark_of_one>.)
    """,
    re.VERBOSE | re.DOTALL,
)
DIRECTIVE = re.compile(r"\s*#\s*(\w*)\s*(.*)", re.DOTALL)
DEFINITION = re.compile(r"\s*#\s*define\s+(\w+)(.*)", re.DOTALL)
PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # "directive", "string", "number", "word" or "mark"
    text: str
    start: int
    end: int


def scan(text: str) -> list[Token]:
    """The tokens of `text` but for blanks, comments, and what `#if 0` leaves out. Any text has tokens."""
    tokens: list[Token] = []
    off = 0  # how many conditionals deep, once inside `#if 0`
    for match in TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if match["directive"] is not None:
            word, rest = directive(match[0])
            if off:
                off += word.startswith("if")
                off -= word == "endif" or (off == 1 and word in ("else", "elif"))
            elif word == "if" and re.match(r"0\b", rest):
                off = 1
            tokens.append(Token("directive", match[0], match.start(), match.end()))
        elif kind != "blank" and not off:
            plain = "string" if match["string"] is not None else kind if kind in ("number", "word") else "mark"
            tokens.append(Token(plain, match[0], match.start(), match.end()))
    return tokens


def directive(text: str) -> tuple[str, str]:
    """("define", "N 3") of `# define N 3`."""
    match = DIRECTIVE.match(text)
    return (match[1], match[2]) if match else ("", "")


def definitions(texts: Iterable[str]) -> dict[str, str]:
    """Every macro that the texts define, with its parameters and body as one text."""
    return {name: body for text in texts for name, body in _definitions(text)}


@lru_cache(maxsize=256)
def _definitions(text: str) -> tuple[tuple[str, str], ...]:
    found = (DEFINITION.match(token.text) for token in scan(text) if token.kind == "directive")
    return tuple((match[1], match[2]) for match in found if match)


def past_group(tokens: Sequence[Token], at: int) -> int:
    """The index past the bracket that closes the one at `at`; -1 where none does.

    Each branch of a conditional starts at the depth before it: `#if … {` `#else … {` `#endif` opens one brace.
    """
    opening = tokens[at].text
    closing, depth = PAIRS[opening], 0
    depths: list[int] = []
    for index in range(at, len(tokens)):
        token = tokens[index]
        if token.kind == "directive":
            word = directive(token.text)[0]
            if word.startswith("if"):
                depths.append(depth)
            elif word in ("else", "elif") and depths:
                depth = depths[-1]
            elif word == "endif" and depths:
                depths.pop()
        elif token.text == opening:
            depth += 1
        elif token.text == closing:
            depth -= 1
            if depth == 0:
                return index + 1
    return -1


def past_angles(tokens: Sequence[Token], at: int) -> int:
    """The index past the `>` that closes the `<` at `at`; -1 where it is no bracket."""
    depth, index = 0, at
    while index < len(tokens):
        text = tokens[index].text
        if text in (";", "{", "}"):
            return -1
        if text in ("(", "["):
            index = past_group(tokens, index)
            if index < 0:
                return -1
            continue
        depth += (text == "<") - (text == ">")
        index += 1
        if depth == 0:
            return index
    return -1


def word_at(tokens: Sequence[Token], at: int) -> str:
    """The text of a token; "" past the ends."""
    return tokens[at].text if 0 <= at < len(tokens) else ""


def past_semicolon(tokens: Sequence[Token], at: int) -> int:
    """The index past the next `;` outside brackets, at the latest where the enclosing brace closes."""
    while at < len(tokens):
        text = tokens[at].text
        if text == ";":
            return at + 1
        if text == "}":
            return at
        past = past_group(tokens, at) if text in PAIRS else at + 1
        at = past if past > 0 else len(tokens)
    return at
