"""Evidence belongs to the turn that proposes a call: no other turn speaks for it, however turns interleave."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import Effect, Reading, SessionState, Step, ToolCall, UncertaintyEstimator, UncertaintyMonitor, advance
from grampus_uq import UncertaintyAction as Action
from grampus_uq import UncertaintyPolicy as Policy
from grampus_uq.core.engine import judge_call
from grampus_uq.core.state import Profile, state_from_json, state_to_json
from grampus_uq.core.turn_evidence import (
    MAX_CALLS,
    MAX_TURNS,
    TurnEvidence,
    doubt_about,
    doubt_after,
    doubts,
    is_proposed,
    least,
    listed,
    placed,
    proposed,
    text_key,
    with_turn,
    without_chances,
)
from grampus_uq.recording.replay import replay_file
from grampus_uq.recording.writer import RecordingProcessor
from grampus_uq.records.call_parts import WHOLE_CALL, CallDoubt, CallPart
from grampus_uq.records.tool_names import whole_name_keys
from grampus_uq.records.values import canonical_json
from tests.sampling import examples

PROFILE = Profile(estimator=UncertaintyEstimator(p_true_calibration_bias=0.0))
PAY = "pay"


def pay(call_id: str = "", name: str = PAY) -> ToolCall:
    return ToolCall(id=call_id, name=name)


def turn(state, step_id, value, *calls):
    """The state after a turn of the model with this reading (None: nothing read) that proposes these calls."""
    step = Step(step_id=step_id, kind="llm_call", time_s=0.0, tool_calls=calls)
    found = [Reading(source="p_true", value=value, reason=None if value is not None else "no_model")]
    return advance(PROFILE, state, step, found)[0]


def called(state, call, step_id="tool"):
    step = Step(step_id=step_id, kind="tool_call", time_s=0.0, tool_calls=(call,), effect=Effect.IRREVERSIBLE)
    return advance(PROFILE, state, step, ())


START = SessionState(session_id="s")


def judged(state, call, step_id=None):
    return judge_call(PROFILE, state, call, Effect.IRREVERSIBLE, step_id=step_id)


@pytest.mark.parametrize("call", [pay("a1"), PAY, pay()], ids=["by id", "by name", "without an id"])
def test_the_call_of_a_silent_turn_pauses_though_a_parallel_turn_was_read_in_between(call):
    state = turn(START, "a", None, pay("a1" if call == pay("a1") else ""))
    state = turn(state, "b", 1.0, pay("b1"))
    verdict = judged(state, call)
    assert (verdict.action, verdict.rule) == (Action.PAUSE_FOR_HUMAN, "missing_evidence")
    assert judged(state, pay("b1")).action is Action.PROCEED


@pytest.mark.parametrize("respelt", [str, str.upper, str.title, lambda name: name.replace("_", "-")])
def test_a_name_longer_than_any_tools_gets_no_better_evidence_in_another_spelling(respelt):
    state = turn(START, "a", None, pay("a1", "pay_out_" * 50))
    state = turn(state, "b", 1.0, pay("b1"))
    for call in (pay("a1", respelt("pay_out_" * 50)), respelt("pay_out_" * 50)):
        assert judged(state, call).rule == "missing_evidence"


def test_the_steps_id_tells_whose_call_it_is_for_callers_who_list_none():
    state = turn(turn(START, "a", None), "b", 1.0)
    assert judged(state, PAY, "a").rule == "missing_evidence"
    assert judged(state, PAY, "b").action is Action.PROCEED
    assert judged(state, PAY).action is Action.PROCEED  # in order: the latest turn proposes


def test_the_steps_id_tells_whose_call_has_come_too():
    state = turn(turn(START, "silent", None), "read", 0.99)
    assert [called(state, pay(), step_id=of)[1].rule for of in ("silent", "read")] == ["missing_evidence", "tier"]


def test_a_call_that_no_turn_listed_gets_the_least_of_the_turns_with_open_calls():
    state = turn(turn(START, "a", None, pay("a1")), "b", 1.0, pay("b1"))
    assert judged(state, "wipe").rule == "missing_evidence"
    state, _ = called(state, pay("a1"))
    assert judged(state, "wipe").action is Action.PROCEED
    assert judged(state, pay("a1")).rule == "missing_evidence"  # asked again later, it is still that turn's


def test_an_id_that_two_turns_share_speaks_for_the_least_of_them():
    state = turn(turn(START, "a", None, pay("same")), "b", 1.0, pay("same"))
    assert judged(state, pay("same")).rule == "missing_evidence"
    assert judged(state, pay("same"), "b").action is Action.PROCEED


def test_a_call_without_an_id_may_be_one_that_a_turn_listed_under_an_id_though_another_listed_one_without():
    for first, second in [(pay("a1"), pay()), (pay(), pay("a1"))]:
        state = turn(turn(START, "silent", None, first), "read", 1.0, second)
        assert judged(state, pay()).rule == called(state, pay())[1].rule == "missing_evidence"


def test_an_id_that_a_model_uses_in_every_turn_is_the_latest_turns_once_the_earlier_call_came():
    state = turn(turn(START, "m", 1.0), "a", None, pay("call_0"))
    state, first = called(state, pay("call_0"))
    assert first.rule == "missing_evidence"
    assert judged(turn(state, "b", 1.0, pay("call_0")), pay("call_0")).action is Action.PROCEED


def test_a_reading_of_the_call_itself_speaks_for_this_call_and_no_other_of_its_turn():
    state = turn(turn(START, "m", 1.0), "a", None, pay("1"), pay("2"))
    step = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(pay("1"),), effect=Effect.IRREVERSIBLE)
    state, own = advance(PROFILE, state, step, [Reading(source="p_true", value=1.0)])
    assert own.action is Action.PROCEED
    assert called(state, pay("2"))[1].rule == "missing_evidence"


turns = st.lists(st.tuples(st.none() | st.just(1.0), st.integers(0, 3)), min_size=1, max_size=24)


@given(turns, st.data())
def test_whatever_turns_and_calls_interleave_each_call_is_judged_on_its_own_turn(given_turns, data):
    """Removing all the other turns' readings changes nothing of it, and neither does asking beforehand."""
    state, waiting = turn(START, "first", 1.0), []
    for number, (value, n_calls) in enumerate(given_turns):
        calls = [pay(f"{number}-{k}") for k in range(n_calls)]
        state = turn(state, f"m{number}", value, *calls)
        waiting += [(call, value) for call in calls]
        while waiting and data.draw(st.booleans()):
            call, read = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            known = any(key.startswith(f"{call.id} ") for t in state.turns for key in t.calls)
            verdict = judged(state, call, "t")
            state, decided = called(state, call, "t")
            assert (verdict.action, verdict.rule, verdict.reason) == (decided.action, decided.rule, decided.reasoning)
            if read is None:
                assert decided.rule == "missing_evidence"
            elif known:
                assert decided.action is Action.PROCEED


