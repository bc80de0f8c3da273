"""A grant that was revoked lets no further call run: whoever used it, wherever the call stands, whoever takes it up."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import ApprovalDecision, ApprovalPolicy, Grant, PublicKeys, Seal, ToolCall, open_store
from grampus_uq.cli import grants_command
from grampus_uq.errors import DataError, SessionConflictError
from grampus_uq.gate.signatures import Ed25519Signer
from grampus_uq.runtime import revoke_grant
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.standing_grants import GRANT, grants_in_force, stored_grants
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, Watched, World, mail, runner

pytestmark = [pytest.mark.anyio, pytest.mark.jumping_clocks]
ANN = Ed25519Signer.generate()
POLICY = ApprovalPolicy(signer=PublicKeys({"ann": ANN.public_key}), seal=Seal("a seal of this test's"))
TURNS = [answer("I will mail.", tool_calls=[mail("c", "bob")]), answer("Done.")]
CALL = ToolCall(id="c", name="send_email", arguments={"to": "bob"})


def mailing(**more: Any) -> Grant:
    return ANN.sign(Grant(tool="send_email", principal="ann", expires_s=time.time() + 3_600.0, **more))


class Revoking(MemoryStore):
    """Ann's grant is revoked, by another process, before the n-th operation from now on."""

    grant: Grant | None = None
    left = -1
    revoked = False

    async def _before(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.left -= 1
        if self.left == 0 and self.grant is not None:
            await revoke_grant(self, self.grant.id, "ann")
            self.revoked = True

    async def get(self, kind: str, key: str) -> Any:
        await self._before()
        return await super().get(kind, key)

    async def scan(self, kind: str, **options: Any) -> Any:
        await self._before()
        return await super().scan(kind, **options)

    async def write(self, *changes: Any) -> float:
        await self._before()
        return await super().write(*changes)


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("at", range(6, 23))
async def test_no_call_begins_after_its_grant_was_revoked_at_whatever_moment_that_was(at: int, calls: int) -> None:
    store, world = Revoking(), World()
    beside = answer("I will mail.", tool_calls=[mail(f"c{n}", f"bob{n}") for n in range(calls)])
    one = runner(world, [beside, "Done."], store=store, approvals=POLICY)
    one.tool_executor = watched = Watched(world, lambda: store.revoked)
    store.grant, store.left = mailing(), -1
    await one.ledger.grant(store.grant)
    store.left = at
    result = await one.run(AGENT, "mail bob", session_id="s")
    assert True not in watched.seen
    assert len(result.pending) + len(world.sent) == calls


async def test_a_grant_that_ends_while_a_precondition_is_checked_lets_its_call_run_no_more() -> None:
    class Later(MemoryStore):
        by_s = 0.0

        def _now(self) -> float:
            return super()._now() + self.by_s

    store, world, grant = Later(), World(), mailing()

    async def slow(call: ToolCall) -> None:
        store.by_s = 7_200.0

    await Ledger(store).grant(grant)
    result = await runner(world, TURNS, store=store, approvals=POLICY, precondition=slow).run(AGENT, "m")
    assert world.sent == []
    assert [f"grant {grant.id} has ended" in one.reason for one in result.pending] == [True]


@pytest.mark.parametrize("revoked", [True, False])
async def test_a_call_that_a_dead_process_had_cleared_by_a_grant_runs_in_another_unless_it_was_revoked(
    revoked: bool,
) -> None:
    store, world, scope, grant = MemoryStore(), World(), anyio.CancelScope(), mailing()

    async def dies(call: ToolCall) -> None:
        scope.cancel()
        await anyio.sleep_forever()

    await Ledger(store).grant(grant)
    with scope:
        await runner(world, TURNS, store=store, approvals=POLICY, precondition=dies).run(AGENT, "m", session_id="s")
    (stored,) = await store.scan("session")
    assert [record["phase"] for record in json.loads(stored.body)["turn"]] == ["cleared"]
    if revoked:
        await revoke_grant(store, grant.id, "ann")
    result = await runner(world, TURNS, store=store, approvals=POLICY).resume("mailer", "s")
    assert world.sent == ([] if revoked else [("bob", "hi")])
    assert [f"grant {grant.id} was revoked" in one.reason for one in result.pending] == ([True] if revoked else [])


@given(before=st.integers(0, 4), at_once=st.integers(0, 6), most=st.none() | st.integers(1, 5))
def test_after_a_revocation_nobody_uses_a_grant_and_what_was_used_before_stays_counted(
    before: int, at_once: int, most: int | None
) -> None:
    class Yielding(MemoryStore):
        async def scan(self, kind: str, **options: Any) -> Any:
            found = await super().scan(kind, **options)
            await anyio.lowlevel.checkpoint()
            return found

    async def work() -> None:
        store, grant, used = Yielding(), mailing(max_uses=most), []

        async def use() -> None:
            used.append(await Ledger(store).use_grant(CALL, agent_id="a", session_id="s", policy=POLICY))

        await Ledger(store).grant(grant)
        for _ in range(before):
            await use()
        async with anyio.create_task_group() as group:
            for number in range(at_once):
                group.start_soon(use)
                if number == at_once // 2:
                    group.start_soon(revoke_grant, store, grant.id, "ann")
        await revoke_grant(store, grant.id[:6], "bob")
        counted = sum(one is not None for one in used)
        await use()
        assert used[-1] is None
        assert await grants_in_force(store, "send_email", POLICY) == []
        (found,) = await stored_grants(store)
        assert (found.uses, found.why_not) == (counted, "was revoked")
        assert found.revoked == ("ann" if at_once else "bob"), "the first one says who"
        (document,) = await store.scan(GRANT)
        assert "uses" not in json.loads(document.body), "an earlier release knows no revocation: it reads no grant here"
        with pytest.raises(SessionConflictError):
            await Ledger(store).grant(grant)
        await prune(store, older_than_s=1e-9)
        assert await store.scan(GRANT) != [], "until its end, or its id would be free"

    anyio.run(work)


async def test_a_grant_under_another_key_than_its_id_lets_nothing_run() -> None:
    """A copy would outlive the revocation of what it copies."""
    store, grant = MemoryStore(), mailing()
    await Ledger(store).grant(grant)
    (document,) = await store.scan(GRANT)
    await store.put(GRANT, "another", document.body, expected=0, label="send_email")
    await revoke_grant(store, grant.id, "ann")
    assert await Ledger(store).use_grant(CALL, agent_id="a", session_id="s", policy=POLICY) is None


def test_the_command_line_lists_grants_and_takes_one_back_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    url, grant = f"sqlite:///{tmp_path}/s.db", mailing(limits={"to": {"in": ["bob"]}}, max_uses=3)

    async def give() -> None:
        store = open_store(url, create=True)
        await Ledger(store).grant(grant)
        await store.aclose()

    def cli(*arguments: str) -> str:
        result = CliRunner().invoke(
            grants_command.command, arguments, env={"GRAMPUS_UQ_STORE": url, "COLUMNS": "300"}, catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return result.output

    anyio.run(give)
    listed = cli("list")
    assert grant.id in listed
    assert '{"to":{"in":["bob"]}}' in listed
    assert "yes" in listed
    assert "lets no further call of send_email run" in cli("revoke", grant.id[:8], "--as", "bob\x1b[2J")
    assert "was revoked by bob\\x1b[2J" in cli("list")
    assert json.loads(cli("list", "--json"))[0]["revoked_by"] == "bob\x1b[2J"
    with pytest.raises(DataError, match="No grant has the id 'zzzzzzzz'"):
        cli("revoke", "zzzzzzzz")


@pytest.mark.parametrize("kind", ["reject", "edit", "approve"])
async def test_a_granted_call_does_not_start_once_a_human_answered_against_its_equal_that_waits_beside_it(
    kind: Any,
) -> None:
    """Two equal calls of one turn, and a grant for one of them: no worker has taken up the answer on the other."""
    store, world, said = MemoryStore(), World(), list[ApprovalDecision]()
    more = {"arguments": {"to": "bob", "body": "hello"}} if kind == "edit" else {}

    async def answered(call: ToolCall) -> None:
        while not said and not (waits := (await one.ledger.known("mailer", "s"))[0].pending()):  # noqa: ASYNC110
            await anyio.sleep(0.01)
        if not said:
            said.append(ANN.sign(waits[0].decide(kind, principal="ann", **more)))
            await one.ledger.decide(said[0], wake=False)

    twice = [answer("I will mail.", tool_calls=[mail("c", "bob"), mail("d", "bob")]), answer("Done.")]
    one = runner(world, twice, store=store, approvals=POLICY, precondition=answered, lease_s=0.1)
    await one.ledger.grant(mailing(max_uses=1))
    result = await one.run(AGENT, "mail bob twice", session_id="s")
    assert world.sent == ([("bob", "hi")] if kind == "approve" else [])
    assert [request.rule for request in result.pending][:-1] == ["rejected_in_thread"] * (kind == "edit")
    result = await one.resume("mailer", "s")
    assert world.sent == {"reject": [], "edit": [("bob", "hello")], "approve": [("bob", "hi")] * 2}[kind]
    if kind == "edit":
        (asked,) = result.pending
        await one.resume("mailer", "s", ANN.sign(asked.decide("approve", principal="ann")))
        assert world.sent == [("bob", "hello"), ("bob", "hi")]
