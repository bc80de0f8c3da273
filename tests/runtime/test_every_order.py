"""Every order of what can happen to the irreversible calls of a run, through `AgentRunner`, up to a number of events.

Workers go on with the run, die at any of their writes, or lose it while they stand still; people decide, one without a
key; time passes, the rules change, grants come and go, the run is stopped or rolled back, and somebody writes the
store. The truth is kept beside the store: who said what of which call, and what the tool saw.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import pytest

from grampus_uq import AgentDefinition, AgentRunner, FunctionTools, Grant, UncertaintyMonitor, UncertaintyPolicy, tool
from grampus_uq.errors import ApprovalError, ConfigurationError, SessionError
from grampus_uq.gate.call import REPEATED, UNKNOWN_OUTCOME, UNVOUCHED, CallPhase, CallRecord, cleared
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.permits import Permit
from grampus_uq.gate.requests import ApprovalDecision, ApprovalPolicy, ApprovalRequest, rules_digest
from grampus_uq.gate.seal import Seal
from grampus_uq.records.values import Message, ToolCall, canonical_json, sha256_of
from grampus_uq.records.vocabulary import ENDED
from grampus_uq.runtime import MemoryStore, StoredStarts
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.rollback import rollback
from grampus_uq.runtime.run_state import REPLACED
from grampus_uq.runtime.session_lease import SessionLease
from grampus_uq.runtime.standing_grants import revoke_grant
from grampus_uq.runtime.stopping import order_stop
from grampus_uq.runtime.store import Append, Document, Drop, Put, SessionStore
from grampus_uq.runtime.stored_permits import close_permit, grant_permit
from grampus_uq.runtime.stores.sqlite import SQLiteStore
from grampus_uq.runtime.transcript import Transcript, replayed
from grampus_uq.runtime.turn import Turn
from grampus_uq.testing import answer
from tests.every_order import (
    BOOKKEEPING,
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
from tests.runtime.agents import results_by_call, scripted
from tests.sampling import sampled

AGENT, SESSION, AUDIT = AgentDefinition(name="clerk", model="m"), "clerk/s", "audit/clerk/s"
PAYS = tuple(ToolCall(id=f"c{n}", name="pay", arguments={"to": to, "amount": 5}) for n, to in enumerate("AB"))
LESS, MORE = {"to": "A", "amount": 1}, {"to": "M", "amount": 99_999}
PERMIT = "abcdef00"
LEASE_S, LIFETIME_S = 30.0, 600.0
RULES = {
    "rules": UncertaintyPolicy(irreversible_tool_names=["pay"], enable_p_true=False),
    "others": UncertaintyPolicy(irreversible_tool_names=["pay"], enable_p_true=False, low_threshold=0.79),
}
MONITORS = {name: UncertaintyMonitor(policy=policy) for name, policy in RULES.items()}
MODELS = {n: scripted([answer('I pay. {"confidence": 0.9}', tool_calls=PAYS[:n]), answer("Done.")]) for n in (1, 2)}
_HASH = re.compile("[0-9a-f]{64}")


@cache
def approvals(required: int) -> ApprovalPolicy:
    seal = Seal(b"a key that only the workers hold")
    return ApprovalPolicy(
        signer=OwnKeys(), approvers={"ann", "bob"}, required=required, expires_s=LIFETIME_S, seal=seal
    )


@cache
def digest(required: int, rules: str) -> str:
    return rules_digest(approvals(required), RULES[rules].model_dump(mode="json"))


@dataclass(frozen=True)
class Memory:
    """What a process knows beside its stores: what it started."""

    number: int
    spent: tuple[tuple[str, bool], ...] = ()
    owned: tuple[tuple[str, str], ...] = ()
    taken: tuple[tuple[tuple[str, str], bool], ...] = ()


@dataclass(frozen=True)
class Ran:
    """What the tool saw: the call and its key, when, in which process, under which rules, behind which audit entry.

    `held`: the worker that announced it wrote the session last.
    """

    call: str
    arguments: str
    key: str
    at_s: float
    process: int
    rules: str
    behind: int
    held: bool


@dataclass(frozen=True)
class World:
    """A run as its store has it, what its processes know, and the truth. Its stores are never written: `Life` copies.

    `before`: the stores of earlier moments. `stood`: from when on ann's grant or permit stood, and until when, if she
    gave one. `stopped`: when the run was ordered to stop, and not rolled back since.
    """

    calls: int
    required: int
    shared: bool
    store: MemoryStore
    starts: MemoryStore
    rules: str = "rules"
    now_s: float = 1_000.0
    ids: int = 0
    processes: tuple[Memory, Memory] = (Memory(0), Memory(1))
    before: tuple[MemoryStore, ...] = ()
    requests: tuple[ApprovalRequest, ...] = ()
    said: tuple[Said, ...] = ()
    stood: tuple[float, float] | None = None
    stopped: float | None = None
    ran: tuple[Ran, ...] = ()
    put_back: bool = False
    outcome: str = ""

    @property
    def state(self) -> Mapping[str, Any] | None:
        """The stored session."""
        found = self.store._documents.get(("session", SESSION))
        return None if found is None else _json(found.body)

    @property
    def waiting(self) -> list[ApprovalRequest]:
        state = self.state or {"turn": [], "review": []}
        on_calls = [request for one in state["turn"] if one["phase"] == "waiting" for request in one["requests"]]
        ids = [one["id"] for one in (*state["review"], *on_calls)]
        return [one for one in self.requests if one.id in ids]

    @property
    def audit(self) -> list[Mapping[str, Any]]:
        return [_json(entry) for entry in self.store._logs.get(AUDIT, ())]

    @property
    def leased(self) -> bool:
        found = self.store._documents.get(("session", SESSION))
        return found is not None and found.label == "running" and found.written_s + LEASE_S > self.now_s

    def likeness(self) -> str:
        """All that the stores, the processes and the truth hold; ids in the order of their making, times from now on.

        Without what nobody looks at: names of workers, counts of saves, the wording of reasons and pauses, entries of
        the audit that are on no execution, and the rows that wake a worker.
        """
        now_s, kinds = self.now_s, dict[str, list[Document]]()
        for one in self.store._documents.values():
            kinds.setdefault(one.kind, []).append(one)
        arrived = sorted(kinds.get("decision", ()), key=lambda one: one.written_s)
        values = (
            [_shown(one, now_s) for one in (self.store, *self.before)],
            (self.leased, self.rules, self.put_back, self.outcome.startswith("!")),
            [(_decision(_json(one.body)["decision"]), one.key[:32]) for one in arrived],
            [(one.key, _json(one.body).get("uses")) for one in kinds.get("grant", ())],
            [(one.key, _json(one.body)["closed"]) for one in kinds.get("permit", ())],
            [{**_json(one.body), "revision": 0, "seal": ""} for one in kinds.get("permit-state", ())],
            sorted((one.key, one.version) for one in kinds.get("stop", ())),
            sorted(one.key for kind in ("checkpoint", "branch") for one in kinds.get(kind, ())),
            sorted((one.key, one.body) for one in self.starts._documents.values()),
            [(one.spent, one.owned, one.taken) for one in self.processes],
            [_request(one.model_dump(mode="json"), now_s) for one in self.requests],
            [(_decision(one.model_dump(mode="json")), own, self._late(one, at_s)) for one, at_s, own in self.said],
            self.stood and self.stood[1] > now_s,
            self.stopped is not None,
            [(authorities(self, one), one.call, one.arguments, self._slot(one.process), one.held) for one in self.ran],
            [(what, key) for what, key in history(self)],
        )
        hashed = _readable(self)
        return with_named_ids(_HASH.sub(lambda found: hashed.get(found[0], found[0]), repr(values)))

    def _late(self, decision: ApprovalDecision, at_s: float) -> bool:
        expires_s = next(one.expires_s for one in self.requests if one.id == decision.request_id)
        return expires_s is not None and at_s >= expires_s

    def _slot(self, process: int) -> int:
        return next((slot for slot, one in enumerate(self.processes) if one.number == process), -1)


_json = lru_cache(maxsize=20_000)(json.loads)
_UNSEEN = BOOKKEEPING | {"turn", "review", "metadata"}


def _shown(store: MemoryStore, now_s: float) -> Any:
    """A stored session: what decides what becomes of it."""
    found = store._documents.get(("session", SESSION))
    if found is None:
        return None
    state = _json(found.body)
    metadata = {name: value for name, value in state["metadata"].items() if name not in ("begun_with", REPLACED)}
    turn, replaced = (
        [
            {
                **one,
                "requests": [_request(request, now_s) for request in one["requests"]],
                "decisions": [_decision(decision) for decision in one["decisions"]],
            }
            for one in records
        ]
        for records in (state["turn"], state["metadata"].get(REPLACED, ()))
    )
    review = [_request(one, now_s) for one in state["review"]]
    spoken = [(one.role.value, one.content, one.tool_call_id) for one in _messages(store) if one.role != "system"]
    seen = {name: value for name, value in state.items() if name not in _UNSEEN}
    return seen, turn, replaced, review, metadata, spoken, "seal" in state


def _messages(store: MemoryStore) -> list[Message]:
    transcript = Transcript.model_validate(_json(store._documents["session", SESSION].body)["transcript"])
    return replayed(transcript, store._logs[transcript.log])


def _request(request: Mapping[str, Any], now_s: float) -> Any:
    left_s = None if request["expires_s"] is None else round(request["expires_s"] - now_s)
    unseen = ("created_s", "expires_s", "reason", "confidence")
    return left_s, {name: value for name, value in request.items() if name not in unseen}


def _decision(decision: Mapping[str, Any]) -> Any:
    """A decision, and by whose key it is signed."""
    return _signed_by(canonical_json(decision)), {
        name: value for name, value in decision.items() if name not in ("signature", "decided_s", "digest")
    }


@lru_cache(maxsize=20_000)
def _signed_by(decision: str) -> list[str]:
    return signers(ApprovalDecision.model_validate_json(decision))


def _readable(world: World) -> dict[str, str]:
    """What the hashes in a world are of."""
    runs = {one.run_id for one in world.requests} | {one["data"].get("run_id", "") for one in world.audit}
    runs |= {world.state["run_id"]} if world.state else set()
    found = {sha256_of(one.id): f"start({one.id})" for one in world.requests}
    for run, call, arguments in itertools.product(runs, PAYS, (None, LESS)):
        record = CallRecord(proposed=call, call=call if arguments is None else _with(call, arguments), step_id="llm_0")
        found[record.key(run)] = f"key({run}, {record.call})"
        start = canonical_json(["clerk", "s", run, "llm_0", call.id, call.canonical()])
        found[sha256_of(start)] = f"start({run}, {call.id})"
    return found


def _with(call: ToolCall, arguments: Mapping[str, Any]) -> ToolCall:
    return call.model_copy(update={"arguments": dict(arguments)})


# -- what must hold ---------------------------------------------------------------------------------------------------


def authorities(world: World, ran: Ran) -> list[str]:
    """The requests that this call may have run on, and the grant: under the rules of then, by what was said by then."""
    said = [one for one in world.said if one[1] <= ran.at_s]
    found = list[str]()
    for one in world.requests:
        meant = None if one.rules != digest(world.required, ran.rules) else let(one, said, world.required)
        if meant == ran.arguments and one.call is not None and _key(one, json.loads(meant)) == ran.key:
            found.append(one.id)
    if world.stood is not None and world.stood[0] <= ran.at_s < world.stood[1] and world.required == 1:
        found += ["grant"] if ran.arguments in {canonical_json(call.arguments) for call in PAYS} else []
    return found


def _key(request: ApprovalRequest, arguments: dict[str, Any]) -> str:
    assert request.call is not None
    record = CallRecord(
        proposed=request.call, call=_with(request.call, arguments), step_id=request.step_id
    )  # fmt: skip
    return record.key(request.run_id)


def history(world: World) -> list[tuple[str, str]]:
    """What the audit says of executions and what the tool saw, in order, each with the key of its call."""
    entries = [(one["what"], one["data"].get("idempotency_key", "")) for one in world.audit]
    found = [(position, what, key) for position, (what, key) in enumerate(entries) if what.startswith("execution_")]
    found += [(one.behind - 0.5, "ran", one.key) for one in world.ran]
    return [(what, key) for _, what, key in sorted(found, key=lambda one: one[0])]


TELLING = {one.rule for one in (UNKNOWN_OUTCOME, REPEATED, UNVOUCHED)}
"""The rules of requests that say that the call may have run."""


def check(world: World) -> None:
    """What ran, may have: each time on another word, and again only on a word of somebody who was told so. Where an
    earlier state came back and processes do not share their starts, within each process. The audit says what ran."""
    telling = {one.id for one in world.requests if one.rule in TELLING}
    groups: dict[tuple[int, str, str], list[list[str]]] = {}
    for ran in world.ran:
        on = authorities(world, ran)
        assert on, "something ran that nobody approved so"
        assert world.stopped is None or ran.at_s < world.stopped, "it ran after it was ordered to stop"
        process = ran.process if world.put_back and not world.shared else 0
        groups.setdefault((process, ran.call, ran.arguments), []).append(on)
    for several in groups.values():
        check_each_on_its_own(several, telling)
    last: dict[str, str] = {}
    for what, key in history(world):
        before, last[key] = last.get(key), what
        if what == "ran":
            assert before == "execution_started", "it ran, and the audit does not say that it starts"
        elif what == "execution_finished":
            assert before == "ran", "the audit has an end of what did not run"
        elif what == "execution_withdrawn":
            assert before == "execution_started", "the audit has withdrawn what did not start, or ran"
    assert all(one.held for one in world.ran), "a worker that had lost the session let it run"
    assert not world.outcome.startswith("!"), f"an error escaped: {world.outcome}"


# -- what can happen --------------------------------------------------------------------------------------------------


class Died(BaseException):
    """The process is gone: nothing of it may do anything any more."""


class Life:
    """A world that an event is happening to: copies of its stores, and the processes at work."""

    now: Life  # the one that the tool acts in
    opened: Callable[[MemoryStore], SessionStore]  # the store that workers have: one with this content
    loops: tuple[asyncio.AbstractEventLoop, asyncio.AbstractEventLoop]

    def __init__(self, world: World) -> None:
        Life.now, self.now_s, self.ids = self, world.now_s + 0.001, world.ids
        self.world, self.store, self.starts = world, Life.opened(world.store), copied(world.starts)
        self.ran, self.memories, self.outcome = list(world.ran), list(world.processes), ""
        self.stood, self.stopped = world.stood, world.stopped
        self.at: dict[str, Callable[[], object]] = {}
        self.left: tuple[MemoryStore, MemoryStore, list[Ran]] | None = None
        self.slot = 0

    def uuid4(self) -> uuid.UUID:
        self.ids += 1
        return uuid.UUID(int=self.ids, version=4)

    async def pays(self, call: str, arguments: str, key: str) -> str:
        self.reaches("in the tool")
        store = copied(self.store)
        audit = [_json(entry) for entry in store._logs.get(AUDIT, ())]
        announced = [one["data"] for one in audit if one["what"] == "execution_started"]
        by = [one["worker"] for one in announced if one["idempotency_key"] == key]
        held = by[-1:] == [_json(store._documents["session", SESSION].body)["worker"]]
        process = self.memories[self.slot].number
        self.ran.append(Ran(call, arguments, key, self.now_s, process, self.world.rules, len(audit), held))
        self.reaches("the tool ran")
        return "paid"

    def reaches(self, point: str) -> None:
        if self.left is not None:
            raise Died
        happens = self.at.pop(point, None)
        if happens is not None:
            self.now_s += 0.001
            happens()

    def dies(self) -> None:
        self.left = copied(self.store), copied(self.starts), [*self.ran]
        raise Died

    def loses(self) -> None:
        """It stands still until its lease is over, and another process goes on."""
        self.now_s += LEASE_S + 1.0
        self.is_late()

    def is_late(self) -> None:
        """It stands still, and another process goes on."""
        slot, self.slot = self.slot, 1 - self.slot
        aside(lambda: self.does(goes_on, {}))
        self.slot = slot

    def is_stopped(self) -> None:
        aside(lambda: done(order_stop(Ledger(self.store), "clerk", "s")))
        self.stopped = self.stopped or self.now_s

    def is_revoked(self) -> None:
        """What stands is taken back, if anything does."""
        if self.stood is not None and self.stood[1] > self.now_s:
            granted = ("grant", "grant by ann") in copied(self.store)._documents
            ended = revoke_grant if granted else close_permit
            aside(lambda: done(ended(self.store, "grant by ann" if granted else PERMIT, "ann")))
            self.stood = self.stood[0], self.now_s

    def runner(self, at: Mapping[str, Callable[[], object]]) -> AgentRunner:
        memory, world = self.memories[self.slot], self.world
        starts = StoredStarts(self.starts) if world.shared else None
        one = AgentRunner(
            MODELS[world.calls], TOOLS, uncertainty_monitor=MONITORS[world.rules], store=Watched(self, at),
            approvals=approvals(world.required), checkpoints=True, lease_s=LEASE_S, starts=starts,
        )  # fmt: skip
        one.gate.permits._draw = lambda: 0.99  # no permit lets a call wait to audit it
        for known, values in ((one.gate.starts._spent, memory.spent), (one.gate.starts._owned, memory.owned),
                              (one.gate.starts._taken, memory.taken)):  # fmt: skip
            known.update(values)
        return one

    def does(self, work: Callable[[AgentRunner], Awaitable[object]], at: Mapping[str, Callable[[], object]]) -> Any:
        """Let the process at work do this, in a loop of its own; what happens `at` a point happens in between."""
        slot, kept, self.at = self.slot, self.at, dict(at)
        one, result = self.runner(at), None
        try:
            result = done(work(one))
        except (ApprovalError, SessionError, ConfigurationError) as error:
            self.outcome = type(error).__name__
        except BaseException as error:  # noqa: BLE001 (an error that nobody was told to expect, or the end of a process)
            if self.left is None:
                self.outcome = f"!{error!r}"
        self.at = {**kept, **self.at}
        starts = one.gate.starts
        spent, owned, taken = starts._spent.items(), starts._owned.items(), starts._taken.items()
        self.memories[slot] = Memory(self.memories[slot].number, tuple(spent), tuple(owned), tuple(taken))
        return result

    def world_after(self, **changes: Any) -> World:
        store, starts, ran = self.left or (copied(self.store), self.starts, self.ran)
        done(self.store.aclose())
        world = self.world
        if self.left is not None:
            self.memories[self.slot] = Memory(1 + max(one.number for one in self.memories))
        after = replace(
            world, store=store, starts=starts, ran=tuple(ran), now_s=self.now_s, ids=self.ids, outcome=self.outcome,
            processes=(self.memories[0], self.memories[1]), **{"stood": self.stood, "stopped": self.stopped, **changes},
        )  # fmt: skip
        state, known = after.state, {one.id for one in world.requests}
        if state is not None and state != world.state:
            asked = [*state["review"], *(request for one in state["turn"] for request in one["requests"])]
            new = [ApprovalRequest.model_validate(one) for one in asked if one["id"] not in known]
            before = world.before if world.state is None else ((world.before or (world.store,))[0], world.store)
            after = replace(after, requests=(*world.requests, *new), before=before)
        return after


async def goes_on(one: AgentRunner) -> object:
    """What a worker does that finds the session in the queue: it begins it, or goes on with it."""
    begun = await one.ledger.load("clerk", "s")
    return await (one.run(AGENT, "pay", session_id="s") if begun is None else one.resume("clerk", "s"))


class Watched(SessionStore):
    """The store of a process at work, which may die at each of its writes, or stand still."""

    def __init__(self, life: Life, at: Mapping[str, object]) -> None:
        self._life, self._writes, self._points = life, 0, bool(at)
        self._inner = life.store

    async def now(self) -> float:
        return await self._inner.now()

    async def read(self, log: str, **given: Any) -> Any:
        return await self._inner.read(log, **given)

    async def get(self, kind: str, key: str) -> Any:
        self._here("")
        return await self._inner.get(kind, key)

    async def scan(self, kind: str, **given: Any) -> Any:
        self._here("")
        return await self._inner.scan(kind, **given)

    async def write(self, *changes: Any) -> float:
        announces = any(isinstance(one, Append) and "execution_started" in one.bodies[0] for one in changes)
        self._here("announcing" if announces else "" if self._writes else "taking it up")
        written = await self._inner.write(*changes)
        self._writes += 1
        self._here("announced" if announces else f"write {self._writes}")
        return written

    def _here(self, point: str) -> None:
        if self._points:
            self._life.reaches(point)

    async def aclose(self) -> None:
        pass


def copied(store: Any) -> MemoryStore:
    """What a store holds now."""
    copy = MemoryStore()
    if isinstance(store, SQLiteStore):
        with closing(sqlite3.connect(store.path)) as file:
            for row in file.execute("SELECT kind, key, version, label, body, written_s FROM documents"):
                one = Document(**dict(zip(("kind", "key", "version", "label", "body", "written_s"), row, strict=True)))
                copy._documents[one.kind, one.key] = one
                for label in (one.label, None):
                    copy._by_label.setdefault((one.kind, label), {})[one.key] = None
            for log, body in file.execute("SELECT log, body FROM logs ORDER BY log, position"):
                copy._logs.setdefault(log, []).append(body)
        return copy
    copy._documents, copy._latest = dict(store._documents), store._latest
    copy._by_label = {label: dict(keys) for label, keys in store._by_label.items()}
    copy._logs = {log: list(entries) for log, entries in store._logs.items()}
    return copy


def in_file(path: Path, store: MemoryStore) -> SQLiteStore:
    """A SQLite file with this content."""
    one = SQLiteStore(path)
    done(one.now())
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        for d in store._documents.values():
            row = (d.kind, d.key, d.version, d.label, d.body, d.written_s)
            file.execute("INSERT INTO documents (kind, key, version, label, body, written_s) VALUES (?,?,?,?,?,?)", row)
        for log, entries in store._logs.items():
            file.executemany("INSERT INTO logs VALUES (?, ?, ?)", [(log, n, body) for n, body in enumerate(entries)])
    return one


@tool(effect="irreversible")
async def pay(to: str, amount: int, idempotency_key: str = "") -> str:
    """Pay."""
    call = next((one.id for one in PAYS if one.arguments["to"] == to), "")
    return await Life.now.pays(call, canonical_json({"to": to, "amount": amount}), idempotency_key)


TOOLS = FunctionTools(pay)
Event = Callable[[World], "World | None"]


def works(
    work: Callable[[AgentRunner], Awaitable[object]] = goes_on, slot: int = 0, **at: Callable[[Life], object]
) -> Event:
    """A process does this; what happens `at` a point of its work (in words with underscores) happens there."""

    def happens(world: World) -> World | None:
        life = Life(world)
        life.slot = slot
        life.does(work, {point.replace("_", " "): lambda what=what: what(life) for point, what in at.items()})
        return None if life.at else life.world_after()

    return happens


def written(world: World, *changes: Any, **more: Any) -> World:
    """The world once somebody has written its store."""
    life = Life(world)
    done(life.store.write(*changes))
    return life.world_after(**more)


def done(work: Awaitable[Any]) -> Any:
    """The result of work, in the loop of this thread."""
    return Life.loops[threading.current_thread() is threading.main_thread()].run_until_complete(work)


def aside(work: Callable[[], object]) -> None:
    """Let another process work while the one that is at work stands still."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def says(
    kind: str, who: str, *, key: str | None, arguments: dict[str, Any] | None = None, on: int = 0, stale: bool = False,
    at_once: bool = False,
) -> Event:  # fmt: skip
    """A decision arrives, on what waits or (`stale`) on the first request ever; `at_once` as a worker goes on."""

    def happens(world: World) -> World | None:
        asked = [one for one in world.requests if one.call in (PAYS[on], None)]
        asked = [one for one in asked if stale or one in world.waiting]
        if not asked or (stale and (len(asked) < 2 or not world.waiting)):
            return None
        decision = asked[0 if stale else -1].decide(kind, principal=who, arguments=arguments, message="so")
        decision = decision.model_copy(update={"decided_s": 0.0})
        decision = decision if key is None else KEYS[key].sign(decision)
        if decision in [one for one, _, _ in world.said]:
            return None
        life = Life(world)
        if at_once:
            life.does(lambda one: one.resume("clerk", "s", decision), {})
        else:
            done(Ledger(life.store).decide(decision))
        said = () if life.outcome else ((decision, life.now_s, key == who),)
        return life.world_after(said=(*world.said, *said))

    return happens


