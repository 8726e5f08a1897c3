"""Whether a Python function can be there at all, seen without running its file: importing torch takes seconds."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

# Beside `import *`, what may define names that no statement shows.
DYNAMIC = {"globals", "vars", "locals", "exec", "setattr", "__getattr__", "modules"}


def missing_name(path: Path, name: str) -> list[str] | None:
    """The names that a file defines where `name` is certainly none of them; None where it may be one.

    Raises SyntaxError where it is no Python.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, RecursionError, MemoryError):
        return None  # for the import to tell
    found = set(_bound(tree))
    words = {node.id if isinstance(node, ast.Name) else node.attr for node in ast.walk(tree)
             if isinstance(node, ast.Name | ast.Attribute)}  # fmt: skip
    if name in found or "*" in found or (found | words) & DYNAMIC:
        return None
    return sorted(found)


def _bound(node: ast.AST) -> Iterator[str]:
    """What the statements of a module bind, those in its functions aside, but for their `global`s."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
                yield from (item for inner in ast.walk(child) if isinstance(inner, ast.Global) for item in inner.names)
                continue
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.alias(name=name, asname=given):
                yield given or name.partition(".")[0]
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
        yield from _bound(child)


def spec_of(module: str) -> ModuleSpec | None:
    """Where the first package of a dotted name is, on sys.path or in the working folder; None where it is nowhere."""
    top = module.partition(".")[0]
    importlib.invalidate_caches()  # of a folder that was looked into in the same tick as the file was written
    try:
        return importlib.util.find_spec(top) or PathFinder.find_spec(top, [os.getcwd()])
    except (ValueError, OSError):  # one without a spec is loaded; the working folder is gone
        return ModuleSpec(top, None)
