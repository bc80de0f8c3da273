"""A monitor with an artifact acts where it fits, advises where it may not, and refuses another model."""

from __future__ import annotations

from typing import Any

import pytest

from grampus_uq import ConfigurationError, UncertaintyAction, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.artifacts import FittedFor, ProfileArtifact, prompt_hash, tools_hash
from grampus_uq.events import Event, SessionStarted
from grampus_uq.state import Profile

ARTIFACT = ProfileArtifact(
    profile=Profile(policy=UncertaintyPolicy(irreversible_tool_names=["send"])),
    fitted_for=FittedFor(model="m", prompt_hash=prompt_hash("be good"), tools_hash=tools_hash([])),
)
FITTING: dict[str, Any] = {"model": "m", "prompt_hash": prompt_hash("be good"), "tools_hash": tools_hash([])}


class Seen:
    def __init__(self) -> None:
        self.started: list[SessionStarted] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, SessionStarted):
            self.started.append(event)


def test_it_acts_where_model_prompt_and_tools_are_those_it_was_fitted_for() -> None:
    seen = Seen()
    session = UncertaintyMonitor(profile=ARTIFACT, processors=[seen]).session("s", **FITTING)
    assert session.would_allow("send_email").action is UncertaintyAction.PAUSE_FOR_HUMAN
    (started,) = seen.started
    assert started.profile_fingerprint == ARTIFACT.fingerprint
    assert started.metadata["profile_status"] == "active"
    assert not started.advisory


@pytest.mark.parametrize("other", [{"prompt_hash": prompt_hash("be bad")}, {"tools_hash": None}])
def test_it_only_advises_under_another_prompt_and_says_why(
    other: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    session = UncertaintyMonitor(profile=ARTIFACT, processors=[seen]).session("s", **FITTING | other)
    verdict = session.would_allow("send_email")
    assert verdict.allowed
    assert "would be pause_for_human" in verdict.reason
    assert seen.started[0].advisory
    assert next(iter(other)) in caplog.text


def test_another_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="fitted for 'm', not for 'other'"):
        UncertaintyMonitor(profile=ARTIFACT).session("s", **FITTING | {"model": "other"})
