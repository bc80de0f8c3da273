"""A permit that starts from recordings has the very evidence that it would have had, from those that count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

from grampus_uq import Seal, UncertaintyMonitor
from grampus_uq.cli.permits_command import command
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.gate.requests import ApprovalPolicy, Grant
from grampus_uq.learn.recorded_answers import recorded_answers
from grampus_uq.recording.writer import RecordingProcessor
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.stored_permits import StoredPermits, grant_permit, replayed_permit, stored_permits
from grampus_uq.runtime.stores import open_store
from grampus_uq.runtime.stores.memory import MemoryStore
from tests.runtime.agents import AGENT
from tests.runtime.test_stored_permits import Office, permit

pytestmark = pytest.mark.anyio
SAID = ["approve"] * 6 + ["reject", "edit", "approve", "respond"] + ["approve"] * 3
PROFILE = Profile()


class Recorded(Office):
    """An office whose runs are recorded in a folder."""

    def __init__(self, folder: Path, **given: Any) -> None:
        super().__init__(MemoryStore(), draw=0.0, **given)
        self.folder = folder

    async def work(self, said: list[str | None], **given: Any) -> None:
        with RecordingProcessor(self.folder) as recorder:
            monitor = UncertaintyMonitor(processors=[recorder], **given)
            for number, says in enumerate(said):
                name = f"{len(list(self.folder.glob('*')))}-{number}"
                if says == "respond":
                    (request,) = (await self.run(name, says=None, body=name, monitor=monitor)).pending
                    decision = request.decide("respond", principal="ann", message="sent")
                    await self.runner(monitor=monitor).resume("mailer", name, decision)
                else:
                    await self.run(name, says=says, body=name, monitor=monitor)


async def test_it_is_the_evidence_that_a_permit_would_have_had_in_that_time(tmp_path: Path) -> None:
    office = Recorded(tmp_path)
    live = permit(epsilon=0.05, delta=0.05)
    await grant_permit(office.store, live)
    await office.work([*SAID])
    found = recorded_answers(tmp_path, live, PROFILE)
    assert len(found.calls) == len(SAID)
    state = await grant_permit(store := MemoryStore(), permit(epsilon=0.05, delta=0.05), found.entries())
    lived = (await office.standing()).state
    assert (state.answers, state.wrong, state.counted) == (13, 3, 13) == (lived.answers, lived.wrong, lived.counted)
    assert (state.earned, state.judge) == (lived.earned, lived.judge)
    (stored,) = await stored_permits(store)
    assert stored.state == state == await replayed_permit(store, stored.permit)


async def test_it_goes_on_from_there_under_the_same_judge_and_the_same_seal(tmp_path: Path) -> None:
    office = Recorded(tmp_path)
    await office.work(["approve"] * 12)
    seal = Seal("k" * 32)
    found = recorded_answers(tmp_path, permit(), PROFILE)
    for mine, ahead in ((seal, True), (None, False)):
        store = MemoryStore()
        await grant_permit(store, permit(), found.entries(), seal=mine)
        host = Office(store, approvals=ApprovalPolicy(seal=seal))
        result = await host.run("next", says=None, body="next")
        assert (result.status is AgentStatus.COMPLETED) is ahead
    other = Office(store, approvals=ApprovalPolicy())
    changed = other.runner()
    assert isinstance(changed.gate.permits, StoredPermits)
    changed.gate.permits.agent_version = "another prompt"
    assert (await changed.run(AGENT, "mail bob", session_id="x")).status is AgentStatus.WAITING_FOR_HUMAN


@pytest.mark.parametrize("case", ["granted", "advisory", "another profile", "no answer", "scope", "two judges"])
async def test_only_what_was_asked_about_whatever_would_be_answered_counts(case: str, tmp_path: Path) -> None:
    office, wanted = Recorded(tmp_path), permit()
    profile = PROFILE
    if case == "granted":
        grant = Grant(tool="send_email", principal="ann", expires_s=1e12, max_uses=1)
        await Ledger(office.store).grant(grant)
    if case == "another profile":
        profile = Profile(policy=UncertaintyPolicy(low_threshold=0.4, medium_threshold=0.3, high_threshold=0.2))
    await office.work(["approve", None] if case == "no answer" else ["approve"] * 2, advisory=case == "advisory")
    if case == "two judges":
        await office.work(["approve"], policy=UncertaintyPolicy(inject_reflection_on_high=False))
        with pytest.raises(DataError, match="all judged by one profile"):
            recorded_answers(tmp_path, wanted, profile)
        return
    if case == "scope":
        wanted = permit(limits={"to": {"equals": "eve"}})
    found = recorded_answers(tmp_path, wanted, profile)
    wrong = [call.wrong for call in found.calls]
    expected: dict[str, tuple[list[bool], dict[str, int]]] = {
        "granted": ([False], {"not_all_asked": 1}),
        "advisory": ([], {"advisory": 2}),
        "another profile": ([], {"another_profile": 2}),
        "no answer": ([False, True], {}),
        "scope": ([], {}),
    }
    assert (wrong, dict(found.left_out)) == expected[case]


def test_the_command_begins_with_them_and_says_with_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, url = tmp_path / "runs", f"sqlite:///{tmp_path}/s.db"
    runs.mkdir()
    seal = "k" * 32
    monkeypatch.setenv("GRAMPUS_UQ_SEAL_KEY", seal)

    async def past() -> None:
        await Recorded(runs).work(["approve"] * 12 + ["reject"])
        store = open_store(url, create=True)
        await store.now()
        await store.aclose()

    anyio.run(past)
    common = ["grant", "--store", url, "--tool", "send_email", "--at-most", "0.4", "--assurance", "0.6", "--as", "ann"]
    said = CliRunner().invoke(command, [*common, "--from", str(runs)], catch_exceptions=False)
    assert "begins     with 13 answers, 1 of them wrong" in said.stdout
    assert "stands     goes ahead: at most 40 % of send_email calls" in said.stdout
    nothing = CliRunner().invoke(command, [*common, "--from", str(runs), "--agent", "another"])
    assert "no answer to begin with (no call of the scope waited)" in str(nothing.exception)

    async def now() -> None:
        store = open_store(url)
        host = Office(store, approvals=ApprovalPolicy(seal=Seal(seal)))
        assert (await host.run("next", says=None, body="next")).status is AgentStatus.COMPLETED
        await store.aclose()

    anyio.run(now)
