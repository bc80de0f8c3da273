"""Every code block of README.md and docs/*.md runs, in order, one process and one temporary folder a page.

A fence may say more than its language, and readers see that as the block's title:

    ```python                                    runs in the page's namespace, like a script
    ```console                                   runs each line that begins with "$ "; other lines are expected output
    ```bash                                      runs as one script
    ```text title="output"                       is what the block before it printed (`...` stands for anything)
    ```python title="slow: needs the model"      runs with pytest -m slow only
    ```python title="not run: asks a paid model" does not run; the reason has to be there

Blocks of any other language are not run. `python tests/test_docs.py PAGE [--slow]` runs one page; the tests fork each
page from a process that has imported the package (`python tests/test_docs.py --warm`).
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"(?P<ticks>`{3,})(?P<language>\w*)\s*(?P<rest>.*)")
_TITLE = re.compile(r'title="(?P<title>[^"]*)"')
_RUNS = ("python", "console", "bash")
_MATCHES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class BlockError(Exception):
    """A block failed; the message begins with its place."""


@dataclass(frozen=True)
class Block:
    """One fenced block: the line of its first line of code, and what its fence says."""

    place: str
    line: int
    language: str
    title: str
    code: str

    @property
    def runs(self) -> bool:
        return self.language in _RUNS and not self.title.startswith("not run")

    @property
    def slow(self) -> bool:
        return self.title.startswith("slow")


ADAPTERS = ("langgraph", "langchain", "openai_agents", "pydantic_ai", "litellm")


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page. Raises BlockError for a fence that never ends, or a mark without a reason."""
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    for number, text in lines:
        fence = _FENCE.match(text.strip())
        if fence is None:
            continue
        place = f"{page.name}:{number}"
        title = _TITLE.search(fence["rest"])
        if fence["rest"].strip() and title is None:
            raise BlockError(
                f'{place}: a fence says more than its language only as title="...". Got {fence["rest"]!r}.'
            )
        block = Block(
            place, number + 1, fence["language"], title["title"] if title else "", _body(lines, fence["ticks"], place)
        )
        if re.match(r"(?:not run|slow)(?!: \S)", block.title):
            raise BlockError(f'{place}: say why, as in title="not run: asks a paid model". Got {block.title!r}.')
        yield block


def _body(lines: Iterator[tuple[int, str]], ticks: str, place: str) -> str:
    body: list[str] = []
    for _, text in lines:
        if text.strip() == ticks:
            return "\n".join(body) + "\n"
        body.append(text)
    raise BlockError(f"{place}: the block never ends.")


def run_page(page: Path, *, slow: bool) -> int:
    """Run a page's blocks in the working folder; returns how many ran. Raises BlockError for the first that fails."""
    module, before = types.ModuleType("__main__"), sys.modules["__main__"]
    sys.modules["__main__"] = module  # so that what looks a name up in its module finds it
    try:
        return _run_blocks(page, module, slow)
    finally:
        sys.modules["__main__"] = before


def _run_blocks(page: Path, module: types.ModuleType, slow: bool) -> int:
    printed: str | None = None
    ran = 0
    for block in blocks(page):
        if block.language == "text" and block.title == "output":
            if printed is not None and not _matches(block.code, printed):
                raise BlockError(f"{block.place}: this was printed instead:\n{printed}")
        elif block.runs and (slow or not block.slow):
            printed = _run_python(block, module) if block.language == "python" else _run_shell(block)
            ran += 1
        else:
            printed = None
    return ran


def _matches(expected: str, printed: str) -> bool:
    return doctest.OutputChecker().check_output(expected, printed, _MATCHES)


def _run_python(block: Block, module: types.ModuleType) -> str:
    code = "\n" * (block.line - 1) + block.code  # so that a traceback names the page's own lines
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, block.place.partition(":")[0], "exec"), module.__dict__)
    except Exception as error:
        raise BlockError(f"{block.place}: {type(error).__name__}: {error}") from error
    return out.getvalue()


def _run_shell(block: Block) -> str:
    """Run a `bash` block as one script, or a `console` block command by command in one shell."""
    if block.language == "bash":
        return _shell(block.place, block.code)
    steps = re.split(r"^\$ ", block.code, flags=re.MULTILINE)
    if steps[0].strip() or len(steps) == 1:
        raise BlockError(f'{block.place}: a console block begins with "$ " and a command.')
    commands, expected = zip(*((step.partition("\n")[0], step.partition("\n")[2]) for step in steps[1:]), strict=True)
    mark = "--- end of a command ---"
    printed = _shell(block.place, "\n".join(f"{command}\necho '{mark}'" for command in commands))
    for command, wanted, got in zip(commands, expected, printed.split(f"{mark}\n"), strict=False):
        if wanted.strip() and not _matches(wanted, got):
            raise BlockError(f"{block.place}: {command!r} printed this instead:\n{got}")
    return printed.replace(f"{mark}\n", "")


