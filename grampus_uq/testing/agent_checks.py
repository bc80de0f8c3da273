"""The sentences that an adapter to an agent framework must make true, each a check with real processes.

    with AgentLaboratory("my_package.my_harness:build", tmp_path) as laboratory:
        for sentence in SENTENCES:
            print(check_agent(laboratory, sentence))

A check raises AssertionError where the sentence is false; `check_agent` makes a `CheckResult` of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grampus_uq.records.values import canonical_json
from grampus_uq.testing import agent_permits, agent_trust
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
    Sentence,
    delegating,
    ended,
    look_up,
    one,
    paused,
    pay,
    play,
    require,
    say,
    sentence,
    waiting,
)
from grampus_uq.testing.agent_script import PRECONDITION, ScriptedTurn, Watch
from grampus_uq.testing.agent_under_test import Ended, Paused, Said


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of a check: the sentence `holds`, is false, or (None) cannot be asked of this framework; and why."""

    sentence: Sentence
    holds: bool | None
    detail: str = ""


def check_agent(laboratory: AgentLaboratory, sentence: Sentence) -> CheckResult:
    """Check one sentence in a folder of its own."""
    lacking = [f"{need}: {laboratory.lacks[need]}" for need in sentence.needs if need in laboratory.lacks]
    if lacking:
        return CheckResult(sentence=sentence, holds=None, detail="; ".join(lacking))
    try:
        detail = sentence.check(Scene(laboratory, laboratory.folder / sentence.name))
    except AssertionError as error:
        return CheckResult(sentence=sentence, holds=False, detail=str(error))
    return CheckResult(sentence=sentence, holds=True, detail=detail or "")


@sentence("A confident run is unchanged: same answer, same tools, same model calls.")
def healthy_run_untouched(scene: Scene) -> str:
    scene.script = play(SURE)
    bare, watched = scene.beside("bare"), scene.beside("watched")
    plain = bare.run(watch=Watch.NONE)
    ended(plain, DONE)
    result = watched.run()
    require(result == plain, f"the bare framework {plain}, but watched: {result}")
    for kind in ("tool", "agent_model"):
        before, after = ([line | {"pid": 0} for line in s.lines(kind)] for s in (bare, watched))
        require(before == after, f"bare: {before}; watched: {after}")
    return watched.no_call_paid_twice()


@sentence("An uncertain run pauses before its irreversible tool, and before no other.")
def uncertain_run_paused(scene: Scene) -> None:
    pending = waiting(scene.run())
    scene.ran(problem="pay ran although the run was paused")
    require(len(scene.executed("look_up")) == 1, "the harmless tool was to run, once")
    require(pending.call_id == PAY.id, f"the human sees another call's id than the model's: {pending.call_id}")


@sentence("Killed, then approved in another process: the call runs exactly once, and no model call is repeated.")
def approved_elsewhere(scene: Scene) -> str:
    paid = _decided_elsewhere(scene, "approve", PAID)
    require(len(scene.executed("look_up")) == 1, "a finished tool ran again")
    return paid


@sentence("Killed, then rejected in another process: the call never runs, and no model call is repeated.")
def rejected_elsewhere(scene: Scene) -> str:
    return _decided_elsewhere(scene, "reject", message="not to him")


@sentence("Killed, then edited in another process: the call runs once, as edited.", "edit")
def edited_elsewhere(scene: Scene) -> str:
    arguments = {"to": "bob", "amount": 7}
    return _decided_elsewhere(scene, "edit", canonical_json(arguments), arguments=arguments)


@sentence("Killed, then answered by a human in another process: the call never runs.", "respond")
def answered_elsewhere(scene: Scene) -> str:
    return _decided_elsewhere(scene, "respond", message="I paid him in cash.")


def _decided_elsewhere(scene: Scene, kind: Said, *wanted: str, **given: Any) -> str:
    """Pause, die, decide in another process: `pay` runs with just the wanted arguments."""
    pending = waiting(scene.run(kill=True))
    scene.settled(say(kind, pending, **given), ran=wanted)
    return scene.no_call_paid_twice()


