"""Tools from typed functions: JSON schema from the type hints, validated arguments; and how executors are called."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.values import ToolCall, ToolResult
from grampus_uq.records.vocabulary import Effect, parse_effect
from grampus_uq.runtime.concurrent_tasks import outcome_of
from grampus_uq.wire.lone_surrogates import bounded_text, error_text

Function = TypeVar("Function", bound=Callable[..., Any])
_IDEMPOTENCY = "idempotency_key"
_lines: Final = RunVar[dict[int, anyio.CapacityLimiter]]("grampus_tool_threads")
_depth: Final = ContextVar("grampus_tool_depth", default=0)
"""How many tools, one inside the other, wait in threads for what is done in this context."""


def tool(*, effect: Effect | str = Effect.UNKNOWN, name: str | None = None) -> Callable[[Function], Function]:
    """Mark a function as a tool and declare its effect."""

    def mark(function: Function) -> Function:
        function.__grampus_tool__ = {"effect": parse_effect(effect, "tool"), "name": name}  # type: ignore[attr-defined]  # our mark
        return function

    return mark


class Tool:
    """A function with its name, JSON schema and effect.

    A parameter named `idempotency_key` is not shown to the model: the runner fills it with a key that is the same
    whenever the same logical call is tried again.
    """

    def __init__(self, function: Callable[..., Any], *, effect: Effect | str | None = None) -> None:
        marks = getattr(function, "__grampus_tool__", {})
        self.function = function
        self.name = str(marks.get("name") or getattr(function, "__name__", ""))
        if not self.name or self.name == "<lambda>":
            way_out = "Name a lambda by @tool(name=…); pass several functions one by one, FunctionTools(*functions)."
            raise ConfigurationError.of("function", "Tool", "a named function", function, way_out)
        self.effect: Effect = parse_effect(effect, "Tool") or marks.get("effect", Effect.UNKNOWN)
        self.description = inspect.getdoc(function) or ""
        self._arguments = _argument_model(self.name, function)
        self._takes_key = _IDEMPOTENCY in inspect.signature(function).parameters
        parameters = self._arguments.model_json_schema()
        parameters.pop("title", None)
        self._schema: dict[str, Any] = {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    def schema(self) -> dict[str, Any]:
        """The tool in the OpenAI wire form: made once, not to be changed."""
        return self._schema

    def validate(self, call: ToolCall) -> dict[str, Any]:
        """The arguments as Python values; raises pydantic's ValidationError."""
        parsed = self._arguments.model_validate(call.arguments)
        return {name: getattr(parsed, name) for name in type(parsed).model_fields}

    async def run(self, call: ToolCall, key: str) -> Any:
        """Validate and call; a plain function runs in a worker thread."""
        arguments = self.validate(call)
        if self._takes_key:
            arguments[_IDEMPOTENCY] = key
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**arguments)
        call_boxed = functools.partial(_boxed, self.function, arguments)
        (returned,) = await anyio.to_thread.run_sync(call_boxed, limiter=_threads())
        return await returned if inspect.isawaitable(returned) else returned  # an async function behind a plain wrapper


def _threads() -> anyio.CapacityLimiter:
    """The threads for tools of this depth: a tool that waits for an agent's tools keeps its own thread meanwhile."""
    lines, depth = _lines.get(None), _depth.get()
    if lines is None:
        _lines.set(lines := {})
    if depth not in lines:
        lines[depth] = anyio.CapacityLimiter(anyio.to_thread.current_default_thread_limiter().total_tokens)
    return lines[depth]


def _boxed(function: Callable[..., Any], arguments: dict[str, Any]) -> tuple[Any]:
    """The returned value in a tuple: trio refuses to bring a bare awaitable out of a thread."""
    _depth.set(_depth.get() + 1)  # in a copy of the caller's context, which ends with this call
    return (function(**arguments),)


def _argument_model(name: str, function: Callable[..., Any]) -> type[BaseModel]:
    hints = inspect.get_annotations(function, eval_str=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == _IDEMPOTENCY:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError.of(
                "function", "Tool", "a function of named parameters only", f"{name}(… {parameter} …)"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), Field(default=default))
    model: type[BaseModel] = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    return model


