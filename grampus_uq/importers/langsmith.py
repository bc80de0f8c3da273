"""Exports of LangSmith: one run (a span of theirs) a JSON line, gathered by trace into the runs of this package.

A run of theirs has `id` (or `run_id`), `trace_id`, `run_type`, `start_time`, `dotted_order`, `inputs`, `outputs`,
`error`, `feedback_stats`, `prompt_tokens`, `completion_tokens`. Those of type `llm` are the steps of the agent, those
of type `tool` what it observed; the others (`chain`, `retriever`, `prompt`, `parser`, `embedding`) only hold them.

Source: docs.langchain.com/langsmith/run-data-format; `langsmith.schemas.Run`; the export of LangSmith's own CLI.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from grampus_uq.importers.foreign_messages import message_of, messages_of, shown
from grampus_uq.importers.grouped import Grouped, grouped
from grampus_uq.importers.imported_records import Refused, each, records, refuse_to
from grampus_uq.importers.imported_run import ImportedRun, MessageFacts
from grampus_uq.importers.imported_transcript import ImportedTranscript
from grampus_uq.importers.json_stream import Element
from grampus_uq.importers.record_fields import (
    Refuse,
    iso_time_s,
    number_or_none,
    object_or_none,
    text_or_none,
    token_count,
)
from grampus_uq.records.values import Message, Outcome
from grampus_uq.records.vocabulary import Role, StopReason
from grampus_uq.wire.messages import proposed_in


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    element: Element
    kind: str
    root: bool
    order: tuple[float, str]
    time_s: float | None


def read_langsmith(
    path: str | os.PathLike[str], *, outcome: str | None = None, on_refused: Refused | None = None
) -> Iterator[ImportedRun]:
    """Yield the traces of an export (JSON lines or an array, plain or gzip) that asked a model; `run_id` is the trace.

    The file is read twice, and holds the traces that are unfinished where it is (`grouped`). `outcome` names the
    feedback whose average says how a trace ended: 1 is success, 0 failure, anything between is not known. The root's
    counts, or what all others agree on. Without it no outcome is known. A trace whose root has an `error` stopped for
    `tool_error`.

    Raises DataError with path, line and field for a file that is not JSON. A run with a wrong field is given to
    `on_refused` and left out, as is a trace without a run of type `llm`; without `on_refused` both raise.
    """

    def keyed(report: Refused | None) -> Iterator[Grouped[Element]]:
        for element in records(path, report):
            trace = element.value.get("trace_id", element.value.get("id"))
            if not isinstance(trace, str) or not trace:
                refuse_to(report, element.error("trace_id", f"must be the id of a trace. Got {trace!r:.50}."))
                continue
            same = hash(repr(element.value)) if element.value.get("id") or element.value.get("run_id") else None
            yield Grouped(key=trace, chars=element.chars, line=element.line, item=element, same=same)

    for trace, elements in grouped(keyed, os.fspath(path), on_refused):
        if spans := list(each(elements, _span, on_refused)):
            yield from each([spans], partial(_run, trace, outcome=outcome), on_refused)


def _span(element: Element) -> _Span:
    value, refuse = element.value, element.error
    kind = value.get("run_type")
    if not isinstance(kind, str):
        raise refuse("run_type", f"must be text. Got {kind!r:.50}.")
    time_s = iso_time_s(value.get("start_time"), "start_time", refuse)
    dotted = text_or_none(value.get("dotted_order"), "dotted_order", refuse) or ""
    parent = text_or_none(value.get("parent_run_id"), "parent_run_id", refuse)
    order = (time_s or 0.0, dotted.rpartition(".")[2])  # its own part begins with its start
    return _Span(element=element, kind=kind, root=not parent, order=order, time_s=time_s)


def _run(trace: str, spans: list[_Span], outcome: str | None) -> ImportedRun:
    spans.sort(key=lambda span: span.order)
    first = spans[0].element
    if not any(span.kind == "llm" for span in spans):
        raise first.error("run_type", f"the trace {trace!r:.80} has no run of type llm, so no step.")
    transcript = ImportedTranscript()
    model = ""
    for span in spans:
        if span.kind == "llm":
            _ask(transcript, span)
            model = model or _model(span.element.value)
        elif span.kind == "tool":
            _tool(transcript, span)
    root = next((span for span in spans if span.root), spans[0])
    failed = text_or_none(root.element.value.get("error"), "error", root.element.error)
    stop = StopReason.TOOL_ERROR if failed else StopReason.CLEAN
    return ImportedRun(
        run_id=trace,
        path=first.path,
        line=first.line,
        messages=tuple(transcript.messages),
        outcome=Outcome(success=_success(spans, outcome), stop_reason=stop),
        facts=transcript.facts,
        model=model,
        agent_id=text_or_none(root.element.value.get("name"), "name", root.element.error) or "",
    )


def _ask(transcript: ImportedTranscript, span: _Span) -> None:
    element, value = span.element, span.element.value
    refuse = element.error
    inputs = object_or_none(value.get("inputs"), "inputs", refuse) or {}
    given = inputs.get("messages")
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], list):
        given = given[0]  # LangChain asks for several answers at once, by lists of lists
    if isinstance(given, list):
        transcript.add_given(messages_of(given, "inputs.messages", refuse), span.time_s)
    outputs = object_or_none(value.get("outputs"), "outputs", refuse) or {}
    answer, field = _answer(outputs)
    message = Message(role=Role.ASSISTANT)
    tokens = (0, 0)
    if isinstance(answer, str):
        message = Message(role=Role.ASSISTANT, content=answer)
    elif answer is not None:
        message = message_of(answer, f"outputs.{field}", refuse)
        tokens = _usage(answer, f"outputs.{field}.usage_metadata", refuse)
    facts = MessageFacts(
        time_s=span.time_s,
        input_tokens=token_count(value.get("prompt_tokens"), "prompt_tokens", refuse) or tokens[0],
        output_tokens=token_count(value.get("completion_tokens"), "completion_tokens", refuse) or tokens[1],
    )
    transcript.add_answer(message, facts)


def _usage(value: Any, field: str, refuse: Refuse) -> tuple[int, int]:
    """The tokens that a message says it took, input and output; zeros where it says nothing."""
    usage = object_or_none(_fields(value).get("usage_metadata"), field, refuse) or {}
    return (
        token_count(usage.get("input_tokens"), f"{field}.input_tokens", refuse),
        token_count(usage.get("output_tokens"), f"{field}.output_tokens", refuse),
    )


def _fields(message: dict[str, Any]) -> dict[str, Any]:
    """The fields of a message, as it is or as LangChain serialises it."""
    return next((message[name] for name in ("kwargs", "data") if isinstance(message.get(name), dict)), message)


def _answer(outputs: Any) -> tuple[Any, str]:
    """The answer of a model and its field, as LangChain, a wrapped OpenAI client or a traced function write it."""
    for name in ("generations", "choices", "messages"):
        found, field = outputs.get(name), name
        while isinstance(found, list) and found:
            found, field = found[0] if name != "messages" else found[-1], f"{field}[0]"
        if isinstance(found, dict):
            inner = found.get("message", found.get("text") if name == "generations" else None)
            return (found, field) if name == "messages" else (inner, f"{field}.message")
    if "role" in outputs or proposed_in(outputs):
        return {"role": Role.ASSISTANT.value, **outputs}, ""
    named = next((name for name in ("message", "output", "content") if isinstance(outputs.get(name), dict | str)), "")
    return outputs.get(named), named


def _tool(transcript: ImportedTranscript, span: _Span) -> None:
    element = span.element
    outputs = object_or_none(element.value.get("outputs"), "outputs", element.error) or {}
    error = text_or_none(element.value.get("error"), "error", element.error)
    found = outputs.get("output", outputs or None)
    message, failed = Message(role=Role.TOOL, content=error or ""), error is not None
    if isinstance(found, dict) and ("kwargs" in found or found.get("type") == "tool"):
        message = message_of(found, "outputs.output", element.error)
        failed = failed or _fields(found).get("status") == "error"  # LangGraph's tools answer with their errors
    elif found is not None and not error:
        message = Message(role=Role.TOOL, content=shown(found))
    transcript.add_observation(message, MessageFacts(time_s=span.time_s, is_error=failed))


def _model(value: dict[str, Any]) -> str:
    extra = value.get("extra")
    for place in ("metadata", "invocation_params"):
        facts = extra.get(place) if isinstance(extra, dict) else None
        for name in ("ls_model_name", "model", "model_name"):
            if isinstance(facts, dict) and isinstance(facts.get(name), str):
                return str(facts[name])
    return ""


def _success(spans: list[_Span], outcome: str | None) -> bool | None:
    """What the root's feedback says of the trace; without one, what that of all others agrees on."""
    said = list[bool | None]()
    for span in sorted(spans, key=lambda span: not span.root):
        stats = object_or_none(span.element.value.get("feedback_stats"), "feedback_stats", span.element.error) or {}
        found = stats.get(outcome) if outcome is not None else None
        if isinstance(found, dict) and found.get("n") != 0:  # nobody said anything
            average = number_or_none(found.get("avg"), f"feedback_stats.{outcome}.avg", span.element.error)
            said.append({0.0: False, 1.0: True}.get(average) if average is not None else None)
            if span.root:
                break
    return said[0] if len({*said}) == 1 else None
