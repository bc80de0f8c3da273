"""The beginning of one session: its profile, which follows from model, prompt and tools, and the event that says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from grampus_uq.core.state import Profile
from grampus_uq.monitor.wiring import STATUS, UNKNOWN, MadeWith, Wiring
from grampus_uq.recording.artifacts import FittedFor
from grampus_uq.records.events import Event, SessionStarted


@dataclass(slots=True, kw_only=True)
class SessionScope:
    """What a session's answers are made with, and the wiring that serves it.

    `made_with` is None until the first answer says it. Facts on which answers differ are unknown from then on, and the
    run is `mixed`: what no other run is made with.
    """

    wiring: Wiring
    made_with: MadeWith | None
    advisory: bool
    mixed: bool = False

    @classmethod
    def begun(
        cls, wiring: Wiring, given: MadeWith | None, snapshot: Mapping[str, Any] | None, n_steps: int, *, advisory: bool
    ) -> SessionScope:
        """The facts that are given, and in a resumed session also those that its snapshot holds.

        Where none are given the first answer says them. Earlier releases kept none.
        """
        held, mixed = _made_with_in(snapshot or {}), (snapshot or {}).get("mixed") is True
        scope = cls(wiring=wiring, made_with=held, advisory=advisory, mixed=mixed)
        if given is not None:
            scope.take(given)
        elif held is None and n_steps:
            scope.made_with = UNKNOWN
        return scope

    def profile_in(self, wiring: Wiring) -> tuple[Profile, dict[str, str]]:
        """The profile for this session out of a wiring, and its status."""
        return wiring.profile_for(self.made_with, advisory=self.advisory)

    def take(self, now: MadeWith) -> bool:
        """Take what the next answer is made with; True where other facts are known after it than before."""
        before = self.made_with
        said = FittedFor.shared([now]).made_with
        self.mixed |= before not in (None, said)
        self.made_with = said if before is None else FittedFor.shared([before, said]).made_with
        return self.made_with != before


class Opening:
    """Emits a session's events, the first one after its beginning: until then its first answer may complete that."""

    def __init__(self, emit: Callable[[Event], None], started: SessionStarted) -> None:
        self._emit = emit
        self._started = started
        self.told = False

    def __call__(self, event: Event) -> None:
        self.tell()
        self._emit(event)

    def tell(self) -> None:
        """Emit the beginning, once."""
        if not self.told:
            self.told = True
            self._emit(self._started)

    def change(self, made_with: MadeWith, status: Mapping[str, str]) -> None:
        """Other facts are known: they stand in the beginning, or, where that was emitted, in one that goes on."""
        self._started = with_scope(self._started, made_with, status)
        if self.told:
            self._emit(replace(self._started, resumed=True, time_s=time.time()))


def with_scope(started: SessionStarted, made_with: MadeWith | None, status: Mapping[str, str]) -> SessionStarted:
    """The beginning of a session with these facts, and the status of its profile."""
    model, prompt, tools = made_with or UNKNOWN
    others = {name: text for name, text in started.metadata.items() if name not in STATUS}
    return replace(started, model=model, prompt_hash=prompt, tools_hash=tools, metadata={**status, **others})


def _made_with_in(snapshot: Mapping[str, Any]) -> MadeWith | None:
    """The facts that a snapshot holds, if it holds them."""
    try:
        model, prompt, tools = snapshot["made_with"]
        if isinstance(model, str) and all(fact is None or isinstance(fact, str) for fact in (prompt, tools)):
            return model, prompt, tools
    except (KeyError, TypeError, ValueError):
        pass
    return None
