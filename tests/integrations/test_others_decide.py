"""Nobody decides on a call of a run that they started, where the policy says so: in every host."""

from __future__ import annotations

import importlib
import json
import unicodedata
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grampus_uq import AgentDefinition, ApprovalPolicy, PublicKeys, Seal, SubAgent, ToolCall
from grampus_uq.errors import ApprovalError, ConfigurationError, GrampusError
from grampus_uq.gate.call import CallRecord, asked, bound, granted
from grampus_uq.gate.clearance import check_clearance
from grampus_uq.gate.gate import FRAMEWORK_ASKS, Gate
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.signatures import Ed25519Signer, write_key
from grampus_uq.integrations.mcp.proxy_config import ApprovalSettings, ProxySettings
from grampus_uq.integrations.mcp.proxy_parts import ProxyParts
from grampus_uq.records.vocabulary import Effect
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.stored_permits import StoredPermits, close_permit
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.testing import AgentSetup, Decision, ScriptedTurn, answer
from grampus_uq.testing.agent_script import APPROVALS, STARTED_BY
from tests.integrations.matrix import ADAPTERS
from tests.runtime.agents import AGENT, World, mail, runner
from tests.runtime.test_stored_permits import ANN, Office

PAY = ToolCall(id="c1", name="pay", arguments={"to": "zoe", "amount": 5})
TURNS = {"pay zoe": (ScriptedTurn(text="I pay zoe.", confidence=0.6, calls=(PAY,)), ScriptedTurn(text="Done."))}
BOB = Ed25519Signer.generate()
KEYS = PublicKeys({"ann": ANN.public_key, "bob": BOB.public_key})


def paid(folder: Path) -> int:
    ledger = folder / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []
    return sum(line["kind"] == "tool" and line["name"] == "pay" for line in lines)


@pytest.mark.parametrize("started_by", ["ann", None])
@pytest.mark.parametrize("host", ADAPTERS)
def test_in_every_host_who_started_the_run_decides_nothing_and_another_does(
    host: str, started_by: str | None, tmp_path: Path
) -> None:
    keys = {who: write_key(tmp_path / f"{who}.key").public_key for who in ("ann", "bob")}
    wanted = {"keys": keys, "required": 1, "expires_s": None, "others_decide": True}
    (tmp_path / APPROVALS).write_text(json.dumps(wanted))
    (tmp_path / STARTED_BY).write_text(started_by or "")
    module, _, build = ADAPTERS[host].partition(":")

    async def work() -> None:
        setup = AgentSetup(folder=tmp_path, script=TURNS)
        async with getattr(importlib.import_module(module), build)(setup) as agent:
            paused = await agent.run("s", "pay zoe")
            (pending,) = paused.pending
            for who in ("ann", *(() if started_by else ("bob",))):
                try:
                    paused = await agent.resume("s", [Decision(said="approve", on=pending, principal=who)])
                    (pending,) = paused.pending
                except GrampusError:
                    pass
                assert paid(tmp_path) == 0, f"{who} decided"
            if started_by:
                await agent.resume("s", [Decision(said="approve", on=pending, principal="bob")])
                assert paid(tmp_path) == 1

    anyio.run(work)


# -- the runner: restarts, stores, grants, permits --------------------------------------------------------------------


def house(seal: str = "a seal that is shared", **given: Any) -> dict[str, Any]:
    return {"approvals": ApprovalPolicy(signer=KEYS, others_decide=True, seal=Seal(seal)), **given}


async def decided(one: Any, who: str, signer: Ed25519Signer) -> str:
    """What comes of this person's approval of what waits, given to a runner."""
    (request,) = (await one.ledger.pending())[0].requests
    try:
        return (await one.resume("mailer", "s", signer.sign(request.decide("approve", principal=who)))).status.value
    except GrampusError as error:
        return str(error)


TURN = [mail("c", "zoe")]


def one_of(world: World, store: MemoryStore, **given: Any) -> Any:
    return runner(world, [answer("I will mail.", tool_calls=TURN), answer("Done.")], store=store, **house(**given))


