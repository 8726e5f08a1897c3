"""`gemmsweep export-best`: the best verified config per problem."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from gemmsweep.cli.options import database, db_option, filter_options, make_filter, require_results
from gemmsweep.errors import UsageError, counted
from gemmsweep.report import export


@click.command("export-best")
@click.option("--format", "format_", metavar="|".join(export.names()), help="Print it. Default: a table.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FOLDER",
    help="Write self-contained kernel sources and a launch table here.",
)  # fmt: skip
@filter_options
@db_option
def export_best(format_: str | None, out: Path | None, db: Path | None, **filters: Any) -> int:
    """Export the best verified config of each problem and device.

    Finals count: rounds run after selection, so a lucky figure cannot win. Of several the latest that decided something,
    so that a noisy hour does not undo what was certain; finals that left out the best so far replace it unless it is
    certainly faster.
    """
    from gemmsweep.cli.kernels import exported_kernel
    from gemmsweep.report.export import directory
    from gemmsweep.report.tables import print_best
    from gemmsweep.store import open_store

    if out is not None and format_ is not None:
        raise UsageError("--out writes a folder and --format prints: give one of them.")
    with open_store(database(db), readonly=True) as store:
        wanted = make_filter(**filters)
        best = list(store.best(wanted))
        require_results(bool(best), store, wanted, finals=True)
        if out is not None:
            _, refused = directory.write(best, out, lambda record: exported_kernel(store, record))
            click.echo(f"{counted(len(best) - len(refused), 'kernel')} and launch.json in {out}", err=True)
            for told in refused:
                click.echo(f"Left out: {told}", err=True)
            return int(bool(refused))
        if format_ is not None:
            export.write(format_, best, sys.stdout)
        else:
            print_best(best, sys.stdout)
    return 0
