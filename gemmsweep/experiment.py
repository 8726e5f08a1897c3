"""experiments/*.toml → Experiment: problems, template, what is held and varied, and what the source claims."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gemmsweep.claim_terms import Claim, parse_claim
from gemmsweep.epilogue import parse_epilogue
from gemmsweep.errors import ProblemError, UsageError, choices
from gemmsweep.model import DTYPES, LAYOUTS

PART_KEYS = ("template", "problems", "dtype", "layout", "epilogue", "vary", "set", "start", "passes", "l2", "regime")
KEYS = ("summary", *PART_KEYS, "part", "claim")
REGIMES = ("auto", "equal-clock", "own-power", "burst", "all")
DTYPE_ALIASES = {
    "f32": "fp32", "float": "fp32", "float32": "fp32", "single": "fp32",
    "f16": "fp16", "half": "fp16", "float16": "fp16",
    "bfloat16": "bf16",
    "tensorfloat32": "tf32",
}  # fmt: skip
SHAPE = re.compile(r"^\s*(\d+)\s*[x×,*]\s*(\d+)\s*[x×,*]\s*(\d+)\s*$", re.IGNORECASE)
MAX_SIZE = 1 << 31
MOST_PROBLEMS = 10_000  # of one experiment


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
    epilogue: str = "none"
    vary: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    start: str | None = None
    passes: int = 1
    l2: str = "cold"
    regime: str = "auto"
    claims: tuple[Claim, ...] = ()
    parts: tuple[Experiment, ...] = ()

    @property
    def each(self) -> tuple[Experiment, ...]:
        """What is to be run: the parts, or the file as a whole where it has none."""
        return self.parts or (self,)


def experiments_dir() -> Path:
    """Packaged experiments first, then the checkout's."""
    package = Path(__file__).parent
    packaged = package / "_data" / "experiments"
    return packaged if packaged.is_dir() else package.parent / "experiments"


def names() -> tuple[str, ...]:
    """The experiments that come with gemmsweep."""
    return tuple(sorted(path.stem for path in experiments_dir().glob("*.toml")))


def with_claims(name: str | None) -> list[Experiment]:
    """The experiments that state claims, or the one of this name; raises UsageError where it states none."""
    found = [find_experiment(one) for one in ((name,) if name else names())]
    if name and not found[0].claims:
        raise UsageError(f"experiment '{name}' states no claims: add [[claim]] tables to it.")
    return [experiment for experiment in found if experiment.claims]


def find_experiment(name_or_path: str) -> Experiment:
    """By name from experiments/, or from a file; raises UsageError naming the experiments there are."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = experiments_dir() / f"{name_or_path}.toml"
    if not path.is_file():
        raise UsageError(choices("experiment", name_or_path, names()) + " Or give the path of a .toml file.")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:  # also a number of 5,000 digits
        raise UsageError(f"experiment {str(path)!r} cannot be read: {error}.") from None
    return from_table(path.stem, table)


def from_table(name: str, table: Mapping[str, Any]) -> Experiment:
    """Validate every key; raises UsageError. A part takes what it doesn't say from the top of the file."""
    for key in table:
        if key not in KEYS:
            raise UsageError(f"experiment '{name}': " + choices("key", key, KEYS))
    claims = tuple(parse_claim(name, one) for one in _tables(name, table, "claim"))
    ids = [claim.id for claim in claims]
    for one in ids:
        if ids.count(one) > 1:
            raise UsageError(f"experiment '{name}': claim {one!r} is there twice. Tell them apart: {one}a, {one}b.")
    common = {key: value for key, value in table.items() if key in PART_KEYS}
    whole = _part(name, common)
    parts = []
    for part in _tables(name, table, "part"):
        for key in part:
            if key not in PART_KEYS:
                raise UsageError(f"experiment '{name}': " + choices("key of a part", key, PART_KEYS))
        own = part if "set" not in part else {**part, "set": {**common.get("set", {}), **_held(name, part)}}
        parts.append(_part(name, {**common, **own}))
    summary = _text(name, table, "summary") or ""
    return replace(whole, summary=summary, claims=claims, parts=tuple(parts))


def _part(name: str, table: Mapping[str, Any]) -> Experiment:
    for key in PART_KEYS:
        if table.get(key) == "":
            raise UsageError(f"experiment '{name}': {key} has an empty value: give it one, or leave {key} out.")
    text, texts = partial(_text, name, table), partial(_texts, name, table)
    passes = table.get("passes", 1)
    if not isinstance(passes, int) or isinstance(passes, bool) or not 1 <= passes <= 100:
        raise UsageError(f"experiment '{name}': passes must be an integer from 1 to 100.")
    l2, regime, dtype, layout = text("l2") or "cold", text("regime") or "auto", text("dtype"), text("layout")
    if l2 not in ("cold", "hot"):
        raise UsageError(f"experiment '{name}': " + choices("l2", l2, ("cold", "hot")))
    if regime not in REGIMES:
        raise UsageError(f"experiment '{name}': " + choices("regime", regime, REGIMES))
    problems = texts("problems")
    if len(problems) > MOST_PROBLEMS:
        raise UsageError(
            f"experiment '{name}': {len(problems)} problems, more than {MOST_PROBLEMS}. Give a list: --shapes."
        )
    return Experiment(
        name=name,
        template=text("template"),
        problems=tuple(dict.fromkeys(parse_shape(shape) for shape in problems)),
        dtype=None if dtype is None else parse_dtype(dtype),
        layout=None if layout is None else parse_layout(layout),
        epilogue=str(parse_epilogue(text("epilogue") or "none")),
        vary=texts("vary"),
        held=tuple(f"{k}={v}" for k, v in _held(name, table).items()),
        start=text("start"),
        passes=passes,
        l2=l2,
        regime=regime,
    )


def _text(name: str, table: Mapping[str, Any], key: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"experiment '{name}': {key} must be a string.")
    return value


def _texts(name: str, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    items: Sequence[Any] = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"experiment '{name}': {key} must be a string or a list of strings.")
    return tuple(items)


def _tables(name: str, table: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UsageError(f"experiment '{name}': {key} must be written as [[{key}]] tables.")
    return found


def _held(name: str, table: Mapping[str, Any]) -> dict[str, int | str]:
    held = table.get("set", {})
    if not isinstance(held, dict) or not all(
        isinstance(v, (int, str)) and not isinstance(v, bool) for v in held.values()
    ):
        raise UsageError(f"experiment '{name}': set must be a table of integers and strings.")
    return held
