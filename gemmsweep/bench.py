"""The worker process: owns the device and answers requests by method name. A crash or a hang here costs one config."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from gemmsweep import blocks
from gemmsweep.analysis.readings import SW_POWER_CAP
from gemmsweep.errors import GemmsweepError, ProblemError
from gemmsweep.model import Build, Checked, DeviceInfo, Errors, Inputs, Launch, Problem
from gemmsweep.protocol import Burst, Counter, DeviceFailure, DeviceSpec
from gemmsweep.references import Function

if TYPE_CHECKING:
    from gemmsweep.wrong import Findings


@dataclass(frozen=True, slots=True)
class Entrant:
    """What the worker needs to race a label: a binary and its launch, or the name of a reference."""

    label: str
    build: Build | None = None
    launch: Launch | None = None
    threads: int = 1  # of a reference on a CPU
    function: Function | None = None  # the reference is a function of the user's
    like: str = ""  # version of a reference that was loaded before: that one again


REST_S = 0.5  # of no load, after which the card has to settle again
KEEP_WARM_S = 20.0
UNCAPPED_S = 1.0  # NVML's power is an average over about a second
CAPPED_SHARE = 0.85  # of the power limit: below it a load is not going to be capped


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
        self.warm_label: str | None = None
        self.busy_since = self.busy_until = float("-inf")

    def info(self) -> DeviceInfo:
        return self.device.info

    def probe(self) -> None:
        self.device.probe()

    def prepare(self, problem: Problem, inputs: Inputs, l2: str) -> None:
        """Inputs, oracle and buffers of a problem; refuses what does not fit before allocating."""
        from gemmsweep import oracle

        self.oracle = self.warm_label = None
        need = problem.buffer_bytes + oracle.oracle_bytes(problem)
        free = self.device.memory_free_bytes()
        if need > free:
            raise ProblemError(
                f"{problem} needs {need / 1e9:.1f} GB with its checks, {free / 1e9:.1f} GB are free: take a smaller shape."
            )
        self.oracle = oracle.make_oracle(self.device.xp, problem, inputs)
        matrices = self.oracle.random
        self.device.prepare(problem, matrices.a, matrices.b, matrices.c, l2, self.oracle.bias)

    def enter(self, entrant: Entrant, burst_ms: float) -> tuple[str, tuple[str, ...]]:
        """Load a label and make its burst ready, unchecked; returns version and kernel names of a reference."""
        version: str = ""
        kernels: tuple[str, ...] = ()
        if entrant.function is not None:
            version, kernels = self.device.load_function(entrant.label, entrant.function, entrant.threads)
        elif entrant.build is None:
            version, kernels = self.device.load_reference(entrant.label, entrant.threads, entrant.like)
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

    def rival(self, entrant: Entrant, burst_ms: float) -> tuple[str, tuple[str, ...], Errors]:
        """Load a further reference and verify its burst; one that is wrong is unloaded and raises DeviceFailure."""
        from gemmsweep import check

        oracle = self.oracle.for_references()
        try:
            version, kernels = self.enter(entrant, burst_ms)
            errors = check.check_random(self.device, entrant.label, oracle, deterministic=False, finite=False)
        except check.Incorrect as failure:
            self.device.unload(entrant.label)
            raise DeviceFailure(failure.checked.status, self._blame(failure.checked).reason) from None
        except DeviceFailure as failure:
            if not failure.fatal:
                self._restore_inputs()
            raise
        return version, kernels, errors

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
            accuracy=launch.accuracy,
        )
        if checked.status != "ok":
            self.device.unload(entrant.label)
            return self._blame(checked)
        return checked

    def recheck(self, label: str, launch: Launch, *, restored: bool = False) -> Checked:
        """The timed burst verified once more, after the race; on inputs `restored` where a label of it had changed them."""
        from gemmsweep import check

        try:
            errors = check.check_random(
                self.device,
                label,
                self.oracle,
                deterministic=launch.deterministic,
                finite=launch.reads_c,
                accuracy=launch.accuracy,
            )
        except check.Incorrect as failure:
            if not restored and self._restore_inputs():
                return self.recheck(label, launch, restored=True)
            return self._blame(failure.checked)
        return Checked("ok", errors=errors)

    def _blame(self, wrong: Checked) -> Checked:
        """A verdict, with what else its label did."""
        return replace(wrong, reason=f"{wrong.reason}; it changed A or B") if self._restore_inputs() else wrong

    def _restore_inputs(self) -> bool:
        """A and B as they were, for those that come after; whether a label that is wrong had changed them."""
        from gemmsweep.check import bits_of

        xp, matrices, changed = self.device.xp, self.oracle.random, False
        for operands in self.device.ring:
            for found, right in ((operands.a, matrices.a), (operands.b, matrices.b)):
                if bool((bits_of(xp, found) != bits_of(xp, right)).any()):
                    found[...] = right
                    changed = True
        return changed

    def special(self, label: str, launch: Launch) -> Checked:
        """A loaded label on operands at the edges of their formats."""
        from gemmsweep.special import check_special_values

        return check_special_values(self.device, label, self.oracle.problem, launch.accuracy, finite=launch.reads_c)

    def find_wrong(self, entrant: Entrant, patterns: bool) -> Findings:
        """Load a label that failed its check once more, and see which elements are wrong."""
        from gemmsweep import wrong

        assert entrant.build is not None and entrant.launch is not None
        self.device.load(entrant.label, entrant.build, entrant.launch)
        found = wrong.find(self.device, entrant.label, self.oracle, entrant.launch, patterns=patterns)
        self.device.unload(entrant.label)
        return found

    def unload(self, label: str) -> None:
        self.device.unload(label)

    def keep_warm(self, label: str | None) -> None:
        """From now on load the device with `label` while no request is waiting: a rested card clocks higher."""
        self.warm_label = label

    def idle(self, connection: Connection) -> None:
        """Load the device until the next request, for a while: a parent that is stuck must not heat the card for ever."""
        end = time.monotonic() + KEEP_WARM_S
        while self.warm_label is not None and time.monotonic() < end and not connection.poll(0):
            try:
                self._load(self.warm_label)
            except DeviceFailure:
                self.warm_label = None

    def warm_up(self, label: str, seconds: float) -> None:
        """Load until the card has been busy for `seconds`, less where nothing caps its clock."""
        while (busy_s := self.busy_until - self.busy_since) < seconds:
            if busy_s >= UNCAPPED_S and self._uncapped():
                return
            self._load(label)

    def _load(self, label: str) -> None:
        """One burst, untimed; a gap of more than half a second before it counts as a rest."""
        if time.monotonic() - self.busy_until > REST_S:
            self.busy_since = time.monotonic()
        self.device.burst(label)
        self.busy_until = time.monotonic()

    def _uncapped(self) -> bool:
        """The load does not reach the power limit, so the clock has nothing to settle to."""
        limit_w = self.device.info.power_limit_w
        if self.nvml is None or limit_w is None:
            return False
        sample = self.nvml.sample()
        if sample.power_mw is None or sample.throttle is None:
            return False
        return sample.throttle & SW_POWER_CAP == 0 and sample.power_mw < 1e3 * CAPPED_SHARE * limit_w

    def round(self, order: Sequence[str]) -> Iterator[Burst]:
        """One burst of each label, in this order, each sent as it ends."""
        for label in order:
            burst = self.device.burst(label)
            self.busy_until = time.monotonic()
            if burst.burst_ns <= 0:
                raise DeviceFailure(
                    "runtime", f"a burst of {burst.launches} launches took {burst.burst_ns} ns: no time at all"
                )
            if self.nvml is not None:
                sample = self.nvml.sample()
                burst = replace(burst, power_mw=sample.power_mw, throttle=sample.throttle)
            yield burst

    def recalibrate(self, label: str, burst_ms: float) -> float:
        """Give a loaded label a burst of another length; returns µs per launch, roughly."""
        return self.device.calibrate(label, burst_ms)

    def repeat(self, of: str, slower: Mapping[str, int], burst_ms: float) -> int:
        """See blocks.repeat."""
        return blocks.repeat(self.device, of, slower, burst_ms)

    def block(self, label: str, seconds: float, dropped_s: float) -> Burst:
        """See blocks.block."""
        burst = blocks.block(self.device, self.nvml, label, seconds, dropped_s)
        self.busy_until = time.monotonic()
        return burst

    def rested(self, label: str, rest_s: float) -> Burst:
        """One burst after a rest. A scripted device needs none."""
        if self.device.info.kind != "scripted":
            time.sleep(rest_s)
        return next(iter(self.round([label])))

    def alone(self, label: str, count: int) -> list[Burst]:
        """`count` bursts of a label, one after the other."""
        return list(self.round([label] * count))

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

    def neighbours(self) -> str:
        """Others that have the device open and leave it alone, in words."""
        return self.nvml.foreign().note if self.nvml is not None else ""


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
            bench.idle(connection)
            name, arguments = connection.recv()
            connection.send(answer(bench, connection, name, arguments))
        except (EOFError, OSError):  # the parent is gone, or a function of the user's has closed the pipe
            return


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
