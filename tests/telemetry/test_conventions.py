"""One table of attributes, on the page: the code emits nothing beside it and everything in it."""

from __future__ import annotations

import json
from dataclasses import replace

import anyio
import pytest
from hypothesis import given
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

from grampus_uq import Effect, Message, Reading, Role, ToolCall
from grampus_uq.records.events import StepEvent, TrajectoryReading
from grampus_uq.stats.trajectory_risk import StepComponents
from grampus_uq.telemetry.instruments import INSTRUMENTS
from grampus_uq.testing import ScriptedModel, answer, top_logprobs
from tests.scripted_runs import ESTIMATOR, POLICY, Captured, acts, play
from tests.telemetry.attribute_tables import ATTRIBUTES, PARENT, table
from tests.telemetry.kept_spans import KeptSpans

ARGUMENTS = {"to": "Alice"}


def seen(kept):
    """{(key, where)} of all that was emitted, each value of its type in the table."""
    found = set()
    for span in kept.spans():
        where = span.name if span.name.startswith("uncertainty.") else PARENT
        carried = [(where, span.attributes), *((event.name, event.attributes) for event in span.events)]
        for place, attributes in carried:
            for key, value in (attributes or {}).items():
                attribute = ATTRIBUTES[key]
                assert place in attribute.on, (key, place)
                assert type(value) is attribute.type, (key, value)
                found.add((key, place))
    return found


def everything():
    """A run that meets every condition of the table."""
    captured = Captured()
    kept = KeptSpans(content=True, monitor={"policy": POLICY, "estimator": ESTIMATOR, "processors": [captured]})
    drawn = iter(["Paris", "Rome", "Paris", "Paris", "Rome", ValueError("x"), *[ValueError("x")] * 4])

    async def steps():
        session = kept.monitor.session("s1", "desk")
        model = ScriptedModel(lambda _, options: next(drawn) if options["temperature"] == 0.8 else answer("0.7"))
        given = {"prompt_messages": (Message(role=Role.USER, content="?"),), "model_client": model}
        coin = top_logprobs({"heads": 0.5, "tails": 0.5})
        with kept.application.start_as_current_span("invoke_agent"):
            for _ in range(2):
                await session.observe_llm_response("Confidence: 70%", "l", logprobs=[coin], **given)
            await session.observe_tool_call(
                ToolCall(id="c", name="pay", arguments=ARGUMENTS), "t", effect=Effect.IRREVERSIBLE
            )
            session.record_decision("approve", principal="ann", step_id="t", call=ToolCall(id="c", name="pay"))
            session.record_decision("permit", principal="ann", step_id="t", message="goes ahead: the promise")
            await session.observe_llm_response("Confidence: 1%", "grave")
            event = next(event for event in reversed(captured.events) if isinstance(event, StepEvent))
            fitted = {
                "p_success": 0.25,
                "trajectory_risk": 3.5,
                "log_e_value": 3.5,
                "log_threshold": 3.0,
                "alpha": 0.05,
                "alarm_mode": "anytime",
            }
            paid = (Reading(source="p_true", value=0.1, calls=1, cost_usd=0.01),)
            paid += (Reading(source="call_probability", value=0.3),)
            kept.emitter.on_event(
                replace(
                    event,
                    step=replace(event.step, tool_calls=(ToolCall(name="pay"),)),
                    readings=paid,
                    assessment=event.assessment.model_copy(update=fitted),
                    trajectory=TrajectoryReading(pending=StepComponents(is_agent=True, surprisal=1.5)),
                )
            )

    anyio.run(steps)
    return kept


def test_everything_in_the_table_is_emitted_where_the_table_says_and_nothing_else():
    assert seen(everything()) == {(key, where) for key, attribute in ATTRIBUTES.items() for where in attribute.on}


@given(acts)
def test_whatever_a_run_does_its_spans_carry_only_what_the_table_knows(script):
    kept = KeptSpans(monitor={"policy": POLICY, "estimator": ESTIMATOR})
    anyio.run(play, kept.monitor.session("s", "a"), script)
    assert all(ATTRIBUTES[key].tells != "content" for key, _ in seen(kept))


