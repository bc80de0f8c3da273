"""A step scorer that is fitted: softmax within the trajectory over cheap features, with a ridge penalty.

`p_j = exp(w . z_j) / sum_l exp(w . z_l)`, where z are the features standardised on the fitting part, and the step score
is `v_j = L p_j`: how many times as likely as an average step, comparable between short and long trajectories.

Fitted by Newton's method on the concave penalised likelihood, on labelled trajectories that serve nothing else.
(Conditional logit: McFadden, 1974. Not in the attribution paper, whose scorers are language models.)
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution.failed_trajectory import LabelledTrajectory, Trajectory
from grampus_uq.learn.attribution.scorers import StepScore
from grampus_uq.signals.components import lexical_overlap
from grampus_uq.stats.arrays import FloatArray

READ_CHARACTERS = 20_000
_REPETITION_WINDOW = 20
"""Earlier steps that a step is compared with; bounds the work on a long trajectory."""

_WORD = re.compile(r"[^\W_]+")
_HEDGE = re.compile(
    r"\b(?:assum\w{0,8}|hypothetical\w{0,3}|placeholder|simulat\w{0,6}|perhaps|probably|likely|might|may|should|"
    r"example)\b"
)
_CHECK = re.compile(r"\b(?:verif|valid|confirm|check)")
_CONCLUDE = re.compile(r"\b(?:final|therefore|thus|answer|result)\b")
_CLOSE = re.compile(r"\bTERMINATE\b|###STOP###")

FEATURE_WORDS: dict[str, tuple[str, str]] = {
    "position": ("late in the run", "early in the run"),
    "log_position": ("far from the start", "near the start"),
    "first": ("the first step", "not the first step"),
    "second": ("the second step", "not the second step"),
    "last": ("the last step", "not the last step"),
    "observation": ("the environment's words", "an agent's words"),
    "before_observation": ("followed by an observation", "not followed by an observation"),
    "tool_failed": ("reports a failed tool", "reports no failed tool"),
    "before_tool_failure": ("followed by a failed tool", "not followed by a failed tool"),
    "failures_before": ("tools failed before", "few tools failed before"),
    "speaker_first_turn": ("its speaker's first turn", "not its speaker's first turn"),
    "speaker_turns": ("its speaker had many turns", "its speaker had few turns"),
    "repetition": ("repeats an earlier step", "repeats little"),
    "new_words": ("many new words", "few new words"),
    "length": ("long", "short"),
    "code": ("holds code", "holds no code"),
    "digits": ("many digits", "few digits"),
    "hedging": ("assumes or hedges", "neither assumes nor hedges"),
    "checking": ("speaks of checking", "does not speak of checking"),
    "concluding": ("speaks of a result", "does not speak of a result"),
    "closing": ("closes the run", "does not close the run"),
}
"""Every feature, and how an explanation says that it is above and below the run's average."""


def cheap_features(trajectory: Trajectory) -> tuple[tuple[str, ...], FloatArray]:
    """Compute the features of every step of a trajectory of L steps.

    Returns names (F,), the keys of `FEATURE_WORDS`, and values of shape (L, F), finite and unscaled: counts enter as
    log(1 + count), flags as 0 or 1, shares in [0, 1].
    """
    steps = trajectory.steps
    texts = [step.text[:READ_CHARACTERS] for step in steps]
    lowered = [text.casefold() for text in texts]
    words = [frozenset(_WORD.findall(text)) for text in lowered]
    columns = {
        **_place(len(steps)),
        **_tools([step.observation for step in steps], [step.tool_failed is True for step in steps]),
        **_speakers([step.speaker for step in steps]),
        **_repeats(words, frozenset(_WORD.findall(trajectory.task[:READ_CHARACTERS].casefold()))),
        **_writing([len(step.text) for step in steps], texts, lowered),
    }
    matrix = np.array([columns[name] for name in FEATURE_WORDS], dtype=np.float64).T
    return tuple(FEATURE_WORDS), matrix


def _place(length: int) -> dict[str, list[float]]:
    places = range(length)
    return {
        "position": [place / max(1, length - 1) for place in places],
        "log_position": [math.log1p(place) for place in places],
        "first": [float(place == 0) for place in places],
        "second": [float(place == 1) for place in places],
        "last": [float(place == length - 1) for place in places],
    }


def _tools(observation: Sequence[bool], failed: Sequence[bool]) -> dict[str, list[float]]:
    before = np.concatenate([[0], np.cumsum(failed)[:-1]])
    return {
        "observation": [float(flag) for flag in observation],
        "before_observation": [*map(float, observation[1:]), 0.0],
        "tool_failed": [float(flag) for flag in failed],
        "before_tool_failure": [*map(float, failed[1:]), 0.0],
        "failures_before": np.log1p(before).tolist(),
    }


