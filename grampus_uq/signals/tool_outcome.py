"""Events in a tool's answer: failed call, repeated call, repeated answer.

These three events are not in the TRACER paper. They are offered beside its components because, on published runs, their
sum separates failures better than the paper's score does (see `stats.trajectory_risk.extended_sum`).
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final

from grampus_uq.signals.turn_events import READ_CHARACTERS, Observation

REMEMBERED: Final = 1024
"""Different calls, and different observations, that a session remembers; the oldest are forgotten first."""

# Anchored and bounded, so that reading is linear in the text whatever the text is. Tool output is hostile.
_OPENING = re.compile(
    r"[\s\W]{0,8}(?:"
    r"(?:tool )?(?:error|exception|failure|fatal)(?:\s{0,2}(?:[:(\[\]\-–—!]|\d{3}\b|$)"
    r"| (?:in|at|while|when|during|executing|calling|running|occurred|code)\b)"
    r"|(?:[a-z_][\w.]{0,79})?(?:error|exception)\s{0,2}[:(\[]"
    r"|failed(?: to\b| with\b|\s{0,2}[:(\[\-–—!]|$)"
    r"|(?:http(?:/\d(?:\.\d)?)?|status(?:[ _]code)?)[\s:=]{0,3}[45]\d\d\b"
    r"|traceback \(most recent call last\)"
    r")",
    re.IGNORECASE,
)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):", re.MULTILINE)
_FAILED_STATUS: Final = frozenset({"error", "failed", "failure", "fatal"})


def failed(observation: Observation) -> bool:
    """Say whether a tool call failed.

    The executor's own word decides when there is one (`is_error`). Otherwise the text is read: a JSON object that
    says so in a field (`error`, `errors`, `exception`; `success`, `ok` false; `status` error or >= 400; `is_error`,
    `isError`; a nonzero `exit_code`, `returncode`), or a text that opens as an error message does, or that holds a
    Python traceback.

    A word alone is not enough: "Error handling guide", "No errors found" and {"error": null} are successes. An error
    that a tool puts into plain prose is missed, and a log file that is read and holds a traceback counts as a
    failure: an executor that knows should say so.

    >>> failed(Observation(text="Error: payment method not found")), failed(Observation(text="No errors found"))
    (True, False)
    """
    if observation.is_error is not None:
        return observation.is_error
    text = observation.text[:READ_CHARACTERS].strip()
    if text.startswith("{"):
        fields = _object(observation.text) if len(observation.text) <= READ_CHARACTERS else None
        if fields is not None:
            return _says_failed(fields)
    return _OPENING.match(text) is not None or _TRACEBACK.search(text) is not None


def digest_of(text: str) -> str:
    """Give the 128-bit digest by which a call or an observation is remembered; blanks at its ends are dropped."""
    return hashlib.blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def remembered(memory: tuple[str, ...], digest: str) -> tuple[str, ...]:
    """Add a digest to a bounded memory, `REMEMBERED` long; one that is there already stays where it is."""
    return memory if digest in memory else (*memory, digest)[-REMEMBERED:]


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # not JSON, an integer of thousands of digits, or nested without end
        return None
    return value if isinstance(value, dict) else None


def _says_failed(fields: dict[str, Any]) -> bool:
    if any(fields.get(name) for name in ("error", "errors", "exception")):
        return True
    if any(fields.get(name) is False for name in ("success", "ok")):
        return True
    if any(fields.get(name) is True for name in ("is_error", "isError")):
        return True
    if any(_number(fields.get(name)) not in (None, 0) for name in ("exit_code", "returncode")):
        return True
    for name in ("status", "status_code"):
        status = fields.get(name)
        number = _number(status)
        if (isinstance(status, str) and status.casefold() in _FAILED_STATUS) or (number is not None and number >= 400):
            return True
    return False


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
