"""Replays recorded runs: their events through the same pure `advance` give the same assessments, number for number."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial

from grampus_uq.core.engine import advance
from grampus_uq.core.state import (
    Profile,
    SessionState,
    acknowledge,
    answer_alarm,
    change_profile,
    rearm_alarm,
    went_back,
)
from grampus_uq.errors import DataError
from grampus_uq.recording.parts import over_parts
from grampus_uq.recording.reader import read_lines
from grampus_uq.recording.runs import Paths, Refused, Run, beginnings, each
from grampus_uq.records.events import ALARMED, BRANCH, DecisionEvent, Event, ProfileChanged, SessionStarted, StepEvent
from grampus_uq.records.values import StepUncertainty

log = logging.getLogger("grampus_uq.recording.replay")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """A recorded step, what `profile` concludes from it now, and the state of its session after it."""

    event: StepEvent
    assessment: StepUncertainty
    state: SessionState

    @property
    def same(self) -> bool:
        """True when the conclusion equals the recorded one in everything but the words of its reason."""
        ours, recorded = self.assessment.__dict__, self.event.assessment.__dict__
        return ours == recorded or {**ours, "reasoning": ""} == {**recorded, "reasoning": ""}


def replay(
    events: Iterable[Event], profile: Profile, *, profiles: Mapping[str, Profile] | None = None
) -> Iterator[ReplayedStep]:
    """Yield every step of the events with what the profile concludes from it; sessions may be interleaved.

    With the profile that the run was watched with (`session.profile`) every step is `same`, whatever content the
    recording left out: `advance` reads no text. With another profile it says what that one would have concluded from
    the same readings; signals that were not read then stay unread.

    A session that went on under another profile (`UncertaintyMonitor.reload`) does so here too when `profiles`, by
    fingerprint, is given; without it one profile judges all of it. Raises DataError when one is missing there.

    A session that was taken up again continues from the state it had in these events; when it was taken up from an
    older snapshot than the last recorded step, from the state that it had there. Raises DataError when a session's
    steps do not follow each other, or begin in the middle. Keeps a state of every step: of long streams give the events
    of one run at a time, or take `replay_file` or `replay_all`.
    """
    runs = _Runs(profile, profiles=profiles)
    for event in events:
        step = runs.take(event)
        if step is not None:
            yield step


def replay_file(
    path: str | os.PathLike[str], profile: Profile, *, profiles: Mapping[str, Profile] | None = None
) -> Iterator[ReplayedStep]:
    """Like `replay`, from a recording; a DataError names the file and the line.

    Keeps one state of each session, and all states only of sessions that the file takes up again: it looks first.
    """
    resumed = {start.session_id for start in beginnings(path) if start.resumed}
    runs = _Runs(profile, histories=resumed, profiles=profiles)
    yield from runs.steps(os.fspath(path), ((line, event) for line, event, _ in read_lines(path)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCounts:
    """Counts of many replayed runs: steps concluded as recorded, and steps that stop, before and now.

    `differing` counts runs with a step that is concluded otherwise; `stopped...` counts steps that stop the run or,
    advisory, would have; `runs_stopped...` the runs that have one.
    """

    runs: int = 0
    steps: int = 0
    same: int = 0
    differing: int = 0
    stopped_before: int = 0
    stopped_now: int = 0
    runs_stopped_before: int = 0
    runs_stopped_now: int = 0
    skipped: tuple[str, ...] = ()
    """Why runs, or rests of files, were left out, each with its file and line; nothing of them is counted."""

    def __add__(self, other: ReplayCounts) -> ReplayCounts:
        """Sum, count by count."""
        sums = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return ReplayCounts(**sums)


def replay_all(
    paths: Paths,
    profile: Profile,
    *,
    workers: int = 1,
    on_part: Callable[[ReplayCounts], None] | None = None,
    on_refused: Refused | None = None,
) -> ReplayCounts:
    """Replay every run under files and folders, part by part, and count.

    `on_part` is called with the counts of each part, in order. What `replay` and `runs` raise is given to `on_refused`,
    by default a warning in the log: that run, or the rest of that file, is left out, and named in `skipped`.
    """
    total = ReplayCounts()
    skipped: list[str] = []

    def refuse(error: DataError) -> None:
        skipped.append(str(error))
        if on_refused is None:
            log.warning("left out: %s", error)
        else:
            on_refused(error)

    work = partial(_replay_part, profile)
    for counts in over_parts(work, paths, workers=workers, on_refused=refuse):
        total = total + counts
        if on_part is not None:
            on_part(counts)
    return total + ReplayCounts(skipped=tuple(skipped))


def _replay_part(profile: Profile, runs: Iterator[Run], refuse: Refused | None) -> ReplayCounts:
    return sum(each(runs, partial(_counted, profile), refuse), start=ReplayCounts())


def _counted(profile: Profile, run: Run) -> ReplayCounts:
    steps = same = before = now = 0
    for step in replay_run(run, profile):
        steps += 1
        same += step.same
        before += would_stop(step.event.assessment)
        now += would_stop(step.assessment)
    return ReplayCounts(
        runs=1,
        steps=steps,
        same=same,
        differing=int(same < steps),
        stopped_before=before,
        stopped_now=now,
        runs_stopped_before=int(before > 0),
        runs_stopped_now=int(now > 0),
    )


def replay_run(run: Run, profile: Profile) -> Iterator[ReplayedStep]:
    """Like `replay`, of one run; a DataError names its file and line. Keeps all states only of a resumed session."""
    again = any(isinstance(event, SessionStarted) and event.resumed for event in run.events)
    runs = _Runs(profile, histories={run.session_id} if again else ())
    yield from runs.steps(run.path, ((run.line, event) for event in run.events))


def would_stop(assessment: StepUncertainty) -> bool:
    """True if a step stops its run or, where the monitor only advised or let the run through, would have."""
    return (assessment.advisory_action or assessment.action).stops


class _Runs:
    """The sessions of a replay. A session is the list of its states, one a step; the last one is the present.

    Of a session that is not among `histories` (None: all are) only the present is kept.
    """

    def __init__(
        self, profile: Profile, histories: Container[str] | None = None, profiles: Mapping[str, Profile] | None = None
    ) -> None:
        self._profile = profile
        self._histories = histories
        self._states: dict[str, list[SessionState]] = {}
        self._resumed: set[str] = set()
        self._profiles = profiles
        self._under: dict[str, Profile] = {}
        self._changed: set[str] = set()
        self._branches: dict[str, str] = {}
        self._rolled_back: dict[str, bool] = {}

    def steps(self, path: str, numbered: Iterable[tuple[int, Event]]) -> Iterator[ReplayedStep]:
        """The steps of events with their lines; a DataError names the place."""
        for line, event in numbered:
            try:
                step = self.take(event)
            except DataError as error:
                raise DataError(error.reason, path=path, line=line, field=error.field) from error
            if step is not None:
                yield step

    def take(self, event: Event) -> ReplayedStep | None:
        if isinstance(event, SessionStarted):
            self._start(event)
        elif isinstance(event, DecisionEvent):
            if event.acknowledged is not None or event.alarm_answered or event.alarm_rearmed:
                states = self._of(event)
                states[-1] = self._answered(states[-1], event)
        elif isinstance(event, StepEvent):
            return self._advance(event)
        elif isinstance(event, ProfileChanged) and self._profiles is not None:
            self._change(event, self._profiles)
        return None

    def _change(self, event: ProfileChanged, profiles: Mapping[str, Profile]) -> None:
        """Go on under the other profile; the state follows with the next step, which may lie further back."""
        profile = profiles.get(event.profile_fingerprint)
        if profile is None:
            reason = f"session {event.session_id!r} goes on under profile {event.profile_fingerprint[:12]}, which is "
            raise DataError(f"{reason}not among `profiles`", field="profile_fingerprint")
        if event.fallback is not None:
            profile = profile.standing_in(event.fallback)
        if event.advisory and not profile.advisory:
            profile = profile.model_copy(update={"advisory": True})
        self._under[event.session_id] = profile
        self._changed.add(event.session_id)

    def _judged_by(self, state: SessionState) -> tuple[Profile, SessionState]:
        """The profile that a session is under, and its state under that one."""
        profile = self._under.get(state.session_id, self._profile)
        if state.session_id in self._changed:
            self._changed.discard(state.session_id)
            state = change_profile(profile, state)
        return profile, state

    def _answered(self, state: SessionState, event: DecisionEvent) -> SessionState:
        profile, state = self._judged_by(state)
        if event.alarm_answered:
            state = answer_alarm(profile, state)
        if event.alarm_rearmed:
            state = rearm_alarm(profile, state)
        return state if event.acknowledged is None else acknowledge(state, event.acknowledged)

    def _start(self, event: SessionStarted) -> None:
        branch = event.metadata.get(BRANCH)
        if branch is not None and branch != self._branches.get(event.session_id):
            self._branches[event.session_id] = branch
            self._rolled_back[event.session_id] = ALARMED in event.metadata
        if not event.resumed:
            fresh = SessionState(session_id=event.session_id, agent_id=event.agent_id, let_through=event.let_through)
            self._under.pop(event.session_id, None)
            self._changed.discard(event.session_id)
            self._states[event.session_id] = [self._went_back(fresh)]
        elif event.session_id in self._states:
            self._resumed.add(event.session_id)
        else:
            raise DataError(
                f"session {event.session_id!r} is resumed, and these events lack its earlier steps", field="resumed"
            )

    def _of(self, event: StepEvent | DecisionEvent) -> list[SessionState]:
        states = self._states.get(event.session_id)
        if states is None:
            states = [SessionState(session_id=event.session_id, agent_id=event.agent_id)]
            self._states[event.session_id] = states
        return states

    def _advance(self, event: StepEvent) -> ReplayedStep:
        states, index = self._of(event), event.assessment.index
        if index != states[-1].n_steps:
            self._go_back(event, states)
        self._resumed.discard(event.session_id)
        profile, states[-1] = self._judged_by(states[-1])
        state, assessment = advance(profile, states[-1], event.step, event.readings, event.trajectory)
        if self._histories is None or event.session_id in self._histories:
            states.append(state)
        else:
            states[-1] = state
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
        states[-1] = self._went_back(states[-1])

    def _went_back(self, state: SessionState) -> SessionState:
        """The state from which a rolled back run goes on; any other as it is."""
        alarmed = self._rolled_back.pop(state.session_id, None)
        profile = self._under.get(state.session_id, self._profile)
        return state if alarmed is None else went_back(profile, state, alarmed=alarmed)
