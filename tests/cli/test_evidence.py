"""Evidence verifies without its store, and shows every change of what it holds."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import ApprovalPolicy, PublicKeys, open_store
from grampus_uq.cli.evidence_command import command
from grampus_uq.gate.requests import ApprovalDecision
from grampus_uq.gate.signatures import Ed25519Signer, write_key
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.runtime.evidence import Verified, evidence, verified
from grampus_uq.runtime.store import chained
from tests.runtime.test_approvals_cli import Desk
from tests.sampling import examples


@functools.cache
def signers() -> tuple[Ed25519Signer, PublicKeys]:
    signer = Ed25519Signer.generate()
    return signer, PublicKeys({"ann": signer.public_key})


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A store in which ann approved one call with her key, and it ran."""
    folder = tmp_path_factory.mktemp("evidence")
    signer = write_key(folder / "ann.key")
    keys = PublicKeys({"ann": signer.public_key})
    (folder / "keys.json").write_text(json.dumps({"ann": signer.public_key}))
    desk = Desk(folder, approvals=ApprovalPolicy(signer=keys))
    approved = desk.cli("approve", desk.request.id, "--as", "ann", "--key", str(folder / "ann.key"))
    assert approved.exit_code == 0, approved.output
    assert desk.resume().status.value == "completed"
    assert len(desk.world.sent) == 1
    return desk


@functools.cache
def lines_of(desk: Desk) -> list[str]:
    async def work() -> list[str]:
        store = open_store(desk.url)
        lines = [line async for line in evidence(store)]
        await store.aclose()
        return lines

    return anyio.run(work)


def keys_of(desk: Desk) -> PublicKeys:
    return PublicKeys.from_file(Path(desk.url.removeprefix("sqlite:///")).parent / "keys.json")


def rechained(lines: list[str], change: Callable[[list[dict[str, Any]]], object]) -> list[str]:
    """The file that somebody writes who changes entries and computes every hash anew, the store's chains too."""
    entries = [json.loads(line) for line in lines[:-1]]
    change(entries)
    written: list[str] = []
    for index, entry in enumerate([*entries, {"what": "end", "data": {"entries": len(entries)}, "time_s": 1.0}]):
        content = canonical_json({"what": entry["what"], "data": entry["data"]})
        written.append(chained(content, index, entry["time_s"], written[-1] if written else None))
    return written


def test_a_file_says_what_was_shown_decided_signed_and_run(desk: Desk) -> None:
    found = verified(lines_of(desk), keys_of(desk))
    assert found.faults == []
    assert (found.decisions, found.signed, found.shown) == (1, 1, 1)
    assert (found.ran, found.by_decision, found.by_permit) == (1, 1, 0)
    assert json.loads(lines_of(desk)[-1])["hash"] == found.digest


def test_a_change_of_any_byte_is_found(desk: Desk) -> None:
    text = "\n".join(lines_of(desk)) + "\n"
    digest = verified(text.split("\n")[:-1]).digest
    step = 7  # every byte costs minutes; the law below draws the rest
    for place in range(0, len(text), step):
        changed = text[:place] + ("x" if text[place] != "x" else "y") + text[place + 1 :]
        assert not holds(changed, digest), text[place - 20 : place + 20]


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_any_edit_of_the_text_is_found(desk: Desk, data: st.DataObject) -> None:
    text = "\n".join(lines_of(desk)) + "\n"
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 40)))
    put = data.draw(st.text(alphabet='0123456789abcdef{}",: \n\u200b', max_size=6))
    changed = text[:start] + put + text[stop:]
    assert changed == text or not holds(changed, None), (start, stop, put)


def holds(text: str, digest: str | None) -> bool:
    return text.endswith("\n") and verified(text.split("\n")[:-1], digest=digest).faults == []


