"""The names of tools as a client sees them: with their server's prefix, and which servers of one proxy share one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from grampus_uq.integrations.mcp.json_rpc import Message
from grampus_uq.records.tool_names import whole_name_keys

MAX_TOOLS: Final = 10_000


class SharedNames:
    """The names that the servers of one proxy have listed since it started; look-alikes count as the same."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._owners: dict[str, set[str]] = {}

    def add(self, server: str, names: Collection[str]) -> None:
        """Take what a server lists: all of it, or nothing. Raises ValueError beyond 10,000 names of one server."""
        known = self._names.setdefault(server, set())
        new = set(names) - known
        if len(known) + len(new) > MAX_TOOLS:
            raise ValueError(f"its server listed more than {MAX_TOOLS} names of tools since the proxy started")
        known |= new
        for name in new:
            for key in whole_name_keys(name):
                self._owners.setdefault(key, set()).add(server)

    def servers(self, tool: str) -> tuple[str, ...]:
        """The servers that list a tool, under this name or one that is mistaken for it."""
        return tuple(sorted({server for key in whole_name_keys(tool) for server in self._owners.get(key, ())}))


def with_prefix(prefix: str, result: Any) -> Any:
    """The result of a `tools/list` with a prefix before each name; what is not a tool stays as it is."""
    tools = result.get("tools") if isinstance(result, dict) else None
    if not isinstance(tools, list):
        return result
    return {**result, "tools": [_named(prefix, tool) for tool in tools]}


def _named(prefix: str, tool: Any) -> Any:
    name = tool.get("name") if isinstance(tool, dict) else None
    return {**tool, "name": prefix + name} if isinstance(name, str) and name else tool


def without_prefix(prefix: str, message: Message) -> Message:
    """A call whose tool has the prefix, with the name that its server knows."""
    if not prefix:
        return message
    return message.having({**message.params, "name": message.params["name"].removeprefix(prefix)})
