"""LangChain's run for the benchmark of adapters: the middleware against one whose hooks do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NotRequired

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState, ExtendedModelResponse, hook_config
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.langchain import UncertaintyMiddleware, _untraced
from tests.benchmarks.integrations import Pair
from tests.benchmarks.integrations_langgraph import look_up, turn


class NothingState(AgentState[Any]):
    nothing: NotRequired[Annotated[dict[str, Any], PrivateStateAttr]]


class NothingMiddleware(AgentMiddleware[Any, Any, Any]):
    """The guard's hooks, each as cheap as LangChain lets it be, and one small write to the state a turn."""

    state_schema = NothingState

    def __init__(self) -> None:
        super().__init__()
        self.awrap_model_call = _untraced(self.awrap_model_call)  # type: ignore[method-assign]
        self.awrap_tool_call = _untraced(self.awrap_tool_call)  # type: ignore[method-assign]

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return ExtendedModelResponse(await handler(request), command=Command(update={"nothing": {}}))

    @hook_config(can_jump_to=["model"])
    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        return None

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


class Canned(BaseChatModel):
    turns: int

    @property
    def _llm_type(self) -> str:
        return "canned"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: Sequence[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        answer = turn(sum(m.type == "ai" for m in messages), self.turns)
        return ChatResult(generations=[ChatGeneration(message=answer)])

    async def _agenerate(self, messages: Sequence[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return self._generate(messages)


def pair(turns: int) -> Pair:
    monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
    checkpointer = InMemorySaver()
    guards: dict[str, list[AgentMiddleware[Any, Any, Any]]] = {
        "watched": [UncertaintyMiddleware(monitor, advisory=False)],
        "bare": [NothingMiddleware()],
        "plain": [],
    }
    apps = {
        name: create_agent(Canned(turns=turns), [look_up], middleware=guard, checkpointer=checkpointer)
        for name, guard in guards.items()
    }

    async def run(app: Any, number: int) -> None:
        config = {"configurable": {"thread_id": str(number)}, "recursion_limit": 10 * turns}
        result = await app.ainvoke({"messages": [("user", "go")]}, config)
        assert len(result["messages"]) == 2 * turns

    return Pair(
        watched=lambda n: run(apps["watched"], n),
        bare=lambda n: run(apps["bare"], n),
        plain=lambda n: run(apps["plain"], n),
        hooks="a middleware whose hooks do nothing, with one write to the state a turn",
        forget=lambda n: checkpointer.delete_thread(str(n)),
    )
