"""A monitor with an artifact acts where it fits; elsewhere its tiers do: no session is less guarded than without."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grampus_uq import ConfigurationError, Reading, Step, UncertaintyAction, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.core.release import ReleaseRule
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.core.state import Profile
from grampus_uq.learn.fit.detector import fit_budget
from grampus_uq.recording.artifacts import FittedFor, ProfileArtifact, prompt_hash, tools_hash
from grampus_uq.recording.replay import replay
from grampus_uq.records.events import Event, SessionStarted
from grampus_uq.stats.fusion import FusedReading, LogisticFusion
from tests.detector_rows import detector_runs

ARTIFACT = ProfileArtifact(
    profile=Profile(policy=UncertaintyPolicy(irreversible_tool_names=["send"])),
    fitted_for=FittedFor(model="m", prompt_hash=prompt_hash("be good"), tools_hash=tools_hash([])),
)
CHANCE = LogisticFusion(readings={"verbalized": FusedReading(mean=0.0, sd=1.0, slope=1.0)}, intercept=0.0)
FITTED = ARTIFACT.model_copy(
    update={"profile": Profile(policy=ARTIFACT.profile.policy, calibration=CHANCE, release=ReleaseRule(at_least=0.0))}
)
_RNG = np.random.default_rng(0)
DETECTOR = fit_budget(
    detector_runs(
        run_ids=np.repeat([f"r{i}" for i in range(100)], 4),
        steps=np.tile(np.arange(1, 5), 100),
        scores=_RNG.uniform(0.5, 0.9, 400),
        streams=("fused",),
    ),
    rng=_RNG,
    share=0.1,
).detector
FITTING: dict[str, Any] = {"model": "m", "prompt_hash": prompt_hash("be good"), "tools_hash": tools_hash([])}


class Seen:
    def __init__(self) -> None:
        self.started: list[SessionStarted] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, SessionStarted):
            self.started.append(event)


def test_it_acts_where_model_prompt_and_tools_are_those_it_was_fitted_for() -> None:
    seen = Seen()
    session = UncertaintyMonitor(profile=ARTIFACT, processors=[seen]).session("s", **FITTING)
    assert session.would_allow("send_email").action is UncertaintyAction.PAUSE_FOR_HUMAN
    (started,) = seen.started
    assert started.profile_fingerprint == ARTIFACT.fingerprint
    assert started.metadata["profile_status"] == "active"
    assert not started.advisory


@pytest.mark.parametrize(
    "other", [{"prompt_hash": prompt_hash("be bad")}, {"tools_hash": None}, {"model": ""}, {"model": "other"}]
)
def test_where_it_does_not_fit_its_tiers_guard_the_session_and_it_says_so_everywhere(
    other: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    session = UncertaintyMonitor(profile=FITTED, processors=[seen]).session("s", **FITTING | other)
    verdict = session.would_allow("send_email")
    assert verdict.action is UncertaintyAction.PAUSE_FOR_HUMAN
    assert "the fitted profile does not apply here" in verdict.reason
    assert not seen.started[0].advisory
    why = seen.started[0].metadata["profile_reason"]
    assert why == session.summary()["profile_does_not_apply"]
    assert next(iter(other)) in why
    assert why in caplog.text
    assert session.profile.policy == FITTED.profile.policy


@pytest.mark.parametrize("artifact", [FITTED, ARTIFACT])
def test_an_advisory_monitor_stays_advisory_where_the_profile_does_not_fit(artifact: ProfileArtifact) -> None:
    session = UncertaintyMonitor(profile=artifact, advisory=True).session("s", **FITTING | {"model": "other"})
    assert session.would_allow("send_email").allowed
    assert session.profile.fallback is not None


def test_a_profile_in_which_nothing_was_fitted_guards_as_its_policy_does_and_says_so() -> None:
    session = UncertaintyMonitor(profile=ARTIFACT).session("s", **FITTING)
    assert session.would_allow("send_email").action is UncertaintyAction.PAUSE_FOR_HUMAN
    assert "nothing in it was fitted" in session.would_allow("send_email").reason


def test_a_replay_takes_what_stood_in_for_a_profile_from_the_session() -> None:
    events: list[Event] = []

    class Keep:
        def on_event(self, event: Event) -> None:
            events.append(event)

    monitor = UncertaintyMonitor(profile=FITTED, processors=[Keep()])
    session = monitor.session("s", **FITTING | {"model": ""})
    session.commit(Step(step_id="m", kind="llm_call", time_s=0.0), [Reading(source="verbalized", value=0.3)])
    anyio.run(lambda: session.observe_tool_call("send_email", "t"))
    assert all(step.same for step in replay(events, session.profile))


releases = st.builds(ReleaseRule, at_least=st.none() | st.floats(0.0, 1.0))
profiles = st.builds(
    Profile,
    policy=st.builds(
        UncertaintyPolicy,
        irreversible_tool_names=st.just(["send"]),
        on_missing_evidence=st.sampled_from(UncertaintyAction),
        on_alarm=st.sampled_from(UncertaintyAction),
    ),
    calibration=st.just(CHANCE),
    release=st.none() | releases,
    detector=st.none() | st.just(DETECTOR),
    trajectory_risk=st.none() | st.just(TrajectoryRiskSettings()),
)
turns = st.lists(st.tuples(st.sampled_from(["llm_call", "decision"]), st.none() | st.floats(0.0, 1.0)), max_size=8)
met = st.fixed_dictionaries({name: st.sampled_from([value, None, "x" * 64]) for name, value in FITTING.items()}).map(
    lambda found: {**found, "model": found["model"] or ""}
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(profiles, met, turns)
def test_no_profile_that_fits_or_not_lets_a_call_go_that_waits_without_one_for_want_of_evidence(
    profile: Profile, here: dict[str, Any], turns: list[tuple[str, float | None]]
) -> None:
    """Unless the user wrote what missing evidence does."""
    artifact = FITTED.model_copy(update={"profile": profile})
    guarded = UncertaintyMonitor(profile=artifact).session("s", **here)
    bare = UncertaintyMonitor(policy=profile.policy).session("s")
    for number in range(len(turns) + 1):
        without, with_it = bare.would_allow("send_email"), guarded.would_allow("send_email")
        if without.rule == "missing_evidence" and without.action.stops:
            assert not with_it.allowed
        if not guarded.state.has_reading and profile.policy.on_missing_evidence.stops:
            assert not with_it.allowed
        if number < len(turns):
            kind, value = turns[number]
            step = Step(step_id=str(number), kind=kind, time_s=0.0)
            reading = Reading(source="verbalized", value=value, reason=None if value is not None else "not_stated")
            for session in (bare, guarded):
                session.commit(step, [reading])


class Keep:
    def __init__(self, events: list[Event]) -> None:
        self.on_event = events.append


_answers = st.lists(
    st.tuples(st.just(FITTING) | met, st.sampled_from(["resume", "reload", ""])), min_size=1, max_size=6
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(profiles, _answers)
def test_where_each_answer_says_what_it_is_made_with_the_profile_acts_while_all_were_made_with_what_it_was_fitted_for(
    profile: Profile, answers: list[tuple[dict[str, Any], str]]
) -> None:
    """Also where the session goes on in another process or under a reloaded monitor. Recording and replay agree."""
    artifact, events = FITTED.model_copy(update={"profile": profile}), list[Event]()
    monitor = UncertaintyMonitor(profile=artifact, processors=[Keep(events)])
    session = monitor.session("s", model=None)
    for number, (made_with, action) in enumerate(answers):
        if action == "resume":
            monitor = UncertaintyMonitor(profile=artifact, processors=[Keep(events)])
            session = monitor.session("s", model=None, snapshot=session.snapshot())
        elif action == "reload":
            monitor.reload(artifact, running="migrate")
        session.made_with(**made_with)
        acts = all(one == FITTING for one, _ in answers[: number + 1])
        assert (session.profile.fallback is None) is acts
        session.commit(Step(step_id=f"m{number}", kind="llm_call", time_s=0.0), [])
    said = FittedFor.shared((one["model"], one["prompt_hash"], one["tools_hash"]) for one, _ in answers)
    starts = [event for event in events if isinstance(event, SessionStarted)]
    assert FittedFor.shared((one.model, one.prompt_hash, one.tools_hash) for one in starts) == said
    assert starts[-1].metadata["profile_status"] != "active" or all(one == FITTING for one, _ in answers)
    began = profile if answers[0][0] == FITTING else profile.standing_in("It does not fit.")
    assert all(step.same for step in replay(events, began, profiles={artifact.fingerprint: profile}))


@pytest.mark.parametrize("fact", ["model", "prompt_hash", "tools_hash"])
def test_what_a_run_is_made_with_is_text(fact: str) -> None:
    """`hash(prompt)` is none, and no recording could be read that held it."""
    with pytest.raises(ConfigurationError, match=rf"'{fact}' .*text"):
        UncertaintyMonitor().session("s", **FITTING | {fact: hash("be good")})
    with pytest.raises(ConfigurationError, match=rf"'{fact}' .*text"):
        UncertaintyMonitor().session("s", model=None).made_with(**FITTING | {fact: hash("be good")})


def test_what_came_before_the_first_answer_says_what_it_is_made_with_leaves_that_unknown() -> None:
    """The recording has begun, and says that it is."""
    session = UncertaintyMonitor(profile=FITTED, processors=[Keep([])]).session("s", model=None)
    session.observe_user("Pay Bob.")
    session.made_with(**FITTING)
    assert session.profile.fallback is not None
