"""Reading template files: what a header gives, and what a user is told about one that cannot be used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gemmsweep.errors import TemplateError, UsageError
from gemmsweep.template.header import load_template
from gemmsweep.template.library import find_template, list_templates
from gemmsweep.template.locations import templates_folder

DATA = Path(__file__).parent.parent / "data" / "template"
TINY = (DATA / "tiny.cu").read_text()
SIDECAR = """
summary = "x"
backend = "cuda"
arch = "sm_75+"
dtypes = ["fp32"]
layouts = ["nn"]
[launch]
args = ["A", "B", "C", "i32:N"]
grid = "1"
block = "256"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in DATA.iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path


def test_a_header_is_read_whole() -> None:
    template = load_template(DATA / "tiny.cu")
    assert (template.name, template.backend, template.arch, template.deterministic) == ("tiny", "cuda", "sm_75+", True)
    assert template.defaults() == {"BM": 16, "BN": 16, "EDGE": "pad"}
    assert template.constants == {"pad": 0, "tail": 1}
    assert list(template.derived) == ["THREADS", "HALF"]
    assert template.takes_epilogue
    assert template.behind(["HALF"]) == {"HALF", "THREADS", "BM", "BN"}
    assert list(template.headers) == ["epilogue.cuh", "tiny.cuh", "types.cuh"]
    assert template.body.startswith('#include "epilogue.cuh"\n')
    assert template.text.splitlines()[template.body_line - 1] == '#include "epilogue.cuh"'


def test_the_hash_covers_source_headers_and_sidecar(folder: Path) -> None:
    before = load_template(folder / "tiny.cu").source_sha256
    (folder / "tiny.cuh").write_text("#define TINY 2.0f\n")
    assert load_template(folder / "tiny.cu").source_sha256 != before
    (folder / "macros.toml").write_text(SIDECAR + '[kernel]\nname = "square"\nbind = "define"\n')
    first = load_template(folder / "macros.cu").source_sha256
    (folder / "macros.toml").write_text(SIDECAR + '# \n[kernel]\nname = "square"\nbind = "define"\n')
    assert load_template(folder / "macros.toml").source_sha256 != first


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"cuda"', '"hip"', r"tiny.cu: the header backend: unknown backend 'hip'. Choose one of: cuda, cpu"),
        ("// arch ", "// arc ", r"the header has no key 'arc'. It has: summary, backend, arch,"),
        ('"sm_75+"', '"75"', "neither like"),
        ('"fp16", ', '"fp17", ', "unknown dtype 'fp17' for cuda. Choose among: fp32, tf32, fp16, bf16"),
        ('"nt"]', '"tn"]', "unknown layout 'tn'.*A row, B col"),
        ("default = 16", "default = 17", r"\[parameters\] BM default: 17 is not among the values"),
        ("default = 16", "deflt = 16", r"\[parameters\] BM has no key 'deflt'. It has: default, values, meaning"),
        ("[8, 16, 32]", '[8, "x"]', "not a mixture"),
        ("[8, 16, 32]", "[8, 16, 16]", "names a value twice"),
        ("[8, 16, 32]", "[true, 16]", "must be integers"),
        ("[8, 16, 32]", "[16, -8]", "must be integers from 0"),
        ("// BN ", "// K ", "the name 'K' is reserved"),
        ("// BN ", "// BM ", r"not TOML: .*line 12"),
        ('"pad", "tail"', '"pad", "BM"', "already means something else"),
        ("HALF    =", "BM =", r"\[derived\] BM: the name is already taken"),
        ('"BM * BN"', '"BM * HALF"', r"\[derived\] THREADS: unknown name 'HALF' in 'BM \* HALF'. Known here: BM, BN"),
        ('"BM * BN"', '"BM < BN"', "must be an integer, not a comparison"),
        ('"BM * BN"', "\"__import__('os').system('x')\"", "none of what is allowed"),
        ('"HALF % 32 == 0"', '"HALF % 32"', "must be a comparison"),
        ('"HALF % 32 == 0"', '"1 < HALF < 3"', r"\[\[constraints\]\] 2 expr: a chained comparison"),
        ('"HALF % 32 == 0"', '"cores == 1"', "unknown name 'cores'"),
        ('"epilogue"]', '"epilog"]', "unknown argument 'epilog'. Choose among: A, B, C, D, alpha, beta, epilogue"),
        ('"epilogue"]', '"workspace:x"]', r"no \[\[workspace\]\] is named 'x'. Declared: none"),
        ("// [launch]", "// [lunch]", "has no key 'lunch'"),
        ("$BM;", "16;", r"parameter 'BM' is never used by the kernel. Write \$BM in the body"),
        ("$EDGE;", "0;", r"parameter 'EDGE' is never used by the kernel. Write \$EDGE in the body"),
        ("$THREADS", "$THREAD", r"tiny.cu, line 47: unknown key \$THREAD \(\$\$ is a literal dollar\). Keys: BM, BN"),
        ("costs 1 $$", "costs 1 $", r"tiny.cu, line 55: a single '\$'. Write \$\$"),
        ("// ///\n#", "//\n#", "the header must be '//' comments up to its end"),
        ("// [derived]", "[derived]", "tiny.cu, line 15: the header must be"),
        ("// [derived]", "// [[start]]\n// set = { BX = 8 }\n// [derived]", r"\[\[start\]\] 1 set: there is no parameter 'BX'"),
        ("// [derived]", "// [[start]]\n// set = { BM = 7 }\n// [derived]",
         r"tiny.cu, line 15: \[\[start\]\] 1 set: BM takes: 8, 16, 32; not 7. Change or delete this \[\[start\]\]"),
        ("// [derived]", "// [[start]]\n// set = { BM = true }\n// [derived]", "set: BM takes: 8, 16, 32; not True"),
        ("// [derived]", '// [[start]]\n// when = "M > 1"\n// [derived]', "set: must be a table of values"),
    ],
)  # fmt: skip
def test_a_broken_header_is_told_precisely(folder: Path, old: str, new: str, message: str) -> None:
    path = folder / "tiny.cu"
    path.write_text(TINY.replace(old, new, 1))
    with pytest.raises(TemplateError, match=message) as caught:
        load_template(path)
    assert "\n" not in str(caught.value)
    assert "tiny.cu" in str(caught.value)


