"""The detector as a pure function: eq. 3, live equals batch, bounded state, latching, refusals."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.eprocess import (
    Detector,
    DetectorState,
    alarm_steps,
    alarms,
    detector_from_json,
    detector_to_json,
    log_peaks,
    score_rows,
    start,
    update,
)
from grampus_uq.stats.eprocess_scorers import FeatureScorer, LinearScore, PaperScorer, running_minimum
from grampus_uq.stats.eprocess_thresholds import exceeds, pac_threshold, tie_uniform, ville_threshold
from grampus_uq.stats.step_blocks import in_caller_order, step_blocks
from grampus_uq.stats.tree_ensemble import TreeEnsemble
from tests.sampling import examples

STATES = TypeAdapter(DetectorState)  # as a part of a session's state
UNIT = st.sampled_from([0.0, 0.05, 0.3, 0.5, 0.95, 1.0]) | st.floats(0, 1)
FOREST = TreeEnsemble(
    baseline=0.1,
    roots=(0, 3),
    feature=(2, -1, -1, 13, 4, -1, -1, -1),
    threshold=(-1.0, 0.0, 0.0, 2.0, 0.5, 0.0, 0.0, 0.0),
    left=(1, 0, 0, 4, 5, 0, 0, 0),
    right=(2, 0, 0, 7, 6, 0, 0, 0),
    value=(0.0, -0.7, 0.9, 0.0, 0.0, -0.3, 0.4, 0.05),
)


def _linear(seed: int, steps: int, columns: tuple[int, ...]) -> LinearScore:
    rng = np.random.default_rng(seed)
    return LinearScore(
        columns=columns,
        intercepts=tuple(rng.normal(size=steps).tolist()),
        weights=tuple(tuple(row) for row in rng.normal(size=(steps, len(columns))).tolist()),
    )


def _scorer(kind: str) -> FeatureScorer | PaperScorer:
    """One of each kind of statistic that a detector can hold."""
    match kind:
        case "per step":
            linear = _linear(0, 4, (0, 1, 2, 4, 5))
            return FeatureScorer(name=kind, clips=(1e-3,), neutral=(0.4,), longest=4, linear=linear)
        case "trees":
            return FeatureScorer(name=kind, clips=(1e-3,), neutral=(0.4,), longest=3, linear=None, trees=FOREST)
        case "both":
            linear = _linear(1, 2, (3, 13, 14))
            return FeatureScorer(
                name=kind,
                clips=(None,),
                neutral=(0.4,),
                longest=5,
                linear=linear,
                trees=FOREST,
                tree_share=0.5,
                prior_log_odds=0.3,
                sees_last=True,
            )
        case "minimum":
            return running_minimum(bounded=(True,), neutral=(0.5,), prior_log_odds=-0.2)
        case "paper":
            weights = ((1.3,), (0.2, 1.1), (), (0.1, -0.4, 0.3, 0.9))
            return PaperScorer(intercepts=(0.1, -0.2, None, 0.4), weights=weights, prior_log_odds=0.7)
    raise AssertionError(kind)


KINDS = ("per step", "trees", "both", "minimum", "paper")


def _detector(kind: str) -> Detector:
    peaks, ties = np.linspace(-2, 2, 40), np.linspace(0.01, 0.99, 40)
    return Detector(
        streams=("score",),
        scorer=_scorer(kind),
        thresholds=(pac_threshold(peaks, ties, 0.1, 0.1), ville_threshold(0.1)),
        deployed=0,
        salt="a",
        null_peaks=tuple(zip(peaks.tolist(), ties.tolist(), strict=True)),
    )


def _unbounded() -> Detector:
    scorer = running_minimum(bounded=(False,), neutral=(0.0,))
    return Detector(streams=("s",), scorer=scorer, thresholds=(ville_threshold(0.1),), deployed=0, salt="")


def _live(detector: Detector, run: str, scores: list[Any]) -> tuple[list[float | None], Any]:
    state, seen = start(detector, run), []
    for score in scores:
        state, log_m = update(detector, state, score)
        seen.append(log_m)
    return seen, state


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40))
@given(runs=st.lists(st.lists(UNIT | st.none(), min_size=1, max_size=9), min_size=1, max_size=6))
def test_streaming_equals_batch_to_the_last_bit(kind: str, runs: list[list[float | None]]) -> None:
    detector = _detector(kind)
    flat = np.array([np.nan if x is None else x for run in runs for x in run])
    blocks = step_blocks(flat, [len(run) for run in runs])
    log_m = score_rows(detector, blocks)
    live = [_live(detector, str(i), run) for i, run in enumerate(runs)]
    batch = [None if math.isnan(x) else x for x in in_caller_order(blocks, log_m).tolist()]
    assert [x for seen, _ in live for x in seen] == batch
    peaks = [-math.inf if state.log_peak is None else state.log_peak for _, state in live]
    assert log_peaks(detector, blocks).tolist() == peaks
    ties = np.array([state.tie for _, state in live])
    for threshold in detector.thresholds:
        first = alarm_steps(blocks, log_m, threshold, ties)
        assert (first > 0).tolist() == [alarms(state, threshold) for _, state in live]


@given(
    runs=st.lists(
        st.lists(st.tuples(UNIT | st.none(), st.floats(-5, 5) | st.none()), min_size=1, max_size=7),
        min_size=1,
        max_size=4,
    )
)
def test_streaming_equals_batch_with_two_streams_of_different_kind(
    runs: list[list[tuple[float | None, float | None]]],
) -> None:
    scorer = FeatureScorer(
        name="two",
        clips=(1e-3, None),
        neutral=(0.2, -1.0),
        longest=6,
        linear=_linear(2, 6, (0, 2, 15, 18, 26)),
        trees=FOREST,
    )
    detector = Detector(streams=("a", "b"), scorer=scorer, thresholds=(ville_threshold(0.1),), deployed=0, salt="")
    flat = np.array([[np.nan if x is None else x for x in row] for run in runs for row in run], dtype=float)
    blocks = step_blocks(flat, [len(run) for run in runs])
    batch = in_caller_order(blocks, score_rows(detector, blocks)).tolist()
    live = [x for i, run in enumerate(runs) for x in _live(detector, str(i), run)[0]]
    assert live == [None if math.isnan(x) else x for x in batch]


@pytest.mark.parametrize("kind", KINDS)
@given(run=st.lists(UNIT | st.none(), min_size=1, max_size=12), cut=st.integers(0, 12))
@settings(max_examples=examples(20))
def test_a_run_resumed_from_stored_state_goes_on_exactly_as_if_uninterrupted(
    kind: str, run: list[float | None], cut: int
) -> None:
    detector = detector_from_json(json.loads(json.dumps(detector_to_json(_detector(kind)), allow_nan=False)))
    assert detector == _detector(kind)
    whole, end = _live(detector, "r", run)
    state, seen = start(detector, "r"), []
    for place, score in enumerate(run, start=1):
        if place == cut:
            state = STATES.validate_json(STATES.dump_json(state), strict=True)
        state, log_m = update(detector, state, score)
        seen.append(log_m)
    assert (seen, state) == (whole, end)


@pytest.mark.parametrize("kind", ["per step", "trees", "both", "minimum"])
def test_the_state_of_one_stream_stays_below_a_kilobyte_however_long_the_run(kind: str) -> None:
    detector = _detector(kind)
    _, state = _live(detector, "r", np.random.default_rng(0).random(3000).tolist())
    assert len(STATES.dump_json(state)) <= 1024


def test_the_papers_state_grows_with_the_run_only_up_to_its_longest_model() -> None:
    _, state = _live(_detector("paper"), "r", [0.123456789] * 500)
    assert len(state.memory[0]) == 1 + 4  # log M and the four scores that a model looks at


def test_a_missing_step_keeps_the_evidence_and_only_counts() -> None:
    detector = _detector("per step")
    seen, state = _live(detector, "r", [None, 0.4, None, float("nan")])
    assert seen[0] is None
    assert seen[1] == seen[2] == seen[3]
    assert state.step == 4


def test_beyond_the_longest_fitted_step_the_last_model_is_used() -> None:
    one = FeatureScorer(name="", clips=(None,), neutral=(0.0,), longest=2, linear=_linear(0, 2, (0, 13)))
    blocks = step_blocks(np.full(6, 0.5), [6])
    assert len(set(one.batch(blocks)[1:].tolist())) == 1


def test_an_alarm_latches_after_the_evidence_has_fallen_again() -> None:
    detector = _detector("minimum")
    linear = LinearScore(columns=(0,), intercepts=(0.0,), weights=((1.0,),))
    newest = FeatureScorer(name="", clips=(1e-3,), neutral=(0.0,), longest=1, linear=linear)
    jumpy = Detector(streams=("s",), scorer=newest, thresholds=detector.thresholds, deployed=0, salt="")
    _, low = _live(jumpy, "r", [0.5, 0.01])
    _, recovered = _live(jumpy, "r", [0.5, 0.01, 0.99, 0.99])
    assert alarms(low, jumpy.threshold)
    assert alarms(recovered, jumpy.threshold)
    assert (recovered.log_m or 0.0) < 0.0


def test_a_run_without_any_score_never_alarms() -> None:
    detector = _detector("minimum")
    _, state = _live(detector, "r", [None] * 5)
    everyone = pac_threshold([-math.inf] * 50, [0.0] * 50, 0.1, 0.1)
    assert not alarms(state, everyone)
    assert not exceeds(everyone, -math.inf, 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: update(d, start(d, "r"), 1.2), "score.*in \\[0, 1\\]"),
        (lambda d: update(d, start(d, "r"), -0.1), "score"),
        (lambda d: update(d, start(d, "r"), math.inf), "score"),
        (lambda d: update(d, start(d, "r"), [0.5, 0.5]), "streams"),
        (lambda d: score_rows(d, step_blocks([1.5], [1])), "in \\[0, 1\\]"),
        (lambda d: score_rows(d, step_blocks(np.zeros((1, 2)), [1])), "streams"),
        (lambda d: score_rows(_unbounded(), step_blocks([1e200], [1])), "within"),
        (lambda d: update(_unbounded(), start(d, "r"), -1e200), "within"),
        (lambda d: ville_threshold(5), "alpha.*0.05"),
    ],
)
def test_wrong_input_names_the_parameter_and_the_rule(call: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        call(_detector("per step"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 2),
        (("deployed",), 7),
        (("streams",), ["a", "b"]),
        (("streams",), "score"),
        (("null_peaks",), [[1.0, 0.5], [0.0, 0.5]]),
        (("null_peaks",), [[1.0]]),
        (("null_peaks",), [[math.nan, 0.5]]),
        (("null_peaks",), [[-math.inf, 0.5]]),
        (("thresholds", 0, "mode"), "certain"),
        (("thresholds", 0, "delta"), None),
        (("thresholds", 0, "log_value"), math.nan),
        (("thresholds", 0, "tie"), 2.0),
        (("scorer", "kind"), "pickle"),
        (("scorer", "clips"), [0.7]),
        (("scorer", "longest"), 0),
        (("scorer", "sees_last"), 1),
        (("scorer", "linear"), None),
        (("scorer", "linear", "columns"), [0, 1, 2, 4, 99]),
        (("scorer", "linear", "weights"), [[1.0]]),
        (("scorer", "neutral"), [math.inf]),
        (("scorer", "unknown"), 1),
    ],
)
def test_a_stored_detector_that_breaks_a_rule_is_refused(path: tuple[Any, ...], value: Any) -> None:
    data: Any = detector_to_json(_detector("per step"))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ConfigurationError):
        detector_from_json(data)


def test_the_draw_of_a_run_depends_on_its_id_and_the_salt_and_is_uniform() -> None:
    detector = _detector("minimum")
    assert start(detector, "r").tie == start(detector, "r").tie == tie_uniform("r", "a") != tie_uniform("r", "b")
    draws = np.sort([tie_uniform(f"run-{i}", "salt") for i in range(4000)])
    gap = np.abs(draws - (np.arange(4000) + 0.5) / 4000).max()
    assert gap < 1.95 / math.sqrt(4000)  # Kolmogorov: exceeded with probability .001


def test_a_detector_stored_without_its_gaps_is_read_and_written_as_it_was_and_taken_to_have_had_none() -> None:
    old = detector_to_json(_detector("per step"))
    assert "without_gaps" not in old
    read = detector_from_json(json.loads(json.dumps(old)))
    assert read.always_there == read.streams == ("score",)
    assert detector_to_json(read) == old


def test_gaps_are_of_the_detectors_own_streams() -> None:
    with pytest.raises(ConfigurationError, match="without_gaps"):
        detector_from_json({**detector_to_json(_detector("per step")), "without_gaps": ["another"]})


@pytest.mark.parametrize("number", [1e308, -1e101, math.inf, math.nan])
def test_numbers_whose_sums_overflow_make_no_scorer(number: float) -> None:
    """log M would be NaN, above no threshold: the alarm of such a profile would never ring."""
    terms: dict[str, Any] = {"columns": (0, 1), "intercepts": (0.0,), "weights": ((1.0, -1.0),)}
    linear = LinearScore(**terms)
    scorer: dict[str, Any] = {"name": "x", "clips": (None,), "neutral": (0.4,), "longest": 4, "linear": linear}
    leaf: dict[str, Any] = {"roots": (0,), "feature": (-1,), "threshold": (0.0,), "left": (0,), "right": (0,)}
    for build in (
        lambda: LinearScore(**{**terms, "weights": ((number, 1.0),)}),
        lambda: LinearScore(**{**terms, "intercepts": (number,)}),
        lambda: FeatureScorer(**{**scorer, "neutral": (number,)}),
        lambda: FeatureScorer(**{**scorer, "tree_share": number}),
        lambda: TreeEnsemble(**leaf, baseline=number, value=(0.0,)),
        lambda: TreeEnsemble(**leaf, baseline=0.0, value=(number,)),
        lambda: PaperScorer(intercepts=(0.0,), weights=((number,),), prior_log_odds=0.0),
    ):
        with pytest.raises(ConfigurationError, match=r"within \+-1e\+100"):
            build()
