"""SWEEP, RUN and BEST records as the store yields them: an H200, a CPU, every status, ties, finals, hostile names."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]
H200 = {
    "name": "NVIDIA H200",
    "uuid": "GPU-4f2a7c1e-1111-2222-3333-444455556666",
    "arch": "sm_90",
    "sm_count": 132,
    "power_limit_w": 700.0,
}
CPU = {
    "name": "AMD EPYC 9654 96-Core Processor",
    "uuid": "cpu-77aa",
    "arch": "x86_64",
    "sm_count": 4,
    "power_limit_w": None,
}
ENVIRONMENT = {
    "driver": "580.159.03",
    "gemmsweep_version": "0.1.0",
    "commit": "3f2a91bc0d1e2f3a4b5c6d7e8f901234567890ab",
}
COUNTERS = {
    "sm_clock_mhz": {"value": 1965.0, "unit": "MHz", "basis": "stamp"},
    "power_w": {"value": 512.4, "unit": "W", "basis": "nvml"},
    "gpm_any_tensor_util_pct": {"value": 0.3, "unit": "%", "basis": "gpm"},
    "gpm_dram_bw_util_pct": {"value": 8.25, "unit": "%", "basis": "gpm"},
}
UNREAD = {name: {**reading, "value": None} for name, reading in COUNTERS.items()}


def problem(m: int, n: int, k: int, dtype: str, layout: str = "nn", epilogue: str = "none") -> Record:
    return {
        "m": m,
        "n": n,
        "k": k,
        "batch": 1,
        "a_dtype": dtype,
        "b_dtype": dtype,
        "d_dtype": dtype,
        "acc": "fp32",
        "dtype": dtype,
        "layout": layout,
        "lda": k,
        "ldb": n if layout == "nn" else k,
        "ldd": n,
        "beta": 0.0,
        "epilogue": epilogue,
    }


SQUARE = problem(4096, 4096, 4096, "fp32")
HALF = problem(512, 4096, 4096, "fp16", "nt", "bias+leaky_relu")
SMALL = problem(1024, 1024, 1024, "fp32")


def run(number: int, sweep: Record, about: Record, config: Record, **given: Any) -> Record:
    """A run that failed before it was measured; `measured` turns it into a good one."""
    return {
        "run_id": f"0192a3b4-c5d6-7e8f-9012-3456{number:08x}",
        "sweep_id": sweep["sweep_id"],
        "started_at": sweep["started_at"],
        "status": "ok",
        "reason": None,
        "problem": about,
        "device": H200,
        "template": "simt",
        "source_sha256": "ab" * 32,
        "config": config,
        "varied": sweep["varied"],
        "regime": "equal-clock",
        "l2": "cold",
        "protocol": "rounds",
        "rounds": None,
        "finals": False,
        "inputs": "normal(seed=0)",
        "median_us": None,
        "ci95_us": None,
        "tflops": None,
        "pct_peak": None,
        "pct_peak_at_clock": None,
        "gbps": None,
        "pct_bandwidth": None,
        "joules": None,
        "references": {},
        "error": None,
        "build": None,
        "occupancy_pct": None,
        "limiter": None,
        "counters": {},
        **given,
    }


def measured(
    row: Record, median_us: float, vendor_us: float, half_pct: float = 0.1, vendor: str = "cublas", peak: float = 67.0
) -> Record:
    """`row` with times, and figures derived from them."""
    about, spread = row["problem"], half_pct / 100
    tflops = 2 * about["m"] * about["n"] * about["k"] / median_us / 1e6
    ratio = vendor_us / median_us
    relation = {
        "median_us": vendor_us,
        "ratio": ratio,
        "ci95": [ratio * (1 - spread), ratio * (1 + spread)],
        "kernels": ["sm80_xmma_gemm_f32f32"],
        "version": "13.1.0",
    }
    figures = {
        "rounds": 40,
        "median_us": median_us,
        "ci95_us": [median_us * (1 - spread), median_us * (1 + spread)],
        "tflops": tflops,
        "pct_peak": 100 * tflops / peak,
        "pct_peak_at_clock": 100.8 * tflops / peak,
        "gbps": 74.2,
        "pct_bandwidth": 1.5,
        "joules": 1.41,
        "references": {vendor: relation},
        "error": {"max_scaled": 0.031, "rel_fro": 2.1e-7, "rel_fro_vendor": 2.0e-7},
    }
    return {**row, **figures}


def build(registers: int, spill_bytes: int = 0, smem_bytes: int = 16896) -> Record:
    sizes = {"registers": registers, "spill_bytes": spill_bytes, "smem_bytes": smem_bytes}
    return {"compiler": "nvrtc 13.0", **sizes, "compile_ms": 612.5}


def sweep(number: int, varied: str | None, verdict: str | None, **given: Any) -> Record:
    return {
        "sweep_id": f"0192a3b4-0000-7000-8000-5eed{number:08x}",
        "experiment": None,
        "varied": varied,
        "started_at": f"2026-11-{10 + number}T14:03:22Z",
        "regime": "equal-clock",
        "l2": "cold",
        "protocol": "rounds",
        "rounds": 40,
        "verdict": verdict,
        "winner_run_id": None,
        "pairs_different": 3,
        "contended": False,
        "stopped": "decided",
        "environment": ENVIRONMENT,
        "command": None,
        "ties": [],
        "margin_pct": None,
        "start": {},
        **given,
    }


BASE = {"BM": 128, "BN": 128, "BK": 8, "WM": 64, "WN": 32, "TM": 8, "TN": 8, "STAGES": 2, "PAD": 4, "VEC": 4}


def bk_sweep() -> tuple[Record, list[Record]]:
    """A clear winner, a spilling value, a broken rule and a failed build."""
    command = "gemmsweep run --template simt --shape 4096x4096x4096 --dtype fp32 --layout nn --vary BK"
    one = sweep(1, "BK", "winner", command=command, start=BASE, margin_pct=1.84)
    rows = [run(i, one, SQUARE, {**BASE, "BK": bk}) for i, bk in enumerate((4, 8, 16, 32, 64))]
    rule = "every thread loads whole vectors of A: BM * BK % (VEC * THREADS) == 0; PAD or VEC would have to move"
    rows[0] |= {"status": "constraint", "reason": rule}
    good = {"occupancy_pct": 25.0, "limiter": "FFMA", "counters": COUNTERS}
    rows[1] = measured({**rows[1], **good, "build": build(152)}, 2911.4, 2681.2)
    rows[2] = measured({**rows[2], **good, "build": build(160, 0, 33792)}, 2603.1, 2681.2, 0.07)
    rows[3] = measured({**rows[3], **good, "build": build(168, 24, 67584)}, 2651.0, 2681.2, 0.15)
    rows[3] |= {"limiter": "spills", "occupancy_pct": 12.5, "counters": UNREAD}
    log = "\x1b[31mgemm.cu(41): error: shared memory of 270336 bytes exceeds 232448\x1b[0m\nptxas fatal: aborted\n"
    rows[4] |= {"status": "compile", "reason": log}
    one["winner_run_id"] = rows[2]["run_id"]
    return one, rows


def stages_sweep() -> tuple[Record, list[Record]]:
    """A tie, and every way of failing; the template's name is hostile."""
    one = sweep(2, "STAGES", "tie", command="gemmsweep run --template mma --dtype fp16 --vary STAGES", margin_pct=0.31)
    one |= {"start": {"STAGES": 2}, "experiment": "stages"}
    failed = ("launch", "runtime", "timeout", "incorrect", "unstable", "unfinished")
    rows = [
        run(16 + i, one, HALF, {"BM": 128, "STAGES": 2 + i}, template="mma\x07|`evil`\n<b>")
        for i in range(2 + len(failed))
    ]
    for row, median in zip(rows, (30.02, 29.98), strict=False):
        more = {"build": build(128, 0, 49152), "occupancy_pct": 50.0, "limiter": "tensor", "counters": COUNTERS}
        row.update(measured({**row, **more}, median, 27.31, 0.2, peak=989.0))
    for row, status in zip(rows[2:], failed, strict=True):
        row |= {"status": status, "reason": f"{status} after 3 launches: C[17, 4] is nan, 12 of 2097152 elements"}
    rows[-1]["reason"] = None
    one |= {"winner_run_id": rows[0]["run_id"], "ties": [rows[1]["run_id"]], "stopped": "narrow"}
    return one, rows


