"""The TRACER part of a profile: its parameters, fitted on the runs to learn on, where runs were watched with it."""

from __future__ import annotations

import numpy as np
from pydantic import JsonValue

from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.core.state import Profile
from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.fit_tracer import LEAST_OF_EACH, fit_tracer_settings
from grampus_uq.learn.profiles.labelled import LabelledRuns
from grampus_uq.learn.profiles.options import FitOptions
from grampus_uq.learn.profiles.profile_parts import Part
from grampus_uq.learn.trajectories import labelled_trajectories
from grampus_uq.recording.copies import distinct_runs
from grampus_uq.recording.runs import Paths, Refused
from grampus_uq.stats.arrays import BoolArray

NAME = "tracer"


def fit_risk(
    paths: Paths,
    labelled: LabelledRuns,
    held: BoolArray,
    bare: Profile,
    options: FitOptions,
    rng: np.random.Generator,
    on_refused: Refused | None = None,
) -> tuple[TrajectoryRiskSettings | None, Part]:
    """Fit TRACER's parameters; with too few labels keep those that are there, so that its risk is still a stream.

    Returns None where no run was watched with TRACER: a profile with it would then watch what nothing was fitted on.
    """
    if not labelled.watched:
        why = "No run was recorded with TRACER."
        return None, Part(
            name=NAME, status="not fitted", why=why, needs="runs recorded with trajectory_risk=TrajectoryRiskSettings()"
        )
    base = bare.trajectory_risk or TrajectoryRiskSettings()
    learn = {name for name, chosen in zip(labelled.ids, ~held, strict=True) if chosen}
    chosen = (run for run in distinct_runs(paths, on_refused=on_refused) if run.session_id in learn)
    try:
        found = fit_tracer_settings(labelled_trajectories(chosen, task_key=options.task_key), rng=rng, base=base)
    except ConfigurationError as error:
        needs = f"{LEAST_OF_EACH} failures and {LEAST_OF_EACH} successes to learn on"
        why = f"Its parameters stay as they are. {error}"
        return base, Part(name=NAME, status="not fitted", why=why, needs=needs)
    validated = found.cross_validation
    figures: dict[str, JsonValue] = {
        "parameters": found.settings.model_dump(mode="json")["parameters"],
        "auroc_on_other_tasks": None if validated is None else validated.auroc,
        "unfitted_auroc": None if validated is None else validated.default_auroc,
    }
    why = f"On {found.fit.failures} failures and {found.fit.successes} successes."
    if validated is not None and validated.auroc is not None and validated.default_auroc is not None:
        why += f" AUROC {validated.auroc:.2f} on tasks it was not fitted on, {validated.default_auroc:.2f} unfitted."
    return found.settings, Part(name=NAME, status="fitted", why=why, figures=figures)
