"""The demo's agent: one answer a question, then `publish_answer`, which cannot be undone, if the monitor allows it.

Nothing is scripted: the model answers, the monitor senses, and `session.would_allow` decides.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import anyio
from opentelemetry.trace import Tracer

from grampus_uq.cli.demo.questions import Question
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.errors import ModelError, RateLimitedError
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.monitor.session import Session
from grampus_uq.recording.artifacts import prompt_hash, tools_hash
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import (
    Message,
    ModelResponse,
    Outcome,
    ToolCall,
)
from grampus_uq.records.vocabulary import Effect, Role, StopReason, UncertaintyAction
from grampus_uq.wire.model_call import ask_model, recorded_model
from grampus_uq.wire.responses import stream_of

TOOL: Final = "publish_answer"
_ANSWER_STEP: Final = "answer"
_PUBLISH_STEP: Final = "publish"
TOOL_SCHEMA: Final = {
    "name": TOOL,
    "description": "Publish an answer for everybody to read. It cannot be taken back.",
    "parameters": {
        "type": "object",
        "properties": {"question": {"type": "string"}, "answer": {"type": "string"}},
        "required": ["question", "answer"],
    },
}
AGENT: Final = "grampus-uq-demo"
_LABELLED_BY: Final = "answer key"
TOP_LOGPROBS: Final = 5

_FAILURES_IN_A_ROW: Final = 8
_RATE_LIMIT_WAITS_S: Final = (2.0, 8.0)
_LONGEST_WAIT_S: Final = 30.0

Fate = Literal["published", "paused", "aborted", "unanswered"]


def demo_policy() -> UncertaintyPolicy:
    """The default tiers with the fast and the slow path on, and the demo's tool among the irreversible ones."""
    return UncertaintyPolicy(enable_semantic_sampling=True, irreversible_tool_names=[TOOL])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One question, its answer and the decision; its readings are in the recording.

    `fate`: published, paused, aborted or unanswered. `wanted`: the action of the policy (under an advisory monitor
    maybe a pause although the answer was published). `right`: grade by the answer key, None without an answer.
    """

    question: Question
    session_id: str
    fate: Fate
    answer: str = ""
    right: bool | None = None
    wanted: UncertaintyAction | None = None
    error: str = ""


class ShortAnswers:
    """A model client with a limit on the tokens of every answer that names none: the sampled ones, above all."""

    def __init__(self, client: ModelClient, max_tokens: int) -> None:
        self._client = client
        self._max_tokens = max_tokens

    async def complete(self, *, messages: Sequence[Message], model: str = "", **options: Any) -> ModelResponse:
        """Ask the client, with what it takes of the options."""
        if options.get("max_tokens") is None:
            options["max_tokens"] = self._max_tokens
        return await ask_model(self._client, messages, model, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Parts of a run of the demo. `publish` is the irreversible tool: question, answer -> its result.

    `run_id` begins every session id. With a `tracer` every question is one span, the parent of the monitor's.
    """

    client: ModelClient
    model: str
    monitor: UncertaintyMonitor
    publish: Callable[[Question, str], str]
    run_id: str
    parallel: int = 4
    max_tokens: int = 24
    tracer: Tracer | None = None


async def answer_questions(work: Work, questions: Sequence[Question], on_answered: Callable[[Answered], None]) -> None:
    """Answer every question, `parallel` at a time; `on_answered` receives each in the order in which they end.

    The first question runs alone: if the model is unavailable, its error is raised before the others are tried.
    Also raises ModelError when eight questions in a row got no answer. When cancelled, the open sessions are recorded
    as cancelled.
    """
    waiting = iter(questions)
    in_a_row = 0
    reason_to_end: ModelError | None = None

    async def answer_next(most_failures: int) -> bool:
        """Take the next question; False when there is none, or when too many failed."""
        nonlocal in_a_row, reason_to_end
        question = next(waiting, None) if reason_to_end is None else None
        if question is None:
            return False
        try:
            answered = await _run_question(work, question)
            in_a_row = 0
        except _NoAnswerError as failure:
            answered = failure.answered
            in_a_row += 1
            if in_a_row >= most_failures:
                reason_to_end = failure.error
        on_answered(answered)
        return reason_to_end is None

    async def answer_all() -> None:
        while await answer_next(_FAILURES_IN_A_ROW):
            pass

    if await answer_next(1):
        try:
            async with anyio.create_task_group() as group:
                for _ in range(work.parallel):
                    group.start_soon(answer_all)
        except ExceptionGroup as errors:
            raise _first_of(errors) from None  # as it came: the others ended because of it
    if reason_to_end is not None:
        raise reason_to_end


