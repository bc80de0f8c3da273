"""`grampus-uq demo --inbox`: what the clerk's monitor holds waits on a page; approving one finishes its run."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from grampus_uq import Message, ModelResponse
from grampus_uq.cli.demo.mails import draw_mails
from grampus_uq.cli.demo_inbox import run_inbox
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.stores import open_store
from grampus_uq.testing import ScriptedModel, answer
from tests.demo.test_mails import right_call
from tests.servers import free_port
from tests.signals.test_call_tokens import one_a_character


def clerk(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
    """Right on every mail, and unsure of every order."""
    mail = next(mail for mail in draw_mails(3, 0) if mail.text == messages[-1].content)
    call = right_call(mail)
    written = json.dumps({"tool": call.name, **call.arguments})
    return answer(written, logprobs=one_a_character(written, mail.order, 0.7))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_held_call_waits_in_the_inbox_and_runs_once_it_is_approved(tmp_path: Path) -> None:
    port = free_port()
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: run_inbox(ScriptedModel(clerk), url, n=3, seed=0, port=port))
        page = await served(f"http://localhost:{port}/sign-in")
        assert page.status_code == 200
        store = open_store(url)
        ledger = Ledger(store)
        waiting = await ledger.pending()
        assert len(waiting) == 3
        (request,) = waiting[0].requests
        await ledger.decide(request.decide("approve", principal="you"))
        state = await ended(ledger, request.session_id)
        assert (state.output, state.tool_calls_made) == ("Done.", 1)
        assert len(await ledger.pending()) == 2
        await store.aclose()
        signal.raise_signal(signal.SIGTERM)


async def served(url: str) -> httpx.Response:
    async with httpx.AsyncClient() as browser:
        with anyio.fail_after(120):
            while True:
                try:
                    return await browser.get(url)
                except httpx.ConnectError:
                    await anyio.sleep(0.05)


async def ended(ledger: Ledger, session: str) -> Any:
    with anyio.fail_after(120):
        while True:
            state, _ = await ledger.known("clerk", session)
            if state.status is AgentStatus.COMPLETED:
                return state
            await anyio.sleep(0.05)
