"""Every order of what can happen to the irreversible calls of a framework's run, through its adapter.

The framework keeps the state: a checkpointer, a message history, a stored text. An attacker puts an earlier one back,
or writes it. Two processes share nothing else, or a store of starts as well. Each way is gone from its beginning, so
that no process is ever copied; the truth is kept beside: who said what of which call, and what was paid.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.errors import GrampusError
from grampus_uq.gate.call import UNKNOWN_OUTCOME, UNVOUCHED
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.requests import ApprovalDecision, ApprovalPolicy, ApprovalRequest
from grampus_uq.gate.seal import Seal
from grampus_uq.gate.starts import CallStarts
from grampus_uq.integrations import carried_calls, judged_turns
from grampus_uq.integrations.carried_states import CarriedStates
from grampus_uq.integrations.held_calls import HeldCalls
from grampus_uq.integrations.langgraph import KEY, resume, waiting
from grampus_uq.records.values import canonical_json
from grampus_uq.runtime import MemoryStore, StoredStarts
from tests.every_order import (
    KEYS,
    OwnKeys,
    Said,
    check_each_on_its_own,
    differing,
    let,
    searched,
    signers,
    with_named_ids,
)
from tests.integrations import carried_attack, checkpoint_attack
from tests.runtime.forging import raised_in_the_package
from tests.sampling import sampled

LIFETIME_S = 600.0
POLICIES = {
    "rules": UncertaintyPolicy(irreversible_tool_names=["pay"]),
    "others": UncertaintyPolicy(irreversible_tool_names=["pay"], low_threshold=0.79),
}
FRAMEWORKS = ("LangChain", "LangGraph", "pydantic-ai", "OpenAI Agents SDK")


class Died(BaseException):
    """The process is gone."""


@dataclass(frozen=True)
class Ran:
    """What was paid: with which arguments, when, and in which process."""

    arguments: str
    at_s: float
    process: int


class Checkpointed:
    """An agent whose state is in a checkpointer that processes share; what travels is all that it holds."""

    def __init__(self, framework: str, saver: InMemorySaver, **given: Any) -> None:
        self._victim = checkpoint_attack.Victim(framework, "public keys", "v", 0.62, saver, **given)
        self._app, self._saver, self._at = self._victim.app, saver, checkpoint_attack.config("v")

    async def start(self, session: str) -> Any:
        await self._app.ainvoke({"messages": [("user", "Pay.")]}, self._at)
        return self.left()

    async def go_on(self, values: Any, decisions: list[Any], native: Any) -> Any:
        given = resume(await self._app.aget_state(self._at), decisions) if decisions else None
        await self._app.ainvoke(given, self._at)
        return self.left()

    def left(self) -> Any:
        return self._app.get_state(self._at)

    def requests(self, values: Any) -> tuple[ApprovalRequest, ...]:
        return tuple(waiting(values))


class Till(list[Any]):
    """What a process pays; what is to happen then happens."""

    def __init__(self, line: Line, process: int) -> None:
        self._line, self._process = line, process

    def append(self, paid: Any) -> None:
        (to, amount), line = paid, self._line
        line.now_s += 0.001
        line.ran.append(Ran(canonical_json({"to": to, "amount": amount}), line.now_s, self._process))
        happens, line.as_it_pays = line.as_it_pays, None
        if happens is not None:
            happens()


class Line:
    """A run on its way: the processes, what the framework holds, and the truth."""

    now: Line  # the one whose clock counts

    def __init__(self, framework: str, required: int, *, shared: bool) -> None:
        self.framework, self.required, self.shared = framework, required, shared
        self.now_s, self.ids, self.rules = 1_000.0, 0, "rules"
        self.saver, self.starts = InMemorySaver(), MemoryStore()
        self.seal = Seal(b"a key that only the workers hold")
        self.processes: list[Any] = []
        self.numbers = itertools.count()
        self.values: Any = None
        self.before: list[Any] = []
        self.over, self.forged, self.put_back_s = False, False, None
        self.requests: dict[str, ApprovalRequest] = {}
        self.said: list[Said] = []
        self.ran: list[Ran] = []
        self.escaped = ""
        self.as_it_pays: Callable[[], object] | None = None

    def uuid4(self) -> uuid.UUID:
        self.ids += 1
        return uuid.UUID(int=self.ids, version=4)

    def process(self) -> Any:
        given: dict[str, Any] = {
            "monitor": UncertaintyMonitor(policy=POLICIES[self.rules]),
            "approvals": ApprovalPolicy(
                signer=OwnKeys(), approvers={"ann", "bob"}, required=self.required, expires_s=LIFETIME_S, seal=self.seal
            ),
            "starts": StoredStarts(self.starts) if self.shared else None,
        }
        if self.framework in carried_attack.VICTIMS:
            one = carried_attack.VICTIMS[self.framework]("public keys", "v", 0.62, **given)
        else:
            one = Checkpointed(self.framework, self.saver, **given)
        number = next(self.numbers)
        one.number, victim = number, getattr(one, "_victim", one)
        victim.paid = Till(self, number)
        one.gate = victim.guard.judge.gate if hasattr(victim.guard, "judge") else victim.guard._gate
        return one

    @property
    def waiting(self) -> list[ApprovalRequest]:
        return [] if self.over else [*self.processes[0].requests(self.values)]

    async def begins(self) -> None:
        self.processes = [self.process(), self.process()]
        self.values = await self.processes[0].start("v")
        self._seen()

    async def goes_on(self, *decisions: ApprovalDecision, slot: int = 0) -> None:
        """A process goes on from what the framework holds; one that dies is replaced by another."""
        one, before, values = self.processes[slot], self._held(), copy.deepcopy(self.values)
        try:
            values = await one.go_on(values, [*decisions], {})
        except GrampusError:
            pass  # refused: what was held is held on
        except asyncio.CancelledError:
            pass  # somebody gave it up: the process is there
        except (Died, BaseExceptionGroup):
            self.processes[slot], self.put_back_s = self.process(), self.now_s  # what is held is from before it paid
        except Exception as error:  # noqa: BLE001 (a framework may refuse in any way, and wraps what cut it off)
            self.escaped = repr(error) if raised_in_the_package(error) else self.escaped
        if isinstance(one, Checkpointed):
            values = one.left()
        self.over = values is None or (isinstance(one, Checkpointed) and not values.next)
        self.values = self.values if values is None else values
        self.before.append(before)
        self._seen()

    def _held(self) -> Any:
        saver = InMemorySaver()
        for name in _HELD:
            setattr(saver, name, copy.deepcopy(getattr(self.saver, name)))
        return saver, None if hasattr(self.values, "next") else copy.deepcopy(self.values), self._shown()

    def _shown(self) -> Any:
        """What the framework holds, as values."""
        if not isinstance(self.processes[0], Checkpointed):
            return copy.deepcopy(self.values)
        values = self.values.values
        spoken = [(one.type, str(one.content), getattr(one, "tool_calls", None)) for one in values["messages"]]
        return [self.values.next, spoken, copy.deepcopy(values.get(KEY))]

    def puts_back(self, held: Any) -> None:
        """Somebody puts an earlier state back: its seal holds."""
        saver, self.values, _ = held
        self.put_back_s, self.over = self.now_s, False
        self.holds(saver)

    def holds(self, saver: InMemorySaver) -> None:
        """The checkpointer holds what this one does."""
        for name in _HELD:
            setattr(self.saver, name, copy.deepcopy(getattr(saver, name)))
        if isinstance(self.processes[0], Checkpointed):
            self.values = self.processes[0].left()

    def _seen(self) -> None:
        self.requests |= {one.id: one for one in self.waiting}

    def likeness(self) -> str:
        """What the framework holds and each process knows, and the truth; ids by their making, times from now on."""
        held = self._cleaned(self._shown())
        known = [self._knows(one) for one in self.processes]
        said = [
            (self._cleaned(one.model_dump(mode="json")), own, self._late(one, at_s)) for one, at_s, own in self.said
        ]
        requests = [self._cleaned(one.model_dump(mode="json")) for one in self.requests.values()]
        numbers = [one.number for one in self.processes]
        ran = [
            (one.arguments, one.process in numbers and numbers.index(one.process), self.authorities(one))
            for one in self.ran
        ]
        starts = sorted((one.key, one.body) for one in self.starts._documents.values())
        earlier = self._cleaned(self.before[0][2]) if self.before else None
        text = repr((held, known, said, requests, ran, starts, earlier, bool(self.before)))
        text = repr((text, self.over, self.forged, self.put_back_s is not None, self.rules, self.escaped))
        return with_named_ids(text)

    def _knows(self, process: Any) -> Any:
        starts = process.gate.starts
        return list(starts._spent.items()), list(starts._owned.items()), list(starts._taken.items())

    def _late(self, decision: ApprovalDecision, at_s: float) -> bool:
        expires_s = self.requests[decision.request_id].expires_s
        return expires_s is not None and at_s >= expires_s

    def _cleaned(self, values: Any) -> Any:
        """Values without what nobody looks at: times but those until an end, reasons, digests, the belief's numbers."""
        if isinstance(values, dict):
            found = {name: self._cleaned(value) for name, value in values.items() if name not in _UNSEEN}
            if isinstance(values.get("expires_s"), float):
                found["expires_s"] = round(values["expires_s"] - self.now_s)
            if values.get("signature") is not None:
                found["signature"] = signers(ApprovalDecision.model_validate(values))
            return found
        return [self._cleaned(one) for one in values] if isinstance(values, list) else values

    def authorities(self, ran: Ran) -> list[str]:
        """The requests that this may have been paid on, by what was said by then."""
        said = [one for one in self.said if one[1] <= ran.at_s]
        if self.put_back_s is not None:  # with what was said against it since then; what was said for it may come again
            said = [one for one in said if one[0].kind in ("approve", "edit") or one[1] > self.put_back_s]
        kinds = {one.kind for one, _, _ in said} if self.put_back_s is not None else {""}
        alike = [[one for one in said if one[0].kind in (kind, "reject", "respond") or not kind] for kind in kinds]
        return [
            one.id for one in self.requests.values() if ran.arguments in [let(one, few, self.required) for few in alike]
        ]

    def check(self) -> None:
        """What was paid, may have been: each time on another word, and again only where somebody was told so.

        Where processes do not share their starts, within each process; and what is asked after a state was put back, in
        which the call is not proposed yet, is a question of its own.
        """
        assert not self.escaped, f"an error escaped: {self.escaped}"
        anew = float("inf") if self.shared or self.put_back_s is None else self.put_back_s
        telling = {one.id for one in self.requests.values() if one.rule in TELLING or one.created_s >= anew}
        groups: dict[tuple[int, str], list[list[str]]] = {}
        for ran in self.ran:
            on = self.authorities(ran)
            assert on, "something was paid that nobody approved so"
            groups.setdefault((0 if self.shared else ran.process, ran.arguments), []).append(on)
        for several in groups.values():
            check_each_on_its_own(several, telling)

    async def ends(self) -> None:
        """Another process goes on, and answers to what it asks then bring the run to its end."""
        for _ in range(5):
            for who in (None, *("ann", "bob")[: self.required]):
                if self.over:
                    return
                said = [] if who is None else [self.word(one, "approve", who) for one in self.waiting]
                await self.goes_on(*said, slot=1)
                self.check()
        assert self.over, "it never ends"

    def word(
        self, request: ApprovalRequest, kind: str, who: str, *, key: str | None = None, arguments: Any = None
    ) -> ApprovalDecision:
        """What somebody says, as it is signed; it is told as said."""
        decision = request.decide(kind, principal=who, arguments=arguments, message="so")
        decision = decision.model_copy(update={"decided_s": 0.0})
        decision = KEYS[key or who].sign(decision)
        self.said.append((decision, self.now_s, key in (None, who)))
        return decision


