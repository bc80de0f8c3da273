"""Token log-probabilities, in every form that comes with an answer.

Read are OpenAI's `{"content": [{"token", "logprob", "top_logprobs"}]}` and anything that holds it under `logprobs`
(a choice, a completion, LangChain's response metadata, pydantic-ai's provider details); the list alone, as the
responses API has it; the legacy `{"tokens", "token_logprobs", "top_logprobs"}`; Gemini's `{"chosen_candidates",
"top_candidates"}`; and our own records. One token that breaks the rule makes the whole stream missing, with the reason:
a mean over the rest would be of another answer. So does a 0 that nobody computed (`_refuse_uncomputed`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any, Final

from grampus_uq.records.building import builder
from grampus_uq.records.values import TokenLogprob
from grampus_uq.wire.fields import field, fields_of, kind_of
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates

_ROUNDING: Final = 1e-3
"""Log-probabilities are computed in floating point: one this little above 0 is read as 0."""
_MOST_TOKENS: Final = 1_000_000
_MOST_WRAPPERS: Final = 4
_FEW: Final = 3
_SHORT: Final = 48
"""Tokens, and characters in them, that may all be certain where nothing is told of others."""
_NEVER: Final = -1000.0
_CERTAIN_TOO: Final = -5.0
"""Bounds of an alternative that tells how likely a token is that has 0: servers write -9999 for none."""
_LIKELY: Final = math.log(0.5)
_MOST_OF_TWO: Final = 1.05
"""Above this the probabilities of a likely token and of an alternative contradict each other, whatever was rounded."""
_ROUNDED: Final = 0.01
_FINEST: Final = -1e-8
"""Single floats have no log-probability between this and 0: one that is nearer is 0, in other words."""
BLANKS: Final = " \t\r\n\f\v\u00a0\u200b\ufeff\u2581\u0120\u010a\u0109"
"""Blanks, also as tokenisers write them: ▁, Ġ, Ċ, ĉ."""

_new_token = builder(TokenLogprob)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStream:
    """The tokens of an answer; None where there are none, and then the `problem`, unless none were given."""

    tokens: tuple[TokenLogprob, ...] | None = None
    problem: str | None = None


NO_TOKENS: Final = TokenStream()


class _BrokenError(Exception):
    """The fault of a stream."""


def read_logprobs(value: Any) -> TokenStream:
    """Read the log-probabilities in a value of any of the forms above; None and an empty list are none. Never raises.

    Values are natural log-probabilities, at most 0 (rounding above it is clipped). An alternative of probability 0 is
    left out.

    >>> read_logprobs({"content": [{"token": "a", "logprob": None}]})
    TokenStream(tokens=None, problem='token 0: its logprob is not a log-probability: None')
    """
    return joined_logprobs([value])


def joined_logprobs(values: Iterable[Any]) -> TokenStream:
    """The log-probabilities of the parts of one answer, in order; missing where one part's cannot be read."""
    try:
        entries = [entry for value in values for entry in _entries(value)]
        tokens = tuple([_token(entry, place) for place, entry in enumerate(entries)])
        if tokens and not isinstance(entries[0], TokenLogprob):
            _refuse_uncomputed(entries, tokens)
    except _BrokenError as error:
        return TokenStream(problem=str(error))
    except Exception as error:  # noqa: BLE001 (somebody else's object)
        return TokenStream(problem=f"cannot be read ({type(error).__name__})")
    return TokenStream(tokens=tokens) if tokens else NO_TOKENS


def _entries(value: Any) -> Sequence[Any]:
    for _ in range(_MOST_WRAPPERS):
        if isinstance(value, list | tuple):
            break
        if value is None:
            return ()
        legacy, chosen = field(value, "token_logprobs"), field(value, "chosen_candidates", "chosenCandidates")
        if legacy is not None or chosen is not None:
            value = _legacy(value, legacy) if legacy is not None else _candidates(value, chosen)
            break
        choices = field(value, "choices")
        inner = choices[0] if isinstance(choices, list | tuple) and choices else field(value, "logprobs", "content")
        if inner is None:
            known = fields_of(value) or ()
            if field(value, "choices") is not None or "content" in known or "logprobs" in known:
                return ()  # a completion that was asked without log-probabilities
            if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
                value = list(islice(value, _MOST_TOKENS + 1))
                break
            raise _BrokenError(f"are not log-probabilities: {kind_of(value)}")
        value = inner
    if not isinstance(value, list | tuple):
        raise _BrokenError(f"are not a list of tokens: {kind_of(value)}")
    if len(value) > _MOST_TOKENS:
        raise _BrokenError(f"are more than {_MOST_TOKENS} tokens")
    return value


def _legacy(value: Any, logprobs: Any) -> Sequence[Any]:
    names, tops = field(value, "tokens"), _listed(field(value, "top_logprobs"))
    if not isinstance(names, list | tuple) or not isinstance(logprobs, list | tuple) or len(names) != len(logprobs):
        raise _BrokenError("have different numbers of tokens and log-probabilities")
    return [
        {"token": name, "logprob": p, "top_logprobs": [{"token": n, "logprob": q} for n, q in (top or {}).items()]}
        for name, p, top in zip(names, logprobs, chain(tops, repeat(None)), strict=False)
    ]


