"""The detector: evidence, step by step, that a run will fail, and an alarm with a stated error rate.

    M_t = p0(S_1..S_t) / p1(S_1..S_t),   null hypothesis: the run will succeed        (e-valuator, eq. 2)

The threshold `1/alpha` needs the true ratio. The PAC and the conformal threshold hold for any statistic, learned or
not: they are order statistics of its running maximum over held-out successful runs (`eprocess_thresholds`). Everything
is in log space.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from pydantic import Field

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import FloatArray, IntArray
from grampus_uq.stats.eprocess_scorers import FeatureScorer, Memory, PaperScorer
from grampus_uq.stats.eprocess_thresholds import Threshold, exceeds, exceeds_many, tie_uniform
from grampus_uq.stats.prefix_features import LARGEST
from grampus_uq.stats.step_blocks import StepBlocks, first_step_where, run_maximum
from grampus_uq.stats.stored_values import STORED, Extended, from_json, to_json

FORMAT: Final = 1
"""Raised whenever the meaning of a stored detector changes."""


class DetectorState(NamedTuple):
    """The evidence of one run: bounded, immutable, plain JSON values.

    A named tuple is built at every step, at a fifth of a dataclass's cost.

    Attributes:
        step: steps seen, with or without a score.
        log_m: log M_t of the newest step; None until the first score.
        log_peak: its maximum so far, what the thresholds are compared with; None until the first score.
        tie: the run's draw in (0, 1).
        memory: the scorer's own numbers.
    """

    step: int
    log_m: float | None
    log_peak: float | None
    tie: float
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """A fitted statistic with its guaranteed thresholds, shared by all runs.

    Attributes:
        streams: names of the score streams, in the order in which `update` takes them; higher is better.
        scorer: how scores become log M_t.
        thresholds: those fitted, each with its guarantee.
        deployed: index of the one that alarms.
        salt: separates the tie-breaking draws of different detectors.
        null_peaks: (log peak, draw) of the successful runs held out for the thresholds, ascending; it gives further
            levels, and starts the test of exchangeability.
        without_gaps: streams present at every step of the fitting runs; None where this was not recorded.
        at_calls: its steps are the irreversible calls of a run, each with the scores of the turn that proposed it;
            False: all steps of the model.
        bounded: (derived) True for the streams whose scores have to be probabilities.
    """

    streams: tuple[str, ...]
    scorer: Annotated[FeatureScorer | PaperScorer, Field(discriminator="kind")]
    thresholds: tuple[Threshold, ...]
    deployed: int
    salt: str
    null_peaks: tuple[tuple[Extended, float], ...] = ()
    without_gaps: tuple[str, ...] | None = None
    at_calls: bool = False
    bounded: tuple[bool, ...] = field(init=False, repr=False, compare=False)

    __pydantic_config__ = STORED

    def __post_init__(self) -> None:
        clips = self.scorer.clips if isinstance(self.scorer, FeatureScorer) else (self.scorer.limit,)
        object.__setattr__(self, "bounded", tuple(clip is not None for clip in clips))
        expected = len(clips)
        if len(self.streams) != expected or len(set(self.streams)) != expected:
            raise ConfigurationError.of("streams", "Detector", f"{expected} different names", self.streams)
        if not 0 <= self.deployed < len(self.thresholds):
            raise ConfigurationError.of("deployed", "Detector", f"in 0..{len(self.thresholds) - 1}", self.deployed)
        if any(math.isnan(peak) or not 0.0 <= tie <= 1.0 for peak, tie in self.null_peaks):
            raise ConfigurationError.of("null_peaks", "Detector", "pairs (log peak, draw in [0, 1])", self.null_peaks)
        if list(self.null_peaks) != sorted(self.null_peaks):
            raise ConfigurationError.of("null_peaks", "Detector", "in ascending order", self.null_peaks)
        if not set(self.always_there) <= set(self.streams):
            raise ConfigurationError.of("without_gaps", "Detector", f"some of {self.streams}", self.without_gaps)

    @property
    def always_there(self) -> tuple[str, ...]:
        """The streams whose absence was never calibrated: those without gaps, or all where that was not recorded."""
        return self.streams if self.without_gaps is None else self.without_gaps

    @property
    def threshold(self) -> Threshold:
        """The deployed threshold."""
        return self.thresholds[self.deployed]


def start(detector: Detector, session_id: str) -> DetectorState:
    """State of a run before its first step; the same session id gives the same draw everywhere."""
    return DetectorState(0, None, None, tie_uniform(session_id, detector.salt), detector.scorer.start())


def update(
    detector: Detector, state: DetectorState, score: float | Sequence[float | None] | None
) -> tuple[DetectorState, float | None]:
    """Take the score of one step, in constant time and memory.

    Returns the new state, and log M_t (higher is more evidence of failure; None until the first score).

    `state`: what `start` or the previous `update` returned. `score`: the stream's score, or one per stream; None (or
    NaN) is missing and leaves log M_t where it was. Raises ConfigurationError for a score that is infinite, huge, or
    outside [0, 1] where probabilities are due, and for a wrong number of them.
    """
    values: list[float | None]
    if score is None or type(score) is float:
        values = [score]
    elif isinstance(score, (Sequence, np.ndarray)):
        values = [None if x is None else float(x) for x in score]
    else:
        values = [float(score)]
    if len(values) != len(detector.streams):
        raise ConfigurationError.of("score", "update", f"one for each of the streams {detector.streams}", score)
    seen = False
    for place, value in enumerate(values):
        if value is None:
            continue
        if value != value:  # NaN
            values[place] = None
        elif not (0.0 <= value <= 1.0 if detector.bounded[place] else -LARGEST <= value <= LARGEST):
            rule = "in [0, 1]" if detector.bounded[place] else f"within +-{LARGEST:g}"
            raise ConfigurationError.of("score", "update", f"{rule}, None or NaN", value)
        else:
            seen = True
    step, log_m, log_peak, tie, memory = state
    if seen:
        memory, log_m = detector.scorer.advance(memory, values, step + 1)
        if log_peak is None or log_m > log_peak:
            log_peak = log_m
    return DetectorState(step + 1, log_m, log_peak, tie, memory), log_m


def alarms(state: DetectorState, threshold: Threshold) -> bool:
    """Return True if the run's evidence has passed the threshold at this or an earlier step."""
    return state.log_peak is not None and exceeds(threshold, state.log_peak, state.tie)


