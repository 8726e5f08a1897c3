"""`gemmsweep selftest`: what differences this machine can tell apart."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmsweep.cli.options import Command, command_line, database, db_option

if TYPE_CHECKING:
    from gemmsweep.model import DeviceInfo, Problem
    from gemmsweep.selftest import Bed, Kind, Summary

KINDS = ("aa", "tied", "known1", "known2", "known05")


@click.command(cls=Command)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only this test; repeatable.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="MxNxK", help="Problem size; repeatable. Default: a few that fit."
)
@click.option("--dtype", help="Of --shape. Default: fp32 on a CPU, else bf16.")
@click.option("--layout", help="Of --shape. Default: nn for fp32, else nt.")
@click.option(
    "--template", "--kernel", "template", metavar="NAME|PATH", help="Race its defaults instead of the vendor's product."
)
@click.option("--sweeps", type=click.IntRange(1, 10_000), default=10, show_default=True,
              help="Sweeps per test and shape, those on record included.")  # fmt: skip
@click.option("--protocol", type=click.Choice(["rounds", "alone"]), default="rounds", show_default=True,
              help="alone: time each label by itself, to see what that is worth.")  # fmt: skip
@click.option("--time-limit", metavar="TIME", help="Begin no sweep after this long, as in 90 (seconds), 8m or 1h.")
@click.option("--device", default="auto", show_default=True, metavar="auto|cuda:N|UUID|cpu", help="Where to run.")
@db_option
def selftest(kinds: tuple[str, ...], db: Path | None, **options: Any) -> int:
    """Race labels that are known to be equal, or slower by exactly 0.5, 1 or 2%, and count the right verdicts.

    aa: six names of one kernel. tied: two equal, four 2% slower. known1, known2, known05: one faster than five by 1, 2 or
    0.5%. Every sweep is stored; asked again, it runs only those missing and counts all on record.
    """
    from gemmsweep import selftest as tests
    from gemmsweep.build import Builders
    from gemmsweep.cli import live
    from gemmsweep.cli.request import seconds
    from gemmsweep.device import resolve_device
    from gemmsweep.environment import current
    from gemmsweep.locks import alone_on
    from gemmsweep.store import open_store
    from gemmsweep.store.ids import uuid7
    from gemmsweep.template.library import find_template
    from gemmsweep.worker import Worker

    limit_s = seconds("--time-limit", options["time_limit"])
    template = find_template(options["template"]) if options["template"] else None
    path, spec = database(db), resolve_device(options["device"])
    with ExitStack() as beside:
        worker = beside.enter_context(Worker(spec))
        problems = wanted_problems(options, worker.info)
        store, builders = beside.enter_context(open_store(path)), beside.enter_context(Builders())
        screen = beside.enter_context(live.Screen())
        screen.note(f"{worker.info.name} ({worker.info.arch}), results in {path}")
        bed = tests.Bed(
            store, worker, screen, builders, current(worker.info), uuid7(), command_line(), time.monotonic,
            math.inf if limit_s is None else time.monotonic() + limit_s, options["protocol"], template,
        )  # fmt: skip
        chosen = [tests.KINDS[name] for name in (kinds or KINDS)]
        with alone_on(worker.info):
            tests.run(bed, problems, chosen, options["sweeps"])
        found = [
            tests.summarize(kind, problem, sweeps)
            for kind in chosen
            for problem in problems
            if (sweeps := tests.on_record(bed, kind, problem, rounds=True))
        ]
        say_missing(bed, found, [(kind, problem) for problem in problems for kind in chosen], options["sweeps"])
        return show(bed, found)


def wanted_problems(options: dict[str, Any], device: DeviceInfo) -> list[Problem]:
    """Those of --shape, else a set that fits; raises ProblemError."""
    from gemmsweep.experiment import parse_dtype, parse_layout, parse_shape
    from gemmsweep.model import Problem
    from gemmsweep.selftest import default_problems

    if not options["shapes"]:
        return default_problems(device)
    dtype = parse_dtype(options["dtype"]) if options["dtype"] else "fp32" if device.kind == "cpu" else "bf16"
    layout = parse_layout(options["layout"]) if options["layout"] else "nn" if dtype == "fp32" else "nt"
    return [Problem.of(*parse_shape(text), dtype, layout) for text in options["shapes"]]


def say_missing(bed: Bed, found: list[Summary], wanted: list[tuple[Kind, Problem]], sweeps: int) -> None:
    """Which tests the time was too short for."""
    done = {(summary.kind, summary.problem): summary.sweeps for summary in found}
    short = [
        f"{kind.name} of {problem} ({done.get((kind, problem), 0)} of {sweeps})"
        for kind, problem in wanted
        if done.get((kind, problem), 0) < sweeps and (kind.name, problem) not in bed.skipped
    ]
    if short:
        click.echo(f"Not finished: {', '.join(short)}. The same command goes on.", err=True)


def show(bed: Bed, summaries: list[Summary]) -> int:
    """The table and the sentence; 1 where nothing is on record."""
    from gemmsweep.cli.offline import draw
    from gemmsweep.selftest import tables

    if not summaries:
        click.echo("No selftest sweep was finished.", err=True)
        return 1
    draw(*tables.grid(summaries))
    click.echo(tables.sentence("this machine", bed.protocol, summaries))
    return 0