_HELD = ("storage", "writes", "blobs")
TELLING = {one.rule for one in (UNKNOWN_OUTCOME, UNVOUCHED)}
_UNSEEN = frozenset(
    (
        "created_s",
        "decided_s",
        "reason",
        "confidence",
        "digest",
        "seal",
        "tag",
        "session",
        "timestamp",
        "state",
        "usage",
    )
)


# -- what can happen --------------------------------------------------------------------------------------------------

Happens = Callable[[Line], "Awaitable[bool]"]
"""Lets it happen; False where it cannot."""


def says(
    kind: str,
    who: str,
    *,
    slot: int = 0,
    ends: type[BaseException] | None = None,
    beside: bool = False,
    key: str | None = None,
) -> Happens:
    """Somebody decides on what waits, and a process goes on with it: that `ends` as it pays, or another goes on too."""

    async def happens(line: Line) -> bool:
        if not line.waiting:
            return False
        request, arguments = line.waiting[-1], None
        if kind == "edit":
            if request.call is None:  # an answer that waits
                return False
            arguments = {**request.call.arguments, "amount": 1}
        decision = line.word(request, kind, who, key=key, arguments=arguments)
        if ends is not None:
            line.as_it_pays = partial(_ends, ends)
        elif beside:
            line.as_it_pays = partial(_goes_on_beside, line, decision, 1 - slot)
        await line.goes_on(decision, slot=slot)
        reached, line.as_it_pays = line.as_it_pays is None, None
        return reached

    return happens


