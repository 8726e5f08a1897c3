"""No test may touch a user's results or build cache, or see this machine's terminal and GPU settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REQUIRE_GPU = os.environ.get("GEMMSWEEP_REQUIRE_GPU") == "1"


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build cache for all tests of a process."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def private_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared_cache: Path) -> None:
    """A results file, build cache and working directory of the test's own."""
    monkeypatch.setenv("GEMMSWEEP_DB", str(tmp_path / "results.db"))
    monkeypatch.setenv("GEMMSWEEP_CACHE", str(shared_cache))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("GEMMSWEEP_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests skip with a reason where there is no GPU, and run, and so may fail, where one is required."""
    reason = why_no_gpu()
    for item in items:
        if item.get_closest_marker("gpu") and reason and not REQUIRE_GPU:
            item.add_marker(pytest.mark.skip(reason=reason))


def why_no_gpu() -> str:
    """Empty where CuPy sees a GPU."""
    try:
        import cupy

        return "" if cupy.cuda.runtime.getDeviceCount() else "no GPU"
    except Exception as error:
        return f"no GPU: {type(error).__name__}"
