"""Fit the profile that ships with the demo: record the clerk on mails of their own, stop nothing, fit.

    python -m tests.benchmarks.mail_profile [--recordings FOLDER] [--mails 360] [--output FILE]

The mails are drawn by seed 2000, which no demo and no benchmark uses otherwise; each has its right call, and that is
the label. About 2 s a mail on two busy cores; a folder with an earlier pass is used as it is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import anyio

from grampus_uq.cli.demo.clerk import CallingModel, handle
from grampus_uq.cli.demo.mail_plan import MODEL, SENSING, clerk_policy
from grampus_uq.cli.demo.mails import draw_mails
from grampus_uq.core.state import Profile
from grampus_uq.learn.profiles import FitOptions, fit_profile
from grampus_uq.models import LocalModel
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.recording import RecordingProcessor, save
from grampus_uq.recording.artifacts import ProfileArtifact

SEED = 2_000
SHIPPED = Path(__file__).parents[2] / "grampus_uq" / "cli" / "demo" / "mail_profile.json"
OPTIONS = FitOptions(wrong_releases=0.05, detector=False)


async def record(folder: Path, mails: int) -> None:
    """Handle the mails under a monitor that only advises, and keep the labelled runs."""
    with RecordingProcessor(folder, content="full") as recorder:
        monitor = UncertaintyMonitor(policy=clerk_policy(), sensing=SENSING, advisory=True, processors=[recorder])
        async with LocalModel(timeout_s=300.0) as model:
            calling = CallingModel(model)
            for mail in draw_mails(mails, SEED):
                await handle(mail, calling, monitor, MODEL)


def fitted(folder: Path) -> ProfileArtifact:
    """The profile of these recordings, without the names of files that nobody else has."""
    fit = fit_profile(folder, base=Profile(policy=clerk_policy()), options=OPTIONS)
    for part in fit.parts:
        print(f"{part.name:24} {part.status}", file=sys.stderr)
    provenance = fit.artifact.provenance.model_copy(update={"inputs": ()})
    return fit.artifact.model_copy(update={"provenance": provenance})


def main() -> None:
    """Parse, record, fit, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", help="where an earlier pass is, or a new one is to be kept")
    parser.add_argument("--mails", type=int, default=360)
    parser.add_argument("--output", default=str(SHIPPED))
    arguments = parser.parse_args()
    folder = Path(arguments.recordings or tempfile.mkdtemp(prefix="mails-"))
    if not any(folder.glob("*.jsonl")):
        anyio.run(record, folder, arguments.mails)
    print(save(fitted(folder), arguments.output))


if __name__ == "__main__":
    main()
