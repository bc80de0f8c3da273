"""The guide's monitor: belief state, metadata, reflection, tracer, and what COMPAT promises beyond the guide."""

from __future__ import annotations

import json
from datetime import timedelta

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from grampus_uq import (
    AgentBeliefState,
    Message,
    Role,
    Sensing,
    StepUncertainty,
    UncertaintyAction,
    UncertaintyEstimator,
    UncertaintyLevel,
    UncertaintyMonitor,
    UncertaintyPolicy,
    UncertaintySource,
    elicit_confidence,
)
from grampus_uq.testing import ScriptedModel

MESSAGES = [Message(role=Role.USER, content="Summarise this legal brief.")]
policy = UncertaintyPolicy(irreversible_tool_names=["send_email", "delete", "deploy", "transfer"])


async def observed(*texts, judgement="0.9", **given):
    """A monitor that has seen a model say these texts."""
    monitor = UncertaintyMonitor(**given)
    monitor.initialize("s1", "my-agent")
    for n, text in enumerate(texts):
        await monitor.observe_llm_response(
            text, f"llm_{n}", prompt_messages=MESSAGES, model_client=ScriptedModel(judgement), model_id="m"
        )
    return monitor


@pytest.mark.anyio
async def test_the_belief_state_snippet(capsys):
    monitor = await observed('{"confidence": 0.9}', '{"confidence": 0.8}')

    belief = monitor.get_belief_state()

    for step in belief.step_uncertainties:
        print(f"{step.step_id}: level={step.level} propagated={step.propagated_confidence:.3f}")

    # .55 (.4 .9 .75 + .6 .9 .9) + .45 = .8658; then .55 (.4 .8 .75 + .6 .9 .9) + .45 * .8658
    assert capsys.readouterr().out == "llm_0: level=low propagated=0.866\nllm_1: level=medium propagated=0.789\n"
    assert isinstance(belief, AgentBeliefState)
    assert (belief.session_id, belief.agent_id) == ("s1", "my-agent")


@pytest.mark.anyio
async def test_the_metadata_has_the_guides_five_keys_and_is_json():
    monitor = await observed('{"confidence": 0.1}', judgement="0.1")
    meta = monitor.summary_metadata()
    assert f"Paused — level: {meta['overall_level']}, confidence: {meta['cumulative_confidence']:.2f}" == (
        "Paused — level: high, confidence: 0.50"
    )
    assert (meta["total_steps"], meta["high_uncertainty_steps"], meta["last_step_id"]) == (1, 1, "llm_0")
    assert meta["decision"]["action"] == "pause_for_human"  # "says what the pause was decided on"
    assert json.loads(json.dumps(meta)) == meta
    belief = monitor.get_belief_state()
    assert belief.to_summary() == {key: meta[key] for key in belief.to_summary()}
    assert len(belief.escalation_history) == 1


def test_a_belief_starts_with_full_confidence():
    monitor = UncertaintyMonitor()
    monitor.initialize("s1", "my-agent")
    assert monitor.get_belief_state().cumulative_confidence == 1.0
    assert monitor.summary_metadata()["last_step_id"] is None


@pytest.mark.anyio
async def test_a_step_has_the_guides_fields():
    monitor = await observed('{"confidence": 0.9}')
    (step,) = monitor.get_belief_state().step_uncertainties
    assert isinstance(step, StepUncertainty)
    assert (step.step_id, step.step_type) == ("llm_0", "llm_call")
    assert (step.verbalized_confidence, step.p_true_confidence) == (0.9, 0.9)
    assert step.fused_confidence == pytest.approx(0.756)
    assert step.propagated_confidence == pytest.approx(0.8658)
    assert (step.level, step.action) == (UncertaintyLevel.LOW, UncertaintyAction.PROCEED)
    assert step.sources == (UncertaintySource.VERBALIZED, UncertaintySource.P_TRUE, UncertaintySource.PROPAGATED)
    assert (step.reflection_injected, step.reasoning, step.samples_used) == (False, "", 0)
    assert step.timestamp.utcoffset() == timedelta(0)


