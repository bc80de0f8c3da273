"""Effects of tools: read, reversible, irreversible, or unknown until classified.

Sources, strongest first: what the tool's own definition or the user says by name, a predicate on the arguments, glob
patterns, MCP annotations. Whatever raises the danger wins: a predicate, an annotation or the policy's names may make a
call irreversible, none of them makes an irreversible tool harmless. MCP annotations come from the server, which is
not trusted: they may raise danger, never lower it, except for tools of a server that the user marks as trusted
(`annotated`): those they classify where nobody else said anything.

What is said of a name is said of its other spellings too (`tool_names`: case, separators, namespaces and prefixes in
front, look-alike letters) as far as it raises danger: `pay` says it of `bank_pay`, unless that has a word of its own.
What lowers it holds for the exact name alone.
"""

from __future__ import annotations

import copy
import fnmatch
import functools
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.configuration import checked
from grampus_uq.records.tool_names import glob_keys, reordered, same_tool_keys, whole_name_keys
from grampus_uq.records.values import ToolCall
from grampus_uq.records.vocabulary import Effect, parse_effect
from grampus_uq.signals.driver import AT_ONCE

Predicate = Callable[[ToolCall], Effect | str | None]
T = TypeVar("T")

_DANGER = {Effect.READ: 0, Effect.REVERSIBLE: 1, Effect.UNKNOWN: 1, Effect.IRREVERSIBLE: 2}
_MAX_UNCLASSIFIED = 1_000
_MAX_KNOWN_LENGTH = 256


