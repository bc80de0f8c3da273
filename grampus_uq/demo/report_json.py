"""The demo's report as one JSON object, with every answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from grampus_uq.demo.demo_report import DemoReport, Spent
from grampus_uq.demo.demo_run import Answered
from grampus_uq.demo.demo_wiring import DemoPlan


def report_json(
    report: DemoReport, answers: Sequence[Answered], plan: DemoPlan, *, interrupted: bool
) -> dict[str, Any]:
    """Write the report as JSON values; answers are in the order of their ids."""
    return {
        "model": plan.model,
        "seed": plan.seed,
        "questions": len(plan.questions),
        "drawn_from": plan.out_of,
        "answered": report.answered,
        "right": report.right,
        "interrupted": interrupted,
        "seconds": round(report.seconds, 3),
        "advisory": report.advisory,
        "groups": [{"decision": group.fate, "n": group.n, "right": group.right} for group in report.groups],
        "signals": [
            {
                "signal": worth.source,
                "n": worth.n,
                "auroc": worth.auroc,
                "auroc_low": worth.low,
                "auroc_high": worth.high,
                "missing": worth.missing,
                "calls": worth.calls,
                "tokens": worth.tokens,
            }
            for worth in report.signals
        ],
        "agent": _spent_json(report.agent),
        "monitor": _spent_json(report.monitor),
        "remarks": list(report.remarks),
        "processor_failures": plan.monitor.processor_failures,
        "recording": str(plan.folder),
        "next_command": plan.next_command,
        "answers": [_answer_json(one) for one in sorted(answers, key=lambda one: one.question.id)],
    }


def _spent_json(spent: Spent) -> dict[str, Any]:
    return asdict(spent) | {"tokens": spent.tokens}


def _answer_json(one: Answered) -> dict[str, Any]:
    assessment = one.assessment
    return {
        "id": one.question.id,
        "topic": one.question.topic,
        "session_id": one.session_id,
        "question": one.question.text,
        "answer": one.answer,
        "accepted": list(one.question.key.accepted),
        "right": one.right,
        "decision": one.fate,
        "wanted_action": None if one.wanted is None else one.wanted.value,
        "rule": None if one.verdict is None else one.verdict.rule,
        "level": None if assessment is None else assessment.level.value,
        "fused_confidence": None if assessment is None else assessment.fused_confidence,
        "propagated_confidence": None if assessment is None else assessment.propagated_confidence,
        "trajectory_risk": None if assessment is None else assessment.trajectory_risk,
        "surprisal": one.surprisal,
        "readings": {
            reading.source: reading.value if reading.value is not None else {"missing": reading.reason}
            for reading in one.readings
        },
        "seconds": round(one.duration_s, 3),
        "error": one.error or None,
    }
