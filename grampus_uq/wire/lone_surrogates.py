"""Text that a store can hold: half a character (a lone surrogate, as a cut-off emoji leaves it) becomes U+FFFD.

JSON escapes can carry a lone surrogate and UTF-8 cannot. A name, a call or a result with one would make every later
write of its session fail, so it is mended where it enters, before anything is judged, hashed or shown.
"""

from __future__ import annotations

from typing import Final, overload

from pydantic import JsonValue

__all__ = ["MAX_TEXT_CHARACTERS", "short_text", "whole", "whole_text"]

MAX_TEXT_CHARACTERS: Final = 1_000_000


def whole_text(text: str) -> str:
    """Join surrogate pairs and replace lone halves by U+FFFD; the very same object when there is none.

    >>> whole_text("caf\\u00e9 \\ud83d")
    'café \\ufffd'
    """
    if type(text) is not str:
        text = str.__str__(text)  # the text alone: what a subclass makes of it is not asked
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def short_text(text: str) -> str:
    """The text, whole; of a longer one the first `MAX_TEXT_CHARACTERS` characters and how many more there were."""
    left = len(text) - MAX_TEXT_CHARACTERS
    return whole_text(text if left <= 0 else f"{text[:MAX_TEXT_CHARACTERS]}… ({left} more characters are not kept)")


@overload
def whole(value: str) -> str: ...
@overload
def whole(value: dict[str, JsonValue]) -> dict[str, JsonValue]: ...
@overload
def whole(value: JsonValue) -> JsonValue: ...
def whole(value: JsonValue) -> JsonValue:
    """The JSON value with every text of it made whole; the very same object when there is nothing to mend.

    >>> whole({"say": "hi \\ud83d", "n": [1, "\\U0001f600"]})
    {'say': 'hi \ufffd', 'n': [1, '😀']}
    """
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        mended = [whole(item) for item in value]
        return mended if any(a is not b for a, b in zip(mended, value, strict=True)) else value
    if isinstance(value, dict):
        pairs = {whole_text(key): whole(item) for key, item in value.items()}
        same = len(pairs) == len(value) and all(k in pairs and pairs[k] is item for k, item in value.items())
        return value if same else pairs
    return value
