"""From a config to a source, a launch, or the rules it breaks."""

from __future__ import annotations

import difflib
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from golden import check

from gemmsweep.errors import ProblemError, TemplateError, UsageError
from gemmsweep.model import Problem, Source
from gemmsweep.template.header import Template, load_template
from gemmsweep.template.library import list_templates
from gemmsweep.template.render import broken_rules, complaint_in_file, flatten, plan_launch, render, resolve

DATA = Path(__file__).parent.parent / "data" / "template"
H200 = {"max_smem_bytes": 232_448, "sm_count": 132, "cores": 8}
SHIPPED = list_templates().templates
TINY = load_template(DATA / "tiny.cu")


def rendered(template: Template, problem: Problem | None = None, **config: int | str) -> Source:
    problem = problem or Problem.of(512, 256, 128, template.dtypes[0], template.layouts[0])
    return render(template, resolve(template, problem, H200, {**template.defaults(), **config}))


def broken(template: Template, problem: Problem | None = None, **config: int | str) -> list[str]:
    problem = problem or Problem.of(512, 256, 128, template.dtypes[0], template.layouts[0])
    return broken_rules(template, resolve(template, problem, H200, {**template.defaults(), **config}))


def sidecar(
    folder: Path, source: str, head: str, kernel: str, block: str = "256", args: str = '"A", "B", "C", "i32:N"'
) -> Template:
    shutil.copy(DATA / source, folder)
    path = folder / Path(source).with_suffix(".toml")
    path.write_text(
        f'summary = "x"\nbackend = "cuda"\narch = "sm_75+"\ndtypes = ["fp32"]\nlayouts = ["nn"]\n{head}\n'
        f'[launch]\nargs = [{args}]\ngrid = "1"\nblock = "{block}"\n[kernel]\n{kernel}\n'
    )
    return load_template(path)


def test_render_matches_its_golden_file() -> None:
    problem = Problem.of(512, 256, 128, "fp16", "nt", epilogue="bias+leaky_relu")
    check("render_tiny.cu", rendered(TINY, problem, EDGE="tail").text)


def test_a_complaint_names_the_file_and_the_line_that_the_user_wrote(tmp_path: Path) -> None:
    for template in SHIPPED:
        text = rendered(template).text
        written = template.text.splitlines()
        for number, line in enumerate(text.splitlines(), 1):
            told = complaint_in_file(template, text, f"kernel.cu({number}): error: x")
            meant = re.fullmatch(rf"{re.escape(template.path.name)}\((\d+)\): error: x", told)
            assert meant, told
            source = written[int(meant[1]) - 1]
            assert source == line or "$" in source, (template.name, number)
    text = rendered(TINY).text
    last = text.count("\n")
    assert complaint_in_file(TINY, text, f"kernel.c:{last}:7: error") == f"tiny.cu:{TINY.text.count(chr(10))}:7: error"
    for other in ('epilogue.cuh(3): error: "kernel.cu"', "my_kernel.cu(3): error", "died of kernel.cu"):
        assert complaint_in_file(TINY, text, other) == other
    beside = sidecar(tmp_path, "macros.cu", "", 'name = "square"\nbind = "define"')
    assert rendered(beside).name == "macros.cu"
    assert complaint_in_file(beside, rendered(beside).text, "macros.cu(7): error") == "macros.cu(7): error"


def test_flattened_sources_stand_alone() -> None:
    text = flatten(rendered(TINY))
    assert not re.search(r'#\s*include\s*"', text)
    assert text.count("struct fp16") == 1


def test_two_renders_along_an_axis_differ_in_the_axis_alone() -> None:
    first, second = (rendered(TINY, EDGE=edge).text.splitlines() for edge in ("pad", "tail"))
    moved = [line for line in difflib.ndiff(first, second) if line[0] in "+-"]
    assert moved == ["- constexpr int EDGE = 0;", "+ constexpr int EDGE = 1;"]


