"""A runner takes a deputy's decision while a delegation stands in its store, and not a moment longer."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import AgentRunner, ApprovalPolicy, Delegation, PublicKeys, Seal, SubAgent, open_store
from grampus_uq.cli import approvals_command, delegations_command, evidence_command
from grampus_uq.errors import ApprovalError, DataError
from grampus_uq.gate.signatures import Ed25519Signer, write_key
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.evidence import evidence, verified
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.session_lease import SessionLease
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stored_decisions import open_request, store_decision
from grampus_uq.runtime.stored_delegations import (
    DELEGATION,
    delegate,
    find_delegation,
    revoke_delegation,
    stored_delegations,
)
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, Meanwhile, Watched, World, mail, runner
from tests.runtime.test_evidence_proofs import rechained

pytestmark = [pytest.mark.anyio, pytest.mark.jumping_clocks]
SIGNERS = {name: Ed25519Signer.generate() for name in ("ann", "bob", "dan", "eve")}
KEYS = PublicKeys({name: signer.public_key for name, signer in SIGNERS.items()})
SEAL = Seal("a seal of this test's")
DAN = ["dan", "eve"]


class Case:
    """A call that waits, its runner, and what ann lets dan decide."""

    def __init__(self, **policy: Any) -> None:
        self.store, self.world = MemoryStore(), World()
        self.policy = {"signer": KEYS, "deputies": DAN, "seal": SEAL, **policy}

    async def begin(self, **given: Any) -> Case:
        turns = [answer("I will mail.", tool_calls=[mail("c", "bob")]), answer("Done.")]
        self.agent = runner(self.world, turns, store=self.store, approvals=ApprovalPolicy(**self.policy), **given)
        (self.asked,) = (await self.agent.run(AGENT, "mail bob", session_id="s")).pending
        return self

    async def delegated(self, by: str = "ann", to: str = "dan", lasts_s: float = 3600.0, **other: Any) -> Delegation:
        now_s = await self.store.now()
        fields = {"principal": by, "deputy": to, "from_s": now_s - 1.0, "until_s": now_s + lasts_s, **other}
        given = SIGNERS[by].sign(Delegation(**fields))
        await delegate(self.store, given)
        return given

    async def decided(self, by: str = "dan", given: Delegation | None = None, kind: str = "approve") -> None:
        """As whoever writes the store can: unchecked."""
        decision = SIGNERS[by].sign(self.asked.decide(kind, principal=by, delegation=given))
        shown = (await open_request(self.agent.ledger, self.asked.id)).card
        await self.agent.ledger.decide(decision, shown=shown)

    async def resumed(self) -> int:
        """How many mails were sent after the runner took up what was decided."""
        result = await self.agent.resume("mailer", "s")
        self.asked = result.pending[0] if result.pending else self.asked
        return len(self.world.sent)

    async def refused(self) -> list[str]:
        entries = await AuditLog(self.store, "mailer", "s").entries()
        return [entry["data"]["why"] for entry in entries if entry["what"] == "decision_refused"]

    async def faults(self, **given: Any) -> list[str]:
        lines = [line async for line in evidence(self.store)]
        return verified(lines, KEYS, **{"deputies": DAN, **given}).faults


async def test_what_a_deputy_approves_runs_once_and_the_audit_and_the_evidence_say_for_whom() -> None:
    case = await Case().begin()
    await case.decided(given=await case.delegated())
    assert await case.resumed() == 1
    entries = await AuditLog(case.store, "mailer", "s").entries()
    (taken,) = [entry["data"] for entry in entries if entry["what"] == "decision"]
    assert (taken["principal"], taken["for"]) == ("dan", "ann")
    assert [e["data"]["cleared_by"] for e in entries if e["what"] == "execution_started"] == ["approve of dan for ann"]
    assert await case.faults() == []
    assert await case.faults(deputies=()), "nobody is a deputy for a verifier who names none"
    assert await case.faults(required=2)


async def _long_ago() -> list[str]:
    case = await Case().begin()
    await case.decided(given=await case.delegated(from_s=await case.store.now() - 1_000.0))
    assert await case.resumed() == 1
    return [line async for line in evidence(case.store)]


RAN = functools.cache(lambda: anyio.run(_long_ago))
SECONDS = st.integers(-900, 900).map(float) | st.sampled_from([-60.0, 0.0, 60.0, 61.0])


@given(arrived_s=SECONDS, made_s=SECONDS, revoked_s=st.none() | SECONDS, of_before=st.booleans())
def test_evidence_takes_a_delegation_that_was_stored_when_its_call_ran_and_not_revoked(
    arrived_s: float, made_s: float, revoked_s: float | None, of_before: bool
) -> None:
    """In seconds after the start of the call; what an earlier release revoked does not say when it was made."""
    arrived_s, of_before = -abs(arrived_s), of_before and revoked_s is not None

    def change(entries: list[dict[str, Any]]) -> None:
        (at_s,) = [
            one["data"]["entry"]["time_s"]
            for one in entries
            if one["what"] == "audit" and one["data"]["entry"]["what"] == "execution_started"
        ]
        stored = {one["what"]: one["data"] for one in entries}
        stored["decision"]["written_s"] = at_s + arrived_s
        stored["delegation"]["written_s"] = at_s + (made_s if revoked_s is None else revoked_s)
        if revoked_s is not None:
            revoked = {"revoked": "ann"} if of_before else {"revoked": "ann", "made_s": at_s + made_s}
            stored["delegation"]["body"] |= revoked

    faults = verified(rechained(RAN(), change), KEYS, deputies=DAN).faults
    made, lasted = of_before or made_s <= 60.0, revoked_s is None or revoked_s > max(arrived_s, -60.0)
    assert (faults == []) is (made and lasted)


@pytest.mark.parametrize("made_s", ["soon", [], 10**400], ids=["text", "list", "huge"])
async def test_one_that_says_no_time_when_it_was_made_counts_for_nothing(made_s: Any) -> None:
    case = await Case().begin()
    given = await case.delegated()
    found = await case.store.get(DELEGATION, given.id)
    assert found is not None
    body = json.loads(found.body) | {"revoked": "ann", "made_s": made_s}
    await case.store.put(DELEGATION, given.id, json.dumps(body), expected=found.version)
    assert await stored_delegations(case.store) == []
    assert any("cannot be read" in fault for fault in await case.faults())


@pytest.mark.parametrize("delegation_id", ["x", "12345", "a b", "Ł", "../x", "a" * 57])
async def test_one_of_any_id_is_found_by_it_and_revoked(delegation_id: str) -> None:
    """So is one whose id begins another's; a beginning of fewer than six characters finds none."""
    case = await Case().begin()
    longer = await case.delegated(id=f"{delegation_id}-longer")
    given = await case.delegated(id=delegation_id)
    await case.decided(given=given)
    revoked = await revoke_delegation(case.store, delegation_id, "ann")
    assert (revoked.delegation, (await find_delegation(case.store, longer.id)).why_not) == (given, None)
    assert await case.resumed() == 0
    assert (await find_delegation(case.store, longer.id[:-1])).delegation == longer
    with pytest.raises(DataError, match="No delegation"):
        await find_delegation(case.store, (await case.delegated()).id[:5])


