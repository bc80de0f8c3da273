"""The watch on a calibration as pure state: its false alarms, what it notices, and what would break it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.detector import fit_budget
from grampus_uq.stats.calibration_watch import (
    REFERENCE_RUNS,
    CalibrationWatchState,
    Variant,
    WatchStatus,
    detector_id,
    start_watching,
    take_run,
    watch_statuses,
)
from grampus_uq.stats.eprocess import Detector
from grampus_uq.stats.eprocess_scorers import FeatureScorer
from grampus_uq.stats.eprocess_thresholds import budget_threshold, conformal_threshold, exceeds, tie_uniform
from grampus_uq.stats.stored_values import from_json, to_json
from tests.binomial import binomial_ceiling
from tests.detector_rows import detector_runs
from tests.sampling import sampled


def scorer() -> FeatureScorer:
    data = detector_runs(run_ids=["a", "b"], steps=[1, 1], scores=[0.5, 0.6], streams=("fused",))
    found = fit_budget(data, rng=np.random.default_rng(0), share=0.1).detector.scorer
    assert isinstance(found, FeatureScorer)
    return found


def detector(rng: np.random.Generator, n: int = 150, *, budget: bool = False, alpha: float = 0.1) -> Detector:
    pairs = tuple(sorted(zip(rng.normal(size=n).tolist(), rng.uniform(0.01, 0.99, n).tolist(), strict=True)))
    peaks, ties = [p for p, _ in pairs], [t for _, t in pairs]
    threshold = budget_threshold(peaks, ties, alpha) if budget else conformal_threshold(peaks, ties, alpha)
    return Detector(
        streams=("fused",),
        scorer=scorer(),
        thresholds=(threshold,),
        deployed=0,
        salt=rng.bytes(8).hex(),
        null_peaks=pairs,
    )


def of(state: CalibrationWatchState, variant: Variant) -> WatchStatus:
    return next(status for status in watch_statuses(state) if status.variant is variant)


def history(
    rng: np.random.Generator, *, runs: int, shift_at: int | None = None, shift: float = 0.0, acting: bool = True
) -> bool:
    """One deployment: is any variant alarmed at the end? Successes and failures as they come, labels at random."""
    state = start_watching(detector(rng), level=0.1, acting=acting)
    for i in range(runs):
        success = rng.random() < 0.7
        moved = shift if shift_at is not None and i >= shift_at else 0.0
        peak = float(rng.normal(moved if success else 1.5 + moved))
        name = f"r{i}"
        state = take_run(state, Variant.ALL_RUNS, name, peak)
        if success and rng.random() < 0.6:
            state = take_run(state, Variant.SUCCESSES, name, peak)
    return any(status.alarmed for status in watch_statuses(state))


@pytest.mark.parametrize("acting", [True, False])
@sampled("histories", [10], full=[100])
def test_without_a_change_it_alarms_no_more_often_than_its_level(acting: bool, histories: int) -> None:
    rng = np.random.default_rng(3)
    alarms = sum(history(rng, runs=250, acting=acting) for _ in range(histories))
    assert alarms <= binomial_ceiling(histories, 0.1, 0.999)


@sampled("n", [8], full=[20])
def test_a_change_is_seen(n: int) -> None:
    rng = np.random.default_rng(4)
    assert sum(history(rng, runs=400, shift_at=100, shift=1.0) for _ in range(n)) >= 3 * n / 4


@pytest.mark.slow
@sampled("n", [10], full=[40])
def test_watching_only_what_was_let_through_against_all_recorded_runs_breaks_the_level(n: int) -> None:
    """The sabotage: an interruption budget's bag holds runs that would alarm, the watched runs do not."""
    rng = np.random.default_rng(5)

    def alarmed(**how: bool) -> bool:
        watched = detector(rng, budget=True, alpha=0.3)
        state = start_watching(watched, level=0.1)
        for i in range(600):
            peak = float(rng.normal())
            if how["filtered"] and exceeds(watched.threshold, peak, tie_uniform(f"r{i}", watched.salt)):
                continue
            state = take_run(state, Variant.ALL_RUNS, f"r{i}", peak)
        return any(status.alarmed for status in watch_statuses(state))

    assert sum(alarmed(filtered=False) for _ in range(n)) <= binomial_ceiling(n, 0.1, 0.999)
    assert sum(alarmed(filtered=True) for _ in range(10)) >= 8


