"""TRACER in a live session: each step counted once, as a batch over the run counts it; missing stays missing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import (
    Budget,
    Outcome,
    Profile,
    Reading,
    Sensing,
    Session,
    Step,
    TokenLogprob,
    ToolCall,
    UncertaintyMonitor,
)
from grampus_uq.core.risk import RiskState, TrajectoryRiskSettings, confidence_of_risk, risk_step
from grampus_uq.core.state import SessionState, state_from_json, state_to_json
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.monitor.trajectory_watch import MAX_WAITING, TrajectorySensor, filled_in
from grampus_uq.recording import RecordingProcessor, find_run
from grampus_uq.recording.artifacts import ProfileArtifact, load, profile_fingerprint, save
from grampus_uq.recording.replay import replay
from grampus_uq.recording.runs import Run
from grampus_uq.records.events import Event, ObservationEvent, OutcomeEvent, StepEvent, TrajectoryReading
from grampus_uq.signals.embedding import HashingEmbedder
from grampus_uq.signals.turn_events import turn_of_observation, turn_of_step
from grampus_uq.stats.trajectory_risk import (
    Composite,
    StepComponents,
    TracerParameters,
    tracer_score,
    tracer_start,
    tracer_update,
)
from tests.sampling import examples
from tests.scripted_runs import Captured
from tests.trajectory_runs import run_components, tracer_scores

TRACER = TrajectoryRiskSettings()
WORDS = [
    "cancel my flight",
    "I looked it up",
    "Error: not found",
    "cancel my flight please",
    "",
    "###STOP###",
    "\ud83d",
]
TOKENS = (TokenLogprob(token=" flight", logprob=-2.0), TokenLogprob(token=" is", logprob=-0.01))

Told = tuple[str, str]
told = st.tuples(st.sampled_from(["say", "call", "use", "result", "user"]), st.sampled_from(WORDS))
tellings = st.lists(told, max_size=14)


async def tell(session: Session, story: Sequence[Told]) -> list[float | None]:
    """Let a session see what happened; its risks."""
    risks: list[float | None] = []
    for number, (kind, text) in enumerate(story):
        if kind == "result":
            session.observe_tool_result("c1", text)
        elif kind == "user":
            session.observe_user(text)
        elif kind == "use":
            call = ToolCall(id="c1", name="find", arguments={"text": text.encode(errors="replace").decode()})
            risks.append((await session.observe_tool_call(call, f"t{number}"))[0].trajectory_risk)
        else:
            calls = (ToolCall(id="c1", name="find", arguments={"n": number}),) if kind == "call" else ()
            seen, _ = await session.observe_llm_response(text, f"s{number}", tool_calls=calls, logprobs=TOKENS)
            risks.append(seen.trajectory_risk)
    return risks


def events_of(story: Sequence[Told], **given: Any) -> list[Event]:
    captured = Captured()
    session = UncertaintyMonitor(trajectory_risk=TRACER, processors=[captured], **given).session("s", "a")

    async def run() -> None:
        await tell(session, story)
        session.finish(Outcome(success=True))

    anyio.run(run)
    return captured.events


def components_of(events: Sequence[Event]) -> list[StepComponents]:
    """What was completed, in order, and what the end of the run completed."""
    return [
        step
        for event in events
        if isinstance(event, StepEvent | OutcomeEvent) and event.trajectory is not None
        for step in event.trajectory.completed
    ]


@settings(max_examples=examples(60))
@given(tellings)
def test_a_live_session_counts_every_step_once_and_as_a_batch_over_the_run_does(story: list[Told]) -> None:
    events = events_of(story)
    turns = [
        turn
        for event in events
        if isinstance(event, StepEvent | ObservationEvent)
        for turn in (turn_of_step(event.step) if isinstance(event, StepEvent) else (turn_of_observation(event),))
    ]
    assert components_of(events) == run_components(turns, HashingEmbedder())


@settings(max_examples=examples(40))
@given(tellings)
def test_the_risk_of_a_step_is_the_exact_score_of_what_was_complete_and_what_was_open(story: list[Told]) -> None:
    complete: list[StepComponents] = []
    for event in events_of(story):
        if isinstance(event, StepEvent):
            reading = event.trajectory
            assert reading is not None
            assert reading.reason is None
            complete += reading.completed
            whole = [*complete, *([reading.pending] if reading.pending else [])]
            expected = tracer_scores(whole, TRACER.parameters)
            risk = event.assessment.trajectory_risk
            assert (risk is None) == (not expected)
            if expected:
                assert risk == pytest.approx(expected[-1], rel=TRACER.accuracy, abs=1e-9)


@settings(max_examples=examples(25))
@given(tellings)
def test_filling_in_an_unwatched_recording_gives_what_a_live_session_recorded(story: list[Told]) -> None:
    live = events_of(story)
    bare = [replace(e, trajectory=None) if isinstance(e, StepEvent | OutcomeEvent) else e for e in live]
    assert list(filled_in(bare, TrajectorySensor.of(TRACER))) == live


def test_without_texts_a_recording_replays_to_the_same_risks_in_a_session_taken_up_by_another_process(
    tmp_path: Any,
) -> None:
    story = [("user", WORDS[0]), ("call", WORDS[1]), ("result", WORDS[2]), ("user", WORDS[3]), ("call", WORDS[1])]
    rest = [("result", WORDS[2]), ("say", WORDS[1]), ("user", WORDS[0]), ("say", WORDS[4])]
    recorder = RecordingProcessor(tmp_path / "runs", content="none")
    monitor = UncertaintyMonitor(trajectory_risk=TRACER, processors=[recorder])
    session = monitor.session("s", "a")
    anyio.run(tell, session, story)
    recorder.close()
    twin = UncertaintyMonitor(trajectory_risk=TRACER).session("s", "a", snapshot=session.snapshot())
    program = (
        "import anyio, json, sys\n"
        "from grampus_uq import UncertaintyMonitor\n"
        "from grampus_uq.recording import RecordingProcessor\n"
        "from tests.monitor.test_trajectory_watch import TRACER, tell\n"
        "with RecordingProcessor(sys.argv[1], content='none') as recorder:\n"
        "    monitor = UncertaintyMonitor(trajectory_risk=TRACER, processors=[recorder])\n"
        "    session = monitor.session('s', snapshot=json.loads(sys.argv[2]))\n"
        "    risks = anyio.run(tell, session, json.loads(sys.argv[3]))\n"
        "print(json.dumps([risks, json.loads(json.dumps(session.snapshot()))['turns']]))\n"
    )
    given_ = [str(tmp_path / "runs"), json.dumps(session.snapshot()), json.dumps(rest)]
    done = subprocess.run([sys.executable, "-c", program, *given_], check=True, capture_output=True, text=True)
    there, turns = json.loads(done.stdout)
    here = anyio.run(tell, twin, rest)
    assert there == here
    assert turns == json.loads(json.dumps(twin.snapshot()["turns"]))
    run = find_run(tmp_path / "runs", "s")
    assert all(step.step.text == "" for step in run.steps)
    replayed = list(replay(run.events, monitor.profile))
    assert [step.assessment.trajectory_risk for step in replayed] == [e.assessment.trajectory_risk for e in run.steps]
    assert replayed[-1].state.risk == twin.state.risk


def test_a_step_without_logprobs_has_no_surprisal_and_says_why() -> None:
    captured = Captured()
    session = UncertaintyMonitor(trajectory_risk=TRACER, processors=[captured]).session("s")
    anyio.run(session.observe_llm_response, "hello", "a")
    broken = (TokenLogprob(token="hello", logprob=float("nan")),)
    anyio.run(partial(session.observe_llm_response, "hello", "b", logprobs=broken))
    read = [event.trajectory for event in captured.events if isinstance(event, StepEvent)]
    why = [(one.pending.surprisal, one.no_surprisal) for one in read if one is not None and one.pending is not None]
    assert why == [(None, "no_logprobs"), (None, "no_logprobs")]
    assert "surprisal: no_logprobs" in (session.belief().step_uncertainties[0].missing_reason or "")


# -- embedders that fail, hang, or are slow --


def failing(_: list[str]) -> Any:
    raise RuntimeError("the embedding service is down")


class Own:
    """An embedder as an object, around a function."""

    def __init__(self, embed: Any) -> None:
        self.embed = embed


@pytest.mark.parametrize("kind", [lambda function: function, Own])
def test_an_async_embedder_is_refused_before_a_session_begins(kind: Any) -> None:
    async def embed(texts: list[str]) -> Any:
        return np.ones((len(texts), 2))

    with pytest.raises(ConfigurationError, match="not async"):
        UncertaintyMonitor(trajectory_risk=TRACER, sensing=Sensing(embedder=kind(embed)))


@pytest.mark.parametrize("kind", [lambda function: function, Own])
@pytest.mark.parametrize("length", [1e-200, 3.0, 1e308])
def test_rows_of_any_length_are_read_as_rows_of_unit_length(kind: Any, length: float) -> None:
    risks = []
    for scale in (1.0, length):
        own = kind(lambda texts, scale=scale: [[scale * ("o" in text), scale] for text in texts])
        session = UncertaintyMonitor(trajectory_risk=TRACER, sensing=Sensing(embedder=own)).session("s")
        risks.append(anyio.run(tell, session, [("call", "look"), ("result", "no"), ("call", "look"), ("say", "bye")]))
    assert risks[1] == pytest.approx(risks[0])


@pytest.mark.parametrize("kind", [lambda function: function, Own])
@pytest.mark.parametrize(
    "answer",
    [
        failing,
        lambda texts: "nonsense",
        lambda texts: [[math.nan]] * len(texts),
        lambda texts: np.full((len(texts), 2), np.inf),
        lambda texts: np.ones((len(texts) + 1, 2)),
        lambda texts: np.ones(len(texts)),
    ],
)
def test_what_an_embedder_fails_at_is_missing_and_never_a_harmless_step(kind: Any, answer: Any) -> None:
    broken = kind(answer)
    captured = Captured()
    session = UncertaintyMonitor(
        trajectory_risk=TRACER, processors=[captured], sensing=Sensing(embedder=broken)
    ).session("s")
    risks = anyio.run(tell, session, [("call", "look"), ("result", "Error: no"), ("call", "look"), ("say", "bye")])
    assert risks[0] == pytest.approx(2.0)  # nothing to compare yet: the surprisal alone
    assert risks[1:] == [None, None]
    last = captured.events[-1]
    assert isinstance(last, StepEvent)
    assert last.trajectory is not None
    assert last.trajectory.reason is not None
    assert f"trajectory_risk: {last.trajectory.reason}" in (last.assessment.missing_reason or "")
    assert last.trajectory.completed[0].repetition is None
    first_failed = captured.events[3]
    assert isinstance(first_failed, StepEvent)
    assert first_failed.trajectory is not None
    assert first_failed.trajectory.completed[0].tool_error is True  # what needs no embedder is there
    assert session.state.risk is not None
    assert not session.state.risk.stream.tails[0].buckets  # none of the steps that were not read counts as harmless


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_embedder_that_hangs_costs_its_time_limit_and_not_the_loop(backend: str) -> None:
    release, hanging = threading.Event(), threading.Event()

    def hangs(texts: list[str]) -> Any:
        hanging.set()
        release.wait(30)
        hanging.clear()
        return np.ones((len(texts), 2))

    async def main() -> tuple[str | None, int]:
        budgets = {"trajectory_risk": Budget(timeout_s=1.0)}
        session = UncertaintyMonitor(trajectory_risk=TRACER, sensing=Sensing(embedder=hangs, budgets=budgets)).session(
            "s"
        )
        await session.observe_llm_response("one", "a")
        ticks = 0
        async with anyio.create_task_group() as group:

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await anyio.sleep(0.01)
                    ticks += hanging.is_set()

            group.start_soon(tick)
            seen, _ = await session.observe_llm_response("two", "b")
            group.cancel_scope.cancel()
        return seen.missing_reason, ticks

    try:
        reason, ticks = anyio.run(main, backend=backend)
    finally:
        release.set()
    assert "trajectory_risk: timeout" in (reason or "")
    assert ticks  # while it hung


def test_embedding_happens_in_another_thread_each_text_once() -> None:
    seen: list[tuple[int, str]] = []

    def embed(texts: list[str]) -> Any:
        seen.extend((threading.get_ident(), text) for text in texts)
        return HashingEmbedder().embed(texts)

    session = UncertaintyMonitor(trajectory_risk=TRACER, sensing=Sensing(embedder=embed)).session("s")
    anyio.run(tell, session, [("say", "one"), ("say", "two"), ("user", "no"), ("say", "three"), ("say", "four")])
    texts = [text for _, text in seen]
    assert sorted(texts) == sorted(set(texts))
    assert threading.get_ident() not in {thread for thread, _ in seen}


def test_cancelling_a_step_while_its_texts_are_read_commits_nothing() -> None:
    entered, release = threading.Event(), threading.Event()

    def slow(texts: list[str]) -> Any:
        entered.set()
        release.wait(30)
        return HashingEmbedder().embed(texts)

    async def main() -> None:
        session = UncertaintyMonitor(trajectory_risk=TRACER, sensing=Sensing(embedder=slow)).session("s")
        await session.observe_llm_response("one", "a")
        before = session.snapshot()
        with anyio.move_on_after(30) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(session.observe_llm_response, "two", "b")
                await anyio.to_thread.run_sync(entered.wait)
                group.cancel_scope.cancel()
        assert not scope.cancelled_caught
        assert session.snapshot() == {**before, "unread": ["b"]}
        release.set()
        await session.observe_llm_response("two", "b")
        assert session.state.n_steps == 2

    anyio.run(main)


def test_what_comes_while_texts_are_read_is_not_lost_and_not_counted_twice() -> None:
    entered, release = threading.Event(), threading.Event()

    def slow(texts: list[str]) -> Any:
        entered.set()
        release.wait(30)
        return HashingEmbedder().embed(texts)

    captured = Captured()

    async def main() -> None:
        session = UncertaintyMonitor(
            trajectory_risk=TRACER, processors=[captured], sensing=Sensing(embedder=slow)
        ).session("s")
        call = ToolCall(id="c1", name="find", arguments={"n": 1})
        await session.observe_llm_response("one", "a", tool_calls=[call])
        async with anyio.create_task_group() as group:
            group.start_soon(session.observe_llm_response, "two", "b")
            await anyio.to_thread.run_sync(entered.wait)
            session.observe_tool_result("c1", "Error: too late?")  # arrives before "two" is committed
            release.set()
        session.finish(Outcome(success=False))

    anyio.run(main)
    steps = components_of([event for event in captured.events if isinstance(event, StepEvent)])
    assert [step.tool_error for step in steps] == [True]
    assert steps[0].agent_gap is not None


def test_many_tasks_and_threads_on_one_session_lose_no_turn() -> None:
    captured = Captured()
    session = UncertaintyMonitor(trajectory_risk=TRACER, processors=[captured]).session("s")

    async def speak(name: int) -> None:
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(session.observe_llm_response, f"turn {name} {number}", f"s{name}-{number}")

    threads = [threading.Thread(target=anyio.run, args=(speak, name)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.finish(Outcome(success=True))
    assert session.state.n_steps == 40
    assert len(components_of(captured.events)) == 40
    replayed = list(replay(captured.events, session.profile))
    assert all(step.same for step in replayed)


# -- the end of a run --


def test_a_run_that_is_finished_and_taken_up_again_loses_nothing() -> None:
    """A pause records an outcome, and the approved call's answer comes later."""
    captured = Captured()
    session = UncertaintyMonitor(trajectory_risk=TRACER, processors=[captured]).session("s")
    anyio.run(tell, session, [("call", "delete it")])
    session.finish(Outcome(success=None))
    anyio.run(tell, session, [("use", "x"), ("result", "Error: gone"), ("say", "sorry")])
    steps = components_of([event for event in captured.events if isinstance(event, StepEvent)])
    assert [(step.tool_error, step.surprisal) for step in steps] == [(True, 2.0)]  # the turn from before the pause


