"""What there is to compile with on this machine, for `gemmsweep doctor`."""

from __future__ import annotations

from gemmsweep.build import cc, nvcc, nvrtc, toolkit
from gemmsweep.build.cache import Cache
from gemmsweep.errors import EnvironmentProblem

Line = tuple[str, bool, str]


def describe() -> list[Line]:
    """(what, found, detail) of each compiler, the CUDA headers and the cache; of what is missing, how to get it."""
    return [*_nvrtc(), _nvcc(), _c_compiler(), _cache()]


def _nvrtc() -> list[Line]:
    try:
        compiler = nvrtc.find()
    except EnvironmentProblem as problem:
        return [("NVRTC", False, str(problem)), ("CUDA headers", False, "looked for once NVRTC is there")]
    archs = nvrtc.supported_archs()
    places = [str(path) for path in nvrtc.libraries() if "builtins" not in path.name]
    version = compiler.name.removeprefix("nvrtc ")
    found = ("NVRTC", True, f"{version}, {archs[0]} to {archs[-1]}, {', '.join(places)}")
    if compiler.include_dirs:
        return [found, ("CUDA headers", True, compiler.include_dirs[0])]
    missing = f"none of CUDA {version.split('.')[0]}; kernels that include them need: {toolkit.INSTALL_HEADERS}"
    return [found, ("CUDA headers", False, missing)]


def _nvcc() -> Line:
    try:
        compiler = nvcc.find()
    except EnvironmentProblem:
        return ("nvcc", False, "only for kernels that ask for it: install the CUDA toolkit")
    return ("nvcc", True, f"{compiler.name.removeprefix('nvcc ')}, {compiler.command[0]}")


def _c_compiler() -> Line:
    try:
        compiler = cc.find()
    except EnvironmentProblem as problem:
        return ("C compiler", False, str(problem))
    return ("C compiler", True, f"{compiler.name}, {' '.join(compiler.command)}")


def _cache() -> Line:
    cache = Cache()
    return ("build cache", cache.note is None, cache.note or str(cache.folder))
