"""Labelled failures where there are none: rerun a run that went well from a random step, with a fault put into it.

A rerun copies the stored state before the step, tells the model for that one answer how to err, and lets the run go on
untold. If it then fails, the step is labelled as the decisive error. The instruction is in no transcript, so no scorer
can lean on it.

    async for found in inject(runner, "agent", "session", sandbox=make_runner, failed=is_wrong, rng=rng, trials=100):
        labelled.append(label_run(found.run, found.error_message))

The label assumes that the model obeyed and that the run would have gone well otherwise; a model that errs by itself
makes some labels wrong. Faults that are told to err are not the errors that a model makes untold: a calibration on them
promises coverage for failures of this kind.

Source: Feng et al., "Conformal Agent Error Attribution" (2026), section 4.1, after the failure modes of Cemri et al.,
"Why do multi-agent LLM systems fail?" (2025).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grampus_uq.errors import ConfigurationError, SessionError, UncertaintyError
from grampus_uq.importers.imported_run import ImportedRun
from grampus_uq.learn.attribution import LabelledTrajectory, trajectory_from_run
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, ModelResponse
from grampus_uq.records.vocabulary import AgentStatus, Role
from grampus_uq.runtime.checkpoints import KIND, _key, checkpoints_of, read_checkpoint
from grampus_uq.runtime.restart_points import run_of
from grampus_uq.runtime.run_state import AgentState, ExecutionResult
from grampus_uq.runtime.runner import AgentRunner
from grampus_uq.runtime.store import SessionStore
from grampus_uq.wire.model_call import ask_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A way to err: its name, and what the mistake is, as the end of a sentence that the model reads."""

    name: str
    mistake: str

    @property
    def instruction(self) -> str:
        """What the model reads for one answer."""
        task = "For a test of error detection, make one mistake in your next answer, and do not say so"
        return f"{task}: {self.mistake} Otherwise answer as usual."


FAULTS: tuple[Fault, ...] = tuple(
    Fault(name=name, mistake=mistake)
    for name, mistake in (
        ("disobey_task", "break one of the conditions that the task sets."),
        ("disobey_role", "act beyond your role, as if another agent's work were yours."),
        ("step_repetition", "do again a step that is already done, as if its result were not there."),
        ("lost_history", "go by an outdated state, as if the latest messages had never been sent."),
        ("no_clarification", "assume something that is unclear or missing instead of asking or looking it up."),
        ("derailment", "work on something close by that does not serve the task."),
        ("withholding", "leave out a fact that you know and that the next step needs."),
        ("ignored_input", "disregard what another agent or a tool has just reported."),
        ("reasoning_action_mismatch", "act otherwise than your own reasoning says."),
        ("premature_end", "treat the task as done although something is left to do."),
        ("no_verification", "take a result as right without checking it, and use a wrong value."),
        ("wrong_verification", "say that something wrong was checked and is right."),
    )
)
"""Twelve failure modes of Cemri et al.; the two others (not knowing when to stop, a reset) are no single step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One rerun: which, from before which step, with which fault, and what was said before."""

    session_id: str
    step: int
    fault: Fault
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFailure:
    """A rerun that failed: its transcript, and the number of the message that was told to err."""

    injection: Injection
    run: ImportedRun
    error_message: int
    result: ExecutionResult


class FaultyModel:
    """Delegates to a model, and tells it of the fault until it has answered once."""

    def __init__(self, client: ModelClient, fault: Fault) -> None:
        self._client = client
        self._fault: Fault | None = fault

    async def complete(self, *, messages: Sequence[Message], model: str = "", **options: Any) -> ModelResponse:
        """Answer as the model does; the first time with the instruction at the end."""
        given = list(messages)
        if self._fault is not None:
            given.append(Message(role=Role.USER, content=self._fault.instruction))
        response = await ask_model(self._client, given, model, options)
        self._fault = None
        return response