def test_a_launch_is_evaluated() -> None:
    (step,) = plan_launch(TINY, resolve(TINY, Problem.of(512, 250, 128, "fp16"), H200, TINY.defaults())).steps
    assert step.args == ("A", "B", "C", "i64:512", "i32:16", "epilogue")
    assert (step.grid, step.block, step.smem_bytes) == ((16, 32, 1), (256, 1, 1), 1024)


def test_a_broken_rule_shows_the_rule_and_the_values_that_would_have_to_move() -> None:
    assert broken(TINY) == []
    assert broken(TINY, BM=32, BN=32) == [
        "a padded block holds at most 512 threads "
        "(THREADS <= 512 or EDGE == tail with THREADS=1024, EDGE=pad, BM=32, BN=32)"
    ]
    assert broken(TINY, BM=4, BN=6) == ['half a "block" is whole warps (HALF % 32 == 0 with HALF=12, BM=4, BN=6)']
    assert "block x must be 1 to 1024 (THREADS = 2048 with BM=64, BN=32)" in broken(TINY, BM=64, BN=32, EDGE="tail")


def test_limits_of_every_launch() -> None:
    tall = Problem.of(2_000_000, 16, 16)
    assert broken(TINY, tall) == ["grid y must be 1 to 65535 (ceil_div(M, BM) = 125000 with M=2000000, BM=16)"]
    starved = resolve(TINY, Problem.of(64, 64, 64), {**H200, "max_smem_bytes": 1000}, TINY.defaults())
    assert broken_rules(TINY, starved) == [
        "shared memory of a block must be 0 to 1000 bytes "
        "(2 * THREADS * sizeof_in = 2048 with THREADS=256, sizeof_in=4, BM=16, BN=16)"
    ]
    assert broken(TINY, Problem.of(64, 2**36, 1), BN=1, BM=64)[-1].startswith(
        "an i32 argument overflows (ceil_div(N, BN) = "
    )


def test_what_cannot_be_computed_is_a_broken_rule(tmp_path: Path) -> None:
    for name in ("tiny.cu", "tiny.cuh"):
        shutil.copy(DATA / name, tmp_path)
    path = tmp_path / "tiny.cu"
    path.write_text(path.read_text().replace("floor_div(THREADS, 2)", "floor_div(THREADS, BM - BN)"))
    rules = broken(load_template(path))
    assert (
        rules[0]
        == "HALF has no value: division by zero in 'floor_div(THREADS, BM - BN)' with THREADS=256, BM=16, BN=16"
    )


def test_shapes_a_kernel_requires(tmp_path: Path) -> None:
    template = sidecar(tmp_path, "macros.cu", 'requires = ["N % TILE == 0"]', 'name = "square"\nbind = "define"\n'
                       "[parameters]\nTILE = { default = 16, values = [16] }")  # fmt: skip
    assert broken(template, Problem.of(8, 30, 8)) == [
        "the kernel takes only some shapes (N % TILE == 0 with N=30, TILE=16)"
    ]


def test_a_problem_no_config_computes_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"template 'tiny' has no dtype 'bf16'. It has: fp32, fp16, tf32"):
        rendered(TINY, Problem.of(1, 1, 1, "bf16"))
    cpu = next(template for template in SHIPPED if template.backend == "cpu")
    with pytest.raises(ProblemError, match=r"has no epilogue, so not 'relu'"):
        rendered(cpu, Problem.of(1, 1, 1, epilogue="relu"))


def test_a_kernel_that_is_given_no_leading_dimension_takes_tight_rows_only(tmp_path: Path) -> None:
    head = '[derived]\nWIDTH = "lda + 0"\n'
    template = sidecar(
        tmp_path, "macros.cu", head, 'name = "square"\nbind = "define"', args='"A", "B", "C", "i32:WIDTH"'
    )
    assert template.leading_dimensions == {"lda"}
    assert broken(template, Problem.of(4, 5, 6, lda=9)) == []
    assert broken(template, Problem.of(4, 5, 6, ldd=7)) == [
        "the kernel is given no ldc, so it takes rows 5 apart, not 7 (give it ldc in args)"
    ]
    assert all(shipped.leading_dimensions == {"lda", "ldb", "ldc"} for shipped in SHIPPED)


