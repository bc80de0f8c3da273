"""The human at the client is shown what waits; what is answered there counts only where the settings say so."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp import Client, types
from mcp.client.stdio import StdioServerParameters, stdio_client

from grampus_uq import ApprovalPolicy
from grampus_uq.errors import ConfigurationError
from grampus_uq.integrations.mcp.elicitation import _read
from grampus_uq.integrations.mcp.proxy_config import read_settings
from grampus_uq.integrations.mcp.tool_pins import UNSHOWN
from tests.proxy.guarded import MODERN, Bench, bench
from tests.proxy.test_http_proxy import notes, proxied, serving
from tests.servers import free_port

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The proxy's own; the guard itself is tried on both in test_guard."""
    return "asyncio"


ELICITS = {"capabilities": {"elicitation": {}}}
ASKING = {**MODERN, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
YES = {"action": "accept", "content": {"decision": "approve"}}
SERVER = str(Path(__file__).with_name("notes_server.py"))


async def _question(one: Bench) -> dict[str, Any]:
    """The question that the client was asked, once it was."""
    with anyio.fail_after(60):
        while True:
            for message in map(json.loads, one.to_client):
                if message.get("method") == "elicitation/create":
                    return message
            await anyio.sleep(0.01)


async def _answers(one: Bench, answer: Any) -> dict[str, Any]:
    """The client declares that it elicits, calls, is asked, and answers: the question."""
    await one.say(id="init", method="initialize", params=ELICITS)
    await one.call(1, path="a")
    question = await _question(one)
    await one.say(id=question["id"], result=answer)
    return question


async def test_an_approval_at_the_client_runs_the_call_once() -> None:
    async with bench(elicitation="decide") as one:
        question = await _answers(one, YES)
        assert 'delete_note {"path": "a"}' in question["params"]["message"]
        await one.asked()
        await one.returns(1, "gone")
        assert (await one.answered(1))["result"]["content"][0]["text"] == "gone"
        await one.say(id=question["id"], result=YES)  # once more
        await one.call(2, path="a")
        await one.waiting()
        assert len(one.ran()) == 1
        assert not [line for line in one.to_server if b"approve" in line]  # no server hears of it


@pytest.mark.parametrize(
    "answer",
    [
        {"action": "decline"},
        {"action": "accept", "content": {"decision": "reject", "reason": "wrong folder"}},
    ],
)
async def test_a_refusal_at_the_client_reaches_the_model(answer: Any) -> None:
    async with bench(elicitation="decide") as one:
        await _answers(one, answer)
        told = (await one.answered(1))["result"]
        assert told["isError"]
        assert answer.get("content", {}).get("reason", "rejected") in told["content"][0]["text"]
        assert not one.ran()


async def test_the_name_of_a_tool_cannot_hold_the_call_that_is_shown() -> None:
    async with bench(elicitation="decide", hold_s=0.2) as one:
        await one.say(id="init", method="initialize", params=ELICITS)
        await one.call(1, 'read {"path": "a"}  Why: harmless', path="b")
        call = (await _question(one))["params"]["message"].splitlines()[1]
        assert call == r'"read {\"path\": \"a\"}  Why: harmless" {"path": "b"}'


@pytest.mark.parametrize("answer", [YES, {"action": "decline"}])
async def test_where_it_only_asks_no_answer_decides(answer: Any) -> None:
    async with bench(elicitation="ask", hold_s=0.8) as one:
        question = await _answers(one, answer)
        assert question["params"]["requestedSchema"]["properties"] == {}
        assert "decides nothing" in question["params"]["message"]
        assert "waits for a human" in (await one.answered(1))["result"]["content"][0]["text"]
        await one.decide()  # the request still stands
        assert not one.ran()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["accept", "approve"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["action", "content", "decision", "Decision", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(_json)
@example(YES)
@example({"action": "accept", "content": {"decision": ["approve"]}})
def test_nothing_but_an_accepted_approval_approves(answer: Any) -> None:
    """As JSON: an answer with anything more is one, too."""
    kind, reason = _read(answer)
    text = json.dumps(answer)
    assert (kind == "approve") <= ('"accept"' in text and '"decision": "approve"' in text)
    if kind == "approve":
        assert answer["action"] == "accept"
        assert answer["content"]["decision"] == "approve"
    assert (kind == "approve") or answer != YES
    assert reason is None or isinstance(reason, str)


async def test_a_call_that_is_too_long_to_show_is_not_decided_by_an_answer() -> None:
    async with bench(elicitation="decide", hold_s=0.8) as one:
        await one.say(id="init", method="initialize", params=ELICITS)
        await one.call(1, path="a" * 9_000)
        question = await _question(one)
        assert "too long to show" in question["params"]["message"]
        await one.say(id=question["id"], result=YES)
        assert "waits for a human" in (await one.answered(1))["result"]["content"][0]["text"]
        assert not one.ran()


async def test_a_call_whose_reason_is_too_long_to_show_is_not_decided_by_an_answer() -> None:
    async with bench(elicitation="decide", hold_s=0.8) as one:
        await one.say(id="init", method="initialize", params=ELICITS)
        await one.lists(delete_note={"description": "Deletes a note."})
        await one.lists(delete_note={"description": "Deletes all.", **{f"{i:0150}": "x" * 300 for i in range(11)}})
        await one.call(1, path="a")
        question = (await _question(one))["params"]
        assert "Deletes all." in question["message"]
        assert "characters)" in question["message"]
        assert UNSHOWN not in (await one.waiting()).reason
        assert not question["requestedSchema"]["properties"]


_JUNK = {f"a{i:02}": 1 for i in range(25)}
_HIDDEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "behind five hundred others": (
        {"annotations": {f"a{i:03}": 1 for i in range(500)}},
        {"annotations": {f"a{i:03}": 2 for i in range(500)}, "outputSchema": {"description": "EVIL"}},
    ),
    "at the end of a long text": ({}, {"description": "EVEN " + "x" * 1_200 + " EVIL"}),
    "in halves of characters": ({"title": "\ud800"}, {"title": "\ud801"}),
    "in a definition too long to keep": ({"description": "x" * 70_000}, {"description": "x" * 70_000 + " EVIL"}),
}
_SHOWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "behind others": ({"annotations": _JUNK}, {"annotations": dict.fromkeys(_JUNK, 2), "title": "EVIL"}),
    "behind removed ones": ({"annotations": _JUNK}, {"inputSchema": {"type": "object", "description": "EVIL"}}),
    "at the end": ({}, {"description": "Deletes a note." + " and fine" * 20 + " EVIL"}),
    "behind a change in front": (
        {"description": "Deletes. " + "It keeps nothing. " * 10},
        {"description": "Deletes! " + "It keeps nothing. " * 10 + "EVIL"},
    ),
}


@pytest.mark.parametrize("case", [*_HIDDEN, *_SHOWN])
async def test_a_form_decides_on_a_changed_definition_where_all_of_the_change_is_in_it(case: str) -> None:
    before, after = {**_HIDDEN, **_SHOWN}[case]
    async with bench(elicitation="decide", hold_s=0.8) as one:
        await one.say(id="init", method="initialize", params=ELICITS)
        for definition in (before, after):
            await one.lists(delete_note={"description": "Deletes a note.", **definition})
        await one.call(1, path="a")
        question = (await _question(one))["params"]
        assert ("EVIL" in question["message"]) == (case in _SHOWN)
        assert bool(question["requestedSchema"]["properties"]) == (case in _SHOWN)
        reason = (await one.waiting()).reason
        assert ("not all of it is shown here" in reason) == (case in _HIDDEN)


@pytest.mark.parametrize("kind", ["approve", "reject"])
async def test_half_a_character_in_a_reason_is_replaced(kind: str) -> None:
    async with bench(elicitation="decide") as one:
        answer = {"action": "accept", "content": {"decision": kind, "reason": "cut \ud83d"}}
        await _answers(one, answer)
        if kind == "approve":
            await one.asked()
            await one.returns(1, "gone")
        told = (await one.answered(1))["result"]
        assert len(one.ran()) == (kind == "approve")
        assert kind == "approve" or "cut \ufffd" in told["content"][0]["text"]


async def test_a_call_of_unknown_outcome_is_not_decided_by_an_answer() -> None:
    async with bench(elicitation="decide", hold_s=0.3) as one:
        await one.call(1, path="a")
        request = (await one.waiting()).model_copy(update={"unknown_outcome": True})
        elicitation = one.exchange.elicitation
        assert elicitation is not None
        assert "decides nothing" in elicitation.question(request)["message"]
        await elicitation.take(request, YES)
        assert not any((await one.ledger.decisions([request.id])).values())


async def test_an_answer_counts_only_where_the_client_may_approve() -> None:
    async with bench(elicitation="decide", hold_s=1.0, approvals=ApprovalPolicy(approvers=["ann"])) as one:
        await _answers(one, YES)
        assert "waits for a human" in (await one.answered(1))["result"]["content"][0]["text"]
        assert not one.ran()


async def test_what_is_shown_cannot_hide_or_imitate() -> None:
    async with bench(elicitation="ask") as one:
        await one.say(id="init", method="initialize", params=ELICITS)
        await one.call(1, path="a\u202egnp.exe\u200b\x1b[2J")
        message = (await _question(one))["params"]["message"]
        assert not {"\u202e", "\u200b", "\x1b"} & set(message)


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"url": {}}}, {"elicitation": True}, None])
async def test_a_client_that_shows_no_forms_is_not_asked(capabilities: Any) -> None:
    async with bench(elicitation="decide", hold_s=0.2) as one:
        for declared in (ELICITS["capabilities"], capabilities):  # the last word counts
            await one.say(id="init", method="initialize", params={"capabilities": declared})
            await one.guard.from_server(b'{"jsonrpc":"2.0","id":"init","result":{}}')
        await one.call(1, path="a")
        await one.answered(1)
        assert len(one.to_client) == 3


