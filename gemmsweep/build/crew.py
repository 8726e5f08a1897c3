"""The compile processes of a pool and the thread that feeds them: what is waited for goes first, builds ahead fill the rest."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import wait
from queue import SimpleQueue

from gemmsweep.build.cache import Cache
from gemmsweep.build.compiler import Compiled
from gemmsweep.build.process import Process
from gemmsweep.build.worker import READY, Done, Job
from gemmsweep.errors import EnvironmentProblem
from gemmsweep.model import Build

FAILED_STARTS = 3
JOIN_S = 5.0
STARTED_EARLY = 8  # more than that an axis has seldom

Answers = SimpleQueue[Build | Exception]


@dataclass(eq=False)
class Task:
    """A job that is queued or under way, and who waits for it: nobody, where it is built ahead."""

    job: Job
    timeout_s: float
    waiting: list[Answers] = field(default_factory=list)
    asked: int = 0  # when it was last offered, in calls of `forget`
    stale: bool = False  # nobody wants it any more


class Crew:
    """At most `limit` processes, of which builds ahead leave some free unless there is but one.

    A key is queued or under way once at a time.
    """

    def __init__(self, limit: int, cache: Cache, store: Callable[[Job, Done], Build]) -> None:
        self._limit, self._cache, self._store = limit, cache, store
        self._ahead_limit = max(1, limit - max(1, limit // 4))
        self._lock = threading.RLock()  # of all that follows
        self._processes: list[Process] = []
        self._tasks: dict[str, Task] = {}
        self._wanted: deque[Task] = deque()
        self._ahead: deque[Task] = deque()
        self._refused: set[str] = set()  # keys that did not build: tried again where somebody waits, never ahead
        self._forgotten = 0
        self._failed_starts = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._heard, self._bell = Pipe(duplex=False)

    def start(self) -> None:
        """Start a few processes before there is a job for them; where that fails, whoever has a job is told."""
        with self._lock, contextlib.suppress(OSError):
            if not self._closed:
                self._hire(min(STARTED_EARLY, max(1, self._limit - 1)) - len(self._processes))
                self._ring()

    def submit(self, jobs: Iterable[Job], timeout_s: float, answers: Answers) -> None:
        """Each job's build, or why there is none, will be in `answers`; one that is under way is not begun again."""
        with self._lock:
            if self._closed:
                raise _stopped()
            for job in jobs:
                task = self._tasks.get(job.key)
                if task is None:
                    if (hit := self._cache.get(job.key)) is not None:
                        answers.put(hit)
                        continue
                    task = self._tasks[job.key] = Task(job, timeout_s)
                    self._wanted.append(task)
                elif task in self._ahead:
                    self._ahead.remove(task)
                    self._wanted.append(task)
                    task.timeout_s = timeout_s
                task.waiting.append(answers)
            self._ring()

    def offer(self, jobs: Iterable[Job], timeout_s: float) -> None:
        """Build these while nothing else is to be done, after those offered before."""
        with self._lock:
            for job in jobs:
                known = self._closed or job.key in self._tasks or job.key in self._refused
                if not known and self._cache.get(job.key) is None:
                    task = self._tasks[job.key] = Task(job, timeout_s)
                    self._ahead.append(task)
                if job.key in self._tasks:
                    self._tasks[job.key].asked, self._tasks[job.key].stale = self._forgotten, False
            self._ring()

    def forget(self) -> None:
        """Drop what was offered; what is under way goes on."""
        with self._lock:
            self._forgotten += 1
            while self._ahead:
                del self._tasks[self._ahead.pop().job.key]

    def settle(self) -> None:
        """All has been offered: what is under way and was not offered since `forget` ends where its process is needed."""
        with self._lock:
            for task in self._tasks.values():
                task.stale = task.asked < self._forgotten
            self._ring()

    def stop(self, *, for_good: bool = False) -> None:
        """Kill all processes; whoever waits is told."""
        with self._lock:
            self._closed |= for_good
            self._end(_stopped())
            self._ring()
            thread = self._thread
        if for_good and thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_S)  # it may be writing into the cache

    def _ring(self) -> None:
        """Wake the thread, which is started when first needed; called under the lock."""
        if self._thread is not None:
            self._bell.send_bytes(b"!")
        elif not self._closed and (self._tasks or self._processes):
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while not self._closed:
            try:
                self._step()
            except Exception as error:  # whoever waits would wait for ever
                with self._lock:
                    self._end(error)

    def _step(self) -> None:
        """Give out jobs, wait until a process or a caller has something to say, and pass on what it was."""
        with self._lock:
            self._give_out()
            processes = list(self._processes)
        first = min((process.deadline for process in processes), default=math.inf)
        timeout_s = None if first == math.inf else max(0.0, first - time.monotonic())
        try:
            heard = wait([self._heard, *(process.connection for process in processes)], timeout_s)
        except (OSError, ValueError):  # stopped meanwhile: a connection was closed under our hands
            return
        while self._heard.poll():
            self._heard.recv_bytes()
        for process in processes:
            if process.connection in heard or process.deadline <= time.monotonic():
                self._hear(process)

    def _make_room(self) -> None:
        """End stale builds, as many as there are jobs without a process."""
        busy = [(process, self._tasks[process.job.key]) for process in self._processes if process.job is not None]
        ahead = sum(not task.waiting for _, task in busy)
        short = max(
            len(self._wanted) + len(busy) - self._limit,
            len(self._ahead) + ahead - self._most_ahead() if self._ahead else 0,
        )
        stale = [(process, task) for process, task in busy if task.stale and not task.waiting]
        for process, task in stale[: max(0, short)]:
            process.kill()
            self._processes.remove(process)
            del self._tasks[task.job.key]

    def _give_out(self) -> None:
        self._make_room()
        spare = self._most_ahead() - sum(
            not self._tasks[process.job.key].waiting for process in self._processes if process.job is not None
        )
        idle = sum(process.job is None for process in self._processes)
        self._hire(len(self._wanted) + max(0, min(len(self._ahead), spare)) - idle)
        for process in self._processes:
            if not process.ready or process.job is not None:
                continue
            if self._wanted:
                task = self._wanted.popleft()
            elif self._ahead and spare > 0:
                task, spare = self._ahead.popleft(), spare - 1
            else:
                return
            process.give(task.job, task.timeout_s)

    def _most_ahead(self) -> int:
        """Fewer while somebody waits: cores share caches and memory, and one more compile slows the others down."""
        somebody_waits = any(task.waiting for task in self._tasks.values())
        return max(1, self._limit // 4) if somebody_waits else self._ahead_limit

    def _hire(self, count: int) -> None:
        # zig compiles the C library's stubs once, 6 s, and keeps them.
        environment = {"ZIG_GLOBAL_CACHE_DIR": str(self._cache.folder / "zig"), **os.environ}
        for _ in range(min(count, self._limit - len(self._processes))):
            self._processes.append(Process(environment))

    def _hear(self, process: Process) -> None:
        """A result, a process that is ready, or the end of one."""
        with self._lock:
            if process not in self._processes:  # stopped meanwhile
                return
            job, message = process.job, process.receive()
            if message == READY:
                self._failed_starts = 0
                return
            if isinstance(message, str):
                self._processes.remove(process)
                self._failed_starts += not process.ready
                if self._failed_starts == FAILED_STARTS:
                    raise EnvironmentProblem(_no_start(message))
            if job is None:
                return
            task = self._tasks[job.key]
        done = message if isinstance(message, Done) else Done(Compiled(None, "", message), None)
        build = self._store(job, done)  # without the lock; until it is in the cache, its key counts as under way
        with self._lock:
            if not build.ok:
                self._refused.add(job.key)
            if self._tasks.get(job.key) is task:
                del self._tasks[job.key]
                for answers in task.waiting:
                    answers.put(build)

    def _end(self, error: Exception) -> None:
        """Kill all processes and answer whoever waits; called under the lock."""
        for process in self._processes:
            process.kill()
        waiting = {id(answers): answers for task in self._tasks.values() for answers in task.waiting}
        for answers in waiting.values():
            answers.put(error)
        for held in (self._processes, self._tasks, self._wanted, self._ahead):
            held.clear()
        self._failed_starts = 0


def _stopped() -> EnvironmentProblem:
    return EnvironmentProblem("the builds were stopped.")


def _no_start(end: str) -> str:
    check = f"{sys.executable} -c 'import gemmsweep.build.worker'"
    return f"compile processes end before their first job ({end}); see what this says: {check}"
