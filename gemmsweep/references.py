"""What kernels are compared with: the vendor library, its rivals by name, and functions of the user's. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmsweep.defined import missing_name, spec_of
from gemmsweep.errors import UsageError, choices, did_you_mean
from gemmsweep.model import Problem

LIBRARY = ("cublas", "cublaslt_best", "pad_copy_cublas")  # of a GPU; the first is in every race
CPU_LIBRARY = ("numpy",)
VENDOR = "vendor"  # any of its ways, where a family's name stands else
WIDE = 0.5  # half of an interval as a part of its value, beyond which the value is no figure to quote
WORTH_NAMING = 0.005  # smallest difference to name: races of the same two differ by as much (docs/measuring.md)
WHOLE_BYTES = 16  # of a row: what a library's fast kernels load at a time
FP32_SUMS = "partial sums in fp32"
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
NAME = re.compile(r"[A-Za-z_]\w*")
MOST_LISTED = 20  # names of a user's file


@dataclass(frozen=True, slots=True)
class Function:
    """`py:module.function` or `py:path/file.py:function`; `text` is how it was written."""

    text: str
    module: str  # dotted, "" where it is a file
    path: str  # absolute, "" where it is a module
    name: str

    @property
    def label(self) -> str:
        """`file.function`: its name in races and reports."""
        return f"{Path(self.path).stem if self.path else self.module.rpartition('.')[2]}.{self.name}"

    @property
    def fingerprint(self) -> str:
        """Of a file, its contents: an edited function is another rival."""
        return hashlib.sha256(Path(self.path).read_bytes()).hexdigest() if self.path else self.module


def parse_function(text: str) -> Function:
    """Raises UsageError for what is neither form, and for a file, module or name that is not there."""
    kind, _, rest = text.partition(":")
    way_out = "Write py:module.function or py:path/file.py:function."
    if kind != "py" or not rest:
        raise UsageError(f"--against {text!r} names no Python function. {way_out}")
    path, colon, name = rest.rpartition(":")
    if colon and NAME.fullmatch(name):
        if not Path(path).is_file():
            raise UsageError(f"--against {text!r}: there is no file {path!r}. {way_out}")
        _require_defined(text, Path(path), name)
        return Function(text, "", str(Path(path).resolve()), name)
    if not DOTTED.fullmatch(rest):
        raise UsageError(f"--against {text!r} names no Python function. {way_out}")
    module, _, name = rest.rpartition(".")
    spec = spec_of(module)
    if spec is None:
        raise UsageError(f"--against {text!r}: there is no module {module!r}. {way_out}")
    if module == spec.name and spec.origin and spec.origin.endswith(".py"):
        _require_defined(text, Path(spec.origin), name)
    return Function(text, module, "", name)


def _require_defined(text: str, path: Path, name: str) -> None:
    try:
        others = missing_name(path, name)
    except SyntaxError as error:
        where = path.name if error.lineno is None else f"{path.name}, line {error.lineno}"
        raise UsageError(f"--against {text!r}: {where}: {error.msg}. Correct it.") from None
    if others is not None:
        listed = ", ".join(others[:MOST_LISTED]) or "nothing"
        raise UsageError(
            f"--against {text!r}: there is no {name!r} in {path.name}.{did_you_mean(name, others)} It defines: {listed}."
        )


def parse_functions(texts: Iterable[str]) -> tuple[Function, ...]:
    """Raises UsageError also where two of them would share a label."""
    functions = tuple(parse_function(text) for text in texts)
    labels = [function.label for function in functions]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"--against names {label!r} twice. Rename one of the functions.")
    return functions


def parse_names(text: str | None, device_kind: str) -> tuple[str, ...]:
    """`--reference cublas,cublaslt_best` as names; none where it is left to us. Raises UsageError for an unknown one."""
    if text is None:
        return ()
    known = CPU_LIBRARY if device_kind == "cpu" else LIBRARY
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise UsageError(choices("reference", name, known))
    return names


def main_reference(device_kind: str) -> str:
    """The yardstick, in every race: what ratios are told of, and whose error a config may make twice."""
    return CPU_LIBRARY[0] if device_kind == "cpu" else LIBRARY[0]


def yardstick(names: Iterable[str]) -> str | None:
    """Which of these a measured ratio is told of: the vendor library, whatever else raced; None of none."""
    given = list(names)
    return next((name for name in (*LIBRARY, *CPU_LIBRARY) if name in given), next(iter(given), None))


def stricter(name: str, version: str) -> str:
    """The version that keeps partial sums in fp32, of a library that may keep them in C's type; "" where there is no other."""
    return f"{version}, {FP32_SUMS}" if name == "cublas" and FP32_SUMS not in version else ""


