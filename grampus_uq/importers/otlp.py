"""Spans in OTLP, as JSON or protobuf, one at a time, however large the request is that holds them.

Read are JSON with one request or many one after the other (what collectors write as lines), and protobuf with one
request, or many each behind its length in four bytes (the collector's file exporter with `format: proto`).

Source: opentelemetry.io/docs/specs/otlp (JSON encoding: camelCase names, ids in hex, 64-bit integers as text), the
collector's fileexporter, `opentelemetry/proto/trace/v1/trace.proto`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from grampus_uq.errors import DataError
from grampus_uq.importers.imported_records import Refused, line_records, refuse_to
from grampus_uq.importers.json_stream import Element, nested
from grampus_uq.importers.otlp_wire import is_protobuf, span_messages
from grampus_uq.importers.record_fields import listed, object_of, object_or_none

_TRAIL: Final = ("resourceSpans", "scopeSpans", "spans")
_MOST_NS: Final = 2**63
_ERROR: Final = 2  # STATUS_CODE_ERROR
_DEEPEST: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    """Something that happened in a span."""

    name: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSpan:
    """One span; ids in hex, times in nanoseconds since 1970, `place` for errors about its attributes."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    events: tuple[SpanEvent, ...]
    failed: bool
    chars: int
    place: Element


def read_otlp_spans(path: str | os.PathLike[str], on_refused: Refused | None = None) -> Iterator[OtlpSpan]:
    """Yield the spans of a file, plain or gzip, in its order.

    Raises DataError with path and line (in protobuf, which has no lines, with the offset in bytes of the request) for
    what is neither. A span that is damaged or has a wrong field, or a line that is not JSON, is given to
    `on_refused` and left out; without `on_refused` it raises.
    """
    found: Iterator[Element | DataError | tuple[int, bytes]]
    found = span_messages(path) if is_protobuf(path) else _json_spans(path, on_refused)
    for one in found:
        try:
            if isinstance(one, DataError):
                raise one
            yield _of_json(one) if isinstance(one, Element) else _of_protobuf(*one, os.fspath(path))
        except DataError as error:
            refuse_to(on_refused, error)


def _json_spans(path: str | os.PathLike[str], on_refused: Refused | None) -> Iterator[Element | DataError]:
    """By lines where each is a request, so that a broken one costs only itself; else through the whole text."""
    lines = line_records(path, on_refused)
    if lines is None:
        yield from nested(path, _TRAIL)
        return
    for line in lines:
        yield from _of_request(line.value, _TRAIL, "", line)


def _of_request(
    value: dict[str, Any], trail: tuple[str, ...], prefix: str, line: Element
) -> Iterator[Element | DataError]:
    place = prefix + trail[0]
    try:
        items = listed(value.get(trail[0]), place, line.error)
    except DataError as error:
        yield error
        return
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            yield line.error(f"{place}[{index}]", f"must be an object. Got {type(item).__name__}.")
        elif len(trail) > 1:
            yield from _of_request(item, trail[1:], f"{place}[{index}].", line)
        else:
            yield replace(line, value=item, index=index, in_array=True, chars=len(str(item)), prefix=place)


def _of_json(element: Element) -> OtlpSpan:
    value = element.value
    events = listed(value.get("events"), "events", element.error)
    status = value.get("status")
    code = status.get("code") if isinstance(status, dict) else None
    return OtlpSpan(
        trace_id=_identity(value.get("traceId"), "traceId", element),
        span_id=_identity(value.get("spanId"), "spanId", element),
        parent_id=_identity(value.get("parentSpanId", ""), "parentSpanId", element, empty=True),
        name=_text(value.get("name", ""), "name", element),
        start_ns=_nanoseconds(value.get("startTimeUnixNano"), "startTimeUnixNano", element),
        end_ns=_nanoseconds(value.get("endTimeUnixNano"), "endTimeUnixNano", element),
        attributes=_attributes(value.get("attributes"), "attributes", element),
        events=tuple(_event(event, f"events[{i}]", element) for i, event in enumerate(events)),
        failed=code in (_ERROR, "STATUS_CODE_ERROR"),
        chars=element.chars,
        place=element,
    )


