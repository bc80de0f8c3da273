"""Signatures on decisions and grants: by a key that approvers and runner share, or by keys that only approvers have.

    approver     Ed25519Signer.from_file("ann.key").sign(decision)
    runner       ApprovalPolicy(signer=PublicKeys({"ann": "ed25519:…", "bob": ["ed25519:…", …]}))

With public keys whoever controls the runner, its tools included, can approve nothing. With `HmacSigner` whoever reads
the runner's key can decide in anybody's name: a tool that runs code in the runner's process reads it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import BaseModel

from grampus_uq.errors import ApprovalError, ConfigurationError, MissingDependencyError
from grampus_uq.gate.seal import Seal
from grampus_uq.gate.webauthn import WebAuthnKey, public_material
from grampus_uq.recording.whole_file import place_new
from grampus_uq.records.configuration import checked
from grampus_uq.records.strict_json import parse_json
from grampus_uq.records.values import canonical_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


_KIND = "ed25519:"
DEPUTY = "deputy:"
"""Before a key's text: it is a deputy's, who decides only in an approver's place."""


class Verifier(Protocol):
    """Interface of a verifier of decisions and grants."""

    def verifies(self, principal: str, text: bytes, signature: str) -> bool:
        """True when the signature on the text is this principal's."""
        ...


class PublicKey(Protocol):
    """One key of a principal, of any kind: Ed25519 here, a WebAuthn credential in `gate.webauthn`."""

    @property
    def material(self) -> bytes:
        """The public key itself (SubjectPublicKeyInfo in DER): equal for one key, however it is written."""
        ...

    def holds(self, text: bytes, signature: str) -> bool:
        """True when the signature on the text was made with the key's private half; False for anything malformed."""
        ...


class Signable(Protocol):
    """A decision, a grant, a permit or a delegation, of its `principal`."""

    @property
    def principal(self) -> str: ...
    @property
    def signature(self) -> str | None: ...
    def signed_text(self) -> bytes: ...
    def model_copy(self, *, update: Mapping[str, Any]) -> Any: ...


Signed = TypeVar("Signed", bound=Signable)


def signed_text(what: str, record: BaseModel) -> bytes:
    """The canonical text of everything but the signature; another one for each kind of record."""
    try:
        content = canonical_json(record.model_dump(exclude={"signature"}))
    except ValueError:  # NaN or infinity, which pydantic lets pass where it reads JSON text
        raise ApprovalError(f"The {what} holds a number that JSON has no word for: it is refused.") from None
    return f"grampus_uq {what} 2\n{content}".encode("utf-8", "surrogatepass")


class _Signs:
    """Puts a signature on decisions and grants."""

    def signature(self, text: bytes) -> str:
        raise NotImplementedError

    def sign(self, record: Signed) -> Signed:
        """Return the decision or the grant with its signature."""
        signed: Signed = record.model_copy(update={"signature": self.signature(record.signed_text())})
        return signed


class HmacSigner(_Signs):
    """HMAC-SHA256 with a shared key of 16 bytes or more. Who holds the key can decide: keep it from the tools."""

    def __init__(self, key: bytes | str) -> None:
        key = key.encode() if isinstance(key, str) else key
        if len(key) < 16:
            raise ConfigurationError.of("key", "HmacSigner", "at least 16 bytes long", f"{len(key)} bytes")
        self._key = key

    @classmethod
    def from_environment(cls, variable: str = "GRAMPUS_UQ_APPROVAL_KEY") -> HmacSigner | None:
        """The signer of the key in an environment variable, or None when it is not set."""
        key = os.environ.get(variable)
        return cls(key) if key else None

    def __repr__(self) -> str:
        return "HmacSigner(key=…)"

    def seal(self) -> Seal:
        """A seal with a key that follows from this one: who cannot decide cannot forge state either."""
        return Seal(self._key)

    def signature(self, text: bytes) -> str:
        """The HMAC in hex."""
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()

    def verifies(self, principal: str, text: bytes, signature: str) -> bool:
        """Compare in constant time. The key says nothing of who signed: `principal` is what the decision claims."""
        return hmac.compare_digest(self.signature(text).encode(), signature.encode("utf-8", "surrogatepass"))


class Ed25519Signer(_Signs):
    """Signs with an approver's private key (RFC 8032); the runner needs only `public_key`."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> Ed25519Signer:
        """A new key, from the system's randomness."""
        return cls(_ed25519().Ed25519PrivateKey.generate())

    @classmethod
    def from_file(cls, path: str | Path) -> Ed25519Signer:
        """The key in a PEM file (PKCS #8) that only its owner may read; raises ConfigurationError."""
        serialization = _serialization()
        try:
            with Path(path).open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                text = file.read(65_536)
        except OSError as error:
            rule, why = "a readable file", f"{error.strerror}."
            raise ConfigurationError.of("path", "Ed25519Signer.from_file", rule, str(path), why) from error
        if os.name == "posix" and mode & 0o077:
            rule = "a file that only its owner may read"
            raise ConfigurationError.of(
                "path", "Ed25519Signer.from_file", rule, f"{path} with mode {mode:04o}", f"chmod 600 {path}"
            )
        try:
            key = serialization.load_pem_private_key(text, password=None)
        except (ValueError, TypeError) as error:
            raise ConfigurationError.of(
                "path", "Ed25519Signer.from_file", "an unencrypted PEM key", str(path)
            ) from error
        if not isinstance(key, _ed25519().Ed25519PrivateKey):
            raise ConfigurationError.of("path", "Ed25519Signer.from_file", "an Ed25519 key", str(path))
        return cls(key)

    def __repr__(self) -> str:
        return f"Ed25519Signer({self.public_key})"

    @property
    def public_key(self) -> str:
        """The public half: "ed25519:" and 64 hexadecimal digits."""
        return _KIND + self._key.public_key().public_bytes_raw().hex()

    def signature(self, text: bytes) -> str:
        """The signature, "ed25519:" and base64."""
        return _KIND + base64.b64encode(self._key.sign(text)).decode("ascii")

    def pem(self) -> bytes:
        """The private key as PKCS #8, not encrypted."""
        serialization = _serialization()
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