Attack = Callable[[Case], Awaitable[None]]


async def _nothing_stored(case: Case) -> None:
    now_s = await case.store.now()
    fields: dict[str, Any] = {"principal": "ann", "deputy": "dan", "from_s": now_s - 1.0, "until_s": now_s + 60.0}
    await case.decided(given=SIGNERS["ann"].sign(Delegation(**fields)))


async def _revoked_before(case: Case) -> None:
    given = await case.delegated()
    await revoke_delegation(case.store, given.id, "ann")
    await case.decided(given=given)


async def _revoked_before_a_runner_took_it_up(case: Case) -> None:
    given = await case.delegated()
    await case.decided(given=given)
    await revoke_delegation(case.store, given.id, "bob")


async def _ended_before(case: Case) -> None:
    given = await case.delegated(lasts_s=0.05)
    await anyio.sleep(0.1)
    await case.decided(given=given)


async def _ended_before_a_runner_took_it_up(case: Case) -> None:
    given = await case.delegated(lasts_s=0.3)
    await case.decided(given=given)
    await anyio.sleep(0.4)


async def _not_begun(case: Case) -> None:
    now_s = await case.store.now()
    await case.decided(given=await case.delegated(from_s=now_s + 30.0))


async def _other_content_under_its_id(case: Case) -> None:
    given = await case.delegated(tools=("search",))
    wide = SIGNERS["ann"].sign(given.model_copy(update={"tools": None}))
    await case.decided(given=wide)


