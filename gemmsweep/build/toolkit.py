"""Finding the CUDA toolkit's parts that need no GPU: headers for NVRTC, and nvcc."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path

INSTALL_HEADERS = "pip install nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt"

_VERSION = re.compile(r"#define\s+CUDART_VERSION\s+(\d+)")


def include_dirs(major: int) -> tuple[str, ...]:
    """Directories with the CUDA headers of this major version, as NVRTC wants them; empty where there are none."""
    for candidate in _candidates(major):
        if _major_of(candidate[0]) == major:
            # CUDA 13 moved libcu++ and CUB into a folder of their own.
            dirs = [path for root in candidate for path in (root, root / "cccl")]
            return tuple(str(path) for path in dirs if path.is_dir())
    return ()


def fingerprint(dirs: tuple[str, ...]) -> str:
    """Names, sizes and dates at the top of the header directories: a replaced toolkit shows in every cache key."""
    lines = []
    for path in dirs:
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                facts = entry.stat()
                lines.append(f"{entry.name} {facts.st_size} {facts.st_mtime_ns}")
    return "\n".join(lines)


def find_nvcc() -> str | None:
    """Path of nvcc: PATH, then pip wheels and the usual toolkit folders."""
    roots = [root / "cu13" for root in _wheel_roots()] + _toolkit_roots()
    places = (root / "bin" / "nvcc" for root in roots)
    return shutil.which("nvcc") or next((str(path) for path in places if os.access(path, os.X_OK)), None)


def _candidates(major: int) -> list[list[Path]]:
    """Groups of include directories, best first; the first of a group holds cuda_runtime_api.h."""
    groups = []
    for root in _wheel_roots():
        groups.append([root / f"cu{major}" / "include"])
        # Wheels of CUDA 12 keep one folder per component.
        groups.append([root / part / "include" for part in ("cuda_runtime", "cuda_cccl", "cuda_nvcc")])
    for root in _toolkit_roots():
        groups.append([root / "include"])
        groups.extend([path] for path in sorted(root.glob("targets/*-linux/include")))
    return groups


def _wheel_roots() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    return [Path(path) for path in (spec.submodule_search_locations or [])] if spec else []


def _toolkit_roots() -> list[Path]:
    named = [os.environ.get(name) for name in ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX")]
    return [Path(path) for path in named if path] + [Path("/usr/local/cuda")]


def _major_of(include: Path) -> int | None:
    try:
        version = _VERSION.search((include / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return int(version[1]) // 1000 if version else None
