"""`grampus-uq permits` on a store: granted, narrowed, revoked, shown; nothing is made by looking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.cli import main
from grampus_uq.errors import ConfigurationError
from grampus_uq.gate.grants import within_limits
from grampus_uq.gate.permit_conditions import stricter
from grampus_uq.gate.permits import Permit
from grampus_uq.gate.requests import ApprovalPolicy
from grampus_uq.gate.signatures import PublicKeys, write_key
from grampus_uq.records.values import ToolCall
from grampus_uq.records.visible_text import visible
from grampus_uq.runtime.stored_permits import grant_permit
from grampus_uq.runtime.stores import open_store
from tests.runtime.test_stored_permits import Office


def invoke(*arguments: str, status: int = 0) -> Result:
    command = click.Command("grampus-uq", callback=lambda: main(["permits", *arguments]))
    result = CliRunner().invoke(command, [], env={"COLUMNS": "100"})
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


def made(*arguments: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(invoke(*arguments, "--json").stdout)
    return values


@pytest.fixture
def url(tmp_path: Path) -> str:
    async def create() -> None:
        store = open_store(f"sqlite:///{tmp_path}/s.db")
        await store.now()
        await store.put("nothing", "x", "{}", expected=0)
        await store.aclose()

    anyio.run(create)
    return f"sqlite:///{tmp_path}/s.db"


def work(url: str, answers: int, first: int = 0) -> None:
    async def run() -> None:
        store = open_store(url)
        office = Office(store)
        for number in range(first, first + answers):
            await office.run(f"r-{number}", body=f"number {number}")
        await store.aclose()

    anyio.run(run)


def test_no_command_hides_what_a_permit_is_about(url: str) -> None:
    scope = ["--tool", "refund\u3164", "--where", 'to=in:["p\u0430ypal"]', "--as", "\ufe0fann"]
    said = [invoke("grant", "--store", url, *scope).stdout, invoke("list", "--store", url).stdout]
    permit = json.loads(invoke("list", "--store", url, "--json").stdout)[0]["permit"]["id"]
    said.append(invoke("show", permit, "--store", url).stdout)
    for text in said:
        assert "refund\\u3164" in text
        assert "p\\u0430ypal" in text
        assert visible(text, keep="\n\t") == text


def test_so_many_right_answers_as_are_said_to_be_missing_earn_the_first_permission_and_no_fewer(url: str) -> None:
    said = invoke("grant", "--store", url, "--tool", "send_email", "--at-most", "0.3", "--assurance", "0.5").stdout
    (listed,) = json.loads(invoke("list", "--store", url, "--json").stdout)
    permit, number = listed["permit"]["id"], int(said.split("at least ")[1].split()[0])
    for answers in range(number):
        shown = invoke("show", permit, "--store", url).stdout
        assert f"missing    {number - answers} right answers at the least" in shown
        work(url, 1, first=answers)
    assert "missing    nothing" in invoke("show", permit, "--store", url).stdout
    revoked = invoke("revoke", permit, "--store", url)
    assert "is closed" in revoked.stdout
    assert "missing    a new permit" in invoke("show", permit, "--store", url).stdout


def test_a_permit_is_granted_listed_shown_and_revoked(url: str) -> None:
    granted = made("grant", "--store", url, "--tool", "send_email", "--at-most", "0.5", "--as", "ann")
    permit = Permit.model_validate(granted["permit"])
    assert (permit.tool, permit.epsilon, permit.principal, granted["signed"]) == ("send_email", 0.5, "ann", False)
    work(url, 7)
    (listed,) = json.loads(invoke("list", "--store", url, "--json").stdout)
    shown = made("show", permit.id[:8], "--store", url)
    assert shown["log_agrees"] is True
    assert {**listed, "log_agrees": True} == shown
    assert shown["state"]["answers"] + shown["state"]["released"] == 7
    assert shown["sentence"].startswith(("goes ahead: at most 50 % of send_email calls", "asks about all"))
    lines = invoke("show", permit.id[:8], "--store", url).stdout.splitlines()
    assert [line.split(" ")[0] for line in lines][:5] == ["permit", "scope", "status", "promise", "granted"]
    assert lines[-1] == "log        reproduces this state"
    rows = invoke("list", "--store", url).stdout.splitlines()
    assert rows[1].split("\t")[:2] == [permit.id[:8], "send_email calls"]
    closed = made("revoke", permit.id[:8], "--store", url, "--as", "bob", "-m", "a complaint")
    assert closed == {"permit": permit.id, "closed": "bob revoked it: a complaint"}
    after = made("show", permit.id[:8], "--store", url)
    assert after["state"]["closed"] == "bob revoked it: a complaint"
    assert after["log_agrees"] is True
    assert after["stands"] == "closed: bob revoked it: a complaint"


def test_a_log_that_was_changed_is_named(url: str) -> None:
    permit = made("grant", "--store", url, "--tool", "send_email", "--as", "ann")["permit"]["id"]
    work(url, 3)

    async def change() -> None:
        store = open_store(url)
        document = await store.get("permit-state", permit)
        assert document is not None
        values = json.loads(document.body) | {"released": 99}
        await store.put("permit-state", permit, json.dumps(values), expected=document.version)
        await store.aclose()

    anyio.run(change)
    assert made("show", permit, "--store", url)["log_agrees"] is False
    assert "DOES NOT REPRODUCE THIS STATE" in invoke("show", permit, "--store", url).stdout


SCOPE = 'refund calls where amount is at most 20 and currency is "EUR"'


def test_narrowing_adds_conditions_never_takes_any_and_begins_with_nothing(url: str) -> None:
    old = made("grant", "--store", url, "--tool", "refund", "--where", "amount=max:50", "--as", "ann")["permit"]
    given = ("--store", url, "--where", "amount=max:20", "--where", 'currency=equals:"EUR"', "--at-most", "0.01")
    new = made("narrow", old["id"], *given, "--as", "ann")["permit"]
    assert new["limits"] == {"amount": {"max": 20}, "currency": {"equals": "EUR"}}
    assert (new["epsilon"], new["id"] == old["id"]) == (0.01, False)
    assert new["expires_s"] == old["expires_s"]
    closed = made("show", old["id"], "--store", url)
    assert closed["state"]["closed"] == f"ann narrowed it to {new['id'][:8]}"
    for wider in ("amount=max:30", "currency=equals:USD"):
        invoke("narrow", new["id"], "--store", url, "--where", wider, status=2)
    later = made("narrow", new["id"], "--store", url, "--days", "3000", "--at-most", "0.4", "--as", "ann")["permit"]
    assert (later["expires_s"], later["epsilon"]) == (old["expires_s"], 0.01)
    said = made("narrow", later["id"], "--store", url, "--miss-rate", "0.25", "--miss-assurance", "0.9", "--as", "ann")
    measured = said["permit"]
    both = "at 85 % (95 % for the answers, 90 % for reviewers who miss at most 25 %)"
    assert said["promise"].endswith(f"at most 1.34 % of {SCOPE} go out wrong, {both}")
    printed = invoke("narrow", measured["id"], "--store", url, "--as", "ann", "--miss-rate", "0.2").stdout
    assert "go out wrong, at 90 % (95 % for the answers, 95 % for reviewers who miss at most 20 %)" in printed
    assert (measured["miss_rate"], measured["limits"]) == (0.25, later["limits"])
    assert made("show", later["id"], "--store", url)["state"]["closed"] == f"ann narrowed it to {measured['id'][:8]}"
    granted = invoke("grant", "--store", url, "--tool", "refund", "--as", "ann", "--miss-rate", "0.25").stdout
    both = "at 90 % (95 % for the answers, 95 % for reviewers who miss at most 25 %)"
    assert f"promise    at most 2.67 % of refund calls go out wrong, {both}" in granted


def test_what_was_closed_is_not_narrowed_into_a_permit_that_stands(url: str) -> None:
    old = made("grant", "--store", url, "--tool", "refund", "--as", "ann")["permit"]["id"]
    made("revoke", old, "--store", url, "--as", "ann")
    refused = invoke("narrow", old, "--store", url, "--days", "1", status=1)
    assert f"Permit {old[:8]} is closed or expired: grant a new one." in refused.stderr
    assert len(made("list", "--store", url)) == 1
    said = made("revoke", old, "--store", url, "--as", "bob", "--message", "later")
    assert said == {"permit": old, "closed": "ann revoked it"}, "what stands, not what was asked for"


def test_what_has_expired_is_not_narrowed_into_a_permit_that_never_stands(url: str) -> None:
    permit = Permit(tool="refund", principal="ann", expires_s=1.0)

    async def grant() -> None:
        store = open_store(url)
        await grant_permit(store, permit)
        await store.aclose()

    anyio.run(grant)
    refused = invoke("narrow", permit.id, "--store", url, "--days", "1", status=1)
    assert f"Permit {permit.id[:8]} is closed or expired: grant a new one." in refused.stderr
    assert len(made("list", "--store", url)) == 1


def test_a_grant_says_which_permits_stand_for_the_tool_already(url: str) -> None:
    """A call that both cover goes ahead only where both let it: what the first one earned counts for nothing there."""
    first = made("grant", "--store", url, "--tool", "send_email", "--as", "ann")
    other = made("grant", "--store", url, "--tool", "refund", "--as", "ann")
    second = made("grant", "--store", url, "--tool", "send_email", "--as", "bob")
    assert "beside" not in first | other
    assert second["beside"].startswith(f"{first['permit']['id'][:8]} (asks about everything): what several permits")
    for one in (first, second):
        made("revoke", one["permit"]["id"], "--store", url, "--as", "ann")
    assert "beside" not in made("grant", "--store", url, "--tool", "send_email", "--as", "ann")


def test_a_narrowing_says_which_permit_it_closes_and_what_stood(url: str) -> None:
    old = made("grant", "--store", url, "--tool", "send_email", "--as", "ann")["permit"]["id"]
    work(url, 3)
    new = made("narrow", old, "--store", url, "--as", "ann", "--at-most", "0.01")
    assert new["replaces"] == f"{old[:8]} (asks about everything), which this one closes"
    work(url, 1, first=3)

    async def spend() -> None:
        store = open_store(url)
        document = await store.get("permit-state", new["permit"]["id"])
        assert document is not None
        values = json.loads(document.body)
        values["earned"]["log_lasting_peak"] = [50.0]
        await store.put("permit-state", document.key, json.dumps(values), expected=document.version)
        await store.aclose()

    anyio.run(spend)
    printed = invoke("narrow", new["permit"]["id"], "--store", url, "--as", "ann", "--days", "3").stdout
    stood = f"{new['permit']['id'][:8]} (withdrawn for good: asks about everything), which this one closes"
    assert f"replaces   {stood}" in printed


@pytest.mark.parametrize(
    ("option", "other"),
    [
        (("--miss-assurance", "0.9"), "--miss-rate"),
        (("--nothing-in-force",), "--from"),
        (("--profile", "nowhere.json"), "--from"),
        (("--agent-version", "2"), "--from"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused_by_the_one_that_it_belongs_to(
    option: tuple[str, ...], other: str, url: str
) -> None:
    refused = invoke("grant", "--store", url, "--tool", "refund", "--as", "ann", *option, status=2)
    assert f"{option[0]} belongs to {other}." in refused.stderr
    assert json.loads(invoke("list", "--store", url, "--json").stdout) == []


def test_a_permit_is_signed_with_the_key_that_is_given(url: str, tmp_path: Path) -> None:
    signer = write_key(tmp_path / "ann.pem")
    key = ("--key", str(tmp_path / "ann.pem"))
    granted = made("grant", "--store", url, "--tool", "refund", "--as", "ann", *key)
    assert granted["signed"] is True
    policy = ApprovalPolicy(signer=PublicKeys({"ann": signer.public_key}))
    policy.check_grant(Permit.model_validate(granted["permit"]), "permit")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("list",), 1),
        (("show", "deadbeef"), 1),
        (("revoke", "deadbeef"), 1),
        (("narrow", "deadbeef"), 1),
        (("grant", "--tool", "x"), 1),
    ],
)
def test_no_command_makes_a_store(arguments: tuple[str, ...], status: int, tmp_path: Path) -> None:
    invoke(*arguments, "--store", f"sqlite:///{tmp_path}/nowhere.db", status=status)
    assert list(tmp_path.iterdir()) == []


def test_where_recorded_answers_cannot_be_read_nothing_is_granted_and_it_says_so(url: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\n")
    output = invoke("grant", "--store", url, "--tool", "x", "--from", str(tmp_path), status=1).output
    assert "bad.jsonl:1: is not UTF-8" in output
    assert "left out" not in output
    assert json.loads(invoke("list", "--store", url, "--json").stdout) == []


@pytest.mark.parametrize(
    "where", ["amount", "amount=max", "amount=max:x", "amount=most:5", "=max:5", "amount=in:5", "amount=max:NaN"]
)
def test_a_condition_that_is_none_is_refused(where: str, url: str) -> None:
    assert "Traceback" not in invoke("grant", "--store", url, "--tool", "x", "--where", where, status=2).output


def test_a_name_that_is_none_is_refused_in_a_sentence(url: str) -> None:
    refused = invoke("grant", "--store", url, "--tool", "", "--as", "ann", status=2)
    assert "The 'tool' parameter of `Permit` must be a string with at least 1 character. Got ''." in refused.stderr


def test_hostile_text_is_shown_without_its_control_characters(url: str) -> None:
    hostile = "pay\x1b[2J\u202e"
    permit = made("grant", "--store", url, "--tool", hostile, "--as", "ann\x1b]0;x\x07")["permit"]["id"]
    for command in (("list",), ("show", permit)):
        output = invoke(*command, "--store", url).output
        assert "\x1b" not in output
        assert "\u202e" not in output
    invoke("show", "dead", "--store", url, status=1)


# -- narrowing ---------------------------------------------------------------------------------------------------------

VALUES = st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 1.5, -0.0, "1", "a"])
RULES = st.one_of(
    st.fixed_dictionaries({"equals": VALUES}),
    st.fixed_dictionaries({"in": st.lists(VALUES, max_size=3)}),
    st.fixed_dictionaries({"max": st.integers(-2, 2) | st.floats(-2, 2)}, optional={"min": st.integers(-2, 2)}),
)


@given(RULES, RULES, VALUES)
def test_what_a_narrowed_permit_covers_the_permit_before_it_covered(
    old: dict[str, Any], new: dict[str, Any], value: Any
) -> None:
    try:
        both = old | stricter(old, new)
    except ConfigurationError:
        return
    call = ToolCall(name="pay", arguments={"x": value})
    assert not within_limits(call, {"x": both}) or within_limits(call, {"x": old})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"in": [1]}, {"in": [True]}),
        ({"equals": 1}, {"equals": True}),
        ({"in": [1]}, {"in": [1.0]}),
        ({"equals": 0}, {"equals": False}),
        ({"max": 5}, {"max": 6}),
        ({"min": 5}, {"min": 4}),
    ],
)
def test_what_would_widen_is_refused_and_values_compare_as_the_permit_compares_them(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match="stricter than"):
        stricter(old, new)
    assert stricter(old, dict(old)) == old
