"""What stands in the store on a pending request when somebody decides on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import AgentStatus, ApprovalDecision, ApprovalPolicy, Ed25519Signer, PublicKeys, open_store
from grampus_uq.errors import ApprovalError, SessionError
from grampus_uq.runtime.begun_with import parameters_of
from grampus_uq.runtime.fates import fate_of
from grampus_uq.runtime.ledger import Ledger, audit_of
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.store import Document
from grampus_uq.runtime.stored_decisions import OpenRequest, check_shown, decisions_on, open_request, store_decision
from grampus_uq.runtime.stores.memory import MemoryStore
from tests.runtime.agents import AGENT, World, runner
from tests.runtime.test_approvals_cli import Desk, mailing
from tests.sampling import examples


def found(desk: Desk) -> OpenRequest:
    return cast("OpenRequest", desk.on_store(lambda store: open_request(Ledger(store), desk.request.id)))


def test_the_schema_of_a_waiting_call_is_kept_for_whoever_edits_it(tmp_path: Path) -> None:
    parameters = found(Desk(tmp_path)).parameters
    assert parameters is not None
    assert sorted(parameters["properties"]) == ["body", "to"]
    assert parameters_of(AgentState(agent_id="a", session_id="s"), "send_email", {}) is None


def test_a_decision_that_the_runner_ignored_stands_no_more(tmp_path: Path) -> None:
    ann = Ed25519Signer.generate()
    desk = Desk(tmp_path, approvals=ApprovalPolicy(signer=PublicKeys({"ann": ann.public_key})))
    desk.cli("approve", desk.request.id, "--as", "mallory")
    assert [one.principal for one in found(desk).standing] == ["mallory"]
    desk.resume()
    after = found(desk)
    assert [one.principal for one in after.decisions] == ["mallory"]
    assert after.standing == ()
    assert after.refused[0][0] == "mallory"


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["approve", "reject"])
async def test_a_decision_that_arrives_in_time_while_the_runner_looks_is_not_lost(kind: str) -> None:
    """It had read the decisions, and a moment later found the request expired."""

    class Slow(MemoryStore):
        ahead_s, meanwhile = 0.0, list[ApprovalDecision]()

        def _now(self) -> float:
            return super()._now() + self.ahead_s

        async def children(self, what: str, parents: Sequence[str]) -> list[Document]:
            found = await super().children(what, parents)
            if what == "decision" and self.meanwhile:
                self.ahead_s = 30.0
                await Ledger(self).decide(self.meanwhile.pop())
                self.ahead_s = 61.0
                one.ledger._set_clock(self._now())
            return found

    store, world = Slow(), World()
    one = runner(world, mailing(), store=store, approvals=ApprovalPolicy(expires_s=60.0))
    (request,) = (await one.run(AGENT, "mail bob", session_id="s")).pending
    store.meanwhile = [request.decide(kind, principal="ann")]
    assert (await one.resume("mailer", "s")).status is AgentStatus.WAITING_FOR_HUMAN
    assert (await one.resume("mailer", "s")).status is AgentStatus.COMPLETED
    assert len(world.sent) == (kind == "approve")
    told = await fate_of(one.ledger, request.id)
    assert told is not None
    assert told.ran is (kind == "approve")


@given(st.lists(st.sampled_from(["forged", "other key", "unsigned"]), min_size=1, max_size=3), st.integers(0, 3))
@settings(max_examples=examples(25), deadline=None)
def test_no_refused_decision_in_a_name_hides_a_valid_one_of_that_name(before: list[str], resumed: int) -> None:
    """Whoever may write to the store would otherwise keep Ann's decision from every list and card."""
    ann, other = Ed25519Signer.generate(), Ed25519Signer.generate()
    keys = {"ann": ann.public_key, "eva": Ed25519Signer.generate().public_key}
    desk = runner(World(), mailing(), approvals=ApprovalPolicy(required=2, signer=PublicKeys(keys)))

    async def work() -> None:
        (request,) = (await desk.run(AGENT, "mail bob", session_id="s")).pending
        for number, how in enumerate(before):
            bad = request.decide("approve", principal="ann", message=str(number))
            if how != "unsigned":
                bad = other.sign(bad)
            if how == "forged":
                bad = bad.model_copy(update={"signature": "AAAA"})
            await desk.ledger.decide(bad, wake=False)
            if number < resumed:
                await desk.resume("mailer", "s")
        await desk.resume("mailer", "s")
        assert (await open_request(desk.ledger, request.id)).standing == ()
        good = ann.sign(request.decide("approve", principal="ann"))
        await desk.ledger.decide(good, wake=False)
        for _ in range(2):
            after = await open_request(desk.ledger, request.id)
            assert after.standing == (good,)
            assert len(after.decisions) == len(before) + 1
            assert (await decisions_on(desk.ledger, [request]))[request.id][1] == [good]
            await desk.resume("mailer", "s")

    anyio.run(work)


