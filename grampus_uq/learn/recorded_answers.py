"""A permit's start from the past: calls of its scope that waited, and their answers, out of recordings.

A call counts if it waited because of its tool alone, as the calls of a permit do, and if no grant and no permit for the
tool was in force when it was asked about (`CallAsked`): beside one, what is asked about is not a fair sample of the
calls, audits included. Whether one was in force was known before the answer, so leaving such calls out takes no look at
it. A call without an answer counts as wrong. Which recordings are given must not depend on the answers in them either:
all runs of a period, say, that was chosen before anybody looked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from grampus_uq.core.decision import GRANTABLE
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.gate.permits import Entry, Permit
from grampus_uq.monitor.permit_basis import judge_of, score_of
from grampus_uq.recording.copies import distinct_runs
from grampus_uq.recording.replay import ReplayedStep, replay
from grampus_uq.recording.runs import Paths, Refused, Run
from grampus_uq.records.events import CallAsked, DecisionEvent, ProfileChanged, SessionStarted
from grampus_uq.records.vocabulary import UncertaintyAction, UncertaintyLevel

_GRAVE = (UncertaintyLevel.HIGH, UncertaintyLevel.CRITICAL)
_LIFTED = ("grant", "permit")
_MAY_STAND = ("openai-agents",)
"""Principals whose recorded approvals may be standing ones for a whole tool; recordings do not distinguish them."""
_STANDING = "standing"
_BESIDE = "beside_a_grant_or_permit"
_Place = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredCall:
    """One call that waited: when, its score, what judged it, and whether its answer says that it was wrong.

    `told`: the recording says that no grant and no permit was in force.
    """

    time_s: float
    score: float
    judge: str
    wrong: bool
    told: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswers:
    """Calls in the order of time, and what was left out, by reason: runs; calls without a score, or beside a permit."""

    calls: tuple[AnsweredCall, ...]
    left_out: Counter[str]

    def entries(self) -> list[Entry]:
        """The entries of a permit's log on them, each asked for certain and answered at once."""
        found = []
        for n, call in enumerate(self.calls):
            at_s = call.time_s
            found += [
                Entry(do="propose", now_s=at_s, score=call.score, same=f"{n}", judge=call.judge, certain=True),
                Entry(do="answer", now_s=at_s, ticket=n, wrong=call.wrong),
            ]
        return found


def recorded_answers(
    paths: Paths,
    permit: Permit,
    profile: Profile,
    *,
    agent_version: str = "",
    nothing_in_force: bool = False,
    on_refused: Refused | None = None,
) -> RecordedAnswers:
    """Read the calls that `permit` covers, scored by `profile` as when they were judged.

    `nothing_in_force` is the operator's word for recordings that do not say it: no grant and no permit for the tool was
    in force when their calls were asked about. Raises DataError for such recordings without that word, and where not
    all calls were judged by one profile, model, prompt and tool set.
    """
    calls: list[AnsweredCall] = []
    untold = 0
    left_out: Counter[str] = Counter()
    for run in distinct_runs(paths, on_refused=on_refused):
        why = _unfit(run)
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
        found = _calls_of(run, steps, permit, agent_version, left_out)
        if not all(call.told for call in found) and _lifted(run, permit):
            left_out["not_all_asked"] += 1
            continue
        untold += any(not call.told for call in found)
        calls += found
    if untold and not nothing_in_force:
        raise DataError(
            f"{untold} runs do not say whether a grant or a permit for {permit.tool!r:.80} was in force when a call "
            "was asked about: give runs that do, or state that none was (--nothing-in-force, `nothing_in_force=True`)"
        )
    judges = {call.judge for call in calls}
    if len(judges) > 1 or not judges <= {permit.judge or next(iter(judges), "")}:
        raise DataError("the runs were not all judged by one profile, model, prompt and tool set: give those of one")
    return RecordedAnswers(calls=tuple(sorted(calls, key=lambda call: call.time_s)), left_out=left_out)


def _unfit(run: Run) -> str | None:
    """Why none of a run's calls count."""
    if run.start is None:
        return "no_beginning"
    if run.start.advisory:
        return "advisory"
    if len({(one.model, one.prompt_hash, one.tools_hash) for one in run.events if isinstance(one, SessionStarted)}) > 1:
        return "made_with_changed"
    return "profile_changed" if any(isinstance(event, ProfileChanged) for event in run.events) else None


def _lifted(run: Run, permit: Permit) -> bool:
    """Return True if a grant or a permit released a call of the tool."""
    steps = (event.step for event in run.steps)
    own = {(step.step_id, call.id) for step in steps for call in step.tool_calls if call.name == permit.tool}
    lifted = (e for e in run.events if isinstance(e, DecisionEvent) and e.decision in _LIFTED)
    return any((event.step_id, event.call_id) in own for event in lifted)


def _calls_of(
    run: Run, steps: list[ReplayedStep], permit: Permit, agent_version: str, left_out: Counter[str]
) -> list[AnsweredCall]:
    start, made_with = run.start, run.made_with
    if start is None or made_with is None:
        return []
    judge = judge_of(start.profile_fingerprint, *made_with, agent_version, permit.stream)
    answers, asked_about = _answers(run), _asked_about(run)
    found = []
    for replayed in steps:
        step, assessment = replayed.event.step, replayed.assessment
        call = step.tool_calls[0] if step.kind == "tool_call" and step.tool_calls else None
        asked = assessment.action is UncertaintyAction.PAUSE_FOR_HUMAN and assessment.rule in GRANTABLE
        if call is None or not asked or assessment.level in _GRAVE or replayed.state.alarmed:
            continue
        if not permit.covers(call, start.agent_id, 0.0):
            continue
        told, answer = asked_about.get((step.step_id, call.id)), answers.get((step.step_id, call.id))
        if answer in _LIFTED or answer == _STANDING:
            left_out[_BESIDE] += 1
            continue
        score = score_of(replayed.state, permit.stream, call, step.step_id)
        why = "no_score" if score is None else None if told is None else _unfair(told)
        if score is None or why is not None:
            left_out[str(why)] += 1
            continue
        wrong, says = answer != "approve", told is not None
        found.append(AnsweredCall(time_s=step.time_s, score=score, judge=judge, wrong=wrong, told=says))
    return found


def _asked_about(run: Run) -> Mapping[_Place, list[CallAsked]]:
    """Return the questions on each call, by step and id; several after a crash."""
    found: dict[_Place, list[CallAsked]] = {}
    for event in run.events:
        if isinstance(event, CallAsked):
            found.setdefault((event.step_id, event.call_id), []).append(event)
    return found


def _unfair(told: list[CallAsked]) -> str | None:
    """Why a call is none of a fair sample, by what was known when it was asked about."""
    if not all(event.tool_alone for event in told):
        return "held_by_more_than_its_tool"
    if any(event.in_force is None for event in told):
        return "unknown_what_was_in_force"
    return _BESIDE if any(event.in_force for event in told) else None


def _answers(run: Run) -> Mapping[_Place, str]:
    """The first decision on each call, by its step and id: arguments are often hashed."""
    found: dict[_Place, str] = {}
    for event in run.events:
        if isinstance(event, DecisionEvent) and event.call_digest is not None:
            approved = event.decision == "approve" and event.principal in _MAY_STAND
            found.setdefault((event.step_id, event.call_id), _STANDING if approved else event.decision)
    return found