def test_what_a_slow_embedder_has_left_is_read_by_settle_and_else_said_to_be_missing() -> None:
    def embed(texts: list[str]) -> Any:
        return HashingEmbedder().embed(texts)

    async def main(*, settled: bool) -> TrajectoryReading | None:
        captured = Captured()
        session = UncertaintyMonitor(
            trajectory_risk=TRACER, processors=[captured], sensing=Sensing(embedder=embed)
        ).session("s")
        await tell(session, [("call", "look"), ("result", "here it is")])
        if settled:
            await session.settle()
        session.finish(Outcome(success=True))
        last = captured.events[-1]
        assert isinstance(last, OutcomeEvent)
        return last.trajectory

    settled, bare = anyio.run(partial(main, settled=True)), anyio.run(partial(main, settled=False))
    assert settled is not None
    assert bare is not None
    assert settled.completed[0].agent_gap is not None
    assert (bare.completed[0].agent_gap, bare.completed[0].tool_error, bare.reason) == (None, False, "not_sensed")


# -- bounded --


@pytest.mark.slow
def test_neither_state_nor_memory_grows_with_the_run() -> None:
    session = UncertaintyMonitor(trajectory_risk=TRACER).session("s")

    async def go_on(first: int, count: int) -> None:
        for number in range(first, first + count):
            await tell(session, [("say", f"word{number} " * 3), ("user", f"answer {number}")])

    anyio.run(go_on, 0, 150)
    early = len(json.dumps(session.snapshot()))
    anyio.run(go_on, 150, 450)
    late = len(json.dumps(session.snapshot()))
    assert session.state.risk is not None
    assert sum(count for _, count, _ in session.state.risk.stream.tails[0].buckets) == 2 * 600 - 2
    assert late < early * 1.5 + 4000
    for _ in range(3 * MAX_WAITING):
        session.observe_user("x" * 20_000)
    snapshot = json.loads(json.dumps(session.snapshot()))
    assert len(snapshot["turns"]["waiting"]) == MAX_WAITING
    assert len(json.dumps(snapshot)) < early * 1.5 + 60_000


