"""Agent, profile and tools at the start of a run, stored with it so that a later deployment is noticed.

It stands in the state's metadata, which every release carries along: workers of two releases can serve one store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from grampus_uq.gate.schema import schema_of_judged
from grampus_uq.recording.artifacts import profile_fingerprint
from grampus_uq.records.values import AgentDefinition, canonical_json, sha256_of
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.wire import read_arguments, replace_lone_surrogates

BEGUN_WITH = "begun_with"
_REST = ""
_LONGEST = 20_000
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({"enum", "const", "default"})
_ANNOTATIONS = frozenset({"title", "description", "examples", "$comment", "deprecated"})

Contract = dict[str, str]
"""Digests of a tool's parameters by name, and under "" of all else that its schema demands."""


class ChangedTools(StrEnum):
    """How an open call is treated whose tool's schema changed: `ASK` a human, `REFUSE` to resume, or `RUN` it."""

    ASK = "ask"
    REFUSE = "refuse"
    RUN = "run"


class BegunWith(BaseModel):
    """Digests of what a run was begun, or last resumed, with; `open`: the contracts of the tools of its open turn.

    `parameters`: the schemas of these, for whoever edits a waiting call; one that is too long is left out.
    """

    agent: str = ""
    profile: str | None = None
    tools: dict[str, str] = Field(default_factory=dict)
    open: dict[str, Contract] = Field(default_factory=dict)
    parameters: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @classmethod
    def of(cls, agent: AgentDefinition, profile: Any, schemas: Sequence[Mapping[str, Any]]) -> BegunWith:
        """The digests of these; `profile` None: no monitor."""
        return cls(
            agent=_digest(agent.model_dump(mode="json", exclude={"tools"})),
            profile=None if profile is None else profile_fingerprint(profile),
            tools={name: _digest(contract(schema)) for name, schema in _functions(schemas)},
        )

    @classmethod
    def read(cls, state: AgentState) -> BegunWith | None:
        """The configuration that a stored run was begun with; None for a run of a release that did not keep it."""
        try:
            return cls.model_validate(state.metadata[BEGUN_WITH])
        except (KeyError, ValidationError):
            return None

    def keep(self, state: AgentState, schemas: Sequence[Mapping[str, Any]]) -> None:
        """Write it to the state, with the contracts of the tools that the state's turn calls."""
        self.open = contracts(schemas, (record.proposed.name for record in state.turn))
        self.parameters = {n: kept for n, given in _functions(schemas) if n in self.open and (kept := _kept(given))}
        state.metadata[BEGUN_WITH] = self.model_dump()

    def keep_parameters(self, state: AgentState, tool: str, schema: Mapping[str, Any] | None) -> None:
        """Write it to the state, with the latest schema of a tool that the state's turn calls."""
        called = {record.proposed.name for record in state.turn} - {tool}
        self.parameters = {name: given for name, given in self.parameters.items() if name in called}
        if kept := _kept(schema):
            self.parameters[tool] = kept
        state.metadata[BEGUN_WITH] = self.model_dump()

    def differences(self, now: BegunWith) -> list[str]:
        """The differences from now, each in a few words; the compatible changes of tools too."""
        tools = [name for name in self.tools if name in now.tools and self.tools[name] != now.tools[name]]
        return [
            *(["the agent's definition changed"] if self.agent != now.agent else []),
            *(["the profile changed"] if self.profile != now.profile else []),
            *(f"the tool {name!r:.80} changed" for name in sorted(tools)),
            *(f"the tool {name!r:.80} is gone" for name in sorted(self.tools.keys() - now.tools.keys())),
            *(f"the tool {name!r:.80} is new" for name in sorted(now.tools.keys() - self.tools.keys())),
        ]


def parameters_of(state: AgentState, tool: str, judged: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The JSON schema of the judged arguments of a call in a session's open turn; None where it is not kept."""
    begun = BegunWith.read(state)
    return None if begun is None else schema_of_judged(begun.parameters.get(tool), judged)


def contracts(schemas: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Contract]:
    """The contracts of these tools; {} for one that is not listed."""
    found: dict[str, Contract] = {name: {} for name in names}
    return found | {name: contract(schema) for name, schema in _functions(schemas) if name in found}


def contract(schema: Any) -> Contract:
    """The demands of the JSON schema of a tool's arguments, as digests: texts for readers do not count.

    >>> a = contract({"properties": {"to": {"type": "string", "description": "Who"}}, "required": ["to"]})
    >>> b = contract({"properties": {"to": {"type": "string"}}, "required": ["to"]})
    >>> sorted(a), a == b
    (['', '/to'], True)
    """
    schema = schema if isinstance(schema, Mapping) else {}
    known, required = schema.get("properties"), schema.get("required")
    rest: dict[str, Any] = {name: value for name, value in schema.items() if name not in ("properties", "required")}
    rest["required"] = sorted(map(str, required)) if isinstance(required, list) else []
    parameters = known.items() if isinstance(known, Mapping) else ()
    return {_REST: _demand(rest), **{replace_lone_surrogates(f"/{name}"): _demand(value) for name, value in parameters}}


def broken(old: Contract, new: Contract) -> list[str]:
    """The parameters, or "the whole", that are not what they were; [] for a compatible change.

    Compatible: texts for readers changed, or optional parameters were added. All else may change what an approved call
    does: another type, another default, one parameter less, a new one that is required.
    """
    changed = sorted(name for name in old if name != _REST and new.get(name) != old[name])
    return [repr(name[1:])[:80] for name in changed] + (["the whole"] if old.get(_REST) != new.get(_REST) else [])


def _functions(schemas: Sequence[Mapping[str, Any]]) -> list[tuple[str, Any]]:
    functions = [schema.get("function", schema) for schema in schemas]
    named = [(one.get("name"), one.get("parameters")) for one in functions if isinstance(one, Mapping)]
    return [(replace_lone_surrogates(str(name)), given) for name, given in named]


def _kept(schema: Any) -> dict[str, Any] | None:
    """A schema as any store holds it; None for one that is too long, or nested too deeply."""
    try:
        short = isinstance(schema, Mapping) and len(json.dumps(schema, allow_nan=False)) <= _LONGEST
    except (RecursionError, TypeError, ValueError):
        return None
    read = read_arguments(schema) if short else None
    return None if read is None or read.problem is not None else read.values


def _meaning(schema: Any, *, named: bool = False) -> Any:
    """A schema without its texts for readers; `named`: its keys are names of parameters, none of them a text."""
    if isinstance(schema, Mapping):
        return {
            str(key): value if key in _DATA and not named else _meaning(value, named=key in _NAMED and not named)
            for key, value in schema.items()
            if named or key not in _ANNOTATIONS
        }
    return [_meaning(one) for one in schema] if isinstance(schema, list | tuple) else schema


def _demand(schema: Any) -> str:
    try:
        return _digest(_meaning(schema))
    except (RecursionError, TypeError, ValueError):
        return "unreadable"


def _digest(value: Any) -> str:
    return sha256_of(canonical_json(value))[:32]