def replayed_approval(world: World) -> World | None:
    """Somebody puts what ann signed of an earlier request under the one that waits."""
    told = [one for one, _, _ in world.said if one.principal == "ann" and one.kind == "approve"]
    if not world.waiting or not told or told[0].request_id == world.waiting[-1].id:
        return None
    now = world.waiting[-1]
    again = told[0].model_copy(update={"request_id": now.id, "digest": now.digest()})
    if again in [one for one, _, _ in world.said]:
        return None
    life = Life(world)
    done(Ledger(life.store).decide(again))
    return life.world_after(said=(*world.said, (again, life.now_s, False)))


def grants(key: str) -> Event:
    """A grant in ann's name."""

    def happens(world: World) -> World | None:
        name = f"grant by {key}"
        if world.stood or ("grant", name) in world.store._documents:
            return None
        life = Life(world)
        grant = Grant(
            id=name, tool="pay", principal="ann", created_s=0.0, expires_s=life.now_s + LIFETIME_S,
            limits={"amount": {"max": 50}},
        )  # fmt: skip
        done(Ledger(life.store).grant(KEYS[key].sign(grant)))
        return life.world_after(stood=(life.now_s, grant.expires_s) if key == "ann" else None)

    return happens


def is_revoked(world: World) -> World | None:
    life = Life(world)
    life.is_revoked()
    return life.world_after() if life.stood != world.stood else None


