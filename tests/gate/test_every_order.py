"""Every order of everything that can happen to one irreversible call, by exhaustive search, up to a number of events.

People decide, one of them without a key; time passes, the rules change, the process dies, an earlier state is put back,
an attacker writes the record. A world that differs from one seen before in nothing that counts is not gone on with. The
truth is kept beside the gate: who said what of which call, and what ran.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.gate.call import CallPhase, CallRecord, Doubt, Terms, asked, granted, guided, may_be_granted, settled
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.recovery import restored
from grampus_uq.gate.requests import ApprovalDecision, ApprovalPolicy, ApprovalRequest
from grampus_uq.gate.starts import CallStarts
from grampus_uq.gate.voices import Voices
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.records.vocabulary import Effect, UncertaintyLevel
from tests.every_order import KEYS, OwnKeys, Said, differing, driven, let, searched
from tests.sampling import sampled

POLICY = UncertaintyPolicy(irreversible_tool_names=["pay"])
PAY = ToolCall(id="c1", name="pay", arguments={"to": "A", "amount": 5})
MORE = {"to": "B", "amount": 99_999}
LESS = {"to": "A", "amount": 1}
DOUBT = Doubt(level=UncertaintyLevel.MEDIUM, rule="irreversible_override", reason="why")
LIFETIME_S = 60.0


class SharedStarts:
    """The starts that processes share, as a store keeps them: the first owner of each has it."""

    def __init__(self, taken: dict[str, str]) -> None:
        self.taken = taken

    async def take(self, by: str, owner: str) -> bool:
        return self.taken.setdefault(by, owner) == owner

    async def free(self, by: str, owner: str) -> bool:
        return self.taken.get(by, owner) == owner


@dataclass(frozen=True)
class Ran:
    """A call that ran: its arguments, the request or grant that let it, when, and in which process."""

    arguments: str
    by: str
    at_s: float
    process: int


@dataclass(frozen=True)
class World:
    """One call as its host keeps it, and the truth beside it.

    `said` are the decisions in the order of arrival, each with when, and whether its own principal signed it.
    """

    required: int
    shared: bool
    record: CallRecord
    rules: str = "rules"
    now_s: float = 1_000.0
    process: int = 0
    before: tuple[CallRecord, ...] = ()
    requests: tuple[ApprovalRequest, ...] = ()
    said: tuple[Said, ...] = ()
    spent: tuple[str, ...] = ()
    taken: tuple[tuple[str, str], ...] = ()
    ran: tuple[Ran, ...] = ()
    put_back: bool = False

    @property
    def terms(self) -> Terms:
        return Terms(agent_id="clerk", session_id="s", run_id="r", rules=self.rules)

    def gate(self) -> Gate:
        gate = Gate(approvals=approvals(self.required), clock=lambda: self.now_s)
        gate.starts = CallStarts(SharedStarts(dict(self.taken)) if self.shared else None)
        for by in self.spent:
            gate.starts.spend(by)
        return gate

    def to(self, record: CallRecord, **changes: Any) -> World:
        """The world once its host has stored this record."""
        known = {request.id for request in self.requests}
        new = tuple(request for request in record.requests if request.id not in known)
        kept = self.before if record is self.record else (*self.before, self.record)
        return replace(self, record=record, before=kept, requests=self.requests + new, **changes)

    @property
    def earlier(self) -> CallRecord:
        """The state that is put back, where one is: the first that was cleared, else the latest."""
        return next((one for one in self.before if one.phase is CallPhase.CLEARED), self.before[-1])

    def likeness(self) -> str:
        """The same for worlds that differ in the ids of their requests, and in what no rule, host or check looks at."""
        names = {request.id: f"#{number}" for number, request in enumerate(self.requests)}
        values = (
            *(_shown(self.record), self.rules, self.now_s, self.put_back),
            self.before and _shown(self.earlier),
            [
                (one.id, one.unknown_outcome, one.expires_s, one.rules, one.call, one.rule, one.level)
                for one in self.requests
            ],
            [(*_meant(one), at_s, own) for one, at_s, own in self.said],
            [(one.arguments, one.by, one.at_s, self.process - one.process) for one in self.ran],
            (sorted(self.spent), sorted(by for by, _ in self.taken)),
        )
        text = repr(values)
        for name, short in names.items():
            text = text.replace(name, short)
        return text


@cache
def approvals(required: int) -> ApprovalPolicy:
    return ApprovalPolicy(signer=OwnKeys(), approvers={"ann", "bob"}, required=required, expires_s=LIFETIME_S)


_SHOWN: dict[int, tuple[CallRecord, str]] = {}


def _meant(decision: ApprovalDecision) -> tuple[Any, ...]:
    return decision.request_id, decision.kind, decision.principal, decision.arguments, decision.signature is None


def _shown(record: CallRecord) -> str:
    found = _SHOWN.get(id(record))
    if found is None or found[0] is not record:
        grant = None if record.grant is None else record.grant.signature
        calls = record.proposed.arguments, record.call.arguments
        parts = record.phase, calls, [one.id for one in record.requests], record.effect, grant
        decisions = [_meant(one) for one in record.decisions]
        found = _SHOWN[id(record)] = (
            record,
            repr((*parts, decisions, record.cleared_here, record.cleared_by, record.text)),
        )
    return found[1]


# -- what can happen --------------------------------------------------------------------------------------------------

Event = Callable[[World], "World | None"]


def says(
    kind: str, who: str, *, key: str | None, arguments: dict[str, Any] | None = None, stale: bool = False
) -> Event:
    """A decision arrives, on the request that waits or (`stale`) on the first one ever."""

    def happens(world: World) -> World | None:
        if not world.requests or (stale and len(world.requests) < 2):
            return None
        request = world.requests[0 if stale else -1]
        decision = request.decide(kind, principal=who, arguments=arguments).model_copy(update={"decided_s": 0.0})
        decision = decision if key is None else KEYS[key].sign(decision)
        said = (*world.said, (decision, world.now_s, key == who))
        if not world.record.waiting:
            return None
        on = {one.id for one in world.record.requests}
        arrived = [(one, at_s) for one, at_s, _ in said if one.request_id in on or one is decision]
        after, _ = world.gate().decide(world.record, world.terms, arrived)
        return world.to(after, said=said)

    return happens


def starts(other: dict[str, Any] | None = None) -> Event:
    """The host starts the record's call, or another one in its place."""

    def happens(world: World) -> World | None:
        record, kept = world.record, list[CallRecord]()
        call = record.call if other is None else record.call.model_copy(update={"arguments": other})
        gate = world.gate()
        after = driven(gate.start(record, call, world.terms, None, POLICY, kept.append))
        ran = world.ran
        if after.phase is CallPhase.STARTED and record.phase is not CallPhase.STARTED:
            by = after.requests[0].id if after.decisions else after.grant.id if after.grant is not None else ""
            ran = (*ran, Ran(canonical_json(call.arguments), by, world.now_s, world.process))
        taken = gate.starts._store.taken if isinstance(gate.starts._store, SharedStarts) else {}
        return world.to(after, ran=ran, spent=tuple(gate.starts._spent), taken=tuple(taken.items()))

    return happens


