"""Progress on stderr: a bar on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import io

import pytest

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
        progress.race_round(8, look=10, most=160)
        progress.expect(12.0)
        progress.race_round(9, look=10, most=160)
        progress.stage("counters")
    return stream.getvalue()


def test_a_pipe_gets_a_line_per_stage() -> None:
    assert drive(io.StringIO()) == "start: BK=16?\nbuild 4 configs\nrace 160 rounds at most\ncounters\n"


def test_a_terminal_sees_stage_look_and_time_left() -> None:
    text = drive(Terminal())
    assert "\x1b[?25h" in text  # the cursor is back
    assert "start: BK=16?" in text


def test_time_left_comes_from_the_pace_and_then_from_the_estimate() -> None:
    now = [0.0]
    progress = Progress(Terminal(), clock=lambda: now[0])
    with progress:
        progress.stage("race", 160)
        now[0] = 2.0
        progress.race_round(8, look=10, most=160)
        progress.pause()
        assert progress._bars is None
        progress.stage("race", 160)
        now[0] = 4.0
        progress.race_round(8, look=10, most=160)
        [task] = progress._bars.tasks if progress._bars else []
        assert (task.description, task.fields["left"]) == ("race 8/160 (look at 10)", "about 38 s left")
        progress.expect(12.0)
        progress.race_round(9, look=10, most=160)
        assert task.fields["left"] == "about 12 s left"
        now[0] = 20.0
        progress.race_round(10, look=20, most=160)
        assert task.fields["left"] == "a little longer"


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "[38;" not in drive(Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in drive(Terminal())
