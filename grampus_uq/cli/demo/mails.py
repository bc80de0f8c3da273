"""The demo's mails: customers who want money back or an order cancelled, made from a seed, each with its right call.

A third of them names another order or another amount as well. What money a wrong call costs follows from the mail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from grampus_uq.cli.demo.questions import read_table
from grampus_uq.records.values import ToolCall

REFUND: Final = "refund"
CANCEL: Final = "cancel"

# {order} and {amount} belong to what the customer wants, {other} and {price} to another order or another sum.
_PARTS: Final = read_table("mails.txt")
_TEMPLATES: Final = [part for part in _PARTS if part[0] in (REFUND, CANCEL)]
_NAMES, _THINGS = (text.split() for key, text in _PARTS if key in ("names", "things"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """One mail and the one right call. `amount` is what the customer paid for the order in question, in euros."""

    id: str
    text: str
    tool: str
    order: str
    amount: float

    @property
    def right_call(self) -> str:
        """The call that a careful clerk makes, as `_as_words` writes it."""
        return _as_words(self.tool, self.order, f"{self.amount:.2f}")

    def is_right(self, call: ToolCall) -> bool:
        """True when tool and every argument are right."""
        return spoken(call) == self.right_call

    def loses(self, call: ToolCall) -> float:
        """Euros that the shop loses when this call is carried out.

        A refund on a wrong order, or where none was due, loses all of it, and on the right order what exceeds the due
        amount; cancelling the wrong order loses what the goods cost that are now sent in vain.
        """
        if self.is_right(call):
            return 0.0
        if call.name == CANCEL:
            return self.amount
        paid = float(str(call.arguments["amount"]))
        due = self.amount if self.tool == REFUND and call.arguments["order"] == self.order else 0.0
        return max(0.0, paid - due)


def spoken(call: ToolCall) -> str:
    """A proposed call as the demo shows it, such as `refund A1234, 12.00 EUR`."""
    values: Mapping[str, object] = call.arguments
    return _as_words(call.name, str(values.get("order")), str(values.get("amount")))


def _as_words(tool: str, order: str, amount: str) -> str:
    """The words for a call; `amount` only counts for a refund."""
    return f"{tool} {order}" + (f", {amount} EUR" if tool == REFUND else "")


def draw_mails(n: int, seed: int) -> list[Mail]:
    """Draw n mails; the same seed draws the same ones, and the first of n are the first of any greater number."""
    rng = np.random.default_rng([seed, 2])
    return [_draw(rng, f"{seed}-{number:03d}") for number in range(1, n + 1)]


def _draw(rng: np.random.Generator, mail_id: str) -> Mail:
    tool, template = _TEMPLATES[rng.integers(len(_TEMPLATES))]
    order, other = (f"{'ABCDEFGH'[rng.integers(8)]}{rng.integers(1_000, 10_000)}" for _ in range(2))
    amount, price = (int(rng.integers(500, 30_000)) / 100 for _ in range(2))
    text = template.format(
        order=order,
        other=other,
        amount=f"{amount:.2f}",
        price=f"{price:.2f}",
        thing=_THINGS[rng.integers(len(_THINGS))],
        name=_NAMES[rng.integers(len(_NAMES))],
    )
    return Mail(id=mail_id, text=text, tool=tool, order=order, amount=amount)