def _speakers(speakers: Sequence[str]) -> dict[str, list[float]]:
    turns: Counter[str] = Counter()
    earlier = []
    for speaker in speakers:
        earlier.append(turns[speaker])
        turns[speaker] += 1
    return {
        "speaker_first_turn": [float(count == 0) for count in earlier],
        "speaker_turns": [math.log1p(count) for count in earlier],
    }


def _repeats(words: Sequence[frozenset[str]], task: frozenset[str]) -> dict[str, list[float]]:
    """Greatest Jaccard overlap with a step of the window, and log of the number of words that are new."""
    repetition, new = [], []
    known = set(task)
    for place, own in enumerate(words):
        window = words[max(0, place - _REPETITION_WINDOW) : place]
        repetition.append(max((lexical_overlap(own, other) for other in window), default=0.0))
        new.append(math.log1p(len(own - known)))
        known |= own
    return {"repetition": repetition, "new_words": new}


def _writing(lengths: Sequence[int], texts: Sequence[str], lowered: Sequence[str]) -> dict[str, list[float]]:
    return {
        "length": [math.log1p(length) for length in lengths],
        "code": [float("```" in text) for text in texts],
        "digits": [math.log1p(sum(map(str.isdigit, text))) for text in texts],
        "hedging": [float(_HEDGE.search(text) is not None) for text in lowered],
        "checking": [float(_CHECK.search(text) is not None) for text in lowered],
        "concluding": [float(_CONCLUDE.search(text) is not None) for text in lowered],
        "closing": [float(_CLOSE.search(text) is not None) for text in texts],
    }


_RIDGE = 30.0
"""Default penalty on half the squared weights; strong, because labelled failures are few."""

_LARGEST = 1e100
"""Of a stored number: products and sums of 21 features stay finite."""
_SCALE_FLOOR = 1e-6  # a feature with less spread than this is constant: it is centred, not blown up


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionalLogit:
    """The fitted numbers: a name, a mean, a scale (> 0) and a weight for each feature.

    fitted_on: ids of the trajectories that served the fit; calibration refuses them.
    """

    features: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    ridge: float
    fitted_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("mean", "scale", "weights"):
            values = getattr(self, name)
            if len(values) != len(self.features) or not all(abs(value) <= _LARGEST for value in values):
                rule = f"{len(self.features)} numbers within +-{_LARGEST:g}"
                raise ConfigurationError.of(name, "ConditionalLogit", rule, values)
        if min(self.scale, default=1.0) < _SCALE_FLOOR:
            raise ConfigurationError.of("scale", "ConditionalLogit", f"at least {_SCALE_FLOOR:g}", self.scale)

    def standardised(self, values: FloatArray) -> FloatArray:
        """Bring features of shape (L, F) to the scale of the fit."""
        return np.asarray((values - np.array(self.mean)) / np.array(self.scale))

    def probabilities(self, values: FloatArray) -> FloatArray:
        """Return p_j of one trajectory from its features of shape (L, F): in (0, 1), summing to 1."""
        scores = self.standardised(values) @ np.array(self.weights)
        odds = np.exp(scores - scores.max())
        return np.asarray(odds / odds.sum())


