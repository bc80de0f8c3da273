"""`grampus-uq approvals`: see pending approvals and decide them, from any machine that reaches the store."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import click

from grampus_uq.cli.argument_types import SummarisedGroup, options
from grampus_uq.cli.printing import as_json_option, print_json, print_list, print_whole, say_beside
from grampus_uq.cli.store_options import Signer, as_option, on_store, signing
from grampus_uq.errors import ApprovalError, ConfigurationError, DataError, SessionError
from grampus_uq.gate.delegations import Delegation
from grampus_uq.gate.requests import ApprovalDecision
from grampus_uq.gate.signatures import write_key
from grampus_uq.recording.run_rows import readings_in_words, thresholds_in_words
from grampus_uq.records.call_parts import doubt_with_values
from grampus_uq.records.call_sentences import sentence_of
from grampus_uq.records.strict_json import json_object
from grampus_uq.records.values import Reading
from grampus_uq.records.visible_text import arguments_in_short, in_short, legend_of, visible, whole_arguments
from grampus_uq.records.vocabulary import span
from grampus_uq.runtime.cards import Card, card, end_of
from grampus_uq.runtime.dead_letters import dead_letters
from grampus_uq.runtime.drills import Drill
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stored_decisions import (
    Decided,
    check_edit,
    check_shown,
    decisions_on,
    open_request,
    store_decision,
)
from grampus_uq.runtime.stored_delegations import standing_for
from grampus_uq.runtime.stored_drills import StoredDrills

_LETTERS = 100
_TAIL = 6
_BESIDE = {"call_id", "tool", "arguments", "readings", "thresholds", "unread", "messages"}
"""Of a card, what the JSON of a request holds elsewhere."""


_deciding = options(
    click.argument("request_id"),
    on_store,
    signing("Who decides"),
    click.option("--for", "place", metavar="NAME", help="Decide in place of NAME, by a delegation."),
    click.option("--digest", help="Refuse if the call's digest, as printed by `show`, is another."),
    as_json_option,
)
"""The options of every command that decides."""


@click.group(cls=SummarisedGroup)
def command() -> None:
    """List, show and decide pending approvals.

    Decisions are signed with the private key in --key or GRAMPUS_UQ_APPROVAL_KEY_FILE (`keygen` makes one), or
    with the shared key in GRAMPUS_UQ_APPROVAL_KEY. A runner with keys accepts no unsigned decisions.
    """


@command.command()
@click.argument("file")
@as_option("Owner of the key")
def keygen(file: str, principal: str) -> None:
    """Write a new private key to FILE (mode 0600), and print the public key for the runner."""
    signer = write_key(file)
    print_json({principal: signer.public_key})


# -- seeing -----------------------------------------------------------------------------------------------------------


@command.command(name="list")
@on_store
@as_json_option
@click.option("--agent", help="Only this agent's sessions.")
async def list_(store: SessionStore, as_json: bool, agent: str | None) -> None:
    """List pending requests, and decisions that no runner has processed."""
    ledger = Ledger(store)
    sessions = await ledger.pending(agent)
    now_s = ledger.now_s()
    asked = [request for session in sessions for request in session.requests if request.child_session is None]
    requests = [request for request in asked if not request.expired(now_s)]
    decided = await decisions_on(ledger, requests)
    drills = StoredDrills(store)
    cards = await drills.as_shown(*await drills.mixed([card(request) for request in requests], now_s, agent))
    found = [(one, decided.get(one.id, ([], []))) for one in cards]
    letters = len(await dead_letters(store, agent, limit=_LETTERS))
    if letters and not as_json:
        count = f"{letters} or more" if letters == _LETTERS else str(letters)
        say_beside(f"Set aside after errors: {count} (`grampus-uq stuck list`).")
    columns = ("request", "agent", "session", "call", "level", "reason", "waiting", "expires", "status")
    values = (_shown(shown, decisions) for shown, (decisions, _) in found)
    rows = (_list_row(shown, decided, now_s) for shown, decided in found)
    print_list(as_json, values, columns, rows, "No pending approvals.")


def _list_row(shown: Card, decided: Decided, now_s: float) -> list[str]:
    return [
        visible(shown.id[:8]),
        visible(shown.agent_id),
        visible(shown.session_id),
        "the answer" if shown.tool is None else visible(f"{shown.tool} {arguments_in_short(shown.arguments)}"),
        shown.level.value,
        in_short(shown.reason, 200),
        span(now_s - shown.created_s),
        "never" if shown.expires_s is None else f"in {span(shown.expires_s - now_s)}",
        _status(*decided),
    ]


def _status(decisions: Sequence[ApprovalDecision], standing: Sequence[ApprovalDecision]) -> str:
    """The decisions that a runner may take up, unchecked: only the runner has the keys; else those that lapsed."""
    given = ", ".join(f"{one.kind.value} by {in_short(one.by, 80)}" for one in (standing or decisions)[:5])
    if standing:
        return f"decided, unchecked: {given}"
    return f"pending, refused or lapsed: {given}" if given else "pending"


@command.command()
@click.argument("request_id")
@on_store
@as_json_option
async def show(request_id: str, store: SessionStore, as_json: bool) -> None:
    """Show one request: the whole call, its digest, its reason, and the end of the transcript."""
    ledger = Ledger(store)
    found = await _drill(ledger, request_id) or await open_request(ledger, request_id)
    (shown,) = await StoredDrills(store).as_shown(found.card)
    decisions, standing = ([], []) if isinstance(found, Drill) else (found.decisions, found.standing)
    refused = () if isinstance(found, Drill) else found.refused
    refusals = [f"{principal} {why}".strip() for principal, why in refused]
    if as_json:
        tail = [message.model_dump(mode="json") for message in end_of(shown.messages, _TAIL)]
        print_json(_shown(shown, decisions) | {"refused": refusals, "transcript_tail": tail})
        return
    print_whole(f"request    {visible(shown.id)}", f"agent      {visible(shown.agent_id)}")
    if shown.session_id:
        print_whole(f"session    {visible(shown.session_id)}")
    if shown.started_by is not None:
        print_whole(f"started by {visible(shown.started_by)}, who may not decide on it")
    rule = f"rule {visible(shown.rule)}; {visible(shown.guarantee or 'no guarantee')}"
    print_whole(f"level      {shown.level.value} ({rule})", f"why        {visible(shown.reason)}")
    if shown.tool is not None:
        print_whole(f"will       {visible(sentence_of(shown.tool, shown.arguments))}")
    print_whole(*_numbers(shown), f"status     {_status(decisions, standing)}")
    print_whole(*(f"refused    {visible(refusal)}" for refusal in refusals), *_signed_lines(shown))
    print_whole("--- the end of the transcript ---")
    for message in end_of([one for one in shown.messages if not one.metadata.get("placeholder")], _TAIL):
        calls = [visible(f"-> {call.name} {arguments_in_short(call.arguments)}") for call in message.tool_calls]
        said = [in_short(message.content, 400)] if message.content else []
        print_whole(" ".join([f"[{message.role.value}]", *said, *calls]))


async def _drill(ledger: Ledger, request_id: str) -> Drill | None:
    """The open drill with this id; raises SessionError where a request has an id of the same beginning."""
    drill = await StoredDrills(ledger.store).find(request_id, await ledger.store.now())
    if drill is None or drill.card.id == request_id:
        return drill
    with contextlib.suppress(SessionError):
        await ledger.find_request(request_id)
        raise DataError(f"2 pending requests have an id beginning with {request_id!r:.40}.")
    return drill


def _numbers(shown: Card) -> list[str]:
    """What was read of the turn that proposes the call, the lowest first, and the thresholds; as stored, unchecked."""
    if shown.unread is not None:
        return [f"read       {in_short(shown.unread, 300)}"]
    said = readings_in_words([Reading(source=source, value=value) for source, value in shown.readings.items()])
    lines = [f"read       {visible(said)}"] if said else []
    if shown.doubt is not None:
        lines.append(f"doubt      {doubt_with_values(shown.doubt)}")
    if shown.thresholds is not None:
        lines.append(f"thresholds {thresholds_in_words(shown.thresholds)}")
    return lines


def _signed_lines(shown: Card) -> list[str]:
    """The subject of a decision: the digest, the whole call, and marks on misleading characters."""
    lines = [f"digest     {visible(shown.digest)}"]
    if shown.tool is not None:
        lines += [f"call       {visible(shown.tool)}", *whole_arguments(shown.arguments)]
        lines += [f"marked     {line}" for line in legend_of([shown.tool, shown.arguments])]
    return lines


def _shown(shown: Card, decisions: Sequence[ApprovalDecision]) -> dict[str, Any]:
    given = [
        {"principal": d.principal, "for": d.delegation and d.delegation.principal, "kind": d.kind.value}
        | {"signed": d.signature is not None}
        for d in decisions
    ]
    call = None if shown.tool is None else {"id": shown.call_id, "name": shown.tool, "arguments": shown.arguments}
    named = {"session_id": shown.session_id or None}  # none while drills are on
    return shown.model_dump(mode="json", exclude=_BESIDE) | named | {"call": call, "decisions": given}


# -- deciding ---------------------------------------------------------------------------------------------------------


@command.command()
@_deciding
async def approve(**given: Any) -> None:
    """Approve the pending call, exactly as it was shown."""
    await _decide("approve", **given)


@command.command()
@_deciding
@click.option("--message", "-m", help="Reason for the model.")
@click.option("--never", is_flag=True, help="Also close every permit that covers the call.")
async def reject(**given: Any) -> None:
    """Reject the pending call."""
    await _decide("reject", **given)


@command.command()
@_deciding
@click.option("--arguments", required=True, help="The new arguments, a JSON object.")
async def edit(arguments: str, **given: Any) -> None:
    """Approve the pending call with other arguments, which have to fit the tool's schema."""
    await _decide("edit", arguments=_parsed(arguments), **given)


