"""What an agent does is counted alike live, resumed and offline; a count moves nothing that was not fitted on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Profile, Sensing, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.core.release import ReleaseRule
from grampus_uq.errors import DataError
from grampus_uq.monitor.session import Session
from grampus_uq.records.events import Event, StepEvent
from grampus_uq.records.vocabulary import UncertaintyAction
from grampus_uq.signals.structure import COUNTS, StructureState, counted
from grampus_uq.stats.fusion import COUNT, FusedReading, LogisticFusion, is_count
from grampus_uq.wire.calls import UNPARSED

TEXTS = ("", "I cannot do that, sorry.", "Actually, let me try again.", "Fine.", "No, I don't.")
CALLS = tuple(
    ToolCall(id=identity, name=name, arguments=arguments)
    for identity, name, arguments in (
        ("", "get_user", {"id": 1}),
        ("a", "get_user", {"id": 1}),
        ("b", "update_order", {"n": 2}),
        ("b", "update_order", {"n": 3}),
        ("c", "cancelBooking", {UNPARSED: "{'id': 1}"}),
    )
)
TURN = st.tuples(st.just("turn"), st.sampled_from(TEXTS), st.lists(st.sampled_from(CALLS), max_size=3))
OTHER = st.one_of(
    st.tuples(st.just("call"), st.sampled_from(CALLS)),
    st.tuples(st.just("result"), st.sampled_from(["ok", "Error: no", ""]), st.booleans()),
    st.tuples(st.just("user"), st.sampled_from(["please", "###STOP###"])),
)
RUNS = st.lists(st.one_of(TURN, OTHER), max_size=12)
Told = Sequence[tuple[Any, ...]]


class Kept:
    """Keeps what a monitor emits."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def monitor(kept: Kept | None = None, **given: Any) -> UncertaintyMonitor:
    return UncertaintyMonitor(
        processors=[] if kept is None else [kept], advisory=True, sensing=Sensing(counts=True), **given
    )


async def tell(session: Session, told: Told, first: int = 0) -> None:
    for number, (kind, *what) in enumerate(told, first):
        match kind:
            case "turn":
                await session.observe_llm_response(what[0], f"s{number}", tool_calls=what[1])
            case "call":
                await session.observe_tool_call(what[0], f"t{number}")
            case "result":
                session.observe_tool_result("a", what[0], is_error=what[1])
            case "user":
                session.observe_user(what[0])


def counts_of(events: Sequence[Event]) -> list[dict[str, int]]:
    """The counts after each step of the model, as they were read."""
    return [
        {r.source.removeprefix(COUNT): round(1.0 / r.value - 2.0) for r in event.readings if is_count(r.source)}  # type: ignore[operator]  # a count is always there
        for event in events
        if isinstance(event, StepEvent) and event.step.kind != "tool_call"
    ]


def told(*run: tuple[Any, ...]) -> dict[str, int]:
    """The counts at the last step of the model that are not 0."""
    kept = Kept()
    anyio.run(tell, monitor(kept).session("r"), run)
    return {name: count for name, count in counts_of(kept.events)[-1].items() if count}


@given(RUNS, st.integers(0, 12))
def test_live_resumed_in_another_process_and_offline_give_the_same_counts(run: Told, cut: int) -> None:
    whole, parted = Kept(), Kept()
    anyio.run(tell, monitor(whole).session("r"), run)
    first = monitor(parted).session("r")
    anyio.run(tell, first, run[:cut])
    stored = json.loads(json.dumps(first.snapshot()))
    anyio.run(tell, monitor(parted).session("r", snapshot=stored), run[cut:], cut)
    bare = [
        replace(event, readings=tuple(r for r in event.readings if not is_count(r.source)))
        if isinstance(event, StepEvent)
        else event
        for event in whole.events
    ]
    live = counts_of(whole.events)
    assert counts_of(parted.events) == live
    assert counts_of(list(counted(bare))) == live
    assert all(set(counts) == set(COUNTS) for counts in live)
    assert all(later[name] >= count for at, later in pairwise(live) for name, count in at.items())


def test_every_kind_of_count_is_taken() -> None:
    get, change = ToolCall(id="1", name="get_user", arguments={"id": 1}), ToolCall(id="2", name="update_user")
    assert told(
        ("user", "change it"),
        ("turn", "I'm sorry, I can't and I won't.", [get]),
        ("result", "Error: not found", False),
        ("turn", "Actually, again.", [get.model_copy(update={"id": "3"}), change]),
        ("result", "done", False),
        ("turn", "", [ToolCall(id="4", name="update_user", arguments={UNPARSED: "{'a'"})]),
    ) == {
        "turns": 3,
        "user_turns": 1,
        "calls": 4,
        "writes": 2,
        "repeated_calls": 1,
        "unreadable_calls": 1,
        "plan_changes": 1,
        "tool_errors": 1,
        "apologies": 1,
        "negations": 2,
        "corrections": 1,
        "agent_characters": 47,
        "tool_characters": 20,
        "user_characters": 9,
    }


@pytest.mark.parametrize(
    "again",
    [
        ToolCall(id="1", name="pay", arguments={"n": 1}),
        ToolCall(name="pay", arguments={"n": 1}),
        ToolCall(name="pay"),
    ],
    ids=["with its id", "without", "by its name"],
)
def test_a_call_that_is_proposed_and_then_made_counts_once(again: ToolCall) -> None:
    proposed = ToolCall(id="1", name="pay", arguments={"n": 1})
    assert told(("turn", "", [proposed]), ("call", again), ("turn", "", []))["calls"] == 1


