"""Puts one run of the demo's clerk together: the same mails, handled three ways."""

from __future__ import annotations

import importlib.resources
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grampus_uq.cli.demo.clerk import CallingModel, Handled, handle
from grampus_uq.cli.demo.mails import CANCEL, REFUND, Mail, draw_mails
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.state import Profile
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.monitor.sensing_settings import Sensing
from grampus_uq.recording import RecordingProcessor
from grampus_uq.recording.artifacts import ProfileArtifact, load
from grampus_uq.records.protocols import ModelClient

MODEL: Final = "local"
DEFAULT_MAILS: Final = 30
SENSING: Final = Sensing(ask_of_calls=False)
"""Each call is judged by its own tokens alone: the shipped profile was fitted on runs that were sensed so."""
VARIANTS: Final = ("unguarded", "default tiers", "shipped profile")


def clerk_policy() -> UncertaintyPolicy:
    """The default policy, with both tools among the irreversible ones."""
    return UncertaintyPolicy(irreversible_tool_names=[REFUND, CANCEL])


def shipped_profile() -> ProfileArtifact:
    """The profile that ships with the demo, fitted on other mails by `tests/benchmarks/mail_profile.py`."""
    with importlib.resources.as_file(importlib.resources.files("grampus_uq.cli.demo") / "mail_profile.json") as path:
        return load(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailPlan:
    """A run to come: the mails, a monitor for each variant that has one, and the recording of the last."""

    mails: tuple[Mail, ...]
    seed: int
    folder: Path
    recording: RecordingProcessor
    artifact: ProfileArtifact
    monitors: tuple[UncertaintyMonitor | None, ...]


def plan_mails(*, n: int = DEFAULT_MAILS, seed: int = 0, runs_folder: str = "runs") -> MailPlan:
    """Draw the mails and wire the monitors; makes the run's folder, asks nothing yet."""
    folder = Path(runs_folder).expanduser() / time.strftime("demo-mails-%Y%m%d-%H%M%S", time.gmtime())
    recording = RecordingProcessor(folder, content="full")
    artifact = shipped_profile()
    tiers = UncertaintyMonitor(profile=Profile(policy=clerk_policy()), sensing=SENSING)
    guarded = UncertaintyMonitor(profile=artifact, sensing=SENSING, processors=[recording])
    return MailPlan(
        mails=tuple(draw_mails(n, seed)),
        seed=seed,
        folder=folder,
        recording=recording,
        artifact=artifact,
        monitors=(None, tiers, guarded),
    )


async def handle_all(plan: MailPlan, client: ModelClient, on_mail: Callable[[tuple[Handled, ...]], None]) -> None:
    """Handle each mail once per variant, one after the other; `on_mail` receives the three ends of each.

    The order is fixed, and the model is asked at temperature 0, one call at a time: the same seed gives the same
    calls. Raises ModelError when the model gives no answer.
    """
    calling = CallingModel(client)
    for mail in plan.mails:
        on_mail(tuple([await handle(mail, calling, monitor, MODEL) for monitor in plan.monitors]))