class _Ed25519Key:
    def __init__(self, text: str) -> None:
        try:
            raw = bytes.fromhex(text.strip().lower().removeprefix(_KIND))
            self._key = _ed25519().Ed25519PublicKey.from_public_bytes(raw)
        except ValueError as error:
            rule, got = f'"{_KIND}" and 64 hexadecimal digits', f"a text of {len(text)} characters"  # a private key?
            raise ConfigurationError.of("keys", "PublicKeys", rule, got, "grampus-uq approvals keygen") from error

    @property
    def material(self) -> bytes:
        return public_material(self._key)

    def holds(self, text: bytes, signature: str) -> bool:
        from cryptography.exceptions import InvalidSignature

        if not signature.startswith(_KIND):
            return False
        try:
            self._key.verify(base64.b64decode(signature.removeprefix(_KIND), validate=True), text)
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return True


def _key_of(text: str) -> PublicKey:
    return WebAuthnKey.from_line(text) if text.strip().startswith("webauthn:") else _Ed25519Key(text)


@checked
class PublicKeys:
    """The keys of each principal who may decide: "ed25519:…" and "webauthn:…" texts, or `PublicKey`s of another kind.

    "deputy:" before a text makes it a deputy's key, whom no policy takes as an approver. A key serves one principal
    only: with two names for one key, one person could count as two. Raises ConfigurationError.
    """

    def __init__(self, keys: Mapping[str, str | PublicKey | Sequence[str | PublicKey]]) -> None:
        owners: dict[bytes, str] = {}
        self._keys: dict[str, list[PublicKey]] = {}
        self._deputies: set[str] = set()
        for principal, given in keys.items():
            several = [given] if isinstance(given, str) or not isinstance(given, Sequence) else list(given)
            marked = [isinstance(one, str) and one.strip().startswith(DEPUTY) for one in several]
            if any(marked):
                self._deputies.add(principal)
            if any(marked) and not all(marked):
                rule = f'all a deputy\'s ("{DEPUTY}…") or none, for one principal'
                raise ConfigurationError.of("keys", "PublicKeys", rule, principal)
            for one in several:
                key = _key_of(one.strip().removeprefix(DEPUTY)) if isinstance(one, str) else one
                owner = owners.setdefault(key.material, principal)
                if owner != principal:
                    rule = "of one principal each"
                    raise ConfigurationError.of("keys", "PublicKeys", rule, f"{owner} and {principal}")
                self._keys.setdefault(principal, []).append(key)
        if not self._keys:
            raise ConfigurationError.of("keys", "PublicKeys", "at least one key of one principal", dict(keys))

    @classmethod
    def from_file(cls, path: str | Path) -> PublicKeys:
        """The keys in a JSON file: to each principal a text as above, or a list. Raises ConfigurationError."""
        try:
            content = parse_json(Path(path).read_bytes(), unique_names=True)
        except (OSError, ValueError) as error:
            why = f"{error.strerror}." if isinstance(error, OSError) else f"The file {error}"
            raise ConfigurationError.of("path", "PublicKeys.from_file", "a JSON file", str(path), why) from error
        lists = content.values() if isinstance(content, dict) else [None]
        if not all(isinstance(key, str) for keys in lists for key in (keys if isinstance(keys, list) else [keys])):
            rule = 'an object {"principal": "ed25519:…" or a list of them}'
            raise ConfigurationError.of("path", "PublicKeys.from_file", rule, str(path))
        return cls(content)

    @property
    def principals(self) -> frozenset[str]:
        """The principals with a key."""
        return frozenset(self._keys)

    @property
    def deputies(self) -> frozenset[str]:
        """Principals whose keys belong to deputies."""
        return frozenset(self._deputies)

    def verifies(self, principal: str, text: bytes, signature: str) -> bool:
        """True when one of this principal's keys made the signature."""
        return any(key.holds(text, signature) for key in self._keys.get(principal, ()))


def write_key(path: str | Path) -> Ed25519Signer:
    """A new private key in a new file with mode 0600, never over one that is there; raises ConfigurationError."""
    signer = Ed25519Signer.generate()
    try:
        place_new(signer.pem(), Path(path), sync=True)  # a disk may be full only then
    except (OSError, ValueError) as error:  # the latter: a NUL in the name, or none
        rule, why = "a new file in a folder that can be written", getattr(error, "strerror", error)
        raise ConfigurationError.of("path", "write_key", rule, f"{path} ({why})") from error
    return signer


def signer_from_environment() -> Ed25519Signer | HmacSigner | None:
    """The signer of an approver's command line: the file in GRAMPUS_UQ_APPROVAL_KEY_FILE, or the shared key in
    GRAMPUS_UQ_APPROVAL_KEY; None without either."""
    path = os.environ.get("GRAMPUS_UQ_APPROVAL_KEY_FILE")
    return Ed25519Signer.from_file(path) if path else HmacSigner.from_environment()


def _ed25519() -> Any:
    with MissingDependencyError.unless("cryptography", "signing", "Signing with a key of one's own"):
        from cryptography.hazmat.primitives.asymmetric import ed25519
    return ed25519


def _serialization() -> Any:
    _ed25519()
    from cryptography.hazmat.primitives import serialization

    return serialization
