"""Progress on stderr: a bar on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gemmsweep import sweep
from gemmsweep.entry import Unwatched
from gemmsweep.report.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def drive(stream: io.StringIO) -> str:
    now = [100.0]
    with Progress(stream, clock=lambda: now[0]) as progress:
        progress.message("start: BK=16\x07")
        progress.stage("build", 4, "configs")
        now[0] = 101.0
        progress.update(2, "configs")
        progress.stage("race", 160, "rounds at most")
        now[0] = 103.0
        progress.update(8, "round 8")
        progress.expect(12.0)
        progress.update(9, "round 9")
        progress.stage("counters")
    return stream.getvalue()


def test_a_pipe_gets_a_line_per_stage() -> None:
    assert drive(io.StringIO()) == "start: BK=16?\nbuild 4 configs\nrace 160 rounds at most\ncounters\n"


def test_a_terminal_gets_a_bar_that_vanishes() -> None:
    text = drive(Terminal())
    assert "\x1b[?25h" in text  # the cursor is back
    assert "start: BK=16?" in text


def test_time_left_comes_from_the_pace_and_then_from_the_estimate() -> None:
    now = [0.0]
    progress = Progress(Terminal(), clock=lambda: now[0])
    with progress:
        progress.stage("race", 160)
        now[0] = 2.0
        progress.update(8, "round 8")
        progress.pause()
        assert progress._bars is None
        progress.stage("race", 160)
        now[0] = 4.0
        progress.update(8, "round 8")
        [task] = progress._bars.tasks if progress._bars else []
        assert (task.description, task.fields["left"]) == ("race 8/160 round 8", "about 38 s left")
        progress.expect(12.0)
        progress.update(9, "round 9")
        assert task.fields["left"] == "about 12 s left"
        now[0] = 20.0
        progress.update(10, "round 10")
        assert task.fields["left"] == "a little longer"


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "[38;" not in drive(Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in drive(Terminal())


def test_a_long_note_leaves_the_time_left_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out, now = Terminal(), [0.0]
    with Progress(out, clock=lambda: now[0]) as progress:
        progress.expect(3599.0)
        progress.stage("cpu_blocked: building and checking", 38)
        progress.update(31, "259x131x197 fp32 nn THREADS=2")
        progress._bars.refresh() if progress._bars else None
    last = out.getvalue().split("\r")[-3].split("\n")[-1]
    assert "building and checking 31" in last
    assert "about 59 min 59 s left" in last


def test_only_one_stage_is_shown_while_builds_run_beside_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []
    ready = threading.Event()

    class Watch(Unwatched):
        def stage(self, name: str, total: int) -> None:
            calls.append((name, threading.current_thread().name))
            if name == "build":
                ready.set()

    def compile_all(_: object, device: object, watch: Unwatched, *args: object, **named: object) -> None:
        watch.stage("build", 1)
        assert ready.wait(10)

    monkeypatch.setattr(sweep, "compile_all", compile_all)
    monkeypatch.setattr(sweep, "ready_problem", lambda session: session.watch.stage("prepare", 1))
    session: Any = SimpleNamespace(
        worker=SimpleNamespace(info=None), request=SimpleNamespace(compile_limit_s=1.0), watch=Watch(), builders=None
    )
    sweep.build_beside(session, [])
    assert calls == [("prepare", "MainThread"), ("build", "MainThread")]
