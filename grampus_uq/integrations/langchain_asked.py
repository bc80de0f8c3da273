"""What chat models of LangChain are asked with, seen where they are called: inside all middleware, and in any node."""

from __future__ import annotations

import functools
import itertools
import json
import marshal
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Self

from grampus_uq import MissingDependencyError
from grampus_uq.integrations.model_turn import name_with_provider
from grampus_uq.wire import leading_system

with MissingDependencyError.unless("langchain-core", "langgraph", "Reading what LangChain's models are asked"):
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.tracers.context import register_configure_hook
    from langchain_core.utils.function_calling import convert_to_openai_tool


class Asked(BaseCallbackHandler):
    """The calls of chat models in a context; a model that is not called through LangChain leaves nothing here.

    `with Asked() as asked:` notes those inside the block, and so does a guard around this one: they are its calls, too.
    """

    run_inline = True
    ignore_llm = ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self) -> None:
        self._around = _ASKED.get()
        self._models = set[str]()
        self._prompts = set[str]()
        self._tools = dict[str, Any]()
        self._shapes = set[str]()

    def __enter__(self) -> Self:
        self._token = _ASKED.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _ASKED.reset(self._token)

    def on_chat_model_start(self, serialized: Any, messages: Sequence[Sequence[Any]], **given: Any) -> None:
        """Note a call that begins."""
        if self._around is not None:
            self._around.on_chat_model_start(serialized, messages, **given)
        about = given.get("metadata") or {}
        self._models.add(name_with_provider(str(about.get("ls_model_name") or ""), about.get("ls_provider")))
        for prompt in messages:
            self._prompts.add(leading_system([*itertools.takewhile(lambda one: one.type == "system", prompt)]))
        asked = given.get("invocation_params") or {}
        tools = list(asked.get("tools") or ())
        try:
            self._tools |= _known_by_text(marshal.dumps(tools))
        except ValueError:  # values of other types than JSON's own
            self._tools |= _by_text(tools)
        if asked.get("response_format"):
            self._shapes.add(_json(asked["response_format"]))

    def facts(self, own: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        """The facts of an answer, in the fields of a `ModelTurn`; `own` are the agent's tools, None if unknown.

        Of several calls they are all that were sent: any of them may have made the answer.
        """
        if not self._prompts:
            return {"offered": own}
        offered = [*(own or ()), *self._tools.values()]
        system = "\n\n".join(sorted(self._prompts))
        shape = sorted(self._shapes) or None
        return {"requested": ",".join(sorted(self._models)), "system": system, "offered": offered, "shape": shape}


_ASKED: ContextVar[Asked | None] = ContextVar("grampus_uq_langchain_asked", default=None)
register_configure_hook(_ASKED, inheritable=False)


def asked_here() -> Asked:
    """The calls that are noted in the current context; none outside of such a block."""
    return _ASKED.get() or Asked()


def described(tool: Any) -> dict[str, Any]:
    """A tool as a model is offered it, as JSON values; of one that cannot be read, what no other tool is."""
    values: dict[str, Any] = json.loads(_written(tool))
    return values


def _by_text(tools: Iterable[Any]) -> dict[str, Any]:
    return {(text := _written(tool)): json.loads(text) for tool in tools}


@functools.lru_cache(maxsize=16)
def _known_by_text(marshalled: bytes) -> dict[str, Any]:
    """The tools with these values: the same ones are sent turn after turn, and to convert them takes long."""
    return _by_text(marshal.loads(marshalled))  # noqa: S302 (of this process)


def _written(tool: Any) -> str:
    try:
        return _json(convert_to_openai_tool(tool))
    except Exception:  # noqa: BLE001 (somebody else's tool: whether it can be offered is the model's business)
        return _json({"unread": repr(tool)})


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


class DescribedTools:
    """The descriptions of an agent's tools, made once for the same tools."""

    def __init__(self) -> None:
        self._tools: Sequence[Any] = ()
        self._descriptions: Sequence[Mapping[str, Any]] = ()

    def of(self, tools: Iterable[Any]) -> Sequence[Mapping[str, Any]]:
        """Describe these tools."""
        given = tuple(tools)
        if [*map(id, given)] != [*map(id, self._tools)]:  # equal ones may be made anew for each call
            self._tools, self._descriptions = given, [described(tool) for tool in given]
        return self._descriptions