def _identity(value: Any, field: str, element: Element, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty) or len(value) > 64:
        raise element.error(field, f"must be an id in hex. Got {value!r:.50}.")
    return value.lower()


def _text(value: Any, field: str, element: Element) -> str:
    if not isinstance(value, str):
        raise element.error(field, f"must be text. Got {type(value).__name__}.")
    return value


def _nanoseconds(value: Any, field: str, element: Element) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not 0 <= value < _MOST_NS:
        raise element.error(field, f"must be nanoseconds since 1970. Got {value!r:.50}.")
    return value


def _event(value: Any, field: str, element: Element) -> SpanEvent:
    name = _text(object_of(value, field, element.error).get("name", ""), f"{field}.name", element)
    return SpanEvent(name=name, attributes=_attributes(value.get("attributes"), f"{field}.attributes", element))


def _attributes(value: Any, field: str, element: Element, depth: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, pair in enumerate(listed(value, field, element.error)):
        place = f"{field}[{number}]"
        item = object_of(pair, place, element.error)
        found[_text(item.get("key"), f"{place}.key", element)] = _any(item.get("value"), place, element, depth)
    return found


def _any(value: Any, field: str, element: Element, depth: int) -> Any:
    """An AnyValue of OTLP/JSON."""
    if depth > _DEEPEST:
        raise element.error(field, f"is nested deeper than {_DEEPEST}.")
    for kind, content in (object_or_none(value, f"{field}.value", element.error) or {}).items():
        place = f"{field}.value.{kind!s:.20}"
        if kind == "intValue" and isinstance(content, str):
            return _integer(content, place, element)
        if kind in ("stringValue", "boolValue", "doubleValue", "intValue", "bytesValue"):
            if not isinstance(content, str | bool | int | float):
                raise element.error(place, f"must be a plain value. Got {type(content).__name__}.")
            return content
        if kind == "arrayValue":
            inner = listed(content.get("values") if isinstance(content, dict) else content, place, element.error)
            return [_any(item, f"{place}.values[{i}]", element, depth + 1) for i, item in enumerate(inner)]
        if kind == "kvlistValue":
            pairs = content.get("values") if isinstance(content, dict) else content
            return _attributes(pairs, f"{place}.values", element, depth + 1)
    return None


def _integer(text: str, place: str, element: Element) -> int:
    if len(text) > 20 or not text.removeprefix("-").isdigit() or not text.isascii():
        raise element.error(place, f"must be a whole number of 64 bits. Got {text!r:.50}.")
    return int(text)


def _of_protobuf(index: int, data: bytes, path: str) -> OtlpSpan:
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    place = Element(value={}, path=path, line=1, index=index, in_array=True, prefix="spans")
    try:
        span = Span.FromString(data)
    except (DecodeError, RecursionError) as error:
        raise DataError(f"is not a span: {error!s:.200}.", path=path, line=1, field=f"spans[{index}]") from error
    if not span.trace_id or not span.span_id:
        raise place.error("trace_id", "is empty.")
    if max(span.start_time_unix_nano, span.end_time_unix_nano) >= _MOST_NS:
        raise place.error("start_time_unix_nano", "must be nanoseconds since 1970.")
    return OtlpSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_plain_attributes(span.attributes),
        events=tuple(
            SpanEvent(name=event.name, attributes=_plain_attributes(event.attributes)) for event in span.events
        ),
        failed=span.status.code == _ERROR,
        chars=len(data),
        place=place,
    )


def _plain_attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: Any) -> Any:
    """An AnyValue of protobuf; its own parser has bounded the depth."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _plain_attributes(value.kvlist_value.values)
    return None if kind is None else getattr(value, kind)
