"""Watches litellm calls that no framework holds together: the calls that name one session are one run.

    import litellm
    callback = UncertaintyCallback(UncertaintyMonitor(processors=[...]))
    litellm.callbacks.append(callback)

    answer = litellm.completion(model=..., messages=..., metadata={"session_id": "order-7"})     # or responses(...)
    if callback.wait_for(answer) and callback.would_allow("order-7", "pay").allowed: ...

A callback sees a call when it is over, and cannot stop anything: ask `would_allow` before you run a tool. litellm's own
logging hands each answer over a moment after the call has returned; a thread of this callback's own then judges them in
that order, so that no call ever waits for it or fails because of it. `wait_for` waits until one answer is judged.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from grampus_uq import (
    AgentBeliefState,
    ConfigurationError,
    MissingDependencyError,
    Session,
    ToolCall,
    UncertaintyMonitor,
    Verdict,
)
from grampus_uq.integrations.model_turn import ModelTurn, hear_users, name_with_provider, say_made_with
from grampus_uq.integrations.settings import AdapterSettings
from grampus_uq.records.latest import Latest
from grampus_uq.records.protocols import ModelClient
from grampus_uq.wire import leading_system, read_messages

with MissingDependencyError.unless("litellm", "test", "watching litellm calls"):  # or a dependency of its own
    from litellm.integrations.custom_logger import CustomLogger


log = logging.getLogger("grampus_uq.integrations.litellm")

_MAX_KNOWN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One finished call, as litellm hands it over."""

    key: tuple[Any, Any]
    session_id: str
    sent: ModelTurn
    messages: Any
    tools: Any
    response: Any


@dataclass(slots=True)
class _Watched:
    session: Session
    steps: int
    used_s: float


