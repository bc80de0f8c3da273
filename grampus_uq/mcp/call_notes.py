"""What a session's stored state says of calls beside their records: texts, and none where its seal is broken."""

from __future__ import annotations

import hashlib
import unicodedata
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from grampus_uq.mcp.json_rpc import BESIDE
from grampus_uq.mcp.pins import Pin
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.runtime.run_state import AgentState

_MAX_RESULTS: Final = 4_000_000
_MOST_SENT: Final = 1_000
_UNANSWERED: Final = "s"
_FAILED: Final = "e"
_DIGEST: Final = 24  # characters that tell calls of one session apart


class CallNotes:
    """The notes in one state: what calls were asked under, results that are kept, calls that were sent."""

    def __init__(self, state: AgentState) -> None:
        self._state = state

    def _texts(self, name: str) -> dict[str, str]:
        found, sealed = self._state.metadata.get(name), self._state.sealed
        return {str(key): str(text) for key, text in found.items()} if isinstance(found, dict) and sealed else {}

    def ask(self, call_id: str, shown: tuple[Pin, ...]) -> None:
        """A call is asked about under these definitions of its tool."""
        open_calls = {one.proposed.id for one in self._state.turn}
        kept = {name: digests for name, digests in self._texts("asked").items() if name in open_calls}
        self._state.metadata["asked"] = kept | {call_id: " ".join(pin.digest for pin in shown)}

    def asked_under(self, call_id: str) -> list[str] | None:
        """The digests of the definitions that a call was asked under; None where it was not asked about."""
        found = self._texts("asked").get(call_id)
        return None if found is None else found.split()

    def keep_result(self, call_id: str, result: str) -> None:
        """Keep a result, as JSON, unless they hold more than 4 million characters together."""
        kept = self._texts("results")
        if len(result) + sum(map(len, kept.values())) <= _MAX_RESULTS:
            self._state.metadata["results"] = {**kept, call_id: result}

    def result(self, call_id: str) -> str | None:
        """A kept result."""
        return self._texts("results").get(call_id)

    def drop_result(self, call_id: str) -> str | None:
        """The same; it is kept no longer."""
        kept = self._texts("results")
        found = kept.pop(call_id, None)
        if found is not None:
            self._state.metadata["results"] = kept
        return found

    # -- calls that were sent to their server ---------------------------------------------------------------------

    def sent(self, call: ToolCall, now_s: float) -> str | None:
        """A call goes to its server; the last 1,000 that did are remembered. Returns what was known before."""
        return self._note(call, f"{now_s:.0f}{_UNANSWERED}")

    def answered(self, call: ToolCall, now_s: float, *, is_error: bool) -> None:
        """Its server answered it."""
        self._note(call, f"{now_s:.0f}{_FAILED if is_error else ''}")

    def unsent(self, call: ToolCall, before: str | None) -> None:
        """It did not go there after all: what was known before holds."""
        self._note(call, before)

    def _note(self, call: ToolCall, said: str | None) -> str | None:
        notes, same = self._sent(), likeness(call)
        before = notes.pop(same, None)
        last = dict([*notes.items()][1 - _MOST_SENT :])
        self._state.metadata["sent"] = last if said is None else {**last, same: said}
        return before

    def _sent(self) -> dict[str, str]:
        """Believed without a seal, too: forgetting is what would let a call go twice."""
        found = self._state.metadata.get("sent")
        return {str(key): str(text) for key, text in found.items()} if isinstance(found, dict) else {}

    def sent_before(self, call: ToolCall) -> str | None:
        """When the same call last went to its server, and what is known of its answer; None where it did not."""
        said = self._sent().get(likeness(call))
        if said is None:
            return None
        what = "its answer is not known" if said.endswith(_UNANSWERED) else "answered"
        with suppress(ValueError, OverflowError, OSError):  # whoever writes the store writes what he likes
            time = datetime.fromtimestamp(float(said.rstrip(_UNANSWERED + _FAILED)), UTC)
            return f"at {time:%Y-%m-%d %H:%M:%S} UTC, and {what}{' with an error' if said.endswith(_FAILED) else ''}"
        return f"before, and {what}"

    def remember(self, old: AgentState) -> None:
        """What went to servers in the session that this one replaces."""
        if "sent" in old.metadata:
            self._state.metadata["sent"] = old.metadata["sent"]


def likeness(call: ToolCall) -> str:
    """The same for calls that a server may take for one: of a tool, with arguments that are equal as JSON is read.

    1 and 1.0 are one number to JSON Schema and to many servers, and a letter with its accent is one or two characters.
    What else a call carries does not make it another one.
    """
    arguments = call.arguments["arguments"] if BESIDE in call.arguments else call.arguments
    text = f"{call.name}({canonical_json(_read(arguments))})"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


def _read(value: Any) -> Any:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {unicodedata.normalize("NFC", key): _read(one) for key, one in value.items()}
    return [_read(one) for one in value] if isinstance(value, list) else value
