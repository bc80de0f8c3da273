"""Watches the file of a profile, and has a monitor take each new one while its sessions run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import anyio

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.monitor.monitor import ReloadedProfile, UncertaintyMonitor
from grampus_uq.recording.artifacts import ProfileArtifact, load

log = logging.getLogger("grampus_uq.monitor.reloading")
_Signature = tuple[int, int, int] | None


async def watch_profile(
    monitor: UncertaintyMonitor,
    path: str | os.PathLike[str],
    *,
    interval_s: float = 5.0,
    running: Literal["keep", "migrate"] = "keep",
    on_reload: Callable[[ReloadedProfile], None] | None = None,
) -> None:
    """Look at a profile's file again and again, until cancelled, and reload it into the monitor when it has changed.

    Start it in your own task group. A file that is missing, broken, changed by hand or refused by the monitor is logged
    once, and the monitor goes on with what it has; `artifacts.save` replaces a file whole, so a half-written one is
    never read. Reading happens in a worker thread. A file that holds what the monitor already has changes nothing.

    Args:
        monitor: whose profile follows the file.
        path: an artifact, as `grampus-uq fit` writes it.
        interval_s: time between two looks, > 0.
        running: what becomes of sessions that run: see `UncertaintyMonitor.reload`.
        on_reload: called after each reload.
    """
    if not interval_s > 0.0:
        raise ConfigurationError.of("interval_s", "watch_profile", "more than 0 seconds", interval_s)
    place = Path(path)
    seen: _Signature | Literal["unseen"] = "unseen"
    while True:
        now = await anyio.to_thread.run_sync(_signature, place)
        if now != seen:
            seen = now
            artifact = await anyio.to_thread.run_sync(_read, place)
            if artifact is not None and artifact.fingerprint != monitor.fingerprint:
                try:
                    done = monitor.reload(artifact, running=running)
                except ConfigurationError as error:
                    log.warning("%s is not taken: %s", place, error)
                else:
                    log.info("profile %s follows %s", done.fingerprint[:12], done.before[:12])
                    if on_reload is not None:
                        on_reload(done)
        await anyio.sleep(interval_s)


def _signature(place: Path) -> _Signature:
    try:
        found = place.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(place: Path) -> ProfileArtifact | None:
    try:
        return load(place)
    except DataError as error:
        log.warning("%s is not taken: %s", place, error)
        return None