class UncertaintyCallback(CustomLogger):
    """Keeps one session of the monitor for each value of a metadata key; calls without the key are not watched.

    Args:
        monitor: judges; `advisory` is its sessions', and changes what `would_allow` answers.
        key: the entry of the call's `metadata` that names its session.
        model_client, model_id: the model that the signals ask, and its name there; its own calls must not carry the
            key.
        max_sessions, expires_s: the session that was used longest ago goes when there are too many, and any after this
            many seconds without a call. A call that names it later starts it anew.
        prompt_hash, tools_hash: names of your own for the prompt and the tools of these calls, where they vary by run.
        max_waiting: answers that may wait to be judged; more are dropped, and counted in `dropped`.
    """

    def __init__(
        self,
        monitor: UncertaintyMonitor,
        *,
        key: str = "session_id",
        advisory: bool | None = None,
        model_client: ModelClient | None = None,
        model_id: str = "",
        max_sessions: int = 1000,
        expires_s: float = 3600.0,
        prompt_hash: str | None = None,
        tools_hash: str | None = None,
        max_waiting: int = 1000,
    ) -> None:
        super().__init__()
        AdapterSettings(monitor=monitor, model_client=model_client, advisory=advisory)  # checks them
        for name, value in (("max_sessions", max_sessions), ("expires_s", expires_s), ("max_waiting", max_waiting)):
            if not value > 0:
                raise ConfigurationError.of(name, "UncertaintyCallback", "above 0", value)
        self.monitor, self.key, self.advisory = monitor, key, advisory
        self.callback_id = str(id(self))  # litellm drops a logger whose class and public values another one has
        self.dropped = 0
        """Answers that came while `max_waiting` were waiting already."""
        self.failures = 0
        """Answers that could not be judged; the first is logged with its reason."""
        self._client, self._model_id = model_client, model_id
        self._prompt_hash, self._tools_hash = prompt_hash, tools_hash
        self._expires_s = expires_s
        self._sessions: Latest[str, _Watched] = Latest(max_sessions)
        # By id and beginning, because users may give two calls one id. Was the answer judged; None while it waits.
        self._known: Latest[tuple[Any, Any], bool | None] = Latest(_MAX_KNOWN)
        self._latest: Latest[Any, Any] = Latest(_MAX_KNOWN)  # the beginning of the latest call with an id
        self._waiting: queue.Queue[_Call | None] = queue.Queue(max_waiting)
        self._lock = threading.Lock()
        self._over = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    # -- what litellm calls ---------------------------------------------------------------------------------------

    def log_pre_api_call(self, model: Any, messages: Any, kwargs: Any) -> None:
        """A call begins: its answer is the one to wait for, whatever had its id before."""
        try:
            call_id, begun = _key(kwargs)
            with self._lock:
                if call_id in self._latest:
                    self._latest[call_id] = begun
        except Exception as error:  # noqa: BLE001 (a callback must never take the call down)
            self._failed(error)

    def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """A synchronous call is over."""
        self._take(kwargs, response_obj)

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """An asynchronous call is over."""
        self._take(kwargs, response_obj)

    async def async_post_call_success_deployment_hook(self, request_data: Any, response: Any, call_type: Any) -> None:
        """An asynchronous answer is there, in the event loop that asked: litellm's logging may be too late for it."""
        self._take(getattr(request_data.get("litellm_logging_obj"), "model_call_details", request_data), response)

    def _take(self, given: Any, response: Any) -> None:
        """Put an answer into the queue, once; whatever goes wrong here is counted and goes no further."""
        try:
            kept = (given.get("litellm_params") or {}).get("metadata"), given.get("metadata")  # a router's: the latter
            named = next((found[self.key] for found in kept if found and found.get(self.key) is not None), None)
            if named is None:
                return
            if getattr(response, "output", None) is None:
                response = getattr(response, "response", response)  # the last event of a streamed `responses`
            if not (getattr(response, "choices", None) or getattr(response, "output", None)):
                _log_unread(type(response).__name__)
                return
            key = _key(given)
            with self._lock:
                if key in self._known:  # litellm may report one to both kinds of callback
                    return
                self._know(key, None)
            asked, messages = given.get("optional_params") or {}, given.get("messages")
            tools = [*(asked.get("tools") or ()), *(asked.get("functions") or ())]
            sent = ModelTurn(
                content=None,
                requested=name_with_provider(str(given.get("model") or ""), given.get("custom_llm_provider")),
                system="\n\n".join(filter(None, [asked.get("instructions"), leading_system(messages)])),
                offered=tools,
                shape=asked.get("response_format") or asked.get("text"),
            )
            call = _Call(
                key=key, session_id=str(named), sent=sent, messages=messages, tools=tools or None, response=response
            )
            with self._lock:
                if self._thread is None or not self._thread.is_alive():  # also in a process that was forked
                    self._thread = threading.Thread(target=self._judge_all, name="grampus_uq-litellm", daemon=True)
                    self._thread.start()
            self._waiting.put_nowait(call)
        except queue.Full:
            with self._over:
                self.dropped += 1
                self._know(_key(given), False)
        except Exception as error:  # noqa: BLE001 (a callback must never take the call down)
            self._failed(error)

    def _know(self, key: tuple[Any, Any], judged: bool | None) -> None:
        """Remember what became of a call's answer; under the lock."""
        if key[0] is not None:
            self._known[key] = judged
            self._latest.setdefault(*key)
            self._over.notify_all()

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self.failures += 1
            first = self.failures == 1
        if first:
            # The type alone: a message or a traceback may quote what was said.
            log.error("an answer could not be judged (%s); further failures are only counted", type(error).__name__)

    # -- the thread that judges -----------------------------------------------------------------------------------

    def _judge_all(self) -> None:
        with asyncio.Runner() as runner:  # one event loop for all answers: a model client keeps its connections in it
            while True:
                call = self._waiting.get()
                if call is None:
                    self._waiting.task_done()
                    return
                judged = False
                try:
                    runner.run(self._judge(call))
                    judged = True
                except Exception as error:  # noqa: BLE001 (one answer that cannot be read must not end the thread)
                    self._failed(error)
                finally:
                    with self._over:
                        self._know(call.key, judged)
                    self._waiting.task_done()

    async def _judge(self, call: _Call) -> None:
        watched = self._session(call.session_id)
        watched.steps += 1
        say_made_with(watched.session, call.sent, prompt=self._prompt_hash, tools=self._tools_hash)
        hear_users(watched.session, call.messages)
        others = list(getattr(call.response, "choices", None) or ())[1:]
        said = [(one, f"call-{watched.steps}.{place}") for place, one in enumerate(others, 2)]
        for response, step_id in [*reversed(said), (call.response, f"call-{watched.steps}")]:  # the caller may take any
            await watched.session.observe_llm_response(
                response,
                step_id,
                prompt_messages=read_messages(call.messages).messages if self._client is not None else (),
                model_client=self._client,
                model_id=self._model_id,
                tools=call.tools,
            )

    def _session(self, session_id: str) -> _Watched:
        now_s = time.monotonic()
        with self._lock:
            while self._sessions and now_s - next(iter(self._sessions.values())).used_s > self._expires_s:
                self._sessions.popitem(last=False)  # the one at the front was used longest ago
            watched = self._sessions.get(session_id)
            if watched is None:
                session = self.monitor.session(session_id, model=None, advisory=self.advisory)
                watched = _Watched(session, 0, now_s)
            watched.used_s = now_s
            self._sessions[session_id] = watched
            return watched

    # -- asking ---------------------------------------------------------------------------------------------------

    def wait_for(self, response: Any, timeout_s: float = 10.0) -> bool:
        """Wait until what litellm returned is judged, so that `would_allow` answers from it.

        `response` is an answer, or a stream that was read to its end, of a call that names a session. False when the
        time is up first, or when the answer was dropped or could not be judged: then it counts for nothing, which is no
        leave. Inside an event loop use `wait_for_async`. Raises ConfigurationError for what litellm did not return.
        """
        call_id = (getattr(response, "_hidden_params", None) or {}).get("litellm_call_id")
        if call_id is None:
            raise ConfigurationError.of(
                "response", "UncertaintyCallback.wait_for", "what a call of litellm returned", type(response)
            )
        with self._over:
            return bool(
                self._over.wait_for(lambda: self._judged(call_id) is not None, timeout_s) and self._judged(call_id)
            )

    def _judged(self, call_id: Any) -> bool | None:
        return self._known.get((call_id, self._latest.get(call_id)))

    async def wait_for_async(self, response: Any, timeout_s: float = 10.0) -> bool:
        """`wait_for`, without standing in the event loop's way."""
        return await anyio.to_thread.run_sync(self.wait_for, response, timeout_s, abandon_on_cancel=True)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Judge what waits and end the thread; False when the time is up first.

        Take the callback out of litellm's before. What it has not handed over is not waited for: see `wait_for`.
        """
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            try:
                self._waiting.put(None, timeout=timeout_s)
            except queue.Full:
                return False  # it judges on; being a daemon, it keeps no process alive
            thread.join(timeout_s)
        return not self._waiting.unfinished_tasks

    def session(self, session_id: str) -> Session | None:
        """The session of this name, None when there is none any more or yet."""
        with self._lock:
            watched = self._sessions.get(session_id)
        return None if watched is None else watched.session

    def belief(self, session_id: str) -> AgentBeliefState | None:
        """The belief about a session, None when there is none any more or yet."""
        session = self.session(session_id)
        return None if session is None else session.belief()

    def would_allow(self, session_id: str, call: ToolCall | str) -> Verdict | None:
        """The decision on a tool call as it would be now; None, which is no leave, for an unknown session."""
        session = self.session(session_id)
        return None if session is None else session.would_allow(call)


def _key(given: Any) -> tuple[Any, Any]:
    return given.get("litellm_call_id"), given.get("start_time")


@functools.lru_cache(maxsize=64)
def _log_unread(kind: str) -> None:
    log.warning("answers of the kind %s are not watched, although they name a session", kind)
