"""What a config leaves out: steps, workspaces and tensor maps with `when`, maps of workspaces, accuracy classes."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmsweep.device import open_device
from gemmsweep.errors import TemplateError
from gemmsweep.model import Accuracy, Build, Problem
from gemmsweep.protocol import DeviceSpec
from gemmsweep.replay import launch_of
from gemmsweep.template.header import Template, load_template
from gemmsweep.template.render import broken_rules, plan_launch, render, resolve

H200 = {"max_smem_bytes": 232_448, "sm_count": 132}
HEAD = """// /// gemmsweep
// summary = "A padded copy, a product, a sum: each where the config asks for it."
// backend = "cuda"
// arch    = "sm_90a"
// dtypes  = ["fp16", "fp32"]
// layouts = ["nt"]
// [parameters]
// EDGE  = { default = "plain", values = ["plain", "pad"] }
// SPLIT = { default = 1, values = [0, 1, 2] }
// ACC   = { default = "full", values = ["full", "half"] }
// [derived]
// LD = "ceil_div(K, 8) * 8"
"""
TABLES = """// [[accuracy]]
// when  = "ACC == half and is_fp16 == 1"
// acc   = "fp16"
// unit  = 2048
// terms = "K"
// [[workspace]]
// name  = "padded"
// bytes = "M * LD * sizeof_in"
// when  = "EDGE == pad"
// [[workspace]]
// name  = "partial"
// bytes = "M * N * 4"
// zero  = "each"
// when  = "SPLIT > 1"
// [[tensor_map]]
// name    = "map_a"
// operand = "A"
// box     = [32, 64]
// swizzle = 128
// when    = "EDGE == plain"
// [[tensor_map]]
// name    = "map_padded"
// operand = "workspace:padded"
// extent  = ["K", "M"]
// ld      = "LD"
// box     = [32, 64]
// swizzle = 128
// when    = "EDGE == pad"
// [[step]]
// kernel = "pad"
// args   = ["A", "workspace:padded"]
// grid   = "M"
// block  = 512
// when   = "EDGE == pad"
// [[step]]
// kernel = "gemm"
// args   = ["tensor_map:map_a", "tensor_map:map_padded", "workspace:partial", "C"]
// grid   = "sm_count"
// block  = 128
// smem_bytes = 1024
// when   = "SPLIT > 0"
// [[step]]
// kernel = "sum"
// args   = ["workspace:partial", "C"]
// grid   = 1
// block  = "SPLIT * 300"
// when   = "SPLIT > 1"
// ///
"""
BODY = "constexpr int EDGE = $EDGE, SPLIT = $SPLIT, ACC = $ACC;\n"


def written(folder: Path, old: str = "", new: str = "") -> Template:
    text = HEAD + TABLES + BODY
    assert old in text
    path = folder / "three.cu"
    path.write_text(text.replace(old, new, 1) if old else text)
    return load_template(path)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return written(tmp_path_factory.mktemp("three"))


@given(
    edge=st.sampled_from(["plain", "pad"]),
    split=st.sampled_from([1, 2]),
    acc=st.sampled_from(["full", "half"]),
    dtype=st.sampled_from(["fp16", "fp32"]),
    m=st.integers(1, 300),
    n=st.integers(1, 300),
    k=st.integers(1, 300),
)
def test_only_what_the_config_asks_for_is_there(
    three: Template, edge: str, split: int, acc: str, dtype: str, m: int, n: int, k: int
) -> None:
    resolved = resolve(three, Problem.of(m, n, k, dtype, "nt"), H200, {"EDGE": edge, "SPLIT": split, "ACC": acc})
    assert broken_rules(three, resolved) == []
    launch = plan_launch(three, resolved)
    kernels = ["pad"] * (edge == "pad") + ["gemm"] + ["sum"] * (split == 2)
    assert [step.kernel for step in launch.steps] == kernels
    assert list(render(three, resolved).kernels) == kernels
    there = {f"workspace:{w.name}" for w in launch.workspaces} | {f"tensor_map:{t.name}" for t in launch.tensor_maps}
    used = {word for step in launch.steps for word in step.args}
    assert there == {word for word in used if ":" in word}
    assert ("null" in used) == (split == 1)
    assert "null_map" in used
    assert launch.main.kernel == "gemm"
    assert launch.accuracy == (Accuracy("fp16", 2048, k) if (acc, dtype) == ("half", "fp16") else Accuracy())


def test_a_map_of_a_workspace_is_as_described(three: Template) -> None:
    resolved = resolve(three, Problem.of(64, 32, 61, "fp16", "nt"), H200, {"EDGE": "pad", "SPLIT": 1, "ACC": "full"})
    launch = plan_launch(three, resolved)
    (found,) = launch.tensor_maps
    assert (found.operand, found.extent, found.ld) == ("workspace:padded", (61, 64), 64)
    assert launch_of(asdict(launch)).tensor_maps == launch.tensor_maps
    from gemmsweep.device.cuda.launch import map_extent

    assert map_extent(found, resolved.problem) == (61, 64, 64, "fp16")


def test_limits_count_only_for_what_is_there(three: Template, tmp_path: Path) -> None:
    def rules(template: Template, k: int = 61, **config: int | str) -> list[str]:
        problem = Problem.of(64, 32, k, "fp16", "nt")
        return broken_rules(template, resolve(template, problem, H200, {**template.defaults(), **config}))

    wide = written(tmp_path, "SPLIT * 300", "SPLIT * 600")
    assert rules(wide) == []
    assert rules(wide, SPLIT=2) == ["sum: block x must be 1 to 1024 (SPLIT * 600 = 1200 with SPLIT=2)"]
    assert rules(three, SPLIT=0) == [
        "no step is left to launch (EDGE == pad or SPLIT > 0 or SPLIT > 1 with EDGE=plain, SPLIT=0)"
    ]
    tight = written(tmp_path, "M * LD * sizeof_in", "M * K * sizeof_in")
    assert rules(tight) == []
    assert rules(tight, k=64, EDGE="pad") == []
    assert rules(tight, EDGE="pad")[0].startswith("tensor map map_padded: workspace padded holds all its rows")
    odd = written(tmp_path, '"ceil_div(K, 8) * 8"', '"K + 1"')
    assert rules(odd, EDGE="pad")[0].startswith("tensor map map_padded: a row of a workspace is a multiple of 16 bytes")
    astray = written(tmp_path, '[32, 64]\n// swizzle = 128\n// when    = "EDGE == pad"', "[32, 64]\n// swizzle = 128")
    assert "tensor map map_padded is of workspace padded, which is not there" in rules(astray)
    rough = written(tmp_path, "unit  = 2048", 'unit  = "SPLIT - 1"')
    assert rules(rough) == []
    assert rules(rough, ACC="half")[0].startswith("accuracy fp16: unit must be at least 1")
    endless = written(tmp_path, '"SPLIT > 1"', '"floor_div(K, SPLIT - 1) > 9"')
    assert rules(endless)[0].startswith("a `when` has no value (division by zero")
    twice = written(tmp_path, '// when  = "SPLIT > 1"\n', '// [[workspace]]\n// name = "partial"\n// bytes = 8\n')
    assert "workspace partial is declared twice, and both are there" in rules(twice)


def test_what_has_no_value_is_a_rule_broken_not_the_end(tmp_path: Path) -> None:
    def rules(old: str, new: str, **config: int | str) -> list[str]:
        template = written(tmp_path, old, new)
        problem = Problem.of(64, 32, 61, "fp16", "nt")
        return broken_rules(template, resolve(template, problem, H200, {**template.defaults(), **config}))

    never, lengthy = '"floor_div(K, SPLIT - 1)"', " and ".join(["K == 61"] * 40)
    (told,) = rules("// backend", '// deterministic = "floor_div(K, SPLIT - 1) > 0"\n// backend')
    assert told.startswith("`deterministic` has no value (division by zero")
    assert any(told.startswith("tensor map map_a: swizzle is") for told in rules("swizzle = 128", f"swizzle = {never}"))
    steps = written(tmp_path, '"SPLIT > 0"', f'"SPLIT > 0 and {lengthy}"')
    problem = Problem.of(64, 32, 61, "fp16", "nt")
    (told,) = broken_rules(steps, resolve(steps, problem, H200, {**steps.defaults(), "SPLIT": 0}))
    assert told.startswith("no step is left to launch (EDGE == pad or SPLIT > 0 and K == 61")
    zeros = " + ".join(["0 * sizeof_in"] * 30)  # two of these are more than one expression may be
    (told,) = rules('"SPLIT * 300"', f'["{zeros} + 40", "{zeros} + 40"]', SPLIT=2)
    assert told.startswith("sum: a block holds at most 1024 threads ((0 * sizeof_in")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('when  = "EDGE == pad"', 'when = "EDGE"', r"\[\[workspace\]\] 1 when: 'EDGE' must be a comparison"),
        ('"workspace:padded"\n// extent', '"workspace:other"\n// extent', "operand: unknown operand 'workspace:other'"),
        ('extent  = ["K", "M"]', 'extent = ["K"]', "extent: must be the columns and rows"),
        ('// ld      = "LD"\n', "", "needs 'ld'"),
        ('operand = "A"', 'operand = "A"\n// ld = 8', "ld: belongs to a map of a workspace"),
        ('acc   = "fp16"', 'acc = "fp32"', "the class of the problem"),
        ('acc   = "fp16"', 'acc = "half of it"', "not a word"),
        ("// unit  = 2048\n", "", "needs 'unit'"),
    ],
)  # fmt: skip
def test_what_a_header_may_not_say(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        written(tmp_path, old, new)


def test_an_only_launch_has_no_condition(tmp_path: Path) -> None:
    path = tmp_path / "one.cu"
    launch = '// [launch]\n// args = ["A"]\n// grid = 1\n// block = 32\n// when = "SPLIT > 0"\n// ///\n'
    path.write_text(HEAD + launch + BODY)
    with pytest.raises(TemplateError, match=r"\[launch\] has no key 'when'"):
        load_template(path)


def test_a_cpu_kernel_gets_null_for_an_absent_workspace(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on PATH")
    path = tmp_path / "maybe.c"
    path.write_text(
        """// /// gemmsweep