# -- the profile --


def test_a_profile_without_tracer_is_what_it_was_and_one_with_it_survives_its_artifact(tmp_path: Any) -> None:
    assert "tracer" not in Profile().model_dump(mode="json")
    parameters = TracerParameters(alpha=0.25, beta=0.5, k=0.35, composite=Composite.ADDITIVE)
    profile = Profile(trajectory_risk=TrajectoryRiskSettings(parameters=parameters, window=5))
    assert profile_fingerprint(profile) != profile_fingerprint(Profile())
    save(ProfileArtifact(profile=profile), tmp_path / "p.json")
    assert load(tmp_path / "p.json").profile == profile


def test_a_state_and_a_snapshot_from_before_tracer_still_load() -> None:
    old = UncertaintyMonitor().session("s")
    anyio.run(old.observe_llm_response, "Confidence: 80%", "a")
    snapshot = json.loads(json.dumps(old.snapshot()))
    del snapshot["state"]["risk"]
    assert "turns" not in snapshot
    session = UncertaintyMonitor(trajectory_risk=TRACER).session("s", snapshot=snapshot)
    risks = anyio.run(tell, session, [("say", "one")])
    assert risks == [pytest.approx(2.0)]


def test_a_session_taken_up_with_other_parameters_has_no_risk_and_says_so() -> None:
    session = UncertaintyMonitor(trajectory_risk=TRACER).session("s")
    anyio.run(tell, session, [("say", "one"), ("say", "two")])
    changed = TrajectoryRiskSettings(parameters=TracerParameters(k=0.5))
    again = UncertaintyMonitor(trajectory_risk=changed).session("s", snapshot=session.snapshot())
    assert anyio.run(tell, again, [("say", "three")]) == [None]
    assert "trajectory_risk: profile_changed" in (again.belief().step_uncertainties[-1].missing_reason or "")


