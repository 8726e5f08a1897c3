"""`gemmsweep init k.cu`: a first sidecar for a kernel as it is, every guess marked as one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gemmsweep.errors import TemplateError
from gemmsweep.template.includes import read_source
from gemmsweep.template.reading import IDENTIFIER, RESERVED

KERNEL = re.compile(
    r"(?:template\s*<(?P<template>[^{};]*?)>\s*)?(?:(?:static|extern\s*\"C\")\s+)*"
    r"__global__\s+(?:__launch_bounds__\s*(?P<early>\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))\s*)?void\s+"
    r"(?:__launch_bounds__\s*(?P<late>\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))\s*)?(?P<name>\w+)\s*\((?P<args>[^)]*)\)"
)
DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Z][A-Z0-9_]*)[ \t]+\(?([0-9]+)\)?[ \t]*(?:/[/*].*)?$", re.MULTILINE)
# What the field's names are usually swept over, where the source says nothing.
USUAL = {"BM": 128, "BN": 128, "BK": 16, "WM": 64, "WN": 32, "TM": 8, "TN": 8, "STAGES": 2, "VEC": 4, "UNROLL": 4}
INTEGER_ARGUMENTS = {"m": "M", "n": "N", "k": "K", "lda": "lda", "ldb": "ldb", "ldc": "ldc", "ldd": "ldc"}
SPELLINGS = {"rows": "m", "cols": "n", "width": "n", "size": "n", "depth": "k", "stride_a": "lda", "stride_b": "ldb"}
ELEMENTS = {"float": "fp32", "half": "fp16", "__half": "fp16", "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class _Found:
    """What the source says of its first kernel."""

    kernel: str  # the name expression, up to template arguments
    parameters: dict[str, int]  # name → the value found or usual
    bind: str
    args: list[tuple[str, str]]  # our word, the declaration it stands for
    dtype: str
    code: str  # the source without comments


def draft_sidecar(path: Path) -> str:
    """The text of a sidecar for the first `__global__` function of `path`. Raises TemplateError where there is none."""
    found = _read(path.name, read_source(path))
    sections = [_head(path, found), _parameters(found), _kernel(found), _launch(found)]
    return "\n".join(sections)


def _read(file: str, text: str) -> _Found:
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    match = KERNEL.search(code)
    if match is None:
        raise TemplateError(f"{file} has no '__global__ void' function. Give the file that holds the kernel.")
    integers, arguments = _template_arguments(match["template"] or "", code)
    name = _namespace(code[: match.start()]) + match["name"] + (f"<{', '.join(arguments)}>" if arguments else "")
    declarations = [" ".join(part.split()) for part in match["args"].split(",") if part.strip()]
    types = [word for item in declarations for word in re.findall(r"\w+", item) if word in ELEMENTS]
    macros = {key: int(value) for key, value in DEFINE.findall(code) if _is_parameter(key, code, int(value))}
    bind = "template" if integers else "define"
    return _Found(
        name, integers or macros, bind, _arguments(declarations), ELEMENTS[types[0]] if types else "fp32", code
    )


def _template_arguments(declared: str, code: str) -> tuple[dict[str, int], list[str]]:
    """Integer template parameters with a value for each, and the argument list; a type becomes float."""
    integers: dict[str, int] = {}
    arguments = []
    for part in filter(None, (part.strip() for part in declared.split(","))):
        left, _, default = part.partition("=")
        name = re.findall(r"\w+", left)[-1]
        if re.match(r"(typename|class)\b", part):
            arguments.append(default.strip() or "float")
        elif not re.search(r"\bbool\b", left) and IDENTIFIER.fullmatch(name) and name not in RESERVED:
            integers[name] = _value(name, default, code)
            arguments.append(name)
        else:
            arguments.append(default.strip() or "0")
    return integers, arguments


def _value(name: str, default: str, code: str) -> int:
    """The parameter's default, else the value of a constant of that name, else what is usual."""
    constant = re.search(rf"\b{name}\s*=\s*([0-9]+)\b|#\s*define\s+{name}\s+\(?([0-9]+)", code)
    if default.strip().isdecimal():
        return int(default)
    return int(constant[1] or constant[2]) if constant else USUAL.get(name, 16)


def _is_parameter(name: str, code: str, value: int) -> bool:
    used = len(re.findall(rf"\b{name}\b", code)) - len(re.findall(rf"#\s*(?:define|ifndef|undef)\s+{name}\b", code))
    return used > 0 and 0 < value <= 1024 and name not in RESERVED


def _namespace(before: str) -> str:
    """`ns::` of the namespaces that are open at the end of `before`."""
    stack: list[str] = []
    for match in re.finditer(r"(?:namespace\s+([\w:]+)\s*)?\{|\}", before):
        if match[0] == "}":
            stack = stack[:-1]
        else:
            stack.append(f"{match[1]}::" if match[1] else "")
    return "".join(stack)


def _arguments(declarations: list[str]) -> list[tuple[str, str]]:
    pointers = [item for item in declarations if "*" in item]
    return [(_argument(item, pointers), item) for item in declarations]


