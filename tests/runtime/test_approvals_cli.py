"""What a human sees of a request, what they sign, and what the command line says of it."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from grampus_uq import AgentRunner, ApprovalDecision, ApprovalPolicy, Ed25519Signer, PublicKeys, open_store
from grampus_uq.cli.approvals_command import command
from grampus_uq.cli.calibration_command import command as watch_command
from grampus_uq.errors import ConfigurationError, GrampusError
from grampus_uq.records.values import TokenLogprob, ToolCall
from grampus_uq.records.visible_text import arguments_in_short, legend, visible
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, World, runner


def cli(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(command, list(arguments), env={"COLUMNS": "600", **environment})


def mailing(body: Any = "hi", to: str = "bob") -> Sequence[Any]:
    call = ToolCall(id="b", name="send_email", arguments={"to": to, "body": body})
    return [answer("I will mail.", tool_calls=[call]), answer("Done.")]


class Desk:
    """A store in a file, with one session that waits."""

    def __init__(self, tmp_path: Path, turns: Sequence[Any] | None = None, **given: Any) -> None:
        self.url = f"sqlite:///{tmp_path / 'sessions.db'}"
        begun = {"session_id": "s", "started_by": given.pop("started_by", None)}
        self.world, self._turns, self._given = World(), turns or mailing(), given
        self.request = self.on_store(lambda store: self._runner(store).run(AGENT, "mail bob", **begun)).pending[0]

    def _runner(self, store: Any) -> AgentRunner:
        return runner(self.world, self._turns, store=store, **self._given)

    def on_store(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """The result of this work on the store, opened anew."""

        async def done() -> Any:
            store = open_store(self.url)
            try:
                return await work(store)
            finally:
                await store.aclose()

        return anyio.run(done)

    def stored(self, decision: ApprovalDecision) -> None:
        self.on_store(lambda store: Ledger(store).decide(decision))

    def resume(self) -> Any:
        return self.on_store(lambda store: self._runner(store).resume("mailer", "s"))

    def cli(self, *arguments: str, **environment: str) -> Result:
        return cli(*arguments, "--store", self.url, **environment)


# -- seeing -----------------------------------------------------------------------------------------------------------


def test_a_long_argument_hides_no_other_and_what_is_cut_says_how_much(tmp_path: Path) -> None:
    desk = Desk(tmp_path, mailing("x" * 5_000, "mallory"))
    listed = desk.cli("list").output
    assert 'to="mallory"' in listed
    assert "…(+4962 characters)" in listed
    shown = desk.cli("show", desk.request.id).output
    assert '  to = "mallory"' in shown
    assert "x" * 5_000 in shown


def test_of_many_arguments_the_list_says_how_many_it_leaves_out() -> None:
    assert arguments_in_short({f"a{n:02d}": n for n in range(15)}).endswith("a11=11 (+3 arguments)")


def test_invisible_bidirectional_and_look_alike_characters_are_marked_everywhere(tmp_path: Path) -> None:
    hostile = "p\u0430ypal\u200b\u202ecom"
    desk = Desk(tmp_path, mailing("hi", hostile))
    for output in (desk.cli("list").output, desk.cli("show", desk.request.id).output):
        assert "p\\u0430ypal\\u200b\\u202ecom" in output
        assert not {"\u0430", "\u200b", "\u202e"} & set(output)
    shown = desk.cli("show", desk.request.id).output
    assert "\\u0430 looks like 'a': CYRILLIC SMALL LETTER A" in shown
    assert "\\u202e is not visible: RIGHT-TO-LEFT OVERRIDE" in shown


def test_show_says_what_was_read_what_is_lowest_and_from_where_each_level_begins(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    shown = desk.cli("show", desk.request.id).output.splitlines()
    assert (
        "why        irreversible call: confidence 0.76, needs 0.80; lowest: P(True) 0.62; no confidence stated" in shown
    )
    assert "read       P(True) 0.62" in shown
    assert "thresholds uncertainty is low from 0.80, medium from 0.60, high from 0.40, critical below" in shown


def test_show_says_what_the_model_was_least_sure_of_and_what_else_was_likely(
    tmp_path: Path,
) -> None:
    (turn, end), evil = mailing(to="bob"), "p\u0430ul"
    written = TokenLogprob(token="bob", logprob=-0.7, top=(("bob", -0.7), (evil, -0.9)))
    pieces = ('{"name": "send_email", "arguments": {"to": "', '", "body": "hi"}}')
    first, last = (TokenLogprob(token=piece, logprob=0.0) for piece in pieces)
    desk = Desk(tmp_path, [turn.model_copy(update={"logprobs": (first, written, last)}), end])
    (line,) = [one for one in desk.cli("show", desk.request.id).output.splitlines() if one.startswith("doubt")]
    assert line == (
        "doubt      least sure of `to` (0.50; stated in a message); also likely: "
        'a value starting with "p\\u0430ul" (0.41)'
    )


def test_a_word_of_another_script_stays_readable() -> None:
    assert visible("Счёт для Ольги: 5 €") == "Счёт для Ольги: 5 €"
    assert legend("Счёт") == []


def test_the_digest_and_the_call_are_shown_and_what_is_signed_is_printed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    shown = desk.cli("show", desk.request.id).output
    assert f"digest     {desk.request.digest()}" in shown
    assert '-> send_email body="hi" to="bob"' in shown
    approved = desk.cli("approve", desk.request.id, "--as", "ann").output
    assert f"digest     {desk.request.digest()}" in approved
    assert '  to = "bob"' in approved
    assert "stored. The agent's program checks the signature" in approved
    assert "unsigned (no key is set)" in approved


def test_an_approval_of_a_digest_is_refused_when_what_waits_has_moved(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    async def swap() -> None:
        store = open_store(desk.url)
        loaded = await Ledger(store).load("mailer", "s")
        assert loaded is not None
        state, version = loaded
        (record,) = state.turn
        evil = record.proposed.model_copy(update={"arguments": {"to": "eve", "body": "all"}})
        moved = record.requests[0].model_copy(update={"call": evil})
        state.turn = [record.change(proposed=evil, call=evil, requests=(moved,))]
        await Ledger(store).save(state, version)
        await store.aclose()

    seen = desk.request.digest()
    anyio.run(swap)
    refused = desk.cli("approve", desk.request.id, "--as", "ann", "--digest", seen)
    assert refused.exit_code == 1
    assert "no longer what was shown" in refused.output
    assert json.loads(desk.cli("list", "--json").output)[0]["decisions"] == []


def test_after_an_approval_the_request_is_listed_as_decided_until_the_runner_takes_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert "pending" in desk.cli("list").output
    desk.cli("approve", desk.request.id, "--as", "ann")
    assert "decided, unchecked: approve by ann" in desk.cli("list").output
    again = desk.cli("reject", desk.request.id, "--as", "bob")
    assert "An earlier decision comes first if it is valid: decided, unchecked: approve by ann." in again.output
    assert desk.resume().status is AgentStatus.COMPLETED
    assert desk.world.sent == [("bob", "hi")]
    assert desk.cli("list").output == "No pending approvals.\n"


def test_a_decision_that_the_runner_refused_leaves_the_request_pending_in_the_list(tmp_path: Path) -> None:
    desk = Desk(tmp_path, approvals=ApprovalPolicy(signer=PublicKeys({"ann": Ed25519Signer.generate().public_key})))
    desk.cli("approve", desk.request.id, "--as", "bob")
    assert desk.resume().status is AgentStatus.WAITING_FOR_HUMAN
    for shown in (desk.cli("list"), desk.cli("show", desk.request.id)):
        assert "pending, refused or lapsed: approve by bob" in shown.output
        assert "unchecked" not in shown.output
    again = desk.cli("approve", desk.request.id, "--as", "ann")
    assert "An earlier decision" not in again.output
    assert "decided, unchecked: approve by ann" in desk.cli("list").output


def test_a_command_without_a_store_names_the_variable_that_holds_one() -> None:
    missing = CliRunner().invoke(command, ["list"])
    assert (missing.exit_code, "'--store' (env var: 'GRAMPUS_UQ_STORE')" in missing.output) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["show", "12345678"], ["approve", "12345678"], ["reject", "12345678"]],
    ids=lambda arguments: arguments[0],
)
def test_no_command_on_approvals_makes_a_store(tmp_path: Path, arguments: list[str]) -> None:
    found = cli(*arguments, "--store", f"sqlite:///{tmp_path / 'typo.db'}")
    assert isinstance(found.exception, GrampusError), found.output
    assert list(tmp_path.iterdir()) == []


def test_neither_does_showing_a_watch(tmp_path: Path) -> None:
    found = CliRunner().invoke(watch_command, ["show", "--store", f"sqlite:///{tmp_path / 'typo.db'}"])
    assert isinstance(found.exception, GrampusError), found.output
    assert list(tmp_path.iterdir()) == []


# -- signing ----------------------------------------------------------------------------------------------------------


def keys(tmp_path: Path, *principals: str) -> PublicKeys:
    """A key file for each, and what the runner has of them."""
    made: dict[str, str] = {}
    for principal in principals:
        made |= json.loads(cli("keygen", str(tmp_path / f"{principal}.key"), "--as", principal).output)
    return PublicKeys({principal: made[principal] for principal in principals if principal != "eve"})


def test_a_key_made_here_approves_and_a_strangers_decision_that_came_first_takes_nothing(tmp_path: Path) -> None:
    policy = ApprovalPolicy(signer=keys(tmp_path, "ann", "eve"))
    assert (tmp_path / "ann.key").stat().st_mode & 0o777 == 0o600
    desk = Desk(tmp_path, approvals=policy)
    for principal, key in (("eve", "eve"), ("ann", "eve")):
        stored = desk.cli("reject", desk.request.id, "--as", principal, "--key", str(tmp_path / f"{key}.key"))
        assert stored.exit_code == 0
    assert desk.resume().status is AgentStatus.WAITING_FOR_HUMAN
    refused = desk.cli("show", desk.request.id).output
    assert "'eve' is not among the approvers" in refused
    assert "its signature does not hold" in refused
    environment = {"GRAMPUS_UQ_APPROVAL_KEY_FILE": str(tmp_path / "ann.key")}
    assert "signed: stored" in desk.cli("approve", desk.request.id, "--as", "ann", **environment).output
    assert desk.resume().status is AgentStatus.COMPLETED
    assert desk.world.sent == [("bob", "hi")]


def test_who_gives_no_name_reads_whom_the_key_signs_for(tmp_path: Path) -> None:
    desk = Desk(tmp_path, approvals=ApprovalPolicy(signer=keys(tmp_path, "ann")))
    given = ("approve", desk.request.id, "--key", str(tmp_path / "ann.key"))
    said = desk.cli(*given, "--json", LOGNAME="deploy")
    assert "Signed as deploy, the login name: --as NAME signs as another." in said.stderr
    assert json.loads(said.stdout)["principal"] == "deploy"
    assert "login name" not in desk.cli(*given, "--as", "ann").output
    assert "login name" not in desk.cli("reject", desk.request.id, LOGNAME="deploy").output  # nothing is signed


def test_with_the_approvers_keys_at_hand_a_name_that_is_none_or_has_another_key_is_refused(tmp_path: Path) -> None:
    policy = ApprovalPolicy(signer=keys(tmp_path, "ann", "bob", "eve"))
    desk, known = Desk(tmp_path, approvals=policy), tmp_path / "keys.json"
    lines = {name: Ed25519Signer.from_file(tmp_path / f"{name}.key").public_key for name in ("ann", "bob")}
    known.write_text(json.dumps(lines))
    for key, name, whose in (("ann", "bob", "ann"), ("ann", "deploy", "ann"), ("eve", "ann", "nobody")):
        given = ("--key", str(tmp_path / f"{key}.key"), "--keys", str(known), "--as", name)
        refused = desk.cli("approve", desk.request.id, *given).exception
        assert isinstance(refused, ConfigurationError)
        assert f"the owner of the key by {known}: {whose}. Got '{name}'" in str(refused)
    environment = {"GRAMPUS_UQ_APPROVERS_FILE": str(known), "LOGNAME": "deploy"}
    assert isinstance(desk.cli("approve", desk.request.id, "--as", "eve", **environment).exception, ConfigurationError)
    said = desk.cli("approve", desk.request.id, "--key", str(tmp_path / "ann.key"), **environment).output
    assert "Signed as ann, the owner of the key." in said
    assert desk.resume().status is AgentStatus.COMPLETED


def test_a_user_whom_the_system_does_not_know_is_asked_for_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys(tmp_path, "ann")
    desk, key = Desk(tmp_path), ("--key", str(tmp_path / "ann.key"))
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2_147_483_001)
    refused = desk.cli("approve", desk.request.id, *key).exception
    assert isinstance(refused, ConfigurationError)
    assert "say who you are with --as" in str(refused)
    assert desk.cli("approve", desk.request.id, *key, "--as", "ann").exit_code == 0


def test_four_eyes_by_command_line(tmp_path: Path) -> None:
    desk = Desk(tmp_path, approvals=ApprovalPolicy(signer=keys(tmp_path, "ann", "bob"), required=2))
    decide = functools.partial(desk.cli, "approve", desk.request.id)
    for _ in range(2):
        decide("--as", "ann", "--key", str(tmp_path / "ann.key"))
        assert desk.resume().status is AgentStatus.WAITING_FOR_HUMAN
    decide("--as", "bob", "--key", str(tmp_path / "bob.key"))
    assert desk.resume().status is AgentStatus.COMPLETED
    assert desk.world.sent == [("bob", "hi")]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ('{"to": "eve", "to": "bob", "body": "x"}', "the name 'to' appears twice"),
        ('{"to": "bob", "body": NaN}', "NaN is not a JSON number"),
        ('{"to": "bob", "body": 1e999}', "hold inf, which is not a JSON number"),
        ('{"to": "\\ud800", "body": "x"}', "half a character"),
        ('{"to": "bob", "body": ' + "[" * 300 + "]" * 300 + "}", "are nested too deeply"),
        ("[1]", "a JSON object"),
    ],
)
def test_an_edit_that_is_no_plain_object_is_refused_at_once(tmp_path: Path, arguments: str, why: str) -> None:
    desk = Desk(tmp_path)
    refused = desk.cli("edit", desk.request.id, "--arguments", arguments)
    assert why in f"{refused.exception} {refused.output}"
    assert json.loads(desk.cli("list", "--json").output)[0]["decisions"] == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"to": "bob", "body": 5}, "'body' must be string, not int"),
        ({"to": "bob"}, "'body' is missing"),
        ({"to": "bob", "body": "x", "cc": "eve"}, "there is no argument 'cc'"),
    ],
    ids=str,
)
def test_an_edit_that_the_tool_cannot_take_uses_no_request_up_and_show_says_why(
    tmp_path: Path, arguments: dict[str, Any], why: str
) -> None:
    desk = Desk(tmp_path)
    refused = desk.cli("edit", desk.request.id, "--arguments", json.dumps(arguments))
    assert f"The tool does not accept this: {why}" in refused.output
    assert json.loads(desk.cli("list", "--json").output)[0]["decisions"] == []
    desk.stored(desk.request.decide("edit", principal="ann", arguments=arguments))  # by a client that checks nothing
    result = desk.resume()
    assert [request.id for request in result.pending] == [desk.request.id]
    assert why in desk.cli("show", desk.request.id).output
    desk.cli("edit", desk.request.id, "--arguments", '{"to": "robert", "body": "x"}')
    assert desk.resume().status is AgentStatus.COMPLETED
    assert desk.world.sent == [("robert", "x")]
