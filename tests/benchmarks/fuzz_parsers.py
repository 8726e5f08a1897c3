"""Hostile input to everything that reads what a user wrote: python tests/benchmarks/fuzz_parsers.py [SECONDS] [SEED].

Real files, options and stored rows are cut up, repeated and spliced with what has broken parsers before. Each target must give a
result or a GemmsweepError; anything else, an answer later than 5 s, or more than 2 GB of memory, is a crash and printed.
"""

from __future__ import annotations

import io
import logging
import resource
import shutil
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import store_samples as samples

from gemmsweep.analysis.account import offline_device
from gemmsweep.cli.request import seconds
from gemmsweep.entry import enlist
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.errors import GemmsweepError
from gemmsweep.experiment import experiments_dir, find_experiment, parse_dtype, parse_layout, parse_shape
from gemmsweep.model import Problem
from gemmsweep.plan import apply_held, axis_configs, axis_values, parse_axis, parse_held
from gemmsweep.report import formats
from gemmsweep.shapes import read_csv
from gemmsweep.store import Filter, open_store
from gemmsweep.template.emission import emit
from gemmsweep.template.expressions import parse
from gemmsweep.template.header import load_template
from gemmsweep.template.library import find_template
from gemmsweep.template.locations import templates_folder

TOO_LATE_S = 5.0
MEMORY_BYTES = 2 << 30
BATCH = 300  # executions of a target before the next has its turn
ENOUGH = 3  # crashes of a target: it is left alone from then on
DATA = Path(__file__).parents[1] / "data"
DEVICE = offline_device("sm_90a")
PROBLEM = Problem.of(256, 256, 256, "fp32", "nn")
NAIVE = find_template("naive")
SPLICES = (
    "", " ", "\n", "\r", "\t", "\0", "\x1b[31m", "\u202e", "é", "\ud800", "\ufeff", '"', "'", "\\", "=", "[", "]", "{", "}",
    "(", ")", "$", "${", "$$", "//", "// ///", "///", "# ", ",", ":", "*", "%", "-1", "0", "1e9", "nan", "inf", "true", "1.5",
    "0x10", "9223372036854775807", "9223372036854775808", "99999999999999999999999", "M", "N", "K", "BM", "UNROLL", "or", "and",
    "not ", "<", "<=", "==", "max(", "min(1,", "ceil_div(", "floor_div(1, 0)", "__import__('os')", "x.y", "[0]*9", "@file",
    "'; DROP TABLE runs; --", "../../etc/passwd", "(" * 300, "[" * 3000, "{a=" * 500, "1+" * 2000, "a" * 5000, "1" * 5000,
    "[[step]]\n", "[launch]\n", "[[workspace]]\n", "[kernel]\n",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, "", "\x1b[2J\n", "{", "[1]", "{}", "null", '"x"', '{"a": NaN}', "1" * 400, "[" * 2000, -1, 0, 2**63 - 1, -(2**63), 1e308,
    float("inf"), b"", b"\x00\xff", b"x" * 1000, "\ud7ff", "'", "=1+1", "|", "2026-99-99", "sideways", "ok", "0",
)  # fmt: skip


@st.composite
def mutated(draw: Any, originals: list[str], tails: tuple[str, ...] = ()) -> str:
    """One of the originals after a few cuts, repeats and splices; its tail, if it has one, follows as it was."""
    place = draw(st.integers(0, len(originals) - 1))
    text = originals[place]
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 40)))
        piece = draw(st.sampled_from(SPLICES) | st.just(text[start:end] * 2) | st.text(max_size=8))
        text = text[:start] + piece + text[end:]
    return text + (tails[place] if tails else "")


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    return path


def header(folder: Path, text: str) -> None:
    """A template, and its first axis."""
    shutil.copyfile(DATA / "template" / "tiny.cuh", folder / "tiny.cuh")
    template = load_template(written(folder / "fuzzed.cu", text))
    start = template.defaults()
    axis = template.parameters[0] if template.parameters else None
    values = axis.values[:3] if axis else ()
    labelled = {str(value): {**start, axis.name: value} for value in values} if axis else {"start": start}
    enlist(template, PROBLEM, DEVICE, labelled)


def sidecar(folder: Path, text: str) -> None:
    """The header beside a user's kernel."""
    shutil.copyfile(DATA / "own" / "blocktile.cu", folder / "own.cu")
    template = load_template(written(folder / "own.toml", text).with_suffix(".cu"))
    enlist(template, PROBLEM, DEVICE, {"start": template.defaults()})


def experiment(folder: Path, text: str) -> None:
    found = find_experiment(str(written(folder / "experiment.toml", text)))
    for axis in found.vary:
        parse_axis(axis)


def shapes(folder: Path, text: str) -> None:
    read_csv(written(folder / "shapes.csv", text))


def vary(_: Path, text: str) -> None:
    axis = parse_axis(text)
    axis_configs(NAIVE.defaults(), axis.name, axis_values(NAIVE, axis), ())


def held(_: Path, text: str) -> None:
    enlist(NAIVE, PROBLEM, DEVICE, {"start": apply_held(NAIVE.defaults(), [parse_held(text, NAIVE)])})


def expression(_: Path, text: str) -> None:
    parsed = parse(text)
    emit(parsed, {name: name for name in parsed.names})
    parsed.evaluate(dict.fromkeys(parsed.names, 7))


def options(_: Path, text: str) -> None:
    """Every other value that is typed; each is refused or taken by itself."""
    for read in (parse_shape, parse_dtype, parse_layout, parse_epilogue, lambda value: seconds("--time-limit", value)):
        try:
            read(text)
        except GemmsweepError:
            continue


