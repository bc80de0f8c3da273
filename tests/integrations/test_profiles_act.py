"""A profile that was fitted on an adapter's recordings acts in the same agent, and in no other."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    ExecutionResult,
    FunctionTools,
    Message,
    Profile,
    Role,
    ToolCall,
    UncertaintyMonitor,
    tool,
)
from grampus_uq.integrations.langchain import UncertaintyMiddleware
from grampus_uq.integrations.langgraph import uncertainty_guard
from grampus_uq.integrations.openai_agents import UncertaintyGuard
from grampus_uq.integrations.pydantic_ai import UncertaintyCapability
from grampus_uq.recording import FittedFor, ProfileArtifact, RecordingProcessor, read
from grampus_uq.recording.runs import beginnings, runs
from grampus_uq.records.events import ObservationEvent, SessionStarted, StepEvent
from grampus_uq.runtime import MemoryStore
from grampus_uq.stats import FusedReading, LogisticFusion
from grampus_uq.testing import ScriptedModel, answer

SAID = 'I look it up. {"confidence": 0.9}'
FITTED = Profile(
    calibration=LogisticFusion(readings={"verbalized": FusedReading(mean=0.7, sd=0.2, slope=1.1)}, intercept=0.4)
)


Run = Callable[..., Coroutine[Any, Any, None]]


@dataclass(frozen=True, kw_only=True)
class Made:
    """What an agent is made with; `answer`: the form of its last answer; `later`: all that of its second turn."""

    model: str = "m-1"
    provider: str = "openai"
    prompt: str | None = "You keep the books."
    tools: Sequence[str] = ("look_up", "pay")
    words: str = "Look something up."
    answer: type[BaseModel] | None = None
    later: Made | None = None


class Sure(BaseModel):
    confidence: float


def says(made: Made, *, last: bool) -> str:
    """An answer of the model, in the form that it must have."""
    return SAID if made.answer is None or not last else '{"confidence": 0.9}'


def functions(made: Made) -> list[Callable[[str], str]]:
    found: list[Callable[[str], str]] = []
    for name in made.tools:

        def tool(what: str) -> str:
            return f"{what} is here"

        tool.__name__, tool.__doc__ = name, made.words
        found.append(tool)
    return found


class Chat(BaseChatModel):
    """Looks something up, then answers. Binds tools as models of providers do, or keeps them to itself (`hides`)."""

    model: str
    made: Made = Made()
    hides: bool = False

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _get_ls_params(self, *given: Any, **named: Any) -> Any:
        return {**super()._get_ls_params(*given, **named), "ls_provider": self.made.provider}

    def bind_tools(self, tools: Any, **given: Any) -> Any:
        form = {name: given[name] for name in ("response_format",) if name in given}
        return self if self.hides else self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **form)

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        done = any(message.type == "tool" for message in messages)
        calls = [] if done else [{"name": "look_up", "args": {"what": "x"}, "id": "c1"}]
        message = AIMessage(says(self.made, last=done), tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


def chain(
    made: Made,
    monitor: UncertaintyMonitor,
    *,
    hides: bool = False,
    inner: Sequence[AgentMiddleware[Any, Any, Any]] = (),
    checkpointer: Any = None,
    **settings: Any,
) -> Any:
    tools = [StructuredTool.from_function(one) for one in functions(made)]
    guard = UncertaintyMiddleware(monitor, **settings)
    middleware = [guard, *inner]
    return create_agent(
        Chat(model=made.model, made=made, hides=hides),
        tools,
        system_prompt=made.prompt,
        middleware=middleware,
        checkpointer=checkpointer or InMemorySaver(),
        response_format=None if made.answer is None else ProviderStrategy(made.answer),
    )


async def langchain(
    made: Made, monitor: UncertaintyMonitor, session: str, *, hides: bool = False, **settings: Any
) -> None:
    class Later(AgentMiddleware[Any, Any, Any]):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            if made.later is not None and len(request.messages) > 1:
                request = request.override(system_message=SystemMessage(made.later.prompt or ""))
            return await handler(request)

    app = chain(made, monitor, hides=hides, inner=[Later()], **settings)
    await app.ainvoke({"messages": [("user", "Go.")]}, {"configurable": {"thread_id": session}})


async def langgraph(made: Made, monitor: UncertaintyMonitor, session: str, **settings: Any) -> None:
    tools = [StructuredTool.from_function(one) for one in functions(made)]

    async def agent(state: Any) -> Any:
        now = made.later if made.later is not None and len(state["messages"]) > 1 else made
        form = {} if now.answer is None else {"response_format": now.answer.model_json_schema()}
        model = Chat(model=now.model, made=now).bind_tools(tools, **form)
        prompt = [] if now.prompt is None else [SystemMessage(now.prompt)]
        return {"messages": [await model.ainvoke([*prompt, *state["messages"]])]}

    await guarded_graph(agent, made, monitor, session, **settings)


async def guarded_graph(agent: Any, made: Made, monitor: UncertaintyMonitor, session: str, **settings: Any) -> None:
    tools = [StructuredTool.from_function(one) for one in functions(made)]
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    uncertainty_guard(monitor, **settings).attach(builder, after="agent", tools=tools)
    app: Any = builder.compile(checkpointer=InMemorySaver())
    await app.ainvoke({"messages": [("user", "Go.")]}, {"configurable": {"thread_id": session}})


async def openai_agents(made: Made, monitor: UncertaintyMonitor, session: str, **settings: Any) -> None:
    from agents import Agent, FunctionTool, Model, ModelProvider, ModelResponse, RunConfig, Usage, function_tool
    from agents import MultiProvider as Providers
    from agents.models.multi_provider import MultiProviderMap
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    class Scripted(Model):
        model = made.model

        async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
            done = not isinstance(input, str) and any(item.get("type") == "function_call_output" for item in input)
            text = ResponseOutputText(text=says(made, last=done), type="output_text", annotations=[], logprobs=[])
            said = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
            call = ResponseFunctionToolCall(
                call_id="c1", name="look_up", arguments=json.dumps({"what": "x"}), type="function_call"
            )
            before = [call] if made.answer is not None else [said, call]  # a text would be the answer
            return ModelResponse(output=[said] if done else before, usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Model:
            return Scripted()

    known = MultiProviderMap()
    known.add_provider(made.provider, Provider())
    config = RunConfig(model_provider=Providers(provider_map=known))
    turns = []

    def instructions(context: Any, agent: Any) -> str:
        turns.append(agent)
        return (made.later if made.later is not None and len(turns) > 1 else made).prompt or ""

    tools: list[FunctionTool] = [function_tool(one) for one in functions(made)]
    agent = Agent[Any](
        name="clerk",
        instructions=instructions,
        model=f"{made.provider}/{made.model}",
        tools=[*tools],
        output_type=made.answer,
    )
    await UncertaintyGuard(monitor, **settings).run(agent, "Go.", session_id=session, run_config=config)


def up(messages: Any) -> bool:
    """A model that never fails, and has no other to stand in for it."""
    return False


async def pydantic_ai(
    made: Made,
    monitor: UncertaintyMonitor,
    session: str,
    *,
    others: Sequence[Any] = (),
    down: Callable[[Any], bool] = up,
    **settings: Any,
) -> None:
    from pydantic_ai import Agent, ModelAPIError, NativeOutput
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.fallback import FallbackModel
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.profiles import ModelProfile

    class Provided(FunctionModel):
        system = made.provider

    def respond(messages: Any, info: Any) -> ModelResponse:
        done = any(isinstance(message, ModelResponse) for message in messages)
        call = ToolCallPart("look_up", {"what": "x"}, tool_call_id="c1")
        text = TextPart(says(made, last=done))
        return ModelResponse(parts=[text] if done else [text, call])

    def fails(messages: Any, info: Any) -> ModelResponse:
        if down(messages):
            raise ModelAPIError(made.model, "down")
        return respond(messages, info)

    profile = ModelProfile(supports_json_schema_output=True)
    guard = UncertaintyCapability(monitor, session_id=lambda ctx: session, **settings)
    first, spare = (
        Provided(one, model_name=name, profile=profile) for one, name in ((fails, made.model), (respond, "m-9"))
    )
    agent: Agent[None, Any] = Agent(
        first if down is up else FallbackModel(first, spare),
        capabilities=[*others, guard],
        output_type=str if made.answer is None else NativeOutput(made.answer),
    )
    turns = []

    @agent.instructions
    def standing() -> str:
        turns.append(1)
        return (made.later if made.later is not None and len(turns) > 1 else made).prompt or ""

    for one in functions(made):
        agent.tool_plain(one)
    await agent.run("Go.")


ADAPTERS: dict[str, Run] = {
    "langchain": langchain,
    "langgraph": langgraph,
    "openai_agents": openai_agents,
    "pydantic_ai": pydantic_ai,
}
adapters = pytest.mark.parametrize("adapter", [pytest.param(run, id=name) for name, run in ADAPTERS.items()])


def recorded(run: Run, folder: Path, made: Made, **settings: Any) -> FittedFor:
    """What a fit on two recorded runs of this agent would say that it was fitted for."""
    with RecordingProcessor(folder) as recorder:
        monitor = UncertaintyMonitor(processors=[recorder])
        for session in ("one", "two"):
            asyncio.run(run(made, monitor, session, **settings))
    starts = list(beginnings(folder))
    assert len(starts) >= 2
    found = FittedFor.shared((start.model, start.prompt_hash, start.tools_hash) for start in starts)
    assert found == FittedFor.shared(run.made_with for run in runs(folder) if run.made_with is not None)  # a fit's way
    return found


def acted(run: Run, folder: Path, fitted_for: FittedFor, made: Made, **settings: Any) -> list[bool]:
    """Of each answer of the model: whether the profile acted on it, by which it has a chance of success."""
    with RecordingProcessor(folder) as recorder:
        artifact = ProfileArtifact(profile=FITTED, fitted_for=fitted_for)
        asyncio.run(run(made, UncertaintyMonitor(profile=artifact, processors=[recorder]), "live", **settings))
    (path,) = folder.glob("*.jsonl")
    events = list(read(path))
    says = [event.metadata["profile_status"] for event in events if isinstance(event, SessionStarted)]
    chances = [
        event.assessment.p_success is not None
        for event in events
        if isinstance(event, StepEvent) and event.step.kind != "tool_call"
    ]
    assert len(chances) == 2
    assert all((say == "active") is acts for say, acts in zip(says, chances, strict=False))
    return chances


@adapters
def test_a_profile_fitted_on_an_adapters_runs_acts_in_the_same_agent(adapter: Any, tmp_path: Path) -> None:
    fitted_for = recorded(adapter, tmp_path / "runs", Made())
    assert None not in fitted_for.model_dump().values()
    assert acted(adapter, tmp_path / "live", fitted_for, Made()) == [True, True]


@adapters
@pytest.mark.parametrize(
    "other",
    [
        Made(prompt="You keep nothing."),
        Made(tools=("look_up",)),
        Made(words="Look it up twice."),
        Made(model="m-2"),
        Made(provider="groq"),
        Made(answer=Sure),
    ],
    ids=["prompt", "fewer tools", "another description", "model", "another provider's model", "form of the answer"],
)
def test_it_acts_in_no_agent_with_another_model_prompt_or_tools(adapter: Any, other: Made, tmp_path: Path) -> None:
    fitted_for = recorded(adapter, tmp_path / "runs", Made())
    assert acted(adapter, tmp_path / "live", fitted_for, other) == [False, False]


@adapters
def test_it_acts_no_more_once_the_prompt_changes_within_a_run(adapter: Any, tmp_path: Path) -> None:
    fitted_for = recorded(adapter, tmp_path / "runs", Made())
    changing = Made(later=Made(prompt="You keep nothing."))
    assert acted(adapter, tmp_path / "live", fitted_for, changing) == [True, False]


@adapters
def test_runs_whose_prompt_changes_on_the_way_have_none_in_common(adapter: Any, tmp_path: Path) -> None:
    fitted_for = recorded(adapter, tmp_path / "runs", Made(later=Made(prompt="You keep nothing.")))
    assert fitted_for.prompt_hash is None
    assert None not in (fitted_for.model, fitted_for.tools_hash)


@adapters
def test_a_name_for_a_prompt_that_varies_stands_in_place_of_its_hash(adapter: Any, tmp_path: Path) -> None:
    """A date in the prompt makes each run's another one; its owner says that they are of one kind."""
    changing = Made(prompt="Today is Monday.", later=Made(prompt="Today is Tuesday."))
    fitted_for = recorded(adapter, tmp_path / "runs", changing, prompt_hash="v12")
    assert fitted_for.prompt_hash == "v12"
    tuesday = replace(changing, prompt="Today is Tuesday.", later=None)
    assert acted(adapter, tmp_path / "live", fitted_for, tuesday, prompt_hash="v12") == [True, True]
    assert acted(adapter, tmp_path / "other", fitted_for, tuesday, prompt_hash="v13") == [False, False]


