"""What a header promises of two runs may depend on the config, and rules may ask for a device's generation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import small_kernel

from gemmsweep.errors import TemplateError
from gemmsweep.model import DeviceInfo, Problem
from gemmsweep.template.header import load_template
from gemmsweep.template.render import broken_rules, device_env, plan_launch, resolve

H200 = DeviceInfo("cuda", "NVIDIA H200", "GPU-1", "sm_90", 132, 2**37, 2**26, max_smem_bytes=232_448)
MORE = """deterministic = {deterministic}
[parameters]
REDUCE = {{ default = "serial", values = ["serial", "atomic"] }}
[[constraints]]
expr = "REDUCE == serial or compute_capability >= 90"
why = "vector atomics came with sm_90"
"""


def write(folder: Path, deterministic: str) -> Path:
    more = MORE.format(deterministic=deterministic)
    return small_kernel.write(folder / "sums.cu", more, "constexpr int REDUCE = $REDUCE;\n")


@pytest.mark.parametrize(
    ("declared", "serial", "atomic"),
    [("true", True, True), ("false", False, False), ('"REDUCE != atomic"', True, False)],
)
def test_whether_two_runs_agree_may_depend_on_the_config(
    tmp_path: Path, declared: str, serial: bool, atomic: bool
) -> None:
    template = load_template(write(tmp_path, declared))
    for reduce, promised in (("serial", serial), ("atomic", atomic)):
        resolved = resolve(template, Problem.of(1, 1, 1), device_env(H200), {"REDUCE": reduce})
        assert plan_launch(template, resolved).deterministic is promised


@pytest.mark.parametrize("declared", ['"REDUCE"', '"REDUCE != other"', "1"])
def test_a_promise_that_is_no_condition_is_refused(tmp_path: Path, declared: str) -> None:
    with pytest.raises(TemplateError, match=r"sums\.cu: the header deterministic"):
        load_template(write(tmp_path, declared))


@pytest.mark.parametrize(("arch", "broken"), [("sm_80", True), ("sm_90", False), ("sm_120", False)])
def test_a_rule_may_ask_for_the_compute_capability(tmp_path: Path, arch: str, broken: bool) -> None:
    template = load_template(write(tmp_path, "true"))
    device = device_env(replace(H200, arch=arch))
    told = broken_rules(template, resolve(template, Problem.of(1, 1, 1), device, {"REDUCE": "atomic"}))
    assert [str(rule).startswith("vector atomics came with sm_90") for rule in told] == [True] * broken
