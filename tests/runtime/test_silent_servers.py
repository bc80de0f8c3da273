"""A PostgreSQL server that is connected and says nothing fails an operation in time, as a lost answer does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator

import anyio
import pytest

from grampus_uq.errors import SessionConflictError, StoreError
from grampus_uq.runtime.stores.postgres import PostgresStore, _answered


@pytest.mark.anyio
async def test_a_silent_server_is_given_up_and_a_write_that_it_makes_afterwards_counts_once(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url, timeout_s=0.05) for _ in range(2)]
    begun = await stores[0].write()
    backend = await stores[0]._run(lambda db: int(db.info.backend_pid))
    os.kill(backend, signal.SIGSTOP)
    try:
        with pytest.raises(StoreError, match="no answer in time"), anyio.fail_after(30):
            await stores[0].put("silent", "a", "late", expected=0)
        assert await stores[0].get("silent", "a") is None  # on a new connection
    finally:
        os.kill(backend, signal.SIGCONT)
    found = None
    while found is None:
        found = await stores[1].get("silent", "a")
    assert (found.version, found.body, found.written_s > begun) == (1, "late", True)
    with pytest.raises(SessionConflictError):
        await stores[0].put("silent", "a", "again", expected=0)
    for store in stores:
        await store.aclose()


def test_an_answer_that_comes_in_pieces_is_waited_for_as_long_as_they_come() -> None:
    def steps() -> Generator[str, int | None, str]:
        for _ in range(4):
            while not (yield "read"):
                continue
        return "all"

    one, other = (_answered(steps(), 0.01, StoreError) for _ in range(2))
    assert [next(one), next(other)] == ["read", "read"]
    for _ in range(3):
        time.sleep(0.015)
        assert one.send(1) == "read"
    with pytest.raises(StopIteration) as end:
        one.send(1)
    assert end.value.value == "all"
    time.sleep(0.015)
    with pytest.raises(StoreError, match="no answer in time"):
        other.send(None)
