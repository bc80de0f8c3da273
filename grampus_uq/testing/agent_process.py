"""The process in which agents of a check live and die: `python -m grampus_uq.testing.agent_process FACTORY`.

Reads one order a line, forks a child that carries it out, and prints the child's id and later how it ended. The
framework is imported once, by this process, which starts no thread and no event loop; what a child leaves behind is in
files alone, so the next child is a new process to every check. Needs `os.fork`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import anyio

from grampus_uq.testing.agent_orders import ORDER, Act, Answer, Order
from grampus_uq.testing.agent_script import AgentFactory
from grampus_uq.testing.agent_under_test import NOT_OFFERED, AgentUnderTest, Ended, Failed, Paused

_OFFERS = frozenset({"signing", "forge", "schema", "odd_calls", "mcp", "output_tool", "permits", "starts"})


async def _carry_out(factory: AgentFactory, order: Order) -> None:
    results: dict[int, Ended | Paused | Failed] = {}
    pieces: list[str] = []
    async with factory(order.setup) as agent:

        async def one(number: int, act: Act) -> None:
            try:
                results[number] = await _do(agent, act, pieces)
            except Exception as error:  # noqa: BLE001 (what an adapter raises is a result, and the check says so)
                traceback.print_exc()
                results[number] = Failed(error=f"{type(error).__name__}: {error}")

        if order.together:
            async with anyio.create_task_group() as group:
                for number, act in enumerate(order.acts):
                    group.start_soon(one, number, act)
        else:
            for number, act in enumerate(order.acts):
                await one(number, act)
        answer = Answer(
            results=tuple(results[number] for number in range(len(order.acts))),
            pieces=tuple(pieces),
            lacks=_lacks(agent),
        )
        draft = order.answer.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(answer), default=str))
        draft.replace(order.answer)
        if order.hold:
            while True:
                signal.pause()  # SIGKILL comes while connections, files and tasks are as a running agent has them


async def _do(agent: AgentUnderTest, act: Act, pieces: list[str]) -> Ended | Paused:
    if act.do == "run":
        return await agent.run(act.session, act.prompt)
    if act.do == "stream":
        return await agent.stream(act.session, act.prompt, pieces)
    if act.do == "forge":
        await agent.forge(act.session, act.prompt)  # type: ignore[attr-defined]  # offered by those that can
        return Ended(output="")
    return await agent.resume(act.session, act.decisions)


def _lacks(agent: AgentUnderTest) -> dict[str, str]:
    """Return the framework's gaps and the checks that the harness does not offer."""
    unsaid = dict.fromkeys(_OFFERS - set(getattr(agent, "offers", ())), NOT_OFFERED)
    return {**unsaid, **agent.lacks}


def _live(factory: AgentFactory, order: Order) -> None:
    """A child's whole life; never returns."""
    os.dup2(2, 1)  # what the framework prints must not be taken for this process's own words
    try:
        anyio.run(_carry_out, factory, order)
    except BaseException:  # noqa: BLE001 (the child's last word before it ends)
        traceback.print_exc()
        os._exit(1)
    sys.stderr.flush()
    os._exit(0)


def main(arguments: Sequence[str]) -> None:
    """Carry out orders until there are no more."""
    module, _, name = arguments[0].partition(":")
    factory: AgentFactory = getattr(importlib.import_module(module), name)
    _say({"ready": True})
    for line in sys.stdin:
        order = ORDER.validate_json(line)
        child = os.fork()
        if child == 0:
            _live(factory, order)
        _say({"child": child})
        _, status = os.waitpid(child, 0)
        _say({"status": os.waitstatus_to_exitcode(status)})


def _say(word: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(word) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
