"""What every session store must do, as checks that a user's own store can run too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from grampus_uq.errors import SessionConflictError
from grampus_uq.runtime.store import SessionStore

__all__ = ["check_session_store"]

HOSTILE = ["", "a/b", "%2F", "ключ\u2028\U0001f511", "'; DROP TABLE documents; --", "x" * 500, ":doc:", "*?[a]"]


async def check_session_store(open_store: Callable[[], Awaitable[SessionStore]]) -> None:
    """Raise AssertionError, saying what is wrong, unless the stores that `open_store` gives behave as one store must.

    `open_store` is awaited several times and each time gives a new handle on the same, initially empty storage.
    """
    first, second = await open_store(), await open_store()
    try:
        await _documents(first, second)
        await _one_winner(first, second)
        await _labels(first)
        await _logs(first, second)
        await _log_race(first, second)
        await _hostile_keys(first, second)
        await _reopens(first)
    finally:
        await first.aclose()
        await second.aclose()


def _holds(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(f"A session store must hold this: {sentence}")


async def _conflicts(put: Callable[[], Awaitable[object]]) -> bool:
    try:
        await put()
    except SessionConflictError:
        return True
    return False


async def _documents(first: SessionStore, second: SessionStore) -> None:
    _holds(await first.get("doc", "a") is None, "what was never written is None")
    _holds(await first.put("doc", "a", '{"x": 1}', expected=0, label="l") == 1, "the first version is 1")
    found = await second.get("doc", "a")
    _holds(found is not None and found.body == '{"x": 1}', "a write is seen through another handle")
    _holds(found is not None and (found.version, found.label) == (1, "l"), "version and label come back")
    _holds(await _conflicts(lambda: second.put("doc", "a", "{}", expected=0)), "creating twice is a conflict")
    _holds(await second.put("doc", "a", "{}", expected=1) == 2, "the next version is one more")
    _holds(
        await _conflicts(lambda: first.put("doc", "a", "old", expected=1)), "writing on an old version is a conflict"
    )
    found = await first.get("doc", "a")
    _holds(found is not None and found.body == "{}" and found.version == 2, "a conflict changes nothing")
    _holds(await first.get("other", "a") is None, "kinds are apart")
    _holds(await _conflicts(lambda: first.put("doc", "new", "{}", expected=3)), "what is not there has no version 3")


async def _one_winner(first: SessionStore, second: SessionStore) -> None:
    wins: list[int] = []

    async def race(store: SessionStore, number: int) -> None:
        try:
            await store.put("race", "r", str(number), expected=0)
            wins.append(number)
        except SessionConflictError:
            return

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(race, (first, second)[number % 2], number)
    _holds(len(wins) == 1, f"of ten writers of one version exactly one wins, not {len(wins)}")
    found = await first.get("race", "r")
    _holds(found is not None and found.body == str(wins[0]), "the winner's text is the one stored")


async def _labels(store: SessionStore) -> None:
    for key, label in (("p/1", "open"), ("p/2", "shut"), ("q/1", "open")):
        await store.put("lab", key, "{}", expected=0, label=label)
    keys = [d.key for d in await store.scan("lab")]
    _holds(keys == ["p/1", "p/2", "q/1"], "a scan gives every document of the kind, by key")
    _holds([d.key for d in await store.scan("lab", label="open")] == ["p/1", "q/1"], "a scan selects by label")
    _holds([d.key for d in await store.scan("lab", prefix="p/")] == ["p/1", "p/2"], "a scan selects by prefix")
    await store.put("lab", "p/1", "{}", expected=1, label="shut")
    _holds([d.key for d in await store.scan("lab", label="open")] == ["q/1"], "a new version's label replaces the old")


async def _logs(first: SessionStore, second: SessionStore) -> None:
    _holds(await first.read("log") == [], "a log that was never written is empty")
    await first.append("log", "a", expected=0)
    await second.append("log", "b", expected=1)
    _holds(await _conflicts(lambda: first.append("log", "c", expected=1)), "appending at a taken place is a conflict")
    _holds(await first.read("log") == ["a", "b"], "entries come back in order, through any handle")
    _holds(await first.read("log", start=1) == ["b"], "a log can be read from a place on")


async def _log_race(first: SessionStore, second: SessionStore) -> None:
    wins: list[int] = []

    async def race(store: SessionStore, number: int) -> None:
        try:
            await store.append("race", str(number), expected=0)
            wins.append(number)
        except SessionConflictError:
            return

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(race, (first, second)[number % 2], number)
    _holds(await first.read("race") == [str(number) for number in wins] and len(wins) == 1, "one appender wins a place")


async def _hostile_keys(first: SessionStore, second: SessionStore) -> None:
    for index, key in enumerate(HOSTILE):
        body = f"{index} {key} \u0001\n"
        await first.put("hostile", key, body, expected=0, label=key[:50])
        found = await second.get("hostile", key)
        _holds(found is not None and found.body == body and found.key == key, f"any text is a key: {key[:30]!r}")
    _holds(len(await first.scan("hostile")) == len(HOSTILE), "hostile keys stay apart")


async def _reopens(store: SessionStore) -> None:
    await store.aclose()
    found = await store.get("doc", "a")
    _holds(found is not None and found.version == 2, "a closed store opens again")
