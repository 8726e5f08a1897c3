"""What a template declares, read and validated; expressions are parsed but not evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gemmsweep.errors import TemplateError, UsageError, choices
from gemmsweep.model import Value
from gemmsweep.template.expressions import Expression

PLACE_NAMES = ("row", "column")  # of an element within its block tile, in [account] warp and lane
SHAPE_NAMES = ("M", "N", "K", "lda", "ldb", "ldc")
TYPE_NAMES = ("sizeof_in", "sizeof_out", "is_nt", "is_fp32", "is_tf32", "is_fp16", "is_bf16")
DEVICE_NAMES = {"cuda": ("max_smem_bytes", "sm_count", "compute_capability"), "cpu": ("cores",)}
BODY_KEYS = {
    "cuda": ("IN", "OUT", "B_NT", "IS_TF32", "EPILOGUE", "STATIC_ASSERTS"),
    "cpu": ("IN", "OUT", "B_NT", "IS_TF32", "STATIC_ASSERTS"),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing a user may vary. Values are integers, or names, of which the kernel sees the index."""

    name: str
    default: Value
    values: tuple[Value, ...]
    meaning: str = ""

    @property
    def is_named(self) -> bool:
        return isinstance(self.values[0], str)

    def number(self, value: Value) -> int:
        """The integer that stands for `value` in expressions and in the kernel. Raises UsageError."""
        if self.is_named:
            if value not in self.values:
                raise UsageError(choices(f"{self.name} value", str(value), [str(allowed) for allowed in self.values]))
            return self.values.index(value)
        if isinstance(value, str) or value < 0:
            raise UsageError(f"{self.name} = {value!r} is not an integer of 0 or more. Declared: {self.listing}.")
        return value

    def read(self, text: str) -> Value:
        """A value as typed on the command line; integers beyond the declared ones are for the constraints to judge."""
        value: Value = text if self.is_named or not text.isdecimal() else int(text)
        self.number(value)
        return value

    @property
    def listing(self) -> str:
        return ", ".join(str(value) for value in self.values)


