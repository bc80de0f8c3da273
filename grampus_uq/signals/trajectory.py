"""From the turns of a run to TRACER's components a step: the same small state machine for live sessions and for replay.

`advance` is pure and cheap: it takes a state and what happened, and gives the next state, the steps that are complete
now, and the step that is still open. `sense_steps` then computes the components of a step; it embeds texts, so it may
be slow and may fail, and a failure loses one step's components and never the state.

An agent's turn stays open until something follows it, because its coherence gap exists only once its observations are
there. Look at `pending` while it is open (peek), add `completed` to the risk when it comes (commit); every step is
completed once, however often its calls are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.values import TokenLogprob, ToolCall
from grampus_uq.signals.components import AgentText, ObservedStep
from grampus_uq.signals.tool_outcome import digest_of, failed, remembered
from grampus_uq.signals.turn_events import (
    READ_CHARACTERS,
    AgentTurn,
    Observation,
    ProposedCall,
    RunEnd,
    TurnEvent,
    UserTurn,
    agent_text,
    is_closing,
    observation_text,
)
from grampus_uq.stats.surprisal import content_surprisal

MAX_CALLS: Final = 256
"""Calls of one turn that are told apart; more are not counted."""

_NAME_CHARACTERS: Final = 200


class ComponentSettings(Protocol):
    """The constants of the components; the paper prints none of them. A profile's `TrajectoryRiskSettings` has them.

    `window`: earlier agent turns that repetition compares with. `sentinels`: what closes a run in a user's message.
    `pi_0`, `eps`: see `stats.surprisal.content_surprisal`.
    """

    @property
    def window(self) -> int: ...
    @property
    def sentinels(self) -> tuple[str, ...]: ...
    @property
    def pi_0(self) -> float: ...
    @property
    def eps(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCall:
    """A call of the open turn: its id as the model gave it, its name, the digest of its canonical form."""

    id: str
    name: str
    digest: str
    answered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTurn:
    """An agent's turn that may still get calls and observations.

    `text` is z(x), its first `spoken` characters are the agent's own words; `observations` are (place of call, text).
    """

    text: str
    spoken: int = 0
    calls: tuple[KnownCall, ...] = ()
    observations: tuple[tuple[int, str], ...] = ()
    surprisal: float | None = None
    tool_error: bool | None = None
    duplicate_call: bool | None = None
    duplicate_observation: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentState:
    """The memory of a session for its components: JSON-able, and bounded however long the run is.

    `window`: the latest agent turns, latest last. `after_agent`: the latest complete step was the agent's.
    `calls` and `observations`: digests of what was there before. `settled`: digests of the latest calls of complete
    turns, id and all, by which one that is reported late is recognised. `open`: the agent's turn that is not complete.
    """

    window: tuple[AgentText, ...] = ()
    after_agent: bool = False
    calls: tuple[str, ...] = ()
    observations: tuple[str, ...] = ()
    settled: tuple[str, ...] = ()
    open: OpenTurn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The next state, the steps that this event completed (0 to 2, in order), and the open one as it stands."""

    state: ComponentState
    completed: tuple[ObservedStep, ...]
    pending: ObservedStep | None


def advance(state: ComponentState, event: TurnEvent, settings: ComponentSettings) -> Advance:
    """Take one event of a run.

    An agent's turn completes the open one and opens itself. A proposed call joins the open turn, unless it is known
    there (same id; without ids the same canonical form, or the same name without arguments) or was settled with an
    earlier turn, as when the user's approval comes in between; after the turn's observations it opens a turn of its
    own. An observation joins the open turn; one of a call that the turn does not have came too late to change a
    completed step: it is remembered and nothing else. A user's turn completes the open turn and itself; a closing one
    is not a step. `RunEnd` completes the open turn.

    Nothing that a run contains makes it raise; log-probabilities that are none leave the surprisal None.
    """
    match event:
        case AgentTurn():
            closed, steps = _close(state, settings)
            surprisal = _surprisal(event.logprobs, settings)
            text = agent_text(event.text, ())
            opened = replace(closed, open=OpenTurn(text=text, spoken=len(text), surprisal=surprisal))
            for call in event.calls:
                opened = _with_call(opened, call)
            return _advanced(opened, steps)
        case ProposedCall():
            return _propose(state, event.call, settings)
        case Observation():
            return _advanced(_observe(state, event), ())
        case UserTurn():
            closed, steps = _close(state, settings)
            if is_closing(event.text, settings.sentinels):
                return _advanced(closed, steps)
            step = ObservedStep(
                is_agent=False,
                text=event.text.strip()[:READ_CHARACTERS],
                counterpart=closed.window[-1].text if closed.after_agent else None,
                surprisal=_surprisal(event.logprobs, settings),
            )
            return _advanced(replace(closed, after_agent=False), (*steps, step))
        case RunEnd():
            return _advanced(*_close(state, settings))


def _advanced(state: ComponentState, completed: Sequence[ObservedStep]) -> Advance:
    pending = None if state.open is None else _observed(state, state.open)
    return Advance(state=state, completed=tuple(completed), pending=pending)


def _observed(state: ComponentState, turn: OpenTurn) -> ObservedStep:
    return ObservedStep(
        is_agent=True,
        text=turn.text,
        said=_agent_turn(turn),
        earlier=state.window,
        counterpart=observation_text([text for _, text in turn.observations]) or None,
        surprisal=turn.surprisal,
        tool_error=turn.tool_error,
        duplicate_call=turn.duplicate_call,
        duplicate_observation=turn.duplicate_observation,
    )


