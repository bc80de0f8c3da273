"""Permits in a store: what the runner asks, lets ahead and learns; shared, restarted, forged, closed."""

from __future__ import annotations

import itertools
import json
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from grampus_uq import AgentRunner, Ed25519Signer, Profile, PublicKeys, Seal, Session, ToolCall, UncertaintyMonitor
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.release import ReleaseRule
from grampus_uq.errors import DataError, StoreError
from grampus_uq.gate.call import UNKNOWN_OUTCOME, CallRecord, Terms, asked, decided
from grampus_uq.gate.gate import Held
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.permits import Entry, Permit, PermitState
from grampus_uq.gate.requests import ApprovalDecision, ApprovalPolicy
from grampus_uq.records.events import DecisionEvent
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.dead_letters import drop
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.permit_words import permit_facts
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.run_state import ExecutionResult
from grampus_uq.runtime.store import Append, Change, Delete, Document, Put, SessionStore
from grampus_uq.runtime.stored_permits import (
    Standing,
    StoredPermits,
    close_permit,
    grant_permit,
    replayed_permit,
    stored_permits,
)
from grampus_uq.runtime.stores import open_store
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.worker_jobs import Job, set_aside, take
from grampus_uq.stats.fusion import FusedReading, LogisticFusion
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, Meanwhile, Watched, World, mail, runner
from tests.runtime.permit_kills import DOUBT, Believed
from tests.sampling import crossed, sampled
from tests.scripted_runs import Captured

pytestmark = pytest.mark.anyio
NO_AUDIT, AUDIT = 0.999999, 0.0
ANN = Ed25519Signer.generate()


def permit(**given: Any) -> Permit:
    """One that is earned by a single right answer, or a few: the arithmetic has its own tests."""
    settings: dict[str, Any] = {
        "tool": "send_email",
        "thresholds": (0.3,),
        "epsilon": 0.5,
        "delta": 0.4,
        "audit_rate": 0.1,
        "principal": "ann",
        "expires_s": time.time() + 3_600,
    }
    return Permit(**settings | given)


class Office:
    """Runs one mail a session over one store, and answers as it is told."""

    def __init__(self, store: SessionStore | None = None, draw: float = NO_AUDIT, **given: Any) -> None:
        self.store = store or MemoryStore()
        self.world = World()
        self.given = given
        self.draw = draw

    def runner(self, **given: Any) -> AgentRunner:
        turns = [answer("I will mail.", tool_calls=[mail("b", "bob", given.pop("body", "hi"))]), answer("Done.")]
        one = runner(self.world, turns, store=self.store, **self.given | given)
        assert isinstance(one.gate.permits, StoredPermits)
        one.gate.permits._draw = lambda: self.draw
        return one

    async def run(self, session: str, says: str | None = "approve", **given: Any) -> ExecutionResult:
        result = await self.runner(**given).run(AGENT, "mail bob", session_id=session)
        if result.pending and says is not None:
            decision = result.pending[0].decide(says, principal="ann", **_more(says))
            result = await self.runner(**given).resume("mailer", session, self.signed(decision))
        return result

    def signed(self, decision: ApprovalDecision) -> ApprovalDecision:
        return decision if "approvals" not in self.given else ANN.sign(decision)

    async def standing(self) -> Standing:
        (found,) = await stored_permits(self.store)
        return found

    async def earn(self, **given: Any) -> Permit:
        """Grant a permit and answer until it, and those beside it, let a call ahead."""
        one = permit(**given)
        await grant_permit(self.store, ANN.sign(one))
        for number in range(8):
            await self.run(f"earn-{number}", body=f"earn {number}")
        assert all(found.state.in_force(found.permit) == 1 for found in await stored_permits(self.store))
        return one


def _more(says: str) -> dict[str, Any]:
    return {"arguments": {"to": "eve", "body": "x"}} if says == "edit" else {}


async def test_calls_are_asked_about_until_it_is_earned_and_then_go_ahead_and_audit_and_recording_say_why() -> None:
    office = Office()
    await office.earn()
    sent, captured = len(office.world.sent), Captured()
    before = (await office.standing()).state
    one = office.runner(monitor=UncertaintyMonitor(processors=[captured]))
    result = await one.run(AGENT, "mail bob", session_id="free")
    assert result.status is AgentStatus.COMPLETED
    assert len(office.world.sent) == sent + 1
    now = await office.standing()
    assert (now.state.released, now.state.answers) == (before.released + 1, before.answers)
    assert now.state == await replayed_permit(office.store, now.permit)
    (event,) = [event for event in captured.events if isinstance(event, DecisionEvent)]
    assert (event.decision, event.principal, event.acknowledged) == ("permit", "ann", None)
    assert event.message is not None
    assert event.message.startswith("goes ahead: at most 50 % of send_email calls go out wrong, at 60 %")
    entries = await AuditLog(office.store, "mailer", "free").entries()
    (started,) = [e["data"] for e in entries if e["what"] == "execution_started"]
    assert started["cleared_by"] == f"permit {now.permit.id}"


