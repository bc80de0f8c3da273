"""The watch on a detector's calibration, kept in a session store that any number of workers share.

Every finished run counts once, whoever reports it, in whatever order, however often; its label may come days later,
from another process, or never. Of the trials of a task only the first that is reported counts. Three kinds of documents
hold that together:

- `watch-task`, one a task: the run that counts for it;
- `watch-run`, one a run: its evidence, its label, and in which variants it is counted;
- `watch`, one a detector: the martingales, and the runs that the newest version counted.

A writer first writes the counts of the newest version into the documents of its runs, then reads the run's own, then
writes the next version by compare-and-set. So whoever reads a version knows of every run that is in it, and a writer
that dies in between leaves nothing that the next one would count again or lose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeVar
from urllib.parse import quote

import anyio
from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator

from grampus_uq.errors import ConfigurationError, SessionConflictError, StoreError
from grampus_uq.monitor.session import Session
from grampus_uq.records.values import Outcome
from grampus_uq.records.vocabulary import StopReason
from grampus_uq.runtime.store import Document, SessionStore, parsed
from grampus_uq.stats.calibration_watch import (
    CalibrationWatchState,
    FinishedRun,
    Variant,
    WatchStatus,
    start_watching,
    take_run,
    watch_statuses,
)
from grampus_uq.stats.eprocess import Detector
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates

_WATCH, _RUN, _TASK = "watch", "watch-run", "watch-task"
_TRIES = 100
Read = TypeVar("Read", bound=BaseModel)


def finished_run(
    session: Session, outcome: Outcome, *, touched: bool = False, task: str | None = None
) -> FinishedRun | None:
    """The run of a session that has ended, for the watch; also of one that was resumed in another process.

    None for a run unlike those that the detector, which looks at irreversible calls, was calibrated on: it had none, or
    came under the detector when it was under way. Only one that ended by itself (`clean`) has an outcome of its own.
    `touched`: a human changed the run in a way that the session does not know; `task`: as in `FinishedRun`.

    Raises ConfigurationError where the session's profile has no detector.
    """
    detector, alarm = session.profile.detector, session.state.alarm
    if detector is None:
        raise ConfigurationError.of("session", "finished_run", "one whose profile has a detector", session.session_id)
    alarmed = session.state.alarmed
    if detector.at_calls and not alarmed and (alarm is None or not alarm.evidence.step):
        return None
    if alarm is not None and alarm.midway and not alarm.rearmed:
        return None
    peak = -math.inf if alarm is None or alarm.evidence.log_peak is None else alarm.evidence.log_peak
    answered = alarm is not None and (alarm.answered or alarm.rearmed > 0)
    if alarmed and alarm is not None and alarm.rearmed:
        peak = math.inf  # it alarmed before; the evidence of then is cut at the threshold anyway
    clean = outcome.stop_reason is StopReason.CLEAN
    return FinishedRun(
        run_id=session.session_id,
        log_peak=peak,
        touched=touched or answered or not clean,
        success=outcome.success if clean else None,
        task=task,
    )


class CalibrationWatch:
    """Watches one detector's calibration by the runs that finish, and says when it no longer holds.

    Guarantee: while nothing has changed it ever alarms with probability at most `level`, at whichever time it is
    looked at (`stats.calibration_watch.start_watching` has the assumptions).

    Args:
        store: where its state lives; shared by all workers.
        detector: the fitted detector.
        level, acting: as `start_watching`; a watch that is stored already keeps those that it was begun with.
        observers: called with each status after every run that counted, on the task that reported it: a gauge, a
            pager. What they raise reaches the caller; the run is counted by then.
    """

    def __init__(
        self,
        store: SessionStore,
        detector: Detector,
        *,
        level: float = 0.01,
        acting: bool = True,
        observers: Sequence[Callable[[WatchStatus], None]] = (),
    ) -> None:
        self._store = store
        self._fresh = start_watching(detector, level=level, acting=acting)
        self._observers = tuple(observers)
        self._latest = watch_statuses(self._fresh)

    @property
    def detector(self) -> str:
        """Identity of the detector that is watched (`stats.calibration_watch.detector_id`)."""
        return self._fresh.detector

    @property
    def latest(self) -> tuple[WatchStatus, ...]:
        """The statuses that this process saw last, without asking the store: for a gauge that is read on a clock."""
        return self._latest

    def by_variant(self) -> dict[str, WatchStatus]:
        """`latest` by the variant's name: what `MetricsProcessor(calibration_watch=watch.by_variant)` exports."""
        return {status.variant.value: status for status in self._latest}

    async def statuses(self) -> tuple[WatchStatus, ...]:
        """The statuses now, by all workers; StoreError when the store cannot be reached."""
        found = await self._store.get(_WATCH, self._fresh.detector)
        self._latest = watch_statuses(self._fresh if found is None else _read(_Stored, found).state)
        return self._latest

    async def finished(self, run: FinishedRun | None) -> tuple[WatchStatus, ...]:
        """Count a finished run once, the first of its task; a repeated report only adds a label; None counts nothing.

        Raises StoreError when the store cannot be reached: the run may then be reported again.
        """
        if run is None:
            return await self.statuses()
        statuses, counted = await _take(self._store, self._fresh, run)
        self._latest = statuses
        if counted:
            for observer in self._observers:
                for status in statuses:
                    observer(status)
        return statuses


