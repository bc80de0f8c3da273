"""Permits: what is asked and what goes out, with the evidence; granted, narrowed and revoked by whoever may decide.

A permit is signed by the passkey as a decision is, over its own text, in two steps: `prepare` makes it, and what comes
back signed is stored only where it is the very permit that this session was given. Revoking needs no signature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import anyio.to_thread
import numpy as np
from pydantic import Field
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from grampus_uq.errors import ApprovalError, DataError, SessionConflictError
from grampus_uq.gate.permit_conditions import limits_of
from grampus_uq.gate.permits import Permit, PermitState, promise_of, replay, sentence
from grampus_uq.inbox.people import Role
from grampus_uq.inbox.visits import Body, Section, SignedText, Visit, for_role
from grampus_uq.learn.pages.charts import Chart, Series
from grampus_uq.runtime.permit_words import narrowed, permit_facts, replaced, same_as_logged, stands, until
from grampus_uq.runtime.stored_permits import (
    Standing,
    close_permit,
    find_permit,
    grant_permit,
    listed_permits,
    permit_log,
    replace_permit,
)
from grampus_uq.stats.earned_threshold import share_of_needed

_DAY_S: Final = 86_400.0
_MOST_ENTRIES: Final = 5_000
_MOST_POINTS: Final = 200
_LINES: Final = 5
_PAGE: Final = 100
_START: Final = re.compile("[0-9]{1,9}")


class PermitWish(Body):
    """An intended permit, or the replacement of the permit `narrows`; shares in percent."""

    narrows: str | None = Field(default=None, max_length=64)
    tool: str = Field(default="", max_length=200)
    conditions: list[Annotated[str, Field(max_length=1_000)]] = Field(default=[], max_length=50)
    agent: str = Field(default="", max_length=200)
    stream: Literal["confidence", "p_success", "call_probability"] = "confidence"
    at_most: float | None = Field(default=None, ge=0.1, le=50.0)
    of_released: bool = False
    assurance: float = Field(default=95.0, ge=50.0, le=99.9)
    audits: float = Field(default=5.0, ge=1.0, le=90.0)
    miss_rate: float | None = Field(default=None, ge=0.0, le=90.0)
    days: float | None = Field(default=None, ge=0.01, le=3_650.0)


class SignedPermit(SignedText):
    """A permit as `prepare` gave it, with its token, and the assertion of the passkey `id` over its signed text."""

    permit: str = Field(max_length=100_000)
    narrows: str | None = Field(default=None, max_length=64)


# -- seen ------------------------------------------------------------------------------------------------------------


@for_role(Role.LOOK)
async def _list(visit: Visit) -> Response:
    told = visit.request.query_params.get("from", "")
    start = int(told) if _START.fullmatch(told) else 0
    found, more = await listed_permits(visit.inbox.ledger.store, start, _PAGE)
    following = start + _PAGE if more else None
    return await anyio.to_thread.run_sync(_listed, visit, found, start, following)


def _listed(visit: Visit, found: Sequence[Standing], start: int, following: int | None) -> Response:
    rows = [(one, stands(one), _earned(one)) for one in found]
    return visit.page(
        "permits.html",
        rows=rows,
        start=start,
        before=max(0, start - _PAGE) if rows else 0,
        following=following,
        decides=_may_grant(visit),
        required=visit.inbox.required,
    )


def _earned(one: Standing) -> str:
    """Return the promise, or why it no longer holds; empty if `stands` says it all."""
    state = one.state
    tells = state.closed is None and (state.withdrawn or state.threshold(one.permit) is not None)
    return sentence(one.permit, state) if tells else ""


@for_role(Role.LOOK)
async def _permit(visit: Visit) -> Response:
    standing = await _found(visit, visit.request.path_params["permit_id"])
    log = await permit_log(visit.inbox.ledger.store, standing.permit.id)
    evidence = await anyio.to_thread.run_sync(evidence_of, standing, log)
    facts = await anyio.to_thread.run_sync(permit_facts, standing)
    decides = visit.person.role.covers(Role.DECIDE) and standing.is_open
    narrows = decides and _may_grant(visit)
    return visit.page(
        "permit.html", standing=standing, facts=facts, evidence=evidence, revokes=decides, narrows=narrows
    )


def _may_grant(visit: Visit) -> bool:
    """A permit is one person's: where several must agree, none counts."""
    return visit.person.role.covers(Role.DECIDE) and visit.inbox.required == 1


