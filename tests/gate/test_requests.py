"""What a decision is bound to, who may decide, and how many of them it takes."""

from __future__ import annotations

import hashlib
import hmac
import json
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ApprovalError, ConfigurationError
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind, ApprovalPolicy, ApprovalRequest, rules_digest
from grampus_uq.gate.seal import Seal, session_place
from grampus_uq.gate.signatures import Ed25519Signer, HmacSigner, PublicKeys, signer_from_environment, write_key
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.records.vocabulary import UncertaintyLevel

ANN, BOB, EVE = Ed25519Signer.generate(), Ed25519Signer.generate(), Ed25519Signer.generate()
KEYS = PublicKeys({"ann": ANN.public_key, "bob": BOB.public_key})
POLICY = ApprovalPolicy(signer=KEYS)
TWO = ApprovalPolicy(signer=KEYS, required=2)
PAY = ToolCall(id="c1", name="pay", arguments={"to": "A", "amount": 5})


def request(**given: Any) -> ApprovalRequest:
    base: dict[str, Any] = {
        "agent_id": "clerk", "session_id": "s", "run_id": "r", "step_id": "llm_1", "call": PAY, "rules": "p",
        "level": UncertaintyLevel.MEDIUM, "rule": "irreversible_override", "created_s": 100.0, "expires_s": 200.0,
    }  # fmt: skip
    return ApprovalRequest(**base | given)


ASKED = request()
OTHERWISE: list[dict[str, Any]] = [
    {"agent_id": "other"},
    {"session_id": "t"},
    {"run_id": "q"},
    {"step_id": "llm_2"},
    {"rules": "looser"},
    {"rule": "tier"},
    {"unknown_outcome": True},
    {"expires_s": None},
    {"expires_s": 9e9},
    {"call": None},
    {"call": PAY.model_copy(update={"id": "c2"})},
    {"call": PAY.model_copy(update={"name": "refund"})},
    {"call": PAY.model_copy(update={"arguments": {"to": "B", "amount": 5}})},
    {"call": PAY.model_copy(update={"arguments": {"to": "A", "amount": 5.0}})},
    {"call": PAY.model_copy(update={"arguments": {"to": "A", "amount": 5, "note": ""}})},
]


@pytest.mark.parametrize("other", OTHERWISE, ids=str)
def test_a_decision_holds_for_no_request_that_differs_in_anything_it_is_bound_to(other: dict[str, Any]) -> None:
    decision = ANN.sign(ASKED.decide("approve", principal="ann"))
    POLICY.check(ASKED, decision, now_s=150.0)
    with pytest.raises(ApprovalError, match="another call"):
        POLICY.check(ASKED.model_copy(update=other), decision, now_s=150.0)


def test_the_request_id_is_bound_as_well() -> None:
    decision = ANN.sign(ASKED.decide("approve", principal="ann"))
    again = request()
    with pytest.raises(ApprovalError, match="is on request"):
        POLICY.check(again, decision, now_s=150.0)
    with pytest.raises(ApprovalError, match="another call"):
        POLICY.check(again, decision.model_copy(update={"request_id": again.id}), now_s=150.0)


def test_only_the_principals_own_key_signs_for_a_principal() -> None:
    unsigned = ASKED.decide("approve", principal="ann")
    for bad in (
        unsigned,
        EVE.sign(unsigned),
        BOB.sign(unsigned),
        ANN.sign(unsigned).model_copy(update={"principal": "bob"}),
        ANN.sign(unsigned).model_copy(update={"signature": "ed25519:"}),
        ANN.sign(unsigned).model_copy(update={"signature": "ed25519:é"}),
        unsigned.model_copy(update={"signature": HmacSigner("k" * 32).signature(unsigned.signed_text())}),
        EVE.sign(ASKED.decide("approve", principal="eve")),
    ):
        with pytest.raises(ApprovalError):
            POLICY.check(ASKED, bad, now_s=150.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"principal": "x" * 201}, "The principal of a decision: String should have at most 200 characters."),
        ({"principal": ""}, "The principal of a decision: String should have at least 1 character."),
        ({"principal": "ann", "message": "x" * 100_001}, "The message of a decision: String should have at most 1"),
        ({"principal": "ann", "message": "\ud800"}, "The message of a decision: Input should be a valid string"),
    ],
)
def test_what_no_decision_holds_is_refused_in_words_that_name_what(given: dict[str, str], words: str) -> None:
    with pytest.raises(ApprovalError) as refused:
        ASKED.decide("reject", **given)
    assert str(refused.value).startswith(words)


