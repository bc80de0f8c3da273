"""A chain is learned from recorded looks as from the same cases given by hand, and deployed it does what was said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from grampus_uq import Outcome, Profile, Reading, Step, ToolCall, UncertaintyMonitor
from grampus_uq.cli import _group
from grampus_uq.core.chain_rule import Chain
from grampus_uq.errors import ConfigurationError
from grampus_uq.learn import FitOptions, TierCases, fit_chain, fit_profile
from grampus_uq.learn.profiles.chain_part import recorded_looks
from grampus_uq.recording import Label, RecordingProcessor, label, load
from grampus_uq.records.call_parts import CallPart

N = 240
BUDGET = 0.1
QUESTION = 12.0
OPTIONS = FitOptions(question=QUESTION, look_costs={"big": 1.0}, wrong_releases=BUDGET, runs_per_day=N / 6)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the agent's call and the look of a tier were worth; `score` None: the look is missing.

    decided: by a human about the agent's call, after which `success` is that of another call.
    """

    own: float
    success: bool | None
    score: float | None
    agrees: bool
    right: bool
    decided: str | None = None


def drawn(n: int = N, seed: int = 0) -> list[Case]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        own, score = rng.random(2)
        small, big = bool(rng.random() < own), bool(rng.random() < 0.6 + 0.4 * score)
        agrees = small and big
        found.append(Case(own=own, success=small, score=score, agrees=agrees, right=big))
    return found


def call(to: str) -> ToolCall:
    return ToolCall(id="c", name="send", arguments={"to": to})


def record(folder: Path, cases: Sequence[Case], tiers: Sequence[str] = ("big",), task: str = "") -> None:
    """Advisory runs that propose one irreversible call each, which every tier looks at."""
    policy = Profile().policy.model_copy(update={"irreversible_tool_names": ["send"], "enable_p_true": False})
    with RecordingProcessor(folder) as recorder:
        monitor = UncertaintyMonitor(policy=policy, processors=[recorder], advisory=True)
        for number, case in enumerate(cases):
            about = {"task_id": task} if task else {}
            session = monitor.session(f"r{number}", "agent", model="m", metadata=about)
            part = CallPart(call=0, name="*", probability=case.own)
            read = [Reading(source="call_probability", value=case.own, parts=(part,))]
            session.commit(Step(step_id="llm_0", kind="llm_call", time_s=0.0, tool_calls=(call("bob"),)), read)
            session.commit(Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(call("bob"),)), [])
            for tier in tiers:
                session.record_look(
                    tier,
                    step_id="llm_0",
                    call=None if case.score is None else call("bob" if case.agrees else "ann"),
                    agrees=case.agrees,
                    own=case.own,
                    probability=case.score,
                    missing="it was late" if case.score is None else "",
                    tokens=100,
                    seconds=2.0,
                )
            if case.decided is not None:
                session.record_decision(case.decided, principal="eva", step_id="llm_0", call=call("bob"))
            named = tuple(tiers) if case.right and not case.agrees else ()
            session.finish(Outcome(success=case.success, right_looks=named))


def by_hand(cases: Sequence[Case]) -> tuple[TierCases, TierCases]:
    agent = TierCases(
        name="agent", score=np.array([c.own for c in cases]), right=np.array([c.success is True for c in cases])
    )
    big = TierCases(
        name="big",
        score=np.array([np.nan if c.score is None else c.score for c in cases]),
        right=np.array([c.right for c in cases]),
        agrees=np.array([c.agrees for c in cases]),
        cost=1.0,
        tokens=100.0,
        seconds=2.0,
    )
    return agent, big


def chain_by_hand(cases: Sequence[Case]) -> Chain:
    rng = np.random.default_rng(0)
    return fit_chain(by_hand(cases), budget=BUDGET, delta=OPTIONS.delta, cost_of_question=QUESTION, rng=rng)


def equal(one: Sequence[TierCases], other: Sequence[TierCases]) -> bool:
    def values(tier: TierCases) -> tuple[Any, ...]:
        agrees = None if tier.agrees is None else tier.agrees.tolist()
        scores = np.where(np.isnan(tier.score), -1.0, tier.score).tolist()
        return tier.name, scores, tier.right.tolist(), agrees, tier.cost, tier.tokens, tier.seconds

    return list(map(values, one)) == list(map(values, other))


def by_number(cases: Sequence[Case]) -> list[Case]:
    """In the order in which files are read."""
    return [cases[number] for number in sorted(range(len(cases)), key=lambda number: f"r{number}.jsonl")]


def tiers_in(folder: Path, costs: Mapping[str, float] | None = None) -> Sequence[TierCases]:
    return recorded_looks(folder, np.random.default_rng(0), costs=costs).tiers


def test_recorded_looks_give_the_chain_that_their_cases_give(tmp_path: Path) -> None:
    cases = drawn()
    record(tmp_path, cases)
    assert equal(tiers_in(tmp_path, {"big": 1.0}), by_hand(by_number(cases)))
    fit = fit_profile(tmp_path, options=OPTIONS)
    expected = chain_by_hand(by_number(cases))
    said = f"{expected.release.guarantee} Its cases are first irreversible calls of runs: later ones are not covered."
    release = expected.release.model_copy(update={"guarantee": said})
    assert fit.artifact.profile.chain == expected.model_copy(update={"release": release})
    assert [tier.name for tier in expected.tiers] == ["agent", "big"], "the cases are such that the look pays"
    (part,) = fit.parts
    assert part.promise == said
    assert fit.artifact.guarantees == (f"chain: {part.promise}",)
    figures = part.figures
    assert figures["calls_per_day"] == pytest.approx(40.0)
    assert figures["questions_per_day"] == pytest.approx(40.0 * expected.expected.questions)
    assert figures["seconds_per_day"] == pytest.approx(40.0 * expected.expected.looks["big"] * 2.0)
    assert figures["cost_alone"] > figures["cost"]