def test_lines_that_are_dropped_swapped_doubled_or_cut_off_are_found(desk: Desk) -> None:
    lines = lines_of(desk)
    for index in range(len(lines)):
        assert verified(lines[:index] + lines[index + 1 :]).faults
        assert verified(lines[: index + 1] + lines[index:]).faults
        assert verified(lines[:index]).faults
        for other in range(index):
            swapped = list(lines)
            swapped[index], swapped[other] = swapped[other], swapped[index]
            assert verified(swapped).faults
    assert verified([*lines, lines[-1]]).faults == [f"line {len(lines) + 1}: something follows the end"]


def _drop(what: str) -> Callable[[list[dict[str, Any]]], object]:
    return lambda entries: entries.__setitem__(slice(None), [one for one in entries if one["what"] != what])


def _decision(change: Callable[[dict[str, Any]], object]) -> Callable[[list[dict[str, Any]]], object]:
    def work(entries: list[dict[str, Any]]) -> None:
        one = next(entry for entry in entries if entry["what"] == "decision")
        body = json.loads(one["data"]["body"])
        change(body)
        one["data"]["body"] = json.dumps(body)

    return work


def _audit(what: str, change: Callable[[dict[str, Any]], object]) -> Callable[[list[dict[str, Any]]], object]:
    def work(entries: list[dict[str, Any]]) -> None:
        last = None
        for entry in [one for one in entries if one["what"] == "audit"]:
            inner = json.loads(entry["data"]["entry"])
            if inner["what"] == what:
                change(inner["data"])
            content = canonical_json({"what": inner["what"], "data": inner["data"]})
            last = entry["data"]["entry"] = chained(content, inner["seq"], inner["time_s"], last)

    return work


@pytest.mark.parametrize(
    "change",
    [
        _drop("decision"),
        _decision(lambda body: body["decision"].update(principal="bob")),
        _decision(lambda body: body["decision"].update(kind="reject")),
        _decision(lambda body: body["decision"].update(signature=None)),
        _decision(lambda body: body["shown"]["arguments"].update(to="eve")),
        _decision(lambda body: body["shown"].update(step_id="9")),
        _decision(lambda body: body.pop("shown")),
        _audit("execution_started", lambda data: data.update(digest="0" * 64)),
        _audit("execution_started", lambda data: data.update(run_id="another")),
        _audit("execution_started", lambda data: data.update(call_id="another")),
        lambda entries: [e["data"].update(of="mailer/other") for e in entries if e["what"] == "audit"],
        _audit("execution_started", lambda data: data.update(decisions=["0" * 32])),
        _audit("execution_started", lambda data: data.update(decisions=[], cleared_by="permit 00000000")),
    ],
    ids=lambda _: "",
)
def test_who_computes_every_hash_anew_still_lacks_the_approvers_key(
    desk: Desk, change: Callable[[list[dict[str, Any]]], object]
) -> None:
    lines = lines_of(desk)
    forged = rechained(lines, change)
    found = verified(forged, keys_of(desk))
    assert any(" ran on a " in fault for fault in found.faults), found
    assert verified(rechained(lines, lambda entries: None), keys_of(desk)).faults == []


def test_arguments_that_are_changed_wherever_they_stand_are_not_those_that_were_signed(desk: Desk) -> None:
    ran = ToolCall(id="b", name="send_email", arguments={"to": "eve", "body": "hi"})

    def everywhere(entries: list[dict[str, Any]]) -> None:
        _decision(lambda body: body["shown"].update(arguments=ran.arguments))(entries)
        _audit("execution_started", lambda data: data.update(digest=ran.digest()))(entries)

    assert any(" ran on a decision" in fault for fault in verified(rechained(lines_of(desk), everywhere)).faults)


def test_a_rejection_with_a_good_signature_lets_nothing_run(desk: Desk) -> None:
    signer = Ed25519Signer.from_file(Path(desk.url.removeprefix("sqlite:///")).parent / "ann.key")

    def rejected(body: dict[str, Any]) -> None:
        decision = ApprovalDecision.model_validate(body["decision"] | {"kind": "reject", "signature": None})
        body["decision"] = signer.sign(decision).model_dump(mode="json")

    found = verified(rechained(lines_of(desk), _decision(rejected)), keys_of(desk))
    assert (found.signed, found.by_decision) == (1, 0)
    assert any(" ran on a decision" in fault for fault in found.faults)


