"""What is decided about a step follows from every rule that speaks; each rule is stated here once more by itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from grampus_uq.core.alarm import (
    AFTER_REARMING,
    MIDWAY,
    ROLLED_BACK,
    AlarmState,
    DetectorField,
    acknowledge_alarm,
    alarm_pending,
    alarm_raised,
    alarm_step,
    guarantee_of,
    midway,
    rearm,
    rolled_back,
)
from grampus_uq.core.chain_rule import Chain
from grampus_uq.core.decision import GRANTABLE, Situation, decide, is_irreversible, level_of, may_be_explored
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.release import ReleaseRule
from grampus_uq.core.state import SessionState, WorstCase
from grampus_uq.core.turn_evidence import TurnEvidence
from grampus_uq.records.call_parts import UNREAD_CALL, CallDoubt
from grampus_uq.records.values import Verdict
from grampus_uq.records.vocabulary import Effect, UncertaintyAction, UncertaintyLevel
from grampus_uq.stats.eprocess import Detector, start
from grampus_uq.stats.eprocess_scorers import running_minimum
from grampus_uq.stats.eprocess_thresholds import ville_threshold

LOW, MEDIUM, HIGH, CRITICAL = UncertaintyLevel
PROCEED, LOG, PAUSE, ABORT = UncertaintyAction
GRAVITY = [PROCEED, LOG, PAUSE, ABORT]
DETECTOR = Detector(
    streams=("a", "b"),
    scorer=running_minimum(bounded=(True, True), neutral=(0.5, 0.5), stream=0),
    thresholds=(ville_threshold(0.5),),
    deployed=0,
    salt="s",
)
LIMIT = DETECTOR.threshold.log_value
QUIET, RINGING = (
    AlarmState(evidence=start(DETECTOR, "s")._replace(log_m=peak, log_peak=peak)) for peak in (LIMIT - 0.01, LIMIT)
)
UNSEEN = AlarmState(evidence=start(DETECTOR, "s"))


@dataclass(kw_only=True)
class Case:
    """All that a decision rests on, in one place."""

    policy: UncertaintyPolicy = field(default_factory=UncertaintyPolicy)
    tool_name: str | None = "pay"
    irreversible: bool = True
    level: UncertaintyLevel = LOW
    confidence: float = 0.9
    has_reading: bool = True
    turn: TurnEvidence = field(default_factory=lambda: TurnEvidence(read=True))
    worst: float | None = None
    acknowledged: UncertaintyLevel | None = None
    detector: Detector | None = None
    release: ReleaseRule | None = None
    alarm: AlarmState | None = None
    alarmed: bool = False
    worst_case: WorstCase | None = None
    fallback: str | None = None
    by_counts: bool = False
    advisory: bool = False
    let_through: bool = False
    effect: Effect | None = None
    proposed: bool = True
    doubt: CallDoubt | None = None
    chain: Chain | None = None

    def decided(self) -> tuple[UncertaintyAction, str, str]:
        verdict = self.verdict()
        return verdict.action, verdict.rule, verdict.reason

    def verdict(self) -> Verdict:
        profile: Any = SimpleNamespace(
            advisory=self.advisory,
            policy=self.policy, detector=self.detector, release=self.release, fallback=self.fallback,
            released_by_counts=self.by_counts, chain=self.chain,
            takes_the_word=self.detector is not None or self.release is not None,
        )  # fmt: skip
        state = SessionState(
            session_id="s", has_reading=self.has_reading, worst=self.worst, acknowledged=self.acknowledged,
            alarm=self.alarm, alarmed=self.alarmed, worst_case=self.worst_case,
            let_through=self.let_through,
        )  # fmt: skip
        return decide(
            Situation(
                profile=profile, state=state, turn=self.turn, kind="tool_call" if self.tool_name else "llm_call",
                tool_name=self.tool_name, irreversible=self.irreversible, level=self.level, confidence=self.confidence,
                effect=self.effect, proposed=self.proposed, doubt=self.doubt,
            )
        )  # fmt: skip


# -- the rules, stated once more --------------------------------------------------------------------------------------


def reasons(now: Case) -> list[UncertaintyAction]:
    """The action of each rule that speaks against an irreversible call, without the worst case."""
    policy, turn = now.policy, now.turn
    found = []
    if now.tool_name is not None and "ask" in now.tool_name:
        found.append(PAUSE)
    if now.alarmed or (now.detector is not None and now.alarm == RINGING):
        found.append(policy.on_alarm)
    counted = now.by_counts and turn.p_success is not None
    lacking = [not now.has_reading, not turn.read] if not counted else []
    lacking.append(now.release is not None and turn.p_success is None)
    lacking.append(now.detector is not None and now.alarm in (None, UNSEEN))
    if any(lacking):
        found.append(policy.on_missing_evidence)
    if policy.worst_so_far_floor is not None and now.worst is not None and now.worst < policy.worst_so_far_floor:
        found.append(PAUSE)
    fitted = now.release is not None or now.detector is not None
    floor = policy.call_floor
    if not fitted and floor is not None and now.doubt is not None and now.doubt.probability < floor:
        found.append(PAUSE)
    if now.release is not None:
        if now.release.at_least is None:
            found.append(PAUSE)
        elif turn.p_success is not None and turn.p_success < now.release.at_least:
            found.append(ABORT if turn.p_success < (now.release.abort_below or 0.0) else PAUSE)
    elif now.detector is None:
        level = now.level
        if turn.belief is not None and turn.belief < now.confidence:
            level = level_of(policy, turn.belief, now.has_reading)
        found += {LOW: [], MEDIUM: [PAUSE], HIGH: [PAUSE], CRITICAL: [ABORT]}[level]
    return [action for action in found if action in (PAUSE, ABORT)]


def in_the_worst_case(now: Case, case: WorstCase) -> Case:
    chance = now.turn.p_success if now.turn.worst_chance is None else now.turn.worst_chance
    belief = now.turn.belief if now.turn.worst_belief is None else now.turn.worst_belief
    turn = TurnEvidence(read=now.turn.read, p_success=chance, belief=belief)
    level = now.policy.classify(case.cumulative)
    given = {"level": level, "confidence": case.cumulative, "worst": case.worst, "alarm": case.alarm, "turn": turn}
    return replace(now, **given, doubt=None)  # which no missing reading makes graver


UNIT = st.sampled_from([0.0, 0.2, 0.39, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
MAYBE = st.none() | UNIT
POLICIES = st.builds(
    UncertaintyPolicy,
    on_alarm=st.sampled_from(GRAVITY),
    on_missing_evidence=st.sampled_from(GRAVITY),
    worst_so_far_floor=MAYBE,
    call_floor=MAYBE,
    always_ask_tool_names=st.just(["ask"]),
)
TURNS = st.builds(
    TurnEvidence, read=st.booleans(), p_success=MAYBE, worst_chance=MAYBE, belief=MAYBE, worst_belief=MAYBE
)
RELEASES = st.none() | st.builds(
    lambda at_least, below: ReleaseRule(at_least=at_least, abort_below=None if below is None else min(below, at_least)),
    UNIT,
    MAYBE,
) | st.just(ReleaseRule(at_least=None))  # fmt: skip
ALARMS = st.sampled_from([None, UNSEEN, QUIET, RINGING])
CASES = st.none() | st.builds(
    WorstCase, cumulative=UNIT, memory=st.none(), worst=MAYBE, alarm=ALARMS, p_success=MAYBE, unread=st.just("p_true")
)


DOUBTS = st.none() | st.builds(CallDoubt, call=st.just("1 pay"), probability=UNIT, part=st.just("amount"), least=UNIT)


@st.composite
def situations(draw: st.DrawFn) -> Case:
    policy, confidence, has_reading = draw(POLICIES), draw(UNIT), draw(st.booleans())
    return Case(
        policy=policy,
        confidence=confidence,
        level=level_of(policy, confidence, has_reading),
        has_reading=has_reading,
        turn=draw(TURNS),
        tool_name=draw(st.sampled_from([None, "pay", "ask_first"])),
        worst=draw(MAYBE),
        detector=draw(st.sampled_from([None, DETECTOR])),
        release=draw(RELEASES),
        alarm=draw(ALARMS),
        alarmed=draw(st.sampled_from([False, False, True])),
        worst_case=draw(CASES),
        by_counts=draw(st.booleans()),
        doubt=draw(DOUBTS),
        acknowledged=draw(st.sampled_from([None, *UncertaintyLevel])),
    )


@settings(max_examples=10 * settings().max_examples)
@given(situations())
def test_an_irreversible_call_meets_the_gravest_of_the_rules_that_speak_against_it(now: Case) -> None:
    against = reasons(now)
    always = [PAUSE] if now.tool_name == "ask_first" else []
    if now.worst_case is not None:
        missing = now.policy.on_missing_evidence
        if missing in (PAUSE, ABORT) and reasons(in_the_worst_case(now, now.worst_case)):
            against.append(missing)
    action, rule, reason = now.decided()
    assert action.stops is bool(against)
    if against:
        assert action is max(against, key=GRAVITY.index)
        assert reason
        assert rule != "acknowledged"
    if action is PAUSE is now.policy.on_alarm and now.alarmed and not now.policy.on_missing_evidence.stops:
        assert rule == "detector"
    if action is PAUSE and always and rule not in ("always_ask", "detector"):
        raise AssertionError("another pause may be lifted by standing leave")


def raised(now: Case, by: float) -> Case:
    """The same, all that was read and believed surer."""

    def up(value: float | None) -> Any:
        return None if value is None else min(value + by, 1.0)

    turn, case, doubt = now.turn, now.worst_case, now.doubt
    confidence = up(now.confidence)
    return replace(
        now,
        confidence=confidence,
        level=level_of(now.policy, confidence, now.has_reading),
        worst=up(now.worst),
        turn=replace(
            turn, p_success=up(turn.p_success), worst_chance=up(turn.worst_chance), belief=up(turn.belief),
            worst_belief=up(turn.worst_belief),
        ),
        worst_case=case and replace(case, cumulative=up(case.cumulative), worst=up(case.worst)),
        doubt=doubt and replace(doubt, probability=up(doubt.probability)),
    )  # fmt: skip


@settings(max_examples=10 * settings().max_examples)
@given(situations(), st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.0]), st.booleans(), st.booleans())
def test_a_surer_call_never_meets_a_graver_action(now: Case, by: float, all_of_it: bool, by_tiers: bool) -> None:
    """Whatever the policy says of missing evidence and alarms, and whether all is surer or the belief alone."""
    if by_tiers:
        now = replace(now, detector=None, release=None, alarmed=False, turn=replace(now.turn, read=True, belief=None))
    surer = raised(now, by)
    if not all_of_it:
        surer = replace(now, confidence=surer.confidence, level=surer.level)
    assert GRAVITY.index(surer.decided()[0]) <= GRAVITY.index(now.decided()[0])


@given(situations())
def test_of_a_reversible_step_only_the_tier_the_alarm_and_the_name_ask(now: Case) -> None:
    now.irreversible = False
    action, rule, reason = now.decided()
    tier = {LOW: PROCEED, MEDIUM: LOG, HIGH: PAUSE, CRITICAL: ABORT}[now.level]
    wanted, by = tier, "tier"
    if now.detector is not None or now.release is not None:
        wanted = PROCEED if now.level is LOW else LOG
        if now.detector is not None and now.alarm == RINGING:
            wanted, by = now.policy.on_alarm, "detector"
    elif tier.stops and now.acknowledged is not None and now.acknowledged.severity >= now.level.severity:
        wanted, by = LOG, "acknowledged"
    if now.tool_name == "ask_first" and wanted is not ABORT and (wanted, by) != (PAUSE, "detector"):
        wanted, by = PAUSE, "always_ask"
    assert (action, rule) == (wanted, by)
    assert bool(reason) is (action is not PROCEED or by == "detector")


AGAINST: dict[str, dict[str, Any]] = {
    "call_evidence": {"doubt": CallDoubt(call="1 pay", probability=0.3, part="amount", least=0.3)},
    "missing_evidence": {"turn": TurnEvidence()},
    "worst_so_far": {"worst": 0.2, "policy": UncertaintyPolicy(worst_so_far_floor=0.5)},
}


@pytest.mark.parametrize("rule", AGAINST)
@pytest.mark.parametrize(("level", "confidence"), [(LOW, 0.9), (MEDIUM, 0.7), (HIGH, 0.5)])
def test_what_speaks_against_the_call_is_named_where_its_tier_holds_it_too(
    rule: str, level: UncertaintyLevel, confidence: float
) -> None:
    """A grant lifts the tier's pause: it must not take with it what is said of the very call."""
    now = Case(level=level, confidence=confidence)
    assert now.decided()[1] in GRANTABLE
    assert replace(now, **AGAINST[rule]).decided()[:2] == (PAUSE, rule)


