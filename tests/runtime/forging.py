"""An attacker who writes every byte of a store, and has everything but the approvers' private keys.

`scene` builds what there is to find: a session that waits for an approval, and decisions that ann really signed, on
other calls and in other sessions. `forge` writes all that anew. Whatever runs then that ann did not approve is counted:
an execution is known by its idempotency key, which names run, step and call.
"""

from __future__ import annotations

import copy
import json
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grampus_uq
from grampus_uq import AgentRunner, ApprovalPolicy, FunctionTools, Grant, UncertaintyMonitor, tool
from grampus_uq.errors import GrampusError
from grampus_uq.gate.call import CallPhase
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.gate.seal import Seal
from grampus_uq.gate.signatures import Ed25519Signer, HmacSigner, PublicKeys
from grampus_uq.records.values import ToolCall
from grampus_uq.records.vocabulary import Effect
from grampus_uq.runtime.store import Delete, Drop, SessionStore
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.transcript import Transcript, changes, extended, replayed
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, scripted

ANN, EVE = Ed25519Signer.generate(), Ed25519Signer.generate()
SHARED, SEAL = HmacSigner("a key that only ann and the runner hold"), Seal("a key that only the runners hold")
VICTIM = "mailer/v"
RESUMES = 3

Values = dict[str, Any]
Manipulation = Callable[["Stored", random.Random], None]


def pay(call_id: str, to: str, amount: int) -> ToolCall:
    return ToolCall(id=call_id, name="pay", arguments={"to": to, "amount": amount})


PAST, WAITS, EVIL = pay("p1", "A", 5), pay("p2", "B", 7), pay("p2", "M", 99_999)
SCRIPT = [
    answer("I pay A.", tool_calls=[PAST]),
    answer("I pay B.", tool_calls=[WAITS, ToolCall(id="l1", name="look", arguments={"at": "B"})]),
    answer("Done."),
]
POLICIES: dict[str, Callable[[], ApprovalPolicy]] = {
    "public keys": lambda: ApprovalPolicy(signer=PublicKeys({"ann": ANN.public_key})),
    "public keys and a seal": lambda: ApprovalPolicy(signer=PublicKeys({"ann": ANN.public_key}), seal=SEAL),
    "a shared key": lambda: ApprovalPolicy(signer=SHARED, approvers={"ann"}),
}


def raised_in_the_package(error: Exception) -> bool:
    """True when the line that raised is the package's own, wherever the checkout lies."""
    raised = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return raised.is_relative_to(Path(grampus_uq.__file__).parent)


def ann(policy: str) -> Ed25519Signer | HmacSigner:
    """What ann signs with under this policy."""
    return SHARED if policy == "a shared key" else ANN


class Till:
    """What was really paid, by idempotency key."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.looked: list[str] = []

    def tools(self) -> FunctionTools:
        @tool(effect=Effect.IRREVERSIBLE)
        def pay(to: str, amount: int, idempotency_key: str = "") -> str:
            self.keys.append(idempotency_key)
            return "paid"

        @tool(effect=Effect.READ)
        def look(at: str) -> str:
            self.looked.append(at)
            return "nothing"

        return FunctionTools(pay, look)


def runner(till: Till, store: SessionStore, policy: str, p_true: float = 0.62) -> AgentRunner:
    """A worker of its own process: it shares nothing with another but the store and the configured keys."""
    return AgentRunner(
        scripted(SCRIPT, p_true), till.tools(), uncertainty_monitor=UncertaintyMonitor(), store=store,
        approvals=POLICIES[policy](), lease_s=0.01,
    )  # fmt: skip


@dataclass
class Stored:
    """The documents that the attacker may write: those of the victim's session, and what else is in the store."""

    session: Values
    decisions: list[Values]
    grants: list[Values]
    log: list[str] = field(default_factory=list)
    others: dict[str, Any] = field(default_factory=dict)
    seal: str | None = None

    def copy(self) -> Stored:
        return copy.deepcopy(self)

    @property
    def call(self) -> Values:
        """The record of the call that waits."""
        found: Values = self.session["turn"][0]
        return found


@dataclass(frozen=True)
class Scene:
    """What the attacker finds, and the idempotency keys of what ann approved."""

    policy: str
    stored: Stored
    approved: frozenset[str]


