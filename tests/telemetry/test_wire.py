"""What is on the wire: spans and metrics by gRPC and by HTTP, field by field, as a collector decodes them."""

from __future__ import annotations

import anyio
import pytest

from grampus_uq import Effect, Message, Role, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.records.events import StepEvent
from grampus_uq.telemetry import GrampusMeters, GrampusTracer, MetricsProcessor
from grampus_uq.telemetry.instruments import INSTRUMENTS
from grampus_uq.testing import ScriptedModel, answer
from tests.scripted_runs import Captured
from tests.telemetry.receivers import http, otlp_grpc

OK = lambda _: (200, {}, b"")  # noqa: E731 (an endpoint that takes everything)
PROTOCOLS = pytest.mark.parametrize(("opened", "protocol"), [(otlp_grpc, "grpc"), (lambda: http(OK), "http/protobuf")])
PROMPT = (Message(role=Role.USER, content="hunter2"),)


def run(**given):
    captured = Captured()
    policy = UncertaintyPolicy(enable_semantic_sampling=True)
    monitor = UncertaintyMonitor(policy=policy, processors=[captured, *given.pop("processors", ())], **given)
    session = monitor.session("s1", "desk")
    drawn = iter(["Paris", "Rome", "Paris", "Paris", "Rome"])

    async def steps():
        await session.observe_llm_response(
            "Paris. Confidence: 70%",
            "llm_1",
            prompt_messages=PROMPT,
            model_client=ScriptedModel(
                lambda _, options: answer(next(drawn) if options["temperature"] == 0.8 else "0.7", usage=(7, 3))
            ),
        )
        await session.observe_tool_call(ToolCall(id="call-1", name="pay"), "tool_1", effect=Effect.IRREVERSIBLE)

    anyio.run(steps)
    return [event for event in captured.events if isinstance(event, StepEvent)]


def plain(attributes):
    """OTLP key-values as Python values; each has exactly the one field of its type."""
    kinds = ("string_value", "double_value", "int_value", "bool_value")
    found = {}
    for item in attributes:
        (kind,) = [kind for kind in kinds if item.value.HasField(kind)]
        assert item.key not in found
        found[item.key] = getattr(item.value, kind)
    return found


@PROTOCOLS
def test_every_field_of_every_span_is_what_the_step_was(opened, protocol):
    with (
        opened() as received,
        GrampusTracer(
            service_name="my-agent",
            otlp_endpoint=received.endpoint,
            protocol=protocol,
            headers={"x-key": "k"},
            resource_attributes={"team": "x"},
        ) as tracer,
    ):
        model, tool = run(tracer=tracer)
        assert tracer.force_flush(30)
        assert tracer.dropped == 0
    assert received.headers[0]["x-key"] == "k"
    resource, scope, _ = received.spans()[0]
    assert plain(resource.attributes).items() >= {"service.name": "my-agent", "team": "x"}.items()
    assert scope.name == "grampus_uq"
    spans = {(span.name, plain(span.attributes)["step_id"]): span for _, _, span in received.spans()}
    assert set(spans) == {
        ("uncertainty.estimate", "llm_1"),
        ("uncertainty.semantic", "llm_1"),
        ("uncertainty.estimate", "tool_1"),
        ("uncertainty.escalate", "tool_1"),
    }
    root = spans["uncertainty.estimate", "llm_1"]
    assert len(root.trace_id) == 16
    assert root.parent_span_id == b""
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (model.started_ns, model.ended_ns)
    for name, step_id in spans.keys() - {("uncertainty.estimate", "llm_1")}:
        span = spans[name, step_id]
        assert span.trace_id == root.trace_id
        above = root if name.endswith("estimate") else spans["uncertainty.estimate", step_id]
        assert span.parent_span_id == above.span_id
        assert span.kind == 1  # INTERNAL
    (event,) = root.events
    assert event.name == "gen_ai.evaluation.result"
    assert event.time_unix_nano == model.ended_ns
    assert plain(event.attributes) == {
        "gen_ai.evaluation.name": "uncertainty.confidence.fused",
        "gen_ai.evaluation.score.value": model.assessment.fused_confidence,
        "gen_ai.evaluation.score.label": model.assessment.level.value,
    }
    step, calls = model.assessment, sum(reading.calls for reading in model.readings)
    assert plain(root.attributes) == {
        "session_id": "s1",
        "agent_id": "desk",
        "step_id": "llm_1",
        "step_type": "llm_call",
        "verbalized_confidence": 0.7,
        "p_true_confidence": 0.7,
        "fused_confidence": step.fused_confidence,
        "propagated_confidence": step.propagated_confidence,
        "semantic_confidence": step.semantic_confidence,
        "level": step.level.value,
        "action": step.action.value,
        "p_true_ran": True,
        "samples_used": 5,
        "rule": "tier",
        "missing_reason": step.missing_reason,
        "gen_ai.conversation.id": "s1",
        "gen_ai.agent.name": "desk",
        "gen_ai.operation.name": "evaluate",
        "openinference.span.kind": "EVALUATOR",
        "uncertainty.level": step.level.value,
        "uncertainty.action": step.action.value,
        "uncertainty.confidence.fused": step.fused_confidence,
        "uncertainty.confidence.propagated": step.propagated_confidence,
        "uncertainty.monitor.calls": calls,
        "uncertainty.monitor.input_tokens": 7 * calls,
        "uncertainty.monitor.output_tokens": 3 * calls,
    } | ({"uncertainty.escalated": True} if ("uncertainty.escalate", "llm_1") in spans else {})
    assert plain(spans["uncertainty.escalate", "tool_1"].attributes) == {
        "session_id": "s1",
        "agent_id": "desk",
        "step_id": "tool_1",
        "gen_ai.conversation.id": "s1",
        "gen_ai.agent.name": "desk",
        "gen_ai.operation.name": "evaluate",
        "openinference.span.kind": "GUARDRAIL",
        "uncertainty.escalated": True,
        "level": tool.assessment.level.value,
        "cumulative_confidence": tool.assessment.propagated_confidence,
        "irreversible": True,
        "action": "pause_for_human",
        "wanted_action": "pause_for_human",
        "rule": "irreversible_override",
        "guarantee": "no guarantee",
    }
    called = plain(spans["uncertainty.estimate", "tool_1"].attributes)
    assert (called["gen_ai.tool.name"], called["gen_ai.tool.call.id"]) == ("pay", "call-1")
    assert not spans["uncertainty.estimate", "tool_1"].events  # nothing was read on it: nothing was evaluated
    assert b"hunter2" not in b"".join(request.SerializeToString() for request in received.traces)


