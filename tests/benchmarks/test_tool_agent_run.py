"""The running half of the tool agent: what it writes, the reading half reads; a task has one right change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.learn.profiles.chain_part import recorded_looks
from grampus_uq.models.model_file import find_model_file
from grampus_uq.records.values import ModelResponse, TokenLogprob, ToolCall
from grampus_uq.testing.scripted_model import ScriptedModel, answer
from tests.benchmarks import chain, tool_agent, tool_agent_bfcl, tool_agent_desk, tool_agent_model
from tests.benchmarks.test_tool_agent import shown, written
from tests.benchmarks.tool_agent_run import run_tasks

LOOK_UPS = ["find_customer", "list_orders", "get_order"]


def said(name: str, arguments: dict[str, Any], odds: float = 0.9) -> ModelResponse:
    tokens = written(name, arguments, dict.fromkeys(arguments, odds))
    return answer("".join(one.token for one in tokens), logprobs=tokens)


def replies(task: tool_agent_desk.Task, right: bool) -> Iterator[ModelResponse]:
    """What an agent says that looks up what it must and makes the right change, or one of an order that it dreamt."""
    order_id = str(task.truth.arguments["order_id"])
    order = task.shop.orders[order_id]
    looked_up = {
        "find_customer": {"name": task.shop.customers[order["customer_id"]]},
        "list_orders": {"customer_id": order["customer_id"]},
        "get_order": {"order_id": order_id},
    }
    for name in LOOK_UPS[2:] if task.shop.found else LOOK_UPS:
        yield said(name, looked_up[name])
    wrong = {"order_id": next(key for key in task.shop.orders if key != order_id)}
    yield said(task.truth.name, dict(task.truth.arguments) | ({} if right else wrong), 0.9 if right else 0.2)
    true = TokenLogprob(token="True", logprob=-0.1, top=(("True", -0.1), ("False", -2.4)))
    yield answer("True", logprobs=[true])
    yield from [said(task.truth.name, dict(task.truth.arguments))] * 4
    yield answer("True", logprobs=[true])
    yield answer("80")


@pytest.mark.one_loop
@pytest.mark.anyio
async def test_what_is_run_is_read_and_a_second_start_runs_only_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every second agent changes the wrong order, unsurely."""
    rights = [number % 2 == 0 for number in range(10)]

    def script(numbers: list[int]) -> ScriptedModel:
        tasks = list(tool_agent_desk.tasks(10, 7))
        return ScriptedModel([reply for number in numbers for reply in replies(tasks[number], rights[number])])

    await run_tasks(script(list(range(10))), "desk", tool_agent_desk.tasks(10, 7), tmp_path, p_true=True)
    outcomes = [json.loads(line) for line in (tmp_path / "outcomes.jsonl").read_text().splitlines()]
    assert [line["ok"] for line in outcomes] == rights
    assert [line["kind"] for line in outcomes] == list(tool_agent_desk.KINDS)
    rows = shown([str(tmp_path)], capsys)
    own = rows[tmp_path.name, "call_probability"]
    assert (own["n"], own["auroc"], own["stopped_at_5"]) == (10, 1.0, 1.0)
    assert rows[tmp_path.name, "redraws"]["auroc"] == 1.0, "redraws repeat the right call"
    assert rows[tmp_path.name, "asked_sure"]["auroc"] == 0.5
    assert rows[tmp_path.name, "p_true"]["n"] == 10
    assert rows[f"{tmp_path.name} by argument: order_id", "argument"]["auroc"] == 1.0

    (tmp_path / "outcomes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in outcomes[:-1]))
    again = script([9])
    await run_tasks(again, "desk", tool_agent_desk.tasks(10, 7), tmp_path, p_true=True)
    assert again.calls[0].messages[-1].content == list(tool_agent_desk.tasks(10, 7))[9].mail
    assert shown([str(tmp_path)], capsys)[tmp_path.name, "call_probability"]["n"] == 10


@pytest.mark.one_loop
@pytest.mark.anyio
async def test_what_a_big_model_would_have_called_is_recorded_and_labelled_for_a_chain(tmp_path: Path) -> None:
    """The small model is right at every second task, the big one at two of three, and makes what it says itself."""
    tasks = list(tool_agent_desk.tasks(10, 7))
    small, big = ([number % every != 1 for number in range(10)] for every in (2, 3))

    def turns(number: int, right: bool) -> list[ModelResponse]:
        return list(replies(tasks[number], right))[: 2 if tasks[number].shop.found else 4]

    agent = ScriptedModel([turn for number in range(10) for turn in turns(number, small[number])])
    look = ScriptedModel([turns(number, big[number])[-1] for number in range(10)])
    await run_tasks(agent, "desk", tool_agent_desk.tasks(10, 7), tmp_path, look=look)
    one, other = recorded_looks(tmp_path / "recordings", np.random.default_rng(0)).tiers
    assert one.right.tolist() == small
    assert other.agrees is not None
    assert other.agrees.tolist() == [one == two for one, two in zip(small, big, strict=True)]
    assert other.right.tolist() == big
    cases = chain.looked(tmp_path, 5.0)
    assert (len(cases.length), cases.length.min() > 0) == (10, True)


@given(st.integers(0, 2**32), st.integers(0, 9), st.data())
def test_a_task_succeeds_by_its_right_change_alone(seed: int, number: int, data: st.DataObject) -> None:
    task = list(tool_agent_desk.tasks(number + 1, seed))[number]
    assert not task.succeeded
    tools = {
        "cancel_order": {},
        "decline_request": {},
        "issue_refund": {"amount": 3.0},
        "send_missing": {"quantity": 9},
    }
    name = data.draw(st.sampled_from(sorted(tools)))
    order_id = data.draw(st.sampled_from([*sorted(task.shop.orders), "0"]))
    getattr(task.shop, task.truth.name)(**task.truth.arguments)
    assert task.succeeded
    answered = getattr(task.shop, name)(order_id, **tools[name])
    assert task.succeeded == (order_id == "0"), "a second change is one too many; an unknown order is none"
    assert (answered == "no such order") == (order_id == "0")


@given(st.integers(0, 2**32))
def test_orders_that_fit_the_mail_as_well_have_other_numbers_and_names(seed: int) -> None:
    for task in tool_agent_desk.tasks(10, seed):
        order = task.shop.orders[str(task.truth.arguments["order_id"])]
        assert [one["item"] for one in task.shop.orders.values()].count(order["item"]) == 1
        assert (order["order_id"] in task.mail) != (order["item"] in task.mail)


def bfcl_task(made: ToolCall) -> tool_agent_bfcl.BfclTask:
    """Refund 5 (or "five"), in any of two currencies or in none, as a stand-in for a task of the leaderboard."""
    accepted = {"refund": {"amount": [5, "five"], "currency": ["EUR", "USD", ""]}}

    def right(call: ToolCall) -> bool:
        values = accepted.get(call.name)
        return (
            values is not None
            and all(call.arguments.get(key, "") in allowed for key, allowed in values.items())
            and set(call.arguments) <= set(values)
        )

    return tool_agent_bfcl.BfclTask(
        id="x", kind="simple", mail="", functions=[], answer=accepted, right=right, called=[made]
    )


VALUES = st.fixed_dictionaries(
    {},
    optional={"amount": st.sampled_from([5, "five", 7]), "currency": st.sampled_from(["USD", "GBP"]), "to": st.just(1)},
)


@given(st.sampled_from(["refund", "cancel"]), VALUES)
def test_the_nearest_right_call_differs_exactly_where_the_checker_objects(name: str, arguments: dict[str, Any]) -> None:
    task = bfcl_task(ToolCall(name=name, arguments=arguments))
    truth = task.truth
    assert task.right(truth)
    assert task.succeeded == (truth == task.called[0])
    if name == "refund":
        kept = {key for key, value in arguments.items() if truth.arguments.get(key) == value}
        assert kept == {
            k for k, v in arguments.items() if (k == "amount" and v != 7) or (k == "currency" and v == "USD")
        }


def test_a_member_of_which_no_value_is_accepted_is_left_out() -> None:
    task = bfcl_task(ToolCall(name="refund", arguments={}))
    record = {"refund": {"record": [{"amount": [5], "to": []}]}}
    other = replace(task, answer=record, right=lambda _: False)
    assert other.truth == ToolCall(name="refund", arguments={"record": {"amount": 5}})


def test_a_described_function_becomes_a_json_schema() -> None:
    described = {
        "type": "dict",
        "properties": {
            "price": {"type": "float", "default": 1.0, "optional": True, "description": "in EUR"},
            "tags": {"type": "tuple", "items": {"type": "any"}},
        },
        "required": ["price", "unknown"],
    }
    assert tool_agent_bfcl.as_schema(described) == {
        "type": "object",
        "properties": {
            "price": {"type": "number", "description": "in EUR"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["price"],
        "additionalProperties": False,
    }


@given(
    st.text(max_size=40) | st.sampled_from(['{"name": 1, "arguments": 2}', '["name"]', '{"name": "x"}', "7", "null"])
)
def test_what_is_no_call_stays_text(text: str) -> None:
    turn = tool_agent_model.as_turn(answer(text))
    assert (turn.content, turn.tool_calls) == (text, ())


@pytest.mark.slow
def test_the_embedded_model_is_run_on_two_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What comes of them is not asked: the model is far too small to do them."""
    model = str(find_model_file(lambda *_: None))
    tool_agent.main(["--model", model, "--tasks=2", f"--out={tmp_path}"])
    lines = [json.loads(line) for line in (tmp_path / "outcomes.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["cancel_id", "cancel_item"]
    assert all(line["turns"] >= 1 and line["failed"] is None for line in lines)
    texts = [path.read_text() for path in (tmp_path / "recordings").glob("*.jsonl")]
    steps = [json.loads(line) for text in texts for line in text.splitlines()]
    asked = [one["step"] for one in steps if one["type"] == "step" and one["step"]["kind"] == "llm_call"]
    made = [step for step in asked if step["tool_calls"]]
    assert made
    assert all(step["logprobs"] for step in made)


@pytest.mark.slow
def test_the_leaderboards_own_checker_takes_its_own_answers(tmp_path: Path) -> None:
    """The package is fetched as a user's machine would fetch it."""
    tasks = list(tool_agent_bfcl.tasks(80, 0, tmp_path))
    assert np.mean([task.right(task.truth) for task in tasks]) > 0.97, "a few of its answers break its own schemas"
    assert not any(task.right(ToolCall(name="no such function", arguments={})) for task in tasks)
