"""A store in Redis or Valkey, for workers on several machines; needs the extra `redis`. Plain commands, no modules.

Compare-and-set runs as a Lua script, which the server executes as one step. Durability is the server's: with
`appendonly no` a write that was acknowledged can be lost when the server dies.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from grampus_uq.errors import MissingDependencyError, SessionConflictError, StoreError
from grampus_uq.runtime.store import SCHEMA_VERSION, Document
from grampus_uq.runtime.stores._thread import StoreThread

__all__ = ["RedisStore"]

Result = TypeVar("Result")

_PUT = """
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if version ~= tonumber(ARGV[1]) then return -1 end
redis.call('HSET', KEYS[1], 'version', version + 1, 'label', ARGV[2], 'body', ARGV[3])
redis.call('SADD', KEYS[2], ARGV[4])
return version + 1
"""
_APPEND = """
if redis.call('LLEN', KEYS[1]) ~= tonumber(ARGV[1]) then return -1 end
return redis.call('RPUSH', KEYS[1], ARGV[2])
"""


class RedisStore:
    """Documents as hashes, logs as lists, all keys under `namespace`. Calls run in worker threads."""

    def __init__(self, url: str, *, namespace: str = "grampus", timeout_s: float = 5.0) -> None:
        self._url = url
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._client: Any = None
        self._lock = threading.Lock()
        self._thread = StoreThread()

    def _document_key(self, kind: str, key: str) -> str:
        return f"{self._namespace}:doc:{kind}:{key}"

    def _kind_key(self, kind: str) -> str:
        return f"{self._namespace}:kind:{kind}"

    def _log_key(self, log: str) -> str:
        return f"{self._namespace}:log:{log}"

    async def get(self, kind: str, key: str) -> Document | None:
        """The newest version of a document, or None."""

        def read(client: Any) -> Document | None:
            found = client.hgetall(self._document_key(kind, key))
            return _document(kind, key, found) if found else None

        return await self._run(read)

    async def put(self, kind: str, key: str, body: str, *, expected: int, label: str = "") -> int:
        """Compare and set, as one step on the server."""

        def write(client: Any) -> int:
            keys = [self._document_key(kind, key), self._kind_key(kind)]
            return int(client.eval(_PUT, len(keys), *keys, expected, label, body, key))

        version = await self._run(write)
        if version < 0:
            raise SessionConflictError(f"{kind} {key!r} is not at version {expected}: another writer was first.")
        return version

    async def scan(self, kind: str, *, label: str | None = None, prefix: str = "") -> list[Document]:
        """All documents of a kind, by key."""

        def read(client: Any) -> list[Document]:
            keys = sorted(k.decode() for k in client.smembers(self._kind_key(kind)))
            keys = [key for key in keys if key.startswith(prefix)]
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.hgetall(self._document_key(kind, key))
            found = [_document(kind, key, raw) for key, raw in zip(keys, pipe.execute(), strict=True) if raw]
            return [document for document in found if label is None or document.label == label]

        return await self._run(read)

    async def append(self, log: str, body: str, *, expected: int) -> None:
        """Append if the log is as long as expected."""

        def write(client: Any) -> int:
            return int(client.eval(_APPEND, 1, self._log_key(log), expected, body))

        if await self._run(write) < 0:
            raise SessionConflictError(f"log {log!r} has not {expected} entries: another writer was first.")

    async def read(self, log: str, *, start: int = 0) -> list[str]:
        """The entries from `start` on."""

        def read(client: Any) -> list[str]:
            return [entry.decode() for entry in client.lrange(self._log_key(log), start, -1)]

        return await self._run(read)

    async def aclose(self) -> None:
        """Close the connections; they are opened again when needed."""

        def close() -> None:
            with self._lock:
                if self._client is not None:
                    self._client.close()
                    self._client = None

        await self._thread.run(close)

    async def _run(self, work: Callable[[Any], Result]) -> Result:
        return await self._thread.run(self._call, work)

    def _call(self, work: Callable[[Any], Result]) -> Result:
        try:
            redis = importlib.import_module("redis")
        except ImportError as error:
            raise MissingDependencyError.of("redis", "redis", "The Redis store") from error
        with self._lock:
            try:
                if self._client is None:
                    client = redis.Redis.from_url(
                        self._url, socket_timeout=self._timeout_s, socket_connect_timeout=self._timeout_s
                    )
                    self._check_schema(client)
                    self._client = client
                return work(self._client)
            except redis.RedisError as error:
                raise StoreError(f"The Redis store failed: {type(error).__name__}") from error

    def _check_schema(self, client: Any) -> None:
        key = f"{self._namespace}:schema"
        client.setnx(key, SCHEMA_VERSION)
        version = int(client.get(key))
        if version > SCHEMA_VERSION:
            raise StoreError(f"The store has schema version {version}; this version reads up to {SCHEMA_VERSION}.")


def _document(kind: str, key: str, raw: dict[bytes, bytes]) -> Document:
    return Document(
        kind=kind, key=key, version=int(raw[b"version"]), label=raw[b"label"].decode(), body=raw[b"body"].decode()
    )
