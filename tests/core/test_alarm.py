"""A fitted detector in the monitor: its one alarm pauses, with its promise; the tiers stop nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import anyio
import numpy as np
import pytest

from grampus_uq import Profile, Reading, SessionState, Step, UncertaintyAction, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.core.engine import advance, judge_call
from grampus_uq.core.state import answer_alarm, change_profile, rearm_alarm, state_from_json, state_to_json
from grampus_uq.learn.fit.detector import fit_budget, fit_detector
from grampus_uq.recording import decode, encode
from grampus_uq.recording.replay import replay
from grampus_uq.records.events import Event
from grampus_uq.records.vocabulary import Effect, StopReason, UncertaintyLevel
from grampus_uq.stats.eprocess import Detector
from tests.binomial import binomial_ceiling
from tests.detector_rows import detector_runs
from tests.sampling import sampled

ALPHA = 0.1


def runs(rng: np.random.Generator, n: int, success: bool, length: int = 20) -> list[list[float]]:
    """Fused confidences of runs: a failing one drifts down from a third of its length on."""
    level = np.full((n, length), 0.72)
    if not success:
        level[:, length // 3 :] -= np.linspace(0.05, 0.35, length - length // 3)
    return [[float(x) for x in row] for row in np.clip(rng.normal(level, 0.1), 0.01, 0.99)]


def fitted(seed: int = 0, n: int = 200) -> Detector:
    rng = np.random.default_rng(seed)
    labelled = [(run, True) for run in runs(rng, n, True)] + [(run, False) for run in runs(rng, n // 2, False)]
    ids = [f"r{i}" for i, (run, _) in enumerate(labelled) for _ in run]
    steps = [t for run, _ in labelled for t in range(1, len(run) + 1)]
    scores = [score for run, _ in labelled for score in run]
    outcomes = {f"r{i}": success for i, (_, success) in enumerate(labelled)}
    reasons = dict.fromkeys(outcomes, StopReason.CLEAN)
    data = detector_runs(
        run_ids=ids, steps=steps, scores=scores, outcomes=outcomes, stop_reasons=reasons, streams=("fused",)
    )
    return fit_detector(data, rng=rng, alpha=ALPHA, delta=0.1).detector


@pytest.fixture(scope="module")
def detector() -> Detector:
    pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")
    return fitted()


def profile_of(detector: Detector, **policy: Any) -> Profile:
    estimator = {"verbalized_calibration_bias": 0.0}
    return Profile(
        detector=detector,
        estimator=Profile().estimator.model_copy(update=estimator),
        policy=UncertaintyPolicy(**policy),
    )


def step(index: int, kind: str = "llm_call", effect: Effect | None = None) -> Step:
    return Step(step_id=f"s{index}", kind=kind, time_s=float(index), effect=effect)


def drive(profile: Profile, scores: Sequence[float], session: str = "s") -> tuple[SessionState, list[Any]]:
    state, seen = SessionState(session_id=session), []
    for index, score in enumerate(scores):
        state, assessment = advance(profile, state, step(index), [Reading(source="verbalized", value=score)])
        seen.append(assessment)
    return state, seen


def test_a_failing_run_is_paused_with_the_guarantee_in_words_and_a_healthy_one_is_not(detector: Detector) -> None:
    profile = profile_of(detector)
    _, bad = drive(profile, [0.7] * 5 + [0.15] * 15)
    alarm = next(a for a in bad if a.action is UncertaintyAction.PAUSE_FOR_HUMAN)
    assert alarm.rule == "detector"
    assert alarm.guarantee == detector.threshold.guarantee
    assert alarm.alpha == ALPHA
    assert alarm.alarm_mode == "pac"
    assert alarm.log_e_value is not None
    assert alarm.log_threshold is not None
    assert alarm.log_e_value > alarm.log_threshold
    _, good = drive(profile, [0.75] * 100)
    assert {a.action for a in good} <= {UncertaintyAction.PROCEED, UncertaintyAction.PROCEED_WITH_LOG}


def test_the_tiers_pause_nothing_by_themselves_and_missing_scores_are_no_evidence(detector: Detector) -> None:
    profile = profile_of(detector, low_threshold=1.0, medium_threshold=1.0, high_threshold=1.0)
    state, seen = drive(profile, [0.75] * 10)
    assert not any(a.action.stops for a in seen)
    silent, assessment = advance(profile, state, step(99), [Reading(source="verbalized", value=None, reason="timeout")])
    assert state.alarm is not None
    assert silent.alarm is not None
    assert silent.alarm.evidence.log_peak == state.alarm.evidence.log_peak
    assert assessment.log_e_value == seen[-1].log_e_value


def test_an_answered_alarm_asks_no_more_and_a_rearmed_one_says_that_alpha_is_spent(detector: Detector) -> None:
    profile = profile_of(detector)
    state, seen = drive(profile, [0.7] * 5 + [0.15] * 15)
    assert seen[-1].action is UncertaintyAction.PAUSE_FOR_HUMAN  # it latches
    state = answer_alarm(profile, state)
    state, calm = advance(profile, state, step(50), [Reading(source="verbalized", value=0.1)])
    assert not calm.action.stops
    state = rearm_alarm(profile, state)
    for index in range(40):
        state, again = advance(profile, state, step(60 + index), [Reading(source="verbalized", value=0.1)])
    assert again.action is UncertaintyAction.PAUSE_FOR_HUMAN
    assert again.guarantee is not None
    assert again.guarantee.startswith("no guarantee")


# -- an answer covers the call that it answers --

RINGING = [0.7] * 5 + [0.15] * 15


@pytest.mark.parametrize("answer", ["approve", "edit", "reject", "respond", "guidance", "grant", None])
def test_after_an_alarm_every_further_irreversible_call_asks_for_itself_whatever_was_answered(
    detector: Detector, answer: str | None
) -> None:
    session = UncertaintyMonitor(profile=profile_of(detector)).session("s")
    for index, score in enumerate(RINGING):
        session.commit(step(index), [Reading(source="verbalized", value=score)])
    for number in range(12):
        if answer is not None:
            session.record_decision(answer, principal="ann", message="Never pay anyone")
        said = session.commit(step(100 + number), [Reading(source="verbalized", value=0.95)])
        assert said.action.stops is (answer not in ("approve", "edit"))
        verdict = session.would_allow("pay", effect=Effect.IRREVERSIBLE)
        call = session.commit(step(200 + number, "tool_call", Effect.IRREVERSIBLE), [])
        assert (call.action, call.rule) == (UncertaintyAction.PAUSE_FOR_HUMAN, "detector")
        assert (verdict.action, verdict.rule, verdict.reason) == (call.action, call.rule, call.reasoning)


@pytest.mark.parametrize("answer", ["reject", "respond", "guidance", "grant"])
def test_what_is_no_approval_acknowledges_nothing(detector: Detector, answer: str) -> None:
    session = UncertaintyMonitor(profile=profile_of(detector)).session("s")
    for index, score in enumerate(RINGING):
        session.commit(step(index), [Reading(source="verbalized", value=score)])
    before = session.state
    session.record_decision(answer, principal="ann", acknowledges=True)
    assert session.state == before


def test_neither_rearming_nor_another_profile_makes_a_run_forget_that_its_alarm_rang(detector: Detector) -> None:
    profile = profile_of(detector)
    state, _ = drive(profile, RINGING)
    state = rearm_alarm(profile, answer_alarm(profile, state))
    state, _ = advance(profile, state, step(30), [Reading(source="verbalized", value=0.95)])
    _, call = advance(profile, state, step(31, "tool_call", Effect.IRREVERSIBLE), [])
    assert (call.action, call.rule) == (UncertaintyAction.PAUSE_FOR_HUMAN, "detector")
    assert call.guarantee is not None
    assert call.guarantee.startswith("no guarantee")
    other = Profile(estimator=profile.estimator)
    state = change_profile(other, state)
    state, _ = advance(other, state, step(32), [Reading(source="verbalized", value=1.0)] * 3)
    for _ in range(20):
        state, calm = advance(other, state, step(33), [Reading(source="verbalized", value=1.0)])
    assert not calm.action.stops
    _, call = advance(other, state, step(40, "tool_call", Effect.IRREVERSIBLE), [])
    assert (call.action, call.rule, call.guarantee) == (UncertaintyAction.PAUSE_FOR_HUMAN, "detector", None)


def test_after_an_alarm_the_tiers_pause_counts_as_the_alarms_so_that_no_grant_lifts_it(detector: Detector) -> None:
    profile = profile_of(detector)
    state, _ = drive(profile, RINGING)
    other = Profile(estimator=profile.estimator)
    state = change_profile(other, state)
    while state.level is not UncertaintyLevel.MEDIUM:
        state, _ = advance(other, state, step(32), [Reading(source="verbalized", value=0.85)])
    _, call = advance(other, state, step(40, "tool_call", Effect.IRREVERSIBLE), [])
    assert (call.action, call.rule) == (UncertaintyAction.PAUSE_FOR_HUMAN, "detector")


def test_an_old_state_whose_alarm_was_answered_asks_for_its_irreversible_calls_too(detector: Detector) -> None:
    profile = profile_of(detector)
    written = json.loads(state_to_json(answer_alarm(profile, drive(profile, RINGING)[0])))
    del written["turns"], written["rang"]
    state = state_from_json(json.dumps(written))
    _, call = advance(profile, state, step(30, "tool_call", Effect.IRREVERSIBLE), [])
    said = judge_call(profile, state, "pay", Effect.IRREVERSIBLE)
    assert (call.action, call.rule) == (said.action, said.rule) == (UncertaintyAction.PAUSE_FOR_HUMAN, "detector")
    moved = change_profile(Profile(), state)
    assert moved.alarmed


def test_the_policy_may_abort_on_an_alarm_and_advisory_only_says_so(detector: Detector) -> None:
    scores = [0.7] * 5 + [0.15] * 15
    _, seen = drive(profile_of(detector, on_alarm=UncertaintyAction.ABORT), scores)
    assert (seen[-1].action, seen[-1].rule) == (UncertaintyAction.ABORT, "detector")
    advising = profile_of(detector, on_alarm=UncertaintyAction.ABORT).model_copy(update={"advisory": True})
    _, told = drive(advising, scores)
    assert not any(a.action.stops for a in told)
    assert told[-1].advisory_action is UncertaintyAction.ABORT
    assert told[-1].guarantee == detector.threshold.guarantee


def test_an_external_verifiers_score_drives_it_by_name_and_is_recorded_and_replayed() -> None:
    pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")
    data = detector_runs(
        run_ids=np.repeat([f"r{i}" for i in range(100)], 4),
        steps=np.tile(np.arange(1, 5), 100),
        scores=np.random.default_rng(0).uniform(0.5, 0.9, 400),
        streams=("judge",),
    )
    profile = profile_of(fit_budget(data, rng=np.random.default_rng(0), share=0.1).detector)
    events: list[Event] = []

    class Keep:
        def on_event(self, event: Event) -> None:
            events.append(event)

    async def run() -> list[Any]:
        session = UncertaintyMonitor(profile=profile, processors=[Keep()]).session("s")
        told = [{"judge": 0.9}, {"other": 0.01}, {"judge": 0.05}]
        return [(await session.observe_llm_response("", str(i), external=x))[0] for i, x in enumerate(told)]

    live = anyio.run(run)
    assert [a.action.stops for a in live] == [False, False, True]
    assert live[0].log_e_value == live[1].log_e_value  # a score of another name is none of its stream
    stored = [decode(encode(event, content="full")) for event in events]
    assert [found.assessment for found in replay(stored, profile)] == live


def test_irreversible_calls_go_through_while_nothing_rings_and_wait_while_it_does(detector: Detector) -> None:
    profile = profile_of(detector)
    state, _ = drive(profile, [0.7] * 10)
    _, call = advance(profile, state, step(10, "tool_call", Effect.IRREVERSIBLE), [])
    assert not call.action.stops
    ringing, _ = drive(profile, [0.7] * 5 + [0.15] * 15)
    _, call = advance(profile, ringing, step(20, "tool_call", Effect.IRREVERSIBLE), [])
    assert call.action is UncertaintyAction.PAUSE_FOR_HUMAN
    fresh = SessionState(session_id="s")
    _, blind = advance(profile, fresh, step(0, "tool_call", Effect.IRREVERSIBLE), [])
    assert blind.rule == "missing_evidence"
    assert blind.guarantee is None


def test_a_detector_whose_streams_nobody_feeds_lets_no_irreversible_call_through(detector: Detector) -> None:
    """Its silence would read as safety: a misspelt stream, a signal that was switched off."""
    unfed = Detector(
        streams=("nobody",),
        scorer=detector.scorer,
        thresholds=detector.thresholds,
        deployed=detector.deployed,
        salt=detector.salt,
    )
    state, seen = drive(profile_of(unfed), [0.9] * 10)
    assert not any(a.action.stops for a in seen)
    _, call = advance(profile_of(unfed), state, step(10, "tool_call", Effect.IRREVERSIBLE), [])
    assert (call.action, call.rule) == (UncertaintyAction.PAUSE_FOR_HUMAN, "missing_evidence")
    assert "the detector has no score yet" in call.reasoning
    fed, _ = drive(profile_of(detector), [0.75] * 10)
    _, call = advance(profile_of(detector), fed, step(10, "tool_call", Effect.IRREVERSIBLE), [])
    assert not call.action.stops


def test_profile_and_state_go_through_json_unchanged(detector: Detector) -> None:
    profile = profile_of(detector)
    again = Profile.model_validate_json(profile.model_dump_json())
    assert again == profile
    state, _ = drive(profile, [0.7, 0.2, 0.5])
    assert state_from_json(state_to_json(state)) == state
    assert len(json.dumps(json.loads(state_to_json(state))["alarm"])) <= 1024
    assert drive(again, [0.3] * 10) == drive(profile, [0.3] * 10)


def test_live_equals_replay_with_a_detector_an_answer_and_a_rearming(detector: Detector) -> None:
    events: list[Event] = []

    class Keep:
        def on_event(self, event: Event) -> None:
            events.append(event)

    profile = profile_of(detector)
    session = UncertaintyMonitor(profile=profile, processors=[Keep()]).session("s")
    live = []
    for index, score in enumerate([0.7] * 5 + [0.1] * 20):
        live.append(session.commit(step(index), [Reading(source="verbalized", value=score)]))
        if index == 18:
            session.record_decision("approve", principal="ann")
        if index == 20:
            session.rearm(principal="ann")
    stored = [decode(encode(event, content="full")) for event in events]
    assert [found.assessment for found in replay(stored, profile)] == live


@sampled("members", [("running_minimum",)], full=[None])
def test_a_healthy_agent_with_irreversible_tools_is_paused_no_more_often_than_alpha(
    detector: Detector, members: Sequence[str] | None
) -> None:
    """100 steps, an irreversible tool every fifth; the guide's tiers on the same runs are printed beside it."""
    rng = np.random.default_rng(7)
    n, length = 150, 100
    healthy = [(run, True) for run in runs(rng, 300, True, length)] + [
        (run, False) for run in runs(rng, 150, False, length)
    ]
    ids = [f"r{i}" for i, (run, _) in enumerate(healthy) for _ in run]
    steps = [t for run, _ in healthy for t in range(1, length + 1)]
    scores = [score for run, _ in healthy for score in run]
    outcomes = {f"r{i}": success for i, (_, success) in enumerate(healthy)}
    data = detector_runs(run_ids=ids, steps=steps, scores=scores, outcomes=outcomes, streams=("fused",))
    long_detector = fit_detector(data, rng=rng, alpha=ALPHA, delta=0.1, members=members).detector
    profiles = {"profile": profile_of(long_detector), "tiers": Profile(estimator=profile_of(detector).estimator)}
    paused = dict.fromkeys(profiles, 0)
    for number, scores_of_run in enumerate(runs(rng, n, True, length)):
        for name, profile in profiles.items():
            paused[name] += _ever_paused(profile, scores_of_run, f"h{number}")
    print(f"share of healthy runs ever paused: { ({k: v / n for k, v in paused.items()}) }")
    assert paused["profile"] <= binomial_ceiling(n, ALPHA, 0.999)
    assert paused["tiers"] > paused["profile"]  # the sabotage: rules without a budget break it visibly