def test_a_key_that_depends_on_the_device_cannot_be_rendered(folder: Path) -> None:
    (folder / "tiny.cu").write_text(TINY.replace('"BM * BN"', '"BM * BN + sm_count"'))
    with pytest.raises(TemplateError, match=r"\$THREADS depends on the device"):
        load_template(folder / "tiny.cu")


def test_a_source_without_header_or_sidecar_is_pointed_to_init(folder: Path) -> None:
    with pytest.raises(TemplateError, match=r"no macros.toml beside it. Draft one: gemmsweep init .*macros.cu"):
        load_template(folder / "macros.cu")


def test_a_c_source_is_not_pointed_to_what_reads_cuda_only(folder: Path) -> None:
    (folder / "plain.c").write_text("int gemm(void) { return 0; }\n")
    with pytest.raises(TemplateError, match=r"no plain.toml beside it. Write one as docs/templates.md says"):
        load_template(folder / "plain.c")


def test_a_c_function_that_returns_nothing_is_refused(folder: Path) -> None:
    sidecar = SIDECAR.replace("cuda", "cpu").replace('arch = "sm_75+"', "")
    (folder / "plain.toml").write_text(sidecar.replace('grid = "1"', "").replace('block = "256"', ""))
    source = "/* not a\nvoid gemm() */ int gemm(const float* A, const float* B, float* C, int N) { return 0; }\n"
    (folder / "plain.c").write_text(source)
    assert load_template(folder / "plain.c").backend == "cpu"
    (folder / "plain.c").write_text(source.replace("int gemm", "void\ngemm"))
    with pytest.raises(TemplateError, match=r"plain.c: gemm returns nothing. Declare it int"):
        load_template(folder / "plain.c")


