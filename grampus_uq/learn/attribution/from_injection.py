"""A run whose error is known by the number of its message, as what calibration takes: no annotator was needed."""

from __future__ import annotations

from grampus_uq.errors import ConfigurationError
from grampus_uq.importers import ImportedRun
from grampus_uq.learn.attribution.failed_trajectory import LabelledTrajectory
from grampus_uq.learn.attribution.from_logs import trajectory_from_run

__all__ = ["label_run"]


def label_run(run: ImportedRun, error_message: int, *, task: str = "") -> LabelledTrajectory:
    """Turn a failed run and the number of its decisive message into a labelled trajectory.

    Args:
        run: such as `InjectedFailure.run` of `grampus_uq.runtime.inject`.
        error_message: its number in `run.messages`, from 0.
        task: what the run was asked to do.

    Returns:
        The trajectory of `trajectory_from_run`, labelled at the step of that message.

    Raises:
        ConfigurationError: a message that is not there or is no step (a system message of a chat).
    """
    trajectory = trajectory_from_run(run, task=task)
    places = [i for i, step in enumerate(trajectory.steps) if step.step_id == str(error_message)]
    if not places:
        rule = f"the number of a message of the run that is a step, from 0 to {len(run.messages) - 1}"
        raise ConfigurationError.of("error_message", "label_run", rule, error_message)
    return LabelledTrajectory(trajectory=trajectory, error_steps=(places[0],))
