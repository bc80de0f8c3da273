"""Single-turn tasks of the Berkeley Function Calling Leaderboard, judged by its own checker.

Tasks, answers and checker are read from the wheel of `bfcl-eval`, which pip downloads alone into a folder of the user's
cache and of which nothing is installed; only its syntax checker is imported, straight from the wheel. What that module
imports of the leaderboard's model clients and of its Java and JavaScript parsers is replaced by empty modules: they
would bring dozens of packages for languages that are not measured here.

Taken are the categories of one call in Python (`simple_python`, `multiple`, `live_simple`, `live_multiple`) in turn,
each in an order drawn from the seed, of tasks that are one message and whose functions are described in at most
`LONGEST` characters, so that they fit a small model's context. This was settled before any of them was run.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from grampus_uq.records.values import ToolCall, ToolResult
from grampus_uq.records.vocabulary import Effect

CATEGORIES: Final = ("simple_python", "multiple", "live_simple", "live_multiple")
LONGEST: Final = 2_500
_REQUIREMENT: Final = "bfcl-eval==2026.3.23"
_WHEEL: Final = "bfcl_eval-2026.3.23-py3-none-any.whl"
_SHA256: Final = "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"
_TYPES: Final = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
    "any": "string",
    "list": "array",
    "bool": "boolean",
}
Checker = Callable[[ToolCall], bool]


@dataclass(slots=True)
class BfclTask:
    """One task: what is asked, the functions that may be called, and which calls are right."""

    id: str
    kind: str
    mail: str
    functions: list[dict[str, Any]]
    answer: Mapping[str, Mapping[str, list[Any]]]
    right: Checker
    called: list[ToolCall] = field(default_factory=list)

    def schemas(self) -> list[dict[str, Any]]:
        """The functions with parameters as JSON schema has them."""
        return [
            {"type": "function", "function": {**one, "parameters": as_schema(one["parameters"])}}
            for one in self.functions
        ]

    def effect_of(self, name: str) -> Effect:
        """All calls are taken to be what cannot be undone."""
        return Effect.IRREVERSIBLE

    async def execute(self, call: ToolCall) -> ToolResult:
        """Keep the call."""
        self.called.append(call)
        return ToolResult(tool_call_id=call.id, output="done")

    @property
    def succeeded(self) -> bool:
        """True when one call was made and the checker accepts it."""
        return len(self.called) == 1 and self.right(self.called[0])

    @property
    def truth(self) -> ToolCall:
        """The right call nearest to the one made: an argument that the checker accepts stays as it is."""
        (name, accepted), *_ = self.answer.items()
        first = {
            key: value for key, value in ((key, _plain(values)) for key, values in accepted.items()) if value != ""
        }
        made = self.called[0] if self.called else ToolCall(name="", arguments={})
        if made.name != name or not self.right(ToolCall(name=name, arguments=first)):
            return ToolCall(name=name, arguments=first)
        for key in {*made.arguments, *accepted}:
            trial = {**first, key: made.arguments[key]} if key in made.arguments else _without(first, key)
            if self.right(ToolCall(name=name, arguments=trial)):
                first = trial
        return ToolCall(name=name, arguments=first)


def _plain(values: list[Any]) -> Any:
    """The first accepted value, "" where none is; of an object, the first of each member's."""
    value = values[0] if values else ""
    if isinstance(value, dict):
        members = {key: _plain(inner) if isinstance(inner, list) else inner for key, inner in value.items()}
        return {key: inner for key, inner in members.items() if inner != ""}
    return value


def _without(arguments: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != key}


def as_schema(parameters: Any) -> dict[str, Any]:
    """The leaderboard's description of a value as JSON schema; what a grammar cannot hold to is left out."""
    kind = str(parameters.get("type", "string")).lower()
    schema: dict[str, Any] = {"type": _TYPES.get(kind, kind)}
    schema |= {key: parameters[key] for key in ("description", "enum") if parameters.get(key)}
    if schema["type"] == "object":
        inside = parameters.get("properties", {})
        schema["properties"] = {name: as_schema(one) for name, one in inside.items()}
        schema["required"] = [name for name in parameters.get("required", ()) if name in inside]
        schema["additionalProperties"] = False
    if schema["type"] == "array":
        schema["items"] = as_schema(parameters.get("items", {}))
    return schema


def tasks(n: int, seed: int, cache: Path) -> Iterator[BfclTask]:
    """The first `n` tasks of a seed, categories in turn: the same whatever `n` is."""
    wheel = fetched(cache)
    check = checker(wheel)
    drawn = {}
    for place, category in enumerate(CATEGORIES):
        short = [one for one in _read(wheel, category) if fits(one)]
        order = np.random.default_rng([seed, place]).permutation(len(short))
        drawn[category] = (
            short,
            order,
            {one["id"]: one["ground_truth"] for one in _read(wheel, f"answers of {category}")},
        )
    for number in range(n):
        category = CATEGORIES[number % len(CATEGORIES)]
        short, order, answers = drawn[category]
        if number // len(CATEGORIES) < len(order):
            one = short[order[number // len(CATEGORIES)]]
            yield task_of(one, category, answers[one["id"]], check)


def task_of(one: Mapping[str, Any], category: str, truth: list[Any], check: Callable[..., bool]) -> BfclTask:
    """One task of the leaderboard's files."""
    return BfclTask(
        id=str(one["id"]),
        kind=category,
        mail=one["question"][0][0]["content"],
        functions=one["function"],
        answer=truth[0],
        right=partial(check, one["function"], truth, category),
    )


def fits(one: Mapping[str, Any]) -> bool:
    """A single message, and functions that are described in few words."""
    turns = one["question"]
    return len(turns) == 1 and len(turns[0]) == 1 and len(json.dumps(one["function"])) <= LONGEST


def _read(wheel: Path, category: str) -> list[dict[str, Any]]:
    folder = "possible_answer/" if category.startswith("answers of ") else ""
    name = f"bfcl_eval/data/{folder}BFCL_v4_{category.removeprefix('answers of ')}.json"
    with zipfile.ZipFile(wheel) as archive:
        return [json.loads(line) for line in archive.read(name).decode().splitlines()]


def fetched(cache: Path) -> Path:
    """The wheel, downloaded alone where it is not in the folder yet, and compared with its known digest."""
    wheel = cache / _WHEEL
    if not wheel.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache), _REQUIREMENT]
        subprocess.run(command, check=True)
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != _SHA256:
        raise SystemExit(f"{wheel} is not the file that was measured with. Delete it, and it is fetched again.")
    return wheel


def checker(wheel: Path) -> Callable[..., bool]:
    """The leaderboard's own check of one call against its accepted answers."""
    prefix = "bfcl_eval.eval_checker.ast_eval.type_convertor."
    empty = {
        "bfcl_eval.constants.model_config": {
            "MODEL_CONFIG_MAPPING": {"-": types.SimpleNamespace(underscore_to_dot=False)}
        },
        f"{prefix}java_type_converter": {"java_type_converter": None},
        f"{prefix}js_type_converter": {"js_type_converter": None},
    }
    for name, contents in empty.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(contents)
    if str(wheel) not in sys.path:
        sys.path.insert(0, str(wheel))
    ast_checker = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker").ast_checker
    python = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON

    def right(functions: list[dict[str, Any]], truth: list[Any], category: str, call: ToolCall) -> bool:
        made = [{call.name: json.loads(json.dumps(call.arguments))}]
        try:
            return bool(ast_checker(functions, made, truth, python, category, "-")["valid"])
        except (AttributeError, KeyError, TypeError, IndexError):  # the checker fails on some values of a wrong type
            return False

    return right
