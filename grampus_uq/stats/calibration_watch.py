"""Does a detector's calibration still hold? Finished runs are compared with the calibration runs.

Two variants of the conformal test martingale (`conformal_martingale`) run side by side and share one level:

- `successes`: untouched runs labelled as a success, against the successes held out for the threshold. It tests the
  guarantee itself, as late as the labels come.
- `all_runs`: every finished run, labelled or not. It needs no label, and also sees changes of failures alone or of
  their share.

An alarm of either says that this calibration no longer holds.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from pydantic import ConfigDict

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.conformal_martingale import MartingaleState, capped, martingale_start, martingale_update
from grampus_uq.stats.eprocess import Detector, detector_to_json
from grampus_uq.stats.eprocess_thresholds import Mode, Threshold, exceeds, tie_uniform
from grampus_uq.stats.stored_values import STORED, Extended

REFERENCE_RUNS = 60
"""Runs to compare with before a variant bets; where calibration left fewer, the first finished runs are added."""


class Variant(StrEnum):
    """The finished runs that are compared."""

    SUCCESSES = "successes"
    ALL_RUNS = "all_runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A finished run, as the watch records it.

    Attributes:
        run_id: its session id.
        log_peak: largest log M_t of the watched detector up to its first alarm; -inf for a run without readings.
        touched: True when a human or the monitor changed or stopped it: its outcome is then selected, and only the
            variant without labels takes it.
        success: its outcome; None while nobody knows.
        task: of which it is a trial: trials resemble each other, so the watch counts the first one reported, whatever
            became of it. None: a task of its own.
    """

    run_id: str
    log_peak: float
    touched: bool = False
    success: bool | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.log_peak):
            raise ConfigurationError.of("log_peak", "FinishedRun", "a number", self.log_peak)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchStatus:
    """The findings of one variant on one calibration.

    Attributes:
        detector: identity of the detector.
        variant: which runs are compared.
        log_martingale: natural log of the capital now; 0 at the start, it rises on evidence that runs have changed.
        log_peak: its maximum so far.
        log_threshold: natural log of 1/level; `alarmed` once `log_peak` has reached it.
        level: probability, at most, with which this variant ever alarms although nothing has changed.
        alarmed: True from the first alarm on; only a new calibration ends it.
        n_runs: runs compared so far.
        gathering: runs still needed before the first bet.
    """

    detector: str
    variant: Variant
    log_martingale: float
    log_peak: float
    log_threshold: float
    level: float
    alarmed: bool
    n_runs: int
    gathering: int

    @property
    def sentence(self) -> str:
        """The finding in words, with its error rate."""
        what = "labelled successes" if self.variant is Variant.SUCCESSES else "finished runs"
        if self.alarmed:
            return (
                f"This calibration no longer holds: after {self.n_runs} {what} the evidence reached "
                f"{math.exp(min(self.log_peak, 700.0)):.3g} to 1. Without a change that happens with probability at "
                f"most {self.level:g}, however often it is checked. Label new runs and fit again."
            )
        if self.gathering:
            return f"Not watching yet: {self.gathering} more {what} are needed to compare with."
        return f"No evidence of a change in {self.n_runs} {what}."

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values, with the sentence."""
        return {**asdict(self), "sentence": self.sentence}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bets:
    """One variant: the runs gathered to compare with, later the martingale that replaces them."""

    gathered: tuple[Extended, ...] = ()
    martingale: MartingaleState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationWatchState:
    """The stored state for one detector; bounded however many runs it has seen, JSON-able.

    Attributes:
        detector: identity of the detector (`detector_id`).
        salt: makes its draws its own.
        threshold: the detector's deployed threshold.
        acting: True when the alarm pauses runs: only runs without an alarm have an outcome of their own.
        level: allowed probability of a false alarm of all variants together, at any time.
        bets: one per variant.
    """

    detector: str
    salt: str
    threshold: Threshold
    acting: bool
    level: float
    bets: dict[Variant, _Bets]

    __pydantic_config__ = ConfigDict(**STORED, strict=True)

    def __post_init__(self) -> None:
        if set(self.bets) != set(Variant):
            raise ConfigurationError.of("bets", "CalibrationWatch", f"one for each of {list(Variant)}", list(self.bets))
        if not 0.0 < self.level < 1.0:
            raise ConfigurationError.of("level", "CalibrationWatch", "in (0, 1)", self.level)


def detector_id(detector: Detector) -> str:
    """Identity of a detector: 128 bits of the SHA-256 of its canonical JSON, in hex."""
    text = json.dumps(detector_to_json(detector), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def start_watching(detector: Detector, *, level: float = 0.01, acting: bool = True) -> CalibrationWatchState:
    """Begin to test a detector's calibration.

    Guarantee: while the calibration runs and the later ones are exchangeable, the probability that either variant ever
    alarms is at most `level` (Ville for each at level/2, and a union bound). What breaks it: runs left out for how they
    went, also because a human decided on them by another rule, or taken in an order that depends on it. With `acting`,
    runs that alarmed are therefore left out of the labelled variant on both sides; they count in the other one with
    their evidence cut at the threshold, where the intervention has not changed it yet.

    The detector's `null_peaks` are the first runs of the variant that they belong to. `level` is in (0, 1). `acting` is
    False only for an advisory profile, which pauses no run: the labelled variant then sees alarms too.
    """
    threshold = detector.threshold
    of_all = threshold.mode is Mode.BUDGET
    bags: dict[Variant, list[float]] = {Variant.SUCCESSES: [], Variant.ALL_RUNS: []}
    for peak, tie in detector.null_peaks:
        alarmed = exceeds(threshold, peak, tie)
        if of_all:
            bags[Variant.ALL_RUNS].append(capped(peak, threshold.log_value))
        elif not (acting and alarmed):
            bags[Variant.SUCCESSES].append(peak)
    state = CalibrationWatchState(
        detector=detector_id(detector),
        salt=detector.salt,
        threshold=threshold,
        acting=acting,
        level=level,
        bets={variant: _Bets(gathered=tuple(bag)) for variant, bag in bags.items()},
    )
    started = {variant: _begun(state, variant, bets) for variant, bets in state.bets.items()}
    return replace(state, bets=started)


def take_run(state: CalibrationWatchState, variant: Variant, run_id: str, log_peak: float) -> CalibrationWatchState:
    """Count one finished run in a variant that it belongs to; call it once for each run.

    `variant`: `ALL_RUNS` for any finished run; `SUCCESSES` for one that was labelled a success and left alone.
    `run_id`: its session id, which draws its number. `log_peak`: its largest log M_t up to its first alarm; -inf for a
    run without readings. The state is the same for a run that alarmed and that `acting` therefore leaves out.
    """
    alarmed = exceeds(state.threshold, log_peak, tie_uniform(run_id, state.salt))
    if variant is Variant.SUCCESSES and state.acting and alarmed:
        return state
    value = capped(log_peak, state.threshold.log_value) if variant is Variant.ALL_RUNS else log_peak
    bets = state.bets[variant]
    if bets.martingale is None:
        fresh = _begun(state, variant, _Bets(gathered=(*bets.gathered, value)))
    else:
        draw = tie_uniform(run_id, f"{state.salt}/{variant.value}")
        fresh = _Bets(martingale=martingale_update(bets.martingale, value, draw)[0])
    return replace(state, bets={**state.bets, variant: fresh})


def watch_statuses(state: CalibrationWatchState) -> tuple[WatchStatus, ...]:
    """The findings of each variant, in the order of `Variant`."""
    level = state.level / len(Variant)
    limit = -math.log(level)
    found = []
    for variant in Variant:
        bets = state.bets[variant]
        seen = bets.martingale
        peak = 0.0 if seen is None else seen.log_peak
        found.append(
            WatchStatus(
                detector=state.detector,
                variant=variant,
                log_martingale=0.0 if seen is None else seen.log_capital,
                log_peak=peak,
                log_threshold=limit,
                level=level,
                alarmed=peak >= limit,
                n_runs=0 if seen is None else seen.runs,
                gathering=REFERENCE_RUNS - len(bets.gathered) if seen is None else 0,
            )
        )
    return tuple(found)


def _begun(state: CalibrationWatchState, variant: Variant, bets: _Bets) -> _Bets:
    """Start betting once there are enough runs; the detector's own salt draws which of them become edges."""
    if bets.martingale is not None or len(bets.gathered) < REFERENCE_RUNS:
        return bets
    seed = hashlib.sha256(f"{state.salt}/{variant.value}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(seed[:16], "big"))
    return _Bets(martingale=martingale_start(bets.gathered, rng))
