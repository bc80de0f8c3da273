"""The tools that a server lists: what their definitions say of their effects, and the pins of their definitions.

An annotation is the server's word. It may raise the danger of a tool; it lowers it only for a server that the user
marked as trusted. Which of several lists a client took to its model is not known here: a client may refuse one that is
read here. So every definition counts that was shown since a call of the tool was cleared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from grampus_uq.gate.effects import ToolEffects
from grampus_uq.integrations.mcp.pins import Pin, pinned
from grampus_uq.integrations.mcp.shown_names import MAX_TOOLS

_MAX_NAME: Final = 256
_MAX_SIZE: Final = 8_000_000
_MOST_SHOWN: Final = 4
_MAX_EARLIER: Final = 1_000_000
"""So many characters of definitions before the latest are kept, to be shown; beyond, their digests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    definition: Mapping[str, Any]
    pin: Pin
    size: int


class ListedTools:
    """The tools of one server by its latest lists; `told` sees each list's names first, and may raise ValueError."""

    def __init__(
        self, effects: ToolEffects, *, trusted: bool = False, told: Callable[[Collection[str]], None] | None = None
    ) -> None:
        self._effects, self._trusted, self._told = effects, trusted, told
        self._tools: dict[str, _Listed] = {}
        self._listing: dict[str, _Listed] = {}
        self._shown: dict[str, tuple[Pin, ...]] = {}

    def take(self, result: Any, *, begins: bool = True) -> None:
        """Take the result of a `tools/list`: all of it, or nothing. A page that does not begin a list adds to it.

        Raises ValueError for what could not be compared with what is listed later.
        """
        if not isinstance(result, dict) or "tools" not in result:
            return
        if not isinstance(result["tools"], list):
            raise ValueError("its tools are not a list")
        listing = {} if begins else dict(self._listing)
        for tool in result["tools"]:
            name = tool.get("name") if isinstance(tool, dict) else None
            if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
                raise ValueError(f"a tool's name is not text of 1 to {_MAX_NAME} characters")
            one = _Listed(definition=tool, pin=pinned(tool), size=len(json.dumps(tool)))
            listing[name] = one if name not in listing else _both(listing[name], one)
        tools = self._tools | listing
        if len(tools) > MAX_TOOLS or sum(one.size for one in tools.values()) > _MAX_SIZE:
            raise ValueError(f"it is longer than {MAX_TOOLS} tools or {_MAX_SIZE} characters")
        if self._told is not None:
            self._told(listing.keys())
        self._tools, self._listing = tools, listing
        for name, one in listing.items():
            self._shown[name] = _with_latest(self._shown.get(name, ()), one.pin)
        if sum(len(pin.definition or "") for pins in self._shown.values() for pin in pins[:-1]) > _MAX_EARLIER:
            self._shown = {
                name: (*(replace(pin, definition=None) for pin in earlier), latest)
                for name, (*earlier, latest) in self._shown.items()
            }

    def pin(self, name: str) -> Pin | None:
        """The pin of a listed tool, as the latest list gave it."""
        return self._tools[name].pin if name in self._tools else None

    def shown(self, name: str) -> tuple[Pin, ...]:
        """Each definition of a tool that was shown since a call of it was cleared, the latest last; at most four.

        Of more, those between are one pin without a text, which no definition has.
        """
        return self._shown.get(name, ())

    def note_cleared(self, shown: tuple[Pin, ...]) -> None:
        """A call was cleared that was judged by these definitions: only the latest of them counts from now on."""
        if len(shown) > 1:
            *before, latest = self._shown[shown[-1].name]
            settled = {pin.digest for pin in shown[:-1]}
            self._shown[latest.name] = (*(pin for pin in before if pin.digest not in settled), latest)

    def version(self, name: str) -> str:
        """The version that permits on a tool's calls are bound to: its definition; "" for a tool that no list named."""
        pin = self.pin(name)
        return "" if pin is None else pin.digest

    def schema(self, name: str) -> Mapping[str, Any] | None:
        """The JSON schema of a listed tool's arguments."""
        found = self._tools[name].definition.get("inputSchema") if name in self._tools else None
        return found if isinstance(found, dict) else None

    def effects(self) -> ToolEffects:
        """The configured effects, with the annotations of the listed tools."""
        annotated = {name: tool.definition.get("annotations") for name, tool in self._tools.items() if name.strip()}
        notes = {name: given for name, given in annotated.items() if isinstance(given, dict)}
        return self._effects.annotated(notes, trusted=notes if self._trusted else ())


def _both(one: _Listed, other: _Listed) -> _Listed:
    """A tool that one list defines twice: a client may show either, so that it is neither, and may be dangerous."""
    if one.pin.digest == other.pin.digest:
        return one
    definition = {**other.definition, "annotations": {"destructiveHint": True}}
    return _Listed(definition=definition, pin=_one_pin(one.pin, other.pin), size=one.size + other.size)


def _one_pin(one: Pin, other: Pin) -> Pin:
    """A pin of two definitions, which is that of neither."""
    digests = "".join(sorted([one.digest, other.digest]))
    return Pin(name=one.name, digest=hashlib.sha256(digests.encode()).hexdigest(), definition=None)


def _with_latest(shown: tuple[Pin, ...], latest: Pin) -> tuple[Pin, ...]:
    if shown and shown[-1].digest == latest.digest:
        return shown
    before = tuple(pin for pin in shown if pin.digest != latest.digest)
    if len(before) >= _MOST_SHOWN:
        before = (*before[:-2], _one_pin(before[-2], before[-1]))
    return (*before, latest)
