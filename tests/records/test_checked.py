"""A constructor refuses an argument of another kind than it names, before it does anything; no message holds a key."""

from __future__ import annotations

from typing import Any

import pytest

from grampus_uq import (
    AgentRunner,
    ApprovalPolicy,
    Budget,
    ConfigurationError,
    Exploration,
    FunctionTools,
    Outcome,
    Sensing,
    ToolEffects,
    UncertaintyMonitor,
)
from grampus_uq.integrations import AdapterSettings
from grampus_uq.learn import FitOptions, Plan
from grampus_uq.models import LiteLLMModel, LocalModel, OpenAICompatibleModel
from grampus_uq.recording import Label, RecordingProcessor
from grampus_uq.runtime import StoredPermits, Worker
from grampus_uq.signals import HashingEmbedder, LexicalEquivalence, MiniLM, PrefixVerifier, Reader
from grampus_uq.telemetry import GrampusMeters, GrampusTracer, LangfuseScores, MetricsProcessor, SpanEmitter
from grampus_uq.testing import ScriptedModel

WRONG: list[tuple[Any, str, Any]] = [
    *((UncertaintyMonitor, "advisory", value) for value in ("false", "no", 0, 1, None, [])),
    *((UncertaintyMonitor, "exploration", value) for value in (0.1, "0.1", {}, 0)),
    *((UncertaintyMonitor, name, []) for name in ("policy", "estimator", "trajectory_risk", "sensing")),
    *((UncertaintyMonitor, "processors", value) for value in (5, "recorder")),
    *((ApprovalPolicy, name, "ann") for name in ("approvers", "deputies")),
    *((ApprovalPolicy, name, [1]) for name in ("approvers", "deputies")),
    (ApprovalPolicy, "others_decide", "false"),
    (ApprovalPolicy, "seal", "a text that is long enough"),
    *((Budget, "max_calls", value) for value in (float("nan"), 0.5, "8", True)),
    *((Budget, "max_tokens", value) for value in (float("nan"), 0.5, "8")),
    (Budget, "timeout_s", "15"),
    *((Exploration, "rate", value) for value in ("0.1", True, None)),
    *((Outcome, "time_s", value) for value in ("now", float("nan"), float("inf"))),
    (Outcome, "time_s", 10**400),
    (Budget, "timeout_s", 10**400),
    (Exploration, "rate", 10**400),
    (AgentRunner, "lease_s", 10**400),
    (GrampusMeters, "interval_s", 10**400),
    *((Outcome, name, 5) for name in ("note", "labelled_by", "right_looks")),
    *((Sensing, name, "false") for name in ("ask_of_calls", "counts", "speculative", "max_overhead", "budgets")),
    (ToolEffects, "by_name", [("refund", "irreversible")]),
    (ToolEffects, "unknown_is_irreversible", "false"),
    *((Label, name, 5) for name in ("session_id", "success", "note", "right_looks")),
    *((RecordingProcessor, name, "64") for name in ("max_open", "rotate_bytes", "rotate_s")),
    *((FitOptions, name, "0.1") for name in ("false_alarms", "assurance", "question", "runs_per_day", "streams")),
    (FitOptions, "labels", "chosen"),
    *((AgentRunner, name, "false") for name in ("logprobs", "checkpoints", "lease_s")),
    (AdapterSettings, "advisory", "false"),
    (StoredPermits, "draw", 0.5),
    (Worker, "at_once", "4"),
    (Plan, "level", "0.8"),
    *((HashingEmbedder, "dimension", value) for value in ([], "64", {})),
    *((LexicalEquivalence, name, "0.4") for name in ("threshold", "strict_threshold")),
    *((MiniLM, "directory", value) for value in (5, [])),
    (PrefixVerifier, "max_tokens", "16"),
    (Reader, "timeout_s", "5"),
    *((model, "timeout_s", "60") for model in (OpenAICompatibleModel, LiteLLMModel, LocalModel)),
    (GrampusMeters, "interval_s", "15"),
    (GrampusTracer, "queue_size", "2048"),
    (SpanEmitter, "content", "false"),
    (SpanEmitter, "evaluation_events", "spans"),
    (MetricsProcessor, "agent_ids", "clerk"),
    (LangfuseScores, "attempts", "4"),
]


@pytest.mark.parametrize(("cls", "name", "value"), WRONG)
def test_an_argument_of_another_kind_is_refused_by_its_name(cls: Any, name: str, value: object) -> None:
    required: dict[Any, dict[str, Any]] = {
        Outcome: {"success": True},
        AdapterSettings: {"monitor": UncertaintyMonitor()},
    }
    with pytest.raises(ConfigurationError, match=rf"The '{name}' parameter of `{cls.__name__}` must be "):
        cls(**{**required.get(cls, {}), name: value})


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        (ApprovalPolicy, "seal", b"sesame"),
        (ApprovalPolicy, "signer", "sesame"),
        (OpenAICompatibleModel, "api_key", b"sesame"),
        (OpenAICompatibleModel, "headers", [("authorization", "sesame")]),
        (RecordingProcessor, "key", "sesame"),
        (LangfuseScores, "secret_key", b"sesame"),
    ],
)
def test_a_secret_of_another_kind_is_refused_and_not_shown(cls: Any, name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}'") as refused:
        cls(**{name: value})
    assert "sesame" not in str(refused.value)


def test_positional_arguments_are_checked_as_well_and_a_missing_one_is_pythons_error() -> None:
    with pytest.raises(ConfigurationError, match="'rate'"):
        Exploration("0.1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tool_executor"):
        AgentRunner(ScriptedModel())  # type: ignore[call-arg]
    assert AgentRunner(ScriptedModel(), FunctionTools()).monitor is not None
