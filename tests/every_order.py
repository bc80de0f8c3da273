"""Every order of events, by exhaustive search: shared by the searches through the gate and through its hosts.

A world is frozen; an event makes the next one of it, or says by None that it cannot happen. A world that is like one
seen before is not gone on with. `differing` proves what that rests on: two worlds of one likeness look alike to the
check, and each event makes worlds of one likeness of them, so that whatever the one leads to the other does too.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from grampus_uq.gate.requests import ApprovalDecision, ApprovalRequest
from grampus_uq.gate.signatures import HmacSigner
from grampus_uq.records.values import canonical_json

KEYS = {name: HmacSigner(f"the secret key of {name}") for name in ("ann", "bob", "mal")}
BOOKKEEPING = frozenset(
    [
        "saves",
        "active_s",
        "created_s",
        "claimed_s",
        "worker",
        "total_token_usage",
        "transcript",
        "lease_until_s",
        "lease_s",
        "definition",
        "belief",
        "seal",
    ]
)
"""Fields of a stored session that say nothing of what becomes of it."""
Way = tuple[str, ...]
_ID = re.compile("0{12}40008[0-9a-f]{15}")


class Likened(Protocol):
    """A world: the same text for all that differ in nothing that counts."""

    def likeness(self) -> str: ...


World = TypeVar("World", bound=Likened)


class OwnKeys:
    """Each principal's decisions hold with their own key alone."""

    def verifies(self, principal: str, text: bytes, signature: str) -> bool:
        return principal in KEYS and KEYS[principal].signature(text) == signature


def signers(decision: ApprovalDecision) -> list[str]:
    """Whose key a decision is signed with."""
    return [name for name, key in KEYS.items() if key.signature(decision.signed_text()) == decision.signature]


def with_named_ids(text: str) -> str:
    """The text with each id, which is counted, by its place among those in it."""
    names = {one: f"#{number}" for number, one in enumerate(sorted(set(_ID.findall(text))))}
    return _ID.sub(lambda found: names[found[0]], text)


def check_each_on_its_own(authorities: Sequence[Sequence[str]], telling: set[str]) -> None:
    """Of the times that a call ran, by what each may have run on: each on another one, and again only on one that tells
    that it may have run."""
    ways = [way for way in itertools.product(*authorities) if len(set(way)) == len(way)]
    assert ways, "one approval let it run twice"
    assert any(telling.issuperset(way[1:]) for way in ways), "it ran again, and nobody was told that it may have run"


def driven(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


Said = tuple[ApprovalDecision, float, bool]
"""A decision, when it arrived, and whether its own principal signed it."""


def let(request: ApprovalRequest, said: Sequence[Said], required: int) -> str | None:
    """The arguments that may run by what was said on a request, as canonical JSON; None where nothing may.

    Those that as many as are required signed, in time and before any rejection.
    """
    if request.call is None:
        return None
    people: dict[str, set[str]] = {}
    for decision, at_s, own in said:
        late = request.expires_s is not None and at_s >= request.expires_s
        if decision.request_id != request.id or decision.principal == "mal" or not own or late:
            continue
        if decision.kind in ("reject", "respond"):
            return None
        meant = canonical_json(decision.arguments or request.call.arguments)
        people.setdefault(meant, set()).add(decision.principal)
        if len(people[meant]) >= required:
            return meant
    return None


# -- the search -------------------------------------------------------------------------------------------------------


def _after(
    at_hand: Sequence[tuple[Way, World]], events: Mapping[str, Callable[[World], World | None]]
) -> Iterator[tuple[Way, World]]:
    """What one more event makes of each world, where it can happen and changes something."""
    for way, world in at_hand:
        for name, event in events.items():
            after = event(world)
            if after is not None and after is not world:
                yield (*way, name), after


def worlds(
    first: World, most: int, events: Mapping[str, Callable[[World], World | None]]
) -> Iterator[tuple[Way, World]]:
    """Every world that so many events lead to, each likeness once, with the shortest way there."""
    at_hand: list[tuple[Way, World]] = [((), first)]
    known = {first.likeness()}
    for _ in range(most):
        following = []
        for way, after in _after(at_hand, events):
            if (like := after.likeness()) not in known:
                known.add(like)
                following.append((way, after))
                yield following[-1]
        at_hand = following


def searched(
    first: World,
    most: int,
    events: Mapping[str, Callable[[World], World | None]],
    check: Callable[[World], None],
) -> Counter[int]:
    """Check all worlds; how many there were, by the number of events. A failed check says the way."""
    seen = Counter[int]()
    for way, world in worlds(first, most, events):
        seen[len(way)] += 1
        try:
            check(world)
        except AssertionError as error:
            raise AssertionError(f"{error}: {' > '.join(way)}") from error
    return seen


def differing(
    first: World,
    most: int,
    events: Mapping[str, Callable[[World], World | None]],
    check: Callable[[World], None],
) -> list[str]:
    """The ways to worlds that count as like another and are not: to the check, or in what an event makes of them."""

    def futures(world: World) -> dict[str, World | None]:
        return {name: event(world) for name, event in events.items()}

    def looks(world: World, after: Mapping[str, World | None]) -> dict[str, str | None]:
        return {"": _verdict(check, world)} | {name: one and one.likeness() for name, one in after.items()}

    at_hand = [((), first, futures(first))]
    known = {first.likeness(): ((), looks(first, at_hand[0][2]))}
    found = list[str]()
    for _ in range(most):
        following = []
        for before, world, future in at_hand:
            for name, after in future.items():
                if after is None or after is world:
                    continue
                way, like, then = (*before, name), after.likeness(), futures(after)
                if like not in known:
                    following.append((way, after, then))
                    known[like] = way, looks(after, then)
                    continue
                other, theirs = known[like]
                apart = [event for event, one in looks(after, then).items() if theirs[event] != one]
                found += [f"{' > '.join(way)} is not {' > '.join(other)}: {apart}"] if apart else []
        at_hand = following
    return found


def _verdict(check: Callable[[World], None], world: World) -> str | None:
    try:
        check(world)
    except AssertionError as error:
        return str(error)
    return None
