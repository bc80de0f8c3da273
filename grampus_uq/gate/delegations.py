"""A delegation: an approver lets a deputy decide in their place, on some tools or all, from a time until a time.

The approver signs it, the deputy signs each decision, which holds the whole delegation; a runner checks both with
public keys. It adds who decides, never how much: a deputy decides nothing in their own name, delegates and grants
nothing, and their voice is also the approver's, so that the two are not two people where several must agree.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Annotated, Final

from pydantic import Field, model_validator

from grampus_uq.gate.signatures import signed_text
from grampus_uq.records.configuration import Configuration
from grampus_uq.records.visible_text import name_form
from grampus_uq.stats.stored_values import FROZEN

LONGEST_S: Final = 90 * 86_400.0
_LATEST_S: Final = 1e11


class Delegation(Configuration):
    """`principal` lets `deputy` decide in their place on calls of `tools` (None: on everything), in [from_s, until_s).

    Times are seconds since 1970 by the store's clock, at most 90 days apart. Nobody is their own deputy, under another
    spelling either. Raises pydantic's ValidationError.
    """

    model_config = FROZEN

    id: str = Field(default_factory=lambda: uuid.uuid4().hex, min_length=1, max_length=64)
    principal: str = Field(min_length=1, max_length=200)
    deputy: str = Field(min_length=1, max_length=200)
    tools: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] | None = Field(
        default=None, min_length=1, max_length=100
    )
    from_s: float = Field(ge=0.0, le=_LATEST_S)
    until_s: float = Field(ge=0.0, le=_LATEST_S)
    signature: str | None = Field(default=None, max_length=16_384)

    @model_validator(mode="after")
    def _is_one(self) -> Delegation:
        if name_form(self.principal) == name_form(self.deputy):
            raise ValueError("nobody is their own deputy")
        if not 0.0 < self.until_s - self.from_s <= LONGEST_S + 1.0:
            raise ValueError("a delegation ends after it begins, and after 90 days at most")
        return self

    def signed_text(self) -> bytes:
        """The canonical text of everything but the signature."""
        return signed_text("delegation", self)

    def covers(self, tool: str | None) -> bool:
        """Return True if the delegation covers the tool; `tool` None: a request about a run itself."""
        return self.tools is None or tool in self.tools

    def over(self, at_s: float) -> str | None:
        """The reason why it does not count at this time, or None."""
        return "begins later" if at_s < self.from_s else "has ended" if at_s >= self.until_s else None


Stands = Callable[[Delegation, float], str | None]
"""Why a delegation does not count for a decision that arrived at a time, or None: it stands, unrevoked."""


def not_looked_up(delegation: Delegation, at_s: float) -> str | None:
    """The `Stands` of a place without a store: none counts, for it might have been revoked."""
    return "counts only where a runner reads it in a session store"
