"""The nouns of gemmsweep as frozen dataclasses: problems, devices, launches, builds, verdicts on numbers. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

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
PROBLEM_ACC = "fp32"  # how a problem wants its products summed


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
    acc: str = PROBLEM_ACC
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
    def b_columns(self) -> int:
        """Elements in a row of B as stored, padding aside."""
        return self.n if self.layout == "nn" else self.k

    @property
    def tight(self) -> dict[str, int]:
        """The least that each leading dimension can be: rows without padding."""
        return {"lda": self.k, "ldb": self.b_columns, "ldd": self.n}

    @property
    def is_plain(self) -> bool:
        """A product and nothing else: neither beta nor an epilogue."""
        return self.epilogue == "none" and not self.beta

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


PROBLEM_FIELDS = tuple(one.name for one in fields(Problem))  # two problems that agree in all of them are the same


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


OPERANDS = ("A", "B", "C", "D")


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A TMA descriptor of an operand or a workspace; box in elements, innermost first; swizzle and promotion in bytes."""

    name: str
    operand: str  # "A", "B", "C", "D" or "workspace:NAME"
    box: tuple[int, ...]
    swizzle: int = 0
    promotion: int = 0
    extent: tuple[int, ...] = ()  # of a workspace: columns and rows
    ld: int = 0  # of a workspace, in elements


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How products are summed: each may be off by 1/unit of itself, `terms` times over, beyond fp32. unit 0: by nothing."""

    acc: str = PROBLEM_ACC
    unit: int = 0
    terms: int = 1

    @property
    def per_product(self) -> float:
        """The most that one product may be off, as a share of itself."""
        return self.terms / self.unit if self.unit else 0.0

    @property
    def typical(self) -> float:
        """About how far a sum of random products is off: independent roundings add up as a square root."""
        return math.sqrt(self.terms) / self.unit if self.unit else 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel launch, everything evaluated. `args` are words of docs/templates.md, `i64:4096` with its value.

    What a config leaves out is passed as `null` (a pointer) or `null_map` (128 zero bytes).
    """

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
    threads: int = 1  # CPU: threads the kernel starts; the reference gets the most of a race's
    accuracy: Accuracy = Accuracy()

    @property
    def main(self) -> Step:
        """The step that multiplies, as far as one can tell: the one with the most shared memory, then threads."""
        return max(self.steps, key=lambda step: (step.smem_bytes, math.prod(step.block)))


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
    stubs: Mapping[str, str] = field(default_factory=dict)  # host headers, for NVRTC; nvcc has real ones
    instances: tuple[str, ...] = ()  # lines that instantiate templates, for nvcc, which lowers no names


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
    between_launches: float | None = None  # largest difference on equal data, in the same units; None: bits must agree


@dataclass(frozen=True, slots=True)
class Checked:
    """A verdict on numbers: `status` is ok, incorrect or unstable; `reason` says where and by how much."""

    status: Status
    reason: str = ""
    errors: Errors | None = None
