"""The program that the embedded model runs in: llama.cpp's HTTP server, for as long as its parent lives.

Run by path, never imported. The first line of standard input is JSON with the settings (not the command line, which
other users can read: there is a key among them). When standard input ends, the parent has closed it or is gone, and so
is this process; on POSIX a change of parent ends it too, in case another process inherited the other end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import NoReturn


def main() -> NoReturn:
    """Load the model, say where it listens, and wait for the end of standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes this process
    parent = os.getppid()
    settings = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    threading.Thread(target=_end_with_input, daemon=True).start()

    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings["model_file"]
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0  # the system chooses a free one
    parameters.api_keys = [settings["api_key"]]
    parameters.model_alias = {settings["name"]}
    parameters.n_parallel = settings["parallel"]
    parameters.n_ctx = settings["parallel"] * settings["context_tokens"]
    parameters.cpuparams.n_threads = settings["threads"]
    parameters.cpuparams_batch.n_threads = settings["threads"]
    parameters.verbosity = 1  # errors; with more, the log grows by lines a request
    parameters.ui = False
    parameters.endpoint_slots = False  # it would show one caller's prompts to another
    server = xllamacpp.Server(parameters)  # returns when the model is loaded
    print("GRAMPUS_READY", json.dumps({"address": server.listening_address}), flush=True)  # noqa: T201 (read by the parent)
    while True:
        time.sleep(3_600)


def _end_with_input() -> None:
    while sys.stdin.readline():
        pass
    os._exit(0)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


if __name__ == "__main__":
    main()