def test_a_call_that_is_approved_late_counts_once_and_another_under_its_id_counts_again() -> None:
    late = ToolCall(id="1", name="pay", arguments={"n": 1})
    other = late.model_copy(update={"arguments": {"n": 2}})
    assert told(("turn", "", [late]), ("turn", "", []), ("call", late), ("turn", "", []))["calls"] == 1
    assert told(("turn", "", [late]), ("turn", "", []), ("call", other), ("turn", "", []))["calls"] == 2


def test_names_say_whether_a_tool_writes_by_their_first_known_word() -> None:
    names = {
        "cancelBooking": 1,
        "get_order_update": 0,
        "book-flight": 1,
        "mcp__mail__send": 1,
        "weather": 0,
        "listSET": 0,
    }
    for name, writes in names.items():
        assert told(("turn", "", [ToolCall(name=name)])).get("writes", 0) == writes, name


def test_the_state_is_bounded_however_long_the_run_is() -> None:
    def size(n: int) -> int:
        session = monitor().session("r")
        run = [("turn", "x", [ToolCall(id=f"i{k}", name=f"t{k}", arguments={"k": k})]) for k in range(n)]
        anyio.run(tell, session, run)
        return len(json.dumps(session.snapshot(latest=1)["structure"]))

    assert size(2400) <= size(1200) + 20 < 30_000


def test_counts_move_nothing_that_was_not_fitted_on_them() -> None:
    run: Told = [("turn", "I cannot, sorry.", [CALLS[2]]), ("call", CALLS[2]), ("turn", '{"confidence": 0.4}', [])]
    steps = []
    for counts in (True, False):
        kept = Kept()
        watch = UncertaintyMonitor(
            processors=[kept],
            policy=UncertaintyPolicy(irreversible_tool_names=["update"]),
            sensing=Sensing(counts=counts),
        )
        anyio.run(tell, watch.session("r"), run)
        seen = [event.assessment for event in kept.events if isinstance(event, StepEvent)]
        steps.append([step.model_dump(exclude={"timestamp"}) for step in seen])
    assert steps[0] == steps[1]
    assert steps[0][1]["action"] == UncertaintyAction.PAUSE_FOR_HUMAN


def fitted(slope: float, **more: FusedReading) -> Profile:
    counting = FusedReading(mean=0.0, sd=1.0, slope=slope)
    return Profile(
        policy=UncertaintyPolicy(irreversible_tool_names=["update"]),
        calibration=LogisticFusion(readings={"count_tool_errors": counting, **more}, intercept=2.0),
        release=ReleaseRule(at_least=0.7, mode="given"),
    )


def action_of(profile: Profile, run: Told, snapshot: dict[str, Any] | None = None) -> UncertaintyAction:
    session = UncertaintyMonitor(profile=profile).session("r", snapshot=snapshot)
    anyio.run(tell, session, run)
    return session.would_allow(CALLS[2]).action


def test_a_profile_that_was_fitted_on_counts_alone_has_them_counted_and_releases_by_them() -> None:
    fine, failing = ("result", "ok", False), ("result", "Error: no", False)
    turn = ("turn", "on it", [CALLS[2]])
    profile = fitted(3.0)
    assert not action_of(profile, [fine, fine, turn]).stops
    assert action_of(profile, [failing, failing, turn]).stops


def test_where_a_confidence_moves_the_chance_too_counts_are_no_evidence_without_it() -> None:
    profile = fitted(3.0, verbalized=FusedReading(mean=0.0, sd=1.0, slope=1.0))
    assert action_of(profile, [("turn", "on it", [CALLS[2]])]).stops
    assert not action_of(profile, [("turn", '{"confidence": 0.9}', [CALLS[2]])]).stops


@pytest.mark.parametrize("slope", [3.0, -3.0])
def test_a_run_that_was_not_counted_from_its_beginning_is_released_on_no_count(slope: float) -> None:
    uncounted = UncertaintyMonitor(advisory=True).session("r")
    anyio.run(tell, uncounted, [("turn", "hello", [])])
    assert action_of(fitted(slope), [("turn", "on it", [CALLS[2]])], uncounted.snapshot()).stops


def test_a_confidence_is_never_turned_around_and_a_count_may_be() -> None:
    backwards = FusedReading(mean=0.0, sd=1.0, slope=-1.0)
    with pytest.raises(ValueError, match="verbalized"):
        LogisticFusion(readings={"verbalized": backwards}, intercept=0.0)
    fusion = LogisticFusion(readings={"count_calls": backwards}, intercept=0.0)
    assert fusion({"count_calls": 0.1}) > fusion({"count_calls": 0.4})  # type: ignore[operator]  # neither is missing
    assert fusion.worst_of("count_calls") == 1.0


@pytest.mark.parametrize("values", [{"counts": [1]}, {"counts": [-1] * 14}, {"calls": 3}, None, {"seen": 5}])
def test_a_stored_state_that_is_none_is_refused_with_its_field(values: Any) -> None:
    with pytest.raises(DataError, match="structure"):
        StructureState.from_json(values)
