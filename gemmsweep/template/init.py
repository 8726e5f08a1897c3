"""`gemmsweep init k.cu`: a first sidecar for a kernel as it is, every guess marked as one."""

from __future__ import annotations

import re
import shlex
from itertools import zip_longest
from pathlib import Path

from gemmsweep.errors import TemplateError
from gemmsweep.template.found import Found, read
from gemmsweep.template.guesses import SQUARE_TILES, THREAD_COUNTS, meaning_of
from gemmsweep.template.header import has_header
from gemmsweep.template.includes import read_source
from gemmsweep.template.kernels import parameter_name
from gemmsweep.template.launcher import converted
from gemmsweep.template.trial import defaults_that_hold


def draft_sidecar(path: Path) -> str:
    """The text of a sidecar for the `__global__` function of `path` whose arguments look most like a GEMM's.

    Its defaults break no rule of the draft; where that cannot be had, the first lines say so. Raises TemplateError where
    there is no kernel, or a header that a sidecar would contradict.
    """
    text = read_source(path)
    if has_header(path.name, text):
        raise TemplateError(
            f"{path.name} has a header of its own ('// /// gemmsweep') and needs no sidecar. Run it as it is: "
            f"gemmsweep run --template {shlex.quote(str(path))} --vary P"
        )
    found = read(path.name, text)
    values = {name: _values(value) for name, value in found.parameters.items()}
    defaults, broken = defaults_that_hold(path, text, lambda trial: _written(path, found, values, trial, ""), values,
                                          found.parameters)  # fmt: skip
    return _written(path, found, values, defaults, broken)


def _written(path: Path, found: Found, values: dict[str, list[int]], defaults: dict[str, int], broken: str) -> str:
    sections = [_head(path, found, broken), _parameters(values, defaults), _kernel(found), _launch(found)]
    return "\n".join(sections)


