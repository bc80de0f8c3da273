"""Starts, stops and kills the processes of a conformance check, and reads what they left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from grampus_uq.errors import ConfigurationError
from grampus_uq.testing.agent_orders import ANSWER, ORDER, Act, Answer, Order
from grampus_uq.testing.agent_script import AgentSetup, ScriptedTurn, Watch


class AgentLaboratory:
    """One process that holds the framework, and forks a new one for each life of an agent.

    `factory` refers to an `AgentFactory` as "package.module:name"; `folder` takes the agents' files and what the
    processes wrote on stderr. `timeout_s` bounds each life.
    """

    def __init__(self, factory: str, folder: Path, *, timeout_s: float = 60.0) -> None:
        if not hasattr(os, "fork"):
            raise ConfigurationError.of("factory", "AgentLaboratory", "used where processes can fork", sys.platform)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._timeout_s = timeout_s
        self._lives = 0
        self._errors: IO[bytes] = (folder / "stderr.txt").open("ab")
        self._process = subprocess.Popen(  # noqa: S603 (this interpreter, and a factory that the caller names)
            [sys.executable, "-m", "grampus_uq.testing.agent_process", factory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("Pipes were asked for.")
        self._in, self._out = self._process.stdin, self._process.stdout
        self._unread = b""
        try:
            self._next()
            self.lacks: Mapping[str, str] = self.live(folder, {}).lacks
        except BaseException:
            self.close()
            raise

    def live(
        self,
        folder: Path,
        script: Mapping[str, Sequence[ScriptedTurn]],
        *acts: Act,
        watch: Watch = Watch.ACTING,
        together: bool = False,
        kill: bool = False,
    ) -> Answer:
        """One life: a new process builds the agent and acts; with `kill` it then dies of SIGKILL, everything open."""
        self._lives += 1
        folder.mkdir(parents=True, exist_ok=True)
        order = Order(
            setup=AgentSetup(folder=folder, script=script, watch=watch),
            acts=acts,
            together=together,
            hold=kill,
            answer=self.folder / f"answer-{self._lives}.json",
        )
        self._in.write(ORDER.dump_json(order) + b"\n")
        self._in.flush()
        child = self._next()["child"]
        end = self._wait(order.answer, child)
        if kill and end is None:
            os.kill(child, signal.SIGKILL)
        end = end or self._next()
        if end["status"] != (-signal.SIGKILL if kill else 0):
            raise AssertionError(f"the agent's process ended with {end}:\n{self._last_words()}")
        return ANSWER.validate_json(order.answer.read_bytes())

    def _wait(self, answer: Path, child: int) -> dict[str, Any] | None:
        """Until there is an answer, or the process ended without one."""
        deadline_s = time.monotonic() + self._timeout_s
        while not answer.exists():
            end = self._hear(0.005)
            if end:
                if not answer.exists():
                    raise AssertionError(f"the agent's process ended with {end}:\n{self._last_words()}")
                return end
            if time.monotonic() > deadline_s:
                os.kill(child, signal.SIGKILL)
                self._next()  # its end, which the next life must not take for its own
                raise AssertionError(f"the agent did not answer within {self._timeout_s} s:\n{self._last_words()}")
        return None

    def _next(self) -> dict[str, Any]:
        """The next word of the process; AssertionError when there is none in time."""
        word = self._hear(self._timeout_s)
        if not word:
            raise AssertionError(
                f"the process of the agents said nothing for {self._timeout_s} s:\n{self._last_words()}"
            )
        return word

    def _hear(self, timeout_s: float) -> dict[str, Any]:
        """The next word of the process; empty when there is none in time, AssertionError when it is gone."""
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._out], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                return {}
            received = os.read(self._out.fileno(), 65536)
            if not received:
                raise AssertionError(f"the process of the agents ended:\n{self._last_words()}")
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        word: dict[str, Any] = json.loads(line)
        return word

    def _last_words(self) -> str:
        self._errors.flush()
        return (self.folder / "stderr.txt").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """End the process."""
        self._in.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()
        self._errors.close()

    def __enter__(self) -> AgentLaboratory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
