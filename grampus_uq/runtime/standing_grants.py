"""Grants in a session store: how one is read, and which could let calls of a tool ahead."""

from __future__ import annotations

import json

from grampus_uq.errors import ApprovalError
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.requests import ApprovalPolicy
from grampus_uq.records.events import InForce
from grampus_uq.runtime.store import Document, SessionStore


def stored_grant(document: Document, policy: ApprovalPolicy) -> tuple[Grant, int] | None:
    """A stored grant and its uses; None when it cannot be read or trusted."""
    try:
        content = json.loads(document.body)
        grant = Grant.model_validate(content["grant"])
        policy.check_grant(grant)
        return grant, int(content["uses"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, ApprovalError):
        return None


async def grants_in_force(store: SessionStore, tool: str, policy: ApprovalPolicy) -> list[InForce]:
    """The grants that let some calls of a tool ahead now, of whichever agent, session and arguments."""
    found = []
    for document in await store.scan("grant", label=tool):
        grant, uses = stored_grant(document, policy) or (None, 0)
        if grant is None or document.read_s >= grant.expires_s:
            continue
        if grant.max_uses is None or uses < grant.max_uses:
            found.append(InForce(rule="grant", id=grant.id))
    return found
