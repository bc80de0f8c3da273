"""What a store offers every session holds behind the proxy: permits, the watch on a fitted detector, forged states."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from grampus_uq import Permit, Profile, Sensing, UncertaintyPolicy
from grampus_uq.integrations.mcp.call_outcomes import Run, Wait
from grampus_uq.integrations.mcp.proxy_config import ProxySettings
from grampus_uq.integrations.mcp.proxy_parts import ProxyParts
from grampus_uq.recording.artifacts import FittedFor, ProfileArtifact, save
from grampus_uq.records.values import ToolCall
from grampus_uq.runtime import StoredPermits, grant_permit, stored_permits
from grampus_uq.runtime.apply_decisions import apply_response
from grampus_uq.runtime.guarantee_watch import CalibrationWatch
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.stores import open_store
from grampus_uq.signals.call_reader import Reader
from grampus_uq.testing import ScriptedModel
from tests.proxy.guarded import MODERN, bench
from tests.proxy.test_request_state import attacks
from tests.runtime.test_watch import _monitor as fitted
from tests.signals.test_reader import writes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The proxy's own; the guard itself is tried on both in test_guard."""
    return "asyncio"


async def test_a_permit_that_was_earned_lets_a_call_ahead_and_the_answer_reaches_it() -> None:
    sensing = Sensing(reader=Reader(client=ScriptedModel(writes({"pay": 0.82}, form=0.9999))))
    async with bench(sensing=sensing, policy={"low_threshold": 0.9}) as one:
        one.calls.gate.permits = StoredPermits(one.ledger.store, draw=lambda: 0.999)
        until_s = time.time() + 60.0
        permit = Permit(tool="pay", thresholds=(0.3,), epsilon=0.5, delta=0.9, principal="ann", expires_s=until_s)
        await grant_permit(one.ledger.store, permit)
        await one.call(1, "pay", amount=1)  # one doubt alone holds nothing
        await one.asked(1)
        await one.returns(1)
        await one.call(2, "pay", amount=2)
        await one.decide()
        await one.asked(2)
        await one.returns(2)
        await one.call(3, "pay", amount=3)  # nobody is asked
        await one.asked(3)
        (standing,) = await stored_permits(one.ledger.store)
        assert (standing.state.answers, standing.state.wrong, standing.state.released) == (1, 0, 1)


async def test_the_watch_counts_a_session_once_it_has_ended(tmp_path: Path) -> None:
    detector = fitted().profile.detector
    assert detector is not None
    profile = Profile(detector=detector, policy=UncertaintyPolicy(enable_p_true=False))
    any_ = FittedFor(model="*", prompt_hash="*", tools_hash="*")
    save(ProfileArtifact(profile=profile, fitted_for=any_), tmp_path / "profile.json")
    url = f"sqlite:///{tmp_path}/calls.db"
    said: list[str] = []
    settings = ProxySettings(profile=str(tmp_path / "profile.json"), effects={"read_note": "read"})
    for number in range(2):
        parts = ProxyParts(settings, url, said.append)
        calls = parts.exchange(f"s{number}", resumes=False).calls
        await calls.propose(ToolCall(id="c", name="read_note", arguments={}))
        await calls.session.aclose()
        await parts.aclose()
    store = open_store(url)
    counted = {status.n_runs for status in await CalibrationWatch(store, detector).statuses()}
    await store.aclose()
    assert max(counted) == 2, said


async def test_no_forged_or_altered_state_is_taken_by_a_proxy_and_none_runs_a_call() -> None:
    draw = random.Random(5)
    params = {"name": "delete_note", "arguments": {"path": "a"}, "_meta": MODERN}
    async with bench(hold_s=0.02) as one:
        await one.say(id="first", method="tools/call", params=params)
        state = (await one.answered("first"))["result"]["requestState"]  # type: ignore[arg-type]
        await one.decide("reject")
        number = 0
        while number < 300:
            kind = draw.randrange(3)
            forged: Any = attacks(draw, state)[0] if kind else draw.choice([None, 7, [], {}, "g1.", state[:-1]])
            if forged == state or not str(forged).startswith("g1."):  # its own, or a state of the server's
                continue
            number += 1
            await one.say(id=number, method="tools/call", params={**params, "requestState": forged})
            assert "not valid" in (await one.answered(number))["error"]["message"]
        assert not one.ran()


async def test_an_old_copy_of_the_store_does_not_run_again_what_is_among_the_starts(tmp_path: Path) -> None:
    store, copy, call = tmp_path / "calls.db", tmp_path / "copy.db", ToolCall(id="c", name="delete_note", arguments={})
    settings, became = ProxySettings(agent="a", starts=f"sqlite:///{tmp_path}/starts.db"), []
    for number in range(4):
        parts, ledger = ProxyParts(settings, f"sqlite:///{store}", print), Ledger(open_store(f"sqlite:///{store}"))
        calls = parts.exchange("s", resumes=True).calls
        opened = await calls.propose(call.model_copy(update={"id": f"c{number}"}))
        if number:
            (pending,) = await ledger.pending()
            await ledger.decide(pending.requests[0].decide("approve", principal="ann"))
            await apply_response(calls.session.current(), None)
        became.append(await calls.next(opened))
        for one in (calls.session, parts, ledger.store):
            await one.aclose()
        shutil.copy(*((copy, store) if number else (store, copy)))
    assert [type(one) for one in became] == [Wait, Run, Wait, Wait]
    told = [one.request for one in became if isinstance(one, Wait)]
    assert [request is not None and request.unknown_outcome for request in told] == [False, True, True]
