"""The wire to a worker process: spawn it, ask, wait with a limit, tell how it died, kill it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from typing import Any

from gemmsweep.errors import EnvironmentProblem, GemmsweepError
from gemmsweep.model import DeviceInfo
from gemmsweep.protocol import DeviceFailure, DeviceSpec
from gemmsweep.serve import serve

LEAST_READ_S = 1.0  # a long answer takes a moment, however short the limit was
STARTS = 3  # a worker that dies at start is tried this often


class Link:
    """One worker process at a time, and the pipe to it."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec
        self._process: Any = None
        self._connection: Any = None

    def begin(self) -> None:
        """Spawn, and wait for nothing: `start` does."""
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
        # A process that died meanwhile is noticed, and explained, by the receive that follows.
        with contextlib.suppress(OSError):
            self._connection.send((name, arguments))

    def receive(self, timeout_s: float) -> tuple[str, Any]:
        try:
            answered = self._connection.poll(timeout_s)
        except OSError:
            raise self._death() from None
        if not answered:
            raise DeviceFailure("timeout", f"no answer within {timeout_s:g} s; its process was killed", fatal=True)
        # A beginning is no answer: what a function of the user's wrote into the pipe may never end.
        overdue = threading.Timer(max(timeout_s, LEAST_READ_S), self._process.kill)
        overdue.daemon = True
        overdue.start()
        try:
            kind, payload = self._connection.recv()
        except (EOFError, OSError):
            raise self._death() from None
        except Exception as error:
            what = f"its answer could not be read ({type(error).__name__}); its process was killed"
            raise DeviceFailure("runtime", what, fatal=True) from None
        finally:
            overdue.cancel()
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
