"""Reads the user's own questions from JSON lines or CSV, and says path, line and field of whatever is wrong."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from grampus_uq.demo.grading import Key, exact_number, normalised
from grampus_uq.demo.questions import Question
from grampus_uq.errors import DataError
from grampus_uq.records.strict_json import parse_json

_JSON_SUFFIXES: Final = frozenset({".jsonl", ".ndjson"})
_MOST_DIGITS: Final = 50


def read_questions(path: str | os.PathLike[str]) -> list[Question]:
    """Read every question of a file: `question`, `answer`, and if wanted `id` and `topic`; other fields are left alone.

    In a `.jsonl` file `answer` is a text, a number, or a list of either, any of which is right. In a `.csv` file (with
    a header) several answers are parted by `|`. Answers that are numbers are compared as numbers, exactly; texts as
    whole words, whatever their case and accents.

    Raises DataError, naming path, line and field: a file that is neither, is not UTF-8 or cannot be read, a missing or
    empty field, an answer that is neither text nor number, numbers mixed with texts, an id that was there before.
    """
    name, suffix = os.fspath(path), Path(path).suffix.lower()
    if suffix != ".csv" and suffix not in _JSON_SUFFIXES:
        raise DataError("must be a .jsonl or a .csv file.", path=name)
    read = _csv_rows if suffix == ".csv" else _json_rows
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as stream:
            questions = list(_questions(read(stream, name), name))
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}.", path=name) from error
    except UnicodeDecodeError as error:
        raise DataError(f"is not UTF-8: {error.reason} at byte {error.start}.", path=name) from error
    if not questions:
        raise DataError("holds no question.", path=name)
    return questions


def _questions(rows: Iterable[tuple[int, Mapping[str, Any]]], path: str) -> Iterator[Question]:
    seen: set[str] = set()
    for line, row in rows:
        text = _text(row, "question", path, line)
        accepted = _accepted(row.get("answer"), path, line)
        identity = _text(row, "id", path, line, default=f"question-{line}")
        if identity in seen:
            raise DataError(f"{identity!r:.100} was there before.", path=path, line=line, field="id")
        seen.add(identity)
        topic = _text(row, "topic", path, line, default="own")
        yield Question(id=identity, topic=topic, text=text, key=_key(accepted, path, line))


def _text(row: Mapping[str, Any], field: str, path: str, line: int, *, default: str | None = None) -> str:
    value = row.get(field)
    if default is not None and (value is None or value == ""):
        return default
    if value is None:
        raise DataError("is missing.", path=path, line=line, field=field)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"must be a text that is not empty. Got {value!r:.100}.", path=path, line=line, field=field)
    return value.strip()


def _accepted(value: Any, path: str, line: int) -> tuple[str, ...]:
    if value is None:
        raise DataError("is missing.", path=path, line=line, field="answer")
    answers = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(_answer(answer, path, line) for answer in answers))


def _answer(value: Any, path: str, line: int) -> str:
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        number = Decimal(value)
        if abs(number.adjusted()) < _MOST_DIGITS and len(number.as_tuple().digits) <= _MOST_DIGITS:
            return format(number, "f")
        raise DataError(f"is a number of more than {_MOST_DIGITS} digits.", path=path, line=line, field="answer")
    if isinstance(value, str) and (exact_number(value) is not None or normalised(value)):
        return value.strip()
    expected = "must be a text with a word in it, a number, or a list of these"
    raise DataError(f"{expected}. Got {value!r:.100}.", path=path, line=line, field="answer")


def _key(accepted: tuple[str, ...], path: str, line: int) -> Key:
    numeric = [exact_number(answer) is not None for answer in accepted]
    if not accepted:
        raise DataError("must hold at least one answer.", path=path, line=line, field="answer")
    if any(numeric) and not all(numeric):
        raise DataError(f"must be all numbers or all texts. Got {accepted}.", path=path, line=line, field="answer")
    return Key(accepted=accepted, match="number" if all(numeric) else "words")


def _json_rows(stream: Iterable[str], path: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, text in enumerate(stream, 1):
        if not text.strip():
            continue
        try:
            row = parse_json(text, unique_names=True, parse_float=Decimal)
        except ValueError as error:  # also an integer of thousands of digits
            raise DataError(str(error), path=path, line=line) from error
        if not isinstance(row, dict):
            raise DataError(f"must be a JSON object. Got {type(row).__name__}.", path=path, line=line)
        yield line, row


def _csv_rows(stream: Iterable[str], path: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = csv.DictReader(stream, strict=True)
    try:
        for column in ("question", "answer"):
            if column not in (rows.fieldnames or ()):
                raise DataError(f"the column is missing; found {rows.fieldnames}.", path=path, line=1, field=column)
        for row in rows:
            if None in row:
                raise DataError("has more cells than the header.", path=path, line=rows.line_num)
            answer = row["answer"]
            answers = [part.strip() for part in answer.split("|")] if answer else None
            yield rows.line_num, {**row, "answer": answers}
    except csv.Error as error:
        raise DataError(f"is not CSV: {error}.", path=path, line=rows.line_num) from error
