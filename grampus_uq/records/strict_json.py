"""JSON from outside, read strictly: no NaN, no Infinity, no name twice where asked; every error names its place.

`parse_json` gives plain values, `json_object` an object, `validated` a checked value of any type that pydantic knows.
"""

from __future__ import annotations

import json
import reprlib
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

from grampus_uq.errors import DataError
from grampus_uq.stats.stored_values import adapter_of

T = TypeVar("T")


def refuse_constant(name: str) -> NoReturn:
    """For a decoder's `parse_constant`: raises ValueError."""
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r:.80} appears twice in one object")
        found[name] = value
    return found


def parse_json(data: str | bytes, *, unique_names: bool = False) -> Any:
    """Parse JSON in UTF-8 into plain values; raises ValueError, a sentence, also for NaN, Infinity and deep nesting.

    1e999 is JSON, and infinite: whoever takes a number checks that. With `unique_names` an object with the same name
    twice is an error: no reader knows which value was meant.
    """
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=_unique if unique_names else None)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: {error.reason}.") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply.") from error
    except ValueError as error:
        raise ValueError(f"is not JSON: {error!s:.200}.") from error


def is_json(text: bytes) -> bool:
    """Return True for one JSON value, NaN and infinities included."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def json_object(
    data: str | bytes, *, path: str = "", line: int | None = None, unique_names: bool = False
) -> dict[str, Any]:
    """Parse a JSON object as `parse_json` does. Raises DataError with path and line."""
    try:
        value = parse_json(data, unique_names=unique_names)
    except ValueError as error:
        raise DataError(str(error), path=path, line=line) from error
    if not isinstance(value, dict):
        raise DataError(f"must be a JSON object. Got {type(value).__name__}.", path=path, line=line)
    return value


def validated(adapter: TypeAdapter[T], body: bytes, *, path: str = "", line: int | None = None) -> T:
    """Read JSON into a value, strictly typed. Raises DataError with path, line, field, rule and value."""
    try:
        return adapter.validate_json(body, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        got = f" Got {reprlib.repr(first['input'])}." if field else ""
        raise DataError(f"{first['msg']}.{got}", path=path, line=line, field=field) from error


def snapshot_part(kind: type[T], values: object, what: str, place: str) -> T:
    """Read the entry `place` of a snapshot. Raises DataError naming the field."""
    try:
        value: T = adapter_of(kind).validate_python(values)  # not by way of JSON: half an emoji is not JSON
    except ValueError as error:
        raise snapshot_fault(error, what, place) from error
    return value


def snapshot_fault(error: Exception, what: str, *place: str) -> DataError:
    """The first fault of what is not `what`, with its field, which begins with `place`."""
    first: Any = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
    return DataError(f"not {what}: {first['msg']}", field=".".join(map(str, (*place, *first["loc"]))))


def check_version(version: object, newest: int, *, path: str = "", line: int | None = None) -> None:
    """Refuse what is not a version number, or newer than this release. Raises DataError of the field `v`."""
    if type(version) is not int or version < 1:
        raise DataError(f"must be a version number, {newest}. Got {version!r:.50}.", path=path, line=line, field="v")
    if version > newest:
        reason = f"was written by a newer version of the format ({version}); this release reads up to {newest}."
        raise DataError(f"{reason} Install a newer grampus-uq.", path=path, line=line, field="v")
