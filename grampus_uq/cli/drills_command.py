"""`grampus-uq drills`: known-bad cases among what waits, and what they say of the reviewers."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import Any

import click

from grampus_uq.cli.argument_types import FiniteRange, SummarisedGroup
from grampus_uq.cli.printing import as_json_option, one_line, print_json, print_result, print_table, say_beside
from grampus_uq.cli.store_options import as_option, on_store
from grampus_uq.runtime.drills import Change, DrillPlan, DrillRule
from grampus_uq.runtime.reviewers import LEAST_FOR_A_PERSON, Missed, Reviewed, decision_times, reviewed
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stored_drills import StoredDrills

_HOUR_S = 3_600.0


@click.group(name="drills", cls=SummarisedGroup)
def command() -> None:
    """Mix known-bad calls into the pending approvals, and measure how many reviewers miss.

    A drill is a past call with a wrong amount or recipient, or a repeat of one that ran or was rejected. It can
    never run, and the reviewer learns the result at once.
    """


@command.command()
@on_store
@as_json_option
@click.option(
    "--share",
    type=FiniteRange(0.001, 0.5),
    default=0.05,
    help="Share of drills among the shown requests for these tools.",
)
@click.option(
    "--change",
    "changes",
    multiple=True,
    required=True,
    metavar="TOOL:CHANGE[:ARGUMENT]",
    help=(
        "Change that makes a call of a tool certainly wrong: refund:amount:eur, "
        "refund:recipient:to, refund:duplicate, refund:stale; repeatable."
    ),
)
@click.option("--tolerated", type=FiniteRange(0.01, 0.9), default=0.15, help="Tolerated share of missed drills.")
@click.option(
    "--pace", type=click.IntRange(min=1), default=60, help="Decisions per hour above which a pause is suggested."
)
@click.option(
    "--source-hours",
    type=FiniteRange(0.0, 8_760.0),
    default=24.0,
    help="Age in hours from which an approved call can become a drill.",
)
@as_option("Who switches them on")
async def on(store: SessionStore, as_json: bool, changes: tuple[str, ...], principal: str, **given: Any) -> None:
    """Switch drills on, or change their share and kinds."""
    plan = DrillPlan(
        share=given["share"],
        rules=tuple(_rule(text) for text in changes),
        principal=principal,
        source_age_s=given["source_hours"] * _HOUR_S,
        tolerated=given["tolerated"],
        pace_per_hour=given["pace"],
        secret=secrets.token_hex(32),
    )
    await StoredDrills(store).switch_on(plan)
    share = f"{100.0 * plan.share:g} %"
    line = f"{share} of the requests shown for these tools will be drills, once there are calls to derive them from."
    print_result(as_json, plan.model_dump(mode="json", exclude={"secret"}), [line])


def _rule(text: str) -> DrillRule:
    tool, _, rest = text.partition(":")
    change, _, argument = rest.partition(":")
    named = change in (Change.AMOUNT, Change.RECIPIENT)
    if not tool or change not in list(Change) or named != bool(argument):
        raise click.BadParameter(
            f"must be TOOL:amount:ARGUMENT, TOOL:recipient:ARGUMENT, TOOL:duplicate or TOOL:stale. Got {text!r:.100}.",
            param_hint="--change",
        )
    return DrillRule(tool=tool, change=Change(change), argument=argument or None)


@command.command()
@on_store
@as_json_option
async def off(store: SessionStore, as_json: bool) -> None:
    """Switch drills off; answers so far are kept."""
    were_on = await StoredDrills(store).switch_off()
    print_result(as_json, {"were_on": were_on}, ["Drills are off." if were_on else "Drills were off."])


@command.command()
@on_store
@as_json_option
@click.option("--check", is_flag=True, help="Exit with 1 if more drills are missed than tolerated.")
async def report(store: SessionStore, as_json: bool, check: bool) -> None:
    """Report the share of missed drills: in total, by person, by time since the start, by queue length."""
    stored = StoredDrills(store)
    plan, drills = await stored.plan(), await stored.answered()
    found = reviewed(drills, await decision_times(store, drills), await store.now(), plan)
    unmade = await stored.unmade()
    if as_json:
        print_json(asdict(found) | {"on": plan is not None, "unmade": unmade})
    else:
        _print(plan, found, unmade)
    if check and found.alarm_at is not None:
        raise SystemExit(1)


def _print(plan: DrillPlan | None, found: Reviewed, unmade: int) -> None:
    say_beside(
        "Drills are off."
        if plan is None
        else f"Drills are on: {100.0 * plan.share:g} % of the requests shown for their tools."
    )
    if unmade:
        say_beside(
            f"Drills that could not be made: {unmade}. None of the approved calls drawn had the same agent, tool, rules"
            " and schema, was old enough and unused, and had a change that its conversation shows to be wrong."
        )
    rows: list[tuple[str, str, Missed | None]] = [("team", "", found.team)]
    rows += [("person", who, share) for who, share in sorted(found.people.items())]
    rows += [("since the start", name, share) for name, share in found.by_minutes.items()]
    rows += [("queue", name, share) for name, share in found.by_queue.items()]
    too_few = f"fewer than {LEAST_FOR_A_PERSON} drills: no estimate"
    print_table(("of", "", "missed"), ((of, who, too_few if s is None else s.words) for of, who, s in rows))
    if found.team.high is not None:
        say_beside(f"For a permit: --miss-rate {found.team.high:.3f} (upper end, 95 % one-sided).")
    if found.alarm_at is not None:
        tolerated = f"{100.0 * found.tolerated:g} %"
        say_beside(
            f"More than {tolerated} are missed: shown at drill {found.alarm_at}, with at most 5 % false reports."
        )
    for sentence in found.pauses.values():
        say_beside(one_line(sentence))
