"""A user's Python function as a rival: import it, tell it the problem, call it, say in one line what went wrong."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gemmsweep.model import Problem
from gemmsweep.protocol import DeviceFailure, Operands
from gemmsweep.references import Function

# Neither NumPy nor CuPy has bf16; torch.as_tensor takes int16, and .view(torch.bfloat16) is free.
BITS_OF_BF16 = "int16"
MOST_TOLD = 200  # characters of what a function raised


@dataclass(frozen=True, slots=True)
class Task(Problem):
    """The problem as a function is told it, and what goes with it."""

    bias: Any = None  # vector of C's type for epilogues that add one
    stream: int = 0  # address of the CUDA stream to enqueue on; it is also the current one of CuPy and torch


def task_of(problem: Problem, bias: Any, stream: int = 0) -> Task:
    """`problem` with its bias (stored elements, or None) and the stream."""
    values = {field.name: getattr(problem, field.name) for field in fields(problem)}
    # A copy: what a function does to it is nothing to the others of the race.
    return Task(**values, bias=None if bias is None else shown(bias.copy()), stream=stream)


def shown(stored: Any) -> Any:
    """Stored elements as a function gets them: bf16 as its bits, in int16."""
    return stored.view(BITS_OF_BF16) if stored.dtype == "uint16" else stored


def matrices(problem: Problem, operands: Operands) -> tuple[Any, Any, Any]:
    """A (m, k), B as stored, C (m, n): views without the padding of leading dimensions."""
    a, b, c = operands.a[:, : problem.k], operands.b[:, : problem.b_columns], operands.c[:, : problem.n]
    return shown(a), shown(b), shown(c)


def imported(function: Function) -> Callable[..., Any]:
    """The function itself. Raises DeviceFailure with one line for whatever its import raises."""
    try:
        module = from_file(Path(function.path)) if function.path else from_module(function.module)
        found = getattr(module, function.name, None)
    except BaseException as error:  # exit() and KeyboardInterrupt too: no Ctrl-C reaches a worker
        raise DeviceFailure("launch", f"{function.text} cannot be imported: {one_line(error)}") from error
    if not callable(found):
        what = f"{function.name!r} is not a function" if found is not None else f"there is no {function.name!r} in it"
        raise DeviceFailure("launch", f"{function.text}: {what}")
    result: Callable[..., Any] = found
    return result


def from_file(path: Path) -> Any:
    """A file as a module; what lies beside it can be imported, as beside a script."""
    name = f"gemmsweep_against_{path.stem}"  # a file may be called like a library
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module  # Triton and torch.compile look their functions' source up there
    spec.loader.exec_module(module)
    return module


def from_module(name: str) -> Any:
    """A module on sys.path or in the working folder."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(name)


def called(call: Callable[..., Any], label: str, problem: Problem, operands: Operands, task: Task) -> None:
    """Call it on one buffer set. Raises DeviceFailure for whatever it raises, and for a result it keeps to itself."""
    a, b, c = matrices(problem, operands)
    process = os.getpid()
    try:
        result = call(a, b, c, task)
        address = address_of(result)
        kept = result is not None and address != address_of(c)
    except BaseException as error:  # as in `imported`
        raise DeviceFailure("runtime", f"{label} failed: {one_line(error)}") from error
    finally:
        if os.getpid() != process:  # a fork of its own: it must not answer in the worker's place
            os._exit(0)
    if inspect.iscoroutine(result):
        result.close()  # which would be warned of
    if inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result):
        kind = "an async generator" if inspect.isasyncgen(result) else f"a {type(result).__name__}"
        raise DeviceFailure("runtime", f"{label} returned {kind} that nobody runs: leave out yield and async")
    if kept:
        what = "a new array" if address is not None else f"{type(result).__name__}, no array"
        raise DeviceFailure("runtime", f"{label} returned {what}: write the result into c, as in c[...] = result")


def address_of(array: Any) -> int | None:
    """Where an array begins, whichever library it is of."""
    if callable(getattr(array, "data_ptr", None)):  # torch, whose bf16 has no array interface
        return int(array.data_ptr())
    for name in ("__cuda_array_interface__", "__array_interface__"):
        if interface := getattr(array, name, None):
            return int(interface["data"][0])
    return None


def version_of(call: Callable[..., Any], function: Function) -> str:
    """`rival.py 3fa9c1d2e0b1, torch 2.10.0`: the file it stands in, and the library it brought along."""
    try:
        path = Path(function.path or inspect.getsourcefile(inspect.unwrap(call)) or "")
    except (TypeError, ValueError):  # written in C, an object that can be called, or wrapped in itself
        path = Path()
    own = f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}" if path.is_file() else function.module
    libraries = {name: getattr(sys.modules.get(name), "__version__", None) for name in ("torch", "triton", "jax")}
    return ", ".join((own, *(f"{name} {version}" for name, version in libraries.items() if version)))


def one_line(error: BaseException) -> str:
    """`ValueError: shapes differ`, the beginning of its first line."""
    name = type(error).__name__
    try:
        text = f"{name}: {error}".strip(": ")
    except Exception:  # an error of the user's that cannot even be told
        text = name
    line = next((line.strip() for line in text.splitlines() if line.strip()), name)
    return line if len(line) <= MOST_TOLD else line[: MOST_TOLD - 1] + "…"
