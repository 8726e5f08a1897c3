"""Compile processes over all cores, each of which may hang, crash or be killed without harm to the others."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait

from gemmsweep.build import log, toolchain
from gemmsweep.build.cache import Cache
from gemmsweep.build.compiler import Compiled, Compiler
from gemmsweep.build.inputs import build_key
from gemmsweep.build.process import Process
from gemmsweep.build.worker import READY, Done, Job
from gemmsweep.errors import EnvironmentProblem
from gemmsweep.model import Build, Source

OnDone = Callable[[int, Build], None]

TIMEOUT_S = 120.0
FAILED_STARTS = 3


class Builders:
    """A pool of compile processes, started when first needed and kept until `close`. A context manager.

    `compiler` is the one for every source that leaves it open: "nvcc" where kernels need it, or a C compiler's command.
    `note` is a sentence for the user where the cache folder cannot be written, else None.
    """

    def __init__(self, processes: int | None = None, compiler: str = "auto") -> None:
        self._compiler = compiler
        self._cache = Cache()
        self._limit = processes or _cores()
        self._processes: list[Process] = []
        self._closed = self._stopped = False
        self.note = self._cache.note

    def __enter__(self) -> Builders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """`stop`, for good."""
        self._closed = True
        self.stop()

    def stop(self) -> None:
        """Kill all processes and whatever they started; a build under way in another thread ends with an error."""
        self._stopped = True
        for process in self._processes:
            process.kill()
        self._processes.clear()

    def build_all(
        self, sources: Sequence[Source], arch: str, timeout_s: float = TIMEOUT_S, on_done: OnDone | None = None
    ) -> list[Build]:
        """Build all sources; the result is in their order. `on_done(index, build)` is called here, as each is known.

        A refused source, a compiler that crashes or exceeds `timeout_s` is a Build with `ok` False.
        Raises EnvironmentProblem where there is no compiler or its processes do not start, UsageError for a CUDA
        compiler that is not one.
        """
        builds: dict[int, Build] = {}
        places: dict[str, list[int]] = {}
        jobs: dict[str, Job] = {}

        def finish(key: str, build: Build) -> None:
            for index in places.pop(key):
                builds[index] = build
                if on_done is not None:
                    on_done(index, build)

        asked = [replace(s, compiler=self._compiler) if s.compiler == "auto" else s for s in sources]
        for index, job in enumerate(_jobs(asked, arch)):
            places.setdefault(job.key, []).append(index)
            jobs[job.key] = job
        for key in list(jobs):
            if (hit := self._cache.get(key)) is not None:
                del jobs[key]
                finish(key, hit)
        try:
            self._stopped = self._closed
            self._compile(jobs.values(), timeout_s, finish)
        except BaseException as error:
            stopped = self._stopped
            self.stop()
            if stopped and isinstance(error, (OSError, ValueError)):  # a connection closed under our hands
                raise EnvironmentProblem("the builds were stopped.") from None
            raise
        return [builds[index] for index in range(len(sources))]

    def _compile(self, jobs: Iterable[Job], timeout_s: float, finish: Callable[[str, Build], None]) -> None:
        queue = deque(jobs)
        failed_starts = 0
        while queue or any(process.job for process in self._processes):
            if self._stopped:
                raise EnvironmentProblem("the builds were stopped.")
            self._start(len(queue))
            for process in self._processes:
                if process.ready and process.job is None and queue:
                    process.give(queue.popleft(), timeout_s)
            for process in self._wait():
                job, message = process.job, process.receive()
                if message == READY:
                    continue
                if isinstance(message, str):
                    self._processes.remove(process)
                    failed_starts += not process.ready
                    if failed_starts == FAILED_STARTS:
                        raise EnvironmentProblem(_no_start(message))
                if job is not None:
                    done = message if isinstance(message, Done) else Done(Compiled(None, "", message), None)
                    finish(job.key, self._store(job, done))
        if self._stopped:  # between two jobs: then the loop has ended for want of processes
            raise EnvironmentProblem("the builds were stopped.")

    def _start(self, queued: int) -> None:
        # zig compiles the C library's stubs once, 6 s, and keeps them.
        environment = {"ZIG_GLOBAL_CACHE_DIR": str(self._cache.folder / "zig"), **os.environ}
        free = sum(process.job is None for process in self._processes)
        for _ in range(min(queued - free, self._limit - len(self._processes))):
            self._processes.append(Process(environment))

    def _wait(self) -> list[Process]:
        """Processes with something to say: a result, their end, or a deadline that has passed."""
        processes = list(self._processes)  # another thread may stop them meanwhile
        if not processes:
            return []
        first = min(process.deadline for process in processes)
        timeout_s = None if first == math.inf else first - time.monotonic()
        heard = wait([process.connection for process in processes], timeout_s)
        now = time.monotonic()
        return [p for p in processes if p in self._processes and (p.connection in heard or p.deadline <= now)]

    def _store(self, job: Job, done: Done) -> Build:
        compiled = done.compiled
        told = log.resources(compiled.log)
        build = Build(
            ok=compiled.binary is not None,
            key=job.key,
            compiler=job.compiler.name,
            arch=toolchain.target(job.source, job.arch),
            options=toolchain.options(job.source, job.arch, job.compiler),
            reason=compiled.reason,
            log=compiled.log,
            symbols=compiled.symbols,
            registers=told.registers,
            spill_bytes=told.spill_bytes,
            smem_bytes=told.smem_bytes,
            compile_ms=done.compile_ms,
        )
        if compiled.binary is None:
            return build  # a refusal may be today's full disk: never cached
        suffix = ".so" if job.compiler.kind == "cc" else ".cubin"
        try:
            return self._cache.put(build, compiled.binary, suffix)
        except OSError as error:
            self._cache.leave(error)
            return self._cache.put(build, compiled.binary, suffix)


def build_all(
    sources: Sequence[Source], arch: str, timeout_s: float = TIMEOUT_S, on_done: OnDone | None = None
) -> list[Build]:
    """`Builders.build_all` with processes of its own."""
    with Builders() as builders:
        return builders.build_all(sources, arch, timeout_s, on_done)


def build_one(source: Source, arch: str, timeout_s: float = TIMEOUT_S) -> Build:
    """Build one source; returns and raises as `Builders.build_all`."""
    return build_all([source], arch, timeout_s)[0]


def _jobs(sources: Sequence[Source], arch: str) -> list[Job]:
    compilers: dict[tuple[str, str], Compiler] = {}
    jobs = []
    for source in sources:
        wanted = (source.backend, source.compiler)
        if wanted not in compilers:
            compilers[wanted] = toolchain.find(*wanted)
        compiler = compilers[wanted]
        jobs.append(Job(build_key(source, arch, compiler), source, arch, compiler))
    return jobs


def _no_start(end: str) -> str:
    check = f"{sys.executable} -c 'import gemmsweep.build.worker'"
    return f"compile processes end before their first job ({end}); see what this says: {check}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
