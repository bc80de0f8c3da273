"""A call that its own writer doubts is held, whatever was believed before: belief and call are two witnesses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Effect, Profile, Reading, Step, ToolCall, UncertaintyEstimator, UncertaintyPolicy, Verdict
from grampus_uq.core.engine import advance, judge_call
from grampus_uq.core.state import SessionState, state_from_json, state_to_json
from grampus_uq.core.turn_evidence import TurnEvidence, doubts, is_proposed
from grampus_uq.records.call_parts import (
    NEW_WORD,
    UNREAD_CALL,
    CallDoubt,
    CallPart,
    Candidate,
    Support,
    call_probability,
)
from grampus_uq.records.vocabulary import MissingReason, UncertaintyAction
from grampus_uq.stats.eprocess import Detector
from grampus_uq.stats.eprocess_scorers import running_minimum
from grampus_uq.stats.eprocess_thresholds import ville_threshold

GUIDE = Profile(policy=UncertaintyPolicy(call_floor=None))
DEFAULT = Profile()
GRAVITY = list(UncertaintyAction)
UNIT = st.floats(0.0, 1.0)
PAY = ToolCall(id="c", name="pay", arguments={"amount": 5})


def parts(amount: float, call: int = 0, name: float = 1.0) -> list[CallPart]:
    return [
        CallPart(call=call, probability=name, least=name),
        CallPart(call=call, name="amount", probability=amount, least=amount),
    ]


def read(*found: CallPart) -> Reading:
    odds = [value for call in {part.call for part in found} if (value := call_probability(found, call)) is not None]
    return Reading(source="call_probability", value=min(odds), parts=tuple(found))


def after(profile: Profile, fused: list[float], *own: Reading, calls: tuple[ToolCall, ...] = (PAY,)) -> SessionState:
    """A run whose steps state these confidences; the last of them proposes the calls."""
    state = SessionState(session_id="s")
    for number, value in enumerate(fused):
        last = number == len(fused) - 1
        step = Step(step_id=f"{number}", kind="llm_call", time_s=0.0, tool_calls=calls if last else ())
        readings = [Reading(source="p_true", value=value), *(own if last else ())]
        state, _ = advance(profile, state, step, readings)
    return state


def judged(profile: Profile, state: SessionState, call: ToolCall | str = PAY) -> Any:
    """The verdict on the call, which is what a step that makes it is then told."""
    verdict = judge_call(profile, state, call, Effect.IRREVERSIBLE)
    proposed = ToolCall(name=call) if isinstance(call, str) else call
    step = Step(step_id="", kind="tool_call", time_s=0.0, tool_calls=(proposed,), effect=Effect.IRREVERSIBLE)
    made = advance(profile, state, step, ())[1]
    assert (made.action, made.rule) == (verdict.action, verdict.rule)
    return verdict


@given(st.lists(UNIT, max_size=6), st.lists(UNIT, max_size=6), UNIT, UNIT)
def test_no_confidence_in_earlier_steps_releases_a_doubtful_call(
    earlier: list[float], other: list[float], stated: float, odds: float
) -> None:
    floor = DEFAULT.policy.call_floor
    assert floor is not None
    for before in (earlier, other, [1.0] * len(earlier)):
        verdict = judged(DEFAULT, after(DEFAULT, [*before, stated], read(*parts(odds))))
        assert not (odds < floor and verdict.allowed)


@given(st.lists(UNIT, max_size=6), UNIT, UNIT, UNIT)
def test_it_only_ever_holds_more_than_the_guides_rule_and_the_surer_call_is_never_the_one_held(
    earlier: list[float], stated: float, first: float, second: float
) -> None:
    fused = [*earlier, stated]
    guide = judged(GUIDE, after(GUIDE, fused, read(*parts(first))))
    lower, higher = sorted((first, second))
    held, freed = (judged(DEFAULT, after(DEFAULT, fused, read(*parts(odds)))) for odds in (lower, higher))
    assert GRAVITY.index(guide.action) <= GRAVITY.index(freed.action) <= GRAVITY.index(held.action)
    assert judged(DEFAULT, after(DEFAULT, fused)).action is guide.action, (
        "without the call's own tokens nothing changes"
    )
    reversible = judge_call(DEFAULT, after(DEFAULT, fused, read(*parts(0.0))), PAY, Effect.REVERSIBLE)
    assert reversible.rule != "call_evidence"


def test_a_doubtful_call_is_aborted_where_a_missing_reading_would_have_aborted_it() -> None:
    rules = UncertaintyPolicy(on_missing_evidence=UncertaintyAction.ABORT)
    unread = Reading(source="p_true", value=None, reason=MissingReason.MODEL_ERROR)
    for floor in (None, 0.8):
        profile = Profile(policy=rules.model_copy(update={"call_floor": floor}))
        verdict = judged(profile, after(profile, [1.0], unread, read(*parts(0.3))))
        assert (verdict.action, verdict.rule) == ("abort", "missing_evidence")
        assert "in the worst case: irreversible call: confidence" in verdict.reason


def test_it_says_which_part_the_model_was_least_sure_of_and_by_how_much() -> None:
    verdict = judged(DEFAULT, after(DEFAULT, [1.0], read(*parts(0.31, name=0.9))))
    assert (verdict.action, verdict.rule) == ("pause_for_human", "call_evidence")
    assert verdict.reason == (
        "irreversible call: model probability 0.28, needs 0.80, least sure of `amount` (0.31); confidence 0.95"
    )
    never = judged(DEFAULT, after(DEFAULT, [1.0], read(*parts(0.0))))
    assert "probability 0.00, needs 0.80, least sure of `amount` (0.00)" in never.reason
    made_up = CallPart(name="amount", probability=0.5, least=0.5, support=Support.NOWHERE)
    verdict = judged(DEFAULT, after(DEFAULT, [1.0], read(made_up)))
    assert "least sure of `amount` (0.50; in no message or tool result)" in verdict.reason


def test_the_values_that_were_likely_stand_beside_the_verdict_and_not_in_its_reason() -> None:
    likely = Candidate(text="7.09", whole=True, probability=0.4, occurs_as=("unit_price",))
    part = CallPart(name="amount", probability=0.5, least=0.5, occurs_as=("customer",), candidates=(likely,))
    verdict = judged(DEFAULT, after(DEFAULT, [1.0], read(part)))
    plain = judged(DEFAULT, after(DEFAULT, [1.0], read(replace(part, occurs_as=(), candidates=()))))
    assert verdict == plain, "they decide nothing, and the reason, which is recorded, holds no content"
    assert verdict.doubt_in_words == (
        "least sure of `amount` (0.50); found in `customer`; also likely: 7.09 (0.40) in `unit_price`"
    )
    assert plain.doubt_in_words == "least sure of `amount` (0.50)"
    assert Verdict(action=verdict.action, level=verdict.level, rule="tier", reason="").doubt_in_words == ""


def test_a_state_keeps_the_likely_values_of_the_first_calls_of_a_turn_alone() -> None:
    likely = Candidate(text="7" * 64, whole=True, probability=0.4)
    calls = [ToolCall(id=str(i), name="pay", arguments={"amount": i}) for i in range(32)]
    own = [CallPart(call=i, name="amount", probability=0.5, least=0.5, candidates=(likely,)) for i in range(32)]
    step = Step(step_id="s", kind="llm_call", time_s=0.0, tool_calls=tuple(calls))
    found = doubts(step, [Reading(source="call_probability", value=0.5, parts=tuple(own))])
    assert [bool(doubt.candidates) for doubt in found] == [True] * 4 + [False] * 28
    assert {(doubt.occurs_as, doubt.candidates) for doubt in found[4:]} == {((), ())}


def test_a_call_exactly_as_likely_as_the_floor_is_not_doubtful() -> None:
    strict = Profile(policy=UncertaintyPolicy(call_floor=1.0))
    assert judged(strict, after(strict, [1.0], read(*parts(1.0)))).allowed


def test_each_call_of_a_turn_answers_for_itself_and_one_that_is_not_told_apart_for_the_least() -> None:
    sure, unsure = PAY, ToolCall(id="d", name="pay", arguments={"amount": 50})
    state = after(DEFAULT, [1.0], read(*parts(0.99), *parts(0.3, call=1)), calls=(sure, unsure))
    assert judged(DEFAULT, state, sure).allowed
    assert judged(DEFAULT, state, unsure).rule == "call_evidence"
    assert judged(DEFAULT, state, "pay").rule == "call_evidence"
    assert state_from_json(state_to_json(state)) == state
    step = Step(step_id="0", kind="tool_call", time_s=0.0, tool_calls=(sure,), effect=Effect.IRREVERSIBLE)
    state, made = advance(DEFAULT, state, step, ())
    assert made.action is UncertaintyAction.PROCEED
    assert judged(DEFAULT, state, unsure).rule == "call_evidence", "a call that was made leaves the others as they were"


def test_a_call_that_two_turns_may_have_proposed_answers_for_the_less_sure_of_them() -> None:
    state = after(DEFAULT, [1.0], read(*parts(0.3)), calls=(ToolCall(id="c", name="pay", arguments={"amount": 5}),))
    step = Step(step_id="again", kind="llm_call", time_s=0.0, tool_calls=(PAY,))
    state, _ = advance(DEFAULT, state, step, [Reading(source="p_true", value=1.0), read(*parts(0.99))])
    assert judged(DEFAULT, state).rule == "call_evidence"


def test_where_something_fitted_decides_the_floor_adds_no_pause_to_its_promise() -> None:
    scorer = running_minimum(bounded=(True,), neutral=(0.5,), stream=0)
    detector = Detector(streams=("p_true",), scorer=scorer, thresholds=(ville_threshold(0.5),), deployed=0, salt="s")
    fitted = Profile(detector=detector)
    verdict = judged(fitted, after(fitted, [1.0], read(*parts(0.1))))
    assert verdict.rule != "call_evidence"
    standing_in = fitted.standing_in("another model")
    assert judged(standing_in, after(standing_in, [1.0], read(*parts(0.1)))).rule == "call_evidence"


@pytest.mark.parametrize("floor", [None, 0.0, 0.8, 1.0])
def test_a_policy_is_stored_as_before_unless_its_floor_is_another(floor: float | None) -> None:
    policy = UncertaintyPolicy(call_floor=floor)
    written = policy.model_dump_json()
    assert ("call_floor" in written) is (floor != 0.8)
    assert UncertaintyPolicy.model_validate_json(written) == policy


# -- calls that are not told apart any more --

LOOK = ToolCall(id="l", name="look", arguments={"at": 1})
CERTAIN = Profile(estimator=UncertaintyEstimator(p_true_calibration_bias=0.0))
"""A P(True) of 1.0 is believed, so that nothing but a call's own tokens speaks against it."""
SURE = Reading(source="p_true", value=1.0)


