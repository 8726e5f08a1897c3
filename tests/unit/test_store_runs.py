"""What is saved comes back: the JSON contract, filters, the best, resuming, and where a sweep may start."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_samples import (
    BUILD,
    CUBLAS,
    ENVIRONMENT,
    GPU,
    LABELS,
    PROBLEM,
    SOURCE,
    TEMPLATE,
    attempt,
    bursts,
    measurement,
    outcome,
    race,
    start,
)

from gemmsweep.errors import DatabaseError, UsageError
from gemmsweep.model import DTYPES, Errors, Inputs, Problem
from gemmsweep.protocol import Burst, Counter
from gemmsweep.record import Relation, SweepStart
from gemmsweep.report.against import standing
from gemmsweep.store.filters import Filter
from gemmsweep.store.ids import short, uuid7
from gemmsweep.store.runs import Store, open_store

TIMES = {"BK=8": 2100.0, "BK=16": 1900.0, "BK=32": 2300.0}


def words(text: str) -> list[str]:
    return text.split()


RUN = words("""run_id sweep_id started_at status reason problem device template source_sha256 config varied regime l2
protocol rounds finals inputs median_us ci95_us tflops pct_peak pct_peak_at_clock gbps pct_bandwidth joules references
error build occupancy_pct limiter counters""")
INSIDE = {
    "problem": words("m n k batch a_dtype b_dtype d_dtype acc dtype layout lda ldb ldd beta epilogue"),
    "device": words("name uuid arch sm_count power_limit_w"),
    "error": words("max_scaled rel_fro rel_fro_vendor"),
    "build": words("compiler registers spill_bytes smem_bytes compile_ms"),
}
SWEEP = words("""sweep_id experiment started_at varied regime l2 protocol rounds verdict winner_run_id pairs_different
contended stopped""")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "results.db") as opened:
        opened.save_source(SOURCE, "simt", TEMPLATE)
        yield opened


def finals(**changes: Any) -> SweepStart:
    return start(kind="finals", varied=None, **changes)


def test_json_has_exactly_the_keys_of_the_contract(store: Store) -> None:
    key = race(store, start(), TIMES)
    store.save_attempt(key, attempt("BK=64", status="constraint", reason="too much", build=None, errors=None))
    runs = list(store.runs())
    assert len(runs) == 4
    for run in runs:
        assert list(run) == RUN
        assert {name: list(run[name]) for name in INSIDE} == INSIDE
        assert list(run["references"]["cublas"]) == ["median_us", "ci95_us", "ratio", "ci95", "kernels", "version"]
        json.dumps(run, allow_nan=False)
    [sweep] = store.sweeps()
    assert set(SWEEP) <= set(sweep)
    assert (sweep["verdict"], sweep["rounds"], sweep["contended"]) == ("winner", 20, False)
    assert sweep["winner_run_id"] == runs[1]["run_id"]
    race(store, finals(), TIMES)
    [best] = store.best()
    assert list(best) == [*RUN, "decision", "ties", "margin_pct", "finalists"]
    assert (best["finalists"], [sweep["raced"] for sweep in store.sweeps()]) == (3, [3, 3])


def test_figures_are_derived(store: Store) -> None:
    race(store, start(), TIMES)
    run = list(store.runs())[1]
    tflops = 2 * 4096**3 / 1900e-6 / 1e12
    assert run["median_us"] == 1900
    assert run["ci95_us"] == [1881.0, 1919.0]
    assert run["tflops"] == pytest.approx(tflops)
    assert run["pct_peak"] == pytest.approx(100 * tflops / 67)
    assert run["pct_peak_at_clock"] == pytest.approx(100 * tflops / (67 * 1650 / 1980))
    assert run["gbps"] == pytest.approx(PROBLEM.compulsory_bytes / 1900e-6 / 1e9)
    assert run["pct_bandwidth"] == pytest.approx(run["gbps"] / 48)
    assert run["counters"]["power_w"] == {"value": None, "unit": "W", "basis": "nvml"}
    cublas = run["references"].pop("cublas")
    assert run["references"] == {}
    assert [cublas["ratio"], *cublas["ci95"]] == pytest.approx([2000 / 1900, 2000 / 1900 - 0.01, 2000 / 1900 + 0.01])
    assert (cublas["median_us"], cublas["kernels"], cublas["version"]) == (2000.0, ["nvjet_sm90"], "13.0")
    assert cublas["ci95_us"] == [1980.0, 2020.0]
    assert (run["source_sha256"], run["inputs"], run["finals"]) == (SOURCE, "normal(seed=0)", False)


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16", "bf16"])
def test_bandwidth_agrees_with_the_model(store: Store, dtype: str, beta: float) -> None:
    problem = Problem.of(100, 2000, 30, dtype, beta=beta)
    race(store, start(problem=problem), {"BK=8": 10.0}, rounds=0)
    [run] = store.runs()
    assert run["gbps"] == pytest.approx(problem.compulsory_bytes / 10e-6 / 1e9)
    assert [run["problem"][name] for name in ("a_dtype", "b_dtype", "d_dtype")] == [
        DTYPES[dtype][at] for at in (0, 0, 1)
    ]


def test_a_failed_config_is_a_row_with_nulls(store: Store) -> None:
    key = store.begin_sweep(start(), ENVIRONMENT)
    refused = replace(BUILD, ok=False, reason="error: \0bad \udce9", registers=None, compile_ms=math.nan)
    failed = attempt("BK=8", status="compile", reason=refused.reason, build=refused, errors=Errors(math.inf, math.nan))
    store.save_attempt(key, failed)
    store.finish_sweep(key, outcome({}, verdict="none", winner=None, margin_pct=math.nan, stopped=None))
    [run] = store.runs()
    assert (run["status"], run["reason"]) == ("compile", "error: bad \\udce9")
    assert run["median_us"] is run["tflops"] is run["ci95_us"] is run["build"]["compile_ms"] is None
    assert run["error"] == {"max_scaled": None, "rel_fro": None, "rel_fro_vendor": None}
    assert (run["references"], run["counters"]) == ({}, {})
    [sweep] = store.sweeps()
    assert sweep["verdict"] is sweep["winner_run_id"] is sweep["stopped"] is None


def test_what_sqlite_cannot_hold_is_refused_or_null(store: Store) -> None:
    with pytest.raises(DatabaseError, match="seed 9223372036854775808 does not fit"):
        store.begin_sweep(start(inputs=Inputs(seed=2**63)), ENVIRONMENT)
    key = store.begin_sweep(start(), ENVIRONMENT)
    run_key = store.save_attempt(key, attempt("BK=8", config={"BK": 8, "BIG": 2**70}))
    store.save_round(key, 0, [Burst("BK=8", 8_000_000, 4, 1700, 690_000, 2**64 - 1)])
    store.save_counters(run_key, [Counter("a", math.nan, "%", "gpm"), Counter("b", math.inf, "%", "gpm")])
    [run] = store.runs()
    assert [one["value"] for one in run["counters"].values()] == [None, None]
    assert run["config"]["BIG"] == 2**70
    assert store.run_detail(run["run_id"])["round_values"][0]["throttle"] is None
    for time in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(DatabaseError, match="no usable time"):
            store.finish_sweep(key, outcome({"BK=8": measurement(time)}))
    assert next(store.stored_sweeps()).outcome is None


def test_an_interrupted_sweep_comes_back_as_it_was(store: Store) -> None:
    begun = start()
    key = store.begin_sweep(begun, ENVIRONMENT)
    for label in LABELS:
        store.save_attempt(key, attempt(label))
    store.save_attempt(key, CUBLAS)
    for index in range(3):
        store.save_round(key, index, bursts([*LABELS, "cublas"], index))
    assert store.find_session("another request", GPU.uuid) is None
    assert store.find_session(begun.request_key, "another GPU") is None
    session = store.find_session(begun.request_key, GPU.uuid)
    assert session is not None
    assert not session.finished
    [sweep] = session.sweeps
    assert (sweep.start, sweep.environment, sweep.outcome) == (begun, ENVIRONMENT, None)
    stored = replace(attempt("BK=8"), build=replace(BUILD, log=""))
    assert sweep.attempts == {"BK=8": stored, **{one: sweep.attempts[one] for one in LABELS[1:]}, "cublas": CUBLAS}
    assert [one["cublas"] for one in sweep.rounds] == [bursts([*LABELS, "cublas"], index)[3] for index in range(3)]
    assert {run["status"] for run in store.runs()} == {"unfinished"}
    assert store.known(PROBLEM, GPU.device_class) == []


def test_a_finished_session_is_recognised_with_its_outcome(store: Store) -> None:
    begun = start()
    key = race(store, begun, TIMES)
    store.finish_session(begun.session_id)
    session = store.find_session(begun.request_key, GPU.uuid)
    assert session is not None
    assert session.finished
    [sweep] = session.sweeps
    measured = {label: measurement(us, 2000 / us) for label, us in TIMES.items()}
    assert sweep.outcome == outcome({**measured, "cublas": measurement(2000)})
    assert sweep.rounds[5]["BK=16"] == bursts([*TIMES, "cublas"], 5)[1]
    assert store.sweep_id(key) == sweep.sweep_id
    query = "SELECT count(*), min(burst_ns), max(throttle) FROM round_values"
    assert store.connection.raw.execute(query).fetchone() == (80, 8_000_000, 4)
    assert store.connection.raw.execute("SELECT count(*) FROM rounds").fetchone() == (0,)


def test_show_run_has_sources_log_and_rounds(store: Store) -> None:
    race(store, start(), TIMES)
    run_id = next(store.runs())["run_id"]
    for piece in (run_id, short(run_id), run_id[-5:].upper()):
        assert store.run_detail(piece)["run_id"] == run_id
    detail = store.run_detail(run_id)
    assert detail["rendered_source"] == TEMPLATE.replace("$BK", "BK=8")
    assert (detail["template_source"], detail["build_log"]) == (TEMPLATE, BUILD.log)
    assert [one["round"] for one in detail["round_values"]] == list(range(20))
    sizes = dict(store.connection.raw.execute("SELECT name, length(text_zlib) FROM sources").fetchall())
    assert sizes["simt BK=8"] < 0.15 * sizes["simt"]  # a rendered kernel is stored as its difference


def test_ids(store: Store) -> None:
    race(store, start(), TIMES)
    run_id = next(store.runs())["run_id"]
    with pytest.raises(UsageError, match="fits several runs"):
        store.run_detail(run_id[:6])
    with pytest.raises(UsageError, match="no run has the id"):
        store.run_detail("fffffffff")
    with pytest.raises(UsageError, match="at least 4"):
        list(store.runs(Filter(sweep="xyz%")))
    ids = [uuid7() for _ in range(200)]
    assert len(set(map(short, ids))) == 200
    assert all(one[14] == "7" and one[19] in "89ab" for one in ids)


def test_filters(store: Store) -> None:
    race(store, start(experiment="tiles"), TIMES)
    other = Problem.of(512, 4096, 4096, "fp16")
    race(store, start(template="mma", problem=other, regime="burst"), {"BK=8": 50.0})
    key = store.begin_sweep(start(session_id="last"), ENVIRONMENT)
    store.save_attempt(key, attempt("BK=8", status="timeout"))

    def count(**wanted: Any) -> int:
        return len(list(store.runs(Filter(**wanted))))

    assert count() == 5
    assert (count(experiment="tiles"), count(template="mma"), count(shape=("512X4096x4096",))) == (3, 1, 1)
    assert count(shape=("512x4096x4096", "4096x4096x4096")) == 5
    assert (count(dtype="fp32"), count(device="h200"), count(device="GPU-1234"), count(device="700W")) == (4, 5, 5, 5)
    assert (count(status="timeout"), count(regime="burst"), count(last=True), count(last=True, template="mma")) == (
        1,
        1,
        1,
        1,
    )
    first = next(store.sweeps())
    assert (count(sweep=short(first["sweep_id"])), count(run=short(first["winner_run_id"]))) == (3, 1)
    assert [len(list(store.sweeps(Filter(**wanted)))) for wanted in ({"template": "mma"}, {"last": True})] == [1, 1]
    with pytest.raises(UsageError, match="Write MxNxK"):
        count(shape=("512x4096",))
    with pytest.raises(UsageError, match="Choose one of: ok, constraint"):
        count(status="fine")


def test_the_latest_command_is_all_of_its_problems_and_nothing_older(store: Store) -> None:
    small, large = {"command": "run -2", "request_key": "small"}, {"command": "run -2", "request_key": "large"}
    sessions = [
        ("a", {"command": "run -1", "request_key": "other"}),
        ("b", small),
        ("c", large),
        ("d", small),
        ("e", large),
    ]
    for session, asked in sessions:
        race(store, start(session_id=session, **asked), TIMES)
    race(store, start(session_id="e", position=1, **large), TIMES)
    seen = store.connection.raw.execute("SELECT sweep_id, session_id FROM sweeps").fetchall()
    of = dict(tuple(row) for row in seen)
    assert [of[sweep["sweep_id"]] for sweep in store.sweeps(Filter(last=True))] == ["d", "e", "e"]


def test_finals_with_a_hot_l2_are_not_exported_and_it_says_so(store: Store) -> None:
    race(store, start(kind="finals", l2="hot"), TIMES)
    assert not list(store.best(Filter()))
    assert "hot L2 don't count" in store.why_empty(Filter(), finals=True)


def test_why_empty_names_the_filter_and_what_there_is(store: Store) -> None:
    assert "no runs yet" in store.why_empty(Filter(template="simt"))
    race(store, start(), TIMES)
    race(store, start(template="mma", problem=Problem.of(1, 2, 3, "fp16")), {"BK=8": 50.0})
    assert store.why_empty(Filter(template="smit")) == "no run has template 'smit'. On record: mma, simt."
    both = store.why_empty(Filter(template="mma", dtype="fp32"))
    assert both == "no run has dtype 'fp32' among those with template mma. On record: fp16."
    assert "no verified finals" in store.why_empty(Filter(template="mma"), finals=True)
    assert store.why_empty(Filter(layout="nt")) == "no run has layout 'nt'. On record: nn."
    assert len(list(store.sweeps(Filter(layout="nn")))) == 2
    either = ("7x7x7", "8x8x8")
    assert store.why_empty(Filter(shape=either)).startswith("no run has shape '7x7x7' or '8x8x8'. On record: 1x2x3, ")
    both = store.why_empty(Filter(shape=("1x2x3", "8x8x8"), dtype="bf16"))
    assert both == "no run has dtype 'bf16' among those with shape 1x2x3 or 8x8x8. On record: fp16."


def test_best_comes_from_the_latest_undisturbed_finals(store: Store) -> None:
    race(store, start(), {"BK=8": 1000.0})  # faster, but the figure that selected
    race(store, finals(), {"BK=8": 1500.0, "BK=16": 1600.0})
    race(store, finals(), {"BK=8": 2100.0, "BK=16": 1900.0}, verdict="tie", ties=("BK=8", "BK=16"), margin_pct=0.4)
    race(store, finals(), {"BK=32": 10.0}, contended=True)
    race(store, finals(l2="hot"), {"BK=32": 10.0})
    key = store.begin_sweep(finals(), ENVIRONMENT)
    store.save_attempt(key, attempt("BK=32"))
    [best] = store.best()
    assert (best["config"]["BK"], best["median_us"], best["decision"], best["margin_pct"]) == (16, 1900.0, "tie", 0.4)
    tied = [run for run in store.runs(Filter(sweep=best["sweep_id"])) if run["config"]["BK"] == 8]
    assert best["ties"] == [tied[0]["run_id"]]
    assert [run["config"]["BK"] for run in store.best(Filter(l2="hot"))] == [32]
    assert list(store.best(Filter(template="mma"))) == []
    elsewhere = replace(ENVIRONMENT, device=replace(GPU, power_limit_w=350.0, uuid="GPU-2"))
    race(store, finals(), {"BK=8": 1500.0}, environment=elsewhere)
    assert [run["device"]["power_limit_w"] for run in store.best()] == [350.0, 700.0]


def test_finals_without_the_best_so_far_replace_it_unless_it_is_certainly_faster(store: Store) -> None:
    def best() -> int:
        (found,) = store.best()
        return int(found["config"]["BK"])

    race(store, finals(), {"BK=8": 1500.0, "BK=16": 1600.0}, winner="BK=8")
    race(store, finals(), {"BK=32": 1900.0}, winner="BK=32")  # of another file, say
    assert best() == 8
    race(store, finals(), {"BK=8": 1800.0, "BK=16": 1700.0}, winner="BK=16")  # raced again, and it lost
    assert best() == 16
    assert store.known(PROBLEM, GPU.device_class)[0].config["BK"] == 16
    race(store, finals(), {"BK=32": 1650.0}, winner="BK=32")  # BK=8 was faster once, but has lost since
    assert best() == 32
    race(store, finals(), {"BK=8": 1670.0}, winner="BK=8")  # races of the same two differ by as much: the later one
    assert best() == 8
    race(store, finals(), {"BK=32": 1400.0}, winner="BK=32")
    assert best() == 32
    race(store, finals(), {"BK=8": 1900.0}, winner="BK=8")
    assert best() == store.known(PROBLEM, GPU.device_class)[0].config["BK"] == 32
    key = store.begin_sweep(finals(), ENVIRONMENT)  # of a newer source, slower than the old one was
    store.save_source("6" * 64, "simt", TEMPLATE + "// changed")
    store.save_attempt(key, attempt("BK=16", source_sha256="6" * 64))
    store.save_attempt(key, CUBLAS)
    store.finish_sweep(key, outcome({"BK=16": measurement(1950.0, 2000 / 1950)}, winner="BK=16"))
    assert best() == 16


OLD, NEW, OTHER = ("simt", "5" * 64), ("simt", "6" * 64), ("mma", "7" * 64)


@pytest.mark.parametrize(("sessions", "stand"), [
    # The changed kernel's open race stood, and says nothing against a decision after it.
    ([(OLD, {8: 1000, 16: 1200}, True), (NEW, {8: 1950, 16: 1951}, False), (OTHER, {32: 1500, 64: 1600}, True)],
     [1000, 1950, 1500]),
    # What an open race found is certainly faster than a decision that never raced it.
    ([(OLD, {4: 1950, 2: 1990}, True), (OLD, {8: 1000, 16: 1001}, False), (OLD, {32: 1900, 64: 1990}, True)],
     [1950, 1000, 1000]),
    ([(OLD, {4: 1950, 2: 1990}, True), (OLD, {8: 1000, 16: 1001}, False), (OLD, {32: 1800, 64: 1801}, False)],
     [1950, 1000, 1000]),
    ([(OLD, {8: 1000, 16: 1001}, False), (OLD, {32: 1900, 64: 1901}, False)], [1000, 1000]),
    ([(OLD, {8: 1000, 16: 1001}, False), (OTHER, {32: 1004, 64: 1005}, False)], [1000, 1004]),
    # One that raced alone is neither a decision nor forgotten.
    ([(OLD, {8: 1000, 16: 1200}, True), (OLD, {32: 1002}, True), (OLD, {64: 1900, 128: 1901}, False)], [1000, 1000, 1000]),
    ([(OLD, {32: 1002}, True), (OLD, {64: 1900, 128: 1990}, True)], [1002, 1002]),
    ([(OLD, {32: 1002}, True), (OLD, {64: 1900, 128: 1990}, False)], [1002, 1002]),
    ([(OLD, {32: 1002}, True), (OLD, {64: 1004, 128: 1990}, False)], [1002, 1004]),
])  # fmt: skip
def test_each_session_is_held_against_what_stands(store: Store, sessions: list[Any], stand: list[float]) -> None:
    told = []
    for (template, source), times, decided in sessions:
        key = store.begin_sweep(finals(template=""), ENVIRONMENT)
        store.save_source(source, template, source)
        for bk in times:
            store.save_attempt(key, attempt(f"BK={bk}", template=template, source_sha256=source))
        store.save_attempt(key, CUBLAS)
        store.finish_sweep(key, outcome(
            {f"BK={bk}": measurement(us, 2000 / us) for bk, us in times.items()}, winner=f"BK={min(times, key=times.get)}",
            verdict="winner" if decided else "undecided", margin_pct=None if len(times) == 1 else 5.0,
        ))  # fmt: skip
        told += [run["median_us"] for run in store.best()]
    assert told == stand
    assert store.known(PROBLEM, GPU.device_class)[0].median_ns == 1e3 * stand[-1]


def test_own_power_decides_nothing_where_no_cap_held_and_equal_clock_was_disturbed(store: Store) -> None:
    race(store, finals(), {"BK=8": 1500.0, "BK=16": 1600.0}, winner="BK=8", rounds=0)
    session = uuid7()
    race(store, finals(session_id=session), {"BK=8": 1600.0, "BK=16": 1500.0}, contended=True, rounds=0)
    race(store, finals(session_id=session, regime="own-power"), {"BK=8": 1900.0, "BK=16": 1950.0}, rounds=0)
    assert [run["median_us"] for run in store.best()] == [1500.0]


def race_under_a_cap(store: Store, equal_clock: dict[str, float], own_power: dict[str, float]) -> None:
    """A session's finals by both regimes, won by BK=8."""
    session = uuid7()
    for regime, times in (("equal-clock", equal_clock), ("own-power", own_power)):
        race(store, finals(session_id=session, regime=regime), times, winner="BK=8", rounds=0)
    store.connection.raw.execute("UPDATE sweeps SET power_capped_pct = 100")


