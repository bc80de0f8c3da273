"""The settings that all adapters share, beside their monitor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from grampus_uq import ApprovalDecision, ApprovalPolicy, ConfigurationError, ToolEffects, UncertaintyMonitor
from grampus_uq.gate.clearance import Precondition
from grampus_uq.gate.gate import Gate, Permits
from grampus_uq.gate.starts import Starts

if TYPE_CHECKING:
    from grampus_uq.records.protocols import ModelClient

log = logging.getLogger("grampus_uq.integrations")


class Settings(TypedDict, total=False):
    """Keyword arguments of an adapter.

    model_client: the model that the monitor's signals ask; None reads only what comes with the agent's own answers.
    model_id: the name of that model.
    agent_id: names the agent in records; where it is empty, the framework's own name of the agent, if it has one.
    model, prompt_hash, tools_hash: names of your own for what the agent is made with, in place of the name and the
        hashes of what is sent to the model: where they vary by run, a profile acts nowhere.
    effects: what the tools do; the policy's `irreversible_tool_names` count as well.
    approvals: who may decide, how decisions are signed, when requests expire.
    precondition: asked before an approved call runs; a text says why it must not run, and the call is asked again.
    permits: `grampus_uq.runtime.StoredPermits`: calls go ahead unasked as far as answers have earned it.
    starts: `grampus_uq.runtime.StoredStarts`: of several processes that hold one approval, one starts the call.
    started_by: who started a session, by its id: with `ApprovalPolicy(others_decide=True)` that person does not decide.
    advisory: True stops nothing, and records what would be stopped; None or False: as the monitor does.
    """

    model_client: ModelClient | None
    model_id: str
    agent_id: str
    model: str
    prompt_hash: str | None
    tools_hash: str | None
    effects: ToolEffects | None
    approvals: ApprovalPolicy | None
    precondition: Precondition | None
    permits: Permits | None
    starts: Starts | None
    started_by: Callable[[str], str | None]
    advisory: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """A monitor and `Settings` with defaults; raises ConfigurationError for another object as monitor or client."""

    monitor: UncertaintyMonitor
    model_client: ModelClient | None = None
    model_id: str = ""
    agent_id: str = ""
    model: str = ""
    prompt_hash: str | None = None
    tools_hash: str | None = None
    effects: ToolEffects | None = None
    approvals: ApprovalPolicy | None = None
    precondition: Precondition | None = None
    permits: Permits | None = None
    starts: Starts | None = None
    started_by: Callable[[str], str | None] = lambda session_id: None
    advisory: bool | None = None

    def __post_init__(self) -> None:
        monitor: Any = self.monitor
        if not isinstance(monitor, UncertaintyMonitor):
            way_out = "Pass UncertaintyMonitor(policy=…)."
            raise ConfigurationError.of("monitor", "AdapterSettings", "an UncertaintyMonitor", monitor, way_out)
        if self.model_client is not None and not callable(getattr(self.model_client, "complete", None)):
            way_out = "open_model(NAME) makes one."
            raise ConfigurationError.of("model_client", "AdapterSettings", "a ModelClient", self.model_client, way_out)
        if self.advisory not in (None, True, False):
            raise ConfigurationError.of("advisory", "AdapterSettings", "True, False or None", self.advisory)

    @property
    def acts(self) -> bool:
        """False while the adapter, or its monitor, only advises."""
        return not (self.advisory or self.monitor.profile.advisory)

    def gate(self, schema_of: Callable[[str], Mapping[str, Any] | None]) -> Gate:
        """The gate of these settings; `schema_of` gives the JSON schema of a tool's arguments, or None."""
        policy = self.monitor.profile.policy
        if self.acts and self.effects is None and not (policy.irreversible_tool_names or policy.always_ask_tool_names):
            log.warning("no tool counts as irreversible: name some in UncertaintyPolicy(irreversible_tool_names=[...])")
        return Gate(
            approvals=self.approvals,
            effects=self.effects,
            precondition=self.precondition,
            schema_of=schema_of,
            permits=self.permits,
            starts=self.starts,
            started_by=self.started_by,
        )


def decisions_in(given: Any) -> list[ApprovalDecision]:
    """The decisions that an adapter was given, one or several; raises ConfigurationError for anything else."""
    found = [given] if isinstance(given, ApprovalDecision) else list(given)
    if not all(isinstance(one, ApprovalDecision) for one in found):
        rule = "decisions, each made by `request.decide(...)`"
        raise ConfigurationError.of("decisions", "resume", rule, given)
    return found


def note_schema(schemas: dict[str, Any], name: str, schema: Any) -> None:
    """Keep the JSON schema of a tool; where two tools of one name differ there is none to hold an edit against."""
    known = schemas.setdefault(name, schema)
    if known is not schema and known is not None and known != schema:
        schemas[name] = None
