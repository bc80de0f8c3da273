"""What a session's stored state says of calls beside their records: texts, and none where its seal is broken."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from grampus_uq.mcp.pins import Pin
from grampus_uq.records.values import ToolCall
from grampus_uq.runtime.run_state import AgentState

_MAX_RESULTS: Final = 4_000_000
_MOST_ANSWERED: Final = 1_000
_FAILED: Final = "e"
_DIGEST: Final = 24  # characters that tell calls of one session apart


class CallNotes:
    """The notes in one state: what calls were asked under, results that are kept, calls that were answered."""

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

    def answered(self, call: ToolCall, now_s: float, *, is_error: bool) -> None:
        """The server answered a call; of those that it did, the last 1,000 are remembered."""
        before, digest = self._texts("answered"), call.digest()[:_DIGEST]
        before.pop(digest, None)
        said = f"{now_s:.0f}{_FAILED if is_error else ''}"
        self._state.metadata["answered"] = {**dict([*before.items()][1 - _MOST_ANSWERED :]), digest: said}

    def answered_at(self, call: ToolCall) -> str | None:
        """When the same call (tool, arguments) was last answered in this session; None where that is not known."""
        said = self._texts("answered").get(call.digest()[:_DIGEST])
        if said is None:
            return None
        time = datetime.fromtimestamp(float(said.removesuffix(_FAILED)), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"at {time}, and answered{' with an error' if said.endswith(_FAILED) else ''}"