@pytest.mark.parametrize(("capped", "kept"), [(100.0, 1500.0), (0.0, 1600.0)])
def test_equal_clock_under_a_cap_does_not_replace_own_power(store: Store, capped: float, kept: float) -> None:
    race_under_a_cap(store, {"BK=8": 1550.0, "BK=16": 1560.0}, {"BK=8": 1500.0, "BK=16": 1510.0})
    key = race(store, finals(), {"BK=8": 1650.0, "BK=16": 1600.0}, winner="BK=16", rounds=0)
    store.connection.raw.execute("UPDATE sweeps SET power_capped_pct = ? WHERE key = ?", (capped, key))
    assert [run["median_us"] for run in store.best()] == [kept]


def test_a_winner_that_an_open_race_found_certainly_slower_is_replaced(store: Store) -> None:
    race(store, finals(), {"BK=8": 1500.0, "BK=64": 1600.0}, winner="BK=8", margin_pct=6.0)
    open_race = {"BK=8": 1500.0, "BK=16": 1485.0, "BK=32": 1484.0}
    race(store, finals(), open_race, winner="BK=16", verdict="undecided", ties=("BK=32", "BK=16"))
    assert [run["config"]["BK"] for run in store.best()] == [16], (
        "raced again, and it was not among who may be the fastest"
    )
    race(store, finals(), open_race, winner="BK=8", verdict="undecided", ties=("BK=32", "BK=16", "BK=8"))
    assert [run["median_us"] for run in store.best()] == [1500.0], "what was open is replaced by what is open"


