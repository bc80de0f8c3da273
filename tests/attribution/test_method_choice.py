"""Where errors lie decides the advice, and an automatic choice is made on failures of its own."""

from __future__ import annotations

import numpy as np
import pytest

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution import (
    AttributionMethod,
    ConstantScorer,
    Envelope,
    LabelledTrajectory,
    LeftFiltration,
    Plan,
    RightFiltration,
    SuffixEnvelope,
    TwoWayFiltration,
    Vanilla,
    advise,
    calibrate,
    choose_method,
    error_positions,
    fit_step_scorer,
    locate,
)
from grampus_uq.learn.attribution.attribute import with_chosen_method
from tests.attribution.runs import failures, trajectory


def runs_with_errors_at(places: list[float], length: int = 10) -> list[LabelledTrajectory]:
    return [
        LabelledTrajectory(
            trajectory=trajectory(f"r{i}-{place}", [f"t{k}" for k in range(length)]),
            error_steps=(min(length - 1, int(place * length)),),
        )
        for i, place in enumerate(places)
    ]


def test_the_histogram_counts_every_error_once_in_its_bin() -> None:
    positions = error_positions(runs_with_errors_at([0.0, 0.05, 0.5, 0.99]), bins=10)
    assert positions.counts == (2, 0, 0, 0, 0, 1, 0, 0, 0, 1)
    assert positions.thirds == (0.5, 0.25, 0.25)
    assert positions.mean == pytest.approx((0.05 + 0.05 + 0.55 + 0.95) / 4)
    assert error_positions(failures(40, 1, several=True)).trajectories == 40


@pytest.mark.parametrize(
    ("places", "lazy", "rollback", "method"),
    [
        ([0.1] * 8 + [0.9] * 2, True, False, RightFiltration),
        ([0.9] * 8 + [0.1] * 2, True, False, LeftFiltration),
        ([0.5] * 10, True, False, TwoWayFiltration),
        ([0.1] * 8 + [0.9] * 2, False, False, Vanilla),
        ([0.1] * 10, False, True, SuffixEnvelope),
        ([0.1] * 10, True, True, LeftFiltration),
    ],
)
def test_advice_follows_the_errors_the_purpose_and_the_cost(
    places: list[float], lazy: bool, rollback: bool, method: type
) -> None:
    advice = advise(error_positions(runs_with_errors_at(places)), for_rollback=rollback, lazy=lazy)
    assert isinstance(advice.method, method)
    assert "%" in advice.why


@pytest.mark.parametrize(("place", "wanted"), [(0.05, "rf"), (0.85, "lf"), (0.5, "twf")])
def test_the_choice_is_the_method_that_removes_most_where_the_errors_lie(place: float, wanted: str) -> None:
    rng = np.random.default_rng(2)
    runs = runs_with_errors_at((place + 0.08 * rng.random(30)).tolist(), length=20)
    candidates: list[AttributionMethod] = [RightFiltration(), LeftFiltration(), TwoWayFiltration()]
    plan, choice = with_chosen_method(runs, ConstantScorer(), candidates)
    assert plan.method.name == wanted
    rates = dict(choice.removal_rates)
    assert rates[wanted] == max(rates.values()) > 0.3
    assert set(choice.chosen_on) == {r.trajectory.trajectory_id for r in runs}


def test_removal_rates_predict_each_failure_from_all_the_others() -> None:
    """At 60 % the third of four others sets the threshold: ceil(5 * .6) = 3. Prefixes are counted by hand."""
    runs = runs_with_errors_at([0.0, 0.2, 0.4, 0.6, 0.8])
    scores = [[1.0 + 0.001 * i] * 10 for i in range(5)]  # no ties between runs
    choice = choose_method(runs, scores, [RightFiltration()], 0.6)
    # The true prefixes have 1, 3, 5, 7, 9 steps. Without their own, the third smallest is run 3's (7 steps) for the
    # first three and run 2's (5 steps) for the last two, whose slightly larger scores fit 4 steps under it.
    assert dict(choice.removal_rates)["rf"] == pytest.approx(np.mean([0.3, 0.3, 0.3, 0.6, 0.6]))


def test_a_choice_made_apart_keeps_the_promise() -> None:
    """120 worlds: 6 failures choose, 9 calibrate, one is new."""
    misses = 0
    for world in range(120):
        runs = failures(16, 5000 + world)
        plan, _ = with_chosen_method(
            runs[:6], ConstantScorer(), [RightFiltration(), LeftFiltration()], Plan(seed=world)
        )
        found = locate(runs[15].trajectory, calibrate(runs[6:15], ConstantScorer(), plan))
        misses += runs[15].error_steps[0] not in found.set_steps
    assert misses <= 120 * 0.2 + 4 * np.sqrt(120 * 0.2 * 0.8)


def test_too_few_failures_to_tell_leave_the_first_candidate() -> None:
    choice = choose_method(
        runs_with_errors_at([0.1, 0.2]), [[1.0] * 10, [1.0] * 10], [Envelope(), RightFiltration()], 0.8
    )
    assert choice.method == Envelope()
    assert {rate for _, rate in choice.removal_rates} == {0.0}


def test_what_cannot_be_chosen_from_is_refused() -> None:
    runs = runs_with_errors_at([0.1, 0.2])
    with pytest.raises(ConfigurationError, match="candidates"):
        choose_method(runs, [[1.0] * 10] * 2, [], 0.8)
    with pytest.raises(ConfigurationError, match="at least two"):
        choose_method(runs[:1], [[1.0] * 10], [Envelope()], 0.8)
    with pytest.raises(ConfigurationError, match="apart from the scorer's fit"):
        with_chosen_method(runs, fit_step_scorer(runs), [Envelope()])
    with pytest.raises(ConfigurationError, match="at least one trajectory"):
        error_positions([])
