"""Puts a gate before the tools of an OpenAI Agents SDK agent where the SDK has a place for one, and names the others.

Function tools (agents as tools too): `needs_approval` pauses, a tool input guardrail looks once more at the end. Shell,
apply-patch and custom tools: `needs_approval`. MCP servers: their `require_approval` callable. Hosted MCP tools: every
call pauses, since a callback there could only say yes or no. Other hosted tools run on the provider's side before
anybody here hears of them: those that act on the world are refused by name.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

from grampus_uq import ConfigurationError, MissingDependencyError, ToolCall
from grampus_uq.integrations.held_calls import HeldCalls
from grampus_uq.integrations.openai_agents_model import plain, tool_call

try:
    from agents import (
        ApplyPatchTool,
        CustomTool,
        FunctionTool,
        HostedMCPTool,
        ShellTool,
        ToolGuardrailFunctionOutput,
        ToolInputGuardrail,
    )
    from agents.tool_context import ToolContext
except ImportError as error:
    raise MissingDependencyError.of("openai-agents", "openai-agents", "watching the OpenAI Agents SDK") from error

__all__ = ["Gate", "WatchedRun", "gate_tools", "mcp_policy"]

GUARDRAIL = "grampus_uq"
HELD = "Not executed: this call waits for a human. {reason}"
_HARMLESS_HOSTED = frozenset(
    {"code_interpreter", "file_search", "image_generation", "programmatic_tool_calling", "tool_search", "web_search"}
)


class WatchedRun(Protocol):
    """What a gate needs of the run that it is called in."""

    calls: HeldCalls

    def proposed(self, call_id: str, name: str, arguments: Any) -> ToolCall:
        """The call of this id as the model's answer had it; another one where the name or the arguments differ."""
        ...


Gate = Callable[[], WatchedRun]
"""Gives the watched run of the current context; raises when there is none."""


def gate_tools(tools: Collection[Any], current: Gate, *, allow_ungated: Collection[str]) -> tuple[list[Any], list[str]]:
    """The tools with a gate before each, and the names of those that have none; raises ConfigurationError for some."""
    gated, without = [], []
    for tool in tools:
        if isinstance(tool, FunctionTool):
            gated.append(_gate_function(tool, current))
        elif isinstance(tool, ApplyPatchTool | CustomTool) or (
            isinstance(tool, ShellTool) and tool.executor is not None
        ):
            gated.append(_gate_other(tool, current))
        else:
            if not _always_asks(tool):
                without.append(_named(tool, allow_ungated))
            gated.append(tool)
    return gated, without


def _always_asks(tool: Any) -> bool:
    """True for a hosted MCP tool that asks for every call, and asks a human: the API's own default."""
    return (
        isinstance(tool, HostedMCPTool)
        and tool.tool_config.get("require_approval", "always") == "always"
        and tool.on_approval_request is None
    )


def _named(tool: Any, allow_ungated: Collection[str]) -> str:
    """The name of a tool that cannot be gated; raises unless it only reads, or the user named it."""
    name = str(getattr(tool, "name", type(tool).__name__))
    label = str(tool.tool_config.get("server_label", name)) if isinstance(tool, HostedMCPTool) else name
    if label in allow_ungated or (type(tool).__name__ != "HostedMCPTool" and name in _HARMLESS_HOSTED):
        return label
    way_out = (
        "Set its require_approval to 'always' and leave on_approval_request out: then every call pauses."
        if isinstance(tool, HostedMCPTool)
        else "The SDK has no place to stop its calls."
    )
    raise ConfigurationError.of(
        "tools",
        "UncertaintyGuard.watch",
        "tools whose calls can pause",
        label,
        f"{way_out} Or name it in allow_ungated.",
    )


async def _own_rule(rule: Any, *given: Any) -> bool:
    """What the tool's own `needs_approval` says."""
    said = rule(*given) if callable(rule) else rule
    return bool(await said if isinstance(said, Awaitable) else said)


# -- function tools ---------------------------------------------------------------------------------------------------