def test_a_sidecar_and_a_header_at_once_are_refused(folder: Path) -> None:
    (folder / "tiny.toml").write_text(SIDECAR)
    with pytest.raises(TemplateError, match=r"Remove one of the two"):
        load_template(folder / "tiny.cu")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('[kernel]\nname = "sgemm<BM>"\nbind = "template"', None),
        ('[kernel]\nname = "sgemm<64>"\nbind = "template"', "Write it into the kernel's name"),
        ('[kernel]\nbind = "define"', "as the source's macro is named"),
        ('[kernel]\nbind = "replace"', "Choose one of: substitute, define, template"),
        ('[kernel]\nname = "sgemm<BM>"\nbind = "template"\ninclude_dirs = ["nowhere"]', "no folder .*nowhere"),
    ],
)
def test_a_parameter_must_reach_a_users_kernel(folder: Path, table: str, message: str | None) -> None:
    sidecar = folder / "macros.toml"
    sidecar.write_text(f"{SIDECAR}[parameters]\nBM = {{ default = 8, values = [8, 16] }}\n{table}\n")
    if message is None:
        assert load_template(sidecar).path == folder / "macros.cu"
        return
    with pytest.raises(TemplateError, match=message):
        load_template(sidecar)


@pytest.mark.parametrize(
    ("arch", "admitted", "refused"),
    [
        ("sm_75+", ["sm_75", "sm_80", "sm_90a", "sm_120"], ["sm_70", "x86_64"]),
        ("sm_90a", ["sm_90a"], ["sm_90", "sm_100a"]),
    ],
)
def test_architectures(folder: Path, arch: str, admitted: list[str], refused: list[str]) -> None:
    (folder / "tiny.cu").write_text(TINY.replace("sm_75+", arch))
    template = load_template(folder / "tiny.cu")
    assert [a for a in admitted + refused if template.target(a) == a] == admitted


def test_a_device_runs_what_is_built_for_its_own_features(folder: Path) -> None:
    (folder / "tiny.cu").write_text(TINY.replace("sm_75+", "sm_90a"))
    template = load_template(folder / "tiny.cu")
    assert (template.target("sm_90"), template.target("sm_100")) == ("sm_90a", None)
    assert load_template(DATA / "tiny.cu").target("sm_90") == "sm_90"


def test_values_as_typed() -> None:
    template = load_template(DATA / "tiny.cu")
    assert template.parameter("BM").read("64") == 64
    assert template.parameter("EDGE").read("tail") == "tail"
    with pytest.raises(UsageError, match=r"unknown EDGE value 'tial'. Did you mean 'tail'\? Choose one of: pad, tail"):
        template.parameter("EDGE").read("tial")
    with pytest.raises(UsageError, match=r"BM = 'x' is not an integer of 0 or more. Declared: 8, 16, 32"):
        template.parameter("BM").read("x")
    with pytest.raises(TemplateError, match=r"template 'tiny' has no parameter 'BQ'. It has: BM, BN, EDGE."):
        template.parameter("BQ")


def test_one_broken_file_hides_no_other(folder: Path) -> None:
    listing = list_templates(folder)
    assert [template.name for template in listing.templates] == ["tiny"]
    assert list(listing.broken) == ["macros", "public", "several"]
    assert "no header" in listing.broken["macros"]


def test_templates_are_found_by_name_and_by_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert find_template("naive").path == templates_folder() / "naive.cu"
    assert find_template("tiny.cu").name == "tiny"
    assert find_template(str(folder / "tiny.cu")).name == "tiny"
    with pytest.raises(
        TemplateError,
        match=r"unknown template 'smit'. Did you mean 'simt'\? Choose one of: .*naive.*path of your own kernel",
    ):
        find_template("smit")
    with pytest.raises(TemplateError, match=r"cannot read .*gone.cu: No such file"):
        find_template("gone.cu")


def test_shipped_templates_load() -> None:
    listing = list_templates()
    assert listing.broken == {}
    assert {"naive", "simt", "mma", "cpu_blocked"} <= {template.name for template in listing.templates}
