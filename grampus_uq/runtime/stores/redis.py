"""A store in Redis or Valkey, for workers on several machines; needs the extra `redis`. Plain commands, no modules.

A write runs as a Lua script, which the server executes as one step. Durability is the server's: with `appendonly no` a
write that was acknowledged can be lost when the server dies.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from grampus_uq.errors import (
    ConfigurationError,
    DamagedLogError,
    MissingDependencyError,
    SessionConflictError,
    StoreError,
)
from grampus_uq.records.values import sha256_of
from grampus_uq.runtime.store import (
    GENESIS,
    OLDEST_SCHEMA,
    SCHEMA_VERSION,
    WAKING,
    Append,
    Change,
    Delete,
    Document,
    Put,
    Result,
    after_prefix,
    check_schema,
)
from grampus_uq.runtime.stores._thread import ThreadedStore

# SHA-256 (FIPS 180-4): its constants are the first bits of the square and cube roots of the primes.
_SHA256 = """
local band, bxor, bnot, ror, shr = bit.band, bit.bxor, bit.bnot, bit.ror, bit.rshift
local function roots()
  local k, h, n = {}, {}, 2
  while #k < 64 do
    local prime = true
    for d = 2, math.sqrt(n) do if n % d == 0 then prime = false break end end
    if prime then
      k[#k + 1] = math.floor((n ^ (1 / 3) % 1) * 4294967296)
      if #h < 8 then h[#h + 1] = math.floor((n ^ 0.5 % 1) * 4294967296) end
    end
    n = n + 1
  end
  return k, h
end
local function word(n)
  return string.char(band(shr(n, 24), 255), band(shr(n, 16), 255), band(shr(n, 8), 255), band(n, 255))
end
local function sha256(text)
  local k, h = roots()
  local padded = text .. '\\128' .. string.rep('\\0', (55 - #text) % 64) .. word(0) .. word(#text * 8)
  for start = 1, #padded, 64 do
    local w = {}
    for i = 0, 15 do
      local a, b, c, d = string.byte(padded, start + 4 * i, start + 4 * i + 3)
      w[i + 1] = a * 16777216 + b * 65536 + c * 256 + d
    end
    for i = 17, 64 do
      local x, y = w[i - 15], w[i - 2]
      w[i] = (w[i - 16] + bxor(ror(x, 7), ror(x, 18), shr(x, 3)) + w[i - 7]
        + bxor(ror(y, 17), ror(y, 19), shr(y, 10))) % 4294967296
    end
    local a, b, c, d, e, f, g, i8 = unpack(h)
    for i = 1, 64 do
      local t1 = i8 + bxor(ror(e, 6), ror(e, 11), ror(e, 25)) + bxor(band(e, f), band(bnot(e), g)) + k[i] + w[i]
      local t2 = bxor(ror(a, 2), ror(a, 13), ror(a, 22)) + bxor(band(a, b), band(a, c), band(b, c))
      i8, g, f, e, d, c, b, a = g, f, e, (d + t1) % 4294967296, c, b, a, (t1 + t2) % 4294967296
    end
    for i, n in ipairs({a, b, c, d, e, f, g, i8}) do h[i] = (h[i] + n) % 4294967296 end
  end
  local hex = ''
  for i = 1, 8 do hex = hex .. bit.tohex(h[i]) end
  return hex
end
"""
# KEYS[1] is the namespace. Six arguments a change: what, its key, the index of its kind, its name, expected, label and
# body; for an entry: the SHA-256 of its content in place of the label, and no place expected where it is chained.
_WRITE = (
    _SHA256
    + f"""
local function is(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == 'none' or found == kind
end
local t = redis.call('TIME')
local time_s = string.format('%d.%06d', t[1], t[2])
for i = 1, #ARGV, 7 do  -- what may fail fails here, before anything is written
  local op, key, expected, at = ARGV[i], ARGV[i + 1], ARGV[i + 4], nil
  local index, label, whole = ARGV[i + 2], ARGV[i + 5], true
  if op == 'put' or op == 'delete' then
    whole = is(key, 'hash') and is(index, 'zset') and is(KEYS[1] .. ':jobs', 'stream')
    local old = whole and redis.call('HGET', key, 'label')
    whole = whole and is(index .. ':' .. redis.sha1hex(label), 'zset')
    if old then whole = whole and is(index .. ':' .. redis.sha1hex(old), 'zset') end
  elseif op ~= 'drop' then
    whole = is(key, 'list')
  end
  if whole and op == 'chain' and redis.call('LLEN', key) > 0 then
    local read, last = pcall(cjson.decode, redis.call('LINDEX', key, -1))
    local hash = read and type(last) == 'table' and last.hash
    if type(hash) ~= 'string' or #hash ~= 64 or string.find(hash, '[^0-9a-f]') then return {{'damaged', ''}} end
  end
  if not whole then return {{'broken', ARGV[i + 3]}} end
  if op == 'put' or op == 'delete' then at = redis.call('HGET', key, 'version') or '0' end
  if op == 'append' and expected ~= '' then at = redis.call('LLEN', key) end
  if at and tonumber(at) ~= tonumber(expected) then return {{'conflict', ARGV[i + 3] .. ' is at ' .. at}} end
end
for i = 1, #ARGV, 7 do
  local op, key, index, name, expected, label, body = unpack(ARGV, i, i + 6)
  if op == 'put' or op == 'delete' then
    local old = redis.call('HGET', key, 'label')
    if old then redis.call('ZREM', index .. ':' .. redis.sha1hex(old), name) end
    if op == 'put' then
      redis.call('HSET', key, 'version', tonumber(expected) + 1, 'label', label, 'body', body, 'written_s', time_s)
      redis.call('ZADD', index, 0, name)
      redis.call('ZADD', index .. ':' .. redis.sha1hex(label), 0, name)
      if index == KEYS[1] .. ':index:{WAKING}' then
        redis.call('XADD', KEYS[1] .. ':jobs', 'MAXLEN', '~', 1000, '*', 'new', '')
      end
    else
      redis.call('DEL', key)
      redis.call('ZREM', index, name)
    end
  elseif op == 'drop' then
    redis.call('DEL', key)
  else
    if op == 'chain' then
      local place, previous = redis.call('LLEN', key), '{GENESIS}'
      if place > 0 then previous = cjson.decode(redis.call('LINDEX', key, -1)).hash end
      local hash = sha256(previous .. ' ' .. place .. ' ' .. time_s .. ' ' .. label)
      body = '{{"v":2,"seq":' .. place .. ',"time_s":' .. time_s .. ',"previous":"' .. previous .. '","hash":"' .. hash
        .. '",' .. string.sub(body, 2)
    end
    redis.call('RPUSH', key, body)
  end
end
return {{'ok', time_s}}
"""
)
# Enters documents of the first schema, which had no index by label, into the indexes; ARGV: pairs of key and name.
_INDEX = """
for i = 1, #ARGV, 2 do
  local label = redis.call('HGET', ARGV[i], 'label')
  if label then
    redis.call('ZADD', KEYS[1], 0, ARGV[i + 1])
    redis.call('ZADD', KEYS[1] .. ':' .. redis.sha1hex(label), 0, ARGV[i + 1])
  end
end
"""
_BATCH = 500


class RedisStore(ThreadedStore):
    """Hashes, lists and sorted sets under `namespace`, or `?namespace=NAME` of the URL; the clock is the server's."""

    def __init__(self, url: str, *, namespace: str = "grampus", timeout_s: float = 5.0, create: bool = True) -> None:
        super().__init__(create=create)
        options = dict(parse_qsl(url.partition("#")[0].partition("?")[2]))
        self._namespace = options.pop("namespace", namespace)
        self._url = url.partition("?")[0] + (f"?{urlencode(options)}" if options else "")
        self._timeout_s = timeout_s
        self._script: Any = None
        self._heard: bytes | None = None

    def _document_key(self, kind: str, key: str) -> str:
        return f"{self._namespace}:doc:{kind}:{key}"

    def _index(self, kind: str) -> str:
        return f"{self._namespace}:index:{quote(kind, safe='')}"

    def _log_key(self, log: str) -> str:
        return f"{self._namespace}:log:{log}"

    async def now(self) -> float:
        """The server's clock."""
        return await self._run(lambda client: _seconds(client.time()))

    async def get(self, kind: str, key: str) -> Document | None:
        found = await self._run(lambda client: self._read(client, kind, [key]))
        return found[0] if found else None

    def _read(self, client: Any, kind: str, keys: list[str]) -> list[Document]:
        pipe = client.pipeline(transaction=False)
        pipe.time()
        for key in keys:
            pipe.hgetall(self._document_key(kind, key))
        now, *found = pipe.execute()
        return [_document(kind, key, raw, _seconds(now)) for key, raw in zip(keys, found, strict=True) if raw]

    async def scan(
        self,
        kind: str,
        *,
        label: str | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int | None = None,
    ) -> list[Document]:
        """Documents of a kind, by key: one range of the kind's index, or of its label's."""
        end = after_prefix(prefix)
        least = f"[{prefix}" if after is None or after < prefix else f"({after}"
        return await self._ranges(kind, label, [(least, "+" if end is None else f"({end}")], limit)

    async def children(self, kind: str, parents: Sequence[str]) -> list[Document]:
        """A range of the index for each, asked for together."""
        return await self._ranges(kind, None, [(f"[{parent}/", f"({parent}0") for parent in parents], None)

    async def _ranges(
        self, kind: str, label: str | None, ranges: Sequence[tuple[str, str]], limit: int | None
    ) -> list[Document]:
        index = self._index(kind)
        if label is not None:
            index += f":{hashlib.sha1(label.encode(), usedforsecurity=False).hexdigest()}"
        bounds = {} if limit is None else {"start": 0, "num": limit}

        def read(client: Any) -> list[Document]:
            pipe = client.pipeline(transaction=False)
            for least, most in ranges:
                pipe.zrangebylex(index, least, most, **bounds)
            keys = [key.decode() for listed in pipe.execute() for key in listed]
            found = []
            for start in range(0, len(keys), _BATCH):
                found += self._read(client, kind, keys[start : start + _BATCH])
            return [one for one in found if label is None or one.label == label]  # it may just have moved

        return await self._run(read)

    async def read(self, log: str, *, start: int = 0) -> list[str]:
        return await self._run(
            lambda client: [entry.decode() for entry in client.lrange(self._log_key(log), start, -1)]
        )

    async def write(self, *changes: Change) -> float:
        """Make all changes in one script."""
        arguments = [argument for change in changes for argument in self._arguments(change)]

        def work(client: Any) -> Any:
            return self._script(keys=[self._namespace], args=arguments, client=client)

        status, text = await self._run(work)
        if status == b"broken":
            raise StoreError(f"The Redis store holds something else where {text.decode()!r:.80} belongs.")
        if status == b"damaged":
            raise DamagedLogError("a log cannot go on: its last entry cannot be read")
        if status == b"conflict":
            raise SessionConflictError(f"{text.decode()}: another writer was first.")
        return float(text)

    async def wait_for_job(self, at_most_s: float) -> None:
        """Wait for the stream of new jobs to grow, on a connection of its own."""
        if self._ear is None:
            timeout_s = self._timeout_s + at_most_s
            self._ear = RedisStore(self._url, namespace=self._namespace, timeout_s=timeout_s, create=False)
        stream, last = f"{self._namespace}:jobs", self._heard

        def work(client: Any) -> bytes:
            if last is None:
                newest = client.xrevrange(stream, count=1)
                return bytes(newest[0][0]) if newest else b"0"
            found = client.xread({stream: last}, block=max(1, int(at_most_s * 1e3)))
            return bytes(found[0][1][-1][0]) if found else last

        self._heard = await self._ear._run(work)

    def _arguments(self, change: Change) -> list[Any]:
        if isinstance(change, Put | Delete):
            where = (self._document_key(change.kind, change.key), self._index(change.kind), change.key, change.expected)
            return ["put", *where, change.label, change.body] if isinstance(change, Put) else ["delete", *where, "", ""]
        key = self._log_key(change.log)
        if not isinstance(change, Append):
            return ["drop", key, "", change.log, "", "", ""]
        if change.expected is None:
            heads = "chain", key, "", change.log, ""
            return [part for body in change.bodies for part in (*heads, sha256_of(body), body)]
        places = [change.expected, *([""] * (len(change.bodies) - 1))]  # the others follow the first within the script
        return [
            part
            for place, body in zip(places, change.bodies, strict=True)
            for part in ("append", key, "", change.log, place, "", body)
        ]

    def _call(self, work: Callable[[Any], Result]) -> Result:
        with MissingDependencyError.unless("redis", "redis", "The Redis store"):
            redis = importlib.import_module("redis")
        with self._lock:
            try:
                if self._connection is None:
                    client = self._client(redis)
                    try:
                        self._migrate(client)
                    except BaseException:
                        client.close()
                        raise
                    self._connection, self._script = client, client.register_script(_WRITE)
                return work(self._connection)
            except (redis.RedisError, UnicodeError) as error:
                cause = f" ({error.__context__.strerror})" if isinstance(error.__context__, OSError) else ""
                raise StoreError(f"The Redis store failed: {type(error).__name__}{cause}") from error

    def _client(self, redis: Any) -> Any:
        try:
            limits = {"socket_timeout": self._timeout_s, "socket_connect_timeout": self._timeout_s}
            client = redis.Redis.from_url(self._url, **limits)
            client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)  # what it takes
            return client
        except (TypeError, ValueError):  # the words may hold a part of a password
            rule, way_out = "redis://USER:PASSWORD@HOST:PORT/NUMBER", "Percent-encode / and @ in a password."
            raise ConfigurationError.of("url", "RedisStore", rule, "another form", way_out) from None

    def _migrate(self, client: Any) -> None:
        """Bring the namespace to the newest schema; doing it twice, or side by side, does no harm."""
        schema = f"{self._namespace}:schema"
        needed, applied = (None if found is None else int(found) for found in client.mget(schema, f"{schema}:applied"))
        if needed is None and not self._create:
            raise StoreError("This Redis server holds no store of sessions under that name.")
        check_schema(needed or 0)
        version = applied or needed or SCHEMA_VERSION
        if version >= SCHEMA_VERSION and applied is not None:
            return
        kinds = f"{self._namespace}:kind:"
        if version < SCHEMA_VERSION:  # the first schema's sets: entered into the indexes, and removed by the third
            for name in client.scan_iter(match=f"{_escaped(kinds)}*", count=_BATCH):
                if version < 2:
                    self._index_kind(client, name.decode().removeprefix(kinds), name)
                client.unlink(name)
        client.mset({schema: OLDEST_SCHEMA, f"{schema}:applied": SCHEMA_VERSION})

    def _index_kind(self, client: Any, kind: str, name: bytes) -> None:
        keys = [member.decode() for member in client.sscan_iter(name, count=_BATCH)]
        for start in range(0, len(keys), _BATCH):
            pairs = [text for key in keys[start : start + _BATCH] for text in (self._document_key(kind, key), key)]
            client.eval(_INDEX, 1, self._index(kind), *pairs)


def _seconds(time: tuple[int, int]) -> float:
    return time[0] + time[1] / 1e6


def _escaped(text: str) -> str:
    return "".join(f"\\{character}" if character in "*?[]\\" else character for character in text)


def _document(kind: str, key: str, raw: dict[bytes, bytes], now_s: float) -> Document:
    return Document(
        kind=kind,
        key=key,
        version=int(raw[b"version"]),
        label=raw[b"label"].decode(),
        body=raw[b"body"].decode(),
        written_s=float(raw.get(b"written_s", 0)),
        read_s=now_s,
    )
