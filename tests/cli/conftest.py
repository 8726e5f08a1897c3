"""The real command line, in this process: `gemmsweep(*arguments)` gives code, stdout and stderr."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from screen import Result, Run

from gemmsweep.cli.main import main


@pytest.fixture
def gemmsweep(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Result(int(end.value.code or 0), out, err)

    return run


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[[str], str]:
    """A `--device` value for a script; labels of the sweeps match its rules."""

    def device(script: str) -> str:
        path = tmp_path / "device.toml"
        path.write_text(script)
        return f"scripted:{path}"

    return device
