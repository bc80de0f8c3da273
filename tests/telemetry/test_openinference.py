"""Under OpenInference's instrumentations our spans are children and a judged call is no second tool span."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy

KIND = "openinference.span.kind"
POLICY = UncertaintyPolicy(enable_p_true=False, irreversible_tool_names=["pay"])


class Traced:
    """A provider that an instrumentation and a monitor share, and what they sent to it."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.application = self.provider.get_tracer("application")

    def monitor(self) -> UncertaintyMonitor:
        return UncertaintyMonitor(policy=POLICY, tracer=self.provider.get_tracer("grampus_uq"))

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        return [span for span in self._kept.get_finished_spans() if name in (None, span.name)]

    def parent(self, span: ReadableSpan) -> ReadableSpan:
        assert span.parent is not None, span.name
        return next(other for other in self.spans() if other.context.span_id == span.parent.span_id)

    def kinds(self, kind: str) -> list[ReadableSpan]:
        return [span for span in self.spans() if (span.attributes or {}).get(KIND) == kind]

    def check(self, *, tool_calls: int) -> None:
        """Every estimate is beneath a span of the instrumentation's, in its trace; a call is one tool span."""
        estimates = self.spans("uncertainty.estimate")
        assert estimates
        for span in estimates:
            parent = self.parent(span)
            assert not parent.name.startswith("uncertainty.")
            assert parent.context.trace_id == span.context.trace_id
        assert len(self.kinds("TOOL")) == tool_calls


@pytest.fixture
def traced() -> Iterator[Traced]:
    found = Traced()
    yield found
    found.provider.shutdown()


def test_under_langchain_and_langgraph(traced: Traced) -> None:
    langchain = pytest.importorskip("openinference.instrumentation.langchain", reason="not installed")
    instrumentor = langchain.LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=traced.provider)
    try:
        anyio.run(_langchain, traced)
    finally:
        instrumentor.uninstrument()
    traced.check(tool_calls=1)
    (approval,) = traced.spans("uncertainty.approval")
    assert (approval.attributes or {})["decision"] == "approve"
    assert (approval.attributes or {})[KIND] == "GUARDRAIL"
    paused = traced.parent(approval)
    assert paused.name == "uncertainty.estimate"
    assert approval.start_time == paused.end_time
    (link,) = approval.links
    decided = next(span for span in traced.spans() if span.context.span_id == link.context.span_id)
    assert decided.start_time >= approval.start_time  # of the part of the run that took the decision up
    assert approval.end_time <= decided.end_time


async def _langchain(traced: Traced) -> None:
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool
    from langgraph.checkpoint.memory import InMemorySaver

    from grampus_uq.integrations.langchain import UncertaintyMiddleware, resume, waiting

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

    @tool
    def pay(to: str) -> str:
        """Pay."""
        return "paid"

    turns = [AIMessage('{"confidence": 0.7}', tool_calls=[{"name": "pay", "args": {"to": "bob"}, "id": "a"}]), "Done."]
    guard = UncertaintyMiddleware(traced.monitor(), advisory=False)
    app = create_agent(Model(messages=iter(turns)), [pay], middleware=[guard], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    await app.ainvoke({"messages": [("user", "pay bob")]}, config)
    state = await app.aget_state(config)
    [request] = waiting(state)
    await app.ainvoke(resume(state, [request.decide("approve", principal="ann")]), config)


def test_under_the_openai_agents_sdk(traced: Traced) -> None:
    sdk = pytest.importorskip("openinference.instrumentation.openai_agents", reason="not installed")
    import agents

    agents.set_tracing_disabled(False)
    instrumentor = sdk.OpenAIAgentsInstrumentor()
    instrumentor.instrument(tracer_provider=traced.provider)
    try:
        anyio.run(_openai_agents, traced)
    finally:
        instrumentor.uninstrument()
        agents.set_trace_processors([])
        agents.set_tracing_disabled(True)
    traced.check(tool_calls=1)


async def _openai_agents(traced: Traced) -> None:
    from agents import Agent, Model, ModelResponse, Usage, function_tool
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from grampus_uq.integrations.openai_agents import UncertaintyGuard

    class Scripted(Model):
        async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
            part = ResponseOutputText(text='{"confidence": 0.9}', type="output_text", annotations=[], logprobs=[])
            said = ResponseOutputMessage(id="m", content=[part], role="assistant", status="completed", type="message")
            arguments = json.dumps({"q": "x"})
            call = ResponseFunctionToolCall(call_id="c", name="search", arguments=arguments, type="function_call")
            first = isinstance(input, str) or not any(item.get("role") == "assistant" for item in input)
            return ModelResponse(output=[said, call] if first else [said], usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    @function_tool
    def search(q: str) -> str:
        return "found"

    guard = UncertaintyGuard(traced.monitor(), advisory=True)
    await guard.run(Agent(name="desk", model=Scripted(), tools=[search]), "look", session_id="s")


def test_under_pydantic_ai(traced: Traced) -> None:
    pydantic_ai = pytest.importorskip("openinference.instrumentation.pydantic_ai", reason="not installed")
    kept, provider = traced._kept, traced.provider
    provider._active_span_processor._span_processors = ()  # its processor reads native spans before they are exported
    provider.add_span_processor(pydantic_ai.OpenInferenceSpanProcessor())
    provider.add_span_processor(SimpleSpanProcessor(kept))
    anyio.run(_pydantic_ai, traced)
    traced.check(tool_calls=1)


async def _pydantic_ai(traced: Traced) -> None:
    from pydantic_ai import Agent, InstrumentationSettings
    from pydantic_ai.capabilities import Instrumentation
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from grampus_uq.integrations.pydantic_ai import UncertaintyCapability

    def scripted(messages: Any, info: Any) -> ModelResponse:
        said = TextPart('{"confidence": 0.9}')
        if any(isinstance(message, ModelResponse) for message in messages):
            return ModelResponse(parts=[said])
        return ModelResponse(parts=[said, ToolCallPart("search", {"q": "x"}, tool_call_id="c")])

    spans = Instrumentation(settings=InstrumentationSettings(tracer_provider=traced.provider))
    agent = Agent(FunctionModel(scripted), capabilities=[spans, UncertaintyCapability(traced.monitor(), advisory=True)])

    @agent.tool_plain
    def search(q: str) -> str:
        return "found"

    await agent.run("look")
