"""What can be asked of a device in the worker process, one method per request: load and verify, time, read counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gemmsweep import blocks
from gemmsweep.errors import ProblemError
from gemmsweep.model import Build, Checked, DeviceInfo, Errors, Inputs, Launch, Problem
from gemmsweep.protocol import Burst, Counter, DeviceFailure, DeviceSpec
from gemmsweep.references import Function, stricter
from gemmsweep.warmth import Warmth

if TYPE_CHECKING:
    from gemmsweep.wrong import Findings


@dataclass(frozen=True, slots=True)
class Entrant:
    """What the worker needs to race a label: a binary and its launch, or the name of a reference."""

    label: str
    build: Build | None = None
    launch: Launch | None = None
    threads: int = 1  # of the library on a CPU; functions have those that it has
    function: Function | None = None  # the reference is a function of the user's
    like: str = ""  # version of a reference that was loaded before: that one again


class Bench:
    """The child's end: owns the device; `serve` calls the method that a request names."""

    def __init__(self, spec: DeviceSpec) -> None:
        import numpy as np

        from gemmsweep.counters.nvml import Nvml
        from gemmsweep.device import open_device

        np.seterr(all="ignore")  # NaN and Inf are planted on purpose
        self.device = open_device(spec)
        self.nvml = Nvml(self.device.info.uuid) if self.device.info.kind == "cuda" else None
        self.oracle: Any = None
        self.warmth = Warmth(self.device, self.nvml)

    def info(self) -> DeviceInfo:
        return self.device.info

    def probe(self) -> None:
        self.device.probe()

    def prepare(self, problem: Problem, inputs: Inputs, l2: str) -> None:
        """Inputs, oracle and buffers of a problem; refuses what does not fit before allocating."""
        from gemmsweep import oracle

        self.oracle = self.warmth.label = None
        if told := oracle.beyond_memory(problem, self.device.memory_free_bytes(), "are free"):
            raise ProblemError(told)
        self.oracle = oracle.make_oracle(self.device.xp, problem, inputs)
        matrices = self.oracle.random
        self.device.prepare(problem, matrices.a, matrices.b, matrices.c, l2, self.oracle.bias)

    def enter(self, entrant: Entrant, burst_ms: float) -> tuple[str, tuple[str, ...]]:
        """Load a label and make its burst ready, unchecked; returns version and kernel names of a reference."""
        version: str = ""
        kernels: tuple[str, ...] = ()
        if entrant.function is not None:
            version, kernels = self.device.load_function(entrant.label, entrant.function)
        elif entrant.build is None:
            version, kernels = self.device.load_reference(entrant.label, entrant.threads, entrant.like)
        else:
            assert entrant.launch is not None
            self.device.load(entrant.label, entrant.build, entrant.launch)
        self.device.calibrate(entrant.label, burst_ms)
        return version, kernels

    def reference(self, entrant: Entrant, burst_ms: float) -> tuple[str, tuple[str, ...], float]:
        """Load the main reference and measure it; one that is beyond the bound in its stricter way, if it has one."""
        version, kernels = self.enter(entrant, burst_ms)
        try:
            return version, kernels, self.vendor(entrant.label)
        except DeviceFailure as failure:
            like = stricter(entrant.label, version)
            if failure.status != "incorrect" or not like:
                raise
        version, kernels = self.enter(replace(entrant, like=like), burst_ms)
        return version, kernels, self.vendor(entrant.label)

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
        self.warmth.label = label

    def warm_up(self, label: str, seconds: float) -> None:
        """See Warmth.warm_up."""
        self.warmth.warm_up(label, seconds)

    def round(self, order: Sequence[str]) -> Iterator[Burst]:
        """One burst of each label, in this order, each sent as it ends."""
        for label in order:
            burst = blocks.timed(self.device, label)
            self.warmth.worked()
            if self.nvml is not None:
                sample = self.nvml.sample()
                burst = replace(burst, power_mw=sample.power_mw, throttle=sample.throttle)
            yield burst
            self.warmth.make_up(burst)

    def recalibrate(self, label: str, burst_ms: float) -> float:
        """Give a loaded label a burst of another length; returns µs per launch, roughly."""
        return self.device.calibrate(label, burst_ms)

    def repeat(self, of: str, slower: Mapping[str, int], burst_ms: float) -> int:
        """See blocks.repeat."""
        return blocks.repeat(self.device, of, slower, burst_ms)

    def block(self, label: str, seconds: float, dropped_s: float) -> Burst:
        """See blocks.block."""
        burst = blocks.block(self.device, self.nvml, label, seconds, dropped_s)
        self.warmth.worked()
        return burst

    def rested(self, label: str, rest_s: float) -> Burst:
        """One burst after a rest. A scripted device needs none."""
        if self.device.info.kind != "scripted":
            time.sleep(rest_s)
        return next(iter(self.round([label])))

    def alone(self, label: str, count: int) -> list[Burst]:
        """`count` bursts of a label, one after the other."""
        return list(self.round([label] * count))

    def counters(self, label: str) -> tuple[Counter, ...]:
        """NVML and GPM while nothing but the label's burst runs."""
        if self.nvml is None:
            return ()

        def load(enough: Callable[[], bool]) -> None:
            while not enough():
                self.device.replay(label)

        return self.nvml.window(load)

    def foreign(self) -> str:
        """Load on the device that is not ours, in words; empty where there is none or it cannot be seen."""
        return self.nvml.foreign_load() if self.nvml is not None else ""

    def neighbours(self) -> str:
        """Others that have the device open and leave it alone, in words."""
        return self.nvml.foreign().note if self.nvml is not None else ""
