"""Where the real data are, if they are here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def data_file(*parts: str) -> Path:
    """A file of the data folder; the test is skipped, with the reason, when the folder is not named."""
    folder = os.environ.get("GRAMPUS_UQ_DATA")
    if not folder:
        pytest.skip("GRAMPUS_UQ_DATA is not set: the folder with the measured data")
    path = Path(folder).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path
