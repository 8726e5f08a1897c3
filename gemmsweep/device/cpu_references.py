"""What races beside a C kernel: NumPy's BLAS on some threads, and Python functions of the user's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from gemmsweep.device.function import called, task_of
from gemmsweep.device.host import HostSet
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.errors import counted
from gemmsweep.model import Problem

BRIEF_US = 50_000.0  # in calls beyond a few slices of a scheduler, waiting for a thread is a small part
STUMBLING = 1.5  # times slower than one thread: beyond what noise does to a call


class Blas:
    """NumPy's matmul on `threads` threads; alpha, beta and the epilogue afterwards in NumPy."""

    def __init__(self, problem: Problem, threads: int, bias: Any) -> None:
        from threadpoolctl import ThreadpoolController

        self._problem, self._bias = problem, bias
        self._epilogue = parse_epilogue(problem.epilogue)
        self._controller = ThreadpoolController().select(user_api="blas")
        self.threads = threads
        self.version = self._describe()

    @property
    def limits(self) -> AbstractContextManager[Any]:
        limiter: AbstractContextManager[Any] = self._controller.limit(limits=self.threads)
        return limiter

    def on(self, threads: int) -> Blas:
        """The same on so many threads."""
        return Blas(self._problem, threads, self._bias)

    def _describe(self) -> str:
        threads = counted(self.threads, "thread")
        for library in self._controller.info():
            names = {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS"}
            name = names.get(library["internal_api"], library["internal_api"])
            parts = (name, library.get("version"), library.get("architecture"))
            return f"{' '.join(p for p in parts if p)}, {threads}"
        return f"NumPy {np.__version__}, {threads}"

    def bind(self, operands: HostSet) -> Callable[[], None]:
        p = self._problem
        a, c = operands.a[:, : p.k], operands.c[:, : p.n]
        stored_b = operands.b[:, : p.b_columns]
        b = stored_b if p.layout == "nn" else stored_b.T
        if not self._epilogue.operations and not p.beta:
            return lambda: void(np.matmul(a, b, out=c))

        def call() -> None:
            product = np.matmul(a, b)
            if p.beta:
                product += np.float32(p.beta) * c
            c[...] = self._epilogue.apply(np, product, self._bias)

        return call


class UserFunction:
    """A Python function of the user's, with as many threads as the reference."""

    def __init__(self, call: Callable[..., Any], label: str, problem: Problem, bias: Any, threads: int) -> None:
        self._call, self._label, self._problem, self._threads = call, label, problem, threads
        self._task = task_of(problem, bias)

    @property
    def limits(self) -> AbstractContextManager[Any]:
        from threadpoolctl import threadpool_limits

        limiter: AbstractContextManager[Any] = threadpool_limits(self._threads)
        return limiter

    def bind(self, operands: HostSet) -> Callable[[], None]:
        return lambda: called(self._call, self._label, self._problem, operands, self._task)


def void(_: Any) -> None:
    """Drop a result."""


def stumbles(call_us: Callable[[int], float], threads: int) -> bool:
    """Whether a library waits for its own threads: cores that others use make many of them slower than one."""
    if threads == 1:
        return False
    many_us = call_us(threads)
    return many_us < BRIEF_US and call_us(1) * STUMBLING < many_us
