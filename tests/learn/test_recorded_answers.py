"""A permit that starts from recordings has the very evidence that it would have had, from those that count."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

from grampus_uq import AgentRunner, Seal, UncertaintyMonitor
from grampus_uq.cli.permits_command import command
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError, StoreError
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.requests import ApprovalPolicy
from grampus_uq.learn.recorded_answers import _unfair, recorded_answers
from grampus_uq.recording.writer import RecordingProcessor
from grampus_uq.records.events import CallAsked, Event, InForce
from grampus_uq.records.values import ToolCall
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import Document
from grampus_uq.runtime.stored_permits import StoredPermits, close_permit, grant_permit, replayed_permit, stored_permits
from grampus_uq.runtime.stores import open_store
from grampus_uq.runtime.stores.memory import MemoryStore
from tests.runtime.agents import AGENT
from tests.runtime.test_stored_permits import NO_AUDIT, Office, permit

pytestmark = pytest.mark.anyio
SAID = ["approve"] * 6 + ["reject", "edit", "approve", "respond"] + ["approve"] * 3
PROFILE = Profile()
MAIL = ToolCall(id="b", name="send_email", arguments={"to": "bob", "body": "hi"})


class Told(RecordingProcessor):
    """Writes events as they are, or as `change` makes them; None leaves one out."""

    def __init__(self, folder: Path, change: Callable[[Event], Event | None]) -> None:
        super().__init__(folder)
        self.change = change

    def on_event(self, event: Event) -> None:
        changed = self.change(event)
        if changed is not None:
            super().on_event(changed)


class Down(MemoryStore):
    """Answers nothing."""

    async def scan(self, kind: str, **given: Any) -> list[Document]:
        raise StoreError("no answer")


def older(event: Event) -> Event | None:
    """As recordings were before they said what was in force."""
    return None if isinstance(event, CallAsked) else event


def without_what_was_in_force(folder: Path) -> None:
    """Make the recordings older ones, of the runs in which everything was asked about."""
    for path in folder.glob("*.jsonl"):
        kept = [line for line in path.read_text().splitlines() if '"type":"asked"' not in line]
        if any('"decision":"permit"' in line for line in kept):
            path.unlink()
        else:
            path.write_text("\n".join(kept) + "\n")


def let_a_call_ahead(folder: Path) -> None:
    """Add to the first recording that a grant let its call ahead, after a human had answered on it."""
    path = min(folder.glob("*.jsonl"))
    answered = next(line for line in path.read_text().splitlines() if '"decision":"approve"' in line)
    path.write_text(path.read_text() + answered.replace('"decision":"approve"', '"decision":"grant"') + "\n")


def begin_anew_with_another_prompt(folder: Path) -> None:
    """Let the first recording say that it went on with another prompt."""
    path = min(folder.glob("*.jsonl"))
    lines = path.read_text().splitlines()
    begun = json.loads(lines[0]) | {"resumed": True, "prompt_hash": "another"}
    path.write_text("\n".join([*lines, json.dumps(begun)]) + "\n")


class Recorded(Office):
    """An office whose runs are recorded in a folder."""

    change: Callable[[Event], Event | None] = staticmethod(lambda event: event)
    down = False

    def runner(self, **given: Any) -> AgentRunner:
        one = super().runner(**given)
        if self.down:
            assert isinstance(one.gate.permits, StoredPermits)
            one.gate.permits.store = Down()
        return one

    def __init__(self, folder: Path, **given: Any) -> None:
        super().__init__(MemoryStore(), draw=0.0, **given)
        self.folder = folder

    async def work(self, said: list[str | None], **given: Any) -> None:
        with Told(self.folder, self.change) as recorder:
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
    office.change = lambda event: replace(event, in_force=()) if isinstance(event, CallAsked) else event
    await office.work([*SAID])
    found = recorded_answers(tmp_path, live, PROFILE)
    assert len(found.calls) == len(SAID)
    state = await grant_permit(store := MemoryStore(), permit(epsilon=0.05, delta=0.05), found.entries())
    assert state.earned["exposed"] == [0.0]
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
        "granted": ([False], {"beside_a_grant_or_permit": 1}),
        "advisory": ([], {"advisory": 2}),
        "another profile": ([], {"another_profile": 2}),
        "no answer": ([False, True], {}),
        "scope": ([], {}),
    }
    assert (wrong, dict(found.left_out)) == expected[case]


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "beside", ["permit", "other scope", "grant", "expired", "used up", "closed", "closed other", "store down"]
)
async def test_a_call_counts_only_where_nothing_was_in_force_for_its_tool(beside: str, tmp_path: Path) -> None:
    """Also where it covers other calls: what it lets ahead is missing among those that were asked about."""
    office, now_s = Recorded(tmp_path), time.time()
    other = {"to": {"equals": "eve"}}
    mail, until_s = {"tool": "send_email", "principal": "ann"}, 1e12
    if beside in ("grant", "expired", "used up"):
        ledger = Ledger(office.store)
        limits = {} if beside == "used up" else other
        until_s = now_s - 1.0 if beside == "expired" else until_s
        await ledger.grant(grant := Grant(**mail, limits=limits, expires_s=until_s, max_uses=1))
        if beside == "used up":
            assert await ledger.use_grant(MAIL, agent_id="a", session_id="s", policy=ApprovalPolicy()) == grant
    elif beside != "store down":
        one = permit(limits=other if beside in ("other scope", "closed other") else {})
        await grant_permit(office.store, one)
        if beside in ("closed", "closed other"):
            await close_permit(office.store, one.id, "enough")
    office.down = beside == "store down"
    await office.work(["approve", None])
    found = recorded_answers(tmp_path, permit(), PROFILE)
    why = "unknown_what_was_in_force" if beside == "store down" else "beside_a_grant_or_permit"
    fair = beside in ("expired", "used up", "closed", "closed other")
    assert ([call.wrong for call in found.calls], dict(found.left_out)) == (
        ([False, True], {}) if fair else ([], {why: 2})
    )


async def test_recordings_that_do_not_say_what_was_in_force_are_refused_unless_somebody_states_that_nothing_was(
    tmp_path: Path,
) -> None:
    office = Recorded(tmp_path)
    office.change = older
    await office.work(["approve", "reject"])
    with pytest.raises(DataError, match="2 runs do not say whether a grant or a permit for 'send_email' was in force"):
        recorded_answers(tmp_path, permit(), PROFILE)
    stated = recorded_answers(tmp_path, permit(), PROFILE, nothing_in_force=True)
    assert [(call.wrong, call.told) for call in stated.calls] == [(False, False), (True, False)]
    assert recorded_answers(tmp_path, permit(limits={"to": {"equals": "eve"}}), PROFILE).calls == ()
    await Ledger(office.store).grant(Grant(tool="send_email", principal="ann", expires_s=1e12, max_uses=1))
    office.change = lambda event: event
    await office.work(["approve"])
    both = recorded_answers(tmp_path, permit(), PROFILE, nothing_in_force=True)
    assert (len(both.calls), dict(both.left_out)) == (2, {"beside_a_grant_or_permit": 1})


def test_a_call_that_was_asked_about_twice_counts_only_if_it_may_each_time() -> None:
    one = CallAsked(session_id="s", agent_id="a", tool_alone=True, in_force=())
    beside = replace(one, in_force=(InForce(rule="grant", id="g"),))
    doubt, unknown = replace(one, tool_alone=False, in_force=None), replace(one, in_force=None)
    assert _unfair([one]) is _unfair([one, one]) is None
    for other, why in (
        (beside, "beside_a_grant_or_permit"),
        (doubt, "held_by_more_than_its_tool"),
        (unknown, "unknown_what_was_in_force"),
    ):
        assert _unfair([one, other]) == _unfair([other, one]) == why


async def test_a_run_whose_prompt_changed_on_the_way_is_left_out_whole(tmp_path: Path) -> None:
    office = Recorded(tmp_path)
    await office.work(["approve", "approve"])
    begin_anew_with_another_prompt(tmp_path)
    found = recorded_answers(tmp_path, permit(), PROFILE)
    assert (len(found.calls), dict(found.left_out)) == (1, {"made_with_changed": 1})


async def test_of_older_runs_one_in_which_a_call_was_let_ahead_is_left_out_whole_whatever_is_stated(
    tmp_path: Path,
) -> None:
    office = Recorded(tmp_path)
    office.change = older
    await office.work(["approve", "approve"])
    let_a_call_ahead(tmp_path)
    found = recorded_answers(tmp_path, permit(), PROFILE, nothing_in_force=True)
    assert (len(found.calls), dict(found.left_out)) == (1, {"not_all_asked": 1})


@pytest.mark.one_loop
async def test_a_period_of_a_laxer_permit_earns_nothing_and_counting_it_would_break_the_promise(tmp_path: Path) -> None:
    """Half of the calls have a low score and are right; of the others, which it lets ahead, half are wrong.

    So a quarter of all calls goes out wrong, where a fifth is wanted; but of what was asked about nothing was wrong.
    """
    office = Recorded(tmp_path)
    office.draw = NO_AUDIT
    wanted = permit(thresholds=(0.9, 0.75), epsilon=0.2, delta=0.3)
    await grant_permit(office.store, permit(thresholds=(0.75,), delta=0.9))
    for number in range(32):
        office.given["p_true"] = 0.45 if number % 2 else 0.62
        await office.work(["reject" if number % 4 == 2 else "approve"])
    found = recorded_answers(tmp_path, wanted, PROFILE)
    assert found.calls == ()
    assert set(found.left_out) == {"beside_a_grant_or_permit"}
    assert found.left_out["beside_a_grant_or_permit"] == 32
    without_what_was_in_force(tmp_path)
    sabotaged = recorded_answers(tmp_path, wanted, PROFILE, nothing_in_force=True)  # a false word
    state = await grant_permit(MemoryStore(), wanted, sabotaged.entries())
    assert state.in_force(wanted) == 2


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
    assert "starts     with 13 answers, 1 of them wrong" in said.stdout
    assert "status     goes ahead: at most 40 % of send_email calls" in said.stdout
    nothing = CliRunner().invoke(command, [*common, "--from", str(runs), "--agent", "another"])
    assert "no answer to start with (no call of the scope waited)" in str(nothing.exception)

    async def now() -> None:
        store = open_store(url)
        host = Office(store, approvals=ApprovalPolicy(seal=Seal(seal)))
        assert (await host.run("next", says=None, body="next")).status is AgentStatus.COMPLETED
        await store.aclose()

    anyio.run(now)
