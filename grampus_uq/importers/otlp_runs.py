"""Traces as runs: GenAI spans as steps and observations.

A span that asks a model (`gen_ai.operation.name` is chat, text_completion or generate_content) is a step, one that runs
a tool (execute_tool) an observation. All others hold these together and say nothing themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from grampus_uq.importers.foreign_messages import shown
from grampus_uq.importers.genai_messages import given_and_answer
from grampus_uq.importers.grouped import Grouped, grouped
from grampus_uq.importers.imported_records import Refused, each
from grampus_uq.importers.imported_run import ImportedRun, MessageFacts
from grampus_uq.importers.imported_transcript import ImportedTranscript
from grampus_uq.importers.otlp import OtlpSpan, read_otlp_spans
from grampus_uq.importers.record_fields import text_or_none, token_count
from grampus_uq.records.values import Message, Outcome
from grampus_uq.records.vocabulary import Role, StopReason

_ASKS: Final = frozenset({"chat", "text_completion", "generate_content"})
_LABELS: Final = dict.fromkeys(("pass", "passed", "correct", "true", "success", "yes"), True) | dict.fromkeys(
    ("fail", "failed", "incorrect", "false", "failure", "no"), False
)


def read_otlp(
    path: str | os.PathLike[str], *, outcome: str | None = None, on_refused: Refused | None = None
) -> Iterator[ImportedRun]:
    """Yield the traces of a file of OTLP (JSON or protobuf, plain or gzip) that hold a step.

    `run_id` is the session or conversation that all of a trace's spans name, else (or when it came before) the trace.
    The file is read twice, and holds the traces that are unfinished where it is (`grouped`). `outcome` names the
    evaluation (an event `gen_ai.evaluation.result`) whose label (pass or fail), or score (1 or 0) where it has no
    label, says how a trace ended; the last one counts, also one that says neither. Without it no outcome is known. A
    trace whose root failed stopped for `tool_error`.

    Raises DataError as `read_otlp_spans`, with path, line and attribute; traces without a step are passed over.
    """

    def keyed(report: Refused | None) -> Iterator[Grouped[OtlpSpan]]:
        for span in read_otlp_spans(path, report):
            yield Grouped(key=span.trace_id, chars=span.chars, line=span.place.line, item=span, same=hash(repr(span)))

    seen: set[str] = set()
    traces = grouped(keyed, os.fspath(path), on_refused)
    for run in each(traces, lambda trace: _run(*trace, outcome, seen), on_refused):
        if run is not None:
            seen.add(run.run_id)
            yield run


def _run(trace: str, spans: list[OtlpSpan], outcome: str | None, seen: set[str]) -> ImportedRun | None:
    spans.sort(key=lambda span: (span.start_ns, -span.end_ns, span.span_id))
    transcript = ImportedTranscript()
    for span in spans:
        operation = span.attributes.get("gen_ai.operation.name")
        if operation in _ASKS:
            _ask(transcript, span)
        elif operation == "execute_tool":
            _run_tool(transcript, span)
    if not any(message.role is Role.ASSISTANT for message in transcript.messages):
        return None
    roots = [span for span in spans if not span.parent_id] or spans[:1]
    stop = StopReason.TOOL_ERROR if any(root.failed for root in roots) else StopReason.CLEAN
    name = _common(spans, ("session_id", "gen_ai.conversation.id"))
    return ImportedRun(
        run_id=name if name and name not in seen else trace,
        path=spans[0].place.path,
        line=spans[0].place.line,
        messages=tuple(transcript.messages),
        outcome=Outcome(success=_success(spans, outcome), stop_reason=stop),
        facts=transcript.facts,
        model=_common(spans, ("gen_ai.response.model", "gen_ai.request.model")),
        agent_id=_common(spans, ("agent_id", "gen_ai.agent.name")),
    )


def _ask(transcript: ImportedTranscript, span: OtlpSpan) -> None:
    """A step: what the model was given, as far as it is new, and its answer."""
    given, answer = given_and_answer(span)
    time_s, attributes, refuse = span.start_ns / 1e9, span.attributes, span.place.error
    transcript.add_given(given, time_s)
    new, old = "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"
    new_out, old_out = "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"
    facts = MessageFacts(
        time_s=time_s,
        input_tokens=token_count(attributes.get(new, attributes.get(old)), new, refuse),
        output_tokens=token_count(attributes.get(new_out, attributes.get(old_out)), new_out, refuse),
    )
    transcript.add_answer(answer or Message(role=Role.ASSISTANT), facts)


def _run_tool(transcript: ImportedTranscript, span: OtlpSpan) -> None:
    """An observation, where the span says what the tool returned."""
    attributes, refuse = span.attributes, span.place.error
    result = attributes.get("gen_ai.tool.call.result")
    if result is None and not span.failed:
        return
    message = Message(
        role=Role.TOOL,
        content="" if result is None else shown(result),
        name=text_or_none(attributes.get("gen_ai.tool.name"), "gen_ai.tool.name", refuse),
        tool_call_id=text_or_none(attributes.get("gen_ai.tool.call.id"), "gen_ai.tool.call.id", refuse),
    )
    transcript.add_observation(message, MessageFacts(time_s=span.start_ns / 1e9, is_error=span.failed))


def _common(spans: list[OtlpSpan], names: tuple[str, ...]) -> str:
    """The one text that the spans give for a name; empty when they give several or none."""
    for name in names:
        found = {span.attributes[name] for span in spans if isinstance(span.attributes.get(name), str)}
        if len(found) == 1:
            return str(found.pop())
    return ""


def _success(spans: list[OtlpSpan], outcome: str | None) -> bool | None:
    known: bool | None = None
    for span in spans:
        results = [one.attributes for one in span.events if one.name == "gen_ai.evaluation.result"]
        for attributes in [span.attributes, *results]:
            if outcome is None or attributes.get("gen_ai.evaluation.name") != outcome:
                continue
            label = attributes.get("gen_ai.evaluation.score.label")
            score = attributes.get("gen_ai.evaluation.score.value")
            if isinstance(label, str) and label.strip():  # one that says neither may stand beside a score of a scale
                known = _LABELS.get(label.strip().lower())
            else:
                known = bool(score) if not isinstance(score, bool) and score in (0, 1) else None
    return known
