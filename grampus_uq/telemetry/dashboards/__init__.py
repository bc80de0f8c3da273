"""A Grafana dashboard, Prometheus alerts, and a compose file for both with Jaeger: the files in `files`.

Placeholders such as `@alpha@` in them are the limits at which alerts begin. Only the alerts, the queries of the
dashboard and Prometheus' configuration are run by the tests; the images of the compose file are not.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grampus_uq.errors import ConfigurationError, DataError

_FILES: Final = Path(__file__).parent / "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits at which alerts begin.

    `alpha` is the detector's, `watch_level` the calibration watch's, both in (0, 1); `approvals_wait_min` is in
    minutes, at least 1; `monitor_usd_per_hour` in US dollars, above 0. Raises ConfigurationError for any other value.
    """

    alpha: float = 0.05
    watch_level: float = 0.01
    approvals_wait_min: int = 30
    monitor_usd_per_hour: float = 10.0

    def __post_init__(self) -> None:
        for name in ("alpha", "watch_level"):
            value = getattr(self, name)
            if not 0.0 < value < 1.0:
                raise ConfigurationError.of(name, "Limits", "in (0, 1)", value)
        if self.approvals_wait_min < 1:
            raise ConfigurationError.of("approvals_wait_min", "Limits", "at least 1", self.approvals_wait_min)
        if not 0.0 < self.monitor_usd_per_hour < math.inf:
            raise ConfigurationError.of("monitor_usd_per_hour", "Limits", "above 0", self.monitor_usd_per_hour)

    def _placeholders(self) -> dict[str, str]:
        threshold = -math.log(self.watch_level)  # natural log of 1 / level
        return {
            '"@alpha@"': f"{self.alpha:g}",  # a number of JSON: the quotes go
            '"@watch_threshold@"': f"{threshold:.3f}",
            "@alpha@": f"{self.alpha:g}",
            "@alpha_spread@": f"{9 * self.alpha * (1 - self.alpha):g}",  # three standard deviations, squared
            "@watch_level@": f"{self.watch_level:g}",
            "@watch_threshold@": f"{threshold:.6g}",
            "@approvals_wait_min@": f"{self.approvals_wait_min}",
            "@monitor_usd_per_hour@": f"{self.monitor_usd_per_hour:g}",
        }


def stack_files(limits: Limits | None = None) -> dict[str, str]:
    """The text of every file, by its path below the folder."""
    placeholders = (limits or Limits())._placeholders()
    found: dict[str, str] = {}
    for path in sorted(_FILES.rglob("*")):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            for placeholder, value in placeholders.items():
                text = text.replace(placeholder, value)
            found[path.relative_to(_FILES).as_posix()] = text
    return found


def write_stack(folder: str | os.PathLike[str], limits: Limits | None = None, *, replace: bool = False) -> list[Path]:
    """Write every file below the folder, and return their paths.

    Raises ConfigurationError, before anything is written, when one is there already with other content and `replace` is
    not set; DataError when one cannot be written.
    """
    files = {Path(folder) / name: text for name, text in stack_files(limits).items()}
    try:
        for path, text in files.items():
            if not replace and path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
                rule = "a folder without other files of these names"
                raise ConfigurationError.of("folder", "write_stack", rule, str(path), "to overwrite: --force")
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror}.", path=os.fspath(error.filename or folder)) from error
    return list(files)
