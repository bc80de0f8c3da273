"""Another look at a call that its own doubt or a middling belief holds, before a human is asked.

The chain of the profile says which answer goes out (`core.chain_rule`); here its tiers are asked, one after another,
about the conversation as it was before the call. An answer that is the very call clears it. Another call is a new one,
which goes through monitor and gate as a turn of its own. A look that fails, is late, or answers with anything but one
call of a tool that cannot be undone is a missing one: the next tier looks, or a human. Only a turn that proposes one
call is looked at, and once: a worker that dies meanwhile leaves a call that waits for a human.

Without a chain in the profile, and in an advisory session, nothing is lifted: every tier is asked about the run's first
irreversible call, and what it would have called is recorded, for a chain to be learned from.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio

from grampus_uq.core.chain_rule import Chain
from grampus_uq.core.turn_evidence import doubt_about
from grampus_uq.errors import ConfigurationError, StoreError
from grampus_uq.gate.call import CallRecord
from grampus_uq.monitor.session import Session
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, ModelResponse, ToolCall, canonical_json
from grampus_uq.records.visible_text import arguments_in_short, in_short
from grampus_uq.records.vocabulary import Effect, Role
from grampus_uq.runtime.concurrent_tasks import outcome_of
from grampus_uq.runtime.let_ahead import LOOKED, LetGo, may_be_lifted
from grampus_uq.runtime.turn import Turn
from grampus_uq.runtime.worker_jobs import PARENT
from grampus_uq.signals.call_tokens import probability_of_call
from grampus_uq.wire.calls import is_unparsed, read_arguments
from grampus_uq.wire.model_call import ask_model
from grampus_uq.wire.usage import read_usage

log = logging.getLogger("grampus_uq.runtime.looks")

_ALTERNATIVES: Final = 5
_MOST_SAID: Final = 500
LOOKS_USED: Final = "looks"
"""In the metadata of a session: how many looks there were, their tokens and seconds."""
Asked = tuple[ModelClient, str]
"""A client, and the name of its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One tier that looks again: a model that is given the same conversation, and says which call it would make.

    name: of the chain's tier. client, model: who is asked, by default the agent's. question: a message behind the
    conversation, "Check each argument against the results above.", say. temperature: above 0 to draw the agent's answer
    anew. timeout_s: after which the look is a missing one.
    """

    name: str
    client: ModelClient | None = None
    model: str = ""
    question: str = ""
    temperature: float = 0.0
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """The tiers that may look again, and how much one run may spend on it: what is beyond that, a human is asked.

    Where the profile has no chain, and in an advisory run, all of them are asked about a run's first irreversible call,
    which waits for their answers. These are recorded, for `grampus-uq fit --question`, and change nothing.

    most: looks of one run. most_tokens: once so many were spent, nothing more is looked at. Raises ConfigurationError
    for tiers of one name, and for a bound or a time that is not above 0.
    """

    tiers: Sequence[Look]
    most: int = 8
    most_tokens: int = 100_000

    def __post_init__(self) -> None:
        names = [tier.name for tier in self.tiers]
        if len(set(names)) < len(names):
            raise ConfigurationError.of("tiers", "Looks", "tiers of distinct names", names)
        for name, value in (("most", self.most), ("most_tokens", self.most_tokens)):
            if not value > 0:
                raise ConfigurationError.of(name, "Looks", "above 0", value)
        for tier in self.tiers:
            if not tier.timeout_s > 0.0:
                raise ConfigurationError.of("timeout_s", "Look", "above 0 seconds", tier.timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A call that a tier would make in the place of the held one, and may by the chain; `prompt`: what it was shown."""

    call: ToolCall
    reply: ModelResponse
    prompt: Sequence[Message]
    asked: Asked
    by: LetGo


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """Answer of a tier; without a call the look is missing, and `missing` says why."""

    look: Look | None = None
    reply: ModelResponse | None = None
    call: ToolCall | None = None
    probability: float | None = None
    tokens: int = 0
    seconds: float = 0.0
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookingAgain:
    """Looks again at the calls of one leased session; `client` and `model` are the agent's."""

    turn: Turn
    looks: Looks
    client: ModelClient
    model: str
    schemas: Callable[[], list[dict[str, Any]]]

    async def at(self, record: CallRecord) -> Proposal | None:
        """Look again at a call that was held just now, where nothing holds it that a look may not lift.

        It is then cleared, or waits as before; where another call is returned, it waits until that one is proposed. A
        call that the first tier is sure of and the policy holds waits: nobody looked at it.
        """
        session, state = self.turn.lease.session, self.turn.lease.state
        if session is None:
            return None
        profile = session.profile
        chain = profile.chain
        if chain is None or profile.advisory:
            await self._learn_at(record, session)
            return None
        if not may_be_lifted(record, session) or not self._may_be_looked_at(record):
            return None
        prompt, (request,) = self._before(record), record.requests
        answer, number, said = _Answer(), 0, list[str]()
        step: str
        step, chance = chain.after(0, _own_probability(session, record))
        if step != "next":
            return None
        try:
            while step == "next":
                number += 1
                answer = await self._ask(record, chain.tiers[number].name, prompt)
                step, chance = _after(chain, number, answer, record.proposed)
                said.append(
                    f"{chain.tiers[number].name} ({in_its_place(record.proposed, answer.call, answer.missing)})"
                )
                await self._note_look(record, chain.tiers[number].name, answer, chance=chance, then=step)
        except StoreError:
            return None
        if session.profile is not profile or not await self.still_waits(record):
            return None
        if step != "release":
            told = f"{request.reason}; looked at again by {', '.join(said)}: not sure enough"
            state.keep(record.change(requests=(request.model_copy(update={"reason": told}),)))
            return None
        name = chain.tiers[number].name
        why = f"right with a chance of {chance:.2f} by {name}; {chain.release.guarantee or 'no guarantee'}"
        let_go = LetGo(by=name, why=why, held=record)
        if answer.call is None or answer.reply is None or answer.look is None or _equal(answer.call, record.proposed):
            self.turn.let_ahead.by_chain(record, let_go)
            return None
        asked = self._asked_of(answer.look)
        return Proposal(call=answer.call, reply=answer.reply, prompt=prompt, asked=asked, by=let_go)

    async def still_waits(self, held: CallRecord) -> bool:
        """True while the call is as it was held, and nobody decided about it; a store that is down cannot say so."""
        (request,) = held.requests
        try:
            decided = (await self.turn.ledger.decisions([request.id]))[request.id]
        except StoreError:
            return False
        return not decided and self.turn.lease.state.record(held) == held

    async def _learn_at(self, record: CallRecord, session: Session) -> None:
        """Record what every tier would have called in the place of the run's first irreversible call; once a run."""
        state = self.turn.lease.state
        guarded = any(self.turn.effect(one.proposed) is Effect.IRREVERSIBLE for one in state.turn)
        if not guarded or LOOKS_USED in state.metadata:
            return
        state.metadata[LOOKS_USED] = [0, 0, 0.0]
        if not self._may_be_looked_at(record):
            return
        prompt, own = self._before(record), _own_probability(session, record)
        with contextlib.suppress(StoreError):
            for look in self.looks.tiers:
                answer = await self._ask(record, look.name, prompt)
                session.record_look(
                    look.name,
                    step_id=record.step_id,
                    call=answer.call,
                    agrees=answer.call is not None and _equal(answer.call, record.proposed),
                    own=own,
                    probability=answer.probability,
                    missing=answer.missing,
                    tokens=answer.tokens,
                    seconds=answer.seconds,
                )
                await self._note_look(record, look.name, answer, chance=None, then="recorded")

    async def _note_look(
        self, record: CallRecord, tier: str, answer: _Answer, *, chance: float | None, then: str
    ) -> None:
        """Put a look into the audit log. Raises StoreError."""
        facts = self.turn.facts(record) | {"chance": chance, "then": then, "missing": answer.missing, "tier": tier}
        facts |= {"tokens": answer.tokens, "seconds": round(answer.seconds, 3)}
        await self.turn.lease.save(("looked", facts))

    def _before(self, record: CallRecord) -> list[Message]:
        """The conversation as it was before the turn that proposes a call."""
        messages = self.turn.lease.state.messages
        at = [i for i, message in enumerate(messages) if record.proposed.id in (call.id for call in message.tool_calls)]
        return list(messages[: at[-1]]) if at else []

    def _may_be_looked_at(self, record: CallRecord) -> bool:
        return (
            self.turn.lease.state.vouched
            and PARENT not in self.turn.lease.state.metadata
            and len(self.turn.lease.state.turn) == 1
            and record.child_session is None
            and record.proposed.name not in self.turn.delegates
            and not record.step_id.endswith(LOOKED)
        )

    def _asked_of(self, look: Look) -> Asked:
        return look.client or self.client, look.model or self.model

    async def _ask(self, record: CallRecord, name: str, prompt: Sequence[Message]) -> _Answer:
        """One tier's answer; whatever goes wrong makes it a missing one. Raises StoreError.

        It is counted in the store first: whoever goes on from here asks a human, and has one look less.
        """
        look = next((tier for tier in self.looks.tiers if tier.name == name), None)
        metadata = self.turn.lease.state.metadata
        count, tokens, seconds = _used(metadata.get(LOOKS_USED))
        if look is None:
            return _Answer(missing="no look is configured for this tier")
        if count >= self.looks.most or tokens >= self.looks.most_tokens:
            return _Answer(missing="the run's looks are used up")
        metadata[LOOKS_USED] = [count + 1, tokens, seconds]
        await self.turn.lease.save(("looking", {**self.turn.facts(record), "tier": name}))
        answer = await self.turn.lease.run(lambda: self._answer(look, prompt))
        metadata[LOOKS_USED] = [count + 1, tokens + answer.tokens, seconds + answer.seconds]
        return answer

    async def _answer(self, look: Look, prompt: Sequence[Message]) -> _Answer:
        begun = time.monotonic()
        client, model = self._asked_of(look)
        behind = [Message(role=Role.USER, content=look.question)] if look.question else []
        options = {"temperature": look.temperature, "tools": self.schemas() or None, "top_logprobs": _ALTERNATIVES}
        reply, call, missing, probability, tokens = None, None, "it was late", None, 0
        try:
            with anyio.move_on_after(look.timeout_s):
                reply = await outcome_of(lambda: ask_model(client, [*prompt, *behind], model, options))
                usage = read_usage(reply.token_usage)
                tokens = usage.input_tokens + usage.output_tokens
                call, missing = _one_call(reply), "it did not answer with one call"
                probability = None if call is None else probability_of_call(reply)
        except Exception as error:  # noqa: BLE001 (another's model and its answer: what fails is a missing look)
            call, missing = None, f"it failed ({type(error).__name__})"
            log.warning("the look of %s failed: %s", look.name, type(error).__name__)
        if call is not None and self.turn.effect(call) is not Effect.IRREVERSIBLE:
            call, missing = None, "its call can be undone"
        missing, seconds = "" if call is not None else missing, time.monotonic() - begun
        if seconds > look.timeout_s:  # a client that cannot be cancelled answers all the same
            call, missing = None, "it was late"
        return _Answer(
            look=look, reply=reply, call=call, probability=probability, tokens=tokens, seconds=seconds, missing=missing
        )


