"""Evidence belongs to the turn that proposes a call: no other turn speaks for it, however turns interleave."""

from __future__ import annotations

import json

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Effect, Reading, SessionState, Step, ToolCall, UncertaintyEstimator, UncertaintyMonitor, advance
from grampus_uq import UncertaintyAction as Action
from grampus_uq import UncertaintyPolicy as Policy
from grampus_uq.engine import judge_call
from grampus_uq.state import Profile, state_from_json, state_to_json
from grampus_uq.turns import MAX_CALLS, MAX_TURNS

PROFILE = Profile(estimator=UncertaintyEstimator(verbalized_calibration_bias=0.0))
PAY = "pay"


def pay(call_id: str = "", name: str = PAY) -> ToolCall:
    return ToolCall(id=call_id, name=name)


def turn(state, step_id, value, *calls):
    """The state after a turn of the model that states this confidence (None: nothing read) and proposes these calls."""
    step = Step(step_id=step_id, kind="llm_call", time_s=0.0, tool_calls=calls)
    found = [Reading(source="verbalized", value=value, reason=None if value is not None else "not_stated")]
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


def test_an_id_that_a_model_uses_in_every_turn_is_the_latest_turns_once_the_earlier_call_came():
    state = turn(turn(START, "m", 1.0), "a", None, pay("call_0"))
    state, first = called(state, pay("call_0"))
    assert first.rule == "missing_evidence"
    assert judged(turn(state, "b", 1.0, pay("call_0")), pay("call_0")).action is Action.PROCEED


def test_a_reading_of_the_call_itself_speaks_for_this_call_and_no_other_of_its_turn():
    state = turn(turn(START, "m", 1.0), "a", None, pay("1"), pay("2"))
    step = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(pay("1"),), effect=Effect.IRREVERSIBLE)
    state, own = advance(PROFILE, state, step, [Reading(source="verbalized", value=1.0)])
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


def test_a_state_of_an_older_version_is_judged_on_its_latest_turn():
    written = json.loads(state_to_json(turn(START, "a", 1.0)))
    del written["turns"], written["rang"]
    old = state_from_json(json.dumps(written))
    assert judged(old, PAY).action is Action.PROCEED
    assert judged(state_from_json(json.dumps(written | {"turn_read": False})), PAY).rule == "missing_evidence"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_two_tasks_on_one_session_do_not_lend_each_other_their_readings(backend):
    """Over the public methods: the silent task asks after the other one has committed its reading."""
    monitor = UncertaintyMonitor(policy=Policy(irreversible_tool_names=[PAY]))
    session = monitor.session("s")
    answers = {}

    async def task(name: str, text: str, before: anyio.Event, after: anyio.Event) -> None:
        call = pay(f"{name}-1")
        await session.observe_llm_response(text, name, tool_calls=[call])
        after.set()
        await before.wait()
        answers[name] = session.would_allow(call), (await session.observe_tool_call(call, f"{name}-t"))[0]

    async def main() -> None:
        silent, read = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(task, "silent", "", read, silent)
            await silent.wait()
            group.start_soon(task, "read", 'Paid. {"confidence": 1.0}', silent, read)

    anyio.run(main, backend=backend)
    verdict, decided = answers["silent"]
    assert verdict.rule == decided.rule == "missing_evidence"
    assert answers["read"][0].rule != "missing_evidence"
