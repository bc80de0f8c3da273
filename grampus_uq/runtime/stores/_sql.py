"""Shared by SQLite and PostgreSQL: two tables of the same form, and the queries that read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from grampus_uq.runtime.store import Document, after_prefix
from grampus_uq.runtime.stores._thread import ThreadedStore

_NAMES = ("kind", "key", "version", "label", "body", "written_s", "read_s")


class SQLStore(ThreadedStore):
    """Reads documents by one range of an index, and logs by their places; a dialect says where it differs.

    `_columns`: a document's, in their types. `_key`: the key in the order of code points. `_clock`: seconds since 1970.
    `_by_label`: what makes the planner use the index by label. `_of_each`: for each text of a JSON array the documents
    of a range. `_mark`: a parameter.
    """

    _documents = "documents"
    _logs = "logs"
    _by_label = ""
    _columns: str
    _key = "documents.key"
    _clock: str
    _mark = "?"
    _of_each = "json_each(?) AS texts CROSS JOIN documents ON {}"

    def _rows(self, db: Any, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = db.execute(sql.replace("?", self._mark), values).fetchall()
        return found

    async def _select(self, where: str, values: Sequence[Any], source: str = "") -> list[Document]:
        sql = f"SELECT {self._columns}, {self._clock} FROM {source or self._documents} WHERE {where}"  # noqa: S608 (made of our own texts)
        rows = await self._run(lambda db: self._rows(db, sql, values))
        return [Document(**dict(zip(_NAMES, row, strict=True))) for row in rows]

    async def now(self) -> float:
        return await self._run(lambda db: float(self._rows(db, f"SELECT {self._clock}", ())[0][0]))

    async def get(self, kind: str, key: str) -> Document | None:
        found = await self._select(f"kind = ? AND {self._key} = ?", (kind, key))
        return found[0] if found else None

    async def scan(
        self,
        kind: str,
        *,
        label: str | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int | None = None,
    ) -> list[Document]:
        """Documents of a kind, by key: one range of an index."""
        # One lower bound: of two, SQLite takes the first, and walks from there.
        least, bound = (prefix, ">=") if after is None or after < prefix else (after, ">")
        where, values = f"kind = ? AND {self._key} {bound} ?", [kind, least]
        for rule, value in (("label = ?", label), (f"{self._key} < ?", after_prefix(prefix))):
            if value is not None:
                where += f" AND {rule}"
                values.append(value)
        where += f" ORDER BY {self._key}" + ("" if limit is None else f" LIMIT {limit:d}")
        return await self._select(where, values, f"{self._documents} {self._by_label}" if label is not None else "")

    async def children(self, kind: str, parents: Sequence[str]) -> list[Document]:
        """A range of the index for each parent, in one query."""
        below = f"kind = ? AND {self._key} >= texts.value || '/' AND {self._key} < texts.value || '0'"
        source = self._of_each.format(below)
        return await self._select(f"TRUE ORDER BY {self._key}", (json.dumps(parents), kind), source)

    async def read(self, log: str, *, start: int = 0) -> list[str]:
        sql = f"SELECT CAST(body AS text) FROM {self._logs} WHERE log = ? AND position >= ? ORDER BY position"  # noqa: S608 (made of our own texts)
        return await self._run(lambda db: [row[0] for row in self._rows(db, sql, (log, start))])
