"""Tells a webhook that something new waits: how many, and where to look; nothing of what waits leaves the store.

The body's "text" is what chat tools show. With a secret each notice is signed: `Grampus-Signature: t=SECONDS,v1=HEX`,
the HMAC-SHA256 of the seconds, a dot and the body.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from dataclasses import dataclass, field
from typing import Final

import anyio
import httpx

from grampus_uq.errors import StoreError
from grampus_uq.inbox.arrivals import EACH_S, Arrivals
from grampus_uq.inbox.request_pages import MOST_COUNTED, how_many
from grampus_uq.records.configuration import web_address
from grampus_uq.runtime.store import SessionStore

_TRIES: Final = 5
_log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class Notices:
    """Notifies one webhook of new requests, not of those before the start. Raises ConfigurationError."""

    url: str = field(repr=False)  # of many chat tools its path is a secret
    link: str
    secret: str | None = field(default=None, repr=False)
    first_wait_s: float = 1.0
    patience_s: float = 10.0
    _arrivals: Arrivals = field(default_factory=Arrivals)

    def __post_init__(self) -> None:
        web_address(self.url, "--notify", "inbox", "https://hooks.example.org/desk")

    async def run(self, store: SessionStore) -> None:
        """Look every two seconds, until cancelled; a store or a webhook that is away ends nothing."""
        async with httpx.AsyncClient(timeout=10.0, follow_redirects=False) as client:
            while True:
                try:
                    if await self._arrivals.look(store):
                        waiting = min(await how_many(store), MOST_COUNTED)
                        await self._tell(client, waiting, await store.now())
                except StoreError as error:
                    _log.warning("nothing is notified, the store is away: %s", error)
                await anyio.sleep(EACH_S)

    async def _tell(self, client: httpx.AsyncClient, waiting: int, now_s: float) -> None:
        count = f"{waiting}{'+' if waiting == MOST_COUNTED else ''}"
        text = f"{count} request{'' if waiting == 1 else 's'} wait{'s' if waiting == 1 else ''}: {self.link}"
        body = json.dumps({"text": text, "waiting": waiting, "link": self.link})
        headers = {"content-type": "application/json"}
        if self.secret is not None:
            mac = hmac.new(self.secret.encode(), f"{now_s:.0f}.{body}".encode(), hashlib.sha256).hexdigest()
            headers["grampus-signature"] = f"t={now_s:.0f},v1={mac}"
        wait_s, why = self.first_wait_s, ""
        for _ in range(_TRIES):
            try:
                with anyio.fail_after(self.patience_s):  # httpx's own limit begins anew with each byte
                    async with client.stream("POST", self.url, content=body, headers=headers) as answered:
                        if answered.is_success:
                            return
                why = f"status {answered.status_code}"
            except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
                why = type(error).__name__
            await anyio.sleep(wait_s)
            wait_s *= 2
        _log.warning("a notice was given up after %d tries: %s", _TRIES, why)
