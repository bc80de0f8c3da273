"""Tables of verifier scores: the same arrays from every form, and the place of every wrong cell."""

from __future__ import annotations

import csv
import gzip
import io
import random
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError, DataError, MissingDependencyError
from grampus_uq.importers import ScoreColumns, ScoreTable, read_scores
from tests.importers.data import data_file

HEADER = "uq_problem_idx,num_steps,judge_probability,solved\n"
quick = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


def table(tmp_path: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def as_runs(scores: ScoreTable) -> dict[str, tuple[bool, list[float]]]:
    return {
        run: (bool(scores.solved[index]), scores.scores[scores.starts[index] : scores.starts[index + 1]].tolist())
        for index, run in enumerate(scores.ids)
    }


@pytest.mark.parametrize(
    ("name", "rows", "runs", "solved", "longest"),
    [("gsm8k", 21450, 5978, 5012, 7), ("hotpotqa", 75880, 16110, 7799, 7), ("chessgames", 69023, 1111, 585, 244)],
)
def test_the_measured_tables_have_one_row_a_step(name: str, rows: int, runs: int, solved: int, longest: int) -> None:
    """The figures were counted with the standard csv module; the scores are compared with it here."""
    path = data_file("verifier_scores", f"{name}.csv.gz")
    scores = read_scores(path)
    assert (len(scores), len(scores.scores), int(scores.solved.sum())) == (runs, rows, solved)
    assert int(scores.lengths.max()) == longest
    expected: dict[str, tuple[bool, list[float]]] = {}
    with gzip.open(path, "rt", newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            one = expected.setdefault(row["uq_problem_idx"], (row["solved"] == "True", []))
            one[1].append(float(row["judge_probability"]))
    assert as_runs(scores) == expected


score_runs = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=6).filter(
        lambda text: bool(text.strip())
    ),
    st.tuples(st.booleans(), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6)),
    max_size=6,
)


def rows_of(runs: dict[str, tuple[bool, list[float]]]) -> list[tuple[str, int, float, bool]]:
    return [(run, step, score, ok) for run, (ok, scores) in runs.items() for step, score in enumerate(scores, 1)]


def as_csv(rows: list[tuple[str, int, float, bool]]) -> str:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(["ignored", "solved", "num_steps", "uq_problem_idx", "judge_probability"])
    for run, step, score, solved in rows:
        writer.writerow(['a "quoted"\nline', solved, step, run, repr(score)])
    return stream.getvalue()


@given(score_runs, st.randoms(use_true_random=False))
@quick
def test_neither_form_nor_order_of_the_rows_changes_the_table(
    tmp_path: Path, runs: dict[str, tuple[bool, list[float]]], rng: random.Random
) -> None:
    rows = rows_of(runs)
    plain = read_scores(table(tmp_path, as_csv(rows)))
    assert as_runs(plain) == runs
    assert list(plain.ids) == sorted(runs)
    rng.shuffle(rows)
    shuffled = read_scores(table(tmp_path, gzip.compress(as_csv(rows).encode()), "t.csv.gz"))
    assert shuffled.ids == plain.ids
    for name in ("starts", "scores", "solved"):
        np.testing.assert_array_equal(getattr(shuffled, name), getattr(plain, name))


def test_a_table_without_rows_is_an_empty_table(tmp_path: Path) -> None:
    scores = read_scores(table(tmp_path, HEADER))
    assert (len(scores), scores.scores.shape, scores.starts.tolist()) == (0, (0,), [0])


@pytest.mark.parametrize("types", ["plain", "other"])
def test_parquet_gives_what_csv_gives(tmp_path: Path, types: str) -> None:
    pa = pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = rows_of({f"r{i}": (i % 2 == 0, [i / 300, 0.5]) for i in range(300)})
    run, step, score, solved = (list(column) for column in zip(*rows, strict=True))
    if types == "other":
        columns = {
            "uq_problem_idx": pa.array(run).dictionary_encode(),
            "num_steps": pa.array(step, pa.float64()),
            "judge_probability": pa.array(score, pa.float32()),
            "solved": pa.array(solved).cast(pa.int8()),
        }
    else:
        columns = {"uq_problem_idx": run, "num_steps": step, "judge_probability": score, "solved": solved}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    plain, other = read_scores(table(tmp_path, as_csv(rows))), read_scores(tmp_path / "t.parquet")
    assert other.ids == plain.ids
    np.testing.assert_array_equal(other.starts, plain.starts)
    np.testing.assert_allclose(other.scores, plain.scores, rtol=1e-6 if types == "other" else 0)
    np.testing.assert_array_equal(other.solved, plain.solved)


