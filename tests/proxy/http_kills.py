"""The kills over HTTP: proxy, server or client dies at a random moment, and is started again. A script.

    python -m tests.proxy.http_kills --kills 100 --seed 1

The client repeats each call under one session until it has a final answer, on a thread for each. What is decided and
counted is as in `proxy_kills`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from grampus_uq import open_store
from grampus_uq.runtime.ledger import Ledger
from tests.proxy.proxy_kills import PROXY, Life, campaign
from tests.servers import free_port

HERE = Path(__file__).parent
_LONGEST_S = 300.0


class HttpLife(Life):
    """One session of an HTTP client, with a proxy and a server that are processes of their own."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        super().__init__(folder, draw)
        ports = free_port(), free_port()
        url = f'store = "{self.url}"\nhold_s = 0.3\n[servers.notes]\nurl = "http://127.0.0.1:{ports[1]}/"\n'
        (folder / "proxy.toml").write_text(url)
        address = f"127.0.0.1:{ports[0]}"
        python = sys.executable
        self.commands = {
            "server": [python, str(HERE / "http_notes.py"), str(ports[1]), str(self.ran)],
            "proxy": [python, "-c", PROXY, "--config", str(folder / "proxy.toml"), "--http", address],
            "client": [python, str(HERE / "http_client.py"), str(folder), f"http://{address}/notes"],
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start_what_died(self) -> None:
        for name, command in self.commands.items():
            one = self.running.get(name)
            if one is None or (one.poll() is not None and not (name == "client" and one.returncode == 0)):
                with (self.folder / "log").open("a") as log:
                    self.running[name] = subprocess.Popen(command, stderr=log)

    async def live(self) -> dict[str, Any]:
        killed, starts, due, until = False, 0, None, time.monotonic() + _LONGEST_S
        store = open_store(self.url, create=True)
        ledger = Ledger(store)
        try:
            while time.monotonic() < until:
                before = dict(self.running)
                self.start_what_died()
                starts += before != self.running
                if self.running["client"].poll() == 0:
                    break
                await self.decide(ledger)
                if not killed and due is None and self.reached():
                    due = time.monotonic() + self.delay_s
                if not killed and due is not None and time.monotonic() >= due:
                    os.kill(self.running[self.victim].pid, signal.SIGKILL)
                    self.running[self.victim].wait()
                    killed = True
                await anyio.sleep(0.02)
            answered = self.running["client"].poll() == 0
        finally:
            for one in self.running.values():
                with suppress(ProcessLookupError):
                    one.kill()
                one.wait()
            await store.aclose()
        return {**self.seen(), "killed": killed, "tries": starts, "answered": answered}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(json.dumps(campaign(given.kills, given.seed, HttpLife)))


if __name__ == "__main__":
    main()
