"""What became of a decided request is said from the run's own state and audit, and a call that ran is said to have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from grampus_uq import ApprovalPolicy, Ed25519Signer, PublicKeys
from grampus_uq.gate.call import CallPhase
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.fates import WAITS, Fate, fate_of
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import Put, SessionStore
from tests.runtime.agents import AGENT, Copied, World, runner
from tests.runtime.test_approvals_cli import Desk, mailing

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
    assert said.told == "The call was started, and nobody knows whether it took effect: it is asked about."
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
    assert said == Fate(told="The run is not in this store.", ran=None)
