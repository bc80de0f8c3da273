"""MCP clients, proxies and a server at play, for the search of every order: real proxies, and a clock that jumps.

A `Line` is one play: the proxies that live, what each client asked and was answered, what the server really got, who
decided what. Proxies share a store and nothing else; over pipes each has a server process of its own, over HTTP all
reach one server, which shows its streams to whoever asks.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import httpx

from grampus_uq import (
    ApprovalPolicy,
    ApprovalRequest,
    Grant,
    Sensing,
    UncertaintyEstimator,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.errors import GrampusError, StoreError
from grampus_uq.gate.seal import Seal
from grampus_uq.integrations.mcp.call_exchange import CallExchange
from grampus_uq.integrations.mcp.guard import Guard
from grampus_uq.integrations.mcp.http_headers import session_name
from grampus_uq.integrations.mcp.http_proxy import Upstream, http_app
from grampus_uq.integrations.mcp.http_traffic import Bounds
from grampus_uq.integrations.mcp.proxy_config import ApprovalSettings, ProxySettings, ServerSettings
from grampus_uq.integrations.mcp.proxy_parts import ProxyParts
from grampus_uq.integrations.mcp.request_state import RequestStates
from grampus_uq.records.values import canonical_json
from grampus_uq.records.vocabulary import Effect
from grampus_uq.runtime import MemoryStore
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import Append
from grampus_uq.signals.call_reader import Reader
from grampus_uq.testing import ScriptedModel
from tests.every_order import BOOKKEEPING, KEYS, OwnKeys, Said, with_named_ids
from tests.proxy.guarded import MODERN
from tests.signals.test_reader import writes

HOLD_S, LATE_S, LEASE_S, LIFETIME_S, MOMENT_S = 3.0, 5.0, 10.0, 60.0, 0.7
NAMED = {"host": "test", "grampus-session": "s", "content-type": "application/json"}
_POLICY = UncertaintyPolicy(enable_p_true=False, irreversible_tool_names=["delete"])
_DOUBTFUL = UncertaintyPolicy(enable_p_true=False, irreversible_tool_names=["delete"], low_threshold=0.95)
_READER = Reader(client=ScriptedModel(writes({"delete": 0.82}, form=0.9999)))
_SEAL = Seal(b"a key that only the proxies hold")


@dataclass(frozen=True)
class Kind:
    """How the proxies are reached, and what holds for calls. `streams`: the server answers with events."""

    http: bool = False
    required: int = 1
    elicits: str | None = None
    granted: bool = False
    modern: bool = False
    streams: bool = False


class Died(BaseException):
    """The proxy is gone: nothing of it may do anything any more."""


@dataclass
class Asked:
    """A client's request. `left`: its client gave it up, or nobody is there who could answer it."""

    id: int
    proxy: int
    login: str
    tool: str
    n: int
    at_s: float
    more: dict[str, Any] = field(default_factory=dict)
    left: bool = False
    leaves: anyio.Event = field(default_factory=anyio.Event)
    answers: list[dict[str, Any]] = field(default_factory=list)
    after: str = ""
    body: bytes = b""

    @property
    def said(self) -> str:
        return "".join(json.dumps(one) for one in self.answers)


@dataclass
class Job:
    """What the server got: a call, from which proxy, of which session, and by which definition of its tool.

    `behind`: how much of its session's audit stood before it.
    """

    number: int
    id: Any
    proxy: int
    login: str
    session: str
    tool: str
    arguments: str
    at_s: float
    listed: int | None
    behind: int
    how: str = ""
    done: anyio.Event = field(default_factory=anyio.Event)

    def answer(self) -> dict[str, Any]:
        head = {"jsonrpc": "2.0", "id": self.id}
        if self.how == "an error":
            return {**head, "error": {"code": 1, "message": f"ran #{self.number}#"}}
        return {**head, "result": {"content": [{"type": "text", "text": f"ran #{self.number}#"}]}}