def proposing(state: SessionState, step_id: str, calls: tuple[ToolCall, ...], *own: Reading) -> SessionState:
    step = Step(step_id=step_id, kind="llm_call", time_s=0.0, tool_calls=calls)
    return advance(CERTAIN, state, step, [SURE, *own])[0]


def making(state: SessionState, call: ToolCall, *own: Reading, step_id: str = "t") -> tuple[SessionState, Any]:
    step = Step(step_id=step_id, kind="tool_call", time_s=0.0, tool_calls=(call,), effect=Effect.IRREVERSIBLE)
    return advance(CERTAIN, state, step, own)


def held(state: SessionState, call: ToolCall | str, step_id: str | None = None) -> bool:
    return not judge_call(CERTAIN, state, call, Effect.IRREVERSIBLE, step_id=step_id).allowed


@given(st.integers(1, 40), st.floats(0.0, 0.79), st.sampled_from(["pay", "look"]), st.booleans(), st.data())
def test_a_doubtful_call_is_held_however_many_turns_went_by_since(
    later: int, odds: float, others: str, made: bool, data: st.DataObject
) -> None:
    """Asked by its name, or by its id without arguments; with any step's id; through a stored state, too."""
    state = proposing(after(CERTAIN, [1.0] * 3, calls=()), "turn", (PAY,), read(*parts(odds)))
    if made:
        state, first = making(state, PAY)
        assert first.rule == "call_evidence"
    for number in range(later):
        call = ToolCall(id=f"o{number}", name=others, arguments={"amount": number})
        state = proposing(state, f"o{number}", (call,), read(*parts(0.99)))
        if made:
            state, _ = making(state, call)
    state = state_from_json(state_to_json(state))
    step_id = data.draw(st.sampled_from([None, "turn", "new"] + ([] if others == "pay" else [f"o{later - 1}"])))
    assert held(state, ToolCall(id="c", name="pay"), step_id)
    assert held(state, "pay", step_id)
    assert held(state, PAY, step_id)
    assert len(state.turns) <= 16
    assert sum(len(turn.gone) for turn in state.turns) <= 2, "one doubt of each tool, kept once"


