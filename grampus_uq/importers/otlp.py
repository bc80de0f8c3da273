"""Spans in OTLP, as JSON or protobuf, one at a time, however large the request is that holds them.

Read are JSON with one request or many one after the other (what collectors write as lines), and protobuf with one
request, or many each behind its length in four bytes (the collector's file exporter with `format: proto`).

Source: opentelemetry.io/docs/specs/otlp (JSON encoding: camelCase names, ids in hex, 64-bit integers as text), the
collector's fileexporter, `opentelemetry/proto/trace/v1/trace.proto`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from grampus_uq.errors import DataError
from grampus_uq.importers.imported_records import Refused, each, line_records
from grampus_uq.importers.json_stream import Element, nested
from grampus_uq.importers.otlp_wire import is_protobuf, span_messages
from grampus_uq.importers.record_fields import listed
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates

_TRAIL: Final = ("resourceSpans", "scopeSpans", "spans")
_MOST_NS: Final = 2**63
_ERROR: Final = 2  # STATUS_CODE_ERROR
_READ: Final = ("name", "startTimeUnixNano", "endTimeUnixNano", "attributes", "events", "status")
_FIELD: Final = re.compile(r"Failed to parse (\w+) field")


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
    chars: int = field(repr=False)
    place: Element = field(repr=False)


def read_otlp_spans(path: str | os.PathLike[str], on_refused: Refused | None = None) -> Iterator[OtlpSpan]:
    """Yield the spans of a file, plain or gzip, in its order.

    Raises DataError with path and line (in protobuf, which has no lines, with the offset in bytes of the request) for
    what is neither. A span that is damaged or has a wrong field, or a line that is not JSON, is given to
    `on_refused` and left out; without `on_refused` it raises.
    """
    if is_protobuf(path):
        yield from each(span_messages(path), lambda found: _of_protobuf(*found, os.fspath(path)), on_refused)
    else:
        yield from each(_json_spans(path, on_refused), _of_json, on_refused)


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
    """A span of OTLP/JSON, which differs from protobuf's own JSON in its ids: they are in hex."""
    from google.protobuf.json_format import ParseDict, ParseError
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    value = element.value
    ids = [_identity(value.get("traceId"), "traceId", element), _identity(value.get("spanId"), "spanId", element)]
    ids.append(_identity(value.get("parentSpanId", ""), "parentSpanId", element, empty=True))
    try:
        given = replace_lone_surrogates({name: value[name] for name in _READ if name in value})
        span = ParseDict(given, Span(), ignore_unknown_fields=True)
    except (ParseError, ValueError, TypeError, RecursionError) as error:
        fields = ".".join(_FIELD.findall(str(error)))
        raise element.error(fields, f"is not as in OTLP: {error!s:.200}") from error
    return _of_span(span, ids, element.chars, element)


def _identity(value: Any, field: str, element: Element, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty) or len(value) > 64:
        raise element.error(field, f"must be an id in hex. Got {value!r:.50}.")
    return value.lower()


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
    return _of_span(span, [one.hex() for one in (span.trace_id, span.span_id, span.parent_span_id)], len(data), place)


def _of_span(span: Any, ids: Sequence[str], chars: int, place: Element) -> OtlpSpan:
    if max(span.start_time_unix_nano, span.end_time_unix_nano) >= _MOST_NS:
        raise place.error("start_time_unix_nano", "must be nanoseconds since 1970.")
    trace_id, span_id, parent_id = ids
    return OtlpSpan(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=span.name,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_plain_attributes(span.attributes),
        events=tuple(SpanEvent(name=one.name, attributes=_plain_attributes(one.attributes)) for one in span.events),
        failed=span.status.code == _ERROR,
        chars=chars,
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
