"""A child process whose output is always read, whose last lines can be told, and which is ended for certain."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class Child:
    """Runs a program; used from one thread, while another thread of its own reads the output.

    `on_line` gets every line of output (stdout and stderr together) on that other thread. Nothing that the child prints
    reaches the terminal.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        on_line: Callable[[str], None] | None = None,
        first_line: str = "",
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._tail: deque[str] = deque(maxlen=40)
        self._on_line = on_line
        self._failure: BaseException | None = None
        self._process = subprocess.Popen(  # noqa: S603 (the commands are this package's own)
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name="grampus-uq-child", daemon=True)
        self._reader.start()
        if first_line and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # a child that died at once says why in its output
                self._process.stdin.write(first_line + "\n")
                self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """The exit code (a negative number is the signal that killed it), or None while it runs."""
        return self._process.poll()

    def tail(self) -> str:
        """The last lines of output."""
        return "\n".join(self._tail)

    def wait(self, *, stop: threading.Event, timeout_s: float) -> int | None:
        """Wait for the end; None when `stop` was set or the time was over first (it still runs then).

        Raises what `on_line` raised.
        """
        deadline = time.monotonic() + timeout_s
        while (code := self._process.poll()) is None:
            if self._failure is not None:
                raise self._failure
            if time.monotonic() >= deadline or stop.wait(0.05):
                return self._process.poll()
        self._reader.join(timeout=1.0)  # so that `tail` holds the last lines
        return code

    def end(self, grace_s: float = 2.0) -> None:
        """Close its input, which asks it to end, and kill it when it does not."""
        assert self._process.stdin is not None  # noqa: S101 (it was asked for)
        with contextlib.suppress(OSError):  # it may have gone already
            self._process.stdin.close()
        try:
            self._process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=1.0)

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 (it was asked for)
        with self._process.stdout as output:
            for line in output:
                self._tail.append(line.rstrip())
                if self._on_line is not None and self._failure is None:
                    try:
                        self._on_line(line)
                    except BaseException as error:  # noqa: BLE001 (kept for `wait`; a child nobody reads would stall)
                        self._failure = error
