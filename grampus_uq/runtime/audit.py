"""A hash-chained audit of one session: each entry carries the hash of the one before, so a changed past shows.

The store chains an entry to the one before as it writes it, so any number of calls and workers may append at once. An
entry is written before a call is executed and after it; with the first and without the second the call's outcome is
unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grampus_uq.errors import DataError
from grampus_uq.gate.call import CallRecord
from grampus_uq.gate.starts import CHAINED, PERMITTED
from grampus_uq.records.strict_json import json_object
from grampus_uq.records.values import canonical_json, sha256_of
from grampus_uq.runtime.ledger import audit_of
from grampus_uq.runtime.store import GENESIS, SessionStore, link

_OF_THE_STORE = ("v", "seq", "time_s", "previous", "hash")


def call_facts(run_id: str, record: CallRecord) -> dict[str, Any]:
    """The facts of a call for the audit: the digest of its arguments, and who cleared it."""
    return {
        "run_id": run_id,
        "step_id": record.step_id,
        "tool": record.call.name,
        "call_id": record.call.id,
        "digest": record.call.digest(),
        "effect": record.effect.value,
        "idempotency_key": record.key(run_id),
        "cleared_by": record.cleared_by,
        "decisions": [decision.request_id for decision in record.decisions],
    }


def started_facts(run_id: str, record: CallRecord, started_by: str | None = None) -> dict[str, Any]:
    """`call_facts` of a call that starts, with who started the run, and the session of a sub-agent that goes on.

    With its arguments where a grant, a permit or a look let it run: nobody was shown that call, so no decision keeps
    them, and without them nothing shows that it was covered.
    """
    lifted = record.grant is not None or (record.cleared_by or "").startswith((PERMITTED, CHAINED))
    more: dict[str, Any] = {"arguments": record.call.arguments} if lifted and not record.decisions else {}
    known = {"child_session": record.child_session, "started_by": started_by}
    return call_facts(run_id, record) | more | {name: value for name, value in known.items() if value is not None}


class AuditLog:
    """One session's audit."""

    def __init__(self, store: SessionStore, agent_id: str, session_id: str) -> None:
        self._store = store
        self._agent_id, self._session_id = agent_id, session_id

    async def entries(self) -> list[dict[str, Any]]:
        """The verified audit; raises DataError at the first entry that does not fit the chain, or is none."""
        log = audit_of(self._agent_id, self._session_id, []).log
        entries = [json_object(body, line=number) for number, body in enumerate(await self._store.read(log), 1)]
        verify_audit(entries)
        for index, entry in enumerate(entries):
            if not (isinstance(entry.get("what"), str) and isinstance(entry.get("data"), dict)):
                raise DataError(f"entry {index} does not say what happened", line=index + 1, field="what")
        return entries


def _hash(entry: Mapping[str, Any], index: int) -> str:
    if entry.get("v") == 2:
        content = {key: value for key, value in entry.items() if key not in _OF_THE_STORE}
        time_s = entry.get("time_s")
        stamp = f"{time_s:.6f}" if isinstance(time_s, int | float) else ""
        return link(str(entry.get("previous")), index, stamp, canonical_json(content))
    content = {key: value for key, value in entry.items() if key != "hash"}  # as the first schema wrote it
    return sha256_of(canonical_json(content))


def verify_audit(entries: Sequence[Mapping[str, Any]]) -> None:
    """Raise DataError at the first entry whose position, predecessor or content does not match its hash."""
    previous = GENESIS
    for index, entry in enumerate(entries):
        if entry.get("seq") != index:
            raise DataError(f"entry {index} says it is number {entry.get('seq')!r:.20}", line=index + 1, field="seq")
        if entry.get("previous") != previous:
            raise DataError(f"entry {index} does not follow the one before it", line=index + 1, field="previous")
        if entry.get("hash") != _hash(entry, index):
            raise DataError(f"entry {index} was changed after it was written", line=index + 1, field="hash")
        previous = str(entry["hash"])
