"""`gemmsweep verify`: for real on the CPU, and every kind of fault on a scripted GPU."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from screen import Run

KERNEL = """\
// /// gemmsweep
// summary = "Three loops."
// backend = "cpu"
// dtypes  = ["fp32"]
// layouts = ["nn"]
// [parameters]
// BM = { default = 8, values = [4, 8], meaning = "rows of a tile" }
// BN = { default = 8, values = [4, 8], meaning = "columns of a tile" }
// [launch]
// args = ["A", "B", "C", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb", "i64:ldc"]
// ///
enum { BM = $BM, BN = $BN };
$STATIC_ASSERTS
int gemm(const float* A, const float* B, float* C, long long M, long long N, long long K, long long lda, long long ldb,
         long long ldc) {
    for (long long i = 0; i < M; ++i)
        for (long long j = 0; j < N; ++j) {
            float sum = 0.0f;
            for (long long k = 0; k < K; ++k) {
                sum += A[i * lda + k] * B[k * ldb + j];
                LOOP
            }
            STORE
        }
    return 0;
}
"""
RIGHT = "C[i * ldc + j] = sum;"


@pytest.fixture
def kernel(tmp_path: Path) -> Callable[..., str]:
    """The path of a plain kernel with these lines in its loops."""

    def write(store: str = RIGHT, loop: str = "") -> str:
        path = tmp_path / "three.c"
        path.write_text(KERNEL.replace("STORE", store).replace("LOOP", loop))
        return str(path)

    return write


def test_a_template_is_verified_for_real_and_show_says_so(gemmsweep: Run) -> None:
    ask = ("verify", "cpu_blocked", "--device", "cpu", "--quick", "--layout", "nn", "--special-values")
    done = gemmsweep(*ask, "--format", "json")
    assert done.code == 0
    (template,) = done.json["templates"]
    assert (template["wrong"], template["left_out"]) == (0, 0)
    assert template["checks"] == template["right"] > 20
    assert "checks on" in done.err and "builds" in done.err
    (shown,) = gemmsweep("show", "cpu_blocked", "--format", "json").json["templates"]
    assert shown["stale"] and shown["unchecked"] == ["fp32 nt"] and shown["changed_since"] is None
    assert shown["checked"][0]["source_sha256"] == template["source_sha256"]
    assert shown["checked"][0]["pairs"] == ["fp32 nn"]
    assert "fp32 nn found right, last on" in gemmsweep("show", "cpu_blocked").out


def test_checks_are_stored_but_stand_in_nobodys_way(gemmsweep: Run, kernel: Callable[..., str]) -> None:
    assert gemmsweep("verify", kernel(), "--device", "cpu", "--shape", "13x7x5").code == 0
    shown = gemmsweep("report")
    assert shown.code == 1 and "holds checks, no races. Show them: gemmsweep report --experiment verify" in shown.err
    assert "Checked, not raced: 1 ok." in gemmsweep("report", "--experiment", "verify").out
    (run,) = gemmsweep("report", "--experiment", "verify", "--format", "json").json["runs"]
    assert (run["status"], run["median_us"]) == ("ok", None) and run["error"]["rel_fro"] is not None
    assert gemmsweep("export-best", "--format", "json").code == 1


def test_a_wrong_tail_is_found_and_the_line_that_shows_it_again(gemmsweep: Run, kernel: Callable[..., str]) -> None:
    path = kernel("if (j < 8 || j + 1 < N) C[i * ldc + j] = sum;")  # the last column beyond the first tile is forgotten
    done = gemmsweep("verify", path, "--device", "cpu", "--quick", "--format", "json")
    assert done.code == 1
    shapes = {(f["problem"]["m"], f["problem"]["n"]) for f in done.json["failures"]}
    assert (130, 66) in shapes and (1, 1) not in shapes and (8, 8) not in shapes
    again = shlex.split(next(f["command"] for f in done.json["failures"] if f["problem"]["n"] == 66))
    shown = gemmsweep(*again[1:])
    assert shown.code == 1
    assert "130 wrong elements; tiles (0, 8), (1, 8)" in shown.out
    assert re.search(r"0 +65 +not written +-?\d+ +0, 8 +0, 1 +– +–", shown.out)
    assert "tile 0, 8: 8 x 2 elements from (0, 64) on; x wrong, o not written\n  .o\n" in shown.out


@pytest.mark.parametrize(("store", "loop", "marks"), [
    ("if (i + j) " + RIGHT, "", {"not written"}),
    (RIGHT, "if (k + 1 == K) for (long long x = K; x < K + 8; ++x) sum += A[i * lda + k] * B[x * ldb + j];", {"nan, read"}),
    ("C[i * ldc + j] = sum + 0.0f * C[i * ldc + j];", "", {"nan, read"}),
    ("C[i * ldc + j] = i + j ? sum : 0.0f / (sum - sum);", "", {"nan"}),
    ("C[i * ldc + j] = i + j ? sum : 7.5f;", "", {"7.5"}),
])  # fmt: skip
def test_what_was_not_written_is_told_from_what_was_read_beyond_an_operand(
    gemmsweep: Run, kernel: Callable[..., str], store: str, loop: str, marks: set[str]
) -> None:
    ask = ("verify", kernel(store, loop), "--device", "cpu", "--shape", "97x101x103", "--explain")
    shown = gemmsweep(*ask)
    assert shown.code == 1
    rows = re.findall(r"^ *\d+ +\d+ +(not written|nan, read|-?nan|7\.5) ", shown.out, re.MULTILINE)
    assert {mark.removeprefix("-") for mark in rows} == marks
    assert ("so the kernel reads there" in " ".join(shown.out.split())) == (marks == {"nan, read"})
    elements = gemmsweep(*ask, "--format", "json").json["failures"][0]["elements"]
    assert {(e["untouched"], e["nan_read"]) for e in elements} == {("not written" in marks, "nan, read" in marks)}


def test_show_says_what_verify_found_wrong(gemmsweep: Run, kernel: Callable[..., str]) -> None:
    path = kernel("if (i < 8) " + RIGHT)
    assert gemmsweep("verify", path, "--device", "cpu", "--shape", "8x8x8", "--shape", "9x9x9").code == 1
    (shown,) = gemmsweep("show", path, "--format", "json").json["templates"]
    assert (shown["stale"], shown["checked"][0]["pairs"]) == (True, [])
    assert re.fullmatch(r"fp32 nn \(\d+ of \d+\)", shown["checked"][0]["wrong"][0])
    assert re.search(r"fp32 nn \(\d+ of \d+\) found wrong, last on", gemmsweep("show", path).out)


def test_what_was_not_looked_at_is_not_drawn_as_right(gemmsweep: Run, kernel: Callable[..., str]) -> None:
    shown = gemmsweep(
        "verify", kernel("C[i * ldc + j] = sum + 1.0f;"), "--device", "cpu", "--shape", "12x4096x8", "--explain"
    )
    assert "49,152 wrong elements, of the first 16,384; tiles (0, 0)" in shown.out
    assert "xxxxxxxx\n  xxxxxxxx\n  xxxxxxxx\n  xxxxxxxx\n  ????????\n" in shown.out


def test_one_shape_that_cannot_be_does_not_take_the_others_along(gemmsweep: Run, kernel: Callable[..., str]) -> None:
    shapes = ("--shape", "9x9x9", "--shape", "2000000x2000000x9", "--shape", "9x9x9", "--shape", "8x8x8")
    done = gemmsweep("verify", kernel(), "--device", "cpu", *shapes, "--format", "json")
    (template,) = done.json["templates"]
    assert (done.code, template["checks"], template["right"]) == (1, 2, 2)  # the same shape once
    assert (template["left_out"], done.json["failures"]) == (1, [])
    (unchecked,) = done.json["left_out"]
    assert unchecked["problem"]["m"] == 2000000 and "take a smaller shape" in unchecked["reason"]


def test_what_does_not_fit_into_memory_is_left_out_not_wrong(gemmsweep: Run, kernel: Callable[..., str]) -> None:
    done = gemmsweep("verify", kernel(), "--device", "cpu", "--shape", "4000000x4000000x4")
    assert done.code == 1 and "nothing checked" in done.out
    assert "three 4000000x4000000x4 fp32 nn: left out: needs " in done.text and "take a smaller shape" in done.text
    assert "wrong:" not in done.out and "--explain" not in done.out
    done = gemmsweep("verify", kernel(), "--device", "cpu", "--shape", "4000000x4000000x4", "--shape", "8x8x8")
    assert done.code == 1 and "right, but for what is left out" in done.text
    broken = gemmsweep("verify", kernel("x"), "--device", "cpu", "--shape", "4000000x4000000x4", "--format", "json")
    assert [failure["status"] for failure in broken.json["failures"]] == ["compile"] and not broken.json["left_out"]


def test_a_problem_that_the_template_does_not_take_is_told_and_the_others_are_checked(
    gemmsweep: Run, kernel: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "two.csv").write_text("m,n,k,dtype\n9,9,9,fp32\n9,9,9,fp16\n")
    done = gemmsweep("verify", kernel(), "--device", "cpu", "--shapes", "two.csv", "--format", "json")
    assert (done.code, done.json["templates"][0]["right"]) == (1, 1)
    assert "Error: 9x9x9 fp16: template 'three' has no dtype 'fp16'" in done.err
    (tmp_path / "two.csv").write_text("m,n,k,dtype\n9,9,9,fp16\n")
    assert gemmsweep("verify", kernel(), "--device", "cpu", "--shapes", "two.csv").code == 2


def test_a_problem_that_no_template_takes_is_told_with_all_as_well(gemmsweep: Run, tmp_path: Path) -> None:
    ask = ("verify", "--all", "--device", "cpu", "--shapes", str(tmp_path / "two.csv"), "--format", "json")
    (tmp_path / "two.csv").write_text("9,9,9,fp32\n9,9,9,fp16\n")
    done = gemmsweep(*ask)
    assert (done.code, [t["right"] for t in done.json["templates"]]) == (1, [1])
    assert "Error: 9x9x9 fp16: template 'cpu_blocked' has no dtype 'fp16'" in done.err
    (tmp_path / "two.csv").write_text("9,9,9,fp16\n")
    refused = gemmsweep(*ask)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "takes what was asked for. 9x9x9 fp16: template 'cpu_blocked' has no dtype" in refused.err


def test_what_one_template_takes_is_no_error_with_all(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    done = gemmsweep(
        "verify", "--all", "--device", scripted(""), "--shape", "64x64x64", "--dtype", "fp32", "--layout", "nn"
    )
    assert (done.code, "Error" in done.err) == (0, False)  # `gemv` wants one row


@pytest.mark.parametrize("command", [
    ("run", "--dry-run", "--template", "naive"), ("tune", "--dry-run"), ("tune", "--template", "naive", "--time-limit", "3s"),
    ("verify", "naive"), ("verify", "--all"),
])  # fmt: skip
def test_every_command_names_a_problem_that_its_options_do_not_fit(
    gemmsweep: Run, scripted: Callable[[str], str], command: tuple[str, ...]
) -> None:
    shapes = ("--shape", "8x8x8", "--shape", "16x16x16", "--dtype", "fp32", "--layout", "nn")
    done = gemmsweep(*command, "--device", scripted(""), *shapes, "--lda", "8")
    assert done.code == 1 and re.search("\\b8x8x8 fp32|1 problem,", done.out + done.err)
    assert "Error: 16x16x16 fp32 nn: --lda 8 is smaller than a row of 16 elements." in done.err
    refused = gemmsweep(*command, "--device", scripted(""), *shapes, "--lda", "3")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "8x8x8 fp32 nn: --lda 3 is smaller" in refused.err and "16x16x16 fp32 nn: --lda 3 is smaller" in refused.err


def test_a_reference_that_fails_is_told_for_each_problem(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    for fault in ('load = "crash"', 'load = "hang"', 'result = "wrong"'):
        device = scripted(f'[[rule]]\nmatch = "cublas"\n{fault}')
        shapes = ("--shape", "16x16x16", "--shape", "8x8x8", "--config-limit", "0.5s")
        done = gemmsweep("verify", "naive", "--device", device, *shapes, "--format", "json")
        assert done.code == 1, fault
        assert ["the reference cublas failed" in one["reason"] for one in done.json["left_out"]] == [True, True], fault
        assert done.json["failures"] == [], fault


def test_special_values_find_what_random_data_does_not(gemmsweep: Run, kernel: Callable[..., str]) -> None:
    path = kernel(loop="if (sum > 65504.0f && sum < 1e30f) sum = 65504.0f;")  # as a narrow accumulator might
    ask = ("verify", path, "--device", "cpu", "--shape", "66x34x2051")
    assert gemmsweep(*ask).code == 0
    found = gemmsweep(*ask, "--special-values", "--explain")
    assert found.code == 1
    assert "sums beyond fp16 on the way: " in found.out
    flushing = kernel("C[i * ldc + j] = sum < 1e-37f && sum > -1e-37f ? 0.0f : sum;")
    found = gemmsweep("verify", flushing, "--device", "cpu", "--shape", "9x9x9", "--special-values")
    assert found.code == 1 and "subnormals: " in found.out


def test_every_fault_of_an_axis_is_told_and_the_others_are_checked(
    gemmsweep: Run, scripted: Callable[[str], str]
) -> None:
    device = scripted(
        """
        [[rule]]
        match = "BM=32"
        result = "wrong"
        [[rule]]
        match = "BN=4"
        result = "outside"
        [[rule]]
        match = "BN=16"
        launch = "crash"
        """
    )
    ask = ("verify", "naive", "--device", device, "--quick", "--dtype", "fp32", "--layout", "nn", "--format", "json")
    done = gemmsweep(*ask, "--explain")
    assert done.code == 1
    faults = {f["label"]: f for f in done.json["failures"]}
    assert {label: f["status"] for label, f in faults.items()} == {
        "BM=32": "incorrect", "BN=4": "incorrect", "BN=16": "runtime",
    }  # fmt: skip
    (element,) = faults["BM=32"]["elements"]
    assert (element["row"], element["column"], element["tile"]) == (258, 130, [8, 4])
    assert (element["warp"], element["lane"]) == (2, 2)  # thread 66 of 32 x 32
    assert "wrote outside C" in faults["BN=4"]["reason"]
    assert done.json["templates"][0]["right"] > 10


def test_what_time_leaves_out_is_said(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    done = gemmsweep("verify", "naive", "--device", scripted(""), "--time-limit", "0.01s", "--format", "json")
    (template,) = done.json["templates"]
    assert done.code == 1 and template["checks"] == 0 and template["left_out"] > 100
    told = gemmsweep("verify", "naive", "--device", scripted(""), "--time-limit", "0.01s")
    assert told.code == 1 and "nothing checked: out of time" in told.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "one template, by name or path, or --all"),
        (("simt", "--all"), "one template, by name or path, or --all"),
        (("simt",), "--compile-only builds it, run and tune --dry-run plan it."),
        (("cpu_blocked", "--dtype", "fp16"), "no dtype 'fp16'"),
        (("cpu_blocked", "--set", "BM=168"), "add --shape"),
        (("cpu_blocked", "--shape", "8x8x8", "--set", "MR=5"), "MR"),
        (("cpu_blocked", "--shape", "8x8x8", "--set", "BM=168", "--set", "BM=336"), "--set BM is given twice"),
        (("cpu_blocked", "--shape", "8x8x8", "--set", "BM=168,336"), "To race them: --vary BM=168,336."),
        (("--all", "--dtype", "bf16"), "no template"),
    ],
)
def test_what_cannot_be_meant_is_exit_2(gemmsweep: Run, arguments: tuple[str, ...], message: str) -> None:
    done = gemmsweep("verify", *arguments, "--device", "cpu")
    assert done.code == 2 and message in done.err


def test_show_says_when_a_checked_template_has_changed(gemmsweep: Run, kernel: Callable[..., str]) -> None:
    assert gemmsweep("verify", kernel(), "--device", "cpu", "--shape", "9x9x9").code == 0
    changed = kernel("C[i * ldc + j] = 0.0f + sum;")
    (shown,) = gemmsweep("show", changed, "--format", "json").json["templates"]
    assert shown["stale"] and shown["changed_since"] == shown["checked"][0]["at"]
    assert "changed since 2" in gemmsweep("show", changed).out and "; now " + shown["source_sha256"][:8] in (
        gemmsweep("show", changed).out
    )


def test_a_hostile_file_name_stays_on_its_line(gemmsweep: Run, kernel: Callable[..., str]) -> None:
    path = Path(kernel("C[i * ldc + j] = 0;"))
    hostile = path.rename(path.with_name("three\x1b[31m\x07.c"))
    for ask in (("verify",), ("tune", "--dry-run", "--template"), ("run", "--dry-run", "--template"), ("show",)):
        shape = () if ask == ("show",) else ("--device", "cpu", "--shape", "9x9x9")
        done = gemmsweep(*ask, str(hostile), *shape)
        assert "three?" in done.out and not set("\x1b\x07") & set(done.out + done.err), ask


def test_special_values_are_refused_where_there_is_no_exact_answer(
    gemmsweep: Run, scripted: Callable[[str], str]
) -> None:
    device = scripted("[[rule]]\ntime_us = 10\n")
    command = ("verify", "naive", "--shape", "64x64x64", "--special-values", "--device", device)
    for asked in (("--epilogue", "bias"), ("--beta", "0.5")):
        ran = gemmsweep(*command, *asked)
        assert (ran.code, "--special-values has right answers for none and relu" in ran.err) == (2, True)