def ends(world: World) -> World | None:
    return world.to(settled(world.record, "done")) if world.record.phase is CallPhase.STARTED else None


def expires(world: World) -> World | None:
    return replace(world, now_s=world.now_s + 2 * LIFETIME_S) if world.now_s < 1_200.0 else None


def rules_change(world: World) -> World | None:
    return replace(world, rules="others") if world.rules == "rules" else None


def guidance(world: World) -> World | None:
    return world.to(guided(world.record, "wait")) if world.record.waiting else None


def grants(key: str) -> Event:
    """The host finds a grant in ann's name, and applies it where a grant may lift the pause."""
    grant = Grant(id=f"grant by {key}", tool="pay", principal="ann", created_s=1_000.0, expires_s=1_000.0 + LIFETIME_S)
    signed = KEYS[key].sign(grant.model_copy(update={"limits": {"amount": {"max": 50}}}))

    def happens(world: World) -> World | None:
        return world.to(granted(world.record, signed)) if may_be_granted(world.record, world.terms) else None

    return happens


def asked_anew(world: World) -> World | None:
    return world.to(world.gate().asked_again(world.record, world.terms, "so")) if world.record.waiting else None


def read(world: World, record: CallRecord, *, believed: bool, **changes: Any) -> World:
    """The host goes on from a stored record."""
    gate, terms = world.gate(), world.terms
    again = gate.recovered(gate.restored(record, terms, believed=believed), terms, Effect.IRREVERSIBLE)
    return world.to(again, **changes)


