"""Every error a user can meet. A message states the fact, then the way out, on one line.

GemmsweepError
├── UsageError          exit 2: an option or argument that cannot be meant
│   ├── TemplateError   exit 2: a template header or body that cannot be used
│   └── ProblemError    exit 2: a shape, dtype or layout that cannot be run here
├── DatabaseError       exit 2: a results file that cannot be read or written
├── EnvironmentProblem  exit 2: no device, driver, compiler or package to do it with
├── NotIdle             exit 1: somebody else uses the device
└── NothingToShow       exit 1: it ran, but there is no verified result
"""

from __future__ import annotations

from collections.abc import Iterable

MOST_COMPARED = 100  # characters of a name that may be nonsense of any length


class GemmsweepError(Exception):
    """Base of all errors meant for the user; `cli/` prints the message and exits with `exit_code`."""

    exit_code = 2


class UsageError(GemmsweepError):
    """An option or argument that cannot be meant."""


class TemplateError(UsageError):
    """A template header, body or sidecar that cannot be used."""


class ProblemError(UsageError):
    """A shape, dtype or layout that cannot be run here."""


class DatabaseError(GemmsweepError):
    """A results file that cannot be opened, read or written."""


class EnvironmentProblem(GemmsweepError):
    """No device, driver, compiler or package to do the job with."""


class UnderWay(EnvironmentProblem):
    """Another process races the same into the same results file."""


class NotIdle(GemmsweepError):
    """The device has other load, and an idle one was asked for."""

    exit_code = 1


class NothingToShow(GemmsweepError):
    """The command ran, but no verified result matches."""

    exit_code = 1


def choices(kind: str, given: str, allowed: list[str] | tuple[str, ...]) -> str:
    """The message for a name that is not one of a few: `unknown dtype 'fp17'. Did you mean 'fp16'? Choose one of: fp16, bf16.`"""
    return f"unknown {kind} {given!r}.{did_you_mean(given, allowed)} Choose one of: {', '.join(allowed)}."


def counted(count: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`: in messages as in errors."""
    return f"{count} {noun}{'s' if count != 1 else ''}"


def same_command(*, remeasure: bool) -> str:
    """The words that go on with what a command left: with --remeasure it would begin again."""
    return "the same command without --remeasure" if remeasure else "the same command"


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """` Did you mean 'wgmma'?` for `wgma`; empty where no name is like it."""
    from difflib import get_close_matches

    names = {name.lower(): name for name in allowed}
    near = get_close_matches(given[:MOST_COMPARED].lower(), names, n=1)
    return f" Did you mean {names[near[0]]!r}?" if near else ""
