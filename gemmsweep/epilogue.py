"""What happens to a product on its way to memory: `bias+leaky_relu` → C++ type, kernel argument, fp64 reference."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gemmsweep.errors import UsageError, choices


@dataclass(frozen=True, slots=True)
class Operation:
    """One link of a chain. `apply(xp, x, bias, numbers)` is what it does in fp64; a NaN must stay a NaN."""

    struct: str  # of kernel_templates/include/epilogue.cuh
    apply: Callable[[Any, Any, Any, Mapping[str, float]], Any]
    numbers: tuple[str, ...] = ()
    bias_axis: str | None = None  # what it adds a vector along
    steepest: float = 1.0  # how much it may enlarge an error of its argument, its own roundings included
    told: str = ""  # in the help; "" is by its name alone
    checked: str = ""  # as `verify` runs it, likewise


def _silu(xp: Any, x: Any, *_: Any) -> Any:
    # exp overflows beyond 709, where the result is 0 in any format of ours
    return xp.where(x < -700.0, 0.0, x / (1.0 + xp.exp(-xp.maximum(x, -700.0))))


def _erf(xp: Any, x: Any) -> Any:
    """numpy has no erf: its own scalar one, element by element; CuPy has one for arrays."""
    if xp.__name__ == "cupy":
        from cupyx.scipy.special import erf

        return erf(x)
    return xp.vectorize(math.erf, otypes=[xp.float64])(x)


# The key is what a user writes. Comparisons are written so that a NaN stays a NaN.
OPERATIONS = {
    "bias": Operation(
        "Bias", lambda xp, x, bias, _: x + xp.asarray(bias, dtype=xp.float64)[None, :],
        bias_axis="n", told="bias (per column)",
    ),
    "bias_row": Operation(
        "BiasRow", lambda xp, x, bias, _: x + xp.asarray(bias, dtype=xp.float64)[:, None],
        bias_axis="m", told="bias_row (per row)",
    ),
    "relu": Operation("Relu", lambda xp, x, *_: xp.where(x < 0, 0.0, x)),
    "leaky_relu": Operation(
        "LeakyRelu", lambda xp, x, _, numbers: xp.where(x < 0, x * numbers["slope"], x),
        numbers=("slope",), told="leaky_relu (or with its slope)",
    ),
    "gelu": Operation("Gelu", lambda xp, x, *_: 0.5 * x * (1.0 + _erf(xp, x * math.sqrt(0.5))), steepest=1.2),
    "silu": Operation("Silu", _silu, steepest=1.2),
    "clamp": Operation(
        "Clamp", lambda xp, x, _, at: xp.where(x < at["lo"], at["lo"], xp.where(x > at["hi"], at["hi"], x)),
        numbers=("lo", "hi"), told="clamp(LO,HI)", checked="clamp(-1,1)",
    ),
}  # fmt: skip
CHECKED = tuple(one.checked or name for name, one in OPERATIONS.items())  # each alone
DEFAULTS = {"slope": 0.01}
# Other names for what there is.
ALSO_CALLED = {
    "relu6": "clamp(0,6)", "hardtanh": "clamp(-1,1)", "swish": "silu", "lrelu": "leaky_relu", "leakyrelu": "leaky_relu",
    "bias_col": "bias", "identity": "none", "linear": "none",
}  # fmt: skip
# struct Epilogue: float alpha, beta; const void* bias; float slope, lo, hi; 4 bytes of padding.
LAYOUT = struct.Struct("<ffQfff4x")
CALL = re.compile(r"\s*([a-z_]+)\s*(?:\(([^()]*)\))?\s*")


@dataclass(frozen=True, slots=True)
class Epilogue:
    """A chain of operations with their numbers; `str` is its canonical text, which parses back."""

    operations: tuple[str, ...] = ()
    numbers: dict[str, float] = field(default_factory=dict)  # "slope", "lo", "hi": exact fp32 values

    def __str__(self) -> str:
        return "+".join(self._call(name) for name in self.operations) or "none"

    def _call(self, name: str) -> str:
        numbers = {key: self.numbers[key] for key in OPERATIONS[name].numbers}
        if all(key in DEFAULTS and value == _fp32(DEFAULTS[key]) for key, value in numbers.items()):
            return name
        return f"{name}({','.join(_shortest(value) for value in numbers.values())})"

    @property
    def cpp_type(self) -> str:
        return f"Chain<{', '.join(OPERATIONS[name].struct for name in self.operations)}>"

    @property
    def bias_axis(self) -> str | None:
        """ "n" where the bias has one element per column of C, "m" per row, None where there is no bias."""
        return next((axis for name in self.operations if (axis := OPERATIONS[name].bias_axis)), None)

    @property
    def slope(self) -> float:
        """How much the chain may enlarge an error of its argument; 1.2 at least, for roundings on the way."""
        steepest = math.prod(OPERATIONS[name].steepest for name in self.operations)
        return max(1.2, steepest * max(1.0, abs(self.numbers.get("slope", 1.0)))) if self.operations else 1.0

    def pack(self, alpha: float = 1.0, beta: float = 0.0, bias_pointer: int = 0) -> bytes:
        """The bytes of struct Epilogue; `bias_pointer` is a device address."""
        numbers = (self.numbers.get(key, 0.0) for key in ("slope", "lo", "hi"))
        return LAYOUT.pack(alpha, beta, bias_pointer, *numbers)

    def apply(self, xp: Any, x: Any, bias: Any = None) -> Any:
        """The chain on an fp64 array (m, n) of `xp` (numpy or cupy); `bias` holds n elements, or m for bias_row."""
        for name in self.operations:
            x = OPERATIONS[name].apply(xp, x, bias, self.numbers)
        return x


def in_words() -> str:
    """All operations and what their numbers are, for the help."""
    return ", ".join(one.told or name for name, one in OPERATIONS.items())


def parse_epilogue(text: str) -> Epilogue:
    """`none`, or operations joined by `+`, in any case: `bias+leaky_relu(0.1)+clamp(0,6)`. Raises UsageError."""
    text = text.strip().lower()
    if text in ("", "none"):
        return Epilogue()
    operations: list[str] = []
    numbers: dict[str, float] = {}
    parts = _parts(text)
    if "none" in (stripped := [part.strip() for part in parts]):
        rest = "+".join(part for part in stripped if part not in ("", "none")) or "none"
        raise UsageError(f"epilogue {text!r}: none stands alone. Write {rest}.")
    for part in parts:
        if not part.strip():
            raise UsageError(f"epilogue {text!r}: an operation is missing beside a +. Write it like bias+relu.")
        match = CALL.fullmatch(part)
        name = match[1] if match else part.strip()
        if meant := _meant(name):
            raise UsageError(f"unknown epilogue {name!r}. Did you mean {meant!r}?")
        if match is None and (begun := CALL.match(part)) and begun[1] in OPERATIONS:
            raise UsageError(f"epilogue {name!r}: {_unreadable(part)}. Write it like {_example(begun[1])}.")
        if match is None or name not in OPERATIONS:
            raise UsageError(choices("epilogue", name, ["none", *OPERATIONS]))
        numbers.update(_numbers(name, match[2]))
        operations.append(name)
    _check_chain(operations)
    return Epilogue(tuple(operations), numbers)


def _parts(text: str) -> list[str]:
    return re.split(r"\+(?![^(]*\))", text)  # a plus inside parentheses is a sign: clamp(-1,+1)


def _meant(name: str) -> str:
    """What is called otherwise here, or joined by a comma; "" of anything else."""
    listed = [part.strip() for part in re.split(r"[,;|&](?![^(]*\))", name)]
    joined = len(listed) > 1 and all((call := CALL.fullmatch(part)) and call[1] in OPERATIONS for part in listed)
    return "+".join(listed) if joined else ALSO_CALLED.get(name, "")


def _unreadable(part: str) -> str:
    """Why what begins with an operation's name is none."""
    open_ = part.count("(") - part.count(")")
    if open_:
        return f"a parenthesis is not {'closed' if open_ > 0 else 'opened'}"
    return "more than an operation with its numbers; a + joins two"