async def _found(visit: Visit, permit_id: str) -> Standing:
    """The permit of exactly this id; raises DataError."""
    standing = await find_permit(visit.inbox.ledger.store, permit_id)
    if standing.permit.id != permit_id:
        raise DataError(f"No permit has the id {permit_id!r:.40}.")
    return standing


# -- changed ---------------------------------------------------------------------------------------------------------


@for_role(Role.DECIDE)
async def _prepare(visit: Visit) -> Response:
    wish = await visit.said(PermitWish)
    _check_may_grant(visit)
    old = None if wish.narrows is None else await _found(visit, wish.narrows)
    try:
        permit = _wished(visit, wish, old)
        text = permit.signed_text().decode()
    except ValueError as error:  # pydantic's, where a text cannot be a permit's
        raise ApprovalError(f"This is not a permit: {str(error)[:300]}") from error
    standing = Standing(permit=permit, state=PermitState.fresh(permit), version=0, now_s=visit.now_s)
    facts = await anyio.to_thread.run_sync(permit_facts, standing)
    told = {"promise": promise_of(permit), "until": until(permit.expires_s)}
    told |= {name: facts[name] for name in ("scope", "score", "missing")}
    told |= {} if old is None else {"replaces": replaced(old)}
    return JSONResponse(
        {
            "permit": permit.model_dump_json(),
            "narrows": wish.narrows,
            "token": await visit.token("permit", text, wish.narrows or ""),
            **visit.to_sign(text, told),
        }
    )


@for_role(Role.DECIDE)
async def _grant(visit: Visit) -> Response:
    signed = await visit.said(SignedPermit)
    _check_may_grant(visit)
    beside = signed.narrows or ""
    permit = await visit.taken_back(Permit, signed.permit, signed, lambda permit: permit.created_s, beside)
    store = visit.inbox.ledger.store
    try:
        if signed.narrows is None:
            await grant_permit(store, permit)
        else:
            await replace_permit(store, signed.narrows, permit)
    except SessionConflictError as error:
        raise ApprovalError("This permit was granted already.") from error
    return JSONResponse({"next": f"/permits/{permit.id}"})


@for_role(Role.DECIDE)
async def _revoke(visit: Visit) -> Response:
    said, standing = await visit.form(), await _found(visit, visit.request.path_params["permit_id"])
    why = said.get("message", "")[:500].strip()
    await close_permit(
        visit.inbox.ledger.store, standing.permit.id, f"{visit.person.name} revoked it" + (f": {why}" if why else "")
    )
    return RedirectResponse(f"/permits/{standing.permit.id}", 303)


def _check_may_grant(visit: Visit) -> None:
    if not _may_grant(visit):
        raise ApprovalError("A permit is one person's, and the runner asks for several: it would count for nothing.")


def _wished(visit: Visit, wish: PermitWish, old: Standing | None) -> Permit:
    """The unsigned permit."""
    conditions = limits_of(tuple(line for line in wish.conditions if line.strip()))
    at_most = None if wish.at_most is None else round(wish.at_most / 100.0, 12)
    miss_rate = None if wish.miss_rate is None else round(wish.miss_rate / 100.0, 12)
    if old is not None:
        if not old.is_open:
            raise ApprovalError("This permit is closed or expired: grant a new one.")
        return narrowed(
            old.permit,
            principal=visit.person.name,
            now_s=visit.now_s,
            conditions=conditions,
            at_most=at_most,
            days=wish.days,
            miss_rate=miss_rate,
        )
    return Permit(
        tool=wish.tool,
        limits=conditions,
        agent_id=wish.agent or None,
        stream=wish.stream,
        epsilon=Permit.model_fields["epsilon"].default if at_most is None else at_most,
        delta=round(1.0 - wish.assurance / 100.0, 12),
        audit_rate=round(wish.audits / 100.0, 12),
        of_released=wish.of_released,
        miss_rate=miss_rate,
        principal=visit.person.name,
        created_s=visit.now_s,
        expires_s=visit.now_s + (90.0 if wish.days is None else wish.days) * _DAY_S,
    )


