"""The right answers: operands drawn from a seed, and what each check must find, in fp64, on numpy or cupy arrays alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gemmsweep.elements import from_float, to_float
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.model import DTYPES, Accuracy, Inputs, Problem

# Unit roundoff of the output; of tf32 inputs the truncation of both operands is allowed for in `tolerance`.
UNIT = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
TINY = {"fp32": 2.0**-149, "fp16": 2.0**-24, "bf16": 2.0**-133}  # the smallest subnormal
MOST_PRODUCT = 9  # of integers up to 3
FEW_SUMS = 64  # of a C whose norm says little of what was summed
EXACT_K = 1 << 20  # products of integers up to 3 sum exactly in fp32 below 2²⁴


@dataclass
class Matrices:
    """Host-side view of a problem's operands: stored arrays of shapes (m, lda), (b_rows, ldb), (m, ldd)."""

    a: Any
    b: Any
    c: Any


def padded(xp: Any, values: Any, width: int, dtype: str) -> Any:
    """Rows widened to a leading dimension; the padding holds NaN, which no kernel may let through."""
    raw = from_float(xp, values, dtype)
    if width == raw.shape[1]:
        return raw
    wide = from_float(xp, xp.full((raw.shape[0], width), xp.nan, dtype=xp.float32), dtype)
    wide[:, : raw.shape[1]] = raw
    return wide


def random_matrices(xp: Any, problem: Problem, inputs: Inputs) -> Matrices:
    """A and B (and C, read where beta is not 0) drawn from `inputs`."""
    rng = xp.random.default_rng(inputs.seed)
    a_type, c_type, _, _ = DTYPES[problem.dtype]

    def draw(rows: int, columns: int) -> Any:
        if inputs.distribution == "integers":
            return rng.integers(-3, 4, size=(rows, columns)).astype(xp.float32)
        return rng.standard_normal((rows, columns), dtype=xp.float32)

    return Matrices(
        padded(xp, draw(problem.m, problem.k), problem.lda, a_type),
        padded(xp, draw(problem.b_rows, problem.b_columns), problem.ldb, a_type),
        padded(xp, draw(problem.m, problem.n), problem.ldd, c_type),
    )


def logical(xp: Any, problem: Problem, matrices: Matrices, kind: str) -> tuple[Any, Any]:
    """A (m, k) and B (k, n) as floats of `kind`, without padding."""
    a_type = DTYPES[problem.dtype][0]
    a = to_float(xp, matrices.a[:, : problem.k], a_type, kind)
    b = to_float(xp, matrices.b[:, : problem.b_columns], a_type, kind)
    return a, b if problem.layout == "nn" else b.T


@dataclass
class Oracle:
    """The right answers of one problem and seed, computed once: (m, n) arrays on the device."""

    problem: Problem
    random: Matrices
    expected: Any  # fp64, epilogue applied
    allowed: Any  # fp64, elementwise bound
    integers: Matrices | None
    exact: Any  # stored type
    special: Matrices
    special_rows: tuple[int, ...]
    special_column: int
    special_expected: tuple[Any, Any]  # the planted rows (r, n) and the column (m,), fp64
    magnitude: Any  # fp64 |A||B|, what roundings of products scale with
    norm: float  # what relative errors relate to: see `norm_of`
    bias: Any = None  # stored type, on the device
    vendor_rel_fro: float | None = None

    def bound(self, accuracy: Accuracy) -> Any:
        """The elementwise bound of a config that sums its products so."""
        if not accuracy.unit:
            return self.allowed
        return self.allowed + slope(self.problem) * accuracy.per_product * self.magnitude

    def for_references(self) -> Oracle:
        """The same with the bound of a library, which may round a product to C's type before beta·C or an epilogue."""
        if self.problem.is_plain:
            return self
        rounded = slope(self.problem) * UNIT[DTYPES[self.problem.dtype][1]] * self.magnitude
        return replace(self, allowed=self.allowed + rounded)

    def holds_integers(self, xp: Any, accuracy: Accuracy) -> bool:
        """Whether sums of the small integers are exact: an accumulator that rounds by 1/unit has integers up to unit."""
        rounds_once = accuracy.terms == 1 and accuracy.unit >= MOST_PRODUCT  # each product, not their sum
        if self.integers is None or not accuracy.unit or rounds_once:
            return True
        a, b = logical(xp, self.problem, self.integers, "float32")
        return float((abs(a) @ abs(b)).max()) <= accuracy.unit


def oracle_bytes(problem: Problem) -> int:
    """Memory `make_oracle` and the comparisons need at their peak: a dozen (m, n) and four operand arrays in fp64."""
    return 8 * (12 * problem.m * problem.n + 4 * (problem.m * problem.k + problem.k * problem.n))