def test_a_step_that_was_committed_without_a_reading_has_no_risk() -> None:
    session = UncertaintyMonitor(trajectory_risk=TRACER).session("s")
    seen = session.commit(Step(step_id="x", kind="sub_agent", time_s=1.0), [Reading(source="sub_agent", value=0.5)])
    assert (seen.trajectory_risk, "trajectory_risk: not_sensed" in (seen.missing_reason or "")) == (None, True)


def test_with_tracer_off_a_step_says_nothing_of_it() -> None:
    captured = Captured()
    session = UncertaintyMonitor(processors=[captured]).session("s")
    anyio.run(session.observe_llm_response, "one", "a")
    event = captured.events[-1]
    assert isinstance(event, StepEvent)
    assert event.trajectory is None
    assert "trajectory" not in (event.assessment.missing_reason or "")
    assert "trajectory_risk" not in session.summary()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("stream", "tails", 0, "buckets"), [[5, 0, 0.0]]),
        (("stream", "tails", 0, "worst"), -1.0),
        (("parameters", "k"), 7.0),
        (("stream", "tails"), []),
    ],
)
def test_a_stored_risk_that_no_run_can_reach_is_refused_when_it_is_read(path: Sequence[Any], value: Any) -> None:
    session = UncertaintyMonitor(trajectory_risk=TRACER).session("s")
    anyio.run(tell, session, [("say", "one"), ("say", "two")])
    stored = json.loads(state_to_json(session.state))
    assert state_from_json(json.dumps(stored)) == session.state
    place: Any = stored["risk"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(DataError, match="risk"):
        state_from_json(json.dumps(stored))


def test_a_broken_memory_of_turns_is_refused_with_its_field() -> None:
    monitor = UncertaintyMonitor(trajectory_risk=TRACER)
    snapshot = monitor.session("s").snapshot() | {"turns": {"state": {"window": 3}}}
    with pytest.raises(DataError, match=r"turns\.state\.window"):
        monitor.session("s", snapshot=snapshot)


def test_an_embedder_without_tracer_and_an_embedder_that_is_none_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="embedder"):
        UncertaintyMonitor(sensing=Sensing(embedder=HashingEmbedder()))
    with pytest.raises(ConfigurationError, match="callable"):
        UncertaintyMonitor(
            trajectory_risk=TRACER,
            sensing=Sensing(embedder=3),
        )  # type: ignore[arg-type]  # what a user might pass
    with pytest.raises(ConfigurationError, match="profile"):
        UncertaintyMonitor(profile=Profile(), trajectory_risk=TRACER)