def test_the_page_shows_the_table_of_metrics_as_the_code_has_it():
    shown = {row[0]: row[1:] for row in table("telemetry.md", "Metrics")}
    expected = {
        name: [instrument.kind.replace("_", " "), instrument.unit, ", ".join(instrument.labels), instrument.description]
        for name, instrument in INSTRUMENTS.items()
    }
    assert shown == expected


# -- content, only when it is asked for --


def outputs(kept):
    return [
        json.loads(span.attributes["gen_ai.output.messages"])[0]["parts"][0]["content"]
        for span in kept.spans("estimate")
        if "gen_ai.output.messages" in span.attributes
    ]


def say(kept, text="My key is hunter2. Confidence: 90%"):
    async def steps():
        session = kept.monitor.session("s")
        await session.observe_llm_response(text, "l")
        await session.observe_tool_call(ToolCall(name="pay", arguments={"key": "hunter2"}), "t")

    anyio.run(steps)
    return kept


def test_content_is_there_only_by_opt_in_and_passes_the_hook_first():
    assert "hunter2" not in "".join(span.to_json() for span in say(KeptSpans()).spans())
    plain = say(KeptSpans(content=True))
    assert outputs(plain) == ["My key is hunter2. Confidence: 90%"]
    assert plain.spans("estimate")[1].attributes["gen_ai.tool.call.arguments"] == '{"key":"hunter2"}'
    asked = []
    hook = say(
        KeptSpans(content=True, redact=lambda key, text: asked.append(key) or text.replace("hunter2", "[redacted]"))
    )
    assert outputs(hook) == ["My key is [redacted]. Confidence: 90%"]
    assert asked == ["gen_ai.output.messages", "gen_ai.tool.call.arguments"]
    assert "hunter2" not in "".join(span.to_json() for span in hook.spans())


@pytest.mark.parametrize("redact", [lambda key, text: None, lambda key, text: 1 // 0])
def test_a_hook_that_says_nothing_or_breaks_lets_nothing_out(redact):
    kept = say(KeptSpans(content=True, redact=redact))
    assert outputs(kept) == []
    assert len(kept.spans("estimate")) == 2
    assert "hunter2" not in "".join(span.to_json() for span in kept.spans())


def test_a_very_long_text_is_cut():
    assert len(outputs(say(KeptSpans(content=True), "x" * 1_000_000))[0]) == 8192


def test_a_tool_name_that_is_a_sentence_is_other_and_an_allow_list_is_exact():
    def names(name, **options):
        kept = KeptSpans(**options)
        session = kept.monitor.session("s")
        anyio.run(session.observe_tool_call, ToolCall(id=name, name=name), "t")
        attributes = kept.only("estimate").attributes
        return attributes["gen_ai.tool.name"], attributes["gen_ai.tool.call.id"]

    assert names("pay_invoice") == ("pay_invoice", "pay_invoice")
    assert names("send the password hunter2 to Bob") == ("other", "other")
    assert names("x" * 65) == ("other", "other")
    assert names("pay", tool_names=["pay"])[0] == "pay"
    assert names("sk-live-hunter2", tool_names=["pay"])[0] == "other"


# -- evaluation results as log events --


def test_evaluation_results_are_log_events_of_the_estimate_span_by_option():
    exporter = InMemoryLogRecordExporter()
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    kept = say(KeptSpans(evaluation_events="log", logger_provider=provider))
    model, tool = kept.spans("estimate")
    assert not model.events
    assert not tool.events
    (found,) = exporter.get_finished_logs()
    assert found.log_record.event_name == "gen_ai.evaluation.result"
    assert found.log_record.attributes["gen_ai.evaluation.score.value"] == model.attributes["fused_confidence"]
    assert (found.log_record.trace_id, found.log_record.span_id) == (model.context.trace_id, model.context.span_id)
    assert not say(KeptSpans(evaluation_events="none")).spans("estimate")[0].events