@given(st.sampled_from(["kind", "principal", "message", "arguments", "decided_s", "digest", "request_id"]))
def test_a_signature_covers_every_field_of_a_decision(field: str) -> None:
    decision = ANN.sign(ASKED.decide("edit", principal="ann", arguments={"to": "A", "amount": 1}))
    other: dict[str, Any] = {
        "kind": ApprovalKind.APPROVE, "principal": "bob", "message": "x", "arguments": {"to": "B", "amount": 1},
        "decided_s": 1.0, "digest": "0" * 64, "request_id": "x",
    }  # fmt: skip
    with pytest.raises(ApprovalError):
        POLICY.check(ASKED, decision.model_copy(update={field: other[field]}), now_s=150.0)


def test_a_grants_signature_is_none_of_a_decision() -> None:
    """What is signed says what it is: text that one record signs is never the text of another kind of record."""
    grant = ANN.sign(Grant(tool="pay", principal="ann", expires_s=9e9))
    POLICY.check_grant(grant)
    assert grant.signed_text().startswith(b"grampus_uq grant 2\n")
    assert ASKED.decide("approve", principal="ann").signed_text().startswith(b"grampus_uq decision 2\n")
    with pytest.raises(ApprovalError):
        POLICY.check_grant(grant.model_copy(update={"max_uses": 10**6}))


# -- four eyes --------------------------------------------------------------------------------------------------------


def said(kind: str, signer: Ed25519Signer, principal: str, **given: Any) -> ApprovalDecision:
    return signer.sign(ASKED.decide(kind, principal=principal, **given))


def test_two_required_approvals_are_of_two_principals_and_of_the_same_arguments() -> None:
    ann, again, bob = (
        said("approve", ANN, "ann"),
        said("approve", ANN, "ann", message="really"),
        said("approve", BOB, "bob"),
    )
    edit = said("edit", BOB, "bob", arguments={"to": "A", "amount": 1})
    for few in ([ann], [ann, again], [ann, edit], [ann, bob.model_copy(update={"signature": None})]):
        assert TWO.holding(ASKED, [(d, 150.0) for d in few])[0] == ()
    assert TWO.holding(ASKED, [(ann, 150.0), (edit, 151.0), (bob, 152.0)])[0] == (ann, bob)


def test_one_rejection_settles_what_takes_two_approvals_unless_both_came_before_it() -> None:
    ann, bob, no = said("approve", ANN, "ann"), said("approve", BOB, "bob"), said("reject", BOB, "bob")
    assert TWO.holding(ASKED, [(ann, 150.0), (no, 151.0), (bob, 152.0)])[0] == (no,)
    assert TWO.holding(ASKED, [(ann, 150.0), (bob, 151.0), (no, 152.0)])[0] == (ann, bob)


SCOPED = Grant(
    tool="pay", limits={"amount": {"max": 5}}, agent_id="clerk", session_id="s", principal="a", expires_s=9.0
)
COVERED = {"call": PAY, "agent_id": "clerk", "session_id": "s", "now_s": 8.9}


