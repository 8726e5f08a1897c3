"""What is said of a wrong element: not written, a NaN that the kernel read where C and its bands lie, or a NaN of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gemmsweep import check, wrong
from gemmsweep.device.host import make_set
from gemmsweep.device.layout import SetLayout
from gemmsweep.elements import from_float, to_float
from gemmsweep.model import Inputs, Launch, Problem
from gemmsweep.oracle import make_oracle

ROW, COLUMN = 3, 5


class Pretend:
    """A device whose kernel is right but for what `fault` does to C afterwards, given what C held before."""

    xp = np

    def __init__(self, problem: Problem, fault: Callable[[Any, Any, Problem], None]) -> None:
        self.problem, self.fault, self.layout = problem, fault, SetLayout.of(problem)

    def operands(self, a: Any, b: Any, c: Any) -> Any:
        return make_set(self.layout, a, b, c)

    def launch(self, label: str, operands: Any) -> None:
        p = self.problem
        before = operands.c.copy()
        a, b = (to_float(np, raw, p.dtype) for raw in (operands.a, operands.b))
        operands.c[...] = from_float(np, a[:, : p.k] @ b[:, : p.n], p.dtype)
        self.fault(operands, before, p)


def skips(operands: Any, before: Any, _: Problem) -> None:
    operands.c[ROW, COLUMN] = before[ROW, COLUMN]


def adds(operands: Any, to: Any, problem: Problem) -> None:
    """As arithmetic on a CPU does: the bits of a NaN are handed on."""
    pattern = check.bits_of(np, to.reshape(1))[0]
    summed = to_float(np, operands.c[ROW : ROW + 1, COLUMN], problem.dtype) + to_float(np, to.reshape(1), problem.dtype)
    operands.c[ROW, COLUMN] = from_float(np, summed, problem.dtype)[0]
    if np.isnan(summed[0]):
        check.bits_of(np, operands.c)[ROW, COLUMN] = pattern


def reads_beyond_b(operands: Any, before: Any, problem: Problem) -> None:
    adds(operands, operands.guarded_c[0], problem)


def reads_c(operands: Any, before: Any, problem: Problem) -> None:
    adds(operands, before[ROW, COLUMN], problem)


def makes_a_nan_of_its_own(operands: Any, before: Any, problem: Problem) -> None:
    operands.c[ROW, COLUMN] = from_float(np, np.asarray([np.nan], dtype=np.float32), problem.dtype)[0]


def makes_another_of_one_it_read(operands: Any, before: Any, problem: Problem) -> None:
    """As arithmetic on a GPU does: one NaN stands for all."""
    adds(operands, operands.guarded_c[0], problem)
    if np.isnan(to_float(np, operands.c[ROW : ROW + 1, COLUMN], problem.dtype))[0]:
        makes_a_nan_of_its_own(operands, before, problem)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("fault", "untouched", "nan_read"), [
    (skips, True, False), (reads_beyond_b, False, True), (reads_c, False, True), (makes_another_of_one_it_read, False, True),
    (makes_a_nan_of_its_own, False, False),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_nan_is_called_what_it_is(dtype: str, fault: Any, untouched: bool, nan_read: bool) -> None:
    problem = Problem.of(8, 8, 16, dtype)
    device: Any = Pretend(problem, fault)
    found = wrong.find(device, "k", make_oracle(np, problem, Inputs()), Launch(()), patterns=False)
    (element,) = found.elements
    assert (element.row, element.column, np.isnan(element.got)) == (ROW, COLUMN, True)
    assert (element.untouched, element.nan_read) == (untouched, nan_read)