def stored_row(folder: Path, change: tuple[int, Any]) -> None:
    """One stored value replaced by another, then read in every way there is."""
    number, value = change
    table, column = COLUMNS[number % len(COLUMNS)]
    path = folder / "rows.db"
    shutil.copyfile(folder / "sound.db", path)
    raw = sqlite3.connect(path)
    try:
        raw.execute(f"UPDATE {table} SET {column} = ?", (value,))
        raw.commit()
    except sqlite3.IntegrityError:
        return
    finally:
        raw.close()
    with open_store(path, readonly=True) as store:
        wanted = Filter()
        sweeps, runs = list(store.sweeps(wanted)), list(store.runs(wanted))
        list(store.best(wanted))
        store.stored_sweeps(rounds=True)
        for name in formats.names():
            formats.write(name, sweeps, runs, io.StringIO())


def sound_database(path: Path) -> list[tuple[str, str]]:
    """A small results file; every (table, column) of it."""
    with open_store(path) as store:
        samples.race(store, samples.start(), {"BK=16": 1900.0, "BK=8": 2000.0}, rounds=6)
    with sqlite3.connect(path) as raw:
        tables = [row[0] for row in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT NULL")]
        return [(table, row[1]) for table in tables for row in raw.execute(f"PRAGMA table_info({table})")]


COLUMNS: list[tuple[str, str]] = []
TEMPLATES = [
    p.read_text()
    for p in (templates_folder() / "naive.cu", templates_folder() / "cpu_blocked.c", DATA / "template" / "tiny.cu")
]
BODIES = tuple(text[text.index("// ///\n") :] for text in TEMPLATES)
HEADS = [text.removesuffix(body) for text, body in zip(TEMPLATES, BODIES, strict=True)]
RULES = ["BM * BN", "ceil_div(M, BM) * ceil_div(N, BN)", "THREADS % 32 == 0 and not (M < 4 or N == 1)", "-(K % 8)"]
TARGETS: dict[str, tuple[Callable[[Path, Any], None], st.SearchStrategy[Any]]] = {
    "template headers": (header, mutated(HEADS, BODIES)),
    "sidecars": (sidecar, mutated([(DATA / "own" / "blocktile.toml").read_text()])),
    "experiment files": (experiment, mutated([p.read_text() for p in sorted(experiments_dir().glob("*.toml"))])),
    "shape lists": (shapes, mutated(["m,n,k,dtype,layout\n1,2,3,fp16,nt\n4096,11008,4096,bf16,nn\n", "8,8,8\n# x\n9,9,9\n"])),
    "--vary": (vary, mutated(["BM", "BM=1,2,4", "UNROLL=1:16:*2", "BN=8:64:8", "ORDER=strided,coalesced"])),
    "--set": (held, mutated(["BM=8", "BM=BN/2", "UNROLL=max(1, BM % 4)", "ORDER=strided"])),
    "expressions": (expression, mutated(RULES)),
    "other options": (options, mutated(["4096x4096x4096", "bias+leaky_relu(0.1)", "clamp(-1,1)", "fp16", "nt", "8m", "90s"])),
    "stored rows": (stored_row, st.tuples(st.integers(0, 10**6), st.sampled_from(VALUES))),
}  # fmt: skip


@dataclass
class Tally:
    """What became of the executions of one target."""

    executions: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    crashes: int = 0


def run_batch(name: str, folder: Path, number: int, tally: Tally) -> None:
    """Some executions; prints the smallest input of each crash."""
    target, strategy = TARGETS[name]

    @seed(number)
    @settings(max_examples=BATCH, database=None, deadline=None, phases=[Phase.generate, Phase.shrink],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategy)
    def execute(value: Any) -> None:
        begin = time.perf_counter()
        tally.executions += 1
        try:
            target(folder, value)
        except GemmsweepError as error:
            tally.refused += 1
            assert str(error).strip(), "an error without a message"
        taken_s = time.perf_counter() - begin
        tally.slowest_s = max(tally.slowest_s, taken_s)
        assert taken_s < TOO_LATE_S, f"took {taken_s:.1f} s"

    begin = time.perf_counter()
    try:
        execute()
    except ExceptionGroup as group:
        for error in group.exceptions:
            report(name, number, error, tally)
    except Exception as error:
        report(name, number, error, tally)
    tally.seconds += time.perf_counter() - begin


def report(name: str, number: int, error: Exception, tally: Tally) -> None:
    """The smallest input found for a crash, and where it happened."""
    tally.crashes += 1
    notes = " ".join(" ".join(getattr(error, "__notes__", [])).split())
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    print(
        f"CRASH in {name}, batch {number}: {type(error).__name__} at {where}: {str(error)[:200]}; {notes[:400]}",
        flush=True,
    )


def main() -> None:
    limit_s = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    tallies = {name: Tally() for name in TARGETS}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        COLUMNS.extend(sound_database(folder / "sound.db"))
        while time.monotonic() - begin < limit_s:
            going = [one for one in tallies if tallies[one].crashes < ENOUGH]
            if not going:
                break
            target = min(going, key=lambda one: tallies[one].seconds)  # each has the same time
            run_batch(target, folder, number, tallies[target])
            number += 1
    for name, tally in tallies.items():
        print(f"{name}: {tally.executions:,} executions, {tally.refused:,} refused, {tally.seconds:.1f} s, "
              f"slowest {tally.slowest_s * 1e3:.0f} ms, {tally.crashes} crashes")  # fmt: skip
    crashes = sum(tally.crashes for tally in tallies.values())
    executions = sum(tally.executions for tally in tallies.values())
    print(f"{executions:,} executions in {time.monotonic() - begin:.0f} s, {crashes} crashes")
    sys.exit(1 if crashes else 0)


if __name__ == "__main__":
    main()
