"""Puts one run of the demo together: questions, model, monitor, recording, spans, and the tool that publishes."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from grampus_uq import Sensing
from grampus_uq.cli.demo.demo_run import Answered, Work, answer_questions, demo_policy
from grampus_uq.cli.demo.questions import Question, all_questions, draw
from grampus_uq.core.estimator import UncertaintyEstimator
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.recording import RecordingProcessor
from grampus_uq.recording.artifacts import load
from grampus_uq.records.protocols import ModelClient
from grampus_uq.signals.driver import Budget
from grampus_uq.telemetry.tracer import GrampusTracer

DEFAULT_N: Final = 60
PUBLISHED: Final = "published.txt"
# Generous, because the embedded model may share two cores with whatever else this machine does.
_SIGNAL_TIMEOUT_S: Final = 90.0
_FLUSH_S: Final = 5.0
_ALWAYS_SLOW: Final = UncertaintyEstimator(semantic_trigger_low=0.0, semantic_trigger_high=1.0)


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

    Raises DataError for a wrong profile, or a folder that cannot be written, ConfigurationError for
    a number that cannot be right.
    """
    if parallel < 1:
        raise ConfigurationError.of("parallel", "plan_demo", "at least 1", parallel)
    if max_tokens < 1:
        raise ConfigurationError.of("max_tokens", "plan_demo", "at least 1", max_tokens)
    if every_signal and profile_file is not None:
        raise ConfigurationError.of(
            "every_signal", "plan_demo", "left out with a profile", every_signal, "The profile says which signals run."
        )
    artifact = None if profile_file is None else load(profile_file)
    pool = all_questions(seed)
    chosen = draw(pool, n, seed)
    run_id = time.strftime("demo-%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(2)
    folder = Path(runs_folder).expanduser() / run_id
    try:
        recording = RecordingProcessor(folder, content="full")
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}.", path=str(folder)) from error
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


async def run_demo(plan: DemoPlan, client: ModelClient, on_answered: Callable[[Answered], None]) -> None:
    """Answer the plan's questions with a model, inside `completing`. Raises as `answer_questions` does."""
    published = _Publisher(plan.folder / PUBLISHED)
    work = Work(
        client=client,
        model=plan.model,
        monitor=plan.monitor,
        publish=published.publish,
        run_id=plan.run_id,
        parallel=plan.parallel,
        max_tokens=plan.max_tokens,
        tracer=None if plan.tracer is None else plan.tracer.provider.get_tracer("grampus_uq.cli.demo"),
    )
    await answer_questions(work, plan.questions, on_answered)


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


class _Publisher:
    """The tool: appends to a file. In production it would be a mail, a deletion, a deployment."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def publish(self, question: Question, answer: str) -> str:
        """Write question and answer on one line; returns the tool's result."""
        line = "\t".join(" ".join(text.split()) for text in (question.text, answer))
        try:
            with self._path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(line + "\n")
        except OSError as error:
            raise DataError(f"cannot be written: {error.strerror or error}.", path=str(self._path)) from error
        return "published"
