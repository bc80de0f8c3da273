"""What a person was shown is kept beside their decision."""

from __future__ import annotations

import json
from pathlib import Path

import anyio

from grampus_uq import open_store
from grampus_uq.gate.requests import ApprovalDecision
from grampus_uq.records.values import Message
from grampus_uq.records.vocabulary import Role
from grampus_uq.runtime.cards import Card, card
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
