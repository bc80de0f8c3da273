"""The stage of a conformance check: lives of an agent in one folder, what its ledger says of them, and the plays."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grampus_uq.gate.signatures import write_key
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.testing.agent_laboratory import AgentLaboratory
from grampus_uq.testing.agent_orders import Act, Answer
from grampus_uq.testing.agent_script import APPROVALS, ScriptedTurn, read_ledger
from grampus_uq.testing.agent_under_test import Decision, Ended, Failed, Paused, Pending, Said

Script = dict[str, list[ScriptedTurn]]
Check = Callable[["Scene"], str | None]
"""Raises AssertionError where its sentence is false; may return a detail for the report."""
SURE, UNSURE, DOUBTFUL, LOST = 0.95, 0.7, 0.4, 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One thing that must be true of an adapter; `needs` names what the framework must be able to do for it."""

    name: str
    text: str
    check: Check
    needs: tuple[str, ...] = ()


def sentence(text: str, *needs: str) -> Callable[[Check], Sentence]:
    """Make a sentence of the check that tells whether it is true."""
    return lambda check: Sentence(name=check.__name__, text=text, check=check, needs=needs)


class Scene:
    """Lives of one agent in one folder, and what the ledger says of them; `script`: what all of them play."""

    def __init__(self, laboratory: AgentLaboratory, folder: Path, script: Script | None = None) -> None:
        self.laboratory, self.folder = laboratory, folder
        self.script = play(UNSURE) if script is None else script

    def beside(self, name: str, script: Script | None = None) -> Scene:
        """The agent in another folder, that nothing has happened in, with this script or the same."""
        return Scene(self.laboratory, self.folder / name, self.script if script is None else script)

    def live(self, *acts: Act, **given: Any) -> Answer:
        """One process; an adapter that raised is a false sentence."""
        answer = self.laboratory.live(self.folder, self.script, *acts, **given)
        for result in answer.results:
            require(not isinstance(result, Failed), f"the adapter raised {getattr(result, 'error', '')}")
        return answer

    def run(self, **given: Any) -> Ended | Paused:
        """One process that runs the script's first prompt as session "s"."""
        return one(self.live(Act(do="run", session="s", prompt=next(iter(self.script))), **given))

    def resume(self, *decisions: Decision, **given: Any) -> Ended | Paused:
        """One process that takes decisions on session "s"."""
        return one(self.live(Act(do="resume", session="s", decisions=decisions), **given))

    def settled(self, *decisions: Decision, ran: Sequence[str] = ()) -> None:
        """Take these decisions on session "s": the run ends, and `pay` ran with just these arguments over all lives."""
        ended(self.resume(*decisions), DONE)
        self.ran(*ran)

    def tried(self, *decisions: Decision, session: str = "s", **given: Any) -> Answer:
        """One process that takes decisions on a session that may well be refused, by an exception too."""
        act = Act(do="resume", session=session, decisions=decisions)
        return self.laboratory.live(self.folder, self.script, act, **given)

    def approvers(
        self, *principals: str, strangers: tuple[str, ...] = (), required: int = 1, expires_s: float | None = None
    ) -> None:
        """From now on only these principals decide here, each with a key of their own; strangers have keys as well."""
        self.folder.mkdir(parents=True, exist_ok=True)
        made = {name: write_key(self.folder / f"{name}.key").public_key for name in (*principals, *strangers)}
        keys = {name: made[name] for name in principals}
        wanted = {"keys": keys, "required": required, "expires_s": expires_s}
        (self.folder / APPROVALS).write_text(json.dumps(wanted))

    def forge(self, what: str) -> None:
        """Write into the stored state of session "s", as one who has no key."""
        self.live(Act(do="forge", session="s", prompt=what))

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """The ledger's lines of a kind."""
        return [line for line in read_ledger(self.folder) if line["kind"] == kind]

    def executed(self, name: str = "pay") -> list[str]:
        """The arguments of each execution of a tool, as canonical JSON, in order."""
        return [canonical_json(line["arguments"]) for line in self.lines("tool") if line["name"] == name]

    def ran(self, *wanted: str, problem: str = "pay ran otherwise than it was to") -> None:
        """Require that `pay` ran once with each of these arguments (canonical JSON), in this order, and no more."""
        ran = self.executed()
        require(ran == list(wanted), f"{problem}: wanted {list(wanted)}, but ran {ran}")

    def model_calls(self) -> Counter[tuple[str, str, int]]:
        """The number of times that each turn was paid: (whose call, prompt, turn)."""
        lines = self.lines("agent_model") + self.lines("monitor_model")
        return Counter((line["kind"], line["prompt"], line["turn"]) for line in lines)

    def no_call_paid_twice(self) -> str:
        """Each turn was asked for once and judged at most once, over all processes."""
        twice = {key: count for key, count in self.model_calls().items() if count > 1}
        require(not twice, f"model calls were paid more than once: {twice}")
        agent, monitor = len(self.lines("agent_model")), len(self.lines("monitor_model"))
        return f"{agent} calls of the agent's model, {monitor} of the monitor's"

    def beliefs(self) -> dict[str, list[tuple[int, str, float]]]:
        """The belief at each step, by the monitor's session."""
        found: dict[str, list[tuple[int, str, float]]] = {}
        for line in self.lines("step"):
            found.setdefault(line["session"], []).append((line["index"], line["step"], line["propagated"]))
        return found


