"""Is the answer right? Three layers, on numpy or cupy arrays alike, before any time is taken.

1. Small integers: fp32 sums of them are exact in any order, so the result must match bit for bit (indexing, tails, fences).
2. Random data against an fp64 oracle: every element within u·|r| + K·2⁻²³·(|A||B|), and the relative Frobenius error within twice
   the vendor's, because the elementwise bound alone lets tf32 or fp16 accumulation pass as fp32 at K = 4096. A config that says
   it sums otherwise (`Accuracy`) is held to what it says: terms/unit·(|A||B|) more, and √terms/unit more of the norm.
3. NaN and ±Inf planted in A and B: the pattern IEEE arithmetic gives, and nothing elsewhere.

C is poisoned before each run, guard bands around it must survive, and the timed burst itself is replayed twice with every C of the
second replay compared bit for bit with the first: a counter that is not reset only fails then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gemmsweep.elements import to_float, within_reach
from gemmsweep.model import DTYPES, Accuracy, Checked, Errors, Problem, Status
from gemmsweep.oracle import UNIT, Matrices, Oracle
from gemmsweep.protocol import Device, DeviceFailure

# Bits of NaNs that no arithmetic makes of numbers; a CPU's hands them on.
POISON = {"fp16": 0x7E5A, "bf16": 0x7FDA, "fp32": 0x7FC5A5A5}
FINITE_POISON = {"fp16": 0x6A5A, "bf16": 0x495A, "fp32": 0x495A5A5A}  # large and finite: for kernels that read C
VENDOR_FACTOR = 2.0
AS_ASKED = Accuracy()


class Incorrect(Exception):
    """A layer failed; carries the status and what it measured."""

    def __init__(self, reason: str, *, status: Status = "incorrect", errors: Errors | None = None) -> None:
        super().__init__(reason)
        self.checked = Checked(status, reason, errors)


def bits_of(xp: Any, raw: Any) -> Any:
    """Stored elements as unsigned integers, a view."""
    return raw.view(xp.uint16 if raw.dtype.itemsize == 2 else xp.uint32)


def poison_bits(problem: Problem, *, finite: bool) -> int:
    """What C is filled with before a launch. `finite`: for kernels that read C."""
    return (FINITE_POISON if finite else POISON)[DTYPES[problem.dtype][1]]


def poison(xp: Any, operands: Any, pattern: int) -> None:
    """Fill C and its guard bands, of one buffer set or of a stack of them."""
    bits_of(xp, operands.guarded_c).fill(pattern)


def guards_intact(xp: Any, operands: Any, problem: Problem, pattern: int) -> bool:
    """Nothing written before C, after it, or between its rows; of one buffer set or of a stack of them."""
    flat, c = bits_of(xp, operands.guarded_c), bits_of(xp, operands.c)
    band = (flat.shape[-1] - problem.m * problem.ldd) // 2
    touched = (flat[..., :band] != pattern).any() | (flat[..., -band:] != pattern).any()
    if problem.ldd > problem.n:
        touched = touched | (c[..., problem.n :] != pattern).any()
    return not bool(touched)


def where_wrong(xp: Any, bad: Any, got: Any, expected: Any) -> str:
    """`17 of 8580 elements wrong, first at (128, 64): got 3.5, expected 1.25`."""
    # Counted on the host: kernels of ours that only a failure needs would be compiled within the config's time limit.
    marks = xp.asnumpy(bad) if hasattr(xp, "asnumpy") else bad
    row, column = divmod(int(marks.argmax()), bad.shape[1])
    return (
        f"{int(marks.sum())} of {bad.size} elements wrong, first at ({row}, {column}): "
        f"got {float(got[row, column]):.6g}, expected {float(expected[row, column]):.6g}"
    )


def run_once(
    device: Device, label: str, matrices: Matrices, problem: Problem, *, finite: bool, pattern: int | None = None
) -> Any:
    """Launch on fresh buffers around poisoned C (`pattern`: with these bits); returns the stored (m, n) result."""
    xp = device.xp
    operands = device.operands(matrices.a, matrices.b, matrices.c)
    pattern = poison_bits(problem, finite=finite) if pattern is None else pattern
    poison(xp, operands, pattern)
    if problem.beta:
        operands.c[:, : problem.n] = matrices.c[:, : problem.n]
    device.launch(label, operands)
    if not guards_intact(xp, operands, problem, pattern):
        raise Incorrect("wrote outside C: a guard band or the padding between rows changed")
    return operands.c[:, : problem.n]


def check_integers(device: Device, label: str, oracle: Oracle, *, finite: bool, accuracy: Accuracy = AS_ASKED) -> None:
    """Layer 1; passed over where the accumulator cannot hold the sums."""
    xp, out = device.xp, DTYPES[oracle.problem.dtype][1]
    if oracle.integers is None or not oracle.holds_integers(xp, accuracy):
        return
    got = run_once(device, label, oracle.integers, oracle.problem, finite=finite)
    # Compared as numbers: a kernel may give -0 where the oracle has +0.
    a, b = to_float(xp, got, out, "float32"), to_float(xp, oracle.exact, out, "float32")
    bad = a != b
    if bool(bad.any()):
        raise Incorrect("small integers: " + where_wrong(xp, bad, a, b))


def check_special(device: Device, label: str, oracle: Oracle, *, finite: bool) -> None:
    """Layer 3: masks of NaN, +Inf and -Inf."""
    xp, problem = device.xp, oracle.problem
    if not problem.is_plain:
        return
    raw = run_once(device, label, oracle.special, problem, finite=finite)
    got = to_float(xp, raw, DTYPES[problem.dtype][1], "float32")
    rows, column = list(oracle.special_rows), oracle.special_column
    for found, expected in (
        (got[rows], oracle.special_expected[0]),
        (got[:, [column]], oracle.special_expected[1][:, None]),
    ):
        bad = differ_beyond_finite(xp, found, expected)
        if bool(bad.any()):
            raise Incorrect("special values: " + where_wrong(xp, bad, found, expected))
    rest = xp.isfinite(got)
    rest[rows] = True
    rest[:, column] = True
    if not bool(rest.all()):
        raise Incorrect("special values: " + where_wrong(xp, ~rest, got, oracle.expected) + " (a NaN or Inf spread)")


def differ_beyond_finite(xp: Any, got: Any, expected: Any) -> Any:
    """Where one is NaN or infinite and the other is not the same."""
    infinite = (xp.isinf(got) | xp.isinf(expected)) & (got != expected) & ~xp.isnan(expected)
    return (xp.isnan(got) != xp.isnan(expected)) | infinite


def measure_errors(xp: Any, got: Any, oracle: Oracle, accuracy: Accuracy = AS_ASKED) -> Errors:
    """Layer 2, the figures; `got` is fp64 (m, n)."""
    difference = distance(xp, got, oracle)
    norm = oracle.norm
    rel_fro = float(xp.sqrt((difference * difference).sum())) / norm if norm else float(difference.max())
    return Errors(float((difference / oracle.bound(accuracy)).max()), rel_fro, oracle.vendor_rel_fro)


def rel_fro_limit(problem: Problem, vendor: float | None, accuracy: Accuracy = AS_ASKED) -> float:
    """Twice the vendor's error, or twice what rounding must cost where it is more: by luck of the vendor, or as declared."""
    floor = 0.5 * UNIT[DTYPES[problem.dtype][1]] + 2.0**-24 * problem.k**0.5
    if problem.dtype == "tf32":
        floor += 2.0**-11  # both operands are rounded to 11 bits, also where the vendor falls back to plain fp32
    return float(VENDOR_FACTOR * max(vendor or 0.0, floor + accuracy.typical))


