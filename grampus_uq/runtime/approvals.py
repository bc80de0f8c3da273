"""Approvals as records: what waits and why, who decided what, and the signature that binds the two.

A request names one call by the digest of its name and canonical arguments. A decision repeats that digest and is
signed outside the agent's process, so that an approval for A cannot run B, a decision cannot be used twice, and a
principal who may not decide is refused. What is refused is asked again; nothing runs on it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
import uuid
from collections.abc import Collection
from enum import StrEnum
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from grampus_uq.errors import ApprovalError, ConfigurationError
from grampus_uq.records import ToolCall, canonical_json
from grampus_uq.vocabulary import UncertaintyLevel

__all__ = [
    "ApprovalDecision",
    "ApprovalKind",
    "ApprovalPolicy",
    "ApprovalRequest",
    "Grant",
    "HmacSigner",
    "Signer",
]

_strict = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ApprovalKind(StrEnum):
    """What a principal may say to a request."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"


class ApprovalRequest(BaseModel):
    """One thing that waits for a principal: a call that may not run yet, or (without `call`) the run itself.

    `why` holds the numbers, the rule, and `guarantee`: the sentence of the promise that the pause carries, or None.
    `unknown_outcome` asks about a call that was started by a process that died: nobody knows whether it took effect.
    """

    model_config = _strict

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    agent_id: str
    session_id: str
    step_id: str
    call: ToolCall | None = None
    level: UncertaintyLevel
    rule: str
    reason: str = ""
    guarantee: str | None = None
    confidence: float | None = None
    unknown_outcome: bool = False
    child_session: str | None = None
    created_s: float = Field(default_factory=time.time)
    expires_s: float | None = None

    def digest(self) -> str:
        """SHA-256 over what a decision is bound to: request, session and the call with its canonical arguments."""
        call = None if self.call is None else [self.call.id, self.call.name, self.call.arguments]
        bound = canonical_json([self.id, self.agent_id, self.session_id, call])
        return hashlib.sha256(bound.encode("utf-8", "surrogatepass")).hexdigest()

    def expired(self, now_s: float | None = None) -> bool:
        """True once the time to decide has passed."""
        return self.expires_s is not None and (time.time() if now_s is None else now_s) >= self.expires_s

    def decide(
        self,
        kind: ApprovalKind | str,
        *,
        principal: str,
        message: str | None = None,
        arguments: dict[str, JsonValue] | None = None,
    ) -> ApprovalDecision:
        """An unsigned decision on this request; `HmacSigner.sign` makes it one that a runner with a key accepts."""
        return ApprovalDecision(
            request_id=self.id,
            digest=self.digest(),
            kind=ApprovalKind(kind),
            principal=principal,
            message=message,
            arguments=arguments,
        )


class ApprovalDecision(BaseModel):
    """What a principal said to one request. `digest` repeats what was seen; `arguments` belong to an edit."""

    model_config = _strict

    request_id: str
    digest: str
    kind: ApprovalKind
    principal: str = Field(min_length=1, max_length=200)
    message: str | None = Field(default=None, max_length=100_000)
    arguments: dict[str, JsonValue] | None = None
    decided_s: float = Field(default_factory=time.time)
    signature: str | None = None

    def signed_text(self) -> bytes:
        """Everything but the signature, in one way of writing."""
        return canonical_json(self.model_dump(mode="json", exclude={"signature"})).encode("utf-8", "surrogatepass")


class Signer(Protocol):
    """Signs and checks decisions and grants."""

    def signature(self, text: bytes) -> str:
        """The signature of a text."""
        ...

    def holds(self, text: bytes, signature: str) -> bool:
        """True when the signature is this text's."""
        ...


class HmacSigner:
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

    def signature(self, text: bytes) -> str:
        """The HMAC in hex."""
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()

    def holds(self, text: bytes, signature: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self.signature(text).encode(), signature.encode("utf-8", "surrogatepass"))

    def sign(self, decision: ApprovalDecision) -> ApprovalDecision:
        """The decision with its signature."""
        return decision.model_copy(update={"signature": self.signature(decision.signed_text())})

    def sign_grant(self, grant: Grant) -> Grant:
        """The grant with its signature."""
        return grant.model_copy(update={"signature": self.signature(grant.signed_text())})