def _argument(declaration: str, pointers: list[str]) -> str:
    """Our word for one argument; "" where there is no guess."""
    name: str = re.findall(r"\w+", declaration.split("[")[0])[-1]
    plain: str = name.lower().removeprefix("d_").removeprefix("d") if len(name) > 1 else name.lower()
    if declaration in pointers:
        if plain[:1] in ("a", "b", "c") and len(plain) < 3:
            return plain[0].upper()
        if name.lower() in ("d", "out", "output", "result"):
            return "D" if any(re.search(r"\b(d_?)?[cC]$", other) for other in pointers) else "C"
        position = pointers.index(declaration)
        return "ABC"[position] if position < 3 else ""
    if name.lower() in ("alpha", "beta"):
        return name.lower()
    word = INTEGER_ARGUMENTS.get(SPELLINGS.get(name.lower(), name.lower()))
    wide = re.search(r"\b(long|size_t|u?int64_t|ptrdiff_t)\b", declaration)
    return f"{'i64' if wide else 'i32'}:{word}" if word else ""


def _head(path: Path, found: _Found) -> str:
    words = {word for word, _ in found.args}
    required = [
        f"{size} % {name} == 0"
        for size, name in zip("MNK", ("BM", "BN", "BK"), strict=True)
        if name in found.parameters
    ]
    tests_beta = re.search(r"\bbeta\s*[!=]=|\bif\s*\(\s*beta\b", found.code)
    lines = [
        f"# Drafted by gemmsweep init from {path.name}. Every line marked 'guess' wants a look.",
        f'summary = "{path.stem}: first kernel of {path.name}"',
        'backend = "cuda"',
        'arch    = "sm_75+"  # guess: this one and later, or exactly one, as "sm_90a"',
        f'dtypes  = ["{found.dtype}"]',
        'layouts = ["nn"]  # guess: nn: B is stored (k, n); nt: B is stored (n, k)',
    ]
    if required:
        listed = ", ".join(f'"{rule}"' for rule in required)
        lines.append(f"requires = [{listed}]  # guess: remove what the kernel handles itself")
    if "beta" in words and not tests_beta:
        lines.append("reads_c = true  # guess: C is read even where beta is 0")
    return "\n".join(lines) + "\n"


def _parameters(found: _Found) -> str:
    lines = ["[parameters]"]
    for name, value in found.parameters.items():
        values = sorted({max(1, value // 2), value, value * 2})
        lines.append(f'{name} = {{ default = {value}, values = {values}, meaning = "" }}  # guess: values')
    return "\n".join(lines) + "\n"


def _kernel(found: _Found) -> str:
    comment = "C++ template arguments" if found.bind == "template" else "macros of the source"
    return f'[kernel]\nname = "{found.kernel}"\nbind = "{found.bind}"  # parameters are {comment}\n'


def _launch(found: _Found) -> str:
    lines = ["[launch]", "args = ["]
    for word, declaration in found.args:
        lines.append(f'    "{word or "i32:0"}",  # {"guess" if word else "UNKNOWN, replace"}: {declaration}')
    lines.append("]")
    rows_on_x = re.search(r"\b\w*row\w*\s*=\s*blockIdx\.x", found.code, re.IGNORECASE)
    extents = [f"ceil_div({size}, {_tile(found, name)})" for size, name in (("N", "BN"), ("M", "BM"))]
    x, y = reversed(extents) if rows_on_x else extents
    lines.append(f'grid  = ["{x}", "{y}", "1"]  # guess: {"rows" if rows_on_x else "columns"} of C along x')
    lines.append(f"block = {_block(found)}  # guess")
    if re.search(r"\bextern\s+__shared__", found.code):
        known = {"BM", "BN", "BK"} <= found.parameters.keys()
        size = "(BM + BN) * BK * sizeof_in" if known else "0"
        lines.append(f'smem_bytes = "{size}"  # guess: dynamic shared memory')
    return "\n".join(lines) + "\n"


def _tile(found: _Found, name: str) -> str:
    """The tile's side along one dimension of C: its parameter, a square block's, or 16."""
    square = ("BLOCK_SIZE", "BLOCKSIZE", "TILE_SIZE", "TILE", "BLOCK", "BS")
    return next((candidate for candidate in (name, *square) if candidate in found.parameters), "16")


def _block(found: _Found) -> str:
    names = found.parameters.keys()
    for threads in ("NUM_THREADS", "THREADS", "BLOCK_THREADS"):
        if threads in names:
            return f'"{threads}"'
    tile_m, tile_n = _tile(found, "BM"), _tile(found, "BN")
    if {"WM", "WN"} <= names:
        return f'"32 * floor_div({tile_m}, WM) * floor_div({tile_n}, WN)"'
    per_thread = " * ".join(name for name in ("TM", "TN") if name in names)
    if per_thread:
        return f'"floor_div({tile_m} * {tile_n}, {per_thread})"'
    if "threadIdx.y" in found.code:
        return f'["{tile_n}", "{tile_m}"]'
    return f'"{tile_m} * {tile_n}"'
