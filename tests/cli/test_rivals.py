"""Further references in the same rounds: the library at its best, and functions of the user's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from screen import Result, Run

from gemmsweep.bench import Entrant
from gemmsweep.worker import Worker

pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")

NAIVE = ("run", "--template", "naive", "--shape", "96x64x48", "--start", "defaults", "--vary", "UNROLL=2,4")
ODD = ("run", "--template", "naive", "--shape", "95x63x47", "--start", "defaults", "--vary", "UNROLL=2,4")
SPEEDS = """
[[rule]]
match = "cublaslt_best"
time_us = 80
noise_pct = 0.1
{extra}
[[rule]]
match = "cublas"
time_us = 100
noise_pct = 0.1
[[rule]]
match = "mine"
time_us = 50
noise_pct = 0.1
[[rule]]
match = "UNROLL=2"
time_us = 90
noise_pct = 0.1
[[rule]]
time_us = 120
noise_pct = 0.1
"""
MINE = """
import numpy as np
def good(a, b, c, task):
    c[...] = a @ (b if task.layout == "nn" else b.T)
def returns(a, b, c, task):
    return a @ b
def number(a, b, c, task):
    return 7
def yields(a, b, c, task):
    c[...] = a @ b
    yield
async def waits(a, b, c, task):
    c[...] = a @ b
def wrong(a, b, c, task):
    c[...] = 0
def raises(a, b, c, task):
    raise ValueError("no such\\nthing")
def leaves(a, b, c, task):
    import os
    os._exit(3)
def prints(a, b, c, task):
    print("hello", flush=True)
    np.matmul(a, b, out=c)
class Untold(BaseException):
    def __str__(self):
        raise RuntimeError
def stops(a, b, c, task):
    raise Untold
def lengthy(a, b, c, task):
    raise ValueError("x" * 100_000)
def forks(a, b, c, task):
    import os
    if not os.fork():
        raise ValueError("in the child")
    np.matmul(a, b, out=c)
def odd(a, b, c, task):
    class Odd:
        @property
        def __array_interface__(self):
            raise OSError("odd")
    return Odd()
def closes(a, b, c, task):
    import os
    os.closerange(3, 200)
def spoils(a, b, c, task):
    np.matmul(a, b, out=c)
    a[...] = 0
def spoils_later(a, b, c, task, calls=[]):
    np.matmul(a, b, out=c)
    calls.append(1)
    if len(calls) > 1000:
        a[...] = 0
