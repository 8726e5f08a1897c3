"""The `gemmsweep` command: its subcommands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import errno
import signal
import sys
import threading
from collections.abc import Sequence
from itertools import pairwise

import click

from gemmsweep import __version__
from gemmsweep.cli import doctor, export_best, init, merge, profile, report, run, selftest, show, streams, tune, verify
from gemmsweep.errors import GemmsweepError, UsageError, same_command
from gemmsweep.protocol import DeviceFailure

INTERRUPTED = 130
TERMINATED = 143
RESUMING = ("run", "tune", "selftest")  # commands that go on where they left off


class Terminated(KeyboardInterrupt):
    """SIGTERM, as a batch system sends it before SIGKILL: ends like Ctrl-C, with the exit code of its own."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gemmsweep")
def cli() -> None:
    """Race one tile parameter of a GEMM kernel at a time, and write every run down.

    Every value is checked against an fp64 oracle, then raced in the same minutes against the others and the
    vendor library. Results go to a SQLite file: --db, else $GEMMSWEEP_DB, else ./results.db.
    """


for command in (
    run.run,
    tune.tune,
    report.report,
    export_best.export_best,
    show.show,
    init.init,
    merge.merge,
    profile.profile,
    selftest.selftest,
    verify.verify,
    doctor.doctor,
):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point.

    Exit codes: 0 done, 1 no verified result or a device that is not idle, 2 usage or bad input, 130 interrupted, 143
    terminated.
    """
    streams.prepare()
    signals = threading.current_thread() is threading.main_thread()  # they can be handled nowhere else
    if signals:
        signal.signal(signal.SIGTERM, _terminate)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        require_values(given)
        # The words as typed travel along (obj): they are part of every stored sweep.
        code = cli.main(args=given, prog_name="gemmsweep", standalone_mode=False, obj=given)
        sys.stdout.flush()
    except GemmsweepError as error:
        click.echo(f"Error: {one_line(str(error))}", err=True)
        code = error.exit_code
    except click.exceptions.NoArgsIsHelpError as bare:
        assert bare.ctx is not None
        click.echo(bare.ctx.get_help(), err=True)
        code = bare.exit_code
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        way_out = f" See: {context.command_path} --help" if context is not None else ""
        click.echo(f"Error: {one_line(error.format_message())}{way_out}", err=True)
        code = error.exit_code if isinstance(error, click.UsageError) else 2
    except (KeyboardInterrupt, click.Abort) as stop:
        for number in (signal.SIGINT, signal.SIGTERM) if signals and arguments is None else ():
            signal.signal(number, signal.SIG_IGN)  # a second one would only break what Python does at its exit
        how = same_command(remeasure="--remeasure" in given)
        stored = f" Everything measured is stored; {how} resumes." if resumes(given) else ""
        click.echo(f"Interrupted.{stored}", err=True)
        terminated = isinstance(stop, Terminated) or isinstance(stop.__cause__, Terminated)  # click wraps it
        code = TERMINATED if terminated else INTERRUPTED
    except DeviceFailure as failure:
        click.echo(f"Error: the device failed: {one_line(failure.reason)}. See: gemmsweep doctor", err=True)
        code = 2
    except OSError as error:
        where = f" {error.filename!r}" if error.filename else ""
        files = error.errno in (errno.EMFILE, errno.ENFILE)
        way_out = "allow more, as in ulimit -n 1024." if files else "check the path and its disk."
        click.echo(f"Error: {one_line(f'{error.strerror or error}{where}')}: {way_out}", err=True)
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


def _terminate(number: int, frame: object) -> None:
    raise Terminated


def require_values(given: Sequence[str]) -> None:
    """Raises UsageError for an option with an empty value: somebody's `--template "$KERNEL"`, not one left out."""
    for word, following in pairwise([*given, "end"]):
        option, equals, value = word.partition("=")
        if option.startswith("--") and not (value if equals else following):
            raise UsageError(f"{option} has an empty value: give it one, or leave {option} out.")


def resumes(given: Sequence[str]) -> bool:
    """Whether the same words go on where a command broke off: one that measures."""
    return bool(given) and given[0] in RESUMING and not {"--dry-run", "--compile-only"} & set(given)


def one_line(text: str) -> str:
    """Without line breaks and control characters, which a name from a user's file may hold."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
