"""A guard between two lists: what each side was sent, in this process, with a store in memory."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from grampus_uq import (
    ApprovalPolicy,
    ApprovalRequest,
    Grant,
    Sensing,
    ToolEffects,
    UncertaintyEstimator,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.seal import Seal
from grampus_uq.gate.starts import Starts
from grampus_uq.integrations.mcp.call_exchange import CallExchange
from grampus_uq.integrations.mcp.connection_session import ConnectionSession, SessionNames
from grampus_uq.integrations.mcp.elicitation import Elicitation, Mode
from grampus_uq.integrations.mcp.guard import Guard
from grampus_uq.integrations.mcp.guarded_calls import GuardedCalls
from grampus_uq.integrations.mcp.listed_tools import ListedTools
from grampus_uq.integrations.mcp.request_state import RequestStates
from grampus_uq.runtime import MemoryStore
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import SessionStore
from grampus_uq.signals.call_reader import Reader
from grampus_uq.testing import ScriptedModel
from tests.signals.test_reader import writes

MODERN = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}


class SlowStore(MemoryStore):
    """A store whose writes hang while it is `locked`."""

    def __init__(self) -> None:
        super().__init__()
        self.locked = False

    async def write(self, *changes: Any) -> float:
        while self.locked:  # noqa: ASYNC110 (nothing tells it)
            await anyio.sleep(0.01)
        return await super().write(*changes)


class Bench:
    """One client and one server, played by the test."""

    def __init__(
        self,
        store: SessionStore,
        *,
        hold_s: float,
        trusted: bool = True,
        approvals: ApprovalPolicy | None = None,
        sensing: Sensing | None = None,
        elicitation: Mode | None = None,
        policy: Mapping[str, Any] | None = None,
        advisory: bool = False,
        starts: Starts | None = None,
        **limits: Any,
    ) -> None:
        self.to_client: list[bytes] = []
        self.to_server: list[bytes] = []
        self.said: list[str] = []
        approvals = approvals or ApprovalPolicy()
        self.ledger = Ledger(store, seal=approvals.seal)
        self.tools = tools = ListedTools(ToolEffects(unknown_is_irreversible=True), trusted=trusted)
        gate = Gate(
            approvals=approvals,
            effects=tools.effects(),
            schema_of=tools.schema,
            clock=self.ledger.now_s,
            starts=starts,
        )
        session = ConnectionSession(
            SessionNames(agent_id="mcp", session_id="s", resumes=True),
            monitor=UncertaintyMonitor(
                policy=UncertaintyPolicy(enable_p_true=False, irreversible_tool_names=["pay"], **(policy or {})),
                estimator=UncertaintyEstimator(extra_weights={} if sensing is None else {Reader.source: 1.0}),
                sensing=sensing,
                advisory=advisory,
            ),
            ledger=self.ledger,
            gate=gate,
            say=self.said.append,
        )
        self.calls = GuardedCalls(session, tools)

        async def to_client(line: bytes) -> None:
            self.to_client.append(line)

        async def to_server(line: bytes) -> None:
            self.to_server.append(line)

        states = RequestStates(approvals.seal or Seal(b"k" * 32))
        asks = None if elicitation is None else Elicitation(self.ledger, elicitation)
        self.exchange = CallExchange(self.calls, states, self.said.append, hold_s=hold_s, elicitation=asks)
        self.guard = Guard(to_client, to_server, exchange=self.exchange, say=self.said.append, **limits)

    async def say(self, **message: Any) -> None:
        """The client sends a message."""
        await self.guard.from_client(json.dumps({"jsonrpc": "2.0", **message}).encode())

    async def call(self, identity: int, tool: str = "delete_note", *, meta: Any = None, **arguments: Any) -> None:
        """The client calls a tool."""
        params = {"name": tool, "arguments": arguments, **({"_meta": meta} if meta else {})}
        await self.say(id=identity, method="tools/call", params=params)

    async def answered(self, identity: int) -> dict[str, Any]:
        """What the client is answered, once it is."""
        with anyio.fail_after(60):
            while True:
                for line in self.to_client:
                    message = json.loads(line)
                    if message.get("id") == identity:
                        return message
                await anyio.sleep(0.01)

    async def asked(self, count: int = 1) -> list[dict[str, Any]]:
        """The first calls of tools that the server was given, once it was."""
        with anyio.fail_after(60):
            ran = self.ran()
            while len(ran) < count:
                await anyio.sleep(0.01)
                ran = self.ran()
        return ran

    def ran(self) -> list[dict[str, Any]]:
        """The calls of tools that the server was given."""
        return [m for m in map(json.loads, self.to_server) if m.get("method") == "tools/call"]

    async def returns(self, identity: int, text: str = "done", **more: Any) -> None:
        """The server answers a call."""
        result = {"content": [{"type": "text", "text": text}], **more}
        await self.guard.from_server(json.dumps({"jsonrpc": "2.0", "id": identity, "result": result}).encode())

    async def lists(self, **annotations: Any) -> None:
        """The client asks for the tools, and the server lists them."""
        await self.say(id="list", method="tools/list")
        tools = [{"name": name, "inputSchema": {"type": "object"}, **more} for name, more in annotations.items()]
        message = {"jsonrpc": "2.0", "id": "list", "result": {"tools": tools}}
        await self.guard.from_server(json.dumps(message).encode())

    async def waiting(self) -> ApprovalRequest:
        """The one request that waits, once it does."""
        with anyio.fail_after(60):
            waiting = await self.ledger.pending()
            while not waiting:
                await anyio.sleep(0.01)
                waiting = await self.ledger.pending()
        (request,) = waiting[0].requests
        return request

    async def decide(self, kind: str = "approve", **more: Any) -> None:
        """A human decides on the one request that waits."""
        request = await self.waiting()
        await self.ledger.decide(request.decide(kind, principal="ann", **more))


def read_as_doubtful(tool: str) -> dict[str, Any]:
    """For a `Bench`: a reader finds calls of this tool too doubtful to go ahead, and certain enough for a grant."""
    reader = Reader(client=ScriptedModel(writes({tool: 0.82}, form=0.9999)))
    return {"sensing": Sensing(reader=reader), "policy": {"low_threshold": 0.95}}


@asynccontextmanager
async def bench(
    store: SessionStore | None = None,
    *,
    hold_s: float = 10.0,
    trusted: bool = True,
    approvals: ApprovalPolicy | None = None,
    sensing: Sensing | None = None,
    **limits: Any,
) -> AsyncIterator[Bench]:
    """A guard that runs."""
    one = Bench(store or MemoryStore(), hold_s=hold_s, trusted=trusted, approvals=approvals, sensing=sensing, **limits)
    async with anyio.create_task_group() as group:
        group.start_soon(one.guard.run)
        yield one
        await one.guard.client_left()
        await one.guard.aclose()
        group.cancel_scope.cancel()


async def granted(store: MemoryStore, *, uses: int = 5, **limits: Any) -> Any:
    """A `bench` where a grant covers calls of `pay` with n of 0 to 9, which a reader finds too doubtful otherwise."""
    covers = Grant(
        tool="pay", limits={"n": {"min": 0, "max": 9}}, principal="ann", expires_s=time.time() + 600, max_uses=uses
    )
    await Ledger(store).grant(covers)
    return bench(store, **{"hold_s": 3.0, "late_s": 20.0, **read_as_doubtful("pay"), **limits})
