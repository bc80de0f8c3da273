"""What is shown does not tell a drill from a request, short of comparing the call with its run: the reviewer's task."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from grampus_uq.runtime.cards import Card
from tests.runtime.drill_worlds import RULES, made, plan, request

pytestmark = pytest.mark.timeout(7_200)
WORLDS = pytest.mark.parametrize(
    "seeds", [pytest.param((2,), marks=pytest.mark.slow), pytest.param((1, 2, 3), marks=pytest.mark.promises)]
)


def noise(worlds: int) -> float:
    """Worlds differ by .017 (standard deviation): their mean is this much above its expectation once in 20 times."""
    return 0.0277 / math.sqrt(worlds)


def shown_text(card: Card) -> str:
    """Everything of a card that terminal or page shows, times aside."""
    said = " ".join(f"[{m.role.value}] {m.content} {m.tool_calls}" for m in card.messages)
    call = f"{card.tool} {card.arguments} {card.call_id}"
    rest = f"{card.level} {card.rule} {card.reason} {card.confidence} {card.readings} {card.rules}"
    return (
        f"{card.id} {card.digest} {card.agent_id} {card.session_id} {card.run_id} {card.step_id} {call} {rest} {said}"
    )


@functools.cache
def queue(seed: int, count: int) -> tuple[list[Card], list[bool]]:
    """A year of requests, 1 in 20 of them wrong, each followed by a drill made of requests before; in order of time."""
    rng = random.Random(seed)
    sources = [request(rng, 0.0, number)[1] for number in range(2 * count)]
    mixed: list[tuple[Card, bool]] = []
    at_s = 1_000_000.0
    for number in range(count):
        at_s += rng.expovariate(1.0 / 120.0)
        asked = request(rng, at_s, 2 * count + number, right=rng.random() > 0.05)[1]
        mixed.append((asked, False))
        drill = made(plan(0.5, RULES), rng.sample(sources, 100), asked, rng)
        assert drill is not None
        sources = [source for source in sources if source.digest != drill.source]
        mixed.append((drill.card, True))
    mixed.sort(key=lambda pair: pair[0].created_s)
    unnamed = {"session_id": ""}  # as `StoredDrills.as_shown` has it
    return [card.model_copy(update=unnamed) for card, _ in mixed], [is_drill for _, is_drill in mixed]


def looked_at(cards: Sequence[Card], rng: random.Random) -> list[list[float]]:
    """Age and place in the list at a moment while each waits: one reviewer, oldest first, a minute each."""
    ends, free_s = [], 0.0
    for card in cards:
        free_s = max(free_s, card.created_s) + rng.expovariate(1.0 / 50.0)
        ends.append(free_s)
    found = []
    for index, card in enumerate(cards):
        moment = rng.uniform(card.created_s, ends[index])
        place = sum(other.created_s <= moment < end for other, end in zip(cards[:index], ends, strict=False))
        expires = (card.expires_s or moment) - moment
        text = shown_text(card)
        digits = sum(c.isdigit() for c in text)
        found.append([moment - card.created_s, place, expires, len(text), digits, len(card.messages), index % 2])
    return found


def without_the_call(card: Card) -> Card:
    """The card with the call's arguments, and the model's words for it, blanked: nothing to compare the run with."""
    blank = dict.fromkeys(card.arguments, "X")
    messages = [
        message.model_copy(
            update={
                "content": "X",
                "tool_calls": tuple([call.model_copy(update={"arguments": blank}) for call in message.tool_calls]),
            }
        )
        if any(call.id == card.call_id for call in message.tool_calls)
        else message
        for message in card.messages
    ]
    return card.model_copy(update={"arguments": blank, "messages": tuple(messages)})


def auroc(cards: Sequence[Card], is_drill: Sequence[bool], seed: int = 0, *, weighted: bool = False) -> float:
    """Of words, letters of names, lengths, age and place.

    It counts words, or weighs them by TF-IDF. The weights of a card have length one, so that each of them says how many
    different words it has: whether one card holds two names instead of one name twice, which the reviewer is to notice.
    """
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
    from sklearn.preprocessing import MaxAbsScaler, StandardScaler

    texts = [shown_text(card) for card in cards]
    vectors = TfidfVectorizer if weighted else CountVectorizer
    words = vectors(token_pattern=r"[A-Za-z]+|\d", ngram_range=(1, 2), min_df=10).fit_transform(texts)
    names = vectors(analyzer="char", ngram_range=(1, 2), min_df=10).fit_transform(
        [f"{card.id} {card.session_id} {card.run_id} {card.call_id} {card.arguments}" for card in cards]
    )
    numbers = StandardScaler().fit_transform(np.array(looked_at(cards, random.Random(seed))))
    features = hstack([MaxAbsScaler().fit_transform(part) for part in (words, names)] + [csr_matrix(numbers)]).tocsr()
    return _told(features, is_drill, 0.1)


def auroc_of_characters(cards: Sequence[Card], is_drill: Sequence[bool]) -> float:
    """Of one to four characters in a row, weighed by TF-IDF."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(analyzer="char", ngram_range=(1, 4), min_df=10, sublinear_tf=True)
    return _told(vectors.fit_transform([shown_text(card) for card in cards]), is_drill, 1.0)


def _told(features: Any, is_drill: Sequence[bool], inverse_penalty: float) -> float:
    """The area under the curve of a logistic regression on these features, cross-validated."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import cross_val_predict

    model = LogisticRegression(solver="liblinear", max_iter=1_000, C=inverse_penalty)
    chance = cross_val_predict(model, features, np.array(is_drill), cv=5, method="predict_proba")[:, 1]
    return float(roc_auc_score(is_drill, chance))


@WORLDS
def test_a_classifier_does_not_tell_drills_from_requests(seeds: Sequence[int]) -> None:
    assert np.mean([auroc(*queue(seed, 1_000)) for seed in seeds]) <= 0.55


@WORLDS
def test_nor_does_one_that_weighs_words_or_characters(seeds: Sequence[int]) -> None:
    """A card says its values less often where the call does not fit the run: values are traded so that it is little."""
    worlds = [queue(seed, 1_000) for seed in seeds]
    words = [auroc(*world, weighted=True) for world in worlds]
    characters = [auroc_of_characters(*world) for world in worlds]
    assert np.mean(words) <= 0.55 + noise(len(seeds)), words
    assert np.mean(characters) <= 0.55 + noise(len(seeds)), characters


@WORLDS
def test_without_the_call_nothing_is_told(seeds: Sequence[int]) -> None:
    worlds = [queue(seed, 1_000) for seed in seeds]
    blanked = [auroc([without_the_call(card) for card in cards], drilled, weighted=True) for cards, drilled in worlds]
    assert np.mean(blanked) <= 0.55, blanked


@pytest.mark.slow
def test_the_classifier_would_see_drills_that_give_themselves_away() -> None:
    """The sabotage: amounts a hundred times as large, or ids with a mark, are found at once."""
    cards, is_drill = queue(2, 300)
    larger = [
        card.model_copy(update={"arguments": {**card.arguments, "amount": card.arguments["amount"] * 100}})  # type: ignore[operator]
        if drilled
        else card
        for card, drilled in zip(cards, is_drill, strict=True)
    ]
    marked = [
        card.model_copy(update={"session_id": f"{card.session_id}-b"}) if drilled else card
        for card, drilled in zip(cards, is_drill, strict=True)
    ]
    assert auroc(larger, is_drill) > 0.9
    assert auroc(marked, is_drill) > 0.9
