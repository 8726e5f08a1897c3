"""The `__global__` functions of a source, and the explicit instantiation of one that is a template."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gemmsweep.template.heads import BEFORE_PARENS
from gemmsweep.template.scanner import PAIRS, Token, past_angles, past_group, scan, word_at

QUALIFIERS = {"const", "volatile", "struct"}
NO_NAMES = QUALIFIERS | {
    "int", "char", "short", "long", "float", "double", "bool", "void", "unsigned", "signed", "restrict", "__restrict__",
}  # fmt: skip
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as it is declared; the texts are without comments."""

    name: str
    namespace: str  # "a::b", "" outside any
    template: tuple[str, ...]  # "int BM = 64"
    parameters: tuple[str, ...]  # "const float *A"
    bounds: str  # the first argument of __launch_bounds__, "" where there is none
    has_body: bool

    @property
    def full_name(self) -> str:
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


def find_kernels(text: str) -> list[Kernel]:
    """Every kernel of a source in order; one that is declared and defined counts once, specialisations do not."""
    tokens = scan(text)
    found: dict[str, Kernel] = {}
    spaces: list[str] = []
    start = 0
    for at, token in enumerate(tokens):
        if token.text == "__global__":
            kernel = _kernel(text, tokens, start, at, "::".join(filter(None, spaces)))
            if kernel is not None and (kernel.has_body or kernel.full_name not in found):
                found[kernel.full_name] = kernel
        elif token.text == "{":
            spaces.append(_opened(tokens, at))
        elif token.text == "}":
            spaces = spaces[:-1]
        if token.text in ("{", "}", ";"):
            start = at + 1
    return list(found.values())


def split(text: str, tokens: Sequence[Token]) -> list[str]:
    """The parts of a comma-separated list, each as written but for comments and runs of blanks."""
    parts, at, begin = [], 0, tokens[0].start if tokens else 0
    while at < len(tokens):
        token, past = tokens[at], at + 1
        if token.text == ",":
            parts.append(text[begin : token.start])
            begin = token.end
        elif token.text in PAIRS:
            past = past_group(tokens, at)
        elif token.text == "<":
            past = past_angles(tokens, at)
        at = past if past > 0 else at + 1
    parts.append(text[begin : tokens[-1].end] if tokens else "")
    return [part for part in (" ".join(COMMENT.sub(" ", part).split()) for part in parts) if part]


def parameter_names(text: str, function: str) -> set[tuple[str, ...]]:
    """What the definitions of a function of C or CUDA, `ns::k<64>` too, call its parameters; "" of one without a name."""
    name = function.partition("<")[0].rpartition("::")[2].strip()
    tokens = scan(text)
    found = set()
    for at, token in enumerate(tokens):
        past = past_group(tokens, at + 1) if token.text == name and word_at(tokens, at + 1) == "(" else -1
        if past > 0 and word_at(tokens, past) == "{":
            found.add(tuple(parameter_name(one) for one in split(text, tokens[at + 2 : past - 1])))
    return found


def parameter_name(declaration: str) -> str:
    """`BM` of `const int BM = 64`; "" of one that has no name."""
    declared = declaration.partition("=")[0].partition("[")[0]
    declared = declared.replace("::", "_")  # a qualified type is one word
    words: list[str] = re.findall(r"\w+", declared)
    named = set(words[:-1]) - QUALIFIERS and words[-1] not in NO_NAMES and declared.rstrip().endswith(words[-1])
    return words[-1] if named else ""


def instantiation(kernel: str, texts: Iterable[str]) -> str:
    """The line that instantiates `ns::k<64, float>`, or a comment that asks for one; "" for a kernel that is no template."""
    full_name, bracket, rest = kernel.partition("<")
    if not bracket:
        return ""
    known = {item.full_name: item for text in texts for item in find_kernels(text)}
    declared = known.get(full_name.strip().removeprefix("::"))
    given = split(rest, scan(rest.rstrip().removesuffix(">")))
    line = None if declared is None else _instantiated(declared, given)
    return line or f"// Instantiate it where nothing else does: template __global__ void {kernel}(its argument types);"


def _instantiated(kernel: Kernel, given: list[str]) -> str | None:
    if len(given) > len(kernel.template) or any("..." in part for part in kernel.template):
        return None
    values: dict[str, str] = {}
    arguments = []
    for position, part in enumerate(kernel.template):
        default = part.partition("=")[2]
        value = given[position] if position < len(given) else _substitute(default.strip(), values)
        if not value:
            return None
        arguments.append(value)
        if name := parameter_name(part):
            values[name] = value
    types = [_substitute(part.partition("=")[0].strip(), values) for part in kernel.parameters]
    line = f"template __global__ void {kernel.name}<{', '.join(arguments)}>({', '.join(types)});"
    return f"namespace {kernel.namespace} {{ {line} }}" if kernel.namespace else line


def _substitute(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\b[A-Za-z_]\w*", lambda match: values.get(match[0], match[0]), text)


def _opened(tokens: Sequence[Token], brace: int) -> str:
    """The namespace that a brace opens; "" for any other brace."""
    at = brace - 1
    while at >= 0 and (tokens[at].text == "::" or (tokens[at].kind == "word" and tokens[at].text != "namespace")):
        at -= 1
    return "".join(token.text for token in tokens[at + 1 : brace]) if word_at(tokens, at) == "namespace" else ""


def _kernel(text: str, tokens: Sequence[Token], start: int, at: int, namespace: str) -> Kernel | None:
    """The kernel whose `__global__` stands at `at`, in the declaration that starts at `start`."""
    template: list[str] = []
    for index in range(start, at):
        if tokens[index].text == "template":
            past = past_angles(tokens, index + 1) if word_at(tokens, index + 1) == "<" else -1
            if past < index + 4:
                return None  # template <> or template __global__: no declaration of its own
            template = split(text, tokens[index + 2 : past - 1])
            break
    name = at + 1
    while name < len(tokens) and tokens[name].text not in (";", "{", "}", "<"):
        if tokens[name].kind == "word" and word_at(tokens, name + 1) == "(":
            past = past_group(tokens, name + 1)
            if past < 0:
                return None
            if tokens[name].text not in BEFORE_PARENS:
                parameters = split(text, tokens[name + 2 : past - 1])
                bounds = _bounds(text, tokens, start, name)
                body = word_at(tokens, past) == "{"
                return Kernel(tokens[name].text, namespace, tuple(template), tuple(parameters), bounds, body)
            name = past
        else:
            name += 1
    return None


def _bounds(text: str, tokens: Sequence[Token], start: int, end: int) -> str:
    for index in range(start, end):
        if tokens[index].text == "__launch_bounds__" and (past := past_group(tokens, index + 1)) > 0:
            return next(iter(split(text, tokens[index + 2 : past - 1])), "")
    return ""
