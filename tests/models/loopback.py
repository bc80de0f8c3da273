"""A real HTTP server on loopback that answers, refuses, stalls and breaks as a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """One HTTP answer; `body` may be an iterator of pieces, which is sent without a length."""

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


Behaviour = Callable[[Request, "Loopback"], Reply]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # the default of 5 resets connections that come at once


class Loopback:
    """The server: where it is, what it was asked, and how many connections are open."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests: list[Request] = []
        self.open_connections = 0
        self.stop = threading.Event()
        self.changed = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def api_base(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    @property
    def hits(self) -> int:
        return len(self.requests)

    def wait_for(self, state: Callable[[], bool], timeout_s: float = 10.0) -> bool:
        """Wait until `state` holds; it is looked at whenever a request or a connection came or went."""
        with self.changed:
            return self.changed.wait_for(state, timeout_s)

    def __enter__(self) -> Loopback:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[Loopback]:
    with Loopback(behaviour) as server:
        yield server


def _handler(owner: Loopback) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are two writes: without this each answer waits 40 ms

        def setup(self) -> None:
            super().setup()
            with owner.changed:
                owner.open_connections += 1
                owner.changed.notify_all()

        def finish(self) -> None:
            try:
                super().finish()
            except OSError:
                self.close_connection = True  # the client has gone: nothing left to flush
            with owner.changed:
                owner.open_connections -= 1
                owner.changed.notify_all()

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                self.close_connection = True  # the client hung up, which is what many tests are about

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            request = Request(
                self.path, {name.lower(): value for name, value in self.headers.items()}, json.loads(raw or b"{}")
            )
            with owner.changed:
                owner.requests.append(request)
                owner.changed.notify_all()
            reply = owner.behaviour(request, owner)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if isinstance(reply.body, bytes):
                if "content-length" not in reply.headers:
                    self.send_header("content-length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)
                return
            self.send_header("connection", "close")
            self.end_headers()
            for piece in reply.body:
                self.wfile.write(piece)
                self.wfile.flush()

        def log_message(self, *args: object) -> None:
            """Say nothing: the tests read `requests`."""

    return Handler


def as_json(value: Any, status: int = 200, **headers: str) -> Reply:
    return Reply(status, json.dumps(value).encode(), {"content-type": "application/json", **headers})


def chat(text: str | None = "Paris", *, logprobs: Any = None, usage: Any = None, **message: Any) -> dict[str, Any]:
    """A chat completion as servers send it."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, **message},
        "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
    }
    if logprobs is not None:
        choice["logprobs"] = logprobs
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny",
        "choices": [choice],
        "usage": usage if usage is not None else {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
    }


def tokens(*entries: tuple[str, float], top: Iterable[tuple[str, float]] = ()) -> dict[str, Any]:
    """Log-probabilities as servers send them."""
    others = [{"token": name, "logprob": value, "bytes": None} for name, value in top]
    return {"content": [{"token": name, "logprob": value, "top_logprobs": others} for name, value in entries]}


def good(request: Request, server: Loopback) -> Reply:
    """Answers, with log-probabilities when they were asked for."""
    asked = request.body.get("top_logprobs", 0) if request.body.get("logprobs") else None
    ranked = [("Paris", -0.1), ("Lyon", -2.5), ("Nice", -4.0), ("Metz", -5.0), ("Lille", -6.0)]
    logprobs = None if asked is None else tokens(("Paris", -0.1), top=ranked[:asked])
    return as_json(chat(logprobs=logprobs))


def without_logprobs(request: Request, server: Loopback) -> Reply:
    """Takes the parameter and ignores it."""
    return as_json(chat())


def refusing(*parameters: str, status: int = 400) -> Behaviour:
    """Refuses these parameters in OpenAI's words, answers everything else."""

    def behave(request: Request, server: Loopback) -> Reply:
        for parameter in parameters:
            if parameter in request.body:
                message = f"Unsupported value: '{parameter}' is not supported with this model."
                error = {"message": message, "type": "invalid_request_error", "param": parameter, "code": "unsupported"}
                return as_json({"error": error}, status)
        return good(request, server)

    return behave


#: Tried one after another until a request arrived: on a busy machine the first may be over before it is sent.
DEADLINES_S = (0.3, 3.0, 30.0)


def hanging(request: Request, server: Loopback) -> Reply:
    """Takes the request and says nothing for a minute: without a deadline a client gets a good answer after all."""
    server.stop.wait(60)
    return as_json(chat("late"))


def dripping(request: Request, server: Loopback) -> Reply:
    """Sends a good answer in small pieces, a minute long: never silent, and slow to end."""
    body = b" " * 1_000 + json.dumps(chat("late")).encode()

    def pieces() -> Iterator[bytes]:
        for byte in body:
            if server.stop.wait(60 / len(body)):
                return
            yield bytes([byte])

    return Reply(body=pieces())


def failing(
    status: int, body: bytes = b'{"error": {"message": "no"}}', headers: Mapping[str, str] | None = None
) -> Behaviour:
    """Answers every request with this status and this body."""

    def behave(request: Request, server: Loopback) -> Reply:
        return Reply(status, body, headers or {})

    return behave