class Grant(BaseModel):
    """Leave to run one tool without asking, within a scope and until a time: "this tool under 50 EUR, one hour".

    `limits` maps an argument's name to its rule: {"max": x}, {"min": x}, {"equals": v} or {"in": [...]}; an argument
    without a rule is free, an argument with one must be there. `max_uses` counts calls over all workers of the store.
    """

    model_config = _strict

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    tool: str = Field(min_length=1)
    limits: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    agent_id: str | None = None
    session_id: str | None = None
    principal: str = Field(min_length=1, max_length=200)
    created_s: float = Field(default_factory=time.time)
    expires_s: float
    max_uses: int | None = Field(default=None, ge=1)
    signature: str | None = None

    def signed_text(self) -> bytes:
        """Everything but the signature, in one way of writing."""
        return canonical_json(self.model_dump(mode="json", exclude={"signature"})).encode("utf-8", "surrogatepass")

    def covers(self, call: ToolCall, *, agent_id: str, session_id: str, now_s: float) -> bool:
        """True when the call lies within the scope and the time has not passed."""
        return (
            call.name == self.tool
            and now_s < self.expires_s
            and self.agent_id in (None, agent_id)
            and self.session_id in (None, session_id)
            and all(
                name in call.arguments and _within(call.arguments[name], rule) for name, rule in self.limits.items()
            )
        )


def _within(value: JsonValue, rule: dict[str, JsonValue]) -> bool:
    """Numbers compare as numbers; a boolean or a text is never within a limit; an unknown rule holds for nothing."""
    for name, bound in rule.items():
        if name == "equals":
            if canonical_json(value) != canonical_json(bound):
                return False
        elif name == "in":
            if not isinstance(bound, list) or canonical_json(value) not in map(canonical_json, bound):
                return False
        elif name in ("max", "min"):
            if not _number(value) or not _number(bound):
                return False
            if (name == "max" and value > bound) or (name == "min" and value < bound):  # type: ignore[operator]  # numbers
                return False
        else:
            return False
    return bool(rule)


def _number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # not NaN


class ApprovalPolicy:
    """Who may decide, how decisions are signed, and for how long a request stands.

    Without a `signer` decisions are taken unsigned: then whatever can call `resume` or write the store can approve, and
    the audit says "unsigned". `approvers` of None lets every named principal decide. `expires_s` None: no expiry.
    """

    def __init__(
        self,
        *,
        signer: Signer | None = None,
        approvers: Collection[str] | None = None,
        expires_s: float | None = None,
    ) -> None:
        if expires_s is not None and not expires_s > 0.0:
            raise ConfigurationError.of("expires_s", "ApprovalPolicy", "above 0 seconds or None", expires_s)
        self.signer = signer
        self.approvers = None if approvers is None else frozenset(approvers)
        self.expires_s = expires_s

    def check(self, request: ApprovalRequest, decision: ApprovalDecision, *, now_s: float | None = None) -> None:
        """Raise ApprovalError unless the decision is on this request, unchanged, in time, permitted and signed."""
        if decision.request_id != request.id:
            raise ApprovalError(f"The decision is on request {decision.request_id!r:.40}, not on {request.id!r:.40}.")
        if not hmac.compare_digest(decision.digest.encode("utf-8", "replace"), request.digest().encode()):
            raise ApprovalError(
                "The decision was made on another call or other arguments than those that wait: it is refused."
            )
        if request.expired(now_s):
            raise ApprovalError("The request expired before the decision arrived: it is refused and asked again.")
        self.check_principal(decision.principal)
        self._check_signature(decision.signed_text(), decision.signature, "decision")
        if (decision.kind is ApprovalKind.EDIT) != (decision.arguments is not None):
            raise ApprovalError("An edit carries the new `arguments`; the other decisions carry none.")
        if request.call is None and decision.kind is ApprovalKind.EDIT:
            raise ApprovalError("This request has no call whose arguments could be edited.")

    def check_grant(self, grant: Grant) -> None:
        """Raise ApprovalError unless the grant's principal may decide and its signature holds."""
        self.check_principal(grant.principal)
        self._check_signature(grant.signed_text(), grant.signature, "grant")

    def check_principal(self, principal: str) -> None:
        """Raise ApprovalError unless this principal may decide."""
        if self.approvers is not None and principal not in self.approvers:
            raise ApprovalError(f"{principal!r:.80} is not among the approvers.")

    def _check_signature(self, text: bytes, signature: str | None, what: str) -> None:
        if self.signer is not None and (signature is None or not self.signer.holds(text, signature)):
            raise ApprovalError(f"The {what} is not signed, or its signature does not hold: it is refused.")

    def why(self) -> dict[str, Any]:
        """What an audit entry says about how decisions are protected."""
        return {"signed": self.signer is not None, "approvers": self.approvers is not None}