def _close(state: ComponentState, settings: ComponentSettings) -> tuple[ComponentState, tuple[ObservedStep, ...]]:
    if state.open is None:
        return state, ()
    step = _observed(state, state.open)
    window = (*state.window, _agent_turn(state.open))[-settings.window :]
    settled = (*state.settled, *(_settled_form(call.id, call.digest) for call in state.open.calls if call.id))
    return replace(state, window=window, after_agent=True, settled=settled[-MAX_CALLS:], open=None), (step,)


def _settled_form(call_id: str, digest: str) -> str:
    return digest_of(f"{call_id}\n{digest}")


def _agent_turn(turn: OpenTurn) -> AgentText:
    return AgentText(text=turn.text, spoken=turn.spoken, calls=tuple(call.digest for call in turn.calls))


def _propose(state: ComponentState, call: ToolCall, settings: ComponentSettings) -> Advance:
    turn = state.open
    if turn is not None and _position(turn, call) is not None:
        return _advanced(_with_id(state, turn, call), ())
    if call.id and _settled_form(call.id[:_NAME_CHARACTERS], digest_of(call.canonical())) in state.settled:
        return _advanced(state, ())
    if turn is None or turn.observations:
        closed, steps = _close(state, settings)
        return _advanced(_with_call(replace(closed, open=OpenTurn(text="")), call), steps)
    return _advanced(_with_call(state, call), ())


def _position(turn: OpenTurn, call: ToolCall) -> int | None:
    """Find the call among those of the turn; None when it is a new one."""
    digest = digest_of(call.canonical())
    for position, known in enumerate(turn.calls):
        if call.id and known.id:
            if known.id == call.id[:_NAME_CHARACTERS]:
                return position
        elif known.digest == digest or (not call.arguments and known.name == call.name[:_NAME_CHARACTERS]):
            return position
    return None


def _with_id(state: ComponentState, turn: OpenTurn, call: ToolCall) -> ComponentState:
    """Note the id of a call that was first seen without one, so that its observation finds it."""
    position = _position(turn, call)
    if position is None or turn.calls[position].id or not call.id:
        return state
    known = replace(turn.calls[position], id=call.id[:_NAME_CHARACTERS])
    return replace(state, open=replace(turn, calls=(*turn.calls[:position], known, *turn.calls[position + 1 :])))


def _with_call(state: ComponentState, call: ToolCall) -> ComponentState:
    turn = state.open
    if turn is None or len(turn.calls) >= MAX_CALLS:
        return state
    digest = digest_of(call.canonical())
    known = KnownCall(id=call.id[:_NAME_CHARACTERS], name=call.name[:_NAME_CHARACTERS], digest=digest)
    turn = replace(
        turn,
        text=agent_text(turn.text, (call,)),
        calls=(*turn.calls, known),
        duplicate_call=bool(turn.duplicate_call) or digest in state.calls,
        tool_error=bool(turn.tool_error),
        duplicate_observation=bool(turn.duplicate_observation),
    )
    return replace(state, open=turn, calls=remembered(state.calls, digest))


def _observe(state: ComponentState, observation: Observation) -> ComponentState:
    turn = state.open
    position = None if turn is None else _answered(turn, observation)
    text = observation.text.strip()
    digest = digest_of(text)
    seen = bool(text) and digest in state.observations
    state = replace(state, observations=remembered(state.observations, digest)) if text else state
    if turn is None or position is None:
        return state
    calls = tuple(replace(known, answered=True) if i == position else known for i, known in enumerate(turn.calls))
    turn = replace(
        turn,
        calls=calls,
        observations=_kept((*turn.observations, (position, text))),
        tool_error=bool(turn.tool_error) or failed(observation),
        duplicate_observation=bool(turn.duplicate_observation) or seen,
    )
    return replace(state, open=turn)


def _answered(turn: OpenTurn, observation: Observation) -> int | None:
    """Find the call that an observation answers; None when it answers none of this turn, or one that is answered.

    Without an id it answers the first call that waits, or the turn as a whole when the turn has no calls.
    """
    if observation.call_id:
        wanted = observation.call_id[:_NAME_CHARACTERS]
        for position, known in enumerate(turn.calls):
            if known.id == wanted:
                return None if known.answered else position
        if any(known.id for known in turn.calls):
            return None
    for position, known in enumerate(turn.calls):
        if not known.answered:
            return position
    return None if turn.calls else len(turn.observations)


def _kept(observations: tuple[tuple[int, str], ...]) -> tuple[tuple[int, str], ...]:
    """Order observations by their call and drop what lies beyond the characters that are read.

    A later one for an earlier call only moves the others back, so nothing dropped could be read again.
    """
    kept = []
    room = READ_CHARACTERS
    for position, text in sorted(observations, key=lambda pair: pair[0]):
        kept.append((position, text[: max(0, room)]))
        room -= len(text)
    return tuple(kept[:MAX_CALLS])


def _surprisal(logprobs: Sequence[TokenLogprob] | None, settings: ComponentSettings) -> float | None:
    if not logprobs:
        return None
    tokens = [token.token for token in logprobs]
    try:
        return content_surprisal(tokens, [token.logprob for token in logprobs], pi_0=settings.pi_0, eps=settings.eps)
    except ConfigurationError:  # NaN, or a number that is not a log-probability: what the model reports is not evidence
        return None
