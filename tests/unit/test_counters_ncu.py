"""What ncu printed becomes counters, and what it refused becomes advice. The samples follow its documented CSV layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmsweep import replay
from gemmsweep.counters import ncu
from gemmsweep.model import Build, Inputs, Launch, Problem, Step, TensorMap, Workspace
from gemmsweep.protocol import DeviceSpec

DATA = Path(__file__).parent.parent / "data" / "ncu"


def readings(name: str) -> dict[str, float | None]:
    return {counter.name: counter.value for counter in ncu.read_file(DATA / name)}


def test_kernels_of_one_launch_add_up_and_shares_are_weighted_by_time() -> None:
    found = readings("raw.csv")
    assert found["smem_ld_conflicts"] == 57344
    assert found["ncu_time_ns"] == 40_000
    assert found["dram_bytes"] == 58_720_256 + 8_388_608
    assert found["tensor_pipe_pct"] == pytest.approx(61.2 * 0.75)
    assert found["dram_throughput_pct"] == pytest.approx(41.25 * 0.75 + 81.25 * 0.25)


def test_what_was_not_measured_is_none_and_never_zero() -> None:
    found = readings("raw.csv")
    assert found["smem_st_conflicts"] == 0
    assert found["stall_barrier_pct"] is None  # n/a for one of the kernels
    assert found["stall_wait_pct"] is None  # not asked for


def test_a_row_per_metric_is_read_too() -> None:
    found = readings("details.csv")
    assert (found["smem_ld_conflicts"], found["dram_throughput_pct"]) == (57344, 41.25)
    assert {counter.basis for counter in ncu.read_file(DATA / "details.csv")} == {"ncu"}


@pytest.mark.parametrize("text", ["", "==PROF== No kernels were profiled.", '"ID","Kernel Name"\n'])
def test_no_kernels_no_counters(text: str) -> None:
    assert ncu.parse(text) == ()


def test_kernels_that_took_no_time_weigh_alike() -> None:
    kernels = [
        {ncu.TIME: time, "lts__t_sector_hit_rate.pct": share}
        for time, share in ((-1.0, 20.0), (1.0, 40.0), (0.0, 60.0))
    ]
    assert {c.name: c.value for c in ncu.combine(kernels)}["l2_hit_pct"] == 40.0


@pytest.mark.parametrize(("where", "way_out"), [("container", "SYS_ADMIN"), ("wsl", "Control Panel"), ("host", "sudo")])
def test_forbidden_counters_have_advice_for_the_case(monkeypatch: pytest.MonkeyPatch, where: str, way_out: str) -> None:
    monkeypatch.setattr(ncu, "surroundings", lambda: where)
    output = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
    assert way_out in ncu.advice(output)


@pytest.mark.parametrize(("output", "way_out"), [
    ("==ERROR== Failed to prepare kernel for profiling\n==ERROR== Driver resource unavailable.", "DCGM"),
    ("==ERROR== Profiling is not supported on this device", "newer Nsight"),
    ("==WARNING== No kernels were profiled.", "did not run"), ("==ERROR== Something else", "Something else"),
])  # fmt: skip
def test_other_refusals(output: str, way_out: str) -> None:
    assert way_out in ncu.advice(output)


def test_the_command_leaves_clocks_alone_and_asks_again_without_unknown_metrics(tmp_path: Path) -> None:
    fake = tmp_path / "ncu"
    log = tmp_path / "log"
    fake.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\ncase "$@" in *dram__bytes.sum*) '
        f'echo "==ERROR== Failed to find metric dram__bytes.sum"; exit 1;; esac\ncat {DATA / "details.csv"}\n'
    )
    fake.chmod(0o755)
    code, output = ncu.run(str(fake), ["program"], ["k1", "k<2>"], hot=False)
    assert code == 0
    assert len(ncu.parse(output)) == len(ncu.METRICS)
    first, second = log.read_text().splitlines()
    assert "--clock-control none" in first
    assert "--launch-skip 2 --launch-count 2" in first
    assert "dram__bytes.sum" not in second


def test_a_stored_launch_comes_back_whole(tmp_path: Path) -> None:
    import json

    launch = Launch(
        (Step("k", ("A", "i64:4096"), (2, 3, 1), (128, 1, 1), 1024),), (Workspace("w", 64, "each"),),
        (TensorMap("a", "A", (64, 128), 128, 256),), deterministic=False,
    )  # fmt: skip
    path = tmp_path / "spec.json"
    replay.write_spec(path, DeviceSpec("cuda"), Problem.of(2, 2, 2), Inputs(), Build(True, "", "", "sm_90", ()), launch)
    assert replay.launch_of(json.loads(path.read_text())["launch"]) == launch


def test_the_replay_runs(tmp_path: Path) -> None:
    script = tmp_path / "gpu.toml"
    script.write_text("seed = 1\n")
    path = tmp_path / "spec.json"
    device = DeviceSpec("scripted", script=str(script))
    problem = Problem.of(8, 8, 8, epilogue="bias+relu")
    replay.write_spec(path, device, problem, Inputs(), Build(True, "", "", "sm_90", ()), Launch(()))
    replay.main(str(path))
