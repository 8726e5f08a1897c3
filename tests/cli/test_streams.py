"""Output that nobody can read any more: what was asked for is done all the same, and the exit code tells of it alone."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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
    '"$@" 2>&1 | true; exit ${PIPESTATUS[0]}', '"$@" <&- 2>&-', '"$@" <&- >&- 2>&-', '"$@" >/dev/full',
])  # fmt: skip
def test_a_sweep_does_not_need_a_reader(scripted: Callable[[str], str], tmp_path: Path, line: str) -> None:
    device, path = scripted('[[rule]]\nmatch = ""\nnoise_pct = 0.1\n'), tmp_path / "results.db"
    ran = shell(line, "run", "--template", "naive", "--shape", "48x32x24", "--vary", "UNROLL=1,2", "--device", device,
                "--db", str(path))  # fmt: skip
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 0
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


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    for line in ('"$@" | head -1; exit ${PIPESTATUS[0]}', '"$@" | true; exit ${PIPESTATUS[0]}', '"$@" >&-'):
        ran = shell(line, "show", "simt")
        assert (ran.returncode, ran.stderr) == (0, "")


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