@checked
class ToolEffects:
    """Resolves the effect of a proposed call, and records unclassified tools.

    `by_name` holds exact names, `patterns` glob patterns ("delete_*"), `predicates` functions of the whole call by name
    (returning an effect, or None for no opinion; one that raises counts as IRREVERSIBLE), `mcp` the annotations of MCP
    tools by name. `unknown_is_irreversible` treats every unclassified tool as irreversible.
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
        self._by_name = _read(by_name)
        self._patterns = _read(patterns)
        self._grave = frozenset(key for name in _irreversible(self._by_name) for key in whole_name_keys(name))
        self._grave_globs = [key for glob in _irreversible(self._patterns) for key in glob_keys(glob)]
        self._predicates = _by_spelling(predicates)
        self._mcp = _by_spelling(mcp)
        self._trusted: dict[str, Effect] = {}
        self._unknown_is_irreversible = unknown_is_irreversible
        self._known = functools.lru_cache(maxsize=_MAX_UNCLASSIFIED)(self._of_name)  # asked four times a call
        self._unclassified: set[str] = set()
        self._lock = threading.Lock()

    def annotated(self, annotations: Mapping[str, Mapping[str, Any]], *, trusted: Collection[str] = ()) -> ToolEffects:
        """A copy with these MCP annotations by tool name, replacing earlier ones.

        `destructiveHint` raises the effect of any tool to irreversible, and so does `readOnlyHint: false` without a
        `destructiveHint: false` (the protocol's default). For the names in `trusted`, and only where no name, pattern
        or definition said anything, `readOnlyHint` makes it a read, and `destructiveHint: false` with `openWorldHint:
        false` reversible. A hint that is not a boolean lowers nothing; `idempotentHint` changes nothing, as an effect
        that comes once is there.
        """
        new = copy.copy(self)
        new._mcp, new._unclassified = _by_spelling(annotations), set()
        hints = ((name, _lowered(annotations[name])) for name in trusted if name in annotations)
        new._trusted = {name: effect for name, effect in hints if effect is not None}
        new._known = functools.lru_cache(maxsize=_MAX_UNCLASSIFIED)(new._of_name)
        return new

    def resolve(self, call: ToolCall, declared: Effect | str | None = None) -> Effect:
        """The effect of this call; `declared` is what the tool's own definition says."""
        known = parse_effect(declared, "ToolEffects.resolve")
        effect = (self._known if len(call.name) <= _MAX_KNOWN_LENGTH else self._of_name)(call.name, known)
        if self._predicates:
            for predicate in _spelt(self._predicates, same_tool_keys(call.name)):
                effect = max(effect, _opinion(predicate, call) or effect, key=_DANGER.__getitem__)
        if effect is Effect.UNKNOWN:
            self._note(call.name)
            if self._unknown_is_irreversible:
                return Effect.IRREVERSIBLE
        return effect

    def _of_name(self, name: str, declared: Effect | None) -> Effect:
        """Return the effect by name, pattern, annotation and spelling, independent of the arguments."""
        effect = self._by_name.get(name) or declared
        keys = same_tool_keys(name)
        if effect is None or effect is Effect.UNKNOWN:
            matching = [e for pattern, e in self._patterns.items() if fnmatch.fnmatchcase(name, pattern)]
            effect = max(matching, key=_DANGER.__getitem__) if matching else Effect.UNKNOWN
            if effect is Effect.UNKNOWN:
                effect = self._trusted.get(name, effect)
            if any(fnmatch.fnmatchcase(key, glob) for glob in self._grave_globs for key in keys):
                return Effect.IRREVERSIBLE
        destructive = any(map(_destroys, _spelt(self._mcp, keys)))
        misspelt = name not in self._by_name and (reordered(name) or not self._grave.isdisjoint(keys))
        return Effect.IRREVERSIBLE if destructive or misspelt else effect

    def _note(self, name: str) -> None:
        if name in self._unclassified:
            return
        with self._lock:
            if len(self._unclassified) < _MAX_UNCLASSIFIED:
                self._unclassified.add(name)

    def unclassified(self) -> list[str]:
        """Sorted names of the called tools without a classification."""
        with self._lock:
            return sorted(self._unclassified)


def _opinion(predicate: Predicate, call: ToolCall) -> Effect | None:
    try:
        return parse_effect(predicate(call), "predicate")
    except AT_ONCE:  # user code on hostile arguments: what cannot be judged is dangerous
        return Effect.IRREVERSIBLE


def _destroys(notes: Mapping[str, Any]) -> bool:
    """True when a tool's annotations say that it destroys; a value that is not a boolean is read as the graver one."""
    said = notes.get("destructiveHint")
    return not (said is None or said is False) or (said is None and notes.get("readOnlyHint") is False)


def _lowered(notes: Mapping[str, Any]) -> Effect | None:
    """Return the effect below destructive that a trusted server's annotations state; None if they state none."""
    if notes.get("readOnlyHint") is True:
        return Effect.READ
    closed = notes.get("destructiveHint") is False and notes.get("openWorldHint") is False
    return Effect.REVERSIBLE if closed else None


def _read(effects: Mapping[str, Effect | str] | None) -> dict[str, Effect]:
    parsed = {_named(name): parse_effect(effect, "ToolEffects") for name, effect in (effects or {}).items()}
    return {name: Effect.UNKNOWN if effect is None else effect for name, effect in parsed.items()}


def _irreversible(effects: Mapping[str, Effect]) -> list[str]:
    return [name for name, effect in effects.items() if effect is Effect.IRREVERSIBLE]


def _by_spelling(values: Mapping[str, T] | None) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for name, value in (values or {}).items():
        for key in whole_name_keys(_named(name)):
            found.setdefault(key, []).append(value)
    return found


def _spelt(values: Mapping[str, list[T]], keys: tuple[str, ...]) -> list[T]:
    """Return the distinct values given for any spelling of a name."""
    return list({id(value): value for key in keys for value in values.get(key, ())}.values()) if values else []


def _named(name: str) -> str:
    if not name.strip():
        raise ConfigurationError.of(
            "name", "ToolEffects", "a non-empty name or pattern", name, "An empty pattern would match nothing or all."
        )
    return name
