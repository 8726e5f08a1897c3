"""Axes, values and adoption as a user types and sees them."""

from __future__ import annotations

import itertools
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import store_samples
from hypothesis import given
from hypothesis import strategies as st

from gemmsweep import plan
from gemmsweep.analysis.account import offline_device
from gemmsweep.cli.live import command_for, next_axis
from gemmsweep.entry import enlist
from gemmsweep.errors import UsageError
from gemmsweep.finals import race_finals
from gemmsweep.model import Problem
from gemmsweep.race import Verdict
from gemmsweep.session import Request
from gemmsweep.store import open_store
from gemmsweep.template.header import load_template
from gemmsweep.template.library import find_template
from gemmsweep.template.locations import templates_folder

LABELS = ["BK=8", "BK=16", "BK=32"]


@pytest.mark.parametrize(("text", "axis"), [
    ("BK", plan.Axis("BK")),
    ("BK=8,16", plan.Axis("BK", (8, 16))),
    ("EDGE=pad,tail", plan.Axis("EDGE", ("pad", "tail"))),
    ("BK=8:32:8", plan.Axis("BK", (8, 16, 24, 32), is_range=True)),
    ("BK=8:64:*2", plan.Axis("BK", (8, 16, 32, 64), is_range=True)),
    ("BK=1:3", plan.Axis("BK", (1, 2, 3), is_range=True)),
])  # fmt: skip
def test_axes_are_read_as_documented(text: str, axis: plan.Axis) -> None:
    assert plan.parse_axis(text) == axis


@pytest.mark.parametrize("text", [
    "", "=8", "BK=", "BK=8,8", "BK=8:4:1", "BK=0:8:*2", "BK=1:8:*1", "BK=1:8:0", "BK=a:b", "BK=1.5", "BK=1:99999999:1",
    "BK=8;drop", "B K=8", "BK=--8", "BK=1:2:3:4",
])  # fmt: skip
def test_what_cannot_be_an_axis_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        plan.parse_axis(text)


@given(st.text(max_size=40))
def test_any_text_is_an_axis_or_a_usage_error(text: str) -> None:
    try:
        axis = plan.parse_axis(text)
    except UsageError:
        return
    assert axis.name.isidentifier()


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 50))
def test_ranges_hold_both_ends_and_nothing_beyond(low: int, high: int, step: int) -> None:
    if low > high:
        return
    values = plan.expand_range(f"{low}:{high}:{step}")
    assert list(values) == list(range(low, high + 1, step))


def test_a_list_must_be_declared_and_a_range_takes_what_it_meets() -> None:
    template = find_template("simt")
    declared = plan.parameter(template, "BK").values
    assert plan.axis_values(template, plan.parse_axis("BK")) == declared
    assert set(plan.axis_values(template, plan.parse_axis("BK=1:1000"))) == set(declared)
    with pytest.raises(UsageError, match="BK takes: 8"):
        plan.axis_values(template, plan.parse_axis("BK=7"))
    with pytest.raises(UsageError, match=r"no parameter 'BQ'. It has: BM"):
        plan.axis_values(template, plan.parse_axis("BQ"))


def test_held_values_and_couplings() -> None:
    template = find_template("simt")
    held = [plan.parse_held("WM=BM/2", template)]
    configs = plan.axis_configs(template.defaults(), "BM", (64, 128), held)
    assert [(c["BM"], c["WM"]) for c in configs] == [(64, 32), (128, 64)]
    assert set(plan.differences(configs[0], configs[1])) == {"BM", "WM"}
    for text in ("BM", "BQ=1", "BM=7", "WM=BQ/2", "BM=BM*2", "WM=__import__('os')", "BM="):
        with pytest.raises(UsageError):
            plan.parse_held(text, template)


def test_couplings_hold_whatever_their_order_and_however_often_they_are_put_in() -> None:
    template = find_template("simt")
    for texts in itertools.permutations(("WM=WN", "WN=BN/2", "BN=64", "TM=WM/8")):
        held = plan.in_order([plan.parse_held(text, template) for text in texts])
        config = plan.apply_held(template.defaults(), held)
        assert [config[name] for name in ("BN", "WN", "WM", "TM")] == [64, 32, 32, 4]
        assert plan.apply_held(config, held) == config
    with pytest.raises(UsageError, match=r"--set WM=WN and --set WN=WM\*2 need each other"):
        plan.in_order([plan.parse_held(text, template) for text in ("BN=64", "WM=WN", "WN=WM*2")])


def test_a_coupling_without_a_value_is_a_broken_rule_of_that_config_alone() -> None:
    template = find_template("naive")
    held = [plan.parse_held("BM=UNROLL/3", template)]
    configs = plan.labelled_configs(plan.apply_held(template.defaults(), held), "UNROLL", (4, 24), held)
    broken, *fine = enlist(template, Problem.of(96, 64, 48, "fp32"), offline_device("sm_90a"), configs)
    assert (broken.attempt.status, broken.label) == ("constraint", "UNROLL=4")
    assert broken.attempt.reason.startswith("BM=UNROLL/3 is not a value of BM: ")
    assert [(c.alive, c.attempt.config["BM"]) for c in fine] == [(True, 8)]