def fit_conditional_logit(
    features: Sequence[FloatArray],
    error_steps: Sequence[Sequence[int]],
    names: Sequence[str],
    *,
    ridge: float = _RIDGE,
    fitted_on: Sequence[str] = (),
) -> ConditionalLogit:
    """Fit the weights: maximise `sum_i mean_{j in errors_i} log p_ij - (ridge/2) |w|^2`.

    `features`: n >= 1 arrays of shape (L_i, F), finite; `error_steps`: n sequences of indices, at least one each;
    several errors in one trajectory share its weight. `names`: F feature names. `ridge`: penalty on standardised
    weights, > 0 (which also makes the maximum unique). `fitted_on`: ids to remember, so that calibration can refuse
    them. Features are standardised by mean and deviation over all steps of the fitting part; a constant one gets the
    weight 0.
    """
    if not 0.0 < ridge < math.inf:
        raise ConfigurationError.of("ridge", "fit_conditional_logit", "positive and finite", ridge)
    if not features or len(features) != len(error_steps):
        rule = "at least one trajectory, each with its errors"
        raise ConfigurationError.of("features", "fit_conditional_logit", rule, (len(features), len(error_steps)))
    for i, values in enumerate(features):
        if values.ndim != 2 or values.shape[1] != len(names) or not np.isfinite(values).all():
            rule = f"finite, of shape (L, {len(names)})"
            raise ConfigurationError.of("features", "fit_conditional_logit", rule, f"row {i}: {values.shape}")
    stacked = np.concatenate(list(features))
    mean, spread = stacked.mean(axis=0), stacked.std(axis=0)
    scale = np.where(spread < _SCALE_FLOOR, 1.0, spread)
    lengths = np.array([len(values) for values in features])
    targets = np.concatenate([_shares(len(f), errors) for f, errors in zip(features, error_steps, strict=True)])
    weights = _newton((stacked - mean) / scale, targets, lengths, ridge)
    return ConditionalLogit(
        features=tuple(names),
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        weights=tuple(weights.tolist()),
        ridge=ridge,
        fitted_on=tuple(fitted_on),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionalLogitScorer:
    """Scores a trajectory with a fit over `cheap_features`: `v_j = L p_j`."""

    model: ConditionalLogit
    name: str = "conditional_logit"

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """Ids of the trajectories that the fit has seen."""
        return self.model.fitted_on

    def score(self, trajectory: Trajectory, /) -> Sequence[StepScore]:
        """Score every step, each with the features that speak most against it.

        Raises ConfigurationError when the fit is over other features.
        """
        names, values = cheap_features(trajectory)
        if names != self.model.features:
            rule = f"fitted on the {len(names)} features of `cheap_features`"
            raise ConfigurationError.of("model", "ConditionalLogitScorer", rule, self.model.features)
        p = self.model.probabilities(values)
        z = self.model.standardised(values)
        above = z - z.mean(axis=0)
        weights = np.array(self.model.weights)
        return [
            StepScore(value=float(len(p) * share), why=_reasons(names, row, row * weights))
            for share, row in zip(p, above, strict=True)
        ]


def fit_step_scorer(labelled: Sequence[LabelledTrajectory]) -> ConditionalLogitScorer:
    """Fit a `ConditionalLogitScorer` on labelled trajectories, at least one; they must serve nothing else (calibration
    refuses them).
    """
    rows = [cheap_features(item.trajectory)[1] for item in labelled]
    model = fit_conditional_logit(
        rows,
        [item.error_steps for item in labelled],
        tuple(FEATURE_WORDS),
        fitted_on=[item.trajectory.trajectory_id for item in labelled],
    )
    return ConditionalLogitScorer(model=model)


def _newton(z: FloatArray, targets: FloatArray, lengths: npt.NDArray[np.int64], ridge: float) -> FloatArray:
    """Maximise the penalised likelihood; steps are halved until they do not lose, so it cannot run away."""
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    owner = np.repeat(np.arange(len(lengths)), lengths)

    def at(w: FloatArray) -> tuple[float, FloatArray]:
        scores = z @ w
        top = np.maximum.reduceat(scores, starts)
        weights = np.exp(scores - top[owner])
        total = np.add.reduceat(weights, starts)
        log_p = scores - (top + np.log(total))[owner]
        return float(targets @ log_p - ridge / 2.0 * (w @ w)), weights / total[owner]

    w = np.zeros(z.shape[1])
    value, p = at(w)
    for _ in range(100):
        gradient = z.T @ (targets - p) - ridge * w
        means = np.add.reduceat(p[:, None] * z, starts)
        hessian = (p[:, None] * z).T @ z - means.T @ means + ridge * np.eye(len(w))
        step = np.linalg.solve(hessian, gradient)
        if float(gradient @ step) < 1e-18 * max(1.0, abs(value)):  # twice the gain that is left
            break
        new_value, new_p = at(w + step)
        while new_value < value and float(np.abs(step).max()) > 1e-12:
            step = step / 2.0
            new_value, new_p = at(w + step)
        w, value, p = w + step, new_value, new_p
    return w


def _shares(length: int, errors: Sequence[int]) -> FloatArray:
    shares = np.zeros(length)
    if not errors or not all(0 <= step < length for step in errors):
        rule = f"indices in 0..{length - 1}, at least one"
        raise ConfigurationError.of("error_steps", "fit_conditional_logit", rule, list(errors))
    shares[list(errors)] = 1.0 / len(set(errors))
    return shares


def _reasons(names: Sequence[str], above: FloatArray, parts: FloatArray) -> str:
    """The three features that raise the step most above the run's average, in log-odds."""
    reasons = []
    for i in np.argsort(-parts, kind="stable")[:3]:
        if parts[i] >= 0.01:
            high, low = FEATURE_WORDS[names[i]]
            reasons.append(f"{high if above[i] > 0.0 else low} (+{parts[i]:.2f})")
    return ", ".join(reasons)
