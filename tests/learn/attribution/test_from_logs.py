"""Imported runs become trajectories, and only logs that can calibrate calibrate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grampus_uq.errors import DataError
from grampus_uq.importers import ImportedRun
from grampus_uq.learn.attribution import read_labelled_failures, trajectory_from_run
from grampus_uq.records.values import Message, Outcome, ToolCall
from grampus_uq.records.vocabulary import Role


def write(tmp_path: Path, *rows: dict[str, object]) -> Path:
    path = tmp_path / "logs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(name: str, **changes: object) -> dict[str, object]:
    history = [
        {"content": "be brief", "role": "system", "name": "Manager"},
        {"content": "plan", "role": "assistant", "name": "Planner"},
        {"content": "exitcode: 1 (execution failed)", "role": "user", "name": "Computer_terminal"},
        {"content": "exitcode: 0 (execution succeeded)\nError: in the text only", "name": "Computer_terminal"},
        {"content": None, "role": "Orchestrator (thought)"},
    ]
    return {"question_ID": name, "history": history, "mistake_step": "2", "ground_truth": "SECRET"} | changes


def test_every_message_of_a_log_is_a_step_so_that_labels_keep_their_numbers(tmp_path: Path) -> None:
    (item,) = read_labelled_failures(write(tmp_path, row("a")))
    steps = item.trajectory.steps
    assert item.error_steps == (2,)
    assert [s.speaker for s in steps] == [
        "Manager",
        "Planner",
        "Computer_terminal",
        "Computer_terminal",
        "Orchestrator (thought)",
    ]
    assert [s.observation for s in steps] == [False, False, True, True, False]
    assert [s.tool_failed for s in steps] == [None, None, True, False, None]
    assert "SECRET" not in repr(item)


def test_logs_that_cannot_calibrate_are_told_and_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        row("a"),
        row("a"),
        row("b", mistake_step=None),
        row("c", mistake_step="5"),
        row("d", is_correct=True),
        row("e", history=[]),
        row("f", mistake_step=0),
    )
    left_out: list[DataError] = []
    labelled = read_labelled_failures(path, on_left_out=left_out.append)
    assert [item.trajectory.trajectory_id for item in labelled] == ["a", "f"]
    assert [error.line for error in left_out] == [2, 3, 4, 5, 6]
    with pytest.raises(DataError, match="is a duplicate"):
        read_labelled_failures(path)
    with pytest.raises(DataError, match="has no label"):
        read_labelled_failures(write(tmp_path, row("b", mistake_step=None)))


def test_a_chat_becomes_the_agents_messages_and_what_it_observed() -> None:
    run = ImportedRun(
        run_id="r",
        path="x",
        line=1,
        outcome=Outcome(success=False),
        messages=(
            Message(role=Role.SYSTEM, content="prompt"),
            Message(role=Role.USER, content="refund me"),
            Message(
                role=Role.ASSISTANT, content=None, tool_calls=(ToolCall(name="refund", arguments={"b": 1, "a": 2}),)
            ),
            Message(role=Role.TOOL, content="Error: payment method not found", tool_call_id="1"),
            Message(role=Role.TOOL, content="done", tool_call_id="2"),
        ),
    )
    found = trajectory_from_run(run, task="help")
    assert [s.step_id for s in found.steps] == ["1", "2", "3", "4"]
    assert found.steps[1].text == 'refund({"a":2,"b":1})'
    assert [s.tool_failed for s in found.steps] == [None, None, True, False]
    assert [s.speaker for s in found.steps] == ["user", "assistant", "tool", "tool"]
    assert found.task == "help"
