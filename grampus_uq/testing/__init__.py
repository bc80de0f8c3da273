"""What users need to test their own agents: a scripted model, and checks that an adapter to a framework must pass."""

from __future__ import annotations

from grampus_uq.testing.agent_checks import SENTENCES, Finding, check_agent
from grampus_uq.testing.agent_laboratory import AgentLaboratory
from grampus_uq.testing.agent_orders import Act
from grampus_uq.testing.agent_scene import Sentence
from grampus_uq.testing.agent_script import AgentFactory, AgentSetup, ScriptedTurn, Watch
from grampus_uq.testing.agent_under_test import (
    AgentUnderTest,
    Decision,
    Ended,
    Failed,
    Paused,
    Pending,
)
from grampus_uq.testing.scripted_model import (
    HANG,
    ScriptedCall,
    ScriptedModel,
    ScriptExhaustedError,
    answer,
    top_logprobs,
)

__all__ = [
    "HANG",
    "SENTENCES",
    "Act",
    "AgentFactory",
    "AgentLaboratory",
    "AgentSetup",
    "AgentUnderTest",
    "Decision",
    "Ended",
    "Failed",
    "Finding",
    "Paused",
    "Pending",
    "ScriptExhaustedError",
    "ScriptedCall",
    "ScriptedModel",
    "ScriptedTurn",
    "Sentence",
    "Watch",
    "answer",
    "check_agent",
    "top_logprobs",
]