def _example(name: str) -> str:
    numbers = ",".join({"lo": "0", "hi": "6"}.get(key, "0.01") for key in OPERATIONS[name].numbers)
    return f"{name}({numbers})" if numbers else name


def _numbers(name: str, given: str | None) -> dict[str, float]:
    keys = OPERATIONS[name].numbers
    if given is None and all(key in DEFAULTS for key in keys):
        return {key: _fp32(DEFAULTS[key]) for key in keys}
    example = _example(name)
    try:
        values = [_fp32(float(number)) for number in (given or "").split(",")] if given else []
    except ValueError:
        raise UsageError(f"epilogue {name}({given}): not numbers. Write it like {example}.") from None
    except OverflowError:
        raise UsageError(f"epilogue {name}({given}): beyond fp32. Write it like {example}.") from None
    if name != "clamp" and any(map(math.isinf, values)):  # a bound that is none is a bound; a factor makes NaN of 0
        raise UsageError(f"epilogue {name}({given}): beyond fp32. Write it like {example}.")
    count = {0: "no numbers", 1: "1 number"}.get(len(keys), f"{len(keys)} numbers")
    if len(values) != len(keys) or any(math.isnan(value) for value in values):
        raise UsageError(f"epilogue {name} takes {count}. Write it like {example}.")
    if name == "clamp" and values[0] > values[1]:
        raise UsageError(f"epilogue clamp({given}): the lower bound comes first. Write it like {example}.")
    return dict(zip(keys, values, strict=True))


def _check_chain(operations: list[str]) -> None:
    # The struct holds one bias pointer and one set of numbers.
    for name in operations:
        if OPERATIONS[name].numbers and operations.count(name) > 1:
            raise UsageError(f"epilogue: {name} can stand once in a chain. Remove one.")
    if sum(OPERATIONS[name].bias_axis is not None for name in operations) > 1:
        raise UsageError("epilogue: a chain holds one bias. Choose one: bias (per column), bias_row (per row).")


def _fp32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _shortest(value: float) -> str:
    """The shortest decimal that is this fp32 number."""
    for digits in range(1, 9):
        text = f"{value:.{digits}g}"
        try:
            if _fp32(float(text)) == value:
                return text
        except OverflowError:
            continue  # rounded up beyond the largest fp32
    return f"{value:.9g}"