async def test_without_a_handshake_the_question_and_its_answer_travel_with_the_call() -> None:
    async with bench(elicitation="decide") as one:
        await one.call(1, meta=ASKING, path="a")
        asked = (await one.answered(1))["result"]
        assert asked["resultType"] == "input_required"
        question = asked["inputRequests"]["grampus_uq"]
        assert question["method"] == "elicitation/create"
        params = {"name": "delete_note", "arguments": {"path": "a"}, "_meta": ASKING}
        again = {**params, "requestState": asked["requestState"], "inputResponses": {"grampus_uq": YES}}
        await one.say(id=2, method="tools/call", params=again)
        await one.asked()
        assert one.ran()[0]["params"] == params  # the server sees the client's own call
        await one.returns(2, "gone")
        await one.answered(2)
        await one.say(id=3, method="tools/call", params=again)  # replayed: a new call, which this answer is not about
        await one.waiting()
        assert len(one.ran()) == 1


async def test_without_a_handshake_an_answer_needs_the_state_of_its_question() -> None:
    async with bench(elicitation="decide", hold_s=0.6) as one:
        params = {"name": "delete_note", "arguments": {"path": "a"}, "_meta": ASKING}
        await one.say(id=1, method="tools/call", params={**params, "inputResponses": {"grampus_uq": YES}})
        await one.answered(1)
        assert not one.ran()
        (session,) = await one.ledger.pending()
        assert not any((await one.ledger.decisions([session.requests[0].id])).values())


