"""Metrics: what a step adds to which instrument, with which labels, through any provider, and what never shows."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import urllib.request
from dataclasses import dataclass, replace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from grampus_uq import Effect, Message, Outcome, Reading, Role, Step, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.errors import ConfigurationError
from grampus_uq.records.events import DecisionEvent, OutcomeEvent, SessionStarted, StepEvent
from grampus_uq.stats.eprocess_thresholds import Mode
from grampus_uq.telemetry import GrampusMeters, MetricsProcessor
from grampus_uq.telemetry.instruments import INSTRUMENTS
from grampus_uq.telemetry.metric_labels import BoundedLabel
from grampus_uq.testing import ScriptedModel, answer
from tests.sampling import sampled
from tests.scripted_runs import Captured, acts, play, watch

PROMPT = (Message(role=Role.USER, content="What is the capital of France?"),)


class Measured:
    """A monitor whose metrics are kept in memory."""

    def __init__(self, policy=None, **given):
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self.reader], shutdown_on_exit=False)
        self.processor = MetricsProcessor(self.provider, **given)
        self.captured = Captured()
        self.monitor = UncertaintyMonitor(policy=policy, processors=[self.processor, self.captured])
        self.session = self.monitor.session("s1", "agent1")

    def points(self):
        """{metric: {sorted labels: value}}; of a histogram its count and sum."""
        found = {}
        data = self.reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                assert scope.scope.name == "grampus_uq"
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        labels = tuple(sorted(point.attributes.items()))
                        value = (point.count, point.sum) if hasattr(point, "count") else point.value
                        found.setdefault(metric.name, {})[labels] = value
        return found

    def event(self, **changed):
        step = next(event for event in reversed(self.captured.events) if isinstance(event, StepEvent))
        return replace(step, assessment=step.assessment.model_copy(update=changed))


def observe(session, text="Confidence: 20%", step_id="llm_1", **given):
    return anyio.run(lambda: session.observe_llm_response(text, step_id, **given))


def test_a_step_is_counted_once_by_action_and_adds_its_two_confidences():
    measured = Measured()
    assessment, action = observe(measured.session)
    points = measured.points()
    assert points["uncertainty.actions"] == {(("action", action.value), ("step_type", "llm_call")): 1}
    assert points["uncertainty.confidence.fused"] == {(): (1, assessment.fused_confidence)}
    assert points["uncertainty.confidence.propagated"] == {(): (1, assessment.propagated_confidence)}
    (duration,) = points["uncertainty.sensing.duration"].values()
    assert duration[0] == 1
    assert duration[1] > 0.0


def test_a_run_is_counted_when_it_begins_and_not_when_it_is_taken_up_again():
    measured = Measured(agent_ids=["agent1"])
    measured.monitor.session("s2", "agent1", snapshot=None)
    measured.monitor.session("s1", "agent1", snapshot=measured.session.snapshot())
    measured.monitor.session("s3", "stranger")
    points = measured.points()["uncertainty.sessions"]
    assert points == {(("agent_id", "agent1"),): 2, (("agent_id", "other"),): 1}


def test_alarms_and_runs_are_shown_at_zero_before_the_first():
    """Prometheus takes a series that begins at 1 for no increase, and the first alarm would be missed."""
    points = Measured().points()
    assert points["uncertainty.sessions"] == {(): 1}
    assert points["uncertainty.alarms"] == {(("mode", mode.value),): 0 for mode in Mode}


def test_a_step_without_evidence_adds_no_confidence_of_its_own():
    """The guide's 0.5 for "nothing was read" is no measurement."""
    measured = Measured()
    anyio.run(lambda: measured.session.observe_tool_call("search", "t"))
    points = measured.points()
    assert "uncertainty.confidence.fused" not in points
    assert "uncertainty.sensing.duration" not in points
    assert points["uncertainty.confidence.propagated"][()][0] == 1


def test_what_a_fitted_profile_adds_is_measured_only_where_it_is_there():
    measured = Measured()
    observe(measured.session)
    assert not measured.points().keys() & {
        "uncertainty.p_success",
        "uncertainty.trajectory_risk",
        "uncertainty.detector.log_m",
    }
    measured.processor.on_event(measured.event(p_success=0.25, trajectory_risk=3.5, log_e_value=2.5))
    points = measured.points()
    assert points["uncertainty.p_success"] == {(): (1, 0.25)}
    assert points["uncertainty.trajectory_risk"] == {(): (1, 3.5)}
    assert points["uncertainty.detector.log_m"] == {(): (1, 2.5)}


