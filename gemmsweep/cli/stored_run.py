"""One stored run on the screen: its row, its rounds, its code."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click

from gemmsweep.errors import EnvironmentProblem, NothingToShow
from gemmsweep.report.figures import clean

LONG = ("template_source", "rendered_source", "build_log", "round_values", "launch")


def print_run(detail: dict[str, Any]) -> None:
    """Every field on a line of its own, nested ones dotted, absent ones left out."""
    from gemmsweep.report.flat import compose

    flat = compose({name: value for name, value in detail.items() if name not in LONG})
    width = max(map(len, flat))
    for name, value in flat.items():
        if value is not None:
            click.echo(f"{name:<{width}}  {clean(value)}")
    for name, text in launch_lines(detail["launch"], on_gpu=str(detail["build_arch"]).startswith("sm_")):
        click.echo(f"{name:<{width}}  {clean(text)}")
    parts = {"--source": detail["rendered_source"], "--log": detail["build_log"], "--rounds": detail["round_values"]}
    more = [option for option, value in parts.items() if value]
    more += ["--ptx", "--sass"] if detail["rendered_source"] and str(detail["build_arch"]).startswith("sm_") else []
    click.echo(f"More: {', '.join(more) or 'nothing on record'}")


def launch_lines(launch: dict[str, Any] | None, *, on_gpu: bool) -> Iterator[tuple[str, str]]:
    """What is launched, in order, and what it is given; docs/export.md says what the words of `args` mean."""
    for step in launch["steps"] if launch else ():
        grid, block = ("x".join(map(str, step[name])) for name in ("grid", "block"))
        where = f" grid {grid}, block {block}, {step['smem_bytes']:,} B of dynamic shared memory" if on_gpu else ""
        yield "launch", f"{step['kernel']}{where}"
        yield "launch.args", ", ".join(step["args"])
    for space in launch["workspaces"] if launch else ():
        yield "launch.workspace", f"{space['name']}: {space['bytes']:,} B, zeroed: {space['zero']}"
    for entry in launch["tensor_maps"] if launch else ():
        box = "x".join(map(str, entry["box"]))
        yield "launch.tensor_map", f"{entry['name']}: of {entry['operand']}, box {box}, swizzle {entry['swizzle']} B"


def print_rounds(detail: dict[str, Any]) -> None:
    """Raw per-round values as CSV."""
    rows = detail["round_values"]
    if not rows:
        raise NothingToShow("that run was never raced: it has no rounds.")
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def disassemble(detail: dict[str, Any], part: str) -> str:
    """PTX or SASS of a run's stored source, compiled anew with the options on record."""
    from gemmsweep.build import build_one
    from gemmsweep.model import Source
    from gemmsweep.template.includes import STUB_HEADERS

    if detail["rendered_source"] is None or detail["launch"] is None or detail["build"]["compiler"] is None:
        raise NothingToShow("that run has no source on record, or was never built.")
    arch = detail["build_arch"]
    if not str(arch).startswith("sm_"):
        raise NothingToShow("that run is a CPU kernel: --ptx and --sass are for CUDA kernels.")
    kernels = tuple(step["kernel"] for step in detail["launch"]["steps"])
    options = tuple(option for option in detail["build_options"] or () if option.startswith("-D"))
    text = detail["rendered_source"]
    stubs = {
        name: stub for name, stub in STUB_HEADERS.items() if f"<{name}>" in text
    }  # host includes of a user's kernel
    source = Source("cuda", text, kernels, stubs, options)
    if part == "ptx":
        from gemmsweep.build.nvrtc import compile_ptx

        return compile_ptx(source, arch)
    build = build_one(source, arch)
    if not build.ok:
        raise NothingToShow(f"the stored source no longer builds: {build.reason}")
    tool = shutil.which("cuobjdump") or shutil.which("nvdisasm")
    if tool is None:
        raise EnvironmentProblem(
            "no cuobjdump or nvdisasm on PATH: install the CUDA toolkit's binary utilities for --sass."
        )
    command = [tool, "--dump-sass", build.path] if tool.endswith("cuobjdump") else [tool, build.path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        told = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[0]
        raise EnvironmentProblem(
            f"{tool} cannot read the build: {told}. Put that of the CUDA that built it, or newer, on PATH."
        )
    return done.stdout