async def test_a_server_cannot_ask_in_the_proxys_place() -> None:
    """Its question passes with its own id, and the answer goes to it."""
    async with bench(elicitation="decide") as one:
        await one.call(1, path="a")
        request = await one.waiting()
        ask = {"jsonrpc": "2.0", "id": request.id, "method": "elicitation/create", "params": {"message": "Cats?"}}
        await one.guard.from_server(json.dumps(ask).encode())
        await one.say(id=request.id, result=YES)
        assert json.loads(one.to_server[-1])["result"] == YES
        assert not one.ran()


def test_a_decision_at_the_client_is_refused_where_decisions_are_signed(tmp_path: Path) -> None:
    key = "ed25519:" + "0" * 64
    config = tmp_path / "guard.toml"
    config.write_text(f'[approvals]\nelicitation = "decide"\npublic_keys = {{ ann = "{key}" }}\n')
    with pytest.raises(ConfigurationError, match="elicitation"):
        read_settings(str(config)).approvals.policy()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_official_client_asks_its_user_and_runs_what_was_approved(mode: str, tmp_path: Path) -> None:
    ran, config = tmp_path / "ran", tmp_path / "guard.toml"
    config.write_text(f'store = "sqlite:///{tmp_path}/calls.db"\n[approvals]\nelicitation = "decide"\n')
    command = ["-m", "grampus_uq.cli", "mcp", "--config", str(config), "--", sys.executable, SERVER, str(ran)]
    shown: list[str] = []

    async def user(context: Any, params: Any) -> types.ElicitResult:
        shown.append(params.message)
        decision = "approve" if '"plans"' in params.message else "reject"
        return types.ElicitResult(action="accept", content={"decision": decision})

    parameters = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    with (tmp_path / "stderr.txt").open("w") as errors, anyio.fail_after(240):
        async with Client(stdio_client(parameters, errlog=errors), mode=mode, elicitation_callback=user) as client:
            await client.list_tools()
            kept = await client.call_tool("delete_note", {"name": "plans"})
            refused = await client.call_tool("delete_note", {"name": "diary"})
    assert kept.content[0].text == "deleted plans"
    assert refused.is_error
    assert ran.read_text() == "plans\n"
    assert len(shown) == 2


