"""Live progress on stderr: the stage, how far it is, and the time left. In a pipe, one line per stage."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from gemmsweep.report.figures import clean, duration
from gemmsweep.report.grid import shorten

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars

BAR = 16  # cells
LEFT = 24  # of the time left, and between the three
NARROWEST = 20


class Progress:
    """Use as a context manager; call `stage`, then `update` as it goes. Nothing here writes to stdout.

    On a terminal the stage is a bar that vanishes at the end (no colours under NO_COLOR); elsewhere `stage` and
    `message` print a plain line each and `update` prints nothing.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console

        self._console: Console = Console(
            file=stream or sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True
        )
        self._clock = clock
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._bars: Bars | None = None
        self._ends_at_s: float | None = None
        self._stage_began_s = clock()
        self._total: int | None = None
        self._name = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def pause(self) -> None:
        """Take the bar away, so that others can print; the next `stage` brings it back."""
        if self._bars:
            self._bars.stop()
            self._bars = None

    def expect(self, seconds: float) -> None:
        """The whole command is estimated to end in `seconds` from now; the time left counts down from there."""
        self._ends_at_s = self._clock() + seconds

    def message(self, text: str) -> None:
        """A line that stays, above the bar."""
        self._console.print(clean(text))

    def stage(self, name: str, total: int | None = None, note: str = "") -> None:
        """A stage begins (build, check, race, counters) of `total` steps, or of unknown length."""
        self._name, self._total, self._stage_began_s = clean(name), total, self._clock()
        if not self._live:
            self.message(" ".join(part for part in (name, "" if total is None else str(total), note) if part))
            return
        self._bars = self._bars or self._start()
        for task in self._bars.task_ids:
            self._bars.remove_task(task)
        self._bars.add_task(self._described(0, note), total=total, left=self._left(0))

    def _start(self) -> Bars:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=BAR), TextColumn("{task.fields[left]}"))
        bars = Bars(*columns, console=self._console, transient=True)
        bars.start()
        return bars

    def update(self, done: int, note: str = "") -> None:
        """`done` steps of the stage are finished; `note` says which one is next, or how it stands."""
        if self._bars and self._bars.task_ids:
            description, left = self._described(done, note), self._left(done)
            self._bars.update(self._bars.task_ids[-1], completed=done, description=description, left=left)

    def _described(self, done: int, note: str) -> str:
        count = "" if self._total is None else f"{done}/{self._total}"
        text = " ".join(part for part in (self._name, count, clean(note)) if part)
        return shorten(text, max(self._console.width - BAR - LEFT, NARROWEST))

    def _left(self, done: int) -> str:
        """Time left of the command where it was estimated, else of the stage at its pace so far."""
        now = self._clock()
        if self._ends_at_s is not None:
            left = self._ends_at_s - now
            return f"about {duration(left)} left" if left > 0 else "a little longer"
        if not done or not self._total:
            return ""
        return f"about {duration((now - self._stage_began_s) / done * (self._total - done))} left"
