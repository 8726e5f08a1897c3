"""`gemmsweep export-best`: the best verified config per problem."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmsweep.cli.options import Command, database, db_option, filter_options, make_filter, require_results
from gemmsweep.errors import NothingToShow, UsageError, counted
from gemmsweep.report import export

if TYPE_CHECKING:
    from gemmsweep.report.figures import Record
    from gemmsweep.store import Store


@click.command("export-best", cls=Command)
@click.option("--format", "format_", metavar="|".join(export.names()), help="Print it. Default: a table.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FOLDER",
    help="Write self-contained kernel sources and a launch table here.",
)  # fmt: skip
@click.option(
    "--shapes", "shapes_file", type=click.Path(path_type=Path), metavar="FILE",
    help="Only the problems of this CSV, as tune takes it; a line without dtype or layout means any.",
)  # fmt: skip
@filter_options
@db_option
def export_best(
    format_: str | None,
    out: Path | None,
    shapes_file: Path | None,
    db: Path | None,
    shape: Sequence[str],
    **filters: Any,
) -> int:
    """Export the best verified config of each problem and device.

    Finals count: rounds run after selection, so a lucky figure cannot win. Of several the latest that decided something,
    so that a noisy hour does not undo what was certain; finals that left out the best so far replace it unless it is
    certainly faster, and what decided nothing does where it is certainly faster, or the kernel has changed (docs/measuring.md).

    Exit code 1: a problem of --shapes or --shape has none, or a kernel's source is not to be had. They are named, and the
    others are exported.
    """
    from gemmsweep.cli import listed
    from gemmsweep.shapes import size
    from gemmsweep.store import Filter, open_store

    if out is not None and format_ is not None:
        raise UsageError("--out writes a folder and --format prints: give one of them.")
    with open_store(database(db), readonly=True) as store:
        named = listed.read_listed(shape, shapes_file)
        wanted = make_filter(shape=[size(sizes) for sizes, _, _ in named], **filters)
        asked = listed.passing(named, wanted)
        best, missing = listed.chosen(store.best(wanted), asked)
        wider = Filter(shape=wanted.shape, dtype=wanted.dtype, layout=wanted.layout, epilogue=wanted.epilogue)
        nowhere = listed.chosen(store.best(wider), missing)[1] if missing else []
        barred = [one for one in missing if one not in nowhere]
        lacking = listed.lacking(missing, barred, asked, shapes_file, wanted) if missing else None
        if lacking and shapes_file and not best:
            others = replace(wanted, shape=None)  # of which one may name what is not on record at all
            require_results(any(True for _ in store.best(others)), store, others, finals=True)
            raise NothingToShow(lacking)
        require_results(bool(best), store, wanted, finals=True)
        complete = write_folder(store, best, out) if out is not None else print_out(best, format_)
    if lacking:
        click.echo(f"Left out: {lacking}", err=True)
    return int(not complete or bool(lacking))


def write_folder(store: Store, best: Sequence[Record], out: Path) -> bool:
    """Kernels and launch.json; says what has no source, and returns whether all had one."""
    from gemmsweep.cli.kernels import exported_kernel
    from gemmsweep.report.export import directory

    _, gone, refused = directory.write(best, out, lambda record: exported_kernel(store, record))
    removed = f"; {counted(gone, 'kernel')} of the export before it removed" if gone else ""
    click.echo(f"{counted(len(best) - len(refused), 'kernel')} and launch.json in {out}{removed}", err=True)
    for told in refused:
        click.echo(f"Left out: {told}", err=True)
    return not refused


def print_out(best: Sequence[Record], format_: str | None) -> bool:
    """A table, or the text format asked for; there is nothing that it could lack."""
    from gemmsweep.report.tables import print_best

    if format_ is not None:
        export.write(format_, best, sys.stdout)
    else:
        print_best(best, sys.stdout)
    return True