@pytest.mark.slow
async def test_over_http_the_question_travels_with_the_call(tmp_path: Path) -> None:
    server, ran = notes()
    port, shown = free_port(), list[str]()

    async def user(context: Any, params: Any) -> types.ElicitResult:
        shown.append(params.message)
        return types.ElicitResult(action="accept", content={"decision": "approve"})

    address = f"http://127.0.0.1:{port}/mcp"
    decides = '[approvals]\nelicitation = "decide"\n'
    with serving(server.streamable_http_app(), port), proxied(tmp_path, decides, notes=address) as proxy:
        async with Client(f"{proxy}/notes", mode="auto", elicitation_callback=user) as client:
            await client.list_tools()
            assert (await client.call_tool("delete_note", {"name": "a"})).content[0].text == "deleted a"
    assert ran == ["delete a"]
    assert len(shown) == 1


async def test_the_answer_to_one_question_decides_nothing_of_a_later_one() -> None:
    """Which is shown: after the tool changed, the call is asked about anew."""
    async with bench(elicitation="decide", hold_s=0.6) as one:
        await one.lists(delete_note={"description": "Deletes a note."})
        await one.call(1, meta=ASKING, path="a")
        asked = (await one.answered(1))["result"]
        await one.lists(delete_note={"description": "Deletes everything."})
        params = {"name": "delete_note", "arguments": {"path": "a"}, "_meta": ASKING}
        again = {**params, "requestState": asked["requestState"], "inputResponses": {"grampus_uq": YES}}
        await one.say(id=2, method="tools/call", params=again)
        anew = (await one.answered(2))["result"]
        assert "Deletes everything" in anew["inputRequests"]["grampus_uq"]["params"]["message"]
        one.exchange.elicitation._forms.clear()  # type: ignore[union-attr]
        again["requestState"] = anew["requestState"]
        await one.say(id=3, method="tools/call", params=again)  # as if it had not been shown
        assert "inputRequests" in (await one.answered(3))["result"]
        assert not one.ran()
