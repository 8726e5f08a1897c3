"""One C++ declaration up to its end, or to the brace that opens its class: what kind it is, and its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gemmsweep.template.scanner import Token, past_angles, past_group, past_semicolon, word_at

CLASSES = ("struct", "class", "union")
BEFORE_PARENS = {
    "__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__", "__attribute__", "__declspec", "__align__",
    "alignas", "decltype", "typeof", "noexcept", "explicit", "requires",
}  # fmt: skip


@dataclass(slots=True)
class Declaration:
    """One declaration of a namespace or class: where it ends, and what stands outside its brackets."""

    start: int
    end: int = 0  # the index past it; of a class, past the brace that opens it
    kind: str = "variable"  # "function", "class", "enum", "alias", "macro" or "other"
    words: list[str] = field(default_factory=list)
    by_value: bool = False  # const, and no pointer after it
    has_body: bool = False
    is_defaulted: bool = False


class Head:
    """Reads one declaration up to its `;`, its body, or the brace that opens its class."""

    def __init__(self, tokens: Sequence[Token], found: Declaration, at: int) -> None:
        self.tokens, self.found, self.at = tokens, found, at
        self.class_word = ""
        self.has_parameters = self.has_base = False

    def read(self) -> None:
        found, tokens = self.found, self.tokens
        while not found.end:
            text = word_at(self.tokens, self.at)
            if self.at >= len(tokens) or text == "}":
                found.end = self.at
            elif text == ";":
                found.end = self.at + 1
            elif text == "=":
                found.is_defaulted = word_at(self.tokens, self.at + 1) in ("default", "delete")
                found.end = past_semicolon(self.tokens, self.at)
            elif text == "operator":
                self.operator()
            elif text in ("(", "["):
                self.has_parameters = self.has_parameters or (text == "(" and self.are_parameters())
                self.at = past if (past := past_group(tokens, self.at)) > 0 else len(tokens)
            elif text == "<":
                self.at = past if (past := past_angles(tokens, self.at)) > 0 else self.at + 1
            elif text == "{":
                self.brace()
            else:
                self.step(text)
        if found.kind == "variable" and "typedef" in found.words:
            found.kind = "alias"
        elif found.kind == "variable" and self.has_parameters:
            found.kind = "function"
        elif found.kind == "variable" and self.class_word and not found.has_body and len(found.words) <= 3:
            found.kind = "other"  # a class that is declared only

    def step(self, text: str) -> None:
        token = self.tokens[self.at]
        if token.kind == "word":
            self.found.words.append(text)
            self.found.by_value = self.found.by_value or text == "const"
            if text in (*CLASSES, "enum") and not (self.has_parameters or self.class_word):
                self.class_word = text
        elif text in ("*", "&"):
            self.found.by_value = False
        elif text == ":":
            self.has_base = True  # of a class; of a constructor, the list of members
        self.at += 1

    def operator(self) -> None:
        """`operator` and its name: `operator()`, `operator<`, `operator float4`."""
        self.found.words.append("operator")
        self.at += 1
        if word_at(self.tokens, self.at) == "(":
            self.at += 2
        while word_at(self.tokens, self.at) not in ("(", ";", "{", "}", ""):
            self.at += 1
        if word_at(self.tokens, self.at) == "(":
            past = past_group(self.tokens, self.at)
            self.has_parameters, self.at = True, past if past > 0 else len(self.tokens)

    def are_parameters(self) -> bool:
        before, inside = self.tokens[self.at - 1], word_at(self.tokens, self.at + 1)
        if inside in ("*", "&"):
            self.found.words.append("(*)")  # a pointer to a function
            return False
        if self.at == self.found.start or before.text in BEFORE_PARENS:
            return False
        if self.at + 1 < len(self.tokens) and self.tokens[self.at + 1].kind in ("number", "string"):
            return False
        if self.class_word and len(self.found.words) < 3:
            return False  # struct MACRO(8) name {
        return before.kind == "word" or before.text == ">"

    def brace(self) -> None:
        tokens, found = self.tokens, self.found
        if self.class_word in CLASSES and not self.has_parameters:
            found.kind, found.end = "class", self.at + 1
            return
        past = past_group(tokens, self.at)
        before = tokens[self.at - 1]
        if past < 0:
            found.kind, found.end = "other", len(tokens)  # the compiler will say what is wrong with it
        elif self.class_word == "enum" and not self.has_parameters:
            found.kind, found.end = "enum", past_semicolon(self.tokens, past)
        elif self.has_parameters and self.has_base and (before.kind == "word" or before.text == ">"):
            self.at = past  # a member's initialiser
        elif self.has_parameters:
            while word_at(self.tokens, past) == "catch" and word_at(self.tokens, past + 1) == "(":
                block = past_group(tokens, past + 1)
                past = past_group(tokens, block) if word_at(self.tokens, block) == "{" else len(tokens)
                past = past if past > 0 else len(tokens)
            found.kind, found.has_body, found.end = "function", True, past
        else:
            self.at = past
            if word_at(self.tokens, past) not in (",", ";"):
                found.end = past
