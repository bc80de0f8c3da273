"""Asking the human at the client (`elicitation/create`): a notice, or, where the settings say so, a way to decide.

Who answers is the client. What it answers is not signed, so it decides only under `elicitation = "decide"`, which is
refused together with keys; a client that answers such questions by itself approves its own calls. A question whose text
does not hold the whole call and why it waits, or about a call of unknown outcome, is a notice under any setting.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Literal

from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.integrations.mcp.json_rpc import Message, meta_in, written
from grampus_uq.integrations.mcp.pins import quoted
from grampus_uq.integrations.mcp.tool_pins import UNSHOWN
from grampus_uq.records.latest import Latest
from grampus_uq.records.visible_text import in_short, visible
from grampus_uq.runtime.cards import card
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates

CREATE: Final = "elicitation/create"
QUESTION: Final = "grampus_uq"
"""The name of the question among the `inputRequests` of an answer, and the beginning of its id elsewhere."""
PRINCIPAL: Final = "client"
_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
_MOST_CHARACTERS: Final = 8_000
_MOST_REASON: Final = 1_000
_MOST_WHY: Final = 4_000
_MOST_QUESTIONS: Final = 1_000
_NOTICE: Final[dict[str, Any]] = {"type": "object", "properties": {}}
_DECISION: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "enum": ["approve", "reject"], "title": "Decision"},
        "reason": {"type": "string", "title": "Reason", "maxLength": _MOST_REASON},
    },
    "required": ["decision"],
}

Mode = Literal["ask", "decide"]


class Elicitation:
    """The questions of one session to the human at its client, and what their answers are worth."""

    def __init__(self, ledger: Ledger, mode: Mode) -> None:
        self._ledger, self._mode = ledger, mode
        self._asked: OrderedDict[str, str] = OrderedDict()
        self._open: dict[str, ApprovalRequest] = {}
        self._forms: Latest[str, None] = Latest(_MOST_QUESTIONS)

    def question(self, request: ApprovalRequest) -> dict[str, Any]:
        """The `params` of an `elicitation/create` about a request."""
        decides = self._decides(request)
        call = _whole_call(request) or "Its arguments are too long to show here."
        lines = [f"This call waits for a human's decision (request {request.id[:8]}).", call]
        lines.append(f"Why: {in_short(request.reason, _MOST_WHY)}")
        if not decides:
            lines.append("It is decided elsewhere, with `grampus-uq approvals`; an answer here decides nothing.")
        return {"message": "\n".join(lines), "requestedSchema": _DECISION if decides else _NOTICE}

    def form(self, request: ApprovalRequest) -> dict[str, Any]:
        """The same, for the answer to a call that waits; from now on it was shown."""
        self._forms[request.id] = None
        return self.question(request)

    def was_shown(self, request: ApprovalRequest) -> bool:
        """True where the answer to a call held the question about this very request: another's decides nothing."""
        return request.id in self._forms

    def ask(self, request: ApprovalRequest) -> bytes | None:
        """The line that puts a question to a client; None where it was put before."""
        if request.id in self._asked:
            return None
        identity = f"{QUESTION}/{uuid.uuid4().hex}"  # no server can guess it, and ask in its place
        self._asked[request.id] = identity
        if self._decides(request):
            self._open[identity] = request
        if len(self._asked) > _MOST_QUESTIONS:
            self._open.pop(self._asked.popitem(last=False)[1], None)
        return written({"jsonrpc": "2.0", "id": identity, "method": CREATE, "params": self.question(request)})

    async def answered(self, message: Message) -> None:
        """Take the response to a question, the first one only. Raises StoreError."""
        request = self._open.pop(str(message.id), None)
        if request is not None:
            await self.take(request, message.values.get("result"))

    async def take(self, request: ApprovalRequest, answer: Any) -> None:
        """Store what an `ElicitResult` decides; anything but a clear decision is none. Raises StoreError."""
        kind, reason = _read(answer)
        if kind is not None and self._decides(request):
            decision = request.decide(kind, principal=PRINCIPAL, message=reason)
            await self._ledger.decide(decision, shown=card(request), wake=False)

    def _decides(self, request: ApprovalRequest) -> bool:
        whole = _whole_call(request) is not None and len(visible(request.reason)) <= _MOST_WHY
        return self._mode == "decide" and not request.unknown_outcome and whole and UNSHOWN not in request.reason


def is_answer(message: Message) -> bool:
    """Return True for the response to a question of the proxy itself."""
    return message.method is None and isinstance(message.id, str) and message.id.startswith(f"{QUESTION}/")


def elicits(capabilities: Any) -> bool:
    """Return True for a client that shows forms: it declares `elicitation`, and not for URLs alone."""
    found = capabilities.get("elicitation") if isinstance(capabilities, Mapping) else None
    return isinstance(found, Mapping) and (not found or "form" in found)


def elicits_here(params: Mapping[str, Any]) -> bool:
    """The same, as a request of a revision without a handshake says it."""
    return elicits(meta_in(params).get(_CAPABILITIES))


def _whole_call(request: ApprovalRequest) -> str | None:
    """The whole call as a human reads it; None where it is too long for a question."""
    if request.call is None:
        return None
    arguments = json.dumps(request.call.arguments, sort_keys=True, ensure_ascii=False)
    text = f"{visible(quoted(request.call.name))} {visible(arguments)}"
    return text if len(text) <= _MOST_CHARACTERS else None


def _read(answer: Any) -> tuple[Literal["approve", "reject"] | None, str | None]:
    """Return the decision in an `ElicitResult`, or None, and the reason."""
    if not isinstance(answer, Mapping):
        return None, None
    content = answer.get("content")
    content = content if isinstance(content, Mapping) else {}
    given = content.get("reason")
    reason = replace_lone_surrogates(given[:_MOST_REASON]) if isinstance(given, str) and given.strip() else None
    decision = content.get("decision")
    if answer.get("action") == "accept" and decision in ("approve", "reject"):
        return ("approve" if decision == "approve" else "reject"), reason
    return ("reject" if answer.get("action") == "decline" else None), reason
