"""CUDA C++ → cubin through NVRTC, by CuPy's binding: no GPU and no driver needed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from gemmsweep.build import log, toolkit
from gemmsweep.build.compiler import Compiled, Compiler, stamp
from gemmsweep.errors import EnvironmentProblem, UsageError
from gemmsweep.model import Source

INSTALL = "pip install 'gemmsweep[compile]' (no GPU), or gemmsweep[cuda13] or gemmsweep[cuda12] beside one"

_STANDARD = re.compile(r"--?std\b")


class NvrtcMissingError(EnvironmentProblem):
    """CuPy or NVRTC is missing; another compiler may be here."""


def nvrtc_version() -> tuple[int, int]:
    """NVRTC's version, (13, 0).

    Raises NvrtcMissingError where CuPy or NVRTC is missing.
    """
    try:
        major, minor = _binding().getVersion()
    except (ImportError, OSError, RuntimeError) as problem:
        what = "CuPy is not installed" if isinstance(problem, ImportError) else f"NVRTC cannot be loaded ({problem})"
        raise NvrtcMissingError(f"cannot compile CUDA: {what}. {INSTALL}") from problem
    return int(major), int(minor)


def supported_archs() -> tuple[str, ...]:
    """Architectures this NVRTC knows, "sm_75" and on."""
    return tuple(f"sm_{number}" for number in _binding().getSupportedArchs())


def find() -> Compiler:
    """NVRTC with the toolkit's headers where they are found.

    Raises NvrtcMissingError where CuPy or NVRTC is missing.
    """
    major, minor = nvrtc_version()
    dirs = toolkit.include_dirs(major)
    # getVersion() lacks the patch level; patches change code, so the library file speaks for itself.
    identity = "\n".join([f"nvrtc {major}.{minor}", *map(stamp, libraries()), *dirs, toolkit.fingerprint(dirs)])
    return Compiler("nvrtc", f"nvrtc {major}.{minor}", identity, include_dirs=dirs)


def libraries() -> list[Path]:
    """The NVRTC libraries this process has loaded."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(errors="replace").splitlines() if maps.exists() else []
    paths = {line.split(maxsplit=5)[5] for line in lines if "libnvrtc" in line}
    return [Path(path) for path in sorted(paths) if Path(path).exists()]


def options(source: Source, arch: str) -> tuple[str, ...]:
    """What is asked of NVRTC, include directories aside."""
    standard = () if any(_STANDARD.match(option) for option in source.options) else ("--std=c++17",)
    return (f"-arch={arch}", *standard, "--ptxas-options=-v", *source.options)


def compile_cuda(source: Source, arch: str, compiler: Compiler) -> Compiled:
    """Compile one source to a cubin for `arch` ("sm_90a"). Never raises for what the compiler refuses."""
    binding = _binding()
    dirs = (f"-I{path}" for path in (*source.include_dirs, *compiler.include_dirs))
    headers = tuple(text.encode() for text in (*source.stubs.values(), *source.headers.values()))
    names = tuple(name.encode() for name in (*source.stubs, *source.headers))
    program = binding.createProgram(source.text, source.name, headers, names)
    try:
        # Plain names too: NVRTC then lowers a kernel that is not extern "C", and says when there is none.
        for kernel in source.kernels:
            binding.addNameExpression(program, kernel)
        try:
            binding.compileProgram(program, (*options(source, arch), *no_cache(), *dirs))
        except binding.NVRTCError as refusal:
            told = log.clean(binding.getProgramLog(program))
            return Compiled(None, told, log.first_complaint(told) or str(refusal))
        told = log.clean(binding.getProgramLog(program))
        symbols = {kernel: str(binding.getLoweredName(program, kernel)) for kernel in source.kernels}
        return Compiled(whole(bytes(binding.getCUBIN(program))), told, symbols=symbols)
    finally:
        binding.destroyProgram(program)


def whole(cubin: bytes) -> bytes:
    """The cubin with the last byte that CuPy takes for a terminator: without it the driver loads it, nvdisasm does not."""
    return cubin + bytes(-len(cubin) % 8)


def no_cache() -> tuple[str, ...]:
    """From CUDA 13 on NVRTC has a cache of its own beside a driver, and on a hit does not say what ptxas used."""
    return ("--no-cache",) if nvrtc_version() >= (13, 0) else ()


def compile_ptx(source: Source, arch: str) -> str:
    """PTX of a source for the virtual architecture behind `arch`.

    Raises UsageError where the compiler refuses, EnvironmentProblem where there is none.
    """
    compiler, binding = find(), _binding()
    headers = tuple(text.encode() for text in (*source.stubs.values(), *source.headers.values()))
    names = tuple(name.encode() for name in (*source.stubs, *source.headers))
    program = binding.createProgram(source.text, source.name, headers, names)
    virtual = [option for option in options(source, arch.replace("sm_", "compute_")) if "ptxas" not in option]
    try:
        binding.compileProgram(program, (*virtual, *(f"-I{path}" for path in compiler.include_dirs)))
        ptx: bytes = binding.getPTX(program)
        return ptx.decode().rstrip("\0")
    except binding.NVRTCError:
        told = log.first_complaint(log.clean(binding.getProgramLog(program)))
        raise UsageError(f"the source does not build for {arch}: {told}") from None
    finally:
        binding.destroyProgram(program)


def _binding() -> Any:
    return importlib.import_module("cupy_backends.cuda.libs.nvrtc")
