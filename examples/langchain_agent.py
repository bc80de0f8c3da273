"""A LangChain agent that deletes files on request, and asks before it does when it is not sure.

python examples/langchain_agent.py                               # a scripted model, no network
python examples/langchain_agent.py --model gpt-4o-mini           # any litellm model that can call tools
python examples/langchain_agent.py --model NAME --api-base URL   # any OpenAI-compatible server
python examples/langchain_agent.py --decision reject             # what happens when you say no
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver

from grampus_uq import ModelClient, Role, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.langchain import UncertaintyMiddleware, as_ai_message, read_message, resume, waiting
from grampus_uq.models import open_model
from grampus_uq.testing import ScriptedModel, answer


@tool
def list_files(folder: str) -> str:
    """List the files of a folder."""
    return "report-2024.pdf, report-2025.pdf, notes.txt"


@tool
def delete_file(name: str) -> str:
    """Delete a file. This cannot be undone."""
    print(f"  * deleting {name}")
    return f"Deleted {name}."


class ClientChatModel(BaseChatModel):
    """Any model client of this package as a LangChain chat model; `init_chat_model` serves as well."""

    client: Any
    tools: Sequence[Any] = ()

    @property
    def _llm_type(self) -> str:
        return "grampus-uq-client"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self.model_copy(update={"tools": [convert_to_openai_tool(one) for one in tools]})

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError("This model is asked with await.")

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        transcript = [read_message(message) for message in messages]
        said = await self.client.complete(messages=transcript, model="", tools=self.tools or None)
        return ChatResult(generations=[ChatGeneration(message=as_ai_message(said))])


def scripted() -> ModelClient:
    """A model that proposes the right call and is moderately sure of it; it is its own judge as well."""
    turns = [
        answer("I look first.", tool_calls=[ToolCall(id="1", name="list_files", arguments={"folder": "."})]),
        answer(
            "I delete the old report.",
            tool_calls=[ToolCall(id="2", name="delete_file", arguments={"name": "report-2024.pdf"})],
        ),
        answer("I am done."),
    ]

    def reply(messages: Any, options: Any) -> Any:
        if "Reply with" in (messages[-1].content or ""):
            return '{"p_true": 0.7}'
        return turns[min(sum(m.role is Role.ASSISTANT for m in messages), len(turns) - 1)]

    return ScriptedModel(reply)


async def main(options: argparse.Namespace) -> None:
    """Run to the pause, decide, and run on."""
    client = scripted() if options.model is None else open_model(options.model, api_base=options.api_base)
    monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["delete"]))
    guard = UncertaintyMiddleware(monitor, model_client=client)
    tools = [list_files, delete_file]
    agent = create_agent(ClientChatModel(client=client), tools=tools, middleware=[guard], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "cleaning"}}
    start: Any = {"messages": [("user", "Delete last year's report.")]}
    await agent.ainvoke(start, config)
    while requests := waiting(await agent.aget_state(config)):
        for request in requests:
            print(f"waits: {request.call.canonical() if request.call else 'the answer'} ({request.reason})")
        said = [request.decide(options.decision, principal="you") for request in requests]
        command: Any = resume(await agent.aget_state(config), said)
        await agent.ainvoke(command, config)
    print("answer:", (await agent.aget_state(config)).values["messages"][-1].text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--api-base")
    parser.add_argument("--decision", default="approve", choices=["approve", "reject"])
    asyncio.run(main(parser.parse_args()))
