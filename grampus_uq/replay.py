"""Replays recorded runs: their events through the same pure `advance` give the same assessments, number for number."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from grampus_uq.engine import Profile, SessionState, acknowledge, advance, answer_alarm, rearm_alarm
from grampus_uq.errors import DataError
from grampus_uq.events import DecisionEvent, Event, SessionStarted, StepEvent
from grampus_uq.recording.reader import read_numbered
from grampus_uq.records import StepUncertainty

__all__ = ["ReplayedStep", "replay", "replay_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """A recorded step, what `profile` concludes from it now, and the state of its session after it."""

    event: StepEvent
    assessment: StepUncertainty
    state: SessionState

    @property
    def same(self) -> bool:
        """True when the conclusion equals the recorded one in every field."""
        return self.assessment == self.event.assessment


def replay(
    events: Iterable[Event], profile: Profile, *, states: Mapping[str, SessionState] | None = None
) -> Iterator[ReplayedStep]:
    """Yield every step of the events with what the profile concludes from it; sessions may be interleaved.

    With the profile that the run was watched with (`session.profile`) every step is `same`, whatever content the
    recording left out: `advance` reads no text. With another profile it says what that one would have concluded from
    the same readings; signals that were not read then stay unread.

    A session that was taken up again continues from the state it had in these events, or from `states`, by session id,
    when they begin in the middle. When it was taken up from an older snapshot than the last recorded step, it continues
    from the state that it had there. Raises DataError when a session's steps do not follow each other.
    """
    runs = _Runs(profile, states or {})
    for event in events:
        step = runs.take(event)
        if step is not None:
            yield step


def replay_file(
    path: str | os.PathLike[str], profile: Profile, *, states: Mapping[str, SessionState] | None = None
) -> Iterator[ReplayedStep]:
    """Like `replay`, from a recording; a DataError names the file and the line."""
    runs = _Runs(profile, states or {})
    for number, event in read_numbered(path):
        try:
            step = runs.take(event)
        except DataError as error:
            raise DataError(error.reason, path=os.fspath(path), line=number, field=error.field) from error
        if step is not None:
            yield step


class _Runs:
    """The sessions of a replay. A session is the list of its states, one a step; the last one is the present."""

    def __init__(self, profile: Profile, states: Mapping[str, SessionState]) -> None:
        self._profile = profile
        self._states = {session_id: [state] for session_id, state in states.items()}
        self._resumed: set[str] = set()

    def take(self, event: Event) -> ReplayedStep | None:
        if isinstance(event, SessionStarted):
            self._start(event)
        elif isinstance(event, DecisionEvent):
            if event.acknowledged is not None or event.alarm_answered or event.alarm_rearmed:
                states = self._of(event)
                states[-1] = self._answered(states[-1], event)
        elif isinstance(event, StepEvent):
            return self._advance(event)
        return None

    def _answered(self, state: SessionState, event: DecisionEvent) -> SessionState:
        if event.alarm_answered:
            state = answer_alarm(self._profile, state)
        if event.alarm_rearmed:
            state = rearm_alarm(self._profile, state)
        return state if event.acknowledged is None else acknowledge(state, event.acknowledged)

    def _start(self, event: SessionStarted) -> None:
        if not event.resumed:
            self._states[event.session_id] = [SessionState(session_id=event.session_id, agent_id=event.agent_id)]
        elif event.session_id in self._states:
            self._resumed.add(event.session_id)
        else:
            raise DataError(
                f"session {event.session_id!r} is taken up again, and its earlier steps are not here: give `states`",
                field="resumed",
            )

    def _of(self, event: StepEvent | DecisionEvent) -> list[SessionState]:
        fresh = SessionState(session_id=event.session_id, agent_id=event.agent_id)
        return self._states.setdefault(event.session_id, [fresh])

    def _advance(self, event: StepEvent) -> ReplayedStep:
        states, index = self._of(event), event.assessment.index
        if index != states[-1].n_steps:
            self._go_back(event, states)
        self._resumed.discard(event.session_id)
        state, assessment = advance(self._profile, states[-1], event.step, event.readings)
        states.append(state)
        return ReplayedStep(event=event, assessment=assessment, state=state)

    def _go_back(self, event: StepEvent, states: list[SessionState]) -> None:
        """Drop what was committed after the snapshot from which the session was just taken up again."""
        index = event.assessment.index
        if event.session_id not in self._resumed or not states[0].n_steps <= index < states[-1].n_steps:
            raise DataError(
                f"step {index} of session {event.session_id!r} follows {states[-1].n_steps} steps: some are missing, "
                "or they are out of order",
                field="assessment.index",
            )
        while states[-1].n_steps > index:
            states.pop()
