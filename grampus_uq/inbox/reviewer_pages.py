"""Pages on reviewers' drill results and on the health of the store, dead letters included."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from grampus_uq.inbox.people import Role
from grampus_uq.inbox.visits import Section, Visit, for_role
from grampus_uq.runtime.dead_letters import dead_letters
from grampus_uq.runtime.health import health_in_words, store_health
from grampus_uq.runtime.reviewers import LEAST_FOR_A_PERSON, decision_times, reviewed
from grampus_uq.runtime.stored_drills import StoredDrills

_LETTERS = 100


@for_role(Role.LOOK)
async def _reviewers(visit: Visit) -> Response:
    """The team's figures; of persons, only one's own."""
    store = visit.inbox.ledger.store
    stored = StoredDrills(store)
    plan, drills = await stored.plan(), await stored.answered()
    found = reviewed(drills, await decision_times(store, drills), visit.now_s, plan)
    name = visit.person.name
    own = sum(drill.answer is not None and drill.answer.principal == name for drill in drills)
    return visit.page(
        "reviewers.html",
        plan=plan,
        found=found,
        pauses=[sentence for who, sentence in found.pauses.items() if who in ("", name)],
        mine=found.people.get(name),
        own=own,
        least=LEAST_FOR_A_PERSON,
    )


@for_role(Role.LOOK)
async def _health(visit: Visit) -> Response:
    store = visit.inbox.ledger.store
    letters = await dead_letters(store, limit=_LETTERS + 1)
    rows = health_in_words(await store_health(store))
    if await StoredDrills(store).on():
        del rows["running"]  # it falls as a request arrives, and as no drill does
    return visit.page(
        "health.html", rows=rows, letters=letters[:_LETTERS], more=len(letters) > _LETTERS, now_s=visit.now_s
    )


SECTIONS = (
    Section(path="/reviewers", label="Reviewers", role=Role.LOOK, routes=(Route("/reviewers", _reviewers),)),
    Section(path="/health", label="Health", role=Role.LOOK, routes=(Route("/health", _health),)),
)
