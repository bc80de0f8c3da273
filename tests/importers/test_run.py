"""An imported run as the steps and events of this package."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import anyio

from grampus_uq import UncertaintyMonitor
from grampus_uq.core.engine import advance
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.state import Profile, SessionState
from grampus_uq.importers import ImportedRun, events, read_failure_logs, read_tau_bench, turns
from grampus_uq.importers.imported_run import MessageFacts
from grampus_uq.recording import RecordingProcessor, runs
from grampus_uq.records.events import Event, ObservationEvent, OutcomeEvent, SessionStarted, StepEvent
from grampus_uq.records.values import Message, Outcome, Reading, Step, TokenLogprob, ToolCall
from grampus_uq.records.vocabulary import Role, UncertaintyAction
from tests.importers.data import data_file
from tests.importers.test_failure_logs import log
from tests.importers.test_failure_logs import read as read_logs
from tests.importers.test_tau_bench import read, row


class Length:
    """A signal for tests: a long text is a sure one."""

    source = "verbalized"

    def read(self, step: Step) -> Reading:
        if not step.text:
            return Reading(source=self.source, value=None, reason="nothing_to_judge")
        return Reading(source=self.source, value=min(1.0, len(step.text) / 10))


def test_a_chat_gives_a_step_a_turn_of_the_agent_and_observations_between(tmp_path: Path) -> None:
    (run,) = read(tmp_path, row())
    found = list(turns(run, start_s=100.0))
    assert [turn.kind for turn in found] == ["user", "llm_call", "tool_result", "llm_call", "user"]
    steps = [turn for turn in found if isinstance(turn, Step)]
    assert [(step.step_id, step.time_s, step.text, len(step.tool_calls)) for step in steps] == [
        ("2", 102.0, "", 1),
        ("4", 104.0, "Done.", 0),
    ]
    assert isinstance(found[2], ObservationEvent)
    assert (found[2].call_id, found[2].text) == ("call_1", "{}")


def test_in_a_log_every_message_is_a_step_so_that_labels_point_at_steps(tmp_path: Path) -> None:
    (found,) = read_logs(tmp_path, log())
    steps = list(turns(found.run))
    assert [isinstance(step, Step) for step in steps] == [True] * 3
    assert found.label is not None
    assert isinstance(steps[found.label.step], Step)
    assert found.run.n_steps == 3


def test_the_events_are_those_of_a_monitor_and_go_into_a_recording(tmp_path: Path) -> None:
    (run,) = read(tmp_path, row())
    strict = UncertaintyPolicy(low_threshold=1.0, medium_threshold=0.9, high_threshold=0.8)
    profile = Profile(policy=strict, advisory=True)
    with RecordingProcessor(tmp_path / "runs", content="full") as recorder:
        for event in events(run, profile=profile, signals=[Length()], agent_id="desk", model="m"):
            recorder.on_event(event)
    (recorded,) = runs(tmp_path / "runs")
    assert [type(event) for event in recorded.events] == [
        SessionStarted,
        ObservationEvent,
        StepEvent,
        ObservationEvent,
        StepEvent,
        ObservationEvent,
        OutcomeEvent,
    ]
    assert recorded.outcome == run.outcome
    assert recorded.start is not None
    assert recorded.start.advisory
    state = SessionState(session_id="3-0", agent_id="desk")
    for step in recorded.steps:
        state, assessment = advance(profile, state, step.step, step.readings)
        assert assessment == step.assessment
    assert recorded.steps[1].assessment.verbalized_confidence == 0.5
    assert recorded.steps[1].assessment.advisory_action is UncertaintyAction.ABORT
    assert not recorded.touched


def test_every_measured_run_becomes_a_sound_recording(tmp_path: Path) -> None:
    imported = [
        *read_tau_bench(data_file("tau_bench", "gpt-4o-airline.json.gz")),
        *(found.run for found in read_failure_logs(data_file("who_and_when", "algorithm_generated.jsonl.gz"))),
    ]
    steps = 0
    for run in imported:
        for event in events(run, signals=[Length()]):
            steps += isinstance(event, StepEvent)
            json.dumps(getattr(event, "text", ""))
    assert steps == 2454 + 1099


def test_a_signal_that_raises_gives_a_missing_reading_as_it_does_live(tmp_path: Path) -> None:
    class Raising:
        source = "raising"

        def read(self, step: Step) -> Reading:
            raise KeyError(step.text)

    (run,) = read(tmp_path, row())
    steps = [event for event in events(run, signals=[Raising(), Length()]) if isinstance(event, StepEvent)]
    assert [(one.source, one.reason) for one in steps[1].readings] == [
        ("raising", "signal_error"),
        ("verbalized", None),
    ]


def test_an_imported_answer_has_the_readings_of_a_live_one_and_its_guarded_call_is_a_step() -> None:
    call = ToolCall(id="c1", name="refund", arguments={"order": "E9181"})
    said, prompt = "I refund it.\nConfidence: 85%", Message(role=Role.USER, content="Refund order E9181, please.")
    tokens = tuple(
        TokenLogprob(token=text, logprob=math.log(p), top=((text, math.log(p)), ("?", math.log(1 - p))))
        for text, p in [(said, 0.9), ('{"name": "refund", "arguments": {"order": "', 0.9), ("E9181", 0.6), ('"}}', 0.9)]
    )
    answer = Message(role=Role.ASSISTANT, content=said, tool_calls=(call,))
    run = ImportedRun(
        run_id="a",
        path="a.json",
        line=1,
        messages=(prompt, answer),
        outcome=Outcome(success=True),
        facts={1: MessageFacts(logprobs=tokens)},
    )
    profile = Profile(policy=UncertaintyPolicy(irreversible_tool_names=["refund"]), advisory=True)
    live: list[StepEvent] = []

    class Kept:
        def on_event(self, event: Event) -> None:
            live.extend([event] if isinstance(event, StepEvent) else [])

    async def watched() -> None:
        session = UncertaintyMonitor(profile=profile, processors=[Kept()]).session("a")
        session.observe_user(prompt.content)
        await session.observe_llm_response(said, "1", logprobs=tokens, tool_calls=[call], prompt_messages=[prompt])
        await session.observe_tool_call(call, "1.0")

    anyio.run(watched)
    imported = [event for event in events(run, profile=profile) if isinstance(event, StepEvent)]

    def read(event: StepEvent) -> dict[str, object]:
        return {one.source: (one.value, one.parts) for one in event.readings if one.value is not None}

    assert {"verbalized", "token_probability", "claim_probability", "call_probability"} <= read(imported[0]).keys()
    assert [read(event) for event in imported] == [read(event) for event in live]
    assert [event.step.kind for event in imported] == ["llm_call", "tool_call"]
    for ours, theirs in zip(imported, live, strict=True):
        assert ours.assessment.propagated_confidence == theirs.assessment.propagated_confidence
        assert ours.assessment.reasoning == theirs.assessment.reasoning


def test_whoever_is_not_the_assistant_states_no_confidence_in_a_log(tmp_path: Path) -> None:
    (found,) = read_logs(tmp_path, log())
    user = Message(role=Role.USER, content="Confidence: 99%")
    agent = Message(role=Role.ASSISTANT, content="Confidence: 70%")
    run = replace(found.run, messages=(user, agent))
    steps = [event for event in events(run) if isinstance(event, StepEvent)]
    assert [[one.value for one in step.readings] for step in steps] == [[], [0.7]]


def test_a_signal_of_the_users_own_takes_the_place_of_the_reading_of_its_name() -> None:
    class Own:
        def __init__(self, source: str) -> None:
            self.source = source

        def read(self, step: Step) -> Reading:
            return Reading(source=self.source, value=0.25)

    run = ImportedRun(
        run_id="a",
        path="a.json",
        line=1,
        messages=(Message(role=Role.ASSISTANT, content="Paris."),),
        outcome=Outcome(success=True),
        facts={0: MessageFacts(logprobs=(TokenLogprob(token="Paris.", logprob=math.log(0.9)),))},
    )
    for source in ("verbalized", "token_probability", "claim_probability"):
        (step,) = (event for event in events(run, signals=[Own(source)]) if isinstance(event, StepEvent))
        assert [one.value for one in step.readings if one.source == source] == [0.25]
