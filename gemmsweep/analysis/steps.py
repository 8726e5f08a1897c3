"""Why a step along an axis changed the speed: what else changed with it, as far as it is worth naming. One readable table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemmsweep.references import WORTH_NAMING


@dataclass(frozen=True, slots=True)
class Side:
    """One end of a step: the axis value, figures by name (None or absent: not measured), and what limits the config."""

    value: str
    figures: Mapping[str, float | None]
    limiter: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure, how much change of it says something (absolute, or in percent of the smaller), and why just so much."""

    figure: str
    words: str
    unit: str
    least: float
    relative: bool
    because: str
    scale: float = 1.0
    unless: str = ""  # another figure whose own change already says it


FACTS: tuple[Fact, ...] = (
    Fact("spill_bytes", "spills", " B", 4, False, "one register per thread in local memory is a load in the inner loop"),
    Fact("registers", "registers", "", 8, False, "registers are given to warps in units of 8 per thread (occupancy tables)"),
    Fact("smem_bytes", "shared memory", " KB", 1024, False, "less is padding", 1 / 1024),
    Fact("ctas_per_sm", "CTAs/SM", "", 1, False, "a whole block more or less hides latency"),
    Fact("occupancy_pct", "occupancy", "%", 5, False, "below this no scheduler has a warp more", unless="ctas_per_sm"),
    Fact("tail_pct", "idle in the last wave", "%", 10, False, "a tenth of all slots, as much as such a step can cost"),
    Fact("smem_ld_conflicts", "load conflicts", "", 10, True, "ncu counts repeat within a few percent"),
    Fact("smem_st_conflicts", "store conflicts", "", 10, True, "ncu counts repeat within a few percent"),
    Fact("gpm_any_tensor_util_pct", "tensor", "%", 2, False, "GPM repeats within 1 point over 0.1 s"),
    Fact("gpm_fp32_util_pct", "FP32", "%", 2, False, "GPM repeats within 1 point over 0.1 s"),
    Fact("gpm_dram_bw_util_pct", "DRAM", "%", 3, False, "GPM repeats within 1 point; its scrubs between bursts add some"),
    Fact("sm_clock_mhz", "SM clock", " MHz", 1, True, "within a round the clock is shared to better than this"),
)  # fmt: skip


def explain(axis: str, before: Side, after: Side, speed_pct: float) -> str:
    """`BK 32→64: shared memory 32→64 KB, CTAs/SM 2→1, tensor 61→54%, −4.8%`; `speed_pct` above 0 is faster."""
    parts = [text for fact in FACTS if (text := change(fact, before, after))]
    if before.limiter and after.limiter and before.limiter != after.limiter:
        parts.append(f"limit {before.limiter}→{after.limiter}")
    if abs(speed_pct) < 100 * WORTH_NAMING:
        parts.append(f"no difference ({signed(speed_pct)})")
    elif parts:
        parts.append(signed(speed_pct))
    else:
        parts.append(f"{signed(speed_pct)}, and nothing that is counted changed with it")
    return f"{axis} {before.value}→{after.value}: " + ", ".join(parts)


def change(fact: Fact, before: Side, after: Side) -> str:
    """A fact in words, empty where it did not change enough or was not measured at both ends."""
    if fact.unless and before.figures.get(fact.unless) != after.figures.get(fact.unless):
        return ""
    old, new = before.figures.get(fact.figure), after.figures.get(fact.figure)
    if old is None or new is None:
        return ""
    floor = fact.least * min(abs(old), abs(new)) / 100 if fact.relative else fact.least
    if old == new or abs(new - old) < floor:
        return ""
    return f"{fact.words} {short(old * fact.scale)}→{short(new * fact.scale)}{fact.unit}"


def short(value: float) -> str:
    """Whole numbers, one decimal for small ones that need it, thousands of thousands in short: `2`, `33.5`, `1.2M`."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.1f}M"
    return f"{value:.0f}" if abs(value) >= 100 or abs(value - round(value)) < 0.05 else f"{value:.1f}"


def signed(percent: float) -> str:
    """`+1.2%`, `−4.8%`."""
    return f"{'−' if percent < 0 else '+'}{abs(percent):.1f}%"
