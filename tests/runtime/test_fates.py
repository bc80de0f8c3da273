"""What became of a decided request is said from the run's own state and audit, and a call that ran is said to have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import ApprovalPolicy, Ed25519Signer, PublicKeys, StoreError, SubAgent
from grampus_uq.gate.call import CallPhase
from grampus_uq.gate.requests import ApprovalKind, ApprovalRequest
from grampus_uq.records.values import canonical_json
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.fates import WAITS, Fate, fate_of
from grampus_uq.runtime.ledger import Ledger, audit_of
from grampus_uq.runtime.rollback import rollback
from grampus_uq.runtime.store import Append, Put, SessionStore
from grampus_uq.runtime.stored_decisions import decisions_on, open_request, store_decision
from grampus_uq.runtime.worker_hosted import ENGINE_MARK
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, Copied, World, look, mail, runner
from tests.runtime.test_approvals_cli import Desk, mailing
from tests.runtime.test_review import BOSS, call, with_tools

WAITING, RAN = Fate(told=WAITS, over=False, ran=None), Fate(told="The call ran.", ran=True)
CLEARED = Fate(told="Taken up: the call has not started yet.", over=False, ran=None)
RUNNING = Fate(told="The call is running.", over=False, ran=None)


def fate(desk: Desk) -> Fate | None:
    return cast("Fate | None", desk.on_store(lambda store: fate_of(Ledger(store), desk.request.id)))


def test_a_request_is_followed_from_its_decision_to_the_end_of_its_call(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert fate(desk) is None
    desk.cli("approve", desk.request.id, "--as", "ann")
    assert fate(desk) == WAITING
    desk.resume()
    assert fate(desk) == RAN


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        (("reject",), "Taken up: the call does not run."),
        (("respond", "-m", "It was sent."), "Taken up: the call does not run."),
        (("edit", "--arguments", '{"to": "eve", "body": "x"}'), "The call ran."),
    ],
)
def test_the_fate_of_each_kind_of_decision_is_said(tmp_path: Path, decision: tuple[str, ...], told: str) -> None:
    desk = Desk(tmp_path)
    desk.cli(decision[0], desk.request.id, "--as", "ann", *decision[1:])
    desk.resume()
    said = fate(desk)
    assert said is not None
    assert (said.told, said.over, said.ran) == (told, True, bool(desk.world.sent))


def test_a_decision_that_the_runner_refuses_is_said_to_be_with_the_reason_until_one_holds(tmp_path: Path) -> None:
    ann = Ed25519Signer.generate()
    (tmp_path / "ann.key").touch(0o600)
    (tmp_path / "ann.key").write_bytes(ann.pem())
    desk = Desk(tmp_path, approvals=ApprovalPolicy(signer=PublicKeys({"ann": ann.public_key})))
    desk.cli("approve", desk.request.id, "--as", "mal\u200blory")
    desk.resume()
    said = fate(desk)
    assert said is not None
    assert said.told.startswith("The agent's program refused the decision of mal\\u200blory: ")
    assert "is not among the approvers" in said.told
    assert not said.over
    desk.cli("approve", desk.request.id, "--as", "ann", "--key", str(tmp_path / "ann.key"))
    desk.resume()
    assert fate(desk) == RAN


def test_a_call_that_ends_with_an_error_is_not_said_to_have_run(tmp_path: Path) -> None:
    desk = Desk(tmp_path, mailing(to="bob"))
    desk.cli("edit", desk.request.id, "--as", "ann", "--arguments", '{"to": 5, "body": "x"}')
    desk.resume()
    desk.cli("approve", desk.request.id, "--as", "ann")
    desk.world.tools()  # made before it breaks
    desk.world.keys = None  # type: ignore[assignment]  # the tool raises once it sent
    desk.resume()
    assert fate(desk) == Fate(told="The call ended with an error.")


async def at_each_point(kind: str) -> list[tuple[Fate | None, int, str]]:
    """The fate at each state that a store ever had, with the mails sent by then, as the phase of the call stands."""
    store, world = Copied(), World()
    agent = runner(world, mailing(), store=store)
    (request,) = (await agent.run(AGENT, "mail bob", session_id="s")).pending
    await Ledger(store).decide(request.decide(kind, principal="ann"))
    first, sent, seen = len(store.copies) - 1, [], []
    await agent.resume("mailer", "s")
    for copy in store.copies[first:]:
        ledger = Ledger(copy)
        state, _ = await ledger.known("mailer", "s")
        phase = state.turn[0].phase if state.turn else "gone"
        entries = [entry["what"] for entry in await AuditLog(copy, "mailer", "s").entries()]
        sent = entries.count("execution_started")
        seen.append((await fate_of(ledger, request.id), sent, str(phase)))
    return seen


def test_at_no_point_of_a_run_is_a_fate_over_before_it_is(tmp_path: Path) -> None:
    seen = anyio.run(at_each_point, "approve")
    fates = [one for one, _, _ in seen]
    assert list(dict.fromkeys(fates)) == [WAITING, CLEARED, RUNNING, RAN]
    assert all((one == RUNNING) <= (started == 1) for one, started, _ in seen)
    assert all(one != RAN or phase in (CallPhase.SETTLED, "gone") for one, _, phase in seen)
    rejected = [one for one, _, _ in anyio.run(at_each_point, "reject")]
    assert list(dict.fromkeys(rejected)) == [WAITING, Fate(told="Taken up: the call does not run.")]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["approve", "reject", "respond"])
async def test_a_decision_on_a_request_that_is_rolled_back_has_one_fate(kind: str) -> None:
    store, world = Copied(), World()
    agent = runner(world, mailing(), store=store, checkpoints=True)
    (request,) = (await agent.run(AGENT, "mail bob", session_id="s")).pending
    await Ledger(store).decide(request.decide(kind, principal="ann", message="It was sent."))
    first = len(store.copies) - 1
    await rollback(agent, "mailer", "s", 0)
    told = [await fate_of(Ledger(copy), request.id) for copy in store.copies[first:]]
    over = [one for one in told if one is None or one.over]
    assert len({*over}) == 1
    assert told[-1] == over[0]


def test_a_call_whose_worker_died_while_it_ran_is_said_to_be_of_unknown_outcome() -> None:
    async def live() -> Any:
        store, world = Copied(), World()
        agent = runner(world, mailing(), store=store)
        (request,) = (await agent.run(AGENT, "mail bob", session_id="s")).pending
        await Ledger(store).decide(request.decide("approve", principal="ann"))
        await agent.resume("mailer", "s")
        for copy in store.copies:
            if await fate_of(Ledger(copy), request.id) == RUNNING:
                state, version = await Ledger(copy).known("mailer", "s")
                state.lease_s = 0.0
                await Ledger(copy).save(state, version)
                await runner(world, mailing(), store=copy).resume("mailer", "s")
                return await fate_of(Ledger(copy), request.id)
        return None

    said = anyio.run(live)
    assert said.told == "The call was started, and nobody knows whether it took effect."
    assert said.over


@pytest.mark.anyio
@pytest.mark.parametrize(
    "body", ["", "[]", "{}", '{"shown": 1}', '{"shown": {"agent_id": "\\ud800", "session_id": []}}']
)
async def test_a_decision_that_cannot_be_read_tells_of_no_run(body: str) -> None:
    from grampus_uq.runtime.stores.memory import MemoryStore

    store: SessionStore = MemoryStore()
    await store.write(Put(kind="decision", key="r/1", body=body, expected=0))
    said = await fate_of(Ledger(store), "r")
    assert said == Fate(told="The run that asked was not found in this store.", ran=None)


class Failing(Copied):
    """Fails the write of this number, which was made or was not; and keeps what the tools had done at each write."""

    def __init__(self, world: World, fails: int, made: bool) -> None:
        super().__init__()
        self._world, self._fails, self._made, self._count = world, fails, made, 0
        self.done: list[set[str]] = []

    async def write(self, *changes: Any) -> float:
        self._count += 1
        fails = self._count in (self._fails, self._fails + 1)  # a lease writes a second time
        if fails and not self._made:
            raise StoreError("down")
        written = await super().write(*changes)
        self.done.append({*self._world.searched, *(to for to, _ in self._world.sent)})
        if fails:
            raise StoreError("down")
        return written


NOT_RUN = ("has not started", "does not run", "no start of the call", WAITS)
KINDS = st.sampled_from([ApprovalKind.APPROVE, ApprovalKind.REJECT, ApprovalKind.RESPOND, None])


async def followed(kinds: list[ApprovalKind | None], fails: int, made: bool) -> None:
    """Decide on a reading call and two others of one step, with two resumes, and hold each fate against the world."""
    world = World()
    turns = [answer("I.", tool_calls=[look("a", "x"), mail("b", "bob"), mail("c", "eve")]), answer("Done.")]
    store = Failing(world, fails, made)
    agent = runner(world, turns, store=store, p_true=0.3, approvals=ApprovalPolicy())
    asked: list[ApprovalRequest] = []
    for several in (kinds[:3], kinds[3:]):
        try:
            if not asked:
                asked = [*(await agent.run(AGENT, "mail bob", session_id="s")).pending]
            for kind, request in zip(several, asked, strict=False):
                if kind is not None:
                    decision = request.decide(kind, principal="ann", message="m")
                    await store_decision(Ledger(store), await open_request(Ledger(store), request.id), decision)
            await agent.resume("mailer", "s")
        except Exception:  # noqa: BLE001 (a store that failed, and what follows from it: only what is told counts)
            continue
    before: dict[str, Fate] = {}
    for copy, done in zip(store.copies, store.done, strict=True):
        for request, effect in zip(asked, ("x", "bob", "eve"), strict=False):
            said = await fate_of(Ledger(copy), request.id)
            if said is None:
                continue
            assert said.ran is not True or effect in done
            assert effect not in done or not any(words in said.told for words in NOT_RUN), said
            known = before.get(request.id)
            assert known is None or not known.over or known == said, (known, said)
            before[request.id] = said


@given(st.lists(KINDS, min_size=6, max_size=6), st.integers(1, 40), st.booleans())
def test_no_fate_contradicts_what_ran_whatever_is_decided_and_whichever_write_fails(
    kinds: list[ApprovalKind | None], fails: int, made: bool
) -> None:
    anyio.run(followed, kinds, fails, made)


def test_a_call_that_reads_and_was_approved_is_said_to_have_run() -> None:
    anyio.run(followed, [ApprovalKind.APPROVE, None, None, None, None, None], 0, False)


@pytest.mark.parametrize("kind", [ApprovalKind.APPROVE, ApprovalKind.REJECT], ids=["released", "held back"])
@pytest.mark.anyio
async def test_a_decision_on_an_answer_says_nothing_of_a_call(kind: ApprovalKind) -> None:
    store = Copied()
    agent = runner(World(), [answer("Done.")], store=store, p_true=0.3)
    (request,) = (await agent.run(AGENT, "mail bob", session_id="s")).pending
    await Ledger(store).decide(request.decide(kind, principal="ann"))
    await agent.resume("mailer", "s")
    assert await fate_of(Ledger(store), request.id) == Fate(told="Taken up.", ran=None)


@pytest.mark.anyio
async def test_a_sub_agents_call_is_told_from_its_own_run_and_of_no_other_once_that_is_gone() -> None:
    store, world = Copied(), World()
    top = with_tools(
        turns=[answer("D.", tool_calls=[call("mailer", task="have bob mailed")]), "All done."],
        store=store,
        sub_agents=[SubAgent(runner(world, store=store), AGENT)],
    )
    (request,) = (await top.run(BOSS, "x", session_id="p")).pending
    await store_decision(
        Ledger(store), await open_request(Ledger(store), request.id), request.decide("approve", principal="ann")
    )
    await top.resume("boss", "p")
    assert world.sent
    assert await fate_of(Ledger(store), request.id) == RAN
    for row in await store.scan("session"):
        if row.key.startswith("mailer"):
            await store.write(row.removal())
    said = await fate_of(Ledger(store), request.id)
    assert said == Fate(told="The run that asked was not found in this store.", ran=None)


async def noted(what: Any, data: Any, **state: Any) -> Fate | None:
    """The fate of an approved request with this entry in the audit, and these values in the state."""
    store = Copied()
    agent = runner(World(), mailing(), store=store)
    (request,) = (await agent.run(AGENT, "mail bob", session_id="s")).pending
    await Ledger(store).decide(request.decide("approve", principal="ann"))
    (row,) = await store.scan("session")
    named = canonical_json({"what": what, "data": data}).replace('"R"', canonical_json(request.id))
    await store.write(Append(log=f"audit/{row.key}", bodies=(named,), expected=None))
    kept, version = await Ledger(store).known("mailer", "s")
    for name, value in state.items():
        setattr(kept, name, value)
    await Ledger(store).save(kept, version)
    return await fate_of(Ledger(store), request.id)


@pytest.mark.parametrize(("what", "data"), [(5, {}), (None, {}), ("decision", []), ("decision", None), ("x", "R")])
def test_an_entry_that_is_none_makes_the_fate_unknown(what: Any, data: Any) -> None:
    said = anyio.run(noted, what, data)
    assert said is not None
    assert said.told.startswith("What became of the call is not known: the audit of the run does not hold")


@pytest.mark.anyio
async def test_a_refusal_of_no_decision_leaves_the_list_and_the_card_readable() -> None:
    store = Copied()
    agent = runner(World(), mailing(), store=store)
    (request,) = (await agent.run(AGENT, "mail bob", session_id="s")).pending
    await Ledger(store).decide(request.decide("approve", principal="ann"))
    for of in ({"of": []}, {"of": {}, "decision": [1]}, {"decision": {}, "why": []}):
        await store.write(audit_of("mailer", "s", [("decision_refused", {"request": request.id, **of})]))
    found = await open_request(Ledger(store), request.id)
    (listed,) = (await decisions_on(Ledger(store), [found.request])).values()
    assert listed == (list(found.decisions), list(found.standing))
    assert len(found.standing) == 1


@pytest.mark.parametrize("of", [{"decisions": 5}, {"requests": {"R": 1}}, {"request": ["R"]}, {"decisions": [["R"]]}])
def test_an_entry_that_names_no_request_says_nothing_of_one(of: Any) -> None:
    assert anyio.run(noted, "execution_finished", of) == WAITING


def test_a_run_of_a_framework_that_refused_one_decision_and_went_on_with_another_says_where_to_look() -> None:
    gone = {"status": AgentStatus.COMPLETED, "turn": [], "metadata": {ENGINE_MARK: "1"}}
    refused = {"request": "R", "of": "bob", "why": "no"}
    said = anyio.run(lambda: noted("decision_refused", refused, **gone))
    assert said is not None
    assert said.told.startswith("The agent's program went on with the run.")


def test_what_was_taken_up_is_not_said_to_be_refused_for_another_decision_on_it() -> None:
    async def twice() -> Fate | None:
        store = Copied()
        agent = runner(World(), mailing(), store=store)
        (request,) = (await agent.run(AGENT, "mail bob", session_id="s")).pending
        await Ledger(store).decide(request.decide("approve", principal="ann"))
        await agent.resume("mailer", "s")
        refused = {"request": request.id, "of": "bob", "why": "no"}
        await store.write(audit_of("mailer", "s", [("decision_refused", refused)]))
        return await fate_of(Ledger(store), request.id)

    assert anyio.run(twice) == RAN
