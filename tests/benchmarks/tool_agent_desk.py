"""Generated customer-service tasks: a small shop whose orders are looked up, and changed by what cannot be undone.

A task is a customer's mail and a shop of its own. One change of the shop is right by the agent's rules; the run
succeeds if the shop ends with that change and no other. The kinds of task:

- `cancel`: an order that has not been shipped is cancelled. `damaged`: one piece of an order came broken and is
  refunded at its unit price. `mind`: unwanted and returnable, all pieces are refunded without the shipping.
  `expired`: unwanted and not returnable, declined. `missing`: pieces that never came are sent again.
- `_id`: the mail names the order by number. `_item`: by what it is, beside orders of the same customer like it.

The agent's grammar keeps to the order of work: orders are listed before one is read unless the mail names its number,
read before one is changed, and changed once. Which order, which change and what amount are the model's own.

How the difficulty was frozen: rules, wording and examples were changed three times on the ten tasks drawn with
`PILOT_SEED`, which no figure uses, until the 0.5B model did four of them right; then nothing was changed, and the tasks
of other seeds were run, by either model, for the first time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from grampus_uq.records.values import ToolCall
from grampus_uq.records.vocabulary import Effect
from grampus_uq.runtime.tools import FunctionTools, Tool

READS: Final = ("find_customer", "list_orders", "get_order")
CHANGES: Final = ("cancel_order", "issue_refund", "decline_request", "send_missing")
PILOT_SEED: Final = 1_000_003
KINDS: Final = tuple(
    f"{what}_{by}" for what in ("cancel", "damaged", "mind", "expired", "missing") for by in ("id", "item")
)
RULES: Final = """You are the service desk of a shop. Read the mail, look up the order, and make the one change that the
rules ask for. Rules:
- No longer wanted and "processing": cancel_order.
- One piece arrived broken: issue_refund of unit_price.
- Not liked and returnable: issue_refund of total, without shipping.
- Not liked and not returnable: decline_request.
- Missing pieces: send_missing with the number of missing pieces.
An order can be changed once it was read with get_order. Its number is in the mail, or else is found with find_customer
and list_orders. After the change you are done."""
EXAMPLES: Final = """Mail: Hello, one of the pieces of the blue bowl that I ordered arrived broken. Nina Falk
{"name": "find_customer", "arguments": {"name": "Nina Falk"}}
Result: {"customer_id": "C118", "name": "Nina Falk"}
{"name": "list_orders", "arguments": {"customer_id": "C118"}}
Result: [{"order_id": "2231", "item": "red bowl"}, {"order_id": "6604", "item": "blue bowl"}]
{"name": "get_order", "arguments": {"order_id": "6604"}}
Result: {"order_id": "6604", "status": "delivered", "returnable": true, \
"quantity": 5, "unit_price": 12.5, "total": 62.5, "shipping": 5}
{"name": "issue_refund", "arguments": {"order_id": "6604", "amount": 12.5}}

Mail: Hello, I do not like order 7178. Max Ott
{"name": "get_order", "arguments": {"order_id": "7178"}}
Result: {"order_id": "7178", "status": "delivered", "returnable": true, \
"quantity": 2, "unit_price": 30.5, "total": 61.0, "shipping": 4}
{"name": "issue_refund", "arguments": {"order_id": "7178", "amount": 61.0}}

Mail: Hello, I do not like order 5093. Lia Orth
{"name": "get_order", "arguments": {"order_id": "5093"}}
Result: {"order_id": "5093", "status": "delivered", "returnable": false, \
"quantity": 1, "unit_price": 18.0, "total": 18.0, "shipping": 6}
{"name": "decline_request", "arguments": {"order_id": "5093"}}

Mail: Hello, I no longer want order 3320. Kim Adler
{"name": "get_order", "arguments": {"order_id": "3320"}}
Result: {"order_id": "3320", "status": "processing", "returnable": true, \
"quantity": 1, "unit_price": 41.0, "total": 41.0, "shipping": 3}
{"name": "cancel_order", "arguments": {"order_id": "3320"}}

