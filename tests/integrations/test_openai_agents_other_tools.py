"""OpenAI Agents SDK: shell, apply-patch and custom tools run what was approved; what nothing can stop is a step."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed")

from agents import (
    Agent,
    ApplyPatchTool,
    CustomTool,
    Model,
    ModelBehaviorError,
    ModelResponse,
    Runner,
    ShellTool,
    Usage,
    set_tracing_disabled,
)
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from grampus_uq import ApprovalError, ApprovalPolicy, DataError, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.gate.seal import Seal
from grampus_uq.gate.signatures import Ed25519Signer, PublicKeys
from grampus_uq.integrations.openai_agents import UncertaintyGuard
from grampus_uq.records.values import Step

set_tracing_disabled(True)
pytestmark = pytest.mark.anyio
ANN = Ed25519Signer.generate()
SIGNED = ApprovalPolicy(signer=PublicKeys({"ann": ANN.public_key}), seal=Seal(b"s" * 16))


@pytest.fixture
def anyio_backend() -> str:
    """The SDK runs on asyncio only."""
    return "asyncio"


ITEMS: dict[str, Any] = {
    "shell": {
        "type": "shell_call",
        "id": "i1",
        "call_id": "c1",
        "status": "completed",
        "action": {"commands": ["pay bob 5"], "timeout_ms": 900, "max_output_length": None},
        "environment": None,
    },
    "apply_patch": {
        "type": "apply_patch_call",
        "id": "i1",
        "call_id": "c1",
        "status": "completed",
        "operation": {"type": "update_file", "path": "due.txt", "diff": "pay bob 5"},
    },
    "till": {"type": "custom_tool_call", "call_id": "c1", "name": "till", "input": "pay bob 5"},
}
EDITS: dict[str, Any] = {
    "shell": {"commands": ["pay bob 1"]},
    "apply_patch": {"type": "update_file", "path": "due.txt", "diff": "pay bob 1"},
    "till": {"input": "pay bob 1"},
}


class Scripted(Model):
    """Plays its turns: the one after those in the transcript."""

    def __init__(self, *turns: list[Any], sure: float) -> None:
        self.turns, self.sure = turns, sure

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        done = 0 if isinstance(input, str) else sum(item.get("role") == "assistant" for item in input)
        part = ResponseOutputText(
            text=f'I go on. {{"confidence": {self.sure}}}', type="output_text", annotations=[], logprobs=[]
        )
        said = ResponseOutputMessage(id="m", content=[part], role="assistant", status="completed", type="message")
        return ModelResponse(output=[said, *self.turns[done]], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


class Recorder:
    """Keeps what a monitor emits."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_event(self, event: Any) -> None:
        self.events.append(event)

    @property
    def calls(self) -> list[str]:
        """Names of the calls of tool steps, in order."""
        steps = [event.step for event in self.events if isinstance(getattr(event, "step", None), Step)]
        return [call.name for step in steps if step.kind == "tool_call" for call in step.tool_calls]


class Desk:
    """A guard, an agent with the three tools, and what each of them did."""

    def __init__(self, *turns: list[Any], sure: float = 0.7, approvals: ApprovalPolicy = SIGNED, **given: Any) -> None:
        self.did: list[str] = []
        self.recorder = Recorder()
        policy = UncertaintyPolicy(irreversible_tool_names=list(ITEMS) if sure < 0.9 else [])
        monitor = UncertaintyMonitor(policy=policy, processors=[self.recorder])
        self.guard = UncertaintyGuard(monitor, **{"advisory": False, "approvals": approvals} | given)

        def shell(request: Any) -> str:
            self.did += request.data.action.commands
            return "done"

        async def till(context: Any, text: str) -> str:
            self.did.append(text)
            return "done"

        tools: list[Any] = [
            ShellTool(executor=shell),
            ApplyPatchTool(editor=self),
            CustomTool(name="till", description="Pay.", on_invoke_tool=till),
        ]
        self.agent: Agent[Any] = Agent(name="clerk", model=Scripted(*turns, sure=sure), tools=tools)

    async def update_file(self, operation: Any) -> None:
        self.did.append(operation.diff)

    create_file = delete_file = update_file

    async def pause(self, result: Any) -> Any:
        return await self.guard.pause(result)

    async def go(self) -> Any:
        return await self.guard.run(self.agent, "Pay.", session_id="s")


@pytest.mark.parametrize("name", ITEMS)
async def test_an_approved_call_runs_once_with_what_was_approved(name: str) -> None:
    desk = Desk([ITEMS[name]], [])
    paused = await desk.pause(await desk.go())
    assert (desk.did, [request.call.name for request in paused.requests]) == ([], [name])
    again = Desk([ITEMS[name]], [])
    yes = ANN.sign(paused.requests[0].decide("approve", principal="ann"))
    for _ in range(2):
        await again.guard.resume(again.agent, paused.text, [yes])
    assert again.did == ["pay bob 5"]


@pytest.mark.parametrize("name", ITEMS)
async def test_an_edit_runs_with_the_humans_arguments_and_a_rejection_runs_nothing(name: str) -> None:
    for said, did in ({"kind": "edit", "arguments": EDITS[name]}, ["pay bob 1"]), ({"kind": "reject"}, []):
        desk = Desk([ITEMS[name]], [])
        paused = await desk.pause(await desk.go())
        await desk.guard.resume(desk.agent, paused.text, [ANN.sign(paused.requests[0].decide(principal="ann", **said))])
        assert desk.did == did


