"""A model behind an OpenAI-compatible HTTP server: OpenAI, vLLM, llama.cpp, Ollama, LM Studio and many services."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import anyio
import anyio.to_thread

from grampus_uq.errors import ConfigurationError, ModelError, ModelTimeoutError
from grampus_uq.models.chat_format import CallOptions, Prices, WarmModel, parse_completion, request_body
from grampus_uq.models.http_pools import LoopPools
from grampus_uq.models.refusals import (
    Capabilities,
    RefusalMemory,
    error_of,
    retry_after,
    scrubbed,
    send_without_refused,
)
from grampus_uq.records.values import Message, ModelResponse

if TYPE_CHECKING:
    import httpx

_MEGABYTE = 1_000_000
# Enough to explain an error; whatever a broken proxy sends after that is not read.
_ERROR_BYTES = 65_536
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class OpenAICompatibleModel(WarmModel):
    """A `ModelClient` that speaks `/chat/completions` over httpx, on asyncio and on trio.

    Each call is one request under one deadline, and nothing is retried behind the caller's back, with one exception: a
    call that was refused because of "logprobs", "temperature" or "max_tokens" is sent again without it, and once that
    has helped, the parameter is no longer sent to that model (`capabilities` says so).

    Parameters
    ----------
    api_base
        Where the server is, up to and including the version, such as "http://127.0.0.1:8000/v1". A query is kept.
    api_key
        Sent as a bearer token; appears in no message and no `repr`.
    model
        The model to ask when a call names none; "" leaves the choice to the server.
    timeout_s
        Deadline of a call in seconds, from connecting to the last byte, when the call names none.
    prices
        US dollars for one input and for one output token; without them `cost_usd` is None.
    headers
        Further headers, such as a tenant or another kind of key; treated as secrets.
    max_response_bytes
        An answer larger than this is refused while it is being read (after decompression).

    Raises `ConfigurationError` when `api_base`, `api_key`, `timeout_s` or `prices` cannot be right.
    """

    def __init__(
        self,
        api_base: str,
        *,
        api_key: str | None = None,
        model: str = "",
        timeout_s: float = 60.0,
        prices: Prices | None = None,
        headers: Mapping[str, str] | None = None,
        max_response_bytes: int = 8 * _MEGABYTE,
    ) -> None:
        self._url = _completions_url(api_base)
        self._model = model
        self._timeout_s = checked_timeout(timeout_s, "OpenAICompatibleModel")
        self._prices = checked_prices(prices, "OpenAICompatibleModel")
        self._headers = _checked_headers(api_key, headers or {})
        self._secrets = tuple(filter(None, [(api_key or "").strip(), *(headers or {}).values()]))
        self._max_response_bytes = max_response_bytes
        self._tls: ssl.SSLContext | bool | None = None
        self._pools = LoopPools(self._open)
        self._memory = RefusalMemory()

    def __repr__(self) -> str:
        return f"OpenAICompatibleModel({urlunsplit(urlsplit(self._url)._replace(query=''))!r}, model={self._model!r})"

    async def warmup(self) -> None:
        """Load the HTTP library and the certificates in a worker thread, so that the first call need not."""
        if self._tls is None:
            self._tls = await anyio.to_thread.run_sync(_prepare, self._url)

    async def aclose(self) -> None:
        """Close the connections of this event loop. The client may be used again; it then opens new ones."""
        with anyio.CancelScope(shield=True):
            await self._pools.aclose()

    def capabilities(self, model: str = "") -> Capabilities:
        """The parameters that the model (default: this client's) refused so far."""
        return self._memory.of(model or self._model)

    async def complete(
        self,
        *,
        messages: Sequence[Message],
        model: str = "",
        temperature: float | None = None,
        max_tokens: int | None = None,
        top_logprobs: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        response_format: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        **extra: Any,
    ) -> ModelResponse:
        """Answer the messages.

        Parameters
        ----------
        messages
            The transcript, oldest first.
        model
            Name of the model; "" takes the client's.
        temperature, max_tokens, tools, response_format
            As in the chat format. None is not sent. A tool may also be a bare function (name, description, parameters).
        top_logprobs
            Ask for the log-probability of every generated token and for this many alternatives; 0 asks for no
            alternatives, None for nothing. The answer's `logprobs` is None when the model reports none.
        timeout_s
            Deadline in seconds, in place of the client's.
        extra
            Further parameters of the chat format (seed, stop, top_p), sent as they are.

        Raises `ModelTimeoutError` when the deadline passed, `RateLimitedError` on status 429, `UnsupportedByModelError`
        when the model refuses a parameter that cannot be left out, `ModelError` on everything else that gave no usable
        answer, `ConfigurationError` when a parameter cannot be right.
        """
        options = CallOptions(
            temperature=temperature,
            max_tokens=max_tokens,
            top_logprobs=top_logprobs,
            tools=tools,
            response_format=response_format,
            extra=extra,
        )
        name = model or self._model
        limit_s = self._timeout_s if timeout_s is None else checked_timeout(timeout_s, "complete")

        async def send(trying: CallOptions) -> ModelResponse:
            raw = await self._post(request_body(messages, name, trying), trying)
            return parse_completion(raw, model=name, prices=self._prices)

        with anyio.move_on_after(limit_s):
            return await send_without_refused(self._memory, name, options, send)
        raise ModelTimeoutError(f"{self._where()} did not answer within {limit_s:g} s.", retryable=True)

    async def _post(self, body: bytes, options: CallOptions) -> bytes:
        await self.warmup()
        import httpx

        client = await self._pools.client()
        try:
            async with client.stream("POST", self._url, content=body) as response:
                if response.status_code != httpx.codes.OK:
                    raise await self._refusal(response, options)
                return await self._read(response)
        except ModelError:  # one of them is a TimeoutError, which is an OSError
            raise
        except httpx.ConnectError as error:
            raise ModelError(
                f"{self._where()} cannot be reached: {self._words(error)}. Is it running?", retryable=True
            ) from error
        except (httpx.HTTPError, OSError, UnicodeError) as error:
            raise ModelError(f"{self._where()} closed the connection: {self._words(error)}", retryable=True) from error

    async def _read(self, response: httpx.Response) -> bytes:
        body, whole = await _read_at_most(response, self._max_response_bytes)
        if not whole:
            limit = f"{self._max_response_bytes:,} bytes"
            raise ModelError(f"{self._where()} sent more than the {limit} that an answer may have.")
        return body

    async def _refusal(self, response: httpx.Response, options: CallOptions) -> ModelError:
        if response.has_redirect_location:
            return ModelError(
                f"{self._where()} redirects ({response.status_code}), and the key is not sent along. Correct api_base.",
                status=response.status_code,
            )
        body, _ = await _read_at_most(response, _ERROR_BYTES)
        return error_of(
            response.status_code,
            body,
            sent=options.sent(),
            secrets=self._secrets,
            retry_after_s=retry_after(response.headers.get("retry-after")),
        )

    def _open(self) -> httpx.AsyncClient:
        import httpx

        return httpx.AsyncClient(
            headers=self._headers,
            timeout=None,  # noqa: S113 (one deadline over everything is ours: `_ask`)
            verify=self._tls if self._tls is not None else True,
            trust_env=urlsplit(self._url).hostname not in _LOOPBACK,  # no proxy leads to this machine
            # Common servers close an idle connection after 5 s; not using it then avoids the race.
            limits=httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=4.0),
        )

    def _where(self) -> str:
        parts = urlsplit(self._url)
        return f"The model's server at {parts.scheme}://{parts.netloc}"

    def _words(self, error: BaseException) -> str:
        return scrubbed(str(error), self._secrets) or type(error).__name__


