"""The adapters for LangGraph and LangChain in runs that are cancelled anywhere, and go on."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.langchain import UncertaintyMiddleware
from grampus_uq.integrations.langgraph import resume, uncertainty_guard, waiting
from grampus_uq.integrations.langgraph_threads import before_node
from tests.sampling import sampled

CONFIG: Any = {"configurable": {"thread_id": "t"}}
PROMPT: Any = {"messages": [HumanMessage("Pay.")]}
STEPS = 40
KINDS = ["own node", "own node, guarded", "tools", "sub-graph", "langchain"]


class Model(BaseChatModel):
    """Pays a number of times, then is done; or, where it `repeats`, first makes its first payment again."""

    payments: int
    repeats: bool = False

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        calls: Any = [{"name": "pay", "args": {"number": n}, "id": f"{n}"} for n in range(self.payments)]
        answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
        asked = {one["id"] for message in messages if isinstance(message, AIMessage) for one in message.tool_calls}
        assert answered == asked, "the model is asked when each of its calls has a result"
        if self.repeats and len(asked) == self.payments:
            calls, asked = [{**calls[0], "id": f"{self.payments}"}], set()
        answer = AIMessage("Done.") if asked else AIMessage("I pay.", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return self._generate(messages)


class Run:
    """A thread in which approved payments are cancelled."""

    def __init__(self, kind: str, payments: int, *, repeats: bool = False, **settings: Any) -> None:
        self._settings, self._repeats = settings, repeats
        self.paid: list[int] = []
        self.begun = asyncio.Event()
        self.broken = False
        self._saver = InMemorySaver()
        self._kind, self._payments = kind, payments
        self.restart()

    def restart(self) -> None:
        """The agent as another process has it: built anew on the same checkpoints."""

        async def pay(number: int) -> str:
            """Pay."""
            if self.broken:
                raise OSError("no route")
            self.begun.set()
            for _ in range(3):
                await asyncio.sleep(0)
            self.paid.append(number)
            await asyncio.sleep(0)
            return f"paid {number}"

        model = Model(payments=self._payments, repeats=self._repeats)
        monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
        self.app: Any
        if self._kind == "langchain":
            middleware: Any = [UncertaintyMiddleware(monitor, **self._settings)]
            self.app = create_agent(model, [pay], middleware=middleware, checkpointer=self._saver)
            return

        async def agent(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        builder = StateGraph(MessagesState)
        builder.add_node("agent", agent)
        builder.add_edge(START, "agent")
        own, guard = self._kind.startswith("own"), uncertainty_guard(monitor, **self._settings)
        node = guard.tool_node([pay])

        async def tools(state: MessagesState, config: RunnableConfig) -> Any:
            return await node.ainvoke(state, config)

        if own:
            builder.add_node("tools", tools if self._kind.endswith("guarded") else ToolNode([pay]))
        guard.attach(builder, tools="tools" if own else [pay])
        if self._kind == "sub-graph":
            outside = StateGraph(MessagesState)
            outside.add_node("team", builder.compile())
            outside.add_edge(START, "team")
            builder = outside
        self.app = builder.compile(checkpointer=self._saver)

    async def go(self, given: Any = None) -> None:
        await self.app.ainvoke(given, CONFIG)

    async def waiting(self) -> list[Any]:
        return waiting(await self.app.aget_state(CONFIG))

    async def decide(self, kind: str, *numbers: int) -> Any:
        """Decide on what waits, or on these payments of it; an edit pays 100 more."""
        state, decisions = await self.app.aget_state(CONFIG), []
        for one in waiting(state):
            number = one.call.arguments["number"] if one.call else 0
            more: Any = {"arguments": {"number": number + 100}} if kind == "edit" else {"message": ""}
            decisions += [one.decide(kind, principal="ann", **more)] if number in (numbers or (number,)) else []
        return resume(state, decisions)

    async def cancelled(self, steps: int | None, kind: str = "approve") -> None:
        """Decide on all, and cancel: after so many steps of the event loop, or as soon as a tool has begun."""
        task = asyncio.create_task(self.go(await self.decide(kind)))
        if steps is None:
            await self.begun.wait()
        for _ in range(steps or 0):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    async def shown(self) -> dict[int, int]:
        """The payments of the transcript, by their calls."""
        messages = (await self.app.aget_state(CONFIG)).values["messages"]
        return {int(call["id"]): call["args"]["number"] for m in messages if m.type == "ai" for call in m.tool_calls}

    async def results(self) -> dict[int, str]:
        messages = (await self.app.aget_state(CONFIG)).values["messages"]
        return {int(message.tool_call_id): message.text for message in messages if message.type == "tool"}


@sampled(
    "kind,payments,every",
    [("own node", 1, 2), ("tools", 2, 2), ("sub-graph", 1, 2), ("langchain", 2, 2)],
    full=[*itertools.product(KINDS, [1, 2], [1])],
)
def test_an_approved_call_that_is_cancelled_anywhere_runs_once_or_a_human_is_asked_what_became_of_it(
    kind: str, payments: int, every: int
) -> None:
    cut, said = 0, "approve"

    async def one(steps: int | None, says: str) -> int:
        run = Run(kind, payments)
        await run.go(PROMPT)
        await run.cancelled(steps)
        if says == "approve":  # a rejection comes at once
            await run.go()
        asked, rejected = list[int](), dict[int, int]()
        for _ in range(8):
            requests = await run.waiting()
            asked += [int(request.call.id) for request in requests if request.rule == "unknown_outcome"]
            if says == "reject":
                rejected |= {int(one.call.id): run.paid.count(int(one.call.id)) for one in requests}
            await run.go((await run.decide(says)) if requests else None)
        results = await run.results()
        for number in range(payments):
            runs = run.paid.count(number)
            assert runs <= 1 + asked.count(number), "it runs again only if a human said so, who knew that it had run"
            assert runs or number in rejected
            assert (results[number] == f"paid {number}") == (runs > 0) or number in asked, "the result is not lost"
            assert rejected.get(number, runs) == runs, "what a human rejected last does not run"
        return len(asked)

    first = 16 if kind == "langchain" else 0  # it begins a call later than a graph does
    for steps in [None, None, *range(first, first + STEPS, every)]:
        said = "reject" if said == "approve" else "approve"
        cut += asyncio.run(one(steps, said))
    assert cut > 0


@pytest.mark.parametrize("asked_by", ["this process", "another"])
@pytest.mark.parametrize("says", ["approve", "reject"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_of_unknown_outcome_is_asked_about_and_decided_on_in_any_process(
    kind: str, asked_by: str, says: str
) -> None:
    async def run() -> None:
        run = Run(kind, 1)
        await run.go(PROMPT)
        await run.cancelled(None)
        if asked_by == "another":
            run.restart()
        await run.go()
        if kind == "langchain":  # LangGraph forgot the decision of the run that was cancelled
            await run.go(await run.decide(says))
        (request,) = await run.waiting()
        assert request.rule == "unknown_outcome"
        run.restart()
        await run.go(await run.decide(says))
        assert run.paid == ([0] if says == "approve" else [])
        assert list(await run.results()) == [0]

    asyncio.run(run())


@pytest.mark.parametrize("another", [True, False])
@pytest.mark.parametrize("says", ["reject", "edit"])
@pytest.mark.parametrize("kind", KINDS)
def test_of_calls_that_are_decided_one_after_another_each_answer_counts_in_the_turns_after_them(
    kind: str, says: str, another: bool
) -> None:
    """In any process: the first payment is proposed again, after one of two was decided on while the other waited."""

    async def run() -> None:
        run = Run(kind, 2, repeats=True)
        await run.go(PROMPT)
        await run.go(await run.decide(says, 0))
        if another:
            run.restart()
        await run.go(await run.decide("approve", 1))
        rules, ran = [one.rule for one in await run.waiting()], [1] if says == "reject" else [100, 1]
        assert (rules, run.paid) == ([] if says == "reject" else ["rejected_in_thread"], ran)
        await run.go(await run.decide("reject") if rules else None)
        assert await run.shown() == {0: ran[0] if says == "edit" else 0, 1: 1, 2: 0}

    asyncio.run(run())


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize(
    ("before", "says"), [(before, says) for before, says in itertools.permutations(["approve", "reject", "edit"], 2)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_decided_on_a_branch_that_was_left_is_no_answer_on_the_one_that_goes_on(
    kind: str, before: str, says: str, durability: str
) -> None:
    """The thread is taken back to where both payments waited, and the first one is decided on anew."""

    async def run() -> None:
        run = Run(kind, 2, repeats=True)

        async def go(given: Any, config: Any = CONFIG) -> None:
            await run.app.ainvoke(given, config, durability=durability)

        await go(PROMPT)
        both = (await run.app.aget_state(CONFIG)).config
        await go(await run.decide(before, 0))
        run.restart()
        run.paid.clear()
        await go(None, both)
        await go(await run.decide(says, 0))
        await go(await run.decide("approve", 1))
        rules = [one.rule for one in await run.waiting()]
        ran, asked = {"approve": ([0], ["missing_evidence"]), "edit": ([100], ["rejected_in_thread"])}.get(
            says, ([], [])
        )
        assert (run.paid, rules) == ([*ran, 1], asked)
        await go(await run.decide("reject") if rules else None)
        assert await run.shown() == {0: 100 if says == "edit" else 0, 1: 1, 2: 0}

    asyncio.run(run())


@pytest.mark.parametrize("says", ["approve", "reject"])
@pytest.mark.parametrize("another", [True, False])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sub-graph"])  # whose visit begins anew
def test_a_call_that_ran_before_somebody_wrote_to_the_thread_runs_again_only_if_a_human_was_told(
    kind: str, another: bool, says: str
) -> None:
    """In any process: the other call of the turn waits, and what `update_state` drops had been paid."""

    async def run() -> None:
        run, asked = Run(kind, 2), list[tuple[str, int]]()
        await run.go(PROMPT)
        await run.go(await run.decide("approve", 0))
        if another:
            run.restart()
        for written in ("Hurry.", "Please."):
            await run.app.aupdate_state(CONFIG, {"messages": [HumanMessage(written)]})
        await run.go()
        while requests := await run.waiting():
            asked += [(one.rule, one.call.arguments["number"]) for one in requests if one.call]
            await run.go(await run.decide(says))
        assert {rule for rule, number in asked if number == 0} <= {"unknown_outcome"}
        told = len([rule for rule, number in asked if number == 0])
        ran = {"approve": [0, 1, *[0] * told], "reject": [0]}[says]
        assert sorted(run.paid) == sorted(ran)
        assert told or (await run.results())[0] == "paid 0"

    asyncio.run(run())


def test_langchain_shows_an_edit_beside_what_ran_so_and_not_beside_a_result_that_was_written_by_hand() -> None:
    async def run(by_hand: bool) -> None:
        run = Run("langchain", 2)
        await run.go(PROMPT)
        at = (await run.app.aget_state(CONFIG)).config
        await run.go(await run.decide("edit", 0))
        given: Any = None
        if by_hand:
            given = {"messages": [ToolMessage(f"by hand {n}", tool_call_id=f"{n}") for n in range(2)]}
        else:
            run.restart()
            await run.go(await run.decide("approve", 1))
            history = [one async for one in run.app.aget_state_history(CONFIG)]
            at = next(one.config for one in history if one.next == ("model",))
        await run.app.aupdate_state(at, given, as_node="tools" if by_hand else None)
        await run.go()
        assert (await run.results())[0] == ("by hand 0" if by_hand else "paid 100")
        assert await run.shown() == {0: 0 if by_hand else 100, 1: 1}

    for by_hand in (True, False):
        asyncio.run(run(by_hand))


@pytest.mark.parametrize("says", ["approve", "reject", "respond", "edit"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_transcript_shows_what_ran_also_where_an_edit_was_void(kind: str, says: str) -> None:
    """The edited call was cut off: the human is asked about it as it was proposed."""

    async def run() -> None:
        run = Run(kind, 1)
        await run.go(PROMPT)
        await run.cancelled(None, "edit")
        await run.go()
        while await run.waiting():
            await run.go(await run.decide(says))
        assert run.paid == {"approve": [0], "edit": [100]}.get(says, [])
        assert await run.shown() == {0: 100 if says == "edit" else 0}

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_that_failed_runs_again_without_a_question(kind: str) -> None:
    async def run() -> None:
        run = Run(kind, 1)
        await run.go(PROMPT)
        run.broken = True
        with pytest.raises(OSError, match="no route"):
            await run.go(await run.decide("approve"))
        with pytest.raises(OSError, match="no route"):
            await run.go()
        run.broken = False
        await run.go()
        assert run.paid == [0]
        assert await run.results() == {0: "paid 0"}

    asyncio.run(run())


@pytest.mark.slow
def test_a_rejection_that_the_guard_has_heard_holds_in_the_next_run_when_its_own_run_is_cancelled() -> None:
    async def one(kind: str, approving: int | None, steps: int) -> bool:
        run, heard = Run(kind, 1), list[int]()

        async def note() -> None:
            heard.append(1)

        await run.go(PROMPT)
        if approving is not None:  # in a sub-graph an approved request stays listed
            await run.cancelled(approving)
        token = before_node.set(note)
        task = asyncio.create_task(run.go(await run.decide("reject")))
        before_node.reset(token)
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        before = list(run.paid)
        await run.go()
        assert run.paid == before or not heard, "what a human rejected does not run by itself"
        return bool(heard) or any("rejected" in text for text in (await run.results()).values())

    heard = [asyncio.run(one("sub-graph", approving, steps)) for approving in (7, 8, 9) for steps in range(4, 16)]
    assert any(heard)
    heard = [asyncio.run(one("langchain", None, steps)) for steps in (5, 22, 28)]
    assert any(heard)
