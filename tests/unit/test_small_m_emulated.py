"""skinny.cu and stream.cu on the host: every way in which sums of blocks meet, odd tiles, both edges."""

from pathlib import Path

import pytest
from emulated_cuda import emulate
from test_emulated import wrong

from gemmsweep.model import Config, Problem

SEVEN_WARPS = {"BM": 32, "BN": 112, "WARPS": 7, "BK": 128, "STAGES": 3}
CASES: list[tuple[str, Problem, Config]] = [
    ("skinny", Problem.of(9, 66, 144, "fp16", "nn"), {"REDUCE": "arrival"}),
    ("skinny", Problem.of(9, 66, 545, "fp16", "nt"), {"REDUCE": "atomic", "SPLIT_K": 3}),
    ("skinny", Problem.of(9, 66, 545, "fp16", "nn"), {"REDUCE": "cluster", "SPLIT_K": 4}),
    ("skinny", Problem.of(17, 70, 2100, "fp16", "nt"), {"REDUCE": "cluster", "SPLIT_K": 16, "BM": 32}),
    (
        "skinny",
        Problem.of(9, 40, 144, "fp32", "nt"),
        {"REDUCE": "cluster", "SPLIT_K": 3, "K_WARPS": 2, "BN": 32, "WARPS": 1},
    ),
    (
        "skinny",
        Problem.of(3, 16, 40, "fp16", "nt", beta=1.0),
        {"REDUCE": "cluster", "SPLIT_K": 7, "BM": 8, "BN": 16, "WARPS": 1},
    ),
    ("skinny", Problem.of(5, 70, 2100, "fp16", "nt"), {"REDUCE": "workspace", "SPLIT_K": 64, "BK": 32}),
    ("skinny", Problem.of(32, 240, 520, "fp16", "nt"), {**SEVEN_WARPS, "SPLIT_K": 2, "REDUCE": "workspace"}),
    ("skinny", Problem.of(9, 66, 545, "fp16", "nn"), {"K_WARPS": 4, "SPLIT_K": 3, "REDUCE": "arrival"}),
    (
        "skinny",
        Problem.of(20, 70, 530, "fp16", "nt"),
        {**SEVEN_WARPS, "K_WARPS": 2, "SPLIT_K": 2, "REDUCE": "workspace"},
    ),
    ("skinny", Problem.of(17, 70, 150, "fp32", "nt"), {"K_WARPS": 2, "SPLIT_K": 2, "REDUCE": "serial"}),
    ("skinny", Problem.of(9, 66, 144, "fp16", "nt"), {"K_WARPS": 2, "SPLIT_K": 3, "REDUCE": "atomic"}),
    ("skinny", Problem.of(9, 66, 144, "bf16", "nt"), {"K_WARPS": 4, "SPLIT_K": 1}),
    ("skinny", Problem.of(16, 128, 272, "fp16", "nt"), {"K_WARPS": 2, "SPLIT_K": 1}),  # whole tiles
    ("skinny", Problem.of(32, 224, 144, "bf16", "nt"), {**SEVEN_WARPS, "SPLIT_K": 1}),
    ("skinny", Problem.of(17, 67, 144, "bf16", "nt"), {"SPLIT_K": 1}),  # rows of C that start at odd elements
    ("skinny", Problem.of(17, 67, 144, "fp16", "nt", ldd=70, beta=1.0), {"SPLIT_K": 1}),  # an odd end, padding, C read
    ("skinny", Problem.of(16, 128, 144, "fp16", "nt", ldd=131, beta=1.0), {"SPLIT_K": 1}),
    ("skinny", Problem.of(9, 67, 144, "fp16", "nt", ldd=70, beta=1.0), {"SPLIT_K": 3}),
    (
        "skinny",
        Problem.of(8, 112, 144, "fp16", "nt", beta=1.0),
        {"BM": 8, "BN": 112, "WARPS": 1, "K_WARPS": 4, "SPLIT_K": 1},
    ),
    ("skinny", Problem.of(8, 256, 144, "fp32", "nt"), {"BM": 8, "BN": 128, "WARPS": 1, "SPLIT_K": 1}),
    ("stream", Problem.of(9, 66, 144, "bf16", "nt"), {}),
    ("stream", Problem.of(16, 40, 145, "fp16", "nt"), {"ROWS": 32, "WARPS": 4, "SPLIT_K": 2, "UNROLL": 1}),
]


@pytest.mark.parametrize(("name", "problem", "config"), CASES)
def test_the_product_is_right_on_the_host(name: str, problem: Problem, config: Config, tmp_path: Path) -> None:
    assert wrong(emulate(name, problem, config, tmp_path)) == 0
