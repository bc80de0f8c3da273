"""Evidence proves what let each call run: every forged link is named, whoever computes the hashes anew."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from grampus_uq import (
    Ed25519Signer,
    PublicKeys,
    Seal,
)
from grampus_uq.errors import ConfigurationError
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.permits import Permit
from grampus_uq.gate.requests import ApprovalDecision, ApprovalPolicy
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.runtime.evidence import Verified, evidence, verified
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import chained
from grampus_uq.runtime.stored_permits import close_permit
from tests.runtime.test_stored_permits import ANN, Office

BOB = Ed25519Signer.generate()
KEYS = PublicKeys({"ann": ANN.public_key, "bob": BOB.public_key})
Entries = list[dict[str, Any]]
Change = Callable[[Entries], object]


@functools.cache
def lines() -> tuple[str, ...]:
    """A store in which calls ran on decisions, then on a permit, then on a grant; then the permit was closed."""

    async def work() -> tuple[str, ...]:
        office = Office(approvals=ApprovalPolicy(signer=KEYS, seal=Seal("a seal of this test's")))
        permit = await office.earn(agent_id="mailer")
        await office.run("free", says=None, body="free")
        to_bob = Grant(tool="send_email", limits={"to": {"equals": "bob"}}, principal="ann", max_uses=1, expires_s=2e9)
        grant = to_bob.model_copy(update={"agent_id": "mailer", "session_id": "granted"})
        await Ledger(office.store).grant(ANN.sign(grant))
        await office.run("granted", says=None, body="granted")
        assert [body for _, body in office.world.sent[-2:]] == ["free", "granted"]
        await close_permit(office.store, permit.id, "a complaint")
        return tuple([line async for line in evidence(office.store)])

    return anyio.run(work)


def forged(*changes: Change) -> list[str]:
    """The file of `lines`, changed by somebody who computes every hash anew."""
    return rechained(lines(), *changes)


def rechained(file: Sequence[str], *changes: Change) -> list[str]:
    """The file of somebody who changes entries and computes every hash anew, those of the store's logs too."""
    entries: Entries = [json.loads(line) for line in file[:-1]]
    for entry in entries:
        for name in ("body", "entry"):
            if name in entry["data"]:
                entry["data"][name] = json.loads(entry["data"][name])
    for change in changes:
        change(entries)
    last: dict[str, str] = {}
    written: list[str] = []
    count: dict[str, int] = {}
    for one in entries:
        data = dict(one["data"])
        if "body" in data:
            data["body"] = json.dumps(data["body"])
        if "entry" in data:
            log = f"{one['what']} {data['of']}"
            inner = {k: v for k, v in data["entry"].items() if k not in ("v", "seq", "time_s", "previous", "hash")}
            at = count.get(log, 0)
            data["entry"] = chained(canonical_json(inner), at, data["entry"]["time_s"], last.get(log))
            last[log], count[log] = data["entry"], at + 1
        text = canonical_json({"what": one["what"], "data": data})
        written.append(chained(text, len(written), one["time_s"], written[-1] if written else None))
    end = canonical_json({"what": "end", "data": {"entries": len(entries)}})
    return [*written, chained(end, len(entries), 1.0, written[-1])]


def found_in(*changes: Change, **given: Any) -> Verified:
    return verified(forged(*changes), given.pop("keys", KEYS), **given)


def _begins(entry: dict[str, Any], session: str = "") -> bool:
    of = str(entry["data"].get("of"))
    return of.startswith(f"mailer/{session}") and entry["data"]["entry"].get("what") == "execution_started"


def started(session: str, **facts: Any) -> Change:
    """Change what the audit says of the call that ran in a session; `time_s` moves it."""

    def work(entries: Entries) -> None:
        for entry in entries:
            data = entry["data"]
            if _begins(entry, session):
                data["entry"]["time_s"] = facts.get("time_s", data["entry"]["time_s"])
                data["entry"]["data"] |= {name: value for name, value in facts.items() if name != "time_s"}

    return work


def one(what: str, **fields: Any) -> Change:
    """Change fields of a signed record, without its principal's key."""

    def work(entries: Entries) -> None:
        for entry in entries:
            if entry["what"] == what:
                entry["data"]["body"][what] |= fields

    return work


def signed(what: str, signer: Ed25519Signer = ANN, **fields: Any) -> Change:
    """Change fields of a signed record, and sign it anew."""
    kinds: dict[str, Any] = {"grant": Grant, "permit": Permit, "decision": ApprovalDecision}

    def work(entries: Entries) -> None:
        for entry in entries:
            if entry["what"] == what:
                body = entry["data"]["body"]
                record = kinds[what].model_validate(body[what] | {"signature": None} | fields)
                body[what] = signer.sign(record).model_dump(mode="json")

    return work


