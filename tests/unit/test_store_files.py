"""Results files: crashes, two writers, readers, and files that are not what they should be."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_samples import ENVIRONMENT, LABELS, attempt, bursts, race, start

import gemmsweep
from gemmsweep.errors import DatabaseError
from gemmsweep.store import connect, schema
from gemmsweep.store.runs import open_store

GOLDEN = Path(__file__).parents[1] / "golden" / "schema.sql"
PATHS = os.pathsep.join([str(Path(gemmsweep.__file__).parents[1]), str(Path(__file__).parent)])
WRITER = """
import sys
from store_samples import ENVIRONMENT, LABELS, attempt, bursts, start
from gemmsweep.store.runs import open_store
with open_store(sys.argv[1]) as store:
    key = store.begin_sweep(start(), ENVIRONMENT)
    for label in LABELS:
        store.save_attempt(key, attempt(label))
    for index in range(int(sys.argv[2])):
        store.save_round(key, index, bursts(LABELS, index))
        print(index, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


def writer(path: Path, rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": PATHS})


def test_kill_9_loses_at_most_the_round_in_flight(path: Path) -> None:
    process = writer(path, 1_000_000)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 30:
            process.send_signal(signal.SIGKILL)
            break
    printed = [30, *map(int, process.stdout.read().split())]
    process.wait()
    with open_store(path) as store:
        [sweep] = store.stored_sweeps(rounds=True)
        assert sweep.outcome is None
        assert len(sweep.rounds) - 1 in (printed[-1], printed[-1] + 1)
        assert all(set(bursts) == set(LABELS) for bursts in sweep.rounds)
        assert sweep.rounds[30]["BK=8"] == bursts(LABELS, 30)[0]
        assert store.connection.raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_two_writers_and_a_reader_do_not_disturb_each_other(path: Path) -> None:
    processes = [writer(path, 200) for _ in range(2)]
    outputs = [process.stdout for process in processes if process.stdout is not None]
    outputs[0].readline()
    with open_store(path, readonly=True) as store:
        seen = [sum(1 for _ in store.runs()) for _ in range(20)]
    for output in outputs:
        output.read()
    assert [process.wait() for process in processes] == [0, 0]
    assert all(count > 0 for count in seen)
    with open_store(path, readonly=True) as store:
        assert [len(sweep.rounds) for sweep in store.stored_sweeps(rounds=True)] == [200, 200]


def test_a_closed_file_is_complete_in_itself_and_reading_leaves_nothing_behind(path: Path) -> None:
    with open_store(path) as store:
        race(store, start(), {"BK=16": 1900.0})
    with open_store(path, readonly=True) as store:
        assert len(list(store.runs())) == 1
    assert os.listdir(path.parent) == ["results.db"]


def test_a_failed_write_leaves_no_trace(path: Path) -> None:
    with open_store(path) as store:
        key = store.begin_sweep(start(), ENVIRONMENT)
        store.save_attempt(key, attempt("BK=8"))
        with pytest.raises(KeyError):
            store.save_round(key, 0, bursts(["BK=8", "never saved"], 0))
        store.save_round(key, 0, bursts(["BK=8"], 0))
        assert store.connection.raw.execute("SELECT count(*) FROM rounds").fetchone() == (1,)


def test_what_is_written_together_is_there_as_a_whole_or_can_be_written_again(path: Path) -> None:
    with open_store(path) as store:
        key = store.begin_sweep(start(), ENVIRONMENT)

        def cut_short() -> None:
            with store.together():
                store.save_source("ab" * 32, "simt", "text")
                store.save_attempt(key, attempt("BK=8"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            cut_short()
        raw = store.connection.raw
        assert raw.execute("SELECT count(*) FROM runs").fetchone() == (0,)
        with store.together():
            store.save_source("ab" * 32, "simt", "text")
            store.save_attempt(key, attempt("BK=16"))
        with pytest.raises(KeyError):  # and not a round of BK=16
            store.save_round(key, 0, bursts(["BK=8"], 0))
        assert raw.execute("SELECT count(*) FROM sources WHERE name = 'simt'").fetchone() == (1,)
        assert raw.execute("SELECT label FROM runs").fetchall() == [("BK=16",)]


def test_readers_cannot_write(path: Path) -> None:
    with open_store(path) as store:
        race(store, start(), {"BK=16": 1900.0})
    before = path.read_bytes()
    with open_store(path, readonly=True) as store:
        with pytest.raises(DatabaseError, match="reading only"):
            store.finish_session("any")
        with pytest.raises(sqlite3.OperationalError):
            store.connection.raw.execute("DELETE FROM runs")
    assert path.read_bytes() == before


def test_schema_golden() -> None:
    raw = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(raw)
    query = "SELECT sql || ';' FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
    text = "\n".join(row[0] for row in raw.execute(query)) + "\n"
    if os.environ.get("GEMMSWEEP_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "a released migration never changes: add another (GEMMSWEEP_UPDATE_GOLDEN=1)"


def test_an_older_schema_is_read_through_a_copy_and_migrated_only_by_a_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(path) as store:
        race(store, start(), {"BK=16": 1900.0})
    before = path.read_bytes()

    known = len(schema.MIGRATIONS)

    def one_more(raw: sqlite3.Connection) -> None:
        raw.execute("ALTER TABLE runs ADD COLUMN note TEXT")

    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, one_more])
    with open_store(path, readonly=True) as store:
        assert len(list(store.runs())) == 1
        assert store.connection.raw.execute("SELECT note FROM runs").fetchone() == (None,)
    assert path.read_bytes() == before
    with open_store(path) as store:
        assert schema.version(store.connection.raw) == known + 1
    monkeypatch.undo()
    for readonly in (True, False):
        with pytest.raises(DatabaseError, match=rf"schema {known + 1}, this gemmsweep knows {known}\. Upgrade"):
            open_store(path, readonly=readonly)


def test_runs_from_before_there_were_accuracy_classes_are_of_their_problems(path: Path) -> None:
    shutil.copy(GOLDEN.parents[1] / "data" / "schema_1.db", path)
    with open_store(path, readonly=True) as store:
        before = (list(store.runs()), list(store.best()))
    assert {run["problem"]["acc"] for run in before[0]} == {"fp32"}
    assert [run["config"]["BK"] for run in before[1]] == [16]
    with open_store(path) as store:
        assert schema.version(store.connection.raw) == len(schema.MIGRATIONS)
        assert (list(store.runs()), list(store.best())) == before
        assert [attempt.acc for sweep in store.stored_sweeps() for attempt in sweep.attempts.values()] == ["fp32"] * 7


def _foreign(path: Path) -> None:
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE runs (mine)")
    raw.close()


def _damaged(path: Path) -> None:
    with open_store(path) as store:
        race(store, start(), {"BK=16": 1900.0})
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)


def _damaged_schema(path: Path) -> None:
    """So that SQLite's own message is not UTF-8."""
    with open_store(path) as store:
        race(store, start(), {"BK=16": 1900.0})
    content = bytearray(path.read_bytes())
    content[content.find(b"CREATE TABLE") + 7] = 255
    path.write_bytes(content)


def _use(path: Path, readonly: bool) -> None:
    with open_store(path, readonly=readonly) as store:
        list(store.runs())
        store.finish_session("any")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_foreign, "another program"),
        (lambda path: path.write_text("m,n,k\n" * 500), "not an SQLite database"),
        (lambda path: path.mkdir(), "is a directory"),
        (_damaged, "is damaged"),
        (_damaged_schema, "is damaged"),
        (os.mkfifo, "is no plain file"),
    ],
)
@pytest.mark.parametrize("readonly", [True, False])
def test_a_file_that_cannot_be_used(path: Path, spoil: Callable[[Path], object], sentence: str, readonly: bool) -> None:
    spoil(path)
    with pytest.raises(DatabaseError, match=sentence) as error:
        _use(path, readonly)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_of_two_names_is_not_written(path: Path) -> None:
    open_store(path).close()
    os.link(path, path.with_name("other.db"))
    with pytest.raises(DatabaseError, match="has 2 names"):
        open_store(path)
    open_store(path, readonly=True).close()