@pytest.mark.parametrize(("least", "sent"), [(0.5, 1), (0.9, 0)], ids=["let go", "held"])
async def test_what_a_release_rule_decides_is_not_counted_and_the_permit_says_so(least: float, sent: int) -> None:
    chance = LogisticFusion(readings={"p_true": FusedReading(mean=0.0, sd=1.0, slope=1.0)}, intercept=0.0)
    profile = Profile(calibration=chance, release=ReleaseRule(at_least=least))
    office = Office(monitor=UncertaintyMonitor(profile=profile))
    await grant_permit(office.store, ANN.sign(permit()))
    await office.run("s", says=None)
    now = await office.standing()
    assert len(office.world.sent) == sent
    assert (now.state.issued, now.state.answers) == (0, 0)
    assert "and none that a profile's release rule lets go or holds" in permit_facts(now)["covers"]


async def test_without_a_permit_nothing_changes_and_nothing_is_written() -> None:
    office = Office()
    result = await office.run("s", says=None)
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    for kind in ("permit", "permit-state", "permit-ticket"):
        assert await office.store.scan(kind) == []


@pytest.mark.parametrize(
    ("says", "wrong"), [("approve", 0), ("reject", 1), ("edit", 1), ("respond", 1), ("guidance", 1)]
)
async def test_approved_as_it_was_is_right_and_every_other_answer_wrong(says: str, wrong: int) -> None:
    office = Office()
    await grant_permit(office.store, permit())
    if says == "guidance":
        await office.run("s", says=None)
        await office.runner().resume("mailer", "s", "do something else")
    elif says == "respond":
        (request,) = (await office.run("s", says=None)).pending
        await office.runner().resume("mailer", "s", request.decide("respond", principal="ann", message="sent"))
    else:
        await office.run("s", says=says)
    state = (await office.standing()).state
    assert (state.counted, state.answers, state.wrong) == (1, 1, wrong)


async def test_an_edit_that_changes_nothing_is_an_approval() -> None:
    office = Office()
    await grant_permit(office.store, permit())
    (request,) = (await office.run("s", says=None)).pending
    assert request.call is not None
    same = request.decide("edit", principal="ann", arguments=dict(request.call.arguments))
    await office.runner().resume("mailer", "s", same)
    assert (await office.standing()).state.wrong == 0


async def test_an_audit_asks_like_any_other_request_and_a_grant_does_not_swallow_it() -> None:
    office = Office()
    one = await office.earn()
    office.draw = AUDIT
    plain = await Office().run("s", says=None)
    result = await office.run("audited", says=None)
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    mine, theirs = result.pending[0], plain.pending[0]
    assert (mine.rule, mine.reason, mine.level, mine.guarantee) == (
        theirs.rule,
        theirs.reason,
        theirs.level,
        theirs.guarantee,
    )  # who sees that it is an audit may answer differently
    before = (await office.standing()).state
    await office.runner().ledger.grant(Grant(tool="send_email", principal="ann", expires_s=time.time() + 60))
    assert (await office.run("granted", says=None, body="granted")).status is AgentStatus.COMPLETED
    assert (await office.standing()).state == before  # what a grant lets ahead is none of the permit's calls
    assert one.id


class Sealed(Office):
    """Decisions are signed, and what is stored is sealed."""

    def __init__(self, store: SessionStore | None = None, **given: Any) -> None:
        self.policy = ApprovalPolicy(signer=PublicKeys({"ann": ANN.public_key}), seal=Seal("k" * 32))
        super().__init__(store, approvals=self.policy, **given)


async def test_only_a_permit_that_its_principal_signed_counts() -> None:
    for made in (permit(), ANN.sign(permit(principal="eve")), ANN.sign(permit()).model_copy(update={"epsilon": 0.4})):
        office = Sealed()
        await grant_permit(office.store, made)
        await office.run("s")
        assert await office.store.scan("permit-state") == []


async def forge(store: SessionStore, kind: str, change: Callable[[dict[str, Any]], object]) -> None:
    (found,) = await store.scan(kind)
    values = json.loads(found.body)
    change(values)
    await store.put(kind, found.key, json.dumps(values), expected=found.version, label=found.label)


def _rich(values: dict[str, Any]) -> None:
    values["earned"]["log_peak"] = [99.0]


