"""Protocols for user-supplied parts, with the package's promises to their implementations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import JsonValue

from grampus_uq.records.events import Event
from grampus_uq.records.values import Message, ModelResponse, Reading, Step

if TYPE_CHECKING:  # numpy takes as long to import as the rest of the core together
    import numpy as np
    import numpy.typing as npt


@runtime_checkable
class ModelClient(Protocol):
    """A chat model.

    `complete` is awaited on the caller's event loop and must not block it. It may raise; it must let cancellation
    through. What it returns has `content`, `tool_calls` and `token_usage`, and may have `logprobs`. Keywords are passed
    only when they are needed: a client that takes no `temperature`, `max_tokens`, `top_logprobs`, `tools` or
    `response_format` is called without it. Several calls may be in flight at once.
    """

    # No keyword beside these two, and the reply is any object: a client that spells out `temperature: float = 0`, or
    # returns a class of its own, is one too. `ask_model` looks at the signature and parses what comes back.
    async def complete(self, *, messages: list[Message], model: str) -> Any:
        """Answer the messages."""
        ...


class SenseContext(Protocol):
    """Context of a signal besides the step: the prompt, and a metered, bounded way to ask the model."""

    @property
    def messages(self) -> Sequence[Message]:
        """The prompt that the step answered."""
        ...

    @property
    def tools(self) -> Sequence[Mapping[str, Any]] | None:
        """The tools that the agent may propose, as JSON schemas: what a repeated draw of the step needs."""
        ...

    async def ask(self, messages: Sequence[Message], **options: Any) -> ModelResponse:
        """Ask the model within the signal's budget of calls, tokens and time.

        Raises `ModelError`, also on a step without a model: the driver makes it a missing reading with the reason.
        """
        ...


@runtime_checkable
class InstantSignal(Protocol):
    """A signal that needs no model and no waiting: arithmetic on the step. Called on the event loop; microseconds.

    One object serves all sessions of a monitor at once, and a step names no session: keep nothing of one in it.
    """

    @property
    def source(self) -> str:
        """Name of the reading, unique within a monitor."""
        ...

    def read(self, step: Step) -> Reading:
        """Read the step. What it raises becomes a missing reading with reason `signal_error`."""
        ...


@runtime_checkable
class Signal(Protocol):
    """A signal that may ask a model, or read the prompt. Awaited beside other signals; bounded by the driver.

    One object serves all sessions of a monitor at once, and a step names no session: keep nothing of one in it.
    """

    @property
    def source(self) -> str:
        """Name of the reading, unique within a monitor."""
        ...

    async def sense(self, step: Step, context: SenseContext) -> Reading:
        """Read the step; never sleeps, retries or changes the caller's model."""
        ...


@runtime_checkable
class Processor(Protocol):
    """Takes events out of the monitor: spans, metrics, log lines, recordings.

    `on_event` is called on the thread that committed the event, in commit order for a session, with the caller's
    context variables. It must not block. What it raises is logged once and counted, and never reaches the agent.
    """

    def on_event(self, event: Event) -> None:
        """Take one event."""
        ...


@runtime_checkable
class ResumableProcessor(Processor, Protocol):
    """A processor with something of each session that must survive a snapshot: the place in a trace, for example.

    As for `on_event`: no call may block; what one raises is logged once and counted.
    """

    @property
    def snapshot_key(self) -> str:
        """Name of its entry in a snapshot, unique among the processors."""
        ...

    def begin(self, session_id: str, entry: Mapping[str, Any] | None, /) -> None:
        """A session begins, before its first event; with `entry`, it resumes from a snapshot that has one."""
        ...

    def snapshot(self, session_id: str, /) -> Mapping[str, JsonValue] | None:
        """The session's entry now; None where there is none."""
        ...


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors. Called in a worker thread; equal texts give equal vectors."""

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return one row a text, of unit length or all zeros (for a text without content)."""
        ...
