"""What can happen to MCP clients, their proxies and the server of a `Line`: each event lets one thing happen."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from grampus_uq.integrations.mcp.json_rpc import CANCEL
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.standing_grants import revoke_grant
from grampus_uq.runtime.stopping import order_stop
from tests.proxy.played import HOLD_S, LEASE_S, LIFETIME_S, MOMENT_S, Asked, Died, Kind, Line, Proxy

Happens = Callable[[Line], "Awaitable[bool | None]"]
"""Lets it happen; False where it cannot."""
Aside = Callable[[Line, Proxy], Awaitable[object]]


def calls(slot: int = 0, *, login: int = 0, most: int = 3, **given: Any) -> Happens:
    async def happens(line: Line) -> bool:
        if len(line.asked) >= most:
            return False
        await line.calls(slot, login=login, **given)
        return True

    return happens


def says(kind: str, who: str, *, key: str | None = None, at: str = "", then: Aside | None = None) -> Happens:
    """Somebody decides on what waits; `at` a point of what follows, something else happens."""

    async def happens(line: Line) -> bool:
        if not line.waiting:
            return False
        request = line.waiting[-1]
        line.at = {} if then is None else {at: then}
        said = await line.says(request, kind, who, key, {"n": 9} if kind == "edit" else None)
        await line.passes()
        reached, line.at = not line.at, {}
        return said and reached

    return happens


def lets_ahead(at: str, then: Aside) -> Happens:
    """A call that the grant covers, and something happens as it starts."""

    async def happens(line: Line) -> bool:
        line.at = {at: then}
        await line.calls()
        reached, line.at = not line.at, {}
        return reached

    return happens


async def cancels(line: Line, proxy: Proxy | None = None) -> bool:
    """The client of the last request that is not answered gives it up."""
    mine = [
        one for one in line.asked if not one.left and not one.answers and (proxy is None or one.proxy == proxy.number)
    ]
    if not mine:
        return False
    one = mine[-1]
    reached = next(proxy for proxy in line.proxies if proxy.number == one.proxy)
    one.left = True
    message = json.dumps({"jsonrpc": "2.0", "method": CANCEL, "params": {"requestId": one.id}}).encode()
    if reached.guard:
        await reached.guard.from_client(message)
    else:
        line.group.start_soon(reached.posts, Asked(-1, one.proxy, one.login, "", 0, 0.0), message)
    await line.passes(MOMENT_S if proxy is None else 0.05)
    return True


async def leaves(line: Line, proxy: Proxy | None = None) -> bool:
    """The connection of the last request that is not answered is lost."""
    mine = [one for one in line.asked if not one.leaves.is_set() and not one.answers]
    if not mine or not line.kind.http:
        return False
    mine[-1].left = True
    mine[-1].leaves.set()
    await line.passes(MOMENT_S if proxy is None else 0.05)
    return True


async def resumes(line: Line, login: int = 0) -> bool:
    """A client goes on with the stream of the last call: its own, or another's."""
    if not line.kind.streams or not line.jobs or len(line.asked) > 3:
        return False
    proxy, job = line.proxies[0], line.jobs[-1]
    one = Asked(job.id, proxy.number, line.logins[login], "", 0, line.now_s(), after=str(job.number), left=True)
    one.left = False
    line.asked.append(one)
    await line.sends(proxy, one, {}, "GET")
    one.left = True
    return True


def answers(how: str) -> Happens:
    """The server answers the first call that it works on, so."""

    async def happens(line: Line) -> bool:
        alive = {one.number: one for one in line.proxies if not one.dead}
        open_jobs = [job for job in line.jobs if not job.done.is_set() and (line.kind.http or job.proxy in alive)]
        if not open_jobs:
            return False
        job = open_jobs[0]
        job.how = how
        job.done.set()
        if how == "breaks off" and line.kind.streams:  # whoever asked has to go on with the stream
            for one in line.asked:
                one.left = one.left or (one.id, one.login) == (job.id, job.login)
        proxy = alive.get(job.proxy)
        if proxy is not None and proxy.guard:
            bad = {"jsonrpc": "2.0", "id": job.id}
            line_ = bad if how == "breaks off" else job.answer()
            await proxy.guard.from_server(json.dumps(line_).encode())
        await line.passes()
        return True

    return happens


