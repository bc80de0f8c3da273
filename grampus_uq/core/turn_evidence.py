"""Evidence for a call: the model turn that proposed it, and the readings of that turn.

Turns may run side by side. A call belongs to the turn that proposed it, found by its id and name, by the id of the
turn's step, or by its name alone; where several turns could have proposed it, the least of their evidence counts. A
call that nothing is known of gets the least of the latest turn and of those with calls still open. A turn also keeps
what was believed after it: what later turns make the belief recover speaks for their own calls. Callers who never
list the calls of a turn are taken at their order: the latest turn proposes, unless the step's id says otherwise. A
session keeps 16 turns; of those that listed calls, two that have to go with calls still open become one that keeps the
least of both. One whose calls were all made leaves the least doubt about each tool's.

A turn vouches for the calls that it listed, name and arguments: `is_proposed` knows them by their digests. That is
asked when a call is seen, and recorded with its step: a replay, which may lack the arguments, decides alike.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import ConfigDict

from grampus_uq.records.building import builder, drafter
from grampus_uq.records.call_parts import NEW_WORD, UNREAD_CALL, WHOLE_CALL, CallDoubt, Unit, doubt_of
from grampus_uq.records.tool_names import whole_name_keys
from grampus_uq.records.values import Reading, Step, ToolCall, canonical_json, sha256_of
from grampus_uq.records.vocabulary import NOT_DUE, UncertaintySource

MAX_TURNS = 16
MAX_CALLS = 32
_MOST_WITH_VALUES = 4  # calls of a turn whose other likely values are kept
_DIGEST = 24
_MADE = " made"
_LONGEST = 64
_LONGEST_NAME = 256
_LONGEST_WRITTEN = 1_000
Scores = tuple[Unit | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvidence:
    """Readings of one model turn.

    `read`: whether anything was but the model's own word; `measured`: where not, whether the profile was fitted on a
    reading of it, which has no weight; `p_success`: the calibrated chance after it, `worst_chance`: the same in the
    worst case, where a reading was due and did not come; `lowest`: its lowest reading, as source and value; `stated`:
    whether the model stated a confidence; `belief`: the propagated confidence after it, `unaided`: the same without
    what the model states, where that is less, `worst_belief`: the less of both in the worst case. `calls` are the keys
    of the calls it proposed that were not observed yet, `called` of those that were; `more` is True for open calls
    beyond what is kept. `listed` are the digests of all of them, name and arguments, marked once one is made. `doubts`:
    how sure the model was of each; one without a call is of those beyond what is kept. `gone`: the least doubts, a tool
    each, of calls whose turns are kept no more, and behind them those about the latest answers in words; the latest
    turn holds them. `scores`: the streams of a detector that looks at calls, in its order, and `worst_scores` the same
    in the worst case.
    """

    step: str = ""
    read: bool = False
    measured: bool = False
    p_success: Unit | None = None
    worst_chance: Unit | None = None
    lowest: tuple[str, Unit] | None = None
    stated: bool = False
    belief: Unit | None = None
    unaided: Unit | None = None
    worst_belief: Unit | None = None
    calls: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    more: bool = False
    listed: tuple[str, ...] = ()
    doubts: tuple[CallDoubt, ...] = ()
    gone: tuple[CallDoubt, ...] = ()
    scores: Scores = ()
    worst_scores: Scores = ()

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    @property
    def open(self) -> bool:
        """True while a call of the turn was not observed."""
        return self.more or bool(self.calls)

    @property
    def word_alone(self) -> bool:
        """True where nothing was read but the confidence that the model states: releases before it see none at all."""
        return not self.read and self.lowest is not None

    @property
    def at_worst(self) -> float | None:
        """The chance of success in the worst case."""
        return self.p_success if self.worst_chance is None else self.worst_chance

    @property
    def belief_at_worst(self) -> float | None:
        """The propagated confidence after the turn in the worst case."""
        return self.belief if self.worst_belief is None else self.worst_belief


Turns = tuple[TurnEvidence, ...]
_CALL_PROBABILITY, _SEQUENCE_PROBABILITY = UncertaintySource.CALL_PROBABILITY, UncertaintySource.SEQUENCE_PROBABILITY
_CLAIM_PROBABILITY = UncertaintySource.CLAIM_PROBABILITY
_OF_TOKENS = frozenset({_CALL_PROBABILITY, UncertaintySource.TOKEN_PROBABILITY})
_by_probability = operator.attrgetter("probability")
new_turn, draft_of_turn = builder(TurnEvidence), drafter(TurnEvidence)


def text_key(name: str) -> str:
    """A model's own text as a key: as it is while short and plain, else as a digest."""
    if len(name) <= _LONGEST and name.isascii():
        return name
    return sha256_of(name)[:32]


