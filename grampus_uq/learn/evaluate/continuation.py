"""The measured continuation weight: stopped runs are taken up again and again, and the share that succeeds is q.

The caller supplies one coroutine that resumes a stored prefix once. It runs many at a time, a bounded number; what it
answered is kept in a file, so that a measurement that was interrupted is taken up and never paid for twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import anyio

from grampus_uq.errors import ConfigurationError, DataError, ModelError, StoreError

__all__ = ["LEAST_RESOLVED", "MOST_ROLLOUTS", "ContinuationEstimate", "RolloutFile", "measure_continuations"]

MOST_ROLLOUTS = 10
LEAST_RESOLVED = 5

Resume = Callable[[str, int], Awaitable[bool | None]]
"""(run id, number of the rollout from 0) -> success, or None when it did not come to an end either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationEstimate:
    """What became of the rollouts of one run."""

    succeeded: int
    failed: int
    unresolved: int
    least_resolved: int = LEAST_RESOLVED

    @property
    def resolved(self) -> int:
        """Rollouts that came to an end."""
        return self.succeeded + self.failed

    @property
    def q(self) -> float | None:
        """Share of successes among those resolved; None when too few are: a guess would pass for a measurement."""
        return self.succeeded / self.resolved if self.resolved >= max(1, self.least_resolved) else None

    @property
    def low(self) -> float:
        """q if every unresolved rollout had failed; 0 without a rollout."""
        total = self.resolved + self.unresolved
        return self.succeeded / total if total else 0.0

    @property
    def high(self) -> float:
        """q if every unresolved rollout had succeeded; 1 without a rollout."""
        total = self.resolved + self.unresolved
        return (self.succeeded + self.unresolved) / total if total else 1.0


class RolloutFile:
    """Answers that were already paid for, one JSON line each; written and flushed as each rollout ends.

    `setting` names what the rollouts depend on (model, prompt, tools): lines of another setting are kept and not used.
    One process writes at a time.
    """

    def __init__(self, path: str | os.PathLike[str], *, setting: str = "") -> None:
        """Read what is there. Raises DataError for a damaged line; an unfinished last one is cut off."""
        self._path, self._setting = Path(path), setting
        self._known: dict[tuple[str, int], bool | None] = {}
        if self._path.exists():
            self._read()

    def get(self, run_id: str, rollout: int) -> tuple[bool | None] | None:
        """Return the answer in a tuple, or None when there is none yet."""
        key = (run_id, rollout)
        return (self._known[key],) if key in self._known else None

    def put(self, run_id: str, rollout: int, success: bool | None) -> None:
        """Keep an answer."""
        self._known[run_id, rollout] = success
        line = {"setting": self._setting, "run_id": run_id, "rollout": rollout, "success": success}
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def _read(self) -> None:
        data = self._path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self._path, whole)
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            try:
                found = json.loads(line)
                run_id, rollout, success = found["run_id"], found["rollout"], found["success"]
                setting = found["setting"]
            except (ValueError, KeyError, TypeError) as error:
                raise DataError("is no kept rollout.", path=os.fspath(self._path), line=number) from error
            if (
                type(run_id) is not str
                or type(rollout) is not int
                or (success is not None and type(success) is not bool)
            ):
                raise DataError("is no kept rollout.", path=os.fspath(self._path), line=number)
            if setting == self._setting:
                self._known[run_id, rollout] = success


async def measure_continuations(
    run_ids: Iterable[str],
    resume: Resume,
    *,
    rollouts: int = MOST_ROLLOUTS,
    least_resolved: int = LEAST_RESOLVED,
    concurrency: int = 8,
    timeout_s: float | None = None,
    kept: RolloutFile | None = None,
) -> dict[str, ContinuationEstimate]:
    """Resume each stopped run several times and count how it ends: `q = successes / resolved`.

    All rollouts of a run are made, also after enough have resolved: those that end first are not like the others.

    Args:
        run_ids: censored runs; a repeated id is measured once.
        resume: takes a stored prefix up once, from its last step and with new randomness, and says how it ended. A
            ModelError, StoreError, TimeoutError or OSError that it raises leaves that rollout unresolved, and it is
            tried again next time; anything else ends the measurement.
        rollouts: of each run, 1 to 10.
        least_resolved: fewer give no q, 1 to `rollouts`.
        concurrency: rollouts at a time, at least 1.
        timeout_s: limit of one rollout; None: none. One that is too slow is unresolved.
        kept: answers already paid for.

    Returns:
        An estimate for every id.

    Raises:
        ConfigurationError: an argument outside its domain, or an answer that is neither True, False nor None.

    Source: Trajectory Proper Score paper, App. H (Monte Carlo continuation).
    """
    names = list(dict.fromkeys(run_ids))
    for parameter, value, least, most in (
        ("rollouts", rollouts, 1, MOST_ROLLOUTS),
        ("least_resolved", least_resolved, 1, rollouts),
        ("concurrency", concurrency, 1, 10_000),
    ):
        if not least <= value <= most:
            raise ConfigurationError.of(parameter, "measure_continuations", f"from {least} to {most}", value)
    answers: dict[str, list[bool | None]] = {name: [] for name in names}
    work = iter([(name, number) for name in names for number in range(rollouts)])
    broken: list[BaseException] = []

    async def take_up(scope: anyio.CancelScope) -> None:
        for name, number in work:
            try:
                answers[name].append(await _rollout(resume, name, number, timeout_s, kept))
            except Exception as error:  # noqa: BLE001 (raised below: a task group would wrap it)
                broken.append(error)
                scope.cancel()
                return

    async with anyio.create_task_group() as group:
        for _ in range(min(concurrency, len(names) * rollouts)):
            group.start_soon(take_up, group.cancel_scope)
    if broken:
        raise broken[0]
    return {
        name: ContinuationEstimate(
            succeeded=found.count(True),
            failed=found.count(False),
            unresolved=found.count(None),
            least_resolved=least_resolved,
        )
        for name, found in answers.items()
    }


async def _rollout(
    resume: Resume, name: str, number: int, timeout_s: float | None, kept: RolloutFile | None
) -> bool | None:
    known = kept.get(name, number) if kept is not None else None
    if known is not None:
        return known[0]
    try:
        with anyio.fail_after(timeout_s):
            answer = await resume(name, number)
    except (ModelError, StoreError, TimeoutError, OSError):
        return None
    if answer is not None and type(answer) is not bool:
        raise ConfigurationError.of("resume", "measure_continuations", "a function to True, False or None", answer)
    if kept is not None:
        kept.put(name, number, answer)
    return answer