@pytest.mark.one_loop
@pytest.mark.parametrize("forging", ["rich", "unsealed", "gone", "another permit's", "no json"])
async def test_a_forged_state_lets_nothing_ahead(forging: str) -> None:
    office = Sealed()
    one = permit()
    await grant_permit(office.store, ANN.sign(one))
    await office.run("first", says="reject")
    assert (await office.standing()).state.answers == 1
    (found,) = await office.store.scan("permit-state")
    if forging == "rich":
        await forge(office.store, "permit-state", _rich)
    elif forging == "unsealed":
        await forge(office.store, "permit-state", lambda v: (_rich(v), v.pop("seal")))
    elif forging == "no json":
        await office.store.put("permit-state", found.key, "no json", expected=found.version)
    else:
        other = Office()
        body = (await other.earn(), await other.store.scan("permit-state"))[1][0].body
        await office.store.put("permit-state", found.key, body, expected=found.version)
    result = await office.run("second", says=None)
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert office.world.sent == []


async def test_an_old_state_is_refused_by_whoever_saw_a_newer_one() -> None:
    office = Sealed()
    one = await office.earn()
    (old,) = await office.store.scan("permit-state")
    keeper = office.runner()
    permits = keeper.gate.permits
    assert isinstance(permits, StoredPermits)
    await close_permit(office.store, one.id, "enough")
    by = f"permit {one.id}"
    assert await permits.standing([by]) == {by: f"permit {one.id[:8]} is closed: enough"}
    (definition,) = await office.store.scan("permit")
    body = json.dumps(json.loads(definition.body) | {"closed": None})
    await office.store.put("permit", one.id, body, expected=definition.version, label=definition.label)
    (new,) = await office.store.scan("permit-state")
    assert json.loads(new.body)["closed"] == "enough"  # under the host's seal: taking it off the definition is no use
    assert (await office.run("after", says=None)).status is AgentStatus.WAITING_FOR_HUMAN
    await office.store.put("permit-state", one.id, old.body, expected=new.version)
    result = await keeper.run(AGENT, "mail bob", session_id="replayed")
    assert result.status is AgentStatus.WAITING_FOR_HUMAN


@pytest.mark.one_loop
async def test_a_revocation_cannot_be_taken_back_once_a_host_looked_at_the_permit_for_any_reason() -> None:
    for look in ("judged", "answered", "started"):
        office = Sealed()
        one = await office.earn()
        office.draw = AUDIT if look == "answered" else NO_AUDIT
        worker = office.runner()
        permits = worker.gate.permits
        assert isinstance(permits, StoredPermits)
        waits = await office.run("open", says=None) if look == "answered" else None
        await close_permit(office.store, one.id, "enough")
        if look == "judged":
            await office.run("s", says=None)
        elif look == "answered":
            assert waits is not None
            yes = office.signed(waits.pending[0].decide("approve", principal="ann"))
            await office.runner().resume("mailer", "open", yes)
        else:
            assert await permits.standing([f"permit {one.id}"]) != {}
        await forge(office.store, "permit", lambda values: values.update(closed=None))
        office.draw = NO_AUDIT
        sent = len(office.world.sent)
        assert (await office.run("after", says=None)).status is AgentStatus.WAITING_FOR_HUMAN
        assert len(office.world.sent) == sent
        assert (await office.standing()).state.closed == "enough"


@pytest.mark.one_loop
@pytest.mark.parametrize("broken", ["no json", "[1]", '{"v":1}', "at", "in force", "huge", "negative"])
async def test_a_broken_state_makes_calls_wait_and_the_request_says_what_is_broken(broken: str) -> None:
    office = Office()
    one = await office.earn()
    office.draw = AUDIT
    await office.run("open", says=None)
    (found,) = await office.store.scan("permit-state")
    values: dict[str, Any] = json.loads(found.body)
    if broken == "at":
        values["open"][0].update(at=10**30, wrong=False)
    elif broken == "in force":
        values["open"][0].update(in_force=2, wrong=False)
    elif broken == "huge":
        values["earned"]["calls"] = [10**400]
    elif broken == "negative":
        values["earned"]["usual_wrong"] = [-5.0] * 4
    body = json.dumps(values) if broken.isalpha() or broken == "in force" else broken
    await office.store.put("permit-state", one.id, body, expected=found.version, label="open")
    office.draw = NO_AUDIT
    result = await office.run("then", says=None, body="then")
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert f"permit {one.id[:8]} lets nothing ahead: its state " in result.pending[0].reason
    assert result.pending[0].reason.isprintable()
    resumed = await office.runner().resume("mailer", "then", result.pending[0].decide("approve", principal="ann"))
    assert resumed.status is AgentStatus.COMPLETED  # and an answer on it is no error either
    assert (await office.standing()).trouble is not None


STORES = ["memory", "sqlite", "postgres", "redis"]
ON_SERVERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("postgres", "redis")]


@pytest.fixture(params=STORES)
async def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionStore]:
    """A store of each kind; on a server that other tests use, too."""
    urls: dict[str, Callable[[], str]] = {
        "sqlite": lambda: f"sqlite:///{tmp_path / 's.db'}",
        "postgres": lambda: request.getfixturevalue("postgres_url"),
        "redis": lambda: f"{request.getfixturevalue('redis_url')}?namespace={uuid.uuid4().hex}",
    }
    store = open_store(urls[request.param](), create=True) if request.param in urls else MemoryStore()
    for kind in ("session", "permit", "permit-state", "permit-ticket"):  # the servers are shared
        for document in await store.scan(kind):
            await store.write(Delete(kind=kind, key=document.key, expected=document.version))
    yield store
    await store.aclose()


