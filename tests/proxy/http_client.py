"""`repeating_client` over HTTP, each call on a thread until its answer: `python http_client.py FOLDER ADDRESS`."""

import json
import sys
import threading
import time
import uuid
from pathlib import Path

import httpx
from repeating_client import LATER

HEADERS = {"Grampus-Session": "desk", "Accept": "application/json, text/event-stream"}
_lock = threading.Lock()


def ask(address: str, method: str, params: dict) -> str | None:
    """The text of an answer; None where there is none that is final."""
    body = {"jsonrpc": "2.0", "id": uuid.uuid4().hex, "method": method, "params": params}
    try:
        answer = httpx.post(address, json=body, headers=HEADERS, timeout=60.0)
        result = answer.json()["result"]
        text = result["content"][0]["text"] if "content" in result else ""
    except (httpx.HTTPError, ValueError, KeyError):
        return None  # somebody is dead, or says so
    return None if text.startswith(LATER) else text


def repeat(address: str, arguments: dict, answers: Path) -> None:
    while (text := ask(address, "tools/call", {"name": "delete_note", "arguments": arguments})) is None:
        time.sleep(0.1)
    with _lock, answers.open("a") as file:
        file.write(json.dumps([arguments, text]) + "\n")


def main(folder: Path, address: str) -> None:
    answers = folder / "answers.jsonl"
    answered = [json.loads(line)[0] for line in answers.read_text().splitlines()] if answers.exists() else []
    while ask(address, "tools/list", {}) is None:
        time.sleep(0.05)
    threads = []
    for arguments in json.loads((folder / "calls.json").read_text()):
        if arguments not in answered:
            thread = threading.Thread(target=repeat, args=(address, arguments, answers), daemon=True)
            thread.start()
            threads += [] if "never" in arguments else [thread]
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
