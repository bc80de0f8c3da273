"""Recorded runs through a threshold that answers earn: nothing goes out unearned, and what is printed adds up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import Outcome, Reading, Step, ToolCall, UncertaintyMonitor
from grampus_uq.cli.permits_command import command
from grampus_uq.gate.permits import Entry, Permit, PermitState, applied, issued
from grampus_uq.learn.permit_simulation import read_labelled_calls, simulate_permit
from grampus_uq.monitor.permit_basis import score_of
from grampus_uq.stats.earned_threshold import CANDIDATES, Target
from tests.guarantees.worlds import CALL, POLICY, Kept, World, record
from tests.sampling import examples

GOOD_ABOVE_HALF = World(skill=(0.3, 1.0), cut=0.5, calls=0.8)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 runs, of which a fifth calls nothing and a tenth has no label."""
    rng = np.random.default_rng(4)
    runs = GOOD_ABOVE_HALF.draw(rng, 500)
    folder = tmp_path_factory.mktemp("recorded")
    record(folder / "runs.jsonl", runs, rng.random(500) < 0.9)
    return folder


def invoke(*arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(command, ["simulate", *map(str, arguments)])
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


def test_the_case_of_a_run_is_its_first_irreversible_call_and_the_others_are_counted(recorded: Path) -> None:
    calls = read_labelled_calls([str(recorded)], "verbalized")
    assert len(calls.scores) + calls.left_out.total() == 500
    assert set(calls.left_out) == {"no_outcome", "no_irreversible_call"}
    assert 0.3 < calls.wrong[calls.scores < 0.5].mean() <= 1.0
    assert not calls.wrong[calls.scores >= 0.5].any()
    unknown = read_labelled_calls([str(recorded)], "no such stream")
    assert np.isnan(unknown.scores).all()


def test_questions_are_saved_where_the_score_tells_and_nothing_goes_out_without_one(recorded: Path) -> None:
    found = json.loads(invoke(recorded, "--stream", "verbalized", "--at-most", 0.05, "--json").stdout)
    assert found["calls"] == found["asked"] + found["out"] == found["scored"]
    assert 58 <= found["first"] < 100
    assert found["out"] > 80
    assert found["wrong_out"] == 0
    assert found["threshold"] in CANDIDATES
    assert f"from {found['asked']} answers, {found['audits']} of them audits" in found["sentence"]
    asked = (recorded, "--stream", "p_success", "--at-most", 0.05)
    nothing = json.loads(invoke(*asked, "--json").stdout)
    assert (nothing["out"], nothing["first"], nothing["threshold"], nothing["scored"]) == (0, None, None, 0)
    assert "takes 58 right answers at the least" in nothing["sentence"]
    assert f"{found['calls']} of {found['calls']} calls have no p_success" in invoke(*asked).stderr


def test_without_options_it_is_the_permit_that_would_be_granted(tmp_path: Path) -> None:
    granted = Permit(tool="send_mail", principal="ann", expires_s=1.0)
    scores, kept = [], Kept()
    monitor = UncertaintyMonitor(policy=POLICY, processors=[kept], advisory=True)
    for number, stated in enumerate(np.random.default_rng(0).random((20, 3))):
        session = monitor.session(f"r{number}", "a")
        for index, value in enumerate(stated):
            step = Step(step_id=f"s{index}", kind="llm_call", time_s=0.0)
            read = {"verbalized": 1.0, "p_true": value} if number % 2 else {"verbalized": value}
            session.commit(step, [Reading(source=source, value=float(one)) for source, one in read.items()])
        scores.append(score_of(session.state, granted.stream, CALL, "t"))
        assert scores[-1] < session.state.cumulative or not number % 2, "a statement lifts what the run believes"
        session.commit(Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(CALL,)), ())
        session.finish(Outcome(success=True))
    (tmp_path / "r.jsonl").write_bytes(kept.text())
    assert read_labelled_calls([str(tmp_path)], granted.stream).scores.tolist() == pytest.approx(scores)
    found = json.loads(invoke(tmp_path, "--json").stdout)
    assert (found["at_most"], found["scored"], found["stream"]) == (granted.epsilon, 20, granted.stream)
    assert found["assurance"] == 1.0 - granted.delta
    same = (
        tmp_path,
        "--stream",
        granted.stream,
        "--at-most",
        granted.epsilon,
        "--audits",
        granted.audit_rate,
        "--json",
    )
    assert json.loads(invoke(*same).stdout)["out"] == found["out"]


