"""The parent's end of one compile process: start it, give it a job, hear from it, kill it."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from gemmsweep.build.compiler import died
from gemmsweep.build.worker import Done, Job

START_TIMEOUT_S = 60.0

_START = "import sys; sys.path[:] = {path!r}; from gemmsweep.build.worker import serve; serve({descriptor})"


class Process:
    """One compile process. It leads a process group, so that killing it takes the compilers it started along."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.connection: Connection[Job, Done | str]
        self.connection, theirs = Pipe()
        start = _START.format(path=sys.path, descriptor=theirs.fileno())
        # Ours to remove: a compiler that is killed leaves its temporary files behind.
        self._folder = tempfile.mkdtemp(prefix="gemmsweep-compile-")
        # stdout is the user's data: what a compiler prints there goes to stderr.
        self._popen = subprocess.Popen(
            [sys.executable, "-c", start],
            stdin=subprocess.DEVNULL,
            stdout=2,
            env={**environment, "TMPDIR": self._folder},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self.ready = False
        self.job: Job | None = None
        self.deadline = time.monotonic() + START_TIMEOUT_S
        self._overdue = f"no answer within {START_TIMEOUT_S:.0f} s"

    def give(self, job: Job, timeout_s: float) -> None:
        """Hand it a job, due in `timeout_s` seconds."""
        self.job = job
        self.deadline = time.monotonic() + timeout_s
        self._overdue = f"compiler exceeded {timeout_s:g} s"
        with contextlib.suppress(OSError):  # it died while idle; `receive` will tell
            self.connection.send(job)

    def receive(self) -> Done | str:
        """A result, READY, or a clause why it has ended; where its deadline has passed, it is killed first."""
        if not self.connection.poll():
            self.kill()
            return self._overdue
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            return died(self.kill())
        self.ready, self.job, self.deadline = True, None, math.inf
        return message

    def kill(self) -> int:
        """End it and what it started. Returns its exit status: the one it died with, where it was dying already."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # Before it is waited for: until then nobody else can get its number.
            os.killpg(self._popen.pid, signal.SIGKILL)
        self.connection.close()
        status = self._popen.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        return status