@pytest.mark.anyio
async def test_who_started_it_is_asked_for_and_outlives_the_process() -> None:
    world, store = World(), MemoryStore()
    with pytest.raises(ConfigurationError, match="started_by"):
        await one_of(world, store).run(AGENT, "mail zoe", session_id="s")
    with pytest.raises(ConfigurationError, match="metadata"):
        await one_of(world, store).run(AGENT, "m", session_id="s", started_by="ann", metadata={"started_by": "bob"})
    result = await one_of(world, store).run(AGENT, "mail zoe", session_id="s", started_by="ann")
    assert result.pending[0].started_by == "ann"
    assert "'ann' started this run" in await decided(one_of(world, store), "ann", ANN)
    assert world.sent == []
    assert await decided(one_of(world, store), "bob", BOB) == "completed"
    assert world.sent == [("zoe", "hi")]


@pytest.mark.anyio
async def test_a_stored_decision_of_who_started_it_counts_for_nothing_and_blocks_no_other() -> None:
    world, store = World(), MemoryStore()
    (request,) = (await one_of(world, store).run(AGENT, "m", session_id="s", started_by="ann")).pending
    await Ledger(store).decide(ANN.sign(request.decide("approve", principal="ann")))
    assert (await one_of(world, store).resume("mailer", "s")).status.value == "waiting_for_human"
    entries = await AuditLog(store, "mailer", "s").entries()
    assert [e["data"]["of"] for e in entries if e["what"] == "decision_refused"] == ["ann"]
    await Ledger(store).decide(BOB.sign(request.decide("approve", principal="bob")))
    assert (await one_of(world, store).resume("mailer", "s")).status.value == "completed"


@pytest.mark.anyio
@pytest.mark.parametrize("forge", ["another name", "no name"])
async def test_who_writes_the_store_says_nobody_else_started_it(forge: str) -> None:
    world, store = World(), MemoryStore()
    await one_of(world, store).run(AGENT, "m", session_id="s", started_by="ann")
    thief = Ledger(store)  # without the seal
    state, version = await thief.known("mailer", "s")
    state.metadata |= {"started_by": "zoe" if forge == "another name" else None}
    state.turn = [
        record.change(requests=tuple(r.model_copy(update={"started_by": "zoe"}) for r in record.requests))
        for record in state.turn
    ]
    await thief.save(state, version)
    await one_of(world, store).resume("mailer", "s")
    for who, signer in (("ann", ANN), ("bob", BOB)):
        assert "the starter is unknown" in await decided(one_of(world, store), who, signer)
    assert world.sent == []


@pytest.mark.anyio
@pytest.mark.parametrize(("who", "ran"), [("ann", 0), ("bob", 1)])
async def test_a_grant_of_who_started_it_lets_nothing_run(who: str, ran: int) -> None:
    world, store = World(), MemoryStore()
    signer = {"ann": ANN, "bob": BOB}[who]
    grant = Grant(tool="send_email", principal=who, expires_s=2e9)
    await Ledger(store).grant(signer.sign(grant))
    await one_of(world, store).run(AGENT, "m", session_id="s", started_by="ann")
    assert len(world.sent) == ran


@pytest.mark.anyio
async def test_a_permit_of_who_started_it_lets_nothing_ahead() -> None:
    office = Office(approvals=ApprovalPolicy(signer=KEYS, seal=Seal("a seal that is shared")))
    earned = await office.earn()
    sent = len(office.world.sent)
    office.given = house()
    for who, more in (("ann", 0), ("bob", 1)):
        one = office.runner(body=f"of {who}")
        result = await one.run(AGENT, "mail bob", session_id=f"of-{who}", started_by=who)
        assert len(office.world.sent) == sent + more
        if not more:
            assert "'ann' started this run" in result.pending[0].reason
    await close_permit(office.store, earned.id, "enough")
    result = await office.runner(body="later").run(AGENT, "mail bob", session_id="later", started_by="ann")
    assert "permit" not in result.pending[0].reason, "a closed one covers nothing"
    assert isinstance(office.runner().gate.permits, StoredPermits)


@pytest.mark.anyio
async def test_a_sub_agents_run_is_of_whoever_started_its_parents() -> None:
    world, store = World(), MemoryStore()
    child = SubAgent(one_of(world, store), AgentDefinition(name="helper", model="scripted", system_prompt="You mail."))
    ask = ToolCall(id="d", name="helper", arguments={"task": "mail zoe"})
    turns = [answer("It helps.", tool_calls=[ask]), answer("Done.")]
    parent = runner(world, turns, store=store, sub_agents=[child], p_true=0.99, **house())
    (request,) = (await parent.run(AGENT, "m", session_id="s", started_by="ann")).pending
    assert (request.agent_id, request.started_by) == ("helper", "ann")
    with pytest.raises(ApprovalError, match="'ann' started this run"):
        await parent.resume("mailer", "s", ANN.sign(request.decide("approve", principal="ann")))
    await parent.resume("mailer", "s", BOB.sign(request.decide("approve", principal="bob")))
    assert world.sent == [("zoe", "hi")]


