"""Who gets into the inbox: by an invitation once, by a passkey of one's own, from the inbox's own pages only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from grampus_uq.cli import inbox_command
from grampus_uq.errors import ApprovalError, ConfigurationError, DataError, StoreError
from grampus_uq.gate.requests import ApprovalPolicy
from grampus_uq.gate.signatures import PublicKeys
from grampus_uq.inbox.front_door import MAX_BODY, Allowance
from grampus_uq.inbox.inbox_settings import InboxSettings
from grampus_uq.inbox.people import Passkey, People, Person, Role, keys_of
from grampus_uq.inbox.visits import Section, Visit, for_role
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stores import open_store
from grampus_uq.runtime.stores.memory import MemoryStore
from tests.gate.test_requests import ASKED
from tests.gate.test_webauthn import url64
from tests.inbox.browser import ORIGIN, Browser, made, someone

pytestmark = pytest.mark.anyio


@for_role(Role.LABEL)
async def _labels(visit: Visit) -> Response:
    return Response(f"labels of {visit.person.name}")


@for_role(Role.LOOK)
async def _broken(visit: Visit) -> Response:
    raise RuntimeError("secret detail")


LABELS = Section(
    path="/labels",
    label="Labels",
    role=Role.LABEL,
    routes=(Route("/labels", _labels, methods=["GET", "POST"]), Route("/broken", _broken)),
)


async def test_a_probe_reads_whether_the_store_answers_and_nothing_else(store: SessionStore) -> None:
    class Down(MemoryStore):
        down = "password=secret"

        async def now(self) -> float:
            if self.down == "hangs":
                await anyio.sleep(30)
            raise StoreError(self.down)

    asked = {"headers": {"host": "10.0.0.7:8600"}}
    well = await Browser(made(store)).get("/healthz", **asked)
    assert (well.status_code, well.text) == (200, "ok\n")
    assert "set-cookie" not in well.headers
    down = Down()
    browser = Browser(made(down))
    for down.down in ("password=secret", "hangs"):
        ill = await browser.get("/healthz", **asked)
        assert (ill.status_code, ill.text) == (503, "The store does not answer.\n")
    for path in ("/", "/healthz/", "/sign-in", "/healthz/requests"):
        assert (await browser.get(path, **asked)).status_code == 421
    assert (await browser.client.post("/healthz", **asked)).status_code == 421


async def test_an_invitation_makes_a_passkey_that_signs_in_and_decides(store: SessionStore) -> None:
    app = made(store, LABELS)
    ann = await someone(app, store)
    page = await ann.get("/labels")
    assert (page.status_code, page.text) == (200, "labels of ann")
    (keys,) = keys_of(await People(store).all()).values()
    decision = ASKED.decide("approve", principal="ann")
    signed = decision.model_copy(
        update={"signature": ann.key.sign(decision.signed_text(), rp="inbox.example.org", origin=ORIGIN)}
    )
    ApprovalPolicy(signer=PublicKeys({"ann": keys})).check(ASKED, signed, now_s=150.0)
    with pytest.raises(ApprovalError):
        ApprovalPolicy(signer=PublicKeys({"bob": keys})).check(ASKED, signed, now_s=150.0)


@pytest.mark.parametrize("role", Role)
async def test_a_line_for_the_runner_is_shown_to_who_decides_alone_and_a_deputys_is_marked(
    store: SessionStore, role: Role
) -> None:
    """Whoever only looks would be an approver with a line among the runner's keys."""
    sam = Browser(made(store))
    keys = (await sam.register(await People(store).invite("sam", role))).json()["keys"]
    everybody = await People(store).all()
    assert keys == keys_of(everybody, role)
    assert [line.split(":")[0] for line in keys.get("sam", [])] == {
        Role.DECIDE: ["webauthn"], Role.DEPUTY: ["deputy"],
    }.get(role, [])  # fmt: skip
    await sam.sign_in()
    assert ("Your public keys" in (await sam.get("/me")).text) is bool(keys)
    for known in [keys] if keys else []:
        assert PublicKeys(known).deputies == ({"sam"} if role is Role.DEPUTY else set())


