"""Models for the demo's tests: they know some answers, and are as sure as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grampus_uq import Message, ModelResponse
from grampus_uq.cli.demo.demo_run import DemoPlan, demo_policy
from grampus_uq.cli.demo.questions import Question
from grampus_uq.core.state import Profile
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.recording import RecordingProcessor
from grampus_uq.testing import answer, top_logprobs

SURE, UNSURE = 0.97, 0.3

Reply = Callable[[Sequence[Message], Mapping[str, Any]], ModelResponse]


def examinee(questions: Sequence[Question], sureness: Mapping[str, float], *, wrong: Sequence[str] = ()) -> Reply:
    """A script for `ScriptedModel`: right on every question but `wrong`, with the sureness of the question's id.

    Sureness is the probability of every token of the answer and of "True" when it is asked about itself.
    """
    by_text = {question.text: question for question in questions}

    def reply(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        said_before = "\n".join(message.content or "" for message in messages)
        question = next(one for text, one in by_text.items() if text in said_before)
        sure = sureness[question.id]
        if messages[-1].content != question.text:
            return answer(
                "True", logprobs=[top_logprobs({"True": sure, "False": 0.99 - sure}, chosen="True")], usage=(40, 1)
            )
        said = "I have no idea" if question.id in wrong else question.key.accepted[0]
        return answer(said, logprobs=[top_logprobs({"x": sure, "y": 0.99 - sure}, chosen="x")] * 2, usage=(20, 2))

    return reply


class Watched(DemoPlan):
    """A run that keeps what its tool was given, in place of a file."""

    published: dict[str, str]

    def publish(self, question: Question, answer: str) -> str:
        assert question.id not in self.published, "published twice"
        self.published[question.id] = answer
        return "published"


def plan_for(
    questions: Sequence[Question], folder: Path, *, profile: Profile | None = None, parallel: int = 4
) -> Watched:
    """What `answer_questions` needs; what the tool is given stands in `published`, by question id."""
    recording = RecordingProcessor(folder, content="full")
    plan = Watched(
        questions=tuple(questions),
        out_of=len(questions),
        seed=0,
        model="scripted",
        run_id="demo-1",
        folder=folder,
        monitor=UncertaintyMonitor(profile=profile or Profile(policy=demo_policy()), processors=[recording]),
        recording=recording,
        tracer=None,
        parallel=parallel,
        max_tokens=24,
    )
    object.__setattr__(plan, "published", {})
    return plan