def test_a_request_says_who_started_it_under_its_digest_and_in_its_terms() -> None:
    gate = Gate(approvals=ApprovalPolicy(others_decide=True), started_by=lambda session_id: f"of {session_id}")
    terms = gate.terms("clerk", "s", None)
    assert terms.started_by == "of s"
    assert gate.terms("clerk", "s", None, started_by="ann").started_by == "ann"
    assert Gate(started_by=lambda session_id: "ann").terms("clerk", "s", None).started_by is None
    record = asked(CallRecord(proposed=PAY, step_id="llm_0"), terms, gate.approvals, FRAMEWORK_ASKS, 1.0)
    (request,) = record.requests
    assert bound(request, record, terms)
    other = request.model_copy(update={"started_by": "bob"})
    assert not bound(other, record, terms)
    none = request.model_copy(update={"started_by": None})
    assert len({request.digest(), other.digest(), none.digest()}) == 3
    assert "started_by" not in none.model_dump()
    grant = Grant(tool="pay", principal="of s", expires_s=2e9)
    with pytest.raises(ApprovalError, match="started this run"):
        check_clearance(granted(record, grant), PAY, terms, gate.approvals, effect=Effect.IRREVERSIBLE, now_s=1.0)


def test_the_proxys_settings_say_who_started_its_sessions(tmp_path: Path) -> None:
    settings = ProxySettings(approvals=ApprovalSettings(started_by="ann"))
    parts = ProxyParts(settings, f"sqlite:///{tmp_path}/s.db", print)
    gate = parts.exchange("s", resumes=False).calls.gate
    assert gate.terms("mcp", "s", None).started_by == "ann"
    anyio.run(parts.aclose)


def test_whoever_the_client_is_of_does_not_answer_for_the_proxy() -> None:
    with pytest.raises(ConfigurationError, match="elicitation"):
        ApprovalSettings(started_by="ann", elicitation="decide").policy()
    assert ApprovalSettings(started_by="ann").policy().others_decide
    assert not ApprovalSettings().policy().others_decide


SPELLINGS = {
    "in capitals": str.upper,
    "wide": lambda name: "".join(chr(ord(c) + 0xFEE0) if c.isascii() and c.isalnum() else c for c in name),
    "taken apart": lambda name: unicodedata.normalize("NFD", name),
    "put together": lambda name: unicodedata.normalize("NFC", name),
    "with space around": lambda name: f"\t{name}\u00a0 ",
    "with what hides": lambda name: "\u200b" + name[:1] + "\u00ad" + name[1:] + "\ufeff",
}


@given(
    name=st.text(alphabet="abzIß.ö-1é", min_size=1, max_size=8),
    spelt=st.lists(st.sampled_from(sorted(SPELLINGS)), max_size=3),
    swapped=st.booleans(),
)
@example(name="jörg", spelt=["taken apart"], swapped=False)
def test_a_name_in_another_spelling_is_the_same_person(name: str, spelt: list[str], swapped: bool) -> None:
    other = name
    for one in spelt:
        other = SPELLINGS[one](other)
    principal, starter = (other, name) if swapped else (name, other)
    policy = ApprovalPolicy(others_decide=True)
    with pytest.raises(ApprovalError, match="started this run"):
        policy.check_other(principal, starter)
    policy.check_other(name + "x", starter)
    for nobody in ("", " ", "\u200b"):
        with pytest.raises(ApprovalError, match="the starter is unknown"):
            policy.check_other(principal, nobody)


@pytest.mark.anyio
async def test_a_run_that_began_before_the_rule_has_an_unknown_starter_and_nobody_decides() -> None:
    world, store = World(), MemoryStore()
    before = one_of(world, store)
    before.approvals.others_decide = False
    await before.run(AGENT, "mail zoe", session_id="s")
    one = one_of(world, store)
    await one.resume("mailer", "s")
    assert "the starter is unknown" in await decided(one, "ann", ANN)
    assert world.sent == []


def test_what_says_nothing_of_who_started_it_is_stored_as_before() -> None:
    state = AgentState(agent_id="a", session_id="s", metadata={"started_by": 7})
    assert state.started_by is None
    assert "others_decide" not in ApprovalPolicy().rules()
