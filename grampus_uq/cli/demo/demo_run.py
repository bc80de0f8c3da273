"""The demo's questions: one answer each, then `publish_answer`, which cannot be undone, if the monitor allows it.

Nothing is scripted: the model answers, the monitor senses, and `session.would_allow` decides.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import anyio.to_thread

from grampus_uq import Sensing
from grampus_uq.cli.demo.questions import Question, all_questions, draw
from grampus_uq.core.estimator import UncertaintyEstimator
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.errors import ConfigurationError, DataError, ModelError, RateLimitedError
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.monitor.session import Session
from grampus_uq.recording import RecordingProcessor
from grampus_uq.recording.artifacts import load, prompt_hash, tools_hash
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, ModelResponse, Outcome, ToolCall
from grampus_uq.records.vocabulary import Effect, Role, StopReason, UncertaintyAction
from grampus_uq.runtime.concurrent_tasks import run_together
from grampus_uq.signals.driver import Budget
from grampus_uq.telemetry.tracer import GrampusTracer
from grampus_uq.wire.model_call import ask_model, recorded_model
from grampus_uq.wire.responses import stream_of

DEFAULT_N: Final = 60
PUBLISHED: Final = "published.txt"

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
_TOP_LOGPROBS: Final = 5
# Generous, because the embedded model may share two cores with whatever else this machine does.
_SIGNAL_TIMEOUT_S: Final = 90.0
_FLUSH_S: Final = 5.0
_ALWAYS_SLOW: Final = UncertaintyEstimator(semantic_trigger_low=0.0, semantic_trigger_high=1.0)
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
    error: ModelError | None = None


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
class DemoPlan:
    """A run to come: the drawn questions, out of how many, and the folder of the run."""

    questions: tuple[Question, ...]
    out_of: int
    seed: int
    model: str
    run_id: str
    folder: Path
    monitor: UncertaintyMonitor
    recording: RecordingProcessor
    tracer: GrampusTracer | None
    parallel: int
    max_tokens: int

    @property
    def next_command(self) -> str:
        """Command for the recorded runs: list them, or fit on them after an advisory run."""
        what = "fit" if self.monitor.profile.advisory else "runs list"
        return f"grampus-uq {what} {shlex.quote(str(self.folder))}"

    def publish(self, question: Question, answer: str) -> str:
        """The tool: appends a line to a file. In production it would be a mail, a deletion, a deployment."""
        line, path = "\t".join(" ".join(text.split()) for text in (question.text, answer)), self.folder / PUBLISHED
        try:
            with path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(line + "\n")
        except OSError as error:
            raise DataError(f"cannot be written: {error.strerror or error}.", path=str(path)) from error
        return "published"


def plan_demo(
    *,
    model: str,
    n: int = DEFAULT_N,
    seed: int = 0,
    runs_folder: str = "runs",
    otlp_endpoint: str | None = None,
    parallel: int = 4,
    max_tokens: int = 24,
    advisory: bool = False,
    every_signal: bool = False,
    profile_file: str | None = None,
) -> DemoPlan:
    """Draw the questions and wire the monitor; the run's own folder is made under `runs_folder`, nothing is asked yet.

    With `every_signal` the slow path is taken for every answer, not only where the fast signals are undecided: what a
    profile is best fitted on. A `profile_file` is an artifact of `grampus-uq fit`: it decides in place of the default
    tiers, where it was fitted for this model and agent (else it only advises, or the run is refused).

    Raises DataError for a wrong profile, ConfigurationError for a number that cannot be right, OSError for a folder
    that cannot be made.
    """
    if every_signal and profile_file is not None:
        raise ConfigurationError.of(
            "every_signal", "plan_demo", "left out with a profile", every_signal, "The profile says which signals run."
        )
    artifact = None if profile_file is None else load(profile_file)
    pool = all_questions(seed)
    chosen = draw(pool, n, seed)
    run_id = time.strftime("demo-%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(2)
    folder = Path(runs_folder).expanduser() / run_id
    recording = RecordingProcessor(folder, content="full")
    tracer = (
        None if otlp_endpoint is None else GrampusTracer(service_name="grampus-uq-demo", otlp_endpoint=otlp_endpoint)
    )
    return DemoPlan(
        questions=tuple(chosen),
        out_of=len(pool),
        seed=seed,
        model=model,
        run_id=run_id,
        folder=folder,
        monitor=UncertaintyMonitor(
            profile=artifact,
            policy=None if artifact else demo_policy(),
            estimator=_ALWAYS_SLOW if every_signal else None,
            tracer=tracer,
            processors=[recording],
            advisory=advisory,
            trajectory_risk=None if artifact else TrajectoryRiskSettings(),
            sensing=Sensing(budget=Budget(timeout_s=_SIGNAL_TIMEOUT_S)),
        ),
        recording=recording,
        tracer=tracer,
        parallel=parallel,
        max_tokens=max_tokens,
    )


@contextlib.asynccontextmanager
async def completing(plan: DemoPlan) -> AsyncIterator[None]:
    """Complete recording and spans however the block ends; a run without a session leaves no folder."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(plan.recording.close)
            if plan.tracer is not None:
                await anyio.to_thread.run_sync(plan.tracer.force_flush, _FLUSH_S)
                await anyio.to_thread.run_sync(plan.tracer.shutdown)
        if not any(plan.folder.glob("*.jsonl")):
            shutil.rmtree(plan.folder, ignore_errors=True)


