"""`gemmsweep report`: what is on record."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmsweep.cli.options import Command, database, db_option, filter_options, make_filter, require_results
from gemmsweep.report import formats

if TYPE_CHECKING:
    from gemmsweep.store import Filter, Store


@click.command(cls=Command)
@click.option(
    "--format", "format_", default="table", show_default=True, metavar="|".join(formats.names()), help="How to print."
)
@click.option("--columns", metavar="A,B,…", help="Dotted paths: run_id,config.BK,median_us,references.cublas.ratio")
@click.option(
    "--claims", is_flag=True, help="The experiments' claims, each beside what was measured: table, json or md."
)
@click.option(
    "--families",
    is_flag=True,
    help="Who is fastest over M x (N, K), a family or the vendor, and where that changes: table or md.",
)
@click.option("--selftest", is_flag=True, help="What the selftests on record say of each device class: table or md.")
@click.option("--status", metavar="STATUS", help="Only runs that ended so: ok, compile, incorrect, …")
@filter_options
@db_option
def report(
    format_: str, columns: str | None, claims: bool, families: bool, selftest: bool, db: Path | None, **filters: Any
) -> None:
    """Show sweeps and runs on record: as a table the latest command's, else all; or what the filters select.

    The table of a command ends with the best on record of each problem that it raced; with --columns and in other
    formats it does not (export-best has those). `report --last --format md` is for pasting sweeps into a chat.
    """
    from gemmsweep.store import open_store

    one_of(families=families, selftest=selftest, claims=claims)
    if families:
        report_families(format_, columns, database(db), filters)
        return
    if selftest:
        report_selftest(format_, columns, database(db), filters)
        return
    if claims:
        report_claims(format_, columns, database(db), filters)
        return
    if format_ == "table" and not columns and not any(filters.values()):
        filters["last"] = True
    with open_store(database(db), readonly=True) as store:
        wanted = make_filter(**filters)
        require_results(store.any_runs(wanted), store, wanted)
        width = shutil.get_terminal_size((80, 24)).columns
        chosen = chosen_columns(columns) if columns else None
        # JSON comes from SQLite as text: decoding and encoding it again would triple the time.
        runs = store.run_lines(wanted) if format_ == "json" else store.runs(wanted)
        formats.write(format_, store.sweeps(wanted), runs, sys.stdout, chosen, width)
        without = missing_shapes(store, wanted)
        if without:
            click.echo(f"No runs of {', '.join(without)} match.", err=True)
        if format_ == "table" and not columns and wanted.last:
            print_closing(store, wanted, width)
        if wanted.last and passed_over_selftest(store, wanted):
            click.echo("The latest command on record is a selftest: gemmsweep report --selftest", err=True)


def chosen_columns(text: str) -> list[str]:
    """Raises UsageError where none is named."""
    from gemmsweep.errors import UsageError

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--columns {text!r} names none: as in --columns template,median_us.")
    return names


def missing_shapes(store: Store, wanted: Filter) -> list[str]:
    """Sizes asked for that what is shown has no runs of. With --last that is one command's, whatever others have of them."""
    from gemmsweep.shapes import size

    asked = dict.fromkeys(wanted.shape or ())
    if not (asked and wanted.last):
        return [one for one in asked if not store.any_runs(replace(wanted, shape=(one,)))]
    problems = [run["problem"] for run in store.runs(wanted)]
    shown = {size((p["m"], p["n"], p["k"])) for p in problems}
    return [one for one in asked if one not in shown]


def print_closing(store: Store, wanted: Filter, width: int) -> None:
    """A row per problem below the sweeps of a command: after a dozen of them nobody looks for its finals.

    The best on record, whichever command found it: this one may have raced a family that others beat.
    """
    from gemmsweep.report.tables import print_best
    from gemmsweep.report.words import machine

    raced = [(run["problem"], machine(run["device"])) for run in store.runs(wanted)]
    best = [one for one in store.best() if (one["problem"], machine(one["device"])) in raced]
    if best:
        click.echo("\nThe best on record of each problem (all: gemmsweep export-best)")
        print_best(best, sys.stdout, width)


def passed_over_selftest(store: Store, wanted: Filter) -> bool:
    """Whether a later selftest is not what is shown."""
    return store.newest_kind(replace(wanted, last=False)) == "selftest" != store.newest_kind(wanted)


def one_of(**asked: bool) -> None:
    """Raises UsageError where more than one of these options is given."""
    from gemmsweep.errors import UsageError

    given = [f"--{name}" for name, wanted in asked.items() if wanted]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are reports of their own: ask for one at a time.")


def require_plain(why: str, format_: str, columns: str | None, offered: tuple[str, ...]) -> None:
    """Raises UsageError for columns, which cannot be chosen because of `why`, and for a format there is not."""
    from gemmsweep.errors import UsageError, choices

    if columns:
        raise UsageError(f"{why}: leave out --columns.")
    if format_ not in offered:
        raise UsageError(choices("format", format_, offered))


def report_families(format_: str, columns: str | None, path: Path, filters: dict[str, Any]) -> None:
    """`--families`: charts of the best per problem that the filters leave. Raises UsageError for another format."""
    from gemmsweep.errors import NothingToShow
    from gemmsweep.report import families
    from gemmsweep.store import open_store

    require_plain("charts of families have no columns", format_, columns, families.FORMATS)
    with open_store(path, readonly=True) as store:
        wanted = make_filter(**filters)
        require_results(store.any_runs(wanted), store, wanted)
        charts = families.charts(store.best(wanted))
    if not charts:
        which = "of what the filters leave, " if any(filters.values()) else ""
        raise NothingToShow(f"{which}no N and K have finals at two or more M. Race some: gemmsweep tune --shapes FILE.")
    families.write(format_, charts, sys.stdout, shutil.get_terminal_size((80, 24)).columns)


def report_selftest(format_: str, columns: str | None, path: Path, filters: dict[str, Any]) -> None:
    """`--selftest`: tables of the selftests that the filters leave. Raises UsageError for another format."""
    from gemmsweep.errors import NothingToShow
    from gemmsweep.selftest import collect, tables
    from gemmsweep.store import open_store

    require_plain("the selftest's tables have fixed columns", format_, columns, tables.FORMATS)
    with open_store(path, readonly=True) as store:
        records = collect(store, make_filter(**filters, kind="selftest"))
    if not records:
        which = "that the filters leave" if any(filters.values()) else "on record"
        raise NothingToShow(f"there is no selftest {which}. Race some: gemmsweep selftest.")
    tables.write(format_, records, sys.stdout, shutil.get_terminal_size((80, 24)).columns)


def report_claims(format_: str, columns: str | None, path: Path, filters: dict[str, Any]) -> None:
    """`--claims`: what the filters leave is the evidence. Raises UsageError for another format."""
    from gemmsweep.experiment import with_claims
    from gemmsweep.report import claims
    from gemmsweep.store import open_store

    require_plain("claims have fixed columns", format_, columns, claims.FORMATS)
    experiments = with_claims(filters["experiment"])
    with open_store(path, readonly=True) as store:
        chapters = claims.collect(store, make_filter(**filters), experiments)
    claims.write(format_, chapters, sys.stdout, shutil.get_terminal_size((80, 24)).columns)
