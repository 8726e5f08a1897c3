"""`gemmsweep profile`: hardware counters of a stored run, through ncu."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmsweep.cli.options import Command, database, db_option, existing, make_filter, require_results

if TYPE_CHECKING:
    from gemmsweep.protocol import Counter
    from gemmsweep.store import Store, StoredSweep


@click.command(cls=Command)
@click.argument("run", metavar="RUN|best")
@click.option("--shape", metavar="MxNxK", help="With best: of this problem size.")
@click.option("--dtype", help="With best: of this dtype.")
@click.option("--layout", help="With best: of this layout.")
@click.option("--epilogue", help="With best: with this epilogue.")
@click.option("--template", "--kernel", "template", metavar="NAME", help="With best: only if it is of this template.")
@click.option("--import", "file", type=click.Path(path_type=Path), metavar="FILE",
              help="Read an ncu --csv output or .ncu-rep made elsewhere instead of running ncu.")  # fmt: skip
@click.option("--device", default="auto", show_default=True, metavar="auto|cuda:N|UUID", help="Where to run it.")
@db_option
def profile(run: str, file: Path | None, device: str, db: Path | None, **filters: Any) -> int:
    """Count what a run's kernel does: bank conflicts, spills, throughputs, tensor pipe, stall reasons.

    The stored source is built again and launched under ncu; clocks are left alone. The readings join the run's counters.
    Where ncu is missing or may not count, it says what to do, shows the counters there are, and exits 1.
    """
    from gemmsweep.counters import ncu
    from gemmsweep.report.figures import clean
    from gemmsweep.report.words import config_text, problem_text
    from gemmsweep.store import Filter, open_store

    path = database(db)
    with open_store(path, readonly=True) as store:
        run_id = chosen_run(store, run, filters)
        (sweep,) = store.stored_sweeps(Filter(run=run_id))
        label = next(name for name, known in sweep.run_ids.items() if known == run_id)
        counters, problem = read(file) if file is not None else count(store, sweep, run_id, device)
    if counters:
        with open_store(path) as store:  # a file that is only opened for writing is another one to git
            store.save_counters(sweep.run_keys[label], counters)
        click.echo(f"{len(counters)} counters of run {run_id[-8:]} ({label}) stored.", err=True)
    else:
        click.echo(problem or ncu.advice(""), err=True)
    with open_store(path, readonly=True) as store:
        detail = store.run_detail(run_id)
    click.echo(
        f"{run_id[-8:]} {clean(detail['template'])} {config_text(detail['config'])}, {problem_text(detail['problem'])}"
    )
    show(detail)
    return 0 if counters else 1


def chosen_run(store: Store, run: str, filters: dict[str, Any]) -> str:
    """The full id of RUN, or of the one best run the filters leave; raises UsageError where they leave several."""
    from gemmsweep.errors import UsageError
    from gemmsweep.report.figures import short_id
    from gemmsweep.report.words import problem_text

    if run != "best":
        if given := [f"--{name}" for name, value in filters.items() if value]:
            raise UsageError(f"{', '.join(given)} choose among the best, and a run is named: leave one of them out.")
        return str(store.config_run(run)["run_id"])
    shape = filters.pop("shape")
    wanted = make_filter(**filters, shape=(shape,) if shape else ())
    best = list(store.best(wanted))
    require_results(bool(best), store, wanted, finals=True)
    if len(best) > 1:
        listed = ", ".join(f"{short_id(b['run_id'])} {b['template']} {problem_text(b['problem'])}" for b in best[:5])
        more = ", …" if len(best) > 5 else ""
        raise UsageError(
            f"there are {len(best)} best runs ({listed}{more}): name one, or ask for its shape, dtype, layout, epilogue."
        )
    return str(best[0]["run_id"])


def read(file: Path) -> tuple[tuple[Counter, ...], str]:
    """Counters of a file, or why there are none."""
    from gemmsweep.counters import ncu

    try:
        counters = ncu.read_file(existing(file))
    except ImportError:
        return (), (
            f"{file} needs Python's ncu_report (in Nsight Compute's extras/python): put that folder on PYTHONPATH, or convert "
            f"it: ncu --import {shlex.quote(str(file))} --csv --page raw > counters.csv"
        )
    return counters, f"{file} holds no counters: make it with ncu --csv --page raw."


def count(store: Store, sweep: StoredSweep, run_id: str, device: str) -> tuple[tuple[Counter, ...], str]:
    """Counters of a fresh launch under ncu, or what to do where there are none."""
    from gemmsweep import replay
    from gemmsweep.build import build_one
    from gemmsweep.cli.kernels import stored_run
    from gemmsweep.counters import ncu
    from gemmsweep.device import resolve_device
    from gemmsweep.errors import NothingToShow
    from gemmsweep.model import Source

    detail = stored_run(store, run_id)
    if detail["rendered_source"] is None or detail["launch"] is None or not str(detail["build_arch"]).startswith("sm_"):
        raise NothingToShow("that run is no CUDA kernel with a source on record: ncu has nothing to launch.")
    tool = ncu.find()
    if tool is None:
        return (), ncu.MISSING
    spec = resolve_device(device)
    if spec.kind != "cuda":
        return (), "no GPU here: run it where there is one, or import a file: gemmsweep profile RUN --import FILE."
    launch = replay.launch_of(detail["launch"])
    names = tuple(dict.fromkeys(step.kernel for step in launch.steps))
    options = tuple(option for option in detail["build_options"] or () if option.startswith("-D"))
    build = build_one(Source("cuda", detail["rendered_source"], names, options=options), detail["build_arch"])
    if not build.ok:
        raise NothingToShow(f"the stored source no longer builds: {build.reason}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay.json"
        replay.write_spec(path, spec, sweep.start.problem, sweep.start.inputs, build, launch)
        program = [sys.executable, "-m", "gemmsweep.replay", str(path)]
        symbols = [build.symbols.get(step.kernel, step.kernel) for step in launch.steps]
        _, output = ncu.run(tool, program, symbols, hot=sweep.start.l2 == "hot")
    counters = ncu.parse(output)
    return counters, "" if counters else ncu.advice(output)


def show(detail: dict[str, Any]) -> None:
    """Every counter on record of the run."""
    from gemmsweep.cli.offline import draw
    from gemmsweep.report.figures import significant
    from gemmsweep.report.grid import Column, Row

    columns = [Column("counter"), Column("value", right=True), Column("unit"), Column("basis")]
    rows = [
        Row(
            [name, significant(one["value"]) if one["value"] is not None else "not measured", one["unit"], one["basis"]]
        )
        for name, one in detail["counters"].items()
    ]
    draw(columns, rows)
