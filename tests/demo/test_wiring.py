"""What a run of the demo leaves behind: a complete folder when it began, and none when it did not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grampus_uq import ModelError
from grampus_uq.cli.demo.demo_run import answer_questions, completing, plan_demo
from grampus_uq.recording import runs
from grampus_uq.testing import ScriptedModel
from tests.demo.examinees import SURE, examinee

pytestmark = pytest.mark.anyio


async def test_a_run_that_never_began_leaves_no_folder_of_its_own(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("")
    plan = plan_demo(model="local", n=2, runs_folder=str(tmp_path))
    assert plan.folder.exists()
    with pytest.raises(ModelError, match="could not be fetched"):
        async with completing(plan):
            raise ModelError("could not be fetched")
    assert os.listdir(tmp_path) == [other.name]


async def test_two_runs_with_the_same_seed_ask_the_same_and_never_share_a_folder(tmp_path: Path) -> None:
    plans = [plan_demo(model="tiny", n=5, seed=3, runs_folder=str(tmp_path)) for _ in range(2)]
    assert plans[0].questions == plans[1].questions
    assert plans[0].folder != plans[1].folder
    for plan in plans:
        client = ScriptedModel(examinee(plan.questions, dict.fromkeys((one.id for one in plan.questions), SURE)))
        async with completing(plan):
            await answer_questions(plan, client, lambda answered: None)
        assert len(list(plan.folder.glob("*.jsonl"))) == 5
        lines = (plan.folder / "published.txt").read_text(encoding="utf-8").splitlines()
        assert sorted(lines) == sorted(f"{one.text}\t{one.key.accepted[0]}" for one in plan.questions)


async def test_with_every_signal_the_slow_path_is_taken_for_the_sure_answers_too(tmp_path: Path) -> None:
    semantic = {}
    for every in (False, True):
        plan = plan_demo(model="tiny", n=4, runs_folder=str(tmp_path), every_signal=every)
        client = ScriptedModel(examinee(plan.questions, dict.fromkeys((one.id for one in plan.questions), SURE)))
        async with completing(plan):
            await answer_questions(plan, client, lambda answered: None)
        readings = [reading for run in runs(plan.folder) for reading in run.steps[0].readings]
        semantic[every] = sum(reading.source == "semantic_entropy" for reading in readings)
    assert semantic == {False: 0, True: 4}