@pytest.mark.parametrize(
    ("limit", "within", "beyond"),
    [
        ({"max": 5}, [5, 4.9, -1], [5.1, 6, True, "4", None, float("nan"), [1]]),
        ({"min": 5}, [5, 5.1, 6], [4.9, 4, True, "6", None, float("nan"), [9]]),
        ({"min": 1, "max": 5}, [1, 3, 5], [0, 6]),
        ({"equals": 1}, [1], [1.0, True, 2, "1", None]),
        ({"equals": {"b": [1], "a": 2}}, [{"a": 2, "b": [1]}], [{"a": 2}, {"a": 2, "b": [1.0]}]),
        ({"in": ["A", 1]}, ["A", 1], ["B", 1.0, True, None, ["A", 1]]),
        ({"in": "ABC"}, [], ["A", "ABC"]),
        ({"in": []}, [], ["A", None]),
        ({"max": "9"}, [], [5, "5"]),
        ({"min": False}, [], [5]),
        ({"max": 5, "equals": 3}, [3], [4, 2]),
        ({"equals": 4, "max": 3}, [], [4, 3]),
        ({"in": [4, 2], "min": 3}, [4], [2, 5]),
        ({"below": 9}, [], [5]),
        ({"max": 9, "below": 9}, [], [5]),
        ({}, [], [5, None]),
    ],
    ids=str,
)
def test_a_limit_of_a_grant_holds_for_just_these_values(limit: Any, within: list[Any], beyond: list[Any]) -> None:
    grant = SCOPED.model_copy(update={"limits": {"amount": limit}})
    for values, holds in ((within, True), (beyond, False)):
        for value in values:
            call = PAY.model_copy(update={"arguments": {"to": "A", "amount": value}})
            assert grant.covers(**COVERED | {"call": call}) is holds, value


def test_a_grant_covers_its_tool_in_its_scope_until_its_time_and_with_every_argument_that_it_limits() -> None:
    assert SCOPED.covers(**COVERED)
    for other in (
        {"now_s": 9.0},
        {"agent_id": "s"},
        {"session_id": "clerk"},
        {"call": PAY.model_copy(update={"name": "refund"})},
        {"call": PAY.model_copy(update={"arguments": {"to": "A"}})},
    ):
        assert not SCOPED.covers(**COVERED | other), other
    anywhere = SCOPED.model_copy(update={"agent_id": None, "session_id": None})
    assert anywhere.covers(**COVERED | {"agent_id": "x", "session_id": "y"})


@pytest.mark.parametrize("expires_s", [0.0, -1.0, float("nan")])
def test_a_request_without_any_time_to_decide_is_a_mistake(expires_s: float) -> None:
    with pytest.raises(ConfigurationError, match="above 0 seconds"):
        ApprovalPolicy(expires_s=expires_s)
    for required in (0, "2", 1.0):
        with pytest.raises(ConfigurationError, match=rf"a whole number.* Got {required!r}\.$"):
            ApprovalPolicy(required=required)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"Got 4\. \(Approvers: 2\.\)"):
        ApprovalPolicy(required=4, approvers=["ann", "bob"])
    assert ApprovalPolicy(expires_s=0.5).expiry(10.0) == 10.5
    assert ApprovalPolicy().expiry(10.0) is None


def test_a_decision_of_an_unknown_kind_is_refused_with_the_kinds_there_are() -> None:
    with pytest.raises(ConfigurationError, match="one of approve, edit, reject, respond"):
        ASKED.decide("aprove", principal="ann")


def test_approvers_narrow_who_may_decide_among_those_who_have_a_key() -> None:
    only_bob = ApprovalPolicy(signer=KEYS, approvers=["bob"])
    only_bob.check(ASKED, said("approve", BOB, "bob"), now_s=150.0)
    with pytest.raises(ApprovalError, match="not among the approvers"):
        only_bob.check(ASKED, said("approve", ANN, "ann"), now_s=150.0)
    with pytest.raises(ApprovalError, match="not among the approvers"):
        only_bob.check_grant(ANN.sign(Grant(tool="pay", principal="ann", expires_s=9e9)))
    anybody = ApprovalPolicy()
    anybody.check(ASKED, ASKED.decide("approve", principal="mallory"), now_s=150.0)
    assert POLICY.approvers == {"ann", "bob"}