def taken_up(world: World, record: CallRecord, *, believed: bool, **changes: Any) -> World:
    """Another process takes up a record; what starts were taken in the first one it does not know."""
    return read(world, record, believed=believed, process=world.process + 1, spent=(), **changes)


def dies(world: World) -> World | None:
    return taken_up(world, copied(world.record), believed=True)


def copied(record: CallRecord) -> CallRecord:
    """The record as another process reads it."""
    return CallRecord.model_validate_json(record.model_dump_json())


def is_read_again(world: World) -> World | None:
    """The process goes on from an earlier state, as frameworks with checkpoints do."""
    if not world.before:
        return None
    return read(world, copied(world.earlier), believed=True, put_back=True)


def is_put_back(world: World) -> World | None:
    """Whoever can write the store puts an earlier state back: its seal holds."""
    if not world.before:
        return None
    return taken_up(world, copied(world.earlier), believed=True, put_back=True)


def forged(**changes: Any) -> Event:
    """Whoever can write the store writes the record: no seal holds."""

    def happens(world: World) -> World:
        values = {**world.record.model_dump(mode="json"), **changes}
        return taken_up(world, CallRecord.model_validate(values), believed=False)

    return happens


OTHER = PAY.model_copy(update={"arguments": MORE}).model_dump(mode="json")
EVENTS: dict[str, Event] = {
    "ann approves": says("approve", "ann", key="ann"),
    "bob approves": says("approve", "bob", key="bob"),
    "ann edits": says("edit", "ann", key="ann", arguments=LESS),
    "ann rejects": says("reject", "ann", key="ann"),
    "bob responds": says("respond", "bob", key="bob"),
    "ann approves the first request": says("approve", "ann", key="ann", stale=True),
    "mal approves": says("approve", "mal", key="mal"),
    "mal approves as ann": says("approve", "ann", key="mal"),
    "mal edits as ann, unsigned": says("edit", "ann", key=None, arguments=MORE),
    "it starts": starts(),
    "another call starts": starts(MORE),
    "it ends": ends,
    "time passes": expires,
    "the rules change": rules_change,
    "guidance": guidance,
    "ann's grant is found": grants("ann"),
    "mal's grant in ann's name is found": grants("mal"),
    "it is asked anew": asked_anew,
    "its process dies": dies,
    "an earlier state is read again": is_read_again,
    "an earlier state is put back": is_put_back,
    "its phase is forged": forged(phase="cleared", cleared_by="monitor", requests=[], decisions=[]),
    "it is forged as a read that began": forged(phase="started", effect="read", cleared_by="monitor"),
    "its call is swapped": forged(call=OTHER),
    "both its calls are swapped": forged(call=OTHER, proposed=OTHER),
}


WITHOUT_ATTACKERS = {
    name: event
    for name, event in EVENTS.items()
    if name.startswith(("ann approves", "ann rejects", "bob approves", "it ", "its process", "time", "an earlier"))
    and "forged" not in name
}


# -- what must hold ---------------------------------------------------------------------------------------------------


def allowed(world: World, ran: Ran) -> bool:
    """As many as are required signed, in time and before any rejection, on one request on the very call that ran.

    Or ann's own grant covers the call as it was proposed, at that time, where one person's word is enough.
    """
    if ran.by == "grant by ann":
        return (
            world.required == 1 and ran.at_s < 1_000.0 + LIFETIME_S and ran.arguments == canonical_json(PAY.arguments)
        )
    request = next((one for one in world.requests if one.id == ran.by), None)
    return request is not None and let(request, world.said, world.required) == ran.arguments


def check(world: World) -> None:
    """What ran, may have; on one word once, and again only where somebody was told so. Where an earlier state came back
    and processes do not share their starts, that holds within each process."""
    for ran in world.ran:
        assert allowed(world, ran), "something ran that nobody approved so"
    told = {one.id for one in world.requests if one.unknown_outcome}
    runs: dict[int, list[str]] = {}
    for ran in world.ran:
        runs.setdefault(ran.process if world.put_back and not world.shared else 0, []).append(ran.by)
    for by in runs.values():
        assert len(set(by)) == len(by), "one approval let it run twice"
        assert told.issuperset(by[1:]), "it ran again, and nobody was told that it may have run"


