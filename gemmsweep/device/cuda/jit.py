"""Compile the device's own helper kernels with NVRTC. Kernels under test come compiled from gemmsweep.build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gemmsweep.errors import EnvironmentProblem


def source(name: str) -> str:
    """Text of a .cu file beside this module."""
    return (Path(__file__).parent / name).read_text()


def shared_headers() -> dict[str, str]:
    """The device code that templates share, by include name."""
    from gemmsweep.template.locations import shared_include_folder

    return {path.name: path.read_text() for path in sorted(shared_include_folder().glob("*.cuh"))}


def compile_cubin(text: str, arch: str, headers: Mapping[str, str], options: Sequence[str] = ()) -> bytes:
    """A cubin for `arch` ("sm_90"). Raises EnvironmentProblem where NVRTC is missing or refuses."""
    from cupy_backends.cuda.libs import nvrtc

    texts, names = [h.encode() for h in headers.values()], [name.encode() for name in headers]
    program = nvrtc.createProgram(text, "helper.cu", texts, names)
    try:
        nvrtc.compileProgram(program, [f"--gpu-architecture={arch}", *options])
        image: bytes = nvrtc.getCUBIN(program)
        return image
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program).strip("\0").strip()
        reason = (log or str(error)).splitlines()[0]
        raise EnvironmentProblem(
            f"NVRTC refused a helper kernel for {arch}: {reason}. See: gemmsweep doctor"
        ) from error
    finally:
        nvrtc.destroyProgram(program)
