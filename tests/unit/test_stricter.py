"""A reference that is beyond the bound is loaded in its stricter way; relative errors of a few sums relate to their products."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmsweep import check
from gemmsweep.bench import Bench, Entrant
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.model import Inputs, Problem
from gemmsweep.oracle import logical, make_oracle
from gemmsweep.protocol import DeviceFailure, DeviceSpec
from gemmsweep.references import FP32_SUMS, stricter

OFF = DeviceFailure("incorrect", "the reference cublas itself is off: 255 of the allowed error")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "device.toml").write_text("")
    bench = Bench(DeviceSpec("scripted", script=str(tmp_path / "device.toml")))
    bench.prepare(Problem.of(4, 5, 6), Inputs(), "cold")
    yield bench
    bench.device.close()


def test_only_the_vendors_usual_product_has_a_stricter_way() -> None:
    assert stricter("cublas", "cuBLAS 13.1.0") == f"cuBLAS 13.1.0, {FP32_SUMS}"
    assert not stricter("cublas", f"cuBLAS 13.1.0, {FP32_SUMS}")
    assert not stricter("cublaslt_best", "cuBLASLt 13.1.0")


@pytest.mark.parametrize(("wrong", "asked"), [(0, [""]), (1, ["", f"Scripted 1.0, {FP32_SUMS}"])])
def test_a_reference_beyond_the_bound_is_loaded_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong: int, asked: list[str]
) -> None:
    loads, results = [], [OFF] * wrong
    load = bench.device.load_reference

    def noted(name: str, threads: int, like: str = "") -> tuple[str, tuple[str, ...]]:
        loads.append(like)
        return load(name, threads, like)

    def measured(*_: object) -> float:
        if results:
            raise results.pop()
        return 1e-7

    monkeypatch.setattr(bench.device, "load_reference", noted)
    monkeypatch.setattr(check, "measure_vendor", measured)
    assert bench.reference(Entrant("cublas"), 0.1)[2] == 1e-7
    assert loads == asked


def test_a_reference_that_stays_beyond_the_bound_is_a_failure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def off(*_: object) -> float:
        raise OFF

    monkeypatch.setattr(check, "measure_vendor", off)
    for name in ("cublas", "numpy"):
        with pytest.raises(DeviceFailure, match="itself is off"):
            bench.reference(Entrant(name), 0.1)


def test_the_relative_error_of_sums_that_cancel_relates_to_their_products() -> None:
    """1x1x16: the sum is 0.10, the norm of its products 3.8; a right tf32 kernel had 0.005 of the sum."""
    small = make_oracle(np, Problem.of(1, 1, 16, "tf32", "nt"), Inputs())
    a, b = logical(np, small.problem, small.random, "float64")
    assert small.norm == pytest.approx(float(np.sqrt(((a[0] * b[:, 0]) ** 2).sum())))
    assert small.norm > 10 * abs(small.expected[0, 0])
    large = make_oracle(np, Problem.of(130, 66, 170), Inputs())
    assert large.norm == pytest.approx(float(np.linalg.norm(large.expected)), rel=0.02)
    relu = make_oracle(np, Problem.of(130, 66, 17, epilogue="relu"), Inputs())
    assert relu.norm == pytest.approx(float(np.linalg.norm(relu.expected)))


@pytest.mark.parametrize("asked", [
    {}, {"beta": 1.0}, {"epilogue": "bias"}, {"epilogue": "gelu"}, {"epilogue": "silu"}, {"epilogue": "bias+gelu"},
])  # fmt: skip
@pytest.mark.parametrize("shape", [(1, 1, 17), (1, 1, 64), (1, 4, 64), (3, 5, 64)])
def test_plain_fp32_sums_are_right_whatever_a_few_results_cancel_to(
    shape: tuple[int, int, int], asked: dict[str, Any]
) -> None:
    problem = Problem.of(*shape, **asked)
    for seed in range(40):
        oracle = make_oracle(np, problem, Inputs(seed=seed))
        a, b = logical(np, problem, oracle.random, "float32")
        sums = np.zeros(shape[:2], np.float32)
        for k in range(shape[2]):
            sums += np.outer(a[:, k], b[k])
        if problem.beta:
            sums += oracle.random.c[:, : problem.n]
        chain = parse_epilogue(problem.epilogue)
        bias = None if oracle.bias is None else oracle.bias.astype("float64")
        got = chain.apply(np, sums.astype("float64"), bias).astype("float32").astype("float64")
        errors = check.measure_errors(np, got, oracle)
        assert errors.rel_fro <= check.rel_fro_limit(problem, None), seed
        assert errors.max_scaled <= 1.0, seed