def test_a_config_that_does_not_fit_is_refused() -> None:
    problem = Problem.of(1, 1, 1)
    with pytest.raises(TemplateError, match=r"lacks EDGE"):
        resolve(TINY, problem, {}, {"BM": 8, "BN": 8})
    with pytest.raises(TemplateError, match=r"has no parameter 'BQ'"):
        resolve(TINY, problem, {}, {**TINY.defaults(), "BQ": 1})
    with pytest.raises(UsageError, match=r"Choose one of: pad, tail"):
        resolve(TINY, problem, {}, {**TINY.defaults(), "EDGE": "mask"})


def test_macros_reach_an_untouched_source_guarded_or_not(tmp_path: Path) -> None:
    template = sidecar(tmp_path, "macros.cu", "", 'name = "square"\nbind = "define"\ndefines = ["FAST"]\n[parameters]\n'
                       "TILE = { default = 16, values = [16] }\nUNROLL = { default = 4, values = [4, 8] }")  # fmt: skip
    source = rendered(template, TILE=32, UNROLL=8)
    assert source.options == ("-DFAST", "-DTILE=32", "-DUNROLL=8")
    assert "#define UNROLL 8\n" in source.text
    assert "#define MAX(a, b) ((a)" in source.text
    assert (source.headers, source.stubs) == ({}, {"stdio.h": ""})
    assert flatten(source).startswith("#define FAST 1\n#define TILE 32\n")


def test_template_arguments_carry_the_values(tmp_path: Path) -> None:
    template = sidecar(tmp_path, "public.cu", "", 'name = "sgemm::tiled<BM,BN,8,TM>"\nbind = "template"\n[parameters]\n'
                       "BM = { default = 64, values = [64] }\nBN = { default = 32, values = [32] }\n"
                       "TM = { default = 4, values = [4] }")  # fmt: skip
    source = rendered(template)
    assert source.kernels == ("sgemm::tiled<64,32,8,4>",)
    assert source.text == template.text
    compiled(source, "sm_75")
    line = "namespace sgemm { template __global__ void tiled<64, 32, 8, 4>(int M, int N, int K, float alpha, const float *A,"
    assert flatten(source).splitlines()[-1].startswith(line)
    assert [instance.startswith(line) for instance in source.instances] == [True]  # what nvcc needs, NVRTC does not
    compiled(replace(source, text=flatten(source)), "sm_75")


def compiled(source: Source, arch: str) -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no NVRTC")
    headers = {**source.stubs, **source.headers}
    texts, names = [text.encode() for text in headers.values()], [name.encode() for name in headers]
    program = nvrtc.createProgram(source.text, "k.cu", texts, names)
    for kernel in source.kernels:
        nvrtc.addNameExpression(program, kernel)
    try:
        nvrtc.compileProgram(program, (f"-arch={arch}", "--std=c++17", *source.options))
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program)[:2000])
    finally:
        nvrtc.destroyProgram(program)


def test_the_rendered_template_and_its_flattened_text_compile() -> None:
    source = rendered(TINY, Problem.of(64, 64, 64, "fp16", epilogue="bias+relu"))
    compiled(source, "sm_75")
    compiled(replace(source, text=flatten(source), headers={}), "sm_75")


def test_an_exported_kernel_keeps_its_rules() -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no NVRTC")
    text = flatten(rendered(TINY))
    for edit in (("BM = 16;", "BM = 32;"), ("THREADS = 256;", "THREADS = 128;")):
        program = nvrtc.createProgram(text.replace(*edit), "k.cu", (), ())
        with pytest.raises(nvrtc.NVRTCError):
            nvrtc.compileProgram(program, ("-arch=sm_75",))
        assert "THREADS = BM * BN" in nvrtc.getProgramLog(program)


