"""C → shared library for this CPU: $CC, cc, gcc, clang, else zig from PyPI."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from gemmsweep.build import log
from gemmsweep.build.compiler import Compiled, Compiler, describe_executable, died, environment
from gemmsweep.errors import EnvironmentProblem
from gemmsweep.model import Source

INSTALL = "pip install ziglang (a C compiler from PyPI), or apt install gcc"
OPTIONS = ("-O3", "-march=native", "-std=gnu11", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread")

_ENVIRONMENT = ("CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "SDKROOT")
_NUMBER = re.compile(r"\d+\.\d+(?:\.\d+)*")
_CPU_FACTS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
_CPU_FACTS_ARM = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features")


def find(asked: str = "auto") -> Compiler:
    """The C compiler: `asked` by name, else $CC, else the first of cc, gcc, clang and zig that runs.

    Raises EnvironmentProblem where a named one does not run, or there is none.
    """
    named = asked if asked != "auto" else os.environ.get("CC", "")
    if named:
        compiler = _identify(_command(named))
        if compiler is None:
            origin = "the C compiler" if asked != "auto" else "$CC,"
            raise EnvironmentProblem(f"{origin} {named!r} does not run. Name another, unset it, or {INSTALL}")
        return compiler
    for name in ("cc", "gcc", "clang", "zig"):
        compiler = _identify(_command(name))
        if compiler is not None:
            return compiler
    raise EnvironmentProblem(f"no C compiler: $CC is not set, and cc, gcc, clang and zig are not here. {INSTALL}")


@lru_cache
def cpu_model() -> str:
    """Model and instruction sets of this CPU: -march=native makes binaries that another CPU may not run."""
    try:
        first = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n", 1)[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    facts = dict(re.findall(r"^([^\t:]+?)\s*:\s*(.*)$", first, re.MULTILINE))
    told = [f"{key}={facts[key]}" for key in (*_CPU_FACTS, *_CPU_FACTS_ARM) if key in facts]
    return "\n".join([platform.machine(), *told])


def options(source: Source, compiler: Compiler) -> tuple[str, ...]:
    """What is asked of the compiler, include directories aside."""
    # zig cc traps undefined behaviour unless told not to.
    zig = ("-fno-sanitize=all",) if compiler.name.startswith("zig") else ()
    return (*OPTIONS, *zig, *source.options)


def compile_c(source: Source, compiler: Compiler) -> Compiled:
    """Compile one source to a shared library for this CPU. Never raises for what the compiler refuses."""
    with tempfile.TemporaryDirectory(prefix="gemmsweep-") as folder:
        name = Path(source.name).with_suffix(".c").name
        write_sources(Path(folder), name, source)
        dirs = [f"-I{path}" for path in (".", *source.include_dirs)]
        command = [*compiler.command, *options(source, compiler), *dirs, "-o", "kernel.so", name, "-lm"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
        told = log.clean(done.stdout + done.stderr)
        if done.returncode < 0:
            return Compiled(None, told, died(done.returncode))
        if done.returncode != 0:
            return Compiled(None, told, log.first_complaint(told) or died(done.returncode))
        library = Path(folder) / "kernel.so"
        if not library.is_file():
            return Compiled(None, told, f"{compiler.name} ended well but wrote no library: is it a C compiler?")
        binary = library.read_bytes()
    return Compiled(binary, told, symbols={kernel: kernel for kernel in source.kernels})


def write_sources(folder: Path, name: str, source: Source) -> None:
    """Write the source's text as `name`, and its headers beside it. Raises ValueError for a header name that leaves."""
    for include, text in source.headers.items():
        path = folder / include
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"header {include!r} leaves the folder of the source; include it by a plain name")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / name).write_text(source.text, encoding="utf-8")


def _command(named: str) -> tuple[str, ...]:
    if named == "zig" and importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    try:
        return ("zig", "cc") if named == "zig" else tuple(shlex.split(named))
    except ValueError:
        raise EnvironmentProblem(
            f"{named!r} (CC or --compiler) has an open quotation mark: write the command anew."
        ) from None


def _identify(command: tuple[str, ...]) -> Compiler | None:
    is_zig = "ziglang" in command or Path(command[0]).name == "zig"
    told = describe_executable(command[:-1], ["version"]) if is_zig else describe_executable(command, ["--version"])
    if told is None:
        return None
    numbers = _NUMBER.findall(told.splitlines()[0])
    if is_zig:
        family = "zig"
    elif "Free Software Foundation" in told:
        family = "gcc"
    else:
        family = "clang" if "clang version" in told else Path(command[0]).name
    # gcc names its packager's version before its own, clang its own first.
    number = "" if not numbers else f" {numbers[-1] if family == 'gcc' else numbers[0]}"
    return Compiler("cc", family + number, f"{told}\n{environment(_ENVIRONMENT)}", command=command)
