"""The fitted step scorer: right weights, plain numbers, no labels, nothing that runs away."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution import Trajectory, TrajectoryStep
from grampus_uq.learn.attribution.conditional_logit import (
    FEATURE_WORDS,
    ConditionalLogitScorer,
    cheap_features,
    fit_conditional_logit,
    fit_step_scorer,
)
from tests.learn.attribution.runs import failures, trajectory
from tests.sampling import examples


def synthetic(seed: int, n: int = 40, width: int = 4) -> tuple[list[np.ndarray], list[list[int]]]:
    rng = np.random.default_rng(seed)
    features = [rng.normal(size=(int(rng.integers(2, 8)), width)) * [1, 5, 0.2, 1] for _ in range(n)]
    errors = [[int(np.argmax(values @ [1.0, 0.1, -2.0, 0.0] + rng.gumbel(size=len(values))))] for values in features]
    return features, errors


NAMES = ["a", "b", "c", "d"]


@pytest.mark.parametrize("ridge", [0.5, 30.0])
def test_weights_are_those_that_an_independent_optimiser_finds(ridge: float) -> None:
    features, errors = synthetic(1)
    errors[0] = [0, 1]  # two errors share the weight of their run
    model = fit_conditional_logit(features, errors, NAMES, ridge=ridge)
    mean, scale = np.concatenate(features).mean(axis=0), np.concatenate(features).std(axis=0)

    def loss(w: np.ndarray) -> float:
        total = 0.0
        for values, wrong in zip(features, errors, strict=True):
            scores = (values - mean) / scale @ w
            log_p = scores - np.logaddexp.reduce(scores)
            total -= log_p[wrong].mean()
        return float(total + ridge / 2 * w @ w)

    golden = scipy.optimize.minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-9}).x
    assert model.weights == pytest.approx(golden, abs=1e-5)


def test_two_step_runs_are_logistic_regression_on_differences() -> None:
    """Golden: scikit-learn, whose C is 1/ridge."""
    rng = np.random.default_rng(2)
    features = [rng.normal(size=(2, 3)) for _ in range(80)]
    errors = [[int(rng.random() < 1 / (1 + math.exp(-(v[1] - v[0])[0])))] for v in features]
    model = fit_conditional_logit(features, errors, ["a", "b", "c"], ridge=4.0)
    scale = np.array(model.scale)
    differences = np.array([(v[1] - v[0]) / scale for v in features])
    golden = LogisticRegression(C=0.25, fit_intercept=False, tol=1e-10, max_iter=10_000)
    golden.fit(differences, [e[0] for e in errors])
    assert model.weights == pytest.approx(golden.coef_[0], abs=1e-5)


def test_the_fit_recovers_what_made_the_errors() -> None:
    features, errors = synthetic(3, n=3000)
    model = fit_conditional_logit(features, errors, NAMES, ridge=1.0)
    raw = np.array(model.weights) / np.array(model.scale)
    assert raw == pytest.approx([1.0, 0.1, -2.0, 0.0], abs=0.2)


@settings(max_examples=examples(30), deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_the_runs_does_not_matter(random: object) -> None:
    features, errors = synthetic(4, n=12)
    order = list(range(12))
    random.shuffle(order)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    one = fit_conditional_logit(features, errors, NAMES)
    other = fit_conditional_logit([features[i] for i in order], [errors[i] for i in order], NAMES)
    assert other.weights == pytest.approx(one.weights, abs=1e-9)


def test_separable_and_constant_features_give_finite_weights() -> None:
    features = [np.array([[1e9, 7.0], [0.0, 7.0]]) for _ in range(50)]
    model = fit_conditional_logit(features, [[0]] * 50, ["separates", "constant"], ridge=1e-6)
    assert model.weights[0] > 3.0
    assert model.weights[1] == 0.0
    assert model.probabilities(features[0])[0] > 0.99


def test_the_fit_ends_at_the_maximum_on_heavy_tailed_features_with_hardly_any_ridge() -> None:
    """Where whole Newton steps overshoot: the gradient, computed anew, vanishes in every case."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        runs, width = int(rng.integers(3, 30)), int(rng.integers(1, 6))
        features = [rng.standard_cauchy(size=(int(rng.integers(2, 8)), width)) for _ in range(runs)]
        errors = [[int(rng.integers(len(v)))] if rng.random() < 0.3 else [int(np.argmax(v[:, 0]))] for v in features]
        ridge = 10.0 ** rng.uniform(-8, 0)
        model = fit_conditional_logit(features, errors, ["f"] * width, ridge=ridge)
        gradient = -ridge * np.array(model.weights)
        for values, (wrong,) in zip(features, errors, strict=True):
            gradient += model.standardised(values)[wrong] - model.probabilities(values) @ model.standardised(values)
        assert np.abs(gradient).max() < 1e-6


