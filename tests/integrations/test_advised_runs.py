"""A run that is only advised on is the run without a guard, whatever its tools take, give and raise."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from agents import Agent, AgentOutputSchemaBase, FunctionTool, Model, ModelResponse, Runner, Usage
from openai.types.responses import ResponseFunctionToolCall
from pydantic import AfterValidator, BaseModel, Field
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ToolOutput
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelResponse as Answer
from pydantic_ai.messages import TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.openai_agents import UncertaintyGuard
from grampus_uq.integrations.pydantic_ai import UncertaintyCapability
from grampus_uq.testing import ScriptedTurn
from tests.integrations.agents_sdk import output

pytestmark = pytest.mark.anyio
MONITOR = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["act"]), advisory=True)


@pytest.fixture
def anyio_backend() -> str:
    """The frameworks' agents need asyncio."""
    return "asyncio"


class Unwritable(Exception):  # noqa: N818 (it stands for a value, too)
    """Has no text."""

    def __str__(self) -> str:
        raise KeyError("text")

    __repr__ = __str__


@dataclass(repr=False)
class Row:
    """Can be made into JSON, and has no text."""

    a: int = 1
    __repr__ = Unwritable.__repr__


class Circle:
    """Holds itself."""

    def __init__(self, value: Any) -> None:
        self.value, self.me = value, self


RESULTS: dict[str, Callable[[], Any]] = {"a row": Row, "a large number": lambda: 10**5_000, "text": lambda: "done"}


async def told(run: Callable[[], Any]) -> str:
    """What came of a run: its output, or the kind of what it raised."""
    try:
        result = await run()
    except Exception as error:  # noqa: BLE001 (whatever it is)
        return type(error).__name__
    found: Any = result.output if hasattr(result, "output") else result.final_output
    return found if isinstance(found, str) else type(found).__name__


# -- pydantic-ai ------------------------------------------------------------------------------------------------------


@dataclass
class Asked:
    """What a model and its tools were given, in order."""

    given: list[Any] = field(default_factory=list)

    def model(self, *answers: Any) -> FunctionModel:
        def respond(messages: list[Any], info: Any) -> Answer:
            said = [part for m in messages for part in m.parts]
            self.given.append([getattr(part, "content", None) is not None and part.part_kind for part in said])
            return Answer(parts=[answers[sum(isinstance(m, Answer) for m in messages)]])

        return FunctionModel(respond, model_name="fake")

    async def run(self, agent: PydanticAgent[None, Any]) -> list[Any]:
        self.given.append(await told(lambda: agent.run("Act.")))
        return self.given


class Nothing(AbstractCapability[Any]):
    """As any capability, it makes the framework call the hooks."""


CALL = ToolCallPart("act", json.dumps({"x": 1}), tool_call_id="c1")


def guards() -> tuple[Any, Any]:
    return Nothing(), UncertaintyCapability(MONITOR)


@pytest.mark.parametrize("name", ["raises", *RESULTS])
@pytest.mark.parametrize("as_output", [False, True])
async def test_pydantic_ai_what_a_tool_gives_need_not_have_a_text(name: str, as_output: bool) -> None:
    async def once(guard: Any) -> list[Any]:
        asked = Asked()

        async def act(x: int) -> Any:
            asked.given.append(x)
            if name == "raises":
                raise Unwritable
            return RESULTS[name]()

        output_type: Any = ToolOutput(act, name="act") if as_output else str
        tools = [] if as_output else [act]
        model = asked.model(CALL, TextPart("Done."))
        return await asked.run(PydanticAgent(model, output_type=output_type, tools=tools, capabilities=[guard]))

    plain, advised = [await once(guard) for guard in guards()]
    assert plain == advised
    assert 1 in plain


@pytest.mark.parametrize("as_output", [False, True])
@pytest.mark.parametrize("kind", ["a number made anew", "raises the second time", "a circle", "no text"])
async def test_pydantic_ai_arguments_are_validated_once_and_are_the_frameworks(kind: str, as_output: bool) -> None:
    async def once(guard: Any) -> list[Any]:
        asked, numbers = Asked(), itertools.count()

        def read(value: int) -> Any:
            asked.given.append("validated")
            if kind == "raises the second time" and next(numbers):
                raise KeyError(value)
            return {"a circle": Circle, "no text": Unwritable}.get(kind, str)(value)

        class Given(BaseModel):
            x: Annotated[Any, AfterValidator(read)]
            number: int = Field(default_factory=lambda: next(numbers))

        async def act(given: Any) -> str:
            asked.given.append([type(given.x).__name__, given.number])
            return "done"

        act.__annotations__["given"] = Given

        output_type: Any = ToolOutput(act, name="act") if as_output else str
        model = asked.model(CALL, TextPart("Done."))
        tools = [] if as_output else [act]
        return await asked.run(PydanticAgent(model, output_type=output_type, tools=tools, capabilities=[guard]))

    plain, advised = [await once(guard) for guard in guards()]
    assert plain == advised
    assert plain.count("validated") == 1


# -- the OpenAI Agents SDK --------------------------------------------------------------------------------------------


class Fake(Model):
    """Calls `act` once."""

    def __init__(self, given: list[Any]) -> None:
        self._given = given

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        self._given.append([] if isinstance(input, str) else [str(item.get("output")) for item in input])
        done = output(ScriptedTurn(text="Done."))
        call = ResponseFunctionToolCall(call_id="c1", name="act", arguments='{"x": 1}', type="function_call")
        return ModelResponse(output=[call] if len(self._given) == 1 else done, usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


class Shapeless(AgentOutputSchemaBase):
    """Reads any answer, and has no JSON schema."""

    def is_plain_text(self) -> bool:
        return False

    def name(self) -> str:
        return "any"

    def json_schema(self) -> dict[str, Any]:
        raise KeyError("none")

    def is_strict_json_schema(self) -> bool:
        return False

    def validate_json(self, json_str: str) -> Any:
        return json_str


@pytest.mark.parametrize("shape", [None, Shapeless()])
@pytest.mark.parametrize("name", ["raises", *RESULTS])
async def test_agents_sdk_neither_a_result_nor_a_schema_has_to_have_a_text(name: str, shape: Any) -> None:
    async def once(guarded: bool) -> list[Any]:
        given: list[Any] = []

        async def act(context: Any, text: str) -> Any:
            given.append(text)
            if name == "raises":
                raise Unwritable
            return RESULTS[name]()

        acts = FunctionTool("act", "Act.", {"type": "object", "properties": {}}, act, strict_json_schema=False)
        agent = Agent(name="a", model=Fake(given), tools=[acts], output_type=shape)
        run = UncertaintyGuard(MONITOR).run(agent, "Act.", session_id="s") if guarded else Runner.run(agent, "Act.")
        given.append(await told(lambda: run))
        return given

    plain, advised = await once(False), await once(True)
    assert plain == advised
    assert '{"x": 1}' in plain
