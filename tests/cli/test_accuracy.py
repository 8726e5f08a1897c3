"""Kernels that sum less exactly than the problem asks for: raced and shown, never winners. For real, on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from screen import Run

KERNEL = """// /// gemmsweep
// summary = "Three plain loops, or one whose every sum keeps 11 bits."
// backend = "cpu"
// dtypes  = ["fp32"]
// layouts = ["nn"]
// [parameters]
// ACC    = { default = "full", values = ["full", "half", "false_half"], meaning = "how sums are kept" }
// UNROLL = { default = 1, values = [1, 2] }
// [[accuracy]]
// when  = "ACC == half"
// acc   = "fp16"
// unit  = 2048
// terms = "K"
// [[accuracy]]
// when  = "ACC == false_half"
// acc   = "fp21"
// unit  = "65536"
// [launch]
// args = ["A", "B", "C", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb", "i64:ldc"]
// ///
#include <stdint.h>
#include <string.h>
static float kept(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7F800000) != 0x7F800000) bits = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFFu;
    memcpy(&x, &bits, 4);
    return x;
}
int gemm(const float* A, const float* B, float* C, int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc) {
    for (int64_t i = 0; i < M; ++i)
        for (int64_t j = 0; j < N; ++j) {
            volatile float x;
            for (int times = 0; times < ($ACC ? $UNROLL : 6 + $UNROLL); ++times) {
                x = 0;
                for (int64_t k = 0; k < K; ++k) {
                    x = x + A[i * lda + k] * B[k * ldb + j];
                    if ($ACC) x = kept(x);
                }
            }
            C[i * ldc + j] = x;
        }
    return 0;
}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "sums.c").write_text(KERNEL)
    shape = ("--shape", "48x40x256", "--time-limit", "8s", "--start", "defaults")
    return ("run", "--template", str(tmp_path / "sums.c"), "--device", "cpu", *shape)


def test_a_faster_row_of_another_class_is_shown_and_never_wins(gemmsweep: Run, sweep: tuple[str, ...]) -> None:
    ran = gemmsweep(*sweep, "--vary", "ACC")
    assert ran.code == 0
    assert " accuracy " in ran.out and "error" in ran.out
    assert "ACC=full is the only config of the problem's accuracy class that raced." in ran.text
    assert "ACC=half (error " in ran.text
    assert "is faster but of another accuracy class, which never wins" in ran.text

    report = gemmsweep("report", "--last", "--format", "json").json
    runs = {run["config"]["ACC"]: run for run in report["runs"] if not run["finals"]}
    assert {name: (run["status"], run["problem"]["acc"]) for name, run in runs.items() if run["status"] == "ok"} == {
        "full": ("ok", "fp32"),
        "half": ("ok", "fp16"),
    }
    assert runs["false_half"]["status"] == "incorrect"  # it is worse than what it says of itself
    assert runs["half"]["median_us"] < runs["full"]["median_us"]
    assert runs["half"]["error"]["rel_fro"] > 100 * runs["full"]["error"]["rel_fro"]
    assert runs["half"]["error"]["max_scaled"] <= 1
    axis = report["sweeps"][0]
    assert axis["winner_run_id"] == runs["full"]["run_id"]
    assert all(run["config"]["ACC"] == "full" for run in report["runs"] if run["finals"])
    best = gemmsweep("export-best", "--format", "json").json["best"]
    assert [b["config"]["ACC"] for b in best] == ["full"]
    again = gemmsweep("run", *sweep[1:-1], "best", "--vary", "UNROLL", "--dry-run")
    assert "ACC=half" not in again.out + again.err


def test_where_nothing_is_of_the_problems_class_nothing_wins(gemmsweep: Run, sweep: tuple[str, ...]) -> None:
    ran = gemmsweep(*sweep, "--vary", "UNROLL", "--set", "ACC=half")
    assert "Nothing wins: every config that raced is of another accuracy class than the problem's." in ran.text
    report = gemmsweep("report", "--last", "--format", "json").json
    (axis,) = report["sweeps"]  # no finals
    assert (axis["verdict"], axis["winner_run_id"], axis["stopped"]) == (None, None, "decided")
    assert all(run["status"] == "ok" and run["median_us"] for run in report["runs"])
    assert gemmsweep("export-best", "--format", "json").code == 1
