"""The known case where equal clock and own power disagree: cuBLAS fp16 against bf16, the same product, on one GPU.

Run: python tests/benchmarks/bench_power.py [SIZE] [DEVICE]
Each dtype has a worker of its own; their bursts alternate (equal clock), then their blocks (own power). About 90 s at 8192.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gemmsweep import race, regimes
from gemmsweep.bench import Entrant
from gemmsweep.device import resolve_device
from gemmsweep.model import Inputs, Problem
from gemmsweep.protocol import Burst
from gemmsweep.worker import Worker

DTYPES, ROUNDS, BURST_MS = ("bf16", "fp16"), 80, 8.0


def ready(spec: Any, size: int, dtype: str) -> Worker:
    worker = Worker(spec)
    worker.prepare(Problem.of(size, size, size, dtype, "nt"), Inputs(), "cold")
    worker.enter_reference(Entrant("cublas"), BURST_MS)
    return worker


def take(workers: dict[str, Worker], passes: int, measure: Callable[[Worker], Burst], *, shuffle: bool) -> list[Any]:
    """Bursts of both dtypes, round by round."""
    rng, rounds = random.Random(0), []
    for index in range(passes):
        order = list(DTYPES) if index % 2 == 0 else list(DTYPES[::-1])
        if shuffle:
            rng.shuffle(order)
        rounds.append({dtype: measure(workers[dtype]) for dtype in order})
    return rounds


def one_burst(worker: Worker) -> Burst:
    worker.start_round(["cublas"])
    return worker.finish_round(["cublas"])[0]


def compare(name: str, rounds: list[Any]) -> dict[str, Any]:
    """fp16 time over bf16 time with its 95% interval, clocks and joules."""

    def times(dtype: str) -> Any:
        return np.array([r[dtype].burst_ns / r[dtype].launches for r in rounds])

    found = race.estimate(np.log(times("fp16")) - np.log(times("bf16")))
    half = found.half_width(0.025)
    result: dict[str, Any] = {"regime": name, "rounds": len(rounds), "fp16_over_bf16": math.exp(found.mean)}
    result["ci95"] = [math.exp(found.mean - half), math.exp(found.mean + half)]
    for dtype in DTYPES:
        clocks = [r[dtype].sm_clock_mhz for r in rounds if r[dtype].sm_clock_mhz]
        powers = [r[dtype].power_mw for r in rounds if r[dtype].power_mw]
        mean_ns = float(times(dtype).mean())
        mean_w = sum(powers) / len(powers) / 1e3 if powers else None
        result[dtype] = {
            "us": mean_ns / 1e3, "sm_mhz": round(sum(clocks) / len(clocks)) if clocks else None, "power_w": mean_w,
            "joules": None if mean_w is None or name != "own-power" else mean_w * mean_ns / 1e9,
        }  # fmt: skip
    return result


def main(size: int, device: str) -> None:
    spec = resolve_device(device)
    workers = {dtype: ready(spec, size, dtype) for dtype in DTYPES}
    workers["bf16"].warm_up("cublas", 3.0)
    print(json.dumps(compare("equal-clock", take(workers, ROUNDS, one_burst, shuffle=True))))
    for worker in workers.values():
        worker.recalibrate("cublas", regimes.BLOCK_BURST_MS)
    blocks = take(
        workers, regimes.PASSES, lambda w: w.block("cublas", regimes.BLOCK_S, regimes.DROPPED_S), shuffle=False
    )
    print(json.dumps(compare("own-power", blocks)))
    for worker in workers.values():
        worker.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8192, sys.argv[2] if len(sys.argv) > 2 else "auto")
