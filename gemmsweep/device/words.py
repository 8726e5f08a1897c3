"""The words of a launch's `args` that mean the same on every device."""

from __future__ import annotations

from gemmsweep.protocol import DeviceFailure

BITS = {"i32": 32, "i64": 64}


def integer(word: str) -> tuple[str, int] | None:
    """The kind and value of `i32:4096`; None for a word that is no integer. Raises DeviceFailure for one that does not fit."""
    kind, _, text = word.partition(":")
    if kind not in BITS:
        return None
    value, bits = int(text), BITS[kind]
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise DeviceFailure("launch", f"argument {word} does not fit {bits} bits")
    return kind, value
