"""A profile as a file: versioned JSON with a fingerprint, what it was fitted on and for, and what it promises.

The file is data and nothing else: no pickle, no code. It is checked in full before anything of it is used, and a file
that is newer, broken, changed, or made for another model says so instead of working a little.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import marshal
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    Field,
    JsonValue,
    StringConstraints,
    TypeAdapter,
)

from grampus_uq.core.state import Profile
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.recording.whole_file import whole_file
from grampus_uq.records.strict_json import check_version, json_object, validated
from grampus_uq.records.values import canonical_json, sha256_of
from grampus_uq.records.vocabulary import TASK
from grampus_uq.stats.stored_values import FROZEN

VERSION: Final = 1
ANY: Final = "*"
"""In `FittedFor`: by decision at fit time, the profile holds for every value."""

_FORMAT: Final = "grampus-uq-profile"
_MAX_BYTES: Final = 64 * 2**20
_PACKAGES: Final = ("grampus-uq", "numpy", "pydantic", "scikit-learn", "scipy")

_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]


class InputFile(BaseModel):
    """A file that a profile was fitted on: its name, SHA-256 and size, so that the fit can be traced and repeated."""

    model_config = FROZEN

    name: str
    sha256: _Sha256
    size: Count

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> InputFile:
        """Hash a file, a block at a time. Only its name is kept, not its folder."""
        with Path(path).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return cls(name=Path(path).name, sha256=digest, size=stream.tell())

    @classmethod
    def of_each(cls, paths: Iterable[Path]) -> Iterator[InputFile]:
        """Hash each file that can be read; of the others the reader of their runs said why."""
        for path in paths:
            with contextlib.suppress(OSError):
                if path.is_file():
                    yield cls.of(path)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


class Provenance(BaseModel):
    """The origin of a profile.

    `counts` says how many runs there were of each kind (used, and every exclusion by its reason), `splits` how many
    went into each disjoint part, `seed` what drew them (None: nothing was drawn), `details` anything else: `runs` are
    digests of the runs that the fit was given (`runs.run_digests`), which tell copies of them in other files.
    """

    model_config = FROZEN

    created_at: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC))
    counts: dict[str, Count] = Field(default_factory=dict)
    inputs: tuple[InputFile, ...] = ()
    splits: dict[str, Count] = Field(default_factory=dict)
    seed: int | None = None
    versions: dict[str, str] = Field(default_factory=_versions)
    details: dict[str, JsonValue] = Field(default_factory=dict)

    def listed(self, name: str) -> frozenset[str]:
        """The texts of a list in `details`; none where it is missing or no list."""
        found = self.details.get(name)
        return frozenset(one for one in found if isinstance(one, str)) if isinstance(found, list) else frozenset()

    @property
    def task_key(self) -> str:
        """The metadata that named the task of a run in the fit."""
        options = self.details.get("options")
        return str(options.get("task_key", TASK)) if isinstance(options, dict) else TASK


class FittedFor(BaseModel):
    """Common properties of the runs a profile was fitted on; None: not known, `ANY` ("*"): irrelevant.

    The hashes are those of `prompt_hash` and `tools_hash`, or any other text with which a host names its versions.
    """

    model_config = FROZEN

    model: str | None = None
    prompt_hash: str | None = None
    tools_hash: str | None = None

    @classmethod
    def shared(cls, made_with: Iterable[tuple[str | None, str | None, str | None]]) -> FittedFor:
        """The model, prompt and tools that all runs share; None for what differs or was not recorded."""
        facts = [set(found) for found in zip(*made_with, strict=True)] or [set[str | None]()] * 3
        model, prompt, tools = [(found.pop() or None) if len(found) == 1 else None for found in facts]
        return cls(model=model, prompt_hash=prompt, tools_hash=tools)

    @property
    def made_with(self) -> tuple[str, str | None, str | None]:
        """Model, prompt hash and tools hash as a recording states them: an unknown model is ""."""
        return self.model or "", self.prompt_hash, self.tools_hash


class ProfileArtifact(BaseModel):
    """A profile with where it comes from, what it was fitted for, and the sentences of its guarantees."""

    model_config = FROZEN

    profile: Profile
    fitted_for: FittedFor = Field(default_factory=FittedFor)
    guarantees: tuple[str, ...] = ()
    provenance: Provenance = Field(default_factory=Provenance)
    attribution: dict[str, JsonValue] | None = Field(default=None, exclude_if=lambda value: value is None)
    """A calibration of error attribution (`attribution.calibration_to_json`), for `grampus-uq attribute`.

    Left out of what is written where there is none, so that older artifacts keep their fingerprints.
    """

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of the canonical content: what recordings name and what tells two artifacts apart.

        It detects damage, not forgery: an attacker who changes the file can compute its hash again.
        """
        return _digest(_content(self))


