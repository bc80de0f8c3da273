"""Parts of the agent in a conformance check: scripted model turns, tools, judge, and one ledger.

Everything that happens is a line of one append-only file, so that another process can count it: model calls of the
agent and of the monitor apart, executions of tools, and what the monitor concluded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.errors import ConfigurationError
from grampus_uq.gate.requests import ApprovalDecision, ApprovalPolicy, ApprovalRequest
from grampus_uq.gate.signatures import Ed25519Signer, PublicKeys
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.records.events import DecisionEvent, Event, StepEvent
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, ToolCall
from grampus_uq.runtime.stored_permits import StoredPermits
from grampus_uq.runtime.stored_starts import StoredStarts
from grampus_uq.runtime.stores import open_store
from grampus_uq.testing.agent_under_test import AgentUnderTest, Decision
from grampus_uq.testing.scripted_model import ScriptedModel

LEDGER = "ledger.jsonl"
PRECONDITION = "precondition"
APPROVALS, STARTED_BY = "approvals.json", "started_by.txt"
PERMITS, DRAW, STARTS = "sessions.db", "draw.txt", "starts.db"


class Watch(StrEnum):
    """The watching of a check's agent: none, by a monitor that acts, or by one that only advises."""

    NONE = "none"
    ACTING = "acting"
    ADVISORY = "advisory"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTurn:
    """One answer of the agent's model, and how sure its judge is of it (P(True), in [0, 1]); texts are unique."""

    text: str
    confidence: float = 0.95
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSetup:
    """Setup of a harness's agent. State that must outlive the process is kept in files of `folder`.

    `script` holds the turns of the agent's model by the text of the first user message, a sub-agent's by its task. The
    model of a harness calls `turn` once for each of its calls, its tools do nothing but call `look_up` and `pay`.
    """

    folder: Path
    script: Mapping[str, Sequence[ScriptedTurn]]
    watch: Watch = Watch.ACTING

    def turn(self, prompt: str, number: int) -> ScriptedTurn:
        """The model's answer to a transcript that begins with `prompt` and holds `number` answers; is counted."""
        self.note("agent_model", prompt=prompt, turn=number)
        turns = self.script[prompt]
        return turns[min(number, len(turns) - 1)]

    def judge(self) -> ModelClient:
        """The model that the monitor asks: it knows each turn by its text, and its calls are counted."""

        def reply(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
            judged = "\n".join(m.content or "" for m in messages)
            for prompt, turns in self.script.items():
                for number, turn in enumerate(turns):
                    if turn.text in judged:
                        self.note("monitor_model", prompt=prompt, turn=number)
                        return json.dumps({"p_true": turn.confidence})
            raise ConfigurationError.of("messages", "AgentSetup.judge", "about a turn of the script", judged[:200])

        return ScriptedModel(reply)

    def monitor(self, **given: Any) -> UncertaintyMonitor | None:
        """A new monitor over this ledger, to which `pay` is irreversible; None when the agent is not watched.

        What is `given` goes to the monitor's constructor: `advisory=None` leaves the choice to the adapter under test.
        """
        if self.watch is Watch.NONE:
            return None
        policy = UncertaintyPolicy(irreversible_tool_names=["pay"])
        ours: dict[str, Any] = {"advisory": self.watch is Watch.ADVISORY, "policy": policy}
        return UncertaintyMonitor(processors=[_LedgerProcessor(self)], **(ours | given))

    def look_up(self, query: str) -> str:
        """The harmless tool."""
        self.note("tool", name="look_up", arguments={"query": query})
        return f"found {query}"

    def pay(self, to: str, amount: int) -> str:
        """The tool that cannot be undone."""
        self.note("tool", name="pay", arguments={"to": to, "amount": amount})
        return f"paid {amount} to {to}"

    def precondition(self, call: ToolCall) -> str | None:
        """The reason not to run this call now although it was approved; None when it may."""
        file = self.folder / PRECONDITION
        if call.name == "pay" and file.exists() and file.read_text() == "fails":
            return "the account is closed"
        return None

    def approvals(self) -> ApprovalPolicy | None:
        """The approval policy that the check wants; None where anybody may."""
        file = self.folder / APPROVALS
        if not file.exists():
            return None
        wanted = json.loads(file.read_text())
        return ApprovalPolicy(
            signer=PublicKeys(wanted["keys"]),
            required=wanted["required"],
            expires_s=wanted["expires_s"],
            others_decide=wanted.get("others_decide", False),
        )

    def started_by(self, session: str) -> str | None:
        """The starter of a session, where the check says so."""
        file = self.folder / STARTED_BY
        return file.read_text() if file.exists() else None

    def permits(self) -> StoredPermits | None:
        """Permits in the store `PERMITS` of the folder, drawn as the check wants it; None where it grants none."""
        file = self.folder / DRAW
        if not file.exists():
            return None
        store = open_store(f"sqlite:///{self.folder / PERMITS}")
        return StoredPermits(store, self.approvals(), draw=lambda: float(file.read_text()))

    def starts(self) -> StoredStarts | None:
        """Starts in the store `STARTS` of the folder; None where the check made none."""
        file = self.folder / STARTS
        return StoredStarts(open_store(f"sqlite:///{file}")) if file.exists() else None

    def decide(self, request: ApprovalRequest, decision: Decision) -> ApprovalDecision:
        """A human's decision, signed with the key that the check chose, if there are keys."""
        made = request.decide(
            decision.said,
            principal=decision.principal,
            message=decision.message,
            arguments=decision.arguments,
            never=decision.never,
        )
        key = self.folder / f"{decision.key or decision.principal}.key"
        return Ed25519Signer.from_file(key).sign(made) if key.exists() else made

    def note(self, kind: str, **facts: Any) -> None:
        """Append one line, in one write: lines of several processes do not mix, and a killed one leaves none torn."""
        line = json.dumps({"kind": kind, "pid": os.getpid(), **facts}, default=str) + "\n"
        file = os.open(self.folder / LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


AgentFactory = Callable[[AgentSetup], AbstractAsyncContextManager[AgentUnderTest]]


class _LedgerProcessor:
    """Writes what the monitor concluded, and what humans decided, into the ledger."""

    def __init__(self, setup: AgentSetup) -> None:
        self._setup = setup

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepEvent):
            seen = event.assessment
            self._setup.note(
                "step",
                session=event.session_id,
                index=seen.index,
                step=seen.step_type,
                tool=seen.tool_name,
                propagated=seen.propagated_confidence,
                action=seen.action.value,
                advised=seen.advisory_action.value if seen.advisory_action else None,
            )
        elif isinstance(event, DecisionEvent):
            self._setup.note("decision", session=event.session_id, decision=event.decision, call=event.call_id)


def read_ledger(folder: Path) -> list[dict[str, Any]]:
    """The lines so far, in order."""
    file = folder / LEDGER
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
