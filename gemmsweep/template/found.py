"""What the file of a kernel says of it, as far as a first sidecar needs to know: names, values, types, its launch."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from gemmsweep.errors import TemplateError
from gemmsweep.template.guesses import ELEMENTS, USUAL, argument_words, looks_like_gemm
from gemmsweep.template.kernels import COMMENT, Kernel, find_kernels, parameter_name
from gemmsweep.template.launcher import Launcher, find_launcher, number
from gemmsweep.template.reading import IDENTIFIER, MOST_PARAMETERS, RESERVED

DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Z][A-Z0-9_]*)[ \t]+\(?([0-9]+)\)?[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Found:
    """What the source says of the kernel that was chosen."""

    kernel: Kernel
    others: tuple[str, ...]  # the names of the file's further kernels
    name: str  # the name expression, up to template arguments
    parameters: dict[str, int]  # name → the value found or usual
    bind: str
    args: list[tuple[str, str]]  # our word, the declaration it stands for
    dtype: str
    guessed: tuple[str, ...]  # what no line of the file says: "dtype", "name"
    code: str  # the source without comments
    launcher: Launcher | None


def read(file: str, text: str) -> Found:
    """The kernel whose arguments look most like a GEMM's. Raises TemplateError where there is none, or too many parameters."""
    code = COMMENT.sub(" ", text)
    kernels = [kernel for kernel in find_kernels(text) if kernel.has_body]
    if not kernels:
        way_out = "Give the file that holds the kernel; for one in C write the sidecar as docs/templates.md says."
        raise TemplateError(f"{file} has no '__global__ void' function. {way_out}")
    kernel = max(kernels, key=lambda item: looks_like_gemm(item.name, item.parameters))  # the first of equals
    launcher = find_launcher(text, kernel.name)
    given = _given(kernel, launcher)
    named = dict(zip(map(parameter_name, kernel.template), given, strict=True))
    types = [named.get(word, word) for item in kernel.parameters for word in re.findall(r"\w+", item)]
    elements = [word for word in types if word in ELEMENTS]
    element = elements[0] if elements else "float"
    integers, arguments, told = _template_arguments(kernel, given, launcher, code, element)
    name = kernel.full_name + (f"<{', '.join(arguments)}>" if arguments else "")
    macros = _macros(code)
    if len(integers or macros) > MOST_PARAMETERS:
        raise TemplateError(
            f"{file} has {len(integers or macros)} numbers that could be parameters, more than {MOST_PARAMETERS}. Write the "
            "sidecar as docs/templates.md says."
        )
    return Found(
        kernel,
        tuple(item.full_name for item in kernels if item is not kernel),
        name,
        integers or macros,
        "template" if integers else "define",
        list(zip(argument_words(kernel.parameters), kernel.parameters, strict=True)),
        ELEMENTS[element],
        (*(() if elements else ("dtype",)), *(() if told else ("name",))),
        code,
        launcher,
    )


def _given(kernel: Kernel, launcher: Launcher | None) -> list[str]:
    """What the launch gives each template parameter, else its default; "" where neither says."""
    passed = launcher.template if launcher else ()
    defaults = [part.partition("=")[2].strip() for part in kernel.template]
    return [*passed, *defaults[len(passed) :]][: len(defaults)]


def _template_arguments(
    kernel: Kernel, given: list[str], launcher: Launcher | None, code: str, element: str
) -> tuple[dict[str, int], list[str], bool]:
    """Integer template parameters with a value for each, the argument list, and whether the file says what the others are.

    A type that it does not say becomes `element`.
    """
    integers: dict[str, int] = {}
    arguments, told = [], True
    for part, value in zip(kernel.template, given, strict=True):
        name = parameter_name(part)
        if re.match(r"(typename|class)\b", part):
            known = value in ELEMENTS
            arguments.append(value if known else element)
            told = told and known
        elif re.search(r"\bbool\b", part.partition("=")[0]) or not IDENTIFIER.fullmatch(name) or name in RESERVED:
            arguments.append(value or "0")
            told = told and bool(value)
        else:
            integers[name] = _value(name, value, launcher, code)
            arguments.append(name)
    return integers, arguments, told


def _value(name: str, given: str, launcher: Launcher | None, code: str) -> int:
    """What the launcher passes or the parameter defaults to, else a constant of that name, else what is usual."""
    value = number(given, launcher.variables if launcher else {}) if given else None
    constant = re.search(rf"\b{name}\s*=\s*([0-9]+)\b|#\s*define\s+{name}\s+\(?([0-9]+)", code)
    if value is None:
        value = int(constant[1] or constant[2]) if constant else USUAL.get(name, 16)
    return value if 0 <= value < 2**30 else 0


def _macros(code: str) -> dict[str, int]:
    """Macros with a small number for a value that the code uses."""
    words = Counter(re.findall(r"\w+", code))
    words.subtract(re.findall(r"#\s*(?:define|ifndef|undef)\s+(\w+)", code))
    found = {key: int(value) for key, value in DEFINE.findall(code) if words[key] > 0}
    return {key: value for key, value in found.items() if 0 < value <= 1024 and key not in RESERVED}
