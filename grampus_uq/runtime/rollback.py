"""Takes a run back to before a step and continues from there as a new branch; executed calls are never hidden.

    result = await rollback(runner, "agent", "session", 3, note="the price list was out of date")
    result = await recover(runner, "agent", "session", attribution, failure="the invoice is wrong")

A rollback restores the transcript and the belief, not the world. Discarded calls that cannot be undone are listed; the
user's `compensate` hook makes up for them, or the session waits for an `ApprovalDecision`: approve (the effects stand),
respond (the message says what was done about them), reject (the run ends). When the new branch proposes exactly such a
call again, it waits, whatever the policy and the grants say.

Everything is stored before it is acted on, so that another process can continue at any point: the discarded branch
first, then by one compare-and-set the new branch in its place, with its pending request already in it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from pydantic import BaseModel, JsonValue

from grampus_uq.errors import ConfigurationError, SessionConflictError, SessionError, StoreError
from grampus_uq.gate.call import CallRecord, Doubt, Terms, remembered, request_for
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.monitor.snapshot import alarmed_in
from grampus_uq.records.values import AgentDefinition, Message, TokenUsage
from grampus_uq.records.vocabulary import ENDED, AgentStatus, Role, UncertaintyLevel
from grampus_uq.runtime.apply_decisions import ROLLBACK
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.checkpoints import lineage_of, read_checkpoint, run_prefix, segment_at
from grampus_uq.runtime.ledger import Note, session_key
from grampus_uq.runtime.looks import LOOKS_USED
from grampus_uq.runtime.restart_points import SuspectSet, restart_step, what_failed
from grampus_uq.runtime.rolled_back_calls import executed_calls, step_number
from grampus_uq.runtime.run_state import AgentState, ExecutedCall, ExecutionResult, Segment
from grampus_uq.runtime.runner import AgentRunner
from grampus_uq.runtime.stopping import stops_now
from grampus_uq.runtime.store import parsed
from grampus_uq.runtime.worker_jobs import PARENT, Job
from grampus_uq.wire.lone_surrogates import error_text, replace_lone_surrogates

_Compensate = Callable[[Sequence[ExecutedCall]], Awaitable[Sequence[str | None] | None]]
"""Makes up for calls; returns for each a text, what was done about it, or None. Called once for each call."""

_BRANCH = "branch"
_MAX_NOTE = 4_000
_MAX_LISTED = 20


class Branch(BaseModel):
    """A discarded branch: its state, why it ended, and before which step the next one began."""

    v: Literal[1] = 1
    to_step: int
    note: str
    kept_s: float
    state: AgentState

    @property
    def number(self) -> int:
        """Its number, from 0."""
        return self.state.branch


async def rollback(
    runner: AgentRunner,
    agent_id: str,
    session_id: str,
    to_step: int,
    *,
    note: str | None = None,
    compensate: _Compensate | None = None,
    agent_def: AgentDefinition | None = None,
) -> ExecutionResult:
    """Take a session back to before a step of the model, and run a new branch from there.

    Args:
        runner: built with `checkpoints=True`, over the session's store; so was the one that ran the session.
        agent_id, session_id: of a session that ended, waits, or whose worker died.
        to_step: first step of the model to discard, from 0 (0 restarts).
        note: for the model: what went wrong; cut to 4000 characters.
        compensate: makes up for the executed calls of the discarded part (all that do more than read), those of its
            sub-agents among them, and returns a text for each: what was done. Called once, after the request to the
            human was stored; calls that it leaves open, or does not live to report, are asked.
        agent_def: as in `AgentRunner.resume`.

    Returns:
        The result of the new branch: a pause when a human has to decide on executed calls. `metadata["rollback"]` lists
        them. Tokens, time, tool calls and looks include those of the discarded part.

    Raises:
        ConfigurationError: a step that the run never made. SessionError: no such session, no checkpoint, or a
            sub-agent's session that has ended. SessionConflictError: it, or a sub-agent of it, runs. StoreError,
            DataError: the store or the audit is broken.
    """
    old, version = await _not_running(runner, agent_id, session_id)
    if PARENT in old.metadata and old.status in ENDED:  # nobody would resume it
        raise SessionError(f"Session {session_id!r:.80} is a sub-agent's that has ended: roll its parent back.")
    if not 0 <= to_step < old.current_step:
        rule = f"one of the {old.current_step} steps that the run made, counted from 0"
        raise ConfigurationError.of("to_step", "rollback", rule, to_step)
    restored = await read_checkpoint(runner.ledger, old, to_step)
    policy = runner.policy()
    known = {call.idempotency_key for call in old.discarded}
    executed, believed = await _took_effect(runner, old, to_step)
    done = [call for call in executed if call.idempotency_key not in known]
    text = (note or "")[:_MAX_NOTE]
    new = _branched(old, restored, to_step, done).replaces(old)
    new.rejected = remembered([*restored.rejected, *old.rejected])
    new.stops_seen = await stops_now(runner.ledger, new)  # orders given before are for the branch that is gone
    new.vouched = believed and restored.vouched and runner.gate.believes(restored.sealed)
    terms = runner.gate.terms(agent_id, session_id, policy, run_id=new.run_id, started_by=new.started_by)
    open_calls = _unsettled(new)
    hooked = [] if compensate is None else [c for c in new.discarded if not c.settled and not c.compensation_started]
    if open_calls or hooked:
        new.review = [_request_about(terms, open_calls or hooked, runner.ledger.now_s(), step_id=f"llm_{to_step}")]
        new.status = AgentStatus.WAITING_FOR_HUMAN
    else:
        for call in new.discarded:
            call.settled = True
    _append_note(new, text)
    await _archive(runner, old, to_step, text)
    rolled_back: Note = "rollback", _facts(new, to_step, old.branch, done)
    ours = Job(agent_id=agent_id, session_id=session_id)  # should this process die before it goes on, a worker does
    await runner.ledger.store.write(ours.at(runner.ledger.now_s() + runner.lease_s))
    if compensate is not None and hooked:
        await _run_compensation(runner, new, version, rolled_back, hooked, compensate, text, terms)
    else:
        await runner.ledger.save(new, version, [rolled_back])
    return await runner.resume(agent_id, session_id, agent_def=agent_def)


async def recover(
    runner: AgentRunner,
    agent_id: str,
    session_id: str,
    prediction_set: SuspectSet,
    *,
    failure: str | None = None,
    from_start: bool = False,
    compensate: _Compensate | None = None,
    agent_def: AgentDefinition | None = None,
) -> ExecutionResult:
    """Take a failed session back to before the first step of its prediction set, and run a new branch from there.

    Guarantee: none on success. The discarded part holds the decisive error with the set's stated probability; whether
    the new branch does better is up to the model.

    Args:
        runner, agent_id, session_id, compensate, agent_def: as in `rollback`, which says what else is raised.
        prediction_set: an `Attribution` of this session, with step ids of its recording or its transcript.
        failure: how the run failed, for the model.
        from_start: accept a set that begins at step 0 without reaching the run's end (a prefix family): going back to
            its first step is a restart from scratch.

    Raises:
        ConfigurationError: an empty set, a prefix, a set of another run, or steps that the run does not have.
    """
    old, _ = await _not_running(runner, agent_id, session_id)
    to_step = await restart_step(runner.ledger.store, old, prediction_set, from_start=from_start)
    note = what_failed(prediction_set, failure, limit=_MAX_NOTE)
    return await rollback(runner, agent_id, session_id, to_step, note=note, compensate=compensate, agent_def=agent_def)


async def branches(runner: AgentRunner, agent_id: str, session_id: str) -> list[Branch]:
    """The discarded branches of a session, the oldest first; raises SessionError when there is no such session."""
    current, _ = await runner.ledger.known(agent_id, session_id)
    documents = await runner.ledger.store.scan(_BRANCH, prefix=run_prefix(current))
    found = [parsed(Branch, document.body, "A stored branch") for document in documents]
    return [branch for branch in found if branch.number != current.branch]  # else a rollback died before it took place


async def _not_running(runner: AgentRunner, agent_id: str, session_id: str) -> tuple[AgentState, int]:
    """The stored session; raises SessionConflictError while a worker has it."""
    state, version = await runner.ledger.known(agent_id, session_id)
    left = state.leased_for_s()
    if left:
        raise SessionConflictError(
            f"Session {session_id!r:.80} is running; stop it first, or wait {left:.1f} s if its worker died."
        )
    return state, version


async def _took_effect(runner: AgentRunner, state: AgentState, to_step: int) -> tuple[list[ExecutedCall], bool]:
    """The executed calls of discarded steps, a sub-agent's in place of its beginning; True if all this is believed.

    The model reads them, and the audit is not sealed: what names a call is a transcript that is.
    """
    entries = await AuditLog(runner.ledger.store, state.agent_id, state.session_id).entries()
    found, sealed = list[ExecutedCall](), state.vouched and state.sealed
    for call in executed_calls(entries, state, to_step, runner.policy()):
        agent = runner.sub_agents.get(call.call.name)
        if agent is not None:
            began = state.model_copy(update={"run_id": segment_at(state, step_number(call.step_id) or 0).run_id})
            child = began.child_session(CallRecord.new(call.call, call.step_id))
            if await agent.runner.ledger.store.get("session", session_key(agent.agent.name, child)) is not None:
                below, _ = await _not_running(agent.runner, agent.agent.name, child)
                theirs, believed = await _took_effect(agent.runner, below, 0)
                found, sealed = [*found, *below.discarded, *theirs], sealed and believed
                continue
        found, sealed = [*found, call], sealed and call.arguments_known
    return found, runner.gate.believes(sealed)


def _branched(old: AgentState, restored: AgentState, to_step: int, done: list[ExecutedCall]) -> AgentState:
    """The state before the step, with all that must be kept of the branch that it replaces."""
    fresh = AgentState(agent_id=old.agent_id, session_id=old.session_id)  # for its run id: calls get other keys
    segments = [segment for segment in lineage_of(old) if segment.from_step < to_step]
    if not segments:  # the first names the run whose checkpoints and branches belong together
        segments = [lineage_of(old)[0].model_copy()]
    segments.append(Segment(branch=old.branch + 1, run_id=fresh.run_id, from_step=to_step))
    return restored.model_copy(
        update={
            "session_id": old.session_id,
            "run_id": fresh.run_id,
            "branch": old.branch + 1,
            "lineage": segments,
            "status": AgentStatus.IDLE,
            "definition": old.definition,
            "turn": [],
            "review": [],
            "output": "",
            "touched": True,
            "total_token_usage": old.total_token_usage or TokenUsage(),
            "tool_calls_made": old.tool_calls_made,
            "active_s": old.active_s,
            "worker": None,
            "lease_s": 0.0,
            "discarded": [*(call.model_copy() for call in old.discarded), *done],
            "metadata": {
                **restored.metadata,
                **{key: value for key, value in old.metadata.items() if key == LOOKS_USED},
                "rollback": {
                    "branch": old.branch + 1,
                    "from_branch": old.branch,
                    "to_step": to_step,
                    "alarmed": old.alarmed or alarmed_in(old.belief),
                    "executed": [call.model_dump(mode="json") for call in done],
                },
            },
        }
    )


def _unsettled(state: AgentState) -> list[ExecutedCall]:
    """The calls that cannot be undone, and that are neither compensated nor accepted."""
    return [call for call in state.discarded if call.irreversible and not call.settled and call.compensation is None]


def _append_note(state: AgentState, note: str) -> None:
    """Append a message for the model: an attempt failed, and these of its calls took effect."""
    lines = ["An earlier attempt from this point on failed and was discarded; nothing that it said stands.", note]
    stands = [call for call in state.discarded if call.compensation is None]
    made_up = [call for call in state.discarded if call.compensation is not None]
    if stands:
        lines.append("These calls took effect, or may have, and were not undone. Do not repeat them without need:")
        lines += _listed(stands)
    if made_up:
        lines.append("These calls took effect and were made up for:")
        lines += _listed(made_up)
    lines.append("Go on from here, and do it differently.")
    state.messages.append(
        Message(role=Role.USER, content="\n".join(line for line in lines if line), metadata={"rollback": state.branch})
    )


def _listed(calls: Sequence[ExecutedCall]) -> list[str]:
    lines = []
    for call in calls[:_MAX_LISTED]:
        what = call.call.canonical() if call.arguments_known else f"{call.call.name}(arguments not known)"
        unknown = "" if call.finished else " (outcome unknown)"
        made_up = f": {call.compensation[:300]}" if call.compensation else ""
        lines.append(f"- {what[:300]}{unknown}{made_up}")
    if len(calls) > _MAX_LISTED:
        lines.append(f"- and {len(calls) - _MAX_LISTED} more")
    return lines


def _request_about(
    terms: Terms, calls: Sequence[ExecutedCall], now_s: float, *, step_id: str, why: str = ""
) -> ApprovalRequest:
    """The request on executed calls; it does not expire."""
    lines = "; ".join(line.removeprefix("- ") for line in _listed(calls))
    reason = (
        f"The run was rolled back to before {step_id}, but these calls already took effect, or may have: "
        f"{lines}. Approve to go on with them as they are, respond with what was done about them, or reject to end."
    )
    doubt = Doubt(level=UncertaintyLevel.HIGH, rule=ROLLBACK, reason=f"{reason} {why}".strip())
    return request_for(None, terms, doubt, now_s, step_id=step_id)


async def _archive(runner: AgentRunner, old: AgentState, to_step: int, note: str) -> None:
    """Store the branch that is about to be discarded; a repeated rollback overwrites it."""
    body = Branch(to_step=to_step, note=note, kept_s=time.time(), state=old).model_dump_json()
    key = f"{run_prefix(old)}{old.branch:04d}"
    found = await runner.ledger.store.get(_BRANCH, key)
    await runner.ledger.store.put(
        _BRANCH, key, body, expected=0 if found is None else found.version, label=old.status.value
    )


def _facts(new: AgentState, to_step: int, from_branch: int, done: list[ExecutedCall]) -> dict[str, JsonValue]:
    return {
        "to_step": to_step,
        "from_branch": from_branch,
        "branch": new.branch,
        "run_id": new.run_id,
        "executed": [
            {"tool": c.call.name, "digest": c.digest, "effect": c.effect.value, "idempotency_key": c.idempotency_key}
            for c in done
        ],
    }


async def _run_compensation(
    runner: AgentRunner,
    new: AgentState,
    version: int,
    rolled_back: Note,
    calls: Sequence[ExecutedCall],
    compensate: _Compensate,
    note: str,
    terms: Terms,
) -> None:
    """Store that the hook is called, call it, and store what it did; the request stays pending until then."""
    for call in calls:
        call.compensation_started = True
    begun: Note = "compensation_started", {"calls": [call.idempotency_key for call in calls]}
    lease = await runner.leases.take(new, version, rolled_back, begun)
    try:
        why = await _compensated(lambda: lease.run(lambda: compensate(calls)), calls)
        made_up = [call.idempotency_key for call in calls if call.compensation is not None]
        lease.note("compensation_finished", {"made_up_for": list(made_up), "error": why})
        new.messages.pop()
        left = _unsettled(new)
        _append_note(new, note)
        new.metadata["rollback"]["executed"] = [call.model_dump(mode="json") for call in calls]
        if left or why is not None:
            new.review = [
                _request_about(terms, left or calls, lease.now_s(), step_id=new.review[0].step_id, why=why or "")
            ]
        else:
            new.review = []
            for call in calls:
                call.settled = True
        new.status = AgentStatus.WAITING_FOR_HUMAN if new.review else AgentStatus.IDLE
        await lease.save()
    except BaseException:
        new.status = AgentStatus.WAITING_FOR_HUMAN
        await lease.release()
        raise


async def _compensated(
    work: Callable[[], Awaitable[Sequence[str | None] | None]], calls: Sequence[ExecutedCall]
) -> str | None:
    """Call the hook and note on each call what was done about it; returns the error, or None."""
    try:
        results = await work()
    except (SessionError, StoreError):
        raise
    except Exception as error:  # noqa: BLE001 (a failing hook is a question to a human, with its error)
        return f"Making up for them failed: {error_text(error)}"[:500]
    if results is None:
        return None
    if isinstance(results, str) or not isinstance(results, Sequence) or len(results) != len(calls):
        return f"Making up for them did not report on each of {len(calls)} calls: none is taken as done."
    for call, result in zip(calls, results, strict=True):  # what is no text does not say what was done
        said = replace_lone_surrogates(result[:2_000]) if isinstance(result, str) else ""
        call.compensation = said if said.strip() else None
    return None
