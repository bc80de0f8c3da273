"""A threshold earned from answers: from which score on calls may go out unasked, with a promise that holds at any time.

Calls of one scope arrive with a score (higher: likelier right). Where one is asked about, the answer says whether it
was wrong; above the threshold in force it goes out unasked except for a random audit. For each candidate threshold c

    W_t(c) = prod_i (1 + lambda_i (s - x_i)),   x_i = asked_i * wrong_i * 1{S_i >= c} / P(asked_i)

with s = epsilon / (1 - q), q the least audit probability. Proof: let F be all that came before call i, its stake
lambda_i in [0, 1 / (1 / q_i - s)] and its audit probability q_i >= q functions of F, of no score, draw or answer of
that call. Its draw is independent of all else, so E[x_i | F] = r_i, the chance given F that it is wrong and at or above
c, and x_i <= 1 / q_i: no factor is negative, and each has mean 1 + lambda_i (s - r_i). While r_i >= s given any F,
W(c) is a nonnegative supermartingale that begins at 1, and ever reaches 1 / delta with probability at most delta
(Ville). With c in force, the call goes out wrong with probability (1 - q_i) r_i <= (1 - q) r_i: an audited call does
not go out. So where more than epsilon go out wrong at c, r_i > s. All functions work on one permit or, with leading
axes, on many.

Sources: Waudby-Smith and Ramdas (2024), Estimating means of bounded random variables by betting; Xu, Karampatziakis
and Mineiro (2024), Active, anytime-valid risk controlling prediction sets; Shin, Ramdas and Rinaldo (2024),
E-detectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, FloatArray, IntArray
from grampus_uq.stats.lasting_evidence import LOG_SPENT, RATIOS, log_begun, log_evidence
from grampus_uq.stats.ranks import check_level

MOST_THRESHOLDS: Final = 64
CANDIDATES: Final = (0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.92, 0.9, 0.88, 0.85, 0.82, 0.8, 0.75, 0.7, 0.65, 0.6, 0.5)
"""Thresholds for a stream in [0, 1], fixed before any data are seen."""
_LEAST_SHARE: Final = 0.8  # no stake assumes fewer wrong calls than this times the square of `Target.share`
_BOLD = (0.05, 2.0)  # wrong calls, and calls in units of 1 / share, that the stake on the strictest threshold adds to
_HEDGED = (1.5, 8.0)  # what was seen, so that the first permission comes early; those of the others
_DOUBTED = 0.2  # wrong calls that a plan adds above the threshold in force
_LEAST_MISSING = 0.05
_HORIZON = 400.0  # calls within which an audit should save as many questions as it costs
_STEEPNESS = 3.0
_RATIOS = np.array([2.0, 5.0, 15.0])  # of the risk over epsilon, on which the contrary evidence bets
_SPOILT = np.array([0.1, 0.25])  # share of the right answers that would become wrong, whatever the score
_RISEN: Final = 4.0  # odds that an answer is wrong, over what they were
_JOINED: Final = 5.0  # ratio of the contrary bet that is joined with each of those on calls that do not go out
_CAUTION = 0.25  # standard deviations by which the usual share of wrong answers is overestimated
_FEW, _OFTEN = 1.0, 8.0  # wrong answers that are added for the same reason, and for each unit of that share
_LOG_WITHDRAWAL: Final = math.log(5e4)
_CHANGE = (4_000.0, 1_000.0)  # the evidence on a change that withdraws, at first; calls in which it grows by as much
_LOG_SUSPICION: Final = math.log(10.0)
_LOG_DOUBT: Final = math.log(30.0)  # higher: these bets also win and lose below the threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The promise and its candidate thresholds, fixed before the first call.

    Attributes:
        thresholds: candidate scores, descending; those at or above the one in force go out.
        epsilon: largest share of wrong calls that go out, in (0, 0.5].
        delta: allowed probability that a threshold that breaks this is ever in force, in (0, 1).
        audit_rate: least probability that a call above the threshold is asked about, in (0, 1).
        of_released: False: epsilon is a share of all calls of the scope; True: of those at or above the threshold.
    """

    thresholds: tuple[float, ...]
    epsilon: float
    delta: float = 0.05
    audit_rate: float = 0.05
    of_released: bool = False

    def __post_init__(self) -> None:
        c = self.thresholds
        if not 1 <= len(c) <= MOST_THRESHOLDS or not all(math.isfinite(x) for x in c):
            raise ConfigurationError.of("thresholds", "Target", f"1 to {MOST_THRESHOLDS} finite numbers", c)
        if any(a <= b for a, b in pairwise(c)):
            raise ConfigurationError.of("thresholds", "Target", "strictly descending", c)
        for name in ("epsilon", "delta", "audit_rate"):
            check_level(name, "Target", getattr(self, name))
        if self.epsilon > 0.5:
            raise ConfigurationError.of("epsilon", "Target", "at most 0.5", self.epsilon)

    @property
    def share(self) -> float:
        """s of the bets: the share of calls wrong at or above a threshold that they rule out, audited ones included.

        At most 0.5. With `of_released` epsilon itself: audits stop the same part of the calls that may go out.
        """
        return self.epsilon if self.of_released else min(self.epsilon / (1.0 - self.audit_rate), 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Earned:
    """The evidence of one permit, or of many along leading axes; its size does not grow.

    Attributes:
        log_wealth: log W_t(c), one per threshold.
        log_peak: its maximum so far: what certifies.
        calls: all of them, one number.
        reached: calls at or above each threshold.
        slipped: wrong calls that an audit found, each divided by the audit's probability.
        log_contrary: evidence that the promise is broken, one per ratio; see `broken`.
        log_change: evidence that answers are wrong more often than they were, one per kind of change; then the same of
            calls below the threshold joined with evidence that the promise is broken.
        usual: answered calls by `place`, up to when nothing last spoke for a change.
        usual_wrong: those of them that were wrong.
        recent: answered calls since then.
        recent_wrong: those of them that were wrong.
        log_lasting: evidence that the promise is broken from exposed calls alone, one per ratio; see `spent`.
        log_lasting_peak: the logarithm of their mean, at most so far, or 0.
        exposed: calls that went into it, one number.
    """

    log_wealth: FloatArray
    log_peak: FloatArray
    calls: FloatArray
    reached: FloatArray
    slipped: FloatArray
    log_contrary: FloatArray
    log_change: FloatArray
    usual: FloatArray
    usual_wrong: FloatArray
    recent: FloatArray
    recent_wrong: FloatArray
    log_lasting: FloatArray
    log_lasting_peak: FloatArray
    exposed: FloatArray


def nothing_earned(target: Target, shape: tuple[int, ...] = ()) -> Earned:
    """Evidence before the first call."""
    k = len(target.thresholds)
    sizes = [k, k, 1, k, k, len(_RATIOS), 2 * (len(_SPOILT) + 1)] + [k + 1] * 4 + [len(RATIOS), 1, 1]
    return Earned(**dict(zip(Earned.__dataclass_fields__, (np.zeros((*shape, n)) for n in sizes), strict=True)))


def begun_anew(target: Target, earned: Earned) -> Earned:
    """Nothing earned, after a withdrawal: all is forgotten but the lasting evidence."""
    anew = nothing_earned(target, earned.calls.shape[:-1])
    return replace(
        anew, log_lasting=earned.log_lasting, log_lasting_peak=earned.log_lasting_peak, exposed=earned.exposed
    )


def chosen(which: BoolArray, these: Earned, others: Earned) -> Earned:
    """Of many permits, take `these` where `which` is True and `others` elsewhere."""
    pick = np.asarray(which)[..., None]
    fields = Earned.__dataclass_fields__
    return Earned(**{name: np.where(pick, getattr(these, name), getattr(others, name)) for name in fields})


def earned_to_json(earned: Earned) -> dict[str, list[float]]:
    """Return the evidence of one permit as plain JSON values; `earned_from_json` gives back an equal one."""
    return {name: getattr(earned, name).tolist() for name in Earned.__dataclass_fields__}


def earned_from_json(target: Target, data: Any) -> Earned:
    """Read what `earned_to_json` wrote; ConfigurationError for another shape, a missing key or no finite number."""
    expected = nothing_earned(target)
    if not isinstance(data, Mapping) or set(data) != set(Earned.__dataclass_fields__):
        raise ConfigurationError.of("earned", "earned_from_json", f"the keys {list(Earned.__dataclass_fields__)}", data)
    read = {}
    for name in Earned.__dataclass_fields__:
        given, size = data[name], getattr(expected, name).shape[0]
        right = isinstance(given, list) and len(given) == size
        if not right or not all(type(x) in (int, float) and math.isfinite(x) for x in given):
            raise ConfigurationError.of(name, "earned_from_json", f"{size} finite numbers", given)
        read[name] = np.array(given, dtype=np.float64)
    return Earned(**read)


def place(target: Target, score: npt.ArrayLike) -> IntArray:
    """The number of thresholds above a score: 0 at or above the strictest, all below the lowest. NaN is below all."""
    s = np.asarray(score, dtype=np.float64)[..., None]
    found: IntArray = (~(s >= np.array(target.thresholds))).sum(axis=-1)
    return found


def level(target: Target, earned: Earned) -> IntArray:
    """The number of thresholds in force: a call goes out where its `place` is less.

    Share of all calls: the risk falls with the threshold, so candidates are tested from strict to lax, each at 1/delta;
    a wrong one in force means that the strictest wrong one passed. Share of those released: each is tested at K/delta.
    None is in force once the lasting evidence is `spent`.
    """
    k = len(target.thresholds)
    if target.of_released:
        passed = earned.log_peak >= math.log(k / target.delta)
        found = np.where(passed, np.arange(1, k + 1), 0).max(axis=-1)
    else:
        failed = earned.log_peak < -math.log(target.delta)
        found = np.where(failed.any(axis=-1), failed.argmax(axis=-1), k)
    in_force: IntArray = np.where(spent(earned), 0, found)
    return in_force


def audit_probability(target: Target, earned: Earned) -> FloatArray:
    """Probability that the next call is asked about although it is above the threshold; 1 while none is in force.

    An audit is worth the questions that the thresholds it helps to earn save within 400 calls, over the one it costs:
    the least rate where that is little, 1 where it is more than 1. It is 1 on suspicion, too: from the first audited
    wrong call until enough right answers follow.
    """
    in_force = level(target, earned)
    rate = np.clip((_HORIZON * _worth(target, earned, in_force)) ** _STEEPNESS, target.audit_rate, 1.0)
    return np.where((in_force == 0) | suspected(earned), 1.0, rate)


def suspected(earned: Earned) -> BoolArray:
    """True from the first audited wrong call until enough right answers follow."""
    found: BoolArray = (earned.log_contrary.max(axis=-1) >= _LOG_SUSPICION) | (
        earned.log_change.max(axis=-1) >= _LOG_DOUBT
    )
    return found


def _worth(target: Target, earned: Earned, in_force: IntArray) -> FloatArray:
    """Share of further calls that the best candidate would let out, per call that is audited on the way to it.

    Under stakes that fit, log W grows by room * (1 - a + a log a) a fully audited call, where room is `Target.share`
    less the risk between the threshold in force and the candidate, and a the risk above it over room.
    """
    k = len(target.thresholds)
    out = _out(earned.reached, in_force)
    answered, wrong = (np.cumsum(counts, axis=-1)[..., :-1] for counts in _answers(earned))
    count = _counted(target, earned) + _HEDGED[1] / target.share
    found = _out(wrong, in_force) * out / np.maximum(_out(answered, in_force), 1.0)
    room = target.share - (np.maximum(wrong - _out(wrong, in_force), 0.0) + _HEDGED[0]) / count
    above = np.minimum((found + _DOUBTED) / count / np.maximum(room, 1e-9), 1.0)
    growth = room * (1.0 - above + above * np.log(above)) * _counted(target, earned) / np.maximum(earned.calls, 1.0)
    missing = np.maximum(math.log((k if target.of_released else 1) / target.delta) - earned.log_wealth, _LEAST_MISSING)
    worth = (earned.reached - out) * growth / (missing * np.maximum(out, 1.0))
    best: FloatArray = np.where(np.arange(k) >= in_force[..., None], worth, 0.0).max(axis=-1)
    return best


def _out(counts: FloatArray, in_force: IntArray) -> FloatArray:
    """Of counts at or above each threshold, those of the one in force, shape (..., 1); 0 while there is none."""
    last = np.maximum(in_force - 1, 0)[..., None]
    return np.where(in_force[..., None] > 0, np.take_along_axis(counts, last, axis=-1), 0.0)


def _answers(earned: Earned) -> tuple[FloatArray, FloatArray]:
    """Answered calls by place, and those that were wrong."""
    return earned.usual + earned.recent, earned.usual_wrong + earned.recent_wrong


def _counted(target: Target, earned: Earned) -> FloatArray:
    """Calls that count for a threshold: all of them, or those at or above it."""
    return earned.reached if target.of_released else earned.calls


def stakes(target: Target, earned: Earned, audit: FloatArray) -> FloatArray:
    """lambda of the next call for each threshold, from what was seen before it.

    With risks a above the threshold in force and b between it and the candidate, and audits of probability q, log W
    grows fastest near 1 - (a + q b) / (s - (1 - q) b) of the largest stake: where audits are rare, a wrong call
    that is always seen costs its share and no more.
    """
    eps, q = target.share, np.asarray(audit)[..., None]
    first = np.arange(len(target.thresholds)) == 0
    wrong, calls = (np.where(first, bold, hedged) for bold, hedged in zip(_BOLD, _HEDGED, strict=True))
    count = _counted(target, earned) + calls / eps
    above = (earned.slipped + _BOLD[0]) / count
    lost = np.cumsum(_answers(earned)[1], axis=-1)[..., :-1]
    below = (np.maximum(lost - _out(lost, level(target, earned)), 0.0) + wrong) / count
    room = eps - (1.0 - q) * below
    assumed = np.where(room > 0.0, (above + q * below) / np.maximum(room, 1e-9), 1.0)
    return np.clip(1.0 - np.maximum(assumed, _LEAST_SHARE * eps), 0.0, None) / (1.0 / q - eps)


def update(
    target: Target,
    earned: Earned,
    at: npt.ArrayLike,
    draw: npt.ArrayLike,
    wrong: npt.ArrayLike,
    *,
    in_force: npt.ArrayLike,
    audit: npt.ArrayLike,
) -> Earned:
    """Take one call of the scope, in the order in which calls were proposed, whether it was asked about or not.

    It was where its `place` is not in force, or its draw is below its audit probability.

    Guarantee: if the calls' chance to be wrong at or above c, given the past, is at least `Target.share` (of all calls,
    or of those at or above c), W(c) ever reaches 1/delta with probability at most delta. What breaks it: calls left out
    for how they look or went, answers that are not the truth, an audit drawn otherwise than with the probability
    stated, thresholds or scores chosen with the answers that are counted here, calls that count though they have no
    score, a risk that moves faster than audits see.

    `at`: `place` of its score. `draw`: a number in [0, 1) that is independent of all else. `wrong`: the answer; read
    only where it was asked about. `in_force` and `audit`: `level` and `audit_probability` (or 1) when it was proposed.
    """
    spot, drawn = np.asarray(at)[..., None], np.asarray(draw, dtype=np.float64)[..., None]
    q, m = np.asarray(audit, dtype=np.float64)[..., None], np.asarray(in_force)[..., None]
    out = spot < m
    seen: BoolArray = ~out | (drawn < q)
    bad: BoolArray = seen & np.asarray(wrong, dtype=np.bool_)[..., None]
    weight = 1.0 / np.where(out, q, 1.0)
    above = spot <= np.arange(len(target.thresholds))
    counts = above if target.of_released else np.ones_like(above)
    loss = np.where(bad & above, weight, 0.0)
    gain = np.where(counts, np.log1p(stakes(target, earned, q[..., 0]) * (target.share - loss)), 0.0)
    wealth = earned.log_wealth + gain
    lasting = _lasting(target, earned, out, bad & (drawn < target.audit_rate), q < 1.0)
    return replace(
        _watched(target, lasting, np.asarray(at), seen, bad, out, q),
        log_wealth=wealth,
        log_peak=np.maximum(earned.log_peak, wealth),
        calls=earned.calls + 1.0,
        reached=earned.reached + above,
        slipped=earned.slipped + np.where(bad & out & above, weight, 0.0),
    )


def broken(target: Target, earned: Earned) -> tuple[BoolArray, BoolArray]:
    """True if the threshold in force must be withdrawn: the promise is broken; wrong answers have become frequent.

    Guarantee of the first: while at most epsilon are wrong above the threshold given the past, it becomes True after
    50,000 calls at the earliest on average, and seldom before (an e-detector). Of the second, each kind of change would
    withdraw within n calls with probability at most the sum of 1 over what it needs at each (.98 for 50,000), while
    answers of a zone of the score are wrong no more often than before, were that share known. It is an estimate on the
    cautious side, and the score within a zone may move: `tests/benchmarks/permits.py` measures both.
    """
    contrary = np.logaddexp.reduce(earned.log_contrary, axis=-1) - math.log(len(_RATIOS)) >= _LOG_WITHDRAWAL
    needed = math.log(_CHANGE[0]) + np.log1p(earned.calls[..., 0] / _CHANGE[1])
    return contrary, earned.log_change.max(axis=-1) >= needed


def spent(earned: Earned) -> BoolArray:
    """True if the permission is withdrawn for good: over all its time more went out wrong than promised.

    Guarantee: while at most epsilon were wrong above the threshold given the past, also of those audited, this is ever
    True with probability at most 1 % (`lasting_evidence`).
    """
    found: BoolArray = earned.log_lasting_peak[..., 0] >= LOG_SPENT
    return found


def _lasting(target: Target, earned: Earned, out: BoolArray, caught: BoolArray, exposed: BoolArray) -> Earned:
    """Take one call into the lasting evidence, if it was exposed; with `of_released`, and above the threshold.

    `caught`: wrong, and asked about at the least rate, too. So nothing here depends on the rate that was in force.
    """
    counts = exposed & out if target.of_released else exposed
    least = np.array([target.audit_rate])
    loss = np.where(caught, 1.0 / least, 0.0)
    moved = log_begun(earned.exposed, earned.log_lasting) + _contrary(target, out, loss, least, RATIOS)
    log_lasting = np.where(counts, moved, earned.log_lasting)
    return replace(
        earned,
        log_lasting=log_lasting,
        log_lasting_peak=np.maximum(earned.log_lasting_peak, log_evidence(log_lasting)),
        exposed=earned.exposed + counts,
    )


def _contrary(target: Target, out: BoolArray, loss: FloatArray, q: FloatArray, ratios: FloatArray) -> FloatArray:
    """Log factors of bets that more than epsilon of the calls go out wrong, one per ratio."""
    mu = np.minimum((ratios - 1.0) * q, 0.9 / target.epsilon)
    factor = np.log1p(mu * (np.where(out, loss, 0.0) - target.epsilon))
    return np.where(out, factor, 0.0) if target.of_released else factor


def _watched(
    target: Target, earned: Earned, at: IntArray, seen: BoolArray, bad: BoolArray, out: BoolArray, q: FloatArray
) -> Earned:
    """Bets that the promise is broken, and that answers in the zone of this score are wrong more often than before.

    Each begins anew whenever it has lost. The joined ones bet on the first where the call may go out, on the second
    where it may not: a call is one or the other, so their factors multiply. The bet on a change is a ratio of
    likelihoods; its estimate is of answers before this one.
    """
    loss = np.where(bad, 1.0 / q, 0.0)
    against = _contrary(target, out, loss, q, _RATIOS)
    worse = np.where(seen, _worse(bad, _usual_share(target, earned, at[..., None])), 0.0)
    joined = _contrary(target, out, loss, q, np.array([_JOINED])) + np.where(out, 0.0, worse)
    change = np.maximum(earned.log_change, 0.0) + np.concatenate([worse, joined], axis=-1)
    here = (np.arange(len(target.thresholds) + 1) == at[..., None]) & seen
    recent, recent_wrong = earned.recent + here, earned.recent_wrong + (here & bad)
    settled = change[..., : change.shape[-1] // 2].max(axis=-1, keepdims=True) <= 0.0
    return replace(
        earned,
        log_contrary=np.maximum(earned.log_contrary, 0.0) + against,
        log_change=change,
        usual=np.where(settled, earned.usual + recent, earned.usual),
        usual_wrong=np.where(settled, earned.usual_wrong + recent_wrong, earned.usual_wrong),
        recent=np.where(settled, 0.0, recent),
        recent_wrong=np.where(settled, 0.0, recent_wrong),
    )


def _usual_share(target: Target, earned: Earned, at: IntArray) -> FloatArray:
    """Share of wrong answers in the zone of this place before, on the cautious side, shape (..., 1).

    Three zones: what the threshold in force lets out, and the places below it in two halves.
    """
    places = np.arange(len(target.thresholds) + 1)
    in_force = level(target, earned)[..., None]
    middle = (in_force + len(places)) // 2
    zone = (places >= in_force).astype(np.int64) + (places >= middle)
    here = zone == (at >= in_force).astype(np.int64) + (at >= middle)
    n = np.where(here, earned.usual, 0.0).sum(axis=-1, keepdims=True)
    k = np.where(here, earned.usual_wrong, 0.0).sum(axis=-1, keepdims=True)
    more = _CAUTION * np.sqrt(k + 1.0) + _FEW + _OFTEN * k / (n + 1.0)
    share: FloatArray = np.minimum((k + more) / (n + 1.0), 1.0)
    return share


def _worse(bad: BoolArray, usual: FloatArray) -> FloatArray:
    """Log ratio of likelihoods of an answer after and before each kind of change."""
    spoilt = np.log(np.where(bad, (usual + _SPOILT * (1.0 - usual)) / usual, 1.0 - _SPOILT))
    risen = np.log(np.where(bad, _RISEN, 1.0) / (1.0 - usual + _RISEN * usual))
    return np.concatenate([spoilt, risen], axis=-1)


def share_of_needed(target: Target, earned: Earned) -> FloatArray:
    """log W_t(c) of each threshold over what it needs to come into force, which it does at 1; for a picture."""
    needed = math.log((len(target.thresholds) if target.of_released else 1) / target.delta)
    found: FloatArray = earned.log_wealth / needed
    return found
