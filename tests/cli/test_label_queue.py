"""Labels one key each, those first that are worth most; two people and how far they agree."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from grampus_uq.cli.runs_command import command
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.attribution import trajectory_from_events
from grampus_uq.recording import RecordingProcessor, find_run
from grampus_uq.recording.label_queue import given_labels, label_agreement, label_by_key, label_queue
from grampus_uq.records.events import OutcomeEvent, StepEvent
from grampus_uq.records.values import Outcome
from tests.recording.events import started, step_event
from tests.recording.test_runs import record

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil"


def cli(*arguments: object, keys: str = "") -> Result:
    return CliRunner().invoke(command, [str(one) for one in arguments], input=keys, env={"COLUMNS": "200"})


def unlabelled(folder: Path, *names: str) -> None:
    for name in names:
        record(folder, name, success=None)


def test_each_key_is_a_label_with_who_and_when(tmp_path: Path) -> None:
    unlabelled(tmp_path, "r1", "r2", "r3", "r4", "r5")
    done = cli("label-next", tmp_path, "--by", "ann", keys="sfestep-9\nstep-0\nun")
    assert done.exit_code == 0, done.output
    assert "4 labelled by ann." in done.output
    assert "the run has no step 'step-9'" in done.output
    outcomes = [find_run(tmp_path, name).outcome for name in ("r1", "r2", "r3", "r4", "r5")]
    assert [one.success for one in outcomes if one] == [True, False, False, None, None]
    assert [one.labelled_by for one in outcomes if one] == ["ann", "ann", "ann", "ann", None]
    assert [one.note for one in outcomes if one] == [None, None, "error at step-0", None, None]
    assert all(one.time_s > 1e9 for one in outcomes[:4] if one)
    assert [one.session_id for one in label_queue(tmp_path, by="ann")] == ["r5"]
    assert [one.session_id for one in label_queue(tmp_path, by="bob")] == ["r4", "r5"]
    assert cli("label-next", tmp_path, "--by", "ann", keys="q").output.endswith("0 labelled by ann.\n")
    assert "No runs left" in cli("label-next", tmp_path, "--by", "ann", "--second").output


def test_a_label_names_a_step_of_its_run_as_attribution_tells_steps_apart(tmp_path: Path) -> None:
    unlabelled(tmp_path, "r1")
    for name in [step.step_id for step in trajectory_from_events(find_run(tmp_path, "r1").events).steps]:
        label_by_key(tmp_path, "r1", "e", by="ann", step=name)
    for name in ("step-9", "step-0#", "step-0 ", "observation-1", "step-0/observation-x"):
        with pytest.raises(DataError, match="has no step"):
            label_by_key(tmp_path, "r1", "e", by="ann", step=name)


def test_the_likeliest_right_come_first_and_what_is_not_finished_not_at_all(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path, content="full") as recorder:
        for name, believed in (("low", 0.2), ("high", 0.9), ("middle", 0.5)):
            recorder.on_event(started(name))
            recorder.on_event(_at(name, believed))
            recorder.on_event(OutcomeEvent(session_id=name, agent_id="a", outcome=Outcome(success=None)))
        recorder.on_event(started("running"))
        recorder.on_event(_at("running", 0.99))
    assert [one.session_id for one in label_queue(tmp_path, by="ann")] == ["high", "middle", "low"]
    listed = json.loads(cli("label-next", tmp_path, "--by", "ann", "--json").output)
    assert [one["session_id"] for one in listed] == ["high", "middle", "low"]


def _at(name: str, believed: float) -> StepEvent:
    event = step_event(0, name)
    assert isinstance(event, StepEvent)
    assessment = event.assessment.model_copy(update={"propagated_confidence": believed})
    return dataclasses.replace(event, assessment=assessment)


def test_a_second_person_sees_no_first_label_and_unsure_takes_none_back(tmp_path: Path) -> None:
    names = [f"r{n}" for n in range(6)]
    unlabelled(tmp_path, *names)
    for name in names:
        label_by_key(tmp_path, name, "s", by="ann")
    again = cli("label-next", tmp_path, "--by", "bob", "--second", keys="ssffun")
    assert "ann" not in again.output
    assert "success, " not in again.output
    run = find_run(tmp_path, "r4")
    assert given_labels(run) == {"ann": True}
    found = label_agreement(tmp_path)
    assert (found.runs, found.people, found.differ) == (4, ("ann", "bob"), ("r2", "r3"))
    said = cli("agreement", tmp_path).output
    assert f"agreement  {found.alpha:.2f} (Krippendorff's alpha" in said
    assert "differ     r2\n" in said
    assert json.loads(cli("agreement", tmp_path, "--json").output)["runs"] == 4


@pytest.mark.parametrize(("key", "step"), [("e", None), ("s", "1"), ("x", None), ("", None), ("E", "1")])
def test_only_a_key_that_is_one_labels(tmp_path: Path, key: str, step: str | None) -> None:
    unlabelled(tmp_path, "r1")
    with pytest.raises(ConfigurationError):
        label_by_key(tmp_path, "r1", key, by="ann", step=step)
    assert find_run(tmp_path, "r1").outcome == Outcome(success=None, time_s=find_run(tmp_path, "r1").outcome.time_s)  # type: ignore[union-attr]


def test_what_a_run_says_does_not_command_the_terminal(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path, content="full") as recorder:
        recorder.on_event(started(HOSTILE))
        recorder.on_event(step_event(0, HOSTILE, text=HOSTILE))
        recorder.on_event(OutcomeEvent(session_id=HOSTILE, agent_id=HOSTILE, outcome=Outcome(success=None)))
    shown = cli("label-next", tmp_path, "--by", HOSTILE, keys="s").output
    assert "1 labelled by" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown + cli("agreement", tmp_path).output)


def test_nobody_agrees_with_nobody(tmp_path: Path) -> None:
    unlabelled(tmp_path, "r1")
    done = cli("agreement", tmp_path)
    assert (done.exit_code, "no run that two people labelled" in str(done.exception)) == (1, True)