@pytest.mark.anyio
async def test_observing_returns_the_assessment_and_the_action():
    monitor = UncertaintyMonitor(policy=policy)
    monitor.initialize("s1", "my-agent")
    step, action = await monitor.observe_llm_response(
        '{"confidence": 0.9}', "llm_1", prompt_messages=MESSAGES, model_client=ScriptedModel("0.9"), model_id="m"
    )
    assert (step.step_type, action) == ("llm_call", step.action)
    step, action = await monitor.observe_tool_call("search", "tool_1")
    assert (step.step_type, step.tool_name, action) == ("tool_call", "search", UncertaintyAction.PROCEED)


@pytest.mark.anyio
async def test_a_tool_step_makes_no_model_call():
    model = ScriptedModel("0.9")
    monitor = UncertaintyMonitor(policy=policy)
    monitor.initialize("s1", "my-agent")
    await monitor.observe_llm_response("{}", "l", prompt_messages=MESSAGES, model_client=model, model_id="m")
    asked = len(model.calls)
    await monitor.observe_tool_call("send_email", "t")
    assert len(model.calls) == asked


@pytest.mark.anyio
async def test_the_irreversible_override_of_the_guide_pauses_at_medium():
    monitor = await observed('{"confidence": 0.6}', policy=policy, judgement="0.6")
    assert monitor.get_belief_state().overall_level is UncertaintyLevel.MEDIUM
    step, action = await monitor.observe_tool_call("send_email_to_client", "tool_1")
    assert action is UncertaintyAction.PAUSE_FOR_HUMAN
    assert UncertaintySource.IRREVERSIBLE_TOOL in step.sources
    _, action = await monitor.observe_tool_call("search", "tool_2")
    assert action is UncertaintyAction.PROCEED_WITH_LOG


@pytest.mark.anyio
async def test_high_injects_the_reflection():
    monitor = await observed('{"confidence": 0.1}', judgement="0.1")
    assert monitor.get_belief_state().step_uncertainties[-1].reflection_injected
    message = monitor.get_reflection_message()
    assert message.role == Role.SYSTEM
    assert "NOT confident" in (message.content or "")
    assert "(1) what you know, (2) what you don't know" in (message.content or "")


@pytest.mark.anyio
async def test_the_tracer_snippet():
    from grampus_uq.telemetry import GrampusTracer

    tracer = GrampusTracer(service_name="my-agent", otlp_endpoint="http://localhost:4317")
    monitor = UncertaintyMonitor(policy=policy, tracer=tracer)

    assert monitor.session("s").state.n_steps == 0
    assert trace._TRACER_PROVIDER is None
    tracer.shutdown()


@pytest.mark.anyio
async def test_the_guides_three_spans_under_the_guides_conditions():
    from grampus_uq.telemetry.tracer import GrampusTracer

    exporter = InMemorySpanExporter()
    tracer = GrampusTracer(service_name="my-agent", span_processor=SimpleSpanProcessor(exporter))
    sampling = UncertaintyPolicy(enable_semantic_sampling=True, irreversible_tool_names=["send"])
    same = '{"confidence": 0.7}'  # what the model says again when it is sampled, and its judgement of it
    await observed(same, judgement=same, policy=sampling, tracer=tracer)
    names = [span.name for span in exporter.get_finished_spans()]
    assert names == ["uncertainty.semantic", "uncertainty.estimate"]
    exporter.clear()
    guides_zone = UncertaintyEstimator(semantic_trigger_low=0.5)  # set by hand, or samples are drawn below it too
    await observed('{"confidence": 0.1}', judgement="0.1", policy=sampling, tracer=tracer, estimator=guides_zone)
    names = [span.name for span in exporter.get_finished_spans()]
    assert names == ["uncertainty.escalate", "uncertainty.estimate"]
    exporter.clear()
    monitor = UncertaintyMonitor(policy=sampling, tracer=tracer)
    await monitor.session("s", "a").observe_tool_call("send_email", "t")
    escalate = exporter.get_finished_spans()[0]
    assert (escalate.name, escalate.attributes["irreversible"]) == ("uncertainty.escalate", True)
    assert (escalate.attributes["session_id"], escalate.attributes["agent_id"]) == ("s", "a")