def logged(do: str, **fields: Any) -> Change:
    def work(entries: Entries) -> None:
        for entry in entries:
            if entry["what"] == "permit_log" and entry["data"]["entry"]["do"] == do:
                entry["data"]["entry"] |= fields

    return work


def without(what: str) -> Change:
    return lambda entries: entries.__setitem__(slice(None), [entry for entry in entries if entry["what"] != what])


def with_log_entry(do: str, at: int = 0, **fields: Any) -> Change:
    """One more entry of the permit's log, beside the one `at` this place."""

    def work(entries: Entries) -> None:
        place = [i for i, entry in enumerate(entries) if entry["what"] == "permit_log"][at]
        new = json.loads(json.dumps(entries[place]))
        new["data"]["entry"] = {"do": do, "time_s": 1.0, **fields}
        entries.insert(place - at, new)

    return work


def of_definition(closed: str | None, written_s: float, what: str = "permit", name: str = "closed") -> Change:
    def work(entries: Entries) -> None:
        for entry in entries:
            if entry["what"] == what:
                entry["data"]["body"][name], entry["data"]["written_s"] = closed, written_s

    return work


def again(session: str, time_s: float | None = None, **facts: Any) -> Change:
    """The first start of a session once more, with these facts: the call ran twice on what let it run once."""

    def work(entries: Entries) -> None:
        index, entry = next((index, entry) for index, entry in enumerate(entries) if _begins(entry, session))
        twice = json.loads(json.dumps(entry))
        twice["data"]["entry"]["data"] |= facts
        twice["data"]["entry"]["time_s"] += 0.0 if time_s is None else time_s
        entries.insert(index + 1, twice)

    return work


OTHER = ToolCall(id="b", name="send_email", arguments={"to": "bob", "body": "another"})
EVE = ToolCall(id="b", name="send_email", arguments={"to": "eve", "body": "granted"})
FORGED: dict[str, Change] = {
    "permit: gone": without("permit"),
    "permit: not signed": one("permit", signature=None),
    "permit: changed after it was signed": one("permit", epsilon=0.6),
    "permit: another's": one("permit", principal="bob"),
    "permit: signed by somebody else": signed("permit", BOB),
    "permit: of another tool": signed("permit", tool="pay"),
    "permit: of another agent": signed("permit", agent_id="clerk"),
    "permit: of other limits": signed("permit", limits={"to": {"equals": "zoe"}}),
    "permit: over before": signed("permit", expires_s=time.time() - 3_600),
    "permit: made afterwards": signed("permit", created_s=time.time() + 3_600),
    "permit: another promise than its log was written under": signed("permit", epsilon=0.02, delta=0.05),
    "permit: closed before": of_definition("a complaint", 1.0),
    "permit: closed before, by its log": with_log_entry("close", now_s=1.0, why="a complaint"),
    "permit: closed before, by its log alone": with_log_entry("close", at=-1, now_s=1.0, why="a complaint"),
    "permit: its log is gone": without("permit_log"),
    "permit: its log asked": logged("propose", draw=0.0),
    "permit: its log has another score": logged("propose", score=0.0),
    "permit: its log has another call": logged("propose", same="0" * 16),
    "permit: its log has wrong answers": logged("answer", wrong=True),
    "permit: its log is none": logged("propose", score="high"),
    "permit: its log lets it ahead later": logged("propose", now_s=4e9),
    "permit: the call ran twice": again("free"),
    "permit: the call ran twice, under two keys": again("free", idempotency_key="another"),
    "permit: another call under its key": again("free", arguments=OTHER.arguments, digest=OTHER.digest()),
    "permit: another one is named": started("free", cleared_by="permit 00000000"),
    "permit: two are named, one is here": lambda entries: started(
        "free",
        cleared_by=f"permit {next(e['data']['key'] for e in entries if e['what'] == 'permit')} and 00000000",
    )(entries),
    "permit: other arguments": started("free", arguments=OTHER.arguments),
    "permit: another call": started("free", arguments=OTHER.arguments, digest=OTHER.digest()),
    "permit: arguments unknown": started("free", arguments=None),
    "permit: another tool": started("free", tool="pay"),
    "grant: gone": without("grant"),
    "grant: not signed": one("grant", signature=None),
    "grant: changed after it was signed": one("grant", max_uses=None),
    "grant: signed by somebody else": signed("grant", BOB),
    "grant: of another tool": signed("grant", tool="pay"),
    "grant: of another agent": signed("grant", agent_id="clerk"),
    "grant: of another session": signed("grant", session_id="free"),
    "grant: of other limits": signed("grant", limits={"to": {"equals": "zoe"}}),
    "grant: over before": signed("grant", expires_s=time.time() - 3_600),
    "grant: made afterwards": signed("grant", created_s=time.time() + 3_600),
    "grant: revoked before": of_definition("ann", 1.0, "grant", "revoked"),
    "grant: used up": again("granted"),
    "grant: used up, under two keys": again("granted", idempotency_key="another"),
    "grant: another call under its key": again("granted", arguments=OTHER.arguments, digest=OTHER.digest()),
    "grant: other arguments": started("granted", arguments=OTHER.arguments),
    "grant: another recipient": started("granted", arguments=EVE.arguments, digest=EVE.digest()),
    "grant: another principal is named": lambda entries: started(
        "granted",
        cleared_by=f"grant {next(e['data']['key'] for e in entries if e['what'] == 'grant')} of bob",
    )(entries),
    "decision: gone": without("decision"),
    "decision: a rejection came first": lambda entries: [
        signed("decision", kind="reject")([entry]) for entry in entries if entry["what"] == "decision"
    ],
    "decision: the call is not named": started("earn-0", decisions=[]),
    "decision: more approved than did": lambda entries: [
        e["data"]["entry"]["data"].update(decisions=2 * e["data"]["entry"]["data"]["decisions"])
        for e in entries
        if e["what"] == "audit" and e["data"]["entry"]["data"].get("decisions")
    ],
    "decision: more approved than there are": lambda entries: [
        e["data"]["entry"]["data"].update(decisions=9 * e["data"]["entry"]["data"]["decisions"])
        for e in entries
        if e["what"] == "audit" and e["data"]["entry"]["data"].get("decisions")
    ],
    "decision: the call ran twice": again("earn-0"),
    "decision: the call ran twice, under two keys": again("earn-0", idempotency_key="another"),
    "decision: the call ran twice, and the second names none": again("earn-0", decisions=[]),
    "decision: none that can be read": started("earn-0", decisions=7),
    "decision: came afterwards": started("earn-0", time_s=1.0),
    "decision: of another tool": started("earn-0", tool="pay"),
    "nobody: a word of its own": started("free", cleared_by="the operator"),
}


