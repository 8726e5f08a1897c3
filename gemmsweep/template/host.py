"""A user's source without its host code: NVRTC refuses every function and variable that is not for the device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from gemmsweep.template.heads import BEFORE_PARENS, Declaration, Head
from gemmsweep.template.scanner import (
    Token,
    definitions,
    directive,
    past_angles,
    past_group,
    past_semicolon,
    scan,
    word_at,
)

SPACES = {"__global__", "__device__", "__constant__", "__shared__", "__managed__"}
# Macros of libraries whose headers are not at hand: CUTLASS_DEVICE, CUTE_HOST_DEVICE, C10_GLOBAL.
LIKELY_MACRO = re.compile(r"[A-Z0-9_]*(?:DEVICE|GLOBAL|KERNEL)[A-Z0-9_]*")
DEVICE_MACRO = re.compile(r"__(?:global|device|constant|shared|managed)__|\bconste?val\b|\bconstexpr\b")
HOST_TYPE = re.compile(
    r"\b(?:std ?:: ?(?!size_t\b|ptrdiff_t\b|nullptr_t\b|u?int(?:8|16|32|64|ptr)_t\b|is_|enable_if|conditional|integral_"
    r"|true_type|false_type|remove_|decay|forward|move|declval|numeric_limits)\w+"
    r"|thrust ?::|cublas\w+|cusparse\w+|cusolver\w+|cudnn\w+|nvml\w+|curandGenerator_t|cudaDeviceProp|FILE\b)"
)
KEPT_DIRECTIVES = ("if", "ifdef", "ifndef", "elif", "else", "endif", "define", "undef")


def device_only(text: str, macros: Mapping[str, str] | None = None) -> str:
    """`text` without host functions and host variables; every line keeps its number, any text is taken.

    Functions and variables without an execution or memory space go, within namespaces, `extern "C"` and classes;
    a `constexpr` function stays, and is marked for both sides. `macros` are those that other files define.
    """
    return _device_only(text, frozenset((macros or {}).items()))


@lru_cache(maxsize=256)
def _device_only(text: str, macros: frozenset[tuple[str, str]]) -> str:
    return _Reader(text, {**dict(macros), **definitions([text])}).without_host()


def _naming(macros: Mapping[str, str]) -> set[str]:
    """The macros that name an execution space, themselves or by another macro."""
    naming: set[str] = set()
    while True:
        more = {
            name
            for name, body in macros.items()
            if DEVICE_MACRO.search(body) or not naming.isdisjoint(re.findall(r"\w+", body))
        }
        if more <= naming:
            return naming
        naming |= more


class _Reader:
    def __init__(self, text: str, macros: Mapping[str, str]) -> None:
        self.text, self.macros, self.tokens = text, macros, scan(text)
        self.naming = _naming(macros)

    def without_host(self) -> str:
        """The text with every cut blanked, its newlines and its macros kept."""
        parts, done = [], 0
        for start, end, instead in self.edits():
            parts += [self.text[done:start], instead]
            done = end
        return "".join(parts) + self.text[done:]

    def edits(self) -> Iterator[tuple[int, int, str]]:
        """(start, end, what stands there instead), in order."""
        at = 0
        open_scopes: list[str] = []
        while at < len(self.tokens):
            token = self.tokens[at]
            if token.text == "}":
                scope = open_scopes.pop() if open_scopes else "namespace"
                at = past_semicolon(self.tokens, at + 1) if scope == "class" else at + 1
            elif token.kind == "directive" or token.text == ";" or token.text == "$STATIC_ASSERTS":
                at += 1
            elif inside := self.opens_namespace(at):
                open_scopes.append("namespace")
                at = inside
            elif token.text in ("public", "private", "protected") and word_at(self.tokens, at + 1) == ":":
                at += 2
            else:
                in_class = bool(open_scopes) and open_scopes[-1] == "class"
                found = self.declaration(at)
                host = self.is_host(found, in_class)
                if host and found.kind == "class":
                    close = past_group(self.tokens, found.end - 1)
                    found.end = past_semicolon(self.tokens, close) if close > 0 else found.end
                elif found.kind == "class":
                    open_scopes.append("class")
                if host and not any(token.text == "__global__" for token in self.tokens[at : found.end]):
                    yield self.cut(at, found.end)
                elif found.kind == "function" and self.is_plain_constexpr(found):
                    yield token_start(self.tokens, found), token_start(self.tokens, found), "__host__ __device__ "
                at = max(found.end, at + 1)

    def opens_namespace(self, at: int) -> int:
        """The index past the brace that a `namespace` or `extern "C"` at `at` opens; 0 where none does."""
        if (
            word_at(self.tokens, at) == "extern"
            and word_at(self.tokens, at + 1).startswith('"')
            and word_at(self.tokens, at + 2) == "{"
        ):
            return at + 3
        at += word_at(self.tokens, at) == "inline"
        if word_at(self.tokens, at) != "namespace":
            return 0
        while at < len(self.tokens) and self.tokens[at].text not in ("{", ";", "=", "}"):
            at += 1
        return at + 1 if word_at(self.tokens, at) == "{" else 0

    def declaration(self, at: int) -> Declaration:
        """The declaration that starts at `at`."""
        found = Declaration(at)
        while (
            word_at(self.tokens, at) == "template"
            and word_at(self.tokens, at + 1) == "<"
            and (past := past_angles(self.tokens, at + 1)) > 0
        ):
            at = past
        if word_at(self.tokens, at) in ("using", "namespace", "static_assert", "asm", "__asm__"):
            found.kind = "alias" if word_at(self.tokens, at) in ("using", "namespace") else "other"
            found.end = past_semicolon(self.tokens, at)
            return found
        if self.is_macro_line(at):
            found.kind, found.end = "macro", past_group(self.tokens, at + 1)
            found.words.append(word_at(self.tokens, at))
            return found
        Head(self.tokens, found, at).read()
        return found

    def is_macro_line(self, at: int) -> bool:
        """`MACRO(…)` on lines of its own, without a semicolon: what follows is another declaration."""
        if (
            self.tokens[at].kind != "word"
            or word_at(self.tokens, at + 1) != "("
            or word_at(self.tokens, at) in BEFORE_PARENS
        ):
            return False
        past = past_group(self.tokens, at + 1)
        if past < 0 or past >= len(self.tokens):
            return False
        following = self.tokens[past]
        gap = self.text[self.tokens[past - 1].end : following.start]
        return "\n" in gap and following.kind in ("word", "directive") and following.text not in ("try", "noexcept")

    def is_host(self, found: Declaration, in_class: bool) -> bool:
        """Whether NVRTC refuses the declaration, or has no such types."""
        shown = " ".join(token.text for token in self.tokens[found.start : found.end])
        if self.names_a_space(found) or found.is_defaulted:
            return False
        if found.kind == "alias":
            return re.match(r"using (?:namespace )?std ::", shown) is not None or HOST_TYPE.search(shown) is not None
        if found.kind == "macro":
            return re.search(r"[{]|<<<", self.macros.get(found.words[0], "")) is not None
        if found.kind == "function":
            is_constexpr = not {"constexpr", "consteval"}.isdisjoint(found.words)
            return not is_constexpr or HOST_TYPE.search(shown) is not None
        if found.kind in ("enum", "other") or len(found.words) < 2:
            return found.kind == "variable" and HOST_TYPE.search(shown) is not None
        if HOST_TYPE.search(shown):
            return True
        plain_field = in_class and ("static" not in found.words)
        lambda_ = re.search(r"= \[", shown) is not None
        if found.kind == "class" or plain_field or (shown.startswith("template") and not lambda_):
            return False
        return lambda_ or not (found.by_value or "constexpr" in found.words or "friend" in found.words)

    def names_a_space(self, found: Declaration) -> bool:
        return any(w in SPACES or w in self.naming or LIKELY_MACRO.fullmatch(w) for w in found.words)

    def is_plain_constexpr(self, found: Declaration) -> bool:
        return not self.names_a_space(found) and "constexpr" in found.words and not found.is_defaulted

    def cut(self, first: int, past: int) -> tuple[int, int, str]:
        """Nothing but newlines, and the directives that the rest of the file may count on."""
        start, end = self.tokens[first].start, self.tokens[past - 1].end
        parts, done = [], start
        for token in self.tokens[first:past]:
            if token.kind == "directive" and directive(token.text)[0] in KEPT_DIRECTIVES:
                parts += ["\n" * self.text.count("\n", done, token.start), token.text]
                done = token.end
        return start, end, "".join(parts) + "\n" * self.text.count("\n", done, end)


def token_start(tokens: Sequence[Token], found: Declaration) -> int:
    """Where the word `constexpr` of a declaration stands."""
    return next(token.start for token in tokens[found.start : found.end] if token.text == "constexpr")
