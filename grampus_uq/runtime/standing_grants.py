"""Grants in a session store: read, revoked, listed; which could let calls of a tool ahead, and which still stand.

One document each, under its id. A revoked one stays until its end, so its id is not used again; it lacks the `uses`
without which no release takes it for a grant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from grampus_uq.errors import ApprovalError
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.requests import ApprovalPolicy
from grampus_uq.records.events import InForce
from grampus_uq.runtime.store import Document, Put, SessionStore, documents, find_record, pages, try_write

GRANT: Final = "grant"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGrant:
    """A grant, its signature unchecked, as it stands at `now_s` by the store's clock; `revoked`: by whom."""

    grant: Grant
    uses: int
    revoked: str | None
    now_s: float
    version: int

    @property
    def why_not(self) -> str | None:
        """The reason why it lets no further call run, or None where it stands."""
        if self.revoked is not None:
            return "was revoked"
        if self.now_s >= self.grant.expires_s:
            return "has ended"
        return "is used up" if self.grant.max_uses is not None and self.uses >= self.grant.max_uses else None


def put_grant(grant: Grant, uses: int, revoked: str | None = None, *, expected: int = 0) -> Put:
    """The change that stores a grant, new or in place of the `expected` version."""
    left = {"uses": uses} if revoked is None else {"used": uses, "revoked": revoked}
    body = json.dumps({"grant": grant.model_dump(mode="json"), **left})
    return Put(kind=GRANT, key=grant.id, body=body, expected=expected, label=grant.tool)


def read_grant(document: Document) -> StoredGrant | None:
    """A stored grant; None for one that cannot be read, which lets nothing ahead."""
    try:
        content = json.loads(document.body)
        grant, revoked = Grant.model_validate(content["grant"]), content.get("revoked")
        uses = int(content["uses"] if revoked is None else content["used"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if grant.id != document.key or not isinstance(revoked, str | None):
        return None
    return StoredGrant(grant=grant, uses=uses, revoked=revoked, now_s=document.read_s, version=document.version)


def standing_grant(document: Document, policy: ApprovalPolicy) -> StoredGrant | None:
    """A stored grant that stands and that the policy accepts, else None."""
    found = read_grant(document)
    try:
        if found is None or found.why_not is not None:
            return None
        policy.check_grant(found.grant)
    except ApprovalError:
        return None
    return found


async def grants_in_force(store: SessionStore, tool: str, policy: ApprovalPolicy) -> list[InForce]:
    """The grants that let some calls of a tool ahead now, of whichever agent, session and arguments."""
    read = [standing_grant(document, policy) for document in await store.scan(GRANT, label=tool)]
    return [InForce(rule="grant", id=found.grant.id) for found in read if found is not None]


async def taken_back(store: SessionStore, grants: Iterable[Grant]) -> dict[str, str]:
    """By id, why no call runs any more that one of these grants let ahead; none for a grant that stands."""
    ids = {grant.id for grant in grants}
    found = await documents(store, GRANT, ids)
    ended = {grant_id: _end_of(found.get(grant_id)) for grant_id in ids}
    return {grant_id: f"grant {grant_id:.40} {why}" for grant_id, why in ended.items() if why is not None}


def _end_of(document: Document | None) -> str | None:
    found = None if document is None else read_grant(document)
    return "is not in the store any more" if found is None else replace(found, uses=0).why_not  # one use is this call's


async def revoke_grant(store: SessionStore, grant_id: str, by: str) -> StoredGrant:
    """Take a grant back, for every worker: no call that has not started runs on it. Raises DataError if unknown."""
    while (found := await find_record(store, GRANT, grant_id, read_grant)).revoked is None:
        put = put_grant(found.grant, found.uses, by, expected=found.version)
        await try_write(store, put)  # or it was used, or somebody else revoked it, at this moment
    return found


async def stored_grants(store: SessionStore) -> list[StoredGrant]:
    """All grants in the order of their ends, without unreadable ones."""
    found = [read_grant(document) async for document in pages(store, GRANT)]
    return sorted((one for one in found if one is not None), key=lambda one: one.grant.expires_s)