def is_stopped(world: World) -> World | None:
    if world.state is None:
        return None
    life = Life(world)
    life.is_stopped()
    return life.world_after()


def is_rolled_back(world: World) -> World | None:
    """Orders given before are for the branch that is gone."""
    after = works(lambda one: rollback(one, "clerk", "s", 0))(world)
    return after and (after if after.outcome else replace(after, stopped=None))


def passes(seconds: float) -> Event:
    return lambda world: replace(world, now_s=world.now_s + seconds, outcome="")


def rules_change(world: World) -> World | None:
    return replace(world, rules="others", outcome="") if world.rules == "rules" else None


def put_back(which: int) -> Event:
    """Whoever can write the store puts an earlier state of the session back, with its transcript: its seal holds."""

    def happens(world: World) -> World | None:
        if not world.before:
            return None
        old = world.before[which]
        found, now = (one._documents["session", SESSION] for one in (old, world.store))
        log = _json(found.body)["transcript"]["log"]
        back = Put(kind="session", key=SESSION, body=found.body, expected=now.version, label=found.label)
        life = Life(world)
        done(life.store.write(back, Drop(log=log)))
        done(life.store.write(Append(log=log, bodies=tuple(old._logs[log]), expected=0)))
        return life.world_after(put_back=True)

    return happens


