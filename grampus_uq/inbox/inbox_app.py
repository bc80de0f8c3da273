"""The application: signing in and out, invitations, static files, and the sections of the inbox."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import Final

import anyio
from pydantic import Field

from grampus_uq.errors import ApprovalError, GrampusError, MissingDependencyError

with MissingDependencyError.unless("starlette", "inbox", "The inbox"):
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import (
        HTMLResponse,
        JSONResponse,
        PlainTextResponse,
        RedirectResponse,
        Response,
        StreamingResponse,
    )
    from starlette.routing import Route

from grampus_uq.inbox import batch_pages, decision_pages, request_pages
from grampus_uq.inbox.delegation_pages import DELEGATIONS
from grampus_uq.inbox.front_door import HEALTH, Allowance, FrontDoor
from grampus_uq.inbox.inbox_settings import InboxSettings
from grampus_uq.inbox.passkeys import NewPasskey, SignIn, new_passkey, registration_text, sign_in_text, signed_in
from grampus_uq.inbox.people import SESSION_S, People, Role, keys_of
from grampus_uq.inbox.permit_pages import PERMITS
from grampus_uq.inbox.request_pages import MOST_COUNTED, how_many, listed, mark_of
from grampus_uq.inbox.visits import (
    Body,
    Endpoint,
    Inbox,
    Section,
    Visit,
    body_as,
    failed,
    for_role,
    refusal,
    rendered,
    signed_in_as,
)
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import SessionStore

_EACH_S: Final = 1.0
_PROBE_S: Final = 2.0
_ALIVE_S: Final = 15.0
_MOST, _MOST_OF_ONE = 600, 4  # of six connections that browsers have for one host, two stay for pages and decisions
_TRIES_A_MINUTE: Final = 20


async def _health(request: Request) -> Response:
    inbox: Inbox = request.app.state.inbox
    with suppress(GrampusError, TimeoutError), anyio.fail_after(_PROBE_S):
        await inbox.ledger.store.now()
        return PlainTextResponse("ok\n")
    return PlainTextResponse("The store does not answer.\n", 503)


class News:
    """Publishes changes to a bounded number of listeners."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._asked_s, self._told = float("-inf"), ""
        self._listeners = Counter[str]()
        self.over = False

    async def now(self, inbox: Inbox) -> str:
        """The state of the list as one event, at most a second old."""
        async with self._lock:
            if time.monotonic() - self._asked_s >= _EACH_S:
                mark = mark_of(*await listed(inbox))
                count = await how_many(inbox.ledger.store)
                shown = f"{MOST_COUNTED}+" if count > MOST_COUNTED else str(count)
                self._told = f'data: {{"count": "{shown}", "mark": "{mark}"}}\n\n'
                self._asked_s = time.monotonic()
        return self._told

    def end(self) -> None:
        """Let who listens go within a second, in peace: the server ends."""
        self.over = True

    def full(self, name: str) -> bool:
        """True when too many listen, or too many of this person's pages."""
        return self._listeners.total() >= _MOST or self._listeners[name] >= _MOST_OF_ONE

    @contextmanager
    def listening(self, name: str) -> Iterator[None]:
        """Count a listener."""
        self._listeners[name] += 1
        try:
            yield
        finally:
            self._listeners[name] -= 1
            if not self._listeners[name]:
                del self._listeners[name]


@for_role(Role.LOOK)
async def _events(visit: Visit) -> Response:
    news: News = visit.request.app.state.news
    if news.full(visit.person.name):
        return refusal(visit.request, 429, "Too many pages are open.")
    return StreamingResponse(_told(visit, news), media_type="text/event-stream")


async def _told(visit: Visit, news: News) -> AsyncIterator[str]:
    last, known_s = "", time.monotonic()
    with news.listening(visit.person.name), suppress(GrampusError):  # the store is away: the browser asks again
        while not news.over:
            now = await news.now(visit.inbox)
            if time.monotonic() - known_s >= _ALIVE_S:  # however often the list changes
                if await signed_in_as(visit.request) is None:
                    return
                known_s = time.monotonic()
                yield ": alive\n\n"
            if now != last:
                last = now
                yield now
            await anyio.sleep(_EACH_S)


REQUESTS: Final = Section(
    path="/requests",
    label="Requests",
    role=Role.LOOK,
    routes=(Route("/requests/news", _events), *batch_pages.ROUTES, *request_pages.ROUTES, *decision_pages.ROUTES),
)


