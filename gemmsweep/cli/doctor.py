"""`gemmsweep doctor`: what this machine can do, and what to install."""

from __future__ import annotations

import click

from gemmsweep.cli.options import Command


@click.command(cls=Command)
def doctor() -> int:
    """Tell what was found (driver, GPUs, CuPy, NVRTC, headers, compilers) and what to install for the rest."""
    from gemmsweep import build
    from gemmsweep.cli.offline import draw
    from gemmsweep.device import describe as describe_devices
    from gemmsweep.report.grid import Column, Row

    rows = [*describe_devices(), *build.describe()]
    draw(
        [Column(""), Column("found"), Column("detail", wraps=True)],
        [Row([name, "yes" if found else "no", detail]) for name, found, detail in rows],
    )
    return 0
