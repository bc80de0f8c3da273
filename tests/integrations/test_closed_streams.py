"""Whatever ends a run, the stream of its model is closed as without a guard: at once, and by the task that reads it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, closing, suppress
from importlib.metadata import version
from typing import Any

import pytest
from agents import Agent, Model, ModelResponse, ModelSettings, MultiProvider, RunConfig, Runner
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, MessagesState, StateGraph
from openai.types.responses import ResponseFailedEvent, ResponseTextDeltaEvent
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.function import FunctionModel

from grampus_uq import UncertaintyError, UncertaintyMonitor
from grampus_uq.integrations.langchain import UncertaintyMiddleware
from grampus_uq.integrations.langgraph import uncertainty_guard
from grampus_uq.integrations.openai_agents import UncertaintyGuard
from grampus_uq.integrations.openai_agents_model import WatchedModel
from grampus_uq.integrations.pydantic_ai import UncertaintyCapability
from grampus_uq.testing import ScriptedTurn
from tests.benchmarks.integrations_openai_agents import Canned
from tests.integrations.agents_sdk import completed, output

pytestmark = pytest.mark.anyio
SDK = tuple(map(int, version("openai-agents").split(".")[:2]))
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
        self.left = threading.Event()
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

    def blocking(self) -> Iterator[Any]:
        """The stream of a model that is asked without awaiting."""
        self._reader = threading.get_ident()
        try:
            yield self._events[0]
            if self.end == "fails":
                raise ValueError("the model fails")
            if self.end == "is left":
                self.left.wait(10)
            yield self._events[1]
        finally:
            self.note(threading.get_ident())

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

    def note(self, reader: int | None = None) -> None:
        here = reader or asyncio.current_task()
        self.closed.append("by its reader" if here == self._reader else "by another task")


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
    settings = ModelSettings(timeout=0.3) if end == "is late" else ModelSettings()
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
    if end in ("says that it failed", "is late") and SDK < (0, 24):
        pytest.skip("before 0.24 the SDK itself leaves such a stream open")
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

    model = WatchedModel(Streaming(source, "generator"), observe, lambda *given: given, None, lambda agent: True, "")

    async def read() -> None:
        async for _ in model.stream_response(None, "Pay.", None, []):
            pass

    reading = asyncio.ensure_future(read())
    await asyncio.wait([reading], timeout=0.05)
    reading.cancel()
    (raised,) = await asyncio.gather(reading, return_exceptions=True)
    assert isinstance(raised, UncertaintyError if judgement == "aborts the run" else asyncio.CancelledError)
    assert source.closed == ["by its reader"]


class Other(AgentRunner):
    """A runner of somebody else's, which reads a configuration as the SDK's own object."""

    async def run(self, starting_agent: Any, input: Any, **given: Any) -> Any:
        assert isinstance(given["run_config"], RunConfig)
        return await super().run(starting_agent, input, **given)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("config", [None, {"workflow_name": "w"}, {"model_provider": MultiProvider()}, RunConfig()])
async def test_the_provider_that_the_sdk_makes_for_a_run_is_closed_with_it_and_no_other_is(
    config: Any, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for guard in (Runner, UncertaintyGuard(UncertaintyMonitor(), advisory=True)):
        closed: list[Any] = []

        async def close(provider: Any, closed: list[Any] = closed) -> None:
            closed.append(provider)

        monkeypatch.setattr(MultiProvider, "aclose", close)
        model = Streaming(answer("read whole"), "generator") if streamed else Canned(1)
        agent = Agent[Any](name="a", model=model)
        given: dict[str, Any] = {"run_config": config, **({} if guard is Runner else {"session_id": "s"})}
        if streamed:
            result: Any = guard.run_streamed(agent, "Pay.", **given)
            async for _ in result.stream_events():
                pass
        else:
            await guard.run(agent, "Pay.", **given)
        found.append(len(closed))
    assert found[0] == found[1]


async def test_a_runner_of_somebody_elses_is_given_the_sdks_own_configuration() -> None:
    before = get_default_agent_runner()
    set_default_agent_runner(Other())
    try:
        agent = Agent[Any](name="a", model=Canned(1))
        result = await UncertaintyGuard(UncertaintyMonitor(), advisory=True).run(agent, "Pay.", session_id="s")
    finally:
        set_default_agent_runner(before)
    assert result.final_output


# -- the other frameworks, of whose streams their adapters take nothing ------------------------------------------------


class Chat(BaseChatModel):
    """LangChain's model of a source."""

    source: Any

    @property
    def _llm_type(self) -> str:
        return "streaming"

    def _generate(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def _stream(self, *_: Any, **__: Any) -> Iterator[Any]:
        with closing(self.source.blocking()) as chunks:
            yield from chunks

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        async with aclosing(self.source.generator()) as chunks:
            async for chunk in chunks:
                yield chunk


def graph(framework: str, end: str, guarded: bool) -> tuple[Source, Any]:
    """An agent of LangChain, or a graph of LangGraph's."""
    source = Source(end, *(ChatGenerationChunk(message=AIMessageChunk(content=text)) for text in ("It is ", "done.")))
    model, monitor = Chat(source=source), UncertaintyMonitor()
    if framework == "LangChain":
        middleware: list[Any] = [UncertaintyMiddleware(monitor, advisory=True)] if guarded else []
        return source, create_agent(model, [], middleware=middleware)

    def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    async def awaited(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", RunnableLambda(agent, awaited))
    builder.add_edge(START, "agent")
    if guarded:
        uncertainty_guard(monitor, advisory=True).attach(builder, tools=[])
    return source, builder.compile()


PROMPT: Any = {"messages": [HumanMessage("Pay.")]}


class Nothing(AbstractCapability[Any]):
    """A capability in the guard's place: pydantic-ai closes otherwise where there is none."""

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
        return await handler(request_context)


def events(framework: str, end: str, guarded: bool) -> tuple[Source, AsyncGenerator[Any, None]]:
    """A source, and what a run on it streams."""
    if framework != "pydantic-ai":
        source, app = graph(framework, end, guarded)
        return source, app.astream(PROMPT, stream_mode="messages")
    source = Source(end, "It is ", "done.")
    capability: Any = UncertaintyCapability(UncertaintyMonitor(), advisory=True) if guarded else Nothing()
    model = FunctionModel(stream_function=lambda *_: source.generator(), model_name="fake")
    agent = PydanticAgent(model, capabilities=[capability])

    async def texts() -> AsyncGenerator[Any, None]:
        async with agent.run_stream("Pay.") as result:
            async for text in result.stream_text(debounce_by=None):
                yield text

    return source, texts()


async def ended(source: Source, streamed: AsyncGenerator[Any, None]) -> tuple[list[str], str]:
    """Who closed the source, and what was raised."""
    late: asyncio.Timeout

    async def read() -> None:
        nonlocal late
        async with asyncio.timeout(None) as late, aclosing(streamed):
            async for _ in streamed:
                if source.end == "is left":
                    return

    reading = asyncio.ensure_future(read())
    if source.end in ("is cancelled", "is late"):
        await source.begun.wait()
        if source.end == "is late":
            late.reschedule(0)
        else:
            reading.cancel()
    (raised,) = await asyncio.gather(reading, return_exceptions=True)
    return source.closed, repr(raised)


@pytest.mark.parametrize("framework", ["LangChain", "LangGraph", "pydantic-ai"])
@pytest.mark.parametrize("end", [end for end in ENDS if end != "says that it failed"])
async def test_a_models_stream_is_closed_as_the_framework_does_without_a_guard(end: str, framework: str) -> None:
    plain, guarded = [await ended(*events(framework, end, guarded)) for guarded in (False, True)]
    assert guarded == plain
    assert len(guarded[0]) == 1


@pytest.mark.parametrize("framework", ["LangChain", "LangGraph"])
@pytest.mark.parametrize("end", ["read whole", "fails", "is left"])
def test_a_models_stream_is_closed_in_a_run_that_awaits_nothing(end: str, framework: str) -> None:
    for guarded in (False, True):
        source, app = graph(framework, end, guarded)
        with suppress(ValueError), closing(app.stream(PROMPT, stream_mode="messages")) as streamed:
            for _ in streamed:
                if end == "is left":
                    source.left.set()
                    break
        assert source.closed == ["by its reader"]
