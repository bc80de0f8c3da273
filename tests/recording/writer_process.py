"""A process that forks recording children, and kills them when told to: hundreds of them cost one import.

`kill FOLDER SESSION KIND LIVES SEED` kills -9 a child LIVES times, each at a random moment, and prints a JSON line a
life: who wrote, and how many `on_event` (and `sync`) had returned. With the kind `beside` another child, -1, goes
on writing to the same session all the while. `together FOLDER SESSION KIND WRITERS COUNT` lets WRITERS children write
at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import sys
import time

from grampus_uq.recording import RecordingProcessor, encode
from grampus_uq.records.events import Event
from tests.recording.events import step_event


class Buffered:
    """What a recorder must not be: it keeps lines in the memory of the process."""

    def __init__(self, folder: str, session: str) -> None:
        self._stream = open(f"{folder}/{session}.jsonl", "ab", buffering=2**20)  # noqa: SIM115 (killed while open)

    def on_event(self, event: Event) -> None:
        self._stream.write(encode(event))

    def sync(self) -> None:
        """Promise what is not done."""


def record(folder: str, session: str, kind: str, writer: int, count: int, sizes: list[int], told: int) -> None:
    """Write `count` steps (-1: for ever) and tell after each that it is written; `writer` marks them."""
    processor: RecordingProcessor | Buffered
    if kind == "buffered":
        processor = Buffered(folder, session)
    else:
        processor = RecordingProcessor(folder, content="full", fsync="every" if kind == "every" else "none")
    rng = random.Random(writer)
    index = 0
    while index != count:
        event = step_event(index, session, text="é" * (rng.choice(sizes) // 2))
        processor.on_event(dataclasses.replace(event, agent_id=str(writer)))
        if kind == "every":
            processor.sync()
        if writer == -1:
            time.sleep(0.0005)  # the survivor must not fill the pipe before the others are dead
        index += 1
        os.write(told, b"%016d" % index)


def start(folder: str, session: str, kind: str, writer: int, count: int, sizes: list[int]) -> tuple[int, int]:
    """Fork a child; return its process id and the pipe on which it tells what it has written."""
    telling, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(telling)
            record(folder, session, kind, writer, count, sizes, told)
        finally:
            os._exit(0)
    os.close(told)
    return child, telling


def drain(telling: int) -> int:
    """How many steps the child said were written, before it ended."""
    with open(telling, "rb") as stream:
        return int(stream.read()[-16:] or b"0")  # writes of 16 bytes to a pipe are whole


def main() -> None:
    """Do what the command line says."""
    what, folder, session, kind, first, second = sys.argv[1:]
    if what == "kill":
        rng = random.Random(int(second))
        survivor = start(folder, session, kind, -1, -1, [10, 1_000]) if kind == "beside" else None
        for life in range(int(first)):
            child, telling = start(
                folder, session, kind, life, -1, [10, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 2_500_000]
            )
            heard = b""
            for _ in range(rng.randint(0, 5)):  # however slow the machine is, something was written before the kill
                heard = os.read(telling, 16)
            time.sleep(rng.uniform(0.0, 0.01))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            print(json.dumps({"writer": str(life), "written": max(int(heard or b"0"), drain(telling))}), flush=True)
        if survivor is not None:
            os.kill(survivor[0], signal.SIGKILL)
            os.waitpid(survivor[0], 0)
            print(json.dumps({"writer": "-1", "written": drain(survivor[1])}), flush=True)
        return
    children = [start(folder, session, kind, writer, int(second), [10, 1_000, 70_000]) for writer in range(int(first))]
    for child, telling in children:
        written = drain(telling)
        os.waitpid(child, 0)
        print(json.dumps({"writer": str(child), "written": written}), flush=True)


if __name__ == "__main__":
    main()
