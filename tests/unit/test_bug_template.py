"""The template of kernel mistakes compiles everywhere, and no compiler removes a mistake. What they do: tests/gpu/test_bug.py."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gemmsweep.analysis.account import offline_device
from gemmsweep.build import Builders
from gemmsweep.entry import compile_all, enlist
from gemmsweep.model import Problem
from gemmsweep.template.library import find_template

BUG = Path(__file__).parents[1] / "data" / "bug" / "bug.cu"


class Silent:
    def stage(self, name: str, total: int) -> None: ...
    def advance(self, detail: str = "") -> None: ...
    def note(self, text: str) -> None: ...


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_every_bug_compiles_to_a_kernel_of_its_own(arch: str) -> None:
    pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")
    template, device = find_template(str(BUG)), offline_device(arch)
    (parameter,) = template.parameters
    configs = {str(value): {"BUG": value} for value in parameter.values}
    with Builders() as builders:
        built = compile_all(
            enlist(template, Problem.of(256, 256, 256, "fp32", "nn"), device, configs), device, Silent(), builders
        )
    assert [candidate.attempt.reason for candidate in built if not candidate.alive] == []
    binaries = {hashlib.sha256(Path(c.attempt.build.path).read_bytes()).digest() for c in built if c.attempt.build}
    assert len(binaries) == len(configs) == 9