def test_what_went_by_speaks_for_no_call_that_a_kept_turn_proposes() -> None:
    state = proposing(after(CERTAIN, [1.0] * 3, calls=()), "turn", (PAY,), read(*parts(0.3)))
    state, _ = making(state, PAY)
    for number in range(20):
        call = ToolCall(id=f"o{number}", name="look", arguments={"amount": number})
        state, _ = making(proposing(state, f"o{number}", (call,), read(*parts(0.99))), call)
    assert not held(state, "look"), "another tool's doubt"
    new = ToolCall(id="new", name="pay", arguments={"amount": 7})
    state = proposing(state, "new", (new,), read(*parts(0.99)))
    assert not held(state, new)
    assert not held(state, "pay"), "the open one is meant"
    state, told = making(state, new)
    assert told.action is UncertaintyAction.PROCEED
    assert not held(state, new), "told by its arguments"
    assert held(state, "pay"), "no call of this name is open: it may be the doubtful one"


@given(st.floats(0.0, 0.79), st.booleans())
def test_the_doubt_about_a_call_of_a_kept_turn_is_about_no_later_turns_call(odds: float, made: bool) -> None:
    """Asked for by its id without arguments, too: the turns are told apart as long as both are kept."""
    state = proposing(after(CERTAIN, [1.0] * 3, calls=()), "turn", (PAY,), read(*parts(odds)))
    if made:
        state, _ = making(state, PAY)
    state, told = making(proposing(state, "more", (PAY_MORE,), read(*parts(0.99))), PAY_MORE)
    assert told.action is UncertaintyAction.PROCEED
    assert not held(state, ToolCall(id="m", name="pay"))
    assert held(state, ToolCall(id="c", name="pay"))


