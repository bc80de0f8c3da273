"""A run that was watched and recorded while its spans were kept: it samples, pauses, is answered, and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from grampus_uq import Effect, Message, Outcome, Role, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.recording import Content, RecordingProcessor
from grampus_uq.testing import ScriptedModel

SECRET = "hunter2-5f1c"  # planted in every text that a run has
SAID = f"I look it up: {SECRET}"
POLICY = UncertaintyPolicy(enable_semantic_sampling=True, irreversible_tool_names=["send_money"])
PROMPT = (Message(role=Role.USER, content=f"Pay the rent. The code is {SECRET}."),)


def _model() -> ScriptedModel:
    drawn = iter([f"{SAID}."] * 3 + ["Something else.", f"{SAID}."] * 10)
    return ScriptedModel(lambda _, options: next(drawn) if options["temperature"] == 0.8 else "0.7")


async def watch_first_half(folder: Path, tracer: Any, *, session_id: str = "run-1") -> dict[str, Any]:
    """Until the pause; what comes back is the snapshot that another process goes on from."""
    with RecordingProcessor(folder, content="full") as recorder:
        monitor = UncertaintyMonitor(policy=POLICY, tracer=tracer, processors=[recorder])
        session = monitor.session(session_id, "desk", model="some-model", metadata={"team": "a"})
        session.observe_user(f"Pay the rent with {SECRET}.")
        await session.observe_llm_response(
            f"{SAID}. Confidence: 70%",
            "think",
            prompt_messages=PROMPT,
            model_client=_model(),
            model_id="some-model",
        )
        turn_down = ToolCall(id="c0", name="send_money", arguments={"to": "nobody"})
        await session.observe_tool_call(turn_down, "pay-nobody", effect=Effect.IRREVERSIBLE)
        session.record_decision("reject", principal="ana", step_id="pay-nobody", call=turn_down)
        session.observe_tool_result("c0", "Not executed: a human rejected this call.", is_error=True)
        lookup = ToolCall(id="c1", name="look_up", arguments={"key": SECRET})
        await session.observe_tool_call(lookup, "look", effect=Effect.READ)
        session.observe_tool_result("c1", f"rent: 900 {SECRET}")
        pay = ToolCall(id="c2", name="send_money", arguments={"to": SECRET})
        _, action = await session.observe_tool_call(pay, "pay", effect=Effect.IRREVERSIBLE)
        assert action.stops
        return session.snapshot()


async def watch_second_half(
    folder: Path, tracer: Any, snapshot: dict[str, Any], *, session_id: str = "run-1", content: Content = "full"
) -> None:
    """From the pause on: approved, and the call fails."""
    with RecordingProcessor(folder, content=content) as recorder:
        monitor = UncertaintyMonitor(policy=POLICY, tracer=tracer, processors=[recorder])
        session = monitor.session(session_id, "desk", model="some-model", snapshot=snapshot)
        call = ToolCall(id="c2", name="send_money", arguments={"to": SECRET})
        session.record_decision("approve", principal="ana", step_id="pay", call=call, message=f"ok {SECRET}")
        session.observe_tool_result("c2", f"paid {SECRET}")
        await session.observe_tool_call(ToolCall(id="c3", name="receipt"), "receipt", effect=Effect.READ)
        session.observe_tool_result("c3", f"error: {SECRET}", is_error=True)
        session.finish(Outcome(success=False, note=SECRET))


class Spans:
    """A tracer whose spans are kept."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("application")

    @property
    def finished(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()
