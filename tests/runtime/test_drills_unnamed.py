"""Whatever rule a host's session names follow, neither name nor starter on a card tells a drill from a request."""

from __future__ import annotations

import datetime as dt
import random
import statistics
import uuid
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import pytest

from grampus_uq.records.values import Message
from grampus_uq.records.vocabulary import Role
from grampus_uq.runtime.cards import Card
from grampus_uq.runtime.stored_drills import StoredDrills
from grampus_uq.runtime.stores.memory import MemoryStore
from tests.runtime.drill_worlds import made, plan, request
from tests.sampling import sampled

pytestmark = pytest.mark.anyio
NOW: Final = 1_795_452_000.0
DAY_S: Final = 86_400.0
_BASE32: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_Name = Callable[[random.Random, float, int], str]


class Seen(NamedTuple):
    """One card as it is shown, in the order of the list."""

    card: Card
    is_drill: bool


def uuid7(rng: random.Random, at_s: float, number: int) -> str:
    bits = (int(at_s * 1_000) << 80) | (7 << 76) | (rng.getrandbits(12) << 64) | (2 << 62) | rng.getrandbits(62)
    return str(uuid.UUID(int=bits))


def uuid1(rng: random.Random, at_s: float, number: int) -> str:
    ticks = int((at_s + 12_219_292_800) * 1e7)
    fields = (ticks & 0xFFFFFFFF, (ticks >> 32) & 0xFFFF, ticks >> 48, 0x80, rng.getrandbits(8), 0x0242AC110002)
    return str(uuid.UUID(fields=fields, version=1))


def ulid(rng: random.Random, at_s: float, number: int) -> str:
    value = (int(at_s * 1_000) << 80) | rng.getrandbits(80)
    return "".join(_BASE32[(value >> 5 * place) & 31] for place in range(25, -1, -1))


def dated(form: str) -> _Name:
    return lambda rng, at_s, number: dt.datetime.fromtimestamp(at_s, dt.UTC).strftime(form)


NAMES: Final[dict[str, _Name]] = {
    "numbered": lambda rng, at_s, number: f"case-{10_000 + number}",
    "UUIDv1": uuid1,
    "UUIDv4": lambda rng, at_s, number: str(uuid.UUID(int=rng.getrandbits(128), version=4)),
    "UUIDv7": uuid7,
    "thread_UUIDv7": lambda rng, at_s, number: f"thread_{uuid7(rng, at_s, number)}",
    "ULID": ulid,
    "day": dated("shop-%Y-%m-%d"),
    "week": dated("%G-W%V"),
    "second": dated("run-%Y%m%d-%H%M%S"),
    "ISO 8601": dated("%Y%m%dT%H%M%SZ"),
    "order": lambda rng, at_s, number: f"order-{chr(65 + number // 100 % 26)}{number % 100:02d}",
    "of so many": lambda rng, at_s, number: f"ticket {number % 120} of 120",
    "without figures": lambda rng, at_s, number: rng.choice(("shop", "web", "mail")),
}


def _started(card: Card, rng: random.Random) -> Card:
    """The run says whom it is for, as many do, and so does the host."""
    who = rng.choice(("ann", "bob", "cleo", "dan", "eve", "finn"))
    works = Message(role=Role.SYSTEM, content=f"You work for {who}.")
    return card.model_copy(update={"started_by": who, "messages": (works, *card.messages)})


async def queue(name: _Name, seed: int, count: int = 100) -> list[Seen]:
    """What is shown of so many requests, thirty an hour, and of a drill after three of ten."""
    rng, drills = random.Random(seed), StoredDrills(MemoryStore())
    await drills.switch_on(plan(0.3))
    at_s, cards = NOW - 3 * DAY_S, list[Card]()
    for number in range(2 * count):
        at_s += rng.expovariate(1.0 / 120.0) + (DAY_S if number == count else 0.0)
        shown = request(rng, at_s, number)[1].model_copy(update={"session_id": name(rng, at_s, number)})
        cards.append(_started(shown, rng))
    sources, seen = cards[:count], list[Seen]()
    for asked in cards[count:]:
        seen.append(Seen(asked, False))
        drill = made(plan(), rng.sample(sources, 20), asked, rng) if rng.random() < 0.3 else None
        if drill is not None:
            sources = [one for one in sources if one.digest != drill.source]
            seen.append(Seen(drill.card, True))
    shown_cards = await drills.as_shown(*[one.card for one in seen])
    mixed = [Seen(card, one.is_drill) for card, one in zip(shown_cards, seen, strict=True)]
    return sorted(mixed, key=lambda one: one.card.created_s)


