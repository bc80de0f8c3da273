"""The conformance harness of the MCP proxy: an agent without a line about approvals, whose server stands behind it.

The agent is a plain loop that keeps its transcript in a file. Its model does what the proxy's answer says in words: a
call that was not executed yet is made again, unchanged. What waits is read from the store, as its human does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

from grampus_uq import Sensing, UncertaintyEstimator, UncertaintyPolicy, open_store
from grampus_uq.errors import GrampusError
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.requests import ApprovalPolicy, ApprovalRequest
from grampus_uq.gate.seal import Seal
from grampus_uq.integrations.mcp.call_exchange import CallExchange
from grampus_uq.integrations.mcp.connection_session import ConnectionSession, SessionNames
from grampus_uq.integrations.mcp.guard import Guard
from grampus_uq.integrations.mcp.guarded_calls import GuardedCalls
from grampus_uq.integrations.mcp.listed_tools import ListedTools
from grampus_uq.integrations.mcp.proxy_config import ProxySettings
from grampus_uq.integrations.mcp.request_state import RequestStates
from grampus_uq.records.values import ToolCall
from grampus_uq.runtime.ledger import Arrived, Ledger
from grampus_uq.signals.call_reader import Reader, written_call
from grampus_uq.testing import AgentSetup, AgentUnderTest, Decision, Ended, Paused, Pending, ScriptedModel
from tests.integrations.forging import forge_session
from tests.signals.test_reader import forced, writes

AGENT = "mcp"
SETTINGS = ProxySettings(effects={"look_up": "read", "pay": "irreversible", "mcp_pay": "irreversible"})
HOLD_S = 0.1
WAITS = ("Not executed yet", "This call was started", "This call was approved and is still running")
_AMOUNT = {"to": {"type": "string"}, "amount": {"type": "integer"}}
_PAYS = {"type": "object", "properties": _AMOUNT, "additionalProperties": False}
_SCHEMAS = {
    "look_up": {"type": "object", "properties": {"query": {"type": "string"}}},
    "pay": _PAYS,
    "mcp_pay": _PAYS,
}
Send = Callable[[bytes], Awaitable[None]]


class Server:
    """The tools behind the proxy; it has never heard of it."""

    def __init__(self, setup: AgentSetup) -> None:
        self._tools: dict[str, Callable[..., str]] = {"look_up": setup.look_up, "pay": setup.pay, "mcp_pay": setup.pay}

    def answer(self, message: Mapping[str, Any]) -> bytes:
        """The answer to a request."""
        result: dict[str, Any]
        if message["method"] == "tools/list":
            result = {"tools": [{"name": name, "inputSchema": schema} for name, schema in _SCHEMAS.items()]}
        else:
            tool = self._tools.get(message["params"]["name"])
            text = "no such tool" if tool is None else tool(**message["params"]["arguments"])
            result = {"content": [{"type": "text", "text": text}], "isError": tool is None}
        return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()


class Looking(Ledger):
    """A proxy's ledger, which counts how often it was asked for decisions."""

    looks = 0

    async def decisions(self, request_ids: Sequence[str]) -> dict[str, list[Arrived]]:
        found = await super().decisions(request_ids)
        self.looks += 1
        return found


class Connection:
    """One session's client: JSON-RPC to whatever `send` leads to, which answers by `take`."""

    def __init__(self) -> None:
        self.send: Send = _nowhere
        self._answers: dict[int, str] = {}
        self._came = anyio.Event()
        self._last = 0

    async def take(self, line: bytes) -> None:
        """An answer has come."""
        message = json.loads(line)
        parts = message.get("result", {}).get("content") or [{"text": json.dumps(message)}]
        self._answers[message["id"]] = "\n".join(part["text"] for part in parts)
        self._came.set()
        self._came = anyio.Event()

    async def ask(self, method: str, **params: Any) -> str:
        """The text that a request is answered with."""
        self._last += 1
        number = self._last
        await self.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())
        while number not in self._answers:
            await self._came.wait()
        return self._answers.pop(number)


async def _nowhere(line: bytes) -> None:
    raise AssertionError(line)