def _name_key(name: str) -> str:
    """One key for every spelling of a tool's name: who asks for a call in another one asks for the same call.

    A name that is longer than any tool's is taken as it is written: a model may write hundreds of them in one turn.
    """
    return _known_name_key(name) if len(name) <= _LONGEST_NAME else text_key(name)


@functools.lru_cache(maxsize=1_000)
def _known_name_key(name: str) -> str:
    seen = whole_name_keys(name)[1]
    return text_key(seen if len(seen) > 1 else name)


def _call_key(call: ToolCall) -> str:
    return f"{text_key(call.id)} {_name_key(call.name)}"


def proposed(step: Step) -> tuple[str, ...]:
    """The keys of the calls that a step of the model proposes, as far as they are kept."""
    return tuple([_call_key(call) for call in step.tool_calls[:MAX_CALLS]])


def listed(step: Step) -> tuple[str, ...]:
    """The same calls as they are listed: a digest of name and arguments, and of the id where there is one."""
    return tuple([_digest(call) + (_id_mark(call.id) if call.id else "") for call in step.tool_calls[:MAX_CALLS]])


def _id_mark(call_id: str) -> str:
    return _known_id_mark(call_id) if len(call_id) <= _LONGEST else _mark(call_id)


def _mark(call_id: str) -> str:
    return "@" + sha256_of(call_id)[:8]


_known_id_mark = functools.lru_cache(maxsize=1_000)(_mark)  # asked three times a call


def _digest(call: ToolCall) -> str:
    """One digest for every spelling of the name and order of the keys; empty where the arguments are not JSON."""
    try:
        written = f"{_name_key(call.name)}({canonical_json(call.arguments)})"
    except (TypeError, ValueError, RecursionError):
        return ""
    return _known_digest_of(written) if len(written) <= _LONGEST_WRITTEN else _digest_of(written)


def _digest_of(written: str) -> str:
    return sha256_of(written)[:_DIGEST]


_known_digest_of = functools.lru_cache(maxsize=1_000)(_digest_of)  # asked three times a call


def doubts(step: Step, readings: Sequence[Reading], before: Turns = ()) -> tuple[CallDoubt, ...]:
    """The model's sureness of each call that a step proposes, where the readings say so.

    Of a step without calls, of its least likely new word: whoever acts on it without naming a turn acts on that.
    Calls beyond those that are read are as sure as all that the turn wrote: none of them is less likely than that.
    A call that should have been read and was not is as unsure as can be: a reading of it failed, others of its turn
    were read, or calls of turns `before` were.
    """
    if not readings:
        return ()
    if not step.tool_calls:
        claims = [reading.value for reading in readings if reading.source == _CLAIM_PROBABILITY]
        return tuple([CallDoubt(call="", probability=c, part=NEW_WORD, least=c) for c in claims if c is not None])
    parts = next((reading.parts for reading in readings if reading.source == _CALL_PROBABILITY), ())
    if not parts and not _were_due(readings, before):
        return ()
    found = [
        _told(doubt_of(parts, number, key), number) or CallDoubt(call=key, probability=0.0, part=UNREAD_CALL, least=0.0)
        for number, key in enumerate(proposed(step))
    ]
    if len(step.tool_calls) > MAX_CALLS:
        whole = [r.value for r in readings if r.source == _SEQUENCE_PROBABILITY and r.value is not None]
        least = min([*whole, *[doubt.probability for doubt in found]])
        found.append(CallDoubt(call="", probability=least, part=WHOLE_CALL, least=least))
    return tuple(found)