def test_a_reading_that_was_due_is_named_where_the_tier_holds_the_call_as_gravely() -> None:
    now = Case(level=MEDIUM, confidence=0.7, worst_case=WorstCase(cumulative=0.5, unread="p_true"))
    for missing in (PAUSE, ABORT):
        policy = UncertaintyPolicy(on_missing_evidence=missing)
        assert replace(now, policy=policy).decided()[:2] == (missing, "missing_evidence")
    assert replace(now, policy=MISSING_LOGS).decided()[:2] == (PAUSE, "irreversible_override")
    assert replace(now, level=CRITICAL, confidence=0.1).decided()[:2] == (ABORT, "tier")


# -- what is said -----------------------------------------------------------------------------------------------------

ASKS = UncertaintyPolicy(always_ask_tool_names=["pay"])
LOWEST = TurnEvidence(read=True, lowest=("verbalized", 0.3), p_success=0.795, stated=True)
UNSTATED = TurnEvidence(read=True, lowest=("semantic_entropy", 0.25), p_success=0.1)
SURE = ReleaseRule(at_least=0.8, abort_below=0.2)
UNREAD = CallDoubt(call="1 pay", probability=0.0, part=UNREAD_CALL, least=0.0)
DOUBT = CallDoubt(call="1 pay", probability=0.3, part="to", least=0.3)
SURE_CASE = WorstCase(cumulative=0.9, unread="p")
LOGS_ALARMS = UncertaintyPolicy(always_ask_tool_names=["pay"], on_alarm=LOG)
MISSING_LOGS = UncertaintyPolicy(on_missing_evidence=LOG)


