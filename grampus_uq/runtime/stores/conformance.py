"""The contract of a session store as checks that a user's own store can run too: each primitive, alone and raced."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import anyio

from grampus_uq.errors import ConfigurationError, SessionConflictError, StoreError
from grampus_uq.runtime.concurrent_tasks import run_together
from grampus_uq.runtime.store import GENESIS, Append, Delete, Drop, Put, SessionStore, link

HOSTILE = ["", "a/b", "%2F", "ключ\u2028\U0001f511", "'; DROP TABLE documents; --", "x" * 500, ":doc:", "*?[a]"]
HOSTILE.append("\U0010ffff")
_LONG = 300_000
_RACERS = 8
_ROUNDS = 6


async def check_session_store(
    open_store: Callable[[], Awaitable[SessionStore]], *, absent: Callable[[], Awaitable[SessionStore]] | None = None
) -> None:
    """Raise AssertionError, saying what is wrong, unless the stores that `open_store` gives behave as one store must.

    `open_store` is awaited several times and each time gives a new handle on the same, initially empty storage. Every
    primitive is raced by eight tasks over three handles. `absent`, for a store that `open_store(url, create=False)`
    opens, is awaited several times and each time gives a handle opened so, on storage that was never made.

    StoreError passes through: the backend could not be reached, or refused. Not tried is what a process cannot do to
    itself: its death in a write, a full disk, a clock that is set back, an operation that blocks the loop.
    """
    try:
        if absent is not None:
            await _absent(absent)
        await _present(open_store)
    except SessionConflictError as error:
        raise AssertionError(f"The store breaks this rule: no conflict without another writer. ({error})") from error
    except (AssertionError, ConfigurationError, StoreError):
        raise
    except Exception as error:
        rule = "an operation that fails raises StoreError or SessionConflictError"
        raise AssertionError(f"The store breaks this rule: {rule}. ({type(error).__name__}: {error})") from error


async def _handle(opened: Callable[[], Awaitable[SessionStore]]) -> SessionStore:
    made: object = opened() if callable(opened) else opened
    if not inspect.isawaitable(made):
        rule = "an async function without arguments"
        way_out = "async def open_store(): return MyStore(...)"
        raise ConfigurationError.of("open_store", "check_session_store", rule, opened, way_out)
    store: SessionStore = await made
    return store


async def _present(open_store: Callable[[], Awaitable[SessionStore]]) -> None:
    stores = [await _handle(open_store) for _ in range(3)]
    try:
        for check in _CHECKS:
            await check(stores)
        await stores[0].aclose()
        found = await stores[0].get("doc", "a")
        _holds(found is not None and found.version == 2, "a closed store opens again")
    finally:
        for store in stores:
            await store.aclose()


def _holds(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(f"The store breaks this rule: {sentence}")


async def _conflicts(work: Awaitable[object]) -> bool:
    try:
        await work
    except SessionConflictError:
        return True
    return False


async def _race(stores: Sequence[SessionStore], work: Callable[[SessionStore, int], Coroutine[Any, Any, None]]) -> None:
    """Run the work eight times at once, over all handles."""
    await run_together([partial(work, stores[number % len(stores)], number) for number in range(_RACERS)])


async def _absent(open_store: Callable[[], Awaitable[SessionStore]]) -> None:
    put = Put(kind="doc", key="a", body="{}", expected=0)
    works: tuple[Callable[[SessionStore], Awaitable[object]], ...] = (
        lambda store: store.get("doc", "a"),
        lambda store: store.scan("doc"),
        lambda store: store.read("log"),
        lambda store: store.now(),
        lambda store: store.write(put),
    )
    for work in (*works, *works):  # a second time: none of them made it
        store = await _handle(open_store)
        try:
            await work(store)
        except StoreError:
            continue
        finally:
            await store.aclose()
        _holds(False, "a store that is not there, opened with create=False, raises StoreError and is not made")


# -- one at a time ----------------------------------------------------------------------------------------------------


async def _documents(stores: Sequence[SessionStore]) -> None:
    first, second, third = stores
    _holds(await first.get("doc", "a") is None, "what was never written is None")
    _holds(
        await second.put("doc", "a", '{"x": 1}', expected=0, label="l") == 1,
        "asking creates nothing: version 1 is free",
    )
    found = await third.get("doc", "a")
    _holds(found is not None and found.body == '{"x": 1}', "a write is seen through another handle")
    _holds(found is not None and (found.version, found.label) == (1, "l"), "version and label come back")
    _holds(await _conflicts(second.put("doc", "a", "{}", expected=0)), "creating twice is a conflict")
    _holds(await second.put("doc", "a", "{}", expected=1) == 2, "the next version is one more")
    _holds(await _conflicts(first.put("doc", "a", "old", expected=1)), "writing on an old version is a conflict")
    _holds(await _conflicts(first.put("doc", "a", "old", expected=7)), "writing on a version to come is a conflict")
    found = await first.get("doc", "a")
    _holds(found is not None and found.body == "{}" and found.version == 2, "a conflict changes nothing")
    _holds(await first.get("other", "a") is None, "kinds are apart")
    _holds(await _conflicts(first.put("doc", "new", "{}", expected=3)), "what is not there has no version 3")


async def _scans(stores: Sequence[SessionStore]) -> None:
    first, second, _ = stores
    for key, label in (("p/1", "open"), ("p/2", "shut"), ("q/1", "open"), ("P/0", "open"), ("p", "open")):
        await first.put("lab", key, "{}", expected=0, label=label)

    async def keys(label: str | None = None, **options: object) -> list[str]:
        return [d.key for d in await second.scan("lab", label=label, **options)]  # type: ignore[arg-type]  # as written

    _holds(await keys() == ["P/0", "p", "p/1", "p/2", "q/1"], "a scan gives every document of the kind, by code points")
    _holds(await keys("open") == ["P/0", "p", "p/1", "q/1"], "a scan selects by label")
    _holds(await keys(prefix="p/") == ["p/1", "p/2"], "a scan selects by prefix")
    _holds(await keys("open", prefix="p/") == ["p/1"], "a scan selects by label and prefix together")
    _holds(await keys(limit=2) == ["P/0", "p"], "a scan gives no more than was asked for")
    _holds(await keys("open", after="p", limit=1) == ["p/1"], "a scan goes on behind a key")
    below = [document.key for document in await second.children("lab", ["P", "missing", "p"])]
    _holds(below == ["P/0", "p/1", "p/2"], "the children of several keys are those behind their slashes")
    _holds(await second.children("lab", []) == [], "no keys have no children")
    await first.put("nameless", "p/", "{}", expected=0)
    nameless = [document.key for document in await second.children("nameless", ["p"])]
    _holds(nameless == ["p/"], "a child may have no name behind the slash")
    await first.put("lab", "p/1", "{}", expected=1, label="shut")
    _holds(await keys("open") == ["P/0", "p", "q/1"], "a document is not found by a label that it had before")
    _holds(await keys("shut") == ["p/1", "p/2"], "a document is found by its new label")


async def _deletions(stores: Sequence[SessionStore]) -> None:
    first, second, _ = stores
    await first.put("del", "a", "{}", expected=0, label="l")
    await first.put("del", "a", "{}", expected=1, label="l")
    _holds(
        await _conflicts(second.write(Delete(kind="del", key="a", expected=1))), "deleting an old version is a conflict"
    )
    found = await first.get("del", "a")
    _holds(found is not None and found.version == 2, "what has changed since is not deleted")
    await second.write(Delete(kind="del", key="a", expected=2))
    _holds(await first.get("del", "a") is None, "what was deleted is gone")
    _holds(await first.scan("del", label="l") == [] == await first.scan("del"), "what was deleted is in no scan")
    _holds(await _conflicts(second.write(Delete(kind="del", key="a", expected=2))), "deleting twice is a conflict")
    _holds(await second.put("del", "a", "{}", expected=0) == 1, "what was deleted can be created anew")


async def _logs(stores: Sequence[SessionStore]) -> None:
    first, second, _ = stores
    _holds(await first.read("log") == [], "a log that was never written is empty")
    await first.append("log", "a", expected=0)
    await first.append("log/beside", "b", expected=0)
    await second.write(Append(log="log", bodies=("b", "c"), expected=1))
    _holds(await _conflicts(first.append("log", "d", expected=1)), "appending at a taken place is a conflict")
    _holds(await _conflicts(first.append("log", "d", expected=9)), "appending behind a gap is a conflict")
    _holds(await first.read("log") == ["a", "b", "c"], "entries come back in order, through any handle")
    _holds(await first.read("log", start=1) == ["b", "c"], "a log can be read from a place on")
    await second.write(Drop(log="log"), Append(log="other", bodies=("x",), expected=0))
    left = [await first.read(log) for log in ("log", "log/beside", "other")]
    _holds(left == [[], ["b"], ["x"]], "a dropped log is empty, and only that one")
    await first.append("log", "again", expected=0)
    _holds(await second.read("log") == ["again"], "a dropped log begins anew")


async def _chains(stores: Sequence[SessionStore]) -> None:
    first, second, _ = stores
    contents = ['{"what":"a"}', '{"what":"ключ \\"x\\""}', '{"deep":{"seq":7,"hash":"x"}}']
    contents += [
        json.dumps({"codes": "".join(map(chr, [*range(256), 0xFFFF, 0x10FFFF])), "\0": 0}),
        '{"what":"behind it"}',
    ]
    await first.append("chain", contents[0], expected=None)
    await second.write(Append(log="chain", bodies=tuple(contents[1:]), expected=None))
    _check_chain(await first.read("chain"), contents)


def _check_chain(entries: Sequence[str], contents: Sequence[str] | None = None) -> None:
    previous = GENESIS
    _holds(contents is None or len(entries) == len(contents), "every chained entry is there, and nothing else")
    for place, text in enumerate(entries):
        entry = json.loads(text)
        content = "{" + text.partition(f'"{entry["hash"]}",')[2]
        stamp = f"{entry['time_s']:.6f}"
        _holds(contents is None or content == contents[place], "a chained entry's content comes back as it was given")
        _holds(
            entry["seq"] == place and entry["previous"] == previous, "an entry follows the one before, without a gap"
        )
        _holds(entry["hash"] == link(previous, place, stamp, content), "an entry's hash is that of `store.link`")
        previous = entry["hash"]


async def _all_or_nothing(stores: Sequence[SessionStore]) -> None:
    first, second, _ = stores
    await first.write(
        Put(kind="all", key="a", body="1", expected=0, label="l"),
        Append(log="all/plain", bodies=("1",), expected=0),
        Append(log="all/chain", bodies=('{"n":1}',), expected=None),
    )
    for bad in (
        Put(kind="all", key="b", body="{}", expected=5),
        Delete(kind="all", key="b", expected=1),
        Append(log="all/other", bodies=("x",), expected=5),
    ):
        changes = (
            Put(kind="all", key="a", body="2", expected=1, label="m"),
            Append(log="all/plain", bodies=("2",), expected=1),
            Append(log="all/chain", bodies=('{"n":2}',), expected=None),
        )
        for order in ((*changes, bad), (bad, *changes)):
            _holds(await _conflicts(second.write(*order)), "a write fails when one of its changes does")
    found = await first.get("all", "a")
    kept = (await first.read("all/plain"), len(await first.read("all/chain")), await first.scan("all", label="m"))
    _holds(
        found is not None and (found.body, found.version) == ("1", 1) and kept == (["1"], 1, []),
        "a write that fails in one change has made none of them",
    )


async def _clock(stores: Sequence[SessionStore]) -> None:
    times = [await store.now() for _ in range(4) for store in stores]
    _holds(all(b >= a - 0.001 for a, b in pairwise(times)), "the clock is one for all handles, and does not go back")
    before = await stores[0].now()
    written_s = await stores[1].write(Put(kind="clock", key="a", body="{}", expected=0))
    after = await stores[2].now()
    found = await stores[0].get("clock", "a")
    _holds(before - 0.001 <= written_s <= after + 0.001, "a write says when it was made, by the store's clock")
    _holds(found is not None and abs(found.written_s - written_s) < 0.001, "a document says when it was written")
    await anyio.sleep(0.05)
    older = await stores[1].get("clock", "a")
    _holds(
        found is not None and older is not None and older.age_s > found.age_s + 0.03, "a document ages while it stands"
    )
    await stores[2].put("clock", "a", "{}", expected=1)
    fresh = await stores[1].get("clock", "a")
    _holds(older is not None and fresh is not None and fresh.written_s > older.written_s, "a new version is new")


async def _hostile(stores: Sequence[SessionStore]) -> None:
    first, second, _ = stores
    for index, key in enumerate(HOSTILE):
        body = f"{index} {key} \u0001\n"
        await first.put("hostile", key, body, expected=0, label=key)
        await first.append(f"hostile/{key}", body, expected=0)
        found = await second.get("hostile", key)
        _holds(found is not None and found.body == body and found.key == key, f"any text is a key: {key[:30]!r}")
        labelled = [document.key for document in await second.scan("hostile", label=key)]
        _holds(labelled == [key], f"any text is a label: {key[:30]!r}")
        _holds(await second.read(f"hostile/{key}") == [body], f"any text names a log: {key[:30]!r}")
    _holds([d.key for d in await first.scan("hostile")] == sorted(HOSTILE), "hostile keys stay apart, in order")
    for prefix in ("\U0010ffff", "*", "ключ"):
        keys = [d.key for d in await first.scan("hostile", prefix=prefix)]
        _holds(keys == [key for key in HOSTILE if key.startswith(prefix)], "a prefix means itself, whatever it is")
    text = "é" * _LONG
    await first.put("long", "a", text, expected=0)
    await first.append("long", text, expected=0)
    found = await second.get("long", "a")
    whole = found is not None and found.body == text and await second.read("long") == [text]
    _holds(whole, f"a text of {_LONG} characters comes back whole")


# -- raced ------------------------------------------------------------------------------------------------------------


async def _racing_counters(stores: Sequence[SessionStore]) -> None:
    """Read, add one, write; a lost update leaves the count short."""
    won: list[int] = []

    async def count(store: SessionStore, number: int) -> None:
        made = 0
        while made < _ROUNDS:
            found = await store.get("count", "c")
            version, so_far = (0, 0) if found is None else (found.version, int(found.body))
            _holds(version == so_far, "a reader sees a version with its own text, never a mixture")
            await anyio.lowlevel.checkpoint()
            if not await _conflicts(store.put("count", "c", str(so_far + 1), expected=version)):
                won.append(version + 1)
                made += 1
                seen = await store.get("count", "c")
                _holds(seen is not None and seen.version > version, "who wrote sees at least what they wrote")

    await _race(stores, count)
    found = await stores[0].get("count", "c")
    _holds(sorted(won) == list(range(1, _RACERS * _ROUNDS + 1)), "each version is won by exactly one writer")
    _holds(found is not None and int(found.body) == _RACERS * _ROUNDS, "no update is lost")


async def _racing_at_once(stores: Sequence[SessionStore]) -> None:
    """The same with each count done at once, the first of them within another: as if the work had been awaited."""
    won: list[int] = []

    async def count(store: SessionStore, number: int) -> None:
        async def work() -> int:
            while True:
                found = await store.get("once", "c")
                version = 0 if found is None else found.version
                if not await _conflicts(store.put("once", "c", "{}", expected=version)):
                    return version + 1

        won.append(await store.at_once(lambda: store.at_once(work)) if number == 0 else await store.at_once(work))

    await _race(stores, count)
    _holds(sorted(won) == list(range(1, _RACERS + 1)), "what is done at once is done once, and gives its result")
    late = stores[0].at_once(lambda: stores[0].put("once", "c", "{}", expected=0))
    _holds(await _conflicts(late), "what is done at once raises what it raises by itself")


async def _racing_creation(stores: Sequence[SessionStore]) -> None:
    for place in range(_ROUNDS):
        won: list[int] = []

        async def create(store: SessionStore, number: int, key: str = f"{place}", won: list[int] = won) -> None:
            if not await _conflicts(store.put("race", key, str(number), expected=0)):
                won.append(number)

        await _race(stores, create)
        found = await stores[place % len(stores)].get("race", f"{place}")
        _holds(len(won) == 1, f"of {_RACERS} creators exactly one wins, not {len(won)}")
        _holds(found is not None and found.body == str(won[0]), "the winner's text is the one stored")


async def _racing_labels(stores: Sequence[SessionStore]) -> None:
    """Documents change their labels side by side; at the end each is found by its last label and by no other."""

    async def relabel(store: SessionStore, number: int) -> None:
        for version in range(_ROUNDS):
            label = f"{(number + version) % 3}"
            await store.put("relabel", f"{number}", label, expected=version, label=label)

    await _race(stores, relabel)
    for label in ("0", "1", "2"):
        found = await stores[0].scan("relabel", label=label)
        expected = [f"{n}" for n in range(_RACERS) if f"{(n + _ROUNDS - 1) % 3}" == label]
        _holds([d.key for d in found] == expected, "the index by label keeps up with writers side by side")


async def _racing_deletion(stores: Sequence[SessionStore]) -> None:
    """One renews a document, as a live session does; the others delete the version that they saw. One of them wins."""
    for place in range(_ROUNDS):
        key, won = f"{place}", list[int]()
        await stores[0].put("prune", key, "ended", expected=0, label="ended")

        async def contend(store: SessionStore, number: int, key: str = key, won: list[int] = won) -> None:
            change = (
                Put(kind="prune", key=key, body="live", expected=1, label="live")
                if number == 0
                else Delete(kind="prune", key=key, expected=1)
            )
            if not await _conflicts(store.write(change)):
                won.append(number)

        await _race(stores, contend)
        found = await stores[1].get("prune", key)
        _holds(len(won) == 1, "of a renewal and deletions of the same version exactly one is made")
        _holds((found is not None) == (won == [0]), "a document that was renewed first is not deleted")


async def _racing_logs(stores: Sequence[SessionStore]) -> None:
    won: list[tuple[int, str]] = []
    given: list[str] = []

    async def append(store: SessionStore, number: int) -> None:
        for place in range(_ROUNDS):
            body = f"{number}/{place}"
            if not await _conflicts(store.append("race", body, expected=place)):
                won.append((place, body))
            content = json.dumps({"by": number, "place": place})
            given.append(content)
            await store.append("race/chain", content, expected=None)

    await _race(stores, append)
    _holds(await stores[0].read("race") == [body for _, body in sorted(won)], "one appender wins each place, in order")
    entries = await stores[1].read("race/chain")
    _check_chain(entries)
    by = [(json.loads(entry)["by"], json.loads(entry)["place"]) for entry in entries]
    _holds(sorted(by) == [(n, p) for n in range(_RACERS) for p in range(_ROUNDS)], "every chained entry is there once")
    _holds(
        all([p for b, p in by if b == n] == list(range(_ROUNDS)) for n in range(_RACERS)),
        "the entries of one appender keep their order",
    )


async def _racing_readers(stores: Sequence[SessionStore]) -> None:
    """Writers put one number into a document and a log; a reader that sees the document sees as much of the log."""

    async def work(store: SessionStore, number: int) -> None:
        if number < 2:
            for version in range(_ROUNDS):
                await store.write(
                    Put(kind="pair", key=f"{number}", body=f"{version + 1}" * 2_000, expected=version),
                    Append(log=f"pair/{number}", bodies=(f"{version + 1}",), expected=version),
                )
            return
        latest = 0
        for _ in range(3 * _ROUNDS):
            found = await store.get("pair", f"{number % 2}")
            if found is not None:
                entries = await store.read(f"pair/{number % 2}")
                _holds(found.body == f"{found.version}" * 2_000, "a reader never sees half of a text")
                _holds(len(entries) >= found.version, "a reader that sees one change of a write sees all of them")
                _holds(found.version >= latest, "a version never goes back")
                latest = found.version
            await anyio.lowlevel.checkpoint()

    await _race(stores, work)


_CHECKS = [_documents, _scans, _deletions, _logs, _chains, _all_or_nothing, _clock, _hostile, _racing_counters]
_CHECKS += [_racing_at_once, _racing_creation, _racing_labels, _racing_deletion, _racing_logs, _racing_readers]
