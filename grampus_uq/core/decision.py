"""Decisions on steps and calls: tiers, rules for irreversible calls, detector alarm, fitted release. Pure functions."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from grampus_uq.core.alarm import alarm_pending, guarantee_of
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.release import ReleaseRule
from grampus_uq.core.turn_evidence import TurnEvidence, least_of
from grampus_uq.records.building import builder
from grampus_uq.records.call_parts import UNREAD_CALL, CallDoubt, doubt_in_words
from grampus_uq.records.values import Verdict
from grampus_uq.records.vocabulary import Effect, UncertaintyAction, UncertaintyLevel, in_words

if TYPE_CHECKING:
    from grampus_uq.core.chain_rule import Chain
    from grampus_uq.core.state import Profile, SessionState, WorstCase

# A member of an enum takes a while to look up by its name, and these are looked up at every step.
_LOW, _MEDIUM, _HIGH, _ = UncertaintyLevel
_PROCEED, _LOG, _PAUSE, _ABORT = UncertaintyAction
_GRAVITY = {_PROCEED: 0, _LOG: 1, _PAUSE: 2, _ABORT: 3}
_IRREVERSIBLE = Effect.IRREVERSIBLE
_WORDS = {level: level.value.upper() for level in UncertaintyLevel}
_severity = operator.attrgetter("severity")

GRANTABLE = frozenset({"tier", "irreversible_override"})
"""Rules whose pause a grant may lift: they ask because of the tool. All others ask about the run or about one call."""

CHAIN: Final = "chain"
"""The rule that holds a call for its own doubt alone, where a chain says who looks again."""
LOOKED_AT: Final = frozenset({CHAIN, "irreversible_override"})
"""Rules whose pause a look may lift, with a chain in the profile: the call's own doubt, and a belief that is MEDIUM."""

