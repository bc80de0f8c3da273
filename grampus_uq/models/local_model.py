"""The embedded model: a small model on this machine, in a process of its own, without account or key."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread

from grampus_uq.errors import ConfigurationError, MissingDependencyError, ModelError, ModelTimeoutError
from grampus_uq.models.chat_client import WarmModel, checked_timeout
from grampus_uq.models.child_process import Child
from grampus_uq.models.model_file import BY_HAND, Progress, checked_gguf, find_model_file, name_of_file
from grampus_uq.models.openai_compatible import OpenAICompatibleModel
from grampus_uq.models.refusals import Capabilities
from grampus_uq.recording.parallel import cores
from grampus_uq.records.configuration import checked
from grampus_uq.records.values import Message, ModelResponse

_NAME = "smollm2-135m-instruct"
_READY = "GRAMPUS_READY"
_PARALLEL = 4  # calls that are answered at once; further ones wait for their turn
_MAX_TOKENS = 512  # of an answer when the call names no limit
_START_TIMEOUT_S = 120.0
_SERVER = Path(__file__).with_name("local_server.py")


class _Running(NamedTuple):
    child: Child
    client: OpenAICompatibleModel


@checked
class LocalModel(WarmModel):
    """A `ModelClient` that runs SmolLM2-135M-Instruct (or any GGUF file) through llama.cpp's server on loopback.

    The server is a child process of this one. It starts on the first call (or `warmup`), listens on a free port of
    127.0.0.1 with a key of its own, and ends with `aclose`, `close`, the garbage collection of this object, or the end
    of this process, however that ends. The file of the default model (98 MB) is fetched once; `find_model_file` says
    from where. The model is small: good for trying things out and for tests, not for work.

    `model_file`, a GGUF file, is run in place of the default model; a call may have `context_tokens`, prompt and answer
    together. `timeout_s` is the deadline of a call that names none, counted from when the server runs; one that the
    call names counts from the call. `progress(stage)` is told, on any thread, that a "download" or the "start" begins;
    nothing is printed. Raises `ConfigurationError` when a number cannot be right.
    """

    def __init__(
        self,
        *,
        model_file: str | Path | None = None,
        context_tokens: int = 2_048,
        timeout_s: float = 60.0,
        progress: Progress | None = None,
    ) -> None:
        if isinstance(context_tokens, bool) or not isinstance(context_tokens, int) or context_tokens < 1:
            rule = "a whole number, at least 1"
            raise ConfigurationError.of("context_tokens", "LocalModel", rule, context_tokens)
        self._model_file = None if model_file is None else Path(model_file).expanduser()
        # The threads wait for each other by spinning: with none to spare on a busy machine, more of them are far slower
        # than one (measured on two busy cores: 46 tokens a second with one, 2 with two).
        threads = max(1, min(8, cores() - 1))
        self._settings = {"context_tokens": context_tokens, "parallel": _PARALLEL, "threads": threads, "name": _NAME}
        self._file_name: str | None = None
        self._timeout_s = checked_timeout(timeout_s, "LocalModel")
        self._progress: Progress = progress or (lambda stage: None)
        self._lock = threading.Lock()
        self._starting: Future[_Running] | None = None
        self._stop = threading.Event()

    def __repr__(self) -> str:
        return f"LocalModel({str(self._model_file or os.environ.get(BY_HAND) or _NAME)!r})"

    @property
    def pid(self) -> int | None:
        """Process id of the server, None while it does not run."""
        running = self._running()
        return None if running is None or running.child.exit_code() is not None else running.child.pid

    def capabilities(self, model: str = "") -> Capabilities:
        """The parameters that the model refused so far; one model runs here, whatever it is called."""
        running = self._running()
        return Capabilities() if running is None else running.client.capabilities(_NAME)

    def recorded_as(self, model: str) -> str:
        """The model's name in recordings: as it is called, and which file runs where that is not the default one.

        A profile that was fitted on one file then never acts on another of the same name.
        """
        named = self._model_file or os.environ.get(BY_HAND)
        if not named:
            return model
        if self._file_name is None:
            self._file_name = name_of_file(Path(named).expanduser())
        return f"{model}:{self._file_name}" if self._file_name else model

    async def warmup(self) -> None:
        """Fetch the file if need be, and start the server; returns at once when it runs.

        A cancelled caller leaves at once, and the start goes on for the next one. Raises `MissingDependencyError`
        without the package xllamacpp, `ModelError` when the file or the server cannot be had, `ModelTimeoutError` when
        loading takes longer than two minutes.
        """
        await self._started()

    async def complete(
        self,
        *,
        messages: Sequence[Message],
        model: str = "",
        max_tokens: int | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> ModelResponse:
        """Answer the messages; parameters as in `OpenAICompatibleModel.complete`, an answer of 512 tokens at most.

        `model` is not looked at: one model runs here. `cost_usd` is 0.0. Raises as `OpenAICompatibleModel.complete` and
        `warmup` do, and `ModelError` when the server has ended.
        """
        running, left_s = await self._started_within(timeout_s)
        limit = _MAX_TOKENS if max_tokens is None else max_tokens
        try:
            return await running.client.complete(messages=messages, max_tokens=limit, timeout_s=left_s, **options)
        except ModelError as error:
            await _explain_an_end(running.child, error)
            raise

    async def aclose(self) -> None:
        """End the server. Using the model again starts a new one."""
        with anyio.CancelScope(shield=True):
            running = self._running()
            if running is not None:
                await running.client.aclose()
            await anyio.to_thread.run_sync(self.close)

    def close(self) -> None:
        """End the server, or the fetch that would lead to one; blocks for a moment."""
        with self._lock:
            starting, self._starting = self._starting, None
            self._stop.set()
            self._stop = threading.Event()
        if starting is not None and starting.done() and starting.exception() is None:
            starting.result().child.end()

    def _running(self) -> _Running | None:
        starting = self._starting
        ready = starting is not None and starting.done() and starting.exception() is None
        return starting.result() if starting is not None and ready else None

    async def _started_within(self, timeout_s: float | None) -> tuple[_Running, float]:
        """The running server, and the seconds that are left of the call's deadline."""
        if timeout_s is None:
            return await self._started(), self._timeout_s
        limit_s = checked_timeout(timeout_s, "complete")
        with anyio.move_on_after(limit_s) as scope:
            running = await self._started()
            return running, max(0.001, scope.deadline - anyio.current_time())
        raise ModelTimeoutError(f"The embedded model was not ready within {limit_s:g} s.", retryable=True)

    async def _started(self) -> _Running:
        with self._lock:
            starting = self._starting
            failed = starting is not None and starting.done() and starting.exception() is not None
            if starting is None or failed:
                starting = self._starting = Future()
                # A thread of its own: the start outlives a cancelled caller, and many callers take no worker thread.
                work = (starting, self._stop)
                threading.Thread(target=self._start, args=work, name="grampus-uq-start", daemon=True).start()
        while not starting.done():  # noqa: ASYNC110 (no event can be set on several loops, asyncio and trio, at once)
            await anyio.sleep(0.02)
        return starting.result()

    def _start(self, outcome: Future[_Running], stop: threading.Event) -> None:
        try:
            running = self._start_server(stop)
        except BaseException as error:  # noqa: BLE001 (it belongs to whoever waits for the outcome)
            outcome.set_exception(error)
            return
        weakref.finalize(self, running.child.end, 0.5)
        outcome.set_result(running)
        if stop.is_set():  # closed in the last moment: nobody else would end it
            running.child.end()

    def _start_server(self, stop: threading.Event) -> _Running:
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingDependencyError.of("xllamacpp", "demo", "The embedded model")
        if self._model_file is None:
            path = find_model_file(self._progress, stop=stop)
        else:
            path = checked_gguf(self._model_file, "LocalModel")
        api_key = secrets.token_urlsafe(24)
        address: Future[str] = Future()

        def on_line(line: str) -> None:
            if line.startswith(_READY):
                address.set_result(json.loads(line.removeprefix(_READY))["address"])

        settings = json.dumps({**self._settings, "model_file": str(path.resolve()), "api_key": api_key})
        # -P: the modules beside the program must not hide others of the same name.
        child = Child([sys.executable, "-P", str(_SERVER)], on_line=on_line, first_line=settings)
        try:
            self._wait_until_ready(child, address, stop)
            url, timeout_s = f"{address.result()}/v1", self._timeout_s
            client = OpenAICompatibleModel(url, api_key=api_key, model=_NAME, timeout_s=timeout_s, prices=(0.0, 0.0))
            return _Running(child, client)
        except BaseException:
            child.end(grace_s=0.0)
            raise

    def _wait_until_ready(self, child: Child, address: Future[str], stop: threading.Event) -> None:
        begun = time.monotonic()
        self._progress("start")
        while not address.done():
            passed = time.monotonic() - begun
            if child.wait(stop=stop, timeout_s=0.1) is not None:
                raise ModelError(f"The embedded model could not be loaded. Its last output: {_last_lines(child)}")
            if stop.is_set():
                raise ModelError("The model was closed while it was starting.")
            if passed > _START_TIMEOUT_S:
                raise ModelTimeoutError(f"The embedded model was not loaded within {_START_TIMEOUT_S:g} s.")


async def _explain_an_end(child: Child, error: ModelError) -> None:
    """Raise a clearer error if a call failed because the server has ended."""
    if error.status is not None or isinstance(error, ModelTimeoutError):
        return
    if child.exit_code() is None:
        await anyio.sleep(0.1)  # the connection breaks a moment before the system tells of the end
    code = child.exit_code()
    if code is None:
        return
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
    raise ModelError(
        f"The embedded model's server {how}. Close the model (aclose) and use it again to start a new one. "
        f"Its last output: {_last_lines(child)}"
    ) from error


def _last_lines(child: Child) -> str:
    lines = [line.strip() for line in child.tail().splitlines() if line.strip()]
    errors = [line for line in lines if " E " in line]
    return " | ".join((errors or lines)[-3:])[:600] or "none"
