"""Compiled binaries on disk, one entry per build key; safe for several processes, healed where damaged."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from gemmsweep.build.inputs import FORMAT
from gemmsweep.errors import EnvironmentProblem
from gemmsweep.model import Build


class Cache:
    """The cache folder: $GEMMSWEEP_CACHE, else $XDG_CACHE_HOME/gemmsweep, else ~/.cache/gemmsweep.

    `note` is a sentence for the user where that folder cannot be written and a temporary one is used.
    """

    def __init__(self) -> None:
        self.folder, self.note = _open_folder()
        self._ours: list[Path] = []  # temporary folders

    def leave(self, error: OSError) -> None:
        """Go on in a temporary folder: the one in use has become unwritable, or its disk is full."""
        self.note = f"The build cache {self.folder} cannot be written ({error.strerror}): these builds are not kept."
        self.folder = Path(tempfile.mkdtemp(prefix="gemmsweep-builds-"))
        self._ours.append(self.folder)

    def close(self) -> None:
        """Remove what was only there to go on with."""
        for folder in self._ours:
            shutil.rmtree(folder, ignore_errors=True)

    def get(self, key: str) -> Build | None:
        """The build stored under a key, `cached` set; None where there is none or it is damaged."""
        try:
            entry = json.loads(self._entry(key).read_text(encoding="utf-8"))
            binary = self._entry(key).with_name(entry["binary"])
            if hashlib.sha256(binary.read_bytes()).hexdigest() != entry["sha256"]:
                return None
            build = Build(**{**entry["build"], "path": str(binary), "cached": True})
            return replace(build, options=tuple(build.options)) if build.key == key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, build: Build, binary: bytes, suffix: str) -> Build:
        """Store a successful build; returns it with the path of its binary.

        The binary is named by its content and the entry is written last, so a reader sees a whole pair or none, and
        two processes that compiled the same key do not disturb each other.
        """
        digest = hashlib.sha256(binary).hexdigest()
        entry = self._entry(build.key)
        path = entry.with_name(f"{build.key[:16]}-{digest[:16]}{suffix}")
        entry.parent.mkdir(parents=True, exist_ok=True)
        stored = asdict(replace(build, symbols=dict(build.symbols)))
        _write(path, binary)
        _write(entry, json.dumps({"binary": path.name, "sha256": digest, "build": stored}, indent=1).encode())
        return replace(build, path=str(path))

    def _entry(self, key: str) -> Path:
        return self.folder / f"builds-{FORMAT}" / key[:2] / f"{key}.json"


def _write(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _open_folder() -> tuple[Path, str | None]:
    wanted = _wanted_folder()
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=wanted).close()
        return wanted, None
    except OSError as problem:
        folder = _temporary_folder()
        why = problem.strerror or str(problem)
        return (
            folder,
            f"Cannot write the build cache {wanted} ({why}), using {folder}: set GEMMSWEEP_CACHE to a folder of yours.",
        )


def _wanted_folder() -> Path:
    if named := os.environ.get("GEMMSWEEP_CACHE"):
        try:
            return Path(named).expanduser().absolute()
        except RuntimeError:  # ~nobody
            raise EnvironmentProblem(f"GEMMSWEEP_CACHE={named} names no home directory: set it to a folder.") from None
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "gemmsweep"
    return Path(os.path.expanduser("~")).absolute() / ".cache" / "gemmsweep"


def _temporary_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"gemmsweep-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        # Binaries from here are loaded: a folder that somebody else made first is not trusted.
        facts = folder.lstat()
        if (
            facts.st_uid == os.getuid()
            and facts.st_mode & 0o077 == 0
            and os.access(folder, os.W_OK)
            and folder.is_dir()
        ):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="gemmsweep-"))
