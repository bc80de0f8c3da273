"""A session's snapshot as it is stored: what another process needs to go on, checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import JsonValue, TypeAdapter

from grampus_uq.core.state import SessionState, state_from_json
from grampus_uq.errors import DataError
from grampus_uq.monitor.history import History
from grampus_uq.records.strict_json import parse_json
from grampus_uq.records.values import StepUncertainty

SNAPSHOT_VERSION: Final = 1
COMPACT_VERSION: Final = 2
STATE_TEXT: Final = "text"
"""The key of the state's JSON text in a compact snapshot, beside the session's id, which holds in the text's place."""
_OWN_ENTRIES: Final = frozenset(
    {"v", "profile", "made_with", "mixed", "state", "recent", "escalations", "structure", "origins", "turns", "unread"}
)
_STEPS = TypeAdapter(list[StepUncertainty])
_ESCALATIONS = TypeAdapter(list[dict[str, JsonValue]])
T = TypeVar("T")


def processor_entries(snapshot: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """The entries of a snapshot that belong to processors."""
    others = {} if snapshot is None else {name: snapshot[name] for name in snapshot if name not in _OWN_ENTRIES}
    return {name: entry for name, entry in others.items() if isinstance(entry, Mapping)}


def alarmed_in(snapshot: Mapping[str, Any] | None) -> bool:
    """True when the session of a snapshot had raised an alarm; raises DataError as `read_snapshot`."""
    return snapshot is not None and read_snapshot(snapshot)[0].alarmed


def read_snapshot(snapshot: Mapping[str, Any]) -> tuple[SessionState, History]:
    """Parse what a session wrote; raises DataError on another version or a broken field."""
    if not isinstance(snapshot, Mapping):
        raise DataError(f"must be a mapping, as `snapshot()` gave it. Got {snapshot!r:.40}.", field="snapshot")
    if snapshot.get("v") not in (SNAPSHOT_VERSION, COMPACT_VERSION):
        rule = f"is neither {SNAPSHOT_VERSION} nor {COMPACT_VERSION}"
        raise DataError(f"snapshot version {snapshot.get('v')!r:.40} {rule}", field="v")
    state = state_from_json(json.dumps(_state_values(snapshot)))
    steps = _list(_STEPS, snapshot, "recent", "step assessments")
    return state, History(steps, _list(_ESCALATIONS, snapshot, "escalations", "objects"))


def _state_values(snapshot: Mapping[str, Any]) -> Any:
    state: Any = snapshot.get("state")
    if snapshot["v"] == SNAPSHOT_VERSION:
        return state
    try:
        if set(state) != {STATE_TEXT, "session_id"}:
            raise ValueError("a compact one holds its text and the session's id")
        return {**parse_json(state[STATE_TEXT]), "session_id": state["session_id"]}
    except (TypeError, ValueError) as error:
        raise DataError(f"not a session state: {error}", field="state") from error


def _list(adapter: TypeAdapter[list[T]], snapshot: Mapping[str, Any], field: str, items: str) -> list[T]:
    try:
        return adapter.validate_json(json.dumps(snapshot.get(field)))
    except (TypeError, ValueError) as error:
        raise DataError(f"not a list of {items}: {error}", field=field) from error
