"""Refund requests as a shop's agent would make them, and plans of drills on them."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from typing import Any, Final

from grampus_uq.gate.requests import ApprovalDecision, ApprovalRequest
from grampus_uq.records.values import Message, ToolCall
from grampus_uq.records.vocabulary import Role, UncertaintyLevel
from grampus_uq.runtime.cards import Card, card
from grampus_uq.runtime.drills import Drill, DrillPlan, drafts
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.store import Put, SessionStore
from grampus_uq.runtime.stored_decisions import OpenRequest

NAMES: Final = ("ann", "bob", "cleo", "dan", "eve", "finn", "gus", "hal", "ida", "joe", "kim", "lea", "max", "nora")
GOODS: Final = ("a kettle", "two chairs", "the blue lamp", "a rucksack", "winter tyres", "headphones", "a garden hose")
MOODS: Final = ("It never arrived.", "It broke on the first day.", "Wrong colour, sorry.", "I changed my mind.")
RULES: Final = (
    {"tool": "refund", "change": "amount", "argument": "amount"},
    {"tool": "refund", "change": "recipient", "argument": "to"},
    {"tool": "refund", "change": "duplicate"},
    {"tool": "refund", "change": "stale"},
)


UNSEEN: Final = 1e-12
"""A share at which drills are on, and none follows the requests of a test."""


def plan(share: float = 0.1, rules: Sequence[dict[str, str]] = RULES, **given: Any) -> DrillPlan:
    """A plan that takes any decided call as a source."""
    given = {"principal": "boss", "source_age_s": 0.0, "secret": "s" * 32, "rules": tuple(rules), **given}
    return DrillPlan.model_validate({"share": share, **given})


def made(plan: DrillPlan, sources: Sequence[Card], asked: Card, rng: random.Random) -> Drill | None:
    """The drill that follows a request; None where none can be made."""
    return next(drafts(plan, sources, asked, rng), None)


def _said(role: Role, content: str, **given: Any) -> Message:
    return Message(role=role, content=content, **given)


def request(rng: random.Random, now_s: float, number: int = 0, *, right: bool = True) -> tuple[ApprovalRequest, Card]:
    """A request on a refund with its run, and how it is shown; one in four runs made a refund before."""
    name, amount = rng.choice(NAMES), round(rng.lognormvariate(4.0, 0.8), 2)
    email = f"{name}{rng.randrange(10, 99)}@example.org"
    messages = [
        _said(Role.USER, f"I am {email}. I bought {rng.choice(GOODS)} for {amount:.2f} EUR. {rng.choice(MOODS)}"),
        _said(Role.TOOL, json.dumps({"order": rng.randrange(10_000, 99_999), "paid": amount, "by": email})),
    ]
    if rng.random() < 0.25:
        messages += _earlier(rng, email, refused=rng.random() < 0.4)
    asked = amount if right else round(amount * rng.choice((0.5, 2.0)), 2)
    call = ToolCall(
        id=f"call_{''.join(rng.choices('abcdefghij0123456789', k=20))}",
        name="refund",
        arguments={"to": email, "amount": asked, "note": rng.choice(MOODS)},
    )
    messages.append(_said(Role.ASSISTANT, f"I will refund {asked:.2f} EUR to {email}.", tool_calls=(call,)))
    waits = _said(Role.TOOL, "This call has not been executed.", tool_call_id=call.id, metadata={"placeholder": True})
    confidence = min(max(rng.gauss(0.7 if right else 0.6, 0.12), 0.02), 0.98)
    found = ApprovalRequest(
        id=uuid.UUID(int=rng.getrandbits(128), version=4).hex,
        agent_id="shop",
        session_id=f"case-{10_000 + number}",
        run_id=uuid.UUID(int=rng.getrandbits(128), version=4).hex,
        step_id=str(rng.randrange(2, 7)),
        rules="r" * 64,
        call=call,
        level=UncertaintyLevel.MEDIUM if confidence > 0.6 else UncertaintyLevel.HIGH,
        rule="irreversible",
        reason=f"irreversible call: confidence {confidence:.2f}, needs 0.80",
        confidence=confidence,
        created_s=now_s,
        expires_s=now_s + 86_400.0,
    )
    state = AgentState(agent_id="shop", session_id=found.session_id, messages=[*messages, waits])
    return found, card(found, state)


def _earlier(rng: random.Random, email: str, *, refused: bool) -> list[Message]:
    amount = round(rng.lognormvariate(4.0, 0.8), 2)
    before = ToolCall(
        id=f"call_{''.join(rng.choices('abcdefghij0123456789', k=20))}",
        name="refund",
        arguments={"to": email, "amount": amount, "note": rng.choice(MOODS)},
    )
    result = (
        _said(
            Role.TOOL,
            "Not executed: a human rejected this call. Do not propose it again.",
            tool_call_id=before.id,
            metadata={"is_error": True},
        )
        if refused
        else _said(Role.TOOL, "done", tool_call_id=before.id)
    )
    return [
        _said(Role.ASSISTANT, f"I refund {amount:.2f} EUR to {email} first.", tool_calls=(before,)),
        result,
        _said(Role.USER, "And the other thing?"),
    ]


async def past(
    store: SessionStore,
    rng: random.Random,
    count: int,
    now_s: float = 1_000_000.0,
    *,
    like: OpenRequest | None = None,
) -> list[Card]:
    """Put so many approved requests into the archive, as the command line stores them; of agent and tool of `like`."""
    of = {} if like is None else like.card.model_dump(include={"agent_id", "rules", "started_by"})
    tool = "refund" if like is None else like.card.tool
    parameters = {} if like is None else {"parameters": like.parameters}
    cards = []
    for number in range(count):
        asked, shown = request(rng, now_s, number)
        assert asked.call is not None
        asked = asked.model_copy(update={**of, "call": asked.call.model_copy(update={"name": tool})})
        shown = shown.model_copy(update={**of, "tool": tool, "digest": asked.digest()})
        decision = asked.decide("approve", principal="ann")
        kept = {"decision": decision.model_dump(mode="json"), "shown": shown.model_dump(mode="json"), **parameters}
        await store.write(Put(kind="decision", key=f"{asked.id}/{number}", body=json.dumps(kept), expected=0))
        assert ApprovalDecision.model_validate(kept["decision"]).digest == shown.digest
        cards.append(shown)
    return cards
