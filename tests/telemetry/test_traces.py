"""Which trace a session's spans are in: over a pause and in another process, sampled or not, beside other sessions."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    Effect,
    FunctionTools,
    ToolCall,
    UncertaintyMonitor,
    UncertaintyPolicy,
    open_store,
)
from grampus_uq.errors import ConfigurationError
from grampus_uq.telemetry import GrampusTracer
from grampus_uq.telemetry.trace_context import SessionTraces, context_of
from grampus_uq.telemetry.tracer import AlarmSampler
from grampus_uq.testing import ScriptedModel, answer
from tests.sampling import sampled
from tests.telemetry.kept_spans import KeptSpans

pytestmark = pytest.mark.anyio
POLICY = UncertaintyPolicy(enable_p_true=False)
SURE, UNSURE = "Confidence: 100%", "Confidence: 5%"


async def step(session, text=SURE, step_id="l"):
    await session.observe_llm_response(text, step_id)


# -- over a pause --


async def test_continue_puts_pause_and_resumption_into_one_trace():
    before = KeptSpans()
    session = before.monitor.session("s1")
    await step(session, UNSURE)
    after = KeptSpans()
    snapshot = json.loads(json.dumps(session.snapshot()))
    await step(after.monitor.session("s1", snapshot=snapshot))
    first, second = before.only("estimate"), after.only("estimate")
    assert second.context.trace_id == first.context.trace_id
    assert second.parent.span_id == first.context.span_id
    assert second.parent.is_remote
    assert not second.links


async def test_an_approval_is_a_span_of_the_wait_beneath_the_step_that_paused_linked_to_the_decision():
    before = KeptSpans(monitor={"policy": POLICY})
    session, call = before.monitor.session("s1", "desk"), ToolCall(id="c", name="pay", arguments={"to": "bob"})
    await session.observe_tool_call(call, "t", effect=Effect.IRREVERSIBLE)
    after = KeptSpans(monitor={"policy": POLICY})
    resumed = after.monitor.session("s1", snapshot=json.loads(json.dumps(session.snapshot())))
    with after.application.start_as_current_span("decide") as decide:
        resumed.record_decision("approve", principal="ann", step_id="t", call=call)
    paused, approval = before.only("estimate"), after.only("approval")
    assert approval.parent.span_id == paused.context.span_id
    assert approval.context.trace_id == paused.context.trace_id
    assert approval.start_time == paused.end_time <= approval.end_time
    assert [link.context.span_id for link in approval.links] == [decide.get_span_context().span_id]
    assert "ann" not in str(approval.attributes)


@given(paused=st.text() | st.none() | st.integers(), since=st.text() | st.integers() | st.none())
def test_what_a_store_says_of_a_pause_is_no_span_unless_it_is_a_place_and_a_time(paused, since):
    carrier = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "paused": paused, "paused_ns": since}
    traces = SessionTraces("continue")
    traces.begin("s", carrier)
    assert traces.paused("s") is None


async def test_link_begins_another_trace_that_links_to_the_first():
    before = KeptSpans()
    session = before.monitor.session("s1")
    await step(session)
    after = KeptSpans(over_pause="link")
    resumed = after.monitor.session("s1", snapshot=session.snapshot())
    await step(resumed)
    await step(resumed)
    first = before.only("estimate")
    second, third = after.spans("estimate")
    assert second.parent is None
    assert second.context.trace_id != first.context.trace_id
    (link,) = second.links
    assert (link.context.trace_id, link.context.span_id) == (first.context.trace_id, first.context.span_id)
    assert third.parent.span_id == second.context.span_id
    assert not third.links


@pytest.mark.parametrize("over_pause", ["continue", "link"])
async def test_a_span_of_the_applications_own_stays_the_parent_and_the_step_links_to_the_trace_before(over_pause):
    before = KeptSpans()
    with before.application.start_as_current_span("invoke_agent desk"):
        session = before.monitor.session("s1")
        await step(session)
    after = KeptSpans(over_pause=over_pause)
    with after.application.start_as_current_span("invoke_agent desk again") as again:
        await step(after.monitor.session("s1", snapshot=session.snapshot()))
    resumed = after.only("estimate")
    assert resumed.parent.span_id == again.get_span_context().span_id
    (link,) = resumed.links
    assert link.context.span_id == before.only("invoke_agent desk").context.span_id


async def test_an_application_can_open_its_own_span_in_the_sessions_trace():
    before = KeptSpans()
    with before.application.start_as_current_span("invoke_agent desk") as theirs:
        session = before.monitor.session("s1")
        await step(session)
    snapshot, after = session.snapshot(), KeptSpans()
    with after.application.start_as_current_span("invoke_agent desk again", context=context_of(snapshot)):
        await step(after.monitor.session("s1", snapshot=snapshot))
    assert {span.context.trace_id for span in after.spans()} == {theirs.get_span_context().trace_id}
    assert not after.only("estimate").links
    assert context_of({}) == {}


async def test_a_process_without_spans_hands_the_trace_on():
    before, after = KeptSpans(), KeptSpans()
    session = before.monitor.session("s1")
    await step(session)
    between = UncertaintyMonitor().session("s1", snapshot=session.snapshot())
    await step(between)
    await step(after.monitor.session("s1", snapshot=between.snapshot()))
    assert after.only("estimate").context.trace_id == before.only("estimate").context.trace_id


@pytest.mark.parametrize(
    "carrier", [None, 3, "x", {}, {"traceparent": 3}, {"traceparent": "00-0-0-01"}, {"traceparent": "é" * 10_000}]
)
async def test_whatever_a_store_holds_as_the_trace_the_session_goes_on(carrier):
    kept = KeptSpans()
    snapshot = kept.monitor.session("s1").snapshot() | {"trace": carrier}
    await step(kept.monitor.session("s1", snapshot=snapshot))
    assert kept.only("estimate").parent is None
    assert context_of(snapshot) == {}
    assert UncertaintyMonitor().session("s1", snapshot=snapshot).snapshot()["v"] == 1


async def test_a_session_id_that_is_used_again_begins_a_trace_of_its_own():
    kept = KeptSpans()
    for _ in range(2):
        await step(kept.monitor.session("s1"))
    first, second = kept.spans("estimate")
    assert second.parent is None
    assert first.context.trace_id != second.context.trace_id


def test_a_runner_that_pauses_in_one_process_and_resumes_in_another_leaves_one_trace(tmp_path):
    """The worker's trace context is in the store: the second process knows nothing else."""
    program = f"""
        import sys
        import anyio
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from grampus_uq import (AgentDefinition, AgentRunner, ApprovalKind, FunctionTools, GrampusTracer,
            UncertaintyMonitor, open_store, tool, Effect)
        from grampus_uq.testing import ScriptedModel, answer
        from grampus_uq import ToolCall

        @tool(effect=Effect.IRREVERSIBLE)
        def pay() -> str:
            "Pay."
            return "paid"

        async def main(resumes):
            exporter = InMemorySpanExporter()
            asks = answer("Confidence: 30%", tool_calls=[ToolCall(id="c", name="pay")])
            turns = iter(["done"] if resumes else [asks])
            with GrampusTracer(service_name="x", exporter=exporter) as tracer:
                monitor = UncertaintyMonitor(tracer=tracer)
                runner = AgentRunner(ScriptedModel(lambda messages, options: next(turns)), FunctionTools(pay),
                    uncertainty_monitor=monitor, store=open_store({str(tmp_path / "store.db")!r}), logprobs=False)
                agent = AgentDefinition(name="desk")
                if resumes:
                    (pending,) = await runner.list_pending_sessions("desk")
                    decision = pending.requests[0].decide(ApprovalKind.APPROVE, principal="ann")
                    result = await runner.resume("desk", "s1", decision, agent_def=agent)
                else:
                    result = await runner.run(agent, "pay", session_id="s1")
                tracer.force_flush()
                for span in exporter.get_finished_spans():
                    print(span.name, format(span.context.trace_id, "x"), result.status.value)

        anyio.run(main, sys.argv[1] == "resume")
    """
    traces = []
    for how in ("run", "resume"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), how], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        traces.append({line.split()[1] for line in done.stdout.splitlines()})
        assert all(
            line.split()[2] == ("waiting_for_human", "completed")[how == "resume"] for line in done.stdout.splitlines()
        )
    assert traces[0] == traces[1]
    assert len(traces[0]) == 1


