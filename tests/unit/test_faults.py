"""What went wrong in public for tools of this kind, each with the tests that keep it from happening here (docs/reliability.md)."""

from __future__ import annotations

import ast
import math
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import store_samples as samples

from gemmsweep import check
from gemmsweep.analysis.account import offline_device
from gemmsweep.bench import Entrant
from gemmsweep.build import build_one
from gemmsweep.device import open_device
from gemmsweep.entry import enlist, target
from gemmsweep.model import Build, Inputs, Launch, Problem
from gemmsweep.oracle import make_oracle
from gemmsweep.protocol import DeviceSpec
from gemmsweep.store.runs import open_store
from gemmsweep.template import render
from gemmsweep.template.library import find_template, list_templates
from gemmsweep.worker import Worker

ROOT = Path(__file__).parents[2]
HERE, RUN, SURVIVAL = "tests/unit/test_faults.py", "tests/cli/test_run.py", "tests/cli/test_survival.py"
EVERY_FAULT = f"{RUN}::test_every_kind_of_fault_has_its_status"


@dataclass(frozen=True)
class Fault:
    """What happened elsewhere, and the tests, as pytest names them; `missing` says which part no test covers, and why."""

    what: str
    tests: tuple[str, ...]
    missing: str = ""


FAULTS = {
    1: Fault(
        "NaN passed a maximum-difference check",
        (
            EVERY_FAULT,
            "tests/unit/test_device_scripted.py::test_results_made_wrong_are_caught",
        ),
    ),
    2: Fault(
        "a failed or wrong kernel became the best and was exported",
        (
            f"{RUN}::test_nothing_verified_is_exit_1_and_never_exported",
            "tests/unit/test_store_runs.py::test_a_wrong_result_is_never_best",
        ),
    ),
    3: Fault(
        "another config's output hid missing writes",
        (
            EVERY_FAULT,
            "tests/unit/test_device_scripted.py::test_results_made_wrong_are_caught",
        ),
    ),
    4: Fault(
        "one illegal address ended the sweep",
        (
            f"{RUN}::test_each_failing_config_is_a_row_and_the_sweep_goes_on",
            "tests/gpu/test_bug.py::test_every_bug_costs_one_config_and_the_next_sweep_is_healthy",
        ),
    ),
    5: Fault(
        "a hung kernel blocked everything, or ran on beside the next config",
        (
            f"{SURVIVAL}::test_a_hung_worker_is_gone_before_the_next_config",
            "tests/unit/test_build_pool.py::test_a_compiler_that_hangs_is_killed_and_the_rest_go_on",
        ),
    ),
    6: Fault(
        "a worker that crashes at start was started for ever",
        (
            f"{SURVIVAL}::test_a_worker_that_dies_at_start_is_tried_three_times",
            "tests/unit/test_build_pool.py::test_processes_that_do_not_start_are_not_started_for_ever",
        ),
    ),
    7: Fault(
        "three runs, three different bests",
        (
            f"{RUN}::test_a_tie_keeps_the_present_value",
            "tests/unit/test_race.py::test_tied_leaders_are_hardly_ever_called_different",
        ),
    ),
    8: Fault(
        "a throttled clock chose the winner, or bursts were dropped in silence",
        (
            f"{SURVIVAL}::test_throttled_bursts_are_kept_and_marked_and_inputs_recorded",
            "tests/cli/test_selftest.py::test_alone_calls_equals_different_where_rounds_do_not",
        ),
    ),
    9: Fault(
        "the wrong card was watched",
        (
            "tests/unit/test_counters_nvml.py::test_a_card_is_found_by_uuid_not_by_index",
            "tests/unit/test_device_resolve.py::test_cuda_visible_devices",
        ),
    ),
    10: Fault(
        "energy was read over too short a time", ("tests/unit/test_counters_nvml.py::test_energy_is_of_a_whole_block",)
    ),
    11: Fault(
        "the flush of L2 was timed, or rested the card",
        (
            "tests/unit/test_device_layout.py::test_cold_bursts_touch_a_set_once",
            "tests/gpu/test_cuda_device.py::test_a_cold_burst_touches_each_set_once",
        ),
    ),
    12: Fault(
        "rounded or zero inputs flattered the speed",
        (
            f"{SURVIVAL}::test_throttled_bursts_are_kept_and_marked_and_inputs_recorded",
            f"{HERE}::test_inputs_are_neither_rounded_nor_zero",
        ),
    ),
    13: Fault(
        "integer products over 2^31",
        (
            "tests/unit/test_device_layout.py::test_sizes_beyond_32_bits",
            f"{HERE}::test_kernels_take_sizes_of_64_bits",
        ),
        "operands over 2^31 elements on a GPU: too slow for a test",
    ),
    14: Fault(
        "a grid rounded down, K = 192 silently wrong",
        (
            f"{HERE}::test_grids_cover_odd_sizes",
            f"{HERE}::test_the_cpu_kernel_is_right_at_odd_sizes",
        ),
        "CUDA kernels at odd sizes: each value is checked in every sweep on a GPU",
    ),
    15: Fault(
        "limits of grid or block crashed the tuner",
        (
            "tests/unit/test_template_render.py::test_limits_of_every_launch",
            "tests/gpu/test_cuda_device.py::test_launches_beyond_the_device_fail_without_losing_it",
        ),
    ),
    16: Fault(
        "something was missing from a cache key",
        (
            "tests/unit/test_build_cache.py::test_every_ingredient_changes_the_key",
            "tests/unit/test_build_toolkit.py::test_a_replaced_toolkit_changes_the_fingerprint",
        ),
    ),
    17: Fault(
        "an interrupted write lost the results; an old file no longer loaded",
        (
            "tests/unit/test_store_files.py::test_kill_9_loses_at_most_the_round_in_flight",
            "tests/unit/test_store_files.py::test_an_older_schema_is_read_through_a_copy_and_migrated_only_by_a_writer",
        ),
    ),
    18: Fault(
        "an open transaction of sqlite-utils < 4 brought rows back",
        (
            f"{HERE}::test_sqlite_utils_is_at_least_4",
            "tests/unit/test_store_files.py::test_a_failed_write_leaves_no_trace",
        ),
    ),
    19: Fault(
        "sqlite3 stores NaN as NULL and refuses integers from 2^63",
        ("tests/unit/test_store_runs.py::test_what_sqlite_cannot_hold_is_refused_or_null",),
    ),
    20: Fault(
        "a fixed tolerance failed correct fp16 at K = 16384", (f"{HERE}::test_correct_fp16_passes_at_a_large_k",)
    ),
    21: Fault(
        "an exception dropped what was unsaved; failures had another shape",
        (
            f"{RUN}::test_each_failing_config_is_a_row_and_the_sweep_goes_on",
            "tests/unit/test_store_runs.py::test_a_failed_config_is_a_row_with_nulls",
        ),
    ),
    22: Fault(
        "kernels of one name and different source were mixed",
        (
            f"{HERE}::test_another_source_is_another_identity",
            "tests/unit/test_template_header.py::test_the_hash_covers_source_headers_and_sidecar",
        ),
    ),
    23: Fault(
        "include paths and toolkits were not found",
        (
            "tests/cli/test_lab_book.py::test_doctor_says_what_is_there_and_what_to_install",
            "tests/unit/test_build_toolkit.py::test_wheels_of_cuda_12_keep_one_folder_per_component",
            "tests/unit/test_build_toolkit.py::test_a_toolkit_named_by_the_environment",
        ),
    ),
    24: Fault(
        "a busy GPU chose the winner",
        (
            "tests/unit/test_counters_nvml.py::test_foreign_load_is_noticed",
            "tests/unit/test_counters_nvml.py::test_a_process_that_merely_has_the_gpu_open_is_a_note",
            "tests/unit/test_plan.py::test_a_contended_race_changes_nothing",
        ),
        "real load of another process: run by hand on a GPU",
    ),
    25: Fault("old times stood beside new ones", (f"{SURVIVAL}::test_a_new_value_races_again_with_all_the_others",)),
    26: Fault(
        "one NVML field that raises lost the GPU",
        ("tests/unit/test_counters_nvml.py::test_a_field_that_raises_is_none_and_the_rest_remain",),
    ),
    27: Fault(
        "results of another GPU were used",
        (
            f"{SURVIVAL}::test_results_of_another_gpu_start_nothing",
            "tests/unit/test_store_runs.py::test_known_and_nearest",
        ),
    ),
    28: Fault(
        "M and N of a column-major log were swapped",
        (
            "tests/unit/test_device_cuda_pure.py::test_column_major_blas_computes_the_row_major_product",
            f"{RUN}::test_bad_input_is_one_line_and_exit_2",
        ),
    ),
    29: Fault(
        "a worker outlived its parent; device printf spoiled the JSON",
        (
            f"{SURVIVAL}::test_no_worker_outlives_a_killed_parent",
            f"{SURVIVAL}::test_what_a_worker_prints_does_not_reach_stdout",
        ),
    ),
    30: Fault(
        "two writers failed at once under a deferred BEGIN",
        ("tests/unit/test_store_files.py::test_two_writers_and_a_reader_do_not_disturb_each_other",),
    ),
    31: Fault(
        "a declared parameter that the kernel never uses",
        (
            "tests/unit/test_template_header.py::test_a_parameter_must_reach_a_users_kernel",
            "tests/unit/test_template_header.py::test_a_broken_header_is_told_precisely",
        ),
    ),
    32: Fault(
        "a cached CPU library crashed on another CPU",
        ("tests/unit/test_build_cache.py::test_a_cpu_binary_is_keyed_by_the_cpu",),
    ),
}
DOCUMENT = ROOT / "docs" / "reliability.md"


