"""stdout and stderr that may be closed, full or gone: no reader has a say in whether the work is done, or in how it ends."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from typing import Any

LOST: tuple[type[Exception], ...] = (OSError, ValueError)  # a full disk, a reader that has gone, a closed file


class Forgiving:
    """A text stream that loses what it cannot write, where the reason is among `lost`."""

    def __init__(self, stream: Any, lost: tuple[type[Exception], ...]) -> None:
        self._stream, self._lost = stream, lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except self._lost:
            self._silence()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except self._lost:
            self._silence()

    def _silence(self) -> None:
        silence(self._stream)


def silence(stream: Any) -> None:
    """What it still holds, and all that follows, goes nowhere: the interpreter's own flush at its end would complain."""
    try:
        number = stream.fileno()
    except LOST:  # it is closed, or no file: nothing to flush
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def prepare() -> None:
    """Streams for this process: closed ones swallow everything, stderr never fails, stdout not where its reader has gone."""
    for number in (0, 1, 2):  # or the next file opened would get the number, and all that is printed
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # like any other
    for name, number, lost in (("stdout", 1, (BrokenPipeError,)), ("stderr", 2, LOST)):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 gets ? for ×, not a traceback
        if not isinstance(stream, Forgiving):
            setattr(sys, name, Forgiving(stream, lost))
