"""One request of somebody: who they are, whether they may, and the page or the words that they get."""

from __future__ import annotations

import functools
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import anyio.to_thread
from jinja2 import ChoiceLoader, Environment, PackageLoader
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from grampus_uq.errors import ApprovalError, ConfigurationError, DataError, GrampusError, SessionError, StoreError
from grampus_uq.gate.delegations import Delegation
from grampus_uq.gate.permits import Permit
from grampus_uq.gate.requests import ApprovalKind
from grampus_uq.gate.webauthn import WebAuthnKey
from grampus_uq.inbox.inbox_settings import InboxSettings
from grampus_uq.inbox.people import CHALLENGE_S, People, Person, Role
from grampus_uq.learn.pages.page import page_environment
from grampus_uq.records.strict_json import parse_json
from grampus_uq.records.visible_text import visible
from grampus_uq.records.vocabulary import quantity, span
from grampus_uq.runtime.ledger import Ledger

_Body = TypeVar("_Body", bound=BaseModel)
_Granted = TypeVar("_Granted", Delegation, Permit)
_log = logging.getLogger(__name__)
_STATUS = {ApprovalError: 409, SessionError: 404, StoreError: 503, DataError: 400}


class Body(BaseModel):
    """JSON of a browser: these fields, of these types, and no others."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Assertion(Body):
    """Assertion of a passkey: its `id` and its `signature` of a text that is sent beside it."""

    id: str = Field(min_length=1, max_length=2_048)
    signature: str = Field(max_length=16_384)


class SignedText(Assertion):
    """A record as `prepare` gave it, and its `token`: that this session was shown the text that is signed."""

    token: str = Field(max_length=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the inbox: its pages, and its entry in the navigation for everybody whose role covers `role`."""

    path: str
    label: str
    role: Role
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """Shared parts of all pages; `required` approvals, as in the runner's policy, and `sentences` of tools."""

    settings: InboxSettings
    ledger: Ledger
    people: People
    sections: tuple[Section, ...]
    required: int = 1
    sentences: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request of a person who is signed in, and may make it; `now_s` of its arrival by the store's clock."""

    request: Request
    inbox: Inbox
    person: Person
    now_s: float
    csrf: str

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """A template of this room; `person`, `csrf` and `sections` are there in every one."""
        mine = [one for one in self.inbox.sections if self.person.role.covers(one.role)]
        values |= {"person": self.person, "csrf": self.csrf, "sections": mine, "here": self.request.url.path}
        return FilledPage(template, status, values)

    async def form(self) -> dict[str, str]:
        """The fields of the form that was sent; raises DataError."""
        return await form_of(self.request)

    async def said(self, model: type[_Body]) -> _Body:
        """The body, a JSON object, as this model; raises DataError."""
        return await body_as(self.request, model)

    async def token(self, what: str, *parts: str) -> str:
        """A proof that only this server can make: that this very session was given these texts."""
        return await self.inbox.people.mac(what, self.request.cookies[self.inbox.settings.cookie], *parts)

    def passkeys(self) -> dict[str, Any]:
        """The options with which a browser has one of this person's passkeys sign."""
        return {"rp": self.inbox.settings.rp_id, "keys": [key.id for key in self.person.passkeys]}

    def to_sign(self, text: str, told: Mapping[str, str]) -> dict[str, Any]:
        """A text to be signed and, as a page shows it, what it says."""
        return {"text": text, "told": {name: visible(said) for name, said in told.items()}, **self.passkeys()}

    async def taken_back(
        self, form: type[_Granted], sent: str, said: SignedText, made_s: Callable[[_Granted], float], *beside: str
    ) -> _Granted:
        """The very record that this session was given to sign just now, signed; raises ApprovalError and DataError."""
        what = form.__name__.lower()
        try:
            record = form.model_validate_json(sent)
            text = record.signed_text()
        except (ConfigurationError, ValueError) as error:
            raise DataError("The request cannot be read.") from error
        if not same(await self.token(what, text.decode("utf-8", "replace"), *beside), said.token):
            raise ApprovalError(f"This is not the {what} that was shown in this session. Start again.")
        if record.principal != self.person.name or not abs(self.now_s - made_s(record)) < CHALLENGE_S:
            raise ApprovalError(f"The {what} belongs to another person, or it took too long. Start again.")
        if not self.signed(text, said):
            raise ApprovalError(f"The passkey's signature is not for this {what}: nothing was stored.")
        return record.model_copy(update={"signature": said.signature})

    def signed(self, text: bytes, said: Assertion) -> bool:
        """Return True for a signature by one of this person's passkeys on exactly this text."""
        passkey = next((key for key in self.person.passkeys if key.id == said.id), None)
        return passkey is not None and WebAuthnKey.from_line(passkey.line).holds(text, said.signature)


class FilledPage(Response):
    """A template filled when it is sent, in a thread: each character of a text, of a million maybe, is looked at."""

    def __init__(self, template: str, status: int, values: Mapping[str, Any]) -> None:
        super().__init__(status_code=status)
        self._fill = functools.partial(rendered, template, **values)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        page = await anyio.to_thread.run_sync(self._fill)
        await HTMLResponse(page, self.status_code)(scope, receive, send)


