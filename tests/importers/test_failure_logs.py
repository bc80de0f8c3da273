"""Logs of failed multi-agent runs: who said what, the label apart, and nothing of the answer."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grampus_uq.errors import DataError
from grampus_uq.importers import FailureLog, read_failure_logs
from grampus_uq.records.vocabulary import Role
from tests.importers.data import data_file
from tests.importers.test_tau_bench import json_values, replaced
from tests.sampling import examples


def log(**changes: Any) -> dict[str, Any]:
    value = {
        "question_ID": "q1",
        "is_correct": False,
        "question": "How many?",
        "ground_truth": "SECRET",
        "mistake_reason": "SECRET",
        "mistake_agent": "Coder",
        "mistake_step": "1",
        "history": [
            {"content": "Count them.", "name": "Planner", "role": "assistant"},
            {"content": "Five.", "name": "Coder", "role": "user"},
            {"content": None, "role": "Orchestrator (thought)"},
        ],
    } | changes
    return {name: item for name, item in value.items() if item is not ...}


def read(tmp_path: Path, *values: Any, **options: Any) -> list[FailureLog]:
    path = tmp_path / "logs.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return list(read_failure_logs(path, **options))


def test_the_measured_file_has_the_counts_of_its_description() -> None:
    """126 failed runs; the other figures were counted with the standard parser on the raw file."""
    logs = list(read_failure_logs(data_file("who_and_when", "algorithm_generated.jsonl.gz")))
    assert len(logs) == 126
    assert sum(log.run.n_steps for log in logs) == 1099
    assert all(log.label is not None and 0 <= log.label.step < log.run.n_steps for log in logs)
    blamed = sum(log.label is not None and log.run.messages[log.label.step].name == log.label.agent for log in logs)
    assert blamed == 123
    speakers = Counter(message.name for log in logs for message in log.run.messages)
    assert speakers["Computer_terminal"] == 303
    assert [log.run.line for log in logs] == list(range(1, 127))


def test_the_speaker_is_the_name_or_else_the_role_and_the_step_may_be_a_string(tmp_path: Path) -> None:
    (found,) = read(tmp_path, log())
    assert [message.name for message in found.run.messages] == ["Planner", "Coder", "Orchestrator (thought)"]
    assert [message.role for message in found.run.messages] == [Role.ASSISTANT, Role.USER, Role.ASSISTANT]
    assert found.label is not None
    assert (found.label.run_id, found.label.step, found.label.agent) == ("q1", 1, "Coder")
    for step in (1, " 1 ", "01"):
        assert read(tmp_path, log(mistake_step=step)) == [found]


@pytest.mark.parametrize("form", ["lines", "array", "object", "packed"])
def test_every_form_of_file_gives_the_same_logs(tmp_path: Path, form: str) -> None:
    expected = [one.run.messages for one in read(tmp_path, log())]
    text = (
        json.dumps([log()], indent=1) if form == "array" else json.dumps(log(), indent=1 if form == "object" else None)
    )
    path = tmp_path / "other"
    path.write_bytes(gzip.compress(text.encode()) if form == "packed" else text.encode())
    assert [one.run.messages for one in read_failure_logs(path)] == expected


def test_nothing_of_a_run_depends_on_its_label_its_reason_or_the_answer(tmp_path: Path) -> None:
    plain = read(tmp_path, log(ground_truth=..., mistake_reason=..., mistake_step=..., mistake_agent=..., question=...))
    (full,) = read(tmp_path, log())
    assert plain[0].run == full.run
    assert plain[0].label is None
    assert "SECRET" not in repr(full)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"history": ...}, "history", "None"),
    ({"history": []}, "history", "[]"),
    ({"history": "text"}, "history", "text"),
    ({"history": ["x"]}, "history[0]", "str"),
    ({"history": [{"content": "x", "name": "A"}, {"content": 5, "name": "A"}]}, "history[1].content", "int"),
    ({"history": [{"content": "x"}]}, "history[0].name", "the speaker is unknown"),
    ({"history": [{"content": "x", "name": "", "role": ""}]}, "history[0].name", "the speaker is unknown"),
    ({"history": [{"content": "x", "name": 5}]}, "history[0].name", "int"),
    ({"history": [{"content": "x", "name": "A", "role": []}]}, "history[0].role", "list"),
    ({"mistake_step": "3"}, "mistake_step", "from 0 to 2. Got '3'"),
    ({"mistake_step": -1}, "mistake_step", "-1"),
    ({"mistake_step": "one"}, "mistake_step", "'one'"),
    ({"mistake_step": "1.0"}, "mistake_step", "'1.0'"),
    ({"mistake_step": "²"}, "mistake_step", "'²'"),
    ({"mistake_step": "9" * 10_000}, "mistake_step", "999"),
    ({"mistake_step": True}, "mistake_step", "True"),
    ({"mistake_step": 1.0}, "mistake_step", "1.0"),
    ({"mistake_agent": 5}, "mistake_agent", "int"),
    ({"question_ID": []}, "question_ID", "list"),
    ({"is_correct": True}, "is_correct", "is True"),
    ({"is_correct": "true"}, "is_correct", "is 'true'"),
    ({"is_correct": 1}, "is_correct", "is 1"),
]


@pytest.mark.parametrize(("changes", "field", "says"), WRONG)
def test_a_wrong_log_names_its_line_and_its_field(
    tmp_path: Path, changes: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, log(question_ID="q0"), log(**changes))
    assert (caught.value.path, caught.value.line, caught.value.field) == (str(tmp_path / "logs.jsonl"), 2, field)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_log_that_comes_twice_is_refused_and_one_without_an_id_has_its_number(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'q1' is a duplicate"):
        read(tmp_path, log(), log())
    assert [one.run.run_id for one in read(tmp_path, log(question_ID=...), log(question_ID=...))] == ["0", "1"]


def test_refused_logs_can_be_collected_and_the_others_read(tmp_path: Path) -> None:
    refused: list[DataError] = []
    found = read(
        tmp_path, log(), log(question_ID="q2", mistake_step=9), log(question_ID="q3"), on_refused=refused.append
    )
    assert [one.run.run_id for one in found] == ["q1", "q3"]
    assert [(error.line, error.field) for error in refused] == [(2, "mistake_step")]


@given(st.lists(st.integers(0, 10), max_size=4), json_values)
@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_place_of_any_part_the_log_is_read_or_refused_by_name(
    tmp_path: Path, where: list[int], value: Any
) -> None:
    named = True
    try:
        assert len(read(tmp_path, replaced(log(), where, value))) <= 1  # an empty array holds none
    except DataError as error:
        named = error.path == str(tmp_path / "logs.jsonl") and error.line is not None
    assert named
