"""`gemmsweep run`: race an axis."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gemmsweep.cli.options import database, db_option, problem_options

if TYPE_CHECKING:
    from pathlib import Path

    from gemmsweep.build import Builders
    from gemmsweep.cli.live import Screen
    from gemmsweep.experiment import Experiment
    from gemmsweep.model import DeviceInfo, Problem
    from gemmsweep.plan import Axis
    from gemmsweep.session import Request
    from gemmsweep.store import Store
    from gemmsweep.template.declaration import Template
    from gemmsweep.worker import Worker


@click.command()
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
@click.option("--min-effect", type=click.FloatRange(0.01, 50), default=0.5, show_default=True,
              help="Smallest difference worth naming, in percent.")  # fmt: skip
@click.option("--time-limit", metavar="TIME", help="Stop racing after this long, as in 90s, 8m or 1h.")
@click.option("--config-limit", metavar="TIME", default="60s", show_default=True,
              help="A config whose check or burst takes longer is stopped: status timeout.")  # fmt: skip
@click.option("--compile-limit", metavar="TIME", default="120s", show_default=True, help="Likewise for its build.")
@click.option("--remeasure", is_flag=True, help="Race again what is already on record.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of the random inputs.")
def run(**options: Any) -> int:
    """Race the values of a parameter against each other and the vendor library.

    Each value is built, checked against an fp64 oracle, and raced in interleaved rounds. With several --vary, each
    axis starts from what the last one adopted. With nothing but --vary it picks device, template and shape, and
    says which.
    """
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
    from gemmsweep.worker import Limits, Worker

    limit_s = seconds("--time-limit", options["time_limit"])
    config_s = seconds("--config-limit", options["config_limit"]) or 60.0
    limits = Limits(check_s=config_s, burst_s=config_s)
    spec = resolve_device(options["device"])
    path = database(options["db"])
    deadline = None if limit_s is None else time.monotonic() + limit_s
    with open_store(path) as store, Worker(spec, limits) as worker, Builders() as builders, live.Screen() as screen:
        requests = make_requests(options, experiment, worker.info)
        screen.opening(path, worker.info, requests)
        return max(
            try_problem(request, store, worker, builders, screen, deadline, len(requests)) for request in requests
        )


def try_problem(
    request: Request,
    store: Store,
    worker: Worker,
    builders: Builders,
    screen: Screen,
    deadline: float | None,
    problems: int,
) -> int:
    """One of several problems, as an exit code: what is wrong with it is told, and the others still get their turn."""
    from gemmsweep.errors import UsageError

    try:
        with locked(request, worker.info, store.path):
            return 0 if one_problem(request, store, worker, builders, screen, deadline) else 1
    except UsageError as error:
        if problems == 1:
            raise
        screen.note(f"Error: {request.template.name} {request.problem}: {error}")
        return error.exit_code


def locked(request: Request, device: DeviceInfo, path: Path) -> ExitStack:
    """The same sweep into the same file runs once at a time, and a GPU races for one command at a time."""
    from gemmsweep.locks import hold

    locks = ExitStack()
    if device.kind == "cuda":
        locks.enter_context(hold(f"gpu-{device.uuid}", f"a race on {device.name}"))
    locks.enter_context(hold(f"sweep-{request.key}-{path.resolve()}", "the same sweep into this results file"))
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
    if stored is not None and stored.finished:
        session_id = stored.session_id
        screen.on_record(store, stored)
    else:
        session_id = stored.session_id if stored is not None else uuid7()
        session = Session(
            request, store, worker, screen, current(worker.info), builders, session_id, time.monotonic,
            lambda key: screen.sweep_done(store, key), deadline,
        )  # fmt: skip
        sweep.run(session, stored)
    return screen.closing(store, Filter(session=session_id), request)


def make_requests(options: dict[str, Any], experiment: Experiment, device: DeviceInfo) -> list[Request]:
    """Options and experiment file → one Request per problem; raises UsageError before anything is measured."""
    from gemmsweep.choose import choose_template
    from gemmsweep.entry import require_feasible_here
    from gemmsweep.model import Inputs
    from gemmsweep.plan import axis_values, parse_axis, parse_held
    from gemmsweep.session import Request
    from gemmsweep.template.library import find_template

    axes = tuple(parse_axis(text) for text in (options["vary"] or experiment.vary))
    distinct_axes(axes, (*experiment.held, *options["held"]))
    named = options["template"] or experiment.template
    requests = []
    for problem_of, dtype, layout in wanted_problems(options, experiment):
        template = find_template(named) if named else choose_template(device, [a.name for a in axes], dtype, layout)
        problem = problem_of(template, device)
        require_feasible_here(template, problem, device)
        for axis in axes:
            axis_values(template, axis)
        held = tuple(parse_held(text, template) for text in (*experiment.held, *options["held"]))
        request = Request(
            template, problem, axes, held, options["passes"] or experiment.passes,
            options["start"] or experiment.start or "best", Inputs(seed=options["seed"]),
            options["regime"] or experiment.regime, options["l2"] or experiment.l2, options["protocol"],
            experiment=experiment.name or None,
            min_effect=options["min_effect"] / 100, race_limit_s=12.0 if device.kind == "cpu" else 30.0,
            compile_limit_s=seconds("--compile-limit", options["compile_limit"]) or 120.0,
            remeasure=options["remeasure"], command=shlex.join(["gemmsweep", *click.get_current_context().find_root().obj]),
        )  # fmt: skip
        requests.append(replace(request, key=request_key(request, options)))
    return requests


def distinct_axes(axes: Sequence[Axis], held: Sequence[str]) -> None:
    """Raises UsageError for a parameter that is varied twice, or varied and held."""
    from gemmsweep.errors import UsageError

    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--vary {name} is given twice. Repeat a sweep of all axes with --passes 2.")
        if name in {text.partition("=")[0].strip() for text in held}:
            raise UsageError(f"{name} is both varied and held: leave out --vary {name} or --set {name}.")


def wanted_problems(options: dict[str, Any], experiment: Experiment) -> list[tuple[Any, str | None, str | None]]:
    """(function of template and device giving the Problem, dtype asked for, layout asked for) for each problem."""
    from gemmsweep.choose import default_shape
    from gemmsweep.epilogue import parse_epilogue
    from gemmsweep.experiment import parse_dtype, parse_layout, parse_shape
    from gemmsweep.shapes import read_csv

    dtype = parse_dtype(options["dtype"]) if options["dtype"] else experiment.dtype
    layout = parse_layout(options["layout"]) if options["layout"] else experiment.layout
    epilogue = str(parse_epilogue(options["epilogue"] or "none"))
    listed: list[tuple[tuple[int, int, int] | None, str | None, str | None]]
    listed = [(parse_shape(text), dtype, layout) for text in options["shapes"]]
    if options["shapes_file"]:
        listed += [(shape, d or dtype, o or layout) for shape, d, o in read_csv(options["shapes_file"])]
    listed = listed or [(shape, dtype, layout) for shape in experiment.problems]

    def maker(shape: tuple[int, int, int] | None, dtype: str | None, layout: str | None) -> Any:
        def make(template: Template, device: DeviceInfo) -> Problem:
            return make_problem(options, shape or default_shape(device), dtype, layout, epilogue, template)

        return make

    return [(maker(*item), item[1], item[2]) for item in (listed or [(None, dtype, layout)])]


def make_problem(
    options: dict[str, Any],
    shape: tuple[int, int, int],
    dtype: str | None,
    layout: str | None,
    epilogue: str,
    template: Template,
) -> Problem:
    """What is left open comes from the template; raises ProblemError for a leading dimension below its row."""
    from gemmsweep.errors import ProblemError
    from gemmsweep.model import Problem

    if not abs(options["beta"]) <= 1:
        raise ProblemError(f"--beta {options['beta']} is not from -1 to 1: repeated launches on one C would overflow.")
    problem = Problem.of(
        *shape,
        dtype or ("fp32" if "fp32" in template.dtypes else template.dtypes[0]),
        layout or template.layouts[0],
        lda=options["lda"] or 0,
        ldb=options["ldb"] or 0,
        ldd=options["ldd"] or 0,
        beta=options["beta"],
        epilogue=epilogue,
    )
    rows = {"lda": (problem.lda, problem.k), "ldd": (problem.ldd, problem.n)}
    rows["ldb"] = (problem.ldb, problem.n if problem.layout == "nn" else problem.k)
    for name, (given, least) in rows.items():
        if given < least:
            raise ProblemError(f"--{name} {given} is smaller than a row of {least} elements.")
    return problem


def request_key(request: Request, options: dict[str, Any]) -> str:
    """Hash of what was asked; two equal requests on one device resume each other, or show each other's result."""
    parts = [
        request.template.name, request.template.source_sha256, request.problem, options["vary"], request.axes, request.held,
        request.passes, request.start, request.inputs, request.regime, request.l2, request.protocol, request.min_effect,
        request.experiment,
    ]  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def seconds(option: str, text: str | None) -> float | None:
    """`90s`, `8m`, `1h` or plain seconds; raises UsageError."""
    from gemmsweep.errors import UsageError

    if text is None:
        return None
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    try:
        value = float(text[:-1] if unit else text) * (unit or 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e7:
        raise UsageError(f"{option} {text!r} is not a time, as in 90s, 8m or 1h.")
    return value


def offline_info(options: dict[str, Any]) -> DeviceInfo:
    """The device of `--arch`, else the one the sweep would run on."""
    from gemmsweep.analysis.account import offline_device
    from gemmsweep.device import resolve_device
    from gemmsweep.worker import Worker

    if options["arch"]:
        return offline_device(options["arch"])
    with Worker(resolve_device(options["device"])) as worker:
        return worker.info


def dry_run(options: dict[str, Any], experiment: Experiment) -> int:
    """What would be run, and which rules stand in the way."""
    from gemmsweep.cli import offline
    from gemmsweep.template.library import find_template

    named = options["template"] or experiment.template
    if named and find_template(named).backend == "cuda":
        options = {**options, "arch": options["arch"] or default_arch(options)}
    device = offline_info(options)
    for request in make_requests(options, experiment, device):
        offline.print_plan(request, device)
    return 0


def compile_only(options: dict[str, Any], experiment: Experiment) -> int:
    """Build along the axis and account for it."""
    from gemmsweep.cli import offline

    device = offline_info({**options, "arch": options["arch"] or default_arch(options)})
    built = [offline.print_builds(request, device) for request in make_requests(options, experiment, device)]
    return 0 if all(built) else 1


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
