"""Report on the questions: the answers behind each decision, and the number of right ones."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from grampus_uq.cli.demo.demo_run import Answered, Fate
from grampus_uq.cli.demo.demo_wiring import PUBLISHED, DemoPlan
from grampus_uq.records.vocabulary import UncertaintyAction

_FATES: Final[Mapping[Fate, tuple[str, str]]] = {
    "published": ("published", "let pass"),
    "paused": ("paused for a human", "would pause"),
    "aborted": ("aborted", "would abort"),
    "unanswered": ("no answer", "no answer"),
}
_NO_PROMISE: Final = (
    "The tiers carry no guarantee: nothing bounds how many right answers they pause or wrong ones they publish."
)


def demo_report(answers: Sequence[Answered], plan: DemoPlan, *, interrupted: bool) -> dict[str, Any]:
    """Count a run, finished or interrupted, as JSON values; of an advisory monitor, what its policy wanted.

    `promises` are those of a fitted profile. What each signal is worth is left to `grampus-uq evaluate`.
    """
    fates = [(_wanted(one), one.right is True) for one in answers]
    n, right = Counter(fate for fate, _ in fates), Counter(fate for fate, is_right in fates if is_right)
    artifact = plan.monitor.artifact
    return {
        "model": plan.model,
        "seed": plan.seed,
        "questions": len(plan.questions),
        "drawn_from": plan.out_of,
        "answered": sum(one.right is not None for one in answers),
        "right": right.total(),
        "interrupted": interrupted,
        "advisory": plan.monitor.profile.advisory,
        "groups": [{"decision": fate, "n": n[fate], "right": right[fate]} for fate in _FATES],
        "promises": list(artifact.guarantees) if artifact else [],
        "processor_failures": plan.monitor.processor_failures,
        "recording": str(plan.folder),
        "next_command": plan.next_command,
    }


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The report for a reader, without any text of the model."""
    ended = " - interrupted" if report["interrupted"] else ""
    yield (
        f"{report['model'] or 'The server'}: {report['answered']} questions answered, {report['right']} right "
        f"(drawn from {report['drawn_from']}, seed {report['seed']}){ended}"
    )
    yield f"{'what the policy would do' if report['advisory'] else 'what happened':<24}  answers  right"
    for group in report["groups"]:
        if group["n"]:
            words = _FATES[group["decision"]][report["advisory"]]
            yield f"{words:<24}  {group['n']:>7}  {group['right']:>5}"
    yield from report["promises"] or (_NO_PROMISE,)
    for name, failures in report["processor_failures"].items():
        yield f"{name} failed {failures} times: its output is incomplete."
    yield f"Recording: {report['recording']} (published answers in {PUBLISHED})"
    if report["advisory"]:  # else the runs that were held are left out of every score
        yield f"Signals:   grampus-uq evaluate {shlex.quote(report['recording'])}"
    yield f"Next:      {report['next_command']}"


def _wanted(one: Answered) -> Fate:
    """The fate that the policy wanted; the same as the real one unless the monitor was advisory."""
    if one.wanted is None:
        return one.fate
    if one.wanted is UncertaintyAction.ABORT:
        return "aborted"
    return "paused" if one.wanted.stops else "published"