PERMITS: Final = Section(
    path="/permits",
    label="Permits",
    role=Role.LOOK,
    routes=(
        Route("/permits", _list),
        Route("/permits/prepare", _prepare, methods=["POST"]),
        Route("/permits", _grant, methods=["POST"]),
        Route("/permits/{permit_id}", _permit),
        Route("/permits/{permit_id}/revoke", _revoke, methods=["POST"]),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence in a permit's log: a picture, or why there is none, and whether it replays to the stored state."""

    chart: Chart | None
    problem: str | None


def evidence_of(standing: Standing, log: Sequence[Mapping[str, Any]]) -> Evidence:
    """The evidence of each threshold after each answer, of what is needed for it: 1 is when it comes into force."""
    if len(log) > _MOST_ENTRIES:
        many = f"The log has more than {_MOST_ENTRIES:,} entries: `grampus-uq permits show` replays it."
        return Evidence(chart=None, problem=many)  # how many would count requests, and not drills
    try:
        states = [after for _, _, after in replay(standing.permit, log)]
    except DataError as error:
        return Evidence(chart=None, problem=f"The log cannot be read: {error}")
    last = states[-1] if states else PermitState.fresh(standing.permit)
    changed = "The log does not give the stored state: one of the two was changed."
    problem = None if same_as_logged(standing, last) else changed
    return Evidence(chart=_drawn(standing.permit, states), problem=problem)


def _drawn(permit: Permit, states: Sequence[PermitState]) -> Chart | None:
    if not states or not states[-1].counted:
        return None
    after = list({state.counted: state for state in states}.values())  # a point for each question would count requests
    every = [after[n] for n in sorted({*range(0, len(after), max(1, len(after) // _MOST_POINTS)), len(after) - 1})]
    calls = np.array([state.counted for state in every], dtype=np.float64)
    shares = np.array([share_of_needed(permit.target, state.of(permit)) for state in every]).clip(0.0, 1.0)
    alike = [0, *(n for n in range(1, shares.shape[1]) if not np.array_equal(shares[:, n], shares[:, n - 1]))]
    ends = [*(n - 1 for n in alike[1:]), shares.shape[1] - 1]
    named = {round(n) for n in np.linspace(0, len(alike) - 1, min(len(alike), _LINES))}
    series, thin = list[Series](), list[Any]()
    for group, (first, last) in enumerate(zip(alike, ends, strict=True)):
        line, low, high = np.column_stack([calls, shares[:, first]]), permit.thresholds[last], permit.thresholds[first]
        if group in named:
            label = f"from {low:g} on" if low == high else f"from {low:g} to {high:g} on"
            series.append(Series(label=label, points=line, colour=len(series), thin=thin))
        else:
            thin.append(line)
    for label, colour, height, which in (("an audit", 7, 0.03, "audits"), ("a wrong answer", 6, 0.08, "wrong")):
        at = _rises(states, which)
        if at:
            points = np.column_stack([at, np.full(len(at), height)])
            series.append(Series(label=label, points=points, colour=colour, radii=[2.5] * len(at), joined=False))
    end = float(max(states[-1].counted, 1))
    return Chart(
        caption="Evidence of each threshold, as a share of what it needs: at 1, calls from that score on proceed.",
        x_label="calls that are counted",
        y_label="evidence of what is needed",
        series=series,
        x_ticks=[round(end * part) for part in (0.0, 0.5, 1.0)],
        x_to=end,
    )


def _rises(states: Sequence[PermitState], which: str) -> list[float]:
    """After how many calls a count rose; it begins anew where the permission was withdrawn."""
    found, before, withdrawn = list[float](), 0, 0
    for state in states:
        before = before if state.withdrawn == withdrawn else 0
        now = int(getattr(state, which))
        found += [float(state.counted)] if now > before else []
        before, withdrawn = now, state.withdrawn
    return found
