"""A server's process between two pipes: what it says goes to the client, the client's to it, its end is the proxy's.

The server inherits the standard error, and the environment except the proxy's own keys and store. It reads the end of
its input when the client leaves, and gets the signals that the proxy gets. The proxy ends when the server has, with its
exit status (128 + n after signal n).
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import ClassVar, Final

import anyio
from anyio.abc import Process

from grampus_uq.errors import ConfigurationError
from grampus_uq.integrations.mcp.message_lines import (
    MAX_MESSAGE_BYTES,
    LineWriter,
    TooLong,
    read_descriptor,
    read_lines,
    write_descriptor,
)

_QUIET_S: Final = 1.0
"""Time without output after which an ended server's pipe is closed; another process may hold it open."""
_DRAIN_S: Final = 30.0
"""And no longer than this, whoever writes into it then, and however slowly the client takes it."""
_KILL_AFTER_S: Final = 5.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Send = Callable[[bytes], Awaitable[None]]


class Relay:
    """Sees the messages of both sides, a task a side; their bytes pass as they come, once their messages were seen."""

    passes: ClassVar[bool] = True
    """False where `from_client` and `from_server` send what is to be sent, and nothing passes by itself."""

    async def from_client(self, line: bytes | TooLong) -> None:
        """Take a message of the client."""

    async def from_server(self, line: bytes | TooLong) -> None:
        """Take a message of the server."""

    async def run(self) -> None:
        """Work beside the messages until it is cancelled."""

    async def client_left(self) -> None:
        """The client has closed its side: nothing more comes from it."""

    async def aclose(self) -> None:
        """The server is gone too."""


def passing(receive: Callable[[], Awaitable[bytes]], send: Send) -> Callable[[], Awaitable[bytes]]:
    """Receives the same; what was received is sent on when more is asked for, once its messages were seen."""
    seen = b""

    async def receive_next() -> bytes:
        nonlocal seen
        if seen:
            await send(seen)
        seen = await receive()
        return seen

    return receive_next


async def serve_stdio(
    command: Sequence[str],
    relay: Callable[[Send, Send], Relay],
    *,
    limit: int = MAX_MESSAGE_BYTES,
) -> int:
    """Run a server behind this process's own input and output: its exit status. Raises ConfigurationError: no start."""
    # Without the signing keys and the store's address.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRAMPUS_UQ_")}
    try:
        pipe = subprocess.PIPE
        process = await anyio.open_process(list(command), stdin=pipe, stdout=pipe, stderr=None, env=environment)
    except (OSError, ValueError) as error:
        rule = "a server's program that can be started"
        raise ConfigurationError.of("COMMAND", "mcp", rule, command[0], str(error)) from error
    assert process.stdin is not None  # noqa: S101 (a pipe, as asked for)
    to_client = partial(write_descriptor, 1)
    joined = relay(LineWriter(to_client).send, LineWriter(process.stdin.send).send)
    async with anyio.create_task_group() as group:
        group.start_soon(joined.run)
        group.start_soon(_pass_signals, process)
        group.start_soon(_from_client, process, joined, limit)
        try:
            await _from_server(process, joined, to_client, limit)
        except* anyio.BrokenResourceError:  # the client is gone: the server's next message meets a closed pipe
            if process.stdout is not None:
                await process.stdout.aclose()
        await process.wait()
        await joined.aclose()
        group.cancel_scope.cancel()
    status = process.returncode or 0
    return 128 - status if status < 0 else status


async def _from_client(process: Process, relay: Relay, limit: int) -> None:
    assert process.stdin is not None  # noqa: S101 (a pipe, as asked for)
    receive: Callable[[], Awaitable[bytes]] = partial(read_descriptor, 0)
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for line in read_lines(passing(receive, process.stdin.send) if relay.passes else receive, limit=limit):
            await relay.from_client(line)
    await relay.client_left()
    with contextlib.suppress(OSError, anyio.BrokenResourceError):
        await process.stdin.aclose()


async def _from_server(process: Process, relay: Relay, to_client: Send, limit: int) -> None:
    """Take the server's messages until the pipe ends, or, once the server has, until nothing comes for a moment."""
    over, ended, quiet = False, anyio.CancelScope(), anyio.CancelScope()

    async def stop_reading() -> None:
        nonlocal over
        await process.wait()
        over, now = True, anyio.current_time()
        ended.deadline, quiet.deadline = now + _DRAIN_S, now + _QUIET_S

    async def receive() -> bytes:
        nonlocal quiet
        with anyio.CancelScope(deadline=anyio.current_time() + _QUIET_S if over else math.inf) as quiet:
            try:
                return await process.stdout.receive() if process.stdout is not None else b""
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return b""
        return b""

    async with anyio.create_task_group() as group:
        group.start_soon(stop_reading)
        with ended:
            async for line in read_lines(passing(receive, to_client) if relay.passes else receive, limit=limit):
                await relay.from_server(line)
        group.cancel_scope.cancel()


async def _pass_signals(process: Process) -> None:
    """Give the server the signals that end this process; one that does not end then is killed."""
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        async for number in signals:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with anyio.move_on_after(_KILL_AFTER_S):
                await process.wait()
                return
            with contextlib.suppress(ProcessLookupError):
                process.kill()