def test_what_was_let_run_is_proven() -> None:
    found = found_in()
    assert found.faults == []
    assert found.ran == found.by_decision + found.by_permit == 10
    assert min(found.by_decision, found.by_permit) >= 2
    assert found_in(keys=None).faults == []


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED.keys())
def test_each_forged_link_is_named(change: Change) -> None:
    found = found_in(change)
    assert any(" ran on a " in fault for fault in found.faults), found


def test_a_sub_agent_that_was_let_run_goes_on_as_the_same_call_and_as_no_other() -> None:
    """Its own calls are in its own session; the mark lets nothing run that was not let run before."""
    once = found_in()
    others = {"tool": "pay", "digest": "f" * 64, "call_id": "z", "step_id": "llm_9", "run_id": "r"}
    for session in ("earn-0", "free", "granted"):
        for facts in ({}, {"decisions": []}, {"arguments": None}):
            found = found_in(again(session, child_session="s/1", **facts))
            assert (found.faults, found.ran, found.by_decision) == ([], once.ran, once.by_decision)
    for name, value in {**others, "cleared_by": "approve of bob", "idempotency_key": "another"}.items():
        found = found_in(again("earn-0", child_session="s/1", decisions=[], **{name: value}))
        assert any(" ran on a " in fault for fault in found.faults), name
        assert found.by_decision == once.by_decision


def test_what_came_later_is_the_one_too_many_wherever_it_stands() -> None:
    faults = [found_in(again("granted", time_s=by)).faults for by in (-1.0, 1.0)]
    lines_of = [int(fault.split(":")[0].removeprefix("line ")) for (fault,) in faults]
    assert lines_of[1] == lines_of[0] + 1


def test_nobody_lets_a_run_go_on_that_they_started_where_others_decide() -> None:
    """For grants and permits by what the audit says; a decision says it itself, signed."""
    by_bob, by_ann = started("", started_by="bob"), started("", started_by="ann")
    assert found_in(by_ann).faults == [], "where nobody asks it, an own grant covers"
    asked = found_in(by_bob, others_decide=True).faults
    assert not [fault for fault in asked if "grant" in fault or "permit" in fault]
    for named in (by_ann, lambda entries: None):
        found = found_in(named, others_decide=True)
        assert len([fault for fault in found.faults if "the run's starter" in fault]) == found_in().by_permit
        assert found.by_permit == 0


def test_a_policy_of_four_eyes_takes_no_single_approval_grant_or_permit() -> None:
    found = found_in(required=2)
    assert len(found.faults) == found.ran
    with pytest.raises(ConfigurationError, match="required"):
        found_in(required=3)