def forged(**changes: Any) -> Event:
    """Whoever can write the store writes the record of the first call: no seal holds."""

    def happens(world: World) -> World | None:
        state = world.state
        if state is None or not state["turn"]:
            return None
        now = world.store._documents["session", SESSION]
        turn = [{**state["turn"][0], **changes}, *state["turn"][1:]]
        body = json.dumps({**state, "turn": turn}, separators=(",", ":"))
        return written(world, Put(kind="session", key=SESSION, body=body, expected=now.version, label=now.label))

    return happens


EVENTS: dict[str, Event] = {
    "it goes on": works(),
    "it goes on elsewhere": works(slot=1),
    "it dies as it takes it up": works(write_1=Life.dies),
    "it dies at its second write": works(write_2=Life.dies),
    "it dies at its third write": works(write_3=Life.dies),
    "it dies as it announces": works(announcing=Life.dies),
    "it dies once it announced": works(announced=Life.dies),
    "it dies before the tool acts": works(in_the_tool=Life.dies),
    "it dies once the tool ran": works(the_tool_ran=Life.dies),
    "another is faster": works(taking_it_up=Life.is_late),
    "it stands still as it announces": works(announcing=Life.loses),
    "it stands still once it announced": works(announced=Life.loses),
    "it stands still once the tool ran": works(the_tool_ran=Life.loses),
    "ann approves": says("approve", "ann", key="ann"),
    "ann approves as it goes on": says("approve", "ann", key="ann", at_once=True),
    "bob approves": says("approve", "bob", key="bob"),
    "ann edits": says("edit", "ann", key="ann", arguments=LESS),
    "ann rejects": says("reject", "ann", key="ann"),
    "bob responds": says("respond", "bob", key="bob"),
    "ann approves the other call": says("approve", "ann", key="ann", on=1),
    "ann rejects the other call": says("reject", "ann", key="ann", on=1),
    "ann approves the first request": says("approve", "ann", key="ann", stale=True),
    "mal approves as ann": says("approve", "ann", key="mal"),
    "mal edits as ann, unsigned": says("edit", "ann", key=None, arguments=LESS),
    "an approval is put under another request": replayed_approval,
    "guidance": works(lambda one: one.resume("clerk", "s", "wait")),
    "it is rolled back": is_rolled_back,
    "it is to stop": is_stopped,
    "it is to stop as it announces": works(announcing=Life.is_stopped),
    "a lease passes": passes(LEASE_S + 1.0),
    "a lifetime passes": passes(LIFETIME_S + 1.0),
    "the rules change": rules_change,
    "ann grants": grants("ann"),
    "mal grants as ann": grants("mal"),
    "the grant is revoked": is_revoked,
    "the grant is revoked as it announces": works(announcing=Life.is_revoked),
    "the grant is revoked once it announced": works(announced=Life.is_revoked),
    "its first state is put back": put_back(0),
    "its last state is put back": put_back(-1),
    "its phase is forged": forged(phase="cleared", cleared_by="monitor", requests=[], decisions=[]),
    "it is forged as a read that began": forged(phase="started", effect="read", cleared_by="monitor"),
}