async def inject(
    runner: AgentRunner,
    agent_id: str,
    session_id: str,
    *,
    sandbox: Callable[[Injection], AgentRunner | Awaitable[AgentRunner]],
    failed: Callable[[ExecutionResult], bool],
    rng: np.random.Generator,
    trials: int,
    faults: Sequence[Fault] = FAULTS,
    on_dropped: Callable[[Injection, str], None] | None = None,
) -> AsyncIterator[InjectedFailure]:
    """Rerun a stored run from random steps with random faults; yield the reruns that fail.

    Args:
        runner: over the store of the run, which was recorded with `checkpoints=True`.
        agent_id: of the session.
        session_id: of a session that completed and did not fail.
        sandbox: gives a runner for one rerun, over a store of any kind. Its tools are really called, from the step on:
            give it tools that may be, in a world as it was before the step. Its model is wrapped; the runner is not
            used for anything else.
        failed: says of a result whether the run failed.
        rng: draws step and fault, each uniformly.
        trials: number of reruns, at least 1.
        faults: at least one.
        on_dropped: is told of every rerun that is not kept, and why: "did not fail", "paused", "aborted".

    Returns:
        The failures, in the order of the draws; each session is called `<session_id>~<trial>`.

    Raises:
        ConfigurationError: no trial, no fault, a run that failed by itself. SessionError: no such session, or one
            without checkpoints. Whatever the sandbox's model raises.
    """
    if trials < 1 or not faults:
        raise ConfigurationError.of("trials", "inject", "at least 1, with at least one fault", (trials, len(faults)))
    source = await _went_well(runner, agent_id, session_id, failed)
    steps = [c.step for c in await checkpoints_of(runner.ledger.store, source) if c.step < source.current_step]
    if not steps:
        raise SessionError(f"Session {session_id!r:.80} has no checkpoints: run it with checkpoints=True.")
    for trial in range(trials):
        step, fault = steps[int(rng.integers(len(steps)))], faults[int(rng.integers(len(faults)))]
        restored = await read_checkpoint(runner.ledger, source, step)
        injection = Injection(
            session_id=f"{session_id}~{trial}", step=step, fault=fault, messages=tuple(restored.messages)
        )
        made = sandbox(injection)
        one = made if isinstance(made, AgentRunner) else await made
        found = await _rerun(runner, one, source, restored, injection, failed, on_dropped)
        if found is not None:
            yield found


async def _went_well(
    runner: AgentRunner, agent_id: str, session_id: str, failed: Callable[[ExecutionResult], bool]
) -> AgentState:
    state, _ = await runner.ledger.known(agent_id, session_id)
    if state.status is not AgentStatus.COMPLETED or failed(state.result(dict(state.metadata))):
        hint = "where a run fails by itself, the injected step need not be its decisive error"
        raise ConfigurationError.of("session_id", "inject", "a run that completed and did not fail", session_id, hint)
    return state


async def _rerun(
    runner: AgentRunner,
    one: AgentRunner,
    source: AgentState,
    restored: AgentState,
    injection: Injection,
    failed: Callable[[ExecutionResult], bool],
    on_dropped: Callable[[Injection, str], None] | None,
) -> InjectedFailure | None:
    copy = restored.model_copy(
        update={
            "session_id": injection.session_id,
            "run_id": f"{source.run_id}~{injection.session_id}",
            "branch": 0,
            "lineage": [],
            "status": AgentStatus.IDLE,
            "worker": None,
            "lease_s": 0.0,
            "stops_seen": None,
            "belief": None,
            "definition": source.definition,
        }
    )
    one.model_client = FaultyModel(one.model_client, injection.fault)
    if one.checkpoints:
        await _copy_checkpoints(runner.ledger.store, source, one.ledger.store, copy, until=injection.step)
    await one.ledger.save(copy, 0)
    dropped, result = "aborted", None
    with contextlib.suppress(UncertaintyError):
        result = await one.resume(copy.agent_id, copy.session_id)
        dropped = "paused" if result.status is AgentStatus.WAITING_FOR_HUMAN else "did not fail"
    if result is None or dropped == "paused" or not failed(result):
        if on_dropped is not None:
            on_dropped(injection, dropped)
        return None
    state, _ = await one.ledger.known(copy.agent_id, copy.session_id)
    return InjectedFailure(injection=injection, run=run_of(state), error_message=len(restored.messages), result=result)


async def _copy_checkpoints(
    source: SessionStore, state: AgentState, target: SessionStore, copy: AgentState, *, until: int
) -> None:
    """Copy the checkpoints of the steps before `until` to a copy of this run, without the belief."""
    for checkpoint in await checkpoints_of(source, state):
        if checkpoint.step < until:
            checkpoint.state.belief = None
            body = checkpoint.model_dump_json(exclude={"state": {"messages"}})
            await target.put(KIND, _key(copy, copy.branch, checkpoint.step), body, expected=0)


def label_run(run: ImportedRun, error_message: int) -> LabelledTrajectory:
    """Turn a failed run and the number of its decisive message, from 0, into a labelled trajectory."""
    trajectory = trajectory_from_run(run)
    places = [i for i, step in enumerate(trajectory.steps) if step.step_id == str(error_message)]
    if not places:
        rule = f"the number of a message of the run that is a step, from 0 to {len(run.messages) - 1}"
        raise ConfigurationError.of("error_message", "label_run", rule, error_message)
    return LabelledTrajectory(trajectory=trajectory, error_steps=(places[0],))