@given(turns)
def test_a_flood_of_read_turns_never_frees_the_call_of_a_silent_one(given_turns):
    state = turn(turn(START, "first", 1.0), "silent", None, pay("held"))
    for number, (value, n_calls) in enumerate(given_turns):
        state = turn(state, f"m{number}", value, *[pay(f"{number}-{k}") for k in range(n_calls)])
    assert judged(state, pay("held")).action.stops


@given(st.floats(0.0, 1.0), turns)
def test_what_later_turns_make_the_belief_recover_frees_no_call_that_an_uncertain_turn_proposed(stated, given_turns):
    state = turn(START, "own", stated, pay("held"))
    at_once = judged(state, pay("held"))
    for number, (value, n_calls) in enumerate(given_turns):
        state = turn(state, f"m{number}", value, *[pay(f"{number}-{k}") for k in range(n_calls)])
    if at_once.action.stops and any(key.startswith("held ") for t in state.turns for key in t.calls):
        assert judged(state, pay("held")).action.stops
        assert called(state, pay("held"))[1].action.stops


SPELLINGS = ["send_email", "sendEmail", "SEND-EMAIL", "send.email", "ｓｅｎｄ_email", "send\u200b_email", "ѕend_email"]


@pytest.mark.parametrize("proposed", SPELLINGS)
@pytest.mark.parametrize("asked", SPELLINGS)
def test_a_call_is_its_turns_in_whatever_spelling_it_is_asked_for_again(proposed, asked):
    state, _ = called(turn(START, "silent", None, pay("c", proposed)), pay("c", proposed))
    state = turn(state, "read", 1.0, pay("r", "look"))
    assert judged(state, pay("c", asked)).rule == judged(state, pay("", asked)).rule == "missing_evidence"


def test_a_call_of_an_unknown_id_may_be_one_of_those_that_were_not_kept_though_another_turn_has_its_name():
    state = turn(START, "silent", None, *[pay(str(k), "look") for k in range(MAX_CALLS)], pay("late"))
    state = turn(state, "read", 1.0, pay("r"))
    assert judged(state, pay("late")).rule == "missing_evidence"
    assert judged(state, pay("r")).action is Action.PROCEED


def test_of_two_turns_under_one_step_id_the_one_that_listed_the_call_is_asked():
    state, _ = called(turn(START, "same", None, pay("c")), pay("c"))
    state = turn(state, "same", 1.0, pay("r", "look"))
    assert judged(state, pay(), "same").rule == "missing_evidence"


def test_the_state_stays_small_whatever_the_model_proposes():
    state = START
    for number in range(200):
        hostile = [pay(f"{number}-{k}" + "\ud83d" * 500, "x" * 10_000) for k in range(3 * MAX_CALLS)]
        state = turn(state, f"m{number}" * 100, 1.0, *hostile)
    assert len(state.turns) <= MAX_TURNS
    written = state_to_json(SessionState(session_id="s", turns=state.turns))
    assert len(written) < 120 * MAX_TURNS * MAX_CALLS
    assert state_from_json(written).turns == state.turns


def test_calls_beyond_those_that_are_kept_are_judged_on_the_least_of_the_open_turns():
    state = turn(START, "silent", None, *[pay(str(k)) for k in range(MAX_CALLS + 5)])
    state = turn(state, "b", 1.0, pay("b1"))
    assert judged(state, pay(str(MAX_CALLS + 1))).rule == "missing_evidence"


@pytest.mark.parametrize(("beyond", "rule"), [(0, "missing_evidence"), (1, "tier")])
def test_a_call_that_no_turn_lists_may_be_one_beyond_those_that_are_kept_where_there_are_any(beyond, rule):
    state = turn(START, "1", 0.9, *[with_arguments(str(k), x=k) for k in range(MAX_CALLS + beyond)])
    assert judge_call(PROFILE, state, pay("other"), Effect.IRREVERSIBLE).rule == rule


@pytest.mark.parametrize("turns", ["gone", []])
def test_a_state_without_its_turns_speaks_for_no_irreversible_call_until_the_models_next_turn(turns):
    """Of an older version, or with the turns stripped: whose calls are open, and what was read, is not known."""
    written = json.loads(state_to_json(turn(turn(START, "silent", None, pay("a")), "b", 1.0)))
    if turns == "gone":
        del written["turns"], written["rang"]
    else:
        written["turns"] = turns
    for turn_read in (True, False):
        old = state_from_json(json.dumps(written | {"turn_read": turn_read}))
        for call in (pay(), pay("a"), pay("b")):
            assert judged(old, call).rule == called(old, call)[1].rule == "missing_evidence"
        assert not judge_call(PROFILE, old, "look").action.stops
        assert judged(turn(old, "next", 1.0, pay("n")), pay("n")).action is Action.PROCEED


