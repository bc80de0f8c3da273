"""A requestState holds for one call of one session under one policy and one key, until it expires."""

import random
import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Seal
from grampus_uq.errors import ConfigurationError
from grampus_uq.gate.call import Terms
from grampus_uq.integrations.mcp.request_state import RequestStateError, RequestStates

KEY = b"0123456789abcdef0123456789abcdef"
NOW = 1_700_000_000.0
HERE = Terms(agent_id="desk", session_id="s-1", rules="r" * 64), "c" * 64
"""Whose call it is, and its digest."""
REQUEST = "0123456789abcdef0123456789abcdef"
_ids = st.text(min_size=1, max_size=20)
_bindings = st.tuples(st.builds(Terms, agent_id=_ids, session_id=_ids, rules=_ids), _ids)


def states(key: bytes = KEY, lifetime_s: float = 600.0) -> RequestStates:
    return RequestStates(Seal(key), lifetime_s=lifetime_s)


@given(_bindings, st.integers(0, 999_999), st.floats(0.0, 599.9))
def test_a_state_says_its_request_and_round_until_it_expires(binding, told, later):
    text = states().issue(*binding, REQUEST, now_s=NOW, round=told)
    state = states().read(text, *binding, now_s=NOW + later)
    assert (state.request_id, state.round) == (REQUEST, told)


@given(_bindings, _bindings)
def test_a_state_holds_for_no_other_agent_session_call_or_policy(bound, other):
    text = states().issue(*bound, REQUEST, now_s=NOW)
    if bound == other:
        assert states().read(text, *other, now_s=NOW).request_id == REQUEST
    else:
        with pytest.raises(RequestStateError):
            states().read(text, *other, now_s=NOW)


@given(st.text(max_size=300) | st.none() | st.integers() | st.binary() | st.lists(st.text()))
def test_nothing_that_was_not_issued_is_taken(value):
    with pytest.raises(RequestStateError):
        states().read(value, *HERE, now_s=NOW)


@pytest.mark.parametrize("late_s", [600.001, 601.0, 1e9, float("nan"), float("inf")])
def test_an_expired_state_is_not_taken_and_neither_is_one_when_nobody_knows_the_time(late_s):
    text = states().issue(*HERE, REQUEST, now_s=NOW)
    with pytest.raises(RequestStateError, match="not valid or has expired"):
        states().read(text, *HERE, now_s=NOW + late_s)


def test_every_reason_reads_the_same_to_the_client_and_differs_in_the_log():
    text = states().issue(*HERE, REQUEST, now_s=NOW)
    attempts = [(text, NOW + 601.0), (text[:-1] + "g", NOW), (7, NOW), (text.replace(".0.", ".1."), NOW)]
    errors = []
    for value, now_s in attempts:
        with pytest.raises(RequestStateError) as caught:
            states().read(value, *HERE, now_s=now_s)
        errors.append(caught.value)
    assert len({str(error) for error in errors}) == 1
    assert len({error.detail for error in errors}) == 4


def attacks(draw: random.Random, text: str) -> tuple[object, tuple[Terms, str], RequestStates, float]:
    """One state that must not be taken: forged, altered, cut, extended, replayed elsewhere, of another key, or late."""
    kind, where = draw.randrange(9), draw.randrange(len(text))
    alphabet = string.ascii_letters + string.digits + ".-_\u0430\u0661\n\0 "
    if kind == 0:  # one character changed
        return text[:where] + draw.choice(alphabet.replace(text[where], "")) + text[where + 1 :], HERE, states(), NOW
    if kind == 1:
        return text[:where], HERE, states(), NOW
    if kind == 2:
        return text[:where] + draw.choice(alphabet) + text[where:], HERE, states(), NOW
    if kind == 3:  # of another key
        return states(draw.randbytes(32)).issue(*HERE, REQUEST, now_s=NOW), HERE, states(), NOW
    if kind == 4:  # replayed at another place
        (terms, digest), other = HERE, "".join(draw.choices(alphabet, k=draw.randrange(1, 70)))
        field = draw.choice(["agent_id", "session_id", "digest", "rules"])
        elsewhere = (terms, other) if field == "digest" else (replace(terms, **{field: other}), digest)
        return text, elsewhere, states(), NOW
    if kind == 5:
        return text, HERE, states(), NOW + 600.0 + draw.expovariate(0.001)
    version, request, told, expiry, mac = text.split(".")
    if kind == 6:  # a later expiry, another request or another round under the same MAC
        changed = draw.choice(
            [
                (request, told, str(int(expiry) + draw.randrange(1, 10**9))),
                ("f" + request[1:], told, expiry),
                (request, "9", expiry),
            ]
        )
        return ".".join((version, *changed, mac)), HERE, states(), NOW
    if kind == 7:  # the right parts under an invented MAC
        return ".".join((version, request, told, expiry, draw.randbytes(32).hex())), HERE, states(), NOW
    return text.swapcase() if draw.random() < 0.5 else text + "\n", HERE, states(), NOW


