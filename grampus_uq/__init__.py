"""Watches a language-model agent while it runs, and pauses it before an irreversible tool call does harm.

`__all__` lists the documented names. Each name is loaded when it is first used: importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grampus_uq.core.engine import advance as advance
    from grampus_uq.core.estimator import UncertaintyEstimator
    from grampus_uq.core.policy import UncertaintyPolicy
    from grampus_uq.core.propagator import AuqPropagator, SaupPropagator, UncertaintyPropagator
    from grampus_uq.core.risk import TrajectoryRiskSettings
    from grampus_uq.core.state import Profile
    from grampus_uq.core.state import SessionState as SessionState
    from grampus_uq.errors import ApprovalError as ApprovalError
    from grampus_uq.errors import ConfigurationError, ModelError, RateLimitedError, UncertaintyError
    from grampus_uq.errors import DataError as DataError
    from grampus_uq.errors import ExportError as ExportError
    from grampus_uq.errors import GrampusError as GrampusError
    from grampus_uq.errors import MissingDependencyError as MissingDependencyError
    from grampus_uq.errors import ModelTimeoutError as ModelTimeoutError
    from grampus_uq.errors import SessionConflictError as SessionConflictError
    from grampus_uq.errors import SessionError as SessionError
    from grampus_uq.errors import StoreError as StoreError
    from grampus_uq.errors import UnsupportedByModelError as UnsupportedByModelError
    from grampus_uq.gate.effects import ToolEffects
    from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind, ApprovalPolicy, Grant
    from grampus_uq.gate.requests import ApprovalRequest as ApprovalRequest
    from grampus_uq.gate.seal import Seal
    from grampus_uq.gate.signatures import Ed25519Signer, PublicKeys
    from grampus_uq.gate.signatures import HmacSigner as HmacSigner
    from grampus_uq.monitor.exploration import Exploration
    from grampus_uq.monitor.monitor import UncertaintyMonitor
    from grampus_uq.monitor.sensing import Sensing
    from grampus_uq.monitor.session import Session as Session
    from grampus_uq.records.values import (
        AgentBeliefState,
        AgentDefinition,
        Message,
        ModelResponse,
        Outcome,
        Reading,
        Step,
        StepUncertainty,
        TokenLogprob,
        TokenUsage,
        ToolCall,
        ToolResult,
    )
    from grampus_uq.records.values import Verdict as Verdict
    from grampus_uq.records.vocabulary import (
        AgentStatus,
        Effect,
        Role,
        UncertaintyAction,
        UncertaintyLevel,
        UncertaintySource,
    )
    from grampus_uq.records.vocabulary import MissingReason as MissingReason
    from grampus_uq.records.vocabulary import StopReason as StopReason
    from grampus_uq.runtime.graph import Graph, human_node, uncertainty_guard_node
    from grampus_uq.runtime.inject import inject as inject
    from grampus_uq.runtime.rollback import Branch as Branch
    from grampus_uq.runtime.rollback import branches as branches
    from grampus_uq.runtime.rollback import recover as recover
    from grampus_uq.runtime.rollback import rollback as rollback
    from grampus_uq.runtime.run_state import AgentState, ExecutionResult
    from grampus_uq.runtime.run_state import PendingSession as PendingSession
    from grampus_uq.runtime.runner import UNWATCHED, AgentRunner
    from grampus_uq.runtime.runner import Unwatched as Unwatched
    from grampus_uq.runtime.store import SessionStore as SessionStore
    from grampus_uq.runtime.stores import open_store
    from grampus_uq.runtime.sub_agents import SubAgent as SubAgent
    from grampus_uq.runtime.tools import FunctionTools, tool
    from grampus_uq.runtime.tools import Tool as Tool
    from grampus_uq.signals.driver import Budget
    from grampus_uq.signals.verbalized import elicit_confidence
    from grampus_uq.telemetry.tracer import GrampusTracer

_NAMES = {
    "core.engine": "advance",
    "core.estimator": "UncertaintyEstimator",
    "core.policy": "UncertaintyPolicy",
    "core.propagator": "AuqPropagator SaupPropagator UncertaintyPropagator",
    "core.risk": "TrajectoryRiskSettings",
    "core.state": "Profile SessionState",
    "errors": (
        "ApprovalError ConfigurationError DataError ExportError GrampusError MissingDependencyError "
        "ModelError ModelTimeoutError RateLimitedError SessionConflictError SessionError StoreError "
        "UncertaintyError UnsupportedByModelError"
    ),
    "gate.effects": "ToolEffects",
    "gate.requests": "ApprovalDecision ApprovalKind ApprovalPolicy ApprovalRequest Grant",
    "gate.seal": "Seal",
    "gate.signatures": "Ed25519Signer HmacSigner PublicKeys",
    "monitor.exploration": "Exploration",
    "monitor.monitor": "UncertaintyMonitor",
    "monitor.sensing": "Sensing",
    "monitor.session": "Session",
    "records.values": (
        "AgentBeliefState AgentDefinition Message ModelResponse Outcome Reading Step StepUncertainty "
        "TokenLogprob TokenUsage ToolCall ToolResult Verdict"
    ),
    "records.vocabulary": (
        "AgentStatus Effect MissingReason Role StopReason UncertaintyAction UncertaintyLevel UncertaintySource"
    ),
    "runtime.graph": "Graph human_node uncertainty_guard_node",
    "runtime.inject": "inject",
    "runtime.rollback": "Branch branches recover rollback",
    "runtime.run_state": "AgentState ExecutionResult PendingSession",
    "runtime.runner": "AgentRunner UNWATCHED Unwatched",
    "runtime.store": "SessionStore",
    "runtime.stores": "open_store",
    "runtime.sub_agents": "SubAgent",
    "runtime.tools": "FunctionTools Tool tool",
    "signals.driver": "Budget",
    "signals.verbalized": "elicit_confidence",
    "telemetry.tracer": "GrampusTracer",
}
"""Public names by the module that defines them."""
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "UNWATCHED",
    "AgentBeliefState",
    "AgentDefinition",
    "AgentRunner",
    "AgentState",
    "AgentStatus",
    "ApprovalDecision",
    "ApprovalKind",
    "ApprovalPolicy",
    "AuqPropagator",
    "Budget",
    "ConfigurationError",
    "Ed25519Signer",
    "Effect",
    "ExecutionResult",
    "Exploration",
    "FunctionTools",
    "GrampusTracer",
    "Grant",
    "Graph",
    "Message",
    "ModelError",
    "ModelResponse",
    "Outcome",
    "Profile",
    "PublicKeys",
    "RateLimitedError",
    "Reading",
    "Role",
    "SaupPropagator",
    "Seal",
    "Sensing",
    "Step",
    "StepUncertainty",
    "TokenLogprob",
    "TokenUsage",
    "ToolCall",
    "ToolEffects",
    "ToolResult",
    "TrajectoryRiskSettings",
    "UncertaintyAction",
    "UncertaintyError",
    "UncertaintyEstimator",
    "UncertaintyLevel",
    "UncertaintyMonitor",
    "UncertaintyPolicy",
    "UncertaintyPropagator",
    "UncertaintySource",
    "elicit_confidence",
    "human_node",
    "open_store",
    "tool",
    "uncertainty_guard_node",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
