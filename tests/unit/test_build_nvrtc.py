"""What NVRTC builds is a whole ELF file, for the driver and for the tools that read one."""

from __future__ import annotations

import struct

import pytest

from gemmsweep.model import Source

pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no NVRTC")


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_a_cubin_holds_the_tables_its_header_tells_of(arch: str) -> None:
    from gemmsweep.build.nvrtc import compile_cuda, find

    text = 'extern "C" __global__ void kernel(float* x) { x[0] = 1; }'
    image = compile_cuda(Source("cuda", text, ("kernel",)), arch, find()).binary
    assert image is not None
    segments, sections = struct.unpack_from("<QQ", image, 32)
    segment_size, segment_count, section_size, section_count = struct.unpack_from("<HHHH", image, 54)
    assert segments + segment_size * segment_count <= len(image)
    assert sections + section_size * section_count <= len(image)
