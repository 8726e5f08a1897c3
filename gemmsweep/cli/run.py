"""`gemmsweep run`: race an axis."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from gemmsweep.cli.options import Command, FiniteRange, database, db_option, problem_options
from gemmsweep.cli.request import make_requests, on_record, require_times, seconds
from gemmsweep.errors import UnderWay, UsageError
from gemmsweep.references import WORTH_NAMING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gemmsweep.build import Builders
    from gemmsweep.cli.live import Screen
    from gemmsweep.experiment import Experiment
    from gemmsweep.model import DeviceInfo
    from gemmsweep.protocol import DeviceSpec
    from gemmsweep.session import Request
    from gemmsweep.store import Store
    from gemmsweep.worker import Limits, Worker


@click.command(cls=Command)
@click.option(
    "--vary", multiple=True, metavar="P[=VALUES]",
    help="Parameter to vary: P, P=v1,v2, P=lo:hi:step or P=lo:hi:*factor. Repeatable: one after the other.",
)  # fmt: skip
@click.option("--passes", type=click.IntRange(1, 100), help="Repeat the axes until nothing moves, at most N times.")
@click.option("--set", "held", multiple=True, metavar="P=V", help="Hold a parameter, or couple it: --set WM=BM/2.")
@problem_options
@click.option("--template", "--kernel", "template", metavar="NAME|PATH", help="Kernel template, or your own .cu.")
@click.option("--experiment", metavar="NAME|FILE", help="Take problem, template and axes from an experiment file.")
@click.option("--start", metavar="best|defaults|RUN", help="First config. Default: best known, else defaults.")
@click.option("--device", default="auto", show_default=True, metavar="auto|cuda:N|UUID|cpu", help="Where to run.")
@db_option
@click.option("--dry-run", is_flag=True, help="Configs, broken rules and a time estimate; nothing is compiled.")
@click.option("--compile-only", is_flag=True, help="Registers, spills and occupancy along the axis; no GPU needed.")
@click.option("--arch", metavar="sm_NN", help="Architecture for --dry-run and --compile-only. Default: the device's.")
@click.option("--reference", metavar="NAMES",
              help="Beside cublas: cublaslt_best, pad_copy_cublas. Default: the best of cuBLASLt in finals, "
              "padded copies for odd strides.")  # fmt: skip
@click.option("--against", multiple=True, metavar="py:M.F|py:FILE:F",
              help="Race a Python function in the same rounds: f(a, b, c, task) writes c. Repeatable.")  # fmt: skip
@click.option("--compiler", default="auto", show_default=True, metavar="auto|nvcc|CC",
              help="nvcc instead of NVRTC; of CPU kernels, any C compiler.")  # fmt: skip
@click.option("--l2", type=click.Choice(["cold", "hot"]), help="State of the L2 cache. Default: cold.")
@click.option(
    "--regime",
    type=click.Choice(["auto", "equal-clock", "own-power", "burst", "all"]),
    help="Which finals to race beside those at equal clock. Default: own-power for large products on a GPU.",
)
@click.option(
    "--protocol",
    type=click.Choice(["rounds", "alone"]),
    default="rounds",
    show_default=True,
    help="alone: each config by itself, mean of 7 launches; to compare with, never exported.",
)
@click.option("--min-effect", type=FiniteRange(0.01, 50), default=100 * WORTH_NAMING, show_default=True,
              help="Smallest difference worth naming, in percent.")  # fmt: skip
@click.option("--time-limit", metavar="TIME", help="Stop racing after this long, as in 90 (seconds), 8m or 1h.")
@click.option("--race-limit", metavar="TIME",
              help="A race still undecided after this long ends so. Default: 30s, on a CPU 12s.")  # fmt: skip
@click.option("--config-limit", metavar="TIME", default="60s", show_default=True,
              help="A config whose check or burst takes longer is stopped: status timeout.")  # fmt: skip
@click.option("--compile-limit", metavar="TIME", default="120s", show_default=True, help="Likewise for its build.")
@click.option("--remeasure", is_flag=True, help="Race again what is already on record.")
@click.option(
    "--require-idle", is_flag=True, help="Exit 1 where others put load on the GPU, instead of racing beside them."
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of the random inputs.")
def run(**options: Any) -> int:
    """Race the values of a parameter against each other and the vendor library.

    Each value is built, checked against an fp64 oracle, and raced in interleaved rounds. With several --vary, each
    axis starts from what the last one adopted. With nothing but --vary it picks device, template and shape, and says
    which: the family that export-best names for the problem, else the one with the most parameters. A problem of
    several that cannot be run is told and the others are: exit code 1, or 2 where none could.
    """
    require_times(options)
    if options["dry_run"] and options["compile_only"]:
        raise UsageError("--dry-run compiles nothing, --compile-only builds along the axis: leave one of them out.")
    if options["arch"] and not (options["dry_run"] or options["compile_only"]):
        raise UsageError(
            f"--arch {options['arch']} is for --dry-run and --compile-only; a race is on the device that is here: "
            "add one of them, or leave --arch out."
        )
    experiment = the_experiment(options["experiment"])
    if options["compile_only"]:
        return compile_only(options, experiment)
    if options["dry_run"]:
        return dry_run(options, experiment)
    return measure(options, experiment)


def the_experiment(name: str | None) -> Experiment:
    from gemmsweep.experiment import Experiment, find_experiment

    return Experiment("") if name is None else find_experiment(name)


def measure(options: dict[str, Any], experiment: Experiment) -> int:
    """The real thing; returns the exit code."""
    from gemmsweep.build import Builders
    from gemmsweep.cli import live
    from gemmsweep.device import resolve_device
    from gemmsweep.store import open_store
    from gemmsweep.worker import Limits

    limit_s = seconds("--time-limit", options["time_limit"])
    config_s = seconds("--config-limit", options["config_limit"]) or 60.0
    limits = Limits(check_s=config_s, burst_s=config_s)
    spec = resolve_device(options["device"])
    path = database(options["db"])
    deadline = None if limit_s is None else time.monotonic() + limit_s
    with (
        Builders(compiler=options["compiler"]) as builders,
        worker_beside(builders, spec, limits) as worker,
    ):
        with on_record(path) as known:
            requests, refused = make_requests(options, experiment, worker.info, known)
        # What cannot be run leaves no results file.
        with open_store(path) as store, live.Screen() as screen:
            screen.opening(path, worker.info, requests)

            def race(request: Request) -> bool:
                with locked(request, worker.info, store.path):
                    return one_problem(request, store, worker, builders, screen, deadline)

            code = each_problem(requests, refused, race, screen.note)
            if builders.note:
                screen.note(builders.note)
            return code


def worker_beside(builders: Builders, spec: DeviceSpec, limits: Limits) -> Worker:
    """A worker; while a GPU is opened, which takes seconds, compile processes start as well."""
    from gemmsweep.worker import Worker

    if spec.kind == "cuda":
        builders.start()
    return Worker(spec, limits)


def each_problem(
    requests: Sequence[Request], refused: Sequence[str], do: Callable[[Request], bool], note: Callable[[str], None]
) -> int:
    """`do` for every problem, as an exit code: what is wrong with one is told, and the others still get their turn.

    0 where all had a result, 2 where none could be run, else 1.
    """
    for told in refused:
        note(f"Error: {told}")
    total, failed, results = len(requests) + len(refused), len(refused), []
    for request in requests:
        try:
            results.append(do(request))
        except (UsageError, UnderWay) as error:
            if total == 1:
                raise
            note(f"Error: {request.template.name} {request.problem}: {error}")
            failed += 1
    if failed:
        note(f"{failed} of {total} problems could not be run: see each one's error.")
    return UsageError.exit_code if not results else 0 if all(results) and not failed else 1


def locked(request: Request, device: DeviceInfo, path: Path) -> ExitStack:
    """The same sweep into the same file runs once at a time, and a GPU races for one command at a time."""
    from gemmsweep.locks import alone_on, hold
    from gemmsweep.store import identity_of

    locks = ExitStack()
    locks.enter_context(alone_on(device))
    name = f"sweep-{request.key}-{identity_of(path)}"
    locks.enter_context(hold(name, "the same sweep into this results file", UnderWay))
    return locks


def one_problem(
    request: Request, store: Store, worker: Worker, builders: Builders, screen: Screen, deadline: float | None
) -> bool:
    """One problem from start to finals; True where it left a verified result."""
    from gemmsweep import sweep
    from gemmsweep.environment import current
    from gemmsweep.session import Session
    from gemmsweep.store import Filter
    from gemmsweep.store.ids import uuid7

    stored = None if request.remeasure else store.find_session(request.key, worker.info.uuid)
    disturbed = request.require_idle and stored is not None and any(s.disturbed for s in stored.sweeps)
    if stored is not None and stored.finished and not disturbed:
        session_id = stored.session_id
        screen.on_record(store, stored)
    else:
        session_id = stored.session_id if stored is not None else uuid7()
        raced: list[int] = []

        def done(key: int) -> None:
            raced.append(key)
            screen.sweep_done(store, key)

        session = Session(
            request, store, worker, screen, current(worker.info), builders, session_id, time.monotonic, done, deadline
        )
        sweep.run(session, stored)
        for known in stored.sweeps if stored is not None and not raced else ():
            screen.sweep_done(store, known.key)  # nothing was left to race: the answer is what is on record
    return screen.closing(store, Filter(session=session_id), request, worker.info)


def offline_info(options: dict[str, Any]) -> DeviceInfo:
    """The device of `--arch`, else the one the sweep would run on."""
    from gemmsweep.analysis.account import offline_device
    from gemmsweep.device import resolve_device
    from gemmsweep.worker import Worker

    if options["arch"]:
        if options["device"] != "auto":
            raise UsageError(
                f"--arch {options['arch']} plans for a card that need not be here, --device {options['device']} for one that "
                "is: leave one of them out."
            )
        return offline_device(options["arch"])
    with Worker(resolve_device(options["device"])) as worker:
        return worker.info


def dry_run(options: dict[str, Any], experiment: Experiment) -> int:
    """What would be run, and which rules stand in the way."""
    from gemmsweep.cli import offline
    from gemmsweep.template.library import find_template

    named = options["template"] or experiment.each[0].template
    if named and find_template(named).backend == "cuda":
        options = {**options, "arch": options["arch"] or default_arch(options)}
    device, path = offline_info(options), database(options["db"])
    with on_record(path) as known:
        requests, refused = make_requests(options, experiment, device, known)

        def plan(request: Request) -> bool:
            offline.print_plan(request, device, offline.start_of(request, device, known))
            return True

        return each_problem(requests, refused, plan, told_beside)


def compile_only(options: dict[str, Any], experiment: Experiment) -> int:
    """Build along the axis and account for it."""
    from gemmsweep.cli import offline

    device = offline_info({**options, "arch": options["arch"] or default_arch(options)})
    with on_record(database(options["db"])) as known:
        requests, refused = make_requests(options, experiment, device, known)

        def build(request: Request) -> bool:
            return offline.print_builds(request, device, offline.start_of(request, device, known))

        return each_problem(requests, refused, build, told_beside)


def told_beside(text: str) -> None:
    """A line on stderr, in the order of what stands on stdout."""
    from gemmsweep.cli.offline import say

    sys.stdout.flush()
    say(text, err=True)


def default_arch(options: dict[str, Any]) -> str | None:
    """sm_90a where this machine has no GPU of its own and the CPU was not asked for."""
    from gemmsweep.device import resolve_device
    from gemmsweep.errors import EnvironmentProblem

    if options["device"] != "auto":
        return None
    try:
        return "sm_90a" if resolve_device("auto").kind == "cpu" else None
    except EnvironmentProblem:
        return "sm_90a"