def same(token: str, given: str) -> bool:
    """Return True for the token itself, compared in constant time."""
    return hmac.compare_digest(token.encode(), given.encode("utf-8", "replace"))


Page = Callable[[Visit], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


def for_role(role: Role) -> Callable[[Page], Endpoint]:
    """A page or JSON for whoever is signed in with a role that covers this one; changes need the session's token."""

    def guarding(page: Page) -> Endpoint:
        @functools.wraps(page)
        async def guarded(request: Request) -> Response:
            try:
                visit = await _visit(request)
                if visit is None:
                    if request.method != "POST":
                        return RedirectResponse("/sign-in", 303)
                    return refusal(request, 401, "You are signed out. Sign in and open the page again.")
                if not visit.person.role.covers(role):
                    return refusal(
                        request, 403, f"This needs the role {role.value}; yours is {visit.person.role.value}."
                    )
                if request.method == "POST" and not same(visit.csrf, await _token(request)):
                    return refusal(request, 403, "The page belongs to another session. Open it again.")
                return await page(visit)
            except GrampusError as error:
                return failed(request, error)

        return guarded

    return guarding


def at_once(page: Endpoint) -> Endpoint:
    """A page of bounded length that awaits nothing but the store, done in one turn of the store's thread."""

    async def answered(request: Request) -> Response:
        inbox: Inbox = request.app.state.inbox
        return await inbox.ledger.store.at_once(lambda: page(request))

    return answered


def failed(request: Request, error: GrampusError) -> Response:
    """An error of this package as an answer."""
    return refusal(request, *told_of(request, error))


def told_of(request: Request, error: GrampusError) -> tuple[int, str]:
    """Status and words for an error; what names a file or a server of this machine is told to its log alone.

    A write whose answer was lost may have been made.
    """
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 400)
    if status < 500 and not getattr(error, "path", ""):
        return status, str(error)
    _log.warning("%s %s failed: %s", request.method, request.url.path, error)
    what = "The store" if isinstance(error, StoreError) else "Something that this needs"
    lost = " What you sent may have been stored all the same: look again first." if request.method == "POST" else ""
    return max(status, 500), f"{what} cannot be read or written now; the server's log says why.{lost}"


def refusal(request: Request, status: int, why: str) -> Response:
    """The reason for a refusal, as a page or as JSON."""
    if request.headers.get("content-type", "").startswith("application/json"):
        return JSONResponse({"error": visible(why[:2_000])}, status)
    return HTMLResponse(rendered("refused.html", why=why[:2_000], person=None), status)


async def body_as(request: Request, model: type[_Body]) -> _Body:
    """The body, a JSON object with unique names, as this model; raises DataError."""
    try:
        return model.model_validate(parse_json(await request.body(), unique_names=True))
    except (ValidationError, ValueError, RecursionError) as error:
        raise DataError("The request cannot be read.") from error


async def signed_in_as(request: Request) -> tuple[Person, float] | None:
    """The sender of this request, and the time by the store's clock."""
    inbox: Inbox = request.app.state.inbox
    cookie = request.cookies.get(inbox.settings.cookie)
    device = request.headers.get("user-agent", "")
    return await inbox.people.session(cookie, device) if cookie else None


async def _visit(request: Request) -> Visit | None:
    inbox: Inbox = request.app.state.inbox
    found = await signed_in_as(request)
    if found is None:
        return None
    person, now_s = found
    csrf = await inbox.people.mac("csrf", request.cookies[inbox.settings.cookie])
    return Visit(request=request, inbox=inbox, person=person, now_s=now_s, csrf=csrf)


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; raises DataError for one that names a field twice."""
    try:
        pairs = parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=100, errors="strict")
    except ValueError as error:
        raise DataError("The request cannot be read.") from error
    if len(dict(pairs)) != len(pairs):
        raise DataError("The request names a field twice.")
    return dict(pairs)


async def _token(request: Request) -> str:
    sent_json = request.headers.get("content-type", "").startswith("application/json")
    return request.headers.get("x-csrf", "") if sent_json else (await form_of(request)).get("csrf", "")


def rendered(template: str, **values: Any) -> str:
    """A template of this room, escaped and made visible like every page of the package."""
    return _environment().get_template(template).render(**values)


_PAST: Final = {
    ApprovalKind.APPROVE: "approved",
    ApprovalKind.EDIT: "approved with a change",
    ApprovalKind.REJECT: "rejected",
    ApprovalKind.RESPOND: "answered",
}


def past(kind: ApprovalKind) -> str:
    """The past tense of a decision."""
    return _PAST[kind]


@functools.cache
def _environment() -> Environment:
    shared = PackageLoader("grampus_uq.learn.pages")  # charts
    environment = page_environment(ChoiceLoader([PackageLoader("grampus_uq.inbox"), shared]))
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False, sort_keys=True)
    environment.filters |= {"span": span, "counted": quantity, "past": past}
    return environment