async def scene(policy: str) -> Scene:
    """Ann approves paying A in the victim's session and in another, rejects paying B in a third, and grants little."""
    till, store = Till(), MemoryStore()
    signer, one = ann(policy), runner(till, store, policy)
    for session, kind in (("other", "approve"), ("third", "reject"), ("v", "approve")):
        (request,) = (await one.run(AGENT, "pay", session_id=session)).pending
        await one.resume("mailer", session, signer.sign(request.decide(kind, principal="ann")))
    grant = Grant(tool="pay", limits={"to": {"equals": "Z"}}, principal="ann", expires_s=time.time() + 3600, max_uses=1)
    await one.ledger.grant(signer.sign(grant))
    sure = runner(till, store, policy, 0.99)
    await sure.run(AGENT, "look", session_id="sure")
    documents = {
        kind: {d.key: json.loads(d.body) for d in await store.scan(kind)} for kind in ("session", "decision", "grant")
    }
    victim = documents["session"].pop(VICTIM)
    log = victim.get("transcript")
    stored = Stored(
        session=victim,
        decisions=list(documents["decision"].values()),
        grants=list(documents["grant"].values()),
        log=[] if log is None else await store.read(log["log"]),
        others=documents["session"],
        seal=victim.pop("seal", None),
    )
    assert [r["phase"] for r in victim["turn"]] == ["waiting", "settled"]
    return Scene(policy=policy, stored=stored, approved=frozenset(till.keys))


async def attack(scene: Scene, forged: Stored, *, p_true: float = 0.99, store: SessionStore | None = None) -> list[str]:
    """Put the forged documents into a store, let another process go on with the session, and say what it paid.

    Returns the keys of the payments that ann did not approve. Nothing but this package's own errors may be raised.
    """
    store, till = store or MemoryStore(), Till()
    await write(forged, store)
    one = runner(till, store, scene.policy, p_true)
    for _ in range(RESUMES):
        try:
            await one.resume("mailer", "v")
        except GrampusError:
            break
    return [key for key in till.keys if key not in scene.approved]


async def write(forged: Stored, store: SessionStore) -> None:
    """The forged documents, in place of all that a store holds."""
    for kind in ("session", "decision", "grant"):
        for found in await store.scan(kind):
            await store.write(Delete(kind=kind, key=found.key, expected=found.version))
    for log in (forged.session["transcript"]["log"], f"audit/{VICTIM}"):
        await store.write(Drop(log=log))
    body = dict(forged.session) if forged.seal is None else {"seal": forged.seal, **forged.session}
    await store.put(
        "session", VICTIM, json.dumps(body, separators=(",", ":")), expected=0, label=str(body.get("status"))
    )
    for number, decision in enumerate(forged.decisions):
        request_id = str(_inner(decision).get("request_id"))
        await store.put("decision", f"{request_id}/{number:064x}", json.dumps(decision), expected=0)
    for number, grant in enumerate(forged.grants):
        await store.put("grant", str(number), json.dumps(grant), expected=0, label="pay")
    for position, entry in enumerate(forged.log):
        await store.append(forged.session["transcript"]["log"], entry, expected=position)


def _inner(decision: Values) -> Values:
    found = decision.get("decision", decision)
    return found if isinstance(found, dict) else {}


# -- what can be written, piece by piece ------------------------------------------------------------------------------


def dumped(call: ToolCall) -> Values:
    return call.model_dump(mode="json")


def _requests(stored: Stored) -> list[Values]:
    """Every request that anybody was ever asked and that is still to be found."""
    found = list(stored.call.get("requests", []))
    for other in stored.others.values():
        for record in other.get("turn", []):
            found += record.get("requests", [])
    return found


def _forged_decisions(stored: Stored, rng: random.Random) -> list[Values]:
    """A decision on the waiting request that ann did not make: unsigned, of another key, or hers on something else."""
    request = (stored.call.get("requests") or [{}])[0]
    base = {
        "request_id": request.get("id", "x"), "digest": rng.choice(["0" * 64, _digest(request)]), "kind": "approve",
        "principal": "ann", "message": None, "arguments": None, "decided_s": time.time(), "signature": None,
    }  # fmt: skip
    made = dict(rng.choice([base, *(_inner(d) for d in stored.decisions)]))
    for name in rng.sample(sorted(base), rng.randint(0, 3)):
        made[name] = base[name]
    if rng.random() < 0.3:
        made |= {"kind": "edit", "arguments": EVIL.arguments}
    if rng.random() < 0.3:
        made["signature"] = EVE.signature(json.dumps(made).encode())
    return [made]


def _digest(request: Values) -> str:
    try:
        return ApprovalRequest.model_validate(request).digest()
    except ValueError:
        return "0" * 64


def _set(path: str, *values: Any) -> Manipulation:
    def write(stored: Stored, rng: random.Random) -> None:
        at: Any = stored.session
        *head, last = path.split(".")
        for name in head:
            at = at[int(name)] if name.isdigit() else at.setdefault(name, {})
            if not isinstance(at, dict | list):
                return
        if isinstance(at, dict):
            at[last] = copy.deepcopy(rng.choice(values))

    return write


def _requests_of_others(stored: Stored, rng: random.Random) -> None:
    stored.call["requests"] = rng.sample(_requests(stored), 1)


def _decisions_on_record(stored: Stored, rng: random.Random) -> None:
    stored.call["decisions"] = [dict(_inner(rng.choice(stored.decisions)))] if rng.random() < 0.6 else (
        _forged_decisions(stored, rng)
    )  # fmt: skip