def _shell(place: str, script: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path},
        check=False,
    )
    if done.returncode != 0:
        raise BlockError(f"{place}: ended with status {done.returncode}:\n{done.stdout}")
    return done.stdout


# -- the tests --------------------------------------------------------------------------------------------------------


ROOMS = (
    "",
    ".recording",
    ".testing",
    ".runtime",
    ".learn",
    ".telemetry",
    ".models",
    ".stats",
    ".signals",
    ".importers",
)
"""What pages import from: loaded before the first page."""


@dataclass
class Pages:
    """Runs each page in a process of its own, forked from one that has imported the package."""

    server: subprocess.Popen[str]

    def run(self, page: Path, folder: Path, *options: str) -> tuple[int, str, str]:
        """Exit status, stdout and stderr of a page that runs in a folder."""
        out = folder.with_name(f"{folder.name}-out")
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.write(json.dumps([str(folder), str(out), str(page), *options]) + "\n")
        self.server.stdin.flush()
        status = self.server.stdout.readline()
        assert status, "the process of the pages ended"
        return int(status), out.with_suffix(".1").read_text("utf-8"), out.with_suffix(".2").read_text("utf-8")


@pytest.fixture(scope="session")
def pages() -> Iterator[Pages]:
    command = [sys.executable, "-W", "error", __file__, "--warm"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield Pages(server)
        server.kill()


def fork_pages() -> list[str]:
    """Fork a process for each line of stdin; returns in those only, with the arguments of `main`."""
    for room in ROOMS:
        for name in dir(module := importlib.import_module(f"grampus_uq{room}")):
            getattr(module, name)
    # The threads of OpenBLAS, which starts its own anew after a fork; and langsmith on Python 3.14.
    for harmless in ("This process .* is multi-threaded", "'asyncio.iscoroutinefunction' is deprecated"):
        warnings.filterwarnings("ignore", harmless, DeprecationWarning)
    while line := sys.stdin.buffer.raw.readline():  # type: ignore[attr-defined]  # unbuffered: nothing for a child
        folder, out, *arguments = json.loads(line)
        if child := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            continue
        signal.alarm(3_500 if "--slow" in arguments else 250)  # ends the page
        os.chdir(folder)
        for number, name in enumerate([os.devnull, f"{out}.1", f"{out}.2"]):
            flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC if number else os.O_RDONLY
            os.dup2(os.open(name, flags), number)
        return arguments
    sys.exit()


WITH_CODE = [
    page for page in PAGES if re.search(r"^ *```(?:python|console|bash)", page.read_text(encoding="utf-8"), re.M)
]


LONG = ("detector.md", "fitting.md", "reviewers.md", "inbox.md", "langgraph.md", "mcp.md", "openai-agents.md")
LONG += ("README.md", "quickstart.md", "runtime.md", "litellm.md", "langchain.md", "evaluation.md", "pydantic-ai.md")
"""More than two seconds of a processor each."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page.name in LONG else []) for page in WITH_CODE],
    ids=lambda page: page.name,
)
def test_every_block_of_a_page_runs(page: Path, pages: Pages, tmp_path: Path) -> None:
    status, _, errors = pages.run(page, tmp_path)
    assert status == 0, errors


TUTORIAL = "tutorial.md"
"""`tests/benchmarks/test_life.py` runs this page with the embedded model, and judges what it recorded."""
SLOW_PAGES = [page for page in PAGES if page.name != TUTORIAL and 'title="slow' in page.read_text(encoding="utf-8")]


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("page", SLOW_PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_runs_with_the_embedded_model_too(page: Path, pages: Pages, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the embedded model needs the extra 'demo'")
    status, _, errors = pages.run(page, tmp_path, "--slow")
    assert status == 0, errors


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not re.match(r"[a-z]+:", target):
            name, _, anchor = target.partition("#")
            leads_to = page.parent / name if name else page
            assert leads_to.exists(), target
            assert not anchor or anchor in anchors(leads_to), target


def test_the_readme_has_exactly_the_two_set_up_commands() -> None:
    commands = [block.code.strip() for block in blocks(ROOT / "README.md") if block.language == "bash"]
    assert commands[:2] == [
        'pip install -e ".[demo]" && grampus-uq demo',
        'pip install -e ".[test]" && pytest',
    ]
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("pip install -e") == 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    rooms = "|".join(room.name for room in (ROOT / "grampus_uq").iterdir() if room.is_dir())
    for place in re.findall(rf"`((?:{rooms})/[a-z_/]*(?:\.py)?)`", prose(page)):
        assert (ROOT / "grampus_uq" / place).exists(), place


def test_pages_and_examples_import_from_a_dozen_places_and_from_the_adapter_of_their_framework() -> None:
    sources = [*PAGES, *(ROOT / "examples").glob("*.py")]
    found = {
        place
        for source in sources
        for place in re.findall(
            r"^\s*(?:from|import) (grampus_uq[\w.]*)", source.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    adapters = {f"grampus_uq.integrations.{name}" for name in ADAPTERS}
    assert len(found - adapters) <= 12, sorted(found - adapters)
    assert all(place.count(".") <= 1 for place in found - adapters)


def test_the_reference_says_what_the_docstrings_say() -> None:
    from tests import reference  # not where this file runs as a script

    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "python -m tests.reference writes it anew"


def test_the_rooms_of_the_architecture_page_are_the_layers_that_the_contract_holds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][0]
    layers = [re.findall(r"\w+", layer) for layer in contract["layers"]]
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = page.partition("## Rooms")[2].partition("```\n")[2].partition("```")[0].splitlines()
    assert [re.findall(r"\w+", re.split(r" {3,}", room)[0]) for room in rooms] == layers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nx = 1\n```\n\ntext\n\n```python\nassert x == 2\n```", r"page\.md:7: AssertionError"),
        ("```python\nraise ValueError('no')\n```", r"page\.md:1: ValueError: no"),
        ("```python\nx =\n```", r"page\.md:1: SyntaxError"),
        ("```python\nprint('a')\n```\n```text title=\"output\"\nb\n```", r"page\.md:4: this was printed instead:\na"),
        ("```console\n$ echo one\none\n$ echo two\nthree\n```", r"page\.md:1: 'echo two' printed this instead:\ntwo"),
        ("```console\n$ true\n$ false\n$ echo late\n```", r"page\.md:1: ended with status 1"),
        ("```console\ngrampus-uq --help\n```", r"page\.md:1: a console block begins"),
        ("```bash\nexit 3\n```", r"page\.md:1: ended with status 3"),
        ('```python title="not run"\n```', r"page\.md:1: say why"),
        ('```python title="not run: "\n```', r"page\.md:1: say why"),
        ('```python title="slow"\n```', r"page\.md:1: say why"),
        ("```python not run: because\n```", r"page\.md:1: a fence says more"),
        ("```python\nx = 1\n", r"page\.md:1: the block never ends"),
    ],
)
def test_a_block_that_fails_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(BlockError, match=message):
        run_page(page, slow=False)


def test_a_warning_fails_a_page_in_its_own_process(pages: Pages, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nimport warnings\nwarnings.warn('old', stacklevel=1)\n```", encoding="utf-8")
    assert pages.run(page, tmp_path) == (1, "", "page.md:1: UserWarning: old\n")


def test_what_is_marked_does_not_run_and_what_is_not_runs_in_order_in_one_namespace(
    pages: Pages, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "\n".join(
            [
                '```python title="not run: asks a paid model"\nraise SystemExit\n```',
                "```json\n{\n```",
                "```\nplain\n```",
                '```python title="slow: takes an hour"\nopen("slow.txt", "x").close()\n```',
                "```python\nfrom dataclasses import dataclass\n\n@dataclass\nclass A:\n    x: 'B'\n\nB = int\n```",
                "```python\nimport typing\nprint(typing.get_type_hints(A), __name__)\n```",
                "```text title=\"output\"\n{'x': <class 'int'>} __main__\n```",
                "```console\n$ export NAME=grampus\n$ echo $NAME > name.txt; cat name.txt\ngramp...\n```",
                '```python\nassert open("name.txt").read() == "grampus\\n"\n```',
            ]
        ),
        encoding="utf-8",
    )
    status, printed, errors = pages.run(page, tmp_path)
    assert (status, printed) == (0, "page.md: 4 blocks ran\n"), errors
    assert not (tmp_path / "slow.txt").exists()
    assert pages.run(page, tmp_path, "--slow")[0] == 0
    assert (tmp_path / "slow.txt").exists()


def main(arguments: list[str]) -> None:
    page = Path(arguments[0])
    try:
        ran = run_page(page, slow="--slow" in arguments[1:])
    except BlockError as error:
        sys.exit(str(error))
    print(f"{page.name}: {ran} blocks ran")


if __name__ == "__main__":
    main(fork_pages() if sys.argv[1:] == ["--warm"] else sys.argv[1:])
