"""What stands in the store on a pending request when somebody decides on it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from grampus_uq import ApprovalPolicy, Ed25519Signer, PublicKeys, open_store
from grampus_uq.errors import ApprovalError
from grampus_uq.runtime.begun_with import parameters_of
from grampus_uq.runtime.ledger import Ledger, audit_of
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.stored_decisions import OpenRequest, check_shown, open_request, store_decision
from tests.runtime.test_approvals_cli import Desk


def found(desk: Desk) -> OpenRequest:
    async def look() -> OpenRequest:
        store = open_store(desk.url)
        try:
            return await open_request(Ledger(store), desk.request.id)
        finally:
            await store.aclose()

    return anyio.run(look)


def test_the_schema_of_a_waiting_call_is_kept_for_whoever_edits_it(tmp_path: Path) -> None:
    parameters = found(Desk(tmp_path)).parameters
    assert parameters is not None
    assert sorted(parameters["properties"]) == ["body", "to"]
    assert parameters_of(AgentState(agent_id="a", session_id="s"), "send_email") is None


def test_a_decision_that_the_runner_ignored_stands_no_more(tmp_path: Path) -> None:
    ann = Ed25519Signer.generate()
    desk = Desk(tmp_path, approvals=ApprovalPolicy(signer=PublicKeys({"ann": ann.public_key})))
    desk.cli("approve", desk.request.id, "--as", "mallory")
    assert [one.principal for one in found(desk).standing] == ["mallory"]
    desk.resume()
    after = found(desk)
    assert [one.principal for one in after.decisions] == ["mallory"]
    assert after.standing == []
    assert after.refused[0][0] == "mallory"


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
