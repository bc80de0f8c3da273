"""The watch in a store: each run counts once whatever happens, late labels count, and a change is noticed."""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from grampus_uq import Outcome, Profile, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.errors import ConfigurationError, SessionConflictError, StoreError
from grampus_uq.learn.fit.detector import fit_budget
from grampus_uq.records.events import BRANCH
from grampus_uq.records.vocabulary import AgentStatus, StopReason
from grampus_uq.runtime.guarantee_watch import CalibrationWatch, finished_run, label_run, stored_statuses
from grampus_uq.runtime.store import Change, SessionStore
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.stores.postgres import PostgresStore
from grampus_uq.runtime.stores.redis import RedisStore
from grampus_uq.runtime.stores.sqlite import SQLiteStore
from grampus_uq.stats.calibration_watch import REFERENCE_RUNS, FinishedRun, Variant, WatchStatus
from grampus_uq.stats.eprocess import Detector
from grampus_uq.stats.eprocess_thresholds import Mode, conformal_threshold
from tests.binomial import binomial_ceiling
from tests.clocks import sleepless
from tests.detector_rows import detector_runs, threshold_for
from tests.runtime.agents import AGENT, SEND_ONE, World, runner

pytestmark = pytest.mark.anyio


def detector(n: int = 200, seed: int = 0, mode: Mode = Mode.CONFORMAL) -> Detector:
    """A detector whose calibration peaks are normal; what its statistic reads does not matter here."""
    rng = np.random.default_rng(seed)
    data = detector_runs(run_ids=["a", "b"], steps=[1, 1], scores=[0.5, 0.6], streams=("fused",))
    bare = fit_budget(data, rng=rng, share=0.1).detector
    pairs = tuple(sorted(zip(rng.normal(size=n).tolist(), rng.uniform(0.01, 0.99, n).tolist(), strict=True)))
    threshold = conformal_threshold([p for p, _ in pairs], [t for _, t in pairs], 0.1)
    return Detector(
        streams=bare.streams, scorer=bare.scorer, thresholds=(threshold,), deployed=0, salt="salt", null_peaks=pairs
    )


def of(statuses: Any, variant: Variant) -> WatchStatus:
    found: WatchStatus = next(status for status in statuses if status.variant is variant)
    return found


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], SessionStore]]:
    """A new handle on one storage, initially empty, as another worker would open it."""
    if request.param == "memory":
        memory = MemoryStore()
        yield lambda: memory
    elif request.param == "sqlite":
        yield lambda: SQLiteStore(tmp_path / "s.db")
    elif request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        import psycopg

        with psycopg.connect(url, autocommit=True) as db:
            for table in ("grampus_documents", "grampus_logs", "grampus_schema"):
                db.execute(f"DROP TABLE IF EXISTS {table}")
        yield lambda: PostgresStore(url)
    else:
        url, namespace = request.getfixturevalue("redis_url"), uuid.uuid4().hex
        yield lambda: RedisStore(url, namespace=namespace)


async def test_concurrent_workers_that_report_the_same_runs_count_each_once(
    opened: Callable[[], SessionStore],
) -> None:
    watched = detector()
    stores = [opened() for _ in range(3)]
    runs = [FinishedRun(run_id=f"run/{i} é", log_peak=-0.1 * i, success=True) for i in range(8)]

    async def worker(store: SessionStore, order: list[int]) -> None:
        watch = CalibrationWatch(store, watched)
        for i in order:
            await watch.finished(runs[i])

    async with anyio.create_task_group() as group:
        for k, store in enumerate(stores):
            group.start_soon(worker, store, np.random.default_rng(k).permutation(8).tolist())
    statuses = await CalibrationWatch(stores[0], watched).statuses()
    assert of(statuses, Variant.SUCCESSES).n_runs == 8
    assert of(statuses, Variant.ALL_RUNS).gathering == REFERENCE_RUNS - 8
    for store in stores:
        await store.aclose()


