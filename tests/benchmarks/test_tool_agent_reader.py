"""The reader on recorded runs: it is shown what a monitor would be, and nothing of what the call was worth."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path

import pytest

from grampus_uq.records.vocabulary import Role
from grampus_uq.signals.call_reader import Reader
from grampus_uq.testing.scripted_model import ScriptedModel, answer
from tests.benchmarks import tool_agent_desk
from tests.benchmarks.test_tool_agent_run import replies
from tests.benchmarks.tool_agent import read_set
from tests.benchmarks.tool_agent_reader import cases_of, read, rows_of, with_scores
from tests.benchmarks.tool_agent_run import run_tasks
from tests.signals.test_reader import writes


@pytest.mark.anyio
async def test_a_reader_that_finds_the_wrong_orders_unlikely_ranks_the_calls(tmp_path: Path) -> None:
    tasks = list(tool_agent_desk.tasks(4, 7))
    script = [reply for number, task in enumerate(tasks) for reply in replies(task, number % 2 == 0)]
    await run_tasks(ScriptedModel(script), "desk", tool_agent_desk.tasks(4, 7), tmp_path, p_true=True)
    asked = {one.task: one for one in read_set(tmp_path)[0]}
    cases = cases_of(tmp_path, asked, tool_agent_desk.tasks(4, 7))
    assert len(cases) == 4
    lines = []
    for case in cases:
        assert case.before[1].content == next(task.mail for task in tasks if task.id == case.asked.task)
        assert case.before[-1].role is Role.TOOL
        assert case.before[: len(case.earlier)] == case.earlier
        assert case.step.logprobs is None
        truth = case.asked.truth
        write = writes(dict.fromkeys(re.findall(r"\w+|\W", f"{truth.name} {[*truth.arguments.values()]}"), 0.9))

        def reply(messages: object, options: dict[str, object], write: object = write) -> object:
            return write(messages, options) if "grammar" in options else answer("")  # type: ignore[operator]

        lines.append(await read(Reader(client=ScriptedModel(reply)), case))
    scored = [with_scores(asked[line["id"]], line) for line in lines]
    rows = list(rows_of("set", scored, lines, Namespace(seed=0, draws=100)))
    own = next(row for row in rows if row["set"] == "set" and row["score"] == Reader.source)
    assert (own["n"], own["auroc"]) == (4, 1.0)
    better = next(row for row in rows if row["score"] == Reader.source and row.get("than") == "asked_sure")
    assert better["better"] == 0.5