def test_evidence_of_success_counts_as_no_evidence_of_failure():
    """OpenTelemetry's histograms take no negative number; the step must not vanish for that."""
    measured = Measured()
    observe(measured.session)
    measured.processor.on_event(measured.event(log_e_value=-4.0))
    assert measured.points()["uncertainty.detector.log_m"] == {(): (1, 0.0)}


@pytest.mark.parametrize("advisory", [False, True])
def test_an_escalation_is_counted_with_level_and_rule_also_where_the_monitor_only_advises(advisory):
    measured = Measured()
    session = UncertaintyMonitor(processors=[measured.processor], advisory=advisory).session("s")
    anyio.run(lambda: session.observe_tool_call(ToolCall(name="pay"), "t", effect=Effect.IRREVERSIBLE))
    points = measured.points()
    assert points["uncertainty.escalations"] == {(("level", "medium"), ("rule", "missing_evidence")): 1}
    (labels,) = points["uncertainty.actions"]
    assert dict(labels)["action"] == ("proceed_with_log" if advisory else "pause_for_human")


def test_a_calm_step_is_no_escalation():
    measured = Measured()
    observe(measured.session, "Confidence: 100%")
    assert "uncertainty.escalations" not in measured.points()


# -- alarms --


def ring(measured, session_id="s1"):
    event = measured.event(rule="detector", alarm_mode="anytime", log_e_value=4.0, log_threshold=3.0)
    measured.processor.on_event(replace(event, session_id=session_id))


def alarms(measured):
    return measured.points().get("uncertainty.alarms", {}).get((("mode", "anytime"),), 0)


def test_an_alarm_is_counted_when_it_begins_however_long_it_rings():
    measured = Measured()
    observe(measured.session)
    for _ in range(5):
        ring(measured)
    ring(measured, "s2")
    assert alarms(measured) == 2


@pytest.mark.parametrize(
    "between",
    [
        DecisionEvent(session_id="s1", agent_id="a", decision="approve", principal="ann", alarm_answered=True),
        DecisionEvent(session_id="s1", agent_id="a", decision="rearm", principal="ann", alarm_rearmed=True),
        OutcomeEvent(session_id="s1", agent_id="a", outcome=Outcome(success=None)),
        SessionStarted(session_id="s1", agent_id="a", time_s=0.0),
    ],
)
def test_an_alarm_that_was_answered_or_whose_run_is_over_counts_again_when_it_begins_again(between):
    measured = Measured()
    observe(measured.session)
    ring(measured)
    measured.processor.on_event(replace(between, session_id="another"))
    ring(measured)
    assert alarms(measured) == 1
    measured.processor.on_event(between)
    ring(measured)
    assert alarms(measured) == 2


def test_five_thousand_runs_that_ring_for_ever_take_bounded_memory():
    measured = Measured()
    observe(measured.session)
    for number in range(5_000):
        ring(measured, f"s{number}")
    assert len(measured.processor._ringing) == 4096
    assert alarms(measured) == 5_000


# -- the monitor's own cost, and what failed --


def test_calls_tokens_cost_and_failures_are_the_monitors_own():
    measured = Measured(policy=UncertaintyPolicy(enable_semantic_sampling=False))
    observe(
        measured.session,
        "I think so.",
        prompt_messages=PROMPT,
        model_client=ScriptedModel(lambda *_: answer("what?", usage=(7, 3))),
    )
    event = measured.event()
    points = measured.points()
    assert points["uncertainty.monitor.calls"][()] == sum(reading.calls for reading in event.readings) > 0
    assert points["uncertainty.monitor.tokens"][()] == 10 * points["uncertainty.monitor.calls"][()]
    assert "uncertainty.monitor.cost" not in points  # no price is known: not 0 dollars
    failures = {dict(labels)["source"]: dict(labels)["reason"] for labels in points["uncertainty.signal.failures"]}
    expected = {
        reading.source: reading.reason
        for reading in event.readings
        if reading.value is None and reading.reason not in ("not_needed", "nothing_to_judge")
    }
    assert failures == expected
    assert failures["verbalized"] == "not_stated"
    measured.processor.on_event(replace(event, readings=(Reading(source="p_true", value=0.5, calls=1, cost_usd=0.25),)))
    assert measured.points()["uncertainty.monitor.cost"] == {(): 0.25}


