"""Where nothing was read no confidence is shown: a belief at its start of 1.00 is no certainty."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import AuqPropagator, Effect, Reading, SaupPropagator, Step, ToolCall, UncertaintyMonitor
from grampus_uq import UncertaintyPolicy as Policy
from grampus_uq.cli import main
from grampus_uq.gate.call import doubt_of
from grampus_uq.recording import RecordingProcessor

unit = st.floats(0.0, 1.0)
STATED = ("verbalized", "semantic_entropy", "token_probability")


def step(number: int, kind: str = "llm_call") -> Step:
    return Step(step_id=str(number), kind=kind, time_s=0.0)


@pytest.mark.parametrize("rule", [None, SaupPropagator(), AuqPropagator(aggregate="min")])
@given(low=unit, turns=st.lists(st.none() | unit | st.just(1.0), max_size=6))
def test_a_step_shows_a_confidence_exactly_from_the_first_reading_of_the_session_on(rule, low, turns):
    policy = Policy(low_threshold=max(low, 0.6))
    session = UncertaintyMonitor(policy=policy, propagator=rule).session("s")
    for number, value in enumerate(turns):
        reading = Reading(source="verbalized", value=value, reason=None if value is not None else "not_stated")
        seen = session.commit(step(number), [reading])
        assert (seen.believed is None) is not session.state.has_reading
        call = session.commit(step(number, "tool_call"), [])
        assert (doubt_of(call).confidence is None) is not session.state.has_reading


def test_a_run_without_one_reading_is_listed_with_empty_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RecordingProcessor(tmp_path / "runs") as recorder:
        session = UncertaintyMonitor(processors=[recorder]).session("silent")
        session.commit(step(0), [Reading(source="verbalized", value=None, reason="not_stated")])
        anyio.run(lambda: session.observe_tool_call("pay", "t", effect=Effect.IRREVERSIBLE))
    with pytest.raises(SystemExit):
        main(["runs", "list", str(tmp_path / "runs")])
    heads, row = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert [row[heads.index(name)] for name in ("session_id", "least", "last")] == ["silent", "", ""]
    with pytest.raises(SystemExit):
        main(["runs", "show", "silent", str(tmp_path / "runs")])
    assert not re.search(r"\b1\.0", capsys.readouterr().out)


@given(st.lists(st.dictionaries(st.sampled_from(STATED), st.floats(0.0, 0.99), max_size=3), max_size=5))
def test_every_pause_says_the_value_what_it_needs_and_the_lowest_reading_or_that_nothing_was_read(turns):
    session = UncertaintyMonitor().session("s")
    for number, found in enumerate(turns):
        session.commit(step(number), [Reading(source=name, value=value) for name, value in found.items()])
        verdict = session.would_allow(ToolCall(name="pay"), effect=Effect.IRREVERSIBLE)
        if not verdict.allowed:
            if not session.state.has_reading:
                assert "no reading yet" in verdict.reason
                assert "1.0" not in verdict.reason
                continue
            shown = re.search(r"confidence (\d\.\d+)", verdict.reason)
            assert shown is not None
            alone, turn = session.state.unaided, session.state.turns[-1]
            beliefs = [session.state.cumulative, turn.belief, turn.unaided, alone and alone.cumulative]
            believed = min(belief for belief in beliefs if belief is not None)
            assert float(shown[1]) == pytest.approx(believed, abs=0.0051)
            alone = "nothing but the model's own word" in verdict.reason
            assert alone is (found.keys() == {"verbalized"} and verdict.rule != "missing_evidence")
            if verdict.rule != "missing_evidence" and not alone:
                assert float(shown[1]) < 0.8  # with as many digits as tell it from what it needs
            turn = session.state.turns[-1]
            if turn.read:
                lowest = {
                    f"; lowest: {_named(name)} {low:.2f}" for name, low in found.items() if low <= min(found.values())
                }
                assert any(said in verdict.reason for said in lowest)
                assert ("no confidence stated" in verdict.reason) is ("verbalized" not in found)
            if verdict.rule in ("tier", "irreversible_override") and not alone:
                assert "needs 0.80" in verdict.reason


def _named(source: str) -> str:
    return {"verbalized": "stated confidence"}.get(source, source.replace("_", " "))
