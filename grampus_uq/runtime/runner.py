"""AgentRunner: a tool-calling loop that is monitored at every step, pauses for humans, and resumes in any process."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import JsonValue

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.errors import ConfigurationError, SessionError, UncertaintyError
from grampus_uq.gate.clearance import Precondition
from grampus_uq.gate.effects import ToolEffects
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.requests import ApprovalPolicy
from grampus_uq.gate.starts import Starts
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.recording.artifacts import prompt_hash, tools_hash
from grampus_uq.records.configuration import checked
from grampus_uq.records.events import ALARMED, BRANCH
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import AgentDefinition, Message
from grampus_uq.records.vocabulary import ENDED, AgentStatus, Effect, Role, StopReason, parse_effect
from grampus_uq.runtime.apply_decisions import HumanResponse, apply_response, meet_changes, refuse_changes
from grampus_uq.runtime.begun_with import BEGUN_WITH, BegunWith, ChangedTools
from grampus_uq.runtime.endings import Endings
from grampus_uq.runtime.guarantee_watch import CalibrationWatch
from grampus_uq.runtime.heard_answers import heard_together, take_up_last
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.looks import LOOKS_USED, LookingAgain, Looks
from grampus_uq.runtime.loop import Loop, RunEvent
from grampus_uq.runtime.run_state import (
    ATTENDED,
    DEATHS,
    REJECTED_BEFORE,
    REPLACED,
    STARTED_BY,
    AgentState,
    ExecutionResult,
    PendingSession,
)
from grampus_uq.runtime.session_lease import Leases, SessionLease
from grampus_uq.runtime.stopping import StoppedError, StopReport, order_stop
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stored_delegations import standing_in
from grampus_uq.runtime.stored_permits import StoredPermits
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.tools import call_executor
from grampus_uq.runtime.turn import Turn
from grampus_uq.runtime.worker_jobs import ABOVE, PARENT, PARENT_RUN
from grampus_uq.wire.lone_surrogates import bounded_text
from grampus_uq.wire.messages import leading_system
from grampus_uq.wire.model_call import recorded_model

if TYPE_CHECKING:
    from grampus_uq.runtime.sub_agents import SubAgent

_RELEASE_POLLS = 10
_RESERVED = frozenset(
    {ABOVE, ATTENDED, BEGUN_WITH, DEATHS, LOOKS_USED, PARENT, PARENT_RUN, REJECTED_BEFORE, REPLACED, STARTED_BY}
)
_LONGEST_KEY = 2_000  # what every store can index, with what is put before and behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwatched:
    """Replaces the monitor: no step is judged, and only calls of the `always_ask_tool_names` are held for a human."""

    policy: UncertaintyPolicy = field(default_factory=UncertaintyPolicy)


UNWATCHED = Unwatched()


@checked
class AgentRunner:
    """Runs agents over one model client and one tool executor; serves any number of sessions at once.

    `uncertainty_monitor` judges every step. The default is a monitor that makes no model calls; `UNWATCHED` runs
    without any, and `Unwatched(policy=...)` still asks for the tools in its policy's `always_ask_tool_names`.

    `store` keeps sessions; by default they live in this process only. `approvals` says who may decide and how decisions
    are signed, `effects` what tools do to the world. `precondition` is checked before a call runs that a human, a
    grant, a permit or another look cleared: when it fails the call is asked again. `sub_agents` are agents that the
    model may call as tools. `looks` look again at a call that the profile's chain holds, before a human is asked;
    without a chain their answers are recorded, to learn one from. A worker that dies is replaced when its lease of
    `lease_s` has expired. `logprobs` requests token log-probabilities from the model, `elicit_confidence` a stated
    confidence. `checkpoints` keeps the state before every step of the model, for `grampus_uq.runtime.rollback`.
    `calibration_watch` receives every run that ends, if the monitor's profile has its detector. `changed_tools` says
    how a pending call is treated whose tool has another schema on resumption, by a later release for example
    (`ChangedTools`). `starts` is a `StoredStarts` on a store apart from `store`: an approved call that ran is not run
    again where `store` was put back to before it, a human is asked what became of it; give it to sub-agents' runners.

    Executing a call: it is written to the store before the tool runs and its result after, and no worker of this
    package starts it twice by itself. A call that was running when its process died runs again only if it reads; for
    any other a human is asked. Exactly-once in the outside world is up to the tool: every attempt at one logical call
    carries the same `idempotency_key`. While the store is down, reversible calls run unrecorded and irreversible ones
    stop; a reversible call of that time may run again if the process dies too.
    """

    def __init__(
        self,
        model_client: ModelClient,
        tool_executor: Any,
        *,
        uncertainty_monitor: UncertaintyMonitor | Unwatched | None = None,
        store: SessionStore | None = None,
        approvals: ApprovalPolicy | None = None,
        effects: ToolEffects | None = None,
        precondition: Precondition | None = None,
        sub_agents: Sequence[SubAgent] = (),
        looks: Looks | None = None,
        lease_s: float = 30.0,
        logprobs: bool = True,
        elicit_confidence: bool = False,
        checkpoints: bool = False,
        calibration_watch: CalibrationWatch | None = None,
        changed_tools: ChangedTools | str = ChangedTools.ASK,
        starts: Starts | None = None,
    ) -> None:
        if not lease_s > 0.0:
            raise ConfigurationError.of("lease_s", "AgentRunner", "above 0 seconds", lease_s)
        if changed_tools not in list(ChangedTools):
            raise ConfigurationError.of("changed_tools", "AgentRunner", "'ask', 'refuse' or 'run'", changed_tools)
        if store is not None and not isinstance(store, SessionStore):
            raise ConfigurationError.of("store", "AgentRunner", "a SessionStore", store, "open_store(URL) opens one.")
        if not callable(getattr(tool_executor, "execute", None)):
            way_out = "FunctionTools(*functions) is one."
            raise ConfigurationError.of("tool_executor", "AgentRunner", "a tool executor", tool_executor, way_out)
        self.model_client = model_client
        self.tool_executor = tool_executor
        if uncertainty_monitor is None:
            uncertainty_monitor = UncertaintyMonitor(policy=UncertaintyPolicy(enable_p_true=False))
        self._unwatched = uncertainty_monitor.policy if isinstance(uncertainty_monitor, Unwatched) else None
        self.monitor = None if isinstance(uncertainty_monitor, Unwatched) else uncertainty_monitor
        self.approvals = approvals or ApprovalPolicy()
        self.effects = effects or ToolEffects()
        self.ledger = Ledger(store if store is not None else MemoryStore(), seal=self.approvals.seal)
        self.gate = Gate(
            approvals=self.approvals,
            effects=self.effects,
            precondition=precondition,
            schema_of=self._schema_of,
            clock=self.ledger.now_s,
            permits=StoredPermits(self.ledger.store, self.approvals),
            delegations=partial(standing_in, self.ledger.store),
            starts=starts,
        )
        self.sub_agents = {agent.name: agent for agent in sub_agents}
        self.logprobs = logprobs
        self.elicit_confidence = elicit_confidence
        self.checkpoints = checkpoints
        self.looks = looks
        self.changed_tools = ChangedTools(changed_tools)
        self._endings = Endings(self.effects, calibration_watch)
        self.lease_s = lease_s
        self.leases = Leases(self.ledger, lease_s)

    # -- running --------------------------------------------------------------------------------------------------

    async def run(
        self,
        agent_def: AgentDefinition,
        user_input: str,
        *,
        session_id: str | None = None,
        messages: Sequence[Message] = (),
        metadata: dict[str, Any] | None = None,
        started_by: str | None = None,
        vouched: bool = True,
        child_of: Mapping[str, JsonValue] | None = None,
        inherits: AgentState | None = None,
    ) -> ExecutionResult:
        """Run until the agent answers, pauses or stops; `messages` go before the user's input.

        `started_by` is whose run it is, by the approvers' names: with `ApprovalPolicy(others_decide=True)` it has to be
        said, and that person does not decide. `vouched=False`: the task comes out of a stored state without a seal that
        holds, so whatever may be irreversible is asked about. `child_of`: the parent of a sub-agent's run, whose
        rejections and rolled-back calls it `inherits`. Names that the runner itself keeps in `metadata` (`attended`,
        for example) are refused with ConfigurationError.

        Raises UncertaintyError when the policy aborts the run (its state is stored), SessionError when a session of
        this id is running or waiting, ModelError when the agent's own model fails (`resume` then goes on where it was).
        """
        return await _ended(
            self.stream(
                agent_def,
                user_input,
                session_id=session_id,
                messages=messages,
                metadata=metadata,
                started_by=started_by,
                vouched=vouched,
                child_of=child_of,
                inherits=inherits,
            )
        )

    async def stream(
        self,
        agent_def: AgentDefinition,
        user_input: str,
        *,
        session_id: str | None = None,
        messages: Sequence[Message] = (),
        metadata: dict[str, Any] | None = None,
        started_by: str | None = None,
        vouched: bool = True,
        child_of: Mapping[str, JsonValue] | None = None,
        inherits: AgentState | None = None,
    ) -> AsyncGenerator[RunEvent, None]:
        """Like `run`, step by step; the last event carries the result. Steps are yielded after they were judged.

        To leave early, close it (`async with contextlib.aclosing(...)`): the session is then free at once.
        """
        if self.approvals.others_decide and started_by is None:
            rule = "given, because the policy lets others decide"
            raise ConfigurationError.of("started_by", "AgentRunner.run", rule, None)
        if taken := sorted(_RESERVED & set(metadata or {})):
            rule = f"without the names that the runner itself keeps there ({', '.join(sorted(_RESERVED))})"
            raise ConfigurationError.of("metadata", "AgentRunner.run", rule, taken)
        metadata = {**(metadata or {}), **(child_of or {})}
        metadata |= {} if started_by is None else {STARTED_BY: started_by}
        state, version = await self._fresh(agent_def, session_id or uuid.uuid4().hex, metadata)
        state.vouched = vouched
        if inherits is not None:
            state.inherit(inherits)
            state.discarded = [one.model_copy() for one in inherits.discarded]
        if agent_def.system_prompt:
            state.messages.append(Message(role=Role.SYSTEM, content=agent_def.system_prompt))
        state.messages += [*messages, Message(role=Role.USER, content=bounded_text(user_input))]
        begun = self._begun_with(agent_def)
        begun.keep(state, self.schemas())
        _storable(state)
        lease = await self.leases.take(state, version, ("begun", begun.model_dump(exclude={"open"})))
        async with aclosing(self._drive(lease, agent_def)) as events:
            async for event in events:
                yield event

    async def resume(
        self,
        agent_id: str,
        session_id: str,
        human_response: HumanResponse = None,
        *,
        agent_def: AgentDefinition | None = None,
    ) -> ExecutionResult:
        """Resume a paused session, or one whose worker died.

        A text is guidance: waiting calls are not executed, and the model continues with the text. One or several
        `ApprovalDecision`s run or refuse calls. None applies stored decisions and expiry.

        Raises ApprovalError when a decision is refused, SessionConflictError when another worker has the session,
        SessionError when there is none.
        """
        return await _ended(self.stream_resume(agent_id, session_id, human_response, agent_def=agent_def))

    async def stream_resume(
        self,
        agent_id: str,
        session_id: str,
        human_response: HumanResponse = None,
        *,
        agent_def: AgentDefinition | None = None,
    ) -> AsyncGenerator[RunEvent, None]:
        """Like `resume`, step by step."""
        state, version = await self._released(agent_id, session_id)
        if state.status in ENDED:
            raise SessionError(f"Session {session_id!r:.80} has ended ({state.status}): there is nothing to resume.")
        agent = agent_def or AgentDefinition.model_validate(state.definition)
        if self.changed_tools is ChangedTools.REFUSE:
            refuse_changes(state, self.schemas())
        asked = [request for request in state.pending() if request.child_session is None]
        lease = await self.leases.take(state, version)
        try:
            lease.session = self._session(state, agent)
            turn = self._turn(lease)
            turn.restore()
            if self.changed_tools is not ChangedTools.RUN:
                meet_changes(turn, self._begun_with(agent), self.schemas())
            await apply_response(turn, human_response, earlier=asked)
        except (Exception, anyio.get_cancelled_exc_class()):
            await lease.release(unfinished=True)
            raise
        async with aclosing(self._drive(lease, agent)) as events:
            async for event in events:
                yield event

    async def _released(self, agent_id: str, session_id: str) -> tuple[AgentState, int]:
        """The stored session, after a moment for a stream of this process that was just left to release it."""
        state, version = await self.ledger.known(agent_id, session_id)
        for _ in range(_RELEASE_POLLS):
            if state.status is not AgentStatus.RUNNING or not (state.worker or "").startswith(self.leases.worker):
                break
            await anyio.sleep(0.01)
            state, version = await self.ledger.known(agent_id, session_id)
        return state, version

    async def _drive(self, lease: SessionLease, agent: AgentDefinition) -> AsyncGenerator[RunEvent, None]:
        """Run the loop under the lease, and release it whatever happens."""
        try:
            if lease.session is None:
                lease.session = self._session(lease.state, agent)
            loop = self._loop(lease, agent)
            with heard_together(loop.turn):
                async with aclosing(loop.run()) as events:
                    async for event in events:
                        yield event
        except StoppedError as stopped:
            await take_up_last(self._turn(lease))
            ended = "Interrupted: the run was ordered to stop."
            why = ("stopped", {"why": str(stopped)})
            yield RunEvent(
                kind="stopped", result=await self._endings.end(lease, StopReason.CANCELLED, unrun=ended, notes=[why])
            )
        except UncertaintyError:
            raise
        except BaseException:
            await lease.release(unfinished=True)
            raise

    # -- looking after sessions -----------------------------------------------------------------------------------

    async def list_pending_sessions(self, agent_id: str | None = None) -> list[PendingSession]:
        """The sessions with pending approvals, with their requests."""
        return await self.ledger.pending(agent_id)

    async def stop(self, agent_id: str, session_id: str, *, principal: str = "", wait_s: float = 0.0) -> StopReport:
        """Order one session to stop, wherever it runs (within a second); reports whether it ran and has stopped."""
        return await order_stop(self.ledger, agent_id, session_id, principal=principal, wait_s=wait_s)

    async def stop_all(self, *, principal: str = "", wait_s: float = 0.0) -> StopReport:
        """Order every running session of this store to stop; reports which ran and which stopped within `wait_s`."""
        return await order_stop(self.ledger, principal=principal, wait_s=wait_s)

    # -- parts ----------------------------------------------------------------------------------------------------

    def _loop(self, lease: SessionLease, agent: AgentDefinition) -> Loop:
        turn, looking = self._turn(lease), None
        if self.looks is not None:
            looking = LookingAgain(
                turn=turn, looks=self.looks, client=self.model_client, model=agent.model, schemas=self.schemas
            )
        return Loop(
            lease=lease,
            turn=turn,
            looking=looking,
            agent=agent,
            client=self.model_client,
            schemas=self.schemas,
            made_with=partial(self._made_with, agent, lease.state),
            endings=self._endings,
            checkpoints=self.ledger if self.checkpoints else None,
            reflection=None if self.monitor is None else self.monitor.get_reflection_message,
            logprobs=self.logprobs,
            elicit_confidence=self.elicit_confidence,
        )

    def _begun_with(self, agent: AgentDefinition) -> BegunWith:
        return BegunWith.of(agent, None if self.monitor is None else self.monitor.profile, self.schemas())

    def _turn(self, lease: SessionLease) -> Turn:
        return Turn(
            lease,
            gate=self.gate,
            declared=self._declared,
            execute=partial(call_executor, self.tool_executor),
            delegates=self.sub_agents,
            unwatched=self._unwatched,
        )

    def policy(self) -> UncertaintyPolicy | None:
        """The rules of new sessions; without a monitor those of `Unwatched`."""
        return self._unwatched if self.monitor is None else self.monitor.profile.policy

    def _declared(self, name: str) -> Effect | None:
        declare = getattr(self.tool_executor, "effect_of", None)
        return parse_effect(declare(name), "effect_of") if callable(declare) else None

    def _schema_of(self, name: str) -> dict[str, Any] | None:
        """The JSON schema of a tool's arguments."""
        for schema in self.schemas():
            function = schema.get("function", schema)
            if function.get("name") == name:
                found = function.get("parameters")
                return found if isinstance(found, dict) else None
        return None

    async def _fresh(self, agent: AgentDefinition, session_id: str, metadata: dict[str, Any]) -> tuple[AgentState, int]:
        """A new state; in place of an ended session of the same id, never of one that is alive."""
        if len(session_key(agent.name, session_id)) > _LONGEST_KEY:
            rule = f"at most {_LONGEST_KEY} characters with the agent's name, as in a URL"
            raise ConfigurationError.of("session_id", "AgentRunner.run", rule, f"{session_id:.40}…")
        definition = agent.model_dump(mode="json", exclude={"tools"})
        return await self.ledger.fresh(agent.name, session_id, definition=definition, metadata=metadata)

    def _session(self, state: AgentState, agent: AgentDefinition) -> Any:
        if self.monitor is None:
            return None
        session = self.monitor.session(
            state.session_id,
            state.agent_id,
            snapshot=state.belief,
            **self._made_with(agent, state, self.schemas()),
            metadata=({BRANCH: str(state.branch)} if state.branch else {})
            | ({ALARMED: "true"} if state.alarmed else {}),
        )
        self.monitor.bind(session)
        return session

    def _made_with(
        self, agent: AgentDefinition, state: AgentState, schemas: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """What an answer is made with that the model gives with these tools: the facts of `Session.made_with`."""
        model = recorded_model(self.model_client, agent.model)
        return {
            "model": model,
            "prompt_hash": prompt_hash(leading_system(state.messages)),
            "tools_hash": tools_hash(schemas),
        }

    def schemas(self) -> list[dict[str, Any]]:
        """The tools as the model sees them, in the OpenAI wire form."""
        own = getattr(self.tool_executor, "schemas", None)
        listed = own() if callable(own) else []
        return [*(listed if isinstance(listed, list) else []), *(agent.schema() for agent in self.sub_agents.values())]


def _storable(state: AgentState) -> None:
    """Raise ConfigurationError for a session that could not be read back from a store."""
    try:
        AgentState.model_validate_json(state.model_dump_json())
    except (ValueError, RecursionError) as error:
        rule = "text and JSON values without lone surrogates, at most 100 levels deep"
        what = f"{type(error).__name__}: {str(error)[:150]}"
        raise ConfigurationError.of("messages and metadata", "AgentRunner.run", rule, what) from error


async def _ended(events: AsyncGenerator[RunEvent, None]) -> ExecutionResult:
    result: ExecutionResult | None = None
    async for event in events:
        result = event.result or result
    if result is None:
        raise SessionError("The run ended without a result.")
    return result
