"""Steps per second and peak memory of the offline commands, each run in a process of its own.

    python tests/benchmarks/offline.py [--steps 10000 100000 1000000] [--works import replay ...] [--json]

Runs of 20 steps are made first: half of the steps with two readings, half tool calls, text hashed as it is by default.
`import` reads them as logs of chat completions and writes recordings; the other works read recordings in files of 500
runs: `replay` puts every step through a profile again, `evaluate` scores every stream (`--draws` resamples), `fit` fits
the detector with its bank, `pack` writes Parquet, `replay packed` reads that. A row with `workers` 2 spreads the same
work over two processes.

`per_s` is by the wall clock; `per_cpu_s` is steps by processor time, of the process and its workers: on a machine that
others use, only this one says what a core does.
`peak_mb` is the largest resident set of the process, `worker_peak_mb` that of its largest worker; the system counts
what the process was forked from too, here about 53 MB, so smaller peaks are not seen. The start of the
interpreter (about a second of imports) is in all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grampus_uq.core.engine import advance
from grampus_uq.core.state import Profile, SessionState
from grampus_uq.recording.codec import encode
from grampus_uq.records.events import Event, OutcomeEvent, SessionStarted, StepEvent
from grampus_uq.records.values import Outcome, Reading, Step, ToolCall
from grampus_uq.records.vocabulary import Effect
from tests.benchmarks._report import emit, progress

ROOT = Path(__file__).resolve().parents[2]
STEPS_A_RUN = 20
RUNS_A_FILE = 500
WORKS = ("import", "replay", "evaluate", "fit", "pack", "replay packed")
HASHED = "hmac:712361eb17a763420c09c1b7416909dc:512"

CHILD = """
import io, json, resource, sys, time
from contextlib import redirect_stdout
from grampus_uq.cli import main
if __name__ == "__main__":
    begin = time.perf_counter()
    status = 0
    with redirect_stdout(io.StringIO()):
        try:
            main(sys.argv[1:])
        except SystemExit as end:
            status = end.code or 0
    wall = time.perf_counter() - begin
    own, workers = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({
        "status": status,
        "wall_s": wall,
        "cpu_s": own.ru_utime + own.ru_stime + workers.ru_utime + workers.ru_stime,
        "peak_mb": own.ru_maxrss / 1024,
        "worker_peak_mb": workers.ru_maxrss / 1024,
    }))
