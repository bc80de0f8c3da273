"""The OpenAI Agents SDK's run for the benchmark of adapters: the guard against hooks in its places that do nothing."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.openai_agents import UncertaintyGuard
from tests.benchmarks.integrations import Pair


class Canned(Model):
    def __init__(self, turns: int) -> None:
        self.turns = turns

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        done = 0 if isinstance(input, str) else sum(item.get("role") == "assistant" for item in input)
        text = ResponseOutputText(
            text='I look it up. {"confidence": 0.95}', type="output_text", annotations=[], logprobs=[]
        )
        message = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        call = ResponseFunctionToolCall(
            call_id=f"c{done}", name="look_up", arguments='{"query": "rates"}', type="function_call"
        )
        output: list[Any] = [message, call] if done < self.turns - 1 else [message]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


class Nothing(Model):
    """A model around the model, as the guard's is."""

    def __init__(self, inner: Model) -> None:
        self.inner = inner

    async def get_response(self, *given: Any, **named: Any) -> ModelResponse:
        return await self.inner.get_response(*given, **named)

    def stream_response(self, *given: Any, **named: Any) -> AsyncIterator[Any]:
        return self.inner.stream_response(*given, **named)


@function_tool
def look_up(query: str) -> str:
    """Look something up."""
    return "found"


def with_nothing(tool: FunctionTool) -> FunctionTool:
    """The tool with the guard's two hooks, which do nothing."""
    gated = copy.copy(tool)
    invoke = gated.on_invoke_tool

    async def needs_approval(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return False

    async def on_invoke_tool(context: Any, text: str) -> Any:
        return await invoke(context, text)

    # The SDK resolves an invocation's annotations at each call: the guard's cost none, so nor may these.
    on_invoke_tool.__annotations__ = {}
    gated.needs_approval = needs_approval
    gated.on_invoke_tool = on_invoke_tool
    return gated


def pair(turns: int) -> Pair:
    set_tracing_disabled(True)
    policy = UncertaintyPolicy(irreversible_tool_names=["pay"])
    guard = UncertaintyGuard(UncertaintyMonitor(policy=policy), advisory=False)
    watched = Agent[Any](name="clerk", model=Canned(turns), tools=[look_up])
    bare = Agent[Any](name="clerk", model=Nothing(Canned(turns)), tools=[with_nothing(look_up)])

    async def run_watched(number: int) -> None:
        result = await guard.run(watched, "go", session_id=str(number), max_turns=turns + 1)
        assert result.final_output

    async def run_bare(number: int) -> None:
        result = await Runner.run(bare, "go", max_turns=turns + 1, run_config=RunConfig())
        assert result.final_output

    plain = Agent[Any](name="clerk", model=Canned(turns), tools=[look_up])

    async def run_plain(number: int) -> None:
        result = await Runner.run(plain, "go", max_turns=turns + 1)
        assert result.final_output

    return Pair(
        watched=run_watched,
        bare=run_bare,
        plain=run_plain,
        hooks="a model around the model, needs_approval and tool that do nothing",
    )
