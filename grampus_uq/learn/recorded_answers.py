"""A permit's start from the past: calls of its scope that waited, and their answers, out of recordings.

A call counts if it waited because of its tool alone, as the calls of a permit do. That such a call was asked about did
not depend on what would be answered, where *all* of them were asked: a run in which a grant or a permit let a call of
the tool ahead is left out whole. A call without an answer counts as wrong. Which recordings are given must not depend
on the answers in them either: all runs of a period, say, that was chosen before anybody looked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from grampus_uq.core.decision import GRANTABLE
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.gate.permits import Entry, Permit
from grampus_uq.monitor.session import judge_of, score_of
from grampus_uq.recording.copies import distinct_runs
from grampus_uq.recording.replay import ReplayedStep, replay
from grampus_uq.recording.runs import Paths, Refused, Run
from grampus_uq.records.events import DecisionEvent, ProfileChanged
from grampus_uq.records.vocabulary import UncertaintyAction, UncertaintyLevel

_GRAVE = (UncertaintyLevel.HIGH, UncertaintyLevel.CRITICAL)
_LIFTED = ("grant", "permit")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredCall:
    """One call that waited: when, its score, what judged it, and whether its answer says that it was wrong."""

    time_s: float
    score: float
    judge: str
    wrong: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswers:
    """Calls in the order of time, and what was left out, by reason: runs, and calls without a score."""

    calls: tuple[AnsweredCall, ...]
    left_out: Counter[str]

    def entries(self) -> list[Entry]:
        """What a permit's log would hold of them, each asked for certain and answered at once."""
        found = []
        for number, call in enumerate(self.calls):
            found.append(
                Entry(
                    do="propose",
                    now_s=call.time_s,
                    score=call.score,
                    same=f"{number}",
                    judge=call.judge,
                    draw=0.0,
                    alike=True,
                )
            )
            found.append(Entry(do="answer", now_s=call.time_s, ticket=number, wrong=call.wrong))
        return found


def recorded_answers(
    paths: Paths,
    permit: Permit,
    profile: Profile,
    *,
    agent_version: str = "",
    on_refused: Refused | None = None,
) -> RecordedAnswers:
    """Read the calls that `permit` covers, scored by `profile` as when they were judged.

    Raises DataError where not all of them were judged by one profile, model, prompt and tool set.
    """
    calls: list[AnsweredCall] = []
    left_out: Counter[str] = Counter()
    for run in distinct_runs(paths, on_refused=on_refused):
        why = _unfit(run, permit)
        if why is not None:
            left_out[why] += 1
            continue
        try:
            steps = list(replay(run.events, profile))
        except DataError:
            steps = []
        if any(not step.same for step in steps) or len(steps) < len(run.steps):
            left_out["another_profile"] += 1
            continue
        calls += _calls_of(run, steps, permit, agent_version, left_out)
    judges = {call.judge for call in calls}
    if len(judges) > 1 or not judges <= {permit.judge or next(iter(judges), "")}:
        raise DataError("the runs were not all judged by one profile, model, prompt and tool set: give those of one")
    return RecordedAnswers(calls=tuple(sorted(calls, key=lambda call: call.time_s)), left_out=left_out)


def _unfit(run: Run, permit: Permit) -> str | None:
    """Why none of a run's calls count."""
    if run.start is None:
        return "no_beginning"
    if run.start.advisory:
        return "advisory"
    if any(isinstance(event, ProfileChanged) for event in run.events):
        return "profile_changed"
    steps = (event.step for event in run.steps)
    own = {(step.step_id, call.id) for step in steps for call in step.tool_calls if call.name == permit.tool}
    lifted = (e for e in run.events if isinstance(e, DecisionEvent) and e.decision in _LIFTED)
    return "not_all_asked" if any((event.step_id, event.call_id) in own for event in lifted) else None


def _calls_of(
    run: Run, steps: list[ReplayedStep], permit: Permit, agent_version: str, left_out: Counter[str]
) -> list[AnsweredCall]:
    start = run.start
    if start is None:
        return []
    judge = judge_of(start.profile_fingerprint, start.model, start.prompt_hash, start.tools_hash, agent_version)
    answers = _answers(run)
    found = []
    for replayed in steps:
        step, assessment = replayed.event.step, replayed.assessment
        call = step.tool_calls[0] if step.kind == "tool_call" and step.tool_calls else None
        asked = assessment.action is UncertaintyAction.PAUSE_FOR_HUMAN and assessment.rule in GRANTABLE
        if call is None or not asked or assessment.level in _GRAVE or replayed.state.alarmed:
            continue
        if not permit.covers(call, start.agent_id, 0.0):
            continue
        score = score_of(replayed.state, permit.stream, call, step.step_id)
        if score is None:
            left_out["no_score"] += 1
            continue
        right = answers.get((step.step_id, call.id)) == "approve"
        found.append(AnsweredCall(time_s=step.time_s, score=score, judge=judge, wrong=not right))
    return found


def _answers(run: Run) -> Mapping[tuple[str | None, str | None], str]:
    """The first decision on each call, by its step and id: arguments are often hashed."""
    found: dict[tuple[str | None, str | None], str] = {}
    for event in run.events:
        if isinstance(event, DecisionEvent) and event.call_digest is not None:
            found.setdefault((event.step_id, event.call_id), event.decision)
    return found