def _candidates(value: Any, chosen: Any) -> Any:
    if not isinstance(chosen, list | tuple):
        return chosen
    tops = _listed(field(value, "top_candidates", "topCandidates"))
    return [
        {**_candidate(one), "top_logprobs": [_candidate(other) for other in _listed(field(top, "candidates"))]}
        for one, top in zip(chosen, chain(tops, repeat(None)), strict=False)
    ]


def _candidate(value: Any) -> dict[str, Any]:
    return {"token": field(value, "token"), "logprob": field(value, "log_probability", "logProbability")}


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _token(entry: Any, place: int) -> TokenLogprob:
    if isinstance(entry, TokenLogprob):
        return _checked(entry, place)
    fields = fields_of(entry) or {name: field(entry, name) for name in ("token", "logprob", "top_logprobs")}
    name, logprob = fields.get("token"), _log_probability(fields.get("logprob"))
    if not isinstance(name, str):
        raise _BrokenError(f"token {place}: its token is not text: {kind_of(name)}")
    if logprob is None or logprob == -math.inf:
        raise _BrokenError(f"token {place}: its logprob is not a log-probability: {kind_of(fields.get('logprob'))}")
    alternatives = fields.get("top_logprobs") or ()
    if not isinstance(alternatives, list | tuple):
        raise _BrokenError(f"token {place}: its top_logprobs are not a list: {kind_of(alternatives)}")
    top: list[tuple[str, float]] = []
    plain: Any = None  # a type whose objects keep their fields in a dict, as the one before did: five times of six
    for alternative in alternatives:
        kind = type(alternative)
        if kind is dict:
            known = alternative
        elif kind is plain:
            known = alternative.__dict__
        else:
            known = fields_of(alternative) or {}
            plain = kind if known is getattr(alternative, "__dict__", None) else None
        other, value = known.get("token"), known.get("logprob")
        if type(value) is not float or not -math.inf < value <= 0.0:
            number = _log_probability(value)
            if number is None:
                raise _BrokenError(
                    f"token {place}: an alternative's logprob is not a log-probability: {kind_of(value)}"
                )
            if number == -math.inf:
                continue
            value = number
        if not isinstance(other, str):
            raise _BrokenError(f"token {place}: an alternative's token is not text: {kind_of(other)}")
        top.append((other if other.isascii() else replace_lone_surrogates(other), value))
    return _new_token(token=replace_lone_surrogates(name), logprob=logprob, top=tuple(top))


def _checked(token: TokenLogprob, place: int) -> TokenLogprob:
    """Return our own record, which is unchecked when built, if it is valid."""
    logprob, top = token.logprob, token.top
    if type(logprob) is float and -math.inf < logprob <= 0.0 and type(token.token) is str and type(top) is tuple:
        for alternative in top:
            if type(alternative) is not tuple or len(alternative) != 2:
                break
            name, value = alternative
            if type(value) is not float or not -math.inf < value <= 0.0 or type(name) is not str:
                break
        else:
            return token
    others = [{"token": name, "logprob": value} for name, value in top]
    return _token({"token": token.token, "logprob": logprob, "top_logprobs": others}, place)


def _refuse_uncomputed(entries: Sequence[Any], tokens: Sequence[TokenLogprob]) -> None:
    """Refuse tokens that are certain because nobody computed how likely they are.

    For tokens that another model, or the text before, has proposed (speculative decoding), servers write 0 and list no
    alternative, or one that is as certain; others write 0 for every token, or every one behind the first. A likely
    token and an alternative are together no more than certain.
    """
    certain: list[int] = []
    problem = "its logprob was not computed:"
    for place, token in enumerate(tokens):
        if token.logprob < _LIKELY:
            continue
        top = [(name, logprob) for name, logprob in token.top if name != token.token]
        others = [logprob for name, logprob in top if logprob < _LIKELY or not _is_itself(token, name, logprob)]
        if math.exp(token.logprob) + math.exp(max(others, default=_NEVER)) > _MOST_OF_TWO:
            raise _BrokenError(f"token {place}: {problem} {token.logprob:.3g} beside a likely alternative")
        if token.logprob > _FINEST and not any(_NEVER < logprob < _CERTAIN_TOO for logprob in others):
            certain.append(place)
    bare = [place for place in certain if not field(entries[place], "top_logprobs")]
    many = len(tokens) > _FEW or sum(len(token.token) for token in tokens) > _SHORT
    nothing_told = many and certain and len(certain) + (certain[0] > 0) == len(tokens)
    if nothing_told or (bare and any(field(entry, "top_logprobs") for entry in entries)):
        raise _BrokenError(f"token {(bare or certain)[0]}: {problem} 0 without an alternative")


def _is_itself(token: TokenLogprob, name: str, logprob: float) -> bool:
    """True for an alternative that is the token: listed or written without its text, in other blanks, rounded twice."""
    same = logprob == token.logprob and (logprob < 0.0 or not token.token or not name or "\ufffd" in name)
    return same or (abs(logprob - token.logprob) < _ROUNDED and name.strip(BLANKS) == token.token.strip(BLANKS))


def _log_probability(value: Any) -> float | None:
    """A natural log-probability in [-inf, 0], or None when it is none; rounding above 0 is clipped to 0."""
    if type(value) is not float:
        if isinstance(value, bool | str) or not hasattr(type(value), "__float__"):
            return None
        if type(value).__name__.startswith("bool"):  # numpy's
            return None
        try:
            value = float(value)
        except (OverflowError, TypeError, ValueError):
            return None
    return min(value, 0.0) if value <= _ROUNDING else None  # also refuses NaN
