"""The report on the questions: counted from what happened; with an advisory monitor, what its policy wanted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import UncertaintyAction
from grampus_uq.cli.demo.demo_run import Answered, DemoPlan, Fate, plan_demo
from grampus_uq.cli.demo.questions import all_questions
from grampus_uq.cli.demo_command import demo_report, report_lines

QUESTION = all_questions(0)[0]
FATES: tuple[Fate, ...] = ("published", "paused", "aborted", "unanswered")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> DemoPlan:
    return plan_demo(model="tiny", n=9, runs_folder=str(tmp_path_factory.mktemp("runs with a blank")))


def answered(fate: Fate, right: bool, wanted: UncertaintyAction | None = None) -> Answered:
    known = None if fate == "unanswered" else right
    return Answered(question=QUESTION, session_id="demo-1", fate=fate, right=known, wanted=wanted)


@given(cases=st.lists(st.tuples(st.sampled_from(FATES), st.booleans()), max_size=30))
def test_the_groups_add_up_and_the_report_is_plain_json(plan: DemoPlan, cases: list[tuple[Fate, bool]]) -> None:
    report = demo_report([answered(*case) for case in cases], plan, interrupted=False)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert sum(group["n"] for group in report["groups"]) == len(cases)
    assert sum(group["right"] for group in report["groups"]) == report["right"] <= report["answered"]
    assert all(group["right"] <= group["n"] for group in report["groups"])


def test_with_an_advisory_monitor_the_groups_are_what_the_policy_wanted(tmp_path: Path) -> None:
    plan = plan_demo(model="tiny", n=3, runs_folder=str(tmp_path), advisory=True)
    actions = (UncertaintyAction.PROCEED, UncertaintyAction.PAUSE_FOR_HUMAN, UncertaintyAction.ABORT)
    report = demo_report([answered("published", True, action) for action in actions], plan, interrupted=False)
    assert [group["n"] for group in report["groups"]] == [1, 1, 1, 0]
    lines = list(report_lines(report))
    assert "would pause" in "\n".join(lines)
    assert "paused for a human" not in "\n".join(lines)
    assert f"Signals:   grampus-uq evaluate {plan.folder}" in lines


def test_the_lines_name_what_is_not_promised_and_the_next_commands(plan: DemoPlan) -> None:
    report = demo_report([answered("published", False)], plan, interrupted=True)
    lines = list(report_lines(report))
    assert lines[0].endswith("- interrupted")
    assert any("no guarantee" in line for line in lines)
    assert not any(line.startswith("Signals") for line in lines)  # a run that was held is not scored
    assert lines[-1] == f"Next:      grampus-uq runs list '{plan.folder}'"