async def _read_at_most(response: httpx.Response, limit: int) -> tuple[bytes, bool]:
    """Read a body, decompressed, up to `limit` bytes; says whether that was the whole of it."""
    stated = response.headers.get("content-length", "")
    if stated.isascii() and stated.isdigit() and (len(stated) > 18 or int(stated) > limit):
        return b"", False
    parts: list[bytes] = []
    size = 0
    with anyio.CancelScope() as scope:
        async for part in response.aiter_bytes():
            size += len(part)
            if size <= limit:
                parts.append(part)
            else:
                # A `break` would leave httpx's nested generators to the garbage collector, and trio warns of that.
                # Cancelling the next read ends them all, and the connection with them.
                scope.cancel()
    return b"".join(parts), size <= limit


def checked_timeout(timeout_s: float, owner: str) -> float:
    """The deadline, if it is a positive number of seconds."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0.0 < timeout_s < float("inf"):
        raise ConfigurationError.of("timeout_s", owner, "a positive finite number of seconds", timeout_s)
    return float(timeout_s)


def checked_prices(prices: Prices | None, owner: str) -> Prices | None:
    """The prices, if they are two numbers that a token can cost."""
    if prices is None:
        return None
    if len(prices) != 2 or not all(0.0 <= price < 1.0 for price in prices):
        raise ConfigurationError.of(
            "prices", owner, "US dollars for one input and one output token", prices, "per token, not per million"
        )
    return (float(prices[0]), float(prices[1]))


def _completions_url(api_base: str) -> str:
    """The address of chat completions; a wrong address is named, but nothing that may be a password."""
    try:
        parts = urlsplit(api_base.strip())
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise ConfigurationError.of(
            "api_base",
            "OpenAICompatibleModel",
            "an http or https address",
            api_base,
            "such as http://127.0.0.1:8000/v1",
        )
    if parts.username or parts.password:
        raise ConfigurationError("The 'api_base' must hold no user name and no password. Give the key as api_key.")
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/chat/completions", fragment=""))


def _checked_headers(api_key: str | None, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of every request; a key that no header can carry is refused without being shown."""
    sent = {"content-type": "application/json", **headers}
    if api_key is not None and api_key.strip():
        sent["authorization"] = f"Bearer {api_key.strip()}"
    for name, value in sent.items():
        if not value.isascii() or not value.isprintable():
            raise ConfigurationError(
                f"The header {name!r} or the api_key in it holds characters that no header can carry."
            )
    return sent


def _prepare(url: str) -> ssl.SSLContext | bool:
    import httpx

    return httpx.create_ssl_context() if url.startswith("https") else False