def _decisions_in_store(stored: Stored, rng: random.Random) -> None:
    stored.decisions += [{"arrived_s": 0.0, "decision": d} for d in _forged_decisions(stored, rng)]


def _request_rewritten(stored: Stored, rng: random.Random) -> None:
    for request in stored.call.get("requests", []):
        request[rng.choice(["call", "expires_s", "rules", "run_id", "step_id", "session_id", "id"])] = rng.choice(
            [dumped(EVIL), dumped(PAST), None, 0.0, "", "llm_0", "v", "x"]
        )


def certain(stored: Stored) -> Values:
    """The belief of a run that was sure of all that it did, as this session's own."""
    belief: Values = copy.deepcopy(stored.others["mailer/sure"]["belief"])
    belief["state"]["session_id"] = "v"
    return belief


def _belief_of_a_sure_run(stored: Stored, rng: random.Random) -> None:
    stored.session["belief"] = certain(stored)


def _belief_written(stored: Stored, rng: random.Random) -> None:
    state = (stored.session.get("belief") or {}).get("state")
    if isinstance(state, dict):
        for name in state:
            if isinstance(state[name], float) and rng.random() < 0.5:
                state[name] = 1.0


def _call_again(stored: Stored, rng: random.Random) -> None:
    again = copy.deepcopy(rng.choice(stored.session["turn"]))
    if rng.random() < 0.5:
        again["proposed"]["id"] = again["call"]["id"] = "p9"
    stored.session["turn"].append(again)


def _new_turn(stored: Stored, rng: random.Random) -> None:
    stored.session["turn"] = [
        {"proposed": dumped(c), "call": dumped(c), "step_id": "llm_1", "phase": rng.choice(list(CallPhase))}
        for c in rng.sample([EVIL, PAST, pay("p7", "M", 1)], rng.randint(0, 2))
    ]


def cut(stored: Stored, length: int) -> None:
    """The transcript as if only so many messages had ever been said, with a log and a digest that fit."""
    transcript = Transcript.model_validate(stored.session["transcript"])
    stored.log = changes([], replayed(transcript, stored.log)[:length])
    stored.session["transcript"] = extended(Transcript(log=transcript.log), stored.log).model_dump()


def _messages_cut(stored: Stored, rng: random.Random) -> None:
    cut(stored, rng.randint(1, 7))
    stored.session["turn"] = rng.choice([[], stored.session["turn"]])


def _grants(stored: Stored, rng: random.Random) -> None:
    for held in stored.grants:
        grant = held.get("grant", {})
        grant |= rng.choice(
            [{"limits": {}}, {"principal": "eve"}, {"expires_s": 9e9}, {"signature": None}, {"tool": "x"}]
        )
        held["uses"] = rng.choice([0, -5, 10**6])
    free = Grant(tool="pay", principal="ann", expires_s=9e9)
    stored.grants.append({"grant": EVE.sign(free).model_dump(mode="json"), "uses": 0})
    if rng.random() < 0.5:
        stored.call["grant"] = rng.choice([held.get("grant") for held in stored.grants])


def _seal(stored: Stored, rng: random.Random) -> None:
    others = [other.get("seal") for other in stored.others.values()]
    stored.seal = rng.choice([None, "0" * 64, "x", *others])


PARTS: list[Manipulation] = [
    _set("turn.0.phase", *(phase.value for phase in CallPhase)),
    _set("turn.0.phase", "cleared", "started"),
    _set("turn.0.effect", *(effect.value for effect in Effect)),
    _set("turn.0.call", dumped(EVIL), dumped(PAST), dumped(pay("p2", "B", 70))),
    _set("turn.0.proposed", dumped(EVIL), dumped(PAST)),
    _set("turn.0.cleared_by", None, "monitor", "unmonitored", "approve of ann", "grant x of ann"),
    _set("turn.0.step_id", "llm_0", "llm_1", "llm_2"),
    _set("turn.0.child_session", "x", "v"),
    _set("turn.0.requests", []),
    _set("turn.0.decisions", []),
    _set("vouched", True),
    _set("rejected", [], [WAITS.digest()]),
    _set("discarded", []),
    _set("review", []),
    _set("answer_approved_by", "ann"),
    _set("output", "all paid"),
    _set("run_id", "x"),
    _set("current_step", 0, 1, 5),
    _set("status", "idle", "running", "waiting_for_human"),
    _set("touched", True),
    _set("v", 1),
    _set("belief", None),
    _belief_of_a_sure_run,
    _belief_written,
    _requests_of_others,
    _request_rewritten,
    _decisions_on_record,
    _decisions_in_store,
    _call_again,
    _new_turn,
    _messages_cut,
    _grants,
    _seal,
]


def forge(stored: Stored, rng: random.Random) -> Stored:
    """The documents, written anew in one to six places."""
    forged = stored.copy()
    for part in rng.sample(PARTS, rng.randint(1, 6)):
        if forged.session.get("turn"):
            part(forged, rng)
    return forged
