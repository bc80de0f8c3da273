"""Evidence: what was shown, decided, signed and run, as one chain of lines that is verified without store or server.

Each line holds the hash of the one before. Every audit entry stands as it is stored, then decisions with the card that
was shown, delegations, grants, permits with their logs; `evidence_proofs` says what lets a call run. What it cannot
show: that nothing newer was left out before it was written, and that the store held the truth. Against the first, keep
the digest of the last line elsewhere; against the second stand the approvers' signatures, which bind call, session,
step and rules, not readings, transcript and the answers that a permit was earned with.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import BaseModel

from grampus_uq.errors import ApprovalError, DataError
from grampus_uq.gate.delegations import Delegation
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.permits import Permit
from grampus_uq.gate.requests import ApprovalDecision, ApprovalPolicy
from grampus_uq.gate.signatures import Verifier
from grampus_uq.records.strict_json import parse_json
from grampus_uq.records.values import canonical_json
from grampus_uq.runtime.audit import verify_audit
from grampus_uq.runtime.cards import Card
from grampus_uq.runtime.evidence_proofs import GOES_ON, Decided, Records, Start
from grampus_uq.runtime.store import SessionStore, chained, pages
from grampus_uq.runtime.stored_delegations import made_and_revoked

_SIGNED: Final[Mapping[str, type[BaseModel]]] = {
    "decision": ApprovalDecision,
    "delegation": Delegation,
    "grant": Grant,
    "permit": Permit,
}
_MOST_FAULTS: Final = 100
_UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, ApprovalError)


async def evidence(store: SessionStore) -> AsyncIterator[str]:
    """The lines of a store's evidence, without line ends; the `hash` of the last one is the digest to keep."""
    now_s, last, count = await store.now(), None, 0
    async for what, data in _entries(store):
        last = chained(canonical_json({"what": what, "data": data}), count, now_s, last)
        count += 1
        yield last
    yield chained(canonical_json({"what": "end", "data": {"entries": count}}), count, now_s, last)


