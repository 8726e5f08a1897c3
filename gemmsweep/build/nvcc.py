"""CUDA C++ → cubin through nvcc, for sources that NVRTC does not take."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from gemmsweep.build import log, toolkit
from gemmsweep.build.cc import write_sources
from gemmsweep.build.compiler import Compiled, Compiler, describe_executable, died, environment
from gemmsweep.errors import EnvironmentProblem
from gemmsweep.model import Source

_ENVIRONMENT = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CPATH", "CPLUS_INCLUDE_PATH")
_RELEASE = re.compile(r"\bV(\d+\.\d+\.\d+)")
_STANDARD = re.compile(r"--?std\b")


def find() -> Compiler:
    """The machine's nvcc and its host compiler.

    Raises EnvironmentProblem where there is none that runs.
    """
    path = toolkit.find_nvcc()
    told = describe_executable([path], ["--version"]) if path else None
    if path is None or told is None:
        raise EnvironmentProblem(
            "nvcc was asked for and is not here. Install the CUDA toolkit and put its bin folder on PATH, "
            "or leave the compiler to NVRTC"
        )
    host = describe_executable([os.environ.get("NVCC_CCBIN", "gcc")], ["--version"]) or ""
    release = _RELEASE.search(told)
    name = f"nvcc {release[1]}" if release else "nvcc"
    return Compiler("nvcc", name, "\n".join([told, host, environment(_ENVIRONMENT)]), command=(path,))


def options(source: Source, arch: str) -> tuple[str, ...]:
    """What is asked of nvcc, include directories aside."""
    number = arch.removeprefix("sm_")
    standard = () if any(_STANDARD.match(option) for option in source.options) else ("-std=c++17",)
    generate = f"-gencode=arch=compute_{number},code=sm_{number}"
    return ("-cubin", generate, *standard, "-Xptxas", "-v", *source.options)


def compile_cuda(source: Source, arch: str, compiler: Compiler) -> Compiled:
    """Compile one source to a cubin. nvcc lowers no names: kernels that are templates are instantiated at its end."""
    source = replace(source, text="\n".join((source.text, *source.instances)))
    with tempfile.TemporaryDirectory(prefix="gemmsweep-") as folder:
        write_sources(Path(folder), source.name, source)
        dirs = [f"-I{path}" for path in (".", *source.include_dirs)]
        command = [*compiler.command, *options(source, arch), *dirs, "-o", "kernel.cubin", "-x", "cu", source.name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
        told = log.clean(done.stdout + done.stderr)
        if done.returncode != 0:
            return Compiled(None, told, log.first_complaint(told) or died(done.returncode))
        cubin = Path(folder) / "kernel.cubin"
        if not cubin.is_file():
            return Compiled(None, told, f"{compiler.name} ended well but wrote no cubin: is it CUDA's nvcc?")
        binary = cubin.read_bytes()
    symbols = {}
    for kernel in source.kernels:
        matching = match_entries(kernel, log.resources(told).entries)
        if len(matching) != 1:
            return Compiled(None, told, _no_single_entry(kernel, len(matching)))
        symbols[kernel] = matching[0]
    return Compiled(binary, told, symbols=symbols)


def match_entries(kernel: str, entries: tuple[str, ...]) -> list[str]:
    """Symbols whose name, without namespaces and template arguments, is that of a kernel such as `ns::k<3>`."""
    if kernel in entries:
        return [kernel]
    base = kernel.split("<", 1)[0].rsplit("::", 1)[-1].strip()
    return [symbol for symbol in entries if base_name(symbol) == base]


def base_name(symbol: str) -> str:
    """`k` of `_ZN2ns1kILi3EfEEvPT0_` (Itanium mangling: names with their lengths before them); else the symbol."""
    mangled = re.match(r"_ZN?", symbol)
    if not mangled:
        return symbol
    name, rest = symbol, symbol[mangled.end() :]
    while length := re.match(r"[1-9]\d*", rest):
        end = length.end() + int(length[0])
        name, rest = rest[length.end() : end], rest[end:]
        if not mangled[0].endswith("N"):
            break
    return name


def _no_single_entry(kernel: str, matching: int) -> str:
    if matching:
        return (
            f"nvcc compiled {matching} kernels that match {kernel!r}; keep one of them, or leave the compiler to NVRTC"
        )
    return (
        f"nvcc compiled no kernel {kernel!r}; instantiate it in the source (template __global__ void {kernel}(...);), "
        "or leave the compiler to NVRTC"
    )
