"""Shapes, dtypes, layouts, shape lists and experiment files, good and bad."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmsweep import experiment, shapes
from gemmsweep.errors import GemmsweepError, ProblemError, UsageError
from gemmsweep.model import Problem


@pytest.mark.parametrize("text", ["512x4096x4096", " 512 X 4096 x 4096 ", "512,4096,4096", "512×4096×4096"])
def test_shapes(text: str) -> None:
    assert experiment.parse_shape(text) == (512, 4096, 4096)


@pytest.mark.parametrize(
    "text", ["", "512", "512x512", "0x1x1", "1x1x-1", "1.5x1x1", "1x1x1x1", "axbxc", f"{2**40}x1x1", "9" * 5000]
)
def test_what_is_not_three_positive_integers_is_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="not three positive integers"):
        experiment.parse_shape(text)


@pytest.mark.parametrize(
    ("alias", "name"), [("half", "fp16"), ("float32", "fp32"), ("BF16", "bf16"), ("bfloat16", "bf16")]
)
def test_dtype_aliases(alias: str, name: str) -> None:
    assert experiment.parse_dtype(alias) == name


def test_names_that_do_not_exist_list_those_that_do() -> None:
    with pytest.raises(ProblemError, match="fp32, tf32, fp16, bf16"):
        experiment.parse_dtype("fp17")
    with pytest.raises(ProblemError, match="nn, nt"):
        experiment.parse_layout("tt")
    with pytest.raises(ProblemError, match="Say --layout nt"):
        experiment.parse_layout("tn")


def test_problem_arithmetic() -> None:
    problem = Problem.of(2, 3, 5, "fp16", "nt")
    assert (problem.lda, problem.ldb, problem.ldd) == (5, 5, 3)
    assert problem.flops == 60
    assert problem.compulsory_bytes == (10 + 15 + 6) * 2
    big = Problem.of(2**31, 2**31, 2**31)
    assert big.flops == 2**94


def test_shape_lists(tmp_path: Path) -> None:
    path = tmp_path / "shapes.csv"
    path.write_text("m,n,k,dtype,layout\n# decode\n1,4096,4096,half,nt\n1,4096,4096,half,nt\n8,8,8,,\n")
    assert shapes.read_csv(path) == [((1, 4096, 4096), "fp16", "nt"), ((8, 8, 8), None, None)]


def test_columns_come_in_any_order_and_empty_fields_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "shapes.csv"
    path.write_text("Count,N,K,M,layout,dtype\n7,4096,512,1,nt,half\n2,3,5,1,,\n2,3,5,1\n")
    assert shapes.read_csv(path) == [((1, 4096, 512), "fp16", "nt"), ((1, 3, 5), None, None)]
    path.write_text("1,4096,512,half,nt,7\n1,3,5,,,,\n")
    assert shapes.read_csv(path) == [((1, 4096, 512), "fp16", "nt"), ((1, 3, 5), None, None)]


@pytest.mark.parametrize(("text", "message"), [
    ("", "is empty"),
    ("m,n,k\n\n# nothing\n", "a header and no shapes"),
    ("m,n,k\n1,2\n3,4,five\n", "line 2.*line 3"),
    ("m,n,k\n128,128,128,bf16,nt\n", "line 2: it has 5 fields, the header names 3. It can name m, n, k, dtype"),
    ("m,n,k\n1,,3\n", "line 2: it has no value for column n"),
    ("m,n,k\n1,2\n", "line 2: it has no value for column k"),
    ("count,m,n,k\n1,2,3\n", "line 2: it has no value for column k"),
    ("1,,3\n", "line 1: it has no value for column n"),
    ("1,2\n", r"line 1: it has 2 fields, a line is m,n,k\[,dtype,layout,count\]\.$"),
    ("1,2,3,bf16,nt,1,1\n", "line 1: it has 7 fields"),
    ("m,n\n1,2\n", "line 1: the header has no column k"),
    ("m,n,n,k\n1,2,2,3\n", "line 1: the header names column n twice"),
    ("m;n;k\n1;2;3\n", "line 1: its fields are divided by semicolons: use commas"),
    ("m\tn\tk\n1\t2\t3\n", "line 1: its fields are divided by tabs: use commas"),
    ('"m,n,k\n1,2,3\n', r'line 1: it has an open quote \("\): close it or leave it out'),
    ('m,n,k\n1,2,"3\n', r'line 2: it has an open quote \("\)'),
    ("m,n,k,colour\n1,2,3,red\n", "unknown column 'colour'"),
    ("rows,n,k\n1,2,3\n", "line 1: unknown column 'rows'"),
    ("m,n,k,dtype\n1,2,3,fp99\n", "line 2: unknown dtype"),
])  # fmt: skip
def test_unreadable_shape_lists_say_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "shapes.csv"
    path.write_text(text)
    with pytest.raises(ProblemError, match=message):
        shapes.read_csv(path)


def test_a_directory_is_no_shape_list_and_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="it is a directory"):
        shapes.read_csv(tmp_path)
    with pytest.raises(ProblemError, match="no such file"):
        shapes.read_csv(tmp_path / "nowhere.csv")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_shape_list_or_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "s.csv"
    path.write_bytes(content)
    try:
        assert shapes.read_csv(path)
    except ProblemError as error:
        assert str(error)


def test_every_shipped_experiment_can_be_read() -> None:
    for path in experiment.experiments_dir().glob("*.toml"):
        assert experiment.find_experiment(path.stem).claims


@pytest.mark.parametrize(
    "text", ["colour = 1", "vary = 3", "passes = 0", "problems = ['1x2']", "l2 = 'warm'", "set = 4", "claim = 3", "= ="]
)
def test_broken_experiment_files_are_usage_errors(tmp_path: Path, text: str) -> None:
    path = tmp_path / "e.toml"
    path.write_text(text)
    with pytest.raises(GemmsweepError):
        experiment.find_experiment(str(path))


def test_an_unknown_experiment_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"unknown experiment 'nothing'\. Choose"):
        experiment.find_experiment("nothing")
    with pytest.raises(UsageError, match=r"Did you mean 'chunked'\?"):
        experiment.find_experiment("Chunkd")
