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

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
