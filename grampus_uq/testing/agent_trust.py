"""Attacks that a guard must withstand: wrong keys, forged state, decisions on something else, odd calls."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import anyio

from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.runtime.stores import open_store
from grampus_uq.testing.agent_orders import Act
from grampus_uq.testing.agent_scene import (
    DONE,
    PAID,
    PAY,
    PROMPT,
    SURE,
    UNSURE,
    Scene,
    Script,
    delegating,
    ended,
    paused,
    pay,
    play,
    require,
    say,
    sentence,
    waiting,
)
from grampus_uq.testing.agent_script import LEDGER, STARTS, ScriptedTurn, Watch
from grampus_uq.testing.agent_under_test import Ended, Paused

DEEP = 150


# -- who decides ------------------------------------------------------------------------------------------------------


@sentence("A decision without the approver's signature is ignored, and blocks no valid one.", "signing")
def wrong_key(scene: Scene) -> None:
    scene.approvers("ann", strangers=("eve",))
    pending = waiting(scene.run(kill=True))
    for key in ("none", "eve"):
        scene.tried(say("approve", pending, key=key))
        scene.tried(say("reject", pending, key=key))
        scene.ran(problem=f"an approval with the key {key!r} counted")
    pending = waiting(scene.resume())
    scene.settled(say("approve", pending), ran=[PAID])


@sentence("A signed decision by an unauthorised person is ignored.", "signing")
def not_an_approver(scene: Scene) -> None:
    scene.approvers("ann", strangers=("eve",))
    pending = waiting(scene.run(kill=True))
    scene.tried(say("approve", pending, principal="eve"))
    scene.ran(problem="somebody approved who may not")
    scene.settled(say("approve", waiting(scene.resume())), ran=[PAID])


@sentence("Where two approvals are required, two principals run the call, and one never does.", "signing")
def four_eyes(scene: Scene) -> None:
    scene.approvers("ann", "bob", required=2)
    pending = waiting(scene.run(kill=True))
    for _ in range(2):
        scene.tried(say("approve", pending))
        scene.ran(problem="one principal's approval sufficed")
    scene.settled(say("approve", pending), say("approve", pending, principal="bob"), ran=[PAID])


@sentence("A late approval runs nothing.", "signing")
def late_approval(scene: Scene) -> None:
    scene.approvers("ann", expires_s=1e-6)
    pending = waiting(scene.run(kill=True))
    scene.tried(say("approve", pending))
    scene.ran(problem="an approval counted that came too late")


# -- what is decided --------------------------------------------------------------------------------------------------


@sentence("An approval from one session runs nothing in another.")
def other_session(scene: Scene) -> None:
    seen, forged = scene.beside("seen"), scene.beside("other")
    approval = say("approve", waiting(seen.run()))
    waiting(forged.live(Act(do="run", session="t", prompt=PROMPT), kill=True).results[0])
    answer = forged.tried(approval, session="t")
    forged.ran(problem=f"an approval of another session counted: {answer.results}")


@sentence("A call swapped in stored state does not run on the old approval.", "forge", "signing")
def swapped_call(scene: Scene) -> None:
    scene.approvers("ann")
    pending = waiting(scene.run(kill=True))
    scene.forge("call")
    scene.tried(say("approve", pending))
    require(set(scene.executed()) <= {PAID}, f"an approval of {PAY.canonical()} ran {scene.executed()}")


@sentence("Forged stored state cannot mark a call as cleared.", "forge", "signing")
def forged_phase(scene: Scene) -> None:
    _forged(scene, "phase")


@sentence("Forged stored state cannot raise the belief to release a call.", "forge", "signing")
def forged_belief(scene: Scene) -> None:
    _forged(scene, "belief")


def _forged(scene: Scene, what: str) -> None:
    scene.approvers("ann")
    waiting(scene.run(kill=True))
    scene.forge(what)
    scene.tried()
    scene.ran(problem=f"the stored {what} was believed")


@sentence("Where starts are stored, a state from before an approved call does not run it a second time.", "starts")
def old_state(scene: Scene) -> None:
    scene.folder.mkdir(parents=True)
    anyio.run(_make_store, scene.folder / STARTS)
    pending = waiting(scene.run())
    before = {file.name: file.read_bytes() for file in scene.folder.iterdir() if not _stays(file)}
    ended(scene.resume(say("approve", pending)), DONE)
    for file in scene.folder.iterdir():
        if not _stays(file):
            file.unlink()
    for name, content in before.items():
        (scene.folder / name).write_bytes(content)
    again = waiting(scene.resume(say("approve", pending)))
    scene.ran(PAID, problem="the old state ran the call again")
    require("whether it took effect is unknown" in again.reason, f"its human is not told: {again.reason!r}")
    scene.settled(say("reject", again), ran=[PAID])


def _stays(file: Path) -> bool:
    """Return True for what is no state of the framework."""
    return file.name.startswith((LEDGER, STARTS)) or file.is_dir()


async def _make_store(path: Path) -> None:
    store = open_store(f"sqlite:///{path}", create=True)
    await store.now()
    await store.aclose()


@sentence("Of two identical parallel calls, one approval runs one.", "parallel", "twins")
def same_arguments(scene: Scene) -> None:
    twins = (pay("ann", 1, "twin-1"), pay("ann", 1, "twin-2"))
    scene.script = play(UNSURE, *twins)
    pending = {p.call_id: p for p in paused(scene.run(kill=True))}
    require(set(pending) == {"twin-1", "twin-2"}, f"each of two equal calls was to wait by itself: {sorted(pending)}")
    ended(scene.resume(say("approve", pending["twin-1"]), say("reject", pending["twin-2"])), DONE)
    wanted = [canonical_json(twins[0].arguments)]
    scene.ran(*wanted)


@sentence("Five parallel calls, approved together, run once each.", "parallel")
def five_at_once(scene: Scene) -> None:
    calls = tuple(pay(f"payee {n}", n, f"pay-{n}") for n in range(5))
    scene.script = play(UNSURE, *calls)
    pending = paused(scene.run(kill=True))
    ended(scene.resume(*(say("approve", one) for one in pending)), DONE)
    wanted = Counter(canonical_json(call.arguments) for call in calls)
    require(Counter(scene.executed()) == wanted, f"each was to run once; ran {scene.executed()}")
    scene.no_call_paid_twice()


@sentence("A sub-agent's call needs its own approval, even if its parent's identical call was approved.", "sub_agent")
def nested_same_call(scene: Scene) -> None:
    mine = ScriptedTurn(text="I pay.", calls=(PAY,), confidence=UNSURE)
    scene.script = {PROMPT: [mine, *delegating("Pay Bob.")], **play(UNSURE, prompt="Pay Bob.")}
    pending = waiting(scene.run(kill=True))
    again = scene.resume(say("approve", pending), kill=True)
    scene.ran(PAID)
    scene.settled(say("reject", waiting(again)), ran=[PAID])


@sentence("A rejected call does not run when the model proposes it again.")
def proposed_again(scene: Scene) -> None:
    scene.script = _twice(UNSURE)
    pending = waiting(scene.run(kill=True))
    ended(scene.resume(say("reject", pending)), DONE)
    scene.ran(problem="the model proposed again what was rejected")


@sentence("A call that a human edited does not run unasked when the model proposes it again as it was.", "edit")
def edited_again(scene: Scene) -> None:
    scene.script, edited = _twice(SURE), {"to": "bob", "amount": 7}
    pending = waiting(scene.run(kill=True))
    again = scene.resume(say("edit", pending, arguments=edited), kill=True)
    scene.ran(canonical_json(edited), problem="the call that a human changed ran as the model proposed it again")
    scene.settled(say("reject", waiting(again)), ran=[canonical_json(edited)])


def _twice(sure: float) -> Script:
    """A payment that is proposed a second time with this confidence."""
    again = PAY.model_copy(update={"id": "pay-2"})
    first = ScriptedTurn(text="I pay.", calls=(PAY,), confidence=UNSURE)
    return {PROMPT: [first, ScriptedTurn(text="Again.", calls=(again,), confidence=sure), ScriptedTurn(text=DONE)]}


@sentence("A call rejected in a sub-agent does not run unasked when the sub-agent is called again.", "sub_agent")
def nested_again(scene: Scene) -> None:
    tasks = play(UNSURE, prompt="Pay Bob.") | play(SURE, prompt="Pay Bob now.")
    scene.script = {PROMPT: delegating(*tasks), **tasks}
    again = scene.resume(say("reject", waiting(scene.run(kill=True))))
    scene.ran(problem="a sub-agent that was called again ran what had been rejected")
    if isinstance(again, Paused):
        scene.settled(say("reject", waiting(again)))


@sentence("An edit that violates the tool's schema runs nothing, and the request stays open.", "edit", "schema")
def wrong_edit(scene: Scene) -> None:
    pending = waiting(scene.run(kill=True))
    scene.tried(say("edit", pending, arguments={"to": "bob", "amount": "seven", "note": "x"}))
    scene.ran(problem="an edit counted that the tool cannot take")
    scene.settled(say("approve", waiting(scene.resume())), ran=[PAID])


# -- odd calls --------------------------------------------------------------------------------------------------------


@sentence("A call with deeply nested arguments never runs without approval, and does not end the run.", "odd_calls")
def deep_arguments(scene: Scene) -> None:
    deep: Any = "bob"
    for _ in range(DEEP):
        deep = {"a": deep}
    scene.script = play(UNSURE, ToolCall(id="pay-1", name="pay", arguments={"to": deep, "amount": 1}))
    result = scene.run(kill=True)
    scene.ran(problem="nobody approved a call of deep arguments")
    for one in paused(result) if isinstance(result, Paused) else ():
        result = scene.resume(say("reject", one))
    require(isinstance(result, Ended), f"the run was to go on after it: {result}")


@sentence("A call without an id needs approval like any other.", "odd_calls", "no_ids")
def without_an_id(scene: Scene) -> None:
    scene.script = play(UNSURE, PAY.model_copy(update={"id": ""}))
    pending = waiting(scene.run(kill=True))
    scene.ran(problem="a call without an id was not asked for")
    scene.settled(say("approve", pending), ran=[PAID])


@sentence("Advisory mode raises no errors of its own on malformed calls.", "advisory")
def advice_never_raises(scene: Scene) -> None:
    odd = (ToolCall(id="", name="look_up", arguments={"query": "x"}), ToolCall(id="u", name="no_such_tool"))
    scene.script = play(UNSURE, *odd)
    run = Act(do="run", session="s", prompt=PROMPT)
    bare, advised = (
        scene.laboratory.live(scene.beside(name).folder, scene.script, run, watch=watch).results
        for name, watch in (("bare", Watch.NONE), ("advised", Watch.ADVISORY))
    )
    require(bare == advised, f"the bare framework {bare}, but advised it {advised}")


@sentence("A call of an MCP tool pauses like any other.", "mcp")
def mcp_tool(scene: Scene) -> None:
    _like_pay(scene, PAY.model_copy(update={"name": "mcp_pay"}))


@sentence("A call of an output tool pauses like any other.", "output_tool")
def output_tool(scene: Scene) -> None:
    _like_pay(scene, PAY.model_copy(update={"name": "final_pay"}), last=True)


def _like_pay(scene: Scene, call: ToolCall, *, last: bool = False) -> None:
    scene.script = play(UNSURE, call)
    pending = waiting(scene.run(kill=True), call)
    scene.ran(problem=f"{call.name} was not asked for")
    result = scene.resume(say("approve", pending))
    require(isinstance(result, Ended) and (last or result.output == DONE), f"the run was to end: {result}")
    scene.ran(PAID)