@given(acts)
def test_every_step_of_any_run_is_counted_and_measured_exactly_once(script):
    measured = Measured()
    monitor = watch(processors=[measured.processor, measured.captured])
    anyio.run(play, monitor.session("s"), script)
    steps = [event for event in measured.captured.events if isinstance(event, StepEvent)]
    points = measured.points()
    assert sum(points.get("uncertainty.actions", {}).values()) == len(steps)
    counts = points.get("uncertainty.confidence.propagated", {(): (0, 0.0)})
    assert counts[()][0] == len(steps)
    fused = [s.assessment.fused_confidence for s in steps if any(r.value is not None for r in s.readings)]
    count, total = points.get("uncertainty.confidence.fused", {(): (0, 0.0)})[()]
    assert (count, total) == (len(fused), pytest.approx(sum(fused)))
    spent = sum(r.input_tokens + r.output_tokens for s in steps for r in s.readings)
    assert points.get("uncertainty.monitor.tokens", {(): 0})[()] == spent


# -- labels --


def test_no_session_step_or_tool_name_is_ever_a_label_and_every_label_is_in_the_table():
    measured = Measured(agent_ids=["agent1"])
    for number in range(50):
        session = measured.monitor.session(f"session-{number}", "agent1")
        anyio.run(lambda s=session, n=number: s.observe_tool_call(f"delete_{n}", f"step-{n}"))
        observe(session, step_id=f"step-{number}")
    for name, points in measured.points().items():
        assert len(points) <= (2 * len(Mode) if name == "uncertainty.alarms" else 4), name
        for labels in points:
            assert set(dict(labels)) <= {*INSTRUMENTS[name].labels, "agent_id"}
            text = str(labels)
            assert not any(word in text for word in ("session-", "step-", "delete_"))


def test_without_an_allow_list_there_is_no_agent_label_and_beyond_it_agents_are_other():
    measured = Measured()
    observe(measured.session)
    assert all("agent_id" not in dict(labels) for points in measured.points().values() for labels in points)
    listed = Measured(agent_ids=["desk"])
    for agent in ("desk", "intruder-1", "intruder-2"):
        observe(listed.monitor.session(f"s-{agent}", agent))
    found = {dict(labels)["agent_id"] for labels in listed.points()["uncertainty.actions"]}
    assert found == {"desk", "other"}


def test_step_kinds_signals_and_reasons_from_outside_cannot_make_series_without_bound():
    measured = Measured()
    for number in range(200):
        readings = [Reading(source=f"signal-{number}", value=None, reason=f"reason-{number}")]
        measured.session.commit(Step(step_id="x", kind=f"kind-{number}", time_s=0.0), readings)
    points = measured.points()
    kinds = {dict(labels)["step_type"] for labels in points["uncertainty.actions"]}
    failures = [dict(labels) for labels in points["uncertainty.signal.failures"]]
    assert len(kinds) == 17
    assert "other" in kinds
    assert {labels["reason"] for labels in failures} == {"other"}
    assert len(failures) == 17
    assert sum(points["uncertainty.actions"].values()) == 200  # none is lost for it


@given(st.lists(st.text(max_size=80), max_size=60), st.integers(0, 20))
def test_a_bounded_label_takes_no_more_than_its_limit_and_always_its_known_values(values, limit):
    label = BoundedLabel(["known"], limit=limit)
    found = {label(value) for value in values}
    assert len(found - {"other", "known"}) <= max(limit - 1, 0)
    assert all(value.isprintable() and len(value) <= 64 for value in found)
    assert label("known") == "known"


# -- what is observed at export --


@dataclass
class Watch:
    log_martingale: float


@dataclass
class Queue:
    dropped: int


def test_gauges_and_drops_are_read_when_they_are_exported():
    waiting, queue, watches = [3], Queue(0), {"p_success": Watch(-0.5)}
    measured = Measured(
        pending_approvals=lambda: waiting[0], calibration_watch=lambda: watches, dropping=[queue, Queue(4)]
    )
    points = measured.points()
    assert points["uncertainty.approvals.pending"] == {(): 3}
    assert points["uncertainty.calibration.watch"] == {(("variant", "p_success"),): -0.5}
    assert points["uncertainty.telemetry.dropped"] == {(("processor", "Queue"),): 4}
    waiting[0], queue.dropped = None, 5
    points = measured.points()
    assert "uncertainty.approvals.pending" not in points  # not known is not zero
    assert points["uncertainty.telemetry.dropped"] == {(("processor", "Queue"),): 9}


