"""The guide's three spans: their attributes, times and parents, on the application's tracer or our own."""

from __future__ import annotations

import dataclasses

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from grampus_uq import (
    Effect,
    GrampusTracer,
    Message,
    Reading,
    Role,
    Sensing,
    Step,
    ToolCall,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.errors import ConfigurationError
from grampus_uq.records.events import StepEvent
from grampus_uq.telemetry.span_attributes import estimate_attributes
from grampus_uq.telemetry.spans import SpanEmitter, resolve_tracer
from grampus_uq.testing import ScriptedModel, top_logprobs
from tests.scripted_runs import Captured

pytestmark = pytest.mark.anyio

PROMPT = (Message(role=Role.USER, content="What is the capital of France? My password is hunter2."),)
POLICY = UncertaintyPolicy(enable_semantic_sampling=True, irreversible_tool_names=["send"])
GUIDE = {
    "step_id",
    "step_type",
    "verbalized_confidence",
    "p_true_confidence",
    "fused_confidence",
    "propagated_confidence",
    "level",
    "action",
    "p_true_ran",
    "samples_used",
}


class Traced:
    """A monitor whose spans are kept in memory."""

    def __init__(self, **given):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("application")
        self.captured = Captured()
        self.monitor = UncertaintyMonitor(policy=POLICY, tracer=self.tracer, processors=[self.captured], **given)
        self.session = self.monitor.session("s1", "agent1")

    def spans(self, name=None):
        found = self.exporter.get_finished_spans()
        return [span for span in found if name in {None, span.name.removeprefix("uncertainty.")}]

    def only(self, name):
        (span,) = self.spans(name)
        return span

    @property
    def step(self):
        return next(event for event in reversed(self.captured.events) if isinstance(event, StepEvent))


def model(judgement="0.7", samples=("Paris",) * 5, delay_s=0.0):
    drawn = iter(samples)
    return ScriptedModel(
        lambda _, options: next(drawn) if options["temperature"] == 0.8 else judgement, delay_s=delay_s
    )


async def speak(traced, text="Confidence: 70%", **given):
    found = {"prompt_messages": PROMPT, "model_client": model()} | given
    return await traced.session.observe_llm_response(text, "llm_1", **found)


# -- which spans --


async def test_a_step_that_goes_well_has_one_span():
    traced = Traced()
    await speak(traced, "Confidence: 100%", model_client=model("1.0"))
    await traced.session.observe_tool_call("send_email", "t")
    assert [span.name for span in traced.spans()] == ["uncertainty.estimate"] * 2


@pytest.mark.parametrize("speculative", [False, True])
async def test_sampling_has_a_span_of_its_own_below_the_estimate(speculative):
    traced = Traced(sensing=Sensing(speculative=speculative))
    await speak(traced, model_client=model("0.7", ["Paris", "Rome", "Paris", "Paris", "Rome"]))
    semantic, estimate = traced.only("semantic"), traced.only("estimate")
    assert semantic.parent.span_id == estimate.context.span_id
    assert (semantic.attributes["sample_count"], semantic.attributes["early_stopped"]) == (5, False)
    assert semantic.attributes["semantic_confidence"] == traced.step.assessment.semantic_confidence
    early = Traced(sensing=Sensing(speculative=speculative))
    await speak(early)
    attributes = early.only("semantic").attributes
    assert (attributes["sample_count"], attributes["early_stopped"]) == (2, True)


async def test_sampling_that_failed_has_a_span_that_says_why():
    traced = Traced()
    await speak(traced, model_client=model("0.7", [ValueError("x")] * 5))
    attributes = traced.only("semantic").attributes
    assert attributes["missing_reason"] == "too_few_samples"
    assert "semantic_confidence" not in attributes


@pytest.mark.parametrize(("before", "level"), [(1.0, "high"), (0.1, "critical")])
async def test_an_uncertain_step_escalates(before, level):
    traced = Traced()
    traced.session.commit(
        Step(step_id="before", kind="decision", time_s=0.0), [Reading(source="verbalized", value=before)]
    )
    traced.exporter.clear()
    await speak(traced, "Confidence: 20%", model_client=None)
    escalate, estimate = traced.only("escalate"), traced.only("estimate")
    assert escalate.parent.span_id == estimate.context.span_id
    assert escalate.attributes["level"] == estimate.attributes["level"] == level
    assert escalate.attributes["irreversible"] is False
    assert escalate.attributes["cumulative_confidence"] == traced.session.state.cumulative
    assert escalate.attributes["guarantee"] == "no guarantee"


@pytest.mark.parametrize(("name", "effect"), [("send_email", None), ("search", Effect.IRREVERSIBLE)])
@pytest.mark.parametrize("rule", ["irreversible_override", "missing_evidence"])
async def test_an_irreversible_call_escalates_at_medium_too(name, effect, rule):
    traced = Traced()
    if rule == "irreversible_override":
        await speak(traced, "Confidence: 70%", model_client=None)
        traced.exporter.clear()
    await traced.session.observe_tool_call(ToolCall(name=name), "t", effect=effect)
    escalate = traced.only("escalate")
    assert (escalate.attributes["level"], escalate.attributes["irreversible"]) == ("medium", True)
    assert (escalate.attributes["action"], escalate.attributes["rule"]) == ("pause_for_human", rule)


async def test_an_acknowledged_alarm_and_an_advisory_one_still_escalate():
    traced = Traced(advisory=True)
    await speak(traced, "Confidence: 0%", model_client=None)
    attributes = traced.only("escalate").attributes
    assert (attributes["action"], attributes["wanted_action"]) == ("proceed_with_log", "pause_for_human")
    acting = Traced()
    await speak(acting, "Confidence: 0%", model_client=None)
    acting.session.record_decision("approve", principal="ann")
    acting.exporter.clear()
    await acting.session.observe_llm_response("", "l2")
    assert acting.only("escalate").attributes["rule"] == "acknowledged"


# -- attributes --


async def test_an_estimate_carries_the_guides_attributes_the_ids_and_numbers_equal_to_the_assessments():
    traced = Traced()
    assessment, action = await speak(traced)
    attributes = dict(traced.only("estimate").attributes)
    assert set(attributes) >= GUIDE | {"session_id", "agent_id"}
    assert (attributes["session_id"], attributes["agent_id"]) == ("s1", "agent1")
    for name in GUIDE - {"level", "action", "p_true_ran"}:
        assert attributes[name] == getattr(assessment, name), name
    assert (attributes["level"], attributes["action"]) == (assessment.level.value, action.value)
    assert attributes["p_true_ran"] is True
    assert attributes["missing_reason"] == assessment.missing_reason
    assert all(traced.only(name).attributes["session_id"] == "s1" for name in ("estimate", "semantic"))


async def test_numbers_that_are_not_always_there_are_attributes_when_they_are():
    traced = Traced()
    coin = top_logprobs({"heads": 0.5, "tails": 0.5})
    assessment, _ = await speak(traced, logprobs=[coin])
    attributes = dict(traced.only("estimate").attributes)
    for name in ("token_probability", "token_entropy", "semantic_confidence"):
        assert attributes[name] == getattr(assessment, name) is not None
    event = dataclasses.replace(
        traced.step,
        assessment=assessment.model_copy(
            update={
                "p_success": 0.25,
                "trajectory_risk": 3.5,
                "log_e_value": -0.5,
                "log_threshold": 3.0,
                "alpha": 0.05,
                "alarm_mode": "anytime",
            }
        ),
    )
    attributes = estimate_attributes(event)
    assert (attributes["p_success"], attributes["uncertainty.trajectory_risk"]) == (0.25, 3.5)
    assert (attributes["uncertainty.log_e_value"], attributes["uncertainty.log_threshold"]) == (-0.5, 3.0)
    assert (attributes["uncertainty.alpha"], attributes["uncertainty.alarm_mode"]) == (0.05, "anytime")


@pytest.mark.parametrize(("client", "ran", "shown"), [(None, False, -1.0), (model("what?"), True, 0.5)])
async def test_p_true_ran_says_whether_it_was_asked_not_whether_it_answered(client, ran, shown):
    traced = Traced()
    await speak(traced, "Confidence: 100%", model_client=client)
    attributes = traced.only("estimate").attributes
    assert (attributes["p_true_ran"], attributes["p_true_confidence"]) == (ran, shown)


async def test_no_text_of_the_model_the_user_or_a_tool_becomes_an_attribute():
    traced = Traced()
    secret = ToolCall(name="send_email", arguments={"to": "hunter2"})
    await speak(traced, "hunter2. Confidence: 0%", tool_calls=[secret])
    await traced.session.observe_tool_call(secret, "t")
    traced.session.observe_tool_result("c", "hunter2")
    traced.session.observe_user("hunter2")
    assert len(traced.spans()) == 5  # a fusion this low is sampled too
    assert "hunter2" not in "".join(span.to_json() for span in traced.spans())
    assert traced.spans()[-1].attributes["gen_ai.tool.name"] == "send_email"


# -- times and parents --


async def test_durations_are_real():
    traced = Traced()
    await speak(traced, model_client=model("0.7", ["Paris", "Rome"] * 3, delay_s=0.02))
    estimate, semantic = traced.only("estimate"), traced.only("semantic")
    event = traced.step
    assert (estimate.start_time, estimate.end_time) == (event.started_ns, event.ended_ns)
    assert estimate.end_time - estimate.start_time >= 60_000_000  # P(True), the pair, the rest: three round trips
    assert semantic.end_time - semantic.start_time >= 40_000_000
    assert estimate.start_time <= semantic.start_time < semantic.end_time <= estimate.end_time


async def test_an_escalation_lasts_as_long_as_the_deciding_and_lies_within_the_step():
    traced = Traced()
    await speak(traced, "Confidence: 0%", model_client=model("0.0", delay_s=0.02))
    estimate, escalate = traced.only("estimate"), traced.only("escalate")
    assert estimate.start_time + 20_000_000 <= escalate.start_time <= escalate.end_time == estimate.end_time
    await traced.session.observe_tool_call("send_email", "t")
    step, asked = traced.spans("estimate")[-1], traced.spans("escalate")[-1]
    assert (asked.start_time, asked.end_time) == (step.start_time, step.end_time)
    assert asked.start_time < asked.end_time


async def test_a_clock_that_was_set_back_gives_no_negative_duration():
    traced = Traced()
    emitter = SpanEmitter(traced.tracer)
    await speak(traced, "Confidence: 0%")
    event = traced.step
    traced.exporter.clear()
    emitter.on_event(dataclasses.replace(event, ended_ns=event.started_ns - 10**9))
    assert traced.spans()
    assert all(span.end_time >= span.start_time for span in traced.spans())


async def test_spans_are_children_of_the_span_that_is_current_in_the_callers_task():
    traced = Traced()

    async def run(name):
        with traced.tracer.start_as_current_span(name):
            session = traced.monitor.session(name)
            await anyio.sleep(0.01)
            await session.observe_llm_response("Confidence: 100%", "l")

    async with anyio.create_task_group() as group:
        for name in ("one", "two"):
            group.start_soon(run, name)
    outer = {span.name: span for span in traced.spans() if span.name in {"one", "two"}}
    for span in traced.spans("estimate"):
        parent = outer[span.attributes["session_id"]]
        assert span.parent.span_id == parent.context.span_id
        assert span.context.trace_id == parent.context.trace_id


async def test_without_a_current_span_a_session_is_a_trace_of_its_own_with_its_first_step_as_the_root():
    traced = Traced()
    for session in (traced.session, traced.monitor.session("s2")):
        for _ in range(3):
            await session.observe_llm_response("Confidence: 100%", "l")
    spans = traced.spans("estimate")
    for root, second, third in (spans[:3], spans[3:]):
        assert root.parent is None
        assert second.parent.span_id == third.parent.span_id == root.context.span_id
        assert root.context.trace_id == second.context.trace_id == third.context.trace_id
    assert spans[0].context.trace_id != spans[3].context.trace_id


async def test_the_current_span_stays_what_it_was():
    traced = Traced()
    with traced.tracer.start_as_current_span("mine") as span:
        await speak(traced)
        assert trace.get_current_span() is span


async def test_other_events_have_no_span():
    traced = Traced()
    traced.session.observe_user("x")
    traced.session.record_decision("approve", principal="ann")
    assert traced.spans() == []


async def test_a_tracer_that_samples_nothing_costs_no_error():
    provider = TracerProvider(sampler=ALWAYS_OFF)
    monitor = UncertaintyMonitor(policy=POLICY, tracer=provider.get_tracer("x"))
    await monitor.session("s").observe_llm_response("Confidence: 0%", "l")
    assert monitor.processor_failures == {}


# -- which tracer --


async def test_any_of_the_three_kinds_of_tracer_is_taken():
    traced = Traced()

    class Holder:
        _tracer = traced.tracer

    assert resolve_tracer(traced.tracer) is traced.tracer
    assert resolve_tracer(Holder()) is traced.tracer
    with GrampusTracer(service_name="x") as own:
        assert callable(resolve_tracer(own).start_span)
    assert resolve_tracer(trace.get_tracer("nobody configured one")) is not None


async def test_a_real_inner_tracer_wins_over_whatever_else_its_holder_answers_to():
    traced = Traced()

    class Chatty:
        _tracer = traced.tracer

        def start_span(self, *args, **options):
            raise AssertionError("not a tracer of OpenTelemetry's")

        def __getattr__(self, name):
            return self.start_span

    assert resolve_tracer(Chatty()) is traced.tracer
    proxy = trace.ProxyTracer("x")
    assert resolve_tracer(proxy) is proxy


@pytest.mark.parametrize("wrong", [3, "tracer", object(), type("Holder", (), {"_tracer": None})()])
async def test_what_holds_no_tracer_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="'tracer'"):
        resolve_tracer(wrong)
