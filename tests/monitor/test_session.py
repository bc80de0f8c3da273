"""A session is a function of what it saw: live equals replayed, resumed equals uninterrupted, ten equal ten alone."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import (
    Budget,
    Effect,
    MissingReason,
    Outcome,
    Reading,
    Sensing,
    Step,
    TokenUsage,
    ToolCall,
    UncertaintyAction,
    UncertaintyLevel,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.core.state import state_from_json, state_to_json
from grampus_uq.errors import ConfigurationError, DataError, RateLimitedError
from grampus_uq.recording import RecordingProcessor, decode, encode
from grampus_uq.recording.replay import replay, replay_file
from grampus_uq.records.events import DecisionEvent, OutcomeEvent, StepEvent
from grampus_uq.testing import HANG, ScriptedModel, answer
from tests.sampling import examples
from tests.scripted_runs import PROMPT, Captured, Use, acts, play, switches, timeless, watch

BACKENDS = st.sampled_from(["asyncio", "trio"])
some = settings(max_examples=examples(40))
few = settings(max_examples=15)


def through_json(value):
    return json.loads(json.dumps(value, allow_nan=False))


# -- live equals replay --


@some
@given(acts, switches, BACKENDS)
def test_a_replay_through_json_gives_the_same_assessments_and_the_same_state(script, given, backend):
    captured = Captured()
    monitor = watch(processors=[captured], **given)
    session = monitor.session("s", "agent")
    live = anyio.run(play, session, [*script, Use("search")], backend=backend)
    stored = [stored_event(event) for event in captured.events]
    assert stored == captured.events
    replayed = list(replay(stored, monitor.profile))
    assert [step.assessment for step in replayed] == live
    assert all(step.same for step in replayed)
    assert replayed[-1].state == session.state == state_from_json(state_to_json(session.state))


def stored_event(event):
    """The event through JSON, but for those that JSON cannot hold: a text with half an emoji, a NaN."""
    try:
        return decode(encode(event))
    except DataError as error:
        if "surrogate" in str(error) or "finite" in str(error):
            return event
        raise


@few
@given(acts, switches, BACKENDS, st.sampled_from(["full", "hashed", "none"]))
def test_a_recording_on_disk_replays_whatever_text_it_keeps(tmp_path_factory, script, given, backend, content):
    with RecordingProcessor(tmp_path_factory.mktemp("r"), content=content, fsync="none") as recorder:
        monitor = watch(processors=[recorder], **given)
        live = anyio.run(play, monitor.session("s"), script, backend=backend)
        replayed = list(replay_file(recorder.path("s"), monitor.profile))
    assert [step.assessment for step in replayed] == live
    assert all(step.same for step in replayed)


def test_a_changed_reading_does_not_replay_to_the_same_assessment():
    captured = Captured()
    monitor = UncertaintyMonitor(processors=[captured])
    anyio.run(partial(monitor.session("s").observe_llm_response, "Confidence: 90%", "a"))
    start, step = captured.events
    line = encode(step).replace(b'"value":0.9', b'"value":0.8')
    assert not next(replay([start, decode(line)], monitor.profile)).same


# -- resumed equals uninterrupted --


@some
@given(acts, switches, BACKENDS, st.lists(st.integers(0, 12), max_size=3))
def test_a_session_resumed_from_json_in_another_monitor_goes_on_as_if_uninterrupted(script, given, backend, cuts):
    whole = watch(**given).session("s", "agent")
    expected = anyio.run(play, whole, script, backend=backend)
    session, seen, done = watch(**given).session("s", "agent"), [], 0
    for cut in [*sorted(cuts), len(script)]:
        seen += anyio.run(play, session, script[:cut], done, backend=backend)
        done = max(done, cut)
        session = watch(**given).session("s", snapshot=through_json(session.snapshot()))
    assert timeless(seen) == timeless(expected)
    assert session.state == whole.state
    assert untimed(session.belief()) == untimed(whole.belief())
    assert session.summary() == whole.summary()
    assert session.would_allow("send_email") == whole.would_allow("send_email")


@pytest.mark.parametrize("value", ['{"v": 1}', 5, [], b"{}"])
def test_a_snapshot_that_was_not_read_from_its_text_is_refused_by_its_name(value):
    with pytest.raises(DataError, match="'snapshot': must be a mapping"):
        watch().session("s", snapshot=value)


@some
@given(acts, switches, BACKENDS, st.lists(st.integers(0, 12), max_size=6))
def test_a_compact_snapshot_says_what_the_whole_one_says(script, given, backend, cuts):
    session, done = watch(**given).session("s", "agent"), 0
    for cut in sorted(cuts):
        anyio.run(play, session, script[:cut], done, backend=backend)
        done = max(done, cut)
        compact, whole = through_json(session.compact_snapshot()), through_json(session.snapshot(latest=0))
        assert session.compact_snapshot()["state"] == compact["state"]
        again = watch(**given).session("s", snapshot=compact)
        assert again.state == session.state
        assert through_json(again.snapshot(latest=0)) == whole
        if done % 2:  # go on from either: what a session wrote before, and one that wrote nothing yet
            session = again


def untimed(belief):
    return belief.model_dump() | {"step_uncertainties": timeless(belief.step_uncertainties)}


def test_a_recording_of_an_interrupted_run_replays_across_the_interruption():
    captured = Captured()
    monitor = UncertaintyMonitor(processors=[captured])

    async def main():
        session = monitor.session("s")
        await session.observe_llm_response("Confidence: 50%", "a")
        snapshot = through_json(session.snapshot())
        await session.observe_llm_response("Confidence: 10%", "lost")  # committed after the last stored snapshot
        again = monitor.session("s", snapshot=snapshot)
        await again.observe_llm_response("Confidence: 90%", "b")
        return again.state

    state = anyio.run(main)
    replayed = list(replay(captured.events, monitor.profile))
    assert [step.event.step.step_id for step in replayed] == ["a", "lost", "b"]
    assert all(step.same for step in replayed)
    assert replayed[-1].state == state


def test_a_run_that_was_taken_up_from_before_its_first_step_replays_from_there():
    captured = Captured()
    monitor = UncertaintyMonitor(processors=[captured])
    session = monitor.session("s")
    empty = session.snapshot()
    anyio.run(partial(session.observe_llm_response, "Confidence: 10%", "lost"))
    again = monitor.session("s", snapshot=empty)
    anyio.run(partial(again.observe_llm_response, "Confidence: 90%", "a"))
    replayed = list(replay(captured.events, monitor.profile))
    assert all(step.same for step in replayed)
    assert replayed[-1].state == again.state


def test_a_step_that_comes_twice_is_refused_where_nobody_took_the_run_up_again():
    captured = Captured()
    monitor = UncertaintyMonitor(processors=[captured])
    session = monitor.session("s")
    for number in range(2):
        anyio.run(partial(session.observe_tool_call, "search", f"t{number}"))
    with pytest.raises(DataError, match="step 0 of session 's' follows 2 steps"):
        list(replay([*captured.events, captured.events[1]], monitor.profile))


@pytest.mark.parametrize("drop", [1, 2])
def test_a_recording_with_a_hole_is_refused_and_the_place_is_named(drop, tmp_path):
    with RecordingProcessor(tmp_path) as recorder:
        monitor = UncertaintyMonitor(processors=[recorder])
        session = monitor.session("s")
        for number in range(3):
            anyio.run(partial(session.observe_tool_call, "search", f"t{number}"))
        path = recorder.path("s")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for number, line in enumerate(lines) if number != drop))
    with pytest.raises(DataError, match=rf"s\.jsonl:{drop + 1}, field 'assessment.index': step {drop}"):
        list(replay_file(path, monitor.profile))


def test_a_recording_that_begins_in_the_middle_is_refused():
    first, second = Captured(), Captured()
    one, two = UncertaintyMonitor(processors=[first]), UncertaintyMonitor(processors=[second])
    session = one.session("s")
    anyio.run(partial(session.observe_llm_response, "Confidence: 50%", "a"))
    again = two.session("s", snapshot=session.snapshot())
    anyio.run(partial(again.observe_tool_call, "search", "t"))
    with pytest.raises(DataError, match="lack its earlier steps"):
        list(replay(second.events, two.profile))


# -- ten at once equal ten alone --


@few
@given(st.lists(acts, min_size=10, max_size=10), switches, BACKENDS)
def test_ten_interleaved_sessions_on_one_monitor_equal_ten_separate_ones(scripts, given, backend):
    def alone(script):
        session = watch(**given).session("s")
        return timeless(anyio.run(play, session, script, backend=backend)), session.state

    async def together():
        monitor = watch(**given)
        sessions = [monitor.session("s") for _ in scripts]
        found = [None] * len(scripts)

        async def run(index):
            found[index] = timeless(await play(sessions[index], scripts[index]))

        async with anyio.create_task_group() as group:
            for index in range(len(scripts)):
                group.start_soon(run, index)
        return [(seen, session.state) for seen, session in zip(found, sessions, strict=True)]

    assert anyio.run(together, backend=backend) == [alone(script) for script in scripts]


@pytest.mark.anyio
async def test_steps_sensed_side_by_side_in_one_session_are_committed_one_by_one_in_arrival_order():
    captured = Captured()
    session = UncertaintyMonitor(processors=[captured]).session("s")
    slow, quick = ScriptedModel("0.5", delay_s=0.05), ScriptedModel("0.5")

    async def speak(step_id, model):
        await session.observe_llm_response("Confidence: 90%", step_id, prompt_messages=PROMPT, model_client=model)

    async with anyio.create_task_group() as group:
        group.start_soon(speak, "slow", slow)
        group.start_soon(speak, "quick", quick)
    steps = [event for event in captured.events if isinstance(event, StepEvent)]
    assert [event.step.step_id for event in steps] == ["quick", "slow"]
    assert [event.assessment.index for event in steps] == [0, 1]
    assert all(step.same for step in replay(captured.events, session.profile))


def test_threads_that_share_a_session_lose_no_step_and_leave_a_replayable_order():
    captured = Captured()
    session = UncertaintyMonitor(processors=[captured]).session("s")
    start = threading.Barrier(8)

    def work(thread):
        start.wait()
        for number in range(50):
            step = Step(step_id=f"{thread}-{number}", kind="llm_call", time_s=0.0)
            session.commit(step, [Reading(source="verbalized", value=(thread * 50 + number) / 400)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert session.state.n_steps == 400
    steps = [event for event in captured.events if isinstance(event, StepEvent)]
    assert [event.assessment.index for event in steps] == list(range(400))
    assert all(step.same for step in replay(captured.events, session.profile))


# -- would_allow --


@some
@given(acts, switches, BACKENDS, st.sampled_from(["search", "send_email"]), st.none() | st.sampled_from(Effect))
def test_would_allow_is_what_is_then_decided_and_changes_nothing(script, given, backend, name, effect):
    captured = Captured()
    session = watch(processors=[captured], **given).session("s")
    anyio.run(play, session, script, backend=backend)
    before, emitted = session.snapshot(), len(captured.events)
    verdict = session.would_allow(ToolCall(name=name), effect=effect)
    assert session.would_allow(name, effect=effect) == verdict
    assert (session.snapshot(), len(captured.events)) == (before, emitted)
    assessment, action = anyio.run(partial(session.observe_tool_call, name, "t", effect=effect), backend=backend)
    assert (verdict.action, verdict.level, verdict.rule) == (action, assessment.level, assessment.rule)
    assert verdict.allowed is not action.stops
    if assessment.advisory_action is None or not assessment.advisory_action.stops:
        assert verdict.reason == assessment.reasoning
    assert verdict.guarantee is None


# -- what a client does --


FAILURES = {
    "raises": ValueError("x"),
    "rate_limited": RateLimitedError("slow down"),
    "nonsense": object(),
    "hangs": HANG,
    "cancels_itself": asyncio.CancelledError(),
}


@pytest.mark.jumping_clocks
@pytest.mark.anyio
@pytest.mark.parametrize("failure", sorted(FAILURES))
@pytest.mark.parametrize("speculative", [False, True])
@pytest.mark.parametrize("signal", ["verbalized", "p_true", "semantic_entropy"])
async def test_a_client_that_fails_at_one_signal_leaves_the_others_and_the_run(signal, speculative, failure):
    def reply(messages, options):
        asked = messages[-1].content
        where = "p_true" if "True or False" in asked or "p_true" in asked else "verbalized"
        if options.get("temperature") == 0.8:
            where = "semantic_entropy"
        if where == signal:
            return FAILURES[failure]
        return {"verbalized": "0.7", "p_true": "0.65", "semantic_entropy": "Paris"}[where]

    captured, model = Captured(), ScriptedModel(reply)
    budgets = {signal: Budget(timeout_s=0.1 if failure == "hangs" else 30.0)}
    monitor = watch(sensing=Sensing(speculative=speculative, repairs=1, budgets=budgets), processors=[captured])
    session = monitor.session("s")
    assessment, _ = await session.observe_llm_response("Paris.", "a", prompt_messages=PROMPT, model_client=model)
    readings = {reading.source: reading for reading in captured.events[-1].readings}
    failed = readings[signal]
    assert failed.value is None
    reasons = {
        "raises": MissingReason.MODEL_ERROR,
        "rate_limited": MissingReason.RATE_LIMITED,
        "nonsense": MissingReason.MODEL_ERROR,
        "hangs": MissingReason.TIMEOUT,
        "cancels_itself": MissingReason.MODEL_ERROR,
    }
    assert failed.reason == (MissingReason.TOO_FEW_SAMPLES if signal == "semantic_entropy" else reasons[failure])
    assert f"{signal}: {failed.reason}" in assessment.missing_reason
    others = {"verbalized", "p_true", "semantic_entropy"} - {signal}
    assert all(readings[name].value is not None for name in others)
    assert assessment.fused_confidence != 0.5
    assert model.in_flight == 0


@pytest.mark.anyio
@pytest.mark.parametrize("speculative", [False, True])
async def test_a_cancelled_step_is_not_committed_and_the_session_goes_on(speculative):
    captured = Captured()
    session = watch(sensing=Sensing(speculative=speculative), processors=[captured]).session("s")
    before = session.snapshot()
    model = ScriptedModel(HANG)
    with anyio.move_on_after(0.05) as scope:
        await session.observe_llm_response("Paris.", "a", prompt_messages=PROMPT, model_client=model)
    assert scope.cancelled_caught
    assert session.snapshot() == {**before, "unread": ["a"]}
    assert model.in_flight == 0
    assert len(captured.events) == 1  # the session's start
    await session.observe_llm_response("Confidence: 90%", "b")
    assert session.state.n_steps == 1


# -- what the monitor may spend --


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("cap", "calls"), [(0.0, [0, 0, 0]), (0.1, [1, 0, 0]), (0.21, [1, 0, 1]), (100.0, [1, 1, 1]), (None, [1, 1, 1])]
)
async def test_the_monitors_own_tokens_are_capped_at_a_share_of_the_agents(cap, calls):
    model = ScriptedModel(answer("0.9", usage=(20, 1)))
    session = UncertaintyMonitor(sensing=Sensing(max_overhead=cap)).session("s")
    made = []
    for number in range(3):
        before = len(model.calls)
        assessment, _ = await session.observe_llm_response(
            "Confidence: 90%",
            f"l{number}",
            prompt_messages=PROMPT,
            model_client=model,
            usage=TokenUsage(input_tokens=40, output_tokens=10),
        )
        made.append(len(model.calls) - before)
        if not made[-1]:
            assert "p_true: overhead_cap" in assessment.missing_reason
            assert assessment.p_true_confidence == -1.0
            assert assessment.verbalized_confidence == 0.9
    assert made == calls
    assert session.state.monitor_tokens == 21 * sum(calls)
    assert session.state.agent_tokens == 150


@pytest.mark.anyio
async def test_what_the_monitor_spent_is_reported_apart_from_the_agents_usage():
    session = watch().session("s")
    model = ScriptedModel(lambda _, options: "Paris" if options["temperature"] else "0.7")
    await session.observe_llm_response("Confidence: 70%", "a", prompt_messages=PROMPT, model_client=model)
    usage = session.summary()["monitor_usage"]
    assert usage == {"calls": 3, "tokens": 45, "cost_usd": 0.0}
    assert session.state.agent_tokens == 0


# -- hostile content --


COSTS = {
    "calls": st.sampled_from([1, -1, 10**400, "many", None, 1.5]),
    "input_tokens": st.sampled_from([0, -5, 2**63, "x", 1.5, float("nan")]),
    "samples": st.sampled_from([0, -1, None, 10**30]),
    "cost_usd": st.sampled_from([None, 1e308, -1.0, float("nan"), float("inf"), "1"]),
    "duration_s": st.sampled_from([0.0, float("nan"), float("inf")]),
    "early_stopped": st.sampled_from([None, "no", 5]),
    "parts": st.sampled_from([(), 5, [1]]),
    "detail": st.sampled_from([None, "fine", "half an emoji: \ud83d"]),
}


@given(st.fixed_dictionaries({}, optional=COSTS), st.sampled_from([1.0, 1e308, -1e308]), st.sampled_from([1, 10**300]))
@some
def test_whatever_a_signal_or_a_client_says_it_cost_the_run_goes_on_is_recorded_and_can_be_resumed(cost, usd, tokens):
    """A cost of 1e308 dollars, twice, is infinite: the session could not be taken up again in another process."""

    class Spender:
        source = "spender"

        def read(self, step):
            return Reading(source="spender", value=0.5, **cost)

    spent = TokenUsage(input_tokens=tokens, cost_usd=usd)
    client = ScriptedModel(lambda _, options: answer("0.5").model_copy(update={"token_usage": spent}))
    recorded = Captured()
    monitor = UncertaintyMonitor(sensing=Sensing(signals=[Spender()]), processors=[recorded], advisory=True)
    session = monitor.session("s")
    for number in range(3):
        observe = partial(session.observe_llm_response, prompt_messages=PROMPT, model_client=client)
        anyio.run(observe, "Confidence: 90%", f"l{number}")
    assert [decode(encode(event)) for event in recorded.events] == recorded.events
    assert monitor.session("s", snapshot=through_json(session.snapshot())).state == session.state
    assert monitor.session("s", snapshot=through_json(session.compact_snapshot())).state == session.state


@given(st.sampled_from([[1, 2], 5, "text", {"a": float("nan")}, {"a": object()}, {"a": {1}}]))
def test_an_entry_of_a_processor_that_is_no_json_object_costs_the_snapshot_nothing_else(entry):
    class Careless:
        snapshot_key = "careless"

        def on_event(self, event): ...

        def begin(self, session_id, kept): ...

        def snapshot(self, session_id):
            return entry

    monitor = UncertaintyMonitor(processors=[Careless()], advisory=True)
    snapshot = through_json(monitor.session("s").snapshot())
    assert "careless" not in snapshot
    assert monitor.session("s", snapshot=snapshot).session_id == "s"
    assert monitor.processor_failures == {Careless.__qualname__: 1}


@pytest.mark.parametrize("text", ["half an emoji: \ud83d", 5, None, object()])
def test_a_decision_whose_texts_no_recording_holds_is_recorded_all_the_same_where_nothing_is_stopped(text) -> None:
    recorded = Captured()
    session = UncertaintyMonitor(processors=[recorded], advisory=True).session("s")
    session.record_decision("reject", principal=text, step_id=text, message=text)
    assert [decode(encode(event)) for event in recorded.events] == recorded.events


@pytest.mark.anyio
async def test_a_confidence_in_a_tools_output_or_a_users_text_is_not_read():
    session = UncertaintyMonitor().session("s")
    await session.observe_llm_response("Confidence: 20%", "a")
    before = session.state
    session.observe_tool_result("c", '{"confidence": 1.0} Confidence: 100%')
    session.observe_user("<confidence>1.0</confidence>")
    assert session.state == before
    assessment, _ = await session.observe_tool_call(
        ToolCall(name="log", arguments={"confidence": 1.0, "note": '{"confidence": 1.0}'}), "t"
    )
    assert assessment.propagated_confidence == before.cumulative


@pytest.mark.anyio
async def test_a_confidence_of_the_callers_own_counts_only_when_it_has_a_weight_and_is_a_probability():
    weighted = watch().session("s")
    assessment, _ = await weighted.observe_llm_response("", "a", external={"verifier": 0.25})
    assert assessment.fused_confidence == 0.25
    unweighted = UncertaintyMonitor().session("s")
    assessment, _ = await unweighted.observe_llm_response("", "a", external={"verifier": 0.25})
    assert "no reading on this step" in assessment.missing_reason
    for bad in (1.5, float("nan"), True, None, "0.5"):
        with pytest.raises(ConfigurationError, match="external"):
            await weighted.observe_llm_response("", "b", external={"verifier": bad})
    assert weighted.state.n_steps == 1


@pytest.mark.anyio
async def test_none_as_text_is_an_empty_text():
    assessment, _ = await UncertaintyMonitor().session("s").observe_llm_response(None, "a")
    assert assessment.verbalized_confidence == 0.5
    assert "not_stated" in assessment.missing_reason


# -- bounded state --


def test_the_state_of_a_long_run_is_no_larger_than_that_of_a_short_one():
    session = UncertaintyMonitor().session("s")
    sizes = {}
    for number in range(1, 10_001):
        kind = "tool_call" if number % 2 else "llm_call"
        readings = [Reading(source="verbalized", value=(number * 7919 % 1000) / 1000)] if number % 2 == 0 else []
        session.commit(Step(step_id=f"step-{number}", kind=kind, time_s=float(number)), readings)
        if number in (1000, 10_000):
            sizes[number] = (len(state_to_json(session.state)), len(json.dumps(session.snapshot())))
    assert sizes[10_000][0] <= 1.1 * sizes[1000][0]
    assert sizes[10_000][1] <= 1.1 * sizes[1000][1]
    assert session.belief().total_steps == 10_000
    assert len(session.belief().step_uncertainties) == 64


# -- snapshots that are not ours --


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"v": 3}, "v"),
        ({"v": 2}, "state"),
        ({"v": 2, "state": {"session_id": "s", "text": "[1]"}}, "state"),
        ({"v": 2, "state": {"session_id": "s", "text": "{"}}, "state"),
        ({"v": 2, "state": {"session_id": "s", "text": 5}}, "state"),
        ({"v": 2, "state": {"session_id": "s", "text": "{}", "cumulative": 1.0}}, "state"),
        ({"v": 2, "state": "x"}, "state"),
        ({"v": 2, "state": None}, "state"),
        ({"v": None}, "v"),
        ({"state": None}, ""),
        ({"state": {}}, "session_id"),
        ({"recent": None}, "recent"),
        ({"recent": [{}]}, "recent"),
        ({"escalations": [3]}, "escalations"),
        ({"escalations": {"a": 1}}, "escalations"),
        ({"recent": [object()]}, "recent"),
    ],
)
def test_a_snapshot_that_is_not_one_is_refused_naming_the_field(change, field):
    snapshot = UncertaintyMonitor().session("s").snapshot() | change
    with pytest.raises(DataError) as refused:
        UncertaintyMonitor().session("s", snapshot=snapshot)
    assert refused.value.field.startswith(field)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cumulative", 7.0),
        ("cumulative", float("nan")),
        ("cumulative", "high"),
        ("worst", -0.1),
        ("n_steps", -1),
        ("level", "fine"),
        ("monitor_cost_usd", float("inf")),
        ("session_id", 3),
        ("is_trusted", True),
    ],
)
def test_a_stored_state_outside_its_domain_is_refused_naming_the_field(name, value):
    snapshot = UncertaintyMonitor().session("s").snapshot()
    snapshot["state"][name] = value
    with pytest.raises(DataError) as refused:
        UncertaintyMonitor().session("s", snapshot=snapshot)
    assert refused.value.field == name


def test_a_snapshot_of_another_session_is_refused():
    snapshot = UncertaintyMonitor().session("s").snapshot()
    with pytest.raises(ConfigurationError, match="'other'"):
        UncertaintyMonitor().session("other", snapshot=snapshot)


# -- the rest of a run --


def test_every_act_is_an_event_in_the_order_in_which_it_happened():
    captured = Captured()
    session = UncertaintyMonitor(processors=[captured]).session("s", "agent")
    call = ToolCall(id="c1", name="pay", arguments={"to": "Alice"})
    session.observe_user("Pay Alice.")
    session.commit(Step(step_id="a", kind="llm_call", time_s=1.0), [Reading(source="verbalized", value=0.1)])
    session.record_decision("approve", principal="ann", step_id="a", call=call, message="fine")
    session.observe_tool_result("c1", "paid", is_error=True)
    session.finish(Outcome(success=True))
    assert all((event.session_id, event.agent_id) == ("s", "agent") for event in captured.events)
    _, said, _, decided, heard, ended = captured.events
    assert (said.kind, said.text) == ("user", "Pay Alice.")
    assert (decided.decision, decided.principal, decided.message) == ("approve", "ann", "fine")
    assert (decided.call_id, decided.call_digest) == ("c1", call.digest())
    assert decided.acknowledged is session.state.level is UncertaintyLevel.HIGH
    assert (heard.kind, heard.call_id, heard.is_error) == ("tool_result", "c1", True)
    assert isinstance(ended, OutcomeEvent)
    assert ended.outcome.success


def test_a_decision_that_acknowledges_nothing_leaves_the_alarm_armed():
    session = UncertaintyMonitor(policy=UncertaintyPolicy(high_threshold=0.0)).session("s")
    low = [Reading(source="verbalized", value=0.1)]
    step = partial(Step, kind="llm_call", time_s=0.0)
    assert session.commit(step(step_id="a"), low).action is UncertaintyAction.PAUSE_FOR_HUMAN
    session.record_decision("respond", principal="ann", acknowledges=False)
    assert session.commit(step(step_id="b"), low).action is UncertaintyAction.PAUSE_FOR_HUMAN
    session.record_decision("approve", principal="ann")
    assert session.commit(step(step_id="c"), low).action is UncertaintyAction.PROCEED_WITH_LOG


def test_a_decision_takes_the_call_in_each_form_that_the_question_takes() -> None:
    class Function:
        name = "refund"
        arguments = '{"order": "A1"}'

    class Call:
        """As a client's library returns it."""

        id = "call-1"
        type = "function"
        function = Function()

    captured = Captured()
    session = UncertaintyMonitor(processors=[captured]).session("s")
    plain = {"id": "call-1", "type": "function", "function": {"name": "refund", "arguments": '{"order": "A1"}'}}
    for call in (ToolCall(id="call-1", name="refund", arguments={"order": "A1"}), plain, Call()):
        session.record_decision("approve", principal="ann", call=call)
    decided = [(event.call_id, event.call_digest) for event in captured.events if isinstance(event, DecisionEvent)]
    assert decided == [("call-1", ToolCall(id="call-1", name="refund", arguments={"order": "A1"}).digest())] * 3