def test_with_a_tool_its_calls_alone_count_whatever_their_effect(tmp_path: Path) -> None:
    kept = Kept()
    monitor = UncertaintyMonitor(policy=POLICY, processors=[kept], advisory=True)
    for number, (stated, tool) in enumerate([(0.2, "send_mail"), (0.4, "look_up"), (0.6, "send_mail")] * 2):
        session = monitor.session(f"r{number}", "a")
        for index, name in enumerate(["other", tool]):
            step = Step(step_id=f"s{index}", kind="llm_call", time_s=float(number))
            session.commit(step, [Reading(source="verbalized", value=stated + index / 10)])
            call = ToolCall(id=f"{index}", name=name)
            session.commit(Step(step_id=f"s{index}", kind="tool_call", time_s=0.0, tool_calls=(call,)), ())
        session.finish(Outcome(success=True))
    (tmp_path / "r.jsonl").write_bytes(kept.text())
    for tool, scores in (("send_mail", [0.3, 0.7]), ("look_up", [0.5]), ("other", [0.2, 0.4, 0.6])):
        calls = read_labelled_calls([str(tmp_path)], "verbalized", tool=tool)
        assert calls.scores.tolist() == pytest.approx(scores * 2)
        assert calls.left_out.get("no_call_of_the_tool", 0) == 6 - 2 * len(scores)
        assert json.loads(invoke(tmp_path, "--tool", tool, "--json").stdout)["calls"] == 2 * len(scores)
    assert "no labelled run with a call of 'Send_mail'" in str(
        invoke(tmp_path, "--tool", "Send_mail", status=1).exception
    )


def test_the_table_stands_beside_asking_always_and_asking_as_many_at_random(recorded: Path) -> None:
    lines = [line.split("\t") for line in invoke(recorded, "--stream", "verbalized").stdout.splitlines()]
    always, random, earned = lines[1:4]
    assert [line[0] for line in lines[1:4]] == ["ask always", "as many at random", "earned"]
    assert (always[2], random[2]) == ("0", earned[2])
    assert float(random[3]) > float(earned[3])


def test_runs_without_a_label_are_no_answer(tmp_path: Path) -> None:
    record(tmp_path / "r.jsonl", GOOD_ABOVE_HALF.draw(np.random.default_rng(1), 20), np.zeros(20))
    result = invoke(tmp_path, status=1)
    assert "no labelled run with an irreversible call" in str(result.exception)


CALLS = st.lists(st.tuples(st.one_of(st.floats(0, 1), st.just(float("nan"))), st.booleans()), max_size=80)
TARGET = Target(thresholds=CANDIDATES, epsilon=0.4, delta=0.3)


@settings(deadline=None)
@given(CALLS, st.integers(0, 3))
def test_counts_add_up_a_seed_repeats_itself_and_a_call_without_a_score_is_asked_about(calls: Any, seed: int) -> None:
    scores, wrong = np.array([score for score, _ in calls]), np.array([bad for _, bad in calls], dtype=np.bool_)
    found = simulate_permit(TARGET, scores, wrong, np.random.default_rng(seed))
    assert found == simulate_permit(TARGET, scores, wrong, np.random.default_rng(seed))
    assert found.calls == found.asked + found.out
    assert 0 <= found.wrong_out <= min(found.out, found.wrong)
    assert found.audits <= found.asked
    assert found.out <= int((scores >= min(CANDIDATES)).sum())
    assert found.out == 0 or found.first is not None
    unscored = simulate_permit(TARGET, np.full(len(calls), np.nan), wrong, np.random.default_rng(seed))
    assert (unscored.out, unscored.asked) == (0, len(calls))


@settings(deadline=None, max_examples=examples(40))
@given(CALLS, st.integers(0, 3), st.sampled_from([0.05, 0.4]))
def test_simulated_is_what_a_permit_does_on_the_same_calls_draws_and_answers(
    calls: Any, seed: int, epsilon: float
) -> None:
    permit = Permit(
        tool="pay", epsilon=epsilon, delta=0.3, audit_rate=0.2, of_released=seed == 1, principal="ann", expires_s=1e9
    )
    calls = [*[(0.9, False)] * 20 * seed, *calls]
    scores, wrong = np.array([score for score, _ in calls]), np.array([bad for _, bad in calls], dtype=np.bool_)
    found = simulate_permit(permit.target, scores, wrong, np.random.default_rng(seed))
    rng, state, asked, wrong_out = np.random.default_rng(seed), PermitState.fresh(permit), 0, 0
    for number, (score, bad) in enumerate(calls):
        if np.isnan(score):  # a call without a score takes no ticket
            asked += 1
            continue
        entry = Entry(do="propose", now_s=0.0, score=score, same=str(number), judge="j", draw=rng.random())
        taken = issued(permit, state, entry)
        assert taken is not None
        state = applied(permit, state, entry)
        if taken[1].asked:
            state = applied(permit, state, Entry(do="answer", now_s=0.0, ticket=taken[0], wrong=bad))
        asked, wrong_out = asked + taken[1].asked, wrong_out + (bad and not taken[1].asked)
    assert (found.asked, found.wrong_out) == (asked, wrong_out)
    assert (found.threshold, found.withdrawn) == (state.threshold(permit), state.withdrawn)


@pytest.mark.slow
def test_a_promise_that_no_longer_holds_is_withdrawn_and_everything_asked_about_again() -> None:
    wrong = np.arange(350) >= 200
    target = replace(TARGET, epsilon=0.05, delta=0.05)
    found = [simulate_permit(target, np.ones(350), wrong, np.random.default_rng(seed)) for seed in range(10)]
    assert {(one.withdrawn, one.threshold) for one in found} == {(1, None)}
    assert 5 < np.mean([one.wrong_out for one in found]) < 40  # one call in twenty is audited
