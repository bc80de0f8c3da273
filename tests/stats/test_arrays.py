"""What is no number, and what is neither right nor wrong, is refused by its argument's name and never counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from grampus_uq import ConfigurationError
from grampus_uq.learn.fit.fit_calibration import fit_success
from grampus_uq.stats.bootstrap import mean_rows
from grampus_uq.stats.conformal import conformal_threshold
from grampus_uq.stats.eprocess_thresholds import pac_threshold, weighted_threshold
from grampus_uq.stats.halves import split_halves
from grampus_uq.stats.ranking import auprc, aurc, auroc
from grampus_uq.stats.reliability import decompose, quantile_bins, trajectory_brier, trajectory_ece
from grampus_uq.stats.scoring import BRIER, expected_score
from grampus_uq.stats.selective import (
    budget_of_wrong_releases,
    certified_threshold,
    estimated_threshold,
    share_threshold,
)
from grampus_uq.stats.step_blocks import step_blocks
from grampus_uq.stats.trajectory_scores import ForecastTraces, tps

P, Y = [0.1, 0.9], [0, 1]
TRACES = ForecastTraces.of([[0.1], [0.9]])
CALLS: list[tuple[Callable[..., Any], dict[str, Any], list[str]]] = [
    (auroc, {"scores": P, "positive": Y}, ["scores", "positive"]),
    (auprc, {"scores": P, "positive": Y}, ["scores", "positive"]),
    (aurc, {"confidence": P, "correct": Y}, ["confidence", "correct"]),
    (trajectory_brier, {"forecasts": P, "outcomes": Y}, ["forecasts", "outcomes"]),
    (trajectory_ece, {"forecasts": P, "outcomes": Y}, ["forecasts", "outcomes"]),
    (decompose, {"forecasts": P, "outcomes": Y, "score": BRIER, "weights": P}, ["forecasts", "outcomes", "weights"]),
    (expected_score, {"score": BRIER, "p": P, "q": Y}, ["p", "q"]),
    (ForecastTraces, {"forecasts": P, "lengths": [1, 1]}, ["forecasts", "lengths"]),
    (tps, {"traces": TRACES, "outcomes": Y}, ["outcomes"]),
    (
        certified_threshold,
        {"chances": P, "right": Y, "target": 0.9, "delta": 0.1, "candidates": [0.5]},
        ["chances", "right"],
    ),
    (budget_of_wrong_releases, {"chances": P, "right": Y, "budget": 0.1, "delta": None, "mass": P}, ["mass"]),
    (estimated_threshold, {"chances": P, "right": Y, "target": 0.9, "weights": P}, ["right", "weights"]),
    (share_threshold, {"chances": P, "share": 0.5}, ["chances"]),
    (pac_threshold, {"log_peaks": P, "ties": P, "alpha": 0.1, "delta": 0.1}, ["log_peaks", "ties"]),
    (weighted_threshold, {"log_peaks": P, "ties": P, "weights": [1, 1], "alpha": 0.1, "most": 2.0}, ["weights"]),
    (conformal_threshold, {"conformity": P, "level": 0.5, "draws": P}, ["conformity", "draws"]),
    (split_halves, {"outcomes": Y, "ids": ["a", "b"]}, ["outcomes"]),
    (fit_success, {"streams": {"fused": TRACES}, "outcomes": Y, "ids": ["a", "b"]}, ["outcomes"]),
    (mean_rows, {"values": P}, ["values"]),
    (step_blocks, {"values": P, "lengths": [1, 1]}, ["values"]),
]
NO_NUMBERS = ["high", ["high", "low"], [{}, 1.0], [[0.1, 0.2], [0.3]], [10**400, 0.5], [0.1, object()], (x for x in P)]


@pytest.mark.parametrize(("call", "given", "name"), [(f, given, name) for f, given, names in CALLS for name in names])
def test_what_is_no_number_is_refused_by_the_name_of_its_argument(call: Any, given: Any, name: str) -> None:
    for value in NO_NUMBERS:
        owner = f"({call.__name__}|selective release|reliability_bins|quantile_bins)"
        with pytest.raises(ConfigurationError, match=f"'{name}' parameter of `{owner}`"):
            call(**{**given, name: value})


@pytest.mark.parametrize("value", [[np.nan, 1.0], [0.4, 1.0], [2, 1], ["False", "True"], [None, True]])
def test_an_unknown_answer_counts_neither_as_right_nor_as_wrong(value: Any) -> None:
    for call in (
        lambda: certified_threshold(P, value, candidates=[0.5], target=0.9, delta=0.1),
        lambda: budget_of_wrong_releases(P, value, budget=0.1, delta=None),
        lambda: estimated_threshold(P, value, target=0.9),
    ):
        with pytest.raises(ConfigurationError, match="'right' parameter"):
            call()


@pytest.mark.parametrize("value", [[np.nan, 1.0], [-1.0, 1.0], [0.0, 1.0], [np.inf, 1.0]])
def test_a_weight_that_no_case_can_have_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="'weights' parameter"):
        estimated_threshold(P, Y, target=0.9, weights=value)


def test_more_bins_than_forecasts_are_one_for_each_forecast_and_a_number_in_text_is_none() -> None:
    assert quantile_bins([0.1, 0.9, 0.9, 0.4], bins=10**12).tolist() == [0, 2, 2, 1]
    for bins in ("10", 2.5, [3], None, np.nan):
        with pytest.raises(ConfigurationError, match="'bins' parameter"):
            quantile_bins(P, bins)  # type: ignore[arg-type]