def test_parquet_without_its_package_says_which_extra_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    with pytest.raises(MissingDependencyError, match=r"grampus-uq\[parquet\]"):
        read_scores(table(tmp_path, b"PAR1", "t.parquet"))


def test_wrong_cells_of_parquet_are_named_by_row_and_column(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    good = {"uq_problem_idx": ["a"] * 3, "num_steps": [1, 2, 3], "judge_probability": [0.5] * 3, "solved": [True] * 3}
    for column, cells in (
        ("uq_problem_idx", ["a", "a", None]),
        ("num_steps", [1, 2, 2]),
        ("num_steps", [1, 2, None]),
        ("judge_probability", [0.5, 0.5, None]),
        ("judge_probability", [0.5, 0.5, 1.5]),
        ("solved", [True, True, False]),
        ("solved", [1, 1, 7]),
    ):
        parquet.write_table(pa.table(good | {column: cells}), tmp_path / "t.parquet")
        with pytest.raises(DataError) as caught:
            read_scores(tmp_path / "t.parquet")
        assert (caught.value.line, caught.value.field) == (3, column)
    content = (tmp_path / "t.parquet").read_bytes()
    with pytest.raises(DataError, match="damaged"):
        read_scores(table(tmp_path, content[: len(content) // 2], "cut.parquet"))


A = "a,1,0.5,True\n"

WRONG: list[tuple[str | bytes, int, str, str]] = [
    ("", 1, "uq_problem_idx", "is missing from the header"),
    ("uq_problem_idx,num_steps,solved\n" + A, 1, "judge_probability", "is missing from the header"),
    (HEADER.replace("solved", "solved,solved"), 1, "solved", "comes twice"),
    (HEADER + A + "a,2,0.5\n", 3, "solved", "has 3 cells"),
    (HEADER + A + "\n\na,2\n", 5, "judge_probability", "has 2 cells"),
    (HEADER + A + "a,2,0.5,True,7\n", 3, "", "has 5 cells"),
    (HEADER + A + ",1,0.5,True\n", 3, "uq_problem_idx", "is missing"),
    (HEADER + A + " ,1,0.5,True\n", 3, "uq_problem_idx", "is missing"),
    (HEADER + A + "a,,0.5,True\n", 3, "num_steps", "is missing"),
    (HEADER + A + "a,two,0.5,True\n", 3, "num_steps", "'two'"),
    (HEADER + A + "a,2.5,0.5,True\n", 3, "num_steps", "whole number"),
    (HEADER + A + "a,inf,0.5,True\n", 3, "num_steps", "whole number"),
    (HEADER + "a,0,0.5,True\na,1,0.5,True\n", 2, "num_steps", "must count from 1"),
    (HEADER + A + "a,-1,0.5,True\n", 3, "num_steps", "must count from 1"),
    (HEADER + A + "b,2,0.5,True\nb,3,0.5,True\n", 3, "num_steps", "begins with step 2"),
    (HEADER + A + "a,2,0.5,True\na,2,0.6,True\n", 4, "num_steps", "has step 2 twice"),
    (HEADER + A + "a,3,0.5,True\n", 3, "num_steps", "has no step 2"),
    (HEADER + A + "a,2,,True\n", 3, "judge_probability", "is missing"),
    (HEADER + A + "a,2,high,True\n", 3, "judge_probability", "'high'"),
    (HEADER + A + "a,2,nan,True\n", 3, "judge_probability", "in [0, 1]"),
    (HEADER + A + "a,2,inf,True\n", 3, "judge_probability", "in [0, 1]"),
    (HEADER + A + "a,2,85,True\n", 3, "judge_probability", "in [0, 1]"),
    (HEADER + A + "a,2,0.5,\n", 3, "solved", "is missing"),
    (HEADER + A + "a,2,0.5,maybe\n", 3, "solved", "maybe"),
    (HEADER + A + "a,2,0.5,False\n", 3, "solved", "is True in an earlier step, False here"),
    (HEADER.encode() + A.encode() + b"a\xff,2,0.5,True\n", 3, "", "not UTF-8"),
    (HEADER + A + '"a\n\n,2,0.5,True\n', 5, "", "is not CSV"),
    (HEADER + A + '"a"b,2,0.5,True\n', 3, "", "is not CSV"),
    (HEADER + '"a\nb",1,0.5,True\na,1,x,True\n', 4, "judge_probability", "'x'"),
]


@pytest.mark.parametrize(("text", "line", "field", "says"), WRONG)
@pytest.mark.parametrize("form", ["whole", "packed"])
def test_a_wrong_table_names_line_and_column(
    tmp_path: Path, text: str | bytes, line: int, field: str, says: str, form: str
) -> None:
    data = text.encode() if isinstance(text, str) else text
    path = table(tmp_path, gzip.compress(data) if form == "packed" else data)
    with pytest.raises(DataError) as caught:
        read_scores(path)
    assert says in str(caught.value)
    assert (caught.value.path, caught.value.line, caught.value.field) == (str(path), line, field)


def test_a_wrong_cell_far_behind_is_found_by_its_line(tmp_path: Path) -> None:
    lines = [f'r{i},1,0.5,"True"\n' for i in range(9000)]
    lines[8500] = "r8500,1,x,True\n"
    with pytest.raises(DataError) as caught:
        read_scores(table(tmp_path, HEADER + "".join(lines)))
    assert (caught.value.line, caught.value.field) == (8502, "judge_probability")


def test_the_rows_of_a_run_need_not_be_together(tmp_path: Path) -> None:
    path = table(tmp_path, HEADER + A + "b,1,0.5,True\na,2,0.5,True\n")
    assert as_runs(read_scores(path)) == {"a": (True, [0.5, 0.5]), "b": (True, [0.5])}


def test_missing_scores_other_domains_and_other_names_are_a_matter_of_arguments(tmp_path: Path) -> None:
    path = table(tmp_path, "id,t,s,ok\na,1.0,-3.5,1\na,2,,1.0\nb,1,7,0\n")
    columns = ScoreColumns(run="id", step="t", score="s", solved="ok")
    scores = read_scores(path, columns=columns, domain=None, allow_missing=True)
    np.testing.assert_array_equal(scores.scores, [-3.5, np.nan, 7.0])
    assert scores.solved.tolist() == [True, False]
    with pytest.raises(DataError, match=r"must be a number in \[-1, 10\]"):
        read_scores(path, columns=columns, domain=(-1.0, 10.0), allow_missing=True)
    with pytest.raises(DataError, match="is missing"):
        read_scores(path, columns=columns, domain=None)
    with pytest.raises(DataError, match="must be a finite number"):
        read_scores(table(tmp_path, HEADER + "a,1,inf,1\n"), domain=None)
    with pytest.raises(ConfigurationError, match="four different names"):
        ScoreColumns(run="id", step="id")


@given(st.lists(st.integers(0, 400), max_size=4), st.lists(st.binary(max_size=4), min_size=4, max_size=4))
@quick
def test_a_table_with_bytes_changed_is_read_or_refused_with_a_place(
    tmp_path: Path, places: list[int], pieces: list[bytes]
) -> None:
    data = bytearray((HEADER + "".join(f"r{i},{t},0.{i}{t},{i % 2 == 0}\n" for i in range(5) for t in (1, 2))).encode())
    for place, piece in zip(places, pieces, strict=False):
        data[place : place + 1] = piece
    path = table(tmp_path, bytes(data))
    named = True
    try:
        scores = read_scores(path)
        assert bool(((scores.scores >= 0) & (scores.scores <= 1)).all())
    except DataError as error:
        named = error.path == str(path) and error.line is not None
    assert named


def test_a_line_of_a_hundred_megabytes_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("wb") as stream:
        stream.write((HEADER + A).encode())
        for _ in range(100):
            stream.write(b"x" * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="longer than 16777216 characters") as caught:
            read_scores(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (caught.value.path, caught.value.line) == (str(path), 3)
    assert peak < 64 * 2**20


def test_a_quoted_cell_without_end_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("wb") as stream:
        stream.write((HEADER + A).encode() + b'"')
        for _ in range(50):
            stream.write(b"x\n" * 2**19)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="field larger than field limit") as caught:
            read_scores(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.line is not None
    assert peak < 64 * 2**20
