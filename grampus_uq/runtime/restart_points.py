"""The step of the model from which a failed run restarts, and the note for the model, from a prediction set.

A set is anything with the few attributes of an `Attribution`. Step ids are those of a recording ("llm_3",
"llm_3/observation-1") or of the transcript (numbers of messages).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from grampus_uq.errors import ConfigurationError
from grampus_uq.importers.imported_run import ImportedRun
from grampus_uq.records.values import Outcome
from grampus_uq.records.vocabulary import Role
from grampus_uq.runtime.checkpoints import checkpoints_of
from grampus_uq.runtime.rolled_back_calls import step_number
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.store import SessionStore

_QUOTED = 3
_QUOTE = 500
_OTHERS = tuple(role.value for role in Role if role is not Role.ASSISTANT)


class SuspectStep(Protocol):
    """A step of the run, as attribution scored it."""

    @property
    def step_id(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def speaker(self) -> str: ...
    @property
    def observation(self) -> bool: ...
    @property
    def score(self) -> float | None: ...


class SuspectSet(Protocol):
    """A prediction set, such as `Attribution` of `grampus_uq.learn`; `set_steps` are ascending indices of steps."""

    @property
    def trajectory_id(self) -> str: ...
    @property
    def steps(self) -> Sequence[SuspectStep]: ...
    @property
    def set_steps(self) -> Sequence[int]: ...


def run_of(state: AgentState) -> ImportedRun:
    """A stored run, for attribution, under the session's id and the branch; its outcome is not known here."""
    return ImportedRun(
        run_id=f"{state.session_id}#{state.branch}",
        path="session store",
        line=1,
        messages=tuple(state.messages),
        outcome=Outcome(success=None),
        shape="chat",
        task_id=state.session_id,
    )


async def restart_step(store: SessionStore, state: AgentState, found: SuspectSet, *, from_start: bool = False) -> int:
    """The step of the model before which a rollback by this set restarts: the one that its first step belongs to.

    An observation belongs to the step whose call it answers. Raises ConfigurationError as `recover`.
    """
    if found.trajectory_id not in (state.session_id, f"{state.session_id}#{state.branch}"):
        rule = f"a set of session {state.session_id!r:.80} as it stands (branch {state.branch})"
        raise ConfigurationError.of("prediction_set", "recover", rule, found.trajectory_id)
    if not found.set_steps:
        hint = "the set is empty; look at the most suspect step and call rollback"
        raise ConfigurationError.of("prediction_set", "recover", "a set with a step", found.set_steps, hint)
    first, last = found.set_steps[0], found.set_steps[-1]
    if first == 0 and last < len(found.steps) - 1 and not from_start:
        hint = (
            "going back to its first step is a restart from scratch: use a suffix method (lf_envelope or lf), "
            "or say from_start=True"
        )
        raise ConfigurationError.of("prediction_set", "recover", "no prefix of the run", found.set_steps, hint)
    step_id = found.steps[first].step_id
    number = step_number(step_id)
    if number is not None:
        return number
    if not (step_id.isascii() and step_id.isdigit()) or int(step_id) >= len(state.messages):
        rule = "over steps of this run: llm_N, or numbers of its messages"
        raise ConfigurationError.of("prediction_set", "recover", rule, step_id)
    before = [
        c for c in await checkpoints_of(store, state) if c.messages <= int(step_id) and c.step < state.current_step
    ]
    return max((checkpoint.step for checkpoint in before), default=0)


def what_failed(found: SuspectSet, failure: str | None, *, limit: int) -> str:
    """The note for the model: the failure, and the most suspect steps, quoted.

    Only the agent's own steps are quoted: text of a tool or a page must not return with a user's authority.
    """
    lines = [f"The failure: {failure[: limit // 2]}"] if failure else []
    inside = [found.steps[i] for i in found.set_steps]
    own = [step for step in inside if not step.observation and step.speaker not in _OTHERS and step.text.strip()]
    ranked = sorted(own, key=lambda step: -(step.score if step.score is not None else float("-inf")))[:_QUOTED]
    if ranked:
        lines.append("The error is suspected in what you said then, the most suspect first:")
        for step in ranked:
            text = " ".join(step.text.split())
            lines.append(f'- "{text if len(text) <= _QUOTE else text[: _QUOTE - 1] + "…"}"')
    return "\n".join(lines)[:limit]
