"""Finds the decisive error of a failed run: a small set of steps that holds it with a stated probability.

A failed run in, a set of steps out, calibrated on failures whose errors are known (at least 4 for a level of 80 %,
19 for 95 %). The promise of a set, and what breaks it, stands in its `coverage`.

    labelled = [LabelledTrajectory(trajectory=..., error_steps=(3,)), ...]
    calibrated = fit_and_calibrate(labelled, Plan(level=0.8))       # or calibrate(labelled, a scorer of your own)
    found = locate(failed, calibrated)
    found.set_steps, found.coverage, attribution_html(found)

The mathematics is in `grampus_uq.stats` (`entry_thresholds`, `envelope`, `conformal`); this package applies it to
steps: trajectories, scorers of steps, results in words and as a page.

Source: Feng et al., "Conformal Agent Error Attribution" (2026).
"""

from __future__ import annotations

from grampus_uq.learn.attribution.attribute import attribute, fit_and_calibrate
from grampus_uq.learn.attribution.attribution_report import attribution_html
from grampus_uq.learn.attribution.failed_trajectory import LabelledTrajectory, Trajectory, TrajectoryStep
from grampus_uq.learn.attribution.from_logs import label_run, read_labelled_failures, trajectory_from_run
from grampus_uq.learn.attribution.labelled_recordings import trajectory_from_events
from grampus_uq.learn.attribution.methods import METHODS, AttributionMethod
from grampus_uq.learn.attribution.result import AttributedStep, Attribution
from grampus_uq.learn.attribution.scorers import FunctionScorer, StepScore, StepScorer
from grampus_uq.learn.attribution.set_calibration import CalibratedAttribution, Plan, calibrate, locate
from grampus_uq.learn.attribution.stored import calibration_from_json, calibration_to_json

__all__ = [
    "METHODS",
    "AttributedStep",
    "Attribution",
    "AttributionMethod",
    "CalibratedAttribution",
    "FunctionScorer",
    "LabelledTrajectory",
    "Plan",
    "StepScore",
    "StepScorer",
    "Trajectory",
    "TrajectoryStep",
    "attribute",
    "attribution_html",
    "calibrate",
    "calibration_from_json",
    "calibration_to_json",
    "fit_and_calibrate",
    "label_run",
    "locate",
    "read_labelled_failures",
    "trajectory_from_events",
    "trajectory_from_run",
]
