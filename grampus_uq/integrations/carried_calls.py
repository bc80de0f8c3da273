"""The calls of a session as JSON values that travel with a framework's own state, and taken up from them.

With a signer they carry a seal. A state whose seal does not hold counts for nothing: its calls wait, and its belief
releases nothing that may be irreversible for the rest of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from grampus_uq import ConfigurationError, DataError
from grampus_uq.gate.call import remembered
from grampus_uq.gate.carried import read_arrived, write_arrived, write_record
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.seal import session_place
from grampus_uq.integrations.call_records import VERSION, calls_in, check_version
from grampus_uq.integrations.held_calls import HeldCalls
from grampus_uq.integrations.settings import AdapterSettings


def write_snapshot(held: HeldCalls, **more: JsonValue) -> dict[str, Any]:
    """The belief, the calls and what else the adapter carries, as JSON values, sealed where decisions are signed."""
    values: dict[str, Any] = {
        "v": VERSION,
        "belief": held.session.snapshot(),
        "calls": [write_record(record) for record in held.records.values()],
        "unseen": [[key[0], key[1], step] for key, steps in held.unseen.items() for step in steps],
        "arrived": write_arrived(one for request_id in held.pending() for one in held.arrived.get(request_id, ())),
        "rejected": list(held.rejected),
        "turns": held.turns,
        "vouched": held.terms.vouched,
        "run": held.terms.run_id,
        **more,
    }
    return held.gate.sealed(held.place, values)


def take_up(
    settings: AdapterSettings,
    gate: Gate,
    session_id: str,
    agent_id: str,
    snapshot: Mapping[str, Any] | None = None,
    *,
    vouched: bool = True,
) -> HeldCalls:
    """A session and its calls: new, or taken up from what `snapshot` gave, as far as that is believed.

    `session_id` and `agent_id` are the host's names, which its seal is bound to; `vouched` False: it came with
    something that does not hold. Raises DataError on state that is none; in advisory mode it begins anew.
    """
    place, monitor = session_place(str(agent_id), str(session_id)), settings.monitor
    try:
        if snapshot is not None:
            check_version(snapshot)
        believed = snapshot is None or (gate.authentic(place, snapshot) if vouched else gate.believes(False))
        session = monitor.session(
            session_id,
            agent_id,
            model=None,
            snapshot=None if snapshot is None else snapshot.get("belief"),
            advisory=settings.advisory,
        )
        stays = snapshot is None or snapshot.get("vouched", True) is True
        run_id = None if snapshot is None else str(snapshot.get("run", ""))  # "": of a release before there were ids
        held = HeldCalls(session, gate, place=place, vouched=believed and vouched and stays, run_id=run_id)
        if snapshot is not None:
            _restore(held, snapshot, believed=believed)
        return held
    except (AttributeError, ConfigurationError, DataError, KeyError, TypeError, ValueError) as error:
        if settings.acts:
            if snapshot is None or isinstance(error, DataError):
                raise
            raise DataError(f"not a session's state: {error}") from error
        session = monitor.session(session_id, agent_id, model=None, advisory=settings.advisory)
        return HeldCalls(session, gate, place=place, vouched=False)


def _restore(held: HeldCalls, snapshot: Mapping[str, Any], *, believed: bool) -> None:
    """Take up the calls of a snapshot (the session was started with its belief already); raises DataError."""
    records = calls_in(snapshot)
    try:
        held.rejected = remembered(map(str, snapshot["rejected"]))
        held.turns = max(held.turns, int(snapshot.get("turns", snapshot.get("steps", 0))))
        arrived = read_arrived(snapshot.get("arrived", ()), believed=believed)
        unseen = [(str(i), str(digest), str(step)) for i, digest, step in snapshot.get("unseen", ())]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"not the calls of a session: {error}", field="rejected") from error
    for one in arrived:
        held.arrived.setdefault(one[0].request_id, []).append(one)
    for call_id, digest, step_id in unseen if believed else ():
        held.unseen.setdefault((call_id, digest), []).append(step_id)
    for record in records:
        new = held.gate.restored(record, held.terms, believed=believed)
        bound = held.gate.rebound(new, held.terms)
        slot = held.records.add(bound)
        held.from_outside.add(slot)
        if bound is not new:
            held.renewed.add(slot)