def finals() -> tuple[Record, list[Record]]:
    """The race after selection over three configs of two families."""
    one = sweep(3, None, "winner", command="gemmsweep run --template simt --vary BK", margin_pct=1.79, rounds=80)
    more = {"build": build(160), "occupancy_pct": 25.0, "limiter": "FFMA", "counters": COUNTERS, "finals": True}
    rows = [
        measured(run(32, one, SQUARE, {**BASE, "BK": 16}, **more), 2605.0, 2680.9, 0.05),
        measured(run(33, one, SQUARE, {**BASE, "BK": 32}, **more), 2651.6, 2680.9, 0.05),
        measured(run(34, one, SQUARE, {"BM": 16, "BN": 16}, **{**more, "template": "naive"}), 20411.0, 2680.9, 0.05),
    ]
    one["winner_run_id"] = rows[0]["run_id"]
    return one, rows


def cpu_sweep() -> tuple[Record, list[Record]]:
    """No counters, another reference, nothing decided, other work on the machine."""
    one = sweep(4, "BK", "undecided", margin_pct=0.82, contended=True, stopped="time", start={"BK": 256})
    one |= {"command": "gemmsweep run --vary BK", "environment": {**ENVIRONMENT, "driver": None}}
    more = {
        "device": CPU,
        "template": "cpu_blocked",
        "build": {**build(0), "registers": None, "compiler": "gcc 12.2.0"},
    }
    more["build"] |= {"spill_bytes": None, "smem_bytes": None}
    rows = [run(48 + i, one, SMALL, {"BK": 128 * (i + 1)}, **more) for i in range(2)]
    rows = [
        {**measured(row, us, 21480.0, 1.2, "numpy"), "pct_peak": None}
        for row, us in zip(rows, (23310.0, 23190.0), strict=True)
    ]
    one["kept_run_id"], one["ties"] = rows[1]["run_id"], [row["run_id"] for row in rows]
    return one, rows


def everything() -> tuple[list[Record], list[Record]]:
    groups = [bk_sweep(), stages_sweep(), finals(), cpu_sweep()]
    return [one for one, _ in groups], [row for _, rows in groups for row in rows]


def best() -> list[Record]:
    """A winner, a tie and an undecided problem, on two devices."""
    (_, won), (_, tied), (_, cpu) = finals(), stages_sweep(), cpu_sweep()
    return [
        {**won[0], "decision": "winner", "ties": [], "margin_pct": 1.79, "finalists": 3},
        {
            **tied[0],
            "template": "mma",
            "decision": "tie",
            "ties": [tied[1]["run_id"]],
            "margin_pct": 0.31,
            "finalists": 2,
        },
        {**cpu[1], "decision": "undecided", "ties": [cpu[0]["run_id"]], "margin_pct": 0.82, "finalists": 2},
    ]