def waiting(required: int, *, shared: bool) -> World:
    world = World(
        required=required, shared=shared, record=CallRecord(proposed=PAY, step_id="llm_1", effect=Effect.IRREVERSIBLE)
    )
    return replace(world.to(asked(world.record, world.terms, approvals(required), DOUBT, world.now_s)), before=())


def search(first: World, most: int) -> tuple[int, int]:
    """Check all worlds, without attackers those of two events more, too: how many there were, in how many it ran."""
    ran = 0

    def counted(world: World) -> None:
        nonlocal ran
        ran += bool(world.ran)
        check(world)

    seen = searched(first, most, EVENTS, counted) + searched(first, most + 2, WITHOUT_ATTACKERS, counted)
    return seen.total(), ran


@sampled("required,shared,most", [(1, True, 3), (2, False, 3)], full=[*itertools.product([1, 2], [False, True], [4])])
def test_in_no_order_of_events_does_anything_run_that_was_not_approved_so_or_twice(required, shared, most):
    seen, ran = search(waiting(required, shared=shared), most)
    assert seen > 1_000
    assert ran > 0


@sampled("most", [1], full=[2])
@pytest.mark.parametrize("shared", [False, True], ids=["own starts", "shared starts"])
@pytest.mark.parametrize("required", [1, 2])
def test_worlds_that_count_as_one_have_one_future(required, shared, most):
    assert differing(waiting(required, shared=shared), most, EVENTS, check) == []


def test_a_likeness_that_loses_whose_key_signed_is_found(monkeypatch):
    likeness = World.likeness

    def loses(self: World) -> str:
        return likeness(replace(self, said=tuple((one, at_s, True) for one, at_s, _ in self.said)))

    monkeypatch.setattr(World, "likeness", loses)
    assert differing(waiting(2, shared=False), 1, EVENTS, check) != []


# -- sabotage: each rule that is taken out lets something happen ------------------------------------------------------


def _no_check(*given: Any, **named: Any) -> None:
    return None


def _believed(record: CallRecord, *given: Any, **named: Any) -> CallRecord:
    return restored(record, *given, **{**named, "believed": True})


def _cleared_again(record: CallRecord, *given: Any) -> CallRecord:
    return record.change(phase=CallPhase.CLEARED) if record.phase is CallPhase.STARTED else record


def _all_of(voices: Voices) -> list[ApprovalDecision]:
    return [decision for by in voices._of.values() for _, decision in by.values()]


async def _taken_by_all(self: SharedStarts, by: str, owner: str) -> bool:
    return True


GATE = "grampus_uq.gate"
SABOTAGE: dict[str, tuple[int, bool, str, Any]] = {
    "nothing is looked at when it runs": (1, False, f"{GATE}.gate.check_clearance", _no_check),
    "signatures are not looked at": (1, False, f"{GATE}.requests.ApprovalPolicy._check_signature", _no_check),
    "nor are they of two": (2, False, f"{GATE}.requests.ApprovalPolicy._check_signature", _no_check),
    "anybody may decide": (1, False, f"{GATE}.requests.ApprovalPolicy.check_principal", _no_check),
    "nothing expires": (1, False, f"{GATE}.requests.ApprovalRequest.expired", lambda self, now_s=None: False),
    "what others wrote is believed": (1, False, f"{GATE}.gate.restored", _believed),
    "what a dead process started runs again": (1, False, f"{GATE}.gate.recovered", _cleared_again),
    "an approval is used again": (1, False, f"{GATE}.starts.CallStarts.spend", lambda self, by: True),
    "starts are not shared": (1, True, f"{__name__}.SharedStarts.take", _taken_by_all),
    "one person is two": (2, False, f"{GATE}.requests.Voices.distinct", lambda self: 2 * _all_of(self)),
}


@sampled("what", [*SABOTAGE][::4], full=[*SABOTAGE])
def test_without_any_one_of_the_rules_an_order_is_found_in_which_it_runs(what, monkeypatch):
    required, shared, place, instead = SABOTAGE[what]
    monkeypatch.setattr(place, instead)
    with pytest.raises(AssertionError, match=r"nobody approved so|run twice|nobody was told"):
        search(waiting(required, shared=shared), 3)