@pytest.mark.parametrize(
    ("given", "decision"),
    [
        ({}, (PROCEED, "tier", "")),
        ({"irreversible": False, "level": MEDIUM, "confidence": 0.7}, (LOG, "tier", "confidence 0.70 is MEDIUM")),
        ({"irreversible": False, "level": MEDIUM, "has_reading": False}, (LOG, "tier", "no reading yet")),
        (
            {"irreversible": False, "level": HIGH, "confidence": 0.5996},
            (PAUSE, "tier", "HIGH: confidence 0.5996, needs 0.6000"),
        ),
        (
            {"irreversible": False, "level": HIGH, "confidence": 0.5, "acknowledged": HIGH, "turn": LOWEST},
            (LOG, "acknowledged", "HIGH: confidence 0.50, needs 0.60; lowest: stated confidence 0.30"),
        ),
        (
            {"level": MEDIUM, "confidence": 0.7, "turn": UNSTATED},
            (
                PAUSE,
                "irreversible_override",
                "irreversible call: confidence 0.70, needs 0.80; lowest: semantic entropy 0.25; no confidence stated",
            ),
        ),
        ({"level": HIGH, "confidence": 0.5}, (PAUSE, "tier", "irreversible call: confidence 0.50, needs 0.80")),
        (
            {"turn": TurnEvidence(read=True, belief=0.3)},
            (ABORT, "tier", "irreversible call: confidence 0.30, needs 0.80"),
        ),
        ({"policy": ASKS}, (PAUSE, "always_ask", "the policy always asks about this tool; confidence 0.90")),
        (
            {"policy": ASKS, "level": HIGH, "confidence": 0.5},
            (
                PAUSE,
                "always_ask",
                "the policy always asks about this tool; irreversible call: confidence 0.50, needs 0.80",
            ),
        ),
        (
            {"detector": DETECTOR, "alarm": RINGING, "irreversible": False},
            (PAUSE, "detector", "alarm: log evidence of failure 0.69 exceeds 0.69; confidence 0.90"),
        ),
        (
            {"detector": DETECTOR, "alarm": acknowledge_alarm(RINGING), "alarmed": True},
            (PAUSE, "detector", "irreversible call after the detector's alarm in this run; confidence 0.90"),
        ),
        (
            {"release": SURE, "turn": LOWEST},
            (
                PAUSE,
                "release",
                "irreversible call: chance of success 0.795, below 0.800; lowest: stated confidence 0.30",
            ),
        ),
        (
            {"release": SURE, "turn": UNSTATED},
            (
                ABORT,
                "release",
                "irreversible call: chance of success 0.10, below 0.20; lowest: semantic entropy 0.25; "
                "no confidence stated",
            ),
        ),
        (
            {"release": SURE, "turn": TurnEvidence(read=True, p_success=0.8), "level": MEDIUM},
            (LOG, "release", "chance of success 0.80 is at least 0.80"),
        ),
        (
            {"release": ReleaseRule(at_least=None), "turn": LOWEST},
            (PAUSE, "release", "irreversible call: no chance of success is high enough for a release"),
        ),
        (
            {"release": SURE, "policy": MISSING_LOGS},
            (
                LOG,
                "missing_evidence",
                "irreversible call: no chance of success for the turn that proposes it; confidence 0.90",
            ),
        ),
        (
            {"release": SURE, "turn": TurnEvidence(read=True, p_success=0.9), "doubt": UNREAD},
            (
                PAUSE,
                "missing_evidence",
                "irreversible call: the log-probabilities of its own tokens are missing; confidence 0.90",
            ),
        ),
        (
            {"detector": DETECTOR, "alarm": QUIET, "doubt": UNREAD},
            (
                PAUSE,
                "missing_evidence",
                "irreversible call: the log-probabilities of its own tokens are missing; confidence 0.90",
            ),
        ),
        (
            {"release": SURE, "turn": TurnEvidence(read=True, p_success=0.9), "doubt": UNREAD, "by_counts": True},
            (PROCEED, "release", "chance of success 0.90 is at least 0.80"),
        ),
        (
            {"turn": TurnEvidence()},
            (
                PAUSE,
                "missing_evidence",
                "irreversible call: no reading of the turn that proposes it; confidence 0.90",
            ),
        ),
        (
            {"detector": DETECTOR, "alarm": UNSEEN},
            (PAUSE, "missing_evidence", "irreversible call: the detector has no score yet; confidence 0.90"),
        ),
        (
            {"policy": UncertaintyPolicy(on_missing_evidence=ABORT), "level": MEDIUM, "has_reading": False},
            (ABORT, "missing_evidence", "irreversible call: no reading yet"),
        ),
        (
            {"policy": UncertaintyPolicy(worst_so_far_floor=0.5), "worst": 0.4},
            (PAUSE, "worst_so_far", "irreversible call after a step with confidence 0.40, below 0.50"),
        ),
        ({"policy": UncertaintyPolicy(worst_so_far_floor=0.5), "worst": 0.5}, (PROCEED, "tier", "")),
        (
            {"worst_case": WorstCase(cumulative=0.7, memory=None, worst=0.0, alarm=None, p_success=None, unread="p")},
            (
                PAUSE,
                "missing_evidence",
                "irreversible call with a missing reading (p); in the worst case: irreversible call: "
                "confidence 0.70, needs 0.80",
            ),
        ),
        (
            {"turn": TurnEvidence(read=True, belief=0.9, worst_belief=0.5), "worst_case": SURE_CASE},
            (
                PAUSE,
                "missing_evidence",
                "irreversible call with a missing reading (p); in the worst case: irreversible call: "
                "confidence 0.50, needs 0.80",
            ),
        ),
        (
            {
                "turn": TurnEvidence(read=True, p_success=0.9, worst_chance=0.5),
                "release": SURE,
                "worst_case": SURE_CASE,
                "policy": UncertaintyPolicy(on_missing_evidence=ABORT),
            },
            (
                ABORT,
                "missing_evidence",
                "irreversible call with a missing reading (p); in the worst case: irreversible call: chance of "
                "success 0.50, below 0.80",
            ),
        ),
        (
            {"detector": DETECTOR, "alarm": QUIET, "worst_case": replace(SURE_CASE, alarm=RINGING)},
            (
                PAUSE,
                "missing_evidence",
                "irreversible call with a missing reading (p); in the worst case: alarm: log evidence of failure "
                "0.69 exceeds 0.69; confidence 0.90",
            ),
        ),
        (
            {
                "policy": UncertaintyPolicy(worst_so_far_floor=0.5),
                "worst": 0.6,
                "worst_case": replace(SURE_CASE, worst=0.4),
            },
            (
                PAUSE,
                "missing_evidence",
                "irreversible call with a missing reading (p); in the worst case: irreversible call after a step with "
                "confidence 0.40, below 0.50",
            ),
        ),
        ({"worst_case": SURE_CASE}, (PROCEED, "tier", "")),
        ({"turn": TurnEvidence(read=True, belief=0.85)}, (PROCEED, "tier", "")),
        (
            {"alarmed": True, "level": MEDIUM, "confidence": 0.7},
            (PAUSE, "detector", "irreversible call after the detector's alarm in this run; confidence 0.70"),
        ),
        ({"release": SURE, "policy": UncertaintyPolicy(on_missing_evidence=PROCEED)}, (PROCEED, "tier", "")),
        (
            {"release": SURE, "turn": TurnEvidence(read=True, p_success=0.2)},
            (PAUSE, "release", "irreversible call: chance of success 0.20, below 0.80"),
        ),
        (
            {"detector": DETECTOR, "alarm": RINGING, "release": SURE, "turn": UNSTATED},
            (
                ABORT,
                "release",
                "irreversible call: chance of success 0.10, below 0.20; lowest: semantic entropy 0.25; "
                "no confidence stated",
            ),
        ),
        (
            {"policy": LOGS_ALARMS, "detector": DETECTOR, "alarm": RINGING, "irreversible": False},
            (
                PAUSE,
                "always_ask",
                "the policy always asks about this tool; alarm: log evidence of failure 0.69 exceeds 0.69; "
                "confidence 0.90",
            ),
        ),
        (
            {"policy": ASKS, "detector": DETECTOR, "alarm": RINGING, "irreversible": False},
            (PAUSE, "detector", "alarm: log evidence of failure 0.69 exceeds 0.69; confidence 0.90"),
        ),
        (
            {"detector": DETECTOR, "alarm": RINGING, "release": SURE, "turn": TurnEvidence(read=True, p_success=0.5)},
            (PAUSE, "detector", "alarm: log evidence of failure 0.69 exceeds 0.69; chance of success 0.50"),
        ),
        (
            {"detector": DETECTOR, "alarm": RINGING, "turn": UNSTATED, "doubt": DOUBT},
            (
                PAUSE,
                "detector",
                "alarm: log evidence of failure 0.69 exceeds 0.69; chance of success 0.10; least sure of `to` (0.30)",
            ),
        ),
        (
            {"release": SURE, "turn": LOWEST, "doubt": DOUBT},
            (
                PAUSE,
                "release",
                "irreversible call: chance of success 0.795, below 0.800; least sure of `to` (0.30)",
            ),
        ),
        (
            {"policy": ASKS, "level": CRITICAL, "confidence": 0.3},
            (ABORT, "tier", "irreversible call: confidence 0.30, needs 0.80"),
        ),
        (
            {"fallback": "another model", "level": HIGH, "confidence": 0.5},
            (
                PAUSE,
                "tier",
                "irreversible call: confidence 0.50, needs 0.80; the fitted profile does not apply here: another model",
            ),
        ),
        ({"fallback": "another model"}, (PROCEED, "tier", "")),
    ],
    ids=str,
)
def test_a_decision_says_its_rule_and_the_numbers_that_it_rests_on(given: dict[str, Any], decision: Any) -> None:
    assert Case(**given).decided() == decision