# -- nothing is lost --------------------------------------------------------------------------------------------------


def check_end(world: World) -> None:
    """Whatever happened, another process can go on with the run once its lease is over, and answers bring it to its
    end: what was approved and may run runs or is asked about, and every call has its one result."""
    if world.state is not None and world.state["status"] in ENDED:
        return
    before, left_s = world, LEASE_S + 1.0 if world.leased else 0.0
    world = replace(world, now_s=world.now_s + left_s, outcome="")
    approved = {one.call for one in world.waiting if _holds(world, one)}
    for _ in range(8):
        after = works(slot=1)(world)
        assert after is not None
        assert not after.outcome, f"nobody can go on with it: {after.outcome}"
        check(after)
        ran, asked = {one.call for one in after.ran[len(before.ran):]}, {one.call for one in after.waiting}  # fmt: skip
        assert after.state is not None
        if after.state["status"] in ENDED:
            break
        lost = {one.id for one in approved - asked if one is not None} - ran
        assert not lost, "it was approved, and nobody hears of it any more"
        assert after.waiting, "it waits for nobody"
        world, approved = after, set()
        for one, who in itertools.product(after.waiting, ("ann", "bob")):
            decision = KEYS[who].sign(one.decide("approve", principal=who).model_copy(update={"decided_s": 1.0}))
            life = Life(world)
            done(Ledger(life.store).decide(decision))
            world = life.world_after(said=(*world.said, (decision, life.now_s, True)))
    else:
        raise AssertionError("it never ends")
    messages = _messages(after.store)
    once = not after.state["vouched"] or set(results_by_call(messages).values()) <= {1}  # or somebody wrote it
    assert once, "a call has several results, or none"
    assert not any(one.metadata.get("placeholder") for one in messages), "a run ends, and a call of it waits"