def _told(doubt: CallDoubt | None, number: int) -> CallDoubt | None:
    """The doubt with its values for the first calls of a turn: a state is bounded."""
    return doubt if doubt is None or number < _MOST_WITH_VALUES else replace(doubt, occurs_as=(), candidates=())


def _were_due(readings: Sequence[Reading], before: Turns) -> bool:
    """True where a reading of the tokens failed, or is missing in a run in which calls were read before."""
    missing = [reading for reading in readings if reading.value is None and reading.source in _OF_TOKENS]
    if any(reading.reason not in NOT_DUE for reading in missing):
        return True
    told = [turn for turn in before if turn.doubts or turn.gone] if missing else ()
    return any(doubt.part != NEW_WORD for turn in told for doubt in (*turn.doubts, *turn.gone))


def doubt_about(turns: Turns, turn: TurnEvidence, call: ToolCall) -> CallDoubt | None:
    """The model's sureness of a call of this turn; of the least sure of all where nothing says which of them it is.

    A call that no kept turn lists by its arguments may also be one of those that are not told apart any more.
    """
    own = turn.doubts and (_of_call(turn.doubts, call) or turn.doubts)
    for one in turns:
        if one.doubts or one.gone:
            own = (*own, *_not_told_apart(turns, turn, call))
            break
    return min(own, key=_by_probability) if own else None


def _of_call(found: Sequence[CallDoubt], call: ToolCall, *, by_name: bool = False) -> tuple[CallDoubt, ...]:
    """The doubts that may be about this call; about one beyond those that are kept, too, unless it is told exactly."""
    if not found:
        return ()
    own = _matching(tuple([doubt.call for doubt in found]), call, by_name=by_name)
    exact = call.id and not by_name and "arguments" in call.model_fields_set
    return tuple([doubt for doubt in found if doubt.call in own or (own and not exact and not doubt.call)])


def _not_told_apart(turns: Turns, turn: TurnEvidence, call: ToolCall) -> tuple[CallDoubt, ...]:
    """The doubts about calls that turns no longer tell apart, or that this turn does not list, where it may be one.

    It is none that was made already while a kept turn has it, or one of its name, open: that one is meant.
    """
    astray = turn.step and not _having([turn], call, by_name=True)
    found, gone = [doubt for one in turns if one.more or astray for doubt in one.doubts], list(turns[-1].gone)
    if not found and not gone:
        return ()
    known = [one for one in turns if one.calls or one.called]
    if "arguments" in call.model_fields_set:
        digest = _digest(call)
        if any(_listings(one, call, digest) for one in _having(known, call)):
            return ()
    if call.id and _was_made(known, call):  # a retry publishes no answer
        found, gone = _of_calls(found), _of_calls(gone)
    if any(_matching(one.calls, call) for one in known):
        return _of_call(found, call) or (() if call.id else _beyond(found))
    return _of_call([*found, *gone], call, by_name=True) or _beyond([*found, *gone])


def _of_calls(found: Sequence[CallDoubt]) -> list[CallDoubt]:
    return [doubt for doubt in found if doubt.part != NEW_WORD]


def _beyond(found: Sequence[CallDoubt]) -> tuple[CallDoubt, ...]:
    """Return one entry standing for all calls beyond the kept ones."""
    return tuple([doubt for doubt in found if not doubt.call])


def _kept(found: Sequence[CallDoubt], answers: int = MAX_TURNS) -> tuple[CallDoubt, ...]:
    """The least doubt of each tool's calls; where they are too many, the surest ones are of no tool but of any.

    Behind them the latest doubts about answers, in their order.
    """
    least: dict[str, CallDoubt] = {}
    for doubt in sorted(_of_calls(found), key=_by_probability):
        name = doubt.call[doubt.call.rfind(" ") :]
        least.setdefault(name, replace(doubt, call=name, occurs_as=(), candidates=()))
    kept, words = list(least.values()), [one for one in found if one.part == NEW_WORD][-answers:]
    if len(kept) <= MAX_CALLS:
        return (*kept, *words)
    return (*kept[: MAX_CALLS - 1], replace(kept[MAX_CALLS - 1], call=""), *words)


