"""A drill: a past call made wrong on purpose, shown like a request to see whether reviewers notice. Nothing can run it.

A drill is not a request: another type, in documents of its own kind, whose digest and whose answers' signatures are
over texts that begin otherwise than those of requests and decisions. No session holds one, so a runner finds nothing to
decide; `tests/runtime/test_drills.py` holds each way to an execution against it.

What is wrong is known: the change takes a value that a reviewer approved out of its call. A value of another call of
the tool takes its place, so that amounts, recipients, texts, readings and doubts are all those of real calls.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache, partial
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, JsonValue

from grampus_uq.errors import ApprovalError
from grampus_uq.gate.call import REJECTED
from grampus_uq.gate.delegations import Delegation
from grampus_uq.gate.requests import ApprovalKind, ApprovalPolicy, check_arguments, in_form
from grampus_uq.gate.signatures import signed_text
from grampus_uq.records.call_parts import CallDoubt
from grampus_uq.records.values import Message, ToolCall, canonical_json
from grampus_uq.records.vocabulary import Role
from grampus_uq.runtime.cards import Card
from grampus_uq.runtime.lent_values import MOST_TRADING, lent_values, other_amount, other_recipient, words_of
from grampus_uq.runtime.run_state import in_pause
from grampus_uq.runtime.values_in_text import in_place
from grampus_uq.signals.call_support import names_of
from grampus_uq.stats.stored_values import FROZEN

_MEAN_DELAY_S: Final = 600.0


class Change(StrEnum):
    """A change that makes a tool's call certainly wrong."""

    AMOUNT = "amount"
    """The amount of another call of the tool."""
    RECIPIENT = "recipient"
    """The recipient of another call of the tool."""
    DUPLICATE = "duplicate"
    """The arguments of an earlier call of the run, which ran."""
    STALE = "stale"
    """The arguments of an earlier call of the run, which was refused; another one took its place."""


class DrillRule(BaseModel):
    """One change that makes calls of one tool wrong; `argument` is that of an amount or a recipient."""

    model_config = FROZEN

    tool: str = Field(min_length=1, max_length=200)
    change: Change
    argument: str | None = None


