"""The calls of a session in memory and those of a checkpointed turn are judged, decided and run alike.

Two hosts hold the gate for frameworks: `HeldCalls` for those that hand over one call at a time, `TurnJudge` for those
that keep the state. What may happen between is drawn; after each event both say the same of every call.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import anyio
import pytest

from grampus_uq import (
    ApprovalDecision,
    ApprovalError,
    ApprovalPolicy,
    HmacSigner,
    StopReason,
    ToolCall,
    ToolEffects,
    UncertaintyError,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.gate.call import CallPhase, CallRecord
from grampus_uq.gate.gate import HOST_NOW_S
from grampus_uq.integrations import AdapterSettings, ModelTurn, TurnJudge, take_up, write_snapshot
from grampus_uq.records.events import Event, OutcomeEvent
from tests.sampling import sampled

TOOLS = {"look": "reversible", "read": "read", "pay": "irreversible", "odd": "unknown", "ask": "reversible"}
RULES = UncertaintyPolicy(irreversible_tool_names=["pay"], always_ask_tool_names=["ask"], enable_p_true=False)
SIGNER, OTHER = HmacSigner("a key of at least 16 bytes"), HmacSigner("another key of some length")
BEGINS_S, LIFETIME_S = 4e9, 60.0
PLACE = "/s"
Said = tuple[Any, ...]


def of(record: CallRecord) -> Said:
    """What becomes of a call, as both hosts have it."""
    asked = [(one.rule, one.level, one.created_s, one.expires_s) for one in record.requests if record.waiting]
    return record.phase, asked, record.call, record.cleared_by, record.text, record.is_error


class _Ends:
    """How runs ended, as their recordings have it."""

    def __init__(self, ends: list[StopReason]) -> None:
        self.ends = ends

    def on_event(self, event: Event) -> None:
        if isinstance(event, OutcomeEvent):
            self.ends.append(event.outcome.stop_reason)


class Both:
    """One session in both hosts, each of which goes on in another process now and then."""

    def __init__(self, *, required: int, closes: bool, breaks: Callable[[Both], object]) -> None:
        self.required, self.closes, self.breaks = required, closes, breaks
        self.snapshot: Any = None
        self.state: Any = None
        self.ends: list[list[StopReason]] = [[], []]
        self.begins()

    def begins(self) -> None:
        """Both in a process of their own, from what they left."""
        given: dict[str, Any] = {
            "agent_id": "a",
            "effects": ToolEffects(TOOLS),
            "precondition": (lambda call: "closed" if call.arguments["n"] == 3 else None) if self.closes else None,
            "approvals": ApprovalPolicy(
                signer=SIGNER, approvers={"ann", "bob"}, required=self.required, expires_s=LIFETIME_S
            ),
        }
        held, judge = (UncertaintyMonitor(policy=RULES, processors=[_Ends(ends)]) for ends in self.ends)
        self.settings = AdapterSettings(monitor=held, **given)
        self.held = take_up(self.settings, self.settings.gate(lambda name: None), "s", "a", self.snapshot)
        self.judge = TurnJudge(judge, **given)
        self.carried = self.judge.states.read("s", PLACE, self.state, begun=False)

    def leaves(self) -> None:
        """What travels, as text."""
        self.snapshot = json.loads(json.dumps(write_snapshot(self.held)))
        self.state = json.loads(json.dumps(self.judge.states.write(self.carried)))
        early = [
            [one["principal"] for one, _ in kept] for kept in (self.snapshot["arrived"], self.state["turn"]["arrived"])
        ]
        assert early[0] == early[1]  # approvals of which more have to come, and no others

    async def answers(self, turn: ModelTurn) -> bool:
        """The model answers; False where the run ends."""
        self.breaks(self)
        self.carried = await self.judge.judge(self.carried, turn)
        stopped = (self.carried.turn or {})["stopped"] is not None
        try:
            await self.held.observe(self.settings, turn, turn.calls)
            for call in turn.calls:
                await self.held.judge(call)
        except UncertaintyError:
            assert stopped
            assert self.ends == [[StopReason.MONITOR_STOP]] * 2
            return False
        assert not stopped
        assert self.ends == [[], []]
        return True

    async def decides(self, call: ToolCall, kind: str, who: str, key: HmacSigner) -> None:
        """Somebody decides on a call that waits, on each host's own request."""
        self.breaks(self)
        said: dict[str, Any] = {"principal": who, "message": "so" if kind == "respond" else None}
        said |= {"arguments": {"n": 2}} if kind == "edit" else {}
        mine, theirs = [key.sign(one.requests[0].decide(kind, **said)) for one in self.records(call)]
        refused = list[str]()
        try:
            self.held.decide(mine)
        except ApprovalError as error:
            refused = [str(error)]
        why = await self.takes([theirs])
        assert why == refused or "void" in why[0]  # a turn asks preconditions as it is decided, the other as it runs

    async def takes(self, decisions: list[ApprovalDecision]) -> list[str]:
        """The turn's part of decisions, and what its framework's adapter does then."""
        before = self.carried.records
        self.carried, why = await self.judge.decide(self.carried, {"decisions": decisions})
        fresh = [now for now, old in zip(self.carried.records, before, strict=True) if now.phase is not old.phase]
        self.carried = self.judge.record_decisions(self.carried, fresh)
        return why

    async def a_lifetime_passes(self) -> None:
        """Nobody answers in time: what waited waits under a new request."""
        HOST_NOW_S.set(HOST_NOW_S.get() + LIFETIME_S + 1.0)
        self.held.requests()
        await self.takes([])

    async def runs(self, call: ToolCall) -> None:
        """Each does the same with a call that the framework is about to run."""
        release = await self.held.release(call)
        _, record = self.records(call)
        answer = record.text
        if record.phase is CallPhase.CLEARED:
            with self.judge.running(self.carried, record, record.call) as answer:
                assert release.run is (answer is None)
        assert (release.answer, release.record.waiting) == (answer, record.waiting)
        if release.run:
            assert release.record.call == record.call
            self.held.settle(release, "done")
            self.carried.session.observe_tool_result(call.id, "done", is_error=False)

    def records(self, call: ToolCall) -> tuple[CallRecord, CallRecord]:
        ours = self.held.records.find(call)
        assert ours is not None
        return ours, next(one for one in self.carried.records if one.proposed.id == call.id)

    def alike(self, calls: Iterable[ToolCall]) -> None:
        """Both say the same of these calls, and believe the same."""
        for mine, other in map(self.records, calls):
            assert of(mine) == of(other)
        ours, theirs = self.held.session.belief(), self.carried.session.belief()
        assert ours.cumulative_confidence == theirs.cumulative_confidence


