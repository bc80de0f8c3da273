"""After any sequence of pauses, decisions and resumes every call has one result, and only the approved ran."""

from __future__ import annotations

from collections import Counter

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from grampus_uq.gate.requests import ApprovalDecision
from grampus_uq.records.values import Message, ModelResponse, ToolCall
from grampus_uq.records.vocabulary import AgentStatus, Role
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, World, look, mail, results_by_call, runner
from tests.sampling import examples

CALLS = st.lists(st.sampled_from(["mail", "look", "unknown_tool", "bad_arguments", "same_id", "no_id"]), max_size=4)
ANSWERS = st.lists(
    st.sampled_from(["approve", "edit", "reject", "respond", "guidance", "nothing", "some"]), max_size=14
)


def proposed(kind: str, turn: int, index: int) -> ToolCall:
    identity = f"t{turn}c{index}"
    if kind == "mail":
        return mail(identity, f"user{turn}{index}")
    if kind == "look":
        return look(identity, "x")
    if kind == "bad_arguments":
        return ToolCall(id=identity, name="send_email", arguments={"whom": index})
    if kind == "same_id":
        return look("same", "y")
    if kind == "no_id":
        return look("", "z")
    return ToolCall(id=identity, name="does_not_exist", arguments={})


def valid(messages: list[Message]) -> None:
    """Every call has one result, and the results follow the message that proposed them."""
    assert set(results_by_call(messages).values()) <= {1}
    open_calls: list[str] = []
    for message in messages:
        if message.role is Role.TOOL:
            assert message.tool_call_id in open_calls
            open_calls.remove(message.tool_call_id or "")
        else:
            assert not open_calls, "a message stands between a call and its result"
            open_calls = [call.id for call in message.tool_calls]
    assert not open_calls


@given(turns=st.lists(CALLS, min_size=1, max_size=3), answers=ANSWERS, p_true=st.sampled_from([0.3, 0.6, 0.95]))
@settings(max_examples=examples(60))
def test_every_call_has_exactly_one_result_whatever_humans_do(
    turns: list[list[str]], answers: list[str], p_true: float
) -> None:
    anyio.run(_drive, turns, answers, p_true)


async def _drive(turns: list[list[str]], answers: list[str], p_true: float) -> None:
    script: list[ModelResponse | str] = [
        answer("Go.", tool_calls=[proposed(kind, turn, index) for index, kind in enumerate(kinds)])
        for turn, kinds in enumerate(turns)
    ]
    script.append(answer("The end."))
    world, store = World(), MemoryStore()
    approved: Counter[str] = Counter()

    try:
        result = await runner(world, script, p_true=p_true, store=store).run(AGENT, "x", session_id="s")
        for said in answers:
            valid(result.messages)
            if result.status is not AgentStatus.WAITING_FOR_HUMAN:
                break
            decisions: list[ApprovalDecision] = []
            chosen = result.pending[:1] if said == "some" else result.pending
            for request in chosen:
                kind = "approve" if said == "some" else said
                if kind in ("guidance", "nothing"):
                    continue
                if request.call is None and kind == "edit":
                    kind = "approve"
                if kind in ("approve", "edit") and request.call is not None:
                    approved[request.call.name] += 1
                mail = request.call is not None and request.call.name == "send_email"
                edited: dict[str, JsonValue] = {"to": "edited", "body": "e"} if mail else {"query": "edited"}
                arguments = edited if kind == "edit" else None
                decisions.append(request.decide(kind, principal="ann", arguments=arguments, message="m"))
            response = "try otherwise" if said == "guidance" else decisions
            fresh = runner(world, script, p_true=p_true, store=store)
            result = await fresh.resume("mailer", "s", response)
        valid(result.messages)
    except Exception as error:
        if type(error).__name__ != "UncertaintyError":
            raise
        loaded = await runner(world, script, store=store).ledger.load("mailer", "s")
        assert loaded is not None
        valid(loaded[0].messages)
    if p_true < 0.9:  # below LOW nothing irreversible runs but what was approved
        assert len(world.sent) <= approved["send_email"]
    assert len(set(world.keys)) == len(world.keys)
