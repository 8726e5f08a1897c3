"""experiments/*.toml → Experiment: problems, template, what is held and varied, and what the source claims."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmsweep.errors import ProblemError, UsageError, choices
from gemmsweep.model import DTYPES, LAYOUTS

KEYS = ("summary", "template", "problems", "dtype", "layout", "vary", "set", "start", "passes", "l2", "regime", "claim")
REGIMES = ("auto", "equal-clock", "own-power", "burst", "all")
DTYPE_ALIASES = {
    "f32": "fp32", "float": "fp32", "float32": "fp32", "single": "fp32",
    "f16": "fp16", "half": "fp16", "float16": "fp16",
    "bfloat16": "bf16",
    "tensorfloat32": "tf32",
}  # fmt: skip
SHAPE = re.compile(r"^\s*(\d+)\s*[x×,*]\s*(\d+)\s*[x×,*]\s*(\d+)\s*$", re.IGNORECASE)
MAX_SIZE = 1 << 31


def parse_shape(text: str) -> tuple[int, int, int]:
    """`MxNxK` → (m, n, k); raises ProblemError unless it is three positive integers."""
    match = SHAPE.match(text)
    sizes = tuple(int(part) for part in match.groups()) if match and len(text) < 80 else ()
    if len(sizes) != 3 or not all(0 < size <= MAX_SIZE for size in sizes):
        raise ProblemError(
            f"shape {text!r} is not three positive integers up to 2^31, as in 4096x4096x4096 (M x N x K)."
        )
    return sizes[0], sizes[1], sizes[2]


def parse_dtype(text: str) -> str:
    """Short name of a dtype or one of its aliases; raises ProblemError."""
    name = DTYPE_ALIASES.get(text.lower(), text.lower())
    if name not in DTYPES:
        raise ProblemError(choices("dtype", text, tuple(DTYPES)))
    return name


def parse_layout(text: str) -> str:
    """Raises ProblemError; a bare `tn` means different things to different people."""
    name = text.lower()
    if name == "tn":
        raise ProblemError(
            "layout 'tn' is BLAS's name, in column-major words, for what is 'nt' here: A row-major (m, k), B stored (n, k). "
            "Say --layout nt."
        )
    if name not in LAYOUTS:
        raise ProblemError(choices("layout", text, LAYOUTS))
    return name


@dataclass(frozen=True, slots=True)
class Experiment:
    """What an experiment file asks for; empty and None mean: not said, take the command's default."""

    name: str
    summary: str = ""
    template: str | None = None
    problems: tuple[tuple[int, int, int], ...] = ()
    dtype: str | None = None
    layout: str | None = None
    vary: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    start: str | None = None
    passes: int = 1
    l2: str = "cold"
    regime: str = "auto"
    claims: tuple[Mapping[str, Any], ...] = ()


def experiments_dir() -> Path:
    """Packaged experiments first, then the checkout's."""
    package = Path(__file__).parent
    packaged = package / "_data" / "experiments"
    return packaged if packaged.is_dir() else package.parent / "experiments"


def find_experiment(name_or_path: str) -> Experiment:
    """By name from experiments/, or from a file; raises UsageError naming the experiments there are."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = experiments_dir() / f"{name_or_path}.toml"
    if not path.is_file():
        known = tuple(sorted(p.stem for p in experiments_dir().glob("*.toml")))
        raise UsageError(choices("experiment", name_or_path, known) + " Or give the path of a .toml file.")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise UsageError(f"experiment {str(path)!r} cannot be read: {error}.") from None
    return from_table(path.stem, table)


def from_table(name: str, table: Mapping[str, Any]) -> Experiment:
    """Validate every key; raises UsageError."""

    def texts(key: str) -> tuple[str, ...]:
        value = table.get(key, [])
        items: Sequence[Any] = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise UsageError(f"experiment '{name}': {key} must be a string or a list of strings.")
        return tuple(items)

    def text(key: str) -> str | None:
        value = table.get(key)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"experiment '{name}': {key} must be a string.")
        return value

    for key in table:
        if key not in KEYS:
            raise UsageError(f"experiment '{name}': " + choices("key", key, KEYS))
    held = table.get("set", {})
    if not isinstance(held, dict) or not all(
        isinstance(v, (int, str)) and not isinstance(v, bool) for v in held.values()
    ):
        raise UsageError(f"experiment '{name}': set must be a table of integers and strings.")
    passes = table.get("passes", 1)
    claims = table.get("claim", [])
    if not isinstance(passes, int) or isinstance(passes, bool) or not 1 <= passes <= 100:
        raise UsageError(f"experiment '{name}': passes must be an integer from 1 to 100.")
    if not isinstance(claims, list) or not all(isinstance(c, dict) for c in claims):
        raise UsageError(f"experiment '{name}': claim must be written as [[claim]] tables.")
    l2, regime, dtype, layout = text("l2") or "cold", text("regime") or "auto", text("dtype"), text("layout")
    if l2 not in ("cold", "hot"):
        raise UsageError(f"experiment '{name}': " + choices("l2", l2, ("cold", "hot")))
    if regime not in REGIMES:
        raise UsageError(f"experiment '{name}': " + choices("regime", regime, REGIMES))
    return Experiment(
        name=name,
        summary=text("summary") or "",
        template=text("template"),
        problems=tuple(parse_shape(shape) for shape in texts("problems")),
        dtype=None if dtype is None else parse_dtype(dtype),
        layout=None if layout is None else parse_layout(layout),
        vary=texts("vary"),
        held=tuple(f"{k}={v}" for k, v in held.items()),
        start=text("start"),
        passes=passes,
        l2=l2,
        regime=regime,
        claims=tuple(claims),
    )