@dataclass(frozen=True, slots=True)
class Constraint:
    expression: Expression
    why: str


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel argument: a word ("A"), or `workspace` or `tensor_map` with a name, or `i32` or `i64` with a value."""

    word: str
    name: str = ""
    expression: Expression | None = None


@dataclass(frozen=True, slots=True)
class DeclaredStep:
    kernel: str
    args: tuple[Argument, ...]
    grid: tuple[Expression, ...] = ()  # x, y, z as far as given; a CPU template has none
    block: tuple[Expression, ...] = ()
    smem_bytes: Expression | None = None
    when: Expression | None = None  # None: always


@dataclass(frozen=True, slots=True)
class DeclaredWorkspace:
    name: str
    bytes: Expression
    zero: str
    when: Expression | None = None


@dataclass(frozen=True, slots=True)
class DeclaredTensorMap:
    name: str
    operand: str  # "A", "B", "C", "D" or "workspace:NAME"
    box: tuple[Expression, ...]
    swizzle: Expression
    promotion: Expression
    extent: tuple[Expression, ...] = ()  # columns and rows of a workspace
    ld: Expression | None = None  # of a workspace, in elements
    when: Expression | None = None

    @property
    def workspace(self) -> str:
        """The workspace it is of; "" for an operand."""
        return self.operand.partition(":")[2]


@dataclass(frozen=True, slots=True)
class DeclaredAccuracy:
    """Configs that round more than the problem asks for: each product by 1/unit of itself, `terms` times over."""

    acc: str
    unit: Expression
    terms: Expression
    when: Expression | None = None


@dataclass(frozen=True, slots=True)
class DeclaredStart:
    """Values that do well together, the others at their defaults: where a search may start as well."""

    values: Mapping[str, Value]
    when: Expression | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """Expressions that only inform: what one config costs before anything is compiled."""

    unit: str = ""
    accumulators: Expression | None = None  # per thread
    stage_bytes: Expression | None = None  # one shared-memory stage
    tiles: Expression | None = None  # CTAs that a launch has work for, where its grid says another number
    warp: Expression | None = None  # the warp, and its lane, that store element (row, column) of a block tile
    lane: Expression | None = None


@dataclass(frozen=True, slots=True)
class KernelTable:
    """How parameters reach a kernel: "substitute" ($KEYS), "define" (macros) or "template" (C++ template arguments)."""

    name: str = "gemm"
    bind: str = "substitute"
    include_dirs: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """One kernel file and everything its header says."""

    name: str
    path: Path  # of the source
    sidecar: Path | None
    summary: str
    backend: str
    arch: str  # "sm_80+", "sm_90a"; "" for CPU
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    deterministic: bool | Expression  # whether two runs give the same bits
    reads_c: bool
    requires: tuple[Expression, ...]
    parameters: tuple[Parameter, ...]
    derived: Mapping[str, Expression]  # in the order of evaluation
    constraints: tuple[Constraint, ...]
    steps: tuple[DeclaredStep, ...]
    workspaces: tuple[DeclaredWorkspace, ...]
    tensor_maps: tuple[DeclaredTensorMap, ...]
    accuracies: tuple[DeclaredAccuracy, ...]  # the first whose `when` holds
    starts: tuple[DeclaredStart, ...]
    account: Account
    kernel: KernelTable
    header_text: str  # the TOML
    body: str  # what is rendered
    body_line: int  # line of the source at which the body starts
    text: str  # the whole source
    headers: Mapping[
        str, str
    ]  # name as included → text, of the headers found beside it and in kernel_templates/include
    source_sha256: str  # of source, sidecar and headers

    @property
    def constants(self) -> dict[str, int]:
        """The names of enumerated values, usable in expressions."""
        named = [parameter for parameter in self.parameters if parameter.is_named]
        return {str(value): index for parameter in named for index, value in enumerate(parameter.values)}

    @property
    def takes_epilogue(self) -> bool:
        return self._passes("epilogue")

    @property
    def takes_beta(self) -> bool:
        return self._passes("beta") or self._passes("epilogue")

    @property
    def leading_dimensions(self) -> frozenset[str]:
        """Those of `lda`, `ldb` and `ldc` that reach the kernel, by argument or tensor map, or that `requires` speaks of."""
        passed = [a.expression.names for step in self.steps for a in step.args if a.expression is not None]
        named = self.behind(name for names in (*passed, *(r.names for r in self.requires)) for name in names)
        mapped = {{"A": "lda", "B": "ldb"}.get(item.operand, "ldc") for item in self.tensor_maps if not item.workspace}
        return frozenset(("lda", "ldb", "ldc")) & (named | mapped)

    def _passes(self, word: str) -> bool:
        return any(argument.word == word for step in self.steps for argument in step.args)

    def parameter(self, name: str) -> Parameter:
        """Raises TemplateError naming the parameters there are."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        known = ", ".join(parameter.name for parameter in self.parameters) or "none"
        raise TemplateError(f"template {self.name!r} has no parameter {name!r}. It has: {known}.")

    def defaults(self) -> dict[str, Value]:
        return {parameter.name: parameter.default for parameter in self.parameters}

    def target(self, device_arch: str) -> str | None:
        """What to compile for on a device of `device_arch` ("sm_90"); None where the template cannot run there."""
        if self.backend == "cpu":
            return device_arch
        if self.arch.endswith("+"):
            return device_arch if arch_number(device_arch) >= arch_number(self.arch) else None
        # An arch-specific feature set ("sm_90a") belongs to the devices of exactly that number.
        return self.arch if device_arch in (self.arch, self.arch.rstrip("af")) else None

    def archive(self) -> str:
        """Everything that `source_sha256` covers as one text: the source, its sidecar, its headers."""
        parts = [] if self.sidecar is None else [(self.sidecar.name, self.header_text)]
        parts += sorted(self.headers.items())
        return self.text + "".join(f"\n// ---- {name}\n{text}" for name, text in parts)

    def behind(self, names: Iterable[str]) -> frozenset[str]:
        """`names` and every name that derived values among them are made of."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting.extend(self.derived[name].names if name in self.derived else ())
        return frozenset(found)


def arch_number(arch: str) -> int:
    """90 for "sm_90", "sm_90a" and "sm_90+"; 0 where it is no CUDA architecture."""
    digits = "".join(character for character in arch.removeprefix("sm_") if character.isdecimal())
    return int(digits) if arch.startswith("sm_") and digits else 0