def test_the_best_stand_in_the_order_of_their_sizes(store: Store) -> None:
    for m in (64, 8, 512):
        race(
            store, finals(problem=Problem.of(m, 4096, 4096)), {"BK=8": 1500.0, "BK=16": 1600.0}, winner="BK=8", rounds=0
        )
    assert [run["problem"]["m"] for run in store.best()] == [8, 64, 512]


def found_wrong(store: Store, label: str, **changes: Any) -> None:
    key = store.begin_sweep(start(**changes), ENVIRONMENT)
    store.save_attempt(key, attempt(label, status="incorrect", reason="random data: off", errors=None))
    store.finish_sweep(key, outcome({}, verdict="none", winner=None, margin_pct=None, adopted=False))


@pytest.mark.parametrize("where", [{"kind": "finals"}, {"kind": "axis"}, {"kind": "verify", "l2": "hot"}])
def test_what_was_found_wrong_since_stands_for_nothing(store: Store, where: dict[str, Any]) -> None:
    race_under_a_cap(store, {"BK=8": 1550.0, "BK=16": 1600.0}, {"BK=8": 1500.0, "BK=16": 1590.0})
    found_wrong(store, "BK=8", **where)
    (best,) = store.best()
    assert (best["config"]["BK"], best["median_us"], best["decision"]) == (16, 1590.0, "undecided")
    assert (best["margin_pct"], best["finalists"]) == (None, 1)
    known = store.known(PROBLEM, GPU.device_class)
    assert [(one.config["BK"], one.exported) for one in known] == [(16, True)], "nor does a sweep start from it"
    named = {run["run_id"]: run["config"]["BK"] for run in store.runs()}
    since = [{named[run_id] for run_id in sweep["wrong_since"]} for sweep in store.sweeps()]
    assert since[:2] == [{8}, {8}] and not any(since[2:]), "the races tell it themselves"
    told = [(run["config"]["BK"], bool(store.run_detail(run["run_id"])["wrong_since"])) for run in store.runs()]
    assert told[:4] == [(8, True), (16, False)] * 2
    found_wrong(store, "BK=16", **where)
    assert list(store.best()) == []
    assert store.nearest(PROBLEM, GPU.device_class) is None
    race(store, finals(), {"BK=8": 1700.0}, winner="BK=8", rounds=0)
    assert [run["median_us"] for run in store.best()] == [1700.0], "and was found right again"


