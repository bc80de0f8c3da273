"""Delegations in a session store: made, revoked, listed; and which of those behind some decisions stand.

One document each, under its id, with its deputy as label. What stands there is what counts: one that was revoked, or is
not there, lets nobody decide, whoever signed it. A revoked one stays as it is until its end: its id is not used again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grampus_uq.errors import ApprovalError, SessionConflictError
from grampus_uq.gate.delegations import Delegation, Stands
from grampus_uq.gate.requests import ApprovalDecision
from grampus_uq.runtime.store import Document, Put, SessionStore, documents, find_record, pages, try_write

DELEGATION: Final = "delegation"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDelegation:
    """A delegation, its signature unchecked, as it stands at `now_s` by the store's clock; `revoked`: by whom.

    `made_s` is when it was stored; None where an earlier release revoked it.
    """

    delegation: Delegation
    made_s: float | None
    revoked: str | None
    now_s: float
    version: int

    @property
    def why_not(self) -> str | None:
        """The reason for not counting it now, or None where it stands."""
        return "was revoked" if self.revoked is not None else self.delegation.over(self.now_s)


async def delegate(store: SessionStore, delegation: Delegation) -> None:
    """Store a signed delegation; raises ApprovalError where its id is known."""
    try:
        await store.write(_put(delegation))
    except SessionConflictError as error:
        raise ApprovalError("This delegation was made already.") from error


async def revoke_delegation(store: SessionStore, delegation_id: str, by: str) -> StoredDelegation:
    """End a delegation now; decisions that no runner has taken up yet lapse. Raises DataError for an unknown id."""
    while (found := await find_delegation(store, delegation_id)).revoked is None:
        put = _put(found.delegation, revoked=by, made_s=found.made_s, expected=found.version)
        await try_write(store, put)  # or somebody else revoked it at this moment
    return found


async def find_delegation(store: SessionStore, delegation_id: str) -> StoredDelegation:
    """The delegation with this id, or with a unique beginning of it of 6 characters or more; raises DataError."""
    return await find_record(store, DELEGATION, delegation_id, _read)


async def stored_delegations(store: SessionStore, deputy: str | None = None) -> list[StoredDelegation]:
    """All delegations, or those to a deputy, in the order of their ends, without unreadable ones."""
    found = [_read(document) async for document in pages(store, DELEGATION, deputy)]
    return sorted((one for one in found if one is not None), key=lambda one: one.delegation.until_s)


async def standing_for(store: SessionStore, deputy: str, tool: str | None) -> list[Delegation]:
    """The delegations with which this deputy may decide on a call of a tool now, by what the store says."""
    found = await stored_delegations(store, deputy)
    return [one.delegation for one in found if one.why_not is None and one.delegation.covers(tool)]


async def standing_in(store: SessionStore, decisions: Sequence[ApprovalDecision]) -> Stands:
    """The delegations behind these decisions that stand: stored, not revoked, and in force at arrival and now."""
    found = await documents(store, DELEGATION, {one.delegation.id for one in decisions if one.delegation is not None})
    stored = {given_id: _read(document) for given_id, document in found.items()}

    def standing(given: Delegation, at_s: float) -> str | None:
        found = stored.get(given.id)
        if found is None or found.delegation != given:
            return "is not in the store"
        return found.why_not or given.over(at_s)

    return standing


def made_and_revoked(body: Mapping[str, Any], written_s: float) -> tuple[float | None, float | None]:
    """When a stored delegation was made and revoked, None if not known or not so; raises ValueError and the like."""
    if body["revoked"] is None:
        return written_s, None
    made_s = body.get("made_s")
    return None if made_s is None else float(made_s), written_s


def _put(given: Delegation, *, revoked: str | None = None, made_s: float | None = None, expected: int = 0) -> Put:
    more = {} if made_s is None else {"made_s": made_s}
    body = json.dumps({"delegation": given.model_dump(mode="json"), "revoked": revoked} | more)
    return Put(kind=DELEGATION, key=given.id, body=body, expected=expected, label=given.deputy)


def _read(document: Document) -> StoredDelegation | None:
    """A stored delegation; None for one that cannot be read, which counts for nothing."""
    try:
        content = json.loads(document.body)
        delegation, revoked = Delegation.model_validate(content["delegation"]), content["revoked"]
        made_s, _ = made_and_revoked(content, document.written_s)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if delegation.id != document.key or not (revoked is None or isinstance(revoked, str)):
        return None
    return StoredDelegation(
        delegation=delegation, made_s=made_s, revoked=revoked, now_s=document.read_s, version=document.version
    )
