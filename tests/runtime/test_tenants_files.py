"""Two tenants' folders of recordings on one machine: whatever the one's user tries, nothing of the other's shows."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from grampus_uq import Outcome, OutcomeEvent, Profile, SessionStarted
from grampus_uq.recording import RecordingProcessor, label, pack, replay_all, runs
from grampus_uq.recording.labels import Label
from grampus_uq.recording.run_names import file_name

SECRET = "acme-secret"
THEM, OTHERS = 60_001, 60_002
SESSIONS = ("run-1", SECRET)


def record(folder: Path, *sessions: str) -> None:
    with RecordingProcessor(folder, content="full") as recorder:
        for name in sessions:
            recorder.on_event(SessionStarted(session_id=name, agent_id="desk", time_s=1.7e9))
            recorder.on_event(OutcomeEvent(session_id=name, agent_id="desk", outcome=Outcome(success=True)))


def tries(theirs: Path, own: Path) -> dict[str, Callable[[], object]]:
    """Every way in: each act on folder and files, each reader and writer of the package, names that lead there."""
    files = [theirs / file_name(name) for name in SESSIONS]
    found: dict[str, Callable[[], object]] = {
        "list": lambda: os.listdir(theirs),
        "walk": lambda: next(os.walk(theirs)),
        "glob": lambda: next(theirs.glob("*")),
        "into": lambda: os.chdir(theirs),
        "new file": lambda: (theirs / "new.jsonl").write_text("x"),
        "new folder": lambda: (theirs / "new").mkdir(),
        "open up": lambda: theirs.chmod(0o777),
        "own": lambda: os.chown(theirs, OTHERS, OTHERS),
        "rename folder": lambda: theirs.rename(own / "stolen"),
        "remove folder": lambda: shutil.rmtree(theirs),
        "read runs": lambda: [run.events for run in runs(theirs)] or 1 / 0,
        "replay": lambda: replay_all(theirs, Profile()).runs or 1 / 0,
        "pack": lambda: packed(theirs, own / "packed"),
        "record there": lambda: record(theirs, "run-1"),
        "label folder": lambda: label(theirs, Label(session_id="run-1", success=False), by="eve"),
    }
    for file in files:
        name = file.name
        found |= {
            f"read {name}": lambda file=file: file.read_text(),
            f"append {name}": lambda file=file: file.open("a").write("x"),
            f"write {name}": lambda file=file: file.write_text(""),
            f"size {name}": lambda file=file: file.stat().st_size,
            f"exists {name}": lambda file=file: os.stat(file),
            f"remove {name}": lambda file=file: file.unlink(),
            f"rename {name}": lambda file=file, name=name: file.rename(own / f"{name}.stolen"),
            f"replace {name}": lambda file=file: os.replace(own / "run-own.jsonl", file),
            f"open up {name}": lambda file=file: file.chmod(0o666),
            f"own {name}": lambda file=file: os.chown(file, OTHERS, OTHERS),
            f"hard link {name}": lambda file=file, name=name: os.link(file, own / f"hard-{name}"),
            f"copy {name}": lambda file=file, name=name: shutil.copy(file, own / f"copy-{name}"),
            f"truncate {name}": lambda file=file: os.truncate(file, 0),
            f"times {name}": lambda file=file: os.utime(file),
            f"runs of {name}": lambda file=file: [run.events for run in runs(file)],
            f"symbolic link {name}": lambda file=file, name=name: linked(file, own / f"soft-{name}"),
        }
    back = os.path.relpath(theirs, own)
    for number, session in enumerate(
        [f"{back}/run-1", str(files[0]), f"{back}/{SECRET}", "../run-1", f"x/../{back}/x"]
    ):
        found[f"session {number}"] = lambda session=session: record(own, session) or 1 / 0  # its file is in `own`
    return found


def packed(folder: Path, target: Path) -> object:
    pack(folder, target)
    return [run.events for run in runs(target)] or 1 / 0


def linked(file: Path, link: Path) -> object:
    link.symlink_to(file)
    try:
        return [run.events for run in runs(link)]
    finally:
        link.unlink()


def as_user(uid: int, work: Callable[[], str]) -> str:
    """What a process of that user says, as text."""
    said, say = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.write(say, work().encode())
            status = 0
        finally:
            os._exit(status)
    os.close(say)
    with os.fdopen(said) as text:
        heard = text.read()
    os.waitpid(child, 0)
    return heard


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be two other users")
@pytest.mark.parametrize("shut", [True, False])
def test_fifty_ways_to_the_recordings_of_another_user_lead_nowhere(shut: bool, tmp_path: Path) -> None:
    """`shut` False: the folder as somebody made it who opened it to all; then nearly all of them lead there."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and str(folder).startswith(("/tmp/", "/dev/shm/")):
            folder.chmod(folder.stat().st_mode | 0o055)
    theirs, own = tmp_path / "acme", tmp_path / "globex"
    for folder, uid, sessions in ((theirs, THEM, SESSIONS), (own, OTHERS, ("run-own",))):
        record(folder, *sessions)
        for path in (folder, *folder.iterdir()):
            os.chown(path, uid, uid)
    if not shut:
        for path in (theirs, *theirs.iterdir()):
            path.chmod(0o777)

    def attempt() -> str:
        through = []
        for name, way in tries(theirs, own).items():
            try:
                way()
                through.append(name)
            except Exception:  # noqa: BLE001 (refused)
                continue
        return json.dumps([len(tries(theirs, own)), through])

    before = {path.name: path.read_text() for path in theirs.iterdir()}
    count, through = json.loads(as_user(OTHERS, attempt))
    assert count >= 50
    if shut:
        assert through == []
        assert {path.name: path.read_text() for path in theirs.iterdir()} == before
    else:
        assert len(through) > 5
