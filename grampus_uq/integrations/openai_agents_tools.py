"""Puts a gate before the tools of an OpenAI Agents SDK agent where the SDK has a place for one, and names the others.

Function tools (agents as tools and those of MCP servers too), local shell, apply-patch and custom tools:
`needs_approval` pauses, and the invocation itself is the last look, at what it was given. Hosted MCP tools: every call
pauses, since a callback there could only say yes or no. Other hosted tools run on the provider's side before anybody
here hears of them: those that act on the world are refused by name.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agents import ApplyPatchResult, ApplyPatchTool, CustomTool, FunctionTool, HostedMCPTool, ShellTool, UserError
from agents.agent_tool_state import get_agent_tool_state_scope, peek_agent_tool_run_result
from agents.tool import _FailureHandlingFunctionToolInvoker as SdkInvoker
from agents.tool_context import ToolContext

from grampus_uq import ConfigurationError, ToolCall
from grampus_uq.integrations.openai_agents_model import awaited, plain, with_arguments

if TYPE_CHECKING:
    from grampus_uq.integrations.held_calls import Release
    from grampus_uq.integrations.openai_agents_run import WatchedRun

GATE = "grampus_uq_gate"
"""The attribute by which a gate knows itself again."""
HELD_BEGINS = "Not executed: this call waits for a human."
"""What releases until 2026-11 answered for such a call, whose request they left open."""
PRINCIPAL = "openai-agents"
"""Principal of decisions made through the SDK (`state.approve`, `state.reject`)."""
_HARMLESS_HOSTED = frozenset(
    {"code_interpreter", "file_search", "image_generation", "programmatic_tool_calling", "tool_search", "web_search"}
)


Gate = Callable[[], "WatchedRun | None"]
"""Gives the watched run of the current context; None where the agent runs unwatched, and may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """Mark of a gated tool: the owner of the gate, and the original tool."""

    current: Gate
    tool: Any


def _mark_of(tool: Any) -> _Mark | None:
    gate = tool.on_invoke_tool if isinstance(tool, FunctionTool) else getattr(tool, "needs_approval", None)
    return getattr(gate, GATE, None)


def gated_by(tool: Any, current: Gate) -> bool:
    """Return True if the tool has this gate."""
    mark = _mark_of(tool)
    return mark is not None and mark.current == current


def without_gate(tool: Any) -> Any:
    """The tool as it was before any guard put a gate there."""
    while (mark := _mark_of(tool)) is not None:
        tool = mark.tool
    return tool


def gate_tools(
    tools: Collection[Any], current: Gate, allow_ungated: Collection[str] | None
) -> tuple[list[Any], list[str]]:
    """The tools with a gate before each, and the names of those that have none.

    Raises ConfigurationError for those that act and are not in `allow_ungated`; None is that of a guard which does not
    act: it allows all, and a function tool's own `needs_approval` alone says what waits, read as the SDK reads it of a
    tool without gate.
    """
    gated, without = [], []
    for given in tools:
        if gated_by(given, current):
            gated.append(given)
            continue
        tool = without_gate(given)  # one that is shared with another guard's agent
        if isinstance(tool, FunctionTool):
            gated.append(_gate_function(tool, current, acts=allow_ungated is not None))
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
    """Return True for a hosted MCP tool that asks a human about every call, the API's default."""
    return (
        isinstance(tool, HostedMCPTool)
        and tool.tool_config.get("require_approval", "always") == "always"
        and tool.on_approval_request is None
    )


def _named(tool: Any, allow_ungated: Collection[str] | None) -> str:
    """The name of a tool that cannot be gated; raises unless it only reads, or the user named it."""
    name = str(getattr(tool, "name", type(tool).__name__))
    label = str(tool.tool_config.get("server_label", name)) if isinstance(tool, HostedMCPTool) else name
    if (
        allow_ungated is None
        or label in allow_ungated
        or (type(tool).__name__ != "HostedMCPTool" and name in _HARMLESS_HOSTED)
    ):
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


