"""One isolated process per device: checks and bursts run there, so a crash or a hang costs one config, never the sweep.

`Worker` is the parent's end: it sends one request at a time, waits with a limit, and replaces a process that died, hung or lost its
context, loading again what had been loaded. `Bench` is the child's end. The parent never opens the device itself.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from gemmsweep.errors import EnvironmentProblem, GemmsweepError, ProblemError
from gemmsweep.model import (
    Build,
    Burst,
    Checked,
    Counter,
    DeviceFailure,
    DeviceInfo,
    DeviceSpec,
    Inputs,
    Launch,
    Problem,
)

STARTS = 3  # a worker that dies at start is tried this often


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds one request may take before the worker is killed."""

    start_s: float = 120.0
    prepare_s: float = 300.0
    check_s: float = 60.0
    burst_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Entrant:
    """What the worker needs to race a label: a binary and its launch, or the name of a reference."""

    label: str
    build: Build | None = None
    launch: Launch | None = None
    threads: int = 1  # of a reference on a CPU


class Bench:
    """The child's end: owns the device, answers requests by method name."""

    def __init__(self, spec: DeviceSpec) -> None:
        import numpy as np

        from gemmsweep.counters.nvml import Nvml
        from gemmsweep.device import open_device

        np.seterr(all="ignore")  # NaN and Inf are planted on purpose
        self.device = open_device(spec)
        self.nvml = Nvml(self.device.info.uuid) if self.device.info.kind == "cuda" else None
        self.oracle: Any = None

    def info(self) -> DeviceInfo:
        return self.device.info

    def prepare(self, problem: Problem, inputs: Inputs, l2: str) -> None:
        """Inputs, oracle and buffers of a problem; refuses what does not fit before allocating."""
        from gemmsweep import check

        self.oracle = None
        need = problem.buffer_bytes + check.oracle_bytes(problem)
        free = self.device.memory_free_bytes()
        if need > free:
            raise ProblemError(
                f"{problem} needs {need / 1e9:.1f} GB with its checks, {free / 1e9:.1f} GB are free: take a smaller shape."
            )
        self.oracle = check.make_oracle(self.device.xp, problem, inputs)
        matrices = self.oracle.random
        self.device.prepare(problem, matrices.a, matrices.b, matrices.c, l2, self.oracle.bias)

    def enter(self, entrant: Entrant, burst_ms: float) -> tuple[str, tuple[str, ...]]:
        """Load a label and make its burst ready, unchecked; returns version and kernel names of a reference."""
        version: str = ""
        kernels: tuple[str, ...] = ()
        if entrant.build is None:
            version, kernels = self.device.load_reference(entrant.label, entrant.threads)
        else:
            assert entrant.launch is not None
            self.device.load(entrant.label, entrant.build, entrant.launch)
        self.device.calibrate(entrant.label, burst_ms)
        return version, kernels

    def vendor(self, label: str) -> float:
        """Relative Frobenius error of a loaded reference, from now on the yardstick of `check`."""
        from gemmsweep import check

        self.oracle.vendor_rel_fro = check.measure_vendor(self.device, label, self.oracle)
        return float(self.oracle.vendor_rel_fro)

    def check(self, entrant: Entrant, burst_ms: float) -> Checked:
        """Load a label and verify it; an incorrect one is unloaded again."""
        from gemmsweep import check

        assert entrant.build is not None and entrant.launch is not None
        launch = entrant.launch
        self.device.load(entrant.label, entrant.build, launch)
        checked = check.check(
            self.device,
            entrant.label,
            self.oracle,
            burst_ms=burst_ms,
            deterministic=launch.deterministic,
            finite=launch.reads_c,
        )
        if checked.status != "ok":
            self.device.unload(entrant.label)
        return checked

    def recheck(self, label: str, deterministic: bool, finite: bool) -> Checked:
        """The timed burst verified once more, after the race."""
        from gemmsweep import check

        try:
            errors = check.check_random(self.device, label, self.oracle, deterministic=deterministic, finite=finite)
        except check.Incorrect as failure:
            return failure.checked
        return Checked("ok", errors=errors)

    def unload(self, label: str) -> None:
        self.device.unload(label)

    def warm_up(self, label: str, seconds: float) -> int | None:
        """Load until the SM clock settles, at most `seconds`; returns the clock in MHz."""
        end = time.monotonic() + seconds
        clocks: list[int] = []
        while time.monotonic() < end:
            clock = self.device.burst(label).sm_clock_mhz
            if clock is None:
                break
            clocks.append(clock)
        return clocks[-1] if clocks else None

    def round(self, order: Sequence[str]) -> Iterator[Burst]:
        """One burst of each label, in this order, each sent as it ends."""
        for label in order:
            burst = self.device.burst(label)
            if self.nvml is not None:
                sample = self.nvml.sample()
                burst = replace(burst, power_mw=sample.power_mw, throttle=sample.throttle)
            yield burst

    def counters(self, label: str, seconds: float) -> tuple[Counter, ...]:
        """NVML and GPM over a window in which nothing but the label's burst runs."""
        if self.nvml is None:
            return ()

        def load(window_s: float) -> None:
            end = time.monotonic() + window_s
            while time.monotonic() < end:
                self.device.replay(label)

        return self.nvml.window(load, seconds)

    def foreign(self) -> str:
        """Load on the device that is not ours, in words; empty where there is none or it cannot be seen."""
        return self.nvml.foreign_load() if self.nvml is not None else ""


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
        connection.send(("ok", bench.info()))
    except GemmsweepError as error:
        connection.send(("user", error))
        return
    except Exception as error:
        connection.send(("fail", ("runtime", f"{type(error).__name__}: {error}", True)))
        return
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        connection.send(answer(bench, connection, name, arguments))


