"""Templates run on the host: rendered as for a GPU, their PTX carried out by tests/unit/emulated/, threads as fibers.

Not a model of a kernel but the kernel: what is compiled here is the text that NVRTC gets.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmsweep.device.scripted import INFO
from gemmsweep.entry import enlist
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.model import Config, Launch, Problem, TensorMap
from gemmsweep.oracle import Matrices
from gemmsweep.template import render
from gemmsweep.template.library import find_template

SHIM = Path(__file__).parent / "emulated" / "hopper.hpp"
OPERAND = re.compile(r'"([=+]?)[a-z]+"\s*\(')


def compiler() -> str:
    """A C++ compiler; skips the test where there is none."""
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return name
    pytest.skip("no C++ compiler")


def preprocessed(text: str) -> str:
    """Macros expanded, so that every asm statement has its operands in sight."""
    command = [compiler(), "-E", "-P", "-x", "c++", "-std=c++20", "-D__CUDA_ARCH__=900", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def closing(text: str, start: int) -> int:
    """Index of the parenthesis that closes the one at `start`; strings may hold any."""
    depth, quoted, index = 0, False, start
    while True:
        character = text[index]
        if quoted and character == "\\":
            index += 1
        elif character == '"':
            quoted = not quoted
        elif not quoted:
            depth += (character == "(") - (character == ")")
            if depth == 0:
                return index
        index += 1


def without_assembly(text: str) -> str:
    """Every asm statement as a call: `asm("mov %0, %1;" : "=r"(x) : "r"(y))` → `ptx("mov %0, %1;", {ptx_out(x), ptx_in(y)})`."""
    parts, at = [], 0
    for match in re.finditer(r"\basm(?:\s+volatile)?\s*\(", text):
        if match.start() < at:
            continue
        end = closing(text, match.end() - 1)
        parts += [text[at : match.start()], call(text[match.end() : end])]
        at = end + 1
    return "".join([*parts, text[at:]])


def call(inside: str) -> str:
    """The words up to the first colon outside strings and parentheses, then the operands wherever they are."""
    quoted, index = False, 0
    while index < len(inside) and (quoted or inside[index] != ":"):
        if inside[index] == "\\":
            index += 1
        elif inside[index] == '"':
            quoted = not quoted
        index += 1
    words, rest = inside[:index], inside[index:]
    operands, at = [], 0
    while match := OPERAND.search(rest, at):
        end = closing(rest, match.end() - 1)
        operands.append(f"emulated::ptx_{'out' if match[1] else 'in'}({rest[match.end() : end]})")
        at = end + 1
    return f"emulated::ptx({words}, {{{', '.join(operands)}}})"


def tensor_map(declared: TensorMap, problem: Problem) -> str:
    """The 128 bytes that stand for a TMA descriptor here."""
    if declared.operand.startswith("workspace:"):
        name, (columns, rows), size = declared.operand.partition(":")[2], declared.extent, problem.sizeof_in
        return map_of(f"workspace_{name}", (rows, columns, declared.ld), size, declared)
    p, buffer = problem, "ABC".index(declared.operand)
    extents = ((p.m, p.k, p.lda), (p.b_rows, p.b_columns, p.ldb), (p.m, p.n, p.ldd))
    size = p.sizeof_out if declared.operand == "C" else p.sizeof_in
    return map_of(f"static_cast<unsigned char*>(buffers[{buffer}])", extents[buffer], size, declared)


def map_of(pointer: str, extent: tuple[int, int, int], size: int, declared: TensorMap) -> str:
    rows, columns, ld = extent
    words = (columns, rows, ld * size, size, *declared.box, declared.swizzle)
    return f"map_of<TensorMap>({{{pointer}, {', '.join(map(str, words))}}})"


def argument(word: str, launch: Launch, problem: Problem) -> str:
    """A word of a launch as C++; pointers by their place in `buffers`."""
    epilogue, beta = problem.epilogue, problem.beta
    kind, _, value = word.partition(":")
    if kind == "tensor_map":
        return tensor_map(next(one for one in launch.tensor_maps if one.name == value), problem)
    if kind == "null_map":
        return "TensorMap{}"
    if kind in ("i32", "i64"):
        return f"static_cast<{'int' if kind == 'i32' else 'long long'}>({value}LL)"
    if word == "epilogue":
        numbers = parse_epilogue(epilogue).numbers
        slope, low, high = (numbers.get(name, 0.0) for name in ("slope", "lo", "hi"))
        return f"Epilogue{{1.0f, {beta}f, Any{{buffers[3]}}, {slope}f, {low}f, {high}f}}"
    if word in ("alpha", "beta"):
        return "1.0f" if word == "alpha" else f"{beta}f"
    place = {"A": 0, "B": 1, "C": 2}.get(word)
    return (
        "nullptr"
        if word == "null"
        else f"Any{{buffers[{place}]}}"
        if place is not None
        else f"Any{{workspace_{value}}}"
    )


CLUSTERED = re.compile(r"__cluster_dims__\((\w+), 1, 1\)(?:\s+__launch_bounds__\([^)]*\))?\s+(\w+)\(")
# -Og: -O1 costs the compiler half as much again, and most of the time is its. Sanitizer: a vector at an odd place ends the process.
OPTIONS = (
    "-std=c++20", "-Og", "-w", "-fPIC", "-fpermissive", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error",
)  # fmt: skip


@functools.cache
def shim() -> Path:
    """The headers in a folder of their own, compiled ahead where the compiler takes that: a quarter of a compilation."""
    folder = Path(tempfile.mkdtemp(prefix="emulated"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for header in SHIM.parent.glob("*.hpp"):
        shutil.copy(header, folder)
    copy = folder / SHIM.name
    subprocess.run(
        [compiler(), *OPTIONS, "-x", "c++-header", str(copy), "-o", f"{copy}.gch"], capture_output=True, check=False
    )
    return copy


def program(source: str, launch: Launch, problem: Problem) -> str:
    """The rendered template between the shim and functions to call it by."""
    text = without_assembly(preprocessed(source))
    text = re.sub(
        r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w ]+?)\s+(\w+)\[\];",
        r"\1* const \2 = reinterpret_cast<\1*>(emulated::host_shared);", text,
    )  # fmt: skip
    clusters = {kernel: size for size, kernel in CLUSTERED.findall(text)}
    bodies, calls = [], []
    for number, step in enumerate(launch.steps):
        words = ", ".join(argument(word, launch, problem) for word in step.args)
        bodies.append(f"static void step_{number}() {{ {step.kernel}({words}); }}")
        grid = ", ".join(f"{extent}u" for extent in step.grid)
        cluster = clusters.get(step.kernel, "1")
        calls.append(f"emulated::run_grid(step_{number}, {{{grid}}}, {step.block[0]}, {cluster});")
    spaces = [f"alignas(256) static unsigned char workspace_{w.name}[{max(w.bytes, 1)}];" for w in launch.workspaces]
    main = launch.steps.index(launch.main)
    grid = ", ".join(f"{extent}u" for extent in launch.main.grid)
    lines = [
        f'#include "{shim()}"', text, "static void* buffers[4];",
        "struct Any { void* p; template <class T> operator T*() const { return static_cast<T*>(p); } };",
        "template <class T> T map_of(emulated::Map map) { T bytes = {}; memcpy(&bytes, &map, sizeof map); return bytes; }",
        *spaces, *bodies,
        "static void take(void** p) { for (int i = 0; i < 4; ++i) buffers[i] = p[i]; }",
        'extern "C" void host_run(void** p) { take(p); ' + " ".join(calls) + " }",
        'extern "C" void host_owners(void** p, long elements, int* owner) { take(p); '
        f"emulated::find_owners(step_{main}, {{{grid}}}, {launch.main.block[0]}, "
        f"static_cast<{ctype(problem)}*>(p[2]), elements, owner); }}",
        'extern "C" long host_copies(emulated::Copy* to, long room) {',
        "long n = 0; for (const auto& copy : emulated::copies) if (n < room) to[n++] = copy; return n; }",
    ]  # fmt: skip
    return "\n".join(lines)


def ctype(problem: Problem) -> str:
    return "unsigned" if problem.sizeof_out == 4 else "unsigned short"


class Copy(ctypes.Structure):
    _fields_ = (("to", ctypes.c_uint), ("source", ctypes.c_void_p), ("bytes", ctypes.c_int))


@dataclass
class Emulated:
    """A template with one config, compiled for one problem."""

    problem: Problem
    launch: Launch
    resolved: Any
    template: Any
    library: ctypes.CDLL

    def _buffers(self, matrices: Matrices, bias: Any = None) -> Any:
        arrays = (matrices.a, matrices.b, matrices.c, bias)
        return (ctypes.c_void_p * 4)(*(None if array is None else array.ctypes.data for array in arrays))

    def run(self, matrices: Matrices, bias: Any = None) -> None:
        """C is written in place."""
        self.library.host_run(self._buffers(matrices, bias))

    def owners(self, matrices: Matrices) -> Any:
        """The thread of block 0 that writes each element of C (m, ldd); -1: none does, -2: several do."""
        owner = np.full(matrices.c.shape, -1, dtype=np.int32)
        pointer = owner.ctypes.data_as(ctypes.POINTER(ctypes.c_int))
        self.library.host_owners(self._buffers(matrices), ctypes.c_long(owner.size), pointer)
        return owner

    def copies(self) -> list[tuple[int, int, int]]:
        """(address in shared memory, address in memory, bytes) of every cp.async so far."""
        room = (Copy * 1_000_000)()
        count = self.library.host_copies(room, ctypes.c_long(len(room)))
        return [(one.to, one.source, one.bytes) for one in room[:count]]


def emulate(
    name: str, problem: Problem, moved: Config, folder: Path, edit: Callable[[str], str] = lambda text: text
) -> Emulated:
    """Render, translate, compile; `edit` may break the source."""
    template = find_template(name)
    config = {**template.defaults(), **moved}
    (candidate,) = enlist(template, problem, INFO, {"": config})
    assert candidate.alive, candidate.attempt.reason
    assert candidate.launch is not None
    text = program(edit(render.flatten(candidate.source)), candidate.launch, problem)
    stem = hashlib.sha256(text.encode()).hexdigest()[:16]
    source, library = folder / f"{stem}.cpp", folder / f"{stem}.so"
    source.write_text(text)
    done = subprocess.run(
        [compiler(), *OPTIONS, "-shared", str(source), "-o", str(library)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:3000]
    resolved = render.resolve(template, problem, render.device_env(INFO), config)
    return Emulated(problem, candidate.launch, resolved, template, ctypes.CDLL(str(library)))
