"""`gemmsweep init`: draft the sidecar of a kernel of your own."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from gemmsweep.cli.options import Command, existing
from gemmsweep.errors import UsageError


@click.command(cls=Command)
@click.argument("kernel", type=click.Path(path_type=Path), metavar="KERNEL.cu")
@click.option("--force", is_flag=True, help="Overwrite a sidecar that is there.")
def init(kernel: Path, force: bool) -> None:
    """Draft KERNEL.toml beside an untouched kernel: its name, parameters and arguments, as far as they can be guessed."""
    from gemmsweep.template.init import draft_sidecar

    text = draft_sidecar(existing(kernel))
    target = kernel.with_suffix(".toml")
    if os.path.lexists(target) and not force:
        raise UsageError(f"{target} is there already: edit it, or overwrite it with --force.")
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}.") from None
    named = shlex.quote(str(kernel))
    click.echo(f"{target} drafted: check the guesses in it, then gemmsweep run --template {named} --vary P", err=True)