_ARTIFACT: Final = TypeAdapter(ProfileArtifact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The right of a profile to act: `active`, `advisory` (not known to fit) or `refused` (another model), and why."""

    status: Literal["active", "advisory", "refused"]
    reasons: tuple[str, ...] = ()


def match(artifact: ProfileArtifact, *, model: str | None, prompt_hash: str | None, tools_hash: str | None) -> Match:
    """Say whether a profile may act on an agent with this model, prompt and tools.

    Another model: refused, since neither its probabilities nor its thresholds mean anything there. Another prompt or
    other tools, or anything that either side does not say: advisory, because the guarantee needs runs that are
    exchangeable with those it was calibrated on, which cannot be checked.
    """
    fitted = artifact.fitted_for
    refused: list[str] = []
    advised: list[str] = []
    for what, was, now in (
        ("model", fitted.model, model),
        ("prompt_hash", fitted.prompt_hash, prompt_hash),
        ("tools_hash", fitted.tools_hash, tools_hash),
    ):
        if was == ANY or (was is not None and was == now):
            continue
        if was is None:
            advised.append(f"{what}: the profile does not say what it was fitted for.")
        elif now is None:
            advised.append(f"{what}: fitted for {_short(was)}; the agent does not say what it has.")
        else:
            (refused if what == "model" else advised).append(
                f"{what}: fitted for {_short(was)}, not for {_short(now)}."
            )
    status: Literal["active", "advisory", "refused"] = "refused" if refused else "advisory" if advised else "active"
    return Match(status=status, reasons=(*refused, *advised))


def _short(value: str) -> str:
    """A name in quotes, and of a digest the beginning: a person who is asked reads it."""
    return f"'{value[:12]}…'" if len(value) == 64 and value.isalnum() else f"{value!r:.80}"


def activate(
    artifact: ProfileArtifact, *, model: str | None, prompt_hash: str | None, tools_hash: str | None
) -> tuple[Profile, Match]:
    """Return the profile to run with, and the match: unchanged when the match is active, else what stands in for it.

    What stands in are the profile's own tiers and rules for irreversible calls, without anything that was fitted
    (`Profile.standing_in`): a session is never less guarded than without a profile. Raises ConfigurationError with the
    reasons when the match is refused, and for a profile in which nothing was fitted.
    """
    if not artifact.profile.fitted:
        way_out = "Fit one (`grampus-uq fit`), or give UncertaintyMonitor the policy itself."
        rule = "a fitted profile"
        raise ConfigurationError.of("artifact", "activate", rule, "a policy alone", way_out)
    found = match(artifact, model=model, prompt_hash=prompt_hash, tools_hash=tools_hash)
    if found.status == "refused":
        rule = f"what the profile was fitted for: {' '.join(found.reasons)}"
        raise ConfigurationError.of("model", "activate", rule, model, "Fit a profile on runs of this model.")
    if found.status == "advisory":
        return artifact.profile.standing_in(" ".join(found.reasons)), found
    return artifact.profile, found


def profile_fingerprint(profile: Profile) -> str:
    """SHA-256, in hex, of the canonical content of a profile alone: equal for profiles that decide alike."""
    return _digest(profile.model_dump(mode="json"))


def prompt_hash(text: str) -> str:
    """SHA-256, in hex, of a prompt in UTF-8: what `FittedFor` and the head of a recording hold.

    >>> prompt_hash("abc")[:16]
    'ba7816bf8f01cfea'
    """
    return sha256_of(text)


def tools_hash(tools: Sequence[Mapping[str, Any]]) -> str:
    """SHA-256, in hex, of tool schemas: neither their order nor the order of their keys matters.

    >>> tools_hash([{"name": "a"}, {"name": "b", "x": 1}]) == tools_hash([{"x": 1, "name": "b"}, {"name": "a"}])
    True
    """
    given = [dict(tool) for tool in tools]
    try:
        return _known_hash(marshal.dumps(given))
    except ValueError:  # values of other types than JSON's own, or none that JSON has
        return _hash_of(given)


@functools.lru_cache(maxsize=16)
def _known_hash(marshalled: bytes) -> str:
    """The hash of the tools with these values: to write them down exactly takes a tenth of the time."""
    return _hash_of(marshal.loads(marshalled))  # noqa: S302 (of this process)


def _hash_of(tools: Iterable[Mapping[str, Any]]) -> str:
    return prompt_hash("\n".join(sorted(map(canonical_json, tools))))


def save(artifact: ProfileArtifact, path: str | os.PathLike[str]) -> str:
    """Write an artifact and return its fingerprint.

    The file is written beside its place, brought to the disk and renamed, so a reader sees either the old file or
    the new one, whole. Raises OSError when the disk refuses.
    """
    content = _content(artifact)
    fingerprint = _digest(content)
    document = {"format": _FORMAT, "v": VERSION, "fingerprint": fingerprint, **content}
    with whole_file(path, mode=0o666) as draft, draft.open("w", encoding="utf-8") as stream:
        json.dump(document, stream, indent=1, ensure_ascii=False, allow_nan=False)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    return fingerprint


def load(path: str | os.PathLike[str]) -> ProfileArtifact:
    """Read an artifact and check all of it: format, version, fingerprint, every field of the profile.

    Raises DataError, naming the field: not JSON, another format, a newer version, a fingerprint that does not belong to
    the content (changed by hand or damaged), a field that is missing, unknown or out of its domain.
    """
    name = os.fspath(path)
    document = _parse(path, name)
    if document.pop("format", None) != _FORMAT:
        raise DataError(f"must be {_FORMAT!r}: this is not a profile.", path=name, field="format")
    check_version(document.pop("v", None), VERSION, path=name)
    fingerprint = document.pop("fingerprint", None)
    if fingerprint != _digest(document):
        reason = "does not belong to the content: the file was changed or damaged. Fit it again, or restore it."
        raise DataError(reason, path=name, field="fingerprint")
    return validated(_ARTIFACT, json.dumps(document).encode(), path=name)


def is_profile(path: str | os.PathLike[str]) -> bool:
    """True when a file begins as an artifact does; whether it is whole and unchanged, `load` says."""
    with Path(path).open("rb") as stream:
        return f'"format": "{_FORMAT}"'.encode() in stream.read(200)


def _parse(path: str | os.PathLike[str], name: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}.", path=name) from error
    if len(data) > _MAX_BYTES:
        raise DataError(f"is longer than {_MAX_BYTES} bytes: this is not a profile.", path=name)
    return json_object(data, path=name, unique_names=True)


def _content(artifact: ProfileArtifact) -> dict[str, Any]:
    """Every value, defaults included, so that a later release with other defaults decides alike."""
    return artifact.model_dump(mode="json")


def _digest(content: Mapping[str, Any]) -> str:
    return sha256_of(canonical_json(content))