@cache
def names_in(file: str) -> frozenset[str]:
    """Names of the test functions of a file, without importing it."""
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_"))


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and name in names_in(file)


def test_every_fault_has_tests_and_they_exist() -> None:
    assert list(FAULTS) == list(range(1, 33))
    assert [test for fault in FAULTS.values() for test in fault.tests if not exists(test)] == []
    assert all(fault.tests for fault in FAULTS.values())


def test_every_test_that_the_document_names_exists() -> None:
    named = set(re.findall(r"`(tests/\S+?::\w+)`", DOCUMENT.read_text()))
    assert named >= {test for fault in FAULTS.values() for test in fault.tests}
    assert [test for test in sorted(named) if not exists(test)] == []
    scripts = set(re.findall(r"`(tests/benchmarks/\w+\.py)", DOCUMENT.read_text()))
    assert scripts and all((ROOT / script).is_file() for script in scripts)


def test_inputs_are_neither_rounded_nor_zero() -> None:
    a = make_oracle(np, Problem.of(64, 64, 64), Inputs()).random.a
    assert np.count_nonzero(a) == a.size
    assert np.count_nonzero(a.astype(np.float16) == a) < a.size // 10


def test_kernels_take_sizes_of_64_bits() -> None:
    for template in (one for one in list_templates().templates if one.backend == "cuda"):
        arguments = re.findall(r'"(i(?:32|64)):([^"]+)"', template.header_text)
        assert arguments
        assert [expression for kind, expression in arguments if kind == "i32"] == [], template.name


