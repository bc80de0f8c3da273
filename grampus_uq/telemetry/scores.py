"""Writes each step's scores to Phoenix as span annotations, and to Langfuse as scores, on the spans of the steps.

Both send numbers, levels and ids only, in batches, from a bounded queue on a thread of its own.
"""

from __future__ import annotations

import base64
import os
import random
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import httpx

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.configuration import checked, web_address
from grampus_uq.records.events import Event, StepEvent
from grampus_uq.telemetry.evaluations import FUSED, SCORES, WORDS, escalates, fused_of
from grampus_uq.telemetry.outbox import Outbox
from grampus_uq.telemetry.spans import SpanEmitter

_TIMEOUT_S: Final = 10.0
_MOST_READ: Final = 1_000_000
_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class RefusedError(ConnectionError):
    """The backend refused the request, or was not reached in time; holds no header and no body."""


class Poster:
    """Posts to one URL, from one thread at a time, with `attempts` in all and a growing wait between them.

    What is retried: no connection, a timeout, and the statuses that say "later" (408, 425, 429, 500, 502 to 504), after
    the `Retry-After` that the backend names or 0.5, 1, 2, 4 … s, each shortened at random, and never longer than
    `longest_wait_s`. `stop` ends a wait at once. Redirects are not followed: they would carry the key elsewhere.

    Raises ConfigurationError for a URL that is not http(s) or holds a password.
    """

    def __init__(
        self,
        url: str,
        *,
        owner: str,
        headers: Mapping[str, str] | None = None,
        attempts: int = 4,
        longest_wait_s: float = 30.0,
    ) -> None:
        parts = web_address(url, "endpoint", owner, "http://localhost:6006")
        if parts.username or parts.password:
            raise ConfigurationError.of("endpoint", owner, "a URL without a password in it", f"{parts.scheme}://…@…")
        if attempts < 1:
            raise ConfigurationError.of("attempts", owner, "at least 1", attempts)
        self.url, self._headers = url, dict(headers or {})
        self._attempts, self._longest_wait_s = attempts, longest_wait_s
        self._stopping = threading.Event()
        self._client: httpx.Client | None = None
        self._process = 0

    def post(self, body: Any) -> httpx.Response:
        """Post a JSON body; the response of a success. Raises RefusedError when it was not taken in the end. Blocks."""
        wait_s = 0.5
        for attempt in range(1, self._attempts + 1):
            retry_after_s = None
            try:
                response = self._send(body)
            except httpx.TransportError as error:
                why = type(error).__name__
            else:
                if response.is_success:
                    return response
                why = f"status {response.status_code}"
                if response.status_code not in _AGAIN:
                    raise RefusedError(why)
                retry_after_s = _retry_after_s(response)
            pause_s = random.uniform(0.5, 1.0) * wait_s if retry_after_s is None else retry_after_s  # noqa: S311 (no secret)
            if attempt == self._attempts or self._stopping.wait(min(pause_s, self._longest_wait_s)):
                raise RefusedError(why)
            wait_s *= 2.0
        raise AssertionError("the last attempt returns or raises")

    def _send(self, body: Any) -> httpx.Response:
        if self._client is None or self._process != os.getpid():  # a connection of the parent process is not ours
            self._client = httpx.Client(timeout=_TIMEOUT_S, headers=self._headers, follow_redirects=False)
            self._process = os.getpid()
        with self._client.stream("POST", self.url, json=body) as answer:
            read, until_s = bytearray(), time.monotonic() + _TIMEOUT_S
            for part in answer.iter_bytes():  # httpx's own limit begins anew with each byte
                read += part
                if len(read) > _MOST_READ or time.monotonic() > until_s:
                    break
        kept = {name: answer.headers[name] for name in ("retry-after",) if name in answer.headers}
        return httpx.Response(answer.status_code, headers=kept, content=bytes(read))

    def stop(self) -> None:
        """End any wait between two attempts: the attempt under way is the last one."""
        self._stopping.set()

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None and self._process == os.getpid():
            self._client.close()


def _retry_after_s(response: httpx.Response) -> float | None:
    """The seconds of a `Retry-After` header; a date is taken as no answer: clocks differ."""
    given = response.headers.get("retry-after", "")
    return float(given) if given.isascii() and given.isdigit() else None