def check_random(
    device: Device, label: str, oracle: Oracle, *, deterministic: bool, finite: bool, accuracy: Accuracy = AS_ASKED
) -> Errors:
    """Layer 2 on the timed burst itself, replayed twice over the ring."""
    xp, problem = device.xp, oracle.problem
    out = DTYPES[problem.dtype][1]
    if problem.beta:
        return check_twice(device, label, oracle, deterministic=deterministic, finite=finite, accuracy=accuracy)
    first, pattern = None, poison_bits(problem, finite=finite)
    for replay in range(2):
        stacks = device.stacks(device.touched(label))
        for stack in stacks:
            poison(xp, stack, pattern)
        device.replay(label)
        for stack in stacks:
            if not guards_intact(xp, stack, problem, pattern):
                raise Incorrect("wrote outside C: a guard band or the padding between rows changed")
        if replay == 0:
            first = stacks[0].c[0, :, : problem.n].copy()
    errors = compare(xp, stacks[0].c[0, :, : problem.n], oracle, out, accuracy)
    apart = 0.0
    for stack in stacks:
        results = stack.c[:, :, : problem.n]
        same = (bits_of(xp, results) == bits_of(xp, first)).all(axis=(1, 2))
        for index in map(int, xp.flatnonzero(~same)):
            if deterministic:
                raise Incorrect(describe_difference(xp, results[index], first, out), status="unstable", errors=errors)
            compare(xp, results[index], oracle, out, accuracy)
            apart = max(apart, difference_of(xp, results[index], first, oracle, out, accuracy))
    return errors if deterministic else replace(errors, between_launches=apart)