Mail: Hello, two of the pieces of order 8415 are missing. Jo Lang
{"name": "get_order", "arguments": {"order_id": "8415"}}
Result: {"order_id": "8415", "status": "delivered", "returnable": true, \
"quantity": 6, "unit_price": 9.5, "total": 57.0, "shipping": 5}
{"name": "send_missing", "arguments": {"order_id": "8415", "quantity": 2}}"""
_SHOWN: Final = ("order_id", "status", "returnable", "quantity", "unit_price", "total", "shipping")
_FIRST: Final = ("Emma", "Leo", "Ben", "Carla", "Paul", "Ida", "Omar", "Vera", "Tom", "Lucy")
_LAST: Final = ("Novak", "Stone", "Unger", "Lee", "Weber", "Costa", "Hart", "Ivers", "Moreno", "Quist")
_COLOURS: Final = ("red", "white", "green", "grey", "blue", "black")
_ITEMS: Final = ("desk lamp", "backpack", "water bottle", "wall clock", "notebook", "umbrella", "plate", "cushion")
_MAILS: Final = {
    "cancel": "please cancel {what}. I bought one elsewhere.",
    "damaged": "{n} of the pieces of {what} arrived broken. I want my money back for what is broken.",
    "mind": "I do not like {what} after all and want my money back.",
    "expired": "I do not like {what} after all and want my money back.",
    "missing": "{n} of the pieces of {what} {were} missing in the parcel. Please send what is missing.",
}
_NUMBERS: Final = ("no", "one", "two", "three")


@dataclass(slots=True)
class Shop:
    """Customers, orders, and what was changed, in the order in which it was."""

    customers: dict[str, str]
    orders: dict[str, dict[str, Any]]
    found: bool = False
    read: set[str] = field(default_factory=set)
    changes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def open_tools(self) -> tuple[str, ...]:
        """What may be called now: orders are found before one is read, read before one is changed, changed once."""
        if self.changes:
            return ()
        return READS[: 3 if self.found else 2] + (CHANGES if self.read else ())

    def tools(self) -> FunctionTools:
        """The tools over this shop: three that read, four that cannot be undone."""
        made = [Tool(getattr(self, name), effect=Effect.READ) for name in READS]
        return FunctionTools(*made, *(Tool(getattr(self, name), effect=Effect.IRREVERSIBLE) for name in CHANGES))

    def find_customer(self, name: str) -> str:
        """Find a customer by name."""
        found = next((key for key, known in self.customers.items() if known.lower() == name.strip().lower()), None)
        return (
            "no such customer" if found is None else json.dumps({"customer_id": found, "name": self.customers[found]})
        )

    def list_orders(self, customer_id: str) -> str:
        """List a customer's orders."""
        self.found = True
        theirs = [order for order in self.orders.values() if order["customer_id"] == customer_id]
        return json.dumps([{key: order[key] for key in ("order_id", "item")} for order in theirs])

    def get_order(self, order_id: str) -> str:
        """Read one order."""
        if order_id not in self.orders:
            return "no such order"
        self.read.add(order_id)
        return json.dumps({key: self.orders[order_id][key] for key in _SHOWN})

    def cancel_order(self, order_id: str) -> str:
        """Cancel an order. Cannot be undone."""
        return self._change("cancelled", "cancel_order", order_id)

    def issue_refund(self, order_id: str, amount: float) -> str:
        """Pay money back. Cannot be undone."""
        return self._change("refunded", "issue_refund", order_id, amount=amount)

    def decline_request(self, order_id: str) -> str:
        """Tell the customer that the request is declined. Cannot be undone."""
        return self._change("declined", "decline_request", order_id)

    def send_missing(self, order_id: str, quantity: int) -> str:
        """Send pieces again. Cannot be undone."""
        return self._change("sent", "send_missing", order_id, quantity=quantity)

    def _change(self, said: str, name: str, order_id: str, **arguments: Any) -> str:
        if order_id not in self.orders:
            return "no such order"
        self.changes.append((name, {"order_id": order_id, **arguments}))
        return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task: the mail, its shop, and the one right change."""

    id: str
    kind: str
    mail: str
    shop: Shop
    truth: ToolCall

    @property
    def succeeded(self) -> bool:
        """True when the shop has the right change and no other."""
        return self.shop.changes == [(self.truth.name, self.truth.arguments)]

    def right(self, call: ToolCall) -> bool:
        """True for the right change."""
        return call.likeness() == self.truth.likeness()


def tasks(n: int, seed: int) -> Iterator[Task]:
    """The first `n` tasks of a seed, kinds in turn: the same whatever `n` is."""
    for number in range(n):
        kind = KINDS[number % len(KINDS)]
        yield _task(f"t{number:03d}-{kind}", kind, np.random.default_rng([seed, number]))


def _task(name: str, kind: str, rng: np.random.Generator) -> Task:
    what, by = kind.split("_")
    first, last = (str(rng.choice(names)) for names in (_FIRST, _LAST))
    ids = [str(one) for one in rng.choice(np.arange(1000, 10_000), size=4, replace=False)]
    customer = f"C{rng.integers(100, 1000)}"
    colours = [str(one) for one in rng.choice(_COLOURS, size=3, replace=False)]
    item = str(rng.choice(_ITEMS))
    orders = [_order(ids[i], customer, f"{colours[i]} {item}", rng) for i in range(int(rng.integers(2, 4)))]
    few = int(rng.integers(1, 3)) if what == "missing" else 1
    meant = _meant(orders[int(rng.integers(len(orders)))], what, few)
    rng.shuffle(orders)  # type: ignore[arg-type]  # a list of dicts is shuffled as any sequence is
    named = f"order {meant['order_id']}" if by == "id" else f"the {meant['item']} that I ordered"
    text = _MAILS[what].format(what=named, n=_NUMBERS[few], were="was" if few == 1 else "were")
    other = f"C{int(customer[1:]) % 899 + 100}"
    shop = Shop(
        customers={customer: f"{first} {last}", other: f"{first} Brandt"},
        found=by == "id",
        orders={one["order_id"]: one for one in orders},
    )
    truth = _truth(what, meant, few)
    return Task(id=name, kind=kind, mail=f"Hello, {text} {first} {last}", shop=shop, truth=truth)


def _order(order_id: str, customer: str, item: str, rng: np.random.Generator) -> dict[str, Any]:
    quantity, price = int(rng.integers(1, 4)), float(rng.integers(8, 120)) / 2
    return {
        "order_id": order_id,
        "customer_id": customer,
        "item": item,
        "status": str(rng.choice(["processing", "delivered"])),
        "returnable": bool(rng.random() < 0.5),
        "quantity": quantity,
        "unit_price": price,
        "total": price * quantity,
        "shipping": int(rng.integers(3, 8)),
    }


def _meant(order: dict[str, Any], what: str, few: int) -> dict[str, Any]:
    """The order, made one of which such a mail can speak."""
    order["status"] = "processing" if what == "cancel" else "delivered"
    if what in ("mind", "expired"):
        order["returnable"] = what == "mind"
    if what in ("damaged", "missing"):
        order["quantity"] += few
        order["total"] = order["unit_price"] * order["quantity"]
    return order


def _truth(what: str, order: dict[str, Any], few: int) -> ToolCall:
    name, arguments = {
        "cancel": ("cancel_order", {}),
        "damaged": ("issue_refund", {"amount": order["unit_price"]}),
        "mind": ("issue_refund", {"amount": order["total"]}),
        "expired": ("decline_request", {}),
        "missing": ("send_missing", {"quantity": few}),
    }[what]
    return ToolCall(name=name, arguments={"order_id": order["order_id"], **arguments})