def test_a_call_that_finished_ran_whatever_else_is_said_of_it() -> None:
    def work(entries: Entries, told: str) -> None:
        begun = next(at for at, entry in enumerate(entries) if _begins(entry, "granted"))
        ends = [at for at, e in enumerate(entries) if e["data"].get("entry", {}).get("what") == "execution_finished"]
        (end,) = [at for at in ends if entries[at]["data"]["of"] == entries[begun]["data"]["of"]]
        for at in (begun, end):
            entries[at]["data"]["entry"]["data"]["cleared_by"] = "the operator"
        note = json.loads(json.dumps(entries[begun]))
        if told == "withdrawn afterwards":
            note["data"]["entry"]["what"] = "execution_withdrawn"
            entries.insert(end + 1, note)
        else:
            entries[begun]["data"]["entry"]["what"] = "execution_begun"

    for told in ("withdrawn afterwards", "never started"):
        found = found_in(lambda entries, told=told: work(entries, told))
        assert (len(found.faults), found.ran) == (1, 10), told


def test_a_call_that_was_withdrawn_did_not_run_unless_it_came_back() -> None:
    def told(what: str) -> Change:
        def work(entries: Entries) -> None:
            for entry in [entry for entry in entries if _begins(entry)]:
                note = json.loads(json.dumps(entry))
                note["data"]["entry"]["what"] = what
                entries.insert(entries.index(entry) + 1, note)

        return work

    def unfinished(entries: Entries) -> None:
        entries[:] = [e for e in entries if e["data"].get("entry", {}).get("what") != "execution_finished"]

    gone = without("permit")
    assert found_in(gone).faults != []
    withdrawn = found_in(gone, unfinished, told("execution_withdrawn"))
    assert (withdrawn.faults, withdrawn.ran) == ([], 0)
    assert found_in(gone, told("execution_withdrawn")).faults != [], "its result is there"
    assert found_in(gone, unfinished, told("execution_finished")).faults != []


def test_a_log_of_a_permit_that_was_changed_in_the_store_is_named() -> None:
    entries = [json.loads(line) for line in lines()[:-1]]
    one = next(entry for entry in entries if entry["what"] == "permit_log")
    one["data"]["entry"] = one["data"]["entry"].replace('"draw":0.9', '"draw":0.8')
    written: list[str] = []
    for entry in [*entries, {"what": "end", "data": {"entries": len(entries)}, "time_s": 1.0}]:
        text = canonical_json({"what": entry["what"], "data": entry["data"]})
        written.append(chained(text, len(written), entry["time_s"], written[-1] if written else None))
    (fault,) = verified(written, KEYS).faults
    assert "log of permit" in fault
    assert "was changed after it was written" in fault


def on_grant(words: str) -> Change:
    """All that the audit says of the call on the grant, from its start to its end, under other words."""

    def work(entries: Entries) -> None:
        for entry in entries:
            if entry["what"] == "audit" and entry["data"]["of"] == "mailer/granted":
                facts = entry["data"]["entry"].get("data", {})
                if "cleared_by" in facts:
                    facts["cleared_by"] = words

    return work


@pytest.mark.parametrize("odd", ["a of b", "a of ann", " of ", "a and a", "grant b of ann", "permit c", " "])
def test_a_grant_of_any_id_is_found_by_what_the_call_says(odd: str) -> None:
    named = signed("grant", id=odd), on_grant(f"grant {odd} of ann")
    found, once = found_in(*named), found_in()
    assert (found.faults, found.by_decision, found.by_permit) == ([], once.by_decision, once.by_permit)
    (fault,) = found_in(*named, without("grant")).faults
    assert "a grant that is not here" in fault


def test_of_two_grants_whose_names_read_alike_each_has_its_own_uses() -> None:
    """ "a of b" of "c" and "a" of "b of c" are one text: what one does not cover, or was used up in, the other may."""
    keys = PublicKeys({"ann": ANN.public_key, "b of ann": BOB.public_key})

    def twin(entries: Entries) -> None:
        at = next(index for index, entry in enumerate(entries) if entry["what"] == "grant")
        two = json.loads(json.dumps([entries[at]]))
        signed("grant", BOB, id="a", principal="b of ann", **limits)(two)
        signed("grant", id="a of b")(entries)
        entries[at:at] = two

    named = on_grant("grant a of b of ann")
    for limits in ({"tool": "pay"}, {"session_id": "another"}, {"max_uses": None}):
        assert found_in(twin, named, keys=keys).faults == [], limits
    limits = {"max_uses": 1}
    assert found_in(twin, named, again("granted"), keys=keys).faults == []
    assert len(found_in(twin, named, again("granted"), again("granted"), keys=keys).faults) == 1