@given(st.lists(st.sampled_from([None, 1.0]), min_size=1, max_size=MAX_TURNS), st.data())
def test_of_sixteen_turns_at_once_that_list_no_calls_each_is_found_by_its_steps_id(values, data):
    state = START
    for number, value in enumerate(values):
        state = turn(state, f"m{number}", value)
    number = data.draw(st.integers(0, len(values) - 1))
    assert judged(state, PAY, f"m{number}").action.stops is (values[number] is None)


# -- arguments --

AMOUNT = {"to": "ann", "amount": 5}
CHANGED = [
    {"to": "ann", "amount": 5000},
    {"to": "mallory", "amount": 5},
    {"to": "ann"},
    {},
    {"to": "ann", "amount": 5, "urgent": True},
    {"to": "ann", "amount": "5"},
    {"to": "ann", "amount": True},
    {"To": "ann", "amount": 5},
    {"to": ["ann"], "amount": 5},
    {"to": "ann ", "amount": 5},
    {"unparsed_arguments": '{"to": "ann", "amount": 5}'},
]


SURE = {"sub_agent": 1.0}


def session_of(policy=None):
    monitor = UncertaintyMonitor(policy=policy or Policy(irreversible_tool_names=[PAY]))
    return monitor.session("s")


@pytest.mark.anyio
@pytest.mark.parametrize("arguments", CHANGED, ids=str)
@pytest.mark.parametrize("call_id", ["c1", "", "another"])
async def test_a_turn_vouches_for_no_other_arguments_than_those_it_listed(arguments, call_id):
    session = session_of()
    await session.observe_llm_response(
        "I pay.", "m", external=SURE, tool_calls=[ToolCall(id="c1", name=PAY, arguments=AMOUNT)]
    )
    for _ in range(2):
        changed = ToolCall(id=call_id, name=PAY, arguments=arguments)
        verdict = session.would_allow(changed)
        assert (verdict.action, verdict.rule) == (Action.PAUSE_FOR_HUMAN, "missing_evidence")
        assert verdict.reason.startswith("irreversible call with arguments that the model did not propose; ")
        step, action = await session.observe_tool_call(changed, "t")
        assert (action, step.reasoning) == (verdict.action, verdict.reason)
        assert step.missing_reason.startswith("proposal: not_proposed")


SAME = [
    ToolCall(id="c1", name=PAY, arguments={"amount": 5, "to": "ann"}),
    ToolCall(id="c1", name="Pay", arguments=AMOUNT),
    ToolCall(id="", name=PAY, arguments=AMOUNT),
    ToolCall(id="other", name=PAY, arguments=AMOUNT),
    {"id": "c1", "function": {"name": PAY, "arguments": '{"amount":5,"to":"ann"}'}},
    {"id": "c1", "name": PAY, "args": AMOUNT},
    ToolCall(id="c1", name=PAY),
    {"id": "c1", "name": PAY},
    PAY,
]


@pytest.mark.anyio
@pytest.mark.parametrize("call", SAME, ids=str)
async def test_the_call_that_a_turn_listed_goes_ahead_in_every_form_and_without_its_arguments_too(call):
    session = session_of()
    listed = {"id": "c1", "type": "function", "function": {"name": PAY, "arguments": json.dumps(AMOUNT)}}
    await session.observe_llm_response("I pay.", "m", external=SURE, tool_calls=[listed])
    for _ in range(2):
        assert session.would_allow(call).action is Action.PROCEED
        assert (await session.observe_tool_call(call, "t"))[1] is Action.PROCEED


@pytest.mark.anyio
async def test_changed_arguments_of_a_call_that_can_be_undone_stop_nothing_and_callers_who_list_none_are_not_compared():
    session = session_of()
    await session.observe_llm_response(
        "I pay.", "m", external=SURE, tool_calls=[ToolCall(name="look", arguments=AMOUNT)]
    )
    assert session.would_allow(ToolCall(name="look", arguments={})).action is Action.PROCEED
    session = session_of()
    await session.observe_llm_response("I pay.", "m", external=SURE)
    assert session.would_allow(ToolCall(name=PAY, arguments={"to": "mallory"})).action is Action.PROCEED
    session = session_of(Policy(irreversible_tool_names=[PAY], on_missing_evidence=Action.PROCEED_WITH_LOG))
    await session.observe_llm_response("I pay.", "m", external=SURE, tool_calls=[ToolCall(name=PAY, arguments=AMOUNT)])
    assert not session.would_allow(ToolCall(name=PAY, arguments={})).action.stops


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9, width=16) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
json_objects = st.dictionaries(st.text(max_size=2), json_values, max_size=3)


@settings(max_examples=examples(100))
@given(st.lists(json_objects, min_size=1, max_size=4), st.lists(json_objects, max_size=2), json_objects, st.data())
def test_a_call_is_vouched_for_exactly_by_the_arguments_that_its_turn_listed(listed, others, asked, data):
    calls = [ToolCall(id=str(n), name=PAY, arguments=arguments) for n, arguments in enumerate(listed)]
    state = turn(START, "own", 1.0, *calls)
    state = turn(state, "beside", 1.0, *[ToolCall(id=f"o{n}", name=PAY, arguments=a) for n, a in enumerate(others)])
    asked = data.draw(st.sampled_from([*listed, *others, asked]))
    number = data.draw(st.integers(0, len(listed)))
    call = ToolCall(id=str(number), name=PAY, arguments=asked)  # the last id is one that no turn lists
    own = listed[number : number + 1] or [*listed, *others]  # a sibling's arguments are not the call's
    same = canonical_json(asked) in map(canonical_json, own)
    assert judged(state, call).action.stops is not same
    back = state_from_json(state_to_json(state))
    assert judged(back, call) == judged(state, call)


