"""Every order of what can happen to the calls of MCP clients through the proxy, over pipes and over HTTP.

Clients call, call again, cancel and leave; people decide, one without a key; proxies are stopped or killed and others
take over; the server answers, fails, lists its tools anew. Each way is gone from its beginning, on a clock that jumps.
The truth is kept beside: what was asked, said and told, and what the server really got.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import anyio
import pytest

from grampus_uq.gate.call import UNKNOWN_OUTCOME, UNVOUCHED, CallRecord
from grampus_uq.integrations.mcp import http_headers, upstream_answer
from grampus_uq.integrations.mcp.answers import Answers
from grampus_uq.integrations.mcp.call_exchange import CallExchange
from grampus_uq.integrations.mcp.call_notes import CallNotes
from grampus_uq.integrations.mcp.call_outcomes import REPEATED
from grampus_uq.integrations.mcp.elicitation import Elicitation
from grampus_uq.integrations.mcp.guarded_calls import GuardedCalls
from grampus_uq.records.values import ToolCall, ToolResult, canonical_json
from grampus_uq.runtime.session_lease import SessionLease
from grampus_uq.runtime.turn import Turn
from tests.clocks import all_clocks_jump
from tests.every_order import check_each_on_its_own, differing, let, searched
from tests.proxy.happenings import EVENTS, FEW, answers, names
from tests.proxy.played import HOLD_S, LATE_S, MOMENT_S, Job, Kind, Line
from tests.sampling import sampled

pytestmark = pytest.mark.filterwarnings(
    "ignore:Unclosed <MemoryObject:ResourceWarning"
)  # a killed proxy closes nothing

# -- what must hold ---------------------------------------------------------------------------------------------------

TELLING = {one.rule for one in (UNKNOWN_OUTCOME, UNVOUCHED, REPEATED)}
"""The rules of requests that say that the call may have run."""


def authorities(line: Line, job: Job) -> list[str]:
    """The requests that this call may have run on, asked under the definition of its tool that holds, and the grant."""
    said = [one for one in line.said if one[1] <= job.at_s]
    found = [
        request.id
        for request, listed in line.requests.values()
        if let(request, said, line.kind.required) == job.arguments
        and request.session_id == job.session
        and (listed in (None, job.listed) or (job.listed is None and not line.kind.http))
    ]
    stood = line.stood is not None and line.stood[0] <= job.at_s < line.stood[1]
    return [*found, "grant"] if stood and json.loads(job.arguments)["n"] < 9 else found


def check(line: Line) -> None:
    """What ran, may have, each time on another word; each was told his own; the audit says what the server got."""
    assert not line.escaped, f"an error escaped: {line.escaped}"
    assert not line.wrong, line.wrong
    odd = [one for one in line.log if "a call was refused" in one or "could not be handled" in one]
    assert not odd, odd
    asked = [request for request, _ in line.requests.values()]
    telling = {one.id for one in asked if one.rule in TELLING or "the same call was" in one.reason}
    groups: dict[tuple[str, str], list[list[str]]] = {}
    for job in line.jobs:
        if job.tool == "read":
            continue
        on = authorities(line, job)
        assert on, "something ran that nobody approved so"
        since_s, holders = line.stopped.get(job.session, (0.0, ()))
        assert job.proxy not in holders or job.at_s < since_s, "it ran after it was ordered to stop"
        groups.setdefault((job.session, job.arguments), []).append(on)
    for several in groups.values():
        check_each_on_its_own(several, telling)
    for asked in line.asked:
        assert len(asked.answers) < 2, "a request was answered twice"
        assert all("result" in one or "error" in one for one in asked.answers), "no client reads this as an answer"
        for number in re.findall(r"ran #(\d+)#", asked.said):
            job = line.jobs[int(number) - 1]
            assert job.login == asked.login, "somebody was told of another's call"
            own = asked.after or (job.tool == asked.tool and (job.arguments == canonical_json({"n": asked.n})))
            assert own or "by a human" in asked.said or "changed" in asked.said, "told of another call"
    for session in {job.session for job in line.jobs}:
        check_audit(line, session)


READ = ToolCall(id="", name="read", arguments={"n": 1}).digest()


def check_audit(line: Line, session: str) -> None:
    entries = [(n, one["what"], one["data"].get("digest", "")) for n, one in enumerate(line.audit(session))]
    for job in line.jobs:
        if job.session == session:
            digest = ToolCall(id="", name=job.tool, arguments=json.loads(job.arguments)).digest()
            entries.append((job.behind - 0.5, "ran", digest))
    seen = Counter[tuple[str, str]]()
    for _, what, digest in sorted(entries):
        seen[what, digest] += 1
        started = seen["execution_started", digest] - seen["execution_withdrawn", digest]
        assert seen["ran", digest] <= started or digest == READ, "it ran, and the audit does not say so"
        assert seen["execution_finished", digest] <= seen["ran", digest], "the audit has an end of what did not run"


# -- the search -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """What a way leads to: what is wrong there, or when it is brought to its end."""

    kind: Kind
    way: tuple[str, ...] = ()
    like: str = ""
    wrong: str = ""

    def likeness(self) -> str:
        return self.like


ENDED: dict[str, str] = {}
"""What was wrong at the ends of worlds, by their likeness."""


class Forgets(dict[str, str]):
    def setdefault(self, like: str, wrong: str = "") -> str:
        return wrong


async def ends(line: Line) -> None:
    """The server answers, people approve, and the same call again comes to its result: every request is answered."""
    for proxy in line.proxies:
        proxy.store.lost = False
    for round_ in range(9):
        for request in line.waiting:
            for who in ("ann", "bob")[: line.kind.required]:
                await line.says(request, "approve", who)
        for seconds in (MOMENT_S, HOLD_S + 1.0):
            await line.passes(seconds)
            while await answers("a result")(line):
                pass
        check(line)
        if all(one.answers or one.left for one in line.asked):
            against = any(one.kind in ("reject", "respond") for one, _, _ in line.said)
            over = "ran #", "took this session over"
            if line.stopped or against or not line.asked or any(one in line.asked[-1].said for one in over):
                return
            await line.calls()
        else:
            assert round_ < 4, "a request was not answered"
    raise AssertionError(f"it never ends: {line.asked[-1].said}")


def gone(world: World) -> World | None:
    """The world once its way was gone, from its beginning; None where something on it cannot happen."""

    async def go() -> World | None:
        line = Line.now = Line(world.kind, lambda: time.time())
        async with anyio.create_task_group() as group:
            await line.begins(group)
            if world.kind.granted:
                await line.grants()
            if world.kind.elicits and not world.kind.http:
                first = {
                    "jsonrpc": "2.0",
                    "id": "i",
                    "method": "initialize",
                    "params": {"capabilities": {"elicitation": {}}},
                }
                await line.proxies[0].guard.from_client(json.dumps(first).encode())
            found: World | None = None
            try:
                for name in world.way:
                    if await EVENTS[name](line) is False:
                        return None
                like, wrong = f"{world.kind}{line.likeness(partial(authorities, line))}", ""
                try:
                    check(line)
                    if like not in ENDED:
                        await ends(line)
                except AssertionError as error:
                    wrong = str(error)
                found = replace(world, like=like, wrong=ENDED.setdefault(like, wrong))
            finally:
                for proxy in line.proxies:
                    await proxy.dies()
                group.cancel_scope.cancel()
            return found
        raise AssertionError

    with pytest.MonkeyPatch.context() as patched:
        backend, options = all_clocks_jump("asyncio", patched)
        return anyio.run(go, backend=backend, backend_options=options)


def one_more(name: str) -> Callable[[World], World | None]:
    return lambda world: gone(replace(world, way=(*world.way, name)))


def verdict(world: World) -> None:
    assert not world.wrong, world.wrong


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    ENDED.clear()
    monkeypatch.setattr(time, "time", lambda: 1_000_000_000.0)
    monkeypatch.setattr(uuid, "uuid4", lambda: Line.now.uuid4())
    for name in ("LATE_S", "_RESUME_S"):
        monkeypatch.setattr(upstream_answer, name, LATE_S)


def events(kind: Kind) -> dict[str, Callable[[World], World | None]]:
    """What can happen in such a world."""
    return {name: one_more(name) for name in names(kind)}


KINDS = {
    "over pipes": Kind(),
    "over HTTP": Kind(http=True),
    "streams": Kind(http=True, streams=True),
    "a grant over pipes": Kind(granted=True),
    "a grant over HTTP": Kind(http=True, granted=True),
    "four eyes": Kind(required=2),
    "the client is asked": Kind(elicits="ask"),
    "the client decides": Kind(elicits="decide"),
    "without sessions": Kind(http=True, modern=True),
}


def begun(kind: Kind, *way: str) -> World:
    world = gone(World(kind, way))
    assert world is not None
    return world


def few(kind: Kind) -> dict[str, Callable[[World], World | None]]:
    return {name: happens for name, happens in events(kind).items() if name in FEW}


@sampled(
    "kind,way,most",
    [("over pipes", ("calls",), 1), ("streams", ("calls", "ann approves"), 1)],
    full=[(kind, (), 2) for kind in KINDS] + [(kind, ("calls",), 2) for kind in [*KINDS][:5]],
)
def test_in_no_order_of_events_does_anything_run_that_nobody_approved_or_is_anybody_left_waiting(kind, way, most):
    world = begun(KINDS[kind], *way)
    every = {name: cache(happens) for name, happens in events(KINDS[kind]).items()}
    assert searched(world, most, every, verdict).total() > 9
    assert searched(world, most + 1, {name: every[name] for name in few(KINDS[kind])}, verdict).total() > 9


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("a grant over HTTP", ("it calls, and the grant is revoked as it starts", "the proxy is killed")),
        ("a grant over pipes", ("it calls, and gives up as it starts",)),
        ("over pipes", ("calls", "ann approves", "its answer breaks off")),
        ("over pipes", ("calls", "ann edits", "the server answers an error")),
    ],
)
def test_what_was_found_stays_mended(kind, way):
    verdict(begun(KINDS[kind], *way))


@sampled("kind", ["over pipes"], full=["over pipes", "streams", "a grant over HTTP"])
def test_worlds_that_count_as_one_have_one_future(kind, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ENDED", Forgets())
    assert differing(begun(KINDS[kind]), 1, few(KINDS[kind]), verdict) == []


# -- sabotage: each rule that is taken out is missed ------------------------------------------------------------------


def _nothing(*given: Any, **more: Any) -> None:
    return None


async def _no_doubt(*given: Any) -> None:
    return None


async def _unheeded(*given: Any, **more: Any) -> None:
    return None


async def _at_once(self: CallExchange, record: CallRecord, **why: str) -> None:
    """The client gave it up, and nobody notes that its server has not heard of it."""


async def _finished(self: Turn, record: CallRecord, outcome: ToolResult, *, ran: bool = True) -> None:
    await self.lease.try_save(("execution_finished", {**self.facts(record), "is_error": outcome.is_error}))


SABOTAGE: dict[str, tuple[str, tuple[str, ...], Any, str, Any]] = {
    "the same call goes ahead again": ("a grant over pipes", (), GuardedCalls, "_repeats", lambda self, call: False),
    "an approval outlives the definition of its tool": ("over pipes", ("calls",), GuardedCalls, "_void", _no_doubt),
    "and where it was not asked at first": (
        "a grant over HTTP",
        ("it calls, and the grant is revoked as it starts",),
        CallNotes,
        "ask",
        _nothing,
    ),
    "what was held back counts as finished": ("a grant over pipes", (), Turn, "store_result", _finished),
    "what was given up is not asked again": ("over pipes", ("calls",), CallExchange, "withdraw", _at_once),
    "what a dead proxy started is forgotten": ("over pipes", ("calls",), Turn, "recover", lambda self: []),
    "what a session sent before is forgotten": (
        "a grant over pipes",
        ("calls", "the session is stopped"),
        CallNotes,
        "remember",
        _nothing,
    ),
    "one login's session is another's": ("over HTTP", ("calls",), http_headers, "_SESSION", ("grampus-session",)),
    "a notice decides": ("the client is asked", ("calls",), Elicitation, "_decides", lambda self, request: True),
    "an answer without a result passes": ("over pipes", ("calls", "ann approves"), Answers, "_unread", _nothing),
    "a stop order is not heeded": ("over pipes", ("calls",), SessionLease, "check_stop", _unheeded),
}


@sampled("what", [*SABOTAGE][::4], full=[*SABOTAGE])
def test_without_any_one_of_the_rules_an_order_is_found_in_which_something_is_wrong(what, monkeypatch):
    kind, way, where, rule, instead = SABOTAGE[what]
    monkeypatch.setattr(where, rule, instead)
    world = World(KINDS[kind], way)
    with pytest.raises(AssertionError):
        searched(world, 1, events(KINDS[kind]), verdict)
