"""One small file of each format, written by hand after its documentation; the source stands beside each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

# sierra-research/tau2-bench, src/tau2/data_model/simulation.py (Results, SimulationRun) and message.py
TAU2: dict[str, Any] = {
    "timestamp": "2026-03-01T10:00:00.000000",
    "info": {
        "git_commit": "0",
        "num_trials": 1,
        "max_steps": 100,
        "max_errors": 10,
        "user_info": {"implementation": "user_simulator", "llm": "m-user"},
        "agent_info": {"implementation": "llm_agent", "llm": "m-agent"},
        "environment_info": {"domain_name": "airline", "policy": "Be kind."},
    },
    "tasks": [{"id": "7", "evaluation_criteria": {"actions": [{"name": "THE REFERENCE ACTION"}]}}],
    "simulations": [
        {
            "id": "5f1c",
            "task_id": "7",
            "timestamp": "2026-03-01T10:00:01.000000",
            "start_time": "2026-03-01T10:00:01.000000",
            "end_time": "2026-03-01T10:00:09.000000",
            "duration": 8.0,
            "termination_reason": "user_stop",
            "reward_info": {"reward": 1.0, "action_checks": [{"action": {"name": "THE REFERENCE ACTION"}}]},
            "messages": [
                {"role": "assistant", "content": "Hi! How can I help?", "turn_idx": 0, "timestamp": None},
                {"role": "user", "content": "Cancel EHGLP3", "turn_idx": 1, "timestamp": "2026-03-01T10:00:03"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "c1", "name": "get_reservation", "arguments": {"id": "EHGLP3"}, "requestor": "assistant"}
                    ],
                    "usage": {"completion_tokens": 20, "prompt_tokens": 900},
                    "timestamp": "2026-03-01T10:00:04.500000",
                },
                {"id": "c1", "role": "tool", "content": "not found", "requestor": "assistant", "error": True},
                {"role": "assistant", "content": "There is no such reservation."},
                {"role": "user", "content": "###STOP###"},
            ],
            "trial": 0,
            "seed": 300,
        },
        {
            "id": "5f1d",
            "task_id": "7",
            "termination_reason": "max_steps",
            "reward_info": {"reward": 0.0},
            "messages": [{"role": "assistant", "content": "Hi!"}],
            "trial": 1,
        },
    ],
}


def _lc(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind], "kwargs": kwargs}


_T = "a1b2c3d4-0000-4000-8000-000000000001"
# docs.langchain.com/langsmith/run-data-format; messages as langchain_core.load.dumpd writes them
LANGSMITH = [
    {
        "id": "a1b2c3d4-0000-4000-8000-000000000003",
        "trace_id": _T,
        "parent_run_id": _T,
        "dotted_order": f"20260301T100000000000Z{_T}.20260301T100001000000Za1b2c3d4-0000-4000-8000-000000000003",
        "name": "ChatOpenAI",
        "run_type": "llm",
        "start_time": "2026-03-01T10:00:01.000000",
        "end_time": "2026-03-01T10:00:02.000000",
        "inputs": {
            "messages": [[_lc("SystemMessage", content="Be brief."), _lc("HumanMessage", content="Weather in Paris?")]]
        },
        "outputs": {
            "generations": [
                [
                    {
                        "text": "",
                        "message": _lc(
                            "AIMessage",
                            content="",
                            tool_calls=[
                                {"name": "weather", "args": {"city": "Paris"}, "id": "t1", "type": "tool_call"}
                            ],
                            usage_metadata={"input_tokens": 31, "output_tokens": 9, "total_tokens": 40},
                        ),
                    }
                ]
            ]
        },
        "extra": {"metadata": {"ls_model_name": "gpt-x"}},
        "error": None,
    },
    {
        "id": "a1b2c3d4-0000-4000-8000-000000000004",
        "trace_id": _T,
        "parent_run_id": _T,
        "name": "weather",
        "run_type": "tool",
        "start_time": "2026-03-01T10:00:02.500000",
        "inputs": {"input": "{'city': 'Paris'}"},
        "outputs": {"output": _lc("ToolMessage", content="57 F, rain", tool_call_id="t1")},
        "error": None,
    },
    {
        "id": "a1b2c3d4-0000-4000-8000-000000000005",
        "trace_id": _T,
        "parent_run_id": _T,
        "name": "ChatOpenAI",
        "run_type": "llm",
        "start_time": "2026-03-01T10:00:03.000000",
        "inputs": {
            "messages": [
                [
                    _lc("SystemMessage", content="Be brief."),
                    _lc("HumanMessage", content="Weather in Paris?"),
                    _lc(
                        "AIMessage",
                        content="",
                        tool_calls=[{"name": "weather", "args": {"city": "Paris"}, "id": "t1", "type": "tool_call"}],
                    ),
                    _lc("ToolMessage", content="57 F, rain", tool_call_id="t1"),
                ]
            ]
        },
        "outputs": {"generations": [[{"text": "Rain.", "message": _lc("AIMessage", content="Rain.")}]]},
        "prompt_tokens": 60,
        "completion_tokens": 2,
        "error": None,
    },
    {
        "id": _T,
        "trace_id": _T,
        "parent_run_id": None,
        "name": "weather agent",
        "run_type": "chain",
        "start_time": "2026-03-01T10:00:00.000000",
        "inputs": {"question": "Weather in Paris?"},
        "outputs": {"answer": "Rain."},
        "error": None,
        "feedback_stats": {"correctness": {"n": 1, "avg": 1.0}},
    },
]


# platform.openai.com/docs/api-reference/chat/object and /batch (request input, request output)
CHAT_LOG: list[dict[str, Any]] = [
    {
        "request": {"model": "gpt-x", "messages": [{"role": "user", "content": "Capital of France?"}]},
        "response": {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1772359200,
            "model": "gpt-x-2026",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "Paris", "refusal": None},
                    "logprobs": {
                        "content": [
                            {
                                "token": "Paris",
                                "logprob": -0.01,
                                "bytes": None,
                                "top_logprobs": [
                                    {"token": "Paris", "logprob": -0.01},
                                    {"token": "Lyon", "logprob": -5.5},
                                ],
                            }
                        ]
                    },
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13},
        },
    },
    {
        "id": "batch_req_1",
        "custom_id": "request-2",
        "response": {
            "status_code": 200,
            "request_id": "q",
            "body": {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}}]},
        },
        "error": None,
    },
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
]


def _attributes(pairs: Mapping[str, Any]) -> list[dict[str, Any]]:
    kinds: list[tuple[type, str, Callable[[Any], Any]]] = [
        (bool, "boolValue", bool),
        (str, "stringValue", str),
        (int, "intValue", str),
        (float, "doubleValue", float),
    ]
    found = []
    for key, value in pairs.items():
        name, convert = next((name, convert) for kind, name, convert in kinds if isinstance(value, kind))
        found.append({"key": key, "value": {name: convert(value)}})
    return found


def span(number: int, name: str, parent: int | None, start_s: float, **attributes: Any) -> dict[str, Any]:
    """A span of OTLP/JSON; in attribute names "__" stands for "."."""
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": f"{number:016x}",
        "parentSpanId": "" if parent is None else f"{parent:016x}",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(int((1772359200 + start_s) * 1e9)),
        "endTimeUnixNano": str(int((1772359201 + start_s) * 1e9)),
        "attributes": _attributes(named),
        "status": {},
    }


_ASKED = [
    {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
    {"role": "user", "parts": [{"type": "text", "content": "Weather in Paris?"}]},
]
_CALLED = {
    "role": "assistant",
    "parts": [{"type": "tool_call", "id": "t1", "name": "weather", "arguments": {"city": "Paris"}}],
    "finish_reason": "tool_call",
}
_TOLD = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "t1", "response": "57 F, rain"}]}

# opentelemetry.io/docs/specs/otel/protocol/file-exporter and /docs/specs/semconv/gen-ai (non-normative examples)
OTLP_SPANS = [
    span(
        2,
        "chat gpt-x",
        1,
        1.0,
        gen_ai__operation__name="chat",
        gen_ai__request__model="gpt-x",
        gen_ai__usage__input_tokens=31,
        gen_ai__usage__output_tokens=9,
        gen_ai__input__messages=json.dumps(_ASKED),
        gen_ai__output__messages=json.dumps([_CALLED]),
    ),
    span(
        3,
        "execute_tool weather",
        1,
        2.5,
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name="weather",
        gen_ai__tool__call__id="t1",
        gen_ai__tool__call__result="57 F, rain",
    ),
    span(
        4,
        "chat gpt-x",
        1,
        3.0,
        gen_ai__operation__name="chat",
        gen_ai__input__messages=json.dumps([*_ASKED, _CALLED, _TOLD]),
        gen_ai__output__messages=json.dumps(
            [{"role": "assistant", "parts": [{"type": "text", "content": "Rain."}], "finish_reason": "stop"}]
        ),
    ),
    span(
        1, "invoke_agent weather", None, 0.0, gen_ai__operation__name="invoke_agent", gen_ai__conversation__id="conv-9"
    ),
]


def request(spans: list[dict[str, Any]]) -> dict[str, Any]:
    """One request of OTLP/JSON that holds these spans."""
    service = {"attributes": _attributes({"service.name": "desk"})}
    return {"resourceSpans": [{"resource": service, "scopeSpans": [{"scope": {"name": "x"}, "spans": spans}]}]}


# sierra-research/tau-bench, a result file; ag2ai/Agents_Failure_Attribution, a log
TAU_BENCH: list[dict[str, Any]] = [
    {
        "task_id": 3,
        "reward": 1.0,
        "info": {"task": "never read"},
        "traj": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Done."}],
        "trial": 0,
    }
]
FAILURE_LOG = [
    {
        "question_ID": "q1",
        "history": [{"content": "2+2=5", "name": "Solver", "role": "assistant"}],
        "mistake_step": "0",
        "mistake_agent": "Solver",
    }
]


def json_lines(values: list[Any]) -> bytes:
    """JSON lines."""
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


FILES: dict[str, bytes] = {
    "tau2": json.dumps(TAU2, indent=2).encode(),
    "langsmith": json_lines(LANGSMITH),
    "chat-log": json_lines(CHAT_LOG),
    "otlp": json_lines([request(OTLP_SPANS[:2]), request(OTLP_SPANS[2:])]),
    "tau-bench": json.dumps(TAU_BENCH).encode(),
    "failure-log": json_lines(FAILURE_LOG),
}
"""A file of each format that `detect_format` knows."""

RECORDS: dict[str, Callable[[bytes], bytes]] = {
    "tau2": lambda name: json.dumps({**TAU2["simulations"][0], "trial": int(name)}).encode(),
    "langsmith": lambda name: FILES["langsmith"].replace(b"a1b2c3d4", name),
    "chat-log": lambda name: FILES["chat-log"].splitlines(keepends=True)[0].replace(b"chatcmpl-1", b"c" + name),
    "otlp": lambda name: FILES["otlp"].replace(b"5b8efff7", name).replace(b"conv-9", b"conv-" + name),
    "tau-bench": lambda name: json.dumps({**TAU_BENCH[0], "trial": int(name)}).encode(),
    "failure-log": lambda name: FILES["failure-log"].replace(b'"q1"', b'"q' + name + b'"'),
}
"""A run of each format, its ids made of a number of eight digits: records of a long file."""
AROUND: dict[str, tuple[bytes, bytes]] = {"tau2": (b'{"info": {}, "simulations": [', b"]}"), "tau-bench": (b"[", b"]")}
"""What stands before and behind the records of a long file, where that is no JSON lines."""
