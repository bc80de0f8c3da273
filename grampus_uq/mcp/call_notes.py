"""What a session's stored state says of calls beside their records: texts, and none where its seal is broken."""

from __future__ import annotations

import hashlib
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What was noted as a call went to its server, and what had been noted of the same one before."""

    likeness: str
    said: str
    before: str | None


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

    def sent(self, same: str, now_s: float) -> Sent:
        """A call of this likeness goes to its server. Those that are not answered push out none that were."""
        said = f"{now_s:.0f}{_UNANSWERED}"
        return Sent(likeness=same, said=said, before=self._note(same, said, most=3 * _MOST_SENT))

    def answered(self, same: str, now_s: float, *, is_error: bool) -> None:
        """Its server answered it; the last 1,000 are remembered."""
        self._note(same, f"{now_s:.0f}{_FAILED if is_error else ''}", most=_MOST_SENT)

    def unsent(self, sent: Sent) -> None:
        """It did not go there after all: what was known before holds, unless more is known since."""
        if self._sent().get(sent.likeness) == sent.said:
            self._note(sent.likeness, sent.before, most=3 * _MOST_SENT)

    def _note(self, same: str, said: str | None, *, most: int) -> str | None:
        notes = self._sent()
        before = notes.pop(same, None)
        last = dict([*notes.items()][1 - most :])
        self._state.metadata["sent"] = last if said is None else {**last, same: said}
        return before

    def _sent(self) -> dict[str, str]:
        """Believed without a seal, too: forgetting is what would let a call go twice."""
        found = self._state.metadata.get("sent")
        return {str(key): str(text) for key, text in found.items()} if isinstance(found, dict) else {}

    def sent_before(self, same: str) -> str | None:
        """When a call of this likeness last went to its server, and what is known of its answer; None if none did."""
        said = self._sent().get(same)
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
    arguments = call.arguments.get("arguments") if BESIDE in call.arguments else call.arguments
    text = f"{call.name}({canonical_json(_read(arguments))})"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


def _read(value: Any) -> Any:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        found = {unicodedata.normalize("NFC", key): _read(one) for key, one in value.items()}
        return found if len(found) == len(value) else {key: _read(one) for key, one in value.items()}
    return [_read(one) for one in value] if isinstance(value, list) else value
