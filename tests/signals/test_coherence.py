"""From turns to components: the paper's equations on real and made-up runs, live and replayed, whatever is said."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.errors import ConfigurationError
from grampus_uq.records.protocols import Embedder
from grampus_uq.records.values import Step, TokenLogprob, ToolCall
from grampus_uq.signals.components import ObservedStep, sense_steps, unsensed
from grampus_uq.signals.embedding import CachedEmbedder, HashingEmbedder
from grampus_uq.signals.trajectory import ComponentState, advance
from grampus_uq.signals.turn_events import (
    READ_CHARACTERS,
    AgentTurn,
    Observation,
    ProposedCall,
    RunEnd,
    TurnEvent,
    UserTurn,
    turn_of_step,
)
from grampus_uq.stats.content_words import STOP_WORDS
from grampus_uq.stats.trajectory_risk import StepComponents, TracerParameters
from tests.sampling import examples, sampled
from tests.signals import _transcription as paper
from tests.trajectory_runs import run_components, tracer_scores

DEFAULTS = TrajectoryRiskSettings()
HASHING = CachedEmbedder(HashingEmbedder(128), capacity=1 << 14)


def call(name: str, call_id: str = "", /, **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def events_of(messages: Sequence[dict[str, Any]]) -> Iterator[TurnEvent]:
    """Chat messages as turn events."""
    for message in messages:
        if message["role"] == "assistant":
            calls = tuple(
                ToolCall(id=c["id"], name=c["function"]["name"], arguments=json.loads(c["function"]["arguments"]))
                for c in message.get("tool_calls") or ()
            )
            tokens = message.get("tokens")
            logprobs = None if tokens is None else tuple(TokenLogprob(token=t, logprob=p) for t, p in tokens)
            yield AgentTurn(text=message.get("content") or "", calls=calls, logprobs=logprobs)
        elif message["role"] == "tool":
            yield Observation(text=message["content"], call_id=message["tool_call_id"])
        elif message["role"] == "user":
            yield UserTurn(text=message["content"])


def assert_equal_to_the_paper(messages: Sequence[dict[str, Any]], embedder: Embedder) -> int:
    """Compare every component of every step, and the score, with the transcription."""
    vectors: dict[str, list[float]] = {}

    def embed(text: str) -> list[float]:
        if text not in vectors:
            vectors[text] = embedder.embed([text])[0].tolist()
        return vectors[text]

    ours = run_components(events_of(messages), embedder)
    theirs = paper.components(messages, embed, STOP_WORDS)
    assert len(ours) == len(theirs)
    for step, row in zip(ours, theirs, strict=True):
        got = (step.surprisal or 0.0, step.repetition or 0.0, step.agent_gap or 0.0, step.user_gap or 0.0)
        assert got == pytest.approx(row, abs=1e-6)
    if ours:
        parameters = TracerParameters(alpha=0.9, beta=0.7, gamma=1.0, k=0.2, w=0.3)
        expected = paper.score(theirs, (1.0, 0.9, 0.7, 1.0), 0.2, 0.3)
        assert tracer_scores(ours, parameters)[-1] == pytest.approx(expected, abs=1e-6)
    return len(ours)


def airline_runs() -> list[list[dict[str, Any]]]:
    folder = os.environ.get("GRAMPUS_UQ_DATA")
    if not folder:
        pytest.skip("GRAMPUS_UQ_DATA is not set: the airline runs are not part of the project")
    with gzip.open(Path(folder) / "tau_bench" / "gpt-4o-airline.json.gz") as file:
        return [row["traj"] for row in json.load(file)]


@sampled("each", [8], full=[1])
def test_the_components_of_every_airline_run_are_those_of_the_papers_equations(each: int) -> None:
    steps = [assert_equal_to_the_paper(messages, HASHING) for messages in list(airline_runs())[::each]]
    assert (len(steps), sum(steps)) == ((200, 3797) if each == 1 else (25, 464))


WORDS = "the a refund flight HAT069 1,000 $5 don't Don’t user_id cancel Cancel! **now** (yes) é 12:30"
words = st.sampled_from(WORDS.split())
texts = st.lists(words, max_size=8).map(" ".join)
arguments = st.dictionaries(st.sampled_from(["b", "a", "é"]), st.integers(0, 2) | texts | st.lists(st.integers(0, 2)))


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Chat runs with calls in parallel, silent tools, runs of agent turns, token probabilities and a closing turn."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "policy"}]
    number = 0
    for _ in range(draw(st.integers(0, 10))):
        if draw(st.integers(0, 2)) == 0:
            messages.append({"role": "user", "content": draw(texts)})
            continue
        message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | texts)}
        tokens = st.tuples(words.map(lambda word: f" {word}"), st.floats(-30.0, 0.0))
        message["tokens"] = draw(st.none() | st.lists(tokens, min_size=1, max_size=6))
        calls = []
        for _ in range(draw(st.integers(0, 3))):
            function = {"name": draw(st.sampled_from(["find", "book"])), "arguments": json.dumps(draw(arguments))}
            calls.append({"id": f"c{number}", "type": "function", "function": function})
            number += 1
        message["tool_calls"] = calls or None
        messages.append(message)
        answered = calls[: draw(st.integers(0, len(calls)))]
        answers = [draw(st.just("") | texts) for _ in answered]
        messages += [
            {"role": "tool", "tool_call_id": made["id"], "content": text}
            for made, text in zip(answered, answers, strict=True)
        ]
    if draw(st.booleans()):
        messages.append({"role": "user", "content": "Thank you! ###STOP###"})
    return messages


@given(conversations())
@settings(max_examples=examples(80))
def test_the_components_of_made_up_runs_are_those_of_the_papers_equations(messages: list[dict[str, Any]]) -> None:
    assert_equal_to_the_paper(messages, HASHING)


def live(events: Sequence[TurnEvent], *, store: bool) -> tuple[list[StepComponents], list[ObservedStep]]:
    """Go through a run event by event, storing the state as JSON in between; give steps, and what was pending."""
    adapter = TypeAdapter(ComponentState)
    state = ComponentState()
    steps, pending = [], []
    for event in (*events, RunEnd()):
        moved = advance(state, event, DEFAULTS)
        steps += [sense_steps([step], HASHING)[0] for step in moved.completed]
        pending += [] if moved.pending is None else [moved.pending]
        state = adapter.validate_json(adapter.dump_json(moved.state)) if store else moved.state
    return steps, pending


@given(conversations())
@settings(max_examples=examples(40))
def test_a_live_run_stored_and_resumed_at_every_event_gives_what_replay_gives(messages: list[dict[str, Any]]) -> None:
    events = list(events_of(messages))
    assert live(events, store=True)[0] == run_components(events, HASHING)


@given(conversations(), st.randoms(use_true_random=False))
@settings(max_examples=examples(40))
def test_calls_reported_again_in_any_way_are_not_counted_twice(messages: list[dict[str, Any]], rng: Any) -> None:
    events = list(events_of(messages))
    noisy: list[TurnEvent] = []
    for event in events:
        noisy.append(event)
        if isinstance(event, AgentTurn):
            for made in event.calls:
                bare = ToolCall(name=made.name)
                again = rng.choice([made, made.model_copy(update={"id": ""}), bare])
                noisy.extend([ProposedCall(call=again)] * rng.randrange(3))
        if isinstance(event, Observation):
            noisy.extend([event] * rng.randrange(2))  # an answer delivered twice
    assert run_components(noisy, HASHING) == run_components(events, HASHING)


def test_a_step_is_open_until_its_observation_is_there_and_complete_once() -> None:
    turn = AgentTurn(text="", calls=(call("find_flight", "c1", destination="SEA"),))
    first = advance(ComponentState(), turn, DEFAULTS)
    assert first.completed == ()
    assert first.pending is not None
    assert sense_steps([first.pending], HASHING)[0].agent_gap is None
    second = advance(first.state, Observation(text="HAT069 to SEA", call_id="c1"), DEFAULTS)
    assert second.completed == ()
    assert second.pending is not None
    peeked = sense_steps([second.pending], HASHING)[0]
    assert peeked.agent_gap is not None
    third = advance(second.state, UserTurn(text="Thanks"), DEFAULTS)
    assert sense_steps([third.completed[0]], HASHING)[0] == peeked
    assert [step.is_agent for step in third.completed] == [True, False]
    assert third.pending is None
    assert advance(third.state, RunEnd(), DEFAULTS).completed == ()


@pytest.mark.parametrize("window", [1, 2, 3, None])
def test_a_turn_repeats_the_latest_turns_of_its_window_and_no_earlier_one(window: int | None) -> None:
    settings = TrajectoryRiskSettings() if window is None else TrajectoryRiskSettings(window=window)
    said = ["Refund order.", "Delayed flight.", "Blue suitcase.", "Window seat.", "Green ticket."]
    for ago in range(1, 5):
        steps = run_components([AgentTurn(text=text) for text in [*said, said[-ago]]], HASHING, settings)
        assert (steps[-1].repetition or 0.0) == pytest.approx(1.0 if ago <= (window or 3) else 0.0, abs=1e-6)


def test_calls_that_arrive_without_any_message_are_steps_of_their_own_after_each_answer() -> None:
    events: list[TurnEvent] = []
    for number in range(3):
        events += [
            ProposedCall(call=call("find", f"c{number}", page=number)),
            Observation(text="no", call_id=f"c{number}"),
        ]
    assert len(run_components(events, HASHING)) == 3
    together: list[TurnEvent] = [ProposedCall(call=call("find", f"c{number}", page=number)) for number in range(3)]
    assert len(run_components(together, HASHING)) == 1


def test_answers_in_any_order_give_the_same_step() -> None:
    turn = AgentTurn(calls=(call("find", "c1", a=1), call("find", "c2", a=2), call("book", "c3")))
    answers = [Observation(text=f"answer {name}", call_id=name) for name in ("c1", "c2", "c3")]
    expected = run_components([turn, *answers], HASHING)
    for order in ([2, 0, 1], [1, 2, 0], [2, 1, 0]):
        turned: list[TurnEvent] = [turn, *(answers[i] for i in order)]
        assert run_components(turned, HASHING) == expected
        assert live(turned, store=False)[1][-1].counterpart == "answer c1\nanswer c2\nanswer c3"


def test_an_answer_that_comes_after_its_step_changes_no_step_but_is_remembered() -> None:
    late = Observation(text="the list of flights", call_id="c1")
    events: list[TurnEvent] = [
        AgentTurn(calls=(call("find", "c1"),)),
        AgentTurn(calls=(call("book", "c2"),)),
        late,
        Observation(text="the list of flights", call_id="c2"),
    ]
    steps = run_components(events, HASHING)
    assert [step.agent_gap is None for step in steps] == [True, False]
    assert [step.duplicate_observation for step in steps] == [False, True]


def test_an_observation_without_anything_before_it_is_no_step() -> None:
    assert run_components([Observation(text="Error: lost")], HASHING) == []


def test_duplicates_are_found_by_canonical_form_and_events_belong_to_steps_with_calls() -> None:
    nested = {"outer": {"b": 1, "a": [{"y": 1, "x": 2}]}}
    same = {"outer": {"a": [{"x": 2, "y": 1}], "b": 1}}
    events: list[TurnEvent] = [
        AgentTurn(text="Hello"),
        AgentTurn(calls=(call("find", "c1", **nested),)),
        Observation(text="Error: not found", call_id="c1"),
        AgentTurn(calls=(call("find", "c2", **same),)),
        Observation(text="Error: not found", call_id="c2"),
        AgentTurn(calls=(call("find", "c3", outer={"b": 2}),)),
        Observation(text="", call_id="c3"),
        AgentTurn(calls=(call("look", "c4"),)),
        Observation(text="", call_id="c4"),
    ]
    steps = run_components(events, HASHING)
    assert [step.tool_error for step in steps] == [None, True, True, False, False]
    assert [step.duplicate_call for step in steps] == [None, False, True, False, False]
    assert [step.duplicate_observation for step in steps] == [None, False, True, False, False]
    assert [step.repetition for step in steps][:4] == [0.0, 0.0, pytest.approx(1.0), 0.0]
    assert steps[3].wording_repetition is not None
    assert 0.1 < steps[3].wording_repetition < 1.0  # the same tool with another argument


def test_the_same_call_twice_in_one_turn_is_a_duplicate_and_one_report_of_it_is_not() -> None:
    twice = AgentTurn(calls=(call("find", "c1", a=1), call("find", "c2", a=1)))
    once = AgentTurn(calls=(call("find", "c1", a=1),))
    assert run_components([twice], HASHING)[0].duplicate_call is True
    assert run_components([once, ProposedCall(call=call("find", "c1", a=1))], HASHING)[0].duplicate_call is False


def test_a_call_that_runs_only_after_the_user_approved_it_is_not_counted_again() -> None:
    made = call("refund", "c1", order=7)
    events: list[TurnEvent] = [
        AgentTurn(text="May I?", calls=(made,)),
        UserTurn(text="Yes"),
        ProposedCall(call=made),
        Observation(text="Refunded", call_id="c1"),
        AgentTurn(text="Done"),
    ]
    steps = run_components(events, HASHING)
    assert [(step.is_agent, step.duplicate_call) for step in steps] == [(True, False), (False, None), (True, None)]
    other = ProposedCall(
        call=call("refund", "c1", order=8)
    )  # an id that is used again for something else is a new call
    assert len(run_components([*events[:2], other], HASHING)) == 3


def test_closing_turns_are_no_steps_and_a_talkative_user_has_one_gap() -> None:
    events: list[TurnEvent] = [
        UserTurn(text="I want a refund"),
        AgentTurn(text="A refund of what?"),
        UserTurn(text="Of the flight"),
        UserTurn(text="Please"),
        AgentTurn(text="Done"),
        UserTurn(text="Thank you! ###STOP###"),
    ]
    steps = run_components(events, HASHING)
    assert [step.is_agent for step in steps] == [False, True, False, False, True]
    assert [step.user_gap is None for step in steps] == [True, True, False, True, True]
    kept = run_components(events, HASHING, TrajectoryRiskSettings(sentinels=()))
    assert [step.user_gap is None for step in kept] == [True, True, False, True, True, False]


def test_a_failing_embedder_loses_one_steps_components_and_never_the_state() -> None:
    class Broken:
        def embed(self, texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
            raise RuntimeError("model gone")

    turn = AgentTurn(text="again", calls=(call("find", "c1"),))
    state = advance(ComponentState(), turn, DEFAULTS).state
    moved = advance(state, AgentTurn(text="again", calls=(call("find", "c2"),)), DEFAULTS)
    assert moved.pending is not None
    with pytest.raises(RuntimeError, match="model gone"):
        sense_steps([moved.pending], Broken())[0]
    kept = unsensed(moved.pending)
    assert (kept.repetition, kept.agent_gap, kept.duplicate_call) == (None, None, True)
    assert sense_steps([moved.pending], HASHING)[0].repetition == pytest.approx(1.0)


@pytest.mark.slow
def test_the_state_stays_small_however_long_and_hostile_the_run_is() -> None:
    adapter = TypeAdapter(ComponentState)
    state = ComponentState()
    sizes = []
    for number in range(2100):
        calls = tuple(call("t" * 300, f"id{number}-{i}" * 50, x=f"{number}-{i}") for i in range(2))
        for event in (
            AgentTurn(text=f"{number} " + "x" * 20_000, calls=calls),
            ProposedCall(call=call("extra", f"e{number}", payload="y" * 20_000)),
            Observation(text=f"{number}" + "z" * 20_000, call_id=calls[1].id[:10_000]),
        ):
            state = advance(state, event, DEFAULTS).state
        if number in (1100, 2099):
            sizes.append(len(adapter.dump_json(state)))
    assert abs(sizes[0] - sizes[1]) < 100
    assert sizes[1] < 8 * READ_CHARACTERS + 2 * 1024 * 40


def test_a_turn_of_a_thousand_calls_and_answers_is_bounded() -> None:
    state = advance(
        ComponentState(), AgentTurn(calls=tuple(call("f", f"c{i}", i=i) for i in range(1000))), DEFAULTS
    ).state
    for i in range(1000):
        state = advance(state, Observation(text="w" * 500, call_id=f"c{i}"), DEFAULTS).state
    assert state.open is not None
    assert len(state.open.calls) == 256
    assert sum(len(text) for _, text in state.open.observations) == READ_CHARACTERS
    assert len(state.open.text) <= READ_CHARACTERS


def test_hostile_texts_pass() -> None:
    strange = ["\ud800", "\x00" * 10, "🦈" * 50, "ß" * 3000, "‮abc", "{" * 9000, " \n\t "]
    events: list[TurnEvent] = []
    for number, text in enumerate(strange):
        events += [
            UserTurn(text=text),
            AgentTurn(text=text, calls=(call(text or "x", f"{number}", value=text),)),
            Observation(text=text, call_id=f"{number}"),
        ]
    steps = run_components(events, HASHING)
    assert len(steps) == 2 * len(strange)


def test_log_probabilities_that_are_none_leave_the_surprisal_missing() -> None:
    bad = AgentTurn(text="a", logprobs=(TokenLogprob(token=" flight", logprob=float("nan")),))
    good = AgentTurn(text="a", logprobs=(TokenLogprob(token=" flight", logprob=-1.5),))
    assert [step.surprisal for step in run_components([bad, good, AgentTurn(text="b")], HASHING)] == [None, 1.5, None]
    spoken = UserTurn(text="a", logprobs=(TokenLogprob(token=" flight", logprob=-2.5),))
    assert run_components([spoken], HASHING)[0].surprisal == 2.5


def test_a_recorded_tool_step_proposes_its_calls_again() -> None:
    made = call("find", "c1", a=1)
    message = Step(step_id="1", kind="llm_call", time_s=0.0, text="Looking", tool_calls=(made,))
    tool = Step(step_id="2", kind="tool_call", time_s=0.0, tool_calls=(made,))
    events: list[TurnEvent] = [*turn_of_step(message), *turn_of_step(tool), Observation(text="found", call_id="c1")]
    steps = run_components(events, HASHING)
    assert len(steps) == 1
    assert steps[0].agent_gap is not None


def test_settings_outside_of_their_domain_are_refused() -> None:
    wrongs: tuple[dict[str, Any], ...] = (
        {"window": 0},
        {"window": 101},
        {"sentinels": ("",)},
        {"pi_0": 1.0},
        {"eps": -1.0},
    )
    for wrong in wrongs:
        with pytest.raises(ConfigurationError):
            TrajectoryRiskSettings(**wrong)
