"""The duties of permits under every guard: calls go ahead as far as answers earned it, and no further."""

from __future__ import annotations

import time

import anyio

from grampus_uq.gate.permits import Permit
from grampus_uq.runtime.stored_permits import grant_permit, stored_permits
from grampus_uq.runtime.stores import open_store
from grampus_uq.testing.agent_orders import Act
from grampus_uq.testing.agent_scene import DONE, PAID, PROMPT, Scene, ended, require, say, sentence, waiting
from grampus_uq.testing.agent_script import DRAW, PERMITS
from grampus_uq.testing.agent_under_test import Ended, Failed, Paused

_NO_AUDIT, _AUDIT = "0.999999", "0.0"


def _granted(scene: Scene) -> None:
    """A permit that a single right answer earns."""
    permit = Permit(
        tool="pay", thresholds=(0.3,), epsilon=0.5, delta=0.9, principal="ann", expires_s=time.time() + 3_600.0
    )
    scene.folder.mkdir(parents=True, exist_ok=True)
    (scene.folder / DRAW).write_text(_NO_AUDIT)

    async def work() -> None:
        store = open_store(f"sqlite:///{scene.folder / PERMITS}", create=True)
        await grant_permit(store, permit)
        await store.aclose()

    anyio.run(work)


def _counts(scene: Scene) -> tuple[int, int, int, str | None]:
    """Answers, wrong ones, calls that went ahead, and why the permit is closed."""

    async def work() -> tuple[int, int, int, str | None]:
        store = open_store(f"sqlite:///{scene.folder / PERMITS}")
        (found,) = await stored_permits(store)
        await store.aclose()
        state = found.state
        return state.answers, state.wrong, state.released, state.closed

    return anyio.run(work)


def _run(scene: Scene, session: str) -> Ended | Paused | Failed:
    return scene.live(Act(do="run", session=session, prompt=PROMPT)).results[0]


@sentence("A permit clears calls once answers support it; its audits are ordinary requests.", "permits")
def permit_earned(scene: Scene) -> None:
    _granted(scene)
    first = waiting(scene.run(kill=True))
    ended(scene.resume(say("approve", first)), DONE)
    require(_counts(scene) == (1, 0, 0, None), f"one right answer was to be counted: {_counts(scene)}")
    ended(_run(scene, "ahead"), DONE)
    scene.ran(PAID, PAID, problem="the call was to go ahead once it was earned")
    require(_counts(scene)[2] == 1, f"one call was to be counted as gone ahead: {_counts(scene)}")
    (scene.folder / DRAW).write_text(_AUDIT)
    audit = waiting(_run(scene, "audit"))
    require(audit.reason == first.reason, f"an audit is told apart: {audit.reason!r} is not {first.reason!r}")
    scene.ran(PAID, PAID, problem="an audited call ran unasked")


@sentence('A rejection with "never" closes the permit, even if the run fails right afterwards.', "permits")
def permit_closed(scene: Scene) -> None:
    _granted(scene)
    ended(scene.resume(say("approve", waiting(scene.run()))), DONE)
    (scene.folder / DRAW).write_text(_AUDIT)
    audit = waiting(_run(scene, "audit"))
    (scene.folder / DRAW).write_text(_NO_AUDIT)
    never = Act(do="resume", session="audit", decisions=(say("reject", audit, never=True),))
    scene.laboratory.live(scene.folder, {}, never)  # without a script the model raises
    require(_counts(scene)[3] == "ann said never", f"the permit was to be closed: {_counts(scene)}")
    waiting(_run(scene, "after"))
    scene.ran(PAID, problem="a call went ahead on a closed permit")
