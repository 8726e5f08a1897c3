"""What is written down: the environment, a sweep's start, its attempts, measurements and outcome. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gemmsweep.model import PROBLEM_ACC, Build, Config, DeviceInfo, Errors, Inputs, Problem, Status, Value


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and software of a measurement; equal environments are one row."""

    device: DeviceInfo
    gemmsweep_version: str
    commit: str | None  # of the checkout gemmsweep runs from; "-dirty" appended where it has changes
    python: str
    packages: Mapping[str, str]  # versions of cupy, numpy, nvmath-python, …
    host: str


@dataclass(frozen=True, slots=True)
class SweepStart:
    """One axis about to be raced (or, with kind "finals", the race after selection)."""

    session_id: str  # UUIDv7 of the command; its sweeps share it
    request_key: str  # hash of what the user asked: the same request resumes, or shows what it found
    position: int  # 0, 1, … within the session
    kind: str  # "axis" or "finals"
    experiment: str | None
    template: str  # "" for finals over several templates
    problem: Problem
    inputs: Inputs
    varied: str | None  # None for finals and single configs
    values: tuple[Value, ...]
    start: Config
    start_origin: str  # "template defaults", "run 0192a3b4 of 2026-11-29"
    regime: str  # "equal-clock", "own-power", "burst"
    l2: str  # "cold", "hot"
    protocol: str  # "rounds", "alone"
    command: str  # the line that reproduces it


@dataclass(frozen=True, slots=True)
class Attempt:
    """One config (or reference) of a sweep: what became of it before and at the race. One row of `runs`."""

    label: str  # unique within the sweep: "BK=16", "cublas"
    role: str  # "config" or "reference"
    status: Status
    template: str = ""
    source_sha256: str = ""  # template and includes
    config: Config = field(default_factory=dict)
    reason: str = ""
    build: Build | None = None
    launch: Mapping[str, Any] | None = None  # `Launch` as plain JSON: grid, block, arguments in order
    errors: Errors | None = None
    smem_bytes: int | None = None  # dynamic and static, per block
    occupancy_pct: float | None = None
    limiter: str | None = None
    version: str | None = None  # a reference: library version
    kernels: tuple[str, ...] = ()  # a reference: names of the kernels it launched
    peak_tflops: float | None = None  # nameplate of the device for this dtype, quoted at `peak_clock_mhz`
    peak_clock_mhz: int | None = None
    peak_gbps: float | None = None  # nameplate memory bandwidth
    acc: str = PROBLEM_ACC  # how products are summed, see `ranking.is_ranked`


@dataclass(frozen=True, slots=True)
class Relation:
    """A label against a reference, from the same rounds. ratio = reference time / kernel time: above 1, faster."""

    ratio: float
    ci95: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a finished race says of one label. Times are per launch, in nanoseconds."""

    rounds: int
    launches: int  # per burst
    median_ns: float
    ci95_ns: tuple[float, float]
    left_early: bool = False  # certainly slow, left the race after five rounds
    relations: Mapping[str, Relation] = field(default_factory=dict)  # reference label → relation
    joules: float | None = None  # per launch


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished sweep decided, and why."""

    verdict: str  # "winner", "tie", "undecided", "none" (nothing raced)
    winner: str | None  # label: the winner, or of a tie the label kept
    ties: tuple[str, ...]  # of a tie or undecided: the leader, and the labels not told apart from it
    margin_pct: float | None  # leader over the next raced config; of a tie or undecided: the uncertainty
    pairs_different: int
    contended: bool
    stopped: str | None  # "decided", "narrow", "time"
    adopted: bool  # the start of what follows changed
    measurements: Mapping[str, Measurement]  # by label, references included