"""


def speeds(extra: str = "") -> str:
    return SPEEDS.format(extra=extra)


def references(result: Result, *, finals: bool) -> dict[str, Any]:
    found: dict[str, Any] = next(run for run in result.json["runs"] if run["finals"] == finals)["references"]
    return found


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return f"py:{path}"


def test_finals_add_the_best_of_cublaslt(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    ran = gemmsweep(*NAIVE, "--device", scripted(speeds()))
    assert ran.code == 0
    assert "Also: 0.89× cuBLASLt best (slower) (Scripted 1.0)." in ran.text
    report = gemmsweep("report", "--last", "--format", "json")
    assert set(references(report, finals=False)) == {"cublas"}
    finals = references(report, finals=True)
    assert set(finals) == {"cublas", "cublaslt_best"}
    assert finals["cublaslt_best"]["ratio"] == pytest.approx(80 / 90, rel=5e-3)
    assert [sweep["not_raced"] for sweep in report.json["sweeps"]] == [{}, {}]


def test_odd_strides_race_the_padded_copy_everywhere(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    assert gemmsweep(*ODD, "--device", scripted(speeds())).code == 0
    report = gemmsweep("report", "--last", "--format", "json")
    assert set(references(report, finals=False)) == {"cublas", "pad_copy_cublas"}
    assert set(references(report, finals=True)) == {"cublas", "cublaslt_best", "pad_copy_cublas"}


def test_reference_names_are_what_is_raced(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    assert gemmsweep(*ODD, "--reference", "cublaslt_best", "--device", scripted(speeds())).code == 0
    report = gemmsweep("report", "--last", "--format", "json")
    assert set(references(report, finals=False)) == {"cublas", "cublaslt_best"}
    assert gemmsweep(*ODD, "--reference", "cublas", "--device", scripted(speeds())).code == 0
    assert set(references(gemmsweep("report", "--last", "--format", "json"), finals=True)) == {"cublas"}
    wrong = gemmsweep(*ODD, "--reference", "cudnn", "--device", scripted(speeds()))
    assert wrong.code == 2
    assert "cublas, cublaslt_best, pad_copy_cublas" in wrong.err


def test_a_rival_that_fails_is_a_row_with_a_reason_and_ends_nothing(
    gemmsweep: Run, scripted: Callable[[str], str]
) -> None:
    for fault in ('load = "refuse"', 'load = "crash"', 'burst = "illegal"\nafter = 3', 'result = "wrong"'):
        ran = gemmsweep(*NAIVE, "--remeasure", "--device", scripted(speeds(fault)))
        assert ran.code == 0, fault
        report = gemmsweep("report", "--last", "--format", "json")
        assert report.json["sweeps"][-1]["not_raced"]["cublaslt_best"], fault
        assert set(references(report, finals=True)) == {"cublas"}, fault
        assert {run["status"] for run in report.json["runs"]} == {"ok"}, fault
        assert "cuBLASLt best not raced: " in ran.text


def test_a_function_races_in_the_same_rounds_and_is_checked(
    gemmsweep: Run, scripted: Callable[[str], str], mine: str
) -> None:
    ran = gemmsweep(*NAIVE, "--against", f"{mine}:good", "--device", scripted(speeds()))
    assert ran.code == 0
    assert "0.56× mine.good (slower) (mine.py " in ran.text
    found = references(gemmsweep("report", "--last", "--format", "json"), finals=False)
    assert found["mine.good"]["ratio"] == pytest.approx(50 / 90, rel=5e-3)
    columns = gemmsweep("report", "--last", "--columns", "config.UNROLL,references.mine.good.ratio")
    assert "0.55" in columns.out


@pytest.mark.parametrize(("name", "reason"), [
    ("returns", "mine.returns returned a new array: write the result into c, as in c[...] = result"),
    ("number", "mine.number returned int, no array: write the result into c"),
    ("yields", "mine.yields returned a generator that nobody runs: leave out yield and async"),
    ("waits", "mine.waits returned a coroutine that nobody runs: leave out yield and async"),
    ("wrong", "elements wrong, first at (0, 0)"),
    ("raises", "mine.raises failed: ValueError: no such"),
    ("leaves", "the worker process died (exit code 3)"),
    ("closes", "the worker process died (exit code 0)"),
    ("stops", "mine.stops failed: Untold"),
    ("odd", "mine.odd failed: OSError: odd"),
    ("lengthy", "xxx…"),
    ("spoils", "; it changed A or B"),
])  # fmt: skip
def test_a_function_that_does_not_work_is_a_reason_not_a_traceback(
    gemmsweep: Run, scripted: Callable[[str], str], mine: str, name: str, reason: str
) -> None:
    ran = gemmsweep(*NAIVE, "--against", f"{mine}:{name}", "--device", scripted(speeds()))
    assert ran.code == 0
    assert f"mine.{name} is not raced: " in ran.err
    report = gemmsweep("report", "--last", "--format", "json")
    told = report.json["sweeps"][0]["not_raced"][f"mine.{name}"]
    assert reason in told
    assert "\n" not in told
    assert set(references(report, finals=False)) == {"cublas"}


@pytest.mark.parametrize("text", ["mine.good", "py:", "py:good", "py:absent.py:good", "py:a b.c"])
def test_what_names_no_function_is_refused_before_anything_runs(
    gemmsweep: Run, scripted: Callable[[str], str], text: str
) -> None:
    ran = gemmsweep(*NAIVE, "--against", text, "--device", scripted(speeds()))
    assert ran.code == 2
    assert "py:path/file.py:function" in ran.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("py:mine.py:goood", "there is no 'goood' in mine.py. Did you mean 'good'? It defines: Untold, closes"),
        ("py:mine.py:inner", "there is no 'inner' in mine.py"),
        ("py:absent_module.f", "there is no module 'absent_module'"),
        ("py:mine.goood", "there is no 'goood' in mine.py. Did you mean 'good'?"),
        ("py:broken.py:f", "broken.py, line 2: "),
    ],
)
def test_a_function_that_is_not_there_is_refused_before_anything_runs(
    gemmsweep: Run, scripted: Callable[[str], str], tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text(MINE + "def outer():\n    def inner(a, b, c, task): pass\n")
    (tmp_path / "broken.py").write_text("\ndef f(:\n")
    ran = gemmsweep(*NAIVE, "--against", text, "--device", scripted(speeds()))
    assert (ran.code, message in ran.err) == (2, True), ran.err
    assert not (tmp_path / "results.db").exists()  # nothing was raced


@pytest.mark.parametrize(
    "text",
    [
        "from os.path import *",
        "g = print",
        "import numpy as g",
        "if True:\n    def g(a, b, c, task): pass",
        "try:\n    from x import g\nexcept ImportError:\n    g = None",
        "def f():\n    global g\n    g = 1",
        "globals()['g'] = print",
        "def __getattr__(name): return print",
        "with open('x') as g: pass",
        "class g: pass",
        "f, (g, *h) = 1, (2, 3)",
    ],
)
def test_a_function_that_may_be_there_is_tried(tmp_path: Path, text: str) -> None:
    from gemmsweep.references import parse_function

    (tmp_path / "m.py").write_text(text)
    assert parse_function(f"py:{tmp_path / 'm.py'}:g").name == "g"


def test_an_edited_function_is_raced_again(gemmsweep: Run, scripted: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    command = (*NAIVE, "--against", f"py:{path}:good", "--device", scripted(speeds()))
    gemmsweep(*command)
    assert "On record since" in gemmsweep(*command).err
    path.write_text(MINE + "\n")
    assert "On record since" not in gemmsweep(*command).err


def test_the_cpu_races_a_module_from_the_working_folder(gemmsweep: Run, tmp_path: Path) -> None:
    (tmp_path / "rivalry.py").write_text(MINE)
    cpu = ("run", "--device", "cpu", "--shape", "64x48x32", "--template", "cpu_blocked", "--vary", "UNROLL=2,4")
    ran = gemmsweep(*cpu, "--race-limit", "1s", "--against", "py:rivalry.prints")
    assert ran.code == 0, ran.err
    assert "hello" not in ran.out
    found = references(gemmsweep("report", "--last", "--format", "json"), finals=True)
    assert set(found) == {"numpy", "rivalry.prints"}
    assert found["rivalry.prints"]["ratio"] > 0
    assert "thread" in found["rivalry.prints"]["version"]


def test_a_function_that_forks_answers_once(gemmsweep: Run, scripted: Callable[[str], str], mine: str) -> None:
    ran = gemmsweep(*NAIVE, "--against", f"{mine}:forks", "--device", scripted(speeds()))
    assert ran.code == 0 and "is not raced" not in ran.err
    assert "mine.forks" in references(gemmsweep("report", "--last", "--format", "json"), finals=False)


CPU = """\
// /// gemmsweep
// summary = "Three loops."
// backend = "cpu"
// dtypes  = ["fp32"]
// layouts = ["nn"]
// [launch]
// args = ["A", "B", "C", "i64:M", "i64:N", "i64:K"]
// ///
int gemm(const float* A, const float* B, float* C, long long M, long long N, long long K) {
    for (long long i = 0; i < M; ++i)
        for (long long j = 0; j < N; ++j) {
            float sum = 0.0f;
            for (long long k = 0; k < K; ++k) sum += A[i * K + k] * B[k * N + j];
            C[i * N + j] = sum;
        }
    return 0;
}
"""


@pytest.mark.parametrize("name", ["spoils", "spoils_later"])
def test_changed_inputs_cost_nobody_else(gemmsweep: Run, tmp_path: Path, mine: str, name: str) -> None:
    (tmp_path / "three.c").write_text(CPU)
    ask = (
        "run",
        "--template",
        str(tmp_path / "three.c"),
        "--device",
        "cpu",
        "--shape",
        "24x24x24",
        "--time-limit",
        "3s",
    )
    assert gemmsweep(*ask, "--against", f"{mine}:{name}", "--against", f"{mine}:good").code == 0
    report = gemmsweep("report", "--last", "--format", "json")
    assert {run["status"] for run in report.json["runs"]} == {"ok"}
    assert {"numpy", "mine.good"} <= set(references(report, finals=False))
    assert "× NumPy" in gemmsweep("report", "--last").out  # the yardstick, whatever else raced


THREADED = CPU.replace(
    "// [launch]", '// [parameters]\n// THREADS = { default = 1, values = [1, 2], meaning = "threads" }\n// [launch]'
).replace("int gemm", "enum { THREADS = $THREADS };\nint gemm")


def test_the_library_has_as_many_threads_as_any_kernel_of_the_race(
    gemmsweep: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finals race what is on record: after a race on two threads, against one, they called it twice as fast as the library."""
    (tmp_path / "three.c").write_text(THREADED)
    asked_for: list[int] = []
    enter = Worker.enter_reference

    def noted(self: Worker, entrant: Entrant, burst_ms: float) -> tuple[str, tuple[str, ...], float]:
        asked_for.append(entrant.threads)
        return enter(self, entrant, burst_ms)

    monkeypatch.setattr(Worker, "enter_reference", noted)
    ask = ("run", "--template", str(tmp_path / "three.c"), "--device", "cpu", "--shape", "24x24x24")
    ask += ("--race-limit", "0.3s", "--start", "defaults")
    assert gemmsweep(*ask, "--set", "THREADS=1").code == 0
    assert asked_for == [1]
    assert gemmsweep(*ask, "--vary", "THREADS=1,2").code == 0
    assert asked_for == [1, 2], "both in one race, and in the finals again"
    assert gemmsweep(*ask, "--set", "THREADS=1", "--remeasure").code == 0
    assert asked_for == [1, 2, 1, 2], "alone it has one, and two in the finals with what is on record"
