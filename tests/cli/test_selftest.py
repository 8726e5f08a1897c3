"""`gemmsweep selftest` on a scripted GPU whose noise is known, and the other regimes and protocols of `run`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from screen import Run

from gemmsweep.protocol import Burst
from gemmsweep.report.words import kept_run_id
from gemmsweep.worker import Worker

pytest.importorskip("cupy_backends", reason="needs NVRTC: pip install 'gemmsweep[compile]'")

STEADY = '[[rule]]\nmatch = "cublas"\ntime_us = 100\nnoise_pct = 0.2\nthrottle = [4]\n'
NAIVE = ("run", "--template", "naive", "--shape", "96x64x48", "--start", "defaults", "--vary", "UNROLL=1,2")


def test_counts_grow_and_only_missing_sweeps_run(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    device = scripted(STEADY)
    command = ("selftest", "--device", device, "--shape", "64x64x64")
    first = gemmsweep(*command, "--kind", "aa", "--kind", "known2", "--sweeps", "2")
    assert first.code == 0
    assert "a true difference of 2% was found in 2 of 2 sweeps" in first.text
    assert "identical kernels were called different in 0 of 4 (95% sure: below 52.7%)" in first.text
    assert gemmsweep(*command, "--kind", "aa", "--sweeps", "3").code == 0
    report = gemmsweep("report", "--experiment", "aa", "--format", "json").json
    assert len(report["sweeps"]) == 3
    assert {len([r for r in report["runs"] if r["sweep_id"] == s["sweep_id"]]) for s in report["sweeps"]} == {6}
    assert {(s["experiment"], s["protocol"], s["pairs_different"]) for s in report["sweeps"]} == {("aa", "rounds", 0)}
    assert all(run["references"]["cublas"]["ratio"] == pytest.approx(1, abs=5e-3) for run in report["runs"])
    assert gemmsweep("export-best").code == 1  # slowed on purpose: never a result


def test_what_is_on_record_is_shown_without_the_device(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    command = ("selftest", "--device", scripted(STEADY), "--shape", "64x64x64")
    said = gemmsweep(*command, "--sweeps", "2", "--kind", "aa", "--kind", "known1").out.splitlines()
    assert gemmsweep(*command, "--sweeps", "2", "--kind", "aa", "--protocol", "alone").code == 0
    rounds, alone = gemmsweep("report", "--selftest", "--format", "md").out.split("\n\n**")
    assert "cublas under six names, in rounds" in rounds
    assert "| known1 | 64x64x64 bf16 nt | 2 |" in rounds
    assert rounds.rstrip().splitlines()[-1] == said[-1].replace("this machine", "Scripted GPU x132 700W")
    assert "each config timed alone" in alone
    told = "The latest command on record is a selftest"
    assert told not in gemmsweep("report").err, "it is what is shown"
    assert gemmsweep(*NAIVE, "--device", scripted(STEADY)).code == 0
    assert gemmsweep(*command, "--sweeps", "3", "--kind", "aa").code == 0
    assert told in gemmsweep("report").err
    table = gemmsweep("report", "--selftest", "--experiment", "known1").text
    assert "a true difference of 1% was found in 2 of 2 sweeps" in " ".join(table.split())
    nothing = gemmsweep("report", "--selftest", "--experiment", "known2")
    assert (nothing.code, "no selftest that the filters leave" in nothing.err) == (1, True)
    both = gemmsweep("report", "--selftest", "--families")
    assert (both.code, "--families and --selftest" in both.err) == (2, True)
    refused = gemmsweep("report", "--selftest", "--format", "csv")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)


def test_slower_labels_are_slower_by_exactly_so_much(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    device = scripted('[[rule]]\nmatch = "cublas"\ntime_us = 100\n')
    kinds = {"tied": (1.0, 1.02), "known1": (1.0, 1.01), "known05": (1.0, 1.005)}
    chosen = [word for kind in kinds for word in ("--kind", kind)]
    assert gemmsweep("selftest", "--device", device, "--shape", "64x64x64", "--sweeps", "1", *chosen).code == 0
    for kind, (fastest, slowest) in kinds.items():
        runs = gemmsweep("report", "--experiment", kind, "--format", "json").json["runs"]
        times = [run["median_us"] for run in runs]
        assert (min(times), max(times)) == pytest.approx((100 * fastest, 100 * slowest), rel=1e-9)


def test_alone_calls_equals_different_where_rounds_do_not(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    device = scripted('[[rule]]\nmatch = "cublas"\ntime_us = 100\nnoise_pct = 3\n')
    command = ("selftest", "--device", device, "--shape", "64x64x64", "--kind", "aa", "--sweeps", "3")
    assert "called different in 3 of 3" in gemmsweep(*command, "--protocol", "alone").text
    assert "called different in 0 of 3" in gemmsweep(*command).text


def test_a_kernel_of_ones_own_and_the_cpu(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    common = ("--kind", "aa", "--sweeps", "1")
    own = gemmsweep("selftest", "--template", "naive", "--shape", "64x64x64", "--dtype", "fp32", "--device",
                    scripted(STEADY), *common)  # fmt: skip
    assert own.code == 0
    # Alone, because rounds of equals on a CPU go on until the time for a race is over.
    assert gemmsweep("selftest", "--device", "cpu", "--shape", "32x32x32", *common, "--protocol", "alone").code == 0


def test_all_regimes_are_rows_of_their_own_and_a_power_cap_makes_own_power_decide(
    gemmsweep: Run, scripted: Callable[[str], str]
) -> None:
    script = (
        '[[rule]]\nmatch = "UNROLL=2$"\ntime_us = 90\nclock_mhz = 1410\nthrottle = [4]\npower_mw = 700000\n'
        '[[rule]]\nmatch = "UNROLL|naive"\ntime_us = 95\nclock_mhz = 1485\nthrottle = [4]\npower_mw = 690000\n' + STEADY
    )
    ran = gemmsweep(*NAIVE, "--device", scripted(script), "--regime", "all")
    assert ran.code == 0
    report = gemmsweep("report", "--last", "--format", "json").json
    assert [s["regime"] for s in report["sweeps"]] == ["equal-clock", "equal-clock", "own-power", "burst"]
    own = [run for run in report["runs"] if run["regime"] == "own-power"]
    assert [run["rounds"] for run in own] == [8, 8]
    assert own[0]["joules"] == pytest.approx(700 * 90e-6)
    (best,) = gemmsweep("export-best", "--format", "json").json["best"]
    assert (best["regime"], best["config"]["UNROLL"]) == ("own-power", 2)
    again = gemmsweep(*NAIVE, "--device", scripted(script), "--regime", "all")
    assert "On record since" in again.err


def test_a_small_product_has_finals_at_equal_clock_only(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    assert gemmsweep(*NAIVE, "--device", scripted(STEADY)).code == 0
    report = gemmsweep("report", "--last", "--format", "json").json
    assert [s["regime"] for s in report["sweeps"]] == ["equal-clock", "equal-clock"]


def test_configs_timed_alone_are_stored_but_never_exported_or_started_from(
    gemmsweep: Run, scripted: Callable[[str], str]
) -> None:
    device = scripted('[[rule]]\nmatch = "UNROLL=2$"\ntime_us = 90\n' + STEADY)
    ran = gemmsweep(*NAIVE, "--device", device, "--protocol", "alone")
    assert ran.code == 0
    (sweep,) = gemmsweep("report", "--last", "--format", "json").json["sweeps"]
    assert (sweep["protocol"], sweep["rounds"], sweep["verdict"]) == ("alone", 7, "winner")
    assert "cold L2, each config timed alone, 7 rounds" in ran.text
    assert gemmsweep("export-best").code == 1
    fresh = gemmsweep("run", "--template", "naive", "--shape", "96x64x48", "--vary", "UNROLL=1,2", "--device", device)
    assert "(template defaults)" in fresh.err


def test_what_the_time_was_too_short_for_is_told(gemmsweep: Run, scripted: Callable[[str], str]) -> None:
    ran = gemmsweep(
        "selftest", "--device", scripted(STEADY), "--shape", "64x64x64", "--kind", "aa", "--sweeps", "3",
        "--time-limit", "0.001s",
    )  # fmt: skip
    assert ran.code == 1
    assert "Not finished: aa of 64x64x64 bf16 nt (0 of 3). The same command goes on." in ran.err


def test_a_kernel_too_slow_for_an_exact_percent_is_left_out_with_a_reason(
    gemmsweep: Run, scripted: Callable[[str], str]
) -> None:
    device = scripted('[[rule]]\nmatch = "cublas"\ntime_us = 2000\n')
    ran = gemmsweep("selftest", "--device", device, "--shape", "64x64x64", "--kind", "known1", "--sweeps", "1")
    assert ran.code == 1
    assert "no known1: bursts of 100 launches would take 200 ms" in ran.err


def test_a_tie_at_own_power_keeps_what_equal_clock_decided(
    gemmsweep: Run, scripted: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    block = Worker.block

    def level(self: Worker, label: str, *times: float) -> Burst:
        burst = block(self, label, *times)
        return replace(burst, burst_ns=90_000 * burst.launches)

    monkeypatch.setattr(Worker, "block", level)
    script = '[[rule]]\nmatch = "UNROLL=2$"\ntime_us = 90\n[[rule]]\nmatch = "UNROLL|naive"\ntime_us = 91\n' + STEADY
    coarse = (*NAIVE[:-1], "UNROLL=2,4", "--min-effect", "3")
    ran = gemmsweep(*coarse, "--device", scripted(script), "--regime", "own-power")
    assert ran.code == 0, ran.text
    report = gemmsweep("report", "--last", "--format", "json").json
    axis, equal, own = report["sweeps"]
    labels = {run["run_id"]: run["config"]["UNROLL"] for run in report["runs"]}
    assert (axis["verdict"], labels[kept_run_id(axis)]) == ("tie", 4), "an axis is as coarse as it was asked to be"
    assert (equal["verdict"], labels[equal["winner_run_id"]]) == ("winner", 2), "what is exported is not"
    assert own["verdict"] == "tie"
    assert labels[kept_run_id(own)] == 2


def test_disturbed_configs_timed_alone_move_nothing(
    gemmsweep: Run, scripted: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "foreign", lambda self: "process 4711 (python) uses the GPU")
    device = scripted('[[rule]]\nmatch = "UNROLL=2$"\ntime_us = 90\n' + STEADY)
    ran = gemmsweep(*NAIVE, "--vary", "ORDER", "--device", device, "--protocol", "alone")
    first, second = gemmsweep("report", "--last", "--format", "json").json["sweeps"]
    assert first["contended"], ran.text
    assert second["start"]["UNROLL"] == first["start"]["UNROLL"]
