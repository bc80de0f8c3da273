"""A thread of LangGraph, for graphs and LangChain's agents alike: its session, and the approvals that it waits for."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from grampus_uq import ApprovalDecision, ApprovalError, ApprovalRequest, MissingDependencyError
from grampus_uq.gate.seal import session_place
from grampus_uq.integrations.carried_states import Carried
from grampus_uq.integrations.judged_turns import TurnJudge
from grampus_uq.integrations.langgraph_steps import Way
from grampus_uq.integrations.settings import decisions_in

with MissingDependencyError.unless("langgraph", "langgraph", "Resuming a graph"):
    from langgraph.types import Command, interrupt

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.types import StateSnapshot

log = logging.getLogger("grampus_uq.integrations.langgraph")

KEY = "uncertainty"
"""The channel of the graph's state that the adapter adds: {"belief": ..., "turn": ...}, JSON values."""
REVIEW = "uncertainty_review"
"""The `type` of the adapter's interrupts: {"type", "requests": ApprovalRequests as JSON, "refused": why, if any}."""

_CHECKPOINTER = "__pregel_checkpointer"
"""Where LangGraph has the run's checkpointer, a graph's around it too."""
_RESUMED = "__pregel_resume_map"
"""Where LangGraph has a run's answers to interrupts, by their ids."""


async def _nothing() -> None:
    pass


before_node: ContextVar[Callable[[], Awaitable[None]]] = ContextVar("grampus_before_node", default=_nothing)
"""Awaited before a node that the guard wraps; what it raises keeps the node from running."""

may_repeat: ContextVar[Collection[str]] = ContextVar("grampus_may_repeat", default=())
"""Nodes of which the host says that they may run again, whatever became of an attempt in another process."""


def ask_humans(config: RunnableConfig, requests: Sequence[Any], refused: Sequence[str]) -> Any:
    """Interrupt the run until it is resumed with an answer to these requests."""
    if config.get("configurable", {}).get(_CHECKPOINTER) is None:
        log.warning("a run pauses that has no checkpointer, so nobody can resume it: give the graph or agent one")
    return interrupt({"type": REVIEW, "requests": requests, "refused": refused})


def waiting(state: StateSnapshot) -> list[ApprovalRequest]:
    """The pending approvals of a thread (`app.get_state(config)`) and its sub-graphs; no other interrupts."""
    return [request for requests in asking(state).values() for request in requests]


def asking(state: StateSnapshot) -> dict[str, list[ApprovalRequest]]:
    """The pending approvals of each of the guard's interrupts, by its id."""
    return {one.id: [ApprovalRequest.model_validate(asked) for asked in one.value["requests"]] for one in _ours(state)}


def resume(state: StateSnapshot, decisions: Sequence[ApprovalDecision]) -> Command[Any]:
    """The command that hands decisions to the interrupts that asked: `app.invoke(resume(state, [d]), config)`.

    Stale ones go to all, which refuse and ask again; without any, what expired is asked anew. Raises ApprovalError when
    the thread waits for none, ConfigurationError for anything but decisions.
    """
    ours = _ours(state)
    if not ours:
        raise ApprovalError("No request of the guard is pending in this thread: the decisions are stale or were used.")
    known = {request["id"]: one.id for one in ours for request in one.value["requests"]}
    given = decisions_in(decisions)
    answers: dict[str, list[Any]] = {} if given else {one.id: [] for one in ours}
    for decision in given:
        asking = known.get(decision.request_id)
        for interrupt_id in [asking] if asking is not None else [one.id for one in ours]:
            answers.setdefault(interrupt_id, []).append(decision.model_dump(mode="json"))
    return Command(resume={interrupt_id: {"decisions": answer} for interrupt_id, answer in answers.items()})


def _ours(state: StateSnapshot) -> list[Any]:
    return [one for one in state.interrupts if isinstance(one.value, Mapping) and one.value.get("type") == REVIEW]


def read_state(judge: TurnJudge, config: RunnableConfig, state: Mapping[str, Any] | None, **how: bool) -> Carried:
    """Read a carried state in the session of the run that this config belongs to (`CarriedStates.read`)."""
    place, thread = place_of(judge, config, state), _thread_of(config)
    return judge.states.read(session_id_of(config, state), place, state, thread=thread, **how)


def _thread_of(config: RunnableConfig) -> str:
    return str(config.get("configurable", {}).get("thread_id") or "")


def session_id_of(config: RunnableConfig, state: Any = None) -> str:
    """The thread's id, and for a sub-graph its place within the run; a graph without a checkpointer has a new one.

    A sub-graph that shares the state of a graph around it goes on with that one's session.
    """
    thread, namespace = _thread_of(config), str(config.get("configurable", {}).get("checkpoint_ns") or "")
    if thread and "|" not in namespace:
        return thread
    try:
        known = state["belief"]["session"]["state"]["session_id"]
    except (KeyError, TypeError):
        known = None
    if not thread:
        return known if isinstance(known, str) else f"run-{uuid.uuid4().hex}"
    within = namespace.split("|")[:-1]
    around = [thread, *(f"{thread}/{'|'.join(within[:depth])}" for depth in range(1, len(within)))]
    return known if known in around else f"{thread}/{'|'.join(within)}"


def place_of(judge: TurnJudge, config: RunnableConfig, state: Any = None) -> str:
    """The framework's name of the session: a seal is bound to it. Sub-graphs that share a state share it."""
    thread = _thread_of(config)
    place, session_id = session_place(judge.settings.agent_id, thread), session_id_of(config, state)
    return place if session_id == thread or not thread else f"{place}/{session_place('', session_id)}"


async def written_before(way: Way, config: RunnableConfig, *, back: int) -> list[tuple[str, list[tuple[str, Any]]]]:
    """The writes at each checkpoint, by channel, with the source of the checkpoint after it: this step's first.

    That one may not be there yet. Back to the last of so many that runs wrote. An "update" or a "fork" begins anew
    without what tasks wrote. Before a "loop" it counts, also of a task within a task that ended in an earlier run.
    """
    given, source = config.get("configurable", {}), "loop"
    namespace, saver = str(given.get("checkpoint_ns") or ""), cast(Any, given.get(_CHECKPOINTER))
    at: Any = {"configurable": {"thread_id": _thread_of(config), "checkpoint_ns": "|".join(namespace.split("|")[:-1])}}
    found = list[tuple[str, list[tuple[str, Any]]]]()
    while saver is not None and at and back:
        kept = await way.call(saver.aget_tuple if way.awaits else saver.get_tuple, at)
        found.append((source, [written[1:] for written in (kept and kept.pending_writes) or ()]))
        source = str(kept and kept.metadata.get("source"))
        back -= source not in ("update", "fork")
        at = kept and kept.parent_config
    return found


def answers_of_run(config: RunnableConfig) -> list[Any]:
    """The answers that a run was resumed with, by `resume`. The interrupt may have taken that of a cancelled run."""
    return [*(config.get("configurable", {}).get(_RESUMED) or {}).values()]
