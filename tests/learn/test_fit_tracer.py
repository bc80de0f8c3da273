"""Fitting TRACER finds the components that matter, minimises the loss it names, and is judged on other tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from pydantic import TypeAdapter

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit import fit_tracer as search
from grampus_uq.learn.fit.fit_tracer import (
    TracerCrossValidation,
    TracerFit,
    cross_validate_tracer,
    fit_tracer,
)
from grampus_uq.stats.ranking import auroc
from grampus_uq.stats.trajectory_risk import Composite, StepComponents, TracerParameters
from tests.trajectory_runs import tracer_scores

Run = list[StepComponents]


def made_up_runs(
    rng: np.random.Generator, count: int, *, signal: str, tasks: int = 30
) -> tuple[list[Run], list[bool], list[int]]:
    """Runs in which one component, and no other, is larger in a few steps of failures; none for signal "none"."""
    runs, failed = [], []
    for _ in range(count):
        bad = bool(rng.random() < 0.5)
        steps = []
        for t in range(int(rng.integers(6, 30))):
            repetition, agent_gap, user_gap = (float(noise) for noise in rng.random(3) * 0.5)
            lifted = 0.5 if bad and rng.random() < 0.25 else 0.0
            if t % 2:
                steps.append(StepComponents(is_agent=False, user_gap=user_gap + lifted * (signal == "user_gap")))
            else:
                repetition += lifted * (signal == "repetition")
                agent_gap += lifted * (signal == "agent_gap")
                steps.append(StepComponents(is_agent=True, repetition=repetition, agent_gap=agent_gap))
        runs.append(steps)
        failed.append(bad)
    return runs, failed, [number % tasks for number in range(count)]


def slow_loss(runs: Sequence[Run], failed: Sequence[bool], parameters: TracerParameters, tau: float) -> float:
    """The pairwise logistic loss of the paper, pair by pair."""
    scores = [tracer_scores(run, parameters)[-1] for run in runs]
    terms = [
        math.log1p(math.exp(-(scores[i] - scores[j]) / tau))
        for i in range(len(runs))
        for j in range(len(runs))
        if failed[i] and not failed[j]
    ]
    return sum(terms) / len(terms)


@pytest.mark.parametrize("composite", list(Composite))
def test_the_losses_reported_are_those_of_the_reported_parameters(composite: Composite) -> None:
    runs, failed, _ = made_up_runs(np.random.default_rng(1), 40, signal="agent_gap")
    fit = fit_tracer(runs, failed, rng=np.random.default_rng(0), composite=composite)
    assert fit.loss == pytest.approx(slow_loss(runs, failed, fit.parameters, 1.0), rel=1e-9)
    default = TracerParameters(composite=composite)
    assert fit.default_loss == pytest.approx(slow_loss(runs, failed, default, 1.0), rel=1e-9)
    assert fit.loss <= fit.default_loss
    assert (fit.failures, fit.successes) == (sum(failed), 40 - sum(failed))


@pytest.mark.parametrize(("signal", "weight"), [("repetition", "alpha"), ("agent_gap", "beta"), ("user_gap", "gamma")])
def test_the_component_that_separates_gets_the_largest_weight(signal: str, weight: str) -> None:
    runs, failed, _ = made_up_runs(np.random.default_rng(2), 120, signal=signal)
    parameters = fit_tracer(runs, failed, rng=np.random.default_rng(0)).parameters
    weights = {name: getattr(parameters, name) for name in ("alpha", "beta", "gamma")}
    assert weights[weight] == 1.0
    assert all(value < 1.0 for name, value in weights.items() if name != weight)


@pytest.mark.slow
def test_no_setting_on_a_coarse_grid_of_ones_own_is_better_by_much() -> None:
    runs, failed, _ = made_up_runs(np.random.default_rng(3), 40, signal="agent_gap")
    fit = fit_tracer(runs, failed, rng=np.random.default_rng(0))
    best = min(
        slow_loss(runs, failed, TracerParameters(alpha=a, beta=b, gamma=g, k=k, w=w), 1.0)
        for a in (0.0, 0.5, 1.0)
        for b in (0.0, 0.5, 1.0)
        for g in (0.0, 0.5, 1.0)
        for k in (0.1, 0.35, 1.0)
        for w in (0.0, 0.5)
        if max(a, b, g) == 1.0
    )
    assert fit.loss <= best + 1e-3


def test_the_largest_weight_is_one_and_none_is_negative_even_where_risk_is_upside_down() -> None:
    # Where failures have the lower risk, smaller weights would always lose less: the scale must not be given away.
    def run(risk: float) -> Run:
        agent = StepComponents(is_agent=True, repetition=risk / 2, agent_gap=risk)
        return [agent, StepComponents(is_agent=False, user_gap=risk)]

    runs = [run(risk) for risk in (0.1, 0.2, 0.8, 0.9)]
    for failed in ([True, True, False, False], [False, False, True, True]):
        parameters = fit_tracer(runs, failed, rng=np.random.default_rng(0)).parameters
        weights = (parameters.alpha, parameters.beta, parameters.gamma)
        assert max(weights) == 1.0
        assert min(weights) >= 0.0


def test_held_out_scores_come_from_parameters_of_the_other_folds_and_tasks_stay_whole() -> None:
    runs, failed, tasks = made_up_runs(np.random.default_rng(4), 90, signal="repetition", tasks=17)
    cv = cross_validate_tracer(runs, failed, tasks, rng=np.random.default_rng(0))
    for task in range(17):
        assert len({fold for fold, own in zip(cv.fold_of, tasks, strict=True) if own == task}) == 1
    assert sorted(set(cv.fold_of)) == [0, 1, 2, 3, 4]
    wins, pairs = 0.0, 0
    for fold in range(5):
        inside = [i for i, its in enumerate(cv.fold_of) if its != fold]
        again = fit_tracer([runs[i] for i in inside], [failed[i] for i in inside], rng=np.random.default_rng(0))
        assert again.parameters == cv.parameters[fold]  # nothing of the fold itself went into its parameters
        held = [i for i, its in enumerate(cv.fold_of) if its == fold]
        scores = [tracer_scores(runs[i], cv.parameters[fold])[-1] for i in held]
        area = auroc(scores, [failed[i] for i in held])
        here = sum(failed[i] for i in held) * sum(not failed[i] for i in held)
        assert area is not None
        wins, pairs = wins + area * here, pairs + here
    assert cv.auroc == pytest.approx(wins / pairs, abs=1e-9)


@pytest.mark.slow
def test_a_real_signal_survives_cross_validation_and_noise_does_not() -> None:
    real = made_up_runs(np.random.default_rng(6), 160, signal="agent_gap")
    cv = cross_validate_tracer(*real, rng=np.random.default_rng(0))
    assert cv.auroc is not None
    assert cv.default_auroc is not None
    assert cv.auroc > 0.8
    areas = []
    for seed in range(6):
        noise = made_up_runs(np.random.default_rng(100 + seed), 80, signal="none")
        area = cross_validate_tracer(*noise, rng=np.random.default_rng(0)).auroc
        assert area is not None
        areas.append(area)
    assert 0.35 < float(np.mean(areas)) < 0.6


def test_the_same_seed_gives_the_same_fit_and_pairs_are_drawn_only_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, failed, _ = made_up_runs(np.random.default_rng(5), 80, signal="user_gap")
    whole = fit_tracer(runs, failed, rng=np.random.default_rng(1))
    assert whole == fit_tracer(runs, failed, rng=np.random.default_rng(2))
    monkeypatch.setattr(search, "_MAX_PAIRS", 300)
    first = fit_tracer(runs, failed, rng=np.random.default_rng(1))
    assert first == fit_tracer(runs, failed, rng=np.random.default_rng(1)) != whole
    assert first.parameters.gamma == 1.0


def test_the_order_of_the_runs_does_not_change_the_fit() -> None:
    runs, failed, _ = made_up_runs(np.random.default_rng(5), 50, signal="user_gap")
    order = np.random.default_rng(0).permutation(50)
    turned = fit_tracer([runs[i] for i in order], [failed[i] for i in order], rng=np.random.default_rng(0))
    straight = fit_tracer(runs, failed, rng=np.random.default_rng(0))
    assert replace(turned, loss=0.0, default_loss=0.0) == replace(straight, loss=0.0, default_loss=0.0)
    assert turned.loss == pytest.approx(straight.loss)


def test_surprisal_counts_with_weight_one() -> None:
    quiet = [StepComponents(is_agent=True, surprisal=0.1, repetition=0.2)] * 5
    loud = [*quiet, StepComponents(is_agent=True, surprisal=3.0, repetition=0.2)]
    fit = fit_tracer([quiet, loud], [False, True], rng=np.random.default_rng(0))
    assert fit.loss == pytest.approx(slow_loss([quiet, loud], [False, True], fit.parameters, 1.0))
    assert fit.loss < math.log1p(math.exp(-2.5))


def test_results_are_json() -> None:
    runs, failed, tasks = made_up_runs(np.random.default_rng(5), 40, signal="user_gap")
    fit = fit_tracer(runs, failed, rng=np.random.default_rng(0))
    fit_adapter = TypeAdapter(TracerFit)
    assert fit_adapter.validate_json(fit_adapter.dump_json(fit)) == fit
    cv = cross_validate_tracer(runs, failed, tasks, rng=np.random.default_rng(0))
    cv_adapter = TypeAdapter(TracerCrossValidation)
    assert cv_adapter.validate_json(cv_adapter.dump_json(cv)) == cv


def test_what_cannot_be_fitted_is_refused_by_name() -> None:
    runs, failed, tasks = made_up_runs(np.random.default_rng(5), 12, signal="user_gap", tasks=4)
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigurationError, match="both kinds"):
        fit_tracer(runs, [True] * 12, rng=rng)
    with pytest.raises(ConfigurationError, match="both kinds"):
        fit_tracer(runs, [False] * 12, rng=rng)
    with pytest.raises(ConfigurationError, match="'failed' parameter"):
        fit_tracer(runs, failed[:-1], rng=rng)
    with pytest.raises(ConfigurationError, match="'tasks' parameter"):
        cross_validate_tracer(runs, failed, [1], rng=rng)
    with pytest.raises(ConfigurationError, match="at least one step"):
        fit_tracer([*runs[:-1], []], failed, rng=rng)
    with pytest.raises(ConfigurationError, match="at least one step"):
        fit_tracer([], [], rng=rng)
    with pytest.raises(ConfigurationError, match="at most the 4 tasks"):
        cross_validate_tracer(runs, failed, tasks, rng=rng)
    with pytest.raises(ConfigurationError, match="both kinds"):
        cross_validate_tracer(runs, [True] * 12, list(range(12)), rng=rng)
