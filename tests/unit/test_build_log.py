"""Compiler logs: resources, findings, the first complaint."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gemmsweep.build import log
from gemmsweep.build.nvcc import base_name, match_entries

# As NVRTC 13.0 writes it, NULs included.
NVRTC = (
    'kernel.cu(3): warning #177-D: variable "unused" was declared but never referenced\n  int unused;\n      ^\n\n'
    'Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"\n\n'
    "ptxas info    : 0 bytes gmem\n"
    "ptxas info    : Compiling entry function 'pad' for 'sm_90a'\n"
    "ptxas info    : Function properties for pad\n"
    "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "ptxas info    : Used 10 registers, used 1 barriers, 256 bytes smem\n"
    "ptxas info    : Compile time = 2.098 ms\n\x00"
    "ptxas info    : Compiling entry function '_Z4gemmPf' for 'sm_90a'\n"
    "ptxas info    : Function properties for _Z4gemmPf\n"
    "ptxas         .     616 bytes stack frame, 636 bytes spill stores, 640 bytes spill loads\n"
    "ptxas info    : Used 255 registers, used 0 barriers, 616 bytes cumulative stack size\n\x00"
)


def test_resources_are_the_largest_of_the_kernels() -> None:
    told = log.resources(NVRTC)
    assert told.entries == ("pad", "_Z4gemmPf")
    assert (told.registers, told.spill_bytes, told.stack_bytes, told.smem_bytes) == (255, 636 + 640, 616, 256)


def test_a_log_that_says_nothing_gives_none_and_not_zero() -> None:
    told = log.resources("ptxas info    : 0 bytes gmem\n\0")
    assert (told.registers, told.spill_bytes, told.stack_bytes, told.smem_bytes) == (None, None, None, None)


def test_kernels_without_shared_memory_use_none_of_it() -> None:
    assert log.resources("ptxas info : Used 8 registers, used 0 barriers").smem_bytes == 0
    assert log.resources("ptxas info : Used 8 registers, 4096+16 bytes smem, 400 bytes cmem[0]").smem_bytes == 4112


def test_findings_name_warnings_and_spills_once() -> None:
    found = log.findings(NVRTC + NVRTC)
    assert found == [
        'kernel.cu(3): warning #177-D: variable "unused" was declared but never referenced',
        "1276 bytes of register spills per thread",
    ]


def test_findings_flag_serialised_wgmma_and_ignored_setmaxnreg() -> None:
    text = (
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
        "non wgmma instructions defining accumulator registers in the function 'gemm'\n"
        "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register "
        "requirements.\n"
    )
    first, second = log.findings(text)
    assert "serialized" in first
    assert first.endswith("(C7510)")
    assert "setmaxnreg" in second
    assert second.endswith("(C7508)")


def test_local_memory_without_spills_is_a_finding() -> None:
    text = "ptxas . 2400 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    assert log.findings(text) == [
        "2400 bytes of local memory per thread, without spills: an array is indexed at run time"
    ]


def test_first_complaint_keeps_file_and_line_and_drops_directories() -> None:
    text = "In file included from /tmp/x/a.h:1,\n/tmp/gemmsweep-ab12/kernel.c:7:9: error: 'x' undeclared\n"
    assert log.first_complaint(text) == "kernel.c:7:9: error: 'x' undeclared"
    assert log.first_complaint("/a-b/c_1/k.cu(12): error: expected a ;\n") == "k.cu(12): error: expected a ;"
    assert log.first_complaint("warning: w\nptxas error   : Entry function 'g' uses too much shared data\n") == (
        "ptxas error : Entry function 'g' uses too much shared data"
    )


def test_a_warning_about_errors_is_not_the_complaint() -> None:
    text = "k.cu(1): warning #1-D: result of error check is unused\nk.cu(2): error #20-D: identifier is undefined\n"
    assert log.first_complaint(text) == "k.cu(2): error #20-D: identifier is undefined"


def test_first_complaint_of_a_log_without_an_error_is_its_first_line() -> None:
    assert log.first_complaint("\n\ncc1: out of memory\nmore") == "cc1: out of memory"
    assert log.first_complaint("\0\n") == ""


def test_a_missing_kernel_is_said_in_our_words() -> None:
    text = (
        '__nv_name_map(2): error: identifier "nope" is undefined\n  #pragma nv_mangled_name nope\n\n'
        "__nv_name_map(2): error: Error in parsing name expression for lowered name lookup. "
        'Input name expression was: " nope"\n'
    )
    assert log.first_complaint(text) == "the source has no kernel 'nope'"


@given(st.text())
def test_any_text_is_read_without_raising(text: str) -> None:
    log.resources(text)
    assert "\n" not in log.first_complaint(text)
    assert all(isinstance(sentence, str) for sentence in log.findings(text))


@given(
    st.lists(
        st.tuples(st.integers(1, 255), *[st.integers(0, 1 << 17)] * 4),
        min_size=1,
        max_size=5,
    )
)
def test_resources_of_any_number_of_entries(kernels: list[tuple[int, int, int, int, int]]) -> None:
    text = "\0".join(
        f"ptxas info : Compiling entry function 'k{i}' for 'sm_80'\n"
        f"  {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads\n"
        f"ptxas info : Used {registers} registers, used 1 barriers, {smem} bytes smem\n"
        for i, (registers, stack, stores, loads, smem) in enumerate(kernels)
    )
    told = log.resources(text)
    assert len(told.entries) == len(kernels)
    assert told.registers == max(k[0] for k in kernels)
    assert told.stack_bytes == max(k[1] for k in kernels)
    assert told.spill_bytes == max(k[2] + k[3] for k in kernels)
    assert told.smem_bytes == max(k[4] for k in kernels)


def test_names_are_read_from_mangled_symbols() -> None:
    assert base_name("_ZN2ns1kILi3EfEEvPT0_") == "k"
    assert base_name("_Z5plainPf") == "plain"
    assert base_name("_Z2tkILi4EEvPf") == "tk"
    assert base_name("_ZN3abc3def10gemm_nt_v2Ev") == "gemm_nt_v2"
    assert base_name("gemm") == "gemm"
    entries = ("gemm", "_ZN2ns1kILi3EfEEvPT0_", "_ZN2ns1kILi4EfEEvPT0_", "_Z5plainPf")
    assert match_entries("plain", entries) == ["_Z5plainPf"]
    assert match_entries("gemm", entries) == ["gemm"]
    assert len(match_entries("ns::k<3, float>", entries)) == 2
    assert match_entries("other", entries) == []
