"""Counts the distinct people behind several approvals, where several must agree.

An approver's own approval is their voice; a deputy's is the deputy's and that of whoever they decide in the place of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from grampus_uq.records.visible_text import name_form
from grampus_uq.stats.matching import matching

if TYPE_CHECKING:
    from grampus_uq.gate.requests import ApprovalDecision

_Speaker = tuple[str, bool]
"""A principal, and whether they acted as a deputy."""


class Voices:
    """Approvals in the order of their arrival; spellings of one name (`name_form`) are one person."""

    def __init__(self, decisions: Iterable[ApprovalDecision] = ()) -> None:
        self._count = 0
        self._of: dict[str, dict[_Speaker, tuple[int, ApprovalDecision]]] = {}
        for decision in decisions:
            self.add(decision)

    def add(self, decision: ApprovalDecision) -> None:
        """Take one more; one of the same voices as another changes nothing."""
        given = decision.delegation
        approver = name_form(decision.principal if given is None else given.principal)
        speaker = (name_form(decision.principal), given is not None)
        self._of.setdefault(approver, {}).setdefault(speaker, (self._count, decision))
        self._count += 1

    def distinct(self) -> list[ApprovalDecision]:
        """The most of them without a common voice, in order; each approver is matched with one who spoke for them."""
        speaks_for = matching(self._of)
        found: list[ApprovalDecision] = []
        heard = set[str]()
        for _, decision in sorted((self._of[of][by] for by, of in speaks_for.items()), key=lambda one: one[0]):
            voices = {name_form(one) for one in decision.voices}
            if heard.isdisjoint(voices):
                found.append(decision)
                heard |= voices
        return found
