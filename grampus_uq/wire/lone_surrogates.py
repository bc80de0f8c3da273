"""Replace lone surrogates (the half of a character that a cut-off emoji leaves) with U+FFFD, so that text is UTF-8.

JSON escapes can carry a lone surrogate and UTF-8 cannot. A name, a call or a result with one would make every later
write of its session fail, so it is replaced where it enters, before anything is judged, hashed or shown.
"""

from __future__ import annotations

from typing import Final, overload

from pydantic import JsonValue

MAX_TEXT_CHARACTERS: Final = 1_000_000
_MAX_ERROR: Final = 2_000


@overload
def replace_lone_surrogates(value: str) -> str: ...
@overload
def replace_lone_surrogates(value: dict[str, JsonValue]) -> dict[str, JsonValue]: ...
@overload
def replace_lone_surrogates(value: JsonValue) -> JsonValue: ...
def replace_lone_surrogates(value: JsonValue) -> JsonValue:
    """Join surrogate pairs and replace lone surrogates in a text, or in every text of a JSON value.

    Returns the same object if there is nothing to replace.

    >>> replace_lone_surrogates({"say": "hi \\ud83d", "n": [1, "\\U0001f600"]})
    {'say': 'hi \ufffd', 'n': [1, '😀']}
    """
    if isinstance(value, str):
        return value if type(value) is str and value.isascii() else _encodable(value)
    if isinstance(value, list):
        items = [replace_lone_surrogates(item) for item in value]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    if isinstance(value, dict):
        pairs = {_encodable(key): replace_lone_surrogates(item) for key, item in value.items()}
        same = len(pairs) == len(value) and all(k in pairs and pairs[k] is item for k, item in value.items())
        return value if same else pairs
    return value


def bounded_text(text: str) -> str:
    """The text without lone surrogates, cut to `MAX_TEXT_CHARACTERS` with a note of how many more there were."""
    excess = len(text) - MAX_TEXT_CHARACTERS
    return _encodable(text if excess <= 0 else f"{text[:MAX_TEXT_CHARACTERS]}… ({excess} more characters are not kept)")


def error_text(error: BaseException) -> str:
    """An error in words that any store can hold, whatever its text is."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (somebody else's class)
        text = "(its text cannot be read)"
    return _encodable(f"{type(error).__name__}: {text[:_MAX_ERROR]}")


def _encodable(text: str) -> str:
    if type(text) is not str:
        text = str.__str__(text)  # the plain text of a subclass, whatever its own methods do
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
