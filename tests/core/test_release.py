"""A fitted release: which irreversible calls go ahead by their chance of success; and runs let through at random."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import (
    ConfigurationError,
    Effect,
    Exploration,
    Outcome,
    Reading,
    Step,
    ToolCall,
    UncertaintyAction,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.core.engine import advance, judge_call
from grampus_uq.core.release import ReleaseRule
from grampus_uq.core.state import Profile, SessionState, state_from_json, state_to_json
from grampus_uq.recording import RecordingProcessor
from grampus_uq.recording.artifacts import ProfileArtifact, load, save
from grampus_uq.recording.replay import replay_file
from grampus_uq.recording.runs import find_run
from grampus_uq.records.events import Event, SessionStarted
from grampus_uq.stats.fusion import FusedReading, LogisticFusion

CHANCE = LogisticFusion(readings={"verbalized": FusedReading(mean=0.0, sd=1.0, slope=1.0)}, intercept=0.0)
PROMISE = "at least 90 % of released calls are right"
SEND = UncertaintyPolicy(irreversible_tool_names=["send"])
Action = UncertaintyAction


def profile(at_least: float | None = 0.8, *, advisory: bool = False, **rule: object) -> Profile:
    given = {"mode": "certified", "guarantee": PROMISE, **rule}
    return Profile(policy=SEND, calibration=CHANCE, advisory=advisory, release=ReleaseRule(at_least=at_least, **given))


def said(profile: Profile, value: float | None, state: SessionState | None = None):
    readings = [] if value is None else [Reading(source="verbalized", value=value)]
    step = Step(step_id="m", kind="llm_call", time_s=0.0)
    return advance(profile, state or SessionState(session_id="s"), step, readings)


def call(profile: Profile, state: SessionState, name: str = "send_mail", effect: Effect | None = None):
    step = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(ToolCall(name=name),), effect=effect)
    return advance(profile, state, step, ())[1]


@pytest.mark.parametrize(("value", "action"), [(0.9, True), (0.8, True), (0.79, False), (0.5, False), (0.1, False)])
def test_an_irreversible_call_goes_ahead_from_the_threshold_on_and_says_what_is_promised(value, action):
    state, seen = said(profile(), value)
    assert state.p_success == seen.p_success == pytest.approx(value)
    decided = call(profile(), state)
    assert (not decided.action.stops) is action
    assert decided.rule == "release"
    assert decided.guarantee == (PROMISE if action else None)


@given(st.floats(0.01, 0.99), st.one_of(st.none(), st.floats(0.0, 1.0)), st.booleans())
def test_would_allow_and_the_commit_agree(value, at_least, advisory):
    given = profile(at_least, advisory=advisory)
    state, _ = said(given, value)
    for name, effect in (("send_mail", None), ("look", None), ("look", Effect.IRREVERSIBLE), ("look", Effect.READ)):
        verdict, decided = judge_call(given, state, name, effect), call(given, state, name, effect)
        assert (verdict.action, verdict.rule, verdict.guarantee) == (decided.action, decided.rule, decided.guarantee)


def test_nothing_is_released_without_a_threshold_and_below_the_second_one_a_run_aborts():
    assert call(profile(None), said(profile(None), 1.0)[0]).action is Action.PAUSE_FOR_HUMAN
    two = profile(0.8, abort_below=0.3)
    assert [call(two, said(two, v)[0]).action for v in (0.2, 0.3, 0.7)] == [
        Action.ABORT,
        Action.PAUSE_FOR_HUMAN,
        Action.PAUSE_FOR_HUMAN,
    ]


def test_with_a_release_rule_the_tiers_stop_nothing_and_reversible_calls_go_on():
    state, seen = said(profile(), 0.05)
    assert seen.level.value == "critical" or seen.level.value == "high"
    assert seen.action is Action.PROCEED_WITH_LOG
    assert not call(profile(), state, "look").action.stops


def test_the_chance_is_that_of_the_turn_which_proposes_and_silence_is_no_chance():
    state, _ = said(profile(), 0.95)
    state, _ = said(profile(), None, state)
    assert state.p_success is None
    held = call(profile(), state)
    assert (held.action, held.rule) == (Action.PAUSE_FOR_HUMAN, "missing_evidence")
    state, _ = said(profile(), 0.95, state)
    step = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(ToolCall(name="look"),))
    state, _ = advance(profile(), state, step, ())
    assert not call(profile(), state).action.stops


def test_a_reading_that_the_fusion_does_not_know_is_no_chance_either():
    state, _ = advance(
        profile(),
        SessionState(session_id="s"),
        Step(step_id="m", kind="llm_call", time_s=0.0),
        [Reading(source="p_true", value=0.99)],
    )
    assert call(profile(), state).rule == "missing_evidence"


def test_a_rule_without_a_calibration_or_out_of_order_is_refused():
    with pytest.raises(ValueError, match="calibration"):
        Profile(release=ReleaseRule(at_least=0.5))
    with pytest.raises(ValueError, match="abort_below"):
        ReleaseRule(at_least=0.5, abort_below=0.6)


def test_it_goes_through_an_artifact_and_profiles_without_one_keep_their_content(tmp_path):
    save(ProfileArtifact(profile=profile()), tmp_path / "p.json")
    assert load(tmp_path / "p.json").profile == profile()
    assert "release" not in Profile().model_dump(mode="json")


def test_a_state_from_before_is_read():
    old = json.loads(state_to_json(SessionState(session_id="s")))
    del old["p_success"], old["let_through"]
    assert state_from_json(json.dumps(old)) == SessionState(session_id="s")


# -- runs let through at random --


class Starts:
    def __init__(self) -> None:
        self.seen: list[SessionStarted] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, SessionStarted):
            self.seen.append(event)


def test_runs_are_drawn_with_the_stated_probability_by_their_id_alone():
    starts = Starts()
    monitor = UncertaintyMonitor(processors=[starts], exploration=Exploration(0.2, seed=3))
    drawn = [monitor.session(f"run-{n}").state.let_through for n in range(2000)]
    assert 340 <= sum(drawn) <= 460  # .2 within 3.4 standard errors
    again = UncertaintyMonitor(exploration=Exploration(0.2, seed=3))
    assert [again.session(f"run-{n}").state.let_through for n in range(2000)] == drawn
    other = UncertaintyMonitor(exploration=Exploration(0.2, seed=4))
    assert [other.session(f"run-{n}").state.let_through for n in range(2000)] != drawn
    assert [event.let_through for event in starts.seen] == drawn
    assert {event.release_probability for event in starts.seen} == {0.2}


def test_by_default_nothing_is_let_through_and_no_draw_is_recorded():
    starts = Starts()
    assert not any(UncertaintyMonitor(processors=[starts]).session(f"{n}").state.let_through for n in range(200))
    assert starts.seen[0].release_probability is None
    with pytest.raises(ConfigurationError, match="rate"):
        Exploration(5)


@pytest.mark.parametrize(
    ("name", "effect", "stops"),
    [
        ("look", Effect.READ, False),
        ("look", Effect.REVERSIBLE, False),
        ("look", Effect.UNKNOWN, True),
        ("look", None, True),
        ("look", Effect.IRREVERSIBLE, True),
        ("send_mail", Effect.READ, True),
    ],
)
def test_only_steps_of_the_model_and_calls_known_to_be_reversible_are_let_through(name, effect, stops):
    plain = Profile(policy=SEND)
    drawn = SessionState(session_id="s", cumulative=0.1, has_reading=True, turn_read=True, let_through=True)
    state, seen = said(plain, 0.0, drawn)
    assert (seen.action, seen.advisory_action) == (Action.PROCEED_WITH_LOG, Action.ABORT)
    decided, verdict = call(plain, state, name, effect), judge_call(plain, state, name, effect)
    assert decided.action.stops is verdict.action.stops is stops
    assert decided.advisory_action is (None if stops else Action.ABORT)


def test_a_run_that_was_let_through_replays_number_for_number_and_counts_as_untouched(tmp_path):
    with RecordingProcessor(tmp_path) as recorder:
        monitor = UncertaintyMonitor(processors=[recorder], exploration=Exploration(1.0))
        session = monitor.session("s1")
        for number, value in enumerate((0.9, 0.1, 0.05)):
            step = Step(step_id=f"{number}", kind="llm_call", time_s=0.0)
            session.commit(step, [Reading(source="verbalized", value=value)])
            if number == 1:
                session = monitor.session("s1", snapshot=session.snapshot())
        session.finish(Outcome(success=False))
    replayed = list(replay_file(recorder.path("s1"), monitor.profile))
    assert len(replayed) == 3
    assert all(step.same for step in replayed)
    assert replayed[-1].assessment.advisory_action.stops
    run = find_run(tmp_path, "s1")
    assert not run.touched
    assert run.start.let_through