@pytest.mark.parametrize("kind", list(ApprovalKind))
def test_just_an_edit_carries_arguments_and_only_a_call_can_be_edited(kind: ApprovalKind) -> None:
    for arguments in (None, {"to": "A", "amount": 1}):
        decision = ANN.sign(ASKED.decide(kind, principal="ann", arguments=arguments))
        if (kind is ApprovalKind.EDIT) is (arguments is not None):
            POLICY.check(ASKED, decision, now_s=150.0)
        else:
            with pytest.raises(ApprovalError, match="An edit carries"):
                POLICY.check(ASKED, decision, now_s=150.0)
    run = request(call=None)
    about_run = ANN.sign(run.decide("edit", principal="ann", arguments={}))
    with pytest.raises(ApprovalError, match="no call"):
        POLICY.check(run, about_run, now_s=150.0)
    POLICY.check(run, ANN.sign(run.decide("approve", principal="ann")), now_s=150.0)


@pytest.mark.parametrize("other", ["Ann", "ann ", "a\u200bnn", "ann\u180b", "\uff41nn", "\ufffcANN"])
def test_two_spellings_of_one_name_are_one_person_where_two_are_required(other: str) -> None:
    both = ApprovalPolicy(signer=PublicKeys({"ann": ANN.public_key, other: EVE.public_key}), required=2)
    decisions = [key.sign(ASKED.decide("approve", principal=name)) for key, name in ((ANN, "ann"), (EVE, other))]
    assert both.holding(ASKED, [(one, 150.0) for one in decisions]) == ((), [])


def test_who_started_the_run_is_stored_with_a_request_and_a_request_of_nobodys_is_written_as_before() -> None:
    asked = ASKED.model_copy(update={"started_by": "ann"})
    assert asked.model_dump()["started_by"] == "ann"
    assert ApprovalRequest.model_validate_json(asked.model_dump_json()) == asked
    assert asked.digest() != ASKED.digest()
    assert set(asked.model_dump()) - set(ASKED.model_dump()) == {"started_by"}


def test_the_rules_of_a_request_change_with_who_may_decide_and_with_the_policy() -> None:
    policies = [
        ApprovalPolicy(),
        POLICY,
        TWO,
        ApprovalPolicy(signer=KEYS, approvers=["ann"]),
        ApprovalPolicy(required=2),
    ]
    digests = {rules_digest(approvals, {"low": low}) for approvals in policies for low in (0.7, 0.8)}
    assert len(digests) == 2 * len(policies)
    assert rules_digest(POLICY) == rules_digest(ApprovalPolicy(signer=KEYS, approvers=["bob", "ann"]), None)
    assert rules_digest(POLICY) not in digests
    assert TWO.rules() == {"signed": True, "approvers": ["ann", "bob"], "required": 2}
    assert ApprovalPolicy().rules() == {"signed": False, "approvers": None, "required": 1}
    others = ApprovalPolicy(others_decide=True, deputies=["dan", "cleo"]).rules()
    assert others == ApprovalPolicy().rules() | {"others_decide": True, "deputies": ["cleo", "dan"]}


def test_who_holds_the_shared_key_seals_and_a_policy_of_public_keys_seals_for_itself_only() -> None:
    def holds(one: ApprovalPolicy, other: ApprovalPolicy) -> bool:
        assert one.seal is not None
        assert other.seal is not None
        return other.seal.authentic("p", one.seal.sealed("p", {"a": 1}))

    shared = [ApprovalPolicy(signer=HmacSigner("k" * 32)) for _ in range(2)]
    assert holds(*shared)
    assert not holds(shared[0], ApprovalPolicy(signer=HmacSigner("j" * 32)))
    assert holds(POLICY, POLICY)
    assert not holds(POLICY, ApprovalPolicy(signer=KEYS))
    assert ApprovalPolicy().seal is None
    mine = Seal("a key of the host's, long enough")
    assert ApprovalPolicy(seal=mine).seal is mine is ApprovalPolicy(signer=KEYS, seal=mine).seal


def test_a_seal_comes_from_the_environment_where_its_key_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAMPUS_UQ_SEAL_KEY", raising=False)
    assert Seal.from_environment() is None
    monkeypatch.setenv("GRAMPUS_UQ_SEAL_KEY", "")
    assert Seal.from_environment() is None
    monkeypatch.setenv("GRAMPUS_UQ_SEAL_KEY", "0123456789abcdef")
    monkeypatch.setenv("OTHER", "fedcba9876543210")
    seal, other = Seal.from_environment(), Seal.from_environment("OTHER")
    assert seal is not None
    assert other is not None
    assert seal.mac("p", "t") == Seal(b"0123456789abcdef").mac("p", "t") != other.mac("p", "t")
    with pytest.raises(ConfigurationError, match="16 bytes"):
        Seal("0123456789abcde")