@pytest.mark.anyio
@pytest.mark.parametrize("content", ["full", "hashed", "none"])
async def test_a_recording_that_left_the_arguments_out_replays_a_call_with_changed_ones_as_it_was(content, tmp_path):
    recorder = RecordingProcessor(tmp_path, content=content)
    monitor = UncertaintyMonitor(policy=Policy(irreversible_tool_names=[PAY]), processors=[recorder])
    session = monitor.session("s")
    await session.observe_llm_response(
        "I pay.", "m", external=SURE, tool_calls=[ToolCall(id="c", name=PAY, arguments=AMOUNT)]
    )
    seen = [
        (await session.observe_tool_call(ToolCall(id="c", name=PAY, arguments=arguments), "t"))[1]
        for arguments in (AMOUNT, {"to": "mallory"}, AMOUNT)
    ]
    recorder.close()
    assert seen == [Action.PROCEED, Action.PAUSE_FOR_HUMAN, Action.PROCEED]
    (path,) = tmp_path.glob("*.jsonl")
    replayed = list(replay_file(path, monitor.profile))
    assert all(step.same for step in replayed)
    assert [step.assessment.action for step in replayed[1:]] == seen


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_two_tasks_on_one_session_do_not_lend_each_other_their_readings(backend):
    """Over the public methods: the silent task asks after the other one has committed its reading."""
    monitor = UncertaintyMonitor(policy=Policy(irreversible_tool_names=[PAY]))
    session = monitor.session("s")
    answers = {}

    async def task(name: str, own: dict[str, float] | None, before: anyio.Event, after: anyio.Event) -> None:
        call = pay(f"{name}-1")
        await session.observe_llm_response("", name, external=own, tool_calls=[call])
        after.set()
        await before.wait()
        answers[name] = session.would_allow(call), (await session.observe_tool_call(call, f"{name}-t"))[0]

    async def main() -> None:
        silent, read = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(task, "silent", None, read, silent)
            await silent.wait()
            group.start_soon(task, "read", SURE, silent, read)

    anyio.run(main, backend=backend)
    verdict, decided = answers["silent"]
    assert verdict.rule == decided.rule == "missing_evidence"
    assert answers["read"][0].rule != "missing_evidence"


# -- the rules by which a turn is found and kept, one by one --


def a_turn(step: str = "", *calls: ToolCall, **read: object) -> TurnEvidence:
    """A turn in which these calls are open."""
    step_of = Step(step_id=step, kind="llm_call", time_s=0.0, tool_calls=calls)
    return TurnEvidence(step=step, **{"read": True, "calls": proposed(step_of), "listed": listed(step_of), **read})


def keys_of(*calls: ToolCall) -> tuple[str, ...]:
    return a_turn("", *calls).calls


A, B, LOOK = pay("a"), pay("b"), pay("l", "look")


def test_an_id_stands_as_it_is_while_short_and_plain_and_else_as_a_digest():
    def digest(text: str) -> str:
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    assert text_key("x" * 64) == "x" * 64
    for long_or_odd in ("x" * 65, "é", "\ud83d"):
        assert text_key(long_or_odd) == digest(long_or_odd)
    for name in ("look", "Look", "L"):
        assert keys_of(pay("x", name)) == (f"x {whole_name_keys(name)[1]}",)
    assert keys_of(pay("x", "日")) == (f"x {digest(whole_name_keys('日')[1])}",)
    assert keys_of(pay("x", "-"), pay("x", "_")) == ("x -", "x _")  # no letter is left: no other spelling


@pytest.mark.parametrize(("length", "same"), [(256, True), (257, False)])
def test_a_name_beyond_256_characters_is_taken_as_it_is_written(length, same):
    name = "x" * length
    assert (keys_of(pay("c", name)) == keys_of(pay("c", name.upper()))) is same


def test_a_call_that_came_is_open_no_more_and_nothing_else_of_its_turn_changes():
    everything = {
        "p_success": 0.5,
        "worst_chance": 0.25,
        "lowest": ("p_true", 0.5),
        "stated": True,
        "belief": 0.75,
        "worst_belief": 0.375,
        "called": ("c earlier",),
        "more": True,
    }
    own, beside = a_turn("own", A, B, **everything), a_turn("beside", LOOK)
    turns, evidence = placed((beside, own), A, None)
    assert evidence is own
    assert turns == (beside, replace(own, calls=keys_of(B), called=("c earlier", *keys_of(A))))
    assert placed(turns, A, None) == (turns, turns[1])  # asked again: still its turn's
    assert placed(turns, None, "own") == (turns, turns[1])
    assert placed((), A, None) == ((), TurnEvidence())


def test_of_several_turns_the_least_counts_part_by_part():
    first = a_turn("1", p_success=0.5, lowest=("a", 0.75), stated=True, belief=0.25, unaided=0.2, worst_belief=0.1)
    second = a_turn("2", p_success=0.75, worst_chance=0.125, lowest=("b", 0.5), stated=True)
    both = TurnEvidence(read=True, p_success=0.5, worst_chance=0.125, lowest=("b", 0.5), stated=True)
    assert least((first, second)) == both
    later = replace(both, belief=0.25, unaided=0.2, worst_belief=0.1)
    assert least((second, first)) == later, "the belief is that of the later one"
    silent = TurnEvidence()
    assert least((first, silent)) == TurnEvidence(worst_chance=0.5), "nothing is read of a turn that was not"
    assert least((replace(first, read=False), second)).word_alone
    assert not least((first, second)).word_alone
    assert least((silent,)) == silent
    assert least((replace(second, stated=False), first)).stated is False
    assert (first.at_worst, second.at_worst, first.belief_at_worst, second.belief_at_worst) == (0.5, 0.125, 0.1, None)
    assert replace(first, worst_belief=None).belief_at_worst == 0.25