async def test_a_label_that_comes_late_from_another_process_counts_once(opened: Callable[[], SessionStore]) -> None:
    watched, store, other = detector(), opened(), opened()
    await CalibrationWatch(store, watched).finished(FinishedRun(run_id="r", log_peak=0.3))
    for _ in range(2):
        [successes, _] = await label_run(other, "r", True)
        assert successes.n_runs == 1
    again = await CalibrationWatch(other, watched).finished(FinishedRun(run_id="r", log_peak=99.0, success=True))
    assert of(again, Variant.SUCCESSES).n_runs == 1
    assert [s.n_runs for s in await stored_statuses(store)] == [1, 0]
    assert await label_run(other, "unheard of", True) == []
    await store.aclose()
    await other.aclose()


class Dies(MemoryStore):
    """A store whose writer dies at a chosen write, before or after it is there."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None
        self.after = False

    async def write(self, *changes: Change) -> float:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                if self.after:
                    await super().write(*changes)
                raise StoreError("died")
        return await super().write(*changes)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("writes", range(4))
async def test_a_writer_that_dies_at_any_write_loses_nothing_and_counts_nothing_twice(writes: int, after: bool) -> None:
    watched, store = detector(), Dies()
    watch = CalibrationWatch(store, watched)
    await watch.finished(FinishedRun(run_id="first", log_peak=0.1, success=True))
    store.left, store.after = writes, after
    with contextlib.suppress(StoreError):  # with fewer writes than it needs it dies, with more it does not
        await watch.finished(FinishedRun(run_id="second", log_peak=0.2, success=True))
    store.left = None
    for name, peak in (("second", 0.2), ("first", 0.1), ("third", 0.3), ("second", 0.2)):
        await CalibrationWatch(store, watched).finished(FinishedRun(run_id=name, log_peak=peak, success=True))
    statuses = await watch.statuses()
    assert of(statuses, Variant.SUCCESSES).n_runs == 3
    clean = CalibrationWatch(MemoryStore(), watched)
    for name, peak in (("first", 0.1), ("second", 0.2), ("third", 0.3)):
        await clean.finished(FinishedRun(run_id=name, log_peak=peak, success=True))
    assert of(statuses, Variant.SUCCESSES) == of(await clean.statuses(), Variant.SUCCESSES)


async def test_a_store_where_the_last_writer_wins_would_count_twice() -> None:
    """The sabotage: without compare-and-set the tests above fail, so they can."""

    class LastWins(MemoryStore):
        async def put(self, kind: str, key: str, body: str, *, expected: int, label: str = "") -> int:
            await anyio.lowlevel.checkpoint()
            found = await self.get(kind, key)
            return await super().put(kind, key, body, expected=found.version if found else 0, label=label)

    watched, store = detector(), LastWins()

    async def worker(k: int) -> None:
        await CalibrationWatch(store, watched).finished(FinishedRun(run_id=f"r{k}", log_peak=0.0, success=True))

    async with anyio.create_task_group() as group:
        for k in range(8):
            group.start_soon(worker, k)
    assert of(await CalibrationWatch(store, watched).statuses(), Variant.SUCCESSES).n_runs != 8


async def test_a_run_named_with_half_a_character_leaves_the_watch_to_those_after_it() -> None:
    """The watch looked for the document of another name, and took no run of anybody any more."""
    store = MemoryStore()
    watch = CalibrationWatch(store, detector())
    for name in ("r\ud83d", "r2", "r\ud83d"):
        await watch.finished(FinishedRun(run_id=name, log_peak=0.0))
    await label_run(store, "r\ud83d", True)
    statuses = await watch.statuses()
    assert of(statuses, Variant.ALL_RUNS).gathering == REFERENCE_RUNS - 2
    assert of(statuses, Variant.SUCCESSES).n_runs == 1


async def test_touched_failed_and_unlabelled_runs_count_in_the_variant_without_labels_only() -> None:
    watch = CalibrationWatch(MemoryStore(), detector())
    for run in (
        FinishedRun(run_id="touched", log_peak=0.0, touched=True, success=True),
        FinishedRun(run_id="failed", log_peak=0.0, success=False),
        FinishedRun(run_id="unknown", log_peak=-math.inf),
    ):
        statuses = await watch.finished(run)
    assert of(statuses, Variant.SUCCESSES).n_runs == 0
    assert of(statuses, Variant.ALL_RUNS).gathering == REFERENCE_RUNS - 3
    assert watch.latest == statuses


async def test_a_changed_agent_raises_the_alarm_it_latches_and_observers_see_it() -> None:
    rng = np.random.default_rng(1)
    seen: list[WatchStatus] = []
    watch = CalibrationWatch(MemoryStore(), detector(), acting=False, observers=[seen.append])
    for i in range(60):
        statuses = await watch.finished(FinishedRun(run_id=f"r{i}", log_peak=rng.normal(2.0), success=True))
    status = of(statuses, Variant.SUCCESSES)
    assert status.alarmed
    assert status.log_peak >= status.log_threshold == pytest.approx(-math.log(0.005))
    assert "no longer holds" in status.sentence
    assert "0.005" in status.sentence
    for i in range(300):
        statuses = await watch.finished(FinishedRun(run_id=f"s{i}", log_peak=-3.0, success=True))
    assert of(statuses, Variant.SUCCESSES).alarmed
    assert len(seen) == 2 * 360
    assert isinstance(seen[0], WatchStatus)


async def test_a_change_that_touches_only_failures_is_seen_without_labels() -> None:
    rng = np.random.default_rng(2)
    watch = CalibrationWatch(MemoryStore(), detector())
    for i in range(REFERENCE_RUNS + 300):
        failing = rng.random() < (0.1 if i < REFERENCE_RUNS + 20 else 0.7)
        run = FinishedRun(run_id=f"r{i}", log_peak=rng.normal(3.0 if failing else 0.0))
        statuses = await watch.finished(run)
    assert of(statuses, Variant.ALL_RUNS).alarmed
    assert of(statuses, Variant.SUCCESSES).n_runs == 0


async def test_the_stored_level_and_mode_are_those_that_it_was_begun_with() -> None:
    store, watched = MemoryStore(), detector()
    await CalibrationWatch(store, watched, level=0.02).finished(FinishedRun(run_id="a", log_peak=0.0))
    statuses = await CalibrationWatch(store, watched, level=0.5).finished(FinishedRun(run_id="b", log_peak=0.0))
    assert {status.level for status in statuses} == {0.01}


async def test_a_refitted_detector_has_a_watch_of_its_own() -> None:
    store = MemoryStore()
    for seed in (0, 1):
        await CalibrationWatch(store, detector(seed=seed)).finished(FinishedRun(run_id="a", log_peak=0.0))
    assert len({status.detector for status in await stored_statuses(store)}) == 2
    assert len(await label_run(store, "a", True)) == 4


@pytest.mark.parametrize("body", ["{}", "[1]", "nonsense", '{"v": 2, "state": {}, "counted": {}}'])
async def test_a_document_that_cannot_be_read_is_a_store_error(body: str) -> None:
    store, watched = MemoryStore(), detector()
    watch = CalibrationWatch(store, watched)
    await watch.finished(FinishedRun(run_id="a", log_peak=0.0))
    [document] = await store.scan("watch")
    await store.put("watch", document.key, body, expected=document.version)
    with pytest.raises(StoreError, match="cannot be read"):
        await watch.statuses()


async def test_a_run_that_an_earlier_release_stored_is_read_and_evidence_that_is_no_number_is_not() -> None:
    store, watched = MemoryStore(), detector()
    watch = CalibrationWatch(store, watched)
    await watch.finished(FinishedRun(run_id="a", log_peak=0.0))
    for peak, expected in (('"-inf"', 0), ('"nan"', 1)):
        body = f'{{"v": 1, "log_peak": {peak}, "touched": false, "success": null, "counted": []}}'
        await store.put("watch-run", f"{watch.detector}/{peak[1:-1]}", body, expected=0)
        if expected:
            with pytest.raises(StoreError, match="cannot be read"):
                await watch.finished(FinishedRun(run_id=peak[1:-1], log_peak=1.0))
        else:
            await watch.finished(FinishedRun(run_id=peak[1:-1], log_peak=math.inf))
            [stored] = await store.scan("watch")
            assert '"counted":{"-inf":["all_runs"]}' in stored.body


@pytest.mark.parametrize("anyio_backend", [sleepless(), pytest.param("asyncio", marks=pytest.mark.slow)])
async def test_endless_conflicts_end_in_a_store_error() -> None:
    class Busy(MemoryStore):
        async def put(self, kind: str, key: str, body: str, *, expected: int, label: str = "") -> int:
            if kind == "watch":
                raise SessionConflictError("another writer was first")
            return await super().put(kind, key, body, expected=expected, label=label)

    with pytest.raises(StoreError, match="another worker"):
        await CalibrationWatch(Busy(), detector()).finished(FinishedRun(run_id="a", log_peak=0.0))


async def test_cancelling_a_report_leaves_it_to_be_told_again() -> None:
    class Slow(MemoryStore):
        slow = True

        async def put(self, kind: str, key: str, body: str, *, expected: int, label: str = "") -> int:
            if self.slow and kind == "watch":
                await anyio.sleep_forever()
            return await super().put(kind, key, body, expected=expected, label=label)

    store, watched = Slow(), detector()
    run = FinishedRun(run_id="a", log_peak=0.0, success=True)
    with anyio.move_on_after(0.05):
        await CalibrationWatch(store, watched).finished(run)
    store.slow = False
    statuses = await CalibrationWatch(store, watched).finished(run)
    assert of(statuses, Variant.SUCCESSES).n_runs == 1


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="log_peak"):
        FinishedRun(run_id="a", log_peak=math.nan)
    with pytest.raises(ConfigurationError, match="level"):
        CalibrationWatch(MemoryStore(), detector(), level=1.0)


# -- what a session tells it --


async def _drive(monitor: UncertaintyMonitor, scores: list[float], snapshot: Any = None) -> Any:
    session = monitor.session("run", snapshot=snapshot)
    for i, score in enumerate(scores):
        await session.observe_llm_response("", f"{i}", external={"v": score})
    return session


def _monitor() -> UncertaintyMonitor:
    rng = np.random.default_rng(0)
    data = detector_runs(
        run_ids=np.repeat([f"r{i}" for i in range(100)], 5),
        steps=np.tile(np.arange(1, 6), 100),
        scores=rng.uniform(0.5, 0.9, 500),
        streams=("v",),
    )
    fit = fit_budget(data, rng=rng, share=0.1)
    assert threshold_for(fit.detector, 0.1).mode is Mode.BUDGET
    return UncertaintyMonitor(profile=Profile(detector=fit.detector, policy=UncertaintyPolicy(enable_p_true=False)))


async def test_a_finished_session_is_told_with_its_evidence_also_after_it_was_resumed_elsewhere() -> None:
    outcome = Outcome(success=True)
    whole = finished_run(await _drive(_monitor(), [0.9, 0.6, 0.9]), outcome)
    assert whole is not None
    first = await _drive(_monitor(), [0.9, 0.6])
    resumed = await _drive(_monitor(), [0.9], snapshot=first.snapshot())
    assert finished_run(resumed, outcome) == whole
    assert whole == FinishedRun(run_id="run", log_peak=whole.log_peak, touched=False, success=True)
    assert math.isfinite(whole.log_peak)
    silent = finished_run(_monitor().session("silent"), outcome)
    assert silent is not None
    assert silent.log_peak == -math.inf


async def test_an_answered_alarm_or_a_stop_makes_the_outcome_selected() -> None:
    session = await _drive(_monitor(), [0.05])
    session.record_decision("approve", principal="ann")
    answered = finished_run(session, Outcome(success=True))
    assert answered is not None
    assert answered.touched
    session.rearm(principal="ann")
    rearmed = finished_run(session, Outcome(success=True))
    assert rearmed is not None
    assert (rearmed.touched, rearmed.log_peak) == (True, math.inf)
    stopped = finished_run(await _drive(_monitor(), [0.9]), Outcome(success=False, stop_reason=StopReason.MONITOR_STOP))
    assert stopped is not None
    assert (stopped.touched, stopped.success) == (True, None)


async def test_a_run_that_was_rolled_back_counts_an_alarm_of_its_discarded_steps_and_nothing_else_of_them() -> None:
    monitor = _monitor()
    session, untouched = await _drive(monitor, [0.9]), await _drive(monitor, [0.9])
    session.went_back()
    told, alone = finished_run(session, Outcome(success=True)), finished_run(untouched, Outcome(success=True))
    assert told is not None
    assert told == replace(alone, touched=True)
    session._state = replace(session.state, alarmed=True)
    assert finished_run(session, Outcome(success=True)) == replace(told, log_peak=math.inf)
    at_calls = Profile(detector=replace(monitor.profile.detector, at_calls=True))
    session = UncertaintyMonitor(profile=at_calls).session("run", metadata={BRANCH: "2"})
    assert finished_run(session, Outcome(success=True)) is None
    session._state = replace(session.state, alarmed=True)
    assert finished_run(session, Outcome(success=True)) == replace(told, log_peak=math.inf)


async def test_a_run_that_came_under_the_detector_when_it_was_under_way_is_none_of_those_that_are_ranked() -> None:
    later = _monitor().profile
    monitor = UncertaintyMonitor(profile=Profile(policy=later.policy))
    session = await _drive(monitor, [0.9])
    assert monitor.reload(later, running="migrate").migrated == 1
    await session.observe_llm_response("", "1", external={"v": 0.6})
    assert session.state.alarm.evidence.log_peak is not None
    assert finished_run(session, Outcome(success=True)) is None


def test_a_session_without_a_detector_has_nothing_to_tell() -> None:
    with pytest.raises(ConfigurationError, match="detector"):
        finished_run(UncertaintyMonitor().session("s"), Outcome(success=True))


# -- AgentRunner tells it by itself --


def _watched_monitor() -> UncertaintyMonitor:
    rng = np.random.default_rng(0)
    data = detector_runs(
        run_ids=np.repeat([f"r{i}" for i in range(100)], 3),
        steps=np.tile(np.arange(1, 4), 100),
        scores=rng.uniform(0.5, 0.9, 300),
        streams=("fused",),
    )
    return UncertaintyMonitor(profile=Profile(detector=fit_budget(data, rng=rng, share=0.1).detector))


async def test_a_runner_tells_the_watch_of_runs_that_end_and_not_of_those_that_wait() -> None:
    monitor, store = _watched_monitor(), MemoryStore()
    assert monitor.profile.detector is not None
    watch = CalibrationWatch(MemoryStore(), monitor.profile.detector)
    quiet = runner(World(), ["Done."], p_true=0.9, monitor=monitor, calibration_watch=watch)
    await quiet.run(AGENT, "x", session_id="quiet")
    assert of(watch.latest, Variant.ALL_RUNS).n_runs == 1
    low = runner(World(), SEND_ONE, p_true=0.01, monitor=monitor, store=store, calibration_watch=watch)
    waiting = await low.run(AGENT, "x", session_id="low")
    assert waiting.pending
    assert of(await watch.statuses(), Variant.ALL_RUNS).n_runs == 1
    other = runner(World(), SEND_ONE, p_true=0.9, monitor=monitor, store=store, calibration_watch=watch)
    ended = await other.resume(AGENT.name, "low", [r.decide("approve", principal="ann") for r in waiting.pending])
    assert not ended.pending
    assert of(await watch.statuses(), Variant.ALL_RUNS).n_runs == 2
    assert await label_run(watch._store, "low", True)  # its outcome is selected: it stays out of the labelled variant
    assert of(await watch.statuses(), Variant.SUCCESSES).gathering == REFERENCE_RUNS
    assert watch.by_variant()["all_runs"].n_runs == 2


async def test_of_a_detector_that_looks_at_calls_a_run_without_one_is_no_run_and_an_approved_call_runs_once() -> None:
    profile = _watched_monitor().profile
    assert profile.detector is not None
    at_calls = replace(profile.detector, at_calls=True)
    monitor = UncertaintyMonitor(profile=profile.model_copy(update={"detector": at_calls}))
    own_loop = CalibrationWatch(MemoryStore(), at_calls)
    uncounted = finished_run(await _drive(monitor, [0.9]), Outcome(success=True))
    assert of(await own_loop.finished(uncounted), Variant.ALL_RUNS).n_runs == 0
    store, watch, world = MemoryStore(), CalibrationWatch(MemoryStore(), at_calls), World()
    quiet = runner(world, ["Done."], p_true=0.01, monitor=monitor, calibration_watch=watch)
    await quiet.run(AGENT, "x", session_id="quiet")
    assert of(await watch.statuses(), Variant.ALL_RUNS).n_runs == 0
    low = runner(world, SEND_ONE, p_true=0.01, monitor=monitor, store=store, calibration_watch=watch)
    waiting = await low.run(AGENT, "x", session_id="low")
    assert [request.call.name for request in waiting.pending if request.call] == ["send_email"]
    assert world.sent == []
    ended = await low.resume(AGENT.name, "low", [r.decide("approve", principal="ann") for r in waiting.pending])
    assert not ended.pending  # what comes after the approved call can be undone, and is not asked for
    assert world.sent == [("bob", "hi")]
    assert of(await watch.statuses(), Variant.ALL_RUNS).n_runs == 1


async def test_a_watch_whose_store_is_down_does_not_take_the_agent_down() -> None:
    monitor = _watched_monitor()
    assert monitor.profile.detector is not None
    broken = Dies()
    broken.left = 0
    watch = CalibrationWatch(broken, monitor.profile.detector)
    told = runner(World(), ["Done."], p_true=0.9, monitor=monitor, calibration_watch=watch)
    assert (await told.run(AGENT, "x")).status is AgentStatus.COMPLETED
    elsewhere = CalibrationWatch(MemoryStore(), detector())
    other = runner(World(), ["Done."], p_true=0.9, monitor=monitor, calibration_watch=elsewhere)
    await other.run(AGENT, "x")
    assert of(await elsewhere.statuses(), Variant.ALL_RUNS).gathering == REFERENCE_RUNS  # another detector's runs


async def _alarms(rng: np.random.Generator, trials: int, *, named: bool) -> bool:
    """Whether the watch alarms on 240 runs of an unchanged agent, so many equal trials of a task in a row."""
    watch = CalibrationWatch(MemoryStore(), detector(seed=int(rng.integers(2**31))), level=0.2)
    for task, peak in enumerate(rng.normal(size=240 // trials)):
        for trial in range(trials):
            name = f"t{task}" if named else None
            statuses = await watch.finished(FinishedRun(run_id=f"{task}-{trial}", log_peak=peak, task=name))
    return any(status.alarmed for status in statuses)


@pytest.mark.slow
async def test_trials_of_a_task_raise_no_alarm_where_the_task_is_named_and_do_where_it_is_not() -> None:
    rng = np.random.default_rng(7)
    named = [await _alarms(rng, 4, named=True) for _ in range(30)]
    assert sum(named) <= binomial_ceiling(30, 0.2)
    unnamed = [await _alarms(rng, 4, named=False) for _ in range(10)]
    assert sum(unnamed) > binomial_ceiling(10, 0.2), "or the simulation could not fail"


async def test_the_first_trial_of_a_task_counts_whoever_reports_it_and_whatever_its_label(
    opened: Callable[[], SessionStore],
) -> None:
    watched, store, another = detector(), opened(), opened()
    first = FinishedRun(run_id="a\x00/é", log_peak=0.1, success=False, task="t/\x00 1")
    second = replace(first, run_id="b", success=True)
    await CalibrationWatch(store, watched).finished(first)
    for run in (second, first):  # a later trial, and the first one again
        await CalibrationWatch(another, watched).finished(run)
    other = await CalibrationWatch(store, watched).finished(replace(second, run_id="c", task="u"))
    [successes, all_runs] = [of(other, variant) for variant in (Variant.SUCCESSES, Variant.ALL_RUNS)]
    assert (successes.n_runs, REFERENCE_RUNS - all_runs.gathering) == (1, 2)
    assert not await label_run(store, "b", True), "it is no run of this watch"
    labelled = await label_run(another, "a\x00/é", True)
    assert of(labelled, Variant.SUCCESSES).n_runs == 2
    await store.aclose()
    await another.aclose()
