"""A scripted mail agent whose tools count what they really did: shared by the runtime's tests."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from grampus_uq import AgentDefinition, AgentRunner, FunctionTools, UncertaintyMonitor, tool
from grampus_uq.records.values import Message, ModelResponse, ToolCall
from grampus_uq.records.vocabulary import Effect, Role
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.testing import ScriptedModel, answer

AGENT = AgentDefinition(name="mailer", model="scripted", system_prompt="You send mail.")


class World:
    """What the tools did to the world, in order, with the idempotency key of each act."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.keys: list[str] = []
        self.searched: list[str] = []
        self._tools: FunctionTools | None = None

    def tools(self) -> FunctionTools:
        if self._tools is None:  # a test makes many runners, and these were a quarter of its time
            self._tools = self._made()
        return self._tools

    def _made(self) -> FunctionTools:
        @tool(effect=Effect.IRREVERSIBLE)
        def send_email(to: str, body: str, idempotency_key: str = "") -> str:
            """Send a mail."""
            self.sent.append((to, body))
            self.keys.append(idempotency_key)
            return f"sent to {to}"

        @tool(effect=Effect.READ)
        def search(query: str) -> str:
            """Search."""
            self.searched.append(query)
            return f"found {query}"

        return FunctionTools(send_email, search)


class Meanwhile(MemoryStore):
    """Lets `happens` happen, as in another process, before the `at`-th read after calls were announced; 0: never.

    What is read in one turn of the store is one read.
    """

    happens: Callable[[], Awaitable[object]]
    at, happened, _left = 0, False, -1

    async def write(self, *changes: Any) -> float:
        written = await super().write(*changes)
        if self.at and any("execution_started" in str(change) for change in changes):
            self._left = self.at
        return written

    async def _begins(self) -> None:
        self._left -= 1
        if self._left == 0:
            await self.happens()
            self.happened = True

    async def get(self, kind: str, key: str) -> Any:
        await self._begins()
        return await super().get(kind, key)

    async def at_once(self, work: Callable[[], Awaitable[Any]]) -> Any:
        await self._begins()
        left, self._left = self._left, -1
        found = await super().at_once(work)
        self._left = left
        return found


class Watched:
    """The world's tools, with what `look` says as each call begins."""

    def __init__(self, world: World, look: Callable[[], bool]) -> None:
        self._tools, self._look, self.seen = world.tools(), look, list[bool]()
        self.schemas, self.effect_of = self._tools.schemas, self._tools.effect_of

    async def execute(self, *call: Any, **more: Any) -> Any:
        self.seen.append(self._look())
        return await self._tools.execute(*call, **more)


class Copied(MemoryStore):
    """Keeps what it held after each write: what another process would find, had this one died then."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[MemoryStore] = []

    async def write(self, *changes: Any) -> float:
        written = await super().write(*changes)
        other = MemoryStore()
        for name in ("_documents", "_by_label", "_logs"):
            setattr(other, name, copy.deepcopy(getattr(self, name)))
        self.copies.append(other)
        return written


def is_judgement(messages: Sequence[Message]) -> bool:
    """True for a question of the monitor's P(True) signal rather than of the agent."""
    return "Reply with" in (messages[-1].content or "") and messages[0].content != AGENT.system_prompt


def scripted(turns: Sequence[ModelResponse | str], p_true: float = 0.62) -> ScriptedModel:
    """A model that plays its turns by the number of answers it sees in the transcript, so that it survives restarts."""

    def reply(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse | str:
        if is_judgement(messages):
            return f'{{"p_true": {p_true}}}'
        turn = sum(message.role is Role.ASSISTANT for message in messages)
        return turns[min(turn, len(turns) - 1)]

    return ScriptedModel(reply)


def mail(call_id: str, to: str, body: str = "hi") -> ToolCall:
    return ToolCall(id=call_id, name="send_email", arguments={"to": to, "body": body})


def look(call_id: str, query: str) -> ToolCall:
    return ToolCall(id=call_id, name="search", arguments={"query": query})


SEND_ONE = [answer("I will mail Bob.", tool_calls=[look("a", "bob"), mail("b", "bob")]), answer("Done.")]


def runner(
    world: World, turns: Sequence[ModelResponse | str] = SEND_ONE, *, p_true: float = 0.62, **given: Any
) -> AgentRunner:
    """A runner as a user would build it."""
    monitor = given.pop("monitor", None) or UncertaintyMonitor()
    return AgentRunner(scripted(turns, p_true), world.tools(), uncertainty_monitor=monitor, **given)


def results_by_call(messages: Sequence[Message]) -> dict[str, int]:
    """How many tool results each proposed call has in a transcript."""
    counts = {call.id: 0 for m in messages for call in m.tool_calls}
    for message in messages:
        if message.role is Role.TOOL:
            assert message.tool_call_id is not None
            counts[message.tool_call_id] = counts.get(message.tool_call_id, 0) + 1
    return counts


Factory = Callable[[], AgentRunner]


def unknown_calls(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The calls that were started and never reported back: nobody knows whether they took effect."""
    open_calls: dict[str, dict[str, Any]] = {}
    for entry in entries:
        key = str(entry["data"].get("idempotency_key", ""))
        if entry["what"] in ("execution_started", "outcome_unknown"):
            open_calls[key] = dict(entry["data"])
        elif entry["what"] in ("execution_finished", "execution_settled", "execution_withdrawn"):
            open_calls.pop(key, None)
    return list(open_calls.values())
