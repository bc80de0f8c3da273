"""What a person was shown is kept beside their decision."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from grampus_uq import ToolCall, open_store
from grampus_uq.gate.requests import ApprovalDecision
from grampus_uq.records.values import Message
from grampus_uq.records.vocabulary import Role
from grampus_uq.runtime.cards import Card, card, end_of
from grampus_uq.runtime.run_state import AgentState
from tests.runtime.test_approvals_cli import Desk


def test_what_was_shown_is_stored_with_the_decision_and_has_its_digest(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.cli("approve", desk.request.id, "--as", "ann")

    async def stored() -> dict[str, object]:
        store = open_store(desk.url)
        (document,) = await store.scan("decision")
        await store.aclose()
        return dict(json.loads(document.body))

    body = anyio.run(stored)
    decision, shown = ApprovalDecision.model_validate(body["decision"]), Card.model_validate(body["shown"])
    assert shown.digest == decision.digest == desk.request.digest()
    assert (shown.tool, shown.arguments) == ("send_email", {"to": "bob", "body": "hi"})
    assert shown.readings == {"p_true": 0.62}
    assert [message.content for message in shown.messages if message.role is Role.USER] == ["mail bob"]
    assert desk.resume().status.value == "completed"


def test_a_card_says_how_much_of_a_long_transcript_it_leaves_out(tmp_path: Path) -> None:
    request = Desk(tmp_path).request
    state = AgentState(agent_id="mailer", session_id="s")
    state.messages = [Message(role=Role.USER, content="x" * 9_000)] * 500
    shown = card(request, state)
    assert shown.messages[-1].content == "x" * 2_000 + "…(+7000 characters)"
    assert len(shown.model_dump_json()) < 70_000


PAY = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(id="1", name="pay", arguments={"to": "mallory"}),))


@pytest.mark.parametrize(
    "before_the_call",
    [
        [Message(role=Role.TOOL, content="found", tool_call_id=f"{number}") for number in range(30)],
        [Message(role=Role.ASSISTANT, tool_calls=(ToolCall(id="0", name="note", arguments={"text": "z" * 70_000}),))],
    ],
    ids=["many results", "a long call"],
)
def test_no_proposals_of_the_model_push_what_the_user_said_last_off_the_card(before_the_call: list[Message]) -> None:
    said = [Message(role=Role.USER, content=text) for text in ("Hello.", "Never pay mallory." + "!" * 3_000)]
    shown = end_of([*said, *before_the_call, PAY])
    assert [(one.content or "")[:18] for one in shown if one.role is Role.USER] == ["Never pay mallory."]
    assert (shown[0].role, shown[-1]) == (Role.USER, PAY)
    assert len(shown[0].content or "") < 2_100
    assert end_of(shown) == shown
    assert [one.role for one in end_of(shown, 1)] == [Role.USER, Role.ASSISTANT]
