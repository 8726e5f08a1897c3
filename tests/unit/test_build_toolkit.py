"""CUDA headers are found in pip wheels of either generation, conda environments and system installs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmsweep.build import toolkit


def headers(include: Path, version: int) -> Path:
    include.mkdir(parents=True)
    (include / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
    return include


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(toolkit, "_wheel_roots", lambda: [tmp_path / "nvidia"])


def test_wheels_of_cuda_13_keep_one_folder(tmp_path: Path) -> None:
    include = headers(tmp_path / "nvidia" / "cu13" / "include", 13000)
    (include / "cccl").mkdir()
    assert toolkit.include_dirs(13) == (str(include), str(include / "cccl"))


def test_wheels_of_cuda_12_keep_one_folder_per_component(tmp_path: Path) -> None:
    include = headers(tmp_path / "nvidia" / "cuda_runtime" / "include", 12090)
    cccl = tmp_path / "nvidia" / "cuda_cccl" / "include"
    cccl.mkdir(parents=True)
    assert toolkit.include_dirs(12) == (str(include), str(cccl))


@pytest.mark.parametrize(
    ("variable", "below"),
    [("CUDA_PATH", "include"), ("CUDA_HOME", "include"), ("CONDA_PREFIX", "targets/x86_64-linux/include")],
)
def test_a_toolkit_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, below: str
) -> None:
    include = headers(tmp_path / "toolkit" / below, 13010)
    monkeypatch.setenv(variable, str(tmp_path / "toolkit"))
    assert toolkit.include_dirs(13) == (str(include),)


def test_headers_of_another_major_version_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers(tmp_path / "old" / "include", 11080)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "old"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "new"))
    include = headers(tmp_path / "new" / "include", 12040)
    assert toolkit.include_dirs(12) == (str(include),)


def test_a_replaced_toolkit_changes_the_fingerprint(tmp_path: Path) -> None:
    include = headers(tmp_path / "include", 13000)
    before = toolkit.fingerprint((str(include),))
    (include / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  130010\n")
    assert toolkit.fingerprint((str(include),)) != before