def test_a_model_that_keeps_its_tools_to_itself_has_those_of_the_agent(tmp_path: Path) -> None:
    """What it was sent says nothing of tools then: the agent's own count."""
    hiding = functools.partial(langchain, hides=True)
    fitted_for = recorded(hiding, tmp_path / "runs", Made())
    assert acted(hiding, tmp_path / "same", fitted_for, Made()) == [True, True]
    assert acted(hiding, tmp_path / "other", fitted_for, Made(words="Look it up twice.")) == [False, False]


def test_nothing_acts_on_a_model_that_is_not_asked_through_the_framework(tmp_path: Path) -> None:
    """A node that calls a client of its own: nobody saw the prompt, until its owner names it."""

    async def own_client(made: Made, monitor: UncertaintyMonitor, session: str, **settings: Any) -> None:
        def agent(state: Any) -> Any:
            done = any(message.type == "tool" for message in state["messages"])
            calls: Any = [] if done else [{"name": "look_up", "args": {"what": "x"}, "id": "c1"}]
            named = {"model_name": made.model, "model_provider": made.provider}
            return {"messages": [AIMessage(SAID, tool_calls=calls, response_metadata=named)]}

        await guarded_graph(agent, made, monitor, session, **settings)

    unknown = recorded(own_client, tmp_path / "runs", Made())
    assert unknown.prompt_hash is None
    assert unknown.model == "m-1"
    assert unknown.tools_hash is not None
    claimed = unknown.model_copy(update={"prompt_hash": "v12"})
    assert acted(own_client, tmp_path / "unnamed", claimed, Made()) == [False, False]
    assert acted(own_client, tmp_path / "named", claimed, Made(), prompt_hash="v12") == [True, True]
    other = Made(provider="groq")
    assert acted(own_client, tmp_path / "other", claimed, other, prompt_hash="v12") == [False, False]