def test_a_gauge_that_raises_leaves_the_other_metrics_where_they_are(caplog):
    measured = Measured(pending_approvals=lambda: 1 // 0)
    observe(measured.session)
    points = measured.points()
    assert "uncertainty.actions" in points
    assert "uncertainty.approvals.pending" not in points


def test_what_nobody_supplies_is_no_metric():
    measured = Measured()
    observe(measured.session)
    assert not measured.points().keys() & {"uncertainty.approvals.pending", "uncertainty.calibration.watch"}


def test_every_instrument_of_the_table_is_made_and_none_besides():
    made = Measured(pending_approvals=lambda: 1, calibration_watch=lambda: {"x": Watch(0.0)}, dropping=[Queue(1)])
    session = made.monitor.session("s")
    anyio.run(lambda: session.observe_tool_call(ToolCall(name="pay"), "t", effect=Effect.IRREVERSIBLE))
    observe(session, "I do not know.")
    observe(session, "Confidence: 90%")
    made.processor.on_event(
        replace(
            made.event(p_success=0.5, trajectory_risk=1.0, log_e_value=1.0, rule="detector", alarm_mode="anytime"),
            readings=(Reading(source="p_true", value=0.5, calls=1, input_tokens=1, cost_usd=0.1),),
        )
    )
    assert made.points().keys() == INSTRUMENTS.keys()


def test_threads_lose_no_step():
    measured = Measured()
    sessions = [measured.monitor.session(f"s{n}") for n in range(8)]

    def run(session):
        for number in range(200):
            session.commit(Step(step_id=str(number), kind="llm_call", time_s=0.0), [])

    threads = [threading.Thread(target=run, args=(session,)) for session in sessions]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sum(measured.points()["uncertainty.actions"].values()) == 1600


# -- providers --


def test_prometheus_scrapes_our_own_page_and_nothing_of_the_applications_registry():
    with GrampusMeters(service_name="my-agent", prometheus_port=0) as meters:
        session = UncertaintyMonitor(processors=[MetricsProcessor(meters.provider)]).session("s1")
        observe(session)
        assert meters.force_flush()
        for _ in range(2):  # a flush before, or a second scrape, shows nothing twice
            with urllib.request.urlopen(meters.prometheus.url, timeout=10) as page:
                lines = page.read().decode().splitlines()
            fused = [line for line in lines if line.startswith("uncertainty_confidence_fused_count")]
            assert len(fused) == 1
            assert fused[0].endswith(" 1.0")
            actions = [line for line in lines if line.startswith("uncertainty_actions_total")]
            assert len(actions) == 1
            assert 'step_type="llm_call"' in actions[0]
        assert not any("s1" in line for line in lines)
        assert any('service_name="my-agent"' in line for line in lines)
        assert not any(line.startswith("python_gc") for line in lines)
        assert meters.prometheus.url.startswith("http://127.0.0.1:")
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(meters.prometheus.url, timeout=10)
    assert not [thread for thread in threading.enumerate() if thread is meters.prometheus._thread]


def test_an_interval_that_cannot_be_is_refused():
    with pytest.raises(ConfigurationError, match="interval_s"):
        GrampusMeters(service_name="x", interval_s=0.0)


@sampled("when", ["after"], full=["before", "after", "never"])
def test_the_applications_global_provider_is_used_but_never_set(when):
    program = f"""
        import anyio
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from grampus_uq import UncertaintyMonitor
        from grampus_uq.telemetry import GrampusMeters, MetricsProcessor

        reader = InMemoryMetricReader()
        theirs = MeterProvider(metric_readers=[reader])
        if {when!r} == "before":
            metrics.set_meter_provider(theirs)
        processor = MetricsProcessor()
        with GrampusMeters(service_name="x", prometheus_port=0) as meters:
            own = MetricsProcessor(meters.provider)
            if {when!r} == "after":
                metrics.set_meter_provider(theirs)
            session = UncertaintyMonitor(processors=[processor, own]).session("s")
            anyio.run(session.observe_llm_response, "Confidence: 1%", "l")
        if {when!r} == "never":
            assert type(metrics.get_meter_provider()).__name__ == "_ProxyMeterProvider"
        else:
            assert metrics.get_meter_provider() is theirs
            assert "uncertainty.actions" in reader.get_metrics_data().to_json()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=120)
