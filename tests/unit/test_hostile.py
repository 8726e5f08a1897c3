"""Stored values and texts that others wrote: a sentence, never a traceback and nothing on the terminal that was not meant."""

from __future__ import annotations

import sqlite3
import warnings
from pathlib import Path
from typing import Any

import pytest
import store_samples as samples

from gemmsweep.build import inputs
from gemmsweep.errors import DatabaseError, GemmsweepError
from gemmsweep.experiment import find_experiment
from gemmsweep.model import Source
from gemmsweep.store.runs import open_store
from gemmsweep.template.expressions import parse
from gemmsweep.template.header import load_template


@pytest.mark.parametrize(("table", "column", "value"), [
    ("runs", "registers", "many"), ("runs", "median_ns", float("inf")), ("runs", "reason", b"\xff"), ("runs", "config", "[1]"),
    ("runs", "relations", "{"), ("runs", "kernels", "5"), ("sweeps", "ties", '{"a": NaN}'), ("sweeps", "m", "\x1b[2J"),
    ("environments", "power_limit_w", ""), ("counters", "value", "x"), ("counters", "unit", b""),
])  # fmt: skip
def test_a_stored_value_of_another_kind_is_damage(tmp_path: Path, table: str, column: str, value: Any) -> None:
    path = tmp_path / "results.db"
    with open_store(path) as store:
        samples.race(store, samples.start(), {"BK=16": 1900.0})
        key = store.connection.raw.execute("SELECT key FROM runs WHERE role = 'config'").fetchone()[0]
        store.save_counters(key, [samples.Counter("power_w", 300.0, "W", "nvml")])
    with sqlite3.connect(path) as raw:
        raw.execute(f"UPDATE {table} SET {column} = ?", (value,))
    with open_store(path, readonly=True) as store, pytest.raises(DatabaseError, match="is damaged"):
        [*store.sweeps(), *store.runs()]


@pytest.mark.parametrize("text", ["1and 2", "0x1for x in y", "1 is 2", "'\\d'", "BM if 1else 2"])
def test_an_expression_says_nothing_but_its_error(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(GemmsweepError):
            parse(text)


def test_an_include_that_no_file_system_takes_is_left_to_the_compiler(tmp_path: Path) -> None:
    kernel = tmp_path / "k.cu"
    header = (
        '// /// gemmsweep\n// summary = "x"\n// backend = "cuda"\n// arch = "sm_75+"\n// dtypes = ["fp32"]\n// layouts = ["nn"]\n'
        '// [launch]\n// args = ["A", "B", "C"]\n// grid = 1\n// block = 32\n// ///\n'
    )
    kernel.write_text(f'{header}#include "{"x" * 300}.cuh"\n')
    assert load_template(kernel).headers == {}
    assert inputs.reached_files(Source("cuda", kernel.read_text(), ("k",), include_dirs=(str(tmp_path),))) == {}


@pytest.mark.parametrize("value", ["[" * 5000, "1" * 5000, "{a=" * 2000])
def test_toml_that_python_cannot_take_is_an_error(tmp_path: Path, value: str) -> None:
    kernel, experiment = tmp_path / "k.cu", tmp_path / "e.toml"
    kernel.write_text(f"// /// gemmsweep\n// summary = {value}\n// ///\n")
    experiment.write_text(f"summary = {value}\n")
    with pytest.raises(GemmsweepError, match="not TOML"):
        load_template(kernel)
    with pytest.raises(GemmsweepError, match="cannot be read"):
        find_experiment(str(experiment))