def needed_bytes(problem: Problem) -> int:
    """Memory that a problem takes at least, with its checks."""
    return problem.buffer_bytes + oracle_bytes(problem)


def beyond_memory(problem: Problem, have_bytes: int, have: str) -> str:
    """What a problem needs where that is more than there is; "" where it is not."""
    need = needed_bytes(problem)
    if need <= have_bytes:
        return ""
    return f"{problem} needs {need / 1e9:,.1f} GB with its checks, {have_bytes / 1e9:,.1f} GB {have}: take a smaller shape."


def tolerance(problem: Problem, expected: Any, magnitude: Any) -> Any:
    """Elementwise bound; `magnitude` is |alpha|·|A||B| (+ |beta·C|)."""
    out = DTYPES[problem.dtype][1]
    products = problem.k * 2.0**-23 + (2 * 2.0**-10 if problem.dtype == "tf32" else 0.0)
    return UNIT[out] * abs(expected) + slope(problem) * (products + 2.0**-22) * magnitude + TINY[out]


def slope(problem: Problem) -> float:
    """How much an epilogue may enlarge an error of its argument."""
    return parse_epilogue(problem.epilogue).slope


def make_oracle(xp: Any, problem: Problem, inputs: Inputs) -> Oracle:
    """All expected results of a problem, in fp64 on the device the arrays live on."""
    random = random_matrices(xp, problem, inputs)
    a, b = logical(xp, problem, random, "float64")
    product, magnitude, added = a @ b, abs(a) @ abs(b), xp.zeros(1)
    if problem.beta:
        added = problem.beta * to_float(xp, random.c[:, : problem.n], DTYPES[problem.dtype][1])
        product, magnitude = product + added, magnitude + abs(added)
    chain, bias, out = parse_epilogue(problem.epilogue), None, DTYPES[problem.dtype][1]
    if chain.bias_axis is not None:
        length = problem.n if chain.bias_axis == "n" else problem.m
        bias = from_float(xp, xp.random.default_rng(inputs.seed + 2).standard_normal(length, dtype=xp.float32), out)
    expected = chain.apply(xp, product, None if bias is None else to_float(xp, bias, out))

    special, rows, column, wanted = plant_special(xp, problem, random)
    integers, exact = None, None
    if problem.k <= EXACT_K and problem.is_plain:
        integers = random_matrices(xp, problem, Inputs("integers", inputs.seed + 1))
        ia, ib = logical(xp, problem, integers, "float32")
        exact = from_float(xp, ia @ ib, DTYPES[problem.dtype][1])
    allowed = tolerance(problem, expected, magnitude)
    norm = norm_of(xp, problem, expected, a, b, added)
    return Oracle(
        problem, random, expected, allowed, integers, exact, special, rows, column, wanted, magnitude, norm, bias
    )


def norm_of(xp: Any, problem: Problem, expected: Any, a: Any, b: Any, added: Any) -> float:
    """Frobenius norm of the result, or of all its terms if that is larger: the few sums of a small C may cancel.

    Each product is rounded by itself, so it is their squares that an error grows with; over many sums of random numbers both
    norms are the same. `added` is beta·C. An epilogue may make few results as small as it likes, of many it does not.
    """
    squares = (expected * expected).sum()
    if problem.is_plain or problem.m * problem.n <= FEW_SUMS:
        terms = ((a * a).sum(axis=0) * (b * b).sum(axis=1)).sum() + (added * added).sum()
        squares = xp.maximum(squares, terms)
    return float(xp.sqrt(squares))


def plant_special(
    xp: Any, problem: Problem, random: Matrices
) -> tuple[Matrices, tuple[int, ...], int, tuple[Any, Any]]:
    """NaN and Inf in one row of A each (the same where m = 1), -Inf in one column of B; what they must lead to."""
    m, n, k = problem.m, problem.n, problem.k
    a_type = DTYPES[problem.dtype][0]
    special = Matrices(random.a.copy(), random.b.copy(), random.c)
    nan, inf, minus = (from_float(xp, xp.asarray([v], dtype=xp.float32), a_type)[0] for v in (xp.nan, xp.inf, -xp.inf))
    inf_row, column, depth = m // 2, n // 2, k // 2
    special.a[inf_row, k - 1] = inf
    if m > 1:
        special.a[m - 1 if inf_row != m - 1 else 0, 0] = nan
    special.b[(depth, column) if problem.layout == "nn" else (column, depth)] = minus
    rows = tuple(sorted({inf_row, m - 1 if inf_row != m - 1 else 0} if m > 1 else {0}))
    a, b = logical(xp, problem, special, "float64")
    return special, rows, column, (a[list(rows)] @ b, a @ b[:, column])