def doubt_after(
    before: Turns, turns: Turns, turn: TurnEvidence, step: Step, readings: Sequence[Reading]
) -> tuple[Turns, CallDoubt | None]:
    """The turns after a step that makes a call, and the doubt about it: the least of its turn's and of its own."""
    if not step.tool_calls:
        return turns, None
    call = step.tool_calls[0]
    doubt, own = doubt_about(before, turn, call), doubts(step, readings, before)
    if not own:
        return turns, doubt
    key = _call_key(call)
    found = [*own, *([replace(doubt, call=key)] if doubt else [])]
    turns = tuple([_doubting(turn, found) for turn in turns])
    if turns:  # the step may be no turn's: what comes later is told by the latest one
        turns = (*turns[:-1], replace(turns[-1], gone=_kept([*turns[-1].gone, *found])))
    return turns, replace(min(found, key=_by_probability), call=key)


def _doubting(turn: TurnEvidence, found: Sequence[CallDoubt]) -> TurnEvidence:
    own = [doubt for doubt in found if doubt.call in turn.calls or doubt.call in turn.called]
    return replace(turn, doubts=_least_doubts([*turn.doubts, *own]))


def _least_doubts(found: Sequence[CallDoubt]) -> tuple[CallDoubt, ...]:
    return tuple(sorted(found, key=_by_probability)[:MAX_CALLS])


def is_proposed(turns: Turns, call: ToolCall, step_id: str | None, *, exactly: bool = False) -> bool:
    """Return False if no turn listed the call so: other arguments, or an unlisted name or id.

    True where nothing can be compared: no turn listed calls, or the call came without arguments and may be one of
    those that were listed. With `exactly` (another turn is not read yet) only for a call listed with its arguments and
    not made yet. One listing lets one call go: under an id that nobody listed it does not vouch for a second one.
    """
    place = _open_at(turns, call)
    if place is not None and "arguments" in call.__pydantic_fields_set__:
        digest = _digest(call)
        if digest and digest + _id_mark(call.id) in turns[place].listed:  # the usual case: below it is true as well
            return True
    listing = [turn for turn in turns if turn.calls or turn.called or turn.more]
    if exactly:
        listing = [turn for turn in listing if turn.more or _matching(turn.calls, call)]
    if "arguments" not in call.model_fields_set or not listing:
        return not exactly and (not listing or not call.id or _may_be_listed(listing, call))
    of_call = [turn for turn in _found(turns, call, step_id) or () if turn.listed] or listing
    digest = _digest(call)
    if not digest or any(_vouches(turn, call, digest) for turn in of_call):
        return bool(digest)
    again = not exactly and (not call.id or _was_made(listing, call))
    return again and any(_listings(turn, call, digest) for turn in of_call)


def _vouches(turn: TurnEvidence, call: ToolCall, digest: str) -> bool:
    """True where a listing of a call is left: one that is open under its id, or one more than calls were made."""
    more = len(turn.listed) > len(turn.called) or bool(_matching(turn.calls, call))
    return more and bool(_left(turn, call, digest))


def _left(turn: TurnEvidence, call: ToolCall, digest: str) -> list[str]:
    """The listings of a call that no call has used up."""
    return [entry for entry in _listings(turn, call, digest) if not entry.endswith(_MADE)]


def _listings(turn: TurnEvidence, call: ToolCall, digest: str) -> list[str]:
    """The listings of a call in a turn, made or not: of its own id, where the turn lists this id, else of any."""
    listed = turn.listed
    if call.id:
        mark = _id_mark(call.id)
        listed = tuple([entry for entry in listed if mark in entry]) or listed
    return [entry for entry in listed if digest and entry.startswith(digest)]


def _may_be_listed(listing: list[TurnEvidence], call: ToolCall) -> bool:
    """Return True if a turn listed the call's id, or keeps only part of its calls, or lists no id."""
    without_id = f" {_name_key(call.name)}"
    return any(turn.more or without_id in turn.calls or without_id in turn.called for turn in listing) or bool(
        _having(listing, call)
    )


def _was_made(turns: Sequence[TurnEvidence], call: ToolCall) -> bool:
    """Return True if a call of this id was made: asked about again, it is a retry, not a second call."""
    return any(_matching(turn.called, call) for turn in turns)


