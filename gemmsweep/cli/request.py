"""Options of `gemmsweep run` → Requests: everything that can be wrong is told here, before anything is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from gemmsweep.cli.options import command_line

if TYPE_CHECKING:
    from pathlib import Path

    from gemmsweep.experiment import Experiment
    from gemmsweep.model import DeviceInfo, Problem
    from gemmsweep.session import Request
    from gemmsweep.store import Store
    from gemmsweep.template.declaration import Template

MOST_TOLD = 5  # errors on one line
T = TypeVar("T")
Refused = tuple[str, str]  # a problem as the user said it, and what is wrong with it


@dataclass(frozen=True, slots=True)
class Wanted:
    """A problem as far as the user said; what is None is up to template and device, which `make` is given."""

    shape: tuple[int, int, int] | None
    dtype: str | None
    layout: str | None
    make: Callable[[Template, DeviceInfo], Problem]

    def __str__(self) -> str:
        from gemmsweep.shapes import in_words

        return in_words(self.shape, self.dtype, self.layout) or "the problem"


def make_requests(
    options: dict[str, Any], experiment: Experiment, device: DeviceInfo, store: Store | None
) -> tuple[list[Request], list[str]]:
    """Options and experiment file → one Request per problem, and what is wrong with each that cannot be run.

    The results file, if there is one, says which family is best for a problem where none is named.
    Raises UsageError where none can be run, before anything is measured.
    """
    requests, refused = [], []
    for part in experiment.each:
        found, others = each_wanted(wanted_problems(options, part), requests_of(options, part, device, store))
        requests += found
        refused += others
    require_some(requests, refused)
    return requests, told(refused)


def on_record(path: Path) -> AbstractContextManager[Store | None]:
    """The results file to look into, if there is one."""
    from gemmsweep.store import open_store

    return open_store(path, readonly=True) if path.exists() else nullcontext()


def each_wanted(asked: Sequence[Wanted], make: Callable[[Wanted], T]) -> tuple[list[T], list[Refused]]:
    """What `make` makes of each problem, and of each that it raises UsageError for, what is wrong."""
    from gemmsweep.errors import UsageError

    made, refused = [], []
    for wanted in asked:
        try:
            made.append(make(wanted))
        except UsageError as error:
            refused.append((str(wanted), str(error)))
    return made, refused


def require_some(made: Sequence[object], refused: Sequence[Refused]) -> None:
    """Raises UsageError with what is wrong where every problem is refused."""
    from gemmsweep.errors import UsageError

    if not made:
        errors = [error for _, error in refused]
        raise UsageError(errors[0] if len(set(errors)) == 1 else " | ".join(told(refused)[:MOST_TOLD]))


def told(refused: Sequence[Refused]) -> list[str]:
    """A line for each."""
    return [f"{wanted}: {error}" for wanted, error in refused]


def requests_of(
    options: dict[str, Any], experiment: Experiment, device: DeviceInfo, store: Store | None
) -> Callable[[Wanted], Request]:
    """How a problem of this part of an experiment becomes a Request; raises UsageError for what is wrong with all of them."""
    from gemmsweep.choose import choose_template, require_templates_here, template_on_record
    from gemmsweep.entry import require_feasible_here, require_room, require_runs_on
    from gemmsweep.errors import UsageError
    from gemmsweep.model import Inputs
    from gemmsweep.plan import axis_values, distinct_axes, distinct_held, held_name, in_order, parse_axis, parse_held
    from gemmsweep.references import parse_functions, parse_names
    from gemmsweep.session import Request, race_limit_s
    from gemmsweep.template.library import find_template

    if options.get("require_idle") and device.kind == "cpu":
        raise UsageError("--require-idle is for GPUs: nobody looks for other load on a CPU. Leave it out.")
    axes = tuple(parse_axis(text) for text in (options["vary"] or experiment.vary))
    texts = (*experiment.held, *options["held"])
    distinct_axes(axes, texts)
    distinct_held(options["held"])
    parameters = {axis.name for axis in axes} | {held_name(text) for text in texts}
    references = parse_names(options.get("reference"), device.kind)
    against = parse_functions(options.get("against") or ())
    named = options["template"] or experiment.template
    # A list of thousands of problems reads the templates once.
    find, here = cache(find_template), cache(lambda: require_templates_here(device))

    def request_of(wanted: Wanted) -> Request:
        template = find(named) if named else choose_template(
            here(), device, [a.name for a in axes], wanted.dtype, wanted.layout
        )  # fmt: skip
        require_runs_on(template, device)
        problem = wanted.make(template, device)
        if not named and store is not None:
            template = template_on_record(store, here(), device, problem, parameters) or template
        require_feasible_here(template, problem, device)
        require_room(problem, device)
        for axis in axes:
            axis_values(template, axis)
        regime = options["regime"] or experiment.regime
        if options["protocol"] == "alone" and regime not in (None, "auto", "equal-clock"):
            raise UsageError(f"regime {regime} is of finals, and --protocol alone holds none: leave one of them out.")
        held = in_order([parse_held(text, template) for text in texts])
        request = Request(
            template, problem, axes, held, options["passes"] or experiment.passes,
            options["start"] or experiment.start or "best", Inputs(seed=options["seed"]),
            regime, options["l2"] or experiment.l2, options["protocol"],
            experiment=experiment.name or None,
            min_effect=options["min_effect"] / 100,
            race_limit_s=seconds("--race-limit", options["race_limit"]) or race_limit_s(device),
            compile_limit_s=seconds("--compile-limit", options["compile_limit"]) or 120.0,
            compiler=named_compiler(options, template), references=references, against=against,
            remeasure=options["remeasure"], require_idle=bool(options.get("require_idle")), command=command_line(),
        )  # fmt: skip
        require_start(request, store)
        return replace(request, key=request_key(request, race_limit_s(device)))

    return request_of


def require_start(request: Request, store: Store | None) -> None:
    """Raises UsageError where --start names a run that this sweep cannot start from."""
    from gemmsweep.errors import UsageError
    from gemmsweep.start import from_run

    if request.start in ("best", "defaults"):
        return
    if store is None:
        raise UsageError(
            f"--start {request.start}: there is no results file with such a run. Name it with --db, or leave --start out."
        )
    from_run(request, store, request.start)


def named_compiler(options: dict[str, Any], template: Template) -> str:
    """--compiler, or "auto". Raises UsageError or EnvironmentProblem for one that is not there, before anything runs."""
    from gemmsweep.build import toolchain

    compiler: str = options.get("compiler") or "auto"
    if compiler != "auto":
        toolchain.find(template.backend, compiler)
    return compiler


def wanted_problems(options: dict[str, Any], experiment: Experiment) -> list[Wanted]:
    """Those of the command line, else of the experiment, else one of any shape; raises UsageError."""
    from gemmsweep.choose import default_shape
    from gemmsweep.epilogue import parse_epilogue
    from gemmsweep.experiment import parse_dtype, parse_layout, parse_shape
    from gemmsweep.shapes import read_csv

    dtype = parse_dtype(options["dtype"]) if options["dtype"] else experiment.dtype
    layout = parse_layout(options["layout"]) if options["layout"] else experiment.layout
    epilogue = str(parse_epilogue(options["epilogue"] or experiment.epilogue))
    listed: list[tuple[tuple[int, int, int] | None, str | None, str | None]]
    listed = [(parse_shape(text), dtype, layout) for text in options["shapes"]]
    if options["shapes_file"]:
        listed += [(shape, d or dtype, o or layout) for shape, d, o in read_csv(options["shapes_file"])]
    listed = listed or [(shape, dtype, layout) for shape in experiment.problems]

    def wanted(shape: tuple[int, int, int] | None, dtype: str | None, layout: str | None) -> Wanted:
        def make(template: Template, device: DeviceInfo) -> Problem:
            typed, way = dtype or template.dtypes[0], layout or template.layouts[0]
            return make_problem(options, shape or default_shape(template, device, typed, way), typed, way, epilogue)

        return Wanted(shape, dtype, layout, make)

    return [wanted(*item) for item in (listed or [(None, dtype, layout)])]


def make_problem(
    options: dict[str, Any],
    shape: tuple[int, int, int],
    dtype: str,
    layout: str,
    epilogue: str,
) -> Problem:
    """Raises ProblemError for a leading dimension below its row, or a beta that would overflow."""
    from gemmsweep.errors import ProblemError
    from gemmsweep.model import Problem

    if not abs(options["beta"]) <= 1:
        raise ProblemError(f"--beta {options['beta']} is not from -1 to 1: repeated launches on one C would overflow.")
    problem = Problem.of(
        *shape,
        dtype,
        layout,
        lda=options["lda"] or 0,
        ldb=options["ldb"] or 0,
        ldd=options["ldd"] or 0,
        beta=options["beta"],
        epilogue=epilogue,
    )
    for name, least in problem.tight.items():
        given = getattr(problem, name)
        if given < least:
            raise ProblemError(f"--{name} {given} is smaller than a row of {least} elements.")
    return problem


def asked_again(template: Template, problem: Problem) -> list[str]:
    """The words of a command line that ask for this problem, and for the kind of device that `template` is for."""
    words = ["--shape", problem.shape, "--dtype", problem.dtype, "--layout", problem.layout]
    words += ["--device", "cpu"] if template.backend == "cpu" else []
    words += ["--epilogue", problem.epilogue] if problem.epilogue != "none" else []
    words += ["--beta", str(problem.beta)] if problem.beta else []
    for name, least in problem.tight.items():
        words += [f"--{name}", str(getattr(problem, name))] if getattr(problem, name) != least else []
    return words


def request_key(request: Request, usual_limit_s: float) -> str:
    """Hash of what was asked; two equal requests on one device resume each other, or show each other's result.

    `usual_limit_s` is the device's, of a race.
    """
    parts = [
        request.template.name, request.template.source_sha256, request.problem, request.axes, request.held,
        request.passes, request.start, request.inputs, request.regime, request.l2, request.protocol, request.min_effect,
        request.experiment,
    ]  # fmt: skip
    # Only where asked for, so that what is on record without them is still found.
    if request.references or request.against:
        parts += [request.references, [(f.text, f.fingerprint) for f in request.against]]
    if request.compiler != "auto":
        parts.append(request.compiler)
    if request.race_limit_s != usual_limit_s:
        parts.append(request.race_limit_s)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def require_times(options: dict[str, Any]) -> None:
    """Raises UsageError for a limit that is no time, whether or not this command comes to need it."""
    for name in ("time_limit", "race_limit", "config_limit", "compile_limit"):
        seconds(f"--{name.replace('_', '-')}", options.get(name))


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
        raise UsageError(f"{option} {text!r} is not a time, as in 90s, 8m or 1h; a bare number is seconds.")
    return value