def test_a_grant_of_one_is_no_leave_where_two_are_required() -> None:
    with pytest.raises(ApprovalError, match="requires several"):
        TWO.check_grant(ANN.sign(Grant(tool="pay", principal="ann", expires_s=9e9)))


@pytest.mark.parametrize(
    "spelt",
    [
        str,
        str.upper,
        lambda key: key.removeprefix("ed25519:"),
        lambda key: f" {key[:20]} {key[20:]}\t",
        lambda key: [key],
    ],
)
def test_one_key_under_two_names_is_refused_and_so_are_more_signatures_than_approvers(spelt: Any) -> None:
    with pytest.raises(ConfigurationError, match="of one principal each"):
        PublicKeys({"ann": ANN.public_key, "bob": spelt(ANN.public_key)})
    with pytest.raises(ConfigurationError, match="number of approvers"):
        ApprovalPolicy(signer=KEYS, required=3)
    with pytest.raises(ConfigurationError, match="Verifier"):
        ApprovalPolicy(signer=object())  # type: ignore[arg-type]  # what a user may pass


@given(st.permutations(range(5)))
def test_what_does_not_hold_never_takes_the_place_of_what_does(order: list[int]) -> None:
    good = said("approve", ANN, "ann")
    junk = [
        ASKED.decide("reject", principal="ann"),
        EVE.sign(ASKED.decide("reject", principal="ann")),
        EVE.sign(ASKED.decide("approve", principal="eve")),
        ANN.sign(request().decide("reject", principal="ann")),
    ]
    arrived = [([*junk, good][n], 110.0 + place) for place, n in enumerate(order)]
    deciding, refused = POLICY.holding(ASKED, arrived)
    assert deciding == (good,)
    assert all(decision is not good for decision, _ in refused)


@given(st.floats(0.0, 400.0))
def test_a_decision_is_in_time_by_when_it_arrived_not_by_what_its_maker_says(arrived_s: float) -> None:
    early = ANN.sign(ASKED.decide("approve", principal="ann").model_copy(update={"decided_s": 0.0}))
    deciding, _ = POLICY.holding(ASKED, [(early, arrived_s)])
    assert bool(deciding) is (arrived_s < 200.0)


def test_without_another_clock_a_request_expires_by_this_machines() -> None:
    assert ASKED.expired()
    assert not request(expires_s=9e12).expired()
    assert not request(expires_s=None).expired()
    with pytest.raises(ApprovalError, match="expired"):
        POLICY.check(ASKED, said("approve", ANN, "ann"))


def test_requests_and_decisions_of_an_older_version_keep_their_digest_and_their_signed_text() -> None:
    """Both written once more by themselves: what waits in a store was bound to these bytes."""
    odd = request(call=PAY.model_copy(update={"arguments": {"to": "\ud800 é"}}), id="q1")
    bound = [2, "q1", ["clerk", "s", "r", "llm_1"], ["c1", "pay", {"to": "\ud800 é"}], "p", "irreversible_override"]
    assert (
        odd.digest()
        == hashlib.sha256(canonical_json([*bound, False, 200.0]).encode(errors="surrogatepass")).hexdigest()
    )
    decision = odd.decide("edit", principal="ann", arguments={"to": "\ud800"}).model_copy(update={"decided_s": 1.0})
    content = {
        "arguments": {"to": "\ud800"}, "decided_s": 1.0, "digest": odd.digest(), "kind": "edit", "message": None,
        "principal": "ann", "request_id": "q1",
    }  # fmt: skip
    wanted = f"grampus_uq decision 2\n{canonical_json(content)}".encode(errors="surrogatepass")
    assert decision.signed_text() == wanted


