"""The nouns of gemmsweep as frozen dataclasses, and the protocol a device speaks. No I/O, no third-party imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Value = int | str
Config = Mapping[str, Value]
Status = Literal["ok", "constraint", "compile", "launch", "runtime", "timeout", "incorrect", "unstable", "unfinished"]
STATUSES: tuple[Status, ...] = (
    "ok", "constraint", "compile", "launch", "runtime", "timeout", "incorrect", "unstable", "unfinished",
)  # fmt: skip

# Short dtype name → (type of A and B, type of C, bytes of one input element, bytes of one output element).
DTYPES: dict[str, tuple[str, str, int, int]] = {
    "fp32": ("fp32", "fp32", 4, 4),
    "tf32": ("fp32", "fp32", 4, 4),
    "fp16": ("fp16", "fp16", 2, 2),
    "bf16": ("bf16", "bf16", 2, 2),
}
LAYOUTS = ("nn", "nt")


@dataclass(frozen=True, slots=True)
class Problem:
    """C = epilogue(alpha·A·B + beta·C). A is (m, k); B is (k, n) or, for layout "nt", stored (n, k); C is (m, n).

    All row-major; lda, ldb, ldd are leading dimensions in elements (`Problem.of` fills in the tight ones).
    """

    m: int
    n: int
    k: int
    dtype: str
    layout: str
    lda: int
    ldb: int
    ldd: int
    beta: float = 0.0
    epilogue: str = "none"
    acc: str = "fp32"
    batch: int = 1

    @staticmethod
    def of(
        m: int,
        n: int,
        k: int,
        dtype: str = "fp32",
        layout: str = "nn",
        *,
        lda: int = 0,
        ldb: int = 0,
        ldd: int = 0,
        beta: float = 0.0,
        epilogue: str = "none",
    ) -> Problem:
        """A problem whose unnamed (0) leading dimensions are tight."""
        return Problem(m, n, k, dtype, layout, lda or k, ldb or (n if layout == "nn" else k), ldd or n, beta, epilogue)

    @property
    def sizeof_in(self) -> int:
        return DTYPES[self.dtype][2]

    @property
    def sizeof_out(self) -> int:
        return DTYPES[self.dtype][3]

    @property
    def b_rows(self) -> int:
        """Rows of B as stored."""
        return self.k if self.layout == "nn" else self.n

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def compulsory_bytes(self) -> int:
        """Each input read once, C written once (and read once where beta is not 0)."""
        inputs = (self.m * self.k + self.k * self.n) * self.sizeof_in
        return inputs + self.m * self.n * self.sizeof_out * (2 if self.beta else 1)

    @property
    def buffer_bytes(self) -> int:
        """What one set of A, B and C takes in memory, padding of rows included."""
        return (self.m * self.lda + self.b_rows * self.ldb) * self.sizeof_in + self.m * self.ldd * self.sizeof_out

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    def __str__(self) -> str:
        text = f"{self.shape} {self.dtype} {self.layout}"
        return text if self.epilogue == "none" else f"{text} {self.epilogue}"


@dataclass(frozen=True, slots=True)
class Inputs:
    """How the operands are filled; part of a run's identity, because zeros run 13% faster than random data."""

    distribution: str = "normal"
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.distribution}(seed={self.seed})"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One GPU or CPU. Absent facts are None (0 is a value)."""

    kind: str  # "cuda", "cpu" or "scripted"
    name: str
    uuid: str
    arch: str  # "sm_90"; a CPU: its machine name, "x86_64"
    sm_count: int  # a CPU: cores this process may use
    memory_bytes: int
    l2_bytes: int
    max_smem_bytes: int = 0  # most shared memory of one block, opt-in
    clock_max_mhz: int | None = None
    power_limit_w: float | None = None
    mig: str | None = None
    driver: str | None = None  # NVIDIA driver version; a CPU: None
    runtime: str | None = None  # "CUDA 13.0"; a CPU: the kernel release
    index: int = 0

    @property
    def device_class(self) -> str:
        """Devices whose results may stand in one ranking."""
        limit = "" if self.power_limit_w is None else f" {self.power_limit_w:.0f}W"
        mig = f" MIG {self.mig}" if self.mig else ""
        machine = f" {self.uuid}" if self.kind == "cpu" else ""
        return f"{self.name}{mig} x{self.sm_count}{limit}{machine}"