def test_what_a_guarded_agent_within_the_models_node_is_asked_with_counts_too(tmp_path: Path) -> None:
    async def supervisor(made: Made, monitor: UncertaintyMonitor, session: str) -> None:
        async def agent(state: Any) -> Any:
            done = any(message.type == "tool" for message in state["messages"])
            await Chat(model=made.model).ainvoke([SystemMessage("You route."), *state["messages"]])
            inner = chain(made, UncertaintyMonitor())
            found = await inner.ainvoke({"messages": [("user", "Go.")]}, {"configurable": {"thread_id": "inner"}})
            calls: Any = [] if done else [{"name": "look_up", "args": {"what": "x"}, "id": "c1"}]
            return {"messages": [AIMessage(found["messages"][-1].content, tool_calls=calls)]}

        await guarded_graph(agent, made, monitor, session)

    fitted_for = recorded(supervisor, tmp_path / "runs", Made())
    assert acted(supervisor, tmp_path / "same", fitted_for, Made()) == [True, True]
    assert acted(supervisor, tmp_path / "other", fitted_for, Made(prompt="You keep nothing.")) == [False, False]


def test_a_thread_that_another_process_takes_up_keeps_its_profile_while_nothing_changed(tmp_path: Path) -> None:
    """The facts are in the checkpoint; where the agent changed meanwhile, the profile acts no more."""
    fitted_for = recorded(langchain, tmp_path / "runs", Made())
    artifact = ProfileArtifact(profile=FITTED, fitted_for=fitted_for)
    for made, acts in ((Made(), True), (Made(prompt="You keep nothing."), False)):
        kept, thread = InMemorySaver(), {"configurable": {"thread_id": "live"}}
        folder = tmp_path / f"then-{acts}"
        with RecordingProcessor(folder) as recorder:
            for one in (Made(), made):  # each with a monitor of its own, as in two processes
                monitor = UncertaintyMonitor(profile=artifact, processors=[recorder])
                chain(one, monitor, checkpointer=kept).invoke({"messages": [("user", "Go.")]}, thread)
        (run,) = runs(folder)
        chances = [event.assessment.p_success for event in run.steps if event.step.kind != "tool_call"]
        assert [chance is not None for chance in chances] == [True, True, acts]


