"""The pins of an agent's tools in the store: the definition under which a tool was first let through, and since."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

from grampus_uq.errors import SessionConflictError, StoreError
from grampus_uq.gate.call import Doubt
from grampus_uq.mcp.pins import Pin, differences
from grampus_uq.records.vocabulary import UncertaintyLevel
from grampus_uq.runtime.ledger import session_key
from grampus_uq.runtime.store import SessionStore

_KIND: Final = "mcp_pin"
UNLISTED: Final = Doubt(
    level=UncertaintyLevel.HIGH,
    rule="tool_not_listed",
    reason="no list of this session names this tool, or the proxy forgot it: what its server says of it is not known",
)


class ToolPins:
    """What was let through of each tool, by its definition. Trusted on first use; a change is asked about once."""

    def __init__(self, store: SessionStore, agent_id: str) -> None:
        self._store, self._agent_id = store, agent_id
        self._known: dict[str, tuple[Pin | None, int]] = {}

    async def _stored(self, name: str) -> tuple[Pin | None, int]:
        if name not in self._known:
            found = await self._store.get(_KIND, session_key(self._agent_id, name))
            pin = None
            if found is not None:
                try:
                    pin = Pin(**json.loads(found.body))
                except (TypeError, ValueError):
                    pin = Pin(name=name, digest="unreadable", definition=None)
            self._known[name] = pin, 0 if found is None else found.version
        return self._known[name]

    async def doubt(self, now: Pin | None) -> Doubt | None:
        """Why a call of this tool waits: its definition is another one than before; None where it is the same."""
        if now is None:
            return None
        before = (await self._stored(now.name))[0]
        if before is None or before.digest == now.digest:
            return None
        changes = "; ".join(differences(before, now))
        reason = f"the definition of this tool changed since a call of it was let through: {changes}"
        return Doubt(level=UncertaintyLevel.HIGH, rule="tool_changed", reason=reason)

    async def keep(self, now: Pin | None) -> None:
        """Pin the definition under which a call is let through now."""
        if now is None:
            return
        before, version = await self._stored(now.name)
        if before is not None and before.digest == now.digest:
            return
        try:
            body = json.dumps(asdict(now))
            self._known[now.name] = (
                now,
                await self._store.put(_KIND, session_key(self._agent_id, now.name), body, expected=version),
            )
        except SessionConflictError:
            self._known.pop(now.name, None)  # another session of this agent was first: read again at the next call
        except StoreError:
            return