_Ruling = tuple[UncertaintyAction, str, str]
"""Action, rule, reason."""
_new_verdict = builder(Verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that the decision on one step depends on.

    `state` is the session's after the step (before it for a call that is only asked about), `turn` the evidence of this
    step of the model, or of the one that proposes the call; `level` and `confidence` are the run's. `proposed` is False
    for a call that no turn listed, or with other arguments; `doubt` is how sure the model was of the call itself.
    `word_alone`: nothing but the model's own word speaks for it; `unaided`: `confidence` leaves that word out.
    """

    profile: Profile
    state: SessionState
    turn: TurnEvidence
    kind: str
    tool_name: str | None
    irreversible: bool
    level: UncertaintyLevel
    confidence: float
    effect: Effect | None = None
    proposed: bool = True
    doubt: CallDoubt | None = None
    word_alone: bool = False
    unaided: bool = False


def level_of(policy: UncertaintyPolicy, propagated: float, has_reading: bool) -> UncertaintyLevel:
    """The tier of a propagated confidence; at least MEDIUM until the session's first reading."""
    level = policy.classify(propagated)
    return _MEDIUM if level is _LOW and not has_reading else level


def is_irreversible(policy: UncertaintyPolicy, tool_name: str | None, effect: Effect | None) -> bool:
    """True when the effect or the policy's list of names says so: either may raise the danger, neither lowers it."""
    return effect == _IRREVERSIBLE or (tool_name is not None and policy.is_irreversible(tool_name))


def decide(now: Situation) -> Verdict:
    """The verdict on a step, or on a call that is only asked about; both go through here.

    Where the profile only advises, or the run explores and the step can be undone, nothing stops: `advisory_action` is
    then the action that the rules ask for.
    """
    profile, state = now.profile, now.state
    judged = _least_believed(now) if now.irreversible else now
    ruling = _ruling(judged)
    action, rule, reason = ruling if profile.chain is None else _chained(now, judged, profile.chain, ruling)
    wanted, guarantee = None, None if rule == "tier" else _guarantee(now, rule, action)
    explores = state.let_through and may_be_explored(profile.policy, now.kind, now.tool_name, now.effect)
    if profile.advisory or (explores and action.stops):
        wanted = action
        if action.stops:
            action = _LOG
    return _new_verdict(
        action=action,
        level=judged.level,  # a grant goes by it
        rule=rule,
        reason=reason,
        guarantee=guarantee,
        confidence=now.confidence if state.has_reading else None,
        advisory_action=wanted,
        doubt=now.doubt,
    )


def _chained(now: Situation, judged: Situation, chain: Chain, ruling: _Ruling) -> _Ruling:
    """An irreversible call with a chain in the profile: held by `CHAIN` where a look may still let it go.

    The chain only adds: it holds what would go out and is not sure enough for it, and takes the place of the call's own
    doubt, and of a belief that is MEDIUM. Whatever else speaks against the call, and a reading of its own tokens that
    was due, says so as without a chain.
    """
    doubt = now.doubt
    if not now.irreversible:
        return ruling
    if doubt is not None and doubt.part == UNREAD_CALL:
        return ruling if ruling[0].stops else (_PAUSE, "call_evidence", f"irreversible call: {doubt_in_words(doubt)}")
    other = _ruling(replace(judged, doubt=None))
    if other[0].stops and other[1] not in LOOKED_AT:
        return ruling
    step, chance = chain.after(0, None if doubt is None else doubt.probability)
    if step == "release":
        return (ruling[0], CHAIN, ruling[2]) if ruling[1] == "call_evidence" else ruling
    what = "no estimate of the chance that it is right, review needed"
    if chance is not None:
        what = f"chance of {chance:.2f} that it is right, too low to run without review"
    told = "" if doubt is None else f", {doubt_in_words(doubt)}"
    return _PAUSE, CHAIN, f"irreversible call: {what}{told}; {_numbers(now)}"


def _guarantee(now: Situation, rule: str, action: UncertaintyAction) -> str | None:
    """The sentence that a decision carries: the alarm's on its pause, the release rule's on a release."""
    detector, alarm, release = now.profile.detector, now.state.alarm, now.profile.release
    if rule == "detector" and detector is not None and alarm is not None:
        return guarantee_of(detector, alarm)
    if rule == "release" and release is not None:
        return release.guarantee if action.stops is (release.mode == "share") else None
    return None


def _ruling(now: Situation) -> _Ruling:
    """The gravest of what the rules say of a step, of an irreversible call by the least that is believed; and why.

    With a fitted detector or release rule they decide, and the tiers only say how loud the log is; without, the tiers.
    Beside them stand the rules for irreversible calls (no evidence, an alarm in this run, the worst so far) and the
    tools that are always asked for. Of all these only a detector's alarm and a fitted release carry a guarantee. What a
    human answered silences reversible steps, never an irreversible call.
    """
    profile, state = now.profile, now.state
    decision = _tier(now) if profile.detector is None and profile.release is None else _fitted(now)
    if now.irreversible:
        decision = _guarded(now, decision)
        if state.worst_case is not None:
            decision = _in_doubt(now, state.worst_case, decision)
    asked = now.tool_name is not None and profile.policy.asks_always(now.tool_name)
    if asked and decision[0] is not _ABORT and decision[:2] != (_PAUSE, "detector"):  # a grant may lift this pause
        decision = _PAUSE, "always_ask", f"the policy always asks about this tool; {decision[2] or _numbers(now)}"
    if profile.fallback is not None and decision[0].stops:
        return decision[0], decision[1], f"{decision[2]}; the fitted profile does not apply here: {profile.fallback}"
    return decision


def _least_believed(now: Situation) -> Situation:
    """An irreversible call by the least that is believed: now or after its turn, with the model's own word or without.

    The word counts where a fit measured it, and where the policy lets calls go ahead without evidence.
    """
    profile, state, turn = now.profile, now.state, now.turn
    least = now.confidence if turn.belief is None else min(now.confidence, turn.belief)
    word_alone, unaided = now.word_alone, now.unaided
    if leaves_word_out(profile):
        alone = state.unaided
        beliefs = [least if turn.unaided is None else turn.unaided, least if alone is None else alone.cumulative]
        word_alone, unaided = turn.word_alone, min(beliefs) < least
        least = min(least, *beliefs)
        if alone is not None:
            state = replace(state, worst=least_of(state.worst, alone.worst))
    level = now.level
    if least < now.confidence:
        level = level_of(profile.policy, least, state.has_reading)
    if word_alone:  # what waits for other evidence is aborted by what is believed alone
        level = max(_MEDIUM, min(level, max(_HIGH, now.level, key=_severity), key=_severity), key=_severity)
    return replace(now, state=state, level=level, confidence=least, word_alone=word_alone, unaided=unaided)


def leaves_word_out(profile: Profile) -> bool:
    """True where the model's own word releases no irreversible call: no fit measured it, and no evidence stops."""
    return not profile.takes_the_word and profile.policy.on_missing_evidence.stops


def _tier(now: Situation) -> _Ruling:
    """Return the tier's ruling, which carries no statistical guarantee."""
    policy, level = now.profile.policy, now.level
    action = policy.decide(level, now.kind, irreversible=now.irreversible)
    if action is _PROCEED:
        return action, "tier", ""
    if action is _LOG:
        return action, "tier", _loudness(now)
    if now.irreversible:
        rule = "irreversible_override" if level is _MEDIUM else "tier"
        word = "nothing but the model's own word speaks for it, " if now.word_alone else ""
        return action, rule, f"irreversible call: {word}{_numbers(now, policy.low_threshold)}"
    reason = f"{_WORDS[level]}: {_numbers(now, policy.medium_threshold)}"
    if now.state.acknowledged is not None and now.state.acknowledged.severity >= level.severity:
        return _LOG, "acknowledged", reason
    return action, "tier", reason


def _fitted(now: Situation) -> _Ruling:
    """Return the ruling of the detector and the release rule; alarm pauses are inside the detector's one budget."""
    action, rule, reason = (_PROCEED, "tier", "") if now.level is _LOW else (_LOG, "tier", _loudness(now))
    detector, alarm = now.profile.detector, now.state.alarm
    if detector is not None and detector.at_calls and not now.irreversible:
        detector = None  # it speaks of irreversible calls alone
    if detector is not None and alarm is not None and alarm_pending(detector, alarm):
        evidence, limit, chance = alarm.evidence.log_peak, detector.threshold.log_value, now.turn.p_success
        action, rule = now.profile.policy.on_alarm, "detector"
        belief = _numbers(now) if chance is None else f"chance of success {chance:.2f}{_doubtful(now)}"
        reason = f"alarm: log evidence of failure {evidence:.2f} exceeds {limit:.2f}; {belief}"
    release = now.profile.release
    if now.irreversible and release is not None:
        released = _released(now, release, action)
        if not action.stops or _GRAVITY[released[0]] > _GRAVITY[action]:
            return released
    return action, rule, reason


def _released(now: Situation, release: ReleaseRule, action: UncertaintyAction) -> _Ruling:
    """Return the release rule's ruling on an irreversible call; none without a calibrated chance."""
    least, below, chance = release.at_least, release.abort_below, now.turn.p_success
    if least is None:
        return _PAUSE, "release", "irreversible call: no chance of success is high enough for a release"
    if chance is None:
        return action, "tier", ""
    if chance >= least:
        return action, "release", f"chance of success {_apart(chance, ' is at least', least)}"
    aborts = below is not None and chance < below
    needed = below if aborts and below is not None else least
    reason = f"irreversible call: chance of success {_apart(chance, ', below', needed)}{_doubtful(now)}"
    return (_ABORT if aborts else _PAUSE), "release", reason


def _guarded(now: Situation, decision: _Ruling) -> _Ruling:
    """An irreversible call: graver where it or a step before is doubtful, evidence is missing, an alarm was raised."""
    policy, state = now.profile.policy, now.state
    rings = decision[1] == "detector"
    if state.alarmed and not rings and _GRAVITY[policy.on_alarm] >= _GRAVITY[decision[0]]:
        # a grant lifts a tier's pause, not this one
        reason = f"irreversible call after the detector's alarm in this run; {_numbers(now)}"
        decision = policy.on_alarm, "detector", reason
    doubt = _doubt(now)
    if doubt is not None and _gives_way(decision, _PAUSE):
        decision = _PAUSE, "call_evidence", doubt
    missing = _missing(now)
    if missing is not None and _gives_way(decision, policy.on_missing_evidence):
        decision = policy.on_missing_evidence, "missing_evidence", missing
    floor, worst = policy.worst_so_far_floor, state.worst
    if floor is not None and worst is not None and worst < floor and _gives_way(decision, _PAUSE):
        reason = f"irreversible call after a step with confidence {_apart(worst, ', below', floor)}"
        decision = _PAUSE, "worst_so_far", reason
    return decision


def _gives_way(decision: _Ruling, action: UncertaintyAction) -> bool:
    """True where a rule that asks about the call or the run stands above this decision.

    Above a lesser action, and above an equal pause that merely asks because of the tool: a grant lifts such a pause,
    and what speaks against the very call must not go with it.
    """
    graver = _GRAVITY[action] - _GRAVITY[decision[0]]
    return graver > 0 or (graver == 0 and action.stops and decision[1] in GRANTABLE)


def _doubt(now: Situation) -> str | None:
    """Return why the call's own probability holds it, independent of the belief; None if it does not.

    With a fitted detector or release these decide, which may weigh it: a further pause would be outside their promise.
    """
    profile, doubt = now.profile, now.doubt
    floor = profile.policy.call_floor
    fitted = profile.detector is not None or profile.release is not None
    if fitted or floor is None or doubt is None or doubt.probability >= floor:
        return None
    if doubt.part == UNREAD_CALL:
        return f"irreversible call: {doubt_in_words(doubt)}; {_numbers(now)}"
    needed = _apart(doubt.probability, ", needs", floor)
    sure = f"irreversible call: model probability {needed}, {doubt_in_words(doubt)}"
    return f"{sure}; confidence {now.confidence:.2f}"


def _in_doubt(now: Situation, case: WorstCase, decision: _Ruling) -> _Ruling:
    """An irreversible call that the worst case would stop does what missing evidence does, where that is graver.

    So it does however sure the step is: what is held anyway is aborted, too, where a surer one would be.
    """
    policy = now.profile.policy
    missing = policy.on_missing_evidence
    if not missing.stops or not _gives_way(decision, missing):
        return decision
    level = policy.classify(case.cumulative)
    turn = replace(now.turn, p_success=now.turn.at_worst, belief=now.turn.belief_at_worst)
    state = replace(now.state, worst=case.worst, unaided=case.unaided, alarm=case.alarm, worst_case=None)
    worst = replace(now, state=state, level=level, confidence=case.cumulative, turn=turn, doubt=None)
    would = _ruling(_least_believed(worst))
    if not would[0].stops:
        return decision
    reason = f"irreversible call with a missing reading ({case.unread}); in the worst case: {would[2]}"
    return missing, "missing_evidence", reason


def _missing(now: Situation) -> str | None:
    """Why there is no evidence on an irreversible call; None where there is."""
    if not now.proposed:
        return f"irreversible call with arguments that the model did not propose; {_numbers(now)}"
    profile, alarm = now.profile, now.state.alarm
    counted = profile.released_by_counts and now.turn.p_success is not None
    fitted = profile.release is not None or profile.detector is not None
    known = counted or (fitted and now.turn.measured)
    if not now.state.has_reading and not known:
        return "irreversible call: no reading yet"
    if not now.turn.read and not now.turn.word_alone and not known:
        return f"irreversible call: no reading of the turn that proposes it; {_numbers(now)}"
    if fitted and not counted and now.doubt is not None and now.doubt.part == UNREAD_CALL:
        return f"irreversible call: the log-probabilities of its own tokens are missing; {_numbers(now)}"
    if profile.release is not None and now.turn.p_success is None:
        return f"irreversible call: no chance of success for the turn that proposes it; {_numbers(now)}"
    if profile.detector is not None and (alarm is None or alarm.evidence.log_m is None):
        return f"irreversible call: the detector has no score yet; {_numbers(now)}"
    if fitted and now.word_alone and not known:
        return f"irreversible call: nothing but the model's own word speaks for it; {_numbers(now)}"
    return None


def _loudness(now: Situation) -> str:
    """Why a step is logged."""
    if not now.state.has_reading:
        return "no reading yet"
    return f"confidence {now.confidence:.2f} is {_WORDS[now.level]}"


def _numbers(now: Situation, needed: float | None = None) -> str:
    """The belief, what was needed, and the lowest reading of the turn."""
    if not now.state.has_reading:
        return "no reading yet"
    alone = " without the model's own word" if now.unaided else ""
    if needed is None or now.confidence >= needed:
        return f"confidence {now.confidence:.2f}{alone}{_lowest(now)}"
    return f"confidence {_apart(now.confidence, f'{alone}, needs', needed)}{_lowest(now)}"


def _lowest(now: Situation) -> str:
    low = now.turn.lowest
    if low is None:
        return ""
    unstated = "" if now.turn.stated else "; no confidence stated"
    return f"; lowest: {in_words(low[0])} {low[1]:.2f}{unstated}"


def _doubtful(now: Situation) -> str:
    """The part of the call that its writer was least sure of; the lowest reading of the turn where nothing says."""
    doubt = now.doubt
    return _lowest(now) if doubt is None or doubt.part == UNREAD_CALL else f"; {doubt_in_words(doubt)}"


def _apart(value: float, word: str, limit: float) -> str:
    """Two numbers with as many digits as tell them apart, two at least."""
    digits = 2
    while digits < 12 and value != limit and f"{value:.{digits}f}" == f"{limit:.{digits}f}":
        digits += 1
    return f"{value:.{digits}f}{word} {limit:.{digits}f}"


def may_be_explored(policy: UncertaintyPolicy, kind: str, tool_name: str | None, effect: Effect | None) -> bool:
    """Return True for what exploration may let go on: steps of the model, and calls known to be reversible."""
    if kind != "tool_call":
        return True
    harmless = effect is Effect.READ or effect is Effect.REVERSIBLE
    asked = tool_name is not None and policy.asks_always(tool_name)
    return harmless and not asked and not is_irreversible(policy, tool_name, effect)
