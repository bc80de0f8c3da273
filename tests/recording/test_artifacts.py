"""Profile artifacts: what is saved is what is loaded, and anything else says why not."""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from grampus_uq.core.estimator import UncertaintyEstimator
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.core.state import Profile
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.recording.artifacts import (
    ANY,
    FittedFor,
    InputFile,
    ProfileArtifact,
    Provenance,
    activate,
    load,
    match,
    profile_fingerprint,
    prompt_hash,
    save,
    tools_hash,
)
from tests.sampling import examples

PROMPT = prompt_hash("You book flights.")
TOOLS = tools_hash([{"name": "book"}, {"name": "cancel"}])


def artifact(**fitted: Any) -> ProfileArtifact:
    return ProfileArtifact(
        profile=Profile(policy=UncertaintyPolicy(irreversible_tool_names=["delete"], low_threshold=0.83)),
        fitted_for=FittedFor(**({"model": "m", "prompt_hash": PROMPT, "tools_hash": TOOLS} | fitted)),
        guarantees=("With probability 0.9, at most 5 % of successful runs are paused.",),
        provenance=Provenance(counts={"used": 100, "censored": 3}, splits={"fit": 60, "threshold": 40}, seed=7),
    )


fractions = st.floats(0.0, 1.0)
profiles = st.builds(
    Profile,
    policy=st.builds(
        UncertaintyPolicy,
        low_threshold=st.floats(0.8, 1.0),
        medium_threshold=st.floats(0.5, 0.8),
        high_threshold=st.floats(0.0, 0.5),
        irreversible_tool_names=st.lists(st.text("abcé検", min_size=1), max_size=3),
        worst_so_far_floor=st.none() | fractions,
        call_floor=st.none() | st.just(0.8) | fractions,
    ),
    estimator=st.builds(UncertaintyEstimator, extra_weights=st.dictionaries(st.text(max_size=5), fractions)),
    advisory=st.booleans(),
)


@given(profiles, st.none() | st.integers(-(2**70), 2**70))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_saved_is_what_is_loaded(tmp_path: Path, profile: Profile, seed: int | None) -> None:
    made = ProfileArtifact(profile=profile, provenance=Provenance(seed=seed))
    fingerprint = save(made, tmp_path / "p.json")
    loaded = load(tmp_path / "p.json")
    assert loaded == made
    assert loaded.fingerprint == fingerprint == made.fingerprint
    assert save(loaded, tmp_path / "p.json") == fingerprint


@pytest.mark.parametrize("estimator", [{}, {"enable_semantic_sampling": False}, {"enable_semantic_sampling": True}])
def test_a_switch_that_was_left_alone_is_still_left_alone(tmp_path: Path, estimator: dict[str, bool]) -> None:
    profile = Profile(estimator=UncertaintyEstimator(**estimator))
    save(ProfileArtifact(profile=profile), tmp_path / "p.json")
    loaded = load(tmp_path / "p.json").profile
    assert loaded.estimator.allows_semantic_sampling() == profile.estimator.allows_semantic_sampling()
    assert profile_fingerprint(loaded) == profile_fingerprint(profile)


def test_profiles_that_decide_differently_have_different_fingerprints() -> None:
    off = Profile(estimator=UncertaintyEstimator(enable_semantic_sampling=False))
    others = [
        Profile(),
        off,
        Profile(advisory=True),
        Profile(policy=UncertaintyPolicy(low_threshold=0.8000000000000002)),
    ]
    assert len({profile_fingerprint(profile) for profile in others}) == 4
    assert profile_fingerprint(Profile(policy=UncertaintyPolicy())) == profile_fingerprint(Profile())


def test_the_file_is_json_that_anybody_can_read_and_check(tmp_path: Path) -> None:
    fingerprint = save(artifact(), tmp_path / "p.json")
    document = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))
    assert (document["format"], document["v"]) == ("grampus-uq-profile", 1)
    content = {name: value for name, value in document.items() if name not in ("format", "v", "fingerprint")}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(canonical.encode()).hexdigest() == fingerprint == document["fingerprint"]
    assert document["provenance"]["counts"] == {"used": 100, "censored": 3}
    assert "numpy" in document["provenance"]["versions"]


# --- refusals --------------------------------------------------------------------------------------------------------