def test_under_another_profile_only_the_chances_are_gone():
    turns = (a_turn("1", A, p_success=0.5, worst_chance=0.25, belief=0.5, worst_belief=0.25, stated=True),)
    assert without_chances(turns) == (replace(turns[0], p_success=None, worst_chance=None),)


PLAIN_TURN = a_turn("plain")


@pytest.mark.parametrize(
    ("turns", "new", "kept"),
    [
        ((), a_turn("n", A), slice(0, 0)),
        ((PLAIN_TURN,) * 20, PLAIN_TURN, slice(5, 20)),  # callers who list no calls: the latest sixteen
        ((a_turn("1", A), PLAIN_TURN), PLAIN_TURN, slice(0, 1)),  # else a turn without any proposed none
        ((a_turn("1", called=("x",)), PLAIN_TURN), PLAIN_TURN, slice(0, 1)),
        ((a_turn("1", more=True), PLAIN_TURN), PLAIN_TURN, slice(0, 1)),
        ((PLAIN_TURN, a_turn("1", called=("x",))), a_turn("n", A), slice(1, 2)),
        ((PLAIN_TURN, PLAIN_TURN), a_turn("n", A), slice(0, 0)),
    ],
)
def test_turns_are_kept_while_they_may_have_proposed_a_call(turns, new, kept):
    assert with_turn(turns, new) == (*turns[kept], new)


@pytest.mark.parametrize("settled", [None, 0, 1, 7, 15])
def test_a_seventeenth_turn_takes_the_place_of_the_first_settled_one_or_makes_two_one_that_keeps_the_least(settled):
    turns = tuple(
        a_turn(
            str(n),
            *([pay(f"{n}-{k}") for k in range(20)] if n != settled else []),
            called=("x y",),
            p_success=1 - n / 20,  # the least of the second of two,
            worst_chance=n / 80,  # and of the first
        )
        for n in range(16)
    )
    new = a_turn("n", A)
    assert with_turn(turns[:15], new) == (*turns[:15], new)
    if settled is not None:
        assert with_turn(turns, new) == (*turns[:settled], *turns[settled + 1 :], new)
        return
    first, second, *rest = turns
    both = replace(least((first, second)), more=True, listed=(*first.listed, *second.listed)[-32:])
    assert with_turn(turns, new) == (both, *rest, new)
    assert len(both.listed) == 32


def test_of_several_turns_each_stream_of_a_detector_reads_its_least_and_nothing_where_one_lacks_it():
    first = TurnEvidence(scores=(0.2, 0.9, 0.5), worst_scores=(0.2, 0.0, 0.5))
    both = least((first, TurnEvidence(scores=(0.6, 0.3, None))))
    assert both.scores == (0.2, 0.3, None)
    assert both.worst_scores == (0.2, 0.0, None)
    assert least((first, TurnEvidence())).scores == ()


SETTLED = a_turn("settled", called=keys_of(A))
MORE = a_turn("more", more=True)
FINDS = [
    # turns, call, step's id, which of the turns answer for it (None: the open ones and the latest)
    ((a_turn("1", A), a_turn("2", B)), A, None, [0]),
    ((a_turn("1", A), a_turn("2", B)), A, "2", [0]),  # the id is surer than the step
    ((a_turn("1", A), a_turn("2", A), a_turn("3", A)), A, None, [0, 1, 2]),
    ((a_turn("1", A), a_turn("2", A), a_turn("3", A)), A, "2", [1]),
    ((SETTLED, a_turn("2", A)), A, None, [1]),  # open before observed
    ((SETTLED, a_turn("2", B)), A, None, [0]),
    ((a_turn("1", A), a_turn("2", B)), pay("new"), "1", [0]),
    ((a_turn("1", A), a_turn("2", LOOK)), pay("new"), None, [0]),
    ((a_turn("1", A), a_turn("2", B)), pay(), None, [0, 1]),
    ((a_turn("1", A), a_turn("2", pay())), pay(), None, [0, 1]),  # listed without an id, too, it may be either
    ((a_turn("1", A), a_turn("2", B), MORE), pay(), None, [0, 1, 2]),
    ((a_turn("1", A, more=True), a_turn("2", B)), pay(), None, [0, 1]),
    ((a_turn("1", A), a_turn("2", B), MORE), A, None, [0]),
    ((SETTLED, a_turn("2", LOOK), a_turn("3", LOOK)), pay(), None, [0]),
    ((a_turn("1", A), a_turn("1", LOOK), a_turn("3", A)), pay(), "1", [0]),
    ((a_turn("1", LOOK), SETTLED, a_turn("1", A)), pay(), "1", [2]),
    ((a_turn("1", A), a_turn("1", LOOK)), pay("new"), "1", [0]),
    ((SETTLED, a_turn("2", LOOK)), pay("new"), None, [0]),
    ((a_turn("1", A), a_turn("1", called=("x y",)), a_turn("3", B)), LOOK, "1", [0]),
    ((a_turn("1", called=("x y",)), a_turn("1", called=("x z",)), a_turn("3", B)), LOOK, "1", [1]),
    ((a_turn("1"), a_turn("2")), A, "1", [0]),
    ((a_turn("1"), a_turn("2")), None, "1", [0]),
    ((a_turn("1", A), a_turn("1", B)), None, "1", [0, 1]),
    ((SETTLED, a_turn("2", B), a_turn("3", called=("x y",))), LOOK, None, None),
    ((MORE, a_turn("2", B), SETTLED), LOOK, None, None),
    ((MORE, a_turn("2", B), SETTLED), None, None, None),
    ((a_turn("1"), a_turn("2")), A, None, None),
    ((a_turn("1"), a_turn("")), A, "", None),
]


