"""What a verification goes through, and where it says an element belongs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_kernel

from gemmsweep import oracle, special
from gemmsweep.analysis.account import offline_device
from gemmsweep.device.scripted import INFO
from gemmsweep.epilogue import OPERATIONS, parse_epilogue
from gemmsweep.model import Accuracy, Launch, Problem, Step
from gemmsweep.template import render
from gemmsweep.template.declaration import Template
from gemmsweep.template.header import load_template
from gemmsweep.template.library import find_template, list_templates
from gemmsweep.verify import Extent, Nearest, edge_cases, nearest, pairs
from gemmsweep.verify.cases import ALIGNED, AWKWARD, EDGE
from gemmsweep.verify.place import Place, place

CUDA = [t for t in list_templates().templates if t.backend == "cuda"]


@pytest.mark.parametrize("template", CUDA, ids=lambda t: t.name)
def test_every_pair_meets_odd_shapes_strides_and_epilogues(template: Template) -> None:
    cases = edge_cases(template, INFO, Extent(special_values=True))
    for dtype, layout in pairs(template, Extent()):
        problems = [c.problem for c in cases if (c.problem.dtype, c.problem.layout) == (dtype, layout)]
        assert {1} <= {p.m for p in problems} & {p.n for p in problems} & {p.k for p in problems}
        assert any(p.k > 16000 for p in problems)
        assert any(p.lda > p.k and p.ldd > p.n for p in problems)
        chains = [parse_epilogue(p.epilogue).operations for p in problems]
        assert {(), *((name,) for name in OPERATIONS)} <= set(chains)
        assert any(len(chain) > 1 for chain in chains)
        assert any(p.beta for p in problems)
        assert any(c.special for c in cases if c.problem in problems)


@pytest.mark.parametrize("template", CUDA, ids=lambda t: t.name)
def test_along_every_axis_each_feasible_value_is_tried(template: Template) -> None:
    cases = edge_cases(template, INFO, Extent(quick=True))
    dtype, layout = next(iter(pairs(template, Extent())))
    along = [case for case in cases if len(case.candidates) > 1 + len(template.starts)]
    assert {(c.problem.dtype, c.problem.layout) for c in along} == {(dtype, layout)}
    assert {c.problem.k for c in along} <= {AWKWARD[2], ALIGNED[2]}
    for case in along:
        start = Nearest(template, INFO)(case.problem)
        assert start is not None
        tried = [c.attempt.config for c in case.candidates]
        for parameter in template.parameters:
            for value in parameter.values:
                config = {**start, parameter.name: value}
                resolved = render.resolve(template, case.problem, render.device_env(INFO), config)
                assert (config in tried) == (not render.broken_rules(template, resolved))


def ruled(path: Path, values: str, rule: str) -> Template:
    """A template with one parameter and one rule, in two types and both layouts."""
    more = f"""[parameters]