async def test_an_invitation_is_good_once_and_until_its_end(store: SessionStore) -> None:
    app, people = made(store), People(store)
    token = await people.invite("ann", Role.DECIDE)
    first, second = Browser(app), Browser(app)
    challenge = (await second.send("/invitation/challenge", {"token": token})).json()["text"]
    assert (await first.register(token)).status_code == 200
    late = await second.send("/invitation", second.passkey(token, challenge))
    assert late.status_code == 409
    over = await people.invite("bob", Role.DECIDE, for_s=-1.0)
    assert (await second.send("/invitation/challenge", {"token": over})).status_code == 404
    assert [one.name for one in await people.all()] == ["ann"]


@pytest.mark.parametrize(
    "forged",
    [
        {"said": {"type": "webauthn.get"}},
        {"said": {"origin": "https://evil.example"}},
        {"said": {"crossOrigin": True}},
        {"said": {"challenge": "AAAA"}},
        {"said": {"challenge": 7}},
        {"rp": "evil.example"},
        {"flags": 0x41},
        {"flags": 0x44},
        {"flags": 0x05},
        {"id": "AAAA"},
        {"id": "AAAAA"},
        {"key": "AAAA"},
        {"data": "AAAA"},
        {"client": "AAAA"},
        {"client": "é"},
        {"extra": "x"},
        {"key": None},
    ],
    ids=str,
)
async def test_a_forged_registration_registers_nobody(store: SessionStore, forged: dict[str, Any]) -> None:
    token = await People(store).invite("ann", Role.DECIDE)
    answer = await Browser(made(store)).register(token, **forged)
    assert answer.status_code in (400, 409)
    assert await People(store).all() == []


async def test_one_passkey_is_one_person(store: SessionStore) -> None:
    app, people = made(store), People(store)
    ann = await someone(app, store)
    assert (await ann.register(await people.invite("bob", Role.DECIDE))).status_code == 409
    assert [one.name for one in await people.all()] == ["ann"]


@pytest.mark.parametrize(
    "forged", [{"origin": "https://evil.example"}, {"rp": "evil.example"}, {"flags": 0x01}], ids=str
)
async def test_a_forged_or_repeated_sign_in_begins_no_session(store: SessionStore, forged: dict[str, Any]) -> None:
    app = made(store)
    ann = await someone(app, store)
    assert (await ann.sign_in(**forged)).status_code == 403
    text = (await ann.send("/sign-in/challenge", {})).json()["text"]
    said = {"text": text, "id": "AAAA", "signature": ann.assertion(text)}
    assert (await ann.send("/sign-in", said)).status_code == 403
    mine = text.rpartition("\n")[0] + "\n" + "0" * 64
    said = {"text": mine, "id": url64(ann.id), "signature": ann.assertion(mine)}
    assert (await ann.send("/sign-in", said)).status_code == 403
    said = {"text": text, "id": url64(ann.id), "signature": ann.assertion(text)}
    assert (await ann.send("/sign-in", said)).status_code == 200
    assert (await ann.send("/sign-in", said)).status_code == 403, "a sign-in is good once"


async def test_a_session_ends_with_its_person_its_device_and_its_sign_out(store: SessionStore) -> None:
    app = made(store, LABELS)
    ann = await someone(app, store)
    (cookie,) = ann.client.cookies.jar
    assert cookie.name == "__Host-inbox"
    assert cookie.secure
    assert cookie.has_nonstandard_attr("HttpOnly")
    assert (await ann.get("/labels", headers={"user-agent": "Other/2"})).status_code == 303
    other = Browser(app)
    other.client.cookies = httpx.Cookies({"__Host-inbox": str(cookie.value)})
    assert (await other.get("/labels")).status_code == 200
    out = await ann.client.post("/sign-out", data={"csrf": ann.csrf})
    assert out.status_code == 303
    assert (await other.get("/labels")).status_code == 303
    bob = await someone(app, store, "bob")
    assert await People(store).remove("bob")
    assert (await bob.get("/labels")).status_code == 303


