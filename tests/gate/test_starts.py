"""Starts that processes share, at the gate: whose a start is, and what becomes of a call whose start another has."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from grampus_uq.errors import StoreError
from grampus_uq.gate import starts as module
from grampus_uq.gate.call import UNKNOWN_OUTCOME, CallPhase, CallRecord, Terms, asked, granted, settled
from grampus_uq.gate.clearance import HARMLESS
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.starts import let_by
from grampus_uq.records.values import ToolCall
from grampus_uq.records.vocabulary import Effect
from tests.gate.test_gate import DOUBT, NEW, NOW, OPEN, PAY, TERMS

pytestmark = pytest.mark.anyio


class Starts:
    """A store of starts; `fails` is raised in its place, `loses` once it has stored."""

    def __init__(self) -> None:
        self.had: dict[str, str] = {}
        self.fails: BaseException | None = None
        self.loses: BaseException | None = None

    async def take(self, by: str, owner: str) -> bool:
        assert isinstance(owner, str)  # a store writes it down
        if self.fails is not None:
            raise self.fails
        first = self.had.setdefault(by, owner) == owner
        if self.loses is not None:
            raise self.loses
        return first

    async def free(self, by: str, owner: str) -> bool:
        assert isinstance(owner, str)
        if self.fails is not None:
            raise self.fails
        return self.had.get(by, owner) == owner


def process(starts: Starts | None, **given: Any) -> Gate:
    """The gate of a process of its own."""
    return Gate(approvals=OPEN, clock=lambda: NOW, starts=starts, **given)


def approved(record: CallRecord | None = None, terms: Terms = TERMS, **given: Any) -> CallRecord:
    """A call that waited, by default under a new request, and was approved."""
    waits = record or asked(NEW.change(**given), terms, OPEN, DOUBT, NOW)
    decision = waits.requests[0].decide("approve", principal="ann")
    after, refused = process(None).decide(waits, terms, [(decision, NOW)])
    assert not refused
    return after


async def started(gate: Gate, record: CallRecord, terms: Terms = TERMS) -> tuple[CallRecord, list[CallRecord]]:
    kept: list[CallRecord] = []
    return await gate.start(record, record.call, terms, None, None, kept.append), kept


async def test_the_first_process_has_the_start_and_every_other_asks_what_became_of_the_call() -> None:
    starts, record = Starts(), approved()
    first, other = process(starts), process(starts)
    ran, _ = await started(first, record)
    assert ran.phase is CallPhase.STARTED
    again, kept = await started(other, record)
    assert [one.phase for one in kept] == [CallPhase.STARTED, CallPhase.WAITING]
    assert again is kept[-1]
    (request,) = again.requests
    assert (request.rule, request.reason) == (UNKNOWN_OUTCOME.rule, UNKNOWN_OUTCOME.reason)
    assert (request.agent_id, request.created_s, request.expires_s) == ("clerk", NOW, None)
    assert other.starts.spent(record, "r")
    third, _ = await started(other, record)
    assert third.requests[0].rule == UNKNOWN_OUTCOME.rule
    assert len(starts.had) == 1


async def test_its_own_process_may_ask_again_and_a_forked_one_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, record = Starts(), approved()
    gate = process(starts)
    assert await gate.starts.take(record, TERMS)
    assert await gate.starts.take(record, TERMS)
    assert not gate.starts.cut_off(record, "r")
    monkeypatch.setattr(module.os, "getpid", lambda: -1)
    assert not await gate.starts.take(record, TERMS)
    assert gate.starts.cut_off(record, "r")


async def test_a_start_is_of_the_call_whatever_request_it_is_approved_on() -> None:
    starts = Starts()
    assert await process(starts).starts.take(approved(), TERMS)
    assert not await process(starts).starts.take(approved(), TERMS), "the same call, under another request"
    others = [
        (approved(step_id="llm_2"), TERMS),
        (approved(call=PAY.model_copy(update={"id": "c2"}), proposed=PAY.model_copy(update={"id": "c2"})), TERMS),
        (approved(proposed=PAY.model_copy(update={"arguments": {"to": "B"}})), TERMS),
        (approved(), _other(agent_id="other")),
        (approved(), _other(session_id="other")),
        (approved(), _other(run_id="other")),
    ]
    for number, (record, terms) in enumerate(others):
        assert await process(starts).starts.take(record, terms), number
    assert len(starts.had) == 1 + len(others)


def _other(**given: Any) -> Terms:
    return Terms(**{"agent_id": "clerk", "session_id": "s", "run_id": "r", "rules": "rules", **given})


async def test_where_a_human_knew_that_it_may_have_run_the_start_is_of_that_request() -> None:
    starts = Starts()
    assert await process(starts).starts.take(approved(), TERMS)
    told = [approved(asked(NEW, TERMS, OPEN, UNKNOWN_OUTCOME, NOW)) for _ in range(2)]
    for record in told:
        assert await process(starts).starts.take(record, TERMS), "each human said so"
        assert let_by(record, "r") in starts.had
        assert not await process(starts).starts.take(record, TERMS)


async def test_what_needs_no_start_takes_none() -> None:
    starts, record = Starts(), approved()
    for one in (settled(record, "no"), record.change(decisions=(), cleared_by="monitor")):
        assert await process(starts).starts.take(one, TERMS)
    assert await process(None).starts.take(record, TERMS)
    assert not starts.had


async def test_a_call_whose_start_cannot_be_stored_waits_again_and_runs_on_the_next_approval() -> None:
    starts, record = Starts(), approved()
    gate = process(starts)
    starts.loses = StoreError("no route " + 400 * "x")
    again, kept = await started(gate, record)
    assert [one.phase for one in kept] == [CallPhase.STARTED, CallPhase.WAITING]
    (request,) = again.requests
    assert "it could not be stored that the call starts: no route" in request.reason
    assert "x" * 246 in request.reason
    assert "x" * 247 not in request.reason
    assert not gate.starts.spent(record, "r")
    starts.loses = None
    ran, _ = await started(gate, approved(again))
    assert ran.phase is CallPhase.STARTED, "the new request has the start"
    assert len(starts.had) == 1


async def test_what_is_void_takes_no_start_and_a_start_that_was_had_goes_to_the_new_request() -> None:
    starts, record, shut = Starts(), approved(), [True]
    gate = process(starts, precondition=lambda call: "the shop is shut" if shut else None)
    again, _ = await started(gate, record)
    assert "the shop is shut" in again.requests[0].reason
    assert not starts.had
    assert not gate.starts.spent(record, "r")
    shut.clear()
    assert await gate.starts.take(record, TERMS)
    shut.append(True)
    later, _ = await started(gate, record)
    shut.clear()
    ran, _ = await started(gate, approved(later))
    assert ran.phase is CallPhase.STARTED


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk")])
async def test_a_start_that_is_cut_off_while_it_is_stored_leaves_the_call_approved(error: BaseException) -> None:
    starts, record = Starts(), approved()
    gate, kept = process(starts), list[CallRecord]()
    starts.fails = error
    with pytest.raises(type(error)):
        await gate.start(record, PAY, TERMS, None, None, kept.append)
    assert [one.phase for one in kept] == [CallPhase.STARTED, CallPhase.CLEARED]
    assert kept[-1].decisions == record.decisions
    starts.fails = None
    ran, _ = await started(gate, kept[-1])
    assert ran.phase is CallPhase.STARTED


async def test_a_process_remembers_as_many_of_its_starts_as_calls_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, records = Starts(), [approved(step_id=f"llm_{n}") for n in range(3)]
    monkeypatch.setattr(module, "_MAX_SPENT", 2)
    gate = process(starts)
    for record in records:
        assert await gate.starts.take(record, TERMS)
    assert await gate.starts.take(records[2], TERMS)
    assert await gate.starts.take(records[1], TERMS)
    assert not await gate.starts.take(records[0], TERMS), "forgotten: whoever has it is not known"


class Permit:
    """A permit that lets calls ahead as long as nothing stands against it."""

    why: str | None = None
    fails = False

    async def standing(self, released: Iterable[str]) -> dict[str, str]:
        if self.fails:
            raise OSError("disk")
        return {} if self.why is None else dict.fromkeys(released, self.why)


async def test_a_call_that_a_permit_let_ahead_keeps_its_start_when_it_is_asked_about() -> None:
    starts, permit, record = Starts(), Permit(), NEW.change(phase=CallPhase.CLEARED, cleared_by="permit abc")
    gate, other = process(starts, permits=permit), process(starts, permits=permit)
    assert await gate.starts.take(record, TERMS)
    assert not await other.starts.take(record, TERMS)
    assert other.starts.cut_off(record, "r")
    permit.why = "it is closed"
    again = await gate.held_again(record, TERMS, shared=True)
    assert again is not None
    assert await gate.starts.take(approved(again), TERMS), "it did not begin: the request has its start"
    assert len(starts.had) == 1


async def test_a_call_does_not_begin_whose_permit_is_closed_while_its_start_is_stored() -> None:
    permit, record = Permit(), NEW.change(phase=CallPhase.CLEARED, cleared_by="permit abc").clear_here()

    class Slow(Starts):
        async def take(self, by: str, owner: str) -> bool:
            permit.why = "it is closed"
            return await super().take(by, owner)

    gate = process(Slow(), permits=permit)
    held, _ = await started(gate, record)
    assert held.waiting
    assert held.requests[0].reason == "a permit let it through, but it is closed"
    ran, _ = await started(gate, approved(held))
    assert ran.phase is CallPhase.STARTED, "it did not begin: the request has its start"


async def test_a_call_that_a_permit_let_ahead_and_that_did_not_begin_may_begin_later_in_the_same_process() -> None:
    permit, record = Permit(), NEW.change(phase=CallPhase.CLEARED, cleared_by="permit abc").clear_here()
    gate = process(None, permits=permit)
    permit.fails = True
    with pytest.raises(OSError, match="disk"):
        await started(gate, record)
    permit.fails, permit.why = False, "it is closed"
    held, _ = await started(gate, record)
    assert held.waiting
    assert not held.requests[0].unknown_outcome
    permit.why = None
    ran, _ = await started(gate, record)
    assert ran.phase is CallPhase.STARTED
    again, _ = await started(gate, record)
    assert again.requests[0].unknown_outcome


async def test_a_sub_agent_that_a_permit_let_ahead_goes_on_in_the_same_process() -> None:
    gate, record = process(None, permits=Permit()), NEW.change(phase=CallPhase.CLEARED, cleared_by="permit abc")
    for _ in range(2):
        ran = await gate.start(record.clear_here(), PAY, TERMS, None, None, list[CallRecord]().append, any_effect=True)
        assert ran.phase is CallPhase.STARTED


async def test_what_is_checked_before_its_start_is_claimed_meanwhile_and_not_asked_about_as_if_it_never_ran() -> None:
    starts, shut, claims = Starts(), [False], list[bool]()

    def precondition(call: Any) -> str | None:
        claims.append(gate.starts.spent(records[-1], "r"))
        return "the shop is shut" if shut[0] else None

    gate = process(starts, precondition=precondition, permits=Permit())
    records = [approved(), NEW.change(step_id="llm_2", phase=CallPhase.CLEARED, cleared_by="permit abc").clear_here()]
    for record in list(records):
        records.append(record)
        shut[0], had = True, len(starts.had)
        held = await gate.held_before(record, TERMS, starts=False)
        assert held is not None
        assert not held.requests[0].unknown_outcome
        shut[0] = False
        assert await gate.held_before(record, TERMS, starts=False) is None
        assert len(starts.had) == had
        assert await gate.held_before(record, TERMS, starts=True) is None
        assert not gate.starts.spent(record, "r")
        starts.fails = StoreError("the store is needed no more")
        ran, _ = await started(gate, record)
        assert ran.phase is CallPhase.STARTED
        starts.fails = None
        for one, takes in itertools.product((gate, process(starts, permits=Permit())), (False, True)):
            again = await one.held_before(record, TERMS, starts=takes)
            assert again is not None
            (request,) = again.requests
            assert (request.rule, request.agent_id, request.created_s) == (UNKNOWN_OUTCOME.rule, "clerk", NOW)
        assert gate.starts.spent(record, "r")
    assert claims == [True] * 6
    assert len(starts.had) == 2


@pytest.mark.parametrize("by", ["grant", "chain big", "permit abc"])
async def test_what_was_let_ahead_has_a_start_and_hands_it_on_to_the_request_under_which_it_waits(by: str) -> None:
    starts, record = Starts(), NEW.change(phase=CallPhase.CLEARED, cleared_by=by)
    if by == "grant":
        record = granted(record, Grant(tool="pay", principal="ann", expires_s=NOW + 1.0))
    gate, held = process(starts), asked(record, TERMS, OPEN, DOUBT, NOW)
    with gate.starts.once(record, "r") as first:
        assert first
    assert gate.starts.spent(record, "r")
    assert await gate.starts.take(record, TERMS)
    assert not await process(starts).starts.take(record, TERMS)
    assert gate.starts.hand_on(record, held, "r") is held
    assert not gate.starts.spent(record, "r")
    assert await gate.starts.take(approved(held), TERMS)
    assert len(starts.had) == 1


# -- rejections in a thread -------------------------------------------------------------------------------------------

VISIT, LATER, ROOT = (_other(session_id=session, thread="t") for session in ("t/desk:1", "t/desk:2", "t"))


async def test_a_rejection_counts_in_all_sessions_of_its_thread_for_calls_that_many_tools_treat_as_one() -> None:
    gate = process(None)
    for call in (PAY, ToolCall(name="pay", arguments={"to": "\u00e9", "n": 1})):
        assert not await gate.starts.rejected(call, LATER, stored=True)
        await gate.starts.reject(call, VISIT)
    for terms in (VISIT, LATER, ROOT, _other(agent_id="other", thread="t")):
        assert await gate.starts.rejected(PAY.model_copy(update={"id": "other"}), terms, stored=False)
        assert await gate.starts.rejected(
            ToolCall(name="pay", arguments={"n": 1.0, "to": "e\u0301"}), terms, stored=False
        )
    others = [_other(thread="u"), _other(), _other(thread="")]
    for terms in others:
        assert not await gate.starts.rejected(PAY, terms, stored=True)
    assert not await gate.starts.rejected(PAY.model_copy(update={"name": "pay2"}), LATER, stored=True)
    assert not await process(None).starts.rejected(PAY, LATER, stored=True), "another process"


async def test_a_rejection_counts_in_the_sessions_whose_terms_name_its_thread_and_in_no_other_session() -> None:
    gate = process(None)
    named = [gate.terms("clerk", session, None, thread="t") for session in ("t/desk:1", "t/desk:2")]
    alone = [gate.terms("clerk", session, None) for session in ("1", "2")]
    for first, _ in (named, alone):
        await gate.starts.reject(PAY, first)
    assert [await gate.starts.rejected(PAY, of, stored=True) for _, of in (named, alone)] == [True, False]


async def test_a_session_without_a_thread_remembers_nothing_here() -> None:
    starts = Starts()
    gate = process(starts)
    starts.fails = StoreError("asked for nothing")
    await gate.starts.reject(PAY, TERMS)
    assert not await gate.starts.rejected(PAY, TERMS, stored=True)
    assert starts.had == {}


async def test_a_stored_rejection_is_known_in_other_processes_and_hides_what_was_rejected() -> None:
    starts = Starts()
    await process(starts).starts.reject(PAY, VISIT)
    await process(starts).starts.reject(PAY, LATER)
    assert len(starts.had) == 1
    assert not any(PAY.name in by for by in starts.had)
    other = process(starts).starts
    assert [await other.rejected(PAY, terms, stored=True) for terms in (VISIT, LATER, ROOT)] == [True, True, True]
    assert not await other.rejected(PAY, LATER, stored=False)
    assert await other.take(approved(), LATER), "a rejection is no start"


async def test_a_rejection_whose_writing_failed_counts_in_its_own_process() -> None:
    starts = Starts()
    gate = process(starts)
    starts.fails = StoreError("down")
    with pytest.raises(StoreError):
        await gate.starts.reject(PAY, VISIT)
    assert await gate.starts.rejected(PAY, LATER, stored=True)


async def test_the_rejections_that_a_process_remembers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_SPENT", 2)
    gate = process(None)
    calls = [ToolCall(name="pay", arguments={"n": n}) for n in range(3)]
    for call in calls:
        await gate.starts.reject(call, VISIT)
    assert [await gate.starts.rejected(call, LATER, stored=True) for call in calls] == [False, True, True]


@pytest.mark.parametrize("effect", list(Effect))
async def test_a_store_that_is_down_keeps_no_harmless_call_from_running(effect: Effect) -> None:
    gate = process(starts := Starts())
    starts.fails = StoreError("down")
    if effect in HARMLESS:
        assert await gate.held_back(PAY, LATER, effect, repeated=False) is None
    else:
        unread = await gate.held_back(PAY, LATER, effect, repeated=False)
        assert unread is not None
        assert (unread.rule, unread.reason[-20:]) == ("rejected_in_thread", "cannot be read: down")
    with pytest.raises(StoreError):
        await gate.starts.reject(PAY, VISIT)
    held = await gate.held_back(PAY, LATER, effect, repeated=False)
    assert (held and held.rule) == "rejected_in_thread"


@pytest.mark.parametrize("effect", list(Effect))
async def test_a_call_that_a_human_rejected_waits_in_a_later_session_of_its_thread_and_a_harmless_one_goes_ahead(
    effect: Effect,
) -> None:
    starts = Starts()
    await process(starts).starts.reject(PAY, VISIT)
    for call, holds in [(PAY, effect not in HARMLESS), (PAY.model_copy(update={"name": "pay2"}), False)]:
        record, action = await process(starts).judge(CallRecord.new(call, "llm_1"), None, LATER, effect)
        assert [one.rule for one in record.requests] == (["rejected_in_thread"] if holds else [])
        assert action == ("pause_for_human" if holds else "proceed")


@pytest.mark.parametrize("kind", ["approve", "edit", "reject", "respond"])
async def test_of_the_answers_that_a_host_carries_out_a_rejection_or_a_change_counts_in_the_thread(kind: str) -> None:
    gate, waits = process(None), asked(NEW, VISIT, OPEN, DOUBT, NOW)
    more: dict[str, Any] = {"respond": {"message": "done"}, "edit": {"arguments": {"to": "B"}}}
    told = more.get(kind, {})
    decision = waits.requests[0].decide(kind, principal="ann", **told)
    after, refused = gate.decide(waits, VISIT, [(decision, NOW)])
    assert not refused
    await gate.answered(after, VISIT)
    assert await gate.starts.rejected(PAY, LATER, stored=True) is (kind in ("edit", "reject"))
