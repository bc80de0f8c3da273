"""What the capability for pydantic-ai does beyond the conformance sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic_ai import Agent, UserError
from pydantic_ai.capabilities import BatchModelRequests
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.output import PendingModelResponse
from pydantic_ai.tools import DeferredToolResults, ToolApproved

from grampus_uq import (
    ApprovalError,
    ApprovalPolicy,
    DataError,
    HmacSigner,
    ToolCall,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.integrations.pydantic_ai import UncertaintyCapability, resume, waiting
from grampus_uq.integrations.pydantic_ai_messages import KEY, carried_in, proposed_call
from grampus_uq.testing import SENTENCES, AgentLaboratory, AgentSetup, ScriptedTurn, Sentence, check_agent
from grampus_uq.testing.agent_script import read_ledger
from grampus_uq.wire.responses import read_response
from tests.integrations.pydantic_ai_agent import Guarded, clerk
from tests.integrations.sentences import parameters

PAY = ToolCall(id="pay-1", name="pay", arguments={"to": "bob", "amount": 10})
OTHER = ToolCall(id="pay-2", name="pay", arguments={"to": "ann", "amount": 3})
UNSURE = ScriptedTurn(text="I pay Bob.", calls=(PAY,), confidence=0.7)
DONE = ScriptedTurn(text="Done.")


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLaboratory]:
    with AgentLaboratory("tests.integrations.pydantic_ai_agent:build", tmp_path_factory.mktemp("ai")) as laboratory:
        yield laboratory


@pytest.mark.parametrize("sentence", parameters("pydantic-ai", Guarded.offers))
def test_the_capability_keeps_every_sentence(laboratory: AgentLaboratory, sentence: Sentence) -> None:
    finding = check_agent(laboratory, sentence)
    assert finding.holds is True, finding.detail


@pytest.mark.slow
def test_the_framework_alone_keeps_what_the_page_says_of_it(tmp_path: Path) -> None:
    with AgentLaboratory("tests.integrations.pydantic_ai_agent:build_stock", tmp_path) as laboratory:
        found = {s.name: check_agent(laboratory, s).holds for s in SENTENCES}
    assert {name for name, holds in found.items() if holds} == {
        "approved_elsewhere",
        "decision_given_twice",
        "edited_again",
        "edited_elsewhere",
        "five_at_once",
        "nested_again",
        "nested_same_call",
        "parallel_calls",
        "rejected_elsewhere",
        "same_arguments",
        "streaming",
        "sub_agent",
        "ten_sessions",
        "uncertain_run_paused",
    }
    assert found["other_arguments_refused"] is False  # an approval is found by the call's id


@pytest.fixture
def anyio_backend() -> str:
    """The framework's agents need asyncio."""
    return "asyncio"