def _ends(error: type[BaseException]) -> None:
    raise error


def _goes_on_beside(line: Line, decision: ApprovalDecision, slot: int) -> None:
    """Another process goes on from the same state with the same decision while the first one pays."""
    kept = line.values, line.over
    if isinstance(line.processes[slot], Checkpointed):
        line.values = line.processes[slot].left()
    thread = threading.Thread(target=asyncio.run, args=(line.goes_on(decision, slot=slot),))
    thread.start()
    thread.join()
    line.values, line.over = kept


def goes_on(slot: int) -> Happens:
    async def happens(line: Line) -> bool:
        if line.over:
            return False
        await line.goes_on(slot=slot)
        return True

    return happens


async def comes_again(line: Line) -> bool:
    """What was first decided is decided once more, in the other process."""
    if not line.said or line.over:
        return False
    await line.goes_on(line.said[0][0], slot=1)
    return True


async def is_put_back(line: Line) -> bool:
    if not line.before:
        return False
    line.puts_back(line.before[0])
    return True


async def is_forged(line: Line) -> bool:
    """Somebody writes that the monitor cleared what waits: no seal holds."""
    if not line.waiting:
        return False
    written = {"phase": "cleared", "cleared_by": "monitor", "requests": [], "decisions": []}
    if isinstance(line.processes[0], Checkpointed):
        thread = checkpoint_attack.Thread.read(line.saver, "v")
        thread.call.update(written)
        line.holds(thread.written())
    else:
        held = line.processes[0].held(line.values)
        next(one for one in held["calls"] if one["phase"] == "waiting").update(written)
    line.forged = True
    return True


