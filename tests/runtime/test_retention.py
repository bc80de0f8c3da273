"""Finished sessions go by age and by number, into recordings where wanted; what waits never does."""

from __future__ import annotations

import stat
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from grampus_uq import open_store
from grampus_uq.cli.prune_command import command
from grampus_uq.errors import ConfigurationError, DataError, StoreError
from grampus_uq.recording import pack, runs
from grampus_uq.records.vocabulary import AgentStatus, StopReason
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.store import Change, Document, Drop
from grampus_uq.runtime.stores.memory import MemoryStore
from tests.runtime.agents import AGENT, SEND_ONE, World, runner

pytestmark = pytest.mark.anyio
NOW_S = 1_000_000.0


class Aged(MemoryStore):
    """A store whose clock stands at `NOW_S`, and whose sessions were written when the test says."""

    def _now(self) -> float:
        return NOW_S

    async def hold(self, key: str, status: AgentStatus, age_s: float) -> None:
        body = f'{{"v": 2, "agent_id": "a", "session_id": "{key}", "status": "{status.value}"}}'
        self._latest = NOW_S
        await self.put("session", f"a/{key}", body, expected=0, label=status.value)
        found = self._documents["session", f"a/{key}"]
        values = {name: getattr(found, name) for name in Document.__slots__} | {"written_s": NOW_S - age_s}
        self._documents["session", f"a/{key}"] = Document(**values)


@given(
    st.lists(st.tuples(st.sampled_from(list(AgentStatus)), st.integers(0, 5)), max_size=12),
    st.one_of(st.none(), st.integers(1, 5)),
    st.one_of(st.none(), st.integers(0, 12)),
)
@example([(AgentStatus.COMPLETED, 3)] * 3, None, 1)
async def test_what_goes_is_what_ended_and_is_too_old_or_too_much(
    sessions: list[tuple[AgentStatus, int]], older_than: int | None, keep: int | None
) -> None:
    store = Aged()
    for number, (status, age) in enumerate(sessions):
        await store.hold(str(number), status, age)
    if older_than is None and keep is None:
        with pytest.raises(ConfigurationError, match="older_than_s"):
            await prune(store, None)
        return
    forgotten = await prune(store, older_than, keep=keep)
    left = {document.key.partition("/")[2] for document in await store.scan("session")}
    ended = (AgentStatus.COMPLETED, AgentStatus.FAILED)
    by_age = [(age, str(n)) for n, (status, age) in enumerate(sessions) if status in ended]
    young = [(age, name) for age, name in by_age if older_than is None or age < older_than]
    # all that ended with the last that is kept
    staying = {n for age, n in young if keep is None or sum(other < age for other, _ in by_age) < keep}
    alive = {str(number) for number, (status, _) in enumerate(sessions) if status not in ended}
    assert left == alive | staying
    assert keep is None or len(young) < keep or len(staying) >= keep
    assert forgotten == len(sessions) - len(left)


async def test_sessions_that_are_moved_are_recordings_that_can_be_packed_and_what_waits_stays(tmp_path: Path) -> None:
    store, world = MemoryStore(), World()
    one = runner(world, SEND_ONE, store=store)
    for name in ("waits", "../ended"):
        (request,) = (await one.run(AGENT, "mail bob", session_id=name)).pending
    done = await one.resume("mailer", "../ended", request.decide("approve", principal="ann"))
    folder = tmp_path / "moved"
    assert await prune(store, 1e-9, move_to=folder) == 1
    assert [document.key for document in await store.scan("session")] == ["mailer/waits"]
    (run,) = runs(folder)
    assert (run.session_id, run.start.agent_id if run.start else "") == ("../ended", "mailer")
    assert [event.step.text for event in run.steps] == [m.content for m in done.messages if m.role.value == "assistant"]
    assert run.outcome is not None
    assert (run.outcome.success, run.outcome.stop_reason) == (None, StopReason.CLEAN)
    (file,) = folder.iterdir()
    assert (stat.S_IMODE(folder.stat().st_mode), stat.S_IMODE(file.stat().st_mode)) == (0o700, 0o600)
    pack(folder, tmp_path / "packed")
    assert [found.events for found in runs(tmp_path / "packed")] == [run.events]
    assert len(await AuditLog(store, "mailer", "../ended").entries()) > 3  # audits stay


async def test_sessions_of_one_name_are_moved_side_by_side_and_a_second_try_is_no_other_run(tmp_path: Path) -> None:
    store, again = MemoryStore(), MemoryStore()
    await runner(World(), ["Done."], store=store, p_true=0.95).run(AGENT, "x", session_id="s")
    again._documents, again._logs = dict(store._documents), {name: list(log) for name, log in store._logs.items()}
    again._by_label = {place: dict(keys) for place, keys in store._by_label.items()}
    assert await prune(store, 1e-9, move_to=tmp_path) == 1
    assert await prune(again, 1e-9, move_to=tmp_path) == 1  # as after a death between writing and forgetting
    assert len(list(runs(tmp_path))) == 1
    desk = AGENT.model_copy(update={"name": "desk"})
    for agent, said in ((desk, "Other."), (AGENT, "Third."), (AGENT, "Fourth.")):
        await runner(World(), [said], store=store, p_true=0.95).run(agent, said, session_id="s")
        assert await prune(store, 1e-9, move_to=tmp_path) == 1
    assert await store.scan("session") == []
    assert len(list(runs(tmp_path))) == 4