def test_a_parameter_is_held_once() -> None:
    with pytest.raises(UsageError, match="--set BM is given twice"):
        plan.distinct_held(["BM=8", "BK=16", "BM=16"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SCHEDULE=pong", r"Did you mean 'pingpong'\? SCHEDULE takes: cooperative, pingpong"),
        ("SCHEDULE=BM/2", "SCHEDULE takes: cooperative, pingpong"),
        ("SCHEDULE=3", "SCHEDULE takes: cooperative, pingpong"),
        ("SCHEDULE=ping pong", r"Did you mean 'pingpong'\? SCHEDULE takes"),
        ("BM=BMM/2", r"no parameter 'BMM'. Did you mean 'BM'\?"),
    ],
)
def test_what_no_parameter_is_held_at_names_what_it_takes(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan.parse_held(text, find_template("wgmma"))


def test_a_misspelt_value_of_an_axis_is_asked_about() -> None:
    template = find_template("wgmma")
    with pytest.raises(UsageError, match=r"Did you mean 'pingpong'\? SCHEDULE takes"):
        plan.axis_values(template, plan.parse_axis("SCHEDULE=pong"))


def test_a_kernel_without_parameters_has_no_axis() -> None:
    template = replace(find_template("simt"), parameters=())
    with pytest.raises(UsageError, match="template 'simt' has no parameters, so no 'BK'"):
        plan.axis_values(template, plan.parse_axis("BK"))


def test_only_the_axis_moves() -> None:
    template = find_template("simt")
    start = template.defaults()
    for value, config in zip((8, 16), plan.axis_configs(start, "BK", (8, 16), []), strict=True):
        assert set(plan.differences(start, config)) <= {"BK"}
        assert config["BK"] == value


def verdict(kind: str, leader: int, different: tuple[tuple[int, int], ...]) -> Verdict:
    ties = tuple(i for i in range(3) if i != leader and (i, leader) not in different)
    return Verdict(kind, leader, ties, 0.01, 0.001, different)


def test_a_winner_is_adopted() -> None:
    found = verdict("winner", 1, ((0, 1), (2, 1)))
    assert plan.adopt(found, LABELS, "BK=8", contended=False) == plan.Adoption("BK=16", True)


def test_a_tie_keeps_the_present_value() -> None:
    found = verdict("tie", 1, ((2, 1),))
    assert plan.adopt(found, LABELS, "BK=8", contended=False) == plan.Adoption("BK=8", False)


def test_a_beaten_present_value_gives_way_even_to_tied_leaders() -> None:
    found = verdict("tie", 1, ((2, 1),))
    assert plan.adopt(found, LABELS, "BK=32", contended=False) == plan.Adoption("BK=16", True)


def test_a_contended_race_changes_nothing() -> None:
    found = verdict("winner", 1, ((0, 1), (2, 1)))
    assert plan.adopt(found, LABELS, "BK=8", contended=True) == plan.Adoption("BK=8", False)
    assert plan.adopt(found, LABELS, None, contended=True) == plan.Adoption("BK=16", False)


def test_nothing_raced_adopts_nothing() -> None:
    assert plan.adopt(None, [], None, contended=False) == plan.Adoption(None, False)


def test_the_first_line_counts_configs() -> None:
    assert plan.summary([("BK", 4), ("PAD", 3)]) == "BK (4), then PAD (3): 7 configs"


def test_the_next_axis_is_asked_of_the_same_kernel_on_the_same_problem(tmp_path: Path) -> None:
    own = Path(shutil.copy(templates_folder() / "naive.cu", tmp_path / "my own.cu"))
    problem = Problem.of(8, 16, 24, "fp16", "nt", lda=32, beta=0.5, epilogue="relu")
    said = command_for(Request(load_template(own), problem, ()), "UNROLL")
    assert shlex.split(said) == [
        *("gemmsweep", "run", "--template", str(own), "--shape", "8x16x24", "--dtype", "fp16", "--layout", "nt"),
        *("--epilogue", "relu", "--beta", "0.5", "--lda", "32", "--vary", "UNROLL"),
    ]
    assert "--template naive --shape" in command_for(Request(find_template("naive"), problem, ()), "UNROLL")


def test_only_a_verdict_on_this_problem_on_such_a_device_keeps_an_axis_from_being_named(tmp_path: Path) -> None:
    problem = store_samples.PROBLEM
    asked = Request(template := find_template("simt"), problem, ())
    first, second = [p.name for p in template.parameters if len(p.values) > 1][:2]
    gpu = store_samples.GPU
    with open_store(tmp_path / "r.db") as store:

        def raced(**changes: Any) -> None:
            verdict = {"verdict": changes.pop("verdict")} if "verdict" in changes else {}
            store_samples.race(store, store_samples.start(varied=first, **changes), {"BK=16": 900.0}, **verdict)

        for other in (replace(problem, layout="nt"), replace(problem, epilogue="relu"), replace(problem, beta=1.0)):
            raced(problem=other)
        raced(verdict="none")
        unfinished = store.begin_sweep(store_samples.start(varied=first), store_samples.ENVIRONMENT)
        store.save_attempt(unfinished, store_samples.attempt("BK=16"))
        assert next_axis(store, asked, gpu) == first
        raced()
        assert next_axis(store, asked, gpu) == second
        assert next_axis(store, asked, replace(gpu, name="NVIDIA H100")) == first
        assert next_axis(store, asked, replace(gpu, uuid="GPU-5678")) == second, "another card of the same class"


def test_finals_on_record_are_not_announced() -> None:
    notes: list[str] = []
    watch = SimpleNamespace(note=notes.append)
    session: Any = SimpleNamespace(request=None, position=0, moved=False, watch=watch)
    stored: Any = SimpleNamespace(start=SimpleNamespace(regime="equal-clock"), outcome=object(), disturbed=False)
    assert race_finals(session, "equal-clock", [], None, [stored], "Finals") is stored.outcome
    assert notes == []
