"""How elements are stored, in numpy and cupy arrays alike."""

from __future__ import annotations

from typing import Any

STORAGE = {"fp32": "float32", "fp16": "float16", "bf16": "uint16"}  # NumPy has no bf16: its bits are stored


BEYOND = {"fp32": 2.0**128, "fp16": 2.0**16, "bf16": 2.0**128}  # from here on a value is stored as infinity


def within_reach(xp: Any, values: Any, dtype: str) -> Any:
    """fp64 values as far as the format goes: infinity and whatever is stored as it are the same. NaN stays."""
    return xp.clip(values, -BEYOND[dtype], BEYOND[dtype])


def to_float(xp: Any, raw: Any, dtype: str, kind: str = "float64") -> Any:
    """Stored elements as floats."""
    if dtype == "bf16":
        raw = (raw.astype(xp.uint32) << 16).view(xp.float32)
    return raw.astype(kind)


def from_float(xp: Any, x: Any, dtype: str) -> Any:
    """Floats rounded to nearest even and stored."""
    if dtype != "bf16":
        return x.astype(STORAGE[dtype])
    bits = xp.ascontiguousarray(x.astype(xp.float32)).view(xp.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(xp.uint16)
    return xp.where(xp.isnan(x), xp.uint16(0x7FC0), rounded)