def test_more_tools_than_are_kept_leave_a_doubt_about_any_tool() -> None:
    state = after(CERTAIN, [1.0] * 3, calls=())
    for number in range(60):
        call = ToolCall(id="c", name=f"tool{'abcdefgh'[number % 8]}{number}", arguments={"amount": 1})
        state, _ = making(proposing(state, f"o{number}", (call,), read(*parts(0.01 * number))), call)
    assert len(state.turns[-1].gone) == 32
    assert held(state, "toola0")
    assert held(state, "toold43"), "its doubt was folded into that about any tool"
    verdict = judge_call(CERTAIN, state, "toold43", Effect.IRREVERSIBLE)
    assert verdict.rule == "call_evidence"


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_calls_beyond_those_that_are_read_answer_for_all_that_their_turn_wrote(whole: float, odds: float) -> None:
    calls = tuple([ToolCall(id=f"k{i}", name="pay", arguments={"amount": i}) for i in range(33)])
    own = read(*[part for i in range(32) for part in parts(odds if i == 4 else 1.0, call=i)])
    written = Reading(source="sequence_probability", value=whole)
    state = proposing(after(CERTAIN, [1.0] * 3, calls=()), "turn", calls, own, written)
    for asked in ("pay", ToolCall(id="k32", name="pay"), calls[32]):
        assert held(state, asked) or (min(whole, odds) >= 0.8 and asked is not calls[32])
    assert not held(state, calls[3]), "told apart, it answers for itself"
    assert held(state, calls[4]) is (odds < 0.8)
    unread = proposing(after(CERTAIN, [1.0] * 3, calls=()), "turn", calls, written)
    assert not held(unread, "pay"), "where nothing is known of any call of the turn, all that was written says nothing"


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.booleans())
def test_a_tool_step_with_log_probabilities_of_its_own_answers_for_them_and_for_its_turn(
    proposed: float, own: float, told: bool
) -> None:
    state = proposing(after(CERTAIN, [1.0] * 3, calls=()), "turn", (PAY if told else LOOK,), read(*parts(proposed)))
    state, made = making(state, PAY, read(*parts(own)))
    assert made.action.stops is (min(proposed, own) < 0.8)
    if made.action.stops:
        assert made.rule == "call_evidence"
    again = ToolCall(id="c", name="pay") if told else "pay"  # an id that no turn listed is no turn's call
    assert held(state, again) is made.action.stops, "asked again it is as doubtful"
    state = proposing(state, "next", ())
    assert held(state, again) is made.action.stops