# -- sampling --


@pytest.mark.parametrize("base", [ALWAYS_OFF, ParentBased(ALWAYS_OFF), ParentBased(TraceIdRatioBased(0.0))])
async def test_no_sampler_loses_an_escalation(base):
    kept = KeptSpans(sampler=AlarmSampler(base))
    session = kept.monitor.session("s1")
    await step(session)
    assert kept.spans() == []
    await step(session, UNSURE)
    assert [span.name for span in kept.spans()] == ["uncertainty.escalate", "uncertainty.estimate"]
    assert kept.only("escalate").parent.span_id == kept.only("estimate").context.span_id


async def test_an_escalation_within_a_trace_that_is_not_sampled_is_kept_in_that_trace():
    kept = KeptSpans(sampler=AlarmSampler(ParentBased(ALWAYS_OFF)))
    with kept.application.start_as_current_span("invoke_agent desk") as theirs:
        assert not theirs.is_recording()
        await step(kept.monitor.session("s1"), UNSURE)
    assert kept.only("estimate").context.trace_id == theirs.get_span_context().trace_id


async def test_a_share_of_the_traces_is_kept_whole():
    kept = KeptSpans(sampler=AlarmSampler(ParentBased(TraceIdRatioBased(0.3))))
    for number in range(400):
        session = kept.monitor.session(f"s{number}")
        for _ in range(3):
            await step(session)
    sizes = {}
    for span in kept.spans():
        sizes[span.context.trace_id] = sizes.get(span.context.trace_id, 0) + 1
    assert set(sizes.values()) == {3}
    assert 60 <= len(sizes) <= 180  # 120 expected; ten standard deviations are 92


