"""What a tool does to the world: read, reversible, irreversible, or unknown until somebody says.

Sources, strongest first: what the tool's own definition or the user says by name, a predicate on the arguments, glob
patterns, MCP annotations. Whatever raises the danger wins: a predicate, an annotation or the guide's name rule may make
a call irreversible, none of them makes an irreversible tool harmless. MCP annotations come from the server, which is
not trusted: they may raise danger, never lower it.
"""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Callable, Mapping
from typing import Any

from grampus_uq.errors import ConfigurationError
from grampus_uq.records import ToolCall
from grampus_uq.vocabulary import Effect

__all__ = ["ToolEffects"]

Predicate = Callable[[ToolCall], Effect | None]

_DANGER = {Effect.READ: 0, Effect.REVERSIBLE: 1, Effect.UNKNOWN: 1, Effect.IRREVERSIBLE: 2}
_MAX_UNCLASSIFIED = 1_000


class ToolEffects:
    """Resolves the effect of a proposed call, and remembers which tools nobody ever classified.

    `by_name` holds exact names, `patterns` glob patterns ("delete_*"), `predicates` functions of the whole call by name
    (returning an effect, or None for no opinion; one that raises counts as IRREVERSIBLE), `mcp` the annotations of MCP
    tools by name. `unknown_is_irreversible` treats every tool that nobody classified as irreversible.
    """

    def __init__(
        self,
        by_name: Mapping[str, Effect | str] | None = None,
        *,
        patterns: Mapping[str, Effect | str] | None = None,
        predicates: Mapping[str, Predicate] | None = None,
        mcp: Mapping[str, Mapping[str, Any]] | None = None,
        unknown_is_irreversible: bool = False,
    ) -> None:
        self._by_name = {_named(name): Effect(effect) for name, effect in (by_name or {}).items()}
        self._patterns = {_named(pattern): Effect(effect) for pattern, effect in (patterns or {}).items()}
        self._predicates = {_named(name): predicate for name, predicate in (predicates or {}).items()}
        self._mcp = {_named(name): dict(notes) for name, notes in (mcp or {}).items()}
        self._unknown_is_irreversible = unknown_is_irreversible
        self._unclassified: set[str] = set()
        self._lock = threading.Lock()

    def resolve(self, call: ToolCall, declared: Effect | None = None) -> Effect:
        """The effect of this call; `declared` is what the tool's own definition says."""
        effect = self._by_name.get(call.name, declared)
        if effect is None or effect is Effect.UNKNOWN:
            matching = [e for pattern, e in self._patterns.items() if fnmatch.fnmatchcase(call.name, pattern)]
            effect = max(matching, key=_DANGER.__getitem__) if matching else Effect.UNKNOWN
        for opinion in (self._predicate(call), self._annotated(call.name)):
            if opinion is not None and _DANGER[opinion] > _DANGER[effect]:
                effect = opinion
        if effect is Effect.UNKNOWN:
            self._note(call.name)
            if self._unknown_is_irreversible:
                return Effect.IRREVERSIBLE
        return effect

    def _predicate(self, call: ToolCall) -> Effect | None:
        predicate = self._predicates.get(call.name)
        if predicate is None:
            return None
        try:
            opinion = predicate(call)
            return None if opinion is None else Effect(opinion)
        except Exception:  # noqa: BLE001 (user code on hostile arguments: what cannot be judged is dangerous)
            return Effect.IRREVERSIBLE

    def _annotated(self, name: str) -> Effect | None:
        """MCP's destructiveHint; its readOnlyHint is only the server's word and lowers nothing."""
        notes = self._mcp.get(name)
        return Effect.IRREVERSIBLE if notes is not None and notes.get("destructiveHint") is True else None

    def _note(self, name: str) -> None:
        with self._lock:
            if len(self._unclassified) < _MAX_UNCLASSIFIED:
                self._unclassified.add(name)

    def unclassified(self) -> list[str]:
        """Names of the tools that were called and that nobody ever classified, sorted."""
        with self._lock:
            return sorted(self._unclassified)


def _named(name: str) -> str:
    if not name.strip():
        raise ConfigurationError.of(
            "name", "ToolEffects", "a non-empty name or pattern", name, "An empty pattern would match nothing or all."
        )
    return name
