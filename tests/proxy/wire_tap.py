"""Stands between two sides and writes down every byte: `python wire_tap.py FOLDER NAME COMMAND...`.

What goes to COMMAND is in NAME.to, what comes back in NAME.from, as it passed.
"""

import subprocess
import sys
import threading
from pathlib import Path


def copy(source, target, log, closing=None):
    while data := source.read1(65_536):
        log.write(data)
        log.flush()
        try:
            target.write(data)
            target.flush()
        except BrokenPipeError:
            break
    if closing is not None:
        closing.close()


def main(folder: str, name: str, *command: str) -> int:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with (Path(folder) / f"{name}.to").open("wb") as to, (Path(folder) / f"{name}.from").open("wb") as back:
        forth = threading.Thread(target=copy, args=(sys.stdin.buffer, process.stdin, to, process.stdin), daemon=True)
        forth.start()
        copy(process.stdout, sys.stdout.buffer, back)
        status = process.wait()
        forth.join(5)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
