"""pydantic-ai's run for the benchmark of adapters: the capability against one whose hooks do nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import UsageLimits

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.pydantic_ai import UncertaintyCapability
from tests.benchmarks.integrations import Pair


@dataclass
class Nothing(AbstractCapability[Any]):
    """The capability's hooks, with nothing in them."""

    async def for_run(self, ctx: Any) -> Nothing:
        return replace(self)

    async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
        return await handler()

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
        return await handler(request_context)

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        return await handler(args)


def clerk(turns: int, *capabilities: AbstractCapability[Any]) -> Agent[None, Any]:
    def canned(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        done = sum(isinstance(message, ModelResponse) for message in messages)
        said = TextPart('I look it up. {"confidence": 0.95}')
        call = ToolCallPart("look_up", {"query": "rates"}, tool_call_id=f"c{done}")
        return ModelResponse(parts=[said, call] if done < turns - 1 else [said])

    agent: Agent[None, Any] = Agent(
        FunctionModel(canned), output_type=[str, DeferredToolRequests], capabilities=capabilities
    )

    @agent.tool_plain
    def look_up(query: str) -> str:
        return "found"

    return agent


def pair(turns: int) -> Pair:
    policy = UncertaintyPolicy(irreversible_tool_names=["pay"])
    watched = clerk(turns, UncertaintyCapability(UncertaintyMonitor(policy=policy), advisory=False))
    bare, plain = clerk(turns, Nothing()), clerk(turns)

    async def run(agent: Agent[None, Any]) -> None:
        result = await agent.run("go", usage_limits=UsageLimits(request_limit=turns + 1))
        assert isinstance(result.output, str)

    return Pair(
        watched=lambda _: run(watched),
        bare=lambda _: run(bare),
        plain=lambda _: run(plain),
        hooks="a capability whose hooks do nothing",
    )