async def _entries(store: SessionStore) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Audits first: what let a call run was stored before it started, so all of it is read after the start is."""
    for kind in ("session", "kept_audit"):
        async for document in pages(store, kind):
            if kind == "session" or await store.get("session", document.key) is None:
                for entry in await store.read(f"audit/{document.key}"):
                    yield "audit", {"of": document.key, "entry": entry}
    for kind in _SIGNED:
        async for document in pages(store, kind):
            yield kind, {"key": document.key, "body": document.body, "written_s": document.written_s}
            if kind == "permit":
                for entry in await store.read(f"permit/{document.key}"):
                    yield "permit_log", {"of": document.key, "entry": entry}


@dataclass(slots=True, kw_only=True)
class Verified:
    """Result of verifying a file of evidence; `faults` are sentences that name their line, at most 100.

    `ran` counts starts, a sub-agent's going on apart: `by_decision` and `by_permit` (or grant) those that hold, the
    others are the monitor's word, for which nobody signed. `digest` is that of the last line.
    """

    entries: int = 0
    decisions: int = 0
    signed: int = 0
    shown: int = 0
    ran: int = 0
    by_decision: int = 0
    by_permit: int = 0
    digest: str = ""
    faults: list[str] = field(default_factory=list)

    def fault(self, line: int, text: str) -> None:
        """Note what is wrong at a line."""
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(f"line {line}: {text}")


def verified(
    lines: Iterable[str],
    keys: Verifier | None = None,
    *,
    digest: str | None = None,
    required: int = 1,
    others_decide: bool = False,
    deputies: Collection[str] = (),
) -> Verified:
    """Verify evidence, line by line; without keys no signature is looked at.

    A decision that does not hold is a fault only where a call ran on it: anybody who writes the store can leave one
    there. `digest` is that of the last line, where it was kept. `required` approvals are what the runner asked for;
    with `others_decide` nobody let a run go on that they started; `deputies` decide in an approver's place only.
    Raises ConfigurationError for more approvals than there are keys.
    """
    policy = ApprovalPolicy(signer=keys, required=required, others_decide=others_decide, deputies=deputies)
    records = Records(policy=policy, looked=keys is not None)
    found, audits = Verified(), dict[str, list[dict[str, Any]]]()
    starts: dict[str, list[Start]] = {}
    for number, what, data in _chain(lines, found):
        try:
            if what == "audit":
                entry = parse_json(data["entry"])
                audits.setdefault(data["of"], []).append(entry)
                one = Start(line=number, of=data["of"], time_s=float(entry["time_s"]), facts=entry["data"])
                _note(entry["what"], one, starts)
            elif what == "permit_log":
                records.logs.setdefault(data["of"], []).append(parse_json(data["entry"]))
            elif what in _SIGNED:
                _take(what, parse_json(data["body"]), float(data["written_s"]), found, records)
        except _UNREADABLE as error:
            found.fault(number, f"the {what} cannot be read: {str(error)[:200]}")
    for kind, chains in (("audit", audits), ("log of permit", records.logs)):
        for of, entries in chains.items():
            try:
                verify_audit(entries)
            except (DataError, AttributeError) as error:
                found.faults.append(f"{kind} of {of!r:.100}: {error}")
    for start in sorted(
        (one for several in starts.values() for one in several), key=lambda one: (one.time_s, one.line)
    ):
        _ran(start, found, records)
    if digest is not None and found.digest != digest:
        found.faults.append(f"the last line has the digest {found.digest}, not {digest!r:.100}")
    return found


def _note(what: str, one: Start, starts: dict[str, list[Start]]) -> None:
    """Take what the audit says of a call: one that was withdrawn did not run, unless a result came all the same.

    A result of a call that was never started is a start of its own: it ran.
    """
    begun = starts.setdefault(one.call, [])
    open_at = next((at for at in reversed(range(len(begun))) if not begun[at].finished), None)
    if what == "execution_started" or (what == "execution_finished" and open_at is None):
        begun.append(replace(one, finished=what == "execution_finished"))
    elif what == "execution_finished" and open_at is not None:
        begun[open_at] = replace(begun[open_at], finished=True)
    elif what == "execution_withdrawn" and open_at is not None:
        begun[open_at] = replace(begun[open_at], withdrawn=True)


def _chain(lines: Iterable[str], found: Verified) -> Iterable[tuple[int, str, Mapping[str, Any]]]:
    """The entries of lines that are exactly as they were written, up to the first that is not."""
    last: str | None = None
    ended = False
    for index, line in enumerate(lines):
        if ended:
            found.fault(index + 1, "something follows the end")
            return
        try:
            entry = parse_json(line, unique_names=True)
            content = {"what": entry["what"], "data": entry["data"]}
            whole = chained(canonical_json(content), index, entry["time_s"], last) == line
        except _UNREADABLE as error:
            found.fault(index + 1, f"cannot be read: {str(error)[:200]}")
            return
        if not whole:
            found.fault(index + 1, "was changed, or does not follow the one before it")
            return
        last, found.digest, ended = line, entry["hash"], entry["what"] == "end"
        if not ended:
            found.entries += 1
            yield index + 1, entry["what"], entry["data"]
        elif entry["data"] != {"entries": index}:
            found.fault(index + 1, "the end counts other entries")
    if not ended:
        found.faults.append("the end is missing: lines were cut off")


def _take(what: str, body: Mapping[str, Any], written_s: float, found: Verified, records: Records) -> None:
    """Take a signed record as far as its signature holds: a decision with what was shown, or what gives authority."""
    record: Any = _SIGNED[what].model_validate(body[what])
    keys, signature = records.policy.signer, record.signature
    holds = keys is None or (signature is not None and keys.verifies(record.principal, record.signed_text(), signature))
    if what == "decision":
        card = Card.model_validate(body["shown"]) if "shown" in body else None
        one = Decided(decision=record, card=card, arrived_s=written_s, parameters=body.get("parameters"))
        found.decisions += 1
        found.signed += keys is not None and holds
        found.shown += one.request() is not None
        if holds:
            records.decided.setdefault(record.request_id, []).append(one)
        return
    try:
        records.policy.check_principal(record.principal)  # a deputy gives nothing in their own name
    except ApprovalError:
        return
    if holds and what == "grant":
        revoked_s = None if body.get("revoked") is None else written_s
        records.grants.setdefault(f"grant {record.id} of {record.principal}", {})[record.id] = record, revoked_s
    elif holds and what == "delegation":
        records.delegations[record.id] = record, *made_and_revoked(body, written_s)
    elif holds:
        records.permits[record.id] = record, None if body.get("closed") is None else written_s


def _ran(start: Start, found: Verified, records: Records) -> None:
    """Count a call that ran by what it ran on, or note what is wrong with that."""
    if start.withdrawn and not start.finished:
        return
    on, wrong = records.check(start)
    found.ran += on != GOES_ON
    if wrong is not None:
        found.fault(start.line, f"a call of {str(start.facts.get('tool'))!r:.80} ran on a {wrong}")
        return
    found.by_decision += on == "decision"
    found.by_permit += on == "permit"