def with_turn(turns: Turns, turn: TurnEvidence) -> Turns:
    """The turns after a step of the model, whose own turn is the last."""
    if not turns:
        return (turn,)
    first, gone = turns[0], turns[-1].gone
    if gone:
        turns, turn = (*turns[:-1], replace(turns[-1], gone=())), replace(turn, gone=gone)
    if not turn.calls and not first.calls and not first.called and not first.more:
        return turns[1 - MAX_TURNS :] + (turn,)  # noqa: RUF005 (a third quicker, at every step)
    words = [doubt for t in turns if not (t.calls or t.called or t.more) for doubt in t.doubts]
    if words:  # an answer proposed none: what is left of its turn is its doubt
        gone = _kept([*gone, *words], MAX_TURNS - bool(turn.doubts and not turn.calls))
        turn = replace(turn, gone=gone)
    turns = tuple([t for t in turns if t.calls or t.called or t.more])
    if len(turns) < MAX_TURNS:
        return (*turns, turn)
    settled = next((index for index, t in enumerate(turns) if not t.open), None)
    if settled is None:
        return (_both(turns[0], turns[1]), *turns[2:], turn)
    lost = turns[settled].doubts
    if lost:
        turn = replace(turn, gone=_kept([*gone, *lost]))
    return (*turns[:settled], *turns[settled + 1 :], turn)


def were_read(turns: Turns) -> bool:
    """True where anything but the model's own word was read of a turn."""
    for turn in reversed(turns):  # noqa: SIM110 (at every step, and a generator takes three times as long)
        if turn.read:
            return True
    return False


def _both(first: TurnEvidence, second: TurnEvidence) -> TurnEvidence:
    """Two turns as one that no call is found by, and that may have proposed any."""
    return replace(least((first, second)), more=True, listed=(*first.listed, *second.listed)[-MAX_CALLS:])


def placed(turns: Turns, call: ToolCall | None, step_id: str | None) -> tuple[Turns, TurnEvidence]:
    """The turns after a tool step, and what was read of the turn that proposed its call: there it is open no more.

    Without any turn (a state that holds none) nothing speaks for the call.
    """
    if not turns:
        return (), TurnEvidence()
    place = None if call is None else _open_at(turns, call)
    if call is not None and place is not None:  # the usual case: below it comes to the same
        return (*turns[:place], _after_call(turns[place], call), *turns[place + 1 :]), turns[place]
    found = _found(turns, call, step_id)
    if call is not None:
        settled = [(turn, _after_call(turn, call)) for turn in found or () if turn.calls]
        if any(new is not old for old, new in settled):
            turns = tuple([next((new for old, new in settled if old is turn), turn) for turn in turns])
        else:
            turns = _after_unlisted(turns, call)
    if found is None:
        found = [*[turn for turn in turns[:-1] if turn.calls or turn.more], turns[-1]]
    return turns, found[0] if len(found) == 1 else least(found)


def _after_unlisted(turns: Turns, call: ToolCall) -> Turns:
    """The turns after a call that none has open under its id: it uses up a listing of the same arguments.

    The call under the id of that listing, if it comes, is then a second one. One that seems to be made already (by a
    retry, or by a call without an id that may have been this one) uses up a listing of its own id, and no other.
    """
    if "arguments" not in call.model_fields_set:
        return turns
    digest, again = _digest(call), bool(call.id) and _was_made(turns, call)
    for place, turn in enumerate(turns):
        left = [one for one in turn.listed if digest and one.startswith(digest) and not one.endswith(_MADE)]
        own = [one for one in left if call.id and _id_mark(call.id) in one]
        if own or (left and not again):
            called = turn.called if again else (*turn.called, _call_key(call))
            used = replace(turn, listed=_made(turn, (own or left)[0]), called=called)
            return (*turns[:place], used, *turns[place + 1 :])
    return turns


def _made(turn: TurnEvidence, listing: str) -> tuple[str, ...]:
    """The listings of a turn after the call of one of them was made."""
    place = turn.listed.index(listing)
    return (*turn.listed[:place], listing + _MADE, *turn.listed[place + 1 :])