class DrillPlan(BaseModel):
    """Plan of drills: their `share` of the shown requests of tools with a rule, and the changes for each tool.

    Who knows `secret` can foresee drills. A call decided `source_age_s` ago serves as a source. Missing more than the
    `tolerated` share, and more than `pace_per_hour` decisions of one reviewer, is reported.
    """

    model_config = FROZEN

    share: Annotated[float, Field(gt=0.0, le=0.5)]
    rules: Annotated[tuple[DrillRule, ...], Field(min_length=1, max_length=100)]
    principal: str = Field(min_length=1, max_length=200)
    source_age_s: Annotated[float, Field(ge=0.0)] = 86_400.0
    tolerated: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    pace_per_hour: Annotated[int, Field(ge=1)] = 60
    secret: str = Field(min_length=32, repr=False)

    def follows(self, request_id: str) -> bool:
        """True when a drill is to follow this request: the share of `share / (1 - share)` of all, by the secret."""
        drawn = int(self._mac("follows", request_id)[:13], 16) / 16.0**13
        return drawn < self.share / (1.0 - self.share)

    def drill_id(self, request_id: str) -> str:
        """The id of the drill that follows a request, in the form of a request's."""
        return uuid.UUID(hex=self._mac("id", request_id)[:32], version=4).hex

    def _mac(self, what: str, text: str) -> str:
        return hmac.new(self.secret.encode(), f"{what} {text}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


class DrillAnswer(BaseModel):
    """A reviewer's answer to a drill. Not an approval decision: no runner reads it, and no request has its fields."""

    model_config = FROZEN

    drill_id: str
    digest: str
    kind: ApprovalKind
    principal: str = Field(min_length=1, max_length=200)
    message: str | None = Field(default=None, max_length=100_000)
    arguments: dict[str, JsonValue] | None = None
    answered_s: float = Field(default_factory=time.time)
    signature: str | None = None

    def signed_text(self) -> bytes:
        """The canonical text of everything but the signature; no decision's begins like it."""
        return signed_text("answer to a drill", self)


class Drill(BaseModel):
    """One drill: the card that is shown, what was changed in it, and the answer once there is one.

    `was` are the arguments that were approved, `source` the digest of their request, `parameters` the tool's schema. It
    is listed `late_s` after it was asked, as the request before it, whose run had other calls to make first.
    `answered_s` is by the store's clock, `waiting` the length of the queue at the answer.
    """

    model_config = FROZEN

    drill: Literal[1] = 1
    card: Card
    change: Change
    was: dict[str, JsonValue]
    source: str
    late_s: float = 0.0
    parameters: dict[str, JsonValue] | None = None
    answer: DrillAnswer | None = None
    answered_s: float = 0.0
    waiting: int = 0

    @property
    def listed_s(self) -> float:
        """When it can be seen and decided."""
        return self.card.created_s + self.late_s

    def answered(self, kind: ApprovalKind | str, *, principal: str, **given: Any) -> DrillAnswer:
        """An unsigned answer to this drill; refused where a decision on a request would be."""
        check_arguments(given.get("arguments"))
        return in_form(
            DrillAnswer,
            drill_id=self.card.id,
            digest=self.card.digest,
            kind=ApprovalKind(kind),
            principal=principal,
            **given,
        )

    def check(self, answer: DrillAnswer, now_s: float, place: Delegation | None = None) -> None:
        """Raise ApprovalError for an answer that would be refused on a request; `place`: of a deputy who answers."""
        if (answer.drill_id, answer.digest) != (self.card.id, self.card.digest):
            raise ApprovalError("The decision was made on another call than the one that was shown: it is refused.")
        if self.card.expired(now_s):
            raise ApprovalError("The request expired before the decision arrived: it is refused and asked again.")
        for one in sorted({answer.principal, answer.principal if place is None else place.principal}):
            ApprovalPolicy().check_other(one, self.card.started_by)
        if (answer.kind is ApprovalKind.EDIT) != (answer.arguments is not None):
            raise ApprovalError("An edit carries the new `arguments`; the other decisions carry none.")

    @property
    def caught(self) -> bool | None:
        """True for a rejection, a response, and an edit that takes out what was wrong; None without an answer."""
        if self.answer is None:
            return None
        if self.answer.kind is not ApprovalKind.EDIT:
            return self.answer.kind is not ApprovalKind.APPROVE
        runs, shown = self.answer.arguments or {}, self.card.arguments
        if self.change is Change.DUPLICATE:
            return False  # one more of it runs, whatever it is called now
        return not any(_equal(runs, shown, name) for name in self._wrong())

    def _wrong(self) -> list[str]:
        """The arguments that are not those of the call behind it."""
        shown = self.card.arguments
        return [name for name in {*shown, *self.was} if not _equal(shown, self.was, name)]

    def told(self) -> str:
        """The result for the reviewer, in words."""
        said = {
            Change.AMOUNT: "the amount was that of another call",
            Change.RECIPIENT: "the recipient was that of another call",
            Change.DUPLICATE: "this call had run before",
            Change.STALE: "these arguments had been refused before, and others took their place",
        }[self.change]
        was = {name: self.was[name] for name in self._wrong() if name in self.was}
        right = f"; right was {canonical_json(was)}" if self.change is not Change.DUPLICATE else ""
        verdict = "You noticed." if self.caught else "You let it through."
        return f"This was a drill, and nothing runs: {said}{right}. {verdict}"


def sealed_card(card: Card) -> Card:
    """The card with the digest of a drill, which no request can have."""
    text = canonical_json(card.model_dump(mode="json", exclude={"digest"}))
    digest = hashlib.sha256(b"grampus_uq drill 1\n" + text.encode("utf-8", "surrogatepass")).hexdigest()
    return card.model_copy(update={"digest": digest})


# -- making -----------------------------------------------------------------------------------------------------------


def drafts(
    plan: DrillPlan, sources: Sequence[Card], asked: Card, rng: random.Random, *, now_s: float = 0.0
) -> Iterator[Drill]:
    """The drills that may follow the request `asked`, one from each card that was approved, in an order drawn anew.

    Only cards of its tool, agent and rules serve, with a starter where it has one: others would show what no request of
    now has. The source is drawn before the change, so that no kind of run is more frequent among drills. It appears
    after `now_s`: made late, it would be the card that nobody saw when it was asked.
    """
    serve = [card for card in sources if _terms(card) == _terms(asked)]
    order = rng.sample(serve, len(serve))
    rules = [rule for rule in plan.rules if rule.tool == asked.tool]
    lent = dict[DrillRule, list[JsonValue]]()
    for place, source in enumerate(order):
        for rule in rng.sample(rules, len(rules)):
            arguments: Mapping[str, JsonValue] | None
            if rule.change in (Change.DUPLICATE, Change.STALE):
                arguments = _of_before(rule.change, source, rng)
            else:
                if rule not in lent:
                    lent[rule] = _lent(rule, order[:MOST_TRADING])
                value = lent[rule][place] if place < MOST_TRADING else None
                arguments = None if value is None else {**source.arguments, rule.argument or "": value}
            if arguments is not None:
                card = _shown(source, arguments, asked, plan.drill_id(asked.id), rng, now_s)
                yield Drill(card=card, change=rule.change, was=source.arguments, source=source.digest)
                break


def _terms(card: Card) -> tuple[str | None, str, str, bool]:
    return card.tool, card.agent_id, card.rules, card.started_by is None


def _of_before(change: Change, source: Card, rng: random.Random) -> Mapping[str, JsonValue] | None:
    """The arguments of an earlier call of the tool, which ran or was rejected, in what is shown; None for none."""
    results = {m.tool_call_id: m for m in source.messages if m.role is Role.TOOL and not m.metadata.get("placeholder")}
    earlier = [
        call.arguments
        for message in source.messages
        for call in message.tool_calls
        if call.name == source.tool
        and call.id != source.call_id
        and call.id in results
        and _became(results[call.id]) is (change is Change.DUPLICATE)
        and canonical_json(call.arguments) != canonical_json(source.arguments)
    ]
    return rng.choice(earlier) if earlier else None


def _lent(rule: DrillRule, cards: Sequence[Card]) -> list[JsonValue]:
    """For each card the value of another call that makes it wrong; None where the card would not show that it is."""
    runs = [" \n".join(m.content or "" for m in card.messages if m.role is not Role.ASSISTANT) for card in cards]
    differ = other_amount if rule.change is Change.AMOUNT else partial(other_recipient, words=cache(words_of))
    return lent_values([card.arguments.get(rule.argument or "") for card in cards], runs, differ)


def _became(result: Message) -> bool | None:
    """Return True if the call ran, False if it was rejected, None if it failed."""
    if not result.metadata.get("is_error"):
        return True
    return False if (result.content or "").startswith(REJECTED.partition("{")[0]) else None


def _equal(one: Mapping[str, JsonValue], other: Mapping[str, JsonValue], name: str) -> bool:
    return name in one and name in other and canonical_json(one[name]) == canonical_json(other[name])


# -- what is shown ----------------------------------------------------------------------------------------------------


def _shown(
    source: Card, arguments: Mapping[str, JsonValue], asked: Card, drill_id: str, rng: random.Random, now_s: float
) -> Card:
    """The source's card with other arguments, an id of its own, and times that a request of now would have.

    Session, run, call and starter stay the source's, with whose messages they agree: a name made up would have to
    follow the host's rule. `StoredDrills.as_shown` leaves the session's out.
    """
    created_s = max(asked.created_s, now_s) + rng.expovariate(1.0 / _MEAN_DELAY_S)
    like = asked if asked.unknown_outcome is source.unknown_outcome else source
    lasts_s = None if like.expires_s is None else like.expires_s - like.created_s
    changed = {
        name: (value, arguments[name])
        for name, value in source.arguments.items()
        if name in arguments and not _equal(source.arguments, arguments, name)
    }

    def reworded(text: str) -> str:
        for old, new in changed.values():
            text = in_place(text, old, new)
        return text

    was, now = (
        in_pause(ToolCall(name=source.tool or "", arguments=dict(given))) for given in (source.arguments, arguments)
    )

    def paused(text: str) -> str:
        return text.replace(was, now).replace(source.reason, reworded(source.reason)) if was in text else text

    messages = [_message(message, source.call_id, arguments, reworded, paused) for message in source.messages]
    return sealed_card(
        source.model_copy(
            update={
                "id": drill_id,
                "arguments": dict(arguments),
                "reason": reworded(source.reason),
                "doubt": source.doubt and _doubt(source, arguments.get(source.doubt.part), messages),
                "created_s": created_s,
                "expires_s": None if lasts_s is None else created_s + lasts_s,
                "messages": tuple(messages),
            }
        )
    )


def _doubt(source: Card, value: JsonValue, messages: Sequence[Message]) -> CallDoubt | None:
    """The source's doubt as it would speak of the value in its part: under which names that stands, no other but it."""
    if (doubt := source.doubt) is None or _equal({doubt.part: value}, source.arguments, doubt.part):
        return doubt
    others = tuple([one for one in doubt.candidates if str(value) not in (one.text, one.match)])
    return replace(doubt, occurs_as=names_of(value, messages) if doubt.occurs_as else (), candidates=others)


def _message(
    message: Message,
    call_id: str,
    arguments: Mapping[str, JsonValue],
    reworded: Callable[[str], str],
    paused: Callable[[str], str],
) -> Message:
    """A message as it would be, had the model proposed the changed call: its own words and the pause's go with it."""
    if message.role is Role.SYSTEM and message.content:
        return message.model_copy(update={"content": paused(message.content)})
    if all(call.id != call_id for call in message.tool_calls):
        return message
    ours = {"arguments": dict(arguments)}
    calls = tuple([call.model_copy(update=ours) if call.id == call_id else call for call in message.tool_calls])
    return message.model_copy(update={"content": reworded(message.content or ""), "tool_calls": calls})
