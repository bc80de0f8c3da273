"""The tool agent's benchmark: known sets give known figures, and the recorded runs those that the project states."""

from __future__ import annotations

import json
import math
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Effect, Outcome, TokenLogprob, ToolCall
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.recording import RecordingProcessor
from tests.benchmarks import tool_agent


def written(name: str, arguments: dict[str, Any], odds: dict[str, float]) -> list[TokenLogprob]:
    """A call as JSON, one token a word; the tokens of a value have the probability given for its argument."""
    tokens = [TokenLogprob(token='{"name": "', logprob=0.0), TokenLogprob(token=name, logprob=0.0)]
    tokens.append(TokenLogprob(token='", "arguments": {', logprob=0.0))
    for place, (key, value) in enumerate(arguments.items()):
        tokens.append(TokenLogprob(token=f'{", " if place else ""}"{key}": ', logprob=0.0))
        tokens.append(TokenLogprob(token=json.dumps(value), logprob=math.log(odds.get(key, 1.0))))
    return [*tokens, TokenLogprob(token="}}", logprob=0.0)]


async def record(folder: Path, runs: list[tuple[bool, float]], look: ToolCall | None = None) -> Path:
    """A set of runs that refund 5 or, wrongly, 50, each with the probability of its amount; `look`: of another."""
    outcomes = []
    with RecordingProcessor(folder / "recordings", content="full") as recorder:
        monitor = UncertaintyMonitor(processors=[recorder], advisory=True)
        for number, (wrong, odds) in enumerate(runs):
            session = monitor.session(f"t{number}")
            call = ToolCall(id=f"c{number}", name="refund", arguments={"order": "A1", "amount": 50 if wrong else 5})
            tokens = written(call.name, call.arguments, {"amount": odds})
            await session.observe_llm_response("", "llm_0", tool_calls=[call], logprobs=tokens)
            await session.observe_tool_call(call, "llm_0", effect=Effect.IRREVERSIBLE)
            if look is not None:
                session.record_look("big", step_id="llm_0", call=look)
            session.finish(Outcome(success=None))
            truth = ["refund", {"order": "A1", "amount": 5}]
            outcomes.append({"id": f"t{number}", "kind": f"k{number % 2}", "truth": truth, "ok": not wrong})
    (folder / "outcomes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in outcomes))
    return folder


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, str], dict[str, Any]]:
    tool_agent.main([*arguments, "--json", "--draws", "50"])
    return {(row["set"], row["score"]): row for row in json.loads(capsys.readouterr().out)["rows"]}


@pytest.mark.anyio
async def test_a_folder_and_its_archive_give_the_figures_that_were_put_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong amounts at .3, right ones at .9, and one of each kind the other way round."""
    runs = [(True, 0.3)] * 9 + [(True, 0.9)] + [(False, 0.9)] * 19 + [(False, 0.3)]
    await record(tmp_path / "set", runs)
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "set", "set")
    folder, archived = (shown([str(tmp_path / name)], capsys) for name in ("set", "set.tar.gz"))
    assert folder == archived
    assert folder["set", "call_probability"]["auroc"] == pytest.approx(0.9 * 0.95 + (0.9 * 0.05 + 0.1 * 0.95) / 2)
    assert folder["set", "call_probability"]["stopped_at_5"] == pytest.approx(0.9)
    assert folder["set", "pause_always"]["auroc"] == 0.5
    assert folder["set", "pause_always"]["stopped_at_10"] == pytest.approx(0.1)
    assert folder["set by argument: amount", "argument"]["auroc"] == folder["set", "call_probability"]["auroc"]
    assert "auroc" not in folder["set by argument: order", "argument"], "no order was wrong"
    assert folder["set by argument: wrong calls", "argument"]["first"] == 1.0
    assert folder["set by argument: wrong calls", "argument"]["chance"] == pytest.approx(1 / 3)


@pytest.mark.anyio
async def test_the_part_that_a_look_would_have_written_otherwise_is_ranked_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent is surest of the amounts that are wrong; the look writes the right one."""
    runs = [(True, 0.9)] * 10 + [(False, 0.3)] * 10
    right = ToolCall(id="l", name="refund", arguments={"order": "A1", "amount": 5})
    rows = shown([str(await record(tmp_path / "right", runs, right))], capsys)
    assert rows["right by argument: amount", "argument"]["auroc"] == 0.0
    assert rows["right by argument: amount", "argument, look"]["auroc"] == 1.0
    assert rows["right by argument: wrong calls", "argument, look"]["first"] == 1.0
    for name, arguments in (("cancel", {"order": "A1"}), ("refund", {"order": "B2", "amount": 50})):
        misled = ToolCall(id="l", name=name, arguments=arguments)
        rows = shown([str(await record(tmp_path / name, runs, misled))], capsys)
        assert rows[f"{name} by argument: wrong calls", "argument"]["first"] == 1.0
        assert rows[f"{name} by argument: wrong calls", "argument, look"]["first"] == 0.0, "a look may be wrong, too"


