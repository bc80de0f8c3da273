"""Who started a run sees on its card and in the terminal that somebody else decides, and cannot decide all the same."""

from __future__ import annotations

import html
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner

from grampus_uq import ApprovalPolicy, PublicKeys, Seal, open_store
from grampus_uq.cli.approvals_command import command
from grampus_uq.inbox.inbox_app import inbox_app
from grampus_uq.inbox.people import People, keys_of
from grampus_uq.runtime.evidence import evidence, verified
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.testing import answer
from tests.inbox.browser import SETTINGS, someone
from tests.inbox.test_decisions import decide, prepared, shown
from tests.runtime.agents import AGENT, World, mail, runner

pytestmark = pytest.mark.anyio


async def test_the_page_says_it_beforehand_and_takes_no_decision_of_theirs(tmp_path: Path) -> None:
    store, world = open_store(f"sqlite:///{tmp_path}/s.db"), World()
    app = inbox_app(store, SETTINGS)
    ann, bob = await someone(app, store), await someone(app, store, "bob")
    keys = PublicKeys(keys_of(await People(store).all()))
    policy = ApprovalPolicy(signer=keys, others_decide=True, seal=Seal("a seal of this test's"))
    turns = [answer("I will mail.", tool_calls=[mail("c", "zoe")]), answer("Done.")]
    agent = runner(world, turns, store=store, approvals=policy)
    (request,) = (await agent.run(AGENT, "mail zoe", session_id="s", started_by="ann")).pending
    own, others = [(await one.get(f"/requests/{request.id}")).text for one in (ann, bob)]
    assert "You started this run: somebody else has to decide on it." in own
    assert "data-decide" not in own
    assert "started by ann" in others
    assert "data-decide" in others
    for kind in ("approve", "reject", "respond"):
        card = await shown(ann, request.id)
        refused = await prepared(ann, request.id, kind, card=card, message="x")
        assert (refused.status_code, "started this run" in refused.json()["error"]) == (409, True)
    assert (await Ledger(store).decisions([request.id]))[request.id] == []
    assert (await decide(bob, request.id)).status_code == 200
    assert (await agent.resume("mailer", "s")).status.value == "completed"
    assert world.sent == [("zoe", "hi")]
    lines = [line async for line in evidence(store)]
    assert (verified(lines, keys).faults, verified(lines, keys).by_decision) == ([], 1)
    await store.aclose()


def test_the_terminal_says_it_and_takes_no_decision_of_theirs(tmp_path: Path) -> None:

    url = f"sqlite:///{tmp_path}/s.db"

    async def pause() -> str:
        store = open_store(url)
        turns = [answer("I will mail.", tool_calls=[mail("c", "zoe")]), answer("Done.")]
        agent = runner(World(), turns, store=store, approvals=ApprovalPolicy(others_decide=True))
        (request,) = (await agent.run(AGENT, "mail zoe", session_id="s", started_by="ann\u202e")).pending
        await store.aclose()
        return request.id

    request = anyio.run(pause)
    said = CliRunner().invoke(command, ["show", request, "--store", url]).output
    assert "started by ann\\u202e, who may not decide on it" in html.unescape(said)
    for who, taken in (("ann\u202e", False), ("bob", True)):
        result = CliRunner().invoke(command, ["approve", request, "--store", url, "--as", who])
        assert (result.exit_code == 0) is taken, result.output