@PROTOCOLS
def test_every_metric_arrives_with_its_unit_buckets_and_cumulative_points(opened, protocol):
    with opened() as received:
        with GrampusMeters(
            service_name="my-agent", otlp_endpoint=received.endpoint, protocol=protocol, headers={"x-key": "k"}
        ) as meters:
            model, tool = run(processors=[MetricsProcessor(meters.provider)])
            assert meters.force_flush(30)
        assert received.headers[0]["x-key"] == "k"
    (resource,) = received.metrics[0].resource_metrics
    assert plain(resource.resource.attributes)["service.name"] == "my-agent"
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "grampus_uq"
    found = {metric.name: metric for metric in scope.metrics}
    for name, metric in found.items():
        instrument = INSTRUMENTS[name]
        assert (metric.unit, metric.description) == (instrument.unit, instrument.description)
        data = metric.histogram if metric.HasField("histogram") else metric.sum
        assert data.aggregation_temporality == 2  # cumulative: what Prometheus needs
        if metric.HasField("sum"):
            assert metric.sum.is_monotonic
        else:
            assert all(tuple(point.explicit_bounds) == instrument.buckets for point in data.data_points)
    (fused,) = found["uncertainty.confidence.fused"].histogram.data_points
    assert (fused.count, fused.sum) == (1, model.assessment.fused_confidence)
    actions = {
        (labels["action"], labels["step_type"]): point.as_int
        for point in found["uncertainty.actions"].sum.data_points
        for labels in [plain(point.attributes)]
    }
    assert actions == {
        (model.assessment.action.value, "llm_call"): 1,
        (tool.assessment.action.value, "tool_call"): 1,
    }
    assert b"s1" not in b"".join(request.SerializeToString() for request in received.metrics)


def test_a_compressed_or_refusing_endpoint_is_seen_as_what_it_is(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    with http(OK) as received:
        with GrampusTracer(service_name="x", otlp_endpoint=received.endpoint, protocol="http/protobuf") as tracer:
            run(tracer=tracer)
        assert received.headers[0]["content-encoding"] == "gzip"
        assert len(received.spans()) == 4
    with (
        http(lambda _: (400, {}, b"no")) as received,
        GrampusTracer(service_name="x", otlp_endpoint=received.endpoint, protocol="http/protobuf") as tracer,
    ):
        run(tracer=tracer)
        assert tracer.force_flush(30)
        assert tracer.dropped == 4  # taken by nobody, and said so