@pytest.mark.parametrize(
    ("confidence", "shown"),
    [
        (0.59, "0.59, needs 0.60"),
        (0.59999999999, "0.59999999999, needs 0.60000000000"),
        (0.599999999999, "0.599999999999, needs 0.600000000000"),
        (0.5999999999999, "0.600000000000, needs 0.600000000000"),
    ],
)
def test_two_numbers_are_told_apart_by_as_many_digits_as_it_takes_twelve_at_most(confidence: float, shown: str) -> None:
    assert Case(irreversible=False, level=HIGH, confidence=confidence).decided()[2] == f"HIGH: confidence {shown}"


# -- names, effects and levels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", [None, *Effect])
@pytest.mark.parametrize("name", [None, "look", "pay", "ask_first"])
def test_danger_is_raised_by_the_effect_or_by_the_name_and_lowered_by_neither(
    name: str | None, effect: Effect | None
) -> None:
    policy = UncertaintyPolicy(irreversible_tool_names=["pay"], always_ask_tool_names=["ask"])
    grave = effect is Effect.IRREVERSIBLE or name == "pay"
    assert is_irreversible(policy, name, effect) is grave
    harmless = effect in (Effect.READ, Effect.REVERSIBLE) and not grave and name != "ask_first"
    assert may_be_explored(policy, "tool_call", name, effect) is harmless
    assert may_be_explored(policy, "llm_call", name, effect)