async def test_our_own_tracer_samples_so_too_and_refuses_what_is_no_share():
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    with GrampusTracer(service_name="x", exporter=exporter, sample=0.0) as tracer:
        session = UncertaintyMonitor(tracer=tracer).session("s")
        await step(session)
        await step(session, UNSURE)
        await anyio.to_thread.run_sync(tracer.force_flush)
        assert len(exporter.get_finished_spans()) == 2
    with pytest.raises(ConfigurationError, match="sample"):
        GrampusTracer(service_name="x", sample=30)


# -- many sessions at once --


def assert_apart(kept):
    """Every span lies in its own session's trace, under a span of its own session."""
    spans = {span.context.span_id: span for span in kept.spans()}
    owners = {}
    for span in spans.values():
        session = span.attributes["session_id"]
        assert owners.setdefault(span.context.trace_id, session) == session
        if span.parent is not None:
            assert spans[span.parent.span_id].attributes["session_id"] == session
    return set(owners.values())


@pytest.mark.parametrize("around", [False, True])
async def test_concurrent_tasks_never_share_a_parent(around):
    kept = KeptSpans()

    async def run(name):
        session = kept.monitor.session(name)
        for number in range(5):
            await anyio.lowlevel.checkpoint()
            await step(session, UNSURE if number % 2 else SURE)

    async def framed(name):
        with kept.application.start_as_current_span("invoke_agent", attributes={"session_id": name}):
            await run(name)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(framed if around else run, f"s{number}")
    assert assert_apart(kept) == {f"s{number}" for number in range(20)}


@pytest.mark.parametrize("around", [False, True])
def test_thread_pools_that_are_reused_never_share_a_parent(around):
    kept = KeptSpans()
    barrier = threading.Barrier(4)

    def run(name):
        session = kept.monitor.session(name)
        if name in {"s0", "s1", "s2", "s3"}:
            barrier.wait(30)
        if not around:
            return [anyio.run(step, session, UNSURE) for _ in range(3)]
        with kept.application.start_as_current_span("invoke_agent", attributes={"session_id": name}):
            return [anyio.run(step, session) for _ in range(3)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, [f"s{number}" for number in range(20)]))
    assert assert_apart(kept) == {f"s{number}" for number in range(20)}


async def test_steps_of_two_sessions_in_the_same_task_and_thread_take_turns_without_mixing():
    kept = KeptSpans()
    sessions = [kept.monitor.session(name) for name in ("a", "b")]
    for _ in range(4):
        for session in sessions:
            await step(session)
    assert assert_apart(kept) == {"a", "b"}


