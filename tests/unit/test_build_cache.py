"""The build cache: what makes a key, where it lies, damage, two processes at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from gemmsweep.build import cc, inputs
from gemmsweep.build.cache import Cache
from gemmsweep.build.compiler import Compiler
from gemmsweep.model import Build, Source

COMPILER = Compiler("nvrtc", "nvrtc 13.0", "identity")
SOURCE = Source("cuda", '#include "a.cuh"\nbody', ("gemm",), {"a.cuh": "one"}, ("-lineinfo",))
BUILD = Build(True, "ab" * 32, "nvrtc 13.0", "sm_90a", ("-x",), symbols={"k<1>": "_Z1k"}, registers=40, compile_ms=12.5)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMMSWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("source", "arch", "compiler"),
    [
        (replace(SOURCE, text=SOURCE.text + " "), "sm_90a", COMPILER),
        (replace(SOURCE, kernels=("gemm", "pad")), "sm_90a", COMPILER),
        (replace(SOURCE, headers={"a.cuh": "two"}), "sm_90a", COMPILER),
        (replace(SOURCE, headers={"b.cuh": "one"}), "sm_90a", COMPILER),
        (replace(SOURCE, options=("-DX=1",)), "sm_90a", COMPILER),
        (SOURCE, "sm_90", COMPILER),
        (SOURCE, "sm_90a", replace(COMPILER, name="nvrtc 13.1")),
        (SOURCE, "sm_90a", replace(COMPILER, identity="other library file")),
        (SOURCE, "sm_90a", replace(COMPILER, kind="nvcc")),
        (SOURCE, "sm_90a", replace(COMPILER, command=("/opt/nvcc",))),
    ],
)
def test_every_ingredient_changes_the_key(source: Source, arch: str, compiler: Compiler) -> None:
    assert inputs.build_key(source, arch, compiler) != inputs.build_key(SOURCE, "sm_90a", COMPILER)


def test_equal_ingredients_give_equal_keys() -> None:
    same = replace(SOURCE, headers=dict(SOURCE.headers))
    assert inputs.build_key(same, "sm_90a", COMPILER) == inputs.build_key(SOURCE, "sm_90a", COMPILER)


def test_a_cpu_binary_is_keyed_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    source, compiler = Source("cpu", "int f;", ("f",)), Compiler("cc", "gcc 12", "gcc")
    here = inputs.build_key(source, "x", compiler)
    monkeypatch.setattr(cc, "cpu_model", lambda: "another model")
    assert inputs.build_key(source, "x", compiler) != here


def test_this_cpus_model_is_known() -> None:
    assert len(cc.cpu_model()) > len("x86_64 ")


def test_files_of_include_dirs_count_as_far_as_they_are_reached(tmp_path: Path) -> None:
    dirs = tmp_path / "include"
    (dirs / "deep").mkdir(parents=True)
    (dirs / "mine.cuh").write_text('#pragma once\n#  include "deep/more.cuh"\n')
    (dirs / "deep" / "more.cuh").write_text('#include "../../outside.h"\n')
    (tmp_path / "outside.h").write_text("1")
    (dirs / "unused.cuh").write_text("1")
    source = Source("cuda", '#include "mine.cuh"\n#include <missing.h>\n', ("k",), include_dirs=(str(dirs),))

    def key() -> str:
        return inputs.build_key(source, "sm_80", COMPILER)

    first = key()
    (dirs / "unused.cuh").write_text("2")
    assert key() == first
    (tmp_path / "outside.h").write_text("2")
    second = key()
    assert second != first
    (dirs / "missing.h").write_text("now it is there")
    assert key() != second


def test_an_include_through_a_macro_counts_every_file(tmp_path: Path) -> None:
    (tmp_path / "hidden.h").write_text("1")
    source = Source("cuda", "#include HEADER\n", ("k",), options=(f"-I{tmp_path}",))
    assert list(inputs.reached_files(source)) == [str(tmp_path / "hidden.h")]


def test_a_stored_build_comes_back_with_its_first_compile_time() -> None:
    assert Cache().get(BUILD.key) is None
    stored = Cache().put(BUILD, b"cubin", ".cubin")
    assert Path(stored.path).read_bytes() == b"cubin"
    assert not stored.cached
    assert Cache().get(BUILD.key) == replace(stored, cached=True)


@pytest.mark.parametrize("damage", ["binary", "truncated", "missing", "entry", "other key"])
def test_a_damaged_entry_is_a_miss_and_heals(folder: Path, damage: str) -> None:
    path = Path(Cache().put(BUILD, b"cubin", ".cubin").path)
    entry = next(folder.rglob("*.json"))
    if damage == "binary":
        path.write_bytes(b"cubim")
    elif damage == "truncated":
        path.write_bytes(b"")
    elif damage == "missing":
        path.unlink()
    elif damage == "entry":
        entry.write_text(entry.read_text()[:-20])
    else:
        told = json.loads(entry.read_text())
        told["build"]["key"] = "cd" * 32
        entry.write_text(json.dumps(told))
    assert Cache().get(BUILD.key) is None
    Cache().put(BUILD, b"cubin", ".cubin")
    assert Cache().get(BUILD.key) is not None


def test_two_writers_of_one_key_leave_a_whole_entry() -> None:
    first = Cache().put(BUILD, b"from one compiler run", ".so")
    second = Cache().put(BUILD, b"from another run", ".so")
    hit = Cache().get(BUILD.key)
    assert hit is not None
    assert hit.path == second.path
    assert Path(first.path).read_bytes() == b"from one compiler run"  # whoever holds it can still load it


def test_many_processes_on_one_cache(folder: Path) -> None:
    script = (
        "import sys\n"
        "from gemmsweep.build.cache import Cache\n"
        "from gemmsweep.model import Build\n"
        "cache = Cache()\n"
        "for n in range(60):\n"
        "    key = f'{n % 6:064x}'\n"
        "    hit = cache.get(key)\n"
        "    assert hit is None or open(hit.path, 'rb').read().endswith(key.encode())\n"
        "    cache.put(Build(True, key, 'c', 'a', ()), sys.argv[1].encode() * 5000 + key.encode(), '.so')\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, name]) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert all(Cache().get(f"{n:064x}") for n in range(6))
    assert not list(folder.rglob(".new-*"))


def test_the_folder_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMMSWEEP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Cache().folder == tmp_path / "xdg" / "gemmsweep"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Cache().folder == tmp_path / "home" / ".cache" / "gemmsweep"
    assert Cache().note is None


def test_a_folder_that_cannot_be_written_gives_another_and_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("GEMMSWEEP_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = Cache()
    assert opened.note is not None
    assert "GEMMSWEEP_CACHE" in opened.note
    assert opened.folder == tmp_path / f"gemmsweep-{os.getuid()}"
    assert Path(opened.put(BUILD, b"x", ".so").path).is_file()


def test_a_temporary_folder_open_to_others_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("GEMMSWEEP_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shared = tmp_path / f"gemmsweep-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o777)
    assert Cache().folder != shared
