"""A call that only its own doubt holds is looked at again before a human is asked, and never goes out for less."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    FunctionTools,
    Look,
    Looks,
    Profile,
    TokenLogprob,
    ToolEffects,
    UncertaintyEstimator,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.core.chain_rule import Chain, ChainTier, Expected
from grampus_uq.core.release import ReleaseRule
from grampus_uq.errors import ConfigurationError, StoreError
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.recording import ProfileArtifact
from grampus_uq.recording.artifacts import FittedFor
from grampus_uq.records.events import DecisionEvent, Event, LookEvent
from grampus_uq.records.values import Message, ModelResponse, ToolCall
from grampus_uq.records.visible_text import visible
from grampus_uq.records.vocabulary import AgentStatus, Role
from grampus_uq.runtime import MemoryStore, StoredStarts
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.looks import in_its_place
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.rollback import rollback
from grampus_uq.runtime.sub_agents import SubAgent
from grampus_uq.stats.fusion import FusedReading, LogisticFusion
from grampus_uq.testing import HANG, ScriptedModel, answer
from tests.runtime.agents import AGENT, Copied, World, is_judgement
from tests.sampling import examples

LEAST = 0.9
ANY = FittedFor(model="*", prompt_hash="*", tools_hash="*")
ENDED = (AgentStatus.COMPLETED, AgentStatus.FAILED)
PROMISE = "At most 5% go out wrong."


def fusion() -> LogisticFusion:
    """The chance is the score itself; an answer that agrees or not says nothing."""
    return LogisticFusion(readings={"score": FusedReading(mean=0.0, sd=1.0, slope=1.0)}, intercept=0.0)


def chain_of(*names: str, below: float = LEAST) -> Chain:
    tiers = ("agent", *names)
    return Chain(
        tiers=tuple(
            ChainTier(name=name, chance=fusion(), below=None if name == tiers[-1] else below) for name in tiers
        ),
        release=ReleaseRule(at_least=LEAST, mode="wrong_releases", target=0.05, guarantee=PROMISE),
        expected=Expected(looks={}, questions=0.0, wrong=0.0, cost=0.0, tokens=0.0, seconds=0.0),
    )


def profile(*names: str, **policy: Any) -> Profile:
    return Profile(
        policy=UncertaintyPolicy(enable_p_true=False, **policy),
        estimator=UncertaintyEstimator(enable_p_true=False),
        chain=chain_of(*names),
    )


def mailing(to: str, odds: float, *, read: bool = True, tool: str = "send_email") -> ModelResponse:
    """A turn that mails somebody, whose name was written with these odds."""
    call = ToolCall(id=f"m-{to}", name=tool, arguments={"to": to, "body": "hi"})
    pieces = ((f'{{"name": "{tool}", "arguments": {{"to": "', 1.0), (to, odds), ('", "body": "hi"}}', 1.0))
    tokens = tuple(TokenLogprob(token=text, logprob=math.log(p)) for text, p in pieces)
    return answer("", tool_calls=[call]).model_copy(update={"logprobs": tokens if read else None})


def agent(odds: float = 0.5) -> ScriptedModel:
    def reply(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        asked = any(message.role is Role.ASSISTANT for message in messages)
        return answer("Done.") if asked else mailing("bob", odds)

    return ScriptedModel(reply)


class Leaking(ScriptedModel):
    """A client whose own inner task was cancelled, and that passes it on."""

    def __init__(self) -> None:
        super().__init__([HANG])

    async def complete(self, messages: Sequence[Message], model: str, **options: Any) -> ModelResponse:
        raise asyncio.CancelledError


BROKEN: tuple[dict[str, Any], ...] = (
    {"logprob": None},
    {"token": None},
    {"token": 5},
    {"logprob": "-0.1"},
    {"usage": 7},
    {"usage": {"input_tokens": "many"}},
    {"logprobs": {"content": None}},
    {"logprobs": 5},
)


def broken(**fields: Any) -> ModelResponse:
    """An answer whose client built it from something else than what it promises."""
    reply = mailing("bob", 0.5)
    update: dict[str, Any] = {"logprobs": fields["logprobs"]} if "logprobs" in fields else {}
    if "usage" in fields:
        update["token_usage"] = fields["usage"]
    elif not update:
        first = copy.copy((reply.logprobs or ())[0])
        for name, value in fields.items():
            object.__setattr__(first, name, value)
        update["logprobs"] = (first, *(reply.logprobs or ())[1:])
    return reply.model_copy(update=update)


class Case:
    """One run of an agent that mails Bob and is unsure of it, with tiers that look again."""

    def __init__(self, *tiers: Any, store: Any = None, odds: float = 0.5, **given: Any) -> None:
        self.world, self.store = given.pop("world", None) or World(), store or MemoryStore()
        self.models = [tier if isinstance(tier, ScriptedModel) else ScriptedModel([tier]) for tier in tiers]
        names = [f"tier {number}" for number in range(1, len(tiers) + 1)]
        bounds = given.pop("bounds", {})
        self.profile = given.pop("profile", profile(*names))
        timeout_s = given.pop("timeout_s", 60.0)
        self.events: list[Event] = []
        monitor = UncertaintyMonitor(profile=self.profile, processors=[self], advisory=given.pop("advisory", False))
        looks = [Look(name=n, client=m, timeout_s=timeout_s) for n, m in zip(names, self.models, strict=True)]
        self.runner = AgentRunner(
            given.pop("model", agent(odds)),
            self.world.tools(),
            uncertainty_monitor=monitor,
            store=self.store,
            looks=given.pop("looks", Looks(tiers=looks, **bounds)),
            **given,
        )

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    @property
    def recorded(self) -> list[LookEvent]:
        return [event for event in self.events if isinstance(event, LookEvent)]

    async def run(self) -> Any:
        return await self.runner.run(AGENT, "mail bob", session_id="s")

    def ran(self) -> Any:
        return anyio.run(self.run)

    def audited(self) -> list[dict[str, Any]]:
        return anyio.run(AuditLog(self.store, "mailer", "s").entries)


class DecidingAtStart(MemoryStore):
    """Calls a function just before the start of a call is written."""

    def __init__(self, decides: Callable[[str], Awaitable[None]]) -> None:
        super().__init__()
        self._decides = decides

    async def write(self, *changes: Any) -> float:
        if any('"execution_started"' in body for change in changes for body in getattr(change, "bodies", ())):
            await self._decides("the start is written")
        return await super().write(*changes)


def test_a_doubtful_call_goes_out_where_another_look_makes_the_same_and_is_sure_enough() -> None:
    case = Case(mailing("bob", 0.95))
    result = case.ran()
    assert result.status is AgentStatus.COMPLETED
    assert case.world.sent == [("bob", "hi")]


def test_another_call_is_a_new_call_and_goes_out_as_a_turn_of_its_own() -> None:
    case = Case(mailing("ann", 0.95))
    result = case.ran()
    assert result.status is AgentStatus.COMPLETED
    assert case.world.sent == [("ann", "hi")]
    calls = [call.arguments["to"] for message in result.messages for call in message.tool_calls]
    assert calls == ["bob", "ann"]
    told = [m.content for m in result.messages if m.role is Role.TOOL]
    assert told[0].startswith("Not executed: this call was doubtful")
    assert told[1] == "sent to ann"
    assert result.steps_taken == 3


@pytest.mark.parametrize("stated", ["", "Confidence: 100%", "Confidence: 70%"])
@pytest.mark.parametrize("other", ["bob", "ann"])
def test_no_look_lifts_the_pause_of_a_call_for_which_nothing_speaks_but_what_the_model_states(
    stated: str, other: str
) -> None:
    turn = mailing("bob", 0.5, read=False).model_copy(update={"content": stated})
    case = Case(mailing(other, 0.95), model=ScriptedModel([turn]))
    assert case.ran().status is AgentStatus.WAITING_FOR_HUMAN
    assert case.world.sent == []


@pytest.mark.parametrize(
    ("tier", "why", "told"),
    [
        (mailing("bob", 0.89), "not sure enough", "the same call"),
        (mailing("ann", 0.89), "another, not sure enough", 'with to="ann"'),
        (mailing("bob", 0.95, read=False), "no log-probabilities", "the same call"),
        (mailing("ann", 0.95, read=False), "another, no log-probabilities", 'with to="ann"'),
        (answer("Bob it is. Confidence: 100%"), "no call", "no call: it did not answer with one call"),
        (
            answer("", tool_calls=[*mailing("bob", 1.0).tool_calls, *mailing("ann", 1.0).tool_calls]),
            "two calls",
            "no call: it did not answer with one call",
        ),
        (
            answer("", tool_calls=[ToolCall(id="s", name="search", arguments={"query": "x"})]),
            "can be undone",
            "no call: its call can be undone",
        ),
        (RuntimeError("down"), "fails", "no call: it failed (RuntimeError)"),
        (Leaking(), "cancels itself", "no call: it failed (CancelledItselfError)"),
        *((broken(**fields), f"is broken: {fields}", None) for fields in BROKEN),
        (HANG, "is late", "no call: it was late"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_look_that_is_unsure_or_missing_leaves_the_call_to_the_next_tier_or_a_human(
    tier: Any, why: str, told: str | None
) -> None:
    case = Case(tier, timeout_s=0.3)
    result = case.ran()
    assert result.status is AgentStatus.WAITING_FOR_HUMAN, why
    assert case.world.sent == []
    (request,) = result.pending
    assert request.call is not None
    assert request.call.arguments["to"] == "bob"
    assert "; looked at again by tier 1 (" in request.reason
    assert request.reason.endswith("): not sure enough" if told is None else f"({told}): not sure enough")
    after = Case(tier, mailing("bob", 0.95), timeout_s=0.3)
    assert after.ran().status is AgentStatus.COMPLETED, "the next tier is sure"
    assert after.world.sent == [("bob", "hi")]


@pytest.mark.parametrize(
    ("name", "theirs", "told"),
    [
        ("send_email", {"to": "ann", "body": "hi"}, 'with to="ann"'),
        ("send_email", {"to": "bob", "body": "hi", "cc": None}, "with cc=null"),
        ("send_email", {"to": "bob", "body": True}, "with body=true"),
        ("send_email", {"to": "bob"}, 'without body="hi"'),
        ("send_email", {"to": "b\u200bob", "copy": 1}, 'with copy=1 to="b\\u200bob", without body="hi"'),
        ("send\u200b_email", {"to": "bob"}, 'send\\u200b_email with to="bob"'),
    ],
)
def test_whoever_decides_reads_what_a_look_would_have_written_instead(
    name: str, theirs: dict[str, Any], told: str
) -> None:
    own = ToolCall(id="1", name="send_email", arguments={"to": "bob", "body": "hi"})
    reply = answer("", tool_calls=[ToolCall(id="2", name=name, arguments=theirs)])
    assert in_its_place(own, reply.tool_calls[0], "") == told


@given(long=st.text(min_size=1_000, max_size=3_000))
def test_no_look_says_more_than_a_person_can_read_at_a_glance(long: str) -> None:
    own = ToolCall(id="1", name="send_email", arguments={"to": "bob"})
    for theirs in (ToolCall(id="2", name="send_email", arguments={"to": long, long: 1}), own):
        said = in_its_place(own, theirs, "")
        assert len(said) < 600
        assert visible(said) == said


def test_a_sure_call_goes_out_without_a_look_and_without_looks_a_human_is_asked() -> None:
    case = Case(mailing("bob", 0.95), odds=0.95)
    assert case.ran().status is AgentStatus.COMPLETED
    assert case.models[0].calls == []
    case = Case(mailing("bob", 0.95), odds=0.85)  # above the floor, below the chain
    assert case.ran().status is AgentStatus.COMPLETED
    assert len(case.models[0].calls) == 1
    case = Case(mailing("bob", 0.95), looks=None)
    assert case.ran().status is AgentStatus.WAITING_FOR_HUMAN
    assert case.models[0].calls == []


@pytest.mark.parametrize("to", ["bob", "ann"])
@pytest.mark.parametrize(
    "policy",
    [
        {"always_ask_tool_names": ["send_email"]},
        {"low_threshold": 0.999, "medium_threshold": 0.998},
        {"worst_so_far_floor": 0.999},
    ],
    ids=str,
)
def test_what_else_speaks_against_a_call_is_lifted_by_no_look(policy: dict[str, Any], to: str) -> None:
    case = Case(mailing(to, 0.95), profile=profile("tier 1", **policy))
    result = case.ran()
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert case.world.sent == []
    assert case.models[0].calls == []


@pytest.mark.parametrize("odds", [0.5, 0.95])
def test_a_middling_belief_is_lifted_by_a_sure_look_and_by_no_sureness_of_the_call_itself(odds: float) -> None:
    case = Case(mailing("bob", 0.95), odds=odds, profile=profile("tier 1", low_threshold=0.999))
    looked_at = odds < LEAST
    assert (case.ran().status is AgentStatus.COMPLETED) == looked_at
    assert len(case.models[0].calls) == looked_at
    without = Case(odds=odds, profile=profile(low_threshold=0.999), looks=None)
    assert without.ran().status is AgentStatus.WAITING_FOR_HUMAN


def test_a_rule_that_holds_the_other_call_alone_holds_it() -> None:
    """The mail to Ann is refused by the precondition, which is asked of what a look let go as of what a human did."""
    case = Case(mailing("ann", 0.95), precondition=lambda call: "no" if call.arguments["to"] == "ann" else None)
    result = case.ran()
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert case.world.sent == []


def test_a_call_that_a_human_rejected_is_proposed_by_no_look() -> None:
    def turns(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        asked = sum(message.role is Role.ASSISTANT for message in messages)
        return [mailing("ann", 0.5), mailing("bob", 0.5), answer("Done.")][min(asked, 2)]

    case = Case(ScriptedModel([mailing("x", 0.1), mailing("ann", 0.95)]), model=ScriptedModel(turns))

    async def work() -> Any:
        (request,) = (await case.run()).pending
        return await case.runner.resume("mailer", "s", request.decide("reject", principal="eva"))

    result = anyio.run(work)
    assert case.world.sent == []
    assert result.status is AgentStatus.COMPLETED
    assert any("already rejected exactly this call" in message.content for message in result.messages)


def test_looks_are_bounded_a_run_and_counted_with_their_tokens() -> None:
    used = mailing("bob", 0.1).model_copy(update={"token_usage": mailing("bob", 0.1).token_usage})
    case = Case(used, mailing("bob", 0.95), bounds={"most": 1})
    assert case.ran().status is AgentStatus.WAITING_FOR_HUMAN
    assert [len(model.calls) for model in case.models] == [1, 0]
    with pytest.raises(ConfigurationError):
        Looks(tiers=[Look(name="a"), Look(name="a")])
    with pytest.raises(ConfigurationError):
        Looks(tiers=[], most=0)
    with pytest.raises(ConfigurationError):
        Looks(tiers=[Look(name="a", timeout_s=0.0)])


def test_the_audit_holds_each_look_with_its_chance_and_cost_and_who_let_the_call_go() -> None:
    case = Case(mailing("bob", 0.5), mailing("ann", 0.95))
    case.ran()
    looked = [entry["data"] for entry in case.audited() if entry["what"] == "looked"]
    assert [(one["tier"], one["then"]) for one in looked] == [("tier 1", "next"), ("tier 2", "release")]
    assert [one["chance"] for one in looked] == pytest.approx([0.5, 0.95])
    assert all({"tokens", "seconds", "missing"} <= one.keys() for one in looked)
    (started,) = [entry["data"] for entry in case.audited() if entry["what"] == "execution_started"]
    assert started["cleared_by"] == "chain tier 2"
    assert started["arguments"]["to"] == "ann"


# -- what a chain is learned from --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tier", "agrees", "probability", "missing"),
    [
        (mailing("bob", 0.75), True, 0.75, ""),
        (mailing("ann", 0.75), False, 0.75, ""),
        (mailing("bob", 0.75, read=False), True, None, ""),
        (answer("Bob it is."), False, None, "it did not answer with one call"),
        (RuntimeError("down"), False, None, "it failed (RuntimeError)"),
        (HANG, False, None, "it was late"),
    ],
    ids=str,
)
def test_an_advisory_run_records_what_every_tier_would_have_called_and_goes_on_as_without(
    tier: Any, agrees: bool, probability: float | None, missing: str
) -> None:
    case = Case(tier, mailing("ann", 0.95), advisory=True, timeout_s=0.3, profile=profile())
    result = case.ran()
    without = Case(advisory=True, looks=None, profile=profile())
    assert result.messages == without.ran().messages
    assert case.world.sent == without.world.sent == [("bob", "hi")]
    first, second = case.recorded
    assert (first.tier, first.agrees, first.missing) == ("tier 1", agrees, missing)
    assert (second.tier, second.agrees) == ("tier 2", False)
    assert first.probability == (None if probability is None else pytest.approx(probability))
    assert first.own == second.own == pytest.approx(0.5)
    assert (first.call is None) == bool(missing)
    looked = [entry["data"] for entry in case.audited() if entry["what"] == "looked"]
    assert [(one["tier"], one["then"]) for one in looked] == [("tier 1", "recorded"), ("tier 2", "recorded")]


def test_only_the_first_irreversible_call_of_an_advisory_run_is_looked_at() -> None:
    def turns(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        asked = sum(message.role is Role.ASSISTANT for message in messages)
        search = answer("", tool_calls=[ToolCall(id="s", name="search", arguments={"query": "bob"})])
        return [search, mailing("bob", 0.5), mailing("ann", 0.5), answer("Done.")][min(asked, 3)]

    case = Case(mailing("bob", 0.75), model=ScriptedModel(turns), advisory=True)
    case.ran()
    assert case.world.sent == [("bob", "hi"), ("ann", "hi")]
    (look,) = case.recorded
    assert look.step_id == "llm_1"
    assert [message.role for message in case.models[0].calls[0].messages][-1] is Role.TOOL

    def both(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        asked = sum(message.role is Role.ASSISTANT for message in messages)
        two = [*mailing("bob", 1.0).tool_calls, *mailing("ann", 1.0).tool_calls]
        return [answer("", tool_calls=two), mailing("bob", 0.5), answer("Done.")][min(asked, 2)]

    case = Case(mailing("bob", 0.75), model=ScriptedModel(both), advisory=True)
    case.ran()
    assert case.recorded == []


@pytest.mark.parametrize("odds", [0.5, 0.95])
def test_without_a_chain_in_the_profile_looks_are_recorded_and_lift_nothing(odds: float) -> None:
    bare = profile().model_copy(update={"chain": None})
    case, without = Case(mailing("bob", 0.99), odds=odds, profile=bare), Case(odds=odds, profile=bare, looks=None)
    result = case.ran()
    assert result.messages == without.ran().messages
    assert (result.status is AgentStatus.WAITING_FOR_HUMAN) == (odds == 0.5)
    assert [(look.agrees, look.own) for look in case.recorded] == [(True, pytest.approx(odds))]
    chained = Case(mailing("bob", 0.95))
    assert chained.ran().status is AgentStatus.COMPLETED
    assert chained.recorded == []


def test_a_humans_decision_is_recorded_at_the_step_that_was_looked_at() -> None:
    """By which `fit` knows that it is about the agent's call."""
    case = Case(mailing("ann", 0.99), profile=profile().model_copy(update={"chain": None}))

    async def work() -> None:
        (request,) = (await case.run()).pending
        await case.runner.resume("mailer", "s", request.decide("approve", principal="eva"))

    anyio.run(work)
    (decision,) = [event for event in case.events if isinstance(event, DecisionEvent)]
    assert (decision.decision, decision.step_id) == ("approve", case.recorded[0].step_id)
    assert case.world.sent == [("bob", "hi")]
    assert len(case.recorded) == 1, "the call is looked at once"