def test_a_tool_step_alone_with_log_probabilities_answers_for_them_and_its_call_stays_doubtful() -> None:
    unread = proposing(after(CERTAIN, [1.0] * 3, calls=()), "turn", (PAY,))
    assert making(unread, PAY, read(*parts(0.3)))[1].rule == "call_evidence"
    sure = proposing(after(CERTAIN, [1.0] * 3, calls=()), "turn", (PAY,), read(*parts(0.99)))
    state, _ = making(sure, PAY, read(*parts(0.3)))
    assert held(state, PAY), "told by its arguments"


def test_as_many_calls_as_are_kept_leave_no_doubt_about_others() -> None:
    calls = tuple([ToolCall(id=f"k{i}", name="pay", arguments={"amount": i}) for i in range(32)])
    own = read(*[part for i in range(32) for part in parts(1.0, call=i)])
    written = Reading(source="sequence_probability", value=0.1)
    assert not held(proposing(after(CERTAIN, [1.0] * 3, calls=()), "turn", calls, own, written), "pay")


def test_calls_whose_ids_hold_blanks_leave_one_doubt_of_their_tool() -> None:
    state = after(CERTAIN, [1.0] * 3, calls=())
    for number in range(20):
        call = ToolCall(id=f"call {number}", name="pay", arguments={"amount": number})
        state, _ = making(proposing(state, f"o{number}", (call,), read(*parts(0.3))), call)
    assert len(state.turns[-1].gone) == 1
    assert held(state, "pay")


# -- calls that were due and not read ----------------------------------------------------------------------------------

BROKEN = Reading(source="token_probability", value=None, reason=MissingReason.BROKEN_LOGPROBS)
NONE_CAME = Reading(source="token_probability", value=None, reason=MissingReason.NO_LOGPROBS)
PAY_MORE = ToolCall(id="m", name="pay", arguments={"amount": 7})


def unsure(*calls: ToolCall) -> tuple[CallDoubt, ...]:
    return tuple(
        [CallDoubt(call=f"{call.id} ~{call.name}", probability=0.0, part=UNREAD_CALL, least=0.0) for call in calls]
    )


def told(calls: tuple[ToolCall, ...], *own: Reading, before: tuple[TurnEvidence, ...] = ()) -> tuple[CallDoubt, ...]:
    return doubts(Step(step_id="t", kind="llm_call", time_s=0.0, tool_calls=calls), own, before)


def test_a_reading_of_tokens_that_failed_leaves_every_call_of_its_turn_unsure() -> None:
    failed = Reading(source="call_probability", value=None, reason=MissingReason.SIGNAL_ERROR)
    assert told((PAY, LOOK), failed) == told((PAY, LOOK), SURE, BROKEN) == unsure(PAY, LOOK)
    late = Reading(source="p_true", value=None, reason=MissingReason.TIMEOUT)
    assert told((PAY,), late, NONE_CAME) == ()
    assert told((PAY,), Reading(source="token_probability", value=0.9), late) == ()


@pytest.mark.parametrize("unread", [0, 1])
def test_a_call_that_the_tokens_of_its_turn_do_not_hold_is_unsure(unread: int) -> None:
    first, second = told((PAY, LOOK), read(*parts(0.9, call=1 - unread)))
    assert (first, second)[unread] == unsure(PAY, LOOK)[unread]
    assert (first, second)[1 - unread].probability == 0.9


def test_a_run_in_which_calls_were_read_misses_the_tokens_of_later_ones() -> None:
    known, word = (
        CallDoubt(call="c ~pay", probability=0.9, part="", least=0.9),
        CallDoubt(call="", probability=0.9, part=NEW_WORD, least=0.9),
    )
    for turn in (TurnEvidence(doubts=(known,)), TurnEvidence(gone=(known,)), TurnEvidence(doubts=(word, known))):
        assert told((PAY_MORE,), NONE_CAME, before=(TurnEvidence(), turn)) == unsure(PAY_MORE)
        assert told((PAY_MORE,), SURE, before=(turn,)) == ()
        assert told((PAY_MORE,), before=(turn,)) == (), "nobody looked for its tokens"
    assert told((PAY_MORE,), NONE_CAME, before=(TurnEvidence(doubts=(word,)),)) == ()
    state = proposing(after(CERTAIN, [1.0] * 3, calls=()), "turn", (PAY,), read(*parts(0.99)))
    assert making(state, PAY_MORE, NONE_CAME)[1].rule == "call_evidence"


