"""The page on recordings names every field that a line can have, and every word that a field can be."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from grampus_uq.records.events import (
    CallAsked,
    DecisionEvent,
    InForce,
    LookEvent,
    ObservationEvent,
    OutcomeEvent,
    ProfileChanged,
    SessionStarted,
    StepEvent,
    TrajectoryReading,
)
from grampus_uq.records.values import Outcome, Reading, Step, StepUncertainty, TokenLogprob, ToolCall
from grampus_uq.records.vocabulary import Effect, StopReason, UncertaintyAction, UncertaintyLevel
from grampus_uq.stats.trajectory_risk import StepComponents

PAGE = (Path(__file__).parents[2] / "docs" / "recordings.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([^`\s]+)`", PAGE.partition("## The format, version 1")[2]))


@pytest.mark.parametrize(
    "record",
    [
        SessionStarted,
        StepEvent,
        ObservationEvent,
        CallAsked,
        InForce,
        LookEvent,
        DecisionEvent,
        OutcomeEvent,
        ProfileChanged,
        Step,
        Reading,
        TokenLogprob,
        Outcome,
        TrajectoryReading,
        StepComponents,
    ],
    ids=lambda record: record.__name__,
)
def test_every_field_of_a_record_is_documented(record: type) -> None:
    assert {field.name for field in dataclasses.fields(record)} - NAMED == set()


@pytest.mark.parametrize("model", [ToolCall, StepUncertainty], ids=lambda model: model.__name__)
def test_every_field_of_a_model_is_documented(model: type[ToolCall] | type[StepUncertainty]) -> None:
    assert set(model.model_fields) - NAMED == set()


@pytest.mark.parametrize("words", [Effect, StopReason, UncertaintyAction, UncertaintyLevel], ids=lambda e: e.__name__)
def test_every_word_is_documented(words: type[Effect]) -> None:
    assert {word.value for word in words} - NAMED == set()