DAMAGES = ["garbage", "", "{}", "[]", "7", "null", '{"hash":5}', '{"hash":"x"}', '{"hash":null}', "[" * 100_000]
DAMAGES += ['{"hash":"' + "A" * 64 + '"}', '{"v":2,"seq":1}', '{"v":2,"seq":1,"x":"","hash":""}']


@pytest.mark.one_loop
@sampled(
    "any_store,last",
    list(zip(STORES, ["garbage", '{"hash":5}', "[" * 100_000, DAMAGES[10]], strict=True)),
    full=list(itertools.product(STORES, DAMAGES)),
    indirect=["any_store"],
)
async def test_a_log_whose_last_entry_is_broken_lets_nothing_ahead_and_ends_no_run(
    any_store: SessionStore, last: str
) -> None:
    store, run = any_store, uuid.uuid4().hex
    office = Office(store)
    one = await office.earn()
    log = f"permit/{one.id}"
    await store.write(Append(log=log, bodies=(last,), expected=len(await store.read(log))))
    before = (await office.standing()).state
    for says in (None, "approve", "reject"):
        sent = len(office.world.sent)
        result = await office.run(f"s-{says}-{run}", says=None, body=f"then {says}")
        assert result.status is AgentStatus.WAITING_FOR_HUMAN
        assert len(office.world.sent) == sent
        assert "a log cannot go on: its last entry" in result.pending[0].reason
        if says is not None:
            decision = result.pending[0].decide(says, principal="a")
            resumed = await office.runner().resume("mailer", f"s-{says}-{run}", decision)
            assert resumed.status is AgentStatus.COMPLETED
    assert (await office.standing()).state == before  # nothing was half written
    result = await office.run(f"never-{run}", says=None, body="never")
    never = result.pending[0].decide("reject", principal="a", never=True)
    assert (await office.runner().resume("mailer", f"never-{run}", never)).status is AgentStatus.COMPLETED
    assert "said never" in str((await office.standing()).state.closed)


@pytest.mark.one_loop
@crossed("damaged,closed", ["0" * 32, "f" * 32], ["revoked", "never", None])  # the order in which they are read
async def test_beside_a_permit_whose_log_is_damaged_others_learn_and_stand_alone_once_it_is_closed(
    damaged: str, closed: str | None
) -> None:
    office = Office()
    one = await office.earn(id=damaged)
    other = permit(id="7" * 32)
    log = f"permit/{one.id}"
    await office.store.write(Append(log=log, bodies=("garbage",), expected=len(await office.store.read(log))))
    if closed == "never":
        result = await office.run("never", says=None, body="never")
        never = result.pending[0].decide("reject", principal="a", never=True)
        await office.runner().resume("mailer", "never", never)
    elif closed == "revoked":
        await close_permit(office.store, one.id, "revoked")
    await grant_permit(office.store, other)
    for number in range(8):
        await office.run(f"s-{number}", body=f"body {number}")
    found = {standing.permit.id: standing.state for standing in await stored_permits(office.store)}
    assert found[other.id].answers > 0
    assert found[other.id].in_force(other) == 1
    assert found[other.id] == await replayed_permit(office.store, other)
    result = await office.run("then", says=None, body="then")
    if closed is None:
        assert "a log cannot go on: its last entry" in result.pending[0].reason
    else:
        assert result.status is AgentStatus.COMPLETED


class Forgetful(MemoryStore):
    """Fails so often to write the state of a permit."""

    failing = 0

    async def write(self, *changes: Change) -> float:
        if self.failing and any(isinstance(change, Put) and change.kind == "permit-state" for change in changes):
            self.failing -= 1
            raise StoreError("no answer")
        return await super().write(*changes)


@pytest.mark.jumping_clocks
@pytest.mark.one_loop
@crossed("failing,says", [1, 4, 5], ["reject", "edit", "guidance"])
async def test_a_run_goes_on_from_an_answer_against_its_call_only_once_the_permit_has_it(
    failing: int, says: str
) -> None:
    """With a store that fails for a moment, and for longer; then the stored decision is carried out another time."""
    store = Forgetful()
    office = Office(store, draw=AUDIT)
    await office.earn()
    result = await office.run("s", says=None, body="audited")
    request, sent = result.pending[0], len(office.world.sent)
    response = "leave it" if says == "guidance" else request.decide(says, principal="ann", **_more(says))
    store.failing = failing
    if failing == 5:
        with pytest.raises(StoreError, match="permits could not learn of an answer"):
            await office.runner().resume("mailer", "s", response)
        assert len(office.world.sent) == sent
        assert (await office.standing()).state.wrong == 0
        response = response if says == "guidance" else None
    resumed = await office.runner().resume("mailer", "s", response)
    assert resumed.status is AgentStatus.COMPLETED
    assert (await office.standing()).state.wrong == 1
    office.draw = NO_AUDIT
    assert (await office.run("next", says=None, body="next")).status is AgentStatus.WAITING_FOR_HUMAN


