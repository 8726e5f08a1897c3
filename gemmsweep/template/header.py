"""A template file (or an untouched source and its sidecar) → Template."""

from __future__ import annotations

import hashlib
import re
import shlex
import string
import tomllib
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from gemmsweep.errors import TemplateError
from gemmsweep.template.declaration import BODY_KEYS, DEVICE_NAMES, Parameter, Template
from gemmsweep.template.includes import find_headers, read_source
from gemmsweep.template.kernels import COMMENT
from gemmsweep.template.locations import shared_include_folder
from gemmsweep.template.reading import read_declarations

__all__ = ["SOURCE_SUFFIXES", "Parameter", "Template", "load_template"]

SOURCE_SUFFIXES = (".cu", ".cuh", ".c")
START = re.compile(r"//[ \t]*///[ \t]*gemmsweep[ \t]*")
END = re.compile(r"//[ \t]*///[ \t]*")


def load_template(path: Path) -> Template:
    """Read a template: a source with a header, or a source with its sidecar beside it (either of the two named).

    Raises TemplateError naming the file, what is wrong, and the way out.
    """
    source, sidecar = _locate(path)
    text = read_source(source)
    header, body_line = _split(source.name, text)
    if header is not None and sidecar is not None:
        raise TemplateError(
            f"{source.name} has a header of its own and {sidecar.name} beside it. Remove one of the two."
        )
    if header is None and sidecar is None:
        way_out = f"Draft one: gemmsweep init {shlex.quote(str(source))}"
        if source.suffix == ".c":
            way_out = "Write one as docs/templates.md says; init drafts only for CUDA."
        raise TemplateError(
            f"{source.name} has no header ('// /// gemmsweep') and no {source.stem}.toml beside it. {way_out}"
        )
    sidecar_text = "" if sidecar is None else read_source(sidecar)
    declared = source.name if sidecar is None else sidecar.name
    written = sidecar_text if header is None else header
    fields = read_declarations(declared, _toml(declared, written), written)
    include_dirs = [source.parent / folder for folder in fields["kernel"].include_dirs]
    for folder in include_dirs:
        if not folder.is_dir():
            raise TemplateError(
                f"{declared}: [kernel] include_dirs: no folder {folder}. Paths start at the kernel's folder."
            )
    headers = find_headers(source, text, [source.parent, *include_dirs, shared_include_folder()])
    template = Template(
        name=source.stem,
        path=source,
        sidecar=sidecar,
        header_text=sidecar_text if header is None else header.strip("\n") + "\n",
        body="".join(text.splitlines(keepends=True)[body_line - 1 :]),
        body_line=body_line,
        text=text,
        headers=headers,
        source_sha256=_digest([text, sidecar_text, *(part for item in sorted(headers.items()) for part in item)]),
        **fields,
    )
    _check_bound(template)
    if template.backend == "cpu":
        _check_returns(template)
    return template


def has_header(file: str, text: str) -> bool:
    """Whether a source describes itself. Raises TemplateError where its header has no end."""
    header, _ = _split(file, text)
    return header is not None


def _locate(path: Path) -> tuple[Path, Path | None]:
    if path.suffix == ".toml":
        source = next((p for p in map(path.with_suffix, SOURCE_SUFFIXES) if p.is_file()), None)
        if source is None:
            raise TemplateError(f"{path} describes {path.stem}.cu (or .cuh, .c), which is not beside it.")
        return source, path
    if path.suffix not in SOURCE_SUFFIXES:
        raise TemplateError(f"{path} is not a kernel. Give a file ending in {', '.join(SOURCE_SUFFIXES)} or .toml.")
    sidecar = path.with_suffix(".toml")
    return path, sidecar if sidecar.is_file() else None


