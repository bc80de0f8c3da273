"""The user's own questions: what is read, and that an error names path, line and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.demo.question_file import read_questions
from grampus_uq.errors import DataError


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_json_lines_and_csv_mean_the_same(tmp_path: Path) -> None:
    lines = [
        {"question": "Who wrote Faust?", "answer": ["Goethe", "Johann Wolfgang von Goethe"], "topic": "books"},
        {"question": "How many are 6 × 7?", "answer": 42, "id": "seven"},
        {"question": "What is pi, to two places?", "answer": 3.14},
    ]
    from_json = read_questions(
        written(tmp_path, "own.jsonl", "\ufeff" + "\n\n".join(json.dumps(line) for line in lines) + "\n")
    )
    from_csv = read_questions(
        written(
            tmp_path,
            "own.CSV",
            "topic,id,question,answer,note\n"
            'books,question-1,Who wrote Faust?,Goethe | Johann Wolfgang von Goethe,"a, b"\n'
            ",seven,How many are 6 × 7?,42,\n"
            ',question-5,"What is pi, to two places?",3.14,\n',
        )
    )
    assert from_json == from_csv
    assert [question.key.match for question in from_json] == ["words", "number", "number"]
    assert from_json[0].is_right("It was johann wolfgang von goethe.")
    assert from_json[1].is_right("42.0")
    assert not from_json[1].is_right("4.2")
    assert [question.topic for question in from_json] == ["books", "own", "own"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.txt", "x", r"q\.txt: must be a \.jsonl or a \.csv file"),
        ("q.jsonl", "", r"q\.jsonl: holds no question"),
        ("q.jsonl", "\n \n", r"q\.jsonl: holds no question"),
        ("q.csv", "question,answer\n", r"q\.csv: holds no question"),
        ("q.jsonl", '{"question": "a"}\n', r"q\.jsonl:1, field 'answer': is missing"),
        ("q.jsonl", '\n{"answer": "a"}\n', r"q\.jsonl:2, field 'question': is missing"),
        ("q.jsonl", '{"question": " ", "answer": "a"}', r"q\.jsonl:1, field 'question': must be a text"),
        ("q.jsonl", '{"question": 5, "answer": "a"}', r"q\.jsonl:1, field 'question': must be a text"),
        ("q.jsonl", '{"question": "a", "answer": true}', r"q\.jsonl:1, field 'answer': .*Got True"),
        ("q.jsonl", '{"question": "a", "answer": "?!"}', r"q\.jsonl:1, field 'answer': .*word in it"),
        ("q.jsonl", '{"question": "a", "answer": []}', r"q\.jsonl:1, field 'answer': must hold at least one"),
        ("q.jsonl", '{"question": "a", "answer": [[1]]}', r"q\.jsonl:1, field 'answer': .*Got \[1\]"),
        (
            "q.jsonl",
            '{"question": "a", "answer": ["42", "forty-two"]}',
            r"'answer': .*all numbers or all texts",
        ),
        ("q.jsonl", '{"question": "a", "answer": NaN}', r"q\.jsonl:1: is not JSON: NaN"),
        ("q.jsonl", '{"question": "a", "answer": 1e999999999}', r"q\.jsonl:1, field 'answer': .*50 digits"),
        ("q.jsonl", '{"question": "a", "answer": 1' + "0" * 5_000 + "}", r"q\.jsonl:1: is not JSON"),
        (
            "q.jsonl",
            '{"question": "a", "answer": "b", "answer": "c"}',
            r"q\.jsonl:1: .* name 'answer' comes twice",
        ),
        ("q.jsonl", "[" * 100_000, r"q\.jsonl:1: is nested too deeply"),
        ("q.jsonl", '["a"]', r"q\.jsonl:1: must be a JSON object. Got list"),
        ("q.jsonl", '{"question": "a", "answer": "b"}\n{"question": "a"', r"q\.jsonl:2: is not JSON"),
        (
            "q.jsonl",
            '{"question": "a", "answer": "b", "id": "x"}\n{"question": "c", "answer": "d", "id": "x"}',
            r"q\.jsonl:2, field 'id': 'x' was there before",
        ),
        ("q.jsonl", b'{"question": "caf\xe9"}', r"q\.jsonl: is not UTF-8"),
        ("q.csv", "question,anwser\na,b\n", r"q\.csv:1, field 'answer': the column is missing; found"),
        ("q.csv", "question,answer\na\n", r"q\.csv:2, field 'answer': is missing"),
        ("q.csv", "question,answer\na,b,c\n", r"q\.csv:2: has more cells"),
        ("q.csv", 'question,answer\n"a,b\n', r"q\.csv:\d+: is not CSV"),
        ("q.csv", "question,answer\na,b|\n", r"q\.csv:2, field 'answer': .*word in it"),
        ("q.csv", b"\xff\xfe", r"q\.csv: is not UTF-8"),
    ],
)
def test_whatever_is_wrong_is_named_with_its_place(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_questions(written(tmp_path, name, content))


def test_a_file_that_is_not_there_or_is_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv: cannot be read: No such file"):
        read_questions(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"folder\.csv: cannot be read: Is a directory"):
        read_questions(tmp_path / "folder.csv")


@given(st.binary(max_size=200), st.sampled_from([".csv", ".jsonl"]))
def test_any_bytes_are_read_or_refused_with_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(data)
    refusal = ""
    try:
        assert read_questions(path)
    except DataError as error:
        refusal = str(error)
    assert not refusal or str(path) in refusal
