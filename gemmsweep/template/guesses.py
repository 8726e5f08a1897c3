"""What the names of a GEMM kernel usually mean."""

from __future__ import annotations

import re
from collections.abc import Sequence

# What the field's names are usually swept over, where the source says nothing.
USUAL = {"BM": 128, "BN": 128, "BK": 16, "WM": 64, "WN": 32, "TM": 8, "TN": 8, "STAGES": 2, "VEC": 4, "UNROLL": 4}
MEANINGS = {
    "BM": "rows of C per block",
    "BN": "columns of C per block",
    "BK": "K depth of one slab",
    "WM": "rows of C per warp",
    "WN": "columns of C per warp",
    "TM": "rows of C per thread",
    "TN": "columns of C per thread",
    "STAGES": "slabs in flight",
    "VEC": "elements per load",
    "UNROLL": "steps of the inner loop unrolled",
    "SPLIT_K": "parts of K",
    "PAD": "elements of padding per row",
}
SQUARE_TILES = ("BLOCK_SIZE", "BLOCKSIZE", "TILE_SIZE", "TILE", "BLOCK", "BS")
THREAD_COUNTS = ("NUM_THREADS", "THREADS", "BLOCK_THREADS")
INTEGER_ARGUMENTS = {"m": "M", "n": "N", "k": "K", "lda": "lda", "ldb": "ldb", "ldc": "ldc", "ldd": "ldc"}
SPELLINGS = {"rows": "m", "cols": "n", "width": "n", "size": "n", "depth": "k", "stride_a": "lda", "stride_b": "ldb"}
ELEMENTS = {"float": "fp32", "half": "fp16", "__half": "fp16", "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16"}


def meaning_of(parameter: str) -> str:
    """A few words on a parameter; "" where its name says nothing."""
    if parameter in SQUARE_TILES:
        return "side of a block's tile"
    return "threads per block" if parameter in THREAD_COUNTS else MEANINGS.get(parameter, "")


def looks_like_gemm(name: str, parameters: Sequence[str]) -> int:
    """How much a kernel looks like a GEMM: its operands and sizes count, what means nothing to a GEMM counts against."""
    words = argument_words(parameters)
    known = [{"A", "B", "C"} <= set(words), *(any(w[4:] == size for w in words) for size in "MNK")]
    operands = {parameter for parameter in parameters if "*" in parameter}
    return (
        3 * known[0]
        + sum(known[1:])
        + 2 * (len(operands) >= 3)
        + bool(re.search(r"gemm|matmul|mat_?mul|mmul|mm\b", name, re.IGNORECASE))
        - words.count("")
    )


def argument_words(parameters: Sequence[str]) -> list[str]:
    """Our word for each argument of a kernel; "" where there is no guess."""
    pointers = [item for item in parameters if "*" in item]
    return [_word(item, pointers) for item in parameters]


def _word(declaration: str, pointers: list[str]) -> str:
    names = re.findall(r"\w+", declaration.split("[")[0].partition("=")[0])
    name = names[-1] if names else ""
    plain = name.lower().removeprefix("d_").removeprefix("d") if len(name) > 1 else name.lower()
    if declaration in pointers:
        if plain[:1] in ("a", "b", "c") and len(plain) < 3:
            return plain[0].upper()
        if name.lower() in ("d", "out", "output", "result"):
            return "D" if any(re.search(r"\b(d_?)?[cC]$", other) for other in pointers) else "C"
        position = pointers.index(declaration)
        return "ABC"[position] if position < 3 else ""
    if name.lower() in ("alpha", "beta"):
        return name.lower()
    word = INTEGER_ARGUMENTS.get(SPELLINGS.get(name.lower(), name.lower()))
    wide = re.search(r"\b(long|size_t|u?int64_t|ptrdiff_t)\b", declaration)
    return f"{'i64' if wide else 'i32'}:{word}" if word else ""
