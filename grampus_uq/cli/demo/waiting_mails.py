"""The clerk as an agent whose held calls wait in a store: the runner, its tools, and what they did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from grampus_uq.cli.demo.clerk import TOOLS, CallingModel, prompt
from grampus_uq.cli.demo.mail_plan import MODEL, SENSING, clerk_policy
from grampus_uq.cli.demo.mails import Mail
from grampus_uq.core.state import Profile
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import AgentDefinition, Message, ModelResponse
from grampus_uq.records.vocabulary import Effect, Role
from grampus_uq.runtime.runner import AgentRunner
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.tools import FunctionTools, tool

CLERK: Final = AgentDefinition(name="clerk", model=MODEL)
SENTENCES: Final = {"refund": "Pays {amount} EUR back for order {order}.", "cancel": "Cancels order {order}."}


class _OneCall:
    """A client that answers a mail by one call, and its result by a word: the model is too small to go on by itself."""

    def __init__(self, client: ModelClient, mails: Sequence[Mail]) -> None:
        self._calling = CallingModel(client)
        self._mails = {mail.text: mail for mail in mails}

    async def complete(self, *, messages: Sequence[Message], model: str = "", **options: Any) -> ModelResponse:
        if any(message.role is Role.TOOL for message in messages):
            return ModelResponse(content="Done.", model=model)
        mail = next(self._mails[message.content or ""] for message in messages if message.role is Role.USER)
        return await self._calling.complete(
            messages=prompt(mail), model=model, tools=TOOLS, temperature=0.0, top_logprobs=5
        )


def waiting_clerk(client: ModelClient, mails: Sequence[Mail], store: SessionStore, done: list[str]) -> AgentRunner:
    """A runner for these mails under the default limits; what its tools did is appended to `done`."""

    @tool(effect=Effect.IRREVERSIBLE)
    def refund(order: str, amount: str) -> str:
        """Pay money back. It cannot be taken back."""
        done.append(f"refunded {amount} EUR for {order}")
        return done[-1]

    @tool(effect=Effect.IRREVERSIBLE)
    def cancel(order: str) -> str:
        """Cancel an order. It cannot be taken back."""
        done.append(f"cancelled {order}")
        return done[-1]

    monitor = UncertaintyMonitor(profile=Profile(policy=clerk_policy()), sensing=SENSING)
    tools = FunctionTools(refund, cancel)
    return AgentRunner(_OneCall(client, mails), tools, uncertainty_monitor=monitor, store=store)