async def dies(line: Line, proxy: Proxy | None = None) -> None:
    """A proxy is killed, the first one or the one at work, and another takes its place."""
    one = proxy or line.proxies[0]
    slot = line.proxies.index(one)
    await one.dies()
    await line.starts(slot)
    if proxy is not None:
        raise Died


async def stops(line: Line) -> None:
    await line.proxies[0].stops()
    await line.starts(0)


async def is_stopped(line: Line, proxy: Proxy | None = None) -> bool:
    """The session is ordered to stop."""
    session = line.proxies[0].session(line.logins[0])
    if session in line.stopped or not any(one["session_id"] == session for one in line.states()):
        return False
    line.stopped[session] = line.now_s(), [one.number for one in line.proxies if one.holds(session)]
    await order_stop(Ledger(line.store), "a/x" if line.kind.http else "a", session)
    if proxy is None:
        await line.passes()
    return True


async def is_revoked(line: Line, proxy: Proxy | None = None) -> bool:
    if line.stood is None or line.stood[1] < float("inf"):
        return False
    line.stood = line.stood[0], line.now_s()
    await revoke_grant(line.store, "g", "ann")
    return True


async def loses_its_store(line: Line, proxy: Proxy | None = None) -> bool:
    """The first proxy does not reach its store any more, longer than its lease."""
    one = line.proxies[0]
    if one.store.lost:
        return False
    one.store.lost = True
    if proxy is None:
        await line.passes(LEASE_S + 2.0)
    return True


async def finds_its_store(line: Line) -> bool:
    one = line.proxies[0]
    if not one.store.lost:
        return False
    one.store.lost = False
    await line.passes()
    return True


async def ends_session(line: Line, login: int = 0) -> bool:
    """A client says that it will not use its session any more."""
    if not line.kind.http:
        return False
    proxy = line.proxies[0]
    one = Asked(-1, proxy.number, line.logins[login], "", 0, line.now_s())
    await line.sends(proxy, one, {}, "DELETE")
    one.leaves.set()
    return True


async def rejects(line: Line, proxy: Proxy) -> None:
    if line.requests:
        await line.says([*line.requests.values()][-1][0], "reject", "bob")


async def lists(line: Line, proxy: Proxy | None = None) -> None:
    """The client of the first proxy lists the tools again."""
    await line.proxies[0].lists(line.logins[0])
    if proxy is None:
        await line.passes()


async def lists_anew(line: Line, proxy: Proxy | None = None) -> bool:
    """The server's tool has another definition, and the client lists it."""
    if line.version > 1:
        return False
    line.version += 1
    await lists(line, proxy)
    return True


async def calls_again(line: Line, proxy: Proxy) -> None:
    """The same call comes from another client at this moment."""
    line.group.start_soon(partial(line.calls, line.proxies.index(proxy)))


def passes(seconds: float) -> Happens:
    return lambda line: line.passes(seconds)  # type: ignore[return-value]


