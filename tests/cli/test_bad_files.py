"""One bad file never stops a folder: every command names it by path, line, field and reason, goes on, and exits 1."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from grampus_uq.cli import _group
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.recording import runs
from grampus_uq.recording.artifacts import ProfileArtifact, save
from grampus_uq.recording.parts import over_parts
from grampus_uq.recording.replay import replay_all
from grampus_uq.recording.runs import Refused, Run
from tests.learn.evaluate.recorded import events, write
from tests.sampling import sampled

GOOD = {f"run-{k}": [{"verbalized": 0.9 - 0.1 * (k % 4)}, {"verbalized": 0.8 - 0.15 * (k % 4)}] for k in range(12)}


def broken_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b'{"v":1,"type":"step","session_id":5}\n', *lines[2:]]))


def no_json(path: Path) -> None:
    path.write_bytes(b"not a recording\n" * 3)


def parquet_of_nothing(path: Path) -> None:
    path.with_suffix(".parquet").write_bytes(b"PAR1 and nothing else")
    path.unlink()


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def another_version(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'{"v":1,', b'{"v":99,'))


def folder_out_of_reach(path: Path) -> None:
    """In place of the file a folder whose path is longer than the system takes: nobody, root either, can list it."""
    path.unlink()
    inner = os.open(path.parent, os.O_RDONLY)
    for name in (path.stem, *["x" * 250] * 17):
        os.mkdir(name, dir_fd=inner)
        inner, outer = os.open(name, os.O_RDONLY, dir_fd=inner), inner
        os.close(outer)
    os.close(inner)


HARMS: list[Callable[[Path], None]] = [
    broken_line,
    no_json,
    parquet_of_nothing,
    dangling,
    another_version,
    folder_out_of_reach,
]


@pytest.fixture(params=HARMS, ids=lambda harm: harm.__name__)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """Twelve sound runs, half of them failures, and a thirteenth whose file is bad; and the name of that file."""
    place = tmp_path / "runs"
    for number, (name, steps) in enumerate(GOOD.items()):
        write(place / f"{name}.jsonl", events(name, steps, number % 2 == 0))
    bad = place / "run-13.jsonl"
    write(bad, events("run-13", [{"verbalized": 0.5}], True))
    request.param(bad)
    return place, "run-13"


def called(*arguments: str) -> Result:
    return CliRunner().invoke(_group, list(arguments))


COMMANDS = {
    "list": lambda folder: ["runs", "list", folder],
    "show": lambda folder: ["runs", "show", folder, "renamed"],
    "label": lambda folder: ["runs", "label", folder, "renamed", "failure", "--by", "ann"],
    "table": lambda folder: ["runs", "table", folder, "-o", "-", "--format", "csv"],
    "evaluate": lambda folder: ["evaluate", folder, "--draws", "20"],
    "fit": lambda folder: ["fit", folder, "-o", f"{folder}/../fitted.json", "--force", "--irreversible", "send"],
    "fit --budget": lambda folder: ["fit", folder, "-o", f"{folder}/../fitted.json", "--budget", "0.3"],
    "replay": lambda folder: ["runs", "replay", folder, "--profile", profile(folder)],
    "compare": lambda folder: ["compare", profile(folder), profile(folder), folder, "--draws", "20"],
}


def profile(folder: str) -> str:
    path = Path(folder).parent / "profile.json"
    save(ProfileArtifact(profile=Profile(advisory=True)), path)
    return str(path)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_file_is_named_the_others_are_read_and_the_status_is_1(command: str, folder: tuple[Path, str]) -> None:
    place, bad = folder
    first = place / "run-0.jsonl"  # its file does not bear its name: whoever wants it looks into all of them
    first.write_bytes(first.read_bytes().replace(b'"run-0"', b'"renamed"'))
    done = called(*COMMANDS[command](str(place)))
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stderr.count("left out: ") == 1
    assert f"left out: {place / bad}" in done.stderr
    if command == "evaluate":
        assert "12 runs, clean: scored" in done.stderr
    elif command == "replay":
        assert "12" in done.stdout
    elif command in ("list", "table"):
        assert all(name in done.stdout for name in ["renamed", *list(GOOD)[1:]])
    else:
        assert done.stdout


def test_validation_goes_on_behind_a_file_that_cannot_be_opened(folder: tuple[Path, str]) -> None:
    done = called("runs", "validate", str(folder[0]))
    assert (done.exit_code, isinstance(done.exception, SystemExit)) == (1, True)
    assert f"error: {folder[0] / folder[1]}" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(
        ("13 files, 12 sessions, 24 steps", "13 files, 13 sessions, 25 steps")
    )


def test_a_line_that_is_wrong_is_named_with_its_number_and_its_field(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", events("a", [{"verbalized": 0.5}], True))
    broken_line(tmp_path / "a.jsonl")
    done = called("runs", "list", str(tmp_path))
    assert done.exit_code == 1
    assert f"left out: {tmp_path / 'a.jsonl'}:3, field '" in done.stderr


def test_without_anybody_to_tell_a_bad_file_is_an_error(folder: tuple[Path, str]) -> None:
    with pytest.raises(DataError, match="run-13"):
        list(runs(folder[0]))


def test_replaying_a_folder_goes_on_behind_a_bad_file_and_says_so_in_the_log(
    folder: tuple[Path, str], caplog: pytest.LogCaptureFixture
) -> None:
    place, bad = folder
    torn = list(events("gap", [{"verbalized": 0.5}] * 3, True))
    write(place / "gap.jsonl", [*torn[:2], *torn[3:]])
    counts = replay_all(place, Profile(advisory=True))
    assert (counts.runs, counts.same, len(counts.skipped)) == (12, 24, 2)
    assert [name in caplog.text for name in (bad, "gap.jsonl")] == [True, True]


def _names_of(found: Iterator[Run], refuse: Refused | None) -> list[str]:
    return [run.session_id for run in found]


@pytest.mark.slow
@sampled("folder,workers", [(HARMS[0], 2)], full=[(harm, n) for harm in HARMS for n in (1, 2)], indirect=["folder"])
def test_any_number_of_workers_leaves_out_and_names_the_same(workers: int, folder: tuple[Path, str]) -> None:
    refused: list[DataError] = []
    found = [
        name for part in over_parts(_names_of, folder[0], workers=workers, on_refused=refused.append) for name in part
    ]
    assert sorted(found) == sorted(GOOD)
    assert [folder[1] in error.path for error in refused] == [True]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", events("a", [{"verbalized": 0.5}], True))
    for name in ("a+0001.jsonl", "b.jsonl"):
        os.mkfifo(tmp_path / name)
    done = called("runs", "list", str(tmp_path), "--json")
    assert [run["session_id"] for run in json.loads(done.stdout)] == ["a"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_an_import_waits_for_no_pipe_of_a_folder_and_names_a_link_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "log").write_text('{"messages": [{"role": "assistant", "content": "4"}]}')
    (tmp_path / "in" / "link").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "in" / "pipe")
    done = called("runs", "import", str(tmp_path / "in"), "-o", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert "1 run, 1 step imported from 2 files; 1 record left out." in done.stdout
    assert f"left out: {tmp_path / 'in' / 'link'}: cannot be read: No such file" in done.stderr


@pytest.mark.parametrize("text", ["{", "", '{"id": "r", "messages": 5}\n'])
def test_an_import_without_a_run_makes_no_folder(tmp_path: Path, text: str) -> None:
    (tmp_path / "log.jsonl").write_text(text)
    result = CliRunner().invoke(_group, ["runs", "import", str(tmp_path / "log.jsonl"), "-o", str(tmp_path / "runs")])
    assert result.exit_code == 1
    assert [one.name for one in tmp_path.iterdir()] == ["log.jsonl"]


HOSTILE = "x\x07\x9b2J\u202e\u200b"


@pytest.mark.parametrize(
    "command",
    [
        ["fit", "--budget", "0.3", "--stream", HOSTILE, "-o", "p.json"],
        pytest.param(["fit", "--force", "-o", "p.json"], marks=pytest.mark.slow),
        pytest.param(["evaluate", "--draws", "2"], marks=pytest.mark.slow),
    ],
    ids=lambda command: command[0],
)
def test_names_from_recordings_reach_the_terminal_without_what_it_obeys(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(12):
        steps = [{HOSTILE: 0.9 - 0.05 * number if number % 4 else None}] * 2
        start, *rest = events(f"r{number}{HOSTILE}", steps, number % 2 == 0)
        write(tmp_path / "runs" / f"r{number}.jsonl", [replace(start, model=HOSTILE * (number > 0)), *rest])
    result = called(*command, "runs")
    assert not {char for char in result.output if not char.isprintable()} - {"\n", "\t"}
    if "p.json" in command:
        assert "has no model" in " ".join(result.output.split())
