"""One isolated process per device: checks and bursts run there, so a crash or a hang costs one config, never the sweep.

`Worker` is the parent's end: it sends one request at a time, waits with a limit, and replaces a process that died, hung or lost its
context, loading again what had been loaded. `serve` and `Bench` are the child's end. The parent never opens the device itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gemmsweep.bench import Entrant
from gemmsweep.errors import EnvironmentProblem
from gemmsweep.link import STARTS, Link
from gemmsweep.model import Checked, DeviceInfo, Errors, Inputs, Problem
from gemmsweep.protocol import Burst, Counter, DeviceFailure, DeviceSpec
from gemmsweep.warmth import made_up_for_s

if TYPE_CHECKING:
    from gemmsweep.wrong import Findings


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds one request may take before the worker is killed."""

    start_s: float = 120.0
    prepare_s: float = 300.0
    check_s: float = 60.0
    burst_s: float = 30.0


class Worker:
    """The parent's end. Every method raises DeviceFailure for a config's fault, GemmsweepError for the user's."""

    def __init__(self, spec: DeviceSpec, limits: Limits | None = None) -> None:
        self.spec = spec
        self.limits = limits or Limits()
        self.restarts = 0
        self._problem: tuple[Problem, Inputs, str] | None = None
        self._vendor: str | None = None
        self._warm: str | None = None
        self._entered: dict[str, tuple[Entrant, float]] = {}
        self._link = Link(spec)
        self._link.begin()
        # Not asked for yet: opening a GPU takes a second, in which others have something to do.
        self._info: DeviceInfo | None = None

    @property
    def info(self) -> DeviceInfo:
        """The device, once it is open. Raises EnvironmentProblem where it cannot be opened, UsageError where there is none."""
        if self._info is None:
            self._info = self._link.start(self.limits.start_s)
        return self._info

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the process: nothing in it is worth waiting for."""
        self._link.close()

    def prepare(self, problem: Problem, inputs: Inputs, l2: str) -> None:
        """Take a problem; labels of the one before are gone."""
        self._problem, self._vendor, self._warm, self._entered = (problem, inputs, l2), None, None, {}
        self._ask_for_session("preparing the problem", "prepare", problem, inputs, l2, timeout_s=self.limits.prepare_s)

    def enter_reference(self, entrant: Entrant, burst_ms: float) -> tuple[str, tuple[str, ...], float]:
        """Load a reference and measure its error; returns version, kernel names and relative Frobenius error.

        A replaced process loads the same version again.
        """
        what = f"the reference {entrant.label}"
        loaded: tuple[str, tuple[str, ...], float]
        loaded = self._ask_for_session(what, "reference", entrant, burst_ms, timeout_s=self.limits.check_s)
        self._entered[entrant.label] = (replace(entrant, like=loaded[0]), burst_ms)
        self._vendor = entrant.label
        return loaded

    def enter_rival(self, entrant: Entrant, burst_ms: float) -> tuple[str, tuple[str, ...], Errors]:
        """Load a further reference and verify it; a replaced process loads the same version again."""
        version, kernels, errors = self._call("rival", entrant, burst_ms, timeout_s=self.limits.check_s)
        self._entered[entrant.label] = (replace(entrant, like=version), burst_ms)
        return version, kernels, errors

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
        if label not in self._entered:
            raise DeviceFailure("runtime", "it could not be loaded again after the worker was replaced")
        launch = self._entered[label][0].launch
        assert launch is not None
        checked: Checked = self._call("recheck", label, launch, timeout_s=self.limits.check_s)
        return checked

    def special(self, label: str) -> Checked:
        """A config that passed its check, on operands at the edges of their formats."""
        launch = self._entered[label][0].launch
        checked: Checked = self._call("special", label, launch, timeout_s=self.limits.check_s)
        return checked

    def find_wrong(self, entrant: Entrant, *, patterns: bool) -> Findings:
        """The wrong elements of a config that failed its check, or those patterns."""
        found: Findings = self._call("find_wrong", entrant, patterns, timeout_s=self.limits.check_s)
        return found

    def leave(self, label: str) -> None:
        """Unload a label."""
        self._forget(label)
        self._ask_for_session("unloading", "unload", label, timeout_s=self.limits.check_s)

    def keep_warm(self, label: str | None) -> None:
        """Keep the device loaded with a label between requests (None: let it rest)."""
        self._ask_for_session("the warm-up", "keep_warm", label, timeout_s=self.limits.burst_s)
        self._warm = label

    def warm_up(self, label: str, seconds: float) -> None:
        """Load until the clock has settled: `seconds` of unbroken load, less where nothing caps it."""
        self._ask_for_session("the warm-up", "warm_up", label, seconds, timeout_s=seconds + self.limits.burst_s)

    def recalibrate(self, label: str, burst_ms: float) -> float:
        """Give a loaded label a burst of another length; returns µs per launch, roughly."""
        estimate_us: float = self._call("recalibrate", label, burst_ms, timeout_s=self.limits.check_s)
        self._entered[label] = (self._entered[label][0], burst_ms)
        return estimate_us

    def repeat(self, of: str, slower: Mapping[str, int], burst_ms: float) -> int:
        """See blocks.repeat. A replaced worker does not know these labels again."""
        reported: int = self._call("repeat", of, dict(slower), burst_ms, timeout_s=self.limits.prepare_s)
        return reported

    def block(self, label: str, seconds: float, dropped_s: float) -> Burst:
        """Time and power of a label that has the device to itself; see blocks.block."""
        burst: Burst = self._call("block", label, seconds, dropped_s, timeout_s=2 * seconds + self.limits.burst_s)
        return burst

    def rested(self, label: str, rest_s: float) -> Burst:
        """One burst after a rest."""
        burst: Burst = self._call("rested", label, rest_s, timeout_s=rest_s + self.limits.burst_s)
        return burst

    def alone(self, label: str, count: int) -> list[Burst]:
        """`count` bursts of a label in a row."""
        bursts: list[Burst] = self._call("alone", label, count, timeout_s=self.limits.burst_s)
        return bursts

    def counters(self, label: str) -> tuple[Counter, ...]:
        counters: tuple[Counter, ...] = self._call("counters", label, timeout_s=self.limits.burst_s)
        return counters

    def foreign(self) -> str:
        words: str = self._ask_for_session("looking for other load", "foreign", timeout_s=self.limits.burst_s)
        return words

    def neighbours(self) -> str:
        """Others that have the device open without working on it, in words."""
        words: str = self._ask_for_session("looking for others", "neighbours", timeout_s=self.limits.burst_s)
        return words

    def survived(self) -> bool:
        """Whether the device still answers once a request of the session's has failed."""
        try:
            self.foreign()
        except EnvironmentProblem:
            return False
        return True

    def start_round(self, order: Sequence[str]) -> None:
        """Begin a round; `finish_round` collects it, so the caller can store the one before meanwhile."""
        self._link.send("round", tuple(order))

    def finish_round(self, order: Sequence[str]) -> list[Burst]:
        """Bursts in `order`. Raises LabelFailure naming the label at fault; the worker is fresh again by then."""
        bursts: list[Burst] = []
        try:
            while True:
                made_up_s = made_up_for_s(bursts[-1]) if bursts else 0.0  # which is not the next one's time
                kind, payload = self._link.receive(self.limits.burst_s + made_up_s)
                if kind == "item":
                    bursts.append(payload)
                elif kind == "ok":
                    return bursts
                else:
                    raise self._link.failure(kind, payload)
        except DeviceFailure as failure:
            label = order[len(bursts)] if len(bursts) < len(order) else order[-1]
            self._forget(label)
            self._recover()
            raise LabelFailure(label, failure) from failure

    def _call(self, name: str, *arguments: Any, timeout_s: float) -> Any:
        """Ask, and replace the worker where asking cost its life."""
        try:
            return self._ask(name, *arguments, timeout_s=timeout_s)
        except DeviceFailure as failure:
            if failure.fatal:
                self._recover()
            raise

    def _ask(self, name: str, *arguments: Any, timeout_s: float) -> Any:
        """One request and its answer; raises DeviceFailure or GemmsweepError. Replaces only what a session's request cost."""
        if self._info is None or self._link.closed:
            self._info = self._link.start(self.limits.start_s)
        self._link.send(name, *arguments)
        kind, payload = self._link.receive(timeout_s)
        if kind == "ok":
            return payload
        raise self._link.failure(kind, payload)

    def _ask_for_session(self, what: str, name: str, *arguments: Any, timeout_s: float) -> Any:
        """A request that is no config's: its failure ends the sweep, with a sentence. Raises EnvironmentProblem."""
        try:
            return self._ask(name, *arguments, timeout_s=timeout_s)
        except DeviceFailure as failure:
            if failure.fatal:  # its answer, should it come yet, is nobody's
                self._link.close()
                self._problem, self._vendor, self._warm, self._entered = None, None, None, {}
            # A limit that was asked for may be too short; data have one of their own.
            asked_for = self.limits != Limits() and timeout_s != self.limits.prepare_s
            longer = "Give it longer: --config-limit; or see" if failure.status == "timeout" and asked_for else "See"
            raise EnvironmentProblem(
                f"{what} failed on {self.info.name}: {failure.reason}. {longer}: gemmsweep doctor"
            ) from None

    def _forget(self, label: str) -> None:
        """A label that failed is not loaded again into the next process."""
        self._entered.pop(label, None)
        if label == self._vendor:
            self._vendor = None
        if label == self._warm:
            self._warm = None

    def _recover(self) -> None:
        """A fresh process in the state of the old one; a label that takes it down again is dropped.

        Raises EnvironmentProblem where it cannot be brought back at all.
        """
        for _ in range(STARTS + len(self._entered)):
            self._link.close()
            self.restarts += 1
            self._info = self._link.start(self.limits.start_s)
            self._probe()
            if self._problem is None:
                return
            self._ask_for_session("preparing the problem", "prepare", *self._problem, timeout_s=self.limits.prepare_s)
            if self._restore():
                return
        raise EnvironmentProblem(f"the worker on {self.info.name} could not be brought back. See: gemmsweep doctor")

    def _probe(self) -> None:
        """Tell a config that broke its process from a device that is broken. Raises EnvironmentProblem for the latter."""
        try:
            self._ask("probe", timeout_s=self.limits.burst_s)
        except DeviceFailure as failure:
            raise EnvironmentProblem(
                f"{self.info.name} does not recover from a config that failed: a kernel known to be good fails too "
                f"({failure.reason}). Everything measured is stored; reset the device or reboot, then run the same command again."
            ) from None

    def _restore(self) -> bool:
        """Load everything again; False, and the label forgotten, where one of them ended the process."""
        for label, (entrant, burst_ms) in list(self._entered.items()):
            try:
                self._ask("enter", entrant, burst_ms, timeout_s=self.limits.check_s)
            except DeviceFailure as failure:
                self._forget(label)
                if failure.fatal:
                    return False
        if self._vendor is not None:
            self._ask_for_session("the reference", "vendor", self._vendor, timeout_s=self.limits.check_s)
        if self._warm is not None:
            self._ask_for_session("the warm-up", "keep_warm", self._warm, timeout_s=self.limits.burst_s)
        return True


class LabelFailure(Exception):
    """A label failed in the middle of a round."""

    def __init__(self, label: str, failure: DeviceFailure) -> None:
        super().__init__(failure.reason)
        self.label = label
        self.failure = failure
