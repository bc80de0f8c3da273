"""What is done about a step: the tiers, rules for irreversible calls, a detector's alarm, a fitted release. Pure."""

from __future__ import annotations

from grampus_uq.alarm import AlarmState, rings
from grampus_uq.policy import UncertaintyPolicy
from grampus_uq.release import ReleaseRule
from grampus_uq.stats.eprocess import Detector
from grampus_uq.vocabulary import Effect, UncertaintyAction, UncertaintyLevel

__all__ = [
    "Decision",
    "decide",
    "decide_fitted",
    "decide_irreversible",
    "is_irreversible",
    "level_of",
    "may_be_let_through",
]

# A member of an enum takes a while to look up by its name, and these are looked up at every step.
_LOW, _MEDIUM, _HIGH, _CRITICAL = UncertaintyLevel
_PROCEED, _LOG, _PAUSE, _ABORT = UncertaintyAction
_IRREVERSIBLE = Effect.IRREVERSIBLE
_WORDS = {level: level.value.upper() for level in UncertaintyLevel}

Decision = tuple[UncertaintyAction, str, str]
"""Action, rule, reason."""


def level_of(policy: UncertaintyPolicy, propagated: float, has_reading: bool) -> UncertaintyLevel:
    """The tier of a propagated confidence; at least MEDIUM until the session's first reading."""
    level = policy.classify(propagated)
    return _MEDIUM if level is _LOW and not has_reading else level


def is_irreversible(policy: UncertaintyPolicy, tool_name: str | None, effect: Effect | None) -> bool:
    """The effect says so, or the guide's substring rule does: either may raise the danger, neither lowers it."""
    return effect == _IRREVERSIBLE or (tool_name is not None and policy.is_irreversible(tool_name))


def decide(
    policy: UncertaintyPolicy,
    level: UncertaintyLevel,
    confidence: float,
    kind: str,
    acknowledged: UncertaintyLevel | None,
) -> Decision:
    """What the tier says of a step that is no irreversible call. It carries no statistical guarantee."""
    action = policy.decide(level, kind, irreversible=False)
    if action is _PROCEED:
        return action, "tier", ""
    reason = f"confidence {confidence:.2f} is {_WORDS[level]}"
    if acknowledged is not None and action.stops and acknowledged.severity >= level.severity:
        return _LOG, "acknowledged", reason
    return action, "tier", reason


def decide_irreversible(
    policy: UncertaintyPolicy, level: UncertaintyLevel, confidence: float, *, evidence: bool, worst: float | None
) -> Decision:
    """The gravest of what the rules say of an irreversible call; what a human acknowledged never covers it.

    No rule here carries a statistical guarantee.
    """
    action = policy.decide(level, "tool_call", irreversible=True)
    rule, reason = "tier", "" if action is _PROCEED else f"confidence {confidence:.2f} is {_WORDS[level]}"
    if level is _MEDIUM:
        rule, reason = "irreversible_override", f"irreversible call at confidence {confidence:.2f}"
    if not evidence and _GRAVITY[policy.on_missing_evidence] > _GRAVITY[action]:
        action = policy.on_missing_evidence
        rule, reason = "missing_evidence", "irreversible call without any reading"
    floor = policy.worst_so_far_floor
    if floor is not None and worst is not None and worst < floor and not action.stops:
        action, rule = _PAUSE, "worst_so_far"
        reason = f"irreversible call after a step at confidence {worst:.2f}"
    return action, rule, reason


def decide_fitted(
    policy: UncertaintyPolicy,
    detector: Detector | None,
    alarm: AlarmState | None,
    release: ReleaseRule | None,
    chance: float | None,
    level: UncertaintyLevel,
    confidence: float,
    irreversible: bool,
    *,
    evidence: bool,
    worst: float | None,
) -> Decision:
    """With a fitted detector or release rule: they decide, and the tiers only say how loud the log is.

    The detector's alarm is inside its one budget. Beside it stand the rules for irreversible calls: the fitted release,
    and those that the policy names (no evidence at all, the worst so far). They are outside the budget: a pause by them
    carries no guarantee. `chance` is the calibrated probability of success after the latest step of the model.
    """
    action, rule, reason = _PROCEED, "tier", ""
    if level is not _LOW:
        action, reason = _LOG, f"confidence {confidence:.2f} is {_WORDS[level]}"
    if detector is not None and alarm is not None and rings(detector, alarm):
        evidence_now, limit = alarm.evidence.log_peak, detector.threshold.log_value
        action, rule = policy.on_alarm, "detector"
        reason = f"log evidence of failure {evidence_now:.2f} exceeds {limit:.2f}"
    if irreversible:
        if release is not None and not action.stops:
            action, rule, reason = _released(release, chance, action)
            evidence = evidence and chance is not None
        blind = detector is not None and _is_blind(alarm)
        if (blind or not evidence) and _GRAVITY[policy.on_missing_evidence] > _GRAVITY[action]:
            action, rule = policy.on_missing_evidence, "missing_evidence"
            reason = "irreversible call before the detector had any score" if blind else _UNREAD
        floor = policy.worst_so_far_floor
        if floor is not None and worst is not None and worst < floor and not action.stops:
            action, rule = _PAUSE, "worst_so_far"
            reason = f"irreversible call after a step at confidence {worst:.2f}"
    return action, rule, reason


_UNREAD = "irreversible call without any reading"


def _is_blind(alarm: AlarmState | None) -> bool:
    """True while none of the detector's streams was ever read in this session: its silence then says nothing."""
    return alarm is None or (alarm.evidence.log_m is None and alarm.rearmed == 0)


def _released(release: ReleaseRule, chance: float | None, action: UncertaintyAction) -> Decision:
    """What the release rule says of an irreversible call; without a chance it says nothing."""
    least = release.at_least
    if least is None:
        return _PAUSE, "release", "irreversible call, and no chance of success is high enough to release one"
    if chance is None:
        return action, "tier", ""
    if chance >= least:
        return action, "release", f"chance of success {chance:.2f} is at least {least:.2f}"
    below = release.abort_below
    if below is not None and chance < below:
        return _ABORT, "release", f"irreversible call at a chance of success of {chance:.2f}, below {below:.2f}"
    return _PAUSE, "release", f"irreversible call at a chance of success of {chance:.2f}, below {least:.2f}"


def may_be_let_through(policy: UncertaintyPolicy, kind: str, tool_name: str | None, effect: Effect | None) -> bool:
    """True for what a random release may let through: steps of the model, and calls that are known to be reversible."""
    if kind != "tool_call":
        return True
    harmless = effect is Effect.READ or effect is Effect.REVERSIBLE
    return harmless and not is_irreversible(policy, tool_name, effect)


_GRAVITY = {_PROCEED: 0, _LOG: 1, _PAUSE: 2, _ABORT: 3}