@sentence("The belief continues unchanged in the other process.", "belief")
def belief_continues(scene: Scene) -> str:
    killed, whole = scene.beside("killed"), scene.beside("whole")
    pending = waiting(killed.run(kill=True))
    killed.resume(say("approve", pending))
    first = waiting(whole.run())
    whole.resume(say("approve", first))
    (belief,) = killed.beliefs().values() or [[]]
    require([index for index, *_ in belief] == list(range(len(belief))), f"steps were lost or counted twice: {belief}")
    kinds = Counter(step for _, step, _ in belief)
    require(kinds["llm_call"] == 3, f"3 steps of the model were to be judged: {belief}")
    require([belief] == list(whole.beliefs().values()), f"killed: {belief}; not killed: {whole.beliefs()}")
    decisions = [line["decision"] for line in killed.lines("decision")]
    require(decisions == ["approve"], f"the human's answer was to be recorded once: {decisions}")
    return f"{len(belief)} steps, propagated confidence {belief[-1][2]:.3f}"


@sentence("An approval of other arguments is refused, and the call needs a new one.")
def other_arguments_refused(scene: Scene) -> None:
    """The decision was made on a call of the same session, id, tool and place, that differs in its arguments only."""
    dear = pay("mallory", 1000)
    seen, forged = scene.beside("seen"), scene.beside("waits", play(UNSURE, dear))
    approval = say("approve", waiting(seen.run()))
    waiting(forged.run(kill=True), dear)
    again = forged.resume(approval)
    forged.ran(problem=f"an approval for {PAY.canonical()} ran another call")
    pending = waiting(again, dear)
    forged.settled(say("approve", pending), ran=[canonical_json(dear.arguments)])
    forged.no_call_paid_twice()


@sentence("A decision delivered twice runs the call once.")
def decision_given_twice(scene: Scene) -> None:
    approval = say("approve", waiting(scene.run()))
    ended(scene.resume(approval), DONE)
    # Refusing it with an exception is as good as taking no notice.
    scene.tried(approval)
    scene.ran(PAID)


@sentence("A failed precondition voids the approval, and the call needs a new one.", "precondition")
def failed_precondition(scene: Scene) -> None:
    approval = say("approve", waiting(scene.run(kill=True)))
    (scene.folder / PRECONDITION).write_text("fails")
    again = scene.resume(approval, kill=True)
    scene.ran(problem="the call ran although its precondition had failed")
    pending = waiting(again)
    (scene.folder / PRECONDITION).write_text("holds")
    stale = scene.tried(approval, kill=True)
    scene.ran(problem="a decision that had been refused counted when the precondition held again")
    (still,) = stale.results
    if isinstance(still, Paused):
        pending = waiting(still)
    ended(scene.resume(say("reject", pending)), DONE)
    scene.ran(problem="the rejected call ran")
    scene.no_call_paid_twice()


@sentence("Approved again once the precondition holds: the call runs exactly once.", "precondition")
def precondition_holds(scene: Scene) -> None:
    approval = say("approve", waiting(scene.run(kill=True)))
    (scene.folder / PRECONDITION).write_text("fails")
    pending = waiting(scene.resume(approval, kill=True))
    (scene.folder / PRECONDITION).write_text("holds")
    scene.settled(say("approve", pending), ran=[PAID])
    scene.no_call_paid_twice()


@sentence("Parallel calls, one approved, one rejected, one harmless, are each handled on their own.", "parallel")
def parallel_calls(scene: Scene) -> str:
    calls = (pay("ann", 1, "pay-a"), look_up("rates", "look-2"), pay("bob", 2, "pay-b"))
    scene.script = play(UNSURE, *calls)
    pending = {p.call_id: p for p in paused(scene.run(kill=True))}
    require(set(pending) == {"pay-a", "pay-b"}, f"both payments were to wait, and nothing else: {sorted(pending)}")
    result = scene.resume(say("approve", pending["pay-a"]), say("reject", pending["pay-b"]))
    ended(result, DONE)
    wanted = [canonical_json(calls[0].arguments)]
    scene.ran(*wanted)
    require(len(scene.executed("look_up")) == 2, f"look_up was to run once a call: {scene.executed('look_up')}")
    return scene.no_call_paid_twice()


@sentence("A sub-agent's request appears at its parent, and can be decided there.", "sub_agent")
def sub_agent(scene: Scene) -> str:
    paying = ScriptedTurn(text="I pay Bob.", calls=(PAY,), confidence=UNSURE)
    scene.script = {PROMPT: delegating("Pay Bob."), "Pay Bob.": [paying, ScriptedTurn(text="Bob has it.")]}
    pending = waiting(scene.run(kill=True))
    scene.ran(problem="the sub-agent's call ran although the run was paused")
    scene.settled(say("approve", pending), ran=[PAID])
    return scene.no_call_paid_twice()


@sentence("Ten concurrent sessions stay separate.")
def ten_sessions(scene: Scene) -> None:
    _ten(scene, dict.fromkeys(range(10), True))


