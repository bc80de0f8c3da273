"""A pydantic-ai agent that pays refunds: it defers the call that moves money until a human decided, in any process.

python examples/pydantic_ai_agent.py                                      # a scripted model, no network
python examples/pydantic_ai_agent.py --state run.json                     # stops at the pause and saves it
python examples/pydantic_ai_agent.py --state run.json --decision edit     # another process takes it up
python examples/pydantic_ai_agent.py --model openai:gpt-4o-mini           # any model name of pydantic-ai
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import DeferredToolRequests

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.pydantic_ai import UncertaintyCapability, resume, waiting

REFUNDS: list[float] = []


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """A model that does the right thing and is moderately sure of it."""
    done = sum(isinstance(message, ModelResponse) for message in messages)
    text = (
        'I look the order up. {"confidence": 0.9}',
        'Not delivered, so I refund it. {"confidence": 0.7}',
        'Your money is on its way. {"confidence": 0.9}',
    )[done]
    calls = [
        [ToolCallPart("get_order", {"order_id": "A-17"}, tool_call_id="c0")],
        [ToolCallPart("refund", {"order_id": "A-17", "amount_eur": 40.0}, tool_call_id="c1")],
        [],
    ][done]
    return ModelResponse(parts=[TextPart(text), *calls])


def refunds(model: str | None) -> Agent[None, Any]:
    """The agent that the user already has, and the capability."""
    policy = UncertaintyPolicy(irreversible_tool_names=["refund"])
    guard = UncertaintyCapability(UncertaintyMonitor(policy=policy))
    agent: Agent[None, Any] = Agent(
        model or FunctionModel(scripted),
        instructions=(
            "You handle refunds. Look the order up before you refund it. "
            'End each message with {"confidence": p}, p being the probability that it is right.'
        ),
        output_type=[str, DeferredToolRequests],
        capabilities=[guard],
    )

    @agent.tool_plain
    def get_order(order_id: str) -> dict[str, Any]:
        """Look an order up."""
        return {"A-17": {"customer": "Ann", "paid_eur": 40.0, "delivered": False}}.get(order_id, {})

    @agent.tool_plain
    def refund(order_id: str, amount_eur: float) -> str:
        """Pay money back to the customer. This cannot be undone."""
        REFUNDS.append(amount_eur)
        return f"refunded {amount_eur:.2f} EUR for {order_id}"

    return agent


def main(model: str | None, decision: str, state: Path | None) -> None:
    """Run to the pause, or take up a saved run; decide, and run on."""
    agent = refunds(model)
    if state is not None and state.exists():
        history = state.read_bytes()
    else:
        result = asyncio.run(agent.run("Order A-17 never came. I want my money back."))
        if not isinstance(result.output, DeferredToolRequests):
            print(f"completed: {result.output}")
            return
        history = result.all_messages_json()
        for request in waiting(history):
            print(f"waits: {request.call.canonical() if request.call else ''} ({request.reason})")
        if state is not None:
            state.write_bytes(history)
            return
    said: dict[str, Any] = {"message": "see policy"} if decision == "reject" else {}
    if decision == "edit":
        said = {"arguments": {"order_id": "A-17", "amount_eur": 20.0}}
    decisions = [request.decide(decision, principal="you", **said) for request in waiting(history)]
    result = asyncio.run(agent.run(**resume(history, decisions)))
    print(f"completed: {result.output}")
    print(f"refunds made: {REFUNDS}")
    if state is not None:
        state.unlink()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--decision", default="approve", choices=["approve", "edit", "reject"])
    parser.add_argument("--state", type=Path)
    options = parser.parse_args()
    main(options.model, options.decision, options.state)