def test_a_stronger_ridge_gives_smaller_weights() -> None:
    features, errors = synthetic(5)
    norms = [np.linalg.norm(fit_conditional_logit(features, errors, NAMES, ridge=r).weights) for r in (0.1, 30, 1e6)]
    assert norms[0] > norms[1] > norms[2]


def test_scores_are_length_times_probability_so_an_average_step_has_one() -> None:
    scorer = fit_step_scorer(failures(30, 6))
    scores = [step.value for step in scorer.score(failures(1, 7)[0].trajectory)]
    assert np.mean(scores) == pytest.approx(1.0)
    assert min(scores) > 0.0


def test_a_fitted_scorer_ranks_the_wrong_step_first_far_more_often_than_chance() -> None:
    scorer = fit_step_scorer(failures(40, 8, signal=0.9))
    held_out = failures(200, 9, signal=0.9)
    hits = [int(np.argmax([s.value for s in scorer.score(r.trajectory)])) == r.error_steps[0] for r in held_out]
    assert np.mean(hits) > 0.5


def test_a_fit_over_other_features_is_refused() -> None:
    scorer = ConditionalLogitScorer(model=fit_conditional_logit([np.ones((2, 1))], [[0]], ["x"]))
    with pytest.raises(ConfigurationError, match="model"):
        scorer.score(failures(1, 14)[0].trajectory)


@pytest.mark.parametrize(
    ("features", "errors", "ridge"),
    [
        ([], [], 1.0),
        ([np.ones((2, 1))], [], 1.0),
        ([np.ones((2, 2))], [[0]], 1.0),
        ([np.array([[math.nan], [1.0]])], [[0]], 1.0),
        ([np.ones((2, 1))], [[2]], 1.0),
        ([np.ones((2, 1))], [[]], 1.0),
        ([np.ones((2, 1))], [[0]], 0.0),
    ],
)
def test_what_cannot_be_fitted_is_refused(features: list[np.ndarray], errors: list[list[int]], ridge: float) -> None:
    with pytest.raises(ConfigurationError):
        fit_conditional_logit(features, errors, ["x"], ridge=ridge)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.text(max_size=60), st.text(max_size=3), st.booleans()), min_size=1, max_size=12))
def test_features_are_finite_and_named_for_any_text(steps: list[tuple[str, str, bool]]) -> None:
    run = Trajectory(
        trajectory_id="x",
        steps=tuple(
            TrajectoryStep(step_id=str(i), speaker=speaker, text=text, observation=flag, tool_failed=flag)
            for i, (text, speaker, flag) in enumerate(steps)
        ),
    )
    names, values = cheap_features(run)
    assert names == tuple(FEATURE_WORDS)
    assert values.shape == (len(steps), len(names))
    assert np.isfinite(values).all()


def test_features_say_what_the_step_says() -> None:
    run = Trajectory(
        trajectory_id="x",
        task="How many even houses?",
        steps=(
            TrajectoryStep(step_id="a", speaker="planner", text="I assume 42 even houses. ```x```"),
            TrajectoryStep(step_id="b", speaker="terminal", text="Traceback", observation=True, tool_failed=True),
            TrajectoryStep(step_id="c", speaker="planner", text="I assume 42 even houses. ```x```"),
            TrajectoryStep(step_id="d", speaker="checker", text="TERMINATE"),
        ),
    )
    names, values = cheap_features(run)
    column = {name: values[:, i].tolist() for i, name in enumerate(names)}
    assert column["hedging"] == [1.0, 0.0, 1.0, 0.0]
    assert column["tool_failed"] == [0.0, 1.0, 0.0, 0.0]
    assert column["before_tool_failure"] == [1.0, 0.0, 0.0, 0.0]
    assert column["failures_before"] == [0.0, 0.0, math.log(2), math.log(2)]
    assert column["repetition"] == [0.0, 0.0, 1.0, 0.0]
    assert column["speaker_first_turn"] == [1.0, 1.0, 0.0, 1.0]
    assert column["new_words"][0] == pytest.approx(math.log1p(4)), "i, assume, 42, x; even and houses are the task's"
    assert column["closing"] == [0.0, 0.0, 0.0, 1.0]
    assert column["code"] == [1.0, 0.0, 1.0, 0.0]


def test_an_explanation_names_what_speaks_against_the_step() -> None:
    scorer = fit_step_scorer(failures(60, 15))
    run = trajectory("x", ["I looked it up 1", "I assume that it is a placeholder 2", "I looked it up 3"])
    told = scorer.score(run)[1].why
    assert "assumes or hedges (+" in told
    assert "not the second step" not in told
