"""`gemmsweep merge`: bring results home."""

from __future__ import annotations

from pathlib import Path

import click

from gemmsweep.cli.options import Command, database, db_option, existing
from gemmsweep.errors import UsageError


@click.command(cls=Command)
@click.argument("others", nargs=-1, type=click.Path(path_type=Path), metavar="OTHER.db…")
@click.option("--without-sources", is_flag=True, help="Leave kernel sources out.")
@click.option("--redact-host", is_flag=True, help="Leave host names out.")
@click.option(
    "--driver", nargs=3, type=click.Path(path_type=Path), metavar="%O %A %B",
    help="As git's merge driver: the union of A and B ends up in A.",
)  # fmt: skip
@db_option
def merge(
    others: tuple[Path, ...],
    without_sources: bool,
    redact_host: bool,
    driver: tuple[Path, Path, Path] | None,
    db: Path | None,
) -> None:
    """Add the sweeps of other results files to --db. Merging twice changes nothing."""
    from gemmsweep.store import merge as merge_files

    if driver and (others or db):
        raise UsageError("--driver names its files: leave out --db and what stands beside it.")
    target, sources = (driver[1], (driver[2],)) if driver else (database(db), others)
    if not sources:
        raise UsageError("no file to merge from: gemmsweep merge OTHER.db")
    counts = merge_files(
        target, [existing(path) for path in sources], without_sources=without_sources, redact_host=redact_host
    )
    click.echo(
        f"{target}: {counts.added} sweeps added, {counts.updated} updated, {counts.known} known already, {counts.runs} runs.",
        err=True,
    )
