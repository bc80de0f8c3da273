"""Imported runs as trajectories, and files of labelled failures for calibration."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from grampus_uq.errors import DataError
from grampus_uq.importers import ImportedRun, read_failure_logs
from grampus_uq.learn.attribution.failed_trajectory import LabelledTrajectory, Trajectory, TrajectoryStep
from grampus_uq.records.values import Message
from grampus_uq.records.vocabulary import Role
from grampus_uq.signals.tool_outcome import failed
from grampus_uq.signals.turn_events import Observation

_EXIT_CODE = re.compile(r"\s{0,8}exit ?code: {0,3}(-?\d{1,5})\b", re.IGNORECASE | re.ASCII)
_EXECUTOR = re.compile(r"terminal|executor|interpreter", re.IGNORECASE)


def trajectory_from_run(run: ImportedRun, *, task: str = "") -> Trajectory:
    """Turn an imported run into a trajectory: one step a message (of a chat, without its system messages).

    A message is an observation when its role is `tool`, when it opens with an exit code, or when its speaker is called
    a terminal, an executor or an interpreter (logs of several agents have no role for that). A tool failed when its
    exit code is not 0 or its text says so (`grampus_uq.signals.tool_outcome`).

    `task`: what the run was asked to do, when the format says it elsewhere than in the messages. What the importer
    keeps apart (outcome, label) is not read. A step's id is the number of its message, from 0. Raises
    ConfigurationError for a run without messages.
    """
    log = run.shape == "log"
    steps = tuple(_step(m, str(i)) for i, m in enumerate(run.messages) if log or m.role is not Role.SYSTEM)
    return Trajectory(trajectory_id=run.run_id, steps=steps, task=task)


def read_labelled_failures(
    path: str | os.PathLike[str], *, on_left_out: Callable[[DataError], None] | None = None
) -> list[LabelledTrajectory]:
    """Read a file of labelled failure logs (`grampus_uq.importers.read_failure_logs`) for calibration.

    The file holds JSON lines, one JSON array or a single object; plain or gzip. `on_left_out` receives the reason for
    every log that cannot calibrate: no label, a label beyond the end, a repeated id, a run that did not fail. Returns
    the others in file order. Raises DataError for a file that is not JSON; without `on_left_out` for any log that
    cannot calibrate.
    """
    labelled = []
    for log in read_failure_logs(path, on_refused=on_left_out):
        if log.label is None:
            unlabelled = DataError(
                f"{log.run.run_id!r:.80} has no label.", path=log.run.path, line=log.run.line, field="mistake_step"
            )
            if on_left_out is None:
                raise unlabelled
            on_left_out(unlabelled)
            continue
        labelled.append(LabelledTrajectory(trajectory=trajectory_from_run(log.run), error_steps=(log.label.step,)))
    return labelled


def _step(message: Message, step_id: str) -> TrajectoryStep:
    text = message.content or ""
    calls = "\n".join(call.canonical() for call in message.tool_calls)
    speaker = message.name or message.role.value
    code = _EXIT_CODE.match(text)
    observation = message.role is Role.TOOL or code is not None or _EXECUTOR.search(speaker) is not None
    return TrajectoryStep(
        step_id=step_id,
        speaker=speaker,
        text=f"{text}\n{calls}".strip("\n") if calls else text,
        observation=observation,
        tool_failed=None if not observation else code[1] != "0" if code else failed(Observation(text=text)),
    )
