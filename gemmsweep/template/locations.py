"""Folders that belong to gemmsweep itself."""

from __future__ import annotations

from pathlib import Path


def templates_folder() -> Path:
    """The kernel templates: the wheel's copy, else those of the checkout that this package runs from."""
    package = Path(__file__).resolve().parent.parent
    packaged = package / "_data" / "kernel_templates"
    return packaged if packaged.is_dir() else package.parent / "kernel_templates"


def shared_include_folder() -> Path:
    return templates_folder() / "include"
