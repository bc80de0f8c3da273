"""The agent loop: ask the model, judge its step and its calls, run cleared calls, until the run ends or waits."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grampus_uq.errors import StoreError, UncertaintyError
from grampus_uq.gate.call import CallPhase, doubt_of
from grampus_uq.monitor.arguments import tool_names
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import (
    AgentDefinition,
    Message,
    ModelResponse,
    StepUncertainty,
    TokenUsage,
    ToolCall,
    ToolResult,
)
from grampus_uq.records.vocabulary import AgentStatus, Role, StopReason, UncertaintyAction, UncertaintyLevel
from grampus_uq.runtime.apply_decisions import ROLLBACK
from grampus_uq.runtime.begun_with import BegunWith
from grampus_uq.runtime.checkpoints import write_checkpoint
from grampus_uq.runtime.endings import Endings
from grampus_uq.runtime.heard_answers import hear_before, hear_replaced
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.let_ahead import LOOKED
from grampus_uq.runtime.looks import Asked, LookingAgain, Proposal
from grampus_uq.runtime.run_state import AgentState, ExecutionResult, in_pause
from grampus_uq.runtime.session_lease import SessionLease
from grampus_uq.runtime.turn import Turn
from grampus_uq.signals.action_span import call_in_text
from grampus_uq.signals.verbalized import elicit_confidence
from grampus_uq.wire.calls import is_unparsed, read_arguments
from grampus_uq.wire.lone_surrogates import bounded_text, replace_lone_surrogates
from grampus_uq.wire.messages import said_by_users
from grampus_uq.wire.model_call import ask_model
from grampus_uq.wire.responses import stream_of

log = logging.getLogger("grampus_uq.runtime.loop")

_MAX_REJECTED_TURNS = 2
_MAX_CALLS = 256
_MAX_NAME = 1_000
_REPLACED = "Not executed: this call was doubtful, and another look proposes a different one, which follows."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One event of a run: "step" (a judged step of the model), "tool_result", and last one of "paused", "completed",
    "failed", "stopped" with the `result`."""

    kind: str
    text: str = ""
    step: StepUncertainty | None = None
    calls: tuple[ToolCall, ...] = ()
    tool_result: ToolResult | None = None
    result: ExecutionResult | None = None


