"""What a sweep survives: workers that die at start, hang or lose their parent, new values, another GPU, throttled clocks."""

from __future__ import annotations

import os
import pickle
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from screen import Run

from gemmsweep.bench import Entrant
from gemmsweep.errors import EnvironmentProblem
from gemmsweep.model import Inputs, Problem
from gemmsweep.protocol import DeviceSpec
from gemmsweep.references import parse_function
from gemmsweep.store import open_store
from gemmsweep.worker import Limits, Worker

pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")

NAIVE = ("run", "--template", "naive", "--shape", "48x32x24")
STEADY = '[[rule]]\nmatch = ""\nnoise_pct = 0.1\n'


def packed(message: object) -> bytes:
    """As `Connection.send` puts it on the wire."""
    content = pickle.dumps(message)
    return struct.pack("!i", len(content)) + content


def relatives(mark: Path) -> Iterator[int]:
    """Living processes that have `mark` in their environment, this one aside."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if f"MARK={mark}".encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
        except OSError:
            continue


def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_a_worker_that_dies_at_start_is_tried_three_times(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    begin = time.monotonic()
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", scripted('open = "crash"\n'))
    assert ran.code == 2
    assert "could not be started in 3 tries (the worker process died (signal SIGSEGV)" in ran.err
    assert time.monotonic() - begin < 30


def test_a_device_that_does_not_recover_is_told_from_a_config(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    crash = '[[rule]]\nmatch = "UNROLL=1$"\nlaunch = "crash"\n' + STEADY
    argv = (*NAIVE, "--vary", "UNROLL=1,2", "--config-limit", "1s", "--device")
    for probe in ("crash", "hang", "illegal"):
        ran = gemmsweep(*argv, scripted(f'probe = "{probe}"\n' + crash))
        assert ran.code == 2
        assert "does not recover from a config that failed: a kernel known to be good fails too" in ran.err
    tuned = (
        "tune",
        "--template",
        "naive",
        "--shape",
        "64x64x64",
        "--time-limit",
        "30s",
        "--config-limit",
        "1s",
        "--device",
    )
    for probe in ("crash", "illegal"):
        ran = gemmsweep(*tuned, scripted(f'probe = "{probe}"\n' + crash))
        assert ran.code == 2 and "does not recover from a config that failed" in ran.err
    assert gemmsweep(*argv, scripted(crash)).code == 0, "the same command goes on once the device is well"


def test_the_end_by_sigterm_leaves_nothing_behind(scripted: Callable[[str], str], tmp_path: Path) -> None:
    device = scripted('[[rule]]\nmatch = ""\nnoise_pct = 5.0\n')
    command = [sys.executable, "-m", "gemmsweep", *NAIVE, "--vary", "UNROLL=1,2", "--device", device]
    environment = {**os.environ, "MARK": str(tmp_path)}
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert parent.stderr is not None
    assert any("racing" in line for line in parent.stderr)
    parent.send_signal(signal.SIGTERM)
    said = parent.stderr.read()
    assert parent.wait() == 143
    parent.stderr.close()
    assert "Everything measured is stored" in said
    assert "Traceback" not in said
    assert eventually(lambda: not list(relatives(tmp_path)))
    assert not list(tmp_path.glob("results.db-*")), "the file is one again, without its log"


def test_a_second_signal_does_not_break_the_end_and_only_what_resumes_says_so(
    scripted: Callable[[str], str], tmp_path: Path
) -> None:
    device = scripted('[[rule]]\nmatch = "."\nlaunch = "hang"\n[[rule]]\nmatch = "cublas"\n')
    command = [sys.executable, "-m", "gemmsweep", "verify", "naive", "--shape", "8x8x8", "--device", device]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert parent.stderr is not None
    assert any("checking" in line for line in parent.stderr)
    said = ""
    while parent.poll() is None:
        parent.send_signal(signal.SIGTERM)
        time.sleep(0.002)
    said = parent.stderr.read()
    parent.stderr.close()
    assert "Traceback" not in said and "resumes" not in said


def test_the_late_answer_of_a_request_given_up_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("import time\ndef f(a, b, c, task):\n    time.sleep(0.4)\n    c[...] = a @ b\n")
    late = Entrant("late.f", function=parse_function(f"py:{tmp_path / 'late.py'}:f"))
    with Worker(DeviceSpec("cpu"), Limits(check_s=0.6)) as worker:
        worker.prepare(Problem.of(8, 8, 8), Inputs(), "cold")
        with pytest.raises(EnvironmentProblem, match="no answer within"):
            worker.enter_reference(late, 0.05)
        worker.limits = Limits()
        time.sleep(2)
        worker.prepare(Problem.of(8, 8, 8), Inputs(), "cold")
        version, _, rel_fro = worker.enter_reference(Entrant("numpy"), 0.05)
        assert "thread" in version and rel_fro < 1e-6 and worker.survived()


@pytest.mark.parametrize(("written", "reason"), [
    (b"\x7f\xff\xff\xff", "no answer within 2 s"),  # the beginning of an answer that never ends
    (packed(("x", 1)), "its answer could not be read"),
    (packed(("ok", None)), "its answer could not be read"),
    (packed((3, "fail", None)), "its answer could not be read"),
    (b"\x00\x00\x00\x05hello", "its answer could not be read"),
    (b"\xff\xff\xff\xf0", "its answer could not be read"),  # a negative size
    (b"\x00\x00\x00\x00", "its answer could not be read"),  # no pickle: EOFError, as from a pipe that has ended
])  # fmt: skip
def test_what_a_function_writes_into_the_pipe_is_its_own_fault(
    gemmsweep: Run, scripted: Callable[[str], str], tmp_path: Path, written: bytes, reason: str
) -> None:
    (tmp_path / "loud.py").write_text(
        "import os\ndef f(a, b, c, task):\n    for fd in range(3, 64):\n        try:\n"
        f"            os.write(fd, {written!r})\n        except OSError:\n            pass\n    c[...] = a @ b\n"
    )
    given = ("--against", f"py:{tmp_path / 'loud.py'}:f", "--config-limit", "2s", "--device", scripted(STEADY))
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL=1,2", *given)
    assert ran.code == 0
    assert reason in ran.text


def test_half_an_answer_is_not_waited_for_while_a_child_holds_the_pipe(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "import os, time\ndef f(a, b, c, task):\n    for fd in range(3, 64):\n        try:\n"
        "            os.write(fd, b'\\x7f\\xff\\xff\\xff')\n        except OSError:\n            pass\n"
        "    if os.fork() == 0:\n        time.sleep(20)\n        os._exit(0)\n    c[...] = a @ b\n"
    )
    begin = time.monotonic()
    with Worker(DeviceSpec("cpu"), Limits(check_s=1.0)) as worker:
        worker.prepare(Problem.of(8, 8, 8), Inputs(), "cold")
        with pytest.raises(EnvironmentProblem, match="no answer within 1 s"):
            worker.enter_reference(Entrant("half.f", function=parse_function(f"py:{tmp_path / 'half.py'}:f")), 0.05)
    assert time.monotonic() - begin < 15


def test_a_limit_too_short_for_the_reference_is_named(gemmsweep: Run) -> None:
    asked = ("--template", "cpu_blocked", "--vary", "UNROLL", "--shape", "64x64x64", "--device", "cpu")
    ran = gemmsweep("run", *asked, "--config-limit", "0.000001")
    assert ran.code == 2
    assert "no answer within 1e-06 s; its process was killed. Give it longer: --config-limit" in ran.err


def test_a_full_disk_is_a_sentence_and_loses_nothing(
    gemmsweep: Run, scripted: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmsweep.store import connect

    argv = (*NAIVE, "--vary", "UNROLL=2,4,8", "--device", scripted('[[rule]]\nmatch = ""\nnoise_pct = 1.0\n'))
    opened = connect._connect
    with open_store(tmp_path / "empty.db") as store:
        empty_pages = store.connection.raw.execute("PRAGMA page_count").fetchone()[0]

    def full(uri: str) -> sqlite3.Connection:
        raw = opened(uri)
        raw.execute(f"PRAGMA max_page_count = {empty_pages + 2}")  # SQLite then answers as on a full disk
        return raw

    with monkeypatch.context() as patch:
        patch.setattr(connect, "_connect", full)
        ran = gemmsweep(*argv)
    assert ran.code == 2
    assert "the disk is full. Free some space; what was stored before is safe." in ran.err
    with open_store(tmp_path / "results.db", readonly=True) as store:
        assert store.connection.raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        before = {run["run_id"] for run in store.runs()}
    assert gemmsweep(*argv).code == 0
    runs = gemmsweep("report", "--format", "json").json["runs"]
    assert before <= {run["run_id"] for run in runs}, "the same command goes on with what was there"


def test_a_reader_that_never_ends_does_not_stop_a_sweep(
    gemmsweep: Run, scripted: Callable[[str], str], tmp_path: Path
) -> None:
    path = tmp_path / "results.db"
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", scripted(STEADY)).code == 0
    with open_store(path):  # as while a sweep is running
        reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM runs").fetchone()[0] > 0  # a snapshot, held from here on
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL=8,16", "--start", "defaults", "--device", scripted(STEADY))
    assert ran.code == 0
    assert "locked" not in ran.err
    reader.close()
    assert len(gemmsweep("report", "--format", "json").json["sweeps"]) > 2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_worker_outlives_a_killed_parent(scripted: Callable[[str], str], tmp_path: Path) -> None:
    device = scripted('[[rule]]\nmatch = "UNROLL"\nlaunch = "hang"\n' + STEADY)
    command = [sys.executable, "-m", "gemmsweep", *NAIVE, "--vary", "UNROLL=1,2", "--device", device]
    environment = {**os.environ, "MARK": str(tmp_path)}
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert parent.stderr is not None
    assert any("checking" in line for line in parent.stderr)  # the worker hangs from now on
    assert len(list(relatives(tmp_path))) > 1
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stderr.close()
    assert eventually(lambda: not list(relatives(tmp_path)))


def test_a_hung_worker_is_gone_before_the_next_config(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    from gemmsweep.link import Link

    begun: list[int] = []
    ended: list[bool] = []
    start = Link.start

    def started(self: Link, start_s: float) -> object:
        ended.extend(not Path(f"/proc/{pid}").exists() for pid in begun)
        info = start(self, start_s)
        begun.append(self._process.pid)
        return info

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "start", started)
        device = scripted('[[rule]]\nmatch = "UNROLL=1$"\nlaunch = "hang"\n' + STEADY)
        assert gemmsweep(*NAIVE, "--vary", "UNROLL=1,2", "--device", device, "--config-limit", "1s").code == 0
    assert len(begun) > 1
    assert all(ended)


def test_what_a_worker_prints_does_not_reach_stdout(scripted: Callable[[str], str], tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom gemmsweep.protocol import DeviceSpec\nfrom gemmsweep.worker import Worker\n"
        "import gemmsweep.device.scripted as s\n"
        "if __name__ == '__main__':\n"
        "    with Worker(DeviceSpec('scripted', script=sys.argv[1])) as w:\n"
        "        assert w.info.kind == 'scripted'  # it is up\n"
        "        print(os.readlink(f'/proc/{w._link._process.pid}/fd/1'))\n"
    )
    path = tmp_path / "ask.py"
    path.write_text(script)
    spec = scripted(STEADY).removeprefix("scripted:")
    with open(tmp_path / "messages", "w") as messages:
        answer = subprocess.check_output([sys.executable, str(path), spec], stderr=messages, text=True)
    assert answer.strip() == messages.name


def test_a_new_value_races_again_with_all_the_others(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    device = scripted(STEADY)
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", device).code == 0
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=2,4,8", "--start", "defaults", "--device", device).code == 0
    runs = gemmsweep("report", "--format", "json").json["runs"]
    axis = [run for run in runs if run["varied"] == "UNROLL"]
    by_sweep = [
        [run["config"]["UNROLL"] for run in axis if run["sweep_id"] == s] for s in {r["sweep_id"] for r in axis}
    ]
    assert sorted(map(sorted, by_sweep), key=len) == [[2, 4], [2, 4, 8]]
    assert all(run["rounds"] >= 5 for run in axis)


def test_results_of_another_gpu_start_nothing(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", scripted(STEADY)).code == 0
    other = scripted('device = { name = "Another GPU", uuid = "GPU-2" }\n' + STEADY)
    ran = gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--device", other)
    assert "(template defaults)" in ran.err
    best = gemmsweep("export-best", "--format", "json").json["best"]
    assert {one["device"]["name"] for one in best} == {"Scripted GPU", "Another GPU"}


def test_throttled_bursts_are_kept_and_marked_and_inputs_recorded(
    gemmsweep: Run, scripted: Callable[[str], str], tmp_path: Path
) -> None:
    device = scripted('[[rule]]\nmatch = ""\nnoise_pct = 0.1\nthrottle = [0, 8]\n')
    assert gemmsweep(*NAIVE, "--vary", "UNROLL=2,4", "--seed", "7", "--device", device).code == 0
    with open_store(tmp_path / "results.db", readonly=True) as store:
        query = """SELECT r.rounds, count(*), sum(v.throttle > 0), min(v.throttle) FROM round_values v
                   JOIN runs r ON r.key = v.run_key WHERE r.role = 'config' GROUP BY r.key"""
        for rounds, stored, throttled, least in store.connection.raw.execute(query):
            assert stored == rounds
            assert 0 < throttled < stored
            assert least == 0
        assert {run["inputs"] for run in store.runs()} == {"normal(seed=7)"}
