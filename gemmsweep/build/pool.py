"""Compile processes over all cores, each of which may hang, crash or be killed without harm to the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue

from gemmsweep.build import log, toolchain
from gemmsweep.build.cache import Cache
from gemmsweep.build.compiler import Compiler
from gemmsweep.build.crew import Answers, Crew
from gemmsweep.build.inputs import build_key
from gemmsweep.build.worker import Done, Job
from gemmsweep.model import Build, Source

OnDone = Callable[[int, Build], None]

TIMEOUT_S = 120.0


class Builders:
    """A pool of compile processes, started when first needed (or by `start`) and kept until `close`. A context manager.

    Several threads may use it: a source that is under way is waited for, never compiled a second time. `compiler` is the
    one for every source that leaves it open: "nvcc" where kernels need it, or a C compiler's command.
    """

    def __init__(self, processes: int | None = None, compiler: str = "auto") -> None:
        self._compiler = compiler
        self._cache = Cache()
        self._crew = Crew(processes or _cores(), self._cache, self._store)

    def __enter__(self) -> Builders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def note(self) -> str | None:
        """A sentence for the user where the cache folder cannot be written, else None."""
        return self._cache.note

    def start(self) -> None:
        """Start processes now, while there is something else to wait for."""
        self._crew.start()

    def close(self) -> None:
        """`stop`, for good; builds that the cache could not take are gone."""
        self._crew.stop(for_good=True)
        self._cache.close()

    def stop(self) -> None:
        """Kill all processes and whatever they started; a build under way in another thread ends with an error."""
        self._crew.stop()

    def build_all(
        self,
        sources: Sequence[Source],
        arch: str,
        timeout_s: float = TIMEOUT_S,
        on_done: OnDone | None = None,
        on_queued: Callable[[], None] | None = None,
    ) -> list[Build]:
        """Build all sources; the result is in their order. `on_done(index, build)` is called here, as each is known.

        `on_queued` is called when all are in the queue.

        A refused source, a compiler that crashes or exceeds `timeout_s` is a Build with `ok` False.
        Raises EnvironmentProblem where there is no compiler or its processes do not start, UsageError for a CUDA
        compiler that is not one.
        """
        builds: dict[int, Build] = {}
        places: dict[str, list[int]] = {}
        jobs = self._jobs(sources, arch)
        for index, job in enumerate(jobs):
            places.setdefault(job.key, []).append(index)
        answers: Answers = SimpleQueue()
        try:
            self._crew.submit({job.key: job for job in jobs}.values(), timeout_s, answers)
            if on_queued is not None:
                on_queued()
            for _ in places:
                build = answers.get()
                if isinstance(build, Exception):
                    raise build
                for index in places[build.key]:
                    builds[index] = build
                    if on_done is not None:
                        on_done(index, build)
        except BaseException:
            self.stop()
            raise
        return [builds[index] for index in range(len(sources))]

    def offer(self, sources: Sequence[Source], arch: str, timeout_s: float = TIMEOUT_S) -> None:
        """Build these into the cache while `build_all` leaves processes idle, after those offered before.

        Nobody is told of the results. Raises as `build_all` where there is no compiler.
        """
        self._crew.offer(self._jobs(sources, arch), timeout_s)

    def forget(self) -> None:
        """What was offered and is not under way is not built after all."""
        self._crew.forget()

    def settle(self) -> None:
        """All has been offered: a build under way that was not, since `forget`, ends where something needs its process."""
        self._crew.settle()

    def _jobs(self, sources: Sequence[Source], arch: str) -> list[Job]:
        compilers: dict[tuple[str, str], Compiler] = {}
        jobs = []
        for source in sources:
            asked = replace(source, compiler=self._compiler) if source.compiler == "auto" else source
            wanted = (asked.backend, asked.compiler)
            if wanted not in compilers:
                compilers[wanted] = toolchain.find(*wanted)
            compiler = compilers[wanted]
            jobs.append(Job(build_key(asked, arch, compiler), asked, arch, compiler))
        return jobs

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


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
