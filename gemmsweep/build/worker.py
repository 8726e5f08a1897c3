"""One compile process: takes jobs from a pipe until its parent is gone. Started by `crew`, killed at any time."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import threading
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from gemmsweep.build import nvrtc, toolchain
from gemmsweep.build.compiler import Compiled, Compiler
from gemmsweep.model import Source

READY = "ready"
LOG_CHARS = 1 << 20  # kept of what a compiler says: it travels to the parent, into the cache and into results
ADDRESS_SPACE_BYTES = 16 << 30  # a compiler that runs away must not take the machine with it; NVRTC maps under 1 GiB


@dataclass(frozen=True, slots=True)
class Job:
    """One source to compile. `key` is its build key."""

    key: str
    source: Source
    arch: str
    compiler: Compiler


@dataclass(frozen=True, slots=True)
class Done:
    """A finished job and the milliseconds the compiler worked on it; None for one that never answered."""

    compiled: Compiled
    compile_ms: float | None


def serve(descriptor: int) -> None:
    """Compile jobs from the connection on `descriptor` until it closes."""
    connection: Connection[Done | str, Job] = Connection(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _limit_memory()
    threading.Thread(target=_die_with_parent, args=(descriptor,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # the parent is gone: the thread cleans up
        connection.send(READY)
        while True:
            connection.send(_work(connection.recv()))
    _clean_up()


def _work(job: Job) -> Done:
    if job.compiler.kind == "nvrtc":
        nvrtc.nvrtc_version()  # loads the library: 0.1 s once, which is not the compile's
    started = time.perf_counter()
    try:
        compiled = toolchain.compile_source(job.source, job.arch, job.compiler)
    except Exception as problem:  # whatever went wrong with this source, the next one deserves its compile
        compiled = Compiled(None, "", f"{type(problem).__name__}: {problem}")
    return Done(replace(compiled, log=shortened(compiled.log)), (time.perf_counter() - started) * 1e3)


def shortened(text: str) -> str:
    """Its beginning and its end, where it is longer than anybody reads."""
    half = LOG_CHARS // 2
    return text if len(text) <= LOG_CHARS else f"{text[:half]}\n[{len(text) - 2 * half} characters]\n{text[-half:]}"


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = ADDRESS_SPACE_BYTES if hard == resource.RLIM_INFINITY else min(hard, ADDRESS_SPACE_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _die_with_parent(descriptor: int) -> None:
    # PR_SET_PDEATHSIG would follow the parent's thread, not its process, and would leave compilers that we started.
    # The parent's end of the pipe closes however the parent dies; this process leads a group that holds them all.
    watch = select.poll()
    watch.register(descriptor, 0)
    watch.poll()
    _clean_up()


def _clean_up() -> None:
    """End with all compilers that were started here, and the folder they wrote into: the parent can no longer remove it."""
    if folder := os.environ.get("TMPDIR"):  # made for this process, see `process.py`
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)
