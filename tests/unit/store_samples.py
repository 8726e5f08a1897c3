"""Sweeps as the store's tests need them: a GPU, an axis of three values, cuBLAS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemmsweep.model import Build, DeviceInfo, Errors, Inputs, Problem
from gemmsweep.protocol import Burst, Counter
from gemmsweep.record import Attempt, Environment, Measurement, Outcome, Relation, SweepStart
from gemmsweep.store.ids import uuid7
from gemmsweep.store.runs import Store

GPU = DeviceInfo(
    "cuda", "NVIDIA H200", "GPU-1234", "sm_90", 132, 150_000_000_000, 60_000_000, 232_448, 1980, 700.0, None, "580.159",
    "CUDA 13.0",
)  # fmt: skip
ENVIRONMENT = Environment(GPU, "0.1.0", "abc123-dirty", "3.11.2", {"numpy": "2.4.6", "cupy": "14.2"}, "bench-7")
PROBLEM = Problem.of(4096, 4096, 4096)
LABELS = ("BK=8", "BK=16", "BK=32")
TEMPLATE = "// a template\nconstexpr int BK = $BK;\n" + "\n".join(f"line {line} of the kernel;" for line in range(400))
SOURCE = "5" * 64
BUILD = Build(
    True, "b" * 64, "nvrtc 13.0", "sm_90", ("-std=c++17", "--ptxas-options=-v"), log="ptxas info: 128 registers",
    registers=128, spill_bytes=0, smem_bytes=1024, compile_ms=750.5,
)  # fmt: skip


def start(**changes: Any) -> SweepStart:
    """A sweep along BK; `changes` replace fields."""
    made = SweepStart(
        session_id=changes.pop("session_id", None) or uuid7(), request_key="request", position=0, kind="axis",
        experiment=None, template="simt", problem=PROBLEM, inputs=Inputs(), varied="BK", values=(8, 16, 32),
        start={"BK": 16, "BM": 128}, start_origin="template defaults", regime="equal-clock", l2="cold",
        protocol="rounds", command="gemmsweep run --vary BK",
    )  # fmt: skip
    return replace(made, **changes)


def attempt(label: str = "BK=16", **changes: Any) -> Attempt:
    """A verified config of that label."""
    made = Attempt(
        label=label, role="config", status="ok", template="simt", source_sha256=SOURCE,
        config={"BK": int(label.rpartition("=")[2]), "BM": 128}, build=BUILD, errors=Errors(0.1, 1e-6, 2e-6),
        smem_bytes=33_792, occupancy_pct=50.0, limiter="registers", peak_tflops=67.0, peak_clock_mhz=1980,
        peak_gbps=4800.0,
    )  # fmt: skip
    return replace(made, **changes)


CUBLAS = Attempt("cublas", "reference", "ok", version="13.0", kernels=("nvjet_sm90",), peak_tflops=67.0)


def bursts(labels: Sequence[str], index: int, ns: int = 8_000_000) -> list[Burst]:
    """One round of plausible bursts."""
    return [
        Burst(label, ns + 32 * (7 * index + place), 4, 1700 + index % 3, 690_000 + index // 4, 4 if index % 2 else 0)
        for place, label in enumerate(labels)
    ]


def measurement(us: float, ratio: float | None = None) -> Measurement:
    """What a race of 20 rounds says of a label."""
    relations = {} if ratio is None else {"cublas": Relation(ratio, (ratio - 0.01, ratio + 0.01))}
    return Measurement(20, 4, us * 1e3, (us * 990, us * 1010), relations=relations, joules=0.5)


def outcome(measurements: Mapping[str, Measurement], **changes: Any) -> Outcome:
    """A verdict over these measurements."""
    made = Outcome("winner", "BK=16", (), 4.5, 3, False, "decided", True, measurements)
    return replace(made, **changes)


def race(store: Store, begun: SweepStart, times: Mapping[str, float], rounds: int = 20, **verdict: Any) -> int:
    """A finished sweep whose configs took these µs per launch; cuBLAS took 2000."""
    key = store.begin_sweep(begun, verdict.pop("environment", ENVIRONMENT))
    for label in times:
        run_key = store.save_attempt(
            key, attempt(label, template=begun.template or "simt"), TEMPLATE.replace("$BK", label)
        )
        store.save_counters(
            run_key, [Counter("sm_clock_mhz", 1650.0, "MHz", "stamp"), Counter("power_w", None, "W", "nvml")]
        )
    store.save_attempt(key, CUBLAS)
    for index in range(rounds):
        store.save_round(key, index, bursts([*times, "cublas"], index))
    measured = {label: measurement(us, 2000 / us) for label, us in times.items()}
    fastest = min(times, key=lambda label: times[label])
    store.finish_sweep(key, outcome({**measured, "cublas": measurement(2000)}, **{"winner": fastest, **verdict}))
    return key
