"""Compile processes: hangs, crashes, order, duplicates, cache hits without a process. Compilers here are scripts."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gemmsweep.build import Builders, build_all, build_one, crew
from gemmsweep.build.cache import Cache
from gemmsweep.build.worker import LOG_CHARS
from gemmsweep.errors import EnvironmentProblem, UsageError
from gemmsweep.model import Build, Source

Compiler = Callable[[str], Path]

# "--version" answers; a compile writes its pid, runs `body`, then writes what -o asked for.
SCRIPT = """#!/bin/sh
if [ "$1" = --version ]; then echo "fake 1.0"; exit 0; fi
echo $$ >> {log}
{body}
echo binary > kernel.so
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMSWEEP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    def write(body: str) -> Path:
        path, pids = tmp_path / "fakecc", tmp_path / "pids"
        path.write_text(SCRIPT.format(log=pids, body=body))
        path.chmod(0o755)
        monkeypatch.setenv("CC", str(path))
        pids.touch()
        return pids

    return write


def c(text: str) -> Source:
    return Source("cpu", text, ("f",))


def test_a_compiler_that_writes_no_library_is_told(compiler: Compiler) -> None:
    compiler("exit 0")
    build = build_one(c("int f(void) { return 0; }"), "")
    assert build.reason.endswith("ended well but wrote no library: is it a C compiler?")


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> bool:
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_results_keep_the_order_of_the_sources_and_duplicates_compile_once(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = compiler('grep -q slow kernel.c && until [ $(wc -l < "$PIDS") -eq 3 ]; do sleep 0.02; done')
    monkeypatch.setenv("PIDS", str(pids))
    seen: dict[int, Build] = {}
    with Builders(processes=2) as builders:
        builds = builders.build_all([c("slow"), c("b"), c("b"), c("d")], "", on_done=seen.__setitem__)
    assert [build.ok for build in builds] == [True] * 4
    assert builds[1] is builds[2]
    assert len(pids.read_text().split()) == 3
    assert seen == dict(enumerate(builds))
    assert next(iter(seen)) == 1  # reported as they finish


def test_a_second_call_is_answered_from_the_cache_without_a_process(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler("true")
    first = build_one(c("a"), "")
    monkeypatch.setattr(crew, "Process", lambda _: pytest.fail("a process was started for a cache hit"))
    second = build_one(c("a"), "")
    assert (first.cached, second.cached) == (False, True)
    assert (second.path, second.compile_ms) == (first.path, first.compile_ms)
    assert second.compile_ms is not None


def test_a_compiler_that_hangs_is_killed_and_the_rest_go_on(compiler: Compiler) -> None:
    pids = compiler("grep -q hang kernel.c && sleep 60; true")
    started = time.monotonic()
    with Builders(processes=1) as builders:
        builds = builders.build_all([c("hang"), c("b")], "", timeout_s=0.5)
        assert time.monotonic() - started < 10
        assert [build.ok for build in builds] == [False, True]
        assert builds[0].reason == "compiler exceeded 0.5 s"
        assert eventually(lambda: all(gone(int(pid)) for pid in pids.read_text().split()))


def test_a_compiler_that_dies_of_a_signal_is_named(compiler: Compiler) -> None:
    compiler("kill -SEGV $$")
    assert build_one(c("a"), "").reason == "compiler crashed with signal 11"


def test_a_crash_of_the_compile_process_costs_one_source(compiler: Compiler) -> None:
    compiler("grep -q crash kernel.c && kill -SEGV $PPID; true")
    with Builders(processes=1) as builders:
        builds = builders.build_all([c("crash"), c("b"), c("c")], "")
    assert [build.ok for build in builds] == [False, True, True]
    assert builds[0].reason == "compiler crashed with signal 11"


# Notes the text of what it compiles, in order, and waits for a file named "go".
NOTING = 'cat kernel.c >> "$PIDS.texts"; echo >> "$PIDS.texts"; until [ -e "$PIDS.go" ]; do sleep 0.02; done'


def test_what_is_waited_for_goes_before_builds_ahead_and_nothing_compiles_twice(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = compiler(NOTING)
    monkeypatch.setenv("PIDS", str(pids))
    texts = Path(f"{pids}.texts")
    with Builders(processes=1) as builders, ThreadPoolExecutor(1) as beside:
        builders.offer([c(text) for text in ("under way", "later", "soon", "stale")], "")
        assert eventually(texts.exists)
        builders.forget()
        builders.offer([c("under way"), c("later"), c("soon")], "")
        waiting = beside.submit(builders.build_all, [c("soon"), c("under way"), c("new")], "")
        assert eventually(lambda: len(builders._crew._wanted) == 2)
        Path(f"{pids}.go").touch()
        assert [build.ok for build in waiting.result(timeout=10)] == [True] * 3
        assert eventually(lambda: "later" in texts.read_text())
        assert texts.read_text().splitlines() == ["under way", "soon", "new", "later"]


def test_builds_ahead_leave_processes_to_those_who_wait(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = compiler('grep -q ahead kernel.c && until [ -e "$PIDS.go" ]; do sleep 0.02; done; true')
    monkeypatch.setenv("PIDS", str(pids))
    with Builders(processes=4) as builders:
        builders.offer([c(f"ahead {i}") for i in range(4)], "")
        assert eventually(lambda: len(pids.read_text().split()) == 3)
        assert builders.build_all([c("waited for")], "")[0].ok
        assert len(pids.read_text().split()) == 4
        Path(f"{pids}.go").touch()
        assert eventually(lambda: not builders._crew._tasks)
        assert all(build.cached for build in builders.build_all([c(f"ahead {i}") for i in range(4)], ""))


def test_a_build_ahead_that_nobody_asks_for_any_more_makes_room(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = compiler("grep -q slow kernel.c && sleep 60; true")
    with Builders(processes=4) as builders:
        builders.offer([c("slow 1"), c("slow 2"), c("slow 3")], "")
        assert eventually(lambda: len(pids.read_text().split()) == 3)
        builders.forget()
        builders.offer([c("new")], "")
        time.sleep(0.1)
        assert not any(gone(int(pid)) for pid in pids.read_text().split())  # they may be offered again
        builders.offer([c("slow 3")], "")
        builders.settle()
        assert eventually(lambda: len(builders._crew._tasks) == 2)
        assert eventually(
            lambda: sum(gone(int(pid)) for pid in pids.read_text().split()) == 2
        )  # one was ended, one is done
        builders.forget()
        builders.settle()
        assert all(build.ok for build in builders.build_all([c(str(i)) for i in range(4)], ""))
        assert not builders._crew._tasks


def test_what_was_refused_is_not_built_ahead_again(compiler: Compiler) -> None:
    pids = compiler("exit 1")
    with Builders(processes=1) as builders:
        for _ in range(2):
            builders.offer([c("a")], "")
            assert eventually(lambda: not builders._crew._tasks)
        assert len(pids.read_text().split()) == 1
        assert not builders.build_all([c("a")], "")[0].ok
        assert len(pids.read_text().split()) == 2


def test_processes_can_be_started_before_there_is_a_job(compiler: Compiler) -> None:
    compiler("true")
    with Builders(processes=3) as builders:
        builders.start()
        started = list(builders._crew._processes)
        assert len(started) == 2
        assert eventually(lambda: all(process.ready for process in started))
        assert builders.build_all([c("a"), c("b")], "")[0].ok
        assert builders._crew._processes == started


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux")
def test_a_compiler_that_takes_all_memory_is_stopped_by_a_limit(compiler: Compiler) -> None:
    hoard = f"grep -q hoard kernel.c || exit 0\n{sys.executable} -c 'x = bytearray(20 << 30)'  || exit 1"
    compiler(hoard.replace("|| exit 0", "|| { echo binary > kernel.so; exit 0; }"))
    with Builders(processes=1) as builders:
        builds = builders.build_all([c("hoard"), c("b")], "")
    assert [build.ok for build in builds] == [False, True]
    assert "MemoryError" in builds[0].log


def test_of_a_flood_of_messages_beginning_and_end_are_kept(compiler: Compiler) -> None:
    compiler("echo begins; head -c 3000000 /dev/zero | tr '\\0' x; echo ends; exit 1")
    (build,) = build_all([c("a")], "")
    assert not build.ok
    assert build.log.startswith("begins")
    assert build.log.rstrip().endswith("ends")
    assert len(build.log) < 1.1 * LOG_CHARS


def test_a_cache_that_becomes_unwritable_is_told_and_nothing_of_its_stand_in_stays(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler("true")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    put = Cache.put

    def full(self: Cache, *given: Any) -> Build:
        if self.folder == tmp_path / "cache":
            raise OSError(errno.ENOSPC, "No space left on device")
        return put(self, *given)

    monkeypatch.setattr(Cache, "put", full)
    with Builders(processes=1) as builders:
        assert builders.note is None
        assert builders.build_all([c("a")], "")[0].ok
        assert "No space left on device" in (builders.note or "")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_failures_are_not_cached(compiler: Compiler) -> None:
    compiler("echo 'kernel.c:1: error: no'; exit 1")
    first, second = build_one(c("a"), ""), build_one(c("a"), "")
    assert (first.ok, first.reason, first.path) == (False, "kernel.c:1: error: no", "")
    assert not second.cached


def test_an_exception_in_the_callback_ends_the_compilers(compiler: Compiler) -> None:
    pids = compiler("grep -q slow kernel.c && sleep 60; true")

    def stop(index: int, build: Build) -> None:
        if index == 1:
            assert eventually(lambda: len(pids.read_text().split()) == 2)
            raise KeyboardInterrupt

    with Builders(processes=2) as builders, pytest.raises(KeyboardInterrupt):
        builders.build_all([c("slow"), c("b")], "", on_done=stop)
    assert eventually(lambda: all(gone(int(pid)) for pid in pids.read_text().split()))


def test_a_pool_that_was_stopped_ends_the_build_under_way_and_builds_again(compiler: Compiler) -> None:
    pids = compiler("grep -q slow kernel.c && sleep 60; true")
    with Builders(processes=1) as builders, ThreadPoolExecutor(1) as beside:
        building = beside.submit(builders.build_all, [c("slow")], "")
        assert eventually(lambda: bool(pids.read_text().split()))
        builders.stop()
        with pytest.raises(EnvironmentProblem, match="the builds were stopped"):
            building.result(timeout=10)
        assert builders.build_all([c("b")], "")[0].ok
    with pytest.raises(EnvironmentProblem, match="the builds were stopped"):
        builders.build_all([c("another")], "")


def test_compilers_die_with_a_killed_parent(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    pids = compiler("sleep 60")
    script = (
        "from gemmsweep.build import build_one; from gemmsweep.model import Source; "
        "build_one(Source('cpu', 'a', ('f',)), '')"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    assert eventually(lambda: pids.read_text() != "", within_s=10)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert eventually(lambda: gone(int(pids.read_text())))
    assert eventually(lambda: not list(tmp_path.glob("tmp/gemmsweep-compile-*")))


@pytest.mark.skipif(sys.platform != "linux", reason="the script writes to its parent's stdout through /proc")
def test_what_a_compile_process_prints_does_not_reach_stdout(compiler: Compiler) -> None:
    compiler("echo kept; echo stray > /proc/$PPID/fd/1")
    script = (
        "from gemmsweep.build import build_one; from gemmsweep.model import Source; "
        "print(build_one(Source('cpu', 'a', ('f',)), '').log)"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "kept\n"


def test_processes_that_do_not_start_are_not_started_for_ever(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler("true")
    monkeypatch.setattr("gemmsweep.build.process._START", "raise SystemExit(3)  # {path} {descriptor}")
    with pytest.raises(EnvironmentProblem, match="exit status 3"):
        build_one(c("a"), "")


def test_a_cc_that_does_not_run_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(EnvironmentProblem, match=r"no-such-compiler.*pip install ziglang"):
        build_one(c("a"), "")


def test_no_compiler_at_all_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match="pip install ziglang"):
        build_one(c("a"), "")


def test_an_unknown_cuda_compiler_names_the_choices() -> None:
    with pytest.raises(UsageError, match="nvrtc, nvcc"):
        build_one(Source("cuda", "", ("k",), compiler="clang"), "sm_80")


def test_a_header_name_that_leaves_the_folder_is_refused(compiler: Compiler, tmp_path: Path) -> None:
    compiler("true")
    victim = tmp_path / "victim.h"
    build = build_one(Source("cpu", "", ("f",), headers={str(victim): "x"}), "")
    assert not build.ok
    assert "victim.h" in build.reason
    assert not victim.exists()


def test_a_killed_compile_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "slow-cc"
    script.write_text('#!/bin/sh\ncase "$1" in --version) echo slow 1;; *) mktemp -d; sleep 30;; esac\n')
    script.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("CC", str(script))
    with Builders() as builders:
        [build] = builders.build_all([Source("cpu", "int gemm(void) { return 0; }", ("gemm",))], "", timeout_s=1)
    assert not build.ok
    assert list((tmp_path / "tmp").iterdir()) == []