def _after_call(turn: TurnEvidence, call: ToolCall) -> TurnEvidence:
    mine = _matching(turn.calls, call)
    if not mine:
        return turn
    draft = draft_of_turn(turn)
    if turn.listed and "arguments" in call.__pydantic_fields_set__:
        left = _left(turn, call, _digest(call))
        if left:
            draft.listed = _made(turn, left[0])
    draft.calls = tuple([known for known in turn.calls if known not in mine])
    draft.called = (*turn.called, *mine)
    draft.__class__ = TurnEvidence
    after: TurnEvidence = draft
    return after


def _matching(calls: tuple[str, ...], call: ToolCall, *, by_name: bool = False) -> list[str]:
    """Those of a turn's calls that may be this one: by id and name, or by its name where it has no id."""
    if call.id and not by_name:
        key = _call_key(call)
        return [known for known in calls if known == key]
    name = f" {_name_key(call.name)}"
    return [known for known in calls if known.endswith(name)]


def _found(turns: Turns, call: ToolCall | None, step_id: str | None) -> list[TurnEvidence] | None:
    """The turns that may have proposed a call, in their order; None where none is known to have."""
    step = text_key(step_id) if step_id else None
    of_step = [turn for turn in turns if turn.step == step] if step else []
    listed = [turn for turn in turns if turn.calls or turn.called] if call is not None else []
    if listed and call is not None and call.id:
        found = _having(listed, call)
        if found:
            return [turn for turn in found if turn.step == step] or found
    if of_step:
        named = [] if call is None or len(of_step) == 1 else _having(of_step, call, by_name=True)
        return named or [turn for turn in of_step if turn.open] or of_step[-1:]
    named = [] if call is None else _having(listed, call, by_name=True)
    return [turn for turn in turns if turn.more or turn in named] if named else None


def _open_at(turns: Turns, call: ToolCall) -> int | None:
    """The place of the one turn that lists a call of this id and name and waits for it; None of none or several."""
    if not call.id:
        return None
    key, found = _call_key(call), None
    for place, turn in enumerate(turns):
        if key in turn.calls:
            if found is not None:
                return None
            found = place
    return found


def _having(turns: list[TurnEvidence], call: ToolCall, *, by_name: bool = False) -> list[TurnEvidence]:
    """The turns with this call among their open ones; else those with it among the others."""
    found = [turn for turn in turns if turn.calls and _matching(turn.calls, call, by_name=by_name)]
    return found or [turn for turn in turns if turn.called and _matching(turn.called, call, by_name=by_name)]


def least(turns: Sequence[TurnEvidence]) -> TurnEvidence:
    """The least of what was read of several turns, part by part; the belief is that after the last, which recovers."""
    chances = [turn.p_success for turn in turns]
    lows = [turn.lowest for turn in turns if turn.lowest is not None]
    silent = any(not turn.read and not turn.word_alone for turn in turns)
    return TurnEvidence(
        read=all(turn.read for turn in turns),
        measured=any(t.measured for t in turns) and all(t.read or t.measured for t in turns),
        p_success=None if None in chances else min(c for c in chances if c is not None),
        worst_chance=least_of(*[turn.at_worst for turn in turns]),
        lowest=None if silent else min(lows, key=lambda low: low[1], default=None),
        stated=all(turn.stated for turn in turns),
        belief=turns[-1].belief,
        unaided=turns[-1].unaided,
        worst_belief=turns[-1].worst_belief,
        doubts=_least_doubts([doubt for turn in turns for doubt in turn.doubts]),
        scores=_least_scores([turn.scores for turn in turns]),
        worst_scores=_least_scores([turn.worst_scores or turn.scores for turn in turns]),
    )


def least_of(*found: float | None) -> float | None:
    """The least of the numbers that are there; None without any."""
    return min((value for value in found if value is not None), default=None)


def _least_scores(found: Sequence[Scores]) -> Scores:
    """Stream by stream the least; None where a turn lacks it, and nothing where a turn has none."""
    if not all(found):
        return ()
    return tuple([None if None in both else min(v for v in both if v is not None) for both in zip(*found, strict=True)])


def without_chances(turns: Turns) -> Turns:
    """The turns under another profile: what the old one made of their readings holds no more."""
    return tuple(
        [replace(t, measured=False, p_success=None, worst_chance=None, scores=(), worst_scores=()) for t in turns]
    )
