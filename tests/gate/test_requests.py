"""What a decision is bound to, who may decide, and how many of them it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ApprovalError, ConfigurationError
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind, ApprovalPolicy, ApprovalRequest, Grant
from grampus_uq.gate.seal import Seal
from grampus_uq.gate.signatures import Ed25519Signer, HmacSigner, PublicKeys, signer_from_environment, write_key
from grampus_uq.records import ToolCall
from grampus_uq.vocabulary import UncertaintyLevel

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
    grant = ANN.sign_grant(Grant(tool="pay", principal="ann", expires_s=9e9))
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


def test_a_grant_of_one_is_no_leave_where_two_are_required() -> None:
    with pytest.raises(ApprovalError, match="requires several"):
        TWO.check_grant(ANN.sign_grant(Grant(tool="pay", principal="ann", expires_s=9e9)))


def test_one_key_under_two_names_is_refused_and_so_are_more_signatures_than_approvers() -> None:
    with pytest.raises(ConfigurationError, match="of one principal each"):
        PublicKeys({"ann": ANN.public_key, "bob": ANN.public_key.upper().replace("ED25519", "ed25519")})
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


@pytest.mark.parametrize("content", ["[]", "{", '{"ann": 1}', '{"ann": ["ed25519:00"]}', "{}"])
def test_a_file_of_public_keys_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys.json").write_text(content)
    with pytest.raises(ConfigurationError):
        PublicKeys.from_file(tmp_path / "keys.json")


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
    assert "k" * 32 not in repr(signer) + repr(signer.seal())