async def test_an_answer_that_nobody_took_up_before_the_run_was_given_up_is_learned_in_the_sessions_next_run() -> None:
    office = Office(draw=AUDIT)
    await office.earn()
    before = (await office.standing()).state
    (request,) = (await office.run("s", says=None, body="audited")).pending
    ledger = Ledger(office.store)
    await ledger.decide(request.decide("reject", principal="ann"), wake=False)
    await office.store.write(Job(agent_id="mailer", session_id="s").now(0.0))
    for one in await take(office.store, ["mailer"], 99, 30.0):
        if one.job.session_id == "s":
            await set_aside(office.store, one, session_key("mailer", "s"), one.job)
    await drop(ledger, "mailer", "s")
    await office.run("s", says=None, body="another")
    now = (await office.standing()).state
    assert (now.answers, now.wrong) == (before.answers + 1, before.wrong + 1)


async def test_an_answer_against_a_call_that_the_store_did_not_take_is_told_before_the_next_call_of_the_tool() -> None:
    """Of a host that carries out what it could not tell first."""
    store = Forgetful()
    office = Office(store, draw=AUDIT)
    await office.earn()
    (request,) = (await office.run("s", says=None, body="audited")).pending
    one, office.draw = office.runner(body="next"), NO_AUDIT
    state, _ = await one.ledger.known("mailer", "s")
    (record,) = [record for record in state.turn if record.waiting]
    after = decided(record, [request.decide("reject", principal="ann")]).change(requests=record.requests)
    store.failing = 1
    await one.gate.answered(after, Terms(agent_id="mailer", session_id="s", run_id=state.run_id))
    assert (await office.standing()).state.wrong == 0
    assert (await one.run(AGENT, "mail bob", session_id="next")).status is AgentStatus.WAITING_FOR_HUMAN
    assert (await office.standing()).state.wrong == 1


async def test_the_key_of_a_permit_that_cannot_be_read_is_told_without_its_escape_codes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    await store.put("permit", "zz\x1b[2J\u202e", "{}", expected=0)
    assert await stored_permits(store) == []
    assert caplog.messages
    assert all(message.isprintable() for message in caplog.messages)


async def test_a_broken_log_is_a_data_error() -> None:
    for body in ("not json", "[1]", '{"do":["look"],"now_s":1}', '{"do":"look","now_s":"x"}'):
        store, one = MemoryStore(), permit()
        await grant_permit(store, one)
        await store.write(Append(log=f"permit/{one.id}", bodies=('{"do":"look","now_s":1}', body), expected=0))
        with pytest.raises(DataError, match=r"^2: no entry of a permit's log"):
            await replayed_permit(store, one)


async def test_a_rejection_that_says_never_closes_in_the_write_that_stores_it_whether_or_not_the_run_goes_on() -> None:
    office = Office()
    one = await office.earn(limits={"to": {"equals": "bob"}})
    await grant_permit(office.store, elsewhere := permit(limits={"to": {"equals": "eve"}}))
    office.draw = AUDIT
    (request,) = (await office.run("s", says=None)).pending
    await Ledger(office.store).decide(request.decide("reject", principal="ann", never=True))
    closed = {found.permit.id: found.state.closed for found in await stored_permits(office.store)}
    assert closed == {one.id: "ann said never", elsewhere.id: None}


async def test_of_a_call_of_unknown_outcome_never_closes_and_its_answer_is_no_label() -> None:
    office = Office()
    await office.earn()
    before = (await office.standing()).state
    permits = office.runner().gate.permits
    assert isinstance(permits, StoredPermits)
    terms = Terms(agent_id="mailer", session_id="s", run_id="r")
    record = CallRecord(proposed=mail("b", "bob", "hi"), step_id="llm_0")
    record = asked(record, terms, ApprovalPolicy(), UNKNOWN_OUTCOME, time.time())
    rejected = decided(record, [record.requests[0].decide("reject", principal="ann", never=True)])
    await permits.answered(rejected.change(requests=record.requests), terms)
    now = (await office.standing()).state
    assert (now.closed, now.answers, now.wrong) == ("ann said never", before.answers, before.wrong)


async def test_of_several_answers_on_one_ticket_the_wrong_one_counts() -> None:
    office = Office()
    await grant_permit(office.store, permit())
    (request,) = (await office.run("s", says=None)).pending
    permits = office.runner().gate.permits
    assert isinstance(permits, StoredPermits)
    assert request.call is not None
    record = CallRecord(proposed=request.call, step_id=request.step_id, requests=(request,))
    terms = Terms(agent_id=request.agent_id, session_id=request.session_id, run_id=request.run_id)
    for says in ("reject", "approve", "reject"):
        await permits.answered(decided(record, [request.decide(says, principal="ann")]), terms)
    state = (await office.standing()).state
    assert (state.answers, state.wrong, state.corrected) == (1, 1, 0)