// summary = "Tells whether it was given a workspace."
// backend = "cpu"
// dtypes  = ["fp32"]
// layouts = ["nn"]
// [parameters]
// SPLIT = { default = 1, values = [1, 2] }
// [[workspace]]
// name  = "partial"
// bytes = "M * 4"
// when  = "SPLIT > 1"
// [[step]]
// kernel = "first"
// args   = ["workspace:partial", "C"]
// [[step]]
// kernel = "second"
// args   = ["C"]
// when   = "SPLIT > 1"
// ///
int first(void* partial, float* C) { C[0] = partial ? 2 : 1; return 0; }
int second(float* C) { C[0] += 10 * $SPLIT; return 0; }
"""
    )
    template = load_template(path)
    problem = Problem.of(2, 2, 2)
    device = open_device(DeviceSpec("cpu"))
    square = np.zeros((2, 2), np.float32)
    device.prepare(problem, square, square, square, "hot")
    for split, expected in ((1, 1), (2, 22)):
        resolved = resolve(template, problem, {"cores": 1}, {"SPLIT": split})
        (tmp_path / "k.c").write_text(render(template, resolved).text)
        library = tmp_path / f"k{split}.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "k.c"], check=True)
        device.load("x", Build(True, "k", "cc", "x", (), path=str(library)), plan_launch(template, resolved))
        device.launch("x", device.ring[0])
        assert device.ring[0].c[0, 0] == expected
