"""Interface of a framework adapter to the conformance checks: run, pause, take decisions, stream.

@asynccontextmanager
async def build(setup: AgentSetup) -> AsyncIterator[AgentUnderTest]:
    async with MyCheckpointer(setup.folder / "state.db") as checkpointer:
        yield MyAgent(setup, checkpointer)

with AgentLaboratory("my_package.my_harness:build", Path("laboratory")) as laboratory:
    findings = [check_agent(laboratory, sentence) for sentence in SENTENCES]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

NOT_OFFERED = "not offered by this harness"
"""Why a question is not asked that a harness could offer and does not."""

Said = Literal["approve", "edit", "reject", "respond"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """One call that waits, as its human sees it: the framework's id of the call, its name, its arguments.

    `token` is the adapter's own (JSON): what a decision has to repeat so that it is known to be about this call.
    """

    call_id: str
    name: str
    arguments: dict[str, Any]
    token: Any = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A human's decision on a pending call. `arguments` belong to an edit, `message` to a rejection or an answer.

    `never` belongs to a rejection: permits on the call are closed.

    `key` is whose private key signs it: the principal's own, another one's, or "none" for no signature;
    `AgentSetup.decide` makes an `ApprovalDecision` of it all.
    """

    said: Said
    on: Pending
    arguments: dict[str, Any] | None = None
    message: str | None = None
    principal: str = "ann"
    key: str | None = None
    never: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The run is over: what it answered, or why it was stopped before it could."""

    output: str
    stopped: str | None = None
    kind: Literal["ended"] = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """The run waits for decisions on these calls, which a sub-agent's are among."""

    pending: tuple[Pending, ...] = field(default=())
    kind: Literal["paused"] = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The adapter raised: type and message."""

    error: str
    kind: Literal["failed"] = "failed"


class AgentUnderTest(Protocol):
    """An agent of the framework, guarded by the adapter (or by nothing but the framework's own approval).

    Its tools are `look_up(query)`, `pay(to, amount)` and `delegate(task)`; the last runs a sub-agent with the same
    tools and returns its answer. Another process continues a session by its id from the files in the setup's folder.

    `lacks` names what the framework truly cannot do, with the reason, which the matrix prints: any of "abort",
    "advisory", "belief", "edit", "no_ids", "parallel", "precondition", "respond", "stream", "sub_agent", "twins"
    (two equal calls in one turn).

    A harness may name in a further attribute `offers` what else it can be asked for: "signing" (its policy is
    `AgentSetup.approvals`, its decisions are made by `AgentSetup.decide`), "forge" (a method `forge(session, what)`
    writes into its stored state, as one who has no key: "call", another call in the place of the one that waits,
    "phase", that it was cleared, or "belief", that all is certain), "schema" (edits are held against it), "odd_calls"
    (deep arguments, no ids), "mcp" (a tool `mcp_pay`), "output_tool" (a tool `final_pay`), "permits" (its gate asks
    `AgentSetup.permits`, and its decisions are made by `AgentSetup.decide`), "starts" (it takes `AgentSetup.starts`).
    """

    lacks: Mapping[str, str]

    async def run(self, session: str, prompt: str) -> Ended | Paused:
        """Start a session with the user's first message, and run to its end or to a pause."""
        ...

    async def resume(self, session: str, decisions: Sequence[Decision]) -> Ended | Paused:
        """Take decisions on some or all of the calls that wait, and run on. What is undecided waits on."""
        ...

    async def stream(self, session: str, prompt: str, pieces: list[str]) -> Ended | Paused:
        """`run`, with the framework's streaming: each piece of the model's text is appended as it arrives."""
        ...
