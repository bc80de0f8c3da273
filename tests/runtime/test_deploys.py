"""A run outlives the release it was begun with: a waiting call whose tool changed is asked about again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import AgentRunner, FunctionTools, UncertaintyMonitor, open_store, tool
from grampus_uq.errors import ApprovalError, ConfigurationError, SessionError
from grampus_uq.records.vocabulary import AgentStatus, Effect
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.begun_with import BEGUN_WITH, BegunWith, broken, contract
from grampus_uq.runtime.stores.memory import MemoryStore
from tests.proxy.guarded import bench
from tests.runtime.agents import AGENT, SEND_ONE, World, runner, scripted

pytestmark = pytest.mark.anyio


class Listed(FunctionTools):
    """Tools that list other schemas than they have: a deploy changed them, or a server did."""

    changes: Mapping[str, Any] | None

    def schemas(self) -> list[dict[str, Any]]:
        listed = copy.deepcopy(super().schemas())
        if self.changes is None:
            return [schema for schema in listed if schema["function"]["name"] != "send_email"]
        for schema in listed:
            if schema["function"]["name"] == "send_email":
                schema["function"]["parameters"]["properties"] |= self.changes.get("properties", {})
                schema["function"]["parameters"] |= {k: v for k, v in self.changes.items() if k != "properties"}
        return listed


def release(store: MemoryStore, world: World, changes: Mapping[str, Any] | None, **options: Any) -> AgentRunner:
    tools = Listed(*world.tools()._tools.values())
    tools.changes = changes
    return AgentRunner(scripted(SEND_ONE), tools, uncertainty_monitor=UncertaintyMonitor(), store=store, **options)


REQUIRED = {"properties": {"urgent": {"type": "boolean"}}, "required": ["to", "body", "urgent"]}
COMPATIBLE: dict[str, Mapping[str, Any]] = {
    "nothing": {},
    "a new text for readers": {"properties": {"to": {"type": "string", "description": "The receiver", "title": "T"}}},
    "a new optional parameter": {"properties": {"urgent": {"type": "boolean", "default": False}}},
}
INCOMPATIBLE: dict[str, Mapping[str, Any] | None] = {
    "another type": {"properties": {"to": {"type": "integer"}}},
    "another default": {"properties": {"to": {"type": "string", "default": "eve"}}},
    "a new required parameter": REQUIRED,
    "other rules for unknown arguments": {"additionalProperties": True},
    "no such tool": None,
}


@pytest.mark.parametrize("changes", COMPATIBLE.values(), ids=COMPATIBLE)
async def test_a_decision_runs_the_call_when_the_change_of_its_tool_is_compatible(changes: Mapping[str, Any]) -> None:
    store, world = MemoryStore(), World()
    (request,) = (await release(store, world, {}).run(AGENT, "x", session_id="s")).pending
    result = await release(store, world, changes).resume("mailer", "s", request.decide("approve", principal="ann"))
    assert (result.status, world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")])
    assert BEGUN_WITH not in result.metadata


@pytest.mark.parametrize("changes", INCOMPATIBLE.values(), ids=INCOMPATIBLE)
@pytest.mark.parametrize("stored", [True, False], ids=["decision stored before the deploy", "decision given after it"])
async def test_a_waiting_call_is_asked_again_when_its_tool_changed_and_the_audit_says_why(
    changes: Mapping[str, Any] | None, stored: bool
) -> None:
    store, world = MemoryStore(), World()
    (request,) = (await release(store, world, {}).run(AGENT, "x", session_id="s")).pending
    decision, later = request.decide("approve", principal="ann"), release(store, world, changes)
    if stored:
        await later.ledger.decide(decision)
        (again,) = (await later.resume("mailer", "s")).pending
    else:
        with pytest.raises(ApprovalError, match="stale"):
            await later.resume("mailer", "s", decision)
        ((again,),) = [session.requests for session in await later.list_pending_sessions()]
    assert world.sent == []
    assert again.id != request.id
    assert ("no tool of this name" if changes is None else "the schema of its tool changed") in again.reason
    (asked,) = [e["data"] for e in await AuditLog(store, "mailer", "s").entries() if e["what"] == "asked_again"]
    assert asked["why"] in again.reason
    result = await later.resume(
        "mailer", "s", again.decide("approve", principal="ann")
    )  # under the new schema it holds
    assert (result.status, world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")])


async def test_a_tool_that_comes_back_after_it_was_gone_is_asked_about_again() -> None:
    store, world = MemoryStore(), World()
    await release(store, world, {}).run(AGENT, "x", session_id="s")
    (gone,) = (await release(store, world, None).resume("mailer", "s")).pending
    back = release(store, world, {})
    await back.ledger.decide(gone.decide("approve", principal="ann"))
    (again,) = (await back.resume("mailer", "s")).pending
    assert world.sent == []
    assert "schema of its tool changed" in again.reason


async def test_a_strict_runner_refuses_and_leaves_the_session_to_a_worker_of_the_old_release() -> None:
    store, world = MemoryStore(), World()
    old = release(store, world, {})
    (request,) = (await old.run(AGENT, "x", session_id="s")).pending
    before = await store.get("session", "mailer/s")
    decision = request.decide("approve", principal="ann")
    with pytest.raises(SessionError, match=r"not resumed.*'send_email'.*'urgent'|not resumed.*'send_email'.*whole"):
        await release(store, world, REQUIRED, changed_tools="refuse").resume("mailer", "s", decision)
    after = await store.get("session", "mailer/s")
    assert before is not None
    assert after is not None
    assert (after.version, after.body) == (before.version, before.body)
    assert (await old.resume("mailer", "s", decision)).status is AgentStatus.COMPLETED
    assert world.sent == [("bob", "hi")]


async def test_a_runner_that_is_told_so_takes_no_notice_of_changed_tools() -> None:
    store, world = MemoryStore(), World()
    (request,) = (await release(store, world, {}).run(AGENT, "x", session_id="s")).pending
    decision = request.decide("approve", principal="ann")
    result = await release(store, world, REQUIRED, changed_tools="run").resume("mailer", "s", decision)
    assert (result.status, world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")])
    with pytest.raises(ConfigurationError, match="changed_tools"):
        release(store, world, {}, changed_tools="maybe")


async def test_a_rejection_of_a_changed_call_and_guidance_run_nothing() -> None:
    for answer in ("reject", "use the phone"):
        store, world = MemoryStore(), World()
        await release(store, world, {}).run(AGENT, "x", session_id="s")
        later = release(store, world, REQUIRED)
        (again,) = (await later.resume("mailer", "s")).pending
        given = again.decide("reject", principal="ann") if answer == "reject" else answer
        assert (await later.resume("mailer", "s", given)).status is AgentStatus.COMPLETED
        assert world.sent == []


def _deep(levels: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": _deep(levels - 1)}} if levels else {}


@pytest.mark.parametrize(
    "schema",
    [_deep(300), {"a\ud83d": {"description": "\ud83d"}}, {"a": {"title": "t" * 30_000}}],
    ids=["deep", "half", "long"],
)
async def test_whatever_schema_a_tool_has_its_call_waits_in_the_runner_and_in_the_proxy(
    schema: dict[str, Any], tmp_path: Path
) -> None:
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    paused = await release(store, World(), {"properties": schema}).run(AGENT, "Mail Bob", session_id="s")
    assert paused.status == AgentStatus.WAITING_FOR_HUMAN
    async with bench(store) as proxy:
        await proxy.lists(delete_note={"inputSchema": {"type": "object", "properties": schema}})
        await proxy.call(1, path="a")
        with anyio.fail_after(60):
            while len(waiting := await proxy.ledger.pending()) < 2:  # noqa: ASYNC110 (nothing tells it)
                await anyio.sleep(0.01)
        assert {asked.requests[0].call.name for asked in waiting} == {"send_email", "delete_note"}
    await store.aclose()


async def test_the_audit_tells_what_a_run_was_begun_with_and_what_changed_when_it_went_on() -> None:
    store, world = MemoryStore(), World()
    (request,) = (await release(store, world, {}).run(AGENT, "x", session_id="s")).pending
    later = release(store, world, COMPATIBLE["a new optional parameter"])
    renamed = AGENT.model_copy(update={"system_prompt": "You write letters."})
    await later.resume("mailer", "s", request.decide("approve", principal="ann"), agent_def=renamed)
    entries = {entry["what"]: entry["data"] for entry in await AuditLog(store, "mailer", "s").entries()}
    assert sorted(entries["begun"]["tools"]) == ["search", "send_email"]
    assert entries["begun"]["profile"] is not None
    assert entries["versions_changed"]["what"] == ["the agent's definition changed", "the tool 'send_email' changed"]


async def test_a_run_of_a_release_that_kept_nothing_goes_on() -> None:
    store, world = MemoryStore(), World()
    one = runner(world, store=store)
    result = await one.run(AGENT, "x", session_id="s", metadata={"mine": 1})
    loaded, version = await one.ledger.known("mailer", "s")
    kept = BegunWith.read(loaded)
    assert kept is not None
    assert kept.open["send_email"] == contract(one._schema_of("send_email"))
    for broken_form in (None, 7, {"open": 3}, {"tools": {"x": None}}):
        loaded.metadata[BEGUN_WITH] = broken_form
        assert BegunWith.read(loaded) is None
    del loaded.metadata[BEGUN_WITH]
    await one.ledger.save(loaded, version)
    result = await one.resume("mailer", "s", result.pending[0].decide("approve", principal="ann"))
    assert (result.status, result.metadata["mine"]) == (AgentStatus.COMPLETED, 1)


async def test_a_changed_tool_that_only_reads_is_not_asked_about() -> None:
    store, world = MemoryStore(), World()

    @tool(effect=Effect.READ)
    def search(query: str, most: int) -> str:
        return world.tools()._tools["search"].function(query)

    (request,) = (await runner(world, store=store).run(AGENT, "x", session_id="s")).pending
    tools = FunctionTools(search, world.tools()._tools["send_email"])
    later = AgentRunner(scripted(SEND_ONE), tools, uncertainty_monitor=UncertaintyMonitor(), store=store)
    result = await later.resume("mailer", "s", request.decide("approve", principal="ann"))
    assert (result.status, world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")])


# -- the law of compatible schemas ------------------------------------------------------------------------------------

NAMES = st.sampled_from(["to", "title", "description", "default", "a", "properties", "required", "enum"])
LEAF = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer"])},
    optional={"default": st.sampled_from([0, "x", {"title": 1}]), "enum": st.sampled_from([[1], ["title"]])},
)
TREE = st.recursive(
    LEAF,
    lambda inner: st.builds(
        lambda known: {"type": "object", "properties": known}, st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)
TOOL = st.builds(
    lambda known, wanted: {"type": "object", "properties": known, "required": sorted(set(wanted) & set(known))},
    st.dictionaries(NAMES, TREE, max_size=4),
    st.lists(NAMES),
)


def annotated(schema: Any, *, names: bool = False) -> Any:
    """The schema with a text for readers wherever one may stand."""
    if not isinstance(schema, dict):
        return schema
    inner = {k: v if k in ("default", "enum") and not names else annotated(v, names=k == "properties" and not names)
             for k, v in schema.items()}  # fmt: skip
    return inner if names else inner | {"title": "T", "description": "D", "examples": [1]}


@given(TOOL, st.dictionaries(NAMES, TREE, max_size=3))
def test_texts_and_optional_parameters_are_compatible_whatever_the_schema(
    schema: dict[str, Any], new: dict[str, Any]
) -> None:
    wider = annotated({**schema, "properties": new | schema["properties"]})
    assert broken(contract(schema), contract(wider)) == []


@given(TOOL, TOOL)
def test_whatever_else_changes_is_not_compatible(old: dict[str, Any], new: dict[str, Any]) -> None:
    same = all(new["properties"].get(name) == value for name, value in old["properties"].items())
    same = same and new["required"] == old["required"] and not set(old["properties"]) - set(new["properties"])
    assert (broken(contract(old), contract(new)) == []) is same


def test_a_schema_that_nobody_can_read_is_compatible_with_nothing_but_its_like() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"properties": {"a": deep}}
    good = {"properties": {"a": {"type": "string"}}}
    assert broken(contract(deep), contract(deep)) == []
    assert broken(contract(good), contract(deep))
    assert broken(contract(deep), contract(good))
    for nothing in (None, [], "x", {"properties": 3, "required": 3}, {"properties": {"a": None}}):
        assert broken(contract(nothing), contract(nothing)) == []