def test_an_edit_that_no_store_could_hold_is_refused_by_name() -> None:
    half = ASKED.decide("edit", principal="ann", arguments={"to": ["\udfff"]})
    with pytest.raises(ApprovalError, match="half a character"):
        POLICY.check(ASKED, ANN.sign(half), now_s=100.0)
    for number in (float("inf"), float("-inf"), float("nan")):
        with pytest.raises(ApprovalError, match="not a JSON number"):
            ASKED.decide("edit", principal="ann", arguments={"to": [number]})


@pytest.mark.parametrize("depth", [1, 99, 100, 101, 150, 199, 230, 252, 254, 400, 900])
@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}], ids=["lists", "objects"])
def test_a_decision_that_is_given_out_can_be_written_read_back_and_run(depth: int, wrap: Any) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = wrap(deep)
    if depth > 100:
        with pytest.raises(ApprovalError, match="The arguments are nested too deeply"):
            ASKED.decide("edit", principal="ann", arguments={"to": deep})
        return
    edit = ASKED.decide("edit", principal="ann", arguments={"to": deep})
    assert ApprovalDecision.model_validate_json(edit.model_dump_json()) == edit
    assert ASKED.call is not None
    assert Gate().problem(ASKED.call.model_copy(update={"arguments": edit.arguments})) is None


def test_a_seal_and_its_check_take_text_that_is_no_unicode() -> None:
    seal = Seal("a key of the host's, long enough")
    assert seal.authentic("\ud800", seal.sealed("\ud800", {"a": "\udfff"}))
    assert not seal.authentic("s", {"a": 1, "seal": "\ud800"})
    assert not seal.holds("s", "text", "\ud800")


def test_a_seal_of_an_older_version_holds() -> None:
    key = hmac.new(b"0123456789abcdef", b"grampus_uq seal", hashlib.sha256).digest()
    mac = hmac.new(key, "2:é{}".encode(), hashlib.sha256).hexdigest()
    assert Seal("0123456789abcdef").authentic("é", {"seal": mac})


def test_what_is_not_signed_is_said_to_be_a_decision_or_a_grant() -> None:
    with pytest.raises(ApprovalError, match="The decision is not signed"):
        POLICY.check(ASKED, ASKED.decide("approve", principal="ann"), now_s=150.0)
    with pytest.raises(ApprovalError, match="The grant is not signed"):
        POLICY.check_grant(Grant(tool="pay", principal="ann", expires_s=9e9))


def test_a_digest_that_is_no_text_is_refused_like_any_other() -> None:
    with pytest.raises(ApprovalError, match="another call"):
        POLICY.check(ASKED, said("approve", ANN, "ann").model_copy(update={"digest": "\ud800"}), now_s=150.0)


def test_an_edit_that_cannot_run_leaves_the_request_open_for_one_that_can() -> None:
    wrong = said("edit", ANN, "ann", arguments={"to": "A", "amount": "7"})
    right = said("edit", ANN, "ann", arguments={"to": "A", "amount": 7})

    def problem(call: ToolCall) -> str | None:
        return None if isinstance(call.arguments["amount"], int) else "'amount' must be integer"

    deciding, refused = POLICY.holding(ASKED, [(wrong, 110.0), (right, 111.0)], problem)
    assert deciding == (right,)
    assert [why for _, why in refused] == ["The edited arguments cannot run: 'amount' must be integer"]


# -- keys in files ----------------------------------------------------------------------------------------------------


def test_a_key_file_is_its_owners_alone_and_is_never_written_over(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "ann.key"
    made = write_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Ed25519Signer.from_file(path).public_key == made.public_key
    assert path.read_text() not in repr(made)
    with pytest.raises(ConfigurationError, match="a new file"):
        write_key(path)
    monkeypatch.setenv("GRAMPUS_UQ_APPROVAL_KEY_FILE", str(path))
    signer = signer_from_environment()
    assert isinstance(signer, Ed25519Signer)
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        Ed25519Signer.from_file(path)
    path.chmod(0o600)
    path.write_text("no key")
    with pytest.raises(ConfigurationError, match="PEM"):
        Ed25519Signer.from_file(path)


def test_a_key_that_its_disk_has_no_room_for_leaves_no_file(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="needs POSIX")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, before[1]))  # a write beyond is an error, as on a full disk
    try:
        with pytest.raises(ConfigurationError, match="a new file"):
            write_key(tmp_path / "ann.key")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
    write_key(tmp_path / "ann.key")  # the name is free
    assert [path.name for path in tmp_path.iterdir()] == ["ann.key"]