# -- the stream --


@given(st.floats(0.0, 1e99), st.floats(0.0, 1e99))
def test_the_stream_is_a_confidence_that_falls_as_the_risk_grows(one: float, other: float) -> None:
    first, second = confidence_of_risk(one), confidence_of_risk(other)
    assert first is not None
    assert second is not None
    assert 0.0 <= first <= 1.0
    assert (first >= second) or one > other
    if one + 1.0 < other * 0.999 + 1.0:
        assert first > second or other > 1e15


def test_the_pure_step_equals_a_stream_that_is_never_interrupted() -> None:
    rng = np.random.default_rng(3)
    parameters = TracerParameters(k=0.3, w=0.25)
    settings_ = TrajectoryRiskSettings(parameters=parameters)
    stream = tracer_start(parameters, accuracy=settings_.accuracy)
    state: RiskState | None = None
    for _ in range(300):
        done = tuple(StepComponents(is_agent=True, agent_gap=float(g)) for g in rng.random(int(rng.integers(0, 3))))
        now = StepComponents(is_agent=True, surprisal=float(rng.random() * 3))
        state, risk, _ = risk_step(settings_, state, TrajectoryReading(completed=done, pending=now))
        for step in done:
            stream = tracer_update(parameters, stream, step)
        assert risk == tracer_score(parameters, tracer_update(parameters, stream, now))
        state = state_from_json(state_to_json(SessionState(session_id="s", risk=state))).risk
        assert state is not None


