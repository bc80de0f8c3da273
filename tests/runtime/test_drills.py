"""Drills: shown like requests, never run, told at once, and counted for nothing but the reviewers."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from grampus_uq import ApprovalPolicy, ApprovalRequest, open_store
from grampus_uq.errors import ApprovalError, StoreError
from grampus_uq.gate.call import CallRecord
from grampus_uq.gate.delegations import Delegation
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.permits import Permit
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind
from grampus_uq.gate.signatures import HmacSigner
from grampus_uq.records.values import Message, ToolCall, canonical_json
from grampus_uq.records.vocabulary import Role
from grampus_uq.runtime.cards import Card, card
from grampus_uq.runtime.drills import Change, Drill, DrillAnswer
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.lent_values import other_recipient
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.session_heads import SessionHead
from grampus_uq.runtime.store import Delete, SessionStore, parsed
from grampus_uq.runtime.stored_decisions import open_request, store_decision
from grampus_uq.runtime.stored_delegations import delegate
from grampus_uq.runtime.stored_drills import DRILL, StoredDrills
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.worker_jobs import Job
from grampus_uq.testing import answer
from tests.binomial import binomial_ceiling
from tests.runtime.agents import AGENT, SEND_ONE, World, runner
from tests.runtime.drill_worlds import RULES, made, past, plan, request
from tests.runtime.test_approvals_cli import Desk
from tests.sampling import examples, sampled

NOW = 4_000_000_000.0  # later than whatever a store writes today


def drills(seed: int, count: int = 40, rules: Sequence[dict[str, str]] = RULES) -> list[tuple[Drill, Card, Card]]:
    """Drills, each with its source and with the request that it follows."""
    rng = random.Random(seed)
    sources = [request(rng, 1_000_000.0, number)[1] for number in range(60)]
    of_digest = {source.digest: source for source in sources}
    found = []
    for number in range(count):
        asked = request(rng, NOW, 60 + number)[1]
        drill = made(plan(rules=rules), sources, asked, rng)
        assert drill is not None
        found.append((drill, of_digest[drill.source], asked))
    return found


# -- nothing can run one ----------------------------------------------------------------------------------------------

EXECUTABLE: tuple[type[BaseModel], ...] = (
    ApprovalRequest,
    ApprovalDecision,
    Grant,
    Permit,
    CallRecord,
    ToolCall,
    AgentState,
    SessionHead,
    Job,
)


@settings(max_examples=examples(20, few=8))
@given(st.integers(0, 10_000), st.sampled_from(list(ApprovalKind)))
def test_no_record_that_leads_to_an_execution_can_be_read_from_a_drill_or_its_answer(
    seed: int, kind: ApprovalKind
) -> None:
    for drill, _, _ in drills(seed, 3):
        answer = drill.answered(kind, principal="ann", arguments={} if kind is ApprovalKind.EDIT else None)
        done = drill.model_copy(update={"answer": answer})
        for record in (drill, drill.card, answer, done):
            for model in EXECUTABLE if record is not drill.card else EXECUTABLE[:-1]:  # no card is stored by itself
                with pytest.raises(ValidationError):
                    model.model_validate_json(record.model_dump_json())
                with pytest.raises(ValidationError):
                    model.model_validate(record)
            for field in ("proposed", "call", "requests", "decisions", "grant"):
                with pytest.raises(ValidationError):
                    CallRecord.model_validate({"proposed": {"name": "refund"}, "step_id": "1", field: record})
        for model in (Drill, DrillAnswer):
            with pytest.raises(ValidationError):
                model.model_validate_json(request(random.Random(seed), NOW)[0].model_dump_json())


@settings(max_examples=examples(20, few=8))
@given(st.integers(0, 10_000))
def test_no_digest_and_no_signature_of_a_drill_is_that_of_any_request_or_decision(seed: int) -> None:
    signer = HmacSigner("a key of sixteen bytes")
    for drill, _, _ in drills(seed, 3):
        card = drill.card
        call = ToolCall(id=card.call_id, name=card.tool or "", arguments=card.arguments)
        fields = card.model_dump(include=set(ApprovalRequest.model_fields) & set(Card.model_fields))
        twin = ApprovalRequest(**fields, call=call)  # had somebody asked for this very call under this very id
        assert twin.digest() != card.digest
        answer = signer.sign(drill.answered("approve", principal="ann"))
        signed = answer.signature or ""
        decision = twin.decide("approve", principal="ann").model_copy(update={"signature": signed})
        forged = decision.model_copy(update={"digest": card.digest})
        policy = ApprovalPolicy(signer=signer)
        for one in (decision, forged):
            assert not signer.verifies("ann", one.signed_text(), signed)
            with pytest.raises(ApprovalError):
                policy.check(twin, one)
        assert signer.verifies("ann", answer.signed_text(), signed)
        heads = {one.signed_text().partition(b"\n")[0] for one in (answer, decision, _grant(card))}
        assert len(heads) == 3  # however their fields may be named one day
        text = canonical_json(card.model_dump(mode="json", exclude={"digest"}))
        assert card.digest == hashlib.sha256(b"grampus_uq drill 1\n" + text.encode()).hexdigest()


def _grant(card: Card) -> Grant:
    return Grant(tool=card.tool or "", principal="ann", expires_s=NOW)


@pytest.mark.anyio
async def test_a_runner_refuses_decisions_on_drills_from_a_caller_and_leaves_stored_ones_alone() -> None:
    world, store = World(), MemoryStore()
    agent = runner(world, SEND_ONE, store=store)
    result = await agent.run(AGENT, "mail bob", session_id="s")
    (drill, _, _), *_ = drills(1, 1)
    forged = ApprovalDecision(
        request_id=drill.card.id, digest=drill.card.digest, kind=ApprovalKind.APPROVE, principal="ann"
    )
    await Ledger(store).decide(forged)
    assert [d.key for d in await store.scan("job")] == []
    with pytest.raises(ApprovalError, match="No pending request"):
        await agent.resume("mailer", "s", forged)
    await agent.resume("mailer", "s")
    assert world.sent == []
    waiting = (await Ledger(store).pending())[0].requests[0]
    assert waiting.call == result.pending[0].call


@pytest.mark.anyio
async def test_a_drill_that_somebody_puts_where_sessions_are_kept_is_not_read() -> None:
    store = MemoryStore()
    (drill, _, _), *_ = drills(2, 1)
    for kind, label in (("session", "waiting_for_human"), ("job", ""), ("wake", ""), ("grant", "refund")):
        await store.put(kind, drill.card.id, drill.model_dump_json(), expected=0, label=label)
    assert await Ledger(store).pending() == []
    with pytest.raises(StoreError):
        parsed(AgentState, drill.model_dump_json(), "it")
    call = ToolCall(name="refund", arguments=drill.card.arguments)
    assert await Ledger(store).use_grant(call, agent_id="shop", session_id="s", policy=ApprovalPolicy()) is None


# -- what is shown ----------------------------------------------------------------------------------------------------


@settings(max_examples=examples(20, few=8))
@given(st.integers(0, 10_000))
def test_a_drill_is_wrong_and_what_is_shown_of_its_run_says_so(seed: int) -> None:
    for drill, source, asked in drills(seed, 10):
        card = drill.card
        assert card.arguments != source.arguments == drill.was
        wrong = {name for name, value in card.arguments.items() if source.arguments[name] != value}
        told = " ".join(m.content or "" for m in card.messages if m.role in (Role.USER, Role.TOOL))
        if drill.change in (Change.AMOUNT, Change.RECIPIENT):
            (name,) = wrong
            value = card.arguments[name]
            shown = f"{value:.2f}" if isinstance(value, float) else str(value)
            assert re.search(rf"(?<![\d.]){re.escape(shown)}(?![\d.])", told) is None
            right = source.arguments[name]
            assert (f"{right:.2f}" if isinstance(right, float) else str(right)) in told
        else:
            results = {m.tool_call_id: m.content for m in card.messages if m.role is Role.TOOL}
            before = [c for m in card.messages[:-2] for c in m.tool_calls if c.arguments == card.arguments]
            ran = results[before[0].id] == "done"
            assert ran is (drill.change is Change.DUPLICATE)
        (proposed,) = [c for m in card.messages for c in m.tool_calls if c.id == card.call_id]
        assert proposed.arguments == card.arguments
        assert (card.confidence, card.readings, card.level) == (source.confidence, source.readings, source.level)
        assert card.created_s >= asked.created_s
        assert {card.id, card.digest}.isdisjoint({source.id, source.digest, asked.id, asked.digest})
        of_its_run = {"session_id", "run_id", "call_id", "step_id", "started_by"}
        assert card.model_dump(include=of_its_run) == source.model_dump(include=of_its_run)  # its conversation's


def test_a_drill_is_of_the_agent_and_under_the_rules_of_the_request_that_it_follows() -> None:
    """Thresholds, who may decide and who the agent is stand on the card: those of before, or of others, would tell."""
    rng = random.Random(12)
    now = [request(rng, 1.0, number)[1].model_copy(update={"started_by": "dave"}) for number in range(20)]
    before = [
        one.model_copy(update={"rules": "o" * 64, "thresholds": (0.9, 0.6, 0.4), "reason": "needs 0.90"})
        for one in (request(rng, 1.0, 20 + number)[1] for number in range(20))
    ]
    others = [
        one.model_copy(update={"agent_id": "hotel", "started_by": "dave"})
        for one in (request(rng, 1.0, 40 + number)[1] for number in range(20))
    ]
    nobodys = [request(rng, 1.0, 60 + number)[1] for number in range(20)]
    asked = request(rng, NOW)[1].model_copy(update={"started_by": "carol"})
    ours = {card.digest for card in now}
    for _ in range(50):
        drill = made(plan(), [*before, *now, *others, *nobodys], asked, rng)
        assert drill is not None
        shown = drill.card
        assert drill.source in ours
        assert (shown.agent_id, shown.rules, shown.started_by) == (asked.agent_id, asked.rules, "dave")
        assert (shown.thresholds, "0.90" in shown.reason) == (asked.thresholds, False)
    assert made(plan(), [*before, *others, *nobodys], asked, rng) is None
    assert made(plan(), now, asked.model_copy(update={"started_by": None}), rng) is None
    foreign = others[0].model_copy(update={"arguments": {**others[0].arguments, "to": "somebody@hotel.example"}})
    assert made(plan(rules=RULES[1:2]), [now[0], foreign], asked, rng) is None, "nor do others lend their values"


def test_what_cannot_be_seen_to_be_wrong_makes_no_drill() -> None:
    rng = random.Random(1)
    blind = [request(rng, NOW, n)[1].model_copy(update={"messages": ()}) for n in range(30)]
    assert made(plan(), blind, request(rng, NOW)[1], rng) is None
    alone = [request(rng, NOW, 1)[1]]
    assert made(plan(rules=RULES[:2]), alone, request(rng, NOW)[1], rng) is None
    failed = drills(5, 40, RULES[3:])[0][1]
    messages = tuple(
        m.model_copy(update={"content": "TimeoutError"}) if m.metadata.get("is_error") else m for m in failed.messages
    )
    tried_again = failed.model_copy(update={"messages": messages})
    assert made(plan(rules=RULES[3:]), [tried_again], request(rng, NOW)[1], rng) is None


@pytest.mark.parametrize(
    ("argument", "value", "made_"),
    [
        *(("amount", value, False) for value in (100, 120.0, 90.0, 500.0)),
        *(("amount", value, True) for value in (125.0, 80.0)),
        *(("to", value, False) for value in ("cleo", " Ann ", "Ann <ann@shop>", "ann\u200b", "", "-")),
        *(("to", value, True) for value in ("x", "anna", "bob")),
    ],
)
def test_a_wrong_value_is_clearly_another_and_one_that_the_run_does_not_name(
    argument: str, value: float | str, made_: bool
) -> None:
    rng = random.Random(13)
    asked = request(rng, NOW)[1]
    said = (Message(role=Role.USER, content="Ann paid 100.00; cleo had paid 500 before"),)
    source = asked.model_copy(update={"arguments": {"to": "ann", "amount": 100.0}, "messages": said})
    other = asked.model_copy(update={"arguments": {argument: value}, "messages": ()})
    rule = RULES[0] if argument == "amount" else RULES[1]
    assert (made(plan(rules=[rule]), [source, other], asked, rng) is not None) is made_


@given(st.text("an \u200b.-,@", max_size=6))
def test_one_name_written_otherwise_is_noother_recipient(name: str) -> None:
    for other in (
        name.upper(),
        f" {name}.",
        f"{name} <{name}@shop>",
        " ".join(reversed(name.split())),
        name.replace(" ", "-"),
    ):
        assert not other_recipient(name, other), other
        assert not other_recipient(other, name), other


def test_of_the_wrong_values_one_is_taken_that_brings_no_words_of_its_own() -> None:
    rng = random.Random(14)
    asked = request(rng, NOW)[1]
    said = (Message(role=Role.USER, content="ann7@shop.example paid 12.00, order 34"),)
    source = asked.model_copy(update={"arguments": {"to": "ann7@shop.example", "amount": 12.0}, "messages": said})
    lent = [{"to": "zoe@hotel.example", "amount": 99.0}, {"to": "ann3@shop.example", "amount": 34.12}]
    others = [asked.model_copy(update={"arguments": one, "messages": ()}) for one in lent]
    for rule, name in ((RULES[0], "amount"), (RULES[1], "to")):
        for _ in range(10):
            drill = made(plan(rules=[rule]), [source, *others], asked, rng)
            assert drill is not None
            assert drill.card.arguments[name] == lent[1][name]


def test_a_number_is_found_and_replaced_however_it_is_written() -> None:
    rng = random.Random(3)
    asked = request(rng, NOW)[1]
    call = ToolCall(id="call_1", name="refund", arguments={"to": "x", "amount": 1234.5})
    words = (
        Message(role=Role.USER, content="I paid 1.234,50 EUR"),
        Message(role=Role.ASSISTANT, content="I refund 1.234,50 EUR.", tool_calls=(call,)),
    )
    update = {"call_id": "call_1", "arguments": call.arguments, "messages": words, "reason": "low: amount 1,234.50"}
    source = asked.model_copy(update=update)
    other = asked.model_copy(update={"arguments": {"to": "x", "amount": 99.0}, "messages": ()})
    drill = made(plan(rules=RULES[:1]), [source, other], asked, rng)
    assert drill is not None
    assert [m.content for m in drill.card.messages] == ["I paid 1.234,50 EUR", "I refund 99,00 EUR."]
    assert drill.card.reason == "low: amount 99.00"


# -- mixed in ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.one_loop
@pytest.mark.anyio
@sampled("n", [100], full=[300])
async def test_drills_are_off_unless_switched_on_and_then_have_their_share(n: int) -> None:
    store, rng = MemoryStore(), random.Random(4)
    await past(store, rng, n + 100)
    waiting = [request(rng, NOW + number, n + 100 + number)[1] for number in range(n)]
    stored = StoredDrills(store, rng)
    assert await stored.mixed(waiting, NOW + 50_000.0) == waiting
    assert await store.scan(DRILL) == []
    await stored.switch_on(plan(0.2))
    assert await stored.mixed(waiting, NOW + 20_000.0) == waiting, "none appears in the past, however late it is made"
    shown = await stored.mixed(waiting, NOW + 40_000.0)
    assert all(card.created_s > NOW + 20_000.0 for card in shown if card not in waiting)
    added = len(shown) - len(waiting)
    assert n - binomial_ceiling(n, 0.75) <= added <= binomial_ceiling(n, 0.25)
    assert shown == sorted(shown, key=lambda card: card.created_s)
    assert await stored.mixed(waiting, NOW + 40_000.0) == shown  # the same, whoever asks again
    early = await StoredDrills(store).mixed(waiting, NOW)
    assert len(early) == len(waiting)  # a drill appears at its own time, not in the past
    assert await stored.switch_off()
    assert await stored.mixed(waiting, NOW + 40_000.0) == waiting
    assert await stored.find(next(c.id for c in shown if c not in waiting), NOW + 50_000.0) is None


@pytest.mark.one_loop
@pytest.mark.anyio
async def test_every_source_serves_once_and_only_calls_that_were_approved_as_they_were() -> None:
    store, rng = MemoryStore(), random.Random(5)
    cards = await past(store, rng, 30)
    for number in range(30, 60):
        asked, shown = request(rng, 1.0, number)
        for kind in ("approve", "reject", "edit")[number % 2 :]:
            given = {"arguments": {}} if kind == "edit" else {}
            await Ledger(store).decide(asked.decide(kind, principal="ann", **given), shown=shown)
    stored = StoredDrills(store, rng)
    await stored.switch_on(plan(0.5))
    await stored.mixed([request(rng, NOW + number, number)[1] for number in range(60)], NOW)
    made_ = [Drill.model_validate_json(d.body) for d in await store.scan(DRILL, label="open")]
    sources = [drill.source for drill in made_]
    assert 20 < len(sources) == len(set(sources))
    assert set(sources) <= {card.digest for card in cards}
    assert await store.scan(DRILL, label="none")  # and where none is left, none is made


@pytest.mark.one_loop
@pytest.mark.anyio
async def test_a_drill_is_made_of_calls_under_the_schema_of_the_request_that_it_follows() -> None:
    """A page has a field for each argument that the schema names: one of before would tell drills from requests."""
    store = MemoryStore()
    await _approved_for(World(), store, "bob", "gus", "zoe", "kim")
    await _paused(World(), store, "joe")
    asked = (await Ledger(store).pending())[0].requests[0]
    of_before = {}
    for document in (await store.scan("decision"))[:2]:
        body = json.loads(document.body)
        of_before[body["shown"]["digest"]] = body["shown"]["arguments"]["to"]
        body["parameters"] = {"properties": {"to": {"type": "string"}}}
        await store.put("decision", document.key, json.dumps(body), expected=document.version)
    made_ = await _drills_after(store, card(asked), 20)
    assert len(made_) == 2, "of the two that were approved under the schema of now"
    for drill in made_:
        assert drill.source not in of_before
        assert drill.card.arguments["to"] not in of_before.values()
        assert drill.parameters == (await open_request(Ledger(store), asked.id)).parameters is not None
    for document in (await store.scan("decision"))[2:]:
        await store.write(Delete(kind="decision", key=document.key, expected=document.version))
    assert await _drills_after(store, card(asked), 40) == made_, "before a call was approved under it, none"


async def _drills_after(store: SessionStore, asked: Card, count: int) -> list[Drill]:
    """The drills that follow a request under so many plans, with another secret each."""
    rules = ({"tool": "send_email", "change": "recipient", "argument": "to"},)
    for secret in [s for n in range(100 * count) if plan(0.5, secret=(s := f"{n:032d}")).follows(asked.id)][:count]:
        await StoredDrills(store).switch_on(plan(0.5, rules, secret=secret))
        await StoredDrills(store).mixed([asked], NOW)
    return [Drill.model_validate_json(found.body) for found in await store.scan(DRILL, label="open")]


@pytest.mark.anyio
async def test_drills_follow_requests_of_their_own_tool() -> None:
    """So a tool has its share of drills, not that of a tool that is approved more often."""
    store, rng = MemoryStore(), random.Random(8)
    await past(store, rng, 30)
    asked = [request(rng, NOW + number, number)[1].model_copy(update={"tool": "mail"}) for number in range(10)]
    stored = StoredDrills(store, rng)
    await stored.switch_on(plan(0.5))
    assert await stored.mixed(asked, NOW + 90_000.0) == asked
    assert await store.scan(DRILL, label="open") == []


@pytest.mark.anyio
async def test_an_answer_counts_once_and_touches_nothing_else_in_the_store() -> None:
    store, rng = MemoryStore(), random.Random(6)
    await past(store, rng, 30)
    stored = StoredDrills(store, rng)
    await stored.switch_on(plan(0.5))
    waiting = [request(rng, NOW + number, number)[1] for number in range(10)]
    await stored.mixed(waiting, NOW)
    shown = [card for card in await stored.mixed(waiting, NOW + 50_000.0) if card not in waiting]
    before = {(d.kind, d.key, d.version) for kind in _KINDS for d in await store.scan(kind)}
    drill = await stored.find(shown[0].id[:8], NOW + 50_000.0)
    assert drill is not None
    answer = drill.answered("approve", principal="ann")
    done = await stored.answer(answer, NOW + 10_000.0, waiting=7)
    assert done.caught is False
    assert "This was a drill, and nothing runs" in done.told()
    assert done.told().endswith("You let it through.")
    with pytest.raises(ApprovalError, match="already decided"):
        await stored.answer(answer, NOW + 10_000.0, waiting=7)
    assert {(d.kind, d.key, d.version) for kind in _KINDS for d in await store.scan(kind)} == before
    (kept,) = await stored.answered()
    assert (kept.answer, kept.waiting, kept.answered_s) == (answer, 7, NOW + 10_000.0)
    assert kept.card.messages == ()  # what was said in the run is not kept beyond the answer


_KINDS = ("session", "decision", "job", "timer", "wake", "grant", "permit", "permit-state", "permit-ticket")


@pytest.mark.anyio
async def test_a_late_answer_and_one_on_another_digest_are_refused_as_on_a_request() -> None:
    store, rng = MemoryStore(), random.Random(7)
    await past(store, rng, 30)
    stored = StoredDrills(store, rng)
    await stored.switch_on(plan(0.5))
    waiting = [request(rng, NOW, number)[1] for number in range(10)]
    await stored.mixed(waiting, NOW)
    card = next(card for card in await stored.mixed(waiting, NOW + 50_000.0) if card not in waiting)
    drill = await stored.find(card.id, NOW + 50_000.0)
    assert drill is not None
    other = drill.answered("reject", principal="ann").model_copy(update={"digest": "0" * 64})
    with pytest.raises(ApprovalError, match="another call"):
        await stored.answer(other, NOW + 50_000.0, waiting=0)
    with pytest.raises(ApprovalError, match="expired"):
        await stored.answer(drill.answered("reject", principal="ann"), NOW + 500_000.0, waiting=0)
    assert card.id not in {c.id for c in await stored.mixed(waiting, NOW + 500_000.0)}
    assert await stored.answered() == []


@pytest.mark.parametrize(
    ("change", "edit", "caught"),
    [
        (Change.AMOUNT, {"to": "bob", "amount": 10.0}, True),
        (Change.AMOUNT, {"to": "eve", "amount": 99.0}, False),
        (Change.DUPLICATE, {"to": "bob", "amount": 1.0}, False),
        (Change.STALE, {"to": "bob", "amount": 10.0}, True),
    ],
)
def test_an_edit_notices_where_it_takes_out_what_was_wrong(change: Change, edit: dict[str, Any], caught: bool) -> None:
    (drill, _, _), *_ = drills(8, 1)
    card = drill.card.model_copy(update={"arguments": {"to": "bob", "amount": 99.0}})
    drill = drill.model_copy(update={"card": card, "change": change, "was": {"to": "bob", "amount": 10.0}})
    answer = drill.answered("edit", principal="ann", arguments=edit)
    assert drill.model_copy(update={"answer": answer}).caught is caught


@pytest.mark.anyio
@pytest.mark.parametrize("hostile", ["{", "null", "{}", '{"drill":1}', "[" * 5_000, '{"share":2}'])
async def test_what_cannot_be_read_of_drills_never_hides_what_waits(hostile: str) -> None:
    store, rng = MemoryStore(), random.Random(11)
    await past(store, rng, 20)
    waiting = [request(rng, NOW, number)[1] for number in range(10)]
    stored = StoredDrills(store, rng)
    await store.put(DRILL, "a" * 32, hostile, expected=0, label="open")
    await store.put(DRILL, "b" * 32, hostile, expected=0, label="answered")
    await stored.switch_on(plan(0.5))
    await stored.mixed(waiting, NOW)
    shown = await stored.mixed(waiting, NOW + 50_000.0)
    assert {card.id for card in waiting} < {card.id for card in shown}
    assert await stored.find("a" * 32, NOW) is None
    assert await stored.answered() == []
    plans = await store.scan("drill-plan")
    await store.put("drill-plan", plans[0].key, hostile, expected=plans[0].version)
    assert await stored.mixed(waiting, NOW + 50_000.0) == waiting
    assert await stored.find("a" * 32, NOW) is None


def test_odd_arguments_make_no_drill_and_no_error() -> None:
    rng = random.Random(12)
    odd: list[Any] = [10**400, -1, 0, True, None, "", " ", [1], {"a": 1}, 1e308, "\ud800", "9" * 5_000]
    cards = [
        request(rng, NOW, n)[1].model_copy(update={"arguments": {"amount": v, "to": v}}) for n, v in enumerate(odd)
    ]
    for _ in range(20):
        drill = made(plan(rules=RULES[:2]), cards, request(rng, NOW)[1], rng)
        assert drill is None or drill.card.arguments != drill.was


# -- the command line -------------------------------------------------------------------------------------------------


def drilled(desk: Desk) -> str:
    """The id of a drill that appears beside the request of a desk."""

    async def prepare() -> str:
        store = open_store(desk.url)
        real = (await Ledger(store).pending())[0].requests[0]
        await past(store, random.Random(9), 20, like=await open_request(Ledger(store), real.id))
        stored = StoredDrills(store)
        now_s = await store.now()
        secret = next(s for n in range(1_000) if plan(0.5, secret=(s := f"{n:032d}")).follows(real.id))
        rules = [{**rule, "tool": real.call.name} for rule in RULES[:2] if real.call is not None]
        await stored.switch_on(plan(0.5, rules, secret=secret))
        await stored.mixed([card(real)], now_s)
        await _appear_now(store, now_s)
        await store.aclose()
        return plan(0.5, secret=secret).drill_id(real.id)

    return anyio.run(prepare)


PROBES = (
    ("approve", "--for", "nobody"),
    ("reject", "--for", "x"),
    ("respond", "-m", "\ud800"),
    ("respond", "-m", "y" * 100_001),
    ("reject", "-m", "y" * 100_001, "--never"),
    ("edit", "--arguments", "{}"),
    ("edit", "--arguments", '{"to": "\\ud800"}'),
    ("approve", "--digest", "0" * 64),
    ("approve", "--as", "x" * 201),
    ("approve", "--as", "a\ud800"),
    ("approve", "--as", "ann"),
    ("reject", "--as", "\uff21nn"),
    ("approve", "--as", "dora", "--for", "ann"),
)


def test_no_command_that_is_refused_on_a_request_is_taken_on_a_drill_or_refused_in_other_words(tmp_path: Path) -> None:
    """Whoever tries one of them on everything would know the drills, and nothing would be decided meanwhile."""
    desk = Desk(tmp_path, started_by="ann", approvals=ApprovalPolicy(others_decide=True))
    drill = drilled(desk)

    async def lent() -> None:
        store = open_store(desk.url)
        now_s = await store.now()
        await delegate(store, Delegation(principal="ann", deputy="dora", from_s=now_s - 1.0, until_s=now_s + 900.0))
        await store.aclose()

    anyio.run(lent)

    def told(shown: str, probe: Sequence[str]) -> tuple[int, str]:
        known = json.loads(desk.cli("show", shown, "--json").output)
        who = () if "--as" in probe else ("--as", "x")
        result = desk.cli(probe[0], shown, *probe[1:], *who)
        return result.exit_code, f"{result.output} {result.exception!r}".replace(known["digest"], "DIGEST")

    for probe in PROBES:
        real = told(desk.request.id, probe)
        assert real[0] != 0
        assert told(drill, probe) == real


def test_in_the_terminal_a_drill_looks_like_a_request_and_is_told_at_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    drill_id = drilled(desk)
    listed = {row["id"]: row for row in json.loads(desk.cli("list", "--json").output)}
    assert listed.keys() == {desk.request.id, drill_id}
    assert listed[drill_id].keys() == listed[desk.request.id].keys()
    assert listed[drill_id]["call"].keys() == listed[desk.request.id]["call"].keys()
    shown, real = (json.loads(desk.cli("show", one, "--json").output) for one in (drill_id, desk.request.id))
    assert shown.keys() == real.keys()
    assert shown["session_id"] is real["session_id"] is listed[drill_id]["session_id"] is None
    assert "session " not in desk.cli("show", desk.request.id).output
    assert "drill" not in desk.cli("show", drill_id).output
    assert desk.cli("approve", drill_id, "--digest", "0" * 64).exit_code == 1
    told = desk.cli("approve", drill_id[:8], "--as", "ann", "--digest", shown["digest"])
    assert told.exit_code == 0, told.output
    assert "This was a drill, and nothing runs" in told.output
    assert "You let it through." in told.output
    again = desk.cli("reject", drill_id, "--as", "bob")
    gone = desk.cli("reject", "f" * 32, "--as", "bob")
    assert again.exit_code == gone.exit_code
    assert "No pending request has an id" in str(again.exception)
    desk.resume()
    assert desk.world.sent == []


def test_the_digest_of_a_drill_is_shown_like_every_text_of_the_store(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    drill_id = drilled(desk)

    async def change(store: SessionStore) -> None:
        document = await store.get(DRILL, drill_id)
        assert document is not None
        drill = Drill.model_validate_json(document.body)
        card = drill.card.model_copy(update={"digest": f"{drill.card.digest}\x1b[2J\u202e\ncall  harmless"})
        body = drill.model_copy(update={"card": card}).model_dump_json()
        await store.put(DRILL, drill_id, body, expected=document.version, label=document.label)

    desk.on_store(change)
    shown = desk.cli("show", drill_id).output
    assert r"\x1b[2J\u202e\ncall  harmless" in shown
    assert all(c.isprintable() or c == "\n" for c in shown)


async def _appear_now(store: SessionStore, now_s: float) -> None:
    """Let what is to appear later appear now."""
    for document in await store.scan(DRILL, label="open"):
        drill = Drill.model_validate_json(document.body)
        card = drill.card.model_copy(update={"created_s": now_s})
        body = drill.model_copy(update={"card": card, "late_s": 0.0}).model_dump_json()
        await store.put(DRILL, document.key, body, expected=document.version, label="open")


@pytest.mark.anyio
async def test_calls_that_a_team_approved_become_drills_with_another_calls_recipient() -> None:
    """From the runner to the list: nothing here is made up but the secret, which draws a drill for this request."""
    world, store = World(), MemoryStore()
    await _approved_for(world, store, "bob", "eve")
    assert [to for to, _ in world.sent] == ["bob", "eve"]
    await _paused(world, store, "joe")
    waiting = [card((await Ledger(store).pending())[0].requests[0])]
    secret = next(s for n in range(1_000) if plan(0.5, secret=(s := f"{n:032d}")).follows(waiting[0].id))
    rules = ({"tool": "send_email", "change": "recipient", "argument": "to"},)
    stored = StoredDrills(store)
    await stored.switch_on(plan(0.5, rules, secret=secret))
    await stored.mixed(waiting, waiting[0].created_s + 90_000.0)
    shown = await stored.mixed(waiting, waiting[0].created_s + 100_000.0)
    (drilled,) = [one for one in shown if one.id != waiting[0].id]
    right = {"bob": "eve", "eve": "bob"}[str(drilled.arguments["to"])]
    assert [m.content for m in drilled.messages if m.role is Role.USER] == [f"mail {right}"]
    assert [c.arguments["to"] for m in drilled.messages for c in m.tool_calls] == [drilled.arguments["to"]]
    (line,) = [m.content or "" for m in drilled.messages if (m.content or "").startswith("Paused for a human")]
    assert f'"to":"{drilled.arguments["to"]}"' in line
    assert right not in line
    drill = await stored.find(drilled.id, waiting[0].created_s + 100_000.0)
    assert drill is not None
    done = await stored.answer(drill.answered("reject", principal="ann"), drilled.created_s, waiting=1)
    assert done.told().endswith("You noticed.")
    await runner(world, _mailing("joe"), store=store).resume("mailer", "joe")
    assert [to for to, _ in world.sent] == ["bob", "eve"]


async def _approved_for(world: World, store: SessionStore, *names: str) -> None:
    """Let an agent mail these people, each with an approval."""
    for name in names:
        await _paused(world, store, name)
        found = await open_request(Ledger(store), (await Ledger(store).pending())[0].requests[0].id)
        await store_decision(Ledger(store), found, found.request.decide("approve", principal="ann"))
        await runner(world, _mailing(name), store=store).resume("mailer", name)


def _mailing(name: str) -> Sequence[Any]:
    call = ToolCall(id=f"call-{name}", name="send_email", arguments={"to": name, "body": "hi"})
    return [answer(f"I will mail {name}.", tool_calls=[call]), answer("Done.")]


async def _paused(world: World, store: SessionStore, name: str) -> None:
    result = await runner(world, _mailing(name), store=store).run(AGENT, f"mail {name}", session_id=name)
    assert len(result.pending) == 1