def _first_of(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


class _NoAnswerError(Exception):
    """The agent's own model call failed."""

    def __init__(self, answered: Answered, error: ModelError) -> None:
        super().__init__(str(error))
        self.answered = answered
        self.error = error


async def _run_question(work: Work, question: Question) -> Answered:
    session_id = f"{work.run_id}-{question.id}"
    with _span(work.tracer, session_id):
        session = work.monitor.session(
            session_id,
            AGENT,
            model=recorded_model(work.client, work.model),
            prompt_hash=prompt_hash(""),  # the agent has no standing instructions
            tools_hash=tools_hash([TOOL_SCHEMA]),
            metadata={"question": question.id, "topic": question.topic},
        )
        try:
            return await _answer_and_publish(work, question, session)
        except ModelError as error:
            session.finish(_outcome(None, StopReason.ENV_TERMINATED, note=type(error).__name__))
            answered = Answered(
                question=question,
                session_id=session_id,
                fate="unanswered",
                error=str(error),
            )
            raise _NoAnswerError(answered, error) from error
        except anyio.get_cancelled_exc_class():
            session.finish(_outcome(None, StopReason.CANCELLED))
            raise


async def _answer_and_publish(work: Work, question: Question, session: Session) -> Answered:
    """The agent's whole run: ask, sense, propose to publish, and publish only if it is allowed."""
    prompt = [Message(role=Role.USER, content=question.text)]
    reply = await _ask_patiently(work, prompt)
    answer = reply.content.strip()
    if not answer:
        raise ModelError(f"The model's answer was empty (it may have up to {work.max_tokens} tokens: --max-tokens).")
    session.observe_user(question.text)
    await session.observe_llm_response(
        answer,
        _ANSWER_STEP,
        prompt_messages=prompt,
        model_client=ShortAnswers(work.client, work.max_tokens),
        model_id=work.model,
        logprobs=stream_of(reply),
        usage=reply.token_usage,
    )
    call = ToolCall(id=_PUBLISH_STEP, name=TOOL, arguments={"question": question.text, "answer": answer})
    verdict = session.would_allow(call, effect=Effect.IRREVERSIBLE)
    proposed, action = await session.observe_tool_call(call, _PUBLISH_STEP, effect=Effect.IRREVERSIBLE)
    fate: Fate = "aborted" if verdict.action is UncertaintyAction.ABORT else "paused"
    if verdict.allowed and not action.stops:
        session.observe_tool_result(call.id, work.publish(question, answer))
        fate = "published"
    right = question.is_right(answer)
    session.finish(_outcome(right, StopReason.CLEAN if fate == "published" else StopReason.MONITOR_STOP))
    return Answered(
        question=question,
        session_id=session.session_id,
        fate=fate,
        answer=answer,
        right=right,
        wanted=proposed.advisory_action or action,
    )


async def _ask_patiently(work: Work, prompt: Sequence[Message]) -> ModelResponse:
    """Ask the agent's question; after a rate limit wait and ask again, at most twice."""
    options = {"temperature": 0.0, "max_tokens": work.max_tokens, "top_logprobs": TOP_LOGPROBS}
    for wait_s in _RATE_LIMIT_WAITS_S:
        try:
            return await ask_model(work.client, prompt, work.model, options)
        except RateLimitedError as error:
            await anyio.sleep(min(error.retry_after_s or wait_s, _LONGEST_WAIT_S))
    return await ask_model(work.client, prompt, work.model, options)


def _outcome(success: bool | None, stop_reason: StopReason, *, note: str | None = None) -> Outcome:
    known = None if success is None else _LABELLED_BY
    return Outcome(success=success, stop_reason=stop_reason, labelled_by=known, time_s=time.time(), note=note)


@contextlib.contextmanager
def _span(tracer: Tracer | None, session_id: str) -> Iterator[None]:
    """One span a question, named by the conventions for agents; the monitor's spans are its children."""
    if tracer is None:
        yield
        return
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": AGENT,
        "gen_ai.conversation.id": session_id,
    }
    with tracer.start_as_current_span(f"invoke_agent {AGENT}", attributes=attributes):
        yield
