"""Evidence: what was shown, decided, signed and run, as one chain of lines that is verified without store or server.

Each line holds the hash of the one before. Decisions stand with the card that was shown, permits and grants with their
signatures, then every audit entry as it is stored. What it cannot show: that nothing newer was left out before it was
written, and that the store held the truth. Against the first, keep the digest of the last line elsewhere; against the
second stand the approvers' signatures, which bind call, session, step and rules, not readings and transcript.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from grampus_uq.errors import ApprovalError, DataError
from grampus_uq.gate.permits import Permit
from grampus_uq.gate.requests import ApprovalDecision, ApprovalRequest, Grant
from grampus_uq.gate.seal import session_place
from grampus_uq.gate.signatures import Verifier
from grampus_uq.records.strict_json import parse_json
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.runtime.audit import verify_audit
from grampus_uq.runtime.cards import Card
from grampus_uq.runtime.store import SessionStore, chained, pages

_SIGNED: Final[Mapping[str, type[BaseModel]]] = {"decision": ApprovalDecision, "grant": Grant, "permit": Permit}
_MOST_FAULTS: Final = 100


async def evidence(store: SessionStore) -> AsyncIterator[str]:
    """The lines of a store's evidence, without line ends; the `hash` of the last one is the digest to keep."""
    now_s, last, count = await store.now(), None, 0
    async for what, data in _entries(store):
        last = chained(canonical_json({"what": what, "data": data}), count, now_s, last)
        count += 1
        yield last
    yield chained(canonical_json({"what": "end", "data": {"entries": count}}), count, now_s, last)


async def _entries(store: SessionStore) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    for kind in _SIGNED:
        async for document in pages(store, kind):
            yield kind, {"key": document.key, "body": document.body, "written_s": document.written_s}
    for kind in ("session", "kept_audit"):
        async for document in pages(store, kind):
            if kind == "session" or await store.get("session", document.key) is None:
                for entry in await store.read(f"audit/{document.key}"):
                    yield "audit", {"of": document.key, "entry": entry}


@dataclass(slots=True, kw_only=True)
class Verified:
    """What a file of evidence shows; `faults` are sentences that name their line, at most 100.

    `ran` counts calls that were started: `by_decision` on decisions that hold, `by_permit` on permits and grants that
    hold, the others by the monitor's word, for which nobody signed. `digest` is that of the last line.
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


def verified(lines: Iterable[str], keys: Verifier | None = None, *, digest: str | None = None) -> Verified:
    """Verify evidence, line by line; without keys no signature is looked at.

    A decision that does not hold is a fault only where a call ran on it: anybody who writes the store can leave one
    there. `digest` is that of the last line, where it was kept.
    """
    found, audits = Verified(), dict[str, list[dict[str, Any]]]()
    held: dict[str, list[tuple[ApprovalDecision, Card | None]]] = {}
    lifted: set[str] = set()
    starts: list[tuple[int, str, dict[str, Any]]] = []
    for number, what, data in _chain(lines, found):
        try:
            if what == "audit":
                entry = parse_json(data["entry"])
                audits.setdefault(data["of"], []).append(entry)
                if entry["what"] == "execution_started":
                    starts.append((number, data["of"], entry["data"]))
            elif what in _SIGNED:
                _take(what, parse_json(data["body"]), keys, found, held, lifted)
        except (ValueError, KeyError, TypeError, ApprovalError) as error:
            found.fault(number, f"the {what} cannot be read: {str(error)[:200]}")
    for of, entries in audits.items():
        try:
            verify_audit(entries)
        except DataError as error:
            found.faults.append(f"audit of {of!r:.100}: {error}")
    for number, of, facts in starts:
        found.ran += 1
        _ran(number, facts | {"of": of}, found, held, lifted, looked=keys is not None)
    if digest is not None and found.digest != digest:
        found.faults.append(f"the last line has the digest {found.digest}, not {digest!r:.100}")
    return found


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
        except (ValueError, KeyError, TypeError) as error:
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


def _take(
    what: str,
    body: Mapping[str, Any],
    keys: Verifier | None,
    found: Verified,
    held: dict[str, list[tuple[ApprovalDecision, Card | None]]],
    lifted: set[str],
) -> None:
    """Take a signed record: a decision with what was shown, a grant or a permit, as far as its signature holds."""
    record: Any = _SIGNED[what].model_validate(body[what])
    signature = record.signature
    holds = keys is None or (signature is not None and keys.verifies(record.principal, record.signed_text(), signature))
    if what != "decision":
        if holds:
            lifted.add(record.id)
        return
    card = Card.model_validate(body["shown"]) if "shown" in body else None
    found.decisions += 1
    found.signed += keys is not None and holds
    found.shown += card is not None and _digest_of(card) == record.digest
    if holds:
        held.setdefault(record.request_id, []).append((record, card))


def _request_of(card: Card) -> ApprovalRequest:
    call = None if card.tool is None else ToolCall(id=card.call_id, name=card.tool, arguments=card.arguments)
    fields = card.model_dump(include=set(ApprovalRequest.model_fields) & set(Card.model_fields))
    return ApprovalRequest(**fields, call=call)


def _digest_of(card: Card) -> str:
    return _request_of(card).digest()


def _ran(
    number: int,
    facts: Mapping[str, Any],
    found: Verified,
    held: Mapping[str, list[tuple[ApprovalDecision, Card | None]]],
    lifted: set[str],
    *,
    looked: bool,
) -> None:
    """Whether what a call ran on is there: a held decision on exactly this call, or a permit or grant."""
    tool, by = str(facts.get("tool"))[:80], str(facts.get("cleared_by"))
    requests = facts.get("decisions") or []
    if requests:
        if all(any(_lets(one, card, facts) for one, card in held.get(str(request), ())) for request in requests):
            found.by_decision += 1
        else:
            how = "signed decision" if looked else "decision"
            found.fault(number, f"a call of {tool!r} ran on a decision, but no {how} on exactly this call is here")
        return
    kind, _, ids = by.partition(" ")
    if kind not in ("permit", "grant"):
        return
    named = ids.split(" and ") if kind == "permit" else [ids.partition(" of ")[0]]
    if all(name in lifted for name in named):
        found.by_permit += 1
    else:
        found.fault(number, f"a call of {tool!r} ran on a {kind} that is not here, or whose signature does not hold")


def _lets(decision: ApprovalDecision, card: Card | None, facts: Mapping[str, Any]) -> bool:
    """True for a decision that lets exactly this call run: by the card, whose digest it signed."""
    if decision.kind not in ("approve", "edit"):
        return False
    if card is None:
        return False
    request = _request_of(card)
    if request.call is None or request.digest() != decision.digest:
        return False
    arguments = request.call.arguments if decision.arguments is None else decision.arguments
    call = request.call.model_copy(update={"arguments": arguments})
    of = session_place(request.agent_id, request.session_id)
    place = (of, request.run_id, request.step_id, call.id, call.digest())
    return place == tuple(facts.get(name) for name in ("of", "run_id", "step_id", "call_id", "digest"))
