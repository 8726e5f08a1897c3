"""Epilogues: their text, their C++ type, the bytes of their struct, and the fp64 reference."""

from __future__ import annotations

import contextlib
import math
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmsweep.epilogue import CHECKED, OPERATIONS, Epilogue, parse_epilogue
from gemmsweep.errors import UsageError
from gemmsweep.template.locations import shared_include_folder


@pytest.mark.parametrize(
    ("text", "canonical", "cpp"),
    [
        ("none", "none", "Chain<>"),
        ("bias+leaky_relu", "bias+leaky_relu", "Chain<Bias, LeakyRelu>"),
        (" bias + leaky_relu( 0.01 ) ", "bias+leaky_relu", "Chain<Bias, LeakyRelu>"),
        ("leaky_relu(0.1)+clamp(-1,+6.5)", "leaky_relu(0.1)+clamp(-1,6.5)", "Chain<LeakyRelu, Clamp>"),
        ("clamp(0,inf)", "clamp(0,inf)", "Chain<Clamp>"),
        ("BIAS+ReLU", "bias+relu", "Chain<Bias, Relu>"),
    ],
)
def test_text_and_type(text: str, canonical: str, cpp: str) -> None:
    epilogue = parse_epilogue(text)
    assert (str(epilogue), epilogue.cpp_type) == (canonical, cpp)
    assert parse_epilogue(canonical) == epilogue


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bais", r"unknown epilogue 'bais'. Did you mean 'bias'\? Choose one of: none, bias, bias_row, relu"),
        ("bias+", r"epilogue 'bias\+': an operation is missing beside a \+. Write it like bias\+relu"),
        ("clamp(0,6", r"epilogue 'clamp\(0,6': a parenthesis is not closed. Write it like clamp\(0,6\)\.$"),
        ("relu+leaky_relu(0.1+bias", r"'leaky_relu\(0.1': a parenthesis is not closed"),
        ("clamp 0,6)", "a parenthesis is not opened"),
        ("bias relu", r"'bias relu': more than an operation with its numbers; a \+ joins two"),
        ("clamp((0,6))", "'clamp\\(\\(0,6\\)\\)': more than an operation"),
        ("relu(1)", "relu takes no numbers. Write it like relu"),
        ("clamp", r"clamp takes 2 numbers. Write it like clamp\(0,6\)"),
        ("leaky_relu(0.1,0.2)", "leaky_relu takes 1 number. Write"),
        ("none+relu", "epilogue 'none\\+relu': none stands alone. Write relu.$"),
        ("bias + none+clamp(0,6)", r"none stands alone. Write bias\+clamp\(0,6\).$"),
        ("bias,relu", r"Did you mean 'bias\+relu'\?$"),
        ("bias, clamp(0,6) ,relu", r"Did you mean 'bias\+clamp\(0,6\)\+relu'\?$"),
        ("bias,rulu", "'bias,rulu': more than an operation with its numbers; a \\+ joins two"),
        ("bias+relu6", r"unknown epilogue 'relu6'. Did you mean 'clamp\(0,6\)'\?$"),
        ("Swish", r"unknown epilogue 'swish'. Did you mean 'silu'\?$"),
        ("clamp(6,0)", "lower bound comes first"),
        ("clamp(0,nan)", "clamp takes 2"),
        ("leaky_relu(x)", r"not numbers. Write it like leaky_relu\(0.01\)"),
        ("leaky_relu(1e99)", "beyond fp32"),
        ("leaky_relu(1e999)", "beyond fp32"),
        ("leaky_relu(-inf)", "beyond fp32"),
        ("leaky_relu+leaky_relu(0.2)", "once in a chain"),
        ("bias+relu+bias_row", "holds one bias"),
    ],
)
def test_what_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_epilogue(text)


@given(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(width=32, allow_nan=False),
    st.floats(width=32, allow_nan=False),
)
def test_canonical_text_keeps_every_number(slope: float, one: float, other: float) -> None:
    epilogue = Epilogue(("leaky_relu", "clamp"), {"slope": slope, "lo": min(one, other), "hi": max(one, other)})
    assert parse_epilogue(str(epilogue)) == epilogue


@given(st.text(max_size=30))
def test_any_text_parses_or_is_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse_epilogue(text)


def test_bytes_of_the_struct() -> None:
    packed = parse_epilogue("leaky_relu(0.5)+clamp(-1,2)").pack(1.5, 0.25, 0x7F00_0000_1000)
    assert len(packed) == 32
    assert struct.unpack_from("<ff", packed, 0) == (1.5, 0.25)
    assert struct.unpack_from("<Q", packed, 8) == (0x7F00_0000_1000,)
    assert struct.unpack_from("<fff", packed, 16) == (0.5, -1.0, 2.0)


def test_layout_and_operations_are_those_of_the_header() -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no NVRTC")
    folder: Path = shared_include_folder()
    headers = {path.name: path.read_text() for path in folder.glob("*.cuh")}
    declared = re.search(r"struct Epilogue \{(.*?)\n\};", headers["epilogue.cuh"], re.DOTALL)
    assert declared is not None
    members = re.findall(r"^ +(?:float|const void\*) ([^;]+);", declared[1], re.MULTILINE)
    assert members == ["alpha, beta", "bias", "slope", "lo, hi"]
    chain = "+".join(chain for name, chain in zip(OPERATIONS, CHECKED, strict=True) if name != "bias_row")
    text = f"""#include "epilogue.cuh"
    static_assert(sizeof(Epilogue) == 32, "");
    __global__ void k(float* x, Epilogue e) {{
        *x = {parse_epilogue(chain).cpp_type}::apply<float>(*x, e, 0, 0) + Chain<BiasRow>::apply<fp16>(*x, e, 0, 0);
    }}"""
    program = nvrtc.createProgram(text, "k.cu", [h.encode() for h in headers.values()], [n.encode() for n in headers])
    try:
        nvrtc.compileProgram(program, ("-arch=sm_75", "--std=c++17"))
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))


def test_reference_values() -> None:
    x = np.array([[-1000.0, -2.0, 0.0], [0.5, 3.0, 9.0]])

    def apply(text: str, bias: list[float] | None = None) -> np.ndarray:
        return parse_epilogue(text).apply(np, x, bias)

    np.testing.assert_array_equal(apply("bias+relu", [1, 2, 3]), [[0, 0, 3], [1.5, 5, 12]])
    np.testing.assert_array_equal(apply("bias_row", [1, 2]), [[-999, -1, 1], [2.5, 5, 11]])
    np.testing.assert_array_equal(apply("leaky_relu(0.5)+clamp(-3,4)"), [[-3, -1, 0], [0.5, 3, 4]])
    np.testing.assert_allclose(apply("silu")[1], [v / (1 + math.exp(-v)) for v in x[1]])
    np.testing.assert_allclose(apply("gelu")[1], [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x[1]])
    assert apply("silu")[0, 0] == 0


@pytest.mark.parametrize(("name", "chain"), list(zip(OPERATIONS, CHECKED, strict=True)), ids=OPERATIONS)
def test_each_operation_is_checked_and_keeps_a_nan(name: str, chain: str) -> None:
    epilogue = parse_epilogue(chain)
    assert epilogue.operations == (name,)
    assert np.isnan(epilogue.apply(np, np.array([[np.nan]]), [0.0])).all()
