"""What may be asked of a path whose name came out of a user's text."""

from __future__ import annotations

from pathlib import Path


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file system takes, too long say, is none."""
    try:
        return path.is_file()
    except OSError:
        return False
