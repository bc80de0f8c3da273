"""The finished runs to label next, and the agreement of people who labelled the same runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.recording.labels import Label, label
from grampus_uq.recording.run_rows import EventRow, event_row
from grampus_uq.recording.runs import Paths, Refused, Run, RunSummary, find_run, runs, summarise
from grampus_uq.records.events import OutcomeEvent, StepEvent
from grampus_uq.stats.missed_cases import agreement

_MOST_EVENTS = 40
_TOLD_APART: Final = re.compile(r"(#\d+)?(/observation-\d+)?\Z")
KEYS = {"s": True, "f": False, "e": False, "u": None}
"""One key each: success, failure, error at a step, unsure."""


def given_labels(run: Run) -> dict[str, bool | None]:
    """The last label of each person who labelled a run; None: that person is unsure."""
    outcomes = [event.outcome for event in run.events if isinstance(event, OutcomeEvent)]
    return {one.labelled_by: one.success for one in outcomes if one.labelled_by is not None}


def label_queue(paths: Paths, *, by: str, second: bool = False, on_refused: Refused | None = None) -> list[RunSummary]:
    """The finished runs that `by` should label, those first whose label is worth most.

    These are the ones likeliest right: their labels let a release rule publish soonest, and without a fitted profile
    the run's last confidence says which they are (`grampus-uq fit` names them by what it fitted). With `second` the
    runs that somebody else labelled, and that nobody labelled twice.
    """
    found = []
    for run in runs(paths, on_refused=on_refused):
        given = given_labels(run)
        known = [who for who, success in given.items() if success is not None]
        if run.outcome is None or run.superseded or by in given:
            continue
        if len(known) == 1 if second else run.outcome.success is None:
            found.append(summarise(run))
    return sorted(found, key=lambda one: -1.0 if one.last_confidence is None else one.last_confidence, reverse=True)


def shown_rows(run: Run) -> list[tuple[str, EventRow]]:
    """The end of what happened in a run, each step with its id, without what anybody said of the outcome."""
    rows = [
        (event.step.step_id if isinstance(event, StepEvent) else "", event_row(event, most=3))
        for event in run.events
        if not isinstance(event, OutcomeEvent)
    ]
    return rows[-_MOST_EVENTS:]


def has_step(run: Run, step: str) -> bool:
    """Return True for the id of a step, also as attribution tells steps apart: `ID#2`, `ID/observation-1`."""
    ids = {event.step.step_id for event in run.events if isinstance(event, StepEvent)}
    return step in ids or _TOLD_APART.sub("", step) in {*ids, "start"}


def label_by_key(paths: Paths, session_id: str, key: str, *, by: str, step: str | None = None) -> OutcomeEvent:
    """Append the label of one key; "e" names the step of the decisive error, which attribution learns from.

    Unsure takes back nobody else's label: raises DataError where one was given after the queue was read, and for a step
    that the run does not have.
    """
    if key not in KEYS or (key == "e") != bool(step):
        rule = "s, f or u, or e with the step of the error"
        raise ConfigurationError.of("key", "label_by_key", rule, (key, step))
    if step and not has_step(find_run(paths, session_id), step):
        raise DataError(f"The run {session_id!r:.80} has no step {step!r:.80}.")
    note = f"error at {step}" if step else None
    return label(paths, Label(session_id=session_id, success=KEYS[key], note=note), by=by, only_own=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Krippendorff's alpha over the runs with labels of two people or more; `differ` are those that they see otherwise.

    None where it is not defined: no such run, or one and the same label everywhere. Unsure is not a label.
    """

    alpha: float | None
    runs: int
    people: tuple[str, ...]
    differ: tuple[str, ...]


def label_agreement(paths: Paths, *, on_refused: Refused | None = None) -> Agreement:
    """The agreement of the people who labelled these runs."""
    cases: list[dict[str, bool]] = []
    differ = []
    for run in runs(paths, on_refused=on_refused):
        known = {who: success for who, success in given_labels(run).items() if success is not None}
        if len(known) > 1:
            cases.append(known)
            if len(set(known.values())) > 1:
                differ.append(run.session_id)
    alpha, n = agreement(cases)
    people = sorted({who for case in cases for who in case})
    return Agreement(alpha=alpha, runs=n, people=tuple(people), differ=tuple(differ))
