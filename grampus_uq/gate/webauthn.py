"""A WebAuthn credential as an approver's key: a passkey or security key signs the text of a decision.

The challenge of the assertion is the SHA-256 of the decision's signed text, so an assertion answers one decision. The
signature travels as "webauthn:" and base64url of the JSON that a browser's `AuthenticatorAssertionResponse` holds.

One assertion may answer a batch of 2 to 20 decisions: then the challenge is the SHA-256 of `batch_text`, which lists
the SHA-256 of each decision's signed text, and the JSON carries that list as "batch". It answers those texts alone.
Source: W3C Web Authentication Level 3, section 7.2, steps on type, challenge, origin, crossOrigin, topOrigin, rpIdHash,
flags and signature. The signature counter is not read: an assertion that is shown again shows the same decision.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from grampus_uq.errors import ConfigurationError, MissingDependencyError

_KIND = "webauthn:"
_MAX_LINE = 4_096
MOST_IN_BATCH: Final = 20
_IN_BATCHES = (b"grampus_uq decision ", b"grampus_uq answer to a drill ")
_DIGEST = re.compile("[0-9a-f]{64}")
_FLAGS: Final = 0x01 | 0x04  # the user was present, and verified by a PIN or a fingerprint


class WebAuthnKey:
    """The public key of one credential, for `PublicKeys`.

    Args:
        public_key: SubjectPublicKeyInfo in DER, as `AuthenticatorAttestationResponse.getPublicKey()` gives it: ECDSA on
            P-256 or Ed25519.
        rp_id: the relying party's id, as "approvals.example.org".
        origins: where the page may be served from, as "https://approvals.example.org".
    """

    def __init__(self, public_key: bytes, *, rp_id: str, origins: Collection[str]) -> None:
        with MissingDependencyError.unless("cryptography", "signing", "Signing with a key of one's own"):
            from cryptography.hazmat.primitives.asymmetric import ec, ed25519
            from cryptography.hazmat.primitives.serialization import load_der_public_key
        try:
            key: Any = load_der_public_key(public_key)
        except (ValueError, TypeError) as error:
            rule = "a public key in DER (SubjectPublicKeyInfo)"
            raise ConfigurationError.of("public_key", "WebAuthnKey", rule, f"{len(public_key)} bytes") from error
        on_p256 = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
        if not on_p256 and not isinstance(key, ed25519.Ed25519PublicKey):
            rule = "an ECDSA key on P-256 or an Ed25519 key"
            raise ConfigurationError.of("public_key", "WebAuthnKey", rule, type(key).__name__)
        self._key = key
        self._on_p256 = on_p256
        self._rp_id, self._rp = rp_id, hashlib.sha256(rp_id.encode()).digest()
        self._origins = frozenset(origins)

    @classmethod
    def from_line(cls, line: str) -> WebAuthnKey:
        """The key that `line` wrote; raises ConfigurationError."""
        try:
            content = json.loads(decoded_base64url(line.strip().removeprefix(_KIND))) if len(line) <= _MAX_LINE else {}
            public_key, rp_id, origins = decoded_base64url(content["key"]), content["rp"], content["origins"]
            if not isinstance(rp_id, str) or not all(isinstance(origin, str) for origin in origins):
                raise ValueError("neither a name nor origins")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            rule, way_out = f'"{_KIND}" and what an inbox wrote behind it', "grampus-uq inbox keys"
            raise ConfigurationError.of("keys", "PublicKeys", rule, line, way_out) from error
        return cls(public_key, rp_id=rp_id, origins=origins)

    @property
    def line(self) -> str:
        """The public key with the relying party's id and origins as one text, for `PublicKeys` and its JSON file."""
        content = {"key": _encoded(self.material), "rp": self._rp_id, "origins": sorted(self._origins)}
        return _KIND + _encoded(json.dumps(content, separators=(",", ":")).encode())

    @property
    def material(self) -> bytes:
        """The credential's public key as SubjectPublicKeyInfo in DER."""
        return public_material(self._key)

    def holds(self, text: bytes, signature: str) -> bool:
        """Return True for a valid assertion over this text by this credential; False for anything malformed."""
        try:
            given = json.loads(decoded_base64url(signature.removeprefix(_KIND))) if signature.startswith(_KIND) else {}
            data, client = decoded_base64url(given["authenticatorData"]), decoded_base64url(given["clientDataJSON"])
            client_data, raw = json.loads(client), decoded_base64url(given["signature"])
            challenge = decoded_base64url(client_data["challenge"])
            answered = _answered(text, given["batch"]) if "batch" in given else text
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        return (
            on_own_page(client_data, "webauthn.get", self._origins)
            and hmac.compare_digest(challenge, hashlib.sha256(answered).digest())
            and len(data) >= 37
            and hmac.compare_digest(data[:32], self._rp)
            and data[32] & _FLAGS == _FLAGS
            and self._signed(raw, data + hashlib.sha256(client).digest())
        )

    def _signed(self, signature: bytes, text: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            if self._on_p256:
                self._key.verify(signature, text, ECDSA(SHA256()))
            else:
                self._key.verify(signature, text)
        except InvalidSignature:
            return False
        return True


def on_own_page(client_data: Mapping[str, Any], kind: str, origins: Collection[str]) -> bool:
    """True if a page of these origins asked for this kind of answer, and was in no frame of another site."""
    framed = client_data.get("crossOrigin") or "topOrigin" in client_data
    return client_data.get("type") == kind and str(client_data.get("origin")) in origins and not framed


def batch_text(digests: Sequence[str]) -> bytes:
    """The text that one assertion answers for several decisions: the SHA-256 of each signed text, in hex, in order."""
    return "\n".join(["grampus_uq batch 1", *digests]).encode()


def in_batch(signature: str) -> bool:
    """Return True if the signature claims to cover several decisions; its validity is checked elsewhere."""
    try:
        return "batch" in json.loads(decoded_base64url(signature.removeprefix(_KIND)))
    except (ValueError, TypeError, RecursionError):
        return False


def _answered(text: bytes, batch: Any) -> bytes:
    """The text of a batch that this one is among; raises ValueError."""
    if not isinstance(batch, list) or not 2 <= len(batch) <= MOST_IN_BATCH:
        raise ValueError("no batch")
    if not all(isinstance(one, str) and _DIGEST.fullmatch(one) for one in batch) or len({*batch}) < len(batch):
        raise ValueError("no digests, or one twice")
    if not text.startswith(_IN_BATCHES) or hashlib.sha256(text).hexdigest() not in batch:
        raise ValueError("not in this batch")
    return batch_text(batch)


def public_material(key: Any) -> bytes:
    """A public key of `cryptography` as SubjectPublicKeyInfo in DER."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return bytes(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def decoded_base64url(text: Any) -> bytes:
    """Base64url without padding, strictly; raises ValueError."""
    if not isinstance(text, str) or not text.isascii():
        raise ValueError("not base64url")
    padded = text + "=" * (-len(text) % 4)
    return base64.b64decode(padded, altchars=b"-_", validate=True)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