@command.command()
@_deciding
@click.option("--message", "-m", required=True, help="Text used as the call's result.")
async def respond(**given: Any) -> None:
    """Answer in place of the tool; the call does not run."""
    await _decide("respond", **given)


async def _delegation(ledger: Ledger, tool: str | None, deputy: str, place: str | None) -> Delegation | None:
    """The delegation with which a deputy decides in a place; raises ApprovalError where none stands."""
    found = [] if place is None else await standing_for(ledger.store, deputy, tool)
    mine = [one for one in found if one.principal == place]
    if place is not None and not mine:
        raise ApprovalError(f"No delegation of {place!r:.80} lets {deputy!r:.80} decide on this now.")
    return mine[-1] if mine else None


def _parsed(arguments: str) -> dict[str, Any]:
    try:
        return json_object(arguments, unique_names=True)
    except DataError as error:
        raise ConfigurationError.of("--arguments", "approvals edit", "a JSON object", arguments, str(error)) from error


async def _decide(
    kind: str,
    *,
    request_id: str,
    store: SessionStore,
    principal: str,
    place: str | None,
    signer: Signer | None,
    digest: str | None,
    as_json: bool,
    message: str | None = None,
    arguments: dict[str, Any] | None = None,
    never: bool = False,
) -> None:
    ledger, drilled = Ledger(store), None
    before: Sequence[ApprovalDecision] = ()
    try:
        found = await _drill(ledger, request_id) or await open_request(ledger, request_id)
        shown = found.card
        check_shown(shown, digest)
        check_edit(arguments, found.parameters)
        delegation = await _delegation(ledger, shown.tool, principal, place)
        given: dict[str, Any] = {"principal": principal, "message": message, "arguments": arguments}
        if isinstance(found, Drill):
            answer = found.answered(kind, **given)
            answer = answer if signer is None else signer.sign(answer)
            waiting = sum(len(session.requests) for session in await ledger.pending())
            done = await StoredDrills(store).answer(answer, ledger.now_s(), waiting=waiting, place=delegation)
            drilled = done.told()
        else:
            decision = found.request.decide(kind, delegation=delegation, never=never, **given)
            before = await store_decision(ledger, found, decision if signer is None else signer.sign(decision))
    except ApprovalError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        stored = {"request": shown.id, "kind": kind, "signed": signer is not None, "digest": shown.digest}
        print_json(stored | {"principal": principal, "decided_before": len(before), "drill": drilled})
        return
    if drilled is not None:
        click.echo(visible(drilled))
        return
    print_whole(*_signed_lines(shown))
    if arguments is not None:
        print_whole("runs with", *whole_arguments(arguments))
    how = "signed" if signer is not None else "unsigned (no key is set)"
    click.echo(
        f"{kind} by {visible(principal)}, {how}: stored. The agent's program checks the signature, and who may decide, "
        "when it takes this up."
    )
    if before:
        click.echo(f"An earlier decision comes first if it is valid: {_status(before, before)}.")
