"""Reading compiler logs: resources of the kernels, findings worth a line in a table, the first complaint."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+)(?:\+(\d+))? bytes smem")
_LOSS = re.compile(r"(?:\((C\d+)\)\s*)?Potential Performance Loss:\s*(.+)")
_WARNING = re.compile(r"\bwarning\b(?!s)", re.IGNORECASE)
# "error:", "ptxas error   :", "error #20-D:"; not the word in the text of a warning.
_ERROR = re.compile(r"\berror\b[^:]{0,9}:", re.IGNORECASE)
_DIRECTORY = re.compile(r"(?<![\w.])/(?:[^/\s:()'\"]+/)+(?=[^/\s:()'\"]+[:(]\d)")
_NO_KERNEL = re.compile(r'Input name expression was: "\s*(.*?)\s*"')


@dataclass(frozen=True, slots=True)
class Resources:
    """What `ptxas -v` says, each the largest of the kernels; None where the log says nothing."""

    entries: tuple[str, ...]  # symbols, in the order compiled
    registers: int | None  # per thread
    spill_bytes: int | None  # stores and loads
    stack_bytes: int | None  # per thread
    smem_bytes: int | None  # static


def clean(log: str) -> str:
    """A compiler's log without NULs (NVRTC ends and joins its parts with them) and trailing space."""
    return log.replace("\0", "").rstrip()


def resources(log: str) -> Resources:
    """Registers, spills, stack and static shared memory from a `ptxas -v` log."""
    entries: list[str] = []
    registers: list[int] = []
    frames: list[tuple[int, int]] = []
    smem: list[int] = []
    for line in clean(log).splitlines():
        if entry := _ENTRY.search(line):
            entries.append(entry[1])
        if frame := _FRAME.search(line):
            frames.append((int(frame[1]), int(frame[2]) + int(frame[3])))
        if used := _REGISTERS.search(line):
            registers.append(int(used[1]))
            found = _SMEM.search(line)
            smem.append(int(found[1]) + int(found[2] or 0) if found else 0)
    return Resources(
        entries=tuple(entries),
        registers=max(registers, default=None),
        spill_bytes=max((spill for _, spill in frames), default=None),
        stack_bytes=max((stack for stack, _ in frames), default=None),
        smem_bytes=max(smem, default=None),
    )


def findings(log: str) -> list[str]:
    """Sentences of a build's log that a reader of its times should know, each once.

    Serialised wgmma and ignored setmaxnreg (ptxas C7508, C7510 and their kin), spills, local memory, warnings.
    """
    found: dict[str, None] = {}
    for line in clean(log).splitlines():
        if loss := _LOSS.search(line):
            found[f"{loss[2].strip()} ({loss[1]})" if loss[1] else loss[2].strip()] = None
        elif _WARNING.search(line) and not line.lstrip().startswith("Remark"):
            found[_shorten(line)] = None
    told = resources(log)
    if told.spill_bytes:
        found[f"{told.spill_bytes} bytes of register spills per thread"] = None
    elif told.stack_bytes:
        found[
            f"{told.stack_bytes} bytes of local memory per thread, without spills: an array is indexed at run time"
        ] = None
    return list(found)


def first_complaint(log: str) -> str:
    """The first line that reports an error, its file and line kept, directories dropped; else the first line."""
    lines = [line for line in clean(log).splitlines() if line.strip()]
    first = next((line for line in lines if _ERROR.search(line)), lines[0] if lines else "")
    if first.startswith("__nv_name_map") and (name := _NO_KERNEL.search(log)):
        return f"the source has no kernel {name[1]!r}"
    return _shorten(first)


def _shorten(line: str) -> str:
    return " ".join(_DIRECTORY.sub("", line).split())
