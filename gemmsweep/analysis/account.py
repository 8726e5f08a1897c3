"""The account before any run: CTAs per SM, occupancy and waves from registers, shared memory and threads.

Per-architecture limits are those of the CUDA C++ Programming Guide, "Compute Capabilities", table "Technical Specifications".
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmsweep.errors import UsageError
from gemmsweep.model import DeviceInfo

KB = 1024


@dataclass(frozen=True, slots=True)
class ArchLimits:
    """What one SM holds. Registers are 32-bit; shared memory in bytes."""

    threads: int
    ctas: int
    smem_bytes: int
    max_smem_bytes: int  # of one block, opt-in
    reserved_smem_bytes: int = KB  # taken by the system per block
    registers: int = 65536


ARCH_LIMITS: dict[int, ArchLimits] = {
    75: ArchLimits(1024, 16, 64 * KB, 64 * KB, 0),
    80: ArchLimits(2048, 32, 164 * KB, 163 * KB),
    86: ArchLimits(1536, 16, 100 * KB, 99 * KB),
    87: ArchLimits(1536, 16, 164 * KB, 163 * KB),
    89: ArchLimits(1536, 24, 100 * KB, 99 * KB),
    90: ArchLimits(2048, 32, 228 * KB, 227 * KB),
    100: ArchLimits(2048, 32, 228 * KB, 227 * KB),
    103: ArchLimits(2048, 32, 228 * KB, 227 * KB),
    120: ArchLimits(1536, 24, 100 * KB, 99 * KB),
    121: ArchLimits(1536, 24, 100 * KB, 99 * KB),
}
# For `--compile-only` and `--dry-run`: SMs and memory of the card most people mean by an architecture.
TYPICAL_CLOCK_MHZ = 1700
TYPICAL_SMS = {75: 72, 80: 108, 86: 84, 87: 16, 89: 128, 90: 132, 100: 148, 103: 148, 120: 170, 121: 48}
TYPICAL_GB = {75: 24, 80: 80, 86: 48, 87: 32, 89: 24, 90: 80, 100: 180, 103: 270, 120: 32, 121: 128}


def arch_number(arch: str) -> int:
    """90 of "sm_90a"; raises UsageError for an architecture nobody knows."""
    digits = arch.removeprefix("sm_").rstrip("af")
    if not digits.isdigit() or int(digits) not in ARCH_LIMITS:
        known = ", ".join(f"sm_{n}" for n in ARCH_LIMITS)
        raise UsageError(
            f"unknown architecture {arch!r}. Choose one of: {known} (sm_90a, sm_100a, … for arch-specific kernels)."
        )
    return int(digits)


def offline_device(arch: str) -> DeviceInfo:
    """A card of an architecture ("sm_90a", or 90a), for accounts where there is none."""
    number, arch = arch_number(arch), "sm_" + arch.removeprefix("sm_")
    limits = ARCH_LIMITS[number]
    return DeviceInfo(
        "cuda", f"a typical {arch} card", "", arch, TYPICAL_SMS[number], TYPICAL_GB[number] * 10**9, 0,
        max_smem_bytes=limits.max_smem_bytes, clock_max_mhz=TYPICAL_CLOCK_MHZ,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Account:
    """What one config occupies. `bound_by` names the resource that stops one more CTA from fitting."""

    ctas_per_sm: int
    occupancy_pct: float
    waves: float
    tail_pct: float  # slots of the last wave that do nothing, as a share of all waves' slots: what the tail can cost
    bound_by: str


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def account(arch: str, sm_count: int, *, threads: int, registers: int, smem_bytes: int, ctas: int) -> Account:
    """Occupancy of blocks of `threads` with `registers` per thread and `smem_bytes` (static and dynamic), `ctas` with work."""
    limits = ARCH_LIMITS[arch_number(arch)]
    warps = -(-threads // 32)
    # Registers are given to warps in units of 256; the four schedulers split the file evenly.
    warps_by_registers = limits.registers // 4 // round_up(max(registers, 1) * 32, 256) * 4
    fits = {
        "threads": limits.threads // (warps * 32),
        "registers": warps_by_registers // warps,
        "shared memory": limits.smem_bytes // round_up(smem_bytes + limits.reserved_smem_bytes, 128)
        if smem_bytes + limits.reserved_smem_bytes
        else limits.ctas,
        "blocks": limits.ctas,
    }
    bound_by = min(fits, key=lambda name: fits[name])
    per_sm = fits[bound_by]
    if per_sm == 0:
        return Account(0, 0.0, 0.0, 0.0, bound_by)
    waves = ctas / (per_sm * sm_count)
    slots = -(-ctas // (per_sm * sm_count)) * per_sm * sm_count
    return Account(per_sm, 100.0 * per_sm * warps * 32 / limits.threads, waves, 100.0 * (1 - ctas / slots), bound_by)