def score_rows(detector: Detector, blocks: StepBlocks) -> FloatArray:
    """log M_t of every row of recorded runs, in block order; bit for bit what `update` returns (NaN for its None)."""
    if blocks.values.shape[1] != len(detector.streams):
        raise ConfigurationError.of("blocks", "score_rows", f"of streams {detector.streams}", blocks.values.shape)
    bounded = blocks.values[:, list(detector.bounded)]
    if ((bounded < 0.0) | (bounded > 1.0)).any():
        raise ConfigurationError.of("blocks", "score_rows", "in [0, 1] or NaN", bounded)
    if (np.abs(blocks.values) > LARGEST).any():
        raise ConfigurationError.of("blocks", "score_rows", f"within +-{LARGEST:g}", blocks.values)
    return detector.scorer.batch(blocks)


def log_peaks(detector: Detector, blocks: StepBlocks) -> FloatArray:
    """Largest log M_t of each run, in the caller's order of runs; -inf for a run without any score."""
    return run_maximum(blocks, score_rows(detector, blocks))


def alarm_steps(blocks: StepBlocks, log_m: FloatArray, threshold: Threshold, ties: FloatArray) -> IntArray:
    """Step at which each run first alarms, 0 where it never does; runs and `ties` in the caller's order.

    `log_m`: one per row, in block order, as `score_rows` gives it.
    """
    of_row = np.concatenate([ties[blocks.order[: rows.stop - rows.start]] for _, rows in blocks] or [ties[:0]])
    return first_step_where(blocks, exceeds_many(threshold, log_m, of_row))


def detector_to_json(detector: Detector) -> dict[str, Any]:
    """Return the detector as a strictly JSON-able mapping; `detector_from_json` gives back an equal one."""
    written = {"format": FORMAT, **to_json(detector)}
    if detector.without_gaps is None:  # unknown to older versions
        del written["without_gaps"]
    if not detector.at_calls:
        del written["at_calls"]
    return written


def detector_from_json(data: Any) -> Detector:
    """Read what `detector_to_json` wrote, with every check of the constructors.

    Raises `ConfigurationError` for another format, a key missing or unknown, a value of the wrong kind, a broken rule.
    """
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        way_out = "a newer version wrote it? upgrade; otherwise fit again"
        raise ConfigurationError.of("format", "Detector", f"{FORMAT}", data, way_out)
    return from_json(Detector, {key: value for key, value in data.items() if key != "format"}, "detector")
