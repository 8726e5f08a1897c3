"""Options that several commands share, and what they turn into."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gemmsweep.epilogue import in_words
from gemmsweep.errors import NothingToShow, UsageError

if TYPE_CHECKING:
    from gemmsweep.store import Filter, Store

F = TypeVar("F", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A range that not-a-number is outside of: every comparison with it is false."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if found != found:
            self.fail("'nan' is not a number.", param, ctx)
        return found


class Command(click.Command):
    """Refuses a second value for an option that takes one: click would drop the first in silence."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        *_, given = self.make_parser(ctx).parse_args(list(args))
        for option in given:
            single = isinstance(option, click.Option) and not (option.multiple or option.is_flag or option.hidden)
            if single and given.count(option) > 1:
                raise UsageError(
                    f"{option.opts[0]} takes one value and has {given.count(option)}: keep one, and ask again for the others."
                )
        return super().parse_args(ctx, args)


def stacked(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several option decorators as one, shown in this order."""

    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


db_option = click.option(
    "--db", type=click.Path(path_type=Path), help="Results file. Default: $GEMMSWEEP_DB, else ./results.db."
)
problem_options = stacked(
    click.option("--shape", "shapes", multiple=True, metavar="MxNxK", help="Problem size; repeatable."),
    click.option(
        "--shapes",
        "shapes_file",
        type=click.Path(path_type=Path),
        help="CSV of m,n,k[,dtype,layout,count]: a header with these in any order, or none and this order; a line per "
        "problem; count is not used.",
    ),
    click.option("--dtype", help="fp32, tf32, fp16 or bf16 (float, half, bfloat16, … work too)."),
    click.option("--layout", help="nn, or nt: B stored (n, k) as in F.linear."),
    click.option(
        "--epilogue",
        help=f"none, or operations joined by +, as in bias+leaky_relu(0.1): {in_words()}.",
    ),
    click.option("--beta", type=float, default=0.0, help="C = AB + beta*C.", show_default=True),
    click.option("--lda", type=click.IntRange(1, 2**31), help="Leading dimension of A, elements. Default: tight."),
    click.option("--ldb", type=click.IntRange(1, 2**31), help="Leading dimension of B."),
    click.option("--ldd", type=click.IntRange(1, 2**31), help="Leading dimension of C."),
)


filter_options = stacked(
    click.option("--last", is_flag=True, help="Only the latest command's sweeps, selftests aside."),
    click.option("--sweep", metavar="ID", help="One sweep, by a part of its id."),
    click.option("--experiment", metavar="NAME", help="Only sweeps of this experiment."),
    click.option("--template", "--kernel", "template", metavar="NAME", help="Only runs of this template."),
    click.option("--shape", multiple=True, metavar="MxNxK", help="Only this problem size; repeatable, any of them."),
    click.option("--dtype", help="Only this dtype."),
    click.option("--layout", help="Only this layout."),
    click.option("--epilogue", help="Only this epilogue, as in bias+relu; none: plain products."),
    click.option("--device", metavar="TEXT", help="Only devices whose name or id contains this."),
)


def database(db: Path | None) -> Path:
    """--db, else $GEMMSWEEP_DB, else ./results.db."""
    return db or Path(os.environ.get("GEMMSWEEP_DB") or "results.db")


def command_line() -> str:
    """The command as typed, to repeat it."""
    return shlex.join(["gemmsweep", *click.get_current_context().find_root().obj])


def make_filter(*, shape: Sequence[str], **given: Any) -> Filter:
    """Filter options → Filter; none of `shape` asks for any. Raises UsageError for a part of a problem that cannot be."""
    from gemmsweep.epilogue import parse_epilogue
    from gemmsweep.experiment import parse_dtype, parse_layout, parse_shape
    from gemmsweep.shapes import size
    from gemmsweep.store import Filter

    shapes = tuple(size(parse_shape(text)) for text in shape)
    if given.get("dtype"):
        given["dtype"] = parse_dtype(given["dtype"])
    if given.get("layout"):
        given["layout"] = parse_layout(given["layout"])
    if given.get("epilogue"):
        given["epilogue"] = str(parse_epilogue(given["epilogue"]))
    return Filter(shape=shapes or None, **given)


def require_results(found: bool, store: Store, wanted: Filter, *, finals: bool = False) -> None:
    """Raises NothingToShow with the filter that removed everything."""
    if not found:
        raise NothingToShow(store.why_empty(wanted, finals=finals))


def existing(path: Path) -> Path:
    """Raises UsageError where a file to read is not there."""
    if not path.exists():
        raise UsageError(f"no file {str(path)!r}: check the path.")
    return path