def check_twice(
    device: Device, label: str, oracle: Oracle, *, deterministic: bool, finite: bool, accuracy: Accuracy = AS_ASKED
) -> Errors:
    """Layer 2 where beta is not 0: the burst reads what it wrote before, so only single launches have a known answer."""
    xp, problem = device.xp, oracle.problem
    out = DTYPES[problem.dtype][1]
    first, second = (run_once(device, label, oracle.random, problem, finite=finite) for _ in range(2))
    errors = compare(xp, first, oracle, out, accuracy)
    compare(xp, second, oracle, out, accuracy)
    if not deterministic:
        return replace(errors, between_launches=difference_of(xp, second, first, oracle, out, accuracy))
    if bool((bits_of(xp, first) != bits_of(xp, second)).any()):
        raise Incorrect(describe_difference(xp, second, first, out), status="unstable", errors=errors)
    return errors


def difference_of(xp: Any, result: Any, first: Any, oracle: Oracle, out: str, accuracy: Accuracy) -> float:
    """The largest between two launches that need not agree, in units of the allowed elementwise bound."""
    values = (within_reach(xp, to_float(xp, raw, out), out) for raw in (result, first))
    apart = abs(next(values) - next(values))
    return float((apart / oracle.bound(accuracy)).max())


def describe_difference(xp: Any, result: Any, first: Any, out: str) -> str:
    """Two launches that should agree bit for bit."""
    bad = bits_of(xp, result) != bits_of(xp, first)
    return "two launches on equal data differ: " + where_wrong(
        xp, bad, to_float(xp, result, out), to_float(xp, first, out)
    )


def out_of_bounds(xp: Any, got: Any, oracle: Oracle, accuracy: Accuracy) -> Any:
    """Where a result of the random data is outside its elementwise bound; a NaN is never within one."""
    return ~(distance(xp, got, oracle) <= oracle.bound(accuracy))


def distance(xp: Any, got: Any, oracle: Oracle) -> Any:
    """How far results of the random data are off, elementwise; what overflows the output's format is right as infinity."""
    out = DTYPES[oracle.problem.dtype][1]
    return abs(within_reach(xp, got, out) - within_reach(xp, oracle.expected, out))


def compare(xp: Any, raw: Any, oracle: Oracle, out: str, accuracy: Accuracy = AS_ASKED) -> Errors:
    """Raises Incorrect where a result is outside either bound."""
    got = to_float(xp, raw, out)
    bad = out_of_bounds(xp, got, oracle, accuracy)
    if bool(bad.any()):
        finite = bool(xp.isfinite(got).all())
        errors = measure_errors(xp, got, oracle, accuracy) if finite else None
        raise Incorrect(where_wrong(xp, bad, got, oracle.expected), errors=errors)
    errors = measure_errors(xp, got, oracle, accuracy)
    limit = rel_fro_limit(oracle.problem, oracle.vendor_rel_fro, accuracy)
    if errors.rel_fro > limit:
        bound = f"what {accuracy.acc} must cost" if accuracy.unit else "the vendor's"
        raise Incorrect(
            f"relative error {errors.rel_fro:.2g} is over {limit:.2g} (twice {bound}): another accuracy class",
            errors=errors,
        )
    return errors


def measure_vendor(device: Device, label: str, oracle: Oracle) -> float:
    """The reference's own relative Frobenius error; it must pass the elementwise bound like everyone else."""
    xp, problem = device.xp, oracle.problem
    got = to_float(xp, run_once(device, label, oracle.random, problem, finite=False), DTYPES[problem.dtype][1])
    errors = measure_errors(xp, got, oracle.for_references())
    if not errors.max_scaled <= 1:
        raise DeviceFailure(
            "incorrect", f"the reference {label} itself is off: {errors.max_scaled:.3g} of the allowed error"
        )
    return float(errors.rel_fro)


def check(
    device: Device,
    label: str,
    oracle: Oracle,
    *,
    burst_ms: float,
    deterministic: bool = True,
    finite: bool = False,
    accuracy: Accuracy = AS_ASKED,
) -> Checked:
    """All layers for a loaded label, and its burst made ready. `finite`: poison with finite values, for kernels that read C."""
    try:
        check_integers(device, label, oracle, finite=finite, accuracy=accuracy)
        check_special(device, label, oracle, finite=finite)
        device.calibrate(label, burst_ms)
        errors = check_random(device, label, oracle, deterministic=deterministic, finite=finite, accuracy=accuracy)
    except Incorrect as failure:
        return failure.checked
    return Checked("ok", errors=errors)