def inbox_app(
    store: SessionStore,
    settings: InboxSettings,
    sections: Sequence[Section] = (),
    *,
    required: int = 1,
    sentences: Mapping[str, str] | None = None,
) -> FrontDoor:
    """The ASGI application of an inbox over this store: requests, permits, delegations, then these sections.

    `required` says how many approvals the runner asks for, `sentences` what calls do, by tool.
    """
    sections = (REQUESTS, PERMITS, DELEGATIONS, *sections)
    routes = [
        Route("/", _home),
        Route(HEALTH, _health),
        Route("/static/inbox.js", _script),
        Route("/static/inbox.css", _style),
        Route("/sign-in", _sign_in_page),
        Route("/sign-in/challenge", _challenge, methods=["POST"]),
        Route("/sign-in", _sign_in, methods=["POST"]),
        Route("/me", _me),
        Route("/sign-out", _sign_out, methods=["POST"]),
        Route("/invitation", _invitation_page),
        Route("/invitation/challenge", _invitation, methods=["POST"]),
        Route("/invitation", _register, methods=["POST"]),
        *(route for section in sections for route in section.routes),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _unknown, 405: _unknown, 500: _broken})
    app.router.redirect_slashes = False  # to an absolute address, of a scheme that only the proxy in front knows
    app.state.inbox = Inbox(
        settings=settings,
        ledger=Ledger(store),
        people=People(store),
        sections=tuple(sections),
        required=required,
        sentences=sentences or {},
    )
    app.state.news, app.state.tries = (heard := News()), Allowance(_TRIES_A_MINUTE)
    return FrontDoor(app, settings, end=heard.end)


class _Token(Body):
    token: str = Field(max_length=100)


# -- for whoever is not signed in --------------------------------------------------------------------------------------


def _limited(page: Endpoint) -> Endpoint:
    """Refuse further tries of one address, and answer a known error with its refusal."""

    async def answer(request: Request) -> Response:
        if not request.app.state.tries.take("" if request.client is None else request.client.host):
            return refusal(request, 429, "Too many attempts. Wait a minute.")
        try:
            return await page(request)
        except GrampusError as error:
            return failed(request, error)

    return answer


async def _sign_in_page(request: Request) -> Response:
    if await signed_in_as(request) is not None:
        return RedirectResponse("/", 303)
    return HTMLResponse(rendered("sign_in.html", person=None))


@_limited
async def _challenge(request: Request) -> Response:
    await body_as(request, Body)
    inbox: Inbox = request.app.state.inbox
    text = await sign_in_text(inbox.people, inbox.settings, await inbox.ledger.store.now())
    return JSONResponse({"text": text, "rp": inbox.settings.rp_id})


@_limited
async def _sign_in(request: Request) -> Response:
    inbox: Inbox = request.app.state.inbox
    try:
        said = await body_as(request, SignIn)
        person, passkey = await signed_in(said, inbox.people, await inbox.ledger.store.now())
        cookie, _ = await inbox.people.begin(person, passkey, said.text, request.headers.get("user-agent", ""))
    except ApprovalError as error:
        return refusal(request, 403, str(error))
    response = JSONResponse({"next": "/"})
    response.set_cookie(
        inbox.settings.cookie,
        cookie,
        max_age=int(SESSION_S),
        path="/",
        secure=inbox.settings.secure,
        httponly=True,
        samesite="strict",
    )
    return response


async def _invitation_page(request: Request) -> Response:
    return HTMLResponse(rendered("invitation.html", person=None))


@_limited
async def _invitation(request: Request) -> Response:
    inbox: Inbox = request.app.state.inbox
    token = (await body_as(request, _Token)).token
    invitation = await inbox.people.invitation(token)
    if invitation is None:
        return refusal(request, 404, "The invitation was used or has expired. Ask for a new one.")
    return JSONResponse(
        {
            "text": registration_text(token),
            "rp": inbox.settings.rp_id,
            "name": invitation.name,
            "role": invitation.role.value,
        }
    )


@_limited
async def _register(request: Request) -> Response:
    inbox: Inbox = request.app.state.inbox
    said = await body_as(request, NewPasskey)
    passkey = new_passkey(said, inbox.settings, await inbox.ledger.store.now())
    person = await inbox.people.register(said.token, passkey)
    new = person.model_copy(update={"passkeys": (passkey,)})
    return JSONResponse({"name": person.name, "role": person.role.value, "keys": keys_of([new], person.role)})


@for_role(Role.LOOK)
async def _home(visit: Visit) -> Response:
    """The first section that this person may see."""
    mine = (one.path for one in visit.inbox.sections if visit.person.role.covers(one.role))
    return RedirectResponse(next(mine, "/me"), 303)


@for_role(Role.LOOK)
async def _me(visit: Visit) -> Response:
    """Show the signed-in person and the public keys that a runner needs."""
    return visit.page("me.html", keys=keys_of([visit.person], visit.person.role))


@for_role(Role.LOOK)
async def _sign_out(visit: Visit) -> Response:
    cookie = visit.inbox.settings.cookie
    await visit.inbox.people.end(visit.request.cookies[cookie])
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(cookie, path="/", secure=visit.inbox.settings.secure, httponly=True, samesite="strict")
    return response


async def _script(request: Request) -> Response:
    return Response(_own("inbox.js"), media_type="text/javascript")


async def _style(request: Request) -> Response:
    shared = (files("grampus_uq.learn.pages") / "templates" / "style.css").read_text("utf-8")
    return Response(shared + _own("inbox.css"), media_type="text/css")


def _own(name: str) -> str:
    return (files("grampus_uq.inbox") / "static" / name).read_text("utf-8")


async def _unknown(request: Request, error: Exception) -> Response:
    return refusal(request, getattr(error, "status_code", 404), "No such page.")


async def _broken(request: Request, error: Exception) -> Response:
    return refusal(
        request, 500, "Something went wrong; the server's log has the details. Look again before you repeat it."
    )