async def _about_another_tool(case: Case) -> None:
    await case.decided(given=await case.delegated(tools=("search",)))


async def _delegated_on(case: Case) -> None:
    await case.delegated()
    await case.decided("eve", given=await case.delegated("dan", "eve"))


async def _of_somebody_else(case: Case) -> None:
    await case.decided("eve", given=await case.delegated())


async def _unreadable(case: Case) -> None:
    given = await case.delegated()
    found = await case.store.get(DELEGATION, given.id)
    assert found is not None
    await case.store.put(DELEGATION, given.id, "{", expected=found.version)
    await case.decided(given=given)


async def _without_one(case: Case) -> None:
    await case.delegated()
    await case.decided()


ATTACKS: list[Attack] = [
    _nothing_stored,
    _revoked_before,
    _revoked_before_a_runner_took_it_up,
    _ended_before,
    _ended_before_a_runner_took_it_up,
    _not_begun,
    _other_content_under_its_id,
    _about_another_tool,
    _delegated_on,
    _of_somebody_else,
    _unreadable,
    _without_one,
]


@pytest.mark.one_loop
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda one: one.__name__.strip("_"))
async def test_what_rests_on_no_standing_delegation_runs_nothing_and_blocks_nobody(attack: Attack) -> None:
    case = await Case().begin()
    await attack(case)
    assert await case.resumed() == 0
    assert len(await case.refused()) == 1
    await case.decided("bob")
    assert await case.resumed() == 1
    assert [fault for fault in await case.faults() if "cannot be read" not in fault] == []


async def test_one_that_is_revoked_while_its_call_is_about_to_run_does_not_let_it_run() -> None:
    case = Case()

    async def revoke(call: Any) -> None:
        await revoke_delegation(case.store, given.id, "ann")

    await case.begin(precondition=revoke)
    given = await case.delegated()
    await case.decided(given=given)
    assert await case.resumed() == 0
    assert "was revoked" in case.asked.reason