async def dies(line: Line) -> bool:
    line.processes[0] = line.process()
    return True


async def a_lifetime_passes(line: Line) -> bool:
    line.now_s += LIFETIME_S + 1.0
    return True


async def the_rules_change(line: Line) -> bool:
    """Processes of a release with other rules take over."""
    if line.rules != "rules":
        return False
    line.rules = "others"
    line.processes = [line.process(), line.process()]
    return True


EVENTS: dict[str, Happens] = {
    "ann approves": says("approve", "ann"),
    "ann approves elsewhere": says("approve", "ann", slot=1),
    "ann approves, and it dies once it paid": says("approve", "ann", ends=Died),
    "ann approves, and it is cut off once it paid": says("approve", "ann", ends=asyncio.CancelledError),
    "ann approves, and another goes on as it pays": says("approve", "ann", beside=True),
    "bob approves": says("approve", "bob"),
    "ann edits": says("edit", "ann"),
    "ann rejects": says("reject", "ann"),
    "bob responds elsewhere": says("respond", "bob", slot=1),
    "mal approves as ann": says("approve", "ann", key="mal"),
    "the first decision comes again elsewhere": comes_again,
    "it goes on": goes_on(0),
    "it goes on elsewhere": goes_on(1),
    "its process dies": dies,
    "its first state is put back": is_put_back,
    "its phase is forged": is_forged,
    "a lifetime passes": a_lifetime_passes,
    "the rules change": the_rules_change,
}


# -- the search -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """What a way leads to: what is wrong there, or when another process brings the run to its end."""

    framework: str
    required: int
    shared: bool
    way: tuple[str, ...] = ()
    like: str = ""
    wrong: str = ""

    def likeness(self) -> str:
        return self.like


def gone(world: World) -> World | None:
    """The world once its way was gone, from its beginning; None where something on it cannot happen."""
    line = Line.now = Line(world.framework, world.required, shared=world.shared)

    async def go() -> World | None:
        await line.begins()
        for name in world.way:
            line.now_s += 0.001
            if not await EVENTS[name](line):
                return None
        like, wrong = line.likeness(), ""
        try:
            line.check()
            await line.ends()
        except AssertionError as error:
            wrong = str(error)
        return replace(world, like=like, wrong=wrong)

    return asyncio.run(go())