def answer(bench: Bench, connection: Connection, name: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """Run one request; generators send their items as they come."""
    try:
        result = getattr(bench, name)(*arguments)
        if isinstance(result, Iterator):
            for item in result:
                connection.send(("item", item))
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


class Worker:
    """The parent's end. Every method raises DeviceFailure for a config's fault, GemmsweepError for the user's."""

    def __init__(self, spec: DeviceSpec, limits: Limits | None = None) -> None:
        self.spec = spec
        self.limits = limits or Limits()
        self.restarts = 0
        self._problem: tuple[Problem, Inputs, str] | None = None
        self._vendor: str | None = None
        self._entered: dict[str, tuple[Entrant, float]] = {}
        self._process: Any = None
        self._connection: Any = None
        self.info = self._start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the process: nothing in it is worth waiting for."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._connection = None

    def prepare(self, problem: Problem, inputs: Inputs, l2: str) -> None:
        """Take a problem; labels of the one before are gone."""
        self._problem, self._vendor, self._entered = (problem, inputs, l2), None, {}
        self._call("prepare", problem, inputs, l2, timeout_s=self.limits.prepare_s)

    def enter_reference(self, entrant: Entrant, burst_ms: float) -> tuple[str, tuple[str, ...], float]:
        """Load a reference and measure its error; returns version, kernel names and relative Frobenius error."""
        version, kernels = self._call("enter", entrant, burst_ms, timeout_s=self.limits.check_s)
        rel_fro = self._call("vendor", entrant.label, timeout_s=self.limits.check_s)
        self._entered[entrant.label] = (entrant, burst_ms)
        self._vendor = entrant.label
        return version, kernels, rel_fro

    def enter(self, entrant: Entrant, burst_ms: float) -> None:
        """Load a label that was checked before."""
        self._call("enter", entrant, burst_ms, timeout_s=self.limits.check_s)
        self._entered[entrant.label] = (entrant, burst_ms)

    def check(self, entrant: Entrant, burst_ms: float) -> Checked:
        """Verify a config and, when it is right, keep it loaded for the race."""
        checked: Checked = self._call("check", entrant, burst_ms, timeout_s=self.limits.check_s)
        if checked.status == "ok":
            self._entered[entrant.label] = (entrant, burst_ms)
        return checked

    def recheck(self, label: str) -> Checked:
        """The timed burst of a config verified again after the race."""
        launch = self._entered[label][0].launch
        assert launch is not None
        checked: Checked = self._call(
            "recheck", label, launch.deterministic, launch.reads_c, timeout_s=self.limits.check_s
        )
        return checked

    def leave(self, label: str) -> None:
        """Forget a label."""
        self._entered.pop(label, None)
        self._call("unload", label, timeout_s=self.limits.check_s)

    def warm_up(self, label: str, seconds: float) -> int | None:
        clock: int | None = self._call("warm_up", label, seconds, timeout_s=seconds + self.limits.burst_s)
        return clock

    def counters(self, label: str, seconds: float) -> tuple[Counter, ...]:
        counters: tuple[Counter, ...] = self._call("counters", label, seconds, timeout_s=seconds + self.limits.burst_s)
        return counters

    def foreign(self) -> str:
        words: str = self._call("foreign", timeout_s=self.limits.burst_s)
        return words

    def start_round(self, order: Sequence[str]) -> None:
        """Begin a round; `finish_round` collects it, so the caller can store the one before meanwhile."""
        self._connection.send(("round", (tuple(order),)))

    def finish_round(self, order: Sequence[str]) -> list[Burst]:
        """Bursts in `order`. On a failure the label at fault is `DeviceFailure.label`, and the worker is fresh again."""
        bursts: list[Burst] = []
        try:
            while True:
                kind, payload = self._receive(self.limits.burst_s)
                if kind == "item":
                    bursts.append(payload)
                elif kind == "ok":
                    return bursts
                else:
                    raise self._failure(kind, payload)
        except DeviceFailure as failure:
            label = order[len(bursts)] if len(bursts) < len(order) else order[-1]
            self._entered.pop(label, None)
            self._recover()
            raise LabelFailure(label, failure) from failure

    def _call(self, name: str, *arguments: Any, timeout_s: float) -> Any:
        try:
            self._connection.send((name, arguments))
            kind, payload = self._receive(timeout_s)
            if kind == "ok":
                return payload
            failure = self._failure(kind, payload)
        except (BrokenPipeError, ConnectionResetError):
            failure = self._death()
        except DeviceFailure as caught:
            failure = caught
        if isinstance(failure, DeviceFailure) and failure.fatal:
            self._recover()
        raise failure

    def _receive(self, timeout_s: float) -> tuple[str, Any]:
        if not self._connection.poll(timeout_s):
            raise DeviceFailure("timeout", f"no answer within {timeout_s:g} s; its process was killed", fatal=True)
        try:
            kind, payload = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._death() from None
        return kind, payload

    def _death(self) -> DeviceFailure:
        self._process.join(5)
        code = self._process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return DeviceFailure("runtime", f"the worker process died ({how})", fatal=True)

    @staticmethod
    def _failure(kind: str, payload: Any) -> Exception:
        if kind == "user":
            assert isinstance(payload, GemmsweepError)
            return payload
        status, reason, fatal = payload
        return DeviceFailure(status, reason, fatal=fatal)

    def _start(self) -> DeviceInfo:
        """Spawn, with a bounded number of tries; raises EnvironmentProblem saying why it cannot."""
        reason = ""
        for _ in range(STARTS):
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs, self.spec, os.getpid()), daemon=True)
            self._process.start()
            theirs.close()
            try:
                kind, payload = self._receive(self.limits.start_s)
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

    def _recover(self) -> None:
        """A fresh process in the state of the old one: problem, reference, labels."""
        self.close()
        self.restarts += 1
        self.info = self._start()
        if self._problem is None:
            return
        entered, self._entered = self._entered, {}
        vendor = self._vendor
        self._call("prepare", *self._problem, timeout_s=self.limits.prepare_s)
        for entrant, burst_ms in entered.values():
            self._call("enter", entrant, burst_ms, timeout_s=self.limits.check_s)
            self._entered[entrant.label] = (entrant, burst_ms)
        if vendor is not None:
            self._call("vendor", vendor, timeout_s=self.limits.check_s)


class LabelFailure(Exception):
    """A label failed in the middle of a round."""

    def __init__(self, label: str, failure: DeviceFailure) -> None:
        super().__init__(failure.reason)
        self.label = label
        self.failure = failure
