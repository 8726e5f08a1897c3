"""What can be said of a sweep without running it: the plan, and what the compiler makes of each value."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gemmsweep.entry import Candidate
    from gemmsweep.model import Config, DeviceInfo, Problem
    from gemmsweep.session import Request
    from gemmsweep.start import Start
    from gemmsweep.store import Store


def start_of(request: Request, device: DeviceInfo, store: Store | None) -> Start:
    """Where the sweep would start: what the results file knows, if there is one. Raises UsageError."""
    from gemmsweep.choose import devices_like
    from gemmsweep.start import defaults, find_start

    if store is None:
        return defaults(request)
    if request.start != "best" or device.uuid:
        return find_start(request, store, device, None)
    for gpu in devices_like(store, device):
        start = find_start(request, store, gpu, None)
        if start != defaults(request):
            return replace(start, origin=f"{start.origin}, on {gpu.name}")
    return defaults(request)


def axis_candidates(request: Request, device: DeviceInfo, start: Config) -> list[tuple[str, list[Candidate]]]:
    """(axis, its candidates) for every axis, each from `start`: nothing has been measured to adopt."""
    from gemmsweep.entry import enlist
    from gemmsweep.plan import axis_values, labelled_configs

    if not request.axes:
        return [("the start config", enlist(request.template, request.problem, device, {"start": start}))]
    found = []
    for axis in request.axes:
        labelled = labelled_configs(start, axis.name, axis_values(request.template, axis), request.held)
        found.append((axis.name, enlist(request.template, request.problem, device, labelled)))
    return found


def print_plan(request: Request, device: DeviceInfo, start: Start) -> None:
    """`--dry-run`: every config, the rules it breaks, and a time estimate. Raises UsageError where nothing is feasible."""
    from gemmsweep.entry import require_one_feasible
    from gemmsweep.estimate import run_seconds
    from gemmsweep.finals import beyond_equal_clock_s
    from gemmsweep.plan import summary, undeclared_of_range
    from gemmsweep.report.figures import duration
    from gemmsweep.report.grid import Column, Row

    axes = axis_candidates(request, device, start.config)
    for name, candidates in axes:
        require_one_feasible(candidates, name)
    beyond = too_large(request.problem, device)
    total = sum(len(candidates) for _, candidates in axes)
    cost = duration(run_seconds(request.problem, device, total) + beyond_equal_clock_s(request, device))
    say(f"{request.template.name} {request.problem} on {device.name} ({device.arch})")
    say(f"{summary([(name, len(c)) for name, c in axes])}, about {cost}; nothing compiled or run")
    for told in (beyond, *(undeclared_of_range(request.template, axis) for axis in request.axes)):
        if told:
            say(told)
    say_start(start)
    for _, candidates in axes:
        rows = [Row([c.label, c.attempt.status, c.attempt.reason or config_text(c.attempt.config)]) for c in candidates]
        draw([Column("value"), Column("status"), Column("config, or the rule it breaks", wraps=True)], rows)


def too_large(problem: Problem, device: DeviceInfo) -> str:
    """What the problem needs beyond a typical card's memory, which yours may have; "" where it fits.

    Raises ProblemError where it is beyond what the device has, on a CPU what is free now.
    """
    from gemmsweep.device.machine import available_bytes
    from gemmsweep.entry import require_room
    from gemmsweep.errors import ProblemError
    from gemmsweep.oracle import beyond_memory

    if device.kind == "cpu":
        if told := beyond_memory(problem, available_bytes(), "are free"):
            raise ProblemError(told)
        return ""
    require_room(problem, device)
    return beyond_memory(problem, device.memory_bytes, f"are on {device.name}")


def say_start(start: Start) -> None:
    """Where it starts; of a kernel without parameters there is nothing to say."""
    if start.config:
        say(start.sentence)


def print_builds(request: Request, device: DeviceInfo, start: Start) -> bool:
    """`--compile-only`: registers, spills, shared memory, CTAs/SM, waves and limiter along the axis; False where nothing built.

    Raises UsageError where nothing is feasible.
    """
    from gemmsweep.build import Builders, toolkit
    from gemmsweep.build.nvrtc import NvrtcMissingError
    from gemmsweep.entry import Unwatched, compile_all, require_one_feasible, target
    from gemmsweep.errors import EnvironmentProblem
    from gemmsweep.report.grid import Column, Row

    axes = axis_candidates(request, device, start.config)
    for name, candidates in axes:
        require_one_feasible(candidates, name)
    arch = target(request.template, device)
    say(f"{request.template.name} {request.problem}, compiled for {arch}, {device.sm_count} SMs")
    say_start(start)
    everything = True
    heads = ["regs", "spills B", "smem B", "CTAs/SM", "occ. %", "waves"]
    with Builders(compiler=request.compiler) as builders:
        for name, candidates in axes:
            try:
                built = compile_all(candidates, device, Unwatched(), builders)
            except NvrtcMissingError as lack:
                nvcc = toolkit.find_nvcc()
                if nvcc is None:
                    raise
                raise EnvironmentProblem(f"{lack}, or --compiler nvcc: {nvcc}") from lack
            say(f"{name}, by {', '.join(sorted({c.attempt.build.compiler for c in built if c.attempt.build}))}:")
            columns = [Column("value"), Column("status"), *(Column(h, right=True) for h in heads), Column("bound by")]
            draw(columns, [Row(build_cells(candidate, name)) for candidate in built])
            for candidate in built:
                if not candidate.alive:
                    say(f"{candidate.label}: {candidate.attempt.reason}")
            everything = everything and any(candidate.alive for candidate in built)
    return everything


def build_cells(candidate: Candidate, axis: str) -> list[str]:
    """One value's row: what the compiler and the account say."""
    attempt, account = candidate.attempt, candidate.account
    build, value = attempt.build, candidate.label.removeprefix(f"{axis}=")
    if not candidate.alive or build is None:
        return [value, attempt.status, *["-"] * 6, "-"]
    figures: Sequence[Any] = (build.registers, build.spill_bytes, attempt.smem_bytes)
    cells = [value, attempt.status, *("-" if f is None else f"{f:,}" for f in figures)]
    if account is None:
        return [*cells, "-", "-", "-", "-"]
    return [*cells, str(account.ctas_per_sm), f"{account.occupancy_pct:.0f}", f"{account.waves:.2f}", account.bound_by]


def config_text(config: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())


def say(text: str, *, err: bool = False) -> None:
    """One line for people; names from users' files are in it."""
    from gemmsweep.report.figures import clean

    click.echo(clean(text), err=err)


def draw(columns: Sequence[Any], rows: Sequence[Any]) -> None:
    """A table on stdout, likewise; in a pipe nothing is shortened, unless COLUMNS says how wide it is."""
    from rich.console import Console

    from gemmsweep.report.figures import clean
    from gemmsweep.report.grid import draw as draw_grid

    rows = [replace(row, cells=[clean(cell) for cell in row.cells]) for row in rows]

    width = shutil.get_terminal_size((10_000, 24)).columns
    Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False).print(
        draw_grid(list(columns), list(rows), width), soft_wrap=True
    )