def elicited(action: str, decision: str | None = None) -> Happens:
    """The client answers the last question that it was asked."""

    async def happens(line: Line) -> bool:
        if not line.questions:
            return False
        number, question = line.questions.pop()
        proxy = next((one for one in line.proxies if one.number == number), None)
        if proxy is None or proxy.guard is None:
            return False
        result = {"action": action} | ({"content": {"decision": decision}} if decision else {})
        said = re.findall(r"request (\w{8})", question["params"]["message"])
        request = next(one for one, _ in line.requests.values() if one.id.startswith(said[0]))
        kind = decision if action == "accept" else "reject" if action == "decline" else None
        if line.kind.elicits == "decide" and kind:
            word = request.decide(kind, principal="client").model_copy(update={"decided_s": 0.0})
            line.said.append((word, line.now_s(), True))
        await proxy.guard.from_client(json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": result}).encode())
        await line.passes()
        return True

    return happens


async def goes_on(line: Line, *, n: int | None = None) -> bool:
    """A client sends a call that waits again, with the state that it was given: or another call with it."""
    given = [(one, one.answers[-1].get("result", {}).get("requestState")) for one in line.asked if one.answers]
    given = [(one, state) for one, state in given if state]
    if not given or len(line.asked) > 3:
        return False
    one, state = given[-1]
    await line.calls(0, n=n or one.n, requestState=state)
    return True


BOTH: dict[str, Happens] = {
    "calls": calls(),
    "calls with other arguments": calls(n=2),
    "calls under the same id": calls(identity=1),
    "calls elsewhere": calls(1),
    "reads": calls(tool="read"),
    "ann approves": says("approve", "ann"),
    "bob approves": says("approve", "bob"),
    "ann edits": says("edit", "ann"),
    "ann rejects": says("reject", "ann"),
    "ann responds": says("respond", "ann"),
    "mal approves": says("approve", "mal"),
    "mal approves as ann": says("approve", "ann", key="mal"),
    "ann approves, it dies before it starts": says("approve", "ann", at="before execution_started", then=dies),
    "ann approves, it dies as it starts": says("approve", "ann", at="after execution_started", then=dies),
    "ann approves, it dies once it ran": says("approve", "ann", at="in the server", then=dies),
    "ann approves, and it is given up as it starts": says("approve", "ann", at="after execution_started", then=cancels),
    "ann approves, and bob rejects as it starts": says("approve", "ann", at="before execution_started", then=rejects),
    "ann approves, and it is stopped as it starts": says(
        "approve", "ann", at="before execution_started", then=is_stopped
    ),
    "ann approves, and the list changes as it starts": says(
        "approve", "ann", at="before execution_started", then=lists_anew
    ),
    "ann approves, and the same comes as it starts": says(
        "approve", "ann", at="after execution_started", then=calls_again
    ),
    "it is given up": cancels,
    "the server answers": answers("a result"),
    "the server answers an error": answers("an error"),
    "its answer breaks off": answers("breaks off"),
    "the proxy is killed": dies,
    "the proxy is stopped": stops,
    "the session is stopped": is_stopped,
    "its store is lost": loses_its_store,
    "ann approves, its store is lost as it starts": says(
        "approve", "ann", at="after execution_started", then=loses_its_store
    ),
    "ann approves, its store is lost once it ran": says("approve", "ann", at="in the server", then=loses_its_store),
    "its store is back": finds_its_store,
    "the tools are listed": lists,
    "the tools change": lists_anew,
    "a while passes": passes(HOLD_S + 1.0),
    "a long while passes": passes(LEASE_S + 2.0),
    "a lifetime passes": passes(LIFETIME_S + 1.0),
}
WEB: dict[str, Happens] = {
    "another login calls": calls(login=1),
    "its connection is lost": leaves,
    "its connection is lost as it starts": says("approve", "ann", at="after execution_started", then=leaves),
    "its session ends": ends_session,
    "another login's session ends": partial(ends_session, login=1),
    "its stream is resumed": resumes,
    "another login resumes its stream": partial(resumes, login=1),
}
GRANTED: dict[str, Happens] = {
    "the grant is revoked": is_revoked,
    "it calls, and dies as it starts": lets_ahead("after execution_started", dies),
    "it calls, and dies once it ran": lets_ahead("in the server", dies),
    "it calls, and gives up as it starts": lets_ahead("after execution_started", cancels),
    "it calls, and the grant is revoked as it starts": lets_ahead("before execution_started", is_revoked),
    "it calls, and is stopped as it starts": lets_ahead("before execution_started", is_stopped),
    "it calls, and the same comes as it starts": lets_ahead("after execution_started", calls_again),
}
ASKED: dict[str, Happens] = {
    "the client accepts": elicited("accept", "approve"),
    "the client rejects": elicited("accept", "reject"),
    "the client declines": elicited("decline"),
    "the client closes the question": elicited("cancel"),
}
MODERN: dict[str, Happens] = {"it goes on": goes_on, "another call goes on with its state": partial(goes_on, n=2)}
EVENTS = BOTH | WEB | GRANTED | ASKED | MODERN


def names(kind: Kind) -> list[str]:
    """What can happen in such a world."""
    sets = (BOTH, True), (WEB, kind.http), (GRANTED, kind.granted), (ASKED, kind.elicits), (MODERN, kind.modern)
    unsigned = kind.elicits is not None  # whoever writes the store decides
    return [name for some, there in sets if there for name in some if not (unsigned and name.startswith("mal"))]


FEW = (
    "calls",
    "calls elsewhere",
    "ann approves",
    "ann approves, it dies once it ran",
    "ann approves, and it is given up as it starts",
    "it calls, and dies once it ran",
    "it is given up",
    "its connection is lost",
    "its stream is resumed",
    "another login resumes its stream",
    "the server answers",
    "its answer breaks off",
    "the proxy is stopped",
    "the tools change",
    "the client accepts",
    "it goes on",
)
