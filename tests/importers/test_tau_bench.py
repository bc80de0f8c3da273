"""tau-bench result files: the runs that are there, nothing that a monitor could not have seen, every fault named."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grampus_uq.errors import DataError
from grampus_uq.importers import ImportedRun, read_tau_bench
from grampus_uq.importers.imported_run import events
from grampus_uq.recording.codec import encode
from grampus_uq.records.values import ToolCall
from grampus_uq.records.vocabulary import Role, StopReason
from grampus_uq.wire.calls import UNPARSED, is_unparsed
from tests.importers.data import data_file
from tests.sampling import examples


def call(arguments: Any = '{"user": "mia", "n": 1.5}', name: Any = "get_user") -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def row(**changes: Any) -> dict[str, Any]:
    """A run of one call; `...` removes a field."""
    value = {
        "task_id": 3,
        "trial": 0,
        "reward": 1.0,
        "info": {"task": {"instruction": "SECRET", "actions": ["SECRET"]}},
        "traj": [
            {"role": "system", "content": "You book flights."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": None, "tool_calls": [call()]},
            {"role": "tool", "tool_call_id": "call_1", "name": "get_user", "content": "{}"},
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": "###STOP###"},
        ],
    } | changes
    return {name: item for name, item in value.items() if item is not ...}


def file(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "results.json"
    path.write_text("[\n" + ",\n".join(json.dumps(item) for item in rows) + "\n]")
    return path


def read(tmp_path: Path, *rows: Any, **options: Any) -> list[ImportedRun]:
    return list(read_tau_bench(file(tmp_path, *rows), **options))


def test_the_measured_file_has_the_counts_of_its_description() -> None:
    """200 runs, 50 tasks x 4 trials; the other figures were counted with the standard parser on the raw file."""
    runs = list(read_tau_bench(data_file("tau_bench", "gpt-4o-airline.json.gz")))
    assert len(runs) == 200
    assert Counter(Counter(run.task_id for run in runs).values()) == {4: 50}
    assert Counter(run.trial for run in runs) == {0: 50, 1: 50, 2: 50, 3: 50}
    assert Counter(run.reward for run in runs) == {1.0: 84, 0.0: 116}
    assert Counter((run.outcome.success, run.outcome.stop_reason) for run in runs) == {
        (True, StopReason.CLEAN): 84,
        (False, StopReason.CLEAN): 111,
        (None, StopReason.MAX_STEPS): 5,
    }
    roles = Counter(message.role for run in runs for message in run.messages)
    assert roles == {Role.USER: 1490, Role.ASSISTANT: 2454, Role.TOOL: 1164, Role.SYSTEM: 200}
    calls = [call for run in runs for message in run.messages for call in message.tool_calls]
    assert len(calls) == 1164
    assert {"user_id": "mia_li_3668"} in [call.arguments for call in calls]
    assert sum(run.n_steps for run in runs) == 2454


def test_a_run_is_its_messages_its_task_and_its_reward(tmp_path: Path) -> None:
    (run,) = read(tmp_path, row())
    assert (run.run_id, run.task_id, run.trial, run.reward) == ("3-0", "3", 0, 1.0)
    assert (run.path, run.line, run.n_steps) == (str(tmp_path / "results.json"), 2, 2)
    assert run.outcome.success is True
    assert run.messages[2].tool_calls == (ToolCall(id="call_1", name="get_user", arguments={"user": "mia", "n": 1.5}),)
    assert run.messages[2].content is None
    assert run.messages[3].tool_call_id == "call_1"


@pytest.mark.parametrize("info", [..., None, 5, {"task": {"actions": ["other"]}, "error": "x"}])
def test_nothing_of_a_run_depends_on_its_info(tmp_path: Path, info: Any) -> None:
    assert read(tmp_path, row(info=info)) == read(tmp_path, row())
    assert "SECRET" not in repr(read(tmp_path, row()))


@pytest.mark.parametrize(
    ("reward", "success"), [(1, True), (0, False), (1.0, True), (0.9999999, True), (0.5, False), (0.0, False)]
)
def test_success_is_a_reward_of_one(tmp_path: Path, reward: float, success: bool) -> None:
    assert read(tmp_path, row(reward=reward))[0].outcome.success is success


def long_run(*last: dict[str, Any], turns: int = 30) -> dict[str, Any]:
    traj = [{"role": "assistant", "content": "hm"}, {"role": "user", "content": "and?"}] * turns
    return row(traj=[*traj[: len(traj) - len(last)], *last], reward=0.0)


@pytest.mark.parametrize(
    ("value", "stop"),
    [
        (long_run(), StopReason.MAX_STEPS),
        (long_run({"role": "user", "content": "bye ###STOP###"}), StopReason.CLEAN),
        (long_run(turns=29), StopReason.CLEAN),
        (
            long_run(
                {"role": "assistant", "content": None, "tool_calls": [call("{}", "transfer_to_human_agents")]},
                {"role": "tool", "content": "ok"},
            ),
            StopReason.CLEAN,
        ),
        (row(traj=[], reward=0.0), StopReason.ENV_TERMINATED),
    ],
)
def test_a_run_that_was_cut_off_has_no_outcome(tmp_path: Path, value: Any, stop: StopReason) -> None:
    (run,) = read(tmp_path, value)
    assert run.outcome.stop_reason is stop
    assert run.outcome.success is (False if stop is StopReason.CLEAN else None)


@pytest.mark.parametrize(
    "arguments",
    ["{'user': 'mia', 'n': None}", '{"a": ', "[1]", [1], 5, '{"a": NaN}', '{"a": 1e999}', "[" * 100_000, "\ud800"],
    ids=lambda value: repr(value)[:20],
)
def test_arguments_that_are_no_json_object_keep_the_run_and_are_marked(tmp_path: Path, arguments: Any) -> None:
    traj = [{"role": "assistant", "content": "I look.", "tool_calls": [call(arguments), call()]}]
    [run] = read(tmp_path, row(traj=traj))
    odd, sound = run.messages[0].tool_calls
    assert is_unparsed(odd)
    assert not is_unparsed(sound)
    if isinstance(arguments, str) and arguments.isascii() and len(arguments) < 100:
        assert odd.arguments == {UNPARSED: arguments}
    for event in events(run):
        encode(event, content="full")


@pytest.mark.parametrize("arguments", ["", None, {}, "{}"])
def test_a_call_without_arguments_has_none(tmp_path: Path, arguments: Any) -> None:
    traj = [{"role": "assistant", "content": None, "tool_calls": [call(arguments)]}]
    assert read(tmp_path, row(traj=traj))[0].messages[0].tool_calls[0].arguments == {}


def assistant(**fields: Any) -> dict[str, Any]:
    return row(traj=[{"role": "user", "content": "x"}, {"role": "assistant", "content": None} | fields])


CALLS = "traj[1].tool_calls"

WRONG: list[tuple[Any, str, str]] = [
    (row(task_id=...), "task_id", "None"),
    (row(task_id=True), "task_id", "True"),
    (row(trial=...), "trial", "None"),
    (row(trial=-1), "trial", "-1"),
    (row(trial="0"), "trial", "'0'"),
    (row(reward=...), "reward", "None"),
    (row(reward="1"), "reward", "'1'"),
    (row(reward=True), "reward", "True"),
    (row(reward=2), "reward", "2"),
    (row(traj=...), "traj", "missing"),
    (row(traj={}), "traj", "dict"),
    (row(traj=["x"]), "traj[0]", "str"),
    (row(traj=[{"content": "x"}]), "traj[0].role", "None"),
    (row(traj=[{"role": "robot", "content": "x"}]), "traj[0].role", "robot"),
    (row(traj=[{"role": "user", "content": 5}]), "traj[0].content", "int"),
    (row(traj=[{"role": "tool", "content": "x", "tool_call_id": 5}]), "traj[0].tool_call_id", "int"),
    (assistant(tool_calls={}), CALLS, "dict"),
    (assistant(tool_calls=["x"]), f"{CALLS}[0]", "str"),
    (assistant(tool_calls=[{"id": "x"}]), f"{CALLS}[0].name", "None"),
    (assistant(tool_calls=[call(name=None)]), f"{CALLS}[0].function.name", "None"),
]


@pytest.mark.parametrize(("value", "field", "says"), WRONG)
def test_a_wrong_run_names_its_line_and_its_field(tmp_path: Path, value: Any, field: str, says: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, row(), value)
    assert (caught.value.path, caught.value.line) == (str(tmp_path / "results.json"), 3)
    assert caught.value.field == f"[1].{field}"
    assert says in str(caught.value)


def test_a_run_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'3-0' is a duplicate") as caught:
        read(tmp_path, row(), row(trial=1), row())
    assert (caught.value.line, caught.value.field) == (4, "[2].trial")


def test_refused_runs_can_be_collected_and_the_others_read(tmp_path: Path) -> None:
    refused: list[DataError] = []
    runs = read(tmp_path, row(), row(trial=1, reward="x"), row(trial=2), row(), on_refused=refused.append)
    assert [run.trial for run in runs] == [0, 2]
    assert [(error.line, error.field) for error in refused] == [(3, "[1].reward"), (5, "[3].trial")]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def replaced(value: Any, path: list[int], new: Any) -> Any:
    """The value with one part of it, chosen by `path`, replaced."""
    if not path or not isinstance(value, dict | list) or not value:
        return new
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[path[0] % len(keys)]
    copy = value.copy()
    copy[key] = replaced(value[key], path[1:], new)
    return copy


@given(st.lists(st.integers(0, 10), max_size=6), json_values)
@settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_place_of_any_part_the_run_is_read_or_refused_by_name(
    tmp_path: Path, where: list[int], value: Any
) -> None:
    path = file(tmp_path, replaced(row(), where, value))
    named = True
    try:
        assert len(list(read_tau_bench(path))) == 1
    except DataError as error:
        named = error.path == str(path) and error.line is not None
    assert named
