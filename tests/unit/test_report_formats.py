"""Tables, JSON, CSV and Markdown of a report, compared with golden files and read back."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import golden
import pytest
import report_samples as samples
from rich.cells import cell_len

from gemmsweep.analysis.diagnose import RULES
from gemmsweep.errors import UsageError
from gemmsweep.model import STATUSES
from gemmsweep.report import columns, formats, grid
from gemmsweep.report.charts import axis_bars
from gemmsweep.report.tables import overview_table, print_best, sweep_table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(name: str, columns: list[str] | None = None, width: int = 80, out: io.StringIO | None = None) -> str:
    out = out or io.StringIO()
    formats.write(name, *samples.everything(), out, columns, width)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120, 160])
def test_tables_fit_their_width_and_match_the_golden_file(width: int) -> None:
    text = report("table", width=width)
    lines = [line for line in text.splitlines() if not line.startswith("gemmsweep run")]  # that one is one line, whole
    assert max(cell_len(line) for line in lines) <= width
    golden.check(f"report_{width}.txt", text)


@pytest.mark.parametrize("name", ["md", "csv", "json"])
def test_other_formats_match_the_golden_file(name: str) -> None:
    golden.check(f"report.{name}", report(name))


def test_a_pipe_gets_no_escapes_and_no_color_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b" not in report("table")
    assert "\x1b[1;32m" in report("table", out=Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1m" in report("table", out=Terminal())
    assert "32m" not in report("table", out=Terminal())


@pytest.mark.parametrize("width", range(20, 200, 9))
def test_every_width_is_kept_even_with_wide_characters(width: int) -> None:
    sweep, runs = samples.stages_sweep()
    runs = [{**run, "limiter": "共享内存 🚀", "reason": "编译错误" * 40} for run in runs]
    for text in (sweep_table(sweep, runs, max(width, 70)).plain, axis_bars(sweep, runs, max(width, 40)).plain):
        assert all(cell_len(line) <= max(width, 70) for line in text.splitlines())


@pytest.mark.parametrize("width", [30, 40, 80])
def test_prose_wraps_beside_its_row_or_below_it_and_loses_no_word(width: int) -> None:
    prose = "cannot compile CUDA: CuPy is not installed. pip install 'gemmsweep[compile]' (no GPU)"
    columns = [grid.Column("name"), grid.Column("found"), grid.Column("detail", wraps=True)]
    lines = grid.draw(
        columns, [grid.Row(["NVRTC", "no", prose]), grid.Row(["ncu", "yes", ""])], width
    ).plain.splitlines()
    assert max(map(len, lines)) <= width
    assert "detail" in lines[0] or width == 30
    told = " ".join(" ".join(lines[2:-1]).split())
    assert told == f"NVRTC no {prose}"
    assert lines[-1].split() == ["ncu", "yes"]


def test_the_table_keeps_the_order_of_the_axis_and_marks_winner_start_and_spills() -> None:
    sweep, runs = samples.bk_sweep()
    rows = sweep_table(sweep, runs, 130).plain.splitlines()[2:]
    assert [row.split("  ")[0].strip() for row in rows] == ["", "○", "*", "", ""]
    assert [int(row[1:6]) for row in rows] == [4, 8, 16, 32, 64]
    assert "168 +24B" in rows[3]
    assert "every thread loads whole vectors of A" in rows[0]


def test_a_reason_goes_on_below_and_a_very_long_one_ends_in_an_ellipsis() -> None:
    columns = [grid.Column("BK", right=True), grid.Column("status")]
    rows = [grid.Row(["64", "compile"], note="w " * 99), grid.Row(["8", "ok"])]
    first, second, third, last = grid.draw(columns, rows, 40).plain.splitlines()[2:]
    assert first == f"64  compile  {'w ' * 14}".rstrip()
    assert second == f"{' ' * 13}{'w ' * 14}".rstrip()
    assert third.endswith("w …")
    assert last == " 8  ok"


def test_columns_asked_for_reach_a_pipe_unshortened() -> None:
    text = report("table", ["run_id", "config", "build.registers", "counters.sm_clock_mhz", "references.cublas.ratio"])
    assert "BM=128 BN=128 BK=16 WM=64 WN=32 TM=8 TN=8 STAGES=2 PAD=4 VEC=4" in text
    assert "1.030" in text
    narrow = report("table", ["run_id", "config", "problem"], 60, Terminal())
    assert "…" in narrow


@pytest.mark.parametrize("name", ["table", "csv", "md"])
def test_an_unknown_column_names_the_choices_and_writes_nothing(name: str) -> None:
    out = io.StringIO()
    with pytest.raises(UsageError, match=r"'build.regs'\. Did you mean 'build.registers'\? --format csv names all\.$"):
        report(name, ["run_id", "build.regs"], out=out)
    with pytest.raises(UsageError, match=r"unknown column 'zzz'.*config.BK.*build.registers.*counters.power_w"):
        report(name, ["run_id", "zzz"], out=out)
    assert not out.getvalue()


def test_an_unknown_format_names_the_choices() -> None:
    with pytest.raises(UsageError, match=r"unknown format 'xml'. Choose one of: csv, json, md, table\."):
        report("xml")


def test_json_carries_every_key_and_refuses_columns() -> None:
    sweeps, runs = samples.everything()
    assert json.loads(report("json")) == {"schema": "gemmsweep/report/1", "sweeps": sweeps, "runs": runs}
    with pytest.raises(UsageError, match="JSON always carries every key"):
        report("json", ["run_id"])


def test_json_has_no_infinity_and_is_written_as_rows_arrive() -> None:
    out = io.StringIO()

    def rows() -> Iterator[samples.Record]:
        yield {"run_id": "1", "error": {"max_scaled": float("inf")}, "ci95_us": [float("nan"), 1.0]}
        assert '"run_id": "1"' in out.getvalue()
        yield {"run_id": "2"}

    formats.write("json", [], rows(), out)
    first = {"run_id": "1", "error": {"max_scaled": None}, "ci95_us": [None, 1.0]}
    assert json.loads(out.getvalue())["runs"] == [first, {"run_id": "2"}]


def test_csv_has_a_column_for_everything_and_empty_cells_for_what_was_not_measured() -> None:
    rows = list(csv.DictReader(io.StringIO(report("csv"))))
    _, runs = samples.everything()
    assert [row["run_id"] for row in rows] == [run["run_id"] for run in runs]
    assert rows[0]["median_us"] == rows[0]["build.registers"] == rows[3]["counters.sm_clock_mhz"] == ""
    assert float(rows[2]["references.cublas.ci95.lo"]) < float(rows[2]["references.cublas.ratio"])
    assert (rows[2]["config.BK"], rows[2]["finals"], rows[-1]["config.BM"]) == ("16", "false", "")
    chosen = report("csv", ["status", "config.BK"]).splitlines()
    assert chosen[:3] == ["status,config.BK", "constraint,4", "ok,8"]


def test_markdown_shows_hostile_names_literally() -> None:
    text = report("md")
    assert r"mma?\|\`evil\` \<b\>" in text
    assert "<b>" not in text
    assert "\x07" not in text


@pytest.mark.parametrize(("changes", "word"), [
    ({"contended": None}, "unfinished"), ({"contended": False}, "nothing raced"),
    ({"contended": False, "rounds": 8}, "nothing wins"), ({"contended": None, "kind": "verify"}, "checked only"),
])  # fmt: skip
def test_a_sweep_without_a_verdict_says_why(changes: samples.Record, word: str) -> None:
    sweep, _ = samples.bk_sweep()
    table = overview_table([{**sweep, "verdict": None, "rounds": None, **changes}], 120).plain
    assert word in table


def test_a_report_of_nothing() -> None:
    for name in formats.names():
        formats.write(name, [], [], io.StringIO())


def test_bars_show_the_interval_where_it_is_wider_than_a_character() -> None:
    sweep, runs = samples.cpu_sweep()
    runs[0]["ci95_us"] = [20000.0, 28000.0]
    bars = axis_bars(sweep, runs, 80).plain.splitlines()
    assert "├" in bars[1]
    assert "├" not in bars[2]
    golden.check("chart_80.txt", axis_bars(*samples.bk_sweep(), 80).plain + "\n")


@pytest.mark.parametrize("width", [80, 120])
def test_best_names_family_ratio_verdict_and_device(width: int) -> None:
    out = io.StringIO()
    print_best(samples.best(), out, width)
    assert max(cell_len(line) for line in out.getvalue().splitlines()) <= width
    golden.check(f"best_{width}.txt", out.getvalue())


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_no_problem_is_cut_and_what_is_left_out_is_said(width: int) -> None:
    best = samples.best()
    best[1]["references"]["cublaslt_best"] = {"ratio": 0.9, "ci95": [0.89, 0.91], "version": "tile 128x128"}
    best[1]["tflops"] = 1.208e-6
    best[1]["config"] |= {f"PARAMETER_{i}": i for i in range(8)}
    out = io.StringIO()
    print_best(best, out, width)
    assert max(cell_len(line) for line in out.getvalue().splitlines()) <= width
    assert "…" not in out.getvalue()
    assert "bias+leaky_relu" in out.getvalue()
    assert " 1.208e-6" in out.getvalue()
    assert ("Left out at this width: " in out.getvalue()) == (width < 160)


def test_the_manual_explains_every_word_of_a_table() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "measuring.md").read_text()
    section = manual.partition("## How to read a table")[2]
    for word in (*(rule.limiter for rule in RULES), *STATUSES):
        assert f"| {word} |" in section or f"`{word}`: " in section, word
    for mark in (columns.WINNER, columns.TIED, columns.START):
        assert f"`{mark}`" in section