@dataclass(slots=True, kw_only=True)
class Loop:
    """Drives one leased session.

    `schemas` lists the tools as the model sees them, now; `made_with` gives the facts of an answer with such a list.
    `checkpoints` keeps the state before each step of the model. `reflection` gives the message after a step to
    reconsider. `looking` looks at doubtful calls before a human does.
    """

    lease: SessionLease
    turn: Turn
    agent: AgentDefinition
    client: ModelClient
    schemas: Callable[[], list[dict[str, Any]]]
    made_with: Callable[[Sequence[dict[str, Any]]], dict[str, Any]]
    endings: Endings
    checkpoints: Ledger | None = None
    reflection: Callable[[], Message] | None = None
    looking: LookingAgain | None = None
    logprobs: bool = True
    elicit_confidence: bool = False

    @property
    def _state(self) -> AgentState:
        return self.lease.state

    async def run(self) -> AsyncGenerator[RunEvent, None]:
        """Yield events until the run ends or waits. Raises UncertaintyError on an abort."""
        for record in self.turn.recover():
            self.lease.note("outcome_unknown", self.turn.facts(record))
        while True:
            await self.lease.check_stop()
            if self._state.rollback_refused_by is not None:
                yield await self._end(StopReason.HUMAN_REJECTED, "A human refused to go on after the rollback.")
                return
            if self._state.turn:
                async for event in self._work_turn():
                    yield event
                if any(record.phase is CallPhase.NEW for record in self._state.turn):
                    continue  # another look proposed a call
                if self._state.pending():
                    yield await self._pause()
                    return
                if self._fruitless():
                    yield await self._end(StopReason.HUMAN_REJECTED, "Every call that the model proposes was rejected.")
                    return
                for note in self.turn.notes():
                    self._state.messages.append(Message(role=Role.SYSTEM, content=note))
                self._state.turn = []
                await self.lease.try_save()
            elif self._state.review:
                yield await self._pause()
                return
            if self._answered():
                yield await self._end(StopReason.CLEAN)
                return
            if self._state.current_step >= self.agent.max_iterations:
                reason = f"No answer within {self.agent.max_iterations} steps."
                yield await self._end(StopReason.MAX_STEPS, reason)
                return
            if self.checkpoints is not None:
                await self._checkpoint(self.checkpoints)
            yield await self._model_step()

    def _answered(self) -> bool:
        """True when the last message is the model's answer and may be released."""
        last = self._state.messages[-1] if self._state.messages else None
        if self._state.answer_approved_by is not None:
            return True
        return last is not None and last.role is Role.ASSISTANT and not last.tool_calls and self._state.current_step > 0

    # -- the model ------------------------------------------------------------------------------------------------

    async def _model_step(self) -> RunEvent:
        state = self._state
        response = await self.lease.run(self._ask)
        step_id = f"llm_{state.current_step}"
        calls, refused = _bounded(response.tool_calls, step_id, state.messages)
        content = bounded_text(response.content)
        state.total_token_usage = (state.total_token_usage or TokenUsage()) + response.token_usage
        prompt, asked = list(state.messages), (self.client, self.agent.model)
        if self.lease.session is not None:
            for said in said_by_users(prompt):
                self.lease.session.observe_user(said)
        assessment, action = await self._observed(response, step_id, calls, prompt, asked)
        state.current_step += 1
        state.propose(content, calls, step_id)
        if calls and (begun := BegunWith.read(state)) is not None:
            begun.keep(state, self.schemas())
        for record in [record for record in state.turn if record.proposed.id in refused]:
            state.settle(record, f"Not executed: {refused[record.proposed.id]}. Propose it differently.", is_error=True)
        if action is UncertaintyAction.ABORT:
            await self._abort(assessment)
        if action is UncertaintyAction.PAUSE_FOR_HUMAN and assessment is not None:
            self._wait_for_all(assessment)
        if not calls:
            state.output = content
            written = call_in_text(content, sorted(tool_names(self.schemas(), lambda _: None) or ()))
            if written is not None:
                state.metadata["call_written_as_text"] = written
                log.warning("a run ends with a call of %r that the model wrote as text and did not make", written)
        await self.lease.try_save()
        shown = "" if action.stops else content
        return RunEvent(kind="step", text=shown, step=assessment, calls=tuple(calls))

    async def _ask(self) -> ModelResponse:
        messages = list(self._state.messages)
        if self.elicit_confidence:
            messages = elicit_confidence(messages)
        options = {
            "temperature": self.agent.temperature,
            "tools": (tools := self.schemas()) or None,
            "top_logprobs": 5 if self.logprobs and self.lease.session is not None else None,
        }
        response = await ask_model(self.client, messages, self.agent.model, options)
        if self.lease.session is not None:
            self.lease.session.made_with(**self.made_with(tools))
        return response

    async def _observed(
        self, reply: ModelResponse, step_id: str, calls: list[ToolCall], prompt: Sequence[Message], asked: Asked
    ) -> tuple[StepUncertainty | None, UncertaintyAction]:
        """Have the monitor judge an answer to this prompt, with its `calls` as they are stored."""
        session = self.lease.session
        if session is None:
            return None, UncertaintyAction.PROCEED
        return await self.lease.run(
            lambda: session.observe_llm_response(
                bounded_text(reply.content),
                step_id,
                prompt_messages=prompt,
                model_client=asked[0],
                model_id=asked[1],
                tool_calls=calls,
                logprobs=stream_of(reply),
                usage=reply.token_usage,
                tools=self.schemas() or None,
            )
        )

    def _wait_for_all(self, step: StepUncertainty) -> None:
        """Make every call of a too uncertain step wait, or, without calls, its answer."""
        state, doubt = self._state, doubt_of(step)
        self.turn.wait_for_all(doubt)
        if not state.turn:
            state.review = [self.turn.gate.review(self.turn.terms(), doubt, step.step_id)]
        if step.reflection_injected and self.reflection is not None:
            state.messages.append(self.reflection())

    # -- the calls ------------------------------------------------------------------------------------------------

    async def _work_turn(self) -> AsyncIterator[RunEvent]:
        new = [record for record in self._state.turn if record.phase is CallPhase.NEW]
        await hear_before(self.turn, [record.proposed for record in new])
        if await self.turn.judge() is UncertaintyAction.ABORT:
            belief = None if self.lease.session is None else self.lease.session.belief()
            await self._abort(belief.step_uncertainties[-1] if belief else None)
        if self.looking is not None and new:
            proposal = await self.looking.at(self._state.turn[0])
            event = None if proposal is None else await self._propose(self.looking, proposal)
            if event is not None:
                yield event
                return
        async for record, result in self.turn.execute_cleared():
            yield RunEvent(kind="tool_result", calls=(record.call,), tool_result=result)
        with contextlib.suppress(StoreError):  # asked again after the next turn, or before one of these calls
            await hear_replaced(self.turn)

    async def _propose(self, looking: LookingAgain, proposal: Proposal) -> RunEvent | None:
        """Propose another look's call in the held one's place, as a turn of its own; None where it may not any more.

        Until its step is judged the held call waits, so that a human is asked whatever happens on the way.
        """
        state, held = self._state, proposal.by.held
        step_id = f"llm_{state.current_step}{LOOKED}"
        calls, refused = _bounded((proposal.call,), step_id, state.messages)
        if refused or state.current_step >= self.agent.max_iterations:
            return None
        content = bounded_text(proposal.reply.content)
        step, action = await self._observed(proposal.reply, step_id, calls, proposal.prompt, proposal.asked)
        if action.stops or not await looking.still_waits(held):
            return None
        state.settle(held, _REPLACED, is_error=True)
        state.keep_replaced([*state.replaced(), held])
        state.current_step += 1
        state.propose(content, calls, step_id)
        if (begun := BegunWith.read(state)) is not None:
            begun.keep(state, self.schemas())
        self.turn.let_ahead.propose(calls[0].digest(), proposal.by)
        await self.lease.try_save()
        return RunEvent(kind="step", text=content, step=step, calls=tuple(calls))

    def _fruitless(self) -> bool:
        """True when the model proposed only rejected calls for several turns: it would loop for ever."""
        if all(
            record.cleared_by is None and record.proposed.is_among(self._state.rejected) for record in self._state.turn
        ):
            self._state.rejected_turns += 1
        else:
            self._state.rejected_turns = 0
        return self._state.rejected_turns > _MAX_REJECTED_TURNS

    # -- endings --------------------------------------------------------------------------------------------------

    async def _pause(self) -> RunEvent:
        state = self._state
        requests = state.pending()
        waiting = ", ".join(in_pause(request.call) for request in requests if request.call is not None)
        reasons = "; ".join(dict.fromkeys(request.reason for request in requests if request.reason))
        rolled_back = any(request.rule == ROLLBACK for request in requests)
        answer = "Nothing goes on before." if rolled_back else "The answer waits for review."
        what = f"Waiting: {waiting}." if waiting else answer
        text = f"Paused for a human ({reasons}). {what}"
        if not any(m.role is Role.SYSTEM and m.content == text for m in state.messages[-3:]):
            state.messages.append(Message(role=Role.SYSTEM, content=text))
        state.status = AgentStatus.WAITING_FOR_HUMAN
        self.lease.note("paused", {"requests": [request.id for request in requests]})
        await self.lease.save()  # a pause that cannot be stored is not a pause: the error reaches the caller
        with contextlib.suppress(StoreError):  # who waits is not reached by orders to all: those until here still count
            await self.lease.check_stop(since=time.monotonic())
        return RunEvent(kind="paused", result=self.endings.result(self.lease))

    async def _end(self, reason: StopReason, why: str | None = None) -> RunEvent:
        result = await self.endings.end(self.lease, reason, why)
        return RunEvent(kind=result.status.value, result=result)

    async def _abort(self, step: StepUncertainty | None) -> None:
        """End the run and raise UncertaintyError: nothing of this turn runs."""
        state = self._state
        summary = {} if self.lease.session is None else self.lease.session.summary()
        state.metadata["uncertainty"] = summary
        step_id = step.step_id if step else None
        unrun = "Not executed: the run was aborted."
        await self.endings.end(
            self.lease, StopReason.MONITOR_STOP, unrun=unrun, notes=[("aborted", {"step_id": step_id})]
        )
        level = step.level if step else UncertaintyLevel.CRITICAL
        raise UncertaintyError(
            f"The run was aborted at level {level.value}: {step.reasoning if step else ''}",
            details={
                **summary,
                "agent_id": state.agent_id,
                "session_id": state.session_id,
                "step_id": step_id,
                "level": level.value,
                "rule": step.rule if step else None,
                "guarantee": step.guarantee if step else None,
            },
        )

    async def _checkpoint(self, ledger: Ledger) -> None:
        """Keep the state before this step of the model; if the store is down, the run cannot be rolled back to here."""
        if self.lease.session is not None:
            self._state.belief = self.lease.session.snapshot()
        try:
            await write_checkpoint(ledger, self._state)
        except StoreError:
            self._state.store_failures += 1


