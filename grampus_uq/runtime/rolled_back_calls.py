"""The executed calls of a discarded part of a run, from the audit and the transcript.

The audit says which calls were started and which reported back. Their arguments come from the transcript, and count as
known only when they have the digest in the audit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.records.values import Message, ToolCall
from grampus_uq.records.vocabulary import Effect, Role
from grampus_uq.runtime.checkpoints import lineage_of
from grampus_uq.runtime.run_state import AgentState, ExecutedCall

_REPORTED = ("execution_finished", "execution_settled")


def executed_calls(
    entries: Sequence[Mapping[str, Any]], state: AgentState, to_step: int, policy: UncertaintyPolicy | None
) -> list[ExecutedCall]:
    """The calls from step `to_step` (from 0) on that were started and do more than read, in the order of their start.

    `entries` are the session's verified audit; what earlier rollbacks discarded is not looked at again. There is one
    record a logical call. It counts as irreversible unless its tool is classified as reversible, and where the policy
    names it: what nobody classified may well be irreversible.
    """
    reported = {str(e["data"].get("idempotency_key")): e["data"] for e in entries if e["what"] in _REPORTED}
    proposed = dict(_proposed(state.messages))
    found: dict[str, ExecutedCall] = {}
    for entry in entries:
        data = entry["data"]
        if entry["what"] == "execution_withdrawn":  # a stop order came before it ran
            found.pop(str(data["idempotency_key"]), None)
        acts = entry["what"] == "execution_started" and data["effect"] != Effect.READ
        if not acts or not _discarded(data, state, to_step):
            continue
        key, digest, tool = str(data["idempotency_key"]), str(data["digest"]), str(data["tool"])
        known = [call for call in proposed.get(str(data["call_id"]), ()) if call.digest() == digest]
        effect = Effect(data["effect"])
        named = policy is not None and policy.is_irreversible(tool)
        found[key] = ExecutedCall(
            call=known[0] if known else ToolCall(id=str(data["call_id"]), name=tool),
            step_id=str(data["step_id"]),
            effect=effect,
            irreversible=effect is not Effect.REVERSIBLE or named,
            digest=digest,
            idempotency_key=key,
            finished=key in reported,
            is_error=bool(reported.get(key, {}).get("is_error", False)),
            arguments_known=bool(known),
        )
    return list(found.values())


def step_number(step_id: str) -> int | None:
    """The number of the model's step behind a step id ("llm_3", "llm_3#2", "llm_3/observation-1"), or None.

    >>> step_number("llm_3/observation-1"), step_number("3")
    (3, None)
    """
    number = step_id.removeprefix("llm_").split("#")[0].split("/")[0]
    return int(number) if step_id.startswith("llm_") and number.isascii() and number.isdigit() else None


def _discarded(data: Mapping[str, Any], state: AgentState, to_step: int) -> bool:
    """Return True if the call belongs to a step at or after `to_step` that is still part of this state."""
    step = step_number(str(data.get("step_id", "")))
    if step is None or step < to_step:
        return False
    segments = lineage_of(state)
    ends = [*(segment.from_step for segment in segments[1:]), state.current_step + 1]
    return any(
        segment.run_id == data.get("run_id") and segment.from_step <= step < end
        for segment, end in zip(segments, ends, strict=True)
    )


def _proposed(messages: Sequence[Message]) -> Iterator[tuple[str, list[ToolCall]]]:
    """Yield the calls that may have run under each call id: as proposed, and as edited by a human."""
    changed = {
        message.tool_call_id: message.metadata["ran"]
        for message in messages
        if message.role is Role.TOOL and isinstance(message.metadata.get("ran"), dict)
    }
    for message in messages:
        for call in message.tool_calls:
            edited = changed.get(call.id)
            yield call.id, [call] if edited is None else [call, call.model_copy(update={"arguments": edited})]