def _gate_function(tool: FunctionTool, current: Gate) -> FunctionTool:
    guardrails = tool.tool_input_guardrails or []
    if any(guardrail.get_name() == GUARDRAIL for guardrail in guardrails):
        return tool  # gated already
    gated = copy.copy(tool)
    own, invoke = gated.needs_approval, gated.on_invoke_tool
    given = _context_for(invoke)

    async def needs_approval(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        asks = own is not False and await _own_rule(own, context, arguments, call_id)
        run = current()
        return (await run.calls.judge(run.proposed(call_id, tool.name, arguments), framework_asks=asks)).waiting

    @_marked_like(invoke)
    async def on_invoke_tool(context: Any, text: str) -> Any:
        run = current()
        call = run.proposed(context.tool_call_id, tool.name, text)
        return await _invoke(run, invoke, given(context), call, text)

    gated.needs_approval = needs_approval
    gated.on_invoke_tool = on_invoke_tool
    gated.tool_input_guardrails = [*guardrails, ToolInputGuardrail(_last_look(current), name=GUARDRAIL)]
    return gated


def _marked_like(invoke: Any) -> Callable[[Any], Any]:
    """Gives a tool's gated invocation the marks of the tool's own, and declares that it takes the tool's context.

    The SDK reads at each call which context the invocation declares: it would follow `__wrapped__` to the tool's own,
    resolve its names anew every time, and give the gate a context that does not say which call this is.
    """

    def mark(gated: Any) -> Any:
        functools.wraps(invoke, updated=("__dict__",) if hasattr(invoke, "__dict__") else ())(gated)
        del gated.__wrapped__
        gated.__annotations__ = {"context": ToolContext}
        of_either = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [
            inspect.Parameter("context", of_either, annotation=ToolContext),
            inspect.Parameter("text", of_either),
        ]
        gated.__signature__ = inspect.Signature(parameters)
        return gated

    return mark


def _context_for(invoke: Any) -> Callable[[Any], Any]:
    """What makes, of the tool's context, the one that the tool's own invocation declares; the SDK's own rule."""
    text = _declared_context(invoke)
    if "RunContextWrapper" not in text or "ToolContext" in text:
        return lambda context: context

    def of_the_run(context: Any) -> Any:
        fork = getattr(context, "_fork_with_tool_input", None)
        return context if fork is None else fork(context.tool_input)

    return of_the_run


def _declared_context(invoke: Any) -> str:
    """What an invocation declares its context to be, as text; empty where it declares nothing."""
    try:
        first = next(iter(inspect.signature(invoke).parameters.values()), None)
    except (TypeError, ValueError):  # no signature
        return ""
    if first is None or first.annotation is inspect.Parameter.empty:
        return ""
    return first.annotation if isinstance(first.annotation, str) else inspect.formatannotation(first.annotation)


def _last_look(current: Gate) -> Callable[[Any], Awaitable[ToolGuardrailFunctionOutput]]:
    """Just before the tool runs: an approved call is let through once, anything that still waits is not executed."""

    async def look(data: Any) -> ToolGuardrailFunctionOutput:
        run, context = current(), data.context
        calls = run.calls
        call = run.proposed(context.tool_call_id, context.tool_name, context.tool_arguments)
        release = await calls.release(call, principal="openai-agents")  # by the SDK's own `state.approve`, or nobody
        if release.run or (release.answer is None and calls.session.profile.advisory):
            return ToolGuardrailFunctionOutput.allow()
        reason = release.request.reason if release.request is not None else ""
        return ToolGuardrailFunctionOutput.reject_content(
            HELD.format(reason=reason) if release.answer is None else release.answer
        )

    return look


async def _invoke(run: WatchedRun, invoke: Any, context: Any, call: ToolCall, text: str) -> Any:
    """Run the tool, with a human's arguments where there are some, and tell the session what came of it."""
    edit = run.calls.edit_of(call)
    try:
        result = await invoke(context, text if edit is None else edit.to_json())
    except Exception as failure:
        run.calls.session.observe_tool_result(call.id, f"{type(failure).__name__}: {failure}", is_error=True)
        raise
    if edit is not None and (result is None or isinstance(result, str | int | float | bool)):
        result = edit.told(str(result))
    if result is not None:  # an agent as a tool gives None while its own calls wait
        run.calls.session.observe_tool_result(call.id, result if isinstance(result, str) else str(plain(result)))
    return result


# -- tools with nothing but needs_approval ----------------------------------------------------------------------------


def _gate_other(tool: Any, current: Gate) -> Any:
    if getattr(tool.needs_approval, "gate", None) == GUARDRAIL:
        return tool
    gated = copy.copy(tool)
    own = tool.needs_approval

    async def needs_approval(context: Any, given: Any, call_id: str) -> bool:
        """Ask what would be decided; what waits is committed with its raw call when the run pauses."""
        if await _own_rule(own, context, given, call_id):
            return True
        calls = current().calls
        call = tool_call(call_id, tool.name, plain(given))
        if not calls.would_allow(call):
            return True
        await calls.judge(call)
        return False

    needs_approval.gate = GUARDRAIL  # type: ignore[attr-defined]  # how a gate knows itself again
    gated.needs_approval = needs_approval
    return gated


def mcp_policy(current: Gate) -> Callable[[Any, Any, Any], bool]:
    """A `require_approval` for MCP servers: asks by the tool's name, which is all that the SDK shows it."""

    def require_approval(context: Any, agent: Any, tool: Any) -> bool:
        return not current().calls.would_allow(ToolCall(name=tool.name))

    require_approval.gate = GUARDRAIL  # type: ignore[attr-defined]  # how a gate knows itself again
    return require_approval