async def stored_statuses(store: SessionStore) -> list[WatchStatus]:
    """The findings of every watch in a store, by detector."""
    return [
        status for document in await store.scan(_WATCH) for status in watch_statuses(_read(_Stored, document).state)
    ]


async def label_run(store: SessionStore, run_id: str, success: bool) -> list[WatchStatus]:
    """Give a finished run its outcome, in every watch that knows it; returns their statuses, empty when none does.

    A label that was counted stays counted: a bet cannot be taken back.
    """
    run_id = replace_lone_surrogates(run_id)  # as a store gives it back
    found: list[WatchStatus] = []
    for document in await store.scan(_WATCH):
        state = _read(_Stored, document).state
        known = await store.get(_RUN, _key(state.detector, run_id))
        if known is not None:
            run = _read(_Known, known)
            report = FinishedRun(run_id=run_id, log_peak=run.log_peak, touched=run.touched, success=success)
            statuses, _ = await _take(store, state, report)
            found += statuses
    return found


class _Known(BaseModel):
    """The document of one run: its first evidence, its newest label, and the variants that count it."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    v: Literal[1] = 1
    log_peak: float
    touched: bool
    success: StrictBool | None
    counted: tuple[Variant, ...] = ()

    @field_validator("log_peak")
    @classmethod
    def _is_a_number(cls, value: float) -> float:
        if math.isnan(value):
            raise ValueError("not a number")
        return value

    def belongs_to(self) -> list[Variant]:
        natural = self.success is True and not self.touched
        return [Variant.SUCCESSES, Variant.ALL_RUNS] if natural else [Variant.ALL_RUNS]


class _Stored(BaseModel):
    """The document of one watch: its state, and the runs that its newest version counted, with their variants."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v: Literal[1] = 1
    state: CalibrationWatchState
    counted: dict[str, tuple[Variant, ...]] = Field(default_factory=dict)


async def _take(
    store: SessionStore, fresh: CalibrationWatchState, run: FinishedRun
) -> tuple[tuple[WatchStatus, ...], bool]:
    """Count a run in the variants that it belongs to and is not in yet; also says whether it was counted in any."""
    run = replace(run, run_id=replace_lone_surrogates(run.run_id))
    for attempt in range(_TRIES):
        try:
            found = await store.get(_WATCH, fresh.detector)
            stored = _Stored(state=fresh) if found is None else _read(_Stored, found)
            mine = _key(fresh.detector, run.run_id)
            if run.task is not None and await _first_of(store, fresh.detector, run.task, mine) != mine:
                return watch_statuses(stored.state), False
            for counted_id, variants in stored.counted.items():
                if await _remember(store, stored.state, counted_id, counted=variants) is None:
                    raise StoreError(f"The watch counted run {counted_id!r:.80}, whose document is gone.")
            report = _Known(log_peak=run.log_peak, touched=run.touched, success=run.success)
            known = await _remember(store, stored.state, run.run_id, report) or report
            missing = [variant for variant in known.belongs_to() if variant not in known.counted]
            if not missing:
                return watch_statuses(stored.state), False
            state = stored.state
            for variant in missing:
                state = take_run(state, variant, run.run_id, known.log_peak)
            body = _Stored(state=state, counted={run.run_id: tuple(missing)}).model_dump_json()
            statuses = watch_statuses(state)
            label = "alarmed" if any(status.alarmed for status in statuses) else "quiet"
            await store.put(_WATCH, fresh.detector, body, expected=0 if found is None else found.version, label=label)
            return statuses, True
        except SessionConflictError:  # another worker was first: look again at what it wrote
            await anyio.sleep(min(0.001 * attempt, 0.05))
    raise StoreError(f"The watch could not take run {run.run_id!r:.80}: another worker was first {_TRIES} times.")


async def _first_of(store: SessionStore, detector: str, task: str, run_key: str) -> str:
    """The key of the run that counts for a task: this one, where the task has none yet."""
    key = _key(detector, task)
    found = await store.get(_TASK, key)
    if found is not None:
        return found.body
    await store.put(_TASK, key, run_key, expected=0)
    return run_key


async def _remember(
    store: SessionStore,
    state: CalibrationWatchState,
    run_id: str,
    report: _Known | None = None,
    *,
    counted: Sequence[Variant] = (),
) -> _Known | None:
    """Store a report on a run and the variants that count it; returns what is known of it, or None."""
    key = _key(state.detector, run_id)
    found = await store.get(_RUN, key)
    known = report if found is None else _read(_Known, found)
    if known is None:
        return None
    merged = known.model_copy(
        update={
            "touched": known.touched or (report is not None and report.touched),
            "success": known.success if report is None or report.success is None else report.success,
            "counted": tuple(variant for variant in Variant if variant in known.counted or variant in counted),
        }
    )
    if found is None or merged != known:
        await store.put(_RUN, key, merged.model_dump_json(), expected=0 if found is None else found.version)
    return merged


def _key(detector: str, name: str) -> str:
    return f"{detector}/{quote(name, safe='', errors='surrogatepass')}"


def _read(model: type[Read], document: Document) -> Read:
    return parsed(model, document.body, f"The {document.kind} {document.key!r:.80}")
