"""Calls litellm in every way against a server on loopback, and prints as JSON what the callback made of them.

A process of its own: litellm keeps callbacks, threads and an event loop for the life of a process.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no look-up of prices on the network

import litellm
from litellm.router import Router

from grampus_uq import ConfigurationError, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.litellm import UncertaintyCallback
from grampus_uq.records.events import Event, SessionStarted, StepEvent
from grampus_uq.testing import HANG, ScriptedModel
from tests.models.loopback import Loopback, Reply, Request, as_json, chat, serving

TOKEN = {"token": "Paris", "logprob": -0.6, "top_logprobs": [{"token": "Rome", "logprob": -2.0}]}
CALL = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": '{"to": "bob"}'}}


def behave(request: Request, server: Loopback) -> Reply:
    if "input" in request.body:
        return respond(request)
    if request.body["messages"][0]["content"] == "Fail.":
        return as_json({"error": {"message": "no"}}, status=400)
    if request.body.get("n"):
        many = chat("Rome", logprobs={"content": [TOKEN | {"logprob": -0.001, "top_logprobs": []}]})
        many["choices"].append(chat("Paris", logprobs={"content": [TOKEN]}, tool_calls=[CALL])["choices"][0])
        return as_json(many)
    if not request.body.get("stream"):
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        return as_json(chat("Paris", logprobs={"content": [TOKEN]}, usage=usage, tool_calls=[CALL]))
    lines = []
    for delta in ({"content": "Pa"}, {"content": "ris"}, {}):
        choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": [choice]}
        lines.append(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    return Reply(200, iter([*lines, b"data: [DONE]\n\n"]), {"content-type": "text/event-stream"})


def respond(request: Request) -> Reply:
    """An answer of the responses interface."""
    part = {"type": "output_text", "text": "Paris", "annotations": []}
    said = {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [part]}
    answer = {"id": "r", "object": "response", "created_at": 1, "status": "completed", "model": "tiny"}
    answer |= {"output": [said], "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
    if not request.body.get("stream"):
        return as_json(answer)
    event = {"type": "response.completed", "sequence_number": 0, "response": answer}
    return Reply(200, iter([b"data: " + json.dumps(event).encode() + b"\n\n"]), {"content-type": "text/event-stream"})


class Seen:
    """Keeps the steps that the monitor emitted, and how sessions began."""

    def __init__(self) -> None:
        self.steps: list[StepEvent] = []
        self.starts: list[SessionStarted] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, SessionStarted):
            self.starts.append(event)
        if isinstance(event, StepEvent):
            self.steps.append(event)


class QuotingMonitor:
    """Fails, and says of whom."""

    def session(self, session_id: str, **_: Any) -> Any:
        raise LookupError(f"{session_id} asked for the capital of a secret country")


class Scene:
    def __init__(self, server: Loopback) -> None:
        self.server = server
        self.callbacks: list[UncertaintyCallback] = []

    def watch(self, **given: Any) -> tuple[UncertaintyCallback, Seen]:
        seen = Seen()
        policy = UncertaintyPolicy(irreversible_tool_names=["pay"])
        callback = UncertaintyCallback(UncertaintyMonitor(policy=policy, processors=[seen]), **given)
        for callbacks in (litellm.callbacks, litellm.success_callback, litellm._async_success_callback):
            callbacks.clear()
        litellm.callbacks.append(callback)
        self.callbacks.append(callback)
        return callback, seen

    def given(self, session: str | None, text: str = "Capital of France?", **more: Any) -> dict[str, Any]:
        metadata = {} if session is None else {"metadata": {"session_id": session}}
        where = {"model": "openai/tiny", "api_base": self.server.api_base, "api_key": "x", "max_retries": 0}
        return {**where, "messages": [{"role": "user", "content": text}], **metadata, **more}

    def call(self, session: str | None, **more: Any) -> str:
        answer = litellm.completion(**self.given(session, **more))
        return str(answer.choices[0].message.content)

    # -- scenes ---------------------------------------------------------------------------------------------------

    def every_kind(self) -> Any:
        callback, seen = self.watch()
        self.call("order-7")
        until(lambda: len(seen.steps) == 1)
        for _ in litellm.completion(**self.given("order-7", stream=True)):
            pass
        until(lambda: len(seen.steps) == 2)
        self.call(None)
        try:
            litellm.completion(**self.given("order-7", "Fail."))
        except litellm.BadRequestError:
            refused = True

        async def asynchronously() -> None:
            await litellm.acompletion(**self.given("order-7"))
            async for _ in await litellm.acompletion(**self.given("order-7", stream=True)):
                pass
            await asyncio.to_thread(until, lambda: len(seen.steps) == 4)  # litellm's own queue needs this loop

        asyncio.run(asynchronously())
        time.sleep(0.3)  # a second report of a call would come now
        first = seen.steps[0].step
        belief = callback.belief("order-7")
        return {
            "texts": [event.step.text for event in seen.steps],
            "sessions": sorted({event.session_id for event in seen.steps}),
            "believed": None if belief is None else belief.total_steps,
            "calls": [[call.id, call.name, call.arguments] for call in first.tool_calls],
            "tokens": [first.input_tokens, first.output_tokens],
            "logprobs": [[token.logprob, token.top] for token in first.logprobs or ()],
            "streamed_logprobs": seen.steps[1].step.logprobs,
            "refused": refused,
            "lost": [callback.failures, callback.dropped],
        }

    def a_judge_that_hangs(self) -> Any:
        callback, seen = self.watch(model_client=ScriptedModel(HANG), max_waiting=1)
        answers = [self.call("s") for _ in range(6)]
        until(lambda: callback.dropped > 0)
        return {"answers": answers, "judged": len(seen.steps), "closed": callback.close(0.1)}

    def a_monitor_that_fails(self) -> Any:
        callback, _ = self.watch()
        callback.monitor = QuotingMonitor()  # type: ignore[assignment]  # as wrong as it can be
        logged = io.StringIO()
        listener = logging.StreamHandler(logged)
        package = logging.getLogger("grampus_uq")
        package.addHandler(listener)
        answers = [self.call("s"), self.call("s")]
        until(lambda: callback.failures == 2)
        package.removeHandler(listener)
        return {"answers": answers, "logged": logged.getvalue()}

    def bounds(self) -> Any:
        callback, seen = self.watch(max_sessions=2)
        for number in range(3):
            self.call(f"s{number}")
            until(lambda wanted=number: len(seen.steps) == wanted + 1)
        kept = [name for name in ("s0", "s1", "s2") if callback.session(name) is not None]
        brief, seen = self.watch(expires_s=1e-9)
        for name in ("a", "b"):
            self.call(name)
            until(lambda wanted=name: bool(seen.steps) and seen.steps[-1].session_id == wanted)
        return {"kept": kept, "expired": [brief.belief("a") is None, brief.would_allow("a", "pay") is None]}

    def verdicts(self) -> Any:
        found = []
        for advisory in (True, False):
            callback, seen = self.watch(advisory=advisory, key="run")
            self.call(None, metadata={"run": "r"}, logprobs=False)
            until(lambda seen=seen: len(seen.steps) == 1)
            verdict = callback.would_allow("r", "pay")
            found.append(None if verdict is None else verdict.allowed)
        return {"allowed": found}

    def waiting_for_an_answer(self) -> Any:
        """After each call, whether the callback already knows of it, without any look at the clock."""
        callback, _ = self.watch()

        def count() -> int:
            belief = callback.belief("order-7")
            return 0 if belief is None else belief.total_steps

        known = [[callback.wait_for(litellm.completion(**self.given("order-7"))), count()] for _ in range(20)]
        stream = litellm.completion(**self.given("order-7", stream=True))
        list(stream)
        known.append([callback.wait_for(stream), count()])

        async def asynchronously() -> None:
            for _ in range(5):
                answer = await litellm.acompletion(**self.given("order-7"))
                known.append([await callback.wait_for_async(answer), count()])

        asyncio.run(asynchronously())
        try:
            callback.wait_for("an answer")
        except ConfigurationError:
            refused = True
        callback.monitor = QuotingMonitor()  # type: ignore[assignment]  # fails
        unjudged = callback.wait_for(litellm.completion(**self.given("another")))
        return {"known": known, "refused": refused, "unjudged": unjudged}

    def other_kinds(self) -> Any:
        callback, seen = self.watch()
        logged = io.StringIO()
        listener = logging.StreamHandler(logged)
        package = logging.getLogger("grampus_uq")
        package.addHandler(listener)
        where = {"model": "openai/tiny", "api_base": self.server.api_base, "api_key": "x"}
        answer = litellm.responses(
            input="Capital of France?", metadata={"session_id": "r"}, mock_response="Paris", **where
        )
        judged = [callback.wait_for(answer)]
        router = Router(model_list=[{"model_name": "routed", "litellm_params": where}])
        routed = {"model": "routed", "input": "Capital of France?", "metadata": {"session_id": "r"}}
        judged.append(callback.wait_for(router.responses(**routed)))
        stream = router.responses(**routed, stream=True)
        list(stream)
        judged.append(callback.wait_for(stream))

        async def asynchronously() -> None:
            judged.append(await callback.wait_for_async(await router.aresponses(**routed)))

        asyncio.run(asynchronously())
        for _ in range(2):
            callback.log_success_event({"litellm_params": {"metadata": {"session_id": "r"}}}, object(), 0, 0)
        package.removeHandler(listener)
        return {"judged": judged, "texts": [event.step.text for event in seen.steps], "logged": logged.getvalue()}

    def loops_that_end(self) -> Any:
        """Answers of event loops that litellm's logging does not outlive; a tenth of a second later none came twice."""
        callback, seen = self.watch()
        where = {"api_base": self.server.api_base, "api_key": "x", "max_retries": 0}
        elsewhere = self.given("s") | {"api_base": "http://127.0.0.1:1/"}
        judged: list[bool] = []
        for _ in range(3):
            answers = (
                litellm.completion(**elsewhere, fallbacks=[{"model": "openai/tiny", **where}]),
                asyncio.run(litellm.acompletion(**self.given("s"))),
            )
            judged.extend(map(callback.wait_for, answers))

        async def asynchronously() -> None:
            answers = [await litellm.acompletion(**self.given("s")) for _ in range(3)]
            judged.extend([await callback.wait_for_async(answer) for answer in answers])
            await asyncio.sleep(0.1)

        asyncio.run(asynchronously())
        return {"judged": judged, "steps": len(seen.steps), "lost": [callback.failures, callback.dropped]}

    def one_id_for_all(self) -> Any:
        callback, seen = self.watch()
        judged = []
        for stream in (False, True, False, True):
            answer = litellm.completion(**self.given("s", stream=stream, litellm_call_id="mine"))
            list(answer if stream else ())
            judged.append([callback.wait_for(answer), len(seen.steps)])
        return {"judged": judged, "lost": [callback.failures, callback.dropped]}

    def several_choices(self) -> Any:
        callback, seen = self.watch()
        judged = callback.wait_for(litellm.completion(**self.given("s", n=2, logprobs=True)))
        verdict = callback.would_allow("s", "pay")
        steps = [[event.step.step_id, event.step.text, len(event.step.tool_calls)] for event in seen.steps]
        return {"judged": judged, "steps": steps, "allowed": verdict is not None and verdict.allowed}

    def a_second_callback(self) -> Any:
        """One beside another that is made alike, as where a program is loaded anew; litellm takes like ones for one."""
        first, _ = self.watch()
        self.call("s")  # at a call litellm makes lists of its own
        second = UncertaintyCallback(UncertaintyMonitor())
        litellm.callbacks.append(second)
        judged: list[list[bool]] = []

        async def asynchronously() -> None:
            for stream in (False, True):
                answer = await litellm.acompletion(**self.given("s", stream=stream))
                if stream:
                    async for _ in answer:
                        pass
                judged.append([await one.wait_for_async(answer) for one in (first, second)])

        asyncio.run(asynchronously())
        return {"judged": judged}

    def made_with(self) -> Any:
        """The facts of each session's latest beginning; of two runs of one agent, and of others that differ."""
        prompt = {"role": "system", "content": "You know capitals."}
        asked = {"role": "user", "content": "Capital of France?"}
        tools = [{"type": "function", "function": {"name": "pay", "parameters": {"type": "object", "properties": {}}}}]
        same = {"messages": [prompt, asked], "tools": tools}
        found = {}
        for name, sent in {
            "one": [same],
            "another": [same, same],
            "prompt": [{**same, "messages": [asked]}],
            "tools": [{**same, "tools": None}],
            "functions": [{**same, "tools": None, "functions": [tools[0]["function"]]}],
            "form": [{**same, "response_format": {"type": "json_object"}}],
            "changing": [same, {**same, "messages": [asked]}],
            "hosted": [{**same, "model": self.given("")["model"].replace("openai/", "hosted_vllm/")}],
        }.items():
            callback, seen = self.watch()
            for one in sent:
                callback.wait_for(litellm.completion(**{**self.given(name), **one}))
            start = seen.starts[-1]
            found[name] = [start.model, start.prompt_hash, start.tools_hash]
        return found

    def ten_at_once(self) -> Any:
        callback, seen = self.watch()

        def one(number: int) -> None:
            for _ in range(3):
                self.call(f"s{number}")

        threads = [threading.Thread(target=one, args=(number,)) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: len(seen.steps) == 30)
        beliefs = [callback.belief(f"s{number}") for number in range(10)]
        closed = callback.close()
        return {"steps": [belief.total_steps for belief in beliefs if belief is not None], "closed": closed}


def until(holds: Callable[[], bool]) -> None:
    """litellm hands answers over in threads of its own, some time after the call has returned."""
    deadline_s = time.monotonic() + 120
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.01)


def main() -> None:
    scenes = (
        Scene.every_kind,
        Scene.a_judge_that_hangs,
        Scene.a_monitor_that_fails,
        Scene.bounds,
        Scene.verdicts,
        Scene.ten_at_once,
        Scene.waiting_for_an_answer,
        Scene.other_kinds,
        Scene.loops_that_end,
        Scene.one_id_for_all,
        Scene.several_choices,
        Scene.a_second_callback,
        Scene.made_with,
    )
    with serving(behave) as server:
        found = {scene.__name__: scene(Scene(server)) for scene in scenes}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
