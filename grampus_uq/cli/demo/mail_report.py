"""Report on the clerk's three ways: three lines, one held call with its doubtful part marked, and the next step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grampus_uq.cli.demo.clerk import Handled, session_id
from grampus_uq.cli.demo.mail_plan import VARIANTS, MailPlan
from grampus_uq.cli.demo.mails import spoken
from grampus_uq.cli.printing import paragraph

_INDENT: Final = 12
_WORDS: Final = {
    "unguarded": "without grampus_uq",
    "default tiers": "grampus_uq, default limits",
    "shipped profile": "grampus_uq, fitted profile",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """One variant: how many calls went out, how many of these were right, and the euros that the wrong ones lost."""

    variant: str
    went_out: int
    right: int
    lost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MailReport:
    """The ends of every mail so far, by variant, and the seconds that they took."""

    handled: Sequence[tuple[Handled, ...]]
    seconds: float
    interrupted: bool = False

    @property
    def tallies(self) -> list[Tally]:
        """One a variant, in the order of `VARIANTS`."""
        found = []
        for place, variant in enumerate(VARIANTS):
            out = [ends[place] for ends in self.handled if ends[place].went_out]
            lost = round(sum(one.lost for one in out), 2)
            found.append(Tally(variant=variant, went_out=len(out), right=sum(one.right for one in out), lost=lost))
        return found

    @property
    def right(self) -> int:
        """The number of proposed calls that are right."""
        return sum(ends[0].right for ends in self.handled)

    @property
    def shown(self) -> Handled | None:
        """The call to show: of those that the profile held, the wrong one that would have lost most."""
        held = [ends[-1] for ends in self.handled if not ends[-1].went_out]
        return max(held, key=lambda one: (not one.right, one.mail.loses(one.call)), default=None)


def report_lines(report: MailReport, plan: MailPlan, *, details: bool = False) -> Iterator[str]:
    """The report as plain lines, no wider than the terminal."""
    n = len(report.handled)
    ended = " - interrupted" if report.interrupted else ""
    how = f"seed {plan.seed}, {report.seconds:.0f} s"
    yield f"{n} emails, {n} proposed calls, {report.right} of them right ({how}){ended}"
    yield ""
    yield f"{'':28}{'executed':>10}{'of these right':>18}{'money lost':>17}"
    for tally in report.tallies:
        share = f"{tally.right} ({100 * tally.right / tally.went_out:.0f} %)" if tally.went_out else "-"
        yield f"{_WORDS[tally.variant]:28}{tally.went_out:>10}{share:>18}{tally.lost:>13,.2f} EUR"
    yield ""
    if report.shown is not None:
        yield from _held_lines(report.shown)
        yield ""
    if details:
        yield "mail       proposed                 right?  default limits       fitted profile"
        yield from (_row_line(ends) for ends in report.handled)
        yield ""
    yield from _closing_lines(plan, report.shown)


def progress_line(handled: Sequence[tuple[Handled, ...]], total: int) -> str:
    """The latest mail, while the demo runs: what was proposed, and what became of it."""
    proposed, _, guarded = handled[-1]
    right = "right" if proposed.right else "WRONG"
    return (
        f"{len(handled):3} of {total}  {spoken(proposed.call):26} {right}  {'executed' if guarded.went_out else 'held'}"
    )


def _row_line(ends: tuple[Handled, ...]) -> str:
    """One mail in one line: what was proposed, was it right, and what each monitor did."""
    proposed, tiers, guarded = ends
    verdicts = [("executed" if one.went_out else "held") + _why(one) for one in (tiers, guarded)]
    return (
        f"{proposed.mail.id:10} {spoken(proposed.call):24} {'right' if proposed.right else 'wrong':7} "
        f"{verdicts[0]:20} {verdicts[1]}"
    )


def _why(one: Handled) -> str:
    chance = one.assessment.p_success if one.assessment else None
    rule = one.verdict.rule if one.verdict else ""
    return f" ({rule})" if chance is None else f" (p_success {chance:.2f})"


def _held_lines(one: Handled) -> Iterator[str]:
    yield "One call that the fitted profile held for a human:"
    yield from paragraph("  mail      ", one.mail.text, _INDENT)
    written = one.call.name + "(" + ", ".join(f"{name}={value}" for name, value in one.call.arguments.items()) + ")"
    yield f"  proposed  {written}"
    doubt = one.verdict.doubt if one.verdict else None
    if doubt is not None:
        value = str(one.call.arguments.get(doubt.part, one.call.name))
        at = written.index(f"{doubt.part}={value}") + len(doubt.part) + 1 if doubt.part in one.call.arguments else 0
        yield f"            {' ' * at}{'^' * len(value)} written with a probability of {doubt.least:.2f}"
    yield f"  right     {one.mail.right_call}"
    if one.verdict is not None:
        yield from paragraph("  held      ", one.verdict.reason, _INDENT)


def _closing_lines(plan: MailPlan, shown: Handled | None) -> Iterator[str]:
    counts = plan.artifact.provenance.counts
    others = counts["success"] + counts["failure"]
    yield from paragraph(
        "",
        "The emails are generated, the calls come from a small model on this machine; nothing is scripted. The profile "
        f"was fitted on {others} other emails of the same kind, none of these, and applies to this clerk only. "
        "A held call waits for a human, which costs time, not money.",
        0,
    )
    yield ""
    yield f"Recorded:        grampus-uq runs list {plan.folder}"
    if shown is not None:
        yield "That call, as a page:"
        yield f"  grampus-uq runs show {plan.folder} {session_id(shown.mail)} -o run.html"
    yield "Every email:     grampus-uq demo --details"
    yield "Your own agent:  docs/quickstart.md"


def to_json(report: MailReport, plan: MailPlan) -> dict[str, Any]:
    """The report as JSON values, every call included."""
    return {
        "task": "mails",
        "seed": plan.seed,
        "mails": len(plan.mails),
        "handled": len(report.handled),
        "interrupted": report.interrupted,
        "proposed_right": report.right,
        "seconds": round(report.seconds, 3),
        "variants": [
            {"variant": one.variant, "went_out": one.went_out, "right": one.right, "money_lost": one.lost}
            for one in report.tallies
        ],
        "recording": str(plan.folder),
        "calls": [
            {
                "mail": ends[0].mail.id,
                "text": ends[0].mail.text,
                "proposed": spoken(ends[0].call),
                "right_call": ends[0].mail.right_call,
                "right": ends[0].right,
                "went_out": [one.went_out for one in ends],
                "rules": [one.verdict.rule if one.verdict else None for one in ends],
            }
            for ends in report.handled
        ],
    }
