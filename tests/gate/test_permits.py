"""A permit's state machine: what it counts, in which order, how often, and what it never does."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import assume, given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.gate.call import UNKNOWN_OUTCOME, CallRecord, Doubt, Terms, asked, decided, settled
from grampus_uq.gate.permits import (
    MOST_OPEN,
    Entry,
    Permit,
    PermitState,
    Ticket,
    applied,
    identity_of,
    issued,
    label_of,
    promise_of,
    refusal,
    replayed,
    same_of,
    sentence,
)
from grampus_uq.gate.requests import ApprovalPolicy
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.records.vocabulary import UncertaintyLevel
from grampus_uq.runtime.permit_words import permit_facts
from grampus_uq.runtime.stored_permits import Standing
from grampus_uq.stats.earned_threshold import Target, audit_probability, broken, level, nothing_earned, place, update
from tests.sampling import sampled

PERMIT = Permit(
    tool="refund",
    limits={"amount": {"max": 50}},
    thresholds=(0.9, 0.8, 0.7),
    epsilon=0.1,
    audit_rate=0.2,
    answer_within_s=100.0,
    principal="ann",
    created_s=0.0,
    expires_s=1e9,
)
FRESH = PermitState.fresh(PERMIT)


def propose(score: float, *, now_s: float = 0.0, draw: float = 0.5, **given: Any) -> Entry:
    return Entry(do="propose", now_s=now_s, score=score, judge="j", draw=draw, **given)


def anew(state: PermitState) -> dict[str, list[float]]:
    """What a new beginning leaves: nothing earned, and the lasting evidence of all calls."""
    assert state.earned["exposed"][0] >= EARNED.earned["exposed"][0] > 0.0
    kept = ("log_lasting", "log_lasting_peak", "exposed")
    return {**FRESH.earned, **{name: state.earned[name] for name in kept}}


def answer(ticket: int, wrong: bool = False, now_s: float = 0.0) -> Entry:
    return Entry(do="answer", now_s=now_s, ticket=ticket, wrong=wrong)


def earned_by(n: int, permit: Permit = PERMIT) -> PermitState:
    """The state after n right answers at a high score."""
    state = PermitState.fresh(permit)
    for number in range(n):
        state = applied(permit, state, propose(0.95, draw=0.0, same=str(number)))
        state = applied(permit, state, answer(number))
    return state


EARNED = earned_by(60)


def test_nothing_goes_ahead_until_it_is_earned_and_then_all_but_audits() -> None:
    assert FRESH.threshold(PERMIT) is None
    assert EARNED.threshold(PERMIT) == 0.7
    taken = issued(PERMIT, EARNED, propose(0.95, draw=0.999))
    assert taken is not None
    number, ticket = taken
    assert (number, ticket.asked) == (60, False)
    assert 0.2 <= ticket.audit < 1.0
    at_rate = issued(PERMIT, EARNED, propose(0.95, draw=ticket.audit))  # draws are below 1: asked with just this chance
    assert at_rate == (number, ticket.model_copy(update={"draw": ticket.audit}))
    assert not at_rate[1].asked
    audit = issued(PERMIT, EARNED, propose(0.95, draw=ticket.audit - 1e-9))
    below = issued(PERMIT, EARNED, propose(0.69, draw=0.999))
    assert audit is not None
    assert below is not None
    assert audit[1].asked
    assert below[1].asked


entries = st.lists(
    st.one_of(
        st.builds(
            propose,
            st.floats(0.0, 1.0),
            draw=st.floats(0.0, 0.999),
            same=st.sampled_from(["a", "b", "c", "d"]),
            alike=st.booleans(),
        ),
        st.builds(answer, st.integers(0, 40), st.booleans()),
        st.just(Entry(do="look", now_s=0.0)),
    ),
    max_size=80,
).flatmap(
    lambda steps: st.lists(st.floats(0.0, 60.0), min_size=len(steps), max_size=len(steps)).map(
        lambda gaps: [
            Entry(**{name: getattr(e, name) for name in Entry.__dataclass_fields__} | {"now_s": float(t)})
            for e, t in zip(steps, np.cumsum(gaps), strict=True)
        ]
    )
)


@given(entries, st.integers(0, 60))
def test_each_ticket_is_counted_once_in_order_as_it_was_issued(steps: list[Entry], before: int) -> None:
    """An independent account of the tickets, fed to the mathematics one by one, gives the very same evidence."""
    state = earned_by(before)
    tickets: list[dict[str, Any]] = []
    for step in steps:
        taken = issued(PERMIT, state, step) if step.do == "propose" else None
        state = applied(PERMIT, state, step)
        for index, ticket in enumerate(tickets):  # overdue at the time of the step, before what the step says
            if ticket["asked"] and ticket["wrong"] is None and step.now_s >= ticket["due"] and _due(tickets, index):
                ticket["wrong"] = True
                ticket["closed"] = True
            if not _due(tickets, index) or (ticket["asked"] and ticket["wrong"] is None):
                break
        if step.do == "answer" and before <= step.ticket < before + len(tickets):
            ticket = tickets[step.ticket - before]
            if ticket["asked"] and not _counted(tickets, step.ticket - before):
                ticket["wrong"] = step.wrong
        if taken is not None:
            number, issued_ = taken
            assert number == before + len(tickets)
            tickets.append(
                {
                    "at": issued_.at,
                    "in_force": issued_.in_force,
                    "audit": issued_.audit,
                    "draw": issued_.draw,
                    "asked": issued_.asked,
                    "wrong": None,
                    "due": step.now_s + 100.0,
                }
            )
    counted = [t for i, t in enumerate(tickets) if _counted(tickets, i)]
    assert state.counted == before + len(counted)
    assert state.issued == before + len(tickets)
    if not state.withdrawn:
        earned = earned_by(before).of(PERMIT)
        for t in counted:
            earned = update(
                PERMIT.target, earned, t["at"], t["draw"], t["wrong"] is True, in_force=t["in_force"], audit=t["audit"]
            )
        np.testing.assert_array_equal(earned.log_wealth, state.of(PERMIT).log_wealth)
        np.testing.assert_array_equal(earned.log_peak, state.of(PERMIT).log_peak)


def _due(tickets: list[dict[str, Any]], index: int) -> bool:
    """Whether everything before a ticket is settled."""
    return all(not t["asked"] or t["wrong"] is not None for t in tickets[:index])


def _counted(tickets: list[dict[str, Any]], index: int) -> bool:
    return _due(tickets, index + 1)


@given(entries)
def test_the_log_gives_the_live_state_to_the_last_digit_also_through_json(steps: list[Entry]) -> None:
    state = FRESH
    for step in steps:
        state = applied(PERMIT, state, step)
        state = PermitState.read(PERMIT, json.loads(state.model_dump_json()))
    log = [json.loads(json.dumps(step.to_json())) for step in steps]
    assert replayed(PERMIT, log) == state
    assert state.revision == len(steps)


def test_answers_that_come_early_wait_for_those_before_them() -> None:
    state = applied(PERMIT, applied(PERMIT, FRESH, propose(0.95)), propose(0.95, same="b"))
    quick = applied(PERMIT, state, answer(1))
    assert quick.of(PERMIT).log_wealth.tolist() == [0.0, 0.0, 0.0]
    assert (quick.counted, len(quick.open)) == (0, 2)
    assert applied(PERMIT, quick, answer(0)).counted == 2


def test_no_answer_in_time_counts_as_wrong_and_an_answer_after_that_changes_nothing() -> None:
    state = applied(PERMIT, FRESH, propose(0.95))
    late = applied(PERMIT, state, Entry(do="look", now_s=100.0))
    assert (late.counted, late.wrong, late.overdue) == (1, 1, 1)
    assert (late.of(PERMIT).usual_wrong + late.of(PERMIT).recent_wrong).tolist() == [1.0, 0.0, 0.0, 0.0]
    told = applied(PERMIT, late, answer(0, wrong=False, now_s=101.0))
    assert told.earned == late.earned
    assert told.corrected == 1


def test_a_later_answer_overrides_an_earlier_one_only_until_it_is_counted() -> None:
    state = applied(PERMIT, applied(PERMIT, FRESH, propose(0.95)), propose(0.95, same="b"))
    state = applied(PERMIT, applied(PERMIT, state, answer(1, wrong=False)), answer(1, wrong=True))
    state = applied(PERMIT, state, answer(0))
    assert (state.counted, state.wrong) == (2, 1)
    assert applied(PERMIT, state, answer(0, wrong=True)).earned == state.earned


def test_an_equal_call_that_is_pending_is_asked_about_and_seen_for_sure() -> None:
    pending = applied(PERMIT, EARNED, propose(0.95, draw=0.0, same="x"))
    for state, entry in (
        (pending, propose(0.95, draw=0.999, same="x")),
        (EARNED, propose(0.95, draw=0.999, same="y", alike=True)),
    ):
        taken = issued(PERMIT, state, entry)
        assert taken is not None
        assert (taken[1].in_force, taken[1].asked) == (0, True)
    free = issued(PERMIT, pending, propose(0.95, draw=0.999, same="y"))
    assert free is not None
    assert not free[1].asked


def test_another_judge_a_closed_permit_and_a_full_queue_take_no_ticket() -> None:
    other = Entry(do="propose", now_s=0.0, score=0.95, judge="another model", draw=0.999)
    assert issued(PERMIT, EARNED, other) is None
    assert applied(PERMIT, EARNED, other).earned == EARNED.earned
    closed = applied(PERMIT, EARNED, Entry(do="close", now_s=0.0, why="ann said never"))
    assert issued(PERMIT, closed, propose(0.95, draw=0.999)) is None
    assert closed.in_force(PERMIT) == 0
    assert "ann said never" in sentence(PERMIT, closed)
    full = FRESH
    for number in range(MOST_OPEN + 5):
        full = applied(PERMIT, full, propose(0.95, same=str(number)))
    assert full.issued == MOST_OPEN
    assert len(full.model_dump_json()) < 60_000


def test_wrong_audits_take_the_permission_back_until_it_is_earned_anew() -> None:
    state, number = EARNED, EARNED.issued
    while not state.withdrawn:
        assert number < 200
        state = applied(PERMIT, state, propose(0.95, draw=0.0, same=str(number)))
        state = applied(PERMIT, state, answer(number, wrong=True))
        number += 1
    assert state.threshold(PERMIT) is None
    assert "began anew once because" in sentence(PERMIT, state)
    assert "began anew 2 times, last because" in sentence(PERMIT, state.model_copy(update={"withdrawn": 2}))
    shown = permit_facts(Standing(permit=PERMIT, state=state, version=1, now_s=0.0))
    assert shown["status"] == "asks about everything; began anew"
    assert shown["cleared"] == "0 calls since it began anew, unasked"
    assert state.why_withdrawn in sentence(PERMIT, state)
    assert state.earned == anew(state)
    for _ in range(60):
        state = applied(PERMIT, state, propose(0.95, draw=0.0, same=str(number)))
        state = applied(PERMIT, state, answer(number))
        number += 1
    assert state.threshold(PERMIT) == 0.7


def test_a_wrong_call_above_the_threshold_speaks_against_what_is_in_force_until_enough_right_answers_follow() -> None:
    """Already while it waits behind an earlier question; one below it, which did not go ahead, never does."""
    assert not EARNED.suspects(PERMIT)
    first, second, n = EARNED, EARNED, EARNED.issued
    for number, score in ((n, 0.95), (n + 1, 0.69)):
        second = applied(PERMIT, second, propose(score, draw=0.0, same=str(number)))
        first = applied(PERMIT, first, propose(0.95, draw=0.0, same=str(number)))
    assert not applied(PERMIT, second, answer(n + 1, wrong=True)).suspects(PERMIT)
    state = applied(PERMIT, first, answer(n + 1, wrong=True))
    assert state.counted == EARNED.counted
    assert state.suspects(PERMIT)
    state = applied(PERMIT, state, answer(n))
    assert state.counted == EARNED.counted + 2
    assert not state.withdrawn
    for number in range(n + 2, n + 200):
        if not state.suspects(PERMIT):
            break
        state = applied(PERMIT, applied(PERMIT, state, propose(0.95, draw=0.0, same=str(number))), answer(number))
    assert n + 2 < number < n + 199


def test_the_sentence_names_share_scope_assurance_answers_and_who_judged() -> None:
    assert sentence(PERMIT, EARNED) == (
        "goes ahead: at most 10 % of refund calls where amount is at most 50 go out wrong, at 95 %, "
        "as judged by the reviewers, from 60 answers, 0 of them audits"
    ).replace("0 of them", f"{EARNED.audits} of them")
    drilled = PERMIT.model_copy(update={"miss_rate": 0.5})
    both = "at 90 % (95 % for the answers, 95 % for reviewers who miss at most 50 %)"
    assert sentence(drilled, EARNED) == sentence(PERMIT, EARNED).replace("10 %", "20 %").replace(
        "at 95 %, as judged by the reviewers", both
    )
    unlike = sentence(drilled.model_copy(update={"miss_rate": 0.12345, "miss_delta": 0.1}), EARNED)
    assert "at most 11.5 % of" in unlike
    assert "at 85 % (95 % for the answers, 90 % for reviewers who miss at most 12.4 %)" in unlike
    released = sentence(PERMIT.model_copy(update={"of_released": True}), EARNED)
    assert "10 % of refund calls where amount is at most 50 that may go out go out wrong" in released
    assert sentence(PERMIT, FRESH).startswith("asks about all refund calls where amount is at most 50")


@pytest.mark.parametrize(
    ("arguments", "covered"),
    [
        ({"amount": 50}, True),
        ({"amount": 50.5}, False),
        ({"amount": "50"}, False),
        ({"amount": True}, False),
        ({}, False),
        ({"amount": 5, "to": "anybody"}, True),
    ],
)
def test_the_scope_is_of_typed_arguments(arguments: dict[str, Any], covered: bool) -> None:
    call = ToolCall(id="1", name="refund", arguments=arguments)
    assert PERMIT.covers(call, "clerk", 0.0) is covered
    assert not PERMIT.covers(call, "clerk", 1e9)
    assert not PERMIT.covers(call.model_copy(update={"name": "Refund"}), "clerk", 0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"limits": {"amount": {}}},
        {"limits": {"amount": {"maximum": 5}}},
        {"limits": {"amount": {"max": "5"}}},
        {"limits": {"amount": {"max": True}}},
        {"limits": {"amount": {"in": 5}}},
        {"thresholds": ()},
        {"thresholds": (0.5, 0.9)},
        {"epsilon": 0.0},
        {"epsilon": 0.9},
        {"delta": 1.0},
        {"audit_rate": 0.0},
        {"miss_rate": 1.0},
        {"answer_within_s": 0.0},
        {"stream": "anything"},
        {"principal": ""},
        {"id": "../x"},
        {"unknown": 1},
    ],
)
def test_a_permit_that_promises_nothing_definite_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Permit(**PERMIT.model_dump() | wrong)


@pytest.mark.parametrize("field", ["earned", "open", "counted", "permit", "revision"])
@pytest.mark.parametrize("value", [None, "x", -1, [[]], {"log_wealth": [float("nan")] * 3}, 1.5, True])
def test_a_state_that_is_none_or_another_permits_is_refused(field: str, value: Any) -> None:
    values = json.loads(EARNED.model_dump_json()) | {field: value}
    with pytest.raises(DataError):
        PermitState.read(PERMIT, values)


def test_a_state_does_not_outlive_a_change_of_its_permit() -> None:
    wider = Permit(**PERMIT.model_dump() | {"limits": {}})
    with pytest.raises(DataError, match="another permit"):
        PermitState.read(wider, json.loads(EARNED.model_dump_json()))


@sampled("runs", [4], full=[30])
def test_the_promise_holds_with_late_answers_and_breaks_if_they_count_as_they_come(runs: int) -> None:
    """Right answers come at once and wrong ones never: in order nothing is ever earned; as they arrive it would be."""
    rng = np.random.default_rng(1)
    permit = Permit(**PERMIT.model_dump() | {"thresholds": (0.5,)})
    earned_in_order = 0
    for _ in range(runs):
        state, best = PermitState.fresh(permit), 0
        naive = nothing_earned(permit.target)
        at = int(place(permit.target, 0.9))
        for number, now_s in enumerate(range(0, 600, 3)):
            state = applied(permit, state, propose(0.9, now_s=now_s, draw=rng.random(), same=str(number)))
            if rng.random() < 0.9:  # one in ten is wrong: exactly epsilon
                state = applied(permit, state, answer(number, now_s=now_s))
                naive = update(permit.target, naive, at, 0.0, False, in_force=0, audit=1.0)
            best = max(best, state.in_force(permit))
        earned_in_order += best > 0
        assert int(level(permit.target, naive)) == 1  # the sabotage: whatever arrived is counted
    assert earned_in_order <= scipy.stats.binom.ppf(0.999, runs, 0.05)


# -- what a sentence promises, and what a broken state does ------------------------------------------------------------


@given(
    st.floats(1e-6, 0.5),
    st.floats(1e-9, 0.999),
    st.one_of(st.none(), st.floats(0.0, 0.999)),
    st.floats(1e-9, 0.999),
)
def test_the_sentence_never_states_a_better_promise_than_the_permit_makes(
    epsilon: float, delta: float, miss_rate: float | None, miss_delta: float
) -> None:
    """With a miss rate two things must hold: their failures may add up."""
    assume(epsilon < 1.0 - (miss_rate or 0.0))
    failing = Fraction(str(delta)) + (0 if miss_rate is None else Fraction(str(miss_delta)))
    assume(failing < 1)
    permit = Permit(
        tool="pay",
        thresholds=(0.5,),
        epsilon=epsilon,
        delta=delta,
        miss_rate=miss_rate,
        miss_delta=miss_delta,
        principal="ann",
        expires_s=1e9,
    )
    state = PermitState.fresh(permit)
    state = state.model_copy(update={"earned": {**state.earned, "log_peak": [99.0]}})
    found = re.match(
        r"goes ahead: at most ([0-9.]+) % of pay calls go out wrong, at ([0-9.]+) %", sentence(permit, state)
    )
    assert found is not None
    share, sure = Fraction(found[1]) / 100, Fraction(found[2]) / 100
    exact = Fraction(str(epsilon)) / (1 - Fraction(str(miss_rate or 0)))
    assert exact <= share <= exact * Fraction(101, 100)
    assert sure <= 1 - failing
    assert promise_of(permit) in sentence(permit, state)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"epsilon": 0.0104}, "at most 1.04 %"),
        ({"epsilon": 0.07}, "at most 7 %"),
        ({"epsilon": 0.02, "miss_rate": 0.05}, "at most 2.11 %"),
        ({"epsilon": 0.02, "delta": 1e-9}, "at 99.9999 %"),
        (
            {"epsilon": 0.02, "delta": 1e-9, "miss_rate": 0.05, "miss_delta": 1e-8},
            "at 99.9999 % (99.9999 % for the answers, 99.9999 % for reviewers who miss at most 5 %)",
        ),
    ],
)
def test_shares_are_rounded_up_and_the_assurance_down(given_: dict[str, Any], said: str) -> None:
    permit = Permit(tool="pay", thresholds=(0.5,), principal="ann", expires_s=1e9, **given_)
    state = PermitState.fresh(permit)
    assert said in sentence(permit, state.model_copy(update={"earned": {**state.earned, "log_peak": [99.0]}}))


def test_a_miss_rate_that_leaves_nothing_of_the_promise_is_refused_and_one_that_does_not_begins_anew() -> None:
    with pytest.raises(ConfigurationError, match=r"'miss_rate' .* below 1 - epsilon \(0.9\).*measure it with drills"):
        PERMIT.with_miss_rate(0.9)
    with pytest.raises(ConfigurationError, match=r"'miss_delta' .* below 1 - delta \(0.95\): both assurances"):
        PERMIT.with_miss_rate(0.5, 0.96)
    signed = PERMIT.model_copy(update={"signature": "x"})
    measured = signed.with_miss_rate(0.5)
    assert measured.created_s > PERMIT.created_s
    assert (measured.miss_rate, measured.signature, measured.limits) == (0.5, None, PERMIT.limits)
    assert measured.id != PERMIT.id
    with pytest.raises(DataError, match="another permit"):
        PermitState.read(measured, EARNED.model_dump(mode="json"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
HOSTILE = st.sampled_from([-1, -5.0, 10**30, 10**400, 1e308, -1e308, 2**53, True, None, "x", [], {}]) | JSON


@given(st.data())
def test_a_broken_state_is_refused_when_it_is_read_or_can_be_gone_on_from(
    data: st.DataObject,
) -> None:
    """Mutated at any place: no arithmetic on what was read fails, whatever happens next."""
    state = applied(PERMIT, EARNED, propose(0.95, draw=0.0, same="open"))
    values = state.model_dump(mode="json")
    for _ in range(data.draw(st.integers(1, 3))):
        place_: Any = values
        while True:
            keys = list(place_) if isinstance(place_, dict) else list(range(len(place_)))
            key = data.draw(st.sampled_from(keys))
            if not isinstance(place_[key], dict | list) or not place_[key] or data.draw(st.booleans()):
                break
            place_ = place_[key]
        place_[key] = data.draw(HOSTILE)
        if not isinstance(values.get("earned"), dict):
            break
    try:
        read = PermitState.read(PERMIT, values)
    except DataError:
        return
    for entry in (answer(60, wrong=True), propose(0.95, draw=0.9, same="n"), answer(61), Entry(do="look", now_s=1e9)):
        issued(PERMIT, read, entry)
        read = applied(PERMIT, read, entry)
        assert sentence(PERMIT, read)
    assert all(math.isfinite(value) for values in read.earned.values() for value in values)


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"do": ["look"], "now_s": 1.0},
        {"do": "look"},
        {"do": "look", "now_s": "x"},
        {"do": "look", "now_s": float("nan")},
        {"do": "answer", "now_s": 1.0, "ticket": "x", "wrong": False},
        {"do": "propose", "now_s": 1.0, "score": "x", "same": "", "judge": "", "draw": 0.0, "alike": False},
    ],
)
def test_a_log_with_an_entry_that_is_none_is_refused_by_its_line(entry: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"^2: no entry of a permit's log"):
        replayed(PERMIT, [{"do": "look", "now_s": 0.0}, entry])


# -- an agent that turns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "rate"), [(0.02, 0.05), (0.12, 0.1)])
def test_of_an_agent_that_turns_no_more_goes_out_than_until_the_first_audit_of_a_wrong_call(
    epsilon: float, rate: float
) -> None:
    """Right until earned, then always wrong: geometric, so above log .05 / log(1 - q) in 5 %."""
    target = Target(thresholds=(0.5,), epsilon=epsilon, audit_rate=rate)
    rng, n = np.random.default_rng(3), 400
    earned, out, ceiling = nothing_earned(target, (n,)), np.zeros(n), math.ceil(math.log(0.05) / math.log1p(-rate))
    for _ in range(math.ceil(math.log(0.05) / math.log1p(-epsilon)) + 40 * ceiling // 10):
        force, audit = level(target, earned), audit_probability(target, earned)
        turned = force > 0
        draw = rng.random(n)
        out += turned & (draw >= audit) & ~np.logical_or(*broken(target, earned))
        earned = update(target, earned, np.zeros(n, dtype=int), draw, turned, in_force=force, audit=audit)
    allowed = int(scipy.stats.binom.ppf(0.999, n, 0.05))
    assert (out > ceiling).sum() <= allowed
    assert (out > ceiling / 2).sum() > allowed
    assert abs(out.mean() - (1 - rate) / rate) < 4 * (1 - rate) ** 0.5 / rate / n**0.5


@given(entries, st.integers(30, 60))
def test_no_call_goes_ahead_while_a_wrong_answer_above_the_threshold_waits_to_be_counted(
    steps: list[Entry], before: int
) -> None:
    """For any order and delay of answers: those that wait for an earlier one are looked at too."""
    state, above = earned_by(before), dict[int, bool]()
    for step in steps:
        moved = replace(step, ticket=step.ticket + before)
        reached = applied(PERMIT, state, replace(step, do="look"))
        taken = issued(PERMIT, state, moved) if step.do == "propose" else None
        if taken is not None:
            number, ticket = taken
            caught = [n for n, wrong in above.items() if wrong and n >= reached.counted]
            assert not caught or ticket.asked
            if ticket.asked and ticket.at < ticket.in_force:
                above[number] = False
        state = applied(PERMIT, state, moved)
        if step.do == "answer" and moved.ticket in above:
            above[moved.ticket] = step.wrong


@pytest.mark.parametrize(
    ("score", "same", "wrong", "asks"),
    [
        (0.95, "audit", True, True),
        (0.95, "audit", False, False),
        (0.95, "orphan", True, True),  # an equal call was pending: no audit, but it would have gone ahead
        (0.75, "audit", True, True),
        (0.7, "audit", True, True),
        (0.69, "audit", True, False),  # below the threshold it says nothing of what goes ahead
    ],
)
def test_an_answer_behind_an_open_question_counts_against_what_goes_ahead(
    score: float, same: str, wrong: bool, asks: bool
) -> None:
    state = applied(PERMIT, EARNED, propose(0.1, same="orphan"))
    state = applied(PERMIT, state, propose(score, draw=0.0, same=same))
    told = applied(PERMIT, state, answer(61, wrong))
    for before, expected in ((state, False), (told, asks)):
        taken = issued(PERMIT, before, propose(0.95, draw=0.999, same="next"))
        assert taken is not None
        assert (taken[1].asked, taken[1].audit == 1.0, taken[1].in_force) == (expected, expected, 3)
    again = applied(PERMIT, told, answer(61, wrong=False))
    cleared = issued(PERMIT, again, propose(0.95, draw=0.999, same="next"))
    assert cleared is not None
    assert not cleared[1].asked


def test_a_refused_call_of_a_threshold_that_was_in_force_counts_also_after_a_stricter_one_took_its_place() -> None:
    """Withdrawn and earned anew for less while an audit of before waits behind an open question."""
    ticket = Ticket(at=2, in_force=3, audit=0.5, draw=0.0, wrong=True, due_s=1e9, same="old")
    orphan = Ticket(at=3, in_force=3, audit=0.5, draw=0.0, due_s=1e9, same="orphan")
    earned = {**EARNED.earned, "log_peak": [9.0, 0.0, 0.0]}
    state = EARNED.model_copy(update={"open": (orphan, ticket), "earned": earned})
    taken = issued(PERMIT, state, propose(0.95, draw=0.999, same="next"))
    assert taken is not None
    assert (taken[1].in_force, taken[1].asked) == (1, True)


@sampled("n", [20], full=[150])
def test_an_open_question_at_the_front_lets_no_more_out_of_an_agent_that_turns(n: int) -> None:
    """Wrong from when a question is left that nobody answers: geometric, up to the first audit that was answered."""
    permit = Permit(**PERMIT.model_dump() | {"thresholds": (0.5,)})
    earned = earned_by(60, permit)
    assert float(audit_probability(permit.target, earned.of(permit))) == 0.2
    rng = np.random.default_rng(5)
    out = np.zeros(n)
    for run in range(n):
        state = applied(permit, earned, propose(0.1, same="orphan"))
        for number in range(61, 61 + MOST_OPEN):
            entry = propose(0.9, now_s=number / 10, draw=rng.random(), same=str(number))
            taken = issued(permit, state, entry)
            if taken is None or number > 130:
                break
            state = applied(permit, state, entry)
            if taken[1].asked:
                state = applied(permit, state, answer(number, True, number / 10))
            out[run] += not taken[1].asked
    allowed = int(scipy.stats.binom.ppf(0.999, n, 0.05))
    assert (out > math.ceil(math.log(0.05) / math.log(0.8))).sum() <= allowed
    assert abs(out.mean() - 4) < 4 * 0.8**0.5 / 0.2 / n**0.5


# -- which call a ticket is of, and which answers are labels -----------------------------------------------------------

TERMS = Terms(agent_id="clerk", session_id="s", run_id="r")
CALL = ToolCall(id="c", name="refund", arguments={"amount": 5})
RECORD = CallRecord(proposed=CALL, step_id="llm_0")


def test_a_ticket_is_of_one_call_of_one_step_of_one_run_and_equal_calls_are_those_of_one_agent() -> None:
    others = [
        (RECORD, replace(TERMS, agent_id="x")),
        (RECORD, replace(TERMS, session_id="x")),
        (RECORD, replace(TERMS, run_id="x")),
        (RECORD.change(step_id="x"), TERMS),
        (RECORD.change(proposed=CALL.model_copy(update={"id": "x"})), TERMS),
        (RECORD.change(proposed=CALL.model_copy(update={"arguments": {"amount": 6}})), TERMS),
    ]
    own, equal = identity_of(RECORD, TERMS), same_of(RECORD, TERMS)
    assert len({own, *(identity_of(record, terms) for record, terms in others)}) == 7
    assert [same_of(record, terms) == equal for record, terms in others] == [False, True, True, True, True, False]
    assert identity_of(RECORD.change(phase="waiting", call=CALL.model_copy(update={"arguments": {}})), TERMS) == own
    assert (len(own), len(equal)) == (32, 16)
    assert (
        own
        == hashlib.sha256(canonical_json(["clerk", "s", "r", "llm_0", "c", CALL.digest()]).encode()).hexdigest()[:32]
    )
    assert identity_of(RECORD, replace(TERMS, session_id="\ud800"))  # half a character is no reason to fail


@pytest.mark.parametrize(
    ("says", "given_", "wrong"),
    [
        ("approve", {}, False),
        ("edit", {"arguments": {"amount": 5}}, False),
        ("edit", {"arguments": {"amount": 6}}, True),
        ("reject", {}, True),
        ("respond", {"message": "done"}, True),
    ],
)
def test_approved_as_it_was_is_right_and_all_else_wrong(says: str, given_: dict[str, Any], wrong: bool) -> None:
    doubt = Doubt(level=UncertaintyLevel.MEDIUM, rule="tier", reason="")
    waits = asked(RECORD, TERMS, ApprovalPolicy(), doubt, 0.0)
    assert label_of(waits) is None
    assert label_of(decided(waits, [waits.requests[0].decide(says, principal="ann", **given_)])) is wrong
    assert label_of(settled(waits, "it expired")) is True
    unknown = asked(RECORD, TERMS, ApprovalPolicy(), UNKNOWN_OUTCOME, 0.0)
    answered_ = decided(unknown, [unknown.requests[0].decide(says, principal="ann", **given_)])
    assert label_of(answered_.change(requests=unknown.requests)) is None


def test_an_entry_is_kept_without_what_it_does_not_say() -> None:
    assert propose(0.5, same="x", alike=True).to_json() == {
        "do": "propose",
        "now_s": 0.0,
        "score": 0.5,
        "same": "x",
        "judge": "j",
        "draw": 0.5,
        "alike": True,
    }
    assert answer(3, True, 2.0).to_json() == {"do": "answer", "now_s": 2.0, "ticket": 3, "wrong": True}
    assert Entry(do="close", now_s=1.0, why="x").to_json() == {"do": "close", "now_s": 1.0, "why": "x"}
    assert Entry(do="look", now_s=1.0).to_json() == {"do": "look", "now_s": 1.0}


def test_what_is_counted_is_told_apart_and_begins_anew_with_the_evidence() -> None:
    state = EARNED
    for number, (draw, score, wrong) in enumerate(
        [(0.999, 0.95, None), (0.0, 0.95, False), (0.0, 0.1, True)], start=60
    ):
        state = applied(PERMIT, state, propose(score, draw=draw, same=f"s{number}"))
        state = state if wrong is None else applied(PERMIT, state, answer(number, wrong))
    tallies = (state.answers, state.audits, state.released, state.wrong, state.overdue, state.corrected)
    assert tallies == (62, EARNED.audits + 1, 1, 1, 0, 0)
    assert (state.counted, state.issued, state.open, state.withdrawn) == (63, 63, (), 0)
    looked = applied(PERMIT, state, Entry(do="look", now_s=5.0))
    assert looked == state.model_copy(update={"revision": state.revision + 1})
    closed = applied(PERMIT, state, Entry(do="close", now_s=5.0, why="enough"))
    assert applied(PERMIT, closed, Entry(do="close", now_s=6.0, why="later")).closed == "enough"
    assert applied(PERMIT, closed, answer(62)).corrected == state.corrected + 1


@pytest.mark.parametrize(
    ("evidence", "why"),
    [("log_contrary", "more go out wrong than promised"), ("log_change", "answers are wrong more often than before")],
)
def test_each_of_the_two_signs_withdraws_the_permission_and_the_counts_begin_anew(evidence: str, why: str) -> None:
    speaks = [40.0] * len(EARNED.earned[evidence])
    state = EARNED.model_copy(update={"earned": {**EARNED.earned, evidence: speaks}})
    state = applied(PERMIT, state, propose(0.95, draw=0.0, same="last"))
    state = applied(PERMIT, state, answer(60))
    assert (state.withdrawn, state.why_withdrawn) == (1, why)
    assert (state.answers, state.audits, state.released, state.wrong, state.overdue, state.corrected) == (0,) * 6
    assert state.earned == anew(state)


def test_a_permission_that_is_spent_asks_about_everything_for_good_and_says_so() -> None:
    """Also beside a second permit: it goes on standing on its calls until somebody revokes it."""
    state, number = EARNED, EARNED.issued
    while not state.spent(PERMIT):
        assert number < 2_000
        standing = state.in_force(PERMIT) > 0 and state.withdrawn < 50
        state = applied(PERMIT, state, propose(0.95, draw=0.0, same=str(number)))
        exposed = state.open[-1].audit < 1.0
        state = applied(PERMIT, state, answer(number, wrong=standing and exposed))
        number += 1
    assert state.wrong + state.withdrawn > 1
    assert (state.in_force(PERMIT), state.threshold(PERMIT), state.closed) == (0, None, None)
    assert "withdrawn for good, over all its time more went out wrong than promised" in sentence(PERMIT, state)
    for _ in range(100):
        state = applied(PERMIT, state, propose(0.95, same=str(number)))
        assert state.open[-1].asked
        state = applied(PERMIT, state, answer(number))
        number += 1
    assert state.in_force(PERMIT) == 0
    assert PermitState.read(PERMIT, json.loads(state.model_dump_json())) == state


def test_a_call_of_a_time_in_which_all_were_asked_about_teaches_at_full_weight_and_pays_for_no_exposed_one() -> None:
    """Otherwise than one with an equal one pending: that is asked for certain as well, but not whatever it is."""
    certain = applied(PERMIT, EARNED, propose(0.95, draw=0.999, same="c", certain=True))
    alike = applied(PERMIT, EARNED, propose(0.95, draw=0.999, same="a", alike=True))
    assert [(one.open[-1].asked, one.open[-1].in_force) for one in (certain, alike)] == [(True, 0)] * 2
    assert certain.open[-1].audit == 1.0 > alike.open[-1].audit
    number = EARNED.issued
    after, beside = applied(PERMIT, certain, answer(number)), applied(PERMIT, alike, answer(number))
    assert after.earned["exposed"] == EARNED.earned["exposed"] < beside.earned["exposed"]
    assert after.earned["log_lasting"] == EARNED.earned["log_lasting"]
    entry = propose(0.95, certain=True)
    assert entry.to_json()["certain"] is True
    assert "certain" not in propose(0.95).to_json()
    log = [one for n in range(60) for one in (propose(0.95, same=str(n), certain=True), answer(n))]
    begun = replayed(PERMIT, [one.to_json() for one in log])
    assert (begun.in_force(PERMIT) > 0, begun.answers, begun.audits, begun.earned["exposed"]) == (True, 60, 0, [0.0])
    said = [{name: value for name, value in one.to_json().items() if name != "certain"} for one in log]
    assert replayed(PERMIT, said).earned["exposed"] > [0.0], "who does not say so was not asked for certain"


def test_all_that_is_settled_at_once_is_counted_at_once() -> None:
    state = FRESH
    for number in range(3):
        state = applied(PERMIT, state, propose(0.95, same=str(number)))
    late = applied(PERMIT, state, Entry(do="look", now_s=100.0))
    assert (late.counted, late.answers, late.wrong, late.overdue) == (3, 3, 3, 3)


def test_the_first_call_binds_the_permit_to_what_judges_it_unless_that_was_written_down() -> None:
    assert (FRESH.judge, applied(PERMIT, FRESH, propose(0.95)).judge) == (None, "j")
    bound = PermitState.fresh(PERMIT.model_copy(update={"judge": "k"}))
    assert bound.judge == "k"
    assert refusal(bound, "j") is not None


def test_an_answer_on_a_ticket_that_was_not_asked_or_does_not_exist_changes_nothing() -> None:
    blocked = applied(PERMIT, EARNED, propose(0.1, same="below"))
    ahead = applied(PERMIT, blocked, propose(0.95, draw=0.999, same="ahead"))
    assert [ticket.asked for ticket in ahead.open] == [True, False]
    for ticket in (61, 62, 10**9):
        assert applied(PERMIT, ahead, answer(ticket, True)).open == ahead.open
    assert applied(PERMIT, ahead, answer(60)).counted == 62


def test_the_refusals_say_why() -> None:
    assert refusal(FRESH, "anybody") is None
    assert refusal(EARNED, "j") is None
    assert "another profile, model, prompt or tool set" in str(refusal(EARNED, "k"))
    closed = EARNED.model_copy(update={"closed": "enough"})
    assert refusal(closed, "j") == "the permit is closed: enough"
    ticket = Ticket(at=0, in_force=0, audit=1.0, draw=0.0, due_s=1.0, same="x")
    assert refusal(FRESH.model_copy(update={"open": (ticket,) * (MOST_OPEN - 1)}), "j") is None
    full = FRESH.model_copy(update={"open": (ticket,) * MOST_OPEN})
    assert refusal(full, "j") == "256 calls wait for earlier answers"


def test_a_state_with_a_ticket_that_no_call_can_have_taken_is_refused() -> None:
    values = json.loads(applied(PERMIT, EARNED, propose(0.95, draw=0.0)).model_dump_json())
    assert PermitState.read(PERMIT, values).open[0].audit == PERMIT.audit_rate
    for wrong, why in (
        ({"audit": 0.19}, "a ticket has less than the least audit rate"),
        ({"at": 4}, "a ticket lies beyond the thresholds"),
        ({"draw": 1.0}, "open.0.draw: "),
        ({"draw": -0.1}, "open.0.draw: "),
        ({"asked": False}, "open.0.asked: "),
    ):
        broken_ = {**values, "open": [{**values["open"][0], **wrong}]}
        with pytest.raises(DataError, match=f"^its state is broken: {why}"):
            PermitState.read(PERMIT, broken_)


def test_a_state_of_an_earlier_release_is_refused_by_its_name() -> None:
    values = json.loads(EARNED.model_dump_json())
    for old in (1, 2, 3, 4):
        with pytest.raises(DataError, match="by an earlier release: revoke it"):
            PermitState.read(PERMIT, values | {"v": old})
    with pytest.raises(DataError, match="its state is broken: v: "):
        PermitState.read(PERMIT, values | {"v": 6})
    with pytest.raises(DataError, match=r"its state is broken: open.0.at: "):
        PermitState.read(PERMIT, values | {"open": [{"at": -1}]})
