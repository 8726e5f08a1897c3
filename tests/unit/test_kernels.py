"""The shipped kernels: they compile for every architecture they admit, and render as reviewed."""

from __future__ import annotations

import pytest
from golden import check

from gemmsweep.analysis.account import offline_device
from gemmsweep.build import build_all
from gemmsweep.entry import enlist
from gemmsweep.model import Problem
from gemmsweep.template import render
from gemmsweep.template.library import list_templates

ARCHS = ("sm_75", "sm_80", "sm_90a", "sm_120")
TEMPLATES = {t.name: t for t in list_templates().templates}
BUILDS = [(name, arch) for name, t in TEMPLATES.items() for arch in ARCHS if t.backend == "cuda" and t.admits(arch)]


def test_no_shipped_template_is_broken() -> None:
    assert not list_templates().broken
    assert {"naive", "simt", "mma", "cpu_blocked"} <= set(TEMPLATES)


@pytest.mark.parametrize(("name", "arch"), BUILDS)
def test_defaults_compile_for_every_dtype_and_layout(name: str, arch: str) -> None:
    template = TEMPLATES[name]
    pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")
    device = offline_device(arch)
    candidates = [
        enlist(template, Problem.of(1024, 1024, 1024, dtype, layout), device, {"start": template.defaults()})[0]
        for dtype in template.dtypes
        for layout in template.layouts
    ]
    assert [c.attempt.reason for c in candidates if not c.alive] == []
    for build in build_all([c.source for c in candidates if c.source is not None], arch):
        assert build.ok, build.reason
        assert build.registers


@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_are_as_reviewed(name: str) -> None:
    template = TEMPLATES[name]
    device = offline_device("sm_90a")
    problem = Problem.of(4096, 4096, 4096, template.dtypes[0], template.layouts[0])
    names = render.device_env(device) if template.backend == "cuda" else {"cores": 8}
    resolved = render.resolve(template, problem, names, template.defaults())
    constants = [
        line for line in render.render(template, resolved).text.splitlines() if "static_assert" in line.lower()
    ]
    check(f"asserts_{template.name}.txt", "\n".join(constants) + "\n")


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_axis_has_a_choice_from_the_defaults(name: str) -> None:
    """A sweep of any one parameter from the defaults has at least two feasible values, and BK at least four."""
    template = TEMPLATES[name]
    device = offline_device("sm_90a")
    problem = Problem.of(4096, 4096, 4096, template.dtypes[0], template.layouts[0])
    names = render.device_env(device) if template.backend == "cuda" else {"cores": 8}
    for parameter in template.parameters:
        feasible = 0
        for value in parameter.values:
            resolved = render.resolve(template, problem, names, {**template.defaults(), parameter.name: value})
            feasible += not render.broken_rules(template, resolved)
        assert feasible >= (4 if parameter.name == "BK" and template.backend == "cpu" else 2), parameter.name
