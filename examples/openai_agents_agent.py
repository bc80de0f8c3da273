"""An agent of the OpenAI Agents SDK that pays refunds: it waits for a human before money moves, in any process.

python examples/openai_agents_agent.py                                    # a scripted model, no network
python examples/openai_agents_agent.py --state run.json                   # stops at the pause and saves it
python examples/openai_agents_agent.py --state run.json --decision edit   # another process takes it up
python examples/openai_agents_agent.py --model gpt-4o-mini                # OpenAI; with --api-base, any such server
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.openai_agents import UncertaintyGuard

REFUNDS: list[float] = []


@function_tool
def get_order(order_id: str) -> str:
    """Look an order up."""
    return json.dumps({"A-17": {"customer": "Ann", "paid_eur": 40.0, "delivered": False}}.get(order_id))


@function_tool
def refund(order_id: str, amount_eur: float) -> str:
    """Pay money back to the customer. This cannot be undone."""
    REFUNDS.append(amount_eur)
    return f"refunded {amount_eur:.2f} EUR for {order_id}"


class Scripted(Model):
    """A model that does the right thing and is moderately sure of it."""

    turns = (
        ('I look the order up. {"confidence": 0.9}', "get_order", {"order_id": "A-17"}),
        ('Not delivered, so I refund it. {"confidence": 0.7}', "refund", {"order_id": "A-17", "amount_eur": 40.0}),
        ('Your money is on its way. {"confidence": 0.9}', None, None),
    )

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:  # noqa: A002 (the SDK's name)
        done = 0 if isinstance(input, str) else sum(item.get("role") == "assistant" for item in input)
        text, name, arguments = self.turns[done]
        part = ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])
        output: list[Any] = [
            ResponseOutputMessage(id=f"m{done}", content=[part], role="assistant", status="completed", type="message")
        ]
        if name is not None:
            output.append(
                ResponseFunctionToolCall(
                    call_id=f"c{done}", name=name, arguments=json.dumps(arguments), type="function_call"
                )
            )
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("this example does not stream")


def agent(model: str | None, api_base: str | None) -> Agent[Any]:
    """The agent that the user already has."""
    instructions = (
        "You handle refunds. Look the order up before you refund it. "
        'End each message with {"confidence": p}, p being the probability that it is right.'
    )
    tools: list[Any] = [get_order, refund]
    if model is None:
        return Agent(name="refunds", instructions=instructions, tools=tools, model=Scripted())
    client = AsyncOpenAI(base_url=api_base, api_key="unused") if api_base else AsyncOpenAI()
    chosen = OpenAIChatCompletionsModel(model, client)
    return Agent(
        name="refunds",
        instructions=instructions,
        tools=tools,
        model=chosen,
        model_settings=ModelSettings(temperature=0),
    )


async def start(guard: UncertaintyGuard, refunds: Agent[Any]) -> str | None:
    """Run to the end or to the pause; what another process needs, None when nothing waits."""
    result = await guard.run(refunds, "Order A-17 never came. I want my money back.", session_id="refund-1")
    paused = await guard.pause(result)
    if paused is None:
        print(f"completed: {result.final_output}")
        return None
    for request in paused.requests:
        print(f"waits: {request.call.canonical() if request.call else ''} ({request.reason})")
    return paused.text


async def go_on(guard: UncertaintyGuard, refunds: Agent[Any], text: str, decision: str) -> None:
    """Decide on everything that waits, and run on."""
    said: dict[str, Any] = {"message": "see policy"} if decision == "reject" else {}
    if decision == "edit":
        said = {"arguments": {"order_id": "A-17", "amount_eur": 20.0}}
    decisions = [request.decide(decision, principal="you", **said) for request in guard.waiting(text)]
    result = await guard.resume(refunds, text, decisions)
    print(f"completed: {result.final_output}")
    print(f"refunds made: {REFUNDS}")


def main(model: str | None, api_base: str | None, decision: str, state: Path | None) -> None:
    """Run to the pause, or take up a saved run; decide, and run on."""
    set_tracing_disabled(True)
    policy = UncertaintyPolicy(irreversible_tool_names=["refund"])
    guard = UncertaintyGuard(UncertaintyMonitor(policy=policy))
    refunds = agent(model, api_base)
    if state is not None and state.exists():
        asyncio.run(go_on(guard, refunds, state.read_text(), decision))
        state.unlink()
        return
    text = asyncio.run(start(guard, refunds))
    if text is not None and state is not None:
        state.write_text(text)
    elif text is not None:
        asyncio.run(go_on(guard, refunds, text, decision))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--api-base")
    parser.add_argument("--decision", default="approve", choices=["approve", "edit", "reject"])
    parser.add_argument("--state", type=Path)
    options = parser.parse_args()
    main(options.model, options.api_base, options.decision, options.state)