def auroc(seen: Sequence[Seen], scores: Sequence[float]) -> float:
    """The chance that a drill scores above a request, in either direction."""
    pairs = list(zip(scores, seen, strict=True))
    drills, requests = ([score for score, one in pairs if one.is_drill is which] for which in (True, False))
    above = sum((a > b) + 0.5 * (a == b) for a in drills for b in requests) / (len(drills) * len(requests))
    return max(above, 1.0 - above)


def _code(name: str) -> int:
    """A number in the order of names of one form."""
    return int.from_bytes(name.encode()[:40].ljust(40), "big")


def _off(codes: Sequence[int], place: int) -> int:
    """How far a number is from the middle one of its six neighbours in the list."""
    near = [*codes[max(0, place - 3) : place], *codes[place + 1 : place + 4]]
    return abs(codes[place] - statistics.median_low(near))


def checks(seen: Sequence[Seen]) -> dict[str, list[float]]:
    """What a reviewer may look at: whether a name fits those beside it, its form, and whether it was there before."""
    names = [one.card.session_id for one in seen]
    codes = [_code(name) for name in names]
    return {
        "order": [_off(codes, place) for place in range(len(codes))],
        "age": codes,
        "form": [float(name[14:15] == "4") for name in names],
        "length": [float(len(name)) for name in names],
        "alone": [float(names.count(name)) for name in names],
        "before": [float(name in names[:place]) for place, name in enumerate(names)],
    }


@pytest.mark.one_loop
@sampled("form", list(NAMES)[::7], full=list(NAMES))
async def test_no_check_of_the_sessions_name_tells_a_drill(form: str) -> None:
    told: dict[str, list[float]] = {}
    for seed in range(2):
        seen = await queue(NAMES[form], seed)
        assert sum(one.is_drill for one in seen) > 20
        for check, scores in checks(seen).items():
            told.setdefault(check, []).append(auroc(seen, scores))
    assert {check: found for check, found in told.items() if statistics.mean(found) > 0.55} == {}


@pytest.mark.slow
@pytest.mark.one_loop
async def test_the_checks_would_tell_drills_by_the_names_of_their_sources() -> None:
    """The sabotage: names as they are stored are told apart at once."""
    rng, told = random.Random(1), dict[str, float]()
    for form in ("numbered", "UUIDv7", "second"):
        named = list[Seen]()
        for place, one in enumerate(await queue(NAMES[form], 1, 200)):
            lag_s, lag = (2 * DAY_S, 500) if one.is_drill else (0.0, 0)
            name = NAMES[form](rng, one.card.created_s - lag_s, place - lag)
            named.append(Seen(one.card.model_copy(update={"session_id": name}), one.is_drill))
        told[form] = auroc(named, checks(named)["order"])
    assert min(told.values()) > 0.8, told


async def test_who_started_the_run_is_whom_its_conversation_names() -> None:
    for one in await queue(NAMES["numbered"], 4):
        assert one.card.messages[0].content == f"You work for {one.card.started_by}."


async def test_names_are_shown_while_drills_are_off() -> None:
    drills, shown = StoredDrills(MemoryStore()), request(random.Random(1), NOW)[1]
    assert await drills.as_shown(shown) == [shown]
    await drills.switch_on(plan())
    assert [one.session_id for one in await drills.as_shown(shown, shown)] == ["", ""]
    await drills.switch_off()
    assert await drills.as_shown(shown) == [shown]
