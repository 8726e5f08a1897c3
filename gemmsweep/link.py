"""The wire to a worker process: spawn it, ask, wait with a limit, tell how it died, kill it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import struct
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from gemmsweep.errors import EnvironmentProblem, GemmsweepError
from gemmsweep.model import STATUSES, DeviceInfo
from gemmsweep.protocol import DeviceFailure, DeviceSpec
from gemmsweep.serve import serve

LONGEST_READ_BYTES = 1 << 20
STARTS = 3  # a worker that dies at start is tried this often


class Link:
    """One worker process at a time, and the pipe to it."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec
        self._process: Any = None
        self._connection: Any = None
        self._number = 0  # of the last request; a worker that has begun answers number 0, with what it is

    def begin(self) -> None:
        """Spawn, and wait for nothing: `start` does."""
        self._number = 0
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, self.spec, os.getpid()), daemon=True)
        # Ignored across the exec: a Ctrl-C while the child is still importing belongs to the parent alone.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if on_main_thread() else None
        self._process.start()
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        theirs.close()

    def start(self, start_s: float) -> DeviceInfo:
        """Spawn where `begin` has not, each try within `start_s`, a bounded number of them.

        Raises EnvironmentProblem saying why it cannot.
        """
        reason = ""
        for _ in range(STARTS):
            if self.closed:
                self.begin()
            try:
                kind, payload = self.receive(start_s)
            except DeviceFailure as failure:
                reason = failure.reason
            else:
                if kind == "ok":
                    assert isinstance(payload, DeviceInfo)
                    return payload
                if kind == "user":
                    self.close()
                    raise payload
                reason = payload[1]
            self.close()
        raise EnvironmentProblem(
            f"the {self.spec.kind} worker could not be started in {STARTS} tries ({reason}). See: gemmsweep doctor"
        )

    @property
    def closed(self) -> bool:
        """There is no process."""
        return self._process is None

    def close(self) -> None:
        """Kill the process: nothing in it is worth waiting for."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._connection = None

    def send(self, name: str, *arguments: Any) -> None:
        """Ask; `receive` has the answer."""
        self._number += 1
        # A process that died meanwhile is noticed, and explained, by the receive that follows.
        with contextlib.suppress(OSError):
            self._connection.send((self._number, name, arguments))

    def receive(self, timeout_s: float) -> tuple[str, Any]:
        """The next answer to what was asked last: "item", "ok", "fail" or "user", and what goes with it.

        Raises DeviceFailure where none comes in time, the process died, or something else came out of its pipe: what a
        function of the user's wrote into it is no answer, nor a beginning that never ends.
        """
        try:
            number, kind, payload = read_message(self._connection, time.monotonic() + timeout_s)
            if number != self._number or not is_answer(kind, payload):
                raise ValueError("not an answer")
        except TimeoutError:
            reason = f"no answer within {timeout_s:g} s; its process was killed"
            raise DeviceFailure("timeout", reason, fatal=True) from None
        except (EOFError, OSError):
            raise self._death() from None
        except Exception as error:
            what = f"its answer could not be read ({type(error).__name__}); its process was killed"
            raise DeviceFailure("runtime", what, fatal=True) from None
        return kind, payload

    def _death(self) -> DeviceFailure:
        self._process.join(5)
        code = self._process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return DeviceFailure("runtime", f"the worker process died ({how})", fatal=True)

    @staticmethod
    def failure(kind: str, payload: Any) -> Exception:
        if kind == "user":
            assert isinstance(payload, GemmsweepError)
            return payload
        status, reason, fatal = payload
        return DeviceFailure(status, reason, fatal=fatal)


def on_main_thread() -> bool:
    """Signal handlers can be set nowhere else."""
    return threading.current_thread() is threading.main_thread()


def is_answer(kind: Any, payload: Any) -> bool:
    """Whether a message has the form of one of ours."""
    if kind == "fail":
        return isinstance(payload, tuple) and len(payload) == 3 and payload[0] in STATUSES
    return kind in ("ok", "item") or (kind == "user" and isinstance(payload, GemmsweepError))


def read_message(connection: Connection, deadline: float) -> Any:
    """What `Connection.recv` would return, in the same format. Raises TimeoutError where it is not all there at `deadline`.

    `poll` answers for the first byte alone, and `recv` waits for the last one for ever. Raises ValueError for what is no
    message: EOFError and OSError are the pipe's own.
    """

    def read(count: int) -> bytes:
        content = bytearray()
        while len(content) < count:
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            piece = os.read(connection.fileno(), min(count - len(content), LONGEST_READ_BYTES))
            if not piece:
                raise EOFError
            content += piece
        return bytes(content)

    (size,) = struct.unpack("!i", read(4))
    if size == -1:
        (size,) = struct.unpack("!Q", read(8))
    if size < 0:
        raise ValueError("a negative size")
    content = read(size)
    try:
        return pickle.loads(content)
    except (EOFError, OSError) as error:
        raise ValueError("no pickle") from error