def test_a_model_that_another_capability_puts_in_place_is_another(tmp_path: Path) -> None:
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.models.function import FunctionModel

    class Swapping(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            kept = request_context.model
            swapped = FunctionModel(kept.function, model_name="m-2")
            return replace(request_context, model=swapped)

    fitted_for = recorded(pydantic_ai, tmp_path / "runs", Made())
    beside = functools.partial(pydantic_ai, others=[Swapping()])
    assert acted(beside, tmp_path / "live", fitted_for, Made()) == [False, False]


def test_a_model_that_stands_in_for_one_that_failed_is_another(tmp_path: Path) -> None:
    fitted_for = recorded(functools.partial(pydantic_ai, down=lambda messages: False), tmp_path / "runs", Made())
    failing = functools.partial(pydantic_ai, down=lambda messages: len(messages) > 1)
    assert acted(failing, tmp_path / "live", fitted_for, Made()) == [True, False]


async def runner(
    made: Made,
    monitor: UncertaintyMonitor,
    session: str,
    store: MemoryStore | None = None,
    before: Sequence[Message] = (),
) -> ExecutionResult:
    turns = []

    class Tools:
        """Those of the turn."""

        @property
        def now(self) -> FunctionTools:
            then = made.later if made.later is not None and turns else made
            return FunctionTools(*(tool(effect="read")(one) for one in functions(then)))

        def schemas(self) -> list[dict[str, Any]]:
            return self.now.schemas()

        async def execute(self, *call: Any, **more: Any) -> Any:
            return await self.now.execute(*call, **more)

    def reply(messages: Any, options: Any) -> Any:
        done = messages[-1].role == "tool"
        turns.append(done)
        return answer(SAID, tool_calls=[] if done else [ToolCall(id="c1", name="look_up", arguments={"what": "x"})])

    agent = AgentDefinition(name="clerk", model=made.model, system_prompt=made.prompt or "")
    one = AgentRunner(ScriptedModel(reply), Tools(), uncertainty_monitor=monitor, store=store or MemoryStore())
    return await one.run(agent, "Go.", session_id=session, messages=before)


def test_system_messages_before_the_users_are_part_of_the_runners_prompt(tmp_path: Path) -> None:
    told = functools.partial(runner, before=[Message(role=Role.SYSTEM, content="Pay nobody.")])
    for prompt in ("You keep the books.", None):
        fitted_for = recorded(told, tmp_path / f"runs {prompt}", Made(prompt=prompt))
        assert acted(told, tmp_path / f"same {prompt}", fitted_for, Made(prompt=prompt)) == [True, True]
        assert acted(runner, tmp_path / f"live {prompt}", fitted_for, Made(prompt=prompt)) == [False, False]


def test_a_profile_acts_no_more_in_a_run_whose_tools_change_on_the_way(tmp_path: Path) -> None:
    fitted_for = recorded(runner, tmp_path / "runs", Made())
    assert acted(runner, tmp_path / "same", fitted_for, Made()) == [True, True]
    assert acted(runner, tmp_path / "live", fitted_for, Made(later=Made(tools=("look_up",)))) == [True, False]


@pytest.mark.parametrize("adapter", [pytest.param(run, id=name) for name, run in [*ADAPTERS.items(), ("own", runner)]])
def test_a_recording_holds_once_and_before_the_answer_what_the_user_said(adapter: Any, tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path, content="full") as recorder:
        asyncio.run(adapter(Made(), UncertaintyMonitor(processors=[recorder]), "s"))
    (run,) = runs(tmp_path)
    first = next(event for event in run.events if isinstance(event, ObservationEvent | StepEvent))
    said = [event for event in run.observations if event.kind == "user"]
    assert [event.text for event in said] == ["Go."]
    assert first == said[0]


def test_a_tools_description_depends_on_no_object_of_the_process() -> None:
    """An editor of files is one; a hash of its address would fit no other process."""
    from agents import ApplyPatchTool, WebSearchTool

    from grampus_uq.integrations.openai_agents_model import tool_schema

    one, another = (ApplyPatchTool(editor=cast(Any, object())) for _ in range(2))
    assert tool_schema(one) == tool_schema(another)
    assert tool_schema(WebSearchTool()) != tool_schema(WebSearchTool(search_context_size="high"))


def test_tools_that_changed_in_place_are_noted_as_they_were_at_each_call() -> None:
    from grampus_uq.integrations.langchain_asked import Asked

    sent: list[dict[str, Any]] = [{"type": "function", "function": {"name": "pay", "description": ""}}]
    noted = []
    for said in ("Pays.", "Refunds.", "Refunds.", "Pays."):
        sent[0]["function"]["description"] = said
        with Asked() as asked:
            asked.on_chat_model_start({}, [[]], invocation_params={"tools": sent})
        noted += [tool["function"]["description"] for tool in asked.facts(())["offered"]]
    assert noted == ["Pays.", "Refunds.", "Refunds.", "Pays."]


@pytest.mark.parametrize("named", [True, False])
def test_a_model_without_a_name_is_not_taken_for_the_one_that_the_agent_names(named: bool, tmp_path: Path) -> None:
    """The name by which a provider was asked counts; a model that the run's configuration brings has none."""
    from agents import Agent, Model, ModelProvider, ModelResponse, RunConfig, Usage
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    class Nameless(Model):
        async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
            text = ResponseOutputText(text=SAID, type="output_text", annotations=[], logprobs=[])
            said = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
            return ModelResponse(output=[said], usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Model:
            return Nameless()

    config = RunConfig(model_provider=Provider()) if named else RunConfig(model=Nameless())
    agent = Agent[Any](name="clerk", instructions="You keep the books.", model="m-1")
    with RecordingProcessor(tmp_path) as recorder:
        guard = UncertaintyGuard(UncertaintyMonitor(processors=[recorder]))
        asyncio.run(guard.run(agent, "Go.", session_id="s", run_config=config))
    (start,) = beginnings(tmp_path)
    assert start.model == ("m-1" if named else "")