async def test_pruning_takes_expired_permits_whole_and_of_others_the_old_tickets_that_are_counted() -> None:
    office = Office()
    one = await office.earn()
    office.draw = AUDIT
    (request,) = (await office.run("open", says=None, body="open")).pending
    late = permit(id="aaaaaaaaa", expires_s=time.time() - 10.0)
    await grant_permit(office.store, late, [Entry(do="look", now_s=1.0)])
    standing = {found.permit.id: found for found in await stored_permits(office.store)}
    before = (await office.store.read(f"permit/{one.id}"), standing[one.id].state)
    await prune(office.store, 3_600.0)
    assert len(await office.store.scan("permit-ticket")) == 9
    await anyio.sleep(0.01)
    await prune(office.store, 0.001)
    (ticket,) = await office.store.scan("permit-ticket")
    assert json.loads(ticket.body)["number"] == 8
    assert [found.key for found in await office.store.scan("permit")] == [one.id]
    assert [found.key for found in await office.store.scan("permit-state")] == [one.id]
    assert await office.store.read(f"permit/{late.id}") == []
    assert (await office.store.read(f"permit/{one.id}"), (await office.standing()).state) == before
    await office.runner().resume("mailer", "open", request.decide("reject", principal="ann"))
    assert (await office.standing()).state.answers == before[1].answers + 1
    office.draw = NO_AUDIT
    assert (await office.run("then", says=None, body="then")).status is not None
    assert (await office.standing()).state == await replayed_permit(office.store, one)


async def test_closed_stays_closed_and_never_closes_every_permit_that_covers_the_call() -> None:
    office = Office()
    one = await office.earn()
    await close_permit(office.store, one.id, "enough")
    assert (await office.run("s", says=None)).status is AgentStatus.WAITING_FOR_HUMAN
    other = Office()
    await other.earn()
    other.draw = AUDIT
    (request,) = (await other.run("never", says=None)).pending
    await other.runner().resume("mailer", "never", request.decide("reject", principal="ann", never=True))
    other.draw = NO_AUDIT
    assert (await other.run("then", says=None, body="then")).status is AgentStatus.WAITING_FOR_HUMAN
    assert (await other.standing()).state.closed == "ann said never"


@pytest.mark.one_loop
@pytest.mark.parametrize("case", ["scope", "agent", "expired", "always ask", "doubtful", "judge", "no score"])
async def test_what_a_permit_never_covers(case: str) -> None:
    office = Office()
    given: dict[str, Any] = {}
    if case == "scope":
        given["limits"] = {"body": {"in": [f"earn {n}" for n in range(8)]}}
    elif case == "agent":
        given["agent_id"] = "mailer"
    one = await office.earn(**given)
    options: dict[str, Any] = {}
    agent = AGENT
    if case == "agent":
        agent = AGENT.model_copy(update={"name": "another"})
    elif case == "expired":
        (found,) = await office.store.scan("permit")
        late = one.model_copy(update={"expires_s": time.time() - 1.0})
        body = json.dumps({"permit": late.model_dump(mode="json"), "closed": None})
        await office.store.put("permit", one.id, body, expected=found.version, label=found.label)
    elif case == "always ask":
        options["monitor"] = UncertaintyMonitor(policy=UncertaintyPolicy(always_ask_tool_names=["send_email"]))
    elif case == "doubtful":
        options["p_true"] = 0.3
    elif case == "judge":
        agent = AGENT.model_copy(update={"system_prompt": "You send much mail."})
    elif case == "no score":
        (found,) = await office.store.scan("permit")
        other = permit(stream="p_success")
        await grant_permit(office.store, other)
    result = await office.runner(**options).run(agent, "mail bob", session_id="s")
    assert result.status is AgentStatus.WAITING_FOR_HUMAN, case
    assert len(office.world.sent) == 8


async def test_what_a_permit_let_ahead_does_not_start_once_the_permit_has_ended() -> None:
    class Ahead(MemoryStore):
        ahead_s = 0.0

        def _now(self) -> float:
            return super()._now() + self.ahead_s

    store = Ahead()
    office = Office(store)
    one = await office.earn()
    permits, by = office.runner().gate.permits, f"permit {one.id}"
    assert isinstance(permits, StoredPermits)
    assert await permits.standing([by]) == {}
    store.ahead_s = 3_600.0
    assert await permits.standing([by]) == {by: f"permit {one.id[:8]} does not stand any more"}


