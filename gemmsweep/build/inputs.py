"""Hash of everything that reaches the compiler: text, headers, options, files of include directories, compiler, CPU."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gemmsweep.build import cc, toolchain
from gemmsweep.build.compiler import Compiler
from gemmsweep.files import is_file
from gemmsweep.model import Source

FORMAT = 1  # of the key and of cache entries

_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*(?:include|include_next|import)[ \t]*(?:[<"](?P<name>[^>"\n]+)[>"]|(?P<macro>[A-Za-z_]))'
    r'|__has_include(?:_next)?[ \t]*\([ \t]*[<"](?P<probed>[^>"\n]+)[>"]',
    re.MULTILINE,
)
_DIR_OPTION = re.compile(r"(?:-I|--include-path=|-isystem)(.*)", re.DOTALL)


def build_key(source: Source, arch: str, compiler: Compiler) -> str:
    """sha256 (hex) over all that may change the binary; equal keys mean the cached binary is the one wanted."""
    ingredients = {
        "format": FORMAT,
        "name": source.name,  # it is in the log, and in what assert() prints
        "text": source.text,
        "kernels": list(source.kernels),
        "headers": sorted(source.headers.items()),
        "stubs": sorted(source.stubs.items()),
        "instances": list(source.instances),
        "options": list(toolchain.options(source, arch, compiler)),
        "include_dirs": list(source.include_dirs),
        "files": sorted(reached_files(source).items()),
        "compiler": [compiler.kind, compiler.name, compiler.identity, list(compiler.command)],
        "arch": toolchain.target(source, arch),
        "cpu": cc.cpu_model() if source.backend == "cpu" else "",
    }
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()


def reached_files(source: Source) -> dict[str, str]:
    """Files of the include directories that the source may include, directly or not: path → sha256.

    Conditions are ignored, so this may name more than the compiler reads. An include through a macro names no file:
    then every file of the directories counts.
    """
    dirs = [Path(path) for path in (*source.include_dirs, *_option_dirs(source.options))]
    if not dirs:
        return {}
    found: dict[str, str] = {}
    texts = (source.text, *source.headers.values(), *source.stubs.values())
    queue: list[tuple[str, Path | None]] = [(text, None) for text in texts]
    while queue:
        text, home = queue.pop()
        for include in _INCLUDE.finditer(text):
            name = include["name"] or include["probed"]
            paths = _everything(dirs) if include["macro"] else _resolve(name, home, dirs)
            for path in paths:
                if str(path) not in found:
                    content = path.read_bytes()
                    found[str(path)] = hashlib.sha256(content).hexdigest()
                    queue.append((content.decode(errors="replace"), path.parent))
    return found


def _resolve(name: str, home: Path | None, dirs: Sequence[Path]) -> Iterator[Path]:
    if home is not None and is_file(home / name):
        yield home / name
    first = next((path / name for path in dirs if is_file(path / name)), None)
    if first is not None:
        yield first


def _everything(dirs: Sequence[Path]) -> Iterator[Path]:
    for folder in dirs:
        yield from (path for path in folder.rglob("*") if path.is_file())


def _option_dirs(options: Sequence[str]) -> Iterator[str]:
    for index, option in enumerate(options):
        if match := _DIR_OPTION.match(option):
            following = options[index + 1] if index + 1 < len(options) else ""
            yield match[1].strip() or following