async def goes(seed: int, breaks: Callable[[Both], object]) -> None:
    """One run, drawn by its seed."""
    rng = random.Random(seed)
    HOST_NOW_S.set(BEGINS_S)
    both = Both(required=rng.choice([1, 1, 2]), closes=seed % 2 == 1, breaks=breaks)
    for number in range(rng.randint(1, 5)):
        names = rng.choices([*TOOLS], k=rng.randint(0, 3))
        given = [{"n": rng.randint(1, 3)} for _ in names]
        calls = [ToolCall(id=f"{number}-{n}", name=names[n], arguments=one) for n, one in enumerate(given)]
        sure = f' {{"confidence": {rng.choice([0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.45, 0.35, 0.3])}}}'
        text = "I go on." + (sure if rng.random() < 0.9 else "")
        if not await both.answers(ModelTurn(content=text, calls=calls)):
            return
        both.alike(calls)
        if rng.random() < 0.3:
            await both.a_lifetime_passes()
            both.alike(calls)
        for call in calls:
            kind = rng.choice(["approve", "approve", "reject", "edit", "respond"])
            for who in ["ann", "bob", "eve"][: both.required if rng.random() < 0.8 else rng.choice([1, 3])]:
                if all(one.waiting for one in both.records(call)):
                    await both.decides(call, kind, who, rng.choice([SIGNER] * 5 + [OTHER]))
            if rng.random() < 0.2:
                await both.a_lifetime_passes()
            if rng.random() < 0.2:
                both.leaves()
                both.begins()
        for call in calls:
            await both.runs(call)
        both.alike([])
        if any(one.waiting for call in calls for one in both.records(call)):
            return
        if rng.random() < 0.3:
            both.leaves()
            both.begins()


@sampled("seeds", [range(60)], full=[range(n, n + 300) for n in range(0, 3_000, 300)])
def test_a_run_is_judged_decided_and_run_alike_in_memory_and_in_a_frameworks_state(seeds: range) -> None:
    go(seeds)


def go(seeds: range, breaks: Callable[[Both], object] = lambda both: None) -> None:
    for seed in seeds:
        anyio.run(goes, seed, breaks)


SABOTAGE: dict[str, Callable[[Both], object]] = {
    "a rejection is forgotten": lambda both: both.held.rejected.clear(),
    "what expired is not asked anew": lambda both: setattr(both.judge.gate, "renewed", lambda record, terms: record),
    "a precondition is not asked": lambda both: setattr(both.held.gate, "precondition", None),
    "the first of two approvals is forgotten": lambda both: both.held.arrived.clear(),
    "an effect is another one": lambda both: setattr(both.judge.gate, "effects", ToolEffects({"odd": "irreversible"})),
}


@pytest.mark.parametrize("what", SABOTAGE)
def test_a_host_that_lacks_a_rule_is_told_from_the_other(what: str) -> None:
    with pytest.raises(AssertionError):
        go(range(60), SABOTAGE[what])


@pytest.mark.anyio
async def test_of_a_long_session_in_memory_the_early_decisions_of_pending_requests_alone_are_kept() -> None:
    both = Both(required=2, closes=False, breaks=lambda both: None)
    for number in range(20):
        call = ToolCall(id=f"{number}", name="pay", arguments={"n": number})
        assert await both.answers(ModelTurn(content='I pay. {"confidence": 0.7}', calls=[call]))
        for who in ("ann", "bob"):
            said = SIGNER.sign(both.records(call)[0].requests[0].decide("approve", principal=who))
            await both.held.tell_first([said])
            both.held.decide(said)
        assert len(both.held.arrived) == len(both.held._told_first) == 1
        both.held.settle(await both.held.release(call), "done")
