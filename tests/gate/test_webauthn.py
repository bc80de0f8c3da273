"""An assertion of a passkey approves the one decision that it was made for."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from grampus_uq.errors import ApprovalError, ConfigurationError
from grampus_uq.gate.requests import ApprovalKind, ApprovalPolicy
from grampus_uq.gate.signatures import Ed25519Signer, PublicKeys
from grampus_uq.gate.webauthn import WebAuthnKey
from tests.gate.test_requests import ASKED

RP, ORIGIN = "approvals.example.org", "https://approvals.example.org"


def url64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Authenticator:
    """What a browser and a security key do together, as the standard says (sections 5.8.1, 6.3.3)."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def sign(self, text: bytes, *, rp: str = RP, flags: int = 0x05, **client: Any) -> str:
        said = {"type": "webauthn.get", "challenge": url64(hashlib.sha256(text).digest()), "origin": ORIGIN} | client
        client_data = json.dumps(said).encode()
        data = hashlib.sha256(rp.encode()).digest() + bytes([flags]) + (7).to_bytes(4, "big")
        signed = data + hashlib.sha256(client_data).digest()
        on_p256 = isinstance(self.key, ec.EllipticCurvePrivateKey)
        signature = self.key.sign(signed, ECDSA(SHA256())) if on_p256 else self.key.sign(signed)
        parts = {"authenticatorData": data, "clientDataJSON": client_data, "signature": signature}
        return "webauthn:" + url64(json.dumps({name: url64(part) for name, part in parts.items()}).encode())


@pytest.fixture(params=["P-256", "Ed25519"])
def authenticator(request: pytest.FixtureRequest) -> Authenticator:
    on_p256 = request.param == "P-256"
    return Authenticator(ec.generate_private_key(ec.SECP256R1()) if on_p256 else ed25519.Ed25519PrivateKey.generate())


def key_of(authenticator: Authenticator) -> WebAuthnKey:
    return WebAuthnKey(authenticator.public, rp_id=RP, origins=[ORIGIN])


def test_an_assertion_over_a_decision_approves_it_and_no_other(authenticator: Authenticator) -> None:
    policy = ApprovalPolicy(signer=PublicKeys({"ann": key_of(authenticator)}))
    decision = ASKED.decide("approve", principal="ann")
    signed = decision.model_copy(update={"signature": authenticator.sign(decision.signed_text())})
    policy.check(ASKED, signed, now_s=150.0)
    for other in ({"kind": ApprovalKind.REJECT}, {"message": "x"}, {"decided_s": 1.0}, {"signature": None}):
        with pytest.raises(ApprovalError):
            policy.check(ASKED, signed.model_copy(update=other), now_s=150.0)


def test_whatever_else_an_assertion_was_made_for_does_not_hold(authenticator: Authenticator) -> None:
    key, text = key_of(authenticator), b"a decision"
    assert key.holds(text, authenticator.sign(text))
    assert key.holds(text, authenticator.sign(text, crossOrigin=False))
    stranger = Authenticator(ed25519.Ed25519PrivateKey.generate())
    for bad in (
        authenticator.sign(text, type="webauthn.create"),
        authenticator.sign(text, origin="https://approvals.example.org.evil.example"),
        authenticator.sign(text, crossOrigin=True),
        authenticator.sign(text, topOrigin="https://evil.example"),
        authenticator.sign(text, rp="evil.example"),
        authenticator.sign(text, flags=0x04),
        authenticator.sign(text, flags=0x01),
        authenticator.sign(b"another decision"),
        stranger.sign(text),
        authenticator.sign(text).removeprefix("webauthn:"),
    ):
        assert not key.holds(text, bad)


@pytest.mark.parametrize(
    "odd", ["webauthn:", "webauthn:é", "webauthn:W10", "webauthn:e30", "webauthn:" + url64(b'{"authenticatorData": 1}')]
)
def test_what_is_no_assertion_does_not_hold(authenticator: Authenticator, odd: str) -> None:
    assert not key_of(authenticator).holds(b"x", odd)


ODD: list[Any] = [None, True, 7, 1.5, "", "é", [], [ORIGIN], {}, {"origin": ORIGIN}, [[]]]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("field", ["type", "challenge", "origin"])
def test_an_assertion_that_says_something_odd_does_not_hold(
    authenticator: Authenticator, field: str, value: Any
) -> None:
    assert not key_of(authenticator).holds(b"x", authenticator.sign(b"x", **{field: value}))


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("field", ["authenticatorData", "clientDataJSON", "signature"])
def test_an_assertion_with_an_odd_part_does_not_hold(authenticator: Authenticator, field: str, value: Any) -> None:
    kind, coded = authenticator.sign(b"x").split(":")
    parts = json.loads(base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)))
    for given in (parts | {field: value}, parts | {field: url64(json.dumps(value).encode())}, value):
        assert not key_of(authenticator).holds(b"x", f"{kind}:{url64(json.dumps(given).encode())}")


def test_one_credential_is_one_key_however_it_was_given(authenticator: Authenticator) -> None:
    with pytest.raises(ConfigurationError, match="one principal"):
        PublicKeys({"ann": key_of(authenticator), "bob": WebAuthnKey(authenticator.public, rp_id=RP, origins=[])})


def test_other_kinds_of_key_are_refused() -> None:
    for public in (b"no key", Authenticator(rsa.generate_private_key(65537, 2048)).public):
        with pytest.raises(ConfigurationError, match="public_key"):
            WebAuthnKey(public, rp_id=RP, origins=[ORIGIN])


def test_a_key_travels_as_one_line_and_serves_as_before(authenticator: Authenticator, tmp_path: Path) -> None:
    line = key_of(authenticator).line
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"ann": line, "bob": Ed25519Signer.generate().public_key}))
    decision = ASKED.decide("approve", principal="ann")
    signed = decision.model_copy(update={"signature": authenticator.sign(decision.signed_text())})
    ApprovalPolicy(signer=PublicKeys.from_file(keys)).check(ASKED, signed, now_s=150.0)
    unverified = decision.model_copy(update={"signature": authenticator.sign(decision.signed_text(), flags=0x01)})
    with pytest.raises(ApprovalError):
        ApprovalPolicy(signer=PublicKeys({"ann": line})).check(ASKED, unverified, now_s=150.0)
    with pytest.raises(ConfigurationError, match="one principal"):
        PublicKeys({"ann": line, "bob": key_of(authenticator)})


@pytest.mark.parametrize("odd", ["", "é", "W10", "e30", url64(b'{"key": 1, "rp": 2, "origins": 3}'), "A" * 5_000])
def test_what_is_no_line_of_a_key_is_refused(odd: str) -> None:
    with pytest.raises(ConfigurationError, match="inbox"):
        PublicKeys({"ann": f"webauthn:{odd}"})