@dataclass(frozen=True, slots=True)
class Workspace:
    """Device memory a kernel needs beside its operands. `zero`: "never", "once" (after allocation) or "each" launch."""

    name: str
    bytes: int
    zero: str = "never"


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A TMA descriptor of one operand; box in elements, innermost first; swizzle and promotion in bytes."""

    name: str
    operand: str
    box: tuple[int, ...]
    swizzle: int = 0
    promotion: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel launch, everything evaluated. `args` are words of docs/templates.md, `i64:4096` with its value."""

    kernel: str  # symbol in the binary, or the name expression the build lowers
    args: tuple[str, ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    smem_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """How one config of a template is launched on one problem."""

    steps: tuple[Step, ...]
    workspaces: tuple[Workspace, ...] = ()
    tensor_maps: tuple[TensorMap, ...] = ()
    deterministic: bool = True
    reads_c: bool = False  # the kernel reads C even where beta is 0
    threads: int = 1  # CPU: threads the kernel starts; the reference gets as many


@dataclass(frozen=True, slots=True)
class Source:
    """What reaches the compiler: rendered text, the kernels wanted from it, headers by name, options."""

    backend: str  # "cuda" or "cpu"
    text: str
    kernels: tuple[str, ...]  # symbols or C++ name expressions
    headers: Mapping[str, str] = field(default_factory=dict)  # include name → text
    options: tuple[str, ...] = ()  # beyond the backend's own
    include_dirs: tuple[str, ...] = ()  # of users' kernels; their contents are hashed by the build
    compiler: str = "auto"
    name: str = "kernel.cu"  # the file that the compiler's messages name


@dataclass(frozen=True, slots=True)
class Build:
    """What the compiler said. `ok` is False when it refused; then `reason` is its first complaint."""

    ok: bool
    key: str  # hash of everything that reached the compiler
    compiler: str  # "nvrtc 13.0", "gcc 12.2.0"
    arch: str
    options: tuple[str, ...]
    path: str = ""  # the cached binary
    reason: str = ""
    log: str = ""
    symbols: Mapping[str, str] = field(default_factory=dict)  # kernel as asked for → symbol in the binary
    registers: int | None = None  # per thread, the largest of the kernels
    spill_bytes: int | None = None
    smem_bytes: int | None = None  # static shared memory
    compile_ms: float | None = None  # None when it came from the cache and the first compile's time is unknown
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Errors:
    """How far a result lies from the fp64 oracle; `max_scaled` is in units of the allowed elementwise bound."""

    max_scaled: float
    rel_fro: float
    rel_fro_vendor: float | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """A verdict on numbers: `status` is ok, incorrect or unstable; `reason` says where and by how much."""

    status: Status
    reason: str = ""
    errors: Errors | None = None


@dataclass(frozen=True, slots=True)
class Burst:
    """One timed burst of `launches` launches, and the device's state around it."""

    label: str
    burst_ns: int
    launches: int
    sm_clock_mhz: int | None = None  # effective, from stamps inside the burst
    power_mw: int | None = None  # NVML: an average over about a second
    throttle: int | None = None  # NVML clocks-event-reasons bit mask


@dataclass(frozen=True, slots=True)
class Counter:
    """A reading with unit and basis: "nvml", "gpm", "ncu", "stamp" or "account". None: not measured, never 0."""

    name: str
    value: float | None
    unit: str
    basis: str


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Which device a worker opens: kind "cuda", "cpu" or "scripted" (then `script` is a file of tests)."""

    kind: str
    index: int = 0
    uuid: str = ""
    script: str = ""


class Operands(Protocol):
    """One set of device buffers. `a`, `b`, `c` are 2-D arrays (rows, leading dimension) of the storage type."""

    @property
    def a(self) -> Any: ...
    @property
    def b(self) -> Any: ...
    @property
    def c(self) -> Any: ...
    @property
    def guarded_c(self) -> Any:
        """Flat: guard band, c, guard band."""


class Device(Protocol):
    """What check and race need of a device. Lives in the worker process only; any method may raise DeviceFailure."""

    info: DeviceInfo
    xp: Any  # numpy or cupy
    ring: list[Operands]  # buffer sets with equal contents; a burst touches each at most once per L2 scrub

    def prepare(self, problem: Problem, a: Any, b: Any, c: Any, l2: str, bias: Any = None) -> None:
        """Take a problem: fill the first buffer set from `a`, `b`, `c` (shapes as in Operands), free what was before.

        `bias` is a vector of the output's storage type for epilogues that add one, on the device; None where none does.
        """

    def operands(self, a: Any, b: Any, c: Any) -> Operands:
        """A further buffer set outside the ring."""

    def load(self, label: str, build: Build, launch: Launch) -> None:
        """Load a binary under a label."""

    def load_reference(self, name: str, threads: int) -> tuple[str, tuple[str, ...]]:
        """Load a vendor library's product under the label `name`; returns its version and the names of the kernels it runs."""

    def unload(self, label: str) -> None: ...

    def launch(self, label: str, operands: Operands) -> None:
        """Run once on one buffer set and wait."""

    def calibrate(self, label: str, burst_ms: float) -> float:
        """Estimate µs per launch, then make the label's burst of at least `burst_ms` ready (growing the ring)."""

    def repeat(self, label: str, of: str, launches: int, reported: int) -> None:
        """Make `label` a further name of the loaded `of`, with a burst of `launches` launches that reports `reported`.

        More launches than are reported make a label slower by a known amount. Raises DeviceFailure where memory holds
        too few untouched buffer sets.
        """

    def touched(self, label: str) -> int:
        """How many sets of the ring, from the first, the label's burst uses."""

    def stacks(self, count: int) -> Sequence[Any]:
        """The first `count` sets of the ring as few objects with `c` (sets, m, ldd) and `guarded_c` (sets, elements).

        Views, so that hundreds of sets are poisoned and compared by a handful of operations.
        """

    def replay(self, label: str) -> None:
        """Run the label's burst once and wait, untimed."""

    def burst(self, label: str) -> Burst:
        """Run the label's burst once, timed, after an L2 scrub where the problem asks for it."""

    def memory_free_bytes(self) -> int: ...

    def close(self) -> None: ...


class DeviceFailure(Exception):
    """A config failed on the device. `fatal`: the context is lost and the worker must be replaced."""

    def __init__(self, status: Status, reason: str, *, fatal: bool = False) -> None:
        super().__init__(reason)
        self.status: Status = status
        self.reason = reason
        self.fatal = fatal