class Reached(MemoryStore):
    """The store as one proxy reaches it: at its writes something may happen, and a dead one writes no more."""

    def __init__(self, line: Line, proxy: Proxy) -> None:
        super().__init__()
        self._line, self._proxy, self.lost = line, proxy, False
        for name in ("_documents", "_by_label", "_logs"):
            setattr(self, name, getattr(line.store, name))

    def _answers(self) -> None:
        self._proxy.lives()
        if self.lost:
            raise StoreError("The store does not answer.")

    async def get(self, kind: str, key: str) -> Any:
        self._answers()
        return await super().get(kind, key)

    async def scan(self, kind: str, **given: Any) -> Any:
        self._answers()
        return await super().scan(kind, **given)

    async def read(self, log: str, *, start: int = 0) -> Any:
        self._answers()
        return await super().read(log, start=start)

    async def write(self, *changes: Any) -> float:
        self._answers()
        notes = [json.loads(body)["what"] for one in changes if isinstance(one, Append) for body in one.bodies
                 if one.log.startswith("audit/")]  # fmt: skip
        for what in notes:
            await self._line.reaches(f"before {what}", self._proxy)
        written = await super().write(*changes)
        self._line.asks(self._proxy)
        for what in notes:
            await self._line.reaches(f"after {what}", self._proxy)
        return written