def test_before_the_first_reading_no_step_is_low() -> None:
    assert [level_of(UncertaintyPolicy(), value, True) for value in (0.8, 0.6, 0.4, 0.39)] == list(UncertaintyLevel)
    assert [level_of(UncertaintyPolicy(), v, False) for v in (1.0, 0.6, 0.4, 0.39)] == [MEDIUM, MEDIUM, HIGH, CRITICAL]


# -- the alarm --------------------------------------------------------------------------------------------------------


def test_an_alarm_rings_from_its_threshold_on_until_somebody_answers() -> None:
    assert not alarm_pending(DETECTOR, None)
    assert not alarm_raised(DETECTOR, None)
    for state, rung in ((UNSEEN, False), (QUIET, False), (RINGING, True)):
        assert alarm_pending(DETECTOR, state) is alarm_raised(DETECTOR, state) is rung
        answered = acknowledge_alarm(state)
        assert answered.answered
        assert not alarm_pending(DETECTOR, answered)
        assert alarm_raised(DETECTOR, answered) is rung


def test_rearming_counts_and_starts_the_evidence_anew_and_its_alarms_promise_nothing() -> None:
    once = rearm(DETECTOR, acknowledge_alarm(RINGING), "s")
    assert once == AlarmState(evidence=start(DETECTOR, "s"), rearmed=1)
    assert rearm(DETECTOR, once, "s").rearmed == 2
    assert guarantee_of(DETECTOR, RINGING) == DETECTOR.threshold.guarantee
    assert guarantee_of(DETECTOR, once) == AFTER_REARMING
    begun = midway(DETECTOR, "s")
    assert begun == AlarmState(evidence=start(DETECTOR, "s"), midway=True)
    assert guarantee_of(DETECTOR, begun) == MIDWAY
    assert guarantee_of(DETECTOR, rearm(DETECTOR, begun, "s")) == ROLLED_BACK
    assert midway(DETECTOR, "t").evidence.tie != begun.evidence.tie != start(DETECTOR, "t").tie