def test_an_end_that_counts_other_entries_is_named(desk: Desk) -> None:
    lines = lines_of(desk)
    end = chained(canonical_json({"what": "end", "data": {"entries": 1}}), len(lines) - 1, 1.0, lines[-2])
    assert verified([*lines[:-1], end]).faults == [f"line {len(lines)}: the end counts other entries"]


def test_an_audit_that_was_changed_in_the_store_is_named(desk: Desk) -> None:
    def changed(entries: list[dict[str, Any]]) -> None:
        first = next(entry for entry in entries if entry["what"] == "audit")
        first["data"]["entry"] = first["data"]["entry"].replace('"data":{', '"data":{"more":1,', 1)

    (fault,) = verified(rechained(lines_of(desk), changed), keys_of(desk)).faults
    assert "audit of 'mailer/s'" in fault
    assert "was changed after it was written" in fault


def without_the_last_audit(entries: list[dict[str, Any]]) -> None:
    del entries[max(place for place, entry in enumerate(entries) if entry["what"] == "audit")]


def test_only_the_digest_that_was_kept_shows_that_the_newest_was_left_out(desk: Desk) -> None:
    lines = lines_of(desk)
    shorter = rechained(lines, without_the_last_audit)
    assert verified(shorter, keys_of(desk)).faults == []
    digest = verified(lines).digest
    assert verified(lines, digest=digest).faults == []
    assert "the last line has the digest" in verified(shorter, keys_of(desk), digest=digest).faults[0]


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), env={"COLUMNS": "200"})


def test_the_commands_export_and_verify(desk: Desk, tmp_path: Path) -> None:
    file, folder = tmp_path / "e.jsonl", Path(desk.url.removeprefix("sqlite:///")).parent
    out = json.loads(cli("export", "--store", desk.url, "-o", str(file), "--json").output)
    assert file.stat().st_mode & 0o777 == 0o600, "the calls in it are their owner's"
    asked = ("--keys", str(folder / "keys.json"), "--digest", out["digest"])
    good = cli("verify", str(file), *asked)
    assert good.exit_code == 0, good.output
    assert "ran        1: 1 on decisions" in good.output
    assert "The evidence is valid." in good.output
    assert json.loads(cli("verify", str(file), *asked, "--json").output)["holds"] is True
    assert cli("verify", str(file), "--digest", "0" * 64).exit_code == 1
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:-200], b"\xff" + whole, b"", whole + b"\n", whole.replace(b"\n", b"\r\n")):
        file.write_bytes(damaged)
        assert cli("verify", str(file)).exit_code == 1, damaged[-50:]


def test_hostile_lines_are_faults_and_no_surprise(desk: Desk) -> None:
    for hostile in (
        "",
        "null",
        "[]",
        "{",
        '{"what": 1}',
        "[" * 100_000,
        "NaN",
        "1" * 5_000,
        '{"what":"x","data":null}',
        '{"what":"x","data":null,"time_s":1%s}' % ("0" * 400),
    ):
        found: Verified = verified([hostile])
        assert found.faults
    nothing = rechained(lines_of(desk), lambda entries: entries.clear())
    assert verified(nothing).faults == []
    for data in (
        None,
        1,
        [],
        {},
        {"body": "{}", "written_s": 10**400},
        {"of": "a/s", "entry": json.dumps({"what": "x", "data": {}, "time_s": 10**400})},
        {"body": None},
        {"body": "{}"},
        {"body": '{"decision": 1}'},
        {"of": 1, "entry": "{}"},
    ):
        for what in ("decision", "grant", "permit", "audit"):
            bad = rechained(
                nothing, lambda entries, w=what, d=data: entries.append({"what": w, "data": d, "time_s": 1.0})
            )  # type: ignore[misc]
            assert verified(bad).faults, (what, data)
