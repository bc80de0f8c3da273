"""The text that a recording keeps: everything, keyed hashes, or nothing; never less than a replay reads.

The key of a folder's hashes is made once, by whichever process comes first.

Numbers, names, effects, digests and readings always stay, because the engine computes from them and a replay must give
the same assessments. Free text (what the model, a tool or a human wrote, and the arguments of calls) goes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from grampus_uq.core.decision import CHAIN
from grampus_uq.errors import DataError
from grampus_uq.recording.codec import MAX_LINE_BYTES, Content, encode
from grampus_uq.recording.whole_file import place_new
from grampus_uq.records.call_parts import without_values
from grampus_uq.records.events import PERMIT, DecisionEvent, Event, LookEvent, ObservationEvent, OutcomeEvent, StepEvent
from grampus_uq.records.values import Reading, ToolCall, canonical_json
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates

HASHED_ARGUMENTS: Final = "_hashed"
"""The one argument that stands for all arguments of a call whose content was hashed."""

_PROMISING: Final = (PERMIT, CHAIN)  # their message is the promise, in words of this package
_KEY_FILE: Final = ".hash-key"
_KEY_BYTES: Final = 32


def kept_line(event: Event, content: Content, key: Callable[[], bytes]) -> bytes:
    """The event as a line of a recording; one that nobody could read back in full is kept hashed, by `key`.

    Raises DataError when no form of it can be written.
    """
    kept = redact(event, content, key() if content == "hashed" else b"")
    try:
        try:
            line = encode(kept, content=content)
        except DataError:  # only a lone surrogate can be mended; anything else is refused again
            line = encode(unicode_only(kept), content=content)
        if len(line) > MAX_LINE_BYTES:
            raise DataError(f"an event of {len(line)} bytes is longer than {MAX_LINE_BYTES}.")
    except DataError:
        if content != "full":
            raise
        return kept_line(event, "hashed", key)
    return line


def redact(event: Event, content: Content, key: bytes) -> Event:
    """Return the event with its free text as it is (`full`), as keyed hashes (`hashed`), or empty (`none`).

    Changed: text and call arguments of a step, arguments of a look's call, token log-probabilities (their tokens spell
    the text, so they are None unless `full`), the detail of a reading, the likely values in its parts (left out), the
    text of an observation, the message of a decision (but the promise of a permit or chain is never hashed), the note
    of an outcome. Equal texts give equal hashes under the same key, so that repetitions still show. Everything else,
    including the metadata that the user attached to the session, stays.
    """
    if content == "full":
        return event
    if isinstance(event, StepEvent):
        step = replace(
            event.step,
            text=_text(event.step.text, content, key),
            tool_calls=tuple(_call(call, content, key) for call in event.step.tool_calls),
            logprobs=None,
        )
        return replace(event, step=step, readings=tuple(_reading(reading, content, key) for reading in event.readings))
    if isinstance(event, ObservationEvent):
        return replace(event, text=_text(event.text, content, key))
    if isinstance(event, LookEvent) and event.call is not None:
        return replace(event, call=_call(event.call, content, key))
    if isinstance(event, DecisionEvent) and (content == "none" or event.decision not in _PROMISING):
        return replace(event, message=_optional(event.message, content, key))
    if isinstance(event, OutcomeEvent):
        return replace(event, outcome=replace(event.outcome, note=_optional(event.outcome.note, content, key)))
    return event


def hashed(text: str, key: bytes) -> str:
    """HMAC-SHA-256 of a text under the key, shortened to 128 bits, and the number of characters.

    >>> hashed("Paris", b"k" * 32)
    'hmac:712361eb17a763420c09c1b7416909dc:5'
    """
    digest = hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
    return f"hmac:{digest[:32]}:{len(text)}"


def unicode_only(event: Event) -> Event:
    """Return the event with the lone surrogates of any text replaced by U+FFFD: models do send half an emoji."""
    adapter: TypeAdapter[Event] = TypeAdapter(type(event))
    return adapter.validate_python(_valid(adapter.dump_python(event)))


def _text(text: str, content: Content, key: bytes) -> str:
    return hashed(text, key) if text and content == "hashed" else ""


def _optional(text: str | None, content: Content, key: bytes) -> str | None:
    return None if text is None or content == "none" else hashed(text, key)


def _call(call: ToolCall, content: Content, key: bytes) -> ToolCall:
    if not call.arguments:
        return call
    if content == "none":
        return call.model_copy(update={"arguments": {}})
    # allow_nan would refuse an argument that only a broken model can send; here it is merely hashed.
    try:
        written = canonical_json(call.arguments)
    except (ValueError, RecursionError):
        written = "<arguments that are not JSON>"
    return call.model_copy(update={"arguments": {HASHED_ARGUMENTS: hashed(written, key)}})


def _reading(reading: Reading, content: Content, key: bytes) -> Reading:
    parts = tuple([without_values(part) for part in reading.parts])
    return replace(reading, detail=_optional(reading.detail, content, key), parts=parts)


def _valid(value: Any) -> Any:
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    if isinstance(value, list | tuple):
        return type(value)(map(_valid, value))
    if isinstance(value, dict):
        return {_valid(name): _valid(item) for name, item in value.items()}
    return value


def folder_key(folder: Path) -> bytes:
    """Return the key of the folder, 32 random bytes, readable by the owner only; make it when there is none.

    No process reads half a key, and of several that make one at once the first one's counts. Raises DataError when the
    file does not hold 32 bytes.
    """
    path = folder / _KEY_FILE
    if not path.exists():
        with suppress(FileExistsError):  # another process was first
            place_new(secrets.token_bytes(_KEY_BYTES), path, sync=True)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise DataError(f"must hold {_KEY_BYTES} bytes. Got {len(key)}.", path=os.fspath(path))
    return key