class Proxy:
    """One process of the proxy, put together as it puts itself together, but for its store and keys."""

    def __init__(self, line: Line, number: int) -> None:
        self.line, self.number, self.dead = line, number, False
        self.store, self.over, self.ready = Reached(line, self), anyio.Event(), anyio.Event()
        self.scope, self.exchanges = anyio.CancelScope(), dict[str, CallExchange]()
        kind = line.kind
        settings = ProxySettings(
            hold_s=HOLD_S, agent="a", effects={"delete": Effect.IRREVERSIBLE, "read": Effect.READ},
            approvals=ApprovalSettings(elicitation=kind.elicits), servers={"x": ServerSettings(url="http://server")},
        )  # fmt: skip
        self.parts = parts = ProxyParts(settings, "memory:", line.log.append)
        signed = kind.elicits is None
        parts._store = self.store
        parts._approvals = ApprovalPolicy(
            signer=OwnKeys() if signed else None, approvers={"ann", "bob"} if signed else None, required=kind.required,
            expires_s=LIFETIME_S, seal=_SEAL,
        )  # fmt: skip
        parts._states = RequestStates(_SEAL)
        parts._monitor = UncertaintyMonitor(policy=_POLICY)
        if kind.granted:
            weighs = UncertaintyEstimator(extra_weights={Reader.source: 1.0})
            parts._monitor = UncertaintyMonitor(policy=_DOUBTFUL, estimator=weighs, sensing=Sensing(reader=_READER))
        self.guard: Guard | None = None
        if not kind.http:
            exchange = self.exchanges["s"] = parts.exchange("s", resumes=True)
            self.guard = Guard(self.to_client, self.to_server, exchange=exchange, say=line.log.append, late_s=LATE_S)

    def lives(self) -> None:
        if self.dead:
            raise Died

    def session(self, login: str) -> str:
        found = self.exchanges.get("s" if self.guard else session_name(headers(login)))
        return "" if found is None else found.calls.session.names.session_id

    def holds(self, session: str) -> bool:
        sessions = [one.calls.session for one in self.exchanges.values()]
        return any(one.is_open and one.names.session_id == session for one in sessions)

    def knows(self) -> Any:
        """What it remembers beside the store."""
        sessions = []
        for name, exchange in self.exchanges.items():
            calls = exchange.calls
            open_calls = sorted(calls._awaited), sorted(calls._open), list(calls._delivered._kept)
            pins = [pin.digest for pin in calls.tools.shown("delete")]
            sessions.append((name, calls.session.refusal, open_calls, pins))
        guard = self.guard
        requests = guard and (list(guard._open), list(guard._answers.running), sorted(map(str, guard._given_up)))
        return sessions, requests

    def _made(self, name: str) -> CallExchange:
        found = self.exchanges[name] = self.parts.exchange(name, resumes=True, server="x")
        return found

    async def run(self) -> None:
        try:
            with self.scope:
                await (self._pipes() if self.guard else self._web())
        except BaseException as error:
            if not self.dead:
                self.line.escaped = repr(error)
                raise
        finally:
            self.over.set()

    async def _pipes(self) -> None:
        assert self.guard is not None
        self.ready.set()
        await self.guard.run()

    async def _web(self) -> None:
        async with anyio.create_task_group() as group:
            upstream = Upstream(url="http://server", exchange=self._made, refusal=self.parts.shadow)
            bounds = Bounds(hosts=frozenset({"test"}), limit=100_000)
            say = self.line.log.append
            self.app, self.release = http_app({"x": upstream}, group, bounds=bounds, say=say, transport=Behind(self))
            self.ready.set()
            await anyio.sleep_forever()

    async def stops(self) -> None:
        """As on SIGTERM, or where the client closes its pipe."""
        if self.guard:
            await self.guard.client_left()
            await self.guard.aclose()
        else:
            self.app.state.end()
            await anyio.sleep(MOMENT_S)
            await self.release()
        await self.goes()

    async def dies(self) -> None:
        """As on SIGKILL: what it does from now on reaches nobody."""
        self.dead = True
        await self.goes()

    async def goes(self) -> None:
        self.dead = True
        self.scope.cancel()
        for one in self.line.asked:
            if one.proxy == self.number and not one.answers:
                one.left = True
                one.leaves.set()

    # -- its client and its server --------------------------------------------------------------------------------

    async def to_client(self, line: bytes) -> None:
        if self.dead:
            return
        message = json.loads(line)
        if message.get("method") == "elicitation/create":
            self.line.questions.append((self.number, message))
        mine = [one for one in self.line.asked if one.id == message.get("id") and one.proxy == self.number]
        if mine and "method" not in message:  # of two of one id the second is refused
            free = [one for one in mine if not one.answers and not one.left]
            self.line.answers(mine[-1] if "is that of a request" in line.decode() else (free or mine)[0], message)

    async def to_server(self, line: bytes) -> None:
        self.lives()
        message = json.loads(line)
        if message.get("method") == "tools/call":
            await self.line.arrives(self, message, "")

    async def lists(self, login: str) -> None:
        """Its client asks for the tools."""
        self.line.lists(self.number, login)
        message = {"jsonrpc": "2.0", "id": "list", "method": "tools/list"}
        if self.guard:
            await self.guard.from_client(json.dumps(message).encode())
            await self.guard.from_server(json.dumps({"jsonrpc": "2.0", **self.line.tools("list")}).encode())
        else:
            one = Asked(-1, self.number, login, "", 0, 0.0)
            await self.posts(one, json.dumps(message).encode())

    async def posts(self, asked: Asked, body: bytes, method: str = "POST") -> None:
        """A client's request over HTTP, until it is answered or its client left."""
        given, pieces = [body], bytearray()
        taken = headers(asked.login) | ({"last-event-id": asked.after} if asked.after else {})
        scope = {
            "type": "http", "method": method, "path": "/x", "raw_path": b"/x", "query_string": b"", "scheme": "http",
            "headers": [(name.encode(), value.encode()) for name, value in taken.items()],
            "server": ("test", 80), "client": ("client", 1), "http_version": "1.1", "root_path": "",
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            if given:
                return {"type": "http.request", "body": given.pop(), "more_body": False}
            await asked.leaves.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if not asked.left:
                pieces.extend(message.get("body", b""))
            while b"\n\n" in pieces:
                event, _, rest = bytes(pieces).partition(b"\n\n")
                pieces[:] = rest
                take(b"".join(one[6:] for one in event.split(b"\n") if one.startswith(b"data: ")))
            if message["type"] == "http.response.body" and not message.get("more_body") and pieces:
                take(bytes(pieces))

        def take(data: bytes) -> None:
            with suppress(ValueError):
                message = json.loads(data)
                if "method" not in message:
                    self.line.answers(asked, message)

        try:
            await self.app(scope, receive, send)
        except (Died, BaseExceptionGroup, RuntimeError) as error:
            self.line.escaped = self.line.escaped or ("" if self.dead else repr(error))
        asked.leaves.set()


class Behind(httpx.AsyncBaseTransport):
    """The server over HTTP, as one proxy reaches it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy, self.line = proxy, proxy.line

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.proxy.lives()
        login = request.headers.get("authorization", "")
        if request.method == "DELETE":
            return _body({})
        if request.method == "GET":
            number = int(request.headers.get("last-event-id", "0") or 0)
            found = [job for job in self.line.jobs if job.number == number]
            return _events(self.line, found[0], first=False) if found else httpx.Response(405)
        message = json.loads(await request.aread())
        if message.get("method") != "tools/call":
            return _body({"jsonrpc": "2.0", "id": message.get("id"), **self.line.tools(None)})
        job = await self.line.arrives(self.proxy, message, login)
        if self.line.kind.streams:
            return _events(self.line, job, first=True)
        await job.done.wait()
        if job.how == "breaks off":
            raise httpx.ReadError("")
        return _body(job.answer())


def _body(message: dict[str, Any]) -> httpx.Response:
    async def body() -> AsyncIterator[bytes]:
        yield json.dumps(message).encode()

    return httpx.Response(200, headers={"content-type": "application/json"}, content=body())


def _events(line: Line, job: Job, *, first: bool) -> httpx.Response:
    async def stream() -> AsyncIterator[bytes]:
        if first:
            yield b'id: %d\ndata: {"jsonrpc":"2.0","method":"notifications/message"}\n\n' % job.number
        await job.done.wait()
        if job.how == "breaks off" and first:
            return
        yield b"data: %s\n\n" % json.dumps(job.answer()).encode()

    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream())


def headers(login: str) -> dict[str, str]:
    return NAMED | ({"authorization": login} if login else {})


class Line:
    """One play: who lives, and the truth."""

    now: Line

    def __init__(self, kind: Kind, clock: Callable[[], float]) -> None:
        self.kind, self.now_s, self.ids, self.made = kind, clock, 0, 0
        self.store, self.log, self.escaped, self.version = MemoryStore(), list[str](), "", 1
        self.proxies: list[Proxy] = []
        self.asked: list[Asked] = []
        self.jobs: list[Job] = []
        self.questions: list[tuple[int, dict[str, Any]]] = []
        self.requests: dict[str, tuple[ApprovalRequest, int | None]] = {}
        self.listed: dict[tuple[int, str], list[tuple[float, int]]] = {}
        self.said: list[Said] = []
        self.stood: tuple[float, float] | None = None
        self.stopped: dict[str, tuple[float, list[int]]] = {}
        self.at: dict[str, Callable[[Line, Proxy], Awaitable[object]]] = {}
        self.wrong = ""

    def uuid4(self) -> uuid.UUID:
        self.ids += 1  # in the first characters, by which questions name a request
        return uuid.UUID(int=self.ids << 96, version=4)

    async def begins(self, group: anyio.abc.TaskGroup) -> None:
        self.group = group
        for _ in range(2):
            await self.starts()
        await self.proxies[0].lists(self.logins[0])
        await self.passes()

    @property
    def logins(self) -> tuple[str, str]:
        return ("one", "two") if self.kind.http else ("", "")

    async def starts(self, slot: int | None = None) -> None:
        """A proxy starts, or takes the place of one; its client has not listed tools."""
        self.made += 1
        proxy = Proxy(self, self.made)
        self.proxies = (
            [*self.proxies, proxy] if slot is None else [*self.proxies[:slot], proxy, *self.proxies[slot + 1 :]]
        )
        self.group.start_soon(proxy.run)
        await proxy.ready.wait()

    def tools(self, identity: Any) -> dict[str, Any]:
        about = {"description": f"Deletes, {self.version}."}
        tools = [{"name": "delete", "inputSchema": {"type": "object"}, **about}, {"name": "read", "inputSchema": {}}]
        return {"result": {"tools": tools}} | ({"id": identity} if identity else {})

    def lists(self, proxy: int, login: str) -> None:
        self.listed.setdefault((proxy, login), []).append((self.now_s(), self.version))

    def shown(self, proxy: int, login: str) -> int | None:
        """The definition that this client was shown last; what is shown as its call starts is shown too late."""
        found = [version for at_s, version in self.listed.get((proxy, login), ()) if at_s < self.now_s() - 0.01]
        return found[-1] if found else None

    async def passes(self, seconds: float = MOMENT_S) -> None:
        await anyio.sleep(seconds)

    async def calls(
        self,
        slot: int = 0,
        *,
        n: int = 1,
        tool: str = "delete",
        login: int = 0,
        identity: int | None = None,
        **more: Any,
    ) -> Asked:
        """A client calls a tool."""
        proxy, taken = self.proxies[slot], 1 + len(self.asked) if identity is None else identity
        one = Asked(taken, proxy.number, self.logins[login], tool, n, self.now_s(), more)
        params = {"name": tool, "arguments": {"n": n}, **more} | ({"_meta": MODERN} if self.kind.modern else {})
        message = {"jsonrpc": "2.0", "id": taken, "method": "tools/call", "params": params}
        self.asked.append(one)
        await self.sends(proxy, one, message)
        return one

    async def sends(self, proxy: Proxy, one: Asked, message: dict[str, Any], method: str = "POST") -> None:
        body = json.dumps(message).encode()
        if proxy.guard:
            self.group.start_soon(proxy.guard.from_client, body)
        else:
            self.group.start_soon(partial(proxy.posts, one, body if method == "POST" else b"", method))
        await self.passes()

    def answers(self, one: Asked, message: dict[str, Any]) -> None:
        one.answers.append(message)
        said = json.dumps(message)
        if "Not executed" not in said and "Nothing has happened" not in said:
            return
        mine = [job for job in self.jobs if job.at_s > one.at_s and self.of(one, job) and not job.done.is_set()]
        if mine and "this one was not sent" not in said and "same call" not in said:
            self.wrong = self.wrong or f"told that it did not run while it ran: {said}"

    def of(self, one: Asked, job: Job) -> bool:
        return (job.login, job.proxy, job.tool) == (one.login, one.proxy, one.tool) and one.n == json.loads(
            job.arguments
        )["n"]

    async def arrives(self, proxy: Proxy, message: dict[str, Any], login: str) -> Job:
        """The server gets a call."""
        proxy.lives()
        params, session = message["params"], proxy.session(login)
        job = Job(
            1 + len(self.jobs), message["id"], proxy.number, login, session, params["name"],
            canonical_json(params["arguments"]), self.now_s(), self.shown(proxy.number, login),
            len(self.audit(session)),
        )  # fmt: skip
        self.jobs.append(job)
        await self.reaches("in the server", proxy)
        return job

    def audit(self, session: str) -> list[dict[str, Any]]:
        found = [log for log in self.store._logs if log.startswith("audit/") and log.endswith(f"/{session}")]
        return [json.loads(entry) for log in found for entry in self.store._logs[log]]

    def asks(self, proxy: Proxy) -> None:
        """Take up the requests that are in the store now."""
        for one in self.states():
            for record in one["turn"]:
                for request in record["requests"]:
                    if request["id"] not in self.requests:
                        logins = [login for login in self.logins if proxy.session(login) == one["session_id"]]
                        version = self.shown(proxy.number, logins[0]) if logins else None
                        self.requests[request["id"]] = ApprovalRequest.model_validate(request), version

    def states(self) -> list[dict[str, Any]]:
        return [json.loads(one.body) for (kind, _), one in self.store._documents.items() if kind == "session"]

    @property
    def waiting(self) -> list[ApprovalRequest]:
        ids = [
            r["id"]
            for one in self.states()
            for record in one["turn"]
            if record["phase"] == "waiting"
            for r in record["requests"]
        ]
        return [self.requests[one][0] for one in ids]

    async def reaches(self, point: str, proxy: Proxy) -> None:
        happens = self.at.pop(point, None)
        if happens is not None:
            await happens(self, proxy)
        proxy.lives()

    async def says(
        self, request: ApprovalRequest, kind: str, who: str, key: str | None = None, arguments: Any = None
    ) -> bool:
        """A decision arrives in the store; False where it did before."""
        decision = request.decide(kind, principal=who, arguments=arguments, message="so")
        decision = KEYS[key or who].sign(decision.model_copy(update={"decided_s": 0.0}))
        if any(one.signature == decision.signature for one, _, _ in self.said):
            return False
        self.said.append((decision, self.now_s(), key in (None, who)))
        with suppress(GrampusError):
            await Ledger(self.store).decide(decision)
        return True

    async def grants(self) -> None:
        now_s = self.now_s()
        grant = Grant(id="g", tool="delete", principal="ann", created_s=0.0, expires_s=now_s + 10_000.0, max_uses=9)
        await Ledger(self.store).grant(KEYS["ann"].sign(grant) if self.kind.elicits is None else grant)
        self.stood = now_s, float("inf")

    def likeness(self, authorities: Callable[[Job], list[str]]) -> str:
        """What the store holds and each proxy knows, and the truth; ids by their making, times from now on."""
        kept = [
            (kind, key, self._cleaned(json.loads(one.body)))
            for (kind, key), one in self.store._documents.items()
            if kind in ("session", "stop", "mcp_pin", "grant")
        ]
        said = [(one.request_id, one.kind.value, one.principal, own) for one, _, own in self.said]
        asked = [
            (one.id, one.proxy, one.login, one.tool, one.n, one.left, one.answers, one.after) for one in self.asked
        ]
        jobs = [
            (one.proxy, one.session, one.arguments, one.how, one.done.is_set(), authorities(one)) for one in self.jobs
        ]
        known = [(proxy.knows(), proxy.store.lost) for proxy in self.proxies]
        revoked = self.stood is not None and self.stood[1] < float("inf")
        listed = [(who, [version for _, version in found]) for who, found in self.listed.items()]
        stopped = [(session, holders) for session, (_, holders) in self.stopped.items()]
        more = revoked, stopped, self.version, len(self.questions), listed, [one.id for one in self.waiting]
        return with_named_ids(_TIMES.sub("T", repr((kept, said, asked, jobs, known, more))))

    def _cleaned(self, values: Any) -> Any:
        """Values without what nobody looks at: times but those until an end, reasons, digests, the belief's numbers."""
        if isinstance(values, dict):
            found = {name: self._cleaned(value) for name, value in values.items() if name not in _UNSEEN}
            if isinstance(values.get("expires_s"), float):
                found["expires_s"] = round((values["expires_s"] - self.now_s()) / 5)
            return found
        return [self._cleaned(one) for one in values] if isinstance(values, list) else values


_UNSEEN = BOOKKEEPING | {"reason", "confidence", "digest", "decided_s"}
_TIMES = re.compile(r"\b\d{9,10}e?\b|in this session at [\d: -]+ UTC")