def one_more(name: str) -> Callable[[World], World | None]:
    return lambda world: gone(replace(world, way=(*world.way, name)))


def check(world: World) -> None:
    assert not world.wrong, world.wrong


def begun(framework: str, required: int = 1, *, shared: bool = False) -> World:
    world = gone(World(framework, required, shared))
    assert world is not None
    return world


ALL = {name: one_more(name) for name in EVENTS}
FEW = {
    name: ALL[name]
    for name in (
        "ann approves",
        "ann approves, and it dies once it paid",
        "ann approves, and it is cut off once it paid",
        "ann approves, and another goes on as it pays",
        "ann rejects",
        "it goes on elsewhere",
        "its first state is put back",
        "its phase is forged",
    )
}


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every clock stands still while an event happens, and ids are counted."""
    monkeypatch.setattr(time, "time", lambda: Line.now.now_s)
    monkeypatch.setattr(uuid, "uuid4", lambda: Line.now.uuid4())


@sampled(
    "framework,required,shared,most",
    [(framework, 1, True, 1) for framework in ("LangGraph", "OpenAI Agents SDK")],  # one of each family of hosts
    full=[(*one, 2) for one in itertools.product(FRAMEWORKS, (1, 2), (False, True))],
)
def test_in_no_order_of_events_is_anything_paid_that_nobody_approved_so_or_lost(framework, required, shared, most):
    world = begun(framework, required, shared=shared)
    every = {name: cache(event) for name, event in ALL.items()}
    assert searched(world, most, every, check).total() > 9
    assert searched(world, most + 1, {name: every[name] for name in FEW}, check).total() > 20


@sampled("framework", ["pydantic-ai"], full=["LangGraph", "pydantic-ai"])
def test_worlds_that_count_as_one_have_one_future(framework):
    assert differing(begun(framework, shared=True), 1, FEW, check) == []


# -- sabotage: each rule that is taken out is missed ------------------------------------------------------------------


BACK = ("ann approves", "its first state is put back")
PASSED = ("a lifetime passes",)


async def _by_all(self: StoredStarts, by: str, owner: str) -> bool:
    return True


def _nothing(*given: Any) -> list[Any]:
    return []


def _without_new_ones(self: HeldCalls) -> tuple[ApprovalRequest, ...]:
    return tuple(request for record in self.records.values() if record.waiting for request in record.requests)


SABOTAGE: dict[str, tuple[tuple[str, int, bool], tuple[str, ...], Any, str, Any]] = {
    "what others wrote is believed": (("LangGraph", 1, False), (), CarriedStates, "believes", lambda *given: True),
    "what others wrote travels": (("pydantic-ai", 1, False), (), Gate, "authentic", lambda *given: True),
    "starts are not shared by checkpoints": (("LangGraph", 1, True), (), StoredStarts, "take", _by_all),
    "nor by histories": (("pydantic-ai", 1, True), (), StoredStarts, "take", _by_all),
    "nor by states": (("OpenAI Agents SDK", 1, True), (), StoredStarts, "take", _by_all),
    "the first of two approvals is forgotten": (
        ("pydantic-ai", 2, False),
        (),
        carried_calls,
        "write_arrived",
        _nothing,
    ),
    "and in a checkpoint": (("LangGraph", 2, False), (), judged_turns, "write_arrived", _nothing),
    "what expired is not asked anew": (
        ("LangChain", 1, False),
        PASSED,
        Gate,
        "renewed",
        lambda self, record, terms: record,
    ),
    "nor in a text": (("OpenAI Agents SDK", 1, False), PASSED, HeldCalls, "requests", _without_new_ones),
    "an approval is used again": (("pydantic-ai", 1, False), BACK, CallStarts, "spend", lambda *given: True),
}


@sampled("what", [*SABOTAGE][::4], full=[*SABOTAGE])
def test_without_any_one_of_the_rules_an_order_is_found_in_which_something_is_wrong(what, monkeypatch):
    (framework, required, shared), way, where, rule, instead = SABOTAGE[what]
    world = gone(World(framework, required, shared, way))
    assert world is not None
    monkeypatch.setattr(where, rule, instead)
    with pytest.raises(AssertionError):
        searched(world, 2, FEW, check)