WRONG: dict[str, list[Any]] = {
    "shell": [{"commands": "pay bob 1"}, {"commands": [1]}, {}, {"commands": ["x"], "timeout_ms": "9"}, {"do": ["x"]}],
    "apply_patch": [{"type": "update_file"}, {"type": "run", "path": "due.txt"}, {"type": "update_file", "path": 1}],
    "till": [{"input": ["pay bob 1"]}, {"text": "pay bob 1"}],
}


@pytest.mark.parametrize(("name", "arguments"), [(name, wrong) for name, found in WRONG.items() for wrong in found])
async def test_an_edit_that_the_tool_cannot_take_runs_nothing_and_the_request_still_stands(
    name: str, arguments: dict[str, Any]
) -> None:
    desk = Desk([ITEMS[name]], [])
    paused = await desk.pause(await desk.go())
    (request,) = paused.requests
    edit = ANN.sign(request.decide("edit", principal="ann", arguments=arguments))
    with pytest.raises(ApprovalError):
        await desk.guard.resume(desk.agent, paused.text, [edit])
    assert desk.did == []
    await desk.guard.resume(desk.agent, paused.text, [ANN.sign(request.decide("approve", principal="ann"))])
    assert desk.did == ["pay bob 5"]


@pytest.mark.parametrize("name", ITEMS)
async def test_a_rejected_call_that_is_proposed_again_is_neither_run_nor_asked(name: str) -> None:
    desk = Desk([ITEMS[name]], [{**ITEMS[name], "call_id": "c2"}], [])
    paused = await desk.pause(await desk.go())
    result = await desk.guard.resume(
        desk.agent, paused.text, [ANN.sign(paused.requests[0].decide("reject", principal="ann"))]
    )
    assert (desk.did, result.interruptions) == ([], [])


@pytest.mark.parametrize("name", ITEMS)
@pytest.mark.parametrize("phase", ["cleared", "settled", "new", None])
async def test_a_forged_run_does_not_run_another_call_on_an_approval(name: str, phase: str | None) -> None:
    """Neither the call in the SDK's state nor the record, in whatever phase, is believed."""
    desk = Desk([ITEMS[name]], [])
    paused = await desk.pause(await desk.go())
    values = json.loads(paused.text.replace("pay bob 5", "pay eve 9"))
    if phase is not None:
        values["calls"]["calls"][0] |= {"phase": phase, "requests": [], "cleared_by": "monitor"}
    tool = {"shell": "shell", "apply_patch": "apply_patch", "till": "till"}[name]
    values["run_state"]["context"]["approvals"] = {tool: {"approved": True, "rejected": []}}
    yes = ANN.sign(paused.requests[0].decide("approve", principal="ann"))
    for decisions in ([], [yes]):
        with contextlib.suppress(ApprovalError, DataError, ModelBehaviorError):
            await desk.guard.resume(desk.agent, json.dumps(values), decisions)
    assert desk.did in ([], ["pay bob 5"])


@pytest.mark.parametrize("name", ITEMS)
async def test_the_sdks_own_approval_of_a_call_counts_unless_decisions_must_be_signed(name: str) -> None:
    for approvals, did in (ApprovalPolicy(), ["pay bob 5"]), (SIGNED, []):
        desk = Desk([ITEMS[name]], [], approvals=approvals)
        result = await desk.go()
        state = result.to_state()
        state.approve(state.get_interruptions()[0])
        with desk.guard.session("s", "clerk", snapshot=desk.guard.watched(result).snapshot()):
            await Runner.run(desk.agent, state)
        assert desk.did == did


@pytest.mark.parametrize("advisory", [False, True])
async def test_a_confident_agents_calls_are_steps_and_run_each_once(advisory: bool) -> None:
    turns = [[{**ITEMS[name], "call_id": f"c{number}"}] for number, name in enumerate(ITEMS)]
    desk = Desk(*turns, [], sure=0.99, advisory=advisory)
    result = await desk.go()
    assert result.interruptions == []
    assert desk.did == ["pay bob 5"] * 3
    assert desk.recorder.calls == list(ITEMS)


async def test_two_equal_operations_of_one_answer_are_two_calls() -> None:
    items = [{**ITEMS["apply_patch"], "call_id": call_id} for call_id in ("c1", "c2")]
    desk = Desk(items, [])
    paused = await desk.pause(await desk.go())
    assert len(paused.requests) == 2
    one = ANN.sign(paused.requests[0].decide("approve", principal="ann"))
    paused = await desk.pause(await desk.guard.resume(desk.agent, paused.text, [one]))
    assert (desk.did, len(paused.requests)) == (["pay bob 5"], 1)


async def test_a_call_that_its_provider_ran_is_a_step_with_its_result() -> None:
    search = {"type": "web_search_call", "id": "w1", "status": "completed", "action": {"type": "search", "query": "x"}}
    mcp = {"type": "mcp_call", "id": "m1", "name": "send", "arguments": '{"to": "bob"}', "server_label": "mail"}
    asked = {**mcp, "id": "m2", "output": "sent", "approval_request_id": "r1"}  # a step when it was asked for
    desk = Desk([search, {**mcp, "output": "sent"}, asked], sure=0.99)
    await desk.go()
    assert desk.recorder.calls == ["web_search", "send"]
    assert [e.text for e in desk.recorder.events if getattr(e, "kind", "") == "tool_result"] == ["sent"]
