"""A call waits exactly where its client was shown another definition than the one that a call was last let through by.

Whichever of the lists the client took to its model, and whenever they come while calls are judged, asked about, decided
and run. The right answer is computed from the history alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import Ed25519Signer
from grampus_uq.integrations.mcp.call_outcomes import Run
from grampus_uq.integrations.mcp.proxy_config import ApprovalSettings, ProxySettings
from grampus_uq.integrations.mcp.proxy_parts import ProxyParts
from grampus_uq.records.values import ToolCall
from grampus_uq.runtime.apply_decisions import apply_response
from tests.proxy.guarded import Bench, bench
from tests.sampling import examples

_MOST_TOLD_APART = 4
_HINT = {"readOnlyHint": True}
_definitions = st.sampled_from("AABBCDEFG")
_moments = st.sampled_from(["before judge", "after judge", "before start", "after start"])
_arrivals = st.none() | st.tuples(_moments, _definitions)
_steps = st.one_of(
    st.tuples(st.just("lists"), st.lists(_definitions, min_size=1, max_size=6)),
    st.tuples(st.just("call"), _arrivals),
    st.tuples(st.just("decided"), st.tuples(st.lists(_definitions, max_size=2), _arrivals)),
)


@dataclass
class History:
    """What the client was shown, and up to where of it the last call was judged that was let through."""

    shown: list[str] = field(default_factory=list)
    judged_to: int = 0

    @property
    def pinned(self) -> str | None:
        return self.shown[self.judged_to - 1] if self.judged_to else None

    def since(self) -> set[str]:
        return set(self.shown[max(self.judged_to - 1, 0) :])

    def must_ask(self) -> bool:
        return len(self.since() | ({self.pinned} if self.pinned else set())) > 1


class World:
    """One session, with lists that arrive at a chosen moment of a call."""

    def __init__(self, one: Bench) -> None:
        self.one, self.history = one, History()
        self.asked: dict[str, tuple[ToolCall, set[str]]] = {}
        self.arrives: tuple[str, str] | None = None
        self.number = 0
        for name in ("judge", "start"):
            setattr(one.calls.gate, name, self._hooked(name, getattr(one.calls.gate, name)))

    def _hooked(self, name: str, work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def hooked(*given: Any, **more: Any) -> Any:
            self._arrive(f"before {name}")
            done = await work(*given, **more)
            self._arrive(f"after {name}")
            return done

        return hooked

    def _arrive(self, moment: str) -> None:
        if self.arrives is not None and self.arrives[0] == moment:
            definition, self.arrives = self.arrives[1], None
            self.list(definition)

    def list(self, definition: str) -> None:
        tool = {"name": "read_note", "description": definition, "annotations": _HINT}
        self.one.calls.take_list({"tools": [tool]})
        self.history.shown.append(definition)

    async def step(self, what: str, how: Any) -> None:
        if what == "lists":
            for definition in how:
                self.list(definition)
        elif what == "call" and self.history.shown:
            self.number += 1
            await self.call(ToolCall(id=f"c{self.number}", name="read_note", arguments={"n": self.number}), how)
        elif what == "decided" and self.asked:
            await self.approve()
            await self.step("lists", how[0])
            call, _ = self.asked[next(iter(self.asked))]
            await self.call(ToolCall(id="again", name=call.name, arguments=call.arguments), how[1])

    async def call(self, call: ToolCall, arrives: tuple[str, str] | None) -> None:
        self.arrives, judged_to, before = arrives, len(self.history.shown), self.asked.get(call.canonical())
        must_ask, since = self.history.must_ask(), self.history.since()
        opened = await self.one.calls.propose(call)
        if before is not None:
            must_ask, judged_to = not since <= before[1], len(self.history.shown)
        became = await self.one.calls.next(opened)
        self.arrives = None
        many = len(set(self.history.shown)) > _MOST_TOLD_APART  # then it may be asked about once more
        assert isinstance(became, Run) != must_ask or (many and not must_ask), (self.history, before)
        if isinstance(became, Run):
            self.history.judged_to = max(self.history.judged_to, judged_to)
            self.asked.pop(call.canonical(), None)
            await self.one.calls.finish(became.record, text="done", is_error=False)
            self.one.calls.delivered(opened.id)
        else:
            self.asked[call.canonical()] = (call, since)

    async def approve(self) -> None:
        for session in await self.one.ledger.pending():
            for request in session.requests:
                await self.one.ledger.decide(request.decide("approve", principal="ann"))
        if self.one.calls.session.is_open:
            await apply_response(self.one.calls.session.current(), None)


async def live(steps: list[tuple[str, Any]]) -> None:
    async with bench() as one:
        world = World(one)
        for what, how in steps:
            await world.step(what, how)


class Restarted:
    """A session over HTTP, which is opened anew on the same store."""

    def __init__(self, parts: ProxyParts, name: str = "s", *, signer: Ed25519Signer | None = None) -> None:
        self.calls = parts.exchange(name, resumes=True, server="x").calls
        self.ledger, self._signer = self.calls.ledger, signer

    def lists(self, description: str) -> None:
        self.calls.take_list({"tools": [{"name": "pay", "description": description}]})

    async def runs(self) -> bool:
        """Is the one call told to run?"""
        opened = await self.calls.propose(ToolCall(id=uuid.uuid4().hex, name="pay", arguments={}))
        became = await self.calls.next(opened)
        if isinstance(became, Run):
            await self.calls.finish(became.record, text="done", is_error=False)
            self.calls.delivered(opened.id)
        return isinstance(became, Run)

    async def approve(self) -> str:
        """Approve the one call that waits: the rule of its request."""
        ((request,),) = [session.requests for session in await self.ledger.pending()]
        decision = request.decide("approve", principal="ann")
        await self.ledger.decide(decision if self._signer is None else self._signer.sign(decision))
        await apply_response(self.calls.session.current(), None)
        return request.rule


@pytest.mark.anyio
async def test_an_approved_call_does_not_run_by_a_definition_that_the_proxy_forgot() -> None:
    """But by the one that it was approved by, once the client was shown it again; or if it is approved without."""
    parts = ProxyParts(ProxySettings(hold_s=0.1), "memory:", lambda text: None)
    one = Restarted(parts)
    one.lists("good")
    assert not await one.runs()
    await one.approve()
    await one.calls.session.aclose()
    one = Restarted(parts)
    assert not await one.runs()
    assert await one.approve() == "tool_not_listed"
    one.lists("EVIL")  # nothing is pinned yet: it is the first
    assert await one.runs()
    await one.calls.session.aclose()
    await parts.aclose()


@pytest.mark.anyio
async def test_what_other_sessions_were_let_through_by_counts_at_the_next_call() -> None:
    parts = ProxyParts(ProxySettings(hold_s=0.1, effects={"pay": "read"}), "memory:", lambda text: None)
    a, b = Restarted(parts, "a"), Restarted(parts, "b")
    for one in (a, b):
        one.lists("good")
    a.calls.leave((await a.calls.propose(ToolCall(id="c", name="pay", arguments={}))).id)  # given up
    assert await b.runs()
    a.lists("EVIL")
    assert not await a.runs()
    assert await a.approve() == "tool_changed"
    assert await a.runs()
    c = Restarted(parts, "c")
    c.lists("good")
    assert not await c.runs()
    assert await c.approve() == "tool_changed"
    assert await c.runs()
    a.lists("EVIL")
    assert not await a.runs()
    for one in (a, b, c):
        await one.calls.session.aclose()
    await parts.aclose()


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("again", ["good", "EVIL", None])
@pytest.mark.anyio
async def test_an_approved_call_runs_after_a_restart_by_the_definition_that_it_was_approved_by(
    again: str | None, keys: bool, tmp_path: Path
) -> None:
    """With `keys` and no seal for the store the state is not believed after the restart, and the signed approval is."""
    ann = Ed25519Signer.generate()
    approvals = ApprovalSettings(public_keys={"ann": ann.public_key} if keys else {})

    def restarted() -> tuple[ProxyParts, Restarted]:
        settings = ProxySettings(hold_s=0.1, approvals=approvals)
        parts = ProxyParts(settings, f"sqlite:///{tmp_path}/calls.db", lambda text: None)
        return parts, Restarted(parts, signer=ann if keys else None)

    parts, one = restarted()
    one.lists("good")
    assert not await one.runs()
    await one.approve()
    for closed in (one.calls.session, parts):
        await closed.aclose()
    parts, one = restarted()
    if again is not None:
        one.lists(again)
    await one.calls.open()
    await apply_response(one.calls.session.current(), None)
    assert await one.runs() == (again == "good")
    if again == "EVIL":
        assert await one.approve() == "tool_changed"
        assert await one.runs()
    for closed in (one.calls.session, parts):
        await closed.aclose()


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(_steps, max_size=14))
def test_a_call_waits_exactly_where_another_definition_was_shown(steps: list[tuple[str, Any]]) -> None:
    anyio.run(live, steps)


@pytest.mark.slow
@settings(max_examples=examples(250), deadline=None)
@given(st.lists(_steps, max_size=40))
def test_nor_in_longer_lives(steps: list[tuple[str, Any]]) -> None:
    anyio.run(live, steps)
