"""The option that names a session store, and work on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import click

from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stores import open_store

_Result = TypeVar("_Result")

store_option = click.option(
    "--store",
    "url",
    required=True,
    envvar="GRAMPUS_UQ_STORE",
    help="Where sessions are kept: sqlite:///FILE, postgresql://… or redis://… (or GRAMPUS_UQ_STORE).",
)


def with_store(url: str, work: Callable[[SessionStore], Awaitable[_Result]], *, create: bool = False) -> _Result:
    """Open the store, wait for `work` on it, and close it; a store that does not exist is made only with `create`."""

    async def run() -> _Result:
        store = open_store(url, create=create)
        try:
            return await work(store)
        finally:
            await store.aclose()

    return anyio.run(run)
