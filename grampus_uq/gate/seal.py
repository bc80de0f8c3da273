"""Authenticates state that leaves the process or that others can write: a MAC over all of it, under the host's key.

A seal hides nothing, and it does not tell an old state of a session from its newest.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.values import canonical_json

SEAL = "seal"
"""The key under which sealed values carry their seal."""


@functools.lru_cache(maxsize=1_024)
def session_place(agent_id: str, session_id: str, *, errors: str = "surrogatepass") -> str:
    """The place that a session's seal is bound to; `errors="strict"` raises UnicodeEncodeError on half a character."""
    return "/".join(quote(text, safe="", errors=errors) for text in (agent_id, session_id))


class Seal:
    """HMAC-SHA256 under a key of 16 bytes or more, which writers of the state must not have; hosts may share it.

    Who reads it can forge a state, but no decision of an approver who signs with a key of their own.
    """

    def __init__(self, key: bytes | str) -> None:
        key = key.encode() if isinstance(key, str) else key
        if len(key) < 16:
            raise ConfigurationError.of("key", "Seal", "at least 16 bytes long", f"{len(key)} bytes")
        self._key = hmac.new(key, b"grampus_uq seal", hashlib.sha256).digest()  # never the MAC of a decision as well

    @classmethod
    def of_this_process(cls) -> Seal:
        """A seal whose key exists in this process only: its own state holds, state of another process does not."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_environment(cls, variable: str = "GRAMPUS_UQ_SEAL_KEY") -> Seal | None:
        """The seal of the key in an environment variable, or None when it is not set."""
        key = os.environ.get(variable)
        return cls(key) if key else None

    def __repr__(self) -> str:
        return "Seal(key=…)"

    def mac(self, place: str, text: str) -> str:
        """The MAC of a text that belongs to one place (a session's key), in hex."""
        head = place.encode("utf-8", "surrogatepass")
        body = text.encode("utf-8", "surrogatepass")
        return hmac.new(self._key, b"%d:%b%b" % (len(head), head, body), hashlib.sha256).hexdigest()

    def holds(self, place: str, text: str, mac: object) -> bool:
        """True when the MAC is this text's, at this place."""
        return isinstance(mac, str) and hmac.compare_digest(
            self.mac(place, text).encode(), mac.encode("utf-8", "replace")
        )

    def sealed(self, place: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """JSON values with a seal over all of them, replacing an earlier seal."""
        content = {key: value for key, value in values.items() if key != SEAL}
        return {**content, SEAL: self.mac(place, canonical_json(content))}

    def authentic(self, place: str, values: Mapping[str, Any]) -> bool:
        """True when JSON values are exactly those that were sealed for this place."""
        content = {key: value for key, value in values.items() if key != SEAL}
        try:
            return self.holds(place, canonical_json(content), values.get(SEAL))
        except (TypeError, ValueError, RecursionError):  # not JSON: nothing that was ever sealed
            return False