class FunctionTools:
    """A tool executor over functions; an unknown tool or invalid arguments become an error result for the model."""

    def __init__(self, *functions: Callable[..., Any] | Tool) -> None:
        tools = [item if isinstance(item, Tool) else Tool(item) for item in functions]
        self._tools = {item.name: item for item in tools}
        if len(self._tools) != len(tools):
            raise ConfigurationError.of("functions", "FunctionTools", "of distinct names", [t.name for t in tools])

    def schemas(self) -> list[dict[str, Any]]:
        """All tools in the OpenAI wire form."""
        return [item.schema() for item in self._tools.values()]

    def effect_of(self, name: str) -> Effect | None:
        """The effect by the tool's definition; None for an unknown tool."""
        found = self._tools.get(name)
        return None if found is None else found.effect

    def check(self, call: ToolCall) -> str | None:
        """The reason against running the call (unknown tool, invalid arguments), or None."""
        found = self._tools.get(call.name)
        if found is None:
            return f"There is no tool named {call.name!r:.80}. Tools: {', '.join(self._tools)}."
        try:
            found.validate(call)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
            return f"Invalid arguments for {call.name}: {problems}"
        return None

    async def execute(self, call: ToolCall, /, *, idempotency_key: str = "") -> ToolResult:
        """Run one call."""
        problem = self.check(call)
        if problem is not None:
            return ToolResult(tool_call_id=call.id, output=problem, is_error=True)
        started = time.perf_counter()
        output = await self._tools[call.name].run(call, idempotency_key)
        return ToolResult(tool_call_id=call.id, output=output, duration_ms=(time.perf_counter() - started) * 1e3)


async def call_executor(executor: Any, call: ToolCall, key: str) -> ToolResult:
    """Run one call on any executor; a return value or an exception becomes a result, cancellation passes.

    Executors are called as `execute(call)`, or `execute(name, arguments)` when the signature asks for two; with
    `idempotency_key` when the signature takes it.
    """
    started, failed = time.perf_counter(), False
    try:
        returned = await outcome_of(functools.partial(_executor_call, executor, call, key))
    except Exception as error:  # noqa: BLE001 (a failing tool is a result for the model, not the end of the agent)
        returned, failed = f"The tool failed: {error_text(error)}"[:2_000], True
    if isinstance(returned, ToolResult):
        result = returned.model_copy(update={"tool_call_id": call.id}) if returned.tool_call_id != call.id else returned
    else:
        output = getattr(returned, "output", returned)
        duration_ms = (time.perf_counter() - started) * 1e3
        result = ToolResult(tool_call_id=call.id, output=output, is_error=failed, duration_ms=duration_ms)
    return _writable(result)


def _writable(result: ToolResult) -> ToolResult:
    """The result as a transcript can hold it: bytes as UTF-8, long text cut; or a sentence why it cannot be written."""
    output = result.output
    try:
        if isinstance(output, bytes | bytearray):
            output = bytes(output).decode("utf-8", "replace")
        text = output if isinstance(output, str) else result.text()
    except Exception as error:  # noqa: BLE001 (a value of the user's that cannot even be printed)
        text = output = f"The call ran, but its result cannot be written as text: {type(error).__name__}"
    short = bounded_text(text)
    return result.model_copy(update={"output": short if isinstance(output, str) or short is not text else output})


def _executor_call(executor: Any, call: ToolCall, key: str) -> Awaitable[Any]:
    parameters = _parameters(executor.execute)
    named = {p.name for p in parameters}
    options = {_IDEMPOTENCY: key} if _IDEMPOTENCY in named else {}
    positional = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != _IDEMPOTENCY and p.default is p.empty
    ]
    arguments: Sequence[Any] = (call.name, dict(call.arguments)) if len(positional) == 2 else (call,)
    awaitable: Awaitable[Any] = executor.execute(*arguments, **options)
    return awaitable


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
