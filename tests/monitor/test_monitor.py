"""One monitor for many runs: context isolation, processors that fail, resuming, and configurations refused."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.to_thread
import pytest

from grampus_uq import (
    Exploration,
    Profile,
    Role,
    Sensing,
    ToolCall,
    UncertaintyAction,
    UncertaintyEstimator,
    UncertaintyLevel,
    UncertaintyMonitor,
    UncertaintyPolicy,
    UncertaintyPropagator,
)
from grampus_uq.errors import ConfigurationError
from grampus_uq.integrations import AdapterSettings
from grampus_uq.monitor.monitor import REFLECTION
from grampus_uq.recording.replay import replay
from grampus_uq.records.events import SessionStarted, StepEvent
from tests.scripted_runs import Captured

# -- the session of the current context --


@pytest.mark.anyio
async def test_tasks_that_share_a_monitor_never_see_each_others_session():
    monitor = UncertaintyMonitor()
    seen = {}
    turns = [anyio.Event() for _ in range(3)]

    async def run(n):
        monitor.initialize(f"s{n}", f"a{n}")
        for k in range(n + 1):
            await monitor.observe_llm_response(f"Confidence: {30 * n}%", f"l{k}")
            turns[n].set()
            await turns[(n + 1) % 3].wait()
        seen[n] = monitor.get_belief_state()

    async with anyio.create_task_group() as group:
        for n in range(3):
            group.start_soon(run, n)
    for n in range(3):
        assert (seen[n].session_id, seen[n].agent_id, seen[n].total_steps) == (f"s{n}", f"a{n}", n + 1)
        assert {step.verbalized_confidence for step in seen[n].step_uncertainties} == {30 * n / 100}


@pytest.mark.anyio
async def test_tasks_started_from_a_run_see_its_session_and_what_they_start_is_their_own():
    monitor = UncertaintyMonitor()
    monitor.initialize("parent")
    found = []

    async def child():
        found.append(monitor.current_session().session_id)
        monitor.initialize("child")
        found.append(monitor.current_session().session_id)

    async with anyio.create_task_group() as group:
        group.start_soon(child)
    assert found == ["parent", "child"]
    assert monitor.current_session().session_id == "parent"


@pytest.mark.anyio
async def test_a_worker_thread_of_the_run_sees_its_session_and_a_foreign_thread_does_not():
    monitor = UncertaintyMonitor()
    monitor.initialize("mine")

    def look():
        return monitor.current_session().session_id

    assert await anyio.to_thread.run_sync(look) == "mine"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(look).result().startswith("anonymous-")


def test_two_monitors_in_one_context_keep_their_sessions_apart():
    first, second = UncertaintyMonitor(), UncertaintyMonitor()
    first.initialize("a")
    second.initialize("b")
    assert first.current_session().session_id == "a"
    assert second.current_session().session_id == "b"
    first.initialize("c")
    assert (first.current_session().session_id, second.current_session().session_id) == ("c", "b")


def test_a_monitor_that_is_gone_leaves_nothing_in_the_context():
    """A service that builds a monitor a request in one long-lived context must not grow."""
    gone = []
    for n in range(20):
        monitor = UncertaintyMonitor(processors=[Captured()])
        monitor.initialize(f"s{n}")
        gone.append(weakref.ref(monitor.current_session()))
    del monitor
    gc.collect()
    UncertaintyMonitor().initialize("last")
    gc.collect()
    assert [ref() for ref in gone] == [None] * 20


def test_without_a_start_an_anonymous_session_is_started_once():
    monitor = UncertaintyMonitor()
    first = monitor.current_session()
    assert first.session_id.startswith("anonymous-")
    assert monitor.current_session() is first


@pytest.mark.anyio
async def test_reset_starts_the_same_run_over():
    monitor = UncertaintyMonitor()
    monitor.initialize("s", "a")
    await monitor.observe_llm_response("Confidence: 10%", "l")
    monitor.reset()
    belief = monitor.get_belief_state()
    assert (belief.session_id, belief.agent_id, belief.total_steps, belief.cumulative_confidence) == ("s", "a", 0, 1.0)


# -- the guide's methods act on it --


@pytest.mark.anyio
async def test_the_convenience_methods_do_what_the_sessions_do():
    captured = Captured()
    monitor = UncertaintyMonitor(processors=[captured], policy=UncertaintyPolicy(irreversible_tool_names=["send"]))
    monitor.initialize("s")
    assessment, action = await monitor.observe_llm_response(
        "Confidence: 95%", "l", step_type="decision", external={"verifier": 0.5}
    )
    assert (assessment.step_type, action) == ("decision", assessment.action)
    assessment, action = await monitor.observe_tool_call(ToolCall(name="send_email", arguments={"to": "Alice"}), "t")
    assert action is UncertaintyAction.PAUSE_FOR_HUMAN
    monitor.observe_user("hello")
    monitor.observe_tool_result("c", "sent")
    summary = monitor.summary_metadata()
    assert summary["overall_level"] == UncertaintyLevel.MEDIUM.value == "medium"
    assert (summary["total_steps"], summary["high_uncertainty_steps"], summary["last_step_id"]) == (2, 0, "t")
    assert summary["decision"]["rule"] == "irreversible_override"
    assert summary["decision"]["tool_name"] == "send_email"
    assert [type(event).__name__ for event in captured.events] == [
        "SessionStarted",
        "StepEvent",
        "StepEvent",
        "ObservationEvent",
        "ObservationEvent",
    ]


def test_the_reflection_is_a_system_message_with_the_guides_words():
    message = UncertaintyMonitor().get_reflection_message()
    assert (message.role, message.content) == (Role.SYSTEM, REFLECTION)
    assert "NOT confident" in message.content


# -- processors --


class Failing:
    def __init__(self, error=RuntimeError):
        self.seen = 0
        self.error = error

    def on_event(self, event):
        self.seen += 1
        raise self.error("the disk is full")


class Exiting:
    def on_event(self, event):
        raise KeyboardInterrupt


@pytest.mark.anyio
@pytest.mark.parametrize("error", [OSError, asyncio.CancelledError, SystemExit])
async def test_a_processor_that_fails_is_logged_once_counted_and_touches_nothing(caplog, error):
    failing, after = Failing(error), Captured()
    monitor = UncertaintyMonitor(processors=[failing, after])
    quiet = UncertaintyMonitor()
    with caplog.at_level(logging.DEBUG):
        session, alone = monitor.session("s"), quiet.session("s")
        for n in range(5):
            await session.observe_llm_response(f"Confidence: {n}0%", f"l{n}")
            await alone.observe_llm_response(f"Confidence: {n}0%", f"l{n}")
    assert session.state == alone.state
    assert monitor.processor_failures == {"Failing": 6}
    assert failing.seen == len(after.events) == 6
    assert len([record for record in caplog.records if "Failing" in record.getMessage()]) == 1
    assert error.__name__ in caplog.text


def test_an_interrupt_in_a_processor_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        UncertaintyMonitor(processors=[Exiting()]).session("s")


@pytest.mark.anyio
async def test_a_processor_may_ask_the_session_for_its_belief_while_it_takes_an_event():
    seen = []

    class Asks:
        def on_event(self, event):
            if isinstance(event, StepEvent):
                session = sessions[0]
                seen.append((session.belief().total_steps, session.would_allow("x").level, session.snapshot()["v"]))

    sessions = []
    monitor = UncertaintyMonitor(processors=[Asks()])
    sessions.append(monitor.session("s"))
    with anyio.fail_after(60):
        await sessions[0].observe_llm_response("Confidence: 90%", "l")
    assert seen == [(1, UncertaintyLevel.LOW, 1)]
    assert monitor.processor_failures == {}


def test_failures_on_several_threads_are_all_counted():
    monitor = UncertaintyMonitor(processors=[Failing()])
    start = threading.Barrier(8)

    def work(n):
        start.wait()
        session = monitor.session(f"s{n}")
        for _ in range(50):
            session.observe_user("x")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert monitor.processor_failures == {"Failing": 8 * 51}


def test_many_sessions_on_many_threads_of_one_monitor_equal_each_alone():
    captured = Captured()
    monitor = UncertaintyMonitor(processors=[captured])

    async def run(session, n):
        for k in range(30):
            await session.observe_llm_response(f"Confidence: {(7 * n + 13 * k) % 101}%", f"l{k}")
            await session.observe_tool_call("search", f"t{k}")

    def work(n):
        session = monitor.session(f"s{n}")
        asyncio.run(run(session, n))
        return session.state

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(work, range(8)))
    for n, state in enumerate(together):
        alone = UncertaintyMonitor().session(f"s{n}")
        asyncio.run(run(alone, n))
        assert alone.state == state
    assert all(step.same for step in replay(captured.events, monitor.profile))


# -- sessions --


def test_a_session_says_how_it_began():
    captured = Captured()
    monitor = UncertaintyMonitor(processors=[captured], advisory=True)
    session = monitor.session("s", "a", model="m", prompt_hash="ab", tools_hash="cd", metadata={"team": "x"})
    monitor.session("s", "ignored", snapshot=session.snapshot())
    first, again = captured.events
    assert isinstance(first, SessionStarted)
    assert (first.session_id, first.agent_id, first.model, first.resumed, first.advisory) == (
        "s",
        "a",
        "m",
        False,
        True,
    )
    assert (first.prompt_hash, first.tools_hash, first.metadata) == ("ab", "cd", {"team": "x"})
    assert (again.agent_id, again.resumed) == ("a", True)


def test_a_profile_is_what_estimator_propagator_and_policy_are_together():
    policy = UncertaintyPolicy(low_threshold=0.9)
    profile = Profile(policy=policy)
    assert UncertaintyMonitor(policy=policy).profile == UncertaintyMonitor(profile=profile).profile == profile


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"profile": Profile(), "policy": UncertaintyPolicy()}, "profile"),
        ({"profile": Profile(), "estimator": UncertaintyEstimator()}, "profile"),
        ({"profile": Profile(), "propagator": UncertaintyPropagator()}, "profile"),
        ({"sensing": Sensing(repairs=-1)}, "repairs"),
        ({"tracer": object()}, "tracer"),
        ({"sensing": Sensing(embedder=len)}, "embedder"),
    ],
)
def test_a_wrong_configuration_raises_when_the_monitor_is_built_and_names_the_argument(given, named):
    with pytest.raises(ConfigurationError, match=f"'{named}'"):
        UncertaintyMonitor(**given)


@pytest.mark.parametrize("given", ["false", "0", "", "True", 2, [], object()])
def test_what_is_no_truth_value_makes_nothing_advisory(given):
    monitor = UncertaintyMonitor()
    for made in (
        lambda: UncertaintyMonitor(advisory=given),
        lambda: monitor.session("run", advisory=given),
        lambda: AdapterSettings(monitor=monitor, advisory=given),
    ):
        with pytest.raises(ConfigurationError, match="'advisory' parameter of"):
            made()


@pytest.mark.parametrize(
    ("settings", "given", "named"),
    [
        (Sensing, {"max_overhead": -0.1}, "max_overhead"),
        (Sensing, {"max_overhead": float("nan")}, "max_overhead"),
        (Sensing, {"signals": [object()]}, "signals"),
        (Exploration, {"rate": 1.1}, "rate"),
        (Exploration, {"rate": float("nan")}, "rate"),
    ],
)
def test_a_setting_outside_its_domain_raises_when_it_is_built(settings, given, named):
    with pytest.raises(ConfigurationError, match=f"'{named}'"):
        settings(**given)


def test_everything_is_given_by_name():
    with pytest.raises(TypeError):
        UncertaintyMonitor(UncertaintyEstimator())


@pytest.mark.anyio
async def test_an_advisory_monitor_stops_nothing_and_says_what_it_would_have_done():
    policy = UncertaintyPolicy(irreversible_tool_names=["send"])
    session = UncertaintyMonitor(policy=policy, advisory=True).session("s")
    assessment, action = await session.observe_llm_response("Confidence: 1%", "l")
    assert action is UncertaintyAction.PROCEED_WITH_LOG
    assert assessment.advisory_action is UncertaintyAction.PAUSE_FOR_HUMAN
    verdict = session.would_allow("send_email")
    assert verdict.allowed
    assert "advisory only; would be pause_for_human" in verdict.reason
    assert session.summary()["decision"]["advisory_action"] == "pause_for_human"
