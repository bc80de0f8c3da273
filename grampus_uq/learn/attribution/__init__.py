"""Finds what made a run fail: a small set of steps that holds the decisive error with a stated probability.

A failed run in, a set of steps out, calibrated on failures whose errors are known (at least 4 for a level of 80 %,
19 for 95 %). Which promise a set carries, and what breaks it, stands in its `coverage`.

    labelled = [LabelledTrajectory(trajectory=..., error_steps=(3,)), ...]
    calibrated = fit_and_calibrate(labelled, Plan(level=0.8))       # or calibrate(labelled, a scorer of your own)
    found = locate(failed, calibrated)
    found.set_steps, found.coverage, attribution_html(found)

The mathematics is in `grampus_uq.stats` (`entry_thresholds`, `envelope`, `conformal`, `lazy_sets`); this package gives
it steps: trajectories, scorers of steps, the choice of a method, results in words and as a drawing.

Source: Feng et al., "Conformal Agent Error Attribution" (2026).
"""

from __future__ import annotations

from grampus_uq.learn.attribution.attribute import (
    Parts,
    attribute,
    attribute_async,
    fit_and_calibrate,
    part_labelled,
    with_chosen_method,
)
from grampus_uq.learn.attribution.attribution_report import attribution_html
from grampus_uq.learn.attribution.conditional_logit import (
    ConditionalLogit,
    ConditionalLogitScorer,
    fit_conditional_logit,
    fit_step_scorer,
)
from grampus_uq.learn.attribution.failed_trajectory import LabelledTrajectory, Trajectory, TrajectoryStep
from grampus_uq.learn.attribution.features import cheap_features
from grampus_uq.learn.attribution.from_injection import label_run
from grampus_uq.learn.attribution.from_logs import read_labelled_failures, trajectory_from_run
from grampus_uq.learn.attribution.from_recording import RecordedTrajectory, trajectory_from_events
from grampus_uq.learn.attribution.judge import JudgeScorer, JudgeSpending
from grampus_uq.learn.attribution.method_choice import (
    Advice,
    ErrorPositions,
    MethodChoice,
    advise,
    choose_method,
    error_positions,
)
from grampus_uq.learn.attribution.methods import (
    AttributionMethod,
    Envelope,
    Hierarchical,
    LeftFiltration,
    RightFiltration,
    SuffixEnvelope,
    TwoWayFiltration,
    Vanilla,
)
from grampus_uq.learn.attribution.monitor_record import MonitorRecord, MonitorRecordScorer, record_features
from grampus_uq.learn.attribution.result import AttributedStep, Attribution
from grampus_uq.learn.attribution.scorers import (
    AsyncLazyStepScorer,
    AsyncStepScorer,
    ConstantScorer,
    FunctionScorer,
    LazyStepScorer,
    StepFunctionScorer,
    StepScore,
    StepScorer,
    StepScores,
)
from grampus_uq.learn.attribution.set_calibration import (
    CalibratedAttribution,
    Plan,
    calibrate,
    calibrate_async,
    locate,
    locate_async,
)
from grampus_uq.learn.attribution.stored import calibration_from_json, calibration_to_json

__all__ = [
    "Advice",
    "AsyncLazyStepScorer",
    "AsyncStepScorer",
    "AttributedStep",
    "Attribution",
    "AttributionMethod",
    "CalibratedAttribution",
    "ConditionalLogit",
    "ConditionalLogitScorer",
    "ConstantScorer",
    "Envelope",
    "ErrorPositions",
    "FunctionScorer",
    "Hierarchical",
    "JudgeScorer",
    "JudgeSpending",
    "LabelledTrajectory",
    "LazyStepScorer",
    "LeftFiltration",
    "MethodChoice",
    "MonitorRecord",
    "MonitorRecordScorer",
    "Parts",
    "Plan",
    "RecordedTrajectory",
    "RightFiltration",
    "StepFunctionScorer",
    "StepScore",
    "StepScorer",
    "StepScores",
    "SuffixEnvelope",
    "Trajectory",
    "TrajectoryStep",
    "TwoWayFiltration",
    "Vanilla",
    "advise",
    "attribute",
    "attribute_async",
    "attribution_html",
    "calibrate",
    "calibrate_async",
    "calibration_from_json",
    "calibration_to_json",
    "cheap_features",
    "choose_method",
    "error_positions",
    "fit_and_calibrate",
    "fit_conditional_logit",
    "fit_step_scorer",
    "label_run",
    "locate",
    "locate_async",
    "part_labelled",
    "read_labelled_failures",
    "record_features",
    "trajectory_from_events",
    "trajectory_from_run",
    "with_chosen_method",
]
