"""The machine and software a measurement is made with."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gemmsweep import __version__
from gemmsweep.model import DeviceInfo
from gemmsweep.record import Environment

PACKAGES = (
    "numpy",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "nvmath-python",
    "cuda-bindings",
    "nvidia-cublas",
    "nvidia-cuda-nvrtc",
)


def current(device: DeviceInfo) -> Environment:
    """Of this process; never fails."""
    return Environment(device, __version__, commit(), platform.python_version(), packages(), platform.node())


def packages() -> dict[str, str]:
    """Versions of the packages that can change a figure, as far as installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Short hash of the checkout gemmsweep runs from, "-dirty" where the package or the templates differ from it.

    GEMMSWEEP_COMMIT says it for a copy that was taken without its .git.
    """
    if os.environ.get("GEMMSWEEP_COMMIT"):
        return os.environ["GEMMSWEEP_COMMIT"]
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        head = git(root, "rev-parse", "--short=10", "HEAD")
        changed = git(root, "status", "--porcelain", "--", "gemmsweep", "kernel_templates")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("-dirty" if changed else "")


def git(root: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(root), *arguments],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return result.stdout.strip()
