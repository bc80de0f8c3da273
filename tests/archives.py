"""Unpack a tar archive on every Python 3.11: `TarFile.extractall(filter=...)` came with 3.11.4."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Write the archive's regular files below `folder`; links, devices and whatever leaves the folder are left out."""
    inside = folder.resolve()
    for member in archive:
        target = (inside / member.name).resolve()
        if not member.isfile() or not target.is_relative_to(inside):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        source = archive.extractfile(member)
        assert source is not None
        with source, target.open("wb") as written:
            shutil.copyfileobj(source, written)
        target.chmod(0o755 if member.mode & 0o100 else 0o644)
