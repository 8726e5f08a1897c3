"""stdout and stderr that may be closed, full or gone: what reads our words has no say in whether the measuring goes on."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterable
from typing import Any


class Forgiving:
    """A text stream whose writes cannot fail: words that nobody can read any more are lost."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # a full disk, a reader that has gone, a closed file
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def prepare() -> None:
    """Streams for this process: closed ones are there and swallow everything, stderr never raises."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 gets ? for ×, not a traceback
    if not isinstance(sys.stderr, Forgiving):
        sys.stderr = Forgiving(sys.stderr)


def silence_stdout() -> None:
    """The reader of our output has seen enough; the interpreter's own flush must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
