"""A fitted profile reads a run as the monitors of its recordings did: its promises are about those numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    FunctionTools,
    Message,
    ModelResponse,
    Sensing,
    TokenLogprob,
    ToolCall,
    UncertaintyMonitor,
    UncertaintyPolicy,
    tool,
)
from grampus_uq.cli import _group
from grampus_uq.recording import Label, RecordingProcessor, label_all, load, runs
from grampus_uq.testing import ScriptedModel, answer, top_logprobs
from tests.sampling import crossed

pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")


@tool(effect="read")
def look(at: int) -> str:
    """Look something up."""
    return "found"


@tool(effect="irreversible")
def pay(amount: int) -> str:
    """Pay."""
    return "paid"


def clerk(case: int) -> ScriptedModel:
    """It looks, pays, and says so; doubts what it is asked about; every third turn has no log-probabilities."""
    sure = 0.99 if case % 3 else 0.9
    turns = iter(
        [
            ("I look first.", [ToolCall(id="1", name="look", arguments={"at": case})]),
            ("I pay.", [ToolCall(id="2", name="pay", arguments={"amount": case})]),
            ("The order is settled.", []),
        ]
    )

    def reply(messages: Sequence[Message], options: dict[str, Any]) -> ModelResponse:
        if "Reply with" in messages[-1].content:
            return answer("True", logprobs=[top_logprobs({"True": 0.2 + 0.1 * (case % 3), "False": 0.5})])
        if options.get("temperature") == 0.8:
            return answer(f"The order {case % 2} is settled.")
        text, calls = next(turns)
        text += f' {{"confidence": 0.{5 + case % 5}}}'
        written = text + "".join(json.dumps({"name": c.name, "arguments": c.arguments}) for c in calls)
        pieces = [TokenLogprob(token=written[at : at + 4], logprob=sure - 1.0) for at in range(0, len(written), 4)]
        return answer(text, tool_calls=calls, logprobs=None if case % 7 == len(calls) else pieces)

    return ScriptedModel(reply)


async def work(folder: Path, cases: range, monitor: dict[str, Any]) -> None:
    """Record these cases under a monitor that only advises."""
    with RecordingProcessor(folder) as recorder:
        watched = UncertaintyMonitor(processors=[recorder], advisory=True, **monitor)
        for case in cases:
            runner = AgentRunner(clerk(case), FunctionTools(look, pay), uncertainty_monitor=watched)
            await runner.run(AgentDefinition(name="clerk", model="m"), f"Case {case}.", session_id=f"case-{case}")


def numbers(folder: Path, heard: frozenset[str]) -> dict[tuple[str, str], Any]:
    """What every step of the recorded runs was read as, as far as it is heard: all that makes up `fused`, and that."""
    everything = "fused" in heard
    return {
        (run.session_id, event.step.step_id): (
            sorted((str(r.source), r.value, r.reason) for r in event.readings if everything or r.source in heard),
            event.assessment.fused_confidence if everything else None,
        )
        for run in runs(folder)
        for event in run.steps
    }


NO_P_TRUE = UncertaintyPolicy(enable_p_true=False, irreversible_tool_names=["pay"])
SAMPLED = UncertaintyPolicy(enable_semantic_sampling=True, irreversible_tool_names=["pay"])
NAMED = UncertaintyPolicy(irreversible_tool_names=["pay"])


CASES = range(16)
MONITORS: dict[str, dict[str, Any]] = {
    "default": {},
    "no P(True)": {"policy": NO_P_TRUE},
    "sampled": {"policy": SAMPLED},
    "calls spared": {"policy": NAMED, "sensing": Sensing(ask_of_calls=False)},
    "answers asked": {"policy": NAMED, "sensing": Sensing(ask_of_answers=True)},
    "no call floor": {"policy": UncertaintyPolicy(call_floor=None, irreversible_tool_names=["pay"])},
}


@pytest.fixture(scope="module")
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Labelled recordings, and the monitor that made them."""
    folder, monitor = tmp_path_factory.mktemp("known"), MONITORS[request.param]
    anyio.run(work, folder, CASES, monitor)
    label_all(folder, [Label(session_id=f"case-{n}", success=n % 5 != 0) for n in CASES], by="test")
    return folder, monitor


@crossed(
    "recorded,options",
    [*MONITORS],
    ["", "--stream fused --detector-at steps", "--budget .3 --detector-at steps"],
    indirect=["recorded"],
)
def test_a_run_that_comes_again_is_read_as_it_was_recorded(
    recorded: tuple[Path, dict[str, Any]], options: str, tmp_path: Path
) -> None:
    (folder, monitor), profile = recorded, tmp_path / "profile.json"
    asked = ["fit", str(folder), "--assurance", "0", "--false-alarms", ".3", *options.split(), "-o", str(profile)]
    fitted = CliRunner().invoke(_group, asked)
    assert fitted.exit_code == 0, fitted.output
    artifact = load(profile)
    anyio.run(work, tmp_path / "again", CASES, {**monitor, "profile": artifact, "policy": None})
    heard = artifact.profile.fitted_streams
    assert heard
    assert numbers(tmp_path / "again", heard) == numbers(folder, heard)