def test_missing_places(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="no results file"):
        open_store(tmp_path / "results.db", readonly=True)
    with pytest.raises(DatabaseError, match="no folder"):
        open_store(tmp_path / "absent" / "results.db")
    (tmp_path / "empty.db").touch()
    with open_store(tmp_path / "empty.db", readonly=True) as store:
        assert list(store.runs()) == []


def test_locked_for_too_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(path).close()
    monkeypatch.setattr(connect, "BUSY_SECONDS", 0.1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DatabaseError, match="locked by another process"):
        open_store(path)
    with pytest.raises(DatabaseError, match="locked by another process"):
        open_store(path, readonly=True)
    other.close()


def test_without_shared_memory_it_says_so_and_works(path: Path) -> None:
    raw = sqlite3.connect(f"{path.as_uri()}?vfs=unix-dotfile", uri=True, isolation_level=None)
    said: list[str] = []
    connect.use_wal(raw, path, said.append)
    raw.execute("CREATE TABLE works (well)")
    raw.close()
    assert len(said) == 1
    assert "write-ahead logging" in said[0]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_nobody(work: Callable[[], None]) -> None:
    """Run in a child process that may not write others' files (tests often run as root)."""
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_read_only_folder_can_be_read_and_says_why_it_cannot_be_written(open_folder: Path, mode: str) -> None:
    path = open_folder / "results.db"
    with open_store(path) as store:
        race(store, start(), {"BK=16": 1900.0})
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA journal_mode = {mode}")
    raw.close()
    path.chmod(0o444)
    open_folder.chmod(0o555)

    def work() -> None:
        with open_store(path, readonly=True) as store:
            assert len(list(store.runs())) == 1
        with pytest.raises(DatabaseError, match=r"cannot be written\. Change its permissions"):
            open_store(path)

    as_nobody(work)
