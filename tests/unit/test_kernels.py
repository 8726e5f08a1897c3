"""The shipped kernels: they compile for every architecture they admit, and render as reviewed."""

from __future__ import annotations

import itertools

import pytest
from golden import check

from gemmsweep.analysis.account import offline_device
from gemmsweep.build import build_all
from gemmsweep.entry import Candidate, enlist
from gemmsweep.model import Problem
from gemmsweep.template import render
from gemmsweep.template.declaration import Template
from gemmsweep.template.library import list_templates

ARCHS = ("sm_75", "sm_80", "sm_90a", "sm_120")
TEMPLATES = {t.name: t for t in list_templates().templates}
MAIN_ARCH = "sm_90a"  # where every dtype meets every layout; elsewhere each dtype once, the layouts in turn
BUILDS = [
    (name, arch) for name, t in TEMPLATES.items() for arch in ARCHS if t.backend == "cuda" and t.target(arch) == arch
]
SHAPES = ((1024, 1024, 1024), (64, 1024, 1024), (4, 1024, 1024))  # some kernels take few rows only


def legal(template: Template, dtype: str, layout: str, arch: str) -> list[Candidate]:
    """The defaults on the first shape they take; nothing where a rule excludes this dtype and layout for every shape."""
    device = offline_device(arch)
    for shape in SHAPES:
        problem = Problem.of(*shape, dtype, layout)
        (candidate,) = enlist(template, problem, device, {"start": template.defaults()})
        if candidate.alive:
            return [candidate]
    return []


def some_problem(template: Template) -> tuple[Problem, dict[str, int]]:
    """A problem that the defaults take, and the names of a device."""
    device = offline_device("sm_90a")
    names = render.device_env(device) if template.backend == "cuda" else {"cores": 8}
    for shape in SHAPES:
        problem = Problem.of(*shape, template.dtypes[0], template.layouts[-1])
        if not render.broken_rules(template, render.resolve(template, problem, names, template.defaults())):
            return problem, names
    raise AssertionError(template.name)


def test_no_shipped_template_is_broken() -> None:
    assert not list_templates().broken
    assert {"naive", "simt", "mma", "cpu_blocked"} <= set(TEMPLATES)


@pytest.mark.parametrize(("name", "arch"), BUILDS)
def test_defaults_compile_for_every_architecture(name: str, arch: str) -> None:
    template = TEMPLATES[name]
    pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")
    pairs = [(d, o) for d in template.dtypes for o in template.layouts]
    if arch != MAIN_ARCH:
        turns = itertools.cycle(template.layouts)
        pairs = [next((d, o) for o in turns if legal(template, d, o, arch)) for d in template.dtypes]
    candidates = [c for pair in pairs for c in legal(template, *pair, arch)]
    assert len(candidates) >= len(template.dtypes)
    for build in build_all([c.source for c in candidates if c.source is not None], arch):
        assert build.ok, build.reason
        assert build.registers


@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_are_as_reviewed(name: str) -> None:
    template = TEMPLATES[name]
    problem, names = some_problem(template)
    resolved = render.resolve(template, problem, names, template.defaults())
    constants = [
        line for line in render.render(template, resolved).text.splitlines() if "static_assert" in line.lower()
    ]
    check(f"asserts_{template.name}.txt", "\n".join(constants) + "\n")


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_axis_has_a_choice_from_the_defaults(name: str) -> None:
    """Most parameters have another feasible value from the defaults alone; the rest say what must move along."""
    template = TEMPLATES[name]
    problem, names = some_problem(template)
    choices = {}
    for parameter in template.parameters:
        configs = [{**template.defaults(), parameter.name: value} for value in parameter.values]
        broken = [render.broken_rules(template, render.resolve(template, problem, names, c)) for c in configs]
        choices[parameter.name] = sum(not rules for rules in broken)
    assert min(choices.values()) >= 1
    assert sum(count >= 2 for count in choices.values()) > len(choices) / 2
    if template.backend == "cpu":
        assert choices["BK"] >= 4
