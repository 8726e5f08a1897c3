"""Where templates are found: those shipped with gemmsweep, by name, and any file, by path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemmsweep.errors import EnvironmentProblem, TemplateError, choices
from gemmsweep.template.declaration import Template
from gemmsweep.template.header import SOURCE_SUFFIXES, load_template
from gemmsweep.template.locations import templates_folder


@dataclass(frozen=True, slots=True)
class Listing:
    """The templates of a folder, by name; `broken` says by name why a file cannot be used."""

    templates: tuple[Template, ...]
    broken: Mapping[str, str]


def list_templates(folder: Path | None = None) -> Listing:
    """Every template of a folder (default: those of gemmsweep), by name; one broken file hides no other."""
    templates: list[Template] = []
    broken: dict[str, str] = {}
    for path in _sources(folder or templates_folder()):
        try:
            templates.append(load_template(path))
        except TemplateError as error:
            broken[path.stem] = str(error)
    return Listing(tuple(templates), broken)


def find_template(name_or_path: str) -> Template:
    """The template of that name, else of that path. Raises TemplateError naming the templates there are."""
    shipped = {path.stem: path for path in _sources(templates_folder())}
    if name_or_path in shipped:
        return load_template(shipped[name_or_path])
    path = Path(name_or_path).expanduser()
    if path.is_file() or path.suffix in (*SOURCE_SUFFIXES, ".toml") or len(path.parts) > 1:
        return load_template(path)
    raise TemplateError(f"{choices('template', name_or_path, sorted(shipped))} Or give the path of your own kernel.")


def _sources(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise EnvironmentProblem(f"the kernel templates are missing at {folder}. Reinstall gemmsweep.")
    return sorted(path for path in folder.iterdir() if path.suffix in (".cu", ".c"))
