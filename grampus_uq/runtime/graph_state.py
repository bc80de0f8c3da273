"""The stored state of a graph's execution, and how the states of parallel branches are merged."""

from __future__ import annotations

import anyio
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from grampus_uq.records.values import TokenUsage
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.store import SessionStore


class GraphCheckpoint(BaseModel):
    """An execution: the nodes to run next, those that wait for a human, joins, and the nodes that have run."""

    model_config = ConfigDict(extra="ignore")  # earlier versions wrote more

    v: int = 1
    state: AgentState
    ready: list[str] = Field(default_factory=list)
    waiting: list[str] = Field(default_factory=list)
    arrived: dict[str, list[str]] = Field(default_factory=dict)
    finished: list[str] = Field(default_factory=list)
    done: dict[str, AgentState] = Field(default_factory=dict)
    holder: str | None = None
    lease_s: float = 0.0
    _store: SessionStore = PrivateAttr()
    _key: str = PrivateAttr("")
    _version: int = PrivateAttr(0)  # of this execution, not of the graph: one graph may serve several at once
    _lock: anyio.Lock = PrivateAttr(default_factory=anyio.Lock)

    async def save(self) -> None:
        async with self._lock:
            self._version = await self._store.put(
                "graph", self._key, self.model_dump_json(), expected=self._version, label=self.state.status.value
            )


def merged(before: AgentState, results: list[AgentState]) -> AgentState:
    """One state from the branches: what each added, in the order of the branches; a single branch is taken as it is."""
    if len(results) == 1:
        return results[0]
    state = before.model_copy(deep=True)
    for result in results:
        _add(state, before, result)
    return state


def _add(onto: AgentState, before: AgentState, after: AgentState) -> None:
    """Add to a state what came between two others: messages, metadata, output, steps, tokens and calls."""
    onto.messages += after.messages[len(before.messages) :]
    changed = {k: v for k, v in after.metadata.items() if k not in before.metadata or before.metadata[k] != v}
    onto.metadata.update(changed)
    onto.current_step = max(onto.current_step, after.current_step)
    if after.output and after.output != before.output:
        onto.output = after.output
    onto.tool_calls_made += after.tool_calls_made - before.tool_calls_made
    onto.active_s += after.active_s - before.active_s
    used = _used(before.total_token_usage or TokenUsage(), after.total_token_usage)
    if used is not None:
        onto.total_token_usage = used if onto.total_token_usage is None else onto.total_token_usage + used


def _used(before: TokenUsage, after: TokenUsage | None) -> TokenUsage | None:
    """Return the usage between two counts; None if nothing was counted."""
    if after is None or after == before:
        return None
    cost = None if after.cost_usd is None else after.cost_usd - (before.cost_usd or 0.0)
    return TokenUsage(
        input_tokens=max(0, after.input_tokens - before.input_tokens),
        output_tokens=max(0, after.output_tokens - before.output_tokens),
        total_tokens=max(0, after.total_tokens - before.total_tokens),
        cost_usd=cost,
        model=after.model,
    )