def rewritten(path: Path, change: Any, *, honest: bool = True) -> Path:
    """Save an artifact, change its document, and (honest) hash it again as its format says."""
    save(artifact(), path)
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    if honest:
        content = {name: value for name, value in document.items() if name not in ("format", "v", "fingerprint")}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        document["fingerprint"] = hashlib.sha256(canonical.encode()).hexdigest()
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def at(*places: Any, value: Any = ...) -> Any:
    def change(document: Any) -> None:
        for place in places[:-1]:
            document = document[place]
        if value is ...:
            del document[places[-1]]
        else:
            document[places[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        (at("v", value=2), "v", "newer version"),
        (at("v"), "v", "must be a version"),
        (at("v", value=True), "v", "must be a version"),
        (at("format", value="other"), "format", "not a profile"),
        (at("profile"), "profile", "required"),
        (
            at("profile", "policy", "low_threshold", value=1.5),
            "profile.policy.low_threshold",
            "less than or equal to 1",
        ),
        (at("profile", "policy", "low_threshold", value="0.8"), "profile.policy.low_threshold", "valid number"),
        (at("profile", "policy", "extra", value=1), "profile.policy.extra", "not permitted"),
        (at("profile", "estimator", "max_samples", value=1), "profile.estimator.max_samples", "greater than or equal"),
        (
            at("profile", "policy", "irreversible_tool_names", value=[""]),
            "profile.policy.irreversible_tool_names",
            "empty",
        ),
        (at("fitted_for", "prompt_hash", value=5), "fitted_for.prompt_hash", "valid string"),
        (at("provenance", "created_at", value="2026-01-01T00:00:00"), "provenance.created_at", "timezone"),
        (at("provenance", "counts", value={"used": -1}), "provenance.counts.used", "greater than or equal to 0"),
        (at("unheard_of", value=1), "unheard_of", "not permitted"),
    ],
)
def test_a_wrong_artifact_names_the_field_and_the_rule(tmp_path: Path, change: Any, field: str, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        load(rewritten(tmp_path / "p.json", change))
    assert caught.value.path == str(tmp_path / "p.json")
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize(
    "change",
    [
        at("profile", "policy", "low_threshold", value=0.5),
        at("guarantees", 0, value="No run is ever paused wrongly."),
        at("provenance", "seed", value=8),
        at("fitted_for", "model", value="another"),
        at("fingerprint"),
        at("fingerprint", value=5),
    ],
)
def test_a_change_by_hand_is_noticed(tmp_path: Path, change: Any) -> None:
    with pytest.raises(DataError, match="changed or damaged") as caught:
        load(rewritten(tmp_path / "p.json", change, honest=False))
    assert caught.value.field == "fingerprint"


@given(st.data())
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_refused_or_means_the_same(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "p.json"
    made = artifact()
    save(made, path)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    refused, loaded = False, None
    try:
        loaded = load(path)
    except DataError as error:
        refused = error.path == str(path)
    assert refused or loaded == made  # a space may become a newline


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b"\xff", "not UTF-8"),
        (b"\x80\x04K\x01.", "not UTF-8"),  # a pickle
        (b'{"v": NaN}', "NaN"),
        (b'{"v": 1, "v": 1}', "appears twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b" " * (65 * 2**20), "longer than"),
    ],
)
def test_what_is_no_artifact_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "p.json").write_bytes(data)
    with pytest.raises(DataError, match=says):
        load(tmp_path / "p.json")


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"p\.json: cannot be read"):
        load(tmp_path / "p.json")


def test_an_artifact_accepts_no_number_that_json_has_not() -> None:
    with pytest.raises(ValidationError):
        Provenance(details={"x": math.nan})


# --- saving ----------------------------------------------------------------------------------------------------------


