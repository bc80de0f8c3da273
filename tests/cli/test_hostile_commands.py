"""Command lines that are wrong, hostile or about nothing: no traceback, no reassurance, and the right exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner

from grampus_uq import Permit, open_store
from grampus_uq.cli import _COMMANDS, _group, main
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.recording.artifacts import ProfileArtifact, save
from tests.learn.evaluate.recorded import events, write

# Exit status, then the arguments; each is run in a folder with `runs` (twelve sound runs), `empty` (a folder), `p.json`
# (a profile without a detector), and the files of `PLACE`. <esc> is an escape sequence, <bad> a byte that is no text.
TABLE = """
2 evalute runs
2 export runs
2 watch show
2 <esc>
2 <bad>
2 --bogus
2 runs
2 runs lst runs
1 runs list empty
1 runs list nowhere
1 runs list file.txt
1 runs list nul.jsonl
1 runs list big.json
1 runs list <bad>
1 runs list <nul>
1 runs list <empty>
1 runs list <esc>
2 runs show runs
1 runs show runs nobody
1 runs show runs <bad>
1 runs show empty r1
1 runs show runs r1 -o nowhere/x.html
2 runs show runs r1 -o x.html --json
1 runs validate empty
1 runs validate nowhere
1 runs validate file.txt
2 runs label runs r1 maybe
1 runs label runs nobody success
2 runs label runs r1 success --by <empty>
2 runs label runs r1 success --stop-reason never
2 runs label runs
1 runs label runs --from nowhere.csv
1 runs label runs --from file.txt
1 runs label runs --from empty
1 runs label runs --from /dev/zero
2 runs table runs -o x.xls
1 runs table runs -o nowhere/x.csv
1 runs table runs -o empty --format csv
1 runs table runs -o /dev/full --format csv
1 runs table runs -o <nul>.csv
1 runs table empty -o e.csv
1 send none.jsonl --otlp http://127.0.0.1:1
2 runs table runs -o - --format parquet
1 runs pack empty -o packed
1 runs pack runs -o runs
1 runs pack runs -o file.txt
1 runs pack runs -o file.txt/inner
1 runs import empty -o imported
1 runs import file.txt -o imported
1 runs import nowhere -o imported
1 runs import big.json -o imported
1 runs import file.txt -o file.txt
2 runs import file.txt -o imported --format nothing
1 runs replay empty --profile p.json
1 runs replay runs --profile nowhere.json
1 runs replay runs --profile file.txt
1 runs replay runs --profile empty
1 runs replay runs --profile runs/r1.jsonl
2 runs replay runs
2 demo --task questions --model <empty>
2 evaluate
1 evaluate nowhere
1 evaluate empty
1 evaluate file.txt
2 evaluate runs --draws 1
2 evaluate runs --draws x
2 evaluate runs --seed -1
2 evaluate runs --censoring never
2 evaluate runs --continuation q.csv
1 evaluate runs --censoring exact --continuation nowhere.csv
1 evaluate runs --censoring exact --continuation file.txt
1 evaluate runs -o nowhere/r.html
1 evaluate runs -o empty
1 evaluate runs -o /dev/null
1 evaluate runs --profile nowhere.json
1 evaluate runs --watch sqlite:///nowhere.db
2 evaluate runs --workers 0
1 evaluate big.json
1 fit empty
1 fit none.jsonl
1 fit nowhere
2 fit runs --false-alarms nan
2 fit runs --false-alarms 2
2 fit runs --assurance nan
2 fit runs --assurance 1
2 fit runs --held-out 0
2 fit runs --held-out nan
2 fit runs --seed -1
2 fit runs --budget 0
2 fit runs --budget nan --stream fused
2 fit runs --stream <empty>
2 fit runs --accuracy 1.5
2 fit runs --accuracy nan
2 fit runs --pause-share -1
2 fit runs --budget 0.1 --accuracy 0.9
2 fit runs --cost-missed-failure nan --cost-false-alarm 1
2 fit runs --runs-per-day -3
2 fit runs --runs-per-day nan
2 fit runs --irreversible <empty>
1 fit runs --base nowhere.json
1 fit runs -o nowhere/p.json
1 fit runs -o empty
2 fit runs --wrong-releases 0
2 permits simulate
2 permits list
1 permits list --store sqlite:///nowhere.db
1 permits show deadbeef --store sqlite:///nowhere.db
1 permits revoke deadbeef --store file.txt
2 permits grant --store sqlite:///nowhere.db
2 permits grant --store sqlite:///nowhere.db --tool x --where amount=most:5
2 permits grant --store sqlite:///nowhere.db --tool x --at-most nan
1 permits simulate nowhere
1 permits simulate empty
1 permits simulate big.json
2 permits simulate runs --at-most nan
2 permits simulate runs --at-most 5
2 permits simulate runs --assurance 1
2 permits simulate runs --audits 0
2 permits simulate runs --seed -1
1 permits simulate runs --profile nowhere.json
2 backtest p.json runs
1 backtest nowhere.json runs
2 backtest p.json empty
1 compare p.json p.json empty --draws 5
1 compare p.json nowhere.json runs
2 compare p.json runs
2 compare p.json p.json runs --seed -1
1 attribute nowhere --calibration runs
2 attribute runs --calibration runs
2 attribute runs --calibration empty
1 attribute empty --calibration runs
1 attribute file.txt --calibration file.txt
2 attribute runs --calibration runs --level nan
2 attribute runs --calibration runs --level 5
2 attribute runs --calibration runs --seed -1
1 attribute runs --calibration runs -o nowhere/a.html
1 attribute runs --calibration runs --run nobody
1 send runs --otlp nonsense
1 send runs --otlp http://127.0.0.1:1 --timeout 1
2 send runs --otlp ftp://x
2 send runs --otlp http://127.0.0.1:1 --timeout nan
1 send empty --otlp http://127.0.0.1:1 --timeout 1
1 send nowhere --otlp http://127.0.0.1:1
2 approvals list
2 approvals list --store <empty>
1 approvals list --store sqlite:///nowhere.db
1 approvals list --store sqlite:///empty
1 approvals list --store file.txt
2 approvals list --store ftp://x/y
1 approvals list --store sqlite:///file.txt
1 approvals show x --store sqlite:///nowhere.db
1 approvals approve deadbeefdead --store sqlite:///nowhere.db
2 approvals approve deadbeefdead --store sqlite:///nowhere.db --key nowhere
2 approvals edit deadbeefdead --store sqlite:///nowhere.db --arguments [1]
2 approvals edit deadbeefdead --store sqlite:///nowhere.db --arguments {"a":NaN}
2 approvals keygen nowhere/key
2 approvals keygen file.txt
2 approvals keygen empty
1 calibration show --store sqlite:///nowhere.db
1 calibration show --store sqlite:///nowhere.db --check
2 calibration feed p.json runs --store sqlite:///w.db --check
1 calibration feed nowhere.json runs --store sqlite:///w.db
1 calibration label r1 success --store sqlite:///nowhere.db
2 calibration label r1 perhaps --store sqlite:///nowhere.db
2 calibration feed p.json empty --store sqlite:///w.db --level nan
2 stop --store sqlite:///nowhere.db
2 stop a --store sqlite:///nowhere.db
2 stop a b --all --store sqlite:///nowhere.db
1 stop a b --store sqlite:///nowhere.db
2 stop --all --store sqlite:///nowhere.db --wait nan
1 stop --all --store sqlite:///nowhere.db
1 prune --store sqlite:///nowhere.db --older-than 1
2 prune --store sqlite:///nowhere.db --older-than -1
2 prune --store sqlite:///nowhere.db --older-than nan
2 prune --store sqlite:///nowhere.db
2 prune --store sqlite:///nowhere.db --keep -1
2 prune --store sqlite:///nowhere.db --audits-older-than 0
1 prune --store sqlite:///nowhere.db --keep 1 --move-to somewhere
1 delegations list --store sqlite:///nowhere.db
2 delegations list
2 delegations grant dan --store sqlite:///nowhere.db
2 delegations grant dan --hours nan --store sqlite:///nowhere.db
2 delegations grant dan --hours 1e9 --store sqlite:///nowhere.db
1 delegations revoke deadbeef --store sqlite:///nowhere.db
1 grants list --store sqlite:///nowhere.db
2 grants list
1 grants revoke deadbeef --store sqlite:///nowhere.db
2 grants revoke --store sqlite:///nowhere.db
1 dashboard -o file.txt
1 dashboard -o file.txt/x
2 dashboard -o dash --alpha nan
2 dashboard -o dash --alpha 5
2 doctor --model
2 doctor --timeout -1
2 doctor --timeout nan
2 stop --all --store sqlite:///nowhere.db --wait -1
1 evidence export --store sqlite:///nowhere.db -o out.jsonl
2 evidence export --store sqlite:///nowhere.db
1 evidence export --store sqlite:///nowhere.db -o nowhere/out.jsonl
1 evidence verify nowhere.jsonl
2 evidence verify file.txt --keys big.json
1 evidence verify .
2 evidence verify
1 runs label-next nowhere
1 runs agreement nowhere
1 runs agreement runs
1 runs agreement empty
1 runs label-next empty --json
2 runs agreement
1 health --store sqlite:///nowhere.db
2 health --store sqlite:///nowhere.db --days 0
2 health --store sqlite:///nowhere.db --budget nan
2 health
1 drills off --store sqlite:///nowhere.db
1 drills report --store sqlite:///nowhere.db
2 drills on --store sqlite:///nowhere.db
2 drills on --change refund:amount --store sqlite:///nowhere.db
2 drills on --change refund:explode --store sqlite:///nowhere.db
2 drills on --change refund:stale --share nan --store sqlite:///nowhere.db
2 drills on --change refund:stale --share 0.9 --store sqlite:///nowhere.db
2 tenants add acme --store sqlite:///nowhere.db
2 tenants add acme --store memory:
1 stuck list --store sqlite:///nowhere.db
1 stuck retry a b --store sqlite:///nowhere.db
2 stuck retry --store sqlite:///nowhere.db
2 stuck retry a --all --store sqlite:///nowhere.db
1 stuck drop a b --store sqlite:///nowhere.db
2 worker x:y --store memory: --agent a --per-agent 0
1 tenants add acme --store postgresql://me:hunter2@127.0.0.1:1/x
1 tenants check --store postgresql://me:hunter2@127.0.0.1:1/x
2 tenants check --store redis://127.0.0.1:1/0
2 worker
2 worker json:dumps --store memory:
2 worker nowhere:make --store memory: --agent a
2 worker json --store memory: --agent a
2 worker json:nothing --store memory: --agent a
2 worker json:__doc__ --store sqlite:///w.db --agent a
2 worker os:getcwd --store sqlite:///w.db --agent a
2 worker json:dumps --store memory: --agent a --at-once 0
2 worker :x --store memory: --agent a
2 worker builtins:id --store memory: --agent a
2 worker builtins:id --store sqlite:///w.db --agent a
2 worker builtins:id --store memory: --agent a --drain nan
2 send runs --otlp http://127.0.0.1:1 --timeout 0
2 calibration feed
2 demo --inbox --task questions
2 inbox
1 inbox --store sqlite:///nowhere.db
2 inbox --store sqlite:///nowhere.db --origin http://example.org
2 inbox --store sqlite:///nowhere.db --port 0
2 inbox --store ftp://x/y
2 inbox --store sqlite:///nowhere.db --notify file:///etc/passwd
1 inbox --store sqlite:///nowhere.db --sentences nowhere.toml
2 inbox invite ann --store sqlite:///nowhere.db
1 inbox invite ann --role decide --store sqlite:///nowhere.db
2 inbox invite <esc> --role decide --store sqlite:///nowhere.db
2 inbox invite ann --role decide --hours 1e9 --store sqlite:///nowhere.db
2 inbox invite ann --role decide --hours nan --store sqlite:///nowhere.db
1 inbox keys --store sqlite:///nowhere.db
1 inbox people --store sqlite:///file.txt
1 inbox remove ann --store sqlite:///nowhere.db
2 mcp
1 mcp --config nowhere.toml -- true
1 mcp --config file.txt -- true
1 mcp --config <nul> -- true
2 mcp --store mysql://x -- true
2 runs label runs r1 success --stop-reason CLEAN
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]
MARKS = {"<esc>": "\x1b[2J", "<bad>": "\udcff", "<empty>": "", "<nul>": "\0"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which every command is run; none of them may leave anything in it."""
    folder = tmp_path_factory.mktemp("hostile")
    for number in range(12):
        steps = [{"verbalized": 0.9 - 0.05 * number}] * 2
        write(folder / "runs" / f"r{number}.jsonl", events(f"r{number}", steps, number % 2 == 0))
    (folder / "empty").mkdir()
    (folder / "file.txt").write_text("hello\n")
    (folder / "nul.jsonl").write_bytes(b"\0" * 100)
    (folder / "none.jsonl").touch()
    (folder / "big.json").write_text("[" * 100_000)
    save(ProfileArtifact(profile=Profile(advisory=True)), folder / "p.json")
    return folder


def contents(folder: Path) -> dict[str, int]:
    return {
        path.name: hash(path.read_bytes()) for path in folder.rglob("*") if path.is_file() and path.name != ".hash-key"
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[1:])[:80])
def test_a_hostile_command_line_is_refused_in_words_and_changes_nothing(
    row: list[str], place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    status, *arguments = row
    for mark, meant in MARKS.items():
        arguments = [argument.replace(mark, meant) for argument in arguments]
    before = contents(place)
    with pytest.raises(SystemExit) as ended:  # anything else would be a traceback
        main(arguments)
    out, err = capfd.readouterr()
    assert ended.value.code == int(status), err
    assert err.strip(), "whoever asked is told why"
    assert "Traceback" not in err
    assert not {char for char in out + err if not char.isprintable()} - {"\n", "\t"}
    assert not {"valid.", "written to", "sent to", "labelled by", "could be fitted."} & set(out.split(" "))
    assert contents(place) == before


def test_the_table_is_long_enough_and_holds_every_command() -> None:
    assert len(ROWS) >= 100
    assert {row[1] for row in ROWS} >= set(_group.list_commands(None)) - {"demo"}  # type: ignore[attr-defined, arg-type]


HELP = """
import sys
from grampus_uq.cli import main
try:
    main(["--help"])
finally:
    print(*(name for name in sys.modules if name.endswith("_command")), file=sys.stderr)
"""


def test_the_list_of_commands_loads_none_of_them() -> None:
    shown = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stderr == "\n"
    assert all(f"  {name} " in shown.stdout for name in _COMMANDS)


def test_a_name_that_is_nearly_right_or_was_right_once_is_answered_with_the_right_one() -> None:
    for wrong, right in (("evalute", "evaluate"), ("export", "send"), ("watch", "calibration")):
        done = CliRunner().invoke(_group, [wrong])
        assert (done.exit_code, f"Did you mean '{right}'?" in done.stderr) == (2, True)
    for group, wrong, right in (("runs", "lst", "list"), ("drills", "reprot", "report")):
        done = CliRunner().invoke(_group, [group, wrong])
        assert f"No such command '{wrong}'. Did you mean '{right}'?" in done.stderr
    for words in (["runs", "report"], ["report"], ["calibration", "watch"]):
        assert "Did you mean" not in CliRunner().invoke(_group, words).stderr, "'report' is no misspelt 'import'"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("prune --store sqlite:///nowhere.db --older-than -1", "'--older-than': -1.0 is not in the range x>0."),
        ("prune --store sqlite:///nowhere.db --audits-older-than 0", "'--audits-older-than': 0.0 is not in the range"),
        ("dashboard -o nowhere --alpha 5", "'--alpha': 5.0 is not in the range 0.0<x<1.0."),
        ("fit nowhere --budget 20", "'--budget': 20.0 is not in the range 0.0<x<1.0."),
        ("health --store sqlite:///nowhere.db --check", "--check belongs to --budget"),
        ("demo --inbox --json", "--details and --json do not go with --inbox"),
        ("runs show recorded", "Missing argument 'SESSION': a name from `grampus-uq runs list recorded`."),
        ("demo --inbox --details", "--details and --json do not go with --inbox"),
    ],
)
def test_what_is_refused_is_named_as_it_was_typed_before_anything_is_opened(words: str, said: str) -> None:
    done = CliRunner().invoke(_group, words.split())
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def shell(line: str, folder: Path, **given: object) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m grampus_uq.cli {line}"
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        ["bash", "-o", "pipefail", "-c", command], cwd=folder, capture_output=True, text=True, timeout=120, **given
    )


@pytest.mark.slow
def test_a_full_disk_and_a_reader_that_has_enough_are_no_traceback(place: Path) -> None:
    full = shell("runs list runs > /dev/full", place)
    assert (full.returncode, full.stderr) == (1, "grampus-uq: No space left on device.\n")
    enough = shell("runs table runs -o - --format csv | head -c 1", place)
    assert "Traceback" not in enough.stderr
    assert "Exception" not in enough.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("runs import log.jsonl --content full -o OUT", "OUT/0.jsonl"),
        ("runs pack PLACE/runs -o OUT", "OUT/part-00000.parquet"),
        ("runs table PLACE/runs -o OUT.csv", "OUT.csv"),
        ("runs table PLACE/runs -o OUT.parquet", "OUT.parquet"),
        ("runs show PLACE/runs r1 -o OUT.html", "OUT.html"),
        ("evaluate PLACE/runs --draws 10 -o OUT.html", "OUT.html"),
    ],
)
def test_a_disk_that_is_full_is_named_by_the_file_that_found_no_room(
    place: Path, tmp_path: Path, words: str, named: str
) -> None:
    log = {"messages": [{"role": "user", "content": "Hello. " * 1_000}, {"role": "assistant", "content": "Hi."}]}
    (tmp_path / "log.jsonl").write_text(json.dumps(log) + "\n")
    program = (
        "import resource, sys; from grampus_uq.cli import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)); main(sys.argv[1:])"
    )
    line = [sys.executable, "-B", "-c", program, *words.replace("PLACE", str(place)).split()]
    ran = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith(f"grampus-uq: {named}: ")
    assert "File too large" in ran.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_an_interrupt_ends_with_130_and_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slow.jsonl")
    program = [sys.executable, "-m", "grampus_uq.cli", "runs", "label", ".", "--from", "slow.jsonl", "--by", "me"]
    with (
        subprocess.Popen(program, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process,
        (tmp_path / "slow.jsonl").open("wb"),  # opens when the command has begun to read
    ):
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "grampus-uq: interrupted."
    assert "Traceback" not in err


def test_an_interrupt_while_a_command_is_imported_ends_the_process(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from grampus_uq.cli import main

class Compiled:
    def find_spec(self, name, *_):
        if name == "grampus_uq.cli.runs_command":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise RuntimeError("what compiled modules make of it")

sys.meta_path.insert(0, Compiled())
main(["runs", "list", "."])
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr.split("\n")) == (130, ["", "grampus-uq: interrupted.", ""])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize(
    "command",
    [
        "runs list PIPE",
        "evaluate PIPE",
        "runs import PIPE -o x",
        "attribute PIPE --calibration .",
        "attribute . --calibration PIPE",
    ],
)
def test_a_pipe_given_for_what_is_read_twice_is_refused_and_never_waited_for(tmp_path: Path, command: str) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    ran = CliRunner().invoke(_group, command.replace("PIPE", str(tmp_path / "pipe.jsonl")).split())
    assert isinstance(ran.exception, DataError)
    assert "is a pipe" in str(ran.exception)


def test_an_empty_path_is_not_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.jsonl").write_text('{"messages": [{"role": "assistant", "content": "Hi."}]}\n')
    ran = CliRunner().invoke(_group, ["runs", "import", "", "-o", "out"])
    assert isinstance(ran.exception, DataError)
    assert "empty path" in str(ran.exception)
    assert not Path("out").exists()


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_completion_scripts_are_to_be_had_and_complete_commands(shell_name: str) -> None:
    environment = {"_GRAMPUS_UQ_COMPLETE": f"{shell_name}_source"}
    script = CliRunner().invoke(_group, [], prog_name="grampus-uq", env=environment)
    assert "_GRAMPUS_UQ_COMPLETE" in script.stdout
    words = {"_GRAMPUS_UQ_COMPLETE": "bash_complete", "COMP_WORDS": "grampus-uq eva", "COMP_CWORD": "1"}
    assert "evaluate" in CliRunner().invoke(_group, [], prog_name="grampus-uq", env=words).stdout


def test_no_control_character_of_a_stored_text_reaches_the_terminal_in_a_warning(tmp_path: Path) -> None:
    url, hostile = f"sqlite:///{tmp_path / 'calls.db'}", "\x1b[2J\u202e\r\nAll calls are harmless."

    async def write() -> None:
        store = open_store(url, create=True)
        permit = Permit(tool="refund", principal="ann", expires_s=1e12).model_dump(mode="json")
        permit[f"thresholds{hostile}"] = permit.pop("thresholds")
        await store.put("permit", permit["id"], json.dumps({"permit": permit}), expected=0, label="refund")
        await store.aclose()

    anyio.run(write)
    line = [sys.executable, "-m", "grampus_uq.cli", "permits", "list", "--store", url]
    shown = subprocess.run(line, capture_output=True, timeout=60)
    told = (shown.stdout + shown.stderr).decode()
    assert r"\x1b[2J\u202e\r\nAll calls are harmless." in told
    assert all(c.isprintable() or c == "\n" for c in told)