def test_a_step_with_nothing_to_judge_has_no_risk_and_the_session_keeps_the_latest() -> None:
    nothing, settings_ = TrajectoryReading(), TrajectoryRiskSettings()
    state, risk, why = risk_step(settings_, None, nothing)
    assert state is not None
    assert (state.latest, risk, why) == (None, None, "nothing_to_judge")
    told = TrajectoryReading(completed=(StepComponents(is_agent=True, agent_gap=0.8),))
    known, risk, why = risk_step(settings_, state, told)
    assert known is not None
    assert (known.latest, why) == (risk, None)
    broken = TrajectoryReading(reason="timeout")
    after, risk, why = risk_step(settings_, known, broken)
    assert after is not None
    assert (after.latest, risk, why) == (known.latest, None, "timeout")
    assert (confidence_of_risk(None), confidence_of_risk(math.nan)) == (None, None)


def test_the_detector_reads_the_risk_as_a_stream_live_and_from_recordings(tmp_path: Any) -> None:
    from grampus_uq.learn.columns import columns_of, recorded_rows

    story = [("user", WORDS[0]), ("call", WORDS[1]), ("use", "x"), ("result", WORDS[2]), ("say", WORDS[3])]
    steps = [event for event in events_of(story) if isinstance(event, StepEvent)]
    run = Run(path="", line=1, session_id=steps[0].session_id, events=tuple(steps))
    rows = columns_of([run], recorded_rows).stream("trajectory_risk").tolist()
    risks = [event.assessment.trajectory_risk for event in steps if event.step.kind != "tool_call"]
    assert rows == [1.0 / (1.0 + risk) for risk in risks if risk is not None]
    assert len(rows) == 2
    again = columns_of([run], partial(recorded_rows, profile=Profile(trajectory_risk=TRACER)))
    assert again.stream("trajectory_risk").tolist() == rows
