"""Reads and writes records of calls as JSON values in a framework's own state, those of the first version too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from grampus_uq.gate.call import CallPhase, CallRecord, answer_text, decided, settled
from grampus_uq.gate.gate import here_s
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind, ApprovalRequest, Arrived
from grampus_uq.records.values import ToolCall

_write = CallRecord.__pydantic_serializer__.to_python  # what `model_dump` calls in the end
_CALL = {"call"}
_OF_VERSION_1 = {"decided": CallPhase.WAITING, "released": CallPhase.SETTLED}


def write_record(record: CallRecord) -> dict[str, Any]:
    """A record as JSON values, without what `read_record` can fill in."""
    left_out = None if record.edited else _CALL
    values: dict[str, Any] = _write(record, mode="json", exclude=left_out, exclude_defaults=True)
    return values


def read_record(entry: Mapping[str, Any], step_id: str = "") -> CallRecord:
    """A record from JSON values; one of version 1, which may lack its `step_id`, as far as possible: it is asked again.

    Raises KeyError, TypeError or ValueError on values that are not a record.
    """
    if "proposed" in entry:
        return CallRecord.model_validate(entry)
    call = ToolCall.model_validate(entry["call"])
    request = None if entry.get("request") is None else ApprovalRequest.model_validate(entry["request"])
    edited = entry.get("arguments")
    record = CallRecord(
        proposed=call,
        call=call if edited is None else ToolCall(id=call.id, name=call.name, arguments=edited),
        step_id=str(entry.get("step_id") or (step_id if request is None else request.step_id)),
        phase=_OF_VERSION_1.get(entry["phase"]) or CallPhase(entry["phase"]),
        requests=() if request is None else (request,),
        text=entry.get("text"),
        is_error=bool(entry.get("is_error")),
    )
    decision = None if entry.get("decision") is None else ApprovalDecision.model_validate(entry["decision"])
    if decision is not None and decision.kind in (ApprovalKind.REJECT, ApprovalKind.RESPOND):
        return settled(record, answer_text(decision), is_error=decision.kind is ApprovalKind.REJECT)
    return record if record.phase is not CallPhase.SETTLED else record.change(requests=())


def write_arrived(arrived: Iterable[Arrived]) -> list[Any]:
    """Decisions of which more have to come, with when they arrived, as JSON values."""
    return [[decision.model_dump(mode="json"), arrived_s] for decision, arrived_s in arrived]


def read_arrived(entries: Iterable[Any], *, believed: bool = True) -> list[Arrived]:
    """Read what `write_arrived` wrote; raises TypeError or ValueError.

    An arrival that nobody vouches for is now, so that nothing expired is made good.
    """
    given = [(ApprovalDecision.model_validate(decision), float(arrived_s)) for decision, arrived_s in entries]
    return given if believed else [(decision, here_s()) for decision, _ in given]


def read_decided(item: Mapping[str, Any]) -> CallRecord:
    """The record of a decided call that stands beside a turn; version 1 wrote "call" and "decision" in its place."""
    if "record" in item:
        return read_record(item["record"])
    call = ToolCall.model_validate(item["call"])
    decision = ApprovalDecision.model_validate(item["decision"])
    return decided(CallRecord(proposed=call, call=call, step_id=""), [decision])


def read_decisions(answer: Any) -> tuple[list[ApprovalDecision], list[str]]:
    """The decisions in an answer: one or several, as objects or JSON; what is none is refused."""
    raw = answer.get("decisions") if isinstance(answer, Mapping) and "decisions" in answer else answer
    found, refusals = [], []
    for item in raw if isinstance(raw, list | tuple) else [raw]:
        try:
            found.append(item if isinstance(item, ApprovalDecision) else ApprovalDecision.model_validate(item))
        except ValidationError:
            refusals.append(
                f"This is not an ApprovalDecision: {item!r:.200}. Build it with ApprovalRequest.decide(...)."
            )
    return found, refusals