async def test_a_session_that_cannot_be_written_stays_in_the_store(tmp_path: Path) -> None:
    store = MemoryStore()
    await runner(World(), ["Done."], store=store, p_true=0.95).run(AGENT, "x", session_id="s")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        await prune(store, 1e-9, move_to=tmp_path / "file")
    assert len(await store.scan("session")) == 1


UNREAD = ("not json", "[]", '{"v": 2}', '{"a":' * 3_000, '{"v": 99, "agent_id": "mailer", "session_id": "odd"}')


@pytest.mark.parametrize("body", [*UNREAD, UNREAD[2][:-1] + ', "metadata": {"parent_session": ["mailer", "s"]}}'])
async def test_a_session_that_cannot_be_read_stays_and_is_named_and_holds_up_nothing_but_decisions(
    body: str, tmp_path: Path
) -> None:
    for status, folder in [(AgentStatus.COMPLETED, tmp_path / "moved"), *((status, None) for status in AgentStatus)]:
        store = MemoryStore()
        await runner(World(), ["Done."], store=store, p_true=0.95).run(AGENT, "x", session_id="s")
        await store.put("session", "mailer/odd", body, expected=0, label=status.value)
        for kind in ("decision", "dead", "timer"):
            await store.put(kind, "a/b", "{}", expected=0)
        with pytest.raises(DataError, match="'mailer/odd' cannot be read"):
            await prune(store, 1e-9, move_to=folder)
        assert [found.key for found in await store.scan("session")] == ["mailer/odd"]
        assert await store.scan("dead") + await store.scan("timer") == []
        waits = status not in (AgentStatus.COMPLETED, AgentStatus.FAILED)
        assert len(await store.scan("decision")) == waits  # it may be the one that this session waits for


async def test_what_a_stored_session_names_as_its_transcript_is_removed_only_if_it_is_its_own() -> None:
    store = MemoryStore()
    await runner(World(), ["Done."], store=store, p_true=0.95).run(AGENT, "x", session_id="s")
    forged = '{"v": 2, "agent_id": "mailer", "session_id": "odd", "status": "completed", "transcript": {"log": "%s"}}'
    await store.put("session", "mailer/odd", forged % "audit/mailer/s", expected=0, label="completed")
    assert await prune(store, 1e-9) == 2
    assert len(await AuditLog(store, "mailer", "s").entries()) == 1


async def test_an_audit_goes_when_its_last_entry_is_as_old_as_stated_and_never_that_of_a_session_that_is_there() -> (
    None
):
    store = MemoryStore()
    one = runner(World(), ["Done."], store=store, p_true=0.95)
    await one.run(AGENT, "x", session_id="s")
    await prune(store, 1e-9)
    await one.run(AGENT, "x", session_id="s")  # the same name again: its audit goes on behind the old one
    await prune(store, None, audits_older_than_s=1e-9)
    assert len(await AuditLog(store, "mailer", "s").entries()) == 2
    await prune(store, 1e-9)
    await prune(store, None, audits_older_than_s=3_600.0)
    assert len(await AuditLog(store, "mailer", "s").entries()) == 2
    await prune(store, None, audits_older_than_s=1e-9)
    assert (store._logs, await store.scan("kept_audit")) == ({}, [])


async def test_a_prune_that_dies_while_it_removes_an_audit_leaves_nothing_for_good_and_no_empty_recording(
    tmp_path: Path,
) -> None:
    class Dying(MemoryStore):
        dies = False

        async def write(self, *changes: Change) -> float:
            written_s = await super().write(*changes)
            if self.dies and any(isinstance(change, Drop) for change in changes):
                raise StoreError("gone")
            return written_s

    store = Dying()
    await runner(World(), ["Done."], store=store, p_true=0.95).run(AGENT, "x", session_id="s")
    await prune(store, 1e-9, move_to=tmp_path)
    store.dies = True
    with pytest.raises(StoreError):
        await prune(store, None, audits_older_than_s=1e-9)
    store.dies = False
    for _ in range(2):
        await prune(store, 1e-9, audits_older_than_s=1e-9, move_to=tmp_path)
    assert (store._documents, store._logs) == ({}, {})
    assert len(list(runs(tmp_path))) == 1


def test_the_command_says_what_it_did_and_wants_a_rule(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"

    async def prepare() -> None:
        store = open_store(url)
        for name in "abc":
            await runner(World(), ["Done."], store=store, p_true=0.95).run(AGENT, "x", session_id=name)
        await store.aclose()

    anyio.run(prepare)
    moved = CliRunner().invoke(command, ["--store", url, "--keep", "1", "--move-to", str(tmp_path / "moved")])
    assert moved.output == "Moved 2 sessions.\n"
    assert len(list(runs(tmp_path / "moved"))) == 2
    assert isinstance(CliRunner().invoke(command, ["--store", url]).exception, ConfigurationError)
