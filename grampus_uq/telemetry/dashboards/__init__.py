"""A Grafana dashboard, Prometheus alerts, and a compose file for both with Jaeger: the files in `files`.

`@alpha@` in them is the detector's. Only the alerts, the queries of the
dashboard and Prometheus' configuration are run by the tests; the images of the compose file are not.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from grampus_uq.errors import ConfigurationError, DataError

_FILES: Final = Path(__file__).parent / "files"


def stack_files(alpha: float = 0.05) -> dict[str, str]:
    """The text of every file, by its path below the folder; `alpha` is the detector's.

    Raises ConfigurationError for an alpha outside (0, 1).
    """
    if not 0.0 < alpha < 1.0:
        raise ConfigurationError.of("alpha", "stack_files", "in (0, 1)", alpha)
    placeholders = {
        '"@alpha@"': f"{alpha:g}",  # a number of JSON: the quotes go
        "@alpha@": f"{alpha:g}",
        "@alpha_spread@": f"{9 * alpha * (1 - alpha):g}",  # three standard deviations, squared
    }
    found: dict[str, str] = {}
    for path in sorted(_FILES.rglob("*")):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            for placeholder, value in placeholders.items():
                text = text.replace(placeholder, value)
            found[path.relative_to(_FILES).as_posix()] = text
    return found


def write_stack(folder: str | os.PathLike[str], alpha: float = 0.05, *, replace: bool = False) -> list[Path]:
    """Write every file below the folder, and return their paths.

    Raises ConfigurationError, before anything is written, when one is there already with other content and `replace` is
    not set; DataError when one cannot be written.
    """
    files = {Path(folder) / name: text for name, text in stack_files(alpha).items()}
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
