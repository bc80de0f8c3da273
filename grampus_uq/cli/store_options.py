"""The option that names a session store, and work on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
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
    help="Session store: sqlite:///FILE, postgresql://… or redis://… (or GRAMPUS_UQ_STORE).",
)
several_stores_option = click.option(
    "--store",
    "urls",
    required=True,
    multiple=True,
    envvar="GRAMPUS_UQ_STORE",
    help="Session store (or GRAMPUS_UQ_STORE); repeat for the stores of several tenants.",
)


def with_store(url: str, work: Callable[[SessionStore], Awaitable[_Result]], *, create: bool = False) -> _Result:
    """Open the store, wait for `work` on it, and close it; a store that does not exist is made only with `create`."""

    return with_stores([url], lambda stores: work(stores[0]), create=create)


def with_stores(
    urls: Sequence[str], work: Callable[[Sequence[SessionStore]], Awaitable[_Result]], *, create: bool = False
) -> _Result:
    """Open the stores, wait for `work` on them, and close them."""

    async def run() -> _Result:
        async with AsyncExitStack() as opened:
            stores = [open_store(url, create=create) for url in urls]
            for store in stores:
                opened.push_async_callback(store.aclose)
            return await work(stores)

    return anyio.run(run)
