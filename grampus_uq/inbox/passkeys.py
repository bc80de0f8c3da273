"""Passkeys: made from an invitation, and used to sign in; every answer of a browser is checked here.

A new passkey is believed to be what the browser says, as without attestation nobody can know more; signing in, and
each decision, proves that its private half is there.
Source: W3C Web Authentication Level 3, sections 7.1 and 7.2.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets

from pydantic import Field

from grampus_uq.errors import ApprovalError, ConfigurationError
from grampus_uq.gate.webauthn import WebAuthnKey, decoded_base64url, on_own_page
from grampus_uq.inbox.inbox_settings import InboxSettings
from grampus_uq.inbox.people import CHALLENGE_S, Passkey, People, Person
from grampus_uq.inbox.visits import Assertion, Body
from grampus_uq.records.values import sha256_of

_FLAGS = 0x01 | 0x04 | 0x40  # present, verified, with a credential
_ID_AT = 53
_MAX_TEXT = 16_384


class NewPasskey(Body):
    """A browser's new credential, all in base64url; `token` is that of the invitation."""

    token: str = Field(max_length=100)
    id: str = Field(min_length=1, max_length=2_048, pattern=r"^[A-Za-z0-9_-]+$")
    key: str = Field(max_length=_MAX_TEXT)
    client: str = Field(max_length=_MAX_TEXT)
    data: str = Field(max_length=_MAX_TEXT)


class SignIn(Assertion):
    """An assertion over a text that this server made: `signature` is "webauthn:" and the browser's answer."""

    text: str = Field(max_length=1_000)


def registration_text(token: str) -> str:
    """The text whose hash is the challenge of a registration: of this invitation, used once as that is."""
    return f"grampus_uq inbox invitation 1\n{sha256_of(token)}"


def new_passkey(said: NewPasskey, settings: InboxSettings, now_s: float) -> Passkey:
    """The passkey that a browser made for this invitation, here, with its user verified; raises ApprovalError."""
    try:
        client, data, public_key, named = map(decoded_base64url, (said.client, said.data, said.key, said.id))
        client_data = json.loads(client)
        challenge = decoded_base64url(client_data["challenge"])
        length = int.from_bytes(data[_ID_AT : _ID_AT + 2], "big")
        credential = data[_ID_AT + 2 : _ID_AT + 2 + length]
        key = WebAuthnKey(public_key, rp_id=settings.rp_id, origins=[settings.origin])
    except (ValueError, KeyError, TypeError, RecursionError, ConfigurationError) as error:
        raise ApprovalError("This passkey is not supported: an ES256 or Ed25519 key is needed.") from error
    asked = hashlib.sha256(registration_text(said.token).encode()).digest()
    if (
        not on_own_page(client_data, "webauthn.create", [settings.origin])
        or not hmac.compare_digest(challenge, asked)
        or not hmac.compare_digest(data[:32], hashlib.sha256(settings.rp_id.encode()).digest())
        or data[32] & _FLAGS != _FLAGS
        or not credential
        or credential != named
    ):
        raise ApprovalError("The passkey was made for another place, another invitation, or without a user check.")
    return Passkey(id=said.id, line=key.line, added_s=now_s)


async def sign_in_text(people: People, settings: InboxSettings, now_s: float) -> str:
    """A text to sign in with, good for five minutes and one session."""
    head = f"grampus_uq inbox sign-in 1\n{settings.origin}\n{now_s:.0f}\n{secrets.token_hex(16)}"
    return f"{head}\n{await people.mac('sign-in', head)}"


async def signed_in(said: SignIn, people: People, now_s: float) -> tuple[Person, Passkey]:
    """The signer of a text of `sign_in_text`, and the passkey; raises ApprovalError, the same for every fault."""
    head, _, mac = said.text.rpartition("\n")
    parts = head.split("\n")
    fresh = len(parts) == 4 and parts[2].isdecimal() and -5.0 <= now_s - float(parts[2]) < CHALLENGE_S
    ours = hmac.compare_digest(mac.encode("utf-8", "replace"), (await people.mac("sign-in", head)).encode())
    found = await people.with_passkey(said.id) if fresh and ours else None
    if found is None or not WebAuthnKey.from_line(found[1].line).holds(said.text.encode(), said.signature):
        raise ApprovalError("This passkey is unknown, or it took too long. Try again.")
    return found