def check_all(world: World) -> None:
    check(world)
    check_end(world)


def _holds(world: World, request: ApprovalRequest) -> bool:
    """True where enough people approved what a request asks, and nothing speaks against carrying it out."""
    state = world.state or {}
    return (
        let(request, world.said, world.required) is not None
        and request.rules == digest(world.required, world.rules)
        and request.run_id == state["run_id"]
        and world.stopped is None
    )


# -- the search -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every clock stands still while an event happens, and ids are counted."""
    Life.loops = asyncio.SelectorEventLoop(), asyncio.SelectorEventLoop()
    monkeypatch.setattr(Life, "opened", staticmethod(copied), raising=False)
    Life.now = Life(fresh())
    monkeypatch.setattr(time, "time", lambda: Life.now.now_s)
    monkeypatch.setattr(time, "monotonic", lambda: Life.now.now_s)
    monkeypatch.setattr(uuid, "uuid4", lambda: Life.now.uuid4())
    yield
    for loop in Life.loops:
        loop.close()


def fresh(calls: int = 1, required: int = 1, *, shared: bool = False) -> World:
    """A run that did not begin."""
    return World(calls, required, shared, MemoryStore(), MemoryStore())


def permitted() -> World:
    """A run that did not begin, of an agent that has earned a permit with others."""
    world = fresh()
    permit = Permit(
        id=PERMIT, tool="pay", thresholds=(0.3,), epsilon=0.5, delta=0.4, audit_rate=0.1, principal="ann",
        created_s=0.0, expires_s=world.now_s + 1e6,
    )  # fmt: skip
    life = Life(world)
    done(grant_permit(life.store, KEYS["ann"].sign(permit)))
    for number in range(3):
        session = f"before {number}"

        async def begins(one: AgentRunner, session: str = session) -> None:
            for request in (await one.run(AGENT, "pay", session_id=session)).pending:
                await one.resume("clerk", session, KEYS["ann"].sign(request.decide("approve", principal="ann")))

        life.does(begins, {})
        assert not life.outcome, life.outcome
    return replace(life.world_after(stood=(life.now_s, permit.expires_s)), ran=())