@pytest.mark.parametrize("template", SHIPPED, ids=lambda template: template.name)
def test_shipped_templates_render_and_launch(template: Template) -> None:
    launched = 0
    for dtype in template.dtypes:
        for layout in template.layouts:
            # Some kernels take few rows, or aligned rows, or not this layout of this type: the first shape they do take.
            for shape in ((130, 66, 17), (127, 66, 17), (3, 66, 17), (128, 64, 64)):
                resolved = resolve(template, Problem.of(*shape, dtype, layout), H200, template.defaults())
                if broken_rules(template, resolved):
                    continue
                assert plan_launch(template, resolved).steps
                assert not re.search(r'#\s*include\s*"', flatten(render(template, resolved)))
                launched += 1
                break
    assert launched >= len(template.dtypes)


@pytest.mark.parametrize("template", SHIPPED, ids=lambda template: template.name)
def test_every_axis_of_a_shipped_template_changes_its_source(template: Template) -> None:
    fetched = template.behind(name for tensor_map in template.tensor_maps for name in tensor_map.promotion.names)
    for parameter in (p for p in template.parameters if p.name not in fetched):  # L2's part is in the descriptor
        texts = {rendered(template, **{parameter.name: value}).text for value in parameter.values}
        assert len(texts) == len(parameter.values), parameter.name


def test_steps_workspaces_and_tensor_maps(tmp_path: Path) -> None:
    path = tmp_path / "two.cu"
    path.write_text(
        """// /// gemmsweep
// summary = "Two kernels, a workspace and a tensor map."
// backend = "cuda"
// arch    = "sm_90a"
// dtypes  = ["fp16"]
// layouts = ["nt"]
// deterministic = false
// [parameters]
// BK = { default = 64, values = [64, 128, 512] }
// [[workspace]]
// name  = "partial"
// bytes = "M * N * 4"
// zero  = "each"
// [[tensor_map]]
// name    = "map_a"
// operand = "A"
// box     = ["BK", 64]
// swizzle = 128
// [[step]]
// kernel = "multiply"
// args   = ["tensor_map:map_a", "B", "workspace:partial"]
// grid   = "sm_count"
// block  = 128
// [[step]]
// kernel = "reduce"
// args   = ["workspace:partial", "C", "D"]
// grid   = 1
// block  = [32, 64]
// ///
constexpr int BK = $BK;
"""
    )
    template = load_template(path)
    problem = Problem.of(64, 32, 256, "fp16", "nt")
    resolved = resolve(template, problem, H200, {"BK": 64})
    launch = plan_launch(template, resolved)
    assert [(w.name, w.bytes, w.zero) for w in launch.workspaces] == [("partial", 8192, "each")]
    assert [(t.name, t.operand, t.box, t.swizzle, t.promotion) for t in launch.tensor_maps] == [
        ("map_a", "A", (64, 64), 128, 0)
    ]
    assert [(s.kernel, s.args[0], s.grid) for s in launch.steps] == [
        ("multiply", "tensor_map:map_a", (132, 1, 1)),
        ("reduce", "workspace:partial", (1, 1, 1)),
    ]
    assert not launch.deterministic
    assert render(template, resolved).kernels == ("multiply", "reduce")
    assert broken(template, problem) == ["reduce: a block holds at most 1024 threads (32 * 64 = 2048)"]
    assert broken(template, problem, BK=128)[1:] == [
        "tensor map map_a: a row of the box fits the swizzle of 128 bytes "
        "(BK * sizeof_in = 256 with BK=128, sizeof_in=2)"
    ]
    assert "a box has 1 to 256 elements along each dimension (BK = 512)" in broken(template, problem, BK=512)[1]


def test_without_a_device_its_rules_are_passed_over() -> None:
    template = next(template for template in SHIPPED if template.name == "simt")
    problem = Problem.of(64, 64, 64)
    assert broken_rules(template, resolve(template, problem, {}, template.defaults())) == []


def test_what_follows_from_a_broken_rule_is_not_told_beside_it() -> None:
    simt = next(template for template in SHIPPED if template.name == "simt")
    (told,) = broken(simt, BM=32, WM=64, WN=64)
    assert told.startswith("whole warp tiles cover the block tile: lower WM or WN")
    assert any("shared memory" in one for one in broken(simt, BM=256, BN=256, WM=64, WN=96, BK=64, STAGES=6))
