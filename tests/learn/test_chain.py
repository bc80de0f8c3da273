"""A chain of tiers: what it decides, what it promises, and that a tier which does not pay is not in it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.chain import Chain, TierCases, fit_chain
from tests.benchmarks import chain as chain_benchmark
from tests.benchmarks.chain import World, followed, routed, world
from tests.binomial import binomial_ceiling
from tests.sampling import examples

BUDGET = 0.05
FEW = 40


def fitted(cases: World, seed: int = 0, delta: float | None = 0.1) -> Chain:
    return fit_chain(
        cases.tiers, budget=BUDGET, cost_of_question=cases.question, delta=delta, rng=np.random.default_rng(seed)
    )


def wrong_out(seed: int, *, sabotaged: bool) -> float:
    """The share that goes out wrong in a large world of a chain that was fitted on a small one."""
    rng = np.random.default_rng(seed)
    chain = fitted(world(rng, 400), seed)
    if sabotaged:  # released from the least chance on that the choosing third would have taken, and a little more
        least = chain.release.at_least
        release = chain.release.model_copy(update={"at_least": None if least is None else least * 0.85})
        chain = chain.model_copy(update={"release": release})
    return followed(chain, world(rng, 4_000)).wrong


@pytest.mark.slow
def test_the_share_that_goes_out_wrong_is_kept_in_all_but_delta_of_the_calibrations() -> None:
    broken = sum(wrong_out(seed, sabotaged=False) > BUDGET for seed in range(FEW))
    assert broken <= binomial_ceiling(FEW, 0.1)


@pytest.mark.slow
def test_a_laxer_threshold_than_the_certified_one_breaks_the_promise() -> None:
    broken = sum(wrong_out(seed, sabotaged=True) > BUDGET for seed in range(FEW))
    assert broken > binomial_ceiling(FEW, 0.1)


def test_it_beats_routing_at_random_at_equal_cost_and_spares_looks_of_the_big_model() -> None:
    population = world(np.random.default_rng(9), 4_000)
    for seed in range(4):
        chain = fitted(world(np.random.default_rng(seed), 600), seed)
        seen = followed(chain, population)
        by_chance = routed(np.random.default_rng(seed).random(4_000), seen, population)
        assert [tier.name for tier in chain.tiers] == ["small", "big"]
        assert seen.big_calls < 1.0
        assert seen.questions < 0.5
        assert by_chance.wrong > seen.wrong + 0.02
        assert chain.expected.looks["small"] == 1.0
        assert abs(chain.expected.questions - seen.questions) < 0.15


def test_the_benchmark_prints_the_chain_beside_routing_by_chance(capsys: pytest.CaptureFixture[str]) -> None:
    chain_benchmark.main(["--resamples", "2", "--json"])
    rows = {(row["data"], row["policy"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    for name in ("world: own errors", "world: shared errors"):
        assert rows[name, "chain"]["published"] == 1.0
        assert rows[name, "chain"]["wrong_out"] < rows[name, "random"]["wrong_out"]
        assert rows[name, "big"]["of_big"] == 1.0


def test_a_tier_that_knows_nothing_more_is_left_out() -> None:
    rng = np.random.default_rng(3)
    cases = world(rng, 600)
    agent = cases.tiers[0]
    same = TierCases(
        name="again",
        score=agent.score,
        right=agent.right,
        agrees=np.ones(600, dtype=np.bool_),
        cost=0.5,
    )
    chain = fit_chain([agent, same], budget=BUDGET, cost_of_question=5.0, rng=rng)
    assert [tier.name for tier in chain.tiers] == ["small"]
    assert chain.tiers[0].below is None


def test_too_few_cases_release_nothing_and_say_how_many_are_needed() -> None:
    chain = fitted(world(np.random.default_rng(1), 40))
    assert chain.release.at_least is None
    assert chain.release.guarantee is None
    assert "takes 45" in chain.release.shortage
    assert chain.expected.questions == 1.0
    assert chain.after(len(chain.tiers) - 1, 1.0, True if len(chain.tiers) > 1 else None)[0] == "ask"


def test_of_two_equal_sets_every_answer_agrees_and_the_second_tier_is_never_asked() -> None:
    data = os.environ.get("GRAMPUS_UQ_DATA")
    if not data:
        pytest.skip("GRAMPUS_UQ_DATA is not set: the recorded runs are not part of the project")
    path = Path(data) / "tool_agent" / "qwen2.5-coder-1.5b.tar.gz"
    cases, left_out = chain_benchmark.pair(path, path, 5.0)
    small, big = cases.tiers
    assert (len(small.right), int((~small.right).sum()), left_out) == (42, 14, 0)
    assert big.agrees is not None
    assert big.agrees.all()
    assert [tier.name for tier in fitted(cases).tiers] == ["small"]


def test_asking_a_real_agent_anew_does_not_pay() -> None:
    data = os.environ.get("GRAMPUS_UQ_DATA")
    if not data:
        pytest.skip("GRAMPUS_UQ_DATA is not set: the recorded runs are not part of the project")
    cases = chain_benchmark.again(Path(data) / "tool_agent" / "qwen2.5-coder-1.5b.tar.gz", 12.0)
    assert [len(tier.right) for tier in cases.tiers] == [42, 42]
    chain = fit_chain(cases.tiers, budget=0.2, cost_of_question=12.0, delta=0.1, rng=np.random.default_rng(0))
    assert chain.release.at_least is not None
    assert [tier.name for tier in chain.tiers] == ["agent"]


@settings(max_examples=examples(25), deadline=None)
@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.booleans())
def test_a_surer_answer_is_never_sent_further_than_a_less_sure_one(one: float, other: float, agrees: bool) -> None:
    chain = fitted(world(np.random.default_rng(5), 600))
    less, more = sorted((one, other))
    gravity = ["release", "ask", "next"]
    for number in range(len(chain.tiers)):
        own = None if number == 0 else agrees
        first, second = chain.after(number, less, own)[0], chain.after(number, more, own)[0]
        assert gravity.index(second) <= gravity.index(first)


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.05, 0.3]))
def test_what_is_expected_of_a_chain_is_what_it_does_with_the_cases_that_set_its_threshold(
    seed: int, missing: float
) -> None:
    """Scores are missing among these alone: no tier learned what an answer without one is worth."""
    rng = np.random.default_rng(seed)
    cases = world(rng, 300)
    rest = np.random.default_rng(seed).permutation(300)[100:]
    gone = rest[rng.random(200) < missing]
    for tier in cases.tiers:
        tier.score[gone] = np.nan
    chain = fitted(cases, seed, delta=None)
    seen = followed(chain, cases.drawn(rest))
    assert chain.expected.questions == pytest.approx(seen.questions)
    assert chain.expected.wrong == pytest.approx(seen.wrong)


def test_an_answer_without_a_score_never_goes_out_on_nothing() -> None:
    chain = fitted(world(np.random.default_rng(5), 600))
    assert chain.after(0, None) == ("next", None)
    alone = chain.model_copy(update={"tiers": (chain.tiers[0].model_copy(update={"below": None}),)})
    assert alone.after(0, None) == ("ask", None)


@pytest.mark.parametrize("cost", [5e-324, 1e-9, 1e100])
def test_a_question_of_any_cost_gives_a_chain_that_can_be_stored(cost: float) -> None:
    tiers = world(np.random.default_rng(1), 600).tiers
    chain = fit_chain(tiers, budget=BUDGET, cost_of_question=cost, rng=np.random.default_rng(0))
    assert Chain.model_validate_json(chain.model_dump_json()) == chain


@pytest.mark.parametrize("cost", [1e101, 1e308, math.inf, math.nan, 0.0, -1.0])
def test_a_question_of_a_cost_that_cannot_be_added_up_is_refused_in_words(cost: float) -> None:
    tiers = world(np.random.default_rng(1), 60).tiers
    with pytest.raises(ConfigurationError, match=r"a cost > 0, at most 1e\+100"):
        fit_chain(tiers, budget=BUDGET, cost_of_question=cost, rng=np.random.default_rng(0))


def test_it_is_stored_and_read_back_the_same() -> None:
    chain = fitted(world(np.random.default_rng(2), 600))
    assert Chain.model_validate_json(chain.model_dump_json()) == chain
    with pytest.raises(ValueError, match="last tier"):
        Chain(tiers=chain.tiers[:1], release=chain.release, expected=chain.expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "small"}, "distinct names"),
        ({"agrees": None}, "agrees"),
        ({"score": np.full(60, 1.5)}, "scores in"),
        ({"score": np.zeros(9)}, "same 60 cases"),
        *(
            ({name: value}, "cost, tokens and seconds from 0 to 1e\\+100")
            for name in ("cost", "tokens", "seconds")
            for value in (-1.0, 1e308, np.nan)
        ),
    ],
)
def test_tiers_that_do_not_fit_together_are_refused(change: dict[str, object], message: str) -> None:
    small, big = world(np.random.default_rng(1), 60).tiers
    fields = {name: getattr(big, name) for name in ("name", "score", "right", "agrees", "cost")}
    with pytest.raises(ConfigurationError, match=message):
        fit_chain(
            [small, TierCases(**{**fields, **change})],
            budget=BUDGET,
            cost_of_question=5.0,
            rng=np.random.default_rng(0),
        )
