"""Text that a store can hold: half a character (a lone surrogate, as a cut-off emoji leaves it) becomes U+FFFD.

JSON escapes can carry a lone surrogate and UTF-8 cannot. A call or a result with one would make every later write of
its session fail, so it is mended where it enters, before anything is judged, hashed or shown.
"""

from __future__ import annotations

from typing import overload

from pydantic import JsonValue

__all__ = ["whole"]


@overload
def whole(value: str) -> str: ...
@overload
def whole(value: dict[str, JsonValue]) -> dict[str, JsonValue]: ...
@overload
def whole(value: JsonValue) -> JsonValue: ...
def whole(value: JsonValue) -> JsonValue:
    """The value with every lone surrogate of its texts replaced; the very same object when there is none.

    >>> whole({"say": "hi \\ud83d", "n": [1, "\\U0001f600"]})
    {'say': 'hi \ufffd', 'n': [1, '😀']}
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in value)
        return value
    if isinstance(value, list):
        mended = [whole(item) for item in value]
        return mended if any(a is not b for a, b in zip(mended, value, strict=True)) else value
    if isinstance(value, dict):
        pairs = {whole(key): whole(item) for key, item in value.items()}
        same = len(pairs) == len(value) and all(k in pairs and pairs[k] is item for k, item in value.items())
        return value if same else pairs
    return value
