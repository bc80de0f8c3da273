"""Approvals as records: requests, decisions, and the policy that says who may decide.

A request names one call: tool, canonical arguments, session, run, step, and the rules it was asked under. A decision
repeats the digest of all that and is signed, so that an approval for A cannot run B, here or anywhere else. A decision
that does not hold counts for nothing, and never stands in the way of one that does.
"""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

from pydantic import BaseModel, Field, JsonValue, ValidationError

from grampus_uq.errors import ApprovalError, ConfigurationError
from grampus_uq.gate.delegations import Delegation, Stands, not_looked_up
from grampus_uq.gate.seal import Seal
from grampus_uq.gate.signatures import HmacSigner, PublicKeys, Signable, Verifier, signed_text
from grampus_uq.gate.voices import Voices
from grampus_uq.gate.webauthn import in_batch
from grampus_uq.records.configuration import checked
from grampus_uq.records.values import ToolCall, canonical_json, sha256_of
from grampus_uq.records.visible_text import legend_of, name_form
from grampus_uq.records.vocabulary import UncertaintyLevel
from grampus_uq.stats.stored_values import FROZEN
from grampus_uq.wire.calls import read_arguments

_BATCHED: Final = "irreversible_override"


class ApprovalKind(StrEnum):
    """The kinds of decisions."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"


def _says_nothing(value: object) -> bool:
    """True for a later field at its default, which is left out: signatures and workers of before do not know it."""
    return value is None or value is False


class RequestFields(BaseModel):
    """What a request says beside its call, as a card shows it too."""

    model_config = FROZEN

    id: str
    agent_id: str
    session_id: str
    run_id: str = ""
    step_id: str
    rules: str = ""
    level: UncertaintyLevel
    rule: str
    reason: str = ""
    guarantee: str | None = None
    confidence: float | None = None
    unknown_outcome: bool = False
    child_session: str | None = None
    created_s: float
    expires_s: float | None = None
    started_by: str | None = Field(default=None, exclude_if=_says_nothing)

    def expired(self, now_s: float | None = None) -> bool:
        """True once the time to decide has passed."""
        return self.expires_s is not None and (time.time() if now_s is None else now_s) >= self.expires_s


class ApprovalRequest(RequestFields):
    """A question to a human: about a call that may not run yet, or (without `call`) about the run itself.

    `why` holds the numbers, the rule, and `guarantee`: the sentence of the promise that the pause carries, or None.
    `unknown_outcome` asks about a call that was started by a process that died: nobody knows whether it took effect.
    `rules` is the digest of the policy that it was asked under (`rules_digest`): under another one it is asked again.
    `started_by` started the run and may not decide on it; None where the policy does not ask who did.
    """

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    created_s: float = Field(default_factory=time.time)
    call: ToolCall | None = None

    def digest(self) -> str:
        """SHA-256 over everything that a decision is bound to: call, session, run, step, rules, expiry, starter."""
        call = None if self.call is None else [self.call.id, self.call.name, self.call.arguments]
        place = [self.agent_id, self.session_id, self.run_id, self.step_id]
        bound = [2, self.id, place, call, self.rules, self.rule, self.unknown_outcome, self.expires_s]
        return sha256_of(canonical_json(bound if self.started_by is None else [*bound, self.started_by]))

    def decide(
        self,
        kind: ApprovalKind | str,
        *,
        principal: str,
        message: str | None = None,
        arguments: dict[str, JsonValue] | None = None,
        never: bool = False,
        delegation: Delegation | None = None,
    ) -> ApprovalDecision:
        """An unsigned decision on this request; a signer's `sign` makes it one that a runner with keys accepts.

        Raises ApprovalError for arguments that no runner takes (nested more than 100 deep, or no JSON) and for a
        principal or message that no decision holds; ConfigurationError for an unknown kind.
        """
        check_arguments(arguments)
        if kind not in tuple(ApprovalKind):
            rule = f"one of {', '.join(ApprovalKind)}"
            raise ConfigurationError.of("kind", "ApprovalRequest.decide", rule, kind)
        return in_form(
            ApprovalDecision,
            request_id=self.id,
            digest=self.digest(),
            kind=ApprovalKind(kind),
            principal=principal,
            message=message,
            arguments=arguments,
            never=never,
            delegation=delegation,
        )


class ApprovalDecision(BaseModel):
    """A principal's decision on one request. `digest` is that of the request seen; `arguments` belong to an edit.

    A rejection that says `never` also closes every permit that covers the call. With a `delegation` the principal
    decides in the place of its author.
    """

    model_config = FROZEN

    request_id: str
    digest: str
    kind: ApprovalKind
    principal: str = Field(min_length=1, max_length=200)
    message: str | None = Field(default=None, max_length=100_000)
    arguments: dict[str, JsonValue] | None = None
    decided_s: float = Field(default_factory=time.time)
    signature: str | None = None
    never: bool = Field(default=False, exclude_if=_says_nothing)
    delegation: Delegation | None = Field(default=None, exclude_if=_says_nothing)

    @property
    def voices(self) -> frozenset[str]:
        """The principals this decision counts for: the decider, and the approver they stand in for."""
        return frozenset((self.principal, self.principal if self.delegation is None else self.delegation.principal))

    @property
    def by(self) -> str:
        """The decider, in words."""
        return self.principal if self.delegation is None else f"{self.principal} for {self.delegation.principal}"

    def signed_text(self) -> bytes:
        """The canonical text of everything but the signature."""
        return signed_text("decision", self)


_Form = TypeVar("_Form", bound=BaseModel)


def in_form(form: type[_Form], **values: Any) -> _Form:
    """A record of this form from values of a person; raises ApprovalError, without its name, where it holds none."""
    try:
        return form(**values)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ApprovalError(f"The {'.'.join(map(str, wrong['loc']))} of a decision: {wrong['msg']}.") from error


def check_arguments(arguments: Mapping[str, Any] | None) -> None:
    """Raise ApprovalError for edited arguments that no runner takes, as `wire.calls` reads them: too deep, too long."""
    problem = read_arguments(arguments).problem
    if problem is not None:
        raise ApprovalError(f"The arguments {problem}: the edit is refused.")


def written_text(record: Signable) -> str:
    """The text that is signed. Raises ApprovalError where it cannot be stored: NaN, infinity, half a character."""
    try:
        return record.signed_text().decode()
    except UnicodeDecodeError as error:
        raise ApprovalError(
            "This holds half a character (a lone surrogate), which no store keeps: it is refused."
        ) from error


def decided_alone(rule: str, tool: str | None, arguments: Mapping[str, Any], *, unknown_outcome: bool) -> bool:
    """Return True if no batch may decide the request: all but calls held by their tool and a MEDIUM tier.

    So alarms, doubtful calls, unknown outcomes, and characters that hide or imitate are each looked at by themselves.
    What it asks of is part of what a decision is bound to.
    """
    return tool is None or rule != _BATCHED or unknown_outcome or bool(legend_of([tool, dict(arguments)]))


Arrived = tuple[ApprovalDecision, float]
"""A decision and its arrival by the store's clock, in seconds since 1970."""


