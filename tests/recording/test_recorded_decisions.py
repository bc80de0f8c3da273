"""Recordings with human decisions that an earlier version wrote: read, replayed and audited today as they were then.

`golden_decisions` holds three runs (under the tiers, with a resume; critical throughout; under a detector whose alarm
was answered and re-armed) and the detector's profile, all written by the version before evidence was kept by turns.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from grampus_uq import UncertaintyAction, UncertaintyPolicy
from grampus_uq.core.state import Profile
from grampus_uq.learn.eligibility import eligibility
from grampus_uq.learn.evaluate.evaluation import read_recordings
from grampus_uq.recording import artifacts
from grampus_uq.recording.codec import decode, encode
from grampus_uq.recording.replay import replay_all, replay_file
from grampus_uq.recording.runs import find_run, runs, summarise
from grampus_uq.records.events import DecisionEvent

FOLDER = Path(__file__).with_name("golden_decisions")
NAMES = ("tiers", "critical", "detector")
RECORDINGS = [str(FOLDER / f"{name}.jsonl") for name in NAMES]
ANSWERED = {"m2t0", "m3t0"}
"""Irreversible calls after the alarm was answered: they went ahead then, and ask for themselves now."""


def profile_of(name: str) -> Profile:
    if name == "detector":
        return artifacts.load(FOLDER / "profile.json").profile
    return Profile(policy=UncertaintyPolicy(irreversible_tool_names=["pay", "send"]))


@pytest.mark.parametrize("name", NAMES)
def test_every_step_of_a_run_with_decisions_is_concluded_today_as_it_was_recorded_or_more_carefully(name: str) -> None:
    steps = list(replay_file(FOLDER / f"{name}.jsonl", profile_of(name)))
    assert len(steps) == {"tiers": 14, "critical": 4, "detector": 10}[name]
    otherwise = {step.assessment.step_id for step in steps if not step.same}
    assert otherwise == {"detector": ANSWERED, "tiers": {"m6t0"}, "critical": set()}[name]
    for step in steps:
        now, then = step.assessment, step.event.assessment
        assert (now.fused_confidence, now.propagated_confidence) == (then.fused_confidence, then.propagated_confidence)
        assert (now.level, now.log_e_value, now.index) == (then.level, then.log_e_value, then.index)
        if step.event.assessment.step_id == "m6t0":  # the turn that proposes it was not read: no grant lifts that
            assert (now.action, then.action) == (UncertaintyAction.PAUSE_FOR_HUMAN,) * 2
            assert (now.rule, then.rule) == ("missing_evidence", "irreversible_override")
        elif not step.same:
            assert then.action is UncertaintyAction.PROCEED_WITH_LOG
            assert (now.action, now.rule) == (UncertaintyAction.PAUSE_FOR_HUMAN, "detector")


def test_the_decisions_are_read_as_they_were_written() -> None:
    found = {run.session_id: [e.decision for e in run.events if isinstance(e, DecisionEvent)] for run in runs([FOLDER])}
    assert found == {
        "critical": ["reject"],
        "detector": ["approve", "rearm"],
        "tiers": ["approve", "approve", "edit", "respond"],
    }
    for path in RECORDINGS:
        for line in Path(path).read_bytes().splitlines():
            event = decode(line)
            assert decode(encode(event)) == event


def test_the_old_profile_is_the_same_profile_and_its_alarm_takes_a_stream_that_is_missing_for_the_worst() -> None:
    artifact = artifacts.load(FOLDER / "profile.json")
    assert artifact.fingerprint == summarise(find_run([FOLDER], "detector")).profile_fingerprint
    assert artifact.profile.always_there == {"p_true"}


def test_counting_and_evaluating_old_runs_with_decisions_leaves_them_out_as_selected() -> None:
    counts = replay_all([RECORDINGS[2]], profile_of("detector"))
    assert (counts.runs, counts.steps, counts.same, counts.skipped) == (1, 10, 8, ())
    assert (counts.stopped_before, counts.stopped_now) == (4, 6)
    counts = replay_all(RECORDINGS[:2], profile_of("tiers"))
    assert (counts.runs, counts.steps, counts.same, counts.skipped) == (2, 18, 17, ())
    assert {eligibility(run).reason for run in runs([FOLDER])} == {"human_decided"}
    for profile in (None, profile_of("tiers"), profile_of("detector")):
        evaluated = read_recordings(RECORDINGS, profile=profile)
        assert evaluated.ids == ()
        (row,) = evaluated.audit
        assert (row.runs, row.successes, row.failures, row.use) == (3, 1, 1, "left out")