@pytest.mark.parametrize(("turns", "call", "step_id", "which"), FINDS)
def test_the_turns_that_answer_for_a_call(turns, call, step_id, which):
    """Each turn has a chance of its own, so that the least of any two tells which they were."""
    turns = tuple(replace(one, p_success=(n + 1) / 8, lowest=(f"{n}", 1 - n / 8)) for n, one in enumerate(turns))
    if which is None:
        which = [n for n, one in enumerate(turns) if one.open or n == len(turns) - 1]
    expected = [turns[n] for n in which]
    after, evidence = placed(turns, call, step_id)
    assert evidence == (expected[0] if len(expected) == 1 else least(expected))
    assert [one.step for one in after] == [one.step for one in turns]
    for n, (old, new) in enumerate(zip(turns, after, strict=True)):
        if new != old:
            assert n in which
            assert set(new.calls) < set(old.calls)


def with_arguments(call_id: str, **arguments: object) -> ToolCall:
    return ToolCall(id=call_id, name=PAY, arguments=arguments)


@pytest.mark.parametrize(
    ("turns", "call", "step_id", "vouched"),
    [
        ((), with_arguments("a", x=1), None, True),
        ((a_turn("1"),), with_arguments("a", x=1), None, True),
        ((a_turn("1", with_arguments("a", x=1)),), A, None, True),  # without arguments nothing can be compared
        ((a_turn("1", with_arguments("a", x=1)),), with_arguments("a", x=2), None, False),
        ((a_turn("1", called=("x y",)),), with_arguments("a", x=1), None, False),
        ((a_turn("1", more=True),), with_arguments("a", x=1), None, False),
        (
            (a_turn("1", with_arguments("a", x=1)), a_turn("2", with_arguments("b", x=2))),
            with_arguments("a", x=2),
            None,
            False,
        ),
        (
            (a_turn("1", with_arguments("a", x=1)), a_turn("2", with_arguments("b", x=2))),
            with_arguments("", x=2),
            None,
            True,
        ),
        (
            (a_turn("1", with_arguments("a", x=1)), a_turn("2", with_arguments("b", x=2))),
            with_arguments("", x=2),
            "1",
            False,
        ),
        ((a_turn("1", with_arguments("a", x=1)), a_turn("2")), with_arguments("", x=1), "2", True),
        ((a_turn("1", with_arguments("a", x=1)),), ToolCall(id="a", name="wire", arguments={"x": 1}), None, False),
        ((a_turn("1", with_arguments("a", x=1)),), ToolCall(id="a", name="Pay", arguments={"x": 1}), None, True),
    ],
)
def test_a_call_with_arguments_is_compared_with_what_its_turn_listed(turns, call, step_id, vouched):
    assert is_proposed(turns, call, step_id) is vouched


@given(st.integers(0, 3_000), st.booleans())
def test_a_call_is_vouched_for_exactly_by_arguments_of_any_length(length, named):
    """Those that differ in their last character alone are others."""
    state = turn(START, "t", 1.0, with_arguments("a", note="x" * length + "y", n=1))
    for last, vouched in [("y", True), ("z", False)]:
        call = with_arguments("a" if named else "", n=1, note="x" * length + last)
        assert judged(state, call).action.stops is not vouched


def test_a_verdict_compares_a_call_with_the_turn_of_its_step_and_exactly_where_that_is_asked():
    state = turn(turn(START, "1", 0.95, with_arguments("a", x=1)), "2", 0.95, with_arguments("b", x=2))
    rules = [judge_call(PROFILE, state, with_arguments("", x=2), Effect.IRREVERSIBLE, step_id=of).rule for of in "12"]
    assert rules == ["missing_evidence", "tier"]
    bare = ToolCall(id="b", name=PAY)
    assert judge_call(PROFILE, state, bare, Effect.IRREVERSIBLE).rule == "tier"
    assert judge_call(PROFILE, state, bare, Effect.IRREVERSIBLE, exactly=True).rule == "missing_evidence"


def test_arguments_that_are_no_json_are_never_vouched_for():
    for call_id in ("a", "a" * 65):  # a long one is not remembered
        call = ToolCall.model_construct(id=call_id, name=PAY, arguments={"x": object()})
        step = Step(step_id="m", kind="llm_call", time_s=0.0, tool_calls=(call,))
        assert listed(step) == (f"@{hashlib.sha256(call_id.encode()).hexdigest()[:8]}",)
        assert not is_proposed((TurnEvidence(calls=proposed(step), listed=listed(step)),), call, None)


def test_a_digest_of_a_call_is_one_of_its_name_and_its_arguments_in_canonical_json():
    call = ToolCall(id="a", name="Pay", arguments={"b": "\ud83d", "a": 1})
    step = Step(step_id="m", kind="llm_call", time_s=0.0, tool_calls=(call,) * (MAX_CALLS + 1))
    key = whole_name_keys("pay")[1]
    written = f"{key}({canonical_json(call.arguments)})".encode("utf-8", "surrogatepass")
    mark = f"@{hashlib.sha256(b'a').hexdigest()[:8]}"
    assert listed(step) == (hashlib.sha256(written).hexdigest()[:24] + mark,) * MAX_CALLS
    assert proposed(step) == (f"a {key}",) * MAX_CALLS
    nameless = step_of(call.model_copy(update={"id": ""}))
    assert listed(nameless) == (hashlib.sha256(written).hexdigest()[:24],), "as states of earlier versions have it"


# -- the rules by which a turn's doubts are found and kept, one by one --


def doubt(probability: float, call: ToolCall | None = None) -> CallDoubt:
    """A doubt about this call; about any beyond those that are kept without one."""
    key = "" if call is None else keys_of(call)[0]
    return CallDoubt(call=key, probability=probability, part="amount", least=probability)


