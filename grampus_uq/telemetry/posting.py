"""Posts JSON to a telemetry backend: retries with backoff what may succeed later, and never logs a header or a body."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from grampus_uq.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx

_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class RefusedError(ConnectionError):
    """The backend refused the request, or was not reached in time; holds no header and no body."""


class Poster:
    """Posts to one URL, from one thread at a time, with `attempts` in all and a growing wait between them.

    What is retried: no connection, a timeout, and the statuses that say "later" (408, 425, 429, 5xx), after the
    `Retry-After` that the backend names or 0.5, 1, 2, 4 … s, each shortened at random, and never longer than
    `longest_wait_s`. `stop` ends a wait at once. Redirects are not followed: they would carry the key elsewhere.

    Raises ConfigurationError for a URL that is not http(s) or holds a password.
    """

    def __init__(
        self,
        url: str,
        *,
        owner: str,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        attempts: int = 4,
        longest_wait_s: float = 30.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError.of("endpoint", owner, "an http or https URL", f"{parts.scheme}://…")
        if parts.username or parts.password:
            raise ConfigurationError.of("endpoint", owner, "a URL without a password in it", f"{parts.scheme}://…@…")
        if attempts < 1:
            raise ConfigurationError.of("attempts", owner, "at least 1", attempts)
        self.url, self._owner, self._headers = url, owner, dict(headers or {})
        self._timeout_s, self._attempts, self._longest_wait_s = timeout_s, attempts, longest_wait_s
        self._stopping = threading.Event()
        self._client: httpx.Client | None = None
        self._process = 0

    def __repr__(self) -> str:
        return f"Poster({urlsplit(self.url).hostname})"

    def post(self, body: Any) -> httpx.Response:
        """Post a JSON body; the response of a success. Raises RefusedError when it was not taken in the end. Blocks."""
        import httpx

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
        import httpx

        if self._client is None or self._process != os.getpid():  # a connection of the parent process is not ours
            self._client = httpx.Client(timeout=self._timeout_s, headers=self._headers, follow_redirects=False)
            self._process = os.getpid()
        return self._client.post(self.url, json=body)

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
