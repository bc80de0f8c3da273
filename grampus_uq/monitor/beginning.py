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

    `made_with` is None until the first answer says it. Facts on which answers differ are unknown from then on.
    """

    wiring: Wiring
    made_with: MadeWith | None
    advisory: bool

    def profile_in(self, wiring: Wiring) -> tuple[Profile, dict[str, str]]:
        """The profile for this session out of a wiring, and its status."""
        return wiring.profile_for(self.made_with, advisory=self.advisory)

    def take(self, now: MadeWith) -> bool:
        """Take what the next answer is made with; True where other facts are known after it than before."""
        before = self.made_with
        if now != before or "" in now[1:]:  # most answers of a run are made with the same
            self.made_with = FittedFor.shared([now if before is None else before, now]).made_with
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


def scope_in(snapshot: Mapping[str, Any] | None, n_steps: int, given: MadeWith | None) -> MadeWith | None:
    """The facts that a snapshot holds, and that are the same in those given for the answers from now on, if they are.

    None for a session without a step, whose first answer says them. Earlier releases kept none.
    """
    try:
        model, prompt, tools = (snapshot or {})["made_with"]
        if isinstance(model, str) and all(fact is None or isinstance(fact, str) for fact in (prompt, tools)):
            held = model, prompt, tools
            return held if given is None else FittedFor.shared([held, given]).made_with
    except (KeyError, TypeError, ValueError):
        pass
    return given or (UNKNOWN if n_steps else None)
