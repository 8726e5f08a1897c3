"""The best kernels as a directory: self-contained sources, launch.json that says how to launch them, and a README."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from gemmsweep.errors import NothingToShow, UsageError
from gemmsweep.report.export import md
from gemmsweep.report.figures import Record
from gemmsweep.report.grid import markdown
from gemmsweep.report.jsontext import text
from gemmsweep.report.words import device_text

SCHEMA = "gemmsweep/kernels/1"
TABLE, README = "launch.json", "README.md"
RULES = Path(__file__).with_name("launching.md")  # for README.md of an export and for docs/export.md
FIGURES = (
    "median_us", "ci95_us", "tflops", "regime", "l2", "references", "error", "decision", "ties", "margin_pct", "finalists",
    "started_at",
)  # fmt: skip
LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class ExportedKernel:
    """A source that compiles alone, and its launch: kernel, grid, block, smem_bytes and args in order, or steps."""

    text: str
    launch: Mapping[str, Any]


def write(
    best: Iterable[Record], directory: Path, render: Callable[[Record], ExportedKernel]
) -> tuple[list[Path], int, list[str]]:
    """Write a source per BEST, launch.json and README.md into `directory` and nowhere else.

    Returns the paths written, how many kernels of an earlier export there are gone, and why some were left out: `render` raises
    NothingToShow for one that cannot be had, which arrives where it is true of all, before a file is touched. An earlier export
    there is replaced. Raises UsageError where a file of it has been edited since, one of yours has a name that is needed, the
    directory holds no earlier export, is a symbolic link or cannot be written.
    """
    rendered, refused = [], []
    for run in best:
        try:
            rendered.append((run, render(run)))
        except NothingToShow as error:
            refused.append(error)
    if refused and not rendered:
        raise refused[0]
    files = _file_names([run for run, _ in rendered])
    entries = [_entry(run, kernel, name) for (run, kernel), name in zip(rendered, files, strict=True)]
    contents = {name: kernel.text for (_, kernel), name in zip(rendered, files, strict=True)}
    contents[README] = _readme([run for run, _ in rendered], entries)
    contents[TABLE] = _document(entries, _sha256(contents[README].encode()))
    try:
        stale = _claim(directory, contents) - contents.keys()
        for name, content in contents.items():
            _replace(directory / name, content)
        for name in stale:
            (directory / name).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename or directory}: {error.strerror}. Name another directory."
        ) from error
    return [directory / name for name in contents], len(stale), [str(error) for error in refused]


def _claim(directory: Path, contents: Mapping[str, str]) -> set[str]:
    """Make the directory ours, or find that it is: the sources of the export before this one, as they were written."""
    if directory.is_symlink():
        raise UsageError(f"{directory} is a symbolic link, which an export does not follow. Name the directory itself.")
    directory.mkdir(parents=True, exist_ok=True)
    if not any(directory.iterdir()):
        return set()
    table = directory / TABLE
    try:
        kernels = json.loads(table.read_text(encoding="utf-8")) if table.is_file() and not table.is_symlink() else None
        if kernels is not None and kernels["schema"] == SCHEMA:
            ours = {
                name: kernel.get("file_sha256") for kernel in kernels["kernels"] if _is_ours(name := kernel["file"])
            }
            _require_no_folders(directory, {*ours, *contents})
            _require_unedited(directory, {**ours, README: kernels.get("readme_sha256")}, contents)
            _require_free(directory, contents.keys() - {*ours, README, TABLE}, contents)
            return set(ours)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # some other tool's launch.json
    raise UsageError(f"{directory} is not empty and holds no earlier export. Name an empty or a new directory.")


def _require_unedited(directory: Path, written: Mapping[str, str | None], contents: Mapping[str, str]) -> None:
    """Raises UsageError for a source that is neither as it was written nor as this export, cut short before, writes it."""
    for name, sha256 in written.items():
        path = directory / name
        if sha256 is None or path.is_symlink() or not path.is_file():
            continue
        if _sha256(path.read_bytes()) not in (sha256, _sha256(contents.get(name, "").encode())):
            raise UsageError(f"{path} is not as an export here left it. Move it away, or name another directory.")


def _require_no_folders(directory: Path, names: Iterable[str]) -> None:
    """Raises UsageError for a folder where a file is to be, before a file is touched."""
    for name in sorted(names):
        if (directory / name).is_dir() and not (directory / name).is_symlink():
            raise UsageError(f"{directory / name} is a folder. Move it away, or name another directory.")


def _require_free(directory: Path, names: Iterable[str], contents: Mapping[str, str]) -> None:
    """Raises UsageError where something else has the name of a kernel that no export here has written yet."""
    for name in sorted(names):
        path = directory / name
        cut_short = path.is_file() and _sha256(path.read_bytes()) == _sha256(contents[name].encode())
        if os.path.lexists(path) and not cut_short:
            raise UsageError(f"{path} is not what an export here left. Move it away, or name another directory.")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_ours(name: object) -> bool:
    """A file table is text that anyone may edit: only a plain source name in this very directory counts."""
    return isinstance(name, str) and name == slug(name) and name.endswith((".cu", ".c"))


def _replace(path: Path, content: str) -> None:
    """Write beside, then rename: a symbolic link in the way is replaced, never written through."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(content)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def slug(name: str) -> str:
    """`name` as part of a file name: no separators, no leading dot or dash, of bounded length."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).lstrip(".-")[:LONGEST_NAME] or "kernel"


def _file_names(best: Sequence[Record]) -> list[str]:
    """simt_4096x4096x4096_fp32_nn.cu; where two would share a name (other device, stride), the later gets a number."""
    names: list[str] = []
    taken: set[str] = set()
    for run in best:
        problem = run["problem"]
        parts = [run["template"], f"{problem['m']}x{problem['n']}x{problem['k']}", problem["dtype"], problem["layout"]]
        if (problem.get("epilogue") or "none") != "none":
            parts.append(problem["epilogue"])
        stem = slug("_".join(str(part) for part in parts))
        suffix = ".cu" if str(run["device"]["arch"]).startswith("sm_") else ".c"
        name, number = stem + suffix, 2
        while name.lower() in taken:  # some file systems ignore case
            name, number = f"{stem}_{number}{suffix}", number + 1
        taken.add(name.lower())
        names.append(name)
    return names


def _entry(run: Record, kernel: ExportedKernel, file: str) -> dict[str, Any]:
    about: dict[str, Any] = {
        "file": file,
        "file_sha256": _sha256(kernel.text.encode()),
        "problem": run["problem"],
        "device": run["device"],
        "template": run["template"],
    }
    source = {"config": run["config"], "run_id": run["run_id"], "source_sha256": run["source_sha256"]}
    return {**about, **source, **kernel.launch, "figures": {name: run.get(name) for name in FIGURES}}


def _document(entries: Sequence[Mapping[str, Any]], readme_sha256: str) -> str:
    kernels = ",\n".join(text(entry) for entry in entries)
    return f'{{"schema": "{SCHEMA}", "readme_sha256": "{readme_sha256}", "kernels": [\n{kernels}\n]}}\n'


def rules() -> str:
    """How what launch.json says is launched, and what its keys mean: Markdown, sections of the second level."""
    return RULES.read_text(encoding="utf-8")


def _readme(best: Sequence[Record], entries: Sequence[Mapping[str, Any]]) -> str:
    table = StringIO()
    md.write(best, table)
    files = "".join(f"- `{entry['file']}`: {markdown(device_text(entry['device']))}\n" for entry in entries)
    return (
        "# Kernels exported by gemmsweep\n\n"
        f"{files}\n{rules()}\n## Figures\n\nFrom the finals that stand, of each problem on the device named.\n\n{table.getvalue()}"
    )