# -- whatever happens on the way ---------------------------------------------------------------------------------------


class Hanging(ScriptedModel):
    """Never answers, and says when it was asked."""

    def __init__(self) -> None:
        super().__init__([HANG])
        self.asked = anyio.Event()

    async def complete(self, **given: Any) -> ModelResponse:
        self.asked.set()
        return await super().complete(**given)


@pytest.mark.parametrize("to", ["bob", "ann"])
def test_a_worker_that_dies_at_any_write_leaves_a_call_that_no_look_lets_go_any_more(to: str) -> None:
    store, begun = Copied(), 0
    first = Case(mailing(to, 0.95), store=store, lease_s=0.05)
    assert first.ran().status is AgentStatus.COMPLETED
    for left in store.copies:

        async def goes_on(left: MemoryStore = left) -> tuple[Case, list[str], Any]:
            before = [entry["what"] for entry in await AuditLog(left, "mailer", "s").entries()]
            await anyio.sleep(0.06)  # the dead worker's lease
            case = Case(mailing(to, 0.95), store=left)
            ended = (await left.scan("session"))[0].body.find('"status":"completed"') >= 0
            return case, before, None if ended else await case.runner.resume("mailer", "s")

        case, before, result = anyio.run(goes_on)
        if "looking" in before and result is not None:
            begun += 1
            assert case.models[0].calls == [], "it is looked at once"
            if "looked" not in before or before[-1] == "looked":
                assert result.status is AgentStatus.WAITING_FOR_HUMAN
                assert case.world.sent == []
        if "execution_started" in before:
            assert case.world.sent == [], "it may have run"
        assert case.world.sent in ([], [(to, "hi")])
    assert begun >= 3


