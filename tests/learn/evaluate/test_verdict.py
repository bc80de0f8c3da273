"""The verdict names the signal that is better, and is not made better by having looked at many."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from grampus_uq.learn.evaluate import Censoring
from grampus_uq.learn.evaluate.forecast_runs import ForecastRuns
from grampus_uq.learn.evaluate.transparency import scored_streams
from grampus_uq.learn.evaluate.verdict import EvaluationVerdict, judge
from grampus_uq.stats import ForecastTraces
from tests.binomial import binomial_ceiling
from tests.sampling import sampled

CHANCE = "That may be chance"


def made(
    outcomes: npt.ArrayLike,
    asks: npt.NDArray[np.int64] | None = None,
    tasks: tuple[str, ...] | None = None,
    **streams: npt.NDArray[np.float64],
) -> EvaluationVerdict:
    """The verdict on runs of one step (a row a run) or of several (a column a step)."""
    found = {name: ForecastTraces.of([np.atleast_1d(row).tolist() for row in rows]) for name, rows in streams.items()}
    y = np.asarray(outcomes, dtype=np.float64)
    ids = tuple(f"run-{number:05}" for number in range(len(y)))
    runs = ForecastRuns(ids=ids, outcomes=y, streams=found, audit=(), asks=asks, tasks=tasks)
    return judge(runs, scored_streams(runs, Censoring()))


def drawn(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    chance = rng.uniform(0.05, 0.95, n)
    return (rng.uniform(size=n) < chance).astype(np.float64), chance


def test_the_signal_that_knows_is_named_and_what_holding_buys_is_counted_on_the_other_half() -> None:
    rng = np.random.default_rng(0)
    outcomes, chance = drawn(rng, 600)
    verdict = made(outcomes, known=chance, noise=rng.uniform(size=600))
    assert verdict.signals == ("known",)
    assert [row.name for row in verdict.rows] == ["known", "noise"]
    assert verdict.rows[0].auroc == pytest.approx(0.82, abs=0.05)
    assert 0.3 < (verdict.held.estimate or 0) < 0.7
    assert (verdict.right_of_rest.low or 0) > (verdict.right_of_all.estimate or 1)
    text = " ".join(verdict.sentences)
    assert text.startswith("Best signal: known. With it you would hold ")
    assert CHANCE not in text
    assert "a promise is what grampus-uq fit makes" in text


def test_of_equal_signals_the_reading_is_named_and_not_the_belief_that_it_alone_makes() -> None:
    outcomes, chance = drawn(np.random.default_rng(0), 200)
    for asks in (None, np.zeros(200, dtype=np.int64)):
        verdict = made(outcomes, asks, fused=chance, verbalized=chance)
        assert [row.name for row in verdict.rows] == ["verbalized", "fused"]
        assert verdict.sentences[0] == "Best signal: verbalized (stated confidence)."


def test_a_run_is_held_at_its_least_forecast_and_one_of_one_step_too() -> None:
    rng = np.random.default_rng(1)
    outcomes, chance = drawn(rng, 200)
    dip = np.column_stack([np.full(200, 0.9), chance, np.full(200, 0.9)])
    one, three = made(outcomes, s=chance), made(outcomes, s=np.minimum(dip, 0.9))
    assert one.rows[0].auroc == pytest.approx(three.rows[0].auroc, abs=0.02)


def test_where_enough_runs_ask_it_is_about_the_turn_that_proposes_the_call() -> None:
    rng = np.random.default_rng(2)
    outcomes, chance = drawn(rng, 200)
    steps = np.column_stack([rng.uniform(size=200), chance])
    asks = np.where(np.arange(200) < 150, 1, -1)
    verdict = made(outcomes, asks, s=steps, other=np.column_stack([chance, rng.uniform(size=200)]))
    assert verdict.at_the_call
    assert verdict.signals == ("s",)
    assert verdict.right_of_all.of == 150
    assert "% of the first irreversible calls" in " ".join(verdict.sentences)
    few = made(outcomes, np.where(np.arange(200) < 30, 1, -1), s=steps)
    assert not few.at_the_call


def test_the_signals_are_sorted_at_the_call_where_most_runs_make_one_however_few_they_are() -> None:
    rng = np.random.default_rng(5)
    outcomes, chance = drawn(rng, 30)
    late = np.column_stack([np.full(30, 0.01), chance])  # its least forecast says nothing of a run
    early = np.column_stack([chance, np.full(30, 0.99)])
    asks = np.where(np.arange(30) < 16, 1, -1)
    assert [row.name for row in made(outcomes, asks, late=late, early=early).rows] == ["late", "early"]
    asks[:10] = -1
    assert [row.name for row in made(outcomes, asks, late=late, early=early).rows] == ["early", "late"]


@pytest.mark.parametrize("outcomes", [[1.0] * 50, [0.0] * 50, [1.0] * 50 + [0.0] * 19, [1.0]])
def test_with_too_few_of_a_kind_no_signal_is_praised(outcomes: list[float]) -> None:
    verdict = made(outcomes, s=np.linspace(0.1, 0.9, len(outcomes)))
    assert verdict.signals == ()
    assert verdict.held.estimate is None
    assert verdict.sentences[0].startswith(
        f"Too few runs to say which signal is best: {outcomes.count(1.0)} succeeded and {outcomes.count(0.0)} failed."
    )


def test_below_a_hundred_runs_it_says_that_they_are_too_few_to_promise() -> None:
    outcomes, chance = drawn(np.random.default_rng(3), 90)
    assert "Too few runs to promise: the outcomes of 90 are known." in made(outcomes, s=chance).sentences


@pytest.mark.slow
@sampled("sets", [10], full=[100])
def test_of_many_signals_that_know_nothing_the_best_is_called_chance(sets: int) -> None:
    """Choosing among twelve on the same rows would not pass: there nearly every draw has one that looks good."""
    rng, praised = np.random.default_rng(4), 0
    for _ in range(sets):
        outcomes = (rng.uniform(size=120) < 0.6).astype(np.float64)
        verdict = made(outcomes, **{f"s{k}": rng.uniform(size=120) for k in range(12)})
        praised += CHANCE not in " ".join(verdict.sentences)
    assert praised <= binomial_ceiling(sets, 0.05)


@sampled("reports", [60], full=[200])
def test_trials_of_named_tasks_count_once_and_a_number_of_the_task_is_no_signal(reports: int) -> None:
    """Sixty tasks of six trials that end alike, and a stream that only tells tasks apart: taken for independent runs,
    it seems to help, and the interval misses the truth."""
    praised, missed = {True: 0, False: 0}, {True: 0, False: 0}
    for seed in range(reports):
        rng = np.random.default_rng(seed)
        outcomes = np.repeat((rng.uniform(size=60) < 0.5).astype(np.float64), 6)
        number = np.repeat(rng.permutation(60) / 60.0, 6)
        for told in (True, False):
            verdict = made(outcomes, tasks=tuple(f"{x}" for x in number) if told else None, s=number)
            right = verdict.right_of_rest
            praised[told] += bool(verdict.signals) and CHANCE not in " ".join(verdict.sentences)
            missed[told] += right.low is not None and not right.low <= 0.5 <= (right.high or 0.0)
    ceiling = binomial_ceiling(reports, 0.05)
    assert max(praised[True], missed[True]) <= ceiling
    assert min(praised[False], missed[False]) > ceiling


def test_the_draw_of_a_trial_asks_nothing_of_it_and_counts_are_of_tasks() -> None:
    outcomes, chance = drawn(np.random.default_rng(7), 300)
    tasks = tuple(f"task-{number // 2}" for number in range(300))
    one = made(outcomes, tasks=tasks, s=chance)
    assert one.right_of_all.of == 150
    assert one.rows[0].runs == 300  # ranks alone have no interval, and take every run
    flipped = made(1.0 - outcomes, tasks=tasks, s=chance)
    assert flipped.right_of_all.estimate == pytest.approx(1.0 - (one.right_of_all.estimate or 0.0))