def test_a_reader_beside_a_writer_always_reads_a_whole_artifact(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    made = [artifact(), artifact(model="another")]
    save(made[0], path)
    done = threading.Event()

    def write() -> None:
        for number in range(40):
            save(made[number % 2], path)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert load(path) in made
    writer.join()
    assert os.listdir(tmp_path) == ["p.json"]


def test_a_save_that_fails_keeps_the_old_file_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    fingerprint = save(artifact(), path)
    broken = ProfileArtifact(profile=Profile(), guarantees=("half an emoji \ud83d",))
    with pytest.raises(UnicodeEncodeError):
        save(broken, path)
    assert load(path).fingerprint == fingerprint
    assert os.listdir(tmp_path) == ["p.json"]


# --- matching --------------------------------------------------------------------------------------------------------

HERE = {"model": "m", "prompt_hash": PROMPT, "tools_hash": TOOLS}


@pytest.mark.parametrize(
    ("fitted", "here", "status", "says"),
    [
        ({}, {}, "active", []),
        ({"model": ANY, "prompt_hash": ANY, "tools_hash": ANY}, {"model": None, "tools_hash": None}, "active", []),
        ({}, {"model": "n"}, "refused", ["model: fitted for 'm', not for 'n'."]),
        ({}, {"model": "n", "tools_hash": None}, "refused", ["model: fitted", "tools_hash: fitted"]),
        (
            {},
            {"prompt_hash": "0" * 64},
            "advisory",
            [f"prompt_hash: fitted for '{PROMPT[:12]}…', not for '{'0' * 12}…'."],
        ),
        ({}, {"tools_hash": "0" * 64}, "advisory", ["tools_hash: fitted for"]),
        ({}, {"model": None}, "advisory", ["does not say what it has"]),
        ({"model": None}, {}, "advisory", ["does not say what it was fitted for"]),
        ({"tools_hash": None}, {"tools_hash": None}, "advisory", ["does not say what it was fitted for"]),
    ],
)
def test_a_profile_acts_only_where_it_was_fitted_for(fitted: Any, here: Any, status: str, says: list[str]) -> None:
    found = match(artifact(**fitted), **(HERE | here))
    assert found.status == status
    assert len(found.reasons) == len(says)
    assert all(part in reason for part, reason in zip(says, found.reasons, strict=True))


def test_activate_gives_the_profile_as_it_is_or_what_stands_in_for_it_or_refuses() -> None:
    made = artifact()
    with pytest.raises(ConfigurationError, match=r"a fitted profile.*UncertaintyMonitor the policy itself"):
        activate(made, **HERE)
    made = made.model_copy(
        update={"profile": made.profile.model_copy(update={"trajectory_risk": TrajectoryRiskSettings()})}
    )
    assert activate(made, **HERE)[0] is made.profile
    profile, found = activate(made, **(HERE | {"tools_hash": None}))
    assert (profile.advisory, profile.policy) == (False, made.profile.policy)
    assert profile.fallback == found.reasons[0]
    assert found.status == "advisory"
    with pytest.raises(ConfigurationError, match="fitted for 'm', not for 'n'"):
        activate(made, **(HERE | {"model": "n"}))


# --- hashes ----------------------------------------------------------------------------------------------------------


def test_hashes_of_prompts_and_files_are_sha_256(tmp_path: Path) -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # FIPS 180-2, the empty message
    (tmp_path / "runs.jsonl").write_bytes(b"")
    assert prompt_hash("") == empty
    assert InputFile.of(tmp_path / "runs.jsonl") == InputFile(name="runs.jsonl", sha256=empty, size=0)


def test_the_hash_of_tools_sees_every_change_but_no_order() -> None:
    one = {"name": "book", "parameters": {"a": 1, "b": [1, 2]}}
    two = {"name": "cancel"}
    assert tools_hash([one, two]) == tools_hash([two, {"parameters": {"b": [1, 2], "a": 1}, "name": "book"}])
    changed: list[list[dict[str, Any]]] = [
        [one],
        [one, one, two],
        [one, {"name": "Cancel"}],
        [{"name": "book", "parameters": {"b": [2, 1], "a": 1}}, two],
    ]
    for others in changed:
        assert tools_hash(others) != tools_hash([one, two])


scalars = st.sampled_from([None, True, False, 0, 1, 1.0, -0.0, "1", "a", (), []])
lists_of_tools = st.lists(st.dictionaries(st.sampled_from("abc"), scalars | st.lists(scalars, max_size=2), max_size=3))


@given(lists_of_tools, st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), scalars), max_size=6))
def test_the_hash_of_tools_is_that_of_what_they_are_now_however_often_they_came_and_changed_in_place(
    tools: list[dict[str, Any]], changes: list[tuple[int, str, Any]]
) -> None:
    for at, name, value in [(0, "", None), *changes]:
        if name and tools:
            tools[at % len(tools)][name] = value
        written = sorted(json.dumps(tool, sort_keys=True, separators=(",", ":")) for tool in tools)
        assert tools_hash(tools) == prompt_hash("\n".join(written))


def test_tools_that_come_again_are_not_written_out_again() -> None:
    assert tools_hash([{"name": "seen before"}]) is tools_hash([{"name": "seen before"}])