def is_level(ratio: float) -> bool:
    """Whether kernel and reference differ by less than is worth naming."""
    return abs(math.log(ratio)) < math.log1p(WORTH_NAMING)


def certainly_faster(relation: Mapping[str, Any]) -> bool:
    """Whether the reference is, by what is worth naming: all of the interval of its time / the kernel's is below 1."""
    interval = relation.get("ci95")
    return interval is not None and bool(interval[1] < 1) and not is_level(relation["ratio"])


def half_width(value: float | None, interval: Sequence[float] | None) -> float | None:
    """Half of a 95% interval as a part of its value; None where there is none."""
    if not value or not interval or not all(edge is not None and math.isfinite(edge) for edge in interval):
        return None
    return (interval[1] - interval[0]) / 2 / abs(value)


def is_wide(value: float | None, interval: Sequence[float] | None) -> bool:
    """Whether a 95% interval says so little that its value would mislead."""
    half = half_width(value, interval)
    return half is not None and half > WIDE


def library_ways(names: Collection[str]) -> list[str]:
    """Those of them that are the vendor library's."""
    return [name for name in (*LIBRARY, *CPU_LIBRARY) if name in names]


def library_ahead(relations: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Of the vendor library's ways that raced, the fastest that is certainly faster than the kernel; None where none is."""
    ahead = [name for name in library_ways(relations) if certainly_faster(relations[name])]
    return min(ahead, key=lambda name: relations[name]["ratio"], default=None)


def stronger_way(relations: Mapping[str, Mapping[str, Any]], usual: str) -> str | None:
    """Of the vendor library's other ways, the fastest that certainly beats the usual one: intervals that do not touch."""
    edges = {name: interval for name in library_ways(relations) if (interval := relations[name].get("ci95"))}
    if usual not in edges:
        return None
    beating = [name for name, interval in edges.items() if interval[1] < edges[usual][0]]
    return min(beating, key=lambda name: relations[name]["ratio"], default=None)


def winner(family: str, relations: Mapping[str, Mapping[str, Any]]) -> str:
    """What to take for a problem: VENDOR where one of its ways is certainly faster than the best kernel, else its family."""
    return VENDOR if library_ahead(relations) is not None else family


def further(asked: tuple[str, ...], problem: Problem, device_kind: str, *, finals: bool) -> tuple[str, ...]:
    """Library references of a race beside the main one: those asked for, else what the problem calls for."""
    main = main_reference(device_kind)
    if asked:
        return tuple(name for name in asked if name != main)
    if device_kind == "cpu":
        return ()
    # Finding the best of cuBLASLt costs a second: only finals decide what is exported.
    best = ("cublaslt_best",) if finals else ()
    return (*best, *(("pad_copy_cublas",) if odd_strides(problem) else ()))


def odd_strides(problem: Problem) -> bool:
    """A row of A, B or C does not fill whole 16 bytes: libraries fall back to slow kernels there."""
    leading = (problem.lda * problem.sizeof_in, problem.ldb * problem.sizeof_in, problem.ldd * problem.sizeof_out)
    return any(row_bytes % WHOLE_BYTES for row_bytes in leading)
