"""The sentences that an adapter to an agent framework must make true, each a check with real processes.

    with AgentLaboratory("my_package.my_harness:build", tmp_path) as laboratory:
        for sentence in SENTENCES:
            print(check_agent(laboratory, sentence))

A check raises AssertionError where the sentence is false; `check_agent` makes a `Finding` of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.testing import agent_trust as trust
from grampus_uq.testing.agent_laboratory import AgentLaboratory
from grampus_uq.testing.agent_orders import Act
from grampus_uq.testing.agent_scene import (
    DONE,
    LOST,
    PAID,
    PAY,
    PROMPT,
    SURE,
    UNSURE,
    Scene,
    Script,
    ended,
    look_up,
    one,
    paused,
    pay,
    play,
    require,
    say,
    waiting,
)
from grampus_uq.testing.agent_script import PRECONDITION, ScriptedTurn, Watch
from grampus_uq.testing.agent_under_test import Ended, Paused

__all__ = ["SENTENCES", "Finding", "Sentence", "check_agent"]

Check = Callable[[Scene], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One thing that must be true of an adapter; `needs` names what the framework must be able to do for it."""

    name: str
    text: str
    check: Check
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found: the sentence `holds`, is false, or (None) cannot be asked of this framework; and why."""

    sentence: Sentence
    holds: bool | None
    detail: str = ""


def check_agent(laboratory: AgentLaboratory, sentence: Sentence) -> Finding:
    """Check one sentence in a folder of its own."""
    lacking = [f"{need}: {laboratory.lacks[need]}" for need in sentence.needs if need in laboratory.lacks]
    if lacking:
        return Finding(sentence=sentence, holds=None, detail="; ".join(lacking))
    try:
        detail = sentence.check(Scene(laboratory, laboratory.folder / sentence.name))
    except AssertionError as error:
        return Finding(sentence=sentence, holds=False, detail=str(error))
    return Finding(sentence=sentence, holds=True, detail=detail or "")


def healthy_run_untouched(scene: Scene) -> str:
    script = play(SURE)
    bare, watched = scene.beside("bare"), scene.beside("watched")
    plain = bare.run(script, watch=Watch.NONE)
    ended(plain, DONE)
    result = watched.run(script)
    require(result == plain, f"the bare framework {plain}, but watched: {result}")
    for kind in ("tool", "agent_model"):
        before, after = ([_without_process(line) for line in s.lines(kind)] for s in (bare, watched))
        require(before == after, f"bare: {before}; watched: {after}")
    return watched.no_call_paid_twice()


def uncertain_run_paused(scene: Scene) -> None:
    pending = waiting(scene.run(play(UNSURE)))
    require(scene.executed() == [], f"pay ran although the run was paused: {scene.executed()}")
    require(len(scene.executed("look_up")) == 1, "the harmless tool was to run, once")
    require(pending.call_id == PAY.id, f"the human sees another call's id than the model's: {pending.call_id}")


def approved_elsewhere(scene: Scene) -> str:
    script = play(UNSURE)
    pending = waiting(scene.run(script, kill=True))
    ended(scene.resume(script, say("approve", pending)), DONE)
    require(scene.executed() == [PAID], f"the approved call was to run exactly once; ran {scene.executed()}")
    require(len(scene.executed("look_up")) == 1, "a finished tool ran again")
    return scene.no_call_paid_twice()


def rejected_elsewhere(scene: Scene) -> str:
    script = play(UNSURE)
    pending = waiting(scene.run(script, kill=True))
    ended(scene.resume(script, say("reject", pending, message="not to him")), DONE)
    require(scene.executed() == [], f"the rejected call ran: {scene.executed()}")
    return scene.no_call_paid_twice()


def edited_elsewhere(scene: Scene) -> str:
    script = play(UNSURE)
    pending = waiting(scene.run(script, kill=True))
    ended(scene.resume(script, say("edit", pending, arguments={"to": "bob", "amount": 7})), DONE)
    wanted = [canonical_json({"to": "bob", "amount": 7})]
    require(scene.executed() == wanted, f"the edited call was to run once, as edited; ran {scene.executed()}")
    return scene.no_call_paid_twice()


def answered_elsewhere(scene: Scene) -> str:
    script = play(UNSURE)
    pending = waiting(scene.run(script, kill=True))
    ended(scene.resume(script, say("respond", pending, message="I paid him in cash.")), DONE)
    require(scene.executed() == [], f"a call that a human answered for ran: {scene.executed()}")
    return scene.no_call_paid_twice()


def belief_continues(scene: Scene) -> str:
    script, killed, whole = play(UNSURE), scene.beside("killed"), scene.beside("whole")
    pending = waiting(killed.run(script, kill=True))
    killed.resume(script, say("approve", pending))
    first = waiting(whole.run(script))
    whole.resume(script, say("approve", first))
    (belief,) = killed.beliefs().values() or [[]]
    require([index for index, *_ in belief] == list(range(len(belief))), f"steps were lost or counted twice: {belief}")
    kinds = Counter(step for _, step, _ in belief)
    require(kinds["llm_call"] == 3, f"3 steps of the model were to be judged: {belief}")
    require([belief] == list(whole.beliefs().values()), f"killed: {belief}; not killed: {whole.beliefs()}")
    decisions = [line["decision"] for line in killed.lines("decision")]
    require(decisions == ["approve"], f"the human's answer was to be recorded once: {decisions}")
    return f"{len(belief)} steps, propagated confidence {belief[-1][2]:.3f}"


def other_arguments_refused(scene: Scene) -> None:
    """The decision was made on a call of the same session, id, tool and place, that differs in its arguments only."""
    seen, forged = scene.beside("seen"), scene.beside("waits")
    dear = pay("mallory", 1000)
    approval = say("approve", waiting(seen.run(play(UNSURE))))
    waiting(forged.run(play(UNSURE, dear), kill=True), dear)
    again = forged.resume(play(UNSURE, dear), approval)
    require(forged.executed() == [], f"an approval for {PAY.canonical()} ran {forged.executed()}")
    pending = waiting(again, dear)
    ended(forged.resume(play(UNSURE, dear), say("approve", pending)), DONE)
    require(forged.executed() == [canonical_json(dear.arguments)], f"ran {forged.executed()}")
    forged.no_call_paid_twice()


def decision_given_twice(scene: Scene) -> None:
    script = play(UNSURE)
    approval = say("approve", waiting(scene.run(script)))
    ended(scene.resume(script, approval), DONE)
    # Refusing it with an exception is as good as taking no notice.
    scene.laboratory.live(scene.folder, script, Act(do="resume", session="s", decisions=(approval,)))
    require(scene.executed() == [PAID], f"the call was to run once; ran {scene.executed()}")


def failed_precondition(scene: Scene) -> None:
    script = play(UNSURE)
    approval = say("approve", waiting(scene.run(script, kill=True)))
    (scene.folder / PRECONDITION).write_text("fails")
    again = scene.resume(script, approval, kill=True)
    require(scene.executed() == [], f"the call ran although its precondition had failed: {scene.executed()}")
    pending = waiting(again)
    (scene.folder / PRECONDITION).write_text("holds")
    stale = scene.laboratory.live(scene.folder, script, Act(do="resume", session="s", decisions=(approval,)), kill=True)
    require(scene.executed() == [], "a decision that had been refused counted when the precondition held again")
    (still,) = stale.results
    if isinstance(still, Paused):
        pending = waiting(still)
    ended(scene.resume(script, say("reject", pending)), DONE)
    require(scene.executed() == [], f"the rejected call ran: {scene.executed()}")
    scene.no_call_paid_twice()


def precondition_holds(scene: Scene) -> None:
    script = play(UNSURE)
    approval = say("approve", waiting(scene.run(script, kill=True)))
    (scene.folder / PRECONDITION).write_text("fails")
    pending = waiting(scene.resume(script, approval, kill=True))
    (scene.folder / PRECONDITION).write_text("holds")
    ended(scene.resume(script, say("approve", pending)), DONE)
    require(scene.executed() == [PAID], f"the call was to run exactly once; ran {scene.executed()}")
    scene.no_call_paid_twice()


def parallel_calls(scene: Scene) -> str:
    calls = (pay("ann", 1, "pay-a"), look_up("rates", "look-2"), pay("bob", 2, "pay-b"))
    script = play(UNSURE, *calls)
    pending = {p.call_id: p for p in paused(scene.run(script, kill=True))}
    require(set(pending) == {"pay-a", "pay-b"}, f"both payments were to wait, and nothing else: {sorted(pending)}")
    result = scene.resume(script, say("approve", pending["pay-a"]), say("reject", pending["pay-b"]))
    ended(result, DONE)
    wanted = [canonical_json(calls[0].arguments)]
    require(scene.executed() == wanted, f"only the approved one was to run, once; ran {scene.executed()}")
    require(len(scene.executed("look_up")) == 2, f"look_up was to run once a call: {scene.executed('look_up')}")
    return scene.no_call_paid_twice()


def sub_agent(scene: Scene) -> str:
    delegate = ToolCall(id="delegate-1", name="delegate", arguments={"task": "Pay Bob."})
    script: Script = {
        PROMPT: [ScriptedTurn(text="I delegate it.", calls=(delegate,)), ScriptedTurn(text=DONE)],
        "Pay Bob.": [
            ScriptedTurn(text="I pay Bob.", calls=(PAY,), confidence=UNSURE),
            ScriptedTurn(text="Bob has it."),
        ],
    }
    pending = waiting(scene.run(script, kill=True))
    require(scene.executed() == [], f"the sub-agent's call ran although the run was paused: {scene.executed()}")
    ended(scene.resume(script, say("approve", pending)), DONE)
    require(scene.executed() == [PAID], f"the approved call was to run exactly once; ran {scene.executed()}")
    return scene.no_call_paid_twice()


def ten_sessions(scene: Scene) -> None:
    _ten(scene, dict.fromkeys(range(10), True))


def ten_beliefs(scene: Scene) -> None:
    _ten(scene, {n: n % 2 == 1 for n in range(10)})
    beliefs = list(scene.beliefs().values())
    require(len(beliefs) == 10, f"10 sessions were to be watched; there were {len(beliefs)}")
    alone = scene.beside("alone")
    alone.run(play(SURE))
    (reference,) = alone.beliefs().values()
    same = [belief for belief in beliefs if belief == reference]
    require(len(same) == 5, f"5 of 10 were to be believed what a lone run is, {reference}; of {beliefs}")
    different = [belief for belief in beliefs if belief != reference]
    require(all(belief == different[0] for belief in different), f"equal runs are believed differently: {different}")


def _ten(scene: Scene, unsure: Mapping[int, bool]) -> None:
    """Ten sessions of one agent at once, paused where they are unsure; killed; approved at once in another process."""
    calls = {n: pay(f"payee {n}", n, f"pay-{n}") for n in unsure}
    script: Script = {}
    for n in unsure:
        script |= play(UNSURE if unsure[n] else SURE, calls[n], prompt=f"Order {n}.")
    runs = [Act(do="run", session=f"s{n}", prompt=f"Order {n}.") for n in unsure]
    results = dict(zip(unsure, scene.live(script, *runs, together=True, kill=True).results, strict=True))
    pending = {n: waiting(results[n], calls[n]) for n in unsure if unsure[n]}
    for n in (n for n in unsure if not unsure[n]):
        ended(results[n], f"[Order {n}.] {DONE}")
    answers = [Act(do="resume", session=f"s{n}", decisions=(say("approve", pending[n]),)) for n in pending]
    for n, result in zip(pending, scene.live(script, *answers, together=True).results, strict=True):
        ended(result, f"[Order {n}.] {DONE}")
    wanted = Counter(canonical_json(call.arguments) for call in calls.values())
    require(Counter(scene.executed()) == wanted, f"each was to run once; ran {scene.executed()}")
    scene.no_call_paid_twice()


def advisory_stops_nothing(scene: Scene) -> str:
    script = play(UNSURE)
    bare, advised = scene.beside("bare"), scene.beside("advised")
    plain = bare.run(script, watch=Watch.NONE)
    ended(plain, DONE)
    result = advised.run(script, watch=Watch.ADVISORY)
    require(result == plain, f"the bare framework {plain}, but advised it {result}")
    require(advised.executed() == [PAID], f"ran {advised.executed()}")
    steps = advised.lines("step")
    stopped = [line["action"] for line in steps if line["action"] in ("pause_for_human", "abort")]
    require(not stopped, f"an advisory monitor decided {stopped}")
    advice = [line["advised"] for line in steps if line["tool"] == "pay"]
    require(advice == ["pause_for_human"], f"that it would have paused at pay was to be recorded once: {advice}")
    return advised.no_call_paid_twice()


def critical_run_stopped(scene: Scene) -> str:
    result = scene.run(play(LOST))
    require(isinstance(result, Ended) and result.stopped is not None, f"the run was to be stopped, but: {result}")
    require(scene.executed() == [], f"pay ran although the run was aborted: {scene.executed()}")
    turns = [line["turn"] for line in scene.lines("agent_model")]
    require(turns == [0, 1], f"the model was asked on after the run was aborted: turns {turns}")
    return str(getattr(result, "stopped", ""))


def streaming(scene: Scene) -> str:
    script = play(UNSURE)
    answer = scene.live(script, Act(do="stream", session="s", prompt=PROMPT), kill=True)
    pending = waiting(one(answer))
    require(scene.executed() == [], f"pay ran although the stream was paused: {scene.executed()}")
    require(len(answer.pieces) > 1, f"the text was to arrive in pieces: {answer.pieces}")
    text = script[PROMPT][0].text
    require(text in "".join(answer.pieces), f"{text!r} was to be among what was streamed: {answer.pieces}")
    ended(scene.resume(script, say("approve", pending)), DONE)
    require(scene.executed() == [PAID], f"the approved call was to run exactly once; ran {scene.executed()}")
    return scene.no_call_paid_twice()


def _without_process(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != "pid"}


def _sentence(check: Check, text: str, *needs: str) -> Sentence:
    return Sentence(name=check.__name__, text=text, check=check, needs=needs)


SENTENCES: Sequence[Sentence] = (
    _sentence(healthy_run_untouched, "A healthy run is untouched: same answer, same tools, same calls of its model."),
    _sentence(uncertain_run_paused, "An uncertain run is paused before its irreversible tool, not before others."),
    _sentence(
        approved_elsewhere, "Killed, then approved in another process: runs exactly once, nothing is paid twice."
    ),
    _sentence(rejected_elsewhere, "Killed, then rejected in another process: never runs, nothing is paid twice."),
    _sentence(edited_elsewhere, "Killed, then edited in another process: runs once, as edited.", "edit"),
    _sentence(answered_elsewhere, "Killed, then answered by a human in another process: never runs.", "respond"),
    _sentence(belief_continues, "The belief goes on in the other process as if nothing had happened.", "belief"),
    _sentence(other_arguments_refused, "An approval of other arguments is refused, and asked again."),
    _sentence(decision_given_twice, "A decision given twice runs the call once."),
    _sentence(
        failed_precondition,
        "When a precondition fails an approval is refused for good, and asked again.",
        "precondition",
    ),
    _sentence(precondition_holds, "Approved again when the precondition holds: runs exactly once.", "precondition"),
    _sentence(
        parallel_calls,
        "Of parallel calls one is approved, one rejected, one harmless: each has its own fate.",
        "parallel",
    ),
    _sentence(sub_agent, "A sub-agent's approval reaches the parent.", "sub_agent"),
    _sentence(ten_sessions, "Ten sessions at once do not mix."),
    _sentence(ten_beliefs, "Ten sessions at once are believed what each is believed alone.", "belief"),
    _sentence(
        advisory_stops_nothing, "In advisory mode nothing is stopped, and what would be is recorded.", "advisory"
    ),
    _sentence(critical_run_stopped, "A run in critical doubt is stopped: no call, no further turn.", "abort"),
    _sentence(streaming, "A streamed run is watched and paused like any other.", "stream"),
    _sentence(
        trust.wrong_key,
        "A decision without the approver's signature counts for nothing, and stands in no true one's way.",
        "signing",
    ),
    _sentence(trust.not_an_approver, "Who may not decide decides nothing, whatever they sign.", "signing"),
    _sentence(trust.four_eyes, "Where two must approve, two principals run a call and one never does.", "signing"),
    _sentence(trust.late_approval, "An approval that comes too late runs nothing.", "signing"),
    _sentence(trust.other_session, "An approval given in one session runs nothing in another."),
    _sentence(trust.swapped_call, "A call swapped in stored state does not run on its approval.", "forge", "signing"),
    _sentence(trust.forged_phase, "Stored state that says a call was cleared clears none.", "forge", "signing"),
    _sentence(trust.forged_belief, "Stored state that says all is certain releases nothing.", "forge", "signing"),
    _sentence(trust.same_arguments, "Of two parallel calls with the same arguments one approval runs one.", "parallel"),
    _sentence(trust.five_at_once, "Five parallel calls, approved at once, run once each.", "parallel"),
    _sentence(
        trust.nested_same_call,
        "A sub-agent's call is asked for although the very same call of its parent was approved.",
        "sub_agent",
    ),
    _sentence(trust.proposed_again, "A rejected call that the model proposes again does not run."),
    _sentence(
        trust.wrong_edit,
        "An edit that the tool cannot take runs nothing; the request still stands.",
        "edit",
        "schema",
    ),
    _sentence(
        trust.deep_arguments, "A call of deeply nested arguments neither runs unasked nor ends a run.", "odd_calls"
    ),
    _sentence(
        trust.without_an_id, "A call that the model gave no id is asked for like any other.", "odd_calls", "no_ids"
    ),
    _sentence(trust.advice_never_raises, "In advisory mode odd calls raise nothing of their own.", "advisory"),
    _sentence(trust.mcp_tool, "A call of an MCP tool is paused like any other.", "mcp"),
    _sentence(trust.output_tool, "A call of an output tool is paused like any other.", "output_tool"),
)