def test_a_rollback_keeps_the_evidence_of_then_and_its_alarms_promise_nothing() -> None:
    assert rolled_back(DETECTOR, None, "s") == AlarmState(evidence=start(DETECTOR, "s"), rearmed=1, midway=True)
    assert rolled_back(DETECTOR, None, "t").evidence.tie == start(DETECTOR, "t").tie
    assert rolled_back(DETECTOR, RINGING, "t") == replace(RINGING, rearmed=1, midway=True)
    assert rolled_back(DETECTOR, replace(RINGING, rearmed=2), "s") == replace(RINGING, rearmed=2, midway=True)
    assert guarantee_of(DETECTOR, rolled_back(DETECTOR, RINGING, "s")) == ROLLED_BACK


def test_a_detector_in_a_profile_is_read_from_json_and_taken_as_it_is() -> None:
    field = TypeAdapter(DetectorField)
    assert field.validate_python(DETECTOR) is DETECTOR
    written = field.dump_python(DETECTOR)
    assert field.validate_python(written) == DETECTOR
    with pytest.raises(ValueError, match="unknown"):
        field.validate_python({**written, "unknown": 1})


def test_an_alarm_takes_its_own_streams_in_their_order_and_keeps_what_was_said_of_it() -> None:
    fresh, log_m = alarm_step(DETECTOR, None, "s", {"b": 0.9, "a": 0.1, "c": 0.0})
    assert fresh.evidence.tie == start(DETECTOR, "s").tie
    assert log_m == fresh.evidence.log_m
    assert alarm_pending(DETECTOR, fresh)
    assert not alarm_pending(DETECTOR, alarm_step(DETECTOR, None, "s", {"a": 0.9, "b": 0.1})[0])
    said = AlarmState(evidence=fresh.evidence, answered=True, rearmed=2, midway=True)
    after, unread = alarm_step(DETECTOR, said, "other", {"b": None})
    assert (after.answered, after.rearmed, after.midway, after.evidence.step) == (True, 2, True, 2)
    assert unread == fresh.evidence.log_m
    assert after.evidence.tie == fresh.evidence.tie


