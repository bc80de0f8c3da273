"""The pins of an agent's tools in the store: the definition under which a tool was first cleared, and since."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from grampus_uq.errors import DataError, SessionConflictError, StoreError
from grampus_uq.gate.call import Doubt
from grampus_uq.integrations.mcp.pins import Pin, differences
from grampus_uq.records.strict_json import json_object
from grampus_uq.records.vocabulary import UncertaintyLevel
from grampus_uq.runtime.ledger import session_key
from grampus_uq.runtime.store import SessionStore
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates

_KIND: Final = "mcp_pin"
UNSHOWN: Final = "not all of it is shown here"
"""Words in the reason of a request that does not hold all that changed."""
UNLISTED: Final = Doubt(
    level=UncertaintyLevel.HIGH,
    rule="tool_not_listed",
    reason="no list of this session names this tool, or the proxy forgot it: what its server says of it is not known",
)


def changed(since: str, before: Pin, others: Sequence[Pin]) -> Doubt:
    """The doubt about a call whose tool has had other definitions than before."""
    changes = [differences(before, one) for one in others]
    what = "; at another time ".join(one.text for one in changes)
    shown = replace_lone_surrogates(what)
    unshown = "" if shown == what and all(one.whole for one in changes) else f" ({UNSHOWN})"
    reason = f"the definition of this tool changed {since}{unshown}: {shown}"
    return Doubt(level=UncertaintyLevel.HIGH, rule="tool_changed", reason=reason)


class ToolPins:
    """The definitions under which each tool was cleared. The first is trusted; a change is asked about once."""

    def __init__(self, store: SessionStore, agent_id: str) -> None:
        self._store, self._agent_id = store, agent_id
        self._known: dict[str, tuple[Pin | None, int]] = {}

    async def _stored(self, name: str) -> tuple[Pin | None, int]:
        """The pin in the store now, which other sessions write, too; without the store the one that was read last."""
        try:
            found = await self._store.get(_KIND, session_key(self._agent_id, name))
        except StoreError:
            if name in self._known:
                return self._known[name]
            raise
        pin = None if found is None else _read(name, found.body)
        self._known[name] = pin, 0 if found is None else found.version
        return self._known[name]

    async def doubt(self, shown: Sequence[Pin]) -> Doubt | None:
        """The doubt about a call of this tool, if a definition that was shown is another one than before."""
        if not shown:
            return None
        pin = (await self._stored(shown[-1].name))[0]
        before = pin or shown[0]
        others = [one for one in shown if one.digest != before.digest]
        since = "since it was first listed" if pin is None else "since a call of it was cleared"
        return changed(since, before, others) if others else None

    async def keep(self, shown: Sequence[Pin]) -> None:
        """Pin the latest of the definitions by which a call was judged that is cleared now."""
        if not shown:
            return
        now = shown[-1]
        with contextlib.suppress(SessionConflictError, StoreError):  # another session was first, and its pin stays
            before, version = self._known.get(now.name) or await self._stored(now.name)
            if before is None or before.digest != now.digest:
                key, body = session_key(self._agent_id, now.name), json.dumps(asdict(now))
                self._known[now.name] = now, await self._store.put(_KIND, key, body, expected=version)


def _read(name: str, body: str) -> Pin:
    """The pin in a stored text; for one that cannot be read a pin that no definition has."""
    try:
        return Pin(**json_object(body))
    except (DataError, TypeError):
        return Pin(name=name, digest="unreadable", definition=None)
