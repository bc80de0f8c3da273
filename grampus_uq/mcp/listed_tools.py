"""The tools that a server lists: what their definitions say of their effects, and the pins of their definitions.

An annotation is the server's word. It may raise the danger of a tool; it lowers it only for a server that the user
marked as trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from grampus_uq.gate.effects import ToolEffects
from grampus_uq.mcp.pins import Pin, pinned

_MAX_TOOLS: Final = 10_000


class ListedTools:
    """The tools of one server, as its latest lists gave them; `names` collects their names over sessions."""

    def __init__(self, effects: ToolEffects, *, trusted: bool = False, names: set[str] | None = None) -> None:
        self._effects, self._trusted, self._names = effects, trusted, set() if names is None else names
        self._tools: dict[str, Mapping[str, Any]] = {}
        self._pins: dict[str, Pin] = {}

    def take(self, result: Any) -> None:
        """Take the result of a `tools/list`, as far as it can be read; a page adds to those before it."""
        tools = result.get("tools") if isinstance(result, dict) else None
        for tool in tools if isinstance(tools, list) else ():
            name = tool.get("name") if isinstance(tool, dict) else None
            if not isinstance(name, str) or (name not in self._tools and len(self._tools) >= _MAX_TOOLS):
                continue
            self._tools[name] = tool
            if len(self._names) < _MAX_TOOLS:
                self._names.add(name)
            self._pins.pop(name, None)
            try:
                self._pins[name] = pinned(tool)
            except ValueError:
                self._pins[name] = Pin(name=name, digest="unreadable", definition=None)

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def pin(self, name: str) -> Pin | None:
        """The pin of a listed tool."""
        return self._pins.get(name)

    def schema(self, name: str) -> Mapping[str, Any] | None:
        """The JSON schema of a listed tool's arguments."""
        found = self._tools.get(name, {}).get("inputSchema")
        return found if isinstance(found, dict) else None

    def effects(self) -> ToolEffects:
        """What is configured of effects, with the annotations of the listed tools."""
        notes = {name: tool["annotations"] for name, tool in self._tools.items() if _annotates(name, tool)}
        return self._effects.annotated(notes, trusted=notes if self._trusted else ())


def _annotates(name: str, tool: Mapping[str, Any]) -> bool:
    return bool(name.strip()) and isinstance(tool.get("annotations"), dict)
