"""Does a drafted sidecar hold? Its defaults are moved, among the values it declares, until no rule is broken."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gemmsweep.errors import GemmsweepError
from gemmsweep.model import Problem
from gemmsweep.template.declaration import Template
from gemmsweep.template.reading import read_declarations
from gemmsweep.template.resolve import resolve
from gemmsweep.template.rules import broken_rules

MOST_TRIALS = 3000
LEAST_SIDE = 1024


def defaults_that_hold(
    path: Path,
    text: str,
    draft: Callable[[dict[str, int]], str],
    values: Mapping[str, Sequence[int]],
    wanted: Mapping[str, int],
) -> tuple[dict[str, int], str]:
    """The defaults nearest to those wanted with which `draft` breaks no rule at a shape of whole tiles.

    Smaller values come before larger ones. Where there are none: those wanted, and the first rule they break.
    """
    template = _template(path, text, draft(dict(wanted)))
    first = ""
    for config in itertools.islice(_nearest(values, wanted), MOST_TRIALS):
        broken = _broken(template, config)
        if not broken:
            return config, ""
        first = first or broken
    return dict(wanted), first


def _nearest(values: Mapping[str, Sequence[int]], wanted: Mapping[str, int]) -> list[dict[str, int]]:
    """Every config of the declared values, those that only shrink first, then the fewest steps away."""
    if math.prod(map(len, values.values())) > 100_000:
        return [dict(wanted)]
    ranks = [
        [(declared.index(value) - declared.index(wanted[name]), value) for value in declared]
        for name, declared in values.items()
    ]
    choices = sorted(
        itertools.product(*ranks),
        key=lambda choice: (any(step > 0 for step, _ in choice), sum(abs(step) for step, _ in choice)),
    )
    return [dict(zip(values, (value for _, value in choice), strict=True)) for choice in choices]


def _template(path: Path, text: str, sidecar: str) -> Template:
    return Template(
        name=path.stem,
        path=path,
        sidecar=path.with_suffix(".toml"),
        header_text=sidecar,
        body=text,
        body_line=1,
        text=text,
        headers={},
        source_sha256="",
        **read_declarations(path.with_suffix(".toml").name, tomllib.loads(sidecar)),
    )


def _broken(template: Template, config: Mapping[str, int]) -> str:
    """The first rule that a config breaks on a square problem of whole tiles; "" where it breaks none."""
    side = math.lcm(*(max(1, value) for value in config.values()))
    side *= -(-LEAST_SIDE // side)
    try:
        problem = Problem.of(side, side, side, template.dtypes[0], template.layouts[0])
        broken = broken_rules(template, resolve(template, problem, {}, config))
    except GemmsweepError as error:
        return str(error)
    return broken[0] if broken else ""