def _after(chain: Chain, number: int, answer: _Answer, proposed: ToolCall) -> tuple[str, float | None]:
    """As the chain says of the answer; without one the next tier looks, or a human."""
    if answer.call is None or answer.reply is None:
        return ("ask" if number + 1 == len(chain.tiers) else "next"), None
    return chain.after(number, answer.probability, _equal(answer.call, proposed))


def in_its_place(proposed: ToolCall, call: ToolCall | None, missing: str) -> str:
    """The difference between a tier's call and the proposed one, for whoever decides: nothing hidden, what is long cut.

    Where the two differ is the first place to look for what is wrong. `missing` says why there is no call.
    """
    if call is None:
        return f"no call: {missing}"
    own, theirs = proposed.arguments, call.arguments
    gone = {name: value for name, value in own.items() if name not in theirs}
    other = {n: v for n, v in theirs.items() if n not in own or canonical_json(v) != canonical_json(own[n])}
    told = {"with": other, "without": gone}
    said = ", ".join([f"{word} {arguments_in_short(values)}" for word, values in told.items() if values])
    if call.name != proposed.name:
        said = f"{call.name} with {arguments_in_short(theirs)}"
    return in_short(said or "the same call", _MOST_SAID)


def _own_probability(session: Session, record: CallRecord) -> float | None:
    """The `call_probability` of the held call; None where that is not known."""
    turns = session.state.turns
    turn = next((turn for turn in turns if turn.step == record.step_id), None)
    doubt = None if turn is None else doubt_about(turns, turn, record.proposed)
    return None if doubt is None else doubt.probability


def _used(stored: Any) -> tuple[int, int, float]:
    """Looks, tokens and seconds of the run so far; what nobody wrote here counts as all that there may be."""
    if stored is None:
        return 0, 0, 0.0
    if isinstance(stored, list) and len(stored) == 3 and all(type(one) in (int, float) and one >= 0 for one in stored):
        return int(stored[0]), int(stored[1]), float(stored[2])
    return 2**31, 2**31, 0.0


def _one_call(reply: ModelResponse) -> ToolCall | None:
    """The one call of an answer; None where there is not just one, or no store could hold it."""
    if len(reply.tool_calls) != 1 or is_unparsed(reply.tool_calls[0]):
        return None
    read = read_arguments(reply.tool_calls[0].arguments)
    return None if read.problem is not None else reply.tool_calls[0].model_copy(update={"arguments": read.values})


def _equal(one: ToolCall, other: ToolCall) -> bool:
    return one.digest() == other.digest()