# -- what the guide promises and an implementation in circulation breaks --


@pytest.mark.anyio
@pytest.mark.parametrize(("by_policy", "by_estimator"), [(True, True), (True, False), (False, True), (False, False)])
async def test_7_a_signal_runs_only_if_policy_and_estimator_both_allow_it(by_policy, by_estimator):
    model = ScriptedModel("0.9")
    monitor = UncertaintyMonitor(
        policy=UncertaintyPolicy(enable_p_true=by_policy), estimator=UncertaintyEstimator(enable_p_true=by_estimator)
    )
    step, _ = await monitor.observe_llm_response("Paris", "l", prompt_messages=MESSAGES, model_client=model)
    assert (step.p_true_confidence == 0.9) is (len(model.calls) == 1) is (by_policy and by_estimator)
    assert step.p_true_confidence in {0.9, -1.0}


@pytest.mark.anyio
async def test_8_ten_concurrent_sessions_on_one_monitor_give_the_numbers_of_ten_alone():
    async def run(monitor, n, found):
        monitor.initialize(f"s{n}")
        for k in range(5):
            model = ScriptedModel(f"{(n + k) % 10 / 10}", delay_s=0.001 * ((n * k) % 3))
            await monitor.observe_llm_response(
                f"Confidence: {(3 * n + k) % 10 * 10}%", f"l{k}", prompt_messages=MESSAGES, model_client=model
            )
            await monitor.observe_tool_call("search", f"t{k}")
        found[n] = [step.model_dump(exclude={"timestamp"}) for step in monitor.get_belief_state().step_uncertainties]

    together, alone, shared = {}, {}, UncertaintyMonitor()
    async with anyio.create_task_group() as group:
        for n in range(10):
            group.start_soon(run, shared, n, together)
    for n in range(10):
        await run(UncertaintyMonitor(), n, alone)
    assert together == alone


@pytest.mark.anyio
async def test_silence_and_failure_are_missing_and_no_evidence_inside_the_monitor():
    monitor = await observed("Paris.", judgement=RuntimeError("down"))
    (step,) = monitor.get_belief_state().step_uncertainties
    assert (step.verbalized_confidence, step.p_true_confidence, step.fused_confidence) == (0.5, 0.5, 0.5)
    assert "verbalized: not_stated" in (step.missing_reason or "")
    assert "p_true: model_error" in (step.missing_reason or "")
    assert step.propagated_confidence == 1.0
    assert (step.level, step.action) == (UncertaintyLevel.MEDIUM, UncertaintyAction.PROCEED_WITH_LOG)


@pytest.mark.anyio
async def test_eliciting_repairs_twice_and_then_the_reading_is_missing_as_parse_error():
    asked = elicit_confidence(MESSAGES)
    assert "the probability that the task will eventually be solved correctly from the current state" in (
        asked[0].content or ""
    )
    model = ScriptedModel("I would rather not say")
    monitor = UncertaintyMonitor(policy=UncertaintyPolicy(enable_p_true=False), sensing=Sensing(repairs=2))
    step, _ = await monitor.observe_llm_response("Paris", "l", prompt_messages=asked, model_client=model)
    assert len(model.calls) == 2
    assert "verbalized: parse_error" in (step.missing_reason or "")


@pytest.mark.anyio
async def test_reset_forgets_what_was_believed():
    monitor = await observed('{"confidence": 0.1}', judgement="0.1")
    monitor.reset()
    assert monitor.get_belief_state().to_summary()["total_steps"] == 0
    assert monitor.get_belief_state().cumulative_confidence == 1.0


@pytest.mark.anyio
async def test_results_and_user_texts_are_taken():
    monitor = await observed('{"confidence": 0.9}')
    monitor.observe_tool_result("call_1", "42 rows")
    monitor.observe_user("and now the other one")
    assert monitor.get_belief_state().total_steps == 1
