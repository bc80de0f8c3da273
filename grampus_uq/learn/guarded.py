"""A fitted profile guards the tools that the monitors of its recordings guarded, whatever else it is told."""

from __future__ import annotations

from collections.abc import Iterable

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.recording.runs import Paths, beginnings
from grampus_uq.records.events import SessionStarted
from grampus_uq.records.tool_names import refusal_of


def guarding_as_recorded(policy: UncertaintyPolicy, paths: Paths) -> UncertaintyPolicy:
    """The policy with the irreversible and the always asked tools of every recording under `paths` added to its own.

    A profile replaces a monitor's policy whole: one that forgot the names would let their calls go out unasked.
    Recordings from before the names were kept add none; a file that cannot be read adds what comes before the damage,
    and whoever reads its runs names it.
    """
    for start in beginnings(paths):
        policy = guarding_also(policy, start)
    return policy


def guarding_also(policy: UncertaintyPolicy, start: SessionStarted) -> UncertaintyPolicy:
    """The policy with the tools added that one session's policy guarded; a name that matches nothing is left out."""
    irreversible, always = list(policy.irreversible_tool_names), list(policy.always_ask_tool_names)
    if not (_add(irreversible, start.irreversible_tools) | _add(always, start.always_ask_tools)):
        return policy
    return policy.model_copy(update={"irreversible_tool_names": irreversible, "always_ask_tool_names": always})


def _add(names: list[str], more: Iterable[str]) -> bool:
    new = [name for name in dict.fromkeys(more) if name not in names and refusal_of(name) is None]
    names.extend(new)
    return bool(new)
