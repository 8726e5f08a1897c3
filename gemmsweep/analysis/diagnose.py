"""What holds a config back, from its counters and its account: one readable table, first match wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gemmsweep.analysis.account import Account
from gemmsweep.analysis.roofline import Peaks
from gemmsweep.model import Problem


@dataclass(frozen=True, slots=True)
class Evidence:
    """All the rules may look at. Percentages 0…100, None = not measured."""

    median_us: float
    counters: Mapping[str, float | None]
    account: Account | None
    spill_bytes: int | None
    problem: Problem
    peaks: Peaks

    def reading(self, name: str) -> float:
        """A counter, or 0 where it was not measured, so that no rule fires on it."""
        return self.counters.get(name) or 0.0

    @property
    def memory_pct(self) -> float:
        """Compulsory bytes over the median against the data sheet's bandwidth."""
        if self.peaks.gbps is None:
            return 0.0
        return 100.0 * self.problem.compulsory_bytes / (self.median_us * 1e3) / self.peaks.gbps

    @property
    def ffma_pct(self) -> float:
        """Of an fp32 problem, the share of the FFMA peak reached."""
        if self.peaks.tflops is None or self.problem.dtype != "fp32":
            return 0.0
        return 100.0 * self.problem.flops / (self.median_us * 1e6) / self.peaks.tflops


@dataclass(frozen=True, slots=True)
class Rule:
    """A limiter, the test that names it, and where the threshold comes from."""

    limiter: str
    holds: Callable[[Evidence], bool]
    because: str


RULES: tuple[Rule, ...] = (
    Rule("spills", lambda e: (e.spill_bytes or 0) >= 64, "local-memory traffic in the inner loop; article A: 75% to 30% occupancy"),
    Rule("memory", lambda e: max(e.reading("gpm_dram_bw_util_pct"), e.memory_pct) >= 70, "a plain copy reads 82% on an H200"),
    Rule("tensor", lambda e: e.reading("gpm_any_tensor_util_pct") >= 75, "cuBLAS fp16 4096^3 reads 86% on an H200"),
    Rule("FFMA", lambda e: max(e.reading("gpm_fp32_util_pct"), e.ffma_pct) >= 70, "fp32 issue slots full"),
    Rule("launch", lambda e: e.median_us < 4.0, "an empty kernel in a graph takes about 2 us"),
    Rule("tail", lambda e: e.account is not None and e.account.tail_pct >= 25, "a quarter of the slots of all waves stay empty"),
    Rule("occupancy", lambda e: e.account is not None and e.account.occupancy_pct <= 25, "few warps to hide latency behind"),
    Rule("latency", lambda e: e.account is not None, "no unit is near its roof"),
)  # fmt: skip


def limiter(evidence: Evidence) -> str | None:
    """The first rule that holds; None where nothing was measured that could tell."""
    return next((rule.limiter for rule in RULES if rule.holds(evidence)), None)
