"""The attribution part of a profile: labelled failures calibrate the attribution of later ones."""

from __future__ import annotations

from typing import Any

from pydantic import JsonValue

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.attribution import Plan, calibration_to_json, fit_and_calibrate
from grampus_uq.learn.attribution.labelled_recordings import labelled_recordings, names_a_step
from grampus_uq.learn.profiles.options import FitOptions
from grampus_uq.learn.profiles.profile_parts import Part
from grampus_uq.recording.copies import distinct_runs
from grampus_uq.recording.runs import Paths, Refused

NAME = "attribution"
_HOW = 'grampus-uq runs label FOLDER SESSION failure --note "error at STEP"'


def fit_attribution(
    paths: Paths, named: int, options: FitOptions, on_refused: Refused | None = None
) -> tuple[dict[str, Any] | None, Part]:
    """Calibrate error sets on the failures whose label names a step; `named` says how many there are.

    Those failures are parted by themselves, one part for the step scorer and one for the threshold; what else they
    served does not matter, since nothing else of the profile scores their steps.
    """
    if not named:
        why = "No label names the step of an error."
        return None, Part(name=NAME, status="not fitted", why=why, needs=f"some twenty labelled failures ({_HOW})")
    refused: list[DataError] = []
    chosen = (run for run in distinct_runs(paths, on_refused=on_refused) if names_a_step(run.outcome))
    labelled = labelled_recordings(chosen, refused.append, options.task_key)
    plan = Plan(level=options.attribution_level, seed=options.seed)
    try:
        found = fit_and_calibrate(labelled, plan)
    except ConfigurationError as error:
        why = f"{len(labelled)} labelled failures are too few: {error}"
        if refused:
            why += f" {len(refused)} more could not be used; the first: {refused[0]}"
        return None, Part(name=NAME, status="not fitted", why=why, needs=f"some twenty labelled failures ({_HOW})")
    if found.threshold.rank is None:
        why = f"{found.threshold.n} failures to calibrate on do not resolve a coverage of {plan.level:g}."
        return None, Part(name=NAME, status="not fitted", why=why, needs="more labelled failures")
    promise = (
        f"A set holds the error of a new failed run with probability at least {100 * plan.level:g} %, on average over "
        f"the {found.threshold.n} failures that set it, one a task. This assumes exchangeable failures of independent "
        "tasks."
    )
    why = f"On {len(labelled)} failures whose error was labelled."
    if refused:
        why += f" {len(refused)} were left out; the first: {refused[0]}"
    figures: dict[str, JsonValue] = {"failures": len(labelled), "left_out": len(refused), "level": plan.level}
    figures["method"] = plan.method.name
    return calibration_to_json(found), Part(name=NAME, status="fitted", why=why, promise=promise, figures=figures)
