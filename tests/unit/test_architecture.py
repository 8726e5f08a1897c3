"""The shape of the house: who may import whom, what start-up costs, and how big a room may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gemmsweep

PACKAGE = Path(gemmsweep.__file__).parent
# From the bottom up; a module may import from lower rows and from its own package, never from a sibling in its row.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "files", "defined"),
    ("model",),
    ("references", "ranking"),
    ("record", "protocol"),
    ("elements", "epilogue", "analysis", "race", "claim_terms"),
    ("claims",),
    ("template", "counters", "build", "experiment", "store", "report"),
    ("oracle", "device", "plan", "shapes", "environment", "locks"),
    ("check", "estimate", "replay", "blocks", "warmth", "feasible"),
    ("special",),
    ("wrong",),
    ("bench",),
    ("serve",),
    ("link",),
    ("worker",),
    ("entry", "contest"),
    ("ahead", "choose", "session", "verdict", "regimes"),
    ("rivals", "lineup"),
    ("vendor", "aftermath"),
    ("start", "heat"),
    ("finals",),
    ("sweep", "selftest", "verify"),
    ("tune",),
    ("cli",),
    ("__main__",),
)
ONLY_IN = {"cupy": "device/cuda", "pynvml": "counters", "sqlite3": "store", "sqlite_utils": "store", "click": "cli"}


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "_data" not in p.parts)


def part_of(dotted: str) -> str:
    return dotted.split(".")[1] if "." in dotted else ""


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, whether only for type checking) for every import in a file, nested ones included."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in typing_only) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module == "gemmsweep":
            found += [(f"gemmsweep.{alias.name}", id(node) in typing_only) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, id(node) in typing_only))
    return found


def test_imports_point_down() -> None:
    height = {name: level for level, row in enumerate(LAYERS) for name in row}
    wrong = []
    for path in modules():
        relative = path.relative_to(PACKAGE)
        here = relative.parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        for name, typing_only in imports(path):
            there = part_of(name)
            ours = name.startswith("gemmsweep.") and there != here and there in height
            if ours and not typing_only and height[there] >= height[here]:
                wrong.append(f"{relative} imports {name}")
    assert not wrong


def test_every_module_has_a_layer() -> None:
    named = {name for row in LAYERS for name in row}
    assert {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in modules()} - {"__init__"} == named


def test_each_library_has_one_home() -> None:
    wrong = []
    for path in modules():
        relative = path.relative_to(PACKAGE).as_posix()
        for name, _ in imports(path):
            home = ONLY_IN.get(name.split(".")[0])
            if home and not relative.startswith(home):
                wrong.append(f"{relative} imports {name}")
    assert not wrong


def test_every_module_says_what_it_is() -> None:
    silent = []
    for path in modules():
        tree = ast.parse(path.read_text())
        if not ast.get_docstring(tree):
            silent.append(str(path.relative_to(PACKAGE)))
    assert not silent


def test_no_room_is_a_hall() -> None:
    long = {p.name: n for p in modules() if (n := len(p.read_text().splitlines())) > 350}
    assert not long


@pytest.mark.parametrize("module", ["numpy", "cupy", "sqlite_utils", "pynvml", "rich"])
def test_help_does_not_import_heavy_modules(module: str) -> None:
    code = f"import sys, gemmsweep.cli.main; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
