"""Output that nobody can read any more: what was asked for is done all the same, and the exit code tells of it alone."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from screen import Run

from gemmsweep.cli.main import cli
from gemmsweep.cli.streams import LOST, Forgiving
from gemmsweep.store import open_store

pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`line` in a shell, in which "$@" is the command."""
    command = [sys.executable, "-m", "gemmsweep", *arguments]
    return subprocess.run(
        ["bash", "-c", line, "bash", *command], capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize("line", [
    '"$@" >&-', '"$@" 2>&-', '"$@" >&- 2>&-', '"$@" 2>/dev/full', '"$@" | true; exit ${PIPESTATUS[0]}',
    '"$@" 2>&1 | true; exit ${PIPESTATUS[0]}', '"$@" <&- 2>&-', '"$@" <&- >&- 2>&-',
])  # fmt: skip
def test_a_sweep_does_not_need_a_reader(scripted: Callable[[str], str], tmp_path: Path, line: str) -> None:
    device, path = scripted('[[rule]]\nmatch = ""\nnoise_pct = 0.1\n'), tmp_path / "results.db"
    ran = shell(line, "run", "--template", "naive", "--shape", "48x32x24", "--vary", "UNROLL=1,2", "--device", device,
                "--db", str(path))  # fmt: skip
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 0
    with open_store(path, readonly=True) as store:
        assert [sweep["verdict"] is not None for sweep in store.sweeps()] == [True, True]


def test_a_table_lost_on_a_full_disk_is_told_once_all_is_measured(
    scripted: Callable[[str], str], tmp_path: Path
) -> None:
    device, path = scripted('[[rule]]\nmatch = ""\nnoise_pct = 0.1\n'), tmp_path / "results.db"
    asked = ("run", "--template", "naive", "--shape", "48x32x24", "--vary", "UNROLL=1,2", "--device", device)
    for _ in range(2):  # measured, then on record
        ran = shell('"$@" >/dev/full', *asked, "--db", str(path))
        assert ran.returncode == 2
        assert ran.stderr.count("Error: No space left on device") == 1
        assert "Traceback" not in ran.stderr
        with open_store(path, readonly=True) as store:
            assert [sweep["verdict"] is not None for sweep in store.sweeps()] == [True, True]


def test_a_failure_is_one_whoever_reads(tmp_path: Path) -> None:
    for line in ('"$@" | true; exit ${PIPESTATUS[0]}', '"$@" >&- 2>&-', '"$@" 2>&1 | head -1; exit ${PIPESTATUS[0]}'):
        assert shell(line, "report", "--db", str(tmp_path / "none.db")).returncode == 2
        assert shell(line, "verify", "naive", "--device", "cpu").returncode == 2
        wrong = shell(line, "export-best", "--db", str(empty(tmp_path)))
        assert wrong.returncode == 1


def empty(folder: Path) -> Path:
    open_store(folder / "empty.db").close()
    return folder / "empty.db"


@pytest.mark.parametrize(("words", "resumes"), [
    ("run", True), ("tune --shape 8x8x8", True), ("run --dry-run", False), ("run --compile-only", False),
    ("tune --shape 8x8x8 --dry-run", False), ("report --template run", False),
])  # fmt: skip
def test_only_what_measures_says_that_it_resumes(
    gemmsweep: Run, monkeypatch: pytest.MonkeyPatch, words: str, resumes: bool
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.commands[words.partition(" ")[0]], "callback", interrupted)
    ended = gemmsweep(*words.split())
    assert ended.code == 130
    assert ("the same command resumes" in ended.err) == resumes


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    for line in ('"$@" | head -1; exit ${PIPESTATUS[0]}', '"$@" | true; exit ${PIPESTATUS[0]}', '"$@" >&-'):
        ran = shell(line, "show", "simt")
        assert (ran.returncode, ran.stderr) == (0, "")


def test_too_few_files_are_told_with_the_way_to_more() -> None:
    ran = shell('ulimit -n 12; "$@"', "run", "--device", "cpu", "--shape", "8x8x8", "--vary", "BK=64")
    assert (ran.returncode, ran.stderr) == (2, "Error: Too many open files: allow more, as in ulimit -n 1024.\n")


def test_what_is_closed_or_no_file_loses_what_it_is_given(tmp_path: Path) -> None:
    closed = (tmp_path / "closed").open("w")
    closed.close()
    detached = io.TextIOWrapper(io.BytesIO())
    detached.detach()
    for stream in (closed, detached):
        assert Forgiving(stream, LOST).write("x") == 1
        Forgiving(stream, LOST).flush()


@pytest.mark.skipif(not Path("/dev/full").exists() or not Path("/proc/self/fd").exists(), reason="Linux has these")
def test_silence_takes_no_descriptors() -> None:
    with open("/dev/full", "w", buffering=1) as full:
        before = len(os.listdir("/proc/self/fd"))
        Forgiving(full, LOST).write("lost\n")
        assert len(os.listdir("/proc/self/fd")) == before