async def answer_questions(plan: DemoPlan, client: ModelClient, on_answered: Callable[[Answered], None]) -> None:
    """Answer every question, `parallel` at a time; `on_answered` receives each in the order in which they end.

    The first question runs alone: if the model is unavailable, its error is raised before the others are tried.
    Also raises ModelError when eight questions in a row got no answer. When cancelled, the open sessions are recorded
    as cancelled.
    """
    waiting = iter(plan.questions)
    in_a_row = 0
    reason_to_end: ModelError | None = None

    async def answer_next(most_failures: int) -> bool:
        """Take the next question; False when there is none, or when too many failed."""
        nonlocal in_a_row, reason_to_end
        question = next(waiting, None) if reason_to_end is None else None
        if question is None:
            return False
        answered = await _run_question(plan, client, question)
        in_a_row = 0 if answered.error is None else in_a_row + 1
        if in_a_row >= most_failures:
            reason_to_end = answered.error
        on_answered(answered)
        return reason_to_end is None

    async def answer_all() -> None:
        while await answer_next(_FAILURES_IN_A_ROW):
            pass

    if await answer_next(1):
        await run_together([answer_all] * plan.parallel)
    if reason_to_end is not None:
        raise reason_to_end


async def _run_question(plan: DemoPlan, client: ModelClient, question: Question) -> Answered:
    session_id = f"{plan.run_id}-{question.id}"
    with _span(plan.tracer, session_id):
        session = plan.monitor.session(
            session_id,
            AGENT,
            model=recorded_model(client, plan.model),
            prompt_hash=prompt_hash(""),  # the agent has no standing instructions
            tools_hash=tools_hash([TOOL_SCHEMA]),
            metadata={"question": question.id, "topic": question.topic},
        )
        try:
            return await _answer_and_publish(plan, client, question, session)
        except ModelError as error:
            session.finish(_outcome(None, StopReason.ENV_TERMINATED, note=type(error).__name__))
            return Answered(question=question, session_id=session_id, fate="unanswered", error=error)
        except anyio.get_cancelled_exc_class():
            session.finish(_outcome(None, StopReason.CANCELLED))
            raise


async def _answer_and_publish(plan: DemoPlan, client: ModelClient, question: Question, session: Session) -> Answered:
    """The agent's whole run: ask, sense, propose to publish, and publish only if it is allowed."""
    prompt = [Message(role=Role.USER, content=question.text)]
    short = ShortAnswers(client, plan.max_tokens)
    reply = await _ask_patiently(short, plan.model, prompt)
    answer = reply.content.strip()
    if not answer:
        raise ModelError(f"The model's answer was empty (it may have up to {plan.max_tokens} tokens: --max-tokens).")
    session.observe_user(question.text)
    await session.observe_llm_response(
        answer,
        _ANSWER_STEP,
        prompt_messages=prompt,
        model_client=short,
        model_id=plan.model,
        logprobs=stream_of(reply),
        usage=reply.token_usage,
    )
    call = ToolCall(id=_PUBLISH_STEP, name=TOOL, arguments={"question": question.text, "answer": answer})
    verdict = session.would_allow(call, effect=Effect.IRREVERSIBLE)
    proposed, action = await session.observe_tool_call(call, _PUBLISH_STEP, effect=Effect.IRREVERSIBLE)
    fate: Fate = "aborted" if verdict.action is UncertaintyAction.ABORT else "paused"
    if verdict.allowed and not action.stops:
        session.observe_tool_result(call.id, plan.publish(question, answer))
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


async def _ask_patiently(client: ModelClient, model: str, prompt: Sequence[Message]) -> ModelResponse:
    """Ask the agent's question; after a rate limit wait and ask again, at most twice."""
    options = {"temperature": 0.0, "top_logprobs": _TOP_LOGPROBS}
    for wait_s in _RATE_LIMIT_WAITS_S:
        try:
            return await ask_model(client, prompt, model, options)
        except RateLimitedError as error:
            await anyio.sleep(min(error.retry_after_s or wait_s, _LONGEST_WAIT_S))
    return await ask_model(client, prompt, model, options)


def _outcome(success: bool | None, stop_reason: StopReason, *, note: str | None = None) -> Outcome:
    known = None if success is None else _LABELLED_BY
    return Outcome(success=success, stop_reason=stop_reason, labelled_by=known, time_s=time.time(), note=note)


@contextlib.contextmanager
def _span(tracer: GrampusTracer | None, session_id: str) -> Iterator[None]:
    """One span a question, named by the conventions for agents; the monitor's spans are its children."""
    if tracer is None:
        yield
        return
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": AGENT,
        "gen_ai.conversation.id": session_id,
    }
    own = tracer.provider.get_tracer("grampus_uq.cli.demo")
    with own.start_as_current_span(f"invoke_agent {AGENT}", attributes=attributes):
        yield