async def test_what_a_permit_let_ahead_does_not_run_where_the_permit_is_closed_as_its_start_is_written() -> None:
    class Closing(MemoryStore):
        closes: str | None = None

        async def write(self, *changes: Any) -> float:
            if self.closes and any(
                '"execution_started"' in body for one in changes for body in getattr(one, "bodies", ())
            ):
                closes, self.closes = self.closes, None
                await close_permit(self, closes, "enough")
            return await super().write(*changes)

    store = Closing()
    office = Office(store)
    one = await office.earn()
    store.closes = one.id
    assert (await office.run("late", says=None, body="late")).status is AgentStatus.WAITING_FOR_HUMAN
    assert store.closes is None
    assert len(office.world.sent) == 8


async def test_of_two_permits_on_one_call_the_stricter_decides() -> None:
    office = Office()
    await office.earn()
    assert (await office.run("free", says=None, body="free")).status is AgentStatus.COMPLETED
    await grant_permit(office.store, permit(epsilon=0.01, delta=0.01))
    assert (await office.run("both", says=None, body="both")).status is AgentStatus.WAITING_FOR_HUMAN


@pytest.mark.one_loop
@pytest.mark.parametrize("how", ["revoked", "never"])
async def test_what_was_closed_may_be_granted_anew_and_is_earned_anew(how: str) -> None:
    office = Office()
    one = await office.earn()
    if how == "revoked":
        await close_permit(office.store, one.id, "enough")
    else:
        office.draw = AUDIT
        (request,) = (await office.run("never", says=None, body="never")).pending
        await Ledger(office.store).decide(request.decide("reject", principal="ann", never=True))
        office.draw = NO_AUDIT
    assert (await office.run("closed", says=None, body="closed")).status is AgentStatus.WAITING_FOR_HUMAN
    await grant_permit(office.store, again := permit())
    for number in range(4):
        await office.run(f"again-{number}", body=f"again {number}")
    assert (await office.run("ahead", says=None, body="ahead")).status is AgentStatus.COMPLETED
    states = {found.permit.id: found.state for found in await stored_permits(office.store)}
    assert states[one.id].closed is not None
    assert states[again.id].answers > 0


async def test_a_call_that_is_judged_again_finds_its_ticket_and_is_not_drawn_anew() -> None:
    office = Office()
    one = await office.earn()
    office.draw = AUDIT
    await office.run("again", says=None, body="again")
    before = (await office.standing()).state
    (session,) = [d for d in await office.store.scan("session") if d.key.endswith("/again")]
    values = json.loads(session.body)
    values["turn"] = [{**record, "phase": "new", "requests": []} for record in values["turn"]]
    await office.store.put("session", session.key, json.dumps(values), expected=session.version, label=session.label)
    office.draw = NO_AUDIT  # an agent that makes its worker die does not get another draw
    result = await office.runner().resume("mailer", "again", None)
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert (await office.standing()).state == before
    assert one.id


async def run_with(office: Office, between: Callable[[], Awaitable[Any]]) -> Any:
    """A run whose call is let ahead, with this between that and its execution."""
    worker = office.runner()
    permits = worker.gate.permits
    assert isinstance(permits, StoredPermits)
    real = permits.release

    async def delayed(*args: Any, **given: Any) -> Any:
        released = await real(*args, **given)
        await between()
        return released

    permits.release = delayed  # type: ignore[method-assign]
    return await worker.run(AGENT, "mail bob", session_id="s")


async def test_what_was_let_ahead_does_not_run_once_the_permit_is_closed() -> None:
    office = Office()
    one = await office.earn()
    result = await run_with(office, lambda: close_permit(office.store, one.id, "just now"))
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert "just now" in result.pending[0].reason
    assert len(office.world.sent) == 8


@crossed("at,closed", range(1, 8), [0, 1])
async def test_none_of_several_calls_begins_after_a_permit_of_theirs_was_closed_at_whatever_moment_that_was(
    at: int, closed: int
) -> None:
    store = Meanwhile()
    office = Office(store)
    await grant_permit(store, permit())
    await office.earn()
    ids = [found.permit.id for found in await stored_permits(store)]
    store.happens = lambda: close_permit(store, ids[closed], "enough")
    limits = {"to": {"equals": "bob0"}}
    await Ledger(store).grant(Grant(tool="send_email", limits=limits, principal="ann", expires_s=time.time() + 60.0))

    class Permitted(Watched):
        """Watches the calls that no grant let ahead."""

        async def execute(self, call: ToolCall, *more: Any) -> Any:
            return await (self._tools if call.arguments["to"] == "bob0" else super()).execute(call, *more)

    watched = Permitted(office.world, lambda: store.happened)
    turns = [answer("I will mail.", tool_calls=[mail(f"c{n}", f"bob{n}") for n in range(3)]), answer("Done.")]
    worker = runner(office.world, turns, store=store)
    assert isinstance(worker.gate.permits, StoredPermits)
    worker.gate.permits._draw = lambda: NO_AUDIT
    worker.tool_executor, store.at = watched, at
    result = await worker.run(AGENT, "mail all", session_id="s")
    assert True not in watched.seen
    assert len(result.pending) + len(watched.seen) == 2


