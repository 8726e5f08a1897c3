"""Compare text with a file of tests/golden/; GEMMSWEEP_UPDATE_GOLDEN=1 writes the file instead."""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parent.parent / "golden"


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("GEMMSWEEP_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        return
    expected = path.read_bytes().decode("utf-8")
    assert text == expected, (
        f"{name} differs. If that is meant: GEMMSWEEP_UPDATE_GOLDEN=1 pytest, then review the diff."
    )
