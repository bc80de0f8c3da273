"""The texts of a step that may leave in telemetry: none by default; names only in the shape of a name."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection
from typing import Final

from grampus_uq.records.events import StepEvent
from grampus_uq.records.values import canonical_json
from grampus_uq.telemetry.metric_labels import OTHER

Redact = Callable[[str, str], str | None]
"""Takes an attribute's key and its text; returns the text that may leave, or None for nothing."""

_log = logging.getLogger("grampus_uq.telemetry")
_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_MOST_CHARACTERS: Final = 8192


def plain_name(name: str, known: Collection[str] | None) -> str:
    """The name, when it is one of the known ones, or, with none given, looks like a name; else "other".

    A model may propose a call of any text as a tool: a sentence, or a secret that it was told. 64 letters, digits and
    `_.:/-` are what the providers allow as names.
    """
    if known is not None:
        return name if name in known else OTHER
    return name if _NAME.fullmatch(name) else OTHER


def content_attributes(event: StepEvent, redact: Redact | None) -> dict[str, str]:
    """The model's answer, or the arguments of a tool step's call, in the form of the GenAI conventions."""
    step, texts = event.step, {}
    if step.kind == "tool_call":
        if step.tool_calls:
            texts["gen_ai.tool.call.arguments"] = canonical_json(step.tool_calls[0].arguments)
    elif step.text:
        texts["gen_ai.output.messages"] = step.text
    kept = {}
    for key, text in texts.items():
        shown = _redacted(key, text, redact)
        if shown is not None:
            kept[key] = shown = shown[:_MOST_CHARACTERS]
            if key == "gen_ai.output.messages":
                message = {"role": "assistant", "parts": [{"type": "text", "content": shown}]}
                kept[key] = json.dumps([message], ensure_ascii=False)
    return kept


def _redacted(key: str, text: str, redact: Redact | None) -> str | None:
    if redact is None:
        return text
    try:
        return redact(key, text)
    except Exception as error:  # noqa: BLE001 (somebody else's hook: what it cannot judge does not leave)
        _log.warning("the redaction hook raised %s: the text was left out", type(error).__name__)
        return None
