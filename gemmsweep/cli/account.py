"""Templates on the screen: the list, and one with its parameters, rules and the account for a problem."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gemmsweep.cli.offline import config_text, draw, say

if TYPE_CHECKING:
    from pathlib import Path

    from gemmsweep.entry import Candidate
    from gemmsweep.model import Config, DeviceInfo, Problem
    from gemmsweep.template.declaration import Template
    from gemmsweep.template.expressions import Expression
    from gemmsweep.template.resolve import Resolved


def print_list(templates: Sequence[Template], fresh: Mapping[str, str], broken: Mapping[str, str]) -> None:
    """One row per template."""
    from gemmsweep.report.grid import Column, Row

    columns = [Column(name) for name in ("template", "for", "dtypes", "layouts", "on a device")]
    rows = [
        Row([t.name, t.arch or "CPU", " ".join(t.dtypes), " ".join(t.layouts), fresh[t.name], t.summary])
        for t in templates
    ]
    draw([*columns, Column("idea", wraps=True)], rows)
    for name, reason in broken.items():
        say(f"{name} cannot be used: {reason}", err=True)


def print_template(template: Template, fresh: str, history: Sequence[str], options: dict[str, Any], path: Path) -> None:
    """Where it was checked, parameters, rules, account."""
    from gemmsweep.report.grid import Column, Row

    say(f"{template.name}: {template.summary}")
    say(
        f"{template.arch or 'CPU'}; {' '.join(template.dtypes)}; {' '.join(template.layouts)}; {fresh}; {template.path}"
    )
    for line in history:
        say(f"  {line}")
    rows = [Row([p.name, str(p.default), " ".join(map(str, p.values)), p.meaning]) for p in template.parameters]
    draw([Column("parameter"), Column("default", right=True), Column("values"), Column("meaning", wraps=True)], rows)
    if template.constraints or template.requires:
        say("Rules:")
    for rule in template.constraints:
        say(f"  {rule.expression.text}    {rule.why}")
    for expression in template.requires:
        say(f"  {expression.text}    the kernel takes only such shapes")
    print_account(template, options, path)


def check_asked(template: Template, options: dict[str, Any]) -> None:
    """Raises UsageError for a dtype, layout, shape, value or architecture that cannot be, before anything is printed."""
    from gemmsweep.analysis.account import offline_device
    from gemmsweep.experiment import parse_dtype, parse_layout, parse_shape

    for name, parse in (
        ("dtype", parse_dtype),
        ("layout", parse_layout),
        ("shape", parse_shape),
        ("arch", offline_device),
    ):
        if options[name]:
            parse(options[name])
    asked_config(template, options)


def asked_config(template: Template, options: dict[str, Any]) -> Config:
    """The defaults with what `--set` holds; raises UsageError."""
    from gemmsweep.plan import apply_held, distinct_held, in_order, parse_held

    distinct_held(options["held"])
    return apply_held(template.defaults(), in_order([parse_held(text, template) for text in options["held"]]))


def print_account(template: Template, options: dict[str, Any], path: Path) -> None:
    """What one config costs on one problem before it is run, and which is the best on record for it."""
    from gemmsweep.analysis import roofline
    from gemmsweep.build import Builders
    from gemmsweep.choose import default_shape
    from gemmsweep.cli.run import default_arch, offline_info
    from gemmsweep.entry import Unwatched, compile_all, enlist, require_runs_on
    from gemmsweep.errors import EnvironmentProblem, UsageError
    from gemmsweep.experiment import parse_dtype, parse_layout, parse_shape
    from gemmsweep.model import Problem

    asked = {"device": "cpu" if template.backend == "cpu" else "auto", "arch": options["arch"]}
    if template.backend == "cuda":
        asked["arch"] = options["arch"] or default_arch(asked)
    device = offline_info(asked)
    dtype = parse_dtype(options["dtype"]) if options["dtype"] else template.dtypes[0]
    layout = parse_layout(options["layout"]) if options["layout"] else template.layouts[0]
    shape = parse_shape(options["shape"]) if options["shape"] else default_shape(template, device, dtype, layout)
    problem = Problem.of(*shape, dtype, layout)
    config = asked_config(template, options)
    (candidate,) = enlist(template, problem, device, {"start": config})
    say(f"Account of {problem} on {device.name}:")
    try:
        require_runs_on(template, device)
    except UsageError as error:
        say(f"  not feasible: {error}")
        return
    say("  " + config_text(config))
    say_best(template, problem, device, config, options, path)
    if not candidate.alive:
        say(f"  not feasible: {candidate.attempt.reason}")
        return
    try:
        with Builders() as builders:
            (built,) = compile_all([candidate], device, Unwatched(), builders)
    except EnvironmentProblem as lack:
        say(f"  no registers and no occupancy: {lack}")
        built = candidate
    for name, value in [*tile_lines(built, problem, device), *roof_lines(problem, roofline.peaks(device, dtype))]:
        say(f"  {name:<22}{value}")


def say_best(
    template: Template, problem: Problem, device: DeviceInfo, config: Config, options: dict[str, Any], path: Path
) -> None:
    """The command that accounts for the best config of the problem on record, where that is another one."""
    from gemmsweep.choose import devices_like
    from gemmsweep.plan import differences
    from gemmsweep.session import Request
    from gemmsweep.start import best_known
    from gemmsweep.store import open_store

    if not path.exists():
        return
    with open_store(path, readonly=True) as store:
        bests = [best_known(Request(template, problem, ()), store, like) for like in devices_like(store, device)]
    best = next((best for best in bests if best is not None), None)
    if best is not None and best.config != config:
        words = ["gemmsweep", "show", options["name"], "--shape", problem.shape, "--dtype", problem.dtype]
        words += ["--layout", problem.layout, *(["--arch", options["arch"]] if options["arch"] else [])]
        for name, value in differences(template.defaults(), best.config).items():
            words += ["--set", f"{name}={value}"]
        say(f"  {best.origin}. Its account: {shlex.join(words)}")


def tile_lines(built: Candidate, problem: Problem, device: DeviceInfo) -> list[tuple[str, str]]:
    """Shared memory, accumulators, registers, occupancy and waves."""
    from gemmsweep.template import render

    template, attempt, launch = built.template, built.attempt, built.launch
    resolved = render.resolve(template, problem, render.device_env(device), attempt.config)
    lines = []
    if template.account.stage_bytes is not None:
        lines.append(("bytes per stage", told(template.account.stage_bytes, resolved)))
    if template.account.accumulators is not None:
        lines.append(("accumulators/thread", told(template.account.accumulators, resolved)))
    if launch is not None and template.backend == "cuda":
        step = launch.main
        lines.append(("grid x block", f"{step.grid} x {step.block}"))
    if not built.alive:
        return [*lines, ("compiler", attempt.reason)]
    if attempt.build is not None and attempt.build.registers is not None:
        spill = f", {attempt.build.spill_bytes} bytes spilled" if attempt.build.spill_bytes else ", no spills"
        lines.append(("registers/thread", f"{attempt.build.registers}{spill}"))
        lines.append(("shared memory", f"{attempt.smem_bytes or 0:,} bytes"))
    if built.account is not None:
        a = built.account
        lines.append(("CTAs per SM", f"{a.ctas_per_sm}, bound by {a.bound_by}; occupancy {a.occupancy_pct:.0f}%"))
        lines.append(
            ("waves", f"{a.waves:.2f} on {device.sm_count} SMs; the tail of the last costs up to {a.tail_pct:.0f}%")
        )
    return lines


def told(figure: Expression, resolved: Resolved) -> str:
    """A figure of the header, or why it has none: what only informs ends nothing."""
    from gemmsweep.template.expressions import ExpressionError

    try:
        return f"{resolved.value(figure):,}"
    except ExpressionError as error:
        return f"no value: {error}"


def roof_lines(problem: Problem, roofs: Any) -> list[tuple[str, str]]:
    """The roofline in words."""
    from gemmsweep.analysis import roofline

    lines = [
        ("work", f"{problem.flops / 1e9:,.3f} GFLOP, {problem.compulsory_bytes / 1e6:,.3f} MB at least"),
        ("intensity", f"{roofline.intensity(problem):,.1f} FLOP/byte"),
    ]
    if roofs.balance is not None:
        bound, floor = roofline.bound(problem, roofs), roofline.floor_us(problem, roofs)
        lines.append(
            ("machine balance", f"{roofs.balance:,.1f} FLOP/byte ({roofs.tflops:.0f} TFLOP/s, {roofs.gbps:,.0f} GB/s)")
        )
        lines.append(("roofline", f"{bound}-bound, no faster than {floor:,.2f} us"))
    return lines