LATE = a_turn("late", more=True, doubts=(doubt(0.2),))
SURE_B = a_turn("2", B, doubts=(doubt(0.9, B),))


@pytest.mark.parametrize(
    ("turns", "call", "probability"),
    [
        # the last of the turns was found to have proposed the call
        ((a_turn("1", A, doubts=(doubt(0.2, A),)), SURE_B), pay("new"), 0.9),  # it lists one of this name
        ((a_turn("1", A, doubts=(doubt(0.2, A),)), a_turn("2", LOOK)), pay("new"), 0.2),  # it lists none
        ((a_turn("1", B, doubts=(doubt(0.9, B), doubt(0.2))),), B, 0.2),  # without arguments: beyond what is kept, too
        ((a_turn("1", B, doubts=(doubt(0.9, B), doubt(0.2))),), with_arguments("b"), 0.9),
        ((a_turn("1", A, more=True, doubts=(doubt(0.2, A),)), SURE_B), A, 0.2),
        ((a_turn("1", more=True, doubts=(doubt(0.2, A),)), SURE_B), with_arguments("q", x=1), 0.2),
        ((LATE, SURE_B), B, 0.9),  # an open call told by its id
        ((LATE, SURE_B), pay(), 0.2),
        ((a_turn("1", B, gone=(doubt(0.1, LOOK), doubt(0.5)), doubts=(doubt(0.9, B),)),), pay("q", "send"), 0.5),
    ],
)
def test_a_call_is_as_doubtful_as_the_least_of_what_may_be_about_it(turns, call, probability):
    found = doubt_about(turns, turns[-1], call)
    assert found is not None
    assert found.probability == probability


@pytest.mark.parametrize("tools", [32, 33, 40])
def test_of_settled_turns_the_least_doubt_of_32_tools_is_kept_and_the_last_stands_for_any_beyond(tools):
    lost = tuple(doubt(number / 64, pay("c", f"tool{number}")) for number in range(tools))
    turns = (a_turn("0", called=("x y",), doubts=lost), *[a_turn(str(n), A) for n in range(1, MAX_TURNS)])
    kept = [replace(one, call=one.call.removeprefix("c")) for one in lost[:MAX_CALLS]]
    if tools > MAX_CALLS:
        kept[-1] = replace(kept[-1], call="")
    assert with_turn(turns, a_turn("n", A))[-1].gone == tuple(kept)


def test_what_a_tool_step_says_of_its_call_stays_with_the_turns_that_have_it_and_with_the_latest():
    turns = (a_turn("1", A), a_turn("2", B), a_turn("3", LOOK, gone=(doubt(0.3, LOOK),)))
    step = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(A,))
    part = CallPart(name="amount", probability=0.5, least=0.5)
    own = [Reading(source="call_probability", value=0.5, parts=(part,))]
    after, told = doubt_after(turns, turns, turns[0], step, own)
    assert told == doubt(0.5, A)
    gone = (doubt(0.3, pay("", "look")), doubt(0.5, pay("")))
    assert after == (replace(turns[0], doubts=(told,)), turns[1], replace(turns[2], gone=gone))
    assert doubt_after(turns, turns, turns[0], step, ()) == (turns, None)
    lower = replace(turns[0], doubts=(doubt(0.1, pay("other")),))
    assert doubt_after((lower,), (lower,), lower, step, own)[1] == doubt(0.1, A), "under the name of this call"


def test_calls_beyond_those_that_are_kept_are_as_sure_as_all_that_was_written():
    step = Step(step_id="m", kind="llm_call", time_s=0.0, tool_calls=tuple(pay(str(n)) for n in range(33)))
    parts = tuple(CallPart(call=n, name="amount", probability=0.5, least=0.5) for n in range(32))
    readings = [
        Reading(source="call_probability", value=0.5, parts=parts),
        Reading(source="sequence_probability", value=0.25),
        Reading(source="verbalized", value=0.0),
    ]
    *_, beyond = doubts(step, readings)
    assert beyond == CallDoubt(call="", probability=0.25, part=WHOLE_CALL, least=0.25)


def test_one_listing_lets_one_call_go():
    """Once a call was made, its listing speaks for a retry of it, and for no second one under an id of nobody's."""
    five, seven = {"amount": 5}, {"amount": 7}
    mine, other = ToolCall(id="c1", name=PAY, arguments=five), ToolCall(id="c2", name=PAY, arguments=seven)
    state = turn(START, "a", 1.0, mine, other)
    unlisted, nameless = mine.model_copy(update={"id": "x"}), mine.model_copy(update={"id": ""})
    for call in (mine, other, unlisted, nameless):
        assert is_proposed(state.turns, call, None)
    for call in (mine, nameless):
        assert is_proposed(state.turns, call, None, exactly=True)
    assert not is_proposed(state.turns, unlisted, None, exactly=True)
    state = called(state, mine)[0]
    assert is_proposed(state.turns, mine, None)
    assert is_proposed(state.turns, nameless, None)
    assert not is_proposed(state.turns, unlisted, None)
    assert is_proposed(state.turns, other.model_copy(update={"id": "x"}), None)
    for call in (mine, unlisted, nameless):
        assert not is_proposed(state.turns, call, None, exactly=True)
    assert is_proposed(state.turns, other, None, exactly=True)
    assert state.turns[-1].listed == (f"{listed(step_of(mine))[0]} made", *listed(step_of(other)))
    # Two of the same: the listing of one is left when the other was made.
    twice = turn(START, "a", 1.0, mine, other.model_copy(update={"arguments": five}))
    assert is_proposed(called(twice, mine)[0].turns, unlisted, None)
    # As many were made as were listed, one of them with other arguments: what is open still is vouched for.
    edited = called(turn(START, "a", 1.0, mine, other), mine.model_copy(update={"arguments": {"amount": 6}}))[0]
    as_many = called(edited, unlisted)[0].turns
    assert is_proposed(as_many, other.model_copy(update={"id": ""}), None, exactly=True)
    # Made by its name alone: which of the listings that was is not known.
    by_name = called(state, ToolCall(id="c2", name=PAY))[0]
    assert by_name.turns[-1].listed == state.turns[-1].listed


