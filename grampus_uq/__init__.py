"""Watches a language-model agent while it runs, and pauses it before an irreversible tool call does harm.

The public names, sorted; each is loaded when it is first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grampus_uq.core.engine import advance as advance
    from grampus_uq.core.estimator import UncertaintyEstimator as UncertaintyEstimator
    from grampus_uq.core.policy import UncertaintyPolicy as UncertaintyPolicy
    from grampus_uq.core.propagator import AuqPropagator as AuqPropagator
    from grampus_uq.core.propagator import SaupPropagator as SaupPropagator
    from grampus_uq.core.propagator import UncertaintyPropagator as UncertaintyPropagator
    from grampus_uq.core.risk import TrajectoryRiskSettings as TrajectoryRiskSettings
    from grampus_uq.core.state import Profile as Profile
    from grampus_uq.core.state import SessionState as SessionState
    from grampus_uq.errors import ApprovalError as ApprovalError
    from grampus_uq.errors import ConfigurationError as ConfigurationError
    from grampus_uq.errors import DataError as DataError
    from grampus_uq.errors import ExportError as ExportError
    from grampus_uq.errors import GrampusError as GrampusError
    from grampus_uq.errors import MissingDependencyError as MissingDependencyError
    from grampus_uq.errors import ModelError as ModelError
    from grampus_uq.errors import ModelTimeoutError as ModelTimeoutError
    from grampus_uq.errors import RateLimitedError as RateLimitedError
    from grampus_uq.errors import SessionConflictError as SessionConflictError
    from grampus_uq.errors import SessionError as SessionError
    from grampus_uq.errors import StoreError as StoreError
    from grampus_uq.errors import UncertaintyError as UncertaintyError
    from grampus_uq.errors import UnsupportedByModelError as UnsupportedByModelError
    from grampus_uq.gate.effects import ToolEffects as ToolEffects
    from grampus_uq.gate.requests import ApprovalDecision as ApprovalDecision
    from grampus_uq.gate.requests import ApprovalKind as ApprovalKind
    from grampus_uq.gate.requests import ApprovalPolicy as ApprovalPolicy
    from grampus_uq.gate.requests import ApprovalRequest as ApprovalRequest
    from grampus_uq.gate.requests import Grant as Grant
    from grampus_uq.gate.seal import Seal as Seal
    from grampus_uq.gate.signatures import Ed25519Signer as Ed25519Signer
    from grampus_uq.gate.signatures import HmacSigner as HmacSigner
    from grampus_uq.gate.signatures import PublicKeys as PublicKeys
    from grampus_uq.monitor.exploration import Exploration as Exploration
    from grampus_uq.monitor.monitor import UncertaintyMonitor as UncertaintyMonitor
    from grampus_uq.monitor.sensing import Sensing as Sensing
    from grampus_uq.monitor.session import Session as Session
    from grampus_uq.records.values import AgentBeliefState as AgentBeliefState
    from grampus_uq.records.values import AgentDefinition as AgentDefinition
    from grampus_uq.records.values import Message as Message
    from grampus_uq.records.values import ModelResponse as ModelResponse
    from grampus_uq.records.values import Outcome as Outcome
    from grampus_uq.records.values import Reading as Reading
    from grampus_uq.records.values import Step as Step
    from grampus_uq.records.values import StepUncertainty as StepUncertainty
    from grampus_uq.records.values import TokenLogprob as TokenLogprob
    from grampus_uq.records.values import TokenUsage as TokenUsage
    from grampus_uq.records.values import ToolCall as ToolCall
    from grampus_uq.records.values import ToolResult as ToolResult
    from grampus_uq.records.values import Verdict as Verdict
    from grampus_uq.records.vocabulary import AgentStatus as AgentStatus
    from grampus_uq.records.vocabulary import Effect as Effect
    from grampus_uq.records.vocabulary import MissingReason as MissingReason
    from grampus_uq.records.vocabulary import Role as Role
    from grampus_uq.records.vocabulary import StopReason as StopReason
    from grampus_uq.records.vocabulary import UncertaintyAction as UncertaintyAction
    from grampus_uq.records.vocabulary import UncertaintyLevel as UncertaintyLevel
    from grampus_uq.records.vocabulary import UncertaintySource as UncertaintySource
    from grampus_uq.runtime.graph import Graph as Graph
    from grampus_uq.runtime.graph import human_node as human_node
    from grampus_uq.runtime.graph import uncertainty_guard_node as uncertainty_guard_node
    from grampus_uq.runtime.inject import inject as inject
    from grampus_uq.runtime.rollback import Branch as Branch
    from grampus_uq.runtime.rollback import branches as branches
    from grampus_uq.runtime.rollback import recover as recover
    from grampus_uq.runtime.rollback import rollback as rollback
    from grampus_uq.runtime.run_state import AgentState as AgentState
    from grampus_uq.runtime.run_state import ExecutionResult as ExecutionResult
    from grampus_uq.runtime.run_state import PendingSession as PendingSession
    from grampus_uq.runtime.runner import UNWATCHED as UNWATCHED
    from grampus_uq.runtime.runner import AgentRunner as AgentRunner
    from grampus_uq.runtime.runner import Unwatched as Unwatched
    from grampus_uq.runtime.store import SessionStore as SessionStore
    from grampus_uq.runtime.stores import open_store as open_store
    from grampus_uq.runtime.sub_agents import SubAgent as SubAgent
    from grampus_uq.runtime.tools import FunctionTools as FunctionTools
    from grampus_uq.runtime.tools import Tool as Tool
    from grampus_uq.runtime.tools import tool as tool
    from grampus_uq.signals.driver import Budget as Budget
    from grampus_uq.signals.verbalized import elicit_confidence as elicit_confidence
    from grampus_uq.telemetry.tracer import GrampusTracer as GrampusTracer

# Public name -> module of this package that defines it.
_HOME = {
    "UNWATCHED": "runtime.runner",
    "AgentBeliefState": "records.values",
    "AgentDefinition": "records.values",
    "AgentRunner": "runtime.runner",
    "AgentState": "runtime.run_state",
    "AgentStatus": "records.vocabulary",
    "ApprovalDecision": "gate.requests",
    "ApprovalError": "errors",
    "ApprovalKind": "gate.requests",
    "ApprovalPolicy": "gate.requests",
    "ApprovalRequest": "gate.requests",
    "AuqPropagator": "core.propagator",
    "Branch": "runtime.rollback",
    "Budget": "signals.driver",
    "ConfigurationError": "errors",
    "DataError": "errors",
    "Ed25519Signer": "gate.signatures",
    "Effect": "records.vocabulary",
    "ExecutionResult": "runtime.run_state",
    "Exploration": "monitor.exploration",
    "ExportError": "errors",
    "FunctionTools": "runtime.tools",
    "GrampusError": "errors",
    "GrampusTracer": "telemetry.tracer",
    "Grant": "gate.requests",
    "Graph": "runtime.graph",
    "HmacSigner": "gate.signatures",
    "Message": "records.values",
    "MissingDependencyError": "errors",
    "MissingReason": "records.vocabulary",
    "ModelError": "errors",
    "ModelResponse": "records.values",
    "ModelTimeoutError": "errors",
    "Outcome": "records.values",
    "PendingSession": "runtime.run_state",
    "Profile": "core.state",
    "PublicKeys": "gate.signatures",
    "RateLimitedError": "errors",
    "Reading": "records.values",
    "Role": "records.vocabulary",
    "SaupPropagator": "core.propagator",
    "Seal": "gate.seal",
    "Sensing": "monitor.sensing",
    "Session": "monitor.session",
    "SessionConflictError": "errors",
    "SessionError": "errors",
    "SessionState": "core.state",
    "SessionStore": "runtime.store",
    "Step": "records.values",
    "StepUncertainty": "records.values",
    "StopReason": "records.vocabulary",
    "StoreError": "errors",
    "SubAgent": "runtime.sub_agents",
    "TokenLogprob": "records.values",
    "TokenUsage": "records.values",
    "Tool": "runtime.tools",
    "ToolCall": "records.values",
    "ToolEffects": "gate.effects",
    "ToolResult": "records.values",
    "TrajectoryRiskSettings": "core.risk",
    "UncertaintyAction": "records.vocabulary",
    "UncertaintyError": "errors",
    "UncertaintyEstimator": "core.estimator",
    "UncertaintyLevel": "records.vocabulary",
    "UncertaintyMonitor": "monitor.monitor",
    "UncertaintyPolicy": "core.policy",
    "UncertaintyPropagator": "core.propagator",
    "UncertaintySource": "records.vocabulary",
    "UnsupportedByModelError": "errors",
    "Unwatched": "runtime.runner",
    "Verdict": "records.values",
    "advance": "core.engine",
    "branches": "runtime.rollback",
    "elicit_confidence": "signals.verbalized",
    "human_node": "runtime.graph",
    "inject": "runtime.inject",
    "open_store": "runtime.stores",
    "recover": "runtime.rollback",
    "rollback": "runtime.rollback",
    "tool": "runtime.tools",
    "uncertainty_guard_node": "runtime.graph",
}

__all__ = [
    "UNWATCHED",
    "AgentBeliefState",
    "AgentDefinition",
    "AgentRunner",
    "AgentState",
    "AgentStatus",
    "ApprovalDecision",
    "ApprovalError",
    "ApprovalKind",
    "ApprovalPolicy",
    "ApprovalRequest",
    "AuqPropagator",
    "Branch",
    "Budget",
    "ConfigurationError",
    "DataError",
    "Ed25519Signer",
    "Effect",
    "ExecutionResult",
    "Exploration",
    "ExportError",
    "FunctionTools",
    "GrampusError",
    "GrampusTracer",
    "Grant",
    "Graph",
    "HmacSigner",
    "Message",
    "MissingDependencyError",
    "MissingReason",
    "ModelError",
    "ModelResponse",
    "ModelTimeoutError",
    "Outcome",
    "PendingSession",
    "Profile",
    "PublicKeys",
    "RateLimitedError",
    "Reading",
    "Role",
    "SaupPropagator",
    "Seal",
    "Sensing",
    "Session",
    "SessionConflictError",
    "SessionError",
    "SessionState",
    "SessionStore",
    "Step",
    "StepUncertainty",
    "StopReason",
    "StoreError",
    "SubAgent",
    "TokenLogprob",
    "TokenUsage",
    "Tool",
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
    "UnsupportedByModelError",
    "Unwatched",
    "Verdict",
    "advance",
    "branches",
    "elicit_confidence",
    "human_node",
    "inject",
    "open_store",
    "recover",
    "rollback",
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