@pytest.mark.parametrize("advisory", [True, False])
def test_a_worker_that_dies_while_looks_are_recorded_loses_looks_and_nothing_else(advisory: bool) -> None:
    bare = profile().model_copy(update={"chain": None})
    given: dict[str, Any] = {"advisory": advisory, "profile": bare, "lease_s": 0.05}
    store, begun = Copied(), 0
    first = Case(mailing("ann", 0.95), store=store, **given)
    first.ran()
    for left in store.copies:

        async def goes_on(left: MemoryStore = left) -> tuple[Case, list[str], Any]:
            before = [entry["what"] for entry in await AuditLog(left, "mailer", "s").entries()]
            await anyio.sleep(0.06)  # the dead worker's lease
            case = Case(mailing("ann", 0.95), store=left, **given)
            ended = (await left.scan("session"))[0].body.find('"status":"completed"') >= 0
            return case, before, None if ended else await case.runner.resume("mailer", "s")

        case, before, result = anyio.run(goes_on)
        if "looking" in before:
            begun += 1
            assert case.recorded == []
        if "execution_started" in before or not advisory:
            assert case.world.sent == []
        elif result is not None:
            assert (result.status, case.world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")])
    assert begun >= 2


@pytest.mark.anyio
async def test_a_run_that_is_cancelled_during_a_look_waits_for_a_human() -> None:
    model = Hanging()
    case = Case(model)
    async with anyio.create_task_group() as group:
        group.start_soon(case.run)
        await model.asked.wait()
        group.cancel_scope.cancel()
    again = Case(mailing("bob", 0.95), store=case.store)
    result = await again.runner.resume("mailer", "s")
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert (case.world.sent, again.world.sent, again.models[0].calls) == ([], [], [])
    (request,) = result.pending
    result = await again.runner.resume("mailer", "s", request.decide("approve", principal="eva"))
    assert again.world.sent == [("bob", "hi")]


@pytest.mark.anyio
async def test_a_run_that_is_ordered_to_stop_during_a_look_sends_nothing() -> None:
    model = Hanging()
    case = Case(model)
    async with anyio.create_task_group() as group:
        group.start_soon(case.run)
        await model.asked.wait()
        await case.runner.stop("mailer", "s", principal="eva")
    assert case.world.sent == []


@pytest.mark.anyio
async def test_a_human_who_decides_during_the_look_is_heard_and_the_look_is_not() -> None:
    case = Case(HANG)

    async def looks(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        loaded = await case.runner.ledger.load("mailer", "s")
        assert loaded is not None
        (request,) = loaded[0].pending()
        await case.runner.ledger.decide(request.decide("reject", principal="eva"), wake=False)
        return mailing("bob", 0.95)

    class Human(ScriptedModel):
        async def complete(self, *, messages: Sequence[Message], **options: Any) -> ModelResponse:
            return await looks(messages, options)

    case.runner.looks = Looks(tiers=[Look(name="tier 1", client=Human([]))])
    assert (await case.run()).status is AgentStatus.WAITING_FOR_HUMAN
    result = await case.runner.resume("mailer", "s")
    assert case.world.sent == []
    assert result.status is AgentStatus.COMPLETED
    assert any("a human rejected this call" in message.content for message in result.messages)


class Reading(ScriptedModel):
    """A tier that mails somebody, and is asked how likely its own turn is, which takes a while."""

    def __init__(self, to: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__([])
        self.to, self.meanwhile = to, meanwhile

    async def complete(self, *, messages: Sequence[Message], **options: Any) -> ModelResponse:
        if not is_judgement(messages):
            return mailing(self.to, 0.95)
        await self.meanwhile()
        return answer('{"p_true": 0.95}')


@pytest.mark.anyio
@pytest.mark.parametrize("when", ["the turn of the look is read", "the precondition is asked", "the start is written"])
@pytest.mark.parametrize("kind", ["reject", "approve"])
@pytest.mark.parametrize("to", ["bob", "ann"])
async def test_a_human_who_decides_at_any_moment_before_a_call_starts_is_heard(to: str, kind: Any, when: str) -> None:
    """As long as the store shows the held call as one that waits, a decision about it is accepted: it must count."""
    told: list[str] = []

    async def decides(now: str) -> None:
        if now != when or told:
            return
        loaded = await case.runner.ledger.load("mailer", "s")
        assert loaded is not None
        for request in loaded[0].pending():
            told.append(request.id)
            await case.runner.ledger.decide(request.decide(kind, principal="eva"), wake=False)

    async def precondition(call: ToolCall) -> None:
        await decides("the precondition is asked")

    def own(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
        if is_judgement(messages):
            return answer('{"p_true": 0.9}')
        return answer("Done.") if any(one.role is Role.ASSISTANT for one in messages) else mailing("bob", 0.5)

    reads = Profile(policy=UncertaintyPolicy(), estimator=UncertaintyEstimator(), chain=chain_of("tier 1"))
    given: dict[str, Any] = {"precondition": precondition, "starts": StoredStarts(MemoryStore())}
    case = Case(HANG, model=ScriptedModel(own), profile=reads, store=DecidingAtStart(decides), **given)
    reading = Reading(to, lambda: decides("the turn of the look is read"))
    case.runner.looks = Looks(tiers=[Look(name="tier 1", client=reading)])
    result = await case.run()
    if not told:  # what was held had been answered for in the store before: nobody is told that it waits
        assert case.world.sent == [(to, "hi")]
        assert (to, when) != ("bob", "the precondition is asked")
        return
    assert case.world.sent == []
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    result = await case.runner.resume("mailer", "s")
    assert case.world.sent == ([("bob", "hi")] if kind == "approve" else [])
    assert any(one["what"] == "decision" for one in await AuditLog(case.store, "mailer", "s").entries())


@pytest.mark.anyio
@pytest.mark.parametrize("to", ["bob", "ann"])
async def test_a_decision_that_arrives_while_the_look_is_settled_holds_what_the_look_proposed(to: str) -> None:
    """It reaches the store in the same moment as the write after which nobody is shown the held call any more."""
    told: list[str] = []

    class Deciding(MemoryStore):
        async def write(self, *changes: Any) -> float:
            loaded = await case.runner.ledger.load("mailer", "s") if not told else None
            waiting = [] if loaded is None else loaded[0].pending()
            sure = any("m-ann" in body for change in changes for body in getattr(change, "bodies", ()))
            sure |= any('"execution_started"' in body for change in changes for body in getattr(change, "bodies", ()))
            if waiting and sure:
                told.append(waiting[0].id)
                await case.runner.ledger.decide(waiting[0].decide("reject", principal="eva"), wake=False)
            return await super().write(*changes)

    case = Case(mailing(to, 0.95), store=Deciding())
    result = await case.run()
    assert told
    assert case.world.sent == []
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    entries = await AuditLog(case.store, "mailer", "s").entries()
    (withdrawn,) = [one["data"] for one in entries if one["what"] == "execution_withdrawn"]
    assert withdrawn["request"] == told[0]
    result = await case.runner.resume("mailer", "s")
    assert case.world.sent == []
    if to == "ann":
        (request,) = result.pending
        assert "a human decided about the one that it replaces" in request.reason


@pytest.mark.anyio
@pytest.mark.parametrize("odds", [0.5, 0.95])
@pytest.mark.parametrize("policy", [{}, {"always_ask_tool_names": ["wire"]}], ids=["it goes out", "it waits, too"])
async def test_a_call_that_a_human_rejected_while_a_look_replaced_it_is_refused_when_it_comes_again(
    policy: dict[str, Any], odds: float
) -> None:
    told: list[str] = []

    class Deciding(MemoryStore):
        async def write(self, *changes: Any) -> float:
            loaded = await case.runner.ledger.load("mailer", "s") if not told else None
            waiting = [] if loaded is None else loaded[0].pending()
            if waiting and any("m-ann" in body for change in changes for body in getattr(change, "bodies", ())):
                told.append(waiting[0].id)
                await case.runner.ledger.decide(waiting[0].decide("reject", principal="eva"), wake=False)
            return await super().write(*changes)

    def own(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        return mailing("bob", odds if any(one.role is Role.ASSISTANT for one in messages) else 0.5)

    looked = mailing("ann", 0.95, tool="wire" if policy else "send_email")
    effects = ToolEffects({"wire": "irreversible"})
    case = Case(
        looked, model=ScriptedModel(own), store=Deciding(), profile=profile("tier 1", **policy), effects=effects
    )
    result = await case.run()
    while result.status is AgentStatus.WAITING_FOR_HUMAN:
        assert all(request.call is not None and "ann" in request.call.canonical() for request in result.pending)
        answers = [request.decide("reject", principal="eva") for request in result.pending]
        result = await case.runner.resume("mailer", "s", answers)
    assert told
    assert case.world.sent == []
    entries = await AuditLog(case.store, "mailer", "s").entries()
    said = [one["data"] for one in entries if one["what"] == "decision"]
    assert any((one["request"], one["kind"]) == (told[0], "reject") for one in said)


class Rejecting(Copied):
    """A human rejects the held call in the moment of the write that replaces it; keeps what it held after each write.

    The audit of that decision fails as often as is `left`.
    """

    def __init__(self, left: int = 0) -> None:
        super().__init__()
        self.left, self.told = left, False

    async def write(self, *changes: Any) -> float:
        bodies = [body for change in changes for body in getattr(change, "bodies", ())]
        loaded = await Ledger(self).load("mailer", "s") if not self.told else None
        waiting = [] if loaded is None else loaded[0].pending()
        if waiting and any("m-ann" in body for body in bodies):
            self.told = True
            await Ledger(self).decide(waiting[0].decide("reject", principal="eva"), wake=False)
        if self.left > 0 and any('"what":"decision"' in body.replace(" ", "") for body in bodies):
            self.left -= 1
            raise StoreError("down")
        return await super().write(*changes)


def bob_again(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
    return mailing("bob", 0.95 if any(one.role is Role.ASSISTANT for one in messages) else 0.5)


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_rejection_in_the_moment_of_a_look_outlives_the_worker_wherever_it_dies(left: int, pruned: bool) -> None:
    """The audit may fail meanwhile: whoever goes on hears the rejection before the call comes again."""
    store, died = Rejecting(left), 0
    first = Case(mailing("ann", 0.95), store=store, model=ScriptedModel(bob_again), lease_s=0.05)
    with contextlib.suppress(StoreError):  # a pause that cannot be stored
        first.ran()
    for copied in store.copies:

        async def goes_on(copied: MemoryStore = copied) -> None:
            nonlocal died
            loaded = await Ledger(copied).load("mailer", "s")
            if loaded is None or loaded[0].status in ENDED or not await copied.scan("decision"):
                return
            died += 1
            await anyio.sleep(0.06)  # the dead worker's lease
            if pruned:
                await prune(copied, 0.01)
            case = Case(mailing("ann", 0.95), store=copied, model=ScriptedModel(bob_again))
            result = await case.runner.resume("mailer", "s")
            while result.status is AgentStatus.WAITING_FOR_HUMAN:
                answers = [request.decide("reject", principal="eva") for request in result.pending]
                result = await case.runner.resume("mailer", "s", answers)
            assert ("bob", "hi") not in case.world.sent

        anyio.run(goes_on)
    assert died >= 3


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["reject", "edit"])
async def test_who_was_shown_a_call_before_a_look_replaced_it_is_heard_also_later(kind: Any) -> None:
    """It may take long until the answer is stored: meanwhile the look's call was judged and ran."""
    shown: list[ApprovalRequest] = []

    class Late(MemoryStore):
        async def write(self, *changes: Any) -> float:
            bodies = [body for change in changes for body in getattr(change, "bodies", ())]
            if not shown and any("m-ann" in body for body in bodies):
                shown.extend((await Ledger(self).known("mailer", "s"))[0].pending())
            if any('"execution_finished"' in body for body in bodies):
                more = {"arguments": {"to": "bo", "body": "hi"}} if kind == "edit" else {}
                await Ledger(self).decide(shown[0].decide(kind, principal="eva", **more), wake=False)
            return await super().write(*changes)

    def thrice(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        said = sum(one.role is Role.ASSISTANT for one in messages)
        return answer("Done.") if said > 2 else mailing("bob", 0.95 if said else 0.5)

    case = Case(mailing("ann", 0.95), store=Late(), model=ScriptedModel(thrice))
    result = await case.run()
    assert case.world.sent == [("ann", "hi")]
    assert [one.rule for one in result.pending] == (["rejected_in_thread"] if kind == "edit" else [])


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_rejection_in_the_moment_of_a_look_is_recorded_once_whatever_fails(left: int) -> None:
    case = Case(mailing("ann", 0.95), store=Rejecting(left), model=ScriptedModel(bob_again))

    async def run() -> None:
        with contextlib.suppress(StoreError):
            await case.run()
        while (loaded := await case.runner.ledger.load("mailer", "s")) and loaded[0].status not in ENDED:
            answers = [request.decide("approve", principal="eva") for request in loaded[0].pending()]
            with contextlib.suppress(StoreError):
                await case.runner.resume("mailer", "s", answers)

    anyio.run(run)
    assert ("bob", "hi") not in case.world.sent
    recorded = [one for one in case.events if isinstance(one, DecisionEvent) and one.decision == "reject"]
    noted = [one for one in case.audited() if one["what"] == "decision" and one["data"]["kind"] == "reject"]
    assert (len(recorded), len(noted)) == (1, 1)


@pytest.mark.anyio
@pytest.mark.parametrize("when", ["the precondition is asked", "the start is written"])
@pytest.mark.parametrize("kind", ["reject", "approve", None])
@pytest.mark.parametrize("to", ["bob", "ann"])
async def test_what_a_look_let_go_in_a_process_that_was_cancelled_is_asked_about_in_the_next_one(
    to: str, kind: Any, when: str
) -> None:
    """Its request is the one that humans saw: who answered it at that moment is heard."""
    came = anyio.CancelScope()

    async def decides(now: str) -> None:
        if now != when or came.cancel_called:
            return
        loaded = await case.runner.ledger.load("mailer", "s")
        assert loaded is not None
        for request in loaded[0].pending() if kind else ():
            await case.runner.ledger.decide(request.decide(kind, principal="eva"), wake=False)
        came.cancel()
        await anyio.lowlevel.checkpoint()

    async def precondition(call: ToolCall) -> None:
        await decides("the precondition is asked")

    case = Case(mailing(to, 0.95), store=DecidingAtStart(decides), precondition=precondition)
    with came:
        await case.run()
    assert came.cancel_called
    assert case.world.sent == []
    other = Case(mailing(to, 0.95), store=case.store)
    result = await other.runner.resume("mailer", "s")
    if kind == "approve" and (to, when) == ("bob", "the precondition is asked"):
        assert other.world.sent == [("bob", "hi")]
        return
    assert other.world.sent == []
    heard = kind == "reject" and (to, when) == ("bob", "the precondition is asked")
    assert result.status is (AgentStatus.COMPLETED if heard else AgentStatus.WAITING_FOR_HUMAN)


def test_a_worker_that_dies_in_its_looks_has_used_them() -> None:
    """Whoever goes on has no more looks than `most`, wherever the worker before died."""

    def turns(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        asked = sum(message.role is Role.ASSISTANT for message in messages)
        return [mailing("bob", 0.5), mailing("cid", 0.5), answer("Done.")][min(asked, 2)]

    store = Copied()
    first = Case(mailing("x", 0.1), store=store, model=ScriptedModel(turns), bounds={"most": 1}, lease_s=0.05)
    assert first.ran().status is AgentStatus.WAITING_FOR_HUMAN
    begun = 0
    for left in store.copies:

        async def goes_on(left: MemoryStore = left) -> None:
            nonlocal begun
            if "looking" not in [entry["what"] for entry in await AuditLog(left, "mailer", "s").entries()]:
                return
            begun += 1
            await anyio.sleep(0.06)  # the dead worker's lease
            loaded = await Ledger(left).load("mailer", "s")
            assert loaded is not None
            no = [request.decide("reject", principal="eva") for request in loaded[0].pending()]
            case = Case(mailing("x", 0.1), store=left, model=ScriptedModel(turns), bounds={"most": 1})
            await case.runner.resume("mailer", "s", *no)
            assert case.models[0].calls == []

        anyio.run(goes_on)
    assert begun >= 2


@pytest.mark.anyio
async def test_a_rollback_gives_no_looks_back() -> None:
    case = Case(mailing("x", 0.1), bounds={"most": 1}, checkpoints=True)
    await case.run()
    assert (await rollback(case.runner, "mailer", "s", 0)).status is AgentStatus.WAITING_FOR_HUMAN
    assert len(case.models[0].calls) == 1


def test_the_turn_of_a_look_is_a_step_of_the_run_and_needs_one_left() -> None:
    case = Case(mailing("ann", 0.95))
    result = anyio.run(lambda: case.runner.run(AGENT.model_copy(update={"max_iterations": 1}), "mail", session_id="s"))
    assert result.steps_taken == 1
    assert case.world.sent == []
    assert result.status is AgentStatus.WAITING_FOR_HUMAN


def test_an_answer_after_the_time_of_a_look_is_missing_though_its_client_could_not_be_cancelled() -> None:
    class Shielded(ScriptedModel):
        async def complete(self, **given: Any) -> ModelResponse:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.1)
            return mailing("bob", 0.95)

    case = Case(Shielded([]), timeout_s=0.05)
    assert case.ran().status is AgentStatus.WAITING_FOR_HUMAN
    assert case.world.sent == []
    assert [one["data"]["missing"] for one in case.audited() if one["what"] == "looked"] == ["it was late"]


def test_a_sub_agents_calls_are_not_looked_at_so_that_a_run_has_no_more_looks_than_its_bound() -> None:
    case = Case(mailing("bob", 0.95), model=agent())

    def delegating(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        call = ToolCall(id="d", name="helper", arguments={"task": "mail bob"})
        return answer("", tool_calls=[call])

    helper = SubAgent(case.runner, AgentDefinition(name="helper", model="m"))
    unsure = UncertaintyMonitor(policy=UncertaintyPolicy(enable_p_true=False))
    boss = AgentRunner(
        ScriptedModel(delegating), FunctionTools(), uncertainty_monitor=unsure, store=case.store, sub_agents=[helper]
    )
    result = anyio.run(lambda: boss.run(AgentDefinition(name="boss", model="m"), "go", session_id="p"))
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert (case.world.sent, case.models[0].calls) == ([], [])


@pytest.mark.parametrize("policy", [{"always_ask_tool_names": ["send_email"]}, {"worst_so_far_floor": 0.9999}], ids=str)
def test_a_policy_that_is_taken_up_during_a_look_holds_the_call(policy: dict[str, Any]) -> None:
    chained = profile("tier 1")
    monitor = UncertaintyMonitor(profile=ProfileArtifact(profile=chained, fitted_for=ANY))

    def looked(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        stricter = UncertaintyPolicy(enable_p_true=False, **policy)
        new = chained.model_copy(update={"policy": stricter})
        monitor.reload(ProfileArtifact(profile=new, fitted_for=ANY), running="migrate")
        return mailing("bob", 0.95)

    case = Case(ScriptedModel(looked))
    case.runner = AgentRunner(
        agent(),
        case.world.tools(),
        uncertainty_monitor=monitor,
        store=case.store,
        looks=Looks(tiers=[Look(name="tier 1", client=case.models[0])]),
    )
    assert case.ran().status is AgentStatus.WAITING_FOR_HUMAN
    assert (case.world.sent, len(case.models[0].calls)) == ([], 1)


def test_where_the_store_cannot_be_written_nothing_is_looked_at() -> None:
    class Down(MemoryStore):
        fails = 2  # a write, and its second attempt

        async def write(self, *changes: Any) -> float:
            if self.fails and any('"looking"' in body for change in changes for body in getattr(change, "bodies", ())):
                self.fails -= 1
                raise StoreError("down")
            return await super().write(*changes)

    case = Case(mailing("bob", 0.95), store=Down())
    assert case.ran().status is AgentStatus.WAITING_FOR_HUMAN
    assert (case.world.sent, case.models[0].calls) == ([], [])


# -- the promise -------------------------------------------------------------------------------------------------------

ODDS = st.sampled_from([0.05, 0.5, 0.89, 0.91, 0.95, 1.0])
TIERS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["bob", "ann", "eve"]), ODDS, st.booleans()),
        st.sampled_from(["text", "read", "fails", "two"]),
    ),
    max_size=3,
)


def told(tier: Any) -> Any:
    if isinstance(tier, tuple):
        return mailing(tier[0], tier[1], read=tier[2])
    if tier == "fails":
        return RuntimeError("down")
    calls = [ToolCall(id="s", name="search", arguments={"query": "x"})]
    if tier == "two":
        calls = [*mailing("bob", 1.0).tool_calls, *mailing("ann", 1.0).tool_calls]
    return answer("", tool_calls=[] if tier == "text" else calls)


def may_go(tiers: Sequence[Any], odds: float, least: float = LEAST) -> list[tuple[str, str]]:
    """What the promise lets out, written once more: the first answer that is sure enough, else nothing."""
    found = [("bob", odds, True), *(tier if isinstance(tier, tuple) else ("", 0.0, False) for tier in tiers)]
    return next(([(to, "hi")] for to, p, read in found if to and read and p >= least), [])


def sent_by(tiers: Sequence[Any], odds: float, *, at_least: float = LEAST) -> list[tuple[str, str]]:
    names = [f"tier {number}" for number in range(1, len(tiers) + 1)]
    chain = chain_of(*names, below=at_least)
    chain = chain.model_copy(update={"release": chain.release.model_copy(update={"at_least": at_least})})
    case = Case(*map(told, tiers), odds=odds, profile=profile(*names).model_copy(update={"chain": chain}))
    result = case.ran()
    assert (result.status is AgentStatus.COMPLETED) == bool(case.world.sent)
    assert len(case.world.sent) <= 1
    return case.world.sent


@settings(max_examples=examples(60))
@given(TIERS, ODDS)
def test_for_all_answers_of_all_tiers_only_what_the_chain_lets_out_goes_out(tiers: list[Any], odds: float) -> None:
    assert sent_by(tiers, odds) == may_go(tiers, odds)


def test_a_laxer_chain_is_caught_by_that_law() -> None:
    assert sent_by([("ann", 0.5, True)], 0.05, at_least=0.4) != may_go([("ann", 0.5, True)], 0.05)


@settings(max_examples=examples(200))
@given(ODDS, ODDS, st.booleans(), st.sampled_from([{}, {"always_ask_tool_names": ["send"]}, {"low_threshold": 0.99}]))
def test_a_chain_in_the_profile_never_lets_out_what_was_held_without_one(
    odds: float, stated: float, read: bool, policy: dict[str, Any]
) -> None:
    """Asked of the monitor alone, where nobody looks again: the chain only adds."""

    async def verdict(chained: bool) -> Any:
        own = profile("tier 1", **policy)
        own = own if chained else own.model_copy(update={"chain": None})
        session = UncertaintyMonitor(profile=own).session("s")
        await session.observe_llm_response(f"Confidence: {stated}", "0")
        turn = mailing("bob", odds, read=read)
        await session.observe_llm_response("", "1", tool_calls=turn.tool_calls, logprobs=turn.logprobs)
        return session.would_allow(turn.tool_calls[0], effect="irreversible")

    without, chained = anyio.run(verdict, False), anyio.run(verdict, True)
    if not without.allowed:
        assert not chained.allowed
        assert chained.rule in (without.rule, "chain")
        assert chained.rule != "chain" or without.rule in ("call_evidence", "irreversible_override")
    elif not read or odds < LEAST:
        assert chained.rule == "chain"


@settings(max_examples=examples(100), deadline=None)
@given(
    TIERS,
    st.sampled_from([0.05, 0.5, 0.7, 0.85, 0.91, 0.95]),
    st.sampled_from([0.05, 0.5, 0.9]),
    st.sampled_from([{}, {"call_floor": 0.99}, {"low_threshold": 0.999}, {"always_ask_tool_names": ["send_email"]}]),
)
def test_a_run_with_a_chain_sends_nothing_unlooked_at_that_waits_without_one(
    tiers: list[Any], odds: float, at_least: float, policy: dict[str, Any]
) -> None:
    """Asked of the runner: where nobody looked, a chain only adds to what is held."""
    names = [f"tier {number}" for number in range(1, len(tiers) + 1)]
    chain = chain_of(*names, below=at_least)
    chain = chain.model_copy(update={"release": chain.release.model_copy(update={"at_least": at_least})})
    own = profile(*names, **policy).model_copy(update={"chain": chain})
    case = Case(*map(told, tiers), odds=odds, profile=own)
    case.ran()
    without = Case(odds=odds, profile=own.model_copy(update={"chain": None}), looks=None)
    waits = without.ran().status is AgentStatus.WAITING_FOR_HUMAN
    if waits and not any(model.calls for model in case.models):
        assert case.world.sent == []


def test_a_profile_keeps_its_chain_in_a_file_and_another_models_profile_has_none() -> None:
    kept = profile("tier 1")
    assert Profile.model_validate_json(kept.model_dump_json()) == kept
    assert kept.fitted
    assert kept.standing_in("another model").chain is None
    assert "chain" not in Profile().model_dump_json(), "a profile without one keeps its fingerprint"
    with pytest.raises(ConfigurationError, match="without a detector and without a release"):
        Profile(chain=kept.chain, calibration=fusion(), release=ReleaseRule(at_least=0.5))


def test_an_answer_without_the_score_that_every_recorded_case_had_has_no_chance() -> None:
    agreeing = LogisticFusion(
        readings={
            "score": FusedReading(mean=0.0, sd=1.0, slope=1.0),
            "agrees": FusedReading(mean=0.0, sd=1.0, slope=5.0),
        },
        intercept=2.0,
    )
    chain = chain_of("big")
    last = chain.tiers[1].model_copy(update={"chance": agreeing})
    chain = chain.model_copy(update={"tiers": (chain.tiers[0], last)})
    assert chain.after(1, 0.9, True)[0] == "release"
    assert chain.after(1, None, True) == ("ask", None)
    assert chain.after(0, None) == ("next", None)
