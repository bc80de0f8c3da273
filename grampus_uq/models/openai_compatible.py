"""A model behind an OpenAI-compatible HTTP server: OpenAI, vLLM, llama.cpp, Ollama, LM Studio and many services."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

import anyio

from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.models.chat_client import ChatClient
from grampus_uq.models.chat_format import CallOptions, Prices, parse_completion, request_body
from grampus_uq.models.http_pools import LoopPools
from grampus_uq.models.own_threads import OwnThreads
from grampus_uq.models.refusals import error_of, retry_after, scrubbed
from grampus_uq.records.configuration import checked, web_address
from grampus_uq.records.values import Message, ModelResponse

if TYPE_CHECKING:
    import httpx

MAX_RESPONSE_BYTES: Final = 8_000_000
# Enough to explain an error; whatever a broken proxy sends after that is not read.
_ERROR_BYTES = 65_536
_threads = OwnThreads("client", 4)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@checked
class OpenAICompatibleModel(ChatClient):
    """A `ModelClient` that speaks `/chat/completions` over httpx, on asyncio and on trio.

    Each call is one request under one deadline, and nothing is retried behind the caller's back, with one exception: a
    call that was refused because of "logprobs", "temperature" or "max_tokens" is sent again without it, and once that
    has helped, the parameter is no longer sent to that model (`capabilities` says so).

    `api_base` says where the server is, up to and including the version, such as "http://127.0.0.1:8000/v1"; a query is
    kept. `api_key` is sent as a bearer token. It and `headers`, such as a tenant or another kind of key, appear in no
    message and no `repr`. A call that names no `model` gets this one ("": the server chooses), one without a deadline
    `timeout_s` seconds from connecting to the last byte. `prices` are US dollars for one input and for one output
    token; without them `cost_usd` is None. An answer above 8 MB (after decompression) is refused while it is being
    read. Raises `ConfigurationError` when `api_base`, `api_key`, `timeout_s` or `prices` cannot be right.
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
    ) -> None:
        self._url = _completions_url(api_base)
        super().__init__(model, timeout_s, prices)
        self._headers = _checked_headers(api_key, headers or {})
        self._secrets = tuple(filter(None, [(api_key or "").strip(), *(headers or {}).values()]))
        self._tls: ssl.SSLContext | bool | None = None
        self._pools = LoopPools(self._open)

    def __repr__(self) -> str:
        return f"OpenAICompatibleModel({urlunsplit(urlsplit(self._url)._replace(query=''))!r}, model={self._model!r})"

    async def warmup(self) -> None:
        """Load the HTTP library and the certificates in a worker thread, so that the first call need not."""
        if self._tls is None:
            self._tls = await _threads.run(partial(_prepare, self._url))

    async def aclose(self) -> None:
        """Close the connections of this event loop. The client may be used again; it then opens new ones."""
        with anyio.CancelScope(shield=True):
            await self._pools.aclose()

    async def _send(
        self, model: str, messages: Sequence[Message], options: CallOptions, limit_s: float
    ) -> ModelResponse:
        raw = await self._post(request_body(messages, model, options), options)
        return parse_completion(raw, model=model, prices=self._prices)

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
        stated = response.headers.get("content-length", "")
        large = stated.isascii() and stated.isdigit() and (len(stated) > 18 or int(stated) > MAX_RESPONSE_BYTES)
        body, whole = (b"", False) if large else await _read_at_most(response, MAX_RESPONSE_BYTES)
        if not whole:
            limit = f"{MAX_RESPONSE_BYTES:,} bytes"
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
            timeout=None,  # noqa: S113 (one deadline over everything is ours: `complete`)
            verify=self._tls if self._tls is not None else True,
            trust_env=urlsplit(self._url).hostname not in _LOOPBACK,  # no proxy leads to this machine
            # Common servers close an idle connection after 5 s; not using it then avoids the race.
            limits=httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=4.0),
        )

    def _where(self, model: str = "") -> str:
        parts = urlsplit(self._url)
        return f"The model's server at {parts.scheme}://{parts.netloc}"

    def _words(self, error: BaseException) -> str:
        return scrubbed(str(error), self._secrets) or type(error).__name__


async def _read_at_most(response: httpx.Response, limit: int) -> tuple[bytes, bool]:
    """Read a body, decompressed, up to `limit` bytes; says whether that was the whole of it."""
    parts: list[bytes] = []
    size = 0
    with anyio.CancelScope() as scope:
        async for part in response.aiter_bytes():
            parts.append(part[: max(0, limit - size)])
            size += len(part)
            if size > limit:
                # A `break` would leave httpx's nested generators to the garbage collector, and trio warns of that.
                # Cancelling the next read ends them all, and the connection with them.
                scope.cancel()
    return b"".join(parts), size <= limit


def _completions_url(api_base: str) -> str:
    """The address of chat completions; a wrong address is named, but nothing that may be a password."""
    parts = web_address(api_base.strip(), "api_base", "OpenAICompatibleModel", "http://127.0.0.1:8000/v1")
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
