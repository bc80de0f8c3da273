"""Which process started an approved call: one document a start, made by the first that asks, and never changed."""

from __future__ import annotations

import json
from typing import Final

import anyio

from grampus_uq.errors import StoreError
from grampus_uq.records.values import sha256_of
from grampus_uq.runtime.store import Put, SessionStore, try_write

START: Final = "start"
_LIMIT_S: Final = 10.0


class StoredStarts:
    """Lets what let a call ahead start it once, over all processes that share the store.

    For adapters, whose frameworks keep the state and compare nothing when they write, and for an `AgentRunner` whose
    own store may be put back to an earlier copy. A call that another process started, or this one before it was
    restarted, waits for a human again under the rule `unknown_outcome`. Adapters keep the rejections of a thread, or of
    a session, here too.

    Whoever can write the store can delete a start: an old state of the framework then runs its call once more.

    Args:
        store: shared by all processes that may resume a run, and not put back with their state. `grampus-uq prune`
            removes old starts.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def take(self, by: str, owner: str) -> bool:
        """True if the start `by` is this owner's, the first to ask. Raises StoreError if not answered within 10 s."""
        return await self._ask(by, owner, take=True)

    async def free(self, by: str, owner: str) -> bool:
        """True if `take` would be now; stores nothing. Raises StoreError if not answered within 10 s."""
        return await self._ask(by, owner, take=False)

    async def _ask(self, by: str, owner: str, *, take: bool) -> bool:
        key, body = sha256_of(by), json.dumps(owner)
        with anyio.move_on_after(_LIMIT_S):
            if take and await try_write(self._store, Put(kind=START, key=key, body=body, expected=0)):
                return True
            found = await self._store.get(START, key)
            return not take if found is None else found.body == body
        raise StoreError(f"the store did not answer within {_LIMIT_S:g} s")