def _approved_one(context: Any, call_id: str) -> bool:
    """Return True if a human approved this one call, not its whole tool (`always_approve`)."""
    kept = getattr(context, "_approvals", None)
    lists = (getattr(one, "approved", None) for one in (kept.values() if isinstance(kept, Mapping) else ()))
    return any(isinstance(ids, list) and call_id in ids for ids in lists)


def _not_run(run: WatchedRun, release: Release) -> str:
    """The answer in a call's place. One that should wait ends here: the SDK never brings it back."""
    if release.answer is not None:
        return release.answer
    run.calls.give_up(release.record.proposed)
    reason = "" if release.request is None else release.request.reason
    return f"Not executed: a human has to see this call first, and it can wait no more. {reason}"


async def _own_rule(rule: Any, *given: Any) -> bool:
    """Evaluate the tool's `needs_approval`; raises the SDK's UserError for an invalid rule or answer."""
    if not callable(rule) and not isinstance(rule, bool):
        raise UserError(f"Invalid needs_approval value: expected a bool or callable, got {type(rule).__name__}.")
    return bool(await awaited(rule(*given) if callable(rule) else rule))


# -- function tools ---------------------------------------------------------------------------------------------------


def _gate_function(tool: FunctionTool, current: Gate, *, acts: bool) -> FunctionTool:
    gated = copy.copy(tool)
    own, invoke = gated.needs_approval, gated.on_invoke_tool
    given, delegates = _context_for(invoke), getattr(tool, "_agent_instance", None) is not None

    async def needs_approval(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        asks = own is not False and (
            not _as_written(invoke, arguments, tool.name) or await _own_rule(own, context, arguments, call_id)
        )
        run = current()
        if run is None or not acts:
            return asks
        return (await run.calls.judge(run.proposed(call_id, tool.name, arguments), framework_asks=asks)).waiting

    @_marked_like(invoke)
    async def on_invoke_tool(context: Any, text: str) -> Any:
        """Let an approved call through once, as it was approved; what still waits is not executed."""
        run = current()
        if run is None:
            return await invoke(given(context), text)
        call = run.proposed(context.tool_call_id, tool.name, text)
        standing = not _approved_one(context, context.tool_call_id)
        release = await run.calls.release(call, principal=PRINCIPAL, standing=standing)  # the SDK's `state.approve`
        if not release.run:
            return _not_run(run, release)
        if release.record.edited:
            text = json.dumps(release.record.call.arguments)
            context.tool_arguments = text
        return await run.calls.execute(
            release,
            lambda: invoke(given(context), text),
            suspends=lambda result: delegates and _waits_inside(context),
            plain=plain,
        )

    setattr(on_invoke_tool, GATE, _Mark(current=current, tool=tool))
    gated.needs_approval = needs_approval if acts or callable(own) else own
    gated.on_invoke_tool = on_invoke_tool
    return gated


def _waits_inside(context: Any) -> bool:
    """Return True while the SDK will bring this call again: its agent's own calls wait, or it failed to go on."""
    inner = peek_agent_tool_run_result(context.tool_call, scope_id=get_agent_tool_state_scope(context))
    return bool(getattr(inner, "interruptions", None))


def _as_written(invoke: Any, arguments: Mapping[str, Any], name: str) -> bool:
    """Return False where the tool would read other values than its rule is shown: the SDK asks then, from 0.24 on."""
    prepare = getattr(invoke, "prepare_arguments", None) if isinstance(invoke, SdkInvoker) else None
    prepared = None if prepare is None else prepare(json.dumps(arguments), name)
    return prepared is None or bool(prepared.unchanged)


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
    """Return a converter from the tool's context to the one its invocation declares, by the SDK's rule."""
    text = _declared_context(invoke)
    if "RunContextWrapper" not in text or "ToolContext" in text:
        return lambda context: context

    def of_the_run(context: Any) -> Any:
        fork = getattr(context, "_fork_with_tool_input", None)
        return context if fork is None else fork(context.tool_input)

    return of_the_run


def _declared_context(invoke: Any) -> str:
    """Return the declared context type of an invocation as text; empty if none is declared."""
    try:
        first = next(iter(inspect.signature(invoke).parameters.values()), None)
    except (TypeError, ValueError):  # no signature
        return ""
    if first is None or first.annotation is inspect.Parameter.empty:
        return ""
    return first.annotation if isinstance(first.annotation, str) else inspect.formatannotation(first.annotation)


# -- shell, apply-patch and custom tools ------------------------------------------------------------------------------


def _gate_other(tool: Any, current: Gate) -> Any:
    gated = copy.copy(tool)
    own, name = tool.needs_approval, tool.name
    automatic = getattr(tool, "on_approval", None) is not None  # nobody can tell its approval from a human's

    async def needs_approval(context: Any, given: Any, call_id: str) -> bool:
        asks = await _own_rule(own, context, given, call_id)
        run = current()
        if run is None:
            return asks
        return (await run.calls.judge(run.meant(call_id, name, given), framework_asks=asks)).waiting

    async def last_look(context: Any, call_id: str, given: Any, invoke: Callable[[Any], Any]) -> tuple[bool, Any]:
        """Let an approved call through once, as it was approved: True and what came of it, else the model's answer."""
        run = current()
        if run is None:
            return True, await awaited(invoke(given))
        call = run.meant(call_id, name, given)
        release = await run.calls.release(
            call, principal=PRINCIPAL, standing=automatic or not _approved_one(context, call.id)
        )
        if not release.run:
            return False, _not_run(run, release)
        if release.record.edited:
            given = with_arguments(given, release.record.call.arguments)
        return True, await run.calls.execute(release, lambda: awaited(invoke(given)), plain=plain)

    setattr(needs_approval, GATE, _Mark(current=current, tool=tool))
    gated.needs_approval = needs_approval
    if isinstance(tool, CustomTool):

        async def on_invoke_tool(context: Any, text: str) -> Any:
            invoke = functools.partial(tool.on_invoke_tool, context)
            return (await last_look(context, context.tool_call_id, text, invoke))[1]

        gated.on_invoke_tool = on_invoke_tool
    elif isinstance(tool, ShellTool):

        async def executor(request: Any) -> Any:
            def invoke(action: Any) -> Any:
                return tool.executor(replace(request, data=replace(request.data, action=action)))  # type: ignore[misc]  # it has one

            return (await last_look(request.ctx_wrapper, request.data.call_id, request.data.action, invoke))[1]

        gated.executor = executor
    else:
        gated.editor = _GatedEditor(tool.editor, last_look)
    return gated


class _GatedEditor:
    """An editor that is given an operation after the last look at it."""

    def __init__(self, editor: Any, last_look: Callable[..., Awaitable[tuple[bool, Any]]]) -> None:
        self._editor = editor
        self._last_look = last_look

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._editor, name)
        if name not in ("create_file", "update_file", "delete_file"):
            return found

        async def apply(operation: Any) -> Any:
            ran, result = await self._last_look(getattr(operation, "ctx_wrapper", None), "", operation, found)
            return result if ran else ApplyPatchResult(status="failed", output=result)

        return apply


def mcp_policy(current: Gate) -> Callable[[Any, Any, Any], bool]:
    """A `require_approval` for MCP servers: the gate before each tool asks; without one, by the tool's name."""

    def require_approval(context: Any, agent: Any, tool: Any) -> bool:
        if getattr(getattr(agent, "get_mcp_tools", None), GATE, False):
            return False
        run = current()
        return run is None or not run.calls.would_allow(ToolCall(name=tool.name))

    setattr(require_approval, GATE, True)
    return require_approval