@sentence("Ten concurrent sessions have the same beliefs as each alone.", "belief")
def ten_beliefs(scene: Scene) -> None:
    _ten(scene, {n: n % 2 == 1 for n in range(10)})
    beliefs = list(scene.beliefs().values())
    require(len(beliefs) == 10, f"10 sessions were to be watched; there were {len(beliefs)}")
    alone = scene.beside("alone", play(SURE))
    alone.run()
    (reference,) = alone.beliefs().values()
    same = [belief for belief in beliefs if belief == reference]
    require(len(same) == 5, f"5 of 10 were to be believed what a lone run is, {reference}; of {beliefs}")
    different = [belief for belief in beliefs if belief != reference]
    require(all(belief == different[0] for belief in different), f"equal runs are believed differently: {different}")


def _ten(scene: Scene, unsure: Mapping[int, bool]) -> None:
    """Ten sessions of one agent at once, paused where they are unsure; killed; approved at once in another process."""
    calls = {n: pay(f"payee {n}", n, f"pay-{n}") for n in unsure}
    scene.script = {}
    for n in unsure:
        scene.script |= play(UNSURE if unsure[n] else SURE, calls[n], prompt=f"Order {n}.")
    runs = [Act(do="run", session=f"s{n}", prompt=f"Order {n}.") for n in unsure]
    results = dict(zip(unsure, scene.live(*runs, together=True, kill=True).results, strict=True))
    pending = {n: waiting(results[n], calls[n]) for n in unsure if unsure[n]}
    for n in (n for n in unsure if not unsure[n]):
        ended(results[n], f"[Order {n}.] {DONE}")
    answers = [Act(do="resume", session=f"s{n}", decisions=(say("approve", pending[n]),)) for n in pending]
    for n, result in zip(pending, scene.live(*answers, together=True).results, strict=True):
        ended(result, f"[Order {n}.] {DONE}")
    wanted = Counter(canonical_json(call.arguments) for call in calls.values())
    require(Counter(scene.executed()) == wanted, f"each was to run once; ran {scene.executed()}")
    scene.no_call_paid_twice()


@sentence("Advisory mode stops nothing, and records what it would have stopped.", "advisory")
def advisory_stops_nothing(scene: Scene) -> str:
    bare, advised = scene.beside("bare"), scene.beside("advised")
    plain = bare.run(watch=Watch.NONE)
    ended(plain, DONE)
    result = advised.run(watch=Watch.ADVISORY)
    require(result == plain, f"the bare framework {plain}, but advised it {result}")
    advised.ran(PAID)
    steps = advised.lines("step")
    stopped = [line["action"] for line in steps if line["action"] in ("pause_for_human", "abort")]
    require(not stopped, f"an advisory monitor decided {stopped}")
    advice = [line["advised"] for line in steps if line["tool"] == "pay"]
    require(advice == ["pause_for_human"], f"that it would have paused at pay was to be recorded once: {advice}")
    return advised.no_call_paid_twice()


@sentence("A run at level CRITICAL is aborted: no call, no further turn.", "abort")
def critical_run_stopped(scene: Scene) -> str:
    scene.script = play(LOST)
    result = scene.run()
    require(isinstance(result, Ended) and result.stopped is not None, f"the run was to be stopped, but: {result}")
    scene.ran(problem="pay ran although the run was aborted")
    turns = [line["turn"] for line in scene.lines("agent_model")]
    require(turns == [0, 1], f"the model was asked on after the run was aborted: turns {turns}")
    return str(getattr(result, "stopped", ""))


@sentence("A streamed run is monitored and paused like any other.", "stream")
def streaming(scene: Scene) -> str:
    answer = scene.live(Act(do="stream", session="s", prompt=PROMPT), kill=True)
    pending = waiting(one(answer))
    scene.ran(problem="pay ran although the stream was paused")
    require(len(answer.pieces) > 1, f"the text was to arrive in pieces: {answer.pieces}")
    text = scene.script[PROMPT][0].text
    require(text in "".join(answer.pieces), f"{text!r} was to be among what was streamed: {answer.pieces}")
    scene.settled(say("approve", pending), ran=[PAID])
    return scene.no_call_paid_twice()


_CHECKS = (globals(), vars(agent_trust), vars(agent_permits))
SENTENCES: Sequence[Sentence] = tuple(
    found for names in _CHECKS for found in names.values() if isinstance(found, Sentence)
)
"""All sentences, in the order in which they are written down."""