def timestamp(time_ns: int) -> str:
    """Nanoseconds since 1970 as ISO 8601 in UTC, with milliseconds."""
    whole, rest = divmod(time_ns, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{rest // 1_000_000:03d}Z"


_OURS: Final = uuid.UUID("6a6f0d2e-93a5-5c0f-9b7e-2f9a6c1d8e44")  # names our scores, so that one sent twice is one
_DELAY_S: Final = 3.0  # the span should be there first: its exporter waits a second


class _Score(NamedTuple):
    trace_id: str
    span_id: str
    session_id: str
    step_id: str
    name: str
    value: float
    label: str | None
    time_ns: int


class _Scores:
    """The queue of both backends: an event's scores go in, `_post` gets batches."""

    def __init__(
        self, spans: SpanEmitter, url: str, authorization: str | None, *, delay_s: float, attempts: int
    ) -> None:
        owner = type(self).__name__
        if not isinstance(spans, SpanEmitter):
            raise ConfigurationError.of(
                "spans", owner, "the SpanEmitter that the monitor was given as its tracer", type(spans).__name__
            )
        headers = {"Authorization": authorization} if authorization else {}
        self._spans, self._poster = spans, Poster(url, owner=owner, headers=headers, attempts=attempts)
        self._outbox: Outbox[_Score] = Outbox(self._post, name=owner, batch=256, delay_s=delay_s)

    def _post(self, batch: Sequence[_Score]) -> None:
        """Send a batch; called on the queue's thread."""
        raise NotImplementedError

    def on_event(self, event: Event) -> None:
        """Queue the scores of a step; other events have none. Takes microseconds."""
        if not isinstance(event, StepEvent):
            return
        span = self._spans.latest(event.session_id)
        if span is None or not span.trace_flags.sampled:  # its span is nowhere: nothing to put a score on
            return
        step = event.assessment
        urgent, trace_id, span_id = escalates(step), format(span.trace_id, "032x"), format(span.span_id, "016x")
        for name, value in zip(SCORES, (fused_of(step), step.p_success, step.trajectory_risk), strict=True):
            if value is not None:
                label = WORDS[step.level] if name == FUSED else None
                score = _Score(trace_id, span_id, event.session_id, step.step_id, name, value, label, event.ended_ns)
                self._outbox.put(score, urgent=urgent)

    @property
    def dropped(self) -> int:
        """The number of scores that were not taken: the queue was full or closed, or the backend refused them."""
        return self._outbox.dropped

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Send the queued spans; False if the deadline passed first. Blocks."""
        return self._outbox.flush(timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Send what is queued and stop; False when the deadline passed first. Blocks."""
        in_time = self._outbox.close(timeout_s)
        self._poster.stop()
        if in_time:
            self._poster.close()
        return in_time


@checked
class PhoenixAnnotations(_Scores):
    """A `Processor` that annotates each step's estimate span in Arize Phoenix: name, score, and the level as label.

    `spans` is the `SpanEmitter` given to the monitor as `tracer`, so that the span's id is known. `endpoint` and
    `api_key` default to the environment's PHOENIX_COLLECTOR_ENDPOINT and PHOENIX_API_KEY. Annotating a span again
    replaces the annotation. `dropped` counts what was not taken.
    """

    def __init__(
        self,
        spans: SpanEmitter,
        *,
        endpoint: str | None = None,
        api_key: str | None = None,
        delay_s: float = _DELAY_S,
        attempts: int = 4,
    ) -> None:
        base = endpoint or os.environ.get("PHOENIX_COLLECTOR_ENDPOINT") or "http://localhost:6006"
        key = api_key or os.environ.get("PHOENIX_API_KEY")
        authorization = f"Bearer {key}" if key else None
        super().__init__(
            spans, base.rstrip("/") + "/v1/span_annotations", authorization, delay_s=delay_s, attempts=attempts
        )

    def _post(self, batch: Sequence[_Score]) -> None:
        data = [
            {
                "span_id": score.span_id,
                "name": score.name,
                "annotator_kind": "CODE",
                "identifier": "grampus_uq",
                "result": {"score": score.value} | ({} if score.label is None else {"label": score.label}),
                "metadata": {"session_id": score.session_id, "step_id": score.step_id},
            }
            for score in batch
        ]
        self._poster.post({"data": data})


@checked
class LangfuseScores(_Scores):
    """A `Processor` that writes each step's scores to Langfuse, on the estimate span's observation.

    `spans` is the `SpanEmitter` given to the monitor as `tracer`. `host`, `public_key` and `secret_key` default to the
    environment's LANGFUSE_HOST, LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY. A score that is sent twice is kept once:
    its id is made from the span and the name. `dropped` counts what was not taken.

    Raises ConfigurationError when a key is missing.
    """

    def __init__(
        self,
        spans: SpanEmitter,
        *,
        host: str | None = None,
        public_key: str | None = None,
        secret_key: str | None = None,
        delay_s: float = _DELAY_S,
        attempts: int = 4,
    ) -> None:
        public = public_key or os.environ.get("LANGFUSE_PUBLIC_KEY")
        secret = secret_key or os.environ.get("LANGFUSE_SECRET_KEY")
        for name, key in (("public_key", public), ("secret_key", secret)):
            if not key:
                rule = f"given, or set as LANGFUSE_{name.upper()}"
                raise ConfigurationError.of(name, type(self).__name__, rule, None)
        base = host or os.environ.get("LANGFUSE_HOST") or "https://cloud.langfuse.com"
        basic = base64.b64encode(f"{public}:{secret}".encode()).decode()
        url = base.rstrip("/") + "/api/public/ingestion"
        super().__init__(spans, url, f"Basic {basic}", delay_s=delay_s, attempts=attempts)

    def _post(self, batch: Sequence[_Score]) -> None:
        events = []
        for score in batch:
            identity = str(uuid.uuid5(_OURS, f"{score.trace_id}/{score.span_id}/{score.name}"))
            body: dict[str, Any] = {
                "id": identity,
                "traceId": score.trace_id,
                "observationId": score.span_id,
                "name": score.name,
                "value": score.value,
                "dataType": "NUMERIC",
            }
            if score.label is not None:
                body["comment"] = f"level {score.label}"
            when = timestamp(score.time_ns)
            events.append({"id": identity, "type": "score-create", "timestamp": when, "body": body})
        response = self._poster.post({"batch": events})
        refused = _refused(response)
        if refused:  # the batch was taken, these were not: Langfuse answers 207 and never 4xx for a single event
            self._outbox.count_dropped(refused)


def _refused(response: Any) -> int:
    """The number of events that a 207 lists as errors; 0 for an answer that cannot be read."""
    if response.status_code != 207:
        return 0
    try:
        errors = response.json().get("errors")
    except (ValueError, AttributeError, RecursionError):
        return 0
    return len(errors) if isinstance(errors, list) else 0
