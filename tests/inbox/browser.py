"""A browser with a passkey, in software: it sends what a page's script would send."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec

from grampus_uq.inbox.front_door import FrontDoor
from grampus_uq.inbox.inbox_app import inbox_app
from grampus_uq.inbox.inbox_settings import InboxSettings
from grampus_uq.inbox.people import People, Role
from grampus_uq.inbox.visits import Section
from grampus_uq.runtime.store import SessionStore
from tests.gate.test_webauthn import Authenticator, url64

ORIGIN, RP = "https://inbox.example.org", "inbox.example.org"
SETTINGS = InboxSettings(origin=ORIGIN)


def made(store: SessionStore, *sections: Section) -> FrontDoor:
    return inbox_app(store, SETTINGS, sections)


class Browser:
    """One person's browser, with one passkey."""

    def __init__(self, app: Any, **headers: str) -> None:
        self.key = Authenticator(ec.generate_private_key(ec.SECP256R1()))
        self.id = hashlib.sha256(self.key.public).digest()
        self.csrf = ""
        sent = {"user-agent": "Test/1", "origin": ORIGIN} | headers
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers=sent)

    async def get(self, path: str, **given: Any) -> httpx.Response:
        return await self.client.get(path, **given)

    async def send(self, path: str, body: Any, **given: Any) -> httpx.Response:
        headers = {"x-csrf": self.csrf, **given.pop("headers", {})}
        return await self.client.post(path, json=body, headers=headers, **given)

    def passkey(self, token: str, text: str, **changed: Any) -> dict[str, Any]:
        """The answer to an invitation; `changed` forges parts of it."""
        said = {"type": "webauthn.create", "challenge": url64(hashlib.sha256(text.encode()).digest()), "origin": ORIGIN}
        said |= changed.pop("said", {})
        rp, flags = changed.pop("rp", RP), changed.pop("flags", 0x45)
        data = hashlib.sha256(rp.encode()).digest() + bytes([flags]) + bytes(4 + 16)
        data += len(self.id).to_bytes(2, "big") + self.id
        answer = {"token": token, "id": url64(self.id), "key": url64(self.key.public), "data": url64(data)}
        return answer | {"client": url64(json.dumps(said).encode())} | changed

    async def register(self, token: str, **changed: Any) -> httpx.Response:
        asked = await self.send("/invitation/challenge", {"token": token})
        text = asked.json().get("text", "")
        return await self.send("/invitation", self.passkey(token, text, **changed))

    def assertion(self, text: str, **forged: Any) -> str:
        return self.key.sign(text.encode(), **{"rp": RP, "origin": ORIGIN, **forged})

    async def sign_in(self, **forged: Any) -> httpx.Response:
        text = (await self.send("/sign-in/challenge", {})).json()["text"]
        said = {"text": text, "id": url64(self.id), "signature": self.assertion(text, **forged)}
        answer = await self.send("/sign-in", said)
        if answer.status_code == 200:
            page = await self.get("/me")
            self.csrf = page.text.partition('data-csrf="')[2].partition('"')[0]
        return answer


async def someone(app: FrontDoor, store: SessionStore, name: str = "ann", role: Role = Role.DECIDE) -> Browser:
    """Somebody who was invited and has signed in."""
    browser = Browser(app)
    done = await browser.register(await People(store).invite(name, role))
    assert done.status_code == 200, done.text
    assert (await browser.sign_in()).status_code == 200
    return browser