def begun(calls: int = 1, required: int = 1, *, shared: bool = False) -> World:
    """A run that waits for people to decide on its calls."""
    world = works()(fresh(calls, required, shared=shared))
    assert world is not None
    assert len(world.waiting) == calls
    return world


def both_approved() -> World:
    world = EVENTS["ann approves the other call"](EVENTS["ann approves"](begun(2)))
    assert world is not None
    return world


BEGINNINGS: dict[str, Callable[[], World]] = {
    "two calls are approved": both_approved,
    "one call waits": begun,
    "it did not begin": fresh,
    "it has a permit": permitted,
    "two calls wait": partial(begun, 2),
    "two people decide": partial(begun, 1, 2),
    "starts are shared": partial(begun, shared=True),
}


@sampled(
    "beginning,most",
    [(name, 2 - (name == "two calls are approved")) for name in list(BEGINNINGS)[:4]],
    full=[(name, 3 - (name == "two calls are approved")) for name in BEGINNINGS],
)
def test_in_no_order_of_events_is_anything_run_that_may_not_or_lost_or_not_in_the_audit(beginning, most):
    seen = searched(world := BEGINNINGS[beginning](), most, EVENTS, check)
    assert seen.total() > 20 * most
    searched(world, most - 1, EVENTS, check_all)


