"""Sub-agents: agents that another agent calls as tools, in child sessions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grampus_uq.errors import DataError, StoreError, UncertaintyError
from grampus_uq.gate.call import UNREADABLE, CallRecord, remembered
from grampus_uq.gate.requests import ApprovalDecision, ApprovalRequest
from grampus_uq.monitor.history import unaided_part
from grampus_uq.monitor.session import Session
from grampus_uq.monitor.snapshot import read_snapshot
from grampus_uq.records.values import AgentDefinition, Reading, Step, ToolResult
from grampus_uq.records.vocabulary import ENDED, AgentStatus, UncertaintyLevel, UncertaintySource
from grampus_uq.runtime.cards import card
from grampus_uq.runtime.heard_answers import answerable, as_decided
from grampus_uq.runtime.ledger import session_key
from grampus_uq.runtime.run_state import AgentState, ExecutionResult
from grampus_uq.runtime.runner import AgentRunner
from grampus_uq.runtime.stored_delegations import standing_in
from grampus_uq.runtime.worker_jobs import ABOVE, PARENT, PARENT_RUN, within_parent

if TYPE_CHECKING:
    from grampus_uq.runtime.turn import Turn

SUB_AGENT = "sub_agent"
_DEEPEST = 32


class SubAgent:
    """An agent as a tool of another: `runner` runs it, in a child session named after the call.

    While the child waits, its requests stand among the parent's, and decisions given to the parent reach it. When it
    ends, its cumulative confidence becomes a reading `sub_agent` of the parent's belief, or a stated confidence where
    nothing but what its model stated was read.
    """

    def __init__(
        self, runner: AgentRunner, agent: AgentDefinition, *, name: str | None = None, description: str = ""
    ) -> None:
        self.runner = runner
        self.agent = agent
        self.name = name or agent.name
        self.description = description or f"Hand a task to the agent {agent.name}."

    def schema(self) -> dict[str, Any]:
        """The sub-agent as a tool, in the OpenAI wire form."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {"task": {"type": "string"}},
                    "required": ["task"],
                    "additionalProperties": False,
                },
            },
        }

    async def execute(self, record: CallRecord, turn: Turn) -> ToolResult | list[ApprovalRequest]:
        """Run or resume the child that serves a call of this turn; its result, or what it waits for."""
        parent, state = turn.lease.session, turn.lease.state
        task = record.call.arguments.get("task")
        if not isinstance(task, str) or not task:
            return ToolResult(tool_call_id=record.call.id, output="`task` must be a non-empty text.", is_error=True)
        child_id = state.child_session(record)
        state.keep(record.change(child_session=child_id, guidance=None))
        within, outcome = within_parent.set(turn.together), ToolResult(tool_call_id=record.call.id)
        result: ExecutionResult | None = None
        try:
            loaded = await self.runner.ledger.load(self.agent.name, child_id)
            if loaded is None:
                named = {name: state.metadata[name] for name in (PARENT, PARENT_RUN) if state.metadata.get(name)}
                named = named or {PARENT: [state.agent_id, state.session_id], PARENT_RUN: state.run_id}
                before = state.metadata.get(ABOVE)
                above = before if isinstance(before, list) else []
                named[ABOVE] = [[state.agent_id, state.session_id, state.run_id], *above]
                who = state.started_by or ""  # the child's run is of whoever started the parent's
                gone = record.child_session is not None  # it may have acted before somebody deleted its session
                vouched = state.vouched and self.runner.gate.believes(not gone)
                result = await self.runner.run(
                    self.agent,
                    task,
                    session_id=child_id,
                    child_of=named,
                    started_by=who,
                    vouched=vouched,
                    inherits=state,
                )
            elif loaded[0].status in ENDED:
                outcome = self._finished(record, turn, loaded[0])
            else:
                result = await self.runner.resume(self.agent.name, child_id, record.guidance, agent_def=self.agent)
        except UncertaintyError as aborted:
            self._believe(parent, record, aborted.details)
            stopped = f"The sub-agent was stopped: {aborted}"
            outcome = ToolResult(tool_call_id=record.call.id, output=stopped, is_error=True)
        finally:
            within_parent.reset(within)
        waits = result is not None and result.status is AgentStatus.WAITING_FOR_HUMAN
        try:
            late = await self.hear_rejections(state, child_id) and not waits
        except StoreError:
            late = True
        if late:  # the parent hears of them before it judges another call
            state.keep_replaced([*state.replaced(), record.change(child_session=child_id, requests=())])
        if result is None:
            return outcome
        if waits:
            return [request.model_copy(update={"child_session": child_id}) for request in result.pending]
        return self._finished_run(record, turn, result)

    async def hear_rejections(self, state: AgentState, child_id: str, *, here: bool = True) -> bool:
        """A human's "no" to a call of the child counts for the parent, and for sub-agents that it begins later.

        Also one that the child did not take up: nobody may resume it. `here`: the child is of the parent's present run,
        and not of an earlier one. True if somebody who was shown a call there may answer yet. Raises StoreError.
        """
        ledger, below = self.runner.ledger, self.runner.sub_agents
        found = await ledger.store.get("session", session_key(self.agent.name, child_id))
        if found is None:
            return False
        try:
            child = ledger.state_in(found)
        except StoreError:  # nobody can read it, and nobody ever may: who acts is asked from now on
            state.know_rejected([*state.rejected_before(), UNREADABLE])
            return False
        unheard = child.unheard()
        answered = await answerable(ledger, unheard)
        late = len(answered) < len(unheard)
        for record in answered:
            heard = await as_decided(ledger, self.runner.gate, record)
            child.rejected = remembered(child.rejected, heard)
            if record.child_session is None:
                late |= not heard.decisions
            elif record.call.name in below:
                late |= await below[record.call.name].hear_rejections(child, record.child_session)
        if here:
            state.rejected = remembered([*state.rejected, *child.rejected])
        state.know_rejected([*state.rejected_before(), *child.rejected_before(), *([] if here else child.rejected)])
        return late

    def _finished_run(self, record: CallRecord, turn: Turn, result: ExecutionResult) -> ToolResult:
        if not result.metadata.get("unvouched"):
            self._believe(turn.lease.session, record, result.metadata.get("uncertainty", {}))
        else:
            turn.lease.state.vouched = False  # what follows is proposed on words that somebody may have written
        return _ended(record, result)

    def _finished(self, record: CallRecord, turn: Turn, child: AgentState) -> ToolResult:
        """The result of a child that ended while its parent was down; only under a seal the belief is kept."""
        if child.vouched and self.runner.gate.believes(child.sealed):
            with contextlib.suppress(DataError):
                state, history = read_snapshot(child.belief or {})
                self._believe(turn.lease.session, record, history.belief(state).to_summary() | unaided_part(state))
        else:
            turn.lease.state.vouched = False
        return _ended(record, child)

    @staticmethod
    def _believe(parent: Session | None, record: CallRecord, belief: Mapping[str, Any]) -> None:
        """Commit the child's confidence to the parent's belief as a step; nothing for a child without readings.

        What the child's model states of itself lifts it no more than the parent's own; where that is all, it is stated.
        """
        confidence = belief.get("cumulative_confidence")
        if parent is None or not isinstance(confidence, int | float) or not 0.0 <= confidence <= 1.0:
            return
        if confidence == 1.0 and belief.get("overall_level") != UncertaintyLevel.LOW:
            return
        source, alone = SUB_AGENT, belief.get("unaided_confidence", confidence)
        if alone is None:  # fused again, it is what the child's model stated, corrected once
            kept = 1.0 - parent.profile.estimator.verbalized_calibration_bias
            source, alone = UncertaintySource.VERBALIZED, min(1.0, confidence / kept) if kept else 1.0
        else:
            alone = min(confidence, alone)
        step = Step(step_id=f"{record.step_id}/{record.call.id}", kind=SUB_AGENT, time_s=time.time())
        parent.commit(step, [Reading(source=source, value=float(alone))])

    async def answer(self, request: ApprovalRequest, response: Any) -> None:
        """Pass a decision on one of the child's requests down to it; raises ApprovalError when it is refused."""
        if response is None or isinstance(response, str):
            return
        owner = self._owner(request) or self
        for decision in [response] if isinstance(response, ApprovalDecision) else response:
            if decision.request_id == request.id:
                as_asked = request.model_copy(update={"child_session": None})  # as the child knows it
                ledger = owner.runner.ledger
                standing = await standing_in(ledger.store, [decision])
                now_s = await ledger.store.now()  # its ledger may never have heard the store's clock
                owner.runner.approvals.check(as_asked, decision, now_s=now_s, standing=standing)
                await ledger.decide(decision, shown=card(as_asked), wake=False)  # the parent asks

    def _owner(self, request: ApprovalRequest, depth: int = 0) -> SubAgent | None:
        """The sub-agent, here or below, that made the request: its own store and approvers count."""
        if request.agent_id == self.agent.name:
            return self
        if depth >= _DEEPEST:
            return None
        below = (agent._owner(request, depth + 1) for agent in self.runner.sub_agents.values())
        return next((found for found in below if found is not None), None)


def _ended(record: CallRecord, child: ExecutionResult | AgentState) -> ToolResult:
    """The result of the call that a child served; one that failed without a word says why."""
    failed = child.status is AgentStatus.FAILED
    why = child.metadata.get("error") or child.metadata.get("stop_reason")
    said = f"The sub-agent failed: {why}" if failed and not child.output else child.output
    return ToolResult(tool_call_id=record.call.id, output=said, is_error=failed)