BM = {{ default = 1, values = [{values}], meaning = "rows" }}
[[constraints]]
expr = "{rule}"
why = "it is so"
"""
    body = "constexpr int BM = $BM;\n"
    return load_template(small_kernel.write(path, more, body, dtypes=("fp32", "fp16"), layouts=("nn", "nt")))


def test_what_no_config_takes_is_found_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[int] = []
    real = nearest.search
    monkeypatch.setattr(nearest, "search", lambda *given: searches.append(1) or real(*given))
    template = ruled(tmp_path / "never.cu", ", ".join(map(str, range(1, 2000))), "BM > 5000")
    assert edge_cases(template, INFO, Extent()) == []
    assert len(searches) == nearest.FRUITLESS * len(template.dtypes) * len(template.layouts)


def test_every_start_of_a_header_is_checked() -> None:
    gpu = offline_device("sm_90a")
    for template in (t for t in list_templates().templates if t.starts):
        extent = Extent(quick=True, dtypes=template.dtypes)
        tried = [c.attempt.config for case in edge_cases(template, gpu, extent) for c in case.candidates]
        for start in template.starts:
            assert any(all(config[name] == value for name, value in start.values.items()) for config in tried), start


def test_a_rule_without_a_value_is_broken_for_its_types_alone(tmp_path: Path) -> None:
    template = ruled(tmp_path / "divides.cu", "1, 2", "8 % (sizeof_in - 4) == 0")
    assert {c.problem.dtype for c in edge_cases(template, INFO, Extent(quick=True))} == {"fp16"}


def test_a_problem_that_the_defaults_cannot_take_gets_the_nearest_config_that_can() -> None:
    cases = edge_cases(find_template("wgmma"), INFO, Extent(quick=True))
    configs = {c.problem: [candidate.attempt.config for candidate in c.candidates] for c in cases}
    edge = Problem.of(*EDGE, "bf16", "nn")
    assert [config["EDGE"] for config in configs[edge]] == ["pad"]
    stores = {config["STORE"] for problem, found in configs.items() if problem.n == ALIGNED[1] for config in found}
    assert stores == {"tma", "direct", "rows"}


def test_an_extent_narrows() -> None:
    mma = find_template("mma")
    all_of_it, quick = (
        sum(len(c.candidates) for c in edge_cases(mma, INFO, extent)) for extent in (Extent(), Extent(quick=True))
    )
    one = edge_cases(mma, INFO, Extent(("fp16",), ("nt",), ("relu",)))
    assert quick < all_of_it / 2
    assert {(c.problem.dtype, c.problem.layout) for c in one} == {("fp16", "nt")}
    assert {c.problem.epilogue for c in one} == {"none", "relu"}


def test_a_kernel_of_whole_tiles_gets_whole_tiles() -> None:
    simt = find_template("simt")
    whole = replace(simt, requires=(simt.constraints[0].expression,))
    assert edge_cases(whole, INFO, Extent(quick=True))


def test_places_are_counted_from_tiles_and_unknown_ones_are_left_open() -> None:
    mma = find_template("mma")
    problem = Problem.of(300, 300, 64, "fp16", "nt")
    resolved = render.resolve(mma, problem, render.device_env(INFO), mma.defaults())
    launch = render.plan_launch(mma, resolved)
    bm, bn, wm, wn = (resolved.env[name] for name in ("BM", "BN", "WM", "WN"))
    assert place(mma, resolved, launch, bm + wm + 9, wn + 3) == Place((1, 0), wm + 9, wn + 3, bn // wn + 1, 5)
    other = Launch((Step("gemm", (), block=(1024, 1, 1)),))  # threads that do not add up to the warp tiles
    assert place(mma, resolved, other, 0, 0) == Place((0, 0), 0, 0)
    bare = replace(resolved, env={})
    assert place(mma, bare, launch, 0, 0) == Place()


@pytest.mark.parametrize("side", [-8, 0, 2**62])
def test_a_tile_that_cannot_be_is_none(tmp_path: Path, side: int) -> None:
    path = small_kernel.write(tmp_path / "astray.cu", f'[derived]\nBM = "{side}"\nBN = "0 - BM"')
    template = load_template(path)
    problem = Problem.of(1000, 1000, 64)
    resolved = render.resolve(template, problem, render.device_env(INFO), {})
    assert place(template, resolved, Launch((Step("k", ()),)), 999, 999) == Place()
    sizes = {c.problem.m for c in edge_cases(template, INFO, Extent(quick=True))}
    assert sizes >= {1, 64, 65} and max(sizes) < 1000


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16", "bf16"])
def test_special_operands_are_what_the_inputs_can_hold(dtype: str) -> None:
    """Stored and read again they are the same numbers, so that the expected result is exact."""
    problem = Problem.of(12, 10, 1300, dtype, "nt")
    names = set()
    for pattern in special.patterns(np, problem, "fp32"):
        stored = special.stored(np, problem, pattern)
        a, b = oracle.logical(np, problem, stored, "float64")
        np.testing.assert_array_equal(a, pattern.a)
        np.testing.assert_array_equal(b, pattern.b)
        if dtype == "tf32":
            finite = a[np.isfinite(a)].astype(np.float32)
            assert not (finite.view(np.uint32) & 0x1FFF).any()
        names.add(pattern.name)
    assert {
        "infinities and NaN",
        "negative zero",
        "subnormals",
        "largest finite",
        "sums beyond fp16 on the way",
    } <= names


def test_a_coarser_class_is_held_to_what_it_declares() -> None:
    pattern = special.Pattern("x", np.ones((1, 4)), np.ones((4, 1)))
    got, expected = np.array([[4.001]]), np.array([[4.0]])
    assert special.disagree(np, pattern, got, expected, Accuracy()).all()
    assert not special.disagree(np, pattern, got, expected, Accuracy("fp16", 2048, 4)).any()
    assert special.disagree(np, pattern, np.array([[np.inf]]), expected, Accuracy("fp16", 2048, 4)).all()
