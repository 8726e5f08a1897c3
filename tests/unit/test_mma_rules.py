"""kernel_templates/mma.cu without a GPU: what its rules admit, what it launches, that each choice reaches the machine code."""

from __future__ import annotations

from typing import Any

import pytest

from gemmsweep.analysis.account import offline_device
from gemmsweep.model import Launch, Problem
from gemmsweep.template import render
from gemmsweep.template.library import find_template
from gemmsweep.template.resolve import Resolved

TEMPLATE = find_template("mma")
DEVICES = {arch: offline_device(arch) for arch in ("sm_80", "sm_90a", "sm_120")}
KINDS = [(dtype, layout) for dtype in TEMPLATE.dtypes for layout in TEMPLATE.layouts]
SMALL = {"BM": 64, "BN": 64, "WM": 32, "WN": 32}  # compiles fast


def resolved(dtype: str = "fp16", layout: str = "nn", arch: str = "sm_90a", **config: Any) -> Resolved:
    problem = Problem.of(130, 66, 17, dtype, layout)
    return render.resolve(TEMPLATE, problem, render.device_env(DEVICES[arch]), {**TEMPLATE.defaults(), **config})


def broken(dtype: str = "fp16", layout: str = "nn", arch: str = "sm_90a", **config: Any) -> list[str]:
    return render.broken_rules(TEMPLATE, resolved(dtype, layout, arch, **config))


def launch(dtype: str = "fp16", layout: str = "nn", **config: Any) -> Launch:
    return render.plan_launch(TEMPLATE, resolved(dtype, layout, **config))


@pytest.mark.parametrize(("dtype", "layout"), KINDS)
@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("edge", TEMPLATE.parameter("EDGE").values)
def test_the_default_is_feasible_everywhere_whatever_the_edge(dtype: str, layout: str, arch: str, edge: str) -> None:
    assert broken(dtype, layout, arch, EDGE=edge) == []


@pytest.mark.parametrize(
    ("dtype", "config"),
    [
        ("fp16", {"ACC": "fp16"}),
        ("fp16", {"ACC": "fp16", "CHUNK_K": 16}),
        ("fp16", {"ACC": "fp16", "CHUNK_K": 1024, "BK": 64}),
        ("fp32", {"ACC": "fp16"}),
        ("fp32", {"SCALE_INPUT": 0}),
        ("bf16", {"NAN_SAFE": 1, "EDGE": "pad"}),
    ],
)
def test_configs_that_are_valid(dtype: str, config: dict[str, Any]) -> None:
    assert broken(dtype, **config) == []


@pytest.mark.parametrize(
    ("rule", "dtype", "config"),
    [
        ("tensor cores sum only products of fp16 in fp16", "bf16", {"ACC": "fp16"}),
        ("tensor cores sum only products of fp16 in fp16", "tf32", {"ACC": "fp16"}),
        ("chunks of K are for sums in fp16", "fp16", {"CHUNK_K": 64}),
        ("chunks of K are for sums in fp16", "fp32", {"ACC": "fp16", "CHUNK_K": 64}),
        ("a chunk is a whole number of mma steps", "fp16", {"ACC": "fp16", "CHUNK_K": 24}),
        ("a chunk is a whole number of mma steps", "fp16", {"ACC": "fp16", "CHUNK_K": 48}),
        ("only fp32 operands are converted", "fp16", {"SCALE_INPUT": 0}),
        ("rows that start at multiples of 16 bytes", "fp32", {"PAD": 4}),
        ("128 of its 255 registers", "fp16", {"WM": 128}),
    ],
)
def test_configs_that_break_a_rule(rule: str, dtype: str, config: dict[str, Any]) -> None:
    told = broken(dtype, **config)
    assert len(told) == 1 and rule in told[0]


def test_padding_is_a_step_of_its_own_into_workspaces_of_whole_tiles() -> None:
    for layout in TEMPLATE.layouts:
        plain, padded = launch(layout=layout), launch(layout=layout, EDGE="pad")
        assert [step.kernel for step in plain.steps] == ["gemm"] and not plain.workspaces
        assert [step.kernel for step in padded.steps] == ["pad", "gemm"]
        # 130x66x17 in tiles of 128x128x32
        assert [space.bytes for space in padded.workspaces] == [256 * 32 * 2, 128 * 32 * 2]
        assert padded.steps[1].args[:2] == ("workspace:A_WHOLE", "workspace:B_WHOLE")
        assert padded.steps[1].args[6:8] == ("i64:32", "i64:32" if layout == "nt" else "i64:128")


@pytest.mark.parametrize(
    ("dtype", "config", "acc", "rounded"),
    [
        ("fp16", {}, "fp32", 0.0),
        ("tf32", {}, "fp32", 0.0),
        ("fp16", {"ACC": "fp16"}, "fp16", 3 / 1024),  # 17 of K: three halves of an mma step
        ("fp16", {"ACC": "fp16", "CHUNK_K": 16}, "fp16", 2 / 1024),
        ("fp32", {}, "fp16", 1 / 1024),
        ("fp32", {"SCALE_INPUT": 0}, "fp16", 1 / 1024),
        ("fp32", {"ACC": "fp16"}, "fp16", 4 / 1024),
    ],
)
def test_what_rounds_more_than_the_problem_asks_for_says_so(
    dtype: str, config: dict[str, Any], acc: str, rounded: float
) -> None:
    accuracy = launch(dtype, **config).accuracy
    assert (accuracy.acc, accuracy.per_product) == (acc, rounded)


@pytest.mark.parametrize(
    ("dtype", "fixed", "axis", "values"),
    [
        ("fp16", {}, "EDGE", ("predicate", "pad", "tail")),
        ("fp16", {}, "ACC", ("fp32", "fp16")),
        ("fp16", {"ACC": "fp16"}, "CHUNK_K", (0, 16, 256)),
        ("fp16", {}, "NAN_SAFE", (0, 1)),
        ("fp32", {}, "SCALE_INPUT", (0, 1)),
        ("fp32", {}, "FRAG_BUFFERS", (1, 2)),
        ("fp32", {}, "ACC", ("fp32", "fp16")),
    ],
)
def test_every_value_is_a_kernel_of_its_own(dtype: str, fixed: dict[str, Any], axis: str, values: tuple) -> None:
    pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")
    from gemmsweep.build.nvrtc import compile_ptx

    codes = set()
    for value in values:
        source = render.render(TEMPLATE, resolved(dtype, **SMALL, **fixed, **{axis: value}))
        codes.add("\n".join(line for line in compile_ptx(source, "sm_80").splitlines() if not line.startswith("//")))
    assert len(codes) == len(values)
