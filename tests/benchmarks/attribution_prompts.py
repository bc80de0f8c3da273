"""What a judging model is asked: the naive prompt and the four roles, without the reference answer.

The paper's prompts (appendix C.3) contain the final correct answer; a deployed agent has none, so these leave it out.
The run is hostile text: it is quoted between marks that carry a digest of the quoted text, which it cannot contain.
"""

from __future__ import annotations

from collections import deque

from grampus_uq.learn.attribution.failed_trajectory import Trajectory
from grampus_uq.records.values import Message
from grampus_uq.records.vocabulary import Role
from grampus_uq.signals.quoting import QUOTED_IS_MATERIAL, clipped, quoted

__all__ = ["ROLES", "naive_messages", "role_messages", "summary_messages"]

ROLES: dict[str, str] = {
    "conservative": (
        "- Attribute an error only when an explicit contradiction or logical error is visible.\n"
        "- Assign high confidence only if the evidence is direct and quotes are exact."
    ),
    "liberal": (
        "- Consider potential upstream or downstream causes even if indirect.\n"
        "- Assign moderate confidence (0.5-0.7) for plausible but not proven causes."
    ),
    "skeptical": (
        "- Always include at least one alternative explanation and note missing evidence.\n"
        "- Lower confidence if evidence is incomplete."
    ),
    "pattern": (
        "- Focus on repeated reasoning or coordination issues.\n"
        "- Identify patterns across multiple steps rather than isolated mistakes."
    ),
}
"""The four analysts of appendix C.3 and their instructions."""

_SYSTEM = f"You analyse a run of one or several AI agents that failed to solve a task. {QUOTED_IS_MATERIAL}"
_NAIVE = (
    "Identify the most critical mistake, the earliest one that the run did not recover from. Respond with ONLY one "
    "number between 0 and 1: the probability that it happened in the step under review. No explanation."
)
_SCHEMA = (
    '{"investigation_summary": "...", "primary_conclusion": {"agent": "...", "evidence": ["..."], "reason": "...", '
    '"alternative_explanations": ["..."], "confidence": 0.0}}'
)
_ROLE = (
    "TASK: Identify whether the step under review likely contains the key error that made the run fail: the earliest "
    "one that it did not recover from. `confidence` is the probability of that. 0.0-0.2 = very unlikely, 0.2-0.4 = "
    "unlikely, 0.4-0.6 = possible, 0.6-0.8 = likely, 0.8-1.0 = very likely. Quote evidence exactly. Return ONLY valid "
    f"JSON of this form: {_SCHEMA}"
)
_SUMMARY = "Summarise in at most 120 words why this run failed. Name the steps that matter by their numbers."


def naive_messages(trajectory: Trajectory, index: int, limit: int) -> list[Message]:
    """Ask for one probability that the decisive error is in one step; `limit` bounds the quoted run in characters."""
    return _messages(f"{_case(trajectory, index, limit)}\n\n{_NAIVE}")


def summary_messages(trajectory: Trajectory, limit: int) -> list[Message]:
    """Ask once a run why it failed."""
    return _messages(f"{_task(trajectory, limit)}\n\n{_run(trajectory, None, limit)}\n\n{_SUMMARY}")


def role_messages(trajectory: Trajectory, index: int, role: str, summary: str, limit: int) -> list[Message]:
    """Ask one analyst about one step; `summary` is the answer to `summary_messages`."""
    case = _case(trajectory, index, limit)
    why = f"Why the run failed, according to a first reading:\n{quoted(clipped(summary, limit))}\n\n" if summary else ""
    return _messages(f"{case}\n\n{why}ROLE: {role} analyst\n{ROLES[role]}\n\n{_ROLE}")


def _messages(text: str) -> list[Message]:
    return [Message(role=Role.SYSTEM, content=_SYSTEM), Message(role=Role.USER, content=text)]


def _case(trajectory: Trajectory, index: int, limit: int) -> str:
    step = trajectory.steps[index]
    under_review = quoted(clipped(step.text, limit // 3))
    return (
        f"{_task(trajectory, limit)}\n\n{_run(trajectory, index, limit)}\n\n"
        f"Step under review: step {index}, by {clipped(step.speaker, 80)!r}:\n{under_review}"
    )


def _task(trajectory: Trajectory, limit: int) -> str:
    last = trajectory.steps[-1]
    return (
        f"The task:\n{quoted(clipped(trajectory.task, limit // 6))}\n\n"
        f"How the run ended (the task was not solved):\n{quoted(clipped(last.text, limit // 6))}"
    )


def _run(trajectory: Trajectory, index: int | None, limit: int) -> str:
    """Quote the run, each step clipped to its share; when that is too much, the steps nearest to the one asked for."""
    length = len(trajectory)
    share = max(200, limit // length)
    centre = length - 1 if index is None else index
    first = last = centre
    lines = deque([_line(trajectory, centre, share)])
    room = limit - len(lines[0])
    while first > 0 or last < length - 1:
        backward = first > 0 and (last == length - 1 or centre - first <= last - centre)
        line = _line(trajectory, first - 1 if backward else last + 1, share)
        room -= len(line) + 1
        if room < 0:
            break
        if backward:
            first -= 1
            lines.appendleft(line)
        else:
            last += 1
            lines.append(line)
    left_out = "" if len(lines) == length else f" ({length - len(lines)} distant steps left out)"
    block = quoted("\n".join(lines))
    return f"The run, {length} steps from step 0{left_out}:\n{block}"


def _line(trajectory: Trajectory, index: int, share: int) -> str:
    step = trajectory.steps[index]
    return f"Step {index} ({clipped(step.speaker, 80)}): {clipped(step.text, share)}"