async def test_one_that_is_revoked_until_the_start_of_its_call_is_written_does_not_let_it_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As long as other calls of the turn take with their preconditions, and the store with its write."""
    case = await Case().begin()
    given = await case.delegated()
    await case.decided(given=given)
    save = SessionLease.save

    async def revoked_meanwhile(self: SessionLease, *entries: tuple[str, Any]) -> None:
        if any(what == "execution_started" for what, _ in entries):
            await revoke_delegation(case.store, given.id, "ann")
        await save(self, *entries)

    monkeypatch.setattr(SessionLease, "save", revoked_meanwhile)
    assert await case.resumed() == 0
    assert "was revoked" in case.asked.reason


@pytest.mark.parametrize("at", range(1, 9))
async def test_none_of_several_calls_begins_after_their_delegation_was_revoked_at_whatever_moment_that_was(
    at: int,
) -> None:
    case = Case()
    store = case.store = Meanwhile()
    store.at, watched = at, Watched(case.world, lambda: store.happened)
    turns = [answer("I will mail.", tool_calls=[mail(f"c{n}", f"bob{n}") for n in range(3)]), answer("Done.")]
    agent = runner(case.world, turns, store=store, approvals=ApprovalPolicy(**case.policy))
    agent.tool_executor = watched
    waiting = (await agent.run(AGENT, "mail", session_id="s")).pending
    given = await case.delegated()
    store.happens = lambda: revoke_delegation(store, given.id, "ann")
    decisions = [SIGNERS["dan"].sign(one.decide("approve", principal="dan", delegation=given)) for one in waiting]
    result = await agent.resume("mailer", "s", decisions)
    assert True not in watched.seen
    assert len(result.pending) + len(watched.seen) == 3


async def test_a_revoked_one_is_not_made_again_under_its_id_and_stays_until_its_end() -> None:
    case = await Case().begin()
    given = await case.delegated()
    for _ in range(2):
        assert (await revoke_delegation(case.store, given.id[:8], "ann")).revoked in (None, "ann")
    with pytest.raises(ApprovalError, match="already"):
        await delegate(case.store, given)
    await prune(case.store, 0.001)
    (kept,) = await stored_delegations(case.store, "dan")
    assert kept.why_not == "was revoked"
    short = await case.delegated(lasts_s=0.01)
    await anyio.sleep(0.05)
    await prune(case.store, 0.001)
    with pytest.raises(DataError):
        await find_delegation(case.store, short.id)


async def test_where_two_must_agree_ann_and_her_deputies_are_one() -> None:
    case = await Case(required=2).begin()
    given = await case.delegated()
    await case.decided("ann")
    await case.decided("dan", given)
    await case.decided("eve", await case.delegated(to="eve"))
    assert await case.resumed() == 0
    await case.decided("bob")
    assert await case.resumed() == 1
    assert await case.faults(required=2) == []


async def test_a_runner_that_names_no_deputies_takes_no_delegation() -> None:
    case = await Case(deputies=(), approvers=["ann", "bob"]).begin()
    await case.decided(given=await case.delegated())
    assert await case.resumed() == 0


async def test_a_deputy_decides_on_the_call_of_a_sub_agent_too() -> None:
    store, world = MemoryStore(), World()
    policy = ApprovalPolicy(signer=KEYS, deputies=DAN, seal=SEAL)
    turns = [answer("I will mail.", tool_calls=[mail("c", "bob")]), answer("Done.")]
    child = runner(world, turns, store=store, approvals=policy)
    ask = answer(
        "Mail him.",
        tool_calls=[mail("p", "x").model_copy(update={"name": "mailer", "arguments": {"task": "mail bob"}})],
    )
    boss: AgentRunner = runner(
        World(), [ask, answer("Done.")], store=store, approvals=policy, sub_agents=[SubAgent(child, AGENT)]
    )
    result = await boss.run(AGENT.model_copy(update={"name": "boss"}), "mail bob", session_id="s")
    (asked,) = result.pending
    case = Case()
    case.store = store
    own = asked.model_copy(update={"child_session": None})
    given = await case.delegated()
    await revoke_delegation(store, given.id, "ann")
    late = SIGNERS["dan"].sign(own.decide("approve", principal="dan", delegation=given))
    with pytest.raises(ApprovalError, match="was revoked"):
        await boss.resume("boss", "s", late)
    decision = SIGNERS["dan"].sign(own.decide("approve", principal="dan", delegation=await case.delegated()))
    await boss.resume("boss", "s", decision)
    assert len(world.sent) == 1


@pytest.mark.parametrize("revoked", [False, True])
async def test_what_a_deputy_rejected_as_a_run_was_stopped_holds_in_the_next_one_if_the_delegation_stood(
    revoked: bool,
) -> None:
    case = await Case().begin()
    given = await case.delegated()
    await case.decided(given=given, kind="reject")
    if revoked:
        await revoke_delegation(case.store, given.id, "ann")
    await case.agent.stop("mailer", "s")
    await case.agent.resume("mailer", "s")
    await case.begin()
    assert (case.asked.rule == "rejected_in_thread") is not revoked


async def test_nothing_is_stored_on_a_delegation_that_does_not_stand() -> None:
    case = await Case().begin()
    given = await case.delegated()
    await revoke_delegation(case.store, given.id, "ann")
    ledger: Ledger = case.agent.ledger
    decision = SIGNERS["dan"].sign(case.asked.decide("approve", principal="dan", delegation=given))
    with pytest.raises(ApprovalError, match="was revoked"):
        await store_decision(ledger, await open_request(ledger, case.asked.id), decision)
    assert (await ledger.decisions([case.asked.id]))[case.asked.id] == []


def test_the_terminal_delegates_decides_lists_revokes_and_verifies(tmp_path: Path) -> None:
    url, world = f"sqlite:///{tmp_path}/s.db", World()
    keys = {name: write_key(tmp_path / f"{name}.key").public_key for name in ("ann", "dan")}
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    policy = ApprovalPolicy(signer=PublicKeys(keys), deputies=["dan"], seal=SEAL)
    turns = [answer("I will mail.", tool_calls=[mail("c", "bob")]), answer("Done.")]

    def within(work: Callable[[SessionStore], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            store = open_store(url)
            try:
                return await work(store)
            finally:
                await store.aclose()

        return anyio.run(run)

    async def pause(store: SessionStore) -> str:
        agent = runner(world, turns, store=store, approvals=policy)
        return (await agent.run(AGENT, "mail", session_id="s")).pending[0].id

    async def resume(store: SessionStore) -> Any:
        return await runner(world, turns, store=store, approvals=policy).resume("mailer", "s")

    def cli(command: Any, *arguments: str) -> str:
        result = CliRunner().invoke(command, [*arguments], env={"GRAMPUS_UQ_STORE": url, "COLUMNS": "300"})
        said.append(result.exit_code)
        return result.output

    said: list[int] = []
    request = within(pause)
    decide = ("approve", request, "--as", "dan", "--for", "ann", "--key", f"{tmp_path}/dan.key")
    assert "No delegation of 'ann' lets 'dan' decide" in cli(approvals_command.command, *decide)
    made = ("grant", "dan", "--hours", "1", "--tool", "send_email", "--as", "ann")
    cli(delegations_command.command, *made)
    assert said == [1, 1], "not signed"
    told = cli(delegations_command.command, *made, "--key", f"{tmp_path}/ann.key")
    assert "dan decides in place of ann on send_email until" in told
    assert "approve by dan, signed" in cli(approvals_command.command, *decide)
    assert "approve by dan for ann" in cli(approvals_command.command, "show", request)
    assert within(resume).status.value == "completed"
    assert len(world.sent) == 1
    out = ("export", "-o", f"{tmp_path}/e.jsonl")
    assert "entries written" in cli(evidence_command.command, *out)
    verify = ("verify", f"{tmp_path}/e.jsonl", "--keys", f"{tmp_path}/keys.json", "--deputy", "dan")
    assert "The evidence is valid." in cli(evidence_command.command, *verify)
    assert "The evidence is invalid." in cli(evidence_command.command, *verify[:-2])
    short = told.rsplit(" ", 1)[1][:8]
    assert "no longer decides" in cli(delegations_command.command, "revoke", short, "--as", "ann")
    listed = cli(delegations_command.command, "list")
    assert "was revoked by ann" in listed
    assert json.loads(cli(delegations_command.command, "list", "--json"))[0]["revoked_by"] == "ann"
    assert "The evidence is valid." in cli(evidence_command.command, *verify), "it was revoked after the call ran"