def test_what_was_found_wrong_on_a_problem_does_not_start_it_from_another(store: Store) -> None:
    near = Problem.of(4000, 4000, 4000)
    race(store, finals(), {"BK=8": 1500.0, "BK=16": 1600.0}, winner="BK=8", rounds=0)
    assert store.nearest(near, GPU.device_class).config["BK"] == 8  # type: ignore[union-attr]
    found_wrong(store, "BK=8", problem=near)
    race(store, finals(), {"BK=8": 1500.0, "BK=16": 1600.0}, winner="BK=8", rounds=0)  # where it is right, it is right
    assert store.nearest(near, GPU.device_class).config["BK"] == 16  # type: ignore[union-attr]
    assert [run["config"]["BK"] for run in store.best()] == [8]


def test_what_two_races_say_of_one_config_is_no_difference(store: Store) -> None:
    def decided(label: str, ratio: float) -> None:
        key = store.begin_sweep(finals(), ENVIRONMENT)
        store.save_source(SOURCE, "simt", TEMPLATE)
        store.save_attempt(key, attempt(label))
        store.save_attempt(key, CUBLAS)
        narrow = replace(measurement(2000 / ratio), relations={"cublas": Relation(ratio, (ratio - 1e-4, ratio + 1e-4))})
        store.finish_sweep(key, outcome({label: narrow}, winner=label))

    decided("BK=8", 1.010)
    decided("BK=16", 1.000)
    assert [run["config"]["BK"] for run in store.best()] == [16], "apart by their intervals, by less than races repeat"
    decided("BK=8", 0.980)
    assert [run["config"]["BK"] for run in store.best()] == [16]