def _ever_paused(profile: Profile, scores: Sequence[float], session: str) -> bool:
    state = SessionState(session_id=session)
    for index, score in enumerate(scores):
        state, assessment = advance(profile, state, step(index), [Reading(source="verbalized", value=score)])
        if assessment.action.stops:
            return True
        if index % 5 == 4:
            state, assessment = advance(profile, state, step(index, "tool_call", Effect.IRREVERSIBLE), [])
            if assessment.action.stops:
                return True
    return False


def test_a_detector_without_enough_labels_never_rings_and_its_record_holds_no_infinity() -> None:
    pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")
    poor = fitted(seed=1, n=20)
    assert math.isinf(poor.threshold.log_value)
    _, seen = drive(profile_of(poor), [0.01] * 50)
    assert not any(a.action.stops for a in seen)
    assert seen[-1].log_threshold is None


def test_would_allow_agrees_with_what_is_then_decided(detector: Detector) -> None:
    session = UncertaintyMonitor(profile=profile_of(detector)).session("s")
    for index, score in enumerate([0.7] * 5 + [0.1] * 10):
        session.commit(step(index), [Reading(source="verbalized", value=score)])
        verdict = session.would_allow("pay", effect=Effect.IRREVERSIBLE)
        before = session.state
        decided, action = anyio.run(lambda: session.observe_tool_call("pay", "t", effect=Effect.IRREVERSIBLE))
        assert (verdict.action, verdict.rule, verdict.guarantee) == (action, decided.rule, decided.guarantee)
        assert before.alarm == session.state.alarm