def _split(file: str, text: str) -> tuple[str | None, int]:
    """The TOML of the leading comment, on its own line numbers of the file, and the line at which the body starts."""
    lines = text.splitlines()
    # Blank lines and other comments (a licence) may stand before the header; code may not.
    comments = takewhile(lambda line: line.startswith("//") or not line.strip(), lines)
    start = next((number for number, line in enumerate(comments) if START.fullmatch(line)), None)
    if start is None:
        return None, 1
    header = [""] * (start + 1)
    for number, line in enumerate(lines[start + 1 :], start + 2):
        if END.fullmatch(line):
            return "\n".join(header), number + 1
        if not line.startswith("//"):
            raise TemplateError(f"{file}, line {number}: the header must be '//' comments up to its end, '// ///'.")
        header.append(line[2:].removeprefix(" "))
    raise TemplateError(f"{file}: the header has no end. Close it with a line '// ///'.")


def _toml(file: str, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of 5,000 digits, or brackets without end
        raise TemplateError(f"{file}: the header is not TOML: {error}.") from None


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def _check_bound(template: Template) -> None:
    """Every parameter must reach the kernel itself: one that does not would let all its values tie."""
    in_args = {name for step in template.steps for arg in step.args if arg.expression for name in arg.expression.names}
    whens = {name for step in template.steps if step.when is not None for name in step.when.names}
    promotions = {name for tensor_map in template.tensor_maps for name in tensor_map.promotion.names}
    # Which kernels are launched, what L2 fetches: effects, too.
    used = set(template.behind(in_args | whens | promotions))
    if template.kernel.bind == "substitute":
        used |= _keys(template)
        way_out = "Write ${name} in the body, or remove the parameter."
    elif template.kernel.bind == "define":
        used |= _in_blocks(template)
        used |= set(re.findall(r"\w+", "\n".join([template.body, *template.headers.values()])))
        way_out = "Name it as the source's macro is named, or remove the parameter."
    else:
        used |= _in_blocks(template)
        used |= template.behind(word for step in template.steps for word in re.findall(r"\w+", step.kernel))
        way_out = 'Write it into the kernel\'s name (name = "gemm<{name}>"), or remove the parameter.'
    for parameter in template.parameters:
        if parameter.name not in used:
            declared = (template.sidecar or template.path).name
            fact = f"{declared}: parameter {parameter.name!r} is never used by the kernel."
            raise TemplateError(f"{fact} {way_out.format(name=parameter.name)}")


def _check_returns(template: Template) -> None:
    """A C function says by its result whether it worked; of a `void` one, whatever a register holds would be read."""
    code = COMMENT.sub(" ", template.text)
    for step in template.steps:
        if re.search(rf"\bvoid\s+{re.escape(step.kernel)}\s*\(", code):
            fact = f"{template.path.name}: {step.kernel} returns nothing."
            raise TemplateError(f"{fact} Declare it int: it returns 0, or an errno where it has failed.")


def _in_blocks(template: Template) -> frozenset[str]:
    """A user's kernel may know its block by blockDim alone."""
    return template.behind(name for step in template.steps for extent in step.block for name in extent.names)


def _keys(template: Template) -> set[str]:
    """The `$NAME` keys of the body; raises TemplateError with the line of one that means nothing."""
    known = [*template.defaults(), *template.derived, *BODY_KEYS[template.backend]]
    keys: set[str] = set()
    for match in string.Template.pattern.finditer(template.body):
        line = template.body_line + template.body.count("\n", 0, match.start())
        where = f"{template.path.name}, line {line}"
        key = match["named"] or match["braced"]
        if match["invalid"] is not None:
            raise TemplateError(f"{where}: a single '$'. Write $$ for a literal dollar.")
        if key is None:
            continue
        if key not in known:
            raise TemplateError(f"{where}: unknown key ${key} ($$ is a literal dollar). Keys: {', '.join(known)}.")
        if key in template.derived and template.behind([key]) & set(DEVICE_NAMES[template.backend]):
            raise TemplateError(
                f"{where}: ${key} depends on the device, so it cannot be part of the source. Pass it in args."
            )
        keys.add(key)
    return keys