async def test_sessions_and_challenges_end_by_themselves(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    app = made(store, LABELS)
    ann = await someone(app, store)
    monkeypatch.setattr("grampus_uq.inbox.people.SESSION_S", -1.0)
    assert (await ann.sign_in()).status_code == 200
    assert (await ann.get("/labels")).status_code == 303
    monkeypatch.undo()
    assert (await ann.sign_in()).status_code == 200
    assert (await ann.get("/labels")).status_code == 200
    monkeypatch.setattr("grampus_uq.inbox.passkeys.CHALLENGE_S", -1.0)
    assert (await ann.sign_in()).status_code == 403


async def test_a_session_ends_with_its_passkey(store: SessionStore) -> None:
    app = made(store, LABELS)
    ann = await someone(app, store)
    assert await People(store).remove("ann")
    again = Browser(app)
    assert (await again.register(await People(store).invite("ann", Role.DECIDE))).status_code == 200
    assert (await ann.get("/labels")).status_code == 303, "another passkey has the name now"


async def test_a_role_does_what_it_covers_and_a_change_needs_the_sessions_token(store: SessionStore) -> None:
    app = made(store, LABELS)
    look, label = await someone(app, store, "lou", Role.LOOK), await someone(app, store, "lea", Role.LABEL)
    assert (await look.get("/labels")).status_code == 403
    assert (await label.get("/labels")).status_code == 200
    assert "/labels" not in (await look.get("/me")).text
    assert (await label.client.post("/labels", data={"csrf": label.csrf})).status_code == 200
    assert (await label.send("/labels", {})).status_code == 200
    assert (await label.client.post("/labels", data={"csrf": look.csrf})).status_code == 403
    assert (await label.client.post("/labels", content="csrf=a&csrf=b", headers=FORM)).status_code == 400
    assert (await label.send("/labels", {}, headers={"x-csrf": ""})).status_code == 403
    assert keys_of(await People(store).all()) == {}, "only those who decide have keys that a runner needs"


FORM = {"content-type": "application/x-www-form-urlencoded"}
REFUSED: list[tuple[str, str, dict[str, Any], int]] = [
    ("GET", "/sign-in", {"headers": {"host": "127.0.0.1:8600"}}, 421),
    ("GET", "/sign-in", {"headers": {"host": "inbox.example.org.evil.example"}}, 421),
    ("GET", "/sign-in", {"headers": [("host", "inbox.example.org"), ("host", "evil.example")]}, 421),
    ("GET", "/static/../people.py", {}, 404),
    ("GET", "/static/%2e%2e/people.py", {}, 400),
    ("GET", "/static//inbox.js", {}, 400),
    ("GET", "/static/.inbox.js", {}, 400),
    ("GET", "/static/inbox.js%00", {}, 400),
    ("GET", "/static/people.py", {}, 404),
    ("GET", "/requests?after=%00", {}, 400),
    ("GET", "/sign-in?" + "a" * 2_000, {}, 414),
    ("PUT", "/sign-in", {}, 405),
    ("DELETE", "/sign-in", {}, 405),
    ("OPTIONS", "/sign-in", {}, 405),
    ("POST", "/sign-in/challenge", {"json": {}, "headers": {"origin": "https://evil.example"}}, 403),
    ("POST", "/sign-in/challenge", {"json": {}, "headers": {"origin": "null"}}, 403),
    ("POST", "/sign-in/challenge", {"json": {}, "headers": {"origin": "http://inbox.example.org"}}, 403),
    ("POST", "/sign-in/challenge", {"json": {}, "headers": {"sec-fetch-site": "cross-site"}}, 403),
    ("POST", "/sign-in/challenge", {"json": {}, "headers": {"sec-fetch-site": "same-site"}}, 403),
    ("POST", "/sign-in/challenge", {"content": b"{}", "headers": {"content-type": "text/plain"}}, 415),
    ("POST", "/sign-in/challenge", {"content": b"{}"}, 415),
    ("POST", "/sign-in/challenge", {"files": {"a": b"b"}}, 415),
    ("POST", "/sign-in/challenge", {"content": b"[" * 1_000, "headers": {"content-type": "application/json"}}, 400),
    ("POST", "/sign-in/challenge", {"json": {"x": "y" * MAX_BODY}}, 413),
    (
        "POST",
        "/sign-in/challenge",
        {"content": b"{}", "headers": {"content-type": "application/json", "content-length": "9"}},
        400,
    ),
    (
        "POST",
        "/sign-in/challenge",
        {"content": b"{}{}", "headers": {"content-type": "application/json", "content-length": "2"}},
        400,
    ),
    ("POST", "/sign-in/challenge", {"content": b'{"a":1,"a":2}', "headers": {"content-type": "application/json"}}, 400),
    ("POST", "/invitation/challenge", {"json": {"token": "x" * 101}}, 400),
    ("POST", "/invitation/challenge", {"json": {"token": ["x"]}}, 400),
    ("POST", "/invitation/challenge", {"json": {"token": "nobody's"}}, 404),
    ("POST", "/me", {"json": {}}, 405),
    ("POST", "/sign-out", {"data": {"csrf": "x"}}, 401),
    ("GET", "/nowhere", {}, 404),
]


@pytest.mark.parametrize(("method", "path", "given", "status"), REFUSED, ids=lambda value: str(value)[:60])
async def test_what_is_refused_and_with_which_headers(
    store: SessionStore, method: str, path: str, given: dict[str, Any], status: int
) -> None:
    browser = Browser(made(store))
    answer = await browser.client.request(method, path, **given)
    assert answer.status_code == status, answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-frame-options"] == "DENY"


async def test_a_fault_of_the_server_tells_nothing_of_itself(store: SessionStore) -> None:
    ann = await someone(made(store, LABELS), store)
    answer = await ann.get("/broken")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_a_fault_of_the_store_or_of_a_file_is_told_to_the_log_and_not_to_visitors(
    store: SessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [StoreError("/srv/secret.db: disk I/O error"), DataError("is torn", path="/srv/secret.jsonl")]

    @for_role(Role.LOOK)
    async def faulty(visit: Visit) -> Response:
        raise faults[int(visit.request.query_params["n"])]

    app = made(store, Section(path="/faulty", label="F", role=Role.LOOK, routes=(Route("/faulty", faulty),)))
    ann = await someone(app, store)
    for n in range(len(faults)):
        answer = await ann.get(f"/faulty?n={n}")
        assert answer.status_code in (500, 503)
        assert "/srv" not in answer.text
        assert "log says why" in answer.text
    assert caplog.text.count("/srv/secret") == 2

    async def away(*given: Any) -> Any:
        raise StoreError("/srv/secret.db: disk I/O error")

    for name in ("get", "now", "scan"):
        setattr(store, name, away)
    for path, body in (("/sign-in/challenge", {}), ("/invitation/challenge", {"token": "x"})):
        answer = await Browser(app).send(path, body)
        assert (answer.status_code, "/srv" in answer.text) == (503, False)
    assert "/srv" not in (await ann.get("/requests")).text


async def test_no_answer_leads_to_another_scheme_or_host(store: SessionStore) -> None:
    app = made(store, LABELS)
    ann = await someone(app, store)
    for path in ("/requests/", "/sign-in/", "/labels/", "/static/inbox.js/", "/invitation/", "/me/", "/requests/x/"):
        for browser in (ann, Browser(app)):
            answer = await browser.get(path)
            assert answer.status_code in (303, 404), path
            assert answer.headers.get("location", "/").startswith("/"), path


async def test_tries_at_the_entrance_are_few(store: SessionStore) -> None:
    browser = Browser(made(store))
    answers = [(await browser.send("/invitation/challenge", {"token": str(n)})).status_code for n in range(30)]
    assert answers == [404] * 20 + [429] * 10


def test_an_allowance_counts_each_name_and_all_of_them_together() -> None:
    allowance = Allowance(2)
    assert [allowance.take("a") for _ in range(3)] == [True, True, False]
    assert [allowance.take(str(n)) for n in range(18)] == [True] * 18
    assert not allowance.take("another")
    assert not any(allowance.take(f"address {n}") for n in range(20_000)), "however many names come"
    assert not allowance.take("a")
    again = Allowance(2, window_s=0.0)
    assert all(again.take("a") for _ in range(9))


@given(st.lists(st.tuples(st.floats(0.0, 40.0), st.sampled_from("abc")), max_size=60))
def test_no_minute_wherever_it_begins_has_more_tries_than_are_allowed(waits: list[tuple[float, str]]) -> None:
    now_s, taken = 0.0, list[tuple[float, str]]()
    allowance = Allowance(2, clock=lambda: now_s)
    for wait_s, name in waits:
        now_s += wait_s
        if allowance.take(name):
            taken.append((now_s, name))
        else:
            assert sum(one == name and now_s - at_s < 60.0 for at_s, one in taken) == 2, "refused for no reason"
    for begin_s, of in taken:
        assert sum(name == of and 0.0 <= at_s - begin_s < 60.0 for at_s, name in taken) <= 2


async def test_of_two_registrations_of_one_passkey_at_one_moment_one_is_refused(store: SessionStore) -> None:
    """Both wait where they have looked at everybody and have written nothing."""
    meet, looked = anyio.Event(), list[People]()
    people = [Meeting(store, meet, looked) for _ in range(2)]
    tokens = [await people[0].invite(name, Role.DECIDE) for name in ("ann", "bob")]
    passkey = Passkey(id="k", line="webauthn:k", added_s=1.0)
    told = list[str]()

    async def register(one: People, token: str) -> None:
        try:
            told.append((await one.register(token, passkey)).name)
        except ApprovalError as error:
            told.append(str(error))

    async with anyio.create_task_group() as group:
        for one, token in zip(people, tokens, strict=True):
            group.start_soon(register, one, token)
    assert sorted(told)[0] == "This passkey is registered already."
    assert [len(one.passkeys) for one in await people[0].all()] == [1]


class Meeting(People):
    """Waits after its first look at everybody until another has looked too."""

    def __init__(self, store: SessionStore, meet: anyio.Event, looked: list[People]) -> None:
        super().__init__(store)
        self._meet, self._looked = meet, looked

    async def all(self) -> list[Person]:
        found = await super().all()
        self._looked.append(self)
        if len(self._looked) == 2:
            self._meet.set()
        await self._meet.wait()
        return found


@pytest.mark.parametrize(
    "origin",
    [
        *("http://inbox.example.org", "https://inbox.example.org/", "https://INBOX.example.org", "inbox.example.org"),
        *("https://a@inbox.example.org", "https://127.0.0.1", "http://127.0.0.1:8600", "ftp://localhost", "https://"),
        *("https://inbox.example.org/x", "https://in\u0431ox.example.org", "http://localhost.evil.example:81"),
        *("https://inbox.example.org:443", "http://localhost:80", "https://inbox.example.org:x", "", "https://-"),
    ],
)
def test_an_address_that_passkeys_cannot_be_bound_to_is_refused(origin: str) -> None:
    with pytest.raises(ConfigurationError, match="origin"):
        InboxSettings(origin=origin)


@pytest.mark.parametrize("name", ["", "a b", "<b>", "an\u0430", "x" * 65, "-a", "a/b", "a\n"])
async def test_a_name_that_could_be_taken_for_another_is_refused(store: SessionStore, name: str) -> None:
    with pytest.raises(ConfigurationError, match="NAME"):
        await People(store).invite(name, Role.LOOK)


async def test_every_page_that_was_asked_for_belongs_to_the_same_request(store: SessionStore) -> None:
    """A body is read once, by the front door, and is there for the page."""

    async def echo(request: Request) -> Response:
        return Response(await request.body())

    app = made(
        store, Section(path="/echo", label="E", role=Role.LOOK, routes=(Route("/echo", echo, methods=["POST"]),))
    )
    answer = await Browser(app).send("/echo", {"a": 1})
    assert answer.json() == {"a": 1}


async def test_who_was_removed_comes_back_by_nothing_from_before(store: SessionStore) -> None:
    app = made(store)
    people = People(store)
    ann, bob = await someone(app, store), await someone(app, store, "bob")
    open_before = await people.invite("ann", Role.DECIDE)
    of_bob = await people.invite("bob", Role.DECIDE)
    assert await people.remove("ann")
    assert await people.invitation(open_before) is None
    assert (await Browser(app).register(open_before)).status_code != 200
    assert await people.invitation(of_bob) is not None
    again = await ann.register(await people.invite("ann", Role.LOOK))  # a new invitation, the same passkey
    assert again.status_code == 200
    assert (await ann.get("/requests")).status_code == 303, "the session of before the removal stays ended"
    assert (await bob.get("/requests")).status_code == 200


def test_who_was_only_invited_is_removed_with_words_that_say_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"

    async def invited() -> str:
        store = open_store(url)
        token = await People(store).invite("ann", Role.LOOK)
        await store.aclose()
        return token

    async def still_open(token: str) -> bool:
        store = open_store(url)
        found = await People(store).invitation(token)
        await store.aclose()
        return found is not None

    token = anyio.run(invited)
    assert anyio.run(still_open, token)
    done = CliRunner().invoke(inbox_command.command, ["remove", "ann", "--store", url])
    assert (done.exit_code, "invitation" in done.output) == (1, True), done.output
    assert not anyio.run(still_open, token)
