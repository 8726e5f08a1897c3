"""Main of the worker process: requests from a pipe to a `Bench`, answers back. A crash or a hang here costs one config."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from gemmsweep.bench import Bench
from gemmsweep.errors import GemmsweepError
from gemmsweep.protocol import DeviceFailure, DeviceSpec


def die_with_parent() -> None:
    """PR_SET_PDEATHSIG: a worker that outlives a killed parent would keep the GPU. Linux only; harmless elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def serve(connection: Connection, spec: DeviceSpec, parent: int) -> None:
    """Main of the child: answer until the parent hangs up. Its stdout is stderr: device printf must not corrupt data."""
    die_with_parent()
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    try:
        bench = Bench(spec)
        connection.send((0, "ok", bench.info()))
    except GemmsweepError as error:
        connection.send((0, "user", error))
        return
    except Exception as error:
        connection.send((0, "fail", ("runtime", f"{type(error).__name__}: {error}", True)))
        return
    while True:
        try:
            bench.warmth.keep(lambda: connection.poll(0))
            number, name, arguments = connection.recv()
            connection.send((number, *answer(bench, connection, number, name, arguments)))
        except (EOFError, OSError):  # the parent is gone, or a function of the user's has closed the pipe
            return


def answer(bench: Bench, connection: Connection, number: int, name: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """Run one request; generators send their items as they come, under its number."""
    try:
        result = getattr(bench, name)(*arguments)
        if isinstance(result, Iterator):
            for item in result:
                connection.send((number, "item", item))
            result = None
        return "ok", result
    except DeviceFailure as failure:
        return "fail", (failure.status, failure.reason, failure.fatal)
    except GemmsweepError as error:
        return "user", error
    except MemoryError:
        return "fail", ("runtime", "out of host memory", True)
    except Exception as error:
        if os.environ.get("GEMMSWEEP_DEBUG"):
            traceback.print_exc()
        return "fail", ("runtime", f"{type(error).__name__}: {error}".splitlines()[0], True)
