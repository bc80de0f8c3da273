"""The backends of `SessionStore`, one file each, opened by URL; `check_session_store` holds them to one contract."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from urllib.parse import urlsplit

from grampus_uq.errors import ConfigurationError
from grampus_uq.runtime.store import SessionStore

_PLUGINS = "grampus_uq.stores"
_BUILT_IN = {
    "memory": "memory:MemoryStore.opened",
    "sqlite": "sqlite:SQLiteStore.opened",
    "postgresql": "postgres:PostgresStore",
    "postgres": "postgres:PostgresStore",
    "redis": "redis:RedisStore",
    "rediss": "redis:RedisStore",
    "unix": "redis:RedisStore",
}


def open_store(url: str, *, create: bool = True) -> SessionStore:
    """A store by URL: "memory:", "sqlite:///path/to/file.db" (or a bare path), "postgresql://…", "redis://…".

    Other schemes come from packages with an entry point of the group `grampus_uq.stores`: its name is the scheme, its
    object is called as `opened(url, create=…)`. With `create=False` a store that is not there is never made: every
    operation on it raises StoreError. Raises ConfigurationError for an unknown scheme, and for SQLite without a file.
    """
    if not isinstance(url, str):
        raise ConfigurationError.of("url", "open_store", "text", url, "Pass str(path).")
    scheme = urlsplit(url.partition("//")[0]).scheme  # what is behind it is the store's own to refuse
    if scheme == "" or len(scheme) == 1:  # a bare path; one letter: a Windows drive
        scheme = "sqlite"
    if scheme in _BUILT_IN:
        entry = EntryPoint(name=scheme, value=f"{__name__}.{_BUILT_IN[scheme]}", group=_PLUGINS)
    else:
        installed = entry_points(group=_PLUGINS, name=scheme)
        if not installed:
            rule = "memory:, sqlite:///FILE, postgresql://…, redis://… or a scheme of an installed store"
            raise ConfigurationError.of("url", "open_store", rule, f"{scheme}://…")
        entry = next(iter(installed))
    store: SessionStore = entry.load()(url, create=create)
    return store
