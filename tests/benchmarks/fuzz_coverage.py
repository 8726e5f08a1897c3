"""The parsers of fuzz_parsers.py under a coverage-guided fuzzer: python tests/benchmarks/fuzz_coverage.py [SECONDS] [SEED].

Needs `pip install atheris` (libFuzzer for Python; Linux). It keeps what reaches code that nothing reached before and mutates that
further. Real files are the first corpus. Anything but a result or a GemmsweepError, an answer later than 5 s, or more than 2 GB of
memory ends it with the input; libFuzzer prints the executions at the end.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import atheris

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "unit")]
with atheris.instrument_imports(include=["gemmsweep"]):
    import fuzz_parsers

    from gemmsweep.errors import GemmsweepError
    from gemmsweep.experiment import experiments_dir
    from gemmsweep.template.locations import templates_folder

LONGEST_BYTES = 8192
SEEDS: dict[str, list[str]] = {
    "template headers": [p.read_text() for p in sorted(templates_folder().glob("*.c*"))] + fuzz_parsers.TEMPLATES,
    "sidecars": [(fuzz_parsers.DATA / "own" / "blocktile.toml").read_text()],
    "experiment files": [p.read_text() for p in sorted(experiments_dir().glob("*.toml"))],
    "shape lists": ["m,n,k,dtype,layout\n1,2,3,fp16,nt\n4096,11008,4096,bf16,nn\n", "8,8,8\n# x\n9,9,9\n"],
    "--vary": ["BM", "BM=1,2,4", "UNROLL=1:16:*2", "BN=8:64:8", "ORDER=strided,coalesced"],
    "--set": ["BM=8", "BM=BN/2", "UNROLL=max(1, BM % 4)", "ORDER=strided"],
    "expressions": fuzz_parsers.RULES,
    "other options": ["4096x4096x4096", "bias+leaky_relu(0.1)", "clamp(-1,1)", "fp16", "nt", "8m", "90s"],
}
NAMES = list(SEEDS)


def write_corpus(folder: Path) -> None:
    """One file per seed: the number of its target, then the text."""
    for number, name in enumerate(NAMES):
        for place, text in enumerate(SEEDS[name]):
            (folder / f"{number}_{place}").write_bytes(bytes([number]) + text.encode()[: LONGEST_BYTES - 1])


def write_dictionary(path: Path) -> None:
    """What has broken parsers before, as libFuzzer's words."""
    words = (splice.encode("utf-8", "surrogatepass") for splice in fuzz_parsers.SPLICES if 0 < len(splice) <= 64)
    path.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in words))


def main() -> None:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    logging.disable(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="gemmsweep-fuzz-"))
    for name in ("corpus", "work"):
        (folder / name).mkdir()
    write_corpus(folder / "corpus")
    write_dictionary(folder / "words")

    def execute(data: bytes) -> None:
        if not data:
            return
        target, _ = fuzz_parsers.TARGETS[NAMES[data[0] % len(NAMES)]]
        try:
            target(folder / "work", data[1:].decode("utf-8", errors="replace"))
        except GemmsweepError as error:
            assert str(error).strip(), "an error without a message"

    limits = [
        f"-max_total_time={seconds}",
        "-timeout=5",
        "-rss_limit_mb=2048",
        f"-max_len={LONGEST_BYTES}",
        f"-seed={seed}",
    ]
    atheris.Setup(
        [sys.argv[0], *limits, f"-dict={folder / 'words'}", "-print_final_stats=1", str(folder / "corpus")], execute
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