def test_the_command_writes_the_chain_and_says_what_a_day_costs(tmp_path: Path) -> None:
    record(tmp_path / "runs", drawn())
    profile = tmp_path / "chain.json"
    given = ["fit", str(tmp_path / "runs"), "-o", str(profile), "--question", "12", "--look", "big=1"]
    given += ["--wrong-releases", "0.1", "--runs-per-day", "40"]
    printed = CliRunner().invoke(_group, given)
    assert printed.exit_code == 0
    assert load(profile).profile.chain is not None
    told = json.loads(CliRunner().invoke(_group, [*given, "--json"]).stdout)
    (part,) = told["parts"]
    text = " ".join(printed.stdout.split())
    assert f"{part['figures']['questions_per_day']:.1f} questions" in text
    assert part["promise"] in text
    assert "pauses in" not in text, "a replay has no looks"


def test_a_differing_call_that_no_label_names_and_a_missing_look_count_as_wrong(tmp_path: Path) -> None:
    other = Case(own=0.5, success=False, score=0.9, agrees=False, right=False)
    cases = [other, Case(own=0.5, success=True, score=None, agrees=False, right=False)]
    record(tmp_path, [*cases, Case(own=0.5, success=None, score=0.9, agrees=True, right=True)])
    _, big = tiers_in(tmp_path)
    assert (big.right.tolist(), big.cost) == ([False, False], 2.0)
    label(tmp_path, Label(session_id="r0", success=False, right_looks=("big",)), by="eva")
    label(tmp_path, Label(session_id="r2", success=True), by="eva")
    agent, big = tiers_in(tmp_path)
    assert agent.right.tolist() == [False, True, True]
    assert big.right.tolist() == [True, False, True]


def test_a_humans_decision_about_the_call_is_its_label(tmp_path: Path) -> None:
    """The run goes on after a decision, so that its end says nothing of the call, unless a label says it failed."""
    good = Case(own=0.5, success=True, score=0.9, agrees=True, right=True)
    decisions = ["approve", "reject", "edit", "guidance", "approve"]
    record(tmp_path, [replace(good, decided=decided) for decided in decisions])
    label(tmp_path, Label(session_id="r4", success=False), by="eva")
    looks = recorded_looks(tmp_path, np.random.default_rng(0))
    agent, big = looks.tiers
    assert agent.right.tolist() == big.right.tolist() == [True, False, False, False], "guidance is no answer"
    assert looks.share == 1.0


def test_tiers_keep_their_order_and_of_a_task_one_run_counts(tmp_path: Path) -> None:
    record(tmp_path, drawn(8), ("z", "b", "a"), task="one")
    tiers = tiers_in(tmp_path)
    assert [tier.name for tier in tiers] == ["agent", "z", "b", "a"]
    assert {len(tier.right) for tier in tiers} == {1}


@pytest.mark.parametrize(
    ("cases", "why"),
    [(drawn(6), "set no threshold"), ([], "No labelled run has a look")],
    ids=["few", "none"],
)
def test_without_enough_looks_there_is_no_chain_and_it_says_what_is_missing(
    tmp_path: Path, cases: list[Case], why: str
) -> None:
    record(tmp_path, cases or drawn(6), ("big",) if cases else ())
    fit = fit_profile(tmp_path, options=OPTIONS)
    assert fit.empty
    assert fit.artifact.profile.chain is None
    (part,) = fit.parts
    assert why in part.why
    assert "AgentRunner(looks=...)" in part.needs


@pytest.mark.parametrize(
    "options",
    [
        {"question": 0.0},
        {"question": float("inf")},
        {"question": 1e308},
        {"look_costs": {"big": 1.0}},
        {"question": 1.0, "look_costs": {"big": -1.0}},
        {"question": 1.0, "accuracy": 0.9},
        {"question": 1.0, "pause_share": 0.1},
    ],
    ids=str,
)
def test_costs_out_of_range_and_other_rules_beside_a_chain_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        FitOptions(**options)


def test_costs_are_those_of_the_recorded_tiers(tmp_path: Path) -> None:
    record(tmp_path, drawn(6))
    with pytest.raises(ConfigurationError, match="big"):
        tiers_in(tmp_path, {"bigger": 1.0})
    refused = CliRunner().invoke(_group, ["fit", str(tmp_path), "--question", "1", "--look", "big=much"])
    assert isinstance(refused.exception, ConfigurationError)


def test_a_chain_in_the_base_leaves_with_everything_else_that_was_fitted(tmp_path: Path) -> None:
    record(tmp_path, drawn())
    chained = fit_profile(tmp_path, options=OPTIONS).artifact
    again = fit_profile(tmp_path, base=chained).artifact.profile
    assert again.chain is None
    Profile.model_validate_json(again.model_dump_json())
