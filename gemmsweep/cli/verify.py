"""`gemmsweep verify`: is a template right, at the shapes and values where kernels go wrong?"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmsweep.cli.options import Command, command_line, database, db_option, problem_options
from gemmsweep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemmsweep.cli.request import Refused, Wanted
    from gemmsweep.model import DeviceInfo
    from gemmsweep.template.declaration import Template
    from gemmsweep.verify import Case, Result, Work


@click.command(cls=Command)
@click.argument("template", required=False, metavar="[TEMPLATE|PATH]")
@click.option("--all", "every", is_flag=True, help="Every template that this device can run.")
@problem_options
@click.option("--set", "held", multiple=True, metavar="P=V", help="With --shape: this value instead of the default.")
@click.option("--special-values", is_flag=True,
              help="Also Inf and NaN at corners, -0, subnormals, the largest numbers, sums beyond fp16.")  # fmt: skip
@click.option("--explain", is_flag=True, help="Of what is wrong, show the first elements with tile, warp and lane.")
@click.option("--quick", is_flag=True, help="Fewer shapes and epilogues; the axes in one dtype and layout only.")
@click.option("--time-limit", metavar="TIME", help="Stop after this long, as in 90 (seconds), 8m or 1h.")
@click.option("--config-limit", metavar="TIME", default="60s", show_default=True,
              help="A config whose check takes longer is stopped: status timeout.")  # fmt: skip
@click.option("--device", default="auto", show_default=True, metavar="auto|cuda:N|UUID|cpu", help="Where to run.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@db_option
def verify(template: str | None, every: bool, db: Path | None, **options: Any) -> int:
    """Check a template, or all, at edge shapes, in every dtype, layout and epilogue, and along every axis; time nothing.

    The defaults, or the nearest config that a problem admits, at edge shapes and leading dimensions; each value of each
    parameter, and each start that the header proposes, at ragged tiles; all against the fp64 oracle. With --shape: exactly
    these problems. Every check is stored, so that `gemmsweep show` says what was checked where, and when. Exit code 0: all
    right; 1: something is wrong, or not all that was asked for could be checked.
    """
    from gemmsweep.build import Builders
    from gemmsweep.cli import live, verify_report
    from gemmsweep.cli.request import seconds
    from gemmsweep.device import resolve_device
    from gemmsweep.environment import current
    from gemmsweep.locks import alone_on
    from gemmsweep.store import open_store
    from gemmsweep.store.ids import uuid7
    from gemmsweep.verify import Work
    from gemmsweep.worker import Limits, Worker

    if (template is None) == (not every):
        raise UsageError("verify takes one template, by name or path, or --all.")
    limit_s = seconds("--time-limit", options["time_limit"])
    limits = Limits(check_s=seconds("--config-limit", options["config_limit"]) or 60.0)
    spec, path = resolve_device(options["device"]), database(db)
    with ExitStack() as beside:
        worker = beside.enter_context(Worker(spec, limits))
        info = worker.info
        chosen, refused = plan(template, options, info)
        store, builders = beside.enter_context(open_store(path)), beside.enter_context(Builders())
        screen = beside.enter_context(live.Screen())
        begun = time.monotonic()
        screen.note(f"{info.name} ({info.arch}), results in {path}")
        for told in refused:
            screen.note(f"Error: {told}")
        for one, cases in chosen:
            screen.note(verify_report.intent(one, cases))
        work = Work(
            store, worker, screen, builders, current(info), uuid7(), command_line(), time.monotonic, options["explain"]
        )  # fmt: skip
        with alone_on(info):
            results = run(work, chosen, math.inf if limit_s is None else begun + limit_s)
        store.finish_session(work.session_id)
        if builders.note:
            screen.note(builders.note)
    verify_report.write(options["format_"], results, info, template)
    sound = all(not r.failures and not r.unchecked for r in results) and any(r.right for r in results)
    return 0 if sound and not refused else 1


def run(work: Work, chosen: Sequence[tuple[Template, Sequence[Case]]], deadline: float) -> list[Result]:
    """One template after the other, each with its share of what time is left."""
    from gemmsweep.verify import verify as verify_template

    results = []
    for position, (template, cases) in enumerate(chosen):
        share = (deadline - work.clock()) / (len(chosen) - position)
        results.append(verify_template(work, template, cases, work.clock() + share))
    return results


def plan(
    named: str | None, options: dict[str, Any], device: DeviceInfo
) -> tuple[list[tuple[Template, Sequence[Case]]], list[str]]:
    """Templates with what is to be checked of each, and problems that the one named, or every one, does not take.

    Raises UsageError where one cannot run here or nothing fits.
    """
    from gemmsweep.choose import templates_here
    from gemmsweep.cli.request import MOST_TOLD, require_some, told
    from gemmsweep.template.library import find_template

    if named is not None:
        template = find_template(named)
        if not problems_asked(options):
            return [(template, edges(template, options, device, strict=True))], []
        cases, refused = asked_cases(template, options, device)
        require_some(cases, refused)
        return [(template, cases)], told(refused)
    here = templates_here(device)
    if problems_asked(options):
        asked = [(template, *asked_cases(template, options, device)) for template in here]
        found: list[tuple[Template, Sequence[Case]]] = [(template, cases) for template, cases, _ in asked if cases]
        refusals = refused_by_all([refused for _, _, refused in asked])
    else:
        each = [(t, edges(t, options, device, strict=False)) for t in here if fits(t, options)]
        found, refusals = [(template, cases) for template, cases in each if cases], []
    if not found:
        why = " | ".join(refusals[:MOST_TOLD]) or "See: gemmsweep show"
        raise UsageError(f"no template on {device.name} takes what was asked for. {why}")
    return found, refusals


def refused_by_all(refused: Sequence[Sequence[Refused]]) -> list[str]:
    """Problems that no template takes, each with what is wrong by every one; `refused` by template."""
    reasons: dict[str, list[str]] = {}
    for problems in refused:
        for wanted, error in dict(problems).items():
            reasons.setdefault(wanted, []).append(error)
    return [
        f"{wanted}: {' | '.join(dict.fromkeys(errors))}"
        for wanted, errors in reasons.items()
        if len(errors) == len(refused)
    ]


def problems_asked(options: dict[str, Any]) -> bool:
    """Whether problems are named, instead of edge shapes."""
    return bool(options["shapes"] or options["shapes_file"])


def fits(template: Template, options: dict[str, Any]) -> bool:
    """Whether a template of --all has the dtype and layout asked for."""
    from gemmsweep.experiment import parse_dtype, parse_layout

    dtype, layout = options["dtype"], options["layout"]
    return (not dtype or parse_dtype(dtype) in template.dtypes) and (
        not layout or parse_layout(layout) in template.layouts
    )


def edges(template: Template, options: dict[str, Any], device: DeviceInfo, *, strict: bool) -> Sequence[Case]:
    """Edge shapes and axes of one template. Raises UsageError where it takes none, if `strict`."""
    from gemmsweep.entry import require_feasible_here
    from gemmsweep.epilogue import parse_epilogue
    from gemmsweep.experiment import parse_dtype, parse_layout
    from gemmsweep.model import Problem
    from gemmsweep.verify import Extent, asked, edge_cases

    if options["held"] or options["beta"] or options["lda"] or options["ldb"] or options["ldd"]:
        raise UsageError("--set, --beta and leading dimensions are for one problem: add --shape MxNxK.")
    dtype = parse_dtype(options["dtype"]) if options["dtype"] else None
    layout = parse_layout(options["layout"]) if options["layout"] else None
    epilogue = str(parse_epilogue(options["epilogue"])) if options["epilogue"] else "none"
    problem = Problem.of(1, 1, 1, dtype or template.dtypes[0], layout or template.layouts[0], epilogue=epilogue)
    require_feasible_here(template, problem, device)
    extent = Extent(
        (dtype,) if dtype else (), (layout,) if layout else (), () if epilogue == "none" else (epilogue,),
        options["quick"], options["special_values"],
    )  # fmt: skip
    cases = edge_cases(template, device, extent)
    if not cases and strict:
        (candidate,) = asked(template, device, problem, template.defaults()).candidates
        raise UsageError(
            f"template '{template.name}' takes none of the edge shapes here: name one with --shape MxNxK. "
            f"{problem}: {candidate.attempt.reason}."
        )
    return cases


def asked_cases(
    template: Template, options: dict[str, Any], device: DeviceInfo
) -> tuple[Sequence[Case], Sequence[Refused]]:
    """The problems of --shape and --shapes, each with the config of --set, else the one nearest to the defaults that it admits.

    And what is wrong with the others.
    """
    from gemmsweep import special
    from gemmsweep.cli.account import asked_config
    from gemmsweep.cli.request import each_wanted, wanted_problems
    from gemmsweep.entry import require_feasible_here
    from gemmsweep.experiment import Experiment
    from gemmsweep.verify import Nearest, asked

    named = asked_config(template, options) if options["held"] else None
    nearest = Nearest(template, device)

    def case_of(wanted: Wanted) -> Case:
        problem = wanted.make(template, device)
        require_feasible_here(template, problem, device)
        if options["special_values"] and not special.applies(problem):
            raise UsageError(
                f"--special-values has right answers for {' and '.join(special.EXACT_EPILOGUES)} as epilogue, without beta: "
                "ask for one of these, or leave it out."
            )
        config = named or nearest(problem) or template.defaults()
        case = asked(template, device, problem, config, special_values=options["special_values"])
        if not case.candidates[0].alive:
            raise UsageError(f"template '{template.name}': {case.candidates[0].attempt.reason}.")
        return case

    cases, refused = each_wanted(wanted_problems(options, Experiment("")), case_of)
    return list({case.problem: case for case in cases}.values()), refused