class Desk:
    """An agent with a script, and a capability that asks its judge."""

    def __init__(self, folder: Path, *turns: ScriptedTurn, stock: bool = False, **given: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.setup = AgentSetup(folder=folder, script={"Pay.": turns})
        monitor = self.setup.monitor()
        assert monitor is not None
        given = {"advisory": False, "model_client": self.setup.judge()} | given
        self.guard = UncertaintyCapability(monitor, **given)
        self.agent: Agent[None, Any] = clerk(self.setup, stock=stock, capabilities=[self.guard])

    @property
    def paid(self) -> list[Any]:
        lines = read_ledger(self.setup.folder)
        return [line["arguments"]["to"] for line in lines if line["kind"] == "tool" and line["name"] == "pay"]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [line for line in read_ledger(self.setup.folder) if line["kind"] == "step"]


@pytest.mark.anyio
@pytest.mark.parametrize("by", ["capability", "monitor"])
async def test_a_capability_only_advises_when_it_or_its_monitor_is_told_to(by: str, tmp_path: Path) -> None:
    policy = UncertaintyPolicy(irreversible_tool_names=["pay"])
    monitor = UncertaintyMonitor(policy=policy, advisory=by == "monitor")
    desk = Desk(tmp_path, UNSURE, DONE)
    capability = UncertaintyCapability(monitor, advisory=True if by == "capability" else None)
    agent = clerk(desk.setup, capabilities=[capability])
    result = await agent.run("Pay.")
    assert (result.output, desk.paid) == ("Done.", ["bob"])


@pytest.mark.anyio
async def test_what_is_undecided_waits_on(tmp_path: Path) -> None:
    desk = Desk(tmp_path, ScriptedTurn(text="I pay both.", calls=(PAY, OTHER), confidence=0.7), DONE)
    first = await desk.agent.run("Pay.")
    requests = waiting(first)
    assert [request.call for request in requests] == [PAY, OTHER]
    second = await desk.agent.run(**resume(first.all_messages_json(), [requests[1].decide("approve", principal="ann")]))
    assert ([request.call for request in waiting(second)], desk.paid) == ([PAY], ["ann"])
    last = waiting(second)[0].decide("approve", principal="ann")
    third = await desk.agent.run(**resume(second.all_messages_json(), [last]))
    assert (third.output, desk.paid) == ("Done.", ["ann", "bob"])


@pytest.mark.anyio
async def test_a_rejected_call_that_is_proposed_again_is_neither_run_nor_asked(tmp_path: Path) -> None:
    again = PAY.model_copy(update={"id": "pay-9"})
    desk = Desk(tmp_path, UNSURE, ScriptedTurn(text="I try again.", calls=(again,), confidence=0.7), DONE)
    first = await desk.agent.run("Pay.")
    no = waiting(first)[0].decide("reject", principal="ann")
    second = await desk.agent.run(**resume(first.all_messages(), [no]))
    assert (second.output, desk.paid) == ("Done.", [])
    assert b"a human already rejected exactly this call" in second.all_messages_json()


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.anyio
async def test_the_frameworks_own_approval_counts_unless_decisions_must_be_signed(tmp_path: Path, edited: bool) -> None:
    own: Any = ToolApproved(override_args={"to": "eve", "amount": 1}) if edited else True
    payee = "eve" if edited else "bob"
    for name, signer, paid in [("open", None, [payee]), ("signed", HmacSigner(b"k" * 16), [])]:
        desk = Desk(tmp_path / name, UNSURE, DONE, approvals=ApprovalPolicy(signer=signer))
        first = await desk.agent.run("Pay.")
        second = await desk.agent.run(
            message_history=first.all_messages(), deferred_tool_results=DeferredToolResults(approvals={PAY.id: own})
        )
        assert desk.paid == paid
        assert bool(waiting(second)) == (not paid)


@pytest.mark.anyio
async def test_a_decision_that_must_be_signed_is_refused_before_anything_runs(tmp_path: Path) -> None:
    signer = HmacSigner(b"k" * 16)
    desk = Desk(tmp_path, UNSURE, DONE, approvals=ApprovalPolicy(signer=signer))
    first = await desk.agent.run("Pay.")
    unsigned = waiting(first)[0].decide("approve", principal="ann")
    with pytest.raises(ApprovalError, match="not signed"):
        await desk.agent.run(**resume(first.all_messages(), [unsigned]))
    assert desk.paid == []
    second = await desk.agent.run(**resume(first.all_messages(), [signer.sign(unsigned)]))
    assert (second.output, desk.paid) == ("Done.", ["bob"])


@pytest.mark.anyio
async def test_a_tool_that_the_framework_itself_asks_for_is_never_approved_on_the_side(tmp_path: Path) -> None:
    desk = Desk(tmp_path, ScriptedTurn(text="I pay Bob.", calls=(PAY,)), DONE, stock=True)
    first = await desk.agent.run("Pay.")
    assert waiting(first) == ()  # the framework asked, before the capability saw the call
    with pytest.raises(UserError, match="need to be provided for all"):
        await desk.agent.run(**resume(first.all_messages()))
    assert desk.paid == []
    approved = DeferredToolResults(approvals={PAY.id: True})
    second = await desk.agent.run(**resume(first.all_messages(), also=approved))
    assert (second.output, desk.paid) == ("Done.", ["bob"])


@pytest.mark.anyio
async def test_a_conversation_is_one_session_and_one_answer_carries_its_belief(tmp_path: Path) -> None:
    desk = Desk(tmp_path, ScriptedTurn(text="First."), ScriptedTurn(text="Second."))
    first = await desk.agent.run("Pay.")
    given = first.all_messages()
    second = await desk.agent.run("And then?", message_history=given)
    assert [step["index"] for step in desk.steps] == [0, 1]
    assert len({step["session"] for step in desk.steps}) == 1
    answers = [m for m in second.all_messages() if isinstance(m, ModelResponse)]
    assert [KEY in (m.metadata or {}) for m in answers] == [False, True]
    assert KEY in (given[1].metadata or {})  # what the caller holds was not changed


@pytest.mark.anyio
async def test_runs_beside_each_other_do_not_share_a_session(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DONE)
    await desk.agent.run("Pay.")
    await desk.agent.run("Pay.")
    assert len({step["session"] for step in desk.steps}) == 2
    named = Desk(tmp_path / "named", DONE, session_id=lambda ctx: "order-7")
    await named.agent.run("Pay.")
    assert {step["session"] for step in named.steps} == {"order-7"}


@pytest.mark.anyio
async def test_a_request_that_the_provider_is_still_at_work_on_is_no_turn_of_the_model(tmp_path: Path) -> None:
    """A run of batches ends before each answer, and goes on from its history."""
    model = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart('Done. {"confidence": 0.9}')]))
    guard = UncertaintyCapability(UncertaintyMonitor())
    batches = BatchModelRequests(max_requests=1)
    agent = Agent(model, output_type=[str, PendingModelResponse], capabilities=[batches, guard])
    result = await agent.run("Go.")
    assert isinstance(result.output, PendingModelResponse)
    while isinstance(result.output, PendingModelResponse):
        await anyio.sleep(0.01)
        result = await agent.run(message_history=result.all_messages())
    assert (carried_in(result.all_messages()) or {})["turns"] == 1


def test_a_history_without_a_watched_run_is_refused() -> None:
    history = [ModelRequest(parts=[]), ModelResponse(parts=[TextPart("Hi")])]
    with pytest.raises(DataError, match="no run of an UncertaintyCapability"):
        resume(history)
    broken = [ModelResponse(parts=[], metadata={KEY: 3})]
    with pytest.raises(DataError, match="not an object"):
        resume(ModelMessagesTypeAdapter.dump_json(broken))


def test_token_probabilities_are_read_from_the_providers_details() -> None:
    token = {"token": "yes", "logprob": -1.0, "top_logprobs": [{"token": "no", "logprob": math.log(0.5)}]}
    on_part = ModelResponse(parts=[TextPart("yes", provider_details={"logprobs": [token]})])
    on_answer = ModelResponse(parts=[TextPart("yes")], provider_details={"logprobs": [token]})
    for response in (on_part, on_answer):
        (found,) = read_response(response).logprobs.tokens or ()
        assert (found.token, found.logprob, found.top) == ("yes", -1.0, (("no", math.log(0.5)),))
    assert read_response(ModelResponse(parts=[TextPart("yes")])).logprobs.tokens is None


@pytest.mark.parametrize("args", [None, "", "{", "[1]", '{"a": NaN}', {"a": math.nan}, {"a": 1}])
def test_arguments_of_any_kind_have_a_digest(args: Any) -> None:
    assert proposed_call(ToolCallPart("pay", args, tool_call_id="c")).digest()