def accepted(count: int, seed: int, reader=None) -> int:
    draw, taken = random.Random(seed), 0
    text = states().issue(*HERE, REQUEST, now_s=NOW)
    for _ in range(count):
        value, binding, read_by, now_s = attacks(draw, text)
        try:
            (reader or read_by).read(value, *binding, now_s=now_s)
        except RequestStateError:
            continue
        taken += 1
    return taken


def test_of_ten_thousand_forged_altered_replayed_and_expired_states_none_is_taken():
    assert accepted(10_000, 1) == 0


class _Believes(Seal):
    """A seal that believes every MAC: what the test above would see if it could not fail."""

    def holds(self, place, text, mac):
        return True


class _NoPlace(Seal):
    """A seal that does not bind its texts to a place."""

    def mac(self, place, text):
        return super().mac("", text)


@pytest.mark.parametrize(("broken", "least"), [(_Believes, 2_000), (_NoPlace, 300)])
def test_a_seal_that_does_not_hold_is_seen_by_that_count(broken, least):
    draw, taken = random.Random(2), 0
    mine = RequestStates(broken(KEY), lifetime_s=600.0)
    text = mine.issue(*HERE, REQUEST, now_s=NOW)
    for _ in range(10_000):
        value, binding, _, now_s = attacks(draw, text)
        try:
            mine.read(value, *binding, now_s=now_s)
            taken += 1
        except RequestStateError:
            pass
    assert taken > least


def test_a_text_of_ten_megabytes_is_refused_before_it_is_read():
    text = states().issue(*HERE, REQUEST, now_s=NOW)
    for huge in (text + "0" * 10_000_000, "g1." + "a." * 5_000_000, "." * 10_000_000):
        with pytest.raises(RequestStateError) as caught:
            states().read(huge, *HERE, now_s=NOW)
        assert caught.value.detail.startswith("no text of at most")


def test_a_state_names_neither_the_session_nor_the_call():
    secret, digest = replace(HERE[0], session_id="customer-4711", agent_id="payroll"), HERE[1]
    text = states().issue(secret, digest, REQUEST, now_s=NOW)
    assert text.isascii()
    assert len(text) <= 200
    assert not any(part in text for part in (secret.session_id, secret.agent_id, digest, secret.rules))


def test_a_seal_of_a_sessions_state_is_no_requestState():
    """The same key seals sessions: no agent or session id makes one of the two texts the other."""
    seal = Seal(KEY)
    head = states().issue(*HERE, REQUEST, now_s=NOW).rpartition(".")[0]
    for place in ("desk/s-1", "mcp/requestState", "mcp/requestState/desk/s-1"):
        forged = f"{head}.{seal.mac(place, head)}"
        with pytest.raises(RequestStateError):
            states().read(forged, *HERE, now_s=NOW)


@pytest.mark.parametrize("lifetime_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_lifetime_is_positive_and_finite(lifetime_s):
    with pytest.raises(ConfigurationError, match="lifetime_s"):
        states(lifetime_s=lifetime_s)


@pytest.mark.parametrize("request_id", ["", "A" * 8, "a.b", "a" * 65, "a\n"])
def test_a_request_id_that_a_state_cannot_hold_is_refused_when_it_is_issued(request_id):
    with pytest.raises(ConfigurationError, match="request_id"):
        states().issue(*HERE, request_id, now_s=NOW)


@pytest.mark.parametrize("told", [-1, 1_000_000])
def test_a_round_that_a_state_cannot_hold_is_refused_when_it_is_issued(told):
    with pytest.raises(ConfigurationError, match="round"):
        states().issue(*HERE, REQUEST, now_s=NOW, round=told)