def test_states_of_l2_are_never_compared(store: Store) -> None:
    race(store, start(), {"BK=8": 1000.0, "BK=16": 1100.0})
    race(store, start(l2="hot"), {"BK=32": 500.0})
    race(store, finals(l2="hot"), {"BK=8": 2000.0, "BK=16": 2100.0})

    def best_first(l2: str) -> list[tuple[int, float]]:
        return [(k.config["BK"], k.median_ns / 1e3) for k in store.known(PROBLEM, GPU.device_class, l2=l2)]  # type: ignore[misc]

    assert best_first("cold") == [(8, 1000.0), (16, 1100.0)]
    assert best_first("hot") == [(8, 2000.0), (32, 500.0), (16, 2100.0)], "what was best of finals comes first"
    assert store.nearest(PROBLEM, GPU.device_class, l2="hot").config["BK"] == 8  # type: ignore[union-attr]


def test_rested_bursts_decide_nothing(store: Store) -> None:
    race(store, finals(), {"BK=8": 1500.0, "BK=16": 1600.0}, winner="BK=8")
    session = uuid7()
    race(store, finals(session_id=session), {"BK=8": 1600.0, "BK=16": 1500.0}, winner="BK=16", contended=True)
    race(store, finals(session_id=session, regime="burst"), {"BK=8": 1000.0, "BK=16": 900.0}, winner="BK=16")
    assert [run["config"]["BK"] for run in store.best()] == [8]
    assert store.known(PROBLEM, GPU.device_class)[0].config["BK"] == 8
    assert [run["config"]["BK"] for run in store.best(Filter(regime="burst"))] == [16], "where they are asked for"