def _values(value: int) -> list[int]:
    return sorted({max(1, value // 2), value, value * 2})


def _head(path: Path, found: Found, broken: str) -> str:
    words = {word for word, _ in found.args}
    required = [
        f"{size} % {name} == 0"
        for size, name in zip("MNK", ("BM", "BN", "BK"), strict=True)
        if name in found.parameters
    ]
    tests_beta = re.search(r"\bbeta\s*[!=]=|\bif\s*\(\s*beta\b", found.code)
    lines = [f"# Drafted by gemmsweep init from {path.name}. Every line marked 'guess' wants a look."]
    if broken:
        lines.append(f"# No defaults near these values keep every rule, so look at block first: {broken}")
    if found.others:
        lines.append(f"# It describes {found.kernel.full_name}, whose arguments look most like a GEMM's. The file also")
        lines.append(f"# has {', '.join(found.others)}.")
    which = "kernel" if found.others else "the kernel"
    lines += [
        f'summary = "{which} {found.kernel.name} of {path.name}"',
        'backend = "cuda"',
        'arch    = "sm_75+"  # guess: this one and later, or exactly one, as "sm_90a"',
        f'dtypes  = ["{found.dtype}"]' + ("  # guess: no operand's type is known" if "dtype" in found.guessed else ""),
        'layouts = ["nn"]  # guess: nn: B is stored (k, n); nt: B is stored (n, k)',
    ]
    sizes = {word[4:] for word in words if word[4:] in ("M", "N", "K")}
    if len(sizes) == 1:
        required += [f"{size} == {next(iter(sizes))}" for size in "MNK" if size not in sizes]
    if required:
        listed = ", ".join(f'"{rule}"' for rule in required)
        lines.append(f"requires = [{listed}]  # guess: remove what the kernel handles itself")
    if "beta" in words and not tests_beta:
        lines.append("reads_c = true  # guess: C is read even where beta is 0")
    return "\n".join(lines) + "\n"


def _parameters(values: dict[str, list[int]], defaults: dict[str, int]) -> str:
    lines = ["[parameters]"]
    for name, declared in values.items():
        written = f'default = {defaults[name]}, values = {declared}, meaning = "{meaning_of(name)}"'
        lines.append(f"{name} = {{ {written} }}  # guess: values")
    return "\n".join(lines) + "\n"


def _kernel(found: Found) -> str:
    comment = "C++ template arguments" if found.bind == "template" else "macros of the source"
    guess = "  # guess: no launch in the file says these template arguments" if "name" in found.guessed else ""
    return f'[kernel]\nname = "{found.name}"{guess}\nbind = "{found.bind}"  # parameters are {comment}\n'


def _launch(found: Found) -> str:
    lines = ["[launch]", "args = ["]
    for word, declaration in found.args:
        lines.append(f'    "{word or "i32:0"}",  # {"guess" if word else "UNKNOWN, replace"}: {declaration}')
    lines.append("]")
    lines += [_grid(found), f"block = {_block(found)}"]
    if (smem := _smem(found)) is not None:
        lines.append(f'smem_bytes = "{smem}"  # guess: dynamic shared memory')
    return "\n".join(lines) + "\n"


def _grid(found: Found) -> str:
    rows_on_x = re.search(r"\b\w*row\w*\s*=\s*blockIdx\.x", found.code, re.IGNORECASE)
    if written := _extents(found, found.launcher.grid if found.launcher else (), "MN" if rows_on_x else "NM"):
        return f"grid  = {written}  # guess: as it is launched in the file"
    extents = [f"ceil_div({size}, {_tile(found, name)})" for size, name in (("N", "BN"), ("M", "BM"))]
    x, y = reversed(extents) if rows_on_x else extents
    return f'grid  = ["{x}", "{y}", "1"]  # guess: {"rows" if rows_on_x else "columns"} of C along x'


def _smem(found: Found) -> str | None:
    written = _expression(found, found.launcher.smem_bytes) if found.launcher and found.launcher.smem_bytes else None
    if written is not None and written != "0":
        return written
    if not re.search(r"\bextern\s+__shared__", found.code):
        return None
    return "(BM + BN) * BK * sizeof_in" if {"BM", "BN", "BK"} <= found.parameters.keys() else "0"


def _extents(found: Found, written: tuple[str, ...], sizes: str = "") -> str:
    """The extents of a launch as TOML; "" where one of them is beyond the expressions.

    `sizes`: the one that each extent most likely counts, where the launch passes one variable for several.
    """
    likely = zip_longest(written, sizes[: len(written)], fillvalue="")
    texts = [text for part, size in likely if (text := _expression(found, part, size)) is not None]
    return (
        f"[{', '.join(f'{chr(34)}{text}{chr(34)}' for text in texts)}]" if texts and len(texts) == len(written) else ""
    )


def _expression(found: Found, text: str, size: str = "") -> str | None:
    """A C expression of the file in our names: parameters, sizes as the launch passes them, constants by value.

    Of a variable passed for several arguments it is `size`, else another size: a leading dimension may be longer.
    """
    names = {name: name for name in found.parameters}
    for word, declaration in found.args:
        if word.startswith("i"):
            names[parameter_name(declaration.partition("[")[0])] = word[4:]
    variables: dict[str, str] = {}
    if launcher := found.launcher:
        variables = launcher.variables
        passed = zip(launcher.template, found.kernel.template, strict=False)
        names |= {given: name for given, part in passed if (name := parameter_name(part))
                  in found.parameters and given.isidentifier()}  # fmt: skip
        arguments = zip(launcher.arguments, found.args, strict=False)
        meant = [(word[4:], given) for given, (word, _) in arguments if given.isidentifier() and word.startswith("i")]
        meant.sort(key=lambda pair: (pair[0] in ("M", "N", "K"), pair[0] == size))  # the last of equals stays
        names |= {given: word for word, given in meant}

    def meaning(name: str, depth: int = 0) -> str | None:
        if name in names or name not in variables or depth > 8:
            return names.get(name)
        return converted(variables[name], lambda inner: meaning(inner, depth + 1))

    return converted(text, meaning)


def _tile(found: Found, name: str) -> str:
    """The tile's side along one dimension of C: its parameter, a square block's, or 16."""

    return next((candidate for candidate in (name, *SQUARE_TILES) if candidate in found.parameters), "16")


def _block(found: Found) -> str:
    if written := _extents(found, found.launcher.block if found.launcher else ()):
        return f"{written}  # guess: as it is launched in the file"
    bounds = _expression(found, found.kernel.bounds) if found.kernel.bounds else None
    if bounds is not None and "threadIdx.y" not in found.code:
        return f'"{bounds}"  # guess: what __launch_bounds__ says'
    return f"{_usual_block(found)}  # guess"


def _usual_block(found: Found) -> str:
    names = found.parameters.keys()
    for threads in THREAD_COUNTS:
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
