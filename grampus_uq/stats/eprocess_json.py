"""A detector as plain JSON values and back, to the last bit; what does not fit is refused before anything uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats import json_reading as read
from grampus_uq.stats import tree_ensemble
from grampus_uq.stats.eprocess import Detector
from grampus_uq.stats.eprocess_scorers import FeatureScorer, LinearScore, PaperScorer
from grampus_uq.stats.eprocess_thresholds import threshold_from_json, threshold_to_json

FORMAT = 1
"""Raised whenever the meaning of a stored detector changes."""


def detector_to_json(detector: Detector) -> dict[str, Any]:
    """Return the detector as a strictly JSON-able mapping; `detector_from_json` gives back an equal one."""
    return {
        "format": FORMAT,
        "streams": list(detector.streams),
        "scorer": _scorer_to_json(detector.scorer),
        "thresholds": [threshold_to_json(threshold) for threshold in detector.thresholds],
        "deployed": detector.deployed,
        "salt": detector.salt,
        "null_peaks": [[read.written(peak), tie] for peak, tie in detector.null_peaks],
        **({} if detector.without_gaps is None else {"without_gaps": list(detector.without_gaps)}),
    }


def detector_from_json(data: Any) -> Detector:
    """Read what `detector_to_json` wrote, with every check of the constructors.

    Raises:
        ConfigurationError: another format, a key missing or unknown, a value of the wrong kind, a broken rule.
    """
    keys = {"format", "streams", "scorer", "thresholds", "deployed", "salt", "null_peaks"}
    if isinstance(data, Mapping) and "without_gaps" in data:  # unknown to older versions
        keys.add("without_gaps")
    fields = read.mapping(data, "data", keys)
    known = "without_gaps" in fields
    if fields["format"] != FORMAT:
        way_out = "a newer version wrote it? upgrade; otherwise fit again"
        raise ConfigurationError.of("format", "Detector", f"{FORMAT}", fields["format"], way_out)
    return Detector(
        streams=read.items(fields["streams"], "streams", read.text),
        scorer=_scorer_from_json(fields["scorer"]),
        thresholds=read.items(fields["thresholds"], "thresholds", lambda item, _: threshold_from_json(item)),
        deployed=read.whole(fields["deployed"], "deployed"),
        salt=read.text(fields["salt"], "salt"),
        null_peaks=read.items(fields["null_peaks"], "null_peaks", _peak),
        without_gaps=read.items(fields["without_gaps"], "without_gaps", read.text) if known else None,
    )


def _scorer_to_json(scorer: FeatureScorer | PaperScorer) -> dict[str, Any]:
    if isinstance(scorer, PaperScorer):
        return {
            "kind": "paper",
            "intercepts": list(scorer.intercepts),
            "weights": [list(row) for row in scorer.weights],
            "prior_log_odds": scorer.prior_log_odds,
            "fill": scorer.fill,
            "limit": scorer.limit,
        }
    linear = scorer.linear
    return {
        "kind": "features",
        "name": scorer.name,
        "clips": list(scorer.clips),
        "neutral": list(scorer.neutral),
        "longest": scorer.longest,
        "linear": None
        if linear is None
        else {
            "columns": list(linear.columns),
            "intercepts": list(linear.intercepts),
            "weights": [list(row) for row in linear.weights],
        },
        "trees": None if scorer.trees is None else tree_ensemble.to_json(scorer.trees),
        "tree_share": scorer.tree_share,
        "prior_log_odds": scorer.prior_log_odds,
        "limit": scorer.limit,
        "sees_last": scorer.sees_last,
    }


def _scorer_from_json(data: Any) -> FeatureScorer | PaperScorer:
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind == "paper":
        fields = read.mapping(data, "scorer", {"kind", "intercepts", "weights", "prior_log_odds", "fill", "limit"})
        return PaperScorer(
            intercepts=read.items(fields["intercepts"], "intercepts", read.maybe_number),
            weights=read.items(fields["weights"], "weights", read.numbers),
            prior_log_odds=read.number(fields["prior_log_odds"], "prior_log_odds"),
            fill=read.number(fields["fill"], "fill"),
            limit=read.number(fields["limit"], "limit"),
        )
    if kind != "features":
        raise ConfigurationError.of("kind", "Detector", "'features' or 'paper'", kind)
    keys = {"kind", "name", "clips", "neutral", "longest", "linear", "trees", "tree_share"}
    fields = read.mapping(data, "scorer", keys | {"prior_log_odds", "limit", "sees_last"})
    if not isinstance(fields["sees_last"], bool):
        raise ConfigurationError.of("sees_last", "Detector", "true or false", fields["sees_last"])
    return FeatureScorer(
        name=read.text(fields["name"], "name"),
        clips=read.items(fields["clips"], "clips", read.maybe_number),
        neutral=read.numbers(fields["neutral"], "neutral"),
        longest=read.whole(fields["longest"], "longest"),
        linear=None if fields["linear"] is None else _linear(fields["linear"]),
        trees=None if fields["trees"] is None else tree_ensemble.from_json(fields["trees"]),
        tree_share=read.number(fields["tree_share"], "tree_share"),
        prior_log_odds=read.number(fields["prior_log_odds"], "prior_log_odds"),
        limit=read.maybe_number(fields["limit"], "limit"),
        sees_last=fields["sees_last"],
    )


def _linear(data: Any) -> LinearScore:
    fields = read.mapping(data, "linear", {"columns", "intercepts", "weights"})
    return LinearScore(
        columns=read.items(fields["columns"], "columns", read.whole),
        intercepts=read.numbers(fields["intercepts"], "intercepts"),
        weights=read.items(fields["weights"], "weights", read.numbers),
    )


def _peak(value: Any, name: str) -> tuple[float, float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ConfigurationError.of(name, "from_json", "pairs of numbers", value)
    return read.extended(value[0], name), read.number(value[1], name)