@pytest.mark.parametrize(
    ("reported", "least"),
    [("as drawn", 0), ("a batch, as its runs finish", 8), ("the strangest labelled first", 8), ("undecided alone", 6)],
)
def test_runs_reported_by_how_they_went_break_the_level_though_each_of_them_counts(reported: str, least: int) -> None:
    """Nothing changes. Long runs have the higher peaks; people decide on the half that another rule finds worst."""
    alarms = 0
    for number in range(8):
        rng = np.random.default_rng((6, number))
        lengths = rng.integers(1, 12, 950)
        peaks = np.array([rng.normal(size=length).max() for length in lengths])
        pairs = tuple(sorted(zip(peaks[:150].tolist(), rng.uniform(0.01, 0.99, 150).tolist(), strict=True)))
        threshold = conformal_threshold([p for p, _ in pairs], [t for _, t in pairs], 0.1)
        watched = replace(detector(rng), thresholds=(threshold,), null_peaks=pairs)
        live = np.arange(150, 950)
        if reported == "a batch, as its runs finish":
            live = live[np.argsort(lengths[live], kind="stable")]
        elif reported == "the strangest labelled first":
            live = live[np.argsort(-peaks[live])]
        elif reported == "undecided alone":
            other = peaks[live] + 0.5 * rng.normal(size=len(live))
            live = live[other < np.median(other)]
        state = start_watching(watched, level=0.1)
        for i in live[:400]:
            state = take_run(state, Variant.SUCCESSES, f"r{i}", float(peaks[i]))
        alarms += of(state, Variant.SUCCESSES).alarmed
    assert alarms >= least if least else alarms <= binomial_ceiling(8, 0.05, 0.999)


def test_both_sides_leave_alarmed_runs_out_where_the_alarm_acts() -> None:
    watched = detector(np.random.default_rng(0))
    acting, advising = start_watching(watched), start_watching(watched, acting=False)
    high = watched.threshold.log_value + 1.0
    assert take_run(acting, Variant.SUCCESSES, "r", high) is acting
    assert of(take_run(advising, Variant.SUCCESSES, "r", high), Variant.SUCCESSES).n_runs == 1


def test_calibration_runs_that_would_alarm_are_in_the_bag_only_where_the_alarm_never_acts() -> None:
    watched = detector(np.random.default_rng(0))
    kept = sum(not exceeds(watched.threshold, peak, tie) for peak, tie in watched.null_peaks)

    def held(*, acting: bool) -> int:
        martingale = start_watching(watched, acting=acting).bets[Variant.SUCCESSES].martingale
        assert martingale is not None
        return sum(martingale.counts) + len(martingale.edges)

    assert (held(acting=True), held(acting=False)) == (kept, len(watched.null_peaks))
    assert kept < len(watched.null_peaks)


def test_beyond_the_threshold_evidence_is_cut_in_the_variant_of_all_runs() -> None:
    watched = detector(np.random.default_rng(0), budget=True)
    state = start_watching(watched)
    high = watched.threshold.log_value
    assert take_run(state, Variant.ALL_RUNS, "r", high + 1.0) == take_run(state, Variant.ALL_RUNS, "r", math.inf)


def test_the_calibration_runs_fill_the_bag_that_they_belong_to() -> None:
    rng = np.random.default_rng(0)
    labelled, unlabelled = start_watching(detector(rng)), start_watching(detector(rng, budget=True))
    assert [s.gathering for s in watch_statuses(labelled)] == [0, REFERENCE_RUNS]
    assert [s.gathering for s in watch_statuses(unlabelled)] == [REFERENCE_RUNS, 0]
    few = start_watching(detector(rng, n=20))
    missing = of(few, Variant.SUCCESSES).gathering
    assert REFERENCE_RUNS - 20 <= missing < REFERENCE_RUNS
    for i in range(missing):
        assert of(few, Variant.SUCCESSES).gathering == missing - i
        few = take_run(few, Variant.SUCCESSES, f"r{i}", -1.0)
    assert (of(few, Variant.SUCCESSES).gathering, of(few, Variant.SUCCESSES).n_runs) == (0, 0)


def test_the_state_is_bounded_goes_through_json_unchanged_and_continues_exactly() -> None:
    rng = np.random.default_rng(0)
    state = start_watching(detector(rng))
    for i in range(500):
        peak = -math.inf if i % 50 == 0 else float(rng.normal())
        state = take_run(state, Variant.ALL_RUNS, f"r{i}", peak)
        if i % 97 == 0:
            stored = json.loads(json.dumps(to_json(state), allow_nan=False))
            assert from_json(CalibrationWatchState, stored, "watch") == state
            state = from_json(CalibrationWatchState, stored, "watch")
    assert len(json.dumps(to_json(state))) < 8_000


def test_the_sentence_says_how_it_stands() -> None:
    state = start_watching(detector(np.random.default_rng(0)))
    assert "No evidence" in of(state, Variant.SUCCESSES).sentence
    assert f"{REFERENCE_RUNS} more" in of(state, Variant.ALL_RUNS).sentence


def test_equal_detectors_have_one_identity_and_others_another() -> None:
    a, b = detector(np.random.default_rng(0)), detector(np.random.default_rng(1))
    assert detector_id(a) == detector_id(detector(np.random.default_rng(0))) != detector_id(b)


def test_nonsense_is_refused() -> None:
    state = start_watching(detector(np.random.default_rng(0)))
    with pytest.raises(ConfigurationError):
        take_run(state, Variant.SUCCESSES, "r", math.nan)
    stored = to_json(state)
    for broken in (
        {**stored, "more": 1},
        {**stored, "acting": "yes"},
        {**stored, "level": 2.0},
        {**stored, "bets": {}},
        {**stored, "bets": {**stored["bets"], "all_runs": {"gathered": [math.nan], "martingale": None}}},
    ):
        with pytest.raises(ConfigurationError):
            from_json(CalibrationWatchState, broken, "watch")