ASKS = UncertaintyPolicy(always_ask_tool_names=["ask"])
SHARE = ReleaseRule(at_least=0.8, mode="share", guarantee="promise")


# -- what a verdict carries beside action, rule and reason --


@pytest.mark.parametrize(
    ("given", "action", "advised"),
    [
        ({"level": CRITICAL}, ABORT, None),
        ({"level": CRITICAL, "advisory": True}, LOG, ABORT),
        ({"level": LOW, "advisory": True}, PROCEED, PROCEED),
        ({"level": MEDIUM, "advisory": True}, LOG, LOG),
        ({"level": CRITICAL, "let_through": True}, LOG, ABORT),
        ({"level": LOW, "let_through": True}, PROCEED, None),
        ({"level": CRITICAL, "let_through": True, "tool_name": "look", "effect": Effect.READ}, LOG, ABORT),
        ({"level": CRITICAL, "let_through": True, "tool_name": "look"}, ABORT, None),
        ({"level": LOW, "let_through": True, "tool_name": "ask", "effect": Effect.READ, "policy": ASKS}, PAUSE, None),
    ],
)
def test_an_advisory_profile_and_a_run_that_explores_stop_nothing_and_say_what_the_rules_ask_for(
    given: dict[str, Any], action: UncertaintyAction, advised: UncertaintyAction | None
) -> None:
    verdict = Case(**{"irreversible": False, "tool_name": None, **given}).verdict()
    assert (verdict.action, verdict.advisory_action, verdict.level) == (action, advised, given["level"])