one_of_three = st.sampled_from([5, 6, 7])


@given(
    st.lists(st.lists(one_of_three, min_size=1, max_size=3), min_size=1, max_size=MAX_TURNS + 4),
    st.lists(st.tuples(st.integers(0, 40), one_of_three), max_size=40),
    st.booleans(),
)
def test_no_more_calls_of_the_same_arguments_go_ahead_than_were_listed_whatever_their_ids(turns, asked, late):
    """The listed ids are numbers from 0; a retry under an id that went is no further call."""
    state, ids, went = START, iter(range(99)), {}
    made = [] if late else asked
    for number, amounts in enumerate(turns):
        calls = [with_arguments(f"{next(ids)}", amount=amount) for amount in amounts]
        state = turn(state, f"t{number}", 1.0, *calls)
        for identity, amount in made[number * 2 : number * 2 + 2]:
            state = _made_where_vouched(state, f"{identity}", amount, went)
    for identity, amount in asked if late else asked[len(turns) * 2 :]:
        state = _made_where_vouched(state, f"{identity}", amount, went)
    for amount in (5, 6, 7):
        assert len([a for a in went.values() if a == amount]) <= sum(amounts.count(amount) for amounts in turns)


def _made_where_vouched(state, identity, amount, went):
    call = with_arguments(identity, amount=amount)
    if went.get(identity, amount) == amount and is_proposed(state.turns, call, None):
        went[identity] = amount
        return replace(state, turns=placed(state.turns, call, None)[0])
    return state


def test_a_doubtful_call_is_not_let_ahead_under_the_id_of_its_sure_sibling():
    five, six = with_arguments("a", amount=5), with_arguments("b", amount=6)
    for state in (turn(START, "t", 1.0, five, six), called(turn(START, "t", 1.0, five, six), five)[0]):
        assert is_proposed(state.turns, six, None)
        assert not is_proposed(state.turns, with_arguments("a", amount=6), None)
        assert not is_proposed(state.turns, with_arguments("b", amount=5), None)
    older = tuple(replace(turn, listed=tuple(e.partition("@")[0] for e in turn.listed)) for turn in state.turns)
    assert is_proposed(older, with_arguments("b", amount=6), None)  # a state of an earlier version


def test_a_listing_that_a_call_under_another_id_used_up_vouches_for_no_second_one():
    state = turn(START, "t", 1.0, with_arguments("a", amount=5))
    went = {}
    for identity in ("x", "y", "a", "x", ""):
        state = _made_where_vouched(state, identity, 5, went)
    assert went == {"x": 5, "": 5}  # without an id it is taken for the retry of one that was made


def test_a_call_that_came_by_its_name_leaves_its_listing_to_no_other_id():
    state = turn(START, "t", 1.0, with_arguments("a", amount=5))
    state = replace(state, turns=placed(state.turns, pay("a"), None)[0])
    assert not is_proposed(state.turns, with_arguments("x", amount=5), None)
    assert is_proposed(state.turns, with_arguments("a", amount=5), None)


def test_a_call_that_came_by_its_name_and_again_with_its_arguments_counts_once():
    """Counted twice, it would use up the listing of its sibling, too."""
    state = turn(START, "t", 1.0, with_arguments("a", amount=5), with_arguments("b", amount=6))
    state = called(called(state, pay("a"))[0], with_arguments("a", amount=5))[0]
    assert is_proposed(state.turns, with_arguments("x", amount=6), None)
    assert not is_proposed(state.turns, with_arguments("x", amount=5), None)


def test_a_retry_leaves_the_listing_of_an_equal_call_to_that_call():
    state = turn(START, "t", 1.0, with_arguments("a", amount=5), with_arguments("b", amount=5))
    for _ in range(2):
        state = called(state, with_arguments("a", amount=5))[0]
    assert is_proposed(state.turns, with_arguments("x", amount=5), None)


def step_of(call: ToolCall) -> Step:
    return Step(step_id="a", kind="llm_call", time_s=0.0, tool_calls=(call,))


@given(st.permutations(range(4)), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 3))
def test_a_call_that_was_made_uses_up_its_listing_whatever_was_reported_without_an_id_before(amounts, nameless, made):
    calls = [with_arguments(f"{place}", amount=amount) for place, amount in enumerate(amounts)]
    state = turn(START, "t", 1.0, *calls, pay("open", "look"))
    for place in nameless:
        state = called(state, calls[place].model_copy(update={"id": ""}))[0]
    state = called(state, calls[made])[0]
    assert not is_proposed(state.turns, with_arguments("x", amount=amounts[made]), None)


def test_a_call_under_the_id_of_another_tools_call_uses_up_the_listing_of_its_own_arguments():
    state = turn(
        START,
        "t",
        1.0,
        with_arguments("a", amount=5),
        with_arguments("b", amount=5).model_copy(update={"name": "look"}),
    )
    state = called(state, with_arguments("b", amount=5))[0]
    assert not is_proposed(state.turns, with_arguments("x", amount=5), None)


def test_a_call_that_uses_up_a_listing_of_an_earlier_turn_leaves_the_later_turns_as_they_are():
    state = turn(START, "t1", 1.0, with_arguments("a", amount=5))
    before = turn(state, "t2", 1.0, with_arguments("b", amount=6)).turns
    after = called(turn(state, "t2", 1.0, with_arguments("b", amount=6)), with_arguments("x", amount=5))[0].turns
    assert len(after) == len(before) == 2
    assert (after[0] != before[0], after[1]) == (True, before[1])
