"""One config of a template → the source that reaches the compiler."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence

from gemmsweep.epilogue import parse_epilogue
from gemmsweep.model import DTYPES, Source
from gemmsweep.template.asserts import static_asserts
from gemmsweep.template.declaration import Template
from gemmsweep.template.host import device_only
from gemmsweep.template.includes import INCLUDE_ANY, STUB_HEADERS, flatten
from gemmsweep.template.kernels import instantiation
from gemmsweep.template.resolve import Resolved, device_env, kernel_name, parameter_env, plan_launch, resolve
from gemmsweep.template.rules import broken_rules
from gemmsweep.template.scanner import definitions

__all__ = [
    "Resolved",
    "broken_rules",
    "complaint_in_file",
    "device_env",
    "flatten",
    "parameter_env",
    "plan_launch",
    "render",
    "resolve",
]

ELEMENTS = {"fp32": "float", "fp16": "fp16", "bf16": "bf16"}
RENDERED_LINE = re.compile(r"(?<![\w/.-])kernel\.cu?([:(])(\d+)")


def render(template: Template, resolved: Resolved) -> Source:
    """The source with the config's values in it, its headers, and the options that carry values."""
    numbers = {name: resolved.env[name] for name in template.defaults()}
    text, headers = _sources(template)
    options = [f"-D{define}" for define in template.kernel.defines]
    if template.kernel.bind == "substitute":
        text = string.Template(text).substitute(_keys(template, resolved))
    elif template.kernel.bind == "define":
        text = _redefine(text, numbers)
        headers = {name: _redefine(header, numbers) for name, header in headers.items()}
        options += [f"-D{name}={value}" for name, value in numbers.items()]
    stubs = {}
    if template.sidecar is not None and template.backend == "cuda":
        included = {name for part in (text, *headers.values()) for name in INCLUDE_ANY.findall(part)}
        stubs = {name: stub for name, stub in STUB_HEADERS.items() if name in included and name not in headers}
    launched = resolved.present(template.steps)
    kernels = dict.fromkeys(kernel_name(template, step.kernel, resolved.env) for step in launched)
    return Source(
        backend=template.backend,
        text=text,
        kernels=tuple(kernels),
        headers=headers,
        options=tuple(options),
        include_dirs=tuple(str(template.path.parent.resolve() / folder) for folder in template.kernel.include_dirs),
        # A header of our own is cut off, so lines of its body are not lines of the file.
        name="kernel.cu" if template.sidecar is None else template.path.name,
        stubs=stubs,
        instances=instances((text, *headers.values()), kernels),
    )


def instances(texts: Sequence[str], kernels: Iterable[str]) -> tuple[str, ...]:
    """A line for each kernel that is a template and that the source itself instantiates nowhere."""
    found = []
    for kernel in kernels:
        base = re.escape(kernel.partition("<")[0].rpartition("::")[2].strip())
        written = re.compile(rf"\btemplate\s+__global__\s[^;{{]*\b{base}\s*<")
        line = "" if any(written.search(text) for text in texts) else instantiation(kernel, texts)
        if line and not line.startswith("//"):
            found.append(line)
    return tuple(found)


def complaint_in_file(template: Template, text: str, complaint: str) -> str:
    """What a compiler says of the rendered `text`, with the file and line that the user wrote."""
    if template.sidecar is not None:  # is compiled under its own name, line by line
        return complaint
    return RENDERED_LINE.sub(
        lambda match: f"{template.path.name}{match[1]}{_line_in_file(template, text, int(match[2]))}", complaint
    )


def _line_in_file(template: Template, text: str, line: int) -> int:
    """The line of the file that a line of its rendered text comes from: only static asserts are more lines than their key."""
    keys = [match for match in string.Template.pattern.finditer(template.body) if "STATIC_ASSERTS" in match.groups()]
    more = (text.count("\n") - template.body.count("\n")) // max(1, len(keys))
    for key in keys:
        at = 1 + template.body.count("\n", 0, key.start())
        line = max(at, line - more) if line > at else line
    return template.body_line + line - 1


def _sources(template: Template) -> tuple[str, dict[str, str]]:
    """The body and its headers; of a user's own CUDA kernel, without the host code beside it."""
    if template.sidecar is None or template.backend != "cuda":
        return template.body, dict(template.headers)
    macros = definitions((template.body, *template.headers.values()))
    headers = {name: device_only(header, macros) for name, header in template.headers.items()}
    return device_only(template.body, macros), headers


def _keys(template: Template, resolved: Resolved) -> dict[str, object]:
    problem = resolved.problem
    type_in, type_out, *_ = DTYPES[problem.dtype]
    keys: dict[str, object] = {
        "IN": ELEMENTS[type_in],
        "OUT": ELEMENTS[type_out],
        "B_NT": int(problem.layout == "nt"),
        "IS_TF32": int(problem.dtype == "tf32"),
        "STATIC_ASSERTS": static_asserts(template, resolved.env),
    }
    if template.backend == "cuda":
        keys["EPILOGUE"] = parse_epilogue(problem.epilogue).cpp_type
    return {**keys, **resolved.env}


def _redefine(text: str, numbers: Mapping[str, int]) -> str:
    """Every `#define NAME …` of a parameter with its value: an unguarded one would win over -D, and every value tie."""

    def replace(match: re.Match[str]) -> str:
        return f"{match[1]} {numbers[match[2]]}" if match[2] in numbers else match[0]

    return re.sub(r"^([ \t]*#[ \t]*define[ \t]+(\w+))(?!\w|\()[^\n]*", replace, text, flags=re.MULTILINE)