@pytest.mark.anyio
async def test_what_the_recorder_asked_for_itself_is_no_cost_of_the_monitor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Agreement that was drawn by whoever recorded the set; a monitor pays for samples under their own name."""
    folder = await record(tmp_path / "set", [(True, 0.3)] * 5 + [(False, 0.9)] * 5)
    bought = {"value": 1.0, "reason": None, "input_tokens": 100, "output_tokens": 10}
    for file in (folder / "recordings").iterdir():
        events = [json.loads(line) for line in file.read_text().splitlines()]
        for event in events:
            if event["type"] == "step" and event["step"]["kind"] == "llm_call":
                event["step"] |= {"input_tokens": 50, "output_tokens": 5}
                kept = [one for one in event["readings"] if one["source"] not in ("call_agreement", "semantic_entropy")]
                event["readings"] = [{**kept[0], "source": "call_agreement", **bought}, *kept]
        file.write_text("".join(json.dumps(event) + "\n" for event in events))
    rows = shown([str(folder)], capsys)
    assert rows["set", "call_agreement"]["extra_tokens"] == 110
    for side in ("default", "unasked", "guide"):
        assert (rows["set", side]["extra_tokens"], rows["set", side]["times_agent"]) == (0, 1)


@pytest.mark.anyio
async def test_what_is_no_set_is_one_line_of_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("no archive")
    (tmp_path / "empty").mkdir()
    for name in ("text", "empty"):
        with pytest.raises(SystemExit):
            tool_agent.main([str(tmp_path / name)])
        assert str(tmp_path / name) in capsys.readouterr().err


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2), st.floats(0.01, 0.99))
def test_holding_more_of_the_right_calls_never_stops_fewer_wrong_ones(
    cases: list[tuple[float, bool]], held: float
) -> None:
    confidence, wrong = np.array([one for one, _ in cases]), np.array([bad for _, bad in cases])
    if wrong.all() or not wrong.any():
        return
    less, more = (tool_agent.stopped_at(confidence, wrong, share) for share in (held / 2, held))
    assert 0.0 <= less <= more <= 1.0
    constant = np.zeros(len(cases))
    assert tool_agent.stopped_at(constant, wrong, held) == pytest.approx(held)


def test_the_figures_on_the_recorded_tool_agent_are_reached(capsys: pytest.CaptureFixture[str]) -> None:
    """The call's own probability, free, beats asking the model by far; the wrong part is the least probable one."""
    data = os.environ.get("GRAMPUS_UQ_DATA")
    if not data:
        pytest.skip("GRAMPUS_UQ_DATA is not set: the recorded runs are not part of the project")
    rows = shown([str(Path(data) / "tool_agent" / "qwen2.5-coder-1.5b.tar.gz")], capsys)
    name = "qwen2.5-coder-1.5b"
    own = rows[name, "call_probability"]
    assert own["n"] == 42
    assert own["auroc"] >= 0.86
    assert own["stopped_at_10"] >= 0.65
    assert own["extra_tokens"] == 0
    assert max(rows[name, asked]["auroc"] for asked in ("p_true", "redraws", "asked_true", "asked_sure")) < 0.7
    assert rows[f"{name} by argument: all arguments", "argument"]["auroc"] >= 0.80
    assert rows[f"{name} by argument: wrong calls", "argument"]["first"] >= 0.80
    default, unasked, guide = (rows[name, side] for side in ("default", "unasked", "guide"))
    assert default["auroc"] >= max(guide["auroc"], own["auroc"] - 0.02)
    assert default["held_wrong"] >= 0.9 > guide["held_wrong"]
    assert default["held_right"] >= guide["held_right"], "the default only adds to what the guide's policy holds"
    assert unasked["held_wrong"] >= 0.9
    assert unasked["held_right"] <= default["held_right"]
    assert unasked["extra_tokens"] < default["extra_tokens"] == guide["extra_tokens"] < 350
    assert default["times_agent"] < 1.1
