"""A profile that is fitted on an agent's recordings guards the tools that the agent's monitor guarded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from grampus_uq import Outcome, Reading, Step, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.cli import _group
from grampus_uq.core.policy import UncertaintyPolicy as Policy
from grampus_uq.learn.evaluate import evaluate, read_recordings
from grampus_uq.learn.evaluate.evaluation_report import evaluation_html, signal_rows
from grampus_uq.learn.guarded import guarding_as_recorded
from grampus_uq.recording import RecordingProcessor
from grampus_uq.recording.artifacts import load
from grampus_uq.testing import top_logprobs

pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")

GUARDING = UncertaintyPolicy(irreversible_tool_names=["refund"], always_ask_tool_names=["wire"])


async def _record(folder: Path, policy: UncertaintyPolicy, n: int = 24, *, reporting: bool = True) -> Path:
    with RecordingProcessor(folder) as recorder:
        monitor = UncertaintyMonitor(policy=policy, processors=[recorder], advisory=True)
        for index in range(n):
            session = monitor.session(f"{folder.name}-{index}", "clerk")
            call = ToolCall(id="1", name="refund", arguments={"order": "A1"})
            tokens = [top_logprobs({"x": 0.3 + 0.6 * (index % 7) / 7})]
            await session.observe_llm_response("I refund.", "t", tool_calls=[call], logprobs=tokens)
            if reporting:
                await session.observe_tool_call(call, "c")
            session.finish(Outcome(success=index % 3 > 0, labelled_by="ann"))
    return folder


@pytest.mark.anyio
@pytest.mark.parametrize("options", [[], ["--stream", "fused", "--false-alarms", "0.3"], ["--budget", "0.3"]])
async def test_a_profile_guards_what_its_recordings_guarded_without_being_told(
    tmp_path: Path, options: list[str]
) -> None:
    folder, profile = await _record(tmp_path / "runs", GUARDING), tmp_path / "profile.json"
    result = CliRunner().invoke(_group, ["fit", str(folder), "-o", str(profile), "--force", *options])
    assert "guarded    refund" in result.output
    assert "always ask wire" in result.output
    policy = load(profile).profile.policy
    assert (policy.irreversible_tool_names, policy.always_ask_tool_names) == (["refund"], ["wire"])
    for name in ("refund", "wire"):
        verdict = UncertaintyMonitor(profile=load(profile)).session("new", "clerk").would_allow(ToolCall(name=name))
        assert not verdict.allowed, (name, verdict)


@pytest.mark.anyio
async def test_a_fit_on_runs_that_guarded_nothing_says_so(tmp_path: Path) -> None:
    folder = await _record(tmp_path / "runs", UncertaintyPolicy())
    result = CliRunner().invoke(_group, ["fit", str(folder), "-o", str(tmp_path / "profile.json")])
    assert "guarded    no tool by name (--irreversible NAME)" in result.output


@pytest.mark.anyio
@pytest.mark.parametrize("reporting", [True, False])
async def test_a_fit_says_so_where_a_loop_reported_no_call_of_those_that_its_turns_propose(
    tmp_path: Path, reporting: bool
) -> None:
    folder = await _record(tmp_path / "runs", GUARDING, reporting=reporting)
    result = CliRunner().invoke(_group, ["fit", str(folder), "-o", str(tmp_path / "profile.json")])
    assert ("24 runs propose such a call and report no call" in result.output) is not reporting


@pytest.mark.anyio
async def test_names_add_up_over_recordings_and_none_is_lost(tmp_path: Path) -> None:
    await _record(tmp_path / "runs" / "a", GUARDING, 1)
    await _record(tmp_path / "runs" / "b", Policy(irreversible_tool_names=["delete", "refund"]), 1)
    policy = guarding_as_recorded(Policy(irreversible_tool_names=["deploy"]), tmp_path / "runs")
    assert sorted(policy.irreversible_tool_names) == ["delete", "deploy", "refund"]
    assert policy.always_ask_tool_names == ["wire"]


@pytest.mark.anyio
async def test_a_name_that_matches_no_tool_is_not_taken_from_a_recording(tmp_path: Path) -> None:
    folder = await _record(tmp_path / "runs", GUARDING, 1)
    (path,) = folder.glob("*.jsonl")
    path.write_text(path.read_text().replace('"irreversible_tools":["refund"]', '"irreversible_tools":["", "refund"]'))
    assert guarding_as_recorded(Policy(), folder).irreversible_tool_names == ["refund"]


@pytest.mark.anyio
async def test_a_damaged_file_beside_them_takes_no_guard_away(tmp_path: Path) -> None:
    folder = await _record(tmp_path / "runs", GUARDING, 1)
    (folder / "a.parquet").write_bytes(b"no parquet")
    (folder / "b.jsonl").symlink_to("nowhere")
    assert guarding_as_recorded(Policy(), folder).irreversible_tool_names == ["refund"]


@pytest.mark.anyio
async def test_runs_are_judged_at_the_calls_that_their_monitor_guarded_by_name(tmp_path: Path) -> None:
    guarded = read_recordings(await _record(tmp_path / "guarded", GUARDING, 4))
    unguarded = read_recordings(await _record(tmp_path / "unguarded", UncertaintyPolicy(), 4))
    assert guarded.asks is not None
    assert guarded.asks.tolist() == [0, 0, 0, 0]
    assert unguarded.asks is None or (unguarded.asks < 0).all()


@pytest.mark.anyio
async def test_a_fit_on_runs_that_do_not_say_what_they_were_made_with_warns_that_it_acts_nowhere(
    tmp_path: Path,
) -> None:
    folder, profile = await _record(tmp_path / "runs", GUARDING), tmp_path / "profile.json"
    result = CliRunner().invoke(_group, ["fit", str(folder), "-o", str(profile), "--force"])
    account = " ".join(result.output.split())  # at any width of a terminal
    assert "NOWHERE as it is: the recordings share no known model, prompt_hash, tools_hash" in account
    verdict = UncertaintyMonitor(profile=load(profile)).session("new").would_allow(ToolCall(name="refund"))
    assert "does not apply here" in verdict.reason


@pytest.mark.anyio
async def test_a_signal_that_is_read_of_calls_alone_is_judged_at_the_call(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path) as recorder:
        monitor = UncertaintyMonitor(policy=GUARDING, processors=[recorder], advisory=True)
        for index in range(6):
            session = monitor.session(f"r{index}", "clerk")
            call = Step(step_id="t", kind="llm_call", time_s=1.0, tool_calls=(ToolCall(id="1", name="refund"),))
            sure = 0.9 if index % 2 else 0.2
            session.commit(call, [Reading(source="call_only", value=sure), Reading(source="always", value=0.5)])
            session.commit(Step(step_id="c", kind="tool_call", time_s=2.0, tool_calls=call.tool_calls), [])
            session.commit(
                Step(step_id="end", kind="llm_call", time_s=3.0, text="Done."), [Reading(source="always", value=0.5)]
            )
            session.finish(Outcome(success=bool(index % 2), labelled_by="ann"))
    found = evaluate(read_recordings(tmp_path), rng=np.random.default_rng(0), draws=20)
    first = found.verdict.rows[0]
    assert (first.name, first.runs, first.auroc, first.at_the_call) == ("call_only", 0, None, 1.0)
    assert signal_rows(found)[0][:5] == ["call_only", 0, 6, None, 1.0]
    assert "call_only" in evaluation_html(found, title="t")
