"""Stored values and texts that others wrote: a sentence, never a traceback and nothing on the terminal that was not meant."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import warnings
import zlib
from pathlib import Path
from typing import Any

import pytest
import store_samples as samples
from emulated_cuda import compiler

from gemmsweep.build import inputs
from gemmsweep.errors import DatabaseError, GemmsweepError, TemplateError
from gemmsweep.experiment import find_experiment
from gemmsweep.model import Source
from gemmsweep.store import connect
from gemmsweep.store.runs import open_store
from gemmsweep.template.expressions import parse
from gemmsweep.template.header import load_template
from gemmsweep.template.includes import flatten
from gemmsweep.template.init import draft_sidecar
from gemmsweep.template.library import find_template
from gemmsweep.template.locations import templates_folder


@pytest.mark.parametrize(("table", "column", "value"), [
    ("runs", "registers", "many"), ("runs", "median_ns", float("inf")), ("runs", "reason", b"\xff"), ("runs", "config", "[1]"),
    ("runs", "relations", "{"), ("runs", "relations", '{"cublas": [0, 0, 0.5]}'), ("runs", "relations", '{"cublas": ["x", 1, 2]}'),
    ("runs", "relations", '{"cublas": [null, 0.1, 0.5]}'), ("runs", "relations", '{"cublas": "x"}'),
    ("runs", "relations", '{"cublas": [1, null, 2]}'), ("runs", "relations", '{"cublas": [1, 3, 2]}'),
    ("runs", "relations", '{"cublas": [null, null, 2]}'), ("runs", "relations", '{"cublas": [1, -2, 3]}'),
    ("runs", "relations", '{"cublas": [1, 0, 0]}'), ("runs", "relations", '{"cublas": [1, 1e400, 1e400]}'),
    ("runs", "relations", '{"cublas": [1e400, 1, 1]}'),
    ("runs", "kernels", "5"), ("sweeps", "ties", '{"a": NaN}'), ("sweeps", "m", "\x1b[2J"),
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


@pytest.mark.parametrize(("table", "column", "value", "what"), [
    ("packed_rounds", "blob", zlib.compress(b"\x01", wbits=-15), "the rounds of a run: they end too early"),
    ("packed_rounds", "blob", b"not deflate", "the rounds of a run: Error -3"),
    ("sources", "text_zlib", b"not zlib", "a stored source: Error -3"),
])  # fmt: skip
def test_what_does_not_unpack_is_told_with_the_file(
    tmp_path: Path, table: str, column: str, value: bytes, what: str
) -> None:
    path = tmp_path / "results.db"
    with open_store(path) as store:
        store.save_source(samples.SOURCE, "simt", samples.TEMPLATE)
        samples.race(store, samples.start(), {"BK=16": 1900.0})
        store.connection.raw.execute(f"UPDATE {table} SET {column} = ?", (value,))
    with open_store(path, readonly=True) as store:
        run_id = next(store.runs())["run_id"]
        with pytest.raises(DatabaseError, match=rf"results\.db is damaged \({what}.*\)\. Restore a copy"):
            store.run_detail(run_id)


def test_relations_of_finals_that_are_none_are_damage_too(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    with open_store(path) as store:
        samples.race(store, samples.start(kind="finals", varied=None), {"BK=16": 1900.0})
        store.connection.raw.execute("UPDATE runs SET relations = '[]'")
    with open_store(path, readonly=True) as store:
        with pytest.raises(DatabaseError, match="is damaged"):
            [*store.best()]
        with pytest.raises(DatabaseError, match="is damaged"):
            store.known(samples.PROBLEM, samples.GPU.device_class)


def test_a_file_that_went_as_it_was_opened_takes_no_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "identity_of", lambda path: None)  # removed between connecting and a first look
    with open_store(tmp_path / "results.db") as store, pytest.raises(DatabaseError, match="deleted or replaced"):
        samples.race(store, samples.start(), {"BK=16": 1900.0})


@pytest.mark.parametrize("text", ["1and 2", "0x1for x in y", "1 is 2", "'\\d'", "BM if 1else 2"])
def test_an_expression_says_nothing_but_its_error(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(GemmsweepError):
            parse(text)


def test_a_byte_order_mark_hides_no_header(tmp_path: Path) -> None:
    shipped = find_template("naive")
    marked = tmp_path / "marked.cu"
    marked.write_text((templates_folder() / "naive.cu").read_text(), encoding="utf-8-sig")
    assert load_template(marked).parameters == shipped.parameters


def test_an_include_that_no_file_system_takes_is_left_to_the_compiler(tmp_path: Path) -> None:
    kernel = tmp_path / "k.cu"
    header = (
        '// /// gemmsweep\n// summary = "x"\n// backend = "cuda"\n// arch = "sm_75+"\n// dtypes = ["fp32"]\n// layouts = ["nn"]\n'
        '// [launch]\n// args = ["A", "B", "C"]\n// grid = 1\n// block = 32\n// ///\n'
    )
    kernel.write_text(f'{header}#include "{"x" * 300}.cuh"\n')
    assert load_template(kernel).headers == {}
    assert inputs.reached_files(Source("cuda", kernel.read_text(), ("k",), include_dirs=(str(tmp_path),))) == {}


@pytest.mark.parametrize("guarded", [True, False])
def test_headers_that_include_each_other_twice_are_one_file_of_bounded_size(guarded: bool) -> None:
    def header(number: int) -> str:
        text = f'// text {number}\n#include "h{number + 1}.h"\n#include "h{number + 1}.h"\n'
        guard = f"/* {number} */\n#ifndef H{number}\n#define H{number}\n{text}#endif\n"
        return guard if guarded else text

    headers = {f"h{number}.h": header(number) for number in range(40)} | {"h40.h": "int last;\n"}
    source = Source("cuda", '#include "h0.h"\n', ("k",), headers)
    if guarded:
        assert flatten(source).count("int last;") == 2  # it has no guard itself
    else:
        with pytest.raises(TemplateError, match="Give it #pragma once"):
            flatten(source)


def test_a_header_under_a_condition_or_without_a_whole_guard_is_there_again(tmp_path: Path) -> None:
    guarded = "#ifndef U\n#define U\nint u;\n#endif  // U\n"
    both = '#ifdef DEBUG\n#include "u.h"\n#endif\n#include "u.h"\n'
    assert flatten(Source("cuda", both, ("k",), {"u.h": guarded})).count("int u;") == 2
    plain = '#include "u.h"\n#include "u.h"\n'
    assert flatten(Source("cuda", plain, ("k",), {"u.h": guarded})).count("int u;") == 1
    default = "#ifndef DTYPE\n#define DTYPE float\n#endif\nDTYPE NAME(DTYPE x);\n"
    assert flatten(Source("cuda", plain, ("k",), {"u.h": default})).count("NAME") == 2
    undone = "#ifndef U\n#define U\nint u;\n#undef U\n#endif\n"
    assert flatten(Source("cuda", plain, ("k",), {"u.h": undone})).count("int u;") == 2


ONCE = "#pragma once\nint {} = 1;\n"
UNDER_A_CONDITION = '#ifdef DEBUG\n#include "{0}"\n#endif\n#include "{0}"\n'


@pytest.mark.parametrize("defined", [(), ("-DDEBUG",)])
@pytest.mark.parametrize(("text", "headers"), [
    (UNDER_A_CONDITION.format("u.h"), {"u.h": ONCE.format("u")}),
    (UNDER_A_CONDITION.format("v.h") + '#include "u.h"\n', {"v.h": '#pragma once\n#include "u.h"\n', "u.h": ONCE.format("u")}),
    ('#ifdef DEBUG\n#include "u.h"\n#else\n#include "u.h"\n#endif\n#include "u.h"\n', {"u.h": ONCE.format("u")}),
    (UNDER_A_CONDITION.format("d/u.h") + UNDER_A_CONDITION.format("d_u.h") + "int both = u + v;\n",
     {"d/u.h": ONCE.format("u"), "d_u.h": ONCE.format("v")}),  # two files of almost one name
    ('#include "u.h"\n#include "d/../u.h"\n', dict.fromkeys(("u.h", "d/../u.h"), ONCE.format("u"))),  # one file of two
    ('/*\n#include "u.h"\n*/\n#include "u.h"\n', {"u.h": "/* u */\n" + ONCE.format("u")}),
])  # fmt: skip
def test_a_header_that_is_read_once_is_defined_once_whatever_is_defined(
    text: str, headers: dict[str, str], defined: tuple[str, ...]
) -> None:
    written = flatten(Source("cuda", f"{text}int used = u;\n", ("k",), headers))
    command = [compiler(), "-x", "c++", "-fsyntax-only", *defined, "-"]
    ran = subprocess.run(command, input=written, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_sources_that_nobody_wrote_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.cu")
    (tmp_path / "zero.cu").symlink_to("/dev/zero")
    (tmp_path / "large.cu").write_text("// x\n" * 1_000_000)
    for name, why in (("pipe", "no plain file"), ("zero", "no plain file"), ("large", "larger than 4 MB")):
        with pytest.raises(TemplateError, match=why):
            load_template(tmp_path / f"{name}.cu")


def test_more_than_anybody_tunes_is_an_error(tmp_path: Path) -> None:
    kernel = "__global__ void k(float *A) { A[0] = P1; }\n"
    (tmp_path / "k.cu").write_text("".join(f"#define P{i} {i % 900 + 1}\n" for i in range(20_000)) + kernel)
    assert "\nP1 " in draft_sidecar(tmp_path / "k.cu"), "macros that the code does not use are none of its parameters"
    used = "".join(f"A[{i}] = P{i};" for i in range(2000))
    (tmp_path / "k.cu").write_text(
        "".join(f"#define P{i} 1\n" for i in range(2000)) + f"__global__ void k(float *A) {{{used}}}\n"
    )
    with pytest.raises(TemplateError, match="more than 1000"):
        draft_sidecar(tmp_path / "k.cu")
    experiment = tmp_path / "e.toml"
    experiment.write_text('problems = ["8x8x8", "8x8x8", "9x9x9"]\nvary = ["BK"]\n')
    assert find_experiment(str(experiment)).problems == ((8, 8, 8), (9, 9, 9))
    experiment.write_text(f"problems = {['8x8x8'] * 10_001}\n")
    with pytest.raises(GemmsweepError, match="more than 10000"):
        find_experiment(str(experiment))


@pytest.mark.parametrize("value", ["[" * 5000, "1" * 5000, "{a=" * 2000])
def test_toml_that_python_cannot_take_is_an_error(tmp_path: Path, value: str) -> None:
    kernel, experiment = tmp_path / "k.cu", tmp_path / "e.toml"
    kernel.write_text(f"// /// gemmsweep\n// summary = {value}\n// ///\n")
    experiment.write_text(f"summary = {value}\n")
    with pytest.raises(GemmsweepError, match="not TOML"):
        load_template(kernel)
    with pytest.raises(GemmsweepError, match="cannot be read"):
        find_experiment(str(experiment))
