"""Scores in Phoenix and Langfuse: what is posted, on which span, what is retried, and that no key is ever shown."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import anyio
import pytest

from grampus_uq import UncertaintyMonitor
from grampus_uq.errors import ConfigurationError
from grampus_uq.telemetry.scores import LangfuseScores, PhoenixAnnotations, Poster, RefusedError
from tests.telemetry.kept_spans import KeptSpans
from tests.telemetry.receivers import http

KEY = "sk-planted-key-1234"


def phoenix(kept, received, **given):
    return PhoenixAnnotations(kept.emitter, endpoint=received.endpoint, api_key=KEY, delay_s=0.0, **given)


def langfuse(kept, received, **given):
    return LangfuseScores(kept.emitter, host=received.endpoint, public_key="pk", secret_key=KEY, delay_s=0.0, **given)


def run(kept, processor, texts=("Confidence: 90%",), session_id="s1"):
    session = UncertaintyMonitor(tracer=kept.emitter, processors=[processor]).session(session_id, "desk")

    async def steps():
        return [(await session.observe_llm_response(text, f"l{n}"))[0] for n, text in enumerate(texts)]

    return anyio.run(steps)


def test_phoenix_is_sent_an_annotation_on_the_steps_own_span():
    kept = KeptSpans()
    with http() as received:
        annotations = phoenix(kept, received)
        (assessment,) = run(kept, annotations)
        assert annotations.close(30)
    assert received.paths == ["/v1/span_annotations"]
    assert received.headers[0]["authorization"] == f"Bearer {KEY}"
    assert received.bodies == [
        {
            "data": [
                {
                    "span_id": format(kept.only("estimate").context.span_id, "016x"),
                    "name": "uncertainty.confidence.fused",
                    "annotator_kind": "CODE",
                    "identifier": "grampus_uq",
                    "result": {"score": assessment.fused_confidence, "label": assessment.level.value},
                    "metadata": {"session_id": "s1", "step_id": "l0"},
                }
            ]
        }
    ]
    assert annotations.dropped == 0


def test_langfuse_is_sent_a_numeric_score_on_the_steps_own_observation():
    kept = KeptSpans()
    with http(lambda _: (207, {}, b'{"successes": [], "errors": []}')) as received:
        scores = langfuse(kept, received)
        (assessment,) = run(kept, scores)
        assert scores.close(30)
    assert received.paths == ["/api/public/ingestion"]
    given = base64.b64decode(received.headers[0]["authorization"].removeprefix("Basic ")).decode()
    assert given == f"pk:{KEY}"
    (event,) = received.bodies[0]["batch"]
    span = kept.only("estimate").context
    assert event["type"] == "score-create"
    assert event["timestamp"].endswith("Z")
    assert event["body"] == {
        "id": event["id"],
        "traceId": format(span.trace_id, "032x"),
        "observationId": format(span.span_id, "016x"),
        "name": "uncertainty.confidence.fused",
        "value": assessment.fused_confidence,
        "dataType": "NUMERIC",
        "comment": f"level {assessment.level.value}",
    }
    assert scores.dropped == 0


def test_what_langfuse_refuses_one_by_one_is_counted():
    kept = KeptSpans()
    errors = json.dumps({"successes": [], "errors": [{"id": "x", "status": 400}]}).encode()
    with http(lambda _: (207, {}, errors)) as received:
        scores = langfuse(kept, received)
        run(kept, scores)
        assert scores.close(30)
    assert scores.dropped == 1


@pytest.mark.parametrize("make", [phoenix, langfuse])
@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_succeed_later_is_sent_again_and_arrives_once(make, status):
    kept = KeptSpans()

    def reply(received):
        return (status, {"Retry-After": "0"}, b"") if received.n < 3 else (200, {}, b"{}")

    with http(reply) as received:
        processor = make(kept, received)
        run(kept, processor)
        assert processor.close(30)
    assert received.n == 3
    assert received.bodies[0] == received.bodies[2]
    assert processor.dropped == 0


@pytest.mark.parametrize("make", [phoenix, langfuse])
@pytest.mark.parametrize("status", [302, 400, 401, 404])
def test_a_refusal_is_not_repeated_and_counted_and_no_key_reaches_the_log(make, status, caplog):
    caplog.set_level(logging.DEBUG)
    kept = KeptSpans()
    with http(lambda received: (status, {"Location": received.endpoint + "/elsewhere"}, b"no")) as received:
        processor = make(kept, received)
        run(kept, processor)
        assert processor.close(30)
    assert received.n == 1
    assert processor.dropped == 1
    assert "RefusedError" in caplog.text
    for secret in (KEY, base64.b64encode(f"pk:{KEY}".encode()).decode()):
        assert secret not in caplog.text
        assert secret not in repr(vars(processor))


def test_nobody_there_is_tried_again_and_then_counted():
    poster = Poster("http://127.0.0.1:9/x", owner="x", attempts=2)
    started = time.monotonic()
    with pytest.raises(RefusedError, match="ConnectError"):
        poster.post({})
    assert time.monotonic() - started >= 0.25  # it waited in between


def test_a_wait_between_attempts_ends_when_it_is_told_to():
    with http(lambda _: (503, {"Retry-After": "3600"}, b"")) as received:
        poster = Poster(received.endpoint, owner="x", longest_wait_s=3600.0)
        threading.Timer(0.1, poster.stop).start()
        with pytest.raises(RefusedError, match="503"):
            poster.post({})
        poster.close()
    assert received.n == 1


def test_closing_with_a_backend_that_hangs_keeps_its_deadline():
    kept = KeptSpans()
    with http(delay_s=2.0) as received:
        annotations = phoenix(kept, received)
        run(kept, annotations)
        assert not annotations.close(0.1)


def test_steps_without_a_span_or_without_evidence_send_nothing():
    kept, other = KeptSpans(), KeptSpans()
    with http() as received:
        annotations = phoenix(other, received)  # not the monitor's emitter: it knows no span of these steps
        run(kept, annotations)
        here = phoenix(kept, received)
        run(kept, here, ["I cannot say."])
        assert annotations.close(30)
        assert here.close(30)
    assert received.n == 0


def test_many_steps_are_batched():
    kept = KeptSpans()
    with http() as received:
        annotations = PhoenixAnnotations(kept.emitter, endpoint=received.endpoint, delay_s=1000.0)
        run(kept, annotations, ["Confidence: 90%"] * 20)
        assert annotations.close(30)
    assert [len(body["data"]) for body in received.bodies] == [20]
    assert "authorization" not in received.headers[0]


def test_keys_and_endpoints_come_from_the_environment(monkeypatch):
    kept = KeptSpans()
    with http() as received:
        monkeypatch.setenv("PHOENIX_COLLECTOR_ENDPOINT", received.endpoint)
        monkeypatch.setenv("PHOENIX_API_KEY", KEY)
        monkeypatch.setenv("LANGFUSE_HOST", received.endpoint)
        monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk")
        monkeypatch.setenv("LANGFUSE_SECRET_KEY", KEY)
        for processor in (PhoenixAnnotations(kept.emitter, delay_s=0.0), LangfuseScores(kept.emitter, delay_s=0.0)):
            run(kept, processor)
            assert processor.close(30)
    assert sorted(received.paths) == ["/api/public/ingestion", "/v1/span_annotations"]


def test_what_cannot_work_is_refused_before_the_first_step(monkeypatch):
    monkeypatch.delenv("LANGFUSE_SECRET_KEY", raising=False)
    kept = KeptSpans()
    with pytest.raises(ConfigurationError, match="secret_key"):
        LangfuseScores(kept.emitter, public_key="pk")
    with pytest.raises(ConfigurationError, match="spans"):
        PhoenixAnnotations(kept.monitor)
    for url in ("ftp://x", "localhost:6006", "http://user:planted@x", "http://user:planted@x:y", "http://["):
        with pytest.raises(ConfigurationError, match="endpoint") as refused:
            PhoenixAnnotations(kept.emitter, endpoint=url)
        assert "planted" not in str(refused.value)


@pytest.mark.parametrize(("part", "wait_s"), [(b"x" * 1_000_000, 0.0), (b"x", 0.05)], ids=["floods", "drips"])
def test_an_answer_that_never_ends_is_read_no_further_than_it_is_needed(monkeypatch, part, wait_s):
    monkeypatch.setattr("grampus_uq.telemetry.scores._TIMEOUT_S", 0.5)
    parts = []

    class Endless(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while len(parts) < 200:
                    self.wfile.write(part)
                    parts.append(part)
                    time.sleep(wait_s)

        def log_message(self, *_):
            return

    with HTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert Poster(f"http://127.0.0.1:{server.server_port}/x", owner="P").post({}).is_success
        thread.join()
    assert 0 < len(parts) < 200