def test_what_an_earlier_release_refused_is_known_by_its_principal(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.cli("approve", desk.request.id, "--as", "mallory")

    async def refused() -> None:
        store = open_store(desk.url)
        note = ("decision_refused", {"request": desk.request.id, "of": "mallory", "why": "no"})
        await store.write(audit_of("mailer", "s", [note]))
        await store.aclose()

    anyio.run(refused)
    assert (found(desk).standing, found(desk).refused) == ((), (("mallory", "no"),))


def test_whoever_asks_for_a_request_that_was_asked_again_reads_the_new_ones_id() -> None:
    store = MemoryStore()

    async def work() -> None:
        before = runner(World(), mailing(), store=store)
        (old,) = (await before.run(AGENT, "mail bob", session_id="s")).pending
        after = runner(World(), mailing(), store=store, approvals=ApprovalPolicy(required=2))
        (new,) = (await after.resume("mailer", "s")).pending
        assert new.id != old.id
        with pytest.raises(SessionError, match=f"waits for another one now: {new.id[:8]}\\."):
            await open_request(after.ledger, old.id)
        assert (await open_request(after.ledger, new.id[:8])).request == new
        await after.resume("mailer", "s", "No mail.")
        for gone in (old.id, new.id, "nobody-asked"):
            with pytest.raises(SessionError, match=f"beginning with '{gone}'\\.$"):
                await open_request(after.ledger, gone)

    anyio.run(work)


def test_what_was_not_shown_and_what_cannot_hold_is_not_stored(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    seen = found(desk)
    check_shown(seen.card, desk.request.digest())
    check_shown(seen.card, None)
    for digest in ("", "0" * 64, "\ud800"):
        with pytest.raises(ApprovalError, match="no longer"):
            check_shown(seen.card, digest)
    other = seen.request.decide("approve", principal="ann").model_copy(update={"digest": "0" * 64})

    async def store() -> None:
        opened = open_store(desk.url)
        try:
            await store_decision(Ledger(opened), seen, other)
        finally:
            await opened.aclose()

    with pytest.raises(ApprovalError):
        anyio.run(store)
    assert found(desk).decisions == ()


@pytest.mark.parametrize("damage", ["{broken", "[]", "[" * 100_000, '{"seq": NaN}'], ids=lambda text: text[:6])
def test_an_audit_that_cannot_be_read_is_said_on_the_request_and_hides_none(tmp_path: Path, damage: str) -> None:
    desk = Desk(tmp_path)

    async def break_it() -> None:
        opened = open_store(desk.url)
        try:
            log = audit_of(desk.request.agent_id, desk.request.session_id, []).log
            await opened.append(log, damage, expected=len(await opened.read(log)))
        finally:
            await opened.aclose()

    anyio.run(break_it)
    ((who, why),) = found(desk).refused
    assert (who, why[:22]) == ("", "the audit does not hol")