async def test_what_was_let_ahead_does_not_run_once_an_audit_found_another_call_wrong() -> None:
    """As between a process that died and the one that goes on."""
    office = Office()
    await office.earn()

    async def audit() -> None:
        office.draw = AUDIT
        assert (await office.run("audit", says="reject", body="audit")).status is AgentStatus.COMPLETED

    result = await run_with(office, audit)
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert "a call that it could let ahead was wrong" in result.pending[0].reason
    assert len(office.world.sent) == 8


async def test_advisory_runs_are_untouched_and_teach_nothing() -> None:
    office = Office()
    await grant_permit(office.store, permit())
    monitor = UncertaintyMonitor(policy=UncertaintyPolicy(), advisory=True)
    assert (await office.run("s", monitor=monitor)).status is AgentStatus.COMPLETED
    assert await office.store.scan("permit-state") == []


@pytest.mark.one_loop
@pytest.mark.parametrize("any_store", ["memory", "sqlite", *ON_SERVERS], indirect=True)
async def test_workers_that_share_a_permit_lose_no_answer_and_count_none_twice(
    any_store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(StoredPermits.tell_first.__globals__, "_TELLING_S", 120.0)  # each store may be busy here
    store, one = any_store, permit(epsilon=0.02, delta=0.05)
    await grant_permit(store, one)
    offices = [Office(store) for _ in range(4)]

    async def work(office: Office, number: int) -> None:
        for turn in range(6):
            name = f"{one.id}-{number}-{turn}"
            await office.run(name, says="reject" if turn == 3 else "approve", body=name)

    async with anyio.create_task_group() as group:
        for number, office in enumerate(offices):
            group.start_soon(work, office, number)
    found = next(s for s in await stored_permits(store) if s.permit.id == one.id)
    assert (found.state.answers, found.state.wrong, found.state.open) == (24, 4, ())
    assert found.state == await replayed_permit(store, one)
    assert PermitState.read(one, json.loads(found.state.model_dump_json())) == found.state


class Answering(MemoryStore):
    """A store whose answers take their time on the way: what was read may be old when it arrives."""

    delays: Callable[[], float]

    async def get(self, kind: str, key: str) -> Document | None:
        found = await super().get(kind, key)
        await anyio.sleep(self.delays())
        return found

    async def write(self, *changes: Change) -> float:
        written = await super().write(*changes)
        await anyio.sleep(self.delays())
        return written


async def test_tasks_of_one_worker_lose_no_answer_though_the_store_answers_in_any_order() -> None:
    """What another task wrote while a state was under way does not make that state an old one."""
    draw, store, one = random.Random(1), Answering(), permit(epsilon=0.02, delta=0.05)
    store.delays = lambda: draw.random() * 0.002
    await grant_permit(store, one)
    permits, session = StoredPermits(store), cast(Session, Believed())

    async def ask(number: int) -> None:
        terms = Terms(agent_id="a", session_id=str(number), run_id="r")
        proposed = CallRecord(proposed=mail("m", "bob", str(number)), step_id="llm_0")
        waits = asked(proposed, terms, ApprovalPolicy(), DOUBT, time.time())
        held = await permits.release(waits, session, terms, alike=False)
        assert (type(held), held.trouble if isinstance(held, Held) else "") == (Held, None)
        says = "reject" if number % 3 else "approve"
        await permits.answered(decided(waits, [waits.requests[0].decide(says, principal="ann")]), terms)

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(ask, number)
    (found,) = await stored_permits(store)
    assert (found.state.answers, found.state.wrong, found.state.open) == (8, 5, ())
    assert found.state == await replayed_permit(store, one)


@pytest.mark.jumping_clocks
async def test_workers_that_share_two_permits_ask_where_one_asks_and_both_learn_every_answer() -> None:
    store = MemoryStore()
    lax, strict = permit(), permit(epsilon=0.02, delta=0.05)
    for one in (lax, strict):
        await grant_permit(store, one)
    offices = [Office(store) for _ in range(3)]

    async def work(office: Office, number: int) -> None:
        for turn in range(4):
            name = f"{number}-{turn}"
            await office.run(name, body=name)

    async with anyio.create_task_group() as group:
        for number, office in enumerate(offices):
            group.start_soon(work, office, number)
    states = {found.permit.id: found.state for found in await stored_permits(store)}
    assert sum(len(office.world.sent) for office in offices) == 12
    assert (states[strict.id].answers, states[strict.id].released) == (12, 0)
    assert states[lax.id].answers + states[lax.id].released == states[lax.id].counted == 12
    for one in (lax, strict):
        assert states[one.id] == await replayed_permit(store, one)
    assert len(await store.scan("permit-ticket", label=strict.id)) == 12