def test_two_rounds_have_no_interval_and_nothing_certain(store: Store) -> None:
    key = store.begin_sweep(start(), ENVIRONMENT)
    store.save_source(SOURCE, "simt", TEMPLATE)
    store.save_attempt(key, attempt("BK=16"))
    store.save_attempt(key, CUBLAS)
    two = replace(measurement(1600.0), rounds=2, relations={"cublas": Relation(1.25, (0.0, math.inf))})
    store.finish_sweep(key, outcome({"BK=16": two, "cublas": measurement(2000)}))
    (run,) = store.runs()
    assert run["references"]["cublas"]["ci95"] is None
    assert standing(run["references"]["cublas"]) == "not told apart"
    (known,) = store.known(PROBLEM, GPU.device_class)
    assert not known.certain


def test_a_config_that_raced_alone_has_decided_nothing(store: Store) -> None:
    race(store, finals(), {"BK=8": 1500.0}, winner="BK=8", margin_pct=None)
    race(store, finals(), {"BK=8": 1510.0, "BK=16": 1512.0}, winner=None, verdict="undecided")
    assert [run["median_us"] for run in store.best()] == [1510.0], "an undecided race of two replaces it"
    race(store, finals(), {"BK=8": 1520.0, "BK=16": 1600.0}, winner="BK=8", margin_pct=5.0)
    race(store, finals(), {"BK=8": 1510.0, "BK=16": 1512.0}, winner=None, verdict="undecided")
    assert [run["median_us"] for run in store.best()] == [1520.0], "but no decision"