@pytest.mark.parametrize("mode", ["certified", "share"])
@pytest.mark.parametrize("chance", [0.9, 0.1])
def test_a_release_rule_promises_on_what_it_releases_or_on_what_it_pauses(mode: Any, chance: float) -> None:
    rule = ReleaseRule(at_least=0.8, mode=mode, guarantee="promise")
    verdict = Case(release=rule, turn=TurnEvidence(read=True, p_success=chance)).verdict()
    assert verdict.rule == "release"
    assert verdict.guarantee == ("promise" if verdict.action.stops is (mode == "share") else None)


def test_only_an_alarm_or_a_release_carries_a_guarantee_and_confidence_needs_a_reading() -> None:
    ringing = Case(irreversible=False, tool_name=None, detector=DETECTOR, alarm=RINGING).verdict()
    assert (ringing.rule, ringing.guarantee) == ("detector", guarantee_of(DETECTOR, RINGING))
    assert Case(alarmed=True, alarm=RINGING).verdict().guarantee is None  # under a profile without a detector
    assert Case(alarmed=True, detector=DETECTOR).verdict().guarantee is None
    assert Case(level=HIGH, confidence=0.5, release=None).verdict().guarantee is None
    assert (Case(confidence=0.9).verdict().confidence, Case(has_reading=False).verdict().confidence) == (0.9, None)
    unread = Case(release=SHARE, turn=TurnEvidence(read=False)).verdict()
    assert (unread.rule, unread.guarantee) == ("missing_evidence", None)


def test_a_call_that_no_turn_proposed_so_says_it_with_the_numbers() -> None:
    reason = "irreversible call with arguments that the model did not propose; confidence 0.90"
    assert Case(proposed=False).decided() == (PAUSE, "missing_evidence", reason)
