"""Whatever ends a run, the stream of its model is closed as without a guard: at once, and by the task that reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from agents import Agent, Model, ModelResponse, ModelSettings, Runner
from openai.types.responses import ResponseFailedEvent, ResponseTextDeltaEvent

from grampus_uq import UncertaintyError, UncertaintyMonitor
from grampus_uq.integrations.openai_agents import UncertaintyGuard
from grampus_uq.integrations.openai_agents_model import WatchedModel
from grampus_uq.testing import ScriptedTurn
from tests.integrations.agents_sdk import completed, output

pytestmark = pytest.mark.anyio
ENDS = ["read whole", "fails", "says that it failed", "is left", "is cancelled", "is late"]


@pytest.fixture
def anyio_backend() -> str:
    """The SDK runs on asyncio only."""
    return "asyncio"


class Source:
    """A model's stream of two events that ends in one way, and notes who closed it."""

    def __init__(self, end: str, *events: Any) -> None:
        self.end = end
        self.begun = asyncio.Event()
        self.closed: list[str] = []
        self._events = events
        self._reader: Any = None

    async def generator(self) -> AsyncIterator[Any]:
        """The stream as most models give it."""
        try:
            async for event in self.unclosed():
                yield event
        finally:
            self.note()

    async def unclosed(self) -> AsyncIterator[Any]:
        """The stream where closing it is nothing that it notes itself."""
        self._reader = asyncio.current_task()
        yield self._events[0]
        self.begun.set()
        if self.end == "fails":
            raise ValueError("the model fails")
        if self.end in ("is left", "is cancelled", "is late"):
            await asyncio.Event().wait()
        yield self._events[1]

    def note(self) -> None:
        self.closed.append("by its reader" if asyncio.current_task() is self._reader else "by another task")


class Closable:
    """A stream that is no generator, with one method that closes it."""

    def __init__(self, source: Source, closer: str) -> None:
        self._events = source.unclosed()

        async def close() -> None:
            source.note()
            raise ValueError("it cannot be closed")

        setattr(self, closer.removesuffix(" at once"), source.note if closer.endswith(" at once") else close)

    def __aiter__(self) -> Closable:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._events)


class Streaming(Model):
    """Answers once."""

    def __init__(self, source: Source, closer: str) -> None:
        self._source = source
        self._closer = closer

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        raise NotImplementedError

    def stream_response(self, *_: Any, **__: Any) -> Any:
        return self._source.generator() if self._closer == "generator" else Closable(self._source, self._closer)


def answer(end: str) -> Source:
    """The SDK's events of one answer."""
    place = {"item_id": "m", "output_index": 0, "content_index": 0, "logprobs": []}
    first = ResponseTextDeltaEvent(type="response.output_text.delta", delta="It is ", sequence_number=0, **place)
    last: Any = completed(output(ScriptedTurn(text="It is done.")))
    if end == "says that it failed":
        last = ResponseFailedEvent(type="response.failed", response=last.response, sequence_number=1)
    return Source(end, first, last)


async def agents_sdk(end: str, closer: str, guarded: UncertaintyGuard | None) -> tuple[list[str], str]:
    """Who closed the stream of a run of the OpenAI Agents SDK, and what the run raised."""
    source = answer(end)
    settings = ModelSettings(timeout=0.05) if end == "is late" else ModelSettings()
    agent = Agent[Any](name="a", model=Streaming(source, closer), model_settings=settings)
    if guarded is None:
        result = Runner.run_streamed(agent, "Pay.")
    else:
        result = guarded.run_streamed(agent, "Pay.", session_id="s")

    async def read() -> None:
        async for event in result.stream_events():
            if event.type == "raw_response_event" and end == "is left":
                return

    reading = asyncio.ensure_future(read())
    if end == "is cancelled":
        await source.begun.wait()
        reading.cancel()
    (raised,) = await asyncio.gather(reading, return_exceptions=True)
    result.cancel()
    assert result.run_loop_task is not None
    with suppress(BaseException):
        await result.run_loop_task
    return source.closed, repr(raised)


@pytest.mark.parametrize("closer", ["generator", "aclose", "close", "close at once"])
@pytest.mark.parametrize("end", ENDS)
async def test_the_agents_sdk_closes_a_watched_models_stream_as_any_other(end: str, closer: str) -> None:
    closed, raised = await agents_sdk(end, closer, UncertaintyGuard(UncertaintyMonitor(), advisory=True))
    assert (closed, raised) == await agents_sdk(end, closer, None)
    assert set(closed) == {"by its reader"}


@pytest.mark.parametrize("judgement", ["aborts the run", "is cancelled"])
async def test_a_stream_is_closed_where_its_judgement_does_not_end(judgement: str) -> None:
    source = answer("read whole")

    async def observe(*_: Any) -> None:
        if judgement == "aborts the run":
            raise UncertaintyError("aborted")
        await asyncio.Event().wait()

    model = WatchedModel(Streaming(source, "generator"), observe, lambda *given: given, None, lambda agent: True)

    async def read() -> None:
        async for _ in model.stream_response(None, "Pay.", None, []):
            pass

    reading = asyncio.ensure_future(read())
    await asyncio.wait([reading], timeout=0.05)
    reading.cancel()
    (raised,) = await asyncio.gather(reading, return_exceptions=True)
    assert isinstance(raised, UncertaintyError if judgement == "aborts the run" else asyncio.CancelledError)
    assert source.closed == ["by its reader"]