@pytest.mark.parametrize("path", ["", ".", "\0", "nowhere/ann.key"])
def test_what_cannot_be_a_key_file_is_refused(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="a new file"):
        write_key(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["[]", "{", '{"ann": 1}', '{"ann": ["ed25519:00"]}', "{}"])
def test_a_file_of_public_keys_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys.json").write_text(content)
    with pytest.raises(ConfigurationError):
        PublicKeys.from_file(tmp_path / "keys.json")


def test_a_private_key_among_the_public_ones_is_refused_and_not_shown() -> None:
    private = "".join(EVE.pem().decode().splitlines()[1:-1])
    for text in (private, f"ed25519:{private}", EVE.pem().decode()):
        with pytest.raises(ConfigurationError, match=rf"Got 'a text of {len(text.strip())} characters'") as refused:
            PublicKeys({"eve": text})
        assert private[20:30] not in "".join(traceback.format_exception(refused.value))


def test_a_file_of_keys_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    for read in (PublicKeys.from_file, Ed25519Signer.from_file):
        with pytest.raises(ConfigurationError, match=r"none\.json'\. \(No such file or directory\.\)"):
            read(tmp_path / "none.json")


def test_a_file_of_public_keys_may_hold_several_keys_of_one_principal(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(json.dumps({"ann": [ANN.public_key, EVE.public_key], "bob": BOB.public_key}))
    keys = PublicKeys.from_file(tmp_path / "keys.json")
    assert keys.principals == {"ann", "bob"}
    for signer in (ANN, EVE):
        ApprovalPolicy(signer=keys).check(ASKED, signer.sign(ASKED.decide("approve", principal="ann")), now_s=150.0)


# -- seals ------------------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values, max_size=4), st.dictionaries(st.text(), values, max_size=4), st.text())
def test_a_seal_holds_for_just_these_values_at_just_this_place_under_just_this_key(
    content: dict[str, Any], other: dict[str, Any], place: str
) -> None:
    seal = Seal("a key of the host's, long enough")
    sealed = seal.sealed(place, content)
    assert seal.authentic(place, json.loads(json.dumps(sealed)))
    assert not seal.authentic(place + "x", sealed)
    assert not Seal.of_this_process().authentic(place, sealed)
    without = {key: value for key, value in content.items() if key != "seal"}
    if json.dumps(other, sort_keys=True) != json.dumps(without, sort_keys=True):
        assert not seal.authentic(place, {**other, "seal": sealed["seal"]})
    assert not seal.authentic(place, {**sealed, "seal": None})


def test_what_is_no_json_was_never_sealed() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    seal = Seal.of_this_process()
    for odd in ({"a": object()}, {"a": float("nan")}, {"a": deep}, {}):
        assert not seal.authentic("s", {**odd, "seal": "0" * 64})


def test_the_seal_that_follows_from_a_shared_key_is_no_signature_of_it() -> None:
    signer = HmacSigner("k" * 32)
    text = ASKED.decide("approve", principal="ann").signed_text()
    assert signer.seal().mac("", text.decode()) != signer.signature(text)
    assert "k" * 32 not in repr(signer)
    assert repr(signer.seal()) == "Seal(key=…)"


IDS = st.tuples(st.text("a/%2F\ud800", max_size=4), st.text("a/%2F\ud800", max_size=4))


@given(one=IDS, other=IDS)
def test_no_two_sessions_share_the_place_that_their_seals_are_bound_to(one: Any, other: Any) -> None:
    assert (session_place(*one) == session_place(*other)) == (one == other)
    assert session_place("clerk", "b-1_c.d") == "clerk/b-1_c.d"  # seals of earlier versions hold on