def test_a_call_that_was_not_read_says_so() -> None:
    state = proposing(after(CERTAIN, [1.0] * 3, calls=()), "turn", (PAY,), BROKEN)
    verdict = judge_call(CERTAIN, state, PAY, Effect.IRREVERSIBLE)
    assert verdict.rule == "call_evidence"
    assert verdict.reason.startswith("irreversible call: the log-probabilities of its own tokens are missing; conf")
    assert not held(proposing(after(GUIDE, [1.0] * 3, calls=()), "turn", (PAY,), NONE_CAME), PAY)


def test_what_missing_evidence_does_stands_behind_what_a_doubtful_call_does() -> None:
    late = Reading(source="p_true", value=None, reason=MissingReason.TIMEOUT)
    low = [Reading(source="verbalized", value=0.9), late]
    for action, doubtful, expected in [
        (UncertaintyAction.PAUSE_FOR_HUMAN, True, ("pause_for_human", "call_evidence")),
        (UncertaintyAction.PAUSE_FOR_HUMAN, False, ("pause_for_human", "missing_evidence")),
        (UncertaintyAction.PROCEED_WITH_LOG, False, ("proceed", "tier")),
        (UncertaintyAction.ABORT, True, ("abort", "missing_evidence")),
    ]:
        policy = UncertaintyPolicy(on_missing_evidence=action)
        profile = Profile(policy=policy, estimator=UncertaintyEstimator(verbalized_calibration_bias=0.0))
        step = Step(step_id="t", kind="llm_call", time_s=0.0, tool_calls=(PAY,))
        own = read(*parts(0.3 if doubtful else 0.99))
        state, _ = advance(profile, SessionState(session_id="s"), step, [*low, own])
        assert state.worst_case is not None
        verdict = judge_call(profile, state, PAY, Effect.IRREVERSIBLE)
        assert (verdict.action, verdict.rule) == expected


def test_an_id_is_known_where_a_turn_listed_it_or_may_have_listed_it() -> None:
    bare, unknown = ToolCall(id="c", name="pay"), ToolCall(id="x", name="pay")
    nameless = ToolCall(name="pay", arguments={"amount": 5})
    for listed, call, known in [
        ((PAY,), bare, True),
        ((ToolCall(id="c", name="pay", arguments={}),), bare, True),
        ((PAY,), unknown, False),
        ((PAY, nameless), unknown, True),
        ((nameless,), unknown, True),
        ((nameless,), ToolCall(id="x", name="look"), False),
        (tuple([PAY] * 33), unknown, True),
        ((), unknown, True),
    ]:
        turns = proposing(SessionState(session_id="s"), "t", listed).turns
        assert is_proposed(turns, call, None) is known
        assert not is_proposed(turns, call, None, exactly=True)
        made = making(proposing(SessionState(session_id="s"), "t", listed), nameless)[0].turns
        assert is_proposed(made, call, None) is known, "made or not"
    turns = proposing(SessionState(session_id="s"), "t", (PAY,)).turns
    assert is_proposed(turns, PAY, None, exactly=True)
    assert not is_proposed((), PAY, None, exactly=True)
    assert not is_proposed(turns, PAY_MORE, None, exactly=True)


@given(st.permutations([PAY, LOOK, PAY_MORE]), st.floats(0.0, 0.79))
def test_a_step_of_several_calls_leaves_each_its_own_doubt(calls: list[ToolCall], odds: float) -> None:
    step = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=tuple(calls), effect=Effect.IRREVERSIBLE)
    own = read(*[part for i, call in enumerate(calls) for part in parts(odds if call is PAY else 0.99, call=i)])
    state = proposing(after(CERTAIN, [1.0] * 3, calls=()), "turn", (PAY, LOOK, PAY_MORE))
    state, made = advance(CERTAIN, state, step, [own])
    assert made.rule == "call_evidence"
    assert [held(state, call) for call in (PAY, LOOK, PAY_MORE)] == [True, False, False]