"""


def run_events(number: int, rng: random.Random, profile: Profile) -> Iterator[Event]:
    """One recorded run whose stated confidence knows something of its outcome."""
    name, good = f"run-{number:07d}", rng.random() < 0.6
    state = SessionState(session_id=name, agent_id="a")
    yield SessionStarted(session_id=name, agent_id="a", time_s=1.7e9, model="m", advisory=True)
    for index in range(STEPS_A_RUN):
        time_s = 1.7e9 + index
        if index % 2:
            call = ToolCall(id=f"c{index}", name="lookup_order", arguments={"_hashed": HASHED})
            step = Step(step_id=f"s{index}", kind="tool_call", time_s=time_s, tool_calls=(call,), effect=Effect.READ)
            readings: tuple[Reading, ...] = ()
        else:
            step = Step(step_id=f"s{index}", kind="llm_call", time_s=time_s, text=HASHED, input_tokens=900)
            stated = min(1.0, max(0.0, rng.gauss(0.8 if good else 0.65, 0.12)))
            readings = (
                Reading(source="verbalized", value=stated, duration_s=1e-5),
                Reading(source="coherence", value=rng.random(), duration_s=1e-5),
            )
        state, assessment = advance(profile, state, step, readings)
        yield StepEvent(
            session_id=name,
            agent_id="a",
            step=step,
            readings=readings,
            assessment=assessment,
            started_ns=1,
            ended_ns=2,
        )
    yield OutcomeEvent(session_id=name, agent_id="a", outcome=Outcome(success=good))


def make(folder: Path, steps: int) -> None:
    """Recordings in files of many runs, and the same number of steps as logs of chat completions."""
    rng, profile = random.Random(0), Profile(advisory=True)
    for part in ("recordings", "logs"):
        (folder / part).mkdir(parents=True)
    runs = steps // STEPS_A_RUN
    for first in range(0, runs, RUNS_A_FILE):
        numbers = range(first, min(first + RUNS_A_FILE, runs))
        with (folder / "recordings" / f"{first:07d}.jsonl").open("wb") as stream:
            for number in numbers:
                stream.writelines(encode(event, content="hashed") for event in run_events(number, rng, profile))
        with (folder / "logs" / f"{first:07d}.jsonl").open("w") as text:
            text.writelines(json.dumps(log_entry(number, rng)) + "\n" for number in numbers)


def log_entry(number: int, rng: random.Random) -> dict[str, Any]:
    """A conversation of as many answers as a run has steps."""
    messages = []
    for index in range(STEPS_A_RUN):
        messages.append({"role": "user", "content": f"Where is order {rng.randrange(10**6)}? " + "please " * 20})
        said = f'It is on its way. {{"confidence": {rng.random():.2f}}}' if index % 2 else "One moment. " * 10
        messages.append({"role": "assistant", "content": said})
    return {"id": f"log-{number:07d}", "messages": messages}


def command(work: str, folder: Path, scratch: Path, workers: int, draws: int) -> list[str]:
    """The command line of a work."""
    recordings, spread = str(folder / "recordings"), ["--workers", str(workers), "--json"]
    return {
        "import": ["runs", "import", str(folder / "logs"), "-o", str(scratch / "imported"), *spread],
        "replay": ["runs", "replay", recordings, "--profile", str(folder / "profile.json"), *spread],
        "evaluate": ["evaluate", recordings, "--draws", str(draws), *spread],
        "fit": ["fit", recordings, "-o", str(scratch / "fitted.json"), *spread],
        "pack": ["runs", "pack", recordings, "-o", str(scratch / "packed"), *spread],
        "replay packed": ["runs", "replay", str(folder / "packed"), "--profile", str(folder / "profile.json"), *spread],
    }[work]


def measured(arguments: list[str]) -> dict[str, Any]:
    """Run a command in a process of its own; what it took."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    if found.returncode or not found.stdout.strip():
        raise SystemExit(f"{arguments}: {found.stderr[-2000:]}")
    took: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    if took.pop("status"):
        raise SystemExit(f"{arguments}: {found.stderr[-2000:]}")
    return took


def rows(steps: int, works: list[str], workers: list[int], draws: int, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each work and number of workers."""
    from grampus_uq.recording.artifacts import ProfileArtifact, save

    folder.mkdir(parents=True)
    progress(f"making {steps} steps")
    make(folder, steps)
    save(ProfileArtifact(profile=Profile(advisory=True)), folder / "profile.json")
    if "replay packed" in works:
        measured(["runs", "pack", str(folder / "recordings"), "-o", str(folder / "packed"), "--workers", "1"])
    for work in works:
        for count in workers:
            progress(f"{work}, {steps} steps, {count} workers")
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                took = measured(command(work, folder, Path(scratch), count, draws))
            yield {
                "work": work,
                "steps": steps,
                "workers": count,
                "per_s": steps / took["wall_s"],
                "per_cpu_s": steps / took["cpu_s"],
                "peak_mb": took["peak_mb"],
                "worker_peak_mb": took["worker_peak_mb"] if count > 1 else None,
                "wall_s": took["wall_s"],
                "cpu_s": took["cpu_s"],
            }
    shutil.rmtree(folder)


def main() -> None:
    """Read the arguments, make the files, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--works", nargs="+", choices=WORKS, default=["import", "replay", "evaluate", "fit"])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--draws", type=int, default=200, help="bootstrap resamples of evaluate")
    parser.add_argument("--folder", type=Path, help="where the files are made; [default: a temporary folder]")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = [
            row
            for steps in options.steps
            for row in rows(steps, options.works, options.workers, options.draws, Path(folder) / str(steps))
        ]
    emit("offline", found, options.json)


if __name__ == "__main__":
    main()
