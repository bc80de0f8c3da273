"""The `requestState` of an `input_required` answer (MCP 2026-07-28): which request a client was told of, authenticated.

A state is no authority. It names the request that a held call waits under; whether that call may run, and whether it
ran, is in the store alone. So presenting a valid state again only asks the same question again.

    <version>.<request>.<round>.<expiry>.<MAC>      digits and letters of ASCII only, 200 at most

The MAC is over all of it and over what the state is bound to: agent, session, the call's digest, and the rules that it
is asked under. None of these is in the text, so that a reader learns only the request's name and its expiry.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from grampus_uq.errors import ApprovalError, ConfigurationError
from grampus_uq.gate.call import Terms
from grampus_uq.gate.seal import Seal, session_place
from grampus_uq.records.values import canonical_json

_MAX_LENGTH = 200
_STATE = re.compile(r"(g1)\.([0-9a-z]{1,64})\.([1-9][0-9]{0,5}|0)\.([1-9][0-9]{0,15})\.([0-9a-f]{64})", re.ASCII)
_REQUEST = re.compile(r"[0-9a-z]{1,64}", re.ASCII)


class RequestStateError(ApprovalError):
    """A state that is not taken. The text is the same for every reason; `detail` is for the log, not for the client."""

    def __init__(self, detail: str) -> None:
        super().__init__("The requestState is not valid or has expired. Send the call again without it.")
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestState:
    """Content of an authentic state: the request, and how often the client was told of it before (from 0)."""

    request_id: str
    round: int
    expires_s: float


class RequestStates:
    """Issues and reads states under one key, each good for `lifetime_s` seconds by the clock that the caller uses.

    Each is bound to one call, by its digest, of one session under one set of rules: its `terms`. Proxies that share
    sessions share the key; without it, the store finds the request by the call.
    """

    def __init__(self, seal: Seal, *, lifetime_s: float = 3_600.0) -> None:
        if not (math.isfinite(lifetime_s) and lifetime_s > 0.0):
            raise ConfigurationError.of("lifetime_s", "RequestStates", "above 0 seconds and finite", lifetime_s)
        self._seal = seal
        self._lifetime_s = lifetime_s

    def issue(self, terms: Terms, digest: str, request_id: str, *, now_s: float, round: int = 0) -> str:  # noqa: A002 (the protocol's word)
        """A state for a request on the bound call. Raises ConfigurationError for an odd request id or round."""
        if not _REQUEST.fullmatch(request_id):
            raise ConfigurationError.of("request_id", "RequestStates.issue", "1 to 64 of 0-9 and a-z", request_id)
        if not 0 <= round < 1_000_000:
            raise ConfigurationError.of("round", "RequestStates.issue", "from 0 to 999999", round)
        head = f"g1.{request_id}.{round}.{math.ceil((now_s + self._lifetime_s) * 1_000)}"
        return f"{head}.{self._seal.mac(_place(terms), _bound(terms, digest, head))}"

    def read(self, text: object, terms: Terms, digest: str, *, now_s: float) -> RequestState:
        """The content of a state, if it was issued under this key for exactly this call and has not expired.

        The text is a stranger's: it is bounded before it is read, parsed in linear time, and compared in constant time.
        Nothing in it is looked at before its MAC holds. Raises RequestStateError.
        """
        if not isinstance(text, str) or len(text) > _MAX_LENGTH:
            raise RequestStateError("no text of at most 200 characters")
        found = _STATE.fullmatch(text)
        if found is None:
            raise RequestStateError("malformed")
        head, _, mac = text.rpartition(".")
        if not self._seal.holds(_place(terms), _bound(terms, digest, head), mac):
            raise RequestStateError("forged, altered, or of another key, session, call or policy")
        expires_s = int(found[4]) / 1_000
        if not now_s < expires_s:
            raise RequestStateError("expired")
        return RequestState(request_id=found[2], round=int(found[3]), expires_s=expires_s)


def _place(terms: Terms) -> str:
    """Apart from every place of a session's state, which has one slash."""
    return f"mcp/requestState/{session_place(terms.agent_id, terms.session_id)}"


def _bound(terms: Terms, digest: str, head: str) -> str:
    return canonical_json([head, digest, terms.rules])
