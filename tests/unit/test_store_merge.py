"""Merging results files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from store_samples import ENVIRONMENT, GPU, SOURCE, TEMPLATE, attempt, bursts, measurement, outcome, race, start

from gemmsweep.errors import DatabaseError, UsageError
from gemmsweep.protocol import Counter
from gemmsweep.store import connect
from gemmsweep.store.merge import merge
from gemmsweep.store.records import MergeCounts
from gemmsweep.store.runs import open_store


def contents(path: Path) -> tuple[object, ...]:
    with open_store(path, readonly=True) as store:
        runs = sorted(store.runs(), key=lambda run: run["run_id"])
        details = [store.run_detail(run["run_id"]) for run in runs]
        tables = ("environments", "sources", "sweeps", "runs", "rounds", "packed_rounds", "counters")
        sizes = [store.connection.raw.execute(f"SELECT count(*) FROM {table}").fetchone() for table in tables]
        return runs, details, sizes


def book(path: Path, template: str) -> Path:
    with open_store(path) as store:
        store.save_source(SOURCE, "simt", TEMPLATE)
        race(store, start(template=template), {"BK=8": 2100.0, "BK=16": 1900.0})
        key = store.begin_sweep(start(template=template), ENVIRONMENT)
        store.save_attempt(key, attempt("BK=8"))
        store.save_round(key, 0, bursts(["BK=8"], 0))
    return path


def test_merging_twice_changes_nothing(tmp_path: Path) -> None:
    ours, theirs = book(tmp_path / "ours.db", "simt"), book(tmp_path / "theirs.db", "mma")
    assert merge(ours, [theirs]) == MergeCounts(added=2, runs=4)
    once = contents(ours)
    assert merge(ours, [theirs, theirs]) == MergeCounts(known=4)
    assert contents(ours) == once
    assert once[2] == [(1,), (4,), (4,), (8,), (2,), (6,), (8,)]


def test_a_copy_is_equal(tmp_path: Path) -> None:
    original = book(tmp_path / "original.db", "simt")
    merge(tmp_path / "copy.db", [original])
    assert contents(tmp_path / "copy.db") == contents(original)


def test_a_sweep_that_was_finished_elsewhere_is_updated_and_never_undone(tmp_path: Path) -> None:
    early, late = book(tmp_path / "early.db", "simt"), tmp_path / "late.db"
    merge(late, [early])
    with open_store(late) as store:
        session = store.find_session("request", GPU.uuid)
        assert session is not None
        [sweep] = session.sweeps
        store.save_round(sweep.key, 1, bursts(["BK=8"], 1))
        store.finish_sweep(sweep.key, outcome({"BK=8": measurement(2100)}, winner="BK=8"))
        store.finish_session(session.session_id)
    finished = contents(late)
    assert merge(late, [early]) == MergeCounts(known=2)
    assert contents(late) == finished
    assert merge(early, [late]) == MergeCounts(updated=1, known=1, runs=1)
    assert contents(early) == finished
    with open_store(early, readonly=True) as store:
        session = store.find_session("request", GPU.uuid)
        assert session is not None
        assert session.finished


def counted(path: Path, **counters: float) -> Path:
    """The counters of the first run, as `profile` stores them later."""
    with open_store(path) as store:
        key = next(store.stored_sweeps()).run_keys["BK=8"]
        store.save_counters(key, [Counter(name, value, "", "ncu") for name, value in counters.items()])
    return path


def counters_of(path: Path) -> dict[str, float]:
    with open_store(path, readonly=True) as store:
        found = next(store.runs())["counters"]
    return {name: one["value"] for name, one in found.items() if one["basis"] == "ncu"}


def test_counters_of_a_sweep_that_both_know_come_together(tmp_path: Path) -> None:
    ours, theirs = book(tmp_path / "ours.db", "simt"), tmp_path / "theirs.db"
    merge(theirs, [ours])
    counted(theirs, spills=3, conflicts=7)
    counted(ours, conflicts=8, stalls=2)
    assert merge(ours, [theirs]) == MergeCounts(updated=1, known=1)
    assert counters_of(ours) == {"conflicts": 8, "stalls": 2, "spills": 3}
    once = contents(ours)
    assert merge(ours, [theirs]) == MergeCounts(known=2)
    assert contents(ours) == once


def test_a_sweep_measured_further_elsewhere_keeps_the_counters_it_had_here(tmp_path: Path) -> None:
    early, late = tmp_path / "early.db", tmp_path / "late.db"
    with open_store(early) as store:
        key = store.begin_sweep(start(), ENVIRONMENT)
        store.save_attempt(key, attempt("BK=8"))
    merge(late, [early])
    with open_store(late) as store:
        store.save_round(next(store.stored_sweeps()).key, 0, bursts(["BK=8"], 0))
    counted(early, conflicts=8, stalls=2)
    counted(late, conflicts=7)
    with open_store(early) as store:
        session = store.find_session("request", GPU.uuid)
        assert session is not None
        store.finish_session(session.session_id)
    assert merge(early, [late]) == MergeCounts(updated=1, runs=1)
    assert counters_of(early) == {"conflicts": 7, "stalls": 2}
    with open_store(early, readonly=True) as store:
        session = store.find_session("request", GPU.uuid)
        assert session is not None and session.finished, "as one of the files says"


def test_the_file_that_cannot_grow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = book(tmp_path / "ours.db", "simt"), book(tmp_path / "theirs.db", "mma")
    with open_store(theirs) as store:
        store.save_source("6" * 64, "large", random.Random(1).randbytes(100_000).hex())
    opened = connect.open_for_writing

    def on_a_full_disk(path: Path, warn: connect.Warn) -> connect.Connection:
        connection = opened(path, warn)
        [pages] = connection.raw.execute("PRAGMA page_count").fetchone()
        connection.raw.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr("gemmsweep.store.runs.open_for_writing", on_a_full_disk)
    with pytest.raises(DatabaseError, match=r"ours\.db cannot grow: the disk is full"):
        merge(ours, [theirs])


def test_a_file_that_contradicts_itself_is_named(tmp_path: Path) -> None:
    ours, theirs = book(tmp_path / "ours.db", "simt"), tmp_path / "theirs.db"
    merge(theirs, [ours])
    with open_store(theirs) as store:
        store.connection.raw.execute("UPDATE sweeps SET sweep_id = 'other' || key")
    with pytest.raises(DatabaseError, match=r"theirs\.db is damaged \(UNIQUE constraint failed: runs\.run_id\)"):
        merge(ours, [theirs])


def test_a_file_that_breaks_while_it_is_read_is_named_and_not_the_one_of_db(tmp_path: Path) -> None:
    theirs = book(tmp_path / "theirs.db", "simt")
    with open_store(theirs) as store:
        (page,) = store.connection.raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'runs'").fetchone()
        (size,) = store.connection.raw.execute("PRAGMA page_size").fetchone()
    content = bytearray(theirs.read_bytes())
    content[(page - 1) * size : page * size] = b"\xff" * size
    theirs.write_bytes(content)
    with pytest.raises(DatabaseError, match=r"theirs\.db is damaged\. Restore a copy, or name another file\.$"):
        merge(tmp_path / "ours.db", [theirs])


def test_sources_and_host_can_be_left_behind_and_come_later(tmp_path: Path) -> None:
    original, shared = book(tmp_path / "original.db", "simt"), tmp_path / "shared.db"
    merge(shared, [original], without_sources=True, redact_host=True)
    assert b"bench-7" not in shared.read_bytes()
    with open_store(shared, readonly=True) as store:
        detail = store.run_detail(next(store.runs())["run_id"])
        assert detail["source_sha256"] == SOURCE
        assert detail["template_source"] is detail["rendered_source"] is detail["build_log"] is None
    merge(shared, [original])
    with open_store(shared, readonly=True) as store:
        assert store.run_detail(next(store.runs())["run_id"])["rendered_source"] == TEMPLATE.replace("$BK", "BK=8")


def test_a_file_that_cannot_be_merged_is_the_one_to_change_and_leaves_no_target(tmp_path: Path) -> None:
    good, bad, target = book(tmp_path / "good.db", "simt"), tmp_path / "README.md", tmp_path / "results.db"
    bad.write_text("# Not a database\n" * 100)
    with pytest.raises(DatabaseError, match=r"README\.md is not an SQLite database\. Name another file\.$"):
        merge(target, [good, bad])
    assert not target.exists()


def test_a_bad_file_adds_nothing(tmp_path: Path) -> None:
    ours = book(tmp_path / "ours.db", "simt")
    before = contents(ours)
    (tmp_path / "bad.db").write_text("not a database" * 100)
    with pytest.raises(DatabaseError, match=r"bad\.db is not an SQLite database"):
        merge(ours, [tmp_path / "bad.db"])
    with pytest.raises(UsageError, match="into itself"):
        merge(ours, [ours])
    assert contents(ours) == before