def blocks(name: str, shape: tuple[int, int, int]) -> int:
    """How many blocks the defaults of a template launch."""
    template, device = find_template(name), offline_device("sm_90a")
    problem = Problem.of(*shape, template.dtypes[0], "nn")
    (step,) = render.plan_launch(
        template, render.resolve(template, problem, render.device_env(device), template.defaults())
    ).steps
    return math.prod(step.grid)


@pytest.mark.parametrize("name", ["naive", "simt", "mma"])
def test_grids_cover_odd_sizes(name: str) -> None:
    tiles = find_template(name).defaults()
    m, n = 4 * int(tiles["BM"]), 4 * int(tiles["BN"])
    assert blocks(name, (m + 1, n, 192)) == blocks(name, (5 * m // 4, n, 192)) > blocks(name, (m, n, 192))
    assert blocks(name, (m, n + 1, 192)) == blocks(name, (m, 5 * n // 4, 192)) > blocks(name, (m, n, 192))


@pytest.mark.parametrize("shape", [(61, 67, 192), (1, 131, 7)])
def test_the_cpu_kernel_is_right_at_odd_sizes(shape: tuple[int, int, int]) -> None:
    pytest.importorskip("ziglang", reason="needs a C compiler: pip install 'gemmsweep[cpu]'")
    template = find_template("cpu_blocked")
    with Worker(DeviceSpec("cpu")) as worker:
        (candidate,) = enlist(template, Problem.of(*shape), worker.info, {"start": template.defaults()})
        assert candidate.source is not None and candidate.launch is not None
        build = build_one(candidate.source, target(template, worker.info))
        worker.prepare(Problem.of(*shape), Inputs(), "hot")
        checked = worker.check(Entrant("start", build, candidate.launch), burst_ms=1.0)
    assert (checked.status, checked.reason) == ("ok", "")


@pytest.mark.filterwarnings("ignore:invalid value")  # NaN and Inf are planted on purpose
@pytest.mark.parametrize("result", ["", "wrong"])
def test_correct_fp16_passes_at_a_large_k(tmp_path: Path, result: str) -> None:
    script = tmp_path / "gpu.toml"
    script.write_text(f"[[rule]]\nmatch = 'x'\nresult = '{result}'\n")
    device, problem = open_device(DeviceSpec("scripted", script=str(script))), Problem.of(24, 16, 16384, "fp16")
    oracle = make_oracle(np, problem, Inputs())
    device.prepare(problem, oracle.random.a, oracle.random.b, oracle.random.c, "hot", None)
    device.load("x", Build(True, "k", "nvrtc", "sm_90", ()), Launch(()))
    assert check.check(device, "x", oracle, burst_ms=0.1).status == ("incorrect" if result else "ok")


def test_sqlite_utils_is_at_least_4() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert "sqlite-utils>=4.0" in dependencies


def test_another_source_is_another_identity(tmp_path: Path) -> None:
    with open_store(tmp_path / "results.db") as store:
        for sha256 in ("5" * 64, "6" * 64):
            key = store.begin_sweep(samples.start(), samples.ENVIRONMENT)
            store.save_attempt(key, samples.attempt(source_sha256=sha256))
        query = "SELECT count(DISTINCT identity), count(DISTINCT template) FROM runs"
        assert store.connection.raw.execute(query).fetchone() == (2, 1)