def require(holds: bool, what: str) -> None:
    """Raise AssertionError unless it holds; `python -O` does not take these away."""
    if not holds:
        raise AssertionError(what)


def one(answer: Answer) -> Ended | Paused:
    """The result of the only act."""
    (result,) = answer.results
    if isinstance(result, Failed):
        raise AssertionError(f"the adapter raised {result.error}")
    return result


def paused(result: Ended | Paused | Failed) -> tuple[Pending, ...]:
    """The pending calls."""
    if not isinstance(result, Paused):
        raise AssertionError(f"the run was to be paused, but: {result}")
    return result.pending


def waiting(result: Ended | Paused | Failed, call: ToolCall | None = None) -> Pending:
    """The one call that waits, which is this one."""
    pending = paused(result)
    call = call or PAY
    require(
        [(p.name, p.arguments) for p in pending] == [(call.name, call.arguments)],
        f"{call.canonical()} was to wait, and nothing else; there waited {[(p.name, p.arguments) for p in pending]}",
    )
    return pending[0]


def ended(result: Ended | Paused | Failed, output: str) -> None:
    """The run ended with this answer."""
    require(
        isinstance(result, Ended) and result.output == output and result.stopped is None,
        f"the run was to end with {output!r}, but: {result}",
    )


def say(said: Said, on: Pending, **given: Any) -> Decision:
    """A human's decision."""
    return Decision(said=said, on=on, **given)


def pay(to: str = "bob", amount: int = 10, call_id: str = "pay-1") -> ToolCall:
    """A call of the irreversible tool."""
    return ToolCall(id=call_id, name="pay", arguments={"to": to, "amount": amount})


def look_up(query: str, call_id: str = "look-1") -> ToolCall:
    """A call of the harmless tool."""
    return ToolCall(id=call_id, name="look_up", arguments={"query": query})


PAY = pay()
PAID = canonical_json(PAY.arguments)
PROMPT = "Pay what is due."
DONE = "All is settled."


def delegating(*tasks: str) -> list[ScriptedTurn]:
    """Hand one task after another to a sub-agent, answer."""
    calls = [ToolCall(id=f"delegate-{n}", name="delegate", arguments={"task": task}) for n, task in enumerate(tasks)]
    return [*(ScriptedTurn(text="I delegate it.", calls=(call,)) for call in calls), ScriptedTurn(text=DONE)]


def play(confidence: float, *calls: ToolCall, prompt: str = PROMPT) -> Script:
    """Look something up, make the calls with this confidence, answer."""
    first = DOUBTFUL if confidence == LOST else SURE  # doubt grows critical over two steps, not at one
    return {
        prompt: [
            ScriptedTurn(text=f"[{prompt}] I look it up.", calls=(look_up("what is due"),), confidence=first),
            ScriptedTurn(text=f"[{prompt}] This is due.", calls=calls or (PAY,), confidence=confidence),
            ScriptedTurn(text=DONE if prompt == PROMPT else f"[{prompt}] {DONE}", confidence=SURE),
        ]
    }
