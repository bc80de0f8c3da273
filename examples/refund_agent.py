"""A refund agent with an irreversible tool: it looks an order up, pauses before money moves, goes on when approved.

python examples/refund_agent.py                                   # a scripted model, no network
python examples/refund_agent.py --model gpt-4o-mini               # any litellm model that can call tools
python examples/refund_agent.py --model NAME --api-base URL       # any OpenAI-compatible server
    python examples/refund_agent.py --store sqlite:///refunds.db      # stop at the pause; then `grampus-uq approvals`
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import anyio
from pydantic import Field

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    ApprovalKind,
    ExecutionResult,
    FunctionTools,
    Message,
    ModelClient,
    ModelResponse,
    Role,
    ToolCall,
    UncertaintyMonitor,
    open_store,
    tool,
)
from grampus_uq.models import open_model
from grampus_uq.testing import ScriptedModel, answer

ORDERS = {"A-17": {"customer": "Ann", "paid_eur": 40.0, "delivered": False}}
REFUNDS: dict[str, float] = {}

AGENT = AgentDefinition(
    name="refunds",
    system_prompt="You handle refunds. Look the order up before you refund it. Refund no more than was paid.",
    max_iterations=8,
)


@tool(effect="read")
def get_order(order_id: str) -> dict[str, Any]:
    """Look an order up."""
    return ORDERS.get(order_id, {"error": "no such order"})


@tool(effect="irreversible")
def refund(order_id: str, amount_eur: Annotated[float, Field(gt=0)], idempotency_key: str = "") -> str:
    """Pay money back to the customer. This cannot be undone."""
    if idempotency_key in REFUNDS:  # the same logical call again: the payment service would say so too
        return "already refunded"
    REFUNDS[idempotency_key] = amount_eur
    return f"refunded {amount_eur:.2f} EUR for {order_id}"


def scripted() -> ScriptedModel:
    """A model that does the right thing and is moderately sure of it; it plays both the agent and its own judge."""
    turns = [
        answer("I look the order up.", tool_calls=[ToolCall(id="1", name="get_order", arguments={"order_id": "A-17"})]),
        answer(
            "Not delivered, so I refund it.",
            tool_calls=[ToolCall(id="2", name="refund", arguments={"order_id": "A-17", "amount_eur": 40.0})],
        ),
        answer("Your 40 EUR are on their way."),
    ]

    def reply(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse | str:
        if "Reply with" in (messages[-1].content or ""):
            return '{"p_true": 0.72}'
        return turns[min(sum(m.role is Role.ASSISTANT for m in messages), len(turns) - 1)]

    return ScriptedModel(reply)


def client(model: str | None, api_base: str | None) -> ModelClient:
    """The scripted model, or a real one."""
    return scripted() if model is None else open_model(model, api_base=api_base)


async def main(model: str | None, api_base: str | None, store_url: str, decision: str) -> ExecutionResult:
    """Run to the pause, decide (unless a store was given), and run on."""
    runner = AgentRunner(
        client(model, api_base),
        FunctionTools(get_order, refund),
        uncertainty_monitor=UncertaintyMonitor(),
        store=open_store(store_url),
    )
    agent = AGENT.model_copy(update={"model": model or "scripted"})
    result = await runner.run(agent, "Order A-17 never came. I want my money back.", session_id="refund-1")
    print(f"{result.status.value}: {result.output or ''}")
    for request in result.pending:
        print(f"  waits: {request.call.canonical() if request.call else 'the answer'} ({request.reason})")
    if store_url != "memory:":
        return result
    while result.pending:
        said = [
            request.decide(ApprovalKind(decision), principal="you", message="see policy") for request in result.pending
        ]
        result = await runner.resume(AGENT.name, "refund-1", said)
        print(f"{result.status.value}: {result.output or ''}")
    print(f"  refunds made: {list(REFUNDS.values())}")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--api-base")
    parser.add_argument("--store", default="memory:")
    parser.add_argument("--decision", default="approve", choices=["approve", "reject"])
    options = parser.parse_args()
    anyio.run(main, options.model, options.api_base, options.store, options.decision)
