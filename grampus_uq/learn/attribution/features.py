"""Cheap features of a step: position, speaker, tool results, repetition, style.

No model call, no label, no reference answer. Linear in the text: each step is read up to `READ_CHARACTERS`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from grampus_uq.learn.attribution.failed_trajectory import Trajectory
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
    """Compute the features of every step.

    Args:
        trajectory: L steps.

    Returns:
        Names (F,), the keys of `FEATURE_WORDS`, and values of shape (L, F), finite and unscaled: counts enter as
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
        repetition.append(max((_overlap(own, other) for other in window), default=0.0))
        new.append(math.log1p(len(own - known)))
        known |= own
    return {"repetition": repetition, "new_words": new}


def _overlap(first: frozenset[str], second: frozenset[str]) -> float:
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared) if shared else 0.0


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
