"""From a pause to its end in a real browser with a passkey: a page on a phone, a signature, a worker, one call.

Needs Chromium (`apt-get install chromium`), Playwright (`pip install playwright`), and npm for axe-core; without them
the tests are skipped. The whole inbox runs in a process of its own, as a user starts it.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from click.testing import CliRunner

from grampus_uq import ApprovalPolicy, FunctionTools, PublicKeys, ToolCall, tool
from grampus_uq.cli import inbox_command
from grampus_uq.records.vocabulary import AgentStatus, Effect
from grampus_uq.runtime.drills import sealed_card
from grampus_uq.runtime.ledger import Ledger, audit_of
from grampus_uq.runtime.store import WAKING, SessionStore
from grampus_uq.runtime.stored_drills import DRILL, StoredDrills
from grampus_uq.runtime.stored_permits import grant_permit
from grampus_uq.runtime.stores import open_store
from grampus_uq.runtime.worker import Worker
from grampus_uq.runtime.worker_jobs import TIMER
from grampus_uq.stats.earned_threshold import CANDIDATES
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, World, mail, runner
from tests.runtime.drill_worlds import UNSEEN, plan
from tests.runtime.test_drills import drills
from tests.runtime.test_stored_permits import ANN, Office, permit
from tests.runtime.test_worker import emptied
from tests.servers import free_port, serves, until_up

playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]
SHOTS = os.environ.get("GRAMPUS_UQ_SHOTS")
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 800}


def elsewhere(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run it on a thread of its own: Playwright has an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(anyio.run, work).result()


class House:
    """A store, the inbox over it in a process of its own, and a runner that believes the keys of a file."""

    def __init__(self, folder: Path, url: str, *options: str) -> None:
        self.url, self.keys = url, folder / "keys.json"
        self.world = World()
        elsewhere(self._make_store)
        port = free_port()
        self.origin = f"http://localhost:{port}"
        self.server = subprocess.Popen([*_CLI, "--store", self.url, "--port", str(port), *options])
        until_up(self.server, lambda: serves(f"{self.origin}/sign-in"))

    async def _make_store(self) -> None:
        store = open_store(self.url)
        await store.now()
        await store.aclose()

    def command(self, *arguments: str) -> str:
        """What a command prints; in this process, for a process of its own takes a second of a processor to start."""
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(CliRunner().invoke, inbox_command.command, [*arguments, "--store", self.url]).result()
        assert done.exit_code == 0, done.output
        return done.stdout.strip()

    def invite(self, name: str, role: str = "decide") -> str:
        return self.command("invite", name, "--role", role, "--origin", self.origin)

    def pause(self, *calls: ToolCall, session: str = "s", **policy: Any) -> str:
        """A run that waits; the id of its first request."""
        self.turns = [answer("I will mail Bob.", tool_calls=list(calls or [mail("c", "bob")])), answer("Done.")]
        keys = [json.loads(self.command("keys", *which)) for which in ((), ("--deputies",))]
        self.keys.write_text(json.dumps(keys[0] | keys[1]))
        self.policy = ApprovalPolicy(signer=PublicKeys.from_file(self.keys), **policy)

        async def run() -> str:
            store = open_store(self.url)
            agent = runner(self.world, self.turns, store=store, approvals=self.policy)
            result = await agent.run(AGENT, "Mail Bob the offer, please.", session_id=session)
            await store.aclose()
            return result.pending[0].id

        return elsewhere(run)

    def work(self, session: str = "s") -> str:
        """Let a worker go on until the session has ended, or nothing is left to do."""

        async def run() -> str:
            store, other = open_store(self.url), open_store(self.url)
            worker = Worker(
                runner=runner(self.world, self.turns, store=store, approvals=self.policy), agents=["mailer"]
            )
            ledger = Ledger(other)
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                with anyio.fail_after(120):
                    while (await ledger.known("mailer", session))[0].status != AgentStatus.COMPLETED:
                        if not await due_soon(other):
                            break
                        await anyio.sleep(0.05)
                worker.stop()  # what it has taken it brings to its end
            status = (await ledger.known("mailer", session))[0].status
            await store.aclose()
            await other.aclose()
            return status

        return elsewhere(run)

    def earn(self) -> str:
        """A permit with evidence, some of it wrong; its id."""

        async def earn() -> str:
            store = open_store(self.url)
            office = Office(store)
            one = permit(thresholds=CANDIDATES, epsilon=0.3, delta=0.2, audit_rate=0.3)
            await grant_permit(store, ANN.sign(one))
            for number in range(24):
                office.draw = 0.0 if number % 5 == 0 else 0.99
                await office.run(f"e{number}", "reject" if number in (2, 15) else "approve", body=f"earn {number}")
            await store.aclose()
            return one.id

        return elsewhere(earn)

    def change(self, old: str, new: str) -> None:
        """Somebody changes the stored session."""

        async def change() -> None:
            store = open_store(self.url)
            (found,) = await store.scan("session")
            assert old in found.body
            await store.put(
                "session", found.key, found.body.replace(old, new), expected=found.version, label=found.label
            )
            await store.aclose()

        elsewhere(change)


async def due_soon(store: SessionStore) -> bool:
    """True while a worker has something to do, or has it within a minute: an expiry, or another try."""
    rows = [row for kind in (WAKING, TIMER) for row in await store.scan(kind)]
    return any(float(row.key.partition("/")[0]) < row.read_s + 60.0 for row in rows)


_CLI = [sys.executable, "-m", "grampus_uq.cli", "inbox"]


@contextmanager
def a_house(folder: Path, url: str, *options: str) -> Iterator[House]:
    house = House(folder, url, *options)
    try:
        yield house
    finally:
        house.server.terminate()
        assert house.server.wait(60) == 0


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with a_house(tmp_path, f"sqlite:///{tmp_path}/store.db") as found:
        yield found


@pytest.fixture
def house_of_two(tmp_path: Path) -> Iterator[House]:
    """Where two people have to approve."""
    with a_house(tmp_path, f"sqlite:///{tmp_path}/store.db", "--required", "2") as found:
        yield found


@pytest.fixture
def notices() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a webhook, and what it was told."""
    told = list[dict[str, Any]]()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", told
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(params=["sqlite", "postgres"])
def any_house(
    request: pytest.FixtureRequest, tmp_path: Path, notices: tuple[str, list[dict[str, Any]]]
) -> Iterator[House]:
    on_postgres = request.param == "postgres"
    url = emptied("postgres", request.getfixturevalue("postgres_url")) if on_postgres else f"sqlite:///{tmp_path}/s.db"
    with a_house(tmp_path, url, "--notify", notices[0]) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page of a new browser profile with an authenticator of its own; what its console says fails the test."""
    contexts, said = [], list[str]()

    def opened(size: dict[str, int] = PHONE, **given: Any) -> Any:
        context = chromium.new_context(viewport=size, has_touch=size is PHONE, **given)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
        page.on("pageerror", lambda one: said.append(str(one)))
        session = context.new_cdp_session(page)
        session.send("WebAuthn.enable")
        options = {"protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True}
        options |= {"isUserVerified": True, "automaticPresenceSimulation": True}
        session.send("WebAuthn.addVirtualAuthenticator", {"options": options})
        page.set_default_timeout(60_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [one for one in said if "the server responded with a status of" not in one] == []


def enter(page: Any, house: House, name: str = "ann", role: str = "decide") -> None:
    """Use an invitation, and sign in."""
    page.goto(house.invite(name, role))
    page.get_by_role("button", name="Make a passkey").click()
    page.get_by_role("link", name="Sign in").click()
    page.get_by_role("button", name="Sign in with a passkey").click()
    page.wait_for_url("**/requests")


def choose(page: Any, what: str) -> None:
    page.get_by_role("button", name=what, exact=True).click()


def read(page: Any) -> None:
    """Have every part of what is asked for on the screen."""
    approve, further = page.locator("[data-do=approve]"), page.locator("[data-next]")
    for _ in range(200):
        page.wait_for_timeout(250)
        if not approve.is_disabled():
            return
        if further.is_visible():
            further.click()
    raise AssertionError("Approve did not open")


def shot(page: Any, name: str) -> None:
    """Keep a picture where somebody asked for them."""
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


def test_a_call_is_approved_on_a_phone_and_runs_once(
    any_house: House, open_page: Callable[..., Any], notices: tuple[str, list[dict[str, Any]]]
) -> None:
    page, house = open_page(), any_house
    enter(page, house)
    page.get_by_text("No pending requests.").wait_for()
    house.pause()
    for _ in range(2_400):
        if notices[1]:
            break
        page.wait_for_timeout(50)
    link = f"{house.origin}/requests"
    assert notices[1] == [{"text": f"1 request waits: {link}", "waiting": 1, "link": link}]
    page.goto(notices[1][0]["link"])
    page.get_by_role("link", name='send_email: to "bob", body "hi".').click()
    playwright.expect(page).to_have_title(re.compile(r"\(1\) send_email: "))
    choose(page, "Approve")
    choose(page, "Sign: approve")
    page.get_by_text("Approved. The agent's program takes it up.").wait_for()
    page.get_by_text("Waiting for the agent's program.").wait_for()
    shot(page, "fate-waiting-390")
    desk = page.context.new_page()  # who opens the card meanwhile follows it, too
    desk.set_viewport_size(DESK)
    desk.goto(page.url)
    desk.get_by_text("Waiting for the agent's program.").wait_for()
    assert house.work() == AgentStatus.COMPLETED
    assert house.world.sent == [("bob", "hi")]
    for one in (page, desk):
        one.locator("[data-fate][data-ran=true]", has_text="The call ran.").wait_for()
    shot(page, "fate-ran-390")
    playwright.expect(desk.get_by_role("button", name="Approve")).to_be_hidden()
    shot(desk, "fate-ran-1280")
    desk.reload()
    desk.get_by_role("heading", name="No longer pending").wait_for()
    desk.locator("[data-fate][data-ran=true]", has_text="The call ran.").wait_for()
    shot(desk, "fate-decided-1280")
    page.get_by_role("link", name="Next").click()
    page.get_by_text("No pending requests.").wait_for()


@pytest.mark.parametrize(
    ("what", "told", "name"),
    [
        ("Reject", "Taken up: the call does not run.", "rejected"),
        ("Approve", "The call ended with an error.", "error"),
        ("refused", "The agent's program refused the decision of ann: ", "refused"),
    ],
)
def test_whoever_decided_reads_that_the_call_did_not_run_or_failed(
    house: House, open_page: Callable[..., Any], what: str, told: str, name: str
) -> None:
    page = open_page()
    enter(page, house)
    request = house.pause(**({"approvers": ["bob"]} if what == "refused" else {}))
    page.goto(f"{house.origin}/requests/{request}")
    read(page)
    choose(page, "Reject" if what == "Reject" else "Approve")
    choose(page, "Sign: reject" if what == "Reject" else "Sign: approve")
    page.get_by_text("Waiting for the agent's program.").wait_for()
    house.world.tools()
    house.world.keys = None  # type: ignore[assignment]  # the tool breaks
    house.work()
    page.locator("[data-fate][data-ran=false]", has_text=told).wait_for()
    shot(page, f"fate-{name}-390")


@pytest.mark.parametrize("size", [PHONE, DESK, {"width": 320, "height": 568}], ids=["390", "1280", "320"])
def test_the_way_on_stays_on_the_screen_beside_a_reason_of_escapes(
    house: House, open_page: Callable[..., Any], size: dict[str, int]
) -> None:
    page = open_page(size)
    enter(page, house)
    request = house.pause(approvers=["bob"])
    page.goto(f"{house.origin}/requests/{request}")
    read(page)
    choose(page, "Approve")
    choose(page, "Sign: approve")
    page.get_by_text("Waiting for the agent's program.").wait_for()
    house.work()
    page.locator("[data-fate]", has_text="refused the decision of ann: ").wait_for()

    async def refuse() -> None:
        store, hidden = open_store(house.url), "\U000e0041"
        refused = {"request": request, "of": hidden * 80, "why": hidden * 300}
        await store.write(audit_of("mailer", "s", [("decision_refused", refused)]))
        await store.aclose()

    elsewhere(refuse)
    page.locator("[data-fate]", has_text="refused the decision of \\U000e0041").wait_for()
    shot(page, f"fate-escapes-{size['width']}")
    playwright.expect(page.get_by_role("link", name="Next")).to_be_in_viewport(ratio=1)


def test_an_edit_is_shown_before_it_is_signed(house: House, open_page: Callable[..., Any]) -> None:
    page = open_page()
    enter(page, house)
    page.goto(f"{house.origin}/requests/{house.pause()}")
    choose(page, "Edit")
    choose(page, "Show the change")
    page.get_by_text("Nothing was changed").wait_for()
    page.get_by_label("to text").fill("eve")
    choose(page, "Show the change")
    assert page.locator("[data-changes] tr").nth(1).inner_text().split() == ["to", '"bob"', '"eve"']
    assert page.locator("[data-changes]").locator("del, ins").all_inner_texts() == ["bob", "eve"]
    choose(page, "Cancel")
    choose(page, "Edit")
    page.get_by_label("body text").fill("\nhi\n")
    choose(page, "Show the change")
    choose(page, "Sign: run it with this change")
    page.get_by_text("Approved with your change.").wait_for()
    house.work()
    assert house.world.sent == [("eve", "\nhi\n")]


PAY = ToolCall(
    id="c",
    name="pay",
    arguments={"to": "\nann", "amount": 85.5, "parts": 2, "now": True, "lines": ["a"], "note": None},
)


class Till(World):
    """A tool with a parameter of each type."""

    paid: list[dict[str, Any]]

    def tools(self) -> FunctionTools:
        self.paid = []

        @tool(effect=Effect.IRREVERSIBLE)
        def pay(
            to: str,
            amount: float,
            parts: int,
            now: bool,
            currency: Literal["EUR", "USD"] = "EUR",
            note: str | None = None,
            lines: list[str] = [],  # noqa: B006 (a schema's default)
        ) -> str:
            """Pay somebody."""
            self.paid.append({name: value for name, value in locals().items() if name != "self"})
            return "paid"

        return FunctionTools(pay)


def test_each_argument_is_edited_in_a_field_of_its_type(house: House, open_page: Callable[..., Any]) -> None:
    page, house.world = open_page(), Till()
    enter(page, house)
    page.goto(f"{house.origin}/requests/{house.pause(PAY)}")
    read(page)
    choose(page, "Edit")
    shot(page, "edit-fields-390")
    assert page.get_by_label("to text").input_value() == "\nann"
    page.get_by_label("amount number").fill("7,5")
    choose(page, "Show the change")
    playwright.expect(page.get_by_text("'amount' is not a valid number: write it like 12 or 7.5.")).to_be_in_viewport(
        ratio=1
    )
    page.get_by_label("amount number").fill("7.5")
    page.get_by_label("now yes or no").select_option("no")
    page.get_by_label("currency one of 2").select_option("USD")
    page.get_by_label("lines JSON").fill('["a", 7]')
    choose(page, "Show the change")
    page.get_by_text("'lines[1]' must be string, not int").wait_for()
    page.get_by_label("lines JSON").fill('["b"]')
    page.get_by_label("note text").fill("thanks")
    choose(page, "Show the change")
    page.get_by_role("button", name="Sign: run it with this change").wait_for()
    rows = [row.inner_text().split() for row in page.locator("[data-changes] tbody tr").all()]
    assert rows == [
        ["amount", "85.5", "7.5"],
        ["currency", "–", '"USD"'],
        ["lines", '["a"]', '["b"]'],
        ["note", "null", '"thanks"'],
        ["now", "true", "false"],
    ]
    shot(page, "edit-change-390")
    choose(page, "Sign: run it with this change")
    page.get_by_text("Approved with your change.").wait_for()
    house.work()
    assert isinstance(house.world, Till)
    assert house.world.paid == [
        {"to": "\nann", "amount": 7.5, "parts": 2, "now": False, "currency": "USD", "note": "thanks", "lines": ["b"]}
    ]


def test_what_expires_while_it_is_open_is_refused(house: House, open_page: Callable[..., Any]) -> None:
    page = open_page()
    enter(page, house)
    request = house.pause(expires_s=4.0)
    page.goto(f"{house.origin}/requests/{request}")
    page.get_by_text("0:00, expired").wait_for()
    choose(page, "Approve")
    choose(page, "Sign: approve")
    page.get_by_text("expired while it was open").wait_for()
    assert house.work() == AgentStatus.COMPLETED
    assert house.world.sent == []


def test_the_button_that_signs_in_takes_no_click_before_its_script_is_there(
    house: House, open_page: Callable[..., Any]
) -> None:
    page = open_page()
    page.route("**/inbox.js*", lambda route: route.fulfill(body="", content_type="text/javascript"))
    page.goto(f"{house.origin}/sign-in")
    button = page.get_by_role("button", name="Sign in with a passkey")
    assert button.is_disabled()
    page.unroute_all()
    page.reload()
    assert button.is_enabled()
    assert button.evaluate("one => one === document.activeElement")


def test_a_call_that_changes_while_it_is_open_is_refused(house: House, open_page: Callable[..., Any]) -> None:
    page = open_page()
    enter(page, house)
    page.goto(f"{house.origin}/requests/{house.pause()}")
    choose(page, "Approve")
    house.change('"to":"bob"', '"to":"eve"')
    choose(page, "Sign: approve")
    page.get_by_text("no longer what was shown").wait_for()
    house.change('"to":"eve"', '"to":"bob"')
    choose(page, "Sign: approve")
    page.get_by_text("Approved. The agent's program takes it up.").wait_for()


def test_a_decision_whose_answer_is_late_or_lost_is_neither_left_nor_called_refused(
    house: House, open_page: Callable[..., Any]
) -> None:
    page, kept = open_page(), list[Any]()
    enter(page, house)
    page.goto(f"{house.origin}/requests/{house.pause()}")
    page.route("**/prepare", lambda route: kept.append(route))
    page.route("**/decide", lambda route: (route.fetch(), route.fulfill(status=504, body="<html>")))
    choose(page, "Approve")
    choose(page, "Sign: approve")
    playwright.expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
    page.keyboard.press("Escape")
    kept[0].continue_()
    page.get_by_text("may have been stored all the same: look again first").wait_for()
    choose(page, "Cancel")
    page.reload()
    page.get_by_text("Approved by ann").wait_for()


def test_what_a_change_marks_is_what_differs_and_no_text_is_lost(house: House, open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.goto(f"{house.origin}/sign-in")
    shown = "(pairs) => pairs.map(([a, b]) => [marked('del', a, b), marked('ins', b, a)].map((one) => one.innerHTML))"
    assert page.evaluate(shown, [["over 12,500 EUR", "over 1,250 EUR"], ["a", "a b"], ["p\\u0430y", "p\\u0431y"]]) == [
        ["over <del>12,500</del> EUR", "over <ins>1,250</ins> EUR"],
        ["a<del></del>", "a<ins> b</ins>"],
        ["p<del>\\u0430</del>y", "p<ins>\\u0431</ins>y"],
    ]
    rng, parts = random.Random(5), ["a", "ab", " ", "\\", "\\n", "\\u0430", '"', "<b>", "1.5", "ü", "\U0001f600", "-"]
    texts = ["".join(rng.choices(parts, k=rng.randrange(9))) for _ in range(600)]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    whole = "(pairs) => pairs.map(([a, b]) => [marked('del', a, b).textContent, marked('ins', b, a).textContent])"
    assert page.evaluate(whole, pairs) == [list(pair) for pair in pairs]


def test_what_is_left_is_minutes_and_seconds_and_from_an_hour_on_hours(
    house: House, open_page: Callable[..., Any]
) -> None:
    page = open_page()
    page.goto(f"{house.origin}/sign-in")
    left = {9: "0:09", 3_599: "59:59", 3_600: "1:00:00", 30_007: "8:20:07", 86_399: "23:59:59", 180_000: "2 d 2 h"}
    assert page.evaluate("(all) => all.map(clock)", [*left]) == [*left.values()]


def test_a_list_is_soon_the_latest_however_late_or_seldom_its_server_answers(
    house: House, open_page: Callable[..., Any]
) -> None:
    page, kept = open_page(), list[Any]()
    enter(page, house)
    page.route("**/requests/news", lambda route: kept.append(route))
    page.goto(f"{house.origin}/requests")
    house.pause(session="s1")  # after the list was made, and before its first news
    page.wait_for_timeout(100)
    lost = iter([True])
    page.route("**/requests", lambda route: route.fulfill(status=503) if next(lost, False) else route.continue_())
    page.unroute("**/requests/news")
    for route in kept:
        route.continue_()
    page.locator("[data-row]").wait_for()
    first = page.context.new_page()
    for _ in range(7):  # a browser has six connections for one host
        page.context.new_page().goto(f"{house.origin}/requests")
    first.goto(f"{house.origin}/requests")
    playwright.expect(first).to_have_title("(?) Requests")  # it has no news, and fetches the list again and again
    house.pause(mail("c", "eve"), session="s2")
    first.get_by_role("link", name="eve").wait_for()


def test_of_two_reviewers_the_second_reads_who_was_first(house: House, open_page: Callable[..., Any]) -> None:
    ann, bob = open_page(), open_page(DESK)
    enter(ann, house)
    enter(bob, house, "bob")
    request = house.pause()
    for page in (ann, bob):
        page.goto(f"{house.origin}/requests/{request}")
        choose(page, "Approve")
    choose(ann, "Sign: approve")
    ann.get_by_text("Approved. The agent's program takes it up.").wait_for()
    choose(bob, "Sign: approve")
    bob.get_by_text("ann decided this already: approved").wait_for()
    house.work()
    assert house.world.sent == [("bob", "hi")]


def test_where_four_eyes_are_asked_for_one_pair_runs_nothing(
    house_of_two: House, open_page: Callable[..., Any]
) -> None:
    house = house_of_two
    ann, bob = open_page(), open_page(DESK)
    enter(ann, house)
    enter(bob, house, "bob")
    request = house.pause(required=2)
    ann.goto(f"{house.origin}/requests/{request}")
    ann.get_by_text("0 of 2 approvals").wait_for()
    choose(ann, "Approve")
    choose(ann, "Sign: approve")
    ann.get_by_text("Approved. 1 more needed.").wait_for()
    ann.get_by_text("Waiting for another approval.").wait_for()
    ann.goto(f"{house.origin}/requests/{request}")
    ann.get_by_text("1 of 2 approvals").wait_for()
    read(ann)
    choose(ann, "Approve")
    choose(ann, "Sign: approve")
    ann.get_by_text("You decided this already. Somebody else has to agree.").wait_for()
    bob.goto(f"{house.origin}/requests/{request}")
    bob.get_by_text("Approved by ann").wait_for()
    choose(bob, "Approve")
    choose(bob, "Sign: approve")
    bob.get_by_text("Approved. The agent's program takes it up.").wait_for()
    assert house.work() == AgentStatus.COMPLETED
    assert house.world.sent == [("bob", "hi")]


def test_a_drill_looks_like_a_request_and_is_told_after_the_decision(
    house: House, open_page: Callable[..., Any]
) -> None:
    page, made = open_page(), drills(1, 1)[0][0]
    enter(page, house)
    house.pause()

    async def put() -> None:
        store = open_store(house.url)
        await StoredDrills(store).switch_on(plan(share=UNSEEN))
        now_s = await store.now()
        card = sealed_card(made.card.model_copy(update={"created_s": now_s - 5.0, "expires_s": now_s + 900.0}))
        body = made.model_copy(update={"card": card}).model_dump_json()
        await store.put(DRILL, card.id, body, expected=0, label="open")
        await store.aclose()

    elsewhere(put)
    page.goto(f"{house.origin}/requests")
    page.get_by_role("link", name="refund:").click()
    read(page)
    assert "drill" not in page.locator("main").inner_text().lower()
    page.locator("[data-do=approve]:not([disabled])").wait_for()
    choose(page, "Approve")
    choose(page, "Sign: approve")
    page.get_by_text("This was a drill, and nothing runs").wait_for()
    playwright.expect(page.locator("[data-fate]")).to_be_hidden()
    page.get_by_role("link", name="Next").click()
    page.get_by_role("link", name="send_email:").wait_for()
    page.goto(f"{house.origin}/reviewers")
    page.get_by_text("You answered 1 drill.").wait_for()
    assert house.world.sent == []


def test_nothing_is_approved_before_the_whole_call_was_on_screen(house: House, open_page: Callable[..., Any]) -> None:
    page = open_page()
    enter(page, house)
    page.goto(f"{house.origin}/requests/{house.pause(mail('c', 'bob', 'x ' * 6_000))}")
    approve = page.get_by_role("button", name="Approve", exact=True)
    approve.wait_for()
    assert approve.is_disabled()
    page.keyboard.press("a")
    assert approve.is_visible(), "the key does nothing yet"
    page.keyboard.press("End")
    page.wait_for_timeout(1_500)
    assert approve.is_disabled(), "the middle was jumped over"
    page.locator("[data-seen]").scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    assert approve.is_disabled(), "the end alone is not the whole"
    read(page)
    page.keyboard.press("a")
    page.get_by_role("button", name="Sign: approve").wait_for()
    page.keyboard.press("Escape")
    approve.wait_for()
    page.keyboard.press("Escape")
    page.wait_for_url("**/requests")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/requests/*")


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["390", "1280"])
def test_a_page_down_skips_nothing_and_a_key_scrolls_nothing(
    house: House, open_page: Callable[..., Any], size: dict[str, int]
) -> None:
    """A browser scrolls by nearly a whole window, of which the buttons cover a part."""
    page = open_page(size)
    enter(page, house)
    page.goto(f"{house.origin}/requests/{house.pause(mail('c', 'bob', 'x ' * 6_000))}")
    approve = page.get_by_role("button", name="Approve", exact=True)
    approve.wait_for()
    for _ in range(60):
        page.wait_for_timeout(600)
        if not approve.is_disabled():
            break
        page.keyboard.press("PageDown")
    assert not approve.is_disabled()
    page.evaluate("() => { scrollTo(0, 500) }")
    page.keyboard.press("r")
    page.get_by_role("button", name="Sign: reject").wait_for()
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") == 500


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["390", "1280"])
def test_each_field_of_a_long_form_is_on_the_screen_as_it_has_the_focus(
    house: House, open_page: Callable[..., Any], size: dict[str, int]
) -> None:
    page, house.world = open_page(size), Till()
    enter(page, house)
    page.goto(f"{house.origin}/requests/{house.pause(PAY)}")
    read(page)
    choose(page, "Edit")
    for _ in range(10):
        playwright.expect(page.locator("[data-edit] :focus")).to_be_in_viewport(ratio=1)
        page.keyboard.press("Tab")
    playwright.expect(page.locator("#message:focus")).to_be_in_viewport(ratio=1)


def test_everything_can_be_read_without_a_script(house: House, open_page: Callable[..., Any]) -> None:
    page = open_page()
    enter(page, house)
    state, request = page.context.storage_state(), house.pause()
    plain = open_page(java_script_enabled=False, storage_state=state, user_agent=page.evaluate("navigator.userAgent"))
    plain.goto(f"{house.origin}/requests")
    plain.get_by_role("link", name="send_email:").click()
    for text in ("no guarantee", "Mail Bob the offer, please.", "Deciding needs JavaScript"):
        assert text in plain.content()
    assert not plain.get_by_role("button", name="Approve").is_visible()
    assert request in plain.url


def test_calls_alike_are_decided_together_once_all_were_on_screen(house: House, open_page: Callable[..., Any]) -> None:
    page = open_page()
    enter(page, house)
    for name in ("bob", "joe", "eve"):
        house.pause(mail("c", name, "x " * 1_500), session=name)
    page.goto(f"{house.origin}/requests")
    page.get_by_role("link", name="Decide 3 similar calls together").click()
    approve = page.get_by_role("button", name="Approve", exact=True)
    approve.wait_for()
    assert approve.is_disabled()
    boxes = page.get_by_label("In this batch")
    boxes.nth(1).uncheck()
    for number in range(3):
        page.locator("[data-seen]").nth(number).scroll_into_view_if_needed()
        page.wait_for_timeout(400)
        assert approve.is_disabled(), "of each call the end alone was on the screen"
    read(page)
    boxes.nth(2).uncheck()
    page.get_by_text("A batch needs at least two calls.").wait_for()
    assert approve.is_disabled()
    boxes.nth(2).check()
    choose(page, "Approve")
    page.get_by_role("button", name="Sign: approve 2").wait_for()
    choose(page, "Cancel")
    choose(page, "Approve")
    choose(page, "Sign: approve 2")
    page.get_by_text("Approved. The agent's program takes it up.").nth(1).wait_for()
    for session in ("bob", "eve"):
        assert house.work(session) == AgentStatus.COMPLETED
    assert sorted(to for to, _ in house.world.sent) == ["bob", "eve"]
    page.get_by_role("link", name="Next").click()
    assert page.locator("[data-row]").count() == 1


def test_a_permit_is_granted_narrowed_and_revoked(house: House, open_page: Callable[..., Any]) -> None:
    page = open_page()
    enter(page, house)
    page.goto(f"{house.origin}/permits")
    page.get_by_role("heading", name="Grant a permit").click()
    page.get_by_label("Tool").fill("send_email")
    page.get_by_label("Wrong, at most").fill("2,5")
    choose(page, "Show the permit")
    page.get_by_text("Wrong, at most %: write a number like 12 or 2.5.").wait_for()
    page.get_by_label("Wrong, at most").fill("2.5")
    page.get_by_label("Conditions").fill("body=nonsense:1")
    choose(page, "Show the permit")
    page.get_by_text("NAME=RULE:VALUE").wait_for()
    page.get_by_label("Conditions").fill('to=in:["bob"]')
    choose(page, "Show the permit")
    promise = (
        'at most 2.5 % of send_email calls where to is one of ["bob"] go out wrong, at 95 %, as judged by the reviewers'
    )
    page.get_by_text(promise).wait_for()
    choose(page, "Sign: grant")
    page.get_by_text("right answers at the least").wait_for()
    page.get_by_role("heading", name="Narrow it").click()
    page.get_by_label("Conditions").fill('body=equals:"hi"')
    choose(page, "Show the narrower permit")
    choose(page, "Change it")
    choose(page, "Show the narrower permit")
    choose(page, "Sign: narrow")
    page.get_by_role("heading", name='send_email calls where body is "hi" and to is one of ["bob"]').wait_for()
    page.get_by_role("heading", name="Revoke it").click()
    page.get_by_label("Reason").fill("a complaint")
    choose(page, "Revoke")
    page.get_by_text("closed: ann revoked it: a complaint").first.wait_for()
    page.get_by_role("link", name="All permits").click()
    assert page.get_by_role("listitem").count() == 2


def test_a_deputy_decides_on_a_phone_in_somebodys_place_until_it_is_revoked(
    house: House, open_page: Callable[..., Any]
) -> None:
    ann, dan = open_page(), open_page()
    enter(ann, house)
    enter(dan, house, "dan", "deputy")
    request = house.pause(deputies=["dan"])
    dan.goto(f"{house.origin}/requests/{request}")
    dan.get_by_text("You have no active delegation").wait_for()
    shot(dan, "deputy-without-390")
    ann.goto(f"{house.origin}/delegations")
    ann.get_by_role("heading", name="New delegation").click()
    ann.get_by_label("Tools").fill("send_email")
    ann.get_by_label("Hours").fill("0.5")
    choose(ann, "Show the delegation")
    ann.get_by_text("dan in the place of ann").wait_for()
    ann.get_by_text("calls of send_email").wait_for()
    choose(ann, "Sign: delegate")
    ann.get_by_text("active", exact=True).wait_for()
    dan.reload()
    dan.get_by_text("You decide in the place of ann").wait_for()
    shot(dan, "deputy-390")
    choose(dan, "Approve")
    choose(dan, "Sign: approve")
    dan.get_by_text("Approved. The agent's program takes it up.").wait_for()
    shot(dan, "decided-390")
    assert house.work() == AgentStatus.COMPLETED
    assert house.world.sent == [("bob", "hi")]
    decided, open_still = (house.pause(session=name, deputies=["dan"]) for name in ("decided", "open"))
    for waits in (decided, open_still):
        dan.goto(f"{house.origin}/requests/{waits}")
        choose(dan, "Approve")
        if waits == decided:
            choose(dan, "Sign: approve")
            dan.get_by_text("Approved. The agent's program takes it up.").wait_for()
    ann.get_by_role("button", name="Revoke the delegation to dan").click()
    ann.get_by_text("was revoked, by ann").wait_for()
    choose(dan, "Sign: approve")
    dan.get_by_text("revoked").wait_for()
    shot(dan, "deputy-revoked-390")
    shot(ann, "revoked-390")
    for session in ("decided", "open"):
        assert house.work(session) == AgentStatus.WAITING_FOR_HUMAN
    assert house.world.sent == [("bob", "hi")]


LONG = mail("c", "p\u0430ypal\u200b@example.org", "Dear Bob,\n\nhere is the offer that we spoke about.\n\nBest\nAnn")


@pytest.mark.parametrize("dark", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["390", "1280"])
def test_every_page_can_be_read_by_everybody(
    house: House,
    open_page: Callable[..., Any],
    axe: str,
    size: dict[str, int],
    dark: str,
) -> None:
    page, found = open_page(size, color_scheme=dark, bypass_csp=True), {}

    def examine(name: str) -> None:
        shot(page, f"{name}-{size['width']}-{dark}")
        page.evaluate(axe)
        told = page.evaluate("axe.run({resultTypes: ['violations']})")
        found[name] = [
            (one["id"], [node["html"] for node in one["nodes"]][:3])
            for one in told["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0

    page.goto(house.invite("ann"))
    page.locator("[data-register]:not([disabled])").wait_for()
    examine("invitation")
    page.get_by_role("button", name="Make a passkey").click()
    page.get_by_role("link", name="Sign in").wait_for()
    examine("registered")
    page.get_by_role("link", name="Sign in").click()
    examine("sign-in")
    page.get_by_role("button", name="Sign in with a passkey").click()
    page.wait_for_url("**/requests")
    examine("empty")
    for number in range(3):
        request = house.pause(LONG, session=f"s{number}", expires_s=900.0 + number)
    page.goto(f"{house.origin}/requests")
    page.wait_for_timeout(1_200)
    examine("list")
    page.goto(f"{house.origin}/requests/{request}")
    page.wait_for_timeout(300)
    examine("card")
    read(page)
    choose(page, "Edit")
    examine("edit")
    page.get_by_label("body text").fill("Dear Bob")
    choose(page, "Show the change")
    page.get_by_text("Your change").wait_for()
    examine("change")
    for name in ("bob", "joe"):
        request = house.pause(mail("c", name, "Dear " + name), session=name)
    page.goto(f"{house.origin}/requests/{request}/alike")
    page.locator("[data-batch]").wait_for()
    examine("batch")
    page.goto(f"{house.origin}/me")
    examine("me")
    earned = house.earn()
    page.goto(f"{house.origin}/permits")
    page.get_by_role("heading", name="Grant a permit").click()
    examine("permits")
    page.get_by_label("Tool").fill("send_email")
    page.get_by_label("Conditions").fill('to=in:["bob@example.org","joe@example.org","eve@example.org"]')
    choose(page, "Show the permit")
    page.get_by_text("at most 2 %").wait_for()
    examine("granting")
    page.goto(f"{house.origin}/permits/{earned}")
    examine("permit")
    page.goto(f"{house.origin}/delegations")
    examine("no-delegations")
    deputy = open_page(size)
    enter(deputy, house, "dan", "deputy")
    page.reload()
    page.get_by_role("heading", name="New delegation").click()
    examine("delegating")
    page.get_by_label("Tools").fill("send_email\ntransfer_money_between_accounts_of_customers")
    choose(page, "Show the delegation")
    page.get_by_text("dan in the place of ann").wait_for()
    examine("delegation")
    choose(page, "Sign: delegate")
    page.get_by_text("active", exact=True).wait_for()
    examine("delegations")
    for path in ("reviewers", "health"):
        page.goto(f"{house.origin}/{path}")
        examine(path)
    page.goto(f"{house.origin}/requests/{'0' * 32}")
    examine("gone")
    assert {name: problems for name, problems in found.items() if problems} == {}
