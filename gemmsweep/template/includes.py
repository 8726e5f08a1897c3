"""Headers a kernel includes: found on disk, stubbed for NVRTC, or flattened into one file for export."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gemmsweep.errors import TemplateError
from gemmsweep.files import is_file
from gemmsweep.model import Source
from gemmsweep.template.kernels import COMMENT, instantiation

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.MULTILINE)
INCLUDE_ANY = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^">\n]+)[">]', re.MULTILINE)
PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*\n?", re.MULTILINE)
GUARD = re.compile(r"\s*#[ \t]*ifndef[ \t]+(\w+)[^\n]*\s*#[ \t]*define[ \t]+\1\b")
CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|endif)\b", re.MULTILINE)
UNDEFINED = re.compile(r'identifier "(\w+)" is undefined')
MOST_BYTES = 4 << 20  # of a source, and of one with its headers in it

_STDINT = """#pragma once
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t; typedef unsigned long long uintptr_t; typedef long long intptr_t;
namespace std {
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t; using ::intptr_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t; using ::uintptr_t;
}
"""
_TYPES = """#pragma once
typedef unsigned int uint; typedef unsigned short ushort; typedef unsigned long ulong;
"""
_STDDEF = """#pragma once
namespace std { typedef decltype(sizeof(0)) size_t; typedef decltype((char*)0 - (char*)0) ptrdiff_t; }
"""
# The toolkit's own standard library, where it is installed.
_DEVICE_STANDARD = """#pragma once
#if __has_include(<cuda/std/{0}>)
#include <cuda/std/{0}>
namespace std {{ using namespace cuda::std; }}
#endif
"""
_LIMITS = """#pragma once
#define CHAR_BIT 8
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
"""
_FLOAT = """#pragma once
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
"""
_MATH = """#pragma once
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define M_PI 3.14159265358979323846
"""
# Users' kernels include what their host code needs; NVRTC has no such headers, and builds the kernel without them.
STUB_HEADERS: Mapping[str, str] = {
    **dict.fromkeys(("cuda_runtime.h", "sys/types.h"), _TYPES),
    **dict.fromkeys(("cstdint", "stdint.h"), _STDINT),
    **dict.fromkeys(("climits", "limits.h"), _LIMITS),
    **dict.fromkeys(("cfloat", "float.h"), _FLOAT),
    **dict.fromkeys(("cmath", "math.h"), _MATH),
    **dict.fromkeys(("cstddef", "stddef.h"), _STDDEF),
    **{name: _DEVICE_STANDARD.format(name) for name in ("limits", "type_traits")},
    **dict.fromkeys(
        (
            # C++
            "algorithm", "any", "array", "atomic", "bitset", "cctype", "cerrno", "charconv", "chrono", "cinttypes",
            "complex", "condition_variable", "csignal", "cstdarg", "cstdio", "cstdlib", "cstring", "ctime", "deque",
            "exception", "execution", "filesystem", "forward_list", "fstream", "functional", "future", "initializer_list",
            "iomanip", "ios", "iosfwd", "iostream", "istream", "iterator", "list", "locale", "map", "memory", "mutex",
            "new", "numeric", "optional", "ostream", "queue", "random", "ratio", "regex", "set", "span", "sstream",
            "stack", "stdexcept", "string", "string_view", "system_error", "thread", "tuple", "typeindex", "typeinfo",
            "unordered_map", "unordered_set", "utility", "valarray", "variant", "vector", "cassert",
            # C and POSIX
            "assert.h", "ctype.h", "errno.h", "fcntl.h", "getopt.h", "inttypes.h", "memory.h", "malloc.h", "omp.h",
            "pthread.h", "sched.h", "signal.h", "stdarg.h", "stdbool.h", "stdio.h", "stdlib.h", "string.h", "strings.h",
            "sys/stat.h", "sys/time.h", "time.h", "unistd.h",
            # the toolkit's host side, and what samples and libraries bring along
            "cublas.h", "cublasLt.h", "cublas_v2.h", "cuda.h", "cuda_device_runtime_api.h", "cuda_profiler_api.h",
            "cuda_runtime_api.h", "cudnn.h", "curand.h", "cusolverDn.h", "cusparse.h", "cusparse_v2.h",
            "device_launch_parameters.h", "driver_types.h", "helper_cuda.h", "helper_functions.h", "helper_string.h",
            "helper_timer.h", "host_defines.h", "nvToolsExt.h", "nvml.h", "nvtx3/nvToolsExt.h", "nvtx3/nvtx3.hpp",
            "mpi.h", "nccl.h", "benchmark/benchmark.h", "gtest/gtest.h", "ATen/ATen.h", "ATen/cuda/CUDAContext.h",
            "c10/cuda/CUDAGuard.h", "c10/cuda/CUDAException.h", "pybind11/pybind11.h", "torch/all.h",
            "torch/extension.h", "torch/torch.h", "torch/types.h", "thrust/device_vector.h", "thrust/host_vector.h",
        ),
        "",
    ),
}  # fmt: skip


def way_out(complaint: str) -> str:
    """What to do where NVRTC does not know a name that nvcc has without being asked; "" of any other complaint."""
    undefined = UNDEFINED.search(complaint)
    known = (name for name, stub in STUB_HEADERS.items() if undefined and re.search(rf"\b{undefined[1]}\b", stub))
    header = next(known, None)
    return f" (#include <{header}> in the file, or --compiler nvcc)" if header else ""


def find_headers(source: Path, text: str, folders: Iterable[Path]) -> dict[str, str]:
    """The headers that `text` includes by `"name"`, and theirs, by name; looked for beside the including file, then in
    `folders`. One that is found nowhere is left to the compiler's own paths.

    Raises TemplateError where two different files are included by one name.
    """
    found: dict[str, Path] = {}
    texts: dict[str, str] = {}
    waiting = [(source.parent, text)]
    while waiting:
        beside, including = waiting.pop()
        for name in INCLUDE.findall(including):
            path = next((p for p in (folder / name for folder in (beside, *folders)) if is_file(p)), None)
            if path is None:
                continue
            path = path.resolve()
            if found.setdefault(name, path) != path:
                raise TemplateError(f'{source.name}: "{name}" means both {found[name]} and {path}; rename one of them.')
            if name not in texts:
                texts[name] = read_source(path)
                waiting.append((path.parent, texts[name]))
    return texts


def read_source(path: Path) -> str:
    """The text of a file. Raises TemplateError where it cannot be read, or is no source that anybody wrote."""
    try:
        if path.exists() and not path.is_file():
            raise TemplateError(f"{path} is no plain file. Name a kernel's source.")
        if path.stat().st_size > MOST_BYTES:
            raise TemplateError(f"{path} is larger than {MOST_BYTES >> 20} MB. Split it, or name a kernel's source.")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TemplateError(f"cannot read {path}: {error.strerror or error}. Check the path.") from None
    except UnicodeDecodeError:
        raise TemplateError(f"{path} is not UTF-8 text. Save it as UTF-8.") from None


def flatten(source: Source) -> str:
    """The source as one file that stands alone: headers in place of their includes, `-D` options as
    `#define`s, a kernel that is a template instantiated at the end."""
    defines = [option[2:].partition("=") for option in source.options if option.startswith("-D")]
    lines = [f"#define {name} {value if given else 1}\n" for name, given, value in defines]
    texts = (source.text, *source.headers.values())
    ends = [f"{line}\n" for line in (instantiation(kernel, texts) for kernel in source.kernels) if line]
    # Host code that was left out leaves its lines behind.
    text = re.sub(r"\n{4,}", "\n\n", _Flattening(source.headers).inline(source.text, (), certain=True))
    return "".join(lines) + text + "".join(["\n", *ends] if ends else [])


@dataclass
class _Flattening:
    """What `flatten` has written so far. A header is known by its text: one file may be included by several names.

    `once`: headers that nothing more is to be read of; `maybe`: those that stand under a condition so far.
    """

    headers: Mapping[str, str]
    once: set[str] = field(default_factory=set)
    maybe: set[str] = field(default_factory=set)
    size: int = 0

    def inline(self, text: str, stack: tuple[str, ...], certain: bool) -> str:
        """`text` with its headers in place; a cycle ends at `stack`. `certain`: no condition stands around all of it.

        Raises TemplateError where headers without a guard include each other until the file is enormous.
        """
        guard = guard_of(text)
        comments = [comment.span() for comment in COMMENT.finditer(text)]

        def replace(match: re.Match[str]) -> str:
            name, start = match.group(1), match.start()
            if name not in self.headers or any(first <= start < last for first, last in comments):
                return match.group(0)
            if self.headers[name] in self.once or self.headers[name] in stack:
                return f"// {name}: above"
            here = certain and open_conditions(text[:start]) == (guard is not None)
            return self.header(name, stack, here)

        return INCLUDE.sub(replace, text)

    def header(self, name: str, stack: tuple[str, ...], certain: bool) -> str:
        """One header between two lines that name it. It is not read again where it says so itself and is certainly read here."""
        whole = self.headers[name]
        text, pragmas = PRAGMA_ONCE.subn("", whole)
        if certain and (pragmas or guard_of(text)):
            self.once.add(whole)
        inlined = self.inline(text, (*stack, whole), certain).rstrip("\n")
        if pragmas and (not certain or whole in self.maybe):  # it may come once more, or have come
            self.maybe.add(whole)
            word = f"GEMMSWEEP_ONCE_{hashlib.sha256(whole.encode()).hexdigest()[:12]}"
            inlined = f"#ifndef {word}\n#define {word}\n{inlined}\n#endif"
        self.size += len(inlined)
        if self.size > MOST_BYTES:
            raise TemplateError(
                f'"{name}" is included so often that one file with it is over {MOST_BYTES >> 20} MB. Give it #pragma once.'
            )
        return f"// ---- {name}\n{inlined}\n// ---- end of {name}"


def guard_of(text: str) -> str | None:
    """The macro that keeps all of a header from being read twice; None where there is none, or it is taken back."""
    code = COMMENT.sub(" ", text).strip()
    found = GUARD.match(code)
    if found is None or re.search(rf"#[ \t]*undef[ \t]+{found[1]}\b", code):
        return None
    depth = 0
    for directive in CONDITION.finditer(code):
        depth += -1 if directive[1] == "endif" else 1
        if depth == 0:
            return found[1] if "\n" not in code[directive.start() :] else None  # the last line of all
    return None


def open_conditions(text: str) -> int:
    """How many #if are not ended by the end of a text."""
    return sum(-1 if found[1] == "endif" else 1 for found in CONDITION.finditer(COMMENT.sub(" ", text)))
