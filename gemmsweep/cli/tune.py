"""`gemmsweep tune`: the best kernel for each of a list of problems, for people who do not care which axis."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmsweep.cli.options import Command, database, db_option, problem_options
from gemmsweep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemmsweep.cli.tuning import Tuning
    from gemmsweep.model import DeviceInfo
    from gemmsweep.session import Request
    from gemmsweep.template.declaration import Template
    from gemmsweep.tune import Answer


def leave_to_run(context: click.Context, option: click.Parameter, given: str | None) -> None:
    """Refuses what those who know `run` may try here."""
    if given is not None:
        raise UsageError("tune varies every parameter by itself. To vary or hold one: gemmsweep run --vary P --set P=V")


@click.command(cls=Command)
@problem_options
@click.option("--vary", "--set", "left_to_run", hidden=True, expose_value=False, callback=leave_to_run)
@click.option("--template", "--kernel", "templates", multiple=True, metavar="NAME|PATH",
              help="Only this family, or your own .cu; repeatable. Default: all.")  # fmt: skip
@click.option("--time-limit", metavar="TIME", default="30m", show_default=True,
              help="Divided over the problems, as in 90 (seconds), 8m or 1h.")  # fmt: skip
@click.option("--config-limit", metavar="TIME",
              help="A config whose check or burst takes longer is stopped. Default: by --time-limit.")  # fmt: skip
@click.option("--regime", type=click.Choice(["auto", "equal-clock", "own-power", "burst", "all"]), default="auto",
              show_default=True, help="Which finals to race beside those at equal clock, where there is time.")  # fmt: skip
@click.option(
    "--format", "format_", default="table", show_default=True, metavar="table|csv|json|md", help="How to print."
)
@click.option("--device", default="auto", show_default=True, metavar="auto|cuda:N|UUID|cpu", help="Where to run.")
@db_option
@click.option("--dry-run", is_flag=True, help="Families, axes and what the time is enough for; nothing is compiled.")
@click.option("--arch", metavar="sm_NN", help="Architecture for --dry-run. Default: the device's.")
@click.option("--remeasure", is_flag=True, help="Begin again instead of going on with what is on record.")
def tune(**options: Any) -> int:
    """Find the fastest verified kernel for each problem, and say where the vendor library is faster.

    Every template family that can run a problem starts from the best config on record, else its defaults; families far
    behind drop out, the others vary one parameter after another until nothing moves or the time is over. Finals decide.
    The same command goes on where it left off.
    """
    from gemmsweep.cli.request import require_times
    from gemmsweep.report import tuned

    require_times(options)
    tuned.require_format(options["format_"])
    if options["dry_run"]:
        return dry_run(options)
    if options["arch"]:
        raise UsageError(
            f"--arch {options['arch']} is for --dry-run; a race is on the device that is here: add it, or leave --arch out."
        )
    answers, refused = measure(options)
    width = shutil.get_terminal_size((80, 24)).columns
    tuned.write(options["format_"], [answer.to_json() for answer in answers], sys.stdout, width)
    return 0 if all(answer.best is not None for answer in answers) and not refused else 1


def measure(options: dict[str, Any]) -> tuple[list[Answer], list[str]]:
    """The real thing: an answer per problem, and what is wrong with those that cannot be."""
    from gemmsweep.build import Builders
    from gemmsweep.cli.request import seconds
    from gemmsweep.cli.run import worker_beside
    from gemmsweep.cli.tuning import Tuning, tune_requests, wanted_templates
    from gemmsweep.device import resolve_device
    from gemmsweep.store import open_store
    from gemmsweep.tune import config_limit_s
    from gemmsweep.worker import Limits

    limit_s = seconds("--time-limit", options["time_limit"]) or 0.0
    deadline = time.monotonic() + limit_s
    spec, path = resolve_device(options["device"]), database(options["db"])
    with Builders() as builders, worker_beside(builders, spec, Limits()) as worker:
        templates = wanted_templates(options, worker.info)
        requests, refused = tune_requests(options, templates, worker.info)
        config_s = seconds("--config-limit", options["config_limit"]) or config_limit_s(limit_s, len(requests))
        worker.limits = Limits(check_s=config_s, burst_s=config_s)
        with open_store(path) as store, Tuning(store, worker, builders, templates, deadline) as tuning:
            opening(tuning, path, requests, limit_s)
            for told in refused:
                tuning.progress.message(f"Error: {told}")
            answers = tuning.answers(requests)
            if builders.note:
                tuning.progress.message(builders.note)
            return answers, refused


def opening(tuning: Tuning, path: Path, requests: Sequence[Request], limit_s: float) -> None:
    """Device, results file, and what the time comes to."""
    from gemmsweep.cli.tuning import announced

    info = tuning.worker.info
    tuning.progress.message(f"{info.name} ({info.arch}), results in {path}")
    names = ", ".join(template.name for template in tuning.templates)
    problems = announced(limit_s, requests, tuning.templates, info)
    tuning.progress.message(f"{problems}; families: {names}")
    tuning.progress.expect(limit_s)


def dry_run(options: dict[str, Any]) -> int:
    """Per problem: families and their axes, why others cannot run it, and how far the time goes.

    Where there is no GPU and the CPU runs none of the problems, for a typical one. Exit code 1: a problem has no family.
    """
    from gemmsweep.cli.request import seconds
    from gemmsweep.cli.run import default_arch, each_problem, offline_info, told_beside
    from gemmsweep.cli.tuning import each_share_s, print_plan, runs_here, tune_requests, wanted_templates
    from gemmsweep.store import open_store

    path = database(options["db"])
    if path.exists():
        # One that cannot be read would end the command that this is the plan of.
        open_store(path, readonly=True).close()
    device = offline_info(options)
    templates = wanted_templates(options, device)
    requests, refused = tune_requests(options, templates, device)
    arch = default_arch(options) if device.kind == "cpu" else None
    if arch is not None and not any(runs_here(templates, r.problem, device) for r in requests):
        click.echo(f"Nothing runs that on {device.name}: planned for a GPU, --arch {arch}.", err=True)
        device = offline_info({**options, "arch": arch})
        templates = wanted_templates(options, device)
        requests, refused = tune_requests(options, templates, device)
    limit_s = seconds("--time-limit", options["time_limit"]) or 0.0
    share_s = each_share_s(limit_s, requests, templates, device)
    if not options["templates"] and (others := elsewhere(device)):
        click.echo(f"Not on {device.name}: {', '.join(f'{t.name} (needs {t.arch})' for t in others)}.")
    return each_problem(requests, refused, lambda r: print_plan(r, templates, device, share_s), told_beside)


def elsewhere(device: DeviceInfo) -> list[Template]:
    """The shipped templates of the device's kind that need another architecture."""
    from gemmsweep.entry import backend_of
    from gemmsweep.template.library import list_templates

    return [t for t in list_templates().templates if t.backend == backend_of(device) and t.target(device.arch) is None]
