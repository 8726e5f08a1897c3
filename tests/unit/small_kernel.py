"""The least header that loads, for tests of one thing a header can say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def write(
    path: Path, more: str, body: str = "", *, dtypes: Sequence[str] = ("fp32",), layouts: Sequence[str] = ("nn",)
) -> Path:
    """A CUDA template with these TOML lines in its header; returns its path."""

    def listed(names: Sequence[str]) -> str:
        return "[" + ", ".join(f'"{name}"' for name in names) + "]"

    toml = f"""summary = "x"
backend = "cuda"
arch = "sm_75+"
dtypes = {listed(dtypes)}
layouts = {listed(layouts)}
{more.strip()}
[launch]
args = ["A", "B", "C"]
grid = 1
block = 32"""
    header = "".join(f"// {line}\n" for line in ["/// gemmsweep", *toml.splitlines(), "///"])
    path.write_text(header + body)
    return path