@checked
class ApprovalPolicy:
    """Rules of approval: approvers, required number, signatures, and lifetime of a request.

    Without a `signer` unsigned decisions are accepted: any caller of `resume` or writer of the store can approve, and
    the audit says "unsigned". With `PublicKeys` only holders of a key decide; `approvers` narrows that further (None:
    every principal that the signer knows). `required` approvals of distinct principals let a call run; one rejection
    or response settles it. `expires_s` None: no expiry. With `others_decide` nobody decides on a run that
    they started, nor does a grant or permit of theirs let its calls run; the host says who that is, by the approver's
    name, and where nobody says, nobody decides. `deputies` decide only in the place of an approver whose signed
    `Delegation` covers it, and nothing in their own name; the default takes no delegation.

    `seal` authenticates what the host stores; state that it does not hold for is not believed. With a signer and
    without a seal, only state that this very object sealed is (`HmacSigner`: that its key sealed).
    """

    def __init__(
        self,
        *,
        signer: Verifier | None = None,
        approvers: Collection[str] | None = None,
        expires_s: float | None = None,
        required: int = 1,
        others_decide: bool = False,
        deputies: Collection[str] = (),
        seal: Seal | None = None,
    ) -> None:
        if expires_s is not None and not expires_s > 0.0:
            raise ConfigurationError.of("expires_s", "ApprovalPolicy", "above 0 seconds or None", expires_s)
        if signer is not None and not callable(getattr(signer, "verifies", None)):
            raise ConfigurationError.of(
                "signer", "ApprovalPolicy", "a Verifier: HmacSigner or PublicKeys", type(signer)
            )
        self.deputies = frozenset(deputies)
        marked = signer.deputies if isinstance(signer, PublicKeys) else frozenset()
        if approvers is None and isinstance(signer, PublicKeys):
            approvers = signer.principals - marked - self.deputies
        self.approvers = None if approvers is None else frozenset(approvers)
        self._in_no_own_name = {name_form(name) for name in self.deputies | marked}
        both = [name for name in sorted(self.approvers or ()) if name_form(name) in self._in_no_own_name]
        if both:
            rule = "no approvers, under another spelling either"
            raise ConfigurationError.of("deputies", "ApprovalPolicy", rule, ", ".join(both))
        most = None if self.approvers is None else len(self.approvers)
        if type(required) is not int or required < 1 or (most is not None and required > most):
            rule = "a whole number from 1 to the number of approvers"
            way_out = "" if most is None else f"Approvers: {most}."
            raise ConfigurationError.of("required", "ApprovalPolicy", rule, required, way_out)
        if seal is None and signer is not None:
            seal = signer.seal() if isinstance(signer, HmacSigner) else Seal.of_this_process()
        self.signer = signer
        self.expires_s = expires_s
        self.required = required
        self.others_decide = others_decide
        self.seal = seal

    def expiry(self, now_s: float) -> float | None:
        """Return the expiry time of a request made now, or None."""
        return None if self.expires_s is None else now_s + self.expires_s

    def check(
        self,
        request: ApprovalRequest,
        decision: ApprovalDecision,
        *,
        now_s: float | None = None,
        standing: Stands = not_looked_up,
    ) -> None:
        """Raise ApprovalError unless the decision is on this request, unchanged, in time, permitted and signed.

        `standing` says whether a delegation counts, at `now_s`, the arrival of the decision.
        """
        if decision.request_id != request.id:
            raise ApprovalError(f"The decision is on request {decision.request_id!r:.40}, not on {request.id!r:.40}.")
        if not hmac.compare_digest(decision.digest.encode("utf-8", "replace"), request.digest().encode()):
            raise ApprovalError(
                "The decision was made on another call or other arguments than those that wait, or under other rules: "
                "it is refused."
            )
        if request.expired(now_s):
            raise ApprovalError("The request expired before the decision arrived: it is refused and asked again.")
        if decision.delegation is None:
            self.check_principal(decision.principal)
        else:
            self._check_delegation(request, decision.principal, decision.delegation, now_s, standing)
        for one in sorted(decision.voices):
            self.check_other(one, request.started_by)
        written_text(decision)
        self._check_signature(decision, "decision")
        if (decision.kind is ApprovalKind.EDIT) != (decision.arguments is not None):
            raise ApprovalError("An edit carries the new `arguments`; the other decisions carry none.")
        if decision.never and (decision.kind is not ApprovalKind.REJECT or request.call is None):
            raise ApprovalError("Only the rejection of a call can say `never`.")
        if request.call is None and decision.kind is ApprovalKind.EDIT:
            raise ApprovalError("This request has no call whose arguments could be edited.")
        if decision.signature is not None and in_batch(decision.signature):
            tool, arguments = (None, {}) if request.call is None else (request.call.name, request.call.arguments)
            alone = decided_alone(request.rule, tool, arguments, unknown_outcome=request.unknown_outcome)
            if alone or decision.never or decision.kind not in (ApprovalKind.APPROVE, ApprovalKind.REJECT):
                raise ApprovalError("This request is decided by itself, not in a batch: the decision is refused.")

    def holding(
        self,
        request: ApprovalRequest,
        arrived: Sequence[Arrived],
        problem: Callable[[ToolCall], str | None] = lambda call: None,
        standing: Stands = not_looked_up,
    ) -> tuple[tuple[ApprovalDecision, ...], list[tuple[ApprovalDecision, str]]]:
        """The decisions that settle a request, and those that do not hold, each with the reason.

        `problem` says why edited arguments cannot run. In the order of arrival: the first rejection or response, or as
        many approvals as are `required` without a voice in common, all of the same arguments; nothing while fewer came.
        """
        refused: list[tuple[ApprovalDecision, str]] = []
        agreeing: dict[str, Voices] = {}
        for decision, arrived_s in sorted(arrived, key=lambda one: one[1]):
            try:
                self.check(request, decision, now_s=arrived_s, standing=standing)
                if decision.arguments is not None and request.call is not None:
                    wrong = problem(request.call.model_copy(update={"arguments": decision.arguments}))
                    if wrong is not None:
                        raise ApprovalError(f"The edited arguments cannot run: {wrong}")
            except ApprovalError as error:
                refused.append((decision, str(error)))
                continue
            if decision.kind in (ApprovalKind.REJECT, ApprovalKind.RESPOND):
                return (decision,), refused
            alike = agreeing.setdefault(canonical_json(decision.arguments), Voices())
            alike.add(decision)
            if len(people := alike.distinct()) >= self.required:
                return tuple(people), refused
        return (), refused

    def check_grant(self, grant: Signable, what: str = "grant") -> None:
        """Raise ApprovalError unless the principal of a grant, or of a permit, may decide alone and has signed it."""
        if self.required > 1:
            raise ApprovalError(f"A {what} is one principal's, and this policy requires several: it is refused.")
        self._check_signed(grant, what)

    def _check_signed(self, record: Signable, what: str) -> None:
        """Raise ApprovalError unless the record is of an approver, who signed it."""
        self.check_principal(record.principal)
        self._check_signature(record, what)

    def check_principal(self, principal: str) -> None:
        """Raise ApprovalError unless this principal may decide."""
        if name_form(principal) in self._in_no_own_name:
            raise ApprovalError(f"{principal!r:.80} decides only in the place of an approver who delegated it.")
        if self.approvers is not None and principal not in self.approvers:
            raise ApprovalError(f"{principal!r:.80} is not among the approvers.")

    def _check_delegation(
        self, request: ApprovalRequest, deputy: str, given: Delegation, now_s: float | None, standing: Stands
    ) -> None:
        """Raise ApprovalError unless an approver's signed delegation lets this deputy decide on this request then."""
        if deputy not in self.deputies or deputy != given.deputy:
            raise ApprovalError(f"{deputy!r:.80} is not a deputy here: the decision is refused.")
        self._check_signed(given, "delegation")
        tool = None if request.call is None else request.call.name
        why = None if given.covers(tool) else "is about other tools"
        why = why or standing(given, time.time() if now_s is None else now_s)
        if why is not None:
            raise ApprovalError(f"The delegation by {given.principal!r:.80} {why}: the decision is refused.")

    def check_other(self, principal: str, started_by: str | None) -> None:
        """Raise ApprovalError for the starter of the run, and for everybody if a required starter is unknown."""
        starter = name_form(started_by or "")
        if starter and name_form(principal) == starter:
            raise ApprovalError(f"{principal!r:.80} started this run: somebody else has to decide on it.")
        if self.others_decide and not starter:
            raise ApprovalError("The starter of this run may not decide on it, and the starter is unknown.")

    def _check_signature(self, record: Signable, what: str) -> None:
        text, signature = record.signed_text(), record.signature
        if self.signer is None:
            return
        if signature is None or not self.signer.verifies(record.principal, text, signature):
            raise ApprovalError(f"The {what} is not signed, or its signature does not hold: it is refused.")

    def rules(self) -> dict[str, Any]:
        """The part of this policy that a decision is bound to, as JSON values."""
        approvers = None if self.approvers is None else sorted(self.approvers)
        more: dict[str, Any] = {"others_decide": True} if self.others_decide else {}
        more |= {"deputies": sorted(self.deputies)} if self.deputies else {}
        return {"signed": self.signer is not None, "approvers": approvers, "required": self.required} | more


def rules_digest(approvals: ApprovalPolicy, policy: Mapping[str, Any] | None = None) -> str:
    """SHA-256 of the rules that a call is asked under: who may decide, and the monitor's policy as JSON values."""
    return sha256_of(canonical_json([approvals.rules(), None if policy is None else dict(policy)]))