def test_an_undecided_race_replaces_what_it_is_certainly_faster_than(store: Store) -> None:
    race(store, finals(), {"BK=8": 1900.0, "BK=16": 2000.0}, winner="BK=8", margin_pct=5.0)
    race(store, finals(), {"BK=32": 1895.0, "BK=64": 1896.0}, winner="BK=32", verdict="undecided")
    assert [run["config"]["BK"] for run in store.best()] == [8], "not told apart from the winner of before"
    race(store, finals(), {"BK=32": 1500.0, "BK=64": 1501.0}, winner="BK=32", verdict="undecided")
    assert [run["config"]["BK"] for run in store.best()] == [32]


def test_an_undecided_race_replaces_a_decision_on_a_kernel_that_has_changed(store: Store) -> None:
    race(store, finals(), {"BK=8": 1500.0, "BK=16": 2000.0}, winner="BK=8", margin_pct=5.0)
    key = store.begin_sweep(finals(), ENVIRONMENT)
    store.save_source("6" * 64, "simt", TEMPLATE + "// changed")
    for bk in (8, 16):
        store.save_attempt(key, attempt(f"BK={bk}", source_sha256="6" * 64))
    store.save_attempt(key, CUBLAS)
    told = {"BK=8": measurement(1950.0, 2000 / 1950), "BK=16": measurement(1951.0, 2000 / 1951)}
    store.finish_sweep(key, outcome(told, winner="BK=8", verdict="undecided"))
    assert [run["median_us"] for run in store.best()] == [1950.0]


def test_an_undecided_race_brings_back_nothing_slower(store: Store) -> None:
    race(store, finals(), {"BK=16": 4000.0, "BK=64": 5000.0}, winner="BK=16", margin_pct=20.0)
    race(store, finals(), {"BK=8": 1500.0}, winner="BK=8", margin_pct=None)
    race(store, finals(), {"BK=8": 1510.0, "BK=32": 1512.0}, winner=None, verdict="undecided")
    assert [run["median_us"] for run in store.best()] == [1510.0]


def test_another_version_of_the_library_is_no_common_yardstick(store: Store) -> None:
    for bk, us, library_us, version in ((8, 1900.0, 2500.0, "12.4"), (32, 1500.0, 1600.0, "13.1")):
        key = store.begin_sweep(finals(), ENVIRONMENT)
        store.save_source(SOURCE, "simt", TEMPLATE)
        store.save_attempt(key, attempt(f"BK={bk}"))
        store.save_attempt(key, replace(CUBLAS, version=version))
        store.finish_sweep(key, outcome({f"BK={bk}": measurement(us, library_us / us)}, winner=f"BK={bk}"))
    assert [run["config"]["BK"] for run in store.best()] == [32]


def test_a_search_starts_from_what_is_exported(store: Store) -> None:
    session = uuid7()
    equal, own = finals(session_id=session), finals(session_id=session, regime="own-power")
    race(store, equal, {"BK=8": 1500.0, "BK=16": 1600.0}, winner="BK=8")  # capped half the time
    race(store, own, {"BK=8": 1700.0, "BK=16": 1650.0}, winner="BK=16")
    assert [run["config"]["BK"] for run in store.best()] == [16]
    assert store.known(PROBLEM, GPU.device_class)[0].config["BK"] == 16


def test_what_finals_saw_comes_before_what_an_axis_saw(store: Store) -> None:
    race(store, finals(), {"BK=8": 1500.0, "BK=16": 1600.0}, winner=None, verdict="undecided")
    race(store, start(), {"BK=8": 1550.0, "BK=32": 1000.0}, winner=None, verdict="undecided")
    (exported,) = store.best()
    found = store.known(PROBLEM, GPU.device_class)
    assert [(one.run_id == exported["run_id"], one.exported, one.config["BK"]) for one in found] == [
        (True, True, 8), (False, False, 32), (False, False, 16),
    ]  # fmt: skip
    assert [one.config["BK"] for one in store.starts(PROBLEM, GPU.device_class, "simt")] == [8, 16, 32]
    near = store.nearest(Problem.of(4000, 4000, 4000), GPU.device_class, "simt")
    assert near is not None
    assert near.run_id == exported["run_id"]
    race(store, start(template="mma"), {"BK=8": 1000.0})
    assert [one.exported for one in store.starts(PROBLEM, GPU.device_class, "mma")] == [False]


@pytest.mark.parametrize("spread", ["ratio", "reference"])
def test_a_ratio_to_a_reference_that_stumbled_comes_last(store: Store, spread: str) -> None:
    race(store, start(), {"BK=8": 1500.0, "BK=16": 1600.0})
    key = store.begin_sweep(start(), ENVIRONMENT)
    for one in (attempt("BK=32"), CUBLAS):
        store.save_attempt(key, one)
    library = replace(measurement(9000), ci95_ns=(1e6, 17e6) if spread == "reference" else (8.9e6, 9.1e6))
    interval = (1.0, 29.0) if spread == "ratio" else (9.0, 21.0)
    stumbled = replace(measurement(1700), relations={"cublas": Relation(15.0, interval)})
    store.finish_sweep(key, outcome({"BK=32": stumbled, "cublas": library}, winner=None))
    assert [one.config["BK"] for one in store.known(PROBLEM, GPU.device_class)] == [8, 16, 32]