@sampled("beginning,most", [("one call waits", 1)], full=[("one call waits", 2), ("it did not begin", 2)])
def test_worlds_that_count_as_one_have_one_future(beginning, most):
    assert differing(BEGINNINGS[beginning](), most, EVENTS, check) == []


def test_in_a_file_each_event_makes_the_same_world_as_in_memory(tmp_path, monkeypatch):
    approved = EVENTS["ann approves"](world := begun())
    paths = (tmp_path / f"{number}.db" for number in itertools.count())
    for name, event in EVENTS.items():
        for before in (world, approved):
            monkeypatch.setattr(Life, "opened", copied)
            one = event(before)
            monkeypatch.setattr(Life, "opened", lambda store: in_file(next(paths), store))
            other = event(before)
            assert (one and one.likeness()) == (other and other.likeness()), name


# -- sabotage: each rule that is taken out is missed ------------------------------------------------------------------


def _started_again(turn: Turn) -> list[CallRecord]:
    for record in turn._state.turn:
        if record.phase is CallPhase.STARTED:
            turn._state.keep(cleared(record))
    return []


async def _nothing(*given: Any, **named: Any) -> None:
    return None


async def _all_of(self: Turn, started: list[CallRecord]) -> list[CallRecord]:
    return started


async def _without_notes(self: Ledger, state: Any, version: int, notes: Any = ()) -> int:
    return await _SAVE(self, state, version)


async def _nobody_else(self: SessionLease) -> bool:
    found = await self.ledger.adopt(self.state)
    self.version = 0 if found is None else found[1]
    return False


async def _taken_by_all(self: StoredStarts, by: str, owner: str) -> bool:
    return True


async def _no_reasons(*given: Any) -> dict[str, str]:
    return {}


async def _none_took_effect(*given: Any) -> list[Any]:
    return []


async def _no_decisions(self: Ledger, request_ids: Any) -> dict[str, list[Any]]:
    return {request_id: [] for request_id in request_ids}


_SAVE = Ledger.save
SABOTAGE: dict[str, tuple[Callable[[], World], Any, str, Any]] = {
    "what a dead worker started runs again": (begun, Turn, "recover", _started_again),
    "what a dead worker started is left": (begun, Turn, "recover", lambda self: []),
    "what others wrote is believed": (begun, Gate, "believes", lambda self, holds: True),
    "a start is not announced": (begun, Turn, "announce", _all_of),
    "the audit has no notes": (begun, Ledger, "save", _without_notes),
    "a worker that stood still does not ask": (begun, SessionLease, "hold", _nothing),
    "a lost session is written": (begun, SessionLease, "_was_made", _nobody_else),
    "stop orders are not heard": (begun, Turn, "_unstopped", _nothing),
    "what is revoked meanwhile stands": (fresh, sys.modules[Turn.__module__], "taken_back", _no_reasons),
    "starts are not shared": (partial(begun, shared=True), StoredStarts, "take", _taken_by_all),
    "a rollback forgets what ran": (begun, sys.modules[rollback.__module__], "_took_effect", _none_took_effect),
    "what was decided elsewhere is not read": (begun, Ledger, "decisions", _no_decisions),
}


@sampled("what", [*SABOTAGE][::4], full=[*SABOTAGE])
def test_without_any_one_of_the_rules_an_order_is_found_in_which_something_is_wrong(what, monkeypatch):
    begin, where, rule, instead = SABOTAGE[what]
    world = begin()
    monkeypatch.setattr(where, rule, instead)
    with pytest.raises(AssertionError):
        searched(world, 3, EVENTS, check_all)
