"""Which compiler takes a source, and what is asked of it."""

from __future__ import annotations

import platform
from pathlib import Path

from gemmsweep.build import cc, nvcc, nvrtc
from gemmsweep.build.compiler import Compiled, Compiler
from gemmsweep.errors import UsageError, choices
from gemmsweep.model import Source


def find(backend: str, asked: str) -> Compiler:
    """The compiler for sources of a backend. `asked` is "auto", a CUDA compiler, or any C compiler's command.

    Raises EnvironmentProblem where it is missing, UsageError for one that is not of the backend.
    """
    if backend == "cpu":
        if Path(asked).name in ("nvcc", "nvrtc"):
            raise UsageError(
                f"{asked} compiles CUDA only, not a kernel for the CPU. Name a C compiler, or leave it out."
            )
        return cc.find(asked)
    if asked == "nvcc":
        return nvcc.find()
    if asked in ("auto", "nvrtc"):
        return nvrtc.find()
    raise UsageError(choices("CUDA compiler", asked, ("auto", "nvrtc", "nvcc")))


def options(source: Source, arch: str, compiler: Compiler) -> tuple[str, ...]:
    """Options of one compile, without include directories: they name places on this machine."""
    if compiler.kind == "cc":
        return cc.options(source, compiler)
    return nvcc.options(source, arch) if compiler.kind == "nvcc" else nvrtc.options(source, arch)


def target(source: Source, arch: str) -> str:
    """What the binary is for: a CUDA architecture, or this machine's."""
    return platform.machine() if source.backend == "cpu" else arch


def compile_source(source: Source, arch: str, compiler: Compiler) -> Compiled:
    """Compile in this process, however long it takes."""
    if compiler.kind == "cc":
        return cc.compile_c(source, compiler)
    if compiler.kind == "nvcc":
        return nvcc.compile_cuda(source, arch, compiler)
    return nvrtc.compile_cuda(source, arch, compiler)
