"""A monitor takes another profile while sessions run: none is dropped, each step has one profile, replays follow."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import (
    ConfigurationError,
    DataError,
    Outcome,
    Reading,
    Sensing,
    Step,
    UncertaintyAction,
    UncertaintyEstimator,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.core.alarm import MIDWAY
from grampus_uq.core.release import ReleaseRule
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.core.state import Profile
from grampus_uq.monitor.reloading import watch_profile
from grampus_uq.recording import RecordingProcessor, find_run, validate
from grampus_uq.recording.artifacts import ANY, FittedFor, ProfileArtifact, profile_fingerprint, save
from grampus_uq.recording.replay import replay_file
from grampus_uq.records.events import Event, ProfileChanged, SessionStarted
from grampus_uq.stats.fusion import FusedReading, LogisticFusion
from tests.core.test_alarm import fitted, profile_of
from tests.monitor.test_monitor_artifact import DETECTOR
from tests.sampling import examples

CHANCE = LogisticFusion(readings={"verbalized": FusedReading(mean=0.0, sd=1.0, slope=1.0)}, intercept=0.0)
OLD = Profile(policy=UncertaintyPolicy(irreversible_tool_names=["send"]))
NEW = Profile(
    policy=UncertaintyPolicy(irreversible_tool_names=["send"]), calibration=CHANCE, release=ReleaseRule(at_least=0.9)
)


def said(session, number: int, value: float = 0.95):
    step = Step(step_id=f"s{number}", kind="llm_call", time_s=float(number))
    return session.commit(step, [Reading(source="verbalized", value=value)])


class Seen:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def test_new_sessions_have_the_new_profile_and_those_that_run_keep_theirs() -> None:
    seen = Seen()
    monitor = UncertaintyMonitor(profile=OLD, processors=[seen])
    before = monitor.session("before")
    said(before, 0)
    done = monitor.reload(NEW)
    after = monitor.session("after")
    assert (before.profile, after.profile, monitor.profile) == (OLD, NEW, NEW)
    assert (said(before, 1).p_success, said(after, 0).p_success) == (None, pytest.approx(0.95))
    assert (done.before, done.fingerprint, done.migrated) == (profile_fingerprint(OLD), profile_fingerprint(NEW), 0)
    starts = [event for event in seen.events if isinstance(event, SessionStarted)]
    assert [event.profile_fingerprint for event in starts] == [done.before, done.fingerprint]
    assert not any(isinstance(event, ProfileChanged) for event in seen.events)


def test_a_session_that_goes_over_keeps_what_it_believes_and_asks_where_it_does_not_know() -> None:
    monitor = UncertaintyMonitor(profile=OLD)
    session = monitor.session("s")
    said(session, 0)
    state = session.state
    assert session.would_allow("send_mail").action is not None
    assert monitor.reload(NEW, running="migrate").migrated == 1
    assert session.profile == NEW
    assert (session.state.cumulative, session.state.n_steps) == (state.cumulative, state.n_steps)
    held = session.would_allow("send_mail")  # the turn that proposes it was judged by nobody's calibration
    assert (held.action, held.rule) == (UncertaintyAction.PAUSE_FOR_HUMAN, "missing_evidence")
    said(session, 1)
    assert session.would_allow("send_mail").allowed


def test_a_recording_of_a_session_that_went_over_replays_number_for_number(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path) as recorder:
        monitor = UncertaintyMonitor(profile=OLD, processors=[recorder])
        session = monitor.session("s1")
        for number in range(6):
            said(session, number, 0.5 + 0.09 * number)
            if number == 2:
                snapshot = session.snapshot()
                monitor.reload(NEW, running="migrate")
        # taken up again elsewhere, from before the change, by a monitor that has the new profile from the start
        session = UncertaintyMonitor(profile=NEW, processors=[recorder]).session("s1", snapshot=snapshot)
        for number in range(3, 6):
            said(session, number, 0.9)
        session.finish(Outcome(success=True))
    [report] = validate(tmp_path)
    assert [(found.severity, found.field) for found in report.findings] == [
        ("warning", "assessment.index")
    ]  # it went back
    both = {profile_fingerprint(profile): profile for profile in (OLD, NEW)}
    replayed = list(replay_file(recorder.path("s1"), OLD, profiles=both))
    assert len(replayed) == 9
    assert all(step.same for step in replayed)
    assert replayed[3].assessment.p_success is not None
    alone = list(replay_file(recorder.path("s1"), OLD))  # without them one profile judges all
    assert [step.same for step in alone] == [True] * 3 + [False] * 6
    with pytest.raises(DataError, match="not among `profiles`"):
        list(replay_file(recorder.path("s1"), OLD, profiles={}))


def test_an_alarm_of_a_detector_that_came_midway_carries_no_promise() -> None:
    pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")
    watched = profile_of(fitted())
    monitor = UncertaintyMonitor(profile=OLD)
    session = monitor.session("s")
    said(session, 0, 0.9)
    monitor.reload(watched, running="migrate")
    for number in range(1, 40):
        shown = said(session, number, 0.05)
    assert shown.rule == "detector"
    assert shown.guarantee == MIDWAY
    whole = monitor.session("whole")
    for number in range(40):
        shown = said(whole, number, 0.05)
    assert shown.guarantee == watched.detector.threshold.guarantee


@settings(max_examples=examples(50))
@given(parts=st.lists(st.tuples(st.sampled_from(["m", "other"]), st.integers(1, 4)), min_size=1, max_size=5))
def test_a_detector_alarms_with_its_promise_where_its_profile_fitted_at_every_part_of_the_run_and_else_not_at_all(
    parts: list[tuple[str, int]],
) -> None:
    watched = Profile(detector=DETECTOR, estimator=UncertaintyEstimator(verbalized_calibration_bias=0.0))
    anywhere = FittedFor(model="m", prompt_hash=ANY, tools_hash=ANY)
    monitor = UncertaintyMonitor(profile=ProfileArtifact(profile=watched, fitted_for=anywhere))
    snapshot, number = None, 0
    for model, steps in parts:
        session = monitor.session("s", model=model, snapshot=snapshot)
        for _ in range(steps):
            said(session, number, 0.9)
            number += 1
        snapshot = json.loads(json.dumps(session.compact_snapshot() if number % 2 else session.snapshot()))
    session = monitor.session("s", model="m", snapshot=snapshot)
    shown = said(session, number, 0.05)
    whole = all(model == "m" for model, _ in parts)
    assert (session.profile.fallback is None) is whole
    assert shown.guarantee == (DETECTOR.threshold.guarantee if whole else None)


def test_a_session_that_the_new_profile_does_not_fit_keeps_its_own_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    monitor = UncertaintyMonitor(profile=OLD)
    one, other = monitor.session("one", model="m"), monitor.session("other", model="x")
    artifact = ProfileArtifact(profile=NEW, fitted_for=FittedFor(model="m"))
    done = monitor.reload(artifact, running="migrate")
    assert (done.migrated, done.kept) == (1, 1)
    assert one.profile.policy == NEW.policy
    assert one.profile.fallback is not None  # prompt and tools are not known to be the same
    assert other.profile == OLD
    assert "other keeps its profile" in caplog.text
    watched = monitor.session("watched", model="m")
    risky = NEW.model_copy(update={"trajectory_risk": TrajectoryRiskSettings()})
    assert monitor.reload(risky, running="migrate").kept >= 3
    assert watched.profile.trajectory_risk is None


def test_an_advisory_monitor_stays_advisory_whatever_it_takes_and_the_same_profile_changes_nothing() -> None:
    seen = Seen()
    monitor = UncertaintyMonitor(profile=OLD, advisory=True, processors=[seen])
    session = monitor.session("s")
    assert monitor.reload(NEW, running="migrate").migrated == 1
    assert session.profile.advisory
    assert monitor.profile.advisory
    n = len(seen.events)
    assert monitor.reload(NEW, running="migrate").migrated == 0
    assert len(seen.events) == n


def test_a_profile_that_cannot_be_wired_leaves_everything_as_it_was() -> None:
    risky = OLD.model_copy(update={"trajectory_risk": TrajectoryRiskSettings()})
    monitor = UncertaintyMonitor(profile=risky, sensing=Sensing(embedder=lambda texts: np.ones((len(texts), 2))))
    before = monitor.fingerprint
    with pytest.raises(ConfigurationError, match="embedder"):
        monitor.reload(NEW)
    assert monitor.fingerprint == before
    assert monitor.session("s").profile.trajectory_risk is not None


def test_sessions_that_start_and_step_while_profiles_change_have_one_profile_each(tmp_path: Path) -> None:
    """Four threads start and step sessions while the profile changes to and fro; every recording replays exactly."""
    with RecordingProcessor(tmp_path) as recorder:
        monitor = UncertaintyMonitor(profile=OLD, processors=[recorder])
        done = threading.Event()

        def work(name: str) -> None:
            for number in range(8):
                session = monitor.session(f"{name}-{number}")
                for step in range(10):
                    said(session, step, 0.3 + 0.07 * step)

        def swap() -> None:
            number = 0
            while not done.is_set():
                number += 1
                monitor.reload(NEW if number % 2 else OLD, running="migrate")

        swapper = threading.Thread(target=swap)
        workers = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(4)]
        swapper.start()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        done.set()
        swapper.join()
        assert monitor.processor_failures == {}
    both = {profile_fingerprint(profile): profile for profile in (OLD, NEW)}
    changed = 0
    for path in tmp_path.glob("*.jsonl"):
        run = find_run(tmp_path, path.stem)
        began = both[run.start.profile_fingerprint]
        steps = list(replay_file(path, began, profiles=both))
        assert len(steps) == 10
        assert all(step.same for step in steps)
        changed += any(isinstance(event, ProfileChanged) for event in run.events)
    assert changed


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_file_is_followed_and_a_broken_one_is_not(backend: str, tmp_path: Path, caplog) -> None:
    path = tmp_path / "profile.json"
    first, second = ProfileArtifact(profile=OLD), ProfileArtifact(profile=NEW)
    save(first, path)
    monitor = UncertaintyMonitor(profile=first)
    told = []

    async def until(condition) -> None:
        with anyio.fail_after(60):
            while not condition():  # noqa: ASYNC110 (a line in the log sets no event)
                await anyio.sleep(0.01)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: watch_profile(monitor, path, interval_s=0.02, on_reload=told.append))
            path.write_text("{ half")
            await until(lambda: "is not taken" in caplog.text)
            assert monitor.fingerprint == first.fingerprint
            save(second, path)
            await until(lambda: monitor.fingerprint == second.fingerprint)
            path.unlink()
            await anyio.sleep(0.1)
            save(first, path)
            await until(lambda: monitor.fingerprint == first.fingerprint)
            group.cancel_scope.cancel()

    anyio.run(main, backend=backend)
    assert [one.fingerprint for one in told] == [second.fingerprint, first.fingerprint]