def _bounded(
    calls: tuple[ToolCall, ...], step_id: str, messages: Sequence[Message]
) -> tuple[list[ToolCall], dict[str, str]]:
    """The calls as a store can hold them, each under an id new to the transcript, and by id why some must not run.

    Arguments that could not be read back (too deep, long or many digits, no JSON) are refused before judging.
    """
    seen = {call.id for message in messages for call in message.tool_calls}
    bounded, refused, number = list[ToolCall](), dict[str, str](), 0
    for index, call in enumerate(calls):
        identity = replace_lone_surrogates(call.id)[:_MAX_NAME]
        if not identity or identity in seen:
            number = max(number, index)
            while (identity := f"{step_id}_call_{number}") in seen:  # a model may write what a stand-in looks like
                number += 1
        read = read_arguments(call.arguments if index < _MAX_CALLS else {})
        if index >= _MAX_CALLS:
            refused[identity] = f"one answer may propose {_MAX_CALLS} calls at most"
        elif read.problem is not None or is_unparsed(call):
            refused[identity] = f"its arguments {read.problem or 'are not JSON'}"
        elif len(call.name) > _MAX_NAME:
            refused[identity] = f"no tool has a name of {len(call.name)} characters"
        seen.add(identity)
        bounded.append(
            ToolCall(id=identity, name=replace_lone_surrogates(call.name)[:_MAX_NAME], arguments=read.values)
        )
    return bounded, refused