class ProxiedAgent:
    lacks: Mapping[str, str] = {
        "abort": "sees tool calls only, not model turns",
        "belief": "sees tool calls only, not model turns",
        "output_tool": "structured output does not reach the server",
        "permits": "has no score without a reader",
        "precondition": "its configuration takes no functions",
        "stream": "sees tool calls only, not the model's text",
        "twins": "identical simultaneous calls count as one",
    }
    offers = ("signing", "forge", "schema", "odd_calls", "mcp", "starts")

    def __init__(self, setup: AgentSetup) -> None:
        self._setup = setup
        self._server = Server(setup)
        self._store = open_store(f"sqlite:///{setup.folder / 'sessions.db'}", create=True)
        self._approvals = setup.approvals() or ApprovalPolicy()
        self._ledger = Ledger(self._store, seal=self._approvals.seal)

    # -- the proxy ----------------------------------------------------------------------------------------------------

    def _reads(self, messages: Any, options: Mapping[str, Any]) -> Any:
        """The proxy's reader: as sure of a call as the script is, and counted."""
        text = forced(options)
        for prompt, turns in self._setup.script.items():
            for number, turn in enumerate(turns):
                for call in turn.calls:
                    if written_call(call) == text:  # to the proxy each call is a turn; squared: readers are strict
                        self._setup.note("monitor_model", prompt=prompt, turn=f"{number} {text}")
                        return writes({call.name: turn.confidence**2}, form=0.9999)(messages, options)
        raise AssertionError(text)

    def _guard(self, session: str, connection: Connection, ledger: Ledger) -> Guard | None:
        monitor = self._setup.monitor(
            policy=UncertaintyPolicy(enable_p_true=False, irreversible_tool_names=["pay", "mcp_pay"]),
            estimator=UncertaintyEstimator(extra_weights={Reader.source: 1.0}),
            sensing=Sensing(reader=Reader(client=ScriptedModel(self._reads))),
        )
        if monitor is None:
            return None
        tools = ListedTools(SETTINGS.tool_effects())
        gate = Gate(
            approvals=self._approvals,
            effects=tools.effects(),
            schema_of=tools.schema,
            clock=ledger.now_s,
            started_by=self._setup.started_by,
            starts=self._setup.starts(),
        )
        names = SessionNames(agent_id=AGENT, session_id=session, resumes=True)
        served = ConnectionSession(names, monitor=monitor, ledger=ledger, gate=gate, say=print, lease_s=0.5)
        exchange = CallExchange(GuardedCalls(served, tools), RequestStates(Seal(b"k" * 32)), print, hold_s=HOLD_S)

        async def to_server(line: bytes) -> None:
            if "id" in (message := json.loads(line)):
                await guard.from_server(self._server.answer(message))

        guard = Guard(connection.take, to_server, exchange=exchange, say=print)
        return guard

    @asynccontextmanager
    async def _connected(self, session: str, ledger: Ledger) -> AsyncIterator[Connection]:
        """A client's connection to its server: through the proxy, or bare."""
        connection = Connection()
        guard = self._guard(session, connection, ledger)

        async def bare(line: bytes) -> None:
            await connection.take(self._server.answer(json.loads(line)))

        connection.send = bare if guard is None else guard.from_client
        async with anyio.create_task_group() as group:
            if guard is not None:
                group.start_soon(guard.run)
            await connection.ask("tools/list")
            yield connection
            if guard is not None:
                await guard.client_left()
                await guard.aclose()
            group.cancel_scope.cancel()

    # -- the agent ----------------------------------------------------------------------------------------------------

    async def run(self, session: str, prompt: str) -> Ended | Paused:
        return await self._go_on(session, prompt)

    async def _go_on(self, session: str, prompt: str, looks: int = 0) -> Ended | Paused:
        """Answer the prompt, with the same calls again until the proxy has looked for decisions so often."""
        file = self._setup.folder / f"{session}.transcript"
        known: dict[str, list[Any]] = json.loads(file.read_text()) if file.exists() else {}
        ledger, looked, output = Looking(self._store, seal=self._approvals.seal), False, None
        async with self._connected(session, ledger) as connection:
            while output is None and not looked:
                looked = ledger.looks >= looks
                output = await self._task(connection, known, prompt)
        file.write_text(json.dumps({"": [prompt]} | known))
        if output is not None:
            return Ended(output=output)
        return Paused(pending=tuple(await self._pending(session, known)))

    async def _task(self, connection: Connection, known: dict[str, list[Any]], task: str) -> str | None:
        """Answer a task; None where a call of it waits. `known`: each task's turns, as calls with results."""
        turns = known.setdefault(task, [])
        while True:
            if not turns or all(result is not None for _, result in turns[-1]["calls"]):
                turn = self._setup.turn(task, len(turns))
                calls = [[call.model_dump(mode="json"), None] for call in turn.calls]
                turns.append({"calls": calls})
                if not calls:
                    return turn.text
            open_calls = [one for one in turns[-1]["calls"] if one[1] is None]
            async with anyio.create_task_group() as group:
                for one in open_calls:
                    group.start_soon(self._call, connection, known, one)
            if any(result is None for _, result in turns[-1]["calls"]):
                return None

    async def _call(self, connection: Connection, known: dict[str, list[Any]], one: list[Any]) -> None:
        call = one[0]
        if call["name"] == "delegate":
            one[1] = await self._task(connection, known, call["arguments"]["task"])
            return
        text = await connection.ask("tools/call", name=call["name"], arguments=call["arguments"])
        one[1] = None if text.startswith(WAITS) else text

    # -- the human ----------------------------------------------------------------------------------------------------

    async def resume(self, session: str, decisions: Sequence[Decision]) -> Ended | Paused:
        for decision in decisions:
            request = ApprovalRequest.model_validate(decision.on.token)
            with suppress(GrampusError):  # not one of those that wait, or not theirs to decide
                await self._ledger.decide(self._setup.decide(request, decision))
        prompt = json.loads((self._setup.folder / f"{session}.transcript").read_text())[""][0]
        return await self._go_on(session, prompt, looks=3)

    async def _pending(self, session: str, known: Mapping[str, list[Any]]) -> list[Pending]:
        """The requests of a session, each with the id that the model gave the call that it is about."""
        opened = [
            call
            for name, turns in known.items()
            if name
            for turn in turns
            for call, got in turn["calls"]
            if got is None
        ]
        found = []
        for waits in await self._ledger.pending():
            for request in waits.requests if waits.session_id == session else ():
                assert request.call is not None
                same = ToolCall(name=request.call.name, arguments=request.call.arguments).digest()
                ids = [one["id"] for one in opened if ToolCall.model_validate(one).digest() == same]
                found.append(
                    Pending(
                        call_id=ids[0],
                        name=request.call.name,
                        arguments=dict(request.call.arguments),
                        token=request.model_dump(mode="json"),
                        reason=request.reason,
                    )
                )
        return found

    async def stream(self, session: str, prompt: str, pieces: list[str]) -> Ended | Paused:
        raise NotImplementedError(self.lacks["stream"])

    async def forge(self, session: str, what: str) -> None:
        """Write into the session's document what somebody would who reaches the store."""
        await forge_session(self._store, AGENT, session, what)


@asynccontextmanager
async def build(setup: AgentSetup) -> AsyncIterator[AgentUnderTest]:
    yield ProxiedAgent(setup)
