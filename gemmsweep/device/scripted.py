"""A pretend GPU for tests: times, noise and faults come from a script; results are computed with NumPy, so checks pass.

A script is TOML or JSON. Keys, all optional:
  seed = 0                     of the noise
  open = "crash"               a fault when the device is opened
  probe = "hang"               a fault of the device itself, seen once a config has cost a worker
  device = { sm_count = 4 }    fields of DeviceInfo to replace
  [[rule]]                     the first whose `match` (a regular expression) is found in the label applies
    match = "BK=16"
    time_us = 100.0            per launch
    noise_pct = 0.3            standard deviation of a burst
    drift_pct = 0.1            added with every burst of the label
    throttle = [0, 4]          masks of the bursts in turn;  clock_mhz, power_mw likewise constant
    versions = ["2 threads"]   of a reference: the first, unless another of them is asked for
    result = "wrong"           wrong | nan | zero | skip (C untouched) | outside (a guard band) | unstable
    load / launch / burst      a fault at that stage: crash | hang | exception | illegal | refuse
    after = 3                  the fault at `burst` comes after so many bursts
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gemmsweep.device.function import called, imported, task_of, version_of
from gemmsweep.device.host import HostRing, HostSet, make_set
from gemmsweep.device.layout import SetLayout, Stack
from gemmsweep.elements import from_float, to_float
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.errors import UsageError
from gemmsweep.model import DTYPES, Build, DeviceInfo, Launch, Problem
from gemmsweep.protocol import Burst, DeviceFailure, DeviceSpec, Operands
from gemmsweep.references import Function

MOST_LAUNCHES = 4
INFO = DeviceInfo(
    kind="scripted",
    name="Scripted GPU",
    uuid="GPU-00000000-0000-0000-0000-000000000000",
    arch="sm_90",
    sm_count=132,
    memory_bytes=1 << 34,
    l2_bytes=50 << 20,
    max_smem_bytes=232448,
    clock_max_mhz=1980,
    power_limit_w=700.0,
    driver="580.00",
    runtime="CUDA 13.0",
)


@dataclass(frozen=True, slots=True)
class Rule:
    """How labels that match behave."""

    match: str = ""
    time_us: float = 100.0
    noise_pct: float = 0.0
    drift_pct: float = 0.0
    throttle: tuple[int, ...] = ()
    clock_mhz: int | None = 1980
    power_mw: int | None = None
    versions: tuple[str, ...] = ("Scripted 1.0",)
    result: str = ""
    load: str = ""
    launch: str = ""
    burst: str = ""
    after: int = 0

    @staticmethod
    def of(values: Mapping[str, Any]) -> Rule:
        """Raises UsageError for a key there is none of."""
        try:
            rule = Rule(**values)
        except TypeError as error:
            raise UsageError(f"device script: {error}.") from None
        return replace(rule, throttle=tuple(rule.throttle), versions=tuple(rule.versions))


def read_script(path: str) -> dict[str, Any]:
    """Raises UsageError for a script that cannot be read."""
    try:
        text = Path(path).read_text()
        script: dict[str, Any] = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"device script {path}: {error}.") from None
    return script


def fault(kind: str) -> None:
    """Do what a broken kernel does to its process."""
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "hang":
        time.sleep(3600)
    if kind == "exception":
        raise RuntimeError("scripted exception")
    if kind == "illegal":
        raise DeviceFailure("runtime", "an illegal memory access (scripted)", fatal=True)
    if kind == "refuse":
        raise DeviceFailure("launch", "too many resources for one block (scripted)")


def pretend(fields: Mapping[str, Any]) -> DeviceInfo:
    """Raises UsageError for a field DeviceInfo has none of."""
    try:
        return replace(INFO, **fields)
    except TypeError as error:
        raise UsageError(f"device script: {error}.") from None


class ScriptedDevice:
    """Follows its script; its bursts take no time."""

    def __init__(self, spec: DeviceSpec) -> None:
        script = read_script(spec.script)
        fault(script.get("open", ""))
        self._probe = str(script.get("probe", ""))
        self.info = pretend(script.get("device", {}))
        self.xp: Any = np
        self.ring: list[Any] = []
        self._seed = int(script.get("seed", 0))
        self._rules = [Rule.of(values) for values in script.get("rule", [])]
        self._loaded: set[str] = set()
        self._functions: dict[str, Callable[..., Any]] = {}
        self._launches: dict[str, int] = {}
        self._reported: dict[str, int] = {}
        self._bursts: dict[str, int] = {}
        self._calls = 0

    def _rule(self, label: str) -> Rule:
        return next((rule for rule in self._rules if re.search(rule.match, label)), Rule())

    def prepare(self, problem: Problem, a: Any, b: Any, c: Any, l2: str, bias: Any = None) -> None:
        """See Device.prepare."""
        self._loaded, self._launches, self._bursts = set(), {}, {}
        self._problem, self._bias = problem, bias
        self._layout = SetLayout.of(problem)
        self._host_ring = HostRing(self._layout, make_set(self._layout, a, b, c))
        self.ring = self._host_ring.sets

    def operands(self, a: Any, b: Any, c: Any) -> Operands:
        """See Device.operands."""
        return make_set(self._layout, a, b, c)

    def load(self, label: str, build: Build, launch: Launch) -> None:
        """See Device.load; the binary is ignored."""
        fault(self._rule(label).load)
        self._loaded.add(label)

    def load_reference(self, name: str, threads: int, like: str = "") -> tuple[str, tuple[str, ...]]:
        """See Device.load_reference; any name will do."""
        fault(self._rule(name).load)
        self._loaded.add(name)
        versions = self._rule(name).versions
        return (like if like in versions else versions[0]), ("scripted_kernel",)

    def load_function(self, label: str, function: Function) -> tuple[str, tuple[str, ...]]:
        """See Device.load_function: it is called for its results, its times are scripted."""
        self._functions[label] = call = imported(function)
        self._loaded.add(label)
        called(call, label, self._problem, self.ring[0], task_of(self._problem, self._bias))
        return version_of(call, function), ()

    def unload(self, label: str) -> None:
        """See Device.unload."""
        self._loaded.discard(label)
        self._functions.pop(label, None)
        self._launches.pop(label, None)
        self._reported.pop(label, None)

    def launch(self, label: str, operands: Operands) -> None:
        """See Device.launch."""
        assert label in self._loaded
        assert isinstance(operands, HostSet)
        rule = self._rule(label)
        fault(rule.launch)
        if label in self._functions:
            task = task_of(self._problem, self._bias)
            called(self._functions[label], label, self._problem, operands, task)
        elif rule.result != "skip":
            self._write(operands, rule.result)

    def _write(self, operands: HostSet, result: str) -> None:
        p = self._problem
        inputs, out = DTYPES[p.dtype][:2]
        a = to_float(np, operands.a[:, : p.k], inputs, "float32")
        stored_b = to_float(np, operands.b[:, : p.b_columns], inputs, "float32")
        b = stored_b if p.layout == "nn" else stored_b.T
        with np.errstate(all="ignore"):
            product = a @ b
            if p.beta:
                product += np.float32(p.beta) * to_float(np, operands.c[:, : p.n], out, "float32")
            bias = None if self._bias is None else to_float(np, self._bias, out, "float32")
            values = parse_epilogue(p.epilogue).apply(np, product, bias).astype(np.float32)
            self._spoil(operands, values, result)
            operands.c[:, : p.n] = from_float(np, values, out)

    def _spoil(self, operands: HostSet, values: Any, result: str) -> None:
        self._calls += 1
        if result == "wrong":
            values[-1, -1] += 1000
        elif result == "nan":
            values[-1, -1] = np.nan
        elif result == "zero":
            values[...] = 0
        elif result == "unstable":
            values *= 1 + 2.0**-10 * (self._calls % 2)
        elif result == "outside":
            operands.guarded_c[0] = 1

    def calibrate(self, label: str, burst_ms: float) -> float:
        """See Device.calibrate; at most MOST_LAUNCHES launches, because each is computed when replayed."""
        time_us = self._rule(label).time_us
        wanted = math.ceil(burst_ms * 1000 / time_us) if time_us > 0 else 1
        self._launches[label] = min(MOST_LAUNCHES, max(1, wanted))
        self._host_ring.grow(self._launches[label])
        return time_us

    def repeat(self, label: str, of: str, launches: int, reported: int) -> None:
        """See Device.repeat; takes as many launches as asked for, because its bursts compute nothing."""
        assert of in self._loaded
        self._loaded.add(label)
        self._launches[label], self._reported[label] = launches, reported

    def touched(self, label: str) -> int:
        """See Device.touched."""
        return self._launches[label]

    def replay(self, label: str) -> None:
        """See Device.replay."""
        for operands in self.ring[: self._launches[label]]:
            self.launch(label, operands)

    def burst(self, label: str) -> Burst:
        """See Device.burst: scripted time, nothing is run."""
        rule = self._rule(label)
        count = self._bursts.get(label, 0)
        self._bursts[label] = count + 1
        if count >= rule.after:
            fault(rule.burst)
        noise = random.Random(f"{self._seed} {label} {count}").gauss(0.0, rule.noise_pct / 100)
        launches = self._launches[label]
        elapsed_us = launches * rule.time_us * (1 + noise) * (1 + count * rule.drift_pct / 100)
        throttle = rule.throttle[count % len(rule.throttle)] if rule.throttle else None
        reported = self._reported.get(label, launches)
        return Burst(label, round(elapsed_us * 1000), reported, rule.clock_mhz, rule.power_mw, throttle)

    def stacks(self, count: int) -> list[Stack]:
        """See Device.stacks."""
        return self._host_ring.stacks(count)

    def memory_free_bytes(self) -> int:
        """See Device.memory_free_bytes."""
        return self.info.memory_bytes

    def probe(self) -> None:
        """See Device.probe: a fault on a script."""
        fault(self._probe)

    def close(self) -> None:
        """See Device.close."""
        self.ring, self._loaded = [], set()
