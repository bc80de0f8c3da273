"""Traces as runs: GenAI spans as steps and observations, and this package's own spans as the readings they hold.

A span that asks a model (`gen_ai.operation.name` is chat, text_completion or generate_content) is a step, one that runs
a tool (execute_tool) an observation, and an `uncertainty.estimate` span gives its numbers back to the step that it
judged. All others hold these together and say nothing themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from grampus_uq.errors import DataError
from grampus_uq.importers.foreign_messages import shown
from grampus_uq.importers.genai_messages import given_and_answer
from grampus_uq.importers.grouped import Grouped, grouped
from grampus_uq.importers.imported_records import Refused, refuse_to
from grampus_uq.importers.imported_run import ImportedRun, MessageFacts
from grampus_uq.importers.imported_transcript import ImportedTranscript
from grampus_uq.importers.otlp import OtlpSpan, read_otlp_spans
from grampus_uq.importers.record_fields import number_or_none, text_or_none, token_count
from grampus_uq.records.values import Message, Outcome, Reading
from grampus_uq.records.vocabulary import Role, StopReason, UncertaintySource

_ASKS: Final = frozenset({"chat", "text_completion", "generate_content"})
_ESTIMATE: Final = "uncertainty.estimate"
_NUMBERS: Final = {
    "verbalized_confidence": UncertaintySource.VERBALIZED,
    "p_true_confidence": UncertaintySource.P_TRUE,
    "token_probability": UncertaintySource.TOKEN_PROBABILITY,
    "token_entropy": UncertaintySource.TOKEN_ENTROPY,
    "semantic_confidence": UncertaintySource.SEMANTIC_ENTROPY,
}
_GOOD: Final = {"pass": True, "passed": True, "correct": True, "true": True, "success": True}
_BAD: Final = {"fail": False, "failed": False, "incorrect": False, "false": False, "failure": False}
_LABELS: Final = _GOOD | _BAD


def read_otlp(
    path: str | os.PathLike[str],
    *,
    outcome: str | None = None,
    on_refused: Refused | None = None,
) -> Iterator[ImportedRun]:
    """Yield the traces of a file of OTLP (JSON or protobuf, plain or gzip) that hold a step.

    `run_id` is the session or conversation that all of a trace's spans name, else (or when it came before) the trace.
    The file is read twice, and holds the traces that are unfinished where it is (`grouped`). `outcome` names the
    evaluation (an event `gen_ai.evaluation.result`) whose label (pass or fail) or score (1 or 0) says how a trace
    ended; the last one counts. Without it no outcome is known. A trace whose root failed stopped for `tool_error`.

    Readings are what `uncertainty.estimate` spans carry: numbers without their costs, and for those that
    `missing_reason` names its reason. Signals that have no attribute of their own are not in a trace.

    Raises DataError as `read_otlp_spans`, with path, line and attribute; traces without a step are passed over.
    """

    def keyed(report: Refused | None) -> Iterator[Grouped[OtlpSpan]]:
        for span in read_otlp_spans(path, report):
            yield Grouped(key=span.trace_id, chars=span.chars, line=span.place.line, item=span)

    seen: set[str] = set()
    for trace, spans in grouped(keyed, os.fspath(path), on_refused):
        try:
            run = _run(trace, spans, outcome, seen)
        except DataError as error:
            refuse_to(on_refused, error)
            continue
        if run is not None:
            seen.add(run.run_id)
            yield run


def _run(trace: str, spans: list[OtlpSpan], outcome: str | None, seen: set[str]) -> ImportedRun | None:
    spans.sort(key=lambda span: (span.start_ns, -span.end_ns, span.span_id))
    conversation = _Conversation()
    for span in spans:
        operation = span.attributes.get("gen_ai.operation.name")
        if span.name == _ESTIMATE:
            conversation.judge(span)
        elif operation in _ASKS:
            conversation.ask(span)
        elif operation == "execute_tool":
            conversation.run_tool(span)
    if not any(message.role is Role.ASSISTANT for message in conversation.transcript.messages):
        return None
    roots = [span for span in spans if not span.parent_id] or spans[:1]
    name = _common(spans, ("session_id", "gen_ai.conversation.id"))
    return ImportedRun(
        run_id=name if name and name not in seen else trace,
        path=spans[0].place.path,
        line=spans[0].place.line,
        messages=tuple(conversation.transcript.messages),
        outcome=Outcome(
            success=_success(spans, outcome),
            stop_reason=StopReason.TOOL_ERROR if any(root.failed for root in roots) else StopReason.CLEAN,
        ),
        facts=conversation.transcript.facts,
        model=_common(spans, ("gen_ai.response.model", "gen_ai.request.model")),
        agent_id=_common(spans, ("agent_id", "gen_ai.agent.name")),
    )


class _Conversation:
    """The conversation of a trace, and the readings of its steps."""

    def __init__(self) -> None:
        self.transcript = ImportedTranscript()
        self._step: int | None = None
        self._judged: str | None = None

    def ask(self, span: OtlpSpan) -> None:
        """A step: what the model was given, as far as it is new, and its answer."""
        given, answer = given_and_answer(span)
        time_s = span.start_ns / 1e9
        refuse, attributes = span.place.error, span.attributes
        self.transcript.add_given(given, time_s)
        new, old = "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"
        new_out, old_out = "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"
        self._add_answer(
            answer or Message(role=Role.ASSISTANT),
            MessageFacts(
                time_s=time_s,
                input_tokens=token_count(attributes.get(new, attributes.get(old)), new, refuse),
                output_tokens=token_count(attributes.get(new_out, attributes.get(old_out)), new_out, refuse),
            ),
        )
        self._judged = None

    def run_tool(self, span: OtlpSpan) -> None:
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
        self.transcript.add_observation(message, MessageFacts(time_s=span.start_ns / 1e9, is_error=span.failed))

    def judge(self, span: OtlpSpan) -> None:
        """The readings of the latest step; a step of their own where the trace has no span for it."""
        refuse = span.place.error
        if text_or_none(span.attributes.get("step_type"), "step_type", refuse) == "tool_call":
            return  # the consequence of a step: it has no reading of its own
        found = tuple(_readings(span))
        step_id = text_or_none(span.attributes.get("step_id"), "step_id", refuse) or span.span_id
        if self._step is None or self._judged is not None:
            _, answer = given_and_answer(span)
            self._add_answer(answer or Message(role=Role.ASSISTANT), MessageFacts(time_s=span.start_ns / 1e9))
        assert self._step is not None  # noqa: S101 (for the type checker; `_add_answer` sets it)
        facts = self.transcript.facts
        facts[self._step] = replace(facts[self._step], readings=found)
        self._judged = step_id

    def _add_answer(self, message: Message, facts: MessageFacts) -> None:
        self._step = len(self.transcript.messages)
        self.transcript.add_answer(message.model_copy(update={"role": Role.ASSISTANT}), facts)


def _readings(span: OtlpSpan) -> Iterator[Reading]:
    attributes, refuse = span.attributes, span.place.error
    missing = _missing(text_or_none(attributes.get("missing_reason"), "missing_reason", refuse) or "")
    for key, source in _NUMBERS.items():
        value = number_or_none(attributes.get(key), key, refuse)
        if source in missing or value is None:
            continue
        if source is UncertaintySource.P_TRUE and attributes.get("p_true_ran") is not True:
            continue
        if not 0.0 <= value <= 1.0:
            raise refuse(key, f"must be in [0, 1]. Got {value!r:.50}.")
        if source is UncertaintySource.VERBALIZED and missing.get("") is not None:
            continue  # no reading at all: its 0.5 stands for nothing
        yield Reading(source=source, value=value)
    for name, reason in missing.items():
        if name:
            yield Reading(source=name, value=None, reason=reason)


def _missing(text: str) -> dict[str, str]:
    """`missing_reason` is "source: reason; ..."; what has no source is about the whole step, under the empty name."""
    found: dict[str, str] = {}
    for part in text.split("; "):
        source, colon, reason = part.partition(": ")
        if colon and source.isidentifier() and reason:
            found[source] = reason
        elif part:
            found[""] = part
    return found


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
        sources: list[Mapping[str, Any]] = [
            event.attributes for event in span.events if event.name == "gen_ai.evaluation.result"
        ]
        for attributes in [span.attributes, *sources]:
            if outcome is None or attributes.get("gen_ai.evaluation.name") != outcome:
                continue
            label, score = (
                attributes.get("gen_ai.evaluation.score.label"),
                attributes.get("gen_ai.evaluation.score.value"),
            )
            if isinstance(label, str) and label.lower() in _LABELS:
                known = _LABELS[label.lower()]
            elif not isinstance(score, bool) and score in (0, 1):
                known = bool(score)
    return known