async def test_streams_that_are_read_in_turns_never_share_a_parent():
    """Two streams are advanced alternately by one task: each step is committed in whatever context asks for it."""
    kept = KeptSpans()
    turns = {"a": 0, "b": 0}

    def runner(name):
        def reply(_messages, _options):
            turns[name] += 1
            return answer(SURE, tool_calls=[ToolCall(id=f"c{turns[name]}", name="look")]) if turns[name] < 4 else "done"

        return AgentRunner(ScriptedModel(reply), FunctionTools(look), uncertainty_monitor=kept.monitor, logprobs=False)

    def look() -> str:
        """Look."""
        return "seen"

    agent = AgentDefinition(name="desk")
    async with (
        aclosing(runner("a").stream(agent, "x", session_id="a")) as one,
        aclosing(runner("b").stream(agent, "x", session_id="b")) as two,
    ):
        open_streams = [one, two]
        while open_streams:
            for stream in list(open_streams):
                try:
                    await anext(stream)
                except StopAsyncIteration:
                    open_streams.remove(stream)
    assert assert_apart(kept) == {"a", "b"}
    assert [span.attributes["session_id"] for span in kept.spans("estimate")][:4] == ["a", "b"] * 2  # in turns


def test_ten_thousand_sessions_are_remembered_only_so_far():
    traces = SessionTraces("continue")
    for number in range(10_000):
        traces.begin(f"s{number}", None)
    assert len(traces._places) == 4096
    assert traces.carrier("s0") is None


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40))
def test_in_any_order_of_steps_a_session_without_a_span_around_it_has_one_root(order):
    kept = KeptSpans()
    sessions = {}
    for number, resumed in order:
        if number not in sessions or resumed:
            snapshot = sessions[number].snapshot() if number in sessions else None
            sessions[number] = kept.monitor.session(f"s{number}", snapshot=snapshot)
        anyio.run(step, sessions[number])
    assert_apart(kept)
    roots = [span.attributes["session_id"] for span in kept.spans() if span.parent is None]
    assert sorted(roots) == sorted(f"s{number}" for number in sessions)


# -- an application's own provider --


@sampled("when", ["after"], full=["before", "after"])
def test_an_applications_own_tracer_provider_is_untouched(when):
    program = f"""
        import anyio
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from grampus_uq import GrampusTracer, UncertaintyMonitor

        theirs, ours = InMemorySpanExporter(), InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(theirs))
        if {when!r} == "before":
            trace.set_tracer_provider(provider)
        with GrampusTracer(service_name="x", exporter=ours) as tracer:
            monitor = UncertaintyMonitor(tracer=tracer)
            if {when!r} == "after":
                trace.set_tracer_provider(provider)
            sampler, resource = provider.sampler, provider.resource
            with trace.get_tracer("application").start_as_current_span("theirs") as span:
                anyio.run(monitor.session("s").observe_llm_response, "Confidence: 1%", "l")
            tracer.force_flush()
        assert trace.get_tracer_provider() is provider
        assert (provider.sampler, provider.resource) == (sampler, resource)
        assert [found.name for found in theirs.get_finished_spans()] == ["theirs"]
        found = ours.get_finished_spans()
        assert {{item.name for item in found}} == {{"uncertainty.estimate", "uncertainty.escalate"}}
        assert {{item.context.trace_id for item in found}} == {{span.get_span_context().trace_id}}
        trace.get_tracer("application").start_span("still open for business").end()
        assert len(theirs.get_finished_spans()) == 2
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=120)


async def test_the_main_numbers_are_copied_onto_the_recording_parent_and_an_escalation_stays():
    kept = KeptSpans()
    with kept.application.start_as_current_span("invoke_agent", attributes={"theirs": 1}):
        session = kept.monitor.session("s1")
        await session.observe_tool_call(ToolCall(name="pay"), "t", effect=Effect.IRREVERSIBLE)
        assessment, _ = await session.observe_llm_response(SURE, "last")
    attributes = kept.only("invoke_agent").attributes
    assert attributes["theirs"] == 1
    assert attributes["uncertainty.step_id"] == "last"
    assert attributes["uncertainty.confidence.propagated"] == assessment.propagated_confidence
    assert attributes["uncertainty.confidence.fused"] == assessment.fused_confidence
    assert (attributes["uncertainty.level"], attributes["uncertainty.escalated"]) == (assessment.level.value, True)
    off = KeptSpans(copy_to_parent=False)
    with off.application.start_as_current_span("invoke_agent"):
        await step(off.monitor.session("s1"))
    assert not off.only("invoke_agent").attributes
    assert not trace.get_current_span().get_span_context().is_valid


def test_an_option_that_does_not_exist_is_refused():
    for wrong in ({"over_pause": "stop"}, {"evaluation_events": "mail"}, {"redact": lambda key, text: text}):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            KeptSpans(**wrong)
    assert open_store("memory:") is not None