def test_a_wrong_result_is_never_best(store: Store) -> None:
    key = race(store, finals(), {"BK=8": 2100.0, "BK=16": 1.0})
    store.save_attempt(key, attempt("BK=16", status="incorrect"))
    assert [run["config"]["BK"] for run in store.best()] == [8]
    assert [one.config["BK"] for one in store.known(PROBLEM, GPU.device_class)] == [8]


@pytest.mark.parametrize(("throttle", "regime"), [(4, "own-power"), (0, "equal-clock")])
def test_under_a_power_cap_own_power_decides(store: Store, throttle: int, regime: str) -> None:
    for one in ("equal-clock", "own-power"):
        key = store.begin_sweep(finals(session_id="s", regime=one), ENVIRONMENT)
        store.save_attempt(key, attempt("BK=8"))
        store.save_round(key, 0, [Burst("BK=8", 8_000_000, 4, throttle=throttle)])
        store.finish_sweep(key, outcome({"BK=8": measurement(10)}, winner="BK=8"))
    assert [run["regime"] for run in store.best()] == [regime]
    assert [run["regime"] for run in store.best(Filter(regime="equal-clock"))] == ["equal-clock"]
    race(store, finals(session_id="s"), {"BK=16": 1900.0})  # the session went on, and had no time for own power
    stands = [(run["regime"], run["config"]["BK"]) for run in store.best()]
    assert stands == [("own-power", 8) if throttle else ("equal-clock", 16)]


def test_a_session_that_went_on_does_not_undo_what_it_had_decided(store: Store) -> None:
    race(store, finals(session_id="s"), {"BK=8": 1500.0, "BK=16": 1600.0}, winner="BK=8")
    noisy = {"BK=8": 3500.0, "BK=16": 3600.0}
    race(store, finals(session_id="s"), noisy, winner="BK=8", verdict="undecided", ties=("BK=8", "BK=16"))
    assert [run["median_us"] for run in store.best()] == [1500.0]
    race(store, finals(session_id="s"), noisy, winner="BK=16")
    assert [(run["config"]["BK"], run["median_us"]) for run in store.best()] == [(16, 3600.0)]


def test_ratios_to_different_versions_of_a_library_are_made_comparable(store: Store) -> None:
    """A kernel on two threads is 0.95x NumPy on two, and faster than one that is 1.05x NumPy on one."""
    race(store, start(), {"BK=8": 1900.0})
    key = store.begin_sweep(start(), ENVIRONMENT)
    store.save_attempt(key, attempt("BK=16"))
    store.save_attempt(key, replace(CUBLAS, version="two threads"))
    store.save_round(key, 0, bursts(["BK=16", "cublas"], 0))
    store.finish_sweep(key, outcome({"BK=16": measurement(1050, 1000 / 1050), "cublas": measurement(1000)}))
    found = store.known(PROBLEM, GPU.device_class)
    assert [(one.config["BK"], one.version) for one in found] == [(16, "two threads"), (8, "13.0")]
    assert (found[0].speed or 0) > (found[1].speed or 0) > 0 and (found[0].ratio or 0) < (found[1].ratio or 0)


def test_known_and_nearest(store: Store) -> None:
    race(store, start(), TIMES)
    race(store, start(), {"BK=16": 2200.0})  # measured again: only this counts
    race(store, start(), {"BK=8": 1.0}, contended=True)
    race(store, start(template="mma"), {"BK=8": 1800.0})
    small = Problem.of(64, 4096, 4096)
    race(store, start(problem=small), {"BK=32": 30.0})
    found = store.known(PROBLEM, GPU.device_class)
    assert [(one.template, one.config["BK"]) for one in found] == [("mma", 8), ("simt", 8), ("simt", 16), ("simt", 32)]
    assert (found[0].reference, found[0].ratio, found[0].finals) == ("cublas", 2000 / 1800, False)
    assert (
        store.known(PROBLEM, "another GPU") == store.known(Problem.of(4096, 4096, 4096, "fp16"), GPU.device_class) == []
    )
    near = store.nearest(Problem.of(100, 4000, 4000), GPU.device_class, "simt")
    assert near is not None
    assert (near.problem, near.config["BK"]) == (small, 32)
    near = store.nearest(Problem.of(3000, 4000, 4000), GPU.device_class, "simt")
    assert near is not None
    assert (near.problem, near.config["BK"]) == (PROBLEM, 8)
    assert store.nearest(PROBLEM, GPU.device_class, "skinny") is None


def test_the_latest_command_is_a_selftest_only_where_there_is_no_other(store: Store) -> None:
    race(store, start(kind="selftest", session_id="before", experiment="aa"), TIMES)

    def latest(kind: str | None = None) -> set[str]:
        return {sweep["kind"] for sweep in store.sweeps(Filter(last=True, kind=kind))}

    assert latest() == {"selftest"}
    race(store, start(session_id="run"), TIMES)
    assert (latest(), store.newest_kind()) == ({"axis"}, "axis")
    race(store, start(kind="selftest", session_id="after", experiment="aa"), TIMES)
    assert (latest(), latest("selftest"), store.newest_kind()) == ({"axis"}, {"selftest"}, "selftest")
    assert store.newest_kind(Filter(last=True)) == "axis"
