"""Paused in one process, approved in a second by the command line, resumed in a third: on each store, for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import anyio
import pytest

from grampus_uq import ApprovalPolicy, HmacSigner, UncertaintyMonitor, open_store
from grampus_uq.cli import main
from tests.runtime.agents import AGENT, World, runner

ROOT = Path(__file__).parents[2]
KEY = "a key of thirty-two bytes, really"


async def work(what: str, url: str, session: str) -> str:
    """Run or resume the mailer: how it ended, what it sent, and its steps."""
    world = World()
    policy = ApprovalPolicy(signer=HmacSigner.from_environment(), approvers={"ann"})
    one = runner(world, store=open_store(url), monitor=UncertaintyMonitor(), approvals=policy)
    if what == "run":
        result = await one.run(AGENT, "mail bob", session_id=session)
    else:
        result = await one.resume("mailer", session)
    return f"{result.status.value} {world.sent} {result.metadata['uncertainty']['total_steps']}"


WORKER = "import sys, anyio; from tests.runtime.test_processes import work; print(anyio.run(work, *sys.argv[1:]))"


def process(*command: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"GRAMPUS_UQ_APPROVAL_KEY": key}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def worker(what: str, url: str, session: str) -> str:
    finished = process("-c", WORKER, what, url, session)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def cli(*arguments: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
    return process("-m", "grampus_uq.cli", *arguments, key=key)


class Here:
    """The worker and the command line in this process: the first test shows that it makes no difference."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def worker(self, what: str, url: str, session: str) -> str:
        self._monkeypatch.setenv("GRAMPUS_UQ_APPROVAL_KEY", KEY)
        return anyio.run(work, what, url, session)

    def cli(self, *arguments: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
        self._monkeypatch.setenv("GRAMPUS_UQ_APPROVAL_KEY", key)
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = self._capsys.readouterr()
        return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), said.out, said.err)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sessions.db'}"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.mark.slow  # below the same in one process
def test_pause_approve_by_command_line_and_resume_in_three_processes(url: str) -> None:
    session = uuid.uuid4().hex
    assert worker("run", url, session) == "waiting_for_human [] 3"
    listed = json.loads(cli("approvals", "list", "--store", url, "--json").stdout)
    (request,) = [item for item in listed if item["session_id"] == session]
    assert request["call"]["name"] == "send_email"
    shown = cli("approvals", "show", request["id"][:12], "--store", url)
    assert '  to = "bob"' in shown.stdout
    approved = cli("approvals", "approve", request["id"], "--store", url, "--as", "ann", "--json")
    assert json.loads(approved.stdout)["signed"] is True
    assert worker("resume", url, session) == "completed [('bob', 'hi')] 4"
    again = cli("approvals", "approve", request["id"], "--store", url, "--as", "ann")
    assert again.returncode == 1
    assert "No pending request" in again.stderr


def test_edits_and_rejections_by_command_line(here: Here, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    for session, arguments, outcome in (
        ("edited", ("edit", "--arguments", '{"to": "robert", "body": "x"}'), "completed [('robert', 'x')]"),
        ("rejected", ("reject", "-m", "wrong Bob"), "completed []"),
    ):
        here.worker("run", url, session)
        (request,) = json.loads(here.cli("approvals", "list", "--store", url, "--json").stdout)
        done = here.cli("approvals", arguments[0], request["id"], *arguments[1:], "--store", url, "--as", "ann")
        assert done.returncode == 0, done.stderr
        assert here.worker("resume", url, session).startswith(outcome)


def test_a_decision_with_another_key_runs_nothing(here: Here, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    here.worker("run", url, "s")
    (request,) = json.loads(here.cli("approvals", "list", "--store", url, "--json").stdout)
    forged = here.cli(
        "approvals", "approve", request["id"], "--store", url, "--as", "ann", key="some other key, long enough"
    )
    assert forged.returncode == 0
    assert here.worker("resume", url, "s").startswith("waiting_for_human []")


def test_wrong_arguments_are_one_clear_line(here: Here, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    for status, arguments in ((1, ("approve", "nothing")), (2, ("edit", "x", "--arguments", "[1]"))):
        failed = here.cli("approvals", *arguments, "--store", url)
        assert failed.returncode == status
        assert len(failed.stderr.strip().splitlines()) == 1
